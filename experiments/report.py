"""The report of an experiment, made of the files of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments import sections
from experiments.config import Experiment
from experiments.engine import Record
from experiments.files import save_figure
from experiments.tables import Cell, Choice, Curve, Protocol, Records, Table, make_curves, make_table
from moreauc.app.report.pages import COLORS, Report, Section

__all__ = ["make_report"]

_TESTED: tuple[Choice, ...] = ("chosen", "chosen_paper")  # tables with paired tests


def make_report(plan: Experiment, records: Records, out: Path) -> Report:
    """Draw the figures of an experiment into `out` and return its report."""
    tables = _tables(plan, records)
    curves = make_curves(plan, records.curves)
    results = _results(plan, records, tables, curves)
    page = _page(plan, records, tables, curves, out)
    return Report(plan.title, "", results, [*sections.recipes(plan, results["cells"]), *page])


def _tables(plan: Experiment, records: Records) -> list[Table]:
    """Return the tables of one test split and of all, for each rule of choice."""
    protocols: list[Protocol] = ["runs"]
    if any(entry.splits > 1 for entry in plan.datasets.values()):
        protocols.append("splits")
    choices: list[Choice] = ["chosen", "chosen_paper", "chosen_smoothed"]
    tables = [make_table(plan, records.runs, protocol, choice) for choice in choices for protocol in protocols]
    return [table for table in tables if table.choice == "chosen" or any(cell.values for cell in table.cells.values())]


def _page(plan: Experiment, records: Records, tables: list[Table], curves: list[Curve], out: Path) -> list[Section]:
    parts = []
    for table in tables:
        for dataset in table.datasets:
            if table.choice == "chosen" or table.has_runs(dataset.name):
                parts.append(sections.results(table, dataset))
            if table.choice in _TESTED:
                parts += sections.paired(table, dataset)
    if curves:
        save_figure(draw_curves(plan, curves), out / "gamma.png")
        parts.append(sections.gamma(plan, curves, "gamma.png"))
    ends = [sections.counts(plan, records.runs), sections.diverged(plan, records.runs), sections.where(plan, records)]
    return [*parts, *ends]


def _results(plan: Experiment, records: Records, tables: list[Table], curves: list[Curve]) -> Record:
    return {
        "experiment": plan.name,
        "regions": plan.regions,
        "training": asdict(plan.training),
        "runs": len(records.runs),
        "cells": [
            {
                "protocol": table.protocol,
                "choice": table.choice,
                "dataset": dataset,
                "method": method,
                "region": plan.regions[column],
                **_cell(cell),
            }
            for table in tables
            for (dataset, method, column), cell in table.cells.items()
            if cell.there or cell.published is not None
        ],
        "starts": [
            {
                "protocol": table.protocol,
                "dataset": dataset,
                "region": plan.regions[column],
                **({"recipe": True} if recipe else {}),
                **_cell(cell),
            }
            for table in tables
            if table.choice == "chosen"  # the start is the same for either choice
            for (dataset, column, recipe), cell in table.starts.items()
        ],
        "tests": [entry for table in tables if table.choice in _TESTED for entry in _tests(table)],
        "curves": [
            {**asdict(curve), "training": curve.training[:, 0].tolist(), "spread": curve.training[:, 1].tolist()}
            for curve in curves
        ],
        "chosen": _chosen(records),
    }


def _cell(cell: Cell) -> Record:
    return {
        "mean": cell.mean,
        "std": cell.std,
        "number": len(cell.values),
        "planned": cell.planned,
        "failed": cell.failed,
        "published": cell.published,
        "wins": cell.wins,
        "values": list(cell.values.values()),
        **({} if cell.error is None else {name: getattr(cell, name) for name in ("error", "positives", "plain")}),
    }


def _tests(table: Table) -> list[Record]:
    found = []
    for dataset, column in product(table.datasets, range(len(table.plan.regions))):
        for ours in [*table.literal, *table.recipes]:
            for other in table.baselines(ours):
                test = table.test(ours, other, dataset.name, column)
                place = {"protocol": table.protocol, "choice": table.choice, "dataset": dataset.name}
                if test.number:
                    region = table.plan.regions[column]
                    found.append({**place, "region": region, "ours": ours, "baseline": other, **asdict(test)})
    return found


def _chosen(records: Records) -> list[Record]:
    """Return the chosen setting and epoch of each run."""
    return [
        {
            **{key: record[key] for key in ("dataset", "method", "split", "run")},
            "settings": [entry["setting"] for entry in record["chosen"]],
            "epochs": [entry["epoch"] for entry in record["chosen"]],
        }
        for record in records.runs
    ]


def draw_curves(plan: Experiment, curves: Sequence[Curve]) -> Figure:
    """Draw the TPAUC of the training rows against epochs, mean and standard deviation; a panel for each data set."""
    datasets = list(dict.fromkeys(curve.dataset for curve in curves))
    figure = Figure(figsize=(1.0 + 5.2 * len(datasets), 4.2), layout="constrained")
    grid = figure.subplots(1, len(datasets), squeeze=False)[0]
    for axes, dataset in zip(grid, datasets, strict=True):
        for number, curve in enumerate(curve for curve in curves if curve.dataset == dataset):
            epochs, (mean, spread) = np.arange(1, len(curve.training) + 1), curve.training.T
            label = curve.label + (f" ({curve.diverged} of {curve.runs} diverged)" if curve.diverged else "")
            color, marker = COLORS[number % len(COLORS)], "o" if len(epochs) == 1 else None
            axes.plot(epochs, mean, linewidth=1.8, label=label, color=color, marker=marker)
            axes.fill_between(epochs, mean - spread, mean + spread, color=color, alpha=0.12, linewidth=0)
        axes.set(xlabel="epoch", title=plan.datasets[dataset].title)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=9)
    if plan.ablation is not None:
        low, high = plan.ablation.region
        grid[0].set_ylabel(f"training TPAUC, TPR ≥ {low:g}, FPR ≤ {high:g}")
    return figure
