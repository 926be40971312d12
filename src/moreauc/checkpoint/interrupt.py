"""What SIGTERM and SIGINT do while a run with checkpoints goes on: the step is finished and the run is saved first."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(KeyboardInterrupt):
    """A training run that was asked to stop, and has saved itself first.

    Args:
        number: the signal.
        where: where the run stands, and where it has been saved.

    Attributes:
        number: the signal.
        exit_code: what a command should end with, 128 and the number of the signal.
    """

    def __init__(self, number: int, where: str) -> None:
        self.number = signal.Signals(number)
        self.exit_code = 128 + int(number)
        self._where = where
        super().__init__(f"stopped by {self.number.name} {where}")

    def __reduce__(self) -> tuple[type[Interrupted], tuple[int, str]]:
        """Let the error come through a pipe, from a process to the one that waits for it."""
        return type(self), (int(self.number), self._where)


class SignalWatch:
    """Remembers the first SIGTERM or SIGINT instead of obeying; the second does what it always did.

    Only in the main thread of a process, since Python gives signals to that one, and not for signals that are ignored.
    Processes that are forked meanwhile, workers of a `DataLoader`, leave a SIGINT to this one: on a terminal they get
    it, too. To a SIGTERM they do what they would have done.

    Attributes:
        caught: the signal that came; None for none.
    """

    def __init__(self) -> None:
        self.caught: int | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._process = os.getpid()

    def __enter__(self) -> SignalWatch:
        """Begin to watch."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                before = signal.getsignal(number)
                if before not in (None, signal.SIG_IGN):  # None: not set from Python, so that it could not be set back
                    self._before[number] = before
                    signal.signal(number, self._catch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Set everything back."""
        self._set_back()

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._process:
            self.caught = number
            self._set_back()
        elif number != signal.SIGINT:  # whoever sends another one means this process
            self._set_back()
            os.kill(os.getpid(), number)

    def _set_back(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
