"""Runs of an experiment: one small file each; what is there is not done again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments._hardware import deterministic
from experiments._one_run import do_ablation, do_run
from experiments._parts import load_graphs
from experiments._starts import (
    do_start,
    is_start,
    made_with,
    start_name,
)
from experiments.config import Experiment, plan_of
from experiments.records import file_name
from experiments.studies._run_files import Task, Work, run_missing

__all__ = ["deterministic", "do_ablation", "do_run", "file_name", "plan_work", "reproduce"]

Progress = Callable[[int, int], None]


def reproduce(
    plan: Experiment,
    out: Path,
    *,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    runs: int | None = None,
    splits: int | None = None,
    folder: Path | None = None,
    device: str = "cpu",
    jobs: int = 1,
    curves: bool = True,
    progress: Progress | None = None,
) -> None:
    """Do the runs of an experiment whose files are missing.

    Args:
        plan: the experiment.
        out: folder of its files; runs go to `out/runs`.
        datasets: names of data sets; None for all that can be run.
        methods: names of methods; None for all.
        runs: runs of each method and split; None for those of the plan.
        splits: test splits, at most; None for those of the data set.
        folder: folder with the data; None for MOREAUC_DATA or a download.
        device: "cpu" or "cuda".
        jobs: processes, on one GPU or on as many cores.
        curves: whether to keep the scores of every setting after every epoch, for other choices to be tried later;
            they go to `out/curves`, as NumPy files, and nothing here reads them.
        progress: told how many are done, of how many: first for the weights to start from, then for the runs, then for
            the training curves.

    Raises:
        ValueError: for an unknown data set or method, or one that cannot be run, or more folds than there are.
    """
    work = plan_work(
        plan,
        out,
        datasets=datasets,
        methods=methods,
        runs=runs,
        splits=splits,
        folder=folder,
        device=device,
        curves=curves,
    )
    if plan.name == "molecules":
        _warn(out, work, folder)
    starts = partial(_start_is_there, out, work["starts"])
    for name, entries in work.items():
        there = starts if name == "starts" else None
        if entries:
            run_missing(out / name, entries, plan=plan_of(plan), jobs=jobs, progress=progress, there=there)


def plan_work(
    plan: Experiment,
    out: Path,
    *,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    runs: int | None = None,
    splits: int | None = None,
    folder: Path | None = None,
    device: str = "cpu",
    curves: bool = True,
) -> dict[str, Work]:
    """Return the work of an experiment by subfolder of `out`, whether its files are there or not.

    The subfolders are "starts" (weights to start from, those that a missing run needs), "runs" and "ablation". For the
    arguments see :func:`reproduce`.
    """
    chosen = _chosen_datasets(plan, datasets)
    entrants = _chosen("methods", methods, list(plan.contestants))
    number = plan.runs if runs is None else runs
    if plan.name != "molecules" and number > plan.runs:
        raise ValueError(f"reproduce: seeds must be at most the folds of {plan.name}, {plan.runs}, got {number}")
    common = {"plan": plan, "folder": folder, "device": device}
    places: list[dict[str, Any]] = [
        {**common, "dataset": dataset, "split": split, "run": run}
        for dataset in (plan.datasets[name] for name in chosen)
        for split in range(dataset.splits if splits is None else min(splits, dataset.splits))
        for run in range(number)
    ]
    ablations = _ablations(plan, out, chosen, entrants, common, number)
    started: dict[str, Task] = {}
    work: dict[str, Task] = {}
    for place in places:
        where = place["dataset"].name, place["split"], place["run"]
        start = out / "starts" / f"{start_name(*where)}.pt"
        names = {file_name(where[0], method, *where[1:]): plan.contestants[method] for method in entrants}
        for name, contestant in names.items():
            kept = out / "curves" / f"{name}.npz" if curves else None
            work[name] = (do_run, {**place, "contestant": contestant, "start": start, "curves_to": kept})
        users = [out / "runs" / f"{name}.json" for name in names]
        users += [out / "ablation" / f"{key}.json" for key, (_, own) in ablations.items() if own["start"] == start]
        missing = not all(file.exists() for file in users)
        if missing and plan.training.pretrain_epochs and not is_start(start, _made(place)):
            started[start.stem] = (do_start, {**place, "start": start})
    return {"starts": started, "runs": work, "ablation": ablations}


def _made(place: dict[str, Any]) -> dict[str, Any]:
    keys = ("plan", "dataset", "split", "run", "device")
    return made_with(**{key: place[key] for key in keys})


def _start_is_there(out: Path, work: Work, name: str) -> bool:
    """Return whether the weights of a start are there, and a record of them."""
    options = work[name][1]
    return (out / "starts" / f"{name}.json").exists() and is_start(options["start"], _made(options))


def _ablations(
    plan: Experiment, out: Path, datasets: list[str], methods: list[str], common: dict[str, Any], runs: int
) -> Work:
    ablation = plan.ablation
    if ablation is None or ablation.method not in methods:
        return {}
    return {
        f"{name}-{run}": (
            do_ablation,
            {
                **common,
                "ablation": ablation,
                "dataset": plan.datasets[name],
                "run": run,
                "start": out / "starts" / f"{start_name(name, 0, run)}.pt",
            },
        )
        for name in ablation.datasets
        if name in datasets
        for run in range(runs)
    }


def _chosen_datasets(plan: Experiment, wanted: Sequence[str] | None) -> list[str]:
    for name in wanted or ():
        entry = plan.datasets.get(name)
        if entry is not None and not entry.available:
            raise ValueError(f"reproduce: datasets must be available, got {name!r}: {entry.note}")
    return _chosen("datasets", wanted, [name for name, entry in plan.datasets.items() if entry.available])


def _chosen(name: str, wanted: Sequence[str] | None, known: list[str]) -> list[str]:
    for entry in wanted or ():
        if entry not in known:
            raise ValueError(f"reproduce: {name} must be among {known}, got {entry!r}")
    return known if wanted is None else [entry for entry in known if entry in wanted]


def _warn(out: Path, work: dict[str, Work], folder: Path | None) -> None:
    """Read the molecules of the runs that are missing once before all runs, which read them without a warning.

    Graphs that have to be made first are then made once, too, and not by several processes at the same time.
    """
    missing = [
        options["dataset"].source
        for kind in ("runs", "ablation")
        for name, (_, options) in work[kind].items()
        if not (out / kind / f"{name}.json").exists()
    ]
    for source in dict.fromkeys(missing):
        load_graphs(source, folder)
