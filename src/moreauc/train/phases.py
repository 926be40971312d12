"""The phases of a run: a warm start by cross entropy, then training with a schedule; and their random numbers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import MultiStepLR

from moreauc.checkpoint.rng import global_states_kept
from moreauc.core.pooling import Pooling
from moreauc.distributed import DistributedCriterion
from moreauc.optim import ProximalPoint


class _CrossEntropy(nn.Module):
    """Binary cross entropy, called as the criteria are; scores of bags are pooled from the instances of the batch."""

    def __init__(self, pooling: Pooling | None) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(self, scores: Tensor, *others: Tensor) -> Tensor:
        *bags, labels, _ = others
        if bags:
            if self.pooling is None:
                raise ValueError("fit: warm_start_epochs must be 0 for bags and a criterion without pooling")
            scores = self.pooling(scores, bags[0], len(labels))
        return nn.functional.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype))


def warm_start_loss(criterion: nn.Module) -> nn.Module:
    """Return cross entropy for the batches of a criterion, over the same processes."""
    pooling = getattr(criterion, "pooling", None)
    warm = _CrossEntropy(pooling)
    if not isinstance(criterion, DistributedCriterion):
        return warm
    return criterion.around(warm, *(("scores",) if pooling is None else ("instances", "bag")), "labels", "index")


def make_optimizer(
    optimizer: Optimizer | Literal["sgd", "adam"], model: nn.Module, lr: float, momentum: float, weight_decay: float
) -> Optimizer:
    """Return the optimizer that was given, or a new one by its name."""
    if isinstance(optimizer, Optimizer):
        return optimizer
    parameters = list(model.parameters())
    if optimizer == "sgd":
        return SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)
    # one kernel for all weights, where all of them support it
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
    return AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=fused)


class Schedule:
    """Divides the learning rate at milestones, and renews the reference point of a proximal term with it.

    Attributes:
        scheduler: the learning-rate scheduler.
        proximal: the proximal term; None for none.
    """

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], factor: float, proximal: float) -> None:
        self.scheduler: Any = MultiStepLR(optimizer, list(milestones), gamma=factor)
        self._milestones = set(milestones)
        self.proximal = ProximalPoint(optimizer, proximal) if proximal > 0.0 else None

    def after_epoch(self, epoch: int) -> None:
        """Step the scheduler; restart the proximal term at a milestone."""
        with warnings.catch_warnings():
            # A run may be resumed after the last step of an epoch; torch does not know of the steps before that.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self.scheduler.step()
        if self.proximal is not None and epoch + 1 in self._milestones:
            self.proximal.restart()

    def remove(self) -> None:
        """Remove the hooks from the optimizer."""
        if self.proximal is not None:
            self.proximal.remove()


@contextmanager
def random_state(model: nn.Module, seed: int | None, rank: int = 0) -> Iterator[None]:
    """Seed the global generators, in each process differently, and restore them at the end; None to leave them."""
    if seed is None:
        yield
        return
    places = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(places)), global_states_kept():
        # the generator of the CPU uses only 32 bits of a seed, so that the rank must be mixed in
        torch.manual_seed(int(np.random.SeedSequence([seed, rank]).generate_state(1)[0]) if rank else seed)
        yield
