r"""Stationarity against samples, table errors against the lemmas, and the effect of batch sizes.

The study runs every method on every problem with the same schedules: :math:`\eta_t` and :math:`\tau_t` decay as
:math:`t^{-2/3}`, as in Theorem 1 (see :class:`~moreauc.solver.PowerDecay`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from experiments.engine import Record, Setup, Study, Task
from experiments.problems import BagRanking, CVaRAbsoluteLoss, HingedSquares, WorstOfLosses
from experiments.problems.base import KnownOptimum
from experiments.problems.bounds import sonx_table_bound
from experiments.studies import convergence_page as page
from moreauc.app.report.pages import Report
from moreauc.core.tables import Gamma
from moreauc.solver import SONT, SONX, PlugIn, PowerDecay, Subgradient, ThreeLevelProblem, minimize
from moreauc.solver._minimize import Run
from moreauc.solver.methods import Method, Schedule

METHODS = ("table, gamma of the theory", "table, gamma 0.1", "table, moving average", "plug-in", "full subgradient")
_GAMMAS: dict[str, Gamma] = dict(zip(METHODS, ("theory", 0.1, 0.0), strict=False))

Make = Callable[[], KnownOptimum]

# problem, first step size, first tau, samples for each innermost expectation
PROBLEMS: dict[str, tuple[Make, float, float, int]] = {
    "CVaR of absolute losses": (CVaRAbsoluteLoss, 0.03, 0.1, 2),
    "hinge of |squares| (not convex)": (HingedSquares, 0.02, 0.1, 1),
    "worst of three losses (vector blocks)": (WorstOfLosses, 0.1, 0.1, 2),
    "bag ranking (three levels)": (BagRanking, 0.03, 0.2, 1),
}

# one factor at a time around n = 40, B1 = 8, B2 = 2
SWEEPS: dict[str, tuple[int, ...]] = {
    "samples_per_batch": (1, 2, 4, 8, 16, 32),
    "outer_per_batch": (2, 8, 32),
    "num_blocks": (10, 40, 160),
}
SWEEP_METHODS = {
    "samples_per_batch": ("plug-in", "table, gamma of the theory", "table, moving average"),
    "outer_per_batch": ("table, gamma of the theory", "table, moving average"),
    "num_blocks": ("table, gamma of the theory", "table, moving average"),
}

# tau, lr, num_blocks, outer_per_batch, samples_per_batch
BOUND_SETTINGS = (
    (0.5, 1e-5, 40, 8, 4),
    (0.1, 1e-5, 40, 8, 4),
    (0.1, 1e-3, 40, 8, 4),
    (0.1, 1e-5, 40, 8, 1),
    (0.1, 1e-5, 40, 40, 4),
    (0.1, 1e-5, 160, 8, 4),
)


# curves that no figure shows
_NOT_SHOWN = {
    "methods": ("table_error", "bound"),
    "sweeps": ("step", "samples", "stationarity", "table_error", "bound"),
    "bounds": ("stationarity", "final_stationarity", "samples"),
}


@dataclass(frozen=True, kw_only=True)
class ConvergenceStudy(Study):
    """Tables against the plug-in estimator on problems whose optimum is known.

    Args:
        steps: iterations of each run of the first part, at least 50; the other parts scale with it.
        points: points of a curve; the sweeps have half as many.
    """

    steps: int
    points: int = 24
    planned: ClassVar = ("steps", "seeds")
    tiny: ClassVar = {"steps": 50, "seeds": 1, "points": 4}

    def tasks(self, setup: Setup) -> list[Task]:
        """Return a task for each setting of the three parts."""
        return [*self._method_tasks(), *self._sweep_tasks(), *self._bound_tasks()]

    def report(self, records: Sequence[Record], out: Path) -> Report:
        """Draw the three figures and return the report."""
        dropped = ("key", "plan", "where", "seconds", "part")
        parts = {
            part: [{k: v for k, v in r.items() if k not in dropped} for r in records if r["part"] == part]
            for part in _NOT_SHOWN
        }
        page.draw(parts, out)
        return Report(self.title, "", {**self.plan, **parts}, page.sections(parts))

    def _task(self, place: Record, problem: Make, method: Method, lr: Schedule, steps: int, **options: object) -> Task:
        options = {"seeds": range(self.seeds), **options}
        return Task(
            place,
            solve,
            {"part": place["part"], "problem": problem, "method": method, "lr": lr, "steps": steps, **options},
        )

    def _method_tasks(self) -> Iterator[Task]:
        for name, (problem, lr, tau, samples) in PROBLEMS.items():
            for label in METHODS:
                place = {"part": "methods", "problem": name, "method": label}
                method = make_method(label, problem(), PowerDecay(tau))
                options: Record = {"samples_per_batch": samples, "records": self.points}
                if label == "full subgradient":  # draws nothing, and costs hundreds of times more a step
                    options["seeds"] = [0]
                    yield self._task(place, problem, method, PowerDecay(lr, delay=10.0), self.steps // 10, **options)
                else:
                    yield self._task(place, problem, method, PowerDecay(lr), self.steps, **options)

    def _sweep_tasks(self) -> Iterator[Task]:
        base, lr, tau, _ = PROBLEMS["CVaR of absolute losses"]
        for factor, values in SWEEPS.items():
            for value in values:
                problem = _CVaR(value) if factor == "num_blocks" else base
                options = {"samples_per_batch": 2, "records": self.points // 2}
                if factor != "num_blocks":
                    options[factor] = value
                for label in SWEEP_METHODS[factor]:
                    place = {"part": "sweeps", "factor": factor, "value": value, "method": label}
                    method = make_method(label, base(), PowerDecay(tau))
                    yield self._task(place, problem, method, PowerDecay(lr), self.steps // 2, **options)

    def _bound_tasks(self) -> Iterator[Task]:
        for setting in BOUND_SETTINGS:
            named = dict(zip(page.BOUND, setting, strict=True))
            options = {key: named[key] for key in ("outer_per_batch", "samples_per_batch")}
            for gamma in ("theory", 0.0):
                place = {"part": "bounds", **named, "gamma": gamma}
                method = SONX(tau=named["tau"], gamma=gamma)
                problem, steps = _CVaR(int(named["num_blocks"])), max(self.steps // 4, 50)
                options |= {"records": self.points, "stationarity": False}
                yield self._task(place, problem, method, named["lr"], steps, **options)


def solve(*, part: str, problem: Make, method: Method, lr: Schedule, steps: int, **options: Any) -> Record:
    """Run a method on a problem, all seeds side by side, and return means and spreads."""
    made = _made(problem)
    found = _summary(made, minimize(made, method, lr=lr, steps=steps, **options))
    return {"steps": steps, **{key: value for key, value in found.items() if key not in _NOT_SHOWN[part]}}


@dataclass(frozen=True)
class _CVaR:
    """The first problem with another number of blocks; can be sent to another process."""

    num_blocks: int

    def __call__(self) -> KnownOptimum:
        return CVaRAbsoluteLoss(num_blocks=self.num_blocks)


@cache
def _made(problem: Make) -> KnownOptimum:
    """Make a problem once in each process: finding its optimum takes longer than many runs."""
    return problem()


def make_method(label: str, problem: KnownOptimum, tau: PowerDecay) -> Method:
    """Return the method that a label of `METHODS` stands for on a problem."""
    if label == "plug-in":
        return PlugIn()
    if label == "full subgradient":
        return Subgradient()
    gamma = _GAMMAS[label]
    if isinstance(problem, ThreeLevelProblem):
        return SONT(tau1=tau, tau2=tau, gamma1=gamma, gamma2=gamma)
    return SONX(tau=tau, gamma=gamma)


def _summary(problem: KnownOptimum, run: Run) -> Record:
    """Means over seeds, and their spread, as plain data."""
    optimum = problem.optimum.value
    late = run.step >= run.step[-1] // 2
    result: Record = {
        "options": run.options,
        "step": run.step.tolist(),
        "samples": run.samples.tolist(),
        "stationarity": _spread(run.stationarity),
        "table_error": run.table_error.mean(dim=0).tolist(),
        "final_stationarity": _mean_and_std(run.stationarity[:, late].mean(dim=1)),
        "final_gap": _mean_and_std(run.objective[:, late].mean(dim=1) - optimum),
        "gap_of": {
            name: _mean_and_std(problem.objective(getattr(run, name)) - optimum) for name in ("last", "best", "drawn")
        },
    }
    if isinstance(problem, CVaRAbsoluteLoss) and not math.isnan(result["table_error"][0]):
        result["bound"] = _bound(problem, run)
    return result


def _bound(problem: CVaRAbsoluteLoss, run: Run) -> list[float]:
    """The lemma's bound on the table error at the recorded steps, for runs with constant parameters (else empty)."""
    tau, gamma, lr = (run.options.get(name) for name in ("tau", "gamma", "lr"))
    if not isinstance(tau, float) or not isinstance(lr, float) or gamma not in ("theory", 0.0):
        return []
    blocks, samples = run.options["outer_per_batch"], run.options["samples_per_batch"]
    assert isinstance(blocks, int) and isinstance(samples, int)
    return [
        sonx_table_bound(
            moving_average=gamma == 0.0,
            step=step,
            initial_error=float(run.table_error[:, 0].mean()),
            tau=tau,
            lr=lr,
            num_blocks=problem.num_outer,
            blocks_per_batch=blocks,
            samples_per_block=samples,
            sigma=run.noise,
            lipschitz=problem.lipschitz_inner,
            gradient_bound=problem.lipschitz_outer * problem.lipschitz_inner,
        )
        for step in run.step.tolist()
    ]


def _spread(values: torch.Tensor) -> dict[str, list[float]]:
    low, high = torch.quantile(values, torch.tensor([0.1, 0.9], dtype=values.dtype), dim=0)
    return {"mean": values.mean(dim=0).tolist(), "low": low.tolist(), "high": high.tolist()}


def _mean_and_std(values: torch.Tensor) -> tuple[float, float]:
    """Mean and standard deviation over seeds; NaN for the deviation of one."""
    return float(values.mean()), float(values.std()) if len(values) > 1 else math.nan
