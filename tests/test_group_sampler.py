"""Batches of some groups: exact, fair to rare groups, a pure function of seed, epoch and step."""

from __future__ import annotations

import binascii
import random
import struct
from collections import Counter
from math import ceil

import numpy as np
import pytest
import torch

from moreauc.samplers import GroupSampler, ShuffledSampler
from moreauc.samplers.base import Source, counts_before, plan_class


def make_ids(sizes: list[int], seed: int = 0) -> list[int]:
    ids = [group for group, size in enumerate(sizes) for _ in range(size)]
    random.Random(seed).shuffle(ids)
    return ids


def random_cases(count: int) -> list[tuple[list[int], int, int]]:
    draw = random.Random(2)
    cases = []
    for _ in range(count):
        sizes = [draw.randint(1, draw.choice([3, 12, 60])) for _ in range(draw.randint(1, 12))]
        cases.append((sizes, draw.randint(1, len(sizes)), draw.randint(1, 14)))
    return cases


# By hand: one group; one row; all groups at each step; all but one; half; every group smaller than asked for; one row
# at a time; a large group beside tiny ones; sizes that the batches divide.
CASES = [
    ([7], 1, 3),
    ([1], 1, 1),
    ([5, 9, 30], 3, 4),
    ([5, 9, 30, 2], 3, 4),
    ([5, 9, 30, 2], 2, 4),
    ([3, 1, 2, 3, 1], 2, 8),
    ([11, 13, 1], 1, 1),
    ([200, 1, 1, 2, 1], 2, 5),
    ([8, 8, 8, 8], 2, 4),
    *random_cases(80),
]
cases = pytest.mark.parametrize("case", CASES, ids=str)


def make(case: tuple[list[int], int, int], **kwargs) -> tuple[list[int], GroupSampler]:
    ids = make_ids(case[0])
    return ids, GroupSampler(ids, groups_per_batch=case[1], samples_per_group=case[2], **kwargs)


@cases
def test_batches_are_exact_and_groups_and_their_rows_come_equally_often(case):
    sizes, per_batch, per_group = case
    ids, sampler = make(case)
    assert len(sampler) == max(ceil(sum(sizes) / (per_batch * per_group)), ceil(len(sizes) / per_batch))
    members = [[row for row, found in enumerate(ids) if found == group] for group in range(len(sizes))]
    all_rows: Counter[int] = Counter()
    all_groups: Counter[int] = Counter()
    for epoch in range(12):
        sampler.set_epoch(epoch)
        rows: Counter[int] = Counter()
        groups: Counter[int] = Counter()
        for step, batch in enumerate(sampler):
            chosen = sampler.batch_groups(epoch, step).tolist()
            assert len(chosen) == len(set(chosen)) == per_batch
            assert [ids[row] for row in batch] == [g for g in chosen for _ in range(min(sizes[g], per_group))]
            assert len(set(batch)) == len(batch)
            rows.update(batch)
            groups.update(chosen)
        assert sum(groups.values()) == per_batch * len(sampler)
        assert set(groups) == set(range(len(sizes)))  # every group is in every epoch
        all_rows += rows
        all_groups += groups
        for counts in (groups, all_groups):
            assert max(counts.values()) - min(counts.values()) <= 1
        for counts in (rows, all_rows):
            assert all(max(counts[row] for row in own) - min(counts[row] for row in own) <= 1 for own in members)


@cases
def test_counts_of_earlier_epochs_are_known_without_their_plans(case):
    sizes, per_batch, _ = case
    source, steps = Source(5, 1), 7
    counts = np.zeros(len(sizes), dtype=int)
    for epoch in range(9):
        assert np.array_equal(counts_before(len(sizes), per_batch, steps, epoch, source), counts)
        counts += np.bincount(plan_class(len(sizes), per_batch, steps, epoch, source).ravel(), minlength=len(sizes))


def test_each_group_and_row_is_as_likely_as_any_other_at_each_step():
    seeds, ids = 800, [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    groups, rows = torch.zeros(3, 5), torch.zeros(3, 3)
    for seed in range(seeds):
        sampler = GroupSampler(ids, groups_per_batch=2, samples_per_group=2, seed=seed)
        for step in range(3):
            groups[step, sampler.batch_groups(0, step)] += 1
            batch = sampler.batch(0, step)
            rows[step, batch[batch < 3]] += 1
    assert (groups / seeds - 2 / 5).abs().max() < 5 * (2 / 5 * 3 / 5 / seeds) ** 0.5
    share = 2 / 5 * 2 / 3
    assert (rows / seeds - share).abs().max() < 5 * (share * (1 - share) / seeds) ** 0.5


# Visits to a group in an epoch: 16 / 5 and 14 / 6, not whole; 10 / 7 with surpluses of 30 and of all rows but 40, whose
# sum over a period is 0; the same number in all epochs.
@pytest.mark.parametrize(
    ("sizes", "per_batch", "per_group"),
    [
        ([20, 21, 23, 7, 30], 2, 7),
        ([12, 31, 30, 9, 17, 8], 2, 8),
        ([100, 30, 30, 30, 30, 30, 30], 5, 30),
        ([20] * 4, 2, 6),
    ],
)
def test_groups_and_their_rows_meet_equally_often_within_one_seed(sizes, per_batch, per_group):
    ids = np.repeat(np.arange(len(sizes)), sizes)
    sampler = GroupSampler(ids, groups_per_batch=per_batch, samples_per_group=per_group, seed=1)
    steps = [(epoch, step) for epoch in range(400) for step in range(len(sampler))]
    rows, groups = (np.zeros((len(steps), count), dtype=np.float32) for count in (len(ids), len(sizes)))
    for line, place in enumerate(steps):
        rows[line, sampler.batch(*place)] = groups[line, sampler.batch_groups(*place)] = 1
    met = rows.T @ rows
    kinds = [(groups.T @ groups)[np.triu_indices(len(sizes), 1)]]
    for first in range(len(sizes)):
        inside = np.triu_indices(sizes[first], 1)
        kinds += [met[ids == first][:, ids == first][inside]]
        kinds += [met[ids == first][:, ids == other].ravel() for other in range(first)]
    for counts in kinds:
        assert np.abs(counts - counts.mean()).max() < 5 * counts.mean() ** 0.5


# Overlapping groups


def overlapping(seed: int, n: int = 40, count: int = 6) -> np.ndarray:
    membership = np.random.default_rng(seed).random((n, count)) < 0.3
    membership[:count] |= np.eye(count, dtype=bool)
    return membership


@pytest.mark.parametrize("seed", range(10))
def test_a_row_of_two_groups_stands_once_and_groups_keep_their_number(seed):
    membership = overlapping(seed)
    sampler = GroupSampler(membership, groups_per_batch=3, samples_per_group=4, seed=seed)
    merged = 0
    for epoch in range(4):
        for step in range(len(sampler)):
            batch, chosen = sampler.batch(epoch, step).tolist(), sampler.batch_groups(epoch, step).tolist()
            assert len(set(batch)) == len(batch)
            drawn = [min(4, int(membership[:, group].sum())) for group in chosen]
            for group, number in zip(chosen, drawn, strict=True):
                assert membership[batch, group].sum() >= number
            assert membership[np.ix_(batch, chosen)].any(axis=1).all()
            assert max(drawn) <= len(batch) <= sum(drawn)
            merged += len(batch) < sum(drawn)
    assert merged and not hasattr(sampler, "remaining")


def test_memberships_without_overlap_are_the_same_as_ids():
    ids = make_ids([5, 9, 30, 8])
    sizes = {"groups_per_batch": 2, "samples_per_group": 4}
    expected = list(GroupSampler(ids, **sizes))
    for membership in (np.eye(4, dtype=bool)[ids], torch.eye(4)[ids], np.eye(4, dtype=int)[ids].tolist()):
        assert list(GroupSampler(membership, **sizes)) == expected


def test_rows_of_no_group_are_never_drawn():
    membership = np.zeros((9, 2), dtype=bool)
    membership[[1, 4, 5], 0] = membership[[2, 7], 1] = True
    sampler = GroupSampler(membership, groups_per_batch=1, samples_per_group=2)
    rows = {row for epoch in range(5) for step in range(len(sampler)) for row in sampler.batch(epoch, step).tolist()}
    assert rows == {1, 2, 4, 5, 7}


# Plain batches


@pytest.mark.parametrize(("n", "batch_size"), [(1, 1), (1, 5), (10, 3), (12, 4), (7, 7), (5, 9), (50, 1)])
def test_plain_batches_are_one_pass_in_an_order_of_their_own(n, batch_size):
    sampler = ShuffledSampler(n, batch_size=batch_size, seed=4)
    assert len(sampler) == ceil(n / batch_size)
    orders = set()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(sampler) - 1)
        rows = [row for batch in batches for row in batch]
        assert sorted(rows) == list(range(n))
        orders.add(tuple(rows))
        assert hasattr(sampler, "remaining") == (len({len(batch) for batch in batches}) == 1)
    assert len(orders) == (3 if n >= 10 else len(orders))


def test_plain_batches_are_random_in_every_place():
    seeds = 1500
    counts = torch.zeros(5, 5)
    for seed in range(seeds):
        counts[torch.arange(5), ShuffledSampler(5, batch_size=5, seed=seed).batch(1, 0)] += 1
    assert (counts / seeds - 0.2).abs().max() < 5 * (0.2 * 0.8 / seeds) ** 0.5


# States


@pytest.mark.parametrize(
    ("groups", "others"),
    [
        ([0, 0, 1, 1], [0, 1, 0, 1]),
        ([0, 0, 1, 1], [1, 1, 0, 0]),
        ([[1, 1], [1, 0], [0, 1]], [[1, 0], [1, 1], [0, 1]]),
        ([[1, 0], [0, 1], [0, 0]], [[1, 0], [0, 0], [0, 1]]),  # the ids of the entries are the same, not their rows
    ],
)
def test_states_of_other_groups_of_the_same_sizes_are_refused(groups, others):
    sizes = {"groups_per_batch": 1, "samples_per_group": 2}
    sampler, other = GroupSampler(groups, **sizes), GroupSampler(others, **sizes)
    sampler.set_position(3, 1)
    other.set_position(7, 0)
    with pytest.raises(ValueError, match=r"GroupSampler: state must have checksum_of_groups \d+, as this .*, got \d+"):
        sampler.load_state_dict(other.state_dict())
    assert (sampler.epoch, sampler.start) == (3, 1)
    sampler.load_state_dict(GroupSampler(np.array(groups, dtype=np.int32), **sizes).state_dict())
    assert (sampler.epoch, sampler.start) == (0, 0)


def test_the_checksum_is_the_same_for_all_kinds_of_input_and_all_versions():
    ids, sizes = [0, 1, 1, 0, 2], {"groups_per_batch": 1, "samples_per_group": 2}
    kinds = (ids, torch.tensor(ids), np.array(ids, dtype=">i4"), np.eye(3, dtype=bool)[ids])
    numbers = {GroupSampler(groups, **sizes).state_dict()["checksum_of_groups"] for groups in kinds}
    packed = struct.pack("<5q5q", *range(5), *ids)
    assert numbers == {binascii.crc32(packed)}
