"""Every kind of loader comes back to its place in an epoch."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from interruptions import (
    REGION,
    Kill,
    Killed,
    compare_interrupted,
    data,
    network,
    planned,
)
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from moreauc.checkpoint import CheckpointError
from moreauc.criteria import CrossEntropyLoss
from moreauc.data import (
    BagBatches,
    IndexedDataset,
    ListBags,
    TensorBatches,
)
from moreauc.train import fit


class Noisy(Dataset):
    """Draws from all three global generators, in the process that reads it."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        noise = 0.1 * torch.randn(4) + 0.1 * random.random() + 0.1 * float(np.random.rand())
        return self.x[row] + noise, int(self.y[row]), row


class OwnGenerators(Noisy):
    """Draws from generators of its own, of all kinds."""

    def __init__(self, x, y):
        super().__init__(x, y)
        self.first, self.second = torch.Generator().manual_seed(1), np.random.default_rng(2)
        self.third, self.fourth = random.Random(3), np.random.RandomState(4)
        self.fifth = np.random.Generator(np.random.MT19937(5))

    def __getitem__(self, row):
        numbers = [self.second.normal(), self.third.random(), self.fourth.rand(), self.fifth.random()]
        return self.x[row] + torch.randn(4, generator=self.first) + 0.1 * sum(numbers), int(self.y[row]), row


class Stream(IterableDataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        for row in torch.randperm(len(self.x)).tolist():
            yield self.x[row], int(self.y[row]), row


class ListOfBatches:
    """A loader without anything but batches."""

    def __init__(self, x, y):
        self._batches = [(x[rows], y[rows], rows) for rows in torch.arange(len(y)).split(12)]

    def __iter__(self):
        return iter(self._batches)


LOADERS = {
    "tensors, planned": lambda x, y: TensorBatches(x, y, planned(y)),
    "tensors, in order": lambda x, y: TensorBatches(x, y, batch_size=12),
    "tensors, random sampler with a generator": lambda x, y: TensorBatches(
        x, y, BatchSampler(RandomSampler(range(60), generator=torch.Generator().manual_seed(1)), 12, False)
    ),
    "tensors, random sampler without": lambda x, y: TensorBatches(
        x, y, BatchSampler(RandomSampler(range(60)), 12, False)
    ),
    "loader, planned": lambda x, y: DataLoader(Noisy(x, y), batch_sampler=planned(y)),
    "loader, shuffled": lambda x, y: DataLoader(Noisy(x, y), batch_size=12, shuffle=True),
    "loader, shuffled by a generator": lambda x, y: DataLoader(
        Noisy(x, y), batch_size=12, shuffle=True, generator=torch.Generator().manual_seed(8)
    ),
    "loader, generators of the data set": lambda x, y: DataLoader(OwnGenerators(x, y), batch_sampler=planned(y)),
    "workers, planned": lambda x, y: DataLoader(Noisy(x, y), batch_sampler=planned(y), num_workers=2),
    "workers, shuffled": lambda x, y: DataLoader(Noisy(x, y), batch_size=12, shuffle=True, num_workers=1),
    "workers that stay": lambda x, y: DataLoader(
        IndexedDataset(TensorDataset(x, y)), batch_size=12, shuffle=True, num_workers=2, persistent_workers=True
    ),
    "stream": lambda x, y: DataLoader(Stream(x, y), batch_size=12),
    "stream by a worker": lambda x, y: DataLoader(Stream(x, y), batch_size=12, num_workers=1),
    "batches": ListOfBatches,
}


@pytest.mark.parametrize("kind", LOADERS)
def test_every_kind_of_loader_comes_back_to_its_place(kind, tmp_path):
    x, y = data()

    def train(folder, callbacks):
        criterion = CrossEntropyLoss(y)  # takes batches of one class
        options = {"epochs": 4, "lr": 0.05, "milestones": [2], "proximal": 0.1, "every": 1, "seed": None}
        loader = LOADERS[kind](x, y)
        try:
            fit(network(), criterion, loader, callbacks=callbacks, checkpoint=folder, **options)
        finally:
            if getattr(loader, "persistent_workers", False):  # or the garbage collector waits seconds for each
                loader._iterator._shutdown_workers()

    assert compare_interrupted(train, tmp_path, [2, 3, 6]) == []


def test_bags_in_memory_go_to_the_place_at_once(tmp_path):
    x, y = data()
    bags = ListBags([torch.stack([row, row + 1, row - 1, 2 * row]) for row in x], y.tolist())
    read = []

    class Counting(ListBags):
        def instances(self, bag, rows=None):
            read.append(bag)
            return super().instances(bag, rows)

    counting = Counting([bags.instances(bag) for bag in range(60)], y.tolist())

    def train(folder, callbacks):
        from moreauc import MultiInstanceTPAUCLoss

        loader = BagBatches(counting, planned(y), instances_per_bag=2)
        criterion = MultiInstanceTPAUCLoss(y, pooling="mean", gamma=0.1, **REGION)
        fit(network(), criterion, loader, epochs=2, callbacks=callbacks, checkpoint=folder, every=1, seed=1)

    assert compare_interrupted(train, tmp_path, [3]) == []
    # Twice ten steps of twelve bags, and one step between the last save and the kill: none was read to be passed over.
    assert len(read) == 12 * (10 + 10 + 1)


def test_a_sampler_is_left_at_the_beginning_of_an_epoch(tmp_path):
    x, y = data()
    sampler = planned(y)
    for steps in (3, 0):
        try:
            fit(
                network(),
                CrossEntropyLoss(y),
                TensorBatches(x, y, sampler),
                callbacks=[Kill(steps)],
                epochs=1,
                every=1,
                checkpoint=tmp_path,
            )
        except Killed:
            sampler = planned(y)
    assert (sampler.epoch, sampler.start, len(list(sampler))) == (0, 0, 5)


def test_a_shorter_loader_is_refused_when_it_comes_to_the_place(tmp_path):
    x, y = data()
    loader = ListOfBatches(x, y)
    options = {"epochs": 2, "every": 1, "checkpoint": tmp_path, "seed": 1}
    with pytest.raises(Killed):
        fit(network(), CrossEntropyLoss(y), loader, callbacks=[Kill(4)], **options)
    loader._batches = loader._batches[:2]
    with pytest.raises(CheckpointError, match="must give the 3 batches that were used of epoch 0, got 2"):
        fit(network(), CrossEntropyLoss(y), loader, **options)
