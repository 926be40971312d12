r"""The loss over a region of the ROC square on a whole data set, and its gradient in the scores.

For a non-decreasing loss the worst pairs of the region are those of the lowest-scored positives with the highest-scored
negatives: :math:`\alpha = 1 -` `min_tpr` of the weight of the positives, :math:`\beta` = `max_fpr` of that of the
negatives, the last one on either side with the fraction that is left. What is minimised over thresholds elsewhere
(:mod:`moreauc.core.objectives`) is then a weighted mean over pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moreauc._checks import check_region
from moreauc.core.pairs import Pairs, cvar_and_vjp
from moreauc.core.sorted_pairs import ramp_sums
from moreauc.core.surrogates import SmoothRamp, Surrogate


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
    :math:`O(n \log n)` time for the losses that :mod:`moreauc.core.sorted_pairs` knows. An integer weight is as good as
    so many rows. Where scores at the edge of the region are equal, the gradient is one of several.

    Args:
        positive: scores :math:`h_i`, shape `(n+,)`, float64.
        negative: scores :math:`h_j`, shape `(n-,)`, float64.
        surrogate: the loss :math:`\ell`, non-decreasing.
        min_tpr: in [0, 1).
        max_fpr: in (0, 1].
        positive_weight: of the positives, at least 0 and not all 0; None for 1 each.
        negative_weight: of the negatives, likewise.

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
    if isinstance(surrogate, SmoothRamp):
        psi, push, reach = ramp_sums(low, high, b, surrogate)
        of_low, of_high = -a * push, b * reach(a)
    else:
        psi, _, vjp = cvar_and_vjp(Pairs(low, high, 1.0, weight=b), torch.zeros_like(low), surrogate)
        of_low, of_high = vjp(a)
    of_positive = torch.zeros_like(positive).index_copy_(0, lowest, of_low)
    return float(a @ psi), of_positive, torch.zeros_like(negative).index_copy_(0, highest, of_high)


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
