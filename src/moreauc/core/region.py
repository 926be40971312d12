r"""The loss over a region of the ROC square on a whole data set, and its gradient in the scores.

For a non-decreasing loss the worst pairs of the region are those of the lowest-scored positives, :math:`\alpha = 1 -`
`min_tpr` of their weight, with the highest-scored negatives, :math:`\beta` = `max_fpr` of theirs; the last one on
either side counts in part. The objective, minimised over its thresholds, is then a weighted mean over pairs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from moreauc._checks import check_region
from moreauc.core.pairs import Pairs, cvar_and_vjp
from moreauc.core.sorted_pairs import ramp_sums
from moreauc.core.surrogates import SmoothRamp, SquaredHinge, Surrogate


def region_loss_and_gradient(
    positive: Tensor,
    negative: Tensor,
    surrogate: Surrogate,
    min_tpr: float,
    max_fpr: float,
    positive_weight: Tensor | None = None,
    negative_weight: Tensor | None = None,
) -> tuple[float, Tensor, Tensor]:
    r"""Return the mean loss over the pairs of the region, and its gradients in both sides' scores.

    .. math:: \sum_i \sum_j a_i b_j \, \ell(h_j - h_i), \qquad \sum_i a_i = \sum_j b_j = 1

    with :math:`a_i` the weight taken of positive `i`, :math:`b_j` that of negative `j`. In float64, in
    :math:`O(n \log n)` time for the losses that :mod:`moreauc.core.sorted_pairs` knows. Where scores at the edge of the
    region are equal, the gradient is one of several. Scores are float64; weights are at least 0 and not all 0, None for
    1 each.

    Example:
        >>> from moreauc.core.surrogates import Hinge
        >>> positive, negative = torch.tensor([3.0, 1.0]).double(), torch.tensor([2.0, 0.0]).double()
        >>> region_loss_and_gradient(positive, negative, Hinge(1.0), min_tpr=0.5, max_fpr=0.5)
        (2.0, tensor([ 0., -1.], dtype=torch.float64), tensor([1., 0.], dtype=torch.float64))
    """
    owner = "region_loss_and_gradient"
    min_tpr, max_fpr = check_region(owner, min_tpr, max_fpr)
    if not surrogate.non_decreasing:
        raise ValueError(f"{owner}: surrogate must be non-decreasing, got {surrogate.name!r}")
    lowest, a = _select(positive, positive_weight, 1.0 - min_tpr, highest=False)
    highest, b = _select(negative, negative_weight, max_fpr, highest=True)
    low, high = positive.index_select(0, lowest), negative.index_select(0, highest)
    value, of_low, of_high = _pair_mean(low, a, high, b, surrogate)
    of_positive = torch.zeros_like(positive).index_copy_(0, lowest, of_low)
    return value, of_positive, torch.zeros_like(negative).index_copy_(0, highest, of_high)


class RegionDerivatives(NamedTuple):
    """What :func:`region_derivatives` returns.

    Gradients and curvatures, what bounds the second derivatives, are those in the scores of each side.
    """

    value: float
    positive_gradient: Tensor
    negative_gradient: Tensor
    positive_curvature: Tensor
    negative_curvature: Tensor


def region_derivatives(
    positive: Tensor,
    negative: Tensor,
    surrogate: SmoothRamp | SquaredHinge,
    min_tpr: float,
    max_fpr: float,
    positive_weight: Tensor | None = None,
    negative_weight: Tensor | None = None,
) -> RegionDerivatives:
    r"""Return the loss of :func:`region_loss_and_gradient`, its gradients, and a diagonal that bounds its Hessian.

    .. math:: c_i = 2 a_i \sum_j b_j \, |\ell''(h_j - h_i)|, \qquad c_j = 2 b_j \sum_i a_i \, |\ell''(h_j - h_i)|

    The diagonal matrix of :math:`c`, minus the Hessian of the loss with the weights :math:`a` and :math:`b` held fixed,
    is positive semidefinite. A row without an active pair has gradient and curvature 0. For the ramp
    :math:`|g| \le c\,m / 2` in every row: no Newton step exceeds half the margin.

    Rows with equal scores at the edge of the region share what is left of it in proportion to their weights: trees
    give many rows the same score, and the result must not depend on the order of the rows.

    Example:
        >>> from moreauc.core.surrogates import SquaredHinge
        >>> positive, negative = torch.tensor([3.0, 1.0]).double(), torch.tensor([0.0, 0.0]).double()
        >>> found = region_derivatives(positive, negative, SquaredHinge(2.0), min_tpr=0.5, max_fpr=0.5)
        >>> found.value, found.negative_gradient.tolist(), found.positive_curvature.tolist()
        (1.0, [1.0, 1.0], [0.0, 4.0])
    """
    owner = "region_derivatives"
    min_tpr, max_fpr = check_region(owner, min_tpr, max_fpr)
    if not isinstance(surrogate, SmoothRamp | SquaredHinge):
        raise ValueError(f"{owner}: surrogate must be 'smooth_ramp' or 'squared_hinge', got {surrogate.name!r}")
    lowest, a = _select_with_ties(positive, positive_weight, 1.0 - min_tpr, highest=False)
    highest, b = _select_with_ties(negative, negative_weight, max_fpr, highest=True)
    low, high = positive.index_select(0, lowest), negative.index_select(0, highest)
    value, of_low, of_high = _pair_mean(low, a, high, b, surrogate)
    below, size = (
        (surrogate.margin, 1.0 / surrogate.margin**2) if isinstance(surrogate, SmoothRamp) else (math.inf, 2.0)
    )
    near_low = _mass_between(-high, b, -low - below, -low + surrogate.margin)
    near_high = _mass_between(low, a, high - below, high + surrogate.margin)
    sides = (positive, lowest, of_low, a * near_low), (negative, highest, of_high, b * near_high)
    gradients = [torch.zeros_like(side).index_copy_(0, places, slope) for side, places, slope, _ in sides]
    curvatures = [torch.zeros_like(side).index_copy_(0, places, 2.0 * size * near) for side, places, _, near in sides]
    return RegionDerivatives(value, *gradients, *curvatures)


def _pair_mean(low: Tensor, a: Tensor, high: Tensor, b: Tensor, surrogate: Surrogate) -> tuple[float, Tensor, Tensor]:
    """Return the weighted mean of the loss over pairs, negatives in falling order, and its gradients in both sides."""
    if isinstance(surrogate, SmoothRamp):
        psi, push, reach = ramp_sums(low, high, b, surrogate)
        return float(a @ psi), -a * push, b * reach(a)
    psi, _, vjp = cvar_and_vjp(Pairs(low, high, 1.0, weight=b), torch.zeros_like(low), surrogate)
    return float(a @ psi), *vjp(a)


def _mass_between(rising: Tensor, weight: Tensor, least: Tensor, most: Tensor) -> Tensor:
    """Return the weight of the entries of a rising vector that lie strictly between `least` and `most`."""
    ahead = pad(weight.cumsum(0), (1, 0))
    first, last = torch.searchsorted(rising, least, right=True), torch.searchsorted(rising, most)
    return (ahead.index_select(0, last) - ahead.index_select(0, first)).clamp_min(0.0)


def _select(scores: Tensor, weight: Tensor | None, share: float, *, highest: bool) -> tuple[Tensor, Tensor]:
    """Return the places of the scores that hold a share of the weight, the extreme first, and what is taken; sum 1."""
    if weight is None:
        wanted = share * len(scores)
        number = min(len(scores), int(wanted) + 1)
        some = scores.topk(number, largest=highest, sorted=False).indices  # sorting these alone is faster
        order = some.index_select(0, scores.index_select(0, some).argsort(descending=highest))
        taken = torch.ones(number, dtype=torch.float64, device=scores.device)
        taken[-1] = wanted - (number - 1)
    else:
        order = scores.argsort(descending=highest)
        taken = weight.index_select(0, order).double()
        reached = taken.cumsum(0)
        taken = torch.minimum((share * reached[-1] - (reached - taken)).clamp_min(0.0), taken)
    inside = taken > 0
    return order[inside], taken[inside] / taken.sum()


def _select_with_ties(scores: Tensor, weight: Tensor | None, share: float, *, highest: bool) -> tuple[Tensor, Tensor]:
    """Return the same as `_select`, with what the rows at the edge have left spread over all rows of their score."""
    values = -scores if highest else scores
    if weight is None:
        wanted = share * len(values)
        edge = values.kthvalue(min(len(values), int(wanted) + 1)).values
    else:
        ordered, order = values.sort()
        reached = weight.index_select(0, order).double().cumsum(0)
        wanted = share * float(reached[-1])
        edge = ordered[torch.searchsorted(reached, wanted).clamp_max(len(values) - 1)]
    places = (values <= edge).nonzero().squeeze(1)
    chosen = values.index_select(0, places)
    taken = torch.ones_like(chosen) if weight is None else weight.index_select(0, places).double()
    tied = chosen == edge
    inside, at_edge = (float(taken[part].sum()) for part in (~tied, tied))
    taken = torch.where(tied, taken * max(wanted - inside, 0.0) / at_edge, taken)
    order = chosen.argsort()
    order = order[taken.index_select(0, order) > 0]
    taken = taken.index_select(0, order)
    return places.index_select(0, order), taken / taken.sum()
