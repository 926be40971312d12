"""Dates as features: how columns that hold them (:mod:`moreauc.data.texts`) are read, and the numbers they become."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from moreauc.data.tables import TableError
from moreauc.data.texts import Kind, date_kind, holds_dates

Floats = NDArray[np.float64]

_DAY = np.timedelta64(1, "D")


def as_dates(column: pd.Series, where: str = "a column") -> pd.Series:
    """Return dates of any kind as `datetime64[us]`, in the time zone of the column, or UTC where values have their own.

    Raises:
        TableError: where some have a time zone and others have none; it begins with `where`.
    """
    if types.is_datetime64_any_dtype(column.dtype) and not isinstance(column.dtype, pd.ArrowDtype):
        return column.dt.as_unit("us")
    values = column.astype(object)
    present = values[values.notna()]
    aware = present.map(lambda value: getattr(value, "tzinfo", None) is not None).astype(bool)
    if not aware.any():
        dates = np.full(len(values), np.datetime64("NaT", "us"))
        dates[values.notna().to_numpy()] = present.map(_plain).to_numpy(dtype="datetime64[us]")
        return pd.Series(dates, index=column.index, name=column.name)
    if not aware.all():
        raise TableError(
            f"{where} holds dates with a time zone beside dates without one; give all of them one, or none"
        )
    return pd.to_datetime(values, utc=True).dt.as_unit("us")


def _plain(value: date) -> date:
    """Return what NumPy takes for a date of Python or of pandas, without its nanoseconds."""
    return value.to_pydatetime(warn=False) if isinstance(value, pd.Timestamp) else value


def read_dates(column: pd.Series, kind: Kind, where: str = "a column") -> tuple[pd.Series, pd.Series]:
    """Return the dates of a column of a file, of a kind of :func:`date_kind`, and the values that are no such dates."""
    zone = "UTC" if kind is Kind.ZONED_DATE else None
    if holds_dates(column):
        found = as_dates(column, where)
        if (found.dt.tz is None) == (zone is None):
            return found if zone is None else found.dt.tz_convert(zone), column[:0]
        return found, column[column.notna()]
    present = column[column.notna()].astype(object)
    values = present[present.map(date_kind) == kind].map(_read).dropna()
    dates = pd.Series(np.full(len(column), np.datetime64("NaT", "us")), index=column.index, name=column.name)
    dates[values.index] = values.to_numpy(dtype="datetime64[us]")
    return dates if zone is None else dates.dt.tz_localize(zone), present.drop(values.index)


def _read(text: str) -> datetime | None:
    """Return the date of a text in ISO form, in UTC where it has an offset; None where there is no such day or time."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    offset = found.utcoffset()
    return found if offset is None else (found - offset).replace(tzinfo=None)


@dataclass(frozen=True)
class DateParts:
    """What a column of dates becomes, by its training part: days since the earliest, and parts of the calendar.

    The parts are year, day of the month, and month, day of the week and, where any date of the training has a time of
    day, that, each as sine and cosine of an angle: so December is beside January, and Sunday beside Monday.
    """

    earliest: np.datetime64  # in UTC where the dates have a time zone; NaT where there are none
    zone: str | None  # in which parts are read; None for dates without
    hours: bool  # whether any date had a time of day

    @classmethod
    def of(cls, dates: pd.Series) -> DateParts:
        """Return the parts for dates of the training, as :func:`as_dates` returns them."""
        dates = dates[dates.notna()]
        local, universal = _clocks(dates)
        earliest = universal.min() if len(dates) else np.datetime64("NaT", "us")
        zone = None if dates.dt.tz is None else str(dates.dt.tz)
        return cls(earliest, zone, bool((local != local.astype("datetime64[D]")).any()))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts."""
        cycles = ("month", "weekday", "hour")[: 3 if self.hours else 2]
        return ("year", "day", *(f"{function} {name}" for name in cycles for function in ("sine", "cosine")))

    def numbers(self, dates: pd.Series) -> tuple[Floats, Floats]:
        """Return days since the earliest training date, `(n,)`, and the parts, `(n, parts)`; NaN where missing."""
        local, universal = _clocks(dates)
        day, month = local.astype("datetime64[D]"), local.astype("datetime64[M]")
        year = local.astype("datetime64[Y]")
        weekday = (day - np.datetime64("1970-01-05", "D")) / _DAY % 7.0  # a Monday
        cycles = [(month - year) / np.timedelta64(1, "M") / 12.0, weekday / 7.0]
        if self.hours:
            cycles.append((local - day) / _DAY)
        turns = 2.0 * np.pi * np.column_stack(cycles)
        waves = np.stack([np.sin(turns), np.cos(turns)], axis=2).reshape(len(local), -1)
        calendar = [(year - np.datetime64("0000", "Y")) / np.timedelta64(1, "Y"), (day - month) / _DAY + 1.0]
        return (universal - self.earliest) / _DAY, np.column_stack([*calendar, waves])


def _clocks(dates: pd.Series) -> tuple[NDArray[np.datetime64], NDArray[np.datetime64]]:
    """Return dates as the clock on the wall shows them, and in UTC; the same for dates without a time zone."""
    if dates.dt.tz is None:
        found = dates.to_numpy(dtype="datetime64[us]")
        return found, found
    wall, universal = dates.dt.tz_localize(None), dates.dt.tz_convert(None)
    return wall.to_numpy(dtype="datetime64[us]"), universal.to_numpy(dtype="datetime64[us]")
