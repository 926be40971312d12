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
        self._told, self._used = 0, -1  # how often it was sent to an epoch, now and before the pass that began last
        self._warned = False

    def told(self) -> None:
        """Note that the sampler has been sent to an epoch."""
        self._told += 1

    def noted(self, batches: Iterator[Batch], draw: Mapping[str, Any] | None = None) -> Iterator[Batch]:
        """Return batches of the present position, by settings, epoch and step that `draw` names.

        The pass begins with the first of them: loops may make more iterators than they go through.
        """
        return self._begun(batches, self._told, draw)

    def _begun(self, batches: Iterator[Batch], told: int, draw: Mapping[str, Any] | None) -> Iterator[Batch]:
        if not _SCORING.get():
            self._begin(told, draw)
        yield from batches

    def _begin(self, told: int, draw: Mapping[str, Any] | None) -> None:
        if told == self._used and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.owner}: iterating again without set_epoch gives the same batches again; call "
                "set_epoch(epoch) of the loader or the sampler before each epoch",
                stacklevel=4,
            )
        self._used = told
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
