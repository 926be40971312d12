"""The effect of mislabelled rows on losses over the worst positives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_classification

from experiments.config import combinations
from experiments.engine import Record, Setup, Study, Task
from experiments.studies._shared import mean_and_std, show, tune_and_score
from moreauc.app.comparison import Contestant, Region, Table, contestants, network
from moreauc.app.report.pages import Report, Section

FLIPS = (0.0, 0.01, 0.02, 0.05)
REGION: Region = (0.5, 0.5)
_OTHERS = ("linear", "lr", "forest", "lightgbm")
_TRAIN, _TEST = 2000, 8000


def noise_contestants(device: str = "cpu") -> dict[str, Contestant]:
    """Return the methods of the study: SONX with its default and other surrogates, other losses, other models."""
    exact: dict[str, Any] = {"link": ("identity",), "surrogate": ("squared_hinge", "logistic"), "gamma": (0.0, 0.1)}
    bounded = {"link": ("sigmoid",), "surrogate": ("squared_hinge",), "widen": (0.0,), "gamma": (0.0, 0.1)}
    variants: list[tuple[str, str, str | None, Any]] = [
        ("sonx", "sonx", None, None),
        ("sonx", "sonx_exact", "SONX, convex surrogate, no start", {**exact, "widen": (0.0,)}),
        ("sonx", "sonx_half", "SONX, convex surrogate, no start, half way to AUC", {**exact, "widen": (0.5,)}),
        ("sonx", "sonx_bounded", "SONX, squared hinge of sigmoids, no start", bounded),
        ("ce", "ce", None, None),
        ("sota_s", "sota_s", None, None),
        ("auc_sh", "auc_sh", None, None),
    ]
    common = {"batch_size": 256, "device": device}
    networks = {
        name: network(method, name=name, title=title, grid=grid, settings={**common, **_start(title)})
        for method, name, title, grid in variants
    }
    return networks | {entry.name: entry for entry in contestants(_OTHERS)}


def _start(title: str | None) -> dict[str, Any]:
    """Return the argument of a variant that trains from random weights, without cross entropy before."""
    return {"start": None} if title else {}


@lru_cache(maxsize=2)
def noisy_table(seed: int, flips: float) -> Table:
    """Return a table of 10^4 rows, 5 % positive, whose first 2000 are for training and have flipped labels.

    `flips` is the share of all training rows whose label is flipped, whichever it was: at 2 % the negatives labelled
    positive are about 40 % as many as the true positives. The test rows keep their labels.
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
    order = random.permutation(_TRAIN)  # the same order of rows at every level: more noise flips further rows
    labels: NDArray[Any] = y.copy()
    labels[order[: round(flips * _TRAIN)]] ^= 1
    return Table(X, labels, (rows[:_TRAIN], rows[_TRAIN:]))


@dataclass(frozen=True, kw_only=True)
class LabelNoiseStudy(Study):
    """TPAUC on clean test rows after training and tuning on rows with flipped labels.

    Args:
        trials: options tried by each method, compared on the noisy rows.
        methods: names of methods.
    """

    trials: int
    methods: tuple[str, ...] = tuple(noise_contestants())
    planned: ClassVar = ("trials",)
    tiny: ClassVar = {"seeds": 1, "trials": 1, "methods": ("sonx_exact",)}

    def tasks(self, setup: Setup) -> list[Task]:
        """Return a task for each method, share of flipped labels and table."""
        places = combinations(method=self.methods, flips=FLIPS, seed=range(self.seeds))
        return [Task(place, run_table, {**place, "trials": self.trials, "device": setup.device}) for place in places]

    def report(self, records: Sequence[Record], out: Path) -> Report:
        """Return the mean of every method at every share of flipped labels."""
        known, cells = noise_contestants(), []
        for method in self.methods:
            for flips in FLIPS:
                scores = [r["score"] for r in records if (r["method"], r["flips"]) == (method, flips)]
                cell = {"method": method, "title": known[method].title, "flips": flips}
                cells.append(cell | mean_and_std(scores))
        results = {"region": REGION, "seeds": self.seeds, "trials": self.trials, "cells": cells}
        return Report(self.title, "", results, [_section(cells)])


def run_table(*, method: str, flips: float, seed: int, trials: int, device: str = "cpu") -> Record:
    """Tune a method on the noisy rows of one table and test it on the clean ones; networks train on the device."""
    contestant, table = noise_contestants(device)[method], noisy_table(seed, flips)
    (found,) = tune_and_score(contestant, table, (REGION,), seed=seed, fold=0, trials=trials)
    return {key: found[key] for key in ("score", "inner_score", "options", "seconds")}


def noise_table(cells: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the table: a column for each share of flipped labels."""
    titles = dict.fromkeys(cell["title"] for cell in cells)
    rows = [[title, *(show(cell) for cell in cells if cell["title"] == title)] for title in titles]
    return ["method", *(f"{100 * flips:g} % flipped" for flips in FLIPS)], rows


def _section(cells: list[Record]) -> Section:
    columns, rows = noise_table(cells)
    text = [
        f"{_TRAIN} training rows, 5 % positive, of scikit-learn's make_classification; a share of all training labels "
        f"is flipped; {_TEST} test rows with their true labels. TPAUC at TPR ≥ {REGION[0]:g}, FPR ≤ "
        f"{REGION[1]:g}, mean ± standard deviation over tables. Every method tries the same number of options, chosen "
        "by inner folds of the noisy rows."
    ]
    return Section("TPAUC on clean test rows", text, columns=columns, rows=rows, labels=1)
