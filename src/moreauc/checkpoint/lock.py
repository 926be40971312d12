"""Locks on files and folders, so that two runs do not write into one."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import ModuleType
from typing import IO, ClassVar
from weakref import WeakValueDictionary

from moreauc.checkpoint.file import CheckpointError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_NAME = "lock"


class FileLock:
    """A lock on a file, held until it is released or this process ends.

    The lock belongs to the process, not to the open file, which workers inherit: they may outlive a killed process by
    some seconds, and the run must be able to resume meanwhile. Locks of this process are also listed, so that two runs
    in it exclude each other. On systems without such locks there is none.
    """

    _held: ClassVar[WeakValueDictionary[tuple[int, int], FileLock]] = WeakValueDictionary()  # by device and number
    _guard = threading.Lock()

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._path, self._process = Path(), 0

    def take(self, path: Path) -> bool:
        """Lock a file, which is made if it is missing; return False if it is locked already."""
        if fcntl is None:
            return True
        with self._guard:
            while True:
                if self._is_ours(path):  # to close a second handle would give up the lock of the first
                    return False
                file = open(path, "ab")  # noqa: SIM115  # which is kept
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    file.close()
                    return error.errno not in (errno.EACCES, errno.EAGAIN)  # else a file system without locks
                key = _key(os.fstat(file.fileno()))
                if _key_at(path) == key:
                    self._file, self._path, self._process = file, path, os.getpid()
                    self._held[key] = self
                    return True
                file.close()  # it was removed meanwhile by the process that had locked it

    def release(self) -> None:
        """Remove the file and release the lock."""
        with self._guard:
            if self._file is None:
                return
            key = _key(os.fstat(self._file.fileno()))
            if self._process == os.getpid():  # and not a copy in a forked process
                self._held.pop(key, None)
                if _key_at(self._path) == key:
                    self._path.unlink()
            self._file.close()
            self._file = None

    def _is_ours(self, path: Path) -> bool:
        found = _key_at(path)
        holder = None if found is None else self._held.get(found)
        return holder is not None and holder._process == os.getpid()


class FolderLock(FileLock):
    """A lock on a folder, by a file in it."""

    def take(self, path: Path) -> bool:
        """Lock a folder; raise CheckpointError if another run has locked it."""
        if not super().take(path / _NAME):
            what = f"got {str(path)!r}, in which another process is saving"
            raise CheckpointError(f"fit: checkpoint must be a folder of one run at a time, {what}")
        return True


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _key_at(path: Path) -> tuple[int, int] | None:
    try:
        return _key(os.stat(path))
    except OSError:
        return None
