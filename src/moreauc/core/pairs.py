r"""The inner level of two-way partial AUC: for each positive the CVaR of its pair losses over the negatives.

Three ways to one result: the pair matrix (small batches), sorting (:mod:`moreauc.core.sorted_pairs`) and blocks of rows
of the matrix that are made again for the gradient. The last two need memory linear in the batch.

Negatives are a list (compact), or the whole batch with a mask of the other rows (padded): where the labels are on a
device, no shape may depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from moreauc._checks import check_floating, check_real, check_same_shape, check_shape
from moreauc.core.sorted_pairs import VJP, sorted_pairs
from moreauc.core.surrogates import Surrogate

Method = Literal["auto", "pairs", "sorted", "tiles"]
Slope = Callable[[], Tensor]  # computed on demand: not every step needs it
Kernel = tuple[Tensor, Slope, VJP]  # `psi`, the number (weight) of active negatives of each positive, the gradient

_OWNER = "cvar_over_negatives"
_FLOAT32_COUNTS = 1 << 24  # up to here float32 holds every whole number

# Where "auto" leaves the pair matrix, in pairs. CPU: benchmarks/reports/pairs.json has the sweep (forward and backward,
# float32, one thread). Sorting overtakes a square matrix between 384 and 512 of each class. A narrow matrix is cheap
# per score, so a side below 16 never pays for a sort. Tiles of the logistic loss overtake the matrix near 2048; their
# size hardly matters from 2^16 to 2^18. CUDA (H200, 2026-11-15, when autograd still differentiated the matrix): it
# took 0.85 ms at 4096 of each class, 2.5 at 8192 and 9.6 at 16384, sorting 3.1, 3.7 and 3.8; the numbers for tiles are
# estimates.
_SORT_FROM = {"cpu": 3 << 16, "cuda": 1 << 26}
_SORT_SIDE = 16
_TILE_FROM = {"cpu": 1 << 22, "cuda": 1 << 25}
_TILE = {"cpu": 1 << 17, "cuda": 1 << 24}


class Pairs(NamedTuple):
    r"""Positives, negatives, and how many negatives count.

    Scores have no gradient and one type, at least float32; in a padded batch some positives may be repeats that get
    weight 0 later. `total` is :math:`\beta` times the number (with weights, the sum) of the negatives; `left_out` are
    the entries of `negative` that make no pair, and `weight` is None where each counts once.
    """

    positive: Tensor
    negative: Tensor
    total: float | Tensor
    left_out: Tensor | None = None
    weight: Tensor | None = None


def cvar_over_negatives(
    positive: Tensor,
    negative: Tensor,
    threshold: Tensor,
    *,
    surrogate: Surrogate,
    max_fpr: float,
    method: Method = "auto",
) -> tuple[Tensor, Tensor]:
    r"""Return :math:`\psi_i` of every positive and its derivative in the threshold.

    .. math::
        \psi_i = s_i + \frac{1}{\beta B_2} \sum_{j=1}^{B_2} (\ell(h_j - h_i) - s_i)_+, \qquad
        \partial_{s_i} \psi_i = 1 - \frac{|\{j : \ell(h_j - h_i) > s_i\}|}{\beta B_2}

    with :math:`h_i` = `positive`, :math:`h_j` = `negative`, :math:`s_i` = `threshold`, :math:`\beta` = `max_fpr`
    (problem (9) and Algorithm 2, lines 4 and 5). A pair with :math:`\ell = s_i` is not active.

    All methods decide which pairs are active by the same floating point comparison, so the slopes are equal bit for
    bit. The sums differ by rounding. Whether scores are finite is for the caller to check.

    `method` is "pairs", the `B1 x B2` matrix; "sorted", for the squared hinge, the hinge and the ramp; "tiles", for any
    loss; "auto", the fastest that fits. Each can be differentiated once. Only `psi` carries a gradient; none flows to
    the threshold. Both have the widest type of the inputs, at least float32.

    Example:
        >>> from moreauc.core.surrogates import SquaredHinge
        >>> positive, negative = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0, -3.0, -4.0])
        >>> cvar_over_negatives(positive, negative, torch.zeros(2), surrogate=SquaredHinge(), max_fpr=0.5)
        (tensor([0.5000, 2.5000]), tensor([0.5000, 0.0000]))
    """
    beta = check_real(_OWNER, "max_fpr", max_fpr, low=0.0, high=1.0, low_open=True)
    for name, value in (("positive", positive), ("negative", negative), ("threshold", threshold)):
        check_floating(_OWNER, name, value)
        check_shape(_OWNER, name, value, [("B",)])
    check_same_shape(_OWNER, "threshold", threshold, "positive", positive)
    dtype = torch.promote_types(torch.promote_types(positive.dtype, negative.dtype), threshold.dtype)
    dtype = torch.promote_types(dtype, torch.float32)  # half precision is too narrow for the sums
    positive, negative, threshold = positive.to(dtype), negative.to(dtype), threshold.detach().to(dtype)
    method = _choose(method, positive, negative, surrogate)
    result: tuple[Tensor, Tensor] = _Differentiable.apply(positive, negative, threshold, surrogate, beta, method)  # type: ignore[no-untyped-call]
    return result


def cvar_and_vjp(
    pairs: Pairs, threshold: Tensor, surrogate: Surrogate, method: Method = "auto"
) -> tuple[Tensor, Slope, VJP]:
    r"""Return `psi` of :func:`cvar_over_negatives` and the ways to its slope and gradient, without graph and checks.

    For a loss whose gradient is known as soon as its value is: `slope()` returns the derivatives in the thresholds, and
    `vjp(weight)`, with one weight for each positive, the gradients of the weighted sum of `psi` in `positive` and in
    `negative`.

    With weights of the negatives each counts as often as its weight says. No loss is below 0, so with thresholds 0 and
    `total` 1 `psi` is :math:`\sum_j w_j \ell(h_j - h_i)`.
    """
    if method == "auto":
        method = _choose(method, pairs.positive, pairs.negative, surrogate)
    psi, active, vjp = _KERNELS[method](pairs, threshold, surrogate)

    def slope() -> Tensor:
        number = active()
        if number.dtype != psi.dtype:  # integers, or counts beyond float32
            number = number.to(torch.float64 if len(pairs.negative) > _FLOAT32_COUNTS else psi.dtype)
        found = torch.rsub(number / pairs.total, 1.0)
        return found if found.dtype == psi.dtype else found.to(psi.dtype)

    return psi, slope, vjp


def log_mean_exp_and_vjp(pairs: Pairs, surrogate: Surrogate, temperature: float) -> tuple[Tensor, VJP]:
    r"""Return :math:`\log \frac1{B_2} \sum_j e^{\ell(h_j - h_i) / T}` of every positive, and the way to its gradient.

    `pairs.total` is the number of negatives.
    """
    blocks = _blocks(pairs)
    log_total = pairs.total.log() if isinstance(pairs.total, Tensor) else math.log(pairs.total)

    def part(positive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, slope = surrogate.value_and_slope(pairs.negative - positive.unsqueeze(1))
        logit = value / temperature
        if pairs.left_out is not None:
            logit = logit.masked_fill(pairs.left_out, -torch.inf)
        return logit.logsumexp(1), logit, slope

    kept = part(pairs.positive) if len(blocks) == 1 else None
    sums = torch.cat([part(block)[0] for block in blocks]) if kept is None else kept[0]

    def vjp(weight: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = [], torch.zeros_like(pairs.negative)
        for block, own in zip(blocks, torch.split(weight, len(blocks[0])), strict=True):
            total, logit, slope = part(block) if kept is None else kept
            share = (logit - total.unsqueeze(1)).exp() * slope * (own / temperature).unsqueeze(1)
            rows.append(-share.sum(1))
            columns = columns + share.sum(0)
        return torch.cat(rows), columns

    return (sums - log_total).to(sums.dtype), vjp


def weighted_pairs(
    pairs: Pairs, surrogate: Surrogate, upper: Tensor, lower: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Return sums over one side of :math:`\ell` and :math:`\ell'`, weighted by numbers of the other side.

    For weights `upper`, :math:`a_i`, and `lower`, :math:`b_j` (0 where left out), these are
    :math:`\sum_j b_j \ell_{ij}`, :math:`\sum_j b_j \ell'_{ij}`, shape `(B1,)`, and :math:`\sum_i a_i \ell_{ij}`,
    :math:`\sum_i a_i \ell'_{ij}`, shape `(B2,)`.
    """
    blocks = _blocks(pairs)
    values, slopes = [], []
    value_sum, slope_sum = torch.zeros_like(pairs.negative), torch.zeros_like(pairs.negative)
    for block, own in zip(blocks, torch.split(upper, len(blocks[0])), strict=True):
        value, slope = surrogate.value_and_slope(pairs.negative - block.unsqueeze(1))
        # no matrix products: autocast would make them of half precision
        values.append((value * lower).sum(1))
        slopes.append((slope * lower).sum(1))
        value_sum = value_sum + (value * own.unsqueeze(1)).sum(0)
        slope_sum = slope_sum + (slope * own.unsqueeze(1)).sum(0)
    return torch.cat(values), torch.cat(slopes), value_sum, slope_sum


def refuse_second_derivatives() -> None:
    """Raise inside a backward that autograd records: what it recorded would lack a part, silently."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # compiled code refuses by itself
        raise RuntimeError("losses over pairs can be differentiated once only; call without create_graph=True")


def _choose(method: Method, positive: Tensor, negative: Tensor, surrogate: Surrogate) -> Method:
    can_sort = surrogate.non_decreasing and surrogate.piecewise_polynomial in (1, 2)
    if method == "auto":
        device = "cuda" if positive.is_cuda else "cpu"
        upper, lower = positive.shape[0], negative.shape[0]
        size = upper * lower
        if can_sort and not (device == "cuda" and _fixed_order()):
            worth = size >= _SORT_FROM[device] + _SORT_SIDE * (upper + lower)
            return "sorted" if worth else "pairs"
        return "tiles" if size >= _TILE_FROM[device] else "pairs"
    if method not in _KERNELS:
        raise ValueError(f"{_OWNER}: method must be 'auto', 'pairs', 'sorted' or 'tiles', got {method!r}")
    if method == "sorted" and not can_sort:
        raise ValueError(
            f"{_OWNER}: method='sorted' needs a non-decreasing piecewise-polynomial surrogate, got {surrogate.name!r}"
        )
    return method


def _fixed_order() -> bool:
    """Whether torch would refuse prefix sums on a GPU, which are not deterministic."""
    if not torch.are_deterministic_algorithms_enabled():
        return False
    return torch.compiler.is_compiling() or not torch.is_deterministic_algorithms_warn_only_enabled()  # untraceable


class _Differentiable(Function):
    """The sums as an operation of autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        positive: Tensor,
        negative: Tensor,
        threshold: Tensor,
        surrogate: Surrogate,
        beta: float,
        method: Method,
    ) -> tuple[Tensor, Tensor]:
        pairs = Pairs(positive, negative, beta * len(negative))
        psi, slope_of, ctx.vjp = cvar_and_vjp(pairs, threshold, surrogate, method)
        slope = slope_of()
        ctx.mark_non_differentiable(slope)
        ctx.set_materialize_grads(False)  # no zero gradient for `slope`
        return psi, slope

    @staticmethod
    def backward(ctx: Any, grad_psi: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        if grad_psi is None:
            return 6 * (None,)
        return *ctx.vjp(grad_psi), None, None, None, None


def _pair_matrix(pairs: Pairs, threshold: Tensor, surrogate: Surrogate) -> Kernel:
    """Compute the whole matrix and keep two of its size for the gradient; autograd would keep more."""
    positive, negative, total, left_out, own = pairs
    value, push = surrogate.value_and_slope(negative - positive.unsqueeze(1))
    excess = value.sub_(threshold.unsqueeze(1))  # in place: small matrices cost little more than their allocation
    if left_out is not None:
        excess = excess.masked_fill(left_out, -1.0)
    # The difference of two floats is above 0 exactly where the first is the larger.
    excess = excess.relu_()
    sums = (excess if own is None else excess * own).sum(dim=1)
    psi = threshold + sums / total if isinstance(total, Tensor) else torch.add(threshold, sums, alpha=1.0 / total)

    def active() -> Tensor:
        inside = excess.sign_()  # 0 and 1 in the scores' type: cheaper than a bool; the sums have been taken
        exact = torch.float64 if negative.shape[0] > _FLOAT32_COUNTS else None
        return (inside if own is None else inside * own).sum(dim=1, dtype=exact)

    def vjp(weight: Tensor) -> tuple[Tensor, Tensor]:
        share = push * (weight / total).unsqueeze(1)
        if own is not None:
            share = share * own
        if left_out is None:
            share = share.mul_(excess.sign_())  # 0 where a pair is not active
        else:  # the slope of what was left out may be infinite
            share = torch.ops.aten.threshold_backward(share, excess, 0.0)
        return -share.sum(dim=1), share.sum(dim=0)

    return psi, active, vjp


def _tiles(pairs: Pairs, threshold: Tensor, surrogate: Surrogate) -> Kernel:
    """Compute some rows of the matrix at a time, again for the gradient; sum over blocks in float64."""
    blocks = _blocks(pairs)
    levels = torch.split(threshold, len(blocks[0]))
    sums, counts = [], []
    for block, level in zip(blocks, levels, strict=True):
        psi, active, _ = _pair_matrix(pairs._replace(positive=block), level, surrogate)
        sums.append(psi)
        counts.append(active())

    def vjp(weight: Tensor) -> tuple[Tensor, Tensor]:
        of_positive, of_negative = [], torch.zeros_like(pairs.negative, dtype=torch.float64)
        for block, level, share in zip(blocks, levels, torch.split(weight, len(blocks[0])), strict=True):
            rows, columns = _pair_matrix(pairs._replace(positive=block), level, surrogate)[2](share)
            of_positive.append(rows)
            of_negative += columns
        return torch.cat(of_positive), of_negative.to(pairs.negative.dtype)

    return torch.cat(sums), lambda: torch.cat(counts), vjp


def _blocks(pairs: Pairs) -> tuple[Tensor, ...]:
    """Return the positives in blocks whose part of the matrix is one tile."""
    size = _TILE["cuda" if pairs.positive.is_cuda else "cpu"]
    return torch.split(pairs.positive, max(1, size // len(pairs.negative)))


def _sorted(pairs: Pairs, threshold: Tensor, surrogate: Surrogate) -> Kernel:
    positive, negative, total, left_out, weight = pairs
    psi, active, vjp = sorted_pairs(positive, negative, threshold, surrogate, total, left_out, weight)
    return psi, lambda: active, vjp


_KERNELS: dict[str, Callable[[Pairs, Tensor, Surrogate], Kernel]] = {
    "pairs": _pair_matrix,
    "sorted": _sorted,
    "tiles": _tiles,
}
