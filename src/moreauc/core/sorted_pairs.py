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

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import pad

from moreauc.core.surrogates import Surrogate


class Kernel(ABC):
    """One way to the sums over pairs and to their gradient; arguments as in `moreauc.core.pairs`, all of one type."""

    @staticmethod
    @abstractmethod
    def sums(
        positive: Tensor, negative: Tensor, threshold: Tensor, surrogate: Surrogate, total: float
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        r"""Return `psi (B1,)`, the number of active negatives `(B1,)`, and what :meth:`pull` needs.

        Args:
            positive: shape `(B1,)`.
            negative: shape `(B2,)`.
            threshold: shape `(B1,)`.
            surrogate: the loss.
            total: :math:`\beta B_2`.
        """

    @staticmethod
    @abstractmethod
    def pull(saved: tuple[Tensor, ...], weight: Tensor, surrogate: Surrogate, total: float) -> tuple[Tensor, Tensor]:
        """Return the gradients `(B1,)` and `(B2,)` of the sum of `psi` weighted by `weight (B1,)`."""


class SortedPairs(Kernel):
    r"""Sorting and prefix sums, for the piecewise-polynomial, non-decreasing losses :math:`(m + z)_+^d`."""

    @staticmethod
    def sums(
        positive: Tensor, negative: Tensor, threshold: Tensor, surrogate: Surrogate, total: float
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Return the sums, the number of active pairs, and what :meth:`pull` needs."""
        ordered, order = negative.sort(descending=True)
        count = _count_above(ordered, positive, threshold.clamp_min(0), surrogate)
        top = ordered[0].double()
        x = ordered.double() - top
        a = positive.double() - top - surrogate.margin  # v_ij = x_j - a_i
        first = pad(x.cumsum(0), (1, 0))[count]
        linear = first - a * count  # sum of v_ij over the negatives whose loss exceeds max(s_i, 0)
        if surrogate.piecewise_polynomial == 2:
            mass = pad(x.square().cumsum(0), (1, 0))[count] - a * (first + linear)
            push = 2.0 * linear
        else:
            mass, push = linear, count.double()
        # Below 0 a threshold is exceeded by every pair; those of loss 0 add nothing to the mass.
        active = torch.where(threshold < 0, len(negative), count)
        s = threshold.double()
        psi = (s + (mass - s * active) / total).to(positive.dtype)
        return psi, active, (positive, ordered, order, count, push)

    @staticmethod
    def pull(saved: tuple[Tensor, ...], weight: Tensor, surrogate: Surrogate, total: float) -> tuple[Tensor, Tensor]:
        """Return the gradient by the positive and by the negative scores."""
        positive, ordered, order, count, push = saved
        weight = weight.double() / total
        grad_positive = (-weight * push).to(positive.dtype)
        # Positive i reaches the first count_i negatives: its weight is added from there down to rank 0.
        pull = _sum_of_reaching(weight, count, len(ordered))
        if surrogate.piecewise_polynomial == 2:
            low = positive.min().double()
            y = ordered.double() - low + surrogate.margin
            b = positive.double() - low  # v_ij = y_j - b_i
            pull = 2.0 * (y * pull - _sum_of_reaching(weight * b, count, len(ordered)))
        return grad_positive, torch.empty_like(pull).scatter_(0, order, pull).to(ordered.dtype)


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
