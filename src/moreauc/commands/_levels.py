"""Levels that were not there in training: told on the terminal before anything is scored."""

from __future__ import annotations

import pandas as pd

from moreauc._tabular import TableEncoder
from moreauc._unknown_levels import UnknownLevels
from moreauc.commands._console import already_told, warn
from moreauc.data.tables import TableError


def check_levels(encoder: TableEncoder, features: pd.DataFrame, source: str) -> dict[str, float]:
    """Return the share of unknown levels of each text column, and print a warning for each column that has any.

    Raises:
        TableError: for a column all of whose levels are unknown.
    """
    columns = _unknown(encoder, features, source)
    warn(*(f"{source}: {column}" for column in columns if column.unknown))
    return {column.name: column.share for column in columns}


def compare_levels(train: pd.DataFrame, test: pd.DataFrame, source: str) -> list[str]:
    """Return a warning for each column of a test table with levels that the training table has not.

    Raises:
        TableError: for a column all of whose levels are unknown.
    """
    with already_told():
        encoder = TableEncoder().fit(train)
    return [f"{source}: {column}" for column in _unknown(encoder, test, source) if column.unknown]


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
