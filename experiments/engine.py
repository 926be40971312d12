"""One engine for all studies: a plan's tasks, those whose records are missing, and their records in one file.

A study's results are JSON lines, one record for each run, sorted by key. While runs are made the parent process appends
each record as it arrives, so that a stopped or killed study can be resumed; at the end the file is sorted. Tasks
are run by joblib, on the backend of `joblib.parallel_config`.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TextIO

from filelock import FileLock, Timeout
from joblib import Parallel, delayed  # type: ignore[import-untyped]

from experiments.files import write_bytes
from experiments.machine import one_thread, where
from moreauc.app.report.pages import Report, rounded

__all__ = ["Record", "Setup", "Study", "Task", "read_records", "run_missing", "select"]

Record = dict[str, Any]
Progress = Callable[[int, int], None]

RECORDS, DETAILS = "records.jsonl", "details.jsonl"
_DIGITS = 8  # significant digits of numbers in records; infinity and NaN are null


@dataclass(frozen=True)
class Setup:
    """Where and on what runs are made.

    Attributes:
        out: folder of the results.
        data: folder with the data; None for MOREAUC_DATA or a download.
        device: "cpu" or "cuda".
    """

    out: Path
    data: Path | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class Task:
    """One run.

    Attributes:
        place: what identifies the run in its study, such as dataset, method and seed; the first entries of its record.
        function: a function of a module that returns the other entries. An entry `detail` is kept apart, in
            `details.jsonl`, for arrays that no report reads.
        options: its keyword arguments.
        stage: all tasks of a lower stage are done first.
    """

    place: Mapping[str, Any]
    function: Callable[..., Record]
    options: Mapping[str, Any]
    stage: int = 0

    @property
    def key(self) -> str:
        """The name of the record: the values of `place`."""
        return "/".join(str(value) for value in self.place.values())


@dataclass(frozen=True, kw_only=True)
class Study(ABC):
    """A plan with its runs and its report.

    Args:
        name: what the command line calls it.
        title: heading of the report.
        folder: folder of its results, below `docs/reports`.
        data: names of the public data that it needs; empty where data are generated.
        seeds: repetitions.
        partial: whether a report needs only the available runs; otherwise all.
    """

    name: str
    title: str
    folder: str
    data: str = ""
    seeds: int
    partial: bool = False
    planned: ClassVar[tuple[str, ...]] = ()  # fields that every run depends on
    tiny: ClassVar[Mapping[str, Any]] = {}  # fields of a version that takes seconds

    @property
    def plan(self) -> Record:
        """What every run depends on; kept in each record."""
        return {name: getattr(self, name) for name in self.planned}

    @abstractmethod
    def tasks(self, setup: Setup) -> list[Task]:
        """Return all runs, whether their records are there or not."""

    @abstractmethod
    def report(self, records: Sequence[Record], out: Path) -> Report:
        """Draw figures into `out` and return the report of the records."""

    def smoke(self) -> Self:
        """Return a tiny version on data made on the spot."""
        return replace(self, **self.tiny)

    def with_seeds(self, seeds: int) -> Self:
        """Return the study with another number of repetitions."""
        return replace(self, seeds=seeds)

    def needed(self, tasks: Sequence[Task], done: Collection[str]) -> list[Task]:
        """Return the tasks that are to be done."""
        return [task for task in tasks if task.key not in done]

    def prepare(self, tasks: Sequence[Task]) -> None:  # noqa: B027
        """Do common work of all tasks once, in the parent process; by default nothing."""

    def check(self, record: Record) -> None:
        """Raise ValueError for a record that was made with another plan."""
        if record.get("plan") != self.plan:
            raise ValueError(f"must be made with {self.plan}, got {record.get('plan')}")


def select(
    tasks: Sequence[Task],
    *,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    splits: int | None = None,
) -> list[Task]:
    """Return the tasks of these data sets and methods, and of so many test splits; None stands for all.

    Raises:
        ValueError: for a name that no task has.
    """
    for entry, names in (("dataset", datasets), ("method", methods)):
        known = list(dict.fromkeys(task.place[entry] for task in tasks if entry in task.place))
        for name in names or ():
            if name not in known:
                raise ValueError(f"run: {entry} must be among {', '.join(map(str, known))}, got {name!r}")
        if names is not None:
            tasks = [task for task in tasks if task.place.get(entry, names[0]) in names]
    return [task for task in tasks if splits is None or task.place.get("split", 0) < splits]


def run_missing(
    study: Study, setup: Setup, tasks: Sequence[Task], *, jobs: int = 1, progress: Progress | None = None
) -> None:
    """Do the tasks whose records are missing, and write the records.

    Torch has one thread in every process, so that numbers do not depend on `jobs`. A task that fails does not stop
    others: the first error is raised at the end, with the task's key as a note.

    Args:
        study: the study that the tasks are of.
        setup: where results go, data folder and device.
        tasks: all or some tasks of the study.
        jobs: processes; 1 for as many as `joblib.parallel_config` says, and without that one.
        progress: called with how many are done, of how many.

    Raises:
        ValueError: if another process writes to the same folder, or a record there is of another plan.
    """
    setup.out.mkdir(parents=True, exist_ok=True)
    with _locked(setup.out):
        done = _read_lines(setup.out / RECORDS)
        for key, record in done.items():
            _check(study, key, record)
        missing = study.needed(tasks, done)
        study.prepare(missing)
        failures: list[tuple[str, Exception]] = []
        finished = 0
        # one task at a time: a record is written as soon as its run ends
        parallel = Parallel(n_jobs=None if jobs == 1 else jobs, return_as="generator_unordered", batch_size=1)
        with _appending(setup.out / RECORDS) as append, _appending(setup.out / DETAILS) as append_detail:
            for stage in sorted({task.stage for task in missing}):
                calls = [delayed(_do)(task) for task in missing if task.stage == stage]
                for key, result in parallel(calls):
                    if isinstance(result, Exception):
                        failures.append((key, result))
                        continue
                    detail = result.pop("detail", None)
                    if detail is not None:
                        append_detail({"key": key, **detail})
                    append({"key": key, **result, "plan": study.plan})
                    finished += 1
                    if progress is not None:
                        progress(finished, len(missing))
    if failures:
        key, error = failures[0]
        error.add_note(f"(in {key}; {len(failures)} of {len(missing)} runs failed)")
        raise error


def _do(task: Task) -> tuple[str, Record | Exception]:
    """Do a task; its record says where, as seen by the process that did it."""
    began = time.perf_counter()
    try:
        with one_thread():
            result = task.function(**task.options)
            own = result.pop("where", {})  # known to the function only
            result.setdefault("seconds", time.perf_counter() - began)
            return task.key, {**task.place, **rounded(result, _DIGITS), "where": {**where(), **own}}
    except Exception as error:
        return task.key, error


def read_records(study: Study, out: Path) -> list[Record]:
    """Return the records of a study in the order of its tasks; those of no task come last, where a study has some.

    Raises:
        ValueError: if a record is of another plan, or there is none, or one is missing that the report needs.
    """
    found = _read_lines(out / RECORDS)
    for key, record in found.items():
        _check(study, key, record)
    keys = [task.key for task in study.tasks(Setup(out))]
    missing = [key for key in keys if key not in found]
    if not found or (missing and not study.partial):
        raise ValueError(
            f"report {study.name}: out must hold all {len(keys)} runs, got {len(keys) - len(missing)} in "
            f"{out / RECORDS}; `python -m experiments run {study.name}` makes the others"
        )
    first = [found.pop(key) for key in keys if key in found]
    return [*first, *found.values()] if study.partial else first


def write_records(file: Path, records: Iterable[Record]) -> None:
    """Write records sorted by key, one on each line."""
    lines = [json.dumps(record, ensure_ascii=False) for record in sorted(records, key=lambda record: record["key"])]
    write_bytes(file, "".join(line + "\n" for line in lines).encode())


def _check(study: Study, key: str, record: Record) -> None:
    try:
        study.check(record)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{study.name}: the record {key} in {RECORDS} cannot be used: {error or type(error).__name__}; "
            f"remove its line, and `python -m experiments run {study.name}` makes it again"
        ) from error


def _read_lines(file: Path) -> dict[str, Record]:
    """Return the records of a file by key; of equal keys the last. A last line that was not finished is left out."""
    found: dict[str, Record] = {}
    if not file.exists():
        return found
    lines = file.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1], 1):  # the last piece is empty, or was not finished
        try:
            record = json.loads(line)
            found[record["key"]] = record
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{file}: line {number} must be a record, got {line[:60]!r}; remove it") from error
    return found


@contextmanager
def _appending(file: Path) -> Iterator[Callable[[Record], None]]:
    """Yield a function that appends a record; the file is sorted at the end if anything was written."""
    handle: TextIO | None = None

    def append(record: Record) -> None:
        nonlocal handle
        if handle is None:
            if file.exists():  # without a last line that was not finished
                write_records(file, _read_lines(file).values())
            handle = file.open("a", encoding="utf-8", newline="\n")
        handle.write(json.dumps(record, ensure_ascii=False) + "\n")
        handle.flush()

    try:
        yield append
    finally:
        if handle is not None:
            handle.close()
            write_records(file, _read_lines(file).values())


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Keep other processes out of a folder; the lock ends with the process, however it ends."""
    lock = FileLock(out / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"run: another process is writing to {out}; wait for it, or choose another --out") from None
    try:
        yield
    finally:
        lock.release()


def count_records(study: Study, out: Path) -> tuple[int, int]:
    """Return how many runs of a study have records, and how many are planned."""
    found = _read_lines(out / RECORDS)
    keys = [task.key for task in study.tasks(Setup(out)) if task.place.get("kind") != "start"]
    return sum(key in found for key in keys), len(keys)
