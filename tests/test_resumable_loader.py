"""A loader whose position is saved and restored."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from moreauc.contrib import ResumableLoader
from moreauc.data import BagBatches, BagSampler, IndexedDataset, ListBags, SampledBags, TensorBatches, collate_bags
from moreauc.samplers import DistributedBatchSampler, GroupSampler, PosNegSampler, ShuffledSampler

Y = (torch.arange(24) % 3 == 0).long()
X = torch.arange(24.0).unsqueeze(1)
BAGS = ListBags([X[i : i + 3] for i in range(21)], labels=Y[:21])


def tensors():
    return TensorBatches(X, Y, PosNegSampler(Y, num_positives=2, num_negatives=4))


def by_loader(**options):
    sampler = GroupSampler(Y, groups_per_batch=2, samples_per_group=3)
    return DataLoader(IndexedDataset(TensorDataset(X, Y)), batch_sampler=sampler, **options)


def bags():
    return BagBatches(BAGS, PosNegSampler(BAGS.labels, num_positives=2, num_negatives=4), instances_per_bag=2)


def bags_by_loader():
    sampler = BagSampler(PosNegSampler(BAGS.labels, num_positives=2, num_negatives=4))
    return DataLoader(SampledBags(BAGS, instances_per_bag=2), batch_sampler=sampler, collate_fn=collate_bags)


LOADERS = [tensors, by_loader, bags, bags_by_loader]


def as_lists(batches):
    """Return inputs, labels and index of batches as plain numbers."""
    return [
        [part.tolist() for part in ((inputs if isinstance(inputs, tuple) else (inputs,)) + (labels, index))]
        for inputs, labels, index in batches
    ]


def epochs_of(make, count):
    loader, result = make(), []
    for epoch in range(count):
        (getattr(loader, "batch_sampler", None) or loader.sampler).set_epoch(epoch)
        result.append(as_lists(loader))
    return result


@pytest.mark.parametrize("make", LOADERS)
def test_passes_are_the_epochs_of_the_sampler(make):
    expected = epochs_of(make, 3)
    loader = ResumableLoader(make())
    done = [loader.epochs_done]
    for epoch in range(3):
        batches = []
        for batch in loader:
            done.append(loader.epochs_done)
            batches.append(batch)
        assert as_lists(batches) == expected[epoch]
    assert expected[0] != expected[1] and done == [0] + [e + last for e in range(3) for last in (0, 0, 0, 1)]
    assert (loader.epoch, loader.step, len(loader), loader.epochs_done) == (3, 0, len(expected[0]), 3)
    loader.set_epoch(1)
    batches = iter(loader)
    loader.set_epoch(2)  # after the iterator was made
    assert as_lists(batches) == expected[2]


@pytest.mark.parametrize("make", LOADERS)
@pytest.mark.parametrize("step", [0, 1, 3, 4])
@pytest.mark.parametrize("told", [True, False])
def test_a_new_loader_resumes_where_another_stopped(make, step, told):
    expected = epochs_of(make, 3)
    first = ResumableLoader(make())
    list(first)
    batches = iter(first)
    for _ in range(step):
        next(batches)
    assert (first.epoch, first.step) == (1, step)
    second = ResumableLoader(make())
    second.load_state_dict(first.state_dict())
    unused = iter(second)
    if told:  # once, as Lightning tells the epoch it resumes
        second.set_epoch(1)
    rest = expected[1][step:] or expected[2]
    assert as_lists(unused) == rest
    assert as_lists(second) == (expected[2] if step < 4 else epochs_of(make, 4)[3])


def test_an_unfinished_pass_is_resumed_unless_an_epoch_is_set():
    expected = epochs_of(tensors, 2)
    loader = ResumableLoader(tensors())
    next(iter(loader))
    assert as_lists(loader) == expected[0][1:]
    next(iter(loader))
    loader.set_epoch(1)
    assert as_lists(loader) == expected[1]
    loader.load_state_dict({**loader.state_dict(), "epoch": 1, "step": 2})
    loader.set_epoch(0)  # not the epoch of the state
    assert as_lists(loader) == expected[0]
    loader.load_state_dict({**loader.state_dict(), "epoch": 1, "step": 2})
    loader.set_epoch(1)
    loader.set_epoch(1)  # the second time it is a new beginning
    assert as_lists(loader) == expected[1]


def test_it_begins_at_the_position_of_the_sampler_or_another():
    expected = epochs_of(tensors, 6)
    inner = tensors()
    inner.sampler.set_position(5, 2)
    assert as_lists(ResumableLoader(inner)) == expected[5][2:]
    loader = ResumableLoader(tensors())
    loader.set_position(4, 4)
    assert loader.epochs_done == 5
    loader.set_position(4, 3)
    assert as_lists(loader) == expected[4][3:]
    assert as_lists(ResumableLoader(ResumableLoader(tensors()))) == expected[0]
    with pytest.raises(ValueError, match=r"PosNegSampler: step .* got 5"):
        loader.set_position(0, 5)
    assert (loader.epoch, loader.step) == (5, 0)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_the_global_random_state_does_not_move(options):
    before = torch.get_rng_state()
    list(ResumableLoader(by_loader(**options)))
    assert torch.equal(torch.get_rng_state(), before)
    list(by_loader(**options))
    assert not torch.equal(torch.get_rng_state(), before)  # which is why


class Noise(Dataset):
    """Rows with a number of each kind that a worker process draws."""

    def __len__(self):
        return len(Y)

    def __getitem__(self, row):
        return torch.tensor([torch.rand(()), random.random(), np.random.rand()]), Y[row], row


def noise(*, world_size=1, rank=0, seed=0, **options):
    sampler = PosNegSampler(Y, num_positives=2, num_negatives=4, seed=seed)
    dealt = DistributedBatchSampler(sampler, rank=rank, world_size=world_size) if world_size > 1 else sampler
    return ResumableLoader(DataLoader(Noise(), batch_sampler=dealt, num_workers=1), **options)


def drawn(loader):
    return torch.cat([inputs for inputs, _, _ in loader])


def test_workers_draw_other_numbers_in_each_epoch_and_the_same_ones_again():
    loader, before = noise(), torch.get_rng_state()
    epochs = [drawn(loader) for _ in range(2)]
    for kind in range(3):
        assert len({value for epoch in epochs for value in epoch[:, kind].tolist()}) == 2 * 24  # none comes twice
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)  # whatever the rest of the program draws
    again = noise()
    again.set_epoch(1)
    assert torch.equal(drawn(again), epochs[1])
    again.set_position(1, 2)
    rest = drawn(again)  # of the middle of an epoch: new numbers, the same ones each time
    again.set_position(1, 2)
    assert torch.equal(drawn(again), rest) and not set(rest[:, 0].tolist()) & set(epochs[1][:, 0].tolist())


def test_workers_draw_by_the_seed_of_the_sampler_or_another_and_by_process():
    loaders = [noise(), noise(seed=1, world_size=2), noise(seed=1, world_size=2, rank=1)]
    first = [drawn(loader)[0, 0].item() for loader in (*loaders, ResumableLoader(noise(seed=5).loader, seed=1))]
    assert len(set(first[:3])) == 3 and first[3] == first[1]
    with pytest.raises(ValueError, match="ResumableLoader: seed"):
        ResumableLoader(tensors(), seed=-1)


class Bare:
    """A sampler of somebody else's, with a place and no state."""

    def __init__(self):
        self.place = (0, 0)

    def set_position(self, epoch, step):
        self.place = (epoch, step)

    def __iter__(self):
        epoch, step = self.place
        return iter([[epoch, number] for number in range(step, 3)])

    def __len__(self):
        return 3


def test_samplers_of_others():
    def make():
        return ResumableLoader(TensorBatches(X, Y, Bare()))

    loader = make()
    list(loader)
    batches = iter(loader)
    next(batches)
    assert loader.state_dict() == {"epoch": 1, "step": 1}
    other = make()
    other.load_state_dict(loader.state_dict())
    for state, name in ((None, "state"), ([("epoch", 1)], "state"), ({}, "epoch"), ({"epoch": 1, "step": -1}, "step")):
        with pytest.raises(ValueError, match=f"^ResumableLoader: {name}"):
            other.load_state_dict(state)
    assert (other.epoch, other.step) == (1, 1)
    assert [index.tolist() for _, _, index in other] == [[1, 1], [1, 2]]


def test_errors():
    data = SampledBags(BAGS, instances_per_bag=1)
    for loader in (
        3,
        [1, 2],
        TensorBatches(X, Y),
        DataLoader(TensorDataset(X), batch_size=2),
        DataLoader(data, batch_sampler=BagSampler([[0, 1]]), collate_fn=collate_bags),
    ):
        with pytest.raises(ValueError, match=f"ResumableLoader: loader .* got {type(loader).__name__}"):
            ResumableLoader(loader)
    loader = ResumableLoader(TensorBatches(X, Y, ShuffledSampler(24, batch_size=5)))
    other = ResumableLoader(TensorBatches(X, Y, ShuffledSampler(24, batch_size=6)))
    with pytest.raises(ValueError, match="ShuffledSampler: state must have batch_size 6"):
        other.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="ResumableLoader: epoch"):
        loader.set_epoch(-1)
    assert repr(loader).endswith("epoch 0, step 0")
