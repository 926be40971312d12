"""Partial AUC scores against plain loops in exact arithmetic and scikit-learn, and what is built on them."""

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
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.naive_bayes import GaussianNB

from moreauc.metrics import (
    StreamingTPAUC,
    bootstrap_interval,
    plot_roc_region,
    tpauc_area_score,
    tpauc_score,
    tpauc_scorer,
)
from moreauc.metrics.bootstrap import tpauc_difference
from moreauc.metrics.ranking import selection_scores, tied_share, ties_text

HALF = {"min_tpr": 0.5, "max_fpr": 0.5}
WHOLE = {"min_tpr": 0.0, "max_fpr": 1.0}
REGIONS = [(0.0, 1.0), (0.5, 0.5), (0.9, 0.1), (0.3, 0.7), (0.0, 0.2), (0.75, 1.0)]


def exact(number):
    """The decimal that a number is written as."""
    return Fraction(str(number))


def selected(y_true, min_tpr, max_fpr):
    positives, negatives = int(np.sum(y_true)), int(len(y_true) - np.sum(y_true))
    return int(positives * (1 - exact(min_tpr))), int(negatives * exact(max_fpr))


def pair_share(y_true, y_score, min_tpr, max_fpr):
    """The definition for scores without ties: share of the selected pairs that are in order."""
    k1, k2 = selected(y_true, min_tpr, max_fpr)
    lowest = sorted(s for s, y in zip(y_score, y_true, strict=True) if y)[:k1]
    highest = sorted((s for s, y in zip(y_score, y_true, strict=True) if not y), reverse=True)[:k2]
    return sum(p > n for p in lowest for n in highest) / (k1 * k2)


def area(y_true, y_score, weights, floor, right):
    """Area under the curve of (false, true) positive weight, straight through ties, above `floor` and up to `right`."""
    rows = [(s, y, Fraction(w)) for s, y, w in zip(y_score, y_true, weights, strict=True)]
    points = [(Fraction(0), Fraction(0))]
    for score in sorted({s for s, _, _ in rows}, reverse=True):
        own = [sum(w for s, y, w in rows if s >= score and y == label) for label in (0, 1)]
        points.append((Fraction(own[0]), Fraction(own[1])))
    total = Fraction(0)
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x1 > right and x1 > x0:
            y1 = y0 + (y1 - y0) * max(right - x0, Fraction(0)) / (x1 - x0)
            x1 = max(right, x0)
        if y0 < floor:
            x0 = x1 if y1 <= floor else x0 + (x1 - x0) * (floor - y0) / (y1 - y0)
            y0 = floor
        total += (x1 - x0) * ((y0 + max(y1, floor)) / 2 - floor)
    return total


def curve_share(y_true, y_score, min_tpr, max_fpr):
    """Share of the region, whose edges are at whole numbers of rows, that lies under the curve."""
    k1, k2 = selected(y_true, min_tpr, max_fpr)
    floor = Fraction(int(np.sum(y_true)) - k1)
    return float(area(y_true, y_score, [1] * len(y_true), floor, Fraction(k2)) / (k1 * k2))


def random_case(rng, ties=True, low=1, high=12):
    y_true = rng.permutation(np.repeat([1, 0], rng.integers(low, high, size=2)))
    levels = rng.integers(1, 6) if ties else 10**6
    return y_true, rng.integers(0, levels, size=len(y_true)) / 8.0


def many(n=300, seed=0, levels=None):
    rng = np.random.default_rng(seed)
    y_true = (rng.random(n) < 0.4).astype(int)
    y_score = rng.normal(size=n) + y_true
    return y_true, y_score if levels is None else np.round(y_score * levels) / levels


# scores


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_the_score_is_the_share_of_pairs_and_of_the_region(seed, ties):
    rng = np.random.default_rng(seed)
    for _ in range(60):
        y_true, y_score = random_case(rng, ties)
        region = tuple(np.round(rng.random(2), rng.integers(1, 3)).clip([0.0, 0.01], [0.99, 1.0]).tolist())
        if min(selected(y_true, *region)) == 0:
            with pytest.warns(UndefinedMetricWarning):
                assert np.isnan(tpauc_score(y_true, y_score, min_tpr=region[0], max_fpr=region[1]))
            continue
        got = tpauc_score(y_true, y_score, min_tpr=region[0], max_fpr=region[1])
        assert type(got) is float and got == pytest.approx(curve_share(y_true, y_score, *region), abs=1e-14)
        if len(set(y_score)) == len(y_score):
            assert got == pytest.approx(pair_share(y_true, y_score, *region), abs=1e-14)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_areas_and_weighted_scores_are_those_of_the_curve(seed, weighted):
    rng = np.random.default_rng(seed)
    for low, high in REGIONS:
        y_true, y_score = random_case(rng, ties=seed % 2 == 0)
        weights = rng.integers(0, 5, size=len(y_true)) / 4.0 if weighted else np.ones(len(y_true))
        if weighted:
            weights[[y_true.argmax(), y_true.argmin()]] = 0.25  # no class without weight
        mass = [Fraction(weights[y_true == label].sum()) for label in (1, 0)]
        inside = area(y_true, y_score, weights, exact(low) * mass[0], exact(high) * mass[1]) / (mass[0] * mass[1])
        options = {"min_tpr": low, "max_fpr": high, "sample_weight": weights if weighted else None}
        assert tpauc_area_score(y_true, y_score, **options) == pytest.approx(float(inside), abs=1e-13)
        options["sample_weight"] = weights
        want = float(inside) / ((1 - low) * high)
        for scale in (1.0, 1e300, 1e-300):
            got = tpauc_score(y_true, y_score, **options | {"sample_weight": scale * weights})
            assert got == pytest.approx(want, abs=1e-13)


def test_a_perfect_order_is_at_most_1_whatever_the_weights_are():
    for seed in range(30):
        weight = np.random.default_rng(seed).random(12)
        got = tpauc_score([1] * 5 + [0] * 7, range(12, 0, -1), min_tpr=0.3, max_fpr=0.7, sample_weight=weight)
        assert 1.0 - 1e-14 < got <= 1.0


@pytest.mark.parametrize("n", [10, 70, 100, 10_000])
@pytest.mark.parametrize("percent", [1, 7, 10, 30, 57, 90, 99])
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


EXTREME = {
    "near the largest float": lambda scores: scores * 1e307,
    "over the largest range": lambda scores: np.where(scores > 0, 1.7e308, -1.7e308),
    "smallest floats": lambda scores: np.round(scores) * 5e-324,
    "neighbours": lambda scores: 1.0 + np.round(4 * scores) * np.finfo(float).eps,
    "int64": lambda scores: 2**62 + np.round(4 * scores).astype(np.int64),
    "uint64": lambda scores: np.uint64(2**63) + np.round(4 * scores + 99).astype(np.uint64),
    **{
        str(np.dtype(kind)): lambda scores, kind=kind: (8 * scores).clip(0, 100).astype(kind)
        for kind in (np.float16, np.float32, np.longdouble, np.int8, np.uint8, bool)
    },
}


@pytest.mark.parametrize("kind", EXTREME)
def test_scores_are_compared_in_their_own_type(kind):
    y_true, y_score = np.repeat([1, 0], [40, 90]), EXTREME[kind](np.random.default_rng(3).normal(size=130))
    upper, lower = np.split(y_score, [40])
    expected = np.mean([(p > lower) + 0.5 * (p == lower) for p in upper])
    assert tpauc_score(y_true, y_score, **WHOLE) == pytest.approx(expected, abs=1e-12)


def test_kinds_of_input():
    y_true, y_score = many(levels=4)
    before = y_true.copy(), y_score.copy()
    want = tpauc_score(y_true, y_score, **HALF)
    for convert in (list, tuple, torch.tensor, lambda v: v.astype(object), lambda v: np.repeat(v, 2)[::2]):
        assert tpauc_score(convert(y_true), convert(y_score), **HALF) == want
    for dtype in (bool, np.uint8, np.float32):
        assert tpauc_score(y_true.astype(dtype), y_score, **HALF) == want
    assert np.array_equal(before[0], y_true) and np.array_equal(before[1], y_score)


@pytest.mark.parametrize("seed", range(20))
def test_tied_share_by_a_loop(seed):
    rng = np.random.default_rng(seed)
    y_true, y_score = random_case(rng, high=5)
    low, high = np.round(rng.uniform(0.0, 0.6), 1), np.round(rng.uniform(0.2, 1.0), 1)
    k1, k2 = selected(y_true, low, high)
    upper, lower = sorted(y_score[y_true == 1]), sorted(y_score[y_true == 0], reverse=True)
    tied = sum(s in lower for s in upper[:k1]) + sum(s in upper for s in lower[:k2])
    assert tied_share(y_true, y_score, min_tpr=low, max_fpr=high) == (tied / (k1 + k2) if k1 and k2 else 0.0)


def test_only_more_than_a_tenth_of_tied_rows_is_said():
    assert ties_text(0.1) is None
    assert ties_text(0.25, unit="bags").startswith("25.0% of the bags of the region")


def test_models_are_compared_in_wider_regions_and_by_their_gap():
    y_true, y_score = many(levels=8)
    for weight in (None, np.random.default_rng(0).random(len(y_true))):
        found = selection_scores(y_true, y_score, min_tpr=0.6, max_fpr=0.2, sample_weight=weight)
        regions = [(0.6, 0.2), (0.3, 0.6), (0.0, 1.0)]
        options = [{"min_tpr": low, "max_fpr": high, "sample_weight": weight} for low, high in regions]
        assert found == (*(tpauc_score(y_true, y_score, **some) for some in options), 0.0)
    assert selection_scores([1, 0, 0], [4.0, 1.0, 1.0], **HALF | {"min_tpr": 0.0}) == (1, 1, 1, 3 / 2**0.5)


# undefined and wrong input

METRICS = pytest.mark.parametrize("metric", [tpauc_score, tpauc_area_score])


@METRICS
@pytest.mark.parametrize(
    ("y_true", "weight", "reason"),
    [
        ([0, 0, 0], None, "there are no positives"),
        ([1, 1, 1], None, "there are no negatives"),
        ([1, 1, 0], [1, 1, 0], "the negatives have no weight"),
        ([1, 0, 0], [0, 1, 1], "the positives have no weight"),
    ],
)
def test_a_score_without_a_class_is_undefined(metric, y_true, weight, reason):
    with pytest.warns(UndefinedMetricWarning, match=f"{metric.__name__}: .*{reason}") as caught:
        assert np.isnan(metric(y_true, [0.1, 0.2, 0.3], sample_weight=weight, **HALF))
    assert caught[0].filename == __file__


@pytest.mark.parametrize(("low", "high", "match"), [(0.8, 1.0, "min_tpr = 0.8"), (0.0, 0.1, "max_fpr = 0.1")])
def test_nothing_selected_is_undefined(low, high, match):
    with pytest.warns(UndefinedMetricWarning, match=match):
        assert np.isnan(tpauc_score([1] * 4 + [0] * 6, range(10), min_tpr=low, max_fpr=high))


@METRICS
@pytest.mark.parametrize(
    ("y_true", "y_score", "weight", "match"),
    [
        ([0, 1, 2], [1, 2, 3], None, "y_true .* got 2"),
        ([0, 1, np.nan], [1, 2, 3], None, "y_true .* got nan"),
        (["a", "b"], [1, 2], None, "y_true .* got dtype <U1"),
        (pd.Series(["n", "y"]), [1, 2], None, "y_true .* got 'n' in a Series"),
        ([[0, 1]], [0.1, 0.2], None, r"y_true must have shape \(n,\)"),
        ([], [], None, "y_true must hold at least one label"),
        ([0, 1], [1, 1j], None, "y_score .* got dtype complex128"),
        ([0, 1], [[1], [1, 2]], None, "y_score .* got a list in a list"),
        ([0, 1], [[0.1], [0.2]], None, r"y_score must have shape \(n,\)"),
        ([0, 1, 1], [0.1, 0.2], None, "y_score must be as long as y_true, 3, got 2"),
        ([0, 1, 1], [0.1, np.nan, np.nan], None, r"y_score must be finite, got nan \(2"),
        ([0, 1], [0.1, -np.inf], None, "y_score must be finite, got -inf"),
        ([0, 1], [0.1, 0.2], [1.0], "sample_weight must be as long as y_true"),
        ([0, 1], [0.1, 0.2], [1.0, -2.0], "sample_weight must be at least 0, got -2.0"),
        ([0, 1], [0.1, 0.2], [1.0, np.inf], "sample_weight must be finite"),
        ([0, 1], [0.1, 0.2], [[1.0, 1.0]], r"sample_weight must have shape \(n,\)"),
    ],
)
def test_wrong_data(metric, y_true, y_score, weight, match):
    with pytest.raises(ValueError, match=f"{metric.__name__}: {match}"):
        metric(y_true, y_score, sample_weight=weight, **HALF)


@pytest.mark.parametrize(
    "function",
    [
        *(lambda f=f, **region: f([0, 1], [0, 1], **region) for f in (tpauc_score, tpauc_area_score, tied_share)),
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
    with pytest.raises(ValueError, match=f"{name} must be a number in .*, got {value!r}"):
        function(**HALF | {name: value})


# scorer


@pytest.mark.parametrize("names", [(0, 1), (1, 0), ("benign", "ill"), ("well", "ill")])
@pytest.mark.parametrize("model", [LogisticRegression(max_iter=5000), GaussianNB()])  # one has probabilities only
def test_the_scorer_finds_the_class_that_is_named(model, names):
    """The second name is to be found, whether it comes first or last in the order of the classes."""
    X, y = load_breast_cancer(return_X_y=True)
    X, named = X[:, :2].round(0), np.array(names)[y]
    fitted = model.fit(X, named)
    response = getattr(fitted, "decision_function", lambda X: fitted.predict_proba(X)[:, 1])(X)
    response = response if fitted.classes_[1] == names[1] else -response
    scorer = tpauc_scorer(**HALF, positive_label=None if names == (0, 1) else names[1])
    assert scorer(fitted, X, named) == pytest.approx(tpauc_score(y, response, **HALF), rel=1e-9)
    assert pickle.loads(pickle.dumps(scorer))(fitted, X, named) == scorer(fitted, X, named)


def test_the_scorer_refuses_a_label_that_is_none_and_more_than_two_classes():
    X, y = np.arange(12.0)[:, None], np.array(["a", "b"] * 6)
    with pytest.raises(ValueError, match="pos_label=c"):
        tpauc_scorer(**HALF, positive_label="c")(GaussianNB().fit(X, y), X, y)
    with pytest.raises(ValueError, match="tpauc_scorer: y must hold two classes, got 3"):
        tpauc_scorer(**HALF, positive_label="a")(GaussianNB().fit(X, y), X, [*y[:-1], "c"])


# streaming


@pytest.mark.parametrize("kind", [np.float64, list, torch.bfloat16, torch.float16, torch.float64])
def test_streaming_equals_batch(kind):
    y_true, y_score = many(levels=4)
    for low, high in REGIONS:
        meter = StreamingTPAUC(min_tpr=low, max_fpr=high)
        for start in range(0, len(y_true), 7):
            labels, scores = y_true[start : start + 7], y_score[start : start + 7].copy()
            if isinstance(kind, torch.dtype):  # as models give them
                scores, labels = torch.tensor(scores, dtype=kind, requires_grad=True), torch.tensor(labels).bool()
                meter.update(scores, labels)
                scores.detach().neg_()  # the meter keeps no reference to the batch
            else:
                meter.update(kind(scores), labels)
        want = tpauc_score(y_true, y_score, min_tpr=low, max_fpr=high)
        assert meter.compute() == want == meter.compute()
    meter.reset()
    meter.update([1, 0], [1, 0])
    assert repr(meter).endswith("1 positives, 1 negatives")


def test_meters_merge_and_pickle():
    y_true, y_score = many()
    meters = [StreamingTPAUC(**HALF) for _ in range(3)]
    for part, meter in enumerate(meters):
        meter.update(y_score[part::3], y_true[part::3])
    meters = [pickle.loads(pickle.dumps(meter)) for meter in meters]
    alone = meters[1].compute()
    joined = meters[0].merge(meters[1]).merge(meters[2])
    assert joined is meters[0] and joined.compute() == tpauc_score(y_true, y_score, **HALF)
    joined.update([0.0], [1])
    assert meters[1].compute() == alone
    for other in ({"min_tpr": 0.5, "max_fpr": 0.4}, {"min_tpr": 0.4, "max_fpr": 0.5}):
        with pytest.raises(ValueError, match="other must have min_tpr"):
            joined.merge(StreamingTPAUC(**other))


def test_a_wrong_batch_is_not_added_and_an_empty_meter_is_undefined():
    meter = StreamingTPAUC(**HALF)
    wrong = [("scores", [0.1, np.nan], [0, 1]), ("scores", [0.1, 0.2], [0]), ("labels", [0.1, 0.2], [0, 3])]
    for name, scores, labels in wrong:
        with pytest.raises(ValueError, match=f"StreamingTPAUC: {name} must"):
            meter.update(scores, labels)
    assert repr(meter).endswith("0 positives, 0 negatives")
    meter.update([], [])
    with pytest.warns(UndefinedMetricWarning, match="StreamingTPAUC: .* there are no positives"):
        assert np.isnan(meter.compute())


# bootstrap


def test_bootstrap_is_determined_by_its_seed():
    y_true, y_score = many(100)
    state = np.random.get_state()[1].copy()
    first, second, other = (
        bootstrap_interval(tpauc_score, y_true, y_score, **HALF, resamples=50, seed=seed) for seed in (3, 3, 4)
    )
    assert first == second and (first.low, first.high) != (other.low, other.high)
    assert first.estimate == other.estimate == tpauc_score(y_true, y_score, **HALF)
    assert np.array_equal(state, np.random.get_state()[1])


@pytest.mark.parametrize("stratified", [True, False])
def test_bootstrap_ends_are_quantiles(stratified):
    """The interval grows with the level and shrinks with the data."""
    widths = []
    for n, level in ((100, 0.95), (100, 0.5), (1600, 0.5)):
        options = {"level": level, "resamples": 200, "stratified": stratified}
        interval = bootstrap_interval(tpauc_score, *many(n), **options, **WHOLE)
        assert (interval.level, interval.resamples, interval.undefined) == (level, 200, 0)
        assert interval.low < interval.estimate < interval.high
        widths.append(interval.high - interval.low)
    assert widths[0] > 2 * widths[1] > 4 * widths[2]


def test_bootstrap_covers_the_true_score():
    truth, inside = norm.cdf(1 / np.sqrt(2)), 0
    for seed in range(100):
        interval = bootstrap_interval(tpauc_score, *many(150, seed=seed), **WHOLE, level=0.9, resamples=100, seed=seed)
        inside += interval.low <= truth <= interval.high
    assert 82 <= inside <= 97  # 90 expected, standard deviation 3


def test_bootstrap_draws_weights_with_their_samples():
    """A sample without weight changes nothing, wherever it is drawn."""
    y_true, y_score = many(60)
    weight = np.ones(60)
    weight[::3] = 0
    first, second = (
        bootstrap_interval(tpauc_score, y_true, s, sample_weight=weight, **HALF, resamples=30)
        for s in (y_score, np.where(weight == 0, -100.0, y_score))
    )
    assert first.low == pytest.approx(second.low) and first.high == pytest.approx(second.high)


def test_bootstrap_counts_undefined_resamples():
    y_true, y_score = [1, 0, 0, 0, 0, 0], [3.0, 1, 2, 3, 4, 5]
    interval = bootstrap_interval(tpauc_score, y_true, y_score, **WHOLE, resamples=300, stratified=False)
    assert 60 < interval.undefined < 140  # (5/6)^6 = 0.33 have no positive
    assert 0.0 <= interval.low <= interval.high <= 1.0
    assert bootstrap_interval(tpauc_score, y_true, y_score, **WHOLE, resamples=300).undefined == 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        interval = bootstrap_interval(tpauc_score, [1, 1], [1, 2], **WHOLE, resamples=5)
    assert [w.category for w in caught] == [UndefinedMetricWarning] * 2  # the estimate, the ends
    assert np.isnan([interval.estimate, interval.low, interval.high]).all() and interval.undefined == 5


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"level": 1.0}, "level .* got 1.0"),
        ({"level": 0}, "level .* got 0"),
        ({"resamples": 0}, "resamples .* at least 1, got 0"),
        ({"seed": -1}, "seed .* at least 0, got -1"),
        ({"seed": None}, "seed .* got None"),
        ({"y_true": [0, 1, 1]}, "y_score must be as long as y_true"),
        ({"y_true": [], "y_score": []}, "y_true must hold at least one label"),
        ({"sample_weight": [1]}, "sample_weight must be as long as y_true"),
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
    gain, error = tpauc_difference(labels, one, two, **WHOLE)
    assert error == pytest.approx(wanted, rel=1e-12)
    assert gain == pytest.approx(a.mean() - c.mean())


def test_the_error_of_a_difference_in_a_region_is_that_of_resampling():
    random = np.random.default_rng(1)
    labels = np.arange(900) % 3 == 0
    one = random.normal(size=900) + labels
    two = one + 0.5 * random.normal(size=900)
    region, drawn = {"min_tpr": 0.4, "max_fpr": 0.5}, []
    for _ in range(300):
        parts = [random.choice(np.flatnonzero(labels == kind), (labels == kind).sum()) for kind in (0, 1)]
        rows = np.concatenate(parts)
        drawn.append(tpauc_score(labels[rows], one[rows], **region) - tpauc_score(labels[rows], two[rows], **region))
    assert tpauc_difference(labels, one, two, **region)[1] == pytest.approx(np.std(drawn), rel=0.15)


def test_an_error_in_a_region_of_one_row_of_each_class_depends_on_these():
    labels, other = [0, 0, 0, 1, 1, 1], [1.0, 2.0, 6.0, 3.0, 4.0, 5.0]
    every = [(2.0, 6.0, 10.0, 1.0, middle, 9.0) for middle in (5.0, 7.0)] + [(2.0, 4.0, 10.0, 1.0, 5.0, 9.0)]
    assert len({tpauc_difference(labels, scores, other, min_tpr=0.6, max_fpr=0.4) for scores in every}) == 1


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
    _, (left, right) = plt.subplots(1, 2)
    ax = plot_roc_region(y_true, {"ours": y_score, "theirs": -y_score}, min_tpr=0.4, max_fpr=0.3, ax=right)
    assert ax is right and not left.lines and len(plt.get_fignums()) == 1
    ours, theirs = (tpauc_score(y_true, s, min_tpr=0.4, max_fpr=0.3) for s in (y_score, -y_score))
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == [f"ours: TPAUC {ours:.3f}", f"theirs: TPAUC {theirs:.3f}", "TPR >= 0.4, FPR <= 0.3"]
    (patch,) = ax.patches
    assert np.allclose([*patch.get_xy(), patch.get_width(), patch.get_height()], [0, 0.4, 0.3, 0.6])
    assert np.trapezoid(*ax.lines[0].get_data()[::-1]) == pytest.approx(roc_auc_score(y_true, y_score))
    ax.figure.canvas.draw()
    alone = plot_roc_region([1, 1, 0, 0], [4, 3, 2, 1], **HALF)
    assert alone.get_legend().get_texts()[0].get_text() == "TPAUC 1.000" and len(plt.get_fignums()) == 2


@pytest.mark.parametrize(
    ("y_true", "y_score", "match"),
    [
        ([1, 1], [1, 2], "y_true must hold both classes, got 2 positives, 0 negatives"),
        ([0, 1], {}, "y_score must hold at least one vector"),
        ([0, 1], {"ours": [1, np.nan]}, r"y_score\['ours'\] must be finite"),
    ],
)
def test_plot_wrong_arguments(plt, y_true, y_score, match):
    with pytest.raises(ValueError, match=f"plot_roc_region: {match}"):
        plot_roc_region(y_true, y_score, **HALF)
    assert not plt.get_fignums()
