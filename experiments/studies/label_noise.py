"""What mislabelled rows do to losses that look at the worst positives."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_classification

from moreauc._checks import check_count
from moreauc.comparison import Comparison, Contestant, Piece, Region, Table, network, run_pieces
from moreauc.report.pages import Report, Section

FLIPS = (0.0, 0.01, 0.02, 0.05)
REGION: Region = (0.5, 0.5)
_TRAIN, _TEST = 2000, 8000


def noise_contestants() -> list[Contestant]:
    """Return the methods of the study: SONX as the paper has it, what users can do about noise, and others."""
    exact: dict[str, Any] = {
        "link": ("identity",),
        "surrogate": ("squared_hinge", "logistic"),
        "gamma": (0.0, 0.1),
    }
    bounded = {"link": ("sigmoid",), "widen": (0.0,), "gamma": (0.0, 0.1)}
    variants: list[tuple[str, str, str | None, Any]] = [
        ("sonx", "sonx_exact", "SONX, the region itself", {**exact, "widen": (0.0,)}),
        ("sonx", "sonx_half", "SONX, half way to AUC", {**exact, "widen": (0.5,)}),
        ("sonx", "sonx_bounded", "SONX, the region itself, sigmoid link", bounded),
        ("sonx", "sonx", "SONX, width tuned", None),
        ("ce", "ce", None, None),
        ("sota_s", "sota_s", None, None),
        ("auc_sh", "auc_sh", None, None),
    ]
    return [
        network(method, name=name, title=title, grid=grid, settings={"batch_size": 256})
        for method, name, title, grid in variants
    ]


def noisy_table(seed: int, flips: float) -> Table:
    """Return a table of 10^4 rows, 5 % positive, whose first 2000 are for training and have flipped labels.

    `flips` is the share of all training rows whose label is turned round, whichever it was: at 2 % there are about as
    many negatives called positive as 40 % of the true positives. The test rows keep their labels.
    """
    X, y = make_classification(
        _TRAIN + _TEST,
        n_features=20,
        n_informative=8,
        n_redundant=4,
        n_clusters_per_class=2,
        weights=[0.95],
        flip_y=0.0,
        class_sep=1.0,
        random_state=seed,
    )
    rows = np.arange(len(y))
    random = np.random.default_rng([seed, 1])
    order = random.permutation(_TRAIN)  # the same rows first at every level: more noise is added noise
    labels: NDArray[Any] = y.copy()
    labels[order[: round(flips * _TRAIN)]] ^= 1
    return Table(X, labels, (rows[:_TRAIN], rows[_TRAIN:]))


@dataclass(frozen=True)
class LabelNoiseStudy:
    """TPAUC on clean test rows after training and tuning on rows with flipped labels.

    Args:
        seeds: tables drawn, at least 2.
        trials: options tried by each method, judged on the noisy rows.
        jobs: processes.
    """

    seeds: int = 6
    trials: int = 4
    jobs: int = 2

    def __post_init__(self) -> None:
        check_count("LabelNoiseStudy", "seeds", self.seeds, minimum=2)

    def report(self, out: Path, *, progress: Callable[[int, int], None] | None = None) -> Report:
        """Run, and write `report.json` and the page into `out`."""
        started = time.perf_counter()
        methods = noise_contestants()
        plan = Comparison(methods, (REGION,), inner_folds=2, seeds=self.seeds, trials=self.trials, jobs=self.jobs)
        tables = {f"{seed} {flips}": noisy_table(seed, flips) for seed in range(self.seeds) for flips in FLIPS}
        work = [
            (Piece(method, (REGION,), seed, 0), f"{seed} {flips}")
            for method in methods
            for seed in range(self.seeds)
            for flips in FLIPS
        ]
        records = []
        for done, (number, found) in enumerate(run_pieces(work, tables, plan, jobs=self.jobs), 1):
            task, name = work[number]
            flips = float(name.split()[1])
            entry = {"method": task.contestant.name, "flips": flips, "seed": task.seed}
            records.append(entry | {key: found[0][key] for key in ("score", "inner_score", "options", "seconds")})
            if progress is not None:
                progress(done, len(work))
        records.sort(key=lambda entry: (entry["method"], entry["flips"], entry["seed"]))
        results: dict[str, Any] = {
            "region": REGION,
            "seeds": self.seeds,
            "trials": self.trials,
            "cells": _cells(methods, records),
            "records": records,
        }
        command = f"python -m experiments study label-noise --seeds {self.seeds} --trials {self.trials}"
        report = Report("Label noise", command, results, [_section(methods, results["cells"])])
        report.seconds = time.perf_counter() - started
        report.write(out)
        return report


def _cells(methods: list[Contestant], records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    cells = []
    for method in methods:
        for flips in FLIPS:
            scores = [r["score"] for r in records if r["method"] == method.name and r["flips"] == flips]
            cell = {"method": method.name, "title": method.title, "flips": flips}
            cells.append(cell | {"mean": float(np.mean(scores)), "std": float(np.std(scores, ddof=1))})
    return cells


def _section(methods: list[Contestant], cells: list[dict[str, Any]]) -> Section:
    rows = []
    for method in methods:
        own = [cell for cell in cells if cell["method"] == method.name]
        rows.append([method.title, *(f"{cell['mean']:.3f} ± {cell['std']:.3f}" for cell in own)])
    text = [
        f"{_TRAIN} training rows, 5 % positive, of scikit-learn's make_classification; a share of all training labels "
        f"is turned round; {_TEST} test rows with their true labels. TPAUC at TPR ≥ {REGION[0]:g}, FPR ≤ "
        f"{REGION[1]:g}, mean ± standard deviation over tables. Every method tries the same number of options, judged "
        "by inner folds of the noisy rows."
    ]
    columns = ["method", *(f"{100 * flips:g} % flipped" for flips in FLIPS)]
    return Section("TPAUC on clean test rows", text, columns=columns, rows=rows, labels=1)
