"""Parameters of the three-level methods: SONT with MSVR and with the moving average.

The conventions of all parameter functions stand in :mod:`moreauc.theory`; for bags see :mod:`moreauc.theory.bags`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from moreauc._checks import check_count
from moreauc.core.rules import theory_gamma
from moreauc.theory._constants import (
    all_or_none,
    check_batch,
    check_epsilon,
    positive,
    round_up,
)
from moreauc.theory.weak_convexity import tcco_weak_convexity


@dataclass(frozen=True)
class SONTParameters:
    r"""Parameters of a three-level method.

    Args:
        tau1: averaging weight :math:`\tau_1` of the inner table :math:`v`.
        tau2: averaging weight :math:`\tau_2` of the outer table :math:`u`.
        gamma1: correction weight of :math:`v`; 0 for the moving average.
        gamma2: correction weight of :math:`u`; 0 for the moving average.
        lr: step size :math:`\eta`.
        iterations: number of iterations :math:`T`.
        rho_bar: :math:`\bar\rho` of the Moreau envelope :math:`F_{1/\bar\rho}`, or None.
    """

    tau1: float
    tau2: float
    gamma1: float
    gamma2: float
    lr: float
    iterations: int
    rho_bar: float | None


def sont_parameters(
    *,
    epsilon: float,
    num_outer: int,
    num_inner: int,
    outer_per_batch: int,
    inner_per_batch: int,
    samples_per_pair: int,
    constant_tau1: float = 1.0,
    constant_tau2: float = 1.0,
    constant_lr: float = 1.0,
    constant_iterations: float = 1.0,
    rho_outer: float | None = None,
    lipschitz_outer: float | None = None,
    rho_middle: float | None = None,
    lipschitz_middle: float | None = None,
    rho_inner: float | None = None,
    lipschitz_inner: float | None = None,
    dim_middle: int = 1,
    dim_inner: int = 1,
) -> SONTParameters:
    r"""Parameters of SONT, Algorithm 3 with MSVR (theorem `thm:3`).

    With :math:`a = (n_1 / (B_1 n_2))^{1/2}`,

    .. math::
        \tau_1 &= O(\min\{B_3, 1 / a\}\, \epsilon^4) \le \tfrac12, \quad \tau_2 = O(B_2 \epsilon^4) \le \tfrac12, \\
        \gamma_1 &= \frac{n_1 n_2 - B_1 B_2}{B_1 B_2 (1 - \tau_1)} + (1 - \tau_1), \quad
        \gamma_2 = \frac{n_1 - B_1}{B_1 (1 - \tau_2)} + (1 - \tau_2), \\
        \eta &= O\Big(\min\{B_3^{1/2}, a^{-1/2}, a^{-1}\} \frac{B_1 B_2}{n_1 n_2} \epsilon^4\Big), \quad
        T = O\Big(\max\{B_3^{-1/2}, a^{1/2}, a\} \frac{n_1 n_2}{B_1 B_2} \epsilon^{-6}\Big), \\
        \bar\rho &= \rho_F + 4 \rho_f C_g^2 C_h^2 + 2 \sqrt{d_1}\, \rho_g C_f C_h^2 + \sqrt{d_2}\, C_f C_g L_h.

    Deviation: the theorem writes :math:`4 \rho_f C_g^2` and no square roots in :math:`\bar\rho`. Step (b) of its proof
    yields :math:`C_h^2` too, without which :math:`\bar\rho` is too small for :math:`C_h > 1`.

    Args:
        epsilon: wanted accuracy.
        num_outer: number :math:`n_1` of outer functions, at least 1.
        num_inner: number :math:`n_2` of inner functions of each, at least 1.
        outer_per_batch: outer functions drawn in one step, :math:`B_1`, in [1, num_outer].
        inner_per_batch: inner functions drawn in one step, :math:`B_2`, in [1, num_inner].
        samples_per_pair: samples drawn of each pair, :math:`B_3`, at least 1.
        constant_tau1: factor of :math:`\tau_1`, positive.
        constant_tau2: factor of :math:`\tau_2`, positive.
        constant_lr: factor of :math:`\eta`, positive.
        constant_iterations: factor of :math:`T`, positive.
        rho_outer: :math:`\rho_f`; this and the next five, as in :func:`tcco_weak_convexity`, all or none.
        lipschitz_outer: :math:`C_f`.
        rho_middle: :math:`\rho_g`.
        lipschitz_middle: :math:`C_g`.
        rho_inner: :math:`L_h`.
        lipschitz_inner: :math:`C_h`.
        dim_middle: number :math:`d_1` of outputs of :math:`g_i`.
        dim_inner: number :math:`d_2` of outputs of :math:`h_{ij}`.

    Returns:
        The parameters; `rho_bar` is None where the six constants are not given.

    Raises:
        ValueError: if an argument is outside its range, or only some of the six constants are given.

    Example:
        >>> sizes = dict(num_outer=16, num_inner=8, outer_per_batch=2, inner_per_batch=4, samples_per_pair=1)
        >>> p = sont_parameters(epsilon=0.5, **sizes)
        >>> p.tau1, p.tau2, p.lr, p.iterations
        (0.0625, 0.25, 0.00390625, 1024)

    Reference: arXiv:2310.03234.
    """
    owner = "sont_parameters"
    n1, b1 = check_batch(owner, num_outer=num_outer, outer_per_batch=outer_per_batch)
    n2, b2 = check_batch(owner, num_inner=num_inner, inner_per_batch=inner_per_batch)
    b3 = check_count(owner, "samples_per_pair", samples_per_pair)
    eps = check_epsilon(owner, epsilon)
    c_tau1, c_tau2, c_lr, c_iterations = positive(
        owner,
        constant_tau1=constant_tau1,
        constant_tau2=constant_tau2,
        constant_lr=constant_lr,
        constant_iterations=constant_iterations,
    )
    a = math.sqrt(n1 / (b1 * n2))
    share = b1 * b2 / (n1 * n2)
    speed = min(math.sqrt(b3), 1.0 / math.sqrt(a), 1.0 / a) * share
    tau1 = min(c_tau1 * min(b3, 1.0 / a) * eps**4, 0.5)
    tau2 = min(c_tau2 * b2 * eps**4, 0.5)
    rho_bar = _sont_rho_bar(
        owner,
        (rho_outer, lipschitz_outer, rho_middle, lipschitz_middle, rho_inner, lipschitz_inner),
        dim_middle,
        dim_inner,
    )
    return SONTParameters(
        tau1=tau1,
        tau2=tau2,
        gamma1=theory_gamma(n1 * n2, b1 * b2, tau1),
        gamma2=theory_gamma(n1, b1, tau2),
        lr=c_lr * speed * eps**4,
        iterations=round_up(c_iterations / speed / eps**6),
        rho_bar=rho_bar,
    )


def sont_moving_average_parameters(
    *,
    epsilon: float,
    num_outer: int,
    num_inner: int,
    outer_per_batch: int,
    inner_per_batch: int,
    samples_per_pair: int,
    constant_tau1: float = 1.0,
    constant_tau2: float = 1.0,
    constant_lr: float = 1.0,
    constant_iterations: float = 1.0,
    rho_outer: float | None = None,
    lipschitz_outer: float | None = None,
    rho_middle: float | None = None,
    lipschitz_middle: float | None = None,
    rho_inner: float | None = None,
    lipschitz_inner: float | None = None,
    dim_middle: int = 1,
    dim_inner: int = 1,
) -> SONTParameters:
    r"""Parameters of SONT with the moving average, Algorithm 7 (theorem `thm:5`).

    .. math::
        \tau_1 &= O(m) \le 1, \quad
        m = \min\Big\{B_3 \epsilon^4, \Big(\frac{B_1 n_2}{n_1 B_2}\Big)^{1/2} B_2 \epsilon^6\Big\}, \quad
        \tau_2 = O(B_2 \epsilon^4) \le 1, \quad \gamma_1 = \gamma_2 = 0, \\
        \eta &= O\Big(m \frac{B_1 B_2}{n_1 n_2} \epsilon^2\Big), \quad
        T = O\Big(\max\Big\{\frac1{B_3}, \Big(\frac{n_1}{B_1 B_2 n_2}\Big)^{1/2} \epsilon^{-2}\Big\}
        \frac{n_1 n_2}{B_1 B_2} \epsilon^{-8}\Big).

    The proof ends with :math:`\epsilon^{-10}` where the theorem has :math:`\epsilon^{-8}`. The theorem is right:
    :math:`1 / (\eta \epsilon^2)` with this :math:`\eta` is the :math:`T` above, of order :math:`\epsilon^{-10}` in all
    once the :math:`\epsilon^{-2}` inside the maximum counts. The theorem does not name :math:`\bar\rho`; its proof is
    that of `thm:3`, so :math:`\bar\rho` is the one of :func:`sont_parameters`.

    Args:
        epsilon: wanted accuracy.
        num_outer: number :math:`n_1` of outer functions, at least 1.
        num_inner: number :math:`n_2` of inner functions of each, at least 1.
        outer_per_batch: outer functions drawn in one step, :math:`B_1`, in [1, num_outer].
        inner_per_batch: inner functions drawn in one step, :math:`B_2`, in [1, num_inner].
        samples_per_pair: samples drawn of each pair, :math:`B_3`, at least 1.
        constant_tau1: factor of :math:`\tau_1`, positive.
        constant_tau2: factor of :math:`\tau_2`, positive.
        constant_lr: factor of :math:`\eta`, positive.
        constant_iterations: factor of :math:`T`, positive.
        rho_outer: :math:`\rho_f`; this and the next five, as in :func:`tcco_weak_convexity`, all or none.
        lipschitz_outer: :math:`C_f`.
        rho_middle: :math:`\rho_g`.
        lipschitz_middle: :math:`C_g`.
        rho_inner: :math:`L_h`.
        lipschitz_inner: :math:`C_h`.
        dim_middle: number :math:`d_1` of outputs of :math:`g_i`.
        dim_inner: number :math:`d_2` of outputs of :math:`h_{ij}`.

    Returns:
        The parameters, with `gamma1` and `gamma2` 0.

    Raises:
        ValueError: if an argument is outside its range, or only some of the six constants are given.

    Example:
        >>> sizes = dict(num_outer=16, num_inner=8, outer_per_batch=2, inner_per_batch=4, samples_per_pair=1)
        >>> p = sont_moving_average_parameters(epsilon=0.5, **sizes)
        >>> p.tau1, p.tau2, p.lr, p.iterations
        (0.03125, 0.25, 0.00048828125, 8192)

    Reference: arXiv:2310.03234.
    """
    owner = "sont_moving_average_parameters"
    n1, b1 = check_batch(owner, num_outer=num_outer, outer_per_batch=outer_per_batch)
    n2, b2 = check_batch(owner, num_inner=num_inner, inner_per_batch=inner_per_batch)
    b3 = check_count(owner, "samples_per_pair", samples_per_pair)
    eps = check_epsilon(owner, epsilon)
    c_tau1, c_tau2, c_lr, c_iterations = positive(
        owner,
        constant_tau1=constant_tau1,
        constant_tau2=constant_tau2,
        constant_lr=constant_lr,
        constant_iterations=constant_iterations,
    )
    share = b1 * b2 / (n1 * n2)
    weight = min(b3 * eps**4, math.sqrt(b1 * n2 / (n1 * b2)) * b2 * eps**6)
    slowness = max(1.0 / b3, math.sqrt(n1 / (b1 * b2 * n2)) / eps**2)
    rho_bar = _sont_rho_bar(
        owner,
        (rho_outer, lipschitz_outer, rho_middle, lipschitz_middle, rho_inner, lipschitz_inner),
        dim_middle,
        dim_inner,
    )
    return SONTParameters(
        tau1=min(c_tau1 * weight, 1.0),
        tau2=min(c_tau2 * b2 * eps**4, 1.0),
        gamma1=0.0,
        gamma2=0.0,
        lr=c_lr * weight * share * eps**2,
        iterations=round_up(c_iterations * slowness / share / eps**8),
        rho_bar=rho_bar,
    )


def _sont_rho_bar(owner: str, constants: tuple[float | None, ...], dim_middle: int, dim_inner: int) -> float | None:
    dim_middle = check_count(owner, "dim_middle", dim_middle)
    dim_inner = check_count(owner, "dim_inner", dim_inner)
    names = ("rho_outer", "lipschitz_outer", "rho_middle", "lipschitz_middle", "rho_inner", "lipschitz_inner")
    given = all_or_none(owner, **dict(zip(names, constants, strict=True)))
    if given is None:
        return None
    rho_f, c_f, rho_g, c_g, l_h, c_h = given
    rho = tcco_weak_convexity(**dict(zip(names, given, strict=True)), dim_middle=dim_middle, dim_inner=dim_inner)
    middle = 2.0 * math.sqrt(dim_middle) * rho_g * c_f * c_h**2
    return rho + 4.0 * rho_f * c_g**2 * c_h**2 + middle + math.sqrt(dim_inner) * c_f * c_g * l_h
