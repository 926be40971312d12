"""What all batch samplers have in common: a pure function of seed, epoch and step, with a position."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from moreauc.data import IndexedDataset, TensorBatches
from moreauc.samplers import DistributedBatchSampler, GroupSampler, PosNegSampler, ShuffledSampler
from moreauc.samplers.base import latest_draw


def shuffled(values: list[int]) -> list[int]:
    random.Random(0).shuffle(values)
    return values


def make_ids(sizes: list[int]) -> list[int]:
    return shuffled([group for group, size in enumerate(sizes) for _ in range(size)])


def group_sampler(**kwargs) -> GroupSampler:
    return GroupSampler(make_ids([30, 12, 6, 5, 9]), groups_per_batch=2, samples_per_group=4, **kwargs)


def ragged_sampler(**kwargs) -> GroupSampler:
    return GroupSampler(make_ids([30, 12, 6, 1, 3, 9]), groups_per_batch=2, samples_per_group=4, **kwargs)


def shuffled_sampler(**kwargs) -> ShuffledSampler:
    return ShuffledSampler(61, batch_size=8, **kwargs)


def even_sampler(**kwargs) -> ShuffledSampler:
    return ShuffledSampler(64, batch_size=8, **kwargs)


def pos_neg_sampler(**kwargs) -> PosNegSampler:
    return PosNegSampler(make_ids([53, 9]), num_positives=4, num_negatives=7, **kwargs)


def sharded_sampler(**kwargs) -> PosNegSampler:
    return PosNegSampler(make_ids([45, 17]), num_positives=4, num_negatives=3, rank=1, world_size=2, **kwargs)


EQUAL = [pos_neg_sampler, sharded_sampler, group_sampler, even_sampler]  # as many rows in all batches
every = pytest.mark.parametrize("build", [*EQUAL, ragged_sampler, shuffled_sampler])


@every
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


def written_out() -> list[list[int]]:
    groups = GroupSampler([0, 1, 2, 3, 0, 1, 2, 3, 0, 0], groups_per_batch=2, samples_per_group=2, seed=7)
    rows = PosNegSampler([1, 0, 0, 1, 0, 0, 1, 0], num_positives=2, num_negatives=2, seed=7)
    samplers = (groups, ShuffledSampler(7, batch_size=4, seed=7), rows)
    return [one.batch(epoch, step).tolist() for one in samplers for epoch in (5, 0) for step in range(len(one))]


def test_batches_are_the_same_in_another_process_and_for_all_versions():
    """The numbers are written out: a change of them would break resuming a run with a newer version."""
    code = "import json, numpy, torch; numpy.random.seed(5); torch.manual_seed(5); import test_samplers as t"
    code += "; print(json.dumps(t.written_out()))"
    folder = Path(__file__).parent
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    expected = written_out()
    assert json.loads(result.stdout) == expected
    assert expected[:6] == [[2, 6, 1, 5], [3, 7, 8, 4], [3, 7, 2, 6], [2, 6, 9, 8], [1, 5, 3, 7], [3, 7, 1, 5]]
    assert expected[6:10] == [[6, 4, 2, 3], [1, 0, 5], [0, 2, 1, 4], [5, 6, 3]]
    uneven = GroupSampler([0, 0, 0, 0, 1, 2], groups_per_batch=2, samples_per_group=2)  # two epochs are one round
    assert list(uneven) == [[4, 5], [1, 3, 4]]
    assert expected[10:] == [[0, 3, 1, 4], [0, 6, 2, 7], [3, 6, 7, 5], [3, 6, 4, 5], [0, 3, 7, 2], [0, 6, 1, 4]]


@every
def test_the_latest_draw_is_that_of_the_pass_begun_last(build):
    first, second = build(seed=1), build(seed=2)
    first.set_position(4, 1)
    batches = iter(first)
    list(second)
    assert latest_draw() == second.draw()
    next(batches)
    assert latest_draw() == {"sampler": type(first).__name__, "epoch": 4, "step": 1, **first.draw()}


@every
def test_global_random_states_are_neither_read_nor_changed(build):
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    first = list(build())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all() and random.getstate() == before[2]
    torch.manual_seed(99), np.random.seed(99), random.seed(99)
    assert list(build()) == first


@every
def test_seeds_and_epochs_differ(build):
    plans = set()
    for seed in range(3):
        sampler = build(seed=seed)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            plans.add(json.dumps(list(sampler)))
    assert len(plans) == 9


@every
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


@pytest.mark.parametrize("build", EQUAL)
def test_what_remains_is_one_tensor_where_batches_are_equally_long(build):
    sampler = build()
    for step in (0, 3, 8):
        sampler.set_position(1, step)
        found = sampler.remaining()
        assert found.shape == (8 - step, len(sampler.batch(1, 0))) and found.dtype == torch.int64
        assert found.tolist() == list(sampler)
    sampler.set_epoch(1)
    expected = list(sampler)
    sampler.remaining().zero_()
    sampler.batch(1, 0).zero_()
    sampler.set_epoch(1)
    assert list(sampler) == expected


@pytest.mark.parametrize("build", [ragged_sampler, shuffled_sampler])
def test_what_remains_is_not_offered_where_batches_differ(build):
    with pytest.raises(AttributeError, match="remaining must not be used where batches differ in size"):
        _ = build().remaining


@every
def test_moving_the_position_does_not_disturb_an_iteration_under_way(build):
    sampler = build()
    expected = list(sampler)
    sampler.set_epoch(0)
    running, found = iter(sampler), []
    for step in range(len(sampler)):
        sampler.set_position(4, step)
        found.append(next(running))
    assert found == expected


@every
@pytest.mark.parametrize("clone", [lambda s: pickle.loads(pickle.dumps(s)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_copies_are_equal_and_pickles_leave_the_plan_out(build, clone):
    sampler = build()
    sampler.set_position(3, 6)
    size = len(pickle.dumps(sampler))
    expected = list(sampler)
    assert len(pickle.dumps(sampler)) == size
    assert list(clone(sampler)) == expected


@every
def test_loaders_take_the_batches(build):
    sampler = build()
    count = sampler.n if isinstance(sampler, ShuffledSampler) else 62
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


@every
@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda s: s.batch(-1, 0), r"epoch must be an integer of at least 0, got -1"),
        (lambda s: s.batch(0, -1), r"step must be an integer of at least 0, got -1"),
        (lambda s: s.batch(0, 8), r"step must lie in \[0, 8\), got 8"),
        (lambda s: s.set_epoch(1.0), r"epoch must be an integer of at least 0, got 1.0"),
        (lambda s: s.set_position(0, 9), r"step must lie in \[0, 8\], got 9"),
        (lambda s: s.set_position(-1, 0), r"epoch must be an integer of at least 0, got -1"),
        (lambda s: s.set_position(0, -1), r"step must be an integer of at least 0, got -1"),
        (lambda s: s.load_state_dict(None), "state must be a dictionary, got None"),
        (lambda s: s.load_state_dict(s.state_dict() | {"step": 9}), r"step must lie in \[0, 8\], got 9"),
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


OF_GROUPS = ("groups_per_batch", "samples_per_group", "num_groups", "num_rows", "num_memberships", "checksum_of_groups")


@pytest.mark.parametrize(
    ("build", "name"),
    [
        *((group_sampler, name) for name in OF_GROUPS),
        *((pos_neg_sampler, name) for name in ("all_negatives", "plan", "checksum_of_labels")),
    ],
)
def test_states_of_other_rows_are_refused(build, name):
    sampler = build()
    with pytest.raises(ValueError, match=f"state must have {name} .* as this sampler, got 77"):
        sampler.load_state_dict(sampler.state_dict() | {name: 77})


def test_groups_of_a_step_that_is_none_are_refused():
    with pytest.raises(ValueError, match="GroupSampler: step"):
        group_sampler().batch_groups(0, 8)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (ragged_sampler, "GroupSampler: 2 of 6 groups have fewer than 4 rows, of which all are taken"),
        (
            lambda: PosNegSampler(make_ids([50, 3]), num_positives=4, num_negatives=7),
            "PosNegSampler: 3 positives in a batch, not 4: there are no more",
        ),
    ],
)
def test_fewer_rows_than_asked_are_logged_once(build, message, caplog):
    with caplog.at_level(logging.INFO):
        list(group_sampler())
        list(build())
    assert [record.getMessage() for record in caplog.records] == [message]


SIZES = {"groups_per_batch": 1, "samples_per_group": 2}
# arguments that a sampler takes, and for each some values that it does not
ARGUMENTS = [
    (
        PosNegSampler,
        {"labels": [0, 0, 0, 1, 1], "num_positives": 2, "num_negatives": 3},
        {
            "labels": [[0, 1, 2], [0, 0, 0], [1, 1, 1], [[0], [1]]],
            **{"num_positives": [0], "num_negatives": [1.5], "seed": [-1], "world_size": [0, 3], "rank": [-1, 1]},
        },
    ),
    (
        GroupSampler,
        {"groups": [0, 1], **SIZES},
        {
            "groups": [
                *([0, 1, 2, 4], [[True, False], [True, False]], [0, 1, -2], [-1, -2], [0.0, 1.0], [True, False]),
                *(["a", "b"], [[0, 2], [1, 0]], [["a", "b"]], [], 3),
            ],
            **{"groups_per_batch": [3, 0], "samples_per_group": [1.5], "seed": [-1]},
        },
    ),
    (GroupSampler, {"groups": [0, 1, 2], "num_groups": 3, **SIZES}, {"groups": [[0, 1], [0, 1, 5], [0, 1, -1]]}),
    (GroupSampler, {"groups": [0, 1, 2], "num_groups": 3, **SIZES}, {"groups": [[[0, 1], [1, 0]]], "num_groups": [0]}),
    (ShuffledSampler, {"n": 5, "batch_size": 2}, {"n": [0], "batch_size": [True], "seed": [0.5]}),
    (
        DistributedBatchSampler,
        {"sampler": [[0]], "rank": 0, "world_size": 2},
        {
            "sampler": [3, PosNegSampler([0, 0, 1, 1], num_positives=1, num_negatives=1, world_size=2)],
            **{"world_size": [0], "rank": [2, -1], "owners": [[0, 2], [0.0, 1.0], [[0]]]},
        },
    ),
]


@pytest.mark.parametrize(
    ("kind", "options", "name", "value"),
    [
        pytest.param(kind, options, name, value, id=f"{kind.__name__}-{name}-{number}")
        for kind, options, wrong in ARGUMENTS
        for name, values in wrong.items()
        for number, value in enumerate(values)
    ],
)
def test_wrong_arguments_are_named(kind, options, name, value):
    kind(**options)
    with pytest.raises(ValueError, match=rf"^{kind.__name__}: {name}"):
        kind(**{**options, name: value})
