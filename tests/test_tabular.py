"""Tables as they come: columns of all kinds, missing values, levels, and what is refused."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_classification

from moreauc.data.schema import ColumnWarning, learn_frame
from moreauc.data.tabular import TableEncoder
from moreauc.estimators import TPAUCAuto, TPAUCClassifier


def quick(**options):
    few = {
        "module": "linear",
        "epochs": 3,
        "batch_size": 32,
        "lr": 0.03,
        "random_state": 0,
        "start": None,
        "ensemble": 1,
    }
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


@pytest.mark.filterwarnings("ignore::moreauc.metrics.TiedScoresWarning")  # a small network on few rows
def test_missing_values_categories_and_strings(table):
    X, y = table
    classifier = quick(epochs=10).fit(X, y)
    assert classifier.preprocessor_.kinds_ == [*("number", "number", "text", "text", "text", "number", "number")]
    assert list(classifier.feature_names_in_) == list(X.columns) and classifier.n_features_in_ == 7
    assert set(classifier.predict(X)) == {"no", "yes"}
    assert classifier.score(X, y) > quick(epochs=10).fit(X[["count", "town"]], y).score(X[["count", "town"]], y) + 0.1


def test_what_becomes_of_a_table():
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
    with pytest.warns(ColumnWarning, match=r"column 'level' holds levels .* in 1 of 1 rows \(100.0%\), such as 'new'"):
        assert encoder.transform(new).tolist() == [[2, 1, 0, 0, 1, 0, 0]]
    scaled = TableEncoder().fit(X).transform(X)[:, 0]
    assert scaled.mean() == pytest.approx(0.0, abs=1e-6) and scaled.std() == pytest.approx(1.0)


def test_levels_do_not_depend_on_how_numbers_are_stored():
    X = pd.DataFrame({"c": pd.Categorical([1, 2] * 4), "x": 0.0})
    encoder = TableEncoder().fit(X)
    for values in (pd.Categorical([1.0, 2.0]), np.array([1, 2]), np.array(["1", "2"]), np.array([1.0, 2.0])):
        np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"c": values, "x": 0.0}))[:, 1:], np.eye(2))


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("of_numbers", [False, True])
def test_truth_values_may_come_as_numbers(of_numbers, missing):
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


def test_many_levels_are_cut_to_the_most_frequent():
    frequent = np.repeat(np.arange(80).astype(str), np.where(np.arange(80) < 49, 5, 4))
    with pytest.warns(
        ColumnWarning, match=r"'id' holds 80 different texts in 369 rows; 31 of them, in 34% of the rows"
    ):
        encoder = TableEncoder().fit(pd.DataFrame({"id": frequent}))
    assert encoder.num_outputs_ == 50
    np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"id": ["60"]})), [[0.0] * 49 + [1.0]])


def test_levels_that_were_not_there_in_fit(table):
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
        (3.5, "column 'town' must hold text, as in training ('a', 'b', 'c'), got the number 3.5 in row 1; write its"),
    ):
        with pytest.raises(ValueError, match=f"^TPAUCClassifier: {re.escape(message)}"):
            classifier.predict(X.assign(town=values))
    with pytest.raises(ValueError, match=r"'town' must hold text, .* got the number 3 in row"):
        classifier.predict(X[:1].assign(town=3))
    with pytest.warns(ColumnWarning, match="in 1 of 1 rows"):  # a row may come alone
        classifier.predict(X[1:2].assign(town="d"))
    classifier.predict(X.assign(town=None))  # missing is no level that could be misspelt


def test_a_level_of_the_held_out_rows_only_is_no_surprise(table):
    X, y = table
    held = quick().fit(X, y).held_out_
    town = X["town"].copy()
    town.iloc[held[:4]] = "held"
    assert (quick().fit(X.assign(town=town), y).held_out_ == held).all()  # without a warning


@pytest.mark.parametrize("texts", [["$5", "$6.50"], ["0,5", "1,5"], ["31.12.24", "1.1.25"], ["1 000", "20"]])
def test_numbers_and_dates_as_texts_are_refused(texts):
    X = pd.DataFrame({"a": texts * 20, "x": np.arange(40) / 7})
    with pytest.raises(ValueError, match=r"^TPAUCClassifier: column 'a' holds .* or make the column a category"):
        quick().fit(X, np.arange(40) % 2)
    quick().fit(X.assign(a=X["a"].astype("category")), np.arange(40) % 2)


def test_doubtful_columns_are_named_once():
    X = pd.DataFrame({"x": np.arange(80) / 7, "case": np.arange(80), "code": [f"{k % 20} b" for k in range(80)]})
    auto = TPAUCAuto(models=["linear", "forest"], model_options={"forest": {"n_estimators": 5}}, random_state=0)
    with pytest.warns(ColumnWarning) as found:
        auto.fit(X, np.arange(80) % 2)
    lines = [str(one.message) for one in found if one.category is ColumnWarning]
    assert len(lines) == 2 and lines[0].startswith("TPAUCAuto: column 'case' holds a different whole number in every")
    assert lines[1].startswith("TPAUCAuto: column 'code' holds 20 different texts that begin with a number")
    TableEncoder().fit(X.drop(columns="case").astype({"code": "category"}))  # texts that are declared as levels


def test_parts_of_a_typed_frame_keep_its_schema(table):
    typed = learn_frame("t", table[0])
    part = pickle.loads(pickle.dumps(typed.iloc[5:20]))
    assert part.schema == typed.schema and learn_frame("t", part) is part
    assert typed.schema.with_levels(part[part["town"] == "a"]).schema.columns[2].levels == ("a",)
    for other in (part.drop(columns="size"), part.assign(town=1.5)):
        with pytest.raises(ValueError, match="columns must be as they were read"):
            _ = other.schema
    with pytest.raises(ValueError, match="X must have 7 columns, as in training, got 6"):
        typed.schema.read("t", table[0].drop(columns="size"))
    with pytest.raises(ValueError, match="'size' must hold numbers, as in training, got 'large'"):
        typed.schema.read("t", typed.assign(size="large"))
    rare = typed.schema.read("t", table[0][:5].assign(town=["d", "d", None, None, None]))
    assert typed.schema.unknown(rare, source="t")[0].share == 1.0  # of few values: no error


def test_missing_for_the_first_time_is_the_median():
    encoder = TableEncoder(standardize=False).fit(np.array([[1.0, np.nan], [2.0, 5.0], [9.0, 5.0]]))
    assert encoder.transform(np.array([[np.nan, np.nan]])).tolist() == [[2.0, 5.0, 1.0]]


def test_a_frame_of_numbers_is_as_good_as_an_array(data):
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


def test_far_out_numbers_do_not_become_infinite():
    encoder = TableEncoder().fit(np.array([[0.0], [1.0]]))
    assert np.isfinite(encoder.transform(np.array([[1e300], [-1e300]]))).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pd.period_range("2020", periods=120), "'extra' must hold .* got period; turn it into numbers"),
        (pd.to_timedelta(np.arange(120)), "'extra' must hold .* got timedelta64; turn it into numbers"),
        ([1, "a"] * 60, "'extra' must hold .* got mixed-integer; turn it into one type"),
        (np.arange(120) * 1j, "'extra' must hold .* got complex; turn it into one type"),
        ([np.inf] * 120, "'extra' must be finite, got inf in row 1"),
    ],
)
def test_columns_that_cannot_be_used_are_named(values, message, table):
    X, y = table
    with pytest.raises(ValueError, match=message):
        quick().fit(X.assign(extra=values), y)


def test_other_tables_in_predict_are_refused(table):
    X, y = table
    classifier = quick().fit(X, y)
    for other, message in (
        (X.assign(size="large"), "'size' must hold numbers, as in training, got 'large' in row 1"),
        (X.assign(town=pd.Timestamp("2020")), r"'town' must hold text, as in training .*, got the date 2020"),
        (X.drop(columns="size"), "feature names should match"),
        (X[X.columns[::-1]], "feature names should match"),
        (X[:0], "at least one row and one column"),
    ):
        with pytest.raises(ValueError, match=message):
            classifier.predict(other)
    with pytest.warns(UserWarning), pytest.raises(ValueError, match=r"must be a DataFrame, as in fit, .*column 2"):
        classifier.predict(np.zeros((3, 7)))


def test_texts_are_compared_in_normal_form(table):
    X, y = table
    fitted = quick().fit(X, y)
    spelt = X.assign(town=X["town"].map({"a": "a ", "b": "\u00a0b", "c": "c\u200b"}))
    np.testing.assert_array_equal(fitted.decision_function(spelt), fitted.decision_function(X))
    np.testing.assert_array_equal(quick().fit(spelt, y).decision_function(X), fitted.decision_function(X))


@pytest.mark.parametrize("kind", [pd.DataFrame, lambda columns: pd.DataFrame(columns).to_numpy()])
def test_integers_that_floats_cannot_tell_apart_are_refused(kind):
    y = np.arange(40) % 2
    X = kind({"id": 2**60 + np.arange(40), "x": np.arange(40)})
    with pytest.raises(ValueError, match=r"TPAUCClassifier: column .* holds numbers too close together .* drop it"):
        quick().fit(X, y)
    order = np.random.default_rng(0).permutation(40)
    times = kind({"time": 2**60 + 10**9 * order, "x": order[::-1]})
    assert np.isfinite(quick().fit(times, y).decision_function(times)).all()


def test_an_encoder_that_fails_is_as_before(table):
    encoder = TableEncoder().fit(table[0][["size", "town"]])
    before = dict(vars(encoder))
    with pytest.raises(ValueError, match="column 'a' must be finite"):
        encoder.fit(pd.DataFrame({"a": [1.0, np.inf], "b": ["x", "y"]}))
    assert vars(encoder) == before and all(value is before[name] for name, value in vars(encoder).items())
