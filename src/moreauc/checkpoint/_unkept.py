"""What the training loop asks of whoever keeps its runs, and the answer of one who keeps none."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor

from moreauc.checkpoint._loader_place import set_epoch
from moreauc.optim import PreviousIterate, ProximalPoint
from moreauc.train.callbacks import TrainState
from moreauc.train.selection import Judge


class Schedule(Protocol):
    """What a phase changes after an epoch."""

    scheduler: Any
    pull: ProximalPoint | None


class Unkept(AbstractContextManager["Unkept"]):
    """A run without checkpoints: all of it happens once.

    Attributes:
        first: epoch of the phase to begin with.
        had_previous: whether the run had previous weights where it was saved.
        previous: those it has now.
        started: when the present epoch began, had it not been interrupted.
        total: sum of the losses of the present epoch's steps.
        steps_before: steps of the present epoch that were done before an interruption.
        lr: learning rate with which the present epoch began.
    """

    first = 0
    had_previous = False
    previous: PreviousIterate | None = None
    started = 0.0
    total: Tensor
    steps_before = 0
    lr = 0.0

    def __init__(self, train: Iterable[Any]) -> None:
        self._train = train
        self._epoch = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run."""

    def done(self) -> bool:
        """Return whether the run had been completed; its result has then been put back."""
        return False

    def resumes(self, phase: str) -> bool:
        """Return whether the run goes on in the middle of a phase, whose beginning must not be done again."""
        return False

    def begin(
        self, state: TrainState, judge: Judge | None = None, schedule: Schedule | None = None, epochs_before: int = 0
    ) -> None:
        """Begin a phase, with the parts it has."""
        self.previous = None

    def restore(self) -> None:
        """Put a phase that has begun back to where it was saved."""

    def begin_epoch(self, epoch: int, device: torch.device, lr: float) -> None:
        """Begin an epoch, counted from the beginning of the run."""
        self._epoch, self.started, self.lr = epoch, time.perf_counter(), lr
        self.total = torch.zeros((), device=device)

    def batches(self) -> Iterator[tuple[int, Any]]:
        """Yield steps and batches of the epoch."""
        set_epoch(self._train, self._epoch)
        yield from enumerate(self._train)

    def after_step(self) -> None:
        """End a step."""

    def after_epoch(self) -> None:
        """End an epoch."""

    def finish(self) -> None:
        """End the run, which is complete."""
