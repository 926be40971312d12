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

    `first` is :math:`c`, the value at step 0; `delay` is :math:`d`; `power` is :math:`p`.

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
    r"""Algorithm 1 (Algorithm 6 where `gamma` is 0).

    Args:
        tau: averaging weight in (0, 1], a number or a function of the step number.
        gamma: correction weight, at least 0, or "theory".
        bound: radius of the ball that rows are projected onto; None for none.
    """

    tau: Schedule
    gamma: Gamma = 0.0
    bound: float | None = None


@dataclass(frozen=True)
class SONT:
    """Algorithm 3 (Algorithm 7 where both gammas are 0).

    Args:
        tau1, tau2: averaging weights of the inner and the outer table in (0, 1], numbers or functions of the step
            number.
        gamma1, gamma2: their correction weights, at least 0, or "theory".
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


Method = SONX | SONT | PlugIn | Subgradient


def at_step(schedule: Schedule, step: int, name: str) -> float:
    """Return the value of a schedule at a step, which must be above 0."""
    value = schedule(step) if callable(schedule) else schedule
    return check_real("minimize", name, value, low=0.0, low_open=True)
