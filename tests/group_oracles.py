"""The losses over groups as plain loops on Python floats; no tensors, no code of the library.

A batch is a dict from each group present to its samples. `losses_of(k, sample, w)` is the loss of a sample of group k
at the weights w, `dlosses(k, sample, w)` its gradient in w, a list.
"""

from __future__ import annotations

import math
import sys

from oracles import hinge


def group_mean(losses_of, k, samples, w):
    total = 0.0
    for sample in samples:
        total += losses_of(k, sample, w)
    return total / len(samples)


def group_gradient(dlosses, k, samples, w):
    total = [0.0] * len(w)
    for sample in samples:
        slope = dlosses(k, sample, w)
        for c in range(len(w)):
            total[c] += slope[c] / len(samples)
    return total


def best_threshold(rows, top_k, num_groups):
    """The largest value with the share top_k / num_groups of the rows above it; a hair below all where that is all."""
    ordered = sorted(rows, reverse=True)
    above = max(1, top_k * len(ordered) // num_groups)
    if above < len(ordered):
        return ordered[above]
    return ordered[-1] - sys.float_info.epsilon * (1 + abs(ordered[-1]))


def sonx_group_dro(losses_of, dlosses, w, batches, num_groups, top_k, tau, gamma, lr, threshold_lr):
    """SONX on s + N/K (L_k - s)_+. Yields (value, w, u, s) after each step; `threshold_lr` may be "quantile"."""
    w, w_before = list(w), list(w)
    u, s = {}, 0.0
    for batch in batches:
        size = len(batch)
        weight = (num_groups - size) / (size * (1 - tau)) + (1 - tau) if gamma == "theory" else gamma
        gradient, ds, value = [0.0] * len(w), 0.0, 0.0
        rows, u_next = {}, dict(u)
        for k, samples in batch.items():
            now = group_mean(losses_of, k, samples, w)
            before = group_mean(losses_of, k, samples, w_before)
            rows[k] = u.get(k, now)
            u_next[k] = (1 - tau) * rows[k] + tau * now + weight * (now - before)
        tied = 0.0  # how much of a row that is equal to the threshold counts
        if threshold_lr == "quantile":
            rows = {k: u_next[k] for k in batch}
            s = best_threshold(u_next.values(), top_k, num_groups)
            above = sum(row > s for row in u_next.values())
            equal = sum(row == s for row in u_next.values())
            wanted = max(1, math.floor(top_k / num_groups * len(u_next) + 1e-9))
            tied = max(wanted - above, 0) / equal if equal else 0.0
        for k, samples in batch.items():
            f, df = hinge(rows[k] - s, num_groups / top_k)
            if rows[k] == s:
                df = tied * num_groups / top_k
            value += (s + f) / size
            ds += (1 - df) / size
            slope = group_gradient(dlosses, k, samples, w)
            for c in range(len(w)):
                gradient[c] += df * slope[c] / size
        u = u_next
        if threshold_lr != "quantile":
            s = s - threshold_lr * ds
        w_before = list(w)
        w = [w[c] - lr * gradient[c] for c in range(len(w))]
        yield value, list(w), dict(u), s


def exponentiated(losses_of, dlosses, w, batches, num_groups, step, lr):
    """Group DRO with weights on the simplex: first the weights, then w. Yields (value, w, q) after each step."""
    w = list(w)
    q = [1 / num_groups] * num_groups
    for batch in batches:
        for k, samples in batch.items():
            q[k] *= math.exp(step * group_mean(losses_of, k, samples, w))
        total = sum(q)
        q = [entry / total for entry in q]
        scale = num_groups / len(batch)
        value, gradient = 0.0, [0.0] * len(w)
        for k, samples in batch.items():
            value += scale * q[k] * group_mean(losses_of, k, samples, w)
            slope = group_gradient(dlosses, k, samples, w)
            for c in range(len(w)):
                gradient[c] += scale * q[k] * slope[c]
        w = [w[c] - lr * gradient[c] for c in range(len(w))]
        yield value, list(w), list(q)


def erm_weights(groups_of_samples, sizes, num_samples):
    """One weight for each sample of the batch; `groups_of_samples` lists the groups of each, `sizes` None for 1."""
    weights = []
    for groups in groups_of_samples:
        total = 0.0
        for k in groups:
            if sizes is not None:
                total += num_samples / (len(sizes) * sizes[k])
        weights.append(1.0 if sizes is None else total)
    return weights


def cvar_weights(losses, fraction):
    """One weight for each loss: the largest first, each takes 1 until the mass is gone."""
    mass = left = fraction * len(losses)
    weights = [0.0] * len(losses)
    for k in sorted(range(len(losses)), key=lambda k: -losses[k]):
        taken = min(1.0, left)
        weights[k] = len(losses) * taken / mass
        left -= taken
    return weights


def weighted_descent(losses_of, dlosses, w, batches, weights_of, lr):
    """Descent on the mean of weighted losses. A batch is a list of samples. Yields (value, w) after each step."""
    w = list(w)
    for batch in batches:
        losses = [losses_of(None, sample, w) for sample in batch]
        weights = weights_of(batch, losses)
        value = sum(weight * loss for weight, loss in zip(weights, losses, strict=True)) / len(batch)
        gradient = [0.0] * len(w)
        for weight, sample in zip(weights, batch, strict=True):
            slope = dlosses(None, sample, w)
            for c in range(len(w)):
                gradient[c] += weight * slope[c] / len(batch)
        w = [w[c] - lr * gradient[c] for c in range(len(w))]
        yield value, list(w)


def squared(x, y, w):
    error = sum(p * q for p, q in zip(x, w, strict=True)) - y
    return error**2, [2 * error * entry for entry in x]


def logistic(x, y, w):
    score = sum(p * q for p, q in zip(x, w, strict=True))
    value = math.log1p(math.exp(score)) - y * score
    slope = 1 / (1 + math.exp(-score)) - y
    return value, [slope * entry for entry in x]


def softmax(x, y, w):
    """Cross entropy of as many classes as w has rows of the length of x."""
    width = len(x)
    scores = [sum(x[c] * w[j * width + c] for c in range(width)) for j in range(len(w) // width)]
    total = sum(math.exp(score) for score in scores)
    gradient = []
    for j, score in enumerate(scores):
        gradient += [(math.exp(score) / total - (j == y)) * entry for entry in x]
    return math.log(total) - scores[y], gradient
