"""Bags padded with a mask, as torchmil keeps them."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from moreauc._checks import check_shape
from moreauc.data._bag_files import as_instances, forward_strides
from moreauc.data.bags import Bags, Labels, ListBags


def from_padded(inputs: Tensor | NDArray[Any], mask: Tensor | NDArray[Any], labels: Labels) -> ListBags:
    """Return bags of the instances that a mask keeps, as torchmil pads them.

    Args:
        inputs: shape `(n, m, features, ...)`; what the mask leaves out may be anything.
        mask: True (or 1) for an instance, False (or 0) for padding, shape `(n, m)`.
        labels: 0/1 labels of the bags, shape `(n,)`.

    Raises:
        ValueError: for a mask of another shape or with other values, and as :class:`ListBags`.

    Example:
        >>> from_padded(torch.ones(2, 3, 4), torch.tensor([[1, 1, 0], [1, 1, 1]]), labels=[0, 1])
        ListBags(2 bags, 1 positive, 5 instances)
    """
    values = as_instances("from_padded", "inputs", inputs)
    kept: Tensor = torch.as_tensor(forward_strides(mask)).cpu()
    check_shape("from_padded", "mask", kept, [tuple(values.shape[:2])])
    strange = kept[(kept != 0) & (kept != 1)]
    if strange.numel():
        raise ValueError(f"from_padded: mask must be True or False, got {strange[0].item()}")
    return ListBags([bag[keep] for bag, keep in zip(values, kept.bool(), strict=True)], labels)


def to_padded(bags: Bags) -> tuple[Tensor, Tensor]:
    """Return all instances padded with zeros to the largest bag, `(n, m, features, ...)`, and a mask `(n, m)`.

    Example:
        >>> inputs, mask = to_padded(ListBags([torch.ones(1, 4), torch.ones(2, 4)], labels=[0, 1]))
        >>> inputs.shape, mask
        (torch.Size([2, 2, 4]), tensor([[ True, False],
                [ True,  True]]))
    """
    mask = torch.arange(int(bags.sizes.max())) < bags.sizes.unsqueeze(1)
    one = bags.instances(0, torch.tensor([0]))
    inputs = one.new_zeros(*mask.shape, *one.shape[1:])
    for bag, size in enumerate(bags.sizes.tolist()):
        inputs[bag, :size] = bags.instances(bag)
    return inputs, mask
