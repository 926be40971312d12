r"""Gradient-boosted trees for the two-way partial AUC: an objective and a metric for LightGBM and XGBoost.

Neither library is imported here: the objective and the metric are plain functions of arrays.
"""

from __future__ import annotations

from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from moreauc._checks import check_count, check_real, check_region
from moreauc.core.region import region_derivatives
from moreauc.core.surrogates import SmoothRamp, SquaredHinge, get_surrogate, scale_of
from moreauc.metrics import tpauc_score

__all__ = ["tpauc_metric", "tpauc_objective"]

Floats = NDArray[np.float64]
Value = float | tuple[str, float] | tuple[str, float, bool]  # as the libraries want that of a metric
METRIC = "auc_two_way"  # XGBoost takes metrics for such that fall unless their names begin so
# What follows came out of trials on the tables that docs/boosting.md names.
MARGIN, WIDEN, LOG_LOSS_WEIGHT, LOG_LOSS_ROUNDS = 1.0, 0.5, 30.0, 0
_LEAST = 1e-12  # of second derivatives


def tpauc_objective(
    *,
    min_tpr: float,
    max_fpr: float,
    surrogate: str = "smooth_ramp",
    margin: float = MARGIN,
    widen: float = WIDEN,
    log_loss_weight: float = LOG_LOSS_WEIGHT,
    log_loss_rounds: int = LOG_LOSS_ROUNDS,
) -> TPAUCObjective:
    r"""Return the loss over a region of the ROC square as a custom objective for LightGBM and XGBoost.

    .. math:: F(s) = n \Big[ L(s / \sigma) + \frac{\lambda}{n} \sum_k \log\big(1 + e^{-y_k (s_k + o)}\big) \Big]

    over the scores :math:`s` of all `n` training rows, with :math:`L` the mean pair loss of the lowest-scored
    positives, a share of `1 - min_tpr`, with the highest-scored negatives, a share of `max_fpr`
    (:mod:`moreauc.core.region`), :math:`\sigma` the standard deviation of the negatives' scores, held fixed in a round,
    :math:`\lambda` = `log_loss_weight` and :math:`y_k` 1 or -1. The first `log_loss_rounds` rounds minimise the log
    loss alone.

    Custom objectives start from equal scores, not from the log odds of the positives. The offset :math:`o` makes up for
    that: it is the log odds of the positives minus the score that all rows start with, and 0 where the first scores
    differ, as those of a model that is continued do.

    The gradient is exact, in float64. Rows with equal scores at the edge of the region share what is left of it. The
    Hessian is a positive diagonal that bounds the exact one of :math:`F` with the region and :math:`\sigma` held fixed
    (:func:`~moreauc.core.region.region_derivatives`): a Newton step is damped, never amplified.

    The same object is a function of `(scores, data)`, for `lightgbm.train(params={"objective": ...})` and
    `xgboost.train(obj=...)`, and of `(y_true, scores, sample_weight)`, for `LGBMClassifier(objective=...)` and
    `XGBClassifier(objective=...)`. Rounds are counted for each data set from the last time that its scores were all
    equal; where they never were, `log_loss_rounds` are taken as done. The classes must be 0 and 1.

    Args:
        min_tpr: lower end of the true positive rate, in [0, 1).
        max_fpr: upper end of the false positive rate, in (0, 1].
        surrogate: "smooth_ramp", bounded, or "squared_hinge".
        margin: its width in standard deviations of the negatives' scores, above 0.
        widen: how far the region is widened towards the whole ROC square while training, in [0, 1].
        log_loss_weight: :math:`\lambda`, at least 0.
        log_loss_rounds: rounds of log loss before, at least 0.

    Example:
        >>> objective = tpauc_objective(min_tpr=0.5, max_fpr=0.5, margin=4.0, widen=0.0, log_loss_weight=0.0)
        >>> scores, labels = np.array([2.0, 1.0, 3.0, 1.0]), np.array([1, 1, 0, 0])
        >>> gradient, hessian = objective(labels, scores)
        >>> gradient
        array([ 0. , -0.5,  0.5,  0. ])
        >>> hessian.round(2)
        array([0. , 0.5, 0.5, 0. ])
    """
    owner = "tpauc_objective"
    min_tpr, max_fpr = check_region(owner, min_tpr, max_fpr)
    check_real(owner, "margin", margin, low=0.0, low_open=True)
    widen = check_real(owner, "widen", widen, low=0.0, high=1.0)
    check_real(owner, "log_loss_weight", log_loss_weight, low=0.0)
    check_count(owner, "log_loss_rounds", log_loss_rounds, minimum=0)
    loss = get_surrogate(surrogate, margin)
    if not isinstance(loss, SmoothRamp | SquaredHinge):
        raise ValueError(f"{owner}: surrogate must be 'smooth_ramp' or 'squared_hinge', got {surrogate!r}")
    region = (1.0 - widen) * min_tpr, max_fpr + widen * (1.0 - max_fpr)
    return TPAUCObjective(loss, region, float(log_loss_weight), int(log_loss_rounds))


class TPAUCObjective:
    """The function that :func:`tpauc_objective` returns."""

    def __init__(
        self, surrogate: SmoothRamp | SquaredHinge, region: tuple[float, float], weight: float, rounds: int
    ) -> None:
        self._surrogate, self._region, self._weight, self._rounds = surrogate, region, weight, rounds
        self._seen: WeakKeyDictionary[object, tuple[int, float]] = WeakKeyDictionary()  # rounds done and offset
        self._last: tuple[int, float] | None = None  # the same where the data set is not known

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_seen": None, "_last": None}  # of a training, which does not go on elsewhere

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _seen=WeakKeyDictionary())

    def __call__(self, first: Any, second: Any, sample_weight: ArrayLike | None = None) -> tuple[Floats, Floats]:
        """Return gradient and Hessian diagonal, of `(scores, data)` or of `(y_true, scores, sample_weight)`."""
        labels, scores, weight, data = _arguments(first, second, sample_weight)
        positive, weight = _check_rows("tpauc_objective", labels, weight)
        done, offset = self._count(data, scores, positive, weight)
        probability = expit(scores + offset)
        gradient, hessian = weight * (probability - positive), weight * probability * (1.0 - probability)
        if done >= self._rounds:
            slope, curve = self._of_pairs(scores, positive, weight)
            gradient, hessian = slope + self._weight * gradient, curve + self._weight * hessian
        return gradient, np.maximum(hessian, _LEAST)

    def value(self, scores: ArrayLike, labels: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return :math:`F` of scores with offset 0, without the rounds of log loss alone."""
        own = np.asarray(scores, dtype=np.float64)
        positive, weight = _check_rows("tpauc_objective", labels, sample_weight)
        loss = weight @ np.logaddexp(0.0, np.where(positive, -own, own))
        return float(weight.sum() * self._pairs(own, positive, weight)[0].value + self._weight * loss)

    def _of_pairs(self, scores: Floats, positive: NDArray[np.bool_], weight: Floats) -> tuple[Floats, Floats]:
        """Return gradient and curvature of the pairs' part."""
        found, scale = self._pairs(scores, positive, weight)
        total = weight.sum()
        gradient, curve = np.empty_like(scores), np.empty_like(scores)
        gradient[positive], gradient[~positive] = found.positive_gradient.numpy(), found.negative_gradient.numpy()
        curve[positive], curve[~positive] = found.positive_curvature.numpy(), found.negative_curvature.numpy()
        return total * gradient / scale, total * curve / scale**2

    def _pairs(self, scores: Floats, positive: NDArray[np.bool_], weight: Floats) -> tuple[Any, float]:
        """Return value and derivatives of the pair loss over standardised scores, and their scale."""
        high, low = torch.from_numpy(scores[positive]), torch.from_numpy(scores[~positive])
        weights: list[Any] = [None, None]
        if not (weight == weight[0]).all():
            weights = [torch.from_numpy(weight[positive]), torch.from_numpy(weight[~positive])]
        scale = float(scale_of(low, count=0.0 if weights[1] is None else weights[1].sum(), weight=weights[1]))
        return region_derivatives(high / scale, low / scale, self._surrogate, *self._region, *weights), scale

    def _count(self, data: object, scores: Floats, positive: NDArray[np.bool_], weight: Floats) -> tuple[int, float]:
        """Return how many rounds were done before this one and the offset of the log odds, and count this one."""
        if (scores == scores[0]).all():
            share = float(weight @ positive / weight.sum())
            found = 0, float(np.log(share / (1.0 - share))) - float(scores[0])
        else:
            found = (self._last if data is None else self._seen.get(data)) or (self._rounds, 0.0)
        after = found[0] + 1, found[1]
        if data is None:
            self._last = after
        else:
            self._seen[data] = after
        return found


def tpauc_metric(library: Literal["lightgbm", "xgboost"], *, min_tpr: float, max_fpr: float) -> TPAUCMetric:
    """Return the two-way partial AUC as an evaluation metric of LightGBM or XGBoost, for early stopping.

    It is :func:`~moreauc.metrics.tpauc_score` under the name "auc_two_way": XGBoost minimises what it does not know,
    except where the name begins with "auc". It is for `lightgbm.train(feval=...)` and
    `LGBMClassifier.fit(eval_metric=...)`, `xgboost.train(custom_metric=...)` and `XGBClassifier(eval_metric=...)`.

    Args:
        library: which library's interface the metric has.
        min_tpr: lower end of the true positive rate, in [0, 1).
        max_fpr: upper end of the false positive rate, in (0, 1].

    Example:
        >>> metric = tpauc_metric("lightgbm", min_tpr=0.5, max_fpr=0.5)
        >>> metric(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.3, 0.9]))
        ('auc_two_way', 0.0, True)
    """
    owner = "tpauc_metric"
    if library not in ("lightgbm", "xgboost"):
        raise ValueError(f"{owner}: library must be one of ['lightgbm', 'xgboost'], got {library!r}")
    return TPAUCMetric(library, *check_region(owner, min_tpr, max_fpr))


class TPAUCMetric:
    """The function that :func:`tpauc_metric` returns."""

    def __init__(self, library: str, min_tpr: float, max_fpr: float) -> None:
        self._library = library
        self._region = {"min_tpr": min_tpr, "max_fpr": max_fpr}
        self.__name__ = METRIC  # which XGBoost asks for

    def __call__(self, first: Any, second: Any, sample_weight: ArrayLike | None = None) -> Value:
        """Return what the library wants, of `(scores, data)` or of `(y_true, scores, sample_weight)`."""
        labels, scores, weight, data = _arguments(first, second, sample_weight)
        value = tpauc_score(np.asarray(labels).astype(np.int64), scores, sample_weight=weight, **self._region)
        if self._library == "lightgbm":
            return METRIC, value, True
        return value if data is None else (METRIC, value)


def _arguments(first: Any, second: Any, sample_weight: Any) -> tuple[Any, Floats, Any, Any]:
    """Return labels, scores, weights or None, and the data set, None where only arrays came."""
    data = second if hasattr(second, "get_label") else None
    labels, scores, weight = first, second, sample_weight
    if data is not None:
        labels, scores, weight = data.get_label(), first, data.get_weight()
    if weight is not None and not len(weight):  # XGBoost's none
        weight = None
    return labels, np.asarray(scores, dtype=np.float64), weight, data


def _check_rows(owner: str, labels: ArrayLike, sample_weight: ArrayLike | None) -> tuple[NDArray[np.bool_], Floats]:
    """Return which rows are positive, and their weights, 1 each where there are none."""
    values = np.asarray(labels)
    positive = values == 1
    if not (positive | (values == 0)).all():
        strange = values[~positive & (values != 0)][0]
        raise ValueError(f"{owner}: labels must be 0 and 1, got {strange}")
    weight = np.ones(len(values)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    if not (weight >= 0).all():
        raise ValueError(f"{owner}: sample_weight must be at least 0, got {weight.min()}")
    if not weight @ positive or not weight @ ~positive:
        raise ValueError(
            f"{owner}: labels must hold both classes with weight above 0, got {int(positive.sum())} positives"
        )
    return positive, weight
