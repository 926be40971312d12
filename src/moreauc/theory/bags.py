"""Parameters of SONT for two-way partial AUC over bags of instances.

The conventions of all parameter functions stand in :mod:`moreauc.theory`.
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


@dataclass(frozen=True)
class MultiInstanceTPAUCParameters:
    r"""Parameters of SONT for bags of instances.

    Args:
        tau1: averaging weight :math:`\tau_1` of the bags' table :math:`v`.
        tau2: averaging weight :math:`\tau_2` of the table :math:`u`.
        gamma1: correction weight of :math:`v` for positive bags.
        gamma2: correction weight of :math:`v` for negative bags.
        gamma3: correction weight of :math:`u`.
        lr: step size :math:`\eta`.
        iterations: number of iterations :math:`T`.
        rho_bar: :math:`\bar\rho` of the Moreau envelope :math:`F_{1/\bar\rho}`, or None.
    """

    tau1: float
    tau2: float
    gamma1: float
    gamma2: float
    gamma3: float
    lr: float
    iterations: int
    rho_bar: float | None


def multi_instance_tpauc_parameters(
    *,
    epsilon: float,
    num_positives: int,
    num_negatives: int,
    positives_per_batch: int,
    negatives_per_batch: int,
    instances_per_bag: int,
    constant_tau1: float = 1.0,
    constant_tau2: float = 1.0,
    constant_lr: float = 1.0,
    constant_iterations: float = 1.0,
    lipschitz_outer: float | None = None,
    rho_middle: float | None = None,
    lipschitz_middle: float | None = None,
    rho_inner: float | None = None,
    lipschitz_inner: float | None = None,
) -> MultiInstanceTPAUCParameters:
    r"""Parameters of SONT for two-way partial AUC over bags, Algorithm 4 (theorem `thm:7`).

    With :math:`a = n_+ / B_1`, :math:`b = n_- / B_2` and
    :math:`r = \max\{B_3^{-1/2}, a^{1/2} \max\{a^{-1/4}, b^{-1/4}\} B_2^{-1/4}\}`,

    .. math::
        \tau_1 &= O(r^{-2} \epsilon^4) \le \tfrac12, \quad \tau_2 = O(B_2 \epsilon^4) \le \tfrac12, \\
        \gamma_1 &= \frac{n_+ - B_1}{B_1 (1 - \tau_1)} + (1 - \tau_1), \quad
        \gamma_2 = \frac{n_- - B_2}{B_2 (1 - \tau_1)} + (1 - \tau_1), \quad
        \gamma_3 = \frac{n_+ - B_1}{B_1 (1 - \tau_2)} + (1 - \tau_2), \\
        1 / \eta &= O\big(\max\{\max\{a, b\}\, r,\; a \max\{a^{1/2}, b^{1/2}\} B_2^{-1/2}\}\, \epsilon^{-4}\big), \\
        T &= O\big(\max\{\max\{a, b\} \max\{r, r^2\},\; a \max\{a^{1/2}, b^{1/2}\} B_2^{-1/2}\}\, \epsilon^{-6}\big), \\
        \bar\rho &= \rho_F + \rho_g C_f + 8 \rho_g C_f C_h^2 + C_f C_g L_h, \quad
        \rho_F = C_f (C_g L_h + 4 \rho_g C_h^2).

    Deviations from the theorem, each derived in `docs/paper_notes.md`: the last term of :math:`\eta` has
    :math:`B_2^{1/2}` (the theorem: :math:`B_3^{1/2}`), as that of :math:`T` has; :math:`T` has the :math:`r^2`, without
    which it does not cover the :math:`1 / (\mu_{\min} \epsilon^2)` of the proof where :math:`r > 1`; and
    :math:`\bar\rho` has :math:`C_h^2` (the theorem: :math:`C_h`).

    Args:
        epsilon: wanted accuracy.
        num_positives: number of positive bags :math:`n_+`, at least 1.
        num_negatives: number of negative bags :math:`n_-`, at least 1.
        positives_per_batch: positive bags drawn in one step, :math:`B_1`, in [1, num_positives].
        negatives_per_batch: negative bags drawn in one step, :math:`B_2`, in [1, num_negatives].
        instances_per_bag: instances drawn of each of them, :math:`B_3`, at least 1.
        constant_tau1: factor of :math:`\tau_1`, positive.
        constant_tau2: factor of :math:`\tau_2`, positive.
        constant_lr: factor of :math:`\eta`, positive.
        constant_iterations: factor of :math:`T`, positive.
        lipschitz_outer: :math:`C_f`, bound of :math:`\partial_u f_i`; this and the next four all or none, at least 0.
        rho_middle: weak convexity :math:`\rho_g` of :math:`g_i(v, s_i)`.
        lipschitz_middle: Lipschitz constant :math:`C_g` of :math:`g_i`.
        rho_inner: weak convexity :math:`L_h` of the difference :math:`h_j - h_i`: twice the smoothness of one score.
        lipschitz_inner: Lipschitz constant :math:`C_h` of one bag's score :math:`h_i`.

    Returns:
        The parameters; `rho_bar` is None where the five constants are not given.

    Raises:
        ValueError: if an argument is outside its range, or only some of the five constants are given.

    Example:
        >>> sizes = dict(num_positives=16, num_negatives=64, positives_per_batch=1, negatives_per_batch=4)
        >>> p = multi_instance_tpauc_parameters(epsilon=0.5, **sizes, instances_per_bag=1)
        >>> p.tau1, p.tau2, p.iterations
        (0.03125, 0.25, 2048)

    Reference: arXiv:2310.03234.
    """
    owner = "multi_instance_tpauc_parameters"
    positives, b1 = check_batch(owner, num_positives=num_positives, positives_per_batch=positives_per_batch)
    negatives, b2 = check_batch(owner, num_negatives=num_negatives, negatives_per_batch=negatives_per_batch)
    b3 = check_count(owner, "instances_per_bag", instances_per_bag)
    eps = check_epsilon(owner, epsilon)
    c_tau1, c_tau2, c_lr, c_iterations = positive(
        owner,
        constant_tau1=constant_tau1,
        constant_tau2=constant_tau2,
        constant_lr=constant_lr,
        constant_iterations=constant_iterations,
    )
    a, b = positives / b1, negatives / b2
    r_squared = max(1.0 / b3, a * max(a**-0.5, b**-0.5) / math.sqrt(b2))
    r = math.sqrt(r_squared)
    last = a * math.sqrt(max(a, b) / b2)
    tau1 = min(c_tau1 / r_squared * eps**4, 0.5)
    tau2 = min(c_tau2 * b2 * eps**4, 0.5)
    given = all_or_none(
        owner,
        lipschitz_outer=lipschitz_outer,
        rho_middle=rho_middle,
        lipschitz_middle=lipschitz_middle,
        rho_inner=rho_inner,
        lipschitz_inner=lipschitz_inner,
    )
    rho_bar = None
    if given is not None:
        c_f, rho_g, c_g, l_h, c_h = given
        rho_objective = c_f * (c_g * l_h + 4.0 * rho_g * c_h**2)
        rho_bar = rho_objective + rho_g * c_f + 8.0 * rho_g * c_f * c_h**2 + c_f * c_g * l_h
    return MultiInstanceTPAUCParameters(
        tau1=tau1,
        tau2=tau2,
        gamma1=theory_gamma(positives, b1, tau1),
        gamma2=theory_gamma(negatives, b2, tau1),
        gamma3=theory_gamma(positives, b1, tau2),
        lr=c_lr * eps**4 / max(max(a, b) * r, last),
        iterations=round_up(c_iterations * max(max(a, b) * max(r, r_squared), last) / eps**6),
        rho_bar=rho_bar,
    )
