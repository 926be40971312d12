"""The form that all error bounds of the tables share, and the terms that come back in several of them.

A bound is a decaying initial error plus terms for the noise of the samples and for the drift of what is tracked.
"""

from __future__ import annotations

import math

from moreauc._checks import check_count, check_real


def error_bound(owner: str, step: int, initial_error: float, decay: float, terms: list[float], squared: bool) -> float:
    """Return the decayed initial error plus the terms, or plus their squares with the squared decay."""
    step = check_count(owner, "step", step, minimum=0)
    initial_error = check_real(owner, "initial_error", initial_error, low=0.0)
    if squared:
        return decay ** (2 * step) * initial_error + sum(term**2 for term in terms)
    return decay**step * initial_error + sum(terms)


def check_tau(owner: str, name: str, tau: float, limit: float) -> float:
    """Check that an averaging weight is in (0, limit]."""
    return check_real(owner, name, tau, low=0.0, high=limit, low_open=True)


def msvr_noise(tau: float, sigma: float, samples: int) -> float:
    """Return the noise term of MSVR."""
    return 2.0 * math.sqrt(tau / samples) * sigma


def msvr_drift(tau: float, rows_per_visit: float, speed: float) -> float:
    """Return the drift term of MSVR."""
    return 4.0 * rows_per_visit * speed / math.sqrt(tau)


def moving_average_terms(tau: float, sigma: float, samples: int, drift: float) -> list[float]:
    """Return the noise and the drift term of the moving average."""
    root = math.sqrt(2.0)
    return [2.0 * root * math.sqrt(tau / samples) * sigma, 4.0 * root * drift / tau]
