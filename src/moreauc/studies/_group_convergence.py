"""Loss of the worst groups against samples drawn, by SONX and by exponentiated weights; few groups in a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from moreauc.criteria.group_dro import GroupDROLoss
from moreauc.criteria.group_exponentiated import ExponentiatedGroupDROLoss
from moreauc.data.groups import planted_groups
from moreauc.samplers.groups import GroupSampler

NUMBERS = (10, 100, 1000)
METHODS = ("sonx", "exponentiated")
RATES = (0.01, 0.03, 0.1, 0.3)
OPTIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    "sonx": ("tau", (0.3, 0.1, 0.03)),
    "exponentiated": ("step", (1.0, 0.3, 0.1)),
}
GROUPS, SAMPLES, STEPS, POINTS = 8, 8, 6000, 25


def descend(num_groups: int, method: str, lr: float, option: float, seed: int, steps: int) -> dict[str, Any]:
    """Return the mean training loss of the tenth of the groups that is worst, and that of the worst, along a run.

    A linear model by SGD, its step size falling to 0 in a straight line; losses of all training rows are looked at a
    few times on the way, at steps that are equally spaced in logarithms.
    """
    data = planted_groups(
        num_groups=num_groups, minority_groups=num_groups // 10, samples=max(4000, 20 * num_groups), seed=seed
    )[0]
    inputs = torch.cat([torch.from_numpy(data.X), torch.ones(len(data), 1)], dim=1)
    labels, groups = torch.from_numpy(data.y).to(inputs.dtype), torch.from_numpy(data.groups)
    top_k = num_groups // 10
    name, _ = OPTIONS[method]
    criterion: nn.Module = (
        GroupDROLoss(num_groups, top_k=top_k, threshold_lr="quantile", **{name: option})
        if method == "sonx"
        else ExponentiatedGroupDROLoss(num_groups, **{name: option})
    )
    weight = torch.zeros(inputs.shape[1], requires_grad=True)
    before = torch.zeros_like(weight)
    sampler = GroupSampler(
        data.groups, groups_per_batch=GROUPS, samples_per_group=SAMPLES, num_groups=num_groups, seed=seed
    )
    looks = {int(step) for step in np.unique(np.geomspace(1, steps, POINTS).round())}
    curve = [_look(inputs, labels, groups, weight, num_groups, top_k, step=0)]
    done = 0
    while done < steps:
        sampler.set_epoch(done // len(sampler))
        for rows in sampler:
            if done == steps:
                break
            losses = _losses(inputs[rows], labels[rows], weight)
            previous = {}
            if getattr(criterion, "needs_previous", False):
                previous["previous_losses"] = _losses(inputs[rows], labels[rows], before)
            loss = criterion(losses, groups[rows], **previous)
            (gradient,) = torch.autograd.grad(loss, weight)
            before = weight.detach().clone()
            with torch.no_grad():
                weight -= lr * (1.0 - done / steps) * gradient
            done += 1
            if done in looks:
                curve.append(_look(inputs, labels, groups, weight, num_groups, top_k, step=done))
    return {
        "groups": num_groups,
        "method": method,
        "lr": lr,
        name: option,
        "option": option,
        "seed": seed,
        "samples": [GROUPS * SAMPLES * point[0] for point in curve],
        "top_k_loss": [round(point[1], 5) for point in curve],
        "worst_loss": [round(point[2], 5) for point in curve],
    }


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
