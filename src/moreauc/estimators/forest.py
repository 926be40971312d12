"""Two-way partial AUC of a random forest for scikit-learn."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logit
from sklearn.ensemble import RandomForestClassifier
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from moreauc._checks import check_count, floor_count
from moreauc.estimators.base import Array, all_or_nothing
from moreauc.estimators.boosted_fit import in_float32
from moreauc.estimators.decisions import TreeRanker
from moreauc.estimators.description import Description
from moreauc.estimators.linear_fit import Floats, Rows, merge_equal
from moreauc.metrics import tpauc_score

_LEAVES = (1, 5)  # sizes of leaves to choose from
_MANY = 50_000  # rows from which on a tree sees so many of them, and the larger leaves are used without a choice


class TPAUCForest(TreeRanker):
    r"""Random forest whose classes weigh the same, with leaves of the size that ranks the region best.

    A :class:`sklearn.ensemble.RandomForestClassifier` that splits by the log loss, in which all positives of a tree
    together weigh as much as all its negatives. Two forests are grown, with at least 1 and 5 rows in a leaf; the one
    with the higher two-way partial AUC of the out-of-bag scores is used (1 where they are equal). A row's out-of-bag
    score is that of the trees that did not see it. These scores also set the threshold of `predict` and the
    probabilities. With more than 50,000 rows each tree is grown from 50,000 of them, drawn at random, and only the
    forest with at least 5 rows in a leaf is grown.

    Equal rows are one row with their weights added up, so that a row of weight 2 gives the same model as two rows.

    `X` is an array of numbers, a sparse matrix, which stays sparse, or a DataFrame that may also have bool, string,
    category and date columns, as in :class:`TPAUCClassifier`. NaN in arrays is left to scikit-learn, which finds a side
    of each split for it.

    Args:
        min_tpr: lower end of the true positive rate, in [0, 1).
        max_fpr: upper end of the false positive rate, in (0, 1].
        n_estimators: number of trees.
        min_samples_leaf: smallest number of rows in a leaf; "auto" for the choice between 1 and 5.
        fpr_budget: largest false positive rate that `predict` may have on the out-of-bag scores, in [0, 1]; None for
            `max_fpr`.
        probabilities: "calibrated" for Platt scaling of the scores; "threshold" for 1/2 at the threshold, as in
            :class:`TPAUCClassifier`.
        positive_label: the class to find; None as in :class:`TPAUCClassifier`.
        n_jobs: number of threads, as in scikit-learn: None for 1, -1 for all cores.
        random_state: seed or generator of the forest; None for NumPy's global generator.

    Attributes:
        forest_: the `RandomForestClassifier`; its classes are False and True, for `positive_label_`.
        feature_importances_: share of each column in what the splits gain; of the columns that `preprocessor_` makes
            where there is one.
        min_samples_leaf_: the size of leaves that is used.
        preprocessor_: turns a DataFrame into numbers; None for arrays and sparse matrices.
        classes_: the two classes, sorted.
        positive_label_: the class to find.
        threshold_: rows with a raw score above it are predicted positive.
        platt_: slope and intercept of the calibrated log odds over the raw score.
        n_features_in_: number of features.
        feature_names_in_: their names, if `X` was a DataFrame with string column names.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(900, 6, weights=[0.9], flip_y=0, n_clusters_per_class=1, random_state=0)
        >>> forest = TPAUCForest(min_tpr=0.5, max_fpr=0.3, random_state=0).fit(X[:600], y[:600])
        >>> forest.score(X[600:], y[600:]) > 0.9
        True
    """

    forest_: RandomForestClassifier
    min_samples_leaf_: int

    def __init__(
        self,
        *,
        min_tpr: float = 0.5,
        max_fpr: float = 0.5,
        n_estimators: int = 200,
        min_samples_leaf: int | Literal["auto"] = "auto",
        fpr_budget: float | None = None,
        probabilities: Literal["calibrated", "threshold"] = "calibrated",
        positive_label: Any = None,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self._keep(locals())

    @all_or_nothing
    def fit(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> TPAUCForest:
        """Fit on a table and its two classes.

        Args:
            X: array, sparse matrix or DataFrame, shape `(n, n_features)`.
            y: classes, two of any kind, shape `(n,)`.
            sample_weight: weights of at least 0, shape `(n,)`; a row of weight 2 counts as two rows, but not in the
                encoding of a DataFrame. None for 1 each.
            groups: what each row belongs to, shape `(n,)`. Accepted as by the other classifiers; a forest draws single
                rows, so the trees of an out-of-bag score may have seen others of its group.
        """
        self._check_arguments()
        given = self._training_rows(X, y, sample_weight, groups)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rows, _ = merge_equal(Rows(self._fit_design(given.table), given.values == given.label, given.weight))
        forests = [self._grow(rows, size, seed) for size in self._sizes(rows)]
        points = [self._point(rows, forest) for forest in forests] if len(forests) > 1 else [0.0]
        best = int(np.argmax(points))
        self.forest_, self.min_samples_leaf_ = forests[best], int(forests[best].min_samples_leaf)
        judged, shares = _out_of_bag(rows, self.forest_)
        if judged.positive.all() or not judged.positive.any():
            judged, shares = rows, self._shares(rows.X)
        self._decide_by(given.classes, given.label, judged.positive, self._odds(shares), judged.weight)
        return self

    @property
    def feature_importances_(self) -> Floats:
        """Share of each column in what the splits gain, shape `(columns,)`."""
        check_is_fitted(self, "forest_")
        shares: Floats = self.forest_.feature_importances_
        return shares

    def describe(self) -> Description:
        """Return what a page shows of the fitted estimator."""
        check_is_fitted(self, "forest_")
        return Description(
            kind="forest",
            title=self.title,
            threshold=self.threshold_,
            summary=f"{self.n_estimators} trees with at least {self.min_samples_leaf_} rows in a leaf",
            importance=self.feature_importances_,
        )

    def _sizes(self, rows: Rows) -> tuple[int, ...]:
        """Return the sizes of leaves to try: one where the rows are too many, or too few for the region."""
        if self.min_samples_leaf != "auto":
            return (self.min_samples_leaf,)
        if len(rows.weight) > _MANY:
            return _LEAVES[-1:]
        counts = ((int(rows.positive.sum()), 1.0 - self.min_tpr), (int((~rows.positive).sum()), self.max_fpr))
        return _LEAVES if all(floor_count(count // 2, share) >= 1 for count, share in counts) else _LEAVES[:1]

    def _grow(self, rows: Rows, size: int, seed: int) -> RandomForestClassifier:
        forest = RandomForestClassifier(
            self.n_estimators,
            criterion="log_loss",
            class_weight="balanced_subsample",  # "balanced" would draw rare positives so often that none is out of bag
            min_samples_leaf=size,
            oob_score=True,
            max_samples=_MANY if len(rows.weight) > _MANY else None,
            n_jobs=self.n_jobs,
            random_state=seed,
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Some inputs do not have OOB scores", UserWarning)
            forest.fit(in_float32(rows.X), rows.positive, None if (rows.weight == 1.0).all() else rows.weight)
        return forest

    def _point(self, rows: Rows, forest: RandomForestClassifier) -> float:
        """Return the partial AUC of the out-of-bag scores."""
        judged, shares = _out_of_bag(rows, forest)
        return tpauc_score(judged.positive, shares, sample_weight=judged.weight, **self._region())

    def _shares(self, design: Any) -> Floats:
        shares: Floats = self.forest_.predict_proba(in_float32(design))[:, 1]
        return shares

    def _odds(self, shares: Floats) -> Floats:
        """Return log odds of the forest's shares, which may be 0 or 1."""
        odds: Floats = logit((self.n_estimators * shares + 0.5) / (self.n_estimators + 1.0))
        return odds

    def _check_arguments(self) -> None:
        self._check_decisions()
        self._check_counts("n_estimators")
        if self.min_samples_leaf != "auto":
            check_count(self._owner, "min_samples_leaf", self.min_samples_leaf)

    def _scores(self, X: Any) -> Array:
        check_is_fitted(self, "forest_")
        return self._check_scores(self._odds(self._shares(self._design(X))))


def _out_of_bag(rows: Rows, forest: RandomForestClassifier) -> tuple[Rows, Floats]:
    """Return the rows that some tree did not see, and the share of positives by these trees."""
    shares = forest.oob_decision_function_
    known = np.flatnonzero(shares.sum(axis=1) > 0.5)  # 0, or NaN, where every tree saw the row; else 1
    return rows.part(known), shares[known, 1]
