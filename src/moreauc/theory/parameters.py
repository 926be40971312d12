r"""What the theory asks for: weak convexity of the objective, and the parameters of every theorem.

One function per theorem of arXiv:2310.03234. Conventions that hold for all of them:

- The theorems fix parameters up to a factor, :math:`O(\cdot)`; that factor is an argument (`constant_tau` and so
  on), positive and 1 unless told. The numbers therefore show how things scale; they are not tuned.
- `epsilon` is the wanted norm of the gradient of the Moreau envelope, in [1e-20, 1e20].
- `tau` is capped where the theorem demands :math:`\tau \le 1/2` (MSVR) or :math:`\tau \le 1` (moving average). A capped
  `tau` means that `epsilon` is too large, or the batch too big, for the theorem: `lr` and `iterations` then still
  follow its formula but are not covered by it.
- `iterations` is rounded up, and is at least 1.
- `rho_bar` is None unless the Lipschitz and weak convexity constants are given, all of them. It is 0 where the problem
  is convex; any positive number serves then.

Where the paper contradicts itself, `docs/paper_notes.md` says what is implemented and why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from moreauc._checks import check_count, check_real
from moreauc.rules import theory_gamma


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
    c_f, rho_f, c_g, rho_g = _non_negative(
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
    c_f, rho_f, c_g, rho_g, c_h, l_h = _non_negative(
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
    num_blocks, blocks = _check_batch(owner, num_blocks=num_blocks, blocks_per_batch=blocks_per_batch)
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
    num_blocks, blocks = _check_batch(owner, num_blocks=num_blocks, blocks_per_batch=blocks_per_batch)
    samples = check_count(owner, "samples_per_block", samples_per_block)
    eps = _check_epsilon(owner, epsilon)
    c_tau, c_lr, c_iterations = _positive(
        owner, constant_tau=constant_tau, constant_lr=constant_lr, constant_iterations=constant_iterations
    )
    return SONXParameters(
        tau=min(c_tau * samples * eps**4, 1.0),
        gamma=0.0,
        lr=c_lr * blocks * samples / num_blocks * eps**6,
        iterations=_round_up(c_iterations * num_blocks / (blocks * samples) / eps**8),
        rho_bar=_sonx_rho_bar(owner, rho_outer, lipschitz_outer, rho_inner, lipschitz_inner, dim),
    )


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
    n1, b1 = _check_batch(owner, num_outer=num_outer, outer_per_batch=outer_per_batch)
    n2, b2 = _check_batch(owner, num_inner=num_inner, inner_per_batch=inner_per_batch)
    b3 = check_count(owner, "samples_per_pair", samples_per_pair)
    eps = _check_epsilon(owner, epsilon)
    c_tau1, c_tau2, c_lr, c_iterations = _positive(
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
        iterations=_round_up(c_iterations / speed / eps**6),
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
    n1, b1 = _check_batch(owner, num_outer=num_outer, outer_per_batch=outer_per_batch)
    n2, b2 = _check_batch(owner, num_inner=num_inner, inner_per_batch=inner_per_batch)
    b3 = check_count(owner, "samples_per_pair", samples_per_pair)
    eps = _check_epsilon(owner, epsilon)
    c_tau1, c_tau2, c_lr, c_iterations = _positive(
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
        iterations=_round_up(c_iterations * slowness / share / eps**8),
        rho_bar=rho_bar,
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
    positives, b1 = _check_batch(owner, num_positives=num_positives, positives_per_batch=positives_per_batch)
    _, b2 = _check_batch(owner, num_negatives=num_negatives, negatives_per_batch=negatives_per_batch)
    given = _all_or_none(owner, lipschitz_outer=lipschitz_outer, rho_inner=rho_inner)
    rho_bar = None if given is None else 2.0 * given[0] * given[1]
    constants = (constant_tau, constant_lr, constant_iterations)
    return _two_level_msvr(owner, epsilon, positives, b1, b2, constants, rho_bar)


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
    positives, b1 = _check_batch(owner, num_positives=num_positives, positives_per_batch=positives_per_batch)
    negatives, b2 = _check_batch(owner, num_negatives=num_negatives, negatives_per_batch=negatives_per_batch)
    b3 = check_count(owner, "instances_per_bag", instances_per_bag)
    eps = _check_epsilon(owner, epsilon)
    c_tau1, c_tau2, c_lr, c_iterations = _positive(
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
    given = _all_or_none(
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
        iterations=_round_up(c_iterations * max(max(a, b) * max(r, r_squared), last) / eps**6),
        rho_bar=rho_bar,
    )


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
    eps = _check_epsilon(owner, epsilon)
    names = ("constant_tau", "constant_lr", "constant_iterations")
    c_tau, c_lr, c_iterations = _positive(owner, **dict(zip(names, constants, strict=True)))
    tau = min(c_tau * samples * eps**4, 0.5)
    speed = rows * math.sqrt(samples) / num_rows
    return SONXParameters(
        tau=tau,
        gamma=theory_gamma(num_rows, rows, tau),
        lr=c_lr * speed * eps**4,
        iterations=_round_up(c_iterations / speed / eps**6),
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
    given = _all_or_none(
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


def _sont_rho_bar(owner: str, constants: tuple[float | None, ...], dim_middle: int, dim_inner: int) -> float | None:
    dim_middle = check_count(owner, "dim_middle", dim_middle)
    dim_inner = check_count(owner, "dim_inner", dim_inner)
    names = ("rho_outer", "lipschitz_outer", "rho_middle", "lipschitz_middle", "rho_inner", "lipschitz_inner")
    given = _all_or_none(owner, **dict(zip(names, constants, strict=True)))
    if given is None:
        return None
    rho_f, c_f, rho_g, c_g, l_h, c_h = given
    rho = tcco_weak_convexity(**dict(zip(names, given, strict=True)), dim_middle=dim_middle, dim_inner=dim_inner)
    middle = 2.0 * math.sqrt(dim_middle) * rho_g * c_f * c_h**2
    return rho + 4.0 * rho_f * c_g**2 * c_h**2 + middle + math.sqrt(dim_inner) * c_f * c_g * l_h


def _check_epsilon(owner: str, epsilon: float) -> float:
    # Beyond this range the powers of epsilon leave double precision.
    return check_real(owner, "epsilon", epsilon, low=1e-20, high=1e20)


def _check_batch(owner: str, **sizes: int) -> tuple[int, int]:
    """Check the two named numbers: the size of a set, then how many of it are in a batch."""
    (set_name, size), (batch_name, batch) = sizes.items()
    size, batch = check_count(owner, set_name, size), check_count(owner, batch_name, batch)
    if batch > size:
        raise ValueError(f"{owner}: {batch_name} must be at most {set_name} = {size}, got {batch}")
    return size, batch


def _positive(owner: str, **values: float) -> list[float]:
    return [check_real(owner, name, value, low=0.0, low_open=True) for name, value in values.items()]


def _non_negative(owner: str, **values: float) -> list[float]:
    return [check_real(owner, name, value, low=0.0) for name, value in values.items()]


def _all_or_none(owner: str, **values: float | None) -> list[float] | None:
    """Return the checked values, or None where none is given."""
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == len(values):
        return None
    if missing:
        raise ValueError(f"{owner}: rho_bar needs all of {', '.join(values)} or none, got no {', '.join(missing)}")
    return _non_negative(owner, **{name: value for name, value in values.items() if value is not None})


def _round_up(value: float) -> int:
    # The factor keeps the rounding errors of an exact integer from pushing it to the next one.
    return max(1, math.ceil(value * (1.0 - 1e-12)))
