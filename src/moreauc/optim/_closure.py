"""Steps that are given a closure, as Lightning's are: the forward happens inside the step, after its pre-hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Closure = Callable[[], Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


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
