"""What a training run tells others while it goes on: hooks, a progress bar, TensorBoard."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from moreauc._extras import import_extra
from moreauc.train.history import History

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Callback", "ProgressBar", "TensorBoardLogger", "TrainState"]


@dataclass
class TrainState:
    """Where a run of :func:`moreauc.train.fit` stands; callbacks read it and may set `stop`.

    Attributes:
        model: the model in training.
        criterion: the loss of the present phase.
        optimizer: the optimizer of the present phase.
        phase: "warm start" or "train".
        epochs: number of epochs of this phase.
        epoch: number of the present epoch in its phase, from 0.
        step: number of the present step in its epoch, from 0.
        steps: steps of an epoch, or None where the loader has no length.
        loss: loss of the last step, a 0-d tensor without gradient.
        history: one row for each finished epoch.
        stop: set to True to end the run after the present epoch.
    """

    model: nn.Module
    criterion: nn.Module
    optimizer: Optimizer
    phase: str
    epochs: int
    epoch: int = 0
    step: int = 0
    steps: int | None = None
    loss: Tensor | None = None
    history: History = field(default_factory=History)
    stop: bool = False


class Callback:
    """Base of the callbacks: hooks that do nothing. Override those you need.

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
        """After the last epoch, or after an error; `state` is None where nothing had begun."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs of this callback, as plain data; empty for nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what :meth:`state_dict` returned; called after `on_begin`, and only where it was not empty."""


class ProgressBar(Callback):
    """A line on the terminal: epoch, running objective, validation score and the best so far.

    Args:
        console: a `rich` console; None for the standard one.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._progress: Any = None
        self._bar: Any = None

    def on_begin(self, state: TrainState) -> None:
        """Show a bar for this phase."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        if self._progress is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=self._console)
            self._progress.start()
        self._bar = self._progress.add_task(self._text(state), total=state.epochs)

    def on_step(self, state: TrainState) -> None:
        """Advance by a step's share of its epoch."""
        if state.steps is not None:
            self._progress.update(self._bar, completed=state.epoch + (state.step + 1) / state.steps)

    def on_epoch(self, state: TrainState) -> None:
        """Show the epoch's objective and scores."""
        self._progress.update(self._bar, completed=state.epoch + 1, description=self._text(state))

    def on_end(self, state: TrainState | None) -> None:
        """Leave the last line on the terminal."""
        if self._progress is not None:
            self._progress.stop()
        self._progress = self._bar = None

    @staticmethod
    def _text(state: TrainState) -> str:
        text = state.phase
        rows = [row for row in state.history.rows if row["phase"] == state.phase]
        if rows:
            row = rows[-1]
            text += f" {row['epoch'] + 1}/{state.epochs}  objective {row['loss']:.4g}"
            if "score" in row:
                text += f"  validation score {row['score']:.4f} (best {state.history.best_score:.4f})"
        return text


class TensorBoardLogger(Callback):
    """Write every epoch's numbers as TensorBoard events; needs the extra "tensorboard".

    Args:
        folder: where the event files go.

    Raises:
        ModuleNotFoundError: where TensorBoard is not installed; it names the extra.
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
