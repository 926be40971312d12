"""Groups of rows assigned to a test part or to folds, with the classes in their proportions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


def take_share(counts: Counts, share: float, order: Counts) -> NDArray[np.bool_]:
    """Return which groups make up a share of each class, as nearly as the order lets them.

    Args:
        counts: rows of each group (first dimension) and class (second).
        share: of the rows of each class.
        order: the order in which groups are considered.
    """
    total = counts.sum(0)
    missing = np.maximum(share * total, 1.0)
    weight = 1.0 / np.maximum(total, 1) ** 2
    taken = np.zeros(len(counts), dtype=bool)

    def gain(group: Any) -> Any:
        """By how much the squared distance, in shares of the classes, becomes less."""
        return ((missing**2 - (missing - counts[group]) ** 2) * weight).sum(-1)

    lacks, weights = missing.tolist(), weight.tolist()
    for group, sizes in zip(order.tolist(), counts[order].tolist(), strict=True):  # the same gain, fast
        if sum(w * size * (2.0 * lack - size) for w, size, lack in zip(weights, sizes, lacks, strict=True)) > 0.0:
            taken[group] = True
            lacks = [lack - size for lack, size in zip(lacks, sizes, strict=True)]
    missing = np.array(lacks)
    for kind in range(counts.shape[1]):
        if not counts[taken, kind].any():  # all groups of this class are too large: the one that fits best
            able = order[counts[order, kind] > 0]
            best = able[np.argmax(gain(able))]
            taken[best] = True
            missing -= counts[best]
    return taken


def deal_folds(counts: Counts, folds: int) -> Counts:
    """Return the fold of each group: the largest groups first, each to the fold with the least of its classes.

    Args:
        counts: rows of each group (first dimension) and class (second).
        folds: how many there are.
    """
    total = np.maximum(counts.sum(0), 1)
    filled = np.zeros((folds, counts.shape[1]))
    result = np.zeros(len(counts), dtype=np.int64)
    for group in np.argsort(-(counts / total).sum(1), kind="stable").tolist():
        load = filled @ (counts[group] / total**2)
        least = np.flatnonzero(load <= load.min() * (1.0 + 1e-9))
        fold = least[np.argmin(filled[least].sum(1))]
        filled[fold] += counts[group]
        result[group] = fold
    return result
