r"""The mean loss of the samples, and that of the groups, with no memory: what robust losses are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from moreauc._checks import check_count, check_shape
from moreauc.criteria._base import Criterion, Step
from moreauc.criteria._batches import Members, group_members, widened
from moreauc.criteria._validation import Check


class GroupERMLoss(Criterion):
    r"""Mean loss of the samples (ERM), or reweighted so that each of :math:`N` groups has the same total weight.

    Without `group_sizes` it is the mean of the losses, whatever the groups. With them sample :math:`i` has the weight
    :math:`c_i`, and the value is that of

    .. math::

        \frac1B \sum_{i \in B} c_i \ell_i, \qquad c_i = \sum_{k \ni i} \frac{n}{N n_k}

    with :math:`n_k` samples of group :math:`k` in a training set of :math:`n`. In shuffled batches its expectation is
    the mean over groups, :math:`\frac1N \sum_k L_k`. Batches with equally many samples of each group, as those of
    :class:`~moreauc.samplers.GroupSampler`, are balanced already: leave `group_sizes` out there, or small groups are
    upweighted twice.

    Args:
        num_groups: :math:`N`, at least 1.
        group_sizes: :math:`n_k`, one for each group, at least 1; None for the mean of the samples.
        num_samples: :math:`n`, at least the largest group. None for the sum of the sizes, which is right unless groups
            overlap or leave samples out.

    Shape:
        - losses: `(B,)`, loss of each sample; previous_losses are not used
        - groups: `(B,)`, group ids in [0, N); or `(B, N)`, memberships, where a sample's weights add up
        - output: scalar

    Example:
        >>> losses, groups = torch.tensor([1.0, 3.0, 2.0, 6.0]), torch.tensor([0, 0, 0, 1])
        >>> GroupERMLoss(2)(losses, groups)
        tensor(3.)
        >>> GroupERMLoss(2, group_sizes=[3, 1])(losses, groups)  # (2 + 6) / 2
        tensor(4.)
    """

    label_buffers: ClassVar[tuple[str, ...]] = ("group_sizes",)
    group_sizes: Tensor | None

    def __init__(
        self,
        num_groups: int,
        *,
        group_sizes: Tensor | Sequence[int] | NDArray[Any] | None = None,
        num_samples: int | None = None,
    ) -> None:
        super().__init__()
        owner = self._owner
        self.num_groups = check_count(owner, "num_groups", num_groups)
        sizes = None if group_sizes is None else self._check_sizes(group_sizes)
        self.num_samples: int | None = None
        if sizes is not None:
            largest = int(sizes.max())
            total = int(sizes.sum()) if num_samples is None else num_samples
            self.num_samples = check_count(owner, "num_samples", total, minimum=largest)
        elif num_samples is not None:
            raise ValueError(f"{owner}: num_samples must be None without group_sizes, got {num_samples!r}")
        self.register_buffer("group_sizes", sizes)

    def _check_sizes(self, group_sizes: Tensor | Sequence[int] | NDArray[Any]) -> Tensor:
        sizes: Tensor = torch.as_tensor(group_sizes)
        if sizes.dtype == torch.bool or sizes.is_floating_point() or sizes.is_complex():
            raise ValueError(f"{self._owner}: group_sizes must hold integers, got {sizes.dtype}")
        check_shape(self._owner, "group_sizes", sizes, [(self.num_groups,)])
        empty = (sizes < 1).nonzero().flatten()
        if len(empty):
            group = int(empty[0])
            raise ValueError(
                f"{self._owner}: group_sizes must be at least 1, got {int(sizes[group])} for group {group}, "
                "a group with no sample in the whole data set"
            )
        return sizes.long().clone()

    def _batch(
        self, check: Check, losses: Tensor, groups: Tensor, previous_losses: Tensor | None = None
    ) -> tuple[Tensor, Members]:
        members = group_members(check, losses, groups, self.num_groups, self.device)
        check.finite(losses=losses)
        return widened(losses), members

    def _step(self, batch: tuple[Tensor, Members]) -> Step:
        losses, groups = batch
        weight = torch.ones_like(losses)
        if self.group_sizes is not None and self.num_samples is not None:
            sizes = self.group_sizes.index_select(0, groups.present).to(losses.dtype)
            weight = groups.spread(self.num_samples / (self.num_groups * sizes), len(losses))
        value = (weight * losses).mean()
        return Step(value, losses, weight / len(losses), finite={"the loss": value})
