"""Dates as features: in DataFrames of an estimator, and as texts of a table."""

from __future__ import annotations

import datetime
import math
import re

import numpy as np
import pandas as pd
import pytest

from moreauc.app.tables.files import read_texts
from moreauc.data.dates import DateParts, as_dates
from moreauc.data.duplicates import hash_rows
from moreauc.data.schema import Column, Schema, learn_file, learn_frame
from moreauc.data.tables import TableError
from moreauc.data.tabular import TableEncoder, same_rows
from moreauc.data.texts import Kind, holds_dates
from moreauc.estimators import TPAUCClassifier

DAY = datetime.date(2024, 2, 29)
UTC = datetime.UTC


def parts_by_hand(moment: datetime.datetime, *, hours: bool) -> list[float]:
    """What a date becomes, from the methods of Python's own."""
    turns = [(moment.month - 1) / 12, moment.weekday() / 7]
    if hours:
        turns.append((moment.hour + moment.minute / 60 + moment.second / 3600) / 24)
    waves = [wave(2 * math.pi * turn) for turn in turns for wave in (math.sin, math.cos)]
    return [moment.year, moment.day, *waves]


@pytest.mark.parametrize("hours", [False, True])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin", "UTC+02:00"])
def test_parts_are_those_of_the_calendar(zone, hours):
    random = np.random.default_rng(0)
    seconds = random.integers(-(10**9), 10**9, size=200) if hours else 86400 * random.integers(-9000, 9000, size=200)
    moments = pd.Series(pd.Timestamp("1990-01-01") + pd.to_timedelta(seconds, unit="s"))
    if zone is not None:
        moments = moments.dt.tz_localize("UTC").dt.tz_convert(zone)
    dates = as_dates(moments)
    found = DateParts.of(dates[:100])
    days, parts = found.numbers(dates)
    assert found.hours == (hours or zone is not None) and len(found.names) == parts.shape[1]
    expected = [parts_by_hand(moment.to_pydatetime(), hours=found.hours) for moment in moments]
    np.testing.assert_allclose(parts, expected, atol=1e-12)
    np.testing.assert_allclose(days, (moments - moments[:100].min()) / pd.Timedelta(days=1), rtol=1e-12)


@pytest.mark.parametrize(
    ("column", "dtype"),
    [
        (pd.Series([DAY, None]), "datetime64[us]"),
        (pd.Series([DAY, datetime.date(9999, 12, 31)]), "datetime64[us]"),  # which stands for never
        (pd.Series([pd.Timestamp(DAY), pd.NaT, datetime.datetime(2024, 1, 1)], dtype=object), "datetime64[us]"),
        (pd.Series([pd.NaT], dtype="datetime64[ns]"), "datetime64[us]"),
        (pd.Series([datetime.datetime(2024, 1, 1, tzinfo=UTC), None]), "datetime64[us, UTC]"),
        (pd.Series([DAY, None]).astype("date32[pyarrow]"), "datetime64[us]"),
        (pd.Series(pd.to_datetime([DAY], utc=True)).astype("timestamp[ns, tz=UTC][pyarrow]"), "datetime64[us, UTC]"),
    ],
)
def test_dates_of_any_type(column, dtype):
    assert holds_dates(column) and not holds_dates(column.astype("category"))
    dates = as_dates(column)
    assert str(dates.dtype) == dtype and (dates.isna() == column.isna()).all()
    if column.notna().any():
        first = column.dropna().iloc[0]
        assert dates.dropna().iloc[0].date() == (first if type(first) is datetime.date else first.date())


@pytest.fixture(scope="module")
def payments():
    random = np.random.default_rng(1)
    when = pd.Series(pd.Timestamp("2023-01-01") + pd.to_timedelta(random.uniform(0, 600, 600), unit="D"))
    night = (when.dt.hour >= 22) | (when.dt.hour < 6)
    y = (random.random(600) < np.where(night, 0.5, 0.05)).astype(int)
    table = pd.DataFrame({"when": when, "amount": random.normal(size=600), "kind": random.choice(["a", "b"], 600)})
    table.loc[::50, "when"] = pd.NaT
    return table, y


def test_an_encoder_fills_scales_and_marks(payments):
    table, _ = payments
    rows = np.arange(100, 400)
    encoder = TableEncoder().fit(table, rows=rows)
    assert encoder.kinds_ == ["date", "number", "text"] and encoder.dates_[0].hours
    found = encoder.transform(table)
    # amount, days since the first, mark of missing dates, eight parts, two levels
    assert found.shape == (600, 13) and encoder.num_outputs_ == 13
    np.testing.assert_array_equal(found[:, 2], table["when"].isna())
    scaled = np.delete(found[rows], [2, 11, 12], axis=1)
    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=0), 1.0, atol=1e-5)
    plain = TableEncoder(standardize=False).fit(table, rows=rows).transform(table)
    known = table["when"].notna().to_numpy()
    first = table["when"].iloc[rows].min()
    np.testing.assert_allclose(plain[known, 1], (table["when"][known] - first) / pd.Timedelta(days=1), rtol=1e-5)
    assert (plain[known, 1] < 0).any()  # before the first of the training
    missing = plain[~known]
    np.testing.assert_allclose(missing[:, 1], np.median(plain[rows][known[rows], 1]), rtol=1e-6)


def test_a_classifier_learns_from_the_hour(payments):
    table, y = payments
    quick = TPAUCClassifier(module="linear", epochs=15, lr=0.03, loss="ce", random_state=0)
    model = quick.fit(table[:400], y[:400])
    assert model.score(table[400:], y[400:]) > 0.2 and list(model.feature_names_in_) == ["when", "amount", "kind"]
    objects = table.assign(when=table["when"].astype(object))
    np.testing.assert_array_equal(model.predict(objects), model.predict(table))
    assert np.isfinite(model.decision_function(table.assign(when=pd.NaT))).all()
    for values, message in (
        ("2024-01-01", "must hold dates, .* got '2024-01-01' in row 1; turn them into dates, .*to_datetime"),
        (5.0, "must hold dates, as in training, got '5.0' in row 1"),
        (pd.Timestamp("2024", tz="UTC"), "must hold dates with no time zone, as in training, got UTC; give them"),
    ):
        with pytest.raises(ValueError, match=f"^TPAUCClassifier: column 'when' {message}"):
            model.predict(table.assign(when=values))
    with (
        pytest.raises(ValueError, match=r"must be a DataFrame, as in fit, .*column 0 is not"),
        pytest.warns(UserWarning),
    ):
        model.predict(np.zeros((3, 3)))


def test_time_zones_are_those_of_the_training(payments):
    table, _ = payments
    local = table.assign(when=table["when"].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"))
    other = table.assign(when=local["when"].dt.tz_convert("America/Lima"))
    encoder = TableEncoder().fit(local)
    np.testing.assert_array_equal(encoder.transform(other), encoder.transform(local))
    with pytest.raises(ValueError, match=r"'when' must hold dates with the time zone Asia/Tokyo, .* None"):
        encoder.transform(table)
    mixed = table["when"].astype(object).where(table.index > 300, pd.Timestamp("2024", tz="UTC"))
    with pytest.raises(ValueError, match="column 'when' holds dates with a time zone beside dates without one"):
        TableEncoder().fit(table.assign(when=mixed))


def test_equal_rows_have_equal_dates(payments):
    table = payments[0][:4].copy()
    twice = pd.concat([table, table], ignore_index=True)
    assert same_rows("test", twice).tolist() == [0, 1, 2, 3] * 2
    twice.loc[6, "when"] += pd.Timedelta(seconds=1)
    assert same_rows("test", twice).tolist() == [0, 1, 2, 3, 0, 1, 4, 3]
    moments = pd.DataFrame({"when": pd.to_datetime(["2024-01-01 12:00", None])})
    zoned = moments.apply(lambda column: column.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"))
    for other in (moments.astype("datetime64[ns]"), moments.astype("datetime64[s]"), zoned):
        np.testing.assert_array_equal(hash_rows(other), hash_rows(moments))
    assert not learn_frame("t", pd.DataFrame({"when": pd.date_range("2024", periods=40)})).schema.doubts


def test_texts_in_iso_form_are_dates(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "day,moment,sent\n2024-01-31,2024-01-31T12:30,2024-01-31T12:30Z\n"
        ",2024-02-01 00:00:00.5,2024-01-31 13:30+01:00\n"
        "2024-02-02,NA,2024-01-31T12:30:00-0330\n"
    )
    columns = learn_file(read_texts(path))
    schema = columns.schema
    assert schema.kinds == {"day": "date", "moment": "date", "sent": "date with offset"}
    assert columns["day"].tolist() == [pd.Timestamp("2024-01-31"), pd.NaT, pd.Timestamp("2024-02-02")]
    assert columns["moment"][1] == pd.Timestamp("2024-02-01 00:00:00.5")
    hours = [moment.hour for moment in columns["sent"]]
    assert str(columns["sent"].dtype) == "datetime64[us, UTC]" and hours == [12, 12, 16]
    pd.testing.assert_frame_equal(schema.match(read_texts(path)[::-1], source="t"), columns[::-1])
    pd.testing.assert_frame_equal(schema.match(columns, source="t"), columns)  # as of a Parquet file
    empty = schema.match(pd.DataFrame({name: [None] for name in columns}), source="t")
    pd.testing.assert_series_equal(empty.dtypes, columns.dtypes)


@pytest.mark.parametrize(
    ("values", "kind", "got"),
    [
        (["2024-01-31", "31.1.2024"], "date", "'31.1.2024' in row 2"),
        (["2024-01-31T12:00Z"], "date", "'2024-01-31T12:00Z' in row 1"),
        (["2024-01-31"], "date with offset", "'2024-01-31' in row 1"),
        (["2024-01-31T25:00"], "date", "'2024-01-31T25:00' in row 1"),
        ([20240131], "date", "'20240131' in row 1"),
        ([pd.Timestamp("2024", tz="UTC")], "date", "'2024-01-01 00:00:00+00:00' in row 1"),
    ],
)
def test_other_values_than_in_training_are_refused(values, kind, got):
    with pytest.raises(
        TableError, match=rf"column 'a' must hold dates like 2024-12-31.*, as in training, got {re.escape(got)}"
    ):
        Schema((Column("a", Kind(kind)),)).match(pd.DataFrame({"a": values}), source="t")


def test_days_that_do_not_exist_are_named():
    table = pd.DataFrame({"a": ["2024-02-29", "2023-02-29"]})
    message = (
        "^t: column 'a' must hold dates like 2024-12-31, or leave it out with --drop a, got '2023-02-29' in row 2$"
    )
    with pytest.raises(TableError, match=message):
        learn_file(table, source="t")
    mixed = pd.DataFrame({"a": [pd.Timestamp("2024"), pd.Timestamp("2024", tz="UTC")]}, dtype=object)
    with pytest.raises(TableError, match=r"^t: column 'a' holds dates with a time zone beside dates without one"):
        learn_file(mixed, source="t")
