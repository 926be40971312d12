r"""How far the tables are from what they track: the error bounds of the lemmas.

All bounds have the form :math:`(1 - \mu)^t e_0 + R` for the mean norm of a table's error after :math:`t` updates, and
:math:`(1 - \mu)^{2t} e_0 + R'` for the mean squared norm (`squared=True`), where :math:`R'` sums the squares of the
terms of :math:`R`. They hold in expectation. Arguments that mean the same in every function:

- `step`: number of updates done, :math:`t + 1` in the paper; 0 gives the initial error plus the constant terms.
- `initial_error`: mean over the rows of the error norm at the start, or of its square with `squared=True`; at least 0.
- `lr`: step size :math:`\eta`, at least 0.
- `sigma`: root of the variance bound :math:`\sigma^2` of one sample, at least 0.
- `gradient_bound`: :math:`M`, at least 0, with :math:`E\|G_t\|^2 \le M^2`; for a table of tables it bounds in the same
  way what the inner table holds.
- set and batch sizes: at least 1, a batch at most as large as its set.

The lemmas are those of arXiv:2310.03234. Statement and proof differ in several of them; what is implemented follows the
proof, and `docs/paper_notes.md` lists the differences.
"""

from __future__ import annotations

import math

from moreauc._checks import check_count, check_real
from moreauc.theory.parameters import _check_batch, _non_negative


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
    squared: bool = False,
) -> float:
    r"""Bound of :math:`\frac1n \sum_i \|u_{i,t} - g_i(w_t)\|` for SONX with MSVR (lemma `lem:16`).

    .. math::
        \Big(1 - \frac{B_1 \tau}{2n}\Big)^t e_0 + \frac{2 \tau^{1/2} \sigma}{B_2^{1/2}}
        + \frac{4 n C_g M \eta}{B_1 \tau^{1/2}}

    The proof of `thm:1` quotes the squared bound with exponent :math:`t`; that of the lemma has :math:`2t`, as here.

    Args:
        step: number of updates :math:`t`, at least 0.
        initial_error: :math:`e_0`, see the module.
        tau: averaging weight in (0, 1/2].
        lr: step size :math:`\eta`.
        num_blocks: :math:`n`.
        blocks_per_batch: :math:`B_1`.
        samples_per_block: :math:`B_2`.
        sigma: :math:`\sigma`.
        lipschitz: :math:`C_g`, at least 0.
        gradient_bound: :math:`M`.
        squared: bound the mean squared norm instead.

    Returns:
        The bound, which assumes the correction weight :func:`moreauc.rules.theory_gamma`.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> sizes = dict(num_blocks=100, blocks_per_batch=50, samples_per_block=4)
        >>> sonx_table_bound(
        ...     step=1, initial_error=8.0, tau=0.25, lr=0.0625, **sizes, sigma=2.0, lipschitz=1.0, gradient_bound=1.0
        ... )
        9.5
    """
    owner = "sonx_table_bound"
    n, b1 = _check_batch(owner, num_blocks=num_blocks, blocks_per_batch=blocks_per_batch)
    b2 = check_count(owner, "samples_per_block", samples_per_block)
    tau = _check_tau(owner, "tau", tau, 0.5)
    lr, sigma, c_g, m = _non_negative(owner, lr=lr, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    terms = [_msvr_noise(tau, sigma, b2), _msvr_drift(tau, n / b1, c_g * m * lr)]
    return _bound(owner, step, initial_error, 1.0 - b1 * tau / (2 * n), terms, squared)


def sonx_moving_average_table_bound(
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
    squared: bool = False,
) -> float:
    r"""Bound of :math:`\frac1n \sum_i \|u_{i,t} - g_i(w_t)\|` for SONX with the moving average (lemma `lem:19`).

    .. math::
        \Big(1 - \frac{B_1 \tau}{4n}\Big)^t e_0 + \frac{2 \sqrt2 \tau^{1/2} \sigma}{B_2^{1/2}}
        + \frac{4 \sqrt2 n C_g M \eta}{B_1 \tau}

    Args:
        step: number of updates :math:`t`, at least 0.
        initial_error: :math:`e_0`, see the module.
        tau: averaging weight in (0, 1].
        lr: step size :math:`\eta`.
        num_blocks: :math:`n`.
        blocks_per_batch: :math:`B_1`.
        samples_per_block: :math:`B_2`.
        sigma: :math:`\sigma`.
        lipschitz: :math:`C_g`, at least 0, of the mean :math:`g_i` only.
        gradient_bound: :math:`M`.
        squared: bound the mean squared norm instead.

    Returns:
        The bound, for correction weight 0.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> sizes = dict(num_blocks=100, blocks_per_batch=50, samples_per_block=4)
        >>> sonx_moving_average_table_bound(
        ...     step=1, initial_error=8.0, tau=1.0, lr=0.0, **sizes, sigma=0.0, lipschitz=1.0, gradient_bound=1.0
        ... )
        7.0
    """
    owner = "sonx_moving_average_table_bound"
    n, b1 = _check_batch(owner, num_blocks=num_blocks, blocks_per_batch=blocks_per_batch)
    b2 = check_count(owner, "samples_per_block", samples_per_block)
    tau = _check_tau(owner, "tau", tau, 1.0)
    lr, sigma, c_g, m = _non_negative(owner, lr=lr, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    terms = _moving_average_terms(tau, sigma, b2, n / b1 * c_g * m * lr)
    return _bound(owner, step, initial_error, 1.0 - b1 * tau / (4 * n), terms, squared)


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
        initial_error: :math:`e_0`, see the module.
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
        The bound, which assumes the correction weight :func:`moreauc.rules.theory_gamma`.

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
    n1, b1 = _check_batch(owner, num_outer=num_outer, outer_per_batch=outer_per_batch)
    n2, b2 = _check_batch(owner, num_inner=num_inner, inner_per_batch=inner_per_batch)
    b3 = check_count(owner, "samples_per_pair", samples_per_pair)
    tau1 = _check_tau(owner, "tau1", tau1, 0.5)
    lr, sigma, c_h, m = _non_negative(owner, lr=lr, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    share = b1 * b2 / (n1 * n2)
    terms = [_msvr_noise(tau1, sigma, b3), _msvr_drift(tau1, 1.0 / share, c_h * m * lr)]
    return _bound(owner, step, initial_error, 1.0 - share * tau1 / 2, terms, squared)


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
        initial_error: :math:`e_0`, see the module.
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
        The bound, which assumes the correction weights :func:`moreauc.rules.theory_gamma`.

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
    n1, b1 = _check_batch(owner, num_outer=num_outer, outer_per_batch=outer_per_batch)
    n2, b2 = _check_batch(owner, num_inner=num_inner, inner_per_batch=inner_per_batch)
    tau1, tau2 = _check_tau(owner, "tau1", tau1, 0.5), _check_tau(owner, "tau2", tau2, 0.5)
    lr, sigma, c_g, c_h, m = _non_negative(
        owner,
        lr=lr,
        sigma=sigma,
        lipschitz_middle=lipschitz_middle,
        lipschitz_inner=lipschitz_inner,
        gradient_bound=gradient_bound,
    )
    c_2 = 8.0 * math.sqrt(2.0) * c_g * m * max(1.0, c_h)
    terms = [
        _msvr_noise(tau2, sigma, b2),
        c_2 * math.sqrt(n1 * b2 / (b1 * n2) / tau2) * tau1,
        c_2 * math.sqrt(n1**3 * n2 / (b1**3 * b2) / tau2) * lr,
    ]
    return _bound(owner, step, initial_error, 1.0 - b1 * tau2 / (2 * n1), terms, squared)


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
        initial_error: :math:`e_0`, see the module.
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
    n1, b1 = _check_batch(owner, num_outer=num_outer, outer_per_batch=outer_per_batch)
    n2, b2 = _check_batch(owner, num_inner=num_inner, inner_per_batch=inner_per_batch)
    b3 = check_count(owner, "samples_per_pair", samples_per_pair)
    tau1 = _check_tau(owner, "tau1", tau1, 1.0)
    lr, sigma, c_h, m = _non_negative(owner, lr=lr, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    share = b1 * b2 / (n1 * n2)
    terms = _moving_average_terms(tau1, sigma, b3, c_h * m * lr / share)
    return _bound(owner, step, initial_error, 1.0 - share * tau1 / 4, terms, squared)


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
        initial_error: :math:`e_0`, see the module.
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
    n1, b1 = _check_batch(owner, num_outer=num_outer, outer_per_batch=outer_per_batch)
    n2, b2 = _check_batch(owner, num_inner=num_inner, inner_per_batch=inner_per_batch)
    tau1, tau2 = _check_tau(owner, "tau1", tau1, 1.0), _check_tau(owner, "tau2", tau2, 1.0)
    sigma, c_g, m = _non_negative(owner, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    terms = _moving_average_terms(tau2, sigma, b2, math.sqrt(n1 * b2 / (b1 * n2)) * c_g * m * tau1)
    return _bound(owner, step, initial_error, 1.0 - b1 * tau2 / (4 * n1), terms, squared)


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

    The lemma has the coarser :math:`8 n_+`; this is what the proof of `thm:6` uses. The paper gives no squared bound.

    Args:
        step: number of updates :math:`t`, at least 0.
        initial_error: :math:`e_0`, see the module.
        tau: averaging weight in (0, 1/2].
        lr: step size :math:`\eta`, of the weights and of the thresholds.
        num_positives: :math:`n_+`.
        num_negatives: :math:`n_-`, which only limits the batch.
        positives_per_batch: :math:`B_1`.
        negatives_per_batch: :math:`B_2`.
        sigma: :math:`\sigma`.
        lipschitz: :math:`C_\psi` in :math:`(w, s_i)`, at least 0.
        gradient_bound: :math:`M`, also of the thresholds' gradient.

    Returns:
        The bound, which assumes the correction weight :func:`moreauc.rules.theory_gamma`.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> sizes = dict(num_positives=100, num_negatives=9, positives_per_batch=50, negatives_per_batch=4)
        >>> tpauc_table_bound(
        ...     step=1, initial_error=8.0, tau=0.25, lr=0.0625, **sizes, sigma=2.0, lipschitz=1.0, gradient_bound=1.0
        ... )
        9.6
    """
    owner = "tpauc_table_bound"
    n, b1 = _check_batch(owner, num_positives=num_positives, positives_per_batch=positives_per_batch)
    _, b2 = _check_batch(owner, num_negatives=num_negatives, negatives_per_batch=negatives_per_batch)
    tau = _check_tau(owner, "tau", tau, 0.5)
    lr, sigma, c_psi, m = _non_negative(owner, lr=lr, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    terms = [_msvr_noise(tau, sigma, b2), _msvr_drift(tau, (n + math.sqrt(n)) / b1, c_psi * m * lr)]
    return _bound(owner, step, initial_error, 1.0 - b1 * tau / (2 * n), terms, squared=False)


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
        initial_error: :math:`e_0` over the bags of the class in question, see the module.
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
        The bound, which assumes the correction weights :func:`moreauc.rules.theory_gamma`.

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
    positive_sizes = _check_batch(owner, num_positives=num_positives, positives_per_batch=positives_per_batch)
    negative_sizes = _check_batch(owner, num_negatives=num_negatives, negatives_per_batch=negatives_per_batch)
    n, b = negative_sizes if negative else positive_sizes
    b3 = check_count(owner, "instances_per_bag", instances_per_bag)
    tau1 = _check_tau(owner, "tau1", tau1, 0.5)
    lr, sigma, c_h, m = _non_negative(owner, lr=lr, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    terms = [_msvr_noise(tau1, sigma, b3), _msvr_drift(tau1, n / b, c_h * m * lr)]
    return _bound(owner, step, initial_error, 1.0 - b * tau1 / (2 * n), terms, squared)


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
        initial_error: :math:`e_0`, see the module.
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
        The bound, which assumes the correction weights :func:`moreauc.rules.theory_gamma`.

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
    n, b1 = _check_batch(owner, num_positives=num_positives, positives_per_batch=positives_per_batch)
    n_minus, b2 = _check_batch(owner, num_negatives=num_negatives, negatives_per_batch=negatives_per_batch)
    tau1, tau2 = _check_tau(owner, "tau1", tau1, 0.5), _check_tau(owner, "tau2", tau2, 0.5)
    lr, sigma, c_g, c_h, m = _non_negative(
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
        _msvr_noise(tau2, sigma, b2),
        scale * a * math.sqrt(1.0 / a) * tau1,
        scale * a * math.sqrt(1.0 / b) * tau1,
        scale * a * math.sqrt(a) * lr,
        scale * a * math.sqrt(b) * lr,
        scale * math.sqrt(n) / b1 * lr,
    ]
    return _bound(owner, step, initial_error, 1.0 - tau2 / (2 * a), terms, squared)


def _bound(owner: str, step: int, initial_error: float, decay: float, terms: list[float], squared: bool) -> float:
    step = check_count(owner, "step", step, minimum=0)
    initial_error = check_real(owner, "initial_error", initial_error, low=0.0)
    if squared:
        return decay ** (2 * step) * initial_error + sum(term**2 for term in terms)
    return decay**step * initial_error + sum(terms)


def _check_tau(owner: str, name: str, tau: float, limit: float) -> float:
    return check_real(owner, name, tau, low=0.0, high=limit, low_open=True)


def _msvr_noise(tau: float, sigma: float, samples: int) -> float:
    return 2.0 * math.sqrt(tau / samples) * sigma


def _msvr_drift(tau: float, rows_per_visit: float, speed: float) -> float:
    return 4.0 * rows_per_visit * speed / math.sqrt(tau)


def _moving_average_terms(tau: float, sigma: float, samples: int, drift: float) -> list[float]:
    root = math.sqrt(2.0)
    return [2.0 * root * math.sqrt(tau / samples) * sigma, 4.0 * root * drift / tau]
