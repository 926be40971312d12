r"""How the gradient of a function that a user brings reaches, or does not reach, its argument."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def straight_through(row: Tensor, value: Tensor) -> Tensor:
    r"""Return `row` with the gradient of `value`.

    A function of the result is evaluated, and differentiated, at the table row, while the chain rule goes on through
    the observed value: :math:`\partial g_i(w_t; B)\, \partial f_i(u_{i,t})`, as in line 5 of Algorithm 1.
    """
    return row + (value - value.detach()).to(row.dtype)


# A user's function may have infinite or NaN derivatives at a refused batch, and 0 times these is NaN. So its argument
# passes one gate, and the loss another. In backward the second gate sends the flag of a refused batch to the first, as
# the gradient of an extra number, and the first sets the gradient to 0.


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> tuple[Tensor, Tensor]:
        return values.clone(), values.new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, refused: Tensor) -> Tensor:
        return gradient.masked_fill(refused != 0, 0.0)


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, gate: Tensor, bad: Tensor) -> Tensor:
        ctx.save_for_backward(bad)
        return value.masked_fill(bad, torch.nan)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (bad,) = ctx.saved_tensors
        return gradient.masked_fill(bad, 0.0), bad.to(gradient.dtype), None


def enter(values: Tensor, late: bool) -> tuple[Tensor, Tensor | None]:
    """Return the values, and what :func:`leave` is to be given; only a late check needs gates."""
    if not late:
        return values, None
    result: tuple[Tensor, Tensor] = _Enter.apply(values)  # type: ignore[no-untyped-call]
    return result


def leave(value: Tensor, gate: Tensor, bad: Tensor) -> Tensor:
    """Return the loss, shape `()`, NaN where `bad`, shape `()`, is True; then the gradient in the values is 0."""
    result: Tensor = _Leave.apply(value, gate, bad)  # type: ignore[no-untyped-call]
    return result
