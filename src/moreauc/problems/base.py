r"""What a finite-sum problem is: its samples, its functions, its full objective, its constants and its optimum.

All functions take points `w` of shape `(..., dim)`: the leading axes are replicas, so that many seeds run side by side.
Everything is float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import coo_array
from torch import Tensor

from moreauc.theory import fcco_weak_convexity, tcco_weak_convexity


class LinearProgram:
    """Minimise a linear cost over variables that are created as they are needed.

    Example: the minimum of `|x - 1| + |x - 3|`.
        >>> program = LinearProgram()
        >>> x = program.variable(low=None)
        >>> for target in (1.0, 3.0):
        ...     distance = program.variable(cost=1.0)
        ...     program.at_least({distance: 1.0, x: -1.0}, -target)
        ...     program.at_least({distance: 1.0, x: 1.0}, target)
        >>> bool(1.0 <= program.solve()[x] <= 3.0)
        True
    """

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._lows: list[float | None] = []
        self._rows: list[Mapping[int, float]] = []
        self._limits: list[float] = []

    def variable(self, *, cost: float = 0.0, low: float | None = 0.0) -> int:
        """Create a variable with its cost and lower bound (None for no bound); return its number."""
        self._costs.append(cost)
        self._lows.append(low)
        return len(self._costs) - 1

    def variables(self, count: int, *, cost: float = 0.0, low: float | None = 0.0) -> list[int]:
        """Create several variables alike."""
        return [self.variable(cost=cost, low=low) for _ in range(count)]

    def at_least(self, terms: Mapping[int, float], limit: float) -> None:
        """Require that the sum of `coefficient * variable` over `terms` is at least `limit`."""
        self._rows.append(terms)
        self._limits.append(limit)

    def absolute_value(self, variables: Sequence[int], coefficients: Sequence[float], constant: float) -> int:
        """Create a variable of at least `|coefficients . variables - constant|`; return its number."""
        bound = self.variable()
        for sign in (-1.0, 1.0):
            row = {v: sign * c for v, c in zip(variables, coefficients, strict=True)}
            self.at_least({bound: 1.0, **row}, sign * constant)
        return bound

    def solve(self) -> Tensor:
        """Return the values of all variables at the optimum."""
        rows = np.repeat(np.arange(len(self._rows)), [len(row) for row in self._rows])
        columns = np.concatenate([np.fromiter(row, dtype=np.int64) for row in self._rows])
        entries = np.concatenate([np.fromiter(row.values(), dtype=float) for row in self._rows])
        matrix = coo_array((entries, (rows, columns)), shape=(len(self._rows), len(self._costs))).tocsr()
        bounds = [(low, None) for low in self._lows]
        result = linprog(self._costs, A_ub=-matrix, b_ub=-np.asarray(self._limits), bounds=bounds, method="highs")
        if result.status != 0:
            raise RuntimeError(f"the linear program has no optimum: {result.message}")
        return torch.from_numpy(np.array(result.x))


@dataclass(frozen=True)
class Optimum:
    """A global minimiser and the minimum.

    Attributes:
        point: shape `(dim,)`.
        value: the objective there.
    """

    point: Tensor
    value: float


class Problem(ABC):
    r"""A coupled compositional problem over finite data.

    Attributes:
        dim: length of `w`.
        start: default start of the solver, shape `(dim,)`.
        num_outer: number of outer items (:math:`n`, :math:`n_1`).
        num_samples: samples behind each innermost expectation.
    """

    dim: int
    start: Tensor
    num_outer: int
    num_samples: int

    @abstractmethod
    def objective(self, w: Tensor) -> Tensor:
        """Full objective at points of shape `(..., dim)`; shape `(...)`."""

    @property
    @abstractmethod
    def weak_convexity(self) -> float:
        r"""The modulus :math:`\rho_F` of the objective (Propositions 1 and 2)."""

    @property
    @abstractmethod
    def gradient_bound(self) -> float:
        r"""A bound :math:`M` on the norm of the stochastic gradient :math:`G_t`."""

    @abstractmethod
    def minimizer(self) -> Tensor:
        """Compute a global minimiser, shape `(dim,)`."""

    @cached_property
    def optimum(self) -> Optimum:
        """The global optimum, computed once."""
        point = self.minimizer()
        return Optimum(point, float(self.objective(point)))

    @property
    def size(self) -> int:
        """Number of samples in all, the cost of one full evaluation."""
        return self.num_outer * self.num_samples

    def subgradient(self, w: Tensor) -> Tensor:
        """Return a subgradient of the full objective at points of shape `(..., dim)`, same shape."""
        with torch.enable_grad():
            leaf = w.detach().clone().requires_grad_()
            (gradient,) = torch.autograd.grad(self.objective(leaf).sum(), leaf)
        return gradient


class TwoLevelProblem(Problem):
    r""":math:`F(w) = \frac1n \sum_i f_i(g_i(w))` with :math:`g_i(w) = \frac1m \sum_\xi g_i(w; \xi)`.

    Attributes:
        dim_block: length of :math:`g_i(w)`.
        lipschitz_outer: :math:`C_f`.
        lipschitz_inner: :math:`C_g`, of each :math:`g_i(\cdot; \xi)`.
        rho_outer: :math:`\rho_f`.
        rho_inner: :math:`\rho_g`.
        prox: `prox(u, index, smoothing)`, proximal points of the outer functions at `u` of shape `(..., dim_block)`,
            same shape; None where there is no formula.
    """

    prox: Callable[[Tensor, Tensor, float], Tensor] | None = None
    dim_block: int
    lipschitz_outer: float
    lipschitz_inner: float
    rho_outer: float
    rho_inner: float

    @abstractmethod
    def sample(self, w: Tensor, index: Tensor, samples: Tensor) -> Tensor:
        r""":math:`g_i(w; \xi)` for `w` `(..., dim)`, `index` `(..., B1)`, `samples` `(..., B1, B2)`.

        Returns:
            Shape `(..., B1, B2, dim_block)`.
        """

    @abstractmethod
    def outer(self, u: Tensor, index: Tensor) -> Tensor:
        r""":math:`f_i(u)` for `u` of shape `(..., dim_block)` and `index` `(...)`; shape `(...)`."""

    def inner(self, w: Tensor, index: Tensor, samples: Tensor) -> Tensor:
        r""":math:`g_i(w; B_{2,i})`, shape `(..., B1, dim_block)`."""
        return self.sample(w, index, samples).mean(dim=-2)

    def all_samples(self, w: Tensor) -> Tensor:
        """Every sample of every block at points `(..., dim)`; shape `(..., n, m, dim_block)`."""
        index = torch.arange(self.num_outer).expand(*w.shape[:-1], -1)
        samples = torch.arange(self.num_samples).expand(*index.shape, -1)
        return self.sample(w, index, samples)

    def full_inner(self, w: Tensor) -> Tensor:
        r""":math:`g_i(w)` of all blocks at points `(..., dim)`; shape `(..., n, dim_block)`."""
        return self.all_samples(w).mean(dim=-2)

    def objective(self, w: Tensor) -> Tensor:
        """Full objective at points of shape `(..., dim)`; shape `(...)`."""
        return self.outer(self.full_inner(w), torch.arange(self.num_outer)).mean(dim=-1)

    def noise(self, w: Tensor) -> Tensor:
        r"""Largest :math:`\sigma` of a block's samples at points `(..., dim)`; shape `(...)`."""
        values = self.all_samples(w)
        deviation = values - values.mean(dim=-2, keepdim=True)
        return deviation.square().sum(-1).mean(-1).amax(-1).sqrt()

    @property
    def weak_convexity(self) -> float:
        r""":math:`\rho_F` of Proposition 1."""
        return fcco_weak_convexity(
            rho_outer=self.rho_outer,
            lipschitz_outer=self.lipschitz_outer,
            rho_inner=self.rho_inner,
            lipschitz_inner=self.lipschitz_inner,
            dim=self.dim_block,
        )

    @property
    def gradient_bound(self) -> float:
        r""":math:`M = C_f C_g`."""
        return self.lipschitz_outer * self.lipschitz_inner


class ThreeLevelProblem(Problem):
    r""":math:`F(w) = \frac1{n_1} \sum_i f_i(\frac1{n_2} \sum_j g_i(h_{ij}(w)))`, with samples behind :math:`h_{ij}`.

    Attributes:
        num_inner: :math:`n_2`.
        dim_middle: length of a value of :math:`g_i`.
        dim_inner: length of :math:`h_{ij}(w)`.
        lipschitz_outer: :math:`C_f`.
        lipschitz_middle: :math:`C_g`.
        lipschitz_inner: :math:`C_h`, of each :math:`h_{ij}(\cdot; \xi)`.
        rho_outer: :math:`\rho_f`.
        rho_middle: :math:`\rho_g`.
        rho_inner: :math:`L_h`.
    """

    num_inner: int
    dim_middle: int
    dim_inner: int
    lipschitz_outer: float
    lipschitz_middle: float
    lipschitz_inner: float
    rho_outer: float
    rho_middle: float
    rho_inner: float

    @abstractmethod
    def sample(self, w: Tensor, outer_index: Tensor, inner_index: Tensor, samples: Tensor) -> Tensor:
        r""":math:`h_{ij}(w; \xi)`: `w` `(..., dim)`, indices `(..., B1)` and `(..., B2)`, samples `(..., B1, B2, B3)`.

        Returns:
            Shape `(..., B1, B2, B3, dim_inner)`.
        """

    @abstractmethod
    def middle(self, v: Tensor, index: Tensor) -> Tensor:
        r""":math:`g_i(v)` for `v` `(..., B2, dim_inner)` and `index` `(...)`; shape `(..., B2, dim_middle)`."""

    @abstractmethod
    def outer(self, u: Tensor, index: Tensor) -> Tensor:
        r""":math:`f_i(u)` for `u` `(..., dim_middle)` and `index` `(...)`; shape `(...)`."""

    def inner(self, w: Tensor, outer_index: Tensor, inner_index: Tensor, samples: Tensor) -> Tensor:
        r""":math:`h_{ij}(w; B_{3,ij})`, shape `(..., B1, B2, dim_inner)`."""
        return self.sample(w, outer_index, inner_index, samples).mean(dim=-2)

    def full_inner(self, w: Tensor) -> Tensor:
        r""":math:`h_{ij}(w)` of all pairs at points `(..., dim)`; shape `(..., n1, n2, dim_inner)`."""
        outer_index = torch.arange(self.num_outer).expand(*w.shape[:-1], -1)
        inner_index = torch.arange(self.num_inner).expand(*w.shape[:-1], -1)
        samples = torch.arange(self.num_samples).expand(*outer_index.shape, self.num_inner, -1)
        return self.inner(w, outer_index, inner_index, samples)

    def objective(self, w: Tensor) -> Tensor:
        """Full objective at points of shape `(..., dim)`; shape `(...)`."""
        index = torch.arange(self.num_outer)
        return self.outer(self.middle(self.full_inner(w), index).mean(dim=-2), index).mean(dim=-1)

    @property
    def size(self) -> int:
        """Number of samples in all, the cost of one full evaluation."""
        return self.num_outer * self.num_inner * self.num_samples

    @property
    def weak_convexity(self) -> float:
        r""":math:`\rho_F` of Proposition 2."""
        return tcco_weak_convexity(
            rho_outer=self.rho_outer,
            lipschitz_outer=self.lipschitz_outer,
            rho_middle=self.rho_middle,
            lipschitz_middle=self.lipschitz_middle,
            rho_inner=self.rho_inner,
            lipschitz_inner=self.lipschitz_inner,
            dim_middle=self.dim_middle,
            dim_inner=self.dim_inner,
        )

    @property
    def gradient_bound(self) -> float:
        r""":math:`M = C_f C_g C_h`."""
        return self.lipschitz_outer * self.lipschitz_middle * self.lipschitz_inner
