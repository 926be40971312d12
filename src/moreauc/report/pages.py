"""A report: numbers as JSON, figures as PNG, and one page that shows both."""

from __future__ import annotations

import base64
import html
import json
import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from moreauc._files import written_whole

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430; }
h1 { font-size: 1.7rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #d5dbe3; }
img { max-width: 100%; } table { border-collapse: collapse; font-size: .8rem; }
p { max-width: 60rem; }
.wide { overflow-x: auto; margin: 1rem 0; }
.facts { display: flex; flex-wrap: wrap; gap: .8rem; padding: 0; margin: 1.2rem 0; }
.facts div { flex: 1 1 9rem; padding: .7rem 1rem; border: 1px solid #d5dbe3; border-radius: .5rem; }
.facts dt, .facts small { color: #66717f; font-size: .85rem; }
.facts dd { margin: 0; font-size: 1.6rem; font-weight: 600; }
.facts small { display: block; font-weight: 400; }
.images { display: flex; flex-wrap: wrap; gap: 1.5rem; align-items: flex-start; }
.images figure { margin: 0; flex: 0 1 auto; min-width: 0; }
figcaption { color: #66717f; font-size: .85rem; max-width: 34rem; }
th, td { padding: .2rem .55rem; border-bottom: 1px solid #e3e8ee; text-align: right; white-space: nowrap; }
th.text, td.text { text-align: left; }
footer { color: #66717f; font-size: .85rem; margin-top: 3rem; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True)
class Image:
    """A picture that the page carries inside itself.

    Attributes:
        png: content of a PNG file.
        caption: what it shows, below it and as its alternative text.
        width: width on the page, in pixels, where there is room.
    """

    png: bytes
    caption: str
    width: int


@dataclass(frozen=True)
class Fact:
    """A number to see at once.

    Attributes:
        name: what it is.
        value: the number, formatted.
        note: an interval or a remark, in small.
    """

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page: a heading, facts, paragraphs, and perhaps a figure, a table and pictures, in this order.

    Attributes:
        heading: its title.
        text: paragraphs.
        figure: name of an image file beside the page.
        caption: what the image shows, also its alternative text.
        columns: heads of the table.
        rows: cells of the table, already formatted.
        labels: how many columns of the table, from the left, are text.
        facts: numbers to see at once.
        images: pictures inside the page.
    """

    heading: str
    text: Sequence[str] = ()
    figure: str | None = None
    caption: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    labels: int = 2
    facts: Sequence[Fact] = ()
    images: Sequence[Image] = ()


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

    def write(self, folder: Path, page: str = "index.html") -> Path:
        """Write `report.json` and the page into `folder`; return the page's path."""
        self.write_numbers(folder)
        path = folder / page
        _write(path, self._page())
        return path

    def write_numbers(self, folder: Path) -> None:
        """Write `report.json` into `folder`: before anything is drawn, which may fail, where they took long."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "title": self.title,
            "command": self.command,
            "versions": versions(),
            "seconds": round(self.seconds, 1),
            **self.results,
        }
        _write(folder / "report.json", to_json(content))

    def _page(self) -> str:
        parts = [f"<h1>{html.escape(self.title)}</h1>"]
        for section in self.sections:
            parts.append(f"<h2>{html.escape(section.heading)}</h2>")
            if section.facts:
                parts.append(_facts(section.facts))
            parts += [f"<p>{html.escape(paragraph)}</p>" for paragraph in section.text]
            if section.figure is not None:
                alt = html.escape(section.caption, quote=True)
                parts.append(f'<figure><img src="{html.escape(section.figure, quote=True)}" alt="{alt}"></figure>')
            if section.rows:
                parts.append(_table(section.columns, section.rows, section.labels))
            if section.images:
                parts.append('<div class="images">' + "\n".join(_image(image) for image in section.images) + "</div>")
        made = ", ".join(f"{name} {value}" for name, value in versions().items())
        parts.append(
            f"<footer>Made by <code>{html.escape(self.command)}</code> in {self.seconds:.0f} s ({html.escape(made)}). "
            'All numbers: <a href="report.json">report.json</a>.</footer>'
        )
        head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        head += f"<title>{html.escape(self.title)}</title><style>{_STYLE}</style>"
        body = "\n".join(parts)
        return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _write(file: Path, text: str) -> None:
    with written_whole(file) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")  # names of files may be no UTF-8


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


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], labels: int) -> str:
    head, *body = (
        "<tr>" + "".join(_cell(tag, text, place < labels) for place, text in enumerate(row)) + "</tr>"
        for tag, row in (("th", columns), *(("td", row) for row in rows))
    )
    lines = "\n".join(body)
    return f'<div class="wide"><table><thead>{head}</thead><tbody>\n{lines}\n</tbody></table></div>'


def _cell(tag: str, text: str, label: bool) -> str:
    kind = ' class="text"' if label else ""
    return f"<{tag}{kind}>{html.escape(text)}</{tag}>"


def _facts(facts: Sequence[Fact]) -> str:
    entries = (
        f"<div><dt>{html.escape(fact.name)}</dt><dd>{html.escape(fact.value)}<small>{html.escape(fact.note)}</small></dd></div>"
        for fact in facts
    )
    return f'<dl class="facts">{"".join(entries)}</dl>'


def _image(image: Image) -> str:
    source = f"data:image/png;base64,{base64.b64encode(image.png).decode('ascii')}"
    caption = html.escape(image.caption, quote=True)
    picture = f'<img src="{source}" alt="{caption}" width="{image.width}">'
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"
