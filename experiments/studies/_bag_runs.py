"""Runs of the study of bags: one method on one draw of the data, tuned on the validation part, tested once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from torch import nn

from experiments.data.mil import (
    load_fox,
    load_musk2,
    standardize_instances,
)
from moreauc.data import (
    BagBatches,
    Bags,
    WholeBags,
    digit_bags,
    instance_outputs,
    instance_weights,
)
from moreauc.methods import METHODS, build
from moreauc.metrics import tpauc_score
from moreauc.models import InstanceMLP
from moreauc.samplers import PosNegSampler
from moreauc.train import fit, predict_scores

Numbers = NDArray[Any]
BagSet = Literal["digits", "musk2", "fox"]
REGION: dict[str, Any] = {"min_tpr": 0.5, "max_fpr": 0.5}
RATES = (0.003, 0.001, 0.01)
EPOCHS, BAGS, INSTANCES = 60, 8, 4


@dataclass(frozen=True)
class BagContestant:
    """A method of the study.

    Attributes:
        name: key in the results.
        title: name in tables.
        method: key of `METHODS["bags"]`.
        options: options of its loss that are not tuned.
        literal: whether it reads the rows that the paper's box does, which is reported apart.
    """

    name: str
    title: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    literal: bool = False

    def settings(self, number: int) -> list[dict[str, Any]]:
        """Return the first `number` settings to try: learning rates with the values of the first option of its grid."""
        option, values = next(iter(METHODS["bags"][self.method].grid.items()))
        return [{"lr": rate, option: value} for value, rate in product(values, RATES)][:number]


def bag_contestants() -> list[BagContestant]:
    """Return every method, and SONT with the rows that the paper's box reads."""
    every = [BagContestant(name, preset.title, name) for name, preset in METHODS["bags"].items()]
    literal = [
        BagContestant(f"{entry.name}_literal", f"{entry.title}, rows before", entry.method, {"rows": "before"}, True)
        for entry in every
        if entry.name.startswith("sont")
    ]
    return every + literal


@dataclass(frozen=True)
class Parts:
    """Bags to train on, to choose by and to test on; `target` tells which instances make a test bag positive."""

    train: Bags
    validation: Bags
    test: Bags
    target: list[Numbers] | None = None


def draw_parts(name: BagSet, seed: int, folder: Path | None) -> Parts:
    """Return the parts of a data set: digits drawn anew for each seed, the others split 60 : 20 : 20 by bag."""
    if name == "digits":
        digits = digit_bags(seed=seed)
        target = [digits.digits_of("test", bag).numpy() == digits.target for bag in range(len(digits.test))]
        return Parts(digits.train, digits.validation, digits.test, target)
    bags = (load_musk2 if name == "musk2" else load_fox)(folder)
    labels, rows = bags.labels.numpy(), np.arange(len(bags))
    rest, test = train_test_split(rows, test_size=0.2, stratify=labels, random_state=seed)
    train, validation = train_test_split(rest, test_size=0.25, stratify=labels[rest], random_state=seed)
    scaled = standardize_instances(*(bags.subset(torch.from_numpy(part)) for part in (train, validation, test)))
    return Parts(scaled[0], scaled[1], scaled[2])


def tune_and_test(
    contestant: BagContestant, name: BagSet, seed: int, *, trials: int, epochs: int, folder: Path | None
) -> dict[str, Any]:
    """Train by every setting, choose by the validation part, test the choice once."""
    started = time.perf_counter()
    parts = draw_parts(name, seed, folder)
    tried: list[dict[str, Any]] = []
    best: tuple[nn.Module, dict[str, Any], dict[str, Any]] | None = None
    for setting in contestant.settings(trials):
        model, record = _train(contestant, parts, setting, seed, epochs)
        tried.append({**setting, **record})
        if model is not None and (best is None or record["scores"] > best[1]["scores"]):
            best = (model, record, setting)
    if best is None:
        raise ValueError(f"BagStudy: every setting of {contestant.title} diverged with seed {seed}")
    model, record, setting = best
    pooling = METHODS["bags"][contestant.method].pooling
    scores, labels = predict_scores(model, WholeBags(parts.test, pooling))
    result: dict[str, Any] = {
        "set": name,
        "method": contestant.name,
        "seed": seed,
        "score": tpauc_score(labels.numpy(), scores.numpy(), **REGION),
        "validation": record["validation"],
        "setting": setting,
        "tried": tried,
    }
    if parts.target is not None and pooling != "mean":
        result |= _look(model, pooling, parts, scores.numpy(), keep=seed == 0)
    return {**result, "seconds": time.perf_counter() - started}


def _train(
    contestant: BagContestant, parts: Parts, setting: dict[str, Any], seed: int, epochs: int
) -> tuple[nn.Module | None, dict[str, Any]]:
    """Return the model of the best epoch, or None where it diverged, and what the validation part says."""
    preset = METHODS["bags"][contestant.method]
    labels = parts.train.labels
    options = {key: value for key, value in setting.items() if key != "lr"} | contestant.options
    criterion = build("bags", contestant.method, labels, **REGION, **options)
    features = parts.train.instances(0, torch.tensor([0])).shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = InstanceMLP(features, attention=preset.pooling == "attention")
    sampler = PosNegSampler(labels, num_positives=BAGS, num_negatives=BAGS, seed=seed)
    validation = WholeBags(parts.validation, preset.pooling)
    try:
        history = fit(
            model,
            criterion,
            BagBatches(parts.train, sampler, instances_per_bag=INSTANCES, seed=seed),
            validation=validation,
            epochs=epochs,
            optimizer="adam",
            lr=setting["lr"],
            weight_decay=1e-4,
            proximal=preset.proximal,
            seed=seed,
            min_tpr=REGION["min_tpr"],
            max_fpr=REGION["max_fpr"],
        )
    except ValueError as error:  # scores that are not finite
        return None, {"validation": None, "scores": None, "error": str(error).splitlines()[0]}
    scores = list(history.best_scores.values())  # TPAUC, that of a wider region, AUC, gap
    return model, {"validation": history.best_score, "scores": scores, "epoch": history.best_epoch}


def _look(model: nn.Module, pooling: Any, parts: Parts, scores: Numbers, *, keep: bool) -> dict[str, Any]:
    """Return in how many positive test bags the heaviest instance is the target, and two bags to show."""
    positives = np.flatnonzero(parts.test.labels.numpy() == 1)
    target = parts.target or []
    found: list[bool] = []
    seen: dict[int, Any] = {}
    for bag in positives.tolist():
        instances = parts.test.instances(bag)
        score, weight = instance_weights(instance_outputs(model, instances), pooling)
        found.append(bool(target[bag][int(weight.argmax())]))
        seen[bag] = {
            "score": [round(float(value), 4) for value in score],
            "weight": [round(float(value), 4) for value in weight],
            "target": [bool(value) for value in target[bag]],
            "pixels": [[round(float(value), 2) for value in row] for row in instances],
        }
    result: dict[str, Any] = {"target_found": float(np.mean(found))}
    if keep:  # the surest positive bag, and the one that was missed by most
        order = positives[np.argsort(scores[positives])]
        result["bags"] = {"highest": seen[int(order[-1])], "lowest": seen[int(order[0])]}
    return result
