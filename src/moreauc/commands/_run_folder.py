"""The folder a command leaves: it appears when everything in it is written, and holds only files of ours."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODEL, PAGE, NUMBERS, LOG = "model.joblib", "report.html", "report.json", "log.txt"


class OutputError(ValueError):
    """A place that results cannot be written to."""


def check_free(path: Path, *, force: bool, with_model: bool = False) -> None:
    """Check that a folder of results may be written at `path`.

    Args:
        path: the folder.
        force: whether files of an earlier run may be replaced.
        with_model: whether the results include a model.

    Raises:
        OutputError: if it is a file, is not empty without `force`, or holds a model that the results would not replace.
    """
    if not path.exists() and not path.is_symlink():
        return
    if not path.is_dir():
        raise OutputError(f"{path}: is a file, --out needs a folder")
    if not any(path.iterdir()):
        return
    if not force:
        raise OutputError(f"{path}: the folder is not empty; choose another --out, or replace its report with --force")
    for name in (MODEL, PAGE, NUMBERS, LOG):
        if (path / name).is_dir():
            raise OutputError(f"{path / name}: is a folder, and a file of the results has that name")
    if not with_model and (path / MODEL).exists():
        raise OutputError(
            f"{path}: holds a model, which a report of this command does not belong to; choose another --out"
        )


@contextmanager
def run_folder(path: Path, *, force: bool, with_model: bool = False) -> Iterator[Path]:
    """Give a folder to write into, and move what it holds to `path` at the end.

    After an error or an interrupt nothing is left, folders above `path` that did not exist included, and what was at
    `path` is as before. With `force` only files of the same names are replaced. Messages of the library and warnings
    go to the log in the folder, with their times.
    """
    path = Path(os.path.abspath(path))  # without "..", which might go through a folder that is still to be made
    check_free(path, force=force, with_model=with_model)
    created = _make_parents(path)
    part = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"
    try:
        part.mkdir()
        with _log_to(part / LOG):
            yield part
        check_free(path, force=force, with_model=with_model)  # it may have come up meanwhile
        if path.is_dir():
            for file in sorted(part.iterdir()):
                os.replace(file, path / file.name)
        else:
            part.rename(path)
        created = []
    finally:
        shutil.rmtree(part, ignore_errors=True)
        for folder in created:
            folder.rmdir()


def _make_parents(path: Path) -> list[Path]:
    """Make the folders above `path`; return those that are new, the innermost first."""
    missing = [folder for folder in path.absolute().parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir()
    return missing


@contextmanager
def _log_to(file: Path) -> Iterator[None]:
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    loggers = [logging.getLogger("moreauc"), logging.getLogger("py.warnings")]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
        handler.close()
