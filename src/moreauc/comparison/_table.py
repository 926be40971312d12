"""A table that methods are compared on, and its folds: stratified, equal rows in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold

from moreauc._checks import floor_count
from moreauc.comparison._contestants import Region
from moreauc.data.duplicates import (
    Codes,
    any_equal,
    fold_together,
    number_equal,
)


@dataclass(frozen=True)
class Table:
    """A table and its 0/1 labels.

    Attributes:
        X: the rows.
        positive: the labels.
        split: training and test rows, where these are given.
        same: numbers from 0, equal where rows are: those are in one fold. None to look at no such thing, which is how
            the committed studies were made.
    """

    X: Any
    positive: NDArray[Any]
    split: tuple[NDArray[Any], NDArray[Any]] | None = None
    same: Codes | None = None

    def split_rows(self, folds: int, seed: int, fold: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return training and test rows: those given, or a stratified fold."""
        if self.split is not None:
            return self.split
        return self._folds(np.arange(len(self.positive)), folds, seed)[fold]

    def inner_rows(self, train: NDArray[Any], folds: int, seed: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return for each inner fold of training rows those to train on and those to choose by."""
        return [(train[a], train[b]) for a, b in self._folds(train, folds, seed)]

    def _folds(self, rows: NDArray[Any], folds: int, seed: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return stratified folds of some rows, as places among them."""
        labels = self.positive[rows]
        same = None if self.same is None else number_equal(self.same[rows])
        if same is None or not any_equal(same):
            return list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(labels, labels))
        part = fold_together(same, labels, folds, np.random.RandomState(seed))
        return [(np.flatnonzero(part != fold), np.flatnonzero(part == fold)) for fold in range(folds)]

    def check_folds(self, folds: int, inner_folds: int, seeds: int, regions: Sequence[Region]) -> None:
        """Check that every region holds a row of either class in every fold, which equal rows may prevent.

        Raises:
            ValueError: where one does not.
        """
        if self.same is None or not any_equal(self.same):
            return
        shares = {1: min(1.0 - region[0] for region in regions), 0: min(region[1] for region in regions)}
        for seed, fold in product(range(seeds), range(folds)):
            train, test = self.split_rows(folds, seed, fold)
            for part in (test, *(others for _, others in self.inner_rows(train, inner_folds, seed))):
                if any(floor_count(int((self.positive[part] == k).sum()), share) < 1 for k, share in shares.items()):
                    raise ValueError(
                        f"Comparison: X must have enough different rows for {folds} folds with {inner_folds} inner "
                        f"ones, since equal rows stay together, got {int(self.same.max()) + 1} among {len(self.same)}; "
                        "take fewer folds"
                    )
