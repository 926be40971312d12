from __future__ import annotations

import json
import sys
from typing import ClassVar

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from test_estimators import make_bags

from moreauc._checks import NotFiniteError
from moreauc._registry import BASELINES, METHODS, NETWORK_GRID, every_method
from moreauc.app.baselines import BagStatistics, group_weights
from moreauc.app.cli.compare import tie_warnings
from moreauc.app.comparison import Candidate, Comparison, LabelledData, candidates, network
from moreauc.data.tabular import TableEncoder
from moreauc.estimators import TPAUCBooster, TPAUCClassifier
from moreauc.metrics import tpauc_score

REGION = (0.5, 0.5)


class Fake:
    """Scores by one column; remembers what it was trained on."""

    seen: ClassVar[list] = []

    def __init__(self, options, region, seed):
        self.options, self.region, self.seed = options, region, seed

    def fit(self, X, y):
        Fake.seen.append((self.options["column"], self.region, len(y), int(y.sum())))
        if self.options["column"] == 3:
            raise NotFiniteError("scores must be finite, got nan")
        return self

    def decision_function(self, X):
        return X[:, self.options["column"]]


def fake(regional=False, columns=(0, 1, 2)):
    return Candidate("fake", "Fake", regional, {"column": columns}, Fake)


@pytest.fixture
def table():
    """Column 0 is noise, column 1 tells the class half the time, column 2 always; column 3 is for errors."""
    random = np.random.default_rng(0)
    y = (np.arange(150) % 5 == 0).astype(int)
    X = random.normal(size=(150, 4))
    X[:, 1] += 1.0 * y
    X[:, 2] += 9.0 * y
    Fake.seen = []
    return X, y


def test_the_best_trial_of_the_inner_folds_is_tested(table):
    X, y = table
    plan = Comparison([fake()], (REGION,), folds=5, inner_folds=3, trials=3)
    result = plan.run(X, y)
    assert [record["options"] for record in result.records] == [{"column": 2}] * 5
    assert [record["score"] for record in result.records] == [1.0] * 5
    # in each fold 3 trials x 3 inner folds of 80 rows, then once on all 120 rows of the training part
    sizes = [entry[2] for entry in Fake.seen]
    assert sizes == ([80] * 9 + [120]) * 5


def test_the_test_rows_are_never_trained_on_or_tuned_by(table):
    X, y = table
    X[:, 0] = y  # would be perfect
    train, test = next(iter(StratifiedKFold(5, shuffle=True, random_state=0).split(y, y)))
    X[train, 0] = -y[train]  # and is the opposite on the training rows
    plan = Comparison([fake()], (REGION,), trials=3)
    (record,) = plan.pieces()[0].tune_and_test(LabelledData(X, y), plan)
    assert record["options"] == {"column": 2} and record["test_rows"] == test.tolist()


@pytest.mark.parametrize("regional", [False, True])
def test_scores_are_the_metric_of_the_chosen_model_on_the_test_fold(table, regional):
    X, y = table
    plan = Comparison([fake(regional, columns=(1,))], ((0.5, 0.5), (0.2, 0.7)), folds=3, trials=4)
    result = plan.run(X, y)
    assert len(result.records) == 6
    for record in result.records:
        rows, (a, b) = record["test_rows"], record["region"]
        assert record["score"] == tpauc_score(y[rows], X[rows, 1], min_tpr=a, max_fpr=b)
    # one value for the only option: tried once, though four trials were allowed; what does not know the region is
    # trained for both at once
    trained = [entry[1] for entry in Fake.seen if entry[2] == 100]
    assert len(trained) == (6 if regional else 3) and len(set(trained)) == (2 if regional else 1)


def test_a_trial_that_diverges_counts_as_the_worst(table):
    X, y = table
    result = Comparison([fake(columns=(3, 1))], (REGION,), folds=3, trials=2).run(X, y)
    assert [record["options"] for record in result.records] == [{"column": 1}] * 3
    assert [record["failures"] for record in result.records] == [1] * 3
    with pytest.raises(ValueError, match="every trial of Fake diverged in fold 0"):
        Comparison([fake(columns=(3,))], (REGION,), folds=3, trials=2).run(X, y)
    with pytest.raises(IndexError):  # errors of another kind are passed on
        Comparison([fake(columns=(9,))], (REGION,), folds=3, trials=1).run(X, y)


def test_rows_ranks_and_joined_scores(table):
    X, y = table
    good = Candidate("good", "Good", False, {"column": (2,)}, Fake)
    poor = Candidate("poor", "Poor", False, {"column": (0,)}, Fake)
    seen = []
    result = Comparison([poor, good], (REGION,), folds=3, seeds=2, trials=1).run(
        X, y, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(k, 12) for k in range(1, 13)]
    first, second = result.rows
    assert (first["title"], first["rank"]) == ("Poor", 2.0) and (second["title"], second["rank"]) == ("Good", 1.0)
    assert len(first["scores"]) == 6 and first["mean"] == pytest.approx(np.mean(first["scores"]))
    assert first["std"] == pytest.approx(np.std(first["scores"], ddof=1))
    joined = result.scores()
    assert tpauc_score(y, joined["Good"], min_tpr=0.5, max_fpr=0.5) == 1.0
    assert not np.isnan(joined["Poor"]).any() and joined["Poor"].min() >= 0 and joined["Poor"].max() <= 1
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["positives"] == 30 and len(plain["records"]) == 12 and "test_rows" not in plain["records"][0]


def test_draws_begin_with_the_defaults_and_are_all_different():
    for candidate in candidates([*every_method("rows")[0], *every_method("bags")[0]]):
        for seed in range(5):
            drawn = candidate.draw(8, seed)
            assert drawn[0] == {name: values[0] for name, values in candidate.grid.items()}
            assert all(one not in drawn[:number] for number, one in enumerate(drawn)) and len(drawn) == 8
            assert drawn == candidate.draw(8, seed) and drawn[:5] == candidate.draw(5, seed)
    assert len(fake().draw(10, 0)) == 3  # the grid has no more


def test_draws_go_round_all_values_and_do_not_tie_options_together():
    (sonx,) = candidates(["sonx"])
    assert {options["lr"] for options in sonx.draw(4, seed=0)} == set(sonx.grid["lr"])
    pairs = [(o["margin"], o["gamma"]) for seed in range(40) for o in sonx.draw(8, seed)[1:]]
    counts = [pairs.count(pair) for pair in set(pairs)]
    assert len(counts) == 6 and min(counts) > len(pairs) / 12
    # losses share the learning rates and weight decays of a trial
    (mb,) = candidates(["mb"])
    for a, b in zip(sonx.draw(6, seed=2), mb.draw(6, seed=2), strict=True):
        assert (a["lr"], a["weight_decay"]) == (b["lr"], b["weight_decay"])


def test_a_model_that_ties_everything_is_not_chosen(table):
    X, y = table
    X[:, 3] = 0.0

    class Flat(Fake):
        def fit(self, X, y):
            return self

    assert 0.0 < tpauc_score(y, X[:, 1], min_tpr=0.5, max_fpr=0.5) < 0.5
    flat = Candidate("flat", "Flat", False, {"column": (3, 1)}, Flat)
    result = Comparison([flat], (REGION,), folds=3, inner_folds=2, trials=2).run(X, y)
    assert [record["options"] for record in result.records] == [{"column": 1}] * 3
    assert result.rows[0]["tied"] == 0.0 and not tie_warnings(result.rows)
    only = Candidate("flat", "Flat", False, {"column": (3,)}, Flat)
    result = Comparison([only], (REGION,), folds=3, inner_folds=2, trials=1).run(X, y)
    assert result.rows[0]["tied"] == 1.0 and result.rows[0]["mean"] == 0.0
    assert tie_warnings(result.rows)[0].startswith("Flat: 100.0% of the rows of the region")


@pytest.mark.parametrize("name", ["ce", "linear", *BASELINES["rows"]])
def test_candidates_learn_a_frame_with_levels_and_missing_values(name):
    X, y = make_classification(300, 6, weights=[0.8], flip_y=0, class_sep=2.0, random_state=0)
    frame = pd.DataFrame(X, columns=list("abcdef"))
    frame["level"] = pd.Categorical(np.where(X[:, 0] > 0, "high", "low"))
    frame.loc[::7, "a"] = np.nan
    (candidate,) = candidates([name], module="linear")
    rows = np.arange(300)
    scores = candidate.fit_and_score(candidate.draw(1, 0)[0], REGION, LabelledData(frame, y), rows[:200], rows[200:], 0)
    assert tpauc_score(y[200:], scores, min_tpr=0.5, max_fpr=0.5) > 0.6


def test_variants_of_a_network():
    plain, variant = network("sonx"), network("sonx", name="narrow", title="Narrow", grid={"widen": (0.0,)})
    assert plain.title == "SONX" and variant.draw(5, 0)[4]["widen"] == 0.0 and "gamma" not in variant.grid
    made = variant.make(variant.draw(1, 0)[0], (0.6, 0.4), 7)
    assert made.loss_options == {"widen": 0.0} and made.random_state == 7 and made.max_fpr == 0.4
    for option in NETWORK_GRID:  # the first trial is the estimator as it comes
        assert getattr(made, option) == TPAUCClassifier().get_params()[option]
    fixed = network("ce", settings={"epochs": 3, "sampler": "balanced"})  # what is fixed is not tuned
    assert not {"epochs", "sampler"} & set(fixed.grid) and "lr" in fixed.grid
    assert {fixed.make(options, REGION, 0).epochs for options in fixed.draw(6, 0)} == {3}


def library_default(name, seed):
    from lightgbm import LGBMClassifier
    from xgboost import XGBClassifier

    return {
        "lr": LogisticRegression(max_iter=1000),
        "forest": RandomForestClassifier(random_state=seed),
        "lightgbm": LGBMClassifier(random_state=seed, n_jobs=1, verbosity=-1),
        "xgboost": XGBClassifier(random_state=seed, n_jobs=1),
    }[name]


@pytest.mark.parametrize("name", BASELINES["rows"])
def test_the_first_trial_of_a_baseline_is_the_library_as_it_comes(name):
    X, y = make_classification(200, 5, weights=[0.8], flip_y=0.1, random_state=3)
    (candidate,) = candidates([name])
    scores = candidate.fit_and_score(
        candidate.draw(1, 5)[0], REGION, LabelledData(X, y), np.arange(150), np.arange(200), 5
    )
    inputs = TableEncoder(standardize=name == "lr").fit(X[:150]).transform(X)
    model = library_default(name, seed=5).fit(inputs[:150], y[:150])
    raw = hasattr(model, "decision_function")
    expected = model.decision_function(inputs) if raw else model.predict_proba(inputs)[:, 1]
    np.testing.assert_array_equal(scores, expected)


def test_balanced_xgboost_weighs_positives_as_lightgbm_does():
    from xgboost import XGBClassifier

    X, y = make_classification(200, 5, weights=[0.8], flip_y=0.1, random_state=3)
    (candidate,) = candidates(["xgboost"])
    options = {**candidate.draw(1, 0)[0], "class_weight": "balanced"}
    weighted = XGBClassifier(scale_pos_weight=(y == 0).sum() / y.sum(), random_state=0, n_jobs=1)
    expected = weighted.fit(X.astype(np.float32), y).predict_proba(X.astype(np.float32))
    np.testing.assert_array_equal(candidate.make(options, REGION, 0).fit(X, y).predict_proba(X), expected)


def test_statistics_of_bags_by_loops():
    bags, _ = make_bags(9)
    found = BagStatistics().fit_transform(bags)
    for row, bag in zip(found, bags, strict=True):
        columns = [list(column) for column in bag.T]
        by_hand = [f(column) for f in (lambda c: sum(c) / len(c), max, min) for column in columns]
        np.testing.assert_allclose(row, by_hand, rtol=1e-14)
    images = [np.arange(24, dtype=np.uint8).reshape(2, 3, 4), np.full((1, 3, 4), 200, dtype=np.uint8)]
    assert BagStatistics().fit_transform(images)[:, 0].tolist() == [6.0, 200.0]
    with pytest.raises(ValueError, match=r"bag 0 must have instances of shape \(3,\), as before, got \(2,\)"):
        BagStatistics().fit(bags).transform([np.zeros((4, 2))])


def test_weights_of_groups_by_loops():
    groups = np.random.default_rng(0).integers(0, 4, size=50)
    weights = group_weights(groups)
    assert weights.mean() == pytest.approx(1.0)
    totals = [sum(w for w, g in zip(weights, groups, strict=True) if g == k) for k in range(4)]
    assert totals == pytest.approx([12.5] * 4)


def test_every_comparison_has_the_baselines(monkeypatch):
    rows, bags = (("linear", "trees", "lr", "forest", "lightgbm", "xgboost"), ("lr_bags", "forest_bags"))
    assert Comparison().methods == (*METHODS["rows"], *rows)
    assert every_method("bags") == ((*METHODS["bags"], *bags), [])
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.warns(UserWarning, match=r"XGBoost is left out: .* pip install 'moreauc\[boosting\]'"):
        assert Comparison().methods == (*METHODS["rows"], *rows[:5])
    monkeypatch.setitem(sys.modules, "lightgbm", None)  # which TPAUCBooster needs, too
    with pytest.warns(UserWarning, match="(LightGBM|XGBoost) is left out"):
        assert Comparison().methods == (*METHODS["rows"], "linear", "lr", "forest")
    for name in ("trees", "lightgbm"):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'moreauc\[boosting\]'"):
            candidates([name])


def test_models_that_are_no_networks_are_candidates():
    X, y = make_classification(160, 4, n_informative=3, n_redundant=0, weights=[0.7], random_state=0)
    auto, trees = candidates(["auto", "trees"])
    assert (auto.title, trees.title) == ("TPAUCAuto", "TPAUCBooster") and auto.regional and trees.regional
    assert trees.draw(1, 0) == [{"n_estimators": 100, "booster_options": None}]
    rows, others = np.arange(100), np.arange(100, 160)
    scores = trees.fit_and_score(trees.draw(1, 0)[0], REGION, LabelledData(X, y), rows, others, 3)
    again = TPAUCBooster(min_tpr=REGION[0], max_fpr=REGION[1], random_state=3).fit(X[rows], y[rows])
    np.testing.assert_array_equal(scores, again.decision_function(X[others]))


def test_bags_are_compared_as_rows_are():
    bags, y = make_bags(48)
    settings = {"instances_per_bag": 3, "epochs": 15, "lr": 0.02}
    methods = ["ce_att", "lr_bags", "forest_bags"]
    result = Comparison(methods, (REGION,), folds=2, inner_folds=2, trials=1, settings=settings).run(bags, y)
    statistics = ["LR (mean, max, min)", "random forest (mean, max, min)"]
    assert [row["title"] for row in result.rows] == ["CE (attention)", *statistics]
    assert all(row["mean"] > 0.4 for row in result.rows)
    for record in result.records:  # the chosen settings, trained again by hand, score the test bags alike
        (candidate,) = candidates([record["method"]], **settings)
        test = np.array(record["test_rows"])
        train = np.setdiff1d(np.arange(48), test)
        scores = candidate.fit_and_score(record["options"], REGION, LabelledData(bags, y), train, test, 0)
        np.testing.assert_array_equal(scores, record["test_scores"])


def test_two_processes_give_what_one_gives():
    """In processes of loky, and on a Dask cluster, which users choose by joblib's configuration."""
    X, y = make_classification(90, 4, weights=[0.7], flip_y=0, random_state=1)
    seen = []

    def run(progress=None, **options):
        settings = {"module": "linear", "epochs": 10}
        plan = Comparison(["ce", "auc_sh"], (REGION,), folds=2, inner_folds=2, trials=1, settings=settings, **options)
        records = plan.run(X, y, progress=progress).records
        return [{key: value for key, value in record.items() if key != "seconds"} for record in records]

    alone = run()
    assert run(jobs=2, progress=lambda done, total: seen.append((done, total))) == alone
    assert seen == [(k, 4) for k in range(1, 5)]
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        assert run() == alone


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folds": 1}, "folds .* got 1"),
        ({"inner_folds": 1}, "inner_folds .* got 1"),
        ({"trials": 0}, "trials .* got 0"),
        ({"regions": ()}, r"regions .* got \(\)"),
        ({"regions": ((1.0, 0.5),)}, "min_tpr .* got 1.0"),
        ({"methods": ["ce", "ce"]}, r"methods .* got \['ce', 'ce'\]"),
        ({"methods": []}, r"methods .* got \[\]"),
        ({"methods": ["tree"]}, "names .* got 'tree'"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(ValueError, match=message):
        Comparison(**{"methods": ["ce"], **options})


def test_wrong_labels(table):
    X, _ = table
    with pytest.raises(ValueError, match=r"y must be a vector of 0 and 1, got values \[0, 1, 2\]"):
        Comparison([fake()], (REGION,)).run(X, np.arange(150) % 3)
    few = np.zeros(150, dtype=int)
    few[:8] = 1
    with pytest.raises(ValueError, match=r"y must have enough positives for 5 folds with 3 inner ones.*got 8"):
        Comparison([fake()], (REGION,)).run(X, few)
