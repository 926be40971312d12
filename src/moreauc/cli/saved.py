"""What a training leaves besides its report: the model, and checkpoints to resume it from.

The model file is a pickle: whoever made it decides what happens when it is read. Load only files of people you trust.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped]

from moreauc._files import PART, written_whole
from moreauc.checkpoint._file import make_folder, sync_folder
from moreauc.cli.run_folder import MODEL, OutputError
from moreauc.data.duplicates import Hashes
from moreauc.data.tables import TableError
from moreauc.report.pages import versions
from moreauc.tasks.tables import TableTask

_NOTE = "data.json"


@dataclass(frozen=True)
class SavedModel:
    """A fitted model and the tables it takes.

    Attributes:
        model: the estimator.
        task: what a table must hold.
        trained_on: hashes of the rows, or bags, that it was trained on.
        versions: of what it was trained with.
    """

    model: Any
    task: TableTask[Any]
    trained_on: Hashes
    versions: dict[str, str]


def save_model(folder: Path, model: Any, task: TableTask[Any], trained_on: Hashes) -> None:
    """Write a fitted model into the folder of a run."""
    with written_whole(folder / MODEL) as part:
        joblib.dump(SavedModel(model, task, trained_on, versions()), part, compress=3)


def load_model(run: Path) -> SavedModel:
    """Read the model of a run.

    Raises:
        TableError: if the folder has none, or it cannot be read.
    """
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
class Saving:
    """The options --checkpoint, --resume and --save-every.

    Attributes:
        folder: where to save; each method that is trained has a folder in it. None to save nothing.
        resume: whether to continue what is there.
        every: steps between two saves; None for the ends of epochs.
    """

    folder: Path | None = None
    resume: bool = False
    every: int | None = None

    def begin(self, data: Path, kinds: Mapping[str, str], **facts: Any) -> None:
        """Check that the folder fits the options and the table, and note in it what is trained on.

        The training itself checks rows and labels again; only this check compares the columns.

        Args:
            data: the table.
            kinds: the features, with their kinds.
            facts: what else must be the same in a training that is resumed, as plain data.

        Raises:
            OutputError: if the folder holds another training, or one and there is no --resume.
            ValueError: for an option without --checkpoint.
        """
        if self.folder is None:
            for name, value in (("resume", self.resume or None), ("save-every", self.every)):
                if value is not None:
                    raise ValueError(f"moreauc fit: --{name} needs --checkpoint, got {value!r}")
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise OutputError(f"{self.folder}: is a file, --checkpoint needs a folder")
        with open(data, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        now = {"sha256": digest, "features": [list(pair) for pair in kinds.items()], **facts}
        for part in self.folder.glob(f".{_NOTE}.*{PART}"):  # of a killed process: the folder is locked
            part.unlink()
        if self.folder.is_dir() and any(self.folder.iterdir()):
            if not self.resume:
                raise OutputError(
                    f"{self.folder}: the folder is not empty; continue what is there with --resume, or choose another"
                )
            _compare(self.folder, data, now)
        make_folder(self.folder)
        _write_note(self.folder / _NOTE, now)

    def options(self, method: str) -> dict[str, Any]:
        """Return the arguments of an estimator's `fit` for one of the methods that are trained."""
        if self.folder is None:
            return {}
        return {"checkpoint": self.folder / method, "every": self.every}


def _compare(folder: Path, data: Path, now: Mapping[str, Any]) -> None:
    """Check what the folder holds against what is trained on now."""
    note = folder / _NOTE
    before = _read_note(note)
    if before is None:
        if any(folder.glob("*/*.checkpoint")):
            raise OutputError(f"{note}: cannot be read, so it is unknown what the checkpoints there belong to")
        return
    if before.get("sha256") != now["sha256"]:
        raise OutputError(f"{folder}: holds a training on another table than {data}")
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise OutputError(
                f"{folder}: holds a training with other {name.replace('_', ' ')}: {before.get(name)!r}, "
                f"now {now.get(name)!r}"
            )


def _read_note(note: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or damaged
        return None
    return found if isinstance(found, dict) else None


def _write_note(note: Path, facts: Mapping[str, Any]) -> None:
    """Write the note so that a kill leaves all of it or nothing."""
    with written_whole(note) as part, open(part, "x", encoding="utf-8") as file:
        json.dump(facts, file)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(note.parent)
