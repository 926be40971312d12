r"""Parameters of SONEX and ALEXR2 (arXiv:2506.02504), up to constants.

The parameters are derived from the lemmas for MSVR and from the standard analysis of momentum and of saddle points.
They agree with the orders in the authors' textbook (its Theorem 5.6 and Table 5.2, web edition of June 2026); the
theorems of the paper itself were not at hand. docs/successors.md has the derivation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from moreauc.core.tables import theory_gamma
from moreauc.theory.parameters import all_or_none, checked, fcco_weak_convexity, round_up


@dataclass(frozen=True)
class SONEXParameters:
    r"""Parameters of SONEX.

    Args:
        smoothing: :math:`\lambda` of the outer functions' envelopes.
        tau: averaging weight :math:`\tau` of the table.
        gamma: correction weight :math:`\gamma`.
        momentum: :math:`1 - \beta`, weight of the old average of gradients.
        lr: step size :math:`\eta`.
        iterations: number of iterations :math:`T`.
    """

    smoothing: float
    tau: float
    gamma: float
    momentum: float
    lr: float
    iterations: int


@dataclass(frozen=True)
class ALEXR2Parameters:
    r"""Parameters of ALEXR2, named as those of :class:`moreauc.solver.ALEXR2`.

    Args:
        smoothing: :math:`\lambda` of the outer functions' envelopes.
        tau: averaging weight :math:`\tau` of the rows.
        lr: step size :math:`\eta` of the inner loop.
        inner_steps: steps of an inner loop.
        iterations: inner steps in all.
        weight: :math:`1 / \nu` of the proximal term, or None; 0 where any positive number will do.
    """

    smoothing: float
    tau: float
    lr: float
    inner_steps: int
    iterations: int
    weight: float | None


@checked
def sonex_parameters(
    *,
    epsilon: float,
    num_blocks: int,
    blocks_per_batch: int,
    samples_per_block: int,
    constant_smoothing: float = 1.0,
    constant_tau: float = 1.0,
    constant_momentum: float = 1.0,
    constant_lr: float = 1.0,
    constant_iterations: float = 1.0,
) -> SONEXParameters:
    r"""Parameters of SONEX, for :math:`\|\nabla F_\lambda(w)\| \le \epsilon` with :math:`\lambda = O(\epsilon)`.

    .. math::
        \lambda = O(\epsilon), \quad \tau = O(B_2 \epsilon^4) \le \tfrac12, \quad
        \gamma = \frac{n - B_1}{B_1 (1 - \tau)} + (1 - \tau), \quad \beta = O(B_1 \epsilon^2) \le 1, \quad
        \eta = O\Big(\frac{B_1 B_2^{1/2}}{n} \epsilon^3\Big), \quad
        T = O\Big(\frac{n}{B_1 B_2^{1/2}} \epsilon^{-5}\Big)

    where :math:`F_\lambda` has the envelopes of :math:`f_i`. For smooth :math:`g_i`, and tables that begin with an
    error of at most :math:`O(\epsilon^{3/2} B_2^{1/4})`, which :math:`\epsilon^{-3}` samples of each block give.

    Example:
        >>> p = sonex_parameters(epsilon=0.5, num_blocks=100, blocks_per_batch=2, samples_per_block=4)
        >>> p.smoothing, p.tau, p.momentum, p.lr, p.iterations
        (0.5, 0.25, 0.5, 0.005, 800)
    """
    n, b1, b2 = num_blocks, blocks_per_batch, samples_per_block
    tau = min(constant_tau * b2 * epsilon**4, 0.5)
    speed = b1 * math.sqrt(b2) / n
    return SONEXParameters(
        smoothing=constant_smoothing * epsilon,
        tau=tau,
        gamma=theory_gamma(n, b1, tau),
        momentum=1.0 - min(constant_momentum * b1 * epsilon**2, 1.0),
        lr=constant_lr * speed * epsilon**3,
        iterations=round_up(constant_iterations / speed / epsilon**5),
    )


@checked
def alexr2_parameters(
    *,
    epsilon: float,
    num_blocks: int,
    blocks_per_batch: int,
    samples_per_block: int,
    constant_smoothing: float = 1.0,
    constant_tau: float = 1.0,
    constant_lr: float = 1.0,
    constant_inner_steps: float = 1.0,
    constant_iterations: float = 1.0,
    lipschitz_outer: float | None = None,
    rho_inner: float | None = None,
    dim: int = 1,
) -> ALEXR2Parameters:
    r"""Parameters of ALEXR2, for a gradient of :math:`F_{\lambda,\nu}` of norm at most :math:`\epsilon`.

    .. math::
        \lambda = O(\epsilon), \quad \tau = O(B_2 \epsilon^3) \le \tfrac12, \quad
        \eta = O\Big(\frac{B_1 B_2}{n} \epsilon^3\Big), \quad
        K = \tilde O\Big(\frac{n}{B_1 B_2} \epsilon^{-3}\Big), \quad
        T = \tilde O\Big(\frac{n}{B_1 B_2} \epsilon^{-5}\Big), \quad
        \frac1\nu = 2 \sqrt{d_1}\, \rho_g C_f

    with :math:`K` inner steps for each of :math:`O(\epsilon^{-2})` centres; a factor :math:`\log(1 / \epsilon)` of both
    is left out. For convex and non-decreasing :math:`f_i` and weakly convex :math:`g_i`: the inner problem is then
    :math:`\rho_g C_f`-strongly convex and :math:`\lambda`-strongly concave. `iterations` is a multiple of
    `inner_steps`.

    Example:
        >>> sizes = dict(num_blocks=100, blocks_per_batch=10, samples_per_block=2)
        >>> p = alexr2_parameters(epsilon=0.5, **sizes, lipschitz_outer=4.0, rho_inner=0.5)
        >>> p.smoothing, p.tau, p.lr, p.inner_steps, p.iterations, p.weight
        (0.5, 0.25, 0.025, 40, 160, 4.0)
    """
    given = all_or_none("alexr2_parameters", "weight", lipschitz_outer=lipschitz_outer, rho_inner=rho_inner)
    weight = None
    if given is not None:
        weight = 2.0 * fcco_weak_convexity(rho_outer=0.0, lipschitz_inner=0.0, dim=dim, **given)
    share = blocks_per_batch * samples_per_block / num_blocks
    inner_steps = round_up(constant_inner_steps / share / epsilon**3)
    return ALEXR2Parameters(
        smoothing=constant_smoothing * epsilon,
        tau=min(constant_tau * samples_per_block * epsilon**3, 0.5),
        lr=constant_lr * share * epsilon**3,
        inner_steps=inner_steps,
        iterations=inner_steps * round_up(constant_iterations / epsilon**2),
        weight=weight,
    )
