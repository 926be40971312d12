"""Parts of the training loop: what comes before it, what it changes after an epoch, and its random numbers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import MultiStepLR

from moreauc._checks import (
    check_count,
    check_flag,
    check_folder,
    shown,
)
from moreauc.checkpoint._generators import global_states_kept, loader_parts
from moreauc.checkpoint._loader_place import length_of
from moreauc.checkpoint._part_checks import check_loader, check_names
from moreauc.core.pooling import Pooling
from moreauc.data.bag_batches import BagInputs
from moreauc.distributed import DistributedCriterion, Exchange
from moreauc.distributed.agreement import check_draws
from moreauc.optim import PreviousIterate, ProximalPoint
from moreauc.samplers.base import PlannedSampler
from moreauc.train.history import History, UntrainedWarning
from moreauc.train.scoring import check_batch, instances_for, scores_of

_OWNER = "fit"


class _CrossEntropy(nn.Module):
    """Binary cross entropy, called as the criteria are; scores of bags are pooled from the instances of the batch."""

    def __init__(self, pooling: Pooling | None) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(self, scores: Tensor, *others: Tensor) -> Tensor:
        *bags, labels, _ = others
        if bags:
            if self.pooling is None:
                raise ValueError(f"{_OWNER}: warm_start_epochs must be 0 for bags and a criterion without pooling")
            scores = self.pooling(scores, bags[0], len(labels))
        return nn.functional.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype))


@contextmanager
def untrained_warned(history: History, rank: int, warm_start_epochs: int) -> Iterator[None]:
    """Warn at the end, in the first process, where the weights from before the training are what was kept."""
    yield
    if history.untrained and rank == 0:
        text = "{}: no epoch did better on the validation data than the weights {}, score {:.4g}, which were kept; {}"
        before = "after the warm start" if warm_start_epochs else "before training"
        advice = "try another learning rate, more rows or other features"
        # the levels are this function, contextlib, fit, and who called it
        warnings.warn(text.format(_OWNER, before, history.best_score, advice), UntrainedWarning, stacklevel=4)


def warm_start(criterion: nn.Module) -> nn.Module:
    """Return cross entropy for the batches of a criterion, over the same processes."""
    pooling = getattr(criterion, "pooling", None)
    warm = _CrossEntropy(pooling)
    if not isinstance(criterion, DistributedCriterion):
        return warm
    return criterion.around(warm, *(("scores",) if pooling is None else ("instances", "bag")), "labels", "index")


class Schedule:
    """Learning-rate steps, and with each a new reference point where there is one."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], factor: float, proximal: float) -> None:
        self.scheduler = MultiStepLR(optimizer, list(milestones), gamma=factor)
        self._milestones = set(milestones)
        self.pull = ProximalPoint(optimizer, proximal) if proximal > 0.0 else None

    def after_epoch(self, epoch: int) -> None:
        """Step the schedule and restart the proximal point where the epoch asks for it."""
        with warnings.catch_warnings():
            # An epoch may have been interrupted after its last step; torch does not know of steps before that.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self.scheduler.step()
        if self.pull is not None and epoch + 1 in self._milestones:
            self.pull.restart()

    def close(self) -> None:
        """Remove the hooks."""
        if self.pull is not None:
            self.pull.remove()


class Opened(NamedTuple):
    """A batch as a step takes it.

    Attributes:
        inputs: for the model.
        others: what the criterion takes after the scores.
        before: what it calls the scores at the previous weights.
    """

    inputs: Any
    others: list[Tensor]
    before: str


def opened(model: nn.Module, batch: Any) -> Opened:
    """Return what the model and what the criterion is given of a batch, of rows or of bags."""
    inputs, labels, index = batch
    if isinstance(inputs, BagInputs):
        instances, *bags = inputs
        return Opened(instances_for(model, instances), [*bags, labels, index], "previous_instances")
    return Opened(inputs, [labels, index], "previous_scores")


def loss_of(owner: str, model: nn.Module, criterion: nn.Module, batch: Any, previous: PreviousIterate | None) -> Tensor:
    """Return the loss of a batch, of rows or of bags, with the scores at the previous weights where it needs them."""
    check_batch(f"{owner}: batch must be", batch)
    parts = opened(model, batch)
    scores = scores_of(model, parts.inputs)
    before: dict[str, Tensor] = {}
    if getattr(criterion, "needs_previous", False):
        if previous is None:
            raise ValueError(f"{owner}: previous must be given where the criterion needs {parts.before}, got None")
        before[parts.before] = scores_of(previous, parts.inputs)
    loss: Tensor = criterion(scores, *parts.others, **before)
    return loss


def check_saving(train: Any, checkpoint: Any, every: Any, resume: Any) -> None:
    """Check where, how often and whether anew a run is saved, and that its loader can be gone through again."""
    check_flag(_OWNER, "resume", resume)
    if checkpoint is not None:
        check_folder(_OWNER, "checkpoint", checkpoint)
        check_loader(train, _OWNER, "train")
    if every is not None and checkpoint is None:
        raise ValueError(f"{_OWNER}: every must be None without checkpoint, got {every}")
    if every is not None:
        check_count(_OWNER, "every", every)


def joined_settings(given: Mapping[str, Any] | None, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the user wants to be the same in a run that goes on, and then what the loop wants."""
    check_names("settings", given, _OWNER)
    for name in given or {}:
        if name in own:
            raise ValueError(f"{_OWNER}: settings must not hold {name!r}, which is compared anyway")
    return {**(given or {}), **own}


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Check that callbacks have all hooks, those that do nothing included."""
    for callback in callbacks:
        if isinstance(callback, type) or not all(
            callable(getattr(callback, name, None)) for name in ("on_begin", "on_step", "on_epoch", "on_end")
        ):
            kind = f"the class {callback.__name__}" if isinstance(callback, type) else shown(callback)
            raise ValueError(f"{_OWNER}: callbacks must be objects of moreauc.train.callbacks.Callback, got {kind}")


def check_lengths(exchange: Exchange, name: str, batches: Any) -> None:
    """Refuse loaders of different lengths, in all processes alike, where they are known."""
    every = exchange.gather_objects(length_of(batches), f"a comparison of {name}")
    if len({*every} - {None}) > 1:
        raise ValueError(f"{_OWNER}: {name} must have as many batches in all processes, got {every}")


def check_samplers(exchange: Exchange, train: Any) -> None:
    """Refuse samplers that would draw other batches in each process, in all of them alike; epochs are told later."""
    found = [part.draw() for _, part in loader_parts(train) if isinstance(part, PlannedSampler)]
    draw = {name: value for name, value in found[0].items() if name not in ("epoch", "step")} if found else None
    check_draws(exchange, draw, _OWNER)


@contextmanager
def random_state(model: nn.Module, seed: int | None, rank: int = 0) -> Iterator[None]:
    """Seed the global generators for a while, in each process otherwise; None to leave them alone."""
    if seed is None:
        yield
        return
    check_count(_OWNER, "seed", seed, minimum=0)
    places = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(places)), global_states_kept():
        # the generator of the CPU looks at 32 bits only: the number of the process must be mixed in
        torch.manual_seed(int(np.random.SeedSequence([seed, rank]).generate_state(1)[0]) if rank else seed)
        yield
