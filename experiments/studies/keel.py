"""SONX, the baselines and boosted trees on the imbalanced tables of KEEL, under equal effort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.stats import rankdata, wilcoxon

from experiments.config import combinations
from experiments.data.keel import KEEL_SETS
from experiments.data.tables import load_table
from experiments.engine import Record, Setup, Study, Task
from experiments.studies._shared import FOLDS, INNER_FOLDS, mean_and_std, show, tune_and_score
from moreauc.app.comparison import Region, contestants, method_names
from moreauc.app.report.pages import Report, Section

# each tries four settings; TPAUCAuto, made of four of these, and TPAUCBooster choose by folds of their own
ALL_METHODS = tuple(name for name in method_names("rows") if name not in ("auto", "trees"))
REGIONS: tuple[Region, ...] = ((0.5, 0.5), (0.6, 0.4))
_EQUAL = 0.0005  # means nearer than this count as equal


@dataclass(frozen=True, kw_only=True)
class KeelStudy(Study):
    """Nested cross-validation on each table; see :class:`~moreauc.app.comparison.Comparison`.

    Args:
        trials: options tried by each method.
        sets: names of tables.
        methods: names of methods.
    """

    trials: int
    sets: tuple[str, ...] = tuple(KEEL_SETS)
    methods: tuple[str, ...] = ALL_METHODS
    tiny: ClassVar = {"seeds": 1, "trials": 1, "sets": ("made 0",), "methods": ("sonx", "ce")}

    @property
    def plan(self) -> dict[str, Any]:
        """Folds and trials."""
        return {"folds": FOLDS, "inner_folds": INNER_FOLDS, "trials": self.trials}

    def tasks(self, setup: Setup) -> list[Task]:
        """Return a task for each table, method, seed and fold."""
        pairs = [(dataset, method) for dataset in self.sets for method in self.methods]
        folds, more = (
            combinations(seed=range(self.seeds), fold=range(FOLDS)),
            {"folder": setup.data, "device": setup.device},
        )
        places = [{"dataset": dataset, "method": method, **fold} for dataset, method in pairs for fold in folds]
        return [Task(place, run_fold, {**place, **more, "trials": self.trials}) for place in places]

    def report(self, records: Sequence[Record], out: Path) -> Report:
        """Return the tables of the sets that have records of all methods."""
        results = summary(records)
        return Report(self.title, "", {"plan": self.plan, **results}, _sections(results))


def run_fold(
    *, dataset: str, method: str, seed: int, fold: int, trials: int, folder: Path | None, device: str = "cpu"
) -> Record:
    """Tune a method on the training rows of one fold and test it in both regions; networks train on the device."""
    (contestant,) = contestants([method], batch_size=256, device=device)
    table = load_table(dataset, folder)
    return {"results": tune_and_score(contestant, table, REGIONS, seed=seed, fold=fold, trials=trials)}


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Return mean and deviation of every cell, ranks, and SONX against each other method.

    Raises:
        ValueError: if no table has records of all methods.
    """
    scores = _scores(records)
    names, found = list(dict.fromkeys(key[1] for key in scores)), {key[2] for key in scores}
    methods = [method for method in ALL_METHODS if method in found]
    whole = [name for name in names if all((REGIONS[0], name, method) in scores for method in methods)]
    if not whole:
        raise ValueError("report keel: at least one table must have records of all methods, got none")
    titles = {entry.name: entry.title for entry in contestants(methods)}
    cells = []
    for region in REGIONS:
        for name in whole:  # ranks among fewer methods cannot be compared
            own = [scores[region, name, method] for method in methods]
            ranks = rankdata([-values.mean() for values in own])
            for method, values, rank in zip(methods, own, ranks, strict=True):
                seeds = values.reshape(-1, FOLDS).mean(axis=1)
                cell = {"region": region, "set": name, "method": method, "title": titles[method], "rank": float(rank)}
                spread = float(seeds.std(ddof=1)) if len(seeds) > 1 else 0.0
                cells.append({**cell, **mean_and_std(values), "folds": len(values), "std_of_seeds": spread})
    others = [method for method in methods if method != "sonx"] if "sonx" in methods else []
    return {
        "methods": methods,
        "left_out": [name for name in names if name not in whole],
        "cells": cells,
        "ranks": [{"method": method, "title": titles[method], **_ranks(cells, method)} for method in methods],
        "sonx_against": [{"method": m, "title": titles[m], **_against(cells, m)} for m in others],
    }


def _scores(records: Sequence[Record]) -> dict[tuple[Region, str, str], Any]:
    """Return test scores by region, table and method, in the order of seeds and folds; only whole repetitions."""
    found: dict[tuple[Region, str, str], dict[tuple[int, int], float]] = {}
    for record in records:
        for entry in record["results"]:
            key = tuple(entry["region"]), record["dataset"], record["method"]
            found.setdefault(key, {})[record["seed"], record["fold"]] = entry["score"]
    return {
        key: np.array([value for _, value in sorted(values.items())])
        for key, values in found.items()
        if len(values) % FOLDS == 0
    }


def _ranks(cells: Sequence[Record], method: str) -> dict[str, float]:
    """Return a method's mean rank in each region and in all cells, and its mean score."""
    own = [cell for cell in cells if cell["method"] == method]
    ranks = {str(region): [cell["rank"] for cell in own if cell["region"] == region] for region in REGIONS}
    ranks["all"], ranks["mean"] = [cell["rank"] for cell in own], [cell["mean"] for cell in own]
    return {name: float(np.mean(values)) for name, values in ranks.items()}


def _against(cells: Sequence[Record], method: str) -> dict[str, Any]:
    """Compare SONX with another method over the cells: means of each cell, and a signed-rank test over them."""
    ours, theirs = ([cell["mean"] for cell in cells if cell["method"] == name] for name in ("sonx", method))
    differences = np.array(ours) - np.array(theirs)
    better, worse = int((differences > _EQUAL).sum()), int((differences < -_EQUAL).sum())
    p = float(wilcoxon(differences).pvalue) if np.abs(differences).max(initial=0.0) > 0 else 1.0
    tally = {"better": better, "equal": len(differences) - better - worse, "worse": worse}
    return {**tally, "mean_difference": float(differences.mean()), "p_of_signed_ranks": p}


def region_table(results: Record, region: Region) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of TPAUC in a region: a column for each table, and the mean rank."""
    cells = [cell for cell in results["cells"] if tuple(cell["region"]) == region]
    rows = []
    for entry in results["ranks"]:
        own = [show(cell) for cell in cells if cell["method"] == entry["method"]]
        rows.append([entry["title"], *own, f"{entry[str(region)]:.2f}"])
    return ["method", *dict.fromkeys(cell["set"] for cell in cells), "rank"], rows


def _sections(results: dict[str, Any]) -> list[Section]:
    sections = []
    for region in REGIONS:
        columns, rows = region_table(results, region)
        heading = f"TPAUC, TPR ≥ {region[0]:g}, FPR ≤ {region[1]:g}"
        text = ["Mean ± standard deviation over seeds and folds; rank is the mean over the tables."]
        sections.append(Section(heading, text, columns=columns, rows=rows, labels=1))
    rows = [
        [
            entry["title"],
            *(str(entry[key]) for key in ("better", "equal", "worse")),
            f"{entry['mean_difference']:+.4f}",
            f"{entry['p_of_signed_ranks']:.3f}",
        ]
        for entry in results["sonx_against"]
    ]
    columns = ["SONX against", "better", "equal", "worse", "mean difference", "p (signed ranks)"]
    text = ["Cells are pairs of table and region; equal means a difference of the means of at most 0.0005."]
    sections.append(Section("SONX against each", text, columns=columns, rows=rows, labels=1))
    return sections
