"""The paper's three experiments as studies: their runs, and which records may stand in their tables."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.config import Experiment, Setting, batch_of, load_experiment, made_of
from experiments.engine import Record, Setup, Study, Task
from experiments.parts import load_graphs
from experiments.runs import do_ablation, do_run, do_start, is_start, start_made_with
from moreauc.report.pages import Report

__all__ = ["PaperStudy", "Records", "load_paper_study", "sort_records"]

_DATA: dict[str, str] = {"molecules": "Tox21, MUV and HIV", "bags": "MUSK2, Fox", "histology": "LC25000"}
_OF_START = ("pretrain_epochs", "pretrain_lr", "weight_decay")  # what the weights to start from depend on


@dataclass(frozen=True, kw_only=True)
class PaperStudy(Study):
    """An experiment of the paper.

    Args:
        experiment: its plan. Where `seeds` is not as many runs as it has, folds and tables are still those of the plan.
    """

    experiment: Experiment
    partial: bool = True

    @property
    def plan(self) -> dict[str, Any]:
        """How all methods are trained."""
        found: dict[str, Any] = json.loads(json.dumps({"training": asdict(self.experiment.training)}))
        return found

    def with_seeds(self, seeds: int) -> PaperStudy:
        """Return the experiment with so many seeds of molecules, or only the first folds of bags."""
        if self.name != "molecules" and seeds > self.experiment.runs:
            raise ValueError(
                f"run {self.name}: seeds must be at most the number of folds, {self.experiment.runs}, got {seeds}"
            )
        return replace(self, seeds=seeds)

    def smoke(self) -> PaperStudy:
        """Return the experiment with one small data set, one epoch, two runs and two settings of each method."""
        from experiments.smoke import smoke_plan

        small = smoke_plan(self.experiment)
        return replace(self, title=small.title, seeds=small.runs, experiment=small)

    def tasks(self, setup: Setup) -> list[Task]:
        """Return the weights to start from, where there are some, the runs, and those of the training curves."""
        plan = self.experiment
        common = {"plan": plan, "folder": setup.data, "device": setup.device}
        starts, runs = [], []
        for dataset in (entry for entry in plan.datasets.values() if entry.available):
            for split in range(dataset.splits):
                for run in range(self.seeds):
                    place = {"dataset": dataset.name, "split": split, "run": run}
                    options = {**common, "dataset": dataset, "split": split, "run": run}
                    options["start"] = _start_file(setup, dataset.name, split, run)
                    if plan.training.pretrain_epochs:
                        starts.append(Task({"kind": "start", **place}, do_start, options))
                    for name, contestant in plan.contestants.items():
                        where = {"kind": "run", "dataset": dataset.name, "method": name, "split": split, "run": run}
                        runs.append(Task(where, do_run, {**options, "contestant": contestant}, stage=1))
        return [*starts, *runs, *self._ablations(setup, common)]

    def _ablations(self, setup: Setup, common: dict[str, Any]) -> list[Task]:
        plan, ablation = self.experiment, self.experiment.ablation
        if ablation is None:
            return []
        tasks = []
        for name in ablation.datasets:
            for run in range(self.seeds):
                options = {**common, "ablation": ablation, "dataset": plan.datasets[name], "run": run}
                options["start"] = _start_file(setup, name, 0, run)
                place = {"kind": "ablation", "dataset": name, "method": ablation.method, "run": run}
                tasks.append(Task(place, do_ablation, options, stage=1))
        return tasks

    def needed(self, tasks: Sequence[Task], done: Collection[str]) -> list[Task]:
        """Return runs without a record, and the weights that these start from where no file has them."""
        missing = [task for task in tasks if task.stage == 1 and task.key not in done]
        used = {task.options["start"] for task in missing}
        starts = [task for task in tasks if task.stage == 0 and task.options["start"] in used]
        return [*(task for task in starts if not is_start(task.options["start"], _start_made(task))), *missing]

    def prepare(self, tasks: Sequence[Task]) -> None:
        """Read molecules once: their graphs are made and warnings given once, not by every run."""
        if self.name == "molecules":
            for source, folder in dict.fromkeys((t.options["dataset"].source, t.options["folder"]) for t in tasks):
                load_graphs(source, folder)

    def check(self, record: Record) -> None:
        """Raise ValueError for a record that was made with another plan; one of no entry of the plan is let pass."""
        kind, plan = record["kind"], self.experiment
        if kind == "run" and _belongs(plan, record):
            self._check_run(record)
        elif kind == "ablation" and plan.ablation is not None and record["dataset"] in plan.ablation.datasets:
            self._check_training(record)
            _same("method", plan.ablation.method, record["method"])
            _same("region", list(plan.ablation.region), record["region"])
            _same("settings", list(plan.ablation.settings), [curve["setting"] for curve in record["curves"]])
            _ = [(c["training"][-1], c["validation"][-1], c["test"][-1]) for c in record["curves"]]
        _ = [record["where"][name] for name in ("date", "torch")], record["device"], record["seconds"]

    def _check_run(self, record: Record) -> None:
        plan = self.experiment
        dataset, contestant = plan.datasets[record["dataset"]], plan.contestants[record["method"]]
        self._check_training(record)
        _same("epochs", dataset.epochs or None, record.get("epochs"))
        _same("regions", [list(region) for region in plan.regions], record["regions"])
        tried = [{k: value for k, value in row.items() if k not in ("merit", "error")} for row in record["settings"]]
        _same("settings", list(contestant.settings), tried)
        for column, entry in enumerate(record.get("chosen_paper", [])):
            _same("a choice of the paper's grid of", _best(plan, record, column), entry["setting"])
        if "made" in record:  # younger than most runs
            _same("made", made_of(dataset, contestant), record["made"])
        if "batch" in record or "options" in record:  # the first runs have neither
            _same("batch", batch_of(dataset), record.get("batch"))
            _same("options", dict(contestant.options), record.get("options"))
        _ = [record["counts"][part][1] for part in ("train", "validation", "test")]
        _check_columns(record, len(plan.regions))

    def _check_training(self, record: Record) -> None:
        wanted, found = self.plan["training"], record["plan"]["training"]
        for name in wanted:
            _same(name, wanted[name], found.get(name))

    def report(self, records: Sequence[Record], out: Path) -> Report:
        """Return the tables, paired tests and figures of the runs that are there."""
        from experiments.report import make_report

        return make_report(self.experiment, sort_records(self.experiment, records), out)


def load_paper_study(name: str) -> PaperStudy:
    """Return one of the paper's experiments by name."""
    plan = load_experiment(name)
    about: dict[str, Any] = {
        "title": plan.title,
        "folder": f"experiments/{name}",
        "data": _DATA[name],
        "seeds": plan.runs,
    }
    return PaperStudy(name=name, experiment=plan, **about)


def _start_file(setup: Setup, dataset: str, split: int, run: int) -> Path:
    return setup.out / "starts" / f"{dataset}-{split}-{run}.pt"


def _start_made(task: Task) -> dict[str, Any]:
    return start_made_with(**{key: task.options[key] for key in ("plan", "dataset", "split", "run", "device")})


def _belongs(plan: Experiment, record: Record) -> bool:
    dataset = plan.datasets.get(record["dataset"])
    known = dataset is not None and record["method"] in plan.contestants and record["split"] < dataset.splits
    # there are as many folds as the plan says; seeds may be more
    return known and (plan.name == "molecules" or record["run"] < plan.runs)


def _best(plan: Experiment, record: Record, column: int) -> Setting | None:
    """Return the setting of the paper's grid with the best validation score, the first of equal ones."""
    known = [
        (row["merit"][column], setting)
        for row, setting in zip(record["settings"], plan.contestants[record["method"]].settings, strict=True)
        if plan.in_paper(setting) and row["merit"][column] is not None
    ]
    return max(known, key=lambda pair: float(pair[0]), default=(0.0, None))[1]


def _check_columns(record: Record, number: int) -> None:
    """Touch what tables read: every choice and start must have an entry for each region."""
    for name in ("chosen", "chosen_smoothed", "chosen_paper", "start"):
        if name in record:
            _same(f"{name} for as many regions:", number, len(record[name]))
            entries = ("validation", "test") if name == "start" else ("setting", "epoch", "validation", "test")
            _ = [row[entry] for row in record[name] for entry in entries]
    for row in record["settings"]:
        _same("merit for as many regions:", number, len(row["merit"]))
    _ = record["chosen"]


def _same(name: str, wanted: Any, found: Any) -> None:
    if wanted != found:
        raise ValueError(f"must be made with {name} {wanted}, got {found}")


@dataclass(frozen=True)
class Records:
    """The records of an experiment by kind.

    Attributes:
        runs: in the order of the plan.
        curves: training curves.
        starts: weights that runs start from, those that were made as the plan says.
        left_out: keys of runs that are no part of the plan.
        unsaid: how many runs do not say their batch and options, as the first ones did not.
        half: how many runs count a positive and a negative with equal scores as one half, as the first ones did.
    """

    runs: list[Record]
    curves: list[Record] = field(default_factory=list)
    starts: list[Record] = field(default_factory=list)
    left_out: tuple[str, ...] = ()
    unsaid: int = 0
    half: int = 0


def sort_records(plan: Experiment, records: Sequence[Record]) -> Records:
    """Sort checked records by kind.

    Raises:
        ValueError: if there is no run of the plan, or methods of one run had other data.
    """
    every = [record for record in records if record["kind"] == "run"]
    runs = [record for record in every if _belongs(plan, record)]
    if not runs:
        raise ValueError(f"report {plan.name}: out must hold runs of {plan.name}, got none that belong to its plan")
    known: dict[tuple[Any, ...], Any] = {}
    for record in (record for record in runs if "data" in record):  # the first runs did not say which data
        data = known.setdefault((record["dataset"], record["split"], record["run"]), record["data"])
        if data != record["data"]:
            raise ValueError(f"report {plan.name}: {record['key']} must have the data {data}, got {record['data']}")
    datasets, methods = list(plan.datasets), list(plan.contestants)
    runs.sort(key=lambda r: (datasets.index(r["dataset"]), methods.index(r["method"]), r["split"], r["run"]))
    shown = () if plan.ablation is None else plan.ablation.datasets
    training = asdict(plan.training)
    starts = [record for record in records if record["kind"] == "start"]
    return Records(
        runs,
        [record for record in records if record["kind"] == "ablation" and record["dataset"] in shown],
        [r for r in starts if all(r["plan"]["training"].get(name) == training[name] for name in _OF_START)],
        tuple(record["key"] for record in every if not _belongs(plan, record)),
        *(sum(name not in record for record in runs) for name in ("batch", "ties")),
    )
