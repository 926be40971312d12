"""Tables whose rows are in groups: what is to be predicted, classes or numbers, and which columns name the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from moreauc.cli._evaluation import Array
from moreauc.data._column_types import is_number, lost_in_floats, type_column
from moreauc.data._normal_form import (
    class_text,
    group_texts,
    name_texts,
    normal_text,
)
from moreauc.data.columns import check_classes
from moreauc.data.tables import TableError, list_names
from moreauc.tasks.groups import name_groups

TASKS = ("auto", "classification", "regression")
_MOST_CLASSES = 10  # whole numbers of more values are taken for quantities


@dataclass(frozen=True)
class GroupTarget:
    """What is predicted.

    Attributes:
        name: the column.
        task: "classification" or "regression".
        classes: the classes as texts, sorted; none for regression.
        reason: how the task was found, for people.
    """

    name: str
    task: str
    classes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class GroupRows:
    """Rows of a table.

    Attributes:
        features: the columns to learn from.
        values: the target: texts of classes, or numbers.
        groups: name of each row's group.
    """

    features: pd.DataFrame
    values: Array
    groups: Array

    def part(self, rows: Array) -> GroupRows:
        """Return some of the rows."""
        return GroupRows(self.features.iloc[rows], self.values[rows], self.groups[rows])


def find_target(frame: pd.DataFrame, name: str, task: str, *, source: str) -> tuple[GroupTarget, Array]:
    """Return what is to be predicted, and the target of each row.

    With the task "auto", text and bool are classes, and so are two values and up to ten different whole numbers; other
    numbers are quantities.

    Raises:
        TableError: if the column is missing, has missing values, one class only, or no numbers for regression.

    Example:
        >>> find_target(pd.DataFrame({"y": [1.5, 2.0, 4.0]}), "y", "auto", source="t")[0].task
        'regression'
        >>> find_target(pd.DataFrame({"y": [3, 1, 2]}), "y", "auto", source="t")[0].classes
        ('1', '2', '3')
    """
    name = normal_text(name)
    column = _column(frame, name, "target column", "target", source)
    texts, reason = name_texts(column, class_text), "as asked for"
    if task == "auto":
        check_classes(column, name, "give --task classification", source=source)
        task, reason = _guess(type_column(column), texts.nunique())
    if task == "regression":
        if lost := lost_in_floats(type_column(column)):
            raise TableError(f"{source}: target {name!r} {lost}, or give --task classification if these are classes")
        return GroupTarget(name, task, (), reason), _numbers(column, name, source)
    classes = sorted(set(texts))
    if len(classes) < 2:
        raise TableError(f"{source}: target {name!r} must have at least two classes, got one class only: {classes[0]}")
    return GroupTarget(name, task, tuple(classes), reason), _texts(texts)


def match_values(frame: pd.DataFrame, target: GroupTarget, *, source: str) -> Array:
    """Return the target of each row of another table.

    Raises:
        TableError: if the column is missing, has missing values, or others than in training.
    """
    column = _column(frame, target.name, "target column", "target", source)
    if target.task == "regression":
        return _numbers(column, target.name, source)
    texts = name_texts(column, class_text)
    strange = texts[~texts.isin(target.classes)]
    if len(strange):
        known = list_names(list(target.classes))
        raise TableError(
            f"{source}: target {target.name!r} must be one of {known}, got {strange.iloc[0]!r} in row "
            f"{strange.index[0] + 1}"
        )
    return _texts(texts)


def split_names(groups: str, frame: pd.DataFrame, target: str) -> list[str]:
    """Return the columns that an option like "race,sex" names; a column whose name has a comma is found as a whole.

    Raises:
        TableError: if there is none, one is named twice, or is the target.
    """
    groups, target = normal_text(groups), normal_text(target)
    names = [groups] if groups in frame else [normal_text(name) for name in groups.split(",")]
    if not all(names):
        raise TableError(f"--groups must name columns, with commas between them, got {groups!r}")
    if len(set(names)) < len(names):
        raise TableError(f"--groups must name every column once, got {groups!r}")
    if target in names:
        raise TableError(f"--groups and --target must name different columns, got {target!r} for both")
    return names


def find_groups(frame: pd.DataFrame, names: list[str], *, source: str) -> Array:
    """Return the name of each row's group: the values of its columns with commas between them.

    Raises:
        TableError: if a column is missing or has missing values.
    """
    texts = {name: group_texts(_column(frame, name, "group column", "group column", source)) for name in names}
    found, codes = name_groups(source, pd.DataFrame(texts), len(frame))
    return found[codes]


def _column(frame: pd.DataFrame, name: str, role: str, word: str, source: str) -> pd.Series[Any]:
    if name not in frame:
        raise TableError(f"{source}: no {role} {name!r}; columns are {list_names(list(map(str, frame.columns)))}")
    column = frame[name]
    missing = column.index[column.isna()]
    if len(missing):
        raise TableError(
            f"{source}: {word} {name!r} has missing values in {len(missing)} rows, the first is row {missing[0] + 1}"
        )
    return column


def _guess(column: pd.Series[Any], count: int) -> tuple[str, str]:
    """Return the task that a target of so many classes is, and why."""
    if pd.api.types.is_bool_dtype(column.dtype) or not is_number(column):
        return "classification", "the target is no number"
    if count <= 2:
        return "classification", "the target has two values"
    if count <= _MOST_CLASSES and bool((column % 1 == 0).all()):
        return "classification", f"the target has {count} different whole numbers"
    return "regression", f"the target has {count} different numbers"


def _numbers(column: pd.Series[Any], name: str, source: str) -> Array:
    values: Array = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise TableError(
            f"{source}: target {name!r} must hold finite numbers for regression, got {column.iloc[bad[0]]!r} in row "
            f"{bad[0] + 1}"
        )
    return values


def _texts(texts: pd.Series[Any]) -> Array:
    found: Array = texts.to_numpy(dtype=object)
    return found
