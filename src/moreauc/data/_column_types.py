"""What the texts of a column are: numbers, truth values or words; and numbers that a float cannot tell apart."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype

from moreauc.data._normal_form import TRUTHS

_INTEGER = re.compile(r"[+-]?[0-9]+")
_EXACT = 2**53  # up to here a float holds every integer
_LOSS = 1e-6  # of the range of a column; the networks see about 1e-7 of it


def type_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose text columns hold numbers where all their texts are numbers, and bools where all are.

    Integers beyond 2^53 beside missing values, integers beyond 64 bits, and decimals that a float cannot tell apart
    come as Python's own numbers, which are exact.

    Example:
        >>> table = type_columns(pd.DataFrame({"a": ["1", "2.5"], "b": ["true", "FALSE"], "c": ["1", "x"]}))
        >>> table["a"].tolist(), table["b"].tolist(), table["c"].tolist()
        ([1.0, 2.5], [True, False], ['1', 'x'])
    """
    return pd.DataFrame({name: type_column(frame[name]) for name in frame}, index=frame.index)


def type_column(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return one column of :func:`type_columns`."""
    if isinstance(column.dtype, pd.CategoricalDtype) or column.dtype.kind not in "OUT":
        return column
    present, content = column.dropna(), infer_dtype(column, skipna=True)
    if content == "decimal" and present.map(lambda value: value == value.to_integral_value()).all():
        found = present.map(int).astype(object)
    elif content == "string" and present.isin(list(TRUTHS)).all():
        found = (present.map(TRUTHS) == "True").astype(bool)
    elif content == "string" and (numbers := _numbers(present)) is not None:
        found = numbers
    else:
        return column
    if len(found) == len(column):
        return found
    exact = found.dtype.kind in "iu" and _largest(found) > _EXACT
    values = np.full(len(column), np.nan, dtype=object if exact or found.dtype.kind not in "iuf" else float)
    values[column.notna().to_numpy()] = found.to_numpy(dtype=values.dtype)
    return pd.Series(values, index=column.index, name=column.name)


def is_number(column: pd.Series[Any]) -> bool:
    """Return whether a column holds real numbers, Python's own included; truth values are numbers."""
    if column.dtype.kind == "O" and not isinstance(column.dtype, pd.CategoricalDtype):
        return infer_dtype(column, skipna=True) in ("integer", "decimal")
    return pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_complex_dtype(column.dtype)


def lost_in_floats(column: pd.Series[Any]) -> str | None:
    """Return what is the matter with numbers that lie closer together than floats of their size; None for others.

    Example:
        >>> lost_in_floats(pd.Series([2**60 + 1, 2**60 + 2]))[:73]
        'holds numbers too close together for their size, from 1152921504606846977'
        >>> lost_in_floats(pd.Series([2**60 + 1, 1])) is None
        True
    """
    if isinstance(column.dtype, pd.CategoricalDtype) or column.dtype.kind not in "iuO" or not is_number(column):
        return None
    if column.dtype.kind != "O" and column.notna().any() and _largest(column.dropna()) <= _EXACT:
        return None
    exact = [value if isinstance(value, Decimal) else int(value) for value in column.dropna().unique()]
    if not exact:
        return None
    low, high, floats = min(exact), max(exact), [float(value) for value in exact]
    loss = max(abs(Fraction(value) - Fraction(number)) for value, number in zip(exact, floats, strict=True))
    merged = len(set(floats)) <= len(exact) / 2  # apart from a few far away, such as -1 for unknown
    if low == high or (loss <= _LOSS * (Fraction(high) - Fraction(low)) and not merged):
        return None
    return (
        f"holds numbers too close together for their size, from {low} to {high}, which floating point cannot tell "
        "apart; subtract a constant from them"
    )


def _numbers(texts: pd.Series[Any]) -> pd.Series[Any] | None:
    """Return the numbers that texts are; None where one is not."""
    try:
        numbers: pd.Series[Any] = pd.to_numeric(texts)
        if numbers.dtype.kind in "iu":
            return numbers
        floats = texts.map(float).astype(float) if numbers.dtype.kind != "f" else numbers
    except ValueError:
        return None
    low, high = floats.min(), floats.max()
    if not np.isfinite([low, high]).all() or (high - low) * _LOSS >= max(-low, high) / _EXACT:
        return floats
    if texts.map(lambda text: _INTEGER.fullmatch(text) is not None).all():  # beyond 64 bits
        return texts.map(lambda text: int(Decimal(text))).astype(object)
    return floats if texts.nunique() == 1 else texts.map(Decimal).astype(object)


def _largest(integers: pd.Series[Any]) -> int:
    """Return the largest size of an integer, which for the lowest int64 is no int64."""
    return max(abs(int(integers.min())), abs(int(integers.max())))
