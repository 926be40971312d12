"""Which rows of a data set belong to which group: ids, or memberships where groups overlap, as one list of entries."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from moreauc._checks import check_count

Numbers = NDArray[np.int64]

_MOST_UNNUMBERED = 1_000_000  # largest number of groups inferred from ids: larger ids are probably those of persons


class Members(NamedTuple):
    """Entries of a checked data set, in the order of its rows; a row of several groups has one for each.

    Of entry `e`, `rows[e]` is its row and `ids[e]` its group. `num_groups` counts groups without rows, too.
    """

    rows: Numbers
    ids: Numbers
    num_rows: int
    num_groups: int

    def sizes(self) -> Numbers:
        """Return the number of rows of each group, shape `(num_groups,)`."""
        return np.bincount(self.ids, minlength=self.num_groups)

    def by_group(self) -> list[Numbers]:
        """Return the rows of each group, ascending."""
        order = np.argsort(self.ids, kind="stable")
        return np.split(self.rows[order], np.cumsum(self.sizes())[:-1])


def check_groups(owner: str, groups: object, num_groups: object = None) -> Members:
    """Return the entries of ids `(n,)` in [0, num_groups) or of memberships `(n, num_groups)`, True or False.

    Without `num_groups` there are as many groups as columns, or one more than the largest id.
    """
    if num_groups is not None:
        num_groups = check_count(owner, "num_groups", num_groups)
    array = np.asarray(groups.detach().cpu() if isinstance(groups, Tensor) else groups)
    if array.ndim not in (1, 2) or not array.size:
        raise ValueError(f"{owner}: groups must have shape (n,) or (n, num_groups), got {array.shape}")
    if array.ndim == 2:
        return _from_matrix(owner, array, num_groups)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{owner}: groups must hold integers, got dtype {array.dtype}")
    low, high = int(array.min()), int(array.max())
    count = max(high + 1, 1) if num_groups is None else num_groups
    if low < 0 or high >= count:
        allowed = "be at least 0" if num_groups is None else f"lie in [0, {count})"
        raise ValueError(f"{owner}: groups must {allowed}, got {low if low < 0 else high}")
    if num_groups is None and count > max(_MOST_UNNUMBERED, 100 * len(array)):
        raise ValueError(f"{owner}: groups must be numbered from 0, or num_groups be given, got an id of {high}")
    return Members(np.arange(len(array)), array.astype(np.int64), len(array), count)


def _from_matrix(owner: str, array: NDArray[Any], num_groups: int | None) -> Members:
    if num_groups is not None and array.shape[1] != num_groups:
        raise ValueError(f"{owner}: groups must have {num_groups} columns, one for each group, got {array.shape[1]}")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{owner}: groups must hold memberships, 0 or 1, got dtype {array.dtype}")
    strange = array[(array != 0) & (array != 1)]
    if len(strange):
        raise ValueError(f"{owner}: groups must hold memberships, 0 or 1, got {strange[0]}")
    rows, ids = np.nonzero(array)
    return Members(rows, ids, *array.shape)
