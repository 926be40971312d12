"""The part of the training data that the classifiers choose epoch and threshold by."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moreauc._checks import floor_count
from moreauc.data.duplicates import (
    Codes,
    any_equal,
    few_kinds,
    take_together,
)

Array = NDArray[Any]

_SMALLEST_PART = 2  # of each class, to train on and to hold out


def hold_out(
    positive: Array,
    random: np.random.RandomState,
    *,
    fraction: float,
    min_tpr: float,
    max_fpr: float,
    same: Codes | None = None,
) -> tuple[Array, Array]:
    """Return numbers of the rows, or bags, to train on and of the hold-out, which is empty where it cannot be had.

    Args:
        positive: which are positive, shape `(n,)`.
        random: draws them.
        fraction: share of each class to hold out.
        min_tpr: region that must hold at least one pair of the hold-out.
        max_fpr: as `min_tpr`.
        same: numbers from 0, equal where features are, shape `(n,)`: those are not parted. None where all differ.
    """
    train: list[Array] = []
    held: list[Array] = []
    together = None
    if fraction > 0.0 and same is not None and any_equal(same):
        together = take_together(same, positive, fraction, random)
        if few_kinds(same[together]) is not None:  # no epoch could be chosen by them
            return np.arange(len(positive)), np.arange(0)
    for rows in (np.flatnonzero(positive), np.flatnonzero(~positive)):
        if together is not None:
            held.append(rows[together[rows]])
            train.append(rows[~together[rows]])
            continue
        order = random.permutation(rows)
        number = round(len(rows) * fraction)
        held.append(order[:number])
        train.append(order[number:])
    pairs = floor_count(len(held[0]), 1.0 - min_tpr) * floor_count(len(held[1]), max_fpr)
    if min(map(len, train + held)) < _SMALLEST_PART or not pairs:
        return np.arange(len(positive)), np.arange(0)
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(held))
