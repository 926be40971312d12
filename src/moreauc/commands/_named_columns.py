"""Columns of a table that name something, such as a bag or a group: as the text that is in the file.

Taken for numbers, the names 007 and 7 would be those of one thing.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import pandas as pd


def as_texts(frame: pd.DataFrame, data: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Return columns of a table as the texts of its file, those of them that it has.

    Args:
        frame: what :func:`moreauc.data.tables.read_table` made of the file.
        data: the file. In Parquet a column has the type that its author gave it, and comes as it is.
        columns: names of the columns.
    """
    known = [column for column in columns if column in frame]
    if not known or data.suffix.lower() not in (".csv", ".tsv"):
        return frame[known]
    text, names = data.read_bytes().decode("utf-8-sig"), list(map(str, frame.columns))
    separator = next(mark for mark in (",", ";", "\t") if _header(text, mark) == names)
    options = {"names": names, "header": 0, "index_col": False, "skipinitialspace": True}  # those of read_table
    return pd.read_csv(io.StringIO(text), sep=separator, usecols=known, dtype=str, **options)[known]


def with_group_names(frame: pd.DataFrame, data: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Return a table in which columns that name groups have the texts of the file where they were taken for numbers.

    Where each text of a column ends in ".0", as pandas writes whole numbers of a column that once had a gap, that
    ending is left out.
    """
    numbers = [column for column in columns if column in frame and frame[column].dtype.kind in "iuf"]
    found = frame.copy(deep=False)
    for column, texts in as_texts(frame, data, numbers).items():
        whole = bool(texts.astype(str).str.fullmatch(r"-?\d+\.0").all())
        found[column] = texts.str.removesuffix(".0") if whole else texts
    return found


def _header(text: str, separator: str) -> list[str]:
    """Return the names in the first line that is not blank, as this separator tells them apart."""
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    return [name.strip() for name in next(line for line in lines if line)]
