"""Rows of a table as instances of bags, which a column names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from moreauc.cli._evaluation import Array
from moreauc.data import FlatBags
from moreauc.data._normal_form import class_text, name_texts, normal_text
from moreauc.data.columns import (
    Target,
    check_features,
    drop_columns,
    match_target,
    split_target,
)
from moreauc.data.duplicates import Hashes, hash_bags, hash_rows
from moreauc.data.tables import TableError, list_names, read_texts
from moreauc.data.tabular import TableEncoder


@dataclass(frozen=True)
class BagTable:
    """Rows of a table, grouped into bags in the order in which these first appear.

    Attributes:
        features: the columns to learn from; its index is the row of the file, from 0.
        codes: number of each row's bag.
        names: of the bags.
        labels: 0 and 1 of the bags; zeros where the table has no target.
    """

    features: pd.DataFrame
    codes: Array
    names: list[str]
    labels: Array

    def part(self, bags: Array) -> BagTable:
        """Return some of the bags, whose numbers must rise."""
        number = np.full(len(self.names), -1)
        number[bags] = np.arange(len(bags))
        codes = number[self.codes]
        kept = codes >= 0
        return BagTable(self.features[kept], codes[kept], [self.names[bag] for bag in bags], self.labels[bags])

    def rows(self, bag: int) -> Array:
        """Return the rows of the file, counted from 1, that a bag consists of."""
        return self._rows[bag]

    @cached_property
    def _rows(self) -> list[Array]:
        """Rows of all bags, found at once: to look for those of each would take bags times rows."""
        order = np.argsort(self.codes, kind="stable")
        ends = np.bincount(self.codes, minlength=len(self.names)).cumsum()
        return np.split(self.features.index.to_numpy()[order] + 1, ends[:-1])

    def hashes(self) -> Hashes:
        """Return a hash of each bag, whatever the order of its rows."""
        return hash_bags(hash_rows(self.features), self.codes, len(self.names))

    def encode(self, encoder: TableEncoder) -> FlatBags:
        """Return the bags as a network takes them."""
        return FlatBags.from_ids(encoder.transform(self.features), self.codes, self.labels[self.codes])


def read_bags(
    data: Path, column: str, target: str, *, positive: str | None, drop: list[str]
) -> tuple[BagTable, dict[str, str], Target]:
    """Read a table of instances to learn from; return it with the kinds of its columns and the target.

    Raises:
        TableError: if the table cannot be used, or rows of a bag differ in the target.
    """
    source = str(data)
    column, target = normal_text(column), normal_text(target)
    if column == target:
        raise TableError(f"--bags and --target must name two columns, got {column!r} for both")
    frame = read_texts(data)
    codes, names, first = _group(frame, column, source)
    # The classes are counted by bags: the rarer one of these is the positive one, whatever the sizes of the bags.
    _, labels, classes = split_target(frame.iloc[first], target, positive=positive, source=source, unit="bags")
    _check_agreement(frame, target, codes, names, first, source)
    rest = drop_columns(frame.drop(columns=[column, target]), drop, source=source)
    features, kinds = check_features(rest, source=source)
    return BagTable(features, codes, names, labels), kinds, classes


def match_bags(frame: pd.DataFrame, column: str, target: Target, *, source: str) -> tuple[Array, list[str], Array]:
    """Return the number of each row's bag in another table, the names of the bags, and their labels.

    Raises:
        TableError: if bags or target are missing or cannot be used.
    """
    codes, names, first = _group(frame, column, source)
    _, labels = match_target(frame.iloc[first], target, source=source, unit="bags")
    _check_agreement(frame, target.name, codes, names, first, source)
    return codes, names, labels


def group_bags(frame: pd.DataFrame, column: str, *, source: str) -> tuple[Array, list[str]]:
    """Return the number of each row's bag in a table without target, and the names of the bags."""
    codes, names, _ = _group(frame, column, source)
    return codes, names


def _group(frame: pd.DataFrame, column: str, source: str) -> tuple[Array, list[str], Array]:
    """Return the number of each row's bag, the names of the bags, and the first row of each."""
    column = normal_text(column)
    if column not in frame:
        raise TableError(f"{source}: no bag column {column!r}; columns are {list_names(list(map(str, frame.columns)))}")
    missing = frame.index[frame[column].isna()]
    if len(missing):
        raise TableError(
            f"{source}: bag column {column!r} has missing values in {len(missing)} rows, the first is row "
            f"{missing[0] + 1}"
        )
    codes, names = pd.factorize(name_texts(frame[column]))
    return codes, [str(name) for name in names], np.unique(codes, return_index=True)[1]


def _check_agreement(
    frame: pd.DataFrame, target: str, codes: Array, names: list[str], first: Array, source: str
) -> None:
    """Check that all rows of a bag have its label."""
    column = frame[target]
    missing = np.flatnonzero(column.isna())
    if len(missing):
        raise TableError(
            f"{source}: target {target!r} has missing values in {len(missing)} rows, the first is row {missing[0] + 1}"
        )
    texts = name_texts(column, class_text).to_numpy()
    other = np.flatnonzero(texts != texts[first][codes])
    if len(other):
        row, begin = other[0], first[codes[other[0]]]
        raise TableError(
            f"{source}: target {target!r} must be the same inside a bag, got {texts[begin]} in row {begin + 1} and "
            f"{texts[row]} in row {row + 1} of bag {names[codes[row]]!r}"
        )
