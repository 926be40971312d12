"""Loss, accuracy and AUC group by group: of the worst group, of the K worst, on average, and as a table.

A group counts as one however many samples it has.

Groups are ids, shape `(n,)`, or memberships, shape `(n, num_groups)`, where groups overlap. Those without samples (or
without weight) have no value, NaN, and are left out of the worst, the K worst and the mean; where no group has a value
the result is NaN, with an `UndefinedMetricWarning`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import UndefinedMetricWarning
from torch import Tensor

from moreauc._checks import check_count
from moreauc._group_input import Members, Numbers, check_groups
from moreauc.metrics.ranking import (
    Array,
    as_vector,
    check_finite,
    check_length,
    check_weight,
    selected_fraction,
    split_classes,
    undefined,
)

Values = NDArray[np.float64]

_NO_VALUE = "no group has a value"
_SHOWN = 5  # groups named in a warning
_DIGITS = 4  # of a printed table


def group_values(
    values: ArrayLike, groups: ArrayLike, *, num_groups: int | None = None, sample_weight: ArrayLike | None = None
) -> Values:
    """Mean of a number of each sample, such as its loss, by group: float64 of shape `(num_groups,)`.

    The arguments are those of :func:`group_loss`.

    Example:
        >>> group_values([1.0, 3.0, 5.0], [0, 0, 2])
        array([ 2., nan, 5.])
        >>> group_values([1.0, 3.0, 5.0], [[True, False], [True, True], [False, True]])
        array([2., 4.])
    """
    members = check_groups("group_values", groups, num_groups)
    return _means("group_values", "values", values, members, sample_weight)


def group_loss(
    losses: ArrayLike,
    groups: ArrayLike,
    *,
    top_k: int | None = None,
    num_groups: int | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean of the `top_k` largest mean losses of groups, what :class:`~moreauc.GroupDROLoss` minimises.

    Args:
        losses: the loss of each sample, shape `(n,)`.
        groups: ids, shape `(n,)`, or memberships, shape `(n, num_groups)`, where groups overlap.
        top_k: how many of the worst groups to average: 1 for the worst group, None for all that have a value.
        num_groups: number of groups; None for one more than the largest id, or the number of columns.
        sample_weight: weights of at least 0 inside the groups, shape `(n,)`; None for equal ones.

    Example:
        >>> losses, groups = [1.0, 3.0, 5.0, 6.0], [0, 0, 1, 2]
        >>> group_loss(losses, groups, top_k=1), group_loss(losses, groups, top_k=2), group_loss(losses, groups)
        (6.0, 5.5, 4.333333333333333)
    """
    owner, members = "group_loss", check_groups("group_loss", groups, num_groups)
    values = _means(owner, "losses", losses, members, sample_weight)
    return _mean_of_worst(owner, values, top_k, highest=True)


def group_accuracy(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    groups: ArrayLike,
    *,
    top_k: int | None = None,
    num_groups: int | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean of the `top_k` smallest accuracies of groups.

    `y_true` and `y_pred` are classes, numbers or strings, shape `(n,)`. The other arguments are those of
    :func:`group_loss`: `groups`, `top_k`, `num_groups` and `sample_weight`.

    Example:
        >>> group_accuracy(["a", "b", "b"], ["a", "a", "b"], [0, 0, 1], top_k=1)  # the worst group
        0.5
    """
    owner, members = "group_accuracy", check_groups("group_accuracy", groups, num_groups)
    return _mean_of_worst(owner, _accuracies(owner, y_true, y_pred, members, sample_weight), top_k, highest=False)


def group_auc(
    y_true: ArrayLike,
    y_score: ArrayLike,
    groups: ArrayLike,
    *,
    top_k: int | None = None,
    num_groups: int | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean of the `top_k` smallest AUCs of groups.

    Groups with samples of one class only have no AUC: they are left out, with an `UndefinedMetricWarning`.

    `y_true` are labels 0 and 1, `y_score` finite scores, shape `(n,)`. The other arguments are those of
    :func:`group_loss`: `groups`, `top_k`, `num_groups` and `sample_weight`.

    Example:
        >>> group_auc([1, 0, 1, 0], [0.9, 0.1, 0.4, 0.4], [0, 0, 1, 1], top_k=1)
        0.5
    """
    owner, members = "group_auc", check_groups("group_auc", groups, num_groups)
    values = _aucs(owner, y_true, y_score, members, sample_weight)
    left_out = np.flatnonzero(np.isnan(values) & (members.sizes() > 0))
    if len(left_out):
        names = ", ".join(map(str, left_out[:_SHOWN])) + (", ..." if len(left_out) > _SHOWN else "")
        text = f"{owner}: groups with one class only are left out, {len(left_out)} of {len(values)}: {names}"
        warnings.warn(text, UndefinedMetricWarning, stacklevel=2)
    return _mean_of_worst(owner, values, top_k, highest=False)


@dataclass(frozen=True, eq=False)
class GroupTable:
    """Groups with what is known of them, the worst first; made by :func:`group_table`.

    The order is that of the losses, where there are none of the accuracies, else of the AUCs, else of the sizes with
    the largest first. Groups without a value come last.

    Args:
        group: numbers of the groups, shape `(num_groups,)`, as all columns.
        name: their names.
        size: samples of each.
        share: of all samples; where groups overlap, shares add up to more than 1.
        loss: mean loss of each, NaN where a group has no samples; None where no losses were given.
        accuracy: likewise.
        auc: likewise, NaN also where a group has one class only.
        sorted_by: the column that the order comes from.
    """

    group: Numbers
    name: tuple[str, ...]
    size: Numbers
    share: Values
    loss: Values | None
    accuracy: Values | None
    auc: Values | None
    sorted_by: Literal["loss", "accuracy", "auc", "size"]

    def __len__(self) -> int:
        return len(self.group)

    @property
    def worst(self) -> dict[str, Any]:
        """The first row."""
        return self.rows()[0]

    @property
    def gap(self) -> float:
        """Largest minus smallest value of the column that the order comes from; NaN where no group has one."""
        column = np.asarray(getattr(self, self.sorted_by), dtype=np.float64)
        defined = column[~np.isnan(column)]
        return float(np.ptp(defined)) if len(defined) else math.nan

    def top_k(self, k: int) -> GroupTable:
        """Return the table of the first `k` groups, the worst."""
        if check_count("GroupTable.top_k", "k", k) > len(self):
            raise ValueError(f"GroupTable.top_k: k must lie in [1, {len(self)}], got {k}")
        return replace(self, **{name: column[:k] for name, column in self._columns().items()})

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary for each group; columns that are not known are left out."""
        columns = self.to_dict()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns as lists, for `pandas.DataFrame` and the like; those that are not known are left out."""
        return {name: np.asarray(column).tolist() for name, column in self._columns().items()}

    def __str__(self) -> str:
        columns = []
        for title, column in self.to_dict().items():
            cells = [title, *(f"{cell:.{_DIGITS}f}" if isinstance(cell, float) else str(cell) for cell in column)]
            width = max(map(len, cells))
            columns.append([cell.ljust(width) if title == "name" else cell.rjust(width) for cell in cells])
        return "\n".join("  ".join(line) for line in zip(*columns, strict=True))

    def _columns(self) -> dict[str, Any]:
        names = ("group", "name", "size", "share", "loss", "accuracy", "auc")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def group_table(
    *,
    groups: ArrayLike,
    y_true: ArrayLike | None = None,
    y_pred: ArrayLike | None = None,
    y_score: ArrayLike | None = None,
    losses: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    num_groups: int | None = None,
    sample_weight: ArrayLike | None = None,
) -> GroupTable:
    """Return size, loss, accuracy and AUC of every group, the worst first.

    Groups without a value are in the table, with NaN and without a warning. Sizes and shares do not depend on
    `sample_weight`.

    Args:
        groups: ids, shape `(n,)`, or memberships, shape `(n, num_groups)`.
        y_true: classes, shape `(n,)`, for the accuracy and the AUC.
        y_pred: predicted classes, shape `(n,)`, for the accuracy.
        y_score: scores, shape `(n,)`, for the AUC.
        losses: the loss of each sample, shape `(n,)`.
        names: names of the groups in the order of their numbers; None for "group 0", "group 1" and so on.
        num_groups: as for :func:`group_loss`.
        sample_weight: likewise.

    Example:
        >>> table = group_table(
        ...     groups=[0, 0, 1, 1, 1], y_true=[0, 1, 0, 1, 1], y_pred=[0, 1, 1, 1, 0],
        ...     losses=[0.1, 0.3, 0.9, 0.4, 0.8], names=["north", "south"],
        ... )
        >>> print(table)
        group  name   size   share    loss  accuracy
            1  south     3  0.6000  0.7000    0.3333
            0  north     2  0.4000  0.2000    1.0000
        >>> table.worst["name"], round(table.gap, 3)
        ('south', 0.5)
    """
    owner = "group_table"
    members = check_groups(owner, groups, num_groups)
    labels = check_names(owner, names, members.num_groups)
    for name, given in (("y_pred", y_pred), ("y_score", y_score)):
        if given is not None and y_true is None:
            raise ValueError(f"{owner}: y_true must be given with {name}, got None")
    sizes = members.sizes()
    sorted_by: Literal["loss", "accuracy", "auc", "size"] = "size"
    badness = -sizes.astype(np.float64)
    loss = accuracy = auc = None
    if y_true is not None and y_score is not None:
        auc = _aucs(owner, y_true, y_score, members, sample_weight)
        sorted_by, badness = "auc", auc
    if y_true is not None and y_pred is not None:
        accuracy = _accuracies(owner, y_true, y_pred, members, sample_weight)
        sorted_by, badness = "accuracy", accuracy
    if losses is not None:
        loss = _means(owner, "losses", losses, members, sample_weight)
        sorted_by, badness = "loss", -loss
    order = np.argsort(badness, kind="stable")  # NaN comes last
    loss, accuracy, auc = (None if column is None else column[order] for column in (loss, accuracy, auc))
    named, share = tuple(labels[group] for group in order), sizes[order] / members.num_rows
    return GroupTable(order, named, sizes[order], share, loss, accuracy, auc, sorted_by)


def check_names(owner: str, names: Sequence[str] | None, count: int) -> list[str]:
    """Return a name for each group: those given, or "group 0", "group 1" and so on."""
    if names is None:
        return [f"group {number}" for number in range(count)]
    if isinstance(names, str) or len(names) != count:
        found = repr(names) if isinstance(names, str) else len(names)
        raise ValueError(f"{owner}: names must hold one for each of {count} groups, got {found}")
    return [str(name) for name in names]


def _means(owner: str, name: str, values: ArrayLike, members: Members, sample_weight: ArrayLike | None) -> Values:
    vector = as_vector(owner, name, values).astype(np.float64)
    check_finite(owner, name, vector)
    _check_rows(owner, name, vector, members)
    weight = np.ones(len(vector))
    if sample_weight is not None:
        weight = check_weight(owner, sample_weight, name, vector)
        weight = weight / (weight.max() or 1.0)  # neither sums nor products overflow
    rows, ids, _, count = members
    total = np.bincount(ids, weight[rows], count)
    summed = np.bincount(ids, weight[rows] * vector[rows], count)
    means: Values = np.full(count, np.nan)
    return np.divide(summed, total, out=means, where=total > 0)


def _accuracies(
    owner: str, y_true: ArrayLike, y_pred: ArrayLike, members: Members, sample_weight: ArrayLike | None
) -> Values:
    true, predicted = _classes(owner, "y_true", y_true), _classes(owner, "y_pred", y_pred)
    check_length(owner, "y_pred", predicted, "y_true", true)
    if (true.dtype.kind in "biuf") != (predicted.dtype.kind in "biuf"):
        raise ValueError(f"{owner}: y_pred must be of the kind of y_true, {true.dtype}, got {predicted.dtype}")
    return _means(owner, "y_true", (true == predicted).astype(np.float64), members, sample_weight)


def _aucs(
    owner: str, y_true: ArrayLike, y_score: ArrayLike, members: Members, sample_weight: ArrayLike | None
) -> Values:
    split_classes(owner, y_true, y_score, sample_weight)  # everything is checked before the first group
    labels, scores = as_vector(owner, "y_true", y_true), as_vector(owner, "y_score", y_score)
    weight = None if sample_weight is None else as_vector(owner, "sample_weight", sample_weight)
    _check_rows(owner, "y_true", labels, members)
    found = np.full(members.num_groups, np.nan)
    for group, rows in enumerate(members.by_group()):
        part = None if weight is None else weight[rows]
        kept = rows if part is None else rows[part > 0]
        if len(np.unique(labels[kept])) == 2:
            classes = split_classes(owner, labels[rows], scores[rows], part)
            found[group] = selected_fraction(owner, classes, 0.0, 1.0)
    return found


def _mean_of_worst(owner: str, values: Values, top_k: float | None, *, highest: bool) -> float:
    """Return the mean of the `top_k` worst values; called by the public functions only, for the line of a warning."""
    defined = np.sort(values[~np.isnan(values)])
    if top_k is not None:
        top_k = check_count(owner, "top_k", top_k)
    if not len(defined):
        return undefined(owner, _NO_VALUE)
    if top_k is None:
        return float(defined.mean())
    if top_k > len(defined):
        found = f"the number of groups with a value, {len(defined)}, got {top_k}"
        raise ValueError(f"{owner}: top_k must be at most {found}")
    return float((defined[-top_k:] if highest else defined[:top_k]).mean())


def _check_rows(owner: str, name: str, vector: Array, members: Members) -> None:
    if len(vector) != members.num_rows:
        raise ValueError(f"{owner}: {name} must be as long as groups, {members.num_rows}, got {len(vector)}")


def _classes(owner: str, name: str, values: ArrayLike) -> Array:
    array: Array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    if array.ndim != 1:
        raise ValueError(f"{owner}: {name} must have shape (n,), got {array.shape}")
    if array.dtype.kind == "O":
        if any(value is None or value != value for value in array):
            raise ValueError(f"{owner}: {name} must hold classes, got a missing one")
        array = np.array(array.tolist())  # strings of tables come as objects
    if array.dtype.kind == "f":
        check_finite(owner, name, array)
    return array
