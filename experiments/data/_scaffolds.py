"""Split by scaffold: molecules with the same frame of rings stand on one side, rare frames are left for the test.

Reference: Wu et al., MoleculeNet: A Benchmark for Molecular Machine Learning, 2018; the recipe is DeepChem's, which the
Open Graph Benchmark took over.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


class ScaffoldSplit(NamedTuple):
    """Rows of the three parts, in the order in which their groups were filled in; int64."""

    train: Rows
    validation: Rows
    test: Rows


def split_by_group(groups: Sequence[Hashable]) -> ScaffoldSplit:
    """Return rows in three parts of about 80, 10 and 10 %, all rows of a group in one part.

    Groups are taken by size and, where equal, by the first row, both descending. Each goes to the training part if that
    has no more than 80 % of the rows then; else to validation, if both have no more than 90 % then; else to test.

    Args:
        groups: the group of each row.

    Example:
        >>> split_by_group(["a", "b", "a", "a", "c", "a", "a", "a", "b", "a"])
        ScaffoldSplit(train=array([0, 2, 3, 5, 6, 7, 9, 4]), validation=array([1, 8]), test=array([], dtype=int64))
    """
    members: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    ordered = sorted(members.values(), key=lambda rows: (len(rows), rows[0]), reverse=True)
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for rows in ordered:
        # tenths of whole numbers, in which nothing is rounded
        if 10 * (len(parts[0]) + len(rows)) <= 8 * len(groups):
            place = 0
        else:
            place = 1 if 10 * (len(parts[0]) + len(parts[1]) + len(rows)) <= 9 * len(groups) else 2
        parts[place].extend(rows)
    return ScaffoldSplit(*(np.array(part, dtype=np.int64) for part in parts))
