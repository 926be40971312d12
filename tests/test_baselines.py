from __future__ import annotations

import copy
import math
import random

import baseline_oracles as oracles
import pytest
import torch
from torch import nn

from moreauc.core import pairs
from moreauc.criteria import (
    AUCMinMaxLoss,
    AUCSquaredHingeLoss,
    AWPolyLoss,
    CrossEntropyLoss,
    MiniBatchTPAUCLoss,
    SOTAsLoss,
)
from moreauc.optim import ProximalPoint

STEPS = 200
LINKS = pytest.mark.parametrize("link", ["sigmoid", "identity", "standardized"])
SURROGATES = pytest.mark.parametrize(
    "surrogate", ["squared_hinge", "hinge", "squared", "logistic", "sigmoid", "smooth_ramp"]
)
LABELS = torch.tensor([int(k % 4 == 1) for k in range(40)])  # 10 positives
REGION = {"min_tpr": 0.4, "max_fpr": 0.3}
KINDS = {
    CrossEntropyLoss: {},
    AUCSquaredHingeLoss: {},
    AUCMinMaxLoss: {},
    MiniBatchTPAUCLoss: REGION,
    AWPolyLoss: {"power": 0.3},
    SOTAsLoss: {"temperature_negatives": 0.1},
}
EVERY = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
PAIRS = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not CrossEntropyLoss])


def make_batch(seed, num_positives=5, num_negatives=8, scale=1.5):
    rng = random.Random(seed)
    positives = rng.sample(LABELS.nonzero().squeeze(1).tolist(), num_positives)
    negatives = rng.sample((LABELS == 0).nonzero().squeeze(1).tolist(), num_negatives)
    index = rng.sample(positives + negatives, num_positives + num_negatives)
    return [rng.gauss(0, scale) for _ in index], [int(LABELS[k]) for k in index], index


def call(criterion, scores, labels, index, dtype=torch.float64):
    values = torch.tensor(scores, dtype=dtype, requires_grad=True)
    loss = criterion(values, torch.tensor(labels), torch.tensor(index))
    loss.backward()
    return loss.item(), values.grad.tolist()


def assert_close(got, expected):
    assert got[0] == pytest.approx(expected[0], rel=1e-10, abs=1e-10)
    assert got[1] == pytest.approx(expected[1], rel=1e-10, abs=1e-10)


@pytest.mark.parametrize(("weight", "number"), [(1.0, 1.0), (0.3, 0.3), ("balanced", 3.0)])
@pytest.mark.parametrize("counts", [(5, 8), (5, 0), (0, 8)])
def test_cross_entropy_is_its_oracle_also_for_one_class(weight, number, counts):
    criterion = CrossEntropyLoss(LABELS, positive_weight=weight)
    batch = make_batch(1, *counts)
    expected = oracles.cross_entropy(batch[0], batch[1], number)
    assert_close(call(criterion, *batch), expected)
    assert_close(call(criterion.eval(), *batch), expected)


@LINKS
@SURROGATES
def test_losses_without_memory_are_their_oracles(link, surrogate):
    common = {"surrogate": surrogate, "margin": 0.7, "link": link}
    for seed in range(5):
        scores, labels, index = make_batch(seed, 5, 10)
        arguments = (scores, labels, surrogate, 0.7, link)
        batch = (scores, labels, index)
        assert_close(call(AUCSquaredHingeLoss(LABELS, **common), *batch), oracles.mean_over_pairs(*arguments))
        for power in (0.3, 1.0, 2.5):
            expected = oracles.mean_over_pairs(*arguments, power=power)
            assert_close(call(AWPolyLoss(LABELS, power=power, **common), *batch), expected)
        mini = MiniBatchTPAUCLoss(LABELS, min_tpr=0.4, max_fpr=0.3, **common)
        assert_close(call(mini, *batch), oracles.mini_batch(*arguments, 3, 3))
        assert_close(call(mini.eval(), *batch), oracles.mini_batch(*arguments, 3, 3))


@pytest.mark.parametrize(
    ("min_tpr", "max_fpr", "taken"),
    [(0.9, 0.1, (1, 2)), (0.8, 0.3, (2, 6)), (0.99, 0.01, (1, 1)), (0.41, 0.99, (5, 19))],
)
def test_mini_batch_rounds_down_but_takes_at_least_one(min_tpr, max_fpr, taken):
    """10 positives, 20 negatives: 10 (1 - 0.8) is 2, whatever floating point says, and 0.1 is 1."""
    scores, labels, index = make_batch(3, 10, 20)
    got = call(MiniBatchTPAUCLoss(LABELS, min_tpr=min_tpr, max_fpr=max_fpr, link="identity"), scores, labels, index)
    assert_close(got, oracles.mini_batch(scores, labels, "squared_hinge", 1.0, "identity", *taken))


class Run:
    """Linear scores of 40 rows; some batches come twice in a row, and positives come back after a gap."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.labels = LABELS.tolist()
        self.x = [[rng.gauss(0.6 * label, 1) for _ in range(3)] for label in self.labels]
        self.w = [rng.gauss(0, 0.7) for _ in range(3)]
        self.batches = []
        for step in range(STEPS):
            batch = make_batch(rng.random())[2]
            if step % 7 == 3:
                batch = rng.sample(self.batches[-1], len(batch))  # the same rows at once, in another order
            self.batches.append(batch)

    def model(self):
        model = nn.Linear(3, 1, bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.tensor([self.w]))
        return model


@pytest.mark.parametrize("link", ["sigmoid", "identity"])
@pytest.mark.parametrize("pull", [0.0, 0.3])
def test_min_max_with_a_proximal_point_is_pesg(float64, link, pull):
    run = Run(11)
    restarts = (40, 41, 120)
    options = {"margin": 0.8, "link": link, "dual_lr": 0.4}
    twin = oracles.pesg(
        run.x, run.labels, run.w, run.batches, rate=0.25, lr=0.5, pull=pull, restarts=restarts, **options
    )
    model = run.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    proximal = ProximalPoint(optimizer, pull)
    criterion = AUCMinMaxLoss(LABELS, **options)
    x = torch.tensor(run.x)
    at_zero = 0
    for step, (batch, (value, w, a, b, theta, w_ref)) in enumerate(zip(run.batches, twin, strict=True)):
        index = torch.tensor(batch)
        loss = criterion(model(x[index]).squeeze(1), LABELS[index], index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in restarts:
            proximal.restart()
        state = [criterion.a.item(), criterion.b.item(), criterion.theta.item()]
        assert loss.item() == pytest.approx(value, rel=1e-10, abs=1e-10)
        assert state == pytest.approx([a, b, theta], rel=1e-10, abs=1e-10)
        assert model.weight[0].tolist() == pytest.approx(w, rel=1e-10, abs=1e-10)
        assert proximal.state_dict()["reference"][0][0].tolist() == pytest.approx(w_ref, rel=1e-10, abs=1e-10)
        at_zero += theta == 0
    assert at_zero < STEPS  # theta has moved


@pytest.mark.parametrize("link", ["sigmoid", "identity"])
def test_min_max_is_the_published_form_in_expectation(link):
    """Both agree over the whole set, whose mixture is the true one; class-balanced batches have the same mean."""
    rng = random.Random(2)
    scores = [rng.gauss(0, 1) for _ in range(40)]
    point = (0.3, -0.2, 0.4)
    criterion = AUCMinMaxLoss(LABELS, margin=0.8, link=link, dual_lr=0.7)
    criterion.duals.values = torch.tensor(point, dtype=torch.float64)
    assert criterion.positive_rate == 0.25
    value, gradient, slopes = oracles.published_min_max(scores, LABELS.tolist(), 0.25, 0.8, link, *point)
    balanced = []
    for k in range(3):  # each positive with three negatives: batches that hold one half positives
        for i in range(10):
            index = [4 * i + 1, 4 * i + (0, 2, 3)[k]]
            batch = [scores[n] for n in index]
            balanced.append(call(criterion.eval(), batch, [1, 0], index)[0])
    assert sum(balanced) / 30 == pytest.approx(value, rel=1e-10)
    assert_close(call(criterion.train(), scores, LABELS.tolist(), list(range(40))), (value, gradient))
    moved = [criterion.a.item(), criterion.b.item(), criterion.theta.item()]
    signs = (-1, -1, 1)
    expected = [p + 0.7 * sign * slope for p, sign, slope in zip(point, signs, slopes, strict=True)]
    assert moved == pytest.approx(expected, rel=1e-10)


@LINKS
@pytest.mark.parametrize("surrogate", ["squared_hinge", "logistic"])
@pytest.mark.parametrize(
    ("inner", "outer", "taus"),
    [(1.0, 1.0, (0.9, 0.9)), (0.5, 2.0, (0.3, 0.6)), (3.0, 0.7, (1.0, 1.0)), (3.0, 0.7, (0.3, 0.6))],
)
def test_sota_s_is_its_oracle_for_200_steps(float64, link, surrogate, inner, outer, taus):
    run = Run(5)
    twin = oracles.SOTAs(inner, outer, *taus, surrogate, 0.8, link)
    criterion = SOTAsLoss(
        LABELS,
        temperature_negatives=inner,
        temperature_positives=outer,
        tau1=taus[0],
        tau2=taus[1],
        surrogate=surrogate,
        margin=0.8,
        link=link,
    )
    model = run.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    x = torch.tensor(run.x)
    positives = LABELS.nonzero().squeeze(1).tolist()
    for batch in run.batches:
        index = torch.tensor(batch)
        scores = model(x[index]).squeeze(1)
        scores.retain_grad()
        loss = criterion(scores, LABELS[index], index)
        optimizer.zero_grad()
        loss.backward()
        assert_close((loss.item(), scores.grad.tolist()), twin.step(scores.tolist(), LABELS[index].tolist(), batch))
        held = [(k, i) for k, i in enumerate(positives) if i in twin.u]
        assert criterion.log_u[[k for k, _ in held]].tolist() == pytest.approx(
            [math.log(twin.u[i]) for _, i in held], rel=1e-10, abs=1e-10
        )
        assert criterion.log_v.item() == pytest.approx(math.log(twin.v), rel=1e-10, abs=1e-10)
        optimizer.step()
    scores, labels, index = make_batch(8)
    expected = twin.objective(scores, labels)
    assert call(criterion.eval(), scores, labels, index)[0] == pytest.approx(expected, rel=1e-10)


@LINKS
@pytest.mark.parametrize("kind", [AWPolyLoss, SOTAsLoss])
def test_blocks_of_rows_change_nothing(monkeypatch, kind, link):
    batch = make_batch(7)
    whole = kind(LABELS, link=link, **KINDS[kind])
    blocks = copy.deepcopy(whole)
    expected = call(whole, *batch)
    monkeypatch.setitem(pairs._TILE, "cpu", 16)  # two rows of eight
    assert_close(call(blocks, *batch), expected)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(blocks.state_dict()[name], value)
    with torch.no_grad():
        scores, labels, index = (torch.tensor(entry) for entry in batch)
        assert not blocks(scores, labels, index).requires_grad


def test_sota_s_stays_exact_where_its_exponentials_overflow():
    """l / lambda = 4e4: exp is far beyond float64. The pair weights must still sum to the largest loss's slope."""
    criterion = SOTAsLoss(LABELS, temperature_negatives=0.1, temperature_positives=0.1, link="identity")
    loss, gradient = call(criterion, [-31.0, 31.0, 0.0], [1, 0, 0], [1, 0, 2])
    assert loss == pytest.approx(63.0**2 - 0.1 * math.log(2), rel=1e-12)
    assert gradient == pytest.approx([-126.0, 126.0, 0.0], rel=1e-12)


@pytest.mark.parametrize("kind", [AUCMinMaxLoss, SOTAsLoss])
def test_a_loss_beyond_the_type_is_an_error_and_changes_nothing(kind):
    criterion = kind(LABELS, link="identity", **KINDS[kind])
    index = torch.tensor([1, 0])
    before = {key: entry.clone() for key, entry in criterion.state_dict().items()}
    with pytest.raises(ValueError, match=f"{kind.__name__}: the loss must be finite, got"):
        criterion(torch.tensor([-1e30, 1e30]), LABELS[index], index)
    assert all(torch.equal(entry, before[key]) for key, entry in criterion.state_dict().items())


def quadratic(optimizer, weights, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        sum((weight - 3).square().sum() for weight in weights).backward()
        optimizer.step()


def test_proximal_point_leaves_gradients_and_parameters_without_one_alone():
    weight, frozen = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight, frozen], lr=0.1)
    proximal = ProximalPoint(optimizer, 5.0)
    with torch.no_grad():
        frozen.fill_(7.0)
    proximal.restart()  # no iterate yet: the reference stays
    quadratic(optimizer, [weight], 1)
    assert weight.grad.tolist() == [-4.0, -4.0] and frozen.grad is None  # the loss's own
    optimizer.step()  # the same gradient once more: the pull is that of the new place only
    assert weight.tolist() == pytest.approx([1.4 + 0.4 - 0.1 * 5.0 * 0.4] * 2)
    assert frozen.tolist() == [7.0, 7.0]
    proximal.remove()
    optimizer.step()
    assert weight.tolist() == pytest.approx([2.0, 2.0])


@pytest.mark.parametrize("unscaled", [True, False])
def test_proximal_point_refuses_a_fused_optimizer_under_a_gradient_scaler(unscaled):
    """Such a step would divide the pull by the scale, and counts as an iterate where it is skipped."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1, fused=True)
    proximal = ProximalPoint(optimizer, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(weight.sum()).backward()
    if unscaled:
        scaler.unscale_(optimizer)
    gradient = weight.grad.clone()
    with pytest.raises(ValueError, match="must not be fused under a GradScaler, got SGD with fused=True"):
        scaler.step(optimizer)
    assert weight.tolist() == [1.0, 1.0] and torch.equal(weight.grad, gradient)
    assert proximal.state_dict()["steps"] == 0


def test_proximal_point_follows_casts_new_groups_and_averages_half_types_in_float32():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    proximal = ProximalPoint(optimizer, 0.5)
    model.to(torch.bfloat16)
    model(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
    late = nn.Parameter(torch.ones(1))
    optimizer.add_param_group({"params": [late]})
    optimizer.step()
    state = proximal.state_dict()
    assert model.weight.dtype == torch.bfloat16 and {tensor.dtype for tensor in state["average"]} == {torch.float32}
    assert len(state["reference"]) == 3 and state["steps"].item() == 1


@pytest.mark.parametrize("by_name", [True, False])
def test_proximal_point_pulls_what_a_closure_leaves(by_name):
    """Also where the closure adds to the gradients that are there, as with accumulation."""
    plain, inside = (nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    optimizers = [torch.optim.SGD([weight], lr=0.1, momentum=0.5) for weight in (plain, inside)]
    points = [ProximalPoint(optimizer, 0.5) for optimizer in optimizers]
    for step in range(4):
        plain.grad = plain.detach() * (step + 1) + 1.0
        optimizers[0].step()
        inside.grad = torch.ones(2)

        def closure(weight=inside, step=step):
            weight.grad += weight.detach() * (step + 1)
            return torch.tensor(float(step))

        loss = optimizers[1].step(**{"closure": closure}) if by_name else optimizers[1].step(closure)
        assert loss.item() == step and torch.equal(inside.grad, plain.grad)
    assert torch.equal(inside, plain)
    assert all(torch.equal(*pair) for pair in zip(*(p.state_dict()["average"] for p in points), strict=True))


def test_proximal_point_with_an_optimizer_that_evaluates_several_times():
    """The minimum of (w - 3)^2 / 2 + (w - 1)^2 / 2 is 2; the gradient left is that of the loss."""
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.LBFGS([weight], lr=0.5, max_iter=50)
    ProximalPoint(optimizer, 1.0)

    def closure():
        optimizer.zero_grad()
        loss = 0.5 * (weight - 3.0).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert weight.item() == pytest.approx(2.0, abs=1e-4)
    assert weight.grad.item() == pytest.approx(weight.item() - 3.0, abs=1e-4)


def test_proximal_point_errors():
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with pytest.raises(ValueError, match=r"ProximalPoint: optimizer must be a torch.optim optimizer, got Linear"):
        ProximalPoint(nn.Linear(1, 1), 0.1)
    with pytest.raises(ValueError, match=r"ProximalPoint: weight must be a number in \[0, inf\), got -1"):
        ProximalPoint(optimizer, -1)
    proximal = ProximalPoint(optimizer, 0.1)
    state = proximal.state_dict()
    with pytest.raises(ValueError, match=r"state\['reference'\] must hold 1 tensors, got 0"):
        proximal.load_state_dict({**state, "reference": []})
    with pytest.raises(ValueError, match=r"state\['average'\]\[0\] must have shape \(2,\), got \(3,\)"):
        proximal.load_state_dict({**state, "average": [torch.ones(3)]})
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy(proximal)
