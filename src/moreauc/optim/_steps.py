"""Hooks around the steps of optimizers as they come: wrapped by other libraries, or called with a closure.

Lightning's steps are given a closure: the forward happens inside the step, after its pre-hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

Closure = Callable[[], Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def check_optimizer(owner: str, optimizer: Any) -> Optimizer:
    """Return the optimizer that does the steps: Accelerate's wrappers are optimizers on which no hook can be put."""
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"{owner}: optimizer must be a torch.optim optimizer, got {type(optimizer).__name__}")
    if not hasattr(optimizer, "_optimizer_step_pre_hooks") and hasattr(optimizer, "optimizer"):
        return check_optimizer(owner, optimizer.optimizer)
    return optimizer


def found_infinity(owner: str, optimizer: Optimizer, kwargs: dict[str, Any]) -> Tensor | None:
    """Return the number, on a device, by which a fused optimizer skips its step where it is not 0.

    A `GradScaler` does not look at it: it takes the step of such an optimizer, hooks included, and the kernels do
    nothing. None where the step that has begun is made.
    """
    if kwargs.get("grad_scaler") is not None:
        raise ValueError(
            f"{owner}: optimizer must take found_inf from a GradScaler, or leave the skipping of steps to it, got "
            f"{type(optimizer).__name__}, whose step is given grad_scaler and skips where nobody else can know"
        )
    return getattr(optimizer, "found_inf", None)


def wrap_closure(args: tuple[Any, ...], kwargs: dict[str, Any], wrap: Callable[[Closure], Closure]) -> Arguments | None:
    """Return the arguments of a step with `wrap(closure)` for its closure; None where it has none.

    Args:
        args: what a pre-hook of an optimizer is given, the optimizer first.
        kwargs: likewise.
        wrap: makes the closure that the step is to call.
    """
    if kwargs.get("closure") is not None:
        return args, {**kwargs, "closure": wrap(kwargs["closure"])}
    if len(args) > 1 and args[1] is not None:
        return (args[0], wrap(args[1]), *args[2:]), kwargs
    return None


def after_first_evaluation(
    args: tuple[Any, ...], kwargs: dict[str, Any], function: Callable[[], None]
) -> Arguments | None:
    """Return the arguments of a step with a closure that calls `function` once, when it has been evaluated first."""

    def wrap(closure: Closure) -> Closure:
        waiting = [function]

        def evaluate() -> Any:
            result = closure()
            while waiting:
                waiting.pop()()
            return result

        return evaluate

    return wrap_closure(args, kwargs, wrap)
