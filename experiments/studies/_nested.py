"""One fold of nested cross-validation on a table, as the studies of tables run it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.engine import Record
from moreauc.comparison import Comparison, Contestant, Piece, Region, Table

__all__ = ["FOLDS", "INNER_FOLDS", "Region", "Table", "mean_and_std", "show", "tune_and_score"]

INNER_FOLDS, FOLDS = 2, 5
_KEPT = ("region", "score", "inner_score", "options", "failures", "seconds")


def tune_and_score(
    contestant: Contestant, table: Table, regions: Sequence[Region], *, seed: int, fold: int, trials: int
) -> list[Record]:
    """Tune a method on the training rows of a fold and test what was chosen; one entry for each region."""
    plan = Comparison([contestant], regions, folds=FOLDS, inner_folds=INNER_FOLDS, trials=trials)
    together = [(region,) for region in regions] if contestant.regional else [tuple(regions)]
    found = [e for group in together for e in Piece(contestant, group, seed, fold).tune_and_test(table, plan)]
    return [{name: entry[name] for name in _KEPT} for entry in found]


def mean_and_std(values: Sequence[float]) -> dict[str, Any]:
    """Return the mean and, with n - 1 below, the standard deviation; None for that of one value."""
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else None}


def show(cell: Record) -> str:
    """Format a mean and its standard deviation, where there is one."""
    return f"{cell['mean']:.3f}" if cell["std"] is None else f"{cell['mean']:.3f} ± {cell['std']:.3f}"
