r"""Stationarity against samples, table errors against the lemmas, and what batch sizes do.

The study runs every method on every problem with the same schedules: :math:`\eta_t` and :math:`\tau_t` decay as
:math:`t^{-2/3}`, which is what Theorem 1 asks for (see :class:`~moreauc.solver.PowerDecay`).
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from moreauc._checks import check_count
from moreauc.core.rules import Gamma
from moreauc.problems import (
    BagRanking,
    CVaRAbsoluteLoss,
    HingedSquares,
    ThreeLevelProblem,
    WorstOfLosses,
)
from moreauc.problems.base import Problem
from moreauc.report.pages import Report
from moreauc.solver import SONT, SONX, PlugIn, PowerDecay, Run, Subgradient, minimize
from moreauc.solver.methods import Method
from moreauc.theory import sonx_table_bound

METHODS = ("table, gamma of the theory", "table, gamma 0.1", "table, moving average", "plug-in", "full subgradient")
_GAMMAS: dict[str, Gamma] = dict(zip(METHODS, ("theory", 0.1, 0.0), strict=False))

# problem, first step size, first tau, samples for each innermost expectation
PROBLEMS: dict[str, tuple[Callable[[], Problem], float, float, int]] = {
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


@dataclass(frozen=True)
class Task:
    """One call of :func:`~moreauc.solver.minimize`."""

    part: str
    key: tuple[Any, ...]
    problem: Callable[[], Problem]
    method: Method
    lr: PowerDecay | float
    steps: int
    options: dict[str, Any] = field(default_factory=dict)

    def run(self) -> dict[str, Any]:
        """Do it and return plain data."""
        torch.set_num_threads(1)
        problem = _made(self.problem)
        run = minimize(problem, self.method, lr=self.lr, steps=self.steps, **self.options)
        return {"part": self.part, "key": list(self.key), "steps": self.steps, **_summary(problem, run)}


@dataclass
class ConvergenceStudy:
    """The study and its size.

    Args:
        steps: iterations of each run of the first part; the other parts scale with it.
        seeds: runs of each setting, side by side.
        jobs: processes.
    """

    steps: int = 6000
    seeds: int = 16
    jobs: int = 2

    def __post_init__(self) -> None:
        for name in ("steps", "seeds", "jobs"):
            check_count("ConvergenceStudy", name, getattr(self, name))
        if self.steps < 50:
            raise ValueError(f"ConvergenceStudy: steps must be at least 50, got {self.steps}")

    @property
    def tasks(self) -> list[Task]:
        """All runs."""
        return [*self._method_tasks(), *self._sweep_tasks(), *self._bound_tasks()]

    def run(self, progress: Callable[[int], None] | None = None) -> list[dict[str, Any]]:
        """Run all tasks; `progress` is called with the steps of each as it ends. Results are in the tasks' order."""
        tasks = self.tasks
        results: dict[int, dict[str, Any]] = {}
        for number, result in _run_all(tasks, self.jobs):
            results[number] = result
            if progress is not None:
                progress(tasks[number].steps)
        return [results[number] for number in range(len(tasks))]

    def report(self, folder: Path, progress: Callable[[int], None] | None = None) -> Report:
        """Run the study, draw its figures into `folder` and write the report there."""
        from experiments.studies import _figures, _page

        begin = time.perf_counter()
        results = self.run(progress)
        parts = {part: [r for r in results if r["part"] == part] for part in ("methods", "sweeps", "bounds")}
        report = Report(
            title="Convergence study: tables against the plug-in estimator",
            command=f"python -m experiments study convergence --steps {self.steps} --seeds {self.seeds}",
            results={"steps": self.steps, "seeds": self.seeds, "findings": _page.findings(parts), **_kept(parts)},
            sections=_page.sections(parts),
            seconds=time.perf_counter() - begin,
        )
        report.write(folder)  # first: a figure that fails costs no numbers
        _figures.draw_methods(parts["methods"], folder / "methods.png")
        _figures.draw_sweeps(parts["sweeps"], folder / "sweeps.png")
        _figures.draw_bounds(parts["bounds"], folder / "bounds.png")
        return report

    def _method_tasks(self) -> Iterator[Task]:
        for name, (problem, lr, tau, samples) in PROBLEMS.items():
            for label in METHODS:
                method = make_method(label, problem(), PowerDecay(tau))
                # the full subgradient costs hundreds of times more a step
                steps = self.steps // 10 if label == "full subgradient" else self.steps
                schedule = PowerDecay(lr, delay=10.0 if label == "full subgradient" else 100.0)
                options = {"samples_per_batch": samples, "seeds": range(self.seeds), "records": 24}
                if label == "full subgradient":
                    options["seeds"] = [0]  # it draws nothing
                yield Task("methods", (name, label), problem, method, schedule, steps, options)

    def _sweep_tasks(self) -> Iterator[Task]:
        base, lr, tau, _ = PROBLEMS["CVaR of absolute losses"]
        for factor, values in SWEEPS.items():
            for value in values:
                problem = _CVaR(value) if factor == "num_blocks" else base
                options = {"samples_per_batch": 2, "seeds": range(self.seeds), "records": 12}
                if factor != "num_blocks":
                    options[factor] = value
                for label in SWEEP_METHODS[factor]:
                    method = make_method(label, base(), PowerDecay(tau))
                    yield Task(
                        "sweeps", (factor, value, label), problem, method, PowerDecay(lr), self.steps // 2, options
                    )

    def _bound_tasks(self) -> Iterator[Task]:
        for tau, lr, blocks, outer, samples in BOUND_SETTINGS:
            for gamma in ("theory", 0.0):
                options = {
                    "outer_per_batch": outer,
                    "samples_per_batch": samples,
                    "seeds": range(self.seeds),
                    "records": 24,
                    "stationarity": False,
                }
                key = (tau, lr, blocks, outer, samples, gamma)
                method = SONX(tau=tau, gamma=gamma)
                yield Task("bounds", key, _CVaR(blocks), method, lr, max(self.steps // 4, 50), options)


@dataclass(frozen=True)
class _CVaR:
    """The first problem with another number of blocks, as something that can be sent to another process."""

    num_blocks: int

    def __call__(self) -> Problem:
        return CVaRAbsoluteLoss(num_blocks=self.num_blocks)


@cache
def _made(problem: Callable[[], Problem]) -> Problem:
    """Make a problem once in each process: to find its optimum takes longer than many runs."""
    return problem()


def make_method(label: str, problem: Problem, tau: PowerDecay) -> Method:
    """Return the method that a label of `METHODS` stands for on a problem."""
    if label == "plug-in":
        return PlugIn()
    if label == "full subgradient":
        return Subgradient()
    gamma = _GAMMAS[label]
    if isinstance(problem, ThreeLevelProblem):
        return SONT(tau1=tau, tau2=tau, gamma1=gamma, gamma2=gamma)
    return SONX(tau=tau, gamma=gamma)


def _run_all(tasks: list[Task], jobs: int) -> Iterator[tuple[int, dict[str, Any]]]:
    if jobs == 1:
        for number, task in enumerate(tasks):
            yield number, task.run()
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {pool.submit(task.run): number for number, task in enumerate(tasks)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _summary(problem: Problem, run: Run) -> dict[str, Any]:
    """Means over seeds, and their spread, as plain data."""
    optimum = problem.optimum.value
    late = run.step >= run.step[-1] // 2
    result: dict[str, Any] = {
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
    return [
        sonx_table_bound(
            moving_average=gamma == 0.0,
            step=step,
            initial_error=float(run.table_error[:, 0].mean()),
            tau=tau,
            lr=lr,
            num_blocks=problem.num_outer,
            blocks_per_batch=run.options["outer_per_batch"],
            samples_per_block=run.options["samples_per_batch"],
            sigma=run.noise,
            lipschitz=problem.lipschitz_inner,
            gradient_bound=problem.gradient_bound,
        )
        for step in run.step.tolist()
    ]


def _kept(parts: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Leave out of the report the curves that no figure shows."""
    unseen = {
        "methods": ("table_error", "bound"),
        "sweeps": ("step", "samples", "stationarity", "table_error", "bound"),
        "bounds": ("stationarity", "final_stationarity", "samples"),
    }
    return {
        part: [
            {key: value for key, value in result.items() if key not in (*unseen[part], "part")} for result in results
        ]
        for part, results in parts.items()
    }


def _spread(values: torch.Tensor) -> dict[str, list[float]]:
    low, high = torch.quantile(values, torch.tensor([0.1, 0.9], dtype=values.dtype), dim=0)
    return {"mean": values.mean(dim=0).tolist(), "low": low.tolist(), "high": high.tolist()}


def _mean_and_std(values: torch.Tensor) -> tuple[float, float]:
    """Mean and standard deviation over seeds; NaN for the deviation of one."""
    return float(values.mean()), float(values.std()) if len(values) > 1 else math.nan
