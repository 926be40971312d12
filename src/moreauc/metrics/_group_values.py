"""Loss, accuracy and AUC group by group, and the mean of the worst of them; values of samples are checked here."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import UndefinedMetricWarning
from torch import Tensor

from moreauc._checks import check_count, check_finite
from moreauc._group_input import Members
from moreauc.metrics._inputs import (
    Array,
    as_vector,
    check_length,
    split_classes,
)
from moreauc.metrics.ranking import selected_fraction

Values = NDArray[np.float64]


def means_by_group(owner: str, name: str, values: Any, members: Members, sample_weight: Any = None) -> Values:
    """Return the mean of finite numbers in each group, NaN where a group has no samples or no weight."""
    vector = _finite(owner, name, values)
    check_rows(owner, name, vector, members)
    weight = np.ones(len(vector))
    if sample_weight is not None:
        weight = _finite(owner, "sample_weight", sample_weight)
        check_length(owner, "sample_weight", weight, name, vector)
        if (weight < 0).any():
            raise ValueError(f"{owner}: sample_weight must be at least 0, got {weight.min()}")
        weight = weight / (weight.max() or 1.0)  # neither sums nor products overflow
    rows, ids, _, count = members
    total = np.bincount(ids, weight[rows], count)
    summed = np.bincount(ids, weight[rows] * vector[rows], count)
    means: Values = np.full(count, np.nan)
    return np.divide(summed, total, out=means, where=total > 0)


def accuracy_by_group(owner: str, y_true: Any, y_pred: Any, members: Members, sample_weight: Any = None) -> Values:
    """Return the accuracy of each group, NaN where a group has no samples or no weight."""
    true, predicted = _classes(owner, "y_true", y_true), _classes(owner, "y_pred", y_pred)
    check_length(owner, "y_pred", predicted, "y_true", true)
    if (true.dtype.kind in "biuf") != (predicted.dtype.kind in "biuf"):
        raise ValueError(f"{owner}: y_pred must be of the kind of y_true, {true.dtype}, got {predicted.dtype}")
    return means_by_group(owner, "y_true", (true == predicted).astype(np.float64), members, sample_weight)


def auc_by_group(owner: str, y_true: Any, y_score: Any, members: Members, sample_weight: Any = None) -> Values:
    """Return the AUC of each group, NaN where a class is missing or has no weight."""
    split_classes(owner, y_true, y_score, sample_weight)  # all is checked before any group is looked at
    labels, scores = as_vector(owner, "y_true", y_true), as_vector(owner, "y_score", y_score)
    weight = None if sample_weight is None else as_vector(owner, "sample_weight", sample_weight)
    check_rows(owner, "y_true", labels, members)
    found = np.full(members.num_groups, np.nan)
    for group, rows in enumerate(members.by_group()):
        part = None if weight is None else weight[rows]
        kept = rows if part is None else rows[part > 0]
        if len(np.unique(labels[kept])) == 2:
            classes = split_classes(owner, labels[rows], scores[rows], part)
            found[group] = selected_fraction(owner, classes, 0.0, 1.0)
    return found


def mean_of_worst(owner: str, values: Values, top_k: Any = None, *, highest: bool) -> float:
    """Return the mean of the `top_k` worst values, the highest or the lowest, NaN left out; None for all of them.

    At least one must not be NaN.
    """
    defined = np.sort(values[~np.isnan(values)])
    if top_k is None:
        return float(defined.mean())
    top_k = check_count(owner, "top_k", top_k)
    if top_k > len(defined):
        raise ValueError(
            f"{owner}: top_k must be at most the number of groups with a value, {len(defined)}, got {top_k}"
        )
    return float((defined[-top_k:] if highest else defined[:top_k]).mean())


def undefined(owner: str, reason: str, stacklevel: int) -> float:
    """Warn at the user's line, `stacklevel` calls up, that there is no score, and return NaN."""
    text = f"{owner}: the score is undefined, NaN is returned: {reason}"
    warnings.warn(text, UndefinedMetricWarning, stacklevel=stacklevel)
    return math.nan


def check_rows(owner: str, name: str, vector: Array, members: Members) -> None:
    """Check that a vector has an entry for each row of the groups."""
    if len(vector) != members.num_rows:
        raise ValueError(f"{owner}: {name} must be as long as groups, {members.num_rows}, got {len(vector)}")


def _finite(owner: str, name: str, values: Any) -> Values:
    vector = as_vector(owner, name, values).astype(np.float64)
    check_finite(owner, **{name: torch.from_numpy(vector)})
    return vector


def _classes(owner: str, name: str, values: Any) -> Array:
    array: Array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    if array.ndim != 1:
        raise ValueError(f"{owner}: {name} must have shape (n,), got {array.shape}")
    if array.dtype.kind == "O":
        if any(value is None or value != value for value in array):
            raise ValueError(f"{owner}: {name} must hold classes, got a missing one")
        array = np.array(array.tolist())  # strings of tables come as objects
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{owner}: {name} must be finite, got {array[~np.isfinite(array)][0]}")
    return array
