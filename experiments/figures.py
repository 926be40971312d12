"""The figures of an experiment: test scores of all methods, and training curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from scipy.optimize import isotonic_regression

from experiments.config import Candidate, Experiment
from experiments.tables import Cell, Curve, Table, is_ours, title_of
from moreauc.app.report.pages import COLORS

_QUIET, _REMEDY, _RECIPE = "#66717f", COLORS[3], COLORS[2]
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_NEAR = 0.062  # labels of curves are at least so far apart, as a share of the height


def draw_table(table: Table) -> Figure:
    """Draw a table: a panel for each data set and region, a row for each method that the table has.

    A dot is a run (or a test split), the filled diamond their mean with one standard deviation either way, the hollow
    diamond the published mean. Runs without a score are counted at the right.
    """
    datasets = [entry for entry in table.datasets if table.has_runs(entry.name)]
    rows, regions = [table.run_on(entry.name) for entry in datasets], table.plan.regions
    heights = [0.75 + 0.27 * len(methods) for methods in rows]
    figure = Figure(figsize=(2.2 + 3.1 * len(regions), sum(heights) + 0.7), layout="constrained")
    grid = figure.subplots(len(rows), len(regions), squeeze=False, sharey="row", height_ratios=heights)
    for panels, dataset, methods in zip(grid, datasets, rows, strict=True):
        for column, axes in enumerate(panels):
            for place, entry in enumerate(methods):
                _draw_cell(axes, place, entry, table.cell(dataset.name, entry.name, column))
            low, high = regions[column]
            left, right = axes.get_xlim()
            axes.set_xlim(max(left, -0.04), min(right, 1.04))  # a spread may leave the range of scores
            axes.set_title(f"{dataset.title}, TPR ≥ {low:g}, FPR ≤ {high:g}", fontsize=9.5)
            _plain(axes)
        panels[0].set_yticks(range(len(methods)), [title_of(entry) for entry in methods])
        panels[0].set_ylim(len(methods) - 0.5, -0.5)
    for axes in grid[-1]:
        axes.set_xlabel("test TPAUC")
    _legend(figure, table)
    return figure


def _color(entry: Candidate) -> str:
    if is_ours(entry):
        return _REMEDY if entry.remedy else _RECIPE if entry.recipe else COLORS[0]
    return _QUIET


def _draw_cell(axes: Axes, place: int, entry: Candidate, cell: Cell) -> None:
    color, scores = _color(entry), np.array(list(cell.values.values()))
    if len(scores):
        # equal scores would hide each other: dots are spread a little, by a fixed pattern
        heights = place + 0.2 * np.sin(2.4 * np.arange(len(scores)))
        axes.plot(scores, heights, "o", color=color, alpha=0.35, markersize=4, markeredgewidth=0)
        spread = 0.0 if cell.std is None else cell.std
        axes.errorbar(scores.mean(), place, xerr=spread, fmt="D", color=color, markersize=5.5, capsize=3, linewidth=1.4)
    if cell.failed:
        right = axes.get_yaxis_transform()
        style: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": 7.5, "color": color}
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85}
        axes.text(0.99, place, f"{cell.failed} lost", transform=right, bbox=behind, **style)
    if cell.published is not None:
        axes.plot(
            cell.published[0], place, "D", markerfacecolor="none", markeredgecolor=COLORS[1], markersize=9, zorder=4
        )


def _legend(figure: Figure, table: Table) -> None:
    unit = "a run" if table.protocol == "runs" else "a test split"
    filled: dict[str, Any] = {"marker": "D", "linestyle": "-", "markersize": 5.5}
    handles = [
        Line2D([], [], color=COLORS[0], label="ours: mean ± standard deviation", **filled),
        Line2D([], [], color=_QUIET, label="baselines", **filled),
        Line2D([], [], color=_QUIET, marker="o", linestyle="", alpha=0.5, markersize=4, label=unit),
    ]
    if any(entry.recipe for entry in table.methods):
        handles.insert(1, Line2D([], [], color=_RECIPE, label="ours, recipe", **filled))
    if any(entry.remedy for entry in table.methods):
        handles.insert(1, Line2D([], [], color=_REMEDY, label="ours, remedies", **filled))
    if any(cell.published is not None for cell in table.cells.values()):
        hollow: dict[str, Any] = {"marker": "D", "linestyle": "", "markersize": 8, "markerfacecolor": "none"}
        handles.append(Line2D([], [], markeredgecolor=COLORS[1], label="published mean", **hollow))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=9)


def draw_curves(plan: Experiment, curves: Sequence[Curve]) -> Figure:
    """Draw the TPAUC of the training rows against epochs, mean and standard deviation; a panel for each data set."""
    datasets = list(dict.fromkeys(curve.dataset for curve in curves))
    figure = Figure(figsize=(1.0 + 5.2 * len(datasets), 4.2), layout="constrained")
    grid = figure.subplots(1, len(datasets), squeeze=False)[0]
    for axes, dataset in zip(grid, datasets, strict=True):
        own = [curve for curve in curves if curve.dataset == dataset]
        for number, curve in enumerate(own):
            _draw_curve(axes, curve, COLORS[number % len(COLORS)], _STYLES[number % len(_STYLES)])
        _plain(axes)
        axes.set_xlabel("epoch")
        axes.set_title(plan.datasets[dataset].title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _label_lines(axes, own)
    if plan.ablation is not None:
        low, high = plan.ablation.region
        grid[0].set_ylabel(f"training TPAUC, TPR ≥ {low:g}, FPR ≤ {high:g}")
    return figure


def _draw_curve(axes: Axes, curve: Curve, color: str, style: Any) -> None:
    epochs = np.arange(1, len(curve.training) + 1)
    mean, spread = curve.training.T
    marker = "o" if len(epochs) == 1 else None
    axes.plot(epochs, mean, color=color, linestyle=style, linewidth=1.8, marker=marker)
    axes.fill_between(epochs, mean - spread, mean + spread, color=color, alpha=0.12, linewidth=0)


def _label_lines(axes: Axes, curves: Sequence[Curve]) -> None:
    """Write the name of each curve to the right of its end, moved where ends are near."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    ends = []
    for number, curve in enumerate(curves):
        finite = curve.training[np.isfinite(curve.training[:, 0]), 0]
        ends.append(((finite[-1] - low) / (high - low) if len(finite) else 0.0, number))
    order = sorted(ends)
    broken = [curves[number].diverged > 0 for _, number in order]  # these labels have two lines
    heights = _apart([height for height, _ in order], [_NEAR * (2.0 if two else 1.0) for two in broken])
    for height, (_, number) in zip(heights, order, strict=True):
        curve = curves[number]
        text = curve.label + (f"\n({curve.diverged} of {curve.runs} diverged)" if curve.diverged else "")
        axes.annotate(
            text,
            (1.0, height),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            color=COLORS[number % len(COLORS)],
            verticalalignment="center",
            fontsize=9.5,
        )


def _apart(heights: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Return the middles of labels of these sizes, moved apart as little as possible; shares of a panel's height."""
    between = np.concatenate([[0.0], np.cumsum((np.array(sizes[:-1]) + np.array(sizes[1:])) / 2.0)])
    # moved down by what is below them, labels may touch, and need only stay in order
    moved = isotonic_regression(np.array(heights) - between).x + between
    return [float(height) for height in moved - max(moved[-1] - 1.0, 0.0)]


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
