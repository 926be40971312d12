"""Watches the forwards of a model by hooks: which of them count, what they draw, and whether threads collide."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from moreauc.optim._no_trace import (
    RandomState,
    current_state,
    devices_of,
    times_set,
)
from moreauc.optim._pairing import Draws, Inputs

_OVERLAP = (
    "PreviousIterate: a model must not be used while another thread evaluates it at its previous weights, got {}, "
    "which would have had the wrong ones; use the model in one thread at a time, or a deep copy of it"
)


class Watch:
    """Follows forwards of a model from their start to their end.

    A forward counts where a gradient may be taken of it, and also inside of `torch.utils.checkpoint` with
    `use_reentrant=True`, which runs it without gradient. What `backward` recomputes does not count, nor do forwards
    inside of another one, of a model that calls itself.

    Attributes:
        drawn: what the forward of the last call has drawn; None where the hooks have been removed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._caller: threading.Thread | None = None  # in which a call is under way
        self._calls = 0
        self._running = threading.local()
        self.drawn: Draws | None = None

    @contextmanager
    def call(self) -> Iterator[None]:
        """Take the next forward for that of a call at the previous weights."""
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(_OVERLAP.format("another call"))
        try:
            self._caller, self.drawn = threading.current_thread(), None
            self._calls += 1
            yield
        finally:
            self._caller = None
            self._lock.release()

    def begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the start of a forward."""
        running = self._stack()
        outermost = not running
        running.append(_Begun(self._calls))
        self._check("a forward")
        if outermost and (self._caller is not None or _counts()):
            running[-1] = _Begun(self._calls, times_set(), Inputs(args, kwargs), current_state(devices_of(model)))

    def end(self, output: Any) -> Draws | None:
        """Return what a forward that counts has drawn; without output it has failed, and does not count."""
        running = self._stack()
        if not running:
            return None
        begun = running.pop()
        if output is None:
            return None
        if begun.calls != self._calls:
            raise RuntimeError(_OVERLAP.format("a forward"))
        if begun.inputs is None:
            return None
        draws = Draws(begun.inputs, begun.start, current_state(begun.start), begun.times_set != times_set())
        if self._caller is None:
            return draws
        self.drawn = draws
        return None

    def check_step(self) -> None:
        """Refuse a step while another thread is in a call."""
        self._check("a step")
        self._stack().clear()  # of forwards that were interrupted

    def _check(self, what: str) -> None:
        if self._caller not in (None, threading.current_thread()):
            raise RuntimeError(_OVERLAP.format(what))

    def _stack(self) -> list[_Begun]:
        if not hasattr(self._running, "stack"):
            self._running.stack = []
        stack: list[_Begun] = self._running.stack
        return stack


class ForwardHook(partial[None]):
    """A hook that stays behind when its module is copied or pickled.

    It has no frame of its own in Python, which a compiler might look at.
    """

    def __new__(cls, function: Callable[..., None]) -> ForwardHook:
        """Return a hook that calls `function`."""
        # Not as a decorator: torch would load its compiler, for seconds, with this module. Optimizers load it anyway.
        return super().__new__(cls, torch.compiler.disable(function))  # type: ignore[no-untyped-call]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return ForwardHook, (_do_nothing,)


class _Begun(NamedTuple):
    """A forward that has begun; without inputs one that does not count."""

    calls: int
    times_set: int = 0
    inputs: Inputs | None = None
    start: RandomState = {}  # noqa: RUF012


def _counts() -> bool:
    if torch._C._current_graph_task_id() != -1:  # inside of a backward, which recomputes
        return False
    # a torch.autograd.Function, as that of torch.utils.checkpoint, turns off both kinds of gradient; no_grad only one
    inside_function = not torch._C._is_fwd_grad_enabled() and not torch.is_inference_mode_enabled()
    return torch.is_grad_enabled() or inside_function


def _do_nothing(*args: Any) -> None:
    """Take the place of a hook in a copied model."""
