"""Inputs of the metrics, checked, and counts of correctly ordered pairs."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from moreauc._checks import no_number

Array = NDArray[Any]
_SAMPLE = 4096  # scores that bracket an order statistic
_FEW = 50_000  # scores that are sorted sooner than put into buckets, or handed to another thread
_BUCKETS = 1 << 18


class Classes(NamedTuple):
    """Scores and, where given, weights of the two classes; four vectors that the caller owns."""

    positives: Array
    negatives: Array
    positive_weight: Array | None = None
    negative_weight: Array | None = None


def as_vector(owner: str, name: str, value: Any) -> Array:
    """Return `value` (array, tensor on any device, sequence) as a vector of real numbers of its own precision.

    Integers stay integers: their order would not survive rounding to floats.
    """
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() and value.itemsize < 4 else value).numpy()
    try:
        array = np.asarray(value)
        if array.dtype == object or array.dtype == np.float16:  # half precision has no fast sort
            array = array.astype(np.float64)
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
    y_true: Any,
    y_score: Any,
    sample_weight: Any = None,
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
    _check_finite(owner, names[1], scores)
    # Row numbers and `take` are several times faster here than indexing by a mask.
    upper, lower = np.flatnonzero(positive), np.flatnonzero(~positive)
    if sample_weight is None:
        return Classes(scores.take(upper), scores.take(lower))
    weight = as_vector(owner, "sample_weight", sample_weight).astype(np.float64)
    check_length(owner, "sample_weight", weight, names[0], labels)
    _check_finite(owner, "sample_weight", weight)
    if (weight < 0).any():
        raise ValueError(f"{owner}: sample_weight must be at least 0, got {weight.min()}")
    return Classes(scores.take(upper), scores.take(lower), weight.take(upper), weight.take(lower))


def _check_finite(owner: str, name: str, value: Array) -> None:
    finite = np.isfinite(value)
    if not finite.all():
        bad = value[~finite]
        raise ValueError(f"{owner}: {name} must be finite, got {bad[0]} ({len(bad)} such entries)")


def order_statistic(scores: Array, rank: int) -> Any:
    """Return the score that has `rank` others before it in ascending order.

    Of many scores a sample tells between which two the answer almost surely lies; where it is not so, or not known to
    be so, all of them are partitioned.
    """
    step = len(scores) // _SAMPLE
    if step >= 16:
        sample = np.sort(scores[::step])
        middle, spread = rank * len(sample) / len(scores), 2.0 * math.sqrt(len(sample))  # four standard deviations
        first, last = math.floor(middle - spread), math.ceil(middle + spread)
        left = sample[first] if first >= 0 else scores.min()
        right = sample[last] if last < len(sample) else scores.max()
        below = int(np.count_nonzero(scores < left))
        near = scores.take(np.flatnonzero((scores >= left) & (scores <= right)))
        if below <= rank < below + len(near):
            scores, rank = near, rank - below
    return np.partition(scores, rank)[rank]


def twice_won(positives: Array, negatives: Array, low: float, high: float) -> int:
    """Return twice the pairs won, a tie counting one; all scores lie in [low, high].

    Many scores are put into buckets by a function that never decreases. Pairs from two buckets are counted by the
    buckets' sizes, and so are ties where a bucket holds one value only; what is left is sorted.
    """
    shorter, longer = sorted((positives, negatives), key=len)
    # With more of both classes than there are buckets nearly all would be left, unless they are equal.
    useless = len(longer) < _FEW or (len(shorter) > _BUCKETS and not _has_ties(shorter))
    scale = (_BUCKETS - 1) / (high - low) if high > low else 0.0
    if useless or not 0.0 < scale < math.inf:
        return _twice_won_sorted(*_sort_both(positives, negatives))
    upper, lower = _bucket(positives, low, scale), _bucket(negatives, low, scale)
    n_upper, n_lower = np.bincount(upper, minlength=_BUCKETS), np.bincount(lower, minlength=_BUCKETS)
    mixed = (n_upper > 0) & (n_lower > 0)
    positives, upper = _where(mixed, positives, upper)
    negatives, lower = _where(mixed, negatives, lower)
    value = np.empty(_BUCKETS, np.result_type(positives, negatives))
    value[upper], value[lower] = positives, negatives
    several = np.zeros(_BUCKETS, bool)
    several[upper.take(np.flatnonzero(value.take(upper) != positives))] = True
    several[lower.take(np.flatnonzero(value.take(lower) != negatives))] = True
    tied = np.flatnonzero(mixed & ~several)
    twice = 2 * _pairs_in_order(n_upper, n_lower) + int(n_upper.take(tied) @ n_lower.take(tied))
    twice -= 2 * _pairs_in_order(n_upper * several, n_lower * several)  # these are counted again, exactly
    rest = _sort_both(_where(several, positives, upper)[0], _where(several, negatives, lower)[0])
    return twice + _twice_won_sorted(*rest)


def _has_ties(scores: Array) -> bool:
    sample = scores[:: len(scores) // _SAMPLE + 1]
    return len(np.unique(sample)) < len(sample) // 2


def _bucket(scores: Array, low: float, scale: float) -> Array:
    # Rounding never turns the order of two numbers, so this does not decrease; nor do integers when made floats.
    place = np.subtract(scores, low, dtype=np.float64)
    place *= scale
    return place.astype(np.int32)


def _where(chosen: Array, scores: Array, bucket: Array) -> tuple[Array, Array]:
    rows = np.flatnonzero(chosen.take(bucket))
    return scores.take(rows), bucket.take(rows)


def _pairs_in_order(upper: Array, lower: Array) -> int:
    return int(upper @ (np.cumsum(lower) - lower))


def _sort_both(first: Array, second: Array) -> tuple[Array, Array]:
    if min(len(first), len(second)) < _FEW:
        return np.sort(first), np.sort(second)
    with ThreadPoolExecutor(1) as other:  # numpy sorts without holding the interpreter
        sorting = other.submit(np.sort, second)
        return np.sort(first), sorting.result()


def _twice_won_sorted(positives: Array, negatives: Array) -> int:
    if len(positives) > len(negatives):  # the shorter vector is searched for in the longer one
        return 2 * len(positives) * len(negatives) - _twice_won_sorted(negatives, positives)
    # Negatives below plus negatives not above a positive.
    below = np.searchsorted(negatives, positives, "left")
    if not len(negatives):
        return 0
    tied = np.flatnonzero(negatives.take(below, mode="clip") == positives)
    not_above = np.searchsorted(negatives, positives.take(tied), "right")
    return 2 * int(below.sum()) + int(not_above.sum()) - int(below.take(tied).sum())
