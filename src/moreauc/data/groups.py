"""Groups as users name them: a label of each row becomes the number of its group; a hold-out with rows of each."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from numbers import Integral

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from moreauc._checks import floor_count
from moreauc.data.duplicates import Codes, any_equal
from moreauc.data.tables import as_frame
from moreauc.data.texts import label_text, normal_text

Array = NDArray[np.generic]
Random = np.random.RandomState | np.random.Generator


def name_groups(owner: str, groups: object, length: int) -> tuple[Array, Codes]:
    """Return the names of the groups, sorted where they can be, and the number of each row's group.

    `groups` has one label for each of `length` rows, anything that can be a key; or several columns, whose values are
    combined. Texts are compared in normal form: "F" and "F " are one group.

    Example:
        >>> name_groups("doctest", ["b", "a", "b"], 3)
        (array(['a', 'b'], dtype=object), array([1, 0, 1]))
        >>> name_groups("doctest", [("b", 1), ("a", 2)], 2)[0].tolist()
        ['a, 2', 'b, 1']
    """
    labels = _as_labels(owner, groups)
    if len(labels) != length:
        raise ValueError(f"{owner}: groups must have as many rows as X, {length}, got {len(labels)}")
    missing = labels.isna()
    places = np.flatnonzero(missing if missing.ndim == 1 else missing.any(axis=1))
    if len(places):
        raise ValueError(
            f"{owner}: groups must have no missing values, got {len(places)}, the first in row {places[0]} (from 0)"
        )
    codes: Array
    labels = labels.map(lambda value: normal_text(value) if isinstance(value, str) else value)
    if isinstance(labels, pd.DataFrame):
        codes, tuples = pd.MultiIndex.from_frame(labels).factorize()
        values = [", ".join(map(label_text, entry)) for entry in tuples]
        _check_texts(owner, values)
    else:
        try:
            codes, found = pd.factorize(labels)
        except TypeError as error:
            raise ValueError(f"{owner}: groups must be labels that can be keys, got {error}") from error
        values = list(found)
        _check_texts(owner, list(map(label_text, values)))
    order = _sorted(values)
    number = np.empty(len(values), dtype=np.int64)
    number[order] = np.arange(len(values))
    names = np.empty(len(values), dtype=object)
    names[:] = [values[place] for place in order]
    return names, number[codes]


def _check_texts(owner: str, texts: list[str]) -> None:
    if len(set(texts)) < len(texts):
        double = next(text for text in texts if texts.count(text) > 1)
        raise ValueError(f"{owner}: groups must have names that differ, got {double!r} for two")


def _as_labels(owner: str, groups: object) -> pd.Series | pd.DataFrame:
    """Return one column, or several; the index is that of the rows."""
    if isinstance(groups, Tensor):
        groups = groups.detach().cpu().numpy()
    if hasattr(groups, "columns"):
        groups = as_frame(owner, groups, name="groups")
    if isinstance(groups, list | tuple) and groups and isinstance(groups[0], list | tuple):
        groups = pd.DataFrame(list(groups))
    if isinstance(groups, pd.Series | pd.Index | list | tuple):
        return pd.Series(groups).reset_index(drop=True)
    array = groups if isinstance(groups, pd.DataFrame) else np.asarray(groups)
    if array.ndim not in (1, 2):
        raise ValueError(f"{owner}: groups must have shape (n,) or (n, columns), got {array.shape}")
    if array.ndim == 1:
        return pd.Series(array)
    table = pd.DataFrame(array).reset_index(drop=True)
    if not table.shape[1]:
        raise ValueError(f"{owner}: groups must have at least one column, got none")
    return table.iloc[:, 0] if table.shape[1] == 1 else table


def _sorted(values: Sequence[Hashable]) -> list[int]:
    """Return the order of labels: their own where they have one, else that of their texts."""
    try:
        return sorted(range(len(values)), key=values.__getitem__)  # type: ignore[arg-type]  # an error where they have none
    except TypeError:
        return sorted(range(len(values)), key=lambda place: (type(values[place]).__name__, str(values[place])))


def count_worst(owner: str, top_k: object, num_groups: int) -> int:
    """Return how many groups `top_k` is; a share of them is rounded down, and is at least one.

    Example:
        >>> count_worst("doctest", 3, 10), count_worst("doctest", 0.35, 10), count_worst("doctest", 0.01, 10)
        (3, 3, 1)
    """
    if isinstance(top_k, float | np.floating) and 0.0 < top_k < 1.0:
        return max(floor_count(num_groups, float(top_k)), 1)
    number = 0 if isinstance(top_k, bool) or not isinstance(top_k, Integral) else int(top_k)
    if number < 1:
        raise ValueError(f"{owner}: top_k must be an integer of at least 1, or a share in (0, 1), got {top_k!r}")
    if number > num_groups:
        raise ValueError(
            f"{owner}: top_k must be at most the number of groups, {num_groups}, or a share in (0, 1), got {top_k}"
        )
    return number


def hold_out(
    groups: Codes, targets: Array, share: float, random: Random, *, classes: bool = False, same: Codes | None = None
) -> tuple[Codes, Codes]:
    """Return row numbers of what stays and of what is held out: the share of each group, rounded.

    At least one row of each group stays, and of each class where the targets are `classes`. What is held out of a group
    is spread evenly over its sorted targets. Rows with equal numbers `same`, from 0, stay together: the first of them
    is drawn or not, and the others follow, whatever their groups and targets.

    Example:
        >>> groups, targets = np.array([0, 0, 0, 0, 1]), np.array([1, 0, 1, 0, 1])
        >>> hold_out(groups, targets, 0.5, np.random.RandomState(0))
        (array([2, 3, 4]), array([0, 1]))
    """
    if same is None or not any_equal(same):
        held = _spread(groups, targets, share, random)
        if classes:
            held &= np.isin(targets, targets[~held])
    else:
        first = np.unique(same, return_index=True)[1]
        held = _spread(groups[first], targets[first], share, random)[same]
        back = ~np.isin(groups, groups[~held])
        if classes:
            back |= ~np.isin(targets, targets[~held])
        held &= ~np.isin(same, same[back])
    return np.flatnonzero(~held), np.flatnonzero(held)


def _spread(groups: Codes, targets: Array, share: float, random: Random) -> NDArray[np.bool_]:
    """Return which rows are held out: the share of each group, spread evenly over its targets."""
    order = np.argsort(groups, kind="stable")
    held = np.zeros(len(groups), dtype=bool)
    for rows in np.split(order, np.cumsum(np.bincount(groups))[:-1]):
        number = min(round(len(rows) * share), len(rows) - 1)
        if number < 1:
            continue
        mixed = random.permutation(rows)
        mixed = mixed[np.argsort(targets[mixed], kind="stable")]
        places = (np.arange(number) + random.uniform()) * len(rows) / number
        held[mixed[np.minimum(places.astype(np.int64), len(rows) - 1)]] = True
    return held
