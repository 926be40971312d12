"""The batches of one process, split over several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler

from moreauc._checks import check_count
from moreauc.samplers.base import check_sampler, move_sampler

_OWNER = "DistributedBatchSampler"


class DistributedBatchSampler(Sampler[list[int]]):
    """The part of one process in the batches of a sampler.

    All processes have the sampler that one process would have, with the same seed; each takes its part of every batch.
    So the batches of all processes together are those of one, and a run can be resumed with more or fewer processes.

    By default rows are assigned in turn by their position in the batch. With `owners` each row goes to its owner, so
    that a process needs only its own rows of the data; parts may then have any size, also 0, which torch's
    `DataLoader` does not accept.

    Args:
        sampler: any batch sampler of row numbers, the same in all processes, such as `PosNegSampler` or `GroupSampler`.
            It must not be split over processes itself.
        rank: number of this process, in [0, world_size).
        world_size: number of processes.
        owners: for each row the number of the process it goes to, shape `(n,)`; None to assign in turn.
            `torch.arange(n) % world_size` for shards of rows, `groups % world_size` for shards of groups.

    Example:
        >>> from moreauc.samplers import PosNegSampler
        >>> labels = [0, 0, 1, 0, 1, 0, 0, 0]
        >>> whole, same, again = (PosNegSampler(labels, num_positives=1, num_negatives=3) for _ in range(3))
        >>> [whole.batch(0, step).tolist() for step in range(2)]
        [[2, 7, 3, 1], [4, 0, 5, 6]]
        >>> list(DistributedBatchSampler(whole, rank=0, world_size=2))
        [[2, 3], [4, 5]]
        >>> list(DistributedBatchSampler(same, rank=1, world_size=2))
        [[7, 1], [0, 6]]
        >>> list(DistributedBatchSampler(again, rank=0, world_size=2, owners=[0, 0, 0, 0, 0, 0, 0, 1]))
        [[2, 3, 1], [4, 0, 5, 6]]
    """

    def __init__(
        self, sampler: Any, *, rank: int, world_size: int, owners: Tensor | Sequence[int] | NDArray[Any] | None = None
    ) -> None:
        check_sampler(_OWNER, sampler)
        if getattr(sampler, "world_size", 1) != 1:
            raise ValueError(f"{_OWNER}: sampler must be that of one process, got world_size {sampler.world_size}")
        self.sampler = sampler
        self.world_size = check_count(_OWNER, "world_size", world_size)
        self.rank = check_count(_OWNER, "rank", rank, minimum=0)
        if self.rank >= self.world_size:
            raise ValueError(f"{_OWNER}: rank must lie in [0, {self.world_size}), got {rank}")
        self._owners = None if owners is None else _check_owners(owners, self.world_size)

    @property
    def epoch(self) -> int:
        """The epoch that iterating gives."""
        return int(getattr(self.sampler, "epoch", 0))

    @property
    def start(self) -> int:
        """The step of that epoch at which iterating begins."""
        return int(getattr(self.sampler, "start", 0))

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[int]]:
        batches = iter(self.sampler)  # now: the position may change before the first batch
        return (self._part(batch) for batch in batches)

    def batch(self, epoch: int, step: int) -> Tensor:
        """Return the rows of one batch that belong to this process, as a vector; the position does not change."""
        return torch.tensor(self._part(self.sampler.batch(epoch, step).tolist()), dtype=torch.int64)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, where the sampler inside has epochs."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def set_position(self, epoch: int, step: int) -> None:
        """Go to a step of an epoch."""
        move_sampler(_OWNER, self.sampler, epoch, step)

    def state_dict(self) -> dict[str, int]:
        """Return the state of the sampler inside: the same in all processes, and for any number of them."""
        state: dict[str, int] = self.sampler.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to the position of a state, taken with any number of processes or from the sampler inside."""
        self.sampler.load_state_dict(state)

    def _part(self, batch: Any) -> list[int]:
        if self._owners is None:
            return list(batch[self.rank :: self.world_size])
        batch = batch.tolist() if isinstance(batch, Tensor) else batch
        rows = np.asarray([getattr(row, "bag", row) for row in batch])  # bags may come with epoch and step
        if len(rows) and (rows.ndim != 1 or rows.dtype.kind not in "iu"):
            raise ValueError(f"{_OWNER}: sampler must give row numbers where owners are given, got {batch[0]!r}")
        rows = rows.astype(np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self._owners):
            bad = rows.min() if rows.min() < 0 else rows.max()
            raise ValueError(f"{_OWNER}: owners must name one for each row, {len(self._owners)} of them, got row {bad}")
        return [row for row, owner in zip(batch, self._owners[rows], strict=True) if owner == self.rank]

    def __repr__(self) -> str:
        how = "in turn" if self._owners is None else "by owners"
        return f"{_OWNER}({self.sampler!r}, rank={self.rank}, world_size={self.world_size}, {how})"


def _check_owners(owners: Tensor | Sequence[int] | NDArray[Any], world_size: int) -> NDArray[np.int64]:
    found = owners.numpy(force=True) if isinstance(owners, Tensor) else np.asarray(owners)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ValueError(f"{_OWNER}: owners must be a vector of integers, got {found.dtype} of shape {found.shape}")
    strange = found[(found < 0) | (found >= world_size)]
    if len(strange):
        raise ValueError(f"{_OWNER}: owners must lie in [0, {world_size}), got {strange[0]}")
    return found.astype(np.int64)
