"""Texts, tables and figures of the convergence study."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.engine import Record
from experiments.files import save_figure
from moreauc.app.report.pages import Section

Parts = dict[str, list[Record]]
TABLE, AVERAGE, PLUG_IN, FULL = ("table, gamma of the theory", "table, moving average", "plug-in", "full subgradient")
COLORS = {TABLE: "#0b6e99", "table, gamma 0.1": "#3fa7a0", AVERAGE: "#8e6bbf", PLUG_IN: "#d1495b", FULL: "#9aa4b1"}
FACTORS = {
    "samples_per_batch": "samples per block, $B_2$",
    "outer_per_batch": "blocks per batch, $B_1$",
    "num_blocks": "blocks in all, $n$",
}
BOUND = ("tau", "lr", "num_blocks", "outer_per_batch", "samples_per_batch")  # identify a run of the bounds
_DPI = 130


def _setting(result: Record) -> list[Any]:
    return [result[name] for name in (*BOUND, "gamma")]


def _pm(pair: Iterable[float | None]) -> str:
    """Format a mean and a standard deviation, which is None for a single run."""
    mean, std = pair
    return f"{mean:.4f}" if std is None else f"{mean:.4f} ± {std:.4f}"


def sections(parts: Parts) -> list[Section]:
    """Return a section for each part."""
    return [_methods(parts["methods"]), _sweeps(parts["sweeps"]), _bounds(parts["bounds"])]


def _methods(results: Sequence[Record]) -> Section:
    text = [
        "Norm of the gradient of the Moreau envelope, mean over seeds, with the band from the 10th to the 90th "
        "percentile. All methods of a panel have the same step sizes; the tables have the same averaging weights. The "
        "full subgradient is a reference: each of its steps uses all data."
    ]
    rows = []
    for r in results:
        numbers = [r["final_stationarity"], r["final_gap"], *(r["gap_of"][name] for name in ("last", "best", "drawn"))]
        rows.append([r["problem"], r["method"], *map(_pm, numbers)])
    columns = ("problem", "method", "stationarity, second half", "gap, second half", "gap: last", "best", "drawn")
    caption = "Four panels, one for each problem: stationarity against samples drawn, both logarithmic"
    return Section("Stationarity against samples", text, "methods.png", caption, columns, rows)


def _sweeps(results: Sequence[Record]) -> Section:
    text = [
        "The bias of the plug-in estimator depends on the samples per block. With more blocks in a batch, or fewer in "
        "all, rows are updated more often."
    ]
    rows = [
        (r["factor"], r["method"], str(r["value"]), _pm(r["final_stationarity"]), _pm(r["final_gap"])) for r in results
    ]
    columns = ("factor", "method", "value", "stationarity, second half", "gap, second half")
    caption = (
        "Three panels: stationarity in the second half of the run against samples per block, blocks per batch and "
        "number of blocks"
    )
    return Section("Batch sizes and number of blocks", text, "sweeps.png", caption, columns, rows)


def _bounds(results: Sequence[Record]) -> Section:
    broken = [_setting(r) for r in results if any(e > b for e, b in zip(r["table_error"], r["bound"], strict=True))]
    holds = f"FAILS for {broken}" if broken else "holds at every recorded step of every setting"
    text = [
        "Mean distance of the rows from the blocks' true values, and the bound of Lemma 16 (theory's gamma) or Lemma "
        "19 (moving average), with constants computed from the data: the largest standard deviation of a block's "
        f"samples at a recorded iterate, the Lipschitz constants, and M = C_f C_g. The bound {holds}."
    ]
    rows = [[*map(str, _setting(r)), f"{r['table_error'][-1]:.4f}", f"{r['bound'][-1]:.4f}"] for r in results]
    columns = ("tau", "lr", "n", "B1", "B2", "gamma", "error at the end", "bound at the end")
    caption = "Six panels, one for each setting: measured table error and the lemma's bound against steps"
    return Section("Table error against the lemmas", text, "bounds.png", caption, columns, rows)


def draw(parts: Parts, out: Path) -> None:
    """Draw a figure for each part."""
    save_figure(_draw_methods(parts["methods"]), out / "methods.png", dpi=_DPI)
    save_figure(_draw_sweeps(parts["sweeps"]), out / "sweeps.png", dpi=_DPI)
    save_figure(_draw_bounds(parts["bounds"]), out / "bounds.png", dpi=_DPI)


def _panel(axis: Axes, **options: str) -> None:
    axis.set(xscale="log", yscale="log", **options)
    axis.grid(alpha=0.25)


def _legend(figure: Figure, columns: int) -> None:
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)


def _draw_methods(results: Sequence[Record]) -> Figure:
    """Stationarity against samples, a panel for each problem."""
    figure = Figure(figsize=(10.5, 7.6), layout="constrained")
    problems = list(dict.fromkeys(r["problem"] for r in results))
    axes = figure.subplots(len(problems) // 2, 2, squeeze=False)
    for axis, problem in zip(axes.flat, problems, strict=True):
        for result in (r for r in results if r["problem"] == problem):
            label, curve, keep = result["method"], result["stationarity"], slice(1, None)  # the start is the same
            samples, style = result["samples"][keep], {"color": COLORS[label], "label": label}
            if label == FULL:
                axis.plot(samples, curve["mean"][keep], linestyle="--", linewidth=1.2, **style)
                continue
            axis.plot(samples, curve["mean"][keep], linewidth=1.8, **style)
            band = curve["low"][keep], curve["high"][keep]
            axis.fill_between(samples, *band, color=COLORS[label], alpha=0.13, linewidth=0)
        _panel(axis, title=problem, xlabel="samples drawn")
    for axis in axes[:, 0]:
        axis.set_ylabel(r"$\|\nabla F_{1/\bar\rho}(w_t)\|$")
    _legend(figure, 4)
    return figure


def _draw_sweeps(results: Sequence[Record]) -> Figure:
    """Stationarity of the second half against each factor."""
    figure = Figure(figsize=(11.5, 3.9), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    for axis, (factor, text) in zip(axes, FACTORS.items(), strict=True):
        own = [r for r in results if r["factor"] == factor]
        for label in (label for label in COLORS if any(r["method"] == label for r in own)):
            rows = [r for r in own if r["method"] == label]
            means, stds = zip(*(r["final_stationarity"] for r in rows), strict=True)
            spread = [std or 0.0 for std in stds]
            values, color = [r["value"] for r in rows], COLORS[label]
            axis.errorbar(values, means, yerr=spread, color=color, label=label, marker="o", capsize=3)
        _panel(axis, xlabel=text)
        ticks = sorted({r["value"] for r in own})
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
    axes[0].set_ylabel("stationarity, second half of the run")
    axes[0].legend(frameon=False, fontsize=9)
    return figure


def _draw_bounds(results: Sequence[Record]) -> Figure:
    """Measured table error and the lemma's bound, a panel for each setting."""
    figure = Figure(figsize=(11.5, 6.4), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for axis, setting in zip(axes.flat, dict.fromkeys(tuple(_setting(r)[:5]) for r in results), strict=True):
        for result in (r for r in results if tuple(_setting(r)[:5]) == setting):
            theory = result["gamma"] == "theory"
            label, width = (TABLE, 3.5) if theory else (AVERAGE, 1.5)  # the two often lie on each other
            steps = [step + 1 for step in result["step"]]
            axis.plot(steps, result["table_error"], color=COLORS[label], linewidth=width, label=f"{label}: measured")
            axis.plot(steps, result["bound"], color=COLORS[label], linestyle="--", label=f"{label}: bound")
        tau, lr, blocks, outer, samples = setting
        axis.set_title(rf"$\tau$={tau:g}, $\eta$={lr:g}, n={blocks}, $B_1$={outer}, $B_2$={samples}", fontsize=10)
        _panel(axis)
    for axis in axes[1]:
        axis.set_xlabel("step + 1")
    for axis in axes[:, 0]:
        axis.set_ylabel("mean table error")
    _legend(figure, 2)
    return figure
