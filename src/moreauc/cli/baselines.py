"""Logistic regression and other classifiers beside the model that `moreauc fit` trains, at the same budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold

from moreauc.baselines import BASELINES
from moreauc.estimators.base import choose_threshold
from moreauc.tasks.tables import Table

Array = NDArray[Any]
_FOLDS = 3


@dataclass(frozen=True)
class BudgetedClassifier:
    """A fitted classifier, whose scores are cut where its false positive rate keeps to the budget."""

    model: Any
    threshold: float

    def decision_function(self, inputs: Any) -> Array:
        """Return how far the scores are from the threshold; above 0 is the positive class."""
        return _scores(self.model, inputs) - self.threshold


def fit_baseline(name: str, task: Any, train: Table, *, seed: int) -> BudgetedClassifier:
    """Fit a baseline of :data:`moreauc.baselines.BASELINES`, as it comes, for a task of two classes.

    The threshold is chosen by scores of folds that the classifier was not fitted on, where both classes are in each.
    """

    def fit(part: Table) -> Any:
        return BASELINES[task.name][name].make({}, seed).fit(task.inputs(part), part.targets)

    whole = fit(train)
    scores, folds = _scores(whole, task.inputs(train)), min(_FOLDS, int(np.bincount(train.targets).min()))
    if folds > 1:
        splits = StratifiedKFold(folds, shuffle=True, random_state=seed).split(train.targets, train.targets)
        for own, other in splits:
            scores[other] = _scores(fit(train.part(own)), task.inputs(train.part(other)))
    return BudgetedClassifier(whole, choose_threshold(train.targets, scores, task.budget))


def _scores(model: Any, inputs: Any) -> Array:
    if hasattr(model, "decision_function"):
        scores: Array = model.decision_function(inputs)
        return scores
    probability: Array = model.predict_proba(inputs)[:, 1]
    return probability
