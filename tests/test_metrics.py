"""Partial AUC scores against pair loops and scikit-learn, and what is built on them."""

from __future__ import annotations

import itertools
import pickle
import warnings
from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import hypergeom, norm
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_breast_cancer
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from moreauc.metrics import (
    StreamingTPAUC,
    bootstrap_interval,
    plot_roc_region,
    tpauc_area_score,
    tpauc_score,
    tpauc_scorer,
)
from moreauc.metrics.bootstrap import BootstrapInterval, tpauc_difference
from moreauc.metrics.ranking import tied_share

WHOLE = {"min_tpr": 0.0, "max_fpr": 1.0}
REGIONS = [(0.0, 1.0), (0.5, 0.5), (0.9, 0.1), (0.3, 0.7), (0.0, 0.2), (0.75, 1.0)]


def pair_loop(y_true, y_score, min_tpr, max_fpr):
    """The definition, with the edges as the decimals they are written as; None where nothing is selected."""
    positives = sorted(float(s) for s, y in zip(y_score, y_true, strict=True) if y == 1)
    negatives = sorted((float(s) for s, y in zip(y_score, y_true, strict=True) if y == 0), reverse=True)
    k1 = int(len(positives) * (1 - Fraction(str(min_tpr))))
    k2 = int(len(negatives) * Fraction(str(max_fpr)))
    if k1 == 0 or k2 == 0:
        return None
    won = Fraction(0)
    for p in positives[:k1]:
        for n in negatives[:k2]:
            won += 1 if p > n else Fraction(1, 2) if p == n else 0
    return float(won / (k1 * k2))


def orders_of_tied_rows(y_true, y_score):
    """Every order of the labels, highest score first, that sorting may give: tied rows in any order."""
    blocks = []
    for score in sorted(set(y_score), reverse=True):
        labels = [int(y) for y, s in zip(y_true, y_score, strict=True) if s == score]
        places = itertools.combinations(range(len(labels)), sum(labels))  # of its positives; all are equally likely
        blocks.append([tuple(int(row in chosen) for row in range(len(labels))) for chosen in places])
    return [sum(order, ()) for order in itertools.product(*blocks)]


def counts_of_region(y_true, min_tpr, max_fpr):
    """Numbers of positives and negatives, and how many of each are selected."""
    positives, negatives = int(np.sum(y_true)), int(len(y_true) - np.sum(y_true))
    return positives, negatives, int(positives * (1 - Fraction(str(min_tpr)))), int(negatives * Fraction(str(max_fpr)))


def mean_curve_share(y_true, y_score, min_tpr, max_fpr):
    """Share of the region under the mean, over all orders of tied rows, of the ROC curves; exact."""
    positives, _, k1, k2 = counts_of_region(y_true, min_tpr, max_fpr)
    orders = np.array(orders_of_tied_rows(y_true, y_score))
    steps = [(0, 0)]
    for t in range(1, len(y_true) + 1):  # (false, true) positives after t rows, mean over the orders
        true = Fraction(int(orders[:, :t].sum()), len(orders))
        steps.append((t - true, true))
    area = Fraction(0)
    for (x0, y0), (x1, y1) in itertools.pairwise(steps):
        area += area_of_piece(x0, y0, x1, y1, right=k2, floor=positives - k1)
    return float(area / (k1 * k2))


def area_of_piece(x0, y0, x1, y1, right, floor):
    """Area between a rising piece of a curve and the level `floor`, up to `right`."""
    if x1 > right:
        if x0 >= right:
            return Fraction(0)
        x1, y1 = right, y0 + (y1 - y0) * Fraction(right - x0) / Fraction(x1 - x0)
    if y0 < floor:
        if y1 <= floor:
            return Fraction(0)
        x0, y0 = x0 + (x1 - x0) * Fraction(floor - y0) / Fraction(y1 - y0), floor
    return Fraction(x1 - x0) * (Fraction(y0 + y1) / 2 - floor)


def mean_share(y_true, y_score, min_tpr, max_fpr):
    """Mean, over all orders of tied rows, of the share of selected pairs that are in order."""
    positives, _, k1, k2 = counts_of_region(y_true, min_tpr, max_fpr)
    total, orders = 0, orders_of_tied_rows(y_true, y_score)
    for order in orders:
        true = false = 0
        for label in order:
            true += label
            if not label and false < k2:  # a selected negative: the selected positives above it win
                false += 1
                total += max(0, true - (positives - k1))
    return total / (len(orders) * k1 * k2)


def an_edge_cuts_tied_rows(y_true, y_score, min_tpr, max_fpr):
    _, _, k1, k2 = counts_of_region(y_true, min_tpr, max_fpr)
    upper, lower = np.sort(y_score[y_true == 1]), np.sort(y_score[y_true == 0])[::-1]
    high, low = upper[k1 - 1], lower[k2 - 1]
    cut_high = k1 < len(upper) and upper[k1] == high and high in lower
    cut_low = k2 < len(lower) and lower[k2] == low and low in upper
    return cut_high or cut_low


def fine_area(y_true, y_score, min_tpr, max_fpr, steps=200_000):
    """The area as a sum over thin columns under the curve, which is walked threshold by threshold."""
    y_true, y_score = np.asarray(y_true), np.asarray(y_score)
    points = [(0.0, 0.0)]
    for threshold in sorted(set(y_score.tolist()), reverse=True):
        above = y_score >= threshold
        points.append((above[y_true == 0].mean(), above[y_true == 1].mean()))
    x = (np.arange(steps) + 0.5) / steps * max_fpr
    fpr, tpr = np.array(points).T
    return float(np.mean(np.maximum(np.interp(x, fpr, tpr) - min_tpr, 0.0)) * max_fpr)


def random_case(rng, low=1, high=25):
    sizes = rng.integers(low, high, size=2)
    y_true = rng.permutation(np.repeat([1, 0], sizes))
    levels = rng.integers(1, 12)  # few levels: heavy ties
    y_score = rng.integers(0, levels, size=len(y_true)) / 7.0
    if rng.random() < 0.2:
        y_score = y_score + rng.normal(size=len(y_true))  # no ties
    return y_true, y_score


def many(n=300, seed=0, shift=1.0, levels=None):
    rng = np.random.default_rng(seed)
    y_true = (rng.random(n) < 0.4).astype(int)
    y_score = rng.normal(size=n) + shift * y_true
    return y_true, y_score if levels is None else np.round(y_score * levels) / levels


# tpauc_score


@pytest.mark.parametrize("seed", range(20))
def test_tpauc_equals_the_pair_loop(seed):
    rng = np.random.default_rng(seed)
    for case in range(50):
        y_true, y_score = random_case(rng, high=3 if case % 10 == 0 else 25)
        edges = np.round(rng.random(2), rng.integers(1, 3))
        min_tpr, max_fpr = (0.0, 1.0) if case % 7 == 0 else (float(min(edges[0], 0.99)), float(max(edges[1], 0.01)))
        want = pair_loop(y_true, y_score, min_tpr, max_fpr)
        with pytest.warns(UndefinedMetricWarning) if want is None else nullcontext():
            got = tpauc_score(y_true, y_score, min_tpr=min_tpr, max_fpr=max_fpr)
        assert isinstance(got, float)
        if want is None:
            assert np.isnan(got)
        elif not an_edge_cuts_tied_rows(y_true, y_score, min_tpr, max_fpr):
            assert got == want


def small_tied_case(rng):
    """At most nine rows of few different scores, and a region that selects of both classes."""
    while True:
        y_true = rng.permutation(np.repeat([1, 0], rng.integers(1, 6, size=2)))[:9]
        y_score = rng.integers(0, rng.integers(1, 4), size=len(y_true)) / 7.0
        region = (0.0, 1.0) if rng.random() < 0.05 else tuple(np.round(rng.uniform(0.05, 0.95, 2), 2).tolist())
        if 0 < y_true.sum() < len(y_true) and min(counts_of_region(y_true, *region)[2:]) > 0:
            return y_true, y_score, region


@pytest.mark.parametrize("seed", range(20))
def test_ties_count_as_the_mean_curve_over_all_orders(seed):
    """A thousand small cases: the mean curve is the score in all of them, the mean score where no edge cuts a block."""
    rng, cut = np.random.default_rng(seed), 0
    for _ in range(50):
        y_true, y_score, region = small_tied_case(rng)
        got = tpauc_score(y_true, y_score, min_tpr=region[0], max_fpr=region[1])
        assert got == pytest.approx(mean_curve_share(y_true, y_score, *region), abs=1e-14)
        want = mean_share(y_true, y_score, *region)
        if an_edge_cuts_tied_rows(y_true, y_score, *region):
            cut += 1
            assert got <= want + 1e-14  # a curve that is cut off is convex in what the order decides
        else:
            assert got == pytest.approx(want, abs=1e-14)
    assert 5 < cut < 45


@pytest.mark.parametrize("region", [(0.5, 0.5), (0.25, 0.75), (0.0, 0.5), (0.5, 1.0), (0.25, 0.5)])
def test_the_mean_score_over_orders_tends_to_the_curve_with_the_number_of_rows(region):
    """One block: the mean over all orders, by the hypergeometric law of the negatives among the lowest rows."""
    for copies in (1, 4, 16, 64):
        positives, negatives = 4 * copies, 8 * copies
        y_true = np.repeat([1, 0], [positives, negatives])
        _, _, k1, k2 = counts_of_region(y_true, *region)
        r, j = np.meshgrid(np.arange(1, k1 + 1), np.arange(negatives - k2 + 1, negatives + 1))
        # the r-th lowest positive beats the j-th lowest negative: at least j negatives among the lowest r + j - 1 rows
        want = hypergeom.sf(j - 1, positives + negatives, negatives, r + j - 1).mean()
        if copies == 1:
            assert want == pytest.approx(mean_share(y_true, np.zeros(len(y_true)), *region), abs=1e-12)
        got = tpauc_score(y_true, np.zeros(len(y_true)), min_tpr=region[0], max_fpr=region[1])
        assert 0 <= want - got < 0.2 / copies


@pytest.mark.parametrize("region", [(0.5, 0.5), (0.3, 0.7), (0.1, 0.9), (0.0, 0.2), (0.75, 1.0)])
@pytest.mark.parametrize("sizes", [(20, 40), (100, 20), (1000, 50_000)])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_constant_model_gets_the_diagonals_share(region, sizes, weighted):
    min_tpr, max_fpr = region
    y_true = np.repeat([1, 0], sizes)
    weight = np.full(len(y_true), 3.0) if weighted else None
    share = max(0.0, max_fpr - min_tpr) ** 2 / (2 * (1 - min_tpr) * max_fpr)
    got = tpauc_score(y_true, np.full(len(y_true), 7.0), min_tpr=min_tpr, max_fpr=max_fpr, sample_weight=weight)
    assert got == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize("region", [*REGIONS, (0.5, 0.1)])
@pytest.mark.parametrize("levels", [None, 1, 3])
def test_the_score_is_the_share_of_the_area_ties_or_not(region, levels):
    y_true, y_score = np.repeat([1, 0], [40, 80]), np.random.default_rng(0).normal(size=120)
    y_score[:40] += 1
    y_score = y_score if levels is None else np.round(y_score * levels) / levels
    options = {"min_tpr": region[0], "max_fpr": region[1]}
    area = tpauc_area_score(y_true, y_score, **options) / ((1 - region[0]) * region[1])
    assert tpauc_score(y_true, y_score, **options) == pytest.approx(area, abs=1e-12)
    assert tpauc_score(y_true, y_score, sample_weight=np.ones(120), **options) == pytest.approx(area, abs=1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_tied_share_by_a_loop(seed):
    rng = np.random.default_rng(seed)
    y_true, y_score = random_case(rng, low=3)
    min_tpr, max_fpr = np.round(rng.uniform(0.0, 0.6), 1), np.round(rng.uniform(0.4, 1.0), 1)
    _, _, k1, k2 = counts_of_region(y_true, min_tpr, max_fpr)
    upper, lower = sorted(y_score[y_true == 1]), sorted(y_score[y_true == 0], reverse=True)
    tied = sum(s in lower for s in upper[:k1]) + sum(s in upper for s in lower[:k2])
    want = tied / (k1 + k2) if k1 and k2 else 0.0
    assert tied_share(y_true, y_score, min_tpr=min_tpr, max_fpr=max_fpr) == want


@pytest.mark.parametrize("levels", [None, 1, 4])
def test_the_whole_square_is_the_auc_of_sklearn(levels):
    y_true, y_score = many(levels=levels)
    weight = np.random.default_rng(1).random(len(y_true))
    for w in (None, weight):
        got = tpauc_score(y_true, y_score, min_tpr=0.0, max_fpr=1.0, sample_weight=w)
        assert got == pytest.approx(roc_auc_score(y_true, y_score, sample_weight=w), abs=1e-14)


@pytest.mark.parametrize("n", [10, 30, 70, 100, 1000, 10_000])
@pytest.mark.parametrize("percent", [1, 3, 7, 10, 30, 57, 70, 90, 99])
def test_the_floor_forgives_rounding(n, percent):
    """All but k - 1 positives beat the only negative, so that 1 / k is the score where just k are selected."""
    k = n * (100 - percent) // 100
    y_true = np.r_[np.ones(n), 0]
    y_score = np.r_[np.full(max(k - 1, 0), -1.0), np.full(n - max(k - 1, 0), 1.0), 0.0]
    for share in ((100 - percent) / 100, 1 - percent / 100):
        with nullcontext() if k else pytest.warns(UndefinedMetricWarning):
            low = tpauc_score(y_true, y_score, min_tpr=1 - share, max_fpr=1.0)
            high = tpauc_score(1 - y_true, -y_score, min_tpr=0.0, max_fpr=share)
            written = tpauc_score(y_true, y_score, min_tpr=percent / 100, max_fpr=1.0)
        assert [low, high, written] == [1 / k] * 3 if k else np.isnan([low, high, written]).all()


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("levels", [None, 3])
@pytest.mark.parametrize("weighted", [False, True])
class TestInvariances:
    @staticmethod
    def score(y_true, y_score, region, weight):
        return tpauc_score(y_true, y_score, min_tpr=region[0], max_fpr=region[1], sample_weight=weight)

    @pytest.fixture
    def data(self, levels, weighted):
        y_true, y_score = many(levels=levels)
        return y_true, y_score, np.random.default_rng(3).random(len(y_true)) if weighted else None

    def test_order_of_samples(self, data, region):
        y_true, y_score, weight = data
        order = np.random.default_rng(1).permutation(len(y_true))
        again = self.score(y_true[order], y_score[order], region, None if weight is None else weight[order])
        assert again == pytest.approx(self.score(y_true, y_score, region, weight), abs=1e-13)

    @pytest.mark.parametrize("transform", [np.exp, lambda s: 5 * s - 3, lambda s: s**3, np.arctan])
    def test_monotone_transforms(self, data, region, transform):
        y_true, y_score, weight = data
        assert self.score(y_true, transform(y_score), region, weight) == self.score(y_true, y_score, region, weight)

    def test_classes_exchanged(self, data, region):
        y_true, y_score, weight = data
        other = (1 - region[1], 1 - region[0])
        again = self.score(1 - y_true, -y_score, other, weight)
        assert again == pytest.approx(self.score(y_true, y_score, region, weight), abs=1e-13)

    def test_scale_of_weights(self, data, region):
        y_true, y_score, weight = data
        if weight is not None:
            for scale in (1e-300, 1e300):
                again = self.score(y_true, y_score, region, scale * weight)
                assert again == pytest.approx(self.score(y_true, y_score, region, weight), abs=1e-13)


@pytest.mark.parametrize(
    "convert",
    [list, tuple, torch.tensor, lambda v: np.asarray(v, dtype=object), lambda v: np.repeat(v, 2)[::2]],
    ids=["list", "tuple", "tensor", "object", "strided"],
)
def test_kinds_of_input(convert):
    y_true, y_score = many(levels=4)
    want = tpauc_score(y_true, y_score, min_tpr=0.5, max_fpr=0.5)
    assert tpauc_score(convert(y_true), convert(y_score), min_tpr=0.5, max_fpr=0.5) == want
    for dtype in (bool, np.uint8, np.int64, np.float32, np.float64):
        assert tpauc_score(y_true.astype(dtype), y_score, min_tpr=0.5, max_fpr=0.5) == want


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.longdouble, np.int8, np.uint8, bool])
def test_types_of_scores(dtype):
    y_true, y_score = many()
    y_score = (8 * y_score).clip(0, 100).astype(dtype)
    want = pair_loop(y_true, y_score, 0.0, 1.0)
    assert tpauc_score(y_true, y_score, min_tpr=0.0, max_fpr=1.0) == want


def test_integer_scores_are_not_rounded():
    assert tpauc_score([1, 0], [2**60 + 1, 2**60], min_tpr=0.0, max_fpr=1.0) == 1.0


def test_input_is_left_alone():
    y_true, y_score = many()
    before = y_true.copy(), y_score.copy()
    tpauc_score(y_true, y_score, min_tpr=0.2, max_fpr=0.3, sample_weight=np.ones(len(y_true)))
    assert np.array_equal(before[0], y_true) and np.array_equal(before[1], y_score)


# weights


@pytest.mark.parametrize("region", [(0.0, 1.0), (0.5, 0.5), (0.9, 0.1), (0.3, 0.7), (0.8, 0.25)])
@pytest.mark.parametrize("seed", range(5))
def test_integer_weights_are_repetitions(region, seed):
    rng = np.random.default_rng(seed)
    y_true = np.repeat([1, 0], [12, 17])
    weight = rng.integers(0, 5, size=29)
    weight[[0, 12]] += [-weight[:12].sum() % 20, -weight[12:].sum() % 20]  # so that every edge is a whole number
    y_score = rng.integers(0, 8, size=29)
    want = tpauc_score(np.repeat(y_true, weight), np.repeat(y_score, weight), min_tpr=region[0], max_fpr=region[1])
    got = tpauc_score(y_true, y_score, min_tpr=region[0], max_fpr=region[1], sample_weight=weight)
    assert got == pytest.approx(want, abs=1e-14)


def test_a_perfect_order_is_at_most_1_whatever_the_weights_are():
    y_true = np.repeat([1, 0], [5, 7])
    for seed in range(30):
        rng = np.random.default_rng(seed)
        options = {"min_tpr": 0.3, "max_fpr": 0.7, "sample_weight": rng.random(12)}
        assert 1.0 - 1e-14 < tpauc_score(y_true, y_true + 0.01 * rng.random(12), **options) <= 1.0


def test_the_last_sample_is_taken_in_part():
    """1.5 of the positives 1, 3 against the negatives 2, 0: (1 * 1/2 + 0.5 * 1) / 1.5."""
    got = tpauc_score([1, 1, 1, 0, 0], [1, 3, 5, 2, 0], min_tpr=0.5, max_fpr=1.0, sample_weight=np.ones(5))
    assert got == pytest.approx(1.0 / 1.5)
    assert tpauc_score([1, 1, 1, 0, 0], [1, 3, 5, 2, 0], min_tpr=0.5, max_fpr=1.0) == 0.5  # the floor


# other scales


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("seed", range(4))
def test_area_by_thin_columns(region, seed):
    y_true, y_score = random_case(np.random.default_rng(seed), low=5)
    got = tpauc_area_score(y_true, y_score, min_tpr=region[0], max_fpr=region[1])
    assert got == pytest.approx(fine_area(y_true, y_score, *region), abs=2e-5)
    assert 0.0 <= got <= (1 - region[0]) * region[1] + 1e-15


def test_no_curve_in_the_region():
    assert tpauc_area_score([1, 1, 0, 0], [0.1, 0.2, 0.8, 0.9], min_tpr=0.5, max_fpr=0.5) == 0.0


@pytest.mark.parametrize("max_fpr", [0.01, 0.1, 0.33, 0.5, 1.0])
@pytest.mark.parametrize("levels", [None, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_area_on_mcclishs_scale_is_that_of_sklearn(max_fpr, levels, weighted):
    y_true, y_score = many(levels=levels)
    weight = np.random.default_rng(2).random(len(y_true)) if weighted else None
    want = roc_auc_score(y_true, y_score, max_fpr=max_fpr, sample_weight=weight)
    area, chance = tpauc_area_score(y_true, y_score, min_tpr=0.0, max_fpr=max_fpr, sample_weight=weight), max_fpr**2 / 2
    got = (1.0 + (area - chance) / (max_fpr - chance)) / 2
    assert got == pytest.approx(want, abs=1e-14)


# undefined and wrong input

ALL = [(f, {"min_tpr": 0.5, "max_fpr": 0.5}) for f in (tpauc_score, tpauc_area_score)]
each_metric = pytest.mark.parametrize(("metric", "region"), ALL, ids=lambda v: getattr(v, "__name__", ""))


@each_metric
@pytest.mark.parametrize(("label", "missing"), [(0, "positives"), (1, "negatives")])
def test_one_class_is_undefined(metric, region, label, missing):
    with pytest.warns(UndefinedMetricWarning, match=f"{metric.__name__}: .* there are no {missing}") as caught:
        assert np.isnan(metric([label] * 3, [0.1, 0.2, 0.3], **region))
    assert caught[0].filename == __file__


@each_metric
def test_a_class_without_weight_is_undefined(metric, region):
    with pytest.warns(UndefinedMetricWarning, match="the negatives have no weight"):
        assert np.isnan(metric([1, 1, 0, 0], [1, 2, 3, 4], sample_weight=[1, 1, 0, 0], **region))


@pytest.mark.parametrize(
    ("min_tpr", "max_fpr", "match"),
    [(0.8, 1.0, r"floor\(4 positives .* min_tpr = 0.8"), (0.0, 0.1, r"floor\(6 negatives .* max_fpr = 0.1")],
)
def test_nothing_selected_is_undefined(min_tpr, max_fpr, match):
    with pytest.warns(UndefinedMetricWarning, match=match):
        assert np.isnan(tpauc_score([1] * 4 + [0] * 6, range(10), min_tpr=min_tpr, max_fpr=max_fpr))


@each_metric
@pytest.mark.parametrize(
    ("y_true", "y_score", "weight", "match"),
    [
        ([0, 1, 2], [1, 2, 3], None, "y_true must hold 0 and 1 only, got 2"),
        ([-1, 1, 1], [1, 2, 3], None, "y_true must hold 0 and 1 only, got -1"),
        ([0, 1, np.nan], [1, 2, 3], None, "y_true must hold 0 and 1 only, got nan"),
        (["a", "b"], [1, 2], None, "y_true must be a vector of real numbers, got dtype <U1"),
        ([0, 1], [1, 1j], None, "y_score must be a vector of real numbers, got dtype complex128"),
        ([0, 1], [[1], [1, 2]], None, "y_score must be a vector of real numbers, got a list in a list"),
        (pd.Series(["n", "y"]), [1, 2], None, "y_true must be a vector of real numbers, got 'n' in a Series"),
        ([0, 1], [[0.1], [0.2]], None, r"y_score must have shape \(n,\), got \(2, 1\)"),
        ([[0, 1]], [0.1, 0.2], None, r"y_true must have shape \(n,\), got \(1, 2\)"),
        ([0, 1], 0.5, None, r"y_score must have shape \(n,\), got \(\)"),
        ([0, 1, 1], [0.1, 0.2], None, "y_score must be as long as y_true, 3, got 2"),
        ([], [], None, "y_true must hold at least one label, got 0"),
        ([0, 1, 1], [0.1, np.nan, np.nan], None, r"y_score must be finite, got nan \(2 such entries\)"),
        ([0, 1], [0.1, -np.inf], None, r"y_score must be finite, got -inf \(1 such entries\)"),
        ([0, 1], [0.1, 0.2], [1.0], "sample_weight must be as long as y_true, 2, got 1"),
        ([0, 1], [0.1, 0.2], [1.0, -2.0], "sample_weight must be at least 0, got -2.0"),
        ([0, 1], [0.1, 0.2], [1.0, np.inf], "sample_weight must be finite, got inf"),
        ([0, 1], [0.1, 0.2], [[1.0, 1.0]], r"sample_weight must have shape \(n,\), got \(1, 2\)"),
    ],
)
def test_wrong_data(metric, region, y_true, y_score, weight, match):
    with pytest.raises(ValueError, match=f"{metric.__name__}: {match}"):
        metric(y_true, y_score, sample_weight=weight, **region)


@pytest.mark.parametrize(
    "function",
    [
        *(lambda f=f, **region: f([0, 1], [0, 1], **region) for f in (tpauc_score, tpauc_area_score)),
        tpauc_scorer,
        StreamingTPAUC,
        lambda **region: plot_roc_region([0, 1], [0, 1], **region),
    ],
)
@pytest.mark.parametrize(
    ("name", "value"),
    [("min_tpr", v) for v in (1.0, -0.1, np.nan, "0.5", None)] + [("max_fpr", v) for v in (0.0, 1.1, np.inf, True)],
)
def test_edges_out_of_range(function, name, value):
    allowed = {"min_tpr": r"\[0, 1\)", "max_fpr": r"\(0, 1\]"}[name]
    with pytest.raises(ValueError, match=f"{name} must be a number in {allowed}, got {value!r}"):
        function(**{"min_tpr": 0.5, "max_fpr": 0.5, name: value})


# scorer


@pytest.mark.parametrize("model", [make_pipeline(StandardScaler(), LogisticRegression()), GaussianNB()])
def test_scorer_in_cross_validation(model):
    """A model with a decision function, and one with probabilities only."""
    X, y = load_breast_cancer(return_X_y=True)
    X = X[:, :4]
    scores = cross_val_score(model, X, y, scoring=tpauc_scorer(min_tpr=0.5, max_fpr=0.5), cv=3, error_score="raise")
    assert ((scores > 0.3) & (scores < 1)).all()
    fitted = model.fit(X, y)
    response = getattr(fitted, "decision_function", lambda X: fitted.predict_proba(X)[:, 1])(X)
    got = tpauc_scorer(min_tpr=0.5, max_fpr=0.5)(fitted, X, y)
    assert got == tpauc_score(y, response, min_tpr=0.5, max_fpr=0.5)


class Column(ClassifierMixin, BaseEstimator):
    """Gives the first column as its score."""

    classes_ = np.array([0, 1])

    def decision_function(self, X):
        return X[:, 0]


def test_a_search_does_not_choose_a_constant():
    rng = np.random.default_rng(0)
    y = (np.arange(400) % 10 == 0).astype(int)
    X = rng.normal(size=(400, 1)) + 1.2 * y[:, None]
    scorer = tpauc_scorer(min_tpr=0.5, max_fpr=0.2)
    constant, useful = (
        cross_val_score(model, X, y, scoring=scorer, cv=4) for model in (DummyClassifier(), GaussianNB())
    )
    assert constant.mean() < useful.mean() < 0.5


@pytest.mark.parametrize("names", [("benign", "ill"), ("well", "ill"), (0, 1), (1, 0)])
def test_the_scorer_finds_the_class_that_is_named(names):
    """The second name is to be found, whether it comes first or last in the order of the classes."""
    X, y = load_breast_cancer(return_X_y=True)
    X = X[:, :2].round(0)  # with ties
    options = {"min_tpr": 0.5, "max_fpr": 0.5}
    expected = tpauc_scorer(**options)(GaussianNB().fit(X, y), X, y)
    named = np.array(names)[y]
    scorer = tpauc_scorer(**options, positive_label=names[1])
    assert scorer(GaussianNB().fit(X, named), X, named) == pytest.approx(expected, rel=1e-12)
    linear = LogisticRegression(max_iter=5000).fit(X, named)  # by its decision_function
    plain = tpauc_scorer(**options)(LogisticRegression(max_iter=5000).fit(X, y), X, y)
    assert scorer(linear, X, named) == pytest.approx(plain, abs=1e-3)
    assert "pos_label" in repr(scorer)
    assert pickle.loads(pickle.dumps(scorer))(linear, X, named) == scorer(linear, X, named)


def test_the_scorer_refuses_a_label_that_is_none_and_more_than_two_classes():
    X, y = np.arange(12.0)[:, None], np.array(["a", "b"] * 6)
    with pytest.raises(ValueError, match="pos_label=c is not a valid label"):
        tpauc_scorer(min_tpr=0.5, max_fpr=0.5, positive_label="c")(GaussianNB().fit(X, y), X, y)
    with pytest.raises(ValueError, match="tpauc_scorer: y must hold two classes, got 3"):
        tpauc_scorer(min_tpr=0.5, max_fpr=0.5, positive_label="a")(GaussianNB().fit(X, y), X, [*y[:-1], "c"])


# streaming


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("kind", [np.float64, list, torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_streaming_equals_batch(region, kind):
    y_true, y_score = many(levels=4)
    meter = StreamingTPAUC(min_tpr=region[0], max_fpr=region[1])
    for start in range(0, len(y_true), 7):
        labels, scores = y_true[start : start + 7], y_score[start : start + 7].copy()
        if isinstance(kind, torch.dtype):  # as models give them
            scores, labels = torch.tensor(scores, dtype=kind, requires_grad=True), torch.tensor(labels).bool()
            meter.update(scores, labels)
            scores.detach().neg_()  # the meter keeps no reference to the batch
        else:
            meter.update(kind(scores), labels)
    want = tpauc_score(y_true, y_score, min_tpr=region[0], max_fpr=region[1])
    assert meter.compute() == want
    assert meter.compute() == want  # computing changes nothing
    meter.reset()
    meter.update([1, 0], [1, 0])
    assert repr(meter).endswith("1 positives, 1 negatives")


def test_meters_merge_and_pickle():
    y_true, y_score = many()
    meters = [StreamingTPAUC(min_tpr=0.5, max_fpr=0.5) for _ in range(3)]
    for part, meter in enumerate(meters):
        meter.update(y_score[part::3], y_true[part::3])
    meters = [pickle.loads(pickle.dumps(meter)) for meter in meters]
    alone = meters[1].compute()
    joined = meters[0].merge(meters[1]).merge(meters[2])
    assert joined is meters[0]
    assert joined.compute() == tpauc_score(y_true, y_score, min_tpr=0.5, max_fpr=0.5)
    joined.update([0.0], [1])
    assert meters[1].compute() == alone
    with pytest.raises(ValueError, match=r"other must have min_tpr = 0.5 and max_fpr = 0.5, got 0.5 and 0.4"):
        joined.merge(StreamingTPAUC(min_tpr=0.5, max_fpr=0.4))


def test_an_empty_meter_is_undefined():
    meter = StreamingTPAUC(min_tpr=0.5, max_fpr=0.5)
    meter.update([], [])
    with pytest.warns(UndefinedMetricWarning, match="StreamingTPAUC: .* there are no positives"):
        assert np.isnan(meter.compute())


@pytest.mark.parametrize(
    ("scores", "labels", "match"),
    [
        ([0.1, np.nan], [0, 1], "scores must be finite"),
        ([0.1, 0.2], [0, 3], "labels must hold 0 and 1 only, got 3"),
        ([0.1, 0.2], [0], "scores must be as long as labels, 1, got 2"),
        (torch.zeros(2, 1), [0, 1], r"scores must have shape \(n,\), got \(2, 1\)"),
    ],
)
def test_a_wrong_batch_is_not_added(scores, labels, match):
    meter = StreamingTPAUC(min_tpr=0.5, max_fpr=0.5)
    with pytest.raises(ValueError, match=f"StreamingTPAUC: {match}"):
        meter.update(scores, labels)
    assert repr(meter).endswith("0 positives, 0 negatives")


# bootstrap


def test_bootstrap_is_determined_by_its_seed():
    y_true, y_score = many(100)
    state = np.random.get_state()[1].copy()
    first, second, other = (
        bootstrap_interval(tpauc_score, y_true, y_score, min_tpr=0.5, max_fpr=0.5, resamples=50, seed=seed)
        for seed in (3, 3, 4)
    )
    assert first == second and (first.low, first.high) != (other.low, other.high)
    assert first.estimate == other.estimate == tpauc_score(y_true, y_score, min_tpr=0.5, max_fpr=0.5)
    assert np.array_equal(state, np.random.get_state()[1])
    with pytest.raises(AttributeError):
        first.low = 0.0


@pytest.mark.parametrize("stratified", [True, False])
def test_bootstrap_ends_are_quantiles(stratified):
    """The interval grows with the level and shrinks with the data."""
    widths = []
    for n, level in ((100, 0.95), (100, 0.5), (1600, 0.5)):
        data = many(n)  # any metric will do
        interval = bootstrap_interval(
            tpauc_score, *data, level=level, resamples=200, stratified=stratified, min_tpr=0.0, max_fpr=1.0
        )
        assert (interval.level, interval.resamples, interval.undefined) == (level, 200, 0)
        assert interval.low < interval.estimate < interval.high
        widths.append(interval.high - interval.low)
    assert widths[0] > 2 * widths[1] > 4 * widths[2]


def test_bootstrap_covers_the_true_score():
    truth, inside = norm.cdf(1 / np.sqrt(2)), 0
    for seed in range(100):
        interval = bootstrap_interval(tpauc_score, *many(150, seed=seed), **WHOLE, level=0.9, resamples=150, seed=seed)
        inside += interval.low <= truth <= interval.high
    assert 82 <= inside <= 97  # 90 expected, standard deviation 3


def test_bootstrap_draws_weights_with_their_samples():
    """A sample without weight changes nothing, wherever it is drawn."""
    y_true, y_score = many(60)
    weight = np.ones(60)
    weight[::3] = 0
    flipped = np.where(weight == 0, -100.0, y_score)
    first, second = (
        bootstrap_interval(tpauc_score, y_true, s, sample_weight=weight, min_tpr=0.5, max_fpr=0.5, resamples=30)
        for s in (y_score, flipped)
    )
    assert first.low == pytest.approx(second.low) and first.high == pytest.approx(second.high)


def test_bootstrap_counts_undefined_resamples():
    y_true, y_score = [1, 0, 0, 0, 0, 0], [3.0, 1, 2, 3, 4, 5]
    interval = bootstrap_interval(tpauc_score, y_true, y_score, **WHOLE, resamples=300, stratified=False)
    assert 60 < interval.undefined < 140  # (5/6)^6 = 0.33 have no positive
    assert 0.0 <= interval.low <= interval.high <= 1.0
    assert bootstrap_interval(tpauc_score, y_true, y_score, **WHOLE, resamples=300).undefined == 0


def test_bootstrap_without_any_score():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        interval = bootstrap_interval(tpauc_score, [1, 1], [1, 2], **WHOLE, resamples=5)
    assert [w.category for w in caught] == [UndefinedMetricWarning] * 2  # the estimate, the ends
    assert "none of 5 resamples has a score" in str(caught[1].message)
    assert np.isnan([interval.estimate, interval.low, interval.high]).all() and interval.undefined == 5
    assert isinstance(interval, BootstrapInterval)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"level": 1.0}, r"level must be a number in \(0, 1\), got 1.0"),
        ({"level": 0}, r"level must be a number in \(0, 1\), got 0"),
        ({"resamples": 0}, "resamples must be an integer of at least 1, got 0"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"seed": None}, "seed must be an integer of at least 0, got None"),
        ({"y_true": [0, 1, 1]}, "y_score must be as long as y_true, 3, got 2"),
        ({"y_true": [], "y_score": []}, "y_true must hold at least one label, got 0"),
        ({"sample_weight": [1]}, "sample_weight must be as long as y_true, 2, got 1"),
    ],
)
def test_bootstrap_wrong_arguments(change, match):
    with pytest.raises(ValueError, match=f"bootstrap_interval: {match}"):
        bootstrap_interval(tpauc_score, **{"y_true": [0, 1], "y_score": [0, 1], **WHOLE, **change})


def test_the_error_of_a_difference_of_aucs_is_delongs():
    random = np.random.default_rng(0)
    labels = np.arange(60) % 3 == 0
    one, two = random.normal(size=(2, 60)) + labels
    high, low = np.flatnonzero(labels), np.flatnonzero(~labels)

    def parts(scores):
        upper = [np.mean([scores[i] > scores[j] for j in low]) for i in high]
        lower = [np.mean([scores[i] > scores[j] for i in high]) for j in low]
        return np.array(upper), np.array(lower)

    (a, b), (c, d) = parts(one), parts(two)
    wanted = np.sqrt(np.var(a - c, ddof=1) / len(high) + np.var(b - d, ddof=1) / len(low))
    gain, error = tpauc_difference(labels, one, two, min_tpr=0.0, max_fpr=1.0)
    assert error == pytest.approx(wanted, rel=1e-12)
    assert gain == pytest.approx(a.mean() - c.mean())


def test_the_error_of_a_difference_in_a_region_is_that_of_resampling():
    random = np.random.default_rng(1)
    labels = np.arange(900) % 3 == 0
    one = random.normal(size=900) + labels
    two = one + 0.5 * random.normal(size=900)
    region = {"min_tpr": 0.4, "max_fpr": 0.5}
    drawn = []
    for _ in range(300):
        rows = np.concatenate(
            [random.choice(np.flatnonzero(labels == kind), (labels == kind).sum()) for kind in (0, 1)]
        )
        drawn.append(tpauc_score(labels[rows], one[rows], **region) - tpauc_score(labels[rows], two[rows], **region))
    assert tpauc_difference(labels, one, two, **region)[1] == pytest.approx(np.std(drawn), rel=0.15)


# plot


@pytest.fixture
def plt():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


def test_plot_shows_curves_scores_and_region(plt):
    y_true, y_score = many()
    ax = plot_roc_region(y_true, {"ours": y_score, "theirs": -y_score}, min_tpr=0.4, max_fpr=0.3)
    ours, theirs = (tpauc_score(y_true, s, min_tpr=0.4, max_fpr=0.3) for s in (y_score, -y_score))
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == [f"ours: TPAUC {ours:.3f}", f"theirs: TPAUC {theirs:.3f}", "TPR >= 0.4, FPR <= 0.3"]
    (patch,) = ax.patches
    assert np.allclose([*patch.get_xy(), patch.get_width(), patch.get_height()], [0, 0.4, 0.3, 0.6])
    for line in ax.lines[:2]:
        assert np.array_equal(line.get_xydata()[[0, -1]], [[0, 0], [1, 1]])
    assert np.trapezoid(*ax.lines[0].get_data()[::-1]) == pytest.approx(roc_auc_score(y_true, y_score))
    ax.figure.canvas.draw()


def test_plot_into_given_axes(plt):
    _, (left, right) = plt.subplots(1, 2)
    assert plot_roc_region([1, 1, 0, 0], [4, 3, 2, 1], min_tpr=0.5, max_fpr=0.5, ax=right) is right
    assert not left.lines and right.get_legend().get_texts()[0].get_text() == "TPAUC 1.000"
    assert len(plt.get_fignums()) == 1


@pytest.mark.parametrize(
    ("y_true", "y_score", "match"),
    [
        ([1, 1], [1, 2], "y_true must hold both classes, got 2 positives, 0 negatives"),
        ([0, 1], {}, "y_score must hold at least one vector of scores, got an empty mapping"),
        ([0, 1], {"ours": [1, np.nan]}, r"y_score\['ours'\] must be finite, got nan"),
    ],
)
def test_plot_wrong_arguments(plt, y_true, y_score, match):
    with pytest.raises(ValueError, match=f"plot_roc_region: {match}"):
        plot_roc_region(y_true, y_score, min_tpr=0.5, max_fpr=0.5)
    assert not plt.get_fignums()


EXTREME = {
    "heavy tails": lambda scores: scores**25,
    "near the largest float": lambda scores: scores * 1e307,
    "over the largest range": lambda scores: np.where(scores > 0, 1.7e308, -1.7e308),
    "smallest floats": lambda scores: np.round(scores) * 5e-324,
    "neighbours": lambda scores: 1.0 + np.round(4 * scores) * np.finfo(float).eps,
    "int64": lambda scores: 2**62 + np.round(4 * scores).astype(np.int64),
    "uint64": lambda scores: np.uint64(2**63) + np.round(4 * scores + 99).astype(np.uint64),
}


@pytest.mark.parametrize("kind", EXTREME)
@pytest.mark.parametrize("positives", [1, 40, 900])
def test_pairs_of_extreme_scores(kind, positives):
    y_true, y_score = np.repeat([1, 0], [positives, 500]), np.random.default_rng(3).normal(size=positives + 500)
    upper, lower = np.split(EXTREME[kind](y_score), [positives])
    expected = np.mean([(p > lower) + 0.5 * (p == lower) for p in upper])
    got = tpauc_score(y_true, EXTREME[kind](y_score), min_tpr=0.0, max_fpr=1.0)
    assert got == pytest.approx(expected, abs=1e-12)
