"""The lemmas' bounds against the mean table error of many runs, with constants computed from the data."""

from __future__ import annotations

import pytest
import torch
from theory_bounds import sont_inner_table_bound, sont_outer_table_bound, sonx_table_bound

from experiments.problems import BagRanking, CVaRAbsoluteLoss
from moreauc.solver import SONT, SONX, minimize

GAMMAS = pytest.mark.parametrize("gamma", ["theory", 0.0], ids=["msvr", "moving average"])


@pytest.mark.parametrize(("step", "left"), [(0, 1.0), (3, (1 - 1 / 120) ** 3), (10**9, 0.0)])
def test_a_bound_by_hand(step, left):
    given = {"step": step, "initial_error": 5.0, "tau": 0.25, "lr": 0.01, "num_blocks": 90, "blocks_per_batch": 6}
    given |= {"samples_per_block": 9, "sigma": 1.5, "lipschitz": 3.0, "gradient_bound": 2.5}
    noise, drift = 2 * 0.5 * 1.5 / 3, 4 * 90 * 3 * 2.5 * 0.01 / (6 * 0.5)
    assert sonx_table_bound(**given) == pytest.approx(5.0 * left + noise + drift)


@GAMMAS
@pytest.mark.parametrize(
    ("tau", "lr", "b1", "b2", "n"), [(0.5, 1e-5, 4, 2, 20), (0.1, 1e-3, 4, 2, 20), (0.1, 1e-5, 20, 8, 20)]
)
def test_bound_holds(gamma, tau, lr, b1, b2, n):
    problem = CVaRAbsoluteLoss(num_blocks=n, num_samples=10, num_features=2)
    options = {"outer_per_batch": b1, "samples_per_batch": b2, "seeds": range(24), "records": 8, "stationarity": False}
    run = minimize(problem, SONX(tau=tau, gamma=gamma), steps=200, lr=lr, **options)
    measured = run.table_error.mean(dim=0).tolist()
    sizes = {"num_blocks": n, "blocks_per_batch": b1, "samples_per_block": b2, "moving_average": gamma == 0.0}
    constants = {"sigma": run.noise, "lipschitz": problem.lipschitz_inner}
    constants["gradient_bound"] = problem.lipschitz_outer * problem.lipschitz_inner
    given = {"initial_error": measured[0], "tau": tau, "lr": lr, **sizes, **constants}
    limits = [sonx_table_bound(step=step, **given) for step in run.step.tolist()]
    assert all(error <= limit for error, limit in zip(measured, limits, strict=True))
    if lr == 1e-5:  # little drift: the bound is not vacuous
        assert limits[-1] < 20 * measured[-1]


@GAMMAS
@pytest.mark.parametrize(
    ("tau1", "tau2", "lr", "b1", "b2", "b3"), [(0.1, 0.3, 1e-6, 3, 4, 2), (0.2, 0.2, 1e-3, 3, 4, 1)]
)
def test_three_level_bounds_hold(gamma, tau1, tau2, lr, b1, b2, b3):
    problem = BagRanking(num_positives=6, num_negatives=8, num_instances=6, num_features=2)
    method = SONT(tau1=tau1, tau2=tau2, gamma1=gamma, gamma2=gamma)
    options = {"outer_per_batch": b1, "inner_per_batch": b2, "samples_per_batch": b3, "seeds": range(24)}
    best = problem.optimum.point
    run = minimize(problem, method, steps=150, lr=lr, start=best, stationarity=False, records=6, **options)
    points = torch.cat([best.unsqueeze(0), run.last])
    every = torch.arange(problem.num_outer).expand(len(points), -1)
    others = torch.arange(problem.num_inner).expand(len(points), -1)
    samples = torch.arange(problem.num_samples).expand(len(points), problem.num_outer, problem.num_inner, -1)
    values = problem.sample(points, every, others, samples)
    # the rows of v are noisy, so that g varies over j by their noise, too
    middle = problem.middle(values, every.unsqueeze(-1))
    sigma = values.var(-2, correction=0).sum(-1).amax().sqrt()
    sigma_middle = middle.flatten(2, 3).var(2, correction=0).sum(-1).amax().sqrt()
    largest = float(torch.linalg.vector_norm(values, dim=-1).amax())
    gradient = problem.lipschitz_outer * problem.lipschitz_middle * problem.lipschitz_inner
    shared = {"tau1": tau1, "lr": lr, "num_outer": 6, "num_inner": 8, "outer_per_batch": b1, "inner_per_batch": b2}
    shared |= {"moving_average": gamma == 0.0, "gradient_bound": max(gradient, 2 * largest)}
    of_v = {"sigma": float(sigma), "samples_per_pair": b3, "lipschitz": problem.lipschitz_inner}
    of_u = {"sigma": float(sigma_middle), "tau2": tau2, "lipschitz_inner": problem.lipschitz_inner}
    of_u["lipschitz_middle"] = problem.lipschitz_middle
    for bound, own, errors in (
        (sont_inner_table_bound, of_v, run.table_error),
        (sont_outer_table_bound, of_u, run.outer_table_error),
    ):
        measured = errors.mean(dim=0).tolist()
        limits = [bound(step=step, initial_error=measured[0], **shared, **own) for step in run.step.tolist()]
        assert all(error <= limit for error, limit in zip(measured, limits, strict=True))
        if own is of_v and lr == 1e-6:
            assert limits[-1] < 20 * measured[-1]
