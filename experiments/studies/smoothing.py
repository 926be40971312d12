"""Does outer smoothing pay: the same runs with and without it, for rows, bags and groups, by SGD, momentum and Adam.

Runs differ in optimizer, learning rate and smoothing only: start, batches, tables and epochs are the same, so that the
effect of smoothing is a difference of pairs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.sparse import issparse
from scipy.stats import ttest_1samp
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from experiments.config import combinations
from experiments.data.fingerprints import FINGERPRINT_SETS
from experiments.data.tables import load_table
from experiments.engine import Record, Setup, Study, Task
from experiments.machine import seeded
from experiments.studies import bags, groups, thresholds
from experiments.studies._shared import mean_and_std, show, split_rows
from moreauc.app.report.pages import Report, Section
from moreauc.core.objectives import tpauc_objective
from moreauc.data import BagBatches, TensorBatches, WholeBags
from moreauc.data.tabular import TableEncoder
from moreauc.methods import METHODS, build
from moreauc.metrics import group_loss, tpauc_score
from moreauc.models import MLP, InstanceMLP
from moreauc.samplers import PosNegSampler
from moreauc.samplers.groups import GroupSampler
from moreauc.train import Callback, fit, predict_scores

REGION: dict[str, Any] = bags.REGION
# kind, name of the data, what is trained
CASES: dict[str, tuple[str, str, str]] = {
    "digits": ("rows", "digits", "sonx"),
    "NR-AhR": ("rows", "NR-AhR", "sonx"),
    "digit bags": ("bags", "digits", "sont_att"),
    "MUSK2": ("bags", "musk2", "sont_att"),
    "Fox": ("bags", "fox", "sont_att"),
    "planted groups": ("groups", "planted", "sonx"),
}
RATES: dict[str, tuple[float, ...]] = {
    "SGD": (0.0003, 0.003, 0.03, 0.3),
    "SGD, momentum": (0.0003, 0.003, 0.03, 0.3),
    "Adam": (0.001, 0.003, 0.01, 0.03),
}
MOMENTUM, DECAY, GAMMA = 0.9, 1e-4, 0.1
# how wide the smoothed kink of the outer function is; pair losses and logistic losses of an untrained model are about 1
WIDTHS = (0.01, 0.1, 1.0)
# titles in tables: optimizer, and whether it smooths
METHODS_SHOWN = {
    "SGD": ("SGD", False),
    "SGD, momentum": ("SGD, momentum", False),
    "SONEX": ("SGD, momentum", True),
    "Adam": ("Adam", False),
    "Adam, smoothing": ("Adam", True),
}
_BATCHES = {"digits": (8, 32), "NR-AhR": (16, 64)}  # positives and negatives of a batch


@dataclass(frozen=True)
class Part:
    """What a run needs besides its optimizer.

    Attributes:
        model: makes the model at its start.
        loss: makes the loss for a width of smoothing.
        batches: makes the training batches.
        validation: data to choose by.
        score: validation score, higher is better; None for TPAUC.
        objective: exact training objective of a model, without smoothing.
        test: test score of a model; higher is better.
    """

    model: Callable[[], nn.Module]
    loss: Callable[[float], nn.Module]
    batches: Callable[[], Any]
    validation: Any
    score: Callable[[Tensor, Tensor], float] | None
    objective: Callable[[nn.Module], float]
    test: Callable[[nn.Module], float]


@dataclass(frozen=True, kw_only=True)
class SmoothingStudy(Study):
    """Training objective and test score with and without outer smoothing, by three optimizers.

    Args:
        steps: steps of a run, rounded up to whole epochs.
        trials: settings tried by each method, the number of learning rates or fewer.
        sets: names of data sets.
    """

    steps: int
    trials: int
    sets: tuple[str, ...] = tuple(CASES)
    planned: ClassVar = ("steps", "trials")
    tiny: ClassVar = {"seeds": 2, "steps": 10, "trials": 2, "sets": ("planted groups", "digits")}

    def tasks(self, setup: Setup) -> list[Task]:
        """Return a task for each data set, optimizer, width and draw."""
        places = combinations(dataset=self.sets, optimizer=RATES, width=(0.0, *WIDTHS), seed=range(self.seeds))
        return [
            Task(at, try_rates, {**at, "steps": self.steps, "trials": self.trials, "folder": setup.data})
            for at in places
            if at["optimizer"] != "SGD" or at["width"] == 0.0
        ]

    def report(self, records: Sequence[Record], out: Path) -> Report:
        """Return objectives and scores of the tuned methods, and the gains by smoothing as paired differences."""
        results = summary(records, self.trials)
        sections = [
            Section(heading, text, columns=columns, rows=rows, labels=labels)
            for heading, text, (columns, rows), labels in (
                ("Tuned methods", [_TUNED.format(trials=self.trials, seeds=self.seeds)], method_table(results), 2),
                ("Gain by smoothing", [_GAINS.format(seeds=self.seeds)], gain_table(results), 3),
            )
        ]
        return Report(self.title, "", {"seeds": self.seeds, **self.plan, **results}, sections)


_TUNED = (
    "Exact training objective without smoothing after the last epoch, the lowest of {trials} settings; and the test "
    "score of the setting and epoch chosen by validation data among the same {trials}: TPAUC (0.5, 0.5), or minus the "
    "loss of the worst group. Mean ± standard deviation over {seeds} draws."
)
_GAINS = (
    "Mean difference with smoothing minus without, in pairs of draws, ± its standard error over {seeds} draws; "
    "positive where smoothing is better, also for objectives. A width has as many learning rates as no smoothing; "
    '"tuned" chooses among as many settings of width and rate. A star marks a paired t-test below 0.05.'
)


def try_rates(
    *, dataset: str, optimizer: str, width: float, seed: int, steps: int, trials: int, folder: Path | None
) -> Record:
    """Train with every learning rate; return validation scores, training objective and test score of each run."""
    part = load_part(dataset, seed, folder)
    return {"tried": [run(part, optimizer, width, lr, seed, steps) for lr in RATES[optimizer][:trials]]}


def run(part: Part, optimizer: str, width: float, lr: float, seed: int, steps: int) -> Record:
    """Train from the start; return None for scores if the run diverged."""
    model, batches = part.model(), part.batches()
    epochs = -(-steps // len(batches))
    last = _AtTheEnd(part.objective)
    made: Any = "adam"
    if optimizer != "Adam":
        momentum = 0.0 if optimizer == "SGD" else MOMENTUM
        made = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, dampening=momentum, weight_decay=DECAY)
    try:
        history = fit(
            model, part.loss(width), batches, validation=part.validation, score=part.score, epochs=epochs,
            optimizer=made, lr=lr, weight_decay=DECAY, seed=seed, callbacks=[last],
        )  # fmt: skip
    except ValueError:  # scores that are not finite
        return {"lr": lr, "validation": None, "objective": None, "test": None}
    scores = list(history.best_scores.values()) if part.score is None else [history.best_score]
    return {"lr": lr, "validation": scores, "objective": last.value, "test": part.test(model)}


class _AtTheEnd(Callback):
    """Keeps the training objective after the last epoch: `fit` goes back to the best one."""

    def __init__(self, objective: Callable[[nn.Module], float]) -> None:
        self.objective, self.value = objective, float("nan")

    def on_epoch(self, state: Any) -> None:
        if state.epoch == state.epochs - 1:
            self.value = self.objective(state.model)


def load_part(dataset: str, seed: int, folder: Path | None) -> Part:
    """Return the data of a draw with model, loss and measures."""
    kind, name, method = CASES[dataset]
    return {"rows": _rows, "bags": _bags, "groups": _groups}[kind](name, method, seed, folder)


def _tpauc(data: Any, model: nn.Module) -> float:
    scores, labels = predict_scores(model, data)
    return tpauc_score(labels.numpy(), scores.numpy(), **REGION)


def _objective(data: Any, options: Any, model: nn.Module) -> float:
    scores, labels = predict_scores(model, data)
    return tpauc_objective(scores, labels, **REGION, **options)


def _pairs(kind: Any, method: str) -> dict[str, Any]:
    """Return what an exact objective needs to know of a method's loss."""
    options = METHODS[kind][method].options
    return {key: options[key] for key in ("surrogate", "margin", "link") if key in options}


def _rows(name: str, method: str, seed: int, folder: Path | None) -> Part:
    table = load_table(name, folder) if name in FINGERPRINT_SETS else thresholds.load_table(name)
    if table.split is None:
        rows = split_rows(table.positive, seed)
        X = TableEncoder().fit_encode(table.X, rows=rows[0])
    else:  # test rows are given
        rest, test = table.split
        held = {"test_size": 0.25, "stratify": table.positive[rest], "random_state": seed}
        rows, X = [*train_test_split(rest, **held), test], table.X
    x, y = ([torch.from_numpy(_dense(whole[part])) for part in rows] for whole in (X, np.asarray(table.positive)))
    data = [TensorBatches(*part, batch_size=8192) for part in zip(x, y, strict=True)]
    positives, negatives = _BATCHES[name]
    sampler = partial(PosNegSampler, y[0], num_positives=positives, num_negatives=negatives, seed=seed)
    return Part(
        model=partial(seeded, seed, MLP, x[0].shape[1], hidden=(64,)),
        loss=lambda width: build("rows", method, y[0], **REGION, gamma=GAMMA, smoothing=width * _alpha()),
        batches=lambda: TensorBatches(x[0], y[0], sampler()),
        validation=data[1],
        score=None,
        objective=partial(_objective, data[0], _pairs("rows", method)),
        test=partial(_tpauc, data[2]),
    )


def _dense(values: Any) -> Any:
    return values.toarray() if issparse(values) else values


def _alpha() -> float:
    """Return the fraction of worst positives. The envelope of a hinge of slope 1/alpha bends over lambda/alpha."""
    return 1.0 - float(REGION["min_tpr"])


def _bags(name: str, method: str, seed: int, folder: Path | None) -> Part:
    parts, preset = bags.draw_parts(name, seed, folder), METHODS["bags"][method]
    labels, pooling = parts.train.labels, preset.pooling
    features = parts.train.instances(0, torch.tensor([0])).shape[1]
    whole = [WholeBags(part, pooling) for part in (parts.train, parts.validation, parts.test)]
    sampler = partial(PosNegSampler, labels, num_positives=bags.BAGS, num_negatives=bags.BAGS, seed=seed)
    return Part(
        model=partial(seeded, seed, InstanceMLP, features, attention=pooling == "attention"),
        loss=lambda width: build("bags", method, labels, **REGION, gamma=GAMMA, smoothing=width * _alpha()),
        batches=lambda: BagBatches(parts.train, sampler(), instances_per_bag=bags.INSTANCES, seed=seed),
        validation=whole[1],
        score=None,
        objective=partial(_objective, whole[0], _pairs("bags", method)),
        test=partial(_tpauc, whole[2]),
    )


def _groups(name: str, method: str, seed: int, folder: Path | None) -> Part:
    parts = groups.draw_parts(name, seed, folder)
    train, number = parts.train, parts.train.num_groups
    data = {key: _whole(getattr(parts, key)) for key in ("train", "validation", "test")}
    size = {"groups_per_batch": min(groups.GROUPS_PER_BATCH, number), "samples_per_group": 64}
    sampler = partial(GroupSampler, train.groups, **size, num_groups=number, seed=seed)

    def worst(part: str, scores: Tensor, labels: Tensor) -> float:
        return group_loss(groups.sample_losses(scores, labels), getattr(parts, part).groups, top_k=1)

    return Part(
        model=partial(seeded, seed, MLP, train.X.shape[1], hidden=groups.HIDDEN),
        loss=lambda width: build(
            "groups", method, train.groups, num_groups=number, top_k=1, gamma=GAMMA, smoothing=width / number
        ),
        batches=lambda: TensorBatches(torch.from_numpy(train.X), torch.from_numpy(train.y), sampler()),
        validation=data["validation"],
        score=lambda scores, labels: -worst("validation", scores, labels),
        objective=lambda model: worst("train", *predict_scores(model, data["train"])),
        test=lambda model: -worst("test", *predict_scores(model, data["test"])),
    )


def _whole(part: Any) -> TensorBatches:
    return TensorBatches(torch.from_numpy(part.X), torch.from_numpy(part.y), batch_size=8192)


def choose(tried: Sequence[Record]) -> dict[str, float]:
    """Return the lowest training objective, and the test score of the run that is best in validation."""
    done = [entry for entry in tried if entry["validation"] is not None]
    if not done:
        raise ValueError("smoothing: every setting diverged")
    return {
        "objective": min(entry["objective"] for entry in done),
        "test": max(done, key=lambda entry: entry["validation"])["test"],
    }


def summary(records: Sequence[Record], trials: int) -> dict[str, Any]:
    """Return means and spreads of the tuned methods, and paired differences."""
    found = {(r["dataset"], r["optimizer"], r["width"], r["seed"]): r["tried"] for r in records}
    seeds = sorted({r["seed"] for r in records})
    cells, gains = [], []

    def tuned(name: str, optimizer: str, seed: int) -> dict[str, float]:
        every = [entry for width in WIDTHS for entry in found[name, optimizer, width, seed]]
        return choose(random.Random(seed).sample(every, trials))

    for name in dict.fromkeys(r["dataset"] for r in records):
        for title, (optimizer, smooths) in METHODS_SHOWN.items():
            own = [tuned(name, optimizer, s) if smooths else choose(found[name, optimizer, 0.0, s]) for s in seeds]
            spread = {key: mean_and_std([entry[key] for entry in own]) for key in ("objective", "test")}
            cells.append({"dataset": name, "method": title, **spread})
        for optimizer in ("SGD, momentum", "Adam"):
            plain = [choose(found[name, optimizer, 0.0, seed]) for seed in seeds]
            for width in (*WIDTHS, "tuned"):
                if width == "tuned":
                    own = [tuned(name, optimizer, seed) for seed in seeds]
                else:
                    own = [choose(found[name, optimizer, width, seed]) for seed in seeds]
                gains.append({"dataset": name, "optimizer": optimizer, "width": width, **_differences(own, plain)})
    return {"cells": cells, "gains": gains}


def _differences(own: Sequence[dict[str, float]], plain: Sequence[dict[str, float]]) -> Record:
    """Return the mean gains, their standard errors and the p of a t-test, which is None for equal numbers."""
    result: Record = {}
    for key, sign in (("objective", -1.0), ("test", 1.0)):
        values = sign * np.array([a[key] - b[key] for a, b in zip(own, plain, strict=True)])
        several = len(values) > 1
        result[key] = {
            "mean": float(values.mean()),
            "error": float(values.std(ddof=1) / len(values) ** 0.5) if several else None,
            "p": float(ttest_1samp(values, 0.0).pvalue) if several and np.ptp(values) > 0.0 else None,
        }
    return result


def method_table(results: Record) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: training objective and test score of each method."""
    rows = [[cell["dataset"], cell["method"], show(cell["objective"]), show(cell["test"])] for cell in results["cells"]]
    return ["data", "method", "training objective", "test score"], rows


def gain_table(results: Record) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: gains in objective and in test score by width."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for key, words in (("objective", "objective"), ("test", "test score")):
        for gain in results["gains"]:
            place = (gain["dataset"], gain["optimizer"], words)
            rows.setdefault(place, list(place)).append(_show_gain(gain[key]))
    order = {name: number for number, name in enumerate(dict.fromkeys(gain["dataset"] for gain in results["gains"]))}
    heads = [f"width {width:g}" for width in WIDTHS]
    return ["data", "optimizer", "gain in", *heads, "tuned"], sorted(rows.values(), key=lambda row: order[row[0]])


def _show_gain(gain: Record) -> str:
    text = f"{gain['mean']:+.3f}" if gain["error"] is None else f"{gain['mean']:+.3f} ± {gain['error']:.3f}"
    return text + (" *" if gain["p"] is not None and gain["p"] < 0.05 else "")
