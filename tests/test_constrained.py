"""The loss of an objective under constraints: the transcription, the hinge, feasibility, known solutions, errors."""

from __future__ import annotations

import math
import random

import numpy as np
import oracles
import pytest
import torch
from torch import nn

from moreauc import ConstrainedLoss, FCCOLoss, PreviousIterate

M, D = 9, 3


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


class Problem:
    """f is a mean of squares, g_k the mean of sin(a.w) + b, over samples; constraints come and go."""

    def __init__(self, steps=100):
        rng = random.Random(4)
        self.target = [[rng.gauss(0, 1) for _ in range(D)] for _ in range(8)]
        self.a = [[[rng.gauss(0, 1) for _ in range(D)] for _ in range(5)] for _ in range(M)]
        self.b = [[rng.gauss(-0.1, 0.4) for _ in range(5)] for _ in range(M)]
        self.w0 = [rng.gauss(0, 1) for _ in range(D)]
        self.batches = []
        for step in range(steps):
            chosen = rng.sample(range(M if step % 50 > 30 else M - 1), rng.choice([1, 3, 4]))
            batch = {k: [rng.randrange(5) for _ in range(2)] for k in chosen}
            self.batches.append((rng.sample(range(8), 3), batch))

    def f(self, w, samples):
        return sum((w[c] - self.target[i][c]) ** 2 for i in samples for c in range(D)) / len(samples)

    def df(self, w, samples):
        return [sum(2 * (w[c] - self.target[i][c]) for i in samples) / len(samples) for c in range(D)]

    def g(self, k, w, samples):
        return sum(math.sin(dot(self.a[k][x], w)) + self.b[k][x] for x in samples) / len(samples)

    def dg(self, k, w, samples):
        return [sum(math.cos(dot(self.a[k][x], w)) * self.a[k][x][c] for x in samples) / len(samples) for c in range(D)]


class Model(nn.Module):
    """The values of the constraints of a batch."""

    def __init__(self, problem):
        super().__init__()
        self.a, self.b, self.w = (
            torch.tensor(problem.a),
            torch.tensor(problem.b),
            nn.Parameter(torch.tensor(problem.w0)),
        )

    def forward(self, index, samples):
        chosen = index.unsqueeze(1), samples
        return ((self.a[chosen] @ self.w).sin() + self.b[chosen]).mean(1)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize(("tau", "gamma"), [(0.3, 0.0), (0.3, 0.2), (1.0, 0.0), (0.4, "theory")])
def test_it_is_its_transcription_for_100_steps(float64, smoothing, tau, gamma):
    problem = Problem()
    settings = {"penalty": 4.0, "smoothing": smoothing, "tau": tau, "gamma": gamma}
    parts = problem.f, problem.df, problem.g, problem.dg
    twin = oracles.hinge_penalty(problem.w0, M, *parts, problem.batches, **settings, lr=0.03)
    model, target = Model(problem), torch.tensor(problem.target)
    criterion = ConstrainedLoss(M, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    previous = PreviousIterate(model, optimizer)
    slopes = set()
    for (samples, batch), (value, w, u) in zip(problem.batches, twin, strict=True):
        index, own = torch.tensor(list(batch)), torch.tensor(list(batch.values()))
        slopes |= {(row > 0) + (row > smoothing) for row in criterion.u[index].tolist()}
        objective = (model.w - target[samples]).square().sum(1).mean()
        before = previous(index, own) if gamma else None
        loss = criterion(objective, model(index, own), index, before)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert loss.item() == pytest.approx(value, rel=1e-9, abs=1e-9)
        assert model.w.tolist() == pytest.approx(w, rel=1e-9, abs=1e-9)
        assert criterion.u.tolist() == pytest.approx([u.get(k, 0.0) for k in range(M)], rel=1e-9, abs=1e-9)
    assert len(u) == M and slopes == ({0, 1, 2} if smoothing else {0, 2})


def test_the_smoothed_hinge_is_the_moreau_envelope():
    u = torch.linspace(-1.0, 2.0, 31, dtype=torch.float64, requires_grad=True)
    criterion = ConstrainedLoss(1, penalty=1.0, smoothing=0.5).eval()
    nothing = torch.zeros((), dtype=torch.float64)
    value = torch.stack([criterion(nothing, one, [0]) for one in u.unsqueeze(1)])
    v = torch.linspace(-3.0, 3.0, 60_001, dtype=torch.float64)
    envelope = (torch.relu(v) + (v - u.detach().unsqueeze(1)).square() / (2 * 0.5)).min(1).values
    torch.testing.assert_close(value.detach(), envelope, rtol=0.0, atol=1e-7)
    (slope,) = torch.autograd.grad(value.sum(), u)
    torch.testing.assert_close(slope, (u.detach() / 0.5).clamp(0.0, 1.0))


def test_the_penalty_is_that_of_the_general_loss():
    own = ConstrainedLoss(6, penalty=3.0, tau=0.4, gamma=0.1)
    general = FCCOLoss(6, lambda u, index: torch.relu(u), tau=0.4, gamma=0.1)
    for _ in range(10):
        index = torch.randperm(6)[:3]
        constraints, before, objective = torch.randn(3, requires_grad=True), torch.randn(3), torch.randn(())
        whole = own(objective, constraints, index, before)
        penalty = general(constraints, index, before)
        torch.testing.assert_close(whole, objective + 3.0 * penalty)
        grads = [torch.autograd.grad(value, constraints)[0] for value in (whole, 3.0 * penalty)]
        torch.testing.assert_close(*grads)
    assert torch.equal(own.u, general.u) and own.u.any()


def test_both_arguments_get_their_gradients():
    objective = torch.tensor(2.0, requires_grad=True)
    constraints = torch.tensor([1.0, -1.0], requires_grad=True)
    loss = ConstrainedLoss(5, penalty=4.0)(3.0 * objective, constraints, [4, 2])
    loss.backward()
    assert loss.item() == 8.0 and objective.grad.item() == 3.0 and constraints.grad.tolist() == [2.0, 0.0]


def test_in_evaluation_it_is_the_penalty_at_the_values_given():
    criterion = ConstrainedLoss(3, penalty=2.0, smoothing=0.5, initial=9.0).eval()
    constraints = torch.tensor([1.0, 0.25], requires_grad=True)
    loss = criterion(torch.tensor(1.0), constraints, [1, 1])
    loss.backward()
    assert loss.item() == pytest.approx(1.0 + 2.0 * (0.75 + 0.0625) / 2)
    assert constraints.grad.tolist() == [1.0, 0.5] and criterion.u.tolist() == [9.0] * 3


def test_a_row_that_averages_does_not_push_a_constraint_that_is_met():
    """Noise of deviation 1 around -0.5: the plug-in pushes in about a third of the batches, the row never."""
    pushes = {}
    for tau in (0.02, 1.0):
        torch.manual_seed(0)
        criterion = ConstrainedLoss(50, penalty=1.0, tau=tau, initial=-0.5)
        pushed = 0.0
        for _ in range(200):
            value = (torch.randn(50) - 0.5).requires_grad_()
            criterion(torch.zeros(()), value, torch.arange(50)).backward()
            pushed += value.grad.sum().item() / 200
        pushes[tau] = pushed
    assert pushes[0.02] < 0.01 and 0.25 < pushes[1.0] < 0.35


def test_feasibility_by_hand():
    criterion = ConstrainedLoss(6, penalty=1.0, tau=1.0)
    assert all(math.isnan(value) for value in criterion.feasibility())
    criterion(torch.zeros(()), torch.tensor([0.5, -2.0, 0.02, 0.0]), [0, 1, 3, 5])
    assert criterion.feasibility() == pytest.approx((0.5, 0.13, 0.5))
    assert criterion.feasibility(tolerance=0.1).share == 0.25
    criterion(torch.zeros(()), torch.tensor([-1.0, -1.0, -1.0]), [0, 2, 3])
    assert criterion.feasibility() == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match=r"ConstrainedLoss: tolerance must be a number in \[0, inf\), got -1"):
        criterion.feasibility(-1)


def box(penalty, *, steps=2000, constraints=2000, noise=1.0, **options):
    """Minimise |w - a|^2 / 2 under w <= b, from noisy w - b of a tenth of the coordinates; return w, a, b."""
    random = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, constraints, generator=random)
    w = torch.zeros(constraints, requires_grad=True)
    criterion = ConstrainedLoss(constraints, penalty=penalty, **options)
    optimizer = torch.optim.SGD([w], lr=0.05)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1.0 + step / 200))
    for _ in range(steps):
        index = torch.randperm(constraints, generator=random)[:200]
        values = (w - b)[index] + noise * torch.randn(200, generator=random)
        loss = criterion(0.5 * (w - a).square().sum(), values, index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    return w.detach(), a, b, criterion


def test_thousands_of_constraints_with_a_known_solution():
    """The solution is min(a, b), its multipliers a - b; rows that do not average push what is feasible."""
    averaged, a, b, criterion = box(2000 * 6.0, smoothing=0.3, tau=0.02)
    assert (a - b).max() < 6.0
    solution = torch.minimum(a, b)
    error, without, unconstrained = (
        (w - solution).abs().mean() for w in (averaged, box(2000 * 6.0, smoothing=0.3, tau=1.0)[0], a)
    )
    assert error < 0.18 and without > 2 * error and unconstrained > 2 * error
    assert criterion.feasibility().mean < 0.05


def test_a_weight_below_the_multiplier_and_one_that_is_raised():
    """min (w - 1)^2 / 2 under w <= 0 has the multiplier 1: with the weight 0.4 the solution is 0.6."""
    found = {}
    for schedule in (False, True):
        w = torch.zeros((), requires_grad=True)
        criterion = ConstrainedLoss(1, penalty=0.4, tau=0.5)
        for step in range(3000):
            loss = criterion(0.5 * (w - 1.0).square(), w.reshape(1), [0])
            (gradient,) = torch.autograd.grad(loss, w)
            with torch.no_grad():
                w -= 0.01 * gradient
            if schedule and step % 100 == 99 and criterion.feasibility().worst > 0.05:
                criterion.penalty *= 1.5
        found[schedule] = w.item(), criterion.penalty
    assert found[False] == (pytest.approx(0.6, abs=0.01), 0.4)
    assert found[True][0] == pytest.approx(0.0, abs=0.05) and 1.0 < found[True][1] < 2.1


def test_smoothing_leaves_a_violation_in_proportion():
    """min (w - 1)^2 / 2 under w <= 0: 1 - w = penalty w / smoothing where that is below the weight."""
    w = torch.zeros((), requires_grad=True)
    criterion = ConstrainedLoss(1, penalty=2.0, smoothing=0.4, tau=1.0)
    for _ in range(2000):
        (gradient,) = torch.autograd.grad(criterion(0.5 * (w - 1.0).square(), w.reshape(1), [0]), w)
        with torch.no_grad():
            w -= 0.05 * gradient
    assert w.item() == pytest.approx(1 / (1 + 2.0 / 0.4), abs=1e-5)


def test_schedules_may_change_its_numbers():
    criterion = ConstrainedLoss(2, penalty=1.0, tau=0.5, initial=1.0)
    arguments = torch.tensor(0.0), torch.ones(2), [0, 1]
    assert criterion(*arguments).item() == 1.0
    criterion.penalty, criterion.smoothing = 3.0, 2.0
    assert criterion(*arguments).item() == pytest.approx(3.0 * 0.25)
    criterion.tau, criterion.gamma = 1.0, 0.5
    criterion(*arguments, torch.zeros(2))
    assert criterion.u.tolist() == [1.5, 1.5] and criterion.num_constraints == 2
    for name in ("penalty", "smoothing"):
        with pytest.raises(ValueError, match=rf"ConstrainedLoss: {name} must be a number in \[0, inf\), got -1"):
            setattr(criterion, name, -1)
    assert (criterion.penalty, criterion.smoothing) == (3.0, 2.0)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_constraints", 0, "num_constraints must be an integer of at least 1, got 0"),
        ("num_constraints", 2.0, "num_constraints must be an integer of at least 1, got 2.0"),
        ("penalty", -1.0, r"penalty must be a number in \[0, inf\), got -1.0"),
        ("penalty", None, r"penalty must be a number in \[0, inf\), got None"),
        ("smoothing", -0.1, r"smoothing must be a number in \[0, inf\), got -0.1"),
        ("smoothing", math.inf, r"smoothing must be a number in \[0, inf\), got inf"),
        ("tau", 0.0, r"tau must be a number in \(0, 1\], got 0.0"),
        ("gamma", -0.1, r"gamma must be a number in \[0, inf\), got -0.1"),
        ("initial", torch.zeros(4), r"initial must have shape \(3, 1\) or \(3,\), got \(4,\)"),
    ],
)
def test_arguments(name, value, message):
    with pytest.raises(ValueError, match=f"ConstrainedLoss: {message}"):
        ConstrainedLoss(**{"num_constraints": 3, "penalty": 1.0, name: value})


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (1.0, "objective must be a floating point tensor, got a float"),
        (torch.tensor(1), "objective must be a floating point tensor, got a torch.int64 tensor"),
        (torch.ones(1), r"objective must have shape \(\), got \(1,\)"),
        (torch.tensor(torch.nan), "objective must be finite, got nan"),
        (torch.tensor(torch.inf), "objective must be finite, got inf"),
        (torch.ones((), device="meta"), "objective must be on cpu, where the tables are, got meta"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_a_wrong_objective_is_named_and_changes_nothing(objective, message, training):
    criterion = ConstrainedLoss(3, penalty=1.0).train(training)
    with pytest.raises(ValueError, match=f"ConstrainedLoss: {message}"):
        criterion(objective, torch.ones(2), [0, 1])
    assert not criterion.table_u.visited.any()


def test_an_error_of_the_objective_that_is_found_later_leaves_no_gradient():
    criterion = ConstrainedLoss(3, penalty=1.0)
    criterion.checks = "late"
    objective, constraints = torch.tensor(torch.nan, requires_grad=True), torch.ones(2, requires_grad=True)
    loss = criterion(objective, constraints, torch.tensor([0, 1]))
    loss.backward()
    assert loss.isnan() and objective.grad == 0 and not constraints.grad.any()
    assert not criterion.table_u.visited.any()
    with pytest.raises(ValueError, match=r"ConstrainedLoss: objective must be finite, got nan .*call 1, found later"):
        criterion.check()


def test_a_loss_that_overflows_is_named():
    criterion = ConstrainedLoss(1, penalty=1e30)
    with pytest.raises(ValueError, match="ConstrainedLoss: the loss must be finite, got inf"):
        criterion(torch.zeros(()), torch.full((1,), 1e30), [0])
    assert not criterion.table_u.visited.any()


def test_rows_are_wide_enough_for_the_loss():
    criterion = ConstrainedLoss(2, penalty=1.0)
    loss = criterion(torch.zeros(()), torch.ones(2, dtype=torch.float64), [0, 1])
    assert loss.dtype == torch.float64 and criterion.u.dtype == torch.float64
    np.testing.assert_array_equal(criterion.u.numpy(), np.ones(2))
