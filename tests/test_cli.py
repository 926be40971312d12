"""The commands as a user types them: what they print, what they leave, and one clear line for what they refuse."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import moreauc
from moreauc.cli import app, compare
from moreauc.cli.options import FitOptions
from moreauc.cli.saved import load_model, run_folder
from moreauc.data.columns import ColumnWarning
from moreauc.data.tables import write_table
from moreauc.estimators import TPAUCClassifier
from moreauc.methods import METHODS
from moreauc.metrics import tpauc_score
from moreauc.tasks.row_tables import RowTableTask, draw_test_rows
from moreauc.tasks.tables import read_split

RUNNER = CliRunner()
ROOT = Path(__file__).parent.parent
FILES = ["log.txt", "model.joblib", "report.html", "report.json"]
QUICK = ["--epochs", "3", "--min-tpr", "0.4", "--max-fpr", "0.5"]
SCALES = np.array([1.0, 10.0, 0.1])


def make_table(rows: int = 240, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    ill = np.arange(rows) % 6 == 0
    numbers = rng.normal(size=(rows, 3)) + np.outer(ill, [1.5, 1.0, 0.0])
    numbers[::17, 2] = np.nan
    frame = pd.DataFrame(numbers * SCALES, columns=["age", "dose", "gap"])
    frame["ward"] = rng.choice(["A", "B", "C"], rows)
    frame["state"] = np.where(ill, "ill", "well")
    return frame


def call(*words: object):
    return RUNNER.invoke(app, [str(word) for word in words])


def split_of(data: Path):
    return read_split(RowTableTask, FitOptions(data=data, target="state", out=Path("unused")))


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a table and a run on it."""
    folder = tmp_path_factory.mktemp("cli")
    make_table().to_csv(folder / "data.csv", index=False)
    result = call("fit", folder / "data.csv", "--target", "state", "--out", folder / "run", *QUICK)
    assert result.exit_code == 0, result.output
    return folder, result


def test_fit_prints_a_table_and_where_the_report_is(trained):
    folder, result = trained
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == "Positive class: state = ill (the rarer of two values)"
    assert lines[1].strip() == "Test rows: 60"
    assert [line.split()[1] for line in lines if line.startswith("│")] == [
        METHODS["rows"]["sonx"].title,
        METHODS["rows"]["ce"].title,
    ]
    assert lines[-1] == f"Report: {folder / 'run' / 'report.html'}"
    assert max(map(len, lines[:-1])) <= 80


def test_fit_leaves_four_files(trained):
    folder, _ = trained
    assert sorted(path.name for path in (folder / "run").iterdir()) == FILES
    assert sorted(path.name for path in folder.iterdir()) == ["data.csv", "run"]
    log = (folder / "run" / "log.txt").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING) ", line) for line in log)
    assert sum("train epoch" in line for line in log) == 6
    assert not logging.getLogger("moreauc").handlers


def test_numbers_of_the_report_are_those_of_the_model(trained):
    folder, _ = trained
    report = json.loads((folder / "run" / "report.json").read_text())
    assert report["data"]["training"] == {"rows": 180, "positives": 30, "negatives": 150}
    assert report["data"]["test"] == {"rows": 60, "positives": 10, "negatives": 50}
    assert report["data"]["target"] == {"column": "state", "positive": "ill", "negative": "well"}
    assert report["data"]["columns"] == {"age": "number", "dose": "number", "gap": "number", "ward": "text"}
    assert [entry["title"] for entry in report["test"]] == [METHODS["rows"][name].title for name in ("sonx", "ce")]
    split = split_of(folder / "data.csv")
    scores, labels = load_model(folder / "run").model.decision_function(split.test.features), split.test.targets
    expected = tpauc_score(labels, scores, min_tpr=0.4, max_fpr=0.5)
    first = report["test"][0]
    assert first["tpauc"]["estimate"] == pytest.approx(expected, abs=1e-4)
    assert first["tpauc"]["low"] <= expected <= first["tpauc"]["high"]
    assert first["tpr"] == pytest.approx((scores[labels == 1] > 0).mean(), abs=1e-4)
    assert first["fpr"] == pytest.approx((scores[labels == 0] > 0).mean(), abs=1e-4)
    negatives = np.sort(scores[labels == 0])
    assert first["tpr_at_budget"] == pytest.approx((scores[labels == 1] > negatives[-26]).mean(), abs=1e-4)
    assert len(report["history"][METHODS["rows"]["sonx"].title]["rows"]) == 3
    assert report["command"].startswith(f"moreauc fit {folder / 'data.csv'} --target state --out ")


def test_the_command_in_the_report_makes_the_same_numbers_again(trained, tmp_path):
    folder, _ = trained
    first = json.loads((folder / "run" / "report.json").read_text())
    words = first["command"].replace(str(folder / "run"), str(tmp_path / "again")).split()[1:]
    assert call(*words).exit_code == 0
    assert json.loads((tmp_path / "again" / "report.json").read_text())["test"] == first["test"]


def test_what_is_not_given_is_left_to_the_classifier(trained):
    settings = json.loads((trained[0] / "run" / "report.json").read_text())["settings"]
    defaults = TPAUCClassifier().get_params()
    for name in ("lr", "batch_size", "momentum", "weight_decay", "warm_start_epochs"):
        assert settings[name] == pytest.approx(defaults[name]), name
    assert settings["epochs"] == 3  # given


def test_the_test_rows_are_a_share_of_either_class():
    labels = (np.arange(100) % 10 == 0).astype(int)
    hashes = np.arange(100, dtype=np.uint64)
    rows = draw_test_rows(labels, 0.2, 1, hashes)
    assert len(rows) == len(set(rows.tolist())) == 20 and labels[rows].sum() == 2
    assert (rows == draw_test_rows(labels, 0.2, 1, hashes)).all()
    assert (rows != draw_test_rows(labels, 0.2, 2, hashes)).any()


def test_fit_with_a_test_file_another_loss_and_fewer_columns(trained, tmp_path):
    folder, _ = trained
    make_table(60, seed=1).to_parquet(tmp_path / "other.parquet")
    command = ["fit", folder / "data.csv", "--target", "state", "--positive", "well", "--out", tmp_path / "run", *QUICK]
    command += [
        "--test",
        tmp_path / "other.parquet",
        "--loss",
        "ce",
        "--model",
        "linear",
        "--drop",
        "ward",
        "--drop",
        "gap",
    ]
    result = call(*command)
    assert result.exit_code == 0, result.output
    assert "Positive class: state = well (as asked for)" in result.stdout
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["data"]["training"] == {"rows": 240, "positives": 200, "negatives": 40}
    assert report["data"]["test"] == {"rows": 60, "positives": 50, "negatives": 10}
    assert report["data"]["columns"] == {"age": "number", "dose": "number"}
    assert [entry["title"] for entry in report["test"]] == [METHODS["rows"]["ce"].title]  # its own twin


def test_evaluate_prints_the_numbers_and_leaves_nothing(trained):
    folder, _ = trained
    before = snapshot(folder)
    result = call("evaluate", folder / "run", folder / "data.csv")
    assert result.exit_code == 0, result.output
    assert "data.csv: 240 rows, 40 positives" in result.stdout
    saved = load_model(folder / "run")
    frame = make_table()
    expected = saved.model.score(frame[list(saved.task.kinds)], (frame["state"] == "ill").astype(int))
    assert f"{expected:.4f}" in result.stdout
    assert snapshot(folder) == before


def test_evaluate_leaves_a_report_where_asked(trained, tmp_path):
    folder, _ = trained
    make_table(60, seed=3).to_csv(tmp_path / "new.csv", index=False)
    result = call("evaluate", folder / "run", tmp_path / "new.csv", "--out", tmp_path / "a" / "b")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == ["log.txt", "report.html", "report.json"]
    report = json.loads((tmp_path / "a" / "b" / "report.json").read_text())
    assert report["data"]["rows"] == 60 and 0.0 < report["test"][0]["auc"] <= 1.0
    assert result.stdout.splitlines()[-1] == f"Report: {tmp_path / 'a' / 'b' / 'report.html'}"


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("with_target", [True, False])
def test_predict_writes_scores(trained, tmp_path, suffix, with_target):
    folder, _ = trained
    frame = make_table(50, seed=5)
    frame.loc[0, "ward"] = "never seen"
    table = frame if with_target else frame.drop(columns="state")
    table[table.columns[::-1]].to_csv(tmp_path / "new.csv", index=False)  # the order of columns does not matter
    out = tmp_path / f"scores{suffix}"
    result = call("predict", folder / "run", tmp_path / "new.csv", "--out", out)
    assert result.exit_code == 0, result.output
    scores = pd.read_csv(out) if suffix == ".csv" else pd.read_parquet(out)
    assert list(scores) == ["row", "score", "probability", "decision"]
    assert scores["row"].tolist() == list(range(1, 51))
    saved = load_model(folder / "run")
    with pytest.warns(
        ColumnWarning, match="column 'ward' holds levels that were not there in training in 1 of 50 rows"
    ):
        expected = saved.model.decision_function(frame[list(saved.task.kinds)])
    np.testing.assert_allclose(scores["score"], expected, rtol=1e-5)
    assert ((scores["score"] > 0) == (scores["decision"] == "ill")).all()
    assert set(scores["decision"]) == {"ill", "well"}
    assert scores["probability"].between(0, 1).all()
    assert (np.argsort(scores["probability"], kind="stable") == np.argsort(scores["score"], kind="stable")).mean() > 0.9
    called = (scores["decision"] == "ill").sum()
    assert result.stdout.splitlines() == [f"{called} of 50 rows are called state = ill", f"Scores: {out}"]
    assert result.stderr == (
        f"warning: {tmp_path / 'new.csv'}: column 'ward' holds levels that were not there in training in 1 of 50 rows "
        "(2.0%), such as 'never seen'; they count as rare ones\n"
    )


def test_a_seed_that_is_too_large_is_named(trained, tmp_path):
    folder, _ = trained
    result = call("fit", folder / "data.csv", "--target", "state", "--out", tmp_path / "run", "--seed", 2**32)
    assert result.exit_code == 2 and "--seed" in result.stderr and not (tmp_path / "run").exists()


def test_what_commands_log_is_not_printed_beside_what_they_print():
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("moreauc.cli").handlers)


@pytest.mark.parametrize("column", ["age", "ward"])
def test_a_column_without_values_is_told(trained, tmp_path, column):
    folder, _ = trained
    new = tmp_path / "new.csv"
    warning = f"warning: {new}: column {column!r} holds missing values only, and held others in training; scores may"
    make_table(60, seed=3).assign(**{column: None}).to_csv(new, index=False)
    for words in (
        ["predict", folder / "run", new, "--out", tmp_path / "scores.csv"],
        ["evaluate", folder / "run", new],
        ["fit", folder / "data.csv", "--target", "state", "--out", tmp_path / "run", *QUICK, "--test", new],
    ):
        result = call(*words)
        assert result.exit_code == 0 and warning in result.stderr
    make_table(1, seed=3).assign(**{column: None}).to_csv(new, index=False)
    result = call("predict", folder / "run", new, "--out", tmp_path / "scores.csv", "--force")
    assert result.exit_code == 0 and result.stderr == ""


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_spaces_and_accents_change_no_decision(trained, tmp_path, suffix):
    folder, _ = trained
    frame = make_table(60, seed=3)
    spelt = frame.assign(
        ward=frame["ward"].map({"A": "A ", "B": "\u00a0B", "C": "C\u200b"}), state=frame["state"] + " "
    )
    spelt = spelt.rename(columns={"ward": "ward\u00a0", "age": " age"})
    for name, table in (("plain", frame), ("spelt", spelt)):
        write_table(table, tmp_path / f"{name}.{suffix}")
        result = call(
            "predict", folder / "run", tmp_path / f"{name}.{suffix}", "--out", tmp_path / f"{name}-scores.csv"
        )
        assert result.exit_code == 0, result.output
    assert (tmp_path / "plain-scores.csv").read_bytes() == (tmp_path / "spelt-scores.csv").read_bytes()
    shown = [call("evaluate", folder / "run", tmp_path / f"{name}.{suffix}").stdout for name in ("plain", "spelt")]
    assert shown[0].replace("plain", "") == shown[1].replace("spelt", "") and "TPAUC" in shown[0]


def test_as_a_program(trained, tmp_path):
    """Two real processes: one that works and one that is refused."""
    folder, _ = trained
    program = Path(sys.executable).parent / "moreauc"
    command = [program, "predict", folder / "run", folder / "data.csv", "--out", tmp_path / "scores.csv"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(pd.read_csv(tmp_path / "scores.csv")) == 240
    refused = subprocess.run(command, capture_output=True, text=True)
    line = f"error: {tmp_path / 'scores.csv'}: the file exists; choose another --out, or replace it with --force\n"
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", line)


def test_evaluate_reports_unknown_levels(trained, tmp_path):
    folder, _ = trained
    frame = make_table(60, seed=3)
    frame.loc[:14, "ward"] = "D"
    frame.to_csv(tmp_path / "new.csv", index=False)
    result = call("evaluate", folder / "run", tmp_path / "new.csv", "--out", tmp_path / "out")
    assert result.exit_code == 0 and "in 15 of 60 rows (25.0%), such as 'D'" in result.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["data"]["unknown_levels"] == {"ward": 0.25}
    assert "by column: ward 25.0%." in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("ward", "message"),
    [
        (
            "D",
            "column 'ward' must hold levels of the training ('A', 'B', 'C'), got others only, such as 'D'; write its "
            "values as they were in training, or train again with such rows",
        ),
        (
            7,
            "column 'ward' must hold text, as in training, got the number 7 in row 1; write its values as they were in "
            "training",
        ),
    ],
)
def test_a_column_without_any_known_level_is_refused(trained, tmp_path, ward, message):
    folder, _ = trained
    data = tmp_path / "new.csv"
    make_table(60, seed=3).assign(ward=ward).to_csv(data, index=False)
    words = ["fit", folder / "data.csv", "--target", "state", "--test", data, *QUICK]
    for command in (["evaluate", folder / "run", data], ["predict", folder / "run", data], words):
        options = [] if command[0] == "evaluate" else ["--out", tmp_path / "out.csv"]
        result = call(*command, *options)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == f"error: {data}: {message}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


def test_evaluate_tells_of_rows_that_the_model_was_trained_on(trained, tmp_path):
    folder, _ = trained
    result = call("evaluate", folder / "run", folder / "data.csv")
    assert result.stderr == (
        f"warning: 180 of 240 rows of {folder / 'data.csv'} (75.0%) equal rows that are trained on: the test may look "
        "better than it is\n"
    )
    make_table(60, seed=3).to_csv(tmp_path / "new.csv", index=False)
    assert call("evaluate", folder / "run", tmp_path / "new.csv").stderr == ""


def test_a_test_table_with_rows_of_the_training(trained, tmp_path):
    folder, _ = trained
    frame = make_table()
    words = [
        "fit",
        folder / "data.csv",
        "--target",
        "state",
        "--epochs",
        "1",
        "--loss",
        "ce",
        "--out",
        tmp_path / "run",
    ]
    pd.concat([make_table(60, seed=2), frame[:20]]).to_csv(tmp_path / "some.csv", index=False)
    result = call(*words, "--test", tmp_path / "some.csv")
    line = (
        f"20 of 80 rows of {tmp_path / 'some.csv'} (25.0%) equal rows that are trained on: the test may look better "
        "than it is"
    )
    assert (result.exit_code, result.stderr) == (0, f"warning: {line}\n")
    assert json.loads((tmp_path / "run" / "report.json").read_text())["data"]["warnings"] == [line]
    assert f"Warning: {line}." in (tmp_path / "run" / "report.html").read_text()
    assert f"WARNING {line}" in (tmp_path / "run" / "log.txt").read_text()
    (tmp_path / "link.csv").symlink_to(folder / "data.csv")
    (tmp_path / "copy.csv").write_bytes((folder / "data.csv").read_bytes())
    frame[::-1].to_parquet(tmp_path / "turned.parquet")
    for name in (folder / "data.csv", tmp_path / "link.csv", tmp_path / "copy.csv", tmp_path / "turned.parquet"):
        result = call(*words, "--force", "--test", name)
        assert result.exit_code == 2 and result.stderr.startswith(
            f"error: {name}: --test holds the same rows as {folder / 'data.csv'}, which are trained on; give rows of"
        )


def test_columns_that_number_rows_are_named(tmp_path):
    frame = make_table().assign(case=np.arange(240) + 1000, patient_id=np.random.default_rng(0).permutation(240))
    frame.to_csv(tmp_path / "data.csv", index=False)
    words = [tmp_path / "data.csv", "--target", "state", "--out", tmp_path / "run"]
    result = call("fit", *words, "--epochs", "1", "--loss", "ce")
    lines = [
        "column 'case' holds a different whole number in every row, in the order of the rows, as row numbers do; "
        "leave it out unless it is a measurement",
        "column 'patient_id' holds a different whole number in every row and is named like an id; leave it out unless "
        "it is a measurement",
    ]
    assert (result.exit_code, result.stderr) == (0, "".join(f"warning: {line}\n" for line in lines))
    assert json.loads((tmp_path / "run" / "report.json").read_text())["data"]["warnings"] == lines
    few = ["--methods", "ce", "--folds", "2", "--inner-folds", "2", "--trials", "1", "--jobs", "1"]
    assert call("compare", *words[:3], *few, "--out", tmp_path / "compared").stderr == result.stderr


def test_equal_rows_are_on_one_side(tmp_path):
    frame = make_table()
    twice = pd.concat([frame, frame[:100]]).sample(frac=1.0, random_state=0)
    twice.to_csv(tmp_path / "data.csv", index=False)
    split = split_of(tmp_path / "data.csv")
    assert not len(split.train.features.merge(split.test.features)) and abs(len(split.test) - 85) <= 1


def test_written_numbers_are_read_the_same_way_everywhere(tmp_path):
    frame = make_table()
    price = [f"${1000 + 200 * value:,.2f}" for value in frame["age"]]
    frame.assign(age=price, dose=(10 * frame["dose"]).map("{:.1f} %".format)).to_csv(tmp_path / "a.csv", index=False)
    words = ["--target", "state", "--epochs", "1", "--loss", "ce"]
    result = call("fit", tmp_path / "a.csv", *words, "--out", tmp_path / "run")
    assert (result.exit_code, result.stderr) == (0, "")
    kinds = json.loads((tmp_path / "run" / "report.json").read_text())["data"]["columns"]
    assert kinds == {"age": "number like 1,234.5 $", "dose": "number like 1234.5 %", "gap": "number", "ward": "text"}
    assert "4 columns: 3 of numbers, 1 of text." in (tmp_path / "run" / "report.html").read_text()
    result = call("predict", tmp_path / "run", tmp_path / "a.csv", "--out", tmp_path / "scores.csv")
    assert (result.exit_code, result.stderr) == (0, "")
    frame.assign(age=price, dose=frame["dose"] / 10).to_csv(tmp_path / "b.csv", index=False)
    result = call("predict", tmp_path / "run", tmp_path / "b.csv", "--out", tmp_path / "other.csv")
    assert result.exit_code == 2
    assert "column 'dose' must hold numbers like 1234.5 %, as in training, got " in result.stderr


TABLES = {
    "empty.csv": b"",
    "latin.csv": b"name,y\ncaf\xe9,1\n",
    "ragged.csv": b"a,y\n1,0\n2,1,3\n",
    "three.csv": b"a,y\n1,0\n2,1\n3,2\n",
    "constant.csv": b"a,b,y\n1,5,0\n2,5,1\n3,5,0\n",
    "mixed.csv": b"a,y\n1,0\nx,1\n3,0\n",
    "few.csv": b"a,y\n" + b"".join(b"%d,%d\n" % (7 * k % 40, k in (4, 7)) for k in range(40)),
    "tiny.csv": b"a,y\n" + b"".join(b"%d,%d\n" % (7 * k % 40, k in (4, 7, 9, 11)) for k in range(40)),
}
FIT_ERRORS = [
    (["missing.csv"], "{0}/missing.csv: no such file"),
    (["empty.csv"], "{0}/empty.csv: the file is empty"),
    (
        ["latin.csv"],
        "{0}/latin.csv: not UTF-8, byte 0xe9 at position 10; convert it, for example: "
        "iconv -f WINDOWS-1252 -t UTF-8 latin.csv > latin-utf8.csv",
    ),
    (["ragged.csv"], "{0}/ragged.csv: line 3 has 3 fields, the header has 2"),
    (["few.csv", "--target", "Y"], "{0}/few.csv: no target column 'Y'; did you mean 'y'?"),
    (
        ["three.csv"],
        "{0}/three.csv: target 'y' must have two classes, got 3 classes: 0 (1 rows), 1 (1 rows), 2 (1 rows)",
    ),
    (["constant.csv"], "{0}/constant.csv: column 'b' holds one value only; leave out with --drop b"),
    (
        ["mixed.csv"],
        "{0}/mixed.csv: column 'a' mixes numbers and text: 1 in row 1, 'x' in row 2; "
        "make it one kind, or leave it out with --drop a",
    ),
    (["few.csv"], "no positives in the test split: the table has 2, of which --test-size 0.25 takes 0"),
    (
        ["few.csv", "--test-size", "0.9"],
        "no positives in the training split: the table has 2, of which --test-size 0.9 takes 2",
    ),
    (["few.csv", "--test-size", "1.5"], "--test-size must be in (0, 1), got 1.5"),
    (["few.csv", "--test-size", "0.5", "--test", "x.csv"], "--test and --test-size exclude each other"),
    (
        ["tiny.csv", "--min-tpr", "0.7"],
        "test rows: with 1 positive, --min-tpr 0.7 leaves none in the region; TPAUC is undefined",
    ),
    (
        ["tiny.csv", "--min-tpr", "0", "--max-fpr", "0.05"],
        "test rows: with 9 negatives, --max-fpr 0.05 leaves none in the region; TPAUC is undefined",
    ),
    (["tiny.csv", "--min-tpr", "1"], "moreauc fit: min_tpr must be a number in [0, 1), got 1.0"),
    (["tiny.csv", "--max-fpr", "0"], "moreauc fit: max_fpr must be a number in (0, 1], got 0.0"),
    (["tiny.csv", "--loss", "mse"], f"moreauc fit: --loss must be one of {', '.join(METHODS['rows'])}, got 'mse'"),
    (["tiny.csv", "--drop", "b"], "{0}/tiny.csv: no column to drop 'b'; columns are 'a'"),
    (
        ["tiny.csv", "--min-tpr", "0", "--model", "tree"],
        "moreauc fit: --model must be one of mlp, linear, got 'tree'",
    ),
    (["tiny.csv", "--min-tpr", "0", "--lr", "-1"], "fit: lr must be a number in (0, inf), got -1.0"),
]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    for name, content in TABLES.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(("words", "message"), FIT_ERRORS, ids=[message[:40] for _, message in FIT_ERRORS])
def test_fit_refuses_with_one_line(tables, tmp_path, words, message):
    before = snapshot(tables)
    target = [] if "--target" in words else ["--target", "y"]
    result = call("fit", tables / words[0], *words[1:], *target, "--out", tmp_path / "deep" / "run")
    assert (result.exit_code, result.stderr) == (2, f"error: {message.format(tables)}\n")
    assert snapshot(tables) == before and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [["--epochs", "many"], ["--epochs", "0"], ["--seed", "-1"], ["--batch-size", "1"], ["--colour", "red"]]
)
def test_a_bad_option_is_refused(tables, tmp_path, words):
    result = call("fit", tables / "tiny.csv", "--target", "y", "--out", tmp_path / "run", *words)
    assert result.exit_code == 2 and words[0] in result.stderr
    assert not list(tmp_path.iterdir())


def test_an_output_folder_with_something_in_it(trained, tmp_path):
    folder, _ = trained
    out = tmp_path / "run"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / "report.html").write_text("old")
    before = snapshot(tmp_path)
    command = ["fit", folder / "data.csv", "--target", "state", "--out", out, *QUICK]
    result = call(*command)
    line = f"error: {out}: the folder is not empty; choose another --out, or replace its report with --force\n"
    assert (result.exit_code, result.stderr) == (2, line)
    assert snapshot(tmp_path) == before
    # a run that fails after the folder was found free for --force changes nothing either
    assert call(*command, "--force", "--lr", "-1").exit_code == 2
    assert snapshot(tmp_path) == before
    assert call(*command, "--force").exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == sorted([*FILES, "notes.txt"])
    assert (out / "notes.txt").read_text() == "mine" and (out / "report.html").read_text() != "old"


def test_an_empty_output_folder_is_fine(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    with run_folder(out, force=False) as part:
        (part / "report.json").write_text("{}")
    assert sorted(path.name for path in out.iterdir()) == ["log.txt", "report.json"]
    assert list(tmp_path.iterdir()) == [out]


def test_an_output_path_that_is_a_file(trained, tmp_path):
    folder, _ = trained
    (tmp_path / "run").write_text("mine")
    result = call("fit", folder / "data.csv", "--target", "state", "--out", tmp_path / "run", "--force", *QUICK)
    assert (result.exit_code, result.stderr) == (2, f"error: {tmp_path / 'run'}: is a file, --out needs a folder\n")
    assert (tmp_path / "run").read_text() == "mine"


def test_a_report_does_not_come_beside_a_model(trained):
    folder, _ = trained
    before = snapshot(folder)
    result = call("evaluate", folder / "run", folder / "data.csv", "--out", folder / "run", "--force")
    message = "holds a model, which a report of this command does not belong to; choose another --out"
    assert (result.exit_code, result.stderr) == (2, f"error: {folder / 'run'}: {message}\n")
    assert snapshot(folder) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_nothing_is_left_after_an_interrupt(tmp_path, error):
    with pytest.raises(error), run_folder(tmp_path / "a" / "b" / "run", force=False) as part:
        (part / "report.html").write_text("half")
        raise error
    assert not list(tmp_path.iterdir())
    assert not logging.getLogger("moreauc").handlers


def test_a_folder_that_came_up_meanwhile_is_not_touched(tmp_path):
    with (
        pytest.raises(ValueError, match="the folder is not empty") as caught,
        run_folder(tmp_path / "run", force=False) as part,
    ):
        (part / "report.html").write_text("ours")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "report.html").write_text("theirs")
    place = Path(str(caught.value).split("the results are in ")[1])  # what was finished is not thrown away
    files = {"run": None, "run/report.html": b"theirs", place.name: None}
    assert snapshot(tmp_path) == {**files, f"{place.name}/log.txt": b"", f"{place.name}/report.html": b"ours"}


def test_warnings_go_to_the_log(tmp_path):
    import warnings

    with run_folder(tmp_path / "run", force=False), warnings.catch_warnings():
        logging.captureWarnings(True)  # the surrounding filter of the tests was set before
        warnings.simplefilter("always")
        warnings.warn("few rows", UserWarning, stacklevel=1)
    assert "WARNING" in (tmp_path / "run" / "log.txt").read_text()
    assert "few rows" in (tmp_path / "run" / "log.txt").read_text()


SCORE_ERRORS = [
    (["nowhere", "data.csv"], "{0}/nowhere: no such folder; give the folder that `moreauc fit` wrote"),
    (["hollow", "data.csv"], "{0}/hollow: holds no model.joblib; give the folder that `moreauc fit` wrote"),
    (["broken", "data.csv"], "{0}/broken/model.joblib: the model cannot be read: "),
    (["foreign", "data.csv"], "{0}/foreign/model.joblib: not a model of `moreauc fit`, got dict"),
    (["run", "missing.csv"], "{0}/missing.csv: no such file"),
    (["run", "narrow.csv"], "{0}/narrow.csv: columns 'dose', 'ward' missing, on which the model was trained"),
    (["run", "text.csv"], "{0}/text.csv: column 'age' must hold numbers, as in training, got 'old' in row 1"),
]


@pytest.fixture(scope="module")
def scoring(trained, tmp_path_factory):
    import shutil

    import joblib

    folder = tmp_path_factory.mktemp("scoring")
    shutil.copytree(trained[0] / "run", folder / "run")
    for name in ("hollow", "broken", "foreign"):
        (folder / name).mkdir()
    (folder / "broken" / "model.joblib").write_bytes(b"no pickle")
    joblib.dump({"a": 1}, folder / "foreign" / "model.joblib")
    table = make_table(30)
    table.to_csv(folder / "data.csv", index=False)
    table.drop(columns=["dose", "ward"]).to_csv(folder / "narrow.csv", index=False)
    table.assign(age="old").to_csv(folder / "text.csv", index=False)
    table.drop(columns="state").to_csv(folder / "unlabelled.csv", index=False)
    table.assign(state="well").to_csv(folder / "well.csv", index=False)
    table.assign(state="dead").to_csv(folder / "other.csv", index=False)
    return folder


@pytest.mark.parametrize("command", ["evaluate", "predict"])
@pytest.mark.parametrize(
    ("words", "message"), SCORE_ERRORS, ids=[words[0] + "-" + words[1] for words, _ in SCORE_ERRORS]
)
def test_evaluate_and_predict_refuse_with_one_line(scoring, tmp_path, command, words, message):
    out = tmp_path / ("scores.csv" if command == "predict" else "report")
    before = snapshot(scoring)
    result = call(command, *(scoring / word for word in words), "--out", out)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message.format(scoring)}") and result.stderr.count("\n") == 1
    assert snapshot(scoring) == before and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("unlabelled.csv", "no target column 'state'; columns are 'age', 'dose', 'gap', 'ward'"),
        ("well.csv", "there are no positives (state = ill) among its 30 rows"),
        ("other.csv", "target 'state' must be 'well' or 'ill', got 'dead' in row 1"),
    ],
)
def test_evaluate_needs_both_classes(scoring, table, message):
    result = call("evaluate", scoring / "run", scoring / table)
    assert (result.exit_code, result.stderr) == (2, f"error: {scoring / table}: {message}\n")


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("scores.txt", "unknown kind of file .txt, must be one of .csv, .tsv, .parquet, .pq"),
        ("folder.csv", "is a folder, --out needs a file"),
        ("old.csv", "the file exists; choose another --out, or replace it with --force"),
        ("none/scores.csv", "there is no folder {0}/none"),
    ],
)
def test_predict_refuses_places(scoring, tmp_path, out, message):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "old.csv").write_text("mine")
    before = snapshot(tmp_path)
    result = call("predict", scoring / "run", scoring / "data.csv", "--out", tmp_path / out)
    assert (result.exit_code, result.stderr) == (2, f"error: {tmp_path / out}: {message.format(tmp_path)}\n")
    assert snapshot(tmp_path) == before


def test_predict_replaces_a_file_when_told(scoring, tmp_path):
    (tmp_path / "old.csv").write_text("mine")
    assert (
        call("predict", scoring / "run", scoring / "data.csv", "--out", tmp_path / "old.csv", "--force").exit_code == 0
    )
    assert len(pd.read_csv(tmp_path / "old.csv")) == 30


def test_a_traceback_is_there_for_who_asks(tmp_path):
    result = call("--traceback", "predict", tmp_path, tmp_path / "x.csv", "--out", tmp_path / "y.csv")
    assert isinstance(result.exception, ValueError) and result.exit_code == 1


@pytest.fixture(scope="module")
def compared(trained, tmp_path_factory):
    """The smallest comparison, of a table and in one process."""
    out = tmp_path_factory.mktemp("compared") / "out"
    words = ["--folds", "2", "--inner-folds", "2", "--trials", "1", "--jobs", "1", "--methods", "sonx, ce,lightgbm"]
    return out, call("compare", trained[0] / "data.csv", "--target", "state", "--out", out, *words)


def test_compare_prints_a_ranked_table_and_leaves_a_report(compared):
    out, result = compared
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].endswith("40 of 240 rows are positive (state = ill, the rarer of two values).")
    assert lines[-1] == f"Report: {out / 'report.html'}"
    assert sorted(path.name for path in out.iterdir()) == ["log.txt", "report.html", "report.json"]
    report = json.loads((out / "report.json").read_text())
    ranked = sorted(report["rows"], key=lambda row: row["rank"])
    assert {row["method"] for row in ranked} == {"sonx", "ce", "lightgbm"}
    assert [row["mean"] for row in ranked] == sorted((row["mean"] for row in ranked), reverse=True)
    cells = [line.strip("│").split("│") for line in lines if line.startswith("│")]
    assert [(cell[0].strip(), float(cell[1])) for cell in cells] == [
        (row["title"], pytest.approx(row["mean"], abs=1e-4)) for row in ranked
    ]
    assert "6 of 6 pieces of work done" in (out / "log.txt").read_text()


def test_a_figure_that_fails_costs_no_comparison(tmp_path, monkeypatch):
    def fail(*values):
        raise RuntimeError("no font")

    monkeypatch.setattr(compare, "compare_report", fail)
    make_table().to_csv(tmp_path / "data.csv", index=False)
    words = ["--methods", "ce", "--folds", 2, "--inner-folds", 2, "--trials", 1, "--jobs", 1]
    result = call("compare", tmp_path / "data.csv", "--target", "state", "--out", tmp_path / "out", *words)
    wanted = f"error: {tmp_path / 'out' / 'report.json'}: the numbers are saved here, but what comes after it failed: "
    assert result.exit_code == 2 and f"{wanted}RuntimeError: no font" in result.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["log.txt", "report.json"]
    assert json.loads((tmp_path / "out" / "report.json").read_text())["description"]


def test_a_comparison_with_few_trials_says_so(compared):
    assert "With 1 of the usual 8 settings" in (compared[0] / "report.html").read_text()


def test_compare_on_an_example_says_how_it_was_made(tmp_path):
    words = ["--folds", "2", "--inner-folds", "2", "--trials", "1", "--jobs", "1", "--methods", "lightgbm"]
    result = call("compare", "--example", "diabetes", "--out", tmp_path / "out", *words)
    assert result.exit_code == 0, result.output
    assert "44 of 442 patients are" in result.stdout
    assert "44 of 442 patients are" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a table with --target, or --example"),
        (["tiny.csv", "--example", "digits"], "give a table or --example, not both"),
        (["tiny.csv"], "{0}/tiny.csv: --target must name the column with the two classes"),
        (["--example", "iris"], "load_example: name must be one of digits, breast_cancer, diabetes, got 'iris'"),
        (
            ["--example", "digits", "--drop", "a"],
            "--target, --positive and --drop go with a table of yours, not with --example",
        ),
        (["three.csv", "--target", "a"], "{0}/three.csv: target 'a' must have two classes, got 3 classes: "),
        (
            ["tiny.csv", "--target", "y", "--methods", "sonx,tree"],
            f"moreauc compare: --methods must be of {', '.join([*METHODS['rows'], 'lightgbm', 'xgboost'])}, got 'tree'",
        ),
        (
            ["tiny.csv", "--target", "y", "--methods", "ce,ce"],
            "moreauc compare: --methods must name each once, got 'ce' more than once",
        ),
        (
            ["tiny.csv", "--target", "y", "--methods", "ce"],
            "Comparison: y must have enough positives for 5 folds with 3 inner ones, so that the region holds at least "
            "one in each, got 4",
        ),
        (
            ["tiny.csv", "--target", "y", "--min-tpr", "1"],
            "moreauc compare: min_tpr must be a number in [0, 1), got 1.0",
        ),
    ],
)
def test_compare_refuses_with_one_line(tables, tmp_path, words, message):
    named = [tables / word if word.endswith(".csv") else word for word in words]
    result = call("compare", *named, "--out", tmp_path / "deep" / "out")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message.format(tables)}") and result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_boosters_that_are_not_installed_are_named(monkeypatch):
    assert compare.choose_methods(None) == ((*METHODS["rows"], "lightgbm", "xgboost"), [])
    monkeypatch.setattr(compare, "find_spec", lambda name: None if name == "xgboost" else object())
    chosen, lines = compare.choose_methods(None)
    assert chosen == (*METHODS["rows"], "lightgbm")
    assert lines == ["XGBoost is left out: it is not installed; pip install 'moreauc[boosting]' brings it"]
    with pytest.raises(ValueError, match=r"XGBoost is not installed; pip install 'moreauc\[boosting\]' brings it"):
        compare.choose_methods("sonx,xgboost")


def options_of(command: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]*", call(*command.split(), "--help").output))


@pytest.mark.parametrize("command", ["fit", "evaluate", "predict", "compare"])
def test_every_option_in_the_docs_exists(command):
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", page, flags=re.MULTILINE)
    section = next(part for part in sections if part.startswith(f"`moreauc {command}`"))
    named = set(re.findall(r"--[a-z][a-z-]*", section))
    assert named == options_of(command) - {"--help"}


def test_python_runs_it_as_a_module():
    done = subprocess.run([sys.executable, "-m", "moreauc", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, moreauc.__version__)


def test_a_collapsed_model_is_no_winner_and_is_named(trained, monkeypatch, tmp_path):
    """One score for all rows: TPAUC 0 at (0.5, 0.5), and a warning on the terminal, on the page and in the log."""
    monkeypatch.setattr(TPAUCClassifier, "decision_function", lambda self, X: np.zeros(len(X)))
    options = ["--epochs", "2", "--min-tpr", "0.5", "--max-fpr", "0.5"]
    result = call("fit", trained[0] / "data.csv", "--target", "state", "--out", tmp_path / "run", *options)
    assert result.exit_code == 0, result.output
    line = "100.0% of the rows of the region have a score that rows of the other class have too"
    for text in (result.stderr, *((tmp_path / "run" / name).read_text() for name in ("report.html", "log.txt"))):
        assert f"SONX: {line}" in text
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [row["tpauc"]["estimate"] for row in report["test"]] == [0.0, 0.0]
    assert [row["tied"] for row in report["test"]] == [1.0, 1.0]
    result = call("evaluate", tmp_path / "run", trained[0] / "data.csv")
    assert line in result.output
