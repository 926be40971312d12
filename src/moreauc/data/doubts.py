"""Columns that can be used, but are perhaps no features: row numbers, and texts that tell too little."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

# Levels seen in fewer rows are merged; a column has at most so many levels, the most frequent.
LEAST_ROWS = 3
MOST_LEVELS = 50

ID_ROWS = 20  # below, distinct numbers in order, distinct texts and rare texts may be chance
_ORDERED = 0.95  # rank correlation with the number of the row
_MERGED = 0.2  # share of the rows whose levels may be merged without a warning
_ID_WORDS = {"id", "ids", "uid", "uuid", "guid", "pid", "identifier", "index", "idx", "key", "row", "rownumber", "nr"}
_NUMBER = re.compile(r"[(<>~+\-\u2212\u2264\u2265 ]*\d")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def doubt_numbers(name: str, values: NDArray[np.float64]) -> str | None:
    """Return the warning about numbers that look like row numbers; None for others."""
    number = len(values)
    if number < ID_ROWS or not np.isfinite(values).all() or (values % 1 != 0).any():
        return None
    distinct = len(pd.unique(values))
    named = not _ID_WORDS.isdisjoint(word.lower() for word in _WORDS.findall(name))
    if distinct == number and abs(_rank_correlation(values)) > _ORDERED:
        what = "holds a different whole number in every row, in the order of the rows, as row numbers do"
    elif named and distinct == number:
        what = "holds a different whole number in every row and is named like an id"
    elif named and 2 * distinct > number:
        what = f"holds {distinct:,} different whole numbers in {number:,} rows and is named like an id"
    else:
        return None
    return f"{what}; leave it out unless it is a measurement"


def doubt_texts(column: pd.Series, *, declared: bool = False) -> str | None:
    """Return the warning about texts that are too many, or like numbers unless they are declared as levels."""
    counts = column.value_counts(dropna=False)
    return _many_levels(counts.to_numpy()) or (None if declared else like_numbers(counts.index))


def like_numbers(levels: Iterable[object]) -> str | None:
    """Return the warning about many different texts that begin with numbers; None for others."""
    texts = [level for level in levels if isinstance(level, str)]
    if len(texts) < ID_ROWS or not begin_with_numbers(texts):
        return None
    return (
        f"holds {len(texts):,} different texts that begin with a number, such as {texts[0]!r}; if they are quantities "
        "or dates, turn them into numbers, since as texts they have no order"
    )


def begin_with_numbers(texts: Iterable[str]) -> bool:
    """Return whether nine of ten texts, or more, begin with a number, as quantities and dates do."""
    found = [_NUMBER.match(text) is not None for text in texts]
    return bool(found) and sum(found) >= 0.9 * len(found)


def _rank_correlation(values: NDArray[np.float64]) -> float:
    """Return the rank correlation of distinct values with their places."""
    ranks = np.empty(len(values))
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])


def _many_levels(counts: NDArray[np.int64]) -> str | None:
    number = int(counts.sum())
    if number < ID_ROWS:
        return None
    kept = counts[counts >= LEAST_ROWS]
    if len(counts) > MOST_LEVELS:
        kept = kept[: MOST_LEVELS - 1]  # the others share one column
    merged, rows = len(counts) - len(kept), number - int(kept.sum())
    if rows <= _MERGED * number:
        return None
    return (
        f"holds {len(counts):,} different texts in {number:,} rows; {merged:,} of them, in "
        f"{rows / number:.0%} of the rows, are too rare to be told apart and count as one level; join levels, or "
        "leave it out"
    )
