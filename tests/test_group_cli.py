"""`moreauc fit --groups` and what comes after: groups by columns, classes or numbers, and clear refusals."""

from __future__ import annotations

import html
import json
import re
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from moreauc.cli import app
from moreauc.cli.saved import load_model
from moreauc.data.tables import TableError, write_table
from moreauc.methods import METHODS
from moreauc.metrics import group_table
from moreauc.tasks.group_tables import (
    GroupedTable,
    GroupEvaluation,
    GroupTableTask,
    find_groups,
    find_target,
    match_values,
    split_names,
    untested,
)
from moreauc.tasks.tables import Split

RUNNER = CliRunner()
FILES = ["log.txt", "model.joblib", "report.html", "report.json"]
QUICK = ["--epochs", "4", "--lr", "0.02"]


def make_table(rows: int = 240, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(random.normal(size=(rows, 3)), columns=["size", "shape", "gap"])
    frame["stain"] = random.choice(["A", "B"], size=rows)
    frame["race"] = np.array(["x", "y", "z"])[np.arange(rows) % 3]
    frame["sex"] = np.arange(rows) % 2
    frame["state"] = np.where(frame["size"] + 0.3 * random.normal(size=rows) > 0, "ill", "well")
    frame["grade"] = np.digitize(frame["size"], [-0.5, 0.5])
    frame["cost"] = 100.0 + 20.0 * frame["size"]
    frame.loc[::9, "gap"] = np.nan
    return frame


def call(*words: object):
    return RUNNER.invoke(app, [str(word) for word in words])


TARGETS = {"state": "classification", "grade": "classification", "cost": "regression"}
REASONS = {
    "state": "the target is no number",
    "grade": "the target has 3 different whole numbers",
    "cost": "the target has 240 different numbers",
}


def others(target: str) -> list[str]:
    return [word for name in TARGETS if name != target for word in ("--drop", name)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a table and a run for each kind of target."""
    folder = tmp_path_factory.mktemp("groups")
    make_table().to_csv(folder / "data.csv", index=False)
    results = {}
    for target in TARGETS:
        words = ["fit", folder / "data.csv", "--groups", "race,sex", "--target", target, "--out", folder / target]
        results[target] = call(*words, "--top-k", "2", *others(target), *QUICK)
        assert results[target].exit_code == 0, results[target].output
    return folder, results


@pytest.mark.parametrize("target", TARGETS)
class TestRun:
    def test_fit_prints_tables_and_leaves_four_files(self, trained, target):
        folder, results = trained
        result = results[target]
        lines = result.stdout.splitlines()
        assert result.stderr == "" and lines[0] == f"Task: {TARGETS[target]} of {target} ({REASONS[target]})"
        assert lines[1].strip() == "Test rows: 60" and lines[-1] == f"Report: {folder / target / 'report.html'}"
        assert "Groups by SONX, the worst first" in result.stdout and "y, 1" in result.stdout
        assert sorted(path.name for path in (folder / target).iterdir()) == FILES
        log = (folder / target / "log.txt").read_text()
        assert "180 rows to train on, 60 to test on" in log and log.count("train epoch") == 8

    def test_the_report_tells_how_each_group_fares(self, trained, target):
        folder, _ = trained
        report = json.loads((folder / target / "report.json").read_text())
        data, (first, second) = report["data"], report["test"]
        assert data["groups"] == ["race", "sex"] and data["target"]["task"] == TARGETS[target]
        assert list(data["columns"]) == ["size", "shape", "gap", "stain"]  # neither targets nor groups
        assert data["test"] == {"rows": 60, "groups": 6, "smallest": 10, "largest": 10}
        assert [first["title"], second["title"]] == [METHODS["groups"][name].title for name in ("sonx", "erm")]
        losses = [row["loss"] for row in first["groups"]]
        assert losses == sorted(losses, reverse=True) and len(losses) == 6
        assert first["worst_loss"] == losses[0]
        assert first["top_k_loss"] == pytest.approx(np.mean(losses[:2]), rel=1e-4)
        assert first["mean_loss"] == pytest.approx(np.mean(losses), rel=1e-4)
        assert first["gap_loss"] == pytest.approx(losses[0] - losses[-1], rel=1e-3)
        assert ("worst_accuracy" in first) == (target != "cost") and ("R2" in first) == (target == "cost")
        assert report["settings"]["top_k"] == 2 and report["threshold"] is not None
        assert data["untested"] == {"note": None, "groups": []}
        page = (folder / target / "report.html").read_text()
        assert "not tested" not in page and "not tested" not in trained[1][target].stdout
        for heading in ("Result", "Groups", "Training", "Data", "Settings"):
            assert f"<h2>{heading}</h2>" in page
        assert page.count("data:image/png") == 3 and "loss by ERM" in page and "not learnt from" in page

    def test_evaluate_needs_groups_and_target(self, trained, target, tmp_path):
        folder, _ = trained
        result = call("evaluate", folder / target, folder / "data.csv", "--out", tmp_path / "e")
        assert result.exit_code == 0, result.output
        assert "data.csv: 240 rows" in result.stdout and f"Report: {tmp_path / 'e'}" in result.stdout
        saved, frame = load_model(folder / target), make_table()
        assert isinstance(saved.task, GroupTableTask)
        values = frame[target].astype(str).to_numpy(dtype=object) if target != "cost" else frame[target].to_numpy()
        names = frame["race"] + ", " + frame["sex"].astype(str)
        table = saved.model.group_score(frame[list(saved.task.kinds)], values, names)
        report = json.loads((tmp_path / "e" / "report.json").read_text())
        assert [row["name"] for row in report["test"][0]["groups"]] == list(table.name)
        assert [row["loss"] for row in report["test"][0]["groups"]] == pytest.approx(table.loss, rel=1e-4)
        plain = call("evaluate", folder / target, folder / "data.csv")
        assert plain.exit_code == 0 and f"{table.loss[0]:.4f}" in plain.stdout
        for column, word in (("race", "no group column 'race'"), (target, f"no target column '{target}'")):
            frame.drop(columns=column).to_csv(tmp_path / "less.csv", index=False)
            bad = call("evaluate", folder / target, tmp_path / "less.csv")
            assert bad.exit_code == 2 and word in bad.stderr

    def test_predict_needs_neither(self, trained, target, tmp_path):
        folder, _ = trained
        frame = make_table().drop(columns=["race", "sex", *TARGETS])
        frame.to_csv(tmp_path / "bare.csv", index=False)
        result = call("predict", folder / target, tmp_path / "bare.csv", "--out", tmp_path / "scores.csv")
        assert result.exit_code == 0, result.output
        scores, model = pd.read_csv(tmp_path / "scores.csv"), load_model(folder / target).model
        assert scores["row"].tolist() == list(range(1, 241))
        if target == "cost":
            assert list(scores) == ["row", "prediction"] and "mean prediction of cost" in result.stdout
            assert scores["prediction"].to_numpy() == pytest.approx(model.predict(frame))
        else:
            assert list(scores) == ["row", "decision", *(f"probability of {name}" for name in model.classes_)]
            assert scores["decision"].astype(str).tolist() == model.predict(frame).tolist()
            assert scores.iloc[:, 2:].to_numpy() == pytest.approx(model.predict_proba(frame), abs=1e-5)
            assert f"240 rows are called {target} = " in result.stdout


def test_unknown_stains_and_rows_that_are_trained_on(trained, tmp_path):
    folder, _ = trained
    new = make_table(seed=1)
    new.assign(stain=3).to_csv(tmp_path / "new.csv", index=False)
    fit = ["fit", folder / "data.csv", "--groups", "race,sex", "--target", "cost", *others("cost"), "--epochs", 1]
    fit += ["--loss", "erm", "--out", tmp_path / "again", "--test"]
    for words in (
        ["evaluate", folder / "cost", tmp_path / "new.csv"],
        ["predict", folder / "cost", tmp_path / "new.csv", "--out", tmp_path / "scores.csv"],
        [*fit, tmp_path / "new.csv"],
    ):
        result = call(*words)
        assert (
            result.exit_code == 2 and "column 'stain' must hold text, as in training, got the number 3" in result.stderr
        )
    new.loc[:59, "stain"] = "C"
    new.to_csv(tmp_path / "new.csv", index=False)
    assert "(25.0%), such as 'C'" in call("evaluate", folder / "cost", tmp_path / "new.csv").stderr
    result = call(*fit, folder / "data.csv")
    assert result.exit_code == 2 and "--test holds the same rows as" in result.stderr
    pd.concat([new, make_table()[:60]]).to_csv(tmp_path / "some.csv", index=False)
    result = call(*fit, tmp_path / "some.csv")
    assert (
        result.exit_code == 0 and "60 of 300 rows of " in result.stderr and "(20.0%) equal rows that" in result.stderr
    )
    assert len(json.loads((tmp_path / "again" / "report.json").read_text())["data"]["warnings"]) == 2


def test_options_reach_the_estimator(tmp_path):
    frame = make_table().drop(columns=["grade", "cost"])
    frame.to_csv(tmp_path / "data.csv", index=False)
    frame[:50].to_csv(tmp_path / "test.csv", index=False)
    words = ["fit", tmp_path / "data.csv", "--groups", "race", "--target", "state", "--out", tmp_path / "run", *QUICK]
    words += ["--loss", "exponentiated", "--keep-groups", "--model", "linear", "--top-k", "0.7", "--seed", "3"]
    words += ["--groups-per-batch", "2", "--samples-per-group", "9", "--test", tmp_path / "test.csv"]
    result = call(*words)
    assert result.exit_code == 0, result.output
    saved = load_model(tmp_path / "run")
    assert "race" in saved.task.kinds and saved.task.columns == ("race",) and saved.model.hidden == ()
    assert (saved.model.loss, saved.model.top_k_, saved.model.random_state) == ("exponentiated", 2, 3)
    assert (saved.model.groups_per_batch, saved.model.samples_per_group) == (2, 9)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "also learnt from" in page and "The dashed line" not in page
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["data"]["test"]["rows"] == 50 and report["threshold"] is None
    assert "--keep-groups" in report["command"] and "--top-k 0.7" in report["command"]


def test_the_mean_of_rows_alone_and_nothing_to_hold_out(tmp_path):
    frame = make_table(24).drop(columns=["grade", "cost"])
    frame["name"] = np.arange(24) // 2
    frame.to_csv(tmp_path / "data.csv", index=False)
    words = ["fit", tmp_path / "data.csv", "--groups", "name", "--target", "state", "--out", tmp_path / "run", *QUICK]
    result = call(*words, "--loss", "erm", "--test-size", "0.5")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [entry["title"] for entry in report["test"]] == ["ERM"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "too small to hold any rows out" in page and page.count("data:image/png") == 2
    result = call(*words[:-4], *QUICK, "--force", "--test-size", "0.1")
    assert result.exit_code == 2 and "no rows in the test split: --test-size 0.1 takes none" in result.stderr


@pytest.fixture
def rare(tmp_path):
    """A table with two groups of too few rows, and how to fit it."""
    frame = make_table().drop(columns=["grade", "cost"])
    frame.loc[[3, 8], "race"] = "tiny <a>"
    frame.loc[100, "race"] = "alone"
    frame.to_csv(tmp_path / "data.csv", index=False)
    out = ["--target", "state", "--drop", "sex", "--out", tmp_path / "run"]
    return frame, ["fit", tmp_path / "data.csv", "--groups", "race", *out, *QUICK]


def check_note(result, folder, text, groups):
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-2] == text
    data = json.loads((folder / "report.json").read_text())["data"]
    assert data["untested"] == {"note": text, "groups": [{"name": name, "rows": rows} for name, rows in groups]}
    assert html.escape(text) in (folder / "report.html").read_text()
    assert text in (folder / "log.txt").read_text()


def test_groups_too_small_to_be_tested_are_named(rare, tmp_path):
    text = (
        "2 of 5 groups have too few rows to spare any for the test part, so they were trained on but not tested: "
        "alone (1 row), tiny <a> (2 rows)."
    )
    check_note(call(*rare[1], "--test-size", "0.2"), tmp_path / "run", text, [("alone", 1), ("tiny <a>", 2)])
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert {row["name"] for row in report["test"][0]["groups"]} == {"x", "y", "z"}
    assert (report["data"]["training"]["groups"], report["data"]["test"]["groups"]) == (5, 3)


def test_groups_that_another_table_has_not_are_named(rare, tmp_path):
    frame, words = rare
    frame[frame["race"] != "tiny <a>"].to_csv(tmp_path / "other.csv", index=False)
    text = "1 of 5 groups has no rows in other.csv, so it was trained on but not tested: tiny <a> (2 rows)."
    check_note(call(*words, "--test", tmp_path / "other.csv"), tmp_path / "run", text, [("tiny <a>", 2)])


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["01", "1", "2"], ["01", "1", "2"]),
        (["1.1", "1.10", "2"], ["1.1", "1.10", "2"]),
        (["1.0", "2.0", "3.0"], ["1", "2", "3"]),  # so pandas writes 1, 2, 3 where there was a gap
        (["1.0", "1", "2"], ["1", "1.0", "2"]),
        (["x", "01", "1.0"], ["01", "1.0", "x"]),
        (["TRUE", "false", "TRUE"], ["False", "True"]),
    ],
)
def test_names_of_groups_are_read_as_text(texts, names, tmp_path):
    lines = ["site,y,x", *(f"{texts[k % 3]},{k % 2},{k % 5}" for k in range(60))]
    (tmp_path / "a.csv").write_text("\n".join(lines), encoding="utf-8")
    words = ("fit", tmp_path / "a.csv", "--groups", "site", "--target", "y", "--epochs", 1)
    (tmp_path / "b.csv").write_text("\n".join([*lines, f"{texts[0]},1,9"]), encoding="utf-8")
    result = call(*words, "--test", tmp_path / "b.csv", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "not tested" not in result.output
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    assert sorted(row["name"] for row in report["test"][0]["groups"]) == names
    result = call("evaluate", tmp_path / "run", tmp_path / "a.csv", "--out", tmp_path / "again")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "again" / "report.json").read_text(encoding="utf-8"))
    assert sorted(row["name"] for row in report["test"][0]["groups"]) == names


def test_a_column_of_groups_that_is_learnt_from_stays_a_number(tmp_path):
    lines = ["site,y,x", *(f"{k % 3:02},{k % 2},{k % 5}" for k in range(60))]
    (tmp_path / "a.csv").write_text("\n".join(lines), encoding="utf-8")
    words = ("fit", tmp_path / "a.csv", "--groups", "site", "--target", "y", "--epochs", 1, "--keep-groups")
    assert call(*words, "--out", tmp_path / "run").exit_code == 0
    assert load_model(tmp_path / "run").task.kinds == {"site": "number", "x": "number"}


def test_of_many_groups_that_are_not_tested_some_are_named():
    groups = np.array(["large"] * 6 + [f"g{number:02}" for number in range(30)], dtype=object)
    rows, task = GroupedTable(pd.DataFrame({"x": range(36)}), np.zeros(36), groups), GroupTableTask({}, None, ("name",))
    split = Split(task, rows.part(np.arange(2, 36)), rows.part(np.arange(2)))
    assert untested(split) == {f"g{number:02}": 1 for number in range(30)}
    note = task.test_note(split)
    assert note.startswith("30 of 31 groups have too few rows") and note.count("(1 row)") == 20
    assert note.endswith("g19 (1 row) and 10 more, which report.json names.")


REFUSED = [
    (
        ["--groups", "colour"],
        "no group column 'colour'; columns are 'size', 'shape', 'gap', 'stain', 'race' and 4 more",
    ),
    (["--groups", "race,"], "--groups must name columns, with commas between them, got 'race,'"),
    (["--groups", "race,race"], "--groups must name every column once, got 'race,race'"),
    (["--groups", "race,state"], "--groups and --target must name different columns, got 'state' for both"),
    (["--groups", "gap"], "group column 'gap' has missing values in 27 rows, the first is row 1"),
    (["--groups", "race", "--min-tpr", "0.5"], "--min-tpr is for TPAUC and does not go with --groups, got 0.5"),
    (["--groups", "race", "--max-fpr", "0.2"], "--max-fpr is for TPAUC and does not go with --groups, got 0.2"),
    (["--groups", "race", "--positive", "ill"], "--positive is for TPAUC and does not go with --groups, got 'ill'"),
    (["--groups", "race", "--batch-size", "9"], "--batch-size does not go with --groups; use --groups-per-batch and"),
    (["--groups", "race", "--bags", "sex"], "--bags and --groups exclude each other, got 'sex' and 'race'"),
    (["--groups", "race", "--instances-per-bag", "2"], "--instances-per-bag needs --bags, got 2"),
    (["--groups", "race", "--loss", "sont_att"], "--loss must be one of sonx, exponentiated, erm"),
    (
        ["--groups", "race", "--task", "ranking"],
        "--task must be one of auto, classification, regression, got 'ranking'",
    ),
    (["--groups", "race", "--model", "tree"], "--model must be one of mlp, linear, got 'tree'"),
    (["--groups", "race", "--task", "regression"], "target 'state' must hold finite numbers for regression, got '"),
    (["--groups", "race", "--top-k", "4"], "top_k must be at most the number of groups, 3"),
    (["--groups", "race", "--top-k", "1.5"], "top_k must be an integer of at least 1, or a share in (0, 1), got 1.5"),
    (["--groups", "race", "--test-size", "1"], "--test-size must be in (0, 1), got 1"),
    (["--groups", "race", "--test-size", "0.2", "--test", "x.csv"], "--test and --test-size exclude each other"),
    (["--top-k", "2"], "--top-k needs --groups, got 2.0"),
    (["--task", "auto"], "--task needs --groups, got 'auto'"),
    (["--groups", "race", "--keep-groups", "--drop-groups"], "--keep-groups and --drop-groups exclude each other"),
    (["--drop-groups"], "--drop-groups needs --groups, got True"),
    (["--keep-groups"], "--keep-groups needs --groups, got True"),
    (["--loss", "erm"], "--loss must be one of sonx, ce, "),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_refusals(words, message, tmp_path):
    make_table().to_csv(tmp_path / "data.csv", index=False)
    result = call("fit", tmp_path / "data.csv", "--target", "state", "--out", tmp_path / "run", *words)
    assert result.exit_code == 2 and message in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_targets_are_told_apart():
    frame = make_table().assign(one=1, flag=lambda table: table["sex"] == 1, few=lambda table: table["grade"] / 2)
    tasks = {name: find_target(frame, name, "auto", source="t")[0].task for name in ("sex", "flag", "few", "grade")}
    assert tasks == dict.fromkeys(("sex", "flag", "grade"), "classification") | {"few": "regression"}
    assert find_target(frame, "grade", "regression", source="t")[0].reason == "as asked for"
    assert find_target(frame, "flag", "auto", source="t")[0].classes == ("False", "True")
    with pytest.raises(TableError, match="t: target 'one' must have at least two classes, got one class only: 1"):
        find_target(frame, "one", "auto", source="t")


def test_a_class_that_was_not_in_training(trained, tmp_path):
    folder, _ = trained
    frame = make_table()
    frame.loc[4, "state"] = "dead"
    frame.to_csv(tmp_path / "new.csv", index=False)
    result = call("evaluate", folder / "state", tmp_path / "new.csv")
    assert result.exit_code == 2
    assert "target 'state' must be one of 'ill', 'well', got 'dead' in row 5" in result.stderr


LARGE = [2**60 + k for k in range(5)]
SPELLINGS = ["F", "F ", "\u00a0F", "Jose\u0301", "Jos\u00e9"]


@pytest.mark.parametrize("file", ["a.csv", "a.parquet"])
@pytest.mark.parametrize(
    ("values", "names"), [(LARGE, [str(k) for k in LARGE]), (SPELLINGS, ["F", "Jos\u00e9"])], ids=["large", "spelt"]
)
def test_groups_that_differ_are_apart_and_others_one(file, values, names, tmp_path):
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"site": values * 16, "x": random.normal(size=80), "y": np.arange(80) % 2})
    write_table(frame, tmp_path / file)
    words = ("fit", tmp_path / file, "--groups", " site", "--target", "y", "--epochs", 1, "--out", tmp_path / "run")
    result = call(*words)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    assert sorted(row["name"] for row in report["test"][0]["groups"]) == names
    frame["site"] = frame["site"].iloc[::-1].to_numpy()
    assert set(find_groups(frame, ["site"], source="t")) == set(names)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["0,5", "12,25", "7,0"], "target 'y' holds numbers with a comma, '0,5' in row 1; write them with"),
        (["0.5", "n.d.", "7"], "column 'y' mixes numbers and text: 0.5 in row 1, 'n.d.' in row 2; make it one kind"),
        (["2024-01-01", "2024-01-02"], "target 'y' holds dates, '2024-01-01' in row 1; turn them into"),
        (["$1,200.50", "$7"], "target 'y' holds numbers as text, '$1,200.50' in row 1; turn them into numbers"),
        (["12 %", "7 %", "9 %"], "target 'y' holds numbers as text, '12 %' in row 1; turn them into numbers"),
        (["0,5 €", "12,25 €"], "target 'y' holds numbers as text, '0,5 €' in row 1; turn them into numbers"),
        (["$1", "unknown"], "target 'y' mixes numbers and text: '$1' in row 1, 'unknown' in row 2; write"),
        (["31.12.24", "1.1.25"], "target 'y' holds dates or times, '31.12.24' in row 1; turn them into"),
        (
            [f"{k} kg" for k in range(20)],
            "target 'y' holds 20 different texts that begin with a number, such as '0 kg'",
        ),
        ([f"p{k}" for k in range(20)], "target 'y' holds a different text in every row, as names of rows do; choose"),
        ([str(2**60 + k) for k in range(12)], "target 'y' holds numbers too close together for their size"),
    ],
)
def test_damaged_quantities_are_no_classes(values, message):
    frame = pd.DataFrame({"y": values})
    with pytest.raises(TableError, match=f"^t: {re.escape(message)}.*, or give --task classification if these are"):
        find_target(frame, "y", "auto", source="t")
    assert find_target(frame, "y", "classification", source="t")[0].classes == tuple(sorted(values))


@pytest.mark.parametrize("values", [["<=50K", ">50K"], ["0-17", "18-64", "65+"], ["1st", "2nd"], ["H1", "H2", "1.2.3"]])
def test_classes_may_have_digits(values):
    assert find_target(pd.DataFrame({"y": values}), "y", "auto", source="t")[0].classes == tuple(sorted(values))


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["01", "1", "2"], ("01", "1", "2")),
        (["1.0", "1", "2"], ("1", "2")),
        (["TRUE", "false", "True"], ("False", "True")),
        ([Decimal(1), Decimal(2), Decimal(3)], ("1", "2", "3")),
        (LARGE[:3], tuple(map(str, LARGE[:3]))),
        (["a ", "a", "\u00a0b"], ("a", "b")),
        (pd.Categorical(["a", "b", "a"], categories=["a", "b", "c"]), ("a", "b")),
    ],
)
def test_classes_are_named_by_their_text(values, classes):
    target, texts = find_target(pd.DataFrame({"y": values}), "y", "auto", source="t")
    assert target.classes == classes and set(texts) == set(classes)
    assert match_values(pd.DataFrame({"y": values}), target, source="t").tolist() == texts.tolist()


def test_names_of_groups():
    frame = pd.DataFrame({"a,b": ["x", "y"], "a": [1.0, 2.0], "b": [True, False]})
    assert split_names("a,b", frame, "y") == ["a,b"] and split_names("a, b ", frame.iloc[:, 1:], "y") == ["a", "b"]
    assert find_groups(frame, ["a", "b"], source="t").tolist() == ["1, True", "2, False"]


def test_of_many_groups_the_worst_are_printed():
    losses = np.arange(50.0)
    table = group_table(groups=np.arange(50), losses=losses, names=[f"g{k}" for k in range(50)])
    evaluation = GroupEvaluation("SONX", table, 1, 0.5, "R2")
    title, columns, cells = GroupTableTask({}, None, ()).printed("", [evaluation])[1]
    assert title == "Groups by SONX, the worst first (20 of 50)" and columns == ("group", "rows", "share", "loss")
    assert cells[0] == ("g49", "1", "2.00%", "49.0000") and len(cells) == 20


HOSTILE = ["$", r"$\frac$", "a$b$c", "[bold]", "[/]", ":key:", "\x1b[2Jgone", "\u202eturned", "%s", "{0}", "_hidden"]


def test_names_are_shown_as_they_are_written(tmp_path):
    """Neither read as mathematics in figures, nor as markup or escape sequences on the terminal."""
    frame = make_table(rows=len(HOSTILE) * 12)[["size", "shape", "state"]]
    frame["[red]race\x1b[1m"] = np.array(HOSTILE)[np.arange(len(frame)) % len(HOSTILE)]
    frame["state"] = np.where(frame["state"] == "ill", "$ill$[/]\x1b[0m", "well")
    data = tmp_path / "[i]data.csv"
    frame.to_csv(data, index=False)
    words = ["--groups", "[red]race\x1b[1m", "--target", "state", "--out", tmp_path / "[b]run", "--epochs", 1]
    result = call("fit", data, *words)
    assert result.exit_code == 0, result.output
    spelt = [name.replace("\x1b", r"\x1b").replace("\u202e", "") for name in HOSTILE]  # the normal form
    for shown in ("[b]run/report.html", *spelt):
        assert shown in result.output, shown
    assert "\x1b" not in result.output and "\u202e" not in result.output
    assert "\x1b" not in (tmp_path / "[b]run" / "log.txt").read_text()
    again = call("evaluate", tmp_path / "[b]run", data, "--out", tmp_path / "evaluation")
    assert again.exit_code == 0 and "[i]data.csv: 132 rows" in again.output and "\x1b" not in again.output
    scored = call("predict", tmp_path / "[b]run", data, "--out", tmp_path / "scores.csv")
    assert scored.exit_code == 0 and r"$ill$[/]\x1b[0m" in scored.output and "\x1b" not in scored.output
    missing = call("fit", data, "--groups", "x\x1b[2J", *words[2:], "--force")
    assert missing.exit_code == 2 and r"x\x1b[2J" in missing.output and "\x1b" not in missing.output
    strange = call("predict", "run", "x.csv", "y\x1b[2J.csv", "--out", "z.csv")
    assert strange.exit_code == 2 and "\x1b[2J" not in strange.output
