"""Batches of some groups with some rows of each, and plain batches in random order.

The groups of all steps of an epoch are planned first, then for each group the rows of its visits.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moreauc._checks import check_count
from moreauc._group_input import Members, check_groups
from moreauc.samplers.base import PLAN, PlannedSampler, Rows, Source, counts_before, plan_class

_log = logging.getLogger(__name__)
_GROUPS, _ROWS, _PLAIN = range(3)  # first number of the keys of random orders


class _UnevenSampler(PlannedSampler[tuple[Tensor, ...]]):
    """A sampler whose batches may differ in size."""

    _equal: bool

    @property
    def remaining(self) -> Callable[[], Tensor]:
        """A function that returns the remaining batches as one tensor, shape `(len(self) - start, rows of a batch)`.

        The attribute is there only where all batches have the same number of
        rows: `hasattr(sampler, "remaining")` tells.
        """
        if not self._equal:
            # loaders check with hasattr, and otherwise take the batches one by one
            raise AttributeError(f"{self._owner}: remaining must not be used where batches differ in size")
        return self._rest

    def _rest(self) -> Tensor:
        rest = self._plan(self.epoch)[self.start :]
        return torch.stack(rest) if rest else torch.empty(0, len(self._plan(self.epoch)[0]), dtype=torch.int64)


class GroupSampler(_UnevenSampler):
    r"""Batch sampler with `samples_per_group` rows of each of `groups_per_batch` groups in every batch.

    For `batch_sampler=` of a `DataLoader` or for :class:`~moreauc.data.TensorBatches`. A batch lists its rows group by
    group; no row is in it twice. All rows of a group are taken if it has no more than `samples_per_group`. All groups
    are drawn equally often, regardless of their size: counts differ by at most 1 inside an epoch, and by at most 1 over
    all epochs. The same holds for the rows of a group. Any two groups, and any two rows of a group, are in the same
    batch equally often in expectation.

    With :math:`n` rows and :math:`N` groups an epoch has
    :math:`\max(\lceil n / (B_1 B_2) \rceil, \lceil N / B_1 \rceil)` steps. It contains every group, but not necessarily
    all rows of large groups.

    Groups may overlap: a row that is drawn for two groups of a batch is in it once, and batches differ in size. It
    belongs to all of its groups, also to those that the batch was not drawn for (:meth:`batch_groups`). Rows of no
    group are never drawn.

    Resuming, `epoch` and `start` are as for :class:`~moreauc.samplers.PosNegSampler`. For several processes use
    :class:`~moreauc.samplers.DistributedBatchSampler`.

    Args:
        groups: of the whole training set, ids in [0, num_groups), shape `(n,)`; or memberships, True or False, shape
            `(n, num_groups)`. A batch holds positions in it.
        groups_per_batch: different groups of a batch, :math:`B_1`, from 1 to the number of groups.
        samples_per_group: rows of each, :math:`B_2`, at least 1.
        num_groups: number of groups; None for one more than the largest id, or the number of columns.
        seed: at least 0.

    Example:
        >>> sampler = GroupSampler([0, 0, 0, 0, 0, 1, 1, 2], groups_per_batch=2, samples_per_group=2)
        >>> list(sampler)
        [[5, 6, 7], [1, 3, 5, 6]]
        >>> sampler.batch_groups(0, 1)
        tensor([0, 1])
        >>> sampler
        GroupSampler(groups_per_batch=2, samples_per_group=2, num_groups=3, seed=0): 2 steps
    """

    _owner = "GroupSampler"

    def __init__(
        self,
        groups: Tensor | Sequence[int] | NDArray[Any],
        *,
        groups_per_batch: int,
        samples_per_group: int,
        num_groups: int | None = None,
        seed: int = 0,
    ) -> None:
        owner = self._owner
        members = check_groups(owner, groups, num_groups)
        self.groups_per_batch = check_count(owner, "groups_per_batch", groups_per_batch)
        self.samples_per_group = check_count(owner, "samples_per_group", samples_per_group)
        self.num_groups = members.num_groups
        seed = check_count(owner, "seed", seed, minimum=0)
        if self.groups_per_batch > self.num_groups:
            raise ValueError(f"{owner}: groups_per_batch must lie in [1, {self.num_groups}], got {groups_per_batch}")
        sizes = members.sizes()
        if not sizes.all():
            empty = int(np.flatnonzero(sizes == 0)[0])
            raise ValueError(f"{owner}: groups must hold at least one row of every group, got none of group {empty}")
        self._rows = members.by_group()
        self._num_rows, self._num_entries = members.num_rows, len(members.rows)
        self._checksum = _checksum(members)
        self._overlap = bool((members.rows[1:] == members.rows[:-1]).any())  # entries come in the order of the rows
        drawn = np.minimum(sizes, self.samples_per_group)
        self._equal = not self._overlap and bool((drawn == drawn[0]).all())
        batch = self.groups_per_batch * self.samples_per_group
        self._begin(seed, max(-(-self._num_rows // batch), -(-self.num_groups // self.groups_per_batch)))
        self._cached_groups: tuple[int, Rows] | None = None
        few = int((sizes < self.samples_per_group).sum())
        if few:
            text = "%s: %d of %d groups have fewer than %d rows, of which all are taken"
            _log.warning(text, owner, few, self.num_groups, self.samples_per_group)

    def batch_groups(self, epoch: int, step: int) -> Tensor:
        """Return the groups that a batch is drawn for, in the order of its rows, shape `(groups_per_batch,)`."""
        number = self._check_step(epoch, step)
        return torch.tensor(self._visits(epoch)[number])

    def settings(self) -> dict[str, int]:
        """Return what the batches depend on."""
        return {
            "plan": PLAN,
            "seed": self.seed,
            "groups_per_batch": self.groups_per_batch,
            "samples_per_group": self.samples_per_group,
            "num_groups": self.num_groups,
            "num_rows": self._num_rows,
            "num_memberships": self._num_entries,
            "checksum_of_groups": self._checksum,
        }

    def _visits(self, epoch: int) -> Rows:
        if self._cached_groups is None or self._cached_groups[0] != epoch:
            source = Source(self.seed, _GROUPS)
            visits = plan_class(self.num_groups, self.groups_per_batch, self._steps, epoch, source)
            self._cached_groups = (epoch, visits)
        return self._cached_groups[1]

    def _make(self, epoch: int) -> tuple[Tensor, ...]:
        visits = self._visits(epoch)
        sizes = (self.num_groups, self.groups_per_batch, self._steps)
        before = counts_before(*sizes, epoch, Source(self.seed, _GROUPS))
        mean = Fraction(self._steps * self.groups_per_batch, self.num_groups)  # visits to a group in an epoch
        counts = np.bincount(visits.reshape(-1), minlength=self.num_groups)
        places = np.split(np.argsort(visits, axis=None, kind="stable"), np.cumsum(counts)[:-1])
        plan = np.full((visits.size, self.samples_per_group), -1)
        for group, (rows, place) in enumerate(zip(self._rows, places, strict=True)):
            size = min(len(rows), self.samples_per_group)
            source = Source(self.seed, _ROWS, group)
            past = (int(before[group]), mean)
            plan[place, :size] = rows[plan_class(len(rows), size, len(place), epoch, source, past)]
        plan = plan.reshape(self._steps, -1)
        keep = plan >= 0
        if self._overlap:
            keep &= _first(plan)
        return torch.split(torch.from_numpy(plan[keep]), keep.sum(axis=1).tolist())

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_cached_groups": None}

    def __repr__(self) -> str:
        sizes = f"groups_per_batch={self.groups_per_batch}, samples_per_group={self.samples_per_group}"
        return f"{self._owner}({sizes}, num_groups={self.num_groups}, seed={self.seed}): {self._steps} steps"


class ShuffledSampler(_UnevenSampler):
    """Batch sampler of shuffled rows, regardless of their labels and groups.

    An epoch is one pass over the rows; the last batch may be smaller. The interface is that of :class:`GroupSampler`.

    Args:
        n: rows of the training set, at least 1.
        batch_size: rows of a batch, at least 1.
        seed: at least 0.

    Example:
        >>> sampler = ShuffledSampler(5, batch_size=2)
        >>> list(sampler)
        [[1, 3], [0, 4], [2]]
        >>> sampler
        ShuffledSampler(5, batch_size=2, seed=0): 3 steps
    """

    _owner = "ShuffledSampler"

    def __init__(self, n: int, *, batch_size: int, seed: int = 0) -> None:
        self.n = check_count(self._owner, "n", n)
        self.batch_size = check_count(self._owner, "batch_size", batch_size)
        seed = check_count(self._owner, "seed", seed, minimum=0)
        self._equal = self.n <= self.batch_size or self.n % self.batch_size == 0
        self._begin(seed, -(-self.n // self.batch_size))

    def settings(self) -> dict[str, int]:
        """Return what the batches depend on."""
        return {"seed": self.seed, "n": self.n, "batch_size": self.batch_size}

    def _make(self, epoch: int) -> tuple[Tensor, ...]:
        order = Source(self.seed, _PLAIN).order(epoch, self.n)
        return torch.split(torch.from_numpy(order), self.batch_size)

    def __repr__(self) -> str:
        return f"{self._owner}({self.n}, batch_size={self.batch_size}, seed={self.seed}): {self._steps} steps"


def _checksum(members: Members) -> int:
    """Return a checksum of the grouping, the same on every machine."""
    first = zlib.crc32(members.rows.astype("<i8").tobytes())
    return zlib.crc32(members.ids.astype("<i8").tobytes(), first)


def _first(plan: Rows) -> NDArray[np.bool_]:
    """Return where a number stands for the first time in its line."""
    order = np.argsort(plan, axis=1, kind="stable")
    ordered = np.take_along_axis(plan, order, axis=1)
    first = np.ones(plan.shape, dtype=bool)
    np.put_along_axis(first, order[:, 1:], ordered[:, 1:] != ordered[:, :-1], axis=1)
    return first
