"""One class for each method: the batches and the loss of a step, and how far the tables are from the truth."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from moreauc.criteria import FCCOLoss, TCCOLoss
from moreauc.optim import PreviousIterate
from moreauc.solver.methods import SONT, SONX, Method, PlugIn, Subgradient, at_step
from moreauc.solver.problems import Problem, ThreeLevelProblem, TwoLevelProblem

_CHUNK = 128  # steps whose batches are drawn at once


class Batches:
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


class Engine(ABC):
    """One method on one problem: the loss of a step, and how far its tables are from the truth. Base: no table."""

    corrects = False
    draws = True
    warm_samples = 0
    scheduled: tuple[str, ...] = ()
    method: SONX | SONT
    criterion: FCCOLoss | TCCOLoss

    def __init__(self, problem: TwoLevelProblem | ThreeLevelProblem, start: Tensor, batches: Batches) -> None:
        self.problem = problem
        self.seeds = len(batches.generators)
        self.every = torch.arange(problem.num_outer).expand(self.seeds, -1)
        self.offset = problem.num_outer * torch.arange(self.seeds).unsqueeze(1)
        self.model = _Inner(problem, start.detach().expand(self.seeds, -1).clone())
        self.w = self.model.w
        self.samples_per_step = math.prod(batches.sizes.values())

    @property
    def point(self) -> Tensor:
        """The iterates, shape `(seeds, dim)`."""
        return self.w.detach()

    def set_step(self, step: int) -> None:
        """Set the scheduled parameters of the loss, which are attributes of the method."""
        for name in self.scheduled:
            if callable(schedule := getattr(self.method, name)):
                setattr(self.criterion, name, at_step(schedule, step, name))

    @abstractmethod
    def loss(self, batch: tuple[Tensor, ...], previous: PreviousIterate | None) -> Tensor:
        """Return the mean over seeds of the scalar whose gradient is the step's."""

    def table_errors(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Mean row errors of the innermost and the outer table for each seed; NaN where there is none."""
        nothing = torch.full((self.seeds,), math.nan, dtype=torch.float64)
        return nothing, nothing


class _PlugInEngine(Engine):
    def loss(self, batch: tuple[Tensor, ...], previous: PreviousIterate | None) -> Tensor:
        value = self.model(*batch)
        if isinstance(self.problem, ThreeLevelProblem):
            value = self.problem.middle(value, batch[0]).mean(dim=-2)
        return self.problem.outer(value, batch[0]).mean()


class _SubgradientEngine(Engine):
    draws = False

    def __init__(self, problem: TwoLevelProblem | ThreeLevelProblem, start: Tensor, batches: Batches) -> None:
        super().__init__(problem, start, batches)
        self.samples_per_step = problem.size

    def loss(self, batch: tuple[Tensor, ...], previous: PreviousIterate | None) -> Tensor:
        return self.problem.objective(self.w).mean()


class _SONXEngine(Engine):
    scheduled = ("tau",)
    criterion: FCCOLoss

    def __init__(
        self, problem: TwoLevelProblem, method: SONX, start: Tensor, batches: Batches, warm_start: bool
    ) -> None:
        super().__init__(problem, start, batches)
        self.method, self.two_level, rows = method, problem, problem.num_outer
        initial = None
        if warm_start:
            initial = self.model(self.every, batches.warm()).detach().flatten(0, 1)
            self.warm_samples = rows * batches.sizes["samples_per_batch"]
        self.criterion = FCCOLoss(
            self.seeds * rows,
            lambda u, index: problem.outer(u, index % rows),
            dim=problem.dim_block,
            tau=at_step(method.tau, 0, "tau"),
            gamma=method.gamma,
            bound=method.bound,
            initial=initial,
        ).double()
        self.corrects = method.gamma != 0.0

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


class _SONTEngine(Engine):
    scheduled = ("tau1", "tau2")
    criterion: TCCOLoss

    def __init__(
        self, problem: ThreeLevelProblem, method: SONT, start: Tensor, batches: Batches, warm_start: bool
    ) -> None:
        super().__init__(problem, start, batches)
        self.method, self.three_level, rows = method, problem, problem.num_outer
        initial_v = initial_u = None
        if warm_start:
            inner = torch.arange(problem.num_inner).expand(self.seeds, -1)
            first = self.model(self.every, inner, batches.warm()).detach()
            initial_v = first.flatten(0, 1)
            initial_u = problem.middle(first, self.every).mean(dim=-2).flatten(0, 1)
            self.warm_samples = rows * problem.num_inner * batches.sizes["samples_per_batch"]
        self.criterion = TCCOLoss(
            self.seeds * rows,
            problem.num_inner,
            lambda u, index: problem.outer(u, index % rows),
            lambda v, index: problem.middle(v, index % rows),
            dim_middle=problem.dim_middle,
            dim_inner=problem.dim_inner,
            tau1=at_step(method.tau1, 0, "tau1"),
            tau2=at_step(method.tau2, 0, "tau2"),
            gamma1=method.gamma1,
            gamma2=method.gamma2,
            bound=method.bound,
            initial_u=initial_u,
            initial_v=initial_v,
        ).double()
        self.corrects = method.gamma1 != 0.0

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


def make_engine(problem: Problem, method: Method, start: Tensor, batches: Batches, warm_start: bool) -> Engine:
    """Return the engine of a method on a problem that fits it."""
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
