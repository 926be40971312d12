r"""One loop that minimises a finite-sum problem, by the paper's algorithms and by what they are compared with.

=====================  ===========================================================================
:class:`SONX`          table rule (MSVR; moving average at gamma 0) on a two-level problem
:class:`SONT`          the same with two tables on a three-level problem
:class:`PlugIn`        no table: the batch's own inner values inside the outer function
:class:`Subgradient`   the full objective's subgradient, every sample at every step
=====================  ===========================================================================

Seeds run side by side as replicas of the problem: one loss with `n` rows for each seed, one parameter of shape
`(seeds, dim)`. A seed's run does not depend on which others run with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from moreauc._checks import check_count, check_real, check_shape
from moreauc.criteria import FCCOLoss, TCCOLoss
from moreauc.optim import PreviousIterate
from moreauc.problems import Problem, ThreeLevelProblem, TwoLevelProblem
from moreauc.rules import Gamma
from moreauc.theory import moreau_envelope

Schedule = float | Callable[[int], float]

_CHUNK = 128  # steps whose batches are drawn at once


@dataclass(frozen=True)
class PowerDecay:
    r"""The schedule :math:`c\, (1 + t / d)^{-p}` of the step number :math:`t`.

    Theorem 1 asks for :math:`\tau, \eta \propto \epsilon^4` over :math:`T \propto \epsilon^{-6}` steps, that is
    :math:`T^{-2/3}`: the default power makes this a schedule that needs no horizon.

    Args:
        first: :math:`c`, the value at step 0.
        delay: :math:`d`, steps before the decay sets in.
        power: :math:`p`.

    Example:
        >>> PowerDecay(0.5, delay=10)(0), round(PowerDecay(0.5, delay=10)(70), 3)
        (0.5, 0.125)
    """

    first: float
    delay: float = 100.0
    power: float = 2.0 / 3.0

    def __call__(self, step: int) -> float:
        """Return the value at a step."""
        return self.first * math.pow(1.0 + step / self.delay, -self.power)


@dataclass(frozen=True)
class SONX:
    """Algorithm 1 (Algorithm 6 where `gamma` is 0); arguments as in :class:`~moreauc.FCCOLoss`.

    `tau` may be a function of the step number.
    """

    tau: Schedule
    gamma: Gamma = 0.0
    bound: float | None = None


@dataclass(frozen=True)
class SONT:
    """Algorithm 3 (Algorithm 7 where both gammas are 0); arguments as in :class:`~moreauc.TCCOLoss`.

    `tau1` and `tau2` may be functions of the step number.
    """

    tau1: Schedule
    tau2: Schedule
    gamma1: Gamma = 0.0
    gamma2: Gamma = 0.0
    bound: float | None = None


@dataclass(frozen=True)
class PlugIn:
    """The naive estimator: the gradient of the outer function at the batch's own inner values."""


@dataclass(frozen=True)
class Subgradient:
    """Subgradient descent on the full objective."""


Method = SONX | SONT | PlugIn | Subgradient


@dataclass
class Run:
    r"""What a call of :func:`minimize` did. `S` seeds, `K` recorded steps.

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
    records: int = 40,
    rho_bar: float | None = None,
    stationarity: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Run:
    r"""Minimise a problem and record what a researcher wants to see.

    Args:
        problem: a :class:`~moreauc.problems.TwoLevelProblem` or :class:`~moreauc.problems.ThreeLevelProblem`.
        method: :class:`SONX`, :class:`SONT`, :class:`PlugIn` or :class:`Subgradient`, with its parameters.
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
        records: about how many steps to record, spread evenly in the logarithm of the step number.
        rho_bar: :math:`\bar\rho` of the Moreau envelope that measures stationarity; twice the problem's modulus, or 1
            for a convex problem, by default.
        stationarity: whether to measure it (it costs a proximal step for each record and seed).
        progress: called with the number of steps done since the last call.

    Returns:
        The iterates and the history.

    Raises:
        ValueError: for an argument out of range, or a method that does not fit the problem.

    Example:
        >>> from moreauc.problems import CVaRAbsoluteLoss
        >>> problem = CVaRAbsoluteLoss(num_blocks=10, num_samples=5, num_features=2)
        >>> run = minimize(problem, SONX(tau=0.2, gamma=0.1), steps=300, lr=0.02, seeds=[0, 1])
        >>> bool((run.objective[:, -1] < run.objective[:, 0]).all())
        True
    """
    steps = check_count("minimize", "steps", steps)
    records = check_count("minimize", "records", records)
    if not len(seeds):
        raise ValueError("minimize: seeds must not be empty, got []")
    sizes = _check_sizes(problem, method, outer_per_batch, inner_per_batch, samples_per_batch)
    if rho_bar is None:
        rho_bar = 2.0 * problem.weak_convexity or 1.0
    rho_bar = check_real("minimize", "rho_bar", rho_bar, low=problem.weak_convexity, low_open=True)
    point = problem.start if start is None else torch.as_tensor(start, dtype=torch.float64)
    check_shape("minimize", "start", point, [(problem.dim,)])

    batches = _Batches(problem, sizes, seeds)
    engine = _engine(problem, method, point, batches, warm_start)
    optimizer = torch.optim.SGD([engine.w], lr=0.0)
    previous = PreviousIterate(engine.model, optimizer) if engine.corrects else None
    recorder = _Recorder(problem, engine, rho_bar if stationarity else None, tuple(seeds))
    drawn_step = torch.tensor([torch.randint(steps, (), generator=g) for g in batches.generators])
    drawn = engine.w.detach().clone()
    marks = _marks(steps, records)
    done = 0
    for step in range(steps):
        drawn[drawn_step == step] = engine.w.detach()[drawn_step == step]
        if step in marks:
            recorder.record(step)
            if progress is not None and step > done:
                progress(step - done)
                done = step
        engine.set_step(step)
        for group in optimizer.param_groups:
            # the loss is a mean over all replicas, each of which takes its own full step
            group["lr"] = _at(lr, step, "lr") * len(seeds)
        loss = engine.loss(batches.draw(step) if engine.draws else (), previous)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    recorder.record(steps)
    if progress is not None:
        progress(steps - done)
    options = {"method": repr(method), "lr": lr if isinstance(lr, float) else repr(lr), "steps": steps, **sizes}
    options |= {"rho_bar": rho_bar, "warm_start": warm_start}
    options |= {name: value for name, value in vars(method).items() if isinstance(value, float | str)}
    return recorder.finish(engine.w.detach().clone(), drawn, drawn_step, options)


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


def _at(schedule: Schedule, step: int, name: str) -> float:
    value = schedule(step) if callable(schedule) else schedule
    return check_real("minimize", name, value, low=0.0, low_open=True)


def _marks(steps: int, records: int) -> set[int]:
    """Steps to record: the first, then evenly in the logarithm."""
    ratio = math.log(steps + 1) / records
    return {0} | {round(math.exp(ratio * k)) - 1 for k in range(1, records)}


class _Batches:
    """The batches of each seed, drawn from that seed's generator alone, many steps at a time."""

    def __init__(self, problem: Problem, sizes: dict[str, int], seeds: Sequence[int]) -> None:
        self.problem = problem
        self.sizes = sizes
        self.generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        self._parts: list[Tensor] = []

    def draw(self, step: int) -> tuple[Tensor, ...]:
        """Indices and samples of a step, each with the seeds as first axis; steps must be asked for in order."""
        if step % _CHUNK == 0:
            drawn = [self._chunk(generator) for generator in self.generators]
            self._parts = [torch.stack(parts, dim=1) for parts in zip(*drawn, strict=True)]
        return tuple(part[step % _CHUNK] for part in self._parts)

    def warm(self) -> Tensor:
        """Samples for one batch of every row, shape `(S, n, B)` or `(S, n1, n2, B)`."""
        problem = self.problem
        rows = (problem.num_outer, *([problem.num_inner] if isinstance(problem, ThreeLevelProblem) else []))
        shape = (*rows, self.sizes["samples_per_batch"])
        return torch.stack([torch.randint(problem.num_samples, shape, generator=g) for g in self.generators])

    def _chunk(self, generator: torch.Generator) -> list[Tensor]:
        parts = [_without_replacement(self.problem.num_outer, self.sizes["outer_per_batch"], generator)]
        if isinstance(self.problem, ThreeLevelProblem):
            parts.append(_without_replacement(self.problem.num_inner, self.sizes["inner_per_batch"], generator))
        shape = (_CHUNK, *(part.shape[1] for part in parts), self.sizes["samples_per_batch"])
        return [*parts, torch.randint(self.problem.num_samples, shape, generator=generator)]


def _without_replacement(size: int, count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(_CHUNK, size, generator=generator).argsort(dim=1)[:, :count]


class _Inner(nn.Module):
    """The innermost functions at the current point of every seed, as a module with one parameter."""

    def __init__(self, problem: TwoLevelProblem | ThreeLevelProblem, w: Tensor) -> None:
        super().__init__()
        self.problem = problem
        self.w = nn.Parameter(w)

    def forward(self, *batch: Tensor) -> Tensor:
        return self.problem.inner(self.w, *batch)


class _Engine:
    """One method on one problem: the loss of a step, and how far its tables are from the truth. Base: no table."""

    corrects = False
    draws = True
    warm_samples = 0

    def __init__(self, problem: TwoLevelProblem | ThreeLevelProblem, start: Tensor, batches: _Batches) -> None:
        self.problem = problem
        self.seeds = len(batches.generators)
        self.model = _Inner(problem, start.detach().expand(self.seeds, -1).clone())
        self.w = self.model.w
        self.samples_per_step = math.prod(batches.sizes.values())

    def set_step(self, step: int) -> None:
        """Follow the schedules."""

    def loss(self, batch: tuple[Tensor, ...], previous: PreviousIterate | None) -> Tensor:
        """Return the mean over seeds of the scalar whose gradient is the step's."""
        raise NotImplementedError

    def table_errors(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Mean row errors of the innermost and the outer table for each seed; NaN where there is none."""
        nothing = torch.full((self.seeds,), math.nan, dtype=torch.float64)
        return nothing, nothing


class _PlugInEngine(_Engine):
    def loss(self, batch: tuple[Tensor, ...], previous: PreviousIterate | None) -> Tensor:
        value = self.model(*batch)
        if isinstance(self.problem, ThreeLevelProblem):
            value = self.problem.middle(value, batch[0]).mean(dim=-2)
        return self.problem.outer(value, batch[0]).mean()


class _SubgradientEngine(_Engine):
    draws = False

    def __init__(self, problem: TwoLevelProblem | ThreeLevelProblem, start: Tensor, batches: _Batches) -> None:
        super().__init__(problem, start, batches)
        self.samples_per_step = problem.size

    def loss(self, batch: tuple[Tensor, ...], previous: PreviousIterate | None) -> Tensor:
        return self.problem.objective(self.w).mean()


class _SONXEngine(_Engine):
    def __init__(
        self, problem: TwoLevelProblem, method: SONX, start: Tensor, batches: _Batches, warm_start: bool
    ) -> None:
        super().__init__(problem, start, batches)
        self.method, self.two_level, rows = method, problem, problem.num_outer
        initial = None
        if warm_start:
            every = torch.arange(rows).expand(self.seeds, -1)
            initial = self.model(every, batches.warm()).detach().flatten(0, 1)
            self.warm_samples = rows * batches.sizes["samples_per_batch"]
        self.criterion = FCCOLoss(
            self.seeds * rows,
            lambda u, index: problem.outer(u, index % rows),
            dim=problem.dim_block,
            tau=_at(method.tau, 0, "tau"),
            gamma=method.gamma,
            bound=method.bound,
            initial=initial,
        ).double()
        self.corrects = method.gamma != 0.0
        self.offset = rows * torch.arange(self.seeds).unsqueeze(1)

    def set_step(self, step: int) -> None:
        if callable(self.method.tau):
            self.criterion.tau = _at(self.method.tau, step, "tau")

    def loss(self, batch: tuple[Tensor, ...], previous: PreviousIterate | None) -> Tensor:
        shape = (-1, self.two_level.dim_block)
        inner = self.model(*batch).reshape(shape)
        before = None if previous is None else previous(*batch).reshape(shape)
        result: Tensor = self.criterion(inner, (batch[0] + self.offset).flatten(), before)
        return result

    def table_errors(self, w: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.criterion.table_u.values.view(self.seeds, -1, self.two_level.dim_block)
        held = self.criterion.table_u.visited.view(self.seeds, -1)
        error = torch.linalg.vector_norm(rows - self.two_level.full_inner(w), dim=-1)
        return _mean_where(error, held), super().table_errors(w)[1]


class _SONTEngine(_Engine):
    def __init__(
        self, problem: ThreeLevelProblem, method: SONT, start: Tensor, batches: _Batches, warm_start: bool
    ) -> None:
        super().__init__(problem, start, batches)
        self.method, self.three_level, rows = method, problem, problem.num_outer
        every = torch.arange(rows).expand(self.seeds, -1)
        initial_v = initial_u = None
        if warm_start:
            inner = torch.arange(problem.num_inner).expand(self.seeds, -1)
            first = self.model(every, inner, batches.warm()).detach()
            initial_v = first.flatten(0, 1)
            initial_u = problem.middle(first, every).mean(dim=-2).flatten(0, 1)
            self.warm_samples = rows * problem.num_inner * batches.sizes["samples_per_batch"]
        self.criterion = TCCOLoss(
            self.seeds * rows,
            problem.num_inner,
            lambda u, index: problem.outer(u, index % rows),
            lambda v, index: problem.middle(v, index % rows),
            dim_middle=problem.dim_middle,
            dim_inner=problem.dim_inner,
            tau1=_at(method.tau1, 0, "tau1"),
            tau2=_at(method.tau2, 0, "tau2"),
            gamma1=method.gamma1,
            gamma2=method.gamma2,
            bound=method.bound,
            initial_u=initial_u,
            initial_v=initial_v,
        ).double()
        self.corrects = method.gamma1 != 0.0
        self.offset = rows * torch.arange(self.seeds).unsqueeze(1)

    def set_step(self, step: int) -> None:
        if callable(self.method.tau1):
            self.criterion.tau1 = _at(self.method.tau1, step, "tau1")
        if callable(self.method.tau2):
            self.criterion.tau2 = _at(self.method.tau2, step, "tau2")

    def loss(self, batch: tuple[Tensor, ...], previous: PreviousIterate | None) -> Tensor:
        outer, inner, _ = batch
        h = self.model(*batch).flatten(0, 1)
        before = None if previous is None else previous(*batch).flatten(0, 1)
        inner_index = inner.repeat_interleave(outer.shape[1], dim=0)
        result: Tensor = self.criterion(h, (outer + self.offset).flatten(), inner_index, before)
        return result

    def table_errors(self, w: Tensor) -> tuple[Tensor, Tensor]:
        problem, seeds = self.three_level, self.seeds
        tables = self.criterion.table_v, self.criterion.table_u
        v = tables[0].values.view(seeds, problem.num_outer, problem.num_inner, problem.dim_inner)
        inner = torch.linalg.vector_norm(v - problem.full_inner(w), dim=-1).flatten(1)
        means = problem.middle(v, torch.arange(problem.num_outer)).mean(dim=-2)
        outer = torch.linalg.vector_norm(tables[1].values.view_as(means) - means, dim=-1)
        held = [table.visited.view(seeds, -1) for table in tables]
        return _mean_where(inner, held[0]), _mean_where(outer, held[1])


def _mean_where(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the last axis of the values under the mask; NaN where there are none."""
    return torch.where(mask, values, torch.nan).nanmean(dim=-1)


def _engine(problem: Problem, method: Method, start: Tensor, batches: _Batches, warm_start: bool) -> _Engine:
    if isinstance(method, SONX) and isinstance(problem, TwoLevelProblem):
        return _SONXEngine(problem, method, start, batches, warm_start)
    if isinstance(method, SONT) and isinstance(problem, ThreeLevelProblem):
        return _SONTEngine(problem, method, start, batches, warm_start)
    assert isinstance(problem, TwoLevelProblem | ThreeLevelProblem)  # _check_sizes has seen to it
    if isinstance(method, PlugIn):
        return _PlugInEngine(problem, start, batches)
    if isinstance(method, Subgradient):
        return _SubgradientEngine(problem, start, batches)
    raise ValueError(f"minimize: method must be SONX, SONT, PlugIn or Subgradient, got {type(method).__name__}")


class _Recorder:
    """Collects the history of a run."""

    def __init__(self, problem: Problem, engine: _Engine, rho_bar: float | None, seeds: tuple[int, ...]) -> None:
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
            moreau_envelope(self.problem.objective, point, self.rho_bar, rho=rho, tol=1e-6).gradient_norm for point in w
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
