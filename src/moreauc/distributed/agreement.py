"""Checks that all processes have the same loss and draw the same batches."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from moreauc._settings import Texts, tensor_text, text_of, texts_of
from moreauc.distributed.exchange import Exchange

_DATA = ("checksum_of_labels", "checksum_of_groups", "n")  # by which samplers know what they draw from


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


def fingerprint(criterion: nn.Module) -> Texts:
    """Return what tells one loss from another: types, settings, and checksums of tensors, by name."""
    found = _settings(criterion, contents=True)
    for name, value in criterion.state_dict().items():
        found[name] = tensor_text(value) if isinstance(value, Tensor) else text_of(value)
    return found


def settings_number(criterion: nn.Module, *, state: bool) -> int:
    """Return a number for the settings of a loss and the mode it is in; with its state or without."""
    found = fingerprint(criterion) if state else _settings(criterion, contents=False)
    return zlib.crc32(repr(found).encode())


def _settings(criterion: nn.Module, *, contents: bool) -> Texts:
    found = texts_of(criterion, contents=contents)
    for path, part in criterion.named_modules():
        begin = f"{path}." if path else ""
        found[f"{begin}training"] = repr(part.training)
        if hasattr(part, "checks"):
            found[f"{begin}checks"] = repr(part.checks)
    return found


def check_draws(exchange: Exchange, draw: Mapping[str, Any] | None, owner: str | None = None) -> None:
    """Raise, in all processes alike, where samplers over the same rows differ.

    Samplers of processes that have rows of their own are not compared. `draw` is what the sampler of this process
    draws, None without one; `owner` is named in the error, that of the exchange by default.
    """
    every = exchange.gather_objects(draw, "a comparison of samplers")
    for rank, found in enumerate(every):
        first = next(other for other, earlier in enumerate(every) if _data(earlier) == _data(found))
        for name, value in (found or {}).items():
            if (expected := every[first].get(name, "nothing")) != value:
                raise ValueError(
                    f"{owner or exchange.owner}: samplers over the same rows must draw the same in all processes, got "
                    f"{name} {expected} in process {first} and {value} in process {rank}; make them of the same "
                    "arguments and call set_epoch in all processes alike"
                )


def _data(draw: Mapping[str, Any] | None) -> object:
    return None if draw is None else {name: draw[name] for name in _DATA if name in draw}
