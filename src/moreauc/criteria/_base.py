r"""What the losses share: the step from a table row to a gradient, and the checks of a user's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from moreauc._checks import (
    check_device,
    check_floating,
    check_same_shape,
    check_shape,
)
from moreauc._description import settings_text
from moreauc.core.pairs import refuse_second_derivatives
from moreauc.criteria._late import LateChecks

Function = Callable[[Tensor, Tensor], Tensor]


class Criterion(LateChecks):
    r"""Base of the losses.

    In training mode one call is one iteration: the scalar it returns has the algorithm's :math:`G_t` as its gradient
    and the current estimate of :math:`F` as its value, and the visited rows have moved when the call returns. A call
    that raises has changed nothing. In `eval()` mode a call is pure: no row is read or moved, and the scalar is the
    objective at the values given, with its ordinary gradient.

    Types and shapes are always checked at once, values (NaN, row numbers, labels) on the CPU. On a GPU to look at them
    would be to wait for it: there those losses that can do so look at them late (`checks`; docs/performance.md).
    """

    @property
    def needs_previous(self) -> bool:
        """Whether a call in training mode needs the values at the previous weights (a correction weight is not 0)."""
        return False

    def extra_repr(self) -> str:
        """Show the settings, as checkpoints and processes compare them."""
        return settings_text(self)

    @property
    def _owner(self) -> str:
        return type(self).__name__

    def _call(self, name: str, function: Callable[..., Any], value: Tensor, index: Tensor, *shapes: Any) -> Tensor:
        """Call a user's function and say what is wrong with its answer, if anything but NaN (checked with the rest)."""
        result = function(value, index)
        if not isinstance(result, Tensor) or not result.is_floating_point():
            kind = f"{result.dtype} tensor" if isinstance(result, Tensor) else type(result).__name__
            raise ValueError(f"{self._owner}: {name} must return a floating point tensor, got a {kind}")
        check_shape(self._owner, f"what {name} returns", result, shapes)
        if torch.is_grad_enabled() and value.requires_grad and not result.requires_grad:
            raise ValueError(
                f"{self._owner}: {name} must depend on its first argument through differentiable operations, "
                "got a constant without gradient"
            )
        return result

    def _check_previous(self, name: str, value: Tensor | None, now_name: str, now: Tensor, *, gammas: str) -> None:
        """Check the values at the previous iterate against those at the current one; `gammas` names what needs them."""
        if value is None:
            raise ValueError(f"{self._owner}: {name} must be given where {gammas} is not 0, got None")
        check_floating(self._owner, name, value)
        check_same_shape(self._owner, name, value, now_name, now)
        check_device(self._owner, name, value, now.device)


def straight_through(row: Tensor, value: Tensor) -> Tensor:
    r"""Return `row` with the gradient of `value`.

    A function of the result is evaluated, and differentiated, at the table row, while the chain rule goes on through
    the observed value: :math:`\partial g_i(w_t; B)\, \partial f_i(u_{i,t})`, as in line 5 of Algorithm 1.
    """
    return row + (value - value.detach()).to(row.dtype)


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        (gradient,) = ctx.saved_tensors
        return grad * gradient, None, None


def with_gradient(source: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
    """Return the scalar `value` whose derivative in `source` is `gradient`, known already; one node for a graph."""
    result: Tensor = _WithGradient.apply(source, value, gradient)  # type: ignore[no-untyped-call]
    return result


class ParameterSnapshot(nn.Module):
    """The parameters of a module as they were when last captured, kept in buffers so that checkpoints carry them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._names = {name: name.replace(".", "__") for name, _ in module.named_parameters()}
        for name, parameter in module.named_parameters():
            self.register_buffer(self._names[name], parameter.detach().clone())

    @torch.no_grad()
    def capture(self, module: nn.Module, unless: Tensor | None = None) -> None:
        """Copy the present parameters of `module`, unless a flag on the device, shape `()`, is True."""
        for name, parameter in module.named_parameters():
            kept = self.get_buffer(self._names[name])
            kept.copy_(parameter if unless is None else torch.where(unless, kept, parameter))

    @torch.no_grad()
    def evaluate(self, module: nn.Module, *args: Tensor) -> Any:
        """Call `module` with the captured parameters."""
        return functional_call(module, {name: self.get_buffer(key) for name, key in self._names.items()}, args)


def check_function(owner: str, name: str, function: Function | nn.Module) -> Function | nn.Module:
    """Return `function`, which must be callable."""
    if not callable(function):
        raise ValueError(f"{owner}: {name} must be callable, got {function!r}")
    return function
