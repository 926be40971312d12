"""The machine and the versions of a run, and deterministic settings of torch."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

import moreauc

Made = TypeVar("Made")
_PATIENCE = 10.0  # seconds for an answer of git


def where() -> dict[str, str | int | None]:
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
    """Return the git commit of a package, with a plus where files of it were changed since; None if git tracks none."""
    try:
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        number = _git(folder, "rev-parse", "--short=12", "HEAD")
        return number + ("+" if _git(folder, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    # variables that a hook of git sets would name another checkout
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(folder), *words]
    done = subprocess.run(command, capture_output=True, check=True, timeout=_PATIENCE, env=clean, encoding="utf-8")
    return done.stdout.strip()


def device_name(device: str) -> str:
    """Return the name of the hardware in words."""
    return torch.cuda.get_device_name() if torch.device(device).type == "cuda" else "CPU"


def seeded(seed: int, make: Callable[..., Made], *args: Any, **options: Any) -> Made:
    """Call a function with torch's generator seeded; restore the generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(*args, **options)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread inside the context: several threads would add sums in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic() -> Iterator[None]:
    """Make torch deterministic inside the context, on the same hardware; float32 products may use TF32."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    memory: Any = torch.utils.deterministic
    filled, precision = memory.fill_uninitialized_memory, torch.get_float32_matmul_precision()
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # no operation here reads uninitialised memory
    torch.set_float32_matmul_precision("high")
    try:
        with one_thread():
            yield
    finally:
        torch.use_deterministic_algorithms(before)
        memory.fill_uninitialized_memory = filled
        torch.set_float32_matmul_precision(precision)
