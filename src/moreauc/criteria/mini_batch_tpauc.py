r"""Two-way partial AUC of the mini-batch itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from moreauc._checks import check_real, floor_count
from moreauc.core.pairs import Pairs, cvar_and_vjp
from moreauc.core.surrogates import Link
from moreauc.criteria._base import Step
from moreauc.criteria._labelled import Batch, PairCriterion


class MiniBatchTPAUCLoss(PairCriterion):
    r"""Mean of a pairwise loss over the lowest positives and the highest negatives of the batch (MB).

    .. math:: \frac1{k_1 k_2} \sum_{i \in L_+} \sum_{j \in H_-} \ell(h_j - h_i), \quad
        k_1 = \max(1, \lfloor \alpha B_1 \rfloor), \quad k_2 = \max(1, \lfloor \beta B_2 \rfloor)

    with :math:`\alpha = 1 -` `min_tpr`, :math:`\beta =` `max_fpr`, :math:`L_+` the :math:`k_1` lowest scored positives
    of the batch and :math:`H_-` its :math:`k_2` highest scored negatives. The floor tolerates rounding errors, as in
    :func:`~moreauc.metrics.tpauc_score`. Which of several equal scores is selected at the edge is unspecified and does
    not change the value.

    It has no state, and it is biased: the worst rows of a small batch are not the worst rows of the data. With
    `sample_weight` the lowest and highest rows are those with this share of the batch's weight, the last in part.

    Example:
        >>> labels = torch.tensor([0, 1, 0, 1])
        >>> criterion = MiniBatchTPAUCLoss(labels, min_tpr=0.5, max_fpr=0.5, link="identity")
        >>> criterion(torch.tensor([1.0, 0.5, -2.0, 3.0]), labels, torch.arange(4)).item()
        2.25

    Reference:
        Kar, Narasimhan and Jain, Online and Stochastic Gradient Methods for Non-decomposable Loss Functions,
        NeurIPS 2014.
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        min_tpr: float,
        max_fpr: float,
        surrogate: str = "squared_hinge",
        margin: float | None = None,
        link: Link = "sigmoid",
        sample_weight: Tensor | Sequence[float] | None = None,
    ) -> None:
        super().__init__(labels, surrogate, margin, link, sample_weight)
        self.min_tpr = check_real(self._owner, "min_tpr", min_tpr, low=0.0, high=1.0, high_open=True)
        self.max_fpr = check_real(self._owner, "max_fpr", max_fpr, low=0.0, high=1.0, low_open=True)

    def _step(self, batch: Batch) -> Step:
        rows = batch.rows
        h, scale = self._linked(batch.scores, rows)
        positive, negative = rows.split(batch.scores)
        padding = None if rows.left_out is None else ~rows.left_out
        low, low_count = _lowest(positive, 1.0 - self.min_tpr, rows.positives, padding)
        high, high_count = _lowest(-negative, self.max_fpr, rows.negatives, rows.left_out)
        pairs = Pairs(*rows.split(h), high_count, ~high)
        if rows.upper_weight is not None and rows.lower_weight is not None:
            # the same share of the batch's weight as it would be of its number
            low = _lowest_weight(positive, rows.share(torch.ones_like(rows.upper_weight)), low_count / rows.positives)
            high = _lowest_weight(-negative, rows.lower_weight, high_count / rows.negatives).to(h.dtype)
            pairs, low_count = pairs._replace(left_out=rows.left_out, weight=high), low_count / rows.positives
        # No loss is below 0, so the excess over the threshold 0 is the loss itself.
        psi, _, vjp = cvar_and_vjp(pairs, torch.zeros_like(pairs.positive), self.surrogate)
        weight = low.to(psi.dtype) / low_count
        value, gradient = (weight * psi).sum(), rows.join(vjp(weight), h.dtype)
        return Step(value, batch.scores, self._before_link(gradient, h, scale), finite={"the loss": value})


def _lowest(
    values: Tensor, share: float, count: int | Tensor, left_out: Tensor | None
) -> tuple[Tensor, float | Tensor]:
    """Return which of `count` values are among the lowest `share` of them, shape `(B,)`, and how many are."""
    if isinstance(count, Tensor):  # as `floor_count`
        number: float | Tensor = (count * (share + 4.0 * torch.finfo(torch.float64).eps)).floor().clamp_min(1.0)
    else:
        number = float(max(1, floor_count(count, share)))
    if left_out is not None:
        values = values.masked_fill(left_out, torch.inf)
    order = values.argsort()
    places = torch.arange(len(values), device=values.device)
    return torch.empty_like(order).scatter_(0, order, places) < number, number


def _lowest_weight(values: Tensor, weight: Tensor, share: float | Tensor) -> Tensor:
    """Return the part of each weight that is among the lowest values with `share` of all weight, shape `(B,)`."""
    order = values.argsort()
    own = weight.index_select(0, order)
    ahead = own.cumsum(0)
    taken = torch.minimum((share * ahead[-1] - (ahead - own)).clamp_min(0.0), own)
    return torch.empty_like(taken).scatter_(0, order, taken)
