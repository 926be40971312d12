"""Names in figures: of groups, bags, methods, columns and files, shown as they are written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.text import Text


def show_as_written(texts: Iterable[Text]) -> None:
    r"""Keep matplotlib from reading texts as mathematics, which it does between two dollars, or as TeX.

    Every text of a figure that may hold a name of a user's goes through here.

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
