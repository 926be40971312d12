"""TPAUCForest: scikit-learn's forest with equal classes, and what the out-of-bag scores choose."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logit
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_curve

from moreauc import TPAUCForest
from moreauc.metrics import tpauc_score

REGION = {"min_tpr": 0.3, "max_fpr": 0.4}


def table(rows=500, seed=0):
    return make_classification(rows, 6, weights=[0.85], flip_y=0.1, n_clusters_per_class=2, random_state=seed)


def forest_by_hand(model, X, y, size):
    """Return scikit-learn's forest with balanced classes on the rows in the order in which the model saw them."""
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    forest = RandomForestClassifier(
        model.n_estimators,
        criterion="log_loss",
        min_samples_leaf=size,
        class_weight="balanced_subsample",
        oob_score=True,
        random_state=seed,
    )
    return forest.fit(X, y)


@pytest.mark.parametrize("seed", [0, 3])
def test_the_forest_is_that_of_scikit_learn_with_the_better_leaves(seed, monkeypatch):
    X, y = table(seed=seed)
    # rows are seen in the order of their hashes; here in their own
    monkeypatch.setattr("moreauc.estimators.forest.merge_equal", lambda rows: (rows, None))
    model = TPAUCForest(**REGION, n_estimators=60, fpr_budget=0.1, random_state=0).fit(X, y)
    forests = {size: forest_by_hand(model, X, y, size) for size in (1, 5)}
    points = {size: tpauc_score(y, own.oob_decision_function_[:, 1], **REGION) for size, own in forests.items()}
    assert points[1] != points[5]
    best = max(points, key=points.__getitem__)
    assert model.min_samples_leaf_ == best
    other = X + 0.1
    odds = logit((60 * forests[best].predict_proba(other)[:, 1] + 0.5) / 61)
    np.testing.assert_allclose(model.decision_function(other) + model.threshold_, odds, atol=1e-9)
    np.testing.assert_allclose(model.feature_importances_, forests[best].feature_importances_, atol=1e-12)
    out_of_bag = logit((60 * forests[best].oob_decision_function_[:, 1] + 0.5) / 61)
    false, true, _ = roc_curve(y, out_of_bag)
    called = out_of_bag > model.threshold_
    assert called[y == 0].mean() <= 0.1
    assert called[y == 1].mean() == true[false <= 0.1].max()


def test_probabilities_of_rare_positives_are_frequencies():
    X, y = make_classification(4000, 8, weights=[0.97], flip_y=0.01, random_state=0)
    model = TPAUCForest(fpr_budget=0.1, n_estimators=60, random_state=0).fit(X[:2000], y[:2000])
    chance = model.predict_proba(X[2000:])[:, 1]
    assert chance.mean() == pytest.approx(y[2000:].mean(), abs=0.01)
    assert chance[y[2000:] == 1].mean() > 5 * chance[y[2000:] == 0].mean()
    assert 0.02 < model.predict(X[2000:])[y[2000:] == 0].mean() < 0.2


def test_both_sizes_of_leaves_are_used():
    used = {
        TPAUCForest(**REGION, n_estimators=30, random_state=0).fit(*table(seed=seed)).min_samples_leaf_
        for seed in range(6)
    }
    assert used == {1, 5}
    X, y = table()
    fixed = TPAUCForest(min_samples_leaf=9, n_estimators=20, random_state=0).fit(X, y)
    assert fixed.min_samples_leaf_ == fixed.forest_.min_samples_leaf == 9


def test_many_rows_are_drawn_from_and_few_are_enough(monkeypatch):
    X, y = table(400)
    monkeypatch.setattr("moreauc.estimators.forest._MANY", 300)
    model = TPAUCForest(n_estimators=10, random_state=0).fit(X, y)
    assert model.forest_.max_samples == 300 and model.min_samples_leaf_ == 5
    model = TPAUCForest(n_estimators=10, random_state=0).fit(X[:200], y[:200])
    assert model.forest_.max_samples is None
    tiny = TPAUCForest(n_estimators=1, random_state=0).fit(np.arange(4.0)[:, None], [0, 0, 0, 1])  # few are out of bag
    assert tiny.min_samples_leaf_ == 1 and np.isfinite(tiny.predict_proba([[2.5]])).all()


def test_numbers_beyond_float32():
    X, y = table(300)
    X[:5, 0] = 1e300
    model = TPAUCForest(n_estimators=20, random_state=0).fit(X, y)
    assert np.isfinite(model.decision_function(-X)).all()


@pytest.mark.parametrize(("name", "value"), [("n_estimators", 0), ("min_samples_leaf", "few")])
def test_arguments_are_checked(name, value):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1, got {value!r}"):
        TPAUCForest(**{name: value}).fit(*table(50))
