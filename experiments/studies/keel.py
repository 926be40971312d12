"""SONX, the baselines and boosted trees on the imbalanced tables of KEEL, under equal effort."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata, wilcoxon

from experiments.data.keel import KEEL_SETS, load_keel
from moreauc._files import written_whole
from moreauc.comparison import Comparison, Piece, Region, Table, contestants, network, run_pieces
from moreauc.methods import METHODS
from moreauc.report.pages import (
    Report,
    Section,
    rounded,
    to_json,
    versions,
)

ALL_METHODS = (*METHODS["rows"], "lightgbm", "xgboost")
REGIONS: tuple[Region, ...] = ((0.5, 0.5), (0.6, 0.4))
# A variant of SONX, tried after the table of the methods was seen and reported apart from it.
REMEDIES = {
    "sonx_half": network(
        "sonx",
        name="sonx_half",
        title="SONX, width 0.5 without tuning it",
        grid={"widen": (0.5,), "surrogate": ("squared_hinge", "logistic")},
        settings={"batch_size": 256},
    ),
}
_INNER_FOLDS = 2
_RECORD = ("region", "seed", "fold", "score", "inner_score", "options", "failures", "seconds")


@dataclass(frozen=True)
class KeelStudy:
    """Nested cross-validation on each table; see :class:`~moreauc.comparison.Comparison`.

    Each set and method leaves one JSON file, written when it is finished: a run that was stopped goes on from there,
    and machines may share the work. The tables are made from these files.

    Args:
        folder: where the data is; None for MOREAUC_DATA.
        sets: names of tables.
        methods: names of methods, remedies among them.
        seeds: repetitions with other folds.
        trials: options tried by each method.
        jobs: processes.
    """

    folder: Path | None = None
    sets: Sequence[str] = tuple(KEEL_SETS)
    methods: Sequence[str] = ALL_METHODS
    seeds: int = 5
    trials: int = 4
    jobs: int = 2

    def run(self, out: Path, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Do what is missing in the folder `out`."""
        plan = Comparison(
            [REMEDIES.get(name, name) for name in self.methods],
            REGIONS,
            inner_folds=_INNER_FOLDS,
            seeds=self.seeds,
            trials=self.trials,
            jobs=self.jobs,
            settings={"batch_size": 256},
        )
        work: list[tuple[Piece, str]] = []
        tables = {}
        for name in self.sets:
            X, y = load_keel(name, self.folder)
            tables[name] = Table(X, y)
            there = {
                t.contestant.name for t in plan.pieces() if _is_done(out / f"{name}-{t.contestant.name}.json", plan)
            }
            work += [(t, name) for t in plan.pieces() if t.contestant.name not in there]
        # long ones first, so that no process ends alone
        work.sort(key=lambda entry: (not entry[0].contestant.regional, -len(tables[entry[1]].positive)))
        waiting: dict[tuple[str, str], int] = {}
        for task, name in work:
            key = (name, task.contestant.name)
            waiting[key] = waiting.get(key, 0) + 1
        records: dict[tuple[str, str], list[dict[str, Any]]] = {key: [] for key in waiting}
        out.mkdir(parents=True, exist_ok=True)
        for done, (number, found) in enumerate(run_pieces(work, tables, plan, jobs=self.jobs), 1):
            task, name = work[number]
            key = (name, task.contestant.name)
            records[key] += found
            waiting[key] -= 1
            if not waiting[key]:
                _write(out / f"{name}-{key[1]}.json", name, key[1], plan, records[key])
            if progress is not None:
                progress(done, len(work))

    def report(self, out: Path) -> Report:
        """Make the tables from the files in `out`, and write `report.json` and the page beside them."""
        started = time.perf_counter()
        results = read_results(out)
        command = f"python -m experiments study keel --seeds {self.seeds} --trials {self.trials}"
        report = Report("SONX and others on the imbalanced tables of KEEL", command, summary(results))
        report.sections = _sections(report.results)
        report.seconds = time.perf_counter() - started
        report.write(out)
        return report


def _plan_of(plan: Comparison) -> dict[str, int]:
    return {name: getattr(plan, name) for name in ("folds", "inner_folds", "seeds", "trials")}


def _is_done(path: Path, plan: Comparison) -> bool:
    """Return whether a file is there; one of another plan is an error, not a result."""
    if not path.exists():
        return False
    there = json.loads(path.read_text(encoding="utf-8"))
    wanted = _plan_of(plan)
    if {name: there.get(name) for name in wanted} != wanted:
        raise ValueError(f"study keel: {path.name} must be of the plan {wanted}, or be removed; it is of another")
    return True


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return the files of a run as dictionaries, in the order of sets and methods."""
    order = {method: number for number, method in enumerate([*ALL_METHODS, *REMEDIES])}
    files = [path for path in sorted(folder.glob("*-*.json")) if path.name != "report.json"]
    if not files:
        raise ValueError(
            f"python -m experiments study keel: the folder must have results of a run, got {str(folder)!r}"
        )
    found = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    for path, entry in zip(files, found, strict=True):
        if entry.get("set") not in KEEL_SETS or entry.get("method") not in order:
            raise ValueError(
                f"python -m experiments study keel: the folder must have nothing but results, got {path.name}"
            )
    return sorted(found, key=lambda entry: (list(KEEL_SETS).index(entry["set"]), order[entry["method"]]))


def summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and deviation of every cell, ranks, how SONX stands against each other method, and the remedies."""
    tried = [entry for entry in results if entry["method"] in REMEDIES]
    results = [entry for entry in results if entry["method"] not in REMEDIES]
    titles = {contestant.name: contestant.title for contestant in contestants(list(METHODS["rows"]))}
    titles |= {"lightgbm": "LightGBM", "xgboost": "XGBoost"}
    methods = list(dict.fromkeys(entry["method"] for entry in results))
    names = list(dict.fromkeys(entry["set"] for entry in results))
    whole = [name for name in names if sum(entry["set"] == name for entry in results) == len(methods)]
    cells, sonx = [], {}
    for region in REGIONS:
        for name in whole:  # ranks among fewer methods cannot be compared
            scores = {}
            for entry in results:
                if entry["set"] == name:
                    own = [r for r in entry["records"] if tuple(r["region"]) == region]
                    own.sort(key=lambda record: (record["seed"], record["fold"]))
                    scores[entry["method"]] = np.array([record["score"] for record in own])
            ranks = rankdata([-scores[method].mean() for method in methods])
            for method, rank in zip(methods, ranks, strict=True):
                values = scores[method]
                # the spread over seeds of the mean over folds, and over all folds
                by_seed = values.reshape(-1, 5).mean(axis=1)
                cell = {"region": region, "set": name, "method": method, "title": titles[method], "rank": float(rank)}
                cell |= {"mean": float(values.mean()), "std": float(values.std(ddof=1)), "folds": len(values)}
                cells.append(cell | {"std_of_seeds": float(by_seed.std(ddof=1)) if len(by_seed) > 1 else 0.0})
            sonx[region, name] = scores
    if not cells:
        raise ValueError(
            "python -m experiments study keel: at least one table must have results of all methods, got none"
        )
    ranks_of = {
        method: {
            "title": titles[method],
            **{str(region): _mean_rank(cells, method, region) for region in REGIONS},
            "all": float(np.mean([cell["rank"] for cell in cells if cell["method"] == method])),
            "mean": float(np.mean([cell["mean"] for cell in cells if cell["method"] == method])),
        }
        for method in methods
    }
    return {
        "methods": methods,
        "left_out": [name for name in names if name not in whole],
        "plans": sorted(
            {json.dumps({k: e.get(k) for k in ("seeds", "folds", "inner_folds", "trials")}) for e in results}
        ),
        "cells": cells,
        "ranks": [{"method": method, **entry} for method, entry in ranks_of.items()],
        "sonx_against": [_against(sonx, m, titles[m]) for m in methods if m != "sonx" and "sonx" in methods],
        "remedies": _remedies(tried, cells),
        "seconds_of_work": sum(record["seconds"] for entry in results for record in entry["records"]),
        "made_with": sorted({json.dumps(entry["versions"], sort_keys=True) for entry in results}),
    }


def _remedies(tried: Sequence[dict[str, Any]], cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean and deviation of the variants, beside SONX and the best method of the table."""
    rows = []
    for entry in tried:
        for region in REGIONS:
            scores = [record["score"] for record in entry["records"] if tuple(record["region"]) == region]
            there = [cell for cell in cells if cell["set"] == entry["set"] and tuple(cell["region"]) == region]
            best = max(there, key=lambda cell: cell["mean"])
            row = {"set": entry["set"], "region": region, "title": REMEDIES[entry["method"]].title}
            row |= {"mean": float(np.mean(scores)), "std": float(np.std(scores, ddof=1))}
            row |= {"sonx": next(cell["mean"] for cell in there if cell["method"] == "sonx")}
            rows.append(row | {"best": best["mean"], "best_title": best["title"]})
    return rows


def _mean_rank(cells: Sequence[dict[str, Any]], method: str, region: Region) -> float:
    return float(np.mean([c["rank"] for c in cells if c["method"] == method and tuple(c["region"]) == region]))


def _against(scores: dict[Any, dict[str, Any]], method: str, title: str) -> dict[str, Any]:
    """Compare SONX with another method over the cells: means per cell, and a signed-rank test over them."""
    pairs = [(s["sonx"].mean(), s[method].mean()) for s in scores.values() if "sonx" in s and method in s]
    differences = np.array([a - b for a, b in pairs])
    better = int((differences > 0.0005).sum())
    worse = int((differences < -0.0005).sum())
    p = float(wilcoxon(differences).pvalue) if np.abs(differences).max(initial=0.0) > 0 else 1.0
    return {
        "method": method,
        "title": title,
        "better": better,
        "equal": len(pairs) - better - worse,
        "worse": worse,
        "mean_difference": float(differences.mean()),
        "p_of_signed_ranks": p,
    }


def _write(path: Path, name: str, method: str, plan: Comparison, records: list[dict[str, Any]]) -> None:
    kept = [{field: record[field] for field in _RECORD} for record in records]
    kept.sort(key=lambda record: (record["region"], record["seed"], record["fold"]))
    content = {
        "set": name,
        "method": method,
        **_plan_of(plan),
        "ties": "curve",
        "versions": versions(),
        "records": rounded(kept),
    }
    with written_whole(path) as part:
        part.write_text(to_json(content), encoding="utf-8")


def _sections(results: dict[str, Any]) -> list[Section]:
    sections = []
    titles = {entry["method"]: entry["title"] for entry in results["ranks"]}
    for region in REGIONS:
        cells = [cell for cell in results["cells"] if tuple(cell["region"]) == region]
        sets = list(dict.fromkeys(cell["set"] for cell in cells))
        rows = []
        for method in results["methods"]:
            row = [titles[method]]
            for name in sets:
                cell = next((c for c in cells if c["set"] == name and c["method"] == method), None)
                row.append("" if cell is None else f"{cell['mean']:.3f} ± {cell['std']:.3f}")
            rows.append([*row, f"{_mean_rank(cells, method, region):.2f}"])
        heading = f"TPAUC, TPR ≥ {region[0]:g}, FPR ≤ {region[1]:g}"
        text = ["Mean ± standard deviation over seeds and folds; rank is the mean over the tables."]
        sections.append(Section(heading, text, columns=["method", *sets, "rank"], rows=rows, labels=1))
    rows = [
        [
            entry["title"],
            *(str(entry[key]) for key in ("better", "equal", "worse")),
            f"{entry['mean_difference']:+.4f}",
            f"{entry['p_of_signed_ranks']:.3f}",
        ]
        for entry in results["sonx_against"]
    ]
    if not rows:
        return sections
    columns = ["SONX against", "better", "equal", "worse", "mean difference", "p (signed ranks)"]
    text = ["Cells are pairs of table and region; equal means a difference of the means of at most 0.0005."]
    sections.append(Section("SONX against each", text, columns=columns, rows=rows, labels=1))
    if results["remedies"]:
        rows = [
            [
                f"{row['set']}, {row['region'][0]:g}, {row['region'][1]:g}",
                row["title"],
                f"{row['mean']:.3f} ± {row['std']:.3f}",
                f"{row['sonx']:.3f}",
                f"{row['best']:.3f} ({row['best_title']})",
            ]
            for row in results["remedies"]
        ]
        text = ["Variants of SONX that were tried after the tables above were seen."]
        columns = ["table, region", "variant", "TPAUC", "SONX", "best of the table"]
        sections.append(Section("Remedies", text, columns=columns, rows=rows, labels=2))
    return sections
