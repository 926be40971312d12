"""How models are called: where they are, and in which form they take inputs and give outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first parameter; the CPU for a model without parameters."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def on_device(value: Any, device: torch.device) -> Any:
    """Return tensors on the device, also those in tuples, lists and dictionaries; numbers and arrays as tensors."""
    if isinstance(value, Mapping):
        return {name: on_device(entry, device) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        moved = [on_device(entry, device) for entry in value]
        return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)  # named tuples keep their type
    return value.to(device, non_blocking=True) if hasattr(value, "to") else torch.as_tensor(value, device=device)


def instances_for(model: nn.Module, instances: Tensor) -> Tensor:
    """Return the instances of bags in the floating type of the model's weights; integers stay as they are."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weight is None or not instances.is_floating_point() or instances.dtype == weight.dtype:
        return instances
    return instances.to(weight.dtype)


def joined(outputs: Any) -> Any:
    """Return a pair of vectors, score and attention logit, as two columns; anything else as it is."""
    pair = isinstance(outputs, tuple | list) and len(outputs) == 2
    if not pair or any(not isinstance(part, Tensor) or part.numel() != len(part) for part in outputs):
        return outputs
    return torch.stack([part.reshape(-1) for part in outputs], dim=1)
