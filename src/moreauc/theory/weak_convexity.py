"""Weak convexity of the two-level and of the three-level objective: the propositions of arXiv:2310.03234."""

from __future__ import annotations

import math

from moreauc._checks import check_count
from moreauc.theory._constants import non_negative


def fcco_weak_convexity(
    *, rho_outer: float, lipschitz_outer: float, rho_inner: float, lipschitz_inner: float, dim: int = 1
) -> float:
    r"""Weak convexity of :math:`F(w) = \frac1n \sum_i f_i(g_i(w))` (proposition `prop:1`).

    .. math:: \rho_F = \sqrt{d_1}\, \rho_g C_f + \rho_f C_g^2

    Args:
        rho_outer: weak convexity :math:`\rho_f` of the non-decreasing :math:`f_i`, at least 0.
        lipschitz_outer: Lipschitz constant :math:`C_f`, at least 0.
        rho_inner: weak convexity :math:`\rho_g` of each output of :math:`g_i`, at least 0.
        lipschitz_inner: Lipschitz constant :math:`C_g`, at least 0.
        dim: number :math:`d_1` of outputs of :math:`g_i`, at least 1.

    Returns:
        A :math:`\rho` such that :math:`F + \frac\rho2 \|\cdot\|^2` is convex.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> fcco_weak_convexity(rho_outer=1.0, lipschitz_outer=2.0, rho_inner=3.0, lipschitz_inner=4.0, dim=4)
        28.0

    Reference: arXiv:2310.03234.
    """
    c_f, rho_f, c_g, rho_g = non_negative(
        "fcco_weak_convexity",
        lipschitz_outer=lipschitz_outer,
        rho_outer=rho_outer,
        lipschitz_inner=lipschitz_inner,
        rho_inner=rho_inner,
    )
    dim = check_count("fcco_weak_convexity", "dim", dim)
    return math.sqrt(dim) * rho_g * c_f + rho_f * c_g**2


def tcco_weak_convexity(
    *,
    rho_outer: float,
    lipschitz_outer: float,
    rho_middle: float,
    lipschitz_middle: float,
    rho_inner: float,
    lipschitz_inner: float,
    dim_middle: int = 1,
    dim_inner: int = 1,
) -> float:
    r"""Weak convexity of :math:`F(w) = \frac1{n_1} \sum_i f_i(\frac1{n_2} \sum_j g_i(h_{ij}(w)))` (`prop:2`).

    .. math:: \rho_F = \sqrt{d_1} (\sqrt{d_2} L_h C_g + \rho_g C_h^2) C_f + \rho_f C_g^2 C_h^2

    Args:
        rho_outer: weak convexity :math:`\rho_f` of the non-decreasing :math:`f_i`, at least 0.
        lipschitz_outer: Lipschitz constant :math:`C_f`, at least 0.
        rho_middle: weak convexity :math:`\rho_g` of each output of :math:`g_i`, at least 0.
        lipschitz_middle: Lipschitz constant :math:`C_g`, at least 0.
        rho_inner: :math:`L_h`, at least 0: weak convexity of :math:`h_{ij}` where :math:`g_i` is non-decreasing, its
            smoothness where :math:`g_i` is non-increasing.
        lipschitz_inner: Lipschitz constant :math:`C_h`, at least 0.
        dim_middle: number :math:`d_1` of outputs of :math:`g_i`, at least 1.
        dim_inner: number :math:`d_2` of outputs of :math:`h_{ij}`, at least 1.

    Returns:
        A :math:`\rho` such that :math:`F + \frac\rho2 \|\cdot\|^2` is convex.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> constants = dict(rho_outer=1.0, lipschitz_outer=2.0, rho_middle=3.0, lipschitz_middle=4.0)
        >>> tcco_weak_convexity(**constants, rho_inner=5.0, lipschitz_inner=6.0)
        832.0

    Reference: arXiv:2310.03234.
    """
    owner = "tcco_weak_convexity"
    c_f, rho_f, c_g, rho_g, c_h, l_h = non_negative(
        owner,
        lipschitz_outer=lipschitz_outer,
        rho_outer=rho_outer,
        lipschitz_middle=lipschitz_middle,
        rho_middle=rho_middle,
        lipschitz_inner=lipschitz_inner,
        rho_inner=rho_inner,
    )
    root1 = math.sqrt(check_count(owner, "dim_middle", dim_middle))
    root2 = math.sqrt(check_count(owner, "dim_inner", dim_inner))
    return root1 * (root2 * l_h * c_g + rho_g * c_h**2) * c_f + rho_f * c_g**2 * c_h**2
