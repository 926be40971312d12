"""Which of its models `TPAUCAuto` should use: rules compared on the tables that defaults are chosen on.

`PYTHONPATH=. python benchmarks/auto_choice.py --out benchmarks/reports/auto_choice.json`, with data in MOREAUC_DATA.
For each table and region of `experiments/plans/defaults.toml` the linear model, the forest, the boosted trees and the
network are trained on three quarters of the training rows and scored on the others, as `TPAUCAuto` does, then trained
on all training rows and scored on the test rows, alone and averaged. Each rule picks by the held-out scores; reported
is its TPAUC on the test rows. The report is written after each table, so that a run that is stopped is not lost.
"""

from __future__ import annotations

import argparse
import json
import time
import tomllib
import warnings
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from experiments.studies.defaults import split_table
from moreauc._registry import MODELS
from moreauc.estimators.auto import KINDS
from moreauc.metrics import tpauc_score
from moreauc.metrics.bootstrap import tpauc_difference
from moreauc.tasks.rows import RowTask

PLAN = Path(__file__).parent.parent / "experiments" / "plans" / "defaults.toml"
NAMES = KINDS
SETS = ["+".join(some) for size in range(1, len(NAMES) + 1) for some in combinations(NAMES, size)]
Cell = dict[str, Any]


def mean_odds(odds: Mapping[str, Any], some: str) -> Any:
    return np.mean([odds[name] for name in some.split("+")], axis=0)


def try_models(table: Any, region: Mapping[str, Any], seed: int) -> Cell | None:
    """Return TPAUC of all sets of models on held-out and on test rows; None where no rows can be held out."""
    rows, test = table.split_rows(0, 0, 0)
    labels = table.positive.astype(int)
    task = RowTask(loss="sonx", loss_options={}, batch_size=2, **region)
    own, held = task.hold_out(labels[rows], 0.25, np.random.RandomState(seed))
    if not len(held):
        return None
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for name in NAMES:
        began = time.process_time()
        for part, others, odds in ((rows[own], rows[held], before), (rows, test, after)):
            model = MODELS[name].maker(**region, positive_label=1, random_state=seed)
            odds[name] = model.fit(table.take(part), labels[part]).log_odds(table.take(others))
        seconds[name] = time.process_time() - began
    known = labels[rows[held]]
    best = {some: tpauc_score(known, mean_odds(before, some), **region) for some in SETS}
    first = max(NAMES, key=best.__getitem__)
    errors = {name: tpauc_difference(known, before[first], before[name], **region)[1] for name in NAMES}
    reached = {some: tpauc_score(labels[test], mean_odds(after, some), **region) for some in SETS}
    return {"held_out": best, "errors": errors, "test": reached, "seconds": seconds}


def within(errors: float) -> Callable[[Cell], str]:
    def rule(cell: Cell) -> str:
        held, first = cell["held_out"], max(NAMES, key=cell["held_out"].__getitem__)
        some = [name for name in NAMES if name == first or held[first] - held[name] <= errors * cell["errors"][name]]
        return "+".join(some)

    return rule


RULES: dict[str, Callable[[Cell], str]] = {
    "the best one": lambda cell: max(NAMES, key=cell["held_out"].__getitem__),
    "the best mean": lambda cell: max(SETS, key=cell["held_out"].__getitem__),
    "mean of those within 1 standard error": within(1.0),
    "mean of those within 2 standard errors": within(2.0),
    **{f"always {some}": lambda cell, some=some: some for some in SETS},  # type: ignore[misc]
}


def summary(cells: list[Cell]) -> list[dict[str, Any]]:
    """Return for each rule its mean TPAUC, and how often it is above and below the network."""
    rows = []
    for title, rule in RULES.items():
        gains = [cell["test"][rule(cell)] - cell["test"]["mlp"] for cell in cells]
        mean = fmean(cell["test"][rule(cell)] for cell in cells)
        rows.append(
            {
                "rule": title,
                "tpauc": round(mean, 4),
                "above_mlp": sum(gain > 1e-9 for gain in gains),
                "below_mlp": sum(gain < -1e-9 for gain in gains),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare rules by which TPAUCAuto could use its models.")
    parser.add_argument("--out", type=Path, required=True, help="file of the report")
    parser.add_argument("--seed", type=int, default=0, help="of split and training")
    parser.add_argument("--tables", help="names with commas; by default those that defaults are chosen on")
    options = parser.parse_args()
    plan = tomllib.loads(PLAN.read_text(encoding="utf-8"))
    cells: list[Cell] = []
    warnings.simplefilter("ignore")
    for name in options.tables.split(",") if options.tables else plan["parts"]["choose"]:
        table = split_table(name, options.seed, plan["test_fraction"], plan["most_rows"], None)
        for low, high in plan["regions"]:
            with threadpool_limits(1):
                cell = try_models(table, {"min_tpr": low, "max_fpr": high}, options.seed)
            if cell is not None:
                cells.append({"table": name, "region": [low, high], **cell})
        report = {"title": "rules of TPAUCAuto", "seed": options.seed, "rules": summary(cells), "cells": cells}
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(name, *summary(cells)[:4], sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
