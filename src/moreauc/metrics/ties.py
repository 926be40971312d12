"""The share of tied scores in a region, and the warning about it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from moreauc._checks import check_region, floor_count
from moreauc.metrics._inputs import split_classes

MUCH_TIED = 0.1  # share of the region's rows with tied scores that a user is warned of


class TiedScoresWarning(UserWarning):
    """Many positives and negatives have one score, so that the model does not order them."""


def tied_share(y_true: ArrayLike, y_score: ArrayLike, *, min_tpr: float, max_fpr: float) -> float:
    """Share of the region's rows whose score is also that of a row of the other class.

    The rows of the region are the `k1` lowest positives and the `k2` highest negatives of :func:`tpauc_score`. A model
    that has collapsed, and gives many rows one score, has a share near 1; ties among rows of one class do not count.

    The arguments are those of :func:`tpauc_score`; the share is 0 where nothing is selected.

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
    if share <= MUCH_TIED:
        return None
    return (
        f"{share:.1%} of the {unit} of the region have a score that {unit} of the other class have too; the model does "
        "not order them, which counts as a random order does"
    )
