"""Loss of the worst groups against samples drawn, by SONX and by exponentiated weights; few groups in a batch."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from moreauc.criteria._base import Step
from moreauc.criteria._batches import Members
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
GROUPS, SAMPLES, STEPS, POINTS = 8, 8, 6000, 25


class UnscaledExponentiatedLoss(ExponentiatedGroupDROLoss):
    """Exponentiated weights as published: the sum over the groups present is not scaled by N over their number."""

    def _step(self, batch: tuple[Tensor, Members]) -> Step:
        step, factor = super()._step(batch), batch[1].number / self.num_groups
        assert step.gradient is not None  # for the type checker
        return replace(step, value=factor * step.value, gradient=factor * step.gradient)


def settings(method: str, num_groups: int) -> list[tuple[float, float]]:
    """Return every step size with every value of the method's option."""
    return list(product(*GRIDS[method, num_groups]))


def descend(num_groups: int, method: str, lr: float, option: float, seed: int, steps: int) -> dict[str, Any]:
    """Return the mean training loss of the tenth of the groups that is worst, and that of the worst, along a run.

    A linear model by SGD, its step size falling to 0 in a straight line; losses of all training rows are looked at a
    few times on the way, at steps that are equally spaced in logarithms.
    """
    top_k = num_groups // 10
    inputs, labels, groups, batches = _draw(num_groups, seed, steps)
    criterion = _criterion(num_groups, method, top_k, option)
    weight = torch.zeros(inputs.shape[1], requires_grad=True)
    looks = {int(step) for step in np.unique(np.geomspace(1, steps, POINTS).round())}
    curve = [_look(inputs, labels, groups, weight, num_groups, top_k, step=0)]
    for done, rows in enumerate(batches):
        loss = criterion(_losses(inputs[rows], labels[rows], weight), groups[rows])
        (gradient,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            weight -= lr * (1.0 - done / steps) * gradient
        if done + 1 in looks:
            curve.append(_look(inputs, labels, groups, weight, num_groups, top_k, step=done + 1))
    return {
        "groups": num_groups,
        "method": method,
        "lr": lr,
        "option": option,
        "seed": seed,
        "samples": [GROUPS * SAMPLES * point[0] for point in curve],
        "top_k_loss": [round(point[1], 5) for point in curve],
        "worst_loss": [round(point[2], 5) for point in curve],
    }


@lru_cache(maxsize=1)
def _draw(num_groups: int, seed: int, steps: int) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Return inputs with a constant, labels, groups and the rows of every step; runs of a draw come one by one."""
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
    kind = UnscaledExponentiatedLoss if method == "unscaled" else ExponentiatedGroupDROLoss
    return kind(num_groups, step=option)


def _losses(inputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(inputs @ weight, labels, reduction="none")


@torch.no_grad()
def _look(
    inputs: Tensor, labels: Tensor, groups: Tensor, weight: Tensor, num_groups: int, top_k: int, *, step: int
) -> tuple[int, float, float]:
    losses = _losses(inputs, labels, weight).double()
    sizes = torch.bincount(groups, minlength=num_groups)
    means = torch.zeros(num_groups, dtype=torch.float64).index_add_(0, groups, losses) / sizes
    worst = means.topk(top_k).values
    return step, float(worst.mean()), float(worst[0])
