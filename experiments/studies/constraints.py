"""Constraints by ConstrainedLoss, by a hinge without tables, by other libraries, and not at all."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from experiments.engine import Record, Setup, Study, Task
from experiments.files import save_figure
from experiments.studies._shared import mean_and_std, show, tune
from experiments.studies.constraints_uses import (
    PARTS,
    TOLERANCES,
    Batch,
    FalsePositives,
    GroupRates,
    Measure,
    OldTasks,
    Use,
    load_use,
)
from moreauc import ConstrainedLoss, PreviousIterate
from moreauc._system import import_extra
from moreauc.app.report.pages import Report, Section

Step = Callable[[Batch, float], None]  # moves the weights by a batch; the number is the share of the run that is over
# Options of ConstrainedLoss; in evaluation mode, as "plug_in", it is the hinge of the batch's own values.
PENALTIES: dict[str, Record] = {
    "plug_in": {},
    "tau_1": {"tau": 1.0},
    "average": {"tau": 0.1},
    "msvr": {"tau": 0.1, "gamma": 0.5},
    "plug_in_constant": {},
    "average_constant": {"tau": 0.1},
}
TITLES = {
    "unconstrained": "unconstrained",
    "threshold": "unconstrained, threshold moved",
    "logistic": "logistic regression, threshold moved",
    "replay": "unconstrained, old rows in the loss",
    "plug_in": "hinge of the batch",
    "tau_1": "ConstrainedLoss, tau 1",
    "average": "ConstrainedLoss, tau 0.1",
    "msvr": "ConstrainedLoss, tau 0.1, gamma 0.5",
    "plug_in_constant": "hinge of the batch, constant weight",
    "average_constant": "ConstrainedLoss, tau 0.1, constant weight",
    "cooper": "cooper, Lagrangian",
    "fairlearn": "fairlearn, exponentiated gradient",
}
LIBRARIES = ("cooper", "fairlearn")
EVERYWHERE = ("unconstrained", *PENALTIES, "cooper")
_LR, _WEIGHT_DECAY, _POINTS = 0.01, 1e-2, 20


@dataclass(frozen=True)
class Purpose:
    """What a data set stands for.

    Attributes:
        heading: for the page.
        score: what the score is called.
        excess: what a violation is called.
        methods: methods beside those that all sets have.
        penalties: weights of the penalty that are tried, which are reached in the last step.
        dual_rates: step sizes of multipliers that are tried, as many.
        slack: violation of held-out rows that is put down to their small number.
        smoothing: of the hinge, in all methods with one.
    """

    heading: str
    score: str
    excess: str
    methods: tuple[str, ...]
    penalties: tuple[float, ...]
    dual_rates: tuple[float, ...]
    slack: float
    smoothing: float = 0.05


def _group_purpose(name: str) -> Purpose:
    return Purpose(
        f"{name}: equal true-positive rates",
        "accuracy",
        f"gap of a true-positive rate, above {TOLERANCES[name.lower()]}",
        ("fairlearn",),
        (5.0, 10.0, 20.0, 40.0),
        (0.01, 0.03, 0.1, 0.3),
        0.03,
    )


PURPOSES = {
    "fraud": Purpose(
        "Fraud: false-positive rate of at most 2 %",
        "recall",
        "false-positive rate, above 0.02",
        ("threshold", "logistic"),
        (100.0, 300.0, 1000.0, 3000.0),
        (1.0, 3.0, 10.0, 30.0),
        0.002,
    ),
    "adult": _group_purpose("Adult"),
    "compas": _group_purpose("COMPAS"),
    "made": _group_purpose("Made"),
    "digits": Purpose(
        "Digits: no old task gets worse",
        "accuracy on the new task",
        "rise of the loss of an old task",
        ("replay",),
        (3.0, 10.0, 30.0, 100.0),
        (0.003, 0.01, 0.03, 0.1),
        0.1,
    ),
}


@dataclass(frozen=True, kw_only=True)
class ConstraintStudy(Study):
    """Score and violations by methods that try as many settings, chosen on validation rows.

    Args:
        steps: steps of each run.
        sets: data sets.
        libraries: whether to run the methods of other libraries, which the extra `constraints` installs.
    """

    steps: int
    sets: tuple[str, ...]
    libraries: bool = True
    planned: ClassVar = ("steps",)
    tiny: ClassVar = {"seeds": 1, "steps": 10, "sets": ("fraud", "made", "digits"), "libraries": False}

    def tasks(self, setup: Setup) -> list[Task]:
        """Return a task for each data set, method and seed."""
        tasks = []
        for dataset in self.sets:
            methods = [name for name in TITLES if name in (*EVERYWHERE, *PURPOSES[dataset].methods)]
            for seed in range(self.seeds):  # the methods of one draw follow each other: it is made once
                for method in (name for name in methods if self.libraries or name not in LIBRARIES):
                    place = {"dataset": dataset, "method": method, "seed": seed}
                    options = {**place, "steps": self.steps, "folder": setup.data}
                    tasks.append(Task(place, tune_and_test, options))
        return tasks

    def report(self, records: Sequence[Record], out: Path) -> Report:
        """Return a table for each data set, one of all weights, and the curves."""
        results = summary(records)
        save_figure(draw_runs(records), out / "runs.png")
        sections = []
        for dataset in dict.fromkeys(record["dataset"] for record in records):
            columns, rows = use_table(results, dataset)
            purpose = PURPOSES[dataset]
            text = (
                f"Mean ± standard deviation over {self.seeds} draws of the rows; violation: {purpose.excess}. A run "
                f"meets all constraints if no violation of test rows is above {purpose.slack:g}."
            )
            sections.append(Section(purpose.heading, [text], columns=columns, rows=rows, labels=1))
        columns, rows = weight_table(results)
        text = "Each weight, and means over the draws: score on test rows, worst violation on training rows."
        sections.append(Section("Every weight of the penalty", [text], columns=columns, rows=rows, labels=2))
        caption = (
            "Score and worst violation on all training rows along the run, at the setting chosen; means over the draws."
        )
        sections.append(Section("Along the run", figure="runs.png", caption=caption))
        return Report(self.title, "", {"plan": self.plan, "seeds": self.seeds, **results}, sections)


def tune_and_test(*, dataset: str, method: str, seed: int, steps: int, folder: Path | None) -> Record:
    """Train by every setting, choose by validation rows, and return the numbers of all and the curve of the choice.

    A setting that meets all constraints on validation rows, up to the slack, is better than one that does not. Of the
    former the better score counts, of the latter the smaller violation.
    """
    use, purpose = load_use(dataset, seed, folder), PURPOSES[dataset]

    def train(setting: Record) -> tuple[Any, Record]:
        curve: list[tuple[int, float, float]] = []
        if isinstance(use, GroupRates) and method == "fairlearn":
            measure: Callable[[str], Measure] = fit_fairlearn(use, **setting)
        elif isinstance(use, FalsePositives) and method == "logistic":
            measure = partial(use.measure, use.moved(fit_logistic(use)))
        else:
            model = descend(use, method, setting, steps=steps, seed=seed, smoothing=purpose.smoothing, curve=curve)
            measure = partial(use.measure, model)
        found = {part: _numbers(measure(part)) for part in PARTS}
        held = found["validation"]
        chosen_by = held["score"] if held["worst"] <= purpose.slack else -held["worst"]
        return curve, {"validation": chosen_by, "found": found}

    curve, choice = tune(settings(method, purpose), train, "validation", f"constraints, {dataset}, {method}")
    best = next(entry for entry in choice["tried"] if choice["setting"].items() <= entry.items())
    points = dict(zip(("step", "score", "worst"), map(list, zip(*curve, strict=True)), strict=True)) if curve else {}
    return {**best["found"], "setting": choice["setting"], "tried": choice["tried"], "curve": points}


def settings(method: str, purpose: Purpose) -> list[Record]:
    """Return the settings that a method tries; without constraints there is one."""
    if method in PENALTIES:
        return [{"penalty": weight} for weight in purpose.penalties]
    if method == "cooper":
        return [{"dual_lr": lr} for lr in purpose.dual_rates]
    if method == "fairlearn":
        return [{"share": share} for share in (1.0, 0.75, 0.5, 0.25)]
    return [{}]


def _numbers(measure: Measure) -> Record:
    violation = measure.violation
    return {
        "score": measure.score,
        "worst": float(violation.max()),
        "mean": float(violation.clamp_min(0.0).mean()),
        "share": float((violation > 0).double().mean()),
    }


def descend(
    use: Use,
    method: str,
    setting: Record,
    *,
    steps: int,
    seed: int,
    smoothing: float,
    curve: list[tuple[int, float, float]],
) -> Callable[[Tensor], Tensor]:
    """Train a network by AdamW, its step size falling to 0 along a cosine; append to the curve along the way.

    The weight of a penalty grows linearly from 0, unless the method has a constant one.
    """
    model = copy.deepcopy(use.start)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LR, weight_decay=_WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    random = torch.Generator().manual_seed(seed)
    step = _stepper(use, method, setting, model, optimizer, smoothing)
    for number in range(steps):
        if number * _POINTS // steps > (number - 1) * _POINTS // steps:
            curve.append(_point(use, model, number))
        step(use.draw(random), (number + 1) / steps)
        schedule.step()
    curve.append(_point(use, model, steps))
    return use.moved(model) if isinstance(use, FalsePositives) and method == "threshold" else model


def _point(use: Use, model: nn.Module, step: int) -> tuple[int, float, float]:
    measure = use.measure(model, "train")
    return step, round(measure.score, 4), round(float(measure.violation.max()), 4)


def _stepper(
    use: Use, method: str, setting: Record, model: nn.Module, optimizer: torch.optim.Optimizer, smoothing: float
) -> Step:
    """Return the step of a method."""
    if method == "cooper":
        return cooper_stepper(use, model, optimizer, **setting)
    if method in PENALTIES:
        options = {"smoothing": smoothing, **PENALTIES[method]}
        criterion = ConstrainedLoss(use.num_constraints, penalty=0.0, **options)
        criterion.train(not method.startswith("plug_in"))
        previous = PreviousIterate(model, optimizer) if criterion.needs_previous else None

        def loss_of(batch: Batch, done: float) -> Tensor:
            criterion.penalty = setting["penalty"] * (1.0 if method.endswith("constant") else done)
            values, numbers = use.constraints(model, batch)
            before = None if previous is None else use.constraints(previous, batch)[0]
            loss: Tensor = criterion(use.objective(model, batch), values, numbers, before)
            return loss

    else:
        plain: Any = use.replayed if method == "replay" and isinstance(use, OldTasks) else use.unconstrained

        def loss_of(batch: Batch, done: float) -> Tensor:
            loss: Tensor = plain(model, batch)
            return loss

    def step(batch: Batch, done: float) -> None:
        optimizer.zero_grad()
        loss_of(batch, done).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def cooper_stepper(use: Use, model: nn.Module, optimizer: torch.optim.Optimizer, *, dual_lr: float) -> Step:
    """Return a step of descent in the weights and ascent in a multiplier for each constraint."""
    cooper = import_extra("cooper", "constraints")

    class Problem(cooper.ConstrainedMinimizationProblem):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            multiplier = cooper.multipliers.IndexedMultiplier(num_constraints=use.num_constraints)
            self.all = cooper.Constraint(
                constraint_type=cooper.ConstraintType.INEQUALITY,
                formulation_type=cooper.formulations.Lagrangian,
                multiplier=multiplier,
            )

        def compute_cmp_state(self, batch: Batch) -> Any:
            values, numbers = use.constraints(model, batch)
            state = cooper.ConstraintState(violation=values, constraint_features=numbers)
            return cooper.CMPState(loss=use.objective(model, batch), observed_constraints={self.all: state})

    problem = Problem()
    dual = torch.optim.SGD(problem.dual_parameters(), lr=dual_lr, maximize=True)
    both = cooper.optim.SimultaneousOptimizer(cmp=problem, primal_optimizers=optimizer, dual_optimizers=dual)
    return lambda batch, done: both.roll(compute_cmp_state_kwargs={"batch": batch})


def fit_logistic(use: FalsePositives) -> Callable[[Tensor], Tensor]:
    """Fit logistic regression with classes of equal weight; return its log odds."""
    inputs, labels = (value.numpy() for value in use.parts["train"])
    model = LogisticRegression(max_iter=1000, class_weight="balanced").fit(inputs, labels)
    return lambda rows: torch.from_numpy(model.decision_function(rows.numpy()))


def fit_fairlearn(use: GroupRates, *, share: float) -> Callable[[str], Measure]:
    """Fit the mixture of logistic regressions of the reductions approach; return the measure of a part.

    The bound that it is given is this share of the tolerance.
    """
    reductions = import_extra("fairlearn.reductions", "constraints")
    inputs, labels, groups = (value.numpy() for value in use.parts["train"])
    constraint = reductions.TruePositiveRateParity(difference_bound=share * use.most)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it uses what the next pandas will drop
        model = reductions.ExponentiatedGradient(LogisticRegression(max_iter=200), constraint, eps=share * use.most)
        model.fit(inputs, labels, sensitive_features=groups)

    def measure(part: str) -> Measure:
        return use.measure_shares(torch.from_numpy(model._pmf_predict(use.parts[part][0].numpy())[:, 1]), part)

    return measure


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Return means and deviations by data set and method, and the means of every setting of a penalty."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record["dataset"], record["method"]), []).append(record)
    cells, weights = [], []
    for (dataset, method), own in groups.items():
        tested = [record["test"] for record in own]
        cell = {key: mean_and_std([found[key] for found in tested]) for key in ("score", "worst", "share")}
        cell["worst_train"] = mean_and_std([record["train"]["worst"] for record in own])
        met = sum(found["worst"] <= PURPOSES[dataset].slack for found in tested)
        cells.append(
            {"dataset": dataset, "method": method, "title": TITLES[method], "runs": len(own), "met": met, **cell}
        )
        for tried in zip(*(record["tried"] for record in own), strict=True):
            if "penalty" in tried[0]:
                found = {
                    "score": float(np.mean([entry["found"]["test"]["score"] for entry in tried])),
                    "worst_train": float(np.mean([entry["found"]["train"]["worst"] for entry in tried])),
                }
                entry = {"dataset": dataset, "method": method, "penalty": tried[0]["penalty"]}
                weights.append({**entry, **found})
    return {"cells": cells, "weights": weights}


def use_table(results: Record, dataset: str) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of one data set."""
    rows = []
    for cell in (cell for cell in results["cells"] if cell["dataset"] == dataset):
        numbers = [show(cell[key]) for key in ("score", "worst", "share", "worst_train")]
        rows.append([cell["title"], *numbers, f"{cell['met']} of {cell['runs']}"])
    columns = [
        *("method", PURPOSES[dataset].score, "worst violation", "share violated"),
        *("worst violation, training rows", "runs that meet all"),
    ]
    return columns, rows


def weight_table(results: Record) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of every weight: score on test rows and worst violation on training rows."""
    rows: dict[tuple[str, str], list[str]] = {}
    for entry in results["weights"]:
        row = rows.setdefault((entry["dataset"], entry["method"]), [entry["dataset"], TITLES[entry["method"]]])
        row.append(f"{entry['penalty']:g}: {entry['score']:.3f}, {entry['worst_train']:+.3f}")
    return ["set", "method", *(f"weight {number}" for number in range(1, 5))], list(rows.values())


_LINES = {
    "unconstrained": ("#9aa4b1", "-"),
    "replay": ("#9aa4b1", "--"),
    "plug_in": ("#d1495b", "-"),
    "tau_1": ("#c98a1b", "-"),
    "average": ("#0b6e99", "-"),
    "msvr": ("#3fa7a0", "--"),
    "cooper": ("#8e6bbf", "-"),
}


def draw_runs(records: Sequence[Record]) -> Figure:
    """Draw score and worst violation along the run, a column for each data set; means over the draws."""
    sets = list(dict.fromkeys(record["dataset"] for record in records))
    figure = Figure(figsize=(3.2 * len(sets) + 0.6, 5.6), layout="constrained")
    panels = figure.subplots(2, len(sets), sharex=True, squeeze=False)
    for column, dataset in enumerate(sets):
        for row, key in enumerate(("score", "worst")):
            axes = panels[row, column]
            for method, (color, line) in _LINES.items():
                own = [r["curve"] for r in records if (r["dataset"], r["method"]) == (dataset, method)]
                if own:
                    values = np.mean([curve[key] for curve in own], axis=0)
                    # without the start
                    axes.plot(own[0]["step"][1:], values[1:], line, color=color, linewidth=1.4, label=TITLES[method])
                    if key == "worst" and values[1:].max() > 1.0:
                        axes.set_yscale("symlog", linthresh=0.1)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
        upper, lower = panels[:, column]
        upper.set_title(f"{PURPOSES[dataset].heading}\n{PURPOSES[dataset].score}", fontsize=9)
        lower.set_title(f"worst {PURPOSES[dataset].excess}", fontsize=9)
        lower.axhline(0.0, color="#66717f", linewidth=1)
        lower.set_xlabel("step")
    handles = {
        text: handle for axes in panels[0] for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure
