r"""Binary cross entropy, plain and class-weighted, behind the call that all losses share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from moreauc._checks import check_real
from moreauc.criteria._base import Step
from moreauc.criteria._labelled import Batch, LabelledCriterion


class CrossEntropyLoss(LabelledCriterion):
    r"""Binary cross entropy of the raw scores (CE).

    .. math::
        \frac1B \Big[ c \sum_{i \in B_+} \log(1 + e^{-s_i}) + \sum_{j \in B_-} \log(1 + e^{s_j}) \Big]

    with :math:`c` = `positive_weight`. The sum of weighted terms is divided by the number of rows, not by the sum of
    their weights. The loss has no state and takes batches that hold one class only.

    A weight corrects the proportion of the classes in the batches. `"balanced"` is meant for shuffled batches, where it
    gives both classes the same total weight. In batches with equally many rows of each class 1 is the balanced loss,
    and `"balanced"` would overweight the positives by :math:`n_- / n_+`.

    Args:
        positive_weight: :math:`c`, above 0, or "balanced" for :math:`n_- / n_+` of the training set, computed from
            `sample_weight` if given.

    Example:
        >>> labels = torch.tensor([0, 1, 0, 0])
        >>> criterion = CrossEntropyLoss(labels, positive_weight="balanced")
        >>> criterion.positive_weight
        3.0
        >>> round(criterion(torch.zeros(2), torch.tensor([1, 0]), torch.tensor([1, 3])).item(), 4)
        1.3863
    """

    _BOTH = False

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        positive_weight: float | Literal["balanced"] = 1.0,
        sample_weight: Tensor | Sequence[float] | None = None,
    ) -> None:
        super().__init__(labels, sample_weight)
        if isinstance(positive_weight, str):
            if positive_weight != "balanced":
                raise ValueError(
                    f"{self._owner}: positive_weight must be a number above 0 or 'balanced', got {positive_weight!r}"
                )
            positive_weight = self.num_negatives / self.num_positives
            if self.sample_weight is not None:
                positive = self.position >= 0
                positive_weight = float(self.sample_weight[~positive].sum() / self.sample_weight[positive].sum())
        self.positive_weight = check_real(self._owner, "positive_weight", positive_weight, low=0.0, low_open=True)

    def _step(self, batch: Batch) -> Step:
        scores, positive = batch.scores, batch.rows.positive.to(batch.scores.dtype)
        signs, weights = 1.0 - 2.0 * positive, 1.0 + (self.positive_weight - 1.0) * positive
        if self.sample_weight is not None:
            own = self.sample_weight.index_select(0, batch.rows.numbers)
            own = own * (len(own) / own.sum().clamp_min(torch.finfo(own.dtype).tiny))  # their mean is 1
            weights = weights * own.to(weights.dtype)
        value = (weights * softplus(signs * scores)).mean()
        gradient = weights * signs * torch.sigmoid(signs * scores) / len(scores)
        return Step(value, scores, gradient, finite={"the loss": value})
