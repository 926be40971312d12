"""The lemmas' bounds against the mean table error of many runs, with constants computed from the data."""

from __future__ import annotations

import pytest
import torch

from moreauc.problems import CVaRAbsoluteLoss
from moreauc.solver import SONX, minimize
from moreauc.theory import sonx_moving_average_table_bound, sonx_table_bound

SETTINGS = [  # tau, lr, B1, B2, n
    (0.5, 1e-5, 4, 2, 20),
    (0.1, 1e-5, 4, 2, 20),
    (0.1, 1e-5, 4, 8, 20),
    (0.1, 1e-5, 20, 2, 20),
    (0.1, 1e-5, 4, 2, 60),
    (0.1, 1e-3, 4, 2, 20),
    (0.02, 1e-4, 10, 2, 20),
]


@pytest.mark.parametrize(("bound", "gamma"), [(sonx_table_bound, "theory"), (sonx_moving_average_table_bound, 0.0)])
@pytest.mark.parametrize(("tau", "lr", "b1", "b2", "n"), SETTINGS)
def test_bound_holds(bound, gamma, tau, lr, b1, b2, n):
    problem = CVaRAbsoluteLoss(num_blocks=n, num_samples=10, num_features=2)
    run = minimize(
        problem,
        SONX(tau=tau, gamma=gamma),
        steps=500,
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
            bound(
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
