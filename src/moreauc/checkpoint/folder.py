"""The folder with the last checkpoints of a run."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moreauc._checks import check_count, check_folder
from moreauc._system import PART, sync_folder
from moreauc.checkpoint.file import DamagedCheckpointError, load_checkpoint, save_checkpoint


class CheckpointWarning(UserWarning):
    """A damaged checkpoint was skipped, and the one before it was loaded."""


class Checkpoints:
    """The last checkpoints of one run, in a folder.

    A new file is on the disk before an old one is removed.

    Args:
        folder: made when the first file is saved. It belongs to one run at a time.
        keep: how many to keep, at least 1. With 2 the older one can be used if the newest is damaged.
        name: beginning of the file names: letters, digits and "_".

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> checkpoints = Checkpoints(folder.name, keep=2)
        >>> for epoch in range(3):
        ...     _ = checkpoints.save({"epoch": epoch})
        >>> [path.name for path in checkpoints.files()]
        ['run-00000001.checkpoint', 'run-00000002.checkpoint']
        >>> checkpoints.load()
        {'epoch': 2}
        >>> folder.cleanup()
    """

    def __init__(self, folder: str | Path, keep: int = 2, *, name: str = "run") -> None:
        self.folder = check_folder("Checkpoints", "folder", folder)
        self.keep = check_count("Checkpoints", "keep", keep)
        if not isinstance(name, str) or not re.fullmatch(r"\w+", name, re.ASCII):
            raise ValueError(f"Checkpoints: name must be letters, digits and '_', got {name!r}")
        self.name = name
        self._damaged: set[Path] = set()

    def files(self) -> list[Path]:
        """Return the files, the oldest first."""
        return [path for _, path in sorted(self._numbered())]

    def save(self, state: Mapping[str, Any]) -> Path:
        """Write a state as the newest file and remove old ones; return the file; see :func:`save_checkpoint`."""
        numbered = self._numbered()
        path = self.folder / f"{self.name}-{max((number for number, _ in numbered), default=-1) + 1:08d}.checkpoint"
        save_checkpoint(path, state)
        old = sorted((path in self._damaged, number, path) for number, path in numbered)
        sound = [path for damaged, _, path in old if not damaged]
        for file in self._damaged.union(sound[: max(len(sound) - self.keep + 1, 0)], self._parts()):
            file.unlink(missing_ok=True)
        self._damaged.clear()
        sync_folder(self.folder)
        return path

    def load(self) -> dict[str, Any] | None:
        """Return the newest state that can be read, or None where there is no file at all.

        A damaged file is skipped with a `CheckpointWarning`. If all are damaged, or the newest intact one is of a newer
        version, there is a `CheckpointError`.
        """
        errors: list[str] = []
        for path in reversed(self.files()):
            try:
                state = load_checkpoint(path)
            except DamagedCheckpointError as error:
                self._damaged.add(path)
                errors.append(str(error))
                continue
            for text in errors:
                warnings.warn(f"{text}; going on from {path} instead", CheckpointWarning, stacklevel=2)
            return state
        if errors:
            raise DamagedCheckpointError(f"{'; '.join(errors)}; no other checkpoint is left in {self.folder}")
        return None

    def _numbered(self) -> list[tuple[int, Path]]:
        pattern = re.compile(rf"{self.name}-(\d+)\.checkpoint")
        found = [(pattern.fullmatch(path.name), path) for path in self._paths()]
        return [(int(match[1]), path) for match, path in found if match is not None]

    def _parts(self) -> list[Path]:
        """Return unfinished files of processes that were killed."""
        pattern = re.compile(rf"\.{self.name}-\d+\.checkpoint\.[0-9a-f]+{re.escape(PART)}")
        return [path for path in self._paths() if pattern.fullmatch(path.name)]

    def _paths(self) -> list[Path]:
        return list(self.folder.iterdir()) if self.folder.is_dir() else []
