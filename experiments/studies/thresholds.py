"""How the thresholds of the TPAUC loss should move: the paper's steps of several sizes, and quantiles."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import make_classification

from moreauc.comparison import Comparison, Contestant, Region, Table, network, run_pieces
from moreauc.core.objectives import tpauc_optimum
from moreauc.criteria import TPAUCLoss
from moreauc.criteria._labelled import Link
from moreauc.criteria._two_way import ThresholdRate
from moreauc.data import TensorBatches
from moreauc.data.examples import EXAMPLES, load_example
from moreauc.data.tabular import TableEncoder
from moreauc.models import MLP
from moreauc.report.pages import Report, Section
from moreauc.samplers import PosNegSampler
from moreauc.train import fit, predict_scores

RULES: dict[str, ThresholdRate] = {
    "steps 0.01, 0.01": (0.01, 0.01),
    "steps 1, 0.01": (1.0, 0.01),
    "steps 1, 0.1": (1.0, 0.1),
    "steps 16, 0.01": (16.0, 0.01),
    "quantile": "quantile",
}
LINKS: tuple[Link, ...] = ("sigmoid", "identity")
REGION: Region = (0.6, 0.4)
_RATES = (0.001, 0.003, 0.01)


def study_tables() -> dict[str, Table]:
    """Return the tables of the study: the examples that ship with scikit-learn, and a made one."""
    tables = {}
    for name in EXAMPLES:
        X, y, _ = load_example(name)
        tables[name] = Table(X, y)
    X, y = make_classification(
        1500, 20, n_informative=8, n_redundant=4, n_clusters_per_class=3, weights=[0.95], flip_y=0.0, random_state=0
    )
    return {**tables, "made": Table(X, y)}


@dataclass(frozen=True)
class ThresholdStudy:
    """Exact training objective and held-out TPAUC for each rule.

    Args:
        seeds: repetitions, at least 1.
        trials: options tried by each rule for the held-out scores.
        epochs: epochs of the runs for the training objective.
        jobs: processes.
    """

    seeds: int = 2
    trials: int = 4
    epochs: int = 30
    jobs: int = 2

    def report(self, out: Path, *, progress: Callable[[int, int], None] | None = None) -> Report:
        """Run, and write `report.json` and the page into `out`."""
        started = time.perf_counter()
        tables = study_tables()
        variants = [
            network(
                "sonx",
                name=f"{rule}, {link}",
                title=f"{rule}, {link}",
                grid={"threshold_lr": (rate,), "link": (link,), "widen": (0.0,), "gamma": (0.0, 0.1)},
                settings={"batch_size": 256},
            )
            for rule, rate in RULES.items()
            for link in LINKS
        ]
        plan = Comparison(variants, (REGION,), inner_folds=2, seeds=self.seeds, trials=self.trials, jobs=self.jobs)
        work = [(task, name) for name in tables for task in plan.pieces()]
        records = []
        for done, (number, found) in enumerate(run_pieces(work, tables, plan, jobs=self.jobs), 1):
            task, name = work[number]
            kept = {key: found[0][key] for key in ("score", "seconds")}
            records.append({"rule": task.contestant.name, "set": name, "seed": task.seed, "fold": task.fold, **kept})
            if progress is not None:
                progress(done, len(work))
        records.sort(key=lambda entry: (entry["rule"], entry["set"], entry["seed"], entry["fold"]))
        runs = [
            (table, name, rule, link, seed, self.epochs)
            for name, table in tables.items()
            for rule in RULES
            for link in LINKS
            for seed in range(self.seeds)
        ]
        if self.jobs == 1:
            objectives = [reach(*run) for run in runs]
        else:
            with ProcessPoolExecutor(self.jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
                objectives = list(pool.map(reach, *zip(*runs, strict=True)))
        held_out = _held_out(variants, list(tables), records)
        results: dict[str, Any] = {
            "region": REGION,
            "seeds": self.seeds,
            "trials": self.trials,
            "epochs": self.epochs,
            "held_out": held_out,
            "objectives": objectives,
            "records": records,
        }
        sections = [_objective_section(list(tables), objectives), _held_out_section(list(tables), held_out)]
        command = (
            f"python -m experiments study thresholds --seeds {self.seeds} --trials {self.trials} --epochs {self.epochs}"
        )
        report = Report("Thresholds of the TPAUC loss", command, results, sections)
        report.seconds = time.perf_counter() - started
        report.write(out)
        return report


def reach(table: Table, name: str, rule: str, link: Link, seed: int, epochs: int) -> dict[str, Any]:
    """Train on a whole table with a few learning rates; return the lowest exact objective and how far `s` is off.

    `lag` is the mean of |s_i - s_i*| over the positives divided by the mean of s_i*, with s_i* the best thresholds of
    the final model; it says nothing where those are 0, all pairs being in order.
    """
    x = torch.from_numpy(TableEncoder().fit(table.X).transform(table.X))
    y = torch.from_numpy(np.asarray(table.positive))
    best: dict[str, Any] = {"objective": float("inf")}
    for lr in _RATES:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = MLP(x.shape[1])
        criterion = TPAUCLoss(
            y,
            min_tpr=REGION[0],
            max_fpr=REGION[1],
            link=link,
            threshold_lr=RULES[rule],
        )
        sampler = PosNegSampler(y, num_positives=64, num_negatives=128, seed=seed)
        batches = TensorBatches(x, y, sampler)
        fit(model, criterion, batches, epochs=epochs, optimizer="adam", lr=lr, weight_decay=0.01, seed=seed)
        scores, _ = predict_scores(model, TensorBatches(x, y))
        optimum = tpauc_optimum(scores, y, min_tpr=REGION[0], max_fpr=REGION[1], link=link)
        if optimum.value < best["objective"]:
            off = (criterion.s.double() - optimum.s).abs().mean() / optimum.s.mean().clamp_min(1e-12)
            best = {"objective": optimum.value, "lag": float(off), "lr": lr}
    return {"set": name, "rule": rule, "link": link, "seed": seed, **best}


def _held_out(variants: list[Contestant], names: list[str], records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    cells = []
    for variant in variants:
        for name in names:
            scores = [r["score"] for r in records if r["rule"] == variant.name and r["set"] == name]
            cell = {"rule": variant.name, "set": name, "mean": float(np.mean(scores))}
            cells.append(cell | {"std": float(np.std(scores, ddof=1)), "folds": len(scores)})
    return cells


def _objective_section(names: list[str], objectives: list[dict[str, Any]]) -> Section:
    rows = []
    for link in LINKS:
        for rule in RULES:
            own = [r for r in objectives if r["rule"] == rule and r["link"] == link]
            cells = []
            for name in names:
                there = [r for r in own if r["set"] == name]
                value, lag = (float(np.mean([r[key] for r in there])) for key in ("objective", "lag"))
                cells.append(f"{value:.3f}" if value < 0.05 else f"{value:.3f} ({lag:.2f})")
            rows.append([rule, link, *cells])
    text = [
        "Exact objective on the training rows at the end, thresholds at their best, lowest of three learning rates; in "
        "brackets, where that is not near 0, how far the thresholds of the loss are from the best ones, relative to "
        "those. Lower is better; the "
        "two links have different scales."
    ]
    return Section("Training objective", text, columns=["thresholds", "link", *names], rows=rows, labels=2)


def _held_out_section(names: list[str], cells: list[dict[str, Any]]) -> Section:
    rows = []
    for rule in dict.fromkeys(cell["rule"] for cell in cells):
        own = [cell for cell in cells if cell["rule"] == rule]
        mean = float(np.mean([cell["mean"] for cell in own]))
        rows.append([rule, *(f"{cell['mean']:.3f} ± {cell['std']:.3f}" for cell in own), f"{mean:.3f}"])
    text = [f"TPAUC on test folds at TPR ≥ {REGION[0]:g}, FPR ≤ {REGION[1]:g}, mean ± standard deviation over folds."]
    columns = ["thresholds, link", *names, "mean"]
    return Section("Held-out TPAUC", text, columns=columns, rows=rows, labels=1)
