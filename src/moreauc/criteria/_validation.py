r"""Checks of the values of a call: at once, or noted on the device and raised by a later call.

Reading a device value forces a synchronization, which would cost more than the loss. So a call on a GPU, or in compiled
code, keeps flags on the device. A batch with a flag changes no state, has the value NaN and the gradient 0. The number
of the call is copied to the host without waiting, and the error is raised by the first later call that finds it, by
`state_dict()`, or by `check()`, which waits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from moreauc._checks import (
    as_index,
    check_device,
    check_finite,
    check_floating,
    check_index,
    check_real,
    check_same_shape,
)

NEVER = torch.iinfo(torch.int64).max  # the call in which something was wrong, where nothing was
FLAGS = 20  # flags that a call may have
_REMEMBERED = 32  # calls whose arguments are kept to say what exactly was wrong with them
_LARGEST = 1 << 20  # bytes of an argument beyond which those of a call are not kept
# what errors end with: the remedy
ROW_NUMBERS = "; index holds row numbers of the training set, as IndexedDataset returns them, not places in the batch"
BOTH_CLASSES = "; PosNegSampler draws batches with both"
PREVIOUS = "; PreviousIterate(model, optimizer) evaluates the model at the weights before the last step"
Called = TypeVar("Called")


@dataclass(eq=False)
class Check:
    """What is asked about the values of one call.

    `owner` is the class named in errors: that of the loss that was called, also where a loss inside of it asks. With
    `late` answers stay on the device, as flags; else what is wrong is raised.
    """

    owner: str
    late: bool
    messages: list[str] = field(default_factory=list)
    _flags: list[Tensor] = field(default_factory=list)
    _finite: list[tuple[str, float | Tensor | None]] = field(default_factory=list)

    def flag(self, message: str, wrong: Tensor) -> None:
        """Keep a flag, shape `()`, with the error it stands for."""
        self.messages.append(f"{self.owner}: {message}")
        self._flags.append(wrong)

    def finite(self, **values: float | Tensor | None) -> None:
        """Ask that values be finite; they are checked together, in :meth:`bad`. None takes a place, too."""
        self._finite += values.items()

    def previous(
        self, name: str, now: Tensor, value: Tensor | None, needed: bool, gammas: str = "gamma"
    ) -> Tensor | None:
        """Return the values at the previous iterate, checked against those of now; None where not `needed`.

        `name` is that of the values of now, and `gammas` names what needs the others.
        """
        if not needed:
            return None
        if value is None:
            raise ValueError(f"{self.owner}: previous_{name} must be given where {gammas} is not 0, got None{PREVIOUS}")
        if not (isinstance(value, Tensor) and value.is_floating_point() and value.shape == now.shape):
            check_floating(self.owner, f"previous_{name}", value)
            check_same_shape(self.owner, f"previous_{name}", value, name, now)
        if value.device != now.device:
            check_device(self.owner, f"previous_{name}", value, now.device)
        return value.detach() if value.requires_grad else value

    def index(
        self,
        name: str,
        index: object,
        size: int,
        *,
        length: int,
        unique: bool,
        device: torch.device,
        rows: str = "rows",
    ) -> Tensor:
        """Return `length` row numbers in [0, size), each at most once if `unique`, on the device.

        In a late check numbers out of range are replaced; `rows` says of what the range is.
        """
        remedy = ROW_NUMBERS if rows == "training set" else f"; {rows} are numbered from 0"
        if not self.late:
            found = check_index(self.owner, name, index, size, length=length, unique=unique, remedy=remedy)
            return found.to(device)
        found = as_index(self.owner, name, index, length).to(device, non_blocking=True)
        safe = found.clamp(0, size - 1)
        self.flag(f"{name} must lie in the range of the {rows}, got another number{remedy}", (safe != found).any())
        self.flag(f"{name} must not repeat a row inside one batch, got one more than once", repeats(found, unique))
        return safe

    def clean(self, values: Tensor) -> Tensor:
        """Return values for a user's function, which in a late check need not know NaN: it is 0 there."""
        if not self.late:
            return values
        known = values.detach()
        return values.masked_fill((known - known) != 0, 0.0)

    def bad(self) -> Tensor | None:
        """Raise what is wrong with the values to be finite; in a late check return all flags, shape `(k,)`."""
        if not self.late:
            self._raise_unless_finite()
            return None
        self.messages += [f"{self.owner}: {name} must be finite, got NaN or infinity" for name, _ in self._finite]
        present = [value.detach() for _, value in self._finite if isinstance(value, Tensor)]
        wide = present[0].dtype
        for value in present:
            wide = torch.promote_types(wide, value.dtype)
        # the largest entry is NaN or infinite where any is
        peaks = [torch.linalg.vector_norm(value, torch.inf).to(wide) for value in present]
        zero = torch.zeros_like(peaks[0])
        found = iter(peaks)
        every = torch.stack([zero if value is None else next(found) for _, value in self._finite])
        unmet = every.isfinite().logical_not()
        return torch.cat([torch.stack(self._flags), unmet]) if self._flags else unmet

    def _raise_unless_finite(self) -> None:
        """Check the sums first: a finite sum has finite terms."""
        total = 0.0
        for _, value in self._finite:
            if isinstance(value, Tensor):
                if not value.is_cpu:  # one transfer for all
                    total = math.nan
                    break
                value = value.detach() if value.requires_grad else value
                total += value.sum().item() if value.ndim else value.item()
            elif value is not None:
                total += value
        if not math.isfinite(total):
            found = ((name, value) for name, value in self._finite if value is not None)
            check_finite(self.owner, **{name: torch.as_tensor(value) for name, value in found})


def check_pair(
    owner: str,
    name: str,
    value: float | tuple[float, float],
    allowed: str = "a number or a pair",
    *,
    high: float = math.inf,
    low_open: bool = False,
) -> tuple[float, float]:
    """Return two numbers of at least (`low_open`: above) 0; one number stands for both."""
    pair = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(pair) != 2:
        raise ValueError(f"{owner}: {name} must be {allowed}, got {value!r}")
    first, second = (check_real(owner, name, entry, low=0.0, high=high, low_open=low_open) for entry in pair)
    return first, second


def as_numbers(owner: str, name: str, values: object, dtype: torch.dtype | None = None) -> Tensor:
    """Return values, which must be numbers, as a tensor."""
    try:
        found: Tensor = torch.as_tensor(values, dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(values).__name__
        raise ValueError(f"{owner}: {name} must hold numbers, got a {kind} of other types") from error
    return found


def repeats(numbers: Tensor, unique: bool = True) -> Tensor:
    """Return whether a number comes twice, shape `()`; never if it may."""
    if not unique or len(numbers) < 2:
        return torch.zeros((), dtype=torch.bool, device=numbers.device)
    ordered = numbers.sort().values
    return (ordered[1:] == ordered[:-1]).any()


class Pending:
    """What the host knows of calls whose flags are on a device; on the CPU they are there already."""

    def __init__(self, calls: int = 0) -> None:
        self.calls = calls
        self.training_messages: tuple[str, ...] = ()
        self.evaluation_messages: tuple[str, ...] = ()
        self._recent: deque[tuple[int, bool, tuple[object, ...], Mapping[str, object]]] = deque(maxlen=_REMEMBERED)
        self._flag: Tensor | None = None
        self._event: torch.cuda.Event | None = None
        self._under_way = False

    def __getstate__(self) -> dict[str, object]:
        """Leave out what is under way: copies and pickles start without it."""
        return {**vars(Pending(self.calls)), **{name: getattr(self, name) for name in _MESSAGES}}

    def remember(self, training: bool, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Count a call and keep its arguments, unless they are large."""
        self.calls += 1
        values = [*args, *kwargs.values()]
        if values and all(not isinstance(value, Tensor) or value.nbytes <= _LARGEST for value in values):
            kept = {name: _kept(value) for name, value in kwargs.items()}
            self._recent.append((self.calls, training, tuple(map(_kept, args)), kept))

    def arguments_of(self, call: int) -> tuple[bool, tuple[object, ...], Mapping[str, object]] | None:
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


def _kept(value: object) -> object:
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


def check_function(owner: str, name: str, function: Called) -> Called:
    """Return `function`, which must be callable."""
    if not callable(function):
        raise ValueError(f"{owner}: {name} must be callable, got {function!r}")
    return function
