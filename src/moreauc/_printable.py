"""Texts of users, for terminals, logs and figures."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.text import Text

_HIDDEN = {"Cc", "Cs", "Zl", "Zp"}  # controls, halves of surrogate pairs, line and paragraph separators
_TURNS = {*"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}  # writing direction


def printable(text: str) -> str:
    r"""Return a text with escape codes for characters that would act on a terminal or cannot be seen.

    Example:
        >>> printable("age\x1b[2J")
        'age\\x1b[2J'
    """
    return "".join(
        sign.encode("unicode_escape").decode("ascii")
        if unicodedata.category(sign) in _HIDDEN or sign in _TURNS
        else sign
        for sign in text
    )


def show_as_written(texts: Iterable[Text]) -> None:
    r"""Keep matplotlib from reading texts, such as names of groups, as mathematics (between two dollars) or as TeX.

    Example:
        >>> from matplotlib.figure import Figure
        >>> axes = Figure().subplots()
        >>> show_as_written([axes.set_title(r"$\frac$")])
        >>> axes.title.get_parse_math()
        False
    """
    for text in texts:
        text.set_parse_math(False)
        text.set_usetex(False)
