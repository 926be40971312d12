"""A report: numbers as JSON, figures as PNG, and one page that shows both. No window is opened for a figure.

matplotlib is loaded when something is drawn: most commands begin, and some end, without it.
"""

from __future__ import annotations

import base64
import io
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike

from moreauc._system import printable, show_as_written, written_whole
from moreauc.metrics import plot_roc_region
from moreauc.train import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from moreauc.app.comparison import Row

COLORS = ("#0b6e99", "#d1495b", "#3fa7a0", "#8e6bbf", "#c98a1b")
_NEGATIVE, _POSITIVE, _QUIET = "#9aa4b1", "#d1495b", "#66717f"
_DPI = 200  # twice the pixels shown, for dense screens
_BINS = 40
_LONGEST = 32  # letters of a name beside a bar


@dataclass(frozen=True)
class Image:
    """A picture that the page carries inside itself."""

    content: bytes  # of a PNG or SVG file
    caption: str  # what it shows, below it and as its alternative text
    width: int  # width on the page, in pixels, where there is room
    kind: str = "png"  # or "svg+xml"

    @property
    def base64(self) -> str:
        """The picture as text."""
        return base64.b64encode(self.content).decode("ascii")


@dataclass(frozen=True)
class Fact:
    """A number to see at once."""

    name: str  # what it is
    value: str  # the number, formatted
    note: str = ""  # an interval or a remark, in small


@dataclass(frozen=True)
class Section:
    """A part of the page: a heading, facts, paragraphs, and perhaps a figure, a table and pictures, in this order."""

    heading: str  # its title
    text: Sequence[str] = ()  # paragraphs
    figure: str | None = None  # name of an image file beside the page
    caption: str = ""  # what the image shows, also its alternative text
    columns: Sequence[str] = ()  # heads of the table
    rows: Sequence[Sequence[str]] = ()  # cells of the table, already formatted
    labels: int = 2  # how many columns of the table, from the left, are text
    facts: Sequence[Fact] = ()  # numbers to see at once
    images: Sequence[Image] = ()  # pictures inside the page


@dataclass
class Report:
    """What a run leaves behind."""

    title: str  # title of the page
    command: str  # the command that makes it again
    results: dict[str, Any]  # everything measured, plain data for JSON
    sections: list[Section] = field(default_factory=list)  # the page
    seconds: float | None = 0.0  # how long it took; None where that is not known
    made_with: dict[str, str] | None = None  # versions that the results depend on; None for those of this process

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

        loader = PackageLoader("moreauc.app.report", ".")
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


def to_json(content: Mapping[str, object]) -> str:
    """Return JSON with one line for each entry of the outer two levels, which diffs well and stays short."""
    lines = []
    for key, value in rounded(content).items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            entries = ",\n  ".join(json.dumps(entry, ensure_ascii=False) for entry in value)
            lines.append(f" {json.dumps(key)}: [\n  {entries}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def rounded(value: object, digits: int = 5) -> Any:
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


def draw_roc(y_true: ArrayLike, y_score: Mapping[str, ArrayLike], *, min_tpr: float, max_fpr: float) -> Image:
    """Draw ROC curves of at most five scores by name, with the region of the partial AUC shaded."""
    figure, axes = new_figure(5.2, 5.2)
    axes.set_prop_cycle(color=COLORS)
    plot_roc_region(y_true, y_score, min_tpr=min_tpr, max_fpr=max_fpr, ax=axes)
    plain_axes(axes)
    *others, last = y_score
    names = f"{', '.join(others)} and {last}" if others else last
    return as_image(figure, f"ROC curve of {names}; the region of the TPAUC is shaded.")


def draw_precision_recall(
    y_true: ArrayLike, y_score: Mapping[str, ArrayLike], *, threshold: float | None = None
) -> Image:
    """Draw precision over recall of at most five scores by name, with dots for decisions by a threshold."""
    from sklearn.metrics import precision_recall_curve

    labels = np.asarray(y_true)
    figure, axes = new_figure(5.2, 5.2)
    for (name, values), color in zip(y_score.items(), COLORS, strict=False):
        scores = np.asarray(values, dtype=float)
        precision, recall, _ = precision_recall_curve(labels, scores, drop_intermediate=True)
        axes.step(recall, precision, where="post", color=color, label=printable(name))
        if threshold is not None and (called := scores > threshold).any():
            axes.plot(called[labels == 1].mean(), labels[called].mean(), "o", color=color, markersize=6)
    share = float(labels.mean())
    axes.axhline(share, color="0.6", linestyle=":", linewidth=1)
    axes.set(xlabel="recall (true positive rate)", ylabel="precision", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    axes.set_aspect("equal")
    show_as_written(axes.legend(frameon=False, loc="best").get_texts())
    plain_axes(axes)
    dots = "" if threshold is None else "; dots: the decisions"
    text = f"Precision and recall{dots}. Random scores have a precision of {share:.3f} (dotted)."
    return as_image(figure, text)


def draw_bars(
    names: Sequence[str], values: Sequence[float], spreads: Sequence[float] | None, *, label: str, caption: str
) -> Image:
    """Draw a number for each name, from top to bottom, with its spread; negative ones in another colour."""
    figure, axes = new_figure(6.4, 0.9 + 0.28 * len(names))
    places = np.arange(len(names))
    below = COLORS[1] if spreads is None else _NEGATIVE  # with a spread it is chance
    colors = [COLORS[0] if value >= 0.0 else below for value in values]
    axes.barh(places, values, height=0.7, color=colors, xerr=spreads, error_kw={"ecolor": _QUIET, "linewidth": 1.2})
    shown = [name if len(name) <= _LONGEST else name[: _LONGEST - 3] + "..." for name in map(printable, names)]
    axes.set_yticks(places, shown)
    show_as_written(axes.get_yticklabels())
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.axvline(0.0, color="#1c2430", linewidth=0.8)
    axes.set_xlabel(label)
    plain_axes(axes, grid="x")
    return as_image(figure, caption)


def draw_histograms(y_true: ArrayLike, y_score: ArrayLike, *, threshold: float | None = None) -> Image:
    """Draw the scores of either class, each as shares of its class, and the threshold of the decision."""
    labels, scores = np.asarray(y_true), np.asarray(y_score, dtype=float)
    figure, axes = new_figure(5.2, 5.2)
    ends = [np.quantile(scores[labels == label], [0.01, 0.99]) for label in np.unique(labels)]
    scores = scores.clip(np.min(ends), np.max(ends))  # some are far out
    edges = np.histogram_bin_edges(scores, bins=_BINS).tolist()
    for label, name, color in ((0, "negatives", _NEGATIVE), (1, "positives", _POSITIVE)):
        members = scores[labels == label]
        weights = np.full(len(members), 1.0 / max(len(members), 1))
        axes.hist(members, edges, weights=weights, color=color, alpha=0.6, label=f"{name} ({len(members)})")
    text = "Scores of the two classes, as shares of their class; the few beyond are in the outermost bars"
    if threshold is not None:
        axes.axvline(threshold, color="#1c2430", linestyle="--", linewidth=1.2, label=f"threshold {threshold:.3g}")
        text += "; right of the dashed line the decision is positive"
    axes.set(xlabel="score", ylabel="share of the class")
    axes.legend(frameon=False)
    plain_axes(axes)
    return as_image(figure, f"{text}.")


def draw_training(
    histories: Mapping[str, History],
    *,
    quantity: str = "validation TPAUC",
    caption: str = "TPAUC on the validation rows after every epoch; the epoch whose weights were kept is dotted.",
    lower_is_better: bool = False,
) -> list[Image]:
    """Draw the objective of the first run and, where there is one, the validation score of all, over the epochs."""
    first = next(iter(histories))
    text = f"Objective of {first}, mean over the steps of every epoch."
    images = [_draw_epochs({first: histories[first]["loss"]}, {}, "objective", text)]
    sign = -1.0 if lower_is_better else 1.0
    lines = {
        name: [sign * row["score"] for row in history.rows if "score" in row] for name, history in histories.items()
    }
    if any(lines.values()):
        best = {name: kept_place(history) for name, history in histories.items()}
        if any(row["phase"] != "train" and "score" in row for history in histories.values() for row in history.rows):
            caption += " The first epochs are those of cross entropy, from whose best one the training starts."
        images.append(_draw_epochs(lines, best, quantity, caption))
    return images


def kept_place(history: History) -> int | None:
    """Return the place of the epoch whose weights were kept among all that have a score, those of a start included.

    Example:
        >>> rows = [{"phase": phase, "score": 0.5} for phase in ("warm start", "warm start", "train")]
        >>> [kept_place(History(rows=rows, best_epoch=best, start_epoch=1)) for best in (-1, 0)]
        [1, 2]
    """
    if history.best_epoch == -1:
        return history.start_epoch
    started = sum(row["phase"] != "train" and "score" in row for row in history.rows)
    return None if history.best_epoch is None else started + history.best_epoch


def _draw_epochs(
    lines: Mapping[str, Sequence[float]], best: Mapping[str, int | None], quantity: str, caption: str
) -> Image:
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure(5.3, 3.6)
    for (name, values), color in zip(lines.items(), COLORS, strict=False):
        axes.plot(range(1, len(values) + 1), values, color=color, label=name, marker="." if len(values) < 3 else None)
        epoch = best.get(name)
        if values and epoch is not None and epoch >= 0:
            axes.plot(epoch + 1, values[epoch], "o", color=color, markersize=6)
    axes.set(xlabel="epoch", ylabel=quantity)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    plain_axes(axes)
    if len(lines) > 1:
        show_as_written(axes.legend(frameon=False).get_texts())
    return as_image(figure, caption)


def draw_comparison(rows: Sequence[Row]) -> Image:
    """Draw the scores of every method in all folds, with their mean and standard deviation, from top to bottom."""
    figure, axes = new_figure(9.6, 0.9 + 0.42 * len(rows))
    for place, row in enumerate(rows):
        color = COLORS[0] if place == 0 else _QUIET
        scores = np.asarray(row["scores"], dtype=float)
        # Equal scores would hide each other: dots are spread a little, by a fixed pattern.
        heights = place + 0.22 * np.sin(2.4 * np.arange(len(scores)))
        axes.plot(scores, heights, "o", color=color, alpha=0.3, markersize=5, markeredgewidth=0)
        axes.errorbar(row["mean"], place, xerr=row["std"], fmt="D", color=color, markersize=7, capsize=4, linewidth=1.6)
    axes.set_yticks(range(len(rows)), [printable(row["title"]) for row in rows])
    show_as_written(axes.get_yticklabels())
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("TPAUC of the folds (dots), mean and standard deviation")
    plain_axes(axes)
    return as_image(figure, "TPAUC of every method: each fold, the mean, and one standard deviation either way.")


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure of so many inches, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def plain_axes(axes: Axes, *, grid: Literal["both", "x", "y"] = "both") -> None:
    """Leave out the frame above and on the right, and draw a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, alpha=0.25)
    axes.set_axisbelow(True)


def as_image(figure: Figure, caption: str) -> Image:
    """Return a figure as a picture for a page, 100 pixels wide for each inch."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
    return Image(buffer.getvalue(), caption, round(100 * figure.get_figwidth()))
