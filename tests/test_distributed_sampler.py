"""Batches of one process, split over several."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from moreauc.data import BagBatches, BagSampler, ListBags, TensorBatches
from moreauc.samplers import DistributedBatchSampler, GroupSampler, PosNegSampler, ShuffledSampler

LABELS = [0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0]
GROUPS = torch.arange(13) % 4


def whole(kind="rows"):
    if kind == "groups":
        return GroupSampler(GROUPS, groups_per_batch=3, samples_per_group=2, seed=3)
    if kind == "plain":
        return ShuffledSampler(13, batch_size=5, seed=3)
    return PosNegSampler(LABELS, num_positives=3, num_negatives=4, seed=3)


def dealt(world_size, kind="rows", **options):
    return [
        DistributedBatchSampler(whole(kind), rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]


@pytest.mark.parametrize("kind", ["rows", "groups", "plain"])
@pytest.mark.parametrize("world_size", [1, 3, 9])
@pytest.mark.parametrize(
    "make_owners", [None, lambda n: torch.arange(13) % n, lambda n: np.minimum(GROUPS.numpy(), n - 1)]
)
def test_the_parts_are_the_whole(kind, world_size, make_owners):
    owners = None if make_owners is None else make_owners(world_size)
    sampler, parts = whole(kind), dealt(world_size, kind, owners=owners)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for part in parts:
            part.set_epoch(epoch)
            assert len(part) == len(sampler) and part.epoch == epoch and part.start == 0
        for batch, *own in zip(sampler, *parts, strict=True):
            assert sorted(batch) == sorted(row for rows in own for row in rows)
            if owners is None:
                assert max(map(len, own)) - min(map(len, own)) <= 1
            else:
                assert all(owners[row] == rank for rank, rows in enumerate(own) for row in rows)


def test_positives_are_dealt_evenly():
    for own in zip(*dealt(2), strict=True):
        assert sorted(sum(LABELS[row] for row in rows) for rows in own) == [1, 2]


def test_the_position_is_that_of_one_process_for_any_number_of_them():
    part = dealt(3)[1]
    part.set_position(2, 1)
    state = part.state_dict()
    other = dealt(2)[1]
    other.load_state_dict(state)
    assert (other.epoch, other.start) == (2, 1)
    alone = whole()
    alone.load_state_dict(state)
    assert list(other) == [batch[1::2] for batch in alone]
    assert other.batch(2, 1).tolist() == alone.batch(2, 1).tolist()[1::2]
    assert not hasattr(other, "remaining")  # parts need not be equally long


def test_loaders_take_empty_parts():
    owners = [0] * 13
    inputs = torch.randn(13, 2)
    for sampler, size in zip(dealt(2, owners=owners), (7, 0), strict=True):
        for x, labels, index in TensorBatches(inputs, LABELS, sampler):
            assert x.shape == (size, 2) and len(labels) == len(index) == size
        sampler.set_epoch(1)
        bags = ListBags([torch.randn(3, 2) for _ in range(13)], LABELS)
        for (instances, bag), labels, index in BagBatches(bags, sampler, instances_per_bag=2):
            assert instances.shape == (2 * size, 2) and len(bag) == 2 * size
            assert len(labels) == len(index) == size and index.dtype == bag.dtype == torch.int64


def test_samplers_without_epochs():
    sampler = DistributedBatchSampler([[0, 1, 2], [3]], rank=1, world_size=2)
    sampler.set_epoch(4)
    assert (sampler.epoch, sampler.start, len(sampler)) == (0, 0, 2)
    assert list(sampler) == [[1], []]
    with pytest.raises(ValueError, match="DistributedBatchSampler: sampler must have set_position, got list without"):
        sampler.set_position(0, 1)


@pytest.mark.parametrize(("row", "others"), [(-1, [1]), (2, [1]), ((0, 1), [])])
def test_rows_without_an_owner(row, others):
    with pytest.raises(ValueError, match=rf"DistributedBatchSampler: .*owners.*{re.escape(str(row))}"):
        list(DistributedBatchSampler([[row, *others]], rank=0, world_size=2, owners=[0, 1]))


def test_bags_keep_epoch_and_step_when_they_go_to_owners():
    owners = torch.arange(13) % 2
    sampler = BagSampler(whole())
    sampler.set_epoch(2)
    batches = list(sampler)
    for rank in range(2):
        sampler.set_epoch(2)
        part = list(DistributedBatchSampler(sampler, rank=rank, world_size=2, owners=owners))
        assert part == [[key for key in batch if key.bag % 2 == rank] for batch in batches]
        assert {key.epoch for batch in part for key in batch} == {2}
        assert list(DistributedBatchSampler([torch.arange(4)], rank=rank, world_size=2, owners=owners)) == [
            [rank, rank + 2]
        ]
