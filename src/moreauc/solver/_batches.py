"""The batches of a run, drawn from each seed's own generator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from moreauc.problems.base import Problem, ThreeLevelProblem

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
