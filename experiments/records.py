"""The files of an experiment, read again: each is checked against the plan as it is today."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.config import (
    Experiment,
    Setting,
    batch_of,
    made_of,
    plan_of,
)

__all__ = ["Record", "Records", "file_name", "read_records"]

Record = dict[str, Any]

_OWNER = "reproduce"
_Kinds = Mapping[str, type | tuple[type, ...]]
_OF_ALL: _Kinds = {"plan": dict, "where": dict, "device": str, "seconds": (int, float)}
_OF_EACH: _Kinds = {"dataset": str, "method": str, "run": int}
_OF_RUN: _Kinds = {**_OF_EACH, "split": int, "counts": dict, "regions": list, "chosen": list, "settings": list}
_OF_CURVES: _Kinds = {**_OF_EACH, "region": list, "curves": list}
_CHOICES = ("chosen", "chosen_smoothed", "chosen_paper")
_COLUMNS = (*_CHOICES, "start")  # have an entry for each region
_OF_START = ("pretrain_epochs", "pretrain_lr", "weight_decay")  # what the weights to start from depend on


@dataclass(frozen=True)
class Records:
    """What the files of an experiment hold.

    Attributes:
        runs: records of runs, in the order of the plan.
        curves: records of training curves.
        starts: records of the weights that runs start from, by file, those that were made as the plan says.
        left_out: files of runs that are no part of the plan.
        unsaid: how many runs do not say their batch and options, as the first ones did not.
        half: how many runs count a positive and a negative with equal scores as one half, as the first ones did.
    """

    runs: list[Record]
    curves: list[Record] = field(default_factory=list)
    starts: dict[str, Record] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    unsaid: int = 0
    half: int = 0


def file_name(dataset: str, method: str, split: int, run: int) -> str:
    """Return the name of a run's file, without its suffix."""
    return f"{dataset}-{method}-{split}-{run}"


def read_records(plan: Experiment, out: Path) -> Records:
    """Read the files of an experiment.

    Args:
        plan: the experiment.
        out: folder that the runs were made in.

    Raises:
        ValueError: for a file that is no record, that has the name of another run, or that was made with another plan:
            other training, regions, settings, batches, options of the loss, or data than other methods of the run.
    """
    runs: list[Record] = []
    left_out: list[str] = []
    data: dict[tuple[str, int, int], Any] = {}
    for file in _files(out / "runs"):
        record = _read(file, _OF_RUN)
        if _belongs(plan, record):
            _check_run(plan, file, record)
            _check_data(plan, file, record, data)
            runs.append(record)
        else:
            left_out.append(file.name)
    runs.sort(key=lambda record: _place(plan, record))
    curves = []
    for file in _files(out / "ablation"):
        record = _read(file, _OF_CURVES)
        if plan.ablation is not None and record["dataset"] in plan.ablation.datasets:
            _check_training(plan, file, record)
            _check(plan, file, "method", plan.ablation.method, record["method"])
            _check(plan, file, "region", list(plan.ablation.region), record["region"])
            _check(plan, file, "settings", list(plan.ablation.settings), [c["setting"] for c in record["curves"]])
            curves.append(record)
    starts = {}
    for file in _files(out / "starts"):
        record = _read(file)
        wanted, found = plan_of(plan)["training"], record["plan"]["training"]
        if all(found.get(name) == wanted[name] for name in _OF_START):  # others are made again where they are needed
            starts[file.stem] = record
    unsaid, half = (sum(name not in record for record in runs) for name in ("batch", "ties"))
    return Records(runs, curves, starts, tuple(left_out), unsaid, half)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def _read(file: Path, entries: _Kinds | None = None) -> Record:
    """Return a record with these entries and with what all records have."""
    try:
        record: Record = json.loads(file.read_text(encoding="utf-8"))
        for name, kind in {**_OF_ALL, **(entries or {})}.items():
            if not isinstance(record[name], kind):
                raise TypeError(f"{name} {record[name]!r}")
        _look_inside(record)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{_OWNER}: {_name(file)} must be the record of a run, got {error!r}; remove it") from error
    return record


def _look_inside(record: Record) -> None:
    """Touch what tables and figures read, so that a part that is missing is known by its file."""
    record["plan"]["training"].get("epochs")
    _ = [record["where"][name] for name in ("date", "torch")]
    _ = [record["counts"][part][1] for part in ("train", "validation", "test") if "counts" in record]
    _ = [
        row["setting"] and (row["training"][-1], row["validation"][-1], row["test"][-1])
        for row in _list(record, "curves")
    ]
    chosen = [entry for name in _CHOICES for entry in _list(record, name)]
    _ = [entry[name] for entry in chosen for name in ("setting", "epoch", "validation", "test")]
    _ = [entry[name] for entry in _list(record, "start") for name in ("validation", "test")]
    columns: dict[str, int] = {name: len(_list(record, name)) for name in _COLUMNS if name in record}
    columns |= {f"settings[{k}].merit": len(row["merit"]) for k, row in enumerate(_list(record, "settings"))}
    number = len(record.get("regions", "1"))  # training curves are of one region
    for name, found in columns.items():
        if found != number:
            raise ValueError(f"{name} for {found} of {number} regions")


def _list(record: Record, name: str) -> list[Any]:
    found: list[Any] = record.get(name, [])
    return found


def _name(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"


def _belongs(plan: Experiment, record: Record) -> bool:
    dataset = plan.datasets.get(record["dataset"])
    known = dataset is not None and record["method"] in plan.contestants and record["split"] < dataset.splits
    # there are as many folds as the plan says; seeds may be more
    return known and (plan.name == "molecules" or record["run"] < plan.runs)


def _place(plan: Experiment, record: Record) -> tuple[int, int, int, int]:
    datasets, methods = list(plan.datasets), list(plan.contestants)
    return datasets.index(record["dataset"]), methods.index(record["method"]), record["split"], record["run"]


def _check_run(plan: Experiment, file: Path, record: Record) -> None:
    name = file_name(*(record[key] for key in ("dataset", "method", "split", "run")))
    if file.stem != name:
        raise ValueError(f"{_OWNER}: {_name(file)} must hold the run of its name, got {name}; remove it")
    _check_training(plan, file, record)
    _check(plan, file, "epochs", plan.datasets[record["dataset"]].epochs or None, record.get("epochs"))
    _check(plan, file, "regions", [list(region) for region in plan.regions], record["regions"])
    tried = [{key: value for key, value in row.items() if key not in ("merit", "error")} for row in record["settings"]]
    contestant = plan.contestants[record["method"]]
    wanted: list[Setting] = list(contestant.settings)
    _check(plan, file, "settings", wanted, tried)
    for column, entry in enumerate(_list(record, "chosen_paper")):
        _check(plan, file, "a choice of the paper's grid of", _best(plan, record, column), entry["setting"])
    if "made" in record:  # younger than most runs
        _check(plan, file, "made", made_of(plan.datasets[record["dataset"]], contestant), record["made"])
    if "batch" in record or "options" in record:  # the first runs said neither
        _check(plan, file, "batch", batch_of(plan.datasets[record["dataset"]]), record.get("batch"))
        _check(plan, file, "options", dict(contestant.options), record.get("options"))


def _best(plan: Experiment, record: Record, column: int) -> Setting | None:
    """Return the setting of the paper's grid with the best validation score, the first of equal ones."""
    known = [
        (row["merit"][column], setting)
        for row, setting in zip(record["settings"], plan.contestants[record["method"]].settings, strict=True)
        if plan.in_paper(setting) and row["merit"][column] is not None
    ]
    return max(known, key=lambda pair: float(pair[0]), default=(0.0, None))[1]


def _check_data(plan: Experiment, file: Path, record: Record, known: dict[tuple[str, int, int], Any]) -> None:
    """All methods of a run must have had the same rows; the first runs did not say which."""
    if "data" in record:
        place = record["dataset"], record["split"], record["run"]
        _check(plan, file, "data", known.setdefault(place, record["data"]), record["data"])


def _check_training(plan: Experiment, file: Path, record: Record) -> None:
    wanted = json.loads(json.dumps(plan_of(plan)))["training"]
    found = record["plan"]["training"]
    for name in wanted:
        _check(plan, file, name, wanted[name], found.get(name))


def _check(plan: Experiment, file: Path, name: str, wanted: Any, found: Any) -> None:
    if wanted != found:
        remedy = f"remove it, and run `python -m experiments reproduce {plan.name}` again"
        raise ValueError(f"{_OWNER}: {_name(file)} must be made with {name} {wanted}, got {found}; {remedy}")
