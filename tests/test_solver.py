from __future__ import annotations

import math
from dataclasses import replace

import oracles
import pytest
import torch

from moreauc.problems import BagRanking, CVaRAbsoluteLoss, HingedSquares, WorstOfLosses
from moreauc.solver import ALEXR2, SONT, SONX, PlugIn, PowerDecay, Subgradient, minimize
from moreauc.solver._engines import Batches
from moreauc.theory import moreau_envelope

TWO = CVaRAbsoluteLoss(num_blocks=12, num_samples=6, num_features=2)
THREE = BagRanking(num_positives=6, num_negatives=7, num_instances=4, num_features=2)
SMALL = {"outer_per_batch": 4, "inner_per_batch": 3, "samples_per_batch": 2, "records": 6}
LOOPS = ALEXR2(tau=0.3, smoothing=0.1, weight=0.5, inner_steps=20)
RUNS = {
    "sonx": (TWO, SONX(tau=0.2, gamma="theory")),
    "sonx average": (TWO, SONX(tau=PowerDecay(0.5))),
    "sonx bound": (TWO, SONX(tau=0.2, gamma=0.1, bound=3.0)),
    "sonex": (TWO, SONX(tau=0.2, gamma=0.1, smoothing=0.1, momentum=0.5)),
    "alexr2": (TWO, LOOPS),
    "sont": (THREE, SONT(tau1=0.3, tau2=0.3, gamma1="theory", gamma2="theory")),
    "sont average": (THREE, SONT(tau1=PowerDecay(0.5), tau2=PowerDecay(0.4), bound=50.0)),
    "plug-in": (TWO, PlugIn()),
    "plug-in three": (THREE, PlugIn()),
    "full": (TWO, Subgradient()),
    "full three": (THREE, Subgradient()),
}
EVERY = pytest.mark.parametrize("name", RUNS)


@EVERY
def test_every_method_goes_down_and_is_a_function_of_its_seed(name):
    problem, method = RUNS[name]
    run = minimize(problem, method, steps=300, lr=PowerDecay(0.03), seeds=[0, 5], stationarity=False, **SMALL)
    assert (run.objective[:, -1] < run.objective[:, 0] - 0.1).all()
    alone = minimize(problem, method, steps=300, lr=PowerDecay(0.03), seeds=[5], stationarity=False, **SMALL)
    torch.testing.assert_close(alone.last[0], run.last[1], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(alone.drawn[0], run.drawn[1], rtol=1e-9, atol=1e-9)
    assert alone.drawn_step[0] == run.drawn_step[1]
    if not name.startswith("full"):
        assert not torch.allclose(run.last[0], run.last[1])


@EVERY
def test_history_is_what_it_says(name):
    problem, method = RUNS[name]
    run = minimize(problem, method, steps=60, lr=0.02, seeds=[1, 2, 3], **SMALL)
    points = len(run.step)
    assert run.step[0] == 0 and run.step[-1] == 60 and (run.step.diff() > 0).all()
    assert run.objective.shape == run.stationarity.shape == run.table_error.shape == (3, points)
    torch.testing.assert_close(run.objective[:, -1], problem.objective(run.last))
    torch.testing.assert_close(run.objective[:, 0], problem.objective(problem.start).expand(3))
    torch.testing.assert_close(run.objective.amin(1), problem.objective(run.best))
    rho_bar = run.options["rho_bar"]
    norm = moreau_envelope(problem.objective, run.last[1], rho_bar, rho=0.0).gradient_norm
    assert float(run.stationarity[1, -1]) == pytest.approx(norm, abs=1e-5)
    tables = isinstance(method, SONX | ALEXR2 | SONT)
    assert torch.isnan(run.table_error).all() != tables
    assert torch.isnan(run.outer_table_error).all() != isinstance(method, SONT)


@pytest.mark.parametrize(
    ("name", "each", "first"),
    [
        ("sonx", 4 * 2, 12 * 2),
        ("alexr2", 4 * 2, 12 * 2),
        ("sont", 4 * 3 * 2, 6 * 7 * 2),
        ("plug-in", 8, 0),
        ("full", 72, 0),
        ("full three", 168, 0),
    ],
)
def test_samples_are_counted(name, each, first):
    problem, method = RUNS[name]
    run = minimize(problem, method, steps=20, lr=0.01, stationarity=False, **SMALL)
    assert run.samples.tolist() == [first + each * step for step in run.step.tolist()]


def test_the_output_rule_draws_every_step_alike():
    run = minimize(
        TWO, PlugIn(), steps=5, lr=0.01, seeds=range(300), stationarity=False, outer_per_batch=2, samples_per_batch=1
    )
    counts = torch.bincount(run.drawn_step, minlength=5)
    assert len(counts) == 5 and counts.min() > 35
    first = run.drawn_step == 0
    torch.testing.assert_close(run.drawn[first], TWO.start.expand(int(first.sum()), -1))
    assert not torch.allclose(run.drawn[run.drawn_step == 4], TWO.start, atol=1e-6)


def test_the_drawn_iterate_is_the_one_at_its_step():
    run = minimize(TWO, PlugIn(), steps=40, lr=0.01, seeds=[3], stationarity=False, records=1000, outer_per_batch=4)
    at = run.step.tolist().index(int(run.drawn_step[0]))
    torch.testing.assert_close(TWO.objective(run.drawn), run.objective[:, at])


def test_given_steps_are_recorded():
    options = {"steps": 40, "lr": 0.01, "stationarity": False, "outer_per_batch": 4}
    every = minimize(TWO, PlugIn(), records=1000, **options)
    some = minimize(TWO, PlugIn(), records=[30, 0, 7], **options)
    assert some.step.tolist() == [0, 7, 30, 40]
    torch.testing.assert_close(some.objective, every.objective[:, some.step], rtol=0.0, atol=0.0)


def test_full_batches_with_full_averaging_are_subgradient_descent_one_step_behind():
    """tau = 1 and every sample: the row is the block's true value at the previous iterate."""
    n = TWO.num_outer
    w, before = TWO.start.clone(), TWO.start.clone()
    for _ in range(30):
        leaf = w.clone().requires_grad_()
        rows = TWO.full_inner(before).detach()
        inner = TWO.full_inner(leaf)
        slopes = torch.stack([(rows[:, 0] > 0) / TWO.alpha, torch.ones(n)], dim=1).double()
        (gradient,) = torch.autograd.grad((inner * slopes).sum() / n, leaf)
        before, w = w, w - 0.02 * gradient

    class Everything(CVaRAbsoluteLoss):
        def inner(self, w, index, samples):
            return self.sample(w, index, torch.arange(self.num_samples).expand(*index.shape, -1)).mean(-2)

    problem = Everything(num_blocks=12, num_samples=6, num_features=2)
    run = minimize(problem, SONX(tau=1.0), steps=30, lr=0.02, outer_per_batch=12, stationarity=False, records=4)
    torch.testing.assert_close(run.last[0], w, rtol=1e-9, atol=1e-9)


class Plain:
    """A problem's functions on lists of floats: mean |a . w - b|, or mean |a . w^2 - b|, and their outer functions."""

    def __init__(self, problem):
        self.problem, self.a, self.b = problem, problem.a.tolist(), problem.b.tolist()
        self.power = 2 if isinstance(problem, HingedSquares) else 1

    def residual(self, i, x, k, w):
        return sum(p * q**self.power for p, q in zip(self.a[i][x][k], w, strict=True)) - self.b[i][x][k]

    def g(self, i, w, samples):
        size = self.problem.dim_block
        return [sum(abs(self.residual(i, x, k, w)) for x in samples) / len(samples) for k in range(size)]

    def dg(self, i, w, samples):
        rows = []
        for k in range(self.problem.dim_block):
            row = [0.0] * len(w)
            for x in samples:
                z = self.residual(i, x, k, w)
                for c in range(len(w)):
                    inner = self.power * w[c] ** (self.power - 1)
                    row[c] += ((z > 0) - (z < 0)) * self.a[i][x][k][c] * inner / len(samples)
            rows.append(row)
        return rows

    def prox(self, i, u, smoothing):
        if self.power == 2:
            level = self.problem.level
            return [u[0] - smoothing * oracles.hinge(u[0] - level, 1.0, smoothing)[1]]
        low, high = max(u) - smoothing, max(u)
        while low < (level := (low + high) / 2) < high:
            cut = sum(max(x - level, 0.0) for x in u)
            low, high = (level, high) if cut > smoothing else (low, level)
        return [min(x, level) for x in u]

    def batches(self, steps, seed):
        """The batches that a run with a seed draws, after the step that its output rule draws."""
        drawn = Batches(self.problem, {"outer_per_batch": 4, "samples_per_batch": 2}, [seed])
        torch.randint(steps, (), generator=drawn.generators[0])
        for step in range(steps):
            blocks, samples = (part[0].tolist() for part in drawn.draw(step))
            yield dict(zip(blocks, samples, strict=True))


KNOWN = [
    WorstOfLosses(num_blocks=9, num_samples=6, num_features=3),
    HingedSquares(num_blocks=9, num_samples=6, level=0.9),
]


@pytest.mark.parametrize("problem", KNOWN, ids=["vectors", "not convex"])
@pytest.mark.parametrize("steps", [1, 30, 100])
@pytest.mark.parametrize(("gamma", "momentum"), [(0.0, 0.9), ("theory", 0.0)])
def test_sonex_of_the_solver_is_its_transcription(problem, steps, gamma, momentum):
    plain, options = Plain(problem), {"tau": 0.3, "gamma": gamma, "smoothing": 0.4}
    twin = oracles.sonex(
        *(problem.start.tolist(), problem.num_outer, plain.g, plain.dg, plain.prox, plain.batches(steps, 3)),
        **{"momentum": momentum, "lr": 0.02, **options},
    )
    run = minimize(
        *(problem, SONX(momentum=momentum, **options)),
        **{"steps": steps, "lr": 0.02, "seeds": [5, 3], "warm_start": False, "stationarity": False, **SMALL},
    )
    *_, (w, _) = twin
    assert run.last[1].tolist() == pytest.approx(w, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("problem", KNOWN, ids=["vectors", "not convex"])
@pytest.mark.parametrize("steps", [1, 8, 100])
@pytest.mark.parametrize(
    ("theta", "centre_lr", "momentum"), [(1.0, None, 0.0), (0.0, 0.3, 0.6), (0.5, 0.2, 0.0), (1.0, None, 0.5)]
)
def test_alexr2_of_the_solver_is_its_transcription(problem, steps, theta, centre_lr, momentum):
    plain, options = Plain(problem), {"tau": 0.3, "smoothing": 0.4, "weight": 2.5, "inner_steps": 8, "theta": theta}
    twin = oracles.alexr2(
        *(problem.start.tolist(), plain.g, plain.dg, plain.prox, plain.batches(steps, 3)),
        **{"lr": 0.05, "centre_lr": 0.4 if centre_lr is None else centre_lr, "momentum": momentum, **options},
    )
    run = minimize(
        *(problem, ALEXR2(centre_lr=centre_lr, momentum=momentum, **options)),
        **{"steps": steps, "lr": 0.05, "seeds": [5, 3], "warm_start": False, "stationarity": False, **SMALL},
    )
    *_, (w, _, _) = twin
    assert run.last[1].tolist() == pytest.approx(w, rel=1e-9, abs=1e-9)
    assert (run.last[1] - problem.start).abs().max() > (0.01 if steps >= 8 else -1.0)


@pytest.mark.parametrize(
    ("problem", "method", "lr", "gap"),
    [
        (TWO, SONX(tau=PowerDecay(0.3), gamma="theory"), 0.02, 0.03),
        (TWO, SONX(tau=PowerDecay(0.3)), 0.02, 0.03),
        (WorstOfLosses(num_blocks=8, num_samples=6, num_features=2), SONX(tau=PowerDecay(0.3), gamma=0.1), 0.1, 0.02),
        (HingedSquares(num_blocks=8, num_samples=6), SONX(tau=PowerDecay(0.3), gamma="theory"), 0.03, 0.02),
        (TWO, SONX(tau=PowerDecay(0.3), gamma=0.1, smoothing=0.02, momentum=0.9), 0.02, 0.03),
        (
            HingedSquares(num_blocks=8, num_samples=6),
            ALEXR2(PowerDecay(0.3), 0.02, weight=3.0, inner_steps=25),
            0.03,
            0.02,
        ),
        (THREE, SONT(tau1=PowerDecay(0.3), tau2=PowerDecay(0.3), gamma1="theory", gamma2="theory"), 0.02, 0.03),
    ],
)
def test_the_methods_reach_the_optimum(problem, method, lr, gap):
    options = {**SMALL, "records": 20, "samples_per_batch": 1, "stationarity": False}
    run = minimize(problem, method, steps=1500, lr=PowerDecay(lr), seeds=range(4), **options)
    late = run.objective[:, -2:].mean() - problem.optimum.value
    assert -1e-9 <= late < gap
    if problem is TWO:
        floor = minimize(problem, PlugIn(), steps=1500, lr=PowerDecay(lr), seeds=range(4), **options).objective[:, -2:]
        assert floor.mean() - problem.optimum.value > 2.0 * late  # the bias of the plug-in estimator


def test_rows_fill_at_their_first_visit_without_a_warm_start():
    run = minimize(TWO, SONX(tau=0.2), steps=2, lr=0.01, warm_start=False, stationarity=False, **SMALL)
    assert run.samples[0] == 0 and math.isnan(run.table_error[0, 0]) and run.table_error[0, -1] >= 0


def test_a_progress_bar_is_shown_where_asked_for(capsys):
    minimize(TWO, PlugIn(), steps=30, lr=0.01, stationarity=False, **SMALL)
    assert capsys.readouterr().out == ""
    minimize(TWO, PlugIn(), steps=30, lr=0.01, stationarity=False, progress=True, **SMALL)
    assert "minimize" in capsys.readouterr().out


def test_progress_adds_up():
    seen = []
    minimize(TWO, PlugIn(), steps=77, lr=0.01, stationarity=False, progress=seen.append, **SMALL)
    assert sum(seen) == 77 and min(seen) > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"lr": 0.0}, r"lr must be a number in \(0, inf\), got 0.0"),
        ({"lr": lambda t: -1.0}, r"lr must be a number in \(0, inf\), got -1.0"),
        ({"outer_per_batch": 13}, "outer_per_batch must be at most 12, the number of items, got 13"),
        ({"samples_per_batch": 0}, "samples_per_batch must be an integer of at least 1, got 0"),
        ({"seeds": []}, r"seeds must not be empty, got \[\]"),
        ({"records": 0}, "records must be an integer of at least 1, got 0"),
        ({"records": [0, 6]}, "records must hold step numbers of at most steps = 5, got 6"),
        ({"records": [-1]}, "records must be an integer of at least 0, got -1"),
        ({"rho_bar": 0.0}, r"rho_bar must be a number in \(0, inf\), got 0.0"),
        ({"start": torch.zeros(7)}, r"start must have shape \(3,\), got \(7,\)"),
        ({"method": SONT(0.1, 0.1)}, "must be SONX, ALEXR2, PlugIn or Subgradient for a two-level problem, got SONT"),
        ({"method": "sonx"}, "method must be SONX, ALEXR2, SONT, PlugIn or Subgradient, got str"),
        ({"method": SONX(tau=2.0)}, r"FCCOLoss: tau must be a number in \(0, 1\], got 2.0"),
        ({"problem": THREE}, "method must be SONT, PlugIn or Subgradient for a three-level problem, got SONX"),
        ({"problem": THREE, "method": LOOPS}, "SONT, PlugIn or Subgradient for a three-level problem, got ALEXR2"),
        ({"method": SONX(tau=0.1, momentum=1.0)}, r"minimize: momentum must be a number in \[0, 1\), got 1.0"),
        ({"method": SONX(tau=0.1, smoothing=-1.0)}, r"FCCOLoss: smoothing must be a number in \[0, inf\), got -1.0"),
        ({"method": replace(LOOPS, weight=0.0)}, r"minimize: weight must be a number in \(0, inf\), got 0.0"),
        ({"method": replace(LOOPS, theta=-0.1)}, r"minimize: theta must be a number in \[0, inf\), got -0.1"),
        ({"method": replace(LOOPS, inner_steps=0)}, "minimize: inner_steps must be an integer of at least 1, got 0"),
        ({"method": replace(LOOPS, centre_lr=0.0)}, r"minimize: centre_lr must be a number in \(0, inf\), got 0.0"),
        ({"method": replace(LOOPS, momentum=-0.5)}, r"minimize: momentum must be a number in \[0, 1\), got -0.5"),
        ({"method": replace(LOOPS, tau=1.5)}, r"FCCOLoss: tau must be a number in \(0, 1\], got 1.5"),
        ({"problem": THREE, "method": PlugIn(), "inner_per_batch": 8}, "inner_per_batch must be at most 7"),
        ({"problem": 3}, "problem must be a TwoLevelProblem or ThreeLevelProblem, got int"),
    ],
)
def test_wrong_arguments(change, message):
    arguments = {"problem": TWO, "method": SONX(tau=0.1), "steps": 5, "lr": 0.1, **SMALL, **change}
    with pytest.raises(ValueError, match=message):
        minimize(**arguments)


def test_divergence_is_reported():
    with pytest.raises(FloatingPointError, match=r"left the finite numbers before step \d+; lower lr"):
        minimize(
            HingedSquares(num_blocks=8, num_samples=6),
            PlugIn(),
            steps=200,
            lr=50.0,
            stationarity=False,
            outer_per_batch=4,
        )
