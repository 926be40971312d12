r"""The error bound of SONX's table (lemmas `lem:16` and `lem:19`)."""

from __future__ import annotations

import math
from collections.abc import Sequence


def noise_and_drift(tau: float, sigma: float, samples: int, drift: float, *, moving_average: bool) -> list[float]:
    """Return the terms of a bound for the noise of the samples and for the drift of what is tracked."""
    if moving_average:
        return [2.0 * math.sqrt(2.0 * tau / samples) * sigma, 4.0 * math.sqrt(2.0) * drift / tau]
    return [2.0 * math.sqrt(tau / samples) * sigma, 4.0 * drift / math.sqrt(tau)]


def decayed(step: int, initial_error: float, rate: float, terms: Sequence[float], *, moving_average: bool) -> float:
    """Return the decayed initial error plus the terms."""
    decay = 1.0 - rate / (4.0 if moving_average else 2.0)
    return float(decay**step * initial_error + sum(terms))


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
) -> float:
    r"""Bound of :math:`\frac1n \sum_i \|u_{i,t} - g_i(w_t)\|`.

    .. math::
        \Big(1 - \frac{B_1 \tau}{2n}\Big)^t e_0 + \frac{2 \tau^{1/2} \sigma}{B_2^{1/2}}
        + \frac{4 n C_g M \eta}{B_1 \tau^{1/2}}

    and with the moving average, where :math:`C_g` is that of the mean :math:`g_i` only,

    .. math::
        \Big(1 - \frac{B_1 \tau}{4n}\Big)^t e_0 + \frac{2 \sqrt2 \tau^{1/2} \sigma}{B_2^{1/2}}
        + \frac{4 \sqrt2 n C_g M \eta}{B_1 \tau}.

    The proof of `thm:1` quotes the bound of the mean square with exponent :math:`t`; that of the lemma has :math:`2t`.
    """
    visits = num_blocks / blocks_per_batch
    drift = visits * lipschitz * gradient_bound * lr
    terms = noise_and_drift(tau, sigma, samples_per_block, drift, moving_average=moving_average)
    return decayed(step, initial_error, tau / visits, terms, moving_average=moving_average)
