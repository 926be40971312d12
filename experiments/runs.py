"""Runs of the paper's experiments: from the data to a record."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.config import Ablation, Candidate, batch_of, made_of, own_epochs, training_on
from experiments.engine import Record
from experiments.machine import deterministic, device_name
from experiments.parts import Parts, Run, make_parts
from experiments.trial import SMOOTHED, Curves, Trial, Weights, pretrain, rounded, score_weights
from moreauc.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from moreauc.methods import METHODS


def do_run(*, run: Run, candidate: Candidate) -> Record:
    """Train a method with all its settings and test the validation choice, in each region."""
    plan, columns = run.plan, range(len(run.plan.regions))
    curves, about = _train(run, candidate)
    chosen = {"chosen": [curves.choose(column) for column in columns]}
    if not candidate.recipe:
        chosen["chosen_smoothed"] = [curves.choose(column, epochs=SMOOTHED) for column in columns]
    if plan.paper_grid and not candidate.recipe:
        chosen["chosen_paper"] = [curves.only(plan.in_paper).choose(column) for column in columns]
    kept = ["merit", "validation", "test", "auc", *(["lead", "test_error"] if candidate.recipe else [])]
    return {
        **about,
        "regions": [list(region) for region in plan.regions],
        **chosen,
        "settings": curves.summary(),
        "detail": {name: getattr(curves, name).tolist() for name in kept},
    }


def do_ablation(*, run: Run, ablation: Ablation) -> Record:
    """Train a method with each of the options to be compared, and keep the TPAUC of the training rows at each epoch."""
    candidate = replace(run.plan.candidates[ablation.method], settings=ablation.settings)
    one_region = replace(run, plan=replace(run.plan, regions=(ablation.region,)))
    curves, about = _train(one_region, candidate, score_training=True)
    seen = {"training": curves.training, "validation": curves.validation, "test": curves.test}
    return {
        **about,
        "region": list(ablation.region),
        "curves": [
            {"setting": setting, "error": error, **{key: _curve(value, number) for key, value in seen.items()}}
            for number, (setting, error) in enumerate(zip(ablation.settings, curves.errors, strict=True))
        ],
    }


def do_start(*, run: Run) -> Record:
    """Train the weights that all methods of a run start from, and keep them in a file."""
    with deterministic():
        parts = make_parts(run, "attention")
        _, seconds = start_weights(run, parts)
    return {"seconds": seconds, "device": device_name(run.device), "made": start_made_with(run), "data": parts.data}


def start_made_with(run: Run) -> Record:
    """Return the settings that the weights to start from depend on, besides the data."""
    plan = run.plan
    training = plan.recipe if run.recipe and plan.recipe is not None else plan.training
    return {
        "experiment": plan.name,
        "source": run.dataset.source,
        "split": run.split,
        "run": run.number,
        "batch": batch_of(run.dataset),
        "width": run.dataset.width,
        "pretrain_epochs": training.pretrain_epochs,
        "pretrain_lr": training.pretrain_lr,
        "weight_decay": plan.training.weight_decay,
        "device": device_name(run.device),
        "torch": str(torch.__version__),
        **({"best": "auc"} if run.recipe else {}),
    }


def has_start(run: Run) -> bool:
    """Return whether a run's file has weights with these settings; their data are checked when they are used."""
    content = _read_start(run.start)
    return content is not None and content["made"] == start_made_with(run)


def start_weights(run: Run, parts: Parts) -> tuple[Weights, float]:
    """Return the weights to start from and how long they took: those of the file, or the same trained (again).

    A file that is damaged, or made with another plan, data, device or torch, is replaced.
    """
    content, made = _read_start(run.start), start_made_with(run)
    if content is not None and content["made"] == made and content["data"] == parts.data:
        return content["weights"], content["seconds"]
    began = time.perf_counter()
    weights = pretrain(run, parts)
    seconds = time.perf_counter() - began
    if run.start is not None:
        run.start.parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(run.start, {"weights": weights, "made": made, "data": parts.data, "seconds": seconds})
    return weights, seconds


def _read_start(file: Path | None) -> Record | None:
    """Return what a file holds; None where there is none, or it is damaged or lacks an entry."""
    if file is None or not file.exists():
        return None
    try:
        content = load_checkpoint(file)
        return {name: content[name] for name in ("weights", "made", "data", "seconds")}
    except (OSError, CheckpointError, KeyError):
        return None


def _train(run: Run, candidate: Candidate, *, score_training: bool = False) -> tuple[Curves, Record]:
    """Train a method with all its settings; return the scores, and the entries that all records have."""
    plan, dataset = run.plan, run.dataset
    pooling = ("mean" if plan.task == "rows" else METHODS["bags"][candidate.preset].pooling) or "mean"
    weights, scores = None, {}
    with deterministic():
        parts = make_parts(run, pooling)
        if training_on(plan, dataset, candidate).pretrain_epochs:
            weights, _ = start_weights(run, parts)
            scores = score_weights(run, parts, weights)
        curves = Trial(run, candidate, parts, weights, score_training).train()
    about: Record = {
        "counts": parts.counts,
        "data": parts.data,
        "batch": batch_of(dataset),
        "options": dict(candidate.options),
        "made": made_of(plan, dataset, candidate),
        "ties": "curve",
        "device": device_name(run.device),
    }
    epochs = own_epochs(dataset, candidate)
    if epochs is not None:
        about["epochs"] = epochs
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
