"""Batches of bags with a few instances of each, seeded and resumable.

A sampler chooses bags; which instances of them are drawn is a pure function of seed, epoch, step and bag, in every
version of NumPy and torch. So any worker process can draw them, and a run resumed in the middle sees the same ones.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from moreauc._checks import check_count
from moreauc.data.bags import Bags, check_bags
from moreauc.samplers.base import Passes, check_sampler, move_sampler

_DENSE = 4  # up to so many times the instances wanted, all of a bag are put in order
_STREAM = 1  # keeps these random numbers apart from those that choose bags by the same seed


class BagInputs(NamedTuple):
    """Inputs of a batch of bags.

    `instances` are those of all bags of the batch, shape `(T, ...)`, and `bag` holds the position in the batch of each
    instance's bag, int64 of shape `(T,)`.
    """

    instances: Tensor
    bag: Tensor


class BagKey(NamedTuple):
    """A bag at a step of an epoch: what its instances are drawn by, together with the seed."""

    bag: int
    epoch: int
    step: int


BagBatch = tuple[BagInputs, Tensor, Tensor]


class BagBatches:
    """Loader of `(BagInputs, labels, index)` batches, with a few instances of each bag.

    Instances of a bag are drawn without replacement (all if it has fewer) and keep their order. `labels` and `index`,
    the numbers of the bags, are int64 vectors of shape `(B,)`.

    Args:
        bags: the bags.
        sampler: iterable over batches of bag numbers, such as a :class:`~moreauc.samplers.PosNegSampler`.
        instances_per_bag: instances of each bag, at least 1; None for all.
        seed: of the choice of instances, at least 0; the bags are chosen by the seed of the sampler.

    Example:
        >>> from moreauc.data import ListBags
        >>> from moreauc.samplers import PosNegSampler
        >>> bags = ListBags([10.0 * i + torch.arange(5.0).unsqueeze(1) for i in range(4)], labels=[0, 1, 0, 0])
        >>> sampler = PosNegSampler(bags.labels, num_positives=1, num_negatives=1)
        >>> train = BagBatches(bags, sampler, instances_per_bag=2)
        >>> for (instances, bag), labels, index in train:
        ...     print(instances.squeeze(1), bag, labels, index)
        tensor([10., 12., 22., 24.]) tensor([0, 0, 1, 1]) tensor([1, 0]) tensor([1, 2])
        tensor([11., 12.,  0.,  4.]) tensor([0, 0, 1, 1]) tensor([1, 0]) tensor([1, 0])
        tensor([11., 12., 30., 31.]) tensor([0, 0, 1, 1]) tensor([1, 0]) tensor([1, 3])
    """

    batch_sampler = None  # Lightning expects it of whatever has a sampler
    checksum_of_inputs: str | None = None  # by which a checkpoint recognises the instances; None where it is not set

    def __init__(
        self, bags: Bags, sampler: Iterable[Sequence[int]], *, instances_per_bag: int | None, seed: int = 0
    ) -> None:
        self._data = SampledBags(bags, instances_per_bag=instances_per_bag, seed=seed)
        self._keys = BagSampler(sampler)
        self.bags, self.labels, self.sampler = bags, bags.labels, sampler
        self.instances_per_bag, self.seed = instances_per_bag, seed
        self._passes = Passes(type(self).__name__)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[BagBatch]:
        keys = iter(self._keys)  # fixed now: the position may change before the first batch
        batches = (self._joined(batch) for batch in keys)
        own = self.instances_per_bag is not None and not hasattr(self.sampler, "epoch")  # else it tracks the pass
        return self._passes.track(batches) if own else batches

    def _joined(self, keys: Sequence[BagKey]) -> BagBatch:
        if keys:
            return collate_bags([self._data[key] for key in keys])
        # the part of a process may be empty; shape and type are those of bag 0
        (instances, bag), labels, index = collate_bags([self._data[BagKey(0, 0, 0)]])
        return BagInputs(instances[:0], bag[:0]), labels[:0], index[:0]

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self._keys.set_epoch(epoch)
        self._passes.moved()

    def set_position(self, epoch: int, step: int) -> None:
        """Go to a step of an epoch."""
        self._keys.set_position(epoch, step)
        self._passes.moved()


class SampledBags(Dataset[tuple[Tensor, int, int]]):
    """Map-style data set of the batches of :class:`BagBatches`, for a `DataLoader` with workers.

    Items are named by a :class:`BagKey`, which a :class:`BagSampler` gives, and are `(instances, label, bag)`. `bags`,
    `instances_per_bag` and `seed` are those of :class:`BagBatches`.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from moreauc.data import ListBags
        >>> from moreauc.samplers import PosNegSampler
        >>> bags = ListBags([torch.zeros(5, 2) for _ in range(4)], labels=[0, 1, 0, 0])
        >>> sampler = BagSampler(PosNegSampler(bags.labels, num_positives=1, num_negatives=1))
        >>> data = SampledBags(bags, instances_per_bag=2)
        >>> loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate_bags)
        >>> [inputs.bag.tolist() for inputs, labels, index in loader]
        [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]]
    """

    def __init__(self, bags: Bags, *, instances_per_bag: int | None, seed: int = 0) -> None:
        owner = type(self).__name__
        if instances_per_bag is not None:
            check_count(owner, "instances_per_bag", instances_per_bag)
        self.bags, self.instances_per_bag = check_bags(owner, bags), instances_per_bag
        self.seed = check_count(owner, "seed", seed, minimum=0)
        self._sizes: list[int] = bags.sizes.tolist()
        self._labels: list[int] = bags.labels.tolist()

    def __len__(self) -> int:
        return len(self.bags)

    def __getitem__(self, key: BagKey) -> tuple[Tensor, int, int]:
        if not isinstance(key, tuple) or len(key) != 3:
            raise ValueError(f"{type(self).__name__}: key must be one that BagSampler gives, got {key!r}")
        bag, number = key[0], self.instances_per_bag
        rows = None
        if number is not None and 0 <= bag < len(self) and number < self._sizes[bag]:
            rows = draw_rows(self._sizes[bag], number, self.seed, BagKey(*key))
        return self.bags.instances(bag, rows), self._labels[bag], bag


class BagSampler(Sampler[list[BagKey]]):
    """Batch sampler of bags: keys with bag, epoch and step, from which :class:`SampledBags` draws the instances.

    `sampler` is an iterable over batches of bag numbers; the position of one that has its own is used.

    Example:
        >>> sampler = BagSampler([[0, 2], [1, 2]])
        >>> sampler.set_epoch(3)
        >>> list(sampler)[1]
        [BagKey(bag=1, epoch=3, step=1), BagKey(bag=2, epoch=3, step=1)]
    """

    def __init__(self, sampler: Iterable[Sequence[int]]) -> None:
        check_sampler(type(self).__name__, sampler)
        self.sampler = sampler
        self._epoch = 0

    def __repr__(self) -> str:
        name = repr(self.sampler)
        return f"{type(self).__name__}({type(self.sampler).__name__ if ' at 0x' in name else name[:100]})"

    @property
    def epoch(self) -> int:
        """The epoch that iterating gives."""
        return int(getattr(self.sampler, "epoch", self._epoch))

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]  # an error of Python's own where it has no length

    def __iter__(self) -> Iterator[list[BagKey]]:
        epoch, start = self.epoch, int(getattr(self.sampler, "start", 0))
        batches = enumerate(iter(self.sampler), start)
        return ([BagKey(operator.index(bag), epoch, step) for bag in batch] for step, batch in batches)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; the sampler too, if it has epochs."""
        number = check_count(type(self).__name__, "epoch", epoch, minimum=0)
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(number)
        self._epoch = number

    def set_position(self, epoch: int, step: int) -> None:
        """Go to a step of an epoch."""
        owner = type(self).__name__
        number = check_count(owner, "epoch", epoch, minimum=0)
        move_sampler(owner, self.sampler, number, step)
        self._epoch = number


def collate_bags(items: Sequence[tuple[Tensor, int, int]]) -> BagBatch:
    """Return the batch of some bags: all instances in one tensor, with the bag of each.

    `items` are, for each bag, a tensor of its instances, 0 or 1, and its number.

    Example:
        >>> inputs, labels, index = collate_bags([(torch.zeros(2, 3), 1, 7), (torch.zeros(1, 3), 0, 4)])
        >>> inputs.instances.shape, inputs.bag, labels, index
        (torch.Size([3, 3]), tensor([0, 0, 1]), tensor([1, 0]), tensor([7, 4]))
    """
    instances, labels, index = zip(*items, strict=True)
    bag = torch.repeat_interleave(torch.tensor([len(part) for part in instances]))
    return BagInputs(torch.cat(instances), bag), torch.tensor(labels), torch.tensor(index)


def draw_rows(size: int, number: int, seed: int, key: BagKey) -> Tensor:
    """Return `number` of `size` rows in increasing order, all choices equally likely; memory grows with `number` only.

    Raw bits only: NumPy promises these streams for all versions, but not those of its choices and shuffles.
    """
    stream = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(_STREAM, key.epoch, key.step, key.bag)))
    if size <= _DENSE * number:
        rows: NDArray[np.int64] = stream.random_raw(size).argsort(kind="stable")[:number]
        return torch.from_numpy(np.sort(rows))
    # The first different ones of a sequence of rows that are all equally likely; `fair` is a multiple of `size`.
    chosen: set[int] = set()
    fair = 2**64 - 2**64 % size
    while len(chosen) < number:
        for bits in stream.random_raw(number).tolist():
            if bits < fair and len(chosen) < number:
                chosen.add(bits % size)
    return torch.tensor(sorted(chosen))
