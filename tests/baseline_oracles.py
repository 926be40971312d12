"""The baselines as plain loops on Python floats, with their gradients by hand; no tensors, no code of the library.

A batch is a list of scores and a list of labels in the same order. `link` turns a raw score into (h, dh / dscore), a
`loss` a difference z into (l, dl / dz). Each function returns the value and its gradient in the raw scores.
"""

from __future__ import annotations

import math

from oracles import smooth_ramp, smooth_ramp_slope, spread


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def linked(name, scores, labels, k):
    x = scores[k]
    if name == "identity":
        return x, 1.0
    if name == "standardized":
        scale = spread([scores[j] for j in places(labels, 0)])
        return x / scale, 1 / scale
    h = sigmoid(x)
    return h, h * (1 - h)


def pair_loss(name, margin, z):
    x = margin + z
    if name == "squared_hinge":
        return max(x, 0.0) ** 2, 2 * max(x, 0.0)
    if name == "hinge":
        return max(x, 0.0), float(x > 0)
    if name == "squared":
        return x**2, 2 * x
    if name == "logistic":
        return math.log1p(math.exp(x)) if x < 30 else x, sigmoid(x)
    if name == "smooth_ramp":
        return smooth_ramp(z, margin), smooth_ramp_slope(z, margin)
    h = sigmoid(x)
    return h, h * (1 - h)


def places(labels, label):
    return [k for k in range(len(labels)) if labels[k] == label]


def cross_entropy(scores, labels, weight):
    value, gradient = 0.0, [0.0] * len(scores)
    for k, (score, label) in enumerate(zip(scores, labels, strict=True)):
        p = sigmoid(score)
        value += -(weight * math.log(p) if label else math.log(1 - p)) / len(scores)
        gradient[k] = (weight * (p - 1) if label else p) / len(scores)
    return value, gradient


def mean_over_pairs(scores, labels, surrogate, margin, link, positives=None, negatives=None, power=None):
    """AUC-SH; MB with the places of the rows it takes; AW-poly with a power."""
    positives = places(labels, 1) if positives is None else positives
    negatives = places(labels, 0) if negatives is None else negatives
    value, gradient = 0.0, [0.0] * len(scores)
    pairs = len(positives) * len(negatives)
    for i in positives:
        for j in negatives:
            (hi, di), (hj, dj) = linked(link, scores, labels, i), linked(link, scores, labels, j)
            loss, slope = pair_loss(surrogate, margin, hj - hi)
            weight, weight_i, weight_j = 1.0, 0.0, 0.0
            if power is not None:
                pi, pj = sigmoid(scores[i]), sigmoid(scores[j])
                weight = (1 - pi) ** power * pj**power
                weight_i = -power * (1 - pi) ** (power - 1) * pi * (1 - pi) * pj**power
                weight_j = power * pj ** (power - 1) * pj * (1 - pj) * (1 - pi) ** power
            value += weight * loss / pairs
            gradient[i] += (weight_i * loss - weight * slope * di) / pairs
            gradient[j] += (weight_j * loss + weight * slope * dj) / pairs
    return value, gradient


def mini_batch(scores, labels, surrogate, margin, link, num_positives, num_negatives):
    lowest = sorted(places(labels, 1), key=lambda k: scores[k])[:num_positives]
    highest = sorted(places(labels, 0), key=lambda k: -scores[k])[:num_negatives]
    return mean_over_pairs(scores, labels, surrogate, margin, link, lowest, highest)


def published_min_max(scores, labels, rate, margin, link, a, b, theta):
    """AUC-M as published: means over all rows of the batch, with the indicators of the classes."""
    value, gradient = 0.0, [0.0] * len(scores)
    slopes = [0.0, 0.0, 0.0]
    size = len(scores)
    for k in range(size):
        h, dh = linked(link, scores, labels, k)
        if labels[k]:
            value += ((1 - rate) * (h - a) ** 2 - 2 * theta * (1 - rate) * h) / size
            gradient[k] = ((1 - rate) * 2 * (h - a) - 2 * theta * (1 - rate)) * dh / size
            slopes[0] += -2 * (1 - rate) * (h - a) / size
            slopes[2] += -2 * (1 - rate) * h / size
        else:
            value += (rate * (h - b) ** 2 + 2 * theta * rate * h) / size
            gradient[k] = (rate * 2 * (h - b) + 2 * theta * rate) * dh / size
            slopes[1] += -2 * rate * (h - b) / size
            slopes[2] += 2 * rate * h / size
    constant = rate * (1 - rate)
    value += 2 * theta * constant * margin - constant * theta**2
    slopes[2] += 2 * constant * margin - 2 * constant * theta
    return value, gradient, slopes


def class_mean_min_max(scores, labels, rate, margin, link, a, b, theta):
    """AUC-M with the mean over each class in place of the indicator: E[x 1_+] = rate * (mean of x over positives)."""
    value, gradient = 0.0, [0.0] * len(scores)
    positives, negatives = places(labels, 1), places(labels, 0)
    constant = rate * (1 - rate)
    mean_positive = sum(linked(link, scores, labels, k)[0] for k in positives) / len(positives)
    mean_negative = sum(linked(link, scores, labels, k)[0] for k in negatives) / len(negatives)
    for k in positives:
        h, dh = linked(link, scores, labels, k)
        value += constant * (h - a) ** 2 / len(positives)
        gradient[k] = constant * (2 * (h - a) - 2 * theta) * dh / len(positives)
    for k in negatives:
        h, dh = linked(link, scores, labels, k)
        value += constant * (h - b) ** 2 / len(negatives)
        gradient[k] = constant * (2 * (h - b) + 2 * theta) * dh / len(negatives)
    gap = margin + mean_negative - mean_positive
    value += constant * (2 * theta * gap - theta**2)
    slopes = [2 * constant * (a - mean_positive), 2 * constant * (b - mean_negative), 2 * constant * (gap - theta)]
    return value, gradient, slopes


def pesg(x, labels, w, batches, *, rate, margin, link, lr, dual_lr, pull, restarts):
    """PESG without a pull on a and b, for linear scores. Yields (value, w, a, b, theta, w_ref) after each step."""
    w, w_ref = list(w), list(w)
    a = b = theta = 0.0
    total, count = [0.0] * len(w), 0
    for step, batch in enumerate(batches):
        scores = [sum(p * q for p, q in zip(x[k], w, strict=True)) for k in batch]
        value, dscores, slopes = class_mean_min_max(scores, [labels[k] for k in batch], rate, margin, link, a, b, theta)
        gradient = [pull * (p - q) for p, q in zip(w, w_ref, strict=True)]
        for d, k in zip(dscores, batch, strict=True):
            for c in range(len(w)):
                gradient[c] += d * x[k][c]
        w = [p - lr * q for p, q in zip(w, gradient, strict=True)]
        a -= dual_lr * slopes[0]
        b -= dual_lr * slopes[1]
        theta = max(0.0, theta + dual_lr * slopes[2])
        total = [p + q for p, q in zip(total, w, strict=True)]
        count += 1
        if step in restarts:
            w_ref = [p / count for p in total]
            total, count = [0.0] * len(w), 0
        yield value, list(w), a, b, theta, list(w_ref)


class SOTAs:
    """SOTA-s with plain exponentials, as its formulas stand; u and v are not logarithms."""

    def __init__(self, inner, outer, tau1, tau2, surrogate, margin, link):
        self.inner, self.outer, self.tau1, self.tau2 = inner, outer, tau1, tau2
        self.surrogate, self.margin, self.link = surrogate, margin, link
        self.u = {}
        self.v = None

    def objective(self, scores, labels):
        total = 0.0
        positives, negatives = places(labels, 1), places(labels, 0)
        for i in positives:
            mean = sum(math.exp(self._loss(scores, labels, i, j)[0] / self.inner) for j in negatives) / len(negatives)
            total += mean ** (self.inner / self.outer) / len(positives)
        return self.outer * math.log(total)

    def step(self, scores, labels, index):
        positives, negatives = places(labels, 1), places(labels, 0)
        power = self.inner / self.outer
        mean = 0.0
        for i in positives:
            now = sum(math.exp(self._loss(scores, labels, i, j)[0] / self.inner) for j in negatives) / len(negatives)
            old = self.u.get(index[i], now)
            self.u[index[i]] = (1 - self.tau1) * old + self.tau1 * now
            mean += self.u[index[i]] ** power / len(positives)
        old = mean if self.v is None else self.v
        self.v = (1 - self.tau2) * old + self.tau2 * mean
        gradient = [0.0] * len(scores)
        for i in positives:
            for j in negatives:
                loss, di, dj = self._loss(scores, labels, i, j)
                weight = self.u[index[i]] ** (power - 1) * math.exp(loss / self.inner) / self.v
                gradient[i] += weight * di / (len(positives) * len(negatives))
                gradient[j] += weight * dj / (len(positives) * len(negatives))
        return self.outer * math.log(self.v), gradient

    def _loss(self, scores, labels, i, j):
        (hi, di), (hj, dj) = linked(self.link, scores, labels, i), linked(self.link, scores, labels, j)
        loss, slope = pair_loss(self.surrogate, self.margin, hj - hi)
        return loss, -slope * di, slope * dj
