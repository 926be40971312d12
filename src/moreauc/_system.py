"""The system around the library: files and their locks, threads, terminals, packages that may be missing."""

from __future__ import annotations

import errno
import os
import secrets
import threading
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

if TYPE_CHECKING:
    from matplotlib.text import Text

PART = ".part"  # ends the name of a file that is still being written
_HIDDEN = {"Cc", "Cs", "Zl", "Zp"}  # controls, halves of surrogate pairs, line and paragraph separators
_TURNS = {*"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}  # writing direction


@contextmanager
def naming(path: str | Path, *, instead_of: Path | None = None) -> Iterator[None]:
    """Add the name of the file to errors of the system, which a full disk raises without one.

    `instead_of` is the name of the temporary file, which is replaced by `path` in the error.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None and str(error.filename) != str(instead_of):
            raise
        if error.errno is None:
            raise OSError(f"{path}: {error}") from error
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """Give a new name in the folder of `path` to write to, and rename that file to `path` at the end.

    After an error, which names `path`, the new file is gone and what was there is as before. The name is random: two
    processes never write to one file.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with written_whole(folder / "a.txt") as part:
        ...     _ = part.write_text("all of it")
        >>> [file.name for file in folder.iterdir()]
        ['a.txt']
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PART}")
    try:
        with naming(path, instead_of=part):
            yield part
            os.replace(part, path)
    except BaseException:
        with suppress(OSError):  # the first error is raised
            part.unlink()
        raise


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, and flush them to the disk."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        sync_folder(place.parent)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to the disk, if the system supports it."""
    if not hasattr(os, "O_DIRECTORY"):  # not needed on Windows
        return
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems do not support it for folders
            raise
    finally:
        os.close(number)


class FileLock:
    """A lock on a file, held until it is released or this process ends.

    The lock belongs to the process, not to the open file, which workers inherit. Locks of this process are also listed,
    so that two runs in it exclude each other. On systems without such locks there is none.
    """

    _held: ClassVar[WeakValueDictionary[tuple[int, int], FileLock]] = WeakValueDictionary()  # by device and inode
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
                if self._is_ours(path):  # closing a second handle would release the lock of the first
                    return False
                file = open(path, "ab")  # noqa: SIM115  # which is kept
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    file.close()
                    return error.errno not in (errno.EACCES, errno.EAGAIN)  # True for a file system without locks
                key = _key(os.fstat(file.fileno()))
                if _key_at(path) == key:
                    self._file, self._path, self._process = file, path, os.getpid()
                    self._held[key] = self
                    return True
                file.close()  # the process that had the lock has removed the file

    def release(self) -> None:
        """Remove the file and release the lock."""
        with self._guard:
            if self._file is None:
                return
            key = _key(os.fstat(self._file.fileno()))
            if self._process == os.getpid():  # not in a forked process
                self._held.pop(key, None)
                if _key_at(self._path) == key:
                    self._path.unlink()
            self._file.close()
            self._file = None

    def _is_ours(self, path: Path) -> bool:
        found = _key_at(path)
        holder = None if found is None else self._held.get(found)
        return holder is not None and holder._process == os.getpid()


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _key_at(path: Path) -> tuple[int, int] | None:
    try:
        return _key(os.stat(path))
    except OSError:
        return None


def printable(text: str) -> str:
    r"""Return a text with escape codes for characters that would act on a terminal or cannot be seen.

    Example:
        >>> printable("age\x1b[2J")
        'age\\x1b[2J'
    """
    return "".join(
        sign.encode("unicode_escape").decode("ascii")
        if unicodedata.category(sign) in _HIDDEN or sign in _TURNS
        else sign
        for sign in text
    )


def show_as_written(texts: Iterable[Text]) -> None:
    r"""Keep matplotlib from reading texts, such as names of groups, as mathematics (between two dollars) or as TeX.

    Example:
        >>> from matplotlib.figure import Figure
        >>> axes = Figure().subplots()
        >>> show_as_written([axes.set_title(r"$\frac$")])
        >>> axes.title.get_parse_math()
        False
    """
    for text in texts:
        text.set_parse_math(False)
        text.set_usetex(False)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch and NumPy use one thread inside, and as many as before afterwards.

    On a busy machine several threads wait for each other many times longer than they work on short operations.

    Example:
        >>> import torch
        >>> before = torch.get_num_threads()
        >>> with one_thread():
        ...     inside = torch.get_num_threads()
        >>> inside, torch.get_num_threads() == before
        (1, True)
    """
    import torch  # here, so that the command line can print its help without it
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


def import_extra(module: str, extra: str) -> Any:
    """Import `module`, or say which extra brings it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.split(".")[0] != error.name.split(".")[0]:
            raise
        package = module.split(".")[0]
        raise ModuleNotFoundError(
            f"this needs {package}, which is not installed; install it with: pip install 'moreauc[{extra}]'",
            name=error.name,
        ) from error
