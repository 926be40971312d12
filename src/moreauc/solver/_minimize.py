"""The loop: runs of a method on a problem, and what they recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moreauc._checks import check_count, check_real, check_shape
from moreauc.optim import PreviousIterate
from moreauc.solver._engines import Batches, Engine, make_engine
from moreauc.solver.methods import SONT, SONX, Method, Schedule, at_step
from moreauc.solver.problems import Problem, ThreeLevelProblem, TwoLevelProblem
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
    options: dict[str, str | int | float | None] = field(default_factory=dict)


class Recorder:
    """Collects the history of a run."""

    def __init__(self, problem: Problem, engine: Engine, rho_bar: float | None, seeds: tuple[int, ...]) -> None:
        self.problem, self.engine, self.rho_bar, self.seeds = problem, engine, rho_bar, seeds
        self.steps: list[int] = []
        self.rows: list[dict[str, Tensor]] = []
        self.best = engine.point.clone()
        self.best_value = torch.full((len(seeds),), math.inf, dtype=torch.float64)
        self.noise = math.nan

    @torch.no_grad()
    def record(self, step: int) -> None:
        w = self.engine.point
        if not torch.isfinite(w).all():
            raise FloatingPointError(f"minimize: the iterates are not finite before step {step}; lower lr")
        value = self.problem.objective(w)
        better = value < self.best_value
        self.best[better], self.best_value[better] = w[better], value[better]
        error, outer_error = self.engine.table_errors(w)
        self.steps.append(step)
        row = {"objective": value, "stationarity": self._stationarity(w)}
        self.rows.append({**row, "table_error": error, "outer_table_error": outer_error})
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

    def finish(
        self, last: Tensor, drawn: Tensor, drawn_step: Tensor, options: dict[str, str | int | float | None]
    ) -> Run:
        step = torch.tensor(self.steps)
        history = {name: torch.stack([row[name] for row in self.rows], dim=1) for name in self.rows[0]}
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


def minimize(
    problem: Problem,
    method: Method,
    *,
    steps: int,
    lr: Schedule,
    outer_per_batch: int = 8,
    inner_per_batch: int = 8,
    samples_per_batch: int = 4,
    seeds: Sequence[int] = (0,),
    start: Tensor | None = None,
    warm_start: bool = True,
    records: int | Sequence[int] = 40,
    rho_bar: float | None = None,
    stationarity: bool = True,
    progress: bool | Callable[[int], None] = False,
) -> Run:
    r"""Minimise a problem and record what a researcher wants to see.

    Args:
        problem: a :class:`~moreauc.solver.TwoLevelProblem` or :class:`~moreauc.solver.ThreeLevelProblem`.
        method: SONX, SONT, PlugIn or Subgradient of :mod:`moreauc.solver`, with its parameters.
        steps: number of iterations :math:`T`.
        lr: step size :math:`\eta`, or a function of the step number.
        outer_per_batch: blocks (outer items) of a batch, :math:`B_1`, drawn without replacement.
        inner_per_batch: inner items of a batch of a three-level problem, :math:`B_2`, drawn without replacement.
        samples_per_batch: samples for each innermost expectation (:math:`B_2` of SONX, :math:`B_3` of SONT), drawn
            with replacement.
        seeds: one run for each.
        start: :math:`w_0`, shape `(dim,)`; the problem's own by default.
        warm_start: fill all table rows at :math:`w_0` before the first step, from a batch of samples each (as
            Algorithm 3 does for `v`); these samples are counted. Otherwise rows fill at their first visit.
        records: about how many steps to record, spread evenly in the logarithm of the step number; or the step
            numbers themselves. The last step is always recorded.
        rho_bar: :math:`\bar\rho` of the Moreau envelope that measures stationarity; twice the problem's modulus, or 1
            for a convex problem, by default.
        stationarity: whether to measure it (it costs a proximal step for each record and seed).
        progress: True for a progress bar; or a function that is called with the number of new steps.

    Example:
        >>> class Distances(TwoLevelProblem):
        ...     "Six points, each seen with noise; what counts is a mean distance beyond 1."
        ...     dim, dim_block, num_outer, num_samples = 1, 1, 6, 2
        ...     lipschitz_outer, lipschitz_inner, rho_outer, rho_inner = 1.0, 1.0, 0.0, 0.0
        ...     start = torch.zeros(1, dtype=torch.float64)
        ...     def sample(self, w, index, samples):
        ...         return (w[..., None, None, :] - index[..., None, None] - samples[..., None]).abs()
        ...     def outer(self, u, index):
        ...         return torch.relu(u.squeeze(-1) - 1.0)
        >>> options = {"steps": 300, "lr": 0.02, "outer_per_batch": 2, "seeds": [0, 1]}
        >>> run = minimize(Distances(), SONX(tau=0.2, gamma=0.1), **options)
        >>> bool((run.objective[:, -1] < run.objective[:, 0]).all())
        True
    """
    steps = check_count("minimize", "steps", steps)
    marks = _marks(steps, records)
    if not len(seeds):
        raise ValueError("minimize: seeds must not be empty, got []")
    sizes = _check_sizes(problem, method, outer_per_batch, inner_per_batch, samples_per_batch)
    if stationarity:
        rho_bar = 2.0 * problem.weak_convexity or 1.0 if rho_bar is None else rho_bar
        rho_bar = check_real("minimize", "rho_bar", rho_bar, low=problem.weak_convexity, low_open=True)
    else:
        rho_bar = None
    point = problem.start if start is None else torch.as_tensor(start, dtype=torch.float64)
    check_shape("minimize", "start", point, [(problem.dim,)])

    batches = Batches(problem, sizes, seeds)
    engine = make_engine(problem, method, point, batches, warm_start)
    optimizer = torch.optim.SGD([engine.w], lr=0.0)
    previous = PreviousIterate(engine.model, optimizer) if engine.corrects else None
    recorder = Recorder(problem, engine, rho_bar, tuple(seeds))
    drawn_step = torch.tensor([torch.randint(steps, (), generator=g) for g in batches.generators])
    drawn = engine.point.clone()
    with _counter(steps, progress) as advance:
        for step in range(steps):
            drawn[drawn_step == step] = engine.point[drawn_step == step]
            if step in marks:
                recorder.record(step)
            engine.set_step(step)
            # the loss is a mean over all replicas, each of which takes its own full step
            optimizer.param_groups[0]["lr"] = at_step(lr, step, "lr") * len(seeds)
            loss = engine.loss(batches.draw(step) if engine.draws else (), previous)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            advance(1)
    recorder.record(steps)
    options: dict[str, str | int | float | None] = {
        "method": repr(method),
        "lr": lr if isinstance(lr, float) else repr(lr),
        "steps": steps,
        **sizes,
    }
    options |= {"rho_bar": rho_bar, "warm_start": warm_start}
    options |= {name: value for name, value in vars(method).items() if isinstance(value, float | int | str)}
    return recorder.finish(engine.point.clone(), drawn, drawn_step, options)


def _check_sizes(problem: Problem, method: Method, outer: int, inner: int, samples: int) -> dict[str, int]:
    if isinstance(problem, TwoLevelProblem):
        if isinstance(method, SONT):
            raise ValueError("minimize: method must be SONX, PlugIn or Subgradient for a two-level problem, got SONT")
    elif isinstance(problem, ThreeLevelProblem):
        if isinstance(method, SONX):
            raise ValueError("minimize: method must be SONT, PlugIn or Subgradient for a three-level problem, got SONX")
    else:
        kind = type(problem).__name__
        raise ValueError(f"minimize: problem must be a TwoLevelProblem or ThreeLevelProblem, got {kind}")
    sizes = {
        "outer_per_batch": check_count("minimize", "outer_per_batch", outer),
        "samples_per_batch": check_count("minimize", "samples_per_batch", samples),
    }
    limits = {"outer_per_batch": problem.num_outer}
    if isinstance(problem, ThreeLevelProblem):
        sizes["inner_per_batch"] = check_count("minimize", "inner_per_batch", inner)
        limits["inner_per_batch"] = problem.num_inner
    for name, limit in limits.items():
        if sizes[name] > limit:
            raise ValueError(f"minimize: {name} must be at most {limit}, the number of items, got {sizes[name]}")
    return sizes


@contextmanager
def _counter(steps: int, progress: bool | Callable[[int], None]) -> Iterator[Callable[[int], None]]:
    """Yield the function to call with the number of further steps done, with a bar on the screen if `progress`."""
    if progress is True:
        from rich.progress import Progress

        with Progress() as screen:
            task = screen.add_task("minimize", total=steps)
            yield lambda count: screen.advance(task, count)
    else:
        yield progress if callable(progress) else lambda count: None


def _marks(steps: int, records: int | Sequence[int]) -> set[int]:
    """Steps to record: the given ones, or the first, then evenly in the logarithm."""
    if isinstance(records, Sequence):
        for step in records:
            if check_count("minimize", "records", step, minimum=0) > steps:
                raise ValueError(f"minimize: records must hold step numbers of at most steps = {steps}, got {step}")
        return set(records)
    ratio = math.log(steps + 1) / check_count("minimize", "records", records)
    return {0} | {round(math.exp(ratio * k)) - 1 for k in range(1, records)}
