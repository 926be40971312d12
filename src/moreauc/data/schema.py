"""The columns of a table, each described once: its kind, how later values of it are read, and what is refused.

A schema is made of the table to learn from, a file's by :func:`learn_file`, a DataFrame by :func:`learn_frame`; these
return a :class:`TypedFrame`, which keeps its schema. :meth:`Schema.match` and :meth:`Schema.read` do the same for later
tables. Every error names the column, a value with its row, counted from 1, and the remedy.
"""

from __future__ import annotations

import operator
import re
import shlex
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import date, time, timedelta
from numbers import Real
from typing import ClassVar

import numpy as np
import pandas as pd
from pandas.api import types

from moreauc.data.dates import as_dates, read_dates
from moreauc.data.doubts import ID_ROWS, begin_with_numbers, doubt_numbers, doubt_texts
from moreauc.data.tables import TableError, list_names
from moreauc.data.texts import (
    TRUTHS,
    Kind,
    distinct_texts,
    find_dates,
    find_numbers_or_dates,
    find_written_numbers,
    holds_dates,
    is_number,
    iso_kind,
    label_text,
    lost_in_floats,
    normal_texts,
    type_column,
)

_INDEX = re.compile(r"__index_level_\d+__")  # so Parquet calls an index without a name
# What pandas calls the content of a column of Python objects.
_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal", "empty")
_LEVELS = ("string", "boolean", "categorical")
_DTYPES = {Kind.NUMBER: "f", Kind.TEXT: "O", Kind.DATE: "M", Kind.ZONED_DATE: "M"}


class ColumnWarning(UserWarning):
    """A column that can be used, but perhaps not as it was meant."""


class TypedFrame(pd.DataFrame):  # type: ignore[misc]
    """A table that a schema has read, and parts of it: float64, texts (object) and `datetime64[us]`.

    A missing value is NaN or NaT.
    """

    _metadata: ClassVar[list[str]] = ["_schema"]
    _schema: Schema | None = None

    @property
    def _constructor(self) -> type[TypedFrame]:
        return TypedFrame

    @property
    def schema(self) -> Schema:
        """The schema that the table was read by."""
        if self._schema is None or not self._schema.fits(self):
            raise ValueError("TypedFrame: columns must be as they were read, got others")
        return self._schema


@dataclass(frozen=True)
class UnknownLevels:
    """A column, and how many of its values are levels that were not seen in training."""

    name: str  # of the column
    unknown: int  # rows with such a value
    present: int  # rows with any value
    example: str | None  # one of the unknown levels, None where there is none

    @property
    def share(self) -> float:
        """Share of the values that are unknown."""
        return self.unknown / max(self.present, 1)

    def __str__(self) -> str:
        return (
            f"column {self.name!r} holds levels that were not there in training in {self.unknown:,} of "
            f"{self.present:,} rows ({self.share:.1%}), such as {self.example!r}; they count as rare ones"
        )


@dataclass(frozen=True)
class Column:
    """A column to learn from."""

    name: Hashable
    kind: Kind
    levels: tuple[str, ...] = ()  # the texts in training, sorted
    zone: str | None = None  # time zone of the dates

    def read(self, where: str, values: pd.Series) -> pd.Series:
        """Return later values of the column, which must be of its kind; errors begin with `where`."""
        if self.kind is Kind.NUMBER:
            return _read_numbers(where, values)
        if self.kind is Kind.TEXT:
            return self._read_texts(where, values)
        return self._read_dates(where, values)

    def unknown(self, where: str, values: pd.Series) -> UnknownLevels:
        """Return how many texts were not there in training; refuse a column of two rows or more without any other."""
        codes, names = pd.factorize(values)
        strange = ~pd.Index(names).isin(self.levels)
        counts = np.bincount(codes[codes >= 0], minlength=len(names))
        example = str(names[strange][0]) if strange.any() else None
        found = UnknownLevels(str(self.name), int(counts[strange].sum()), int(counts.sum()), example)
        if found.unknown == found.present > 1 and 2 * found.present >= len(values):
            raise TableError(
                f"{where} must hold levels of the training ({self._shown()}), got others only, such as "
                f"{found.example!r}; write its values as they were in training, or train again with such rows"
            )
        return found

    def _read_texts(self, where: str, values: pd.Series) -> pd.Series:
        """Return texts that depend on the value only: 1 and 1.0 are one level, and so are "A" and "A "."""
        present, known = values.dropna(), set(self.levels)
        numbers = is_number(values) and not types.is_bool_dtype(values.dtype)
        strange = numbers and not known & {*TRUTHS.values()} and not any(map(_reads_as_number, known))
        if len(present) and (strange or holds_dates(values)):
            shown = f"the number {present.iloc[0]:g}" if numbers else f"the date {present.iloc[0]}"
            raise TableError(
                f"{where} must hold text, as in training ({self._shown()}), got {shown} in row "
                f"{_row(present.index[0])}; write its values as they were in training"
            )
        texts = as_levels(values)
        for spelling in ({"1": "True", "0": "False"}, {"True": "1", "False": "0"}):  # of truth values
            if known and known <= {*spelling.values()}:
                return texts.replace(spelling)
        return texts

    def _read_dates(self, where: str, values: pd.Series) -> pd.Series:
        """Return dates in the time zone of the training; a column without dates fits any."""
        present = values.dropna()
        if len(present) and not holds_dates(values):
            raise TableError(
                f"{where} must hold dates, as in training, got {str(present.iloc[0])!r} in row "
                f"{_row(present.index[0])}; turn them into dates, for instance with pandas.to_datetime"
            )
        dates = as_dates(values, where)
        if (dates.dt.tz is None) == (self.zone is None):
            return dates if self.zone is None else dates.dt.tz_convert(self.zone)
        if len(present):
            zone = f"the time zone {self.zone}" if self.zone else "no time zone"
            raise TableError(
                f"{where} must hold dates with {zone}, as in training, got {dates.dt.tz}; give them a zone, or none, "
                "with Series.dt.tz_localize"
            )
        return dates.dt.tz_localize(self.zone) if dates.dt.tz is None else dates.dt.tz_localize(None)

    def _shown(self) -> str:
        return ", ".join(map(repr, self.levels[:3])) + (", ..." if len(self.levels) > 3 else "")


@dataclass(frozen=True)
class Schema:
    """The columns to learn from, in their order."""

    columns: tuple[Column, ...] = ()
    doubts: tuple[str, ...] = ()  # warnings about columns that are perhaps no features

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each column, as text."""
        return {str(column.name): str(column.kind) for column in self.columns}

    def fits(self, frame: pd.DataFrame) -> bool:
        """Return whether a table has these columns, as they are read."""
        return list(frame.columns) == [column.name for column in self.columns] and all(
            dtype.kind == _DTYPES[column.kind] for dtype, column in zip(frame.dtypes, self.columns, strict=True)
        )

    def match(self, frame: pd.DataFrame, *, source: str) -> TypedFrame:
        """Return these columns of a later table of a file, named `source` in errors."""
        missing = [str(column.name) for column in self.columns if column.name not in frame]
        if missing:
            raise TableError(
                f"{source}: {_column_word(missing)} {list_names(missing)} missing, on which the model was trained"
            )
        values = []
        for column in self.columns:
            where, own = f"{source}: column {column.name!r}", frame[column.name]
            if column.kind in (Kind.DATE, Kind.ZONED_DATE):
                values.append(_read_written_dates(where, own, column.kind, ", as in training"))
                continue
            own = type_column(own)
            if not _are_truths(own.dropna()):
                own = numbers_or_texts(where, own, "write its values as they were in training")
            values.append(column.read(where, own))
        return self._typed(values, frame.index)

    def read(self, owner: str, frame: pd.DataFrame) -> TypedFrame:
        """Return a later DataFrame of the same columns in the same order, given to the class `owner`."""
        if isinstance(frame, TypedFrame) and frame._schema is self and self.fits(frame):
            return frame
        if frame.shape[1] != len(self.columns):
            raise TableError(f"{owner}: X must have {len(self.columns)} columns, as in training, got {frame.shape[1]}")
        frame = frame.reset_index(drop=True)
        values = [
            column.read(f"{owner}: column {column.name!r}", frame.iloc[:, place])
            for place, column in enumerate(self.columns)
        ]
        return self._typed(values, frame.index)

    def with_levels(self, frame: TypedFrame) -> TypedFrame:
        """Return rows to train on, and in their schema the texts of these rows only."""
        columns = [
            replace(column, levels=_sorted_levels(frame.iloc[:, place])) if column.kind is Kind.TEXT else column
            for place, column in enumerate(self.columns)
        ]
        return replace(self, columns=tuple(columns)).own(frame)

    def unknown(self, frame: TypedFrame, *, source: str) -> list[UnknownLevels]:
        """Return for each column of texts how many values were not there in training."""
        return [
            column.unknown(f"{source}: column {column.name!r}", frame.iloc[:, place])
            for place, column in enumerate(self.columns)
            if column.kind is Kind.TEXT
        ]

    def own(self, frame: pd.DataFrame) -> TypedFrame:
        """Return a table, whose columns are as they are read, with this schema."""
        typed = TypedFrame(frame)
        typed._schema = self
        return typed

    def _typed(self, values: Sequence[pd.Series], index: pd.Index) -> TypedFrame:
        frame = pd.DataFrame(dict(enumerate(values)), index=index)
        frame.columns = pd.Index([column.name for column in self.columns])
        return self.own(frame)


# Schemas of tables to learn from


def learn_file(frame: pd.DataFrame, *, source: str = "table") -> TypedFrame:
    """Return the columns of a table of a file, whose texts are numbers where all of a column are, or dates.

    Texts are dates where all of them are in ISO form, as 2024-12-31 is.

    Columns that must not be guessed are refused with a `TableError` that names them and the option that leaves them
    out.
    """
    if not len(frame.columns):
        raise TableError(f"{source}: there is no column besides the target")
    _refuse(source, [name for name in frame if _INDEX.fullmatch(str(name))], "hold the index of a DataFrame")
    _refuse(source, [name for name in frame if frame[name].isna().all()], "hold missing values only")
    found = {name: _learn_written(source, str(name), type_column(frame[name])) for name in frame}
    constant = [name for name, (_, column) in found.items() if column.nunique(dropna=False) == 1]
    _refuse(source, constant, "hold one value only")
    texts = {name: column.dropna() for name, (kind, column) in found.items() if kind is Kind.TEXT}
    names = [
        name
        for name, present in texts.items()
        if len(frame) >= ID_ROWS and present.is_unique and not begin_with_numbers(present)
    ]
    _refuse(source, names, "hold a different text in every row, as names of rows do")
    for name, present in texts.items():
        distinct = present.nunique()
        if len(present) >= ID_ROWS and 2 * distinct > len(present):
            raise TableError(
                f"{source}: column {name!r} holds {distinct:,} different texts in {len(present):,} rows, such as "
                f"{present.iloc[0]!r}, too many to learn from; write numbers as numbers, without a unit, join texts "
                f"that belong together, or leave it out with {_drop_option([name])}"
            )
    columns = [Column(name, kind, zone="UTC" if kind is Kind.ZONED_DATE else None) for name, (kind, _) in found.items()]
    return _learn(columns, [column for _, column in found.values()], frame.index)


def learn_frame(owner: str, frame: pd.DataFrame) -> TypedFrame:
    """Return the columns of a DataFrame given to the class `owner`; bool, string and category columns hold texts.

    Columns of other types, infinities, and texts that are numbers or dates are a `TableError`.
    """
    if isinstance(frame, TypedFrame) and frame._schema is not None and frame._schema.fits(frame):
        return frame
    frame = frame.reset_index(drop=True)
    columns, values, declared = [], [], set()
    for place in range(frame.shape[1]):
        column = frame.iloc[:, place]
        where, kind, zone = f"{owner}: column {column.name!r}", _kind(owner, column), None
        if reason := lost_in_floats(column):
            raise TableError(f"{where} {reason}, or drop it")
        if kind is Kind.NUMBER:
            column = _read_numbers(where, column)
        elif kind is not Kind.TEXT:
            column = as_dates(column, where)
            zone = None if column.dt.tz is None else str(column.dt.tz)
        else:
            if isinstance(column.dtype, pd.CategoricalDtype):
                declared.add(place)  # by the user: anything may be a level
            elif reason := find_numbers_or_dates(distinct_texts(column)):
                raise TableError(
                    f"{where} {reason}, dates also with pandas.to_datetime, or make the column a category to learn its "
                    "texts as levels"
                )
            column = as_levels(column)
        columns.append(Column(frame.columns[place], kind, zone=zone))
        values.append(column)
    return _learn(columns, values, frame.index, declared)


def warn_of_doubts(owner: str, schema: Schema, *, stacklevel: int) -> None:
    """Warn of columns that are perhaps no features."""
    for line in schema.doubts:
        warnings.warn(f"{owner}: {line}", ColumnWarning, stacklevel=stacklevel + 1)


def _learn(
    columns: Sequence[Column], values: Sequence[pd.Series], index: pd.Index, declared: set[int] | None = None
) -> TypedFrame:
    """Return columns with a schema, which has their levels and what is doubtful about them."""
    doubts = []
    for place, (column, own) in enumerate(zip(columns, values, strict=True)):
        reason = None
        if column.kind is Kind.NUMBER:
            reason = doubt_numbers(str(column.name), own.to_numpy())
        elif column.kind is Kind.TEXT:
            reason = doubt_texts(own, declared=place in (declared or ()))
        if reason is not None:
            doubts.append(f"column {column.name!r} {reason}")
    schema = Schema(tuple(columns), tuple(doubts))
    return schema.with_levels(schema._typed(values, index))


def _learn_written(source: str, name: str, column: pd.Series) -> tuple[Kind, pd.Series]:
    """Return the kind and the values of a column of a file."""
    where, leave = f"{source}: column {name!r}", f"leave it out with {_drop_option([name])}"
    texts = distinct_texts(column)
    if kind := _kind_of_dates(column) if holds_dates(column) else iso_kind(texts):
        return kind, _read_written_dates(where, column, kind, f", or {leave}")
    if reason := find_written_numbers(texts) or lost_in_floats(column):
        raise TableError(f"{where} {reason}, or {leave}")
    column = numbers_or_texts(where, column, leave)
    if reason := find_dates(texts):
        raise TableError(f"{where} {reason}, write dates like 2024-12-31, or {leave}")
    return Kind.NUMBER if column.dtype.kind == "f" else Kind.TEXT, column


def _kind(owner: str, column: pd.Series) -> Kind:
    """Return the kind of a column of a DataFrame."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype) or types.is_bool_dtype(dtype):
        return Kind.TEXT
    if types.is_numeric_dtype(dtype) and not types.is_complex_dtype(dtype):
        return Kind.NUMBER
    content = types.infer_dtype(column, skipna=True)
    if content in _NUMBERS:
        return Kind.NUMBER
    if content in _LEVELS:
        return Kind.TEXT
    if holds_dates(column):
        return _kind_of_dates(column)
    if content in ("time", "timedelta", "timedelta64", "period"):
        advice = "turn it into numbers (hours, days, ...) or dates, or drop it"
    else:
        advice = "turn it into one type, numbers or strings, or drop it"
    raise TableError(
        f"{owner}: column {column.name!r} must hold numbers, bools, strings, categories or dates, got {content}; "
        f"{advice}"
    )


def _kind_of_dates(column: pd.Series) -> Kind:
    zone = getattr(column.dropna().iloc[0], "tzinfo", None) if column.notna().any() else None
    return Kind.DATE if zone is None else Kind.ZONED_DATE


# Values


def as_levels(values: pd.Series) -> pd.Series:
    """Return the texts of any values, NaN where missing; truth values are spelt in one way."""
    codes, found = pd.factorize(values)
    names = [label_text(value) for value in found]
    texts = np.array([*(TRUTHS.get(name, name) for name in names), np.nan], dtype=object)
    return pd.Series(texts[codes], index=values.index, name=values.name, dtype=object)  # -1, missing, is the last


def numbers_or_texts(where: str, column: pd.Series, leave: str) -> pd.Series:
    """Return a column of a file as float64 or as texts; anything else, and both in one column, are refused.

    The remedy in errors is to make it one kind, or to `leave` it in some way.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
    present = column.dropna()
    if is_number(column) or _are_truths(present):
        return _read_numbers(where, column)
    strange = present[~present.map(lambda value: isinstance(value, str | Real))]
    if len(strange):
        value = strange.iloc[0]  # dates and times come from a Parquet file
        advice = "turn dates and times into numbers, such as days since one" if _is_time(value) else "make it one kind"
        raise TableError(
            f"{where} must hold numbers or text, got {type(value).__name__} in row {_row(strange.index[0])}; {advice}, "
            f"or {leave}"
        )
    numbers = pd.to_numeric(present, errors="coerce").notna()
    if numbers.all():
        return _read_numbers(where, pd.to_numeric(column))
    if numbers.any():
        number, text = present[numbers], present[~numbers]
        raise TableError(
            f"{where} mixes numbers and text: {number.iloc[0]} in row {_row(number.index[0])}, {text.iloc[0]!r} in row "
            f"{_row(text.index[0])}; make it one kind, or {leave}"
        )
    return as_levels(normal_texts(column.astype(object)))


def _read_numbers(where: str, column: pd.Series) -> pd.Series:
    """Return real numbers as float64, NaN where missing; truth values are 0 and 1."""
    if not is_number(column):
        present = column.dropna().astype(object)
        strange = present[~present.map(lambda value: isinstance(value, Real | np.bool_))]
        if len(strange):
            raise TableError(
                f"{where} must hold numbers, as in training, got {strange.iloc[0]!r} in row {_row(strange.index[0])}"
            )
    values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    if (infinite := np.flatnonzero(np.isinf(values))).size:
        place = infinite[0]
        raise TableError(
            f"{where} must be finite, got {values[place]} in row {_row(column.index[place])}; leave the field empty if "
            "the value is missing"
        )
    return pd.Series(values, index=column.index, name=column.name)


def _read_written_dates(where: str, column: pd.Series, kind: Kind, remedy: str) -> pd.Series:
    """Return the dates of a column of a file, NaT where missing."""
    dates, strange = read_dates(column, kind, where)
    if len(strange):
        form = "2024-12-31" if kind is Kind.DATE else "2024-12-31T12:30Z"
        raise TableError(
            f"{where} must hold dates like {form}{remedy}, got {str(strange.iloc[0])!r} in row {_row(strange.index[0])}"
        )
    return dates


def _sorted_levels(texts: pd.Series) -> tuple[str, ...]:
    return tuple(sorted(texts.dropna().unique()))


def _reads_as_number(level: str) -> bool:
    try:
        float(level)
    except ValueError:
        return False
    return True


def _is_time(value: object) -> bool:
    return isinstance(value, date | time | timedelta)


def _are_truths(values: pd.Series) -> bool:
    return bool(values.map(lambda value: isinstance(value, bool | np.bool_)).all())


def _row(label: Hashable) -> int:
    """Return the number of a row of a file, by its label in the index, from 0."""
    return operator.index(label) + 1  # type: ignore[arg-type]


def _refuse(source: str, names: Sequence[Hashable], what: str) -> None:
    if names:
        if len(names) == 1:
            what = what.replace("hold ", "holds ")
        shown = list_names([str(name) for name in names])
        raise TableError(f"{source}: {_column_word(names)} {shown} {what}; leave out with {_drop_option(names)}")


def _column_word(names: Sequence[Hashable]) -> str:
    return "column" if len(names) == 1 else "columns"


def _drop_option(names: Sequence[Hashable]) -> str:
    return " ".join(f"--drop {shlex.quote(str(name))}" for name in names[:5]) + (" ..." if len(names) > 5 else "")
