"""The paper's three experiments as studies: their runs, and which records are valid."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Self

from experiments.config import Experiment, Kind, Setting, batch_of, load_experiment, made_of, own_epochs, smoke_plan
from experiments.engine import Record, Setup, Study, Task
from experiments.parts import Run, load_graphs
from experiments.report import make_report
from experiments.runs import do_ablation, do_run, do_start, has_start
from experiments.tables import belongs, sort_records
from moreauc.app.report.pages import Report

_DATA: dict[str, str] = {"molecules": "Tox21, MUV and HIV", "bags": "MUSK2, Fox", "histology": "LC25000"}


@dataclass(frozen=True, kw_only=True)
class PaperStudy(Study):
    """An experiment of the paper.

    Args:
        experiment: its plan. Where `seeds` is not as many runs as it has, folds and tables are still those of the plan.
    """

    experiment: Experiment
    partial: bool = True

    @property
    def plan(self) -> Record:
        """How all methods are trained."""
        found: Record = json.loads(json.dumps({"training": asdict(self.experiment.training)}))
        return found

    def with_seeds(self, seeds: int) -> Self:
        """Return the experiment with so many seeds of molecules, or only the first folds of bags."""
        if self.name != "molecules" and seeds > self.experiment.runs:
            raise ValueError(
                f"run {self.name}: seeds must be at most the number of folds, {self.experiment.runs}, got {seeds}"
            )
        return replace(self, seeds=seeds)

    def smoke(self) -> Self:
        """Return the experiment with one small data set, one epoch, two runs and two settings of each method."""
        small = smoke_plan(self.experiment)
        return replace(self, title=small.title, seeds=small.runs, experiment=small)

    def tasks(self, setup: Setup) -> list[Task]:
        """Return the weights to start from, where there are some, the runs, and those of the training curves."""
        plan, ablation = self.experiment, self.experiment.ablation
        starts, runs, curves = [], [], []
        for dataset in (entry for entry in plan.datasets.values() if entry.available):
            for split, number in product(range(dataset.splits), range(self.seeds)):
                name, file = dataset.name, setup.out / "starts" / f"{dataset.name}-{split}-{number}.pt"
                run = Run(plan, dataset, split, number, setup.data, setup.device, file)
                place = {"split": split, "run": number}
                if plan.training.pretrain_epochs:
                    starts.append(Task({"kind": "start", "dataset": name, **place}, do_start, {"run": run}))
                best = replace(run, start=file.with_stem(f"{file.stem}-recipe"), recipe=True)
                if plan.recipe is not None:
                    where = {"kind": "start", "dataset": name, "of": "recipe", **place}
                    starts.append(Task(where, do_start, {"run": best}))
                for method, candidate in plan.candidates.items():
                    where = {"kind": "run", "dataset": name, "method": method, **place}
                    own = best if candidate.recipe else run
                    runs.append(Task(where, do_run, {"run": own, "candidate": candidate}, stage=1))
                if ablation is not None and name in ablation.datasets and split == 0:
                    where = {"kind": "ablation", "dataset": name, "method": ablation.method, "run": number}
                    curves.append(Task(where, do_ablation, {"run": run, "ablation": ablation}, stage=1))
        if ablation is not None:
            curves.sort(key=lambda task: ablation.datasets.index(task.place["dataset"]))
        return [*starts, *runs, *curves]

    def needed(self, tasks: Sequence[Task], done: Collection[str]) -> list[Task]:
        """Return runs without a record, and the weights that these start from where no file has them."""
        missing = [task for task in tasks if task.stage == 1 and task.key not in done]
        used = {task.options["run"].start for task in missing}
        starts = [task for task in tasks if task.stage == 0 and task.options["run"].start in used]
        return [*(task for task in starts if not has_start(task.options["run"])), *missing]

    def prepare(self, tasks: Sequence[Task]) -> None:
        """Read molecules once: their graphs are made and warnings given once, not by every run."""
        if self.name == "molecules":
            runs = [task.options["run"] for task in tasks]
            for source, folder in dict.fromkeys((run.dataset.source, run.folder) for run in runs):
                load_graphs(source, folder)

    def check(self, record: Record) -> None:
        """Raise ValueError for a record that was made with another plan; ignore runs outside the plan."""
        kind, plan = record["kind"], self.experiment
        if kind == "run" and belongs(plan, record):
            dataset, candidate = plan.datasets[record["dataset"]], plan.candidates[record["method"]]
            wanted: Record = {
                "epochs": own_epochs(dataset, candidate),
                "regions": plan.regions,
                "settings": candidate.settings,
            }
            found = {**record, "settings": list(map(_setting, record["settings"]))}
            if "made" in record or candidate.recipe:  # a field newer than most runs
                wanted["made"] = made_of(plan, dataset, candidate)
            if "batch" in record:  # the first runs have neither
                wanted |= {"batch": batch_of(dataset), "options": candidate.options}
        elif kind == "ablation" and plan.ablation is not None and record["dataset"] in plan.ablation.datasets:
            wanted = {key: getattr(plan.ablation, key) for key in ("method", "region", "settings")}
            found = {**record, "settings": [curve["setting"] for curve in record["curves"]]}
        else:
            return
        _compare(self.plan["training"], record["plan"]["training"])
        _compare(json.loads(json.dumps(wanted)), found)

    def report(self, records: Sequence[Record], out: Path) -> Report:
        """Return the tables, paired tests and figures of the runs that are there."""
        return make_report(self.experiment, sort_records(self.experiment, records), out)


def load_paper_study(name: Kind) -> PaperStudy:
    """Return one of the paper's experiments by name."""
    plan, folder = load_experiment(name), f"experiments/{name}"
    return PaperStudy(name=name, title=plan.title, folder=folder, data=_DATA[name], seeds=plan.runs, experiment=plan)


def _setting(row: Record) -> Setting:
    return {key: value for key, value in row.items() if key not in ("merit", "error")}


def _compare(wanted: Record, found: Record) -> None:
    for name, value in wanted.items():
        if value != found.get(name):
            raise ValueError(f"must be made with {name} {value}, got {found.get(name)}")
