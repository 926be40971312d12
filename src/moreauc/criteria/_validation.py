r"""Errors of a call that are noted on the device and raised by a later call.

Reading a device value forces a synchronization, which would cost more than the loss. So a call on a GPU, or in compiled
code, compares on the device and keeps flags. A batch with a flag changes no state, has the value NaN and the gradient
0; the number of the call is kept in a small buffer. That buffer is copied to the host without waiting, and the error is
raised by the first later call that finds it arrived, by `state_dict()`, or by `check()`, which waits. A gradient of 0
does not save a model that computed NaN: inside it 0 times NaN is NaN.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

NEVER = torch.iinfo(torch.int64).max  # the call in which something was wrong, where nothing was
FLAGS = 20  # flags that a call may have
_REMEMBERED = 32  # calls whose arguments are kept to say what exactly was wrong with them
_LARGEST = 1 << 20  # bytes of an argument beyond which those of a call are not kept


class Pending:
    """What the host knows of calls whose flags are on a device; on the CPU they are there already."""

    def __init__(self, calls: int = 0) -> None:
        self.calls = calls
        self.training_messages: tuple[str, ...] = ()
        self.evaluation_messages: tuple[str, ...] = ()
        self._recent: deque[tuple[int, bool, tuple[Any, ...], dict[str, Any]]] = deque(maxlen=_REMEMBERED)
        self._flag: Tensor | None = None
        self._event: torch.cuda.Event | None = None
        self._under_way = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is under way: copies and pickles start without it."""
        return {**vars(Pending(self.calls)), **{name: getattr(self, name) for name in _MESSAGES}}

    def remember(self, training: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count a call and keep its arguments, unless they are large."""
        self.calls += 1
        values = [*args, *kwargs.values()]
        if values and all(not isinstance(value, Tensor) or value.nbytes <= _LARGEST for value in values):
            kept = {name: _kept(value) for name, value in kwargs.items()}
            self._recent.append((self.calls, training, tuple(map(_kept, args)), kept))

    def arguments_of(self, call: int) -> tuple[bool, tuple[Any, ...], dict[str, Any]] | None:
        """Return the mode and the arguments of a call, if they are remembered."""
        return next((known[1:] for known in self._recent if known[0] == call), None)

    def record(self, flags: Tensor) -> None:
        """Copy the flags to the host unless a copy is under way: they tell of all calls so far."""
        if not flags.is_cuda or self._under_way:
            return
        if self._flag is None or self._event is None:
            self._flag = torch.empty(flags.shape, dtype=flags.dtype, pin_memory=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._flag.copy_(flags, non_blocking=True)
        self._event.record(torch.cuda.current_stream(flags.device))
        self._under_way = True

    def poll(self, flags: Tensor) -> Tensor | None:
        """Return what has arrived, if anything has since the last time."""
        if not flags.is_cuda:
            return flags
        if not self._under_way or self._event is None:
            return None
        if not self._event.query():  # type: ignore[no-untyped-call]
            return None
        self._under_way = False
        return self._flag

    def forget(self) -> None:
        """Forget arguments and what is under way."""
        self._recent.clear()
        self._flag, self._event, self._under_way = None, None, False


_MESSAGES = ("training_messages", "evaluation_messages")


def _kept(value: Any) -> Any:
    """Return an argument without its graph; a part of something larger is copied, or it would keep that alive."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach()
    return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value


def capturing(values: Tensor) -> bool:
    """Whether a CUDA graph is being made, in which the host must not look at anything."""
    return values.is_cuda and torch.cuda.is_current_stream_capturing()


def several_processes() -> bool:
    """Whether this is one of several processes that talk to each other."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
