"""Parameters that `fully_shard` has spread over processes, which cannot change their `.data` as others can.

Such a model gathers its weights from the storage of its shards before each forward, and may keep the gathered ones
after it. So old values are written into that storage, and what has been gathered is given up before and after.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from moreauc._parallel import is_shard, is_sharded


def own_part(parameter: Any) -> Tensor:
    """Return what this process holds of a tensor: all of it, but for a shard."""
    part: Tensor = parameter.to_local() if is_shard(parameter) else parameter
    return part


def check_shards(owner: str, model: nn.Module) -> None:
    """Refuse models whose shards cannot be given old values."""
    shards = is_sharded(model)
    if not shards and "torch.distributed.fsdp" not in sys.modules:  # whose import takes a while
        return
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    for module in model.modules():
        if isinstance(module, FullyShardedDataParallel):
            raise ValueError(
                f"{owner}: model must be sharded by fully_shard, which keeps parameters apart, got one of "
                "FullyShardedDataParallel, which joins them"
            )
    if shards and not any(isinstance(module, FSDPModule) for module in model.modules()):
        raise ValueError(
            f"{owner}: model must be sharded by fully_shard, got distributed parameters of another kind, "
            "whose previous values nothing is known about"
        )


def whole(value: Any) -> Tensor:
    """Return a copy of all of a tensor; of a shard, all processes must ask for it."""
    gathered: Tensor = value.full_tensor() if is_shard(value) else value
    return gathered.clone()


def check_state(owner: str, name: str, value: Tensor, parameter: Tensor) -> None:
    """Refuse the part of one process for a parameter that is not spread."""
    if is_shard(value) and not is_shard(parameter):
        raise ValueError(
            f"{owner}: {name} must be a whole tensor, as the parameter is, got a shard; save full_tensor()"
        )


def like_parameter(value: Tensor, parameter: Tensor) -> Tensor:
    """Return a copy of `value` in the type, and spread over the processes, of `parameter`."""
    return spread_as(value.detach().to(device=parameter.device, dtype=parameter.dtype, copy=True), parameter)


def spread_as(value: Tensor, parameter: Tensor) -> Tensor:
    """Return a whole tensor spread over the processes as `parameter` is; a shard, or of a plain one, as it is."""
    if not is_shard(parameter) or is_shard(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    spread: Any = parameter
    return distribute_tensor(value, spread.device_mesh, spread.placements, src_data_rank=None)


@contextmanager
def previous_shards(model: nn.Module, pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Let shards hold old values, given as pairs of parameter and old value."""
    if not pairs:
        yield
        return
    present = [own_part(parameter).detach().clone() for parameter, _ in pairs]
    _give_up_gathered(model)
    try:
        with torch.no_grad():
            for parameter, old in pairs:
                own_part(parameter).copy_(own_part(old))
        yield
    finally:
        _give_up_gathered(model)
        with torch.no_grad():
            for (parameter, _), data in zip(pairs, present, strict=True):
                own_part(parameter).copy_(data)


def _give_up_gathered(model: nn.Module) -> None:
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
