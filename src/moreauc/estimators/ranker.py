"""The base of all models of rows: predictions, and what `fit` has in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.utils import Tags, _safe_indexing, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from moreauc.data.duplicates import Codes, number_equal
from moreauc.data.tabular import TableEncoder
from moreauc.estimators.base import (
    Array,
    Floats,
    all_or_nothing,
    check_groups,
    check_scores,
    check_table,
    check_targets,
)
from moreauc.estimators.decisions import Judged, TwoClassScorer
from moreauc.estimators.rows import WeightedRows


class TrainingRows(NamedTuple):
    """The rows of `fit` whose weight is above 0.

    Attributes:
        numbers: which of the rows given they are.
        table: their features.
        values: their classes.
        weight: above 0.
        group: number of the group of each, from 0; None without groups.
        classes: the two classes, sorted.
        label: the class to find.
    """

    numbers: Array
    table: Any
    values: Array
    weight: Floats
    group: Codes | None
    classes: Array
    label: object

    @property
    def positive(self) -> Array:
        """Which rows are of the class to find."""
        found: Array = self.values == self.label
        return found


class Ranker(TwoClassScorer):
    """Rows of a table.

    `X` is an array of numbers (NaN for missing values), a sparse matrix, or a DataFrame that may also have bool,
    string, category and date columns; docs/estimator.md says how each kind is encoded.

    Attributes:
        preprocessor_: turns `X` into numbers; None where the model takes `X` as it is.
    """

    _precision: ClassVar[type[np.floating[Any]]] = np.float64  # of what is returned
    preprocessor_: TableEncoder | None

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.sparse = True
        return tags

    @all_or_nothing
    def fit(
        self, X: object, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Fit on a table and its two classes.

        Args:
            X: array, sparse matrix or DataFrame, shape `(n, n_features)`.
            y: classes, two of any kind, shape `(n,)`.
            sample_weight: weights of at least 0, shape `(n,)`; a row of weight 2 counts as two rows, but not in the
                encoding of a DataFrame. None for 1 each.
            groups: what each row belongs to, such as a patient or the scaffold of a molecule, shape `(n,)`: rows of one
                group are in one fold, or all held out or none of them. None to keep equal rows together.
        """
        self._check_arguments()
        given = self._training_rows(X, y, sample_weight, groups)
        self._decide_by(given.classes, given.label, self._fit_rows(given))
        return self

    def decision_function(self, X: object) -> Array:
        """Return how far the raw scores are from the threshold, shape `(n,)`; above 0 is `classes_[1]`."""
        return self._margins(self._scores(X)).astype(self._precision)

    def predict(self, X: object) -> Array:
        """Return the class of each row, shape `(n,)`, at the threshold chosen for the false-positive budget."""
        return self._decide(self.decision_function(X))

    def predict_proba(self, X: object) -> Array:
        """Return the probabilities of `classes_`, shape `(n, 2)`; see the argument `probabilities`."""
        return self._probabilities(self._scores(X)).astype(self._precision)

    def score(self, X: object, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the two-way partial AUC of the raw scores in the region; see :func:`moreauc.metrics.tpauc_score`.

        Args:
            X: array or DataFrame, shape `(n, n_features)`.
            y: classes, shape `(n,)`.
            sample_weight: weights of at least 0, shape `(n,)`.
        """
        scores = self._scores(X)
        return self._partial_auc(column_or_1d(y), scores, sample_weight)

    def log_odds(self, X: object) -> Floats:
        """Return the calibrated log odds of the class to find, shape `(n,)`."""
        scores = self._direction() * self.decision_function(X).astype(np.float64) + self.threshold_
        odds: Floats = self.platt_.slope * scores + self.platt_.intercept
        return odds

    @abstractmethod
    def _check_arguments(self) -> None:
        """Check the arguments of the estimator."""

    @abstractmethod
    def _fit_rows(self, given: TrainingRows) -> Judged:
        """Fit to rows, and return those that threshold and probabilities are chosen by."""

    @abstractmethod
    def _score_table(self, table: Any) -> Array:
        """Return the raw scores of a checked table, shape `(n,)`, which rise with the chance of `positive_label_`."""

    def _scores(self, X: object) -> Array:
        check_is_fitted(self)
        return check_scores(self._owner, self._score_table(check_table(self, X, reset=False)))

    def _training_rows(
        self, X: object, y: ArrayLike, sample_weight: ArrayLike | None, groups: ArrayLike | None
    ) -> TrainingRows:
        """Check the arguments of `fit`, which calls this, and leave out rows of weight 0."""
        table = check_table(self, X, reset=True, stacklevel=5)
        values = check_targets(self._owner, table, y)
        weight = _check_sample_weight(sample_weight, table, dtype=np.float64, ensure_non_negative=True)
        group = None if groups is None else check_groups(self._owner, table, groups)
        numbers = np.flatnonzero(weight)
        if len(numbers) < len(weight):
            table, values, weight = _safe_indexing(table, numbers), values[numbers], weight[numbers]
            group = None if group is None else number_equal(group[numbers])
        classes = self._two_classes(values)
        label = self._choose_label(classes, values, stacklevel=5)
        return TrainingRows(numbers, table, values, weight, group, classes, label)

    def _two_classes(self, values: Array) -> Array:
        """Return the classes, which must be two."""
        check_classification_targets(values)
        kind = type_of_target(values, input_name="y", raise_unknown=True)
        if kind != "binary":  # scikit-learn's wording
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        classes: Array = np.unique(values)
        if len(classes) < 2:
            raise ValueError(f"{self._owner}: y must hold two classes, got one class, {classes[:1].tolist()}")
        return classes

    def _design(self, given: TrainingRows, *, encode: bool | None = None) -> WeightedRows:
        """Return rows of numbers, float64, and set the encoder of later tables; None to encode DataFrames only."""
        self.preprocessor_ = None
        if isinstance(given.table, pd.DataFrame) if encode is None else encode:
            self.preprocessor_ = TableEncoder(standardize=False, owner=self._owner, dtype=np.float64)
            numbers = self.preprocessor_.fit_encode(given.table)
        else:
            numbers = given.table.astype(np.float64, copy=False)
        return WeightedRows(numbers, given.positive, given.weight, given.group)

    def _encode(self, table: Any) -> Any:
        """Return a checked table as numbers, float64."""
        if self.preprocessor_ is not None:
            table = self.preprocessor_.transform(table)
        return table if issparse(table) else np.ascontiguousarray(table, dtype=np.float64)
