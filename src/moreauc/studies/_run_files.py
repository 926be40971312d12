"""Runs of a study as small files: what is there is not done again."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

Work = Mapping[str, tuple[Callable[..., dict[str, Any]], dict[str, Any]]]  # name of a file: function and its arguments


def run_missing(
    folder: Path,
    work: Work,
    *,
    plan: Mapping[str, Any],
    jobs: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Do the work whose files are missing.

    Args:
        folder: where the files are.
        work: for each file, without its suffix, a function of a module and its keyword arguments.
        plan: what all runs have in common, kept in each file.
        jobs: processes.
        progress: told how many are done, of how many.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = {name: entry for name, entry in work.items() if not (folder / f"{name}.json").exists()}
    for done, (name, result) in enumerate(_results(missing, jobs), 1):
        where = {"date": time.strftime("%Y-%m-%d"), "torch": torch.__version__, "machine": platform.machine()}
        waiting = folder / f"{name}.part"
        waiting.write_text(json.dumps({**result, "plan": plan, "where": where}) + "\n", encoding="utf-8")
        waiting.replace(folder / f"{name}.json")
        if progress is not None:
            progress(done, len(missing))


def read_run(owner: str, folder: Path, name: str, *, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file holds.

    Raises:
        ValueError: if it is missing, or was made by another plan.
    """
    file = folder / f"{name}.json"
    if not file.exists():
        raise ValueError(f"{owner}: out must hold a run {name}, got no {file.name}")
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if record["plan"] != plan:
        raise ValueError(f"{owner}: {file.name} must be made with {plan}, got {record['plan']}; remove it")
    return record


def _results(work: Work, jobs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    if jobs == 1 or len(work) < 2:
        for name, (function, options) in work.items():
            yield name, function(**options)
        return
    # a forked child of a process that has used torch's threads may hang
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        futures = {pool.submit(function, **options): name for name, (function, options) in work.items()}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)
