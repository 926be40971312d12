"""TPAUCAuto: which of the models it uses, by which rows, and that these decide as one."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification

from moreauc.estimators import TPAUCAuto, TPAUCBooster, TPAUCClassifier, TPAUCForest, TPAUCLinear
from moreauc.metrics import tpauc_score

FAST = {
    "mlp": {"epochs": 3, "ensemble": 1, "patience": None},
    "trees": {"n_estimators": 20, "folds": 2},
    "forest": {"n_estimators": 20},
}
REGION = {"min_tpr": 0.3, "max_fpr": 0.4}


def table(seed=0, rows=500):
    return make_classification(rows, 6, weights=[0.85], flip_y=0.05, n_clusters_per_class=2, random_state=seed)


def held_out_scores(auto, X, y, name):
    """Train a model on the rows that were not held out, by public means, and return its log odds of the others."""
    kinds = {"linear": TPAUCLinear, "forest": TPAUCForest, "trees": TPAUCBooster, "mlp": TPAUCClassifier}
    seed = auto.models_[name].random_state if name in auto.models_ else None
    rows = np.setdiff1d(np.arange(len(y)), auto.held_out_)
    model = kinds[name](**REGION, random_state=seed, positive_label=1, **FAST.get(name, {})).fit(X[rows], y[rows])
    odds = model.predict_proba(X[auto.held_out_]).astype(np.float64)
    return np.log(odds[:, 1] / odds[:, 0])


@pytest.fixture(scope="module")
def fitted():
    X, y = table()
    return TPAUCAuto(**REGION, model_options=FAST, random_state=3).fit(X, y), X, y


def test_candidates_are_scored_on_the_same_held_out_rows(fitted):
    auto, X, y = fitted
    assert [candidate.name for candidate in auto.candidates_] == ["linear", "forest", "trees", "mlp"]
    assert len(auto.held_out_) == 125 and 0 < y[auto.held_out_].sum() < 125
    for candidate in auto.candidates_:
        if candidate.name in auto.models_ and candidate.name != "mlp":  # probabilities of the network are float32
            odds = held_out_scores(auto, X, y, candidate.name)
            assert tpauc_score(y[auto.held_out_], odds, **REGION) == pytest.approx(candidate.tpauc, abs=1e-9)
    best = max(candidate.tpauc for candidate in auto.candidates_)
    for candidate in auto.candidates_:
        assert candidate.below == pytest.approx(best - candidate.tpauc) and candidate.seconds > 0.0
        assert candidate.chosen == (candidate.below <= 2.0 * candidate.error)


def test_the_models_used_are_trained_on_all_rows_and_averaged(fitted):
    auto, X, y = fitted
    chosen = [candidate.name for candidate in auto.candidates_ if candidate.chosen]
    assert list(auto.models_) == chosen
    odds = []
    for name, model in auto.models_.items():
        again = clone(model).fit(X, y)
        np.testing.assert_allclose(again.decision_function(X), model.decision_function(X), rtol=1e-6)
        raw = model.decision_function(X).astype(np.float64) + model.threshold_
        odds.append(model.platt_.slope * raw + model.platt_.intercept)
        assert name in ("linear", "forest", "trees", "mlp")
    np.testing.assert_allclose(auto.decision_function(X), np.mean(odds, axis=0) - auto.threshold_, atol=1e-9)


def test_without_combining_the_best_alone_is_used(fitted):
    X, y = fitted[1:]
    auto = TPAUCAuto(**REGION, combine=False, model_options=FAST, random_state=3).fit(X, y)
    assert [candidate.tpauc for candidate in auto.candidates_] == [c.tpauc for c in fitted[0].candidates_]
    (name,) = auto.models_
    assert name == max(auto.candidates_, key=lambda candidate: candidate.tpauc).name


def test_of_equal_models_the_simpler_one_is_used():
    X, y = table(rows=300)
    X = X + 20.0 * y[:, None]  # all pairs are in order
    auto = TPAUCAuto(combine=False, model_options=FAST, random_state=0).fit(X, y)
    assert [candidate.tpauc for candidate in auto.candidates_][:2] == [1.0, 1.0]
    assert list(auto.models_) == ["linear"]
    other = TPAUCAuto(models=["trees", "linear"], combine=False, model_options={"trees": FAST["trees"]}, random_state=0)
    assert list(other.fit(X, y).models_) == ["trees"]


def test_a_class_too_small_to_hold_out_leaves_the_first_model():
    X, y = table(rows=60)
    y = np.where(np.arange(60) < 3, 1, 0)
    auto = TPAUCAuto(models=["linear", "trees"], random_state=0).fit(X, y)
    assert list(auto.models_) == ["linear"] and len(auto.held_out_) == 0
    assert auto.candidates_[0].chosen and np.isnan(auto.candidates_[0].tpauc)
    assert set(auto.predict(X)) <= {0, 1}


def test_equal_rows_are_on_one_side():
    X, y = table(rows=200)
    X, y = np.repeat(X, 2, axis=0), np.repeat(y, 2)
    auto = TPAUCAuto(models=["linear"], random_state=0).fit(X, y)
    held = np.zeros(len(y), dtype=bool)
    held[auto.held_out_] = True
    assert (held[::2] == held[1::2]).all() and 0 < held.sum() < len(y)


def test_groups_are_on_one_side():
    X, y = table(rows=400)
    groups = np.arange(400) // 5
    auto = TPAUCAuto(models=["linear", "trees"], model_options={"trees": FAST["trees"]}, random_state=0)
    held = auto.fit(X, y, groups=groups).held_out_
    assert len(held) and not np.intersect1d(groups[held], np.delete(groups, held)).size
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        auto.fit(X, y, groups=groups[1:])


def test_trees_are_left_out_where_lightgbm_is_missing(monkeypatch):
    monkeypatch.setattr("moreauc._registry.find_spec", lambda name: None)
    X, y = table(rows=200)
    with pytest.warns(UserWarning, match=r"boosted trees are left out: LightGBM is not installed.*moreauc\[boosting\]"):
        options = {name: FAST[name] for name in ("mlp", "forest")}
        auto = TPAUCAuto(model_options=options, random_state=0).fit(X, y)
    assert [candidate.name for candidate in auto.candidates_] == ["linear", "forest", "mlp"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("models", value) for value in ("linear", [], ["linear", "linear"], ["svm"], ["auto"])),
        ("model_options", {"svm": {}}),
        ("validation_fraction", 0.0),
    ],
)
def test_arguments_that_are_refused(name, value):
    with pytest.raises(ValueError, match=f"TPAUCAuto: {name} must be"):
        TPAUCAuto(**{name: value}).fit(*table(rows=100))
