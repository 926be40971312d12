"""TPAUCClassifier: scikit-learn's contract, tables as they come, the operating point."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_curve
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from torch import nn

from moreauc.data.columns import ColumnWarning
from moreauc.data.tabular import TableEncoder
from moreauc.estimators import GroupDROClassifier, GroupDRORegressor, MultiInstanceClassifier, TPAUCClassifier
from moreauc.estimators.operating_point import choose_threshold, fit_platt
from moreauc.methods import METHODS
from moreauc.metrics import TiedScoresWarning, tpauc_score, tpauc_scorer
from moreauc.models import MLP
from moreauc.train import loop as train


def quick(**options):
    few = {"module": "linear", "epochs": 3, "batch_size": 32, "lr": 0.03, "random_state": 0}
    return TPAUCClassifier(**{**few, **options})


@pytest.fixture(scope="module")
def data():
    return make_classification(240, 6, n_clusters_per_class=1, weights=[0.8], flip_y=0.0, random_state=0)


@pytest.fixture(scope="module")
def table():
    random = np.random.RandomState(0)
    y = np.arange(120) % 4 == 0
    frame = pd.DataFrame(
        {
            "size": random.normal(size=120) + y,
            "count": pd.array(random.randint(9, size=120), dtype="Int64"),
            "town": random.choice(["a", "b", "c"], size=120),
            "kind": pd.Categorical(random.choice([1, 2], size=120)),
            "flag": random.rand(120) < 0.3 + 0.4 * y,
            "empty": [None] * 120,
            "same": 7,
        }
    )
    for column in ("size", "count", "town", "kind"):
        frame.loc[random.choice(120, 9, replace=False), column] = None
    return frame, np.where(y, "yes", "no")


CHECKS = """
import torch
from sklearn.utils.estimator_checks import check_estimator
from moreauc.estimators import TPAUCClassifier

torch.set_num_threads(1)
results = check_estimator(TPAUCClassifier(), on_skip=None, on_fail=None)
assert len(results) > 50
for result in results:
    assert result["status"] == "passed", (result["check_name"], result["exception"])
print("all passed")
"""


def test_all_checks_of_scikit_learn_pass():
    # Its check of array types is skipped unless the variable is set before SciPy is imported: hence the process.
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    done = subprocess.run([sys.executable, "-c", CHECKS], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "all passed", done.stderr[-3000:]


class TestLearning:
    @pytest.mark.parametrize("module", ["mlp", "linear"])
    def test_beats_chance_on_an_imbalanced_problem(self, module):
        X, y = make_classification(2000, 10, n_informative=5, weights=[0.95], flip_y=0.0, random_state=0)
        X, X_test, y, y_test = train_test_split(X, y, stratify=y, random_state=0)
        classifier = TPAUCClassifier(module=module, epochs=30, random_state=0).fit(X, y)
        chance = tpauc_score(y_test, np.random.RandomState(0).rand(len(y_test)), min_tpr=0.5, max_fpr=0.5)
        assert classifier.score(X_test, y_test) > 0.6 > 0.3 > chance

    @pytest.mark.parametrize("loss", list(METHODS["rows"]))
    def test_every_loss_learns(self, loss, data):
        classifier = quick(loss=loss, epochs=15).fit(*data)
        assert type(classifier.loss_) is METHODS["rows"][loss].loss
        assert classifier.score(*data) > 0.7

    def test_score_is_the_metric_of_the_region(self, data):
        X, y = data
        classifier = quick(min_tpr=0.3, max_fpr=0.2).fit(X, y)
        scores = classifier.decision_function(X)
        assert classifier.score(X, y) == pytest.approx(tpauc_score(y, scores, min_tpr=0.3, max_fpr=0.2))
        weight = np.random.RandomState(0).rand(len(y))
        weighted = tpauc_score(y, scores, min_tpr=0.3, max_fpr=0.2, sample_weight=weight)
        assert classifier.score(X, y, sample_weight=weight) == pytest.approx(weighted)

    def test_the_best_epoch_on_the_held_out_rows_is_kept(self, data):
        X, y = data
        classifier = quick(epochs=8).fit(X, y)
        rows = classifier.held_out_
        assert classifier.history_.restored
        assert classifier.score(X[rows], y[rows]) == pytest.approx(classifier.history_.best_score)

    @pytest.mark.filterwarnings("ignore::moreauc.metrics.TiedScoresWarning")  # a small network on few rows
    def test_the_held_out_part_is_stratified_and_not_trained_on(self, data):
        X, y = data
        classifier = quick(validation_fraction=0.25).fit(X, y)
        rows = classifier.held_out_
        assert y[rows].sum() == round(0.25 * y.sum()) and (1 - y[rows]).sum() == round(0.25 * (1 - y).sum())
        rest = np.setdiff1d(np.arange(len(y)), rows)
        assert classifier.loss_.num_positives == y[rest].sum()
        other = X.copy()
        other[rows] += 1e3
        again = quick(validation_fraction=0.25).fit(other, y)
        np.testing.assert_array_equal(classifier.preprocessor_.transform(X[:5]), again.preprocessor_.transform(X[:5]))

    @pytest.mark.parametrize(
        ("positives", "options"),
        [
            *((3, {}), (3, {"min_tpr": 0.0}), (5, {"min_tpr": 0.0, "validation_fraction": 0.8})),
            *((40, {"validation_fraction": 0.0}), (40, {"min_tpr": 0.9}), (1, {})),
        ],
        ids=["few", "one held out", "one trained on", "asked", "empty region", "one"],
    )
    def test_nothing_is_held_out_where_it_cannot_be(self, positives, options):
        X, y = np.random.RandomState(0).normal(size=(80, 2)), np.arange(80) < positives
        classifier = quick(**options).fit(X, y)
        assert len(classifier.held_out_) == 0 and classifier.history_.best_score is None
        scores = classifier.decision_function(X)
        assert (scores[~y] > 0).mean() <= 0.5

    def test_patience_ends_the_run(self, data):
        X, y = data
        mixed = np.random.RandomState(0).permutation(y)  # nothing to learn: the score does not keep rising
        assert len(quick(epochs=40, patience=2).fit(X, mixed).history_["loss"]) < 40

    @pytest.mark.parametrize(("rows", "fraction"), [(10, 0.2), (240, 0.0)], ids=["few", "fraction"])
    def test_patience_without_a_hold_out_runs_all_epochs(self, data, rows, fraction):
        X, _ = data
        classifier = quick(patience=1, lr=1e-12, validation_fraction=fraction).fit(X[:rows], np.arange(rows) % 5 == 0)
        assert len(classifier.held_out_) == 0 and len(classifier.history_["loss"]) == 3
        with pytest.raises(ValueError, match="patience must be an integer of at least 1, got 0"):
            quick(patience=0, validation_fraction=fraction).fit(X[:rows], np.arange(rows) % 5 == 0)

    def test_warm_start_comes_first(self, data):
        phases = [row["phase"] for row in quick(warm_start_epochs=2).fit(*data).history_.rows]
        assert phases == ["warm start"] * 2 + ["train"] * 3

    def test_options_reach_the_criterion(self, data):
        classifier = quick(loss_options={"gamma": 0.1, "margin": 0.5}, min_tpr=0.2, max_fpr=0.3).fit(*data)
        criterion = classifier.loss_
        assert (criterion.gamma, criterion.surrogate.margin) == (0.1, 0.5)
        assert (criterion.min_tpr, criterion.max_fpr) == (0.2, 0.3)

    def test_batches(self, data, monkeypatch):
        X, y = data
        seen = []

        def spy(model, criterion, train, **options):
            seen.append([(int(labels.sum()), len(labels)) for _, labels, _ in train])
            return original(model, criterion, train, **options)

        original = sys.modules["moreauc.estimators.base"].fit
        monkeypatch.setattr("moreauc.estimators.base.fit", spy)
        for options in ({}, {"sampler": "balanced", "loss": "ce"}, {"loss": "ce"}, {"positive_fraction": 0.01}):
            quick(batch_size=20, validation_fraction=0.0, **options).fit(X, y)
        assert set(seen[0]) == set(seen[1]) == {(10, 20)}
        assert {size for _, size in seen[2]} == {20} and len({positives for positives, _ in seen[2]}) > 1
        assert set(seen[3]) == {(1, 20)}

    def test_no_batch_of_one_row(self, data):
        X, y = data
        rows = np.r_[np.flatnonzero(y == 1)[:5], np.flatnonzero(y == 0)[:28]]
        classifier = quick(module=Column, loss="ce", validation_fraction=0.0, batch_size=32).fit(X[rows], y[rows])
        assert np.isfinite(classifier.history_["loss"]).all()

    def test_arguments_reach_the_loop(self, data, monkeypatch):
        given = {"optimizer": "sgd", "lr": 0.02, "momentum": 0.5, "weight_decay": 0.01, "epochs": 2, "min_tpr": 0.1}
        seen = {}

        def spy(*parts, **options):
            seen.update(options)
            return original(*parts, **options)

        original = sys.modules["moreauc.estimators.base"].fit
        monkeypatch.setattr("moreauc.estimators.base.fit", spy)
        classifier = quick(loss="auc_m", standardize=False, **given).fit(*data)
        assert {name: seen[name] for name in given} == given
        assert seen["proximal"] == METHODS["rows"]["auc_m"].proximal > 0
        assert not classifier.preprocessor_.standardize

    def test_verbose_shows_a_progress_bar(self, data, capsys):
        quick(verbose=1).fit(*data)
        assert "objective" in capsys.readouterr().out
        quick().fit(*data)
        assert capsys.readouterr().out == ""


class TestReproducible:
    def test_same_seed_same_weights_and_no_global_state(self, data):
        torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
        first = quick(module="mlp", dropout=0.2).fit(*data)
        assert torch.equal(torch.get_rng_state(), torch_before)
        np.testing.assert_array_equal(np.random.get_state()[1], numpy_before)
        torch.rand(3)
        second = quick(module="mlp", dropout=0.2).fit(*data)
        third = first.fit(*data)
        for name, value in second.model_.state_dict().items():
            assert torch.equal(third.model_.state_dict()[name], value)

    @pytest.mark.parametrize("loss", ["sonx", "ce"])
    def test_the_seed_matters(self, loss, data):
        scores = [quick(loss=loss, random_state=seed).fit(*data).decision_function(data[0]) for seed in (0, 1)]
        assert not np.array_equal(*scores)

    def test_generators_are_taken(self, data):
        first, second = (quick(random_state=np.random.RandomState(5)).fit(*data) for _ in range(2))
        np.testing.assert_array_equal(first.decision_function(data[0]), second.decision_function(data[0]))
        quick(random_state=None).fit(*data)

    @pytest.mark.parametrize("duplicate", [lambda c: pickle.loads(pickle.dumps(c)), copy.deepcopy])
    def test_copies_predict_the_same(self, duplicate, table):
        X, y = table
        classifier = quick(module="mlp", hidden=(4,)).fit(X, y)
        again = duplicate(classifier)
        np.testing.assert_array_equal(classifier.predict_proba(X), again.predict_proba(X))
        np.testing.assert_array_equal(classifier.predict(X), again.predict(X))

    def test_clone_and_parameters(self):
        classifier = TPAUCClassifier(module=MLP(2), loss_options={"gamma": 0.1})
        assert clone(classifier).loss_options == {"gamma": 0.1}
        assert classifier.set_params(max_fpr=0.2).get_params()["max_fpr"] == 0.2
        with pytest.raises(NotFittedError):
            classifier.predict([[0.0, 0.0]])


class TestWithScikitLearn:
    def test_grid_search_over_losses_and_modules_in_two_processes(self, data):
        grid = [
            {"loss": ["sonx"], "loss_options": [None, {"gamma": 0.1}]},
            {"loss": ["ce"], "module": ["mlp", "linear"], "hidden": [(4,)]},
        ]
        search = GridSearchCV(quick(), grid, cv=2, n_jobs=2).fit(*data)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all() and search.best_score_ > 0.5

    def test_cross_validation_with_the_scorer(self, data):
        own = cross_val_score(quick(), *data, cv=3)
        scorer = tpauc_scorer(min_tpr=0.5, max_fpr=0.5)
        np.testing.assert_allclose(own, cross_val_score(quick(), *data, cv=3, scoring=scorer))

    def test_pipeline(self, data):
        pipeline = make_pipeline(PolynomialFeatures(2), quick(epochs=10))
        assert pipeline.fit(*data).score(*data) > 0.7
        assert pipeline[-1].n_features_in_ == 28


class TestTables:
    @pytest.mark.filterwarnings("ignore::moreauc.metrics.TiedScoresWarning")  # a small network on few rows
    def test_missing_values_categories_and_strings(self, table):
        X, y = table
        classifier = quick(epochs=10).fit(X, y)
        assert classifier.preprocessor_.kinds_ == [
            *("numbers", "numbers", "levels", "levels", "levels", "numbers", "numbers")
        ]
        assert list(classifier.feature_names_in_) == list(X.columns) and classifier.n_features_in_ == 7
        assert set(classifier.predict(X)) == {"no", "yes"}
        assert (
            classifier.score(X, y) > quick(epochs=10).fit(X[["count", "town"]], y).score(X[["count", "town"]], y) + 0.1
        )

    def test_what_becomes_of_a_table(self):
        X = pd.DataFrame(
            {
                "number": [1.0, 3.0, np.nan, 2.0, 2.0, 2.0, 2.0, 2.0],
                "level": ["a", "a", "a", "b", "b", "b", "rare", None],
                "bool": [True, False] * 4,
            }
        )
        encoder = TableEncoder(standardize=False).fit(X)
        expected = [[1, 0, 1, 0, 0, 0, 1], [3, 0, 1, 0, 0, 1, 0], [2, 1, 1, 0, 0, 0, 1], [2, 0, 0, 1, 0, 1, 0]]
        np.testing.assert_array_equal(encoder.transform(X)[:4], expected)
        assert encoder.transform(X)[6].tolist() == [*encoder.transform(X)[7].tolist()[:5], 0, 1]  # rare ones together
        new = pd.DataFrame({"number": [None], "level": ["new"], "bool": [None]})
        with pytest.warns(
            ColumnWarning, match=r"column 'level' holds levels .* in 1 of 1 rows \(100.0%\), such as 'new'"
        ):
            assert encoder.transform(new).tolist() == [[2, 1, 0, 0, 1, 0, 0]]
        scaled = TableEncoder().fit(X).transform(X)[:, 0]
        assert scaled.mean() == pytest.approx(0.0, abs=1e-6) and scaled.std() == pytest.approx(1.0)

    def test_levels_do_not_depend_on_how_numbers_are_stored(self):
        X = pd.DataFrame({"c": pd.Categorical([1, 2] * 4), "x": 0.0})
        encoder = TableEncoder().fit(X)
        for values in (pd.Categorical([1.0, 2.0]), np.array([1, 2]), np.array(["1", "2"]), np.array([1.0, 2.0])):
            np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"c": values, "x": 0.0}))[:, 1:], np.eye(2))

    @pytest.mark.parametrize("missing", [False, True])
    @pytest.mark.parametrize("of_numbers", [False, True])
    def test_truth_values_may_come_as_numbers(self, of_numbers, missing):
        truths = pd.Series([True, False, True, False, False, True] * 4, dtype="boolean")
        if missing:
            truths[::6] = pd.NA
        numbers = truths.astype("Int64")
        fitted = numbers.astype("category") if of_numbers else truths
        encoder = TableEncoder().fit(pd.DataFrame({"x": fitted}))
        expected = encoder.transform(pd.DataFrame({"x": fitted}))
        assert expected.shape == (24, 2 + missing) and (expected.sum(axis=1) == 1).all()
        for other in (truths, numbers, numbers.astype(float), numbers.astype("category"), truths.astype("string")):
            np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"x": other})), expected)

    def test_many_levels_are_cut_to_the_most_frequent(self):
        frequent = np.repeat(np.arange(80).astype(str), np.where(np.arange(80) < 49, 5, 4))
        with pytest.warns(
            ColumnWarning, match=r"'id' holds 80 different texts in 369 rows; 31 of them, in 34% of the rows"
        ):
            encoder = TableEncoder().fit(pd.DataFrame({"id": frequent}))
        assert encoder.num_outputs_ == 50
        np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"id": ["60"]})), [[0.0] * 49 + [1.0]])

    def test_levels_that_were_not_there_in_fit(self, table):
        X, y = table
        classifier = quick().fit(X, y)
        some = X.copy()
        some.loc[:29, "town"] = "d"
        some["kind"] = some["kind"].astype(object).where(some.index > 29, 7)
        with pytest.warns(ColumnWarning, match=r"column '(town|kind)' holds levels that were not") as found:
            classifier.predict(some)
        shares = classifier.preprocessor_.unknown_levels(some)
        assert [column.name for column in shares if column.unknown] == ["town", "kind"] and len(found) == 2
        assert shares[0].unknown == 30 and shares[0].share == 30 / some["town"].notna().sum()
        for values, message in (
            ("d", "column 'town' must hold levels of the training ('a', 'b', 'c'), got others only, such as 'd'"),
            (3.5, "column 'town' must hold texts, as in training ('a', 'b', 'c'), got numbers, 3.5; write its values"),
        ):
            with pytest.raises(ValueError, match=f"^TPAUCClassifier: {re.escape(message)}"):
                classifier.predict(X.assign(town=values))
        with pytest.raises(ValueError, match=r"must hold texts, as in training .* got numbers, 3;"):
            classifier.predict(X[:1].assign(town=3))
        with pytest.raises(
            ValueError, match=r"must hold numbers in column 'size', as in fit, got .*; turn it into num"
        ):
            classifier.predict(X.assign(size="large"))
        with pytest.warns(ColumnWarning, match="in 1 of 1 rows"):  # a row may come alone
            classifier.predict(X[1:2].assign(town="d"))
        classifier.predict(X.assign(town=None))  # missing is no level that could be misspelt

    def test_a_level_of_the_held_out_rows_only_is_no_surprise(self, table):
        X, y = table
        held = quick().fit(X, y).held_out_
        town = X["town"].copy()
        town.iloc[held[:4]] = "held"
        assert (quick().fit(X.assign(town=town), y).held_out_ == held).all()  # without a warning

    @pytest.mark.parametrize("texts", [["$5", "$6.50"], ["0,5", "1,5"], ["31.12.24", "1.1.25"], ["1 000", "20"]])
    def test_numbers_and_dates_as_texts_are_refused(self, texts):
        X = pd.DataFrame({"a": texts * 20, "x": np.arange(40) / 7})
        with pytest.raises(
            ValueError, match=r"^TPAUCClassifier: column 'a' of X holds .* or make the column a category"
        ):
            quick().fit(X, np.arange(40) % 2)
        quick().fit(X.assign(a=X["a"].astype("category")), np.arange(40) % 2)

    def test_texts_that_begin_with_numbers_are_named_unless_they_are_categories(self):
        X = pd.DataFrame({"x": np.arange(80) / 7, "code": [f"{k % 20} b" for k in range(80)]})
        with pytest.warns(ColumnWarning, match="column 'code' holds 20 different texts that begin with a number"):
            TableEncoder().fit(X)
        TableEncoder().fit(X.astype({"code": "category"}))

    def test_a_number_of_rows_is_named(self):
        X = pd.DataFrame({"x": np.arange(40) / 7, "case": np.arange(40)})
        with pytest.warns(
            ColumnWarning, match="TPAUCClassifier: column 'case' holds a different whole number in every"
        ):
            quick().fit(X, np.arange(40) % 2)

    def test_missing_for_the_first_time_is_the_median(self):
        encoder = TableEncoder(standardize=False).fit(np.array([[1.0, np.nan], [2.0, 5.0], [9.0, 5.0]]))
        assert encoder.transform(np.array([[np.nan, np.nan]])).tolist() == [[2.0, 5.0, 1.0]]

    def test_bools_may_come_for_numbers(self):
        encoder = TableEncoder(standardize=False).fit(pd.DataFrame({"x": [0, 1, 1]}))
        assert encoder.transform(pd.DataFrame({"x": [True, False]})).tolist() == [[1.0], [0.0]]

    def test_a_frame_of_numbers_is_as_good_as_an_array(self, data):
        X, y = data
        with_nan = X.copy()
        with_nan[::7, 2] = np.nan
        frame = pd.DataFrame(with_nan, columns=list("abcdef"))
        first, second = quick().fit(with_nan, y), quick().fit(frame, y)
        np.testing.assert_array_equal(first.decision_function(with_nan), second.decision_function(frame))
        objects = frame.astype(object)
        np.testing.assert_array_equal(first.decision_function(with_nan), second.decision_function(objects))
        with pytest.warns(UserWarning, match="valid feature names"):
            np.testing.assert_array_equal(second.predict(with_nan), first.predict(with_nan))

    def test_far_out_numbers_do_not_become_infinite(self):
        encoder = TableEncoder().fit(np.array([[0.0], [1.0]]))
        assert np.isfinite(encoder.transform(np.array([[1e300], [-1e300]]))).all()

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            (pd.date_range("2020", periods=120), "datetime64 in column 'extra'; turn it into numbers"),
            (pd.to_timedelta(np.arange(120)), "timedelta64 in column 'extra'; turn it into numbers"),
            ([1, "a"] * 60, "mixed-integer in column 'extra'; turn it into one type"),
            (np.arange(120) * 1j, "complex in column 'extra'; turn it into one type"),
            ([np.inf] * 120, "infinity in column 'extra'"),
        ],
    )
    def test_columns_that_cannot_be_used_are_named(self, values, message, table):
        X, y = table
        with pytest.raises(ValueError, match=message):
            quick().fit(X.assign(extra=values), y)

    def test_other_tables_in_predict_are_refused(self, table):
        X, y = table
        classifier = quick().fit(X, y)
        with pytest.raises(ValueError, match="must hold numbers in column 'size', as in fit, got"):
            classifier.predict(X.assign(size="large"))
        with pytest.raises(ValueError, match="datetime64 in column 'town'"):
            classifier.predict(X.assign(town=pd.Timestamp("2020")))
        with pytest.raises(ValueError, match="feature names should match"):
            classifier.predict(X.drop(columns="size"))
        with pytest.raises(ValueError, match="feature names should match"):
            classifier.predict(X[X.columns[::-1]])
        with pytest.raises(ValueError, match="at least one row and one column"):
            classifier.predict(X[:0])
        with pytest.warns(UserWarning), pytest.raises(ValueError, match=r"must be a DataFrame, as in fit, .*column 2"):
            classifier.predict(np.zeros((3, 7)))

    def test_infinity_in_an_array_is_refused(self, data):
        X, y = data
        with pytest.raises(ValueError, match="infinity"):
            quick().fit(np.where(X > 2, np.inf, X), y)

    def test_texts_are_compared_in_normal_form(self, table):
        X, y = table
        fitted = quick().fit(X, y)
        spelt = X.assign(town=X["town"].map({"a": "a ", "b": "\u00a0b", "c": "c\u200b"}))
        np.testing.assert_array_equal(fitted.decision_function(spelt), fitted.decision_function(X))
        np.testing.assert_array_equal(quick().fit(spelt, y).decision_function(X), fitted.decision_function(X))

    @pytest.mark.parametrize("kind", [pd.DataFrame, lambda columns: pd.DataFrame(columns).to_numpy()])
    def test_integers_that_floats_cannot_tell_apart_are_refused(self, kind):
        y = np.arange(40) % 2
        X = kind({"id": 2**60 + np.arange(40), "x": np.arange(40)})
        with pytest.raises(
            ValueError, match=r"TPAUCClassifier: X column .* holds numbers too close together .* drop it"
        ):
            quick().fit(X, y)
        order = np.random.default_rng(0).permutation(40)
        times = kind({"time": 2**60 + 10**9 * order, "x": order[::-1]})
        assert np.isfinite(quick().fit(times, y).decision_function(times)).all()


class TestOperatingPoint:
    LABELS = np.array([0, 0, 0, 0, 1, 1, 1])
    SCORES = np.array([0.0, 1.0, 2.0, 4.0, 1.5, 3.0, 5.0])

    @pytest.mark.parametrize(
        ("budget", "threshold"),
        [(0.0, 4.5), (0.24, 4.5), (0.25, 2.5), (0.49, 2.5), (0.5, 1.25), (0.75, 1.25), (1.0, 1.25)],
    )
    def test_threshold_by_hand(self, budget, threshold):
        assert choose_threshold(self.LABELS, self.SCORES, budget) == threshold

    @pytest.mark.parametrize(
        ("labels", "scores", "budget", "threshold"),
        [
            ([1, 0], [0.0, 1.0], 0.0, 1.5),  # the highest is a negative: nothing is called positive
            ([1, 0], [0.0, 1.0], 1.0, -0.5),  # everything is
            ([1, 0], [2.0, 2.0], 0.0, 2.5),
            ([1, 0], [2.0, 2.0], 1.0, 1.5),
            ([1, 1, 0, 0], [2.0, 3.0, 2.0, 1.0], 0.0, 2.5),  # equal scores go together
            ([1, 1, 0, 0], [2.0, 3.0, 2.0, 1.0], 0.5, 1.5),
            ([0] * 10 + [1], [*range(10), 8.5], 1 - 0.9, 8.25),  # a rounding error does not cost a false alarm
        ],
    )
    def test_threshold_at_the_edges(self, labels, scores, budget, threshold):
        assert choose_threshold(np.array(labels), np.array(scores), budget) == threshold

    def test_threshold_is_the_best_of_all(self):
        random = np.random.RandomState(0)
        for _ in range(50):
            labels, scores = random.rand(30) < 0.4, random.randint(12, size=30) / 2
            budget = random.rand()
            if labels.all() or not labels.any():
                continue
            threshold = choose_threshold(labels, scores, budget)
            fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
            best = tpr[fpr <= budget].max()
            above = scores > threshold
            assert above[labels].mean() == best
            assert above[~labels].mean() == fpr[(fpr <= budget) & (tpr == best)].min()

    @pytest.mark.parametrize("budget", [0.0, 0.05, 0.2, None])
    @pytest.mark.parametrize("fraction", [0.0, 0.3])
    def test_false_alarms_on_the_held_out_rows_keep_the_budget(self, budget, fraction, data):
        X, y = data
        classifier = quick(fpr_budget=budget, max_fpr=0.4, validation_fraction=fraction, min_tpr=0.2).fit(X, y)
        rows = classifier.held_out_ if fraction else np.arange(len(y))
        alarms = classifier.predict(X[rows])[y[rows] == 0].mean()
        assert alarms <= (0.4 if budget is None else budget)

    def test_the_operating_point_is_that_of_the_held_out_rows(self, data):
        X, y = data
        y = np.where(np.random.RandomState(0).rand(len(y)) < 0.2, 1 - y, y)
        classifier = quick(fpr_budget=0.1).fit(X, y)
        rows = classifier.held_out_
        scores = classifier.decision_function(X) + classifier.threshold_
        assert classifier.threshold_ == pytest.approx(choose_threshold(y[rows], scores[rows], 0.1), abs=1e-5)
        assert classifier.threshold_ != pytest.approx(choose_threshold(y, scores, 0.1), abs=1e-5)
        assert classifier.platt_ == pytest.approx(fit_platt(y[rows], scores[rows]), rel=1e-3)

    def test_decision_prediction_and_probability_agree(self, data):
        X, y = data
        classifier = quick(fpr_budget=0.01).fit(X, y)
        decision, probability = classifier.decision_function(X), classifier.predict_proba(X)
        np.testing.assert_array_equal(classifier.predict(X), (decision > 0).astype(int))
        np.testing.assert_array_equal(classifier.predict(X), probability.argmax(axis=1))
        with torch.no_grad():
            raw = classifier.model_(torch.from_numpy(classifier.preprocessor_.transform(X))).numpy()
        np.testing.assert_allclose(decision, raw - classifier.threshold_, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(probability.sum(axis=1), 1.0, rtol=1e-6)
        assert (np.diff(probability[np.argsort(decision), 1]) >= 0).all()

    def test_calibrated_probabilities_do_not_follow_the_threshold(self, data):
        X, y = data
        options = {"validation_fraction": 0.0, "probabilities": "calibrated"}
        low, high = (quick(fpr_budget=budget, **options).fit(X, y) for budget in (0.0, 0.5))
        np.testing.assert_array_equal(low.predict_proba(X), high.predict_proba(X))
        assert low.predict_proba(X)[:, 1].mean() == pytest.approx(y.mean(), abs=0.02)
        assert low.threshold_ > high.threshold_

    def test_platt_is_the_logistic_fit(self):
        random = np.random.RandomState(0)
        labels = random.rand(4000) < 0.2
        scores = 30.0 + 5.0 * (random.normal(size=4000) + labels)
        curve = fit_platt(labels, scores)
        logistic = LogisticRegression(C=1e8, tol=1e-8, max_iter=1000).fit((scores[:, None] - 30) / 5, labels)
        assert curve.slope == pytest.approx(logistic.coef_[0, 0] / 5, rel=0.02)
        assert curve.probability(scores).mean() == pytest.approx(labels.mean(), abs=1e-3)

    @pytest.mark.parametrize("scores", [[1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0], [4e9, 3e9, 2e9, 1e9]])
    def test_probabilities_rise_whatever_the_scores(self, scores):
        curve = fit_platt(np.array([1, 1, 0, 0]), np.array(scores))
        assert curve.slope > 0 and np.isfinite(curve.intercept)

    def test_probabilities_of_separated_classes_are_not_certain(self):
        labels, scores = np.arange(10) >= 5, np.arange(10.0)
        probability = fit_platt(labels, scores).probability(scores)
        assert 0.9 < probability[-1] < 0.99

    def test_the_other_class_may_be_the_one_to_find(self, data):
        X, y = data
        names = np.where(y == 1, "bad", "good")  # "bad" is the first in order
        plain = quick(fpr_budget=0.05).fit(X, y)
        named = quick(fpr_budget=0.05, positive_label="bad").fit(X, names)
        assert named.classes_.tolist() == ["bad", "good"] and named.positive_label_ == "bad"
        np.testing.assert_array_equal(named.decision_function(X), -plain.decision_function(X))
        np.testing.assert_array_equal(named.predict(X) == "bad", plain.predict(X) == 1)
        np.testing.assert_array_equal(named.predict_proba(X)[:, 0], plain.predict_proba(X)[:, 1])
        assert named.score(X, names) == plain.score(X, y)

    @pytest.mark.parametrize("classes", [(False, True), (-1, 1), (0.0, 1.0), ("a", "b"), (3, 8)])
    def test_classes_of_any_kind(self, classes, data):
        X, y = data
        named = np.array(classes)[y]
        classifier = quick().fit(X, named)
        assert classifier.classes_.tolist() == list(classes) and classifier.classes_.dtype == named.dtype
        np.testing.assert_array_equal(classifier.predict(X), np.array(classes)[quick().fit(X, y).predict(X)])
        np.testing.assert_array_equal(quick().fit(X, pd.Series(named)).predict(X), classifier.predict(X))


class Column(nn.Module):
    """Returns scores of shape (B, 1), and holds a batch norm."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, 1))

    def forward(self, inputs):
        return self.layers(inputs)


class TestModules:
    @pytest.mark.parametrize("loss", ["sonx", "ce"])
    def test_own_module_is_copied(self, loss, data):
        module = Column(6)
        before = copy.deepcopy(module.state_dict())
        classifier = quick(module=module, loss=loss, epochs=10).fit(*data)
        for name, value in module.state_dict().items():
            assert torch.equal(value, before[name]), name
        assert module.training and not classifier.model_.training
        assert isinstance(classifier.model_, Column) and classifier.score(*data) > 0.6

    def test_training_starts_from_the_weights_of_a_module(self, data):
        module = nn.Linear(6, 1)
        classifier = quick(module=module, lr=1e-12, weight_decay=0.0).fit(*data)
        np.testing.assert_allclose(classifier.model_.weight.detach(), module.weight.detach(), rtol=1e-5)

    def test_function_that_makes_a_module_is_told_the_inputs(self, table):
        X, y = table
        for module in (Column, lambda width: nn.Linear(width, 1)):
            classifier = quick(module=module).fit(X, y)
            assert classifier.predict(X).shape == (120,)
        first, second = (quick(module=Column).fit(X, y).decision_function(X) for _ in range(2))
        np.testing.assert_array_equal(first, second)

    @pytest.mark.filterwarnings("ignore::moreauc.metrics.TiedScoresWarning")  # four units with dropout may all be off
    def test_hidden_layers_and_dropout(self, data):
        layers = quick(module="mlp", hidden=(5, 4), dropout=0.5).fit(*data).model_.layers
        assert [(layer.in_features, layer.out_features) for layer in layers if isinstance(layer, nn.Linear)] == [
            *((6, 5), (5, 4), (4, 1))
        ]
        assert [layer.p for layer in layers if isinstance(layer, nn.Dropout)] == [0.5, 0.5]
        assert len(quick(module="linear", hidden=(5, 4)).fit(*data).model_.layers) == 1

    def test_the_network_is_more_than_linear(self):
        X = np.random.RandomState(0).uniform(-1, 1, size=(300, 2))
        y = X[:, 0] * X[:, 1] > 0
        assert quick(module="mlp", epochs=20).fit(X, y).score(X, y) > 0.7 > 0.4 > quick(epochs=20).fit(X, y).score(X, y)

    def test_scores_that_are_not_finite_are_refused(self, data):
        class Root(nn.Linear):
            def forward(self, inputs):
                return super().forward(inputs) + (1e4 - inputs[:, :1].abs()).sqrt()

        classifier = quick(module=Root(6, 1)).fit(*data)
        with pytest.raises(ValueError, match="scores that are not finite"):
            classifier.predict(np.full((2, 6), 1e9))

    def test_a_fit_whose_last_scores_are_not_finite_leaves_nothing_fitted(self, data):
        class Moody(nn.Linear):
            def forward(self, inputs):
                return super().forward(inputs) / (1.0 if self.training else 0.0)

        classifier = quick(module=Moody(6, 1), validation_fraction=0.0)
        with pytest.raises(ValueError, match="scores that are not finite"):
            classifier.fit(*data)
        with pytest.raises(NotFittedError):
            classifier.predict(data[0])


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"min_tpr": 1.0}, r"TPAUCClassifier: min_tpr must be a number in \[0, 1\), got 1.0"),
            ({"max_fpr": 0.0}, r"TPAUCClassifier: max_fpr must be a number in \(0, 1\], got 0.0"),
            ({"loss": "hinge"}, r"TPAUCClassifier: loss must be one of \['sonx', .*, got 'hinge'"),
            ({"loss_options": 3}, r"TPAUCClassifier: loss_options must be a dictionary or None, got 3"),
            ({"module": "tree"}, r"TPAUCClassifier: module must be 'mlp', 'linear', .*, got 'tree'"),
            ({"module": lambda width: width}, r"TPAUCClassifier: module must make a torch module, got int"),
            ({"module": "mlp", "hidden": 4}, r"MLP: hidden must be a tuple of widths, got 4"),
            ({"module": "mlp", "hidden": (0,)}, r"MLP: hidden must be an integer of at least 1, got 0"),
            ({"module": "mlp", "dropout": 1.0}, r"MLP: dropout must be a number in \[0, 1\), got 1.0"),
            ({"optimizer": "lbfgs"}, r"TPAUCClassifier: optimizer must be one of \['adam', .*, got 'lbfgs'"),
            ({"epochs": 0}, r"epochs must be an integer of at least 1, got 0"),
            ({"lr": 0.0}, r"lr must be a number in \(0, inf\), got 0.0"),
            ({"batch_size": 1}, r"TPAUCClassifier: batch_size must be an integer of at least 2, got 1"),
            ({"positive_fraction": 1.0}, r"TPAUCClassifier: positive_fraction must be a number in \(0, 1\), got 1.0"),
            ({"sampler": "all"}, r"TPAUCClassifier: sampler must be one of \['auto', .*, got 'all'"),
            ({"validation_fraction": 1.0}, r"TPAUCClassifier: validation_fraction must be a number in \[0, 1\), got 1"),
            ({"fpr_budget": 1.5}, r"TPAUCClassifier: fpr_budget must be a number in \[0, 1\], got 1.5"),
            ({"probabilities": "raw"}, r"TPAUCClassifier: probabilities must be one of \['threshold', .*, got 'raw'"),
            ({"positive_label": 2}, r"TPAUCClassifier: positive_label must be one of \[0, 1\], got 2"),
            ({"device": "abacus"}, r"TPAUCClassifier: device must be one that torch has here, got 'abacus'"),
        ],
    )
    def test_arguments(self, options, message, data):
        classifier = quick(**options)
        with pytest.raises(ValueError, match=message):
            classifier.fit(*data)
        assert not hasattr(classifier, "classes_")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda y: y * 0, "y must hold two classes, got one class, \\[0\\]"),
            (
                lambda y: np.arange(len(y)) % 3,
                "Only binary classification is supported. The type of the target is multi",
            ),
            (lambda y: y + np.linspace(0, 1, len(y)), "Unknown label type: continuous"),
            (lambda y: y[:-1], "inconsistent numbers of samples"),
            (lambda y: np.where(y == 1, 1.0, np.nan), "Input y contains NaN"),
            (lambda y: np.where(y == 1, "a", None), "TPAUCClassifier: y must have no missing values, got 1"),
        ],
    )
    def test_targets(self, change, message, data):
        X, y = data
        for table in (X, pd.DataFrame(X).add_prefix("x")):
            with pytest.raises(ValueError, match=message):
                quick().fit(table, change(y))

    def test_score_knows_its_classes(self, data):
        X, y = data
        with pytest.raises(ValueError, match=r"y must hold the classes \[0, 1\], got \[6\]"):
            quick().fit(X, y).score(X, y + 6)

    def test_linear_model_needs_a_width(self):
        with pytest.raises(ValueError, match="MLP: num_features must be an integer of at least 1, got 0"):
            MLP(0)


def test_a_score_of_tied_rows_warns_with_their_share():
    X = np.arange(40.0).reshape(20, 2)
    y = np.arange(20) % 2
    classifier = TPAUCClassifier(min_tpr=0.5, max_fpr=0.5, module="linear", epochs=1, random_state=0).fit(X, y)
    classifier.model_.requires_grad_(False)
    for parameter in classifier.model_.parameters():
        parameter.zero_()
    with pytest.warns(TiedScoresWarning, match=r"TPAUCClassifier: 100.0% of the rows of the region"):
        assert classifier.score(X, y) == 0.0


FAILURES = [ValueError("in a step"), MemoryError("in a step"), KeyboardInterrupt()]


def bags_of(X):
    return [X[start : start + 2] for start in range(0, len(X), 2)]


FITS = {  # the estimator, and its data made of a table and two classes
    "rows": (lambda **options: quick(**options), lambda X, y: (X, y)),
    "bags": (
        lambda **options: MultiInstanceClassifier(epochs=2, **options),
        lambda X, y: (bags_of(X), y[::2]),
    ),
    "groups": (
        lambda **options: GroupDROClassifier(epochs=2, **options),
        lambda X, y: (X, y, np.arange(len(y)) % 3),
    ),
    "numbers": (
        lambda **options: GroupDRORegressor(epochs=2, **options),
        lambda X, y: (X, y.astype(float), np.arange(len(y)) % 3),
    ),
}


def contents(estimator):
    """All attributes, and what is in those that a training could change."""
    networks = {name: part for name, part in vars(estimator).items() if isinstance(part, nn.Module)}
    states = {name: copy.deepcopy(part.state_dict()) for name, part in networks.items()}
    modes = {name: part.training for name, part in networks.items()}
    return dict(vars(estimator)), states, modes


def unchanged(estimator, before):
    attributes, states, modes = contents(estimator)
    assert attributes.keys() == before[0].keys()
    assert all(value is before[0][name] for name, value in attributes.items())
    for name, state in before[1].items():
        assert all(torch.equal(states[name][key], value) for key, value in state.items())
    return modes == before[2]


def failing_step(monkeypatch, failure, number=2):
    """Let a training fail in its step of that number."""
    count, step = [0], train.train_step

    def limited(*arguments):
        count[0] += 1
        if count[0] == number:
            raise failure
        return step(*arguments)

    monkeypatch.setattr(train, "train_step", limited)


@pytest.fixture
def two_tables():
    random = np.random.RandomState(0)
    y = np.arange(96) // 2 % 2
    first = pd.DataFrame(random.normal(size=(96, 3)) + y[:, None], columns=["a", "b", "c"])
    return first, first.rename(columns={"a": "other"}).assign(more=1.0, extra=np.arange(96.0) / 7), y


@pytest.mark.parametrize("kind", FITS)
class TestAllOrNothing:
    @pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
    def test_a_training_that_fails(self, kind, failure, two_tables, monkeypatch):
        make, arrange = FITS[kind]
        first, second, y = two_tables
        estimator = make(random_state=0).fit(*arrange(first, y))
        before = contents(estimator)
        failing_step(monkeypatch, failure)
        with pytest.raises(type(failure)):
            estimator.fit(*arrange(second, y))
        assert unchanged(estimator, before)
        with pytest.raises(type(failure)):  # and one that was not fitted has nothing but its arguments
            failing_step(monkeypatch, failure)
            make(random_state=0).fit(*arrange(second, y))

    def test_targets_and_arguments_that_are_refused(self, kind, two_tables):
        make, arrange = FITS[kind]
        first, second, y = two_tables
        estimator = make(random_state=0).fit(*arrange(first, y))
        before = contents(estimator)
        X, _, *groups = arrange(second, y)
        for targets in (np.full(len(X), np.nan), np.arange(7)):
            with pytest.raises(ValueError, match=r"NaN|inconsistent|y must|missing"):
                estimator.fit(X, targets, *groups)
            assert unchanged(estimator, before)
        new = make(random_state=0)
        with pytest.raises(ValueError, match=r"NaN|missing"):
            new.fit(X, np.full(len(X), np.nan), *groups)
        assert vars(new) == vars(make(random_state=0))

    def test_a_generator_draws_the_same_again(self, kind, two_tables, monkeypatch):
        make, arrange = FITS[kind]
        first, _, y = two_tables
        source = np.random.RandomState(5)
        estimator = make(random_state=source)
        with monkeypatch.context() as patch:
            failing_step(patch, KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                estimator.fit(*arrange(first, y))
        again, new = estimator.fit(*arrange(first, y)), make(random_state=np.random.RandomState(5))
        assert again.history_["loss"] == new.fit(*arrange(first, y)).history_["loss"]

    def test_a_function_that_gives_one_module_again_and_again(self, kind, two_tables, monkeypatch):
        make, arrange = FITS[kind]
        first, _, y = two_tables
        shared = nn.Sequential(nn.Linear(3, 2 if kind == "bags" else 1))
        estimator = make(random_state=0, module=lambda *sizes: nn.Sequential(shared)).fit(*arrange(first, y))
        before = contents(estimator)
        failing_step(monkeypatch, KeyboardInterrupt(), number=3)
        with pytest.raises(KeyboardInterrupt):
            estimator.fit(*arrange(first, y))
        assert unchanged(estimator, before)


def test_an_encoder_that_fails_is_as_before(table):
    encoder = TableEncoder().fit(table[0][["size", "town"]])
    before = dict(vars(encoder))
    with pytest.raises(ValueError, match="infinity in column 'a'"):
        encoder.fit(pd.DataFrame({"a": [1.0, np.inf], "b": ["x", "y"]}))
    assert vars(encoder) == before and all(value is before[name] for name, value in vars(encoder).items())
