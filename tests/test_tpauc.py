from __future__ import annotations

import math
import random

import oracles
import pytest
import torch
from torch import nn

from moreauc import MultiInstanceTPAUCLoss, PreviousIterate
from moreauc.core.region import region_loss_and_gradient
from moreauc.core.surrogates import SquaredHinge
from moreauc.criteria import TPAUCLoss

STEPS = 100
SURROGATES = {
    "squared_hinge": (lambda z: max(1 + z, 0) ** 2, lambda z: 2 * max(1 + z, 0)),
    "hinge": (lambda z: max(1 + z, 0), lambda z: float(z > -1)),
    "smooth_ramp": (lambda z: oracles.smooth_ramp(z, 1.0), lambda z: oracles.smooth_ramp_slope(z, 1.0)),
}
# What the paper has with its links, and the ramp where it belongs.
LOSSES = [(name, link) for name in ("squared_hinge", "hinge") for link in ("sigmoid", "identity")]
LOSSES += [("smooth_ramp", "standardized"), ("squared_hinge", "standardized")]


class Data:
    """30 rows, 8 positive, in no order of class; scores are linear."""

    def __init__(self, seed: int, link: str, permuted: bool) -> None:
        rng = random.Random(seed)
        self.x = [[rng.gauss(0, 1) for _ in range(3)] for _ in range(30)]
        chosen = rng.sample(range(30), 8)
        self.labels = [int(i in chosen) for i in range(30)]
        self.positives = [i for i in range(30) if self.labels[i]]
        negatives = [i for i in range(30) if not self.labels[i]]
        for i in self.positives:
            self.x[i][0] += 0.7
        self.w0 = [rng.gauss(0, 1) for _ in range(3)]
        self.link = link
        self.batches = [(rng.sample(self.positives, 3), rng.sample(negatives, 5)) for _ in range(STEPS)]
        self.orders = [rng.sample(range(8), 8) if permuted else list(range(8)) for _ in range(STEPS)]

    def score(self, i, w):
        z = sum(a * b for a, b in zip(self.x[i], w, strict=True))
        return 1 / (1 + math.exp(-z)) if self.link == "sigmoid" else z

    def dscore(self, i, w):
        h = self.score(i, w)
        slope = h * (1 - h) if self.link == "sigmoid" else 1.0
        return [slope * a for a in self.x[i]]


def follow(criterion, data, twin, lr, tolerance):
    """Hold each step of a linear model against a transcription; yield its thresholds, and whether scores are pulled."""
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([data.w0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    previous = PreviousIterate(model, optimizer)
    x, labels = torch.tensor(data.x), torch.tensor(data.labels)

    def close(value):
        return pytest.approx(value, rel=tolerance, abs=tolerance)

    for (b1, b2), order, (w, u, s, s_prime) in zip(data.batches, data.orders, twin, strict=True):
        index = torch.tensor([*b1, *b2])[order]
        scores = model(x[index]).squeeze(1)
        before = previous(x[index]).squeeze(1) if criterion.needs_previous else None
        value = criterion(scores, labels[index], index, before)
        optimizer.zero_grad()
        value.backward()
        pulled = bool(model.weight.grad.any())
        optimizer.step()
        assert model.weight[0].tolist() == close(w)
        assert criterion.s.tolist() == close([s[i] for i in data.positives])
        assert criterion.s_prime.item() == close(s_prime)
        held = [(k, u[i]) for k, i in enumerate(data.positives) if i in u]
        assert [criterion.u[k].item() for k, _ in held] == close([row for _, row in held])
        yield s, pulled


@pytest.mark.parametrize("region", [(0.4, 0.5), (0.0, 1.0), (0.9, 0.2)])
@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize(("surrogate", "link"), LOSSES)
@pytest.mark.parametrize("gamma", [0.0, 0.1, "theory"])
@pytest.mark.parametrize("rule", ["step", "quantile"])
def test_tpauc_loss_is_algorithm_2(float64, rule, gamma, link, surrogate, permuted, region):
    data = Data(5, link, permuted)
    tau = 0.4 if gamma == "theory" else 0.9
    options = {"min_tpr": region[0], "max_fpr": region[1], "tau": tau, "gamma": gamma}
    parts = data.score, data.dscore, data.w0, data.positives, data.batches
    of_pairs = dict(zip(("loss", "dloss"), SURROGATES[surrogate], strict=True))
    of_pairs["standardized"] = link == "standardized"
    by_step = rule == "step"
    if by_step:
        threshold_lr, lr, tolerance = (0.9, 0.08), 0.05, 1e-10
        twin = oracles.algorithm_2(*parts, **of_pairs, **options, lr=lr, threshold_lr=threshold_lr)
    else:
        threshold_lr, lr, tolerance = "quantile", 0.02, 1e-9
        twin = oracles.algorithm_2_by_quantiles(*parts, **of_pairs, **options, lr=lr, weight=0.1)
    labels = torch.tensor(data.labels)
    criterion = TPAUCLoss(labels, surrogate=surrogate, margin=1.0, link=link, threshold_lr=threshold_lr, **options)
    steps = list(follow(criterion, data, twin, lr, tolerance))
    if by_step and region != (0.9, 0.2):
        signs = {math.copysign(1, value) for s, _ in steps for value in s.values() if value}
        # with the sigmoid and the standardized link every pair stays active at 0
        assert (1.0 if region[0] else -1.0) in signs or (link != "identity" and region[1] == 1.0)
    flat = surrogate == "smooth_ramp" and region[0] == 0.9  # the one worst positive has lost all of its pairs
    assert flat or sum(pulled for _, pulled in steps) > STEPS / 20


def test_quantile_thresholds_settle_at_the_optimum_of_a_still_model(float64):
    """With fixed scores and whole batches they are the quantiles of the pair losses, and the value the least one."""
    labels = (torch.rand(200) < 0.2).long()
    scores, region = torch.randn(200) + labels, {"min_tpr": 0.3, "max_fpr": 0.25}
    criterion = TPAUCLoss(labels, threshold_lr="quantile", tau=1.0, **region)
    for _ in range(3):
        value = criterion(scores, labels, torch.arange(200))
    positive, negative = (torch.sigmoid(scores)[labels == label] for label in (1, 0))
    edge = negative.sort(descending=True).values[math.ceil(0.25 * len(negative)) - 1]
    torch.testing.assert_close(criterion.s, SquaredHinge(1.0).value(edge - positive))
    best, _, _ = region_loss_and_gradient(positive, negative, SquaredHinge(1.0), **region)
    assert value.item() == pytest.approx(best, rel=1e-12)
    evaluated = criterion.eval()(scores, labels, torch.arange(200))
    assert evaluated.item() == pytest.approx(best, rel=1e-12)


def test_a_model_without_spread_keeps_its_scores():
    """Where all negatives have one score there is no scale; the gradient must not explode."""
    labels = torch.tensor([0, 1, 0, 1])
    for level in (0.0, 1e3):
        criterion = TPAUCLoss(labels, min_tpr=0.0, max_fpr=1.0, surrogate="smooth_ramp", link="standardized")
        scores = torch.full((4,), level, requires_grad=True)
        criterion(scores, labels, torch.arange(4)).backward()
        torch.testing.assert_close(scores.grad, torch.tensor([2.5, -2.5, 2.5, -2.5]))


@pytest.mark.parametrize("min_tpr", [0.0, 0.5])
def test_a_single_positive_still_gives_a_gradient(min_tpr):
    criterion = TPAUCLoss([0, 1, 0, 0], min_tpr=min_tpr, max_fpr=0.5, threshold_lr="quantile")
    for _ in range(3):
        scores = torch.tensor([0.3, 0.1, 0.2, -1.0], requires_grad=True)
        criterion(scores, torch.tensor([0, 1, 0, 0]), torch.arange(4)).backward()
        assert scores.grad[1] < 0


LABELS = torch.tensor([1, 0, 0, 1, 0, 1, 0])
BATCH = {"scores": torch.randn(4), "labels": torch.tensor([1, 0, 1, 0]), "index": torch.tensor([3, 1, 5, 6])}


def make(**options):
    return TPAUCLoss(LABELS, **{"min_tpr": 0.4, "max_fpr": 0.5, **options})


@pytest.mark.parametrize("training", [True, False])
def test_second_derivatives_are_refused(training):
    """A gradient penalty through the loss would lack the loss's own curvature; an error is better than that."""
    weight = torch.ones((), requires_grad=True)
    loss = make().train(training)(weight.square() * BATCH["scores"], BATCH["labels"], BATCH["index"])
    with pytest.raises(RuntimeError, match="can be differentiated once only"):
        torch.autograd.grad(loss, weight, create_graph=True)


def test_a_wider_type_that_came_before_does_not_break_the_quantile_rule():
    criterion = make(threshold_lr=(1.0, 0.1))
    criterion(BATCH["scores"].double(), BATCH["labels"], BATCH["index"])
    criterion.threshold_lr = "quantile"
    criterion(**BATCH)
    assert criterion.s.dtype == torch.float64


def test_a_threshold_that_runs_away_is_an_error_before_anything_is_written():
    criterion = make(threshold_lr=(0.0, 1e39))
    before = {name: value.clone() for name, value in criterion.state_dict().items()}
    with pytest.raises(ValueError, match="the updated threshold"):
        criterion(**BATCH)
    assert all(torch.equal(value, before[name]) for name, value in criterion.state_dict().items())


THIRDS = (torch.arange(12) % 3 == 0).long()


def rows(**options):
    return TPAUCLoss(THIRDS, **options)


def bags(**options):
    return MultiInstanceTPAUCLoss(THIRDS, pooling="mean", **options)


@pytest.mark.parametrize("checks", ["now", "late"])
@pytest.mark.parametrize("gamma", [0.0, 0.1])
@pytest.mark.parametrize("surrogate", ["squared_hinge", "logistic"])
@pytest.mark.parametrize("make", [rows, bags])
def test_in_the_whole_square_every_negative_of_a_small_batch_counts(make, surrogate, gamma, checks):
    options = {"surrogate": surrogate, "margin": 1.0, "link": "identity", "tau": 1.0, "gamma": gamma}
    criterion = make(min_tpr=0.0, max_fpr=1.0, threshold_lr="quantile", **options)
    criterion.checks = checks
    if make is bags:
        criterion.update_order = "after"  # with one instance in each bag the rows are its scores
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(12, generator=random, dtype=torch.float64)
    positives, negatives = THIRDS.nonzero().squeeze(1), (THIRDS == 0).nonzero().squeeze(1)
    for _ in range(20):
        index = torch.cat([positives, negatives[torch.randperm(8, generator=random)[:2]]])
        h = scores[index].requires_grad_()
        batch = [h, THIRDS[index], index, h.detach()]
        if make is bags:
            batch.insert(1, torch.arange(6))
        criterion(*batch).backward()
        wanted = scores[index].requires_grad_()
        violation = 1.0 + wanted[4:] - wanted[:4, None]
        losses = violation.clamp_min(0).square() if surrogate == "squared_hinge" else violation.exp().log1p()
        losses.mean().backward()
        torch.testing.assert_close(h.grad, wanted.grad)
        assert not criterion.s.any()
    criterion.eval()
    assert criterion(*batch).item() == pytest.approx(losses.mean().item())


@pytest.mark.parametrize("labels", [[0, 1], [0, 1, 0, 1], [[0], [1], [0]], 1])
def test_labels_have_the_shape_of_the_scores(labels):
    criterion = TPAUCLoss([0, 1, 0, 1], min_tpr=0.5, max_fpr=0.5)
    with pytest.raises(ValueError, match=r"labels must have shape \(3,\)"):
        criterion(torch.tensor([0.1, 0.2, 0.3]), torch.tensor(labels), torch.tensor([0, 1, 2]))
