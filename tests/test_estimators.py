"""The four estimators: what holds for all of them, by task, and what is said of rows only.

Tables are the matter of test_tabular.py, bags of test_bag_estimator.py, groups of test_group_estimator.py.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import get_scorer, roc_curve
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from torch import nn

from moreauc.data import planted_groups
from moreauc.estimators import (
    GroupDROClassifier,
    GroupDRORegressor,
    MultiInstanceClassifier,
    TPAUCClassifier,
    network_fit,
)
from moreauc.estimators.decisions import choose_threshold, fit_platt
from moreauc.methods import METHODS
from moreauc.metrics import TiedScoresWarning, tpauc_score, tpauc_scorer
from moreauc.train import loop as train


@dataclass(frozen=True)
class Case:
    """An estimator with arguments that make it quick, and data of its task.

    Attributes:
        kind: the estimator.
        options: its arguments.
        data: what `fit` takes: inputs, targets and perhaps groups.
        width: inputs of its network.
        floor: score that every loss reaches on the data.
    """

    kind: type[Any]
    options: dict[str, Any]
    data: tuple[Any, ...]
    width: int
    floor: float

    def make(self, **options):
        return self.kind(**{"random_state": 0, **self.options, **options})

    def fit(self, **options):
        return self.make(**options).fit(*self.data)

    @property
    def outputs(self) -> int:
        return 2 if self.kind is MultiInstanceClassifier else 1


def make_bags(number: int = 40, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """Positive bags have one instance far out in the first feature."""
    random = np.random.default_rng(seed)
    y = (np.arange(number) % 4 == 0).astype(int)
    bags = [random.normal(size=(random.integers(2, 7), 3)) for _ in range(number)]
    for bag, label in zip(bags, y, strict=True):
        bag[-1, 0] += 6.0 * label
    return bags, y


def grouped(task: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    data = planted_groups(num_groups=3, samples=300, minority_share=0.2, test_samples=300, task=task)[0]
    return data.X, data.y, data.groups


ROWS = make_classification(240, 6, n_clusters_per_class=1, weights=[0.8], flip_y=0.0, random_state=0)
ONE = {"start": None, "ensemble": 1, "patience": None, "weight_decay": 2e-4}  # one network, from its initial weights
QUICK = {"module": "linear", "epochs": 3, "batch_size": 32, "lr": 0.03, **ONE}
QUICK_BAGS = {"epochs": 3, "num_positives": 4, "num_negatives": 4, "lr": 0.02}
QUICK_GROUPS = {"hidden": (), "epochs": 3, "lr": 0.03}
CASES = {
    "rows": Case(TPAUCClassifier, QUICK, ROWS, 6, 0.7),
    "bags": Case(MultiInstanceClassifier, QUICK_BAGS, make_bags(), 3, 0.5),
    "groups": Case(GroupDROClassifier, QUICK_GROUPS, grouped("binary"), 10, 0.6),
    "numbers": Case(GroupDRORegressor, QUICK_GROUPS, grouped("regression"), 10, 0.3),
}
RANKING = ["rows", "bags"]
every_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
ranking_case = pytest.mark.parametrize("case", [CASES[name] for name in RANKING], ids=RANKING)


def task_of(case: Case) -> str:
    return {TPAUCClassifier: "rows", MultiInstanceClassifier: "bags"}.get(case.kind, "groups")


def quick(**options):
    return CASES["rows"].make(**options)


def part(inputs, numbers):
    return [inputs[number] for number in numbers] if isinstance(inputs, list) else inputs[numbers]


def outputs_of(model, X):
    """All that a fitted estimator says of inputs."""
    names = [name for name in ("predict", "decision_function", "predict_proba") if hasattr(model, name)]
    return np.concatenate([np.asarray(getattr(model, name)(X), dtype=float).reshape(len(X), -1) for name in names], 1)


class TestTraining:
    @pytest.mark.parametrize(
        ("name", "loss"), [(name, loss) for name, case in CASES.items() for loss in METHODS[task_of(case)]]
    )
    def test_every_loss_learns(self, name, loss):
        case = CASES[name]
        model = case.fit(loss=loss, epochs=15, lr=0.05)
        inner = getattr(model.loss_, "criterion", model.loss_)
        assert METHODS[task_of(case)][loss].maker in (type(inner), type(model.loss_))
        assert model.score(*case.data[:2]) > case.floor and not model.model_.training
        assert model.n_features_in_ == case.width

    @ranking_case
    def test_score_is_the_metric_of_the_region(self, case):
        X, y = case.data
        model = case.fit(min_tpr=0.3, max_fpr=0.2)
        scores = model.decision_function(X)
        assert model.score(X, y) == pytest.approx(tpauc_score(y, scores, min_tpr=0.3, max_fpr=0.2))
        weight = np.random.RandomState(0).rand(len(y))
        weighted = tpauc_score(y, scores, min_tpr=0.3, max_fpr=0.2, sample_weight=weight)
        assert model.score(X, y, sample_weight=weight) == pytest.approx(weighted)

    @ranking_case
    def test_the_best_epoch_on_a_stratified_part_is_kept(self, case):
        X, y = case.data
        model = case.fit(epochs=8, validation_fraction=0.25)
        held = model.held_out_
        assert y[held].sum() == round(0.25 * y.sum()) and (1 - y[held]).sum() == round(0.25 * (1 - y).sum())
        assert model.loss_.num_positives == y.sum() - y[held].sum()
        assert model.history_.restored and model.best_epoch_ == model.history_.best_epoch
        assert model.score(part(X, held), y[held]) == pytest.approx(model.history_.best_score)

    @every_case
    def test_patience_ends_a_run_with_a_hold_out(self, case):
        model = case.fit(epochs=30, patience=1, lr=1e-12)
        assert len(model.held_out_) and model.n_iter_ == len(model.history_["loss"]) < 30

    @every_case
    def test_without_a_hold_out_all_epochs_run_and_the_last_is_kept(self, case):
        model = case.fit(patience=1, lr=1e-12, validation_fraction=0.0)
        assert len(model.held_out_) == 0 and len(model.history_["loss"]) == 3
        assert model.best_epoch_ is None and model.history_.best_score is None

    def test_warm_start_comes_first(self):
        model = CASES["bags"].fit(warm_start_epochs=2)
        assert [row["phase"] for row in model.history_.rows] == ["warm start"] * 2 + ["train"] * 3
        assert model.n_iter_ == 5

    @every_case
    def test_options_reach_the_loss_and_the_loop(self, case, monkeypatch):
        given = {"optimizer": "sgd", "lr": 0.02, "weight_decay": 0.01, "epochs": 2}
        seen = {}

        def spy(*parts, **options):
            seen.update(options)
            return original(*parts, **options)

        original = network_fit.fit
        monkeypatch.setattr("moreauc.estimators.network_fit.fit", spy)
        model = case.fit(**given, standardize=False, loss_options={"gamma": 0.1})
        assert {name: seen[name] for name in given} == given
        inner = getattr(model.loss_, "criterion", model.loss_)
        assert inner.gamma in (0.1, (0.1, 0.1, 0.1))
        if case.kind is MultiInstanceClassifier:
            assert model.scale_ is None
        else:
            assert not model.preprocessor_.standardize
        if task_of(case) in RANKING:
            proximal = "auc_m" if task_of(case) == "rows" else "auc_m_att"
            case.fit(**given, loss=proximal, momentum=0.5, min_tpr=0.1, max_fpr=0.3)
            assert (seen["momentum"], seen["min_tpr"], seen["max_fpr"], seen["proximal"]) == (0.5, 0.1, 0.3, 2e-3)

    @every_case
    def test_verbose_shows_progress(self, case, capsys, monkeypatch):
        monkeypatch.setattr("moreauc.train.state._PAUSE", 0.0)
        case.fit(verbose=1)
        assert " s left" in capsys.readouterr().err
        case.fit()
        assert capsys.readouterr().err == ""


@every_case
def test_an_estimator_describes_itself(case):
    model = case.fit()
    found = model.describe()
    assert found.title == METHODS[task_of(case)][model.loss].title == model.title
    assert found.kind == ("linear" if task_of(case) == "rows" else "network")
    assert found.histories == (model.history_,) and found.held_out is model.held_out_
    if task_of(case) in RANKING:
        assert found.threshold == model.threshold_
    else:
        assert (found.chosen_by, found.loss_threshold) == (model.chosen_by_, model.loss_threshold_)
        assert (found.top_k, found.row_loss) == (1, "log loss" if hasattr(model, "classes_") else "squared error")
    assert model.settings().keys() < model.get_params().keys() and "device" not in model.settings()
    with pytest.raises(NotFittedError):
        case.make().describe()


@every_case
class TestReproducible:
    def test_same_seed_same_model_and_no_global_state(self, case):
        torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
        first, second, other = (outputs_of(case.fit(random_state=seed), case.data[0]) for seed in (0, 0, 1))
        np.testing.assert_array_equal(first, second)
        assert (first != other).any()
        assert torch.equal(torch.get_rng_state(), torch_before)
        np.testing.assert_array_equal(np.random.get_state()[1], numpy_before)
        case.fit(random_state=None)

    def test_copies_and_clones_predict_the_same(self, case):
        model = case.fit()
        expected = outputs_of(model, case.data[0])
        for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), clone(model).fit(*case.data)):
            np.testing.assert_array_equal(outputs_of(again, case.data[0]), expected)
        assert clone(model).get_params() == model.get_params() and not hasattr(clone(model), "model_")
        assert clone(model).set_params(epochs=7).get_params()["epochs"] == 7


@every_case
class TestModules:
    def test_a_module_is_copied_and_trained_from_its_weights(self, case):
        module = nn.Linear(case.width, case.outputs)
        before = copy.deepcopy(module.state_dict())
        model = case.fit(module=module)
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
        assert module.training and not model.model_.training and not torch.equal(model.model_.weight, module.weight)
        still = case.fit(module=module, lr=1e-12, weight_decay=0.0)
        np.testing.assert_allclose(still.model_.weight.detach(), module.weight.detach(), rtol=1e-5)

    def test_a_function_is_told_the_sizes_and_draws_by_the_seed(self, case):
        asked = []

        def make(*sizes):
            asked.append(sizes)
            return nn.Linear(sizes[0], case.outputs)

        first, second = (outputs_of(case.fit(module=make), case.data[0]) for _ in range(2))
        np.testing.assert_array_equal(first, second)
        assert asked == [(case.width, 1) if task_of(case) == "groups" else (case.width,)] * 2

    def test_scores_that_are_not_finite_are_refused(self, case):
        model = case.fit()
        with torch.no_grad():
            for parameter in model.model_.parameters():
                parameter.fill_(np.nan)
        with pytest.raises(ValueError, match=f"{case.kind.__name__}: the model gave scores that are not finite"):
            model.predict(case.data[0])

    def test_a_fit_whose_last_scores_are_not_finite_leaves_nothing_fitted(self, case):
        class Moody(nn.Linear):
            def forward(self, inputs):
                return super().forward(inputs) / (1.0 if self.training else 0.0)

        model = case.make(module=lambda *sizes: Moody(sizes[0], case.outputs), validation_fraction=0.0)
        with pytest.raises(ValueError, match="scores that are not finite"):
            model.fit(*case.data)
        with pytest.raises(NotFittedError):
            model.predict(case.data[0])


@ranking_case
class TestDecisions:
    @pytest.mark.parametrize("budget", [0.0, 0.2, None])
    @pytest.mark.parametrize("fraction", [0.0, 0.3])
    def test_false_alarms_on_the_held_out_data_keep_the_budget(self, case, budget, fraction):
        X, y = case.data
        model = case.fit(fpr_budget=budget, max_fpr=0.4, validation_fraction=fraction, min_tpr=0.2)
        rows = model.held_out_ if fraction else np.arange(len(y))
        alarms = model.predict(part(X, rows))[y[rows] == 0].mean()
        assert alarms <= (0.4 if budget is None else budget)

    def test_the_operating_point_is_that_of_the_held_out_data(self, case):
        X, y = case.data
        y = np.where(np.random.RandomState(0).rand(len(y)) < 0.2, 1 - y, y)
        model = case.make(fpr_budget=0.1, validation_fraction=0.3).fit(X, y)
        rows, scores = model.held_out_, model.decision_function(X) + model.threshold_
        assert model.threshold_ == pytest.approx(choose_threshold(y[rows], scores[rows], 0.1), abs=1e-5)
        assert model.threshold_ != pytest.approx(choose_threshold(y, scores, 0.1), abs=1e-5)
        assert model.platt_ == pytest.approx(fit_platt(y[rows], scores[rows]), rel=1e-3)

    @pytest.mark.parametrize("kind", ["threshold", "calibrated"])
    @pytest.mark.parametrize("label", [0, 1])
    def test_decisions_are_cut_at_zero(self, case, label, kind):
        X = case.data[0]
        model = case.fit(fpr_budget=0.05, positive_label=label, probabilities=kind)
        decision, probability = model.decision_function(X), model.predict_proba(X)
        np.testing.assert_array_equal(model.predict(X), (decision > 0).astype(int))
        np.testing.assert_allclose(probability.sum(axis=1), 1.0, rtol=1e-6)
        slope, intercept = model.platt_
        odds = slope * decision * (1 if label else -1)
        if kind == "calibrated":
            odds += slope * model.threshold_ + intercept
        else:
            np.testing.assert_array_equal(model.predict(X), probability.argmax(axis=1))
        np.testing.assert_allclose(probability[:, label], 1 / (1 + np.exp(-odds)), rtol=1e-3)

    def test_calibrated_probabilities_do_not_follow_the_threshold(self, case):
        X, y = case.data
        options = {"validation_fraction": 0.0, "probabilities": "calibrated"}
        low, high = (case.fit(fpr_budget=budget, **options) for budget in (0.0, 0.5))
        np.testing.assert_array_equal(low.predict_proba(X), high.predict_proba(X))
        assert low.predict_proba(X)[:, 1].mean() == pytest.approx(y.mean(), abs=0.03)
        assert low.threshold_ >= high.threshold_

    def test_the_other_class_may_be_the_one_to_find(self, case):
        X, y = case.data
        names = np.where(y == 1, "bad", "good")  # "bad" is the first in order
        plain, named = case.fit(), case.make(positive_label="bad").fit(X, names)
        assert named.classes_.tolist() == ["bad", "good"] and named.positive_label_ == "bad"
        np.testing.assert_array_equal(named.decision_function(X), -plain.decision_function(X))
        np.testing.assert_array_equal(named.predict(X) == "bad", plain.predict(X) == 1)
        np.testing.assert_array_equal(named.predict_proba(X)[:, 0], plain.predict_proba(X)[:, 1])
        assert named.score(X, names) == plain.score(X, y)
        assert get_scorer("roc_auc")(named, X, names) == pytest.approx(get_scorer("roc_auc")(plain, X, y))

    def test_a_class_that_is_the_first_or_the_majority_is_named(self, case):
        X, y = case.data
        for classes, found, share in (
            (("good", "bad"), "bad", "2"),
            ((1, 0), 1, "[78]"),
            ((True, False), True, "[78]"),
        ):
            names = np.array(classes)[y]
            with pytest.warns(
                UserWarning, match=f"class to find is {found!r}, {share}.% of y; .*={classes[0]!r}"
            ) as it:
                model = case.make().fit(X, names)
            assert model.positive_label_ == found and it[0].filename == __file__
            case.make(positive_label=found).fit(X, names)  # without a warning
        even = np.arange(len(y)) % 2
        assert case.make(lr=1e-3).fit(X, np.array(["a", "b"])[even]).positive_label_ == "b"

    @pytest.mark.parametrize("classes", [(False, True), (-1, 1), (0.0, 1.0), ("a", "b")])
    def test_classes_of_any_kind(self, case, classes):
        X, y = case.data
        named = np.array(classes)[y]
        model = case.make().fit(X, named)
        assert model.classes_.tolist() == list(classes) and model.classes_.dtype == named.dtype
        np.testing.assert_array_equal(model.predict(X), np.array(classes)[case.fit().predict(X)])
        np.testing.assert_array_equal(case.make().fit(X, pd.Series(named)).predict(X), model.predict(X))


LABELS, SCORES = [0, 0, 0, 0, 1, 1, 1], [0.0, 1.0, 2.0, 4.0, 1.5, 3.0, 5.0]


class TestOperatingPoint:
    @pytest.mark.parametrize(
        ("labels", "scores", "budget", "threshold"),
        [
            *(
                (LABELS, SCORES, budget, threshold)
                for budget, threshold in [(0.0, 4.5), (0.24, 4.5), (0.25, 2.5), (0.49, 2.5), (0.5, 1.25), (1.0, 1.25)]
            ),
            ([1, 0], [0.0, 1.0], 0.0, 1.5),  # the highest is a negative: nothing is called positive
            ([1, 0], [0.0, 1.0], 1.0, -0.5),  # everything is
            ([1, 0], [2.0, 2.0], 0.0, 2.5),
            ([1, 0], [2.0, 2.0], 1.0, 1.5),
            ([1, 1, 0, 0], [2.0, 3.0, 2.0, 1.0], 0.0, 2.5),  # equal scores go together
            ([1, 1, 0, 0], [2.0, 3.0, 2.0, 1.0], 0.5, 1.5),
            ([0] * 10 + [1], [*range(10), 8.5], 1 - 0.9, 8.25),  # a rounding error does not cost a false alarm
        ],
    )
    def test_threshold_by_hand(self, labels, scores, budget, threshold):
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
        assert 0.9 < fit_platt(labels, scores).probability(scores)[-1] < 0.99


class Column(nn.Module):
    """Returns scores of shape (B, 1), and holds a batch norm."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, 1))

    def forward(self, inputs):
        return self.layers(inputs)


class TestRows:
    @pytest.mark.parametrize("module", ["mlp", "linear"])
    def test_beats_chance_on_an_imbalanced_problem(self, module):
        X, y = make_classification(2000, 10, n_informative=5, weights=[0.95], flip_y=0.0, random_state=0)
        X, X_test, y, y_test = train_test_split(X, y, stratify=y, random_state=0)
        classifier = TPAUCClassifier(module=module, epochs=30, random_state=0).fit(X, y)
        chance = tpauc_score(y_test, np.random.RandomState(0).rand(len(y_test)), min_tpr=0.5, max_fpr=0.5)
        assert classifier.score(X_test, y_test) > 0.6 > 0.3 > chance

    def test_statistics_are_those_of_the_training_rows(self):
        X, y = ROWS
        classifier = quick().fit(X, y)
        other = X.copy()
        other[classifier.held_out_] += 1e3
        again = quick().fit(other, y)
        np.testing.assert_array_equal(classifier.preprocessor_.transform(X[:5]), again.preprocessor_.transform(X[:5]))

    @pytest.mark.parametrize(
        ("positives", "options"),
        [
            *((3, {}), (3, {"min_tpr": 0.0}), (5, {"min_tpr": 0.0, "validation_fraction": 0.8})),
            *((40, {"min_tpr": 0.9}), (1, {})),
        ],
        ids=["few", "one held out", "one trained on", "empty region", "one"],
    )
    def test_nothing_is_held_out_where_it_cannot_be(self, positives, options):
        X, y = np.random.RandomState(0).normal(size=(80, 2)), np.arange(80) < positives
        classifier = quick(patience=1, **options).fit(X, y)
        assert len(classifier.held_out_) == 0 and classifier.best_epoch_ is None
        assert (classifier.decision_function(X)[~y] > 0).mean() <= 0.5

    def test_batches(self, monkeypatch):
        seen = []

        def spy(model, criterion, train, **options):
            seen.append([(int(labels.sum()), len(labels)) for _, labels, _ in train])
            return original(model, criterion, train, **options)

        original = network_fit.fit
        monkeypatch.setattr("moreauc.estimators.network_fit.fit", spy)
        shuffled = {"loss": "ce", "module": "mlp"}  # a linear model is fitted to all rows at once
        for options in ({}, {"sampler": "balanced", "loss": "ce"}, shuffled, {"positive_fraction": 0.01}):
            quick(batch_size=20, validation_fraction=0.0, **options).fit(*ROWS)
        assert set(seen[0]) == set(seen[1]) == {(10, 20)}
        assert {size for _, size in seen[2]} == {20} and len({positives for positives, _ in seen[2]}) > 1
        assert set(seen[3]) == {(1, 20)}

    def test_no_batch_of_one_row(self):
        X, y = ROWS
        rows = np.r_[np.flatnonzero(y == 1)[:5], np.flatnonzero(y == 0)[:28]]
        classifier = quick(module=Column, loss="ce", validation_fraction=0.0, batch_size=32).fit(X[rows], y[rows])
        assert np.isfinite(classifier.history_["loss"]).all()

    @pytest.mark.filterwarnings("ignore::moreauc.metrics.TiedScoresWarning")  # four units with dropout may all be off
    def test_hidden_layers_and_dropout(self):
        layers = quick(module="mlp", bins=0, hidden=(5, 4), dropout=0.5).fit(*ROWS).model_.layers
        linear = [(layer.in_features, layer.out_features) for layer in layers if isinstance(layer, nn.Linear)]
        assert linear == [(6, 5), (5, 4), (4, 1)]
        assert [layer.p for layer in layers if isinstance(layer, nn.Dropout)] == [0.5, 0.5]
        assert len(quick(module="linear", hidden=(5, 4)).fit(*ROWS).model_.layers) == 1

    def test_the_network_is_more_than_linear(self):
        X = np.random.RandomState(0).uniform(-1, 1, size=(300, 2))
        y = X[:, 0] * X[:, 1] > 0
        assert quick(module="mlp", epochs=20).fit(X, y).score(X, y) > 0.7 > 0.4 > quick(epochs=20).fit(X, y).score(X, y)

    def test_a_score_of_tied_rows_warns_with_their_share(self):
        X, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
        classifier = quick(epochs=1).fit(X, y)
        for parameter in classifier.model_.parameters():
            parameter.requires_grad_(False).zero_()
        with pytest.warns(TiedScoresWarning, match=r"TPAUCClassifier: 100.0% of the rows of the region"):
            assert classifier.score(X, y) == 0.0

    def test_search_cross_validation_and_pipelines_of_scikit_learn(self):
        grid = [
            {"loss": ["sonx"], "loss_options": [None, {"gamma": 0.1}]},
            {"loss": ["ce"], "module": ["mlp", "linear"], "hidden": [(4,)]},
        ]
        search = GridSearchCV(quick(), grid, cv=2).fit(*ROWS)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all() and search.best_score_ > 0.5
        scorer = tpauc_scorer(min_tpr=0.5, max_fpr=0.5)
        own = cross_val_score(quick(), *ROWS, cv=3)
        np.testing.assert_allclose(own, cross_val_score(quick(), *ROWS, cv=3, scoring=scorer))
        pipeline = make_pipeline(PolynomialFeatures(2), quick(epochs=10))
        assert pipeline.fit(*ROWS).score(*ROWS) > 0.7 and pipeline[-1].n_features_in_ == 28


SHARED_ERRORS = {
    "loss": ("hinge", ["sonx"]),
    "loss_options": (3, {"name": 2}),
    "module": (3, lambda *sizes: 3),
    "optimizer": ("lion",),
    "validation_fraction": (1.0,),
    "patience": (0,),
    "device": ("abacus",),
}
RANKING_ERRORS = {
    "min_tpr": (1.0,),
    "max_fpr": (0.0,),
    "fpr_budget": (1.5,),
    "probabilities": ("raw",),
    "positive_label": (2,),
}
OWN_ERRORS = {
    "rows": {
        "module": ("tree",),
        "batch_size": (1,),
        "positive_fraction": (1.0,),
        "sampler": ("all",),
        "start": ("lr",),
    },
    "bags": {
        "loss_options": ({"pooling": "mean"},),
        **dict.fromkeys(("num_positives", "num_negatives", "instances_per_bag", "chunk"), (0,)),
    },
    "groups": {
        "sampler": ("balanced",),
        "top_k": (4, 0, -2, 0.0, 1.0, 2.0, np.nan, "all", True, None, np.float64(2.0)),
        "module": (nn.Linear(10, 2),),
        "groups_per_batch": (0,),
        "samples_per_group": (1.5,),
        "loss_options": ({"top_k": 2},),
    },
    "numbers": {"sample_loss": ("cubic",)},
}
ERRORS = [
    (name, argument, value)
    for name in CASES
    for errors in (SHARED_ERRORS, RANKING_ERRORS if name in RANKING else {}, OWN_ERRORS[name])
    for argument, values in errors.items()
    for value in values
]


class TestErrors:
    @pytest.mark.parametrize(("name", "argument", "value"), ERRORS)
    def test_arguments(self, name, argument, value):
        model = CASES[name].make(**{argument: value})
        with pytest.raises(ValueError, match=f"{CASES[name].kind.__name__}: {argument} must "):
            model.fit(*CASES[name].data)
        assert not [attribute for attribute in vars(model) if attribute.endswith("_")]

    def test_rare_groups_do_not_count_twice(self):
        with pytest.raises(ValueError, match="sampler must not be 'groups'"):
            CASES["groups"].fit(sampler="groups", loss="erm_reweighted")

    @every_case  # arguments of the loop and the loss, which name themselves
    @pytest.mark.parametrize(("argument", "value"), [("epochs", 0), ("lr", 0.0), ("loss_options", {"speed": 2})])
    def test_arguments_of_others(self, case, argument, value):
        with pytest.raises(ValueError, match=argument.removeprefix("loss_")):
            case.fit(**{argument: value})

    @pytest.mark.parametrize("name", ["rows", "groups"])
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda y: y * 0, r"y must hold (at least )?two classes, got one class, \[0\]"),
            (lambda y: y + np.linspace(0, 1, len(y)), "Unknown label type: continuous"),
            (lambda y: y[:-1], "inconsistent numbers of samples"),
            (lambda y: np.where(y == 1, 1.0, np.nan), "Input y contains NaN"),
            (lambda y: np.where(y == 1, "a", None), r"Classifier: y must have no missing values, got 1"),
            (lambda y: np.where(y == 1, "a", "a "), "Classifier: y must not hold two texts that read the same, got"),
        ],
    )
    def test_targets(self, name, change, message):
        X, y, *groups = CASES[name].data
        for table in (X, pd.DataFrame(X).add_prefix("x")):
            with pytest.raises(ValueError, match=message):
                CASES[name].make().fit(table, change(y), *groups)

    @pytest.mark.parametrize("name", ["rows", "bags", "groups"])
    def test_classes_that_were_not_there_in_fit(self, name):
        X, y, *groups = CASES[name].data
        model = CASES[name].fit()
        with pytest.raises(ValueError, match=r"y must hold the classes \[0, 1\], got \[[67]\]"):
            model.group_score(X, y + 6, *groups) if groups else model.score(X, y + 6)

    @every_case
    def test_not_fitted(self, case):
        model = case.make()
        for call in ("predict", "decision_function", "predict_proba", "group_score", "worst_group_score", "score"):
            if hasattr(model, call) and (call != "score" or task_of(case) in RANKING):
                given = case.data if "score" in call else case.data[:1]
                with pytest.raises(NotFittedError):
                    getattr(model, call)(*given)


@every_case
def test_help_tells_of_every_argument_and_attribute(case):
    text = inspect.getdoc(case.kind)
    X, *rest = case.data
    frames = (
        [pd.DataFrame(bag).add_prefix("x") for bag in X] if isinstance(X, list) else pd.DataFrame(X).add_prefix("x")
    )
    model = case.make(epochs=1).fit(frames, *rest)
    found = [*model.get_params(), *(name for name in vars(model) if name.endswith("_"))]
    assert len(found) > 28
    for name in found:
        assert len(re.findall(rf"^    {name}: ", text, flags=re.MULTILINE)) == 1, name
    assert text.index("Example:") < text.index("    epochs: ")
    assert all(line in pydoc.render_doc(case.kind, renderer=pydoc.plaintext) for line in text.splitlines())


def bags_of(X):
    return [X[start : start + 2] for start in range(0, len(X), 2)]


ARRANGED = {  # data of each estimator made of a table and two classes
    "rows": lambda X, y: (X, y),
    "bags": lambda X, y: (bags_of(X), y[::2]),
    "groups": lambda X, y: (X, y, np.arange(len(y)) % 3),
    "numbers": lambda X, y: (X, y.astype(float), np.arange(len(y)) % 3),
}
FAILURES = [ValueError("in a step"), MemoryError("in a step"), KeyboardInterrupt()]


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


@pytest.mark.parametrize("name", CASES)
class TestAllOrNothing:
    @pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
    def test_a_training_that_fails(self, name, failure, two_tables, monkeypatch):
        case, arrange = CASES[name], ARRANGED[name]
        first, second, y = two_tables
        estimator = case.make().fit(*arrange(first, y))
        before = contents(estimator)
        failing_step(monkeypatch, failure)
        with pytest.raises(type(failure)):
            estimator.fit(*arrange(second, y))
        assert unchanged(estimator, before)

    def test_targets_that_are_refused(self, name, two_tables):
        case, arrange = CASES[name], ARRANGED[name]
        first, second, y = two_tables
        estimator = case.make().fit(*arrange(first, y))
        before = contents(estimator)
        X, _, *groups = arrange(second, y)
        for targets in (np.full(len(X), np.nan), np.arange(7)):
            with pytest.raises(ValueError, match=r"NaN|inconsistent|y must|missing"):
                estimator.fit(X, targets, *groups)
            assert unchanged(estimator, before)

    def test_a_generator_draws_the_same_again(self, name, two_tables, monkeypatch):
        case, given = CASES[name], ARRANGED[name](two_tables[0], two_tables[2])
        estimator = case.make(random_state=np.random.RandomState(5))
        with monkeypatch.context() as patch:
            failing_step(patch, KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                estimator.fit(*given)
        new = case.make(random_state=np.random.RandomState(5)).fit(*given)
        assert estimator.fit(*given).history_["loss"] == new.history_["loss"]

    def test_a_function_that_gives_one_module_again_and_again(self, name, two_tables, monkeypatch):
        case, given = CASES[name], ARRANGED[name](two_tables[0], two_tables[2])
        shared = nn.Sequential(nn.Linear(3, case.outputs))
        estimator = case.make(module=lambda *sizes: nn.Sequential(shared)).fit(*given)
        before = contents(estimator)
        failing_step(monkeypatch, KeyboardInterrupt(), number=3)
        with pytest.raises(KeyboardInterrupt):
            estimator.fit(*given)
        assert unchanged(estimator, before)
