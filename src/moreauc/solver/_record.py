"""What a run leaves behind."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from moreauc.problems.base import Problem, TwoLevelProblem
from moreauc.solver._engines import Engine
from moreauc.theory import moreau_envelope


@dataclass
class Run:
    r"""What a call of :func:`~moreauc.solver.minimize` did. `S` seeds, `K` recorded steps.

    Attributes:
        seeds: the seeds.
        step: recorded step numbers, shape `(K,)`; 0 is the start.
        samples: samples drawn up to then by each seed, shape `(K,)`. (A correction evaluates each sample twice.)
        objective: full objective, shape `(S, K)`.
        stationarity: :math:`\|\nabla F_{1/\bar\rho}(w_t)\|`, shape `(S, K)`; NaN where not asked for.
        table_error: mean over rows of :math:`\|u_i - g_i(w_t)\|` (for SONT, of
            :math:`\|v_{ij} - h_{ij}(w_t)\|`), shape `(S, K)`; NaN for methods without a table.
        outer_table_error: for SONT, mean of :math:`\|u_i - \frac1{n_2} \sum_j g_i(v_{ij})\|`; else NaN.
        last: the last iterates, shape `(S, dim)`.
        best: the recorded iterates of lowest full objective, shape `(S, dim)`.
        drawn: the iterates that the paper's output rule returns, :math:`w_{\bar t}` with :math:`\bar t` uniform on
            :math:`\{0, \dots, T - 1\}`, shape `(S, dim)`.
        drawn_step: their :math:`\bar t`, shape `(S,)`.
        noise: for two-level problems the largest :math:`\sigma` seen at a recorded iterate; else NaN.
    """

    seeds: tuple[int, ...]
    step: Tensor
    samples: Tensor
    objective: Tensor
    stationarity: Tensor
    table_error: Tensor
    outer_table_error: Tensor
    last: Tensor
    best: Tensor
    drawn: Tensor
    drawn_step: Tensor
    noise: float = math.nan
    options: dict[str, Any] = field(default_factory=dict)


class Recorder:
    """Collects the history of a run."""

    def __init__(self, problem: Problem, engine: Engine, rho_bar: float | None, seeds: tuple[int, ...]) -> None:
        self.problem, self.engine, self.rho_bar, self.seeds = problem, engine, rho_bar, seeds
        self.steps: list[int] = []
        self.columns: dict[str, list[Tensor]] = {
            name: [] for name in ("objective", "stationarity", "table_error", "outer_table_error")
        }
        self.best = engine.w.detach().clone()
        self.best_value = torch.full((len(seeds),), math.inf, dtype=torch.float64)
        self.noise = math.nan

    @torch.no_grad()
    def record(self, step: int) -> None:
        w = self.engine.w.detach()
        if not torch.isfinite(w).all():
            raise FloatingPointError(f"minimize: the iterates left the finite numbers before step {step}; lower lr")
        value = self.problem.objective(w)
        better = value < self.best_value
        self.best[better], self.best_value[better] = w[better], value[better]
        error, outer_error = self.engine.table_errors(w)
        self.steps.append(step)
        for name, column in (
            ("objective", value),
            ("stationarity", self._stationarity(w)),
            ("table_error", error),
            ("outer_table_error", outer_error),
        ):
            self.columns[name].append(column)
        if isinstance(self.problem, TwoLevelProblem):
            seen = float(self.problem.noise(w).amax())
            self.noise = seen if math.isnan(self.noise) else max(self.noise, seen)

    def _stationarity(self, w: Tensor) -> Tensor:
        if self.rho_bar is None:
            return torch.full((len(self.seeds),), math.nan, dtype=torch.float64)
        rho = self.problem.weak_convexity
        norms = [
            moreau_envelope(self.problem.objective, point, self.rho_bar, rho=rho, tol=1e-5).gradient_norm for point in w
        ]
        return torch.tensor(norms, dtype=torch.float64)

    def finish(self, last: Tensor, drawn: Tensor, drawn_step: Tensor, options: dict[str, Any]) -> Run:
        step = torch.tensor(self.steps)
        history = {name: torch.stack(column, dim=1) for name, column in self.columns.items()}
        return Run(
            seeds=self.seeds,
            step=step,
            samples=self.engine.warm_samples + step * self.engine.samples_per_step,
            last=last,
            best=self.best,
            drawn=drawn,
            drawn_step=drawn_step,
            noise=self.noise,
            options=options,
            **history,
        )
