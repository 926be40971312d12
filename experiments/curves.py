"""Training curves of an ablation: mean and spread over runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.config import Experiment, Setting
from experiments.engine import Record

__all__ = ["Curve", "make_curves"]

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """TPAUC after each epoch with one setting, over the runs of a data set.

    Attributes:
        dataset: name of the data set.
        label: what sets this setting apart from the others.
        runs: number of runs.
        diverged: runs whose scores were no longer finite at the end; they count as long as they are.
        training: for each epoch mean and standard deviation of the TPAUC of the training rows, `(epochs, 2)`; the
            deviation is NaN for a single run.
        last: mean and standard deviation at the end, for "training", "validation" and "test".
    """

    dataset: str
    label: str
    runs: int
    diverged: int
    training: Numbers
    last: dict[str, tuple[float, float]]


def make_curves(plan: Experiment, records: Sequence[Record]) -> list[Curve]:
    """Return the curves of each data set and setting, in the order of the plan, where there are runs."""
    if plan.ablation is None:
        return []
    settings = plan.ablation.settings
    curves = []
    for dataset in plan.ablation.datasets:
        own = [record for record in records if record["dataset"] == dataset]
        for number in range(len(settings) if own else 0):
            entries = [record["curves"][number] for record in own]
            curves.append(_curve(dataset, label_of(settings[number], settings), entries))
    return curves


def _curve(dataset: str, label: str, entries: list[dict[str, Any]]) -> Curve:
    moments = {part: _moments([entry[part] for entry in entries]) for part in ("training", "validation", "test")}
    diverged = sum(entry["training"][-1] is None for entry in entries)
    last = {part: (float(values[-1, 0]), float(values[-1, 1])) for part, values in moments.items()}
    return Curve(dataset, label, len(entries), diverged, moments["training"], last)


def _moments(curves: list[list[float | None]]) -> Numbers:
    """Return mean and standard deviation for each epoch, of the runs whose scores are finite there."""
    values = np.array(curves, dtype=float)
    found = np.full((values.shape[1], 2), np.nan)
    for epoch, column in enumerate(values.T):
        finite = column[np.isfinite(column)]
        if len(finite):
            found[epoch, 0] = finite.mean()
        if len(finite) > 1:
            found[epoch, 1] = finite.std(ddof=1)
    return found


def label_of(setting: Setting, others: Sequence[Setting]) -> str:
    """Return what sets a setting apart from others, in words.

    Example:
        >>> settings = [{"gamma": 0.1, "share": 0.5}, {"gamma": "theory", "share": 0.5}]
        >>> [label_of(setting, settings) for setting in settings]
        ['gamma 0.1', 'gamma of the theory']
    """
    words = []
    for key, value in setting.items():
        if any(other.get(key) != value for other in others):
            number = f"{value:g}" if isinstance(value, float) else str(value)
            words.append(f"{key} of the theory" if value == "theory" else f"{key} {number}")
    return ", ".join(words)
