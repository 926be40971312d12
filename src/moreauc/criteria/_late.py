r"""Errors without waiting for a device: what is wrong with a batch is noted there, and read when it has arrived.

To look at a number on a GPU is to wait until all work before it is done, which would cost more than the loss. So a call
on a GPU, or in compiled code, asks its questions on the device. A batch with a wrong answer changes no state, has the
value NaN and the gradient 0; the number of the call is noted in a small buffer. That buffer is copied to the host
without waiting, and the error raised by the first later call that finds it arrived, by `state_dict()`, or by `check()`,
which waits. A gradient of 0 does not save a model that computed NaN: inside it 0 times NaN is NaN.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

Checks = Literal["auto", "now", "late"]

_NEVER = torch.iinfo(torch.int64).max  # the call in which something was wrong, where nothing was
_REMEMBERED = 32  # calls whose arguments are kept to say what exactly was wrong with them
_LARGEST = 1 << 20  # bytes of an argument beyond which those of a call are not kept


class LateChecks(nn.Module):
    """Base of modules that look at the values of a batch at once or, where that would mean waiting, later."""

    _FAULTS: ClassVar[tuple[str, ...]] = ()  # what the flags of a call stand for, in the words of an error
    _calls: Tensor
    _refused: Tensor
    _faults: Tensor
    _when: Checks = "auto"
    _UNDESCRIBED: ClassVar[tuple[str, ...]] = ("_messenger", "_when")  # no result depends on them

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._messenger = _Messenger()
        # None is part of a checkpoint, which can only be made where there is nothing to tell.
        self.register_buffer("_calls", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("_refused", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("_faults", torch.full((max(1, len(self._FAULTS)),), _NEVER), persistent=False)

    @property
    def checks(self) -> Checks:
        """When values are looked at: "now", "late", or "auto", late on a GPU and in compiled code, else at once."""
        return self._when

    @checks.setter
    def checks(self, value: Checks) -> None:
        if value not in ("auto", "now", "late"):
            raise ValueError(f"{type(self).__name__}: checks must be 'auto', 'now' or 'late', got {value!r}")
        for part in self._parts():
            part._when = value

    def check(self) -> None:
        """Wait for the device and raise what earlier calls have found wrong, if anything; then it is forgotten.

        Raises:
            ValueError: as a call on the CPU would have, with the number of the call.
        """
        for part in self._parts():
            self._tell(part, part._faults.tolist())

    def _is_late(self, values: Any) -> bool:
        """Whether to ask the questions of this call on the device."""
        if self._when != "auto":
            return self._when == "late"
        on_gpu = isinstance(values, Tensor) and values.is_cuda
        return (on_gpu or torch.compiler.is_compiling()) and not several_processes()

    def _judge(self, *flags: Tensor) -> Tensor:
        """Note what is wrong with the batch, flags in the order of `_FAULTS`; return whether anything is, shape `()`.

        Args:
            flags: whether something is wrong, shape `()` or `(k,)` for several faults.
        """
        wrong = torch.cat([flag.reshape(-1) for flag in flags])
        self._calls.add_(1)
        self._faults.copy_(torch.where(wrong, torch.minimum(self._faults, self._calls), self._faults))
        bad = wrong.any()
        self._refused.add_(bad)
        return bad

    def _look(self) -> None:
        """Raise what an earlier call has found wrong, if word of it has arrived."""
        if torch.compiler.is_compiling() or _capturing(self._faults):
            return
        letters = [part._messenger.arrived(part._faults) for part in self._parts()]
        if any(letter is not None and min(letter.tolist()) < _NEVER for letter in letters):
            self.check()  # of several parts the outermost knows best what was wrong

    def _send(self, *arguments: Any) -> None:
        """Send word of this call, without waiting; `arguments` are those that :meth:`_explain` takes."""
        if torch.compiler.is_compiling() or _capturing(self._faults):
            return
        self._messenger.remember(arguments, self.training)
        self._messenger.send(self._faults)

    def _replayed(self) -> None:
        """Do what follows a call that was replayed by a CUDA graph: look, and send word of it."""
        self._look()
        for part in self._parts():
            part._send()

    def _parts(self) -> Iterator[LateChecks]:
        # a wrapper that was made without this class's constructor has nothing to tell
        return (part for part in self.modules() if isinstance(part, LateChecks) and "_faults" in part._buffers)

    def _explain(self, *arguments: Any) -> None:
        """Raise what is wrong with the arguments of a call, looking at their values."""

    def _tell(self, part: LateChecks, numbers: list[int]) -> None:
        """Raise what a part has found wrong, if anything; `numbers` are those of the calls."""
        call = min(numbers)
        if call == _NEVER:
            return
        last, refused = int(part._calls), int(part._refused)
        # compiled calls are not remembered, and the others then not by their numbers
        known = part._messenger.arguments_of(call) if part._messenger.calls == last else None
        for other in self._parts():
            other._faults.fill_(_NEVER)
            other._refused.zero_()
            other._messenger.forget()
        fault = part._FAULTS[numbers.index(call)]
        what, cause = f"{type(part).__name__}: {fault}", None
        if known is not None:
            try:
                part._explain_as(*known)
            except ValueError as error:
                what, cause = str(error), error
        changed = "the call changed nothing" if refused == 1 else f"{refused} calls were refused and changed nothing"
        if "finite" in fault:
            changed += (
                " in the loss, but NaN inside the model reaches its weights by backward, which checks='now' prevents"
            )
        raise ValueError(f"{what} (in call {call}, found later, after call {last}; {changed})") from cause

    def _explain_as(self, training: bool, arguments: tuple[Any, ...]) -> None:
        """Explain a call in the mode that it was made in."""
        mode, self.training = self.training, training
        try:
            self._explain(*arguments)
        finally:
            self.training = mode

    def _save_to_state_dict(self, *args: Any) -> None:
        self.check()
        super()._save_to_state_dict(*args)


class _Messenger:
    """Brings a few numbers from a device to the host without waiting; on the CPU they are there already."""

    def __init__(self, calls: int = 0) -> None:
        self.calls = calls
        self._recent: deque[tuple[int, bool, tuple[Any, ...]]] = deque(maxlen=_REMEMBERED)
        self._letter: Tensor | None = None
        self._event: torch.cuda.Event | None = None
        self._under_way = False

    def __reduce__(self) -> Any:
        return _Messenger, (self.calls,)  # copies and pickles start without what is under way

    def remember(self, arguments: tuple[Any, ...], training: bool) -> None:
        self.calls += 1
        if arguments and all(not isinstance(value, Tensor) or value.nbytes <= _LARGEST for value in arguments):
            self._recent.append((self.calls, training, tuple(map(_kept, arguments))))

    def arguments_of(self, call: int) -> tuple[bool, tuple[Any, ...]] | None:
        """Return the mode and the arguments of a call, if they are remembered."""
        return next(((training, kept) for number, training, kept in self._recent if number == call), None)

    def send(self, numbers: Tensor) -> None:
        """Copy the numbers to the host unless a copy is under way: they tell of all calls so far."""
        if not numbers.is_cuda or self._under_way:
            return
        if self._letter is None or self._event is None:
            self._letter = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._letter.copy_(numbers, non_blocking=True)
        self._event.record(torch.cuda.current_stream(numbers.device))
        self._under_way = True

    def arrived(self, numbers: Tensor) -> Tensor | None:
        """Return what has arrived, if anything has since the last time."""
        if not numbers.is_cuda:
            return numbers
        if not self._under_way or self._event is None:
            return None
        if not self._event.query():  # type: ignore[no-untyped-call]
            return None
        self._under_way = False
        return self._letter

    def forget(self) -> None:
        self._recent.clear()
        self._letter, self._event, self._under_way = None, None, False


def _kept(value: Any) -> Any:
    """Return an argument without its graph; a part of something larger is copied, or it would keep that alive."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach()
    return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value


def check_all(module: nn.Module) -> None:
    """Wait for the device and raise what the losses in a module have found wrong, if anything."""
    for part in module.modules():
        if isinstance(part, LateChecks):
            part.check()


def outermost(module: nn.Module) -> Iterator[LateChecks]:
    """Return the losses in a module that are in no other loss: each tells of those inside it."""
    inside: set[LateChecks] = set()
    for part in module.modules():  # the outer ones come first
        if isinstance(part, LateChecks) and "_faults" in part._buffers and part not in inside:
            inside.update(part._parts())
            yield part


def nonfinite(*values: Tensor) -> Tensor:
    """Return whether any entry is NaN or infinite, for each of several tensors of one shape; shape `(k,)`, bool."""
    whole = torch.stack([value.detach() for value in values])
    return (whole - whole).flatten(1).sum(1) != 0  # of a finite number it is 0, else NaN


def refused(bad: Tensor, value: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return value and gradient, NaN and 0 where the batch is `bad`."""
    return value.masked_fill(bad, torch.nan), gradient.masked_fill(bad, 0.0)


def _capturing(values: Tensor) -> bool:
    """Whether a CUDA graph is being made, in which the host must not look at anything."""
    return values.is_cuda and torch.cuda.is_current_stream_capturing()


def several_processes() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
