r"""The template of all losses, and what a loss needs to fill it in."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from moreauc._checks import check_real, check_shape
from moreauc._settings import arguments_text, module_settings
from moreauc.core.pairs import refuse_second_derivatives
from moreauc.criteria._gates import leave
from moreauc.criteria._validation import FLAGS, NEVER, Check, Pending, capturing, several_processes

Checks = Literal["auto", "now", "late"]
Function = Callable[[Tensor, Tensor], Tensor]

_SECTION = re.compile(r"^(Args|Attributes|Shape|Raises|Example|Reference):\n", re.MULTILINE)
_ARGUMENT = re.compile(r"^ {4}(\w+):.*\n(?: {8}.*\n)*", re.MULTILINE)


def _nothing(bad: Tensor | None) -> None:
    """Write nothing: for a loss without state, or in evaluation mode."""


def composed(cls: type) -> str:
    """Return the docstring of a loss with what its bases say of its arguments, of shapes and of errors."""
    parts = dict.fromkeys(("", "Args", "Attributes", "Shape", "Raises", "Example", "Reference"), "")
    arguments: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, Criterion):
            first, *rest = _SECTION.split(inspect.cleandoc(base.__doc__ or "") + "\n")
            own = {"": first, **dict(zip(rest[::2], rest[1::2], strict=True))}
            inherited = {name: parts[name] for name in ("Shape", "Raises")}
            parts = {name: own.get(name) or inherited.get(name, "") for name in parts}
            arguments |= {entry[1]: entry[0] for entry in _ARGUMENT.finditer(parts["Args"])}
    taken = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    parts["Args"] = "".join(arguments[name] for name in taken if name in arguments)
    return "\n\n".join((f"{name}:\n" if name else "") + text.rstrip() for name, text in parts.items() if text) + "\n"


@dataclass
class Step:
    """One iteration, computed and not written yet.

    `value` has its graph where `gradient`, that in `source`, is None, so that autograd is to find it; `gate` is then
    what :func:`enter` returned. `finite` is what must be finite, by the names errors give it. `write` ends the
    iteration; where its argument, a flag on the device, is True, nothing changes.
    """

    value: Tensor
    source: Tensor
    gradient: Tensor | None = None
    gate: Tensor | None = None
    finite: Mapping[str, float | Tensor | None] = field(default_factory=dict)
    write: Callable[[Tensor | None], None] = _nothing

    def attach(self, bad: Tensor | None) -> Tensor:
        """Return the scalar whose backward is the gradient; NaN, with gradient 0, where the batch is bad."""
        if self.gradient is None:
            return self.value if bad is None or self.gate is None else leave(self.value, self.gate, bad)
        if bad is None:
            return with_gradient(self.source, self.value, self.gradient)
        with torch.no_grad():
            value, gradient = self.value.masked_fill(bad, torch.nan), self.gradient.masked_fill(bad, 0.0)
        return with_gradient(self.source, value, gradient)


class Criterion(nn.Module):
    r"""Base of the losses: :meth:`forward` is the same for all, a loss fills in `_batch` and `_step`.

    In training mode one call is one iteration: the scalar it returns has the algorithm's :math:`G_t` as its gradient
    and the current estimate of :math:`F` as its value, and the visited rows have moved when the call returns. A call
    that raises has changed nothing. In `eval()` mode a call is pure: no row is read or moved, and the scalar is the
    objective at the values given, with its ordinary gradient.

    Types and shapes are always checked at once, values (NaN, row numbers, labels) on the CPU. On a GPU errors of values
    are raised by a later call (`checks`; docs/performance.md).

    What several losses take is described once, here or in a class between; :func:`composed` adds it to each.

    Args:
        min_tpr: lower end of the true positive rate, in [0, 1).
        max_fpr: upper end of the false positive rate, in (0, 1].
        tau: averaging weight of the rows in (0, 1]. A plain attribute, as `gamma`: schedules may change them.
        initial: rows at the start, a number or one value for each; None to fill a row at its first visit.
        bound: radius of the ball that rows are projected onto after the update; None for no projection.
        pooling: "mean", "smoothed_max", "attention", or a :class:`~moreauc.core.pooling.Pooling`.
        temperature: of the smoothed max, above 0.
        update_order: "before" or "after": which rows value and gradient use.

    Raises:
        ValueError: for an argument out of range, and for a batch with shapes that differ, values that are not finite,
            or labels and numbers of rows that do not fit the training set; before any state changes.
    """

    label_buffers: ClassVar[tuple[str, ...]]  # names of the buffers that hold labels or groups of the training set
    _calls: Tensor
    _refused: Tensor
    _flags: Tensor
    _when: Checks = "auto"
    _BY_AUTOGRAD: ClassVar[bool] = False  # whether autograd differentiates the step, which calls functions of the user
    _UNDESCRIBED: ClassVar[tuple[str, ...]] = ("_pending", "_when")  # results do not depend on them

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Compose the docstring, and give `forward` the arguments of `_batch` for those who ask for their names."""
        super().__init_subclass__(**kwargs)
        if vars(cls).get("__doc__"):  # there are none if Python runs without docstrings
            cls.__doc__ = composed(cls)
        if "_batch" not in vars(cls):
            return

        base = Criterion.forward
        forward = FunctionType(base.__code__, base.__globals__, "forward")  # a copy for this class
        forward.__doc__ = base.__doc__
        signature = inspect.signature(cls._batch)
        first, _, *rest = signature.parameters.values()
        forward.__signature__ = signature.replace(parameters=[first, *rest], return_annotation="Tensor")  # type: ignore[attr-defined]
        cls.forward = forward  # type: ignore[method-assign]

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._pending = Pending()
        # Not persistent: `state_dict()` raises pending errors first, so that a checkpoint has none.
        self.register_buffer("_calls", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("_refused", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("_flags", torch.full((2, FLAGS), NEVER), persistent=False)

    @property
    def needs_previous(self) -> bool:
        """Whether a call in training mode needs the values at the previous weights (a correction weight is not 0)."""
        return False

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        """Return the scalar to call `backward` on; see the class for shapes and meaning."""
        late = self._is_late(*args, *kwargs.values())
        if late:
            self.poll()
        check = Check(self._owner, late)
        step = self.iteration(check, *args, **kwargs)
        wrong = check.bad()
        bad = None if wrong is None else self._note(wrong, check.messages)
        step.write(bad)
        if late:
            self._record(args, kwargs)
        return step.attach(bad)

    def iteration(self, check: Check, *args: object, **kwargs: object) -> Step:
        """Compute an iteration without ending it: for :meth:`forward`, and for losses around this one.

        `check` collects the conditions on values; the caller validates it.
        """
        batch = self._batch(check, *args, **kwargs)
        with self._mode(check):
            step = self._step(batch)
        check.finite(**step.finite)
        return step

    def _mode(self, check: Check) -> AbstractContextManager[object]:
        """Return the autograd mode of `_step`: inference costs less than no gradient; what is kept of it is copied."""
        if self._BY_AUTOGRAD:
            return nullcontext()
        return torch.no_grad() if check.late else torch.inference_mode()

    @property
    def composes(self) -> bool:
        """Whether a loss around this one may take :meth:`iteration` in place of a call."""
        return type(self)._batch is not Criterion._batch

    def _batch(self, check: Check, *args: Any, **kwargs: Any) -> Any:
        """Check shapes, types and membership; return a batch, compact, or padded where the check is late."""
        raise NotImplementedError

    def _step(self, batch: Any) -> Step:
        """Return value, gradient and proposed rows; nothing is written."""
        raise NotImplementedError

    def _note(self, wrong: Tensor, messages: Sequence[str]) -> Tensor:
        """Record the flags of a call with late checks, shape `(k,)`, for a later one; return whether any is set."""
        with torch.no_grad():
            self._calls.add_(1)
            noted = self._flags[int(self.training), : len(wrong)]
            noted.copy_(torch.where(wrong, torch.minimum(noted, self._calls), noted))
            bad = wrong.any()
            self._refused.add_(bad)
        if self.training:
            self._pending.training_messages = tuple(messages)
        else:
            self._pending.evaluation_messages = tuple(messages)
        return bad

    def settings(self) -> dict[str, object]:
        """Return what the results depend on besides tables, by name: options, and the labels or groups of the set."""
        return module_settings(self)

    def extra_repr(self) -> str:
        """Return the arguments of the constructor, with their present values."""
        return arguments_text(self)

    def __repr__(self) -> str:
        return f"{self._owner}({self.extra_repr()})"  # one line, without the tables inside

    @property
    def device(self) -> torch.device:
        """Where the loss has been moved to."""
        return self._calls.device

    @property
    def _owner(self) -> str:
        return type(self).__name__

    @property
    def checks(self) -> Checks:
        """When values are checked.

        "now", "late", or "auto", which is late on a GPU and in compiled code, and at once otherwise.
        """
        return self._when

    @checks.setter
    def checks(self, value: Checks) -> None:
        if value not in ("auto", "now", "late"):
            raise ValueError(f"{type(self).__name__}: checks must be 'auto', 'now' or 'late', got {value!r}")
        for part in losses_in(self):
            part._when = value

    def check(self) -> None:
        """Wait for the device and raise what earlier calls have found wrong, if anything; then it is forgotten.

        The error is that of a call on the CPU, with the number of the call.
        """
        for part in losses_in(self):
            part.raise_pending(part._flags.tolist())

    def poll(self) -> None:
        """Raise the error of an earlier call if its flag has reached the host."""
        if torch.compiler.is_compiling() or capturing(self._flags):
            return
        found = self._pending.poll(self._flags)
        if found is not None and min(map(min, found.tolist())) < NEVER:
            self.check()

    def replayed(self) -> None:
        """Poll for errors after a CUDA graph has replayed a call, and request its flag."""
        self.poll()
        self._record((), {})

    def raise_pending(self, numbers: list[list[int]]) -> None:
        """Raise what a call has found wrong, if anything; `numbers` are those of the calls, by mode and flag."""
        call = min(map(min, numbers))
        if call == NEVER:
            return
        last, refused, pending = int(self._calls), int(self._refused), self._pending
        # compiled calls are not recorded; after one, call numbers do not match the recorded arguments
        known = pending.arguments_of(call) if pending.calls == last else None
        self._flags.fill_(NEVER)
        self._refused.zero_()
        pending.forget()
        training = call in numbers[1]
        messages = pending.training_messages if training else pending.evaluation_messages
        what, cause = messages[numbers[training].index(call)], None
        finite = "must be finite" in what
        if known is not None:
            try:
                self._explain(*known)
            except ValueError as error:
                what, cause = str(error), error
        changed = "the call changed nothing" if refused == 1 else f"{refused} calls were refused and changed nothing"
        if finite:
            changed += (
                " in the loss, but NaN inside the model reaches its weights by backward, which checks='now' prevents"
            )
        raise ValueError(f"{what} (in call {call}, found later, after call {last}; {changed})") from cause

    def _explain(self, training: bool, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Raise the error of recorded arguments, in the mode of their call, by checking them now."""
        mode, self.training = self.training, training
        try:
            check = Check(self._owner, late=False)
            with torch.no_grad():
                self.iteration(check, *args, **kwargs)
            check.bad()
        finally:
            self.training = mode

    def _is_late(self, *values: object) -> bool:
        """Whether the values of this call are checked later."""
        if self._when != "auto":
            return self._when == "late"
        late = torch.compiler.is_compiling()
        for value in values:
            late = late or (isinstance(value, Tensor) and value.is_cuda)
        return late and not several_processes()

    def _record(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Start the copy of this call's flags to the host, without waiting."""
        if torch.compiler.is_compiling() or capturing(self._flags):
            return
        self._pending.remember(self.training, args, kwargs)
        self._pending.record(self._flags)

    def _save_to_state_dict(self, *args: object) -> None:
        self.check()
        super()._save_to_state_dict(*args)

    def _call(
        self, name: str, function: Function, value: Tensor, index: Tensor, *shapes: tuple[int | str, ...]
    ) -> Tensor:
        """Call a user's function and check type and shape of its result; NaN is checked with the other values."""
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


class WrappingCriterion(Criterion):
    """Base of the losses that call another one, `criterion`, which holds all state but labels and groups.

    `arguments` are names that its call must have.
    """

    _BY_AUTOGRAD = True

    def __init__(self, criterion: nn.Module, *arguments: str) -> None:
        super().__init__()
        names = inspect.signature(criterion.forward).parameters if isinstance(criterion, nn.Module) else {}
        if not all(name in names for name in arguments) or "bag" in names:
            wanted = f"a loss called with {', '.join(arguments[:-1])} and {arguments[-1]}"
            raise ValueError(f"{self._owner}: criterion must be {wanted}, got {criterion!r}")
        self.criterion = criterion

    @property
    def needs_previous(self) -> bool:
        """Whether the inner loss needs values at the previous weights in training mode."""
        return bool(getattr(self.criterion, "needs_previous", False))

    def _is_late(self, *values: object) -> bool:
        # other modules have no flags
        return isinstance(self.criterion, Criterion) and self.criterion.composes and super()._is_late(*values)

    def _inner_step(self, check: Check, source: Tensor, gate: Tensor | None, *args: Tensor, **kwargs: Tensor) -> Step:
        """Return the step of the inner loss for these arguments, which depend on `source`."""
        if not (isinstance(self.criterion, Criterion) and self.criterion.composes):
            check.bad()  # raise before the other module changes its state
            return Step(self.criterion(*args, **kwargs), source)
        inner = self.criterion.iteration(check, *args, **kwargs)
        return Step(inner.attach(None), source, gate=gate, write=inner.write)


def rule_attribute(table: str, name: str, doc: str) -> property:
    """Return a property for a number of a table's rule, which schedules may change; the rule checks it."""

    def get(self: Criterion) -> object:
        return getattr(getattr(self, table).rule, name)

    def put(self: Criterion, value: object) -> None:
        part = getattr(self, table)
        part.rule = replace(part.rule, **{name: value})

    return property(get, put, doc=doc)


def number_attribute(
    name: str, doc: str, *, high: float = math.inf, low_open: bool = False, place: str | None = None
) -> property:
    """Return a property for a number of a loss, at least (`low_open`: above) 0, which schedules may change.

    The loss holds it in the attribute `place`, by default its name after an underscore.
    """
    place = f"_{name}" if place is None else place

    def get(self: Criterion) -> float:
        return float(getattr(self, place))

    def put(self: Criterion, value: float) -> None:
        setattr(self, place, check_real(self._owner, name, value, low=0.0, high=high, low_open=low_open))

    return property(get, put, doc=doc)


def losses_in(module: nn.Module) -> Iterator[Criterion]:
    """Return the losses in a module, but no wrapper that was made without the constructor: it has nothing to tell."""
    return (part for part in module.modules() if isinstance(part, Criterion) and "_flags" in part._buffers)


def check_all(module: nn.Module) -> None:
    """Wait for the device and raise what the losses in a module have found wrong, if anything."""
    for part in losses_in(module):
        part.check()


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient  # not saved by autograd, since it may be an inference tensor
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            refuse_second_derivatives()
        return grad * ctx.gradient, None, None


def with_gradient(source: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
    """Return the scalar `value` whose derivative in `source` is `gradient`, known already; one node for a graph."""
    result: Tensor = _WithGradient.apply(source, value, gradient)  # type: ignore[no-untyped-call]
    return result
