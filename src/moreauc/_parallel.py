"""Models of several processes: what wraps them, what is inside, and which processes share their gradients."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Parallel(NamedTuple):
    """How a model is spread over processes.

    `kind` is the wrapper, as its users call it. `ranks` are the processes that it takes the mean gradient over, by
    their numbers among all; with `whole` these are all of them.
    """

    kind: str
    ranks: tuple[int, ...]
    whole: bool = True


def is_shard(parameter: Tensor) -> bool:
    """Return whether a parameter is a shard of one that all processes hold together."""
    return hasattr(parameter, "to_local")


def is_sharded(model: nn.Module) -> bool:
    """Return whether some parameter of a model is a shard, so that a call waits for other processes."""
    return any(is_shard(parameter) for parameter in model.parameters())


def gathered(value: Any) -> Any:
    """Return all of a shard, on the CPU, and anything else as it is; all processes must call this for a shard."""
    return value.full_tensor().cpu() if is_shard(value) else value


def spread_as(value: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor spread over the processes as `like` is, without communication; others as they are."""
    if not is_shard(like) or is_shard(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    spread: Any = like
    return distribute_tensor(value.to(spread.device), spread.device_mesh, spread.placements, src_data_rank=None)


def parallel_of(model: nn.Module) -> Parallel | None:
    """Return how a model is spread over processes, compiled or not; None where it is of this process only."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            return Parallel("DistributedDataParallel", _ranks(module.process_group))
        if _is_old_sharded(module):
            wrapped: Any = module
            return Parallel("FullyShardedDataParallel", _ranks(wrapped.process_group))
    shard: Any = next((parameter for parameter in model.parameters() if is_shard(parameter)), None)
    if shard is None:
        return None
    mesh = shard.device_mesh
    return Parallel("fully_shard", tuple(mesh.mesh.flatten().tolist()), mesh.ndim == 1)


def bare(model: nn.Module) -> nn.Module:
    """Return the module that the user wrote, without the wrappers of `torch.compile` and of distributed training."""
    while True:
        wrapped = isinstance(model, DistributedDataParallel)
        inner: object = getattr(model, "module" if wrapped else "_orig_mod", model)
        if inner is model or not isinstance(inner, nn.Module):
            return model
        model = inner


def without_communication(model: nn.Module) -> nn.Module:
    """Return the model whose calls wait for no other process: inside of `DistributedDataParallel`, if compiled at all.

    A model of `fully_shard` cannot be called alone; it is returned as it is.
    """
    inner = data_parallel_of(model)
    return model if inner is None else inner.module


def data_parallel_of(model: nn.Module) -> DistributedDataParallel | None:
    """Return the `DistributedDataParallel` that a model is, or was compiled from."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, DistributedDataParallel) else None


@contextmanager
def buffers_left_alone(model: nn.Module) -> Iterator[None]:
    """Let calls without gradient of a compiled `DistributedDataParallel` send nothing, and leave no trace of them."""
    inner = data_parallel_of(model)
    if inner is None:
        yield
        return
    sends = inner.require_forward_param_sync
    inner.require_forward_param_sync = False
    try:
        yield
    finally:
        inner.require_forward_param_sync = sends  # the call has reset it


def without_gradient(model: nn.Module) -> AbstractContextManager[Any]:
    """Return the cheapest way to call a model without gradient.

    What `fully_shard` gathers in inference mode could not be used for training later.
    """
    return torch.no_grad() if is_sharded(model) else torch.inference_mode()


def _ranks(group: Any) -> tuple[int, ...]:
    return tuple(dist.get_process_group_ranks(group))


def _is_old_sharded(module: nn.Module) -> bool:
    if "torch.distributed.fsdp" not in sys.modules:  # its import is slow
        return False
    from torch.distributed.fsdp import FullyShardedDataParallel

    return isinstance(module, FullyShardedDataParallel)
