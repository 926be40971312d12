r"""Exact values of the objectives on a whole data set, minimised over their thresholds; stateless, for reports.

Everything is computed in float64, without gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from moreauc._checks import (
    check_finite,
    check_floating,
    check_labels,
    check_link,
    check_real,
    check_same_shape,
    check_shape,
)
from moreauc.core.outer import cvar
from moreauc.core.pairs import cvar_over_negatives
from moreauc.core.surrogates import Link, Surrogate, get_surrogate, scale_of

_ROWS_SIZE = 1 << 22  # entries of the pair matrix at a time where each positive has its own worst negatives


class TPAUCOptimum(NamedTuple):
    """What :func:`tpauc_optimum` returns.

    Attributes:
        value: the objective at these thresholds.
        s: threshold of each positive, shape `(n+,)`, float64, in order of appearance in the labels.
        s_prime: threshold over the positives.
    """

    value: float
    s: Tensor
    s_prime: float


def tpauc_objective(
    scores: Tensor,
    labels: Tensor,
    *,
    min_tpr: float,
    max_fpr: float,
    surrogate: str = "squared_hinge",
    margin: float | None = None,
    link: Link = "sigmoid",
) -> float:
    r"""Return the two-way partial AUC loss of a data set, exactly; lower is better.

    .. math::
        \min_{s', s} \frac{1}{n_+} \sum_i \Big[s' + \frac{(\psi_i(s_i) - s')_+}{\alpha}\Big], \qquad
        \psi_i(s_i) = s_i + \frac{1}{\beta n_-} \sum_j (\ell(h_j - h_i) - s_i)_+

    with :math:`\alpha = 1 -` `min_tpr` and :math:`\beta` = `max_fpr` (problem (9)). This is the mean over the worst
    :math:`\alpha n_+` positives of their mean pair loss with the worst :math:`\beta n_-` negatives; where these numbers
    are not whole, the last one enters with the fraction that is left. With `min_tpr=0` and `max_fpr=1` it is the mean
    of the loss over all pairs.

    For a non-decreasing loss the worst negatives are the highest for every positive, so the squared hinge, the hinge
    and the ramp take :math:`O(n \log n)` time and linear memory. The other losses take time in proportion to the number
    of pairs, in linear memory.

    Args:
        scores: raw model outputs, shape `(n,)`, finite.
        labels: 0 or 1, shape `(n,)`, both present.
        min_tpr: in [0, 1).
        max_fpr: in (0, 1].
        surrogate: name of the loss :math:`\ell`, as in :func:`~moreauc.core.surrogates.get_surrogate`.
        margin: of the loss, at least 0; None for the surrogate's default.
        link: applied to the scores: "sigmoid", "identity" or "standardized" (:mod:`moreauc.core.surrogates`).

    Raises:
        ValueError: for arguments outside these ranges.

    Example:
        >>> scores, labels = torch.tensor([3.0, 1.0, 2.0, 0.0]), torch.tensor([1, 1, 0, 0])
        >>> tpauc_objective(scores, labels, min_tpr=0.5, max_fpr=0.5, link="identity")
        4.0
        >>> tpauc_objective(scores, labels, min_tpr=0.0, max_fpr=1.0, link="identity")
        1.0
    """
    arguments = _prepare("tpauc_objective", scores, labels, min_tpr, max_fpr, surrogate, margin, link)
    return _optimum(*arguments).value


def tpauc_optimum(
    scores: Tensor,
    labels: Tensor,
    *,
    min_tpr: float,
    max_fpr: float,
    surrogate: str = "squared_hinge",
    margin: float | None = None,
    link: Link = "sigmoid",
) -> TPAUCOptimum:
    r"""Return :func:`tpauc_objective` together with thresholds that attain it; the arguments are the same.

    The minimiser :math:`s_i` is the :math:`\lceil \beta n_- \rceil`-th largest pair loss of positive `i`, and
    :math:`s'` the :math:`\lceil \alpha n_+ \rceil`-th largest :math:`\psi_i`. Where the number is whole, the minimisers
    fill the interval from the next smaller value up to this one, which is returned.

    Example:
        >>> scores, labels = torch.tensor([3.0, 1.0, 2.0, 0.0]), torch.tensor([1, 1, 0, 0])
        >>> tpauc_optimum(scores, labels, min_tpr=0.5, max_fpr=0.5, link="identity")
        TPAUCOptimum(value=4.0, s=tensor([0., 4.], dtype=torch.float64), s_prime=4.0)
    """
    return _optimum(*_prepare("tpauc_optimum", scores, labels, min_tpr, max_fpr, surrogate, margin, link))


def _prepare(
    owner: str,
    scores: Tensor,
    labels: Tensor,
    min_tpr: float,
    max_fpr: float,
    surrogate: str,
    margin: float | None,
    link: str,
) -> tuple[Tensor, Tensor, float, float, Surrogate]:
    """Check the arguments; return positives and negatives after the link, alpha, beta and the loss."""
    alpha = 1.0 - check_real(owner, "min_tpr", min_tpr, low=0.0, high=1.0, high_open=True)
    beta = check_real(owner, "max_fpr", max_fpr, low=0.0, high=1.0, low_open=True)
    loss = get_surrogate(surrogate, margin)
    check_link(owner, link)
    scores, labels = check_floating(owner, "scores", scores), torch.as_tensor(labels)
    check_shape(owner, "scores", scores, [("n",)])
    check_same_shape(owner, "labels", labels, "scores", scores)
    check_finite(owner, scores=scores)
    is_positive = check_labels(owner, labels).to(scores.device) == 1
    h = scores.detach().double()
    if link == "sigmoid":
        h = torch.sigmoid(h)
    elif link == "standardized":
        h = h / scale_of(h[~is_positive])
    return h[is_positive], h[~is_positive], alpha, beta, loss


@torch.no_grad()
def _optimum(positive: Tensor, negative: Tensor, alpha: float, beta: float, loss: Surrogate) -> TPAUCOptimum:
    rank = _rank(beta, len(negative))
    if loss.non_decreasing:
        s = loss.value(_largest(negative, rank) - positive)
    else:
        rows = torch.split(positive, max(1, _ROWS_SIZE // len(negative)))
        s = torch.cat([_largest(loss.value(negative - row.unsqueeze(1)), rank) for row in rows])
    psi, _ = cvar_over_negatives(positive, negative, s, surrogate=loss, max_fpr=beta)
    s_prime = _largest(psi, _rank(alpha, len(positive)))
    value, _ = cvar(psi, s_prime, alpha, torch.mean)
    return TPAUCOptimum(float(value), s, float(s_prime))


def _rank(fraction: float, size: int) -> int:
    """Return `fraction * size` rounded up, but not for the sake of a rounding error: 10 * (1 - 0.7) is 3."""
    amount = fraction * size
    nearest = round(amount)
    return max(1, nearest if abs(amount - nearest) <= 1e-12 * size else math.ceil(amount))


def _largest(values: Tensor, rank: int) -> Tensor:
    """Return the `rank`-th largest entry of each row."""
    return values.kthvalue(values.shape[-1] - rank + 1, dim=-1).values
