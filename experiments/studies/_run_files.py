"""Runs of a study as small files: what is there is not done again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from experiments.studies._claims import Claim
from experiments.studies._where import one_thread, where
from moreauc._files import written_whole

Record = dict[str, Any]
Task = tuple[Callable[..., Record], dict[str, Any]]  # a function of a module and its keyword arguments
Work = Mapping[str, Task]  # by name of the file
Progress = Callable[[int, int], None]

_PAUSE = 0.2  # seconds between two looks at what other processes do


def run_missing(
    folder: Path,
    work: Work,
    *,
    plan: Mapping[str, Any],
    jobs: int,
    progress: Progress | None = None,
    there: Callable[[str], bool] | None = None,
) -> None:
    """Do the work whose files are missing; at the end all of them are there.

    Torch has one thread, in this process and in others, so that numbers do not depend on `jobs`. Several calls, also of
    other processes, may work on one folder: each file is made by one of them. After an error nothing more is begun;
    what is running is finished and written before the error is raised, with the name of the file as a note.

    Args:
        folder: where the files are.
        work: for each file, without its suffix, a function of a module and its keyword arguments.
        plan: what all runs have in common, kept in each file.
        jobs: processes.
        progress: told how many are done, of how many.
        there: says of a name whether it is done; None for a look at the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    desk = _Desk(folder, work, plan, there or (lambda name: (folder / f"{name}.json").exists()), progress)
    if not desk.waiting:
        return
    alone = jobs == 1 or len(desk.waiting) == 1
    # a forked child of a process that has used torch's threads may hang
    pool: Executor = _Here() if alone else ProcessPoolExecutor(jobs, get_context("spawn"))
    try:
        while desk.busy:
            held_by_others = desk.begin(pool, 1 if alone else jobs)
            desk.collect(_PAUSE if held_by_others else None)
    finally:  # also after Ctrl-C: what is finished by then is kept
        pool.shutdown(cancel_futures=True)
        desk.close()
    if desk.failure is not None:
        raise desk.failure


def read_run(owner: str, folder: Path, name: str, *, plan: Mapping[str, Any]) -> Record:
    """Return what a file holds.

    Raises:
        ValueError: if it is missing, or was made by another plan.
    """
    file = folder / f"{name}.json"
    if not file.exists():
        raise ValueError(f"{owner}: out must hold a run {name}, got no {file.name}")
    record: Record = json.loads(file.read_text(encoding="utf-8"))
    if record["plan"] != plan:
        raise ValueError(f"{owner}: {file.name} must be made with {plan}, got {record['plan']}; remove it")
    return record


class _Desk:
    """What waits to be done, what is being done, and what went wrong."""

    def __init__(
        self,
        folder: Path,
        work: Work,
        plan: Mapping[str, Any],
        there: Callable[[str], bool],
        progress: Progress | None,
    ) -> None:
        self.waiting = [name for name in work if not there(name)]
        self.failure: BaseException | None = None
        self._folder, self._work, self._plan, self._there, self._progress = folder, work, plan, there, progress
        self._running: dict[Future[Record], tuple[str, Claim]] = {}
        self._done, self._total = 0, len(self.waiting)

    @property
    def busy(self) -> bool:
        """Whether there is something left to do, or to wait for."""
        return bool(self._running) or (bool(self.waiting) and self.failure is None)

    def begin(self, pool: Executor, most: int) -> bool:
        """Begin what nobody else does, until so many are running; return whether only others keep us from more."""
        for name in list(self.waiting):
            if self.failure is not None or len(self._running) >= most:
                return False
            claim = None if self._there(name) else Claim.take(self._folder / f"{name}.lock")
            if self._there(name):  # somebody else was first, perhaps just before the claim
                if claim is not None:
                    claim.release()
                self.waiting.remove(name)
                self._tell()
            elif claim is not None:
                self._submit(pool, name, claim)
        return bool(self.waiting)

    def _submit(self, pool: Executor, name: str, claim: Claim) -> None:
        try:
            future = pool.submit(_do, *self._work[name])
        except BaseException:  # Ctrl-C, where the work is done here and now
            claim.release()
            raise
        self.waiting.remove(name)
        self._running[future] = name, claim

    def collect(self, patience: float | None) -> None:
        """Write what is finished; wait for the next one to be, at most so many seconds."""
        if patience and not self._running:
            time.sleep(patience)
        finished, _ = wait(self._running, patience, FIRST_COMPLETED)
        for future in finished:
            name, claim = self._running.pop(future)
            try:
                self._settle(name, future)
            finally:
                claim.release()

    def close(self) -> None:
        """Write what is finished, and give back all claims."""
        self.collect(0.0)
        for _, claim in self._running.values():
            claim.release()

    def _settle(self, name: str, future: Future[Record]) -> None:
        error = future.exception()
        if error is None:
            self._write(name, future.result())
            self._tell()
        elif self.failure is None:
            self.failure = error
            error.add_note(f"(in {self._folder.name}/{name})")

    def _write(self, name: str, result: Record) -> None:
        file = self._folder / f"{name}.json"
        text = json.dumps({**result, "plan": self._plan}) + "\n"
        if not file.exists():  # where there are no locks somebody may have been first
            with written_whole(file) as part:
                part.write_text(text, encoding="utf-8", newline="\n")

    def _tell(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


class _Here(Executor):
    """Does the work at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def _do(function: Callable[..., Record], options: Mapping[str, Any]) -> Record:
    """Do a piece of work, and say where: in the process that does it."""
    with one_thread():
        result = function(**options)
        own = result.pop("where", {})  # what only this kind of work knows
        return {**result, "where": {**where(), **own}}
