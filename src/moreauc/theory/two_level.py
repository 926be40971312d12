"""Parameters of the two-level methods: SONX with MSVR, with the moving average, and for two-way partial AUC.

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
from moreauc.theory.weak_convexity import fcco_weak_convexity


@dataclass(frozen=True)
class SONXParameters:
    r"""Parameters of a two-level method.

    Args:
        tau: averaging weight :math:`\tau` of the table.
        gamma: correction weight :math:`\gamma`; 0 for the moving average.
        lr: step size :math:`\eta`.
        iterations: number of iterations :math:`T`.
        rho_bar: :math:`\bar\rho` of the Moreau envelope :math:`F_{1/\bar\rho}`, or None.
    """

    tau: float
    gamma: float
    lr: float
    iterations: int
    rho_bar: float | None


def sonx_parameters(
    *,
    epsilon: float,
    num_blocks: int,
    blocks_per_batch: int,
    samples_per_block: int,
    constant_tau: float = 1.0,
    constant_lr: float = 1.0,
    constant_iterations: float = 1.0,
    rho_outer: float | None = None,
    lipschitz_outer: float | None = None,
    rho_inner: float | None = None,
    lipschitz_inner: float | None = None,
    dim: int = 1,
) -> SONXParameters:
    r"""Parameters of SONX, Algorithm 1 with MSVR (theorem `thm:1`).

    .. math::
        \tau = O(B_2 \epsilon^4) \le \tfrac12, \quad
        \gamma = \frac{n - B_1}{B_1 (1 - \tau)} + (1 - \tau), \quad
        \eta = O\Big(\frac{B_1 B_2^{1/2}}{n} \epsilon^4\Big), \quad
        T = O\Big(\frac{n}{B_1 B_2^{1/2}} \epsilon^{-6}\Big)

    .. math:: \bar\rho = \rho_F + \sqrt{d_1}\, \rho_g C_f + 2 \rho_f C_g^2

    Deviation: the theorem has no :math:`\sqrt{d_1}` in :math:`\bar\rho`; step (c) of its proof needs it where
    :math:`g_i` has several outputs, as `prop:1` does.

    Args:
        epsilon: wanted accuracy.
        num_blocks: number of blocks :math:`n`, at least 1.
        blocks_per_batch: blocks drawn in one step, :math:`B_1`, in [1, num_blocks].
        samples_per_block: samples drawn of each of them, :math:`B_2`, at least 1.
        constant_tau: factor of :math:`\tau`, positive.
        constant_lr: factor of :math:`\eta`, positive.
        constant_iterations: factor of :math:`T`, positive.
        rho_outer: :math:`\rho_f`; this and the next three, as in :func:`fcco_weak_convexity`, all or none.
        lipschitz_outer: :math:`C_f`.
        rho_inner: :math:`\rho_g`.
        lipschitz_inner: :math:`C_g`.
        dim: number :math:`d_1` of outputs of :math:`g_i`.

    Returns:
        The parameters; `rho_bar` is None where the four constants are not given.

    Raises:
        ValueError: if an argument is outside its range, or only some of the four constants are given.

    Example:
        >>> p = sonx_parameters(epsilon=0.5, num_blocks=100, blocks_per_batch=10, samples_per_block=4)
        >>> p.tau, p.gamma, p.lr, p.iterations
        (0.25, 12.75, 0.0125, 320)

    Reference: arXiv:2310.03234.
    """
    owner = "sonx_parameters"
    num_blocks, blocks = check_batch(owner, num_blocks=num_blocks, blocks_per_batch=blocks_per_batch)
    samples = check_count(owner, "samples_per_block", samples_per_block)
    rho_bar = _sonx_rho_bar(owner, rho_outer, lipschitz_outer, rho_inner, lipschitz_inner, dim)
    constants = (constant_tau, constant_lr, constant_iterations)
    return _two_level_msvr(owner, epsilon, num_blocks, blocks, samples, constants, rho_bar)


def sonx_moving_average_parameters(
    *,
    epsilon: float,
    num_blocks: int,
    blocks_per_batch: int,
    samples_per_block: int,
    constant_tau: float = 1.0,
    constant_lr: float = 1.0,
    constant_iterations: float = 1.0,
    rho_outer: float | None = None,
    lipschitz_outer: float | None = None,
    rho_inner: float | None = None,
    lipschitz_inner: float | None = None,
    dim: int = 1,
) -> SONXParameters:
    r"""Parameters of SONX with the moving average, Algorithm 6 (theorem `thm:4`).

    .. math::
        \tau = O(B_2 \epsilon^4) \le 1, \quad \gamma = 0, \quad
        \eta = O\Big(\frac{B_1 B_2}{n} \epsilon^6\Big), \quad
        T = O\Big(\frac{n}{B_1 B_2} \epsilon^{-8}\Big)

    The theorem does not name :math:`\bar\rho`; its proof is that of `thm:1`, so :math:`\bar\rho` is the one of
    :func:`sonx_parameters`.

    Args:
        epsilon: wanted accuracy.
        num_blocks: number of blocks :math:`n`, at least 1.
        blocks_per_batch: blocks drawn in one step, :math:`B_1`, in [1, num_blocks].
        samples_per_block: samples drawn of each of them, :math:`B_2`, at least 1.
        constant_tau: factor of :math:`\tau`, positive.
        constant_lr: factor of :math:`\eta`, positive.
        constant_iterations: factor of :math:`T`, positive.
        rho_outer: :math:`\rho_f`; this and the next three, as in :func:`fcco_weak_convexity`, all or none.
        lipschitz_outer: :math:`C_f`.
        rho_inner: :math:`\rho_g`.
        lipschitz_inner: :math:`C_g`.
        dim: number :math:`d_1` of outputs of :math:`g_i`.

    Returns:
        The parameters, with `gamma` 0.

    Raises:
        ValueError: if an argument is outside its range, or only some of the four constants are given.

    Example:
        >>> p = sonx_moving_average_parameters(epsilon=0.5, num_blocks=100, blocks_per_batch=10, samples_per_block=4)
        >>> p.tau, p.gamma, p.lr, p.iterations
        (0.25, 0.0, 0.00625, 640)

    Reference: arXiv:2310.03234.
    """
    owner = "sonx_moving_average_parameters"
    num_blocks, blocks = check_batch(owner, num_blocks=num_blocks, blocks_per_batch=blocks_per_batch)
    samples = check_count(owner, "samples_per_block", samples_per_block)
    eps = check_epsilon(owner, epsilon)
    c_tau, c_lr, c_iterations = positive(
        owner, constant_tau=constant_tau, constant_lr=constant_lr, constant_iterations=constant_iterations
    )
    return SONXParameters(
        tau=min(c_tau * samples * eps**4, 1.0),
        gamma=0.0,
        lr=c_lr * blocks * samples / num_blocks * eps**6,
        iterations=round_up(c_iterations * num_blocks / (blocks * samples) / eps**8),
        rho_bar=_sonx_rho_bar(owner, rho_outer, lipschitz_outer, rho_inner, lipschitz_inner, dim),
    )


def tpauc_parameters(
    *,
    epsilon: float,
    num_positives: int,
    num_negatives: int,
    positives_per_batch: int,
    negatives_per_batch: int,
    constant_tau: float = 1.0,
    constant_lr: float = 1.0,
    constant_iterations: float = 1.0,
    lipschitz_outer: float | None = None,
    rho_inner: float | None = None,
) -> SONXParameters:
    r"""Parameters of SONX for two-way partial AUC, Algorithm 2 (theorem `thm:6`).

    .. math::
        \tau = O(B_2 \epsilon^4) \le \tfrac12, \quad
        \gamma = \frac{n_+ - B_1}{B_1 (1 - \tau)} + (1 - \tau), \quad
        \eta = O\Big(\frac{B_1 B_2^{1/2}}{n_+} \epsilon^4\Big), \quad
        T = O\Big(\frac{n_+}{B_1 B_2^{1/2}} \epsilon^{-6}\Big)

    .. math:: \bar\rho = \rho_F + \rho_\psi C_f, \quad \rho_F = \rho_\psi C_f

    The envelope is that of :math:`F(w, s, s')`. :math:`\rho_F` is `prop:1` with a convex :math:`f_i`; lemma `lem:17`
    drops the factor :math:`C_f = 1 / \alpha` from it.

    Args:
        epsilon: wanted accuracy.
        num_positives: number of positives :math:`n_+`, at least 1.
        num_negatives: number of negatives :math:`n_-`, at least 1.
        positives_per_batch: positives drawn in one step, :math:`B_1`, in [1, num_positives].
        negatives_per_batch: negatives drawn in one step, :math:`B_2`, in [1, num_negatives].
        constant_tau: factor of :math:`\tau`, positive.
        constant_lr: factor of :math:`\eta`, positive.
        constant_iterations: factor of :math:`T`, positive.
        lipschitz_outer: :math:`C_f`, bound of :math:`\partial_u f_i`, at least 0; with `rho_inner` or not at all.
        rho_inner: weak convexity :math:`\rho_\psi` of :math:`\psi_i(w, s_i)`, at least 0.

    Returns:
        The parameters; `rho_bar` is None where the two constants are not given.

    Raises:
        ValueError: if an argument is outside its range, or only one of the two constants is given.

    Example:
        >>> sizes = dict(num_positives=100, num_negatives=900, positives_per_batch=10, negatives_per_batch=4)
        >>> p = tpauc_parameters(epsilon=0.5, **sizes)
        >>> p.tau, p.gamma, p.lr, p.iterations
        (0.25, 12.75, 0.0125, 320)

    Reference: arXiv:2310.03234.
    """
    owner = "tpauc_parameters"
    positives, b1 = check_batch(owner, num_positives=num_positives, positives_per_batch=positives_per_batch)
    _, b2 = check_batch(owner, num_negatives=num_negatives, negatives_per_batch=negatives_per_batch)
    given = all_or_none(owner, lipschitz_outer=lipschitz_outer, rho_inner=rho_inner)
    rho_bar = None if given is None else 2.0 * given[0] * given[1]
    constants = (constant_tau, constant_lr, constant_iterations)
    return _two_level_msvr(owner, epsilon, positives, b1, b2, constants, rho_bar)


def _two_level_msvr(
    owner: str,
    epsilon: float,
    num_rows: int,
    rows: int,
    samples: int,
    constants: tuple[float, float, float],
    rho_bar: float | None,
) -> SONXParameters:
    """Parameters that `thm:1` and `thm:6` share; `constants` are those of tau, lr and iterations."""
    eps = check_epsilon(owner, epsilon)
    names = ("constant_tau", "constant_lr", "constant_iterations")
    c_tau, c_lr, c_iterations = positive(owner, **dict(zip(names, constants, strict=True)))
    tau = min(c_tau * samples * eps**4, 0.5)
    speed = rows * math.sqrt(samples) / num_rows
    return SONXParameters(
        tau=tau,
        gamma=theory_gamma(num_rows, rows, tau),
        lr=c_lr * speed * eps**4,
        iterations=round_up(c_iterations / speed / eps**6),
        rho_bar=rho_bar,
    )


def _sonx_rho_bar(
    owner: str,
    rho_outer: float | None,
    lipschitz_outer: float | None,
    rho_inner: float | None,
    lipschitz_inner: float | None,
    dim: int,
) -> float | None:
    dim = check_count(owner, "dim", dim)
    given = all_or_none(
        owner,
        rho_outer=rho_outer,
        lipschitz_outer=lipschitz_outer,
        rho_inner=rho_inner,
        lipschitz_inner=lipschitz_inner,
    )
    if given is None:
        return None
    rho_f, c_f, rho_g, c_g = given
    rho = fcco_weak_convexity(rho_outer=rho_f, lipschitz_outer=c_f, rho_inner=rho_g, lipschitz_inner=c_g, dim=dim)
    return rho + math.sqrt(dim) * rho_g * c_f + 2.0 * rho_f * c_g**2
