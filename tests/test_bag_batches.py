"""Batches of bags: drawn fairly, the same through workers and when resumed. Scores of whole bags, whatever the cuts."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from moreauc.core.pooling import SmoothedMaxPooling
from moreauc.data import (
    BagBatches,
    BagEvaluation,
    BagSampler,
    FileBags,
    ListBags,
    SampledBags,
    bag_scores,
    collate_bags,
    instance_outputs,
)
from moreauc.data.bag_batches import BagInputs, BagKey, draw_rows
from moreauc.samplers import PosNegSampler

SIZES = [7, 1, 40, 4, 3, 12, 5, 300]
LABELS = [0, 1, 0, 0, 1, 0, 1, 0]


def make_bags(width: int = 2) -> ListBags:
    """Instances whose first feature names bag and row."""
    draw = np.random.default_rng(1)
    parts = [draw.standard_normal((size, width)).astype(np.float32) for size in SIZES]
    for bag, part in enumerate(parts):
        part[:, 0] = 1000 * bag + np.arange(len(part))
    return ListBags(parts, LABELS)


def make_sampler(seed: int = 3) -> PosNegSampler:
    return PosNegSampler(LABELS, num_positives=2, num_negatives=2, seed=seed)


def same(left, right) -> bool:
    (a, a_labels, a_index), (b, b_labels, b_index) = left, right
    pairs = [(a.instances, b.instances), (a.bag, b.bag), (a_labels, b_labels), (a_index, b_index)]
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in pairs)


def all_same(left, right) -> bool:
    return len(left) == len(right) > 0 and all(map(same, left, right))


@pytest.mark.parametrize("number", [1, 4, 100, None])
def test_batches_hold_the_sampled_bags_and_rows_without_repeats(number):
    bags = make_bags()
    batches = BagBatches(bags, make_sampler(), instances_per_bag=number)
    assert len(batches) == len(make_sampler()) == 3 and batches.labels.tolist() == LABELS
    for epoch in range(3):
        batches.set_epoch(epoch)
        for step, (inputs, labels, index) in enumerate(batches):
            assert isinstance(inputs, BagInputs) and labels.tolist() == [1, 1, 0, 0]
            assert index.tolist() == make_sampler().batch(epoch, step).tolist()
            assert labels.dtype == index.dtype == inputs.bag.dtype == torch.long
            found = inputs.instances[:, 0].long()
            assert torch.equal(found // 1000, index[inputs.bag])
            for place, bag in enumerate(index.tolist()):
                rows = (found[inputs.bag == place] % 1000).tolist()
                assert len(rows) == min(SIZES[bag], number or 1000)
                assert rows == sorted(set(rows))
                assert torch.equal(inputs.instances[inputs.bag == place], bags.instances(bag)[rows])


def test_instances_change_with_seed_epoch_step_and_bag_only():
    key = BagKey(2, 5, 7)
    for size in (20, 10**6):
        rows = draw_rows(size, 6, 0, key).tolist()
        assert draw_rows(size, 6, 0, key).tolist() == rows
        others = [draw_rows(size, 6, 1, key), *(draw_rows(size, 6, 0, key._replace(**{f: 9})) for f in key._fields)]
        assert len({tuple(other.tolist()) for other in others} | {tuple(rows)}) == 5


def test_draws_are_the_ones_they_have_always_been():
    # of this version: a change would change the batches of every seed
    assert draw_rows(12, 4, 0, BagKey(3, 1, 2)).tolist() == [1, 2, 7, 11]
    assert draw_rows(1000, 4, 0, BagKey(3, 1, 2)).tolist() == [161, 425, 494, 878]


@pytest.mark.parametrize("size", [5, 9])  # all put in order; and different ones one after the other
def test_all_choices_are_equally_likely(size):
    number, trials = 2, 9000
    counts = Counter(tuple(draw_rows(size, number, 0, BagKey(0, 0, step)).tolist()) for step in range(trials))
    choices = list(combinations(range(size), number))
    assert set(counts) <= set(choices)
    expected = trials / len(choices)
    statistic = sum((counts[choice] - expected) ** 2 / expected for choice in choices)
    freedom = len(choices) - 1
    assert abs(statistic - freedom) < 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("size", "number"), [(2, 1), (4, 1), (5, 1), (8, 2), (9, 2), (401, 100), (101, 100), (10**12, 50)]
)
def test_draws_have_no_repeats_and_stay_inside(size, number):
    for step in range(20):
        rows = draw_rows(size, number, 0, BagKey(0, 0, step)).tolist()
        assert len(set(rows)) == number and rows == sorted(rows) and rows[0] >= 0 and rows[-1] < size


def test_no_global_random_state_is_touched():
    states = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].copy()
    list(BagBatches(make_bags(), make_sampler(), instances_per_bag=2))
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1]) and (np.random.get_state()[1] == states[2]).all()


def test_a_run_resumed_in_the_middle_sees_the_same_batches():
    whole, resumed = (BagBatches(make_bags(), make_sampler(), instances_per_bag=2) for _ in range(2))
    whole.set_epoch(4)
    expected = list(whole)
    resumed.set_position(4, 1)
    assert all_same(list(resumed), expected[1:])
    whole.set_epoch(4)
    running = iter(whole)
    whole.set_position(2, 2)  # what an iterator gives was fixed when it was made
    assert all_same(list(running), expected)
    whole.sampler.set_position(4, 2)  # the position of the sampler is the one that counts
    assert all_same(list(whole), expected[2:])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_with_workers_gives_the_same_batches(workers, tmp_path):
    memory = make_bags()
    paths = [tmp_path / f"{bag}.npy" for bag in range(len(memory))]
    for bag, path in enumerate(paths):
        np.save(path, memory.instances(bag).numpy())
    bags = FileBags(paths, LABELS)
    direct = BagBatches(memory, make_sampler(), instances_per_bag=4, seed=5)
    sampler = BagSampler(make_sampler())
    data = SampledBags(bags, instances_per_bag=4, seed=5)
    assert len(data) == 8
    loader = DataLoader(
        data, batch_sampler=sampler, collate_fn=collate_bags, num_workers=workers, persistent_workers=workers > 0
    )
    assert len(loader) == len(direct) == 3
    assert all_same(list(loader), list(direct))
    loader.batch_sampler.set_epoch(1)
    direct.set_epoch(1)
    second = list(direct)
    assert all_same(list(loader), second)
    loader.batch_sampler.set_position(1, 2)
    assert all_same(list(loader), second[2:])


def test_batches_of_any_iterable_change_with_the_epoch():
    plain = [[2, 7], [5, 2]]
    batches = BagBatches(make_bags(), plain, instances_per_bag=3)
    assert len(batches) == 2
    first = list(batches)
    assert [index.tolist() for _, _, index in first] == plain
    batches.set_epoch(1)
    second = list(batches)
    assert [index.tolist() for _, _, index in second] == plain and not same(first[0], second[0])
    batches.set_epoch(0)
    assert all_same(list(batches), first)
    tensors = BagBatches(make_bags(), [torch.tensor([2, 7]), np.array([5, 2])], instances_per_bag=3)
    assert all_same(list(tensors), first)
    with pytest.raises(ValueError, match="BagSampler: sampler must have set_position, got list without"):
        batches.set_position(1, 0)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: BagBatches([torch.ones(1, 1)], [[0]], instances_per_bag=1), r"SampledBags: bags must be Bags.*got"),
        (lambda: BagBatches(make_bags(), 3, instances_per_bag=1), r"BagSampler: sampler must be an iterable .*got int"),
        (lambda: BagBatches(make_bags(), [[0]], instances_per_bag=0), r"instances_per_bag must be an integer of at l"),
        (lambda: BagBatches(make_bags(), [[0]], instances_per_bag=1, seed=-1), r"seed must be an integer of at least"),
        (lambda: list(BagBatches(make_bags(), [[0, 8]], instances_per_bag=1)), r"bag must lie in \[0, 8\), got 8"),
        (lambda: BagSampler([[0]]).set_epoch(-1), r"BagSampler: epoch must be an integer of at least 0, got -1"),
        (lambda: BagSampler(make_sampler()).set_position(0, 4), r"step must lie in \[0, 3\], got 4"),
        (lambda: SampledBags(make_bags(), instances_per_bag=1)[3], r"key must be one that BagSampler gives, got 3"),
    ],
)
def test_bad_batches(call, match):
    with pytest.raises(ValueError, match=match):
        call()


class Net(nn.Module):
    """Scores, and attention logits where asked; keeps the sizes of its calls and checks its mode."""

    def __init__(self, columns: int, shape: str = "matrix", scale: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(3, columns)
        self.dropout = nn.Dropout(0.5)
        self.frozen = nn.Dropout(0.5).eval()
        self.shape, self.scale, self.calls = shape, scale, []

    def forward(self, x):
        self.calls.append(len(x))
        assert not torch.is_grad_enabled() and not self.training
        out = self.scale * self.dropout(self.frozen(self.linear(x)))
        return out.squeeze(1) if self.shape == "vector" else out


def by_hand(pooling: str, outputs: np.ndarray, temperature: float) -> float:
    """Pool the outputs of a bag in plain Python, shifted by the maximum."""
    if pooling == "mean":
        return math.fsum(outputs[:, 0]) / len(outputs)
    if pooling == "smoothed_max":
        top = outputs.max()
        mean = math.fsum(math.exp((x - top) / temperature) for x in outputs[:, 0]) / len(outputs)
        return top + temperature * math.log(mean)
    top = outputs[:, 1].max()
    weights = [math.exp(a - top) for a in outputs[:, 1]]
    return math.fsum(w * s for w, s in zip(weights, outputs[:, 0], strict=True)) / math.fsum(weights)


def score_bags(scale: float = 1.0) -> ListBags:
    draw = np.random.default_rng(2)
    return ListBags([(scale * draw.standard_normal((size, 3))).astype(np.float32) for size in SIZES], LABELS)


@pytest.mark.parametrize("chunk", [1, 5, 7, 64, 4096])
@pytest.mark.parametrize("pooling", ["mean", "smoothed_max", "attention"])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_scores_of_whole_bags_whatever_the_cuts(pooling, chunk, scale, float64):
    bags = ListBags([score_bags().instances(bag).double() for bag in range(8)], LABELS)
    model = Net(2 if pooling == "attention" else 1, scale=scale).eval()
    with torch.no_grad():
        outputs = [model(bags.instances(bag)).numpy() for bag in range(8)]
    expected = [by_hand(pooling, output, 0.3) for output in outputs]
    scores = bag_scores(model, bags, pooling, temperature=0.3, chunk=chunk)
    assert scores.dtype == torch.float64 and not scores.is_inference()
    torch.testing.assert_close(scores, torch.tensor(expected), rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize(
    ("chunk", "calls"),
    [
        (400, [372]),
        (100, [72, 100, 100, 100]),
        (41, [8, 40, 24, *7 * [41], 13]),
        (290, [72, 290, 10]),
        (4, [4, 4, *10 * [4], 4, 3, 4, 4, 4, 4, 1, *75 * [4]]),
    ],
)
def test_small_bags_share_a_chunk_and_large_ones_are_cut(chunk, calls):
    model = Net(1)
    bag_scores(model, score_bags(), "mean", chunk=chunk)
    assert model.calls == calls and sum(calls) == sum(SIZES) and max(calls) <= chunk


@pytest.mark.parametrize("shape", ["vector", "matrix"])
def test_whole_bags_predict_scores_and_labels_and_leave_the_model_as_it_was(shape):
    bags, model = score_bags(), Net(1, shape)
    whole = BagEvaluation(bags, "smoothed_max", temperature=0.5, chunk=50)
    assert whole.labels.tolist() == LABELS and len(whole) == 8
    scores, labels = whole.predict(model, "cpu")
    assert labels.tolist() == LABELS
    assert torch.equal(scores, bag_scores(model, bags, SmoothedMaxPooling(0.5), chunk=50))
    assert model.training and model.dropout.training and not model.frozen.training
    assert repr(whole) == f"BagEvaluation({bags!r}, SmoothedMaxPooling(temperature=0.5))"
    scores += torch.ones(8, dtype=torch.float64, requires_grad=True)  # an ordinary tensor


def test_images_in_bytes_reach_the_model_as_they_are():
    images = torch.arange(96, dtype=torch.uint8).reshape(2, 3, 4, 4)

    class Brightness(nn.Module):
        def forward(self, x):
            assert x.dtype == torch.uint8 and x.shape[1:] == (3, 4, 4)
            return x.float().mean((1, 2, 3))

    bags = ListBags([images, images[1:]], [0, 1])
    assert bag_scores(Brightness(), bags, "mean", chunk=1).tolist() == [47.5, 71.5]
    assert instance_outputs(Brightness(), bags.instances(0)).tolist() == [23.5, 71.5]


@pytest.mark.parametrize(("columns", "shape"), [(1, (12,)), (2, (12, 2)), (3, (12, 3))])
def test_outputs_of_single_instances(columns, shape):
    model, instances = Net(columns), score_bags().instances(5)
    outputs = instance_outputs(model, instances, chunk=5)
    assert outputs.shape == shape and outputs.dtype == torch.float64 and model.calls == [5, 5, 2] and model.training
    expected = (instances.double() @ model.linear.weight.double().T + model.linear.bias.double()).detach()
    torch.testing.assert_close(outputs.reshape(12, -1), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: bag_scores(Net(2), score_bags(), "mean"), r"return 1 column for mean pooling, .*\(372, 2\) from Net"),
        (lambda: bag_scores(Net(1), score_bags(), "attention"), r"2 columns for attention pooling.*\(372,\) from Net"),
        (lambda: bag_scores(Sum(), score_bags(), "mean"), r"a row for each of 372 instances, got \(\) from Sum"),
        (lambda: bag_scores(Pair(), score_bags(), "mean"), r"model must return 1 column for mean pooling.* from Pair"),
        (lambda: bag_scores(Triple(), score_bags(), "mean"), r"must return a tensor with .* got tuple from Triple"),
        (lambda: bag_scores(Net(1), score_bags(), "mean", chunk=0), r"bag_scores: chunk must be an integer of at"),
        (lambda: bag_scores(Net(1), [torch.ones(1, 3)], "mean"), r"bag_scores: bags must be Bags.*, got list"),
        (lambda: BagEvaluation([torch.ones(1, 3)], "mean"), r"BagEvaluation: bags must be Bags.*, got list"),
        (lambda: BagEvaluation(score_bags(), "smoothed_max", temperature=0.0), "BagEvaluation: temperature must be"),
        (lambda: instance_outputs(Net(1), torch.ones(0, 3)), r"instances must be a tensor with .*, got shape \(0, 3\)"),
    ],
)
def test_bad_evaluation(call, match):
    with pytest.raises(ValueError, match=match):
        call()


class Sum(nn.Module):
    def forward(self, x):
        return x.sum()


class Pair(nn.Module):
    def forward(self, x):
        return x[:, 0], x[:, 1]


class Triple(nn.Module):
    def forward(self, x):
        return x[:, 0], x[:, 1], x[:, 0]


def test_a_pair_of_vectors_is_score_and_logit():
    class Columns(nn.Module):
        def forward(self, x):
            return x[:, :2]

    bags = score_bags()
    assert torch.equal(bag_scores(Pair(), bags, "attention"), bag_scores(Columns(), bags, "attention"))
    assert torch.equal(instance_outputs(Pair(), bags.instances(0)), instance_outputs(Columns(), bags.instances(0)))


def test_a_model_that_fails_is_as_before():
    model = Net(2)
    with pytest.raises(ValueError, match="mean pooling"):
        bag_scores(model, score_bags(), "mean")
    assert model.training and model.dropout.training and not model.frozen.training
