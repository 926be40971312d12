r"""Parameters of the theorems, and the weak convexity of the objectives that they rest on.

Arguments are keywords and mean the same in every function. Without the constants of the problem `rho_bar` is None; it
is 0 where the problem is convex: any positive number can be used then. `tau` is capped where the theorem demands
:math:`\tau \le 1/2` (MSVR) or :math:`\tau \le 1` (moving average). A capped `tau` means that `epsilon` is too large, or
the batch too big, for the theorem: `lr` and `iterations` then still follow its formula but are not covered by it.
`iterations` is rounded up, and is at least 1. `docs/paper_notes.md` derives what departs from the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import cleandoc, signature
from typing import Any, TypeVar, cast

from moreauc._checks import check_count, check_real
from moreauc.core.tables import theory_gamma

_SETS = {
    "blocks_per_batch": "num_blocks",
    "outer_per_batch": "num_outer",
    "inner_per_batch": "num_inner",
    "positives_per_batch": "num_positives",
    "negatives_per_batch": "num_negatives",
}
# What the arguments of all functions of this module mean, by name.
_SIZE = "at least 1"
_CONSTANT = "positive factor of `{}`, which theory fixes only up to a factor."
_TOGETHER = "at least 0; where None is allowed, these constants are given all or not at all"
_MEANINGS = {
    "epsilon": "wanted norm of the gradient of the Moreau envelope, in [1e-20, 1e20].",
    "num_blocks": rf"number of blocks :math:`n`, {_SIZE}.",
    "blocks_per_batch": r":math:`B_1`, from 1 to `num_blocks`.",
    "samples_per_block": rf":math:`B_2`, {_SIZE}.",
    "num_outer": rf"number of outer items :math:`n_1`, {_SIZE}.",
    "num_inner": rf"number of inner items :math:`n_2`, {_SIZE}.",
    "outer_per_batch": r":math:`B_1`, from 1 to `num_outer`.",
    "inner_per_batch": r":math:`B_2`, from 1 to `num_inner`.",
    "samples_per_pair": rf":math:`B_3`, {_SIZE}.",
    "num_positives": rf":math:`n_+`, {_SIZE}.",
    "num_negatives": rf":math:`n_-`, {_SIZE}.",
    "positives_per_batch": r":math:`B_1`, from 1 to `num_positives`.",
    "negatives_per_batch": r":math:`B_2`, from 1 to `num_negatives`.",
    "instances_per_bag": rf":math:`B_3`, {_SIZE}.",
    "rho_outer": rf"weak convexity :math:`\rho_f` of the non-decreasing :math:`f_i`, {_TOGETHER}.",
    "lipschitz_outer": rf"Lipschitz constant :math:`C_f` of :math:`f_i`, {_TOGETHER}.",
    "rho_middle": rf"weak convexity :math:`\rho_g` of :math:`g_i`, {_TOGETHER}.",
    "lipschitz_middle": r"Lipschitz constant :math:`C_g` of the middle functions, at least 0.",
    "rho_inner": rf"weak convexity of the innermost functions, {_TOGETHER}.",
    "lipschitz_inner": r"Lipschitz constant of the innermost functions, at least 0.",
    "dim": r"number :math:`d_1` of outputs of :math:`g_i`, at least 1.",
    "dim_middle": r"number :math:`d_1` of outputs of :math:`g_i`, at least 1.",
    "dim_inner": r"number :math:`d_2` of outputs of :math:`h_{ij}`, at least 1.",
    "moving_average": "whether the correction weights are 0 instead of those of the theory.",
    "constant_tau": _CONSTANT.format("tau"),
    "constant_tau1": _CONSTANT.format("tau1"),
    "constant_tau2": _CONSTANT.format("tau2"),
    "constant_lr": _CONSTANT.format("lr"),
    "constant_iterations": _CONSTANT.format("iterations"),
}
_F = TypeVar("_F", bound=Callable[..., object])


def _checked(function: _F) -> _F:
    """Check the keyword arguments of a function by their names, and describe them in its docstring."""
    owner, parameters = function.__name__, signature(function).parameters

    @wraps(function)
    def call(**given: Any) -> object:
        values: dict[str, Any] = {
            name: None if value is None and parameters[name].default is None else _check(owner, name, value)
            for name, value in given.items()
        }
        for batch, whole in _SETS.items():
            if batch in values and values[batch] > values.get(whole, math.inf):
                raise ValueError(f"{owner}: {batch} must be at most {whole} = {values[whole]}, got {values[batch]}")
        return function(**values)

    if function.__doc__:  # the arguments come before the example
        described = "".join(f"    {name}: {_MEANINGS[name]}\n" for name in parameters)
        text, example, rest = cleandoc(function.__doc__).partition("Example:\n")
        call.__doc__ = f"{text.rstrip()}\n\nArgs:\n{described}\n{example}{rest}"
    return cast(_F, call)


def _check(owner: str, name: str, value: Any) -> Any:
    if name == "epsilon":  # beyond this range its powers leave double precision
        return check_real(owner, name, value, low=1e-20, high=1e20)
    if name.startswith("constant_"):
        return check_real(owner, name, value, low=0.0, low_open=True)
    if name.startswith(("rho_", "lipschitz")):
        return check_real(owner, name, value, low=0.0)
    return value if name == "moving_average" else check_count(owner, name, value)


def _all_or_none(owner: str, **values: float | None) -> dict[str, float] | None:
    """Return the constants that `rho_bar` needs, by name, or None where none is given."""
    given = {name: value for name, value in values.items() if value is not None}
    missing = [name for name in values if name not in given]
    if given and missing:
        raise ValueError(f"{owner}: rho_bar needs all of {', '.join(values)} or none, got no {', '.join(missing)}")
    return given or None


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
    r"""Parameters of a three-level method: weights of the inner table :math:`v`, then of the outer table :math:`u`.

    The other fields are those of :class:`SONXParameters`.
    """

    tau1: float
    tau2: float
    gamma1: float
    gamma2: float
    lr: float
    iterations: int
    rho_bar: float | None


@dataclass(frozen=True, kw_only=True)
class MultiInstanceTPAUCParameters(SONTParameters):
    r"""Parameters of SONT for bags, with correction weights for three sets of rows.

    `gamma1` is that of :math:`v` for positive bags, `gamma2` for negative bags, `gamma3` that of :math:`u`.
    """

    gamma3: float


@_checked
def fcco_weak_convexity(
    *, rho_outer: float, lipschitz_outer: float, rho_inner: float, lipschitz_inner: float, dim: int = 1
) -> float:
    r"""Weak convexity of :math:`F(w) = \frac1n \sum_i f_i(g_i(w))` (proposition `prop:1`).

    .. math:: \rho_F = \sqrt{d_1}\, \rho_g C_f + \rho_f C_g^2

    `rho_inner` is that of each output of :math:`g_i`. :math:`F + \frac{\rho_F}2 \|\cdot\|^2` is convex.

    Example:
        >>> fcco_weak_convexity(rho_outer=1.0, lipschitz_outer=2.0, rho_inner=3.0, lipschitz_inner=4.0, dim=4)
        28.0
    """
    return math.sqrt(dim) * rho_inner * lipschitz_outer + rho_outer * lipschitz_inner**2


@_checked
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

    `rho_inner` is :math:`L_h`: the weak convexity of :math:`h_{ij}` where :math:`g_i` is non-decreasing, its smoothness
    where :math:`g_i` is non-increasing.

    Example:
        >>> constants = dict(rho_outer=1.0, lipschitz_outer=2.0, rho_middle=3.0, lipschitz_middle=4.0)
        >>> tcco_weak_convexity(**constants, rho_inner=5.0, lipschitz_inner=6.0)
        832.0
    """
    middle = math.sqrt(dim_inner) * rho_inner * lipschitz_middle + rho_middle * lipschitz_inner**2
    return math.sqrt(dim_middle) * middle * lipschitz_outer + rho_outer * lipschitz_middle**2 * lipschitz_inner**2


@_checked
def sonx_parameters(
    *,
    epsilon: float,
    num_blocks: int,
    blocks_per_batch: int,
    samples_per_block: int,
    moving_average: bool = False,
    constant_tau: float = 1.0,
    constant_lr: float = 1.0,
    constant_iterations: float = 1.0,
    rho_outer: float | None = None,
    lipschitz_outer: float | None = None,
    rho_inner: float | None = None,
    lipschitz_inner: float | None = None,
    dim: int = 1,
) -> SONXParameters:
    r"""Parameters of SONX: Algorithm 1 with MSVR (theorem `thm:1`), or Algorithm 6 with `moving_average` (`thm:4`).

    .. math::
        \tau = O(B_2 \epsilon^4) \le \tfrac12, \quad
        \gamma = \frac{n - B_1}{B_1 (1 - \tau)} + (1 - \tau), \quad
        \eta = O\Big(\frac{B_1 B_2^{1/2}}{n} \epsilon^4\Big), \quad
        T = O\Big(\frac{n}{B_1 B_2^{1/2}} \epsilon^{-6}\Big)

    and with the moving average

    .. math::
        \tau = O(B_2 \epsilon^4) \le 1, \quad \gamma = 0, \quad
        \eta = O\Big(\frac{B_1 B_2}{n} \epsilon^6\Big), \quad
        T = O\Big(\frac{n}{B_1 B_2} \epsilon^{-8}\Big).

    In both, :math:`\bar\rho = \rho_F + \sqrt{d_1}\, \rho_g C_f + 2 \rho_f C_g^2`, with :math:`\rho_F` and the constants
    of :func:`fcco_weak_convexity`.

    Example:
        >>> sizes = dict(num_blocks=100, blocks_per_batch=10, samples_per_block=4)
        >>> p = sonx_parameters(epsilon=0.5, **sizes)
        >>> p.tau, p.gamma, p.lr, p.iterations
        (0.25, 12.75, 0.0125, 320)
    """
    given = _all_or_none(
        "sonx_parameters",
        rho_outer=rho_outer,
        lipschitz_outer=lipschitz_outer,
        rho_inner=rho_inner,
        lipschitz_inner=lipschitz_inner,
    )
    rho_bar = None
    if given is not None:
        rho_f, c_f, rho_g, c_g = given.values()
        rho_bar = fcco_weak_convexity(**given, dim=dim) + math.sqrt(dim) * rho_g * c_f + 2.0 * rho_f * c_g**2
    n, b1, b2 = num_blocks, blocks_per_batch, samples_per_block
    if not moving_average:
        return _two_level_msvr(epsilon, n, b1, b2, constant_tau, constant_lr, constant_iterations, rho_bar)
    return SONXParameters(
        tau=min(constant_tau * b2 * epsilon**4, 1.0),
        gamma=0.0,
        lr=constant_lr * b1 * b2 / n * epsilon**6,
        iterations=_round_up(constant_iterations * n / (b1 * b2) / epsilon**8),
        rho_bar=rho_bar,
    )


@_checked
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

    They are those of :func:`sonx_parameters` with MSVR and :math:`n_+` for :math:`n`, and

    .. math:: \bar\rho = \rho_F + \rho_\psi C_f, \quad \rho_F = \rho_\psi C_f,

    where `lipschitz_outer` is :math:`C_f`, the bound of :math:`\partial_u f_i`, and `rho_inner` the weak convexity
    :math:`\rho_\psi` of :math:`\psi_i(w, s_i)`. The envelope is that of :math:`F(w, s, s')`. :math:`\rho_F` is `prop:1`
    with a convex :math:`f_i`; lemma `lem:17` drops the factor :math:`C_f = 1 / \alpha` from it.

    Example:
        >>> sizes = dict(num_positives=100, num_negatives=900, positives_per_batch=10, negatives_per_batch=4)
        >>> p = tpauc_parameters(epsilon=0.5, **sizes)
        >>> p.tau, p.gamma, p.lr, p.iterations
        (0.25, 12.75, 0.0125, 320)
    """
    given = _all_or_none("tpauc_parameters", lipschitz_outer=lipschitz_outer, rho_inner=rho_inner)
    rho_bar = None if given is None else 2.0 * math.prod(given.values())
    sizes = num_positives, positives_per_batch, negatives_per_batch
    return _two_level_msvr(epsilon, *sizes, constant_tau, constant_lr, constant_iterations, rho_bar)


@_checked
def sont_parameters(
    *,
    epsilon: float,
    num_outer: int,
    num_inner: int,
    outer_per_batch: int,
    inner_per_batch: int,
    samples_per_pair: int,
    moving_average: bool = False,
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
    r"""Parameters of SONT: Algorithm 3 with MSVR (theorem `thm:3`), or Algorithm 7 with `moving_average` (`thm:5`).

    With :math:`a = (n_1 / (B_1 n_2))^{1/2}`,

    .. math::
        \tau_1 &= O(\min\{B_3, 1 / a\}\, \epsilon^4) \le \tfrac12, \quad \tau_2 = O(B_2 \epsilon^4) \le \tfrac12, \\
        \gamma_1 &= \frac{n_1 n_2 - B_1 B_2}{B_1 B_2 (1 - \tau_1)} + (1 - \tau_1), \quad
        \gamma_2 = \frac{n_1 - B_1}{B_1 (1 - \tau_2)} + (1 - \tau_2), \\
        \eta &= O\Big(\min\{B_3^{1/2}, a^{-1/2}, a^{-1}\} \frac{B_1 B_2}{n_1 n_2} \epsilon^4\Big), \quad
        T = O\Big(\max\{B_3^{-1/2}, a^{1/2}, a\} \frac{n_1 n_2}{B_1 B_2} \epsilon^{-6}\Big)

    and with the moving average

    .. math::
        \tau_1 &= O(m) \le 1, \quad
        m = \min\Big\{B_3 \epsilon^4, \Big(\frac{B_1 n_2}{n_1 B_2}\Big)^{1/2} B_2 \epsilon^6\Big\}, \quad
        \tau_2 = O(B_2 \epsilon^4) \le 1, \quad \gamma_1 = \gamma_2 = 0, \\
        \eta &= O\Big(m \frac{B_1 B_2}{n_1 n_2} \epsilon^2\Big), \quad
        T = O\Big(\max\Big\{\frac1{B_3}, \Big(\frac{n_1}{B_1 B_2 n_2}\Big)^{1/2} \epsilon^{-2}\Big\}
        \frac{n_1 n_2}{B_1 B_2} \epsilon^{-8}\Big).

    In both, with :math:`\rho_F` and the constants of :func:`tcco_weak_convexity`,

    .. math::
        \bar\rho = \rho_F + 4 \rho_f C_g^2 C_h^2 + 2 \sqrt{d_1}\, \rho_g C_f C_h^2 + \sqrt{d_2}\, C_f C_g L_h.

    Example:
        >>> sizes = dict(num_outer=16, num_inner=8, outer_per_batch=2, inner_per_batch=4, samples_per_pair=1)
        >>> p = sont_parameters(epsilon=0.5, **sizes)
        >>> p.tau1, p.tau2, p.lr, p.iterations
        (0.0625, 0.25, 0.00390625, 1024)
    """
    given = _all_or_none(
        "sont_parameters",
        rho_outer=rho_outer,
        lipschitz_outer=lipschitz_outer,
        rho_middle=rho_middle,
        lipschitz_middle=lipschitz_middle,
        rho_inner=rho_inner,
        lipschitz_inner=lipschitz_inner,
    )
    rho_bar = None
    if given is not None:
        rho_f, c_f, rho_g, c_g, l_h, c_h = given.values()
        rho_bar = tcco_weak_convexity(**given, dim_middle=dim_middle, dim_inner=dim_inner)
        rho_bar += 4.0 * rho_f * c_g**2 * c_h**2 + 2.0 * math.sqrt(dim_middle) * rho_g * c_f * c_h**2
        rho_bar += math.sqrt(dim_inner) * c_f * c_g * l_h
    n1, n2, b1, b2, b3 = num_outer, num_inner, outer_per_batch, inner_per_batch, samples_per_pair
    share = b1 * b2 / (n1 * n2)
    if moving_average:
        weight = min(b3 * epsilon**4, math.sqrt(b1 * n2 / (n1 * b2)) * b2 * epsilon**6)
        lr = weight * share * epsilon**2
        iterations = max(1.0 / b3, math.sqrt(n1 / (b1 * b2 * n2)) / epsilon**2) / share / epsilon**8
        limit = 1.0
    else:
        a = math.sqrt(n1 / (b1 * n2))
        speed = min(math.sqrt(b3), 1.0 / math.sqrt(a), 1.0 / a) * share
        weight = min(b3, 1.0 / a) * epsilon**4
        lr, iterations = speed * epsilon**4, 1.0 / speed / epsilon**6
        limit = 0.5
    tau1, tau2 = min(constant_tau1 * weight, limit), min(constant_tau2 * b2 * epsilon**4, limit)
    return SONTParameters(
        tau1=tau1,
        tau2=tau2,
        gamma1=0.0 if moving_average else theory_gamma(n1 * n2, b1 * b2, tau1),
        gamma2=0.0 if moving_average else theory_gamma(n1, b1, tau2),
        lr=constant_lr * lr,
        iterations=_round_up(constant_iterations * iterations),
        rho_bar=rho_bar,
    )


@_checked
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

    :math:`C_f` bounds :math:`\partial_u f_i`, :math:`\rho_g` and :math:`C_g` are those of :math:`g_i(v, s_i)`,
    :math:`L_h` (`rho_inner`) the weak convexity of the difference :math:`h_j - h_i`, twice the smoothness of one score,
    and :math:`C_h` the Lipschitz constant of one bag's score.

    Example:
        >>> sizes = dict(num_positives=16, num_negatives=64, positives_per_batch=1, negatives_per_batch=4)
        >>> p = multi_instance_tpauc_parameters(epsilon=0.5, **sizes, instances_per_bag=1)
        >>> p.tau1, p.tau2, p.iterations
        (0.03125, 0.25, 2048)
    """
    given = _all_or_none(
        "multi_instance_tpauc_parameters",
        lipschitz_outer=lipschitz_outer,
        rho_middle=rho_middle,
        lipschitz_middle=lipschitz_middle,
        rho_inner=rho_inner,
        lipschitz_inner=lipschitz_inner,
    )
    rho_bar = None
    if given is not None:
        c_f, rho_g, c_g, l_h, c_h = given.values()
        rho_objective = c_f * (c_g * l_h + 4.0 * rho_g * c_h**2)
        rho_bar = rho_objective + rho_g * c_f + 8.0 * rho_g * c_f * c_h**2 + c_f * c_g * l_h
    b2 = negatives_per_batch
    a, b = num_positives / positives_per_batch, num_negatives / b2
    r_squared = max(1.0 / instances_per_bag, a * max(a**-0.5, b**-0.5) / math.sqrt(b2))
    r = math.sqrt(r_squared)
    last = a * math.sqrt(max(a, b) / b2)
    tau1 = min(constant_tau1 / r_squared * epsilon**4, 0.5)
    tau2 = min(constant_tau2 * b2 * epsilon**4, 0.5)
    return MultiInstanceTPAUCParameters(
        tau1=tau1,
        tau2=tau2,
        gamma1=theory_gamma(num_positives, positives_per_batch, tau1),
        gamma2=theory_gamma(num_negatives, b2, tau1),
        gamma3=theory_gamma(num_positives, positives_per_batch, tau2),
        lr=constant_lr * epsilon**4 / max(max(a, b) * r, last),
        iterations=_round_up(constant_iterations * max(max(a, b) * max(r, r_squared), last) / epsilon**6),
        rho_bar=rho_bar,
    )


def _two_level_msvr(
    epsilon: float,
    num_rows: int,
    rows: int,
    samples: int,
    constant_tau: float,
    constant_lr: float,
    constant_iterations: float,
    rho_bar: float | None,
) -> SONXParameters:
    """Parameters that `thm:1` and `thm:6` share."""
    tau = min(constant_tau * samples * epsilon**4, 0.5)
    speed = rows * math.sqrt(samples) / num_rows
    return SONXParameters(
        tau=tau,
        gamma=theory_gamma(num_rows, rows, tau),
        lr=constant_lr * speed * epsilon**4,
        iterations=_round_up(constant_iterations / speed / epsilon**6),
        rho_bar=rho_bar,
    )


def _round_up(value: float) -> int:
    """Return the next integer, at least 1."""
    # the factor keeps the rounding errors of an exact integer from pushing it to the next one
    return max(1, math.ceil(value * (1.0 - 1e-12)))
