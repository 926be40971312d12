r"""Pairs of a batch whose numbers of positives and negatives only the device knows: all tensors as long as the batch.

The same sums as in `moreauc.core.pairs`, with a mask of the negatives where that module is given them alone. No shape
depends on the labels, so that nothing waits for the device, and compilers and CUDA graphs can take it in.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from moreauc.core.pairs import _SORT_FROM, _TILE, Pull
from moreauc.core.sorted_pairs import _count_above, _sum_of_reaching
from moreauc.core.surrogates import Surrogate


def masked_cvar_and_pull(
    positive: Tensor, scores: Tensor, left_out: Tensor, threshold: Tensor, *, surrogate: Surrogate, total: Tensor
) -> tuple[Tensor, Tensor, Pull]:
    r"""Return :math:`\psi_i`, its derivative in the threshold, and the way to its gradient.

    Args:
        positive: :math:`h_i`, shape `(B,)`; some may be repeats that get weight 0 later.
        scores: :math:`h_j` of the whole batch, shape `(B,)`.
        left_out: which of them are no negatives, shape `(B,)`, bool.
        threshold: :math:`s_i`, shape `(B,)`; as all of them of one type, at least float32, without gradient.
        surrogate: the loss.
        total: :math:`\beta B_2`, shape `()`, float64.

    Returns:
        `psi` and `slope`, shape `(B,)`, and a function from one weight for each positive to the gradients of the
        weighted sum of `psi` in `positive` and in `scores`, both of shape `(B,)`.
    """
    size, place = len(positive) * len(scores), "cuda" if positive.is_cuda else "cpu"
    if size < _SORT_FROM[place]:
        return _matrix(positive, scores, left_out, threshold, surrogate, total)
    # torch refuses to add up in a fixed order what the sums over sorted scores need on a GPU
    fixed = place == "cuda" and torch.are_deterministic_algorithms_enabled()
    if surrogate.non_decreasing and surrogate.piecewise_polynomial in (1, 2) and not fixed:
        return _sorted(positive, scores, left_out, threshold, surrogate, total)
    return _tiled(positive, scores, left_out, threshold, surrogate, total, max(1, _TILE[place] // len(scores)))


def _matrix(
    positive: Tensor, scores: Tensor, left_out: Tensor, threshold: Tensor, surrogate: Surrogate, total: Tensor
) -> tuple[Tensor, Tensor, Pull]:
    value, push = surrogate.value_and_slope(scores - positive.unsqueeze(1))
    excess = (value - threshold.unsqueeze(1)).masked_fill(left_out, -1.0)
    inside = excess > 0
    psi = threshold + torch.relu(excess).sum(1) / total
    slope = (1.0 - inside.sum(1) / total).to(psi.dtype)

    def pull(weight: Tensor) -> tuple[Tensor, Tensor]:
        pulled = push * inside * (weight / total).unsqueeze(1)
        return -pulled.sum(1), pulled.sum(0)

    return psi, slope, pull


def _tiled(
    positive: Tensor,
    scores: Tensor,
    left_out: Tensor,
    threshold: Tensor,
    surrogate: Surrogate,
    total: Tensor,
    rows: int,
) -> tuple[Tensor, Tensor, Pull]:
    """Take some positives at a time, and make their part of the matrix again for the gradient."""
    parts = list(zip(torch.split(positive, rows), torch.split(threshold, rows), strict=True))
    done = [_matrix(part, scores, left_out, level, surrogate, total)[:2] for part, level in parts]

    def pull(weight: Tensor) -> tuple[Tensor, Tensor]:
        of_positives, of_scores = [], torch.zeros_like(scores, dtype=torch.float64)
        for (part, level), share in zip(parts, torch.split(weight, rows), strict=True):
            upper, lower = _matrix(part, scores, left_out, level, surrogate, total)[2](share)
            of_positives.append(upper)
            of_scores += lower
        return torch.cat(of_positives), of_scores.to(scores.dtype)

    return torch.cat([psi for psi, _ in done]), torch.cat([slope for _, slope in done]), pull


def _sorted(
    positive: Tensor, scores: Tensor, left_out: Tensor, threshold: Tensor, surrogate: Surrogate, total: Tensor
) -> tuple[Tensor, Tensor, Pull]:
    """Sort and sum up, as `SortedPairs`; what is no negative comes last, infinitely low.

    Prefix sums are infinite from there on, but no positive reaches so far.
    """
    ordered, order = scores.masked_fill(left_out, -torch.inf).sort(descending=True)
    count = _count_above(ordered, positive, threshold.clamp_min(0), surrogate)
    top = ordered[0].double()
    x, a = ordered.double() - top, positive.double() - top - surrogate.margin  # v_ij = x_j - a_i
    first = pad(x.cumsum(0), (1, 0)).index_select(0, count)
    push = first - a * count
    mass = push
    if surrogate.piecewise_polynomial == 2:
        mass = pad(x.square().cumsum(0), (1, 0)).index_select(0, count) - a * (first + push)
        push = 2.0 * push
    else:
        push = count.double()
    active, s = torch.where(threshold < 0, (~left_out).sum(), count), threshold.double()
    psi = (s + (mass - s * active) / total).to(positive.dtype)

    def pull(weight: Tensor) -> tuple[Tensor, Tensor]:
        share = weight.double() / total
        pulled = _sum_of_reaching(share, count, len(ordered))
        if surrogate.piecewise_polynomial == 2:
            low = positive.min().double()
            y, b = ordered.double() - low + surrogate.margin, positive.double() - low  # v_ij = y_j - b_i
            pulled = 2.0 * (y * pulled - _sum_of_reaching(share * b, count, len(ordered)))
        pulled = torch.where(torch.isinf(ordered), 0.0, pulled)
        of_scores = torch.empty_like(pulled).scatter(0, order, pulled)
        return (-share * push).to(positive.dtype), of_scores.to(scores.dtype)

    return psi, (1.0 - active / total).to(psi.dtype), pull
