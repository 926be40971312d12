"""What a pass over a sampler leaves behind: a warning where nobody told the epoch, and what processes compare."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Batch = TypeVar("Batch")

_SCORING: ContextVar[bool] = ContextVar("scoring", default=False)
_LATEST: list[Mapping[str, Any]] = []  # of this process, at most one


class Passes:
    """Warns, once, where a sampler is gone through again and nobody has told it the epoch since the last time.

    A copy has not been gone through.

    Args:
        owner: class named in the warning.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._used, self._warned = False, False

    def told(self) -> None:
        """Note that the sampler has been sent to an epoch."""
        self._used = False

    def noted(self, batches: Iterator[Batch], draw: Mapping[str, Any] | None = None) -> Iterator[Batch]:
        """Yield batches; the pass begins with the first: loops may make more iterators than they go through."""
        self._begin(draw)
        yield from batches

    def _begin(self, draw: Mapping[str, Any] | None) -> None:
        """Note that a pass begins, which gives the batches that `draw` names: settings, epoch and step."""
        if _SCORING.get():
            return
        if self._used and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.owner}: iterating again without set_epoch gives the same batches again; call "
                "set_epoch(epoch) of the loader or the sampler before each epoch",
                stacklevel=3,
            )
        self._used = True
        if draw is not None:
            _LATEST[:] = [draw]

    def __reduce__(self) -> Any:
        """Be made anew where it is copied."""
        return Passes, (self.owner,)


@contextmanager
def passes_for_scores() -> Iterator[None]:
    """Take no note of passes: scores are of the same batches, however often, and processes have their own."""
    token = _SCORING.set(True)
    try:
        yield
    finally:
        _SCORING.reset(token)


def latest_draw() -> Mapping[str, Any] | None:
    """Return what the pass that began last in this process draws: class, settings, epoch and step of its sampler."""
    return _LATEST[0] if _LATEST else None
