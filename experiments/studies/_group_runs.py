"""Runs of the study of groups: a method on one draw of the data, tuned by the validation part, tested once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from experiments.data.groups import load_adult, load_compas
from moreauc.data import TensorBatches, planted_groups
from moreauc.data.planted import GroupData
from moreauc.data.tabular import TableEncoder
from moreauc.methods import METHODS, build
from moreauc.metrics import group_accuracy, group_loss, group_values
from moreauc.models import MLP
from moreauc.samplers.groups import GroupSampler, PlainSampler
from moreauc.train import fit, predict_scores

GroupSet = Literal["planted", "adult", "compas"]
RATES = (0.01, 0.03, 0.003, 0.001, 0.02, 0.005, 0.0003, 0.1)
SETTINGS = 8
HIDDEN, GROUPS_PER_BATCH = (32,), 8
TOP_K: Mapping[str, int] = {"planted": 1, "adult": 3, "compas": 3}


@dataclass(frozen=True)
class Protocol:
    """What the methods have in common on a data set.

    Attributes:
        epochs: epochs in all.
        samples: rows of each group in a group-balanced batch; plain batches are as large.
        samplers: batches that are offered: "groups" (balanced) and "plain".
        starts: shares of the epochs that are cross entropy before the method sets in, offered to all but ERM.
    """

    epochs: int
    samples: int
    samplers: tuple[str, ...]
    starts: tuple[float, ...] = (0.0,)


# K = 1 moves the weights by one group at a time: 64 rows of it, after a start by cross entropy, where the tables of the
# real data, whose smallest groups have fewer rows than that, keep to 16 and no start.
PROTOCOLS: Mapping[str, Protocol] = {
    "planted": Protocol(epochs=120, samples=64, samplers=("groups",), starts=(0.0, 1 / 3)),
    "adult": Protocol(epochs=30, samples=16, samplers=("groups", "plain")),
    "compas": Protocol(epochs=30, samples=16, samplers=("groups", "plain")),
}


@dataclass(frozen=True)
class Parts:
    """Encoded rows of one draw, and the names of the groups."""

    train: GroupData
    validation: GroupData
    test: GroupData


def settings(method: str, name: GroupSet, number: int) -> list[dict[str, Any]]:
    """Return the first `number` of 8 settings of a method on a data set.

    Step sizes, samplers, starts, and two values of a method's option where it has one. ERM takes plain batches only,
    since with group-balanced ones it is the method of equal group weights, which is offered both; a start by cross
    entropy is what ERM does anyway.
    """
    protocol = PROTOCOLS[name]
    option, values = next(iter(METHODS["groups"][method].grid.items()), ("", ("",)))
    samplers = {"erm": ("plain",), "erm_reweighted": ("groups", "plain")}.get(method, protocol.samplers)
    starts = (0.0,) if method == "erm" else protocol.starts
    rates = RATES[: SETTINGS // (len(samplers) * len(values) * len(starts))]
    every = [
        {
            "lr": rate,
            "sampler": sampler,
            **({option: value} if option else {}),
            **({"start": start} if len(protocol.starts) > 1 else {}),
        }
        for value, start, rate, sampler in product(values, starts, rates, samplers)
    ]
    return every[:number]


def draw_parts(name: GroupSet, seed: int, folder: Path | None) -> Parts:
    """Return the parts of a data set: planted rows drawn anew for each seed, the others split 60 : 20 : 20 by group."""
    if name == "planted":
        return Parts(*planted_groups(seed=seed))
    data = load_adult(folder, drop_group_columns=True) if name == "adult" else load_compas(folder)
    rows = np.arange(len(data))
    rest, test = train_test_split(rows, test_size=0.2, stratify=data.groups, random_state=seed)
    train, validation = train_test_split(rest, test_size=0.25, stratify=data.groups[rest], random_state=seed)
    table = TableEncoder().fit(data.X, rows=train).encode(data.X)
    whole = GroupData(table, data.y, data.groups, data.names)
    return Parts(*(whole.subset(part) for part in (train, validation, test)))


def tune_and_test(
    method: str, name: GroupSet, seed: int, *, trials: int, epochs: int, folder: Path | None
) -> dict[str, Any]:
    """Train by every setting, choose by the K worst groups of the validation part, test the choice once."""
    started = time.perf_counter()
    parts, top_k = draw_parts(name, seed, folder), TOP_K[name]
    tried: list[dict[str, Any]] = []
    best: tuple[nn.Module, float, dict[str, Any]] | None = None
    for setting in settings(method, name, trials):
        model, merit = _train(method, parts, setting, seed, top_k, epochs, PROTOCOLS[name].samples)
        tried.append({**setting, "validation": merit})
        if model is not None and merit is not None and (best is None or merit > best[1]):
            best = (model, merit, setting)
    if best is None:
        raise ValueError(f"GroupStudy: every setting of {METHODS['groups'][method].title} diverged with seed {seed}")
    model, _, setting = best
    result = {"set": name, "method": method, "seed": seed, "setting": setting, "tried": tried}
    return {**result, **_measure(model, parts.test, top_k), "seconds": time.perf_counter() - started}


def sample_losses(scores: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """Return the logistic loss of each row."""
    losses = nn.functional.binary_cross_entropy_with_logits(scores.double(), labels.double(), reduction="none")
    return losses.numpy()


def _train(
    method: str, parts: Parts, setting: dict[str, Any], seed: int, top_k: int, epochs: int, samples: int
) -> tuple[nn.Module | None, float | None]:
    """Return the model of the best epoch, and minus its loss of the K worst validation groups; None if it diverged."""
    train, validation = parts.train, parts.validation
    options = {key: value for key, value in setting.items() if key not in ("lr", "sampler", "start")}
    # weights on top of balanced batches would count small groups twice
    loss = "erm" if method == "erm_reweighted" and setting["sampler"] == "groups" else method
    criterion = build("groups", loss, train.groups, num_groups=train.num_groups, top_k=top_k, **options)
    size = GROUPS_PER_BATCH * samples
    before = int(setting.get("start", 0.0) * epochs)
    sampler: PlainSampler | GroupSampler = PlainSampler(len(train), batch_size=size, seed=seed)
    if setting["sampler"] == "groups":
        present = min(GROUPS_PER_BATCH, train.num_groups)
        sampler = GroupSampler(
            train.groups,
            groups_per_batch=present,
            samples_per_group=size // present,
            num_groups=train.num_groups,
            seed=seed,
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MLP(train.X.shape[1], hidden=HIDDEN)

    def score(scores: Tensor, labels: Tensor) -> float:
        return -group_loss(sample_losses(scores, labels), validation.groups, top_k=top_k)

    batches = TensorBatches(torch.from_numpy(train.X), torch.from_numpy(train.y), sampler)
    held = TensorBatches(torch.from_numpy(validation.X), torch.from_numpy(validation.y), batch_size=8192)
    try:
        history = fit(
            model, criterion, batches, validation=held, score=score, epochs=epochs - before, optimizer="adam",
            lr=setting["lr"], weight_decay=1e-4, seed=seed, warm_start_epochs=before,
        )  # fmt: skip
    except ValueError:  # losses that are not finite
        return None, None
    return model, history.best_score


def _measure(model: nn.Module, test: GroupData, top_k: int) -> dict[str, Any]:
    batches = TensorBatches(torch.from_numpy(test.X), torch.from_numpy(test.y), batch_size=8192)
    scores, labels = predict_scores(model, batches)
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
