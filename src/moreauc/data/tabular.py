"""Tables as arrays for a model: one encoder for arrays, sparse matrices and DataFrames."""

from __future__ import annotations

import warnings
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import MaxAbsScaler, OneHotEncoder, StandardScaler
from sklearn.utils.validation import check_is_fitted

from moreauc.data.dates import DateParts
from moreauc.data.doubts import LEAST_ROWS, MOST_LEVELS
from moreauc.data.duplicates import Codes, hash_rows, hash_sparse, number_equal
from moreauc.data.schema import Column, ColumnWarning, Schema, TypedFrame, UnknownLevels, learn_frame, warn_of_doubts
from moreauc.data.tables import TableError
from moreauc.data.texts import Kind, lost_in_floats

Rows = NDArray[np.int64]
Encoded: TypeAlias = NDArray[np.floating] | csr_array
Input: TypeAlias = NDArray[np.floating] | csr_array | pd.DataFrame


class TableEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turn a table into a dense array, a sparse matrix into a sparse one.

    Numbers: a missing value becomes the median, and a column that had any gets a second one that marks them;
    standardised to mean 0 and deviation 1. Dates: numbers, days since the earliest of the training and parts of the
    calendar (:class:`~moreauc.data.dates.DateParts`), missing ones marked by one column. Texts (bool, string and
    category columns of a DataFrame): one column of 0 and 1 for each level, a missing value being a level of its own;
    rare levels share one column, which a level not seen in `fit` has, too. A sparse matrix of numbers stays sparse: its
    columns are divided by their largest magnitude, not centred, and must have no missing values.

    Args:
        standardize: whether to standardise the numbers.
        owner: class named in errors.
        dtype: floating point type of the result.

    Attributes:
        kinds_: the kind of each column, a :class:`~moreauc.data.texts.Kind`.
        schema_: the :class:`~moreauc.data.schema.Schema` of a DataFrame; None for other tables.
        dates_: the :class:`~moreauc.data.dates.DateParts` of each column of dates.
        num_outputs_: columns of the result.

    Example:
        >>> table = pd.DataFrame({"age": [20.0, None, 40.0, 30.0, 30.0], "town": ["a", "a", "b", "a", "b"]})
        >>> encoder = TableEncoder().fit(table)
        >>> [str(kind) for kind in encoder.kinds_]
        ['number', 'text']
        >>> encoder.transform(table).round(2)
        array([[-1.58,  0.  ,  1.  ,  0.  ],
               [ 0.  ,  1.  ,  1.  ,  0.  ],
               [ 1.58,  0.  ,  0.  ,  1.  ],
               [ 0.  ,  0.  ,  1.  ,  0.  ],
               [ 0.  ,  0.  ,  0.  ,  1.  ]], dtype=float32)
    """

    kinds_: list[Kind]
    schema_: Schema | None
    dates_: list[DateParts]
    num_outputs_: int

    def __init__(
        self, *, standardize: bool = True, owner: str = "TPAUCClassifier", dtype: type[np.floating] = np.float32
    ) -> None:
        self.standardize = standardize
        self.owner = owner
        self.dtype = dtype

    def fit(self, X: Input, y: object = None, *, rows: Rows | None = None) -> TableEncoder:
        """Learn the columns of a table, and medians, scales and levels of its `rows`; None for all."""
        self._fit(X, rows)
        return self

    def fit_encode(self, X: Input, *, rows: Rows | None = None) -> Encoded:
        """Return `fit(X, rows=rows).encode(X)`, reading the columns once."""
        parts = self._fit(X, rows)
        return self._encode_sparse(X) if parts is None else self._encode_parts(parts)

    def _fit(self, X: Input, rows: Rows | None) -> _Parts | None:
        """Learn from a table, and return its columns by their kinds; None for a sparse matrix."""
        if issparse(X):
            # dividing by the deviation would make rare bits of a fingerprint large, and overfitted
            scaler = MaxAbsScaler().fit(X if rows is None else X[rows])
            self.numbers_ = scaler if self.standardize else None
            self.schema_ = self.calendar_ = self.levels_ = None
            self.kinds_, self.dates_, self.num_outputs_, self.sparse_ = [Kind.NUMBER] * X.shape[1], [], X.shape[1], True
            return None
        schema = None
        if isinstance(X, pd.DataFrame):
            known = isinstance(X, TypedFrame)
            X = learn_frame(self.owner, X)
            schema = X.schema
            if not known:
                warn_of_doubts(self.owner, schema, stacklevel=3)
        parts = _split(X)
        some = parts if rows is None else parts.take(rows)
        dates = [DateParts.of(column) for column in some.dates]
        values = [*_with_dates(some, dates), some.levels]
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
        fitted = [step.fit(own) if own.shape[1] else None for step, own in zip(steps, values, strict=True)]
        self.numbers_, self.calendar_, self.levels_ = fitted  # set last: nothing below can fail
        self.kinds_ = [Kind.NUMBER] * X.shape[1] if schema is None else [column.kind for column in schema.columns]
        self.schema_, self.dates_, self.sparse_ = schema, dates, False
        firsts = [own[:1] for own in values]
        self.num_outputs_ = sum(part.shape[1] for part in self._transformed(*firsts))
        return parts

    def transform(self, X: Input) -> Encoded:
        """Return the array that belongs to a table of the same columns, shape `(n, num_outputs_)`.

        A :class:`~moreauc.data.schema.ColumnWarning` tells of levels that were not there in `fit`.
        """
        X = self._read(X)
        for column in self._unknown(X, self.owner):
            if column.unknown:
                warnings.warn(f"{self.owner}: {column}", ColumnWarning, stacklevel=2)
        return self._encode(X)

    def encode(self, X: Input) -> Encoded:
        """Return what :meth:`transform` returns, without warnings of levels that were not there in `fit`."""
        return self._encode(self._read(X))

    def unknown_levels(self, X: Input) -> list[UnknownLevels]:
        """Return for each column of levels how many values were not there in `fit`."""
        return self._unknown(self._read(X), self.owner)

    def find_numbers(self) -> NDArray[np.bool_]:
        """Return which columns of the result are numbers and parts of dates; the others mark levels and missing values.

        Shape `(num_outputs_,)`.
        """
        found = np.zeros(self.num_outputs_, dtype=bool)
        found[: len(self.kinds_) - self.kinds_.count(Kind.TEXT)] = True  # and days; then what marks missing ones
        levels = 0 if self.levels_ is None else len(self.levels_.get_feature_names_out())
        end = self.num_outputs_ - levels
        found[end - sum(len(parts.names) for parts in self.dates_) : end] = True
        return found

    def _read(self, X: Input) -> Input:
        """Return a table by the kinds in `fit`."""
        check_is_fitted(self)
        if issparse(X):
            if not self.sparse_:
                raise TableError(
                    f"{self.owner}: X must be an array or a DataFrame, as in fit, got a sparse matrix; call its "
                    "toarray()"
                )
            return X
        if isinstance(X, pd.DataFrame):
            schema = self.schema_ or Schema(tuple(Column(name, Kind.NUMBER) for name in X.columns))
            return schema.read(self.owner, X)
        place = next((place for place, kind in enumerate(self.kinds_) if kind is not Kind.NUMBER), None)
        if place is not None:
            raise TableError(
                f"{self.owner}: X must be a DataFrame, as in fit, where not all columns are numbers (column {place} is "
                f"not), got {type(X).__name__}"
            )
        return X

    def _unknown(self, X: Input, owner: str) -> list[UnknownLevels]:
        return X.schema.unknown(X, source=owner) if isinstance(X, TypedFrame) else []

    def _encode(self, X: Input) -> Encoded:
        if self.sparse_:
            return self._encode_sparse(X if issparse(X) else _split(X).numbers)
        return self._encode_parts(_split(X))

    def _encode_parts(self, parts: _Parts) -> NDArray[np.floating]:
        values = [*_with_dates(parts, self.dates_), parts.levels]
        return _in_range(np.concatenate(self._transformed(*values), 1), self.dtype)

    def _encode_sparse(self, X: Input) -> csr_array:
        numbers = csr_array(X)
        if np.isnan(numbers.data).any():
            raise TableError(f"{self.owner}: X must have no missing values, as the sparse matrix in fit, got NaN")
        scaled = numbers if self.numbers_ is None else csr_array(self.numbers_.transform(numbers))
        return csr_array((_in_range(scaled.data, self.dtype), scaled.indices, scaled.indptr), shape=scaled.shape)

    def _transformed(self, *values: NDArray[np.generic]) -> list[NDArray[np.floating]]:
        """Return what numbers, parts of the calendar, and levels become."""
        steps = (self.numbers_, self.calendar_, self.levels_)
        return [step.transform(own) for step, own in zip(steps, values, strict=True) if step is not None]


def same_rows(owner: str, X: Input) -> Codes:
    """Return a number for each row of a table, from 0, the same for rows that are equal."""
    if issparse(X):
        return number_equal(hash_sparse(X))
    return number_equal(hash_rows(learn_frame(owner, X) if isinstance(X, pd.DataFrame) else pd.DataFrame(X)))


def check_exact(owner: str, X: pd.DataFrame) -> None:
    """Check that the columns of a table keep their values apart as floats."""
    for name in X:
        if reason := lost_in_floats(X[name]):
            raise TableError(f"{owner}: column {name!r} {reason}, or drop it")


class _Parts(NamedTuple):
    """A table by the kinds of its columns."""

    numbers: NDArray[np.floating]  # NaN where missing
    levels: NDArray[np.object_]  # texts, None where missing
    dates: list[pd.Series]

    def take(self, rows: Rows) -> _Parts:
        """Return some of the rows."""
        return _Parts(self.numbers[rows], self.levels[rows], [column.iloc[rows] for column in self.dates])


def _split(X: NDArray[np.floating] | TypedFrame) -> _Parts:
    if not isinstance(X, TypedFrame):
        return _Parts(X, np.empty((len(X), 0), dtype=object), [])
    kinds = [column.kind for column in X.schema.columns]
    numbers = X.loc[:, [kind is Kind.NUMBER for kind in kinds]].to_numpy(dtype=np.float64)
    levels = X.loc[:, [kind is Kind.TEXT for kind in kinds]].to_numpy(dtype=object, copy=True)
    levels[pd.isna(levels)] = None
    dates = [X.iloc[:, place] for place, kind in enumerate(kinds) if kind in (Kind.DATE, Kind.ZONED_DATE)]
    return _Parts(numbers, levels, dates)


def _with_dates(parts: _Parts, dates: list[DateParts]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return the numbers with the days since the first date of each column of dates, and the parts of the calendar."""
    if not dates:
        return parts.numbers, np.empty((len(parts.numbers), 0))
    days, calendar = zip(*(own.numbers(column) for own, column in zip(dates, parts.dates, strict=True)), strict=True)
    return np.column_stack([parts.numbers, *days]), np.column_stack(calendar)


def _in_range(numbers: NDArray[np.floating], dtype: type[np.floating]) -> NDArray[np.floating]:
    """Return numbers of a type; those beyond its range become its largest, not infinity."""
    limit = np.finfo(dtype).max
    clipped: NDArray[np.floating] = np.clip(numbers, -limit, limit).astype(dtype)
    return clipped
