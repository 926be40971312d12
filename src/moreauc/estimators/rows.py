"""Rows of numbers that a model without batches is fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.util import hash_array
from scipy.sparse import issparse

from moreauc._checks import floor_count
from moreauc.data.duplicates import Codes, Hashes, hash_rows, hash_sparse
from moreauc.estimators.base import Array, Floats
from moreauc.estimators.decisions import Judged
from moreauc.metrics.ranking import tpauc_score


@dataclass(frozen=True)
class WeightedRows:
    """Rows of numbers, `X` dense or sparse, which of them are positive, and their weights, above 0.

    Rows with the same number `group` stay in one fold; None where equal rows do.
    """

    X: Any
    positive: NDArray[np.bool_]
    weight: Floats
    group: Codes | None = None

    def part(self, rows: Array) -> WeightedRows:
        """Return some of the rows."""
        group = None if self.group is None else self.group[rows]
        return WeightedRows(self.X[rows], self.positive[rows], self.weight[rows], group)

    @property
    def weight_or_none(self) -> Floats | None:
        """The weights; None where all are 1."""
        return None if (self.weight == 1.0).all() else self.weight

    def judged(self, scores: Floats) -> Judged:
        """Return the rows with their raw scores."""
        return Judged(self.positive, scores, self.weight)

    def partial_auc(self, scores: Floats, region: tuple[float, float]) -> float:
        """Return the two-way partial AUC of scores in a region `(min_tpr, max_fpr)`."""
        return tpauc_score(
            self.positive, scores, min_tpr=region[0], max_fpr=region[1], sample_weight=self.weight_or_none
        )


def can_judge(rows: WeightedRows, parts: Sequence[Array], region: tuple[float, float]) -> bool:
    """Return whether each part and what is not in it have two rows of each class, and enough for the region."""
    for side, share in ((rows.positive, 1.0 - region[0]), (~rows.positive, region[1])):
        for part in (*parts, *(~part for part in parts)):
            size = int((side & part).sum())
            if size < 2 or floor_count(size, share) < 1:
                return False
    return True


def choose_column(points: Floats) -> int:
    """Return the column with the best mean over folds of those that are better than the first beyond chance.

    That is by a standard error of the mean; the first where there is none. Of one fold the best.

    Example:
        >>> choose_column(np.array([[0.5, 0.6, 0.9], [0.6, 0.7, 0.5], [0.7, 0.8, 0.7]]))
        1
        >>> choose_column(np.array([[0.5, 0.5]]))
        0
    """
    if len(points) == 1:
        return int(np.argmax(points[0]))
    gain = points - points[:, :1]
    mean, error = gain.mean(0), gain.std(0, ddof=1) / np.sqrt(len(gain))
    return int(np.argmax(np.where(mean > error, mean, 0.0)))


def merge_equal(rows: WeightedRows) -> tuple[WeightedRows, Hashes]:
    """Return each different row of each class once, with the sum of its weights, and a hash of its features.

    In the order of hashes: the result depends on what the rows are, not on their order nor on how often each is there.
    """
    hashes = hash_sparse(rows.X) if issparse(rows.X) else hash_rows(pd.DataFrame(rows.X))
    _, first, place = np.unique(hash_array(hashes + rows.positive), return_index=True, return_inverse=True)
    weight = np.bincount(place, weights=rows.weight).astype(np.float64)
    return replace(rows.part(first), weight=weight), hashes[first]


def in_float32(X: Any) -> object:
    """Return numbers within the range of float32, which XGBoost and scikit-learn's trees are limited to."""
    limit = float(np.finfo(np.float32).max)
    if issparse(X):
        X = X.copy()
        X.data = np.clip(X.data, -limit, limit)
        return X
    return np.clip(X, -limit, limit)
