"""The base of the batch samplers: a position in epochs that are planned as a whole."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, TypeVar

from torch import Tensor
from torch.utils.data import Sampler

from moreauc._checks import check_count, check_mapping

Batch = TypeVar("Batch")

_SCORING: ContextVar[bool] = ContextVar("scoring", default=False)
_LATEST: list[Mapping[str, Any]] = []  # of this process, at most one


class Passes:
    """Warns, once, where a sampler is iterated again and `set_epoch` was not called since the last pass.

    A copy starts anew.

    Args:
        owner: class named in the warning.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._moves, self._used = 0, -1  # calls of set_epoch, now and when the last pass began
        self._warned = False

    def moved(self) -> None:
        """Note that the sampler has been given an epoch."""
        self._moves += 1

    def track(self, batches: Iterator[Batch], draw: Mapping[str, Any] | None = None) -> Iterator[Batch]:
        """Return the batches of a pass from the current position; `draw` says what is drawn.

        The pass begins with the first batch: loops may make more iterators than they use.
        """
        return self._tracked(batches, self._moves, draw)

    def _tracked(self, batches: Iterator[Batch], moves: int, draw: Mapping[str, Any] | None) -> Iterator[Batch]:
        if not _SCORING.get():
            self._begin(moves, draw)
        yield from batches

    def _begin(self, moves: int, draw: Mapping[str, Any] | None) -> None:
        if moves == self._used and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.owner}: iterating again without set_epoch gives the same batches again; call "
                "set_epoch(epoch) of the loader or the sampler before each epoch",
                stacklevel=4,
            )
        self._used = moves
        if draw is not None:
            _LATEST[:] = [draw]

    def __reduce__(self) -> Any:
        return Passes, (self.owner,)


@contextmanager
def passes_for_scores() -> Iterator[None]:
    """Ignore passes made for scoring: they go through the same batches each time."""
    token = _SCORING.set(True)
    try:
        yield
    finally:
        _SCORING.reset(token)


def latest_draw() -> Mapping[str, Any] | None:
    """Return what the last pass in this process draws: class, settings, epoch and step of its sampler."""
    return _LATEST[0] if _LATEST else None


class PlannedSampler(Sampler[list[int]]):
    """A batch sampler whose epochs are planned as a whole; the last plan is kept.

    A subclass checks its arguments, calls `_begin` and gives `_make` and `_settings`.
    """

    _owner: ClassVar[str]

    def _begin(self, seed: int, steps: int) -> None:
        self.seed = seed
        self._steps = steps
        self.epoch, self.start = 0, 0
        self._cached: tuple[int, Any] | None = None
        self._passes = Passes(self._owner)

    @abstractmethod
    def _make(self, epoch: int) -> Any:
        """Return the plan of an epoch: a tensor with a row for each step, or a sequence of tensors."""

    @abstractmethod
    def _settings(self) -> dict[str, int]:
        """Return what the batches depend on."""

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        rest = self._plan(self.epoch)[self.start :]  # here, not at the first batch: the position may move meanwhile
        return self.track(row.tolist() for row in rest)

    def draw(self) -> dict[str, Any]:
        """Return what iterating would draw: the class and the state, the same in all processes at one position."""
        return {"sampler": self._owner, **self.state_dict()}

    def track(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return batches made of those of the current position, as a pass over this sampler."""
        return self._passes.track(batches, self.draw())

    def batch(self, epoch: int, step: int) -> Tensor:
        """Return the rows of one batch, as a vector; the position does not move.

        The epoch is planned as a whole and the last plan is kept, so that steps of one epoch are cheap in any order.
        """
        number = self._check_step(epoch, step)
        rows: Tensor = self._plan(epoch)[number]
        return rows.clone()

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self.set_position(epoch, 0)

    def set_position(self, epoch: int, step: int) -> None:
        """Go to a step of an epoch, for instance the number of batches consumed; `len(self)` leaves nothing of it."""
        number = check_count(self._owner, "epoch", epoch, minimum=0)
        if check_count(self._owner, "step", step, minimum=0) > self._steps:
            raise ValueError(f"{self._owner}: step must lie in [0, {self._steps}], got {step}")
        self.epoch, self.start = number, int(step)
        self._passes.moved()

    def state_dict(self) -> dict[str, int]:
        """Return the position and what the batches depend on; the same in all processes at the same position."""
        return {"epoch": self.epoch, "step": self.start, **self._settings()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to the position of a `state_dict()`, taken from a sampler of the same settings.

        Raises:
            ValueError: if an entry is missing or a setting differs, since the batches would not be the same.
        """
        check_mapping(self._owner, "state", state)
        for name, value in {"epoch": None, "step": None, **self._settings()}.items():
            if name not in state:
                raise ValueError(f"{self._owner}: state must have the entry {name!r}, got {sorted(state)}")
            if value is not None and state[name] != value:
                raise ValueError(f"{self._owner}: state must have {name} {value}, as this sampler, got {state[name]}")
        self.set_position(state["epoch"], state["step"])

    def _check_step(self, epoch: int, step: int) -> int:
        check_count(self._owner, "epoch", epoch, minimum=0)
        if check_count(self._owner, "step", step, minimum=0) >= self._steps:
            raise ValueError(f"{self._owner}: step must lie in [0, {self._steps}), got {step}")
        return step

    def _plan(self, epoch: int) -> Any:
        if self._cached is None or self._cached[0] != epoch:
            self._cached = (epoch, self._make(epoch))
        return self._cached[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cached": None}
