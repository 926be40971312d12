"""What studies share: splits, tuning and testing, and how numbers are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from experiments.engine import Record


def split_rows(strata: NDArray[np.int64], seed: int) -> list[NDArray[np.int64]]:
    """Return the rows of training, validation and test, 60 : 20 : 20 in each stratum."""
    rest, test = train_test_split(np.arange(len(strata)), test_size=0.2, stratify=strata, random_state=seed)
    train, validation = train_test_split(rest, test_size=0.25, stratify=strata[rest], random_state=seed)
    return [train, validation, test]


def tune(
    settings: Sequence[Record], train: Callable[[Record], tuple[Any, Record]], key: str, what: str
) -> tuple[Any, Record]:
    """Train by every setting; return the best model in validation, and the entries of the choice for a record.

    Args:
        settings: what is tried.
        train: returns a model, None where it diverged, and its validation scores.
        key: the validation score to compare; higher is better.
        what: what is tuned, for the error.

    Raises:
        ValueError: if every setting diverged.
    """
    tried: list[Record] = []
    best: tuple[Any, Record, Record] | None = None
    for setting in settings:
        model, found = train(setting)
        tried.append({**setting, **found})
        if model is not None and (best is None or found[key] > best[2][key]):
            best = model, setting, found
    if best is None:
        raise ValueError(f"{what}: every setting diverged")
    model, setting, found = best
    return model, {"validation": found["validation"], "setting": setting, "tried": tried}


def mean_and_std(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and, with n - 1 below, the standard deviation; None for that of one value."""
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else None}


def show(cell: Record) -> str:
    """Format a mean and its standard deviation, where there is one."""
    return f"{cell['mean']:.3f}" if cell["std"] is None else f"{cell['mean']:.3f} ± {cell['std']:.3f}"
