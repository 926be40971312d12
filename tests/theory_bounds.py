r"""The error bounds of the paper's lemmas, as their proofs give them, which the parameters of the theorems rest on.

Each is a bound of the mean norm of a table's error after `step` updates.
"""

from __future__ import annotations

import math

from experiments.problems.bounds import decayed, noise_and_drift, sonx_table_bound

__all__ = [
    "bag_pair_table_bound",
    "bag_table_bound",
    "sont_inner_table_bound",
    "sont_outer_table_bound",
    "sonx_table_bound",
    "tpauc_table_bound",
]


def _bound(step, initial_error, rate, terms, moving_average=False):
    return decayed(step, initial_error, rate, terms, moving_average=moving_average)


def _terms(tau, sigma, samples, drift, moving_average=False):
    return noise_and_drift(tau, sigma, samples, drift, moving_average=moving_average)


def tpauc_table_bound(
    *, step, initial_error, tau, lr, num_positives, num_negatives, positives_per_batch, negatives_per_batch,
    sigma, lipschitz, gradient_bound,
):  # fmt: skip
    """Algorithm 2 (`lem:22`), as the proof of `thm:6` uses it; the lemma has the coarser 8 n_+."""
    drift = (num_positives + math.sqrt(num_positives)) / positives_per_batch * lipschitz * gradient_bound * lr
    terms = _terms(tau, sigma, negatives_per_batch, drift)
    return _bound(step, initial_error, tau * positives_per_batch / num_positives, terms)


def sont_inner_table_bound(
    *, step, initial_error, tau1, lr, num_outer, num_inner, outer_per_batch, inner_per_batch, samples_per_pair,
    sigma, lipschitz, gradient_bound, moving_average=False,
):  # fmt: skip
    """SONT's v (`lem:13`, `lem:20`). The proof of `thm:3` quotes it with the root of C_h, a slip."""
    visits = num_outer * num_inner / (outer_per_batch * inner_per_batch)
    terms = _terms(tau1, sigma, samples_per_pair, visits * lipschitz * gradient_bound * lr, moving_average)
    return _bound(step, initial_error, tau1 / visits, terms, moving_average)


def sont_outer_table_bound(
    *, step, initial_error, tau1, tau2, lr, num_outer, num_inner, outer_per_batch, inner_per_batch,
    sigma, lipschitz_middle, lipschitz_inner, gradient_bound, moving_average=False,
):  # fmt: skip
    """SONT's u (`lem:14`, `lem:21`); `gradient_bound` also bounds the root mean square of v - h."""
    a, b = num_outer / outer_per_batch, num_inner / inner_per_batch
    scale = lipschitz_middle * gradient_bound
    if moving_average:
        terms = _terms(tau2, sigma, inner_per_batch, math.sqrt(a / b) * scale * tau1, True)
    else:
        c_2 = 8.0 * math.sqrt(2.0) * scale * max(1.0, lipschitz_inner)
        noise, _ = _terms(tau2, sigma, inner_per_batch, 0.0)
        terms = [noise, c_2 * math.sqrt(a / b / tau2) * tau1, c_2 * math.sqrt(a**3 * b / tau2) * lr]
    return _bound(step, initial_error, tau2 / a, terms, moving_average)


def bag_table_bound(
    *, step, initial_error, tau1, lr, num_positives, num_negatives, positives_per_batch, negatives_per_batch,
    instances_per_bag, sigma, lipschitz, gradient_bound, negative=False,
):  # fmt: skip
    """Algorithm 4's v (`lem:11`), which as printed leaves out B_3 and one 1 / n_+, and has B_1 for negative bags."""
    visits = num_negatives / negatives_per_batch if negative else num_positives / positives_per_batch
    terms = _terms(tau1, sigma, instances_per_bag, visits * lipschitz * gradient_bound * lr)
    return _bound(step, initial_error, tau1 / visits, terms)


def bag_pair_table_bound(
    *, step, initial_error, tau1, tau2, lr, num_positives, num_negatives, positives_per_batch, negatives_per_batch,
    sigma, lipschitz_middle, lipschitz_inner, gradient_bound,
):  # fmt: skip
    """Algorithm 4's u (`lem:12`), which as printed leaves out the root of B_2."""
    a, b = num_positives / positives_per_batch, num_negatives / negatives_per_batch
    scale = 16.0 * math.sqrt(2.0 / tau2) * lipschitz_middle * gradient_bound * max(1.0, lipschitz_inner)
    noise, _ = _terms(tau2, sigma, negatives_per_batch, 0.0)
    moves = [math.sqrt(a) * tau1, a * math.sqrt(1.0 / b) * tau1, a * math.sqrt(a) * lr, a * math.sqrt(b) * lr]
    last = math.sqrt(num_positives) / positives_per_batch * lr
    return _bound(step, initial_error, tau2 / a, [noise, *(scale * move for move in (*moves, last))])
