r"""The inner level of two-way partial AUC: for each positive the CVaR of its pair losses over the negatives.

Three ways to one result: the pair matrix (small batches), sorting (:mod:`moreauc.core.sorted_pairs`) and tiles of the
matrix that are made again for the gradient. The last two need memory linear in the batch.
"""

# ruff: noqa: D102 (the base class says once what `sums` and `pull` are)
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function

from moreauc._checks import (
    check_floating,
    check_real,
    check_same_shape,
    check_shape,
)
from moreauc.core.sorted_pairs import Kernel, SortedPairs
from moreauc.core.surrogates import Surrogate

Method = Literal["auto", "pairs", "sorted", "tiles"]
Pull = Callable[[Tensor], tuple[Tensor, Tensor]]

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
    bit. The sums differ by rounding.

    Args:
        positive: scores of the positives, shape `(B1,)`, differentiable.
        negative: scores of the negatives, shape `(B2,)`, differentiable.
        threshold: one per positive, shape `(B1,)`; no gradient flows to it.
        surrogate: the loss :math:`\ell`.
        max_fpr: :math:`\beta` in (0, 1].
        method: "pairs", the `B1 x B2` matrix; "sorted", for :class:`~moreauc.core.surrogates.SquaredHinge` and
            :class:`~moreauc.core.surrogates.Hinge`; "tiles", for any loss; "auto", the fastest that fits. Each can be
            differentiated once.

    Returns:
        `psi` and `slope`, both of shape `(B1,)` and of the widest type among the inputs, at least float32. Only `psi`
        carries a gradient.

    Raises:
        ValueError: for a wrong type, shape, range or method. That scores are finite is for the caller to check.

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
    dtype = torch.promote_types(dtype, torch.float32)  # half types neither resolve nor hold the sums
    positive, negative, threshold = positive.to(dtype), negative.to(dtype), threshold.detach().to(dtype)
    kernel = _KERNELS[_choose(method, positive, negative, surrogate)]
    psi, active = _Differentiable.apply(positive, negative, threshold, kernel, surrogate, beta)  # type: ignore[no-untyped-call]
    return psi, _slope(active, beta * len(negative), dtype)


def cvar_and_pull(
    positive: Tensor, negative: Tensor, threshold: Tensor, *, surrogate: Surrogate, max_fpr: float
) -> tuple[Tensor, Tensor, Pull]:
    """Return what :func:`cvar_over_negatives` does and the way to its gradient, without a graph and without checks.

    For a loss whose gradient is known as soon as its value is: `pull(weight)`, with one weight for each positive,
    returns the gradients of the weighted sum of `psi` in `positive` and in `negative`.

    Args:
        positive: shape `(B1,)`; as the next two of one type, at least float32, without gradient.
        negative: shape `(B2,)`.
        threshold: shape `(B1,)`.
        surrogate: the loss.
        max_fpr: in (0, 1].
    """
    kernel = _KERNELS[_choose("auto", positive, negative, surrogate)]
    total = max_fpr * len(negative)
    psi, active, saved = kernel.sums(positive, negative, threshold, surrogate, total)

    def pull(weight: Tensor) -> tuple[Tensor, Tensor]:
        return kernel.pull(saved, weight, surrogate, total)

    return psi, _slope(active, total, positive.dtype), pull


def _slope(active: Tensor, total: float, dtype: torch.dtype) -> Tensor:
    return (1.0 - active.double() / total).to(dtype)


def refuse_second_derivatives() -> None:
    """Raise inside a backward that autograd records: what it recorded would lack a part, silently."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # compiled code refuses by itself
        raise RuntimeError("losses over pairs can be differentiated once only; call without create_graph=True")


def _choose(method: Method, positive: Tensor, negative: Tensor, surrogate: Surrogate) -> Method:
    can_sort = surrogate.non_decreasing and surrogate.piecewise_polynomial in (1, 2)
    if method == "auto":
        device = "cuda" if positive.is_cuda else "cpu"
        size = len(positive) * len(negative)
        if can_sort:
            worth = size >= _SORT_FROM[device] + _SORT_SIDE * (len(positive) + len(negative))
            return "sorted" if worth else "pairs"
        return "tiles" if size >= _TILE_FROM[device] else "pairs"
    if method not in ("pairs", "sorted", "tiles"):
        raise ValueError(f"{_OWNER}: method must be 'auto', 'pairs', 'sorted' or 'tiles', got {method!r}")
    if method == "sorted" and not can_sort:
        raise ValueError(
            f"{_OWNER}: method='sorted' needs a non-decreasing piecewise-polynomial surrogate, got {surrogate.name!r}"
        )
    return method


class _Differentiable(Function):
    """A kernel as an operation of autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        positive: Tensor,
        negative: Tensor,
        threshold: Tensor,
        kernel: type[Kernel],
        surrogate: Surrogate,
        beta: float,
    ) -> tuple[Tensor, Tensor]:
        total = beta * len(negative)
        psi, active, saved = kernel.sums(positive, negative, threshold, surrogate, total)
        ctx.save_for_backward(*saved)
        ctx.pull = partial(kernel.pull, surrogate=surrogate, total=total)
        ctx.mark_non_differentiable(active)
        ctx.set_materialize_grads(False)  # none is made up for `active`
        return psi, active

    @staticmethod
    def backward(ctx: Any, grad_psi: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        if grad_psi is None:
            return 6 * (None,)
        return *ctx.pull(ctx.saved_tensors, grad_psi), None, None, None, None


class PairMatrix(Kernel):
    """The whole matrix at once; two of its size are kept for the gradient, where autograd would keep more."""

    @staticmethod
    def sums(
        positive: Tensor, negative: Tensor, threshold: Tensor, surrogate: Surrogate, total: float
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        value, push = surrogate.value_and_slope(negative - positive.unsqueeze(1))
        excess = value - threshold.unsqueeze(1)
        psi = torch.add(threshold, torch.relu(excess).sum(dim=1), alpha=1.0 / total)
        # The difference of two floats is above 0 exactly where the first is the larger.
        inside = excess.gt_(0)  # 0 and 1 in the scores' type: a product with it is faster than one with a bool
        exact = torch.float64 if len(negative) > _FLOAT32_COUNTS else None
        return psi, inside.sum(dim=1, dtype=exact), (push, inside)

    @staticmethod
    def pull(saved: tuple[Tensor, ...], weight: Tensor, surrogate: Surrogate, total: float) -> tuple[Tensor, Tensor]:
        push, inside = saved
        pull = push * inside * (weight / total).unsqueeze(1)
        return -pull.sum(dim=1), pull.sum(dim=0)


class TiledPairs(Kernel):
    """The pair matrix in tiles, made again for the gradient; sums across tiles in float64."""

    @staticmethod
    def sums(
        positive: Tensor, negative: Tensor, threshold: Tensor, surrogate: Surrogate, total: float
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        mass = torch.zeros_like(positive, dtype=torch.float64)
        active = torch.zeros_like(positive, dtype=torch.int64)
        for row, column in _tiles(positive, negative):
            excess = surrogate.value(negative[column] - positive[row, None]) - threshold[row, None]
            mass[row] += torch.relu(excess).sum(dim=1)
            active[row] += (excess > 0).sum(dim=1)
        return (threshold + mass / total).to(positive.dtype), active, (positive, negative, threshold)

    @staticmethod
    def pull(saved: tuple[Tensor, ...], weight: Tensor, surrogate: Surrogate, total: float) -> tuple[Tensor, Tensor]:
        positive, negative, threshold = saved
        grad_positive = torch.zeros_like(positive, dtype=torch.float64)
        grad_negative = torch.zeros_like(negative, dtype=torch.float64)
        weight = weight / total
        for row, column in _tiles(positive, negative):
            z = negative[column] - positive[row, None]
            active = surrogate.value(z) > threshold[row, None]
            pull = surrogate.slope(z) * active * weight[row, None]
            grad_positive[row] -= pull.sum(dim=1)
            grad_negative[column] += pull.sum(dim=0)
        return grad_positive.to(positive.dtype), grad_negative.to(negative.dtype)


def _tiles(positive: Tensor, negative: Tensor) -> Iterator[tuple[slice, slice]]:
    size = _TILE.get(positive.device.type, _TILE["cpu"])
    side = 1 << (size.bit_length() // 2)
    rows = min(len(positive), max(side, size // len(negative)))
    columns = max(1, size // rows)
    for top in range(0, len(positive), rows):
        for left in range(0, len(negative), columns):
            yield slice(top, top + rows), slice(left, left + columns)


_KERNELS: dict[Method, type[Kernel]] = {"pairs": PairMatrix, "sorted": SortedPairs, "tiles": TiledPairs}
