"""What a module may have besides weights and tensors that are always there: generators, and buffers made late."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from moreauc.checkpoint._generators import GENERATORS


def unset_buffers(module: nn.Module) -> set[str]:
    """Return the names of buffers that are registered and None: some modules make them when they are first called."""
    return {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        for name, value in part._buffers.items()
        if value is None
    }


def set_buffers(module: nn.Module, values: Mapping[str, Tensor | None]) -> None:
    """Give buffers that are registered other tensors, copies of those given, where the module is."""
    some = next(itertools.chain(module.parameters(), module.buffers()), None)
    for name, value in values.items():
        owner, _, key = name.rpartition(".")
        place = "cpu" if some is None else some.device
        module.get_submodule(owner)._buffers[key] = None if value is None else value.to(place, copy=True)


def module_generators(module: nn.Module) -> dict[str, Any]:
    """Return the generators that are attributes of a module or of one inside of it, by name."""
    found = [(f"{path}.{name}", value) for path, part in module.named_modules() for name, value in vars(part).items()]
    return {name: value for name, value in found if isinstance(value, GENERATORS)}
