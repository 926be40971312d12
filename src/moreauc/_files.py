"""Files that are written atomically, and errors that name the file."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PART = ".part"  # ends the name of a file that is still being written


@contextmanager
def naming(path: str | Path, *, instead_of: Path | None = None) -> Iterator[None]:
    """Add the name of the file to errors of the system, which a full disk raises without one.

    Args:
        path: the file that is written.
        instead_of: another name in an error that `path` stands for, that of a part file.
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

    After an error the new file is gone and what was at `path` is as before. The name is random: two processes never
    write to one file.

    Raises:
        OSError: if the file cannot be written; it names `path`.

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
        with contextlib.suppress(OSError):  # the first error counts
            part.unlink()
        raise
