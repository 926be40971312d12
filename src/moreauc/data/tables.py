"""Tables of other libraries (polars, Arrow) as DataFrames of pandas."""

from __future__ import annotations

from typing import Any

import pandas as pd

from moreauc._system import import_extra

_ARROW = ("__arrow_c_stream__", "__arrow_c_array__")


class TableError(ValueError):
    """A table that cannot be used; the message is one line that names the file and the remedy."""


def list_names(names: list[str], most: int = 5) -> str:
    """Return names in quotes with commas, the first few of many."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def as_frame(owner: str, table: object, *, name: str = "X") -> Any:
    """Return a table of another library as a DataFrame of pandas; anything else, a DataFrame too, as it is.

    `owner` is the class named in errors, and `name` what the estimator calls the table: a DataFrame of polars, a table
    of pyarrow, or anything with `__arrow_c_stream__` or `to_pandas`, in memory.
    """
    if isinstance(table, pd.DataFrame | pd.Series):
        return table
    kind = f"{type(table).__module__.split('.')[0]}.{type(table).__name__}"
    if hasattr(table, "collect") and not hasattr(table, "__array__"):
        raise ValueError(f"{owner}: {name} must be a table in memory, got {kind}; call its collect()")
    try:
        if any(hasattr(table, method) for method in _ARROW):
            found = import_extra("pyarrow", "parquet").table(table)
            index = (found.schema.pandas_metadata or {}).get("index_columns", [])  # no features in pandas either
            return from_arrow(found.drop_columns([column for column in index if isinstance(column, str)]))
        return table.to_pandas() if hasattr(table, "to_pandas") else table
    except (ImportError, TypeError, ValueError) as error:  # those of pyarrow derive from these
        raise ValueError(f"{owner}: {name} must be a table that pandas can hold, got {kind}: {error}") from error


def _signed(arrow: Any, column: Any) -> Any:
    """Return a column whose categories, if it has any, have signed numbers, as pandas 2 needs them."""
    kind = column.type
    if not (arrow.types.is_dictionary(kind) and arrow.types.is_unsigned_integer(kind.index_type)):
        return column
    return column.cast(arrow.dictionary(arrow.int64(), kind.value_type, kind.ordered))


def from_arrow(table: Any) -> pd.DataFrame:
    """Return a table of pyarrow, its columns in the types of pandas; integers beside missing values stay integers."""
    arrow = import_extra("pyarrow", "parquet")
    # With missing values pandas would make floats of integers, which beyond 2^53 is to round them.
    nullable = {arrow.int64(): pd.Int64Dtype(), arrow.uint64(): pd.UInt64Dtype()}
    columns = [
        _signed(arrow, column).to_pandas(types_mapper=nullable.get if column.null_count else None)
        for column in table.columns
    ]
    frame = pd.concat(columns, axis=1, ignore_index=True) if columns else pd.DataFrame(index=range(len(table)))
    frame.columns = pd.Index(table.column_names, dtype=object)
    return frame
