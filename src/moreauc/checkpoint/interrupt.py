"""SIGTERM and SIGINT during a run with checkpoints: the step is finished and the run saved first."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(KeyboardInterrupt):
    """Raised when a signal stops a training run, after the run was saved.

    `number` is that of the signal, and `exit_code`, for a command, 128 more; `where` is the position of the run, and
    where it was saved.
    """

    def __init__(self, number: int, where: str) -> None:
        self.number = signal.Signals(number)
        self.exit_code = 128 + int(number)
        self._where = where
        super().__init__(f"stopped by {self.number.name} {where}")

    def __reduce__(self) -> tuple[type[Interrupted], tuple[int, str]]:
        """Support pickling, from one process to another."""
        return type(self), (int(self.number), self._where)


class SignalWatch:
    """Records the first SIGTERM or SIGINT; the second has its usual effect.

    It works in the main thread only, since Python gives signals to that one, and not for ignored signals. Forked
    workers of a `DataLoader` ignore SIGINT, which a terminal sends to them too, and obey SIGTERM.

    `caught` is the signal that came; None for none.
    """

    def __init__(self) -> None:
        self.caught: int | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._process = os.getpid()

    def __enter__(self) -> SignalWatch:
        """Begin."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                before = signal.getsignal(number)
                if before not in (None, signal.SIG_IGN):  # None: not set from Python, cannot be restored
                    self._before[number] = before
                    signal.signal(number, self._catch)
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the handlers."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._process:
            self.caught = number
            self.__exit__()
        elif number != signal.SIGINT:
            self.__exit__()
            os.kill(os.getpid(), number)
