"""How far the tables of SONT for bags are from what they track: the bags' scores, and the means over pairs of bags.

The form of the bounds and the meaning of their arguments stand in :mod:`moreauc.theory`.
"""

from __future__ import annotations

import math

from moreauc._checks import check_count
from moreauc.theory._constants import check_batch, non_negative
from moreauc.theory._error_bound import (
    check_tau,
    error_bound,
    msvr_drift,
    msvr_noise,
)


def bag_table_bound(
    *,
    step: int,
    initial_error: float,
    tau1: float,
    lr: float,
    num_positives: int,
    num_negatives: int,
    positives_per_batch: int,
    negatives_per_batch: int,
    instances_per_bag: int,
    sigma: float,
    lipschitz: float,
    gradient_bound: float,
    negative: bool = False,
    squared: bool = False,
) -> float:
    r"""Bound of :math:`\frac1{n_+} \sum_i \|v_{i,t} - h_i(w_t)\|` for Algorithm 4 (lemma `lem:11`).

    .. math::
        \Big(1 - \frac{B_1 \tau_1}{2 n_+}\Big)^t e_0 + \frac{2 \tau_1^{1/2} \sigma}{B_3^{1/2}}
        + \frac{4 n_+ C_h M \eta}{B_1 \tau_1^{1/2}}

    for positive bags, and with :math:`n_-, B_2` in place of :math:`n_+, B_1` for negative ones. The lemma as printed
    leaves out :math:`B_3` and one :math:`1 / n_+`, has :math:`B_1` for negative bags and :math:`h_i(w_t)` for
    :math:`h_i(w_0)`.

    Args:
        step: number of updates :math:`t`, at least 0.
        initial_error: :math:`e_0` over the bags of the class in question, see :mod:`moreauc.theory`.
        tau1: averaging weight of the bags' table in (0, 1/2].
        lr: step size :math:`\eta`.
        num_positives: :math:`n_+`.
        num_negatives: :math:`n_-`.
        positives_per_batch: :math:`B_1`.
        negatives_per_batch: :math:`B_2`.
        instances_per_bag: :math:`B_3`, instances drawn of each bag.
        sigma: :math:`\sigma`.
        lipschitz: :math:`C_h`, at least 0.
        gradient_bound: :math:`M`.
        negative: bound the error of the negative bags instead of the positive ones.
        squared: bound the mean squared norm instead.

    Returns:
        The bound, which assumes the correction weights :func:`moreauc.core.rules.theory_gamma`.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> sizes = dict(num_positives=4, num_negatives=8, positives_per_batch=2, negatives_per_batch=1)
        >>> rest = dict(tau1=0.25, lr=0.125, instances_per_bag=4, sigma=2.0, lipschitz=1.0, gradient_bound=1.0)
        >>> bag_table_bound(step=0, initial_error=1.0, **sizes, **rest)
        4.0
        >>> bag_table_bound(step=0, initial_error=1.0, **sizes, **rest, negative=True)
        10.0
    """
    owner = "bag_table_bound"
    positive_sizes = check_batch(owner, num_positives=num_positives, positives_per_batch=positives_per_batch)
    negative_sizes = check_batch(owner, num_negatives=num_negatives, negatives_per_batch=negatives_per_batch)
    n, b = negative_sizes if negative else positive_sizes
    b3 = check_count(owner, "instances_per_bag", instances_per_bag)
    tau1 = check_tau(owner, "tau1", tau1, 0.5)
    lr, sigma, c_h, m = non_negative(owner, lr=lr, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    terms = [msvr_noise(tau1, sigma, b3), msvr_drift(tau1, n / b, c_h * m * lr)]
    return error_bound(owner, step, initial_error, 1.0 - b * tau1 / (2 * n), terms, squared)


def bag_pair_table_bound(
    *,
    step: int,
    initial_error: float,
    tau1: float,
    tau2: float,
    lr: float,
    num_positives: int,
    num_negatives: int,
    positives_per_batch: int,
    negatives_per_batch: int,
    sigma: float,
    lipschitz_middle: float,
    lipschitz_inner: float,
    gradient_bound: float,
    squared: bool = False,
) -> float:
    r"""Bound of :math:`\frac1{n_+} \sum_i \|u_{i,t} - \frac1{n_-} \sum_j g_i(v_{j,t} - v_{i,t}, s_{i,t})\|` (`lem:12`).

    With :math:`a = n_+ / B_1`, :math:`b = n_- / B_2` and :math:`C_2 = 16 \sqrt2\, C_g M \max\{1, C_h\}`,

    .. math::
        \Big(1 - \frac{\tau_2}{2 a}\Big)^t e_0 + \frac{2 \tau_2^{1/2} \sigma}{B_2^{1/2}}
        + C_2\, a (a^{-1/2} + b^{-1/2}) \frac{\tau_1}{\tau_2^{1/2}}
        + C_2\, a (a^{1/2} + b^{1/2}) \frac{\eta}{\tau_2^{1/2}} + C_2 \frac{n_+^{1/2}}{B_1} \frac{\eta}{\tau_2^{1/2}}.

    The lemma as printed leaves out :math:`B_2^{1/2}`. In the squared bound each of the six terms is squared by itself.

    Args:
        step: number of updates :math:`t`, at least 0.
        initial_error: :math:`e_0`, see :mod:`moreauc.theory`.
        tau1: averaging weight of the bags' table in (0, 1/2].
        tau2: averaging weight of this table in (0, 1/2].
        lr: step size :math:`\eta`, of the weights and of the thresholds.
        num_positives: :math:`n_+`.
        num_negatives: :math:`n_-`.
        positives_per_batch: :math:`B_1`.
        negatives_per_batch: :math:`B_2`.
        sigma: :math:`\sigma`, of :math:`g_i` over negative bags.
        lipschitz_middle: :math:`C_g` of :math:`g_i` in :math:`(v, s_i)`, at least 0.
        lipschitz_inner: :math:`C_h` of one bag's score, at least 0.
        gradient_bound: :math:`M`, which bounds the thresholds' gradient, :math:`v` and the root mean square of
            :math:`h` too.
        squared: bound the mean squared norm instead.

    Returns:
        The bound, which assumes the correction weights :func:`moreauc.core.rules.theory_gamma`.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> sizes = dict(num_positives=4, num_negatives=8, positives_per_batch=2, negatives_per_batch=1)
        >>> weights = dict(tau1=0.25, tau2=0.25, lr=0.0, sigma=2.0)
        >>> constants = dict(lipschitz_middle=0.0, lipschitz_inner=1.0, gradient_bound=1.0)
        >>> bag_pair_table_bound(step=1, initial_error=16.0, **weights, **sizes, **constants)
        17.0
    """
    owner = "bag_pair_table_bound"
    n, b1 = check_batch(owner, num_positives=num_positives, positives_per_batch=positives_per_batch)
    n_minus, b2 = check_batch(owner, num_negatives=num_negatives, negatives_per_batch=negatives_per_batch)
    tau1, tau2 = check_tau(owner, "tau1", tau1, 0.5), check_tau(owner, "tau2", tau2, 0.5)
    lr, sigma, c_g, c_h, m = non_negative(
        owner,
        lr=lr,
        sigma=sigma,
        lipschitz_middle=lipschitz_middle,
        lipschitz_inner=lipschitz_inner,
        gradient_bound=gradient_bound,
    )
    a, b = n / b1, n_minus / b2
    scale = 16.0 * math.sqrt(2.0) * c_g * m * max(1.0, c_h) / math.sqrt(tau2)
    terms = [
        msvr_noise(tau2, sigma, b2),
        scale * a * math.sqrt(1.0 / a) * tau1,
        scale * a * math.sqrt(1.0 / b) * tau1,
        scale * a * math.sqrt(a) * lr,
        scale * a * math.sqrt(b) * lr,
        scale * math.sqrt(n) / b1 * lr,
    ]
    return error_bound(owner, step, initial_error, 1.0 - tau2 / (2 * a), terms, squared)
