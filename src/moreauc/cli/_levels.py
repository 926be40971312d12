"""Levels that were not there in training: told on the terminal before anything is scored."""

from __future__ import annotations

import pandas as pd

from moreauc.cli._console import already_told, warn
from moreauc.data.tables import TableError
from moreauc.data.tabular import TableEncoder, UnknownLevels


def check_levels(encoder: TableEncoder, features: pd.DataFrame, source: str) -> dict[str, float]:
    """Return the share of unknown levels of each text column, and print a warning for each column that has any.

    A warning is printed, too, for a column without any value.

    Raises:
        TableError: for a column all of whose levels are unknown.
    """
    columns = _unknown(encoder, features, source)
    warn(*_empty(features, source), *(f"{source}: {column}" for column in columns if column.unknown))
    return {column.name: column.share for column in columns}


def compare_levels(train: pd.DataFrame, test: pd.DataFrame, source: str) -> list[str]:
    """Return a warning for each column of a test table without values, or with levels that training has not.

    Raises:
        TableError: for a column all of whose levels are unknown.
    """
    with already_told():
        encoder = TableEncoder().fit(train)
    unknown = [f"{source}: {column}" for column in _unknown(encoder, test, source) if column.unknown]
    return [*_empty(test, source), *unknown]


def check_drawn(train: pd.DataFrame, test: pd.DataFrame, source: str) -> None:
    """Check, before anything is trained, that rows drawn from a table to test on have levels in common with the others.

    Where a text column has few levels, equal rows, which stay together, may leave all rows of a level in one part.

    Raises:
        TableError: for a column all of whose levels are unknown in training.
    """
    if all(dtype.kind == "f" for dtype in train.dtypes):
        return
    try:
        compare_levels(train, test, f"{source}, rows drawn to test on")
    except TableError as error:
        raise TableError(f"{error}, with another --seed, or give a table to test on with --test") from error


def _empty(features: pd.DataFrame, source: str) -> list[str]:
    """Return a warning for each column without any value, as training had; in a single row it may be missing."""
    if len(features) == 1:
        return []
    return [
        f"{source}: column {name!r} holds missing values only, and held others in training; scores may be far off"
        for name in features
        if features[name].isna().all()
    ]


def _unknown(encoder: TableEncoder, features: pd.DataFrame, source: str) -> list[UnknownLevels]:
    try:
        return encoder.unknown_levels(features, owner=source)
    except ValueError as error:
        raise TableError(str(error)) from error


def levels_text(shares: dict[str, float]) -> list[str]:
    """Return the paragraph of a page on unknown levels; none where there are no text columns."""
    if not shares:
        return []
    listed = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    return [f"Share of levels that were not there in training, by column: {listed}."]
