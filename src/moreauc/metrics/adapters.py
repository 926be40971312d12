"""The two-way partial AUC for scikit-learn's model selection, and for data that comes batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import make_scorer
from torch import Tensor

from moreauc._checks import check_region
from moreauc.metrics.ranking import Array, Classes, selected_fraction, split_classes, tpauc_score


class StreamingTPAUC:
    """Collects scores over batches; `compute()` is :func:`~moreauc.metrics.tpauc_score` of all of them, exactly.

    Every score is stored, in its precision, since a row outside the region now may be inside it later. The object can
    be pickled; `merge` joins those of several processes.

    Args:
        min_tpr: lower edge of the true positive rate, in [0, 1).
        max_fpr: upper edge of the false positive rate, in (0, 1].

    Example:
        >>> meter = StreamingTPAUC(min_tpr=0.5, max_fpr=0.5)
        >>> meter.update([0.9, 0.8, 0.6, 0.4], [1, 1, 0, 0])
        >>> meter.update([0.4, 0.3, 0.2, 0.1], [1, 1, 0, 0])
        >>> meter
        StreamingTPAUC(min_tpr=0.5, max_fpr=0.5): 4 positives, 4 negatives
        >>> meter.compute()
        0.125
    """

    def __init__(self, *, min_tpr: float, max_fpr: float) -> None:
        self.min_tpr, self.max_fpr = check_region("StreamingTPAUC", min_tpr, max_fpr)
        self._positives: list[Array] = []
        self._negatives: list[Array] = []

    def update(self, scores: ArrayLike | Tensor, labels: ArrayLike | Tensor) -> None:
        """Add one batch, which may be empty or hold one class only.

        Args:
            scores: finite scores, shape `(n,)`; a tensor may be on any device and carry a gradient.
            labels: 0 and 1 (or bool), shape `(n,)`.
        """
        names = ("labels", "scores")
        classes = split_classes("StreamingTPAUC", labels, scores, names=names, allow_empty=True)
        self._positives.append(classes.positives)
        self._negatives.append(classes.negatives)

    def compute(self) -> float:
        """Return the score of all batches so far; NaN, with a warning, where it is undefined."""
        classes = Classes(_join(self._positives), _join(self._negatives))
        return selected_fraction("StreamingTPAUC", classes, self.min_tpr, self.max_fpr)

    def reset(self) -> None:
        """Forget all batches."""
        self._positives, self._negatives = [], []

    def merge(self, other: StreamingTPAUC) -> StreamingTPAUC:
        """Add the batches of another meter of the same region, which stays as it is, and return this one."""
        if (other.min_tpr, other.max_fpr) != (self.min_tpr, self.max_fpr):
            raise ValueError(
                f"StreamingTPAUC: other must have min_tpr = {self.min_tpr} and max_fpr = {self.max_fpr}, "
                f"got {other.min_tpr} and {other.max_fpr}"
            )
        self._positives = self._positives + other._positives
        self._negatives = self._negatives + other._negatives
        return self

    def __repr__(self) -> str:
        positives, negatives = (sum(map(len, chunks)) for chunks in (self._positives, self._negatives))
        region = f"min_tpr={self.min_tpr}, max_fpr={self.max_fpr}"
        return f"StreamingTPAUC({region}): {positives} positives, {negatives} negatives"


def _join(chunks: list[Array]) -> Array:
    filled = [chunk for chunk in chunks if len(chunk)]  # the dtype of an empty batch must not decide
    return np.concatenate(filled) if filled else np.empty(0)


def tpauc_scorer(*, min_tpr: float, max_fpr: float, positive_label: Any = None) -> Callable[..., float]:
    """Return :func:`tpauc_score` as a scorer for scikit-learn's `cross_val_score`, `GridSearchCV` and the like.

    It calls the estimator's `decision_function`, or `predict_proba` where there is none, and accepts `sample_weight`.
    The arguments are checked here, since a search turns errors inside a scorer into NaN.

    Args:
        min_tpr: lower edge of the true positive rate, in [0, 1).
        max_fpr: upper edge of the false positive rate, in (0, 1].
        positive_label: the positive class; None for 1.

    Example:
        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.model_selection import cross_val_score
        >>> from sklearn.naive_bayes import GaussianNB
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> scorer = tpauc_scorer(min_tpr=0.5, max_fpr=0.5)
        >>> cross_val_score(GaussianNB(), X, y, scoring=scorer, cv=3).round(2).tolist()
        [0.91, 0.96, 0.97]
    """
    min_tpr, max_fpr = check_region("tpauc_scorer", min_tpr, max_fpr)
    response = ("decision_function", "predict_proba")
    score: Callable[..., float] = tpauc_score
    options: dict[str, Any] = {"min_tpr": min_tpr, "max_fpr": max_fpr}
    if positive_label is not None:
        # scikit-learn knows this word, and turns scores round where it is the first of the classes
        score, options = _score_of_label, {**options, "pos_label": positive_label}
    scorer: Callable[..., float] = make_scorer(score, response_method=response, **options)
    return scorer


def _score_of_label(y_true: ArrayLike, y_score: ArrayLike, *, pos_label: Any, **options: Any) -> float:
    """Return the score where one of two classes of any kind is the positive one."""
    labels = np.asarray(y_true)
    if len(np.unique(labels)) > 2:
        raise ValueError(f"tpauc_scorer: y must hold two classes, got {len(np.unique(labels))}")
    return tpauc_score((labels == pos_label).astype(np.int64), y_score, **options)
