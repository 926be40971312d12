"""Ranks of the methods over the paper's data sets, and the test positives needed for a significant difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from experiments.config import Experiment

__all__ = ["difference_table", "rank_table"]

Cell = Mapping[str, Any]
Found = Sequence[tuple[Experiment, Sequence[Cell]]]  # experiments and the cells of their reports

OURS = "SONX, SONT"
SETS = ("moltox21", "molmuv", "molhiv", "musk2", "fox", "colon", "lung", "example")
_TITLES = {
    **{"sonx": OURS, "sont": OURS, "ce": "CE", "auc_sh": "AUC-SH", "auc_m": "AUC-M", "mb": "MB", "aw_poly": "AW-poly"},
    **{"sota_s": "SOTA-s", "midam": "MIDAM (att)", "midam_smx": "MIDAM (smx)"},
}
_REGION = [0.5, 0.5]  # which all experiments have
_LEVEL = 1.96  # standard errors of a significant difference


def rank_table(found: Found, *, recipe: bool) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: each method's mean rank over the regions of each data set, and over the data sets.

    Ranks are those of mean test scores among the methods by the paper's protocol, or among those by the recipe; equal
    means share the mean rank. The last column ranks only the methods that all data sets have.
    """
    means = _means(found, recipe=recipe)
    everywhere = [name for name in _names(means) if all(name in row for rows in means.values() for row in rows)]
    ranks = {name: [_ranks(row) for row in rows] for name, rows in means.items()}
    few = {name: [_ranks({key: row[key] for key in everywhere}) for row in rows] for name, rows in means.items()}
    lines = []
    for name in _names(means):
        own = [float(np.mean([row[name] for row in rows])) for rows in ranks.values() if name in rows[0]]
        cells = [f"{np.mean([row[name] for row in rows]):.1f}" if name in rows[0] else "" for rows in ranks.values()]
        last = ""
        if name in everywhere:
            last = f"{np.mean([np.mean([row[name] for row in rows]) for rows in few.values()]):.2f}"
        lines.append((float(np.mean(own)), [name, *cells, f"{np.mean(own):.2f}", last]))
    lines.sort(key=lambda line: (line[0], line[1]))
    columns = ["method", *means, "mean rank", f"among {len(everywhere)}"]
    return columns, [row for _, row in lines]


def difference_table(found: Found) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: our method minus the best other one by the recipe, in the region (0.5, 0.5).

    The spread is that of the difference over seeds, folds or splits. The standard error is that of one training over
    test rows: both methods share a start, and their differences to it are taken as independent. It falls with the root
    of the number of positives, the rarer class, which gives the number needed for a significant difference.
    """
    rows = []
    for plan, cells in found:
        for dataset, own in _by_dataset(plan, cells, recipe=True).items():
            here = {_title(cell): cell for cell in own if list(cell["region"]) == _REGION}
            if OURS not in here or len(here) < 2:
                continue
            ours = here.pop(OURS)
            other = max(here.values(), key=lambda cell: float(cell["mean"]))
            difference = ours["mean"] - other["mean"]
            pairs = np.subtract(ours["values"], other["values"]) if ours["number"] == other["number"] else np.zeros(0)
            spread = f"{pairs.std(ddof=1):.3f}" if len(pairs) > 1 else ""
            error = math.hypot(ours["error"], other["error"])
            positives = ours["positives"]
            needed = f"{positives * (_LEVEL * error / difference) ** 2:,.0f}" if abs(difference) > 1e-9 else "equal"
            scores = [f"{cell['mean']:.3f}" for cell in (ours, other)]
            titles = plan.datasets[dataset].title, _title(other)
            numbers = [f"{difference:+.3f}", spread, f"{error:.3f}", f"{positives:.0f}", needed]
            rows.append([titles[0], scores[0], titles[1], scores[1], *numbers])
    columns = ["data set", OURS, "best other", "its mean", "difference", "spread", "standard error"]
    return [*columns, "test positives", "positives needed"], rows


def _title(cell: Cell) -> str:
    name = str(cell["method"]).removesuffix("_recipe").removesuffix("_att")
    return _TITLES.get(name, name)


def _by_dataset(plan: Experiment, cells: Sequence[Cell], *, recipe: bool) -> dict[str, list[Cell]]:
    """Return the cells of each data set that is ranked: over all test splits where there are several."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        entry, dataset = plan.candidates[cell["method"]], plan.datasets[cell["dataset"]]
        wanted = "splits" if dataset.splits > 1 else "runs"
        shown = dataset.name in SETS and cell["choice"] == "chosen" and cell["protocol"] == wanted and cell["number"]
        if shown and entry.recipe == recipe and not entry.remedy:
            found.setdefault(dataset.name, []).append(cell)
    return {name: found[name] for name in plan.datasets if name in found}


def _means(found: Found, *, recipe: bool) -> dict[str, list[dict[str, float]]]:
    """Return for each data set, by title, and each of its regions the mean of each method."""
    means: dict[str, list[dict[str, float]]] = {}
    for plan, cells in found:
        for dataset, own in _by_dataset(plan, cells, recipe=recipe).items():
            rows = [
                {_title(cell): float(cell["mean"]) for cell in own if tuple(cell["region"]) == region}
                for region in plan.regions
            ]
            means[plan.datasets[dataset].title] = [row for row in rows if row]
    return means


def _names(means: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    return list(dict.fromkeys(name for rows in means.values() for row in rows for name in row))


def _ranks(row: Mapping[str, float]) -> dict[str, float]:
    ranks = rankdata([-round(mean, 6) for mean in row.values()])
    return dict(zip(row, map(float, ranks), strict=True))
