"""The commands as a user types them: what they print, what they leave, and one clear line for what they refuse."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest

from moreauc._registry import METHODS, method_names
from moreauc.app.cli import compare
from moreauc.app.cli import console as cli_console
from moreauc.app.cli.console import progress_bar
from moreauc.app.cli.options import REGION
from moreauc.app.cli.saved import load_model, run_folder
from moreauc.app.tables.files import write_table
from moreauc.estimators import TPAUCClassifier
from tests.cli_cases import FILES, call, done, groups_table, rows_table, snapshot, train

pytestmark = pytest.mark.usefixtures("blank_figures")

ROOT = Path(__file__).parent.parent
QUICK = ["--epochs", "2", "--min-tpr", "0.4", "--max-fpr", "0.5"]
FEW = ["--folds", "2", "--inner-folds", "2", "--trials", "1", "--jobs", "1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a table and a run on it."""
    return train("rows", tmp_path_factory.mktemp("cli")).folder


def test_what_commands_log_is_not_printed_beside_what_they_print():
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("moreauc.app.cli").handlers)


@pytest.mark.parametrize("column", ["age", "ward"])
def test_a_column_without_values_is_told(trained, tmp_path, column):
    new, scores = tmp_path / "new.csv", ["--out", tmp_path / "scores.csv", "--force"]
    warning = f"warning: {new}: column {column!r} holds missing values only, and held others in training"
    rows_table(60, seed=3).assign(**{column: None}).to_csv(new, index=False)
    for words in (
        ["predict", trained / "run", new, *scores],
        ["evaluate", trained / "run", new],
        ["fit", trained / "data.csv", "--target", "state", "--out", tmp_path / "run", *QUICK, "--test", new],
    ):
        assert warning in done(*words).stderr
    rows_table(1, seed=3).assign(**{column: None}).to_csv(new, index=False)
    assert done("predict", trained / "run", new, *scores).stderr == ""


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_spaces_and_accents_change_no_decision(trained, tmp_path, suffix):
    frame = rows_table(60, seed=3)
    spelt = frame.assign(
        ward=frame["ward"].map({"A": "A ", "B": "\u00a0B", "C": "C\u200b"}), state=frame["state"] + " "
    )
    spelt = spelt.rename(columns={"ward": "ward\u00a0", "age": " age"})
    scores, shown = [], []
    for name, table in (("plain", frame), ("spelt", spelt)):
        write_table(table, tmp_path / f"{name}.{suffix}")
        scores.append(done("predict", trained / "run", tmp_path / f"{name}.{suffix}").stdout)
        shown.append(done("evaluate", trained / "run", tmp_path / f"{name}.{suffix}").stdout.replace(name, ""))
    assert scores[0] == scores[1] and shown[0] == shown[1] and "TPAUC" in shown[0]


def test_as_a_program(trained, tmp_path):
    """In a real process, errors go to standard error and nothing else does."""
    program, out = Path(sys.executable).parent / "moreauc", tmp_path / "scores.csv"
    out.write_text("mine")
    command = [program, "predict", trained / "run", trained / "data.csv", "--out", out]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert refused.stderr.startswith(f"error: {out}: the file exists; ")


def test_columns_that_number_rows_are_named(tmp_path):
    frame = rows_table().assign(case=np.arange(240) + 1000, patient_id=np.random.default_rng(0).permutation(240))
    frame.to_csv(tmp_path / "data.csv", index=False)
    words = [tmp_path / "data.csv", "--target", "state", "--out", tmp_path / "run"]
    result = done("fit", *words, "--epochs", "1", "--loss", "ce", "--baselines", "none")
    lines = json.loads((tmp_path / "run" / "report.json").read_text())["data"]["warnings"]
    assert ["'case'" in line for line in lines] == [True, False] == ["'patient_id'" not in line for line in lines]
    assert result.stderr == "".join(f"warning: {line}\n" for line in lines)
    assert done("compare", *words[:3], *FEW, "--methods", "ce", "--out", tmp_path / "compared").stderr == result.stderr


def refusal(*words: object) -> str:
    """Return the one line of a command that ends with an error."""
    result = call(*words)
    assert result.exit_code == 2 and result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    return result.stderr.removeprefix("error: ").rstrip("\n")


def bag_table(**changes: object) -> bytes:
    """Return a small table with some cells changed, given as column_row."""
    frame = pd.DataFrame({"bag": list("aabbccddee"), "x": np.arange(10.0), "y": [0, 0, 1, 1, 0, 0, 1, 1, 0, 0]})
    frame = frame.astype({"bag": object, "y": object})
    for name, value in changes.items():
        column, row = name.split("_")
        frame.loc[int(row), column] = value
    return frame.to_csv(index=False).encode()


TABLES = {
    "empty.csv": b"",
    "three.csv": b"a,y\n1,0\n2,1\n3,2\n",
    "constant.csv": b"a,b,y\n1,5,0\n2,5,1\n3,5,0\n",
    "few.csv": b"a,y\n" + b"".join(b"%d,%d\n" % (7 * k % 40, k in (4, 7)) for k in range(40)),
    "tiny.csv": b"a,y\n" + b"".join(b"%d,%d\n" % (7 * k % 40, k in (4, 7, 9, 11)) for k in range(40)),
    "fine.csv": bag_table(),
    "differ.csv": bag_table(y_3=0),
    "gap.csv": bag_table(bag_4=None),
    "unlabelled.csv": bag_table(y_5=None),
    "labels.csv": bag_table(y_8=2, y_9=2),
    "groups.csv": groups_table().to_csv(index=False).encode(),
}
ROW_ERRORS = [
    (["missing.csv"], "{0}/missing.csv: no such file"),
    (["empty.csv"], "{0}/empty.csv: the file is empty"),
    (["few.csv", "--target", "Y"], "{0}/few.csv: no target column 'Y'; did you mean 'y'?"),
    (["three.csv"], "target 'y' must have two classes, got 3 classes: 0 (1 rows), 1 (1 rows), 2 (1 rows)"),
    (["constant.csv"], "{0}/constant.csv: column 'b' holds one value only; leave out with --drop b"),
    (["few.csv"], "no positives in the test split: the table has 2, of which --test-size 0.25 takes 0"),
    (["few.csv", "--test-size", "0.9"], "no positives in the training split: the table has 2, of which --test-size"),
    (["few.csv", "--test-size", "1.5"], "--test-size must be in (0, 1), got 1.5"),
    (["few.csv", "--test-size", "0.5", "--test", "x.csv"], "--test and --test-size exclude each other"),
    (["tiny.csv", "--min-tpr", "0.7"], "test rows: with 1 positive, --min-tpr 0.7 leaves none"),
    (["tiny.csv", "--min-tpr", "0", "--max-fpr", "0.05"], "test rows: with 9 negatives, --max-fpr 0.05 leaves none"),
    (["tiny.csv", "--min-tpr", "1"], "fit: --min-tpr must be a number in [0, 1), got 1.0"),
    (["tiny.csv", "--max-fpr", "0"], "fit: --max-fpr must be a number in (0, 1], got 0.0"),
    (["tiny.csv", "--loss", "mse"], f"fit: --loss must be one of {', '.join(METHODS['rows'])}, got 'mse'"),
    (["tiny.csv", "--drop", "a,b"], "{0}/tiny.csv: no column to drop 'b'; columns are 'a'"),
    (["tiny.csv", "--drop", "a,"], "--drop must name columns, with commas between them, got 'a,'"),
    (["tiny.csv", "--id", "b"], "{0}/tiny.csv: no id column 'b'; columns are 'a'"),
    (["tiny.csv", "--epochs", "9", "--model", "linear"], "fit: --epochs does not go with --model linear,"),
    (["tiny.csv", "--dropout", "0.5", "--model", "linear"], "fit: --dropout needs --model mlp, got 0.5"),
    (["tiny.csv", "--loss", "ce", "--surrogate", "logistic"], "fit: --surrogate is for losses of pairs"),
    (["tiny.csv", "--max-fpr", "0.5", "--surrogate", "cubic"], "fit: --surrogate must be one of"),
    (["tiny.csv", "--max-fpr", "0.5", "--fpr-budget", "2"], "--fpr-budget must be a number in [0, 1], got 2.0"),
    (["tiny.csv", "--max-fpr", "0.5", "--device", "abacus"], "device must be one that torch has here, such as 'cpu'"),
    (["tiny.csv", "--baselines", "tree"], "fit: --baselines must be one of none, "),
    (["tiny.csv", "--min-tpr", "0", "--model", "tree"], "fit: --model must be one of mlp, linear, trees,"),
    (["tiny.csv", "--loss", "ce", "--model", "trees"], "fit: --loss does not go with --model trees, got 'ce'"),
    (["tiny.csv", "--epochs", "9", "--model", "auto"], "fit: --epochs does not go with --model auto, got 9"),
    (["tiny.csv", "--surrogate", "logistic", "--model", "auto"], "fit: --surrogate does not go with --model"),
    (["tiny.csv", "--max-fpr", "0.5", "--lr", "-1"], "fit: --lr must be a number in (0, inf), got -1.0"),
    (["tiny.csv", "--seed", str(2**32)], "--seed"),
    (["tiny.csv", "--batch-size", "1"], "--batch-size"),
]
BAG_ERRORS = [
    (["differ.csv"], "target 'y' must be the same inside a bag, got 1 in row 3 and 0 in row 4 of bag 'b'"),
    (["gap.csv"], "{0}/gap.csv: bag column 'bag' has 1 missing values, the first in row 5"),
    (["labels.csv"], "target 'y' must have two classes, got 3 classes: 0 (2 bags), 1 (2 bags), 2 (1 bags)"),
    (["unlabelled.csv"], "{0}/unlabelled.csv: target 'y' has 1 missing values, the first in row 6"),
    (["fine.csv", "--bags", "patient"], "{0}/fine.csv: no bag column 'patient'; columns are 'bag', 'x', 'y'"),
    (["fine.csv", "--bags", "y"], "--bags and --target must name two columns, got 'y' for both"),
    (["fine.csv", "--loss", "sonx"], f"fit: --loss must be one of {', '.join(METHODS['bags'])}, got 'sonx'"),
    (["fine.csv", "--model", "mlp"], "moreauc fit: --model does not go with --bags, got 'mlp'"),
    (["fine.csv", "--id", "x"], "moreauc fit: --id does not go with --bags, whose column names them, got 'x'"),
    (["fine.csv"], "no positives in the test split: the table has 2, of which --test-size 0.25 takes 0"),
    (["fine.csv", "--test-size", "0.5", "--min-tpr", "0.7"], "test bags: with 1 positive, --min-tpr 0.7 leaves none"),
    (["fine.csv", "--groups", "y"], "moreauc fit: --bags and --groups exclude each other, got 'bag' and 'y'"),
]
GROUP_ERRORS = [
    (["--groups", "colour"], "no group column 'colour'; columns are 'age', 'dose', 'gap', 'ward', 'race' and 3 more"),
    (["--groups", "race,"], "--groups must name columns, with commas between them, got 'race,'"),
    (["--groups", "race,race"], "--groups must name every column once, got 'race,race'"),
    (["--groups", "race,state"], "--groups and --target must name different columns, got 'state' for both"),
    (["--groups", "gap"], "group column 'gap' has 27 missing values, the first in row 1"),
    (["--groups", "race", "--min-tpr", "0.5"], "--min-tpr is for TPAUC and does not go with --groups, got 0.5"),
    (["--groups", "race", "--dropout", "0.1"], "--dropout does not go with --groups, got 0.1"),
    (["--groups", "race", "--positive", "ill"], "--positive is for TPAUC and does not go with --groups, got 'ill'"),
    (["--groups", "race", "--batch-size", "9"], "--batch-size does not go with --groups; use --groups-per-batch and"),
    (["--groups", "race", "--bags", "sex"], "--bags and --groups exclude each other, got 'sex' and 'race'"),
    (["--groups", "race", "--instances-per-bag", "2"], "--instances-per-bag needs --bags, got 2"),
    (["--groups", "race", "--loss", "sont_att"], "--loss must be one of sonx, exponentiated, erm"),
    (["--groups", "race", "--task", "ranking"], "--task must be one of auto, classification, regression, got"),
    (["--groups", "race", "--model", "tree"], "--model must be one of mlp, linear, got 'tree'"),
    (["--groups", "race", "--task", "regression"], "target 'state' must hold finite numbers for regression, got '"),
    (["--groups", "race", "--top-k", "4"], "top_k must be at most the number of groups, 3"),
    (["--groups", "race", "--top-k", "1.5"], "top_k must be an integer of at least 1, or a share in (0, 1), got 1.5"),
    (["--top-k", "2"], "--top-k needs --groups, got 2.0"),
    (["--task", "auto"], "--task needs --groups, got 'auto'"),
    (["--groups", "race", "--keep-groups", "--drop-groups"], "--keep-groups and --drop-groups exclude each other"),
    (["--drop-groups"], "--drop-groups needs --groups, got True"),
    (["--loss", "erm"], "--loss must be one of sonx, ce, "),
]
FIT_ERRORS = [
    *((["--target", "y", *words], message) for words, message in ROW_ERRORS),
    *((["--target", "y", "--bags", "bag", *words], message) for words, message in BAG_ERRORS),
    *((["--target", "state", "groups.csv", *words], message) for words, message in GROUP_ERRORS),
    (["--target", "y", "fine.csv", "--instances-per-bag", "3"], "--instances-per-bag needs --bags, got 3"),
]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    for name, content in TABLES.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(("words", "message"), FIT_ERRORS)
def test_fit_refuses_with_one_line(tables, tmp_path, words, message):
    before = snapshot(tables)
    words = [tables / word if word in TABLES or word == "missing.csv" else word for word in words]
    assert message.format(tables) in refusal("fit", *words, "--out", tmp_path / "deep" / "run")
    assert snapshot(tables) == before and not list(tmp_path.iterdir())


def test_an_output_folder_with_something_in_it(trained, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / "report.html").write_text("old")
    before = snapshot(tmp_path)
    command = ["fit", trained / "data.csv", "--target", "state", "--out", out, *QUICK]
    assert refusal(*command).startswith(f"{out}: the folder is not empty; ")
    assert snapshot(tmp_path) == before
    # a run that fails after the folder was found free for --force changes nothing either
    refusal(*command, "--force", "--device", "abacus")
    assert snapshot(tmp_path) == before
    done(*command, "--force")
    assert sorted(path.name for path in out.iterdir()) == sorted([*FILES, "notes.txt"])
    assert (out / "notes.txt").read_text() == "mine" and (out / "report.html").read_text() != "old"
    (tmp_path / "file").write_text("mine")
    assert refusal(*command[:4], "--out", tmp_path / "file", "--force") == (
        f"{tmp_path / 'file'}: is a file, --out needs a folder"
    )
    before = snapshot(trained)
    words = ["evaluate", trained / "run", trained / "data.csv", "--out", trained / "run", "--force"]
    assert refusal(*words).startswith(f"{trained / 'run'}: holds a model, ")
    assert snapshot(trained) == before


def test_results_go_to_a_new_folder_where_none_is_named(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["fit", trained / "data.csv", "--target", "state", "--model", "linear", "--baselines", "none"]
    for name in ("data", "data-2", "data-3"):
        assert done(*words).stdout.splitlines()[-1] == f"Report: {Path('reports') / name / 'report.html'}"
    (tmp_path / "reports" / "data" / "report.html").write_text("old")
    assert "reports/data/report.html" in done(*words, "--force").stdout
    assert (tmp_path / "reports" / "data" / "report.html").read_text() != "old"
    report = json.loads((tmp_path / "reports" / "data-2" / "report.json").read_text())
    assert (report["settings"]["min_tpr"], report["settings"]["max_fpr"]) == REGION
    assert "--out reports/data-2 " in report["command"]
    assert "reports/data-comparison/report.html" in done("compare", *words[1:4], *FEW, "--methods", "lr").stdout


def test_options_of_the_training_reach_it(trained, tmp_path):
    given = ["--surrogate", "logistic", "--patience", 1, "--dropout", 0.25, "--device", "cpu", "--fpr-budget", 0.2]
    words = ["fit", trained / "data.csv", "--target", "state", "--epochs", 30, "--baselines", "none", *given]
    done(*words, "--out", tmp_path / "run")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    wanted = {"patience": 1, "dropout": 0.25, "device": "cpu", "fpr_budget": 0.2}
    assert {name: report["settings"][name] for name in wanted} == wanted
    assert load_model(tmp_path / "run").model.loss_options == {"surrogate": "logistic"}
    assert len(report["history"]["SONX"]["rows"]) < 30


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
        (tmp_path / "run" / "report.html").write_text("theirs")
    place = Path(str(caught.value).split("the results are in ")[1])  # what was finished is not thrown away
    files = {"run": None, "run/report.html": b"theirs", place.name: None}
    assert snapshot(tmp_path) == {**files, f"{place.name}/log.txt": b"", f"{place.name}/report.html": b"ours"}


def test_warnings_go_to_the_log(tmp_path):
    (tmp_path / "run").mkdir()  # an empty folder is taken
    with run_folder(tmp_path / "run", force=False), warnings.catch_warnings():
        logging.captureWarnings(True)  # the surrounding filter of the tests was set before
        warnings.simplefilter("always")
        warnings.warn("few rows", UserWarning, stacklevel=1)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "WARNING" in log and "few rows" in log and len(list(tmp_path.iterdir())) == 1


SCORE_ERRORS = [
    (["nowhere", "data.csv"], "{0}/nowhere: no such folder; "),
    (["hollow", "data.csv"], "{0}/hollow: holds no model.joblib; "),
    (["broken", "data.csv"], "{0}/broken/model.joblib: the model cannot be read: "),
    (["foreign", "data.csv"], "{0}/foreign/model.joblib: not a model of `moreauc fit`, got dict"),
    (["run", "missing.csv"], "{0}/missing.csv: no such file"),
    (["run", "narrow.csv"], "{0}/narrow.csv: columns 'dose', 'ward' missing"),
    (["run", "text.csv"], "{0}/text.csv: column 'age' must hold numbers, as in training, got 'old' in row 1"),
]


@pytest.fixture(scope="module")
def scoring(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scoring")
    shutil.copytree(trained / "run", folder / "run")
    for name in ("hollow", "broken", "foreign"):
        (folder / name).mkdir()
    (folder / "broken" / "model.joblib").write_bytes(b"no pickle")
    joblib.dump({"a": 1}, folder / "foreign" / "model.joblib")
    table = rows_table(30)
    table.to_csv(folder / "data.csv", index=False)
    table.drop(columns=["dose", "ward"]).to_csv(folder / "narrow.csv", index=False)
    table.assign(age="old").to_csv(folder / "text.csv", index=False)
    table.drop(columns="state").to_csv(folder / "unlabelled.csv", index=False)
    table.assign(state="well").to_csv(folder / "well.csv", index=False)
    table.assign(state="dead").to_csv(folder / "other.csv", index=False)
    return folder


@pytest.mark.parametrize(("words", "message"), SCORE_ERRORS)
def test_evaluate_and_predict_refuse_with_one_line(scoring, tmp_path, words, message):
    before = snapshot(scoring)
    for command, out in (("predict", "scores.csv"), ("evaluate", "report")):
        line = refusal(command, *(scoring / word for word in words), "--out", tmp_path / out)
        assert line.startswith(message.format(scoring))
    assert snapshot(scoring) == before and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "table", "message"),
    [
        (["evaluate"], "unlabelled.csv", "no target column 'state'; columns are 'age', 'dose', 'gap', 'ward'"),
        (["evaluate"], "well.csv", "there are no positives (state = ill) among its 30 rows"),
        (["evaluate"], "other.csv", "target 'state' must be 'well' or 'ill', got 'dead' in row 1"),
        (["predict", "--out", "s.csv", "--instances", "i.csv"], "data.csv", "--instances needs a model of bags"),
    ],
)
def test_a_table_that_does_not_go_with_the_command(scoring, tmp_path, monkeypatch, command, table, message):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(*command, scoring / "run", scoring / table)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("scores.txt", "unknown kind of file .txt, "),
        ("folder.csv", "is a folder, --out needs a file"),
        ("old.csv", "the file exists; choose another --out, "),
        ("none/scores.csv", "there is no folder {0}/none"),
    ],
)
def test_predict_refuses_places(scoring, tmp_path, out, message):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "old.csv").write_text("mine")
    before = snapshot(tmp_path)
    line = refusal("predict", scoring / "run", scoring / "data.csv", "--out", tmp_path / out)
    assert line.startswith(f"{tmp_path / out}: {message.format(tmp_path)}")
    assert snapshot(tmp_path) == before


def test_a_traceback_is_there_for_who_asks(tmp_path):
    result = call("--traceback", "predict", tmp_path, tmp_path / "x.csv", "--out", tmp_path / "y.csv")
    assert isinstance(result.exception, ValueError) and result.exit_code == 1


@pytest.fixture(scope="module")
def compared(trained, tmp_path_factory):
    """The smallest comparison, of a table and in one process."""
    out = tmp_path_factory.mktemp("compared") / "out"
    words = ["compare", trained / "data.csv", "--target", "state", "--out", out, *FEW]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli_console, "PAUSE", float("inf"))  # no lines of progress, however slow the machine
        return out, done(*words, "--methods", "lr, ce,lightgbm")


def test_compare_prints_a_ranked_table_and_leaves_a_report(compared):
    out, result = compared
    lines = result.stdout.splitlines()
    assert result.stderr == "" and lines[0].endswith(
        "40 of 240 rows are positive (state = ill, the rarer of two values)."
    )
    assert lines[-1] == f"Report: {out / 'report.html'}"
    assert sorted(path.name for path in out.iterdir()) == ["log.txt", "report.html", "report.json"]
    report = json.loads((out / "report.json").read_text())
    ranked = sorted(report["rows"], key=lambda row: row["rank"])
    assert {row["method"] for row in ranked} == {"lr", "ce", "lightgbm"}
    assert [row["mean"] for row in ranked] == sorted((row["mean"] for row in ranked), reverse=True)
    cells = [line.strip("│").split("│") for line in lines if line.startswith("│")]
    assert [(cell[0].strip(), float(cell[1])) for cell in cells] == [
        (row["title"], pytest.approx(row["mean"], abs=1e-4)) for row in ranked
    ]
    assert "6 of 6 pieces of work done" in (out / "log.txt").read_text()
    assert lines[-3] == f"{ranked[0]['title']} has the highest TPAUC on this table: {ranked[0]['mean']:.3f}."


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys, monkeypatch):
    with progress_bar("folds", 4.0) as advance:
        advance(1.0)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(cli_console, "PAUSE", 0.0)
    with progress_bar("folds", 4.0) as advance:
        advance(1.0)
        advance(3.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["folds: 25%, 0 s, about 0 s left", "folds: 100%, 0 s, about 0 s left"]


def test_a_figure_that_fails_costs_no_comparison(trained, tmp_path, monkeypatch):
    def fail(*values):
        raise RuntimeError("no font")

    monkeypatch.setattr(compare, "compare_sections", fail)
    out = tmp_path / "out"
    result = call("compare", trained / "data.csv", "--target", "state", "--out", out, "--methods", "lr", *FEW)
    wanted = f"error: {out / 'report.json'}: the numbers are saved here, but what comes after it failed: "
    assert result.exit_code == 2 and f"{wanted}RuntimeError: no font" in result.output
    assert sorted(path.name for path in out.iterdir()) == ["log.txt", "report.json"]
    assert json.loads((out / "report.json").read_text())["description"]


def test_compare_on_an_example_says_how_it_was_made(tmp_path):
    result = done("compare", "--example", "diabetes", "--out", tmp_path / "out", "--methods", "lr", *FEW)
    for text in (result.stdout, (tmp_path / "out" / "report.html").read_text()):
        assert "44 of 442 patients are" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a table with --target, or --example"),
        (["tiny.csv", "--example", "digits"], "give a table or --example, not both"),
        (["tiny.csv"], "{0}/tiny.csv: --target must name the column"),
        (["--example", "iris"], "moreauc compare: --example must be one of digits, breast_cancer, diabetes, fraud,"),
        (["--example", "digits", "--drop", "a"], "--target, --positive, --id and --drop go with a table"),
        (["three.csv", "--target", "a"], "{0}/three.csv: target 'a' must have two classes, got 3 classes: "),
        (["tiny.csv", "--target", "y", "--methods", "sonx,tree"], "moreauc compare: --methods must be one of "),
        (["tiny.csv", "--target", "y", "--methods", "ce,ce"], "moreauc compare: --methods must name each once, got"),
        (["tiny.csv", "--target", "y", "--methods", "ce"], "Comparison: y must have enough positives for 5 folds"),
        (["tiny.csv", "--target", "y", "--min-tpr", "1"], "moreauc compare: --min-tpr must be a number in [0, 1),"),
    ],
)
def test_compare_refuses_with_one_line(tables, tmp_path, words, message):
    named = [tables / word if word.endswith(".csv") else word for word in words]
    assert refusal("compare", *named, "--out", tmp_path / "deep" / "out").startswith(message.format(tables))
    assert not list(tmp_path.iterdir())


def test_boosters_that_are_not_installed_are_named(monkeypatch):
    assert compare.choose_methods(None) == (tuple(name for name in method_names("rows") if name != "auto"), [])
    monkeypatch.setitem(sys.modules, "xgboost", None)
    chosen, lines = compare.choose_methods(None)
    assert chosen == (*METHODS["rows"], "linear", "trees", "lr", "forest", "lightgbm")
    assert lines == ["XGBoost is left out: it is not installed; pip install 'moreauc[boosting]' brings it"]
    with pytest.raises(ValueError, match=r"XGBoost is not installed; pip install 'moreauc\[boosting\]' brings it"):
        compare.choose_methods("sonx,xgboost")
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(ValueError, match="LightGBM is not installed"):
        compare.choose_methods("sonx,trees")


@pytest.mark.parametrize("command", ["fit", "evaluate", "predict", "compare", "example"])
def test_every_option_is_in_the_docs_and_no_other(command):
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## `moreauc {command}`.*?(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL)
    named, there = (set(re.findall(r"--[a-z][a-z-]*", text)) for text in (section, call(command, "--help").output))
    assert named == there - {"--help"}


def test_scores_are_predicted_without_the_library_of_figures():
    code = "import sys, moreauc.app.cli.predict; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_a_collapsed_model_is_no_winner_and_is_named(trained, monkeypatch, tmp_path):
    """One score for all rows: TPAUC 0 at (0.5, 0.5), and a warning on the terminal, on the page and in the log."""
    monkeypatch.setattr(TPAUCClassifier, "decision_function", lambda self, X: np.zeros(len(X)))
    options = ["--epochs", "2", "--min-tpr", "0.5", "--max-fpr", "0.5"]
    result = done("fit", trained / "data.csv", "--target", "state", "--out", tmp_path / "run", *options)
    line = "100.0% of the rows of the region have a score that rows of the other class have too"
    for text in (result.stderr, *((tmp_path / "run" / name).read_text() for name in ("report.html", "log.txt"))):
        assert f"SONX: {line}" in text
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [(row["tpauc"]["estimate"] == 0.0, row["tied"] == 1.0) for row in report["test"]] == [(1, 1), (0, 0)]
    assert line in call("evaluate", tmp_path / "run", trained / "data.csv").output


def test_an_example_is_written(tmp_path):
    out = tmp_path / "new" / "payments.csv"
    assert f"moreauc fit {out} --target target" in done("example", "fraud", "--out", out).stdout
    assert pd.read_csv(out)["target"].mean() == pytest.approx(0.02, abs=0.005)
    assert "the file exists" in refusal("example", "fraud", "--out", out)
    done("example", "fraud", "--out", out, "--force")
    assert re.search("NAME must be one of digits.*did you mean 'fraud'", refusal("example", "frod"))
