r"""The model as it was before the last optimizer step, for the correction :math:`g(w_t; B) - g(w_{t-1}; B)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from moreauc._parallel import bare, buffers_left_alone, is_shard
from moreauc.optim._no_trace import (
    SETTING,
    Buffers,
    copy_all,
    devices_of,
    no_autocast_cache,
    random_state,
)
from moreauc.optim._pairing import Inputs, Pairing
from moreauc.optim._sharded import (
    check_shards,
    check_state,
    like_parameter,
    previous_shards,
    whole,
)
from moreauc.optim._steps import (
    Arguments,
    after_first_evaluation,
    check_optimizer,
    found_infinity,
)
from moreauc.optim._watch import ForwardHook, Watch

_ATTEMPTS = 3  # at a call, where numbers drawn may be those of another thread: a model that draws none shows it in one


class PreviousIterate:
    r"""Evaluates a model at the weights it had before the last optimizer step, :math:`w_{t-1}`.

    The weights are copied by a hook just before each step, so that no loop has to say when an iteration ends: micro
    batches between two steps all see the same :math:`w_{t-1}`, and a step that is skipped (a gradient scaler that met
    an infinity) shifts nothing, also where a fused optimizer skips it on the device. A forward inside the closure of a
    step belongs to that step: its first evaluation sees :math:`w_{t-1}`, and what the optimizer evaluates after that
    sees :math:`w_t`. Of several optimizers each moves its own parameters, which have the values before its last step.
    Before the first step :math:`w_{-1} = w_0`: a call then evaluates the present weights.

    A call runs without gradient, in the model's own mode, and leaves no trace:

    - it draws the **same dropout masks** as the forward it belongs to. Forwards count from step to step, if gradients
      are on; what activation checkpointing (`torch.utils.checkpoint`) recomputes does not. A call belongs to the oldest
      forward of the same objects that has had none; else to the oldest at all; called first, to the one that follows.
      Where these rules cannot tell, or the numbers drawn differ, there is an error. The random state afterwards is what
      it was before;
    - buffers (batch-norm statistics, counters) are untouched;
    - no weight of :math:`w_{t-1}` enters autocast's cache, and none of :math:`w_t` comes from it.

    For the time of the call the parameters hold the old values, as the same objects: tied weights stay tied, and
    compiled modules run their compiled code (shards of `fully_shard` get the old values written into them). Cost: one
    forward, and one copy of the weights that the optimizer moves (frozen ones are not copied).

    Args:
        model: the module that the training loop calls. Pass the compiled module if that is what is called; a
            `DistributedDataParallel` one is evaluated without its communication. One of `fully_shard` gathers its
            weights once more for a call, so that all processes must make it.
        optimizer: the optimizer that moves the model's parameters, or a sequence of several.

    Raises:
        ValueError: for a model or optimizer that is none, an optimizer with no parameter of the model, and at a step
            of an optimizer that asks a gradient scaler itself whether to skip it.
        RuntimeError: before a wrong number is returned or a step is made with one, where dropout masks cannot be
            replayed: at a call or forward whose random numbers differ from its partner's, at a step after calls without
            a forward, or after fewer calls than forwards that they may belong to; where more than 1024 forwards
            wait for their calls; and where another thread uses the model during a call, or draws in between.

    Limits: forward hooks of the model run in a call, too. Randomness other than torch's generators (Python's, numpy's,
    the private dropout state of cuDNN's recurrent layers) is not replayed, and attributes that are no buffers are not
    restored. Threads share torch's generators: a thread that prepares data during training needs its own
    `torch.Generator`. A deep copy or a pickle of the model is free of this object; deep copies of an optimizer lose
    their hooks, so make a new `PreviousIterate` for them.

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
            raise ValueError(f"PreviousIterate: model must be an nn.Module, got {type(model).__name__}")
        given = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
        optimizers = [check_optimizer("PreviousIterate", item) for item in given]
        owned = {id(p) for item in optimizers for group in item.param_groups for p in group["params"]}
        if not any(id(p) in owned for p in model.parameters()):
            raise ValueError("PreviousIterate: optimizer must hold parameters of model, got none of them")
        self.model = model.module if isinstance(model, DistributedDataParallel) else model
        check_shards("PreviousIterate", self.model)
        self._snapshot: dict[Tensor, Tensor] = {}
        self._buffers = Buffers()
        self._pairing = Pairing()
        self._watch = Watch()
        self._capture: Capture | None = None
        before, after = ForwardHook(self._before_forward), ForwardHook(self._after_forward)
        self._handles = [
            # first, so that it sees what the user gave, and what other hooks draw is replayed
            self.model.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
            self.model.register_forward_hook(after, always_call=True),
            *(item.register_step_pre_hook(self._before_step) for item in optimizers),
            *(item.register_step_post_hook(self._after_step) for item in optimizers),
        ]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns for these arguments at the previous weights, without gradient."""
        with self._watch.call(), no_autocast_cache():
            if self._capture is not None:
                return self._evaluate(self._capture.random_state(), args, kwargs)
            forwards, devices = self._pairing.find(Inputs(args, kwargs)), devices_of(self.model)
            for attempt in range(_ATTEMPTS):
                state = random_state(devices, self._pairing.start_of(forwards))
                with nullcontext() if attempt == 0 else SETTING:  # nobody else sets generators then
                    result = self._evaluate(state, args, kwargs)
                call = self._watch.drawn
                doubt = None if call is None else self._pairing.doubt(call, forwards)
                if doubt is None:
                    break
            else:
                raise RuntimeError(f"PreviousIterate: {doubt}")
            if call is not None:
                self._pairing.add_call(call, forwards)
        return result

    def _evaluate(self, state: AbstractContextManager[None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the model at the previous weights, without a trace, from a random state."""
        with (
            torch.no_grad(),
            state,
            self._buffers.isolated(self.model),
            buffers_left_alone(self.model),
            self._previous_weights(),
        ):
            if self._capture is not None:
                self._capture.copied()
            return self.model(*args, **kwargs)

    @property
    def unpaired(self) -> int:
        """Calls since the last step whose forward is still to come, for loops that want to know that it came."""
        return self._pairing.ahead

    def remove(self) -> None:
        """Take the hooks off the model and the optimizers."""
        for handle in self._handles:
            handle.remove()
        self._pairing.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the previous weights by name, for a checkpoint; parameters that did not move are left out.

        Those of a model of `fully_shard` are gathered, so that all processes must make the call; any number of
        processes can load the result.
        """
        names = ((name, self._snapshot.get(parameter)) for name, parameter in bare(self.model).named_parameters())
        return {"weights": {name: whole(old) for name, old in names if old is not None}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the previous weights from a checkpoint of a model with the same parameter names and shapes."""
        known = dict(bare(self.model).named_parameters())
        weights: Mapping[str, Tensor] = state["weights"]
        for name, old in weights.items():
            if name not in known:
                raise ValueError(f"PreviousIterate: state must name parameters of the model, got {name!r}")
            if old.shape != known[name].shape:
                shapes = f"{tuple(known[name].shape)}, got {tuple(old.shape)}"
                raise ValueError(f"PreviousIterate: state[{name!r}] must have shape {shapes}")
            check_state("PreviousIterate", f"state[{name!r}]", old, known[name])
        self._snapshot = {known[name]: like_parameter(old, known[name]) for name, old in weights.items()}
        self._pairing.clear()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be pickled or copied: the hooks would be lost without a word."""
        raise TypeError("PreviousIterate cannot be copied or pickled; save its state_dict() and make a new one")

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Copy the weights now, or after the first evaluation of a closure, which is still to see the old ones."""
        self._watch.check_step()
        changed = after_first_evaluation(args, kwargs, lambda: self._copy_weights(optimizer, kwargs))
        if changed is None:
            self._copy_weights(optimizer, kwargs)
        return changed

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """End what a closure has begun in its later evaluations."""
        self._pairing.close()

    @torch.no_grad()
    def _copy_weights(self, optimizer: Optimizer, kwargs: dict[str, Any]) -> None:
        """Copy what this step may move. A parameter without a gradient stays, so that its live value is the old one.

        Of a step that may be skipped on the device the host does not know whether it is: copies are made there as the
        step is, and those of parameters without a gradient are kept.
        """
        infinity = found_infinity("PreviousIterate", optimizer, kwargs)
        self._pairing.close()
        old, new = [], []
        for parameter in chain.from_iterable(group["params"] for group in optimizer.param_groups):
            kept = self._snapshot.get(parameter)
            moves = parameter.grad is not None or infinity is not None
            if kept is not None and kept.shape == parameter.shape and moves:
                old.append(kept)
                new.append(parameter)
            elif parameter.grad is None:
                self._snapshot.pop(parameter, None)
            else:
                self._snapshot[parameter] = parameter.detach().clone()
        copy_all(old, new, unless=infinity)

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._capture is None:
            self._watch.begin(self.model, args, kwargs)

    def _after_forward(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        drawn = self._watch.end(output) if self._capture is None else None
        if drawn is not None:
            self._pairing.add_forward(drawn)

    @contextmanager
    def _previous_weights(self) -> Iterator[None]:
        """Let the parameters hold their previous values.

        Replacing `.data` instead of copying into it leaves the version counters alone, so that a backward through a
        forward made at the present weights stays valid.
        """
        every = [(parameter, old) for parameter, old in self._snapshot.items() if parameter.shape == old.shape]
        pairs = [pair for pair in every if not is_shard(pair[0])]
        present = [parameter.data for parameter, _ in pairs]
        try:
            for parameter, old in pairs:
                if old.dtype != parameter.dtype or old.device != parameter.device:  # moved or cast since the last step
                    old = self._snapshot[parameter] = old.to(device=parameter.device, dtype=parameter.dtype)
                parameter.data = old
            with previous_shards(self.model, [pair for pair in every if is_shard(pair[0])]):
                yield
        finally:
            for (parameter, _), data in zip(pairs, present, strict=True):
                parameter.data = data


class Capture(Protocol):
    """What a call does differently while a CUDA graph is made of it, where the host cannot set random states."""

    def random_state(self) -> AbstractContextManager[None]:
        """Draw the numbers that the forward draws."""
        ...

    def copied(self) -> None:
        """Go on: the buffers have been copied, and the model is about to be called."""
        ...
