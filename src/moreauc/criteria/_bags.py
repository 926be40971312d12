"""What the losses over bags of instances share: the checks of a batch of bags."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from moreauc._checks import (
    as_index,
    check_device,
    check_finite,
    check_floating,
)
from moreauc.core.pooling import Pooling

Rule = Literal["before", "after"]


class Instances(NamedTuple):
    """Instances of a checked batch of bags.

    Attributes:
        values: model outputs, shape `(T,)` or `(T, 2)`, at least float32, with gradient.
        bag: place in the batch of each instance's bag, shape `(T,)`, on the device of the values.
    """

    values: Tensor
    bag: Tensor


def check_instances(
    owner: str, instances: Tensor, bag: Tensor, count: int, pooling: Pooling, device: torch.device
) -> Instances:
    """Check the instances of `count` bags, at least one in each; that they are finite is checked too."""
    check_outputs(owner, "instances", instances, pooling)
    check_device(owner, "instances", instances, device)
    places = as_index(owner, "bag", bag, len(instances)).to(device)
    if len(places):
        low, high = (int(value) for value in torch.aminmax(places))
        if low < 0 or high >= count:
            raise ValueError(f"{owner}: bag must lie in [0, {count}), got {low if low < 0 else high}")
    sizes = torch.bincount(places, minlength=count)
    if int(sizes.min()) == 0:
        raise ValueError(f"{owner}: bag must name at least one instance of every bag, got none of bag {sizes.argmin()}")
    check_finite(owner, instances=instances)
    return Instances(instances.to(torch.promote_types(instances.dtype, torch.float32)), places)


def check_outputs(owner: str, name: str, value: Tensor, pooling: Pooling) -> None:
    """Check type and shape of what a model returned for instances."""
    check_floating(owner, name, value)
    columns = pooling.columns
    if value.ndim != columns or (columns > 1 and value.shape[1] != columns) or not len(value):
        wanted = "(T,)" if columns == 1 else f"(T, {columns}), score and attention logit"
        raise ValueError(
            f"{owner}: {name} must have shape {wanted} for {pooling.name} pooling, got {tuple(value.shape)}"
        )


def exact_type(values: Tensor) -> torch.dtype:
    """Return the type of rows of bags: logarithms of a thousand and more in float32 would spoil their exponentials."""
    return torch.float32 if values.device.type == "mps" else torch.float64


def check_rule(owner: str, rows: Any) -> Rule:
    """Return `rows`: whether a step uses the rows before or after their update."""
    if rows == "before":
        return "before"
    if rows == "after":
        return "after"
    raise ValueError(f"{owner}: rows must be 'before' or 'after', got {rows!r}")
