"""What the convergence study found, in words, tables and figures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.studies.convergence import _BOUND, METHODS, PROBLEMS, SWEEPS
from moreauc._files import written_whole
from moreauc.report.pages import Section

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


def findings(parts: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return what the paper claims, as measured."""
    ends = {(r["problem"], r["method"]): r["final_stationarity"] for r in parts["methods"]}
    sweep = {(r["factor"], r["value"], r["method"]): r["final_stationarity"] for r in parts["sweeps"]}
    plug = {b: sweep["samples_per_batch", b, "plug-in"][0] for b in SWEEPS["samples_per_batch"]}
    table = {b: sweep["samples_per_batch", b, METHODS[0]][0] for b in SWEEPS["samples_per_batch"]}
    decline = {(r["problem"], r["method"]): _decline(r) for r in parts["methods"]}
    ratios = [r["bound"][-1] / r["table_error"][-1] for r in parts["bounds"]]
    broken = [
        _setting(r) for r in parts["bounds"] if any(e > b for e, b in zip(r["table_error"], r["bound"], strict=True))
    ]
    return {
        "plug-in over table at the end": {
            name: ends[name, "plug-in"][0] / ends[name, METHODS[0]][0] for name in PROBLEMS
        },
        "stationarity at the end over that at a tenth of the run": {
            name: {label: decline[name, label] for label in ("plug-in", METHODS[0])} for name in PROBLEMS
        },
        "plug-in stationarity by samples per batch": plug,
        "table stationarity by samples per batch": table,
        "bound over measured table error, smallest and largest": [min(ratios), max(ratios)],
        "settings where the bound fails": broken,
    }


def _setting(result: dict[str, Any]) -> list[Any]:
    """Return what sets a run of the bounds apart."""
    return [result[name] for name in (*_BOUND, "gamma")]


def _decline(result: dict[str, Any]) -> float:
    """Mean stationarity at the end over that at a tenth of the run: 1 for a method that stalls."""
    steps, curve = result["step"], result["stationarity"]["mean"]
    at = min(range(len(steps)), key=lambda k: abs(steps[k] - steps[-1] / 10))
    return float(curve[-1] / curve[at])


def pm(pair: Iterable[float | None]) -> str:
    """Format a mean and a standard deviation, which is None for a single run."""
    mean, std = pair
    return f"{mean:.4f}" if std is None else f"{mean:.4f} ± {std:.4f}"


def sections(parts: dict[str, list[dict[str, Any]]]) -> list[Section]:
    found = findings(parts)
    plug, table = (found[f"{name} stationarity by samples per batch"] for name in ("plug-in", "table"))
    low, high = found["bound over measured table error, smallest and largest"]
    fewest, most = min(plug), max(plug)
    holds = "holds at every recorded step of every setting"
    if found["settings where the bound fails"]:
        holds = f"FAILS for {found['settings where the bound fails']}"
    ratios = found["plug-in over table at the end"]
    worse = ", ".join(f"{name}: {ratio:.1f} times" for name, ratio in ratios.items())
    declines = found["stationarity at the end over that at a tenth of the run"]
    stalls = ", ".join(
        f"{name}: {entry['plug-in']:.2f} against {entry[METHODS[0]]:.2f}" for name, entry in declines.items()
    )
    return [
        Section(
            "Stationarity against samples",
            [
                "Norm of the gradient of the Moreau envelope, mean over seeds, with the band from the 10th to the 90th "
                "percentile. All methods of a panel have the same step sizes; the tables have the same averaging "
                "weights. The full subgradient is there for scale: one of its steps costs the whole data.",
                f"Where the plug-in estimator ends, over where the table with the theory's gamma does: {worse}.",
                "What the last nine tenths of the run still gain (stationarity at the end over that at a tenth of the "
                f"run; 1 is a stall), plug-in against table: {stalls}.",
            ],
            "methods.png",
            "Four panels, one for each problem: stationarity against samples drawn, both logarithmic",
            ("problem", "method", "stationarity, second half", "gap, second half", "gap: last", "best", "drawn"),
            [
                (
                    r["problem"],
                    r["method"],
                    pm(r["final_stationarity"]),
                    pm(r["final_gap"]),
                    *(pm(r["gap_of"][name]) for name in ("last", "best", "drawn")),
                )
                for r in parts["methods"]
            ],
        ),
        Section(
            "Batch sizes and number of blocks",
            [
                f"The plug-in estimator stalls where its bias lets it: at {plug[fewest]:.3f} with {fewest} sample per "
                f"block, at {plug[most]:.3f} with {most}. The table ends at {table[fewest]:.3f} and {table[most]:.3f} "
                "after the same number of steps. More blocks in a batch, or fewer blocks in all, keep the table "
                "fresher."
            ],
            "sweeps.png",
            "Three panels: stationarity in the second half of the run against samples per block, blocks per batch and "
            "number of blocks",
            ("factor", "method", "value", "stationarity, second half", "gap, second half"),
            [
                (r["factor"], r["method"], str(r["value"]), pm(r["final_stationarity"]), pm(r["final_gap"]))
                for r in parts["sweeps"]
            ],
        ),
        Section(
            "Table error against the lemmas",
            [
                "Mean distance of the rows from the blocks' true values, and the bound of Lemma 16 (theory's gamma) "
                "or Lemma 19 (moving average), with constants computed from the data: the largest standard deviation "
                "of a block's samples at a recorded iterate, the Lipschitz constants, and M = C_f C_g. The bound "
                f"{holds}; at the end it is between {low:.1f} and {high:.1f} times what is measured."
            ],
            "bounds.png",
            "Six panels, one for each setting: measured table error and the lemma's bound against steps",
            ("tau", "lr", "n", "B1", "B2", "gamma", "error at the end", "bound at the end"),
            [
                (*(str(entry) for entry in _setting(r)), f"{r['table_error'][-1]:.4f}", f"{r['bound'][-1]:.4f}")
                for r in parts["bounds"]
            ],
        ),
    ]


def pyplot() -> Any:
    """Return matplotlib's pyplot without a display."""
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.use("Agg")
    return plt


def draw_methods(results: list[dict[str, Any]], path: Path) -> None:
    """Stationarity against samples, a panel for each problem."""
    plt = pyplot()
    problems = list(dict.fromkeys(r["problem"] for r in results))
    figure, axes = plt.subplots(2, 2, figsize=(10.5, 7.6), layout="constrained")
    for axis, problem in zip(axes.flat, problems, strict=True):
        for result in results:
            if result["problem"] != problem:
                continue
            label = result["method"]
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
            rows = [r for r in results if (r["factor"], r["method"]) == (factor, label)]
            if rows:
                means, stds = zip(*(r["final_stationarity"] for r in rows), strict=True)
                values = [r["value"] for r in rows]
                axis.errorbar(
                    values, means, yerr=[std or 0.0 for std in stds], color=color, label=label, marker="o", capsize=3
                )
        ticks = sorted({r["value"] for r in results if r["factor"] == factor})
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
    settings = list(dict.fromkeys(tuple(_setting(r)[:5]) for r in results))
    figure, axes = plt.subplots(2, 3, figsize=(11.5, 6.4), sharex=True, sharey=True, layout="constrained")
    for axis, setting in zip(axes.flat, settings, strict=True):
        for result in results:
            if tuple(_setting(result)[:5]) != setting:
                continue
            label = "table, gamma of the theory" if result["gamma"] == "theory" else "table, moving average"
            steps = [step + 1 for step in result["step"]]
            width = 3.5 if result["gamma"] == "theory" else 1.5  # the two often lie on each other
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
