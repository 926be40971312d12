"""The solver: runs are functions of their seeds, steps those of Algorithm 1, and the methods reach the optimum."""

from __future__ import annotations

import math

import oracles
import pytest
import torch

from experiments.problems import BagRanking, CVaRAbsoluteLoss, HingedSquares, WorstOfLosses
from moreauc.solver import SONT, SONX, PlugIn, PowerDecay, Subgradient, minimize
from moreauc.solver._engines import Batches
from moreauc.theory import moreau_envelope

TWO = CVaRAbsoluteLoss(num_blocks=12, num_samples=6, num_features=2)
THREE = BagRanking(num_positives=6, num_negatives=7, num_instances=4, num_features=2)
SMALL = {"outer_per_batch": 4, "inner_per_batch": 3, "samples_per_batch": 2, "records": 6}
FAST = {**SMALL, "stationarity": False}
RUNS = {
    "sonx": (TWO, SONX(tau=0.2, gamma="theory")),
    "sonx average": (TWO, SONX(tau=PowerDecay(0.5), bound=3.0)),
    "sont": (THREE, SONT(tau1=0.3, tau2=0.3, gamma1="theory", gamma2="theory")),
    "sont average": (THREE, SONT(tau1=PowerDecay(0.5), tau2=PowerDecay(0.4), bound=50.0)),
    "plug-in": (TWO, PlugIn()),
    "plug-in three": (THREE, PlugIn()),
    "full": (TWO, Subgradient()),
    "full three": (THREE, Subgradient()),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_method_goes_down_and_is_a_function_of_its_seed(name):
    problem, method = RUNS[name]
    run = minimize(problem, method, steps=200, lr=PowerDecay(0.03), seeds=[0, 5], **FAST)
    assert (run.objective[:, -1] < run.objective[:, 0] - 0.1).all()
    alone = minimize(problem, method, steps=200, lr=PowerDecay(0.03), seeds=[5], **FAST)
    torch.testing.assert_close(alone.last[0], run.last[1], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(alone.drawn[0], run.drawn[1], rtol=1e-9, atol=1e-9)
    assert alone.drawn_step[0] == run.drawn_step[1]
    assert name.startswith("full") == torch.allclose(run.last[0], run.last[1])


@pytest.mark.parametrize("name", ["sonx", "sont", "plug-in three"])
def test_history_is_what_it_says(name):
    problem, method = RUNS[name]
    run = minimize(problem, method, steps=40, lr=0.02, seeds=[1, 2, 3], **SMALL)
    assert run.step[0] == 0 and run.step[-1] == 40 and (run.step.diff() > 0).all()
    assert run.objective.shape == run.stationarity.shape == run.table_error.shape == (3, len(run.step))
    torch.testing.assert_close(run.objective[:, -1], problem.objective(run.last))
    torch.testing.assert_close(run.objective[:, 0], problem.objective(problem.start).expand(3))
    torch.testing.assert_close(run.objective.amin(1), problem.objective(run.best))
    norm = moreau_envelope(problem.objective, run.last[1], run.options["rho_bar"], rho=0.0).gradient_norm
    assert float(run.stationarity[1, -1]) == pytest.approx(norm, abs=1e-5)
    assert torch.isnan(run.table_error).all() == isinstance(method, PlugIn)
    assert torch.isnan(run.outer_table_error).all() != isinstance(method, SONT)


@pytest.mark.parametrize(
    ("name", "each", "first"),
    [
        ("sonx", 4 * 2, 12 * 2),
        ("sont", 4 * 3 * 2, 6 * 7 * 2),
        ("plug-in", 8, 0),
        ("full", 72, 0),
        ("full three", 168, 0),
    ],
)
def test_samples_are_counted(name, each, first):
    run = minimize(*RUNS[name], steps=20, lr=0.01, **FAST)
    assert run.samples.tolist() == [first + each * step for step in run.step.tolist()]


def test_the_output_rule_draws_every_step_alike():
    options = {**FAST, "outer_per_batch": 2, "samples_per_batch": 1, "records": 1000}
    run = minimize(TWO, PlugIn(), steps=5, lr=0.01, seeds=range(300), **options)
    assert torch.bincount(run.drawn_step, minlength=5).min() > 35
    objective = run.objective.gather(1, run.drawn_step.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(TWO.objective(run.drawn), objective)


def test_given_steps_are_recorded():
    every, some = (minimize(TWO, PlugIn(), steps=40, lr=0.01, **{**FAST, "records": r}) for r in (1000, [30, 0, 7]))
    assert some.step.tolist() == [0, 7, 30, 40]
    torch.testing.assert_close(some.objective, every.objective[:, some.step], rtol=0.0, atol=0.0)


class Plain:
    """A problem's functions on lists of floats: mean |a . w - b|, or mean |a . w^2 - b|, and their outer functions."""

    def __init__(self, problem):
        self.problem, self.a, self.b = problem, problem.a.tolist(), problem.b.tolist()
        self.power = 2 if isinstance(problem, HingedSquares) else 1

    def residual(self, i, x, k, w):
        return sum(p * q**self.power for p, q in zip(self.a[i][x][k], w, strict=True)) - self.b[i][x][k]

    def g(self, i, w, samples):
        return [sum(abs(self.residual(i, x, k, w)) for x in samples) / len(samples) for k in range(len(self.a[i][0]))]

    def dg(self, i, w, samples):
        rows = [[0.0] * len(w) for _ in self.a[i][0]]
        for k, row in enumerate(rows):
            for x in samples:
                z = self.residual(i, x, k, w)
                for c in range(len(w)):
                    inner = self.power * w[c] ** (self.power - 1)
                    row[c] += ((z > 0) - (z < 0)) * self.a[i][x][k][c] * inner / len(samples)
        return rows

    def df(self, i, u):
        if self.power == 2:
            return [float(u[0] > self.problem.level)]
        return [float(value == max(u)) for value in u]

    def batches(self, steps, seed):
        """The batches that a run with a seed draws, after the step that its output rule draws."""
        drawn = Batches(self.problem, {"outer_per_batch": 4, "samples_per_batch": 2}, [seed])
        torch.randint(steps, (), generator=drawn.generators[0])
        for step in range(steps):
            blocks, samples = (part[0].tolist() for part in drawn.draw(step))
            yield dict(zip(blocks, samples, strict=True))


KNOWN = [WorstOfLosses(num_blocks=9, num_samples=6), HingedSquares(num_blocks=9, num_samples=6, level=0.9)]


@pytest.mark.parametrize("problem", KNOWN, ids=["vectors", "not convex"])
@pytest.mark.parametrize("gamma", [0.0, "theory"])
def test_sonx_takes_the_steps_of_algorithm_1(problem, gamma):
    plain = Plain(problem)
    parts = plain.g, plain.dg, plain.df, list(plain.batches(60, 3))
    *_, (w, _) = oracles.algorithm_1(
        problem.start.tolist(), {}, problem.num_outer, *parts, tau=0.3, gamma=gamma, lr=0.02
    )
    run = minimize(problem, SONX(0.3, gamma), steps=60, lr=0.02, seeds=[5, 3], warm_start=False, **FAST)
    assert run.last[1].tolist() == pytest.approx(w, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("problem", "method", "lr", "gap"),
    [
        (TWO, SONX(tau=PowerDecay(0.3), gamma="theory"), 0.02, 0.03),
        (HingedSquares(num_blocks=8, num_samples=6), SONX(tau=PowerDecay(0.3)), 0.03, 0.02),
        (THREE, SONT(tau1=PowerDecay(0.3), tau2=PowerDecay(0.3), gamma1="theory", gamma2="theory"), 0.02, 0.03),
    ],
)
def test_the_methods_reach_the_optimum(problem, method, lr, gap):
    options = {**FAST, "records": 20, "samples_per_batch": 1}
    run = minimize(problem, method, steps=1000, lr=PowerDecay(lr), seeds=range(4), **options)
    late = run.objective[:, -2:].mean() - problem.optimum.value
    assert -1e-9 <= late < gap
    if problem is TWO:
        floor = minimize(problem, PlugIn(), steps=1000, lr=PowerDecay(lr), seeds=range(4), **options).objective[:, -2:]
        assert floor.mean() - problem.optimum.value > 2.0 * late  # the bias of the plug-in estimator


def test_rows_fill_at_their_first_visit_without_a_warm_start():
    run = minimize(TWO, SONX(tau=0.2), steps=2, lr=0.01, warm_start=False, **FAST)
    assert run.samples[0] == 0 and math.isnan(run.table_error[0, 0]) and run.table_error[0, -1] >= 0


def test_progress_is_shown_where_asked_for_and_adds_up(capsys):
    seen = []
    minimize(TWO, PlugIn(), steps=77, lr=0.01, progress=seen.append, **FAST)
    assert sum(seen) == 77 and min(seen) > 0 and capsys.readouterr().out == ""
    minimize(TWO, PlugIn(), steps=30, lr=0.01, progress=True, **FAST)
    assert "minimize" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"lr": 0.0}, "lr"),
        ({"lr": lambda t: -1.0}, "lr"),
        ({"outer_per_batch": 13}, "outer_per_batch must be at most 12"),
        ({"samples_per_batch": 0}, "samples_per_batch"),
        ({"seeds": []}, "seeds"),
        ({"records": 0}, "records"),
        ({"records": [0, 6]}, "records .* steps = 5"),
        ({"records": [-1]}, "records"),
        ({"rho_bar": 0.0}, "rho_bar"),
        ({"start": torch.zeros(7)}, "start"),
        ({"method": SONT(0.1, 0.1)}, "method .* two-level problem, got SONT"),
        ({"method": "sonx"}, "method .* got str"),
        ({"method": SONX(tau=2.0)}, "tau"),
        ({"problem": THREE}, "method .* three-level problem, got SONX"),
        ({"problem": THREE, "method": PlugIn(), "inner_per_batch": 8}, "inner_per_batch must be at most 7"),
        ({"problem": 3}, "problem .* got int"),
    ],
)
def test_wrong_arguments(change, message):
    arguments = {"problem": TWO, "method": SONX(tau=0.1), "steps": 5, "lr": 0.1, **SMALL, **change}
    with pytest.raises(ValueError, match=message):
        minimize(**arguments)


def test_iterates_that_leave_the_finite_numbers_are_an_error():
    with pytest.raises(FloatingPointError, match="lower lr"):
        minimize(HingedSquares(num_blocks=8, num_samples=6), PlugIn(), steps=200, lr=50.0, **FAST)
