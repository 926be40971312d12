"""The two-way partial AUC for scikit-learn's model selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import make_scorer

from moreauc._checks import check_region
from moreauc.metrics.ranking import Ties, check_ties, tpauc_score

_OWNER = "tpauc_scorer"


def tpauc_scorer(
    *, min_tpr: float, max_fpr: float, ties: Ties = "curve", positive_label: Any = None
) -> Callable[..., float]:
    """Return :func:`tpauc_score` as a scorer for scikit-learn's `cross_val_score`, `GridSearchCV` and the like.

    It calls the estimator's `decision_function`, or `predict_proba` where there is none. The arguments are checked
    here, since a search turns errors inside a scorer into NaN.

    Args:
        min_tpr: lower edge of the true positive rate, in [0, 1).
        max_fpr: upper edge of the false positive rate, in (0, 1].
        ties: how a positive and a negative with equal scores count, "curve", "half" or "lost" as in
            :func:`tpauc_score`. With "half" a search may choose a constant model.
        positive_label: the positive class; None for 1.

    Returns:
        A scorer, called `(estimator, X, y)`, that accepts `sample_weight` as scikit-learn's own do.

    Example:
        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.dummy import DummyClassifier
        >>> from sklearn.model_selection import cross_val_score
        >>> from sklearn.naive_bayes import GaussianNB
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> scorer = tpauc_scorer(min_tpr=0.5, max_fpr=0.5)
        >>> cross_val_score(GaussianNB(), X, y, scoring=scorer, cv=3).round(2).tolist()
        [0.91, 0.96, 0.97]
        >>> cross_val_score(DummyClassifier(), X, y, scoring=scorer, cv=3).tolist()  # the same score for all rows
        [0.0, 0.0, 0.0]
    """
    min_tpr, max_fpr = check_region(_OWNER, min_tpr, max_fpr)
    check_ties(_OWNER, ties)
    response = ("decision_function", "predict_proba")
    score: Callable[..., float] = tpauc_score
    options: dict[str, Any] = {"min_tpr": min_tpr, "max_fpr": max_fpr, "ties": ties}
    if positive_label is not None:
        # scikit-learn knows this word, and turns scores round where it is the first of the classes
        score, options = _score_of_label, {**options, "pos_label": positive_label}
    scorer: Callable[..., float] = make_scorer(score, response_method=response, **options)
    return scorer


def _score_of_label(y_true: ArrayLike, y_score: ArrayLike, *, pos_label: Any, **options: Any) -> float:
    """Return the score where one of two classes of any kind is the positive one."""
    labels = np.asarray(y_true)
    if len(np.unique(labels)) > 2:
        raise ValueError(f"{_OWNER}: y must hold two classes, got {len(np.unique(labels))}")
    return tpauc_score((labels == pos_label).astype(np.int64), y_score, **options)
