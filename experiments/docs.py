"""The tables of the documentation, written from reports between markers.

A page has `<!-- begin: NAME -->` and `<!-- end: NAME -->` around a table; NAME is a key of
:data:`experiments.doc_tables.TABLES`.
"""

from __future__ import annotations

import re
from pathlib import Path

from experiments.doc_tables import TABLES
from experiments.engine import write_text

__all__ = ["update_pages"]

ROOT = Path(__file__).parent.parent
_MARKED = re.compile(r"(<!-- begin: (?P<name>[^>]+) -->\n)(?P<text>.*?)(<!-- end: (?P=name) -->)", re.DOTALL)


def update_pages(*, root: Path = ROOT, write: bool = True) -> list[str]:
    """Write every marked table anew; return the pages, and the tables in them, that were not as the reports say.

    Args:
        root: the checkout, with README.md and docs.
        write: whether to write; False only compares.

    Raises:
        ValueError: for a marker without its other half, or with the name of no table.
    """
    changed = []
    for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        found = list(_MARKED.finditer(text))
        if len(found) != text.count("<!-- begin: ") or len(found) != text.count("<!-- end: "):
            raise ValueError(f"docs: {page.name} must have an end for every begin of a table, got one without")
        for match in reversed(found):
            name = match["name"]
            if name not in TABLES:
                raise ValueError(f"docs: {page.name} must name a table of experiments.doc_tables, got {name!r}")
            table = TABLES[name]() + "\n"
            if table != match["text"]:
                changed.append(f"{page.relative_to(root)}, {name}")
                text = text[: match.start("text")] + table + text[match.end("text") :]
        if write and found:
            write_text(page, text)
    return changed
