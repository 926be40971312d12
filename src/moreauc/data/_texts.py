"""Numbers and dates that a text file leaves as text: as levels they would lose their order, and most count as rare."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

# A comma stands before decimals or between thousands.
_COMMA = re.compile(r"[+-]?(\d*,\d+|\d{1,3}(\.\d{3})+,\d+|\d{1,3}(,\d{3})+(\.\d+)?)([eE][+-]?\d+)?")
_DATE = re.compile(r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4})([T ]\d.*)?")


def no_text(texts: pd.Series[Any]) -> str | None:
    """Return what is the matter with texts that are numbers or dates, and the remedy; None for others.

    Args:
        texts: a column without its missing values, indexed by the numbers of the rows, from 0.

    Returns:
        What follows the name of the column in an error.

    Example:
        >>> no_text(pd.Series(["0,5", "12,0"]))[:54]
        "holds numbers with a comma, '0,5' in row 1; write them"
        >>> no_text(pd.Series(["A", "B"])) is None
        True
    """
    numbers = texts[_matches(_COMMA, texts)]
    if len(numbers):  # one is enough: numbers and text may not be mixed either
        return (
            f"holds numbers with a comma, {numbers.iloc[0]!r} in row {numbers.index[0] + 1}; "
            "write them with a decimal point and nothing between thousands"
        )
    if _matches(_DATE, texts).all():
        return (
            f"holds dates, {texts.iloc[0]!r} in row {texts.index[0] + 1}; "
            "turn them into numbers, such as days since one of them"
        )
    return None


def _matches(pattern: re.Pattern[str], texts: pd.Series[Any]) -> pd.Series[bool]:
    return texts.map(lambda text: pattern.fullmatch(text.strip()) is not None)
