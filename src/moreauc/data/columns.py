"""Columns of a table: the target, and whether the others can be used as features.

Every error is one line that names the column and the remedy. Rows are counted from 1, the first one below the header.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from difflib import get_close_matches
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from moreauc.data.dates import read_dates
from moreauc.data.tables import TableError, list_names
from moreauc.data.texts import (
    DATES,
    DATES_IN_ZONES,
    MAJORITY,
    TRUTHS,
    NumberFormat,
    class_text,
    distinct_texts,
    find_comma_or_dates,
    find_dates,
    find_format,
    find_numbers_or_dates,
    holds_dates,
    is_number,
    iso_kind,
    label_text,
    lost_in_floats,
    name_texts,
    normal_text,
    normal_texts,
    positive_class,
    type_column,
    type_columns,
)

# Levels seen in fewer rows are merged; a column has at most so many levels, the most frequent.
LEAST_ROWS = 3
MOST_LEVELS = 50

_INDEX = re.compile(r"__index_level_\d+__")  # so Parquet calls an index without a name
_ID_ROWS = 20  # below, distinct numbers in order, distinct texts and rare texts may be chance
_ORDERED = 0.95  # rank correlation with the number of the row
_MERGED = 0.2  # share of the rows whose levels may be merged without a warning
_ID_WORDS = {"id", "ids", "uid", "uuid", "guid", "pid", "identifier", "index", "idx", "key", "row", "rownumber", "nr"}
_NUMBER = re.compile(r"[(<>~+\-\u2212\u2264\u2265 ]*\d")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


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


def check_features(frame: pd.DataFrame, *, source: str = "table") -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the features as numbers (float64), text and dates, and the kind of each column.

    A kind is "number", "text", "date" or "date with offset" (datetime64, the latter in UTC), or how the numbers are
    written, as in "number like 1,234.5 $". Texts are dates where all of them are in ISO form, as 2024-12-31 is.

    Raises:
        TableError: for columns without values, with one value only, with infinities, with numbers and text mixed, with
            dates in other forms, lists or other things, with numbers that have a comma or are written ambiguously, and
            with texts of which more than half are distinct; it names them, and the option that leaves them out.
    """
    if not len(frame.columns):
        raise TableError(f"{source}: there is no column besides the target")
    frame = type_columns(frame)
    _refuse(source, [name for name in frame if _INDEX.fullmatch(str(name))], "hold the index of a DataFrame")
    empty = [name for name in frame if frame[name].isna().all()]
    _refuse(source, empty, "hold missing values only")
    columns, formats = {}, {}
    for name in frame:
        drop = f"leave it out with {_drop_option([name])}"
        if kind := _date_kind(frame[name]):
            formats[name] = kind
            columns[name] = _read_dates(source, name, frame[name], kind, f", or {drop}")
            continue
        form = find_format(distinct_texts(frame[name]))
        if isinstance(form, NumberFormat):
            formats[name] = form.kind
            columns[name] = _read_written(source, name, frame[name], form)
            continue
        if reason := form or lost_in_floats(frame[name]):
            raise TableError(f"{source}: column {name!r} {reason}, or {drop}")
        columns[name] = _as_number_or_text(source, name, frame[name], f"; make it one kind, or {drop}")
        texts = distinct_texts(columns[name])
        if len(texts) and (reason := find_comma_or_dates(texts) or find_dates(texts)):
            iso = "write dates like 2024-12-31, " if "holds dates" in reason else ""
            raise TableError(f"{source}: column {name!r} {reason}, {iso}or {drop}")
    constant = [name for name, column in columns.items() if column.nunique(dropna=False) == 1]
    _refuse(source, constant, "hold one value only")
    kinds = {name: "number" if column.dtype.kind == "f" else "text" for name, column in columns.items()} | formats
    names = [
        name
        for name, column in columns.items()
        if kinds[name] == "text"
        and len(column) >= _ID_ROWS
        and column.nunique() == column.notna().sum()
        and not begin_with_numbers(column.dropna())
    ]
    _refuse(source, names, "hold a different text in every row, as names of rows do")
    for name, column in columns.items():
        if kinds[name] == "text" and (reason := too_many_texts(column)):
            raise TableError(f"{source}: column {name!r} {reason}, or leave it out with {_drop_option([name])}")
    return pd.DataFrame(columns), kinds


def match_features(frame: pd.DataFrame, kinds: dict[str, str], *, source: str = "table") -> pd.DataFrame:
    """Return the columns a model was trained on, in their order and kinds, as :func:`check_features` returned them."""
    missing = [name for name in kinds if name not in frame]
    if missing:
        raise TableError(
            f"{source}: {_column_word(missing)} {list_names(missing)} missing, on which the model was trained"
        )
    frame = type_columns(frame[list(kinds)])
    columns = {}
    for name, kind in kinds.items():
        if kind in (DATES, DATES_IN_ZONES):
            columns[name] = _read_dates(source, name, frame[name], kind, ", as in training")
            continue
        form = NumberFormat.of_kind(kind)
        if form is not None:
            columns[name] = _read_written(source, name, frame[name], form)
            continue
        column = _as_number_or_text(source, name, frame[name])
        if kind == "text" and column.dtype.kind == "f":
            row = column.first_valid_index()
            if row is not None and not _are_truths(frame[name].dropna()):
                raise TableError(
                    f"{source}: column {name!r} must hold text, as in training, got the number {column[row]:g} in row "
                    f"{row + 1}; write its values as they were in training"
                )
            column = frame[name].map(label_text, na_action="ignore").astype(object)
        elif kind == "number" and column.dtype.kind != "f":
            row = column.first_valid_index()
            raise TableError(
                f"{source}: column {name!r} must hold numbers, as in training, got {column[row]!r} in row {row + 1}"
            )
        columns[name] = column
    return pd.DataFrame(columns)


def check_present(frame: pd.DataFrame, name: str, role: str, source: str) -> pd.Series[Any]:
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


def check_classes(column: pd.Series[Any], name: str, remedy: str, *, source: str) -> None:
    """Refuse classes that are numbers with a unit or comma, infinity, dates, mixed, or texts that are all distinct."""
    remedy = f"{remedy} if these are classes"
    found = _as_number_or_text(source, name, type_column(column), f"; make it one kind, or {remedy}")
    if found.dtype.kind != "f":
        reason = find_numbers_or_dates(distinct_texts(found)) or like_numbers(found.unique())
        if reason is None and len(found) >= _ID_ROWS and found.is_unique:
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


def _as_number_or_text(source: str, name: str, column: pd.Series[Any], remedy: str = "") -> pd.Series[Any]:
    """Return a column of float64 or of texts (object); a missing value is NaN in either."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
    if is_number(column):
        return _check_finite(source, name, column.astype(float))
    present = column.dropna()
    if _are_truths(present):
        return column.astype(float)
    strange = present[~present.map(lambda value: isinstance(value, str | Real))]
    if len(strange):
        if isinstance(strange.iloc[0], date | time | timedelta):  # of a Parquet file
            remedy = remedy.replace("make it one kind", "turn dates and times into numbers, such as days since one")
        raise TableError(
            f"{source}: column {name!r} must hold numbers or text, got {type(strange.iloc[0]).__name__} in row "
            f"{strange.index[0] + 1}{remedy}"
        )
    numbers = pd.to_numeric(present, errors="coerce").notna()
    if numbers.all():
        return _check_finite(source, name, pd.to_numeric(column).astype(float))
    if numbers.any():
        number, text = present[numbers], present[~numbers]
        raise TableError(
            f"{source}: column {name!r} mixes numbers and text: {number.iloc[0]} in row {number.index[0] + 1}, "
            f"{text.iloc[0]!r} in row {text.index[0] + 1}{remedy}"
        )
    texts = normal_texts(column.astype(object))
    # True and False are texts beside other words, else bools.
    return texts.where(texts.notna(), np.nan).replace(TRUTHS)


def _read_written(source: str, name: str, column: pd.Series[Any], form: NumberFormat) -> pd.Series[Any]:
    """Return the numbers of a column that is written in a certain way; a missing value is NaN."""
    numbers, strange = form.read_column(column)
    if len(strange):
        raise TableError(
            f"{source}: column {name!r} must hold numbers {form.example}, as in training, got {str(strange.iloc[0])!r} "
            f"in row {strange.index[0] + 1}"
        )
    return numbers


def _date_kind(column: pd.Series[Any]) -> str | None:
    """Return the kind of a column of dates, None for others."""
    if not holds_dates(column):
        return iso_kind(distinct_texts(column))
    first = column[column.notna()].iloc[0]
    return DATES if getattr(first, "tzinfo", None) is None else DATES_IN_ZONES


def _read_dates(source: str, name: str, column: pd.Series[Any], kind: str, remedy: str) -> pd.Series[Any]:
    """Return the dates of a column; a missing value is NaT."""
    try:
        dates, strange = read_dates(column, kind)
    except ValueError as error:
        raise TableError(f"{source}: column {name!r} {error}") from error
    if len(strange):
        form = "2024-12-31" if kind == DATES else "2024-12-31T12:30Z"
        raise TableError(
            f"{source}: column {name!r} must hold dates like {form}{remedy}, got {str(strange.iloc[0])!r} in row "
            f"{strange.index[0] + 1}"
        )
    return dates


def _are_truths(values: pd.Series[Any]) -> bool:
    return bool(values.map(lambda value: isinstance(value, bool | np.bool_)).all())


def _check_finite(source: str, name: str, column: pd.Series[Any]) -> pd.Series[Any]:
    infinite = column.index[np.isinf(column.to_numpy())]
    if len(infinite):
        raise TableError(
            f"{source}: column {name!r} must be finite, got {column[infinite[0]]} in row {infinite[0] + 1}; "
            "leave the field empty if the value is missing"
        )
    return column


def _refuse(source: str, names: list[Any], what: str) -> None:
    if names:
        if len(names) == 1:
            what = what.replace("hold ", "holds ")
        raise TableError(
            f"{source}: {_column_word(names)} {list_names(names)} {what}; leave out with {_drop_option(names)}"
        )


def _column_word(names: list[Any]) -> str:
    return "column" if len(names) == 1 else "columns"


def _drop_option(names: list[Any]) -> str:
    return " ".join(f"--drop {shlex.quote(str(name))}" for name in names[:5]) + (" ..." if len(names) > 5 else "")


# Columns that can be used, but are perhaps no features


def doubtful_columns(table: pd.DataFrame) -> list[str]:
    """Return a warning for each column that looks like row numbers, or has too many texts to be told apart."""
    found = []
    for place, name in enumerate(table.columns):
        column = table.iloc[:, place]
        if column.dtype.kind == "M":  # dates may differ in every row
            continue
        if column.dtype.kind in "biuf":
            reason = _row_number(str(name), column.to_numpy(dtype=float))
        else:
            counts = column.astype(object).value_counts(dropna=False)
            chosen = isinstance(column.dtype, pd.CategoricalDtype)  # declared as levels by the user
            reason = _many_levels(counts.to_numpy()) or (None if chosen else like_numbers(counts.index))
        if reason is not None:
            found.append(f"column {name!r} {reason}")
    return found


def _row_number(name: str, values: NDArray[Any]) -> str | None:
    number = len(values)
    if number < _ID_ROWS or not np.isfinite(values).all() or (values % 1 != 0).any():
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


def _rank_correlation(values: NDArray[Any]) -> float:
    """Return the rank correlation of distinct values with their places."""
    ranks = np.empty(len(values))
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])


def like_numbers(levels: Iterable[Any]) -> str | None:
    """Return the warning about many different texts that begin with numbers; None for others."""
    texts = [level for level in levels if isinstance(level, str)]
    if len(texts) < _ID_ROWS or not begin_with_numbers(texts):
        return None
    return (
        f"holds {len(texts):,} different texts that begin with a number, such as {texts[0]!r}; if they are quantities "
        "or dates, turn them into numbers, since as texts they have no order"
    )


def _many_levels(counts: NDArray[Any]) -> str | None:
    number = int(counts.sum())
    if number < _ID_ROWS:
        return None
    kept = counts[counts >= LEAST_ROWS]
    if len(counts) > MOST_LEVELS:
        kept = kept[: MOST_LEVELS - 1]  # the others share one column
    merged, rows = len(counts) - len(kept), number - int(kept.sum())
    if merged < 2 or rows <= _MERGED * number:
        return None
    return (
        f"holds {len(counts):,} different texts in {number:,} rows; {merged:,} of them, in "
        f"{rows / number:.0%} of the rows, are too rare to be told apart and count as one level; join levels, or "
        "leave it out"
    )


def begin_with_numbers(texts: Iterable[str]) -> bool:
    """Return whether nine of ten texts, or more, begin with a number, as quantities and dates do."""
    found = [_NUMBER.match(text) is not None for text in texts]
    return bool(found) and sum(found) >= 0.9 * len(found)


def too_many_texts(column: pd.Series[Any]) -> str | None:
    """Return the error of a column of texts most of which occur once or twice; None for others."""
    present = column.dropna()
    distinct = present.nunique()
    if len(present) < _ID_ROWS or 2 * distinct <= len(present):
        return None
    return (
        f"holds {distinct:,} different texts in {len(present):,} rows, such as {present.iloc[0]!r}, too many to learn "
        "from; write numbers as numbers, without a unit, join texts that belong together"
    )
