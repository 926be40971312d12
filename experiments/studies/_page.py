"""What the convergence study found, in words and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from experiments.studies.convergence import METHODS, PROBLEMS, SWEEPS
from moreauc.report.pages import Section


def findings(parts: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return what the paper claims, as measured."""
    ends = {tuple(r["key"]): r["final_stationarity"] for r in parts["methods"]}
    sweep = {tuple(r["key"]): r["final_stationarity"] for r in parts["sweeps"]}
    plug = {b: sweep["samples_per_batch", b, "plug-in"][0] for b in SWEEPS["samples_per_batch"]}
    table = {b: sweep["samples_per_batch", b, METHODS[0]][0] for b in SWEEPS["samples_per_batch"]}
    decline = {(name, label): _decline(r) for r in parts["methods"] for name, label in [r["key"]]}
    ratios = [r["bound"][-1] / r["table_error"][-1] for r in parts["bounds"]]
    broken = [
        r["key"] for r in parts["bounds"] if any(e > b for e, b in zip(r["table_error"], r["bound"], strict=True))
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


def _decline(result: dict[str, Any]) -> float:
    """Mean stationarity at the end over that at a tenth of the run: 1 for a method that stalls."""
    steps, curve = result["step"], result["stationarity"]["mean"]
    at = min(range(len(steps)), key=lambda k: abs(steps[k] - steps[-1] / 10))
    return float(curve[-1] / curve[at])


def pm(pair: Iterable[float]) -> str:
    """Format a mean and a standard deviation, which may be NaN for a single run."""
    mean, std = pair
    return f"{mean:.4f}" if math.isnan(std) else f"{mean:.4f} ± {std:.4f}"


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
                    *r["key"],
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
                "fresher.",
            ],
            "sweeps.png",
            "Three panels: stationarity in the second half of the run against samples per block, blocks per batch and "
            "number of blocks",
            ("factor", "method", "value", "stationarity, second half", "gap, second half"),
            [
                (r["key"][0], r["key"][2], str(r["key"][1]), pm(r["final_stationarity"]), pm(r["final_gap"]))
                for r in parts["sweeps"]
            ],
        ),
        Section(
            "Table error against the lemmas",
            [
                "Mean distance of the rows from the blocks' true values, and the bound of Lemma 16 (theory's gamma) "
                "or Lemma 19 (moving average), with constants computed from the data: the largest standard deviation "
                "of a block's samples at a recorded iterate, the Lipschitz constants, and M = C_f C_g. The bound "
                f"{holds}; at the end it is between {low:.1f} and {high:.1f} times what is measured.",
            ],
            "bounds.png",
            "Six panels, one for each setting: measured table error and the lemma's bound against steps",
            ("tau", "lr", "n", "B1", "B2", "gamma", "error at the end", "bound at the end"),
            [
                (*(str(entry) for entry in r["key"]), f"{r['table_error'][-1]:.4f}", f"{r['bound'][-1]:.4f}")
                for r in parts["bounds"]
            ],
        ),
    ]
