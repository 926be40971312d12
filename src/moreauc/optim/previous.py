r"""The model as it was before the last optimizer step, for the correction :math:`g(w_t; B) - g(w_{t-1}; B)`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from moreauc._parallel import bare, buffers_left_alone, data_parallel_of, is_shard, is_sharded
from moreauc.optim._pairing import Draws, Inputs, Pairing, RandomState
from moreauc.optim.hooks import (
    Arguments,
    Capture,
    Closure,
    ForwardHook,
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

_OWNER = "PreviousIterate"
_ATTEMPTS = 3  # of a call, if another thread may have drawn the numbers
_CPU = torch.device("cpu")
_NOTHING = nullcontext()
_SETTING = threading.RLock()  # held while generators are set, which all threads share
_times_set = [0]
_OVERLAP = (
    f"{_OWNER}: a model must not be used while another thread evaluates it at its previous weights, got {{}}, "
    "which would have had the wrong ones; use the model in one thread at a time, or a deep copy of it"
)


class PreviousIterate:
    r"""Evaluates a model at the weights it had before the last optimizer step, :math:`w_{t-1}`.

    A hook copies the weights just before each step. With gradient accumulation all micro batches between two steps see
    the same :math:`w_{t-1}`. A step skipped by a gradient scaler, also inside a fused optimizer, leaves :math:`w_{t-1}`
    unchanged. A forward inside the closure of a step belongs to that step: its first evaluation sees :math:`w_{t-1}`,
    later ones see :math:`w_t`. Several optimizers may each have some of the parameters. Before the first step
    :math:`w_{-1} = w_0`.

    A call runs without gradient, in the current mode of the model, and has no side effects:

    - it draws the **same dropout masks** as the forward it belongs to: the oldest forward with the same input objects
      since the last step that has not been paired with a call, otherwise the oldest one; a call before its forward is
      paired with the forward that follows. Only forwards with gradients count, without recomputations by activation
      checkpointing (`torch.utils.checkpoint`). An ambiguous pair, or one whose random draws differ, is an error. The
      random state is restored afterwards;
    - buffers (batch-norm statistics, counters) are untouched;
    - the weight cache of autocast is not used.

    During the call the same parameter objects hold the old values: tied weights stay tied, and compiled modules run
    their compiled code. Cost: one forward, and one copy of the weights that the optimizer updates.

    Args:
        model: the module that the training loop calls; the compiled one if that is called. `DistributedDataParallel` is
            evaluated without communication. A `fully_shard` model gathers its weights again, so that all processes must
            make the call.
        optimizer: the optimizer that moves the model's parameters, or a sequence of several.

    Raises:
        ValueError: for arguments of another type, an optimizer with no parameter of the model, and at a step of an
            optimizer that handles the gradient scaler itself.
        RuntimeError: instead of a wrong result: if a call and its forward draw different random numbers, at a step
            after calls without a forward or with too few calls for the forwards, if more than 1024 forwards have no
            call, and if another thread uses the model or draws random numbers during a call.

    Limits: forward hooks of the model run in a call, too. Other random numbers than those of torch's generators
    (Python's, NumPy's, the dropout state of cuDNN's recurrent layers) are not replayed, and attributes that are not
    buffers are not restored. Threads share torch's generators: a thread that prepares data during training needs its
    own `torch.Generator`. Copies and pickles of the model do not contain this object; deep copies of an optimizer lose
    their hooks.

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
        self._pairing = Pairing()
        self._lock = threading.Lock()
        self._caller: threading.Thread | None = None  # the thread of the present call
        self._calls = 0
        self._running = _Running()
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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns for these arguments at the previous weights, without gradient."""
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(_OVERLAP.format("another call"))
        gradient, cached = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
        self._caller = threading.current_thread()
        self._calls += 1
        try:
            torch._C._set_grad_enabled(False)
            torch.set_autocast_cache_enabled(False)  # it casts weights anew, and keeps none of them
            if self._capture is None:
                return self._replay(args, kwargs)
            with self._capture.random_state():
                return self._evaluate(args, kwargs)
        finally:
            self._caller = None
            torch._C._set_grad_enabled(gradient)
            torch.set_autocast_cache_enabled(cached)
            self._lock.release()

    @property
    def unpaired(self) -> int:
        """Calls since the last step whose forward is still to come."""
        return len(self._pairing.ahead)

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
        self._pairing.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the previous weights by name, for a checkpoint; parameters that did not move are left out.

        The weights of a `fully_shard` model are gathered, so that all processes must make the call; any number of
        processes can load the result.
        """
        names = ((name, self._weights.get(parameter)) for name, parameter in bare(self.model).named_parameters())
        return {"weights": {name: whole(old) for name, old in names if old is not None}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the previous weights from a checkpoint of a model with the same parameter names and shapes."""
        known = dict(bare(self.model).named_parameters())
        weights: Mapping[str, Tensor] = state["weights"]
        for name, old in weights.items():
            if name not in known:
                raise ValueError(f"{_OWNER}: state must name parameters of the model, got {name!r}")
            check_value(_OWNER, f"state[{name!r}]", old, known[name])
        self._weights = {known[name]: like_parameter(old, known[name]) for name, old in weights.items()}
        self._pairing.clear()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be pickled or copied: the hooks would be lost silently."""
        raise TypeError(f"{_OWNER} cannot be copied or pickled; save its state_dict() and make a new one")

    def _replay(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Evaluate the model with the random numbers of the forward that this call belongs to."""
        pairing, inputs = self._pairing, _leaves(args, kwargs)
        forwards = pairing.find(Inputs(inputs)) if pairing.forwards else []
        start = forwards[0].start if forwards else pairing.ahead[-1].end if pairing.ahead else None
        counts = bool(self._handles) and not self._running.stack
        for attempt in range(_ATTEMPTS):
            with _SETTING if attempt else _NOTHING:  # while it is held no other thread sets generators
                result, drawn = self._evaluate_from(start, args, kwargs)
            if drawn is None or not counts:
                return result
            call = Draws(Inputs(inputs), *drawn)
            doubt = pairing.doubt(call, forwards)
            if doubt is None:
                pairing.add_call(call, forwards)
                return result
        raise RuntimeError(f"{_OWNER}: {doubt}")

    def _evaluate_from(
        self, state: RandomState | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[RandomState, RandomState, bool] | None]:
        """Evaluate the model from a random state (None: the present one), and restore the present one.

        Returns:
            What the model returns, and what it has drawn: states before and after, and whether another thread has set
            generators meanwhile. None where it has drawn nothing.
        """
        devices = _devices_of(self.model)
        start = present = _current_state(devices)
        if state is not None:
            _set_state(state)
            start = _current_state(devices)
        times = _times_set[0]
        try:
            result = self._evaluate(args, kwargs)
        finally:
            end, disturbed = _current_state(devices), _times_set[0] != times
            moved = not _same_state(end, present)
            if moved:
                _set_state(present)
        drawn = disturbed or (moved if state is None else not _same_state(end, start))
        return result, (start, end, disturbed) if drawn else None

    def _evaluate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Copy the weights now, or after the first evaluation of a closure, which needs the previous copy."""
        self._check_thread("a step")
        self._running.stack.clear()  # removes interrupted forwards

        def wrap(closure: Closure) -> Closure:
            waiting = [optimizer]

            def evaluate() -> Any:
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

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """End the iteration that later evaluations of a closure have begun."""
        self._close()

    def _close(self) -> None:
        if self._pairing.forwards or self._pairing.ahead:
            self._pairing.close()

    def _copy_weights(self, optimizer: Optimizer, kwargs: dict[str, Any]) -> None:
        """Copy what this step may move. A parameter without a gradient stays, so that its live value is the old one.

        Where a step may be skipped on the device, copies are made under the same condition there, and those of
        parameters without a gradient are kept.
        """
        scaled = kwargs or hasattr(optimizer, "found_inf")
        infinity = found_infinity(_OWNER, optimizer, kwargs) if scaled else None
        self._close()
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

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the start of a forward, and the random state if it counts.

        A forward counts where a gradient may be taken of it, and inside of `torch.utils.checkpoint` with
        `use_reentrant=True`, which runs it without gradient. Forwards inside of another one do not count.
        """
        if self._capture is not None:
            return
        stack = self._running.stack
        if self._caller is None and not stack and _may_have_gradient():
            state = _current_state(_devices_of(self.model))
            stack.append(_Begun(self._calls, _times_set[0], _leaves(args, kwargs), state))
        else:
            stack.append(_Begun(self._calls))
            self._check_thread("a forward")

    def _after_forward(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Remember a forward that counts and has drawn random numbers; without output it has failed."""
        stack = self._running.stack
        if self._capture is not None or not stack:
            return
        begun = stack.pop()
        if output is None:
            return
        if begun.calls != self._calls:
            raise RuntimeError(_OVERLAP.format("a forward"))
        if begun.start is not None:
            end, disturbed = _current_state(begun.start), begun.times_set != _times_set[0]
            if disturbed or not _same_state(end, begun.start):
                self._pairing.add_forward(Draws(Inputs(begun.inputs), begun.start, end, disturbed))

    def _check_thread(self, what: str) -> None:
        if self._caller is not None and self._caller is not threading.current_thread():
            raise RuntimeError(_OVERLAP.format(what))


class _Begun(NamedTuple):
    """A forward that has begun; `start` is None if it does not count."""

    calls: int
    times_set: int = 0
    inputs: Sequence[Any] = ()
    start: RandomState | None = None


class _Running(threading.local):
    """The running forwards of each thread."""

    def __init__(self) -> None:
        self.stack: list[_Begun] = []


def _may_have_gradient() -> bool:
    if torch._C._current_graph_task_id() != -1:  # inside of a backward, which recomputes
        return False
    # a torch.autograd.Function, as that of torch.utils.checkpoint, turns off both kinds of gradient; no_grad only one
    inside_function = not torch._C._is_fwd_grad_enabled() and not torch.is_inference_mode_enabled()
    return torch.is_grad_enabled() or inside_function


def _leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
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
    with _SETTING:
        _times_set[0] += 1
        for device, value in state.items():
            if device.type == "cpu":
                torch.set_rng_state(value)
            else:
                torch.get_device_module(device).set_rng_state(value, device)
        _times_set[0] += 1  # for forwards that have begun in between


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
