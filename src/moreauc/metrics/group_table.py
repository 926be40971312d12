"""A table of groups: how large each is, and how well it fares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from moreauc._checks import check_count
from moreauc._group_input import Members, Numbers, check_groups
from moreauc.metrics._group_values import (
    Values,
    accuracy_by_group,
    auc_by_group,
    means_by_group,
)
from moreauc.metrics.groups import group_gap

__all__ = ["GroupTable", "group_table"]

_OWNER = "group_table"
_DIGITS = 4


@dataclass(frozen=True, eq=False)
class GroupTable:
    """Groups with what is known of them, the worst first; made by :func:`group_table`.

    The order is that of the losses, where there are none of the accuracies, else of the AUCs, else of the sizes with
    the largest first. Groups without a value come last.

    Args:
        group: numbers of the groups, shape `(num_groups,)`, as all columns.
        name: their names, as many.
        size: samples of each.
        share: of all samples; where groups overlap, shares add up to more than 1.
        loss: mean loss of each, NaN where a group has no samples; None where no losses were given.
        accuracy: accuracy, likewise.
        auc: AUC, NaN also where a group has one class only.
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
        """Best minus worst of the column that the order comes from; `group_gap(table.auc)` gives that of another."""
        return group_gap(getattr(self, self.sorted_by))

    def top_k(self, k: int) -> GroupTable:
        """Return the table of the first `k` groups, the worst; `k` is an integer, also one of NumPy.

        Raises:
            ValueError: for a `k` that is not in [1, number of groups].
        """
        if check_count("GroupTable.top_k", "k", k) > len(self):
            raise ValueError(f"GroupTable.top_k: k must lie in [1, {len(self)}], got {k}")
        return replace(self, **{name: column[:k] for name, column in self._columns().items()})

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict of plain numbers and strings for each group; columns that are not known are left out."""
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

    Args:
        groups: ids, shape `(n,)`, or memberships, shape `(n, num_groups)`.
        y_true: classes, shape `(n,)`; 0 and 1 for the AUC.
        y_pred: predicted classes, shape `(n,)`, for the accuracy.
        y_score: finite scores, shape `(n,)`, for the AUC.
        losses: finite losses, shape `(n,)`.
        names: of the groups, in the order of their numbers; None for "group 0", "group 1" and so on.
        num_groups: number of groups; None for one more than the largest id, or the number of columns.
        sample_weight: weights of at least 0 inside the groups, shape `(n,)`; sizes and shares do not depend on them.

    Returns:
        The table. Groups without samples are in it, with NaN; so are groups of one class, with NaN for the AUC. No
        warning is given: it can be seen.

    Raises:
        ValueError: `y_pred` or `y_score` without `y_true`, another number of names than of groups; the rest as in
            :func:`~moreauc.metrics.group_values`, :func:`~moreauc.metrics.bottom_k_group_accuracy` and
            :func:`~moreauc.metrics.bottom_k_group_auc`.

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
    members = check_groups(_OWNER, groups, num_groups)
    labels = _check_names(names, members)
    for name, given in (("y_pred", y_pred), ("y_score", y_score)):
        if given is not None and y_true is None:
            raise ValueError(f"{_OWNER}: y_true must be given with {name}, got None")
    loss = accuracy = auc = None
    if losses is not None:
        loss = means_by_group(_OWNER, "losses", losses, members, sample_weight)
    if y_pred is not None:
        accuracy = accuracy_by_group(_OWNER, y_true, y_pred, members, sample_weight)
    if y_score is not None:
        auc = auc_by_group(_OWNER, y_true, y_score, members, sample_weight)
    sizes = members.sizes()
    sorted_by: Literal["loss", "accuracy", "auc", "size"] = "size"
    badness = -sizes.astype(np.float64)
    if loss is not None:
        sorted_by, badness = "loss", -loss
    elif accuracy is not None:
        sorted_by, badness = "accuracy", accuracy
    elif auc is not None:
        sorted_by, badness = "auc", auc
    order = np.argsort(badness, kind="stable")  # NaN comes last
    return GroupTable(
        group=order,
        name=tuple(labels[group] for group in order),
        size=sizes[order],
        share=sizes[order] / members.num_rows,
        loss=None if loss is None else loss[order],
        accuracy=None if accuracy is None else accuracy[order],
        auc=None if auc is None else auc[order],
        sorted_by=sorted_by,
    )


def _check_names(names: Sequence[str] | None, members: Members) -> list[str]:
    if names is None:
        return [f"group {number}" for number in range(members.num_groups)]
    if isinstance(names, str) or len(names) != members.num_groups:
        found = repr(names) if isinstance(names, str) else len(names)
        raise ValueError(f"{_OWNER}: names must hold one for each of {members.num_groups} groups, got {found}")
    return [str(name) for name in names]
