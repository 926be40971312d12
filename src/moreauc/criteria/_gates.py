"""Gradients of a refused batch that are 0 whatever lies between the loss and its argument.

A user's function may have derivatives that are infinite or NaN where the batch is refused, and 0 times these is NaN. So
the argument passes a gate before it, and the loss another after it. What the second knows, that the batch is refused,
comes to the first as the gradient of a number that is there for this alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> tuple[Tensor, Tensor]:
        return values.clone(), values.new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, refused: Tensor) -> Tensor:
        return gradient.masked_fill(refused != 0, 0.0)


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, word: Tensor, bad: Tensor) -> Tensor:
        ctx.save_for_backward(bad)
        return value.masked_fill(bad, torch.nan)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (bad,) = ctx.saved_tensors
        return gradient.masked_fill(bad, 0.0), bad.to(gradient.dtype), None


def enter(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values, and what :func:`leave` is to be given."""
    result: tuple[Tensor, Tensor] = _Enter.apply(values)  # type: ignore[no-untyped-call]
    return result


def leave(value: Tensor, word: Tensor, bad: Tensor) -> Tensor:
    """Return the loss, shape `()`, NaN where `bad`, shape `()`, is True; then the gradient in the values is 0."""
    result: Tensor = _Leave.apply(value, word, bad)  # type: ignore[no-untyped-call]
    return result
