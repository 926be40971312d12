r"""Partial areas under the ROC curve, one- and two-way, as share of ordered pairs and as area.

The region is that of true positive rates of at least `min_tpr` and false positive rates of at most `max_fpr`. With
:math:`\alpha` = 1 - `min_tpr`, :math:`\beta` = `max_fpr` and :math:`A` the area under the curve inside the region:

================================  =====================================  ==============================================
function                          value                                  in scikit-learn
================================  =====================================  ==============================================
:func:`tpauc_score`               ordered pairs, in [0, 1]               none; `roc_auc_score(...)` for the whole square
:func:`tpauc_area_score`          :math:`A`, in [0, alpha beta]          none; area that `roc_auc_score` standardises
================================  =====================================  ==============================================

The one-way partial AUC is the score at `min_tpr` = 0; scikit-learn's `roc_auc_score(..., max_fpr=max_fpr)` is the same
area on McClish's scale, where chance has 0.5.

`tpauc_score` = `tpauc_area_score` / (alpha beta) where alpha n+ and beta n- are whole numbers; with weights given,
whole numbers are not needed.

All functions take `y_true`, labels 0 and 1 (or bool), and `y_score`, finite scores, higher for more likely positive,
both of shape `(n,)`; `min_tpr` in [0, 1) and `max_fpr` in (0, 1]; `sample_weight`, None or weights of at least 0 of
shape `(n,)`. They return NaN, with an `UndefinedMetricWarning`, where nothing is selected, such as where a class is
missing or has no weight, and raise `ValueError` for anything else.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import roc_curve
from torch import Tensor

from moreauc._checks import check_region, floor_count, no_number

Array = NDArray[Any]
_MUCH_TIED = 0.1  # share of the region's rows with tied scores that a user is warned of


def tpauc_score(
    y_true: ArrayLike, y_score: ArrayLike, *, min_tpr: float, max_fpr: float, sample_weight: ArrayLike | None = None
) -> float:
    r"""Two-way partial AUC: correctly ordered pairs among the hardest positives and the hardest negatives.

    .. math:: \frac{1}{k_1 k_2} \sum_{i \in S_+} \sum_{j \in S_-} 1[h_i > h_j],
        \quad k_1 = \lfloor n_+ (1 - \text{min\_tpr}) \rfloor, \quad k_2 = \lfloor n_- \, \text{max\_fpr} \rfloor

    :math:`S_+` holds the :math:`k_1` **lowest** scored positives, :math:`S_-` the :math:`k_2` **highest** scored
    negatives. The floor tolerates rounding errors of its argument (4 machine epsilons times :math:`n`): 10 positives
    and `min_tpr` = 0.9 give :math:`k_1 = 1`.

    **Ties** count as in the ROC curve, which is a straight line through tied rows, the average over
    all their orders; the score is the share of the region under it (the region with edges :math:`1 - k_1 / n_+` and
    :math:`k_2 / n_-`). A constant model has the diagonal as its curve and scores the share of the region below it, 0 at
    (0.5, 0.5). A block of tied rows inside the region counts one half for each of its pairs; where an edge cuts a block
    of :math:`P` positives and :math:`N` negatives, of which :math:`a` and :math:`b` are selected, it counts :math:`a^2
    N / 2P` (:math:`b = N`), :math:`P b^2 / 2N` (:math:`a = P`) or, cut by both edges, :math:`(P b - N (P - a))_+^2 /
    2PN`. This is the limit, for many rows of each score, of the mean score over random orders of the tied rows; with
    few rows that mean is slightly higher if an edge cuts a block.

    With `sample_weight` there is no floor: the lowest positives are taken up to a share 1 - `min_tpr` of the positive
    weight, the last of them in part, likewise the highest negatives up to a share `max_fpr`; a pair counts with the
    product of its two weights. Equal weights give the unweighted score where :math:`n_+ (1 - \text{min\_tpr})` and
    :math:`n_- \text{max\_fpr}` are whole numbers.

    Args:
        y_true: labels 0 and 1 (or bool), shape `(n,)`.
        y_score: finite scores, higher for more likely positive, shape `(n,)`.
        min_tpr: lower edge of the true positive rate, in [0, 1).
        max_fpr: upper edge of the false positive rate, in (0, 1].
        sample_weight: weights of at least 0, shape `(n,)`; None for the rule with the floor.

    Returns:
        The score in [0, 1], 1 for a perfect order. Random scores get 0.5 over the whole square and less in a smaller
        region. NaN, with an `UndefinedMetricWarning`, where nothing is selected.

    Example:
        >>> y_true = [1, 1, 1, 1, 0, 0, 0, 0]
        >>> y_score = [0.9, 0.8, 0.4, 0.3, 0.6, 0.4, 0.2, 0.1]
        >>> tpauc_score(y_true, y_score, min_tpr=0.5, max_fpr=0.5)  # {0.3, 0.4} against {0.4, 0.6}: half of one in four
        0.125
        >>> tpauc_score(y_true, y_score, min_tpr=0.0, max_fpr=1.0)  # the AUC
        0.78125
        >>> tpauc_score(y_true, [0.5] * 8, min_tpr=0.5, max_fpr=0.5)  # one score for all rows
        0.0

    Reference:
        Yang et al., When All We Need is a Piece of the Pie: A Generic Framework for Optimizing Two-way Partial AUC,
        ICML 2021.
    """
    min_tpr, max_fpr = check_region("tpauc_score", min_tpr, max_fpr)
    classes = split_classes("tpauc_score", y_true, y_score, sample_weight)
    return selected_fraction("tpauc_score", classes, min_tpr, max_fpr)


def tpauc_area_score(
    y_true: ArrayLike, y_score: ArrayLike, *, min_tpr: float, max_fpr: float, sample_weight: ArrayLike | None = None
) -> float:
    r"""Raw area under the ROC curve inside the region.

    .. math:: A = \int_0^{\text{max\_fpr}} \max(\text{TPR}(x) - \text{min\_tpr}, 0) \, dx

    The curve is that of scikit-learn's `roc_curve`, linear between its points. The arguments are those of
    :func:`tpauc_score`: `y_true`, `y_score`, `min_tpr`, `max_fpr` and `sample_weight`.

    Example:
        >>> tpauc_area_score([1, 1, 0, 0], [0.9, 0.3, 0.2, 0.1], min_tpr=0.5, max_fpr=0.5)
        0.25
    """
    min_tpr, max_fpr = check_region("tpauc_area_score", min_tpr, max_fpr)
    classes = split_classes("tpauc_area_score", y_true, y_score, sample_weight)
    return _area("tpauc_area_score", classes, min_tpr, max_fpr)


class Classes(NamedTuple):
    """Scores and, where given, weights of the two classes."""

    positives: Array
    negatives: Array
    positive_weight: Array | None = None
    negative_weight: Array | None = None


def as_vector(owner: str, name: str, value: ArrayLike) -> Array:
    """Return `value` (array, tensor on any device, sequence) as a vector of real numbers of its own precision.

    Integers stay integers: their order would not survive rounding to floats.
    """
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        if value.is_floating_point():  # NumPy has no bfloat16
            value = value.to(torch.promote_types(value.dtype, torch.float32))
        value = value.numpy()
    try:
        array = np.asarray(value)
        array = array.astype(np.float64) if array.dtype == object else array
    except (TypeError, ValueError) as error:
        raise ValueError(f"{owner}: {name} must be a vector of real numbers, got {no_number(value)}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{owner}: {name} must be a vector of real numbers, got dtype {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"{owner}: {name} must have shape (n,), got {array.shape}")
    return array.view(np.uint8) if array.dtype == bool else array


def check_length(owner: str, name: str, value: Array, other_name: str, other: Array) -> None:
    """Check that two vectors are equally long."""
    if len(value) != len(other):
        raise ValueError(f"{owner}: {name} must be as long as {other_name}, {len(other)}, got {len(value)}")


def split_classes(
    owner: str,
    y_true: ArrayLike,
    y_score: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    names: tuple[str, str] = ("y_true", "y_score"),
    allow_empty: bool = False,
) -> Classes:
    """Check labels, scores and weights, and return them class by class; `names` are those the user knows them by."""
    labels, scores = as_vector(owner, names[0], y_true), as_vector(owner, names[1], y_score)
    check_length(owner, names[1], scores, names[0], labels)
    if not allow_empty and not len(labels):
        raise ValueError(f"{owner}: {names[0]} must hold at least one label, got 0")
    positive = labels == 1
    known = positive | (labels == 0)
    if not known.all():
        raise ValueError(f"{owner}: {names[0]} must hold 0 and 1 only, got {labels[~known][0]}")
    check_finite(owner, names[1], scores)
    # Row numbers and `take` are faster here than indexing by a mask.
    upper, lower = np.flatnonzero(positive), np.flatnonzero(~positive)
    if sample_weight is None:
        return Classes(scores.take(upper), scores.take(lower))
    weight = check_weight(owner, sample_weight, names[0], labels)
    return Classes(scores.take(upper), scores.take(lower), weight.take(upper), weight.take(lower))


def check_weight(owner: str, sample_weight: ArrayLike, other_name: str, other: Array) -> Array:
    """Return weights of at least 0 as float64, as many as `other` has entries."""
    weight = as_vector(owner, "sample_weight", sample_weight).astype(np.float64)
    check_length(owner, "sample_weight", weight, other_name, other)
    check_finite(owner, "sample_weight", weight)
    if (weight < 0).any():
        raise ValueError(f"{owner}: sample_weight must be at least 0, got {weight.min()}")
    return weight


def check_finite(owner: str, name: str, value: Array) -> None:
    """Check that a vector holds neither NaN nor infinity."""
    finite = np.isfinite(value)
    if not finite.all():
        bad = value[~finite]
        raise ValueError(f"{owner}: {name} must be finite, got {bad[0]} ({len(bad)} such entries)")


def selected_fraction(owner: str, classes: Classes, min_tpr: float, max_fpr: float) -> float:
    """Return the fraction of ordered pairs among the selected samples of two classes that have been checked."""
    reason = _missing_class(classes)
    if reason is not None:
        return undefined(owner, reason)
    if classes.positive_weight is not None:
        return min(1.0, _area(owner, classes, min_tpr, max_fpr) / ((1.0 - min_tpr) * max_fpr))
    positives, negatives = classes.positives, classes.negatives
    k1, k2 = floor_count(len(positives), 1.0 - min_tpr), floor_count(len(negatives), max_fpr)
    if k1 == 0:
        return undefined(owner, f"floor({len(positives)} positives * (1 - min_tpr)) is 0 at min_tpr = {min_tpr}")
    if k2 == 0:
        return undefined(owner, f"floor({len(negatives)} negatives * max_fpr) is 0 at max_fpr = {max_fpr}")
    positives, negatives = np.sort(positives), np.sort(negatives)
    lowest, highest = positives[:k1], negatives[len(negatives) - k2 :]
    high, low = lowest[-1], highest[0]
    if low > high:
        return 0.0
    if low == high:  # one score decides, as where all rows have it
        return _corner(positives, negatives, high, k1, k2) / (k1 * k2)
    # Only scores from `low` to `high` can win a pair or tie.
    lowest, highest = lowest[np.searchsorted(lowest, low) :], highest[: np.searchsorted(highest, high, "right")]
    # Twice the pairs won: negatives below a positive, and those not above it.
    twice = sum(int(np.searchsorted(highest, lowest, side).sum()) for side in ("left", "right"))
    excess = _excess_of_half(positives, negatives, high, low, k1, k2)
    return (twice - excess) / (2 * k1 * k2)


def _corner(positives: Array, negatives: Array, score: Any, k1: int, k2: int) -> float:
    """Return the pairs won where both edges cut the block of P positives and N negatives with this score.

    The area between the line from (0, 0) to (N, P) and the level P - a, up to b, where a and b are selected.
    """
    all_positives, all_negatives = (int(np.count_nonzero(part == score)) for part in (positives, negatives))
    a, b = k1 - int(np.count_nonzero(positives < score)), k2 - int(np.count_nonzero(negatives > score))
    above = max(0, all_positives * b - all_negatives * (all_positives - a))
    return above * above / (2 * all_positives * all_negatives)


def _excess_of_half(positives: Array, negatives: Array, high: Any, low: Any, k1: int, k2: int) -> float:
    """Return twice what one half for each tied pair counts above the curve, in the blocks that the edges cut.

    Of the positives with the highest selected score `high`, and of the negatives with the lowest, `low`, some may be
    selected and others not.
    """
    excess = 0.0
    for own, other, score, selected in (
        (positives, negatives, high, k1 - int(np.count_nonzero(positives < high))),
        (negatives, positives, low, k2 - int(np.count_nonzero(negatives > low))),
    ):
        block, tied = (int(np.count_nonzero(part == score)) for part in (own, other))
        excess += tied * selected * (block - selected) / block
    return excess


def _area(owner: str, classes: Classes, min_tpr: float, max_fpr: float) -> float:
    reason = _missing_class(classes)
    if reason is not None:
        return undefined(owner, reason)
    labels = np.repeat([1, 0], [len(classes.positives), len(classes.negatives)])
    scores = np.concatenate([classes.positives, classes.negatives])
    weight = None
    if classes.positive_weight is not None and classes.negative_weight is not None:
        # Either class on its own scale: the curve stays the same, and no sum overflows.
        weight = np.concatenate([w / w.max() for w in (classes.positive_weight, classes.negative_weight)])
    fpr, tpr, _ = roc_curve(labels, scores, sample_weight=weight, drop_intermediate=False)
    # Cut at the right edge; a vertical piece of the curve there is kept whole, it adds no area.
    stop = int(np.searchsorted(fpr, max_fpr, side="right"))
    edge = np.interp(max_fpr, fpr[stop - 1 : stop + 1], tpr[stop - 1 : stop + 1])
    fpr, tpr = np.append(fpr[:stop], max_fpr), np.append(tpr[:stop], edge)
    # Cut at the lower edge; a horizontal piece there has no height.
    start = int(np.searchsorted(tpr, min_tpr, side="right"))
    if start == len(tpr):
        return 0.0
    edge = np.interp(min_tpr, tpr[start - 1 : start + 1], fpr[start - 1 : start + 1])
    fpr, tpr = np.append(edge, fpr[start:]), np.append(min_tpr, tpr[start:])
    return float(np.trapezoid(tpr - min_tpr, fpr))


def _missing_class(classes: Classes) -> str | None:
    for name, scores, weight in (
        ("positives", classes.positives, classes.positive_weight),
        ("negatives", classes.negatives, classes.negative_weight),
    ):
        if not len(scores):
            return f"there are no {name}"
        if weight is not None and not weight.any():
            return f"the {name} have no weight"
    return None


def undefined(owner: str, reason: str, stacklevel: int = 4) -> float:
    """Return NaN, with a warning at the user's line: most often two functions are between that and this one."""
    text = f"{owner}: the score is undefined, NaN is returned: {reason}"
    warnings.warn(text, UndefinedMetricWarning, stacklevel=stacklevel)
    return math.nan


class TiedScoresWarning(UserWarning):
    """Many positives and negatives have one score, so that the model does not order them."""


def tied_share(y_true: ArrayLike, y_score: ArrayLike, *, min_tpr: float, max_fpr: float) -> float:
    """Share of the rows in the region that are tied with a row of the other class.

    A collapsed model, which gives many rows the same score, has a share near 1; ties within a class do not count. The
    arguments are those of :func:`tpauc_score`.

    Example:
        >>> tied_share([1, 1, 0, 0], [0.9, 0.4, 0.4, 0.1], min_tpr=0.5, max_fpr=0.5)
        1.0
        >>> tied_share([1, 1, 0, 0], [0.9, 0.4, 0.3, 0.3], min_tpr=0.5, max_fpr=0.5)
        0.0
    """
    min_tpr, max_fpr = check_region("tied_share", min_tpr, max_fpr)
    positives, negatives, *_ = split_classes("tied_share", y_true, y_score)
    k1, k2 = floor_count(len(positives), 1.0 - min_tpr), floor_count(len(negatives), max_fpr)
    if not k1 or not k2:
        return 0.0
    lowest, highest = np.sort(positives)[:k1], np.sort(negatives)[len(negatives) - k2 :]
    tied = np.isin(lowest, negatives).sum() + np.isin(highest, positives).sum()
    return float(tied / (k1 + k2))


def ties_text(share: float, *, unit: str = "rows") -> str | None:
    """Return a warning that names the share of tied scores where it exceeds a tenth; None otherwise."""
    if share <= _MUCH_TIED:
        return None
    return (
        f"{share:.1%} of the {unit} of the region have a score that {unit} of the other class have too; the model does "
        "not order them, which counts as a random order does"
    )


def selection_scores(
    y_true: ArrayLike, y_score: ArrayLike, *, min_tpr: float, max_fpr: float, sample_weight: ArrayLike | None = None
) -> tuple[float, ...]:
    """Return scores by which models are compared in turn, until one differs.

    They are the TPAUC in the region, in the one half way to the whole square, and the AUC: in a narrow region with few
    positives many models have the same score, most often 0. The last is the gap from the highest negative to the lowest
    positive, in standard deviations of the scores, and 0 where some pair is not in order: models that order all of few
    validation rows have 1 in every region.

    Example:
        >>> selection_scores([1, 0, 1, 0], [0.9, 0.8, 0.3, 0.1], min_tpr=0.5, max_fpr=0.5)
        (0.0, 0.0, 0.75, 0.0)
        >>> selection_scores([1, 0, 1, 0], [3.0, 1.0, 3.0, 1.0], min_tpr=0.5, max_fpr=0.5)
        (1.0, 1.0, 1.0, 2.0)
    """
    regions = (min_tpr, max_fpr), (0.5 * min_tpr, 0.5 * (1.0 + max_fpr)), (0.0, 1.0)
    weight: dict[str, Any] = {"sample_weight": sample_weight}
    scores = [tpauc_score(y_true, y_score, min_tpr=low, max_fpr=high, **weight) for low, high in regions]
    values, positive = np.asarray(y_score, dtype=np.float64), np.asarray(y_true) == 1
    gap = (values[positive].min() - values[~positive].max()) / values.std() if scores[-1] == 1.0 else 0.0
    return (*scores, float(gap))
