"""The files of an experiment, read again: each is checked against the plan as it is today."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moreauc.experiments.config import Experiment, Setting
from moreauc.experiments.runs import batch_of, plan_of

__all__ = ["Record", "Records", "read_records"]

Record = dict[str, Any]

_OWNER = "reproduce"
_OF_START = ("pretrain_epochs", "pretrain_lr", "weight_decay")  # what the weights to start from depend on


@dataclass(frozen=True)
class Records:
    """What the files of an experiment hold.

    Attributes:
        runs: records of runs, in the order of the plan.
        curves: records of training curves.
        starts: records of the weights that runs start from, by file.
        left_out: files of runs that are no part of the plan.
    """

    runs: list[Record]
    curves: list[Record] = field(default_factory=list)
    starts: dict[str, Record] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def read_records(plan: Experiment, out: Path) -> Records:
    """Read the files of an experiment.

    Args:
        plan: the experiment.
        out: folder that the runs were made in.

    Raises:
        ValueError: for a file that is no record, or that was made with another plan: other training, regions, settings,
            batches or options of the loss.
    """
    runs: list[Record] = []
    left_out: list[str] = []
    for file in _files(out / "runs"):
        record = _read(file)
        if _belongs(plan, record):
            _check_run(plan, file, record)
            runs.append(record)
        else:
            left_out.append(file.name)
    runs.sort(key=lambda record: _place(plan, record))
    curves = []
    for file in _files(out / "ablation"):
        record = _read(file)
        if plan.ablation is not None and record["dataset"] in plan.ablation.datasets:
            _check_training(plan, file, record)
            _check(plan, file, "settings", list(plan.ablation.settings), [c["setting"] for c in record["curves"]])
            curves.append(record)
    starts = {}
    for file in _files(out / "starts"):
        record = starts[file.stem] = _read(file)
        _check_training(plan, file, record, _OF_START)
    return Records(runs, curves, starts, tuple(left_out))


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def _read(file: Path) -> Record:
    try:
        record: Record = json.loads(file.read_text(encoding="utf-8"))
        record["plan"]["training"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{_OWNER}: {_name(file)} must be the record of a run, got {error!r}; remove it") from error
    return record


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
    _check_training(plan, file, record)
    _check(plan, file, "regions", [list(region) for region in plan.regions], record["regions"])
    tried = [{key: value for key, value in row.items() if key not in ("merit", "error")} for row in record["settings"]]
    contestant = plan.contestants[record["method"]]
    wanted: list[Setting] = list(contestant.settings)
    _check(plan, file, "settings", wanted, tried)
    for name, value in (("batch", batch_of(plan.datasets[record["dataset"]])), ("options", dict(contestant.options))):
        if name in record:  # the first runs did not say
            _check(plan, file, name, value, record[name])


def _check_training(plan: Experiment, file: Path, record: Record, names: tuple[str, ...] | None = None) -> None:
    wanted = json.loads(json.dumps(plan_of(plan)))["training"]
    found = record["plan"]["training"]
    for name in wanted if names is None else names:
        _check(plan, file, name, wanted[name], found.get(name))


def _check(plan: Experiment, file: Path, name: str, wanted: Any, found: Any) -> None:
    if wanted != found:
        others = " and the .pt file beside it" if file.parent.name == "starts" else ""
        remedy = f"remove it{others}, and run `moreauc reproduce {plan.name}` again"
        raise ValueError(f"{_OWNER}: {_name(file)} must be made with {name} {wanted}, got {found}; {remedy}")
