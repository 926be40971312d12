"""GroupDROClassifier and GroupDRORegressor: what differs from the other estimators, and what epochs are chosen by."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import config_context
from sklearn.metrics import log_loss, make_scorer
from sklearn.model_selection import GridSearchCV, cross_val_score
from torch import nn

from moreauc.criteria.sample_cvar import SampleCVaRLoss
from moreauc.data import planted_groups
from moreauc.data.groups import hold_out, name_groups
from moreauc.estimators import GroupDROClassifier, GroupDRORegressor
from moreauc.estimators.group_dro import GroupsWarning
from moreauc.methods import METHODS
from moreauc.metrics import group_accuracy
from moreauc.samplers.groups import GroupSampler, ShuffledSampler
from moreauc.tasks.goals import Classes, EpochChoice, shrunk_group_losses
from moreauc.tasks.groups import GroupTask

KINDS = {"binary": GroupDROClassifier, "multiclass": GroupDROClassifier, "regression": GroupDRORegressor}


def sampler_of(codes, model=None, **options):
    """Return the batches of rows of these groups."""
    options = {"loss": "sonx", "num_groups": int(codes.max()) + 1, "top_k": 1, "goal": Classes(np.arange(2)), **options}
    return GroupTask(**options).make_sampler(codes, nn.Linear(2, 1) if model is None else model, 0)


def quick(kind=GroupDROClassifier, **options):
    return kind(**{"hidden": (), "epochs": 3, "lr": 0.03, "random_state": 0, **options})


def planted(task="binary", **options):
    settings = {"num_groups": 3, "samples": 300, "minority_share": 0.2, "test_samples": 300}
    return planted_groups(**{**settings, **options}, task=task)[0]


class TestLearning:
    @pytest.mark.parametrize("task", KINDS)
    def test_the_worst_group_does_better_than_by_the_mean_of_rows(self, task):
        train, _, test = planted_groups(
            num_groups=4, samples=1000, minority_share=0.1, separation=3.0, task=task, test_samples=2000, seed=1
        )
        worst = {}
        for method in ("sonx", "erm"):
            estimator = KINDS[task](loss=method, epochs=12, lr=0.01, random_state=0)
            estimator.fit(train.X, train.y, groups=train.groups)
            worst[method] = estimator.worst_group_score(test.X, test.y, test.groups)
        assert worst["sonx"] > worst["erm"] + 0.03

    def test_without_groups_all_rows_are_one_group(self):
        data = planted()
        with pytest.warns(GroupsWarning):
            alone = quick().fit(data.X, data.y)
        assert alone.groups_.tolist() == [0] and len(alone.group_table_) == 1 and alone.top_k_ == 1
        assert np.array_equal(
            alone.predict_proba(data.X), quick().fit(data.X, data.y, ["a"] * 300).predict_proba(data.X)
        )

    @pytest.mark.parametrize("kind", [GroupDROClassifier, GroupDRORegressor])
    def test_a_warning_says_that_no_groups_came(self, kind):
        data = planted()
        text = rf"^{kind.__name__}: no groups were given to fit.*pass groups=.*metadata routing \(set_fit_request\("
        with pytest.warns(UserWarning, match=text) as caught:
            quick(kind, epochs=1).fit(data.X, data.y)
        assert [(entry.category, entry.filename) for entry in caught] == [(GroupsWarning, __file__)]
        model = quick(kind)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            quick(kind, epochs=1).fit(data.X, data.y, groups=["all"] * len(data.y))  # meant: no warning
            with pytest.raises(GroupsWarning):
                model.fit(data.X, data.y)
        assert not hasattr(model, "model_")

    def test_the_epoch_kept_is_the_best_for_the_worst_groups_held_out(self):
        data = planted()
        model = quick(epochs=6, top_k=2).fit(data.X, data.y, data.groups)
        rows = model.held_out_
        chance = model.predict_proba(data.X[rows])[np.arange(len(rows)), data.y[rows]].astype(float)
        means = [-np.log(chance)[data.groups[rows] == group].mean() for group in range(3)]
        shrunk = shrunk_group_losses(-np.log(chance), data.groups[rows])
        assert -np.mean(sorted(shrunk)[1:]) == pytest.approx(model.history_.best_score, rel=1e-4)
        assert model.history_.best_score == pytest.approx(max(model.history_["score"]))
        assert model.history_.restored and model.group_table_.worst["loss"] == pytest.approx(max(means), rel=1e-4)

    def test_the_regressor_reports_in_units_of_the_target(self):
        data = planted("regression")
        small = quick(GroupDRORegressor, epochs=5).fit(data.X, data.y, data.groups)
        large = quick(GroupDRORegressor, epochs=5).fit(data.X, 1000.0 + 50.0 * data.y, data.groups)
        assert large.predict(data.X) == pytest.approx(1000.0 + 50.0 * small.predict(data.X), rel=1e-3)
        assert large.loss_threshold_ == pytest.approx(2500.0 * small.loss_threshold_, rel=1e-2)
        table = large.group_score(data.X, 1000.0 + 50.0 * data.y, data.groups)
        assert table.loss == pytest.approx(2500.0 * small.group_score(data.X, data.y, data.groups).loss, rel=1e-2)

    def test_absolute_errors(self):
        data = planted("regression")
        model = quick(GroupDRORegressor, sample_loss="absolute").fit(data.X, 7.0 * data.y, data.groups)
        errors = np.abs(model.predict(data.X) - 7.0 * data.y)
        means = sorted((errors[data.groups == group].mean() for group in range(3)), reverse=True)
        assert model.group_score(data.X, 7.0 * data.y, data.groups).loss == pytest.approx(means)
        assert model.worst_group_score(data.X, 7.0 * data.y, data.groups) == pytest.approx(-means[0])


class TestPredictions:
    @pytest.mark.parametrize(("task", "shape"), [("binary", (300,)), ("multiclass", (300, 3))])
    def test_classes_probabilities_and_scores_agree(self, task, shape):
        data = planted(task)
        names = np.array(["no", "yes", "zest"])[data.y]
        model = quick().fit(data.X, names, data.groups)
        chance, scores, predicted = (getattr(model, name)(data.X) for name in METHODS_OF_CLASSES)
        assert model.classes_.tolist() == sorted(set(names)) and scores.shape == shape
        assert chance.sum(axis=1) == pytest.approx(np.ones(300), abs=1e-6)
        assert (model.classes_[chance.argmax(axis=1)] == predicted).all()
        table = model.group_score(data.X, names, data.groups)
        whole = (table.loss * table.share).sum()
        assert whole == pytest.approx(log_loss(names, chance, labels=model.classes_), rel=1e-5)
        assert (table.auc is not None) == (task == "binary")

    def test_worst_group_score_is_the_lowest_accuracy(self):
        data = planted()
        model = quick().fit(data.X, data.y, data.groups)
        hits = model.predict(data.X) == data.y
        lowest = min(hits[data.groups == group].mean() for group in range(3))
        assert model.worst_group_score(data.X, data.y, data.groups) == pytest.approx(lowest)
        assert model.group_score(data.X, data.y, data.groups).accuracy.min() == pytest.approx(lowest)

    def test_groups_that_are_new_can_be_judged(self):
        data = planted()
        model = quick().fit(data.X, data.y, data.groups)
        table = model.group_score(data.X[:6], data.y[:6], ["new", "new", "other", "new", "other", "other"])
        assert sorted(table.name) == ["new", "other"] and table.size.tolist() == [3, 3]


METHODS_OF_CLASSES = ("predict_proba", "decision_function", "predict")


TOP_KS = [(1, 1), (3, 3), (0.5, 5), (0.35, 3), (0.01, 1), (np.int64(2), 2), (np.uint8(2), 2), (np.float32(0.5), 5)]


class TestGroups:
    @pytest.mark.parametrize(
        ("groups", "names", "codes"),
        [
            ([3, 1, 3], [1, 3], [1, 0, 1]),
            (["b", "a", "b"], ["a", "b"], [1, 0, 1]),
            (pd.Series(["b", "a", "b"], index=[7, 7, 9]), ["a", "b"], [1, 0, 1]),
            (pd.Categorical(["b", "a", "b"]), ["a", "b"], [1, 0, 1]),
            (torch.tensor([5, 2, 2]), [2, 5], [1, 0, 0]),
            ([1, "a", 1], [1, "a"], [0, 1, 0]),
            ([("b", 1), ("a", 2), ("b", 1)], ["a, 2", "b, 1"], [1, 0, 1]),
            (pd.DataFrame({"race": ["x", "x", "y"], "sex": [1.0, 2.0, 1.0]}), ["x, 1", "x, 2", "y, 1"], [0, 1, 2]),
            (pd.DataFrame({"race": ["x", "y", "x"]}), ["x", "y"], [0, 1, 0]),
            (np.array([["x", "1"], ["x", "1"], ["y", "1"]]), ["x, 1", "y, 1"], [0, 0, 1]),
        ],
    )
    def test_labels_of_many_kinds(self, groups, names, codes):
        found = name_groups("test", groups, 3)
        assert found[0].tolist() == names and found[1].tolist() == codes

    @pytest.mark.parametrize(
        ("groups", "message"),
        [
            ([1, 2], "groups must have as many rows as X, 3, got 2"),
            (["a", None, "b"], r"groups must have no missing values, got 1, the first in row 1 \(from 0\)"),
            ([1.0, 2.0, np.nan], "no missing values, got 1, the first in row 2"),
            ([("a", 1), ("a", None), ("b", 1)], "no missing values, got 1, the first in row 1"),
            (np.zeros((3, 1, 1)), r"groups must have shape \(n,\) or \(n, columns\), got \(3, 1, 1\)"),
            (pd.DataFrame(index=range(3)), "groups must have at least one column, got none"),
            ([{"a": 1}, {}, {}], "groups must be labels that can be keys"),
            ([("a, b", "c"), ("a", "b, c"), ("d", "e")], "groups must have names that differ, got 'a, b, c'"),
            ([1, "1", 2], "groups must have names that differ, got '1'"),
        ],
    )
    def test_bad_labels(self, groups, message):
        with pytest.raises(ValueError, match=f"^test: .*{message}"):
            name_groups("test", groups, 3)

    def test_the_hold_out_takes_its_share_of_each_group_spread_over_the_targets(self):
        random = np.random.RandomState(0)
        groups = np.repeat([0, 1, 2, 3], [100, 40, 2, 1])
        targets = random.permutation(len(groups)) % 2
        train, held = hold_out(groups, targets, 0.25, random)
        assert sorted([*train, *held]) == list(range(143))
        assert np.bincount(groups[held]).tolist() == [25, 10]
        for group in (0, 1):
            rows = held[groups[held] == group]
            assert targets[rows].mean() == pytest.approx(targets[groups == group].mean(), abs=1.01 / len(rows))
        assert np.bincount(groups[hold_out(groups, targets, 0.99, random)[0]]).tolist() == [1, 1, 1, 1]

    def test_a_class_is_never_held_out_as_a_whole(self):
        X, y = np.arange(40.0)[:, None], np.array([0] * 39 + [1])
        for seed in range(8):
            model = quick(validation_fraction=0.9, epochs=1, random_state=seed).fit(X, y, [0] * 40)
            assert 39 not in model.held_out_ and len(model.held_out_) >= 35

    def test_groups_of_one_row_are_trained_on(self):
        data = planted()
        groups = [f"g{number}" if number < 5 else "rest" for number in range(300)]
        model = quick().fit(data.X, data.y, groups)
        assert model.groups_.tolist() == ["g0", "g1", "g2", "g3", "g4", "rest"]
        assert not set(range(5)) & set(model.held_out_)
        assert np.isnan(model.group_table_.loss).sum() == 5

    @pytest.mark.parametrize(("top_k", "expected"), TOP_KS)
    def test_top_k_is_a_number_or_a_share(self, top_k, expected):
        data = planted(num_groups=10)
        model = quick(top_k=top_k, epochs=1).fit(data.X, data.y, data.groups)
        assert model.top_k_ == expected == model.loss_.criterion.top_k

    @pytest.mark.parametrize(
        ("options", "kind", "rows"),
        [
            ({}, GroupSampler, 48),
            ({"groups_per_batch": 2, "samples_per_group": 5}, GroupSampler, 10),
            ({"loss": "erm"}, ShuffledSampler, 128),
            ({"loss": "erm", "sampler": "groups"}, GroupSampler, 48),
            ({"sampler": "plain", "groups_per_batch": 5, "samples_per_group": 10}, ShuffledSampler, 50),
        ],
    )
    def test_batches(self, options, kind, rows):
        codes = np.repeat([0, 1, 2], 100)
        sampler = sampler_of(codes, **options)
        assert type(sampler) is kind and len(next(iter(sampler))) == rows

    @pytest.mark.parametrize("size", range(1, 8))
    @pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 12, 13, 21, 31, 43, 61, 421])
    def test_no_size_leaves_one_row_for_the_last_plain_batch(self, rows, size):
        sampler = sampler_of(
            np.zeros(rows, dtype=np.int64), sampler="plain", groups_per_batch=size, samples_per_group=1
        )
        lengths = [len(batch) for batch in sampler]
        assert sum(lengths) == rows
        if 1 in (rows, size):
            assert set(lengths) == {1 if size == 1 else rows}  # as asked for, or all there is
        else:
            assert min(lengths) > 1
        if rows % size != 1:
            assert lengths == [len(batch) for batch in ShuffledSampler(rows, batch_size=size)]

    @pytest.mark.parametrize(
        ("options", "rows"),
        [
            ({"loss": "erm", "groups_per_batch": 2, "samples_per_group": 1}, 7),
            ({"loss": "erm", "groups_per_batch": 2, "samples_per_group": 2}, 21),
            ({"loss": "sonx", "groups_per_batch": 1, "samples_per_group": 4}, 21),
            ({"loss": "exponentiated", "groups_per_batch": 1, "samples_per_group": 4}, 21),
        ],
    )
    def test_a_batch_norm_never_gets_one_row(self, options, rows):
        X, y = np.random.default_rng(0).normal(size=(rows, 2)), np.arange(rows) % 2
        module = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
        groups = [0] * (rows - 2) + [1, 2]  # two groups of one row
        model = quick(module=module, epochs=2, validation_fraction=0.0, **options).fit(X, y, groups)
        assert len(model.history_["loss"]) == 2

    def test_one_group_of_one_row_is_a_batch_where_no_batch_norm_minds(self):
        codes = np.array([0, 0, 0, 1])
        for module, number in ((nn.Linear(2, 1), 1), (nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)), 2)):
            sampler = sampler_of(codes, module, groups_per_batch=1, samples_per_group=2)
            assert sampler.groups_per_batch == number


class TestScikitLearn:
    def test_groups_are_routed(self):
        data = planted()
        with config_context(enable_metadata_routing=True):
            model = quick().set_fit_request(groups=True)
            given = {"params": {"groups": data.groups}, "cv": 3}
            assert cross_val_score(model, data.X, data.y, **given).shape == (3,)
            score = make_scorer(group_accuracy, top_k=1).set_score_request(groups=True)
            search = GridSearchCV(model, {"top_k": [1, 3], "loss": ["sonx", "erm"]}, scoring=score, cv=2)
            search.fit(data.X, data.y, groups=data.groups)
        assert search.best_estimator_.groups_.tolist() == [0, 1, 2]
        assert 0.0 <= search.best_score_ <= 1.0

    def test_tables_with_texts_and_missing_values(self):
        data = planted()
        frame = pd.DataFrame(data.X).add_prefix("x").assign(town=np.where(data.y == 1, "a", "b"))
        frame.loc[::7, ["x0", "town"]] = None
        model = quick(epochs=20, lr=0.1).fit(frame, data.y, groups=pd.Series(data.groups))
        assert model.feature_names_in_.tolist() == list(frame) and model.n_features_in_ == frame.shape[1]
        assert model.score(frame, data.y) > 0.8
        with pytest.raises(ValueError, match="X must have at least one row and one column"):
            model.predict(frame[:0])


def test_targets_of_the_regressor_are_numbers():
    data = planted()
    with pytest.raises(ValueError, match="GroupDRORegressor: y must hold numbers"):
        quick(GroupDRORegressor).fit(data.X, np.where(data.y == 1, "yes", "no"), data.groups)


def test_groups_are_compared_in_normal_form():
    names, codes = name_groups("test", ["F", "F ", "Jose\u0301", "\u00a0Jos\u00e9"], 4)
    assert names.tolist() == ["F", "Jos\u00e9"] and codes.tolist() == [0, 0, 1, 1]
    names, codes = name_groups("test", pd.DataFrame({"a": ["F", "F "], "b": [2**60, 2**60 + 1]}), 2)
    assert names.tolist() == [f"F, {2**60}", f"F, {2**60 + 1}"] and codes.tolist() == [0, 1]
    for kind in (list, np.array, pd.Series, lambda values: pd.array(values, dtype="Int64"), torch.tensor):
        assert name_groups("test", kind([2**60 + 1, 2**60, 2**60 + 1]), 3)[1].tolist() == [1, 0, 1]


RANDOM = np.random.default_rng(0)
GROUPS = np.array([0, 0, 0, 1, 1, 3, 3, 3, 3, 4])  # none is 2


def shrunk_by_definition(losses, groups):
    """Variance components of the unbalanced one-way layout, in loops."""
    parts = [losses[groups == group] for group in sorted(set(groups.tolist()))]
    n, k, grand = len(losses), len(parts), sum(losses) / len(losses)
    if k == 1:
        return [grand]
    inside = sum(sum((x - part.mean()) ** 2 for x in part) for part in parts) / (n - k)
    mean_square = sum(len(part) * (part.mean() - grand) ** 2 for part in parts) / (k - 1)
    size = (n - sum(len(part) ** 2 for part in parts) / n) / (k - 1)
    between = max(0.0, (mean_square - inside) / size)
    if between == 0.0:
        return [grand] * k
    return [grand + (part.mean() - grand) * between / (between + inside / len(part)) for part in parts]


@pytest.mark.parametrize("seed", range(20))
def test_means_of_groups_are_shrunk_by_the_variance_components(seed):
    random = np.random.default_rng(seed)
    losses = random.exponential(size=10) + (seed % 4) * GROUPS
    assert shrunk_group_losses(losses, GROUPS) == pytest.approx(shrunk_by_definition(losses, GROUPS))


def test_limits_of_the_shrinkage():
    losses = RANDOM.exponential(size=10)
    assert shrunk_group_losses(losses, np.zeros(10, dtype=int)) == pytest.approx([losses.mean()])
    assert shrunk_group_losses(losses, np.arange(10)) == pytest.approx([losses.mean()] * 10)  # one row each
    assert shrunk_group_losses(np.full(10, 0.7), GROUPS) == pytest.approx([0.7] * 4)
    many = np.repeat(np.arange(4), 50_000)
    noisy = RANDOM.normal(size=len(many)) + many
    assert shrunk_group_losses(noisy, many) == pytest.approx(np.bincount(many, noisy) / 50_000, abs=1e-4)


def test_the_worst_of_equal_groups_is_hardly_too_high():
    groups = np.repeat(np.arange(20), 5)
    draws = RANDOM.exponential(size=(400, 100))
    plain = np.mean([losses.reshape(20, 5).mean(axis=1).max() for losses in draws])
    shrunk = np.mean([EpochChoice(top_k=1)(losses, groups) for losses in draws])
    assert plain > 1.9 and 1.0 <= shrunk < 1.3  # the truth is 1


@pytest.mark.parametrize("method", METHODS["groups"])
@pytest.mark.parametrize("balanced", [False, True])
def test_each_method_chooses_by_what_it_minimises(method, balanced):
    losses = RANDOM.exponential(size=10) + GROUPS
    criterion = SampleCVaRLoss(fraction=0.35) if method == "cvar" else None
    sampler = "groups" if balanced else "plain"
    task = GroupTask(loss=method, num_groups=5, top_k=2, goal=Classes(np.arange(2)), sampler=sampler)
    found = task.choice(SimpleNamespace(criterion=criterion))(losses, GROUPS)
    weights = 1.0 / np.bincount(GROUPS)[GROUPS] if balanced or method == "erm_reweighted" else np.ones(10)
    groups = sorted(shrunk_by_definition(losses, GROUPS))
    expected = {"sonx": np.mean(groups[-2:]), "exponentiated": groups[-1]}
    if method == "cvar":
        mass, total, rest = 0.0, 0.0, 0.35 * weights.sum()
        for k in np.argsort(-losses):
            taken = min(weights[k], rest - mass)
            mass, total = mass + taken, total + taken * losses[k]
        expected[method] = total / mass
    assert found == pytest.approx(expected.get(method, np.average(losses, weights=weights)))


def table(rows, num_groups, *, seed, turned=False):
    """A table as people have it: numbers of different scales, a text, two classes; the last group may be turned."""
    random = np.random.default_rng(seed)
    groups, X = random.integers(num_groups, size=rows), random.normal(size=(rows, 3))
    town = random.choice(list("abcde"), size=rows)
    slope = np.where(turned & (groups == num_groups - 1), -1.5, 1.5)
    logit = slope * X[:, 0] - X[:, 1] + (np.char.find("abcde", town) - 2) / 2
    y = random.uniform(size=rows) < 1.0 / (1.0 + np.exp(-logit))
    frame = pd.DataFrame(X * [1.0, 10.0, 100.0] + [0.0, 5.0, 1000.0], columns=["x", "income", "km"]).assign(town=town)
    return frame, y, groups


@pytest.mark.parametrize("method", ["sonx", "exponentiated", "erm"])
def test_many_small_groups_are_learnt_by_default(method):
    X, y, groups = table(1000, 20, seed=3)
    model = GroupDROClassifier(loss=method, random_state=0).fit(X[:600], y[:600], groups=groups[:600])
    assert model.history_.best_epoch > 2 and model.score(X[600:], y[600:]) > 0.7


def test_the_mean_of_rows_is_learnt_though_one_group_follows_another_rule():
    X, y, groups = table(1600, 4, seed=0, turned=True)
    model = GroupDROClassifier(loss="erm", random_state=0).fit(X[:1200], y[:1200], groups=groups[:1200])
    assert not model.history_.untrained and model.score(X[1200:], y[1200:]) > 0.6
    assert model.chosen_by_ == "mean loss of all rows"


def test_the_score_of_an_epoch_is_that_loss_in_units_of_the_target():
    X, _, groups = table(200, 4, seed=0)
    y = 100.0 + 20.0 * X["x"]
    model = GroupDRORegressor(loss="cvar", epochs=4, lr=0.02, random_state=0).fit(X, y, groups=groups)
    rows = model.held_out_
    errors = torch.from_numpy(((model.predict(X) - y) ** 2).to_numpy()[rows])
    assert model.chosen_by_ == "mean loss of the worst 50% of the rows"
    assert -model.history_.best_score == pytest.approx(float(SampleCVaRLoss(fraction=0.5)(errors)), rel=1e-3)
