"""Rows to test on: drawn from one table so that equal rows stay together, or compared with those of another table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pandas.util import hash_array

from moreauc.cli._evaluation import Array
from moreauc.data.duplicates import (
    Codes,
    Hashes,
    any_equal,
    number_equal,
    take_together,
)
from moreauc.data.tables import TableError

TEST_SIZE = 0.25
_MUCH_EQUAL = 0.1  # share of the rows that equal others, from which on splits are far from random


def draw_test_rows(
    labels: Array, share: float, seed: int, hashes: Hashes | None = None, *, unit: str = "rows"
) -> Array:
    """Draw a share of either class; return the row numbers, in order.

    Args:
        labels: 0 and 1, shape `(n,)`.
        share: in (0, 1).
        seed: of the draw.
        hashes: of the rows, or bags: equal ones are not parted. None where all differ.
        unit: what they are called, "rows" or "bags".

    Raises:
        TableError: if a class would be missing in one of the two parts.
    """
    if not 0.0 < share < 1.0:
        raise TableError(f"--test-size must be in (0, 1), got {share:g}")
    rng = np.random.default_rng(seed)
    same = None if hashes is None else number_equal(hashes)
    counts = {}
    for label, name in ((1, "positives"), (0, "negatives")):
        rows = np.flatnonzero(labels == label)
        counts[label] = count = round(share * len(rows))
        if count in (0, len(rows)):
            part = "test" if count == 0 else "training"
            raise TableError(
                f"no {name} in the {part} split: the table has {len(rows)}, "
                f"of which --test-size {share:g} takes {count}"
            )
    if same is not None and any_equal(same):
        return _draw_together(labels, share, rng, same, unit)
    drawn = [rng.choice(np.flatnonzero(labels == label), count, replace=False) for label, count in counts.items()]
    return np.sort(np.concatenate(drawn))


def _draw_together(labels: Array, share: float, rng: np.random.Generator, same: Codes, unit: str) -> Array:
    held = take_together(same, labels, share, rng)
    for part, rows in (("test", held), ("training", ~held)):
        for label, name in ((1, "positives"), (0, "negatives")):
            if not (labels[rows] == label).any():
                raise TableError(
                    f"no {name} in the {part} split: equal {unit} stay together, and the table has only "
                    f"{int(same.max()) + 1} different among {len(same)}; give a table to test on with --test"
                )
    return np.flatnonzero(held)


def compare_rows(
    train: tuple[Hashes, Array], test: tuple[Hashes, Array], data: Path, other: Path, *, unit: str = "rows"
) -> list[str]:
    """Return a warning where rows of a test table are trained on, with their share.

    Args:
        train: hashes of the rows, or bags, to train on, and their targets.
        test: of those to test on.
        data: the table to train on.
        other: the table to test on.
        unit: what they are called, "rows" or "bags".

    Raises:
        TableError: if both tables hold the same rows and targets, as a file and its copy do.
    """
    first, second = (np.sort(hashes + hash_array(targets)) for hashes, targets in (train, test))
    if np.array_equal(first, second):
        raise TableError(
            f"{other}: --test holds the same {unit} as {data}, which are trained on; give {unit} of their own, or "
            "leave --test out, and a share is set aside"
        )
    return name_known(train[0], test[0], other, unit=unit)


def name_known(train: Hashes, test: Hashes, other: Path, *, unit: str = "rows") -> list[str]:
    """Return a warning where rows, or bags, of a table are among those that a model is trained on, else nothing."""
    known, number = int(np.isin(test, train).sum()), len(test)
    if not known:
        return []
    share = f"{known:,} of {number:,} {unit} of {other} ({known / number:.1%})"
    return [f"{share} equal {unit} that are trained on: the test may look better than it is"]


def name_equal(hashes: Hashes, parts: str, *, unit: str = "rows") -> list[str]:
    """Return a warning where so many rows, or bags, equal others that a split which keeps them together is not random.

    Args:
        hashes: of the rows, or bags.
        parts: what the split makes, with its verb, as "the folds are".
        unit: what they are called, "rows" or "bags".
    """
    counts = np.bincount(number_equal(hashes))
    equal, number = int(counts[counts > 1].sum()), len(hashes)
    if equal <= _MUCH_EQUAL * number:
        return []
    return [
        f"{equal:,} of {number:,} {unit} ({equal / number:.1%}) equal others, and only {len(counts):,} are different. "
        f"Equal {unit} stay in one part, so {parts} not drawn at random, and new {unit} may be scored better or worse"
    ]


def name_equal_to_test(hashes: Hashes, held: Array, *, unit: str = "rows") -> list[str]:
    """Return what :func:`name_equal` does for rows to test on, which were drawn from a table."""
    parts = f"the {len(held):,} {unit} to test on ({len(held) / len(hashes):.1%}) are"
    return [f"{line}; --test takes a table of its own" for line in name_equal(hashes, parts, unit=unit)]
