r"""Rates: stationarity after T steps with the constant parameters that the theory gives for T, against samples.

For each horizon :math:`T` the study solves the theory's number of iterations for :math:`\epsilon` and takes the other
parameters of :mod:`moreauc.theory` at that :math:`\epsilon`. The factors that :math:`O(\cdot)` hides are chosen by each
method from as many settings, at one horizon and on other seeds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from experiments.config import combinations
from experiments.engine import Record, Setup, Study, Task
from experiments.files import save_figure
from experiments.studies._shared import tune
from experiments.studies.convergence import PROBLEMS as ALL_PROBLEMS
from experiments.studies.convergence import SUCCESSORS
from experiments.studies.convergence_page import COLORS, FULL, TABLE
from moreauc.app.report.pages import Report, Section
from moreauc.problems.base import TwoLevelProblem
from moreauc.solver import ALEXR2, SONX, minimize
from moreauc.theory import alexr2_parameters, sonex_parameters, sonx_parameters

Numbers = NDArray[np.float64]

# title: predicted exponent of stationarity against samples; None where there is no theory
METHODS = {"SONX": -1 / 6, "SONX, momentum": -1 / 6, "SONEX": -1 / 5, "SONEX, no smoothing": None, "ALEXR2": -1 / 5}
PROBLEMS = tuple(name for name, (make, *_) in ALL_PROBLEMS.items() if issubclass(make, TwoLevelProblem))  # type: ignore[arg-type]
BLOCKS = 8  # of a batch
MOMENTUM = 0.9  # of SONX, for which there is no theory
_TAUS, _RATES, _LOW = (0.8, 2.4, 6.4), (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0), (0.01, 0.1, 1.0)
# constants of the theory's functions, all combinations; none reaches the largest tau or momentum that is allowed
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "SONX": {"tau": _TAUS, "lr": _RATES},
    "SONX, momentum": {"tau": _TAUS, "lr": _RATES},
    "SONEX": {"tau": _TAUS, "lr": _RATES, "smoothing": _LOW, "momentum": (0.1, 0.3, 0.9)},
    "ALEXR2": {"tau": _TAUS, "lr": _RATES, "smoothing": _LOW, "inner_steps": (0.1, 0.3, 1.0)},
}
GRIDS["SONEX, no smoothing"] = {name: values for name, values in GRIDS["SONEX"].items() if name != "smoothing"}
_DRAWS = 2000  # of the bootstrap
_COLORS = dict(zip((name for name in METHODS if METHODS[name]), map(COLORS.get, (TABLE, *SUCCESSORS)), strict=True))
_COLORS["SONEX, no smoothing"] = COLORS[FULL]


@dataclass(frozen=True, kw_only=True)
class RatesStudy(Study):
    """Slopes of stationarity against samples, beside the exponents of the theory.

    Args:
        horizons: numbers of steps; the constants are chosen at the one in the middle.
        trials: settings tried by each method, at most 24.
        points: intervals between the iterates whose stationarity is measured.
        problems: names of problems.
    """

    horizons: Sequence[int]
    trials: int
    points: int
    problems: tuple[str, ...] = PROBLEMS
    planned: ClassVar = ("trials", "points", "seeds")
    tiny: ClassVar = {"horizons": (20, 40), "trials": 1, "points": 3, "seeds": 2, "problems": PROBLEMS[1:2]}

    @property
    def plan(self) -> dict[str, Any]:
        """What every run depends on."""
        return {"horizons": list(self.horizons), **super().plan}

    def tasks(self, setup: Setup) -> list[Task]:
        """Return a task for each problem and method."""
        return [
            Task(at, tune_and_measure, {**at, **self.plan})
            for at in combinations(problem=self.problems, method=METHODS)
        ]

    def report(self, records: Sequence[Record], out: Path) -> Report:
        """Fit the slopes, draw them, and return the report."""
        fits = [{**fit_slope(record), "against_sonx": against_sonx(record, records)} for record in records]
        save_figure(draw(fits), out / "rates.png", dpi=130)
        text = [
            "Mean over a run's iterates of the norm of the gradient of the Moreau envelope, mean over "
            f"{self.seeds} seeds, for runs of {', '.join(f'{steps:,}' for steps in self.horizons)} steps with constant "
            "parameters. A slope is that of the least-squares line through the logarithms, ± its standard deviation "
            "when seeds are drawn with replacement; the residual is the root mean square distance of the points from "
            f"the line, as a factor. Each method tried {self.trials} settings at {middle(self.horizons):,} steps on "
            "other seeds."
        ]
        caption = (
            "Three panels, one for each problem: mean stationarity of a run against its samples, with fitted lines"
        )
        columns, rows = slope_table(fits)
        section = Section("Slopes", text, "rates.png", caption, columns, rows)
        return Report(self.title, "", {**self.plan, "fits": fits}, [section])


def middle(horizons: Sequence[int]) -> int:
    """Return the horizon at which constants are chosen."""
    return horizons[(len(horizons) - 1) // 2]


def settings(method: str, trials: int) -> list[Record]:
    """Return the constants that a method tries: its whole grid in an order drawn at random, or the first of it.

    SONEX tries the same without smoothing as with it.
    """
    drawn = GRIDS["SONEX" if method.startswith("SONEX") else method]
    every = [dict(zip(drawn, values, strict=True)) for values in product(*drawn.values())]
    return [{key: entry[key] for key in GRIDS[method]} for entry in random.Random(0).sample(every, trials)]


def at_horizon(method: str, problem: TwoLevelProblem, samples: int, steps: int, constants: Record) -> tuple[Any, float]:
    """Return a method with the parameters that its theory has for so many steps, and its step size.

    Args:
        method: key of `METHODS`.
        problem: what it is to solve.
        samples: of each block.
        steps: number of iterations, for which the theory's formula is solved for epsilon.
        constants: factors of the theory's parameters.
    """
    sizes = {"num_blocks": problem.num_outer, "blocks_per_batch": BLOCKS, "samples_per_block": samples}
    share = BLOCKS / problem.num_outer
    given: dict[str, Any] = {**sizes, **{f"constant_{name}": value for name, value in constants.items()}}
    if method == "ALEXR2":
        a = alexr2_parameters(epsilon=(share * samples * steps) ** (-1 / 5), **given)
        weight = 2.0 * problem.weak_convexity or 1.0
        return ALEXR2(tau=a.tau, smoothing=a.smoothing, weight=weight, inner_steps=a.inner_steps), a.lr
    speed = share * math.sqrt(samples) * steps
    if method.startswith("SONEX"):
        e = sonex_parameters(epsilon=speed ** (-1 / 5), **given)
        smoothing = e.smoothing if method == "SONEX" else 0.0
        return SONX(tau=e.tau, gamma="theory", smoothing=smoothing, momentum=e.momentum), e.lr
    p = sonx_parameters(epsilon=speed ** (-1 / 6), **given)
    return SONX(tau=p.tau, gamma="theory", momentum=0.0 if method == "SONX" else MOMENTUM), p.lr


def measure(
    method: str, name: str, steps: int, constants: Record, seeds: Sequence[int], points: int
) -> tuple[list[float], int]:
    """Return the mean stationarity over the iterates of each seed's run, infinite if it diverged, and the samples."""
    make, _, _, samples = ALL_PROBLEMS[name]
    problem = make()
    assert isinstance(problem, TwoLevelProblem)
    made, lr = at_horizon(method, problem, samples, steps, constants)
    # more of the first iterates, where stationarity falls fast; the trapezoidal rule makes up for it
    marks = sorted({round(steps * (k / points) ** 2) for k in range(points + 1)})
    try:
        run = minimize(
            problem, made, steps=steps, lr=lr, outer_per_batch=BLOCKS, samples_per_batch=samples, seeds=seeds,
            records=marks,
        )  # fmt: skip
    except (FloatingPointError, ValueError):  # iterates or inner values that are not finite
        return [math.inf] * len(seeds), 0
    mean = np.trapezoid(run.stationarity.numpy(), run.step.numpy(), axis=1) / steps
    return mean.tolist(), int(run.samples[-1])


def tune_and_measure(
    *, problem: str, method: str, horizons: Sequence[int], trials: int, points: int, seeds: int
) -> Record:
    """Choose the constants of a method at the middle horizon, and measure it at all of them."""
    others = range(seeds, seeds + max(seeds // 4, 1))

    def train(constants: Record) -> tuple[Any, Record]:
        found = float(np.mean(measure(method, problem, middle(horizons), constants, others, points // 2)[0]))
        return (constants if math.isfinite(found) else None), {"validation": -found}

    constants, choice = tune(settings(method, trials), train, "validation", f"{problem}, {method}")
    runs = [measure(method, problem, steps, constants, range(seeds), points) for steps in horizons]
    return {**choice, "stationarity": [values for values, _ in runs], "samples": [count for _, count in runs]}


def fit_slope(record: Record) -> Record:
    """Return the line through the logarithms of means over seeds, and its spread if seeds are drawn anew.

    The same seeds are drawn at all horizons, as runs of a seed begin with the same batches.
    """
    x, values = np.log(record["samples"]), np.asarray(record["stationarity"], dtype=np.float64)
    line = partial(np.polyfit, x, deg=1)
    mean = values.mean(axis=1)
    slope, offset = line(np.log(mean))
    drawn = np.random.default_rng(0).integers(values.shape[1], size=(_DRAWS, values.shape[1]))
    slopes = line(np.log(values[:, drawn].mean(axis=2)))[0]
    residual = np.log(mean) - slope * x - offset
    return {
        **{key: record[key] for key in ("problem", "method", "setting", "samples")},
        "predicted": METHODS[record["method"]],
        "slope": float(slope),
        "offset": float(offset),
        "std": float(slopes.std(ddof=1)),
        "residual": float(np.exp(np.sqrt(np.mean(residual**2)))),
        "mean": mean.tolist(),
        "error": (values.std(axis=1, ddof=1) / math.sqrt(values.shape[1])).tolist(),
    }


def against_sonx(record: Record, records: Sequence[Record]) -> tuple[float, float]:
    """Return the mean difference to SONX in pairs of seeds, after the longest runs, and its standard error."""
    (other,) = (r for r in records if (r["problem"], r["method"]) == (record["problem"], "SONX"))
    pairs = np.subtract(record["stationarity"][-1], other["stationarity"][-1])
    return float(pairs.mean()), float(pairs.std(ddof=1) / math.sqrt(len(pairs)))


def slope_table(fits: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: exponents, residual, and stationarity at the last horizon."""
    rows = [
        [
            *(fit["problem"].replace("|", ""), fit["method"]),
            "" if fit["predicted"] is None else f"{fit['predicted']:.3f}",
            *(f"{fit['slope']:.3f} ± {fit['std']:.3f}", f"{fit['residual']:.2f}"),
            f"{fit['mean'][-1]:.4f} ± {fit['error'][-1]:.4f}",
            "" if fit["method"] == "SONX" else "{:+.4f} ± {:.4f}".format(*fit["against_sonx"]),
        ]
        for fit in fits
    ]
    return ["problem", "method", "predicted", "measured slope", "residual", "longest runs", "minus SONX"], rows


def draw(fits: Sequence[Record]) -> Figure:
    """Draw stationarity against samples with the fitted lines, a panel for each problem."""
    problems = list(dict.fromkeys(fit["problem"] for fit in fits))
    figure = Figure(figsize=(4.1 * len(problems), 5.5), layout="constrained")
    for axis, problem in zip(figure.subplots(1, len(problems), squeeze=False)[0], problems, strict=True):
        for fit in (fit for fit in fits if fit["problem"] == problem):
            color, x = _COLORS[fit["method"]], np.array(fit["samples"])
            label = f"{fit['method']}: {fit['slope']:.3f} ± {fit['std']:.3f}"
            axis.errorbar(x, fit["mean"], yerr=fit["error"], fmt="o", color=color, markersize=4, capsize=2, label=label)
            axis.plot(x, np.exp(fit["offset"]) * x ** fit["slope"], color=color, linewidth=1.3)
        axis.set(xscale="log", yscale="log", title=problem, xlabel="samples drawn")
        axis.grid(alpha=0.25, which="both")
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17)}
        axis.legend(frameon=False, fontsize=9, title="measured slope", title_fontsize=9, **place)
    figure.axes[0].set_ylabel(r"mean over the run of $\|\nabla F_{1/\bar\rho}(w_t)\|$")
    return figure
