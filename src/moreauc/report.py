"""A report: numbers as JSON, figures as PNG, and one page that shows both."""

from __future__ import annotations

import html
import json
import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #d5dbe3; }
img { max-width: 100%; } table { border-collapse: collapse; font-size: .8rem; }
.wide { overflow-x: auto; margin: 1rem 0; }
th, td { padding: .2rem .55rem; border-bottom: 1px solid #e3e8ee; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
footer { color: #66717f; font-size: .85rem; margin-top: 3rem; }
"""


@dataclass(frozen=True)
class Section:
    """A part of the page: a heading, paragraphs, and perhaps a figure and a table.

    Attributes:
        heading: its title.
        text: paragraphs.
        figure: name of an image file beside the page.
        caption: what the image shows, also its alternative text.
        columns: heads of the table.
        rows: cells of the table, already formatted.
    """

    heading: str
    text: Sequence[str] = ()
    figure: str | None = None
    caption: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclass
class Report:
    """What a run leaves behind.

    Attributes:
        title: title of the page.
        command: the command that makes it again.
        results: everything measured, plain data for JSON.
        sections: the page.
        seconds: how long it took.
    """

    title: str
    command: str
    results: dict[str, Any]
    sections: list[Section] = field(default_factory=list)
    seconds: float = 0.0

    def write(self, folder: Path) -> Path:
        """Write `report.json` and `index.html` into `folder`; return the page's path."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "title": self.title,
            "command": self.command,
            "versions": versions(),
            "seconds": round(self.seconds, 1),
            **self.results,
        }
        (folder / "report.json").write_text(to_json(content), encoding="utf-8")
        page = folder / "index.html"
        page.write_text(self._page(), encoding="utf-8")
        return page

    def _page(self) -> str:
        parts = [f"<h1>{html.escape(self.title)}</h1>"]
        for section in self.sections:
            parts.append(f"<h2>{html.escape(section.heading)}</h2>")
            parts += [f"<p>{html.escape(paragraph)}</p>" for paragraph in section.text]
            if section.figure is not None:
                alt = html.escape(section.caption, quote=True)
                parts.append(f'<figure><img src="{html.escape(section.figure, quote=True)}" alt="{alt}"></figure>')
            if section.rows:
                parts.append(_table(section.columns, section.rows))
        made = ", ".join(f"{name} {value}" for name, value in versions().items())
        parts.append(
            f"<footer>Made by <code>{html.escape(self.command)}</code> in {self.seconds:.0f} s ({html.escape(made)}). "
            'All numbers: <a href="report.json">report.json</a>.</footer>'
        )
        head = f'<meta charset="utf-8"><title>{html.escape(self.title)}</title><style>{_STYLE}</style>'
        body = "\n".join(parts)
        return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    from moreauc import __version__

    return {"moreauc": __version__, "torch": torch.__version__, "python": platform.python_version()}


def to_json(content: dict[str, Any]) -> str:
    """Return JSON with one line for each entry of the outer two levels, which diffs well and stays short."""
    lines = []
    for key, value in rounded(content).items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            entries = ",\n  ".join(json.dumps(entry, ensure_ascii=False) for entry in value)
            lines.append(f" {json.dumps(key)}: [\n  {entries}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def rounded(value: Any, digits: int = 5) -> Any:
    """Return plain data with floats cut to a few significant digits, and None for what is not a number."""
    if isinstance(value, dict):
        return {str(key): rounded(entry, digits) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(entry, digits) for entry in value]
    if isinstance(value, torch.Tensor):
        return rounded(value.tolist(), digits)
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'
