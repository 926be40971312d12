"""Plain loop transcriptions of the paper's algorithms, on Python lists of floats.

They share no code with the library: no tensors, no tables that fill or widen, whole copies for "t - 1".
A vector is a list, a table a dict from block (or pair) to a vector.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

Vector = list[float]
Matrix = list[Vector]  # row k: gradient of output k


def msvr_gamma(gamma: float | str, rows: int, visited: int, tau: float) -> float:
    if gamma == "theory":
        return (rows - visited) / (visited * (1 - tau)) + (1 - tau)
    return float(gamma)


def ball(vector: Vector, radius: float | None) -> Vector:
    if radius is None:
        return vector
    norm = math.sqrt(sum(x * x for x in vector))
    if norm <= radius:
        return vector
    return [x * radius / norm for x in vector]


def smooth_ramp(z: float, m: float) -> float:
    u = z / m
    if u <= -1:
        return 0.0
    if u <= 0:
        return (1 + u) ** 2 / 2
    if u <= 1:
        return 1 - (1 - u) ** 2 / 2
    return 1.0


def smooth_ramp_slope(z: float, m: float) -> float:
    return max(0.0, 1 - abs(z / m)) / m


def hinge(x: float, top: float, smoothing: float = 0.0) -> tuple[float, float]:
    """Value and slope of top (x)_+, or of min_v top (v)_+ + (v - x)^2 / (2 smoothing)."""
    if x <= 0:
        return 0.0, 0.0
    if x > smoothing * top:
        return top * x - smoothing * top**2 / 2, top
    return x**2 / (2 * smoothing), x / smoothing


def spread(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


def on_the_scale_of(negatives: Sequence[int], scores: Callable, dscores: Callable) -> tuple[Callable, Callable]:
    """Return scores over the spread of those of `negatives` at the same weights, and gradients that do not see it."""

    def h(x, w):
        return scores(x, w) / spread([scores(j, w) for j in negatives])

    def dh(x, w):
        return [slope / spread([scores(j, w) for j in negatives]) for slope in dscores(x, w)]

    return h, dh


def algorithm_1(
    w: Vector,
    u: dict[int, Vector],
    num_blocks: int,
    g: Callable[[int, Vector, Sequence[int]], Vector],
    dg: Callable[[int, Vector, Sequence[int]], Matrix],
    df: Callable[[int, Vector], Vector],
    batches: Sequence[dict[int, Sequence[int]]],
    *,
    tau: float,
    gamma: float | str,
    lr: float,
    bound: float | None = None,
):
    """SONX. Yields (w_{t+1}, u_{t+1}) after each step. A batch maps each block i of B_1 to its samples B_{2,i}."""
    w = list(w)
    w_before = list(w)
    u = {i: list(value) for i, value in u.items()}
    for batch in batches:
        weight = msvr_gamma(gamma, num_blocks, len(batch), tau)
        gradient = [0.0] * len(w)
        u_next = dict(u)
        for i, samples in batch.items():
            now = g(i, w, samples)
            before = g(i, w_before, samples)
            if i not in u:
                u[i] = list(now)
            # line 4
            moved = []
            for k in range(len(now)):
                moved.append((1 - tau) * u[i][k] + tau * now[k] + weight * (now[k] - before[k]))
            u_next[i] = ball(moved, bound)
            # line 5
            slope = df(i, u[i])
            jacobian = dg(i, w, samples)
            for k in range(len(now)):
                for c in range(len(w)):
                    gradient[c] += jacobian[k][c] * slope[k] / len(batch)
        # line 6
        w_before = w
        w = [w[c] - lr * gradient[c] for c in range(len(w))]
        u = u_next
        yield list(w), dict(u)


def algorithm_6(w, u, g, dg, df, batches, *, tau, lr):
    """The moving average version of SONX."""
    w = list(w)
    u = {i: list(value) for i, value in u.items()}
    for batch in batches:
        gradient = [0.0] * len(w)
        u_next = dict(u)
        for i, samples in batch.items():
            now = g(i, w, samples)
            if i not in u:
                u[i] = list(now)
            u_next[i] = [(1 - tau) * u[i][k] + tau * now[k] for k in range(len(now))]
            slope = df(i, u[i])
            jacobian = dg(i, w, samples)
            for k in range(len(now)):
                for c in range(len(w)):
                    gradient[c] += jacobian[k][c] * slope[k] / len(batch)
        w = [w[c] - lr * gradient[c] for c in range(len(w))]
        u = u_next
        yield list(w), dict(u)


def algorithm_3(
    w: Vector,
    u: dict[int, Vector],
    v: dict[tuple[int, int], Vector],
    sizes: tuple[int, int],
    h: Callable[[int, int, Vector, Sequence[int]], Vector],
    dh: Callable[[int, int, Vector, Sequence[int]], Matrix],
    g: Callable[[int, Vector], Vector],
    dg: Callable[[int, Vector], Matrix],
    df: Callable[[int, Vector], Vector],
    batches: Sequence[tuple[Sequence[int], Sequence[int], dict[tuple[int, int], Sequence[int]]]],
    *,
    tau1: float,
    tau2: float,
    gamma1: float | str,
    gamma2: float | str,
    lr: float,
    bound: float | None = None,
):
    """SONT. Yields (w, u, v) after each step. A batch is B_1, B_2 and the samples B_{3,i,j} of each pair."""
    w = list(w)
    w_before = list(w)
    u = {i: list(value) for i, value in u.items()}
    v = {pair: list(value) for pair, value in v.items()}
    v_before = {pair: list(value) for pair, value in v.items()}
    for outers, inners, samples in batches:
        b1, b2 = len(outers), len(inners)
        weight1 = msvr_gamma(gamma1, sizes[0] * sizes[1], b1 * b2, tau1)
        weight2 = msvr_gamma(gamma2, sizes[0], b1, tau2)
        gradient = [0.0] * len(w)
        v_next = dict(v)
        u_next = dict(u)
        for i in outers:
            mean_now: Vector = []
            mean_before: Vector = []
            chain: Matrix = []
            for j in inners:
                now = h(i, j, w, samples[i, j])
                before = h(i, j, w_before, samples[i, j])
                if (i, j) not in v:
                    v[i, j] = list(now)
                if (i, j) not in v_before:
                    v_before[i, j] = list(v[i, j])
                # line 4
                moved = []
                for k in range(len(now)):
                    moved.append((1 - tau1) * v[i, j][k] + tau1 * now[k] + weight1 * (now[k] - before[k]))
                v_next[i, j] = ball(moved, bound)
                # the sums of lines 5 and 6
                value = g(i, v[i, j])
                value_before = g(i, v_before[i, j])
                slopes = dg(i, v[i, j])
                jacobian = dh(i, j, w, samples[i, j])
                if not mean_now:
                    mean_now = [0.0] * len(value)
                    mean_before = [0.0] * len(value)
                    chain = [[0.0] * len(w) for _ in value]
                for k in range(len(value)):
                    mean_now[k] += value[k] / b2
                    mean_before[k] += value_before[k] / b2
                    for e in range(len(now)):
                        for c in range(len(w)):
                            chain[k][c] += jacobian[e][c] * slopes[k][e] / b2
            if i not in u:
                u[i] = list(mean_now)
            # line 5
            u_next[i] = [
                (1 - tau2) * u[i][k] + tau2 * mean_now[k] + weight2 * (mean_now[k] - mean_before[k])
                for k in range(len(mean_now))
            ]
            # line 6
            slope = df(i, u[i])
            for k in range(len(mean_now)):
                for c in range(len(w)):
                    gradient[c] += chain[k][c] * slope[k] / b1
        # line 7
        w_before = w
        w = [w[c] - lr * gradient[c] for c in range(len(w))]
        v_before = {pair: list(value) for pair, value in v.items()}
        v = v_next
        u = u_next
        yield list(w), dict(u), dict(v)


def algorithm_7(w, u, v, h, dh, g, dg, df, batches, *, tau1, tau2, lr):
    """The moving average version of SONT."""
    w = list(w)
    u = {i: list(value) for i, value in u.items()}
    v = {pair: list(value) for pair, value in v.items()}
    for outers, inners, samples in batches:
        b1, b2 = len(outers), len(inners)
        gradient = [0.0] * len(w)
        v_next, u_next = dict(v), dict(u)
        for i in outers:
            for j in inners:
                now = h(i, j, w, samples[i, j])
                if (i, j) not in v:
                    v[i, j] = list(now)
                v_next[i, j] = [(1 - tau1) * v[i, j][k] + tau1 * now[k] for k in range(len(now))]
            values = [g(i, v[i, j]) for j in inners]
            mean = [sum(value[k] for value in values) / b2 for k in range(len(values[0]))]
            if i not in u:
                u[i] = list(mean)
            u_next[i] = [(1 - tau2) * u[i][k] + tau2 * mean[k] for k in range(len(mean))]
            slope = df(i, u[i])
            for j in inners:
                slopes = dg(i, v[i, j])
                jacobian = dh(i, j, w, samples[i, j])
                for k in range(len(mean)):
                    for e in range(len(jacobian)):
                        for c in range(len(w)):
                            gradient[c] += jacobian[e][c] * slopes[k][e] * slope[k] / (b1 * b2)
        w = [w[c] - lr * gradient[c] for c in range(len(w))]
        v, u = v_next, u_next
        yield list(w), dict(u), dict(v)


def algorithm_2(
    scores,
    dscores,
    w,
    positives: Sequence[int],
    batches: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    loss: Callable[[float], float],
    dloss: Callable[[float], float],
    min_tpr: float,
    max_fpr: float,
    tau: float,
    gamma: float | str,
    lr: float,
    threshold_lr: tuple[float, float],
    standardized: bool = False,
    smoothing: float = 0.0,
):
    """SONX for TPAUC. `scores(x, w)` is h_w(X_x), `dscores` its gradient. Yields (w, u, s, s') after each step."""
    raw = scores, dscores
    alpha, beta = 1 - min_tpr, max_fpr
    w = list(w)
    w_before = list(w)
    u: dict[int, float] = {}
    s = dict.fromkeys(positives, 0.0)
    s_before = dict(s)
    s_prime = 0.0
    for b1, b2 in batches:
        if standardized:
            scores, dscores = on_the_scale_of(b2, *raw)
        weight = msvr_gamma(gamma, len(positives), len(b1), tau)
        u_next, s_next = dict(u), dict(s)
        gradient = [0.0] * len(w)
        slope_prime = 0.0
        for i in b1:

            def psi(point, threshold, i=i):
                total = 0.0
                for j in b2:  # noqa: B023
                    z = scores(j, point) - scores(i, point)  # noqa: B023
                    total += max(loss(z) - threshold, 0.0)
                return threshold + total / (beta * len(b2))  # noqa: B023

            now, before = psi(w, s[i]), psi(w_before, s_before[i])
            if i not in u:
                u[i] = now
            # line 4
            u_next[i] = (1 - tau) * u[i] + tau * now + weight * (now - before)
            # line 5
            active = [j for j in b2 if loss(scores(j, w) - scores(i, w)) > s[i]]
            df = hinge(u[i] - s_prime, 1 / alpha, smoothing)[1]
            s_next[i] = s[i] - threshold_lr[0] / len(b1) * (1 - len(active) / (beta * len(b2))) * df
            # line 6
            slope_prime += (1 - df) / len(b1)
            # line 7
            for j in active:
                slope = dloss(scores(j, w) - scores(i, w)) / (beta * len(b2)) * df / len(b1)
                for c in range(len(w)):
                    gradient[c] += slope * (dscores(j, w)[c] - dscores(i, w)[c])
        s_before = dict(s)
        s, u = s_next, u_next
        s_prime -= threshold_lr[1] * slope_prime
        w_before = w
        w = [w[c] - lr * gradient[c] for c in range(len(w))]
        yield list(w), dict(u), dict(s), s_prime


def algorithm_2_by_quantiles(
    scores, dscores, w, positives, batches, *, loss, dloss, min_tpr, max_fpr, tau, gamma, lr, weight, standardized=False
):
    """Algorithm 2 with its lines 5 and 6 replaced by quantiles. Yields (w, u, s, s') after each step.

    One quantile q of the negatives' scores is averaged with `weight`; s_i is the loss at q, and 0 where all negatives
    are in the region; s' a quantile of the rows.
    """
    raw = scores, dscores
    alpha, beta = 1 - min_tpr, max_fpr
    w, w_before = list(w), list(w)
    u: dict[int, float] = {}
    s = dict.fromkeys(positives, 0.0)
    s_prime, q = 0.0, None
    for b1, b2 in batches:
        if standardized:
            scores, dscores = on_the_scale_of(b2, *raw)
        kth = sorted((scores(j, w) for j in b2), reverse=True)[math.ceil(beta * len(b2) - 1e-9) - 1]
        q_before = kth if q is None else q
        q = (1 - weight) * q_before + weight * kth
        correction = msvr_gamma(gamma, len(positives), len(b1), tau)
        u_next = dict(u)
        gradient = [0.0] * len(w)
        for i in b1:
            s[i] = loss(q - scores(i, w)) if beta < 1 else 0.0
            s_before = loss(q_before - scores(i, w_before)) if beta < 1 else 0.0
            now = s[i] + sum(max(loss(scores(j, w) - scores(i, w)) - s[i], 0.0) for j in b2) / (beta * len(b2))
            before = s_before + sum(
                max(loss(scores(j, w_before) - scores(i, w_before)) - s_before, 0.0) for j in b2
            ) / (beta * len(b2))
            if i not in u:
                u[i] = now
            u_next[i] = (1 - tau) * u[i] + tau * now + correction * (now - before)
            df = hinge(u[i] - s_prime, 1 / alpha)[1]
            if df:
                for j in b2:
                    z = scores(j, w) - scores(i, w)
                    if loss(z) > s[i]:
                        slope = dloss(z) / (beta * len(b2)) * df / len(b1)
                        for c in range(len(w)):
                            gradient[c] += slope * (dscores(j, w)[c] - dscores(i, w)[c])
        u = u_next
        rows = sorted(u.values(), reverse=True)
        above = max(1, math.floor(alpha * len(rows) + 1e-9))
        s_prime = rows[above] if above < len(rows) else rows[-1] - 2.3e-16 * (1 + abs(rows[-1]))  # below all
        w_before, w = w, [w[c] - lr * gradient[c] for c in range(len(w))]
        yield list(w), dict(u), dict(s), s_prime


def staco(
    scores,
    dscores,
    w,
    positives: Sequence[int],
    batches: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    loss: Callable[[float], float],
    dloss: Callable[[float], float],
    min_tpr: float,
    max_fpr: float,
    dual_lr: float,
    threshold_lr: tuple[float, float],
    lr: float,
    standardized: bool = False,
):
    """STACO, with one batch of negatives for all lines. Yields (w, y, s, s', value) after each step."""
    raw = scores, dscores
    alpha, beta = 1 - min_tpr, max_fpr
    w = list(w)
    y, s, s_prime = dict.fromkeys(positives, 1.0), dict.fromkeys(positives, 0.0), 0.0
    for b1, b2 in batches:
        if standardized:
            scores, dscores = on_the_scale_of(b2, *raw)
        gradient, counted, value = [0.0] * len(w), 0.0, s_prime
        for i in b1:
            z = [scores(j, w) - scores(i, w) for j in b2]
            psi = s[i] + sum(max(loss(x) - s[i], 0.0) for x in z) / (beta * len(b2))
            # the maximum of y (psi - s') / alpha - (y - y_i)^2 / (2 dual_lr) over [0, 1]
            y[i] = min(max(y[i] + dual_lr * (psi - s_prime) / alpha, 0.0), 1.0)
            active = [k for k, x in enumerate(z) if loss(x) > s[i]]
            for k in active:
                slope = y[i] / alpha * dloss(z[k]) / (beta * len(b2)) / len(b1)
                for c in range(len(w)):
                    gradient[c] += slope * (dscores(b2[k], w)[c] - dscores(i, w)[c])
            s[i] -= threshold_lr[0] * y[i] / alpha * (1 - len(active) / (beta * len(b2)))
            counted += y[i] / len(b1)
            value += y[i] / alpha * (psi - s_prime) / len(b1)
        s_prime -= threshold_lr[1] * (1 - counted / alpha)
        w = [w[c] - lr * gradient[c] for c in range(len(w))]
        yield list(w), dict(y), dict(s), s_prime, value


def algorithm_4(
    inner: Callable,
    dinner: Callable,
    pooled: Callable[[Vector], float],
    dpooled: Callable[[Vector], Vector],
    w: Vector,
    positives: Sequence[int],
    negatives: Sequence[int],
    batches: Sequence[tuple[Sequence[int], Sequence[int], dict[int, Sequence[int]]]],
    *,
    loss: Callable[[float], float],
    dloss: Callable[[float], float],
    min_tpr: float,
    max_fpr: float,
    tau: tuple[float, float],
    gamma: tuple[float | str, float | str, float | str],
    lr: float,
    threshold_lr: tuple[float, float],
    bound: float | None = None,
    needs_positive: int | None = None,
    rows: str = "before",
    scale: Callable = lambda b3, w: 1.0,
    standardized: bool = False,
    smoothing: float = 0.0,
):
    """SONT for multi-instance TPAUC. Yields (w, v, u, s, s') after each step, and its value and gradient.

    `inner(i, k, w)` is what instance k of bag i adds to the average v_i, a vector, and `dinner` its gradients; `pooled`
    is h as a function of v, link included, and `dpooled` its gradient. The paper does not say what happens if a
    correction makes the component `needs_positive` of v too small; `moreauc.core.pooling` then leaves it out.

    With rows "after" lines 5 to 9 read v_{t+1} for v_t and v_t for v_{t-1}; all averages of a step may then be
    multiplied by a number of its own, `scale(b3, w)`, which must not change `pooled`. If `standardized`, h is divided
    by the spread of that of the batch's negative bags.
    """
    alpha, beta = 1 - min_tpr, max_fpr
    w = list(w)
    w_before = list(w)
    v: dict[int, Vector] = {}
    v_before: dict[int, Vector] = {}
    u: dict[int, float] = {}
    s = dict.fromkeys(positives, 0.0)
    s_before = dict(s)
    s_prime = 0.0
    for b1, b2, b3 in batches:

        def average(i, point, b3=b3):
            values = [inner(i, k, point) for k in b3[i]]
            factor = scale(b3, point)
            return [factor * sum(value[c] for value in values) / len(values) for c in range(len(values[0]))]

        for i in [*b1, *b2]:
            if i not in v:  # as if it had had this value from the start
                v[i] = v_before[i] = average(i, w)
        v_next, u_next, s_next = dict(v), dict(u), dict(s)
        # line 4
        for bags, everyone, weight in ((b1, positives, gamma[0]), (b2, negatives, gamma[1])):
            weight = msvr_gamma(weight, len(everyone), len(bags), tau[0])
            for i in bags:
                now, before = average(i, w), average(i, w_before)
                plain = [(1 - tau[0]) * v[i][c] + tau[0] * now[c] for c in range(len(now))]
                change = [weight * (now[c] - before[c]) for c in range(len(now))]
                if needs_positive is not None and plain[needs_positive] + change[needs_positive] < (
                    0.1 * plain[needs_positive]
                ):
                    change = [0.0] * len(now)
                v_next[i] = ball([plain[c] + change[c] for c in range(len(now))], bound)
        used, used_before = (v, v_before) if rows == "before" else (v_next, v)
        unit, unit_before = (
            spread([pooled(table[j]) for j in b2]) if standardized else 1.0 for table in (used, used_before)
        )
        gradient = [0.0] * len(w)
        slope_prime = value = 0.0
        weight = msvr_gamma(gamma[2], len(positives), len(b1), tau[1])
        for i in b1:

            def psi(table, unit, threshold, i=i, b2=b2):
                total = 0.0
                for j in b2:
                    total += max(loss((pooled(table[j]) - pooled(table[i])) / unit) - threshold, 0.0)
                return threshold + total / (beta * len(b2))

            # line 5
            now, before = psi(used, unit, s[i]), psi(used_before, unit_before, s_before[i])
            if i not in u:
                u[i] = now
            u_next[i] = (1 - tau[1]) * u[i] + tau[1] * now + weight * (now - before)
            # line 6
            active = [j for j in b2 if loss((pooled(used[j]) - pooled(used[i])) / unit) > s[i]]
            f, df = hinge(u[i] - s_prime, 1 / alpha, smoothing)
            s_next[i] = s[i] - threshold_lr[0] / len(b1) * (1 - len(active) / (beta * len(b2))) * df
            value += (s_prime + f) / len(b1)
            # line 7
            slope_prime += (1 - df) / len(b1)
            # lines 8 and 9
            for j in active:
                slope = dloss((pooled(used[j]) - pooled(used[i])) / unit) / unit / (beta * len(b2)) * df / len(b1)
                slope *= scale(b3, w)
                for bag, sign in ((j, 1.0), (i, -1.0)):
                    for k in b3[bag]:
                        matrix = dinner(bag, k, w)
                        for part, outer in enumerate(dpooled(used[bag])):
                            for c in range(len(w)):
                                gradient[c] += sign * slope * outer * matrix[part][c] / len(b3[bag])
        v_before, s_before = dict(v), dict(s)
        v, s, u = v_next, s_next, u_next
        s_prime -= threshold_lr[1] * slope_prime
        w_before = w
        w = [w[c] - lr * gradient[c] for c in range(len(w))]
        yield list(w), dict(v), dict(u), dict(s), s_prime, value, gradient


# Virtual screening: the mean over all orders of rows with equal scores


def orders_of_ties(labels: Sequence[int], scores: Sequence[float]) -> list[list[int]]:
    """Return the labels from the highest score down, in every order of rows with equal scores."""
    rows = range(len(labels))
    found = []
    for order in itertools.permutations(rows):
        ranked = [scores[row] for row in order]
        if ranked == sorted(scores, reverse=True):
            found.append([labels[row] for row in order])
    return found


def enrichment(ranked: Sequence[int], fraction: Fraction) -> float:
    count = math.ceil(len(ranked) * fraction)
    return (sum(ranked[:count]) / count) / (sum(ranked) / len(ranked))


def bedroc(ranked: Sequence[int], alpha: float) -> float:
    n, positives = len(ranked), sum(ranked)
    ratio = positives / n
    observed = sum(math.exp(-alpha * rank / n) for rank, label in enumerate(ranked, 1) if label)
    chance = ratio * sum(math.exp(-alpha * rank / n) for rank in range(1, n + 1))
    rie = observed / chance
    high = (1 - math.exp(-alpha * ratio)) / (ratio * (1 - math.exp(-alpha)))
    low = (1 - math.exp(alpha * ratio)) / (ratio * (1 - math.exp(alpha)))
    return (rie - low) / (high - low)


def region_shares(scores: Sequence[float], share: float, *, highest: bool) -> Vector:
    """How much of each row is in the region, of sum 1; rows of equal scores at its edge share what is left."""
    taken, left = [0.0] * len(scores), share * len(scores)
    for score in sorted(set(scores), reverse=highest):
        tied = [row for row in range(len(scores)) if scores[row] == score]
        for row in tied:
            taken[row] = min(1.0, max(left, 0.0) / len(tied))
        left -= len(tied)
    total = sum(taken)
    return [part / total for part in taken]


def boosting_round(
    scores: Sequence[float],
    labels: Sequence[int],
    *,
    region: tuple[float, float],
    loss: tuple[Callable, Callable, Callable],
    log_loss_weight: float,
    offset: float = 0.0,
) -> tuple[Vector, Vector]:
    """Gradient and Hessian diagonal of the objective for boosted trees; `loss`: value, slope, size of the curvature."""
    positives, negatives = ([row for row, y in enumerate(labels) if y == kind] for kind in (1, 0))
    sigma = spread([scores[j] for j in negatives]) or 1.0
    a = region_shares([scores[i] for i in positives], 1 - region[0], highest=False)
    b = region_shares([scores[j] for j in negatives], region[1], highest=True)
    n = len(scores)
    gradient, hessian = [0.0] * n, [0.0] * n
    for i, share in zip(positives, a, strict=True):
        for j, other in zip(negatives, b, strict=True):
            z = (scores[j] - scores[i]) / sigma
            slope = n * share * other * loss[1](z) / sigma
            gradient[i] -= slope
            gradient[j] += slope
            for row in (i, j):
                hessian[row] += 2 * n * share * other * loss[2](z) / sigma**2
    for row in range(n):
        p = 1 / (1 + math.exp(-(scores[row] + offset)))
        gradient[row] += log_loss_weight * (p - labels[row])
        hessian[row] += log_loss_weight * p * (1 - p)
    return gradient, hessian
