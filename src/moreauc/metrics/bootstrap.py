"""How far a score might be off because the test set is small: bootstrap intervals, standard errors of differences."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import UndefinedMetricWarning

from moreauc._checks import check_count, check_real
from moreauc.metrics.ranking import Array, as_vector, check_length, tpauc_score

_OWNER = "bootstrap_interval"


@dataclass(frozen=True)
class BootstrapInterval:
    """A score and its percentile interval; `undefined` of the `resamples` had no score, the ends are of the others."""

    estimate: float
    low: float
    high: float
    level: float
    resamples: int
    undefined: int


@dataclass(frozen=True)
class Resamples:
    """A score, and that of every resample of the test set, NaN where it is undefined.

    The difference of two that are made with one seed from the same labels is paired: each of its resamples has the same
    samples for both.
    """

    estimate: float
    draws: NDArray[np.float64]

    def __sub__(self, other: Resamples) -> Resamples:
        return Resamples(self.estimate - other.estimate, self.draws - other.draws)

    def __neg__(self) -> Resamples:
        return Resamples(-self.estimate, -self.draws)

    def interval(self, level: float = 0.95) -> BootstrapInterval:
        """Return the percentile interval; both ends are NaN where no resample has a score."""
        defined = self.draws[~np.isnan(self.draws)]
        low = high = math.nan
        if len(defined):
            low, high = np.quantile(defined, [(1.0 - level) / 2.0, (1.0 + level) / 2.0]).tolist()
        number = len(self.draws)
        return BootstrapInterval(self.estimate, low, high, level, number, number - len(defined))


def bootstrap_interval(
    metric: Callable[..., float],
    y_true: ArrayLike,
    y_score: ArrayLike,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    stratified: bool = True,
    sample_weight: ArrayLike | None = None,
    **options: Any,
) -> BootstrapInterval:
    r"""Percentile bootstrap interval of a metric over the samples of a test set.

    The ends are the (1 - `level`) / 2 and (1 + `level`) / 2 quantiles of the metric over `resamples` sets of :math:`n`
    samples drawn with replacement. The interval reflects the sampling of the test set only. In small regions percentile
    intervals are too narrow.

    Args:
        metric: called `metric(y_true, y_score, **options)`, with `sample_weight` too where it is given.
        y_true: labels, shape `(n,)`.
        y_score: scores, shape `(n,)`.
        level: nominal coverage, in (0, 1).
        resamples: number of resamples, at least 1.
        seed: seed of the draws, at least 0; no global seed is touched.
        stratified: draw within each class, so that its size stays as it is.
        sample_weight: weights, shape `(n,)`, drawn together with their samples.
        **options: further keywords of the metric, such as `min_tpr` and `max_fpr`.

    Returns:
        The estimate and the ends, with the settings. Both ends are NaN, with an `UndefinedMetricWarning`, if no
        resample has a score.

    Example:
        >>> from moreauc.metrics import tpauc_score
        >>> rng = np.random.default_rng(0)
        >>> y_true = np.arange(400) % 2
        >>> y_score = rng.normal(size=400) + y_true
        >>> interval = bootstrap_interval(tpauc_score, y_true, y_score, min_tpr=0.5, max_fpr=0.5, resamples=200)
        >>> interval.low < interval.estimate < interval.high
        True
    """
    level = check_real(_OWNER, "level", level, low=0.0, high=1.0, low_open=True, high_open=True)
    drawn: dict[str, Any] = {"resamples": resamples, "seed": seed, "stratified": stratified}
    found = resample_scores(metric, y_true, y_score, **drawn, sample_weight=sample_weight, **options)
    interval = found.interval(level)
    if math.isnan(interval.low):
        text = f"{_OWNER}: the ends are undefined, NaN is returned: none of {resamples} resamples has a score"
        warnings.warn(text, UndefinedMetricWarning, stacklevel=2)
    return interval


def resample_scores(
    metric: Callable[..., float],
    y_true: ArrayLike,
    y_score: ArrayLike,
    *,
    resamples: int = 1000,
    seed: int = 0,
    stratified: bool = True,
    sample_weight: ArrayLike | None = None,
    **options: Any,
) -> Resamples:
    """Return the score of a test set and of its resamples; arguments as of :func:`bootstrap_interval`."""
    resamples = check_count(_OWNER, "resamples", resamples)
    rng = np.random.default_rng(check_count(_OWNER, "seed", seed, minimum=0))
    data = [as_vector(_OWNER, "y_true", y_true), as_vector(_OWNER, "y_score", y_score)]
    check_length(_OWNER, "y_score", data[1], "y_true", data[0])
    if not len(data[0]):
        raise ValueError(f"{_OWNER}: y_true must hold at least one label, got 0")
    if sample_weight is not None:
        data.append(as_vector(_OWNER, "sample_weight", sample_weight))
        check_length(_OWNER, "sample_weight", data[2], "y_true", data[0])

    def score(labels: Array, scores: Array, *weight: Array) -> float:
        return float(metric(labels, scores, **({"sample_weight": weight[0]} if weight else {}), **options))

    estimate = score(*data)
    strata = [np.flatnonzero(data[0] == label) for label in np.unique(data[0])]
    draws = np.empty(resamples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)  # counted instead
        for k in range(resamples):
            rows = _resample(strata if stratified else [np.arange(len(data[0]))], rng)
            draws[k] = score(*(vector[rows] for vector in data))
    return Resamples(estimate, draws)


def _resample(strata: list[Array], rng: np.random.Generator) -> Array:
    return np.concatenate([stratum[rng.integers(len(stratum), size=len(stratum))] for stratum in strata])


def tpauc_difference(
    y_true: ArrayLike, y_score: ArrayLike, other: ArrayLike, *, min_tpr: float, max_fpr: float
) -> tuple[float, float]:
    r"""Return by how much the TPAUC of `y_score` is above that of `other`, and the standard error of this.

    Both score the same rows, so the error is that of a paired difference: DeLong's for the AUC, with the lowest
    positives and the highest negatives as conditional means. With :math:`a_i` the share of the region's negatives below
    positive `i`, its part is :math:`q - (q - a_i)_+ / (1 - \text{min\_tpr})`, `q` the quantile that bounds the region;
    for a negative likewise.

    Example:
        >>> tpauc_difference([0, 0, 1, 1], [1.0, 3.0, 2.0, 4.0], [1.0, 2.0, 3.0, 4.0], min_tpr=0, max_fpr=1)
        (-0.25, 0.3535533905932738)
    """
    positive = np.asarray(y_true).astype(bool)
    parts = [
        _placements(positive, np.asarray(scores, dtype=np.float64), min_tpr, max_fpr) for scores in (y_score, other)
    ]
    one, two = (tpauc_score(positive, scores, min_tpr=min_tpr, max_fpr=max_fpr) for scores in (y_score, other))
    variances = [np.var(a - b, ddof=1) / len(a) for a, b in zip(*parts, strict=True) if len(a) > 1]
    return one - two, float(np.sqrt(sum(variances)))


def _placements(positive: Array, scores: Array, min_tpr: float, max_fpr: float) -> tuple[Array, Array]:
    """Return what each positive and each negative adds to the TPAUC, in its conditional mean."""
    high, low = np.sort(scores[positive]), np.sort(scores[~positive])
    region = high[: max(1, round((1.0 - min_tpr) * len(high)))], low[-max(1, round(max_fpr * len(low))) :]

    def below(values: Array, others: Array) -> Array:
        """Return the share of `others` below each value, ties half."""
        sides = [np.searchsorted(others, values, side) for side in ("left", "right")]
        return (sides[0] + sides[1]) / (2.0 * len(others))

    found = []
    for part, share in (
        (below(scores[positive], region[1]), 1.0 - min_tpr),
        (1.0 - below(scores[~positive], region[0]), max_fpr),
    ):
        level = np.quantile(part, share)
        found.append(level - np.maximum(level - part, 0.0) / share)
    return found[0], found[1]
