"""TPAUCForest: scikit-learn's forest with equal classes, and what the out-of-bag scores choose."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
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


def test_a_weight_of_two_is_a_row_twice_and_the_order_does_not_matter():
    X, y = table(200)
    times = np.random.default_rng(0).integers(0, 4, size=200)
    rows = np.random.default_rng(1).permutation(np.repeat(np.arange(200), times))
    options = {**REGION, "n_estimators": 20, "random_state": 0}
    weighted = TPAUCForest(**options).fit(X, y, sample_weight=times)
    repeated = TPAUCForest(**options).fit(X[rows], y[rows])
    np.testing.assert_allclose(weighted.decision_function(X), repeated.decision_function(X), atol=1e-9)
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-6)
    plain = TPAUCForest(**options).fit(X, y)
    assert np.abs(weighted.decision_function(X) - plain.decision_function(X)).max() > 0.1


def test_frames_sparse_matrices_missing_and_large_numbers():
    X, y = table(300)
    options = {"n_estimators": 20, "random_state": 0}
    frame = pd.DataFrame(X[:, :4], columns=list("abcd")).assign(kind=np.where(X[:, 4] > 0, "high", None))
    model = TPAUCForest(**options, positive_label="hit").fit(frame, np.where(y == 1, "hit", "miss"))
    assert model.score(frame, np.where(y == 1, "hit", "miss")) > 0.5
    assert ((model.decision_function(frame) > 0) == (model.predict(frame) == "miss")).all()
    few = np.where(np.abs(X) > 0.5, X, 0.0)
    sparse, dense = (TPAUCForest(**options).fit(own, y) for own in (csr_array(few), few))
    assert sparse.score(csr_array(few), y) > 0.5 and dense.score(few, y) > 0.5
    np.testing.assert_allclose(sparse.decision_function(few), sparse.decision_function(csr_array(few)))
    holes = np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X)
    assert TPAUCForest(**options).fit(holes, y).score(holes, y) > 0.5
    large = X.copy()
    large[:5, 0] = 1e300
    assert np.isfinite(TPAUCForest(**options).fit(large, y).decision_function(-large)).all()


def test_many_rows_are_drawn_from_and_few_are_enough(monkeypatch):
    X, y = table(400)
    monkeypatch.setattr("moreauc.estimators.forest._MANY", 300)
    model = TPAUCForest(n_estimators=10, random_state=0).fit(X, y)
    assert model.forest_.max_samples == 300 and model.min_samples_leaf_ == 5
    model = TPAUCForest(n_estimators=10, random_state=0).fit(X[:200], y[:200])
    assert model.forest_.max_samples is None
    tiny = TPAUCForest(n_estimators=1, random_state=0).fit(np.arange(4.0)[:, None], [0, 0, 0, 1])  # few are out of bag
    assert tiny.min_samples_leaf_ == 1 and np.isfinite(tiny.predict_proba([[2.5]])).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"n_estimators": 0}, "n_estimators must be an integer of at least 1, got 0"),
        ({"min_samples_leaf": "few"}, "min_samples_leaf must be an integer of at least 1, got 'few'"),
        ({"max_fpr": 0.0}, "max_fpr"),
        ({"fpr_budget": 2.0}, "fpr_budget"),
    ],
)
def test_arguments_are_checked(options, text):
    with pytest.raises(ValueError, match=text):
        TPAUCForest(**options).fit(*table(50))


CHECKS = """
from sklearn.utils.estimator_checks import check_estimator
from moreauc import TPAUCForest

estimator = TPAUCForest(n_estimators=8, fpr_budget=0.1, probabilities="threshold", random_state=0)
for result in check_estimator(estimator, on_skip=None, on_fail=None):
    assert result["status"] == "passed", (result["check_name"], result["exception"])
print("all passed")
"""


def test_all_checks_of_scikit_learn_pass(monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # before SciPy is imported, hence the process
    done = subprocess.run([sys.executable, "-c", CHECKS], capture_output=True, text=True)
    assert done.stdout.strip() == "all passed", done.stderr[-3000:]
