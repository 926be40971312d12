"""Batches of fixed composition: exact, fair, a pure function of seed, epoch and step."""

from __future__ import annotations

import copy
import random
from collections import Counter
from math import ceil

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from moreauc import TPAUCLoss, distributed
from moreauc.data import BagBatches, IndexedDataset, ListBags, TensorBatches
from moreauc.samplers import DistributedBatchSampler, PosNegSampler
from moreauc.train import fit, predict_scores


def make_labels(positives: int, negatives: int, seed: int = 0) -> torch.Tensor:
    labels = [1] * positives + [0] * negatives
    random.Random(seed).shuffle(labels)
    return torch.tensor(labels)


def random_cases(count: int) -> list[tuple[int, int, int, int, int]]:
    draw = random.Random(1)
    cases = []
    while len(cases) < count:
        world_size = draw.choice([1, 1, 2, 3])
        positives, negatives = draw.randint(world_size, 12), draw.randint(world_size, draw.choice([12, 150]))
        cases.append((positives, negatives, draw.randint(1, 14), draw.randint(1, 40), world_size))
    return cases


# By hand: both classes take equally long; all rows at each step; all but one; exactly half, one less and one more;
# a batch that ends with a pass; one row; many passes over few rows.
CASES = [
    (6, 6, 3, 3, 1),
    (4, 9, 9, 9, 1),
    (7, 31, 6, 30, 1),
    (12, 100, 6, 49, 1),
    (12, 100, 5, 50, 1),
    (12, 100, 7, 51, 1),
    (5, 40, 5, 8, 1),
    (1, 1, 1, 1, 1),
    (3, 200, 1, 2, 1),
    (5, 7, 2, 3, 5),
    *random_cases(120),
]
cases = pytest.mark.parametrize("case", CASES, ids=str)


def make(case: tuple[int, int, int, int, int], rank: int = 0, **kwargs) -> tuple[torch.Tensor, PosNegSampler]:
    positives, negatives, num_positives, num_negatives, world_size = case
    labels = make_labels(positives, negatives)
    sizes = {"num_positives": num_positives, "num_negatives": num_negatives}
    return labels, PosNegSampler(labels, **sizes, rank=rank, world_size=world_size, **kwargs)


@cases
def test_batches_are_exact_and_rows_come_equally_often(case):
    """In every shard: each batch has its numbers, and counts differ by at most 1 in an epoch and over all epochs."""
    positives, negatives, num_positives, num_negatives, world_size = case
    steps = max(
        ceil(ceil(n / world_size) / min(size, n // world_size))
        for n, size in ((positives, num_positives), (negatives, num_negatives))
    )
    seen: Counter[int] = Counter()
    for rank in range(world_size):
        labels, sampler = make(case, rank)
        assert sampler.num_positives == min(num_positives, positives // world_size)
        assert sampler.num_negatives == min(num_negatives, negatives // world_size)
        expected = [1] * sampler.num_positives + [0] * sampler.num_negatives
        shards = [set((labels == value).nonzero().squeeze(1)[rank::world_size].tolist()) for value in (0, 1)]
        seen.update(shards[0] | shards[1])
        total: Counter[int] = Counter()
        for epoch in range(12 if rank == 0 else 2):
            sampler.set_epoch(epoch)
            batches = list(sampler)
            assert len(batches) == len(sampler) == steps
            for batch in batches:
                assert labels[batch].tolist() == expected and len(set(batch)) == len(batch)
            counts = Counter(row for batch in batches for row in batch)
            assert set(counts) == shards[0] | shards[1]  # each at least once
            total += counts
            for shard in shards:
                for found in (counts, total):
                    assert max(found[row] for row in shard) - min(found[row] for row in shard) <= 1
    assert seen == Counter(range(positives + negatives))  # shards are disjoint and whole


def test_each_row_is_as_likely_as_any_other_at_each_step():
    """Over seeds: batches of two out of seven cut every pass, so that repaired places are among those counted."""
    seeds, labels = 1500, make_labels(1, 7)
    counts = torch.zeros(4, 8)
    for seed in range(seeds):
        plan = PosNegSampler(labels, num_positives=1, num_negatives=2, seed=seed).remaining()[:, 1:]
        counts[torch.arange(4).unsqueeze(1), plan] += 1
    share = counts[:, labels == 0] / seeds
    assert (share - 2 / 7).abs().max() < 5 * (2 / 7 * 5 / 7 / seeds) ** 0.5


# Classes whose batches do not divide them: few rows come once more in an epoch; more than half of them do; batches of
# more than half of the rows.
@pytest.mark.parametrize("sizes", [(20, 60, 8, 24), (15, 44, 4, 9), (14, 50, 9, 18)])
def test_rows_meet_equally_often_within_one_seed(sizes):
    """Counts of pairs in a batch, and of rows at a step, lie around their mean as independent draws would at most."""
    positives, negatives, num_positives, num_negatives = sizes
    labels = [1] * positives + [0] * negatives
    sampler = PosNegSampler(labels, num_positives=num_positives, num_negatives=num_negatives, seed=2)
    epochs, n = 800, len(labels)
    present = np.zeros((epochs * len(sampler), n), dtype=np.float32)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for step, batch in enumerate(sampler):
            present[epoch * len(sampler) + step, batch] = 1
    met, at_step = present.T @ present, present.reshape(epochs, -1, n).sum(axis=0)
    positive = np.arange(n) < positives
    upper = np.triu(np.ones((n, n), dtype=bool), 1)
    kinds = [
        positive[:, None] & ~positive,
        positive[:, None] & positive & upper,
        upper & ~positive & ~positive[:, None],
    ]
    for counts in [*(met[kind] for kind in kinds), at_step[:, positive], at_step[:, ~positive]]:
        assert np.abs(counts - counts.mean()).max() < 5 * counts.mean() ** 0.5


def test_seeds_epochs_ranks_and_classes_differ():
    case = (40, 40, 10, 10, 2)
    plans = [make(case, rank, seed=seed)[1] for rank in (0, 1) for seed in (0, 1)]
    shuffles = []
    for sampler in plans:
        for epoch in (0, 1):
            sampler.set_epoch(epoch)
            for columns in (slice(0, 10), slice(10, 20)):
                rows = sampler.remaining()[:, columns].flatten()
                shuffles.append(tuple(rows.argsort().tolist()))  # the order alone, whichever rows they are
    assert len(set(shuffles)) == len(shuffles) == 16


def loader(sampler: PosNegSampler, labels: torch.Tensor, workers: int) -> DataLoader:
    inputs = torch.arange(len(labels), dtype=torch.float32).unsqueeze(1)
    return DataLoader(IndexedDataset(TensorDataset(inputs, labels)), batch_sampler=sampler, num_workers=workers)


def read(batches) -> list[list[list[float]]]:
    return [[part.flatten().tolist() for part in batch] for batch in batches]


def test_resuming_with_workers_goes_by_what_the_loop_consumed():
    """Two workers have fetched ahead when the loop stops after three batches."""
    labels, sampler = make((9, 50, 4, 7, 1))
    expected = read(loader(sampler, labels, 0))
    sampler.set_epoch(0)
    consumed = []
    for step, batch in enumerate(loader(sampler, labels, 2), start=1):
        consumed.append(batch)
        sampler.set_position(0, step)
        if step == 3:
            break
    _, resumed = make((9, 50, 4, 7, 1))
    resumed.load_state_dict(sampler.state_dict())
    assert read(consumed) + read(loader(resumed, labels, 2)) == expected


# Epochs that nobody tells


SAME = "PosNegSampler: iterating again without set_epoch gives the same batches again; call set_epoch"


def loaders(sampler: PosNegSampler, labels: torch.Tensor) -> dict[str, object]:
    inputs = torch.arange(len(labels), dtype=torch.float32).unsqueeze(1)
    bags = ListBags(list(inputs.unsqueeze(1)), labels)
    data = IndexedDataset(TensorDataset(inputs, labels))
    workers = {"batch_sampler": sampler, "num_workers": 2}
    return {
        "sampler": sampler,
        "tensors": TensorBatches(inputs, labels, sampler),
        "one by one": TensorBatches(inputs, labels, DistributedBatchSampler(sampler, rank=0, world_size=2)),
        "bags": BagBatches(bags, sampler, instances_per_bag=1),
        "DataLoader": DataLoader(data, batch_sampler=sampler),
        "workers": DataLoader(data, **workers),
        "persistent workers": DataLoader(data, **workers, persistent_workers=True),
    }


@pytest.mark.parametrize("kind", list(loaders(*make((9, 50, 4, 7, 1))[::-1])))
def test_a_second_pass_without_set_epoch_warns_once(kind):
    labels, sampler = make((9, 50, 4, 7, 1))
    batches = loaders(sampler, labels)[kind]
    moves = [lambda: sampler.set_epoch(0), lambda: sampler.load_state_dict(sampler.state_dict())]
    for move in [*moves, lambda: sampler.set_position(1, 3)]:
        move()
        assert len(list(batches)) > 0
    with pytest.warns(UserWarning, match=SAME) as caught:
        list(batches), list(batches)
    assert sum("set_epoch" in str(one.message) for one in caught) == 1
    assert len(list(copy.deepcopy(sampler))) == 5


def test_scores_of_the_same_batches_do_not_warn():
    labels, sampler = make((9, 50, 4, 7, 1))
    model, batches = torch.nn.Linear(1, 1), loaders(sampler, labels)["tensors"]
    scores = [predict(model, batches)[0] for predict in (predict_scores, distributed.predict_scores) for _ in range(2)]
    assert torch.equal(scores[0], scores[1]) and torch.equal(scores[2], scores[3])
    validation = loaders(sampler, labels)["DataLoader"]
    train = TensorBatches(torch.randn(59, 1), labels, make((9, 50, 4, 7, 1))[1])
    criterion = TPAUCLoss(labels, min_tpr=0.5, max_fpr=0.5)
    assert len(fit(model, criterion, train, validation=validation, epochs=3, warm_start_epochs=1).rows) == 4


def test_instances_of_bags_in_batches_without_epochs_warn_too():
    batches = BagBatches(ListBags([torch.zeros(3, 1)] * 2, [0, 1]), [[0, 1]], instances_per_bag=1)
    list(batches)
    batches.set_epoch(1)
    list(batches)
    with pytest.warns(UserWarning, match="BagBatches: iterating again without set_epoch"):
        list(batches)
    all_instances = BagBatches(batches.bags, [[0, 1]], instances_per_bag=None)
    for in_order in (TensorBatches(torch.zeros(3, 1), [0, 1, 0]), all_instances):
        assert len(list(in_order)) == len(list(in_order)) == 1
