r"""How far the tables are from what they track: the error bounds of the lemmas.

All bounds have the form :math:`(1 - \mu)^t e_0 + R` for the mean norm of a table's error after :math:`t` updates, and
:math:`(1 - \mu)^{2t} e_0 + R'` for the mean squared norm (`squared=True`), where :math:`R'` sums the squares of the
terms of :math:`R`. They hold in expectation. Arguments that mean the same in every one of them:

- `step`: number of updates done, :math:`t + 1` in the paper; 0 gives the initial error plus the constant terms;
- `initial_error`: mean over the rows of the error norm at the start, or of its square with `squared=True`; at least 0;
- `tau`, `tau1` (inner table), `tau2` (outer table): averaging weights, above 0 and at most 1/2, or at most 1 with
  `moving_average`;
- `moving_average`: whether the correction weights are 0, which the bounds otherwise assume to be those of
  :func:`moreauc.core.rules.theory_gamma`;
- `lr`: step size :math:`\eta`, at least 0, of the weights and of the thresholds;
- `sigma`: root of the variance bound :math:`\sigma^2` of one sample, at least 0; for a table of tables that of
  :math:`g_i` over the inner functions;
- `lipschitz`: Lipschitz constant, at least 0, of what the table tracks; `lipschitz_middle` and `lipschitz_inner` are
  :math:`C_g` and :math:`C_h`;
- `gradient_bound`: :math:`M`, at least 0, with :math:`E\|G_t\|^2 \le M^2`; for a table of tables it also bounds what
  the inner table holds, and the root mean square of :math:`h`;
- set and batch sizes: as in :mod:`moreauc.theory.parameters`.
"""

from __future__ import annotations

import math

from moreauc._checks import check_count, check_real
from moreauc.theory.parameters import check_batch, non_negative


def sonx_table_bound(
    *,
    step: int,
    initial_error: float,
    tau: float,
    lr: float,
    num_blocks: int,
    blocks_per_batch: int,
    samples_per_block: int,
    sigma: float,
    lipschitz: float,
    gradient_bound: float,
    moving_average: bool = False,
    squared: bool = False,
) -> float:
    r"""Bound of :math:`\frac1n \sum_i \|u_{i,t} - g_i(w_t)\|` for SONX (lemmas `lem:16` and `lem:19`).

    .. math::
        \Big(1 - \frac{B_1 \tau}{2n}\Big)^t e_0 + \frac{2 \tau^{1/2} \sigma}{B_2^{1/2}}
        + \frac{4 n C_g M \eta}{B_1 \tau^{1/2}}

    and with the moving average, where :math:`C_g` is that of the mean :math:`g_i` only,

    .. math::
        \Big(1 - \frac{B_1 \tau}{4n}\Big)^t e_0 + \frac{2 \sqrt2 \tau^{1/2} \sigma}{B_2^{1/2}}
        + \frac{4 \sqrt2 n C_g M \eta}{B_1 \tau}.

    The proof of `thm:1` quotes the squared bound with exponent :math:`t`; that of the lemma has :math:`2t`, as here.

    Example:
        >>> sizes = dict(num_blocks=100, blocks_per_batch=50, samples_per_block=4)
        >>> sonx_table_bound(
        ...     step=1, initial_error=8.0, tau=0.25, lr=0.0625, **sizes, sigma=2.0, lipschitz=1.0, gradient_bound=1.0
        ... )
        9.5
    """
    owner = "sonx_table_bound"
    n, b1 = check_batch(owner, num_blocks=num_blocks, blocks_per_batch=blocks_per_batch)
    b2 = check_count(owner, "samples_per_block", samples_per_block)
    tau = _check_tau(owner, "tau", tau, moving_average)
    lr, sigma, c_g, m = non_negative(owner, lr=lr, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    terms = _terms(tau, sigma, b2, n / b1 * c_g * m * lr, moving_average)
    return _bound(owner, step, initial_error, b1 / n * tau, terms, moving_average, squared)


def tpauc_table_bound(
    *,
    step: int,
    initial_error: float,
    tau: float,
    lr: float,
    num_positives: int,
    num_negatives: int,
    positives_per_batch: int,
    negatives_per_batch: int,
    sigma: float,
    lipschitz: float,
    gradient_bound: float,
) -> float:
    r"""Bound of :math:`\frac1{n_+} \sum_i \|u_{i,t} - \psi_i(w_t, s_{i,t})\|` for Algorithm 2 (lemma `lem:22`).

    .. math::
        \Big(1 - \frac{B_1 \tau}{2 n_+}\Big)^t e_0 + \frac{2 \tau^{1/2} \sigma}{B_2^{1/2}}
        + \frac{4 (n_+ + n_+^{1/2}) C_\psi M \eta}{B_1 \tau^{1/2}}

    :math:`C_\psi` is that in :math:`(w, s_i)`; :math:`M` also bounds the thresholds' gradient. The lemma has the
    coarser :math:`8 n_+`; this is what the proof of `thm:6` uses. The paper gives no squared bound.

    Example:
        >>> sizes = dict(num_positives=100, num_negatives=9, positives_per_batch=50, negatives_per_batch=4)
        >>> tpauc_table_bound(
        ...     step=1, initial_error=8.0, tau=0.25, lr=0.0625, **sizes, sigma=2.0, lipschitz=1.0, gradient_bound=1.0
        ... )
        9.6
    """
    owner = "tpauc_table_bound"
    n, b1 = check_batch(owner, num_positives=num_positives, positives_per_batch=positives_per_batch)
    _, b2 = check_batch(owner, num_negatives=num_negatives, negatives_per_batch=negatives_per_batch)
    tau = _check_tau(owner, "tau", tau, False)
    lr, sigma, c_psi, m = non_negative(owner, lr=lr, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    terms = _terms(tau, sigma, b2, (n + math.sqrt(n)) / b1 * c_psi * m * lr, False)
    return _bound(owner, step, initial_error, b1 / n * tau, terms, False, False)


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
    moving_average: bool = False,
    squared: bool = False,
) -> float:
    r"""Bound of :math:`\frac1{n_1 n_2} \sum_{ij} \|v_{ij,t} - h_{ij}(w_t)\|` for SONT (lemmas `lem:13`, `lem:20`).

    .. math::
        \Big(1 - \frac{B_1 B_2 \tau_1}{2 n_1 n_2}\Big)^t e_0 + \frac{2 \tau_1^{1/2} \sigma}{B_3^{1/2}}
        + \frac{4 n_1 n_2 C_h M \eta}{B_1 B_2 \tau_1^{1/2}}

    and with the moving average, where :math:`C_h` is that of the mean :math:`h_{ij}` only,

    .. math::
        \Big(1 - \frac{B_1 B_2 \tau_1}{4 n_1 n_2}\Big)^t e_0 + \frac{2 \sqrt2 \tau_1^{1/2} \sigma}{B_3^{1/2}}
        + \frac{4 \sqrt2 n_1 n_2 C_h M \eta}{B_1 B_2 \tau_1}.

    The proof of `thm:3` quotes the first with :math:`\sqrt{C_h}` (and :math:`C_h` in the squared bound), a slip.

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
    tau1 = _check_tau(owner, "tau1", tau1, moving_average)
    lr, sigma, c_h, m = non_negative(owner, lr=lr, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    share = b1 * b2 / (n1 * n2)
    terms = _terms(tau1, sigma, b3, c_h * m * lr / share, moving_average)
    return _bound(owner, step, initial_error, share * tau1, terms, moving_average, squared)


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
    moving_average: bool = False,
    squared: bool = False,
) -> float:
    r"""Bound of :math:`\frac1{n_1} \sum_i \|u_{i,t} - \frac1{n_2} \sum_j g_i(v_{ij,t})\|`, SONT (`lem:14`, `lem:21`).

    .. math::
        \Big(1 - \frac{B_1 \tau_2}{2 n_1}\Big)^t e_0 + \frac{2 \tau_2^{1/2} \sigma}{B_2^{1/2}}
        + C_2 \Big(\frac{n_1 B_2}{B_1 n_2}\Big)^{1/2} \frac{\tau_1}{\tau_2^{1/2}}
        + C_2 \Big(\frac{n_1^3 n_2}{B_1^3 B_2}\Big)^{1/2} \frac{\eta}{\tau_2^{1/2}}, \quad
        C_2 = 8 \sqrt2\, C_g M \max\{1, C_h\}

    and with the moving average

    .. math::
        \Big(1 - \frac{B_1 \tau_2}{4 n_1}\Big)^t e_0 + \frac{2 \sqrt2 \tau_2^{1/2} \sigma}{B_2^{1/2}}
        + 4 \sqrt2\, C_g M \Big(\frac{n_1 B_2}{B_1 n_2}\Big)^{1/2} \frac{\tau_1}{\tau_2}.

    There the step size and :math:`C_h` do not enter: an inner row moves by at most :math:`\tau_1 \|v - h\|` in a step.
    :math:`M` must then satisfy :math:`E\|v_{ij,t} - h_{ij}(w_t; B_3)\|^2 \le M^2`, which the proof uses without saying
    so; a bound of :math:`v` and :math:`h` alone has to be doubled.

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
    tau1, tau2 = (_check_tau(owner, name, tau, moving_average) for name, tau in (("tau1", tau1), ("tau2", tau2)))
    lr, sigma, m = non_negative(owner, lr=lr, sigma=sigma, gradient_bound=gradient_bound)
    c_g, c_h = non_negative(owner, lipschitz_middle=lipschitz_middle, lipschitz_inner=lipschitz_inner)
    if moving_average:
        terms = _terms(tau2, sigma, b2, math.sqrt(n1 * b2 / (b1 * n2)) * c_g * m * tau1, True)
    else:
        c_2 = 8.0 * math.sqrt(2.0) * c_g * m * max(1.0, c_h)
        terms = [
            _noise(tau2, sigma, b2),
            c_2 * math.sqrt(n1 * b2 / (b1 * n2) / tau2) * tau1,
            c_2 * math.sqrt(n1**3 * n2 / (b1**3 * b2) / tau2) * lr,
        ]
    return _bound(owner, step, initial_error, b1 / n1 * tau2, terms, moving_average, squared)


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

    for positive bags, and with :math:`n_-, B_2` in place of :math:`n_+, B_1` for the `negative` ones. The lemma as
    printed leaves out :math:`B_3` and one :math:`1 / n_+`, has :math:`B_1` for negative bags and :math:`h_i(w_t)` for
    :math:`h_i(w_0)`.

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
    tau1 = _check_tau(owner, "tau1", tau1, False)
    lr, sigma, c_h, m = non_negative(owner, lr=lr, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    terms = _terms(tau1, sigma, b3, n / b * c_h * m * lr, False)
    return _bound(owner, step, initial_error, b / n * tau1, terms, False, squared)


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

    :math:`C_g` is that in :math:`(v, s_i)`, :math:`C_h` that of one bag's score; :math:`M` also bounds the thresholds'
    gradient. The lemma as printed leaves out :math:`B_2^{1/2}`. In the squared bound each of the six terms is squared
    by itself.

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
    tau1, tau2 = _check_tau(owner, "tau1", tau1, False), _check_tau(owner, "tau2", tau2, False)
    lr, sigma, m = non_negative(owner, lr=lr, sigma=sigma, gradient_bound=gradient_bound)
    c_g, c_h = non_negative(owner, lipschitz_middle=lipschitz_middle, lipschitz_inner=lipschitz_inner)
    a, b = n / b1, n_minus / b2
    scale = 16.0 * math.sqrt(2.0) * c_g * m * max(1.0, c_h) / math.sqrt(tau2)
    terms = [
        _noise(tau2, sigma, b2),
        scale * a * math.sqrt(1.0 / a) * tau1,
        scale * a * math.sqrt(1.0 / b) * tau1,
        scale * a * math.sqrt(a) * lr,
        scale * a * math.sqrt(b) * lr,
        scale * math.sqrt(n) / b1 * lr,
    ]
    return _bound(owner, step, initial_error, tau2 / a, terms, False, squared)


def _check_tau(owner: str, name: str, tau: float, moving_average: bool) -> float:
    return check_real(owner, name, tau, low=0.0, high=1.0 if moving_average else 0.5, low_open=True)


def _noise(tau: float, sigma: float, samples: int) -> float:
    return 2.0 * math.sqrt(tau / samples) * sigma


def _terms(tau: float, sigma: float, samples: int, drift: float, moving_average: bool) -> list[float]:
    """Return the terms for the noise of the samples and for the drift of what is tracked."""
    if moving_average:
        return [math.sqrt(2.0) * _noise(tau, sigma, samples), 4.0 * math.sqrt(2.0) * drift / tau]
    return [_noise(tau, sigma, samples), 4.0 * drift / math.sqrt(tau)]


def _bound(
    owner: str, step: int, initial_error: float, rate: float, terms: list[float], moving_average: bool, squared: bool
) -> float:
    """Return the decayed initial error plus the terms, or plus their squares with the squared decay."""
    step = check_count(owner, "step", step, minimum=0)
    initial_error = check_real(owner, "initial_error", initial_error, low=0.0)
    decay = 1.0 - rate / (4.0 if moving_average else 2.0)
    if squared:
        return decay ** (2 * step) * initial_error + sum(term**2 for term in terms)
    return decay**step * initial_error + sum(terms)
