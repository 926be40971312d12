"""Hooks into a training run: the base class, a progress bar, TensorBoard."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moreauc._system import import_extra
from moreauc.train.state import TrainState

if TYPE_CHECKING:
    from rich.console import Console

_PAUSE = 10.0  # seconds between two lines where there is no terminal


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

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs of this callback, as plain data; empty if nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what :meth:`state_dict` returned; called after `on_begin`, and only if it was not empty."""


class ProgressBar(Callback):
    """Show epoch, validation score, best score and time left: a bar on a terminal, otherwise occasional lines.

    Args:
        console: a `rich` console; None for one on standard error.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._progress: Any = None
        self._bar: Any = None
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
        self._progress = self._bar = None

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

    Args:
        folder: where the event files go.

    Raises:
        ModuleNotFoundError: if TensorBoard is not installed; the message names the extra.
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
