"""Batches of some groups: exact, fair to rare groups, a pure function of seed, epoch and step."""

from __future__ import annotations

import binascii
import copy
import json
import logging
import pickle
import random
import struct
import subprocess
import sys
from collections import Counter
from math import ceil

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from moreauc.data import IndexedDataset, TensorBatches
from moreauc.samplers import GroupSampler, PlainSampler
from moreauc.samplers.plan import Source, counts_before, plan_class


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
def test_every_batch_has_its_groups_and_rows_and_no_row_twice(case):
    sizes, per_batch, per_group = case
    ids, sampler = make(case)
    assert len(sampler) == max(ceil(sum(sizes) / (per_batch * per_group)), ceil(len(sizes) / per_batch))
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        for step, batch in enumerate(batches):
            chosen = sampler.batch_groups(epoch, step).tolist()
            assert len(chosen) == len(set(chosen)) == per_batch
            assert [ids[row] for row in batch] == [g for g in chosen for _ in range(min(sizes[g], per_group))]
            assert len(set(batch)) == len(batch)


@cases
def test_groups_and_their_rows_come_equally_often_in_an_epoch_and_over_all_epochs(case):
    sizes = case[0]
    ids, sampler = make(case)
    all_rows: Counter[int] = Counter()
    all_groups: Counter[int] = Counter()
    for epoch in range(12):
        sampler.set_epoch(epoch)
        rows = Counter(row for batch in sampler for row in batch)
        groups = Counter(group for step in range(len(sampler)) for group in sampler.batch_groups(epoch, step).tolist())
        assert set(groups) == set(range(len(sizes)))  # every group is in every epoch
        all_rows += rows
        all_groups += groups
        for counts in (groups, all_groups):
            assert max(counts.values()) - min(counts.values()) <= 1
        for group in range(len(sizes)):
            members = [row for row, found in enumerate(ids) if found == group]
            for counts in (rows, all_rows):
                found = [counts[row] for row in members]
                assert max(found) - min(found) <= 1


@cases
def test_counts_of_earlier_epochs_are_known_without_their_plans(case):
    sizes, per_batch, _ = case
    source, steps = Source(5, 1), 7
    counts = np.zeros(len(sizes), dtype=int)
    for epoch in range(9):
        assert np.array_equal(counts_before(len(sizes), per_batch, steps, epoch, source), counts)
        counts += np.bincount(plan_class(len(sizes), per_batch, steps, epoch, source).ravel(), minlength=len(sizes))


def test_where_groups_are_large_an_epoch_draws_as_many_rows_as_there_are():
    sizes = [20, 50, 9, 31]
    _, sampler = make((sizes, 3, 5))
    assert len(sampler) == 8 and sum(map(len, sampler)) >= sum(sizes) > 7 * 15


def test_each_group_and_row_is_as_likely_as_any_other_at_each_step():
    seeds, ids = 3000, [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
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
    steps = [(epoch, step) for epoch in range(700) for step in range(len(sampler))]
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
    sampler = PlainSampler(n, batch_size=batch_size, seed=4)
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
    seeds = 3000
    counts = torch.zeros(5, 5)
    for seed in range(seeds):
        counts[torch.arange(5), PlainSampler(5, batch_size=5, seed=seed).batch(1, 0)] += 1
    assert (counts / seeds - 0.2).abs().max() < 5 * (0.2 * 0.8 / seeds) ** 0.5


# What both have in common


def group_sampler(**kwargs) -> GroupSampler:
    return GroupSampler(make_ids([30, 12, 6, 5, 9]), groups_per_batch=2, samples_per_group=4, **kwargs)


def ragged_sampler(**kwargs) -> GroupSampler:
    return GroupSampler(make_ids([30, 12, 6, 1, 3, 9]), groups_per_batch=2, samples_per_group=4, **kwargs)


def plain_sampler(**kwargs) -> PlainSampler:
    return PlainSampler(61, batch_size=8, **kwargs)


def even_sampler(**kwargs) -> PlainSampler:
    return PlainSampler(64, batch_size=8, **kwargs)


both = pytest.mark.parametrize("build", [group_sampler, ragged_sampler, plain_sampler, even_sampler])


@both
def test_batches_do_not_depend_on_what_was_asked_before(build):
    sampler, expected = build(seed=3), {}
    for epoch in range(4):
        sampler.set_epoch(epoch)
        expected.update({(epoch, step): batch for step, batch in enumerate(sampler)})
    places = list(expected)
    random.Random(0).shuffle(places)
    other = build(seed=3)
    assert all(other.batch(*place).tolist() == expected[place] for place in places)
    assert (other.epoch, other.start) == (0, 0)


def test_batches_are_the_same_in_another_process_and_for_all_versions():
    """The numbers are written out: a change of them would break resuming a run with a newer version."""
    code = (
        "import json, numpy, torch; from moreauc.samplers import GroupSampler, PlainSampler; numpy.random.seed(5);"
        "s = GroupSampler([0, 1, 2, 3, 0, 1, 2, 3, 0, 0], groups_per_batch=2, samples_per_group=2, seed=7);"
        "p = PlainSampler(7, batch_size=4, seed=7);"
        "print(json.dumps([x.batch(e, i).tolist() for x in (s, p) for e in (5, 0) for i in range(len(x))]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    groups = GroupSampler([0, 1, 2, 3, 0, 1, 2, 3, 0, 0], groups_per_batch=2, samples_per_group=2, seed=7)
    plain = PlainSampler(7, batch_size=4, seed=7)
    expected = [s.batch(epoch, step).tolist() for s in (groups, plain) for epoch in (5, 0) for step in range(len(s))]
    assert json.loads(result.stdout) == expected
    assert expected[:6] == [[2, 6, 1, 5], [3, 7, 8, 4], [3, 7, 2, 6], [2, 6, 9, 8], [1, 5, 3, 7], [3, 7, 1, 5]]
    assert expected[6:] == [[6, 4, 2, 3], [1, 0, 5], [0, 2, 1, 4], [5, 6, 3]]


@both
def test_global_random_states_are_neither_read_nor_changed(build):
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    first = list(build())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all() and random.getstate() == before[2]
    torch.manual_seed(99), np.random.seed(99), random.seed(99)
    assert list(build()) == first


@both
def test_seeds_and_epochs_differ(build):
    plans = set()
    for seed in range(3):
        sampler = build(seed=seed)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            plans.add(json.dumps(list(sampler)))
    assert len(plans) == 9


@both
@pytest.mark.parametrize("step", [0, 1, 5, 8])
def test_resuming_in_the_middle_continues_as_if_uninterrupted(build, step):
    whole, resumed = build(), build()
    whole.set_epoch(2)
    expected = list(whole)
    assert len(expected) == 8
    whole.set_position(2, step)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert (resumed.epoch, resumed.start) == (2, step)
    assert list(resumed) == expected[step:]
    resumed.set_epoch(3)
    whole.set_epoch(3)
    following = list(resumed)
    assert following == list(whole) and len(following) == 8


@pytest.mark.parametrize("build", [group_sampler, even_sampler])
def test_what_remains_is_one_tensor_where_batches_are_equally_long(build):
    sampler = build()
    for step in (0, 3, 8):
        sampler.set_position(1, step)
        found = sampler.remaining()
        assert found.shape == (8 - step, 8) and found.dtype == torch.int64
        assert found.tolist() == list(sampler)
    sampler.set_epoch(1)
    expected = list(sampler)
    sampler.remaining().zero_()
    sampler.batch(1, 0).zero_()
    sampler.set_epoch(1)
    assert list(sampler) == expected


@pytest.mark.parametrize("build", [ragged_sampler, plain_sampler])
def test_what_remains_is_not_offered_where_batches_differ(build):
    with pytest.raises(AttributeError, match="remaining must not be used where batches differ in size"):
        _ = build().remaining


@both
def test_moving_the_position_does_not_disturb_an_iteration_under_way(build):
    sampler = build()
    expected = list(sampler)
    sampler.set_epoch(0)
    running, found = iter(sampler), []
    for step in range(len(sampler)):
        sampler.set_position(4, step)
        found.append(next(running))
    assert found == expected


@both
@pytest.mark.parametrize("clone", [lambda s: pickle.loads(pickle.dumps(s)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_copies_are_equal_and_pickles_leave_the_plan_out(build, clone):
    sampler = build()
    sampler.set_position(3, 6)
    size = len(pickle.dumps(sampler))
    expected = list(sampler)
    assert len(pickle.dumps(sampler)) == size
    assert list(clone(sampler)) == expected


@both
def test_loaders_take_the_batches(build):
    sampler = build()
    count = 62 if isinstance(sampler, GroupSampler) else sampler.n
    x, y = torch.arange(float(count)).unsqueeze(1), torch.arange(count) % 2
    expected = list(sampler)
    sampler.set_epoch(0)
    assert [index.tolist() for _, _, index in TensorBatches(x, y, sampler)] == expected
    data = IndexedDataset(TensorDataset(x, y))
    for workers in (0, 2):
        sampler.set_epoch(0)
        loader = DataLoader(data, batch_sampler=sampler, num_workers=workers)
        assert len(loader) == len(sampler)
        assert [inputs.flatten().long().tolist() for inputs, _, _ in loader] == expected


def test_small_groups_are_logged_once(caplog):
    with caplog.at_level(logging.INFO):
        list(group_sampler())
        list(ragged_sampler())
    assert [record.getMessage() for record in caplog.records] == [
        "GroupSampler: 2 of 6 groups have fewer than 4 rows, of which all are taken"
    ]


def test_many_groups_with_a_large_one():
    ids = np.concatenate([np.zeros(20_000, dtype=np.int32), np.repeat(np.arange(1, 2001, dtype=np.int32), 5)])
    sampler = GroupSampler(ids, groups_per_batch=8, samples_per_group=4, seed=1)
    assert len(sampler) == 938
    plan = sampler.remaining()
    assert plan.shape == (938, 32) and (plan.sort(dim=1).values.diff(dim=1) > 0).all()
    visits = torch.from_numpy(ids).long()[plan].flatten().bincount(minlength=2001) // 4
    assert visits.min() >= 3 and visits.max() <= 4  # 7504 visits to 2001 groups


# Bad input


@pytest.mark.parametrize(
    ("groups", "change", "match"),
    [
        ([0, 1, 2, 4], {}, r"groups must hold at least one row of every group, got none of group 3"),
        ([0, 1], {"num_groups": 3}, r"groups must hold at least one row of every group, got none of group 2"),
        ([[True, False], [True, False]], {}, r"at least one row of every group, got none of group 1"),
        ([0, 1, 5], {"num_groups": 3}, r"groups must lie in \[0, 3\), got 5"),
        ([0, 1, -1], {"num_groups": 3}, r"groups must lie in \[0, 3\), got -1"),
        ([0, 1, -2], {}, r"groups must be at least 0, got -2"),
        ([-1, -2], {}, r"groups must be at least 0, got -2"),
        ([0.0, 1.0], {}, r"groups must hold integers, got dtype float64"),
        ([True, False], {}, r"groups must hold integers, got dtype bool"),
        (["a", "b"], {}, r"groups must hold integers, got dtype <U1"),
        ([[0, 2], [1, 0]], {}, r"groups must hold memberships, 0 or 1, got 2"),
        ([["a", "b"]], {}, r"groups must hold memberships, 0 or 1, got dtype <U1"),
        ([[0, 1], [1, 0]], {"num_groups": 3}, r"groups must have 3 columns, one for each group, got 2"),
        ([], {}, r"groups must have shape \(n,\) or \(n, num_groups\), got \(0,\)"),
        (3, {}, r"groups must have shape \(n,\) or \(n, num_groups\), got \(\)"),
        ([0, 1], {"groups_per_batch": 3}, r"groups_per_batch must lie in \[1, 2\], got 3"),
        ([0, 1], {"groups_per_batch": 0}, r"groups_per_batch must be an integer of at least 1, got 0"),
        ([0, 1], {"samples_per_group": 1.5}, r"samples_per_group must be an integer of at least 1, got 1.5"),
        ([0, 1], {"num_groups": 0}, r"num_groups must be an integer of at least 1, got 0"),
        ([0, 1], {"seed": -1}, r"seed must be an integer of at least 0, got -1"),
    ],
)
def test_bad_arguments(groups, change, match):
    with pytest.raises(ValueError, match=rf"GroupSampler: .*{match}"):
        GroupSampler(groups, **{"groups_per_batch": 1, "samples_per_group": 2} | change)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"n": 0}, r"n must be an integer of at least 1, got 0"),
        ({"batch_size": True}, r"batch_size must be an integer of at least 1, got True"),
        ({"seed": 0.5}, r"seed must be an integer of at least 0, got 0.5"),
    ],
)
def test_bad_arguments_of_plain_batches(change, match):
    with pytest.raises(ValueError, match=f"PlainSampler: {match}"):
        PlainSampler(**{"n": 5, "batch_size": 2} | change)


@both
@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda s: s.batch(-1, 0), r"epoch must be an integer of at least 0, got -1"),
        (lambda s: s.batch(0, 8), r"step must lie in \[0, 8\), got 8"),
        (lambda s: s.set_epoch(1.0), r"epoch must be an integer of at least 0, got 1.0"),
        (lambda s: s.set_position(0, 9), r"step must lie in \[0, 8\], got 9"),
        (lambda s: s.load_state_dict({"epoch": 0}), r"state must have the entry 'step', got \['epoch'\]"),
        (lambda s: s.load_state_dict(s.state_dict() | {"seed": 4}), r"state must have seed 0, as this sampler, got 4"),
    ],
)
def test_bad_positions_leave_the_position_alone(build, call, match):
    sampler = build()
    sampler.set_position(3, 5)
    with pytest.raises(ValueError, match=match):
        call(sampler)
    assert (sampler.epoch, sampler.start) == (3, 5)


@pytest.mark.parametrize(
    "name",
    ["groups_per_batch", "samples_per_group", "num_groups", "num_rows", "num_memberships", "checksum_of_groups"],
)
def test_states_of_other_groups_are_refused(name):
    sampler = group_sampler()
    with pytest.raises(ValueError, match=f"GroupSampler: state must have {name} .* as this sampler, got 77"):
        sampler.load_state_dict(sampler.state_dict() | {name: 77})
    with pytest.raises(ValueError, match=r"GroupSampler: step must lie in \[0, 8\), got 8"):
        sampler.batch_groups(0, 8)


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


def test_repr():
    text = "GroupSampler(groups_per_batch=2, samples_per_group=4, num_groups=5, seed=0): 8 steps"
    assert repr(group_sampler()) == text
    assert repr(plain_sampler(seed=2)) == "PlainSampler(61, batch_size=8, seed=2): 8 steps"
