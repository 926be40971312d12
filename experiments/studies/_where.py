"""Where a run was made: what its numbers may depend on beside the plan."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

import moreauc

_PATIENCE = 10.0  # seconds for an answer of git


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread for a while: sums over several are added up in another order, and end elsewhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def where() -> dict[str, Any]:
    """Return date, versions, kind of machine and threads, as they are at present."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "torch": str(torch.__version__),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "moreauc": moreauc.__version__,
        "commit": commit(Path(moreauc.__file__).parent),
        "threads": torch.get_num_threads(),
    }


@cache
def commit(folder: Path) -> str | None:
    """Return the git commit that a package lies in, with a plus where files of it were changed since; None if none is.

    Args:
        folder: the package; one that git does not track, as in a virtual environment inside a checkout, has none.
    """
    try:
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        number = _git(folder, "rev-parse", "--short=12", "HEAD")
        return number + ("+" if _git(folder, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):  # no git, no checkout, or one of somebody else
        return None


def _git(folder: Path, *words: str) -> str:
    # variables that a hook of git sets would speak of another checkout
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(folder), *words]
    done = subprocess.run(command, capture_output=True, check=True, timeout=_PATIENCE, env=clean, encoding="utf-8")
    return done.stdout.strip()
