"""What the metrics accept: labels of 0 and 1, finite scores, weights of at least 0, all of one length."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from moreauc._checks import no_number

Array = NDArray[Any]


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
