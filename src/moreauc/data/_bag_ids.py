"""Which instances of a flat array belong to which bag: by offsets, or by a column that names the bag of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from moreauc._checks import as_labels, check_labels, check_shape
from moreauc.data.texts import normal_text


def check_offsets(owner: str, offsets: Any, count: int) -> Tensor:
    """Return offsets as int64; they must rise from 0 to `count`."""
    bounds: Tensor = torch.as_tensor(offsets).cpu()
    if bounds.is_floating_point() or bounds.dtype == torch.bool or bounds.ndim != 1 or len(bounds) < 2:
        found = f"{bounds.dtype} of shape {tuple(bounds.shape)}"
        raise ValueError(f"{owner}: offsets must be integers of shape (bags + 1,), got {found}")
    numbers = bounds.tolist()
    if numbers[0] != 0 or numbers[-1] != count:
        found = f"{numbers[0]} to {numbers[-1]}"
        raise ValueError(f"{owner}: offsets must go from 0 to the number of instances, {count}, got {found}")
    for bag, (low, high) in enumerate(pairwise(numbers)):
        if low >= high:
            raise ValueError(f"{owner}: offsets must increase, no bag being empty, got {low}, then {high} (bag {bag})")
    return bounds.long()


def group_by_id(owner: str, count: int, ids: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Return the number of each of `count` instances' bag, in order of first appearance, and the labels of the bags.

    Ids are anything hashable but missing values; texts are compared in normal form: "F" and "F " are one bag. Labels
    are those of the ids, or of the instances.
    """
    values = list(map(_normal, ids.tolist() if isinstance(ids, Tensor | np.ndarray) else ids))
    if len(values) != count:
        raise ValueError(f"{owner}: ids must be as many as instances, {count}, got {len(values)}")
    numbers: dict[Any, int] = {}
    try:
        codes = torch.tensor([numbers.setdefault(value, len(numbers)) for value in values], dtype=torch.long)
    except TypeError as error:
        raise ValueError(f"{owner}: ids must be a vector of things that can be compared, got {error}") from error
    for value, number in numbers.items():  # instances without an id would make up a bag
        if value is None or value is pd.NA or value != value:
            row = int((codes == number).nonzero()[0])
            raise ValueError(f"{owner}: ids must not be NaN or missing, got {value!r} for instance {row}")
    if not isinstance(labels, Mapping):
        return codes, _labels_of_bags(owner, labels, codes, list(numbers))
    labels = _by_normal_id(owner, labels)
    missing = [value for value in numbers if value not in labels]
    if missing:
        raise ValueError(f"{owner}: labels must have an entry for each id, got none for {missing[0]!r}")
    return codes, check_labels(owner, [labels[value] for value in numbers], both=False)


def _normal(value: Any) -> Any:
    """Return an id with its texts in normal form."""
    if isinstance(value, tuple):
        return tuple(map(_normal, value))
    return normal_text(value) if isinstance(value, str) else value


def _by_normal_id(owner: str, labels: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the labels by ids in normal form."""
    found: dict[Any, Any] = {}
    for value, label in labels.items():
        if found.setdefault(_normal(value), label) != label:
            raise ValueError(f"{owner}: labels must be the same inside a bag, got two for id {_normal(value)!r}")
    return found


def _labels_of_bags(owner: str, labels: Any, codes: Tensor, names: Sequence[Any]) -> Tensor:
    """Return the label of each bag from those of its instances."""
    values = as_labels(owner, labels).cpu()
    check_shape(owner, "labels", values, [tuple(codes.shape)])
    of_bags = torch.empty(len(names), dtype=values.dtype).index_copy_(0, codes, values)
    other = (values != of_bags[codes]).nonzero()
    if len(other):
        name = names[int(codes[other[0]])]
        raise ValueError(f"{owner}: labels must be the same inside a bag, got two in that of id {name!r}")
    return of_bags
