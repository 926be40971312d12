"""Runs of the paper's experiments: from the data to what a record holds."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.choice import SMOOTHED, choose, of_the_paper, rounded, summary
from experiments.config import Ablation, Contestant, DataSet, Experiment, batch_of, made_of, training_on
from experiments.machine import deterministic, device_name
from experiments.parts import Parts, make_parts
from experiments.trial import Curves, Weights, pretrain, score_weights, train_settings
from moreauc.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from moreauc.methods import METHODS

Record = dict[str, Any]


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
) -> Record:
    """Train a method by all its settings and test what validation chooses, in each region."""
    columns = range(len(plan.regions))
    seen, about = _train(plan, contestant, dataset, split, run, folder, device, start)
    chosen = {
        "chosen": [choose(seen, contestant, column) for column in columns],
        "chosen_smoothed": [choose(seen, contestant, column, epochs=SMOOTHED) for column in columns],
    }
    if plan.paper_grid:
        chosen["chosen_paper"] = [choose(*of_the_paper(plan, seen, contestant), column) for column in columns]
    return {
        **about,
        "regions": [list(region) for region in plan.regions],
        **chosen,
        "settings": summary(seen, contestant),
        "detail": {name: getattr(seen, name).tolist() for name in ("merit", "validation", "test", "auc")},
    }


def do_ablation(
    *,
    plan: Experiment,
    ablation: Ablation,
    dataset: DataSet,
    run: int,
    folder: Path | None,
    device: str,
    start: Path | None = None,
) -> Record:
    """Train a method with each of the options to be compared, and keep the TPAUC of the training rows at each epoch."""
    contestant = replace(plan.contestants[ablation.method], settings=ablation.settings)
    looked = replace(plan, regions=(ablation.region,))
    curves, about = _train(looked, contestant, dataset, 0, run, folder, device, start, look_at_training=True)
    seen = {"training": curves.training, "validation": curves.validation, "test": curves.test}
    return {
        **about,
        "region": list(ablation.region),
        "curves": [
            {"setting": setting, "error": error, **{key: _curve(value, number) for key, value in seen.items()}}
            for number, (setting, error) in enumerate(zip(ablation.settings, curves.errors, strict=True))
        ],
    }


def do_start(
    *, plan: Experiment, dataset: DataSet, split: int, run: int, folder: Path | None, device: str, start: Path
) -> Record:
    """Train the weights that all methods of a run start from, and keep them in a file."""
    with deterministic():
        parts = make_parts(plan, dataset, split=split, run=run, folder=folder, device=device)
        made = start_made_with(plan, dataset, split=split, run=run, device=device)
        _, seconds = start_weights(plan, parts, made, start, device=device)
    return {"seconds": seconds, "device": device_name(device), "made": made, "data": parts.data}


def start_made_with(plan: Experiment, dataset: DataSet, *, split: int, run: int, device: str) -> Record:
    """Return what the weights to start from depend on, beside the numbers in the data."""
    training = plan.training
    return {
        "experiment": plan.name,
        "source": dataset.source,
        "split": split,
        "run": run,
        "batch": batch_of(dataset),
        "width": dataset.width,
        "pretrain_epochs": training.pretrain_epochs,
        "pretrain_lr": training.pretrain_lr,
        "weight_decay": training.weight_decay,
        "device": device_name(device),
        "torch": str(torch.__version__),
    }


def is_start(file: Path, made: Record) -> bool:
    """Return whether a file has weights made like this; whether of the same data is seen when they are used."""
    content = _read_start(file)
    return content is not None and content["made"] == made


def start_weights(
    plan: Experiment, parts: Parts, made: Record, file: Path | None, *, device: str
) -> tuple[Weights, float]:
    """Return the weights to start from and how long they took: those of the file, or the same trained (again).

    A file that is damaged, or made with something else than today's plan, data, device or torch, is written anew.
    """
    content = None if file is None else _read_start(file)
    if content is not None and content["made"] == made and content["data"] == parts.data:
        return content["weights"], content["seconds"]
    began = time.perf_counter()
    weights = pretrain(plan, parts, seed=made["run"], device=device)
    seconds = time.perf_counter() - began
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(file, {"weights": weights, "made": made, "data": parts.data, "seconds": seconds})
    return weights, seconds


def _read_start(file: Path) -> Record | None:
    """Return what a file holds; None where there is none, or it is damaged or lacks an entry."""
    if not file.exists():
        return None
    try:
        content = load_checkpoint(file)
        return {name: content[name] for name in ("weights", "made", "data", "seconds")}
    except (OSError, CheckpointError, KeyError):
        return None


def _train(
    plan: Experiment,
    contestant: Contestant,
    dataset: DataSet,
    split: int,
    run: int,
    folder: Path | None,
    device: str,
    start: Path | None,
    *,
    look_at_training: bool = False,
) -> tuple[Curves, Record]:
    """Train a method by all its settings; return the scores, and what a record says of every kind of run."""
    pooling: Any = "mean" if plan.name == "molecules" else METHODS["bags"][contestant.preset].pooling
    weights, scores = None, {}
    with deterministic():
        parts = make_parts(plan, dataset, split=split, run=run, pooling=pooling, folder=folder, device=device)
        if plan.training.pretrain_epochs:
            made = start_made_with(plan, dataset, split=split, run=run, device=device)
            weights, _ = start_weights(plan, parts, made, start, device=device)
            scores = score_weights(plan, parts, weights, device=device)
        own = replace(plan, training=training_on(plan, dataset, contestant))
        curves = train_settings(
            own, contestant, parts, seed=run, start=weights, device=device, look_at_training=look_at_training
        )
    about: Record = {
        "counts": parts.counts,
        "data": parts.data,
        "batch": batch_of(dataset),
        "options": dict(contestant.options),
        "made": made_of(dataset, contestant),
        "ties": "curve",
        "device": device_name(device),
    }
    if dataset.epochs:
        about["epochs"] = dataset.epochs
    if scores:
        names, values = list(scores), zip(*scores.values(), strict=True)
        about["start"] = [dict(zip(names, map(rounded, pair), strict=True)) for pair in values]
    if plan.name == "molecules":
        about["where"] = {"rdkit": _rdkit()}
    return curves, about


def _rdkit() -> str | None:
    """Return the version of RDKit, which graphs are made with; None where it is not installed."""
    try:
        import rdkit
    except ModuleNotFoundError:
        return None
    return str(rdkit.__version__)


def _curve(values: NDArray[np.float64] | None, number: int) -> list[float | None]:
    return [] if values is None else [rounded(value) for value in values[number, :, 0]]
