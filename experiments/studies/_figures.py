"""The figures of the studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moreauc._files import written_whole

COLORS = {
    "table, gamma of the theory": "#0b6e99",
    "table, gamma 0.1": "#3fa7a0",
    "table, moving average": "#8e6bbf",
    "plug-in": "#d1495b",
    "full subgradient": "#9aa4b1",
}
FACTORS = {
    "samples_per_batch": "samples per block, $B_2$",
    "outer_per_batch": "blocks per batch, $B_1$",
    "num_blocks": "blocks in all, $n$",
}
_DPI = 130


def pyplot() -> Any:
    """Return matplotlib's pyplot without a display."""
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.use("Agg")
    return plt


def draw_methods(results: list[dict[str, Any]], path: Path) -> None:
    """Stationarity against samples, a panel for each problem."""
    plt = pyplot()
    problems = list(dict.fromkeys(r["key"][0] for r in results))
    figure, axes = plt.subplots(2, 2, figsize=(10.5, 7.6), layout="constrained")
    for axis, problem in zip(axes.flat, problems, strict=True):
        for result in results:
            if result["key"][0] != problem:
                continue
            label = result["key"][1]
            curve, samples = result["stationarity"], result["samples"]
            keep = slice(1, None)  # the start is the same for all
            style = {"linestyle": "--", "linewidth": 1.2} if label == "full subgradient" else {"linewidth": 1.8}
            axis.plot(samples[keep], curve["mean"][keep], color=COLORS[label], label=label, **style)
            if label != "full subgradient":
                low, high = curve["low"][keep], curve["high"][keep]
                axis.fill_between(samples[keep], low, high, color=COLORS[label], alpha=0.13, linewidth=0)
        axis.set(xscale="log", yscale="log", title=problem, xlabel="samples drawn")
        axis.grid(alpha=0.25)
    for axis in axes[:, 0]:
        axis.set_ylabel(r"$\|\nabla F_{1/\bar\rho}(w_t)\|$")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False)
    _save(plt, figure, path)


def draw_sweeps(results: list[dict[str, Any]], path: Path) -> None:
    """Stationarity of the second half against each factor."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(11.5, 3.9), sharey=True, layout="constrained")
    for axis, (factor, text) in zip(axes, FACTORS.items(), strict=True):
        for label, color in COLORS.items():
            rows = [r for r in results if r["key"][0] == factor and r["key"][2] == label]
            if rows:
                means, stds = zip(*(r["final_stationarity"] for r in rows), strict=True)
                values = [r["key"][1] for r in rows]
                axis.errorbar(values, means, yerr=stds, color=color, label=label, marker="o", capsize=3)
        ticks = sorted({r["key"][1] for r in results if r["key"][0] == factor})
        axis.set(xscale="log", yscale="log", xlabel=text)
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("stationarity, second half of the run")
    axes[0].legend(frameon=False, fontsize=9)
    _save(plt, figure, path)


def draw_bounds(results: list[dict[str, Any]], path: Path) -> None:
    """Measured table error and the lemma's bound, a panel for each setting."""
    plt = pyplot()
    settings = list(dict.fromkeys(tuple(r["key"][:5]) for r in results))
    figure, axes = plt.subplots(2, 3, figsize=(11.5, 6.4), sharex=True, sharey=True, layout="constrained")
    for axis, setting in zip(axes.flat, settings, strict=True):
        for result in results:
            if tuple(result["key"][:5]) != setting:
                continue
            label = "table, gamma of the theory" if result["key"][5] == "theory" else "table, moving average"
            steps = [step + 1 for step in result["step"]]
            width = 3.5 if result["key"][5] == "theory" else 1.5  # the two often lie on each other
            axis.plot(steps, result["table_error"], color=COLORS[label], linewidth=width, label=f"{label}: measured")
            axis.plot(steps, result["bound"], color=COLORS[label], linestyle="--", label=f"{label}: bound")
        tau, lr, blocks, outer, samples = setting
        axis.set_title(rf"$\tau$={tau:g}, $\eta$={lr:g}, n={blocks}, $B_1$={outer}, $B_2$={samples}", fontsize=10)
        axis.set(xscale="log", yscale="log")
        axis.grid(alpha=0.25)
    for axis in axes[1]:
        axis.set_xlabel("step + 1")
    for axis in axes[:, 0]:
        axis.set_ylabel("mean table error")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    _save(plt, figure, path)


def _save(plt: Any, figure: Any, path: Path) -> None:
    with written_whole(path) as part:
        figure.savefig(part, format=path.suffix[1:], dpi=_DPI, metadata={"Software": None})
    plt.close(figure)
