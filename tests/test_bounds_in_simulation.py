"""The lemmas' bounds against the mean table error of many runs, with constants computed from the data."""

from __future__ import annotations

import pytest
import torch

from moreauc.problems import BagRanking, CVaRAbsoluteLoss
from moreauc.solver import SONT, SONX, minimize
from moreauc.theory import sont_inner_table_bound, sont_outer_table_bound, sonx_table_bound

SETTINGS = [  # tau, lr, B1, B2, n
    (0.5, 1e-5, 4, 2, 20),
    (0.1, 1e-5, 4, 2, 20),
    (0.1, 1e-5, 4, 8, 20),
    (0.1, 1e-5, 20, 2, 20),
    (0.1, 1e-5, 4, 2, 60),
    (0.1, 1e-3, 4, 2, 20),
    (0.02, 1e-4, 10, 2, 20),
]


@pytest.mark.parametrize("gamma", ["theory", 0.0])
@pytest.mark.parametrize(("tau", "lr", "b1", "b2", "n"), SETTINGS)
def test_bound_holds(gamma, tau, lr, b1, b2, n):
    problem = CVaRAbsoluteLoss(num_blocks=n, num_samples=10, num_features=2)
    run = minimize(
        problem,
        SONX(tau=tau, gamma=gamma),
        steps=300,
        lr=lr,
        outer_per_batch=b1,
        samples_per_batch=b2,
        seeds=range(24),
        stationarity=False,
        records=14,
    )
    measured = run.table_error.mean(dim=0)
    limits = torch.tensor(
        [
            sonx_table_bound(
                moving_average=gamma == 0.0,
                step=step,
                initial_error=float(measured[0]),
                tau=tau,
                lr=lr,
                num_blocks=n,
                blocks_per_batch=b1,
                samples_per_block=b2,
                sigma=run.noise,
                lipschitz=problem.lipschitz_inner,
                gradient_bound=problem.gradient_bound,
            )
            for step in run.step.tolist()
        ]
    )
    assert (measured <= limits).all()
    if lr == 1e-5 and (tau == 0.5 or b1 == n):  # little drift: the bound is not vacuous
        assert limits[-1] < 20 * measured[-1]


THREE_LEVEL = [  # tau1, tau2, lr, B1, B2, B3
    (0.5, 0.5, 1e-6, 3, 4, 1),
    (0.1, 0.3, 1e-6, 3, 4, 2),
    (0.1, 0.1, 1e-6, 6, 8, 2),
    (0.2, 0.2, 1e-3, 3, 4, 1),
]


@pytest.mark.parametrize("gamma", ["theory", 0.0], ids=["msvr", "moving average"])
@pytest.mark.parametrize(("tau1", "tau2", "lr", "b1", "b2", "b3"), THREE_LEVEL)
def test_three_level_bounds_hold(gamma, tau1, tau2, lr, b1, b2, b3):
    problem = BagRanking(num_positives=6, num_negatives=8, num_instances=6, num_features=2)
    run = minimize(
        problem,
        SONT(tau1=tau1, tau2=tau2, gamma1=gamma, gamma2=gamma),
        steps=250,
        lr=lr,
        outer_per_batch=b1,
        inner_per_batch=b2,
        samples_per_batch=b3,
        seeds=range(24),
        start=problem.optimum.point,
        stationarity=False,
        records=10,
    )
    points = torch.cat([problem.optimum.point.unsqueeze(0), run.last])
    every = torch.arange(problem.num_outer).expand(len(points), -1)
    others = torch.arange(problem.num_inner).expand(len(points), -1)
    samples = torch.arange(problem.num_samples).expand(len(points), problem.num_outer, problem.num_inner, -1)
    values = problem.sample(points, every, others, samples)
    means = values.mean(dim=-2)
    sigma = (values - means.unsqueeze(-2)).square().sum(-1).mean(-1).amax().sqrt()
    # the rows of v are noisy, so that g varies over j by their noise, too
    middle = problem.middle(values, every.unsqueeze(-1))
    sigma_middle = (middle - middle.mean(dim=(2, 3), keepdim=True)).square().sum(-1).mean(dim=(2, 3)).amax().sqrt()
    largest = float(torch.linalg.vector_norm(values, dim=-1).amax())
    sizes = {
        "num_outer": problem.num_outer,
        "num_inner": problem.num_inner,
        "outer_per_batch": b1,
        "inner_per_batch": b2,
        "moving_average": gamma == 0.0,
        "gradient_bound": max(problem.gradient_bound, 2 * largest),
    }
    for name, measured in (("inner", run.table_error.mean(dim=0)), ("outer", run.outer_table_error.mean(dim=0))):
        for step, error in zip(run.step.tolist(), measured.tolist(), strict=True):
            shared = {"step": step, "initial_error": float(measured[0]), "tau1": tau1, **sizes}
            if name == "inner":
                extra = {"sigma": float(sigma), "lr": lr, "samples_per_pair": b3, "lipschitz": problem.lipschitz_inner}
                limit = sont_inner_table_bound(**shared, **extra)
            else:
                extra = {"sigma": float(sigma_middle), "tau2": tau2, "lr": lr}
                extra |= {"lipschitz_inner": problem.lipschitz_inner, "lipschitz_middle": problem.lipschitz_middle}
                limit = sont_outer_table_bound(**shared, **extra)
            assert error <= limit, (name, step)
        if name == "inner" and lr == 1e-6:
            assert limit < 20 * measured[-1]
