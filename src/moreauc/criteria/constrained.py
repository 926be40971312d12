r"""An objective under many constraints, each estimated from samples, by a hinge penalty (FCCO)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from moreauc._checks import check_count, check_device, check_floating, check_real, check_shape
from moreauc.core.outer import prox_positive_part
from moreauc.core.tables import Gamma
from moreauc.criteria._base import Check, Step, number_attribute
from moreauc.criteria._batches import widened
from moreauc.criteria.fcco import FCCOLoss, _Blocks


class Feasibility(NamedTuple):
    """How far the rows of the constraints are from being feasible; NaN before the first batch.

    Attributes:
        worst: the largest violation, the positive part of a row.
        mean: the mean violation; constraints that are met count as 0.
        share: share of the constraints that are violated by more than the tolerance.
    """

    worst: float
    mean: float
    share: float


def _positive_part(u: Tensor, index: Tensor) -> Tensor:
    return torch.relu(widened(u))  # half types do not resolve a mean over constraints


def _prox(u: Tensor, index: Tensor, smoothing: float) -> Tensor:
    return prox_positive_part(u, smoothing)


class _Batch(NamedTuple):
    """A checked batch: the objective, with gradient, and the constraints."""

    objective: Tensor
    blocks: _Blocks


class ConstrainedLoss(FCCOLoss):
    r"""An objective under constraints :math:`g_k(w) \le 0,\ k = 1, \dots, m`, by a hinge penalty.

    .. math::

        F(w) = f(w) + \frac{\kappa}{m} \sum_{k=1}^m h(g_k(w)), \quad g_k(w) = E[g_k(w; \xi)]

    with the positive part :math:`h(u) = (u)_+`, or its Moreau envelope with parameter :math:`\mu` (`smoothing`):
    :math:`u^2 / (2 \mu)` for :math:`0 \le u \le \mu`, :math:`u - \mu / 2` above, 0 below. The penalty is
    an :class:`~moreauc.FCCOLoss` over the constraints. In training mode a call with the constraints :math:`B` is one
    iteration:

    .. math::

        u_{k,t+1} &= (1 - \tau) u_{k,t} + \tau g_k(w_t; \xi) + \gamma (g_k(w_t; \xi) - g_k(w_{t-1}; \xi)) \\
        G_t &= \nabla f(w_t; \xi) + \frac{\kappa}{|B|} \sum_{k \in B} h'(u_{k,t})\, \nabla g_k(w_t; \xi)

    There are no multipliers, and constraints that are not in the batch cost nothing. The row matters because the mean
    of :math:`h` at noisy values is not :math:`h` at the mean: near the boundary half of the batches are violated by
    chance, so that a penalty on the values of the batch pushes constraints that are met.

    **The weight.** The hinge is exact: if :math:`\kappa / m` exceeds the largest multiplier of the problem (and the
    problem is convex), the solution of the penalised problem is that of the constrained one. With smoothing a
    constraint with multiplier :math:`\lambda_k` stays violated by about :math:`\mu \lambda_k m / \kappa`. A large
    weight at the start pushes the model away from the objective before it has learnt anything. A simple schedule lets
    it grow linearly over the run, in each step ::

        criterion.penalty = final * (step + 1) / steps

    and one for runs of open length multiplies it, say every hundred steps, while `feasibility()` is not good enough.

    In `eval()` mode a call returns :math:`f + \kappa / |B| \sum_k h` at the values given and changes nothing.

    Args:
        num_constraints: :math:`m`, at least 1.
        penalty: :math:`\kappa`, at least 0. A plain attribute, as `smoothing`, `tau` and `gamma`: schedules may change
            them.
        smoothing: :math:`\mu`, at least 0, in the unit of the constraints; 0 for the plain hinge.
        tau: averaging weight in (0, 1].
        gamma: correction weight, at least 0, or "theory", as for :class:`~moreauc.FCCOLoss`.
        initial: :math:`u_{k,0}`, a number or one for each constraint; None to fill at the first visit.

    Attributes:
        u: rows, one for each constraint.

    Shape:
        - objective: scalar, any loss of the batch
        - constraints, previous_constraints: `(B,)`, an estimate of :math:`g_k` for each constraint in the batch
        - index: `(B,)`, numbers of these constraints in [0, m), no repeats
        - output: scalar

    Raises:
        ValueError: for an argument out of range, an objective or constraints of the wrong shape, type or device, NaN or
            infinity, an index out of range or repeated, and `gamma` above 0 without `previous_constraints`; raised
            before any state changes.

    Example:
        >>> criterion = ConstrainedLoss(3, penalty=6.0, tau=0.5)
        >>> objective = torch.tensor(1.0, requires_grad=True)
        >>> constraints = torch.tensor([0.5, -0.5], requires_grad=True)
        >>> loss = criterion(objective, constraints, torch.tensor([2, 0]))
        >>> loss.backward()
        >>> loss.item(), objective.grad.item(), constraints.grad
        (2.5, 1.0, tensor([3., 0.]))
        >>> criterion.feasibility()
        Feasibility(worst=0.5, mean=0.25, share=0.5)

    References:
        Chen, Wang, Yang, Hu, Lin and Yang, "Stochastic Momentum Methods for Non-smooth Non-Convex Finite-Sum Coupled
        Compositional Optimization", 2025, arXiv:2506.02504, which has the smoothed hinge.
    """

    # described by the arguments, or always the same
    _UNDESCRIBED: ClassVar[tuple[str, ...]] = ("num_blocks", "dim", "outer", "prox", "rows")
    _penalty: float
    penalty = number_attribute("penalty", "Weight of the penalty, at least 0.", low=0.0)

    def __init__(
        self,
        num_constraints: int,
        *,
        penalty: float,
        smoothing: float = 0.0,
        tau: float = 0.1,
        gamma: Gamma = 0.0,
        initial: float | Tensor | None = None,
    ) -> None:
        check_count(type(self).__name__, "num_constraints", num_constraints)
        table: dict[str, Any] = {"tau": tau, "gamma": gamma, "initial": initial}
        super().__init__(num_constraints, _positive_part, smoothing=smoothing, prox=_prox, **table)
        self.penalty = penalty

    @property
    def num_constraints(self) -> int:
        """Number of constraints."""
        return self.num_blocks

    def feasibility(self, tolerance: float = 0.0) -> Feasibility:
        """Return the worst and the mean violation and the share violated, of the constraints visited so far.

        These are numbers of the rows, which average over past steps. Reading them waits for the device.

        Args:
            tolerance: what a row may exceed 0 by without being counted in `share`, at least 0.
        """
        tolerance = check_real(self._owner, "tolerance", tolerance, low=0.0)
        rows = self.u[self.table_u.visited].double()
        if not len(rows):
            return Feasibility(*[torch.nan] * 3)
        violation = torch.relu(rows)
        worst, mean, share = torch.stack([violation.max(), violation.mean(), (rows > tolerance).double().mean()])
        return Feasibility(worst.item(), mean.item(), share.item())

    def _batch(  # type: ignore[override]  # takes an objective, too
        self,
        check: Check,
        objective: Tensor,
        constraints: Tensor,
        index: Tensor,
        previous_constraints: Tensor | None = None,
    ) -> _Batch:
        check_floating(self._owner, "objective", objective)
        check_shape(self._owner, "objective", objective, [()])
        check_device(self._owner, "objective", objective, self.table_u.values.device)
        check.finite(objective=objective)
        blocks = self._blocks(check, "constraints", constraints, index, previous_constraints, rows="constraints")
        return _Batch(objective, blocks)

    def _step(self, batch: _Batch) -> Step:  # type: ignore[override]
        step = super()._step(batch.blocks)
        value = batch.objective + self._penalty * step.value
        return replace(step, value=value, finite={**step.finite, "the loss": value})
