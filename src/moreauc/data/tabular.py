"""Tables of numbers and texts for a network: one encoder, and warnings about columns that are perhaps no features."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types
from scipy.sparse import csr_array, issparse
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import MaxAbsScaler, OneHotEncoder, StandardScaler
from sklearn.utils.validation import check_is_fitted

from moreauc.data.columns import LEAST_ROWS, MOST_LEVELS, doubtful_columns
from moreauc.data.dates import DateParts, as_dates
from moreauc.data.duplicates import Codes, hash_rows, hash_sparse, number_equal
from moreauc.data.texts import distinct_texts, find_numbers_or_dates, holds_dates, label_text, lost_in_floats

Array = NDArray[Any]
Kind = Literal["numbers", "levels", "dates"]
Kinds: tuple[Kind, ...] = get_args(Kind)
# What pandas calls the content of a column of Python objects.
_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal", "empty")
_LEVELS = ("string", "boolean", "categorical")


class ColumnWarning(UserWarning):
    """A column that can be used, but perhaps not as it was meant."""


@dataclass(frozen=True)
class UnknownLevels:
    """A column, and how many of its values are levels that were not seen in training."""

    name: str  # of the column
    unknown: int  # rows with such a value
    present: int  # rows with any value
    example: str | None  # one of the unknown levels, None where there is none

    @property
    def share(self) -> float:
        """Share of the values that are unknown."""
        return self.unknown / max(self.present, 1)

    def __str__(self) -> str:
        return (
            f"column {self.name!r} holds levels that were not there in training in {self.unknown:,} of "
            f"{self.present:,} rows ({self.share:.1%}), such as {self.example!r}; they count as rare ones"
        )


class TableEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turn a table into a dense array, a sparse matrix into a sparse one.

    Numbers: a missing value becomes the median, and a column that had any gets a second one that marks them;
    standardised to mean 0 and deviation 1. Dates: numbers, days since the earliest of the training and parts of the
    calendar (:class:`~moreauc.data.dates.DateParts`), missing ones marked by one column. Levels (bool, string and
    category columns of a DataFrame): one column of 0 and 1 for each level, a missing value being a level of its own;
    rare levels share one column; a level not seen in `fit` is taken for a rare one, and is all zeros where there are
    none. Truth values may come as True and False or as 1 and 0. A sparse matrix of numbers stays sparse: its columns
    are divided by their largest magnitude, not centred, and must have no missing values.

    Args:
        standardize: whether to standardise the numbers.
        owner: class named in errors.
        dtype: floating point type of the result.

    Attributes:
        kinds_: "numbers", "dates" or "levels" for each column.
        dates_: the :class:`~moreauc.data.dates.DateParts` of each column of dates.
        num_outputs_: columns of the result.

    Raises:
        ValueError: for a column of a DataFrame that is none of these (mixed types, ...), for infinity, and for
            integers that floats cannot tell apart.

    Example:
        >>> table = pd.DataFrame({"age": [20.0, None, 40.0, 30.0, 30.0], "town": ["a", "a", "b", "a", "b"]})
        >>> encoder = TableEncoder().fit(table)
        >>> encoder.kinds_
        ['numbers', 'levels']
        >>> encoder.transform(table).round(2)
        array([[-1.58,  0.  ,  1.  ,  0.  ],
               [ 0.  ,  1.  ,  1.  ,  0.  ],
               [ 1.58,  0.  ,  0.  ,  1.  ],
               [ 0.  ,  0.  ,  1.  ,  0.  ],
               [ 0.  ,  0.  ,  0.  ,  1.  ]], dtype=float32)
    """

    kinds_: list[Kind]

    def __init__(
        self, *, standardize: bool = True, owner: str = "TPAUCClassifier", dtype: type[np.floating[Any]] = np.float32
    ) -> None:
        self.standardize = standardize
        self.owner = owner
        self.dtype = dtype

    def fit(self, X: Any, y: Any = None, *, rows: Array | None = None) -> TableEncoder:
        """Learn the kinds of the columns of a table, and medians, scales and levels of its `rows`; None for all."""
        self._fit(X, rows)
        return self

    def fit_encode(self, X: Any, *, rows: Array | None = None) -> Any:
        """Return `fit(X, rows=rows).encode(X)`, reading the columns once."""
        return self._encode(X, self._fit(X, rows))

    def _fit(self, X: Any, rows: Array | None) -> _Parts | None:
        """Learn from a table, and return its columns by their kinds; None for a sparse matrix."""
        if issparse(X):
            # dividing by the deviation would make rare bits of a fingerprint large, and overfitted
            scaler = MaxAbsScaler().fit(X if rows is None else X[rows])
            self.numbers_ = scaler if self.standardize else None
            self.calendar_ = self.levels_ = None
            self.kinds_, self.dates_, self.num_outputs_, self.sparse_ = ["numbers"] * X.shape[1], [], X.shape[1], True
            return None
        parts = _split(self.owner, X)
        if isinstance(X, pd.DataFrame):
            check_exact(self.owner, X)
            _check_texts(self.owner, X, parts.kinds)
            self._warn(X, parts)
        numbers, levels, dates = parts.numbers, parts.levels, parts.dates
        if rows is not None:
            numbers, levels, dates = numbers[rows], levels[rows], [column.iloc[rows] for column in dates]
        found = [DateParts.of(column) for column in dates]
        values = [*_with_dates(numbers, found, dates), levels]
        filled = SimpleImputer(strategy="median", keep_empty_features=True)
        scaled = make_pipeline(filled, StandardScaler()) if self.standardize else filled
        both = make_union(scaled, MissingIndicator(error_on_new=False))
        hot = OneHotEncoder(
            handle_unknown="infrequent_if_exist",
            min_frequency=LEAST_ROWS,
            max_categories=MOST_LEVELS,
            sparse_output=False,
            dtype=np.float32,
        )
        steps = (both, clone(scaled), hot)
        fitted = [step.fit(some) if some.shape[1] else None for step, some in zip(steps, values, strict=True)]
        self.numbers_, self.calendar_, self.levels_ = fitted  # set last: nothing below can fail
        self.kinds_, self.dates_, self.sparse_ = parts.kinds, found, False
        self.num_outputs_ = sum(step.transform(some[:1]).shape[1] for step, some in self._fitted(*values))
        return parts

    def transform(self, X: Any) -> Any:
        """Return the array that belongs to a table of the same columns, shape `(n, num_outputs_)`.

        A :class:`~moreauc.data.tabular.ColumnWarning` tells of levels that were not there in `fit`.
        """
        parts = self._parts(X)
        for column in self._unknown(self.owner, X, parts):
            if column.unknown:
                warnings.warn(f"{self.owner}: {column}", ColumnWarning, stacklevel=2)
        return self._encode(X, parts)

    def find_numbers(self) -> NDArray[np.bool_]:
        """Return which columns of the result are numbers and parts of dates; the others mark levels and missing values.

        Shape `(num_outputs_,)`.
        """
        found = np.zeros(self.num_outputs_, dtype=bool)
        found[: sum(kind != "levels" for kind in self.kinds_)] = True  # numbers, and days; then what marks missing ones
        levels = 0 if self.levels_ is None else len(self.levels_.get_feature_names_out())
        end = self.num_outputs_ - levels
        found[end - sum(len(parts.names) for parts in self.dates_) : end] = True
        return found

    def unknown_levels(self, X: Any, *, owner: str | None = None) -> list[UnknownLevels]:
        """Return for each column of levels how many values were not there in `fit`."""
        return self._unknown(owner or self.owner, X, self._parts(X))

    def encode(self, X: Any) -> Any:
        """Return what :meth:`transform` returns, without warnings of levels that were not there in `fit`."""
        return self._encode(X, self._parts(X))

    def _parts(self, X: Any) -> _Parts | None:
        """Return the columns of a table by their kinds in `fit`; None for a sparse matrix where `fit` had one."""
        check_is_fitted(self)
        if self.sparse_ and issparse(X):
            return None
        parts = _split(self.owner, X, self.kinds_)
        if self.levels_ is not None:
            _spell_truths(parts.levels, self.levels_.categories_)
        return parts

    def _unknown(self, owner: str, X: Any, parts: _Parts | None) -> list[UnknownLevels]:
        if parts is None or self.levels_ is None:
            return []
        places = [place for place, kind in enumerate(self.kinds_) if kind == "levels"]
        return [
            _find_unknown(owner, str(X.columns[place]), values, known, numbers=parts.kinds[place] == "numbers")
            for place, values, known in zip(places, parts.levels.T, self.levels_.categories_, strict=True)
        ]

    def _encode(self, X: Any, parts: _Parts | None) -> Any:
        if parts is None or self.sparse_:
            return self._encode_sparse(X if parts is None else parts.numbers)
        dates = [_in_zone(self.owner, column, found) for column, found in zip(parts.dates, self.dates_, strict=True)]
        values = (*_with_dates(parts.numbers, self.dates_, dates), parts.levels)
        return _in_range(np.concatenate([step.transform(some) for step, some in self._fitted(*values)], 1), self.dtype)

    def _encode_sparse(self, X: Any) -> Any:
        numbers = csr_array(X)
        if np.isnan(numbers.data).any():
            raise ValueError(f"{self.owner}: X must have no missing values, as the sparse matrix in fit, got NaN")
        scaled = numbers if self.numbers_ is None else csr_array(self.numbers_.transform(numbers))
        return csr_array((_in_range(scaled.data, self.dtype), scaled.indices, scaled.indptr), shape=scaled.shape)

    def _warn(self, X: pd.DataFrame, parts: _Parts) -> None:
        """Warn of columns that should perhaps not be learnt from."""
        names = {kind: X.columns[[own == kind for own in parts.kinds]] for kind in Kinds}
        table = pd.concat(
            [
                pd.DataFrame(parts.numbers, columns=names["numbers"]),
                pd.DataFrame(parts.levels, columns=names["levels"]),
            ],
            axis=1,
        )
        chosen = [name for name in names["levels"] if isinstance(X.dtypes[name], pd.CategoricalDtype)]
        for line in doubtful_columns(table.astype(dict.fromkeys(chosen, "category"))):
            # the levels end with `fit` of an estimator, which wraps three functions around this
            warnings.warn(f"{self.owner}: {line}", ColumnWarning, stacklevel=8)

    def _fitted(self, numbers: Array, calendar: Array, levels: Array) -> list[tuple[Any, Array]]:
        pairs = [(self.numbers_, numbers), (self.calendar_, calendar), (self.levels_, levels)]
        return [(part, values) for part, values in pairs if part is not None]


def _in_range(numbers: Array, dtype: type[np.floating[Any]]) -> Array:
    """Return numbers of a type; those beyond its range become its largest, not infinity."""
    limit = np.finfo(dtype).max
    return np.clip(numbers, -limit, limit).astype(dtype)


def same_rows(owner: str, X: Any) -> Codes:
    """Return a number for each row of a table, from 0, the same for rows that are equal."""
    if issparse(X):
        return number_equal(hash_sparse(X))
    _, numbers, levels, dates = _split(owner, X)
    parts = pd.DataFrame(numbers), pd.DataFrame(levels, dtype=object), pd.DataFrame(dict(enumerate(dates)))
    return number_equal(sum(hash_rows(part) for part in parts if part.shape[1]))


def _check_texts(owner: str, X: pd.DataFrame, kinds: list[Kind]) -> None:
    """Check that texts are no numbers or dates, which as levels would lose their order; categories may be anything."""
    for place, kind in enumerate(kinds):
        column = X.iloc[:, place].reset_index(drop=True)
        if kind == "levels" and not isinstance(column.dtype, pd.CategoricalDtype):
            texts = distinct_texts(column)
            if len(texts) and (reason := find_numbers_or_dates(texts)):
                raise ValueError(
                    f"{owner}: column {column.name!r} of X {reason}, dates also with pandas.to_datetime, or make the "
                    "column a category to learn its texts as levels"
                )


class _Parts(NamedTuple):
    """A table by the kinds of its columns."""

    kinds: list[Kind]  # of all columns, as they are in this table
    numbers: Array  # floats, NaN where missing
    levels: Array  # strings, None where missing
    dates: list[pd.Series]


def _split(owner: str, X: Any, kinds: list[Kind] | None = None) -> _Parts:
    """Return the columns of a table by their kinds, or by those of the training where these are given."""
    if issparse(X):
        raise ValueError(
            f"{owner}: X must be an array or a DataFrame, as in fit, got a sparse matrix; call its toarray()"
        )
    if not isinstance(X, pd.DataFrame):
        others = [place for place, kind in enumerate(kinds or []) if kind != "numbers"]
        if others:
            raise ValueError(
                f"{owner}: X must be a DataFrame, as in fit, where not all columns are numbers (column "
                f"{others[0]} is not), got {type(X).__name__}"
            )
        return _Parts(["numbers"] * X.shape[1], X, np.empty((len(X), 0), dtype=object), [])
    columns = [X.iloc[:, place] for place in range(X.shape[1])]
    found = [_kind(owner, column) for column in columns]
    parts: dict[Kind, list[Any]] = {kind: [] for kind in Kinds}
    read = {"numbers": _numbers, "levels": _levels, "dates": _dates}
    for column, own, kind in zip(columns, found, kinds or found, strict=True):
        parts[kind].append(read[kind](owner, column, own))
    numbers, levels = parts["numbers"], parts["levels"]
    return _Parts(
        found,
        np.column_stack(numbers) if numbers else np.empty((len(X), 0)),
        np.column_stack(levels) if levels else np.empty((len(X), 0), dtype=object),
        parts["dates"],
    )


def _with_dates(numbers: Array, parts: list[DateParts], dates: list[pd.Series]) -> tuple[Array, Array]:
    """Return the numbers with the days since the first date of each column of dates, and the parts of the calendar."""
    found = [part.numbers(column) for part, column in zip(parts, dates, strict=True)]
    if not found:
        return numbers, np.empty((len(numbers), 0))
    days, calendar = zip(*found, strict=True)
    return np.column_stack([numbers, *days]), np.column_stack(calendar)


def check_exact(owner: str, X: pd.DataFrame) -> None:
    """Check that the columns of a table keep their values apart as floats."""
    for j, name in enumerate(X.columns):
        if reason := lost_in_floats(X.iloc[:, j]):
            raise ValueError(f"{owner}: X column {name!r} {reason}, or drop it")


def _kind(owner: str, column: pd.Series) -> Kind:
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype) or types.is_bool_dtype(dtype):
        return "levels"
    if types.is_numeric_dtype(dtype) and not types.is_complex_dtype(dtype):
        return "numbers"
    content = types.infer_dtype(column, skipna=True)
    if content in _NUMBERS:
        return "numbers"
    if content in _LEVELS:
        return "levels"
    if holds_dates(column):
        return "dates"
    if content in ("time", "timedelta", "timedelta64", "period"):
        advice = "turn it into numbers (hours, days, ...) or dates, or drop it"
    else:
        advice = "turn it into one type, numbers or strings, or drop it"
    raise ValueError(
        f"{owner}: X must hold columns of numbers, bools, strings, categories or dates, "
        f"got {content} in column {column.name!r}; {advice}"
    )


def _numbers(owner: str, column: pd.Series, kind: Kind) -> Array:
    if kind != "numbers" and not types.is_bool_dtype(column.dtype):
        raise ValueError(
            f"{owner}: X must hold numbers in column {column.name!r}, as in fit, got {column.dtype}; turn it into "
            "numbers"
        )
    values: Array = column.to_numpy(dtype=np.float64, na_value=np.nan)
    if np.isinf(values).any():
        raise ValueError(f"{owner}: X must be finite or missing, got infinity in column {column.name!r}")
    return values


def _levels(owner: str, column: pd.Series, kind: Kind) -> Array:
    """Return strings that depend on the value only: 1 and 1.0 are one level, and so are "A" and "A "."""
    if kind == "dates":  # an error, not unknown levels
        raise ValueError(
            f"{owner}: X must hold levels in column {column.name!r}, as in fit, got dates; make it what it was in fit"
        )
    codes, values = pd.factorize(column)
    names = np.array([*(label_text(value) for value in values), None], dtype=object)
    levels: Array = names[codes]  # -1, missing, is the last
    return levels


def _dates(owner: str, column: pd.Series, kind: Kind) -> pd.Series:
    if kind != "dates" and column.notna().any():
        raise ValueError(
            f"{owner}: X must hold dates in column {column.name!r}, as in fit, got {column.dtype}; turn it into dates, "
            "for instance with pandas.to_datetime"
        )
    try:
        return as_dates(column)
    except ValueError as error:
        raise ValueError(f"{owner}: X column {column.name!r} {error}") from error


def _in_zone(owner: str, column: pd.Series, parts: DateParts) -> pd.Series:
    """Return dates in the time zone of the training; a column without dates fits any."""
    if (column.dt.tz is None) == (parts.zone is None):
        return column if parts.zone is None else column.dt.tz_convert(parts.zone)
    if column.notna().any() and not np.isnat(parts.earliest):
        zone = f"the time zone {parts.zone}" if parts.zone else "no time zone"
        raise ValueError(
            f"{owner}: X must hold dates with {zone} in column {column.name!r}, as in fit, got {column.dt.tz}; "
            "give them a zone, or none, with Series.dt.tz_localize"
        )
    return column


def _spell_truths(levels: Array, known: list[Array]) -> None:
    """Write truth values as they were in `fit`, True and False or 1 and 0; spelt otherwise, no level would be known."""
    for j, names in enumerate(known):
        column = levels[:, j]
        for spelt, other in (("True", "1"), ("False", "0")), (("1", "True"), ("0", "False")):
            if set(names) <= {spelt[0], other[0], None}:
                for new, old in (spelt, other):
                    column[column == old] = new


def _find_unknown(owner: str, name: str, levels: Array, known: Array, *, numbers: bool) -> UnknownLevels:
    """Return how many values of a column are unknown."""
    names = [level for level in known if level is not None]
    codes, values = pd.factorize(levels)
    strange = ~pd.Index(values).isin(names)
    counts = np.bincount(codes[codes >= 0], minlength=len(values))
    example = str(values[strange][0]) if strange.any() else None
    found = UnknownLevels(name, int(counts[strange].sum()), int(counts.sum()), example)
    if found.unknown and found.unknown == found.present:
        before = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
        if numbers and not any(map(_reads_as_number, names)):
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


def _reads_as_number(level: str) -> bool:
    try:
        float(level)
    except ValueError:
        return False
    return True
