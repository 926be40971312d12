"""Whether the samplers of all processes draw the same: their settings and positions by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moreauc.distributed._exchange import Exchange

_DATA = ("checksum_of_labels", "checksum_of_groups", "n")  # by which samplers know what they draw from


def check_draws(exchange: Exchange, draw: Mapping[str, Any] | None, owner: str | None = None) -> None:
    """Raise, in all processes alike, where samplers over the same rows differ.

    Processes may have samplers over rows of their own, each as it likes; these are not compared.

    Args:
        exchange: how the processes talk.
        draw: of the sampler of this process; None without one.
        owner: function named in the error; None for the one that the exchange is for.
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


def _data(draw: Mapping[str, Any] | None) -> Any:
    return None if draw is None else {name: draw[name] for name in _DATA if name in draw}
