from __future__ import annotations

import pytest
import torch

from moreauc.problems import BagRanking, CVaRAbsoluteLoss, HingedSquares, ThreeLevelProblem, WorstOfLosses
from moreauc.problems.base import LinearProgram
from moreauc.theory import falsify, moreau_envelope

PROBLEMS = {
    "cvar": CVaRAbsoluteLoss(num_blocks=12, num_samples=5, num_features=2),
    "cvar, all": CVaRAbsoluteLoss(num_blocks=6, num_samples=5, num_features=2, alpha=1.0, seed=3),
    "worst": WorstOfLosses(num_blocks=8, num_samples=6, num_features=2),
    "squares": HingedSquares(num_blocks=8, num_samples=6),
    "bags": BagRanking(num_positives=6, num_negatives=7, num_instances=4, num_features=2),
}
CONVEX = {name: problem for name, problem in PROBLEMS.items() if name != "squares"}


def every(problems=PROBLEMS):
    return pytest.mark.parametrize("problem", problems.values(), ids=problems)


def loop_objective(problem, w):
    """The objective from its docstring, by loops."""
    x = w.tolist()

    def dot(a, y):
        return sum(p * q for p, q in zip(a.tolist(), y, strict=True))

    total = 0.0
    n, m = problem.num_outer, problem.num_samples
    for i in range(n):
        if isinstance(problem, CVaRAbsoluteLoss):
            loss = sum(abs(dot(problem.a[i, k, 0], x[:-1]) - float(problem.b[i, k, 0])) for k in range(m)) / m
            total += x[-1] + max(loss - x[-1], 0) / problem.alpha
        elif isinstance(problem, WorstOfLosses):
            total += max(
                sum(abs(dot(problem.a[i, s, k], x) - float(problem.b[i, s, k])) for s in range(m)) / m
                for k in range(problem.dim_block)
            )
        elif isinstance(problem, HingedSquares):
            squares = [y * y for y in x]
            value = sum(abs(dot(problem.a[i, k, 0], squares) - float(problem.b[i, k, 0])) for k in range(m)) / m
            total += max(value - problem.level, 0)
        else:
            mean = 0.0
            for j in range(problem.num_inner):
                scores = [
                    sum(dot(bag[s], x[:-1]) for s in range(m)) / m for bag in (problem.negative[j], problem.positive[i])
                ]
                mean += max(1 + scores[0] - scores[1], 0) / problem.num_inner
            total += x[-1] + max(mean - x[-1], 0) / problem.alpha
    return total / n


@every()
def test_objective_is_the_definition(problem):
    points = torch.randn(5, problem.dim, dtype=torch.float64)
    values = problem.objective(points)
    for point, value in zip(points, values, strict=True):
        assert float(value) == pytest.approx(loop_objective(problem, point), abs=1e-12)
        assert float(problem.objective(point)) == pytest.approx(float(value), abs=1e-13)


@every()
def test_no_point_is_better_than_the_optimum(problem):
    optimum = problem.optimum
    assert float(problem.objective(optimum.point)) == pytest.approx(optimum.value, abs=1e-12)
    for scale in (1e-6, 1e-3, 0.1, 1.0, 10.0):
        near = optimum.point + scale * torch.randn(400, problem.dim, dtype=torch.float64)
        assert problem.objective(near).min() >= optimum.value - 1e-9
    assert problem.objective(problem.start) > optimum.value + 0.01


@every()
def test_the_optimum_is_stationary(problem):
    rho = problem.weak_convexity
    result = moreau_envelope(problem.objective, problem.optimum.point, 2 * rho or 1.0, rho=rho)
    assert result.gradient_norm < 1e-6
    assert result.value == pytest.approx(problem.optimum.value, abs=1e-9)


@every()
def test_subgradient_is_the_derivative_where_there_is_one(problem):
    points = torch.randn(20, problem.dim, dtype=torch.float64)
    gradient = problem.subgradient(points)
    step = 1e-7
    for k in range(problem.dim):
        shift = torch.zeros(problem.dim, dtype=torch.float64)
        shift[k] = step
        slope = (problem.objective(points + shift) - problem.objective(points - shift)) / (2 * step)
        smooth = (slope - gradient[:, k]).abs() < 1e-5
        assert smooth.sum() >= 18  # a kink within the step is rare


@every()
def test_constants_survive_an_attempt_to_falsify_them(problem):
    size, index = problem.num_outer, torch.zeros(1, dtype=torch.long)
    dim = problem.dim_middle if isinstance(problem, ThreeLevelProblem) else problem.dim_block

    def outer(u):
        return problem.outer(u, index.expand(len(u)))

    assert falsify(outer, dim=dim, non_decreasing=True, lipschitz=problem.lipschitz_outer, weak_convexity=0.0) is None
    radius = problem.radius / problem.dim**0.5 if isinstance(problem, HingedSquares) else 3.0
    for i in range(0, size, 3):

        def inner(w, i=i):
            batch = [torch.full((len(w), 1), i)]
            if isinstance(problem, ThreeLevelProblem):
                batch.append(torch.zeros(len(w), 1, dtype=torch.long))
            return problem.inner(w, *batch, torch.ones(*batch[0].shape, *[1] * len(batch), dtype=torch.long)).flatten(1)

        box = {"low": -radius, "high": radius}
        witness = falsify(
            inner, dim=problem.dim, lipschitz=problem.lipschitz_inner, weak_convexity=problem.rho_inner, **box
        )
        assert witness is None, witness
    if isinstance(problem, ThreeLevelProblem):

        def middle(v):
            return problem.middle(v.unsqueeze(1), index.expand(len(v))).squeeze(1)

        witness = falsify(middle, dim=problem.dim_inner, lipschitz=problem.lipschitz_middle, weak_convexity=0.0)
        assert witness is None, witness


@every()
def test_objective_has_the_modulus_of_the_proposition(problem):
    low, high = (-problem.radius, problem.radius) if isinstance(problem, HingedSquares) else (-5.0, 5.0)
    modulus = problem.weak_convexity
    assert (
        falsify(problem.objective, dim=problem.dim, weak_convexity=modulus, low=low, high=high, budget=100_000) is None
    )


def test_the_problem_with_squares_is_not_convex():
    witness = falsify(PROBLEMS["squares"].objective, dim=2, weak_convexity=0.0)
    assert witness is not None and witness.violation > 1e-3


@every()
def test_full_inner_is_the_mean_of_all_samples(problem):
    w = torch.randn(3, problem.dim, dtype=torch.float64)
    full = problem.full_inner(w)
    rows = torch.arange(problem.num_outer).expand(3, -1)
    total = torch.zeros_like(full)
    for k in range(problem.num_samples):
        if isinstance(problem, ThreeLevelProblem):
            inner = torch.arange(problem.num_inner).expand(3, -1)
            sample = torch.full((3, problem.num_outer, problem.num_inner, 1), k)
            total += problem.inner(w, rows, inner, sample)
        else:
            total += problem.inner(w, rows, torch.full((3, problem.num_outer, 1), k))
    torch.testing.assert_close(total / problem.num_samples, full, rtol=1e-12, atol=1e-12)


def test_noise_is_the_largest_standard_deviation_of_a_block():
    problem = PROBLEMS["worst"]
    w = torch.randn(problem.dim, dtype=torch.float64)
    values = problem.all_samples(w)
    expected = max(
        sum(float((values[i, s] - values[i].mean(0)).square().sum()) for s in range(problem.num_samples))
        / problem.num_samples
        for i in range(problem.num_outer)
    )
    assert float(problem.noise(w)) == pytest.approx(expected**0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CVaRAbsoluteLoss(0), "CVaRAbsoluteLoss: num_blocks must be an integer of at least 1, got 0"),
        (lambda: CVaRAbsoluteLoss(alpha=0.0), r"alpha must be a number in \(0, 1\], got 0.0"),
        (lambda: WorstOfLosses(num_losses=0), "WorstOfLosses: num_losses must be an integer of at least 1, got 0"),
        (lambda: HingedSquares(radius=0.0), r"HingedSquares: radius must be a number in \(0, inf\), got 0.0"),
        (lambda: HingedSquares(level=-1.0), r"level must be a number in \[0, inf\), got -1.0"),
        (lambda: BagRanking(num_negatives=0), "BagRanking: num_negatives must be an integer of at least 1, got 0"),
        (lambda: BagRanking(alpha=1.5), r"alpha must be a number in \(0, 1\], got 1.5"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_unbounded_linear_program_is_reported():
    program = LinearProgram()
    x = program.variable(cost=-1.0)
    program.at_least({x: 1.0}, 0.0)
    with pytest.raises(RuntimeError, match="the linear program has no optimum"):
        program.solve()
