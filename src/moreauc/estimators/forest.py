"""Two-way partial AUC of a random forest for scikit-learn."""

from __future__ import annotations

import warnings
from dataclasses import field
from typing import Any, Literal

import numpy as np
from scipy.special import logit
from sklearn.ensemble import RandomForestClassifier
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from moreauc._checks import floor_count
from moreauc.estimators.base import Array, Floats, with_arguments
from moreauc.estimators.decisions import Judged
from moreauc.estimators.description import Description
from moreauc.estimators.ranker import Ranker, TrainingRows
from moreauc.estimators.rows import WeightedRows, in_float32, merge_equal

_LEAVES = (1, 5)  # sizes of leaves to choose from
_MANY = 50_000  # rows from which on a tree sees so many of them, and the larger leaves are used without a choice


@with_arguments
class TPAUCForest(Ranker):
    r"""Random forest whose classes weigh the same, with leaves of the size that ranks the region best.

    A :class:`sklearn.ensemble.RandomForestClassifier` that splits by the log loss, in which all positives of a tree
    together weigh as much as all its negatives. Two forests are grown, with at least 1 and 5 rows in a leaf; the one
    with the higher two-way partial AUC of the out-of-bag scores is used (1 where they are equal). A row's out-of-bag
    score is that of the trees that did not see it. These scores also set the threshold of `predict` and the
    probabilities. With more than 50,000 rows each tree is grown from 50,000 of them, drawn at random, and only the
    forest with at least 5 rows in a leaf is grown.

    Equal rows are one row with their weights added up, so that a row of weight 2 gives the same model as two rows.

    NaN in arrays is left to scikit-learn, which finds a side of each split for it. `groups` are accepted, but a forest
    draws single rows: the trees of an out-of-bag score may have seen others of its group.

    Args:
        n_estimators: number of trees.
        min_samples_leaf: smallest number of rows in a leaf; "auto" for the choice between 1 and 5.
        n_jobs: number of threads, as in scikit-learn: None for 1, -1 for all cores.
        random_state: seed or generator of the forest; None for NumPy's global generator.

    Attributes:
        forest_: the `RandomForestClassifier`; its classes are False and True, for `positive_label_`.
        feature_importances_: share of each column in what the splits gain; of the columns that `preprocessor_` makes
            where there is one.
        min_samples_leaf_: the size of leaves that is used.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(900, 6, weights=[0.9], flip_y=0, n_clusters_per_class=1, random_state=0)
        >>> forest = TPAUCForest(min_tpr=0.5, max_fpr=0.3, random_state=0).fit(X[:600], y[:600])
        >>> forest.score(X[600:], y[600:]) > 0.9
        True
    """

    n_estimators: int = 200
    min_samples_leaf: int | Literal["auto"] = "auto"
    n_jobs: int | None = None
    forest_: RandomForestClassifier = field(init=False)
    min_samples_leaf_: int = field(init=False)

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

    def _sizes(self, rows: WeightedRows) -> tuple[int, ...]:
        """Return the sizes of leaves to try: one where the rows are too many, or too few for the region."""
        if self.min_samples_leaf != "auto":
            return (self.min_samples_leaf,)
        if len(rows.weight) > _MANY:
            return _LEAVES[-1:]
        counts = ((int(rows.positive.sum()), 1.0 - self.min_tpr), (int((~rows.positive).sum()), self.max_fpr))
        return _LEAVES if all(floor_count(count // 2, share) >= 1 for count, share in counts) else _LEAVES[:1]

    def _grow(self, rows: WeightedRows, size: int, seed: int) -> RandomForestClassifier:
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
            forest.fit(in_float32(rows.X), rows.positive, rows.weight_or_none)
        return forest

    def _shares(self, design: Any) -> Floats:
        shares: Floats = self.forest_.predict_proba(in_float32(design))[:, 1]
        return shares

    def _odds(self, shares: Floats) -> Floats:
        """Return log odds of the forest's shares, which may be 0 or 1."""
        odds: Floats = logit((self.n_estimators * shares + 0.5) / (self.n_estimators + 1.0))
        return odds

    def _check_arguments(self) -> None:
        self._check_decisions()
        self._check_counts("n_estimators", *(() if self.min_samples_leaf == "auto" else ("min_samples_leaf",)))

    def _fit_rows(self, given: TrainingRows) -> Judged:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rows, _ = merge_equal(self._design(given))
        forests = [self._grow(rows, size, seed) for size in self._sizes(rows)]
        found = [_out_of_bag(rows, forest) for forest in forests]
        region, best = (self.min_tpr, self.max_fpr), 0
        if len(forests) > 1:
            best = int(np.argmax([judged.partial_auc(shares, region) for judged, shares in found]))
        self.forest_, self.min_samples_leaf_ = forests[best], int(forests[best].min_samples_leaf)
        judged, shares = found[best]
        if judged.positive.all() or not judged.positive.any():
            judged, shares = rows, self._shares(rows.X)
        return judged.judged(self._odds(shares))

    def _score_table(self, table: Any) -> Array:
        return self._odds(self._shares(self._encode(table)))


def _out_of_bag(rows: WeightedRows, forest: RandomForestClassifier) -> tuple[WeightedRows, Floats]:
    """Return the rows that some tree did not see, and the share of positives by these trees."""
    shares = forest.oob_decision_function_
    known = np.flatnonzero(shares.sum(axis=1) > 0.5)  # 0, or NaN, where every tree saw the row; else 1
    return rows.part(known), shares[known, 1]
