r"""The outer function of a CVaR, :math:`f(u, s) = s + \frac1\rho (u - s)_+`, its slopes, and its best thresholds.

Averaged over rows and minimised over :math:`s` it is the mean of the largest fraction :math:`\rho` of the rows. Every
loss with a threshold takes value, slopes and quantiles from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from moreauc.core.surrogates import Surrogate

Number = float | Tensor  # of shape `()`

_ROUNDING = 1e-9  # 0.1 * 30 is 3.0000000000000004


def cvar(
    rows: Tensor, threshold: Tensor, fraction: float, mean: Callable[[Tensor], Tensor], tied: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    r"""Return the mean of :math:`f(u_i, s)` and its slopes in the rows.

    The slope in the threshold is 1 minus that in the row. `mean` is the mean over the rows that count, from shape
    `(B,)` to `()`; `fraction` is :math:`\rho`; `tied` is how much of a row equal to the threshold counts, in [0, 1]: 0
    is the subgradient of the algorithms.
    """
    excess = rows - threshold
    above = torch.relu(excess)
    value = torch.add(threshold, mean(above), alpha=1.0 / fraction)
    inside = above.sign()
    if isinstance(tied, Tensor) or tied:
        inside = inside + tied * (excess == 0)
    return value, inside / fraction


def stepped(threshold: Number, rate: float, slope: Number) -> Number:
    r"""Return the threshold after a step of `rate` against the mean of :math:`\partial_s f = 1 - \partial_u f`."""
    return threshold - rate * (1.0 - slope)


def best_thresholds(surrogate: Surrogate, quantile: Tensor, positive: Tensor, fraction: float) -> Tensor:
    """Return the best thresholds of positives with these scores, given the quantile of the negatives' scores.

    Where all negatives are in the region, thresholds up to the smallest loss are equally good, and 0 is one. What is
    tracked there is the mean of the lowest scores of batches, which would leave out the negatives below it.
    """
    return torch.zeros_like(positive) if fraction == 1.0 else surrogate.value(quantile - positive)


def reached(
    scores: Tensor, fraction: float, left_out: Tensor | None, count: Tensor | float, weight: Tensor | None = None
) -> Tensor:
    """Return the score that `fraction` of the `count` scores not left out reach, shape `(1,)`.

    With weights, 0 for what is left out, it is reached by `fraction` of their sum.
    """
    if weight is not None:
        ordered, order = scores.sort(descending=True)
        ahead = weight.double().index_select(0, order).cumsum(0)
        enough = fraction * ahead[-1] * (1.0 - _ROUNDING)
        place = (ahead < enough).sum().clamp_max(len(scores) - 1)
        return ordered.index_select(0, place.reshape(1))
    if left_out is None or not isinstance(count, Tensor):
        return scores.topk(max(math.ceil(fraction * len(scores) - _ROUNDING), 1)).values[-1:]
    number = (fraction * count - _ROUNDING).ceil().clamp_min(1.0).long()
    ordered = scores.masked_fill(left_out, -torch.inf).sort(descending=True).values
    return ordered.index_select(0, (number - 1).reshape(1))


def upper_quantile(
    rows: Tensor, fraction: float, visited: Tensor | None = None, weight: Tensor | None = None
) -> Tensor:
    """Return the largest value with `fraction` of the rows above it, at least one; below all where that is all.

    `visited` are the rows that count, at least one; None for all. With `weight`, how much each counts, the value has
    `fraction` of the weight above it, and at least one row.
    """
    if weight is not None:
        known = torch.ones_like(rows, dtype=torch.bool) if visited is None else visited
        ordered, order = torch.where(known, rows, -torch.inf).sort(descending=True)
        ahead = torch.where(known, weight.double(), 0.0).index_select(0, order).cumsum(0)
        above, number = (ahead <= fraction * ahead[-1] * (1.0 + _ROUNDING)).sum().clamp_min(1), known.sum()
        places = torch.stack([above.clamp_max(len(rows) - 1), (number - 1).clamp_min(0)])  # 0 in a refused batch
        level, lowest = ordered.index_select(0, places).unbind()
        return torch.where(above < number, level, _below(lowest))
    if visited is None:
        count = max(1, math.floor(fraction * len(rows) + _ROUNDING))
        if count < len(rows):
            return rows.topk(count + 1).values[-1]
        return _below(rows.min())
    ordered = torch.where(visited, rows, -torch.inf).sort(descending=True).values
    number = visited.sum()
    above = (fraction * number.double() + _ROUNDING).floor().long().clamp_min(1)
    places = torch.stack([torch.minimum(above, number - 1), number - 1]).clamp_min(0)
    level, lowest = ordered.index_select(0, places).unbind()
    return torch.where(above < number, level, _below(lowest))


def tied_share(rows: Tensor, threshold: Tensor, fraction: float, visited: Tensor) -> Tensor:
    """Return how much of a row equal to the threshold counts, so that `fraction` of the visited rows count in all."""
    above, tied = ((rows > threshold) & visited).sum(), ((rows == threshold) & visited).sum()
    number = visited.sum()
    # as `moreauc._checks.floor_count`: a rounding error is forgiven
    count = torch.minimum(number, (number.double() * (fraction + 4.0 * torch.finfo(torch.float64).eps)).floor().long())
    rest = (count.clamp_min(1) - above).double() / tied.clamp_min(1)
    return torch.where(rest > 0, rest, 0.0) * (tied > 0)


def _below(lowest: Tensor) -> Tensor:
    return lowest - torch.finfo(lowest.dtype).eps * (1.0 + lowest.abs())
