"""What the losses over groups share: which samples of a batch belong to which group."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from moreauc._checks import check_device, check_floating, check_shape


class Membership(NamedTuple):
    """Groups of a checked batch; a sample of several groups has an entry for each.

    Attributes:
        sample: number of the sample of each entry, shape `(E,)`.
        place: place of its group among those present, shape `(E,)`.
        present: numbers of the groups present, ascending, shape `(P,)`.
        sizes: entries of each, shape `(P,)`.
    """

    sample: Tensor
    place: Tensor
    present: Tensor
    sizes: Tensor

    def means(self, losses: Tensor) -> Tensor:
        """Return the mean loss of each group present, shape `(P,)`, differentiable."""
        total = torch.zeros(len(self.present), dtype=losses.dtype, device=losses.device)
        return total.index_add(0, self.place, losses.index_select(0, self.sample)) / self.sizes.to(losses.dtype)

    def pull(self, weight: Tensor, count: int) -> Tensor:
        """Return the gradient of the weighted sum of the means in the losses of `count` samples."""
        share = (weight / self.sizes.to(weight.dtype)).index_select(0, self.place)
        return torch.zeros(count, dtype=weight.dtype, device=weight.device).index_add(0, self.sample, share)


def check_losses(owner: str, losses: Tensor, groups: Tensor, num_groups: int, device: torch.device) -> Membership:
    """Check losses, shape `(B,)`, and groups, ids `(B,)` or memberships `(B, num_groups)`, but not for NaN."""
    check_floating(owner, "losses", losses)
    check_shape(owner, "losses", losses, [("B",)])
    check_device(owner, "losses", losses, device)
    try:
        found: Tensor = torch.as_tensor(groups)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(groups).__name__
        raise ValueError(
            f"{owner}: groups must be a tensor of ids or memberships, got a {kind} of other things"
        ) from error
    check_shape(owner, "groups", found, [tuple(losses.shape), (len(losses), num_groups)])
    found = found.to(device)
    if found.ndim == 2:
        if found.dtype != torch.bool and not bool(((found == 0) | (found == 1)).all()):
            raise ValueError(
                f"{owner}: groups must hold memberships, 0 or 1, got {found[(found != 0) & (found != 1)][0]}"
            )
        sample, number = found.nonzero().unbind(1)
        if not len(sample):
            raise ValueError(f"{owner}: groups must give at least one sample a group, got none")
    else:
        if found.dtype == torch.bool or found.is_floating_point() or found.is_complex():
            raise ValueError(f"{owner}: groups must hold integers, got {found.dtype}")
        number = found.long()
        low, high = (int(value) for value in torch.aminmax(number))
        if low < 0 or high >= num_groups:
            raise ValueError(f"{owner}: groups must lie in [0, {num_groups}), got {low if low < 0 else high}")
        sample = torch.arange(len(number), device=device)
    present, place, sizes = torch.unique(number, return_inverse=True, return_counts=True)
    return Membership(sample, place, present, sizes)
