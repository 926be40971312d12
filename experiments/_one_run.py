"""One run of an experiment: from the data to what its file holds."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments._hardware import deterministic, device_name
from experiments._parts import make_parts
from experiments._starts import made_with, start_weights
from experiments._trial import Curves, score_weights, train_settings
from experiments.choice import (
    SMOOTHED,
    choose,
    of_the_paper,
    rounded,
    summary,
)
from experiments.config import (
    Ablation,
    Contestant,
    DataSet,
    Experiment,
    batch_of,
    made_of,
    training_on,
)
from moreauc._files import written_whole
from moreauc.methods import METHODS


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
    columns = range(len(plan.regions))
    seen, about = _train(plan, contestant, dataset, split, run, folder, device, start)
    if curves_to is not None:
        curves_to.parent.mkdir(parents=True, exist_ok=True)
        names = ("merit", "validation", "test", "auc")
        arrays = {name: getattr(seen, name).astype(np.float32) for name in names}
        with written_whole(curves_to) as part, part.open("xb") as file:
            np.savez_compressed(file, **arrays)
    chosen = {
        "chosen": [choose(seen, contestant, column) for column in columns],
        "chosen_smoothed": [choose(seen, contestant, column, epochs=SMOOTHED) for column in columns],
    }
    if plan.paper_grid:
        chosen["chosen_paper"] = [choose(*of_the_paper(plan, seen, contestant), column) for column in columns]
    return {
        **about,
        "split": split,
        "regions": [list(region) for region in plan.regions],
        **chosen,
        "settings": summary(seen, contestant),
        "seconds": time.perf_counter() - began,
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
) -> dict[str, Any]:
    """Train a method with each of the options to be compared, and keep the TPAUC of the training rows at each epoch."""
    began = time.perf_counter()
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
        "seconds": time.perf_counter() - began,
    }


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
) -> tuple[Curves, dict[str, Any]]:
    """Train a method by all its settings; return the scores, and what a record says of every kind of run."""
    pooling: Any = "mean" if plan.name == "molecules" else METHODS["bags"][contestant.preset].pooling
    weights, scores = None, {}
    with deterministic():
        parts = make_parts(plan, dataset, split=split, run=run, pooling=pooling, folder=folder, device=device)
        if plan.training.pretrain_epochs:
            made = made_with(plan, dataset, split=split, run=run, device=device)
            weights, _ = start_weights(plan, parts, made, start, device=device)
            scores = score_weights(plan, parts, weights, device=device)
        own = replace(plan, training=training_on(plan, dataset, contestant))
        curves = train_settings(
            own, contestant, parts, seed=run, start=weights, device=device, look_at_training=look_at_training
        )
    about = {
        "experiment": plan.name,
        "dataset": dataset.name,
        "method": contestant.name,
        "run": run,
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
