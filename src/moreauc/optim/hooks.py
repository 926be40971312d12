"""Steps of optimizers, sharded parameters and hooks of models, as the objects of this package need them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Protocol, SupportsIndex, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from moreauc._parallel import is_shard, is_sharded, spread_as

Closure = Callable[[], object]
Args = tuple[object, ...]  # of a step, a forward or a call
Kwargs = dict[str, object]
Arguments = tuple[Args, Kwargs]


def check_optimizer(owner: str, optimizer: object) -> Optimizer:
    """Return the optimizer that does the steps: Accelerate's wrappers are optimizers on which no hook can be put."""
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"{owner}: optimizer must be a torch.optim optimizer, got {type(optimizer).__name__}")
    if not hasattr(optimizer, "_optimizer_step_pre_hooks") and hasattr(optimizer, "optimizer"):
        return check_optimizer(owner, optimizer.optimizer)
    return optimizer


def found_infinity(owner: str, optimizer: Optimizer, kwargs: Mapping[str, object]) -> Tensor | None:
    """Return the device value by which a fused optimizer skips its step where it is not 0; None for other steps.

    A `GradScaler` calls the step of a fused optimizer, hooks included, and leaves the skipping to its kernels.
    """
    if kwargs.get("grad_scaler") is not None:
        raise ValueError(
            f"{owner}: optimizer must take found_inf from a GradScaler, or leave the skipping of steps to it, got "
            f"{type(optimizer).__name__}, whose step takes grad_scaler and does not report what it skips"
        )
    return getattr(optimizer, "found_inf", None)


def wrap_closure(args: Args, kwargs: Kwargs, wrap: Callable[[Closure], Closure]) -> Arguments | None:
    """Return the arguments of a step, the optimizer first, with `wrap(closure)`; None where it has no closure."""
    if kwargs.get("closure") is not None:
        return args, {**kwargs, "closure": wrap(cast("Closure", kwargs["closure"]))}
    if len(args) > 1 and args[1] is not None:
        return (args[0], wrap(cast("Closure", args[1])), *args[2:]), kwargs
    return None


def check_value(owner: str, name: str, value: Tensor, parameter: Tensor) -> None:
    """Refuse an entry of a checkpoint that is not the whole value of `parameter`."""
    if value.shape != parameter.shape:
        raise ValueError(f"{owner}: {name} must have shape {tuple(parameter.shape)}, got {tuple(value.shape)}")
    if is_shard(value) and not is_shard(parameter):
        raise ValueError(
            f"{owner}: {name} must be a whole tensor, as the parameter is, got a shard; save full_tensor()"
        )


def whole(value: Any) -> Tensor:
    """Return a copy of a tensor; a shard is gathered, so that all processes must make the call."""
    gathered: Tensor = value.full_tensor() if is_shard(value) else value
    return gathered.clone()


def like_parameter(value: Tensor, parameter: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a copy of `value` where `parameter` is and sharded as it is, in its type or the one given."""
    copied = value.detach().to(device=parameter.device, dtype=dtype or parameter.dtype, copy=True)
    return spread_as(copied, parameter)


def own_part(parameter: Any) -> Tensor:
    """Return what this process holds of a tensor: all of it, except for a shard."""
    part: Tensor = parameter.to_local() if is_shard(parameter) else parameter
    return part


def check_shards(owner: str, model: nn.Module) -> None:
    """Refuse models whose shards cannot be given old values."""
    shards = is_sharded(model)
    if not shards and "torch.distributed.fsdp" not in sys.modules:  # a slow import
        return
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise ValueError(
            f"{owner}: model must be sharded by fully_shard, which keeps parameters apart, got one of "
            "FullyShardedDataParallel, which joins them"
        )
    if shards and not any(isinstance(module, FSDPModule) for module in model.modules()):
        raise ValueError(f"{owner}: model must be sharded by fully_shard, got distributed parameters of another kind")


@contextmanager
def previous_shards(model: nn.Module, pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Let shards hold old values, given as pairs of parameter and old value.

    A model of `fully_shard` gathers its weights from the storage of its shards and may keep what it gathered. So old
    values are written into that storage, and gathered weights are dropped before and after.
    """
    from torch.distributed.fsdp import FSDPModule

    def write(values: Sequence[Tensor]) -> None:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        with torch.no_grad():
            for (parameter, _), value in zip(pairs, values, strict=True):
                own_part(parameter).copy_(value)

    present = [own_part(parameter).detach().clone() for parameter, _ in pairs]
    try:
        write([own_part(old) for _, old in pairs])
        yield
    finally:
        write(present)


class Capture(Protocol):
    """What a call does differently while a CUDA graph is made of it, where the host cannot set random states."""

    def random_state(self) -> AbstractContextManager[None]:
        """Draw the numbers that the forward draws."""
        ...

    def copied(self) -> None:
        """Continue: the buffers have been copied, and the model is about to be called."""
        ...


class ForwardHook(partial[None]):
    """A hook that stays behind when its module is copied or pickled.

    It has no frame of its own in Python, which a compiler might look at.
    """

    def __new__(cls, function: Callable[..., None]) -> ForwardHook:
        """Return a hook that calls `function`."""
        # Not as a decorator: torch would load its compiler, for seconds, with this module. Optimizers load it anyway.
        return super().__new__(cls, torch.compiler.disable(function))  # type: ignore[no-untyped-call]

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type[ForwardHook], tuple[Callable[..., None]]]:
        return ForwardHook, (_do_nothing,)


def _do_nothing(*args: object) -> None:
    """Take the place of a hook in a copied model."""
