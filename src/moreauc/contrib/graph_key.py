"""What a recorded training step depends on: shapes of batches, numbers read while recording, and tensors in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from moreauc._parallel import bare
from moreauc.core.pooling import Pooling
from moreauc.core.surrogates import Surrogate
from moreauc.core.tables import Table, UpdateRule
from moreauc.criteria._base import Criterion
from moreauc.optim import PreviousIterate
from moreauc.optim.hooks import check_optimizer

_ON_DEVICE = "a tensor on the device"


def check_optimizer_steps(owner: str, optimizer: Optimizer) -> None:
    """Refuse optimizers of which a part of the step would not be replayed: what the host counts, and hooks."""
    name = type(optimizer).__name__
    if any(group.get("capturable") is False for group in optimizer.param_groups):
        raise ValueError(f"{owner}: optimizer must be made with capturable=True, got {name} without")
    counts = any("step" in state for state in optimizer.state.values())
    if counts and not all("capturable" in group for group in optimizer.param_groups):
        raise ValueError(f"{owner}: optimizer must be able to count its steps on the GPU, got {name}, which cannot")


def check_parts(owner: str, model: nn.Module, optimizer: Optimizer, previous: Any) -> None:
    """Refuse an optimizer that is none, and a previous iterate of another model or optimizer."""
    optimizer = check_optimizer(owner, optimizer)
    if previous is not None and not callable(previous):
        raise ValueError(f"{owner}: previous must be a PreviousIterate, got {type(previous).__name__}")
    if not isinstance(previous, PreviousIterate):
        return
    if bare(previous.model) is not bare(model):
        raise ValueError(f"{owner}: previous must be that of model, got one of another model")
    if not any(getattr(hook, "__self__", None) is previous for hook in _hooks(optimizer)):
        raise ValueError(f"{owner}: previous must watch the steps of optimizer, got one that does not")


def check_hooks(owner: str, optimizer: Optimizer) -> None:
    """Refuse hooks of the optimizer's steps but those of `PreviousIterate`, which may be recorded."""
    for hook in chain(_hooks(optimizer), _hooks_of_all()):
        if not isinstance(getattr(hook, "__self__", None), PreviousIterate):
            name = getattr(hook, "__qualname__", type(hook).__name__)
            raise ValueError(
                f"{owner}: optimizer must have no hooks but those of PreviousIterate, got {name}, "
                "which a recording would run once and never again"
            )


def contents(
    model: nn.Module, criterion: nn.Module, optimizer: Optimizer, previous: object
) -> tuple[tuple[Any, ...], list[Tensor]]:
    """Return every number that a recording holds, and every tensor that it reads or writes and did not make.

    It runs in every step, so it reads the dictionaries of modules directly.
    """
    parts, losses = list(model.modules()), list(criterion.modules())
    found: list[Any] = [value for part in chain(parts, losses) for value in part._parameters.values()]
    trained = tuple(value.requires_grad for value in found if value is not None)
    found += [value for part in chain(parts, losses) for value in part._buffers.values()]
    found += [value for part in losses for value in vars(part).values()]  # only tensors are kept, below
    groups = []
    for group in optimizer.param_groups:
        found += group["params"]
        found += group.values()
        groups.append(tuple((name, _constant(group[name], group["params"])) for name in group if name != "params"))
    for state in optimizer.state.values():
        found += state.values()
    owners = {
        id(owner): owner for owner in (previous, *(getattr(hook, "__self__", None) for hook in _hooks(optimizer)))
    }
    for owner in owners.values():
        found += owner.copies if isinstance(owner, PreviousIterate) else []
    modes = tuple(part.training for part in parts)
    own = tuple(_attributes(loss) for loss in losses)
    autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    return (groups, modes, trained, own, autocast), [value for value in found if isinstance(value, Tensor)]


class Held:
    """Tensors of a recording, with their addresses. They are kept alive, so that no other tensor gets an address."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = [(tensor, tensor.detach(), tensor.data_ptr()) for tensor in tensors]

    def are(self, tensors: list[Tensor]) -> bool:
        """Return whether these are the same ones, in the same places."""
        return len(tensors) == len(self._tensors) and all(
            tensor is kept and tensor.data_ptr() == place
            for tensor, (kept, _, place) in zip(tensors, self._tensors, strict=True)
        )


def _hooks(optimizer: Optimizer) -> Iterator[Any]:
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        yield from getattr(optimizer, name, {}).values()


def _hooks_of_all() -> Iterator[Any]:
    """Return hooks that were registered for the steps of all optimizers."""
    module = import_module("torch.optim.optimizer")
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        yield from getattr(module, name, {}).values()


def _constant(value: object, parameters: list[Tensor]) -> object:
    """Return numbers and CPU tensors by value, since a recording reads them once; a replay reads other tensors."""
    if isinstance(value, tuple | list):
        return tuple(_constant(entry, parameters) for entry in value)
    if not isinstance(value, Tensor):
        return value
    place = parameters[0].device.type if parameters else "cpu"
    return _ON_DEVICE if value.device.type == place else value.tolist()


def _attributes(module: nn.Module) -> tuple[Any, ...]:
    """Return the numbers and rules of a loss or of a module around it, whose integers may count calls."""
    kinds: tuple[type, ...] = (float, bool, str, UpdateRule, Surrogate)
    if isinstance(module, Criterion | Table):
        kinds = (*kinds, int)
    found: list[Any] = []
    for name, value in vars(module).items():
        if isinstance(value, Pooling):
            found.append((name, type(value), tuple(vars(value).items())))
        elif isinstance(value, kinds) or (
            isinstance(value, tuple) and all(isinstance(entry, kinds) for entry in value)
        ):
            found.append((name, value))
    return tuple(found)


def mapped(value: object, function: Callable[[Tensor], Any]) -> Any:
    """Return a batch of the same form, each tensor changed by `function`."""
    if isinstance(value, Mapping):
        return {name: mapped(entry, function) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        parts = [mapped(entry, function) for entry in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return function(value) if isinstance(value, Tensor) else value


def form_of(batch: object) -> object:
    """Return shapes and types of the tensors of a batch, and its other parts."""
    return mapped(batch, lambda value: (tuple(value.shape), value.dtype, value.device))


def copy_into(target: Any, source: Any) -> None:
    """Write the tensors of a batch into those of another one of the same form."""
    if isinstance(target, Mapping):
        target, source = list(target.values()), [source[name] for name in target]
    if isinstance(target, tuple | list):
        for into, out_of in zip(target, source, strict=True):
            copy_into(into, out_of)
    elif isinstance(target, Tensor):
        target.copy_(source, non_blocking=True)
