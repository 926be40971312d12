r"""Scores of the top of a ranked list, as in virtual screening: enrichment factor and BEDROC.

Both take `y_true`, labels 0 and 1 (or bool), and `y_score`, finite scores, higher for more likely positive, both of
shape `(n,)`. Rows with equal scores count as in a random order of them: the value is the mean over all these orders, so
that ties are never rewarded, and a constant model gets what random scores get on average.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from moreauc._checks import check_real
from moreauc.metrics.ranking import Array, split_classes, undefined


def enrichment_factor(y_true: ArrayLike, y_score: ArrayLike, *, fraction: float) -> float:
    r"""How many times as many positives the top of the list holds as a random choice of as many rows.

    .. math:: \frac{n_+(k) / k}{n_+ / n}, \quad k = \lceil n \, \text{fraction} \rceil

    with :math:`n_+(k)` positives among the :math:`k` rows of the highest scores. As in RDKit's `CalcEnrichment`,
    :math:`k` is rounded up; here the rounding tolerates errors of the product. If the last of the :math:`k` rows are
    some of a block of equal scores, the block counts by its share of positives.

    Args:
        y_true: labels 0 and 1 (or bool), shape `(n,)`.
        y_score: finite scores, higher for more likely positive, shape `(n,)`.
        fraction: share of the rows at the top, in (0, 1].

    Returns:
        The factor, from 0 to `n / max(k, n+)`; 1 for random scores. NaN, with an `UndefinedMetricWarning`, if there are
        no positives.

    Example:
        >>> enrichment_factor([1, 0, 1, 0, 0, 0, 0, 0, 0, 0], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0], fraction=0.2)
        2.5
    """
    owner = "enrichment_factor"
    fraction = check_real(owner, "fraction", fraction, low=0.0, high=1.0, low_open=True)
    positives, sizes = _blocks(owner, y_true, y_score)
    number, total = int(sizes.sum()), float(positives.sum())
    if not total:
        return undefined(owner, "there are no positives", stacklevel=3)
    count = max(1, math.ceil(number * (fraction - 4.0 * np.finfo(np.float64).eps)))
    taken = np.clip(count - (np.cumsum(sizes) - sizes), 0, sizes)  # of each block
    found = float((positives * (taken / sizes)).sum())
    return found / count * number / total


def bedroc_score(y_true: ArrayLike, y_score: ArrayLike, *, alpha: float = 20.0) -> float:
    r"""Boltzmann-enhanced discrimination of the ROC curve: positives counted by weights that fall with their rank.

    .. math:: \frac{\text{RIE} - \text{RIE}_{\min}}{\text{RIE}_{\max} - \text{RIE}_{\min}}, \quad
        \text{RIE} = \frac{\frac{1}{n_+} \sum_i e^{-\alpha r_i / n}}{\frac{1}{n} \sum_{r=1}^n e^{-\alpha r / n}}

    with :math:`r_i` from 1 (the highest score) the rank of positive :math:`i`; the extremes, with :math:`R = n_+ / n`,
    are :math:`(1 - e^{-\alpha R}) / (R (1 - e^{-\alpha}))` and :math:`(1 - e^{\alpha R}) / (R (1 - e^{\alpha}))`. The
    score depends on the share of positives: compare it on the same rows only.

    Args:
        y_true: labels 0 and 1 (or bool), shape `(n,)`.
        y_score: finite scores, higher for more likely positive, shape `(n,)`.
        alpha: how early a positive must come, above 0, at most 500. With 20 the first 8 % carry 80 % of the weight.

    Returns:
        The score in [0, 1]; NaN, with an `UndefinedMetricWarning`, if a class is missing.

    Example:
        >>> bedroc_score([1, 1, 0, 0, 0], [5, 4, 3, 2, 1]), bedroc_score([1, 1, 0, 0, 0], [1, 2, 3, 4, 5])
        (1.0, 0.0)

    Reference:
        Truchon, Bayly, Evaluating Virtual Screening Methods: Good and Bad Metrics for the "Early Recognition" Problem,
        J. Chem. Inf. Model. 47, 2007.
    """
    owner = "bedroc_score"
    alpha = check_real(owner, "alpha", alpha, low=0.0, high=500.0, low_open=True)
    positives, sizes = _blocks(owner, y_true, y_score)
    number, total = int(sizes.sum()), int(positives.sum())
    if total in (0, number):
        return undefined(owner, f"there are no {'positives' if total == 0 else 'negatives'}", stacklevel=3)
    ends = np.cumsum(sizes)
    # sum of exp(-alpha r / n) over the ranks of each block, a geometric series
    step = alpha / number
    series = np.exp(-step * (ends - sizes)) * np.expm1(-step * sizes) / math.expm1(-step) * math.exp(-step)
    rie = float((positives / sizes * series).sum()) / total / (float(series.sum()) / number)
    share = total / number
    highest = math.expm1(-alpha * share) / (share * math.expm1(-alpha))
    # (e^(alpha R) - 1) / (e^alpha - 1), without overflow
    lowest = math.exp(-alpha * (1.0 - share)) * math.expm1(-alpha * share) / math.expm1(-alpha) / share
    return min(1.0, max(0.0, (rie - lowest) / (highest - lowest)))


def _blocks(owner: str, y_true: ArrayLike, y_score: ArrayLike) -> tuple[Array, Array]:
    """Return positives and rows of each score, the highest score first."""
    classes = split_classes(owner, y_true, y_score)
    scores = np.concatenate([classes.positives, classes.negatives])
    values, place = np.unique(scores, return_inverse=True)
    sizes = np.bincount(place, minlength=len(values))
    positives = np.bincount(place[: len(classes.positives)], minlength=len(values))
    return positives[::-1], sizes[::-1]
