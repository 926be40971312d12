"""What the commands leave: the folder of results, the model, and checkpoints to resume a training from.

Results appear in their folder when all are written, the log at once; other files in it are left alone. The model
file is a pickle: loading it can run any code. Load only files of people you trust.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped]

from moreauc._system import FileLock, make_folder, printable, written_whole
from moreauc.app.cli.console import complain
from moreauc.app.report.pages import versions
from moreauc.app.tables.base import Model, TableTask
from moreauc.checkpoint import Interrupted
from moreauc.data.duplicates import Hashes
from moreauc.data.tables import TableError

MODEL, PAGE, NUMBERS, LOG = "model.joblib", "report.html", "report.json", "log.txt"
_RESULTS = {MODEL: "the model is saved here", NUMBERS: "the numbers are saved here"}  # what took long


class OutputError(ValueError):
    """A place that results cannot be written to."""


class UnreportedError(ValueError):
    """A model or the numbers of a comparison are saved; something that comes after that failed."""


def default_folder(name: str, *, force: bool) -> Path:
    """Return the folder of results where none is given: `reports/NAME`, or `reports/NAME-2` and so on if taken."""
    path = first = Path("reports") / name
    for number in itertools.count(2):
        try:
            check_free(path, force=force, with_model=True)
            break
        except OutputError:
            path = first.with_name(f"{name}-{number}")
    return path


def check_free(path: Path, *, force: bool, with_model: bool = False) -> None:
    """Check that a folder of results may be written at `path`."""
    if not path.exists() and not path.is_symlink():
        return
    if not path.is_dir():
        raise OutputError(f"{path}: is a file, --out needs a folder")
    if all(file.name == LOG for file in path.iterdir()):  # of a killed process: the folder is locked
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
def locked_folders(**folders: str | Path | None) -> Iterator[None]:
    """Keep other processes out of the folders that options of a command name, until it ends; None or "" for none.

    Taken before anything else is done, so that a second command is refused at once, and not after its training.
    """
    places = {option: _place(Path(value)) for option, value in folders.items() if value}
    _check_apart(places)
    with ExitStack() as stack:
        for option, place in places.items():
            stack.enter_context(_locked(place, option))
        yield


def _check_apart(folders: dict[str, Path]) -> None:
    """Check that no folder is another one or inside it."""
    for first, second in itertools.combinations(folders, 2):
        if folders[first].is_relative_to(folders[second]) or folders[second].is_relative_to(folders[first]):
            raise OutputError(
                f"{folders[second]}: --{first} and --{second} must be two folders, neither inside the other; choose "
                f"another --{second}"
            )


def _place(path: Path) -> Path:
    """Return a path by its real folder, without ".."."""
    path = Path(os.path.abspath(path))
    return Path(os.path.realpath(path.parent)) / path.name


@contextmanager
def _locked(path: Path, option: str) -> Iterator[None]:
    """Lock a folder, which need not exist, by a hidden file beside it."""
    lock = FileLock()
    with _parents(path):
        if not lock.take(path.with_name(f".{path.name}.lock")):
            raise OutputError(f"{path}: another process is writing there; wait for it, or choose another --{option}")
        try:
            yield
        finally:
            lock.release()


@contextmanager
def run_folder(path: Path, *, force: bool, with_model: bool = False) -> Iterator[Path]:
    """Give a folder to write into, and move what it holds to `path` at the end; an error leaves `path` as before.

    Messages and warnings go to the log in `path`; an existing log is continued. With `force` only files of the same
    names are replaced. A model, or the numbers of a comparison, survive an error: they are moved to `path`, and a
    report that is there is removed. An :class:`~moreauc.checkpoint.Interrupted` training leaves nothing.
    """
    path = Path(os.path.abspath(path))
    check_free(path, force=force, with_model=with_model)
    part = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"
    log, failure = path / LOG, None
    length = log.stat().st_size if log.exists() else None
    with _parents(log):
        try:
            part.mkdir()
            with _log_to(log):
                yield part
        except BaseException as error:
            if isinstance(error, OSError) and Path(str(error.filename)).parent == part:  # a temporary name
                error.filename = str(path / Path(str(error.filename)).name)
            if isinstance(error, Interrupted) or not any((part / name).exists() for name in _RESULTS):
                shutil.rmtree(part, ignore_errors=True)
                _cut(log, length)
                raise
            failure = error
        _finish(part, path, failure, force=force, with_model=with_model)


def _cut(log: Path, length: int | None) -> None:
    """Take back what was written to a log since it had `length` bytes; None where it was not there."""
    with suppress(OSError):
        if length is None:
            log.unlink()
        else:
            os.truncate(log, length)


def _finish(part: Path, path: Path, failure: BaseException | None, *, force: bool, with_model: bool) -> None:
    """Move the results to `path`, or beside it if another process has written there; raise the error there was."""
    place, refusal = path, None
    try:
        check_free(path, force=force, with_model=with_model)
    except OutputError as error:
        place, refusal = path.with_name(f"{path.name}-{secrets.token_hex(4)}"), error
    try:
        if failure is not None:  # a report that is there is of other results
            for name in (PAGE, NUMBERS):
                (place / name).unlink(missing_ok=True)
        place.mkdir(exist_ok=True)
        for file in [*sorted(part.iterdir()), *([path / LOG] if place != path else [])]:
            os.replace(file, place / file.name)
        part.rmdir()
    except OSError as error:
        error.add_note(f"(the results are in {part})")
        raise
    if refusal is not None and failure is None:
        raise OutputError(f"{refusal}; it appeared during the run; the results are in {place}") from refusal
    if failure is None:
        return
    text = next(f"{place / name}: {what}" for name, what in _RESULTS.items() if (place / name).exists())
    if not isinstance(failure, Exception):
        failure.add_note(text)
        raise failure
    what = " ".join([f"{type(failure).__name__}: {failure}", *getattr(failure, "__notes__", ())])
    raise UnreportedError(f"{text}, but what comes after it failed: {what}") from failure


@contextmanager
def _parents(path: Path) -> Iterator[None]:
    """Make the folders above `path`; those that are new are gone at the end where nothing was put into them."""
    missing = [folder for folder in path.absolute().parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):  # it is not empty
            for folder in missing:
                folder.rmdir()


class _LogFile(logging.FileHandler):
    """A log whose errors do not end the command; the first is printed on standard error."""

    def handleError(self, record: logging.LogRecord) -> None:  # a name of logging
        """Print why a message could not be written, once."""
        self._report(sys.exc_info()[1])

    def close(self) -> None:
        """Close the file; on a full disk the end of the log is lost."""
        try:
            super().close()
        except OSError as error:
            self._report(error)

    def _report(self, error: BaseException | None) -> None:
        if not getattr(self, "reported", False):
            complain(f"warning: {self.baseFilename} cannot be written: {error}")
        self.reported = True


class _LogFormat(logging.Formatter):
    """Messages without escape sequences, which would act on a terminal that shows the file."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a message."""
        return "\n".join(printable(line) for line in super().format(record).split("\n"))


@contextmanager
def _log_to(file: Path) -> Iterator[None]:
    handler = _LogFile(file, encoding="utf-8")
    handler.setFormatter(_LogFormat("%(asctime)s %(levelname)s %(message)s"))
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


# The model and its checkpoints


@dataclass(frozen=True)
class SavedModel:
    """A fitted model and the tables it takes."""

    model: Model  # the estimator
    task: TableTask[Any, Any, Any]  # what a table must hold
    trained_on: Hashes  # hashes of the rows, or bags, that it was trained on
    versions: dict[str, str]  # of what it was trained with


def save_model(folder: Path, model: Model, task: TableTask[Any, Any, Any], trained_on: Hashes) -> None:
    """Write a fitted model into the folder of a run."""
    with written_whole(folder / MODEL) as part:
        joblib.dump(SavedModel(model, task, trained_on, versions()), part, compress=3)


def load_model(run: Path) -> SavedModel:
    """Read the model of a run."""
    path = run / MODEL
    if not run.is_dir():
        raise TableError(f"{run}: no such folder; give the folder that `moreauc fit` wrote")
    if not path.is_file():
        raise TableError(f"{run}: holds no {MODEL}; give the folder that `moreauc fit` wrote")
    try:
        saved = joblib.load(path)
    except Exception as error:  # a pickle may raise anything
        raise TableError(f"{path}: the model cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(saved, SavedModel):
        raise TableError(f"{path}: not a model of `moreauc fit`, got {type(saved).__name__}")
    return saved


@dataclass(frozen=True)
class SavingOptions:
    """The options --checkpoint, --resume and --save-every."""

    folder: Path | None = None  # where to save; each method that is trained has a folder in it. None to save nothing.
    resume: bool = False  # whether to continue what is there
    every: int | None = None  # steps between two saves; None for the ends of epochs

    def begin(self) -> None:
        """Check that the folder fits the options, and make it; the training checks what is in it."""
        if self.folder is None:
            for name, value in (("resume", self.resume or None), ("save-every", self.every)):
                if value is not None:
                    raise ValueError(f"moreauc fit: --{name} needs --checkpoint, got {value!r}")
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise OutputError(f"{self.folder}: is a file, --checkpoint needs a folder")
        if self.folder.is_dir() and any(self.folder.iterdir()) and not self.resume:
            raise OutputError(
                f"{self.folder}: the folder is not empty; continue what is there with --resume, or choose another"
            )
        make_folder(self.folder)

    def options(self, method: str) -> dict[str, object]:
        """Return the arguments of an estimator's `fit` for one of the methods that are trained."""
        if self.folder is None:
            return {}
        return {"checkpoint": self.folder / method, "every": self.every}
