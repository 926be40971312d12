"""100 steps of the losses, a `torch.optim` optimizer and `PreviousIterate` against the loop transcriptions."""

from __future__ import annotations

import math
import random

import oracles
import pytest
import torch
from torch import Tensor, nn

from moreauc import FCCOLoss, PreviousIterate, TCCOLoss

STEPS = 100
GAMMAS = [0.0, 0.1, "theory"]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def sign(x):
    return (x > 0) - (x < 0)


class TwoLevel:
    """g_i(w; xi)_k = |a.w - b| for even k, sin(a.w - b) for odd k; f_i(u) = (sum u - c_i)_+ + softplus(u_0)."""

    def __init__(self, seed: int, dim: int, n: int = 9, m: int = 6, d: int = 3) -> None:
        rng = random.Random(seed)
        self.n, self.m, self.d, self.dim = n, m, d, dim
        self.a = [[[[rng.gauss(0, 1) for _ in range(d)] for _ in range(dim)] for _ in range(m)] for _ in range(n)]
        self.b = [[[rng.gauss(0, 1) for _ in range(dim)] for _ in range(m)] for _ in range(n)]
        self.c = [rng.gauss(0.5 * dim, 0.5) for _ in range(n)]
        self.w0 = [rng.gauss(0, 1) for _ in range(d)]
        self.u0 = {i: [rng.gauss(0, 1) for _ in range(dim)] for i in range(n)}
        self.batches = []
        for _ in range(STEPS):
            blocks = rng.sample(range(n), 3)
            self.batches.append({i: [rng.randrange(m) for _ in range(2)] for i in blocks})

    def g(self, i, w, samples):
        out = [0.0] * self.dim
        for x in samples:
            for k in range(self.dim):
                z = dot(self.a[i][x][k], w) - self.b[i][x][k]
                out[k] += (abs(z) if k % 2 == 0 else math.sin(z)) / len(samples)
        return out

    def dg(self, i, w, samples):
        out = [[0.0] * self.d for _ in range(self.dim)]
        for x in samples:
            for k in range(self.dim):
                z = dot(self.a[i][x][k], w) - self.b[i][x][k]
                slope = sign(z) if k % 2 == 0 else math.cos(z)
                for c in range(self.d):
                    out[k][c] += slope * self.a[i][x][k][c] / len(samples)
        return out

    def df(self, i, u):
        out = [1.0 if sum(u) > self.c[i] else 0.0] * self.dim
        out[0] += 1 / (1 + math.exp(-u[0]))
        return out

    def outer(self, u: Tensor, index: Tensor) -> Tensor:
        flat = u.reshape(len(index), -1)
        return torch.relu(flat.sum(-1) - torch.tensor(self.c)[index]) + torch.nn.functional.softplus(flat[:, 0])


class TwoLevelModel(nn.Module):
    def __init__(self, problem: TwoLevel, scalar: bool) -> None:
        super().__init__()
        self.a, self.b, self.scalar = torch.tensor(problem.a), torch.tensor(problem.b), scalar
        self.w = nn.Parameter(torch.tensor(problem.w0))

    def forward(self, index: Tensor, samples: Tensor) -> Tensor:
        z = self.a[index.unsqueeze(1), samples] @ self.w - self.b[index.unsqueeze(1), samples]
        even = torch.arange(z.shape[-1]) % 2 == 0
        value = torch.where(even, z.abs(), z.sin()).mean(1)
        return value.squeeze(1) if self.scalar else value


def run_two_level(problem, *, tau, gamma, lr, bound, initial, scalar=False):
    model = TwoLevelModel(problem, scalar)
    start = torch.tensor([problem.u0[i] for i in range(problem.n)]) if initial else None
    criterion = FCCOLoss(problem.n, problem.outer, dim=problem.dim, tau=tau, gamma=gamma, bound=bound, initial=start)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    previous = PreviousIterate(model, optimizer)
    for batch in problem.batches:
        index, samples = torch.tensor(list(batch)), torch.tensor(list(batch.values()))
        before = previous(index, samples) if gamma else None
        loss = criterion(model(index, samples), index, before)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield model.w.detach(), criterion.u.reshape(problem.n, problem.dim), criterion.table_u.visited


def assert_table(rows: Tensor, visited: Tensor, expected: dict) -> None:
    assert sorted(expected) == visited.nonzero().squeeze(1).tolist()
    for i, row in expected.items():
        assert rows[i].tolist() == pytest.approx(row, rel=1e-10, abs=1e-10)


def revisits(blocks_by_step) -> tuple[int, int]:
    """How many visits follow one in the step before, and how many come back after a gap."""
    last: dict = {}
    at_once = after_gap = 0
    for step, blocks in enumerate(blocks_by_step):
        for block in blocks:
            if block in last:
                at_once += last[block] == step - 1
                after_gap += last[block] < step - 1
            last[block] = step
    return at_once, after_gap


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize(
    ("dim", "bound", "initial"), [(1, None, False), (1, 1.2, True), (3, None, True), (3, 1.2, False)]
)
def test_sonx_is_algorithm_1(float64, dim, gamma, bound, initial):
    problem = TwoLevel(seed=dim, dim=dim)
    settings = {"tau": 0.3, "gamma": gamma, "lr": 0.05, "bound": bound}
    at_once, after_gap = revisits(problem.batches)
    assert at_once > 25 and after_gap > 25
    start = problem.u0 if initial else {}
    functions = problem.g, problem.dg, problem.df
    twin = oracles.algorithm_1(problem.w0, start, problem.n, *functions, problem.batches, **settings)
    run = run_two_level(problem, initial=initial, **settings)
    for (w, u, visited), (w_twin, u_twin) in zip(run, twin, strict=True):
        assert w.tolist() == pytest.approx(w_twin, rel=1e-10, abs=1e-10)
        assert_table(u, visited, {**start, **u_twin})


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("tau", [0.05, 0.9, 1.0])
def test_moving_average_sonx_is_algorithm_6(float64, tau, scalar):
    problem = TwoLevel(seed=5, dim=1)
    twin = oracles.algorithm_6(problem.w0, {}, problem.g, problem.dg, problem.df, problem.batches, tau=tau, lr=0.05)
    run = run_two_level(problem, tau=tau, gamma=0.0, lr=0.05, bound=None, initial=False, scalar=scalar)
    for (w, u, visited), (w_twin, u_twin) in zip(run, twin, strict=True):
        assert w.tolist() == pytest.approx(w_twin, rel=1e-10, abs=1e-10)
        assert_table(u, visited, u_twin)


class ThreeLevel:
    """h_ij(w; xi)_e = a.w - b + 0.1 sin(a.w); g_i(v)_k = (p_ik.v + q_ik)_+; f_i(u) = (sum u - c_i)_+ + u_0."""

    def __init__(self, seed: int, dim_middle: int, dim_inner: int, n1: int = 4, n2: int = 5, m: int = 4, d: int = 3):
        rng = random.Random(seed)
        self.n1, self.n2, self.m, self.d, self.dm, self.di = n1, n2, m, d, dim_middle, dim_inner

        def gauss(*shape):
            return [gauss(*shape[1:]) for _ in range(shape[0])] if shape else rng.gauss(0, 1)

        self.a, self.b = gauss(n1, n2, m, dim_inner, d), gauss(n1, n2, m, dim_inner)
        self.p, self.q, self.c = gauss(n1, dim_middle, dim_inner), gauss(n1, dim_middle), gauss(n1)
        self.w0 = gauss(d)
        self.u0 = {i: gauss(dim_middle) for i in range(n1)}
        self.v0 = {(i, j): gauss(dim_inner) for i in range(n1) for j in range(n2)}
        self.batches = []
        for _ in range(STEPS):
            outers, inners = rng.sample(range(n1), 2), rng.sample(range(n2), 2)
            samples = {(i, j): [rng.randrange(m) for _ in range(2)] for i in outers for j in inners}
            self.batches.append((outers, inners, samples))

    def h(self, i, j, w, samples):
        out = [0.0] * self.di
        for x in samples:
            for e in range(self.di):
                z = dot(self.a[i][j][x][e], w)
                out[e] += (z - self.b[i][j][x][e] + 0.1 * math.sin(z)) / len(samples)
        return out

    def dh(self, i, j, w, samples):
        out = [[0.0] * self.d for _ in range(self.di)]
        for x in samples:
            for e in range(self.di):
                slope = 1 + 0.1 * math.cos(dot(self.a[i][j][x][e], w))
                for c in range(self.d):
                    out[e][c] += slope * self.a[i][j][x][e][c] / len(samples)
        return out

    def g(self, i, v):
        return [max(dot(self.p[i][k], v) + self.q[i][k], 0.0) for k in range(self.dm)]

    def dg(self, i, v):
        return [
            [self.p[i][k][e] if dot(self.p[i][k], v) + self.q[i][k] > 0 else 0.0 for e in range(self.di)]
            for k in range(self.dm)
        ]

    def df(self, i, u):
        out = [1.0 if sum(u) > self.c[i] else 0.0] * self.dm
        out[0] += 1.0
        return out

    def outer(self, u: Tensor, index: Tensor) -> Tensor:
        return torch.relu(u.sum(-1) - torch.tensor(self.c)[index]) + u[:, 0]

    def middle(self, v: Tensor, index: Tensor) -> Tensor:
        p, q = torch.tensor(self.p)[index], torch.tensor(self.q)[index]
        return torch.relu(torch.einsum("ike,ije->ijk", p, v) + q.unsqueeze(1))


class ThreeLevelModel(nn.Module):
    def __init__(self, problem: ThreeLevel) -> None:
        super().__init__()
        self.a, self.b = torch.tensor(problem.a), torch.tensor(problem.b)
        self.w = nn.Parameter(torch.tensor(problem.w0))

    def forward(self, i: Tensor, j: Tensor, samples: Tensor) -> Tensor:
        z = self.a[i[:, None, None], j[None, :, None], samples] @ self.w
        return (z - self.b[i[:, None, None], j[None, :, None], samples] + 0.1 * z.sin()).mean(2)


def run_three_level(problem, *, tau1, tau2, gamma1, gamma2, lr, bound, initial):
    model = ThreeLevelModel(problem)
    n1, n2 = problem.n1, problem.n2
    criterion = TCCOLoss(
        n1,
        n2,
        problem.outer,
        problem.middle,
        dim_middle=problem.dm,
        dim_inner=problem.di,
        tau1=tau1,
        tau2=tau2,
        gamma1=gamma1,
        gamma2=gamma2,
        bound=bound,
        initial_u=torch.tensor([problem.u0[i] for i in range(n1)]) if initial else None,
        initial_v=torch.tensor([[problem.v0[i, j] for j in range(n2)] for i in range(n1)]) if initial else None,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    previous = PreviousIterate(model, optimizer)
    for outers, inners, samples in problem.batches:
        i, j = torch.tensor(outers), torch.tensor(inners)
        x = torch.tensor([[samples[a, b] for b in inners] for a in outers])
        h = model(i, j, x)
        loss = criterion(h, i, j, previous(i, j, x) if gamma1 else None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield model.w.detach(), criterion


def assert_three_level(problem, twin, **settings):
    for (w, criterion), (w_twin, u_twin, v_twin) in zip(run_three_level(problem, **settings), twin, strict=True):
        assert w.tolist() == pytest.approx(w_twin, rel=1e-10, abs=1e-10)
        assert_table(criterion.u.reshape(problem.n1, problem.dm), criterion.table_u.visited, u_twin)
        flat = {i * problem.n2 + j: row for (i, j), row in v_twin.items()}
        assert_table(criterion.v.reshape(-1, problem.di), criterion.table_v.visited, flat)


@pytest.mark.parametrize(
    ("gamma1", "gamma2"), [(0.0, 0.0), (0.1, 0.1), ("theory", "theory"), (0.0, "theory"), (0.2, 0.0)]
)
@pytest.mark.parametrize(
    ("dim_middle", "dim_inner", "bound", "initial"),
    [(1, 1, None, False), (1, 1, 1.0, True), (2, 3, None, True), (2, 3, 1.0, False)],
)
def test_sont_is_algorithm_3(float64, dim_middle, dim_inner, gamma1, gamma2, bound, initial):
    problem = ThreeLevel(7 + dim_inner, dim_middle, dim_inner)
    settings = {"tau1": 0.4, "tau2": 0.3, "gamma1": gamma1, "gamma2": gamma2, "lr": 0.02, "bound": bound}
    pairs = [[(i, j) for i in outers for j in inners] for outers, inners, _ in problem.batches]
    assert min(revisits(pairs)) > 25
    functions = problem.h, problem.dh, problem.g, problem.dg, problem.df
    start, sizes = (problem.u0, problem.v0) if initial else ({}, {}), (problem.n1, problem.n2)
    twin = oracles.algorithm_3(problem.w0, *start, sizes, *functions, problem.batches, **settings)
    assert_three_level(problem, twin, initial=initial, **settings)


@pytest.mark.parametrize(("tau1", "tau2"), [(0.05, 0.9), (0.5, 0.1), (1.0, 1.0)])
def test_moving_average_sont_is_algorithm_7(float64, tau1, tau2):
    problem = ThreeLevel(3, 2, 2)
    functions = problem.h, problem.dh, problem.g, problem.dg, problem.df
    settings = {"tau1": tau1, "tau2": tau2, "lr": 0.02}
    twin = oracles.algorithm_7(problem.w0, {}, {}, *functions, problem.batches, **settings)
    assert_three_level(problem, twin, gamma1=0.0, gamma2=0.0, bound=None, initial=False, **settings)


class Threshold(nn.Module):
    """CVaR with a threshold to be learned: f(u; s) = s + (u - s)_+ / alpha."""

    def __init__(self, alpha: float, start: float) -> None:
        super().__init__()
        self.alpha = alpha
        self.s = nn.Parameter(torch.tensor(start))

    def forward(self, u: Tensor, index: Tensor) -> Tensor:
        return self.s + torch.relu(u - self.s) / self.alpha


def test_parameters_of_outer_and_middle_get_the_papers_gradient(float64):
    """As s' and s in the TPAUC algorithms: gradients at u_t and v_t, and the correction of u at s_{t-1}."""
    problem = ThreeLevel(11, 1, 1)
    lr, tau1, tau2, gamma1, gamma2, alpha, beta = 0.02, 0.4, 0.3, 0.1, 1.5, 0.5, 0.7
    model = ThreeLevelModel(problem)
    outer, middle = Threshold(alpha, 0.3), Threshold(beta, -0.2)
    criterion = TCCOLoss(problem.n1, problem.n2, outer, middle, tau1=tau1, tau2=tau2, gamma1=gamma1, gamma2=gamma2)
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=lr)
    previous = PreviousIterate(model, optimizer)

    s_outer, s_middle, s_middle_before = 0.3, -0.2, -0.2
    u, v, v_before, w, w_before = {}, {}, {}, list(problem.w0), list(problem.w0)
    for outers, inners, samples in problem.batches:
        i, j = torch.tensor(outers), torch.tensor(inners)
        x = torch.tensor([[samples[a, b] for b in inners] for a in outers])
        loss = criterion(model(i, j, x).squeeze(-1), i, j, previous(i, j, x).squeeze(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        grad_outer = grad_middle = 0.0
        grad_w = [0.0] * problem.d
        u_next, v_next, v_seen = dict(u), dict(v), dict(v)
        for a in outers:
            mean = mean_before = slope_s = 0.0
            chain = [0.0] * problem.d
            for b in inners:
                now, before = (problem.h(a, b, point, samples[a, b])[0] for point in (w, w_before))
                row = v.get((a, b), now)
                v_seen[a, b] = row
                row_before = v_before.get((a, b), row)
                v_next[a, b] = (1 - tau1) * row + tau1 * now + gamma1 * (now - before)
                mean += (s_middle + max(row - s_middle, 0) / beta) / 2
                mean_before += (s_middle_before + max(row_before - s_middle_before, 0) / beta) / 2
                slope_s += (1 - (row > s_middle) / beta) / 2
                jacobian = problem.dh(a, b, w, samples[a, b])[0]
                for c in range(problem.d):
                    chain[c] += (row > s_middle) / beta * jacobian[c] / 2
            row = u.get(a, mean)
            u_next[a] = (1 - tau2) * row + tau2 * mean + gamma2 * (mean - mean_before)
            slope = (row > s_outer) / alpha
            grad_outer += (1 - slope) / 2
            grad_middle += slope * slope_s / 2
            for c in range(problem.d):
                grad_w[c] += slope * chain[c] / 2
        v_before, v, u = v_seen, v_next, u_next
        s_middle_before = s_middle
        s_outer -= lr * grad_outer
        s_middle -= lr * grad_middle
        w_before, w = w, [w[c] - lr * grad_w[c] for c in range(problem.d)]

        assert outer.s.item() == pytest.approx(s_outer, abs=1e-10)
        assert middle.s.item() == pytest.approx(s_middle, abs=1e-10)
        assert model.w.tolist() == pytest.approx(w, abs=1e-10)
        assert [criterion.u[a].item() for a in sorted(u)] == pytest.approx([u[a] for a in sorted(u)], abs=1e-10)
