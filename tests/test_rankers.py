"""What holds for every model of rows: weights, classes, tables, decisions, copies, errors, scikit-learn's checks."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import coo_matrix, csc_matrix, csr_array
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from moreauc.estimators import TPAUCAuto, TPAUCBooster, TPAUCClassifier, TPAUCForest, TPAUCLinear
from moreauc.metrics import tpauc_score

pytest.importorskip("lightgbm")
pytest.importorskip("xgboost")

_BOOSTER = {"n_estimators": 10, "folds": 3, "booster_options": {"n_jobs": 1}}
_NETWORK = {"module": "linear", "epochs": 5, "batch_size": 32, "lr": 0.03, "ensemble": 1}
_SMALL = {"forest": {"n_estimators": 20}, "trees": {"n_estimators": 10, "folds": 2}}


@dataclass(frozen=True)
class Case:
    kind: type[Any]
    options: dict[str, Any] = field(default_factory=dict)
    precision: float = 1e-9
    exact_weights: bool = True  # whether a row of weight 2 gives the same model as two rows
    describes: str = "linear"

    def make(self, **options):
        return self.kind(**{"random_state": 0, **self.options, **options})


CASES = {
    "linear": Case(TPAUCLinear),
    "linear, fixed": Case(TPAUCLinear, {"margin": 0.2, "standardize": False}),
    "forest": Case(TPAUCForest, {"n_estimators": 20}, describes="forest"),
    "lightgbm": Case(TPAUCBooster, {"choose": False, **_BOOSTER}, describes="trees"),
    "xgboost": Case(TPAUCBooster, {"choose": False, "booster": "xgboost", **_BOOSTER}, describes="trees"),
    "network": Case(TPAUCClassifier, _NETWORK, 1e-5, exact_weights=False),
    "auto": Case(
        TPAUCAuto, {"models": ["linear", "trees"], "model_options": {"trees": _SMALL["trees"]}}, 1e-9, False, "auto"
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def table(n=400, seed=0, share=0.2):
    random = np.random.default_rng(seed)
    y = (random.random(n) < share).astype(int)
    X = random.normal(size=(n, 5))
    X[:, :2] += np.outer(y, [1.5, 1.0])
    return X, y


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.exact_weights])
def test_a_whole_weight_is_so_many_rows_in_any_order(name, sparse):
    X, y = table()
    X = csr_array(X * (np.abs(X) > 0.5)) if sparse else X
    times = np.arange(len(y)) % 3
    rows = np.random.default_rng(0).permutation(np.arange(len(y)).repeat(times))
    make = CASES[name].make
    weighted, repeated, plain = make().fit(X, y, times), make().fit(X[rows], y[rows]), make().fit(X, y)
    np.testing.assert_allclose(weighted.decision_function(X), repeated.decision_function(X), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), rtol=1e-9)
    assert np.abs(weighted.decision_function(X) - plain.decision_function(X)).max() > 1e-3


@every_case
def test_rows_of_weight_zero_are_not_there(case):
    X, y = table()
    weights = np.where(np.arange(len(y)) % 4 == 0, 0.0, 1.0)
    some = np.flatnonzero(weights)
    whole, part = case.make().fit(X, y, weights), case.make().fit(X[some], y[some], np.ones(len(some)))
    np.testing.assert_array_equal(whole.decision_function(X), part.decision_function(X))
    np.testing.assert_array_equal(whole.describe().held_out, some[part.describe().held_out])


@every_case
def test_the_first_class_may_be_the_one_to_find(case):
    X, y = table()
    names = np.where(y == 1, "bad", "good")
    with pytest.warns(UserWarning, match="the class to find is 'bad'") as found:
        model = case.make().fit(X, names)
    assert found[0].filename == __file__
    other = case.make().fit(X, y)
    assert model.classes_.tolist() == ["bad", "good"] and model.positive_label_ == "bad"
    np.testing.assert_allclose(model.decision_function(X), -other.decision_function(X), atol=case.precision)
    np.testing.assert_array_equal(model.predict(X) == "bad", other.predict(X) == 1)
    np.testing.assert_allclose(model.predict_proba(X), other.predict_proba(X)[:, ::-1], atol=case.precision)
    assert model.score(X, names) == pytest.approx(other.score(X, y))


@every_case
def test_decisions_keep_the_budget_on_new_rows(case):
    X, y = table(2_000)
    model = case.make(fpr_budget=0.1).fit(X[:1_000], y[:1_000])
    called = model.predict(X[1_000:]) == 1
    assert 0.02 < called[y[1_000:] == 0].mean() < 0.16
    np.testing.assert_array_equal(called, model.decision_function(X[1_000:]) > 0)
    chance = model.predict_proba(X[1_000:])
    assert abs(chance[:, 1].mean() - y[1_000:].mean()) < 0.05
    odds = model.platt_.slope * (model.decision_function(X) + model.threshold_) + model.platt_.intercept
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-odds)), rtol=1e-4)
    np.testing.assert_allclose(model.log_odds(X), odds, rtol=1e-5, atol=1e-5)


@every_case
def test_a_mixed_table(case):
    X, y = table()
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "town": np.where(X[:, 2] > 0, "north", "south")})
    frame["day"] = pd.Timestamp("2026-01-01") + pd.to_timedelta(np.arange(len(y)) % 90, unit="D")
    frame.loc[::7, ["b", "town"]] = None
    model = case.make(**({} if case.describes != "linear" else {"standardize": True})).fit(frame, y)
    assert model.score(frame, y) > 0.4 and model.feature_names_in_.tolist() == list(frame) and model.n_features_in_ == 4
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["b", "a", "town", "day"]])
    with pytest.raises(ValueError, match="X must have at least one row"):
        model.predict(frame[:0])


@every_case
def test_sparse_matrices_and_missing_numbers(case):
    X, y = table()
    few = X * (np.abs(X) > 0.5)
    model = case.make().fit(csc_matrix(few), y)
    scores = model.decision_function(csr_array(few))
    np.testing.assert_allclose(scores, model.decision_function(coo_matrix(few)))
    assert tpauc_score(y, scores, min_tpr=0.5, max_fpr=0.5) > 0.4
    holes = X.copy()
    holes[::3, 1] = np.nan
    holed = case.make().fit(holes, y)
    assert (
        tpauc_score(y, holed.decision_function(holes), min_tpr=0.5, max_fpr=0.5) > 0.3
        and np.isfinite(holed.predict_proba(holes)).all()
    )


@every_case
def test_copies_pickles_and_clones(case):
    X, y = table()
    model = case.make().fit(X, y)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), clone(model).fit(X, y)):
        np.testing.assert_array_equal(other.predict_proba(X), model.predict_proba(X))
    assert clone(model).get_params() == model.get_params() and not hasattr(clone(model), "threshold_")


@every_case
def test_it_describes_itself(case):
    X, y = table()
    with pytest.raises(NotFittedError):
        case.make().describe()
    model = case.make().fit(X, y)
    found = model.describe()
    assert (found.kind, found.title, found.threshold) == (case.describes, model.title, model.threshold_)
    assert (found.coefficients is not None) == (case.kind is TPAUCLinear)
    assert (found.importance is not None) == (case.describes in ("forest", "trees"))
    assert bool(found.summary) == (not found.histories) == (case.kind is not TPAUCClassifier)
    assert list(found.members) == [one.name for one in found.candidates if one.chosen]
    assert model.settings().keys() == model.get_params().keys() - {"fpr_budget", "probabilities", "device", "verbose"}


@every_case
def test_a_refused_fit_changes_nothing(case):
    X, y = table()
    model = case.make().fit(X, y)
    before = dict(vars(model))
    other = pd.DataFrame(X).add_prefix("x").assign(more=1.0)
    for wrong in (
        {"y": y[1:]},
        {"y": np.where(y == 1, np.nan, 0.0)},
        {"y": y * 0},
        {"y": np.arange(len(y)) % 3},
        {"y": y, "sample_weight": -np.ones(len(y))},
        {"y": y, "sample_weight": 1.0 - y},
        {"y": y, "groups": np.zeros(3)},
        {"y": y, "groups": np.where(y == 1, None, "a")},
    ):
        with pytest.raises(ValueError, match=r"y |two classes|inconsistent|binary|egative|groups"):
            model.fit(other, **wrong)
        assert vars(model).keys() == before.keys() and all(vars(model)[name] is before[name] for name in before)


@every_case
@pytest.mark.parametrize(
    ("name", "value"),
    [("min_tpr", 1.0), ("max_fpr", 0.0), ("fpr_budget", 2.0), ("probabilities", "odds"), ("positive_label", 3)],
)
def test_arguments_are_checked(case, name, value):
    model = case.make(**{name: value})
    with pytest.raises(ValueError, match=f"{case.kind.__name__}: {name} must be"):
        model.fit(*table(50))
    assert not [name for name in vars(model) if name.endswith("_")]


# `random`: other rows are held out, and batches are others, where rows are left out or repeated.
# `cut`: predict goes by the threshold, not by a probability of 1/2.
CHECKS = """
import torch
from sklearn.utils.estimator_checks import check_classifiers_train, check_estimator
from moreauc import estimators

torch.set_num_threads(1)
random = {f"check_sample_weight_equivalence_on_{kind}_data": "random" for kind in ("dense", "sparse")}
cut = {"check_classifiers_train": "cut"}
boosted = {"n_estimators": 5, "folds": 2, "random_state": 0}
network = {"epochs": 10, "lr": 0.03}
small = {"trees": {"n_estimators": 5, "folds": 0}}
CASES = {
    "linear": ("TPAUCLinear", {}, cut),
    "forest": ("TPAUCForest", {"n_estimators": 8, "fpr_budget": 0.1, "random_state": 0}, None),
    "lightgbm": ("TPAUCBooster", {"booster_options": {"n_jobs": 1, "learning_rate": 0.5}, **boosted}, None),
    "xgboost": (
        "TPAUCBooster",
        {"booster": "xgboost", "booster_options": {"n_jobs": 1, "learning_rate": 0.5}, "fpr_budget": 0.1, **boosted},
        None,
    ),
    "auto": ("TPAUCAuto", {"models": ["linear", "trees"], "model_options": small}, cut),
    "network": ("TPAUCClassifier", {"ensemble": 2, **network}, {**cut, **random}),
    "groups": ("GroupDROClassifier", network, {}),
    "numbers": ("GroupDRORegressor", network, {}),
}
for case, (name, options, expected) in CASES.items():
    if expected is None:
        options["probabilities"] = "threshold"
    estimator = getattr(estimators, name)(**options)
    results = check_estimator(estimator, expected_failed_checks=expected, on_skip=None, on_fail=None)
    assert len(results) > 45, case
    for result in results:
        passed = "xfail" if result["check_name"] in (expected or {}) else "passed"
        assert result["status"] == passed, (case, result["check_name"], result["exception"])
    if expected:
        check_classifiers_train(name, estimator.set_params(probabilities="threshold"))
print("all passed")
"""


def test_all_checks_of_scikit_learn_pass():
    # Its check of array types is skipped unless the variable is set before SciPy is imported: hence the process.
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    done = subprocess.run([sys.executable, "-c", CHECKS], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "all passed", done.stderr[-3000:]
