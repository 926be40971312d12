"""The weights that all methods of a run start from: trained by cross entropy once, and kept in a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from experiments._hardware import deterministic, device_name
from experiments._parts import Parts, make_parts
from experiments._trial import Weights, pretrain
from experiments.config import DataSet, Experiment, batch_of
from moreauc.checkpoint import CheckpointError, load_checkpoint, save_checkpoint


def start_name(dataset: str, split: int, run: int) -> str:
    """Return the name of the file with the weights of a run, without its suffix."""
    return f"{dataset}-{split}-{run}"


def made_with(plan: Experiment, dataset: DataSet, *, split: int, run: int, device: str) -> dict[str, Any]:
    """Return what the weights depend on, beside the numbers in the data."""
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


def is_start(file: Path, made: dict[str, Any]) -> bool:
    """Return whether a file has weights made like this; of what data is seen when they are used."""
    content = _read(file)
    return content is not None and content["made"] == made


def do_start(
    *, plan: Experiment, dataset: DataSet, split: int, run: int, folder: Path | None, device: str, start: Path
) -> dict[str, Any]:
    """Train the weights that all methods of a run start from, and keep them in a file."""
    with deterministic():
        parts = make_parts(plan, dataset, split=split, run=run, folder=folder, device=device)
        made = made_with(plan, dataset, split=split, run=run, device=device)
        _, seconds = start_weights(plan, parts, made, start, device=device)
    return {"seconds": seconds, "device": device_name(device), "made": made, "data": parts.data}


def start_weights(
    plan: Experiment, parts: Parts, made: dict[str, Any], file: Path | None, *, device: str
) -> tuple[Weights, float]:
    """Return the weights to start from and how long they took: those of the file, or the same trained (again).

    A file that is damaged, or made with something else than today's plan, data, device or torch, is written anew.
    """
    content = None if file is None else _read(file)
    if content is not None and content["made"] == made and content["data"] == parts.data:
        return content["weights"], content["seconds"]
    began = time.perf_counter()
    weights = pretrain(plan, parts, seed=made["run"], device=device)
    seconds = time.perf_counter() - began
    if file is not None:
        _write(file, {"weights": weights, "made": made, "data": parts.data, "seconds": seconds})
    return weights, seconds


def _read(file: Path) -> dict[str, Any] | None:
    """Return what a file holds; None where there is none, or it is damaged, or says not what it was made with."""
    if not file.exists():
        return None
    try:
        content = load_checkpoint(file)
        return {name: content[name] for name in ("weights", "made", "data", "seconds")}
    except (OSError, CheckpointError, KeyError):
        return None


def _write(file: Path, content: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_suffix(".json").unlink(missing_ok=True)  # a record of the weights that were there before
    save_checkpoint(file, content)
