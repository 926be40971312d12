"""Batch samplers whose epochs are planned as a whole, as a function of a seed alone.

:class:`PlannedSampler` has the position in epochs, :func:`plan_class` the fair plan of an epoch, and
:class:`PosNegSampler` batches with fixed numbers of positives and negatives.
"""

from __future__ import annotations

import logging
import warnings
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler

from moreauc._checks import check_count, check_labels, check_mapping

Batch = TypeVar("Batch")
Plan = TypeVar("Plan", Tensor, tuple[Tensor, ...])
Rows = NDArray[np.int64]

PLAN = 2  # version of the rule below; states name it, since another rule gives other batches
_ROUND, _ORDER, _SURPLUS, _PASSES, _BEGIN, _KINDS = range(6)  # kinds of random orders, and how many there are

_SCORING: ContextVar[bool] = ContextVar("scoring", default=False)
_LATEST: list[Mapping[str, object]] = []  # of this process, at most one
_log = logging.getLogger(__name__)


class Passes:
    """Warns once where a sampler is iterated again and `set_epoch` was not called since the last pass.

    Copies reset the counter. `owner` is the class named in the warning.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._moves, self._used = 0, -1  # calls of set_epoch, now and when the last pass began
        self._warned = False

    def moved(self) -> None:
        """Note that the sampler has been given an epoch."""
        self._moves += 1

    def track(self, batches: Iterator[Batch], draw: Mapping[str, object] | None = None) -> Iterator[Batch]:
        """Return the batches of a pass from the current position; `draw` says what is drawn.

        The pass begins with the first batch: loops may make more iterators than they use.
        """
        moves = self._moves

        def passing() -> Iterator[Batch]:
            if not _SCORING.get():
                self._begin(moves, draw)
            yield from batches

        return passing()

    def _begin(self, moves: int, draw: Mapping[str, object] | None) -> None:
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

    def __reduce__(self) -> tuple[type[Passes], tuple[str]]:
        return Passes, (self.owner,)


@contextmanager
def passes_for_scores() -> Iterator[None]:
    """Ignore passes made for scoring: they go through the same batches each time."""
    token = _SCORING.set(True)
    try:
        yield
    finally:
        _SCORING.reset(token)


def latest_draw() -> Mapping[str, object] | None:
    """Return what the last pass in this process draws: class, settings, epoch and step of its sampler."""
    return _LATEST[0] if _LATEST else None


def check_sampler(owner: str, sampler: object) -> None:
    """Check that a sampler can be iterated over."""
    if not hasattr(sampler, "__iter__"):
        raise ValueError(f"{owner}: sampler must be an iterable over batches, got {type(sampler).__name__}")


def move_sampler(owner: str, sampler: object, epoch: int, step: int) -> None:
    """Go to a step of an epoch of a sampler, which must have `set_position`."""
    if not hasattr(sampler, "set_position"):
        raise ValueError(f"{owner}: sampler must have set_position, got {type(sampler).__name__} without")
    sampler.set_position(epoch, step)


class PlannedSampler(Sampler[list[int]], Generic[Plan]):
    """A batch sampler whose epochs are planned as a whole; the last plan is kept.

    A subclass checks its arguments, calls `_begin` and gives `_make` and `settings`.
    """

    _owner: ClassVar[str]

    def _begin(self, seed: int, steps: int) -> None:
        self.seed = seed
        self._steps = steps
        self.epoch, self.start = 0, 0
        self._cached: tuple[int, Plan] | None = None
        self._passes = Passes(self._owner)

    @abstractmethod
    def _make(self, epoch: int) -> Plan:
        """Return the plan of an epoch: a tensor with a row for each step, or a sequence of tensors."""

    @abstractmethod
    def settings(self) -> dict[str, int]:
        """Return what the batches depend on."""

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        rest = self._plan(self.epoch)[self.start :]  # now: the position may change before the first batch
        return self.track(row.tolist() for row in rest)

    def draw(self) -> dict[str, object]:
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
        return {"epoch": self.epoch, "step": self.start, **self.settings()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to the position of a `state_dict()`, taken from a sampler of the same settings.

        Raises:
            ValueError: if an entry is missing or a setting differs, since the batches would not be the same.
        """
        check_mapping(self._owner, "state", state)
        for name, value in {"epoch": None, "step": None, **self.settings()}.items():
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

    def _plan(self, epoch: int) -> Plan:
        if self._cached is None or self._cached[0] != epoch:
            self._cached = (epoch, self._make(epoch))
        return self._cached[1]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_cached": None}


class Source:
    """Random orders for one class of rows, each named by an integer.

    Raw bits and sorting only: NumPy promises these streams for all versions, but not those of its shuffles.

    `seed` is that of the sampler; `key` tells this source from others of the same seed.
    """

    def __init__(self, seed: int, *key: int) -> None:
        self.seed = seed
        self.key = key

    def keys(self, name: int, count: int) -> NDArray[np.uint64]:
        """Return `count` random numbers, whose order is the random order of that name."""
        bits = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(*self.key, name)))
        return bits.random_raw(count)

    def order(self, name: int, length: int) -> Rows:
        """Return the random order of `length` items that has that name."""
        return self.keys(name, length).argsort(kind="stable")

    def orders(self, name: int, count: int, length: int) -> Rows:
        """Return `count` orders of `length` items, shape `(count, length)`."""
        return self.keys(name, count * length).reshape(count, length).argsort(axis=1, kind="stable")


def rows_ahead(source: Source, num_rows: int, width: int, place: int) -> Rows:
    """Return the rows that stand before a place in its round.

    Rounds are an endless sequence of rows in both directions, so that places may be negative: each has all rows in a
    random order of its own, and no row stands twice among `width` neighbours, at most half of the rows. For that, a row
    among the last of a round comes in the next one at the first place that is far enough. This changes the first
    `width` places of a round only, so that its last ones are known without the round before it.
    """
    number, begun = divmod(place, num_rows)
    if not begun:
        return np.arange(0)
    rows = _round(source, num_rows, number)
    if begun >= width:
        return rows[:begun]
    last = _round(source, num_rows, number - 1)[num_rows - width + 1 :]
    earliest = {row: place for place, row in enumerate(last.tolist(), start=1)}  # in this round; 0 for all others
    waiting: dict[int, int] = {}
    coming = iter(rows[:width].tolist())
    chosen: list[int] = []
    for place in range(begun):
        row = waiting.pop(place, None)
        while row is None:
            row = next(coming)
            if earliest.get(row, 0) > place:
                waiting[earliest[row]] = row
                row = None
        chosen.append(row)
    return np.array(chosen)


def _round(source: Source, num_rows: int, number: int) -> Rows:
    """Return the rows of a round, which may have a negative number, in their order before any waits."""
    name = 2 * number if number >= 0 else -2 * number - 1
    return source.order(_ROUND + _KINDS * name, num_rows)


def plan_class(
    num_rows: int, size: int, steps: int, epoch: int, source: Source, past: tuple[int, Fraction] | None = None
) -> Rows:
    """Return the rows of each step, shape `(steps, size)`: no repeats in a step, counts equal up to 1.

    An epoch has whole passes over the rows, and some rows once more. The passes, with this surplus ahead of them, are
    cut into batches, and the epoch begins at a random one. `past` is the number of steps in all earlier epochs and the
    mean number in an epoch, where epochs may have one step more than others; None where they are equally long.
    """
    past = (epoch * steps, Fraction(steps)) if past is None else past
    if size == num_rows:
        return np.broadcast_to(np.arange(num_rows), (steps, size))
    if 2 * size > num_rows:  # choose the absent rows: the rule below needs batches of at most half the rows
        present = np.ones((steps, num_rows), dtype=bool)
        np.put_along_axis(present, plan_class(num_rows, num_rows - size, steps, epoch, source, past), False, axis=1)
        return present.nonzero()[1].reshape(steps, size)
    passes, extra = divmod(steps * size, num_rows)
    first = np.arange(0)
    if extra:
        first = _surplus(num_rows, size, steps, epoch, source, past)
        first = first[source.order(_SURPLUS + _KINDS * epoch, extra)]
    rest = source.orders(_PASSES + _KINDS * epoch, passes, num_rows)
    _separate(first, rest, size)
    plan = np.concatenate([first, rest.reshape(-1)]).reshape(steps, size)
    return np.roll(plan, source.order(_BEGIN + _KINDS * epoch, steps)[0], axis=0)


def counts_before(num_rows: int, size: int, steps: int, epoch: int, source: Source) -> Rows:
    """Return how often `plan_class` gives each row in all epochs before `epoch`, without making those plans."""
    if 2 * size > num_rows:  # including size == num_rows, without absent rows
        return epoch * steps - counts_before(num_rows, num_rows - size, steps, epoch, source)
    change = _change(num_rows, size, steps)
    counts = np.full(num_rows, epoch * steps * size // num_rows, dtype=np.int64)
    counts[rows_ahead(source, num_rows, abs(change), epoch * change)] += 1
    return counts


def _surplus(num_rows: int, size: int, steps: int, epoch: int, source: Source, past: tuple[int, Fraction]) -> Rows:
    """Return the rows that come once more than others in an epoch.

    Rows ahead are those that all epochs so far gave once more than others: the beginning of a round, up to a place that
    an epoch moves by at most half a round. The surplus is taken cyclically from an order that begins with the rows
    ahead both before and after the epoch, so that counts over all epochs are equal up to 1.

    Epochs of different lengths may move the place to and fro, with the same rows ahead again and again. Where a period,
    after which all rows have had as many steps, moves it by at most one round, rounds are counted in periods, and all
    epochs of a period share one random order.
    """
    before, mean = past
    period, (fewest, longer) = mean.denominator, divmod(mean.numerator, mean.denominator)
    changes = [_change(num_rows, size, number) for number in (fewest, fewest + 1)]
    if abs((period - longer) * changes[0] + longer * changes[1]) <= num_rows:
        unit, change = epoch // period, _change(num_rows, size, mean.numerator)
        start, width = unit * change, abs(change)
    else:
        unit, change = epoch, _change(num_rows, size, steps)
        over = before - epoch * fewest
        start, width = (epoch - over) * changes[0] + over * changes[1], max(map(abs, changes))
    ahead = np.zeros(num_rows, dtype=np.int8)
    for place in (start, start + change):
        ahead[rows_ahead(source, num_rows, width, place)] += 1
    keys = source.keys(_ORDER + _KINDS * unit, num_rows)
    begin, count = before * size % num_rows, steps * size % num_rows
    return np.lexsort((keys, -ahead))[(begin + np.arange(count)) % num_rows]


def _change(num_rows: int, size: int, steps: int) -> int:
    """Return how far some steps move the place in the rounds: forward by their surplus or back by what it lacks."""
    extra = steps * size % num_rows
    return extra if 2 * extra <= num_rows else extra - num_rows


def _separate(first: Rows, passes: Rows, size: int) -> None:
    """Make the batches that two passes share free of repeats, in place.

    A pass begins in a batch that holds the last `before` rows of the pass before it, or of `first`. Those of its own
    first `head` rows that are among them change places with the next rows after the head that are not. With
    `before + head <= size` and at least `2 * size` rows in a pass, these are found before its last `size` rows: what
    goes into the batch shared with the next pass stays as it was, so that all passes can be treated at once.
    """
    count, num_rows = passes.shape
    begin = (len(first) + num_rows * np.arange(count))[:, None]
    before, head = begin % size, -begin % size
    column = np.arange(num_rows)
    present = np.zeros(passes.shape, dtype=bool)
    if count:
        present[0, first[len(first) - before[0, 0] :]] = True
    np.put_along_axis(present[1:], passes[:-1], column >= num_rows - before[1:], axis=1)
    present = np.take_along_axis(present, passes, axis=1)
    clash = present & (column < head)
    free = ~present & (column >= head)
    free &= free.cumsum(axis=1) <= clash.sum(axis=1, keepdims=True)
    passes[clash], passes[free] = passes[free], passes[clash]


class PosNegSampler(PlannedSampler[Tensor]):
    r"""Batch sampler with `num_positives` positives and `num_negatives` negatives in every batch.

    For `batch_sampler=` of a `DataLoader` (torch or PyG) or for :class:`~moreauc.data.TensorBatches`. A batch lists
    its positives first; no row is in it twice. With :math:`n_+` and :math:`n_-` rows, an epoch is one pass over the
    class that takes longer, :math:`\max(\lceil n_+ / B_+ \rceil, \lceil n_- / B_- \rceil)` steps, and every row of
    either class is in it. The counts of the rows of a class differ by at most 1 inside an epoch, and by at most 1 over
    all epochs. Any two rows are in the same batch as often as any other two of their classes, in expectation.

    The batch of a step is a pure function of seed, epoch and step, in every version of NumPy and torch. To resume in
    the middle of an epoch, call `set_position` with the number of batches consumed: since workers prefetch, the sampler
    cannot know it.

    Several processes: process `rank` of `world_size` owns every `world_size`-th row of each class, from the `rank`-th
    on. Batches of all processes have the same size, and epochs as many steps as the largest shard needs.

    Args:
        labels: 0/1 labels of the whole training set, shape `(n,)`, both present; a batch holds positions in it.
        num_positives: positives of a batch, in each process, at least 1. Where the smallest shard has fewer, all of
            its positives are taken at each step, and a line is logged.
        num_negatives: the same for negatives.
        seed: at least 0; the same in all processes.
        rank: number of this process, in [0, world_size).
        world_size: number of processes.

    Attributes:
        epoch: the epoch that iterating gives; it starts at 0.
        start: the step of that epoch at which iterating begins.

    Example:
        >>> sampler = PosNegSampler([0, 0, 1, 0, 1, 0, 0, 0], num_positives=1, num_negatives=3)
        >>> list(sampler)
        [[2, 7, 3, 1], [4, 0, 5, 6]]
        >>> sampler.set_epoch(1)
        >>> list(sampler)
        [[4, 0, 6, 5], [2, 1, 3, 7]]
        >>> sampler.batch(0, 1)
        tensor([4, 0, 5, 6])
    """

    _owner = "PosNegSampler"

    def __init__(
        self,
        labels: Tensor | Sequence[int] | NDArray[Any],
        *,
        num_positives: int,
        num_negatives: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        whole = check_labels(self._owner, labels).cpu().numpy()
        asked = {
            "positives": check_count(self._owner, "num_positives", num_positives),
            "negatives": check_count(self._owner, "num_negatives", num_negatives),
        }
        seed = check_count(self._owner, "seed", seed, minimum=0)
        self.world_size = check_count(self._owner, "world_size", world_size)
        self.rank = check_count(self._owner, "rank", rank, minimum=0)
        if self.rank >= self.world_size:
            raise ValueError(f"{self._owner}: rank must lie in [0, {self.world_size}), got {rank}")
        classes = {"positives": np.flatnonzero(whole == 1), "negatives": np.flatnonzero(whole == 0)}
        for name, rows in classes.items():
            if len(rows) < self.world_size:
                raise ValueError(
                    f"{self._owner}: world_size must be at most the number of {name}, {len(rows)}, for every process "
                    f"to have some, got {self.world_size}"
                )
        self.checksum_of_labels = zlib.crc32(whole.astype("<i8").tobytes())
        self._counts = {name: len(rows) for name, rows in classes.items()}
        self._rows = {name: rows[self.rank :: self.world_size] for name, rows in classes.items()}
        sizes = {name: min(asked[name], count // self.world_size) for name, count in self._counts.items()}
        self.num_positives, self.num_negatives = sizes["positives"], sizes["negatives"]
        largest = {name: -(-count // self.world_size) for name, count in self._counts.items()}
        self._begin(seed, max(-(-largest[name] // sizes[name]) for name in classes))
        for name, size in sizes.items():
            if size < asked[name]:
                _log.warning("%s: %d %s in a batch, not %d: there are no more", self._owner, size, name, asked[name])

    def remaining(self) -> Tensor:
        """Return what iterating would give as one tensor, shape `(len(self) - start, num_positives + num_negatives)`.

        Example:
            >>> sampler = PosNegSampler([1, 0, 0], num_positives=1, num_negatives=1)
            >>> sampler.set_position(0, 1)
            >>> sampler.remaining()
            tensor([[0, 1]])
        """
        rest: Tensor = self._plan(self.epoch)[self.start :]
        return rest.clone()

    def settings(self) -> dict[str, int]:
        """Return what the batches depend on."""
        return {
            "plan": PLAN,
            "seed": self.seed,
            "world_size": self.world_size,
            "num_positives": self.num_positives,
            "num_negatives": self.num_negatives,
            **{f"all_{name}": count for name, count in self._counts.items()},
            "checksum_of_labels": self.checksum_of_labels,
        }

    def _make(self, epoch: int) -> Tensor:
        sizes = (self.num_positives, self.num_negatives)
        parts = [
            rows[plan_class(len(rows), size, self._steps, epoch, Source(self.seed, self.rank, number))]
            for number, (rows, size) in enumerate(zip(self._rows.values(), sizes, strict=True))
        ]
        return torch.from_numpy(np.concatenate(parts, axis=1))

    def __repr__(self) -> str:
        shard = f", rank={self.rank}, world_size={self.world_size}" if self.world_size > 1 else ""
        sizes = f"num_positives={self.num_positives}, num_negatives={self.num_negatives}"
        return f"{self._owner}({sizes}, seed={self.seed}{shard}): {self._steps} steps"
