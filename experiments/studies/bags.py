"""SONT over bags of instances beside the baselines: a method on one draw, tuned by validation bags, tested once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.base import ClassifierMixin
from torch import nn

from experiments.config import RegionOptions, Setting, combinations
from experiments.data.mil import load_fox, load_musk2, standardize_instances
from experiments.engine import Record, Setup, Study, Task
from experiments.machine import seeded
from experiments.studies._shared import mean_and_std, show, split_rows, tune
from moreauc._checks import NotFiniteError
from moreauc._registry import BASELINES, METHODS
from moreauc.app.comparison import baseline
from moreauc.app.report.bag_figures import plot_instance_weights
from moreauc.app.report.pages import Report, Section, as_image
from moreauc.core.pooling import PoolingName
from moreauc.data import BagBatches, BagEvaluation, Bags, digit_bags, instance_outputs, instance_weights
from moreauc.methods import build
from moreauc.metrics import tpauc_score
from moreauc.metrics.ranking import selection_scores
from moreauc.models import InstanceMLP
from moreauc.samplers import PosNegSampler
from moreauc.train import fit, predict_scores

Numbers = NDArray[Any]
REGION: RegionOptions = {"min_tpr": 0.5, "max_fpr": 0.5}
RATES = (0.003, 0.001, 0.01)
BAGS, INSTANCES = 8, 4
_FEW = ("sont_att", "sont_mean", "ce_att")  # methods of the tiny version


@dataclass(frozen=True)
class BagCandidate:
    """A method of the study.

    Attributes:
        name: key in the results.
        title: name in tables.
        method: key of `METHODS["bags"]`, or of `BASELINES["bags"]`.
        options: options of its loss that are not tuned.
        literal: whether it reads the rows before their update, as in the paper; reported separately.
    """

    name: str
    title: str
    method: str
    options: Setting = field(default_factory=dict)
    literal: bool = False

    def settings(self, number: int) -> list[Setting]:
        """Return the first `number` settings to try.

        Learning rates with the values of the first option of its grid; draws from the grid for a baseline.
        """
        if self.method in BASELINES["bags"]:
            return baseline("bags", self.method).draw(number, seed=0)
        option, values = next(iter(METHODS["bags"][self.method].grid.items()))
        return [{"lr": rate, option: value} for value, rate in product(values, RATES)][:number]


def bag_candidates() -> dict[str, BagCandidate]:
    """Return every method and baseline, and SONT with the rows before their update, as in the paper."""
    titles = {name: entry.title for name, entry in METHODS["bags"].items()}
    titles |= {name: entry.title for name, entry in BASELINES["bags"].items()}
    every = [BagCandidate(name, title, name) for name, title in titles.items()]
    literal = [
        BagCandidate(
            f"{entry.name}_literal", f"{entry.title}, rows before", entry.method, {"update_order": "before"}, True
        )
        for entry in every
        if entry.name.startswith("sont")
    ]
    return {entry.name: entry for entry in every + literal}


@dataclass(frozen=True)
class Parts:
    """Training, validation and test bags; `target` marks the instances that make a test bag positive."""

    train: Bags
    validation: Bags
    test: Bags
    target: list[Numbers] | None = None


def draw_parts(name: str, seed: int, folder: Path | None) -> Parts:
    """Return the parts of a data set: digits drawn anew for each seed, the others split 60 : 20 : 20 by bag."""
    if name == "digits":
        digits = digit_bags(seed=seed)
        target = [digits.digits_of("test", bag).numpy() == digits.target for bag in range(len(digits.test))]
        return Parts(digits.train, digits.validation, digits.test, target)
    bags = (load_musk2 if name == "musk2" else load_fox)(folder)
    rows = split_rows(bags.labels.numpy(), seed)
    train, validation, test = standardize_instances(*(bags.subset(torch.from_numpy(part)) for part in rows))
    return Parts(train, validation, test)


def tune_and_test(*, dataset: str, method: str, seed: int, trials: int, epochs: int, folder: Path | None) -> Record:
    """Train by every setting, choose by the validation part, test the choice once."""
    parts, candidate = draw_parts(dataset, seed, folder), bag_candidates()[method]
    what = f"{dataset}, {candidate.title}, seed {seed}"
    if method in BASELINES["bags"]:
        model, choice = tune(candidate.settings(trials), partial(_fit, method, parts, seed), "scores", what)
        found = tpauc_score(parts.test.labels.numpy(), _bag_scores(model, parts.test), **REGION)
        return {"score": found, **choice}
    model, choice = tune(candidate.settings(trials), partial(_train, candidate, parts, seed, epochs), "scores", what)
    pooling = METHODS["bags"][candidate.method].pooling or "mean"
    scores, labels = predict_scores(model, BagEvaluation(parts.test, pooling))
    result: Record = {"score": tpauc_score(labels.numpy(), scores.numpy(), **REGION), **choice}
    if parts.target is not None and pooling != "mean":
        result |= _heaviest(model, pooling, parts, scores.numpy(), keep=seed == 0)
    return result


def _train(
    candidate: BagCandidate, parts: Parts, seed: int, epochs: int, setting: Record
) -> tuple[nn.Module | None, Record]:
    """Return the model of the best epoch, or None where it diverged, and its validation scores."""
    preset = METHODS["bags"][candidate.method]
    labels = parts.train.labels
    options = {key: value for key, value in setting.items() if key != "lr"} | candidate.options
    criterion = build("bags", candidate.method, labels, **REGION, **options)
    features = parts.train.instances(0, torch.tensor([0])).shape[1]
    model = seeded(seed, InstanceMLP, features, attention=preset.pooling == "attention")
    sampler = PosNegSampler(labels, num_positives=BAGS, num_negatives=BAGS, seed=seed)
    validation = BagEvaluation(parts.validation, preset.pooling or "mean")
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
    except NotFiniteError as error:
        return None, {"validation": None, "scores": None, "error": str(error).splitlines()[0]}
    scores = list(history.best_scores.values())  # TPAUC, that of a wider region, AUC, gap
    return model, {"validation": history.best_score, "scores": scores, "epoch": history.best_epoch}


def _fit(method: str, parts: Parts, seed: int, setting: Record) -> tuple[Any, Record]:
    """Return a fitted baseline and its validation scores."""
    model = baseline("bags", method).make(setting, (REGION["min_tpr"], REGION["max_fpr"]), seed)
    model.fit(parts.train, parts.train.labels.numpy())
    scores = selection_scores(parts.validation.labels.numpy(), _bag_scores(model, parts.validation), **REGION)
    return model, {"validation": scores[0], "scores": list(scores)}


def _bag_scores(model: ClassifierMixin, bags: Bags) -> Numbers:
    """Return the scores of a baseline: log odds where it has them, else probabilities."""
    if hasattr(model, "decision_function"):
        return np.asarray(model.decision_function(bags))
    return np.asarray(model.predict_proba(bags)[:, 1])


def _heaviest(model: nn.Module, pooling: PoolingName, parts: Parts, scores: Numbers, *, keep: bool) -> Record:
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
    result: Record = {"target_found": float(np.mean(found))}
    if keep:  # the positive bags with the highest and the lowest score
        order = positives[np.argsort(scores[positives])]
        result["bags"] = {"highest": seen[int(order[-1])], "lowest": seen[int(order[0])]}
    return result


@dataclass(frozen=True, kw_only=True)
class BagStudy(Study):
    """TPAUC of SONT with each pooling and of the baselines over bags, tuned with equal effort.

    Args:
        dataset: "digits" (made here), "musk2" or "fox".
        trials: settings tried by each method, in [1, 6], compared on the validation part.
        epochs: epochs of a run.
        methods: names of methods.
    """

    dataset: str
    trials: int
    epochs: int
    methods: tuple[str, ...] = tuple(bag_candidates())
    planned: ClassVar = ("trials", "epochs")
    tiny: ClassVar = {"dataset": "digits", "seeds": 1, "trials": 1, "epochs": 1, "methods": _FEW}

    def tasks(self, setup: Setup) -> list[Task]:
        """Return a task for each method and draw."""
        places = combinations(dataset=[self.dataset], method=self.methods, seed=range(self.seeds))
        return [Task(place, tune_and_test, {**place, **self.plan, "folder": setup.data}) for place in places]

    def report(self, records: Sequence[Record], out: Path) -> Report:
        """Return mean, rank and whether the heaviest instance is the target, and example bags."""
        cells = _cells({name: entry for name, entry in bag_candidates().items() if name in self.methods}, records)
        region = [REGION["min_tpr"], REGION["max_fpr"]]
        results = {"set": self.dataset, "region": region, "seeds": self.seeds, **self.plan, "cells": cells}
        return Report(self.title, "", results, [self._section(cells), *_shown(records)])

    def _section(self, cells: list[Record]) -> Section:
        text = [
            f"TPAUC of test bags at TPR ≥ {REGION['min_tpr']:g}, FPR ≤ {REGION['max_fpr']:g}, mean ± standard "
            f"deviation over {self.seeds} draws of the data. A network with one hidden layer, Adam, {self.epochs} "
            f"epochs, batches of {BAGS} positive and {BAGS} negative bags with {INSTANCES} instances of each; every "
            f'method tries {self.trials} settings; setting and epoch are chosen by validation bags. "Rows before" '
            "reads the rows before their update, as in the paper. LR and random forest get the mean, "
            "maximum and minimum of every feature over a bag's instances, and have no epochs."
        ]
        columns = ["method", "TPAUC", "average rank", "heaviest instance is the target"]
        return Section(f"Test TPAUC, {self.dataset}", text, columns=columns, rows=bag_rows(cells), labels=1)


def bag_rows(cells: Sequence[Record]) -> list[list[str]]:
    """Return the rows of the table: title, TPAUC, rank and share of bags whose heaviest instance is the target."""
    rows = []
    for cell in cells:
        rank = "" if cell["rank"] is None else f"{cell['rank']:.1f}"
        found = "" if cell["target_found"] is None else f"{100 * cell['target_found']:.0f} %"
        rows.append([cell["title"], show(cell), rank, found])
    return rows


def _cells(entrants: dict[str, BagCandidate], records: Sequence[Record]) -> list[Record]:
    scores = {name: [record["score"] for record in records if record["method"] == name] for name in entrants}
    main = [name for name, entry in entrants.items() if not entry.literal]
    every = [rankdata([-score for score in row]) for row in zip(*(scores[name] for name in main), strict=True)]
    ranks = dict(zip(main, np.mean(every, 0), strict=True))
    cells = []
    for name, entry in entrants.items():
        found = [r["target_found"] for r in records if r["method"] == name and "target_found" in r]
        cells.append(
            {
                "method": name,
                "title": entry.title,
                "literal": entry.literal,
                **mean_and_std(scores[name]),
                "rank": float(ranks[name]) if name in ranks else None,
                "target_found": float(np.mean(found)) if found else None,
            }
        )
    return cells


def _shown(records: Sequence[Record]) -> list[Section]:
    """Bags of SONT with attention, and with the smoothed max, where the runs kept some."""
    sections = []
    for method, title in (("sont_att", "attention"), ("sont_smx", "smoothed max")):
        kept = [record for record in records if record["method"] == method and "bags" in record]
        if not kept:
            continue
        images = []
        for which, words in (("highest", "the positive bag scored highest"), ("lowest", "the one scored lowest")):
            bag = kept[0]["bags"][which]
            pixels = np.array(bag["pixels"]).reshape(-1, 8, 8)
            figure = plot_instance_weights(bag["score"], bag["weight"], images=pixels, marked=bag["target"])
            images.append(as_image(figure, f"SONT, {title}: {words}. A star marks the digit that makes it positive."))
        text = ["Instances of a test bag, the heaviest first: weight in the bag's score, and the instance's own score."]
        sections.append(Section(f"Instance weights, {title}", text, images=images))
    return sections
