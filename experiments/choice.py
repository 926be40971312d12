"""What validation chooses of all settings and epochs of a method."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.config import Contestant, Experiment
from experiments.trial import Curves

__all__ = ["SMOOTHED", "choose", "of_the_paper", "rounded", "summary"]

SMOOTHED = 5  # epochs whose mean is judged for the choice that is reported beside the plain one


def choose(curves: Curves, contestant: Contestant, column: int, *, epochs: int = 1) -> dict[str, Any]:
    """Return the setting and the epoch that are best in validation, and their scores.

    Of equal scores the higher AUC is chosen, then the first setting and its earliest epoch; where the AUC was not kept,
    in the first runs, the first setting and its latest epoch. Where every setting diverged before its first score all
    entries are None.

    Args:
        curves: scores of all settings after each epoch.
        contestant: the method.
        column: number of the region.
        epochs: epochs whose mean is judged, each with those before it: with few positives the best of hundreds of
            single epochs is often a lucky one. Where no setting lasted so long, as many as one did.
    """
    merit = curves.merit[:, :, column]
    for width in range(min(epochs, merit.shape[1]), 0, -1):
        means = _means(merit, width)
        if np.isfinite(means).any():
            if curves.auc is None:
                best = int(np.argmax(means.max(axis=1)))
                epoch = int(np.flatnonzero(means[best] == means[best].max())[-1])
            else:
                auc = np.where(means == means.max(), _means(curves.auc, width), -math.inf)
                best, epoch = (int(place) for place in np.unravel_index(np.argmax(auc), auc.shape))
            epoch += width - 1
            return {
                "setting": contestant.settings[best],
                "epoch": epoch + 1,
                "validation": rounded(curves.validation[best, epoch, column]),
                "test": rounded(curves.test[best, epoch, column]),
                "last": rounded(curves.test[best, -1, column]),
            }
    return dict.fromkeys(("setting", "epoch", "validation", "test", "last"))


def of_the_paper(plan: Experiment, curves: Curves, contestant: Contestant) -> tuple[Curves, Contestant]:
    """Return scores and settings of a method, only those that the paper's grid has, too."""
    kept = [number for number, setting in enumerate(contestant.settings) if plan.in_paper(setting)]
    auc = None if curves.auc is None else curves.auc[kept]
    scores = Curves(curves.merit[kept], curves.validation[kept], curves.test[kept], auc)
    return scores, replace(contestant, settings=tuple(contestant.settings[number] for number in kept))


def _means(merit: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        means: NDArray[np.float64] = np.lib.stride_tricks.sliding_window_view(merit, width, axis=1).mean(axis=2)
    return means


def summary(curves: Curves, contestant: Contestant) -> list[dict[str, Any]]:
    """Return for each setting its best validation score in each region, and why it diverged, if it did."""
    rows = []
    for setting, merit, error in zip(contestant.settings, curves.merit, curves.errors, strict=True):
        row: dict[str, Any] = {**setting, "merit": [rounded(value) for value in merit.max(axis=0)]}
        if error is None and not np.isfinite(merit).any():  # the last step of the first epoch may do this
            error = "scores of the validation rows must be finite, got none that are"
        rows.append(row if error is None else {**row, "error": error})
    return rows


def rounded(value: float) -> float | None:
    """Return a score as it stands in files: six digits; None where it is no number.

    Example:
        >>> rounded(0.12345678), rounded(float("nan"))
        (0.123457, None)
    """
    return round(float(value), 6) if np.isfinite(value) else None
