"""Whether all processes hold the same loss: its settings by name, its state by a checksum."""

from __future__ import annotations

import zlib

from torch import Tensor, nn

from moreauc._description import describe, tensor_text, text_of
from moreauc.distributed._exchange import Exchange


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
    found = _settings(criterion, contents=True)
    for name, value in criterion.state_dict().items():
        found[name] = tensor_text(value) if isinstance(value, Tensor) else text_of(value)
    return found


def checksum(criterion: nn.Module, *, state: bool) -> int:
    """Return a number that tells settings, training or not among them, from others; with its state or without."""
    found = fingerprint(criterion) if state else _settings(criterion, contents=False)
    return zlib.crc32(repr(found).encode())


def _settings(criterion: nn.Module, *, contents: bool) -> dict[str, str]:
    """Return the description of a loss, and what it does with a batch at present."""
    found = describe(criterion, contents=contents)
    for path, part in criterion.named_modules():
        begin = f"{path}." if path else ""
        found[f"{begin}training"] = repr(part.training)
        if hasattr(part, "checks"):
            found[f"{begin}checks"] = repr(part.checks)
    return found
