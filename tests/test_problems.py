"""The problems of the convergence study: the definition by loops, the optimum, the constants that bounds rest on."""

from __future__ import annotations

import pytest
import torch

from experiments.problems import BagRanking, CVaRAbsoluteLoss, HingedSquares, WorstOfLosses
from experiments.problems.base import LinearProgram
from moreauc.solver import ThreeLevelProblem
from moreauc.theory import moreau_envelope

PROBLEMS = {
    "cvar": CVaRAbsoluteLoss(num_blocks=12, num_samples=5, num_features=2),
    "cvar, all": CVaRAbsoluteLoss(num_blocks=6, num_samples=5, num_features=2, alpha=1.0, seed=3),
    "worst": WorstOfLosses(num_blocks=8, num_samples=6, num_features=2),
    "squares": HingedSquares(num_blocks=8, num_samples=6),
    "bags": BagRanking(num_positives=6, num_negatives=7, num_instances=4, num_features=2),
}
EVERY = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)


def loop_objective(problem, w):
    """The objective from its docstring, by loops."""
    x, n, m, total = w.tolist(), problem.num_outer, problem.num_samples, 0.0

    def dot(a, y):
        return sum(p * q for p, q in zip(a.tolist(), y, strict=True))

    def loss(i, k, y):
        return sum(abs(dot(problem.a[i, s, k], y) - float(problem.b[i, s, k])) for s in range(m)) / m

    for i in range(n):
        if isinstance(problem, CVaRAbsoluteLoss):
            total += x[-1] + max(loss(i, 0, x[:-1]) - x[-1], 0) / problem.alpha
        elif isinstance(problem, WorstOfLosses):
            total += max(loss(i, k, x) for k in range(problem.dim_block))
        elif isinstance(problem, HingedSquares):
            total += max(loss(i, 0, [y * y for y in x]) - problem.level, 0)
        else:
            own, others = (
                [sum(dot(row, x[:-1]) for row in bag) / m for bag in bags]
                for bags in (problem.positive, problem.negative)
            )
            mean = sum(max(1 + other - own[i], 0) for other in others) / problem.num_inner
            total += x[-1] + max(mean - x[-1], 0) / problem.alpha
    return total / n


@EVERY
def test_objective_is_the_definition(problem):
    points = torch.randn(5, problem.dim, dtype=torch.float64)
    expected = [loop_objective(problem, point) for point in points]
    assert problem.objective(points).tolist() == pytest.approx(expected, abs=1e-12)


@EVERY
def test_the_optimum_is_the_lowest_point_and_stationary(problem):
    optimum, rho = problem.optimum, problem.weak_convexity
    for scale in (1e-6, 1e-3, 0.1, 1.0, 10.0):
        near = optimum.point + scale * torch.randn(400, problem.dim, dtype=torch.float64)
        assert problem.objective(near).min() >= optimum.value - 1e-9
    assert problem.objective(problem.start) > optimum.value + 0.01
    assert moreau_envelope(problem.objective, optimum.point, 2 * rho or 1.0, rho=rho).gradient_norm < 1e-6


def check_constants(function, dim, *, lipschitz=torch.inf, modulus=0.0, radius=3.0, non_decreasing=False):
    """Hold Lipschitz constant, weak convexity and monotony against many pairs of points and their middles."""
    for distance in (1e-3, 1.0, 2.0):
        x = radius * (2 * torch.rand(2000, dim, dtype=torch.float64) - 1)
        step = distance * torch.randn(2000, dim, dtype=torch.float64)
        y = (x + (step.abs() if non_decreasing else step)).clamp(-radius, radius)
        low, high, middle = (function(point).reshape(2000, -1) for point in (x, y, (x + y) / 2))
        square = (y - x).square().sum(1, keepdim=True)
        change = (high - low).norm(dim=1, keepdim=True)
        assert (change <= lipschitz * square.sqrt() + 1e-9).all()
        assert (middle <= (low + high) / 2 + modulus / 8 * square + 1e-9).all()
        assert not non_decreasing or (high >= low - 1e-12).all()


@EVERY
def test_constants_hold(problem):
    three, index = isinstance(problem, ThreeLevelProblem), torch.zeros(1, dtype=torch.long)
    radius = problem.radius / problem.dim**0.5 if isinstance(problem, HingedSquares) else 3.0
    check_constants(problem.objective, problem.dim, modulus=problem.weak_convexity, radius=radius)
    dim = problem.dim_middle if three else problem.dim_block
    check_constants(
        lambda u: problem.outer(u, index.expand(len(u))), dim, lipschitz=problem.lipschitz_outer, non_decreasing=True
    )
    for i in range(0, problem.num_outer, 3):

        def inner(w, i=i):
            batch = [torch.full((len(w), 1), i), *([torch.zeros(len(w), 1, dtype=torch.long)] if three else [])]
            return problem.inner(w, *batch, torch.ones(*batch[0].shape, *[1] * len(batch), dtype=torch.long))

        constants = {"lipschitz": problem.lipschitz_inner, "modulus": problem.rho_inner}
        check_constants(inner, problem.dim, radius=radius, **constants)
    if three:

        def middle(v):
            return problem.middle(v.unsqueeze(1), index.expand(len(v)))

        check_constants(middle, problem.dim_inner, lipschitz=problem.lipschitz_middle)


def test_one_problem_is_not_convex():
    with pytest.raises(AssertionError):
        check_constants(PROBLEMS["squares"].objective, 2, modulus=0.0)


def test_noise_is_the_largest_standard_deviation_of_a_block():
    problem = PROBLEMS["worst"]
    w = torch.randn(problem.dim, dtype=torch.float64)
    values = problem.all_samples(w)
    assert float(problem.noise(w)) == pytest.approx(float(values.var(1, correction=0).sum(-1).max().sqrt()))
    torch.testing.assert_close(values.mean(1), problem.full_inner(w))


def test_an_unbounded_linear_program_is_reported():
    program = LinearProgram()
    program.at_least({program.variable(cost=-1.0): 1.0}, 0.0)
    with pytest.raises(RuntimeError, match="no optimum"):
        program.solve()
