"""Numbers and dates as people write them: with a currency, a percent sign, spaces between thousands, two-digit years.

A column is read as numbers only where all of its values are written in one way that leaves no doubt about any of them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from moreauc.data._texts import no_text
from moreauc.data.tables import TableError

_CODES = (
    "USD EUR GBP CHF JPY CNY RMB INR AUD CAD NZD SEK NOK DKK ISK PLN CZK HUF RON BGN RUB UAH TRY ILS ZAR BRL MXN ARS "
    "CLP COP PEN KRW HKD SGD TWD THB IDR MYR PHP VND AED SAR EGP NGN KES Fr. Fr SFr. kr kr. zł Kč Rs Rs."
)
_UNITS = frozenset([*_CODES.split(), "%", "‰"])
_SPACES = str.maketrans(dict.fromkeys("\u00a0\u2007\u2009\u202f", " ") | {"\u2019": "'", "\u2212": "-"})
_PARTS = re.compile(
    r"(?P<sign>[+-]?) ?(?P<before>[^\d+\-., ']*) ?(?P<minus>[+-]?)(?P<core>[0-9., ']*[0-9]) ?(?P<after>.*)"
)
_GROUPED = re.compile(r"[1-9][0-9]{0,2}(?:( [0-9]{3})+|('[0-9]{3})+)(?:[.,][0-9]+)?")  # by spaces or apostrophes
# (between thousands, before decimals); of several that read a column alike, the first is taken
_MARKS = (("", "."), ("", ","), (" ", "."), (" ", ","), ("'", "."), ("'", ","), (",", "."), (".", ","))

_DAY, _YEAR = r"(?:0?[1-9]|[12]\d|3[01])", r"(?:1[5-9]|2[01])\d{2}"
_WEEKDAY = r"(?:(?:mon|tue|wed|thu|fri|sat|sun|mo|di|mi|do|fr|sa|so)[^\W\d]*[.,]{0,2} )?"
_MONTHS = "jan|feb|mar|mär|mrz|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez"
_MONTH = rf"(?:{_MONTHS})[^\W\d]*\.?"
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[ap]\.?m\.?)?(?: ?(?:z|utc|[+-]\d{2}:?\d{2}))?"
_DATE = (
    rf"\d{{4}}([-/.]){_DAY}\1{_DAY}",
    rf"{_DAY}([-/.]){_DAY}\2(?:\d{{4}}|\d{{2}})",
    rf"{_YEAR}[-/.](?:0?[1-9]|1[0-2])",
    rf"(?:0?[1-9]|1[0-2])[-/.]{_YEAR}",
    rf"{_DAY}\.?[- ]?{_MONTH}[- ,']*(?:\d{{4}}|\d{{2}})",
    rf"{_MONTH}[- ]?{_DAY}(?:st|nd|rd|th)?,? ?\d{{4}}",
    rf"{_MONTH}[- ,']*\d{{4}}",
)
_DATES = re.compile(rf"(?:{_WEEKDAY}(?:{'|'.join(_DATE)})(?:(?:,? |t){_TIME})?|{_TIME})", re.IGNORECASE)


@dataclass(frozen=True)
class NumberFormat:
    """How the numbers of a column are written.

    Attributes:
        thousands: what stands between thousands, "" for nothing.
        decimal: what stands before decimals.
        unit: currency or percent sign, "" for none. It is left out: 12 % is 12.
    """

    thousands: str
    decimal: str
    unit: str

    @property
    def kind(self) -> str:
        """The kind of such a column, for people and to be found again by :meth:`of_kind`."""
        return f"number {self.example}"

    @property
    def example(self) -> str:
        """A number so written, in words."""
        return f"like 1{self.thousands}234{self.decimal}5 {self.unit}".rstrip()

    @classmethod
    def of_kind(cls, kind: str) -> NumberFormat | None:
        """Return the format that a kind tells of, None for another kind.

        Example:
            >>> NumberFormat.of_kind(NumberFormat(" ", ",", "€").kind)
            NumberFormat(thousands=' ', decimal=',', unit='€')
        """
        found = re.fullmatch(r"number like 1(\D?)234(\D)5 ?(.*)", kind)
        return None if found is None else cls(*found.groups())

    def read(self, texts: pd.Series[Any]) -> pd.Series[Any]:
        """Return the numbers; NaN where a text is written in another way.

        Example:
            >>> NumberFormat(".", ",", "€").read(pd.Series(["1.200,50 €", "€ -3", "1,200.50 €"])).tolist()
            [1200.5, -3.0, nan]
        """
        return texts.map(lambda text: self._number(_parts(text))).astype(float)

    def read_column(self, column: pd.Series[Any]) -> tuple[pd.Series[Any], pd.Series[Any]]:
        """Return the numbers of a column, NaN where missing, and the values that are written in another way."""
        if not self.unit and pd.api.types.is_numeric_dtype(column.dtype):  # numbers below 1 000 have no spaces
            numbers = column.astype(float)
            taken = np.isfinite(numbers) & ((self.decimal == ".") | (numbers % 1 == 0))
        else:
            numbers = self.read(column.dropna().astype(object).map(str)).reindex(column.index)
            taken = numbers.notna()
        return numbers, column[~taken & column.notna()]

    def _number(self, parts: tuple[str, str, str] | None) -> float:
        if parts is None or parts[2] != self.unit:
            return np.nan
        between, before = re.escape(self.thousands), re.escape(self.decimal)
        grouped = rf"|[1-9]\d{{0,2}}(?:{between}\d{{3}})+" if between else ""
        if re.fullmatch(rf"(?:\d+{grouped})(?:{before}\d+)?|{before}\d+", parts[1], re.ASCII) is None:
            return np.nan
        plain = parts[1].replace(self.thousands, "") if self.thousands else parts[1]
        return float(parts[0] + plain.replace(self.decimal, "."))


def distinct_texts(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return the different texts of a column, each with its first row; none where it holds anything but text."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    if pd.api.types.is_object_dtype(column.dtype) or pd.api.types.is_string_dtype(column.dtype):
        present = column.dropna().astype(object)
        if present.map(lambda value: isinstance(value, str)).all():
            return present.drop_duplicates()
    return pd.Series([], dtype=object)


def find_format(texts: pd.Series[Any]) -> NumberFormat | str | None:
    """Return how the numbers of a column are written, or what is the matter with them; None where there are none.

    A column without units and without spaces or apostrophes between thousands is not looked at: what has commas or
    points only is for :func:`moreauc.data._texts.no_text`.

    Args:
        texts: a column without its missing values, indexed by the numbers of the rows, from 0.

    Returns:
        The format; or what follows the name of the column in an error, with the remedy.

    Example:
        >>> find_format(pd.Series(["$1,200.50", "$7"]))
        NumberFormat(thousands=',', decimal='.', unit='$')
        >>> find_format(pd.Series(["$1,200", "$7"]))[:49]
        "holds numbers that can be read in two ways, '$1,2"
        >>> find_format(pd.Series(["A", "B"])) is None
        True
    """
    parts = texts.map(_parts)
    written = parts.map(lambda found: found is not None and (found[2] != "" or _is_grouped(found[1])))
    if not written.any():
        return None
    remedy = "write the numbers alone, with a decimal point and nothing between thousands"
    first = texts[written].index[0]
    shown = f"{texts[first]!r} in row {first + 1}"
    if parts.isna().any():
        other = texts[parts.isna()].index[0]
        return f"mixes numbers and text: {shown}, {texts[other]!r} in row {other + 1}; {remedy}"
    strange = texts[parts.map(lambda found: found[2]) != parts[first][2]]
    if len(strange):
        return f"holds numbers in different units: {shown}, {strange.iloc[0]!r} in row {strange.index[0] + 1}; {remedy}"
    readings = list(_readings(texts, parts[first][2]))
    if not readings:
        return f"holds numbers that are not all written in one way, such as {shown}; {remedy}"
    form, numbers = readings[0]
    for _, others in readings[1:]:
        if len(differing := texts[(numbers != others).to_numpy()]):
            where = f"{differing.iloc[0]!r} in row {differing.index[0] + 1}"
            return f"holds numbers that can be read in two ways, {where}; {remedy}"
    return form


def find_dates(texts: pd.Series[Any], *, more_than: float = 0.5) -> str | None:
    """Return what is the matter with a column of dates or times, and the remedy; None where there are few.

    Args:
        texts: a column without its missing values, indexed by the numbers of the rows, from 0.
        more_than: share of the values that may be dates.

    Example:
        >>> find_dates(pd.Series(["31.12.24", "1.1.25"]))[:40]
        "holds dates or times, '31.12.24' in row "
    """
    dates = texts.map(_is_date).astype(bool)
    if not dates.any() or dates.mean() <= more_than:
        return None
    found = texts[dates]
    others = texts[~dates]
    beside = "" if others.empty else f", beside {others.iloc[0]!r} in row {others.index[0] + 1}"
    return (
        f"holds dates or times, {found.iloc[0]!r} in row {found.index[0] + 1}{beside}; "
        "turn them into numbers, such as days since one of them"
    )


def find_numbers_or_dates(texts: pd.Series[Any]) -> str | None:
    """Return what is the matter with texts that are numbers or dates, however written; None for others.

    Args:
        texts: a column without its missing values, indexed by the numbers of the rows, from 0.

    Example:
        >>> find_numbers_or_dates(pd.Series(["12 %", "7 %"]))[:45]
        "holds numbers as text, '12 %' in row 1; turn "
    """
    found = find_format(texts)
    if isinstance(found, NumberFormat):
        return f"holds numbers as text, {texts.iloc[0]!r} in row {texts.index[0] + 1}; turn them into numbers"
    return found or no_text(texts) or find_dates(texts, more_than=0.99)


def read_written(source: str, name: str, column: pd.Series[Any], form: NumberFormat) -> pd.Series[Any]:
    """Return the numbers of a column that is written in a certain way; a missing value is NaN."""
    numbers, strange = form.read_column(column)
    if len(strange):
        raise TableError(
            f"{source}: column {name!r} must hold numbers {form.example}, as in training, got {str(strange.iloc[0])!r} "
            f"in row {strange.index[0] + 1}"
        )
    return numbers


def _is_grouped(digits: str) -> bool:
    return _GROUPED.fullmatch(digits) is not None


def _is_date(text: str) -> bool:
    close = re.sub(r" ?([-/.]) ", r"\1", text.translate(_SPACES).strip())  # 31. 12. 2024
    return _DATES.fullmatch(close) is not None or _DATES.fullmatch(text.strip()) is not None


def _readings(texts: pd.Series[Any], unit: str) -> Iterator[tuple[NumberFormat, pd.Series[Any]]]:
    """Yield every way to read a whole column."""
    for thousands, decimal in _MARKS:
        form = NumberFormat(thousands, decimal, unit)
        if (numbers := form.read(texts)).notna().all():
            yield form, numbers


def _parts(text: Any) -> tuple[str, str, str] | None:
    """Return sign, digits with their marks, and unit of a written number; None for other texts."""
    found = _PARTS.fullmatch(str(text).translate(_SPACES).strip())
    if found is None or (found["sign"] and found["minus"]) or (found["before"] and found["after"]):
        return None
    if any(mark in found["core"] for mark in " '") and not _is_grouped(found["core"]):
        return None  # a code, such as 123 45
    unit = found["before"] + found["after"]
    if unit and unit not in _UNITS and not any(unicodedata.category(mark) == "Sc" for mark in unit):
        return None
    return found["sign"] + found["minus"], found["core"], unit
