"""Reading tables, choosing the target, and what is refused: each error in full."""

from __future__ import annotations

import datetime
import re
import sys
from decimal import Decimal
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from typer.testing import CliRunner

from moreauc.app.cli import app
from moreauc.app.tables.files import read_texts, write_table
from moreauc.app.tables.targets import Target, drop_columns, match_target, split_target
from moreauc.data import schema
from moreauc.data.examples import EXAMPLES, fraud_table, load_example
from moreauc.data.schema import Column, Schema, learn_file, learn_frame
from moreauc.data.tables import TableError
from moreauc.data.tabular import TableEncoder
from moreauc.data.texts import Kind, label_text, lost_in_floats, normal_text, type_column

SCHEMA = Schema((Column("age", Kind.NUMBER), Column("ward", Kind.TEXT, ("A", "B"))))
ICONV = "convert it, for example: iconv -f {} -t UTF-8 data.csv > data-utf8.csv"


def read_table(path) -> pd.DataFrame:
    return read_texts(path).apply(type_column)


def exactly(message: str) -> str:
    return f"^{re.escape(message)}$"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a,b\n1,x\n2,y\n", {"a": [1, 2], "b": ["x", "y"]}),
        (b"\xef\xbb\xbfa,b\n1,x\n2,y\n", {"a": [1, 2], "b": ["x", "y"]}),  # byte order mark
        (b"a;b\n1;x,z\n2;y\n", {"a": [1, 2], "b": ["x,z", "y"]}),
        (b"a\tb\n1\tx\n2\ty\n", {"a": [1, 2], "b": ["x", "y"]}),
        (b"a, b\r\n1, x\r\n\r\n2, y\r\n", {"a": [1, 2], "b": ["x", "y"]}),
        (b'a,b\n1,"x\nz"\n2,"y, ""q"""\n', {"a": [1, 2], "b": ["x\nz", 'y, "q"']}),
        ("größe,b\n1,é\n2,y\n".encode(), {"größe": [1, 2], "b": ["é", "y"]}),
        (b"a\n1\n2\n\n", {"a": [1, 2]}),
        (b"a,b\rx,1\r\r,2\r", {"a": ["x", None], "b": [1, 2]}),  # CR before an empty field
        (b"a,b\r\n\r,1\rx,2\n", {"a": [None, "x"], "b": [1, 2]}),
        (b'"x;y;z",b\n1,2\n', {"x;y;z": [1], "b": [2]}),
        (b'a;"b,c,d"\n1;2\n', {"a": [1], "b,c,d": [2]}),
        (b'\n"a\r\nb", c \n"1\r\n2" ,3\n', {"a\nb": ["1\n2"], "c": [3]}),
        (b"a,b\n  \n1,2\n", {"a": [1], "b": [2]}),
        ("a\u00a0,b\n1\u00a0,NA \n2,\u200b\n".encode(), {"a": [1, 2], "b": [None, None]}),
        ("e\u0301\tb\n\u3000F\t1\nF \t2\ne\u0301\t3\n".encode(), {"é": ["F", "F", "é"], "b": [1, 2, 3]}),
        (b"a\n01\n1\n", {"a": [1, 1]}),
        (b"a,b\n,x\nNA,\n3,null\n", {"a": [None, None, 3], "b": ["x", None, None]}),
        (b"a,b\nTRUE,1\nfalse,2\n", {"a": [True, False], "b": [1, 2]}),
    ],
)
def test_text_files(tmp_path, content, expected):
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    frame = read_table(path)
    assert {name: frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame} == expected


def test_texts_of_a_file_are_left_as_they_are_there(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text(f"a,b,c\n01, TRUE,{2**64}\n1.0 ,x,\n")
    frame = read_texts(path)
    assert frame["a"].tolist() == ["01", "1.0"] and frame["b"].tolist() == ["TRUE", "x"]
    assert frame["c"][0] == str(2**64) and frame["c"].isna().tolist() == [False, True]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".pq", ".CSV"])
def test_what_is_written_is_read_back(tmp_path, suffix):
    frame = pd.DataFrame({"n": [1.5, np.nan, -2.0], "t": ["a", "b,c\td", "e"]}, index=[7, 3, 5])
    path = tmp_path / f"data{suffix}"
    write_table(frame, path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    pd.testing.assert_frame_equal(read_table(path), frame.reset_index(drop=True))


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "data.csv"
    path.write_text("old")

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(pd.DataFrame, "to_csv", fail)
    with pytest.raises(OSError, match="disk full"):
        write_table(pd.DataFrame({"a": [1]}), path)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data.csv", None, "no such file"),
        ("folder.csv", "folder", "is a folder, a file is needed"),
        ("data.xls", b"a", "unknown kind of file .xls, must be one of .csv, .tsv, .parquet, .pq"),
        ("data", b"a", "unknown kind of file (no suffix), must be one of .csv, .tsv, .parquet, .pq"),
        ("data.csv", b"", "the file is empty"),
        ("data.parquet", b"", "the file is empty"),
        ("data.csv", b" \n\n", "the file is empty"),
        ("data.csv", b"a,b\n", "the file has a header but no rows"),
        ("data.csv", b"a,b\n1,caf\xe9\n", f"not UTF-8, byte 0xe9 at position 9; {ICONV.format('WINDOWS-1252')}"),
        ("data.csv", "a,b\n1,2\n".encode("utf-16"), f"not UTF-8, byte 0xff at position 0; {ICONV.format('UTF-16')}"),
        ("data.csv", b"a,b\n1,2\n3\n", "line 3 has 1 fields, the header has 2"),
        ("data.csv", b"a,b\n1,2\n\n3,4,5\n", "line 4 has 3 fields, the header has 2"),
        ("data.csv", b'a,b\n1,2\n3,"4\n5,6\n', "cannot be read as CSV, line 3: a quotation mark is not closed"),
        ("data.csv", b"a,b\n1,\x002\n", "not a text file, byte 0x00 at position 6"),
        ("data.csv", b"a,b\n1," + 200_000 * b"2", "cannot be read as CSV, line 2: field larger than field limit"),
        ("data.csv", b"a,b,a,b,c\n1,2,3,4,5\n", "column names must be unique, got 'a', 'b' more than once"),
        ("data.csv", b",a\n0,1\n", "column 1 has no name; name it, or, if it is a row index, write the table without"),
        ("data.csv", b"a\n1\n\n2\n", "line 3 is blank; write NA for a missing value in a single column"),
        ("data.parquet", b"a,b\n1,2\n", "cannot be read as Parquet: Parquet magic bytes not found in footer"),
    ],
)
def test_files_that_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(TableError, match=f"^{re.escape(f'{path}: {message}')}"):
        read_table(path)


LARGE = [2**60 + 1, 2**60 + 2, 2**60 + 3]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (LARGE, LARGE),
        (pd.array([*LARGE[:2], None], dtype="Int64"), [*LARGE[:2], None]),
        (np.array([2**64 - 1, 2**64 - 2, 1], dtype=np.uint64), [2**64 - 1, 2**64 - 2, 1]),
        ([Decimal(2**60 + 1), None, Decimal(1)], [2**60 + 1, None, 1]),
        (pd.Categorical([*LARGE[:2], None]), [*LARGE[:2], None]),
        (pd.Categorical(["a", "b ", "b"]), ["a", "b", "b"]),
        (["F", "\u00a0F ", " "], ["F", "F", None]),
        ([True, None, False], [True, None, False]),
    ],
)
def test_types_of_parquet(tmp_path, column, expected):
    pd.DataFrame({"e\u0301 ": column}).to_parquet(tmp_path / "a.parquet")
    frame = read_table(tmp_path / "a.parquet")
    assert list(frame) == ["é"]
    assert frame["é"].astype(object).where(frame["é"].notna(), None).tolist() == expected


def test_an_index_of_parquet_is_a_column(tmp_path):
    import pyarrow
    from pyarrow import parquet

    path, index = tmp_path / "a.parquet", pd.Index(["p", "q", "p"], name="patient")
    frame = pd.DataFrame({"x": [1, 2, 3]}, index=index)
    frame.to_parquet(path)
    assert read_table(path).to_dict("list") == {"x": [1, 2, 3], "patient": ["p", "q", "p"]}
    frame.rename_axis(index=None).to_parquet(path)
    with pytest.raises(TableError, match=r"'__index_level_0__' holds the index of a DataFrame; leave out with --drop"):
        learn_file(read_table(path))
    frame.reset_index(drop=True).to_parquet(path)
    assert list(read_table(path)) == ["x"]
    parquet.write_table(pyarrow.table([[1], [2]], names=["a", "a"]), path)
    with pytest.raises(TableError, match="column names must be unique, got 'a' more than once"):
        read_table(path)


@pytest.mark.parametrize("file", ["a.csv", "a.parquet"])
@pytest.mark.parametrize("last", [None, -1])
def test_features_that_floats_cannot_tell_apart(tmp_path, file, last):
    frame = pd.DataFrame({"id": pd.array([2**60 + k for k in range(9)] + [last], dtype="Int64"), "x": range(10)})
    write_table(frame, tmp_path / file)
    low = 2**60 if last is None else -1
    message = (
        f"t: column 'id' holds numbers too close together for their size, from {low} to {2**60 + 8}, which floating "
        "point cannot tell apart; subtract a constant from them, or leave it out with --drop id"
    )
    with pytest.raises(TableError, match=exactly(message)):
        learn_file(read_table(tmp_path / file), source="t")


@pytest.mark.parametrize(
    ("values", "lost"),
    [
        (["10000000000000000.1", "10000000000000000.2"], True),
        ([str(2**64 + 1), str(2**64 + 2), ""], True),
        ([str(2**63), "-1"], False),
        (["9" * 23, "1"], False),
        ([str(1_700_000_000_000_000_001 + 10**9 * k) for k in range(9)], False),  # times, in nanoseconds
        (["0.1", "0.10"], False),
        (["0.1", "0.2", "0.3"], False),
    ],
)
def test_numbers_of_a_text_file_that_floats_cannot_tell_apart(tmp_path, values, lost):
    (tmp_path / "a.csv").write_text("a,b\n" + "".join(f"{value},{k}\n" for k, value in enumerate(values)))
    assert (lost_in_floats(read_table(tmp_path / "a.csv")["a"]) is not None) == lost


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" a b\t\n", "a b"),
        ("\u00a0\u3000a\u00a0b\u2009", "a b"),
        ("cafe\u0301", "caf\u00e9"),
        ("\ufeffa\u200bb\u200d", "ab"),
        ("a\u200db", "a\u200db"),  # inside a word a joiner is part of the script
        ("a\r\nb\rc", "a\nb\nc"),
        ("\u200c \u200d", ""),
        ("\uff21\u2212\uff11", "A-1"),  # full width, minus sign
    ],
)
def test_the_normal_form_of_texts(text, expected):
    assert normal_text(text) == expected == normal_text(expected)


def test_names_are_exact():
    values = [2**60 + 1, np.int64(2**60 + 1), np.uint64(2**64 - 1), Decimal("1.50"), Decimal(7), 1.0, np.float32(0.5)]
    assert [label_text(value) for value in values] == [
        *(str(2**60 + 1), str(2**60 + 1), str(2**64 - 1), "1.5", "7", "1", "0.5")
    ]
    assert label_text(np.inf) == "inf" and label_text(np.True_) == "True"


def test_parquet_without_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs pyarrow.*pip install 'moreauc\[parquet\]'"):
        read_table(tmp_path / "data.parquet")


@pytest.mark.parametrize(
    ("values", "positive", "expected", "reason"),
    [
        ([0, 1, 1], None, "1", "of 0 and 1, 67% of all; --positive 0 finds the rarer one"),
        ([1, -1, 1], None, "1", "of -1 and 1, 67% of all; --positive -1 finds the rarer one"),
        ([True, True, False], None, "True", "of False and True, 67% of all; --positive False finds the rarer one"),
        (["ill", "well", "well"], None, "ill", "the rarer of two values"),
        ([2, 1, 2], None, "1", "the rarer of two values"),
        (["ill", "well", "well"], "well", "well", "as asked for"),
        (["ill ", "well", "\u00a0well"], " ill", "ill", "as asked for"),
        ([2**60 + 1, 2**60 + 2, 2**60 + 2], None, str(2**60 + 1), "the rarer of two values"),
        ([0.5, 1.5, 1.5], "1.5", "1.5", "as asked for"),
    ],
)
def test_the_positive_class(values, positive, expected, reason):
    frame = pd.DataFrame({"x": [1, 2, 3], "y": values})
    features, labels, target = split_target(frame, "y", positive=positive)
    assert list(features) == ["x"]
    assert (target.positive, target.reason) == (expected, reason)
    assert labels.tolist() == [int(label_text(value) == expected) for value in values]
    assert {target.positive, target.negative} == {label_text(value) for value in values}


@pytest.mark.parametrize(
    ("target", "values", "positive", "message"),
    [
        ("Y", [0, 1, 1], None, "no target column 'Y'; did you mean 'y'?"),
        ("result", [0, 1, 1], None, "no target column 'result'; columns are 'age', 'y'"),
        ("y", [0, None, None], None, "target 'y' has 2 missing values, the first in row 2; remove such rows"),
        ("y", [1, 1, 1], None, "target 'y' must have two classes, got one class only: 1 (3 rows)"),
        (
            "y",
            list("abbccc"),
            None,
            "target 'y' must have two classes, got 3 classes: c (3 rows), b (2 rows), a (1 rows)",
        ),
        (
            "y",
            np.repeat([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]),
            None,
            "target 'y' must have two classes, got 6 classes: 6 (6 rows), 5 (5 rows), 4 (4 rows), 3 (3 rows), "
            "2 (2 rows) and 1 more",
        ),
        ("y", ["a", "b", "b"], "c", "target 'y' has no class 'c' to be the positive one, its classes are 'a', 'b'"),
        ("y", ["a", "b"], None, "target 'y' has as many a as b; say which is the positive class with --positive"),
    ],
)
def test_targets_that_are_refused(target, values, positive, message):
    frame = pd.DataFrame({"age": range(len(values)), "y": values})
    with pytest.raises(TableError, match=exactly(f"t: {message}")):
        split_target(frame, target, positive=positive, source="t")


def test_the_target_of_another_table():
    target = Target("y", "ill", "well", "")
    features, labels = match_target(pd.DataFrame({"y": ["well", "ill"], "x": [1, 2]}), target)
    assert labels.tolist() == [0, 1] and list(features) == ["x"]
    for values, message in [
        (["well", "ill", "Ill"], "t: target 'y' must be 'well' or 'ill', got 'Ill' in row 3"),
        (["well", "well"], "t: there are no positives (y = ill) among its 2 rows"),
        (["ill"], "t: there are no negatives (y = well) among its 1 rows"),
        ([None, "ill"], "t: target 'y' has 1 missing values, the first in row 1; remove such rows"),
    ]:
        with pytest.raises(TableError, match=exactly(message)):
            match_target(pd.DataFrame({"y": values}), target, source="t")


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["01", "1", "1"], {"01", "1"}),
        (["+1", "-1", "1"], {"1", "-1"}),
        (["1.0", "0", "1"], {"1", "0"}),
        (["TRUE", "false", "True"], {"True", "False"}),
        (["-0", "0.0", "1."], {"0", "1"}),
    ],
)
def test_classes_are_named_by_their_text(tmp_path, values, classes):
    (tmp_path / "a.csv").write_text("y,x\n" + "".join(f"{value},1\n" for value in values))
    target = split_target(read_texts(tmp_path / "a.csv"), "y ")[2]
    assert {target.positive, target.negative} == classes
    assert target.positive == "1" or classes in ({"01", "1"}, {"True", "False"})


def test_names_of_a_tsv_may_have_commas(tmp_path):
    (tmp_path / "a.tsv").write_text("dose, mg, daily\tsize (a, b)\n1\t2\n")
    assert list(read_table(tmp_path / "a.tsv")) == ["dose, mg, daily", "size (a, b)"]
    (tmp_path / "a.tsv").write_text("a,b\n1,2\n")
    assert list(read_table(tmp_path / "a.tsv")) == ["a", "b"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["1", "n.d.", "1"], "t: column 'y' mixes numbers and text: 1 in row 1, 'n.d.' in row 2; make it one kind"),
        (["1,0", "0,0", "1,0"], "t: target 'y' holds numbers with a unit, a comma or marks between thousands, '1,0'"),
        (["2024-01-01", "2024-01-02"], "t: target 'y' holds dates or times, '2024-01-01' in row 1; turn them"),
    ],
)
def test_damaged_quantities_are_no_classes(values, message):
    frame = pd.DataFrame({"y": values, "x": range(len(values))})
    message = f"^{re.escape(message)}.*, or name the positive one with --positive if these are classes$"
    with pytest.raises(TableError, match=message):
        split_target(frame, "y", source="t")
    assert split_target(frame, "y", positive=values[0])[1][0] == 1


def test_columns_to_learn_from():
    frame = pd.DataFrame(
        {
            "count": [1, 2, 3],
            "share": [0.5, None, 1.0],
            "flag": [True, False, True],
            "flag or not": [True, None, False],
            "nullable": pd.array([1, None, 2], dtype="Int64"),
            "digits": ["1", "2", None],
            "ward": ["A", None, "B"],
            "grade": pd.Categorical(["low", "high", "low"]),
            "there": ["x", None, "x"],
        }
    )
    frame["money"] = [Decimal("1.25"), None, Decimal(3)]
    frame["place"] = ["A", "A ", "\u00a0B"]
    columns = learn_file(frame)
    kinds = columns.schema.kinds
    assert columns.pop("money").tolist()[::2] == [1.25, 3.0] and kinds.pop("money") == "number"
    assert columns.pop("place").tolist() == ["A", "A", "B"] and kinds.pop("place") == "text"
    assert [name for name, kind in kinds.items() if kind == "text"] == ["ward", "grade", "there"]
    numbers = columns[[name for name, kind in kinds.items() if kind == "number"]]
    assert (numbers.dtypes == "float64").all()
    expected = [[1, 0.5, 1, 1, 1, 1], [2, None, 0, None, None, 2], [3, 1, 1, 0, 2, None]]
    np.testing.assert_array_equal(numbers.to_numpy(), np.array(expected, dtype=float))
    assert columns["ward"].isna().tolist() == [False, True, False]
    assert columns["grade"].tolist() == ["low", "high", "low"]


LEAVE = "leave it out with --drop a"
DROP = "; leave out with --drop a"
ONE_KIND = f"; make it one kind, or {LEAVE}"
AS_BEFORE = "; write its values as they were in training"
TIMES = f"; turn dates and times into numbers, such as days since one, or {LEAVE}"
FINITE = "; leave the field empty if the value is missing"
WRITTEN = "holds numbers with a unit, a comma or marks between thousands"
PLAIN = f"; write plain numbers, with a decimal point, or {LEAVE}"
DAYS = f"; turn them into numbers, such as days since one of them, write dates like 2024-12-31, or {LEAVE}"
COMMAS = ["0,5", "-1,25e-3", ",5", "1.234,5", "1,234", "+1,234,567.8", " 1,5"]
UNITS = [
    *("$1,200.50", "-$3", "$ -0.5", "1.200,50 €", "-3,5€", "12 %", "7%", "0,5 %", "CHF 1'200.50", "3 CHF", "US$ 6.5"),
    *("1 000", "12 000 000", "2\u202f500,5", "1\u2019000", "\u22121 500"),
]
DATES = ["2024-02-01", "2024/2/1", "1.2.2024", "02/01/2024", "2024-02-01T12:30:00Z", "2024-02-01 12:30"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 1], f"holds one value only{DROP}"),
        ([None, None], f"holds missing values only{DROP}"),
        ([f"p{k}" for k in range(20)], f"holds a different text in every row, as names of rows do{DROP}"),
        (["34", "x", "7"], f"mixes numbers and text: 34 in row 1, 'x' in row 2{ONE_KIND}"),
        ([None, "x", 7.5], f"mixes numbers and text: 7.5 in row 3, 'x' in row 2{ONE_KIND}"),
        (["x", [1]], f"must hold numbers or text, got list in row 2{ONE_KIND}"),
        ([1.0, -np.inf], f"must be finite, got -inf in row 2{FINITE}"),
        (["1", "inf"], f"must be finite, got inf in row 2{FINITE}"),
        ([datetime.time(12, 30), None], f"must hold numbers or text, got time in row 1{TIMES}"),
        (pd.to_timedelta([1, 2]), f"must hold numbers or text, got Timedelta in row 1{TIMES}"),
        *(([None, text, text, "7,25"], f"{WRITTEN}, {text!r} in row 2{PLAIN}") for text in COMMAS),
        *((["none", text], f"{WRITTEN}, {text!r} in row 2{PLAIN}") for text in [*COMMAS, *UNITS]),
        *(([None, text, text, "2024-1-31"], f"holds dates or times, {text!r} in row 2{DAYS}") for text in DATES),
    ],
)
def test_columns_that_are_refused(values, message):
    with pytest.raises(TableError, match=exactly(f"t: column 'a' {message}")):
        learn_file(pd.DataFrame({"a": values}), source="t")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "there is no column besides the target"),
        ({"a": [1, 1], "b": [1, 2], "c d": ["x", "x"]}, "columns 'a', 'c d' hold .* with --drop a --drop 'c d'"),
        ({name: [1, 1] for name in "abcdefg"}, "columns 'a', .* 'e' and 2 more hold .* --drop d --drop e ..."),
    ],
)
def test_several_columns_that_are_refused(columns, message):
    with pytest.raises(TableError, match=f"^t: {message}$"):
        learn_file(pd.DataFrame(columns), source="t")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["31.12.24", "1.1.25"], "holds dates or times, '31.12.24' in row 1; turn them into numbers, such as days"),
        (["31/12/24", "x", "1/1/25"], "holds dates or times, '31/12/24' in row 1, beside 'x' in row 2; turn them"),
        (["12 Jan 2024", "3. Feb 24"], "holds dates or times, '12 Jan 2024' in row 1; turn them"),
        (["Jan 12, 2024", "May 2024"], "holds dates or times, 'Jan 12, 2024' in row 1; turn them"),
        (["Mon, 31. 12. 2024", "2024-01"], "holds dates or times, 'Mon, 31. 12. 2024' in row 1; turn them"),
        (["12:30", "9:05 pm"], "holds dates or times, '12:30' in row 1; turn them"),
        ([f"({k}.50)" for k in range(20)], "holds 20 different texts in 20 rows, such as '(0.50)', too many to learn"),
        ([f"{k % 12}.5 mg" for k in range(20)], "holds 12 different texts in 20 rows, such as '0.5 mg', too many to"),
    ],
)
def test_dates_and_odd_texts_that_are_refused(texts, message):
    with pytest.raises(TableError, match=f"^t: column 'a' {re.escape(message)}.*, or leave it out with --drop a$"):
        learn_file(pd.DataFrame({"a": texts}), source="t")


@pytest.mark.parametrize(
    "texts",
    [
        ["123 45", "678 90"],
        ["123 45 €", "-$-3"],
        ["5 mg", "10 mg"],
        ["Q1 24", "Q2 24"],
        ["1.2.3", "1.2.4"],
        ["<9 %", ">9 %"],
        ["5'11", "6'2"],
        ["1,2,3", "0,5 mg", "a,5", "1-2-3", "10.1.20", "2024-01", "2024-02-01", "1,", "2024-02-01 or so"],
        [f"p{k}" for k in range(19)],  # one more would be names of rows
    ],
)
def test_codes_are_levels(texts):
    columns = learn_file(pd.DataFrame({"a": texts}))
    assert columns.schema.kinds == {"a": "text"} and columns["a"].tolist() == texts


def test_columns_to_doubt():
    order = np.random.default_rng(0).permutation(60)
    frame = pd.DataFrame(
        {
            "case": np.arange(60.0)[::-1],
            "nearly": np.where(np.arange(60) == 3, 5.5 * 2, np.arange(60.0) * 3),
            "PatientID": order.astype(float),
            "visit_id": (order // 1.5).round(),
            "room_id": order // 2.5,
            "size": order.astype(float),
            "width": np.arange(60) / 7,
            "town": [f"t{k // 2}" for k in range(60)],
            "ward": ["A", "B", "C"] * 20,
            "time": [f"{k % 20}h 5m" for k in range(60)],
            "gap": [None, *range(59)],
        }
    )
    lines = learn_frame("t", frame).schema.doubts
    assert [line.split()[1] for line in lines] == [
        "'case'",
        "'nearly'",
        "'PatientID'",
        "'visit_id'",
        "'town'",
        "'time'",
    ]
    assert "30 of them, in 100% of the rows, are too rare to be told apart" in lines[-2]
    assert "holds 20 different texts that begin with a number, such as '0h 5m'; if they are quantities" in lines[-1]
    assert not learn_frame("t", frame[:19]).schema.doubts


@pytest.mark.parametrize("spelling", [str, str.upper, str.lower])
def test_truth_values_among_other_words_are_known_without_these(tmp_path, spelling):
    yes, no = spelling("True"), spelling("False")
    path = tmp_path / "t.csv"
    path.write_text(f"a,b\n{yes},1\n{no},2\nunknown,3\n,4\n")
    columns = learn_file(read_table(path))
    assert columns.schema.kinds == {"a": "text", "b": "number"}
    assert columns["a"].tolist()[:3] == ["True", "False", "unknown"]
    for rows, expected in (
        [(yes, no), ["True", "False"]],
        [(yes, ""), ["True"]],
        [(no, "unknown"), ["False", "unknown"]],
    ):
        path.write_text("a,b\n" + "".join(f"{row},1\n" for row in rows))
        column = columns.schema.match(read_table(path), source="t")["a"]
        assert column.dropna().tolist() == expected and len(column) == 2


def test_rows_may_have_any_labels():
    texts = {"a": ["1", None, "3"], "b": ["true", None, "FALSE"], "c": ["1", "2", None]}
    columns = learn_file(pd.DataFrame(texts, index=[0, 0, 1]))
    assert columns.schema.kinds == dict.fromkeys("abc", "number") and columns.index.tolist() == [0, 0, 1]
    np.testing.assert_array_equal(columns.to_numpy(), [[1, 1, 1], [np.nan, np.nan, 2], [3, 0, np.nan]])


def test_columns_of_another_table():
    frame = pd.DataFrame({"more": [1, 2, 3], "ward": ["A", "B", None], "age": [3, 4, None]})
    columns = SCHEMA.match(frame, source="t")
    assert list(columns) == ["age", "ward"]
    assert columns["ward"].tolist()[:2] == ["A", "B"] and columns["ward"].isna().tolist() == [False, False, True]
    empty = SCHEMA.match(pd.DataFrame({"age": [None], "ward": [None]}), source="t")
    assert empty["age"].dtype == float and empty["ward"].dtype == object


@pytest.mark.parametrize(
    ("age", "ward", "message"),
    [
        (1, None, "column 'ward' missing, on which the model was trained"),
        (None, None, "columns 'age', 'ward' missing, on which the model was trained"),
        ([None, "old"], "A", "column 'age' must hold numbers, as in training, got 'old' in row 2"),
        (
            ["1", "old"],
            "A",
            f"column 'age' mixes numbers and text: 1 in row 1, 'old' in row 2; make it one kind, or {AS_BEFORE[2:]}",
        ),
        (["12 %", "7 %"], "A", "column 'age' must hold numbers, as in training, got '12 %' in row 1"),
        ([np.inf, 1], "A", f"column 'age' must be finite, got inf in row 1{FINITE}"),
        (
            1,
            [None, 2.5],
            f"column 'ward' must hold text, as in training ('A', 'B'), got the number 2.5 in row 2{AS_BEFORE}",
        ),
    ],
)
def test_columns_of_another_table_that_are_refused(age, ward, message):
    columns = {name: values for name, values in (("age", age), ("ward", ward)) if values is not None}
    with pytest.raises(TableError, match=exactly(f"t: {message}")):
        SCHEMA.match(pd.DataFrame({"x": [1, 2]}).assign(**columns), source="t")


def test_columns_to_drop():
    frame = pd.DataFrame({"age": [1], "name": ["x"], "ward": ["A"]})
    assert list(drop_columns(frame, ["name", "age"])) == ["ward"]
    with pytest.raises(TableError, match=exactly("t: no column to drop 'nam'; did you mean 'name'?")):
        drop_columns(frame, ["nam"], source="t")


@pytest.mark.parametrize(
    ("name", "share"),
    [("digits", 0.04), ("breast_cancer", 0.05), ("diabetes", 0.1), ("fraud", 0.02), ("fraud_test", 0.02)],
)
def test_examples(name, share):
    X, y, description = load_example(name)
    assert len(X) == len(y) and set(y.tolist()) == {0, 1}
    assert y.mean() == pytest.approx(share, abs=0.003)
    assert f"{y.sum()} of" in description
    assert learn_file(X).shape == X.shape  # ready to learn from
    again = load_example(name)
    pd.testing.assert_frame_equal(X, again[0])
    np.testing.assert_array_equal(y, again[1])


def test_payments_are_of_mixed_types_and_follow_the_seed():
    X, y = fraud_table(samples=5000)
    missing = X.isna().mean()
    assert missing[missing > 0.0].to_dict() == pytest.approx({"account_age_days": 0.03, "distance_km": 0.08}, abs=0.01)
    assert X["amount"].max() > 50 * X["amount"].median()  # a heavy tail
    assert X["time"].dtype.kind == "M" and (X["time"].dt.hour == X["hour"]).all()
    assert X["category"].nunique() == 12 and X["country"].nunique() == 7 and set(X["new_device"]) == {"yes", "no"}
    np.testing.assert_array_equal(y, fraud_table(samples=5000)[1])
    assert (y != fraud_table(samples=5000, seed=1)[1]).any()
    assert fraud_table(samples=5000, positive_rate=0.3)[1].mean() == pytest.approx(0.3, abs=0.03)


def test_logistic_regression_is_good_on_payments_and_not_perfect():
    X, y, _ = load_example("fraud")
    model = make_pipeline(TableEncoder(), LogisticRegression(max_iter=500)).fit(X, y)
    assert 0.84 < roc_auc_score(y, model.decision_function(X)) < 0.92


def test_examples_that_cannot_be_made():
    for options in ({"samples": 99}, {"positive_rate": 0.0}, {"seed": -1}):
        with pytest.raises(ValueError, match=f"fraud_table: {next(iter(options))} must be"):
            fraud_table(**options)
    assert list(EXAMPLES) == ["digits", "breast_cancer", "diabetes", "fraud", "fraud_test"]
    with pytest.raises(ValueError, match="name must be one of digits, breast_cancer, diabetes, fraud, fraud_test, got"):
        load_example("iris")


def test_a_command_looks_at_each_column_once(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"x": random.normal(size=120), "town": random.choice(["a", "b"], 120), "y": [0, 0, 1] * 40})
    write_table(frame, tmp_path / "t.csv")
    calls = {"_learn_written": 2, "_kind": 0, "doubt_numbers": 1, "doubt_texts": 1}
    for name in calls:
        monkeypatch.setattr(schema, name, Mock(wraps=getattr(schema, name)))
    words = ["fit", tmp_path / "t.csv", "--target", "y", "--model", "linear", "--out", tmp_path / "run"]
    assert CliRunner().invoke(app, [str(word) for word in words]).exit_code == 0
    assert {name: getattr(schema, name).call_count for name in calls} == calls
