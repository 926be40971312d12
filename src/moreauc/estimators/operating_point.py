"""From raw scores to decisions and probabilities: the threshold at a false-positive budget, and Platt scaling."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from moreauc._checks import floor_count

Array = NDArray[Any]

# Smallest slope of the fitted curve, in standard deviations of the scores: probabilities always rise with the score.
_LEAST_SLOPE = 1e-3


def choose_threshold(labels: Array, scores: Array, budget: float) -> float:
    """Return the threshold with the most true positives among those whose false positive rate is at most `budget`.

    A row is called positive where its score is above the threshold. Of several thresholds with as many the one with
    the fewest false positives is taken; it lies in the middle between the two neighbouring scores, or, beyond the
    last score on either side, half the distance to the score next to it away (0.5 where all scores are equal).

    Args:
        labels: 0/1 or bool, shape `(n,)`, both present.
        scores: finite, shape `(n,)`.
        budget: largest share of the negatives that may be called positive, in [0, 1].

    Example:
        >>> labels = np.array([0, 0, 0, 0, 1, 1])
        >>> scores = np.array([0.0, 1.0, 2.0, 4.0, 3.0, 5.0])
        >>> choose_threshold(labels, scores, 0.25), choose_threshold(labels, scores, 0.0)
        (2.5, 4.5)
    """
    values, place = np.unique(np.asarray(scores, dtype=np.float64), return_inverse=True)
    positive = np.asarray(labels, dtype=bool)
    hits = np.bincount(place[positive], minlength=len(values))
    alarms = np.bincount(place[~positive], minlength=len(values))
    # Entry k: rows at or above values[k], the last entry for none.
    hits = np.append(hits[::-1].cumsum()[::-1], 0)
    alarms = np.append(alarms[::-1].cumsum()[::-1], 0)
    hits[alarms > floor_count(int((~positive).sum()), budget)] = -1
    # Alarms fall with k: the last of the best is the one with the fewest.
    cut = len(hits) - 1 - int(np.argmax(hits[::-1]))
    gap = np.diff(values) if len(values) > 1 else np.ones(1)
    edges = np.concatenate(
        [[values[0] - gap[0] / 2], values[:-1] + gap[: len(values) - 1] / 2, [values[-1] + gap[-1] / 2]]
    )
    return float(edges[cut])


class PlattScaling(NamedTuple):
    """Probability of a positive as a logistic curve over the score: `expit(slope * score + intercept)`, slope > 0."""

    slope: float
    intercept: float

    def probability(self, scores: Array) -> Array:
        """Return the probability of a positive for each score."""
        probability: Array = expit(self.slope * scores + self.intercept)
        return probability


def fit_platt(labels: Array, scores: Array) -> PlattScaling:
    """Fit the logistic curve by maximum likelihood, with Platt's targets and a slope that cannot turn.

    Instead of 1 and 0 the targets are `(n+ + 1) / (n+ + 2)` and `1 / (n- + 2)`, so that classes that the scores
    separate get a finite slope.

    Args:
        labels: 0/1 or bool, shape `(n,)`, both present.
        scores: finite, shape `(n,)`.

    Example:
        >>> curve = fit_platt(np.array([0, 0, 1, 1]), np.array([-2.0, -1.0, 1.0, 2.0]))
        >>> curve.probability(np.array([-1.5, 0.0, 1.5])).round(2)
        array([0.27, 0.5 , 0.73])

    Reference:
        Platt, Probabilistic outputs for support vector machines, 1999.
    """
    positive = np.asarray(labels, dtype=bool)
    number = int(positive.sum())
    target = np.where(positive, (number + 1) / (number + 2), 1 / (len(positive) - number + 2))
    values = np.asarray(scores, dtype=np.float64)
    centre, scale = values.mean(), values.std() or 1.0
    x = (values - centre) / scale

    def loss(parameters: Array) -> tuple[float, Array]:
        z = parameters[0] * x + parameters[1]
        wrong = expit(z) - target
        return float(np.mean(np.logaddexp(0.0, z) - target * z)), np.array([np.mean(wrong * x), np.mean(wrong)])

    rate = target.mean()
    start = np.array([1.0, np.log(rate / (1.0 - rate))])
    slope, intercept = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(_LEAST_SLOPE, None), (None, None)]).x
    return PlattScaling(float(slope / scale), float(intercept - slope * centre / scale))
