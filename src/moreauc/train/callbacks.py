"""Hooks into a training run: the base class, a progress bar, TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from moreauc._extras import import_extra
from moreauc.train.state import TrainState

if TYPE_CHECKING:
    from rich.console import Console


class Callback:
    """Base of the callbacks: all hooks do nothing. Override those you need.

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

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs of this callback, as plain data; empty if nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what :meth:`state_dict` returned; called after `on_begin`, and only if it was not empty."""


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
        """Advance the bar by one step."""
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
