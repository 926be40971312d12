r"""How far the tables are from what they track: the error bounds of the lemmas.

All bounds have the form :math:`(1 - \mu)^t e_0 + R` for the mean norm of a table's error after :math:`t` updates, and
:math:`(1 - \mu)^{2t} e_0 + R'` for the mean squared norm (`squared=True`), where :math:`R'` sums the squares of the
terms of :math:`R`. They hold in expectation.
"""

from __future__ import annotations

import math

from moreauc.theory.parameters import checked


@checked
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
    visits = num_blocks / blocks_per_batch
    terms = _terms(tau, sigma, samples_per_block, visits * lipschitz * gradient_bound * lr, moving_average)
    return _bound(step, initial_error, tau / visits, terms, moving_average, squared)


@checked
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
    drift = (num_positives + math.sqrt(num_positives)) / positives_per_batch * lipschitz * gradient_bound * lr
    terms = _terms(tau, sigma, negatives_per_batch, drift)
    return _bound(step, initial_error, tau * positives_per_batch / num_positives, terms)


@checked
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
    visits = num_outer * num_inner / (outer_per_batch * inner_per_batch)
    terms = _terms(tau1, sigma, samples_per_pair, visits * lipschitz * gradient_bound * lr, moving_average)
    return _bound(step, initial_error, tau1 / visits, terms, moving_average, squared)


@checked
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
    a, b = num_outer / outer_per_batch, num_inner / inner_per_batch
    scale = lipschitz_middle * gradient_bound
    if moving_average:
        terms = _terms(tau2, sigma, inner_per_batch, math.sqrt(a / b) * scale * tau1, True)
    else:
        c_2 = 8.0 * math.sqrt(2.0) * scale * max(1.0, lipschitz_inner)
        terms = [
            _noise(tau2, sigma, inner_per_batch),
            c_2 * math.sqrt(a / b / tau2) * tau1,
            c_2 * math.sqrt(a**3 * b / tau2) * lr,
        ]
    return _bound(step, initial_error, tau2 / a, terms, moving_average, squared)


@checked
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
    visits = num_negatives / negatives_per_batch if negative else num_positives / positives_per_batch
    terms = _terms(tau1, sigma, instances_per_bag, visits * lipschitz * gradient_bound * lr)
    return _bound(step, initial_error, tau1 / visits, terms, squared=squared)


@checked
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
    a, b = num_positives / positives_per_batch, num_negatives / negatives_per_batch
    scale = 16.0 * math.sqrt(2.0 / tau2) * lipschitz_middle * gradient_bound * max(1.0, lipschitz_inner)
    terms = [
        _noise(tau2, sigma, negatives_per_batch),
        scale * math.sqrt(a) * tau1,
        scale * a * math.sqrt(1.0 / b) * tau1,
        scale * a * math.sqrt(a) * lr,
        scale * a * math.sqrt(b) * lr,
        scale * math.sqrt(num_positives) / positives_per_batch * lr,
    ]
    return _bound(step, initial_error, tau2 / a, terms, squared=squared)


def _noise(tau: float, sigma: float, samples: int) -> float:
    return 2.0 * math.sqrt(tau / samples) * sigma


def _terms(tau: float, sigma: float, samples: int, drift: float, moving_average: bool = False) -> list[float]:
    """Return the terms for the noise of the samples and for the drift of what is tracked."""
    if moving_average:
        return [math.sqrt(2.0) * _noise(tau, sigma, samples), 4.0 * math.sqrt(2.0) * drift / tau]
    return [_noise(tau, sigma, samples), 4.0 * drift / math.sqrt(tau)]


def _bound(
    step: int,
    initial_error: float,
    rate: float,
    terms: list[float],
    moving_average: bool = False,
    squared: bool = False,
) -> float:
    """Return the decayed initial error plus the terms, or plus their squares with the squared decay."""
    power = 2 if squared else 1
    decay = 1.0 - rate / (4.0 if moving_average else 2.0)
    return decay ** (power * step) * initial_error + sum(term**power for term in terms)
