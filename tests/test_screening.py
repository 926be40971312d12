"""Enrichment factor and BEDROC: against loops over all orders of tied rows, and against RDKit's own."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from sklearn.exceptions import UndefinedMetricWarning

from moreauc.metrics import bedroc_score, enrichment_factor
from tests import oracles


def some(seed, rows=7, levels=3):
    random = np.random.default_rng(seed)
    labels = random.permutation([1, 1, 1, 0, 0, 0, 0][:rows])
    return labels, random.integers(levels, size=rows).astype(float)


@pytest.mark.parametrize("seed", range(6))
def test_both_are_the_mean_over_orders_of_ties(seed):
    labels, scores = some(seed)
    orders = list(oracles.orders_of_ties(labels.tolist(), scores.tolist()))
    for fraction in (Fraction(1, 7), Fraction(2, 7), Fraction(1, 2), Fraction(1)):
        want = np.mean([oracles.enrichment(ranked, fraction) for ranked in orders])
        assert enrichment_factor(labels, scores, fraction=float(fraction)) == pytest.approx(want, abs=1e-12)
    for alpha in (0.5, 20.0, 100.0):
        want = np.mean([oracles.bedroc(ranked, alpha) for ranked in orders])
        assert bedroc_score(labels, scores, alpha=alpha) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rows", [20, 1003])
def test_both_are_those_of_rdkit_without_ties(seed, rows):
    scoring = pytest.importorskip("rdkit.ML.Scoring.Scoring")
    random = np.random.default_rng(seed)
    labels = (random.random(rows) < 0.2).astype(int)
    labels[0] = 1
    scores = random.permutation(rows) + 0.3 * rows * labels + 0.1 * random.random(rows)
    ranked = labels[np.argsort(-scores)][:, None].tolist()
    for alpha in (1.0, 20.0, 160.9):
        assert bedroc_score(labels, scores, alpha=alpha) == pytest.approx(
            scoring.CalcBEDROC(ranked, 0, alpha), abs=1e-9
        )
    fractions = [0.001, 0.01, 0.05, 0.5]
    if rows > 1000:  # with fewer RDKit merges fractions of one row
        found = [enrichment_factor(labels, scores, fraction=share) for share in fractions]
        assert found == pytest.approx(scoring.CalcEnrichment(ranked, 0, fractions), abs=1e-12)


@pytest.mark.parametrize("percent", range(1, 100))
def test_the_number_of_rows_at_the_top_forgives_rounding(percent):
    labels, scores = np.ones(1000, dtype=int), np.arange(1000.0)
    labels[: 1000 - 10 * percent] = 0  # all positives are at the top
    labels[-1] = 0
    factor = enrichment_factor(labels, scores, fraction=percent / 100)
    assert factor == pytest.approx((10 * percent - 1) / (10 * percent) * 1000 / (10 * percent - 1))


def test_a_constant_model_gets_what_random_scores_get():
    labels = np.arange(200) % 10 == 0
    assert enrichment_factor(labels, np.zeros(200), fraction=0.013) == pytest.approx(1.0)
    random = np.random.default_rng(0)
    drawn = [bedroc_score(labels, random.permutation(200)) for _ in range(2000)]
    assert bedroc_score(labels, np.zeros(200)) == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / 2000**0.5)


def test_the_extremes():
    labels = np.arange(500) < 30
    assert bedroc_score(labels, -np.arange(500), alpha=500.0) == pytest.approx(1.0)
    assert bedroc_score(labels, np.arange(500), alpha=500.0) == pytest.approx(0.0)
    assert enrichment_factor(labels, -np.arange(500), fraction=0.01) == pytest.approx(500 / 30)
    assert enrichment_factor(labels, np.arange(500), fraction=0.5) == 0.0
    assert enrichment_factor(labels, np.arange(500), fraction=1.0) == pytest.approx(1.0)


def test_a_missing_class_is_undefined():
    with pytest.warns(UndefinedMetricWarning, match="enrichment_factor: .* there are no positives") as caught:
        assert np.isnan(enrichment_factor([0, 0], [1.0, 2.0], fraction=0.5))
    assert caught[0].filename == __file__
    for label, name in ((0, "positives"), (1, "negatives")):
        with pytest.warns(UndefinedMetricWarning, match=f"bedroc_score: .* there are no {name}"):
            assert np.isnan(bedroc_score([label] * 2, [1.0, 2.0]))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        *(
            (lambda v=v: enrichment_factor([0, 1], [0.0, 1.0], fraction=v), "enrichment_factor: fraction")
            for v in (0.0, -0.1, 1.1, float("nan"), "a", True)
        ),
        *(
            (lambda v=v: bedroc_score([0, 1], [0.0, 1.0], alpha=v), "bedroc_score: alpha")
            for v in (0.0, -1.0, 501, float("inf"))
        ),
        (lambda: bedroc_score([0, 2], [0.0, 1.0]), "bedroc_score: y_true must hold 0 and 1 only, got 2"),
        (lambda: enrichment_factor([0, 1], [0.0, np.nan], fraction=0.1), "enrichment_factor: y_score must be finite"),
    ],
)
def test_wrong_arguments(call, match):
    with pytest.raises(ValueError, match=match):
        call()
