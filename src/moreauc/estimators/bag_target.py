"""The classes of bags, given or their own: checked, and two of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import column_or_1d

from moreauc.data._normal_form import check_apart
from moreauc.data.bags import Bags

Array = NDArray[Any]


def classes_of(owner: str, bags: Any, y: ArrayLike | None, count: int) -> Array:
    """Return the classes of bags, their own labels where none are given.

    Args:
        owner: who is called, for errors.
        bags: the bags, as they came.
        y: their classes; None for the labels of :class:`~moreauc.data.Bags`.
        count: how many bags there are.

    Raises:
        ValueError: for no classes at all, and for another number of them.
    """
    if y is None:
        if not isinstance(bags, Bags):
            raise ValueError(f"{owner}: y must be given, unless bags are Bags with labels, got None")
        y = bags.labels.numpy()
    values: Array = column_or_1d(y, warn=True)
    if len(values) != count:
        raise ValueError(f"{owner}: y must have a class for each of {count} bags, got {len(values)}")
    return values


def two_classes(owner: str, values: Array) -> Array:
    """Return the two classes among the values, sorted; missing values and any other number of classes are refused."""
    check_apart(owner, "y", values)
    missing = int(pd.isna(values).sum())
    if missing:
        raise ValueError(f"{owner}: y must have no missing values, got {missing}")
    try:
        classes: Array = np.unique(values)
    except TypeError as error:
        kinds = sorted({type(value).__name__ for value in values})
        raise ValueError(f"{owner}: y must hold classes that can be sorted, got {' and '.join(kinds)}") from error
    if len(classes) != 2:
        found = f"one class, {classes.tolist()}" if len(classes) == 1 else f"{len(classes)} classes"
        raise ValueError(f"{owner}: y must hold two classes, got {found}")
    return classes
