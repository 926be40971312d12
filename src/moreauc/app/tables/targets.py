"""The target of a table: two classes, the positive one, and which columns are no target.

Every error is one line that names the column and the remedy. Rows are counted from 1, the first one below the header.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from moreauc.data.doubts import ID_ROWS, like_numbers
from moreauc.data.schema import numbers_or_texts
from moreauc.data.tables import TableError, list_names
from moreauc.data.texts import (
    MAJORITY,
    class_text,
    distinct_texts,
    find_numbers_or_dates,
    name_texts,
    normal_text,
    positive_class,
    type_column,
)


@dataclass(frozen=True)
class Target:
    """The two classes of a table."""

    name: str  # the column
    positive: str  # value of the positive class, as text
    negative: str  # value of the other class, as text
    reason: str  # how the positive class was chosen, in words


def split_target(
    frame: pd.DataFrame, target: str, *, positive: str | None = None, source: str = "table", unit: str = "rows"
) -> tuple[pd.DataFrame, NDArray[np.int64], Target]:
    """Take the target column out of a table and turn it into labels 0 and 1.

    Returns the other columns, the labels, and which class is which. By default the positive class is 1 of 0/1 and
    -1/1, True of False/True, and the rarer one of other pairs of values.
    """
    target = normal_text(target)
    texts = name_texts(check_present(frame, target, "target", source), class_text)
    counts = texts.value_counts()
    if len(counts) != 2:
        shown = ", ".join(f"{value} ({count} {unit})" for value, count in counts.iloc[:5].items())
        more = f" and {len(counts) - 5} more" if len(counts) > 5 else ""
        kind = "one class only" if len(counts) == 1 else f"{len(counts)} classes"
        raise TableError(f"{source}: target {target!r} must have two classes, got {kind}: {shown}{more}")
    if positive is None:  # a user who names the class knows them
        check_classes(frame[target], target, "name the positive one with --positive", source=source)
    chosen, reason = _positive_class(source, target, counts, positive)
    other = next(value for value in counts.index if value != chosen)
    labels = (texts == chosen).to_numpy().astype(np.int64)
    return frame.drop(columns=target), labels, Target(target, chosen, other, reason)


def match_target(
    frame: pd.DataFrame, target: Target, *, source: str = "table", unit: str = "rows"
) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """Return the other columns and the labels of another table, which must have both classes of `target`."""
    texts = name_texts(check_present(frame, target.name, "target", source), class_text)
    strange = texts[~texts.isin([target.positive, target.negative])]
    if len(strange):
        raise TableError(
            f"{source}: target {target.name!r} must be {target.negative!r} or {target.positive!r}, "
            f"got {strange.iloc[0]!r} in row {strange.index[0] + 1}"
        )
    labels = (texts == target.positive).to_numpy().astype(np.int64)
    for name, value, count in (
        ("positives", target.positive, labels.sum()),
        ("negatives", target.negative, len(labels) - labels.sum()),
    ):
        if not count:
            raise TableError(f"{source}: there are no {name} ({target.name} = {value}) among its {len(labels)} {unit}")
    return frame.drop(columns=target.name), labels


def drop_columns(frame: pd.DataFrame, names: Sequence[str], *, source: str = "table") -> pd.DataFrame:
    """Return the table without some columns, which must exist."""
    names = [normal_text(name) for name in names]
    for name in names:
        _check_column(frame, name, "column to drop", source)
    return frame.drop(columns=names)


def check_present(frame: pd.DataFrame, name: str, role: str, source: str) -> pd.Series:
    """Return a column that must be there and have no missing values; `role` is what it is called in errors."""
    _check_column(frame, name, "target column" if role == "target" else role, source)
    column = frame[name]
    missing = column.index[column.isna()]
    if len(missing):
        raise TableError(
            f"{source}: {role} {name!r} has {len(missing)} missing values, the first in row {missing[0] + 1}; "
            "remove such rows"
        )
    return column


def check_classes(column: pd.Series, name: str, remedy: str, *, source: str) -> None:
    """Refuse classes that are numbers with a unit or comma, infinity, dates, mixed, or texts that are all distinct."""
    remedy = f"{remedy} if these are classes"
    found = numbers_or_texts(f"{source}: column {name!r}", type_column(column), remedy)
    if found.dtype.kind != "f":
        reason = find_numbers_or_dates(distinct_texts(found)) or like_numbers(found.unique())
        if reason is None and len(found) >= ID_ROWS and found.is_unique:
            reason = "holds a different text in every row, as names of rows do; choose another column"
        if reason is not None:
            raise TableError(f"{source}: target {name!r} {reason}, or {remedy}")


def _check_column(frame: pd.DataFrame, name: str, role: str, source: str) -> None:
    if name in frame:
        return
    names = [str(column) for column in frame.columns]
    folded = {column.casefold(): column for column in names}
    close = [folded[found] for found in get_close_matches(name.casefold(), folded, n=3, cutoff=0.6)]
    hint = f"did you mean {list_names(close)}?" if close else f"columns are {list_names(names)}"
    raise TableError(f"{source}: no {role} {name!r}; {hint}")


def _positive_class(source: str, target: str, counts: pd.Series[int], positive: str | None) -> tuple[str, str]:
    values = set(counts.index)
    if positive is not None:
        positive = class_text(positive)
        if positive not in values:
            raise TableError(
                f"{source}: target {target!r} has no class {positive!r} to be the positive one, "
                f"its classes are {list_names(sorted(values))}"
            )
        return positive, "as asked for"
    found, reason = positive_class({str(text): int(count) for text, count in counts.items()})
    if found is None:
        raise TableError(
            f"{source}: target {target!r} has as many {counts.index[0]} as {counts.index[1]}; "
            "say which is the positive class with --positive"
        )
    share, other = counts[found] / counts.sum(), next(text for text in counts.index if text != found)
    note = f", {share:.0%} of all; --positive {shlex.quote(str(other))} finds the rarer one" if share > MAJORITY else ""
    return found, reason + note
