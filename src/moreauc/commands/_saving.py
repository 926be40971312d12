"""Where `moreauc fit` saves a training that may be interrupted, and whether it goes on with one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moreauc._checkpoint_file import make_folder
from moreauc.commands._run_folder import OutputError

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

    def begin(self, data: Path) -> None:
        """Check that the options fit each other, the folder and the table, which is noted in the folder.

        Rows and labels are checked again by the training; that the columns are the same, only here.

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
        note = self.folder / _NOTE
        if self.folder.is_dir() and any(self.folder.iterdir()):
            if not self.resume:
                raise OutputError(
                    f"{self.folder}: the folder is not empty; go on with what is there by --resume, or choose another"
                )
            if _read(note) not in (None, digest):
                raise OutputError(f"{self.folder}: holds a training on another table than {data}")
        make_folder(self.folder)
        note.write_text(json.dumps({"sha256": digest}), encoding="utf-8")

    def options(self, method: str) -> dict[str, Any]:
        """Return the arguments of an estimator's `fit` for one of the methods that are trained."""
        if self.folder is None:
            return {}
        return {"checkpoint": self.folder / method, "every": self.every}


def _read(note: Path) -> str | None:
    try:
        found = json.loads(note.read_text(encoding="utf-8"))["sha256"]
    except (OSError, ValueError, KeyError, TypeError):  # not there, or cut short by a kill
        return None
    return str(found)
