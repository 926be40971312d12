"""`moreauc fit --bags` and what comes after: bags stay whole, instances are told apart, and clear refusals."""

from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from moreauc.cli import app
from moreauc.cli.options import FitOptions
from moreauc.cli.saved import load_model
from moreauc.data.columns import Target
from moreauc.data.tables import TableError, read_texts, write_table
from moreauc.estimators import MultiInstanceClassifier
from moreauc.methods import METHODS
from moreauc.metrics import tpauc_score
from moreauc.tasks.bag_tables import BagTable, BagTableTask, find_bags
from moreauc.tasks.tables import read_split

RUNNER = CliRunner()
FILES = ["log.txt", "model.joblib", "report.html", "report.json"]
QUICK = ["--epochs", "4", "--min-tpr", "0.3", "--max-fpr", "0.6", "--lr", "0.02"]


def make_table(bags: int = 48, seed: int = 0) -> pd.DataFrame:
    """Patients with 1 to 6 rows that do not stand together; an ill one has a row far out."""
    random = np.random.default_rng(seed)
    rows = []
    for bag in range(bags):
        ill = bag % 4 == 0
        values = random.normal(size=(random.integers(1, 7), 3))
        values[-1, 0] += 6.0 * ill
        for number, row in enumerate(values):
            rows.append((f"p{bag}", *row, random.choice(["A", "B"]), "ill" if ill else "well", number))
    frame = pd.DataFrame(rows, columns=["patient", "size", "shape", "gap", "stain", "state", "order"])
    frame.loc[::9, "gap"] = np.nan
    return frame.drop(columns="order").iloc[random.permutation(len(frame))].reset_index(drop=True)


def call(*words: object):
    return RUNNER.invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a table of bags and a run on it."""
    folder = tmp_path_factory.mktemp("bags")
    make_table().to_csv(folder / "data.csv", index=False)
    words = ["fit", folder / "data.csv", "--bags", "patient", "--target", "state", "--out", folder / "run", *QUICK]
    result = call(*words)
    assert result.exit_code == 0, result.output
    return folder, result


def by_hand(folder, frame: pd.DataFrame) -> tuple[list[str], np.ndarray]:
    """Return patients in the order of their first row, and their scores over the threshold, bag by bag."""
    saved = load_model(folder / "run")
    names = list(dict.fromkeys(frame["patient"]))
    columns = frame[list(saved.task.kinds)]
    bags = [saved.task.instance_encoder.encode(columns[(frame["patient"] == name).to_numpy()]) for name in names]
    return names, saved.model.decision_function(bags)


def test_fit_prints_a_table_and_leaves_four_files(trained):
    folder, result = trained
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == "Positive class: state = ill (the rarer of two values)"
    assert lines[1].strip() == "Test bags: 12"
    assert lines[-1] == f"Report: {folder / 'run' / 'report.html'}"
    assert sorted(path.name for path in (folder / "run").iterdir()) == FILES
    log = (folder / "run" / "log.txt").read_text()
    assert "36 bags to train on, 12 to test on" in log and log.count("train epoch") == 8


def test_numbers_of_the_report_are_those_of_the_model(trained):
    folder, _ = trained
    report = json.loads((folder / "run" / "report.json").read_text())
    data, frame = report["data"], make_table()
    assert data["bags"] == "patient" and data["target"] == {"column": "state", "positive": "ill", "negative": "well"}
    assert data["columns"] == {"size": "number", "shape": "number", "gap": "number", "stain": "text"}
    assert [data[part][name] for part in ("training", "test") for name in ("bags", "positives")] == [36, 9, 12, 3]
    assert data["training"]["instances"] + data["test"]["instances"] == len(frame)
    assert [entry["title"] for entry in report["test"]] == [
        METHODS["bags"][name].title for name in ("sont_att", "ce_att")
    ]
    assert report["settings"]["loss"] == "sont_att" and report["settings"]["epochs"] == 4
    assert report["settings"]["num_positives"] == MultiInstanceClassifier().num_positives
    best, hardest = report["instances"]
    assert best["label"] == 1 and len(best["weight"]) == min(best["size"], 10)
    assert sum(best["weight"]) == pytest.approx(1.0, abs=1e-3)
    assert best["weight"] == sorted(best["weight"], reverse=True)
    for entry in (best, hardest):
        assert (frame["patient"][np.array(entry["rows"]) - 1] == entry["bag"]).all()
        names, scores = by_hand(folder, frame)
        assert entry["distance"] == pytest.approx(scores[names.index(entry["bag"])], rel=1e-3)


def test_the_page_shows_instances(trained):
    page = (trained[0] / "run" / "report.html").read_text()
    report = json.loads((trained[0] / "run" / "report.json").read_text())
    for heading in ("Instances of the best scored positive bag", "Instances of the hardest bag", "Training", "Data"):
        assert f"<h2>{heading}</h2>" in page
    assert page.count("data:image/png") == 6
    assert f"Weights of the instances of {report['instances'][0]['bag']} by SONT (attention)" in page
    assert "bootstrap interval over test bags" in page


def test_the_test_score_is_that_of_the_bags_it_has_not_seen(trained, tmp_path):
    folder, _ = trained
    frame = make_table()
    report = json.loads((folder / "run" / "report.json").read_text())
    saved = load_model(folder / "run")
    assert isinstance(saved.task, BagTableTask) and saved.task.column == "patient"
    names, scores = by_hand(folder, frame)
    labels = np.array([int(name[1:]) % 4 == 0 for name in names])
    held = np.random.default_rng(0)
    test = np.sort(
        np.concatenate(
            [held.choice(np.flatnonzero(labels == kind), count, replace=False) for kind, count in ((1, 3), (0, 9))]
        )
    )
    expected = tpauc_score(labels[test], scores[test], min_tpr=0.3, max_fpr=0.6)
    assert report["test"][0]["tpauc"]["estimate"] == pytest.approx(expected, abs=1e-4)


def test_the_command_in_the_report_makes_the_same_numbers_again(trained, tmp_path):
    folder, _ = trained
    first = json.loads((folder / "run" / "report.json").read_text())
    words = first["command"].replace(str(folder / "run"), str(tmp_path / "again")).split()[1:]
    assert "--bags" in words
    assert call(*words).exit_code == 0
    assert json.loads((tmp_path / "again" / "report.json").read_text())["test"] == first["test"]


def test_fit_with_a_test_file_another_method_and_batches(trained, tmp_path):
    folder, _ = trained
    make_table(24, seed=1).to_parquet(tmp_path / "other.parquet")
    words = ["fit", folder / "data.csv", "--bags", "patient", "--target", "state", "--out", tmp_path / "run", *QUICK]
    words += ["--test", tmp_path / "other.parquet", "--loss", "ce_att", "--instances-per-bag", "2"]
    result = call(*words, "--batch-size", "7", "--drop", "stain", "--positive", "well")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["data"]["test"]["bags"] == 24 and report["data"]["test"]["positives"] == 18
    assert "stain" not in report["data"]["columns"]
    assert [entry["title"] for entry in report["test"]] == [METHODS["bags"]["ce_att"].title]
    settings = report["settings"]
    assert [settings[name] for name in ("instances_per_bag", "num_positives", "num_negatives")] == [2, 3, 4]


def test_evaluate_prints_the_numbers(trained):
    folder, _ = trained
    result = call("evaluate", folder / "run", folder / "data.csv")
    assert result.exit_code == 0, result.output
    assert "data.csv: 48 bags, 12 positives" in result.stdout
    names, scores = by_hand(folder, make_table())
    labels = np.array([int(name[1:]) % 4 == 0 for name in names])
    assert f"{tpauc_score(labels, scores, min_tpr=0.3, max_fpr=0.6):.4f}" in result.stdout


def test_evaluate_leaves_a_report_where_asked(trained, tmp_path):
    folder, _ = trained
    make_table(20, seed=3).to_csv(tmp_path / "new.csv", index=False)
    result = call("evaluate", folder / "run", tmp_path / "new.csv", "--out", tmp_path / "report")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["log.txt", "report.html", "report.json"]
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["data"]["bags"] == 20 and len(report["instances"]) == 2
    assert result.stdout.splitlines()[-1] == f"Report: {tmp_path / 'report' / 'report.html'}"


@pytest.mark.parametrize("with_target", [True, False])
def test_predict_writes_bags_and_instances(trained, tmp_path, with_target):
    folder, _ = trained
    frame = make_table(20, seed=5)
    frame.loc[0, "stain"] = "never seen"
    table = frame if with_target else frame.drop(columns="state")
    table[table.columns[::-1]].to_csv(tmp_path / "new.csv", index=False)
    out, parts = tmp_path / "scores.csv", tmp_path / "instances.parquet"
    result = call("predict", folder / "run", tmp_path / "new.csv", "--out", out, "--instances", parts)
    assert result.exit_code == 0, result.output
    scores, instances = pd.read_csv(out), pd.read_parquet(parts)
    assert list(scores) == ["bag", "score", "probability", "decision"]
    names, expected = by_hand(folder, frame)
    assert scores["bag"].tolist() == names
    np.testing.assert_allclose(scores["score"], expected, rtol=1e-5, atol=1e-7)
    assert ((scores["score"] > 0) == (scores["decision"] == "ill")).all()
    assert scores["probability"].between(0, 1).all()
    assert list(instances) == ["bag", "row", "score", "weight"]
    assert sorted(instances["row"]) == list(range(1, len(frame) + 1))
    assert (frame["patient"].to_numpy()[instances["row"] - 1] == instances["bag"]).all()
    np.testing.assert_allclose(instances.groupby("bag")["weight"].sum(), 1.0)
    pooled = (instances["score"] * instances["weight"]).groupby(instances["bag"]).sum()
    threshold = load_model(folder / "run").model.threshold_
    np.testing.assert_allclose(pooled[names] - threshold, expected, rtol=1e-4, atol=1e-6)
    called = (scores["decision"] == "ill").sum()
    lines = [f"{called} of 20 bags are called state = ill", f"Scores: {out}", f"Instances: {parts}"]
    assert result.stdout.splitlines() == lines
    assert f"column 'stain' holds levels that were not there in training in 1 of {len(frame)} rows" in result.stderr


def test_unknown_stains_and_bags_that_are_trained_on(trained, tmp_path):
    folder, _ = trained
    new = make_table(24, seed=1)
    new.assign(stain="C").to_csv(tmp_path / "new.csv", index=False)
    fit = ["fit", folder / "data.csv", "--bags", "patient", "--target", "state", *QUICK, "--loss", "ce_att"]
    fit += ["--epochs", "1", "--out", tmp_path / "again"]
    refusal = f"error: {tmp_path / 'new.csv'}: column 'stain' must hold levels of the training ('A', 'B'), got others"
    for words in (
        ["evaluate", folder / "run", tmp_path / "new.csv"],
        ["predict", folder / "run", tmp_path / "new.csv", "--out", tmp_path / "scores.csv"],
        [*fit, "--test", tmp_path / "new.csv"],
    ):
        result = call(*words)
        assert result.exit_code == 2 and result.stderr.startswith(refusal), result.output
    new.loc[::2, "stain"] = "C"
    new.to_csv(tmp_path / "new.csv", index=False)
    assert "(50." in call("evaluate", folder / "run", tmp_path / "new.csv", "--out", tmp_path / "report").stderr
    shares = json.loads((tmp_path / "report" / "report.json").read_text())["data"]["unknown_levels"]
    assert shares == {"stain": pytest.approx(0.5, abs=0.01)}
    frame = make_table()
    frame[::-1].assign(patient=frame["patient"] + "x").to_csv(tmp_path / "turned.csv", index=False)
    result = call(*fit, "--test", tmp_path / "turned.csv")
    assert result.exit_code == 2 and "--test holds the same bags as" in result.stderr
    known = frame[frame["patient"].isin(["p0", "p1", "p2"])]
    pd.concat([make_table(21, seed=1).assign(patient=lambda new: "n" + new["patient"]), known]).to_csv(
        tmp_path / "some.csv", index=False
    )
    result = call(*fit, "--test", tmp_path / "some.csv")
    assert result.exit_code == 0 and "3 of 24 bags of " in result.stderr and "(12.5%) equal bags that" in result.stderr


def test_equal_bags_are_on_one_side(tmp_path):
    frame = make_table(40)
    copy = frame.assign(patient="copy of " + frame["patient"])
    pd.concat([frame, copy[::-1]]).to_csv(tmp_path / "data.csv", index=False)
    split = read_split(
        BagTableTask, FitOptions(data=tmp_path / "data.csv", bags="patient", target="state", out=tmp_path)
    )
    trained, tested = ({name.removeprefix("copy of ") for name in part.names} for part in (split.train, split.test))
    assert not trained & tested and abs(len(split.test.names) - 20) <= 2


def test_predict_without_instances_writes_one_file(trained, tmp_path):
    folder, _ = trained
    result = call("predict", folder / "run", folder / "data.csv", "--out", tmp_path / "scores.csv")
    assert result.exit_code == 0 and [path.name for path in tmp_path.iterdir()] == ["scores.csv"]


def test_the_rarer_class_is_counted_by_bags(tmp_path):
    """The class with fewer bags has more rows."""
    frame = make_table(24)
    ill = frame[frame["state"] == "ill"]
    frame = pd.concat([frame, *[ill.assign(size=ill["size"] + 0.1 * k) for k in range(12)]], ignore_index=True)
    assert (frame["state"] == "ill").mean() > 0.5
    frame.to_csv(tmp_path / "data.csv", index=False)
    words = ["fit", tmp_path / "data.csv", "--bags", "patient", "--target", "state", "--out", tmp_path / "run", *QUICK]
    result = call(*words, "--min-tpr", "0", "--loss", "sont_mean")
    assert result.exit_code == 0, result.output
    assert "Positive class: state = ill (the rarer of two values)" in result.stdout
    assert [METHODS["bags"][name].title for name in ("sont_mean", "ce_att")] == [
        entry["title"] for entry in json.loads((tmp_path / "run" / "report.json").read_text())["test"]
    ]


def test_numbers_name_bags_as_texts_do():
    frame = pd.DataFrame({"bag": [2.0, 1.0, 2.0], "x": [1.0, 2.0, 3.0], "y": [1, 0, 1]})
    task = BagTableTask({"x": "number"}, Target("y", "1", "0", ""), 0.0, 1.0, "bag")
    table = task.match(frame, source="t")
    assert (table.codes.tolist(), table.names, table.targets.tolist()) == ([0, 1, 0], ["2", "1"], [1, 0])
    table = table.part(np.array([1]))
    assert (table.names, table.targets.tolist(), table.rows[0].tolist()) == (["1"], [0], [2])


def test_rows_of_bags_are_found_at_once():
    class Codes(np.ndarray):
        def __eq__(self, other):
            raise AssertionError("the whole table was searched for one bag")

    codes = np.random.default_rng(0).permutation(np.repeat(np.arange(7), [1, 5, 2, 9, 1, 3, 4]))
    frame = pd.DataFrame({"x": np.arange(25.0)}, index=np.arange(25) * 2)
    table = BagTable(frame, np.zeros(7, dtype=int), codes.view(Codes), list("abcdefg"))
    for bag in [3, *range(7)]:
        expected = [2 * row + 1 for row in range(25) if codes[row] == bag]
        assert table.rows[bag].tolist() == expected


NAMES = ["007", "7", "007", " 07", "7", "7"]


@pytest.mark.parametrize(
    ("file", "separator"), [("a.csv", ","), ("a.csv", ";"), ("a.CSV", "\t"), ("a.tsv", "\t"), ("a.tsv", ",")]
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf", b"\r\n\n"], ids=["plain", "byte order mark", "blank lines"])
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


@pytest.mark.parametrize("file", ["a.csv", "a.parquet"])
def test_what_looks_the_same_is_one_name(tmp_path, file):
    names = ["F", "F ", "\u3000F", "Jose\u0301", "Jos\u00e9\u200b"]
    write_table(pd.DataFrame({"bag ": names, "x": range(5)}), tmp_path / file)
    codes, found = find_bags(read_texts(tmp_path / file), "bag", "t")[:2]
    assert found == ["F", "Jos\u00e9"] and codes.tolist() == [0, 0, 0, 1, 1]


def test_missing_names_of_bags_stay_missing(tmp_path):
    (tmp_path / "a.csv").write_text("bag,x\n1,1\nNA,2\n,3\n")
    with pytest.raises(TableError, match=r"t: bag column 'bag' has missing values in 2 rows, the first is row 2"):
        find_bags(read_texts(tmp_path / "a.csv"), "bag", "t")


def test_parquet_keeps_its_types(tmp_path):
    large = [2**53, 2**53 + 1]
    for name, values, expected in (
        ("text", ["007", "7"], ["007", "7"]),
        ("number", [7.0, 8.0], ["7", "8"]),
        ("large", large, list(map(str, large))),
        ("bool", [True, False], ["True", "False"]),
        ("unsigned", np.array([2**64 - 1, 2**64 - 2], dtype=np.uint64), [str(2**64 - 1), str(2**64 - 2)]),
        ("decimal", [Decimal(2**60), Decimal(2**60 + 1)], [str(2**60), str(2**60 + 1)]),
    ):
        pd.DataFrame({"bag": values, "x": [1, 2]}).to_parquet(tmp_path / f"{name}.parquet")
        frame = read_texts(tmp_path / f"{name}.parquet")
        assert find_bags(frame, "bag", "t")[1] == expected


def test_fit_keeps_bags_apart_whose_names_are_the_same_number(tmp_path):
    frame = make_table(24)
    number = frame["patient"].str[1:].astype(int)
    frame["patient"] = np.where(number < 12, number.astype(str), (number - 12).map("{:03d}".format))
    assert frame["patient"].nunique() == 24 and frame["patient"].astype(int).nunique() == 12
    frame.to_csv(tmp_path / "data.csv", index=False)
    words = ["fit", tmp_path / "data.csv", "--bags", "patient", "--target", "state", *QUICK, "--loss", "ce_att"]
    result = call(*words, "--min-tpr", "0", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "run" / "report.json").read_text())["data"]
    assert data["training"]["bags"] + data["test"]["bags"] == 24
    frame.assign(size=frame["size"] + 0.01).to_csv(tmp_path / "test.csv", index=False)
    result = call(*words, "--min-tpr", "0", "--out", tmp_path / "other", "--test", tmp_path / "test.csv")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "other" / "report.json").read_text())["data"]["test"]["bags"] == 24


def test_evaluate_and_predict_keep_such_bags_apart(trained, tmp_path):
    folder, _ = trained
    frame = make_table(24, seed=7)
    number = frame["patient"].str[1:].astype(int)
    frame["patient"] = np.where(number < 12, number.astype(str), (number - 12).map("{:03d}".format))
    frame.to_csv(tmp_path / "new.csv", index=False)
    result = call("evaluate", folder / "run", tmp_path / "new.csv")
    assert result.exit_code == 0 and "new.csv: 24 bags, 6 positives" in result.stdout
    words = ["predict", folder / "run", tmp_path / "new.csv", "--out", tmp_path / "s.csv", "--instances"]
    assert call(*words, tmp_path / "i.csv").exit_code == 0
    assert pd.read_csv(tmp_path / "s.csv", dtype={"bag": str})["bag"].tolist() == list(dict.fromkeys(frame["patient"]))
    instances = pd.read_csv(tmp_path / "i.csv", dtype={"bag": str})
    assert (frame["patient"].to_numpy()[instances["row"] - 1] == instances["bag"]).all()


def bad(**changes: object) -> bytes:
    """Return a small table with some cells changed, given as column_row."""
    frame = pd.DataFrame({"bag": list("aabbccddee"), "x": np.arange(10.0), "y": [0, 0, 1, 1, 0, 0, 1, 1, 0, 0]})
    frame = frame.astype({"bag": object, "y": object})
    for name, value in changes.items():
        column, row = name.split("_")
        frame.loc[int(row), column] = value
    return frame.to_csv(index=False).encode()


TABLES = {
    "fine.csv": bad(),
    "differ.csv": bad(y_3=0),
    "gap.csv": bad(bag_4=None),
    "unlabelled.csv": bad(y_5=None),
    "three.csv": bad(y_8=2, y_9=2),
}
FIT_ERRORS = [
    (
        ["differ.csv"],
        "{0}/differ.csv: target 'y' must be the same inside a bag, got 1 in row 3 and 0 in row 4 of bag 'b'",
    ),
    (["gap.csv"], "{0}/gap.csv: bag column 'bag' has missing values in 1 rows, the first is row 5"),
    (
        ["three.csv"],
        "{0}/three.csv: target 'y' must have two classes, got 3 classes: 0 (2 bags), 1 (2 bags), 2 (1 bags)",
    ),
    (["unlabelled.csv"], "{0}/unlabelled.csv: target 'y' has missing values in 1 rows, the first is row 6"),
    (["fine.csv", "--bags", "patient"], "{0}/fine.csv: no bag column 'patient'; columns are 'bag', 'x', 'y'"),
    (["fine.csv", "--bags", "y"], "--bags and --target must name two columns, got 'y' for both"),
    (["fine.csv", "--target", "z"], "{0}/fine.csv: no target column 'z'; columns are 'bag', 'x', 'y'"),
    (
        ["fine.csv", "--loss", "sonx"],
        f"moreauc fit: --loss must be one of {', '.join(METHODS['bags'])}, got 'sonx'",
    ),
    (["fine.csv", "--model", "mlp"], "moreauc fit: --model does not go with --bags, got 'mlp'"),
    (["fine.csv", "--test", "x.csv", "--test-size", "0.5"], "--test and --test-size exclude each other"),
    (["fine.csv", "--min-tpr", "1"], "moreauc fit: min_tpr must be a number in [0, 1), got 1.0"),
    (["fine.csv"], "no positives in the test split: the table has 2, of which --test-size 0.25 takes 0"),
    (
        ["fine.csv", "--test-size", "0.5", "--min-tpr", "0.7"],
        "test bags: with 1 positive, --min-tpr 0.7 leaves none in the region; TPAUC is undefined",
    ),
]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    for name, content in TABLES.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(("words", "message"), FIT_ERRORS, ids=[message[:40] for _, message in FIT_ERRORS])
def test_fit_refuses_with_one_line(tables, tmp_path, words, message):
    target = [] if "--target" in words else ["--target", "y"]
    bags = [] if "--bags" in words else ["--bags", "bag"]
    result = call("fit", tables / words[0], *words[1:], *target, *bags, "--out", tmp_path / "run")
    assert (result.exit_code, result.stderr) == (2, f"error: {message.format(tables)}\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--instances-per-bag", "3"], "moreauc fit: --instances-per-bag needs --bags, got 3"),
    ],
)
def test_options_of_bags_need_bags(tables, tmp_path, words, message):
    result = call("fit", tables / "fine.csv", "--target", "y", "--out", tmp_path / "run", *words)
    assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")


def test_other_tables_are_refused(trained, tmp_path):
    folder, _ = trained
    frame = make_table(12)
    out = ["--out", tmp_path / "scores.csv"]
    frame.drop(columns="patient").to_csv(tmp_path / "a.csv", index=False)
    for words in (
        ["evaluate", folder / "run", tmp_path / "a.csv"],
        ["predict", folder / "run", tmp_path / "a.csv", *out],
    ):
        assert f"error: {tmp_path / 'a.csv'}: no bag column 'patient'" in call(*words).stderr
    frame.drop(columns="gap").to_csv(tmp_path / "b.csv", index=False)
    assert "column 'gap' missing" in call("predict", folder / "run", tmp_path / "b.csv", *out).stderr
    one = frame[frame["state"] == "ill"]
    one.to_csv(tmp_path / "c.csv", index=False)
    alone = call("evaluate", folder / "run", tmp_path / "c.csv").stderr
    assert "there are no negatives (state = well) among its 3 bags" in alone
    mixed = frame.copy()
    row = mixed.index[mixed.duplicated("patient")][0]
    mixed.loc[row, "state"] = "ill" if mixed.loc[row, "state"] == "well" else "well"
    mixed.to_csv(tmp_path / "d.csv", index=False)
    assert "must be the same inside a bag" in call("evaluate", folder / "run", tmp_path / "d.csv").stderr


def test_files_of_predict_are_checked_before(trained, tmp_path):
    folder, _ = trained
    words = ["predict", folder / "run", folder / "data.csv", "--out", tmp_path / "s.csv", "--instances"]
    same = call(*words, tmp_path / "s.csv")
    assert same.stderr == f"error: {tmp_path / 's.csv'}: --out and --instances must be two files\n"
    (tmp_path / "i.csv").write_text("mine")
    there = call(*words, tmp_path / "i.csv")
    assert "the file exists; choose another --instances, or replace it with --force" in there.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["i.csv"]
    assert call(*words, tmp_path / "i.csv", "--force").exit_code == 0


def test_instances_need_a_model_of_bags(tables, tmp_path):
    words = ["fit", tables / "fine.csv", "--target", "y", "--drop", "bag", "--epochs", "1", "--min-tpr", "0"]
    assert call(*words, "--out", tmp_path / "run").exit_code == 0
    asked = ["--out", tmp_path / "s.csv", "--instances", tmp_path / "i.csv"]
    result = call("predict", tmp_path / "run", tables / "fine.csv", *asked)
    line = f"error: moreauc predict: --instances needs a model of bags, got one of rows in {tmp_path / 'run'}\n"
    assert (result.exit_code, result.stderr) == (2, line)
    assert not (tmp_path / "s.csv").exists()
