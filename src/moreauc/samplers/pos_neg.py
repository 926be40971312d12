"""Batches with fixed numbers of positives and negatives."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moreauc._checks import check_count, check_labels
from moreauc.samplers.base import PLAN, PlannedSampler, Source, plan_class

_OWNER = "PosNegSampler"
_log = logging.getLogger(__name__)


class PosNegSampler(PlannedSampler):
    r"""Batch sampler with `num_positives` positives and `num_negatives` negatives in every batch.

    For `batch_sampler=` of a `DataLoader` (torch or PyG) or for :class:`~moreauc.data.TensorBatches`. A batch lists
    its positives first; no row is in it twice. With :math:`n_+` and :math:`n_-` rows, an epoch is one pass over the
    class that takes longer, :math:`\max(\lceil n_+ / B_+ \rceil, \lceil n_- / B_- \rceil)` steps, and every row of
    either class is in it. The counts of the rows of a class differ by at most 1 inside an epoch, and by at most 1 over
    all epochs. Any positive and any negative, and any two rows of a class, are in the same batch equally often in
    expectation.

    The batch of a step is a pure function of seed, epoch and step, in every version of NumPy and torch. To resume in
    the middle of an epoch, call `set_position` with the number of batches consumed: since workers prefetch, the sampler
    cannot know it.

    Several processes: process `rank` of `world_size` owns every `world_size`-th row of each class, from the `rank`-th
    on. Batches of all processes have the same size, and epochs as many steps as the largest shard needs; within a shard
    all rows are drawn equally often.

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
        [[2, 7, 3, 1], [4, 0, 5, 6]]
        >>> sampler.set_epoch(1)
        >>> list(sampler)
        [[4, 0, 6, 5], [2, 1, 3, 7]]
        >>> sampler.batch(0, 1)
        tensor([4, 0, 5, 6])
    """

    _owner = _OWNER

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
        seed = check_count(_OWNER, "seed", seed, minimum=0)
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
        self.checksum_of_labels = zlib.crc32(whole.astype("<i8").tobytes())
        self._counts = {name: len(rows) for name, rows in classes.items()}
        self._rows = {name: rows[self.rank :: self.world_size] for name, rows in classes.items()}
        sizes = {name: min(asked[name], count // self.world_size) for name, count in self._counts.items()}
        self.num_positives, self.num_negatives = sizes["positives"], sizes["negatives"]
        largest = {name: -(-count // self.world_size) for name, count in self._counts.items()}
        self._begin(seed, max(-(-largest[name] // sizes[name]) for name in classes))
        for name, size in sizes.items():
            if size < asked[name]:
                _log.warning("%s: %d %s in a batch, not %d: there are no more", _OWNER, size, name, asked[name])

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

    def _settings(self) -> dict[str, int]:
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
        return f"{_OWNER}({sizes}, seed={self.seed}{shard}): {self._steps} steps"
