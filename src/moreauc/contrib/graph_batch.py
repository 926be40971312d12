"""Batches of any form, tensors in mappings and sequences, as the recording of a step needs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def mapped(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Return a batch of the same form, each tensor changed by `function`."""
    if isinstance(value, Mapping):
        return {name: mapped(entry, function) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        parts = [mapped(entry, function) for entry in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return function(value) if isinstance(value, Tensor) else value


def form_of(batch: Any) -> Any:
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
