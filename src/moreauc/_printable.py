"""Texts of users, for terminals, logs and figures."""

from __future__ import annotations

import unicodedata

_HIDDEN = {"Cc", "Cs", "Zl", "Zp"}  # controls, half characters of broken names, ends of lines
_TURNS = {*"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}  # the direction of writing


def printable(text: str) -> str:
    r"""Return a text whose characters are all seen: those that would act on a terminal, or have no form, are spelt out.

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
