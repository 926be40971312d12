"""The state of the training loop: what a run has done, and what it does next."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from moreauc.checkpoint.loader import LoaderPosition, length_of
from moreauc.models.calls import device_of
from moreauc.optim import PreviousIterate
from moreauc.train.history import History

if TYPE_CHECKING:
    from moreauc.train.phases import Schedule
    from moreauc.train.selection import ModelSelector

WARM_START, TRAIN, DONE = "warm start", "train", "done"


class TrainState:
    """The state of a run of :func:`moreauc.train.fit`. Callbacks read it and may set `stop`.

    Attributes:
        model: the model in training.
        criterion: the loss of the present phase.
        optimizer: the optimizer of the present phase.
        position: the position in the training loader.
        phase: "warm start" or "train".
        epochs: number of epochs of this phase.
        epoch: number of the present epoch in its phase, from 0.
        step: number of the present step in its epoch, from 0.
        steps: steps of an epoch, or None where the loader has no length.
        loss: loss of the last step, a 0-d tensor without gradient.
        history: one row for each finished epoch.
        stop: set to True to end the run after the present epoch.
        done: whether the run is complete.
        epochs_before: epochs of earlier phases; the loader counts them, too.
        steps_done: steps of the whole run.
        total: sum of the losses of the present epoch.
        lr: learning rate at the beginning of the present epoch.
        started: time at which the present epoch began, less the time between an interruption and its resumption.
        previous: the model at its previous weights, where the loss needs it.
        schedule: learning-rate schedule and proximal point of the phase.
        selector: chooses the best epoch of the phase.
    """

    def __init__(self, model: nn.Module, criterion: nn.Module, optimizer: Optimizer, loader: Iterable[Any]) -> None:
        self.model, self.criterion, self.optimizer = model, criterion, optimizer
        self.position = LoaderPosition(loader)
        self.phase = ""
        self.epochs = self.epoch = self.step = self.epochs_before = self.steps_done = 0
        self.steps: int | None = None
        self.loss: Tensor | None = None
        self.history = History()
        self.stop = self.done = False
        self.total = torch.zeros(())
        self.lr = self.started = 0.0
        self.previous: PreviousIterate | None = None
        self.schedule: Schedule | None = None
        self.selector: ModelSelector | None = None
        self._partial: dict[str, Any] | None = None  # totals of an epoch that was interrupted

    def begin_phase(
        self, phase: str, criterion: nn.Module, optimizer: Optimizer, epochs: int, epochs_before: int = 0
    ) -> None:
        """Begin a phase with its loss and optimizer."""
        self.close()
        self.epochs_before = epochs_before
        self.phase, self.criterion, self.optimizer, self.epochs = phase, criterion, optimizer, epochs
        self.epoch, self.steps, self.loss = 0, length_of(self.position.loader), None

    def begin_epoch(self) -> None:
        """Reset the totals, or restore those of an epoch that was interrupted."""
        device = device_of(self.model)
        self.started, self.lr = time.perf_counter(), self.optimizer.param_groups[0]["lr"]
        self.step, self.total = -1, torch.zeros((), device=device)
        partial, self._partial = self._partial, None
        if partial is not None:
            self.step, self.lr = self.position.step - 1, partial["lr"]
            self.started -= partial["seconds"]
            self.total, self.loss = partial["total"].to(device), partial["loss"].to(device)

    def keep_previous(self) -> None:
        """Keep the previous weights from now on."""
        if self.previous is None:
            self.previous = PreviousIterate(self.model, self.optimizer)

    def close(self) -> None:
        """Remove what the phase has attached to model and optimizer."""
        for part in (self.previous, self.schedule):
            if part is not None:
                part.remove()
        self.previous = self.schedule = self.selector = None

    def state_dict(self) -> dict[str, Any]:
        """Return phase, counts and totals; history, selector and position have states of their own."""
        partial = None
        if self.position.step:
            seconds = time.perf_counter() - self.started
            partial = {"total": self.total, "lr": self.lr, "loss": self.loss, "seconds": seconds}
        phase = DONE if self.done else self.phase
        return {"phase": phase, "steps": self.steps_done, "stop": self.stop, "partial": partial}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take counts and totals; the phase has begun already."""
        self.steps_done, self.stop, partial = state["steps"], state["stop"], state["partial"]
        self._partial = None
        if partial is not None:
            self._partial = {name: partial[name].clone() for name in ("total", "loss")}
            self._partial |= {name: float(partial[name]) for name in ("lr", "seconds")}
