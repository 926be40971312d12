"""What models are chosen by: the score in the region and, where it is equal, in wider ones."""

from __future__ import annotations

from numpy.typing import ArrayLike

from moreauc.metrics.ranking import tpauc_score

Region = tuple[float, float]


def widening_regions(min_tpr: float, max_fpr: float) -> tuple[Region, ...]:
    """Return the region `(min_tpr, max_fpr)`, the one half way to the whole square, and the whole square.

    Example:
        >>> widening_regions(0.5, 0.2)
        ((0.5, 0.2), (0.25, 0.6), (0.0, 1.0))
    """
    return (min_tpr, max_fpr), (0.5 * min_tpr, 0.5 * (1.0 + max_fpr)), (0.0, 1.0)


def selection_scores(y_true: ArrayLike, y_score: ArrayLike, *, min_tpr: float, max_fpr: float) -> tuple[float, ...]:
    """Return the score in each of these regions, to be compared in this order; the last is the AUC.

    In a narrow region with few positives many models have one score, 0 most often; the wider regions tell which of them
    is better.

    Example:
        >>> selection_scores([1, 0, 1, 0], [0.9, 0.8, 0.3, 0.1], min_tpr=0.5, max_fpr=0.5)
        (0.0, 0.0, 0.75)
    """
    regions = widening_regions(min_tpr, max_fpr)
    return tuple(tpauc_score(y_true, y_score, min_tpr=low, max_fpr=high) for low, high in regions)
