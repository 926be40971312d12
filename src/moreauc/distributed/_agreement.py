"""Whether all processes hold the same loss: its settings by name, its state by a checksum."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor, nn

from moreauc.distributed._exchange import Exchange
from moreauc.pooling import Pooling
from moreauc.rules import UpdateRule
from moreauc.surrogates import Surrogate

_SETTINGS = (bool, int, float, str, type(None), UpdateRule, Surrogate, Pooling)


def check_agreement(exchange: Exchange, criterion: nn.Module) -> None:
    """Raise, in all processes alike, where settings or state of the losses differ."""
    if exchange.size == 1:
        return
    every = exchange.gather_objects(fingerprint(criterion), "a comparison of losses")
    for rank, found in enumerate(every):
        for name in {**every[0], **found}:
            first, other = every[0].get(name, "nothing"), found.get(name, "nothing")
            if first != other:
                raise ValueError(
                    f"{exchange.owner}: criterion must be the same in all processes, "
                    f"got {name} {first} in process 0 and {other} in process {rank}"
                )


def fingerprint(criterion: nn.Module) -> dict[str, str]:
    """Return what tells one loss from another: kinds, settings, and checksums of tensors, by name."""
    found = settings_of(criterion)
    for name, tensor in criterion.state_dict().items():
        found[name] = _checksum(tensor)
    return found


def checksum(criterion: nn.Module, *, state: bool) -> int:
    """Return a number that tells settings, training or not among them, from others; with its state or without."""
    found = fingerprint(criterion) if state else settings_of(criterion)
    return zlib.crc32(repr(found).encode())


def settings_of(criterion: nn.Module) -> dict[str, str]:
    """Return kinds and settings, by name."""
    found = {}
    for prefix, module in criterion.named_modules():
        begin = f"{prefix}." if prefix else ""
        found[f"{begin}class"] = type(module).__name__
        if hasattr(module, "threshold_lr"):  # by the name that users know, before the numbers that it is kept as
            found[f"{begin}threshold_lr"] = str(module.threshold_lr)
        for name, value in vars(module).items():
            if _is_setting(value):
                found[begin + name.removeprefix("_")] = str(value)
    return found


def _is_setting(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(isinstance(entry, _SETTINGS) for entry in value)
    return isinstance(value, _SETTINGS)


def _checksum(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    flat = torch.empty(value.numel(), dtype=value.dtype).copy_(value.detach().reshape(-1))
    crc = zlib.crc32(flat.view(torch.uint8).numpy().tobytes())
    return f"{value.dtype} of shape {tuple(value.shape)} with checksum {crc:08x}"
