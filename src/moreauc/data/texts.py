"""Texts of tables: a normal form, in which texts that look the same are equal, and numbers and dates among them.

The normal form is used for names of columns, groups and bags, for classes, and for the levels of a feature.
A column is read as numbers only where all of its values are plain ones: a unit, a comma or a mark between thousands is
an error. Functions that look for an error return its text from after the name of the column, with the remedy. Rows are
counted from 1.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from numbers import Integral, Real

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype

# Spaces of any width become a space, full-width letters and digits plain ones, a minus sign a hyphen; invisible marks
# are removed.
_SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_INVISIBLE = "\u00ad\u180e\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
_TABLE = {**dict.fromkeys(map(ord, _SPACES), " "), **dict.fromkeys(map(ord, _INVISIBLE)), 0x2212: "-"}
_TABLE |= {0xFEE0 + ascii: chr(ascii) for ascii in range(0x21, 0x7F)}
_JOINERS = "\u200c\u200d"  # inside a word they shape its letters
TRUTHS = {text: text.capitalize() for text in ("True", "TRUE", "true", "False", "FALSE", "false")}
_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]*)(\.0*)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_EXACT = 2**53  # up to here a float holds every integer
_ROUNDS_CORRECTLY = int(pd.__version__.partition(".")[0]) >= 3  # earlier pandas reads texts up to an ulp beside
_LOSS = 1e-6  # of the range of a column; networks resolve about 1e-7 of it
# A comma stands before decimals or between thousands.
_COMMA = re.compile(r"[+-]?(\d*,\d+|\d{1,3}(\.\d{3})+,\d+|\d{1,3}(,\d{3})+(\.\d+)?)([eE][+-]?\d+)?")
_PLAIN_DATE = re.compile(r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4})([T ]\d.*)?")
_CODES = (
    "USD EUR GBP CHF JPY CNY RMB INR AUD CAD NZD SEK NOK DKK ISK PLN CZK HUF RON BGN RUB UAH TRY ILS ZAR BRL MXN ARS "
    "CLP COP PEN KRW HKD SGD TWD THB IDR MYR PHP VND AED SAR EGP NGN KES Fr. Fr SFr. kr kr. zł Kč Rs Rs."
)
_UNITS = frozenset([*_CODES.split(), "%", "‰"])
_PLAIN_MARKS = str.maketrans(dict.fromkeys("\u00a0\u2007\u2009\u202f", " ") | {"\u2019": "'", "\u2212": "-"})
_PARTS = re.compile(
    r"(?P<sign>[+-]?) ?(?P<before>[^\d+\-., ']*) ?(?P<minus>[+-]?)(?P<core>[0-9., ']*[0-9]) ?(?P<after>.*)"
)
_GROUPED = re.compile(r"[1-9][0-9]{0,2}(?:( [0-9]{3})+|('[0-9]{3})+)(?:[.,][0-9]+)?")  # by spaces or apostrophes
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
# 2024-12-31, and with a time of day, and with the offset of that to UTC
_ISO = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?P<offset>Z|[+-]\d{2}(?::?\d{2})?)?)?", re.ASCII
)


class Kind(StrEnum):
    """What a column holds."""

    NUMBER = "number"
    TEXT = "text"  # texts, and truth values and categories of a DataFrame: each is a level
    DATE = "date"  # with or without a time of day
    ZONED_DATE = "date with offset"


def normal_text(text: str) -> str:
    r"""Return a text without spaces around it, in Unicode's composed form (NFC), with plain spaces and signs.

    Example:
        >>> normal_text("\u00a0cafe\u0301 1\u200b\r\n"), normal_text("New\u00a0York")
        ('café 1', 'New York')
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.isascii():
        return text.strip()
    text = unicodedata.normalize("NFC", text.translate(_TABLE)).strip()
    while text != (shorter := text.strip(_JOINERS).strip()):
        text = shorter
    return text


def normal_texts(column: pd.Series) -> pd.Series:
    """Return a column with its texts in normal form; other values stay, and a text of spaces only is missing."""
    codes, values = pd.factorize(column)
    found = [normal_text(value) or None if isinstance(value, str) else value for value in values]
    names = np.empty(len(found) + 1, dtype=object)
    names[:-1], names[-1] = found, None  # the code of a missing value is -1
    return pd.Series(names[codes], index=column.index, name=column.name, dtype=column.dtype)


def normal_fields(fields: Sequence[str]) -> Sequence[str]:
    """Return the fields of a column of a text file in normal form."""
    joined = "".join(fields)
    if joined.isascii() and joined.split(None, 1) == [joined]:  # numbers, mostly: no space anywhere
        return fields
    known = {text: normal_text(text) for text in set(fields)}
    return [known[text] for text in fields]


def label_text(value: object) -> str:
    """Return the name of a class, group, bag or level; 1 and 1.0 are the same, integers of any size are not rounded.

    Example:
        >>> label_text(1.0), label_text("yes "), label_text(True), label_text(2**53 + 1)
        ('1', 'yes', 'True', '9007199254740993')
    """
    if isinstance(value, str):
        return normal_text(value)
    if isinstance(value, bool | np.bool_):
        return str(value)
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real) and float(value).is_integer():
        return str(int(float(value)))
    if isinstance(value, Decimal) and value.is_finite():
        return str(int(value)) if value == value.to_integral_value() else f"{value.normalize():f}"
    return str(value)


def class_text(value: object) -> str:
    """Return the name of a class: its text, but whole numbers and truth values are spelt in one way.

    So 1, +1 and 1.0 are one class wherever they come from, while 01 is another one.

    Example:
        >>> class_text("1.0"), class_text("+1"), class_text("01"), class_text("TRUE")
        ('1', '1', '01', 'True')
    """
    text = label_text(value)
    if _WHOLE.fullmatch(text):
        sign = "-" if text[0] == "-" and text.strip("-0.") else ""
        return sign + text.lstrip("+-").split(".")[0]
    return TRUTHS.get(text, text)


def check_apart(owner: str, name: str, values: Iterable[object]) -> None:
    """Check that no two texts among values differ only in invisible characters, such as trailing spaces."""
    seen: dict[str, str] = {}
    for text in (str(value) for value in values if isinstance(value, str)):
        if seen.setdefault(normal_text(text), text) != text:
            raise ValueError(
                f"{owner}: {name} must not hold two texts that read the same, got {seen[normal_text(text)]!r} and "
                f"{text!r}; write them in one way"
            )


MAJORITY = 0.6  # share of the positive class above which a user is told: it is rarely the one meant


def positive_class(counts: Mapping[str, int]) -> tuple[str | None, str]:
    """Return the positive one of two classes, given their texts and how often each occurs, and the reason.

    It is 1 of 0 and 1 and of -1 and 1, True of False and True, and the rarer one of others; None where these are equal.

    Example:
        >>> positive_class({"good": 90, "bad": 10}), positive_class({"0": 10, "1": 90})
        (('bad', 'the rarer of two values'), ('1', 'of 0 and 1'))
    """
    for pair in (("0", "1"), ("False", "True"), ("-1", "1")):
        if set(counts) == set(pair):
            return pair[1], f"of {pair[0]} and {pair[1]}"
    rarer, other = sorted(counts, key=lambda text: counts[text])
    return (None, "") if counts[rarer] == counts[other] else (rarer, "the rarer of two values")


def name_texts(column: pd.Series, name: Callable[[object], str] = label_text) -> pd.Series:
    """Return the names of the values of a column, such as bags or classes; missing values stay missing."""
    return column.astype(object).map(name, na_action="ignore")


def group_texts(column: pd.Series) -> pd.Series:
    """Return the names of groups that a column has.

    Truth values are spelt in one way. Where each text ends in ".0", as pandas writes whole numbers of a column that
    once had a gap, that ending is left out.

    Example:
        >>> group_texts(pd.Series(["1.0", "2.0"])).tolist(), group_texts(pd.Series(["1.0", "01"])).tolist()
        (['1', '2'], ['1.0', '01'])
    """
    texts = name_texts(column).replace(TRUTHS)
    whole = texts.dropna().map(lambda text: re.fullmatch(r"-?[0-9]+\.0", text) is not None).all()
    return texts.map(lambda text: text.removesuffix(".0"), na_action="ignore") if whole else texts


# Types of columns


def type_column(column: pd.Series) -> pd.Series:
    """Return a column as numbers where all of its texts are numbers, and as bools where all are.

    Integers beyond 2^53 beside missing values, integers beyond 64 bits, and decimals that a float cannot tell apart
    come as Python's own numbers, which are exact.

    Example:
        >>> type_column(pd.Series(["1", "2.5"])).tolist(), type_column(pd.Series(["1", "x"])).tolist()
        ([1.0, 2.5], ['1', 'x'])
    """
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


def is_number(column: pd.Series) -> bool:
    """Return whether a column holds real numbers, Python's own included; truth values are numbers."""
    if column.dtype.kind == "O" and not isinstance(column.dtype, pd.CategoricalDtype):
        return infer_dtype(column, skipna=True) in ("integer", "decimal")
    return pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_complex_dtype(column.dtype)


def holds_dates(column: pd.Series) -> bool:
    """Return whether a column holds dates, with or without a time of day; at least one."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return False
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return True
    return infer_dtype(column, skipna=True) in ("date", "datetime", "datetime64")


def lost_in_floats(column: pd.Series) -> str | None:
    """Return the error of numbers that lie closer together than floats of their size; None for others."""
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


def _numbers(texts: pd.Series) -> pd.Series | None:
    """Return the numbers that texts are; None where one is not."""
    try:
        numbers: pd.Series = pd.to_numeric(texts)
        if numbers.dtype.kind in "iu":
            return numbers
        exact = _ROUNDS_CORRECTLY and numbers.dtype.kind == "f"
        floats = numbers if exact else texts.map(float).astype(float)
    except ValueError:  # pandas 2 raises it for integers beyond 64 bits, too
        if not _are_integers(texts):
            return None
        floats = texts.map(float).astype(float)
    low, high = floats.min(), floats.max()
    if not np.isfinite([low, high]).all() or (high - low) * _LOSS >= max(-low, high) / _EXACT:
        return floats
    if _are_integers(texts):  # beyond 64 bits
        return texts.map(lambda text: int(Decimal(text))).astype(object)
    return floats if texts.nunique() == 1 else texts.map(Decimal).astype(object)


def _are_integers(texts: pd.Series) -> bool:
    return bool(texts.map(lambda text: _INTEGER.fullmatch(text) is not None).all())


def _largest(integers: pd.Series) -> int:
    """Return the largest magnitude of integers, which for the lowest int64 is no int64."""
    return max(abs(int(integers.min())), abs(int(integers.max())))


# Numbers and dates among texts


def distinct_texts(column: pd.Series) -> pd.Series:
    """Return the different texts of a column, each with its first row; none where it holds anything but text."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    if pd.api.types.is_object_dtype(column.dtype) or pd.api.types.is_string_dtype(column.dtype):
        present = column.dropna().astype(object)
        if present.map(lambda value: isinstance(value, str)).all():
            return present.drop_duplicates()
    return pd.Series([], dtype=object)


def find_written_numbers(texts: pd.Series) -> str | None:
    """Return the error of a column with a number that has a unit, a comma or marks between thousands; None for others.

    Example:
        >>> find_written_numbers(pd.Series(["none", "1,5 %"]))
        "holds numbers with a unit, a comma or marks between thousands, '1,5 %' in row 2; write plain numbers, ..."
        >>> find_written_numbers(pd.Series(["123 45", "5 mg"])) is None
        True
    """
    numbers = texts[texts.map(_is_written_number).astype(bool)]
    if numbers.empty:  # one is enough: numbers and text may not be mixed either
        return None
    return (
        f"holds numbers with a unit, a comma or marks between thousands, {_shown(numbers)}; write plain numbers, with "
        "a decimal point"
    )


def find_dates(texts: pd.Series, *, more_than: float = 0.5) -> str | None:
    """Return the error of a column with more than a share of dates or times, of any kind; None for others."""
    dates = texts.map(_is_date).astype(bool)
    if not dates.any() or dates.mean() <= more_than:
        return None
    others = texts[~dates]
    beside = "" if others.empty else f", beside {_shown(others)}"
    return (
        f"holds dates or times, {_shown(texts[dates])}{beside}; turn them into numbers, such as days since one of them"
    )


def iso_kind(texts: pd.Series) -> Kind | None:
    """Return the kind of a column all of whose texts are dates as ISO 8601 has them, None for others.

    Example:
        >>> iso_kind(pd.Series(["2024-12-31", "2024-12-31 23:59"])), iso_kind(pd.Series(["2024-12-31T12:00Z"]))
        (<Kind.DATE: 'date'>, <Kind.ZONED_DATE: 'date with offset'>)
        >>> iso_kind(pd.Series(["2024-12-31", "31.12.2024"])) is None
        True
    """
    kinds = set(map(date_kind, texts))
    return kinds.pop() if len(kinds) == 1 else None


def date_kind(text: object) -> Kind | None:
    """Return the kind of one text that is a date as ISO 8601 has it, None for others."""
    match = _ISO.fullmatch(text) if isinstance(text, str) else None
    return None if match is None else Kind.DATE if match["offset"] is None else Kind.ZONED_DATE


def find_numbers_or_dates(texts: pd.Series) -> str | None:
    """Return the error of texts that are numbers or dates, however written; None for others."""
    return find_written_numbers(texts) or find_dates(texts, more_than=0.99)


def _shown(texts: pd.Series) -> str:
    """Return the first of some texts, with its row."""
    return f"{texts.iloc[0]!r} in row {texts.index[0] + 1}"


def _is_date(text: str) -> bool:
    close = re.sub(r" ?([-/.]) ", r"\1", text.translate(_PLAIN_MARKS).strip())  # 31. 12. 2024
    return any(pattern.fullmatch(form) for pattern in (_DATES, _PLAIN_DATE) for form in (close, text.strip()))


def _is_written_number(text: str) -> bool:
    if _COMMA.fullmatch(text.strip()):
        return True
    found = _PARTS.fullmatch(text.translate(_PLAIN_MARKS).strip())
    if found is None or (found["sign"] and found["minus"]) or (found["before"] and found["after"]):
        return False
    grouped = _GROUPED.fullmatch(found["core"]) is not None
    if any(mark in found["core"] for mark in " '") and not grouped:
        return False  # a code, such as 123 45
    unit = found["before"] + found["after"]
    if not unit:
        return grouped
    return unit in _UNITS or any(unicodedata.category(mark) == "Sc" for mark in unit)
