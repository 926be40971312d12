"""SONT over bags of instances beside the baselines."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from scipy.stats import rankdata, wilcoxon

from experiments.studies._bag_runs import (
    BAGS,
    EPOCHS,
    INSTANCES,
    RATES,
    REGION,
    BagContestant,
    BagSet,
    bag_contestants,
    tune_and_test,
)
from experiments.studies._run_files import Work, read_run, run_missing
from moreauc._checks import check_count
from moreauc.report.bag_figures import plot_instance_weights
from moreauc.report.figures import as_image
from moreauc.report.pages import Image, Report, Section

_OWNER = "BagStudy"
_SETTINGS = 2 * len(RATES)


@dataclass(frozen=True)
class BagStudy:
    """TPAUC of SONT with each pooling and of the baselines over bags, tuned with equal effort.

    Each run is one small file in `out/runs`; what is there is not done again.

    Args:
        name: "digits" (made here), "musk2" or "fox" (read from a folder).
        seeds: draws of the data, at least 1.
        trials: settings tried by each method, in [1, 6], judged by the validation part.
        epochs: epochs of a run.
        methods: names of methods; None for all.
        folder: folder with the data of "musk2" and "fox"; None for the one that MOREAUC_DATA names.
        jobs: processes.
    """

    name: BagSet = "digits"
    seeds: int = 5
    trials: int = _SETTINGS
    epochs: int = EPOCHS
    methods: tuple[str, ...] | None = None
    folder: Path | None = None
    jobs: int = 2

    def __post_init__(self) -> None:
        if self.name not in get_args(BagSet):
            raise ValueError(f"{_OWNER}: name must be one of {list(get_args(BagSet))}, got {self.name!r}")
        for key in ("seeds", "epochs", "jobs"):
            check_count(_OWNER, key, getattr(self, key))
        if check_count(_OWNER, "trials", self.trials) > _SETTINGS:
            raise ValueError(f"{_OWNER}: trials must lie in [1, {_SETTINGS}], got {self.trials}")
        known = [entry.name for entry in bag_contestants()]
        for method in self.methods or ():
            if method not in known:
                raise ValueError(f"{_OWNER}: methods must be among {known}, got {method!r}")

    @property
    def contestants(self) -> list[BagContestant]:
        """The methods that take part."""
        return [entry for entry in bag_contestants() if self.methods is None or entry.name in self.methods]

    def run(self, out: Path, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Do the runs whose files are missing."""
        options = {"name": self.name, "trials": self.trials, "epochs": self.epochs, "folder": self.folder}
        work: Work = {
            self._file(entry, seed): (tune_and_test, {"contestant": entry, "seed": seed, **options})
            for seed in range(self.seeds)
            for entry in self.contestants
        }
        run_missing(out / "runs", work, plan=self._plan, jobs=self.jobs, progress=progress)

    def report(self, out: Path) -> Report:
        """Write `report.json` and the page from the runs in `out`.

        Raises:
            ValueError: if a run is missing, or was made with other numbers of settings or epochs.
        """
        started = time.perf_counter()
        records = [
            read_run(_OWNER, out / "runs", self._file(entry, seed), plan=self._plan)
            for entry in self.contestants
            for seed in range(self.seeds)
        ]
        cells = self._cells(records)
        results: dict[str, Any] = {
            "set": self.name,
            "region": [REGION["min_tpr"], REGION["max_fpr"]],
            "seeds": self.seeds,
            "trials": self.trials,
            "epochs": self.epochs,
            "cells": cells,
            "records": [{key: value for key, value in record.items() if key != "bags"} for record in records],
        }
        command = f"python -m experiments study bags --set {self.name} --seeds {self.seeds} --trials {self.trials}"
        report = Report("SONT over bags", command, results, [self._section(cells), *_shown(records)])
        report.seconds = time.perf_counter() - started
        report.write(out)
        return report

    @property
    def _plan(self) -> dict[str, Any]:
        return {"trials": self.trials, "epochs": self.epochs}

    def _file(self, entry: BagContestant, seed: int) -> str:
        return f"{self.name}-{entry.name}-{seed}"

    def _cells(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        scores = {
            entry.name: [record["score"] for record in records if record["method"] == entry.name]
            for entry in self.contestants
        }
        main = [entry.name for entry in self.contestants if not entry.literal]
        ranks = dict(
            zip(main, np.mean([_ranks(row) for row in zip(*(scores[n] for n in main), strict=True)], 0), strict=True)
        )
        best = max((name for name in main if name.startswith("sont")), key=lambda n: np.mean(scores[n]), default=None)
        cells = []
        for entry in self.contestants:
            own = np.array(scores[entry.name])
            found = [r["target_found"] for r in records if r["method"] == entry.name and "target_found" in r]
            cell = {
                "method": entry.name,
                "title": entry.title,
                "literal": entry.literal,
                "mean": float(own.mean()),
                "std": float(own.std(ddof=1)) if len(own) > 1 else None,
                "rank": float(ranks[entry.name]) if entry.name in ranks else None,
                "target_found": float(np.mean(found)) if found else None,
                "p_against_best_sont": None,
            }
            if best is not None and entry.name != best and len(own) > 1 and (own != scores[best]).any():
                cell["p_against_best_sont"] = float(wilcoxon(own, scores[best]).pvalue)
            cells.append(cell)
        return cells

    def _section(self, cells: list[dict[str, Any]]) -> Section:
        text = [
            f"TPAUC of test bags at TPR ≥ {REGION['min_tpr']:g}, FPR ≤ {REGION['max_fpr']:g}, mean ± standard "
            f"deviation over {self.seeds} draws of the data. A network with one hidden layer, Adam, {self.epochs} "
            f"epochs, batches of {BAGS} positive and {BAGS} negative bags with {INSTANCES} instances of each; every "
            f"method tries {self.trials} settings, judged with the best epoch by the validation bags. Rows before: "
            "the same with the rows that the paper's box reads, reported apart."
        ]
        rows = []
        for cell in cells:
            spread = "" if cell["std"] is None else f" ± {cell['std']:.3f}"
            rank = "" if cell["rank"] is None else f"{cell['rank']:.1f}"
            found = "" if cell["target_found"] is None else f"{100 * cell['target_found']:.0f} %"
            rows.append([cell["title"], f"{cell['mean']:.3f}{spread}", rank, found])
        columns = ["method", "TPAUC", "average rank", "heaviest instance is the target"]
        return Section(f"Test TPAUC, {self.name}", text, columns=columns, rows=rows, labels=1)


def _ranks(scores: tuple[float, ...]) -> Any:
    return rankdata([-score for score in scores])


def _shown(records: list[dict[str, Any]]) -> list[Section]:
    """Bags of SONT with attention, and with the smoothed max, where the runs kept some."""
    sections = []
    for method, title in (("sont_att", "attention"), ("sont_smx", "smoothed max")):
        kept = [record for record in records if record["method"] == method and "bags" in record]
        if not kept:
            continue
        images: list[Image] = []
        for which, words in (("highest", "the positive bag scored highest"), ("lowest", "the one scored lowest")):
            bag = kept[0]["bags"][which]
            pixels = np.array(bag["pixels"]).reshape(-1, 8, 8)
            figure = plot_instance_weights(bag["score"], bag["weight"], images=pixels, marked=bag["target"])
            images.append(as_image(figure, f"SONT, {title}: {words}. A star marks the digit that makes it positive."))
        text = ["Instances of a test bag, the heaviest first: weight in the bag's score, and the instance's own score."]
        sections.append(Section(f"Which instance decided, {title}", text, images=images))
    return sections
