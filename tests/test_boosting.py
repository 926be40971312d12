"""Boosted trees: the objective, its derivatives, the metric, both libraries, and the estimator."""

from __future__ import annotations

import copy
import pickle
import sys
import warnings
from functools import partial
from typing import ClassVar

import numpy as np
import oracles
import pytest
import torch
from sklearn.datasets import make_classification
from test_region import pair_matrix

from moreauc import TPAUCBooster
from moreauc.boosting import tpauc_metric, tpauc_objective
from moreauc.core.surrogates import get_surrogate
from moreauc.metrics import tpauc_score

lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

REGIONS = [(0.5, 0.5), (0.0, 0.1), (0.3, 0.37), (0.0, 1.0)]
LOSSES = [("smooth_ramp", 0.7), ("squared_hinge", 0.3)]
ONE_THREAD = {"n_jobs": 1}
QUICK = {"n_estimators": 10, "folds": 3, "booster_options": ONE_THREAD, "random_state": 0}
LIBRARIES = ["lightgbm", "xgboost"]


def table(n=400, seed=0, share=0.2, columns=5):
    random = np.random.default_rng(seed)
    y = (random.random(n) < share).astype(int)
    X = random.normal(size=(n, columns))
    X[:, :2] += np.outer(y, [1.5, 1.0])
    return X, y


def scored(n=60, seed=0, ties=True):
    random = np.random.default_rng(seed)
    labels = (random.random(n) < 0.4).astype(int)
    scores = random.normal(size=n) + labels
    return (scores.round(1) if ties else scores), labels


def objective(surrogate="smooth_ramp", margin=0.7, region=(0.5, 0.5), **options):
    given = {"widen": 0.0, "log_loss_weight": 0.1, "log_loss_rounds": 0, **options}
    return tpauc_objective(min_tpr=region[0], max_fpr=region[1], surrogate=surrogate, margin=margin, **given)


def dense_objective(scores, labels, weight, *, region, loss, log_loss_weight):
    """The objective over the pair matrix for autograd, with its region and its scale held fixed."""
    positive, known = labels == 1, scores.detach()
    share = weight[~positive] / weight[~positive].sum()
    middle = share @ known[~positive]
    high = scores / (share @ (known[~positive] - middle) ** 2).sqrt()

    pairs = pair_matrix(high, positive, loss, region, weight)
    signed = torch.where(positive, scores, -scores)
    return weight.sum() * pairs + log_loss_weight * (weight @ torch.nn.functional.softplus(-signed))


class TestObjective:
    @pytest.mark.parametrize("region", REGIONS)
    @pytest.mark.parametrize(("surrogate", "margin"), LOSSES)
    @pytest.mark.parametrize("weighted", [False, True])
    def test_value_and_gradient_are_those_of_autograd(self, region, surrogate, margin, weighted):
        scores, labels = scored(200, ties=False)
        weight = np.random.default_rng(1).random(200) + 0.1 if weighted else np.ones(200)
        own = objective(surrogate, margin, region)
        x = torch.from_numpy(scores).requires_grad_()
        others = {"region": region, "loss": get_surrogate(surrogate, margin), "log_loss_weight": 0.1}
        expected = dense_objective(x, torch.from_numpy(labels), torch.from_numpy(weight), **others)
        gradient, _ = own(labels, scores, weight)
        assert own.value(scores, labels, weight) == pytest.approx(expected.item(), rel=1e-12)
        np.testing.assert_allclose(gradient, torch.autograd.grad(expected, x)[0].numpy(), rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("region", REGIONS)
    @pytest.mark.parametrize(("surrogate", "margin"), LOSSES)
    def test_gradient_and_hessian_are_those_of_plain_loops(self, region, surrogate, margin):
        scores, labels = scored()
        curve = (
            (lambda z: 1 / margin**2 if abs(z) < margin else 0.0)
            if surrogate == "smooth_ramp"
            else (lambda z: 2.0 if z > -margin else 0.0)
        )
        slope = (
            partial(oracles.smooth_ramp_slope, m=margin)
            if surrogate == "smooth_ramp"
            else (lambda z: 2 * max(z + margin, 0.0))
        )
        expected = oracles.boosting_round(
            scores.tolist(), labels.tolist(), region=region, loss=(None, slope, curve), log_loss_weight=0.1
        )
        found = objective(surrogate, margin, region)(labels, scores)
        for own, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("region", REGIONS)
    @pytest.mark.parametrize(("surrogate", "margin"), LOSSES)
    def test_the_hessian_bounds_that_of_the_objective_and_is_positive(self, region, surrogate, margin):
        scores, labels = scored(80, ties=False)
        known, weight = torch.from_numpy(labels), torch.ones(80).double()
        others = {"region": region, "loss": get_surrogate(surrogate, margin), "log_loss_weight": 0.1}
        exact = torch.autograd.functional.hessian(
            lambda x: dense_objective(x, known, weight, **others), torch.from_numpy(scores)
        )
        _, hessian = objective(surrogate, margin, region)(labels, scores)
        assert (hessian > 0).all() and exact.abs().max() > 0.1
        assert np.linalg.eigvalsh(np.diag(hessian) - exact.numpy()).min() > -1e-9
        assert np.linalg.eigvalsh(0.45 * np.diag(hessian) - exact.numpy()).min() < -1e-3  # and is not far above it

    def test_no_step_exceeds_half_the_margin_of_the_ramp(self):
        scores, labels = scored(500)
        gradient, hessian = objective(log_loss_weight=0.0)(labels, scores)
        active = gradient != 0
        assert active.sum() > 50
        limit = 0.5 * 0.7 * scores[labels == 0].std()
        steps = np.abs(gradient[active] / hessian[active])
        assert steps.max() <= limit * (1 + 1e-9) and steps.max() > 0.6 * limit

    @pytest.mark.parametrize(("surrogate", "margin"), LOSSES)
    @pytest.mark.parametrize("region", REGIONS)
    def test_a_whole_weight_is_as_good_as_so_many_rows(self, surrogate, margin, region):
        scores, labels = scored()
        times = np.arange(len(labels)) % 3
        rows = np.arange(len(labels)).repeat(times)
        weighted = objective(surrogate, margin, region)(labels, scores, times.astype(float))
        repeated = objective(surrogate, margin, region)(labels[rows], scores[rows])
        for one, other in zip(weighted, repeated, strict=True):
            together = np.bincount(rows, weights=other, minlength=len(labels))
            np.testing.assert_allclose(one, together, rtol=1e-10, atol=1e-10)

    def test_the_order_of_the_rows_does_not_matter(self):
        scores, labels = scored()
        order = np.random.default_rng(0).permutation(len(labels))
        for one, other in zip(objective()(labels, scores), objective()(labels[order], scores[order]), strict=True):
            np.testing.assert_allclose(one[order], other, rtol=1e-12)

    def test_the_region_is_widened_towards_the_whole_square(self):
        scores, labels = scored()
        for widen, region in ((0.5, (0.25, 0.75)), (1.0, (0.0, 1.0))):
            one = objective(region=(0.5, 0.5), widen=widen)(labels, scores)
            np.testing.assert_allclose(one, objective(region=region)(labels, scores), rtol=1e-12)

    def test_the_first_rounds_are_of_the_log_loss_from_the_log_odds(self):
        labels = np.array([1, 0, 0, 0])
        own = objective(log_loss_rounds=2, log_loss_weight=0.5)
        for start in (0.0, 3.0):  # whatever score the library starts with
            for scores in (np.full(4, start), start + np.array([0.2, 0.0, 0.1, 0.0])):
                odds = scores - start + np.log(1 / 3)
                p = 1 / (1 + np.exp(-odds))
                gradient, hessian = own(labels, scores)
                np.testing.assert_allclose(gradient, p - labels)
                np.testing.assert_allclose(hessian, p * (1 - p))
            gradient, _ = own(labels, scores)  # the third round
            expected, _ = objective(log_loss_weight=0.0)(labels, scores)
            np.testing.assert_allclose(gradient - expected, 0.5 * (p - labels), atol=1e-12)

    def test_scores_that_differ_at_first_are_those_of_a_model_that_is_continued(self):
        scores, labels = scored()
        for one, other in zip(
            objective(log_loss_rounds=9)(labels, scores), objective(log_loss_rounds=0)(labels, scores), strict=True
        ):
            np.testing.assert_array_equal(one, other)

    def test_rounds_are_counted_for_each_data_set(self):
        class Data:
            def get_label(self):
                return np.array([1, 0, 0, 0])

            def get_weight(self):
                return None

        own, first, second = objective(log_loss_rounds=2), Data(), Data()
        same = np.zeros(4)
        moved = np.array([0.2, 0.0, 0.1, 0.0])
        own(same, first), own(same, second)
        one, other = own(moved, first)[0], own(moved, second)[0]
        np.testing.assert_array_equal(one, other)
        assert np.abs(own(moved, first)[0] - one).max() > 0.1

    def test_copies_and_pickles_start_anew(self):
        own, labels = objective(log_loss_rounds=1), np.array([1, 0, 0, 0])
        moved = np.array([0.2, 0.0, 0.1, 0.0])
        own(labels, np.zeros(4))
        for other in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
            np.testing.assert_array_equal(other(labels, moved)[0], objective()(labels, moved)[0])

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(("min_tpr", 1.0), ("max_fpr", 0.0), ("surrogate", "hinge"), ("margin", 0.0), ("widen", 1.5)),
            *(("log_loss_weight", -1.0), ("log_loss_rounds", -1)),
        ],
    )
    def test_arguments_are_checked(self, name, value):
        with pytest.raises(ValueError, match=f"tpauc_objective: {name} must be"):
            tpauc_objective(**{"min_tpr": 0.5, "max_fpr": 0.5, name: value})

    @pytest.mark.parametrize(
        ("labels", "weight", "text"),
        [
            ([0, 1, 2], None, "labels must be 0 and 1, got"),
            ([0, 0, 0], None, "labels must hold both classes"),
            ([0, 1, 1], [0.0, 1.0, 1.0], "labels must hold both classes"),
            ([0, 1, 1], [1.0, -1.0, 1.0], "sample_weight must be at least 0, got -1.0"),
        ],
    )
    def test_rows_are_checked(self, labels, weight, text):
        with pytest.raises(ValueError, match=text):
            objective()(np.array(labels), np.arange(3.0), weight)


class TestMetric:
    def test_it_is_the_score_in_the_form_that_each_library_wants(self):
        scores, labels = scored()
        weight = np.arange(len(labels)) % 3 + 1.0
        expected = tpauc_score(labels, scores, min_tpr=0.3, max_fpr=0.3, sample_weight=weight)
        names = {"min_tpr": 0.3, "max_fpr": 0.3}
        assert tpauc_metric("lightgbm", **names)(labels, scores, weight) == ("auc_two_way", expected, True)
        assert tpauc_metric("xgboost", **names)(labels, scores, sample_weight=weight) == expected
        data = xgboost.DMatrix(np.zeros((len(labels), 1)), labels, weight=weight)
        assert tpauc_metric("xgboost", **names)(scores, data) == ("auc_two_way", expected)

    def test_ties_are_not_rewarded(self):
        labels = np.arange(40) % 2
        assert tpauc_metric("xgboost", min_tpr=0.5, max_fpr=0.5)(labels, np.zeros(40)) == 0.0

    def test_arguments_are_checked(self):
        with pytest.raises(ValueError, match=r"tpauc_metric: library must be one of .*, got 'catboost'"):
            tpauc_metric("catboost", min_tpr=0.5, max_fpr=0.5)
        with pytest.raises(ValueError, match="tpauc_metric: max_fpr must be a number"):
            tpauc_metric("xgboost", min_tpr=0.5, max_fpr=0.0)


class TestLibraries:
    """Both interfaces of both libraries grow the same trees."""

    parts = make_classification(700, 8, n_informative=4, weights=[0.8], class_sep=0.7, random_state=2)
    X, y = parts[0][:500], parts[1][:500]
    later, known = parts[0][500:], parts[1][500:]
    region: ClassVar = {"min_tpr": 0.3, "max_fpr": 0.3}

    def own(self):
        return tpauc_objective(**self.region, log_loss_rounds=10)

    def test_lightgbm(self):
        fixed = {"verbosity": -1, "n_jobs": 1, "deterministic": True, "force_row_wise": True}
        data = lightgbm.Dataset(self.X, self.y)
        booster = lightgbm.train({**fixed, "objective": self.own()}, data, 40)
        model = lightgbm.LGBMClassifier(n_estimators=40, objective=self.own(), **fixed).fit(self.X, self.y)
        scores = booster.predict(self.later)
        np.testing.assert_allclose(scores, model.predict(self.later, raw_score=True))
        assert tpauc_score(self.known, scores, **self.region) > 0.5

    def test_early_stopping_of_lightgbm_keeps_the_best_round(self):
        fixed = {"verbosity": -1, "n_jobs": 1, "deterministic": True, "force_row_wise": True, "metric": "None"}
        data = lightgbm.Dataset(self.X, self.y)
        other, found = lightgbm.Dataset(self.later, self.known, reference=data), {}
        stop = lightgbm.early_stopping(15, verbose=False), lightgbm.record_evaluation(found)
        metric = tpauc_metric("lightgbm", **self.region)
        booster = lightgbm.train(
            {**fixed, "objective": self.own()}, data, 200, valid_sets=[other], feval=metric, callbacks=list(stop)
        )
        curve = found["valid_0"]["auc_two_way"]
        assert len(curve) < 200 and booster.best_iteration == np.argmax(curve) + 1
        assert tpauc_score(self.known, booster.predict(self.later), **self.region) == pytest.approx(max(curve))
        model = lightgbm.LGBMClassifier(n_estimators=200, objective=self.own(), **fixed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # newer versions have another name for eval_set
            model.fit(self.X, self.y, eval_set=[(self.later, self.known)], eval_metric=metric, callbacks=list(stop[:1]))
        assert model.best_iteration_ == booster.best_iteration

    def test_xgboost(self):
        fixed = {"max_depth": 3, "n_jobs": 1, "verbosity": 0}
        start = {"objective": "binary:logistic", "base_score": 0.5}  # where XGBClassifier starts
        booster = xgboost.train({**fixed, **start}, xgboost.DMatrix(self.X, self.y), 40, obj=self.own())
        model = xgboost.XGBClassifier(n_estimators=40, objective=self.own(), **fixed).fit(self.X, self.y)
        scores = booster.predict(xgboost.DMatrix(self.later), output_margin=True)
        np.testing.assert_allclose(scores, model.predict(self.later, output_margin=True), rtol=1e-5)
        assert tpauc_score(self.known, scores, **self.region) > 0.5

    def test_early_stopping_of_xgboost_keeps_the_best_round(self):
        fixed = {"max_depth": 3, "n_jobs": 1, "verbosity": 0, "disable_default_eval_metric": True}
        other, found = xgboost.DMatrix(self.later, self.known), {}
        metric = tpauc_metric("xgboost", **self.region)
        watched = {"evals": [(other, "later")], "evals_result": found, "custom_metric": metric, "verbose_eval": False}
        booster = xgboost.train(
            fixed, xgboost.DMatrix(self.X, self.y), 200, obj=self.own(), early_stopping_rounds=15, **watched
        )
        curve = found["later"]["auc_two_way"]
        assert len(curve) < 200 and booster.best_iteration == np.argmax(curve)
        model = xgboost.XGBClassifier(
            n_estimators=200, objective=self.own(), eval_metric=metric, early_stopping_rounds=15, **fixed
        )
        model.fit(self.X, self.y, eval_set=[(self.later, self.known)], verbose=False)
        assert model.best_iteration == booster.best_iteration

    @pytest.mark.parametrize("weighted", [False, True])
    def test_weights_reach_the_objective(self, weighted):
        seen = []

        def spy(first, second, sample_weight=None):
            found = self.own()(first, second, sample_weight)
            seen.append(found[0][0])
            return found

        weight = np.where(self.y == 1, 5.0, 1.0) if weighted else None
        fixed = {"n_estimators": 1, "objective": spy, "n_jobs": 1}
        lightgbm.LGBMClassifier(**fixed, verbosity=-1).fit(self.X, self.y, sample_weight=weight)
        xgboost.XGBClassifier(**fixed, verbosity=0).fit(self.X, self.y, sample_weight=weight)
        share = np.average(self.y, weights=weight)
        expected = (share - self.y[0]) * (weight[0] if weighted else 1.0)
        np.testing.assert_allclose(seen, expected, rtol=1e-6)


@pytest.mark.parametrize("booster", LIBRARIES)
class TestEstimator:
    def test_the_booster_stays_reachable(self, booster):
        X, y = table()
        model = TPAUCBooster(booster=booster, **QUICK).fit(X, y)
        if booster == "lightgbm":
            raw, shap = model.booster_.predict(X, raw_score=True), model.booster_.predict(X, pred_contrib=True)
        else:
            data = xgboost.DMatrix(X)
            raw = model.booster_.predict(data, output_margin=True)
            shap = model.booster_.predict(data, pred_contribs=True)
        np.testing.assert_allclose(model.decision_function(X), raw - model.threshold_, atol=1e-5)
        np.testing.assert_allclose(shap.sum(1), raw, atol=1e-4)
        rounds = model.booster_.num_trees() if booster == "lightgbm" else model.booster_.num_boosted_rounds()
        assert model.n_iter_ == rounds and rounds in (5, 10, 20) and model.feature_importances_.shape == (5,)
        assert model.feature_importances_.sum() == pytest.approx(1.0) and model.feature_importances_[:2].sum() > 0.5

    def test_options_reach_the_library(self, booster):
        X, y = table()
        options = {**QUICK, "booster_options": {"max_depth": 1, "learning_rate": 0.05, **ONE_THREAD}}
        model = TPAUCBooster(booster=booster, **options).fit(X, y)
        text = model.booster_.trees_to_dataframe()
        if booster == "lightgbm":
            assert text.node_depth.max() == 2
        else:
            assert text.groupby("Tree").size().max() <= 3


class TestChoice:
    def test_the_library_s_own_is_kept_unless_another_choice_is_better_beyond_chance(self):
        X, y = table()
        model = TPAUCBooster(**QUICK).fit(X, y)
        points = model.fold_scores_
        gain = (points - points[:, :1]).T
        better = [own.mean() if own.mean() > own.std(ddof=1) / 3**0.5 else 0.0 for own in gain]
        assert points.shape == (3, 6) and (model.regional_, model.n_iter_) == (
            *[(kind, rounds) for kind in (False, True) for rounds in (10, 5, 20)][np.argmax(better)],
        )

    def test_without_the_loss_over_the_region_the_booster_is_the_library_s_own(self):
        X, y = table()
        model = TPAUCBooster(**{**QUICK, "log_loss_rounds": 20}).fit(X, y)  # no rounds are left: a tie
        plain = lightgbm.LGBMClassifier(n_estimators=model.n_iter_, verbosity=-1, n_jobs=1).fit(X, y)
        np.testing.assert_allclose(model.booster_.predict(X, raw_score=True), plain.predict(X, raw_score=True))
        assert not model.regional_

    def test_the_folds_choose_the_number_of_rounds(self):
        X, y = table(800)
        options = {**QUICK, "n_estimators": 4, "booster_options": {"num_leaves": 3, **ONE_THREAD}}
        assert TPAUCBooster(**options).fit(X, y).n_iter_ == 8  # so few are not enough

    def test_without_a_choice_the_region_is_trained_for(self):
        X, y = table()
        model = TPAUCBooster(choose=False, **QUICK).fit(X, y)
        assert model.regional_ and model.fold_scores_.shape == (3, 3)
        assert TPAUCBooster(**{**QUICK, "choose": False, "folds": 0}).fit(X, y).fold_scores_ is None

    def test_of_few_positives_the_log_loss_is_kept(self):
        X, y = table(60)
        y[np.flatnonzero(y)[3:]] = 0
        model = TPAUCBooster(**QUICK).fit(X, y)
        assert model.fold_scores_ is None and not model.regional_

    def test_of_many_rows_one_fold_is_held_out(self, monkeypatch):
        monkeypatch.setattr("moreauc.estimators.boosted_fit._MANY", 300)
        X, y = table()
        assert TPAUCBooster(**QUICK).fit(X, y).fold_scores_.shape == (1, 6)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(("booster", "catboost"), ("booster_options", [1]), ("booster_options", {"objective": "binary"})),
            *(("n_estimators", 0), ("folds", 1), ("folds", -1), ("log_loss_rounds", -1), ("surrogate", "hinge")),
        ],
    )
    def test_arguments_are_checked(self, name, value):
        with pytest.raises(ValueError, match=f"{name} must "):
            TPAUCBooster(**{name: value}).fit(*table(50))

    @pytest.mark.parametrize("booster", LIBRARIES)
    def test_a_missing_library_is_an_error_that_names_the_extra(self, booster, monkeypatch):
        monkeypatch.setitem(sys.modules, booster, None)
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'moreauc\[boosting\]'"):
            TPAUCBooster(booster=booster).fit(*table(50))
