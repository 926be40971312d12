"""Where `moreauc fit` saves a training that may be interrupted, and whether it goes on with one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moreauc._files import PART, written_whole
from moreauc.checkpoint._file import make_folder, sync_folder
from moreauc.cli._run_folder import OutputError

_NOTE = "data.json"


@dataclass(frozen=True)
class Saving:
    """The options --checkpoint, --resume and --save-every.

    Attributes:
        folder: where to save; each method that is trained has a folder in it. None to save nothing.
        resume: whether to go on with what is there.
        every: steps between two saves; None for the ends of epochs.
    """

    folder: Path | None = None
    resume: bool = False
    every: int | None = None

    def begin(self, data: Path, kinds: Mapping[str, str], **facts: Any) -> None:
        """Check that the options fit each other, the folder and what is trained on, which is noted in the folder.

        Rows and labels are checked again by the training; that the columns are the same, only here.

        Args:
            data: the table.
            kinds: the features, with their kinds.
            facts: what else must be the same in a training that goes on, as plain data.

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
        for part in self.folder.glob(f".{_NOTE}.*{PART}"):  # of a process that was killed: the folder is locked
            part.unlink()
        if self.folder.is_dir() and any(self.folder.iterdir()):
            if not self.resume:
                raise OutputError(
                    f"{self.folder}: the folder is not empty; go on with what is there by --resume, or choose another"
                )
            _compare(self.folder, data, now)
        make_folder(self.folder)
        _write(self.folder / _NOTE, now)

    def options(self, method: str) -> dict[str, Any]:
        """Return the arguments of an estimator's `fit` for one of the methods that are trained."""
        if self.folder is None:
            return {}
        return {"checkpoint": self.folder / method, "every": self.every}


def _compare(folder: Path, data: Path, now: Mapping[str, Any]) -> None:
    """Check what the folder holds against what is trained on now."""
    note = folder / _NOTE
    before = _read(note)
    if before is None:
        if any(folder.glob("*/*.checkpoint")):
            raise OutputError(f"{note}: cannot be read, so that nobody knows what the checkpoints there belong to")
        return
    if before.get("sha256") != now["sha256"]:
        raise OutputError(f"{folder}: holds a training on another table than {data}")
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise OutputError(
                f"{folder}: holds a training with other {name.replace('_', ' ')}: {before.get(name)!r}, "
                f"now {now.get(name)!r}"
            )


def _read(note: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or damaged
        return None
    return found if isinstance(found, dict) else None


def _write(note: Path, facts: Mapping[str, Any]) -> None:
    """Write the note so that a kill leaves all of it or nothing."""
    with written_whole(note) as part, open(part, "x", encoding="utf-8") as file:
        json.dump(facts, file)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(note.parent)
