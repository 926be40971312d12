r"""Sums over all pairs without the pair matrix: sorting and prefix sums, :math:`O((B_1 + B_2) \log B_2)`.

For a non-decreasing loss the active negatives of a positive are the first few in falling order of score. Their number
is found by bisection on the very comparison the pair matrix makes, :math:`\ell(h_j - h_i) > s_i` in the scores' own
type: each rounded operation in it is monotone in :math:`h_j`, so the set is the same, ties included. The sums follow
from prefix sums of :math:`1, h_j, h_j^2`.

Sums are taken in float64 with scores relative to the highest negative. Where a positive has an active negative at all,
that one is active, and its term alone is as large as the numbers that cancel; so the relative error of a sum is at most
its number of terms times rounding, whatever the range of the scores. Backward the lowest positive plays this part for
the negatives that it reaches with a weight above 0; elsewhere the error is rounding relative to the scores' range.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from moreauc.core.surrogates import Surrogate

VJP = Callable[[Tensor], tuple[Tensor, Tensor]]  # one weight for each positive -> gradients in both sides' scores


def sorted_pairs(
    positive: Tensor,
    negative: Tensor,
    threshold: Tensor,
    surrogate: Surrogate,
    total: float | Tensor,
    left_out: Tensor | None,
) -> tuple[Tensor, Tensor, VJP]:
    r"""Return `psi (B1,)`, the number of active negatives `(B1,)`, and the way to the gradient.

    For the piecewise-polynomial, non-decreasing losses :math:`(m + z)_+^d`; arguments as in `moreauc.core.pairs`. What
    is left out comes last, infinitely low: prefix sums are infinite from there on, but no positive reaches so far.
    """
    everyone: int | Tensor = len(negative)
    if left_out is not None:
        everyone = (~left_out).sum()
        negative = negative.masked_fill(left_out, -torch.inf)
    ordered, order = negative.sort(descending=True)
    count = _count_above(ordered, positive, threshold.clamp_min(0), surrogate)
    top = ordered[0].double()
    x, a = ordered.double() - top, positive.double() - top - surrogate.margin  # v_ij = x_j - a_i
    first = pad(x.cumsum(0), (1, 0)).index_select(0, count)
    linear = first - a * count  # sum of v_ij over the negatives whose loss exceeds max(s_i, 0)
    if surrogate.piecewise_polynomial == 2:
        mass = pad(x.square().cumsum(0), (1, 0)).index_select(0, count) - a * (first + linear)
        push = 2.0 * linear
    else:
        mass, push = linear, count.double()
    # Below 0 a threshold is exceeded by every pair; those of loss 0 add nothing to the mass.
    active, s = torch.where(threshold < 0, everyone, count), threshold.double()
    psi = (s + (mass - s * active) / total).to(positive.dtype)

    def vjp(weight: Tensor) -> tuple[Tensor, Tensor]:
        share = weight.double() / total
        # Positive i reaches the first count_i negatives: its weight is added from there down to rank 0.
        reached = _sum_of_reaching(share, count, len(ordered))
        if surrogate.piecewise_polynomial == 2:
            low = positive.min().double()
            y, b = ordered.double() - low + surrogate.margin, positive.double() - low  # v_ij = y_j - b_i
            reached = 2.0 * (y * reached - _sum_of_reaching(share * b, count, len(ordered)))
        if left_out is not None:
            reached = torch.where(torch.isinf(ordered), 0.0, reached)
        of_negative = torch.empty_like(reached).scatter_(0, order, reached)
        return (-share * push).to(positive.dtype), of_negative.to(negative.dtype)

    return psi, active, vjp


def _count_above(ordered: Tensor, positive: Tensor, level: Tensor, surrogate: Surrogate) -> Tensor:
    """Return how many of the falling `ordered (B2,)` have a loss above `level (B1,)` with each positive, int64."""
    steps = [1 << bit for bit in reversed(range(len(ordered).bit_length()))]
    padded = pad(ordered, (0, 2 * steps[0] - 1 - len(ordered)), value=-torch.inf)  # never active
    count = torch.zeros(len(positive), dtype=torch.int64, device=positive.device)
    for step in steps:
        inside = surrogate.value(padded[count + (step - 1)] - positive) > level
        count += inside * step
    return count


def _sum_of_reaching(weight: Tensor, count: Tensor, size: int) -> Tensor:
    """Return, for each rank `j` in [0, size), the sum of `weight` over those with `count > j`."""
    ends = weight.new_zeros(size + 1).index_add_(0, size - count, weight)
    return ends.cumsum(0)[:size].flip(0)
