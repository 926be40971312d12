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
from tests.cli_cases import FILES, call, groups_table, rows_table, snapshot, train

pytestmark = pytest.mark.usefixtures("blank_figures")

ROOT = Path(__file__).parent.parent
QUICK = ["--epochs", "2", "--min-tpr", "0.4", "--max-fpr", "0.5"]
make_table = rows_table


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a table and a run on it."""
    return train("rows", tmp_path_factory.mktemp("cli")).folder


def test_what_commands_log_is_not_printed_beside_what_they_print():
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("moreauc.app.cli").handlers)


@pytest.mark.parametrize("column", ["age", "ward"])
def test_a_column_without_values_is_told(trained, tmp_path, column):
    new = tmp_path / "new.csv"
    warning = f"warning: {new}: column {column!r} holds missing values only, and held others in training; scores may"
    make_table(60, seed=3).assign(**{column: None}).to_csv(new, index=False)
    for words in (
        ["predict", trained / "run", new, "--out", tmp_path / "scores.csv"],
        ["evaluate", trained / "run", new],
        ["fit", trained / "data.csv", "--target", "state", "--out", tmp_path / "run", *QUICK, "--test", new],
    ):
        result = call(*words)
        assert result.exit_code == 0 and warning in result.stderr
    make_table(1, seed=3).assign(**{column: None}).to_csv(new, index=False)
    result = call("predict", trained / "run", new, "--out", tmp_path / "scores.csv", "--force")
    assert result.exit_code == 0 and result.stderr == ""


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_spaces_and_accents_change_no_decision(trained, tmp_path, suffix):
    frame = make_table(60, seed=3)
    spelt = frame.assign(
        ward=frame["ward"].map({"A": "A ", "B": "\u00a0B", "C": "C\u200b"}), state=frame["state"] + " "
    )
    spelt = spelt.rename(columns={"ward": "ward\u00a0", "age": " age"})
    for name, table in (("plain", frame), ("spelt", spelt)):
        write_table(table, tmp_path / f"{name}.{suffix}")
        result = call(
            "predict", trained / "run", tmp_path / f"{name}.{suffix}", "--out", tmp_path / f"{name}-scores.csv"
        )
        assert result.exit_code == 0, result.output
    assert (tmp_path / "plain-scores.csv").read_bytes() == (tmp_path / "spelt-scores.csv").read_bytes()
    shown = [call("evaluate", trained / "run", tmp_path / f"{name}.{suffix}").stdout for name in ("plain", "spelt")]
    assert shown[0].replace("plain", "") == shown[1].replace("spelt", "") and "TPAUC" in shown[0]


def test_as_a_program(trained, tmp_path):
    """In a real process, errors go to standard error and nothing else does."""
    program, out = Path(sys.executable).parent / "moreauc", tmp_path / "scores.csv"
    out.write_text("mine")
    command = [program, "predict", trained / "run", trained / "data.csv", "--out", out]
    refused = subprocess.run(command, capture_output=True, text=True)
    line = f"error: {out}: the file exists; choose another --out, or replace it with --force\n"
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", line)


def test_columns_that_number_rows_are_named(tmp_path):
    frame = make_table().assign(case=np.arange(240) + 1000, patient_id=np.random.default_rng(0).permutation(240))
    frame.to_csv(tmp_path / "data.csv", index=False)
    words = [tmp_path / "data.csv", "--target", "state", "--out", tmp_path / "run"]
    result = call("fit", *words, "--epochs", "1", "--loss", "ce", "--baselines", "none")
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
    "latin.csv": b"name,y\ncaf\xe9,1\n",
    "ragged.csv": b"a,y\n1,0\n2,1,3\n",
    "three.csv": b"a,y\n1,0\n2,1\n3,2\n",
    "constant.csv": b"a,b,y\n1,5,0\n2,5,1\n3,5,0\n",
    "mixed.csv": b"a,y\n1,0\nx,1\n3,0\n",
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
    (["latin.csv"], "{0}/latin.csv: not UTF-8, byte 0xe9 at position 10; convert it, for example: iconv -f"),
    (["ragged.csv"], "{0}/ragged.csv: line 3 has 3 fields, the header has 2"),
    (["few.csv", "--target", "Y"], "{0}/few.csv: no target column 'Y'; did you mean 'y'?"),
    (["three.csv"], "target 'y' must have two classes, got 3 classes: 0 (1 rows), 1 (1 rows), 2 (1 rows)"),
    (["constant.csv"], "{0}/constant.csv: column 'b' holds one value only; leave out with --drop b"),
    (["mixed.csv"], "{0}/mixed.csv: column 'a' mixes numbers and text: 1 in row 1, 'x' in row 2; make it one kind,"),
    (["few.csv"], "no positives in the test split: the table has 2, of which --test-size 0.25 takes 0"),
    (["few.csv", "--test-size", "0.9"], "no positives in the training split: the table has 2, of which --test-size"),
    (["few.csv", "--test-size", "1.5"], "--test-size must be in (0, 1), got 1.5"),
    (["few.csv", "--test-size", "0.5", "--test", "x.csv"], "--test and --test-size exclude each other"),
    (["tiny.csv", "--min-tpr", "0.7"], "test rows: with 1 positive, --min-tpr 0.7 leaves none in the region; TPAUC"),
    (["tiny.csv", "--min-tpr", "0", "--max-fpr", "0.05"], "test rows: with 9 negatives, --max-fpr 0.05 leaves none"),
    (["tiny.csv", "--min-tpr", "1"], "moreauc fit: --min-tpr must be a number in [0, 1), got 1.0"),
    (["tiny.csv", "--max-fpr", "0"], "moreauc fit: --max-fpr must be a number in (0, 1], got 0.0"),
    (["tiny.csv", "--loss", "mse"], f"moreauc fit: --loss must be one of {', '.join(METHODS['rows'])}, got 'mse'"),
    (["tiny.csv", "--drop", "b"], "{0}/tiny.csv: no column to drop 'b'; columns are 'a'"),
    (["tiny.csv", "--drop", "a,b"], "{0}/tiny.csv: no column to drop 'b'; columns are 'a'"),
    (["tiny.csv", "--drop", "a,"], "--drop must name columns, with commas between them, got 'a,'"),
    (["tiny.csv", "--id", "b"], "{0}/tiny.csv: no id column 'b'; columns are 'a'"),
    (["tiny.csv", "--epochs", "9", "--model", "linear"], "moreauc fit: --epochs does not go with --model linear,"),
    (["tiny.csv", "--dropout", "0.5", "--model", "linear"], "moreauc fit: --dropout needs --model mlp, got 0.5"),
    (["tiny.csv", "--loss", "ce", "--surrogate", "logistic"], "moreauc fit: --surrogate is for losses of pairs, and"),
    (["tiny.csv", "--max-fpr", "0.5", "--surrogate", "cubic"], "moreauc fit: --surrogate must be one of"),
    (["tiny.csv", "--max-fpr", "0.5", "--fpr-budget", "2"], "--fpr-budget must be a number in [0, 1], got 2.0"),
    (["tiny.csv", "--max-fpr", "0.5", "--device", "abacus"], "device must be one that torch has here, such as 'cpu'"),
    (["tiny.csv", "--baselines", "tree"], "moreauc fit: --baselines must be one of none, "),
    (["tiny.csv", "--min-tpr", "0", "--model", "tree"], "moreauc fit: --model must be one of mlp, linear, trees,"),
    (["tiny.csv", "--loss", "ce", "--model", "trees"], "moreauc fit: --loss does not go with --model trees, got 'ce'"),
    (["tiny.csv", "--epochs", "9", "--model", "auto"], "moreauc fit: --epochs does not go with --model auto, got 9"),
    (["tiny.csv", "--surrogate", "logistic", "--model", "auto"], "moreauc fit: --surrogate does not go with --model"),
    (["tiny.csv", "--max-fpr", "0.5", "--lr", "-1"], "moreauc fit: --lr must be a number in (0, inf), got -1.0"),
]
BAG_ERRORS = [
    (["differ.csv"], "target 'y' must be the same inside a bag, got 1 in row 3 and 0 in row 4 of bag 'b'"),
    (["gap.csv"], "{0}/gap.csv: bag column 'bag' has 1 missing values, the first in row 5"),
    (["labels.csv"], "target 'y' must have two classes, got 3 classes: 0 (2 bags), 1 (2 bags), 2 (1 bags)"),
    (["unlabelled.csv"], "{0}/unlabelled.csv: target 'y' has 1 missing values, the first in row 6"),
    (["fine.csv", "--bags", "patient"], "{0}/fine.csv: no bag column 'patient'; columns are 'bag', 'x', 'y'"),
    (["fine.csv", "--bags", "y"], "--bags and --target must name two columns, got 'y' for both"),
    (["fine.csv", "--target", "z"], "{0}/fine.csv: no target column 'z'; columns are 'bag', 'x', 'y'"),
    (["fine.csv", "--loss", "sonx"], f"moreauc fit: --loss must be one of {', '.join(METHODS['bags'])}, got 'sonx'"),
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
    (["--groups", "race", "--max-fpr", "0.2"], "--max-fpr is for TPAUC and does not go with --groups, got 0.2"),
    (["--groups", "race", "--fpr-budget", "0.1"], "--fpr-budget is for TPAUC and does not go with --groups, got 0.1"),
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
    (["--keep-groups"], "--keep-groups needs --groups, got True"),
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
    result = call("fit", *words, "--out", tmp_path / "deep" / "run")
    assert result.exit_code == 2 and message.format(tables) in result.stderr
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert snapshot(tables) == before and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["--epochs", "many"],
        ["--seed", str(2**32)],
        ["--epochs", "0"],
        ["--seed", "-1"],
        ["--batch-size", "1"],
        ["--colour", "red"],
    ],
)
def test_a_bad_option_is_refused(tables, tmp_path, words):
    result = call("fit", tables / "tiny.csv", "--target", "y", "--out", tmp_path / "run", *words)
    assert result.exit_code == 2 and words[0] in result.stderr
    assert not list(tmp_path.iterdir())


def test_an_output_folder_with_something_in_it(trained, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / "report.html").write_text("old")
    before = snapshot(tmp_path)
    command = ["fit", trained / "data.csv", "--target", "state", "--out", out, *QUICK]
    result = call(*command)
    line = f"error: {out}: the folder is not empty; choose another --out, or replace its report with --force\n"
    assert (result.exit_code, result.stderr) == (2, line)
    assert snapshot(tmp_path) == before
    # a run that fails after the folder was found free for --force changes nothing either
    assert call(*command, "--force", "--device", "abacus").exit_code == 2
    assert snapshot(tmp_path) == before
    assert call(*command, "--force").exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == sorted([*FILES, "notes.txt"])
    assert (out / "notes.txt").read_text() == "mine" and (out / "report.html").read_text() != "old"


def test_results_go_to_a_new_folder_where_none_is_named(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["fit", trained / "data.csv", "--target", "state", "--loss", "ce", "--epochs", 1, "--baselines", "none"]
    for name in ("data", "data-2", "data-3"):
        assert call(*words).stdout.splitlines()[-1] == f"Report: {Path('reports') / name / 'report.html'}"
    (tmp_path / "reports" / "data" / "report.html").write_text("old")
    result = call(*words, "--force")
    assert result.stdout.splitlines()[-1] == f"Report: {Path('reports') / 'data' / 'report.html'}"
    assert (tmp_path / "reports" / "data" / "report.html").read_text() != "old"
    report = json.loads((tmp_path / "reports" / "data-2" / "report.json").read_text())
    assert (report["settings"]["min_tpr"], report["settings"]["max_fpr"]) == REGION
    assert "--out reports/data-2 " in report["command"]
    few = ["--folds", "2", "--inner-folds", "2", "--trials", "1", "--jobs", "1", "--methods", "lr"]
    assert "reports/data-comparison/report.html" in call("compare", *words[1:4], *few).stdout


def test_options_of_the_training_reach_it(trained, tmp_path):
    given = ["--surrogate", "logistic", "--patience", 1, "--dropout", 0.25, "--device", "cpu", "--fpr-budget", 0.2]
    words = ["fit", trained / "data.csv", "--target", "state", "--epochs", 30, "--baselines", "none", *given]
    assert call(*words, "--out", tmp_path / "run").exit_code == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    settings, model = report["settings"], load_model(tmp_path / "run").model
    wanted = {"patience": 1, "dropout": 0.25, "device": "cpu", "fpr_budget": 0.2}
    assert {name: settings[name] for name in wanted} == wanted and model.loss_options == {"surrogate": "logistic"}
    assert len(report["history"]["SONX"]["rows"]) < 30


def test_a_reader_that_has_seen_enough_ends_a_command_without_a_word(trained):
    program = Path(sys.executable).parent / "moreauc"
    command = [program, "predict", trained / "run", trained / "data.csv"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == ("", 1)
    process.stderr.close()


def test_an_empty_output_folder_is_fine(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    with run_folder(out, force=False) as part:
        (part / "report.json").write_text("{}")
    assert sorted(path.name for path in out.iterdir()) == ["log.txt", "report.json"]
    assert list(tmp_path.iterdir()) == [out]


def test_an_output_path_that_is_a_file(trained, tmp_path):
    (tmp_path / "run").write_text("mine")
    result = call("fit", trained / "data.csv", "--target", "state", "--out", tmp_path / "run", "--force", *QUICK)
    assert (result.exit_code, result.stderr) == (2, f"error: {tmp_path / 'run'}: is a file, --out needs a folder\n")
    assert (tmp_path / "run").read_text() == "mine"


def test_a_report_does_not_come_beside_a_model(trained):
    before = snapshot(trained)
    result = call("evaluate", trained / "run", trained / "data.csv", "--out", trained / "run", "--force")
    message = "holds a model, which a report of this command does not belong to; choose another --out"
    assert (result.exit_code, result.stderr) == (2, f"error: {trained / 'run'}: {message}\n")
    assert snapshot(trained) == before


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
    folder = tmp_path_factory.mktemp("scoring")
    shutil.copytree(trained / "run", folder / "run")
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


def test_instances_need_a_model_of_bags(scoring, tmp_path):
    out = ["--out", tmp_path / "s.csv", "--instances", tmp_path / "i.csv"]
    result = call("predict", scoring / "run", scoring / "data.csv", *out)
    assert result.exit_code == 2 and "--instances needs a model of bags" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_traceback_is_there_for_who_asks(tmp_path):
    result = call("--traceback", "predict", tmp_path, tmp_path / "x.csv", "--out", tmp_path / "y.csv")
    assert isinstance(result.exception, ValueError) and result.exit_code == 1


@pytest.fixture(scope="module")
def compared(trained, tmp_path_factory):
    """The smallest comparison, of a table and in one process."""
    out = tmp_path_factory.mktemp("compared") / "out"
    words = ["--folds", "2", "--inner-folds", "2", "--trials", "1", "--jobs", "1", "--methods", "sonx, ce,lightgbm"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli_console, "PAUSE", float("inf"))  # no lines of progress, however slow the machine
        return out, call("compare", trained / "data.csv", "--target", "state", "--out", out, *words)


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
        (["--example", "iris"], "moreauc compare: --example must be one of digits, breast_cancer, diabetes, fraud,"),
        (["--example", "digits", "--drop", "a"], "--target, --positive, --id and --drop go with a table of yours,"),
        (["three.csv", "--target", "a"], "{0}/three.csv: target 'a' must have two classes, got 3 classes: "),
        (["tiny.csv", "--target", "y", "--methods", "sonx,tree"], "moreauc compare: --methods must be one of "),
        (["tiny.csv", "--target", "y", "--methods", "ce,ce"], "moreauc compare: --methods must name each once, got"),
        (["tiny.csv", "--target", "y", "--methods", "ce"], "Comparison: y must have enough positives for 5 folds"),
        (["tiny.csv", "--target", "y", "--min-tpr", "1"], "moreauc compare: --min-tpr must be a number in [0, 1),"),
    ],
)
def test_compare_refuses_with_one_line(tables, tmp_path, words, message):
    named = [tables / word if word.endswith(".csv") else word for word in words]
    result = call("compare", *named, "--out", tmp_path / "deep" / "out")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message.format(tables)}") and result.stderr.count("\n") == 1
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


def options_of(command: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]*", call(*command.split(), "--help").output))


@pytest.mark.parametrize("command", ["fit", "evaluate", "predict", "compare", "example"])
def test_every_option_in_the_docs_exists(command):
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", page, flags=re.MULTILINE)
    section = next(part for part in sections if part.startswith(f"`moreauc {command}`"))
    named = set(re.findall(r"--[a-z][a-z-]*", section))
    assert named == options_of(command) - {"--help"}


@pytest.mark.parametrize(("call", "heavy"), [("import moreauc.app.cli.predict", {"matplotlib"})])
def test_heavy_modules_are_imported_when_they_are_needed(call, heavy):
    code = f"import sys; from moreauc.app.cli import app; {call}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("set()\n"), done.stdout[-200:] + done.stderr


def test_a_collapsed_model_is_no_winner_and_is_named(trained, monkeypatch, tmp_path):
    """One score for all rows: TPAUC 0 at (0.5, 0.5), and a warning on the terminal, on the page and in the log."""
    monkeypatch.setattr(TPAUCClassifier, "decision_function", lambda self, X: np.zeros(len(X)))
    options = ["--epochs", "2", "--min-tpr", "0.5", "--max-fpr", "0.5"]
    result = call("fit", trained / "data.csv", "--target", "state", "--out", tmp_path / "run", *options)
    assert result.exit_code == 0, result.output
    line = "100.0% of the rows of the region have a score that rows of the other class have too"
    for text in (result.stderr, *((tmp_path / "run" / name).read_text() for name in ("report.html", "log.txt"))):
        assert f"SONX: {line}" in text
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [row["tpauc"]["estimate"] == 0.0 for row in report["test"]] == [True, False]
    assert [row["tied"] == 1.0 for row in report["test"]] == [True, False]
    result = call("evaluate", tmp_path / "run", trained / "data.csv")
    assert line in result.output


def test_an_example_is_written_and_can_be_fitted(tmp_path):
    out = tmp_path / "new" / "payments.csv"
    result = call("example", "fraud", "--out", out)
    assert result.exit_code == 0 and f"moreauc fit {out} --target target" in result.output
    assert pd.read_csv(out)["target"].mean() == pytest.approx(0.02, abs=0.005)
    assert "the file exists" in call("example", "fraud", "--out", out).output
    assert call("example", "fraud", "--out", out, "--force").exit_code == 0
    assert (
        "NAME must be one of digits" in call("example", "frod").output
        and "did you mean 'fraud'?" in call("example", "frod").output
    )
