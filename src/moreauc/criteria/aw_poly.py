r"""Pairs weighted by how hard their two members are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from moreauc.core.pairs import Pairs, weighted_pairs
from moreauc.core.surrogates import Link
from moreauc.criteria._base import Step, number_attribute
from moreauc.criteria._labelled import Batch, PairCriterion


class AWPolyLoss(PairCriterion):
    r"""Pairwise loss with polynomial weights of the scores (AW-poly).

    .. math:: \frac1{B_1 B_2} \sum_{i \in B_+} \sum_{j \in B_-} (1 - p_i)^a\, p_j^a\, \ell(h_j - h_i), \qquad
        p = \frac1{1 + e^{-s}}

    with :math:`a` = `power` and :math:`s` the raw scores; the weights use the sigmoid whatever the link. Low positives
    and high negatives count most, in place of a selection by rank: `power` plays the role of the region, but no formula
    relates the two. The sum is divided by the number of pairs, not by the sum of the weights.

    **The weights are differentiated, too**, as in the authors' code. Its `1e-6` inside the power is not needed here: as
    a function of the raw score the slope of the weight is bounded. That code uses the squared loss and trains the
    first epochs without weights (set `power` to 0, then to its value).

    Args:
        power: :math:`a`, at least 0. A plain attribute: a schedule may change it. The authors' example has 0.1.

    Example:
        >>> criterion = AWPolyLoss(torch.tensor([0, 1]), power=1.0)
        >>> criterion(torch.zeros(2), torch.tensor([0, 1]), torch.arange(2)).item()
        0.25

    Reference:
        Yang et al., When All We Need is a Piece of the Pie: A Generic Framework for Optimizing Two-way Partial AUC,
        ICML 2021, and the code that its authors published with it.
    """

    power = number_attribute("power", "Exponent of the weights, at least 0.")

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        power: float,
        surrogate: str = "squared_hinge",
        margin: float | None = None,
        link: Link = "sigmoid",
    ) -> None:
        super().__init__(labels, surrogate, margin, link)
        self.power = power

    def _step(self, batch: Batch) -> Step:
        rows, scores, power = batch.rows, batch.scores, self.power
        h, scale = self._linked(scores, rows)
        positive, negative = rows.split(scores)
        hardness = torch.exp(power * logsigmoid(-positive))  # 1 - p is the sigmoid of -s
        weight = torch.exp(power * logsigmoid(negative)) / rows.negatives
        if rows.left_out is not None:
            weight = weight.masked_fill(rows.left_out, 0.0)
        share = rows.share(hardness)
        pairs = Pairs(*rows.split(h), rows.negatives, rows.left_out)
        losses, slopes, loss_sums, slope_sums = weighted_pairs(pairs, self.surrogate, share, weight)
        value = rows.mean(hardness * losses)
        # the weights carry gradient, too: d p^a = a p^a (1 - p)
        upper, lower = -share * power * torch.sigmoid(positive) * losses, weight * power * torch.sigmoid(-negative)
        linked = rows.join((-share * slopes, weight * slope_sums), h.dtype)
        gradient = self._before_link(linked, h, scale) + rows.join((upper, lower * loss_sums), h.dtype)
        return Step(value, scores, gradient, finite={"the loss": value})
