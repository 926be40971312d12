"""When it pays to optimise the partial AUC: surrogate, capacity, rows, label noise, share of positives and region.

A network is trained by cross entropy and then, from its best step, by the exact loss over the region. Every step uses
all rows: objectives are compared, not the sampling algorithms that minimise them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.datasets import make_classification
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from experiments.config import combinations
from experiments.data.tables import load_table
from experiments.engine import Record, Setup, Study, Task
from experiments.files import save_figure
from experiments.machine import seeded
from moreauc.app.comparison import LabelledData, Region
from moreauc.app.report.pages import COLORS, Report, Section
from moreauc.core.region import region_loss_and_gradient
from moreauc.core.surrogates import get_surrogate
from moreauc.data.tabular import TableEncoder
from moreauc.metrics import tpauc_score
from moreauc.models import MLP

Loss = Callable[[Tensor, Tensor], None]
# surrogate and link
OBJECTIVES = {
    "squared hinge": ("squared_hinge", "identity"),
    "squared hinge, sigmoid": ("squared_hinge", "sigmoid"),
    "smooth ramp, standardized": ("smooth_ramp", "standardized"),
}
CAPACITIES: dict[str, tuple[int, ...]] = {"linear": (), "MLP 64": (64,), "MLP 256": (256,)}
# one of these is changed at a time
CENTRE: Record = {"rows": 2000, "flips": 0.0, "share": 0.1, "region": (0.5, 0.5)}
CHANGES: dict[str, tuple[Any, ...]] = {
    "rows": (500, 8000),
    "flips": (0.02, 0.05),
    "share": (0.02, 0.3),
    "region": ((0.3, 0.3), (0.0, 0.1)),
}
_TEST = {1: 1000, 0: 3000}  # rows of either class to test on: TPAUC does not depend on their shares
_VALIDATION = 0.25  # of the training rows
_EVERY = 10  # steps between two evaluations on validation rows
_FITS = (0.0, 0.5, 0.65, 0.8, 1.01)  # edges of the training TPAUC of cross entropy
_PLACE = ("dataset", "capacity", "rows", "flips", "share", "region")
_MARKERS = {"linear": "o", "MLP 64": "s", "MLP 256": "D"}


@dataclass(frozen=True, kw_only=True)
class WhenStudy(Study):
    """Gain in test TPAUC over cross entropy, beside how well cross entropy fits the training rows.

    Args:
        steps: steps of cross entropy; half as many follow by each objective.
        sets: names of tables.
        capacities: names of networks.
    """

    steps: int
    sets: tuple[str, ...]
    capacities: tuple[str, ...] = tuple(CAPACITIES)
    planned: ClassVar = ("steps",)
    tiny: ClassVar = {"seeds": 1, "steps": 20, "sets": ("made",), "capacities": ("linear",)}

    def tasks(self, setup: Setup) -> list[Task]:
        """Return a task for each seed, table, network and condition."""
        tasks = []
        for at in combinations(seed=range(self.seeds), dataset=self.sets, capacity=self.capacities):
            for condition in conditions():
                place = {"dataset": at["dataset"], "capacity": at["capacity"], **condition, "seed": at["seed"]}
                shown = {**place, "region": "{:g}, {:g}".format(*condition["region"])}
                tasks.append(Task(shown, run_condition, {**place, "steps": self.steps, "folder": setup.data}))
        return tasks

    def report(self, records: Sequence[Record], out: Path) -> Report:
        """Return the gains by condition and by network, and draw them against the fit of cross entropy."""
        results = summary(records)
        save_figure(draw_gains(results["runs"]), out / "gains.png")
        caption = (
            "Gain in test TPAUC over cross entropy at its best step, after the last step of each objective, against "
            "the training TPAUC of cross entropy; a mark is a table, network and condition, mean over seeds."
        )
        sections = [Section("Gains", figure="gains.png", caption=caption)]
        for heading, table in (
            ("By condition", condition_table),
            ("By network", capacity_table),
            ("By how well cross entropy fits its training rows", fit_table),
        ):
            columns, rows = table(results)
            sections.append(Section(heading, columns=columns, rows=rows, labels=1))
        return Report(self.title, "", {"plan": self.plan, "seeds": self.seeds, **results}, sections)


def conditions() -> list[Record]:
    """Return the centre, and what differs from it in one entry."""
    return [CENTRE, *({**CENTRE, name: value} for name, values in CHANGES.items() for value in values)]


def run_condition(
    *,
    dataset: str,
    capacity: str,
    rows: int,
    flips: float,
    share: float,
    region: Region,
    seed: int,
    steps: int,
    folder: Path | None,
) -> Record:
    """Train a network by cross entropy and then by each objective; return TPAUC of training and test rows."""
    table = _load(dataset, folder)
    drawn = draw_rows(table.positive, rows, share, seed)
    encoder = TableEncoder().fit(table.take(drawn[0]))
    train, validation, test = (Part.of(encoder.encode(table.take(own)), table.positive[own]) for own in drawn)
    random = np.random.default_rng([seed, 1])
    train, validation = train.flipped(flips, random), validation.flipped(flips, random)
    model: nn.Module = seeded(seed, MLP, train.X.shape[1], hidden=CAPACITIES[capacity])
    found = {}
    for name in ("ce", *OBJECTIVES):
        loss: Loss = cross_entropy if name == "ce" else Exact(*OBJECTIVES[name], region)
        many, lr = (steps, 0.02) if name == "ce" else (steps // 2, 0.002)
        last = copy.deepcopy(model)
        evaluate = partial(log_likelihood if name == "ce" else tpauc, part=validation, region=region)
        best = train_best(last, loss, train, evaluate, steps=many, lr=lr)
        scores = {"train": tpauc(best, train, region), "test": tpauc(best, test, region)}
        found[name] = {**scores, "test_last": tpauc(last, test, region)}
        model = best if name == "ce" else model  # where the others start
    return {"found": found}


@lru_cache(maxsize=2)
def _load(dataset: str, folder: Path | None) -> LabelledData:
    if dataset == "made":
        return LabelledData(*make_classification(20_000, 5, flip_y=0.2, random_state=0))
    return load_table(dataset, folder)


def draw_rows(labels: NDArray[Any], rows: int, share: float, seed: int) -> list[NDArray[Any]]:
    """Return rows for training, validation and test, in this share of positives but for the test rows.

    The same seed has the same test rows whatever the other arguments are.
    """
    random = np.random.default_rng([seed, 0])
    parts: list[list[NDArray[Any]]] = [[], [], []]
    for label, many in ((1, round(rows * share)), (0, rows - round(rows * share))):
        own = random.permutation(np.flatnonzero(labels == label))
        test, rest = own[: _TEST[label]], own[_TEST[label] : _TEST[label] + many]
        held = round(_VALIDATION * many)
        for part, some in zip(parts, (rest[held:], rest[:held], test), strict=True):
            part.append(some)
    return [np.concatenate(part) for part in parts]


class Part(NamedTuple):
    """Encoded rows and their labels."""

    X: Tensor
    y: Tensor

    @classmethod
    def of(cls, X: NDArray[Any], y: NDArray[Any]) -> Part:
        """Return arrays as tensors."""
        return cls(torch.from_numpy(X), torch.from_numpy(y))

    def flipped(self, share: float, random: np.random.Generator) -> Part:
        """Return the part with this share of all labels flipped."""
        chosen = random.permutation(len(self.y))[: round(share * len(self.y))]
        y = self.y.clone()
        y[chosen] = 1 - y[chosen]
        return Part(self.X, y)


def tpauc(module: nn.Module, part: Part, region: Region) -> float:
    """Return the TPAUC of rows."""
    with torch.no_grad():
        scores = module(part.X)
    return tpauc_score(part.y.numpy(), scores.numpy(), min_tpr=region[0], max_fpr=region[1])


def log_likelihood(module: nn.Module, part: Part, region: Region) -> float:
    """Return the mean log likelihood of rows, which varies less than the TPAUC where rows are few."""
    with torch.no_grad():
        return -float(binary_cross_entropy_with_logits(module(part.X), part.y.float()))


def cross_entropy(scores: Tensor, labels: Tensor) -> None:
    """Add the gradient of the mean cross entropy."""
    binary_cross_entropy_with_logits(scores, labels.to(scores)).backward()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Exact:
    """The loss over the region, of all pairs."""

    surrogate: str
    link: str
    region: Region

    def __call__(self, scores: Tensor, labels: Tensor) -> None:
        """Add the gradient of the loss."""
        positive, negative = (scores[labels == label].double() for label in (1, 0))
        if self.link == "standardized":
            scale = negative.detach().std(correction=0).clamp_min(1e-12)
            positive, negative = positive / scale, negative / scale
        elif self.link == "sigmoid":
            positive, negative = positive.sigmoid(), negative.sigmoid()
        sides, surrogate = (positive.detach(), negative.detach()), get_surrogate(self.surrogate)
        _, of_positive, of_negative = region_loss_and_gradient(*sides, surrogate, *self.region)
        torch.autograd.backward([positive, negative], [of_positive, of_negative])


def train_best(
    module: nn.Module, loss: Loss, train: Part, evaluate: Callable[[nn.Module], float], *, steps: int, lr: float
) -> nn.Module:
    """Train a network in place, all rows in every step; return a copy at its best step, start included.

    Args:
        module: the network.
        loss: adds the gradient of scores and labels.
        train: training rows.
        evaluate: returns the validation score of a network.
        steps: steps of Adam; its learning rate falls to 0 along a cosine.
        lr: learning rate of the first step.
    """
    optimizer = torch.optim.Adam(module.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    best, top = copy.deepcopy(module), evaluate(module)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss(module(train.X), train.y)
        optimizer.step()
        schedule.step()
        if step % _EVERY == 0 and (score := evaluate(module)) > top:
            best, top = copy.deepcopy(module), score
    return best


def summary(records: Sequence[Record]) -> Record:
    """Return each run's gains, mean over seeds, and their means by condition and by network."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[key] for key in _PLACE), []).append(record["found"])
    runs = []
    for place, own in groups.items():
        ce = {key: float(np.mean([found["ce"][key] for found in own])) for key in ("train", "test")}
        run = {**dict(zip(_PLACE, place, strict=True)), "seeds": len(own), "ce": ce, "gain": {}, "gain_last": {}}
        for name in OBJECTIVES:
            for key, entry in (("gain", "test"), ("gain_last", "test_last")):
                run[key][name] = float(np.mean([found[name][entry] - found["ce"]["test"] for found in own]))
        runs.append(run)
    by_condition = [
        {"change": change, "value": value, **_mean([run for run in runs if _is(run, change, value)])}
        for change, value in [("", ""), *((name, value) for name, values in CHANGES.items() for value in values)]
    ]
    by_capacity = [{"capacity": name, **_mean([run for run in runs if run["capacity"] == name])} for name in CAPACITIES]
    by_fit = [
        {"low": low, "high": high, **_mean([run for run in runs if low <= run["ce"]["train"] < high])}
        for low, high in pairwise(_FITS)
    ]
    return {"runs": runs, "by_condition": by_condition, "by_capacity": by_capacity, "by_fit": by_fit}


def _is(run: Record, change: str, value: object) -> bool:
    """Return whether a run differs from the centre in this entry only, or in none."""
    wanted = {**CENTRE, **({change: value} if change else {})}
    low, high = wanted["region"]
    return all(run[key] == wanted[key] for key in ("rows", "flips", "share")) and run["region"] == f"{low:g}, {high:g}"


def _mean(runs: Sequence[Record]) -> Record:
    """Return means over runs, and the standard error of those of gains."""
    result: Record = {"runs": len(runs)}
    if runs:
        result["ce"] = {key: float(np.mean([run["ce"][key] for run in runs])) for key in ("train", "test")}
        for key in ("gain", "gain_last"):
            gains = {name: [run[key][name] for run in runs] for name in OBJECTIVES}
            result[key] = {name: float(np.mean(own)) for name, own in gains.items()}
            error = {
                n: float(np.std(own, ddof=1) / len(own) ** 0.5) if len(own) > 1 else 0.0 for n, own in gains.items()
            }
            result[f"{key}_error"] = error
    return result


def condition_table(results: Record) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: what is changed, and the gains."""
    words = {"rows": "{} training rows", "flips": "{:.0%} of the labels turned round", "share": "{:.0%} positives"}
    rows = []
    for entry in results["by_condition"]:
        change, value = entry["change"], entry["value"]
        if change == "region":
            name = "region ({:g}, {:g})".format(*value)
        else:
            name = words[change].format(value) if change else "2000 rows, 10 % positives, clean, (0.5, 0.5)"
        rows.append([name, *_gains(entry)])
    return ["condition", *_heads()], [row for row in rows if len(row) > 1]


def capacity_table(results: Record) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: the network, and the gains over all conditions."""
    rows = [[entry["capacity"], *_gains(entry)] for entry in results["by_capacity"]]
    return ["network", *_heads()], [row for row in rows if len(row) > 1]


def fit_table(results: Record) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: how well cross entropy fits the training rows, how many runs do, and the gains."""
    rows = [
        [f"{entry['low']:g} to {min(entry['high'], 1.0):g}", str(entry["runs"]), *_gains(entry)]
        for entry in results["by_fit"]
    ]
    return ["training TPAUC of CE", "runs", *_heads()], [row for row in rows if len(row) > 2]


def _heads() -> list[str]:
    return ["CE, training rows", "CE, test", *OBJECTIVES, *(f"{name}: last step" for name in OBJECTIVES)]


def _gains(entry: Record) -> list[str]:
    if not entry["runs"]:
        return []
    gains = [
        f"{entry[key][name]:+.3f} ± {entry[f'{key}_error'][name]:.3f}"
        for key in ("gain", "gain_last")
        for name in OBJECTIVES
    ]
    return [*(f"{entry['ce'][key]:.3f}" for key in ("train", "test")), *gains]


def draw_gains(runs: Sequence[Record]) -> Figure:
    """Draw the gain after the last step against the training TPAUC of cross entropy: a panel for each objective."""
    figure = Figure(figsize=(3.4 * len(OBJECTIVES) + 0.8, 3.8), layout="constrained")
    panels = figure.subplots(1, len(OBJECTIVES), sharey=True)
    for axes, name, color in zip(panels, OBJECTIVES, COLORS, strict=False):
        for capacity, marker in _MARKERS.items():
            own = [run for run in runs if run["capacity"] == capacity]
            x, y = [run["ce"]["train"] for run in own], [run["gain_last"][name] for run in own]
            axes.plot(x, y, marker, color=color, alpha=0.6, markersize=5, markeredgewidth=0, label=capacity)
        axes.axhline(0.0, color="#66717f", linewidth=1)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("training TPAUC of cross entropy")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("gain in test TPAUC")
    panels[0].legend(frameon=False, fontsize=9)
    return figure
