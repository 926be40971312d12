"""Baselines from other libraries: logistic regression, random forest, boosted trees.

For rows as they are, for bags on statistics of their instances, for groups plain and with equal weight of each group.
The first value of every option is the library's own default, so that the first trial of a comparison has the
library's defaults. docs/baselines.md says how each is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline

from moreauc._registry import BASELINES
from moreauc.app.tables.base import Inputs, T
from moreauc.app.tables.rows import TwoClassTask
from moreauc.data.duplicates import fold_together, number_equal
from moreauc.data.tabular import TableEncoder
from moreauc.estimators.decisions import choose_threshold
from moreauc.tasks.bags import BagsLike, as_bags

Array = NDArray[Any]
Options = Mapping[str, Any]

_FOLDS = 3  # of the cross-validation that chooses the threshold of a baseline
_MOST_STEPS = 1000  # of logistic regression; scikit-learn's default of 100 is too small for some tables


class BagStatistics(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turn each bag into one row: mean, maximum and minimum of every feature over its instances.

    Args:
        owner: class named in errors.

    Example:
        >>> BagStatistics().fit_transform([np.array([[1.0, 5.0], [3.0, 4.0]]), np.array([[0.0, 2.0]])])
        array([[2. , 4.5, 3. , 5. , 1. , 4. ],
               [0. , 2. , 0. , 2. , 0. , 2. ]])
    """

    def __init__(self, *, owner: str = "BagStatistics") -> None:
        self.owner = owner

    def fit(self, bags: BagsLike, y: ArrayLike | None = None) -> BagStatistics:
        """Note what an instance looks like, which later bags must look like, too."""
        self.form_ = as_bags(self.owner, bags)[1]
        return self

    def transform(self, bags: BagsLike) -> NDArray[np.float64]:
        """Return the statistics, shape `(bags, 3 * features)`."""
        source, _ = as_bags(self.owner, bags, self.form_)
        rows = []
        for bag in range(len(source)):
            instances = source.instances(bag).double().flatten(1).numpy()
            rows.append(np.concatenate([instances.mean(0), instances.max(0), instances.min(0)]))
        return np.stack(rows)


def group_weights(groups: ArrayLike) -> NDArray[np.float64]:
    """Return a weight for each row, of mean 1, so that the rows of every group weigh the same together.

    Example:
        >>> group_weights(["a", "a", "a", "b"]).round(3)
        array([0.667, 0.667, 0.667, 2.   ])
    """
    _, place, sizes = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    weights: NDArray[np.float64] = len(place) / (len(sizes) * sizes[place])
    return weights


def logistic(options: Options, seed: int) -> ClassifierMixin:
    """Return logistic regression of rows."""
    return make_pipeline(TableEncoder(), LogisticRegression(**options, max_iter=_MOST_STEPS))


def forest(options: Options, seed: int) -> ClassifierMixin:
    """Return a random forest of rows."""
    return make_pipeline(TableEncoder(standardize=False), RandomForestClassifier(**options, random_state=seed))


def lightgbm(options: Options, seed: int) -> ClassifierMixin:
    """Return LightGBM."""
    from lightgbm import LGBMClassifier

    # bagging has no effect at subsample 1; the rest changes speed and output only
    fixed: Options = {"subsample_freq": 1, "n_jobs": 1, "verbosity": -1, "deterministic": True}
    return make_pipeline(TableEncoder(standardize=False), LGBMClassifier(**options, **fixed, random_state=seed))


def xgboost(options: Options, seed: int) -> ClassifierMixin:
    """Return XGBoost."""
    return make_pipeline(TableEncoder(standardize=False), _XGBoost(options, seed))


class _XGBoost(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """XGBoost with LightGBM's meaning of `class_weight`."""

    def __init__(self, options: Options, seed: int) -> None:
        self.options = options
        self.seed = seed

    def fit(self, X: Array, y: Array) -> _XGBoost:
        from xgboost import XGBClassifier

        options = dict(self.options)
        if options.pop("class_weight", None) == "balanced":
            options["scale_pos_weight"] = (y == 0).sum() / (y == 1).sum()
        self.model_ = XGBClassifier(**options, random_state=self.seed, n_jobs=1, verbosity=0)
        self.model_.fit(X, y.astype(int))
        return self

    def predict_proba(self, X: Array) -> Array:
        probabilities: Array = self.model_.predict_proba(X)
        return probabilities


def trees(options: Options, seed: int) -> ClassifierMixin:
    """Return scikit-learn's boosted trees."""
    return HistGradientBoostingClassifier(**options, random_state=seed)


def logistic_of_bags(options: Options, seed: int) -> ClassifierMixin:
    """Return logistic regression of statistics of bags."""
    return make_pipeline(BagStatistics(), logistic(options, seed))


def forest_of_bags(options: Options, seed: int) -> ClassifierMixin:
    """Return a random forest of statistics of bags."""
    return make_pipeline(BagStatistics(), forest(options, seed))


def logistic_of_numbers(options: Options, seed: int) -> ClassifierMixin:
    """Return logistic regression of encoded rows."""
    return LogisticRegression(**options, max_iter=_MOST_STEPS)


@dataclass(frozen=True)
class BudgetedClassifier:
    """A fitted classifier, whose scores are cut where its false positive rate keeps to the budget."""

    model: ClassifierMixin
    threshold: float

    def decision_function(self, inputs: Inputs) -> Array:
        """Return how far the scores are from the threshold; above 0 is the positive class."""
        return scores_of(self.model, inputs) - self.threshold


def fit_baseline(name: str, task: TwoClassTask[T], train: T, *, seed: int) -> BudgetedClassifier:
    """Fit a baseline of :data:`BASELINES`, with its default options, for a task of two classes.

    The threshold is chosen by scores of folds that the classifier was not fitted on, where both classes are in each.
    """

    def fit(part: T) -> ClassifierMixin:
        return BASELINES[task.name][name].make({}, seed).fit(task.inputs(part), part.targets)

    whole = fit(train)
    scores, folds = scores_of(whole, task.inputs(train)), min(_FOLDS, int(np.bincount(train.targets).min()))
    if folds > 1:
        groups = task.fit_options(train).get("groups")
        if groups is None:
            splits = StratifiedKFold(folds, shuffle=True, random_state=seed).split(train.targets, train.targets)
        else:
            codes = number_equal(groups)
            fold = fold_together(codes, train.targets, folds, np.random.RandomState(seed))
            splits = ((np.flatnonzero(fold != one), np.flatnonzero(fold == one)) for one in range(folds))
        for own, other in splits:
            scores[other] = scores_of(fit(train.part(own)), task.inputs(train.part(other)))
    return BudgetedClassifier(whole, choose_threshold(train.targets, scores, task.budget))


def scores_of(model: ClassifierMixin, inputs: Inputs | ArrayLike) -> Array:
    """Return the scores of a fitted classifier, which rise with the chance of the second class."""
    if hasattr(model, "decision_function"):
        scores: Array = model.decision_function(inputs)
        return scores
    probability: Array = model.predict_proba(inputs)[:, 1]
    return probability
