r"""Sums over all pairs without the pair matrix: sorting and prefix sums, :math:`O((B_1 + B_2) \log B_2)`.

For a non-decreasing loss the active negatives of a positive are the first few in falling order of score. Their number
is found by bisection on the very comparison the pair matrix makes, :math:`\ell(h_j - h_i) > s_i` in the scores' own
type: each rounded operation in it is monotone in :math:`h_j`, so the set is the same, ties included. The sums follow
from prefix sums of :math:`1, h_j, h_j^2`, taken in float64.

For :math:`(m + z)_+^d` scores are relative to the highest negative. Where a positive has an active negative at all,
that one is active, and its term alone is as large as the numbers that cancel; so the relative error of a sum is at most
its number of terms times rounding. Backward the lowest positive plays this part for the negatives that it reaches with
a weight above 0; elsewhere the error is rounding relative to the scores' range.

For the ramp such numbers would cancel: its quadratic parts are as wide as the margin and lie anywhere in the range.
There scores are relative to the middle of a cell, a few margins wide, of one of two grids half a cell apart; a positive
takes the grid in which it lies near a middle. The error is the number of terms times rounding relative to the largest
possible sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from moreauc.core.surrogates import SmoothRamp, Surrogate

VJP = Callable[[Tensor], tuple[Tensor, Tensor]]  # one weight for each positive -> gradients in both sides' scores

_CELL = 6.0  # width of a cell in margins; |h_i - middle| is at most a quarter of it, so 1/2 margin is to spare
_LARGE = 1 << 15  # positives from which on they are worth a sort of their own


class _Sides(NamedTuple):
    """Positives, and negatives in falling order.

    `ordered` has `-inf` for negatives left out, and `weight` is in the same order, None where all are 1. `reaches` is
    the number of active negatives of each positive, and `mass` their weight.
    """

    positive: Tensor
    ordered: Tensor
    weight: Tensor | None
    reaches: Tensor
    mass: Tensor

    def weighted(self, values: Tensor) -> Tensor:
        """Return values of the negatives times their weights."""
        return values if self.weight is None else values * self.weight


def sorted_pairs(
    positive: Tensor,
    negative: Tensor,
    threshold: Tensor,
    surrogate: Surrogate,
    total: float | Tensor,
    left_out: Tensor | None,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, VJP]:
    r"""Return `psi (B1,)`, the number (weight) of active negatives `(B1,)`, and the way to the gradient.

    For the losses :math:`(m + z)_+^d` and the ramp; arguments as in `moreauc.core.pairs`. What is left out comes last,
    infinitely low: prefix sums are not finite from there on, but no positive reaches so far.
    """
    if isinstance(surrogate, SmoothRamp) and len(positive) >= _LARGE:
        return _in_order(positive, negative, threshold, surrogate, total, left_out, weight)
    return _sums(positive, negative, threshold, surrogate, total, left_out, weight)


def _in_order(positive: Tensor, negative: Tensor, threshold: Tensor, *rest: Any) -> tuple[Tensor, Tensor, VJP]:
    """Sort the positives, too: lookups next to each other are several times faster where there are many of them."""
    positive, order = positive.sort()
    psi, active, vjp = _sums(positive, negative, threshold.index_select(0, order), *rest)

    def back(values: Tensor) -> Tensor:
        return torch.empty_like(values).scatter_(0, order, values)

    def ordered_vjp(outer: Tensor) -> tuple[Tensor, Tensor]:
        of_positive, of_negative = vjp(outer.index_select(0, order))
        return back(of_positive), of_negative

    return back(psi), back(active), ordered_vjp


def _sums(
    positive: Tensor,
    negative: Tensor,
    threshold: Tensor,
    surrogate: Surrogate,
    total: float | Tensor,
    left_out: Tensor | None,
    weight: Tensor | None,
) -> tuple[Tensor, Tensor, VJP]:
    everyone: int | Tensor = len(negative)
    if left_out is not None:
        everyone = (~left_out).sum()
        negative = negative.masked_fill(left_out, -torch.inf)
    ordered, order = negative.sort(descending=True)
    mass = count = _count_above(ordered, positive, threshold.clamp_min(0), surrogate)
    if weight is not None:
        weight = weight.double()
        everyone = weight.sum() if left_out is None else weight.masked_fill(left_out, 0.0).sum()
        weight = weight.index_select(0, order)
        mass = _before(weight).index_select(0, count)
    sides = _Sides(positive, ordered, weight, count, mass)
    loss, push, reach = _ramp(sides, surrogate) if isinstance(surrogate, SmoothRamp) else _power(sides, surrogate)
    # Below 0 a threshold is exceeded by every pair; those of loss 0 add nothing to the sum.
    active, s = torch.where(threshold < 0, everyone, mass), threshold.double()
    psi = (s + (loss - s * active) / total).to(positive.dtype)

    def vjp(outer: Tensor) -> tuple[Tensor, Tensor]:
        share = outer.double() / total
        reached = sides.weighted(reach(share))
        if left_out is not None:
            reached = torch.where(torch.isinf(ordered), 0.0, reached)
        of_negative = torch.empty_like(reached).scatter_(0, order, reached)
        return (-share * push).to(positive.dtype), of_negative.to(negative.dtype)

    return psi, active, vjp


# Sums of the loss and of its slope over the active negatives of each positive, and a function from weights of the
# positives to the weighted sum of slopes over those that reach each negative.
_Sums = tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]


def _power(sides: _Sides, surrogate: Surrogate) -> _Sums:
    """The losses `(m + z)_+^d`, d = 1 or 2."""
    positive, ordered, _, count, mass = sides
    margin, square = surrogate.margin, surrogate.piecewise_polynomial == 2
    top = ordered[0].double()
    x, a = ordered.double() - top, positive.double() - top - margin  # v_ij = x_j - a_i
    first = _before(sides.weighted(x)).index_select(0, count)
    loss = linear = first - a * mass
    if square:
        loss = _before(sides.weighted(x.square())).index_select(0, count) - a * (first + linear)
    push = 2.0 * linear if square else mass.double()

    def reach(share: Tensor) -> Tensor:
        # Positive i reaches the first count_i negatives: its weight is added from there down to rank 0.
        reached = _sum_of_reaching(share, count, len(ordered))
        if square:
            low = positive.min().double()
            y, b = ordered.double() - low + margin, positive.double() - low  # v_ij = y_j - b_i
            reached = 2.0 * (y * reached - _sum_of_reaching(share * b, count, len(ordered)))
        return reached

    return loss, push, reach


def ramp_sums(positive: Tensor, ordered: Tensor, weight: Tensor, surrogate: SmoothRamp) -> _Sums:
    """Return the sums of the ramp over weighted negatives, in falling order, with thresholds 0; all in float64.

    A negative at the very edge of the ramp, where value and slope are 0, is counted or not as rounding has it.
    """
    count = torch.searchsorted(-ordered, surrogate.margin - positive)
    mass = _before(weight).index_select(0, count)
    return _ramp(_Sides(positive, ordered, weight, count, mass), surrogate)


def _ramp(sides: _Sides, surrogate: SmoothRamp) -> _Sums:
    """The ramp: of the active ranks those before `half` cost 1 - (1 - u)^2 / 2 or, before `full`, 1; the rest less."""
    positive, ordered, _, count, mass = sides
    margin, size = surrogate.margin, len(ordered) + 1
    # In float64 these may differ from the pair matrix by rounding, where value and slope are continuous.
    rising, high = -ordered.double(), -positive.double()
    half = torch.minimum(torch.searchsorted(rising, high), count)
    full = torch.minimum(torch.searchsorted(rising, high - margin), half)
    y, local = _local(ordered, margin), _local(positive, margin)
    grid = (local[1].abs() <= _CELL / 4).long()
    d = local.gather(0, grid.unsqueeze(0)).squeeze(0)  # u_ij = y_j - d_i
    ranks = [rank + grid * size for rank in (full, half, count)]
    weights = (full, half, mass)
    if sides.weight is not None:
        ahead = _before(sides.weight)
        weights = (ahead.index_select(0, full), ahead.index_select(0, half), mass)
    first, second = (_before(sides.weighted(power)).flatten() for power in (y, y.square()))
    upper, lower = (
        (
            weights[k + 1] - weights[k],
            first.index_select(0, ranks[k + 1]) - first.index_select(0, ranks[k]),
            second.index_select(0, ranks[k + 1]) - second.index_select(0, ranks[k]),
        )
        for k in (0, 1)
    )
    a, b = 1.0 - d, 1.0 + d  # 1 + u = y + a, 1 - u = b - y
    low, high = lower[1] + a * lower[0], b * upper[0] - upper[1]
    loss = weights[1] + 0.5 * (lower[2] + a * (lower[1] + low) - upper[2] - b * (high - upper[1]))

    def reach(share: Tensor) -> Tensor:
        slopes, levels = share.new_zeros(2, 2 * size)
        for rank, of_y, of_1 in zip(ranks, (-share, 2.0 * share, -share), (b, -2.0 * d, -a), strict=True):
            slopes.index_add_(0, rank, of_y)
            levels.index_add_(0, rank, share * of_1)
        slopes, levels = (part.view(2, size).cumsum(1)[:, :-1] for part in (slopes, levels))
        return torch.sum(slopes * y + levels, 0) / margin

    return loss, (low + high) / margin, reach


def _local(scores: Tensor, margin: float) -> Tensor:
    """Return where scores lie in their cells of both grids, from the middle and in margins, shape `(2, B)`."""
    scores, width = scores.double(), _CELL * margin
    place = scores / width
    return (scores - width * torch.stack([place.floor() + 0.5, place.round()])) / margin


def _before(values: Tensor) -> Tensor:
    """Return the sums of what comes before each rank, `size + 1` of them, along the last dimension."""
    return pad(values.cumsum(-1), (1, 0))


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
