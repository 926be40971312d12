r"""The model as it was before the last optimizer step, for the correction :math:`g(w_t; B) - g(w_{t-1}; B)`."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from threading import get_ident
from typing import Any, NoReturn, SupportsIndex

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.weak import TensorWeakRef

from moreauc._parallel import bare, buffers_left_alone, data_parallel_of, is_shard, is_sharded
from moreauc.optim.hooks import (
    Args,
    Arguments,
    Capture,
    Closure,
    ForwardHook,
    Kwargs,
    check_optimizer,
    check_shards,
    check_value,
    found_infinity,
    like_parameter,
    own_part,
    previous_shards,
    whole,
    wrap_closure,
)

RandomState = dict[torch.device, Tensor]  # states of generators

_OWNER = "PreviousIterate"
_KEPT = 1024  # forwards since the last step; the random state of a CPU has 5 kB
_CPU = torch.device("cpu")
_NOTHING = nullcontext()
_PLAIN = (bool, int, float, str)


class _Forward:
    """A forward that drew random numbers; tensors among its inputs are not kept alive."""

    def __init__(self, inputs: Sequence[object], start: RandomState, end: RandomState) -> None:
        self._inputs = [_reference(value) for value in inputs]
        self.start, self._end = start, end
        self.called = False

    def has(self, inputs: Sequence[object]) -> bool:
        """Whether its inputs were these objects, in this order."""
        return len(self._inputs) == len(inputs) and all(map(_refers_to, self._inputs, inputs))

    def drew(self, start: RandomState, end: RandomState) -> bool:
        """Whether it drew the random numbers between two states of the generators."""
        return start.keys() == self.start.keys() and all(
            torch.equal(self.start[device], start[device]) and torch.equal(self._end[device], end[device])
            for device in start
            if not (torch.equal(start[device], end[device]) and torch.equal(self.start[device], self._end[device]))
        )


class PreviousIterate:
    r"""Evaluates a model at the weights it had before the last optimizer step, :math:`w_{t-1}`.

    A hook copies the weights just before each step. With gradient accumulation all micro batches between two steps see
    the same :math:`w_{t-1}`. A step skipped by a gradient scaler leaves :math:`w_{t-1}` unchanged. In the closure of a
    step the first evaluation sees :math:`w_{t-1}`, later ones see :math:`w_t`. Before the first step
    :math:`w_{-1} = w_0`.

    Call it directly after the model. A call runs without gradient, in the current mode of the model, and has no side
    effects:

    - it draws the **same dropout masks** as its forward: the forward of the same input objects since the last step, or
      where there is none the only forward that has had no call. A call that draws random numbers and has no forward,
      or several that it may belong to, is an error. Only forwards with gradients count, without recomputations by
      activation checkpointing. The random state is restored afterwards;
    - buffers (batch-norm statistics, counters) are untouched;
    - the weight cache of autocast is not used.

    Cost: one forward, and one copy of the weights that the optimizer updates.

    Args:
        model: the module that the training loop calls; the compiled one if that is called. A `fully_shard` model
            gathers its weights again, so that all processes must make the call.
        optimizer: the optimizer that moves the model's parameters, or a sequence of several.

    Raises:
        RuntimeError: instead of a wrong result: if a call cannot be matched to a forward or draws other random numbers,
            and if two threads use the model at the same time.

    Limits: forward hooks of the model run in a call, too. Other random numbers than those of torch's generators are not
    replayed, and attributes that are not buffers are not restored. Copies and pickles of the model do not contain this
    object; deep copies of an optimizer lose their hooks.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.ones_(model.weight)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        >>> previous = PreviousIterate(model, optimizer)
        >>> x = torch.tensor([[2.0]])
        >>> loss = model(x).sum()
        >>> previous(x).item()  # no step yet
        2.0
        >>> loss.backward(); optimizer.step()
        >>> model(x).item(), previous(x).item()
        (0.0, 2.0)
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer]) -> None:
        if not isinstance(model, nn.Module):
            raise ValueError(f"{_OWNER}: model must be an nn.Module, got {type(model).__name__}")
        given = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
        optimizers = [check_optimizer(_OWNER, item) for item in given]
        owned = {id(p) for item in optimizers for group in item.param_groups for p in group["params"]}
        if not any(id(p) in owned for p in model.parameters()):
            raise ValueError(f"{_OWNER}: optimizer must hold parameters of model, got none of them")
        self.model = model.module if isinstance(model, DistributedDataParallel) else model
        check_shards(_OWNER, self.model)
        self._weights: dict[Tensor, Tensor] = {}  # parameters that have moved, and their previous values
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}  # by identity: a buffer and its copy
        self._sharded = is_sharded(self.model)
        self._compiled_parallel = data_parallel_of(self.model) is not None
        self._forwards: deque[_Forward] = deque(maxlen=_KEPT)
        self._thread: int | None = None  # the one that runs a forward or a call
        self._calling = False
        self._depth = 0  # of running forwards inside of each other
        self._begun: tuple[Sequence[object], RandomState] | None = None  # inputs and random state of one that counts
        self._capture: Capture | None = None
        before, after = ForwardHook(self._before_forward), ForwardHook(self._after_forward)
        self._handles = [
            # first, so that it sees what the user gave, and what other hooks draw is replayed
            self.model.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
            self.model.register_forward_hook(after, always_call=True),
            *(item.register_step_pre_hook(self._before_step) for item in optimizers),
            *(item.register_step_post_hook(self._after_step) for item in optimizers),
        ]

    def __repr__(self) -> str:
        weights = sum(parameter.numel() for parameter in self.model.parameters())
        return f"{_OWNER}({type(self.model).__name__} of {weights:,} weights)"

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Return what the model returns for these arguments at the previous weights, without gradient."""
        self._check_thread()
        gradient, cached = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
        outside, self._thread, self._calling = self._thread, get_ident(), True
        try:
            torch._C._set_grad_enabled(False)
            torch.set_autocast_cache_enabled(False)  # it casts weights anew, and keeps none of them
            if self._capture is None:
                return self._replay(args, kwargs)
            with self._capture.random_state():
                return self._evaluate(args, kwargs)
        finally:
            self._thread, self._calling = outside, False
            torch._C._set_grad_enabled(gradient)
            torch.set_autocast_cache_enabled(cached)

    @property
    def copies(self) -> list[Tensor]:
        """The tensors that hold the previous weights; parameters that did not move have none."""
        return list(self._weights.values())

    @contextmanager
    def captured_by(self, capture: Capture) -> Iterator[None]:
        """Let calls be recorded in a CUDA graph: `capture` takes the place of replaying the generators."""
        self._capture = capture
        try:
            yield
        finally:
            self._capture = None

    def remove(self) -> None:
        """Remove the hooks from the model and the optimizers."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._forwards.clear()

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Return the previous weights by name, for a checkpoint; parameters that did not move are left out.

        The weights of a `fully_shard` model are gathered, so that all processes must make the call; any number of
        processes can load the result.
        """
        names = ((name, self._weights.get(parameter)) for name, parameter in bare(self.model).named_parameters())
        return {"weights": {name: whole(old) for name, old in names if old is not None}}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take the previous weights from a checkpoint of a model with the same parameter names and shapes."""
        known = dict(bare(self.model).named_parameters())
        weights: Mapping[str, Tensor] = state["weights"]
        for name, old in weights.items():
            if name not in known:
                raise ValueError(f"{_OWNER}: state must name parameters of the model, got {name!r}")
            check_value(_OWNER, f"state[{name!r}]", old, known[name])
        self._weights = {known[name]: like_parameter(old, known[name]) for name, old in weights.items()}
        self._forwards.clear()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be pickled or copied: the hooks would be lost silently."""
        raise TypeError(f"{_OWNER} cannot be copied or pickled; save its state_dict() and make a new one")

    def _replay(self, args: Args, kwargs: Kwargs) -> object:
        """Evaluate the model with the random numbers of the forward that this call belongs to."""
        forward = self._forward_of(_leaves(args, kwargs)) if self._forwards else None
        devices = _devices_of(self.model)
        start = present = _current_state(devices)
        if forward is not None:
            _set_state(forward.start)
            start = _current_state(devices)
        try:
            result = self._evaluate(args, kwargs)
        finally:
            end = _current_state(devices)
            if not _same_state(end, present):
                _set_state(present)
        if self._handles and not _same_state(end, start):
            if forward is None or self._depth:
                raise RuntimeError(
                    f"{_OWNER}: cannot match this call to a forward pass; call previous(x) directly after model(x)"
                )
            if not forward.drew(start, end):
                raise RuntimeError(
                    f"{_OWNER}: the forward pass of this call drew other random numbers, so that dropout masks differ; "
                    "call previous(x) directly after model(x), and draw none in other threads"
                )
            forward.called = True
        return result

    def _forward_of(self, inputs: Sequence[object]) -> _Forward | None:
        """Return the forward that a call belongs to, None where it is not known; a call may be repeated."""
        same = [forward for forward in self._forwards if forward.has(inputs)]
        waiting = [forward for forward in same or self._forwards if not forward.called]
        if same and not waiting:
            return same[-1]
        return waiting[0] if len(waiting) == 1 else None

    def _evaluate(self, args: Args, kwargs: Kwargs) -> object:
        """Call the model at the previous weights, buffers untouched."""
        owners = [module._buffers for module in _walk(self.model) if module._buffers]
        present: list[tuple[Tensor, Tensor]] = []
        shards: list[tuple[Tensor, Tensor]] = []
        try:
            self._swap(present, shards)
            simple = not (owners or shards or self._compiled_parallel)
            with _NOTHING if simple else self._prepared(owners, shards):
                if self._capture is not None:
                    self._capture.copied()
                return self.model(*args, **kwargs)
        finally:
            for parameter, data in present:
                parameter.data = data

    @contextmanager
    def _prepared(self, owners: list[dict[str, Tensor | None]], shards: list[tuple[Tensor, Tensor]]) -> Iterator[None]:
        """Do for a while what models with buffers, shards, or compiled for several processes need."""
        silent = buffers_left_alone(self.model) if self._compiled_parallel else _NOTHING
        sharded = previous_shards(self.model, shards) if shards else _NOTHING
        with self._isolated(owners) if owners else _NOTHING, silent, sharded:
            yield

    @contextmanager
    def _isolated(self, modules: list[dict[str, Tensor | None]]) -> Iterator[None]:
        """Let the buffers of modules hold copies for a while; also undo assignments of new tensors to their names.

        The copies are kept and filled by one operation for all of them: a model may have hundreds of small buffers.
        """
        owners = [(names, dict(names)) for names in modules]
        buffers = {id(buffer): buffer for _, names in owners for buffer in names.values() if buffer is not None}
        if buffers.keys() != self._buffers.keys():  # moving or casting a model makes new buffers
            self._buffers = {key: (buffer, torch.empty_like(buffer)) for key, buffer in buffers.items()}
        present = [buffer.data for buffer in buffers.values()]
        _copy_all([self._buffers[key][1] for key in buffers], present)
        try:
            for key, buffer in buffers.items():
                buffer.data = self._buffers[key][1]
            yield
        finally:
            for buffer, data in zip(buffers.values(), present, strict=True):
                buffer.data = data
            for names, before in owners:
                names.clear()
                names.update(before)

    def _swap(self, present: list[tuple[Tensor, Tensor]], shards: list[tuple[Tensor, Tensor]]) -> None:
        """Let the parameters hold their previous values, except for shards, and note what they held.

        Replacing `.data` instead of copying into it leaves the version counters alone, so that a backward through a
        forward made at the current weights stays valid.
        """
        for parameter, old in self._weights.items():
            if parameter.shape != old.shape:
                continue
            if self._sharded and is_shard(parameter):
                shards.append((parameter, old))
                continue
            if old.dtype != parameter.dtype or old.device != parameter.device:  # moved or cast since the last step
                old = self._weights[parameter] = old.to(device=parameter.device, dtype=parameter.dtype)
            present.append((parameter, parameter.data))
            parameter.data = old

    def _before_step(self, optimizer: Optimizer, args: Args, kwargs: Kwargs) -> Arguments | None:
        """Copy the weights now, or after the first evaluation of a closure, which needs the previous copy."""
        self._check_thread()
        self._depth, self._thread, self._begun = 0, None, None  # of forwards that were interrupted

        def wrap(closure: Closure) -> Closure:
            waiting = [optimizer]

            def evaluate() -> object:
                result = closure()
                while waiting:
                    self._copy_weights(waiting.pop(), kwargs)
                return result

            return evaluate

        if len(args) > 1 or kwargs:
            changed = wrap_closure(args, kwargs, wrap)
            if changed is not None:
                return changed
        self._copy_weights(optimizer, kwargs)
        return None

    def _after_step(self, optimizer: Optimizer, args: Args, kwargs: Kwargs) -> None:
        """Forget the forwards of later evaluations of a closure."""
        self._forwards.clear()

    def _copy_weights(self, optimizer: Optimizer, kwargs: Kwargs) -> None:
        """Copy what this step may move. A parameter without a gradient stays, so that its live value is the old one.

        Where a step may be skipped on the device, copies are made under the same condition there, and those of
        parameters without a gradient are kept.
        """
        scaled = kwargs or hasattr(optimizer, "found_inf")
        infinity = found_infinity(_OWNER, optimizer, kwargs) if scaled else None
        self._forwards.clear()
        old, new = [], []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                kept, moves = self._weights.get(parameter), parameter.grad is not None
                if kept is not None and kept.shape == parameter.shape and (moves or infinity is not None):
                    old.append(kept)
                    new.append(parameter)
                elif moves:
                    self._weights[parameter] = parameter.detach().clone()
                elif kept is not None:
                    del self._weights[parameter]
        if self._sharded:
            old, new = list(map(own_part, old)), list(map(own_part, new))
        with torch.no_grad():
            if infinity is None:
                _copy_all(old, new)
            else:
                _copy_unless(infinity, old, new)

    def _before_forward(self, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        """Note the start of a forward, and the random state if it counts.

        A forward counts where a gradient may be taken of it, and inside of `torch.utils.checkpoint` with
        `use_reentrant=True`, which runs it without gradient. Forwards inside of another one do not count.
        """
        if self._capture is not None:
            return
        self._check_thread()
        self._depth += 1
        if self._depth > 1 or self._calling:
            return
        self._thread = get_ident()
        if _may_have_gradient():
            self._begun = _leaves(args, kwargs), _current_state(_devices_of(self.model))

    def _after_forward(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        """Remember a forward that counts and has drawn random numbers; without output it has failed."""
        if self._capture is not None or not self._depth:
            return
        self._depth -= 1
        if self._depth or self._calling:
            return
        self._thread = None
        begun, self._begun = self._begun, None
        if begun is not None and output is not None:
            end = _current_state(begun[1])
            if not _same_state(end, begun[1]):
                self._forwards.append(_Forward(*begun, end))

    def _check_thread(self) -> None:
        if self._thread not in (None, get_ident()):
            raise RuntimeError(
                f"{_OWNER}: model must be used by one thread at a time, got another thread while one evaluates it; "
                "use a deep copy of it there"
            )


def _may_have_gradient() -> bool:
    if torch._C._current_graph_task_id() != -1:  # inside of a backward, which recomputes
        return False
    # a torch.autograd.Function, as that of torch.utils.checkpoint, turns off both kinds of gradient; no_grad only one
    inside_function = not torch._C._is_fwd_grad_enabled() and not torch.is_inference_mode_enabled()
    return torch.is_grad_enabled() or inside_function


def _leaves(args: Args, kwargs: Kwargs) -> Sequence[object]:
    """Return the tensors and other values inside of arguments."""
    if not kwargs and all(isinstance(value, Tensor) for value in args):
        return args
    return tree_leaves((args, [kwargs[name] for name in sorted(kwargs)]))


def _walk(model: nn.Module) -> list[nn.Module]:
    """Return the modules of a model, each once; `modules()` makes their names, too, which costs a small model much."""
    found = {id(model): model}
    waiting = [model]
    while waiting:
        for child in waiting.pop()._modules.values():
            if child is not None and id(child) not in found:
                found[id(child)] = child
                waiting.append(child)
    return list(found.values())


def _devices_of(model: nn.Module) -> list[torch.device]:
    """Return the devices whose generators a forward of `model` may draw from."""
    if not torch.accelerator.is_available():
        return [_CPU]
    return list({_CPU, *(parameter.device for parameter in model.parameters())})


def _current_state(devices: Iterable[torch.device]) -> RandomState:
    """Return the states of the generators of some devices, without a synchronization."""
    return {
        device: torch.default_generator.get_state()
        if device.type == "cpu"
        else torch.get_device_module(device).get_rng_state(device)
        for device in devices
    }


def _same_state(one: RandomState, other: RandomState) -> bool:
    # as bytes, in a fraction of the time of torch.equal
    return all(state.numpy().tobytes() == other[device].numpy().tobytes() for device, state in one.items())


def _set_state(state: RandomState) -> None:
    for device, value in state.items():
        if device.type == "cpu":
            torch.set_rng_state(value)
        else:
            torch.get_device_module(device).set_rng_state(value, device)


def _reference(value: object) -> object:
    if isinstance(value, Tensor):
        return TensorWeakRef(value)
    try:
        return weakref.ref(value)
    except TypeError:
        return value


def _refers_to(reference: object, value: object) -> bool:
    if isinstance(reference, TensorWeakRef | weakref.ref):
        return value is not None and reference() is value
    return reference is value or (
        type(reference) is type(value) and isinstance(value, _PLAIN) and bool(reference == value)
    )


def _copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy many tensors, by one operation for all that share type and device; on the CPU it takes any."""
    if targets and all(target.is_cpu for target in targets):
        torch._foreach_copy_(targets, sources)
        return
    groups: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        into, out_of = groups.setdefault((target.dtype, target.device), ([], []))
        into.append(target)
        out_of.append(source)
    for into, out_of in groups.values():
        torch._foreach_copy_(into, out_of)


def _copy_unless(number: Tensor, targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors where a device value is 0, without a synchronization."""
    flags: dict[torch.device, Tensor] = {}
    for target, source in zip(targets, sources, strict=True):
        if target.device not in flags:
            on_cpu = target.device.type == "cpu"  # where what is not waited for may be read too early
            flags[target.device] = number.to(target.device, non_blocking=not on_cpu) != 0
        torch.where(flags[target.device], target, source.to(target), out=target)
