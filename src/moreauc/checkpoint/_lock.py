"""A lock on a folder, so that two runs do not write checkpoints into one."""

from __future__ import annotations

import errno
from pathlib import Path
from types import ModuleType
from typing import IO

from moreauc.checkpoint._file import CheckpointError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_NAME = "lock"


class FolderLock:
    """Keeps other processes out of a folder, until it is released or this process ends, however it ends.

    The lock is one of the process and not of the open file, which workers inherit: they may outlive a process that was
    killed for some seconds, and the run must be able to go on meanwhile. So it does not see two runs in one process.
    Where the system has no such locks, there is none.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None

    def take(self, folder: Path) -> None:
        """Lock a folder.

        Raises:
            CheckpointError: if another process has locked it.
        """
        if fcntl is None:
            return
        file = open(folder / _NAME, "ab")  # noqa: SIM115  # which is kept
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            if error.errno in (errno.EACCES, errno.EAGAIN):
                what = f"got {str(folder)!r}, in which another process is saving"
                raise CheckpointError(f"fit: checkpoint must be a folder of one run at a time, {what}") from error
            return  # a file system without locks
        self._file = file

    def release(self) -> None:
        """Let others in."""
        if self._file is not None:
            self._file.close()
            self._file = None
