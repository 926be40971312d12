"""The objectives of `examples/gallery` as plain loops over numbers that autograd follows (tensors of shape `()`).

`w` is a list of numbers, which the first lines of each section explain. Nothing is shared with the library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

Number = torch.Tensor
Numbers = list[Number]


def relu(z: Number) -> Number:
    return z if z > 0 else 0.0 * z


def squared_hinge(z: Number) -> Number:
    return relu(1.0 + z) ** 2


def mean(values: Sequence[Number]) -> Number:
    return sum(values[1:], values[0]) / len(values)


# average precision: scores of the positives, then of the negatives


def average_precision(w: Numbers, positives: int) -> Number:
    missed = []
    for i in range(positives):
        above = sum(squared_hinge(w[k] - w[i]) for k in range(positives))
        everyone = sum(squared_hinge(w[k] - w[i]) for k in range(len(w)))
        missed.append(1.0 - above / everyone)
    return mean(missed)


# NDCG: scores of all items, query by query


def ndcg(w: Numbers, gain: Sequence[Sequence[float]], top_k: int | None) -> Number:
    missed, items = [], len(gain[0])
    for q, gains in enumerate(gain):
        scores = w[q * items : (q + 1) * items]
        found = 0.0
        for i in range(items):
            if gains[i] > 0:
                rank = sum(squared_hinge(scores[j] - scores[i]) for j in range(items))
                share = 1.0 if top_k is None else 1.0 / (1.0 + (rank / (top_k + 0.5)) ** 2)
                found = found + gains[i] * share * math.log(2) / (1.0 + rank).log()
        best = sorted(gains, reverse=True)[:top_k]
        missed.append(1.0 - found / sum(g / math.log2(place + 2) for place, g in enumerate(best)))
    return mean(missed)


# one-way partial AUC: scores of the positives, then of the negatives; for CVaR then the positives' thresholds


def partial_auc_cvar(w: Numbers, positives: int, negatives: int, max_fpr: float) -> Number:
    total = []
    for i in range(positives):
        threshold = w[positives + negatives + i]
        tail = sum(relu(squared_hinge(w[positives + j] - w[i]) - threshold) for j in range(negatives))
        total.append(threshold + tail / (max_fpr * negatives))
    return mean(total)


def partial_auc_kl(w: Numbers, positives: int, temperature: float) -> Number:
    total = []
    for i in range(positives):
        powers = [(squared_hinge(score - w[i]) / temperature).exp() for score in w[positives:]]
        total.append(temperature * mean(powers).log())
    return mean(total)


# p-norm push: scores of the positives, then of the negatives; a block is a negative


def p_norm_push(w: Numbers, positives: int, p: float) -> Number:
    heights = [mean([squared_hinge(score - w[i]) for i in range(positives)]) for score in w[positives:]]
    return mean([height**p for height in heights])


# contrastive: two features of the first view of each sample, then of the second


def feature(w: Numbers, view: int, i: int) -> Numbers:
    start = view * len(w) // 2 + 2 * i
    x, y = w[start : start + 2]
    length = (x * x + y * y) ** 0.5
    return [x / length, y / length]


def cosine(one: Numbers, other: Numbers) -> Number:
    return one[0] * other[0] + one[1] * other[1]


def contrastive(w: Numbers, temperature: float) -> Number:
    total, samples = [], len(w) // 4
    for i in range(samples):
        for view in range(2):
            own = feature(w, view, i)
            others = [(k, v) for k in range(samples) if k != i for v in range(2)]
            powers = [(cosine(own, feature(w, v, k)) / temperature).exp() for k, v in others]
            same = (cosine(own, feature(w, 1 - view, i)) / temperature).exp()
            total.append(-temperature * (same / mean(powers)).log())
    return 2.0 * mean(total)


# listwise cross entropy: scores of all items, query by query


def listwise(w: Numbers, relevance: Sequence[Sequence[int]]) -> Number:
    total, items = [], len(relevance[0])
    for q, grades in enumerate(relevance):
        scores = w[q * items : (q + 1) * items]
        whole = sum(score.exp() for score in scores)
        for grade, score in zip(grades, scores, strict=True):
            total.append(-grade / sum(grades) * (score.exp() / whole).log())
    return sum(total) / len(relevance)


# CVaR of samples and of tasks: a prediction for each sample (of each task); `s` is the threshold


def sample_cvar(w: Numbers, s: Number, target: Sequence[float], noise: Sequence[Sequence[float]], fraction: float):
    expected = [mean([abs(w[i] + draw[i] - target[i]) for draw in noise]) for i in range(len(w))]
    return s + sum(relu(value - s) for value in expected) / (fraction * len(w))


def worst_tasks(w: Numbers, s: Number, target: Sequence[Sequence[float]], k: int) -> Number:
    samples = len(target[0])
    losses = [
        mean([abs(w[task * samples + r] - values[r]) for r in range(samples)]) for task, values in enumerate(target)
    ]
    return s + sum(relu(loss - s) for loss in losses) / k


# the worst partial AUCs: for each task scores of its positives, then of its negatives


def worst_partial_auc(w: Numbers, s: Number, positives: int, negatives: int, k: int, temperature: float) -> Number:
    total, size = 0.0, positives + negatives
    for task in range(len(w) // size):
        own = partial_auc_kl(w[task * size : (task + 1) * size], positives, temperature)
        total = total + relu(own - s)
    return s + total / k
