"""The methods that :func:`~moreauc.solver.minimize` runs, and a schedule for their parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from moreauc._checks import check_real
from moreauc.core.tables import Gamma

Schedule = float | Callable[[int], float]


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
    r"""Algorithm 1 (Algorithm 6 where `gamma` is 0); SONEX with `momentum` and `smoothing`.

    The objective that a run records is the one without smoothing.

    Args:
        tau: averaging weight in (0, 1], a number or a function of the step number.
        gamma: correction weight, at least 0, or "theory".
        bound: radius of the ball that rows are projected onto; None for none.
        smoothing: :math:`\lambda` of the Moreau envelopes of the outer functions, at least 0.
        momentum: :math:`m` in [0, 1): steps follow :math:`v_{t+1} = m v_t + (1 - m) G_t`, begun at :math:`v_1 = G_0`.
    """

    tau: Schedule
    gamma: Gamma = 0.0
    bound: float | None = None
    smoothing: float = 0.0
    momentum: float = 0.0


@dataclass(frozen=True)
class ALEXR2:
    r"""Proximal steps, each solved by primal-dual steps; for weakly convex inner functions.

    With :math:`f_{i,\lambda}` the Moreau envelope of :math:`f_i` it solves
    :math:`\min_z \frac1n \sum_i f_{i,\lambda}(g_i(z)) + \frac1{2\nu} \|z - w_t\|^2` by steps on

    .. math::
        \min_z \max_y \frac1n \sum_i [\langle y_i, g_i(z) \rangle - f_{i,\lambda}^*(y_i)] + \frac1{2\nu} \|z - w_t\|^2,

    which for each block of the batch are (ALEXR)

    .. math::
        \tilde g_i &= g_i(z_k; B) + \theta (g_i(z_k; B) - g_i(z_{k-1}; B)), \\
        y_i &= \nabla f_{i,\lambda}(u_i), \quad u_i \leftarrow (1 - \tau) u_i + \tau \tilde g_i, \\
        z_{k+1} &= \arg\min_z \Big\langle \frac1{B_1} \sum_i \nabla g_i(z_k; B) y_i, z \Big\rangle
            + \frac1{2\nu} \|z - w_t\|^2 + \frac1{2\eta_k} \|z - z_k\|^2,

    with the new :math:`u_i` in :math:`y_i`: mirror ascent with the Bregman distance of :math:`f_{i,\lambda}^*` and the
    step size :math:`\tau / (1 - \tau)`. After `inner_steps` of them the centre moves, :math:`v \leftarrow m v + (1 - m)
    (w_t - z) / \nu` and :math:`w_{t+1} = w_t - \eta' v`; the inner loop goes on where it was. A run counts inner steps,
    its `lr` is :math:`\eta_k`, and the iterates that it records are the centres.

    Args:
        tau: :math:`\tau` in (0, 1], a number or a function of the step number.
        smoothing: :math:`\lambda`, at least 0.
        weight: :math:`1 / \nu`, above the weak convexity of the objective.
        inner_steps: steps until the centre moves.
        theta: :math:`\theta`, at least 0.
        centre_lr: :math:`\eta'`, above 0; None for :math:`\nu`: without momentum the new centre then is :math:`z`.
        momentum: :math:`m` in [0, 1); :math:`v` begins at the first gradient.
    """

    tau: Schedule
    smoothing: float
    weight: float
    inner_steps: int
    theta: float = 1.0
    centre_lr: float | None = None
    momentum: float = 0.0


@dataclass(frozen=True)
class SONT:
    """Algorithm 3 (Algorithm 7 where both gammas are 0).

    Args:
        tau1: averaging weight of the inner table in (0, 1], a number or a function of the step number.
        tau2: the same for the outer table.
        gamma1: correction weight of the inner table, at least 0, or "theory".
        gamma2: the same for the outer table.
        bound: radius of the ball that inner rows are projected onto; None for none.
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


Method = SONX | ALEXR2 | SONT | PlugIn | Subgradient


def at_step(schedule: Schedule, step: int, name: str) -> float:
    """Return the value of a schedule at a step, which must be above 0."""
    value = schedule(step) if callable(schedule) else schedule
    return check_real("minimize", name, value, low=0.0, low_open=True)
