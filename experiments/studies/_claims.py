"""A claim on a piece of work: of several processes on one folder, one does it."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path


class Claim:
    """A file that this process has locked.

    The system gives the lock back when the process ends, however it ends: a file that was left behind hinders nobody.
    Where the file system knows no locks everybody gets the claim, and work may be done twice.
    """

    def __init__(self, file: Path, handle: int) -> None:
        self._file, self._handle = file, handle

    @classmethod
    def take(cls, file: Path) -> Claim | None:
        """Return the claim on a file; None where another process has it."""
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(handle)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                os.close(handle)
                return None
        return cls(file, handle)

    def release(self) -> None:
        """Give it back, and remove the file."""
        os.close(self._handle)
        with suppress(OSError):  # on Windows another process may have just opened it
            self._file.unlink()


if sys.platform == "win32":  # pragma: no cover
    import msvcrt

    def _lock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
