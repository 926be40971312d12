r"""The Moreau envelope of a weakly convex function, with a proof of how accurate the numbers are.

The measure of stationarity of the method's theorems is the norm of the envelope's gradient. Here it is computed for
small problems (some dimensions to some hundreds) from values and subgradients alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moreauc._checks import check_count, check_finite, check_real
from moreauc.theory._bundle import OWNER, Solver


@dataclass(frozen=True)
class MoreauEnvelope:
    r"""The envelope at one point; unpacks as `value, proximal_point, gradient_norm`.

    Args:
        value: :math:`F_{1/\bar\rho}(w)`, as the value of the objective at `proximal_point`, a float.
        proximal_point: :math:`\hat w = \mathrm{prox}_{F/\bar\rho}(w)`, float64 of the shape of `w`.
        gradient_norm: :math:`\|\nabla F_{1/\bar\rho}(w)\| = \bar\rho\|w - \hat w\|`.
        gradient: :math:`\bar\rho(w - \hat w)`, of the shape of `w`.
        gap: proved bound of `value` minus the true value, which is never above it (up to rounding).
        error: proved bound of the distance of `proximal_point` from the true one.
        evaluations: how often the function was evaluated.
        rho: the weak convexity modulus under which `gap` and `error` are proved.
    """

    value: float
    proximal_point: Tensor
    gradient_norm: float
    gradient: Tensor
    gap: float
    error: float
    evaluations: int
    rho: float

    def __iter__(self) -> Iterator[Any]:
        return iter((self.value, self.proximal_point, self.gradient_norm))


def moreau_envelope(
    function: Callable[[Tensor], Tensor],
    w: float | Tensor | NDArray[np.floating[Any]],
    rho_bar: float,
    *,
    rho: float | None = None,
    tol: float = 1e-8,
    max_evaluations: int = 5000,
) -> MoreauEnvelope:
    r"""Compute the Moreau envelope, the proximal point and the envelope's gradient.

    .. math::
        F_{1/\bar\rho}(w) = \min_y \varphi(y), \quad \varphi(y) = F(y) + \frac{\bar\rho}{2}\|y - w\|^2, \quad
        \nabla F_{1/\bar\rho}(w) = \bar\rho (w - \hat w)

    (lemma `lem:4`, where :math:`\lambda = 1/\bar\rho`.) If :math:`F` is :math:`\rho`-weakly convex, then
    :math:`\varphi` is :math:`\mu = \bar\rho - \rho` strongly convex and every subgradient :math:`v_k` at :math:`y_k`
    gives a lower bound :math:`F(y_k) + \langle v_k, y - y_k\rangle - \frac{\rho}{2}\|y - y_k\|^2` of :math:`F(y)`. A
    mean of such cuts, written around the point :math:`y` that is returned, has an offset :math:`e` below
    :math:`\varphi(y)`, a slope :math:`h` there and the curvature :math:`\mu`. This proves

    .. math::
        \varphi(y) - \min\varphi \le e + \frac{\|h\|^2}{2\mu}, \qquad
        \|y - \hat w\| \le \frac{\|h\| + \sqrt{\|h\|^2 + 4\mu e}}{2\mu},

    and the weights of the mean are chosen to prove most. The points come from BFGS steps, from a bundle method and
    from points near the best one, in turns until the accuracy is proved; all of them are used as cuts.

    Args:
        function: :math:`F`. Takes a float64 tensor shaped like `w`, on the device of `w`, and returns a tensor of
            shape `()` that autograd can differentiate to a subgradient. It must be finite everywhere.
        w: where the envelope is taken: a number, a tensor of any shape or an array.
        rho_bar: :math:`\bar\rho`, above the weak convexity modulus of `function`.
        rho: modulus :math:`\rho` in [0, rho_bar) that may be assumed (0 for a convex function). None assumes
            `0.95 * rho_bar`, and more where the values seen call for it. A smaller modulus gives a sharper proof.
        tol: the proved error of the proximal point that ends the search, relative to `max(1, norm(w))`. At a kink
            float64 cannot prove much less than 1e-7; the search then ends where the gap is down to the rounding of the
            values, and `error` says what is proved.
        max_evaluations: most evaluations of `function`.

    Raises:
        ValueError: if two of the points evaluated show that `function` is not `rho`-weakly convex (with `rho` None:
            that its modulus reaches `rho_bar`).
        RuntimeError: if `max_evaluations` did not suffice for the proof.

    Example:
        >>> value, point, norm = moreau_envelope(lambda x: x.abs(), 3.0, rho_bar=0.5)
        >>> round(value, 6), round(point.item(), 6), round(norm, 6)  # soft threshold: 3 - 1 / 0.5
        (2.0, 1.0, 1.0)

    Reference:
        Davis and Drusvyatskiy, Stochastic model-based minimization of weakly convex functions, arXiv:1803.06523.
    """
    rho_bar = check_real(OWNER, "rho_bar", rho_bar, low=0.0, low_open=True)
    if rho is not None:
        rho = check_real(OWNER, "rho", rho, low=0.0, high=rho_bar, high_open=True)
    tol = check_real(OWNER, "tol", tol, low=0.0, low_open=True)
    max_evaluations = check_count(OWNER, "max_evaluations", max_evaluations)
    if not isinstance(w, (Tensor, np.ndarray, float, int)) or isinstance(w, bool):
        raise ValueError(f"{OWNER}: w must be a number, a tensor or an array, got {type(w).__name__}")
    start = torch.as_tensor(w, dtype=torch.float64).detach()
    if start.numel() == 0:
        raise ValueError(f"{OWNER}: w must have at least one entry, got shape {tuple(start.shape)}")
    check_finite(OWNER, w=start)
    solver = Solver(function, start, rho_bar, rho, tol, max_evaluations)
    proof = solver.solve()
    point = torch.from_numpy(solver.points[proof.centre].reshape(start.shape).copy()).to(start.device)
    gradient = rho_bar * (start - point)
    return MoreauEnvelope(
        value=float(solver.heights[proof.centre]),
        proximal_point=point,
        gradient_norm=torch.linalg.vector_norm(gradient).item(),
        gradient=gradient,
        gap=proof.gap,
        error=proof.error,
        evaluations=solver.evaluations,
        rho=solver.rho,
    )
