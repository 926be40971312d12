"""Kills training with SIGKILL again and again, and compares the result with that of an uninterrupted run.

Each run of `torture_runs.RUNS` is started as a process, killed with its workers at a random moment, and started again
until it is through; the state at its end, of weights, loss, optimizer, generators and history, must be that of the
uninterrupted run to the last bit, and no kill may lose a step that had been saved.

Half of the kills come at any moment, from outside. The other half hit a stage of a save: while the file is being
written, before it is flushed, before it is renamed, before the folder is flushed, before an old file is removed; there
the process sends the signal to itself and its workers. Saves are slowed down a little, so that kills from outside hit
them, too. All that is done in these processes only: `watch_saves` replaces functions there.

A SIGKILL takes the process and leaves the system, so this shows nothing about power cuts; that files are flushed before
they are renamed is tested in tests/test_checkpoint_file.py.

At the end checkpoints are given to runs with other settings, which must refuse them: every option of every loss and
estimator (`torture_settings`).

`python benchmarks/torture.py --out FILE` writes the report. A server that has loaded torch once forks the processes;
each of them loads everything else from the disk.
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_pairs import write
from torch import Tensor
from torture_runs import RUNS, train

import moreauc.checkpoint.file as checkpoint_file
from moreauc.app.report.pages import versions
from moreauc.checkpoint import Checkpoints, load_checkpoint
from moreauc.checkpoint.folder import CheckpointWarning

STAGES = ("outside", "writing", "flushing the file", "renaming", "flushing the folder", "removing an old file")
NOT_STARTED = len(STAGES)  # the process has not come to its first save
SLOW = 0.002  # seconds that a stage of a save takes at most
WAIT = 60.0  # seconds after which a process that neither ends nor comes to a stage has failed


class Stage:
    """A byte in a file with the stage of a process, readable after its end."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes([NOT_STARTED]))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 1)

    @property
    def number(self) -> int:
        """The number of the stage."""
        return self._map[0]

    @number.setter
    def number(self, value: int) -> None:
        self._map[0] = value


def watch_saves(stage: Stage, seed: int, doom: tuple[int, int] | None) -> None:
    """Note where the saves of this process are and slow them down; end it at a stage of the save with some number."""
    draws, saves = random.Random(seed), 0
    fsync, replace, unlink, save = os.fsync, os.replace, Path.unlink, Checkpoints.save
    write_some = checkpoint_file._Hashed.write

    def at(number: int) -> None:
        if stage.number not in (0, NOT_STARTED):  # only inside of a save
            stage.number = number
            if doom is not None and number == doom[0] and saves >= doom[1]:
                os.killpg(0, signal.SIGKILL)
            time.sleep(draws.random() * SLOW)

    def slow_write(self: Any, data: Any) -> int:
        if draws.random() < 0.05:  # there are hundreds of them
            at(1)
        return write_some(self, data)

    def slow_fsync(number: int) -> None:
        at(4 if stage.number >= 3 else 2)
        fsync(number)

    def slow_replace(source: Any, target: Any) -> None:
        at(3)
        replace(source, target)

    def slow_unlink(self: Path, missing_ok: bool = False) -> None:
        at(5)
        unlink(self, missing_ok=missing_ok)

    def noted_save(self: Checkpoints, state: Any) -> Path:
        nonlocal saves
        stage.number = 1
        path = save(self, state)
        stage.number = 0
        saves += 1
        return path

    checkpoint_file._Hashed.write = slow_write  # type: ignore[method-assign]
    os.fsync, os.replace = slow_fsync, slow_replace  # type: ignore[assignment]
    Path.unlink, Checkpoints.save = slow_unlink, noted_save  # type: ignore[method-assign]


def victim(name: str, folder: str, seed: int, doom: tuple[int, int] | None, every: int) -> None:
    """Run a training to its end, in its own process group; this is the process that is killed."""
    os.setsid()
    multiprocessing.set_start_method("fork", force=True)  # of workers, as in any other training on this system
    torch.set_num_threads(1)
    random.seed(3)  # each process has another seed by itself
    np.random.seed(3)
    warnings.simplefilter("error", CheckpointWarning)  # a kill must not leave a damaged file
    if seed:
        watch_saves(Stage(Path(folder) / "stage"), seed, doom)
    train(name, Path(folder) / "checkpoints", every=every)


@dataclass
class Tally:
    """Counts of the runs of one method."""

    runs: int = 0
    starts: int = 0
    kills: int = 0
    by_stage: list[int] = field(default_factory=lambda: [0] * (len(STAGES) + 1))
    tensors: int = 0
    differences: list[str] = field(default_factory=list)

    def row(self, name: str) -> dict[str, Any]:
        """Return a row of the report."""
        names = [*STAGES, "before its first save"]
        return {
            "loss": name,
            "kills": self.kills,
            "inside_a_save": sum(self.by_stage[1 : len(STAGES)]),
            "by_stage": dict(zip(names, self.by_stage, strict=True)),
            "restarts": self.starts - self.runs,
            "runs": self.runs,
            "tensors_compared": self.tensors,
            "differences": len(self.differences),
            "first_differences": self.differences[:3],
        }


def load_once() -> None:
    """Let the server that forks load what takes long; Python 3.11 does not tell it where modules of this folder are."""
    loaded = [name for name in sys.modules if name.split(".")[0] in ("torch", "moreauc", "numpy", "scipy", "sklearn")]
    multiprocessing.get_context("forkserver").set_forkserver_preload(sorted(loaded))


def start(name: str, folder: Path, seed: int = 0, doom: tuple[int, int] | None = None, every: int = 1) -> Any:
    """Start a process and return it; without a seed its saves are not watched."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=victim, args=(name, str(folder), seed, doom, every))
    process.start()
    return process


def kill(process: Any) -> bool:
    """Kill a process with its workers; return whether that was its end."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)  # before it has its own process group
    process.join()
    return bool(process.exitcode == -signal.SIGKILL)


def wait_for(process: Any, stage: Stage, draws: random.Random) -> None:
    """Wait for any moment: one in four times from the start on, loading included, else after some saves."""
    if draws.random() < 0.25:
        process.join(draws.random() * 0.4)
        return
    saves, last, limit = draws.randrange(8), stage.number, time.monotonic() + WAIT
    while process.exitcode is None and saves > 0 and time.monotonic() < limit:
        saves -= int(last not in (0, NOT_STARTED) and stage.number == 0)
        last = stage.number
        time.sleep(0.0005)
    if time.monotonic() >= limit:
        kill(process)
        raise RuntimeError(f"a process came to no save in {WAIT:g} seconds")
    process.join(draws.random() * 0.05)


def one_run(name: str, folder: Path, kills: int, draws: random.Random, tally: Tally) -> None:
    """Kill a run some times and let it end."""
    (folder / "stage").unlink(missing_ok=True)
    stage, steps = Stage(folder / "stage"), 0
    every = 1 + 2 * (tally.runs % 2)  # every other run loses steps when it is killed, and does them again
    tally.runs += 1
    while True:
        stage.number = NOT_STARTED
        seed, doom = draws.randrange(1, 1 << 30), None
        if kills > 0 and draws.random() < 0.5:
            doom = (draws.randrange(1, len(STAGES)), draws.randrange(8))
        process = start(name, folder, seed, doom, every)
        tally.starts += 1
        if kills > 0:
            if doom is None:
                wait_for(process, stage, draws)
                kill(process)
            process.join(WAIT)
            hangs = process.exitcode is None
            if kill(process) and not hangs:
                tally.kills += 1
                tally.by_stage[stage.number] += 1
                kills -= 1
                before, steps = steps, steps_saved(folder)
                if steps < before:
                    tally.differences.append(f"{before - steps} steps that had been saved were lost")
                continue
            if hangs:
                raise RuntimeError(f"{name}: a run that was to kill itself did nothing for {WAIT:g} seconds")
        process.join(WAIT)
        if process.exitcode != 0:
            kill(process)
            raise RuntimeError(f"{name}: a run ended with the exit code {process.exitcode}")
        return


def steps_saved(folder: Path) -> int:
    """Return how many steps of a run are on the disk; a damaged file there is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", CheckpointWarning)
        state = Checkpoints(folder / "checkpoints").load()
    return 0 if state is None else int(state["others"]["loop"]["state"]["steps"])


def differences(found: Any, wanted: Any, name: str = "") -> tuple[int, list[str]]:
    """Return how many tensors were compared, and the names of what differs; seconds of the clock are left out."""
    if isinstance(wanted, Tensor):
        return 1, [] if isinstance(found, Tensor) and _bits(found) == _bits(wanted) else [name]
    if type(found) is not type(wanted):
        return 0, [f"{name}: {type(found).__name__} and {type(wanted).__name__}"]
    if isinstance(wanted, dict):
        if found.keys() != wanted.keys():
            return 0, [f"{name}: names"]
        pairs = [(found[key], wanted[key], f"{name}.{key}") for key in wanted if key != "seconds"]
    elif isinstance(wanted, list | tuple):
        if len(found) != len(wanted):
            return 0, [f"{name}: length"]
        pairs = [(a, b, f"{name}[{number}]") for number, (a, b) in enumerate(zip(found, wanted, strict=True))]
    else:
        return 0, [] if repr(found) == repr(wanted) else [f"{name}: {found!r} and {wanted!r}"]
    results = [differences(*pair) for pair in pairs]
    return sum(count for count, _ in results), [text for _, texts in results for text in texts]


def _bits(value: Tensor) -> tuple[Any, ...]:
    """Return a fingerprint of a tensor; NaN equals NaN here."""
    flat = torch.empty(value.numel(), dtype=value.dtype).copy_(value.reshape(-1))
    return value.dtype, value.shape, flat.view(torch.uint8).numpy().tobytes()


def final_states(folder: Path) -> list[dict[str, Any]]:
    """Return the last two checkpoints: that of the last epoch's end, with all parts, and that of the complete run.

    Where the last kill came before an old file was removed, that one is there still: a complete run saves nothing more.
    """
    return [load_checkpoint(path) for path in Checkpoints(folder / "checkpoints").files()[-2:]]


def torture(name: str, kills: int, draws: random.Random, *, kills_of_a_run: int = 6) -> Tally:
    """Kill runs of one method until there were enough kills."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as place:
        reference = Path(place) / "reference"
        reference.mkdir()
        process = start(name, reference)
        process.join(WAIT)
        if process.exitcode != 0:
            raise RuntimeError(f"{name}: the uninterrupted run ended with the exit code {process.exitcode}")
        wanted = final_states(reference)
        while tally.kills < kills:
            folder = Path(place) / f"run{tally.runs}"
            folder.mkdir()
            one_run(name, folder, min(kills_of_a_run, kills - tally.kills), draws, tally)
            count, different = differences(final_states(folder), wanted)
            tally.tensors += count
            tally.differences += different
            if not count:
                tally.differences.append("nothing to compare")
    return tally


def other_settings() -> dict[str, Any]:
    """Try to resume from checkpoints with other settings; see `torture_settings`."""
    import torture_settings  # loads the estimators, for which the processes that get killed should not wait

    found = torture_settings.try_all()
    print(
        f"other settings are refused: {found['options']} options of {found['classes']} losses and estimators, "
        f"{found['values_refused']} other values refused, {found['values_that_may_differ']} of options that may differ "
        f"went on, {len(found['problems'])} problems",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill training at random moments and compare the results.")
    parser.add_argument("--out", type=Path, help="file of the report; printed if not given")
    parser.add_argument("--kills", type=int, default=8, help="kills of each method")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--only", nargs="*", help="methods, as the report names them; all if not given")
    options = parser.parse_args()
    load_once()
    draws, begin, rows = random.Random(options.seed), time.perf_counter(), []
    for name in options.only or RUNS:
        rows.append(torture(name, options.kills, draws).row(name))
        print(f"{name}: {rows[-1]['kills']} kills, {rows[-1]['differences']} differences", flush=True)
    settings = other_settings()
    kills = sum(row["kills"] for row in rows)
    report = {
        "title": "Training killed with SIGKILL at random moments",
        "command": f"python benchmarks/torture.py --kills {options.kills} --seed {options.seed}",
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "device": "cpu",
        "kills": kills,
        "differences": sum(row["differences"] for row in rows),
        "other_settings": settings,
        "kills_inside_a_save": sum(row["inside_a_save"] for row in rows),
        "restarts": sum(row["restarts"] for row in rows),
        "runs": sum(row["runs"] for row in rows),
        "tensors_compared": sum(row["tensors_compared"] for row in rows),
        "seconds": round(time.perf_counter() - begin, 1),
        "settings": "dropout 0.3; loaders with 2 workers that draw noise; a checkpoint at every step, in every other "
        "run at every third",
        "losses": rows,
    }
    write(report, options.out)


if __name__ == "__main__":
    main()
