"""The state of the training loop, its history, and hooks into it: the base class, a progress bar, TensorBoard."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import MultiStepLR

from moreauc._system import import_extra
from moreauc.data.batches import EpochBatches, length_of
from moreauc.data.scoring import device_of
from moreauc.optim import PreviousIterate, ProximalPoint

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from moreauc.train.selection import ModelSelector

WARM_START, TRAIN, DONE = "warm start", "train", "done"
_PAUSE = 10.0  # seconds between two lines of progress where there is no terminal


class UntrainedWarning(UserWarning):
    """No epoch improved the validation score of the initial weights, which were kept."""


@dataclass
class History:
    """One row for each epoch, and which of them was the best on the validation data.

    Attributes:
        rows: dictionaries with `phase` ("warm start" or "train"), `epoch` (from 0 in its phase), `loss` (mean over the
            epoch's steps), `lr`, `seconds`, and with validation data `score`; if that is the TPAUC, also `wider_score`,
            that of the region half way to the whole ROC square, `auc`, and `gap`, the lowest positive minus the highest
            negative score in standard deviations (0 if the classes overlap).
        best_score: the highest `score` of the phase "train" (of its start, too), or None without validation data.
        best_epoch: its epoch, -1 for the weights before the first one. Ties in `score` are broken by the highest
            `wider_score`, then `auc`, then `gap`, then the earliest epoch.
        start_epoch: the best epoch of an earlier training whose weights this one started from, or None.
        began_as: name of the trained model that the initial weights come from; empty for random weights.
        best_scores: `score`, `wider_score`, `auc` and `gap` of that epoch.
        best_tied: share of the region's validation rows that are tied with a row of the other class at that epoch.
        chosen_by: the first of these in which the best epoch was ahead of all others; "earliest" if none.
        restored: whether the model was given the weights of `best_epoch` at the end.

    Example:
        >>> history = History()
        >>> history.add(phase="train", epoch=0, loss=0.5)
        >>> history["loss"]
        [0.5]
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    best_score: float | None = None
    best_epoch: int | None = None
    start_epoch: int | None = None
    began_as: str = ""
    best_scores: dict[str, float] = field(default_factory=dict)
    best_tied: float = 0.0
    chosen_by: str = "score"
    restored: bool = False

    @property
    def choice(self) -> str:
        """How ties between epochs with the best score were broken, in words; empty if there were none."""
        wider = {"wider_score": "TPAUC of the region half way to the whole square", "auc": "AUC"}
        if self.chosen_by in wider:
            return (
                f"equal in other epochs, chosen by the {wider[self.chosen_by]}, {self.best_scores[self.chosen_by]:.4f}"
            )
        if self.chosen_by == "gap":
            return (
                "all validation pairs are in order, in other epochs too; chosen by the gap between the classes, "
                f"{self.best_scores['gap']:.3g} standard deviations of the scores"
            )
        return "equal in other epochs, the earliest was chosen" if self.chosen_by == "earliest" else ""

    @property
    def untrained(self) -> bool:
        """Whether the model was given the weights from before the first epoch at the end."""
        return self.restored and self.best_epoch == -1 and self.start_epoch in (None, -1) and not self.began_as

    def started(self, before: History) -> None:
        """Prepend the epochs of an earlier training, whose weights this one started from, as a warm start."""
        self.rows[:0] = [{**row, "phase": WARM_START} for row in before.rows]
        self.start_epoch = before.best_epoch

    def add(self, **row: object) -> None:
        """Append a row."""
        self.rows.append(row)

    def __getitem__(self, name: str) -> list[Any]:
        """Return one column over the epochs of the phase "train"; rows without it are left out."""
        return [row[name] for row in self.rows if row["phase"] == "train" and name in row]

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain data."""
        return dict(sorted(asdict(self).items()))

    state_dict = to_dict

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take everything from a checkpoint."""
        for entry in fields(self):
            setattr(self, entry.name, deepcopy(state[entry.name]))


class Schedule:
    """Divides the learning rate at milestones, and renews the reference point of a proximal term with it."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], factor: float, proximal: float) -> None:
        self.scheduler = MultiStepLR(optimizer, list(milestones), gamma=factor)
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


class _Partial(TypedDict):
    """Totals of an epoch that was interrupted."""

    total: Tensor
    loss: Tensor
    lr: float
    seconds: float


class TrainState:
    """The state of a run of :func:`moreauc.train.fit`. Callbacks read it and may set `stop`.

    Attributes:
        model: the model in training.
        criterion: the loss of the current phase.
        optimizer: the optimizer of the current phase.
        loader: batches for training, which `position` counts.
        phase: "warm start" or "train"; `epochs` is the number of its epochs.
        epoch: number of the current epoch in its phase, from 0, and `step` that of the step in it.
        steps: steps of an epoch, or None where the loader has no length.
        loss: loss of the last step, a 0-d tensor without gradient; `total` is their sum in the current epoch.
        history: one row for each finished epoch.
        stop: set to True to end the run after the current epoch; `done` tells whether the run is complete.
        epochs_before: epochs of earlier phases; they are included in the loader's epoch number.
        steps_done: steps of the whole run.
        lr: learning rate at the beginning of the current epoch.
        started: time at which the current epoch began, less the time between an interruption and its resumption.
        previous: the model at its previous weights, where the loss needs it.
        schedule: learning-rate schedule and proximal point of the phase.
        selector: chooses the best epoch of the phase.
    """

    def __init__(self, model: nn.Module, criterion: nn.Module, optimizer: Optimizer, loader: Iterable[Any]) -> None:
        self.model, self.criterion, self.optimizer = model, criterion, optimizer
        self.position = EpochBatches(loader)
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
        self._partial: _Partial | None = None  # totals of an epoch that was interrupted

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

    def state_dict(self) -> dict[str, object]:
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
            total, loss = partial["total"].clone(), partial["loss"].clone()
            self._partial = {"total": total, "loss": loss, "lr": float(partial["lr"]), "seconds": partial["seconds"]}


class Callback:
    """Base class of callbacks. All hooks do nothing by default; override those you need.

    Example:
        >>> class Decay(Callback):
        ...     def on_epoch(self, state):
        ...         state.criterion.threshold_lr = (1.0 / (state.epoch + 1), 0.01)
    """

    def on_begin(self, state: TrainState) -> None:
        """Before the first step of a phase."""

    def on_step(self, state: TrainState) -> None:
        """After a step of the optimizer."""

    def on_epoch(self, state: TrainState) -> None:
        """After an epoch; the last row of `state.history` belongs to it."""

    def on_end(self, state: TrainState | None) -> None:
        """After the last epoch or an error; `state` is None if no phase had begun."""

    def state_dict(self) -> dict[str, object]:
        """Return what a resumed run needs of this callback, as plain data; empty if nothing."""
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take what :meth:`state_dict` returned; called after `on_begin`, and only if it was not empty."""


class ProgressBar(Callback):
    """Show epoch, validation score, best score and time left: a bar on a terminal, otherwise occasional lines.

    Args:
        console: a `rich` console; None for one on standard error.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._bar: TaskID
        self._began = self._printed = 0.0

    def on_begin(self, state: TrainState) -> None:
        """Show a bar for this phase."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        if self._console is None:
            self._console = Console(stderr=True, soft_wrap=True)
        self._began = self._printed = time.monotonic()
        if not self._console.is_terminal:
            return
        if self._progress is None:
            columns = (TextColumn("{task.description}"), BarColumn(None), TimeElapsedColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=self._console, expand=True)
            self._progress.start()
        self._bar = self._progress.add_task(self._text(state), total=state.epochs)

    def on_step(self, state: TrainState) -> None:
        """Advance by one step."""
        if state.steps is not None:
            self._show(state, state.epoch + (state.step + 1) / state.steps)

    def on_epoch(self, state: TrainState) -> None:
        """Show the scores of the epoch."""
        if self._progress is not None:
            self._progress.update(self._bar, description=self._text(state))
        self._show(state, state.epoch + 1.0)

    def on_end(self, state: TrainState | None) -> None:
        """Leave the last line on the terminal."""
        if self._progress is not None:
            self._progress.stop()
        self._progress = None

    def _show(self, state: TrainState, done: float) -> None:
        """Show how many epochs are done."""
        if self._progress is not None:
            self._progress.update(self._bar, completed=done)
            return
        now = time.monotonic()
        if self._console is not None and now - self._printed >= _PAUSE:
            self._printed = now
            spent = now - self._began
            left = spent * (state.epochs - done) / done
            times = f"{spent:.0f} s, at most {left:.0f} s left"
            self._console.print(f"{self._text(state)}  {times}", markup=False, highlight=False)

    @staticmethod
    def _text(state: TrainState) -> str:
        rows = [row for row in state.history.rows if row["phase"] == state.phase]
        text = f"{state.phase} {len(rows)}/{state.epochs}"
        if rows and "score" in rows[-1]:
            best = state.history.best_score
            return f"{text}  score {rows[-1]['score']:.4f}" + ("" if best is None else f", best {best:.4f}")
        return f"{text}  objective {rows[-1]['loss']:.4g}" if rows else text


class TensorBoardLogger(Callback):
    """Write every epoch's numbers as TensorBoard events; needs the extra "tensorboard".

    `folder` is where the event files go.
    """

    def __init__(self, folder: str | Path) -> None:
        import_extra("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def on_epoch(self, state: TrainState) -> None:
        """Write the last row of the history."""
        row = state.history.rows[-1]
        for name in ("loss", "lr", "score"):
            if name in row:
                self._writer.add_scalar(name, row[name], len(state.history.rows))

    def on_end(self, state: TrainState | None) -> None:
        """Flush and close the file."""
        self._writer.close()
