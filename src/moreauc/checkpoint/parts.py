"""The parts of a training run as plain data: modules, optimizers, and anything that has a state.

Each kind of part has a function for its state, one that checks a saved state, and one that loads a checked state.

Shards of a `fully_shard` model are saved whole and spread again, so that any number of processes can load them. The
functions of `torch.distributed.checkpoint.state_dict` do not fit here: `get_optimizer_state_dict` takes a step with an
optimizer that has taken none, which runs the hooks of :class:`~moreauc.PreviousIterate`.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypedDict

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from moreauc import _parallel
from moreauc._parallel import gathered, is_shard, spread_as
from moreauc._settings import CLASS, Texts
from moreauc.checkpoint.file import CheckpointError
from moreauc.checkpoint.rng import GENERATORS, Generator, set_state, state_of
from moreauc.distributed import DistributedCriterion

_OF_ALL_MODULES = frozenset(vars(nn.Module()))
_NOTHING = object()
_MISSING = "none"  # stands for the text of a setting that is not there


class Stateful(Protocol):
    """Anything with a state, such as a scheduler."""

    def state_dict(self) -> dict[str, object]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, object], /) -> object:
        """Take a state."""


class ModuleState(TypedDict):
    """Weights and all buffers, persistent or not, which parameters are frozen, and generators."""

    state: dict[str, Tensor]
    other_buffers: dict[str, Tensor]
    frozen: list[str]
    generators: dict[str, object]


class OptimizerState(TypedDict):
    """The state of an optimizer, and the shapes of its parameters."""

    shapes: list[list[list[int]]]
    state: dict[str, Any]


def bare(model: nn.Module) -> nn.Module:
    """Return the module that the user wrote, without the wrappers of `torch.compile` and of distributed training."""
    inner = _parallel.bare(model)
    return bare(inner.criterion) if isinstance(inner, DistributedCriterion) else inner


def refuse(what: str, saved: object, here: object) -> CheckpointError:
    """Return the error for a checkpoint in which something differs from this run."""
    return CheckpointError(f"checkpoint has {what} {saved}, this run has {here}")


# Settings: texts by name


def check_settings(part: str, start: Texts, now: Texts, present: Texts) -> None:
    """Check that the settings of a part are those of the saved run; `part` is empty for those of the run itself.

    A number that a schedule changes may be as at the `start` of the saved run, or as when it was saved, `now`.
    """
    for name in {**present, **start}:
        here, begun, saved = (values.get(name, _MISSING) for values in (present, start, now))
        if here not in (begun, saved):
            where = f" in the {part}" if part else ""
            if "checksum" in here and "checksum" in begun:
                raise CheckpointError(f"checkpoint has other {name}{where} than this run (their checksums differ)")
            raise CheckpointError(f"checkpoint has {name} {begun}{where}, this run has {here}")


def check_fixed(part: str, start: Texts, now: Texts, present: Texts) -> None:
    """Check attributes that the saved run left alone; what has changed in it, or only this run has, is no setting."""
    names = {name for name, value in start.items() if now.get(name) == value}
    names |= {name for name in present if name.startswith(CLASS)}
    check_settings(part, *({name: text[name] for name in text if name in names} for text in (start, now, present)))


# Modules


def module_state(module: nn.Module) -> ModuleState:
    """Return the state of a module without its wrappers."""
    inner = bare(module)
    state = {name: gathered(value) for name, value in inner.state_dict().items()}
    return {
        "state": state,
        "other_buffers": {name: value for name, value in inner.named_buffers() if name not in state},
        "frozen": [name for name, value in inner.named_parameters() if not value.requires_grad],
        "generators": {name: state_of(generator) for name, generator in _generators(inner).items()},
    }


def check_tensors(part: str, module: nn.Module, saved: Mapping[str, object], *, widened: bool = False) -> None:
    """Check names, shapes and types; `widened`: floating types of tables may have changed since they were made."""
    inner = bare(module)
    present: dict[str, object] = dict(inner.state_dict())
    kind = "buffer" if part == "criterion" else "parameter"
    for name in sorted(saved.keys() - present.keys() - _unset_buffers(inner)):
        raise CheckpointError(f"checkpoint has unexpected {kind} {name!r} in the {part}")
    for name, value in present.items():
        if name not in saved:
            raise CheckpointError(f"checkpoint has no {kind} {name!r} in the {part}")
        other = saved[name]
        if not isinstance(value, Tensor) or not isinstance(other, Tensor):
            continue
        if value.shape != other.shape:
            raise refuse(f"{name!r} in the {part} of shape", tuple(other.shape), tuple(value.shape))
        if value.dtype != other.dtype and not (widened and value.is_floating_point() and other.is_floating_point()):
            raise refuse(f"{name!r} in the {part} of type", other.dtype, value.dtype)


@torch.no_grad()
def load_module(module: nn.Module, state: ModuleState) -> None:
    """Load a checked state."""
    inner = bare(module)
    _set_buffers(inner, {name: state["state"][name] for name in _unset_buffers(inner) & state["state"].keys()})
    # If a load fails, the state before it is loaded, in which such a buffer was None.
    _set_buffers(inner, dict.fromkeys(inner.state_dict().keys() - state["state"].keys()))
    now = inner.state_dict()
    inner.load_state_dict({name: spread_as(value, now.get(name, value)) for name, value in state["state"].items()})
    present = dict(inner.named_buffers())
    other = {}
    for name, value in state["other_buffers"].items():
        buffer = present.get(name)
        if buffer is not None and buffer.shape == value.shape and buffer.dtype == value.dtype:
            buffer.copy_(value)
        elif buffer is not None or name in _unset_buffers(inner):
            other[name] = value
    _set_buffers(inner, other)
    for name, parameter in inner.named_parameters():
        if parameter.requires_grad != (name not in state["frozen"]):
            parameter.requires_grad_(name not in state["frozen"])
    generators = _generators(inner)
    for name in generators.keys() & state["generators"].keys():
        set_state(generators[name], state["generators"][name])


def _unset_buffers(module: nn.Module) -> set[str]:
    """Return the names of buffers that are None; some modules make them when they are first called."""
    return {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        for name, value in part._buffers.items()
        if value is None
    }


def _set_buffers(module: nn.Module, values: Mapping[str, Tensor | None]) -> None:
    """Replace registered buffers by copies of the tensors given, on the device of the module."""
    some = next(itertools.chain(module.parameters(), module.buffers()), None)
    for name, value in values.items():
        owner, _, key = name.rpartition(".")
        device = "cpu" if some is None else some.device
        module.get_submodule(owner)._buffers[key] = None if value is None else value.to(device, copy=True)


def _generators(module: nn.Module) -> dict[str, Generator]:
    """Return the generators that are attributes of a module or of one inside it, by name."""
    found = [(f"{path}.{name}", value) for path, part in module.named_modules() for name, value in vars(part).items()]
    return {name: value for name, value in found if isinstance(value, GENERATORS)}


# Losses: the numbers that a schedule may change


def loss_attributes(criterion: nn.Module) -> dict[str, object]:
    """Return the numbers and texts that are attributes of losses of the library, and of classes derived from them."""
    return {f"{place}{name}": _as_plain(value) for place, _, name, value in _attributes(bare(criterion))}


def set_loss_attributes(criterion: nn.Module, values: Mapping[str, Any]) -> None:
    """Set attributes, which a schedule may have changed, to what :func:`loss_attributes` returned."""
    for place, part, name, value in list(_attributes(bare(criterion))):
        saved = values.get(f"{place}{name}", _NOTHING)
        if saved is not _NOTHING and saved != _as_plain(value):
            vars(part)[name] = dataclasses.replace(value, **saved) if _is_plain_data_class(value) else saved


def _attributes(criterion: nn.Module) -> Iterator[tuple[str, nn.Module, str, Any]]:
    for path, part in criterion.named_modules():
        if not any(base.__module__.partition(".")[0] == "moreauc" for base in type(part).__mro__):
            continue
        for name, value in vars(part).items():
            if name not in _OF_ALL_MODULES and (_is_plain(value) or _is_plain_data_class(value)):
                yield f"{path}." if path else "", part, name, value


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(entry) for entry in value)
    return value is None or type(value) in (bool, int, float, str) or isinstance(value, np.number | np.bool_)


def _is_plain_data_class(value: object) -> bool:
    ours = type(value).__module__.partition(".")[0] == "moreauc"
    return ours and dataclasses.is_dataclass(value) and all(_is_plain(entry) for entry in vars(value).values())


def _as_plain(value: object) -> object:
    if dataclasses.is_dataclass(value):
        return {name: _as_plain(entry) for name, entry in vars(value).items()}
    if isinstance(value, tuple):
        return tuple(map(_as_plain, value))
    return value.item() if isinstance(value, np.generic) else value


# Optimizers


def optimizer_state(optimizer: Optimizer) -> OptimizerState:
    """Return the state of an optimizer, and the shapes of its parameters."""
    state = optimizer.state_dict()
    kept = {number: {name: gathered(v) for name, v in values.items()} for number, values in state["state"].items()}
    return {"shapes": _shapes(optimizer), "state": {**state, "state": kept}}


def check_optimizer(what: str, optimizer: Optimizer, state: OptimizerState) -> None:
    """Check the parameters."""
    if state["shapes"] != _shapes(optimizer):
        raise refuse(f"parameters in the {what} of shapes", state["shapes"], _shapes(optimizer))


def load_optimizer(optimizer: Optimizer, state: OptimizerState) -> None:
    """Load a checked state; torch alone would keep the tensors themselves, cast to the types of the weights."""
    saved = state["state"]
    optimizer.load_state_dict(copy.deepcopy(saved))
    for group, before in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for parameter, number in zip(group["params"], before["params"], strict=True):
            now = optimizer.state.get(parameter, {})
            for name, value in saved["state"].get(number, {}).items():
                if not isinstance(value, Tensor):
                    continue
                if now[name].dtype != value.dtype:
                    now[name] = value.to(now[name].device, copy=True)
                if is_shard(parameter) and value.shape == parameter.shape:
                    now[name] = spread_as(now[name], parameter)


def _shapes(optimizer: Optimizer) -> list[list[list[int]]]:
    return [[list(parameter.shape) for parameter in group["params"]] for group in optimizer.param_groups]


def as_sequence(optimizer: Optimizer | Sequence[Optimizer]) -> list[Optimizer]:
    """Return one or several optimizers as a list."""
    return [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)


# Anything else that has a state


def other_state(part: Stateful) -> dict[str, object]:
    """Return the state of a scheduler, a gradient scaler or the like."""
    return {"class": type(part).__name__, "state": part.state_dict()}


def check_other(what: str, part: Stateful, state: Mapping[str, Any]) -> None:
    """Check the class, and what the part can check itself by a method `check_state`."""
    if state["class"] != type(part).__name__:
        raise refuse(f"{what} of class", state["class"], type(part).__name__)
    if hasattr(part, "check_state"):
        part.check_state(state["state"])
    if isinstance(part, torch.amp.GradScaler) and part.state_dict().keys() != state["state"].keys():
        raise refuse(f"{what} with entries", sorted(state["state"]), sorted(part.state_dict()))
