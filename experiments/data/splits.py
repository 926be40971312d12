"""One part for test, the rest in folds for training and validation: the protocol of the experiments on bags.

Rows that belong together, as images made of one piece of tissue, can be kept on one side. All choices are a pure
function of the seed, in every version of NumPy and torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moreauc.data.duplicates import deal_folds, take_share

Folds = list[tuple[Tensor, Tensor]]
Counts = NDArray[np.int64]

_OWNER = "test_and_folds"
_STREAM = 2  # keeps these random numbers apart from those that other choices make by the same seed


def test_and_folds(
    labels: Tensor | Sequence[int] | NDArray[Any],
    *,
    test_share: float = 0.1,
    folds: int = 5,
    seed: int,
    groups: Tensor | Sequence[Any] | NDArray[Any] | None = None,
) -> tuple[Tensor, Folds]:
    """Return test rows, and the other rows in folds: each fold once for validation, the rest of them for training.

    Without groups every choice of rows is equally likely, among those of the same sizes. Sizes are: for test the share
    of each class, rounded and at least 1; for the folds the same number of each class and of all rows, up to 1.

    With groups sizes are as near to these as whole groups allow. For test, groups in random order are taken where they
    bring the part nearer to its sizes; to the folds groups go one by one, those with the largest shares of a class
    first, each to the fold that has least of what it brings.

    Args:
        labels: 0/1 labels of the rows, shape `(n,)`, with both classes.
        test_share: share of the rows for test.
        folds: number of folds.
        seed: the same seed gives the same rows.
        groups: group of each row, numbers or strings, shape `(n,)`: rows of a group are in the same part, both for
            test and for the folds. None where rows do not belong together.

    Returns:
        Test rows and, for each fold, training rows and validation rows: int64 row numbers in increasing order. Each
        has both classes, or it is a ValueError.

    Example:
        >>> test, folds = test_and_folds([1] * 10 + [0] * 40, test_share=0.2, folds=4, seed=0)
        >>> test
        tensor([ 1,  4, 10, 19, 21, 30, 31, 37, 39, 41])
        >>> [(len(train), len(validation)) for train, validation in folds]
        [(30, 10), (30, 10), (30, 10), (30, 10)]
    """
    values = np.asarray(labels, dtype=np.int64)
    group = np.unique(np.arange(len(values)) if groups is None else np.asarray(groups), return_inverse=True)[1]
    counts = np.zeros((group.max() + 1, 2), dtype=np.int64)
    np.add.at(counts, (group, values), 1)
    order = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(_STREAM,)))
    for_test = take_share(counts, test_share, _shuffled(np.arange(len(counts)), order))
    rest = _shuffled(np.flatnonzero(~for_test), order)
    of_group = np.full(len(counts), -1)
    of_group[rest] = deal_folds(counts[rest], folds)
    part = of_group[group]  # of each row: its fold, or -1 for test
    chosen = [np.flatnonzero((part != -1) & (part != fold)) for fold in range(folds)]
    held = [np.flatnonzero(part == fold) for fold in range(-1, folds)]
    _check_classes(values, held[0], "test rows")
    for fold, (train, validation) in enumerate(zip(chosen, held[1:], strict=True)):
        _check_classes(values, train, f"training rows of fold {fold}")
        _check_classes(values, validation, f"validation rows of fold {fold}")
    pairs = [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in zip(chosen, held[1:], strict=True)]
    return torch.from_numpy(held[0]), pairs


test_and_folds.__test__ = False  # type: ignore[attr-defined]  # its name is that of a test for pytest


def _check_classes(labels: Counts, rows: Counts, name: str) -> None:
    positives = int(labels[rows].sum())
    if positives in (0, len(rows)):
        found = f"{positives} positive and {len(rows) - positives} negative rows; take fewer folds or smaller groups"
        raise ValueError(f"{_OWNER}: {name} must hold both classes, got {found}")


def _shuffled(values: Counts, source: np.random.PCG64) -> Counts:
    """Return the values in random order; by raw bits, whose streams NumPy promises for all versions."""
    places = np.asarray(source.random_raw(len(values))).argsort(kind="stable")
    shuffled: Counts = values[places]
    return shuffled
