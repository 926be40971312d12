"""How far the table of a two-level method is from the inner functions it tracks.

The form of the bounds and the meaning of their arguments stand in :mod:`moreauc.theory`.
"""

from __future__ import annotations

import math

from moreauc._checks import check_count
from moreauc.theory._constants import check_batch, non_negative
from moreauc.theory._error_bound import (
    check_tau,
    error_bound,
    moving_average_terms,
    msvr_drift,
    msvr_noise,
)


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
        initial_error: :math:`e_0`, see :mod:`moreauc.theory`.
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
        The bound, which assumes the correction weight :func:`moreauc.core.rules.theory_gamma`.

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
    n, b1 = check_batch(owner, num_blocks=num_blocks, blocks_per_batch=blocks_per_batch)
    b2 = check_count(owner, "samples_per_block", samples_per_block)
    tau = check_tau(owner, "tau", tau, 0.5)
    lr, sigma, c_g, m = non_negative(owner, lr=lr, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    terms = [msvr_noise(tau, sigma, b2), msvr_drift(tau, n / b1, c_g * m * lr)]
    return error_bound(owner, step, initial_error, 1.0 - b1 * tau / (2 * n), terms, squared)


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
        initial_error: :math:`e_0`, see :mod:`moreauc.theory`.
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
    n, b1 = check_batch(owner, num_blocks=num_blocks, blocks_per_batch=blocks_per_batch)
    b2 = check_count(owner, "samples_per_block", samples_per_block)
    tau = check_tau(owner, "tau", tau, 1.0)
    lr, sigma, c_g, m = non_negative(owner, lr=lr, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    terms = moving_average_terms(tau, sigma, b2, n / b1 * c_g * m * lr)
    return error_bound(owner, step, initial_error, 1.0 - b1 * tau / (4 * n), terms, squared)


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
        initial_error: :math:`e_0`, see :mod:`moreauc.theory`.
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
        The bound, which assumes the correction weight :func:`moreauc.core.rules.theory_gamma`.

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
    n, b1 = check_batch(owner, num_positives=num_positives, positives_per_batch=positives_per_batch)
    _, b2 = check_batch(owner, num_negatives=num_negatives, negatives_per_batch=negatives_per_batch)
    tau = check_tau(owner, "tau", tau, 0.5)
    lr, sigma, c_psi, m = non_negative(owner, lr=lr, sigma=sigma, lipschitz=lipschitz, gradient_bound=gradient_bound)
    terms = [msvr_noise(tau, sigma, b2), msvr_drift(tau, (n + math.sqrt(n)) / b1, c_psi * m * lr)]
    return error_bound(owner, step, initial_error, 1.0 - b1 * tau / (2 * n), terms, squared=False)
