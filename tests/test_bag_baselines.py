from __future__ import annotations

import copy
import math
import random

import bag_oracles
import pytest
import torch
from torch import nn

from moreauc.criteria import AUCMinMaxLoss, CrossEntropyLoss, MiniBatchTPAUCLoss, SOTAsLoss, TPAUCLoss
from moreauc.criteria.midam import MIDAMLoss
from moreauc.criteria.pooled import PooledLoss

STEPS = 100
LABELS = torch.tensor([int(k % 3 == 1) for k in range(24)])  # 8 positive bags
RATE = 1 / 3
TEMPERATURE = 0.7
POOLINGS = ["mean", "smoothed_max", "attention"]
POOLING = pytest.mark.parametrize("pooling", POOLINGS)
LINKS = pytest.mark.parametrize("link", ["sigmoid", "identity"])
REGION = {"min_tpr": 0.4, "max_fpr": 0.5}
KINDS = {
    "AUC-M": lambda pooling, **options: PooledLoss(AUCMinMaxLoss(LABELS, dual_lr=1.0, **options), pooling),
    "SOTA-s": lambda pooling, **options: PooledLoss(SOTAsLoss(LABELS, **options), pooling),
    "CE": lambda pooling, **options: PooledLoss(CrossEntropyLoss(LABELS), pooling),
    "MB": lambda pooling, **options: PooledLoss(MiniBatchTPAUCLoss(LABELS, **REGION, **options), pooling),
    "SONX": lambda pooling, **options: PooledLoss(TPAUCLoss(LABELS, **REGION, **options), pooling),
    "MIDAM": lambda pooling, **options: MIDAMLoss(LABELS, pooling=pooling, dual_lr=1.0, **options),
}
EVERY = pytest.mark.parametrize("kind", KINDS)


class Run:
    """Bags of feature vectors, and batches of a few instances of each; some bags come twice in a row."""

    def __init__(self, seed, outputs):
        rng = random.Random(seed)
        labels = LABELS.tolist()
        self.bags = [
            [[rng.gauss(0.5 * label, 1) for _ in range(3)] for _ in range(rng.randint(1, 9))] for label in labels
        ]
        self.w = [[rng.gauss(0, 0.4) for _ in range(3)] for _ in range(outputs)]
        positives = [k for k, label in enumerate(labels) if label]
        negatives = [k for k, label in enumerate(labels) if not label]
        self.batches, self.gaps = [], set()
        last = {}
        index = []
        for step in range(STEPS):
            if step % 7 == 3:
                index = rng.sample(index, len(index))  # the same bags at once, with other instances, in another order
            else:
                index = rng.sample(positives, 3) + rng.sample(negatives, 5)
                rng.shuffle(index)
            instances = [rng.sample(self.bags[k], min(3, len(self.bags[k]))) for k in index]
            self.batches.append((instances, [labels[k] for k in index], index))
            for k in index:
                self.gaps.add(step - last.get(k, step))
                last[k] = step
        self.order = rng

    def tensors(self, batch):
        """Return features, bag, labels, index of a batch, instances of different bags mixed."""
        bags, labels, index = batch
        rows = [(place, x) for place, instances in enumerate(bags) for x in instances]
        self.order.shuffle(rows)
        return (
            torch.tensor([x for _, x in rows]),
            torch.tensor([place for place, _ in rows]),
            torch.tensor(labels),
            torch.tensor(index),
        )

    def train(self, criterion, lr):
        """Yield (value, weights) after each step."""
        model = nn.Linear(3, len(self.w), bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.tensor(self.w))
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        for batch in self.batches:
            x, bag, labels, index = self.tensors(batch)
            outputs = model(x)
            loss = criterion(outputs if len(self.w) == 2 else outputs.squeeze(1), bag, labels, index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item(), model.weight.tolist()


def approx(expected):
    return pytest.approx(expected, rel=1e-9, abs=1e-9)


def outputs_of(pooling):
    return 2 if pooling == "attention" else 1


def follow(run, criterion, twin, lr, check):
    start = run.w
    pairs = zip(run.train(criterion, lr), bag_oracles.descend(twin, run.batches, run.w, lr), strict=True)
    for (value, weight), (expected_value, expected_weight) in pairs:
        assert value == approx(expected_value)
        for row, expected in zip(weight, expected_weight, strict=True):
            assert row == approx(expected)
        check()
    for row, before in zip(weight, start, strict=True):
        assert max(abs(p - q) for p, q in zip(row, before, strict=True)) > 0.02  # the comparison saw weights move


@LINKS
@POOLING
def test_auc_m_on_pooled_instances_is_its_oracle(float64, pooling, link):
    options = {"margin": 0.8, "link": link, "dual_lr": 0.4}
    run = Run(1, outputs_of(pooling))
    inner = bag_oracles.MinMax(RATE, **options)
    criterion = PooledLoss(AUCMinMaxLoss(LABELS, **options), pooling, temperature=TEMPERATURE)
    twin = bag_oracles.Naive(bag_oracles.Pool(pooling, TEMPERATURE), inner)

    def check():
        state = criterion.criterion.duals.values.tolist()
        assert state == approx([inner.a, inner.b, inner.theta])

    follow(run, criterion, twin, 0.3, check)
    assert inner.theta > 0


@LINKS
@POOLING
@pytest.mark.parametrize(("tau", "rows"), [(0.9, "before"), (0.3, "after"), (1.0, "before")])
def test_midam_is_its_oracle(float64, pooling, link, tau, rows):
    options = {"margin": 0.8, "link": link, "dual_lr": 0.4}
    run = Run(4, outputs_of(pooling))
    assert {1, 2, 3} <= run.gaps and max(run.gaps) > 5  # bags come back at once and after a gap
    inner = bag_oracles.MinMax(RATE, **options)
    twin = bag_oracles.MIDAM(bag_oracles.Pool(pooling, TEMPERATURE), inner, tau, rows)
    criterion = MIDAMLoss(LABELS, pooling=pooling, temperature=TEMPERATURE, tau=tau, update_order=rows, **options)

    def check():
        assert [criterion.a.item(), criterion.b.item(), criterion.theta.item()] == approx(
            [inner.a, inner.b, inner.theta]
        )
        for number, v in twin.v.items():
            row = criterion.v[number].tolist()
            if pooling == "smoothed_max":
                assert row == approx(math.log(v[0]))
            else:
                assert row == approx(v[0] if pooling == "mean" else [v[0] / v[1], math.log(v[1])])
            assert criterion.bag_scores[number].item() == approx(twin.pool.p(v)[0])

    follow(run, criterion, twin, 0.3 if link == "sigmoid" else 0.1, check)
    assert set(twin.v) == set(range(24)) and bool(criterion.table_v.visited.all())


def make_batch(pooling, seed=0, dtype=torch.float32, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    index = torch.tensor([[1, 0, 4, 2, 5], [4, 3, 2, 7, 8], [1, 5, 7, 6, 3]])[seed % 3]
    bag = torch.tensor([3, 0, 1, 1, 4, 0, 2, 0, 3, 2])
    shape = (10, 2) if pooling == "attention" else (10,)
    instances = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    return {"instances": instances.to(dtype), "bag": bag, "labels": LABELS[index], "index": index}


def step(criterion, batch):
    values = batch["instances"].clone().requires_grad_()
    loss = criterion(**{**batch, "instances": values})
    loss.backward()
    return loss.detach(), values.grad


def state_of(criterion):
    return {name: value.clone() for name, value in criterion.state_dict().items()}


def assert_state(criterion, expected):
    found = criterion.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value), name


@EVERY
@POOLING
def test_evaluation_is_the_inner_loss_of_pooled_scores(kind, pooling):
    criterion = KINDS[kind](pooling)
    for seed in range(3):
        step(criterion, make_batch(pooling, seed))
    batch = make_batch(pooling, 4)
    inner = getattr(criterion.eval(), "criterion", None)
    if inner is None:
        inner = AUCMinMaxLoss(LABELS, margin=criterion.surrogate.margin).eval()
        inner.duals.load_state_dict(criterion.duals.state_dict())
    scores = criterion.pooling(batch["instances"], batch["bag"], 5)
    expected = inner(scores, batch["labels"], batch["index"])
    torch.testing.assert_close(step(criterion, batch)[0], expected)
    twice = torch.tensor([1, 0, 1, 2, 0])  # nothing is written, so a bag may come twice
    assert torch.isfinite(step(criterion, {**batch, "index": twice, "labels": LABELS[twice]})[0])


def refuse(criterion, batch, message):
    before = state_of(criterion)
    with pytest.raises(ValueError, match=message):
        criterion(**batch)
    assert_state(criterion, before)


@POOLING
def test_a_loss_beyond_the_type_is_an_error_and_changes_nothing(pooling):
    """A few good steps first: then rows, a, b and theta hold something that could be lost."""
    batch = make_batch(pooling, 0)
    for criterion in (
        MIDAMLoss(LABELS, pooling=pooling, link="identity"),
        PooledLoss(AUCMinMaxLoss(LABELS, link="identity"), pooling),
    ):
        step(criterion, make_batch(pooling, 1))
        huge = {**batch, "instances": 1e30 * batch["instances"].sign()}
        refuse(criterion, huge, "the loss must be finite, got|the updated a, b, theta must be finite")
    criterion = MIDAMLoss(LABELS, pooling="smoothed_max", temperature=1e-3, link="identity")
    batch = make_batch("smoothed_max", 0)
    huge = {**batch, "instances": torch.full((10,), 1e306, dtype=torch.float64)}
    refuse(criterion, huge, r"(the updated bag|the loss) must be finite, got")


@POOLING
def test_previous_instances_are_pooled_for_a_loss_that_needs_them(pooling):
    plain, inner = (TPAUCLoss(LABELS, **REGION, gamma=0.3) for _ in range(2))
    criterion = PooledLoss(inner, pooling)
    assert criterion.needs_previous and not KINDS["SONX"](pooling).needs_previous
    for seed in range(6):
        batch = make_batch(pooling, seed)
        previous = batch["instances"] + 0.1 * torch.randn(batch["instances"].shape)
        loss = criterion(**batch, previous_instances=previous)
        now, before = (criterion.pooling(x, batch["bag"], 5) for x in (batch["instances"], previous))
        expected = plain(now, batch["labels"], batch["index"], previous_scores=before)
        assert torch.equal(loss, expected)
    assert_state(inner, state_of(plain))
    without = copy.deepcopy(plain)
    without(now, batch["labels"], batch["index"], previous_scores=now)
    plain(now, batch["labels"], batch["index"], previous_scores=before)
    assert not torch.equal(plain.u, without.u)  # the previous scores count


def test_previous_instances_that_are_not_needed_are_ignored():
    one, other = KINDS["AUC-M"]("mean"), KINDS["AUC-M"]("mean")
    batch = make_batch("mean")
    assert torch.equal(one(**batch), other(**batch, previous_instances=torch.full((10,), torch.nan)))


def test_the_region_of_the_inner_loss_is_that_of_the_pooled_one():
    with_region = KINDS["MB"]("attention")
    assert (with_region.min_tpr, with_region.max_fpr) == (0.4, 0.5)
    for criterion in (KINDS["CE"]("attention"), KINDS["MIDAM"]("attention")):
        for name in ("min_tpr", "max_fpr"):
            assert getattr(criterion, name, None) is None and not hasattr(criterion, name)
            with pytest.raises(AttributeError, match=name):
                getattr(criterion, name)


class Plain(nn.Module):
    def forward(self, scores, labels, index):
        return (scores * (1 - 2 * labels)).mean()


def test_a_module_of_the_user_may_be_pooled():
    criterion = PooledLoss(Plain(), "mean")
    assert not criterion.needs_previous
    instances = torch.tensor([1.0, 3.0, 5.0], requires_grad=True)
    loss = criterion(instances, torch.tensor([0, 0, 1]), torch.tensor([0, 1]), torch.tensor([7, 9]))
    loss.backward()
    assert loss.item() == -1.5 and instances.grad.tolist() == [0.25, 0.25, -0.5]
    with pytest.raises(ValueError, match="PooledLoss: instances must be a floating point tensor, got a list"):
        criterion([1.0], torch.tensor([0]), torch.tensor([0]), torch.tensor([0]))
