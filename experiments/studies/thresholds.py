"""Update rules of the TPAUC loss's thresholds: the paper's steps of several sizes, and quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.datasets import make_classification

from experiments.config import combinations
from experiments.engine import Record, Setup, Study, Task
from experiments.machine import seeded
from experiments.studies._shared import FOLDS, mean_and_std, show, tune_and_score
from moreauc.app.comparison import Region, Table, network
from moreauc.app.report.pages import Report, Section
from moreauc.core.objectives import tpauc_optimum
from moreauc.criteria import TPAUCLoss
from moreauc.data import TensorBatches
from moreauc.data.examples import load_example
from moreauc.data.tabular import TableEncoder
from moreauc.models import MLP
from moreauc.samplers import PosNegSampler
from moreauc.train import fit, predict_scores

RULES: dict[str, Any] = {
    "steps 0.01, 0.01": (0.01, 0.01),
    "steps 1, 0.01": (1.0, 0.01),
    "steps 1, 0.1": (1.0, 0.1),
    "steps 16, 0.01": (16.0, 0.01),
    "quantile": "quantile",
}
LINKS = ("sigmoid", "identity")
REGION: Region = (0.6, 0.4)
_RATES = (0.001, 0.003, 0.01)


@lru_cache(maxsize=4)
def load_table(name: str) -> Table:
    """Return a table of the study: an example that ships with scikit-learn, or the made one."""
    if name != "made":
        X, y, _ = load_example(name)
        return Table(X, y)
    return Table(
        *make_classification(
            1500, 20, n_informative=8, n_redundant=4, n_clusters_per_class=3, weights=[0.95], flip_y=0.0, random_state=0
        )
    )


@dataclass(frozen=True, kw_only=True)
class ThresholdStudy(Study):
    """Exact training objective and held-out TPAUC for each rule.

    Args:
        trials: options tried by each rule for the held-out scores.
        epochs: epochs of the runs for the training objective.
        sets: names of tables.
        rules: names of rules.
    """

    trials: int
    epochs: int
    sets: tuple[str, ...] = ("digits", "breast_cancer", "diabetes", "made")
    rules: tuple[str, ...] = tuple(RULES)
    planned: ClassVar = ("trials", "epochs")
    tiny: ClassVar = {"seeds": 1, "trials": 1, "epochs": 1, "sets": ("breast_cancer",), "rules": ("quantile",)}

    def tasks(self, setup: Setup) -> list[Task]:
        """Return a task for each fold and, for the training objective, for each whole table."""
        tasks = []
        for place in combinations(dataset=self.sets, rule=self.rules, link=LINKS, seed=range(self.seeds)):
            tasks.append(Task({"kind": "objective", **place}, reach, {**place, "epochs": self.epochs}, stage=1))
            for fold in range(FOLDS):
                own = {**place, "fold": fold}
                tasks.append(Task({"kind": "fold", **own}, run_fold, {**own, "trials": self.trials}))
        return tasks

    def report(self, records: Sequence[Record], out: Path) -> Report:
        """Return the training objectives and the means over test folds."""
        kept = ("dataset", "rule", "link", "seed", "objective", "lag", "lr")
        objectives = [{key: r[key] for key in kept} for r in records if r["kind"] == "objective"]
        held_out = []
        for rule, link, dataset in product(self.rules, LINKS, self.sets):
            place = {"dataset": dataset, "rule": rule, "link": link}
            scores = [r["score"] for r in records if r["kind"] == "fold" and place.items() <= r.items()]
            held_out.append({**place, **mean_and_std(scores), "folds": len(scores)})
        results = {"region": REGION, "seeds": self.seeds, **self.plan, "held_out": held_out, "objectives": objectives}
        sections = [_objective_section(self.sets, objectives), _held_out_section(held_out)]
        return Report(self.title, "", results, sections)


def run_fold(*, dataset: str, rule: str, link: str, seed: int, fold: int, trials: int) -> Record:
    """Tune SONX with one rule on the training rows of one fold and test it."""
    variant = network(
        "sonx",
        name=f"{rule}, {link}",
        grid={"threshold_lr": (RULES[rule],), "link": (link,), "widen": (0.0,), "gamma": (0.0, 0.1)},
        settings={"batch_size": 256},
    )
    (found,) = tune_and_score(variant, load_table(dataset), (REGION,), seed=seed, fold=fold, trials=trials)
    return {key: found[key] for key in ("score", "seconds")}


def reach(*, dataset: str, rule: str, link: Any, seed: int, epochs: int) -> Record:
    """Train on a whole table with a few learning rates; return the lowest exact objective and how far `s` is off.

    `lag` is the mean of |s_i - s_i*| over the positives divided by the mean of s_i*, with s_i* the best thresholds of
    the final model; it is undefined where those are 0, since all pairs are ordered.
    """
    table = load_table(dataset)
    x = torch.from_numpy(TableEncoder().fit(table.X).transform(table.X))
    y = torch.from_numpy(np.asarray(table.positive))
    best: dict[str, Any] = {"objective": float("inf")}
    for lr in _RATES:
        model = seeded(seed, MLP, x.shape[1])
        criterion = TPAUCLoss(y, min_tpr=REGION[0], max_fpr=REGION[1], link=link, threshold_lr=RULES[rule])
        sampler = PosNegSampler(y, num_positives=64, num_negatives=128, seed=seed)
        batches = TensorBatches(x, y, sampler)
        fit(model, criterion, batches, epochs=epochs, optimizer="adam", lr=lr, weight_decay=0.01, seed=seed)
        scores, _ = predict_scores(model, TensorBatches(x, y))
        optimum = tpauc_optimum(scores, y, min_tpr=REGION[0], max_fpr=REGION[1], link=link)
        if optimum.value < best["objective"]:
            off = (criterion.s.double() - optimum.s).abs().mean() / optimum.s.mean().clamp_min(1e-12)
            best = {"objective": optimum.value, "lag": float(off), "lr": lr}
    return best


def _objective_section(names: Sequence[str], objectives: list[Record]) -> Section:
    rows = []
    for link in LINKS:
        for rule in dict.fromkeys(entry["rule"] for entry in objectives):
            own = [r for r in objectives if r["rule"] == rule and r["link"] == link]
            cells = []
            for name in names:
                there = [r for r in own if r["dataset"] == name]
                value, lag = (float(np.mean([r[key] for r in there])) for key in ("objective", "lag"))
                cells.append(f"{value:.3f}" if value < 0.05 else f"{value:.3f} ({lag:.2f})")
            rows.append([rule, link, *cells])
    text = [
        "Exact objective on the training rows at the end, optimal thresholds, lowest of three learning rates. Lower "
        "is better; the two links have different scales. In brackets, if the objective is not near 0, the relative "
        "distance of the loss's thresholds from the optimal ones."
    ]
    return Section("Training objective", text, columns=["thresholds", "link", *names], rows=rows, labels=2)


def _held_out_section(cells: list[Record]) -> Section:
    text = [f"TPAUC on test folds at TPR ≥ {REGION[0]:g}, FPR ≤ {REGION[1]:g}, mean ± standard deviation over folds."]
    columns, rows = held_out_table(cells)
    return Section("Held-out TPAUC", text, columns=columns, rows=rows, labels=1)


def held_out_table(cells: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the scores of test folds: a column for each table, and the mean over them."""
    rows = []
    for rule, link in dict.fromkeys((cell["rule"], cell["link"]) for cell in cells):
        own = [cell for cell in cells if (cell["rule"], cell["link"]) == (rule, link)]
        mean = float(np.mean([cell["mean"] for cell in own]))
        rows.append([f"{rule}, {link}", *map(show, own), f"{mean:.3f}"])
    return ["thresholds, link", *dict.fromkeys(cell["dataset"] for cell in cells), "mean"], rows
