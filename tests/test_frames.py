"""Tables of polars and Arrow wherever a DataFrame of pandas is taken."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest

from moreauc.data.tables import as_frame
from moreauc.estimators import GroupDROClassifier, MultiInstanceClassifier, TPAUCClassifier

polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(0)
    y = np.arange(160) % 4 == 0
    frame = pd.DataFrame(
        {
            "size": random.normal(size=160) + y,
            "count": pd.array(random.integers(9, size=160), dtype="Int64"),
            "town": random.choice(["a", "b", "c"], size=160),
            "kind": pd.Categorical(random.choice(["x", "y"], size=160)),
            "flag": pd.array(random.random(160) < 0.5, dtype="boolean"),
            "day": pd.Series(pd.date_range("2024", periods=160)).dt.date,
            "time": pd.date_range("2024", periods=160, freq="7h", tz="Europe/Berlin"),
        }
    )
    for column in ("size", "count", "town", "flag", "day", "time"):
        frame.loc[random.choice(160, 9, replace=False), column] = None
    return frame, np.where(y, "yes", "no")


KINDS = {"polars": polars.from_pandas, "arrow": lambda frame: pyarrow.Table.from_pandas(frame, preserve_index=False)}
every_kind = pytest.mark.parametrize("convert", KINDS.values(), ids=list(KINDS))


@every_kind
def test_a_classifier_sees_the_same_table(table, convert):
    X, y = table
    options = {"module": "linear", "epochs": 2, "random_state": 0}
    expected = TPAUCClassifier(**options).fit(X, y)
    other = convert(X)
    model = TPAUCClassifier(**options).fit(other, polars.Series(y))
    assert model.preprocessor_.kinds_ == [*["number"] * 2, *["text"] * 3, "date", "date with offset"]
    assert list(model.feature_names_in_) == list(X.columns)
    for name in ("decision_function", "predict", "predict_proba"):
        np.testing.assert_array_equal(getattr(model, name)(other), getattr(expected, name)(X))
        np.testing.assert_array_equal(getattr(model, name)(X), getattr(expected, name)(X))
    assert model.score(other, pyarrow.array(y)) == expected.score(X, y)


@every_kind
def test_groups_and_bags_may_come_so(table, convert):
    X, y = table
    numbers, groups = X[["size"]].fillna(0.0), X[["town", "kind"]].astype(object).fillna("none")
    options = {"hidden": (), "epochs": 2, "random_state": 0}
    expected = GroupDROClassifier(**options).fit(numbers, y, groups=groups)
    model = GroupDROClassifier(**options).fit(convert(numbers), y, groups=convert(groups))
    assert model.groups_.tolist() == expected.groups_.tolist()
    np.testing.assert_array_equal(model.predict(convert(numbers)), expected.predict(numbers))
    bags, labels = [numbers[k : k + 4] for k in range(0, 160, 4)], np.arange(40) % 4 == 0
    expected = MultiInstanceClassifier(epochs=2, random_state=0).fit(bags, labels)
    model = MultiInstanceClassifier(epochs=2, random_state=0).fit([convert(bag) for bag in bags], labels)
    np.testing.assert_array_equal(model.decision_function([convert(bags[0])]), expected.decision_function(bags[:1]))
    assert model.feature_names_in_.tolist() == ["size"]


def test_what_is_no_other_table_stays_as_it_is(table):
    for given in (table[0], np.zeros((2, 2)), [[1.0]], table[0]["size"]):
        assert as_frame("test", given) is given


def test_types_of_columns():
    found = as_frame(
        "test",
        polars.DataFrame(
            {
                "whole": [2**60 + 1, None],
                "never": [datetime.date(9999, 12, 31), None],
                "level": polars.Series(["a", None], dtype=polars.Categorical),
            }
        ),
    )
    assert found["whole"].tolist() == [2**60 + 1, pd.NA] and found["never"][0] == datetime.date(9999, 12, 31)
    assert isinstance(found["level"].dtype, pd.CategoricalDtype)
    indexed = pd.DataFrame({"a": [1.0, 2.0]}, index=["x", "y"])
    assert list(as_frame("test", pyarrow.Table.from_pandas(indexed))) == ["a"]
    batch = pyarrow.RecordBatch.from_pydict({"a": [1.0, 2.0], "b": ["x", "y"]})
    assert as_frame("test", batch).to_dict("list") == {"a": [1.0, 2.0], "b": ["x", "y"]}


def test_any_table_that_pandas_can_be_made_of():
    class Other:
        def to_pandas(self):
            return pd.DataFrame({"a": [1.0]})

    class Broken:
        def to_pandas(self):
            raise ModuleNotFoundError("this needs something")

    assert list(as_frame("test", Other())) == ["a"]
    with pytest.raises(ValueError, match=r"^TPAUCClassifier: X must be a table that pandas can .*Broken: this needs"):
        TPAUCClassifier().fit(Broken(), [0, 1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (polars.DataFrame({"a": [1]}).lazy(), "in memory, got polars.LazyFrame; call its collect"),
        (polars.Series([1, 2]), "that pandas can hold, got polars.Series: "),
        (pyarrow.chunked_array([[1, 2]]), "that pandas can hold, got pyarrow.ChunkedArray: "),
    ],
)
def test_what_cannot_be_converted_is_refused(given, message):
    with pytest.raises(ValueError, match=f"TPAUCClassifier: X must be a table {message}"):
        TPAUCClassifier().fit(given, [0, 1])


def test_without_pyarrow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"got polars.DataFrame: this needs pyarrow, .*moreauc\[parquet\]"):
        as_frame("test", polars.DataFrame({"a": [1]}))
