"""Loss of the worst groups against samples drawn, by SONX and by exponentiated weights; few groups in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from experiments.engine import Record, Setup, Study, Task
from moreauc.app.report.pages import Image, Report, Section, as_image
from moreauc.criteria.group_dro import GroupDROLoss
from moreauc.criteria.group_exponentiated import ExponentiatedGroupDROLoss
from moreauc.data import planted_groups
from moreauc.samplers.groups import GroupSampler

NUMBERS = (10, 100, 1000)
TITLES = {"sonx": "SONX", "exponentiated": "exponentiated", "unscaled": "exponentiated, unscaled"}
OPTIONS = {"sonx": "tau", "exponentiated": "step", "unscaled": "step"}
_RATES, _STEPS, _LARGE = (0.003, 0.01, 0.03, 0.1), (0.01, 0.1, 1.0, 10.0), (0.1, 1.0, 10.0, 100.0)
# Step sizes of the model and values of the option, as many for every method. Without the factor N / 8 the step sizes
# must grow with N to move the model as far.
GRIDS: dict[tuple[str, int], tuple[tuple[float, ...], tuple[float, ...]]] = {
    ("sonx", 10): (_RATES, (0.001, 0.003, 0.01, 0.03)),
    ("sonx", 100): (_RATES, (0.001, 0.003, 0.01, 0.03)),
    ("sonx", 1000): (_RATES, (0.003, 0.01, 0.03, 0.1)),
    ("exponentiated", 10): (_RATES, _STEPS),
    ("exponentiated", 100): (_RATES, _STEPS),
    ("exponentiated", 1000): ((0.0003, 0.001, 0.003, 0.01), _LARGE),
    ("unscaled", 10): ((0.01, 0.03, 0.1, 0.3), _STEPS),
    ("unscaled", 100): ((0.03, 0.1, 0.3, 1.0), _STEPS),
    ("unscaled", 1000): ((0.03, 0.1, 0.3, 1.0), _LARGE),
}
GROUPS, SAMPLES, POINTS = 8, 8, 25
_CURVES = {"top_k_loss": "worst tenth of the groups", "worst_loss": "worst group"}
_COLOURS = {"sonx": "#0072b2", "exponentiated": "#d55e00", "unscaled": "#009e73"}


@dataclass(frozen=True, kw_only=True)
class ManyGroupsStudy(Study):
    """Loss of the worst groups against samples drawn, with 8 of 10, 100 and 1000 groups in a batch.

    Args:
        steps: steps of a run.
        numbers: numbers of groups.
    """

    steps: int
    numbers: tuple[int, ...] = NUMBERS
    planned: ClassVar = ("seeds", "steps")
    tiny: ClassVar = {"seeds": 1, "steps": 20, "numbers": (10,)}

    def tasks(self, setup: Setup) -> list[Task]:
        """Return a task for each number of groups and method: all settings and draws."""
        places = [{"groups": number, "method": method} for number in self.numbers for method in TITLES]
        return [Task(place, best_curve, {**place, **self.plan}) for place in places]

    def report(self, records: Sequence[Record], out: Path) -> Report:
        """Return the curves of the best settings."""
        curves = [{key: r[key] for key in r if key not in ("key", "plan", "where", "seconds")} for r in records]
        section = Section(
            "Loss of the worst groups against samples",
            [
                f"A linear model on planted groups, {GROUPS} groups of {SAMPLES} rows in a "
                f"batch, {self.steps} steps of SGD, mean over {self.seeds} draws. Each curve is the setting with the "
                f"lowest final objective of its method, of {len(curves[0]['tried'])} for each (step size; averaging "
                "weight, or step of the group weights). SONX minimises the mean loss of the worst tenth of the groups, "
                "exponentiated weights that of the worst one; with 10 groups these are the same. Unscaled weights omit "
                "the factor N over the number of groups in the batch, as published."
            ],
            columns=["groups", "method", "step size", "option", "worst tenth, loss", "worst group, loss"],
            rows=[_row(curve) for curve in curves],
            labels=2,
            images=[_draw_curves(curves, self.numbers)],
        )
        return Report(self.title, "", {**self.plan, "curves": curves}, [section])


def best_curve(*, groups: int, method: str, seeds: int, steps: int) -> Record:
    """Return the mean curves of the setting with the lowest final objective, and the final values of all."""
    pairs = list(product(*GRIDS[method, groups]))
    runs: dict[tuple[float, float], list[Record]] = {pair: [] for pair in pairs}
    for seed in range(seeds):  # runs of one draw follow each other: the draw is cached
        for lr, value in pairs:
            runs[lr, value].append(descend(groups, method, lr, value, seed, steps))
    key, option = "top_k_loss" if method == "sonx" else "worst_loss", OPTIONS[method]
    tried = []
    for (lr, value), own in runs.items():
        ends = {name: round(float(np.mean([run[name][-1] for run in own])), 5) for name in _CURVES}
        tried.append({"lr": lr, option: value, **ends})
    best = min(tried, key=lambda entry: float(entry[key]))
    own = runs[float(best["lr"]), float(best[option])]
    return {
        "lr": best["lr"],
        option: best[option],
        "samples": own[0]["samples"],
        **{name: np.mean([run[name] for run in own], axis=0).round(5).tolist() for name in _CURVES},
        "last": {name: [run[name][-1] for run in own] for name in _CURVES},
        "tried": tried,
    }


def descend(num_groups: int, method: str, lr: float, option: float, seed: int, steps: int) -> Record:
    """Return the mean training loss of the worst tenth of the groups, and of the worst group, along a run.

    A linear model by SGD, its step size falling linearly to 0; losses of all training rows are evaluated at steps that
    are equally spaced in logarithms.
    """
    top_k = num_groups // 10
    inputs, labels, groups, batches = _draw(num_groups, seed, steps)
    criterion = _criterion(num_groups, method, top_k, option)
    weight = torch.zeros(inputs.shape[1], requires_grad=True)
    evaluated = {int(step) for step in np.unique(np.geomspace(1, steps, POINTS).round())}
    curve = [_evaluate(inputs, labels, groups, weight, num_groups, top_k, step=0)]
    for done, rows in enumerate(batches):
        loss = criterion(_losses(inputs[rows], labels[rows], weight), groups[rows])
        if method == "unscaled":  # as published: not scaled by N over the number of groups present
            loss = loss * (len(torch.bincount(groups[rows]).nonzero()) / num_groups)
        (gradient,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            weight -= lr * (1.0 - done / steps) * gradient
        if done + 1 in evaluated:
            curve.append(_evaluate(inputs, labels, groups, weight, num_groups, top_k, step=done + 1))
    return {
        "samples": [GROUPS * SAMPLES * point[0] for point in curve],
        "top_k_loss": [round(point[1], 5) for point in curve],
        "worst_loss": [round(point[2], 5) for point in curve],
    }


@lru_cache(maxsize=1)
def _draw(num_groups: int, seed: int, steps: int) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Return inputs with a constant, labels, groups and the rows of every step; the last draw is kept."""
    minority, samples = num_groups // 10, max(4000, 20 * num_groups)
    data, _, _ = planted_groups(num_groups=num_groups, minority_groups=minority, samples=samples, seed=seed)
    inputs = torch.cat([torch.from_numpy(data.X), torch.ones(len(data), 1)], dim=1)
    labels, groups = torch.from_numpy(data.y).to(inputs.dtype), torch.from_numpy(data.groups)
    sampler = GroupSampler(
        data.groups, groups_per_batch=GROUPS, samples_per_group=SAMPLES, num_groups=num_groups, seed=seed
    )
    batches = [torch.as_tensor(sampler.batch(*divmod(step, len(sampler)))) for step in range(steps)]
    return inputs, labels, groups, batches


def _criterion(num_groups: int, method: str, top_k: int, option: float) -> nn.Module:
    if method == "sonx":
        return GroupDROLoss(num_groups, top_k=top_k, threshold_lr="quantile", tau=option)
    return ExponentiatedGroupDROLoss(num_groups, step=option)


def _losses(inputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(inputs @ weight, labels, reduction="none")


@torch.no_grad()
def _evaluate(
    inputs: Tensor, labels: Tensor, groups: Tensor, weight: Tensor, num_groups: int, top_k: int, *, step: int
) -> tuple[int, float, float]:
    losses = _losses(inputs, labels, weight).double()
    sizes = torch.bincount(groups, minlength=num_groups)
    means = torch.zeros(num_groups, dtype=torch.float64).index_add_(0, groups, losses) / sizes
    worst = means.topk(top_k).values
    return step, float(worst.mean()), float(worst[0])


def _row(curve: Record) -> list[str]:
    name = OPTIONS[curve["method"]]
    ends = [f"{np.mean(curve['last'][key]):.3f}" for key in _CURVES]
    title = TITLES[curve["method"]]
    return [f"{curve['groups']:,}", title, f"{curve['lr']:g}", f"{name} {curve[name]:g}", *ends]


def _draw_curves(curves: list[Record], numbers: Sequence[int]) -> Image:
    figure = Figure(figsize=(10.0, 5.6), layout="constrained")
    axes = figure.subplots(2, len(numbers), sharex=True, squeeze=False)
    for column, number in enumerate(numbers):
        for row, (key, words) in enumerate(_CURVES.items()):
            panel = axes[row, column]
            for curve in (curve for curve in curves if curve["groups"] == number):
                title, colour = TITLES[curve["method"]], _COLOURS[curve["method"]]
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
