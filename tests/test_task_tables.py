"""Tables of rows, bags and groups: what is read from their columns, and which rows are tested on."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from moreauc.app.cli.options import FitOptions
from moreauc.app.tables.bags import BagTable, BagTableTask, find_bags
from moreauc.app.tables.base import Split, named_columns, read_split
from moreauc.app.tables.files import read_texts, write_table
from moreauc.app.tables.groups import (
    GroupedTable,
    GroupEvaluation,
    GroupTableTask,
    find_groups,
    find_target,
    match_values,
    untested,
)
from moreauc.app.tables.rows import RowTableTask, draw_test_rows
from moreauc.app.tables.targets import Target
from moreauc.data.schema import Column, Schema
from moreauc.data.tables import TableError
from moreauc.data.texts import Kind
from moreauc.metrics import group_table
from moreauc.metrics.bootstrap import Resamples
from tests.cli_cases import bags_table, groups_table, rows_table


def test_the_test_rows_are_a_share_of_either_class():
    labels, hashes = (np.arange(100) % 10 == 0).astype(int), np.arange(100, dtype=np.uint64)
    rows = draw_test_rows(labels, 0.2, 1, hashes)
    assert len(rows) == len(set(rows.tolist())) == 20 and labels[rows].sum() == 2
    assert (rows == draw_test_rows(labels, 0.2, 1, hashes)).all()
    assert (rows != draw_test_rows(labels, 0.2, 2, hashes)).any()


def test_equal_rows_and_bags_are_on_one_side(tmp_path):
    frame, bags = rows_table(), bags_table(40)
    pd.concat([frame, frame[:100]]).sample(frac=1.0, random_state=0).to_csv(tmp_path / "rows.csv", index=False)
    copy = bags.assign(patient="copy of " + bags["patient"])
    pd.concat([bags, copy[::-1]]).to_csv(tmp_path / "bags.csv", index=False)
    split = read_split(RowTableTask, FitOptions(data=tmp_path / "rows.csv", target="state", out=Path("unused")))
    assert not len(split.train.features.merge(split.test.features)) and abs(len(split.test) - 85) <= 1
    options = FitOptions(data=tmp_path / "bags.csv", bags="patient", target="state", out=Path("unused"))
    split = read_split(BagTableTask, options)
    trained, tested = ({name.removeprefix("copy of ") for name in part.names} for part in (split.train, split.test))
    assert not trained & tested and abs(len(split.test) - 20) <= 2


# Bags


def test_numbers_name_bags_as_texts_do():
    frame = pd.DataFrame({"bag": [2.0, 1.0, 2.0], "x": [1.0, 2.0, 3.0], "y": [1, 0, 1]})
    task = BagTableTask(Schema((Column("x", Kind.NUMBER),)), Target("y", "1", "0", ""), 0.0, 1.0, "bag")
    table = task.match(frame, source="t")
    assert (table.codes.tolist(), table.names, table.targets.tolist()) == ([0, 1, 0], ["2", "1"], [1, 0])
    table = table.part(np.array([1]))
    assert (table.names, table.targets.tolist(), table.rows[0].tolist()) == (["1"], [0], [2])


def test_rows_of_bags():
    codes = np.random.default_rng(0).permutation(np.repeat(np.arange(7), [1, 5, 2, 9, 1, 3, 4]))
    frame = pd.DataFrame({"x": np.arange(25.0)}, index=np.arange(25) * 2)
    table = BagTable(frame, np.zeros(7, dtype=int), codes, list("abcdefg"))
    for bag in range(7):
        assert table.rows[bag].tolist() == [2 * row + 1 for row in range(25) if codes[row] == bag]


NAMES = ["007", "7", "007", " 07", "7", "7"]


@pytest.mark.parametrize(
    ("file", "separator", "mark"),
    [("a.csv", ";", b""), ("a.CSV", "\t", b"\xef\xbb\xbf"), ("a.tsv", "\t", b"\r\n\n"), ("a.tsv", ",", b"")],
)
def test_names_of_bags_are_read_as_text(tmp_path, file, separator, mark):
    lines = ["self,x,size, y ", *(f'{name},{k}.5,"big, or {k}",{k % 2}' for k, name in enumerate(NAMES))]
    if separator != ",":
        lines = [line.replace(", or", "/ or").replace(",", separator) for line in lines]
    (tmp_path / file).write_bytes(mark + "\r\n".join(lines).encode())
    frame = read_texts(tmp_path / file)
    assert list(frame) == ["self", "x", "size", "y"]
    assert frame["self"].tolist() == ["007", "7", "007", "07", "7", "7"]
    assert frame["x"].tolist() == [f"{k}.5" for k in range(6)] and frame["y"].tolist() == ["0", "1"] * 3
    assert find_bags(frame, "self", "t")[1] == ["007", "7", "07"]


@pytest.mark.parametrize("names", [["True", "TRUE"], ["1", "1.0"], ["1e2", "100"], ["9" * 23, "9" * 22 + "8"]])
def test_what_looks_the_same_as_a_number_is_another_name(tmp_path, names):
    (tmp_path / "a.csv").write_text(f"bag,x\n{names[0]},1\n{names[1]},2\n")
    assert find_bags(read_texts(tmp_path / "a.csv"), "bag", "t")[1] == names


def test_missing_names_of_bags_stay_missing(tmp_path):
    (tmp_path / "a.csv").write_text("bag,x\n1,1\nNA,2\n,3\n")
    with pytest.raises(TableError, match=r"t: bag column 'bag' has 2 missing values, the first in row 2"):
        find_bags(read_texts(tmp_path / "a.csv"), "bag", "t")


def test_parquet_keeps_its_types(tmp_path):
    for values, expected in (
        (["007", "7"], ["007", "7"]),
        ([7.0, 8.0], ["7", "8"]),
        ([2**53, 2**53 + 1], [str(2**53), str(2**53 + 1)]),
        ([True, False], ["True", "False"]),
        (np.array([2**64 - 1, 2**64 - 2], dtype=np.uint64), [str(2**64 - 1), str(2**64 - 2)]),
        ([Decimal(2**60), Decimal(2**60 + 1)], [str(2**60), str(2**60 + 1)]),
    ):
        pd.DataFrame({"bag": values, "x": [1, 2]}).to_parquet(tmp_path / "a.parquet")
        assert find_bags(read_texts(tmp_path / "a.parquet"), "bag", "t")[1] == expected


# Groups


def test_of_many_groups_that_are_not_tested_some_are_named():
    groups = np.array(["large"] * 6 + [f"g{number:02}" for number in range(30)], dtype=object)
    rows, task = (
        GroupedTable(pd.DataFrame({"x": range(36)}), np.zeros(36), groups),
        GroupTableTask(Schema(), None, ("name",)),
    )
    split = Split(task, rows.part(np.arange(2, 36)), rows.part(np.arange(2)))
    assert untested(split) == {f"g{number:02}": 1 for number in range(30)}
    note = task.test_note(split)
    assert note.startswith("30 of 31 groups have too few rows") and note.count("(1 row)") == 20
    assert note.endswith("g19 (1 row) and 10 more, which report.json names.")


def test_targets_are_told_apart():
    frame = groups_table().assign(
        grade=lambda table: np.digitize(table["age"], [-0.5, 0.5]),
        one=1,
        flag=lambda table: table["sex"] == 1,
        few=lambda table: table["grade"] / 2,
    )
    tasks = {name: find_target(frame, name, "auto", source="t")[0].task for name in ("sex", "flag", "few", "grade")}
    assert tasks == dict.fromkeys(("sex", "flag", "grade"), "classification") | {"few": "regression"}
    assert find_target(frame, "grade", "regression", source="t")[0].reason == "as asked for"
    assert find_target(frame, "flag", "auto", source="t")[0].classes == ("False", "True")
    with pytest.raises(TableError, match="t: target 'one' must have at least two classes, got one class only: 1"):
        find_target(frame, "one", "auto", source="t")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["0,5", "12,25", "7,0"], "target 'y' holds numbers with a unit, a comma or marks"),
        (["0.5", "n.d.", "7"], "column 'y' mixes numbers and text: 0.5 in row 1, 'n.d.' in row 2"),
        (["31.12.24", "1.1.25"], "target 'y' holds dates or times, '31.12.24' in row 1"),
        ([f"{k} kg" for k in range(20)], "target 'y' holds 20 different texts that begin with a number"),
        ([f"p{k}" for k in range(20)], "target 'y' holds a different text in every row"),
        ([str(2**60 + k) for k in range(12)], "target 'y' holds numbers too close together for their size"),
    ],
)
def test_damaged_quantities_are_no_classes(values, message):
    frame = pd.DataFrame({"y": values})
    with pytest.raises(TableError, match=f"^t: {re.escape(message)}.*, or give --task classification"):
        find_target(frame, "y", "auto", source="t")
    assert find_target(frame, "y", "classification", source="t")[0].classes == tuple(sorted(values))


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["01", "1", "2"], ("01", "1", "2")),
        (["1.0", "1", "2"], ("1", "2")),
        (["TRUE", "false", "True"], ("False", "True")),
        ([Decimal(1), Decimal(2), Decimal(3)], ("1", "2", "3")),
        (["a ", "a", "\u00a0b"], ("a", "b")),
        (pd.Categorical(["a", "b", "a"], categories=["a", "b", "c"]), ("a", "b")),
        (["<=50K", ">50K"], ("<=50K", ">50K")),
        (["0-17", "18-64", "65+"], ("0-17", "18-64", "65+")),
        (["H1", "H2", "1.2.3"], ("1.2.3", "H1", "H2")),
    ],
)
def test_classes_are_named_by_their_text(values, classes):
    target, texts = find_target(pd.DataFrame({"y": values}), "y", "auto", source="t")
    assert target.classes == classes and set(texts) == set(classes)
    assert match_values(pd.DataFrame({"y": values}), target, source="t").tolist() == texts.tolist()


LARGE = [2**60 + k for k in range(5)]


def test_names_of_groups():
    frame = pd.DataFrame({"a,b": ["x", "y"], "a": [1.0, 2.0], "b": [True, False]})
    assert named_columns("--groups", "a,b", frame) == ["a,b"]
    assert named_columns("--groups", "a, b ", frame.iloc[:, 1:]) == ["a", "b"]
    assert find_groups(frame, ["a", "b"], source="t").tolist() == ["1, True", "2, False"]


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["01", "1", "2"], ["01", "1", "2"]),
        (["1.1", "1.10", "2"], ["1.1", "1.10", "2"]),
        (["1.0", "2.0", "3.0"], ["1", "2", "3"]),  # so pandas writes 1, 2, 3 where there was a gap
        (["1.0", "1", "2"], ["1.0", "1", "2"]),
        (["TRUE", "false", "TRUE"], ["True", "False"]),
        ([*map(str, LARGE)], [*map(str, LARGE)]),
        (["F", "F ", "\u3000F", "Jose\u0301", "Jos\u00e9\u200b"], ["F", "Jos\u00e9"]),
    ],
)
@pytest.mark.parametrize("file", ["a.csv", "a.parquet"])
def test_names_of_groups_are_read_as_text(texts, names, file, tmp_path):
    write_table(pd.DataFrame({"site ": texts, "x": range(len(texts))}), tmp_path / file)
    assert list(dict.fromkeys(find_groups(read_texts(tmp_path / file), ["site"], source="t").tolist())) == names


def test_of_many_groups_the_worst_are_printed():
    losses = np.arange(50.0)
    table = group_table(groups=np.arange(50), losses=losses, names=[f"g{k}" for k in range(50)])
    evaluation = GroupEvaluation(table, 1, 0.5, "R2", title="SONX", resamples=Resamples(49.0, losses))
    title, columns, cells = GroupTableTask(Schema(), None, ()).printed("", [evaluation])[1]
    assert title == "Groups by SONX, the worst first (20 of 50)" and columns == ("group", "rows", "share", "loss")
    assert cells[0] == ("g49", "1", "2.00%", "49.0000") and len(cells) == 20
