"""Levels of a table that were not there in training: a model can only take them for rare ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class UnknownLevels:
    """A column, and how many of its values are levels that were not seen in training.

    Attributes:
        name: of the column.
        unknown: rows with such a value.
        present: rows with any value.
        example: one of the unknown levels, None where there is none.
    """

    name: str
    unknown: int
    present: int
    example: str | None

    @property
    def share(self) -> float:
        """Share of the values that are unknown."""
        return self.unknown / max(self.present, 1)

    def __str__(self) -> str:
        return (
            f"column {self.name!r} holds levels that were not there in training in {self.unknown:,} of "
            f"{self.present:,} rows ({self.share:.1%}), such as {self.example!r}; they count as rare ones"
        )


def find_unknown(owner: str, name: str, levels: Array, known: Array, *, numbers: bool) -> UnknownLevels:
    """Return how many values of a column are unknown.

    Args:
        owner: who asks, or the table, for errors.
        name: of the column.
        levels: strings, None where missing, shape `(n,)`.
        known: the levels of the training.
        numbers: whether the column arrived as numbers.

    Raises:
        ValueError: where all values are unknown: of one row if they are numbers, of two or more if they are texts and
            most rows have one.
    """
    names = [level for level in known if level is not None]
    codes, values = pd.factorize(levels)
    seen = set(names)
    strange = np.array([value not in seen for value in values], dtype=bool)
    counts = np.bincount(codes[codes >= 0], minlength=len(values))
    example = str(values[strange][0]) if strange.any() else None
    found = UnknownLevels(name, int(counts[strange].sum()), int(counts.sum()), example)
    if found.unknown and found.unknown == found.present:
        before = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
        if numbers and not any(map(_is_number, names)):
            raise ValueError(
                f"{owner}: column {name!r} must hold texts, as in training ({before}), got numbers, {found.example}; "
                "write its values as they were in training"
            )
        if found.present > 1 and 2 * found.present >= len(levels):
            raise ValueError(
                f"{owner}: column {name!r} must hold levels of the training ({before}), got others only, such as "
                f"{found.example!r}; write its values as they were in training, or train again with such rows"
            )
    return found


def _is_number(level: str) -> bool:
    try:
        float(level)
    except ValueError:
        return False
    return True
