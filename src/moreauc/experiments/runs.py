"""Runs of an experiment: one small file each; what is there is not done again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moreauc.experiments._parts import Parts, make_parts
from moreauc.experiments._trial import Curves, Weights, pretrain, train_settings
from moreauc.experiments.config import Ablation, Contestant, DataSet, Experiment
from moreauc.optim.bag_presets import BAG_METHODS
from moreauc.studies._run_files import Work, run_missing

Progress = Callable[[int, int], None]
SMOOTHED = 5  # epochs whose mean is judged for the choice that is reported beside the plain one


def file_name(dataset: str, method: str, split: int, run: int) -> str:
    """Return the name of a run's file, without its suffix."""
    return f"{dataset}-{method}-{split}-{run}"


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
        progress: told how many are done, of how many: first for the weights to start from, then for the runs, then for
            the training curves.

    Raises:
        ValueError: for an unknown data set or method, or one that cannot be run, or more folds than there are.
    """
    work = plan_work(
        plan, out, datasets=datasets, methods=methods, runs=runs, splits=splits, folder=folder, device=device
    )
    for name, entries in work.items():
        if entries:
            run_missing(out / name, entries, plan=plan_of(plan), jobs=jobs, progress=progress)


def batch_of(dataset: DataSet) -> dict[str, int]:
    """Return what a training batch holds."""
    return {"positives": dataset.positives, "negatives": dataset.negatives, "instances": dataset.instances}


def plan_of(plan: Experiment) -> dict[str, Any]:
    """Return what all runs of an experiment have in common, as it stands in each file."""
    return {"training": asdict(plan.training)}


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
) -> dict[str, Work]:
    """Return the work of an experiment by subfolder of `out`, whether its files are there or not.

    The subfolders are "starts" (weights to start from, those that a missing run needs), "runs" and "ablation". For the
    arguments see :func:`reproduce`.
    """
    chosen = _chosen("datasets", datasets, [name for name, entry in plan.datasets.items() if entry.available])
    entrants = _chosen("methods", methods, list(plan.contestants))
    number = plan.runs if runs is None else runs
    if plan.name != "molecules" and number > plan.runs:
        raise ValueError(f"reproduce: seeds must be at most the folds of {plan.name}, {plan.runs}, got {number}")
    common = {"plan": plan, "folder": folder, "device": device}
    started: dict[str, tuple[Callable[..., dict[str, Any]], dict[str, Any]]] = {}
    work: dict[str, tuple[Callable[..., dict[str, Any]], dict[str, Any]]] = {}
    for dataset in (plan.datasets[name] for name in chosen):
        for split in range(dataset.splits if splits is None else min(splits, dataset.splits)):
            for run in range(number):
                place = {**common, "dataset": dataset, "split": split, "run": run}
                start = out / "starts" / f"{dataset.name}-{split}-{run}.pt"
                needed = False
                for method in entrants:
                    name = file_name(dataset.name, method, split, run)
                    work[name] = (
                        do_run,
                        {
                            **place,
                            "contestant": plan.contestants[method],
                            "start": start,
                            "curves_to": out / "curves" / f"{name}.npz",
                        },
                    )
                    needed |= not (out / "runs" / f"{name}.json").exists()
                if needed and plan.training.pretrain_epochs and not start.exists():
                    started[start.stem] = (do_start, {**place, "start": start})
    return {"starts": started, "runs": work, "ablation": _ablations(plan, out, chosen, entrants, common, number)}


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
                "start": out / "starts" / f"{name}-0-{run}.pt",
            },
        )
        for name in ablation.datasets
        if name in datasets
        for run in range(runs)
    }


def _chosen(name: str, wanted: Sequence[str] | None, known: list[str]) -> list[str]:
    for entry in wanted or ():
        if entry not in known:
            raise ValueError(f"reproduce: {name} must be among {known}, got {entry!r}")
    return known if wanted is None else [entry for entry in known if entry in wanted]


def do_start(
    *, plan: Experiment, dataset: DataSet, split: int, run: int, folder: Path | None, device: str, start: Path
) -> dict[str, Any]:
    """Train the weights that all methods of a run start from, and keep them in a file."""
    began = time.perf_counter()
    with deterministic():
        parts = make_parts(plan, dataset, split=split, run=run, folder=folder, device=device)
        weights = pretrain(plan, parts, seed=run, device=device)
    waiting = start.with_suffix(f".{os.getpid()}")
    torch.save(weights, waiting)
    waiting.replace(start)
    return {"seconds": time.perf_counter() - began, "device": device_name(device)}


def do_run(
    *,
    plan: Experiment,
    dataset: DataSet,
    contestant: Contestant,
    split: int,
    run: int,
    folder: Path | None,
    device: str,
    start: Path | None = None,
    curves_to: Path | None = None,
) -> dict[str, Any]:
    """Train a method by all its settings and test what validation chooses, in each region."""
    began = time.perf_counter()
    with deterministic():
        pooling = "mean" if plan.name == "molecules" else BAG_METHODS[contestant.preset].pooling
        parts = make_parts(plan, dataset, split=split, run=run, pooling=pooling, folder=folder, device=device)
        weights = _start(plan, parts, run, device, start)
        curves = train_settings(plan, contestant, parts, seed=run, start=weights, device=device)
    if curves_to is not None:
        curves_to.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            curves_to, **{name: getattr(curves, name).astype(np.float32) for name in ("merit", "validation", "test")}
        )
    return {
        "experiment": plan.name,
        "dataset": dataset.name,
        "method": contestant.name,
        "split": split,
        "run": run,
        "counts": parts.counts,
        "batch": batch_of(dataset),
        "options": dict(contestant.options),
        "regions": [list(region) for region in plan.regions],
        "chosen": [choose(curves, contestant, column) for column in range(len(plan.regions))],
        "chosen_smoothed": [choose(curves, contestant, column, epochs=SMOOTHED) for column in range(len(plan.regions))],
        "settings": _summary(curves, contestant),
        "device": device_name(device),
        "seconds": time.perf_counter() - began,
    }


def _start(plan: Experiment, parts: Parts, run: int, device: str, start: Path | None) -> Weights | None:
    """Return the weights to start from: those of the file, or the same trained again; None where fresh ones are."""
    if not plan.training.pretrain_epochs:
        return None
    if start is not None and start.exists():
        weights: Weights = torch.load(start, weights_only=True)
        return weights
    return pretrain(plan, parts, seed=run, device=device)


def do_ablation(
    *,
    plan: Experiment,
    ablation: Ablation,
    dataset: DataSet,
    run: int,
    folder: Path | None,
    device: str,
    start: Path | None = None,
) -> dict[str, Any]:
    """Train a method with each of the options to be compared, and keep the TPAUC of the training rows at each epoch."""
    began = time.perf_counter()
    contestant = replace(plan.contestants[ablation.method], settings=ablation.settings)
    looked = replace(plan, regions=(ablation.region,))
    with deterministic():
        pooling = "mean" if plan.name == "molecules" else BAG_METHODS[contestant.preset].pooling
        parts = make_parts(plan, dataset, split=0, run=run, pooling=pooling, folder=folder, device=device)
        weights = _start(plan, parts, run, device, start)
        curves = train_settings(
            looked, contestant, parts, seed=run, start=weights, device=device, look_at_training=True
        )
    seen = {"training": curves.training, "validation": curves.validation, "test": curves.test}
    return {
        "experiment": plan.name,
        "dataset": dataset.name,
        "method": contestant.name,
        "run": run,
        "region": list(ablation.region),
        "curves": [
            {"setting": setting, "error": error, **{key: _curve(value, number) for key, value in seen.items()}}
            for number, (setting, error) in enumerate(zip(ablation.settings, curves.errors, strict=True))
        ],
        "device": device_name(device),
        "seconds": time.perf_counter() - began,
    }


def _curve(values: NDArray[np.float64] | None, number: int) -> list[float | None]:
    return [] if values is None else [_number(value) for value in values[number, :, 0]]


def choose(curves: Curves, contestant: Contestant, column: int, *, epochs: int = 1) -> dict[str, Any]:
    """Return the setting and the epoch that are best in validation (the later of equal epochs), and their scores.

    Args:
        curves: scores of all settings after each epoch.
        contestant: the method.
        column: number of the region.
        epochs: epochs whose mean is judged, each with those before it: with few positives the best of hundreds of
            single epochs is often a lucky one.
    """
    merit = curves.merit[:, :, column]
    width = min(epochs, merit.shape[1])
    with np.errstate(invalid="ignore"):
        means = np.lib.stride_tricks.sliding_window_view(merit, width, axis=1).mean(axis=2)
    best = int(np.argmax(means.max(axis=1)))
    epoch = int(np.flatnonzero(means[best] == means[best].max())[-1]) + width - 1
    return {
        "setting": contestant.settings[best],
        "epoch": epoch + 1,
        "validation": _number(curves.validation[best, epoch, column]),
        "test": _number(curves.test[best, epoch, column]),
        "last": _number(curves.test[best, -1, column]),
    }


def _summary(curves: Curves, contestant: Contestant) -> list[dict[str, Any]]:
    """Return for each setting its best validation score in each region, or why it diverged."""
    rows = []
    for setting, merit, error in zip(contestant.settings, curves.merit, curves.errors, strict=True):
        row: dict[str, Any] = {**setting, "merit": [_number(value) for value in merit.max(axis=0)]}
        rows.append(row if error is None else {**row, "error": error})
    return rows


def _number(value: float) -> float | None:
    return round(float(value), 6) if np.isfinite(value) else None


def device_name(device: str) -> str:
    """Return the name of the hardware in words."""
    return torch.cuda.get_device_name() if torch.device(device).type == "cuda" else "CPU"


@contextmanager
def deterministic() -> Iterator[None]:
    """Ask torch for the same numbers every time on the same hardware, for a while; float32 products may use TF32."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    memory: Any = torch.utils.deterministic
    filled, precision = memory.fill_uninitialized_memory, torch.get_float32_matmul_precision()
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # no operation here reads what it has not written
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        memory.fill_uninitialized_memory = filled
        torch.set_float32_matmul_precision(precision)
