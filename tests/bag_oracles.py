"""The baselines over bags as plain loops on Python floats, with gradients by hand; no tensors, no code of the library.

An instance is a list of model outputs: [score], or [score, attention logit]. Averages are those of the formulas, not
their logarithms. Each `step` takes the instances of each bag of a batch, and returns the value and the gradient in the
outputs of each instance.
"""

from __future__ import annotations

import math

import baseline_oracles


class Pool:
    """score = p(v), v = mean of y(x) over instances x."""

    def __init__(self, name, temperature):
        self.name, self.temperature = name, temperature

    def y(self, x):
        """Return what is averaged, and its derivatives: one row for each output, one column for each average."""
        if self.name == "mean":
            return [x[0]], [[1.0]]
        if self.name == "smoothed_max":
            e = math.exp(x[0] / self.temperature)
            return [e], [[e / self.temperature]]
        score, logit = x
        e = math.exp(logit)
        return [e * score, e], [[e, 0.0], [e * score, e]]

    def p(self, v):
        """Return the score of an average, and its derivatives."""
        if self.name == "mean":
            return v[0], [1.0]
        if self.name == "smoothed_max":
            return self.temperature * math.log(v[0]), [self.temperature / v[0]]
        return v[0] / v[1], [1 / v[1], -v[0] / v[1] ** 2]

    def average(self, instances):
        total = None
        for x in instances:
            y = self.y(x)[0]
            total = y if total is None else [p + q for p, q in zip(total, y, strict=True)]
        return [p / len(instances) for p in total]

    def chain(self, weight, v, instances):
        """Return weight * dp(v) * dy(x) / count for each instance."""
        outer = self.p(v)[1]
        gradient = []
        for x in instances:
            slopes = self.y(x)[1]
            gradient.append(
                [weight * sum(p * q for p, q in zip(outer, row, strict=True)) / len(instances) for row in slopes]
            )
        return gradient


class MinMax:
    """AUC-M and its three variables."""

    def __init__(self, rate, margin, link, dual_lr):
        self.rate, self.margin, self.link, self.dual_lr = rate, margin, link, dual_lr
        self.a = self.b = self.theta = 0.0

    def step(self, scores, labels, index):
        value, gradient, slopes = baseline_oracles.class_mean_min_max(
            scores, labels, self.rate, self.margin, self.link, self.a, self.b, self.theta
        )
        self.a -= self.dual_lr * slopes[0]
        self.b -= self.dual_lr * slopes[1]
        self.theta = max(0.0, self.theta + self.dual_lr * slopes[2])
        return value, gradient


class Naive:
    """A loss of scores, on scores pooled from the sampled instances."""

    def __init__(self, pool, loss):
        self.pool, self.loss = pool, loss

    def step(self, bags, labels, index):
        averages = [self.pool.average(instances) for instances in bags]
        value, weights = self.loss.step([self.pool.p(v)[0] for v in averages], labels, index)
        gradient = []
        for weight, v, instances in zip(weights, averages, bags, strict=True):
            gradient.append(self.pool.chain(weight, v, instances))
        return value, gradient


class MIDAM:
    """AUC-M on scores of moving averages, which are read before they move, or after.

    After: logits of attention are taken less their mean over the batch.
    """

    def __init__(self, pool, loss, tau, rows="before"):
        self.pool, self.loss, self.tau, self.rows = pool, loss, tau, rows
        self.v = {}

    def step(self, bags, labels, index):
        if self.rows == "after" and len(bags[0][0]) == 2:
            logits = [instance[1] for instances in bags for instance in instances]
            level = sum(logits) / len(logits)
            bags = [[[score, logit - level] for score, logit in instances] for instances in bags]
        observed = [self.pool.average(instances) for instances in bags]
        held = [self.v.get(number, now) for number, now in zip(index, observed, strict=True)]
        moved = [
            [(1 - self.tau) * p + self.tau * q for p, q in zip(v, now, strict=True)]
            for v, now in zip(held, observed, strict=True)
        ]
        used = held if self.rows == "before" else moved
        value, weights = self.loss.step([self.pool.p(v)[0] for v in used], labels, index)
        gradient = []
        for weight, v, instances in zip(weights, used, bags, strict=True):
            gradient.append(self.pool.chain(weight, v, instances))
        self.v.update(zip(index, moved, strict=True))
        return value, gradient


def descend(loss, batches, w, lr):
    """Train a linear model, one row of `w` for each output, by gradient descent; yield (value, w) after each step.

    A batch is (instances of each bag as feature vectors, labels, numbers of the bags).
    """
    w = [list(row) for row in w]
    for bags, labels, index in batches:
        outputs = [
            [[sum(p * q for p, q in zip(row, x, strict=True)) for row in w] for x in instances] for instances in bags
        ]
        value, gradient = loss.step(outputs, labels, index)
        for instances, slopes in zip(bags, gradient, strict=True):
            for x, slope in zip(instances, slopes, strict=True):
                for k, row in enumerate(w):
                    for c in range(len(row)):
                        row[c] -= lr * slope[k] * x[c]
        yield value, [list(row) for row in w]
