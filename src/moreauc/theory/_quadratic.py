r"""The small quadratic programme of a bundle method, solved by an active-set method.

Cuts that share one quadratic, :math:`-e_k + \langle h_k, d\rangle + \frac{\mu}{2}\|d\|^2`, have a largest one that is
minimal at the step :math:`d = -\sum_k\lambda_k h_k/\mu`, where the weights solve the dual problem over the simplex.
Any weights on the simplex prove a lower bound of the largest cut, so rounding here can weaken a proof, not spoil it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_DEPENDENT = 1e-11  # a slope this close to the affine hull of the support counts as lying in it
_MAX_EXCHANGES = 500


def solve_simplex(
    slopes: Array, errors: Array, mu: float, support: list[int], weights: Array
) -> tuple[list[int], Array, Array]:
    r"""Solve the dual of the cutting model from a feasible start.

    .. math:: \min_{\lambda \in \Delta} \frac{1}{2\mu}\Big\|\sum_k \lambda_k h_k\Big\|^2 + \sum_k \lambda_k e_k

    The slopes of the support stay affinely independent: a cut that would make them dependent is exchanged against
    another one along the direction that leaves :math:`\sum_k\lambda_k h_k` as it is. The support thus holds at most
    `dim + 1` cuts.

    `support` are the cuts that carry the start, with `weights`; where their slopes are dependent, some are dropped. The
    result is the support and the weights at the solution, and the step :math:`d`, computed from the conditions that the
    cuts of the support meet, not as :math:`-\sum_k\lambda_k h_k/\mu`, where the sum cancels.
    """
    spread = float(np.abs(slopes - slopes[support[0]]).max(initial=0.0))
    idle, lowest, best = 0, math.inf, (support, weights, np.zeros(slopes.shape[1]))
    for _ in range(_MAX_EXCHANGES):
        support, weights, basis, inverse = _settle(slopes, errors, mu, support, weights, spread)
        mean = weights @ slopes[support]
        objective = float(mean @ mean) / (2.0 * mu) + float(weights @ errors[support])
        idle = idle + 1 if objective >= lowest else 0
        if objective > lowest * (1.0 + 1e-12) or idle > len(mean):  # rounding has stopped the descent
            break
        step = basis @ (inverse.T @ (errors[support[1:]] - errors[support[0]]))
        if len(support) <= len(mean):
            step -= (mean - basis @ (basis.T @ mean)) / mu
        lowest, best = min(objective, lowest), (support, weights, step)
        heights = slopes @ step - errors
        entering = int(heights.argmax())
        noise = 4e-15 * (float(np.abs(errors[support]).max()) + float(np.abs(slopes[entering]) @ np.abs(step)))
        if heights[entering] <= float(heights[support].max()) + noise:
            break
        support, weights = _enter(slopes, support, weights, entering, basis, inverse, spread)
    return best


def _settle(
    slopes: Array, errors: Array, mu: float, support: list[int], weights: Array, spread: float
) -> tuple[list[int], Array, Array, Array]:
    """Minimise over the weights of the support, dropping cuts whose weight reaches 0; also return its QR factors.

    The factors are an orthonormal basis of the differences to the first slope and the inverse of the triangle.
    """
    while len(support) > 1:
        base, rest = support[0], support[1:]
        if len(rest) <= slopes.shape[1]:
            basis, triangle = np.linalg.qr((slopes[rest] - slopes[base]).T)
            if float(np.abs(triangle.diagonal()).min()) > 1e-3 * _DEPENDENT * spread:
                inverse = np.linalg.inv(triangle)
                tail = -inverse @ (basis.T @ slopes[base] + mu * (inverse.T @ (errors[rest] - errors[base])))
                target = np.concatenate(([1.0 - tail.sum()], tail))
                falling = target < 0.0
                if not falling.any():
                    return support, target, basis, inverse
                ratios = np.full(len(support), math.inf)
                ratios[falling] = weights[falling] / (weights[falling] - target[falling])
                leaving = int(ratios.argmin())
                weights = weights + min(1.0, float(ratios[leaving])) * (target - weights)
                support, weights = _drop(support, weights, leaving)
                continue
        support, weights = _drop(support, weights, int(weights.argmin()))
    return support, np.ones(1), np.empty((slopes.shape[1], 0)), np.empty((0, 0))


def _drop(support: list[int], weights: Array, position: int) -> tuple[list[int], Array]:
    """Take one cut out of the support and scale the weights of the others to sum 1."""
    weights = np.maximum(np.delete(weights, position), 0.0)
    total = float(weights.sum())
    weights = weights / total if total > 0.0 else np.full(len(weights), 1.0 / len(weights))
    return support[:position] + support[position + 1 :], weights


def _enter(
    slopes: Array, support: list[int], weights: Array, entering: int, basis: Array, inverse: Array, spread: float
) -> tuple[list[int], Array]:
    """Add a cut to the support, in exchange for another one where its slope depends affinely on the support's."""
    offset = slopes[entering] - slopes[support[0]]
    inside = basis.T @ offset
    outside = offset - basis @ inside
    if len(support) <= slopes.shape[1] and float(np.abs(outside).max()) > _DEPENDENT * spread:
        return [*support, entering], np.append(weights, 0.0)
    tail = inverse @ inside
    shares = np.concatenate(([1.0 - tail.sum()], tail))  # the entering slope is their mean with these shares
    positive = shares > 0.0
    ratios = np.full(len(support), math.inf)
    ratios[positive] = weights[positive] / shares[positive]
    leaving = int(ratios.argmin())
    moved = np.maximum(weights - ratios[leaving] * shares, 0.0)
    moved[leaving] = ratios[leaving]
    return [entering if k == leaving else cut for k, cut in enumerate(support)], moved / moved.sum()
