"""`tpauc_score` beside LibAUC's `pauc_roc_score` and scikit-learn's `roc_auc_score`: time, and values at the edges.

1. Time at 10^6 samples, for several shares of positives, with continuous scores, with heavily tied ones and with nearly
   all of them equal. The three take turns; LibAUC works in a process and an environment of its own (see `peer.py`),
   never at the same time as the others.
2. Small cases where a class is selected whole or hardly at all: the value of each beside the pair definition, or its
   error.

`python benchmarks/bench_metrics.py --out FILE` writes the report.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from bench_pairs import Turn, our_turn, take_turns, write
from numpy.typing import NDArray
from peer import HERE, Peer, environment, metric_data, summary
from sklearn.metrics import roc_auc_score

from moreauc.app.report.pages import versions
from moreauc.metrics import tpauc_score

SHARES = (0.01, 0.1, 0.5)
REGIONS = ((0.5, 0.5), (0.6, 0.4), (0.1, 0.9))
LEVELS = (None, 64, 1)  # continuous scores, about so many different values, and a model that has collapsed
SAMPLE = ([1, 1, 1, 1, 0, 0, 0, 0, 0, 0], [0.9, 0.8, 0.4, 0.3, 0.85, 0.6, 0.4, 0.2, 0.1, 0.05])
TWO = ([1, 1, 0, 0, 0, 0], [0.9, 0.3, 0.5, 0.3, 0.2, 0.1])
EDGES: list[tuple[str, tuple[list[int], list[float]], float, float]] = [
    ("two positives, one of them selected", TWO, 0.5, 0.5),
    ("two positives, both selected", TWO, 0.1, 0.5),
    ("all negatives selected", SAMPLE, 0.5, 1.0),
    ("nearly all negatives: half of the last one", SAMPLE, 0.5, 0.92),
    ("all positives selected", SAMPLE, 0.0, 0.5),
    ("all positives, few negatives", SAMPLE, 0.0, 0.2),
    ("the whole square", SAMPLE, 0.0, 1.0),
    ("less than one positive selected", SAMPLE, 0.9, 0.5),
    ("two and a half negatives selected", SAMPLE, 0.5, 2.6 / 6.0),
]


def by_pairs(labels: list[int], scores: list[float], min_tpr: float, max_fpr: float) -> float:
    """The definition: ordered pairs among the lowest positives and the highest negatives, counted one by one."""
    positives = sorted(score for score, label in zip(scores, labels, strict=True) if label == 1)
    negatives = sorted((score for score, label in zip(scores, labels, strict=True) if label == 0), reverse=True)
    # Exact arithmetic on the decimal that was written, so that 10 * (1 - 0.9) is 1.
    k1 = math.floor(len(positives) * (1 - Fraction(str(min_tpr))))
    k2 = math.floor(len(negatives) * Fraction(str(max_fpr)))
    if k1 == 0 or k2 == 0:
        return math.nan
    wins = [(high > low) + 0.5 * (high == low) for high in positives[:k1] for low in negatives[:k2]]
    return sum(wins) / len(wins)


def peer_turn(peer: Peer, **request: Any) -> Turn:
    def turn(times: int) -> list[float]:
        answer = peer.ask("metric", **request, times=times)
        if "error" in answer:
            raise RuntimeError(f"pauc_roc_score: {answer['error']}")
        seconds: list[float] = answer["seconds"]
        return seconds

    return turn


def timing(
    data: tuple[NDArray[Any], NDArray[Any]],
    request: dict[str, Any],
    region: tuple[float, float],
    peer: Peer | None,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """One row: how many times our time the others take, with values and medians."""
    min_tpr, max_fpr = region
    ours: Callable[[], float] = lambda: tpauc_score(*data, min_tpr=min_tpr, max_fpr=max_fpr)  # noqa: E731
    turns: dict[str, Turn] = {
        "tpauc_score": our_turn(ours),
        "sklearn roc_auc_score": our_turn(lambda: roc_auc_score(*data)),
    }
    row: dict[str, Any] = {**request, "min_tpr": min_tpr, "max_fpr": max_fpr, "value": ours()}
    if peer is not None:
        request = {**request, "min_tpr": min_tpr, "max_fpr": max_fpr}
        turns["pauc_roc_score"] = peer_turn(peer, **request)
        row["pauc_roc_score value"] = peer.ask("metric", **request, times=1)["value"]
    times = take_turns(turns, rounds=options.rounds, seconds=options.seconds)
    base = times["tpauc_score"]
    row["milliseconds"] = {name: summary(seconds)["microseconds"] / 1e3 for name, seconds in times.items()}
    for name, seconds in times.items():
        if name != "tpauc_score":
            quotients = [a / b for a, b in zip(seconds, base, strict=True)]
            row[f"{name} / tpauc_score"] = {
                "median": float(np.median(quotients)),
                "quartiles": [float(np.quantile(quotients, q)) for q in (0.25, 0.75)],
            }
    return row


def edge(
    case: str, data: tuple[list[int], list[float]], min_tpr: float, max_fpr: float, peer: Peer | None
) -> dict[str, Any]:
    """One row: the pair definition, our value and LibAUC's value or error."""
    labels, scores = data
    row: dict[str, Any] = {
        "case": case,
        "positives": sum(labels),
        "negatives": len(labels) - sum(labels),
        "min_tpr": min_tpr,
        "max_fpr": max_fpr,
        "pair definition": by_pairs(labels, scores, min_tpr, max_fpr),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the case that selects nothing is NaN on purpose
        row["tpauc_score"] = tpauc_score(labels, scores, min_tpr=min_tpr, max_fpr=max_fpr)
    if peer is not None:
        answer = peer.ask("metric_of", labels=labels, scores=scores, min_tpr=min_tpr, max_fpr=max_fpr)
        row["pauc_roc_score"] = answer.get("value", answer.get("error"))
    return row


def targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The targets of the metric, by region: the smallest ratio over the shares of positives and kinds of scores."""
    result = []
    for name, least in (("pauc_roc_score", 5.0), ("sklearn roc_auc_score", 5.0)):
        for region in REGIONS:
            found = [
                row[f"{name} / tpauc_score"]["median"]
                for row in rows
                if (row["min_tpr"], row["max_fpr"]) == region and f"{name} / tpauc_score" in row
            ]
            if found:
                what = f"{name} / tpauc_score at {region}, at least {least:g}"
                result.append({"target": what, "measured": min(found), "met": min(found) >= least})
    return result


def measure_all(peer: Peer | None, options: argparse.Namespace) -> dict[str, Any]:
    rows = []
    for share in SHARES:
        for levels in LEVELS:
            request = {"number": options.number, "share": share, "levels": levels}
            data = metric_data(options.number, share, levels)
            rows += [timing(data, request, region, peer, options) for region in REGIONS]
    result: dict[str, Any] = {"times": rows, "targets": targets(rows), "edges": [edge(*case, peer) for case in EDGES]}
    if peer is not None:
        result["peer"] = peer.ask("versions")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--number", type=int, default=10**6, help="samples")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=30.0, help="about how long one row may take")
    parser.add_argument("--without-peer", action="store_true", help="leave LibAUC out: nothing is installed")
    parser.add_argument("--environment", type=Path, default=HERE / ".libauc-venv", help="where LibAUC is installed")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {
        "title": "metrics of two-way partial AUC",
        "command": f"python benchmarks/bench_metrics.py --number {options.number} --rounds {options.rounds} "
        f"--seconds {options.seconds:g}" + " --without-peer" * options.without_peer,
        "versions": {**versions(), "numpy": np.__version__, "scikit-learn": sklearn.__version__},
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{platform.machine()}, float64",
    }
    if options.without_peer:
        result |= measure_all(None, options)
    else:
        with Peer(environment(options.environment)) as peer:
            result |= measure_all(peer, options)
    write(result, options.out)


if __name__ == "__main__":
    main()
