"""What the texts of a column are: numbers (also as people write them), truth values, dates, or words.

A column is read as numbers only where all of its values are written in one way that leaves no doubt about any of them:
with a currency, a percent sign or spaces between thousands, say. Functions that return a text return what follows the
name of the column in an error, with the remedy. Rows are counted from 1.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype

from moreauc.data.texts import TRUTHS

_INTEGER = re.compile(r"[+-]?[0-9]+")
_EXACT = 2**53  # up to here a float holds every integer
_LOSS = 1e-6  # of the range of a column; networks resolve about 1e-7 of it

# A comma stands before decimals or between thousands.
_COMMA = re.compile(r"[+-]?(\d*,\d+|\d{1,3}(\.\d{3})+,\d+|\d{1,3}(,\d{3})+(\.\d+)?)([eE][+-]?\d+)?")
_PLAIN_DATE = re.compile(r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4})([T ]\d.*)?")

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


# Types of columns


def type_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose text columns hold numbers where all their texts are numbers, and bools where all are.

    Integers beyond 2^53 beside missing values, integers beyond 64 bits, and decimals that a float cannot tell apart
    come as Python's own numbers, which are exact.

    Example:
        >>> table = type_columns(pd.DataFrame({"a": ["1", "2.5"], "b": ["true", "FALSE"], "c": ["1", "x"]}))
        >>> table["a"].tolist(), table["b"].tolist(), table["c"].tolist()
        ([1.0, 2.5], [True, False], ['1', 'x'])
    """
    return pd.DataFrame({name: type_column(frame[name]) for name in frame}, index=frame.index)


def type_column(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return one column of :func:`type_columns`."""
    if isinstance(column.dtype, pd.CategoricalDtype) or column.dtype.kind not in "OUT":
        return column
    present, content = column.dropna(), infer_dtype(column, skipna=True)
    if content == "decimal" and present.map(lambda value: value == value.to_integral_value()).all():
        found = present.map(int).astype(object)
    elif content == "string" and present.isin(list(TRUTHS)).all():
        found = (present.map(TRUTHS) == "True").astype(bool)
    elif content == "string" and (numbers := _numbers(present)) is not None:
        found = numbers
    else:
        return column
    if len(found) == len(column):
        return found
    exact = found.dtype.kind in "iu" and _largest(found) > _EXACT
    values = np.full(len(column), np.nan, dtype=object if exact or found.dtype.kind not in "iuf" else float)
    values[column.notna().to_numpy()] = found.to_numpy(dtype=values.dtype)
    return pd.Series(values, index=column.index, name=column.name)


def is_number(column: pd.Series[Any]) -> bool:
    """Return whether a column holds real numbers, Python's own included; truth values are numbers."""
    if column.dtype.kind == "O" and not isinstance(column.dtype, pd.CategoricalDtype):
        return infer_dtype(column, skipna=True) in ("integer", "decimal")
    return pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_complex_dtype(column.dtype)


def lost_in_floats(column: pd.Series[Any]) -> str | None:
    """Return the error of numbers that lie closer together than floats of their size; None for others.

    Example:
        >>> lost_in_floats(pd.Series([2**60 + 1, 2**60 + 2]))[:73]
        'holds numbers too close together for their size, from 1152921504606846977'
        >>> lost_in_floats(pd.Series([2**60 + 1, 1])) is None
        True
    """
    if isinstance(column.dtype, pd.CategoricalDtype) or column.dtype.kind not in "iuO" or not is_number(column):
        return None
    if column.dtype.kind != "O" and column.notna().any() and _largest(column.dropna()) <= _EXACT:
        return None
    exact = [value if isinstance(value, Decimal) else int(value) for value in column.dropna().unique()]
    if not exact:
        return None
    low, high, floats = min(exact), max(exact), [float(value) for value in exact]
    loss = max(abs(Fraction(value) - Fraction(number)) for value, number in zip(exact, floats, strict=True))
    merged = len(set(floats)) <= len(exact) / 2  # apart from a few far away, such as -1 for unknown
    if low == high or (loss <= _LOSS * (Fraction(high) - Fraction(low)) and not merged):
        return None
    return (
        f"holds numbers too close together for their size, from {low} to {high}, which floating point cannot tell "
        "apart; subtract a constant from them"
    )


def _numbers(texts: pd.Series[Any]) -> pd.Series[Any] | None:
    """Return the numbers that texts are; None where one is not."""
    try:
        numbers: pd.Series[Any] = pd.to_numeric(texts)
        if numbers.dtype.kind in "iu":
            return numbers
        floats = texts.map(float).astype(float) if numbers.dtype.kind != "f" else numbers
    except ValueError:
        return None
    low, high = floats.min(), floats.max()
    if not np.isfinite([low, high]).all() or (high - low) * _LOSS >= max(-low, high) / _EXACT:
        return floats
    if texts.map(lambda text: _INTEGER.fullmatch(text) is not None).all():  # beyond 64 bits
        return texts.map(lambda text: int(Decimal(text))).astype(object)
    return floats if texts.nunique() == 1 else texts.map(Decimal).astype(object)


def _largest(integers: pd.Series[Any]) -> int:
    """Return the largest magnitude of integers, which for the lowest int64 is no int64."""
    return max(abs(int(integers.min())), abs(int(integers.max())))


# Numbers and dates among texts


def distinct_texts(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return the different texts of a column, each with its first row; none where it holds anything but text."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    if pd.api.types.is_object_dtype(column.dtype) or pd.api.types.is_string_dtype(column.dtype):
        present = column.dropna().astype(object)
        if present.map(lambda value: isinstance(value, str)).all():
            return present.drop_duplicates()
    return pd.Series([], dtype=object)


def find_comma_or_dates(texts: pd.Series[Any]) -> str | None:
    """Return the error of a column with a number that has a comma, or of plain dates only; None for others.

    Example:
        >>> find_comma_or_dates(pd.Series(["0,5", "12,0"]))[:54]
        "holds numbers with a comma, '0,5' in row 1; write them"
        >>> find_comma_or_dates(pd.Series(["A", "B"])) is None
        True
    """
    numbers = texts[_matches(_COMMA, texts)]
    if len(numbers):  # one is enough: numbers and text may not be mixed either
        return (
            f"holds numbers with a comma, {_shown(numbers)}; "
            "write them with a decimal point and nothing between thousands"
        )
    if _matches(_PLAIN_DATE, texts).all():
        return f"holds dates, {_shown(texts)}; turn them into numbers, such as days since one of them"
    return None


def find_dates(texts: pd.Series[Any], *, more_than: float = 0.5) -> str | None:
    """Return the error of a column with more than a share of dates or times, of any kind; None for others.

    Example:
        >>> find_dates(pd.Series(["31.12.24", "1.1.25"]))[:40]
        "holds dates or times, '31.12.24' in row "
    """
    dates = texts.map(_is_date).astype(bool)
    if not dates.any() or dates.mean() <= more_than:
        return None
    others = texts[~dates]
    beside = "" if others.empty else f", beside {_shown(others)}"
    return (
        f"holds dates or times, {_shown(texts[dates])}{beside}; turn them into numbers, such as days since one of them"
    )


def find_numbers_or_dates(texts: pd.Series[Any]) -> str | None:
    """Return the error of texts that are numbers or dates, however written; None for others.

    Example:
        >>> find_numbers_or_dates(pd.Series(["12 %", "7 %"]))[:45]
        "holds numbers as text, '12 %' in row 1; turn "
    """
    found = find_format(texts)
    if isinstance(found, NumberFormat):
        return f"holds numbers as text, {_shown(texts)}; turn them into numbers"
    return found or find_comma_or_dates(texts) or find_dates(texts, more_than=0.99)


def _shown(texts: pd.Series[Any]) -> str:
    """Return the first of some texts, with its row."""
    return f"{texts.iloc[0]!r} in row {texts.index[0] + 1}"


def _matches(pattern: re.Pattern[str], texts: pd.Series[Any]) -> pd.Series[bool]:
    return texts.map(lambda text: pattern.fullmatch(text.strip()) is not None)


def _is_date(text: str) -> bool:
    close = re.sub(r" ?([-/.]) ", r"\1", text.translate(_SPACES).strip())  # 31. 12. 2024
    return _DATES.fullmatch(close) is not None or _DATES.fullmatch(text.strip()) is not None


# Numbers as people write them


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


def find_format(texts: pd.Series[Any]) -> NumberFormat | str | None:
    """Return how the numbers of a column are written, or the error; None where there are none.

    A column without units and without spaces or apostrophes between thousands is not looked at: what has commas or
    points only is for :func:`find_comma_or_dates`.

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
    shown = _shown(texts[written])
    if parts.isna().any():
        return f"mixes numbers and text: {shown}, {_shown(texts[parts.isna()])}; {remedy}"
    strange = texts[parts.map(lambda found: found[2]) != parts[first][2]]
    if len(strange):
        return f"holds numbers in different units: {shown}, {_shown(strange)}; {remedy}"
    readings = list(_readings(texts, parts[first][2]))
    if not readings:
        return f"holds numbers that are not all written in one way, such as {shown}; {remedy}"
    form, numbers = readings[0]
    for _, others in readings[1:]:
        if len(differing := texts[(numbers != others).to_numpy()]):
            return f"holds numbers that can be read in two ways, {_shown(differing)}; {remedy}"
    return form


def _readings(texts: pd.Series[Any], unit: str) -> Iterator[tuple[NumberFormat, pd.Series[Any]]]:
    """Yield every way to read a whole column."""
    for thousands, decimal in _MARKS:
        form = NumberFormat(thousands, decimal, unit)
        if (numbers := form.read(texts)).notna().all():
            yield form, numbers


def _is_grouped(digits: str) -> bool:
    return _GROUPED.fullmatch(digits) is not None


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
