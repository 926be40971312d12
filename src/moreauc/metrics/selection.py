"""What models are chosen by: the score in the region and, where it is equal, in wider ones, then the gap."""

from __future__ import annotations

import numpy as np
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
    """Return the score in each of these regions and the gap between the classes, to be compared in this order.

    In a narrow region with few positives many models have one score, 0 most often; the wider regions, the last of which
    is the AUC, tell which of them is better. Where every pair is in order they are all 1 and tell nothing more: then
    the gap from the highest negative to the lowest positive does, in standard deviations of the scores (0 where some
    pair is not in order). Of few validation rows the first model that happens to order them all is a poor choice.

    Example:
        >>> selection_scores([1, 0, 1, 0], [0.9, 0.8, 0.3, 0.1], min_tpr=0.5, max_fpr=0.5)
        (0.0, 0.0, 0.75, 0.0)
        >>> selection_scores([1, 0, 1, 0], [3.0, 1.0, 3.0, 1.0], min_tpr=0.5, max_fpr=0.5)
        (1.0, 1.0, 1.0, 2.0)
    """
    regions = widening_regions(min_tpr, max_fpr)
    scores = [tpauc_score(y_true, y_score, min_tpr=low, max_fpr=high) for low, high in regions]
    values, positive = np.asarray(y_score, dtype=np.float64), np.asarray(y_true) == 1
    gap = (values[positive].min() - values[~positive].max()) / values.std() if scores[-1] == 1.0 else 0.0
    return (*scores, float(gap))
