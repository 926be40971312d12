"""The normal form in which texts of a table are compared: what looks the same is the same.

It is used for names of columns, groups and bags, for classes, and for the levels of a feature.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd

# Spaces of any width become a space, full-width letters and digits plain ones, a minus sign a hyphen; invisible marks
# are removed.
_SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_INVISIBLE = "\u00ad\u180e\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
_TABLE = {**dict.fromkeys(map(ord, _SPACES), " "), **dict.fromkeys(map(ord, _INVISIBLE)), 0x2212: "-"}
_TABLE |= {0xFEE0 + ascii: chr(ascii) for ascii in range(0x21, 0x7F)}
_JOINERS = "\u200c\u200d"  # inside a word they shape its letters
TRUTHS = {text: text.capitalize() for text in ("True", "TRUE", "true", "False", "FALSE", "false")}
_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]*)(\.0*)?")


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


def normal_texts(column: pd.Series[Any]) -> pd.Series[Any]:
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


def label_text(value: Any) -> str:
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


def class_text(value: Any) -> str:
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


def check_apart(owner: str, name: str, values: Iterable[Any]) -> None:
    """Check that no two texts among values differ only in invisible characters, such as trailing spaces.

    Raises:
        ValueError: for two such texts.
    """
    seen: dict[str, str] = {}
    for text in (str(value) for value in values if isinstance(value, str)):
        if seen.setdefault(normal_text(text), text) != text:
            raise ValueError(
                f"{owner}: {name} must not hold two texts that read the same, got {seen[normal_text(text)]!r} and "
                f"{text!r}; write them in one way"
            )


def name_texts(column: pd.Series[Any], name: Callable[[Any], str] = label_text) -> pd.Series[Any]:
    """Return the names of the values of a column, such as bags or classes; missing values stay missing."""
    return column.astype(object).map(name, na_action="ignore")


def group_texts(column: pd.Series[Any]) -> pd.Series[Any]:
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
