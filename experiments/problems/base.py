"""Problems whose global optimum a linear program finds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import coo_array
from torch import Tensor

from moreauc.solver.problems import Problem


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


class KnownOptimum(Problem):
    """A problem that computes its minimum."""

    @abstractmethod
    def minimizer(self) -> Tensor:
        """Compute a global minimiser, shape `(dim,)`."""

    @cached_property
    def optimum(self) -> Optimum:
        """The global optimum, computed once."""
        point = self.minimizer()
        return Optimum(point, float(self.objective(point)))
