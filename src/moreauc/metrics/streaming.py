"""The two-way partial AUC of data that comes batch by batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from moreauc._checks import check_region
from moreauc.metrics._inputs import Array, Classes, split_classes
from moreauc.metrics.ranking import selected_fraction


class StreamingTPAUC:
    """Collects scores over batches; `compute()` is :func:`~moreauc.metrics.tpauc_score` of all of them, exactly.

    Every score is stored, in its precision, since the number of selected rows grows with the data: a row outside the
    region now may be inside it later. The object can be pickled; `merge` joins those of several processes.

    Args:
        min_tpr: lower edge of the true positive rate, in [0, 1).
        max_fpr: upper edge of the false positive rate, in (0, 1].

    Example:
        >>> meter = StreamingTPAUC(min_tpr=0.5, max_fpr=0.5)
        >>> meter.update([0.9, 0.8, 0.6, 0.4], [1, 1, 0, 0])
        >>> meter.update([0.4, 0.3, 0.2, 0.1], [1, 1, 0, 0])
        >>> meter
        StreamingTPAUC(min_tpr=0.5, max_fpr=0.5): 4 positives, 4 negatives
        >>> meter.compute()
        0.125
    """

    def __init__(self, *, min_tpr: float, max_fpr: float) -> None:
        self.min_tpr, self.max_fpr = check_region("StreamingTPAUC", min_tpr, max_fpr)
        self._positives: list[Array] = []
        self._negatives: list[Array] = []

    def update(self, scores: ArrayLike | Tensor, labels: ArrayLike | Tensor) -> None:
        """Add one batch, which may be empty or hold one class only.

        Args:
            scores: finite scores, shape `(n,)`; a tensor may be on any device and carry a gradient.
            labels: 0 and 1 (or bool), shape `(n,)`.

        Raises:
            ValueError: as in :func:`~moreauc.metrics.tpauc_score`; the batch is then not added.
        """
        names = ("labels", "scores")
        classes = split_classes("StreamingTPAUC", labels, scores, names=names, allow_empty=True)
        self._positives.append(classes.positives)
        self._negatives.append(classes.negatives)

    def compute(self) -> float:
        """Return the score of all batches so far; NaN, with a warning, where it is undefined."""
        classes = Classes(_join(self._positives), _join(self._negatives))
        return selected_fraction("StreamingTPAUC", classes, self.min_tpr, self.max_fpr)

    def reset(self) -> None:
        """Forget all batches."""
        self._positives, self._negatives = [], []

    def merge(self, other: StreamingTPAUC) -> StreamingTPAUC:
        """Add the batches of another meter of the same region, which stays as it is, and return this one."""
        if (other.min_tpr, other.max_fpr) != (self.min_tpr, self.max_fpr):
            raise ValueError(
                f"StreamingTPAUC: other must have min_tpr = {self.min_tpr} and max_fpr = {self.max_fpr}, "
                f"got {other.min_tpr} and {other.max_fpr}"
            )
        self._positives = self._positives + other._positives
        self._negatives = self._negatives + other._negatives
        return self

    def __repr__(self) -> str:
        positives, negatives = (sum(map(len, chunks)) for chunks in (self._positives, self._negatives))
        region = f"min_tpr={self.min_tpr}, max_fpr={self.max_fpr}"
        return f"StreamingTPAUC({region}): {positives} positives, {negatives} negatives"


def _join(chunks: list[Array]) -> Array:
    filled = [chunk for chunk in chunks if len(chunk)]  # the dtype of an empty batch must not decide
    return np.concatenate(filled) if filled else np.empty(0)
