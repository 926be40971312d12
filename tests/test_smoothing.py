"""Moreau envelopes of outer functions: proximal points against a search on grids, SONEX, its limits, its errors."""

from __future__ import annotations

import itertools
import random

import oracles
import pytest
import torch
from scipy.optimize import minimize_scalar
from test_algorithms import STEPS, TwoLevel, TwoLevelModel
from torch import nn

from moreauc import FCCOLoss, GroupDROLoss, MultiInstanceTPAUCLoss, PreviousIterate, TCCOLoss, TPAUCLoss
from moreauc.core.outer import (
    cvar,
    prox_absolute,
    prox_cvar,
    prox_cvar_jointly,
    prox_maximum,
    prox_positive_part,
    smoothed_quantile,
    upper_quantile,
)
from moreauc.optim import ProximalPoint

LABELS = [0, 1, 0, 0, 1, 1, 0, 1, 0, 0, 1, 0]


def search(function, centre, reach, zooms=40):
    """Return the smallest value of a function over ever finer grids around the best point so far, and that point."""
    best, point = function(centre), tuple(centre)
    for _ in range(zooms):
        shifts = itertools.product([-1.0, -0.5, 0.0, 0.5, 1.0], repeat=len(centre))
        grid = [tuple(a + reach * b for a, b in zip(point, shift, strict=True)) for shift in shifts]
        best, point = min((function(there), there) for there in grid)
        reach *= 0.7
    return best, point


FUNCTIONS = {
    "positive part": (1, lambda v: max(v[0], 0.0), lambda u, lam: prox_positive_part(u, lam)),
    "steeper": (1, lambda v: 2.5 * max(v[0], 0.0), lambda u, lam: prox_positive_part(u, lam, 2.5)),
    "absolute": (1, lambda v: abs(v[0]), lambda u, lam: prox_absolute(u, lam)),
    "maximum of one": (1, max, lambda u, lam: prox_maximum(u, lam)),
    "maximum of two": (2, max, lambda u, lam: prox_maximum(u, lam)),
    "maximum of four": (4, max, lambda u, lam: prox_maximum(u, lam)),
    "cvar": (1, lambda v: 0.3 + max(v[0] - 0.3, 0.0) / 0.4, lambda u, lam: prox_cvar(u, 0.3, 0.4, lam)),
    "cvar jointly": (
        2,
        lambda v: v[1] + max(v[0] - v[1], 0.0) / 0.4,
        lambda u, lam: torch.stack(prox_cvar_jointly(u[..., 0], u[..., 1], 0.4, lam), -1),
    ),
}


@pytest.mark.parametrize("smoothing", [0.05, 0.7, 3.0])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_proximal_points_are_those_of_a_search(name, smoothing):
    dim, function, prox = FUNCTIONS[name]
    points = torch.randn(5 if dim > 2 else 20, dim, dtype=torch.float64) * 2.0
    found = prox(points, smoothing)
    assert found.shape == points.shape
    for u, near in zip(points.tolist(), found.tolist(), strict=True):

        def objective(v, u=u):
            return function(v) + sum((a - b) ** 2 for a, b in zip(u, v, strict=True)) / (2.0 * smoothing)

        best, point = search(objective, u, 2.0 + 3.0 * smoothing)
        assert objective(near) <= best + 1e-12  # no point of the grids is lower
        assert near == pytest.approx(point, abs=1e-3)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_proximal_points_at_kinks_and_far_from_them(name):
    dim, function, prox = FUNCTIONS[name]
    for values in ([0.0] * dim, [0.3] * dim, [1e6] * dim, [-1e6] * dim):
        u = torch.tensor([values], dtype=torch.float64)
        near = prox(u, 0.5)[0].tolist()
        assert torch.isfinite(torch.tensor(near)).all()

        def objective(v, values=values):
            return function(v) + sum((a - b) ** 2 for a, b in zip(values, v, strict=True))

        for _ in range(200):
            other = [x + 0.1 * torch.randn(()).item() for x in near]
            assert objective(near) <= objective(other) + 1e-9 * (1.0 + abs(objective(near)))


@pytest.mark.parametrize("smoothing", [1e-300, 0.02, 1.5])
def test_value_and_slope_are_those_of_the_envelope(smoothing):
    rows, s, fraction = torch.randn(200, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64), 0.3
    rows[:3] = torch.tensor([0.1, 0.1 + smoothing / fraction, -5.0])
    rows.requires_grad_()
    near = prox_cvar(rows.detach(), s, fraction, smoothing)
    values = s + torch.relu(near - s) / fraction + (near - rows).square() / (2.0 * smoothing)
    value, slope = cvar(rows.detach(), s, fraction, torch.mean, smoothing=smoothing)
    if smoothing > 1e-100:  # else the difference of two numbers is 0
        torch.testing.assert_close(value, values.mean().detach())
        torch.testing.assert_close(slope, torch.autograd.grad(values.sum(), rows)[0])
    plain, _ = cvar(rows.detach(), s, fraction, torch.mean)
    assert plain - smoothing / (2.0 * fraction**2) - 1e-12 <= value <= plain + 1e-12
    assert torch.isfinite(slope).all()


@pytest.mark.parametrize(("fraction", "smoothing"), [(0.3, 0.2), (0.5, 0.001), (0.1, 2.0), (0.95, 0.4), (1.0, 0.3)])
def test_the_best_threshold_of_the_envelope(fraction, smoothing):
    rows = torch.randn(20, dtype=torch.float64)
    found = smoothed_quantile(rows, fraction, smoothing)

    def mean(s):
        return cvar(rows, torch.as_tensor(s, dtype=torch.float64), fraction, torch.mean, smoothing=smoothing)

    best = minimize_scalar(lambda s: mean(s)[0].item(), bounds=(-20.0, 20.0), method="bounded", options={"xatol": 1e-9})
    assert mean(found)[0].item() <= best.fun + 1e-12
    counted = fraction * mean(found)[1].sum().item()
    assert counted == pytest.approx(max(1, int(20 * fraction + 1e-9)), rel=1e-9)


def test_the_best_threshold_counts_visited_rows_and_weights():
    values = torch.tensor([5.0, 1.0, 3.0, 2.0, 4.0, -9.0], dtype=torch.float64)
    counts = torch.tensor([1, 3, 2, 1, 2, 0])
    many = values.repeat_interleave(counts)
    for fraction in (0.2, 0.45, 0.7, 1.0):
        visited = smoothed_quantile(values, fraction, 0.3, counts > 0)
        torch.testing.assert_close(visited, smoothed_quantile(values[:5], fraction, 0.3))
        for smoothing in (1e-9, 0.3):
            weighted = smoothed_quantile(values, fraction, smoothing, counts > 0, counts.double())
            # the weight above is that of whole rows
            level = upper_quantile(values, fraction, counts > 0, counts.double())
            share = int((many > level).sum()) / len(many)
            torch.testing.assert_close(weighted, smoothed_quantile(many, share, smoothing * share / fraction))


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.5, 1.0])
def test_the_best_threshold_tends_to_the_quantile(fraction):
    rows = torch.randn(30, dtype=torch.float64)
    rows[3] = rows[4]
    torch.testing.assert_close(smoothed_quantile(rows, fraction, 1e-12), upper_quantile(rows, fraction))


class Outer:
    """f_i(u) = 2 (u - c_i)_+ for numbers and max_k (u_k - c_ik) for vectors; `plain` shares no code with `prox`."""

    def __init__(self, dim: int) -> None:
        rng = random.Random(dim)
        self.dim, self.c = dim, [[rng.gauss(0.7, 0.3) for _ in range(dim)] for _ in range(9)]

    def __call__(self, u, index):
        below = u.reshape(len(index), -1) - torch.tensor(self.c, dtype=u.dtype)[index]
        return torch.relu(2.0 * below[:, 0]) if self.dim == 1 else below.amax(1)

    def prox(self, u, index, smoothing):
        c = torch.tensor(self.c, dtype=u.dtype)[index].view_as(u)
        return c + (prox_positive_part(u - c, smoothing, 2.0) if self.dim == 1 else prox_maximum(u - c, smoothing))

    def plain(self, i, u, smoothing):
        below = [a - b for a, b in zip(u, self.c[i], strict=True)]
        if self.dim == 1:
            return [self.c[i][0] + below[0] - smoothing * oracles.hinge(below[0], 2.0, smoothing)[1]]
        low, high = max(below) - smoothing, max(below)  # cut at the level above which there is `smoothing` in all
        while low < (level := (low + high) / 2) < high:
            cut = sum(max(x - level, 0.0) for x in below)
            low, high = (level, high) if cut > smoothing else (low, level)
        return [c + min(x, level) for c, x in zip(self.c[i], below, strict=True)]


@pytest.mark.parametrize("given", [True, False], ids=["closed form", "search"])
@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize(("gamma", "momentum"), [(0.0, 0.0), (0.1, 0.9), ("theory", 0.7)])
def test_sonex_is_its_transcription(float64, dim, gamma, momentum, given):
    problem, outer = TwoLevel(seed=dim, dim=dim), Outer(dim)
    if not given:
        problem.batches = problem.batches[:15]
    settings = {"tau": 0.3, "gamma": gamma, "smoothing": 0.2}
    twin = oracles.sonex(
        *(problem.w0, problem.n, problem.g, problem.dg, outer.plain, problem.batches),
        **{"lr": 0.05, "momentum": momentum, **settings},
    )
    model = TwoLevelModel(problem, scalar=False)
    criterion = FCCOLoss(problem.n, outer, dim=dim, prox=outer.prox if given else None, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum, dampening=momentum)
    previous = PreviousIterate(model, optimizer)
    tolerance, steps = 1e-9 if given else 1e-5, 0
    for batch, (w, u) in zip(problem.batches, twin, strict=True):
        index, samples = torch.tensor(list(batch)), torch.tensor(list(batch.values()))
        before = previous(index, samples) if gamma else None
        optimizer.zero_grad()
        criterion(model(index, samples), index, before).backward()
        optimizer.step()
        assert model.w.tolist() == pytest.approx(w, rel=tolerance, abs=tolerance)
        for i, row in u.items():
            assert criterion.u.reshape(problem.n, dim)[i].tolist() == pytest.approx(row, rel=tolerance, abs=tolerance)
        steps += 1
    assert steps == STEPS or not given


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("theta", [0.0, 0.5, 1.0])
def test_alexr2_is_a_loss_and_a_proximal_point(float64, dim, theta):
    """The step of the pull is explicit: with lr / (1 + lr weight) it is the implicit one. `restart` takes the mean."""
    problem, outer = TwoLevel(seed=dim, dim=dim), Outer(dim)
    tau, smoothing, weight, inner_steps, lr = 0.3, 0.2, 2.0, 7, 0.1
    twin = oracles.alexr2(
        *(problem.w0, problem.g, problem.dg, outer.plain, problem.batches),
        **{"tau": tau, "theta": theta, "smoothing": smoothing, "weight": weight, "inner_steps": inner_steps},
        **{"lr": lr, "centre_lr": 1.0 / weight, "momentum": 0.0, "mean": True},
    )
    model = TwoLevelModel(problem, scalar=False)
    criterion = FCCOLoss(
        *(problem.n, outer),
        **{"dim": dim, "tau": tau, "gamma": theta * tau, "smoothing": smoothing, "rows": "after", "prox": outer.prox},
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=lr / (1.0 + lr * weight))
    previous, centre = PreviousIterate(model, optimizer), ProximalPoint(optimizer, weight=weight)
    steps = 0
    for batch, (w, z, u) in zip(problem.batches, twin, strict=True):
        index, samples = torch.tensor(list(batch)), torch.tensor(list(batch.values()))
        before = previous(index, samples) if theta else None
        optimizer.zero_grad()
        criterion(model(index, samples), index, before).backward()
        optimizer.step()
        steps += 1
        if steps % inner_steps == 0:
            centre.restart()
        assert model.w.tolist() == pytest.approx(z, rel=1e-9, abs=1e-9)
        assert centre.state_dict()["reference"][0].tolist() == pytest.approx(w, rel=1e-9, abs=1e-9)
        for i, row in u.items():
            assert criterion.u.reshape(problem.n, dim)[i].tolist() == pytest.approx(row, rel=1e-9, abs=1e-9)
    assert steps == STEPS


@pytest.mark.parametrize("rate", [0.3, 2.0])
def test_moving_rows_are_mirror_ascent_of_dual_variables(rate):
    """max_y y g - f*(y) - D(y, y_k) / rate, D of f*, has the solution slope((u + rate g) / (1 + rate)), slope of f."""
    top, smoothing = 2.0, 0.4  # f* of the envelope is smoothing / 2 y^2 on [0, top]
    dual = torch.linspace(0.0, top, 100_001, dtype=torch.float64)
    for u, g in torch.randn(50, 2, dtype=torch.float64).tolist():
        held = oracles.hinge(u, top, smoothing)[1]
        # u is a subgradient of f* at `held`, also where that is an end of the interval
        distance = smoothing / 2 * (dual**2 - held**2) - u * (dual - held)
        best = dual[(dual * g - smoothing / 2 * dual**2 - distance / rate).argmax()].item()
        tau = rate / (1.0 + rate)
        assert best == pytest.approx(oracles.hinge((1 - tau) * u + tau * g, top, smoothing)[1], abs=1e-4)


class Hinge(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor(0.4))

    def forward(self, u, index):
        return self.s + torch.relu(u - self.s) / 0.5


def smoothed(x, top, smoothing):
    return torch.where(x > smoothing * top, top * x - smoothing * top**2 / 2, x.clamp_min(0.0) ** 2 / (2 * smoothing))


@pytest.mark.parametrize("training", [True, False])
def test_one_block_is_the_envelope_of_a_composition(float64, training):
    w = torch.tensor([1.0, -2.0], requires_grad=True)
    outer = Hinge()
    criterion = FCCOLoss(
        1, outer, tau=1.0, smoothing=0.6, prox=lambda u, i, lam: prox_cvar(u, outer.s, 0.5, lam)
    ).train(training)
    for scale in (5.0, 2.0, 20.0):  # inside of the interval between the kinks of the envelope, 0.4 and 1.6, and outside
        for _ in range(2):  # the row is that of the last step
            inner = (w.square().sum() / scale).reshape(1)
            wanted = outer.s + smoothed(inner - outer.s, 2.0, 0.6)
            loss = criterion(inner, torch.tensor([0]))
        assert loss.item() == pytest.approx(wanted.item())
        for got, expected in zip(
            *(torch.autograd.grad(x.sum(), [w, outer.s], retain_graph=True) for x in (loss, wanted)), strict=True
        ):
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("prox", [None, lambda u, i, lam: prox_cvar(u, 0.4, 0.5, lam)], ids=["none", "constant"])
def test_a_learned_outer_function_needs_a_prox_that_follows_it(prox):
    criterion = FCCOLoss(3, Hinge(), tau=0.5, smoothing=0.6, prox=prox)
    with pytest.raises(ValueError, match="FCCOLoss: prox must be given, and depend on the parameters of outer"):
        criterion(torch.ones(2), torch.arange(2))
    assert not criterion.table_u.visited.any()
    with torch.no_grad():
        assert torch.isfinite(criterion(torch.ones(2), torch.arange(2)))


@pytest.mark.parametrize("make", ["rows", "bags"])
def test_a_full_batch_has_the_gradient_of_the_smoothed_objective(float64, make):
    labels, scores = torch.tensor(LABELS), torch.randn(12, requires_grad=True)
    options = {"min_tpr": 0.4, "max_fpr": 0.5, "margin": 1.0, "link": "identity", "smoothing": 0.8, "tau": 1.0}
    options["threshold_lr"] = (0.0, 0.3)  # rows are of the last step: they are those of now where s stays
    batch = [scores, labels, torch.arange(12)]
    if make == "rows":
        criterion = TPAUCLoss(LABELS, **options)
    else:
        criterion = MultiInstanceTPAUCLoss(LABELS, pooling="mean", **options)
        batch.insert(1, torch.arange(12))
    for _ in range(3):
        s, prime = criterion.s.clone(), criterion.s_prime.clone()
        loss = criterion(*batch)
        (gradient,) = torch.autograd.grad(loss, scores)
        pairs = torch.relu(1.0 + scores[labels == 0] - scores[labels == 1].unsqueeze(1)).square()
        psi = s + torch.relu(pairs - s.unsqueeze(1)).mean(1) / 0.5
        wanted = (prime + smoothed(psi - prime, 1.0 / 0.6, 0.8)).mean()
        torch.testing.assert_close(loss, wanted)
        torch.testing.assert_close(gradient, torch.autograd.grad(wanted, scores)[0])
        assert bool(((psi > prime) & (psi < prime + 0.8 / 0.6)).any())  # one positive is between the kinks


def test_all_groups_have_the_gradient_of_the_smoothed_objective(float64):
    losses, groups = torch.randn(40, requires_grad=True), torch.arange(40) % 8
    criterion = GroupDROLoss(8, top_k=2, tau=1.0, smoothing=0.3)
    means = torch.stack([losses[groups == k].mean() for k in range(8)])
    for _ in range(3):
        s = criterion.s.clone()
        loss = criterion(losses, groups)
        wanted = (s + smoothed(means - s, 4.0, 0.3)).mean()
        torch.testing.assert_close(loss, wanted)
        got, expected = (torch.autograd.grad(x, losses, retain_graph=True)[0] for x in (loss, wanted))
        torch.testing.assert_close(got, expected)
        assert criterion.s.item() == pytest.approx(s - 0.01 * (1.0 - 40 * expected.sum() / 40))


def drive(criterion, steps=40, seed=0):
    """Return losses, gradients and the state after some steps of any of the losses, with fixed scores."""
    random = torch.Generator().manual_seed(seed)
    results = []
    for _ in range(steps):
        if isinstance(criterion, GroupDROLoss):
            values = torch.randn(12, generator=random, dtype=torch.float64)
            batch = [torch.randint(0, 7, (12,), generator=random), values + 0.1]
        elif isinstance(criterion, FCCOLoss):
            values = torch.randn(4, generator=random, dtype=torch.float64)
            batch = [torch.randperm(9, generator=random)[:4], values + 0.1]
        elif isinstance(criterion, TCCOLoss):
            values = torch.randn(3, 2, generator=random, dtype=torch.float64)
            batch = [torch.randperm(6, generator=random)[:3], torch.randperm(5, generator=random)[:2], values + 0.1]
        else:
            values = torch.randn(12, generator=random, dtype=torch.float64)
            batch = [torch.tensor(LABELS), torch.arange(12), values + 0.1]
            if isinstance(criterion, MultiInstanceTPAUCLoss):
                batch.insert(0, torch.arange(12))
        values.requires_grad_()
        loss = criterion(values, *batch)
        results += [loss.detach(), torch.autograd.grad(loss, values)[0]]
    return results, criterion.state_dict()


def positive(u, index):
    return torch.relu(u - 0.05)


REGION = {"min_tpr": 0.4, "max_fpr": 0.5, "link": "identity", "gamma": 0.1}
PROX = {"prox": lambda u, index, smoothing: 0.05 + prox_positive_part(u - 0.05, smoothing)}
LOSSES = {
    "FCCOLoss": lambda **options: FCCOLoss(9, positive, tau=0.5, gamma=0.1, **PROX, **options),
    "TCCOLoss": lambda **options: TCCOLoss(
        6, 5, positive, lambda v, i: torch.sin(v), tau1=0.5, tau2=0.5, gamma1=0.1, **PROX, **options
    ),
    "TPAUCLoss": lambda **options: TPAUCLoss(LABELS, **REGION, **options),
    "TPAUCLoss quantile": lambda **options: TPAUCLoss(LABELS, threshold_lr="quantile", **REGION, **options),
    "MultiInstanceTPAUCLoss": lambda **options: MultiInstanceTPAUCLoss(LABELS, pooling="mean", **REGION, **options),
    "GroupDROLoss": lambda **options: GroupDROLoss(7, top_k=2, gamma=0.1, **options),
    "GroupDROLoss quantile": lambda **options: GroupDROLoss(7, top_k=2, threshold_lr="quantile", gamma=0.1, **options),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_tends_to_that_without_smoothing(name):
    plain, plain_state = drive(LOSSES[name]())
    for smoothing, tolerance in ((0.0, 0.0), (1e-9, 1e-6)):
        near, state = drive(LOSSES[name](smoothing=smoothing))
        for one, other in zip(plain, near, strict=True):
            torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance)
        for key, value in plain_state.items():
            torch.testing.assert_close(state[key], value, rtol=tolerance, atol=tolerance)
    far, _ = drive(LOSSES[name](smoothing=0.5))
    assert max((one - other).abs().max() for one, other in zip(plain, far, strict=True)) > 1e-2


def test_the_envelope_is_found_without_its_proximal_point():
    given, searched = (
        FCCOLoss(4, lambda u, i: u.amax(1), dim=3, tau=0.5, smoothing=0.3, prox=prox).double()
        for prox in (lambda u, i, smoothing: prox_maximum(u, smoothing), None)
    )
    for seed in range(5):
        inner = torch.randn(
            4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed), requires_grad=True
        )
        values = [criterion(inner, torch.arange(4)) for criterion in (given, searched)]
        torch.testing.assert_close(*values, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(*(torch.autograd.grad(v, inner)[0] for v in values), rtol=1e-5, atol=1e-5)


def test_half_types_are_searched_in_the_type_that_the_outer_function_knows():
    outer = nn.Sequential(nn.Linear(3, 1), nn.ReLU()).requires_grad_(False)
    criterion = FCCOLoss(4, outer=lambda u, i: outer(u), dim=3, tau=0.5, smoothing=0.3)
    inner = torch.randn(4, 3, requires_grad=True)
    loss = criterion(inner, torch.arange(4))
    loss.backward()
    assert loss.dtype == torch.float32 and torch.isfinite(inner.grad).all()


@pytest.mark.parametrize("name", LOSSES)
def test_smoothing_is_checked(name):
    owner = name.split()[0]
    for wrong, text in ((-0.1, "-0.1"), (float("inf"), "inf"), (float("nan"), "nan"), ("big", "'big'"), (True, "True")):
        with pytest.raises(ValueError, match=rf"{owner}: smoothing must be a number in \[0, inf\), got {text}"):
            LOSSES[name](smoothing=wrong)
    criterion = LOSSES[name](smoothing=0.1)
    with pytest.raises(ValueError, match=rf"{owner}: smoothing must be a number in \[0, inf\), got -1"):
        criterion.smoothing = -1
    assert criterion.smoothing == 0.1
    criterion.smoothing = 0
    assert criterion.smoothing == 0.0 and "smoothing=0" in repr(criterion)


BAD_PROX = {
    "wrong shape": (lambda u, i, s: u.sum(), r"what prox returns must have shape \(2,\), got \(\)"),
    "a column": (lambda u, i, s: u.unsqueeze(1), r"what prox returns must have shape \(2,\), got \(2, 1\)"),
    "integers": (lambda u, i, s: u.long(), "prox must return a floating point tensor, got a torch.int64 tensor"),
    "not a tensor": (lambda u, i, s: 1.0, "prox must return a floating point tensor, got a float"),
    "nan": (lambda u, i, s: u * torch.nan, "what prox returns must be finite, got nan"),
}


@pytest.mark.parametrize("bad", BAD_PROX)
def test_a_bad_prox_is_named_and_changes_nothing(bad):
    prox, message = BAD_PROX[bad]
    criterion = FCCOLoss(4, positive, tau=0.5, smoothing=0.1, prox=prox)
    with pytest.raises(ValueError, match=f"FCCOLoss: {message}"):
        criterion(torch.tensor([1.0, 2.0]), torch.tensor([0, 3]))
    assert not criterion.table_u.visited.any()
    three = TCCOLoss(4, 5, positive, lambda v, i: v, tau1=0.5, tau2=0.5, smoothing=0.1, prox=prox)
    with pytest.raises(ValueError, match=f"TCCOLoss: {message}"):
        three(torch.ones(2, 2), torch.tensor([0, 3]), torch.tensor([0, 1]))
    assert not three.table_u.visited.any() and not three.table_v.visited.any()


@pytest.mark.parametrize(
    ("outer", "message"),
    [
        (lambda u, i: -u.square(), "smoothing=1; give prox, or a smaller smoothing .*weak convexity modulus"),
        (lambda u, i: torch.log(u), "smoothing=1; give prox, or a smaller smoothing .*must have a finite"),
        (lambda u, i: torch.ones(len(u)), "must return a value that depends on its argument"),
    ],
)
def test_a_proximal_point_that_is_not_found_is_named_and_changes_nothing(outer, message):
    criterion = FCCOLoss(4, outer, tau=0.5, smoothing=1.0)
    with pytest.raises(ValueError, match=f"FCCOLoss: outer must have a proximal point that can be found .*{message}"):
        criterion(torch.tensor([-1.0, -2.0]), torch.tensor([0, 3]))
    assert not criterion.table_u.visited.any()


def test_prox_must_be_callable():
    with pytest.raises(ValueError, match="FCCOLoss: prox must be callable, got 3"):
        FCCOLoss(4, positive, tau=0.5, smoothing=0.1, prox=3)
