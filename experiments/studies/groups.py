"""SONX over groups beside exponentiated weights, ERM and CVaR of samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from matplotlib.figure import Figure

from experiments.studies import _group_convergence as convergence
from experiments.studies._group_runs import (
    GROUPS_PER_BATCH,
    HIDDEN,
    PROTOCOLS,
    SETTINGS,
    TOP_K,
    GroupSet,
    tune_and_test,
)
from experiments.studies._run_files import Work, read_run, run_missing
from moreauc._checks import check_count
from moreauc.methods import METHODS
from moreauc.report.figures import as_image
from moreauc.report.pages import Image, Report, Section

_OWNER = "GroupStudy"
_MEASURES = {
    "worst_loss": "worst loss",
    "top_k_loss": "K worst, loss",
    "mean_loss": "mean loss",
    "worst_accuracy": "worst accuracy",
    "top_k_accuracy": "K worst, accuracy",
    "mean_accuracy": "mean accuracy",
}
_CURVES = {"top_k_loss": "worst tenth of the groups", "worst_loss": "worst group"}
_COLOURS = {"sonx": "#0072b2", "exponentiated": "#d55e00", "unscaled": "#009e73"}


@dataclass(frozen=True)
class GroupStudy:
    """Loss and accuracy of the worst groups, by five methods that are tuned with equal effort.

    Each run is one small file in `out/runs`; what is there is not done again.

    Args:
        name: "planted" (made here), "adult" or "compas" (read from a folder).
        seeds: draws of the data, at least 2.
        trials: settings tried by each method, in [1, 8], judged by the K worst groups of the validation part.
        epochs: epochs of a run; None for 120 of "planted", 30 of the others.
        folder: folder with the data of "adult" and "compas"; None for the one that MOREAUC_DATA names.
        jobs: processes.
    """

    name: GroupSet = "planted"
    seeds: int = 10
    trials: int = SETTINGS
    epochs: int | None = None
    folder: Path | None = None
    jobs: int = 2

    def __post_init__(self) -> None:
        if self.name not in get_args(GroupSet):
            raise ValueError(f"{_OWNER}: name must be one of {list(get_args(GroupSet))}, got {self.name!r}")
        check_count(_OWNER, "seeds", self.seeds, minimum=2)
        if self.epochs is None:
            object.__setattr__(self, "epochs", PROTOCOLS[self.name].epochs)
        for key in ("epochs", "jobs"):
            check_count(_OWNER, key, getattr(self, key))
        if check_count(_OWNER, "trials", self.trials) > SETTINGS:
            raise ValueError(f"{_OWNER}: trials must lie in [1, {SETTINGS}], got {self.trials}")

    def run(self, out: Path, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Do the runs whose files are missing."""
        options = {"name": self.name, "trials": self.trials, "epochs": self.epochs, "folder": self.folder}
        work: Work = {
            f"{self.name}-{method}-{seed}": (tune_and_test, {"method": method, "seed": seed, **options})
            for seed in range(self.seeds)
            for method in METHODS["groups"]
        }
        run_missing(out / "runs", work, plan=self._plan, jobs=self.jobs, progress=progress)

    def report(self, out: Path) -> Report:
        """Write `report.json` and the page from the runs in `out`.

        Raises:
            ValueError: if a run is missing, or was made with other numbers of settings or epochs.
        """
        started = time.perf_counter()
        records = [
            read_run(_OWNER, out / "runs", f"{self.name}-{method}-{seed}", plan=self._plan)
            for method in METHODS["groups"]
            for seed in range(self.seeds)
        ]
        cells = [
            _cell(method, [record for record in records if record["method"] == method]) for method in METHODS["groups"]
        ]
        results: dict[str, Any] = {
            "set": self.name,
            "top_k": TOP_K[self.name],
            "seeds": self.seeds,
            "trials": self.trials,
            "epochs": self.epochs,
            "cells": cells,
            "records": records,
        }
        command = f"python -m experiments study groups --set {self.name} --seeds {self.seeds} --trials {self.trials}"
        report = Report("Groups", command, results, [self._section(cells, records)])
        report.seconds = time.perf_counter() - started
        report.write(out)
        return report

    @property
    def _plan(self) -> dict[str, Any]:
        return {"trials": self.trials, "epochs": self.epochs}

    def _section(self, cells: list[dict[str, Any]], records: list[dict[str, Any]]) -> Section:
        sizes, protocol = records[0]["group_sizes"], PROTOCOLS[self.name]
        offered = "plain and group-balanced batches" if len(protocol.samplers) > 1 else "group-balanced batches"
        if len(protocol.starts) > 1:
            offered += ", from scratch and from a start by cross entropy"
        text = [
            f"{len(sizes)} groups of {min(sizes)} to {max(sizes)} test rows, K = {TOP_K[self.name]}; mean ± standard "
            f"deviation over {self.seeds} draws. A network with a hidden layer of {HIDDEN[0]}, Adam, {self.epochs} "
            f"epochs, batches of {GROUPS_PER_BATCH * protocol.samples} rows. Every method tries {self.trials} "
            f"settings ({offered}), judged with the best epoch by the loss of the K "
            "worst validation groups. Losses: lower is better; mean is that over groups."
        ]
        rows = []
        for cell in cells:
            rows.append([cell["title"], *(f"{cell[key][0]:.3f} ± {cell[key][1]:.3f}" for key in _MEASURES)])
        return Section(f"Test rows, {self.name}", text, columns=["method", *_MEASURES.values()], rows=rows, labels=1)


def _cell(method: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    cell: dict[str, Any] = {"method": method, "title": METHODS["groups"][method].title}
    for key in _MEASURES:
        values = [record[key] for record in records]
        cell[key] = [float(np.mean(values)), float(np.std(values, ddof=1))]
    return cell


@dataclass(frozen=True)
class GroupConvergenceStudy:
    """Loss of the worst groups against samples drawn, with 8 of 10, 100 and 1000 groups in a batch.

    Args:
        seeds: draws of the data, at least 1.
        steps: steps of a run.
        jobs: processes.
    """

    seeds: int = 3
    steps: int = convergence.STEPS
    jobs: int = 2

    def __post_init__(self) -> None:
        for key in ("seeds", "steps", "jobs"):
            check_count("GroupConvergenceStudy", key, getattr(self, key))

    @property
    def tasks(self) -> dict[str, dict[str, Any]]:
        """Every run: all settings of the methods, as many of each; those of a draw follow each other."""
        return {
            f"{number}-{method}-{rate:g}-{option:g}-{seed}": {
                "num_groups": number,
                "method": method,
                "lr": rate,
                "option": option,
                "seed": seed,
                "steps": self.steps,
            }
            for number in convergence.NUMBERS
            for seed in range(self.seeds)
            for method in convergence.TITLES
            for rate, option in convergence.settings(method, number)
        }

    def report(self, out: Path, *, progress: Callable[[int, int], None] | None = None) -> Report:
        """Run what is missing, and write `report.json` and the page."""
        started = time.perf_counter()
        work: Work = {name: (convergence.descend, options) for name, options in self.tasks.items()}
        plan = {"steps": self.steps}
        run_missing(out / "runs", work, plan=plan, jobs=self.jobs, progress=progress)
        records = [read_run("GroupConvergenceStudy", out / "runs", name, plan=plan) for name in work]
        chosen = [_best(records, number, method) for number in convergence.NUMBERS for method in convergence.TITLES]
        results: dict[str, Any] = {"seeds": self.seeds, "steps": self.steps, "curves": chosen}
        section = Section(
            "Loss of the worst groups against samples",
            [
                f"A linear model on planted groups, {convergence.GROUPS} groups of {convergence.SAMPLES} rows in a "
                f"batch, {self.steps} steps of SGD, mean over {self.seeds} draws. Each curve is the setting that ends "
                f"lowest in what its method minimises, of {len(chosen[0]['tried'])} for each (step size; averaging "
                "weight, or step of the group weights). SONX minimises the mean of the tenth of the groups that is "
                "worst, exponentiated weights the worst one; with 10 groups these are the same. Unscaled weights leave "
                "out the factor N over the number of groups in the batch, as their authors do."
            ],
            columns=["groups", "method", "step size", "option", "worst tenth, loss", "worst group, loss"],
            rows=[_row(curve) for curve in chosen],
            labels=2,
            images=[_draw(chosen)],
        )
        report = Report(
            "Groups that are not all touched",
            f"python -m experiments study groups --set convergence --seeds {self.seeds}",
            results,
            [section],
        )
        report.seconds = time.perf_counter() - started
        report.write(out)
        return report


def _best(records: list[dict[str, Any]], number: int, method: str) -> dict[str, Any]:
    """Return the mean curves of the setting that ends lowest in what the method minimises, and where all ended."""
    own = [record for record in records if record["groups"] == number and record["method"] == method]
    key, option = "top_k_loss" if method == "sonx" else "worst_loss", convergence.OPTIONS[method]
    tried = []
    for pair in convergence.settings(method, number):
        runs = [record for record in own if (record["lr"], record["option"]) == pair]
        ends = {name: round(float(np.mean([run[name][-1] for run in runs])), 5) for name in _CURVES}
        tried.append({"lr": pair[0], option: pair[1], **ends})
    best = min(tried, key=lambda entry: entry[key])
    runs = [record for record in own if (record["lr"], record["option"]) == (best["lr"], best[option])]
    return {
        "groups": number,
        "method": method,
        "lr": best["lr"],
        option: best[option],
        "samples": runs[0]["samples"],
        **{name: np.mean([run[name] for run in runs], axis=0).round(5).tolist() for name in _CURVES},
        "last": {name: [run[name][-1] for run in runs] for name in _CURVES},
        "tried": tried,
    }


def _row(curve: dict[str, Any]) -> list[str]:
    name = convergence.OPTIONS[curve["method"]]
    ends = [f"{np.mean(curve['last'][key]):.3f}" for key in _CURVES]
    title = convergence.TITLES[curve["method"]]
    return [f"{curve['groups']:,}", title, f"{curve['lr']:g}", f"{name} {curve[name]:g}", *ends]


def _draw(curves: list[dict[str, Any]]) -> Image:
    figure = Figure(figsize=(10.0, 5.6), layout="constrained")
    axes = figure.subplots(2, len(convergence.NUMBERS), sharex=True, squeeze=False)
    for column, number in enumerate(convergence.NUMBERS):
        for row, (key, words) in enumerate(_CURVES.items()):
            panel = axes[row, column]
            for curve in (curve for curve in curves if curve["groups"] == number):
                title, colour = convergence.TITLES[curve["method"]], _COLOURS[curve["method"]]
                dashes = "--" if curve["method"] == "unscaled" else "-"
                panel.plot(curve["samples"][1:], curve[key][1:], dashes, label=title, color=colour)
            panel.set_xscale("log")
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(alpha=0.25)
            panel.set_title(f"{number:,} groups" if row == 0 else "", fontsize=10)
            panel.set_ylabel(f"loss, {words}" if column == 0 else "")
            panel.set_xlabel("samples drawn" if row == 1 else "")
    axes[0, 0].legend(frameon=False, fontsize=8)
    return as_image(figure, "Training loss of the worst groups against samples drawn, 8 groups in a batch.")
