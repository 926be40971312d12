"""SONX over groups beside other losses, logistic regression and boosted trees: tuned by validation, tested once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from torch import Tensor, nn

from experiments.config import Setting, combinations
from experiments.data.groups import load_adult, load_compas
from experiments.engine import Record, Setup, Study, Task
from experiments.machine import seeded
from experiments.studies._shared import mean_and_std, show, split_rows, tune
from moreauc._registry import BASELINES, METHODS
from moreauc.app.baselines import group_weights
from moreauc.app.comparison import baseline
from moreauc.app.report.pages import Report, Section
from moreauc.data import TensorBatches, planted_groups
from moreauc.data.examples import GroupData
from moreauc.data.tabular import TableEncoder
from moreauc.methods import build
from moreauc.metrics import group_accuracy, group_loss
from moreauc.metrics.groups import group_values
from moreauc.models import MLP
from moreauc.samplers.groups import GroupSampler, ShuffledSampler
from moreauc.train import fit, predict_scores

RATES = (0.01, 0.03, 0.003, 0.001, 0.02, 0.005, 0.0003, 0.1)
SETTINGS = 8
HIDDEN, GROUPS_PER_BATCH = (32,), 8
_TITLES = {name: entry.title for name, entry in METHODS["groups"].items()}
_TITLES |= {name: entry.title for name, entry in BASELINES["groups"].items()}
_MEASURES = {
    "worst_loss": "worst loss",
    "top_k_loss": "K worst, loss",
    "mean_loss": "mean loss",
    "worst_accuracy": "worst accuracy",
    "top_k_accuracy": "K worst, accuracy",
    "mean_accuracy": "mean accuracy",
}


@dataclass(frozen=True, kw_only=True)
class GroupStudy(Study):
    """Loss and accuracy of the worst groups, by five losses and four baselines that are tuned with equal effort.

    Args:
        dataset: "planted" (made here), "adult" or "compas".
        top_k: how many worst groups count.
        trials: settings tried by each method, in [1, 8], compared on the K worst groups of the validation part.
        epochs: epochs in all.
        samples: rows of each group in a group-balanced batch; plain batches are as large.
        samplers: batches that are offered: "groups" (balanced) and "plain".
        starts: shares of the epochs that are cross entropy before the method sets in, offered to all but ERM.
    """

    dataset: str
    top_k: int
    trials: int
    epochs: int
    samples: int
    samplers: tuple[str, ...]
    starts: tuple[float, ...] = (0.0,)
    planned: ClassVar = ("trials", "epochs")
    tiny: ClassVar = {"dataset": "planted", "top_k": 1, "seeds": 2, "trials": 1, "epochs": 1}

    def tasks(self, setup: Setup) -> list[Task]:
        """Return a task for each method and draw."""
        places = combinations(dataset=[self.dataset], method=_TITLES, seed=range(self.seeds))
        return [Task(place, tune_and_test, {"study": self, **place, "folder": setup.data}) for place in places]

    def settings(self, method: str) -> list[Setting]:
        """Return the settings of a method.

        Step sizes, samplers, starts, and two values of a method's option, if it has one. ERM has plain batches only:
        with group-balanced ones it is the method of equal group weights, which has both. ERM has no start by cross
        entropy, which it minimises itself. Settings of a baseline are drawn from its grid.
        """
        if method in BASELINES["groups"]:
            return baseline("groups", method).draw(self.trials, seed=0)
        option, values = next(iter(METHODS["groups"][method].grid.items()), ("", ("",)))
        samplers = {"erm": ("plain",), "erm_reweighted": ("groups", "plain")}.get(method, self.samplers)
        starts = (0.0,) if method == "erm" else self.starts
        rates = RATES[: SETTINGS // (len(samplers) * len(values) * len(starts))]
        every = [
            {
                "lr": rate,
                "sampler": sampler,
                **({option: value} if option else {}),
                **({"start": start} if len(self.starts) > 1 else {}),
            }
            for value, start, rate, sampler in product(values, starts, rates, samplers)
        ]
        return every[: self.trials]

    def report(self, records: Sequence[Record], out: Path) -> Report:
        """Return mean and spread of every measure."""
        cells = []
        for method, title in _TITLES.items():
            own = [record for record in records if record["method"] == method]
            spread = {key: list(mean_and_std([record[key] for record in own]).values()) for key in _MEASURES}
            cells.append({"method": method, "title": title, **spread})
        about = {"set": self.dataset, "top_k": self.top_k, "seeds": self.seeds}
        return Report(self.title, "", {**about, **self.plan, "cells": cells}, [self._section(cells, records)])

    def _section(self, cells: list[Record], records: Sequence[Record]) -> Section:
        sizes = records[0]["group_sizes"]
        offered = "plain and group-balanced batches" if len(self.samplers) > 1 else "group-balanced batches"
        if len(self.starts) > 1:
            offered += ", from scratch and from a start by cross entropy"
        text = [
            f"{len(sizes)} groups of {min(sizes)} to {max(sizes)} test rows, K = {self.top_k}; mean ± standard "
            f"deviation over {self.seeds} draws. A network with a hidden layer of {HIDDEN[0]}, Adam, {self.epochs} "
            f"epochs, batches of {GROUPS_PER_BATCH * self.samples} rows. Every method tries {self.trials} "
            f"settings ({offered}); setting and epoch are chosen by the loss of the K "
            "worst validation groups. LR and boosted trees of scikit-learn get the same encoded rows; their first "
            "setting is the library's default. Losses: lower is better; means are over groups."
        ]
        columns, rows = group_table(cells)
        return Section(f"Test rows, {self.dataset}", text, columns=columns, rows=rows, labels=1)


def group_table(cells: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the table: every measure of each method."""
    rows = []
    for cell in cells:
        pairs = [dict(zip(("mean", "std"), cell[key], strict=True)) for key in _MEASURES]
        rows.append([cell["title"], *map(show, pairs)])
    return ["method", *_MEASURES.values()], rows


@dataclass(frozen=True)
class Parts:
    """Encoded rows of one draw, and the names of the groups."""

    train: GroupData
    validation: GroupData
    test: GroupData


def draw_parts(name: str, seed: int, folder: Path | None) -> Parts:
    """Return the parts of a data set: planted rows drawn anew for each seed, the others split 60 : 20 : 20 by group."""
    if name == "planted":
        return Parts(*planted_groups(seed=seed))
    data = (load_adult if name == "adult" else load_compas)(folder)
    rows = split_rows(data.groups, seed)
    table = TableEncoder().fit_encode(data.X, rows=rows[0])
    whole = GroupData(table, data.y, data.groups, data.names)
    return Parts(*(whole.subset(part) for part in rows))


def tune_and_test(*, study: GroupStudy, dataset: str, method: str, seed: int, folder: Path | None) -> Record:
    """Train by every setting, choose by the K worst groups of the validation part, test the choice once."""
    parts = draw_parts(dataset, seed, folder)
    train = partial(_fit if method in BASELINES["groups"] else _train, study, method, parts, seed)
    model, choice = tune(study.settings(method), train, "validation", f"{study.name}, {_TITLES[method]}, seed {seed}")
    del choice["validation"]  # it is also in `tried`
    return {**choice, **_measure(model, parts.test, study.top_k)}


def sample_losses(scores: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """Return the logistic loss of each row."""
    losses = nn.functional.binary_cross_entropy_with_logits(scores.double(), labels.double(), reduction="none")
    return losses.numpy()


def _train(study: GroupStudy, method: str, parts: Parts, seed: int, setting: Record) -> tuple[nn.Module | None, Record]:
    """Return the model of the best epoch, and minus its loss of the K worst validation groups; None if it diverged."""
    train, validation, top_k = parts.train, parts.validation, study.top_k
    options = {key: value for key, value in setting.items() if key not in ("lr", "sampler", "start")}
    # weights on top of balanced batches would count small groups twice
    loss = "erm" if method == "erm_reweighted" and setting["sampler"] == "groups" else method
    criterion = build("groups", loss, train.groups, num_groups=train.num_groups, top_k=top_k, **options)
    size = GROUPS_PER_BATCH * study.samples
    before = int(setting.get("start", 0.0) * study.epochs)
    sampler: ShuffledSampler | GroupSampler = ShuffledSampler(len(train), batch_size=size, seed=seed)
    if setting["sampler"] == "groups":
        present = min(GROUPS_PER_BATCH, train.num_groups)
        sampler = GroupSampler(
            train.groups,
            groups_per_batch=present,
            samples_per_group=size // present,
            num_groups=train.num_groups,
            seed=seed,
        )
    model = seeded(seed, MLP, train.X.shape[1], hidden=HIDDEN)

    def score(scores: Tensor, labels: Tensor) -> float:
        return -group_loss(sample_losses(scores, labels), validation.groups, top_k=top_k)

    batches = TensorBatches(torch.from_numpy(train.X), torch.from_numpy(train.y), sampler)
    held = TensorBatches(torch.from_numpy(validation.X), torch.from_numpy(validation.y), batch_size=8192)
    try:
        history = fit(
            model, criterion, batches, validation=held, score=score, epochs=study.epochs - before, optimizer="adam",
            lr=setting["lr"], weight_decay=1e-4, seed=seed, warm_start_epochs=before,
        )  # fmt: skip
    except ValueError:  # losses that are not finite
        return None, {"validation": None}
    return model, {"validation": history.best_score}


def _fit(study: GroupStudy, method: str, parts: Parts, seed: int, setting: Record) -> tuple[Any, Record]:
    """Return a fitted baseline, and minus its loss of the K worst validation groups."""
    train, held = parts.train, parts.validation
    model = baseline("groups", method).make(setting, (0.0, 1.0), seed)
    weights = group_weights(train.groups) if BASELINES["groups"][method].equal_groups else None
    model.fit(train.X, train.y, sample_weight=weights)
    losses = sample_losses(*_scores(model, held))
    return model, {"validation": -group_loss(losses, held.groups, top_k=study.top_k)}


def _scores(model: nn.Module | ClassifierMixin, data: GroupData) -> tuple[Tensor, Tensor]:
    """Return the log odds of every row by a network or a baseline, and the labels."""
    labels = torch.from_numpy(data.y)
    if isinstance(model, nn.Module):
        return predict_scores(model, TensorBatches(torch.from_numpy(data.X), labels, batch_size=8192))
    return torch.from_numpy(model.decision_function(data.X)), labels


def _measure(model: nn.Module | ClassifierMixin, test: GroupData, top_k: int) -> Record:
    scores, labels = _scores(model, test)
    losses, right = sample_losses(scores, labels), (scores > 0).numpy().astype(int)
    arguments: tuple[Any, Any, Any] = (labels.numpy(), right, test.groups)
    accuracy = group_values((arguments[0] == right).astype(float), test.groups, num_groups=test.num_groups)
    return {
        "worst_loss": group_loss(losses, test.groups, top_k=1),
        "top_k_loss": group_loss(losses, test.groups, top_k=top_k),
        "mean_loss": group_loss(losses, test.groups, top_k=test.num_groups),
        "worst_accuracy": group_accuracy(*arguments, top_k=1),
        "top_k_accuracy": group_accuracy(*arguments, top_k=top_k),
        "mean_accuracy": group_accuracy(*arguments),
        "row_accuracy": float((arguments[0] == right).mean()),
        "group_accuracy": [round(float(value), 4) for value in accuracy],
        "group_sizes": test.sizes.tolist(),
    }
