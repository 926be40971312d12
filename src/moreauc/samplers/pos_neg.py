"""Batches with fixed numbers of positives and negatives.

The batches of an epoch are planned at once and class by class: whole passes over the rows of the class, one after the
other, each in an order of its own, cut into batches. Where a cut puts two passes into one batch, rows of the second
that are already there change places with later ones. All of it is a function of the seed and the epoch alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler

from moreauc._checks import check_count, check_labels

Rows = NDArray[np.int64]

_OWNER = "PosNegSampler"
_log = logging.getLogger(__name__)


class PosNegSampler(Sampler[list[int]]):
    r"""Batch sampler with `num_positives` positives and `num_negatives` negatives in every batch.

    For `batch_sampler=` of a `DataLoader` (torch or PyG) or for :class:`~moreauc.data.TensorBatches`. A batch lists
    its positives first; no row stands in it twice. With :math:`n_+` and :math:`n_-` rows, an epoch is one pass over
    the class that takes longer, :math:`\max(\lceil n_+ / B_+ \rceil, \lceil n_- / B_- \rceil)` steps, and every row
    of either class is in it. The rows of a class come equally often: their counts differ by at most 1 inside an epoch,
    and by at most 1 over all epochs from 0 to any other.

    The batch of a step is a pure function of the seed, the epoch and the step, in every version of NumPy and torch. No
    global random state is read or changed. To resume in the middle, tell the sampler what the training loop has
    consumed: workers fetch ahead, so the sampler cannot know.

    Several processes: process `rank` of `world_size` owns every `world_size`-th row of each class, from the `rank`-th
    on. The shards are disjoint and cover all rows; batches of all processes have the same size, and epochs the same
    number of steps, that of the largest shard. Rows come equally often within a shard; in a shard that is one row
    shorter than another they come that much oftener.

    Args:
        labels: 0/1 labels of the whole training set, shape `(n,)`, both present; a batch holds positions in it.
        num_positives: positives of a batch, in each process, at least 1. Where the smallest shard has fewer, all of
            its positives are taken at each step, and a line is logged.
        num_negatives: the same for negatives.
        seed: at least 0; the same in all processes.
        rank: number of this process, in [0, world_size).
        world_size: number of processes.

    Attributes:
        num_positives: positives of a batch, after the rule above.
        num_negatives: negatives of a batch, likewise.
        epoch: the epoch that iterating gives; it starts at 0.
        start: the step of that epoch at which iterating begins.

    Raises:
        ValueError: for labels other than 0/1 or a class missing, an argument out of range, and more processes than
            rows of a class (in every process, so that none waits for the others).

    Example:
        >>> sampler = PosNegSampler([0, 0, 1, 0, 1, 0, 0, 0], num_positives=1, num_negatives=3)
        >>> list(sampler)
        [[4, 1, 0, 3], [2, 5, 6, 7]]
        >>> sampler.set_epoch(1)
        >>> list(sampler)
        [[4, 3, 0, 6], [2, 7, 5, 1]]
        >>> sampler.batch(0, 1)
        tensor([2, 5, 6, 7])
    """

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
        whole = check_labels(_OWNER, labels).cpu().numpy()
        asked = {
            "positives": check_count(_OWNER, "num_positives", num_positives),
            "negatives": check_count(_OWNER, "num_negatives", num_negatives),
        }
        self.seed = check_count(_OWNER, "seed", seed, minimum=0)
        self.world_size = check_count(_OWNER, "world_size", world_size)
        self.rank = check_count(_OWNER, "rank", rank, minimum=0)
        if self.rank >= self.world_size:
            raise ValueError(f"{_OWNER}: rank must lie in [0, {self.world_size}), got {rank}")
        classes = {"positives": np.flatnonzero(whole == 1), "negatives": np.flatnonzero(whole == 0)}
        for name, rows in classes.items():
            if len(rows) < self.world_size:
                raise ValueError(
                    f"{_OWNER}: world_size must be at most the number of {name}, {len(rows)}, for every process to "
                    f"have some, got {self.world_size}"
                )
        self._counts = {name: len(rows) for name, rows in classes.items()}
        self._rows = {name: rows[self.rank :: self.world_size] for name, rows in classes.items()}
        sizes = {name: min(asked[name], count // self.world_size) for name, count in self._counts.items()}
        self.num_positives, self.num_negatives = sizes["positives"], sizes["negatives"]
        largest = {name: -(-count // self.world_size) for name, count in self._counts.items()}
        self._steps = max(-(-largest[name] // sizes[name]) for name in classes)
        self.epoch, self.start = 0, 0
        self._cached: tuple[int, Tensor] | None = None
        for name, size in sizes.items():
            if size < asked[name]:
                _log.warning("%s: %d %s in a batch, not %d: there are no more", _OWNER, size, name, asked[name])

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        rest = self._plan(self.epoch)[self.start :]  # here, not at the first batch: the position may move meanwhile
        return (row.tolist() for row in rest)

    def batch(self, epoch: int, step: int) -> Tensor:
        """Return the rows of one batch, shape `(num_positives + num_negatives,)`; the position does not move.

        The epoch is planned as a whole and the last plan is kept, so that steps of one epoch are cheap in any order.
        """
        check_count(_OWNER, "epoch", epoch, minimum=0)
        if check_count(_OWNER, "step", step, minimum=0) >= self._steps:
            raise ValueError(f"{_OWNER}: step must lie in [0, {self._steps}), got {step}")
        return self._plan(epoch)[step].clone()

    def remaining(self) -> Tensor:
        """Return what iterating would give as one tensor, shape `(len(self) - start, num_positives + num_negatives)`.

        Example:
            >>> sampler = PosNegSampler([1, 0, 0], num_positives=1, num_negatives=1)
            >>> sampler.set_position(0, 1)
            >>> sampler.remaining()
            tensor([[0, 1]])
        """
        return self._plan(self.epoch)[self.start :].clone()

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self.set_position(epoch, 0)

    def set_position(self, epoch: int, step: int) -> None:
        """Go to a step of an epoch, for instance the number of batches consumed; `len(self)` leaves nothing of it."""
        number = check_count(_OWNER, "epoch", epoch, minimum=0)
        if check_count(_OWNER, "step", step, minimum=0) > self._steps:
            raise ValueError(f"{_OWNER}: step must lie in [0, {self._steps}], got {step}")
        self.epoch, self.start = number, int(step)

    def state_dict(self) -> dict[str, int]:
        """Return the position and what the batches depend on; the same in all processes at the same position."""
        return {"epoch": self.epoch, "step": self.start, **self._settings()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to the position of a `state_dict()`, taken from a sampler of the same settings.

        Raises:
            ValueError: if an entry is missing or a setting differs, since the batches would not be the same.
        """
        for name, value in {"epoch": None, "step": None, **self._settings()}.items():
            if name not in state:
                raise ValueError(f"{_OWNER}: state must have the entry {name!r}, got {sorted(state)}")
            if value is not None and state[name] != value:
                raise ValueError(f"{_OWNER}: state must have {name} {value}, as this sampler, got {state[name]}")
        self.set_position(state["epoch"], state["step"])

    def _settings(self) -> dict[str, int]:
        return {
            "seed": self.seed,
            "world_size": self.world_size,
            "num_positives": self.num_positives,
            "num_negatives": self.num_negatives,
            **{f"all_{name}": count for name, count in self._counts.items()},
        }

    def _plan(self, epoch: int) -> Tensor:
        if self._cached is None or self._cached[0] != epoch:
            sizes = (self.num_positives, self.num_negatives)
            parts = [
                rows[_plan_class(len(rows), size, self._steps, epoch, _Source(self.seed, self.rank, number))]
                for number, (rows, size) in enumerate(zip(self._rows.values(), sizes, strict=True))
            ]
            self._cached = (epoch, torch.from_numpy(np.concatenate(parts, axis=1)))
        return self._cached[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cached": None}

    def __repr__(self) -> str:
        shard = f", rank={self.rank}, world_size={self.world_size}" if self.world_size > 1 else ""
        sizes = f"num_positives={self.num_positives}, num_negatives={self.num_negatives}"
        return f"{_OWNER}({sizes}, seed={self.seed}{shard}): {self._steps} steps"


class _Source:
    """Random orders for one class of one process, each named by an integer.

    Raw bits and sorting only: NumPy promises these streams for all versions, but not those of its shuffles.
    """

    def __init__(self, seed: int, rank: int, number: int) -> None:
        self.seed = seed
        self.key = (rank, number)

    def orders(self, name: int, count: int, length: int) -> Rows:
        """Return `count` orders of `length` items, shape `(count, length)`."""
        bits = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(*self.key, name)))
        return bits.random_raw(count * length).reshape(count, length).argsort(axis=1, kind="stable")


def _plan_class(num_rows: int, size: int, steps: int, epoch: int, source: _Source) -> Rows:
    """Return the rows of each step, shape `(steps, size)`: no repeats in a step, counts equal up to 1."""
    if size == num_rows:
        return np.broadcast_to(np.arange(num_rows), (steps, size))
    if 2 * size > num_rows:  # choose who is absent: the rule below needs batches of at most half the rows
        present = np.ones((steps, num_rows), dtype=bool)
        np.put_along_axis(present, _plan_class(num_rows, num_rows - size, steps, epoch, source), False, axis=1)
        return present.nonzero()[1].reshape(steps, size)
    passes, extra = divmod(steps * size, num_rows)
    first = np.arange(0)
    if extra:
        # The rows that come once more than others go round and round in one order, so that nobody gets ahead.
        window = (epoch * extra + np.arange(extra)) % num_rows
        first = source.orders(0, 1, num_rows)[0][window][source.orders(2 * epoch + 1, 1, extra)[0]]
    rest = source.orders(2 * epoch + 2, passes, num_rows)
    _separate(first, rest, size)
    return np.concatenate([first, rest.reshape(-1)]).reshape(steps, size)


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
