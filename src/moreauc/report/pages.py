"""A report: numbers as JSON, figures as PNG, and one page that shows both."""

from __future__ import annotations

import base64
import json
import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from moreauc._files import written_whole


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

    @property
    def base64(self) -> str:
        """The picture as text."""
        return base64.b64encode(self.png).decode("ascii")


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
        seconds: how long it took; None where that is not known.
        made_with: versions that the results depend on; None for those of this process.
    """

    title: str
    command: str
    results: dict[str, Any]
    sections: list[Section] = field(default_factory=list)
    seconds: float | None = 0.0
    made_with: dict[str, str] | None = None

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
            "versions": self.made_with or versions(),
            "seconds": None if self.seconds is None else round(self.seconds, 1),
            **self.results,
        }
        _write(folder / "report.json", to_json(content))

    def _page(self) -> str:
        from jinja2 import Environment, PackageLoader  # here: numbers are written without it

        loader = PackageLoader("moreauc.report", ".")
        pages = Environment(loader=loader, autoescape=True, trim_blocks=True, keep_trailing_newline=True)
        made = ", ".join(f"{name} {value}" for name, value in (self.made_with or versions()).items())
        return pages.get_template("page.html.jinja").render(
            title=self.title, command=self.command, sections=self.sections, seconds=self.seconds, versions=made
        )


def _write(file: Path, text: str) -> None:
    with written_whole(file) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")  # names of files may be no UTF-8


def versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    from moreauc._version import __version__

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
