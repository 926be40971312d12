"""Tables of SMILES and 0/1 labels, checked row by row before anything is made of them."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from experiments.data._prepare import BROKEN, unpack

_CLASSES = {"": None, "0": 0, "1": 1, "0.0": 0, "1.0": 1}


def read_molecule_table(owner: str, source: Path, target: str) -> tuple[list[str], list[int | None]]:
    """Return the SMILES and the labels, None where there is none, of all rows of a table with a header.

    Args:
        owner: who asks, for errors.
        source: a CSV file, plain or compressed by gzip.
        target: column with the labels; the SMILES are in the column `smiles`.

    Raises:
        ValueError: for a file that is no such table, rows that are too short or too long, labels other than 0 and 1,
            and a table without any label; it names the file and, where there is one, the row, counted from 0, and its
            line.
    """
    table = csv.DictReader(io.StringIO(_text(owner, source), newline=""))
    smiles: list[str] = []
    labels: list[int | None] = []
    try:
        if not {"smiles", target} <= set(table.fieldnames or ()):
            columns = ", ".join(table.fieldnames or ())
            raise ValueError(f"{owner}: {source.name} must have the columns smiles and {target}, got {columns}")
        for number, row in enumerate(table):
            place = f"row {number} (line {table.line_num})"
            if None in row or None in row.values():
                wanted = f"must have {len(table.fieldnames or ())} columns in every row"
                raise ValueError(f"{owner}: {source.name} {wanted}, got more or fewer in {place}")
            text, label = row["smiles"].strip(), row[target].strip()
            if "\n" in text or "\r" in text:
                raise ValueError(f"{owner}: {source.name} must have SMILES of one line, got {text!r} in {place}")
            if label not in _CLASSES:
                raise ValueError(f"{owner}: {target} must be 0, 1 or empty, got {label!r} in {place} of {source.name}")
            smiles.append(text)
            labels.append(_CLASSES[label])
    except csv.Error as error:
        raise ValueError(f"{owner}: {source.name} must be a CSV file, got {error} (line {table.line_num})") from error
    if all(label is None for label in labels):
        raise ValueError(f"{owner}: {source.name} must have a label in column {target}, got none in {len(labels)} rows")
    return smiles, labels


def _text(owner: str, source: Path) -> str:
    try:
        content = unpack(source)
    except BROKEN as error:
        raise ValueError(f"{owner}: {source.name} must be a CSV file or one packed by gzip, got {error}") from error
    try:
        return content.decode("utf-8-sig")  # a mark at the beginning, as spreadsheets write it, is no text
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{owner}: {source.name} must be UTF-8, got a byte that is not in line {line}") from error
