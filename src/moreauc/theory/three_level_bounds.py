"""How far the inner and the outer table of a three-level method are from what they track.

The form of the bounds and the meaning of their arguments stand in :mod:`moreauc.theory`.
"""

from __future__ import annotations

import math

from moreauc._checks import check_count
from moreauc.theory._constants import check_batch, non_negative
from moreauc.theory._error_bound import (
    check_tau,
    error_bound,
    moving_average_terms,
    msvr_drift,
    msvr_noise,
)


def sont_inner_table_bound(
    *,
    step: int,
    initial_error: float,
    tau1: float,
    lr: float,
    num_outer: int,
    num_inner: int,
    outer_per_batch: int,
    inner_per_batch: int,
    samples_per_pair: int,
    sigma: float,
    lipschitz: float,
    gradient_bound: float,
    squared: bool = False,
) -> float:
    r"""Bound of :math:`\frac1{n_1 n_2} \sum_{ij} \|v_{ij,t} - h_{ij}(w_t)\|` for SONT with MSVR (lemma `lem:13`).

    .. math::
        \Big(1 - \frac{B_1 B_2 \tau_1}{2 n_1 n_2}\Big)^t e_0 + \frac{2 \tau_1^{1/2} \sigma}{B_3^{1/2}}
        + \frac{4 n_1 n_2 C_h M \eta}{B_1 B_2 \tau_1^{1/2}}

    The proof of `thm:3` quotes it with :math:`\sqrt{C_h}` (and :math:`C_h` in the squared bound), a slip.

    Args:
        step: number of updates :math:`t`, at least 0.
        initial_error: :math:`e_0`, see :mod:`moreauc.theory`.
        tau1: averaging weight of the inner table in (0, 1/2].
        lr: step size :math:`\eta`.
        num_outer: :math:`n_1`.
        num_inner: :math:`n_2`.
        outer_per_batch: :math:`B_1`.
        inner_per_batch: :math:`B_2`.
        samples_per_pair: :math:`B_3`.
        sigma: :math:`\sigma`.
        lipschitz: :math:`C_h`, at least 0.
        gradient_bound: :math:`M`.
        squared: bound the mean squared norm instead.

    Returns:
        The bound, which assumes the correction weight :func:`moreauc.core.rules.theory_gamma`.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> sizes = dict(num_outer=4, num_inner=2, outer_per_batch=2, inner_per_batch=1, samples_per_pair=4)
        >>> sont_inner_table_bound(
        ...     step=0, initial_error=1.0, tau1=0.25, lr=0.125, **sizes, sigma=2.0, lipschitz=1.0, gradient_bound=1.0
        ... )
        6.0
    """
    owner = "sont_inner_table_bound"
    n1, b1 = check_batch(owner, num_outer=num_outer, outer_per_batch=outer_per_batch)
    n2, b2 = check_batch(owner, num_inner=num_inner, inner_per_batch=inner_per_batch)
    b3 = check_count(owner, "samples_per_pair", samples_per_pair)
    tau1 = check_tau(owner, "tau1", tau1, 0.5)
    lr, sigma, c_h, m = non_negative(owner, lr=lr, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    share = b1 * b2 / (n1 * n2)
    terms = [msvr_noise(tau1, sigma, b3), msvr_drift(tau1, 1.0 / share, c_h * m * lr)]
    return error_bound(owner, step, initial_error, 1.0 - share * tau1 / 2, terms, squared)


def sont_outer_table_bound(
    *,
    step: int,
    initial_error: float,
    tau1: float,
    tau2: float,
    lr: float,
    num_outer: int,
    num_inner: int,
    outer_per_batch: int,
    inner_per_batch: int,
    sigma: float,
    lipschitz_middle: float,
    lipschitz_inner: float,
    gradient_bound: float,
    squared: bool = False,
) -> float:
    r"""Bound of :math:`\frac1{n_1} \sum_i \|u_{i,t} - \frac1{n_2} \sum_j g_i(v_{ij,t})\|` for SONT, MSVR (`lem:14`).

    .. math::
        \Big(1 - \frac{B_1 \tau_2}{2 n_1}\Big)^t e_0 + \frac{2 \tau_2^{1/2} \sigma}{B_2^{1/2}}
        + C_2 \Big(\frac{n_1 B_2}{B_1 n_2}\Big)^{1/2} \frac{\tau_1}{\tau_2^{1/2}}
        + C_2 \Big(\frac{n_1^3 n_2}{B_1^3 B_2}\Big)^{1/2} \frac{\eta}{\tau_2^{1/2}}, \quad
        C_2 = 8 \sqrt2\, C_g M \max\{1, C_h\}

    Args:
        step: number of updates :math:`t`, at least 0.
        initial_error: :math:`e_0`, see :mod:`moreauc.theory`.
        tau1: averaging weight of the inner table in (0, 1/2].
        tau2: averaging weight of the outer table in (0, 1/2].
        lr: step size :math:`\eta`.
        num_outer: :math:`n_1`.
        num_inner: :math:`n_2`.
        outer_per_batch: :math:`B_1`.
        inner_per_batch: :math:`B_2`.
        sigma: :math:`\sigma`, of :math:`g_i(v_{ij})` over :math:`j`.
        lipschitz_middle: :math:`C_g`, at least 0.
        lipschitz_inner: :math:`C_h`, at least 0.
        gradient_bound: :math:`M`, which bounds :math:`v_{ij,t}` and the root mean square of :math:`h_{ij}` too.
        squared: bound the mean squared norm instead.

    Returns:
        The bound, which assumes the correction weights :func:`moreauc.core.rules.theory_gamma`.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> sizes = dict(num_outer=4, num_inner=2, outer_per_batch=2, inner_per_batch=1)
        >>> weights = dict(tau1=0.25, tau2=0.25, lr=0.0, sigma=2.0)
        >>> constants = dict(lipschitz_middle=0.0, lipschitz_inner=1.0, gradient_bound=1.0)
        >>> sont_outer_table_bound(step=1, initial_error=16.0, **weights, **sizes, **constants)
        17.0
    """
    owner = "sont_outer_table_bound"
    n1, b1 = check_batch(owner, num_outer=num_outer, outer_per_batch=outer_per_batch)
    n2, b2 = check_batch(owner, num_inner=num_inner, inner_per_batch=inner_per_batch)
    tau1, tau2 = check_tau(owner, "tau1", tau1, 0.5), check_tau(owner, "tau2", tau2, 0.5)
    lr, sigma, c_g, c_h, m = non_negative(
        owner,
        lr=lr,
        sigma=sigma,
        lipschitz_middle=lipschitz_middle,
        lipschitz_inner=lipschitz_inner,
        gradient_bound=gradient_bound,
    )
    c_2 = 8.0 * math.sqrt(2.0) * c_g * m * max(1.0, c_h)
    terms = [
        msvr_noise(tau2, sigma, b2),
        c_2 * math.sqrt(n1 * b2 / (b1 * n2) / tau2) * tau1,
        c_2 * math.sqrt(n1**3 * n2 / (b1**3 * b2) / tau2) * lr,
    ]
    return error_bound(owner, step, initial_error, 1.0 - b1 * tau2 / (2 * n1), terms, squared)


def sont_moving_average_inner_table_bound(
    *,
    step: int,
    initial_error: float,
    tau1: float,
    lr: float,
    num_outer: int,
    num_inner: int,
    outer_per_batch: int,
    inner_per_batch: int,
    samples_per_pair: int,
    sigma: float,
    lipschitz: float,
    gradient_bound: float,
    squared: bool = False,
) -> float:
    r"""Bound of :math:`\frac1{n_1 n_2} \sum_{ij} \|v_{ij,t} - h_{ij}(w_t)\|` with the moving average (lemma `lem:20`).

    .. math::
        \Big(1 - \frac{B_1 B_2 \tau_1}{4 n_1 n_2}\Big)^t e_0 + \frac{2 \sqrt2 \tau_1^{1/2} \sigma}{B_3^{1/2}}
        + \frac{4 \sqrt2 n_1 n_2 C_h M \eta}{B_1 B_2 \tau_1}

    Args:
        step: number of updates :math:`t`, at least 0.
        initial_error: :math:`e_0`, see :mod:`moreauc.theory`.
        tau1: averaging weight of the inner table in (0, 1].
        lr: step size :math:`\eta`.
        num_outer: :math:`n_1`.
        num_inner: :math:`n_2`.
        outer_per_batch: :math:`B_1`.
        inner_per_batch: :math:`B_2`.
        samples_per_pair: :math:`B_3`.
        sigma: :math:`\sigma`.
        lipschitz: :math:`C_h`, at least 0, of the mean :math:`h_{ij}` only.
        gradient_bound: :math:`M`.
        squared: bound the mean squared norm instead.

    Returns:
        The bound, for correction weight 0.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> sizes = dict(num_outer=4, num_inner=2, outer_per_batch=2, inner_per_batch=1, samples_per_pair=4)
        >>> sont_moving_average_inner_table_bound(
        ...     step=1, initial_error=8.0, tau1=1.0, lr=0.0, **sizes, sigma=0.0, lipschitz=1.0, gradient_bound=1.0
        ... )
        7.5
    """
    owner = "sont_moving_average_inner_table_bound"
    n1, b1 = check_batch(owner, num_outer=num_outer, outer_per_batch=outer_per_batch)
    n2, b2 = check_batch(owner, num_inner=num_inner, inner_per_batch=inner_per_batch)
    b3 = check_count(owner, "samples_per_pair", samples_per_pair)
    tau1 = check_tau(owner, "tau1", tau1, 1.0)
    lr, sigma, c_h, m = non_negative(owner, lr=lr, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    share = b1 * b2 / (n1 * n2)
    terms = moving_average_terms(tau1, sigma, b3, c_h * m * lr / share)
    return error_bound(owner, step, initial_error, 1.0 - share * tau1 / 4, terms, squared)


def sont_moving_average_outer_table_bound(
    *,
    step: int,
    initial_error: float,
    tau1: float,
    tau2: float,
    num_outer: int,
    num_inner: int,
    outer_per_batch: int,
    inner_per_batch: int,
    sigma: float,
    lipschitz: float,
    gradient_bound: float,
    squared: bool = False,
) -> float:
    r"""Bound of :math:`\frac1{n_1} \sum_i \|u_{i,t} - \frac1{n_2} \sum_j g_i(v_{ij,t})\|`, moving average (`lem:21`).

    .. math::
        \Big(1 - \frac{B_1 \tau_2}{4 n_1}\Big)^t e_0 + \frac{2 \sqrt2 \tau_2^{1/2} \sigma}{B_2^{1/2}}
        + 4 \sqrt2\, C_g M \Big(\frac{n_1 B_2}{B_1 n_2}\Big)^{1/2} \frac{\tau_1}{\tau_2}

    The step size does not enter: an inner row moves by at most :math:`\tau_1 \|v - h\|` in a step.

    Args:
        step: number of updates :math:`t`, at least 0.
        initial_error: :math:`e_0`, see :mod:`moreauc.theory`.
        tau1: averaging weight of the inner table in (0, 1].
        tau2: averaging weight of the outer table in (0, 1].
        num_outer: :math:`n_1`.
        num_inner: :math:`n_2`.
        outer_per_batch: :math:`B_1`.
        inner_per_batch: :math:`B_2`.
        sigma: :math:`\sigma`, of :math:`g_i(v_{ij})` over :math:`j`.
        lipschitz: :math:`C_g`, at least 0.
        gradient_bound: :math:`M`, with :math:`E\|v_{ij,t} - h_{ij}(w_t; B_3)\|^2 \le M^2`. The proof uses this without
            saying so; a bound of :math:`v` and :math:`h` alone has to be doubled.
        squared: bound the mean squared norm instead.

    Returns:
        The bound, for correction weights 0.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> sizes = dict(num_outer=4, num_inner=2, outer_per_batch=2, inner_per_batch=1)
        >>> sont_moving_average_outer_table_bound(
        ...     step=1, initial_error=8.0, tau1=1.0, tau2=1.0, **sizes, sigma=0.0, lipschitz=0.0, gradient_bound=1.0
        ... )
        7.0
    """
    owner = "sont_moving_average_outer_table_bound"
    n1, b1 = check_batch(owner, num_outer=num_outer, outer_per_batch=outer_per_batch)
    n2, b2 = check_batch(owner, num_inner=num_inner, inner_per_batch=inner_per_batch)
    tau1, tau2 = check_tau(owner, "tau1", tau1, 1.0), check_tau(owner, "tau2", tau2, 1.0)
    sigma, c_g, m = non_negative(owner, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    terms = moving_average_terms(tau2, sigma, b2, math.sqrt(n1 * b2 / (b1 * n2)) * c_g * m * tau1)
    return error_bound(owner, step, initial_error, 1.0 - b1 * tau2 / (4 * n1), terms, squared)
