r"""The pairwise surrogate of the whole AUC."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from moreauc.core.pairs import Pairs, cvar_and_vjp
from moreauc.core.surrogates import Link
from moreauc.criteria._base import Step
from moreauc.criteria._labelled import Batch, PairCriterion


class AUCSquaredHingeLoss(PairCriterion):
    r"""Mean of a pairwise loss over all pairs of the batch (AUC-SH).

    .. math:: \frac1{B_1 B_2} \sum_{i \in B_+} \sum_{j \in B_-} \ell(h_j - h_i)

    It has no state, and its gradient is an unbiased estimate of that over the whole set.

    Example:
        >>> criterion = AUCSquaredHingeLoss(torch.tensor([0, 1, 0]), link="identity")
        >>> criterion(torch.tensor([1.0, 0.5, -2.0]), torch.tensor([0, 1, 0]), torch.arange(3)).item()
        1.125
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        surrogate: str = "squared_hinge",
        margin: float | None = None,
        link: Link = "sigmoid",
        sample_weight: Tensor | Sequence[float] | None = None,
    ) -> None:
        super().__init__(labels, surrogate, margin, link, sample_weight)

    def _step(self, batch: Batch) -> Step:
        rows = batch.rows
        h, scale = self._linked(batch.scores, rows)
        positive, negative = rows.split(h)
        # No loss is below 0, so the excess over the threshold 0 is the loss itself, and its subgradient there is 0.
        pairs, zero = Pairs(positive, negative, rows.negatives, rows.left_out), torch.zeros_like(positive)
        if rows.lower_weight is not None:
            pairs = pairs._replace(weight=rows.lower_weight.to(h.dtype))
        psi, _, vjp = cvar_and_vjp(pairs, zero, self.surrogate)
        value, gradient = rows.mean(psi), rows.join(vjp(rows.share(torch.ones_like(psi))), h.dtype)
        return Step(value, batch.scores, self._before_link(gradient, h, scale), finite={"the loss": value})
