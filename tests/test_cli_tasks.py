"""`fit`, `evaluate` and `predict` on rows, bags and groups: what they print, what they leave, what they refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from moreauc._registry import BASELINES, METHODS
from moreauc.app.cli.saved import load_model
from moreauc.app.tables.files import write_table
from moreauc.app.tables.rows import draw_test_rows
from moreauc.estimators import TPAUCAuto, TPAUCLinear
from moreauc.metrics import tpauc_score
from tests.cli_cases import CASES, FILES, REGION, Run, call, done, groups_table, score_by_hand, snapshot, train

pytestmark = pytest.mark.usefixtures("blank_figures")

NEW = ["log.txt", "report.html", "report.json"]


def read_report(run: Path) -> dict:
    return json.loads((run / "report.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Trains each case once."""
    known: dict[str, Run] = {}

    def get(name: str) -> Run:
        if name not in known:
            known[name] = train(name, tmp_path_factory.mktemp(name))
        return known[name]

    return get


@pytest.fixture(params=CASES)
def run(request, runs) -> Run:
    return runs(request.param)


@pytest.fixture
def bag_run(runs) -> Run:
    return runs("bags")


def titles(run: Run) -> list[str]:
    known = {**METHODS[run.case.task], **BASELINES[run.case.task]}
    return [known[name].title for name in run.case.losses]


# What fit leaves


def test_fit_prints_tables_and_leaves_four_files(run):
    case, lines, (own, other) = run.case, run.result.stdout.splitlines(), titles(run)
    assert run.result.stderr == "" and lines[0] == case.first
    assert lines[1].strip() == f"Test {case.unit}: {case.drawn}" and lines[-1] == f"Report: {run.run / 'report.html'}"
    words = " ".join(line.strip("│").split("│")[0].strip() for line in lines if line.startswith("│"))
    assert words.startswith(own) and other in words and ("y, 1" in words) == (case.task == "groups")
    assert all(len(line) <= 80 and line[-1] in "┓┃┩│┘" for line in lines if line[0] in "┏┃┡│└")
    verdict = read_report(run.run)["verdict"]
    assert lines[-1 - len(verdict["description"]) : -1] == verdict["description"]
    assert verdict["other"] == other and verdict["description"][0].count(other) == 1
    assert sorted(path.name for path in run.run.iterdir()) == FILES
    assert sorted(path.name for path in run.folder.iterdir()) == ["data.csv", "run"]
    log = (run.run / "log.txt").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING) ", line) for line in log)
    trained = case.sizes[0][case.unit]
    assert any(f"{trained} {case.unit} to train on, {case.drawn} to test on" in line for line in log)
    epochs = int(case.words[case.words.index("--epochs") + 1])
    assert any(f"train epoch {epochs}: " in line for line in log)


def test_the_report_describes_data_models_and_settings(run):
    case, report, model = run.case, read_report(run.run), load_model(run.run).model
    assert (report["data"]["training"], report["data"]["test"]) == case.sizes
    assert report["data"]["target"]["column"] == case.target and report["data"]["warnings"] == []
    assert report["data"]["columns"] == {"age": "number", "dose": "number", "gap": "number", "ward": "text"}
    assert [entry["title"] for entry in report["test"]] == titles(run)
    given = {"epochs", "lr", "random_state", "min_tpr", "max_fpr", "probabilities", "standardize", "top_k"}
    for name, default in type(model)().get_params().items():  # what is not given is left to the estimator
        if name not in given and isinstance(default, int | float) and name != "verbose":
            assert report["settings"][name] == pytest.approx(default), name
    assert report["settings"]["epochs"] == int(case.words[case.words.index("--epochs") + 1])
    rows = report["history"][titles(run)[0]]["rows"]
    assert sum(row["phase"] == "train" for row in rows) == report["settings"]["epochs"]
    page = (run.run / "report.html").read_text()
    assert re.findall("<h2>(.*?)</h2>", page) == list(case.headings)
    assert page.count("data:image/png") == case.images


@pytest.mark.parametrize("run", ["rows", "bags", "classes"], indirect=True)
def test_the_command_in_the_report_makes_the_same_numbers_again(run, tmp_path, monkeypatch):
    monkeypatch.undo()  # with its figures
    first = read_report(run.run)
    assert first["command"].startswith(f"moreauc fit {run.data} --target {run.case.target} --out {run.run} ")
    done(*first["command"].replace(str(run.run), str(tmp_path / "again")).split()[1:])
    assert read_report(tmp_path / "again")["test"] == first["test"]
    pictures = re.findall('data:image/png;base64,([^"]*)', (tmp_path / "again" / "report.html").read_text())
    assert len(pictures) == run.case.images and min(map(len, pictures)) > 5000


@pytest.mark.parametrize("run", ["rows", "bags"], indirect=True)
def test_test_numbers_are_those_of_what_was_not_trained_on(run):
    frame, first = run.case.table(), read_report(run.run)["test"][0]
    names, scores = score_by_hand(run.run, frame)
    state = frame["state"] if run.name == "rows" else frame.groupby("patient")["state"].first()[names]
    labels = (state.to_numpy() == "ill").astype(int)
    held = draw_test_rows(labels, 0.25, 0, np.arange(len(labels), dtype=np.uint64))
    labels, scores = labels[held], scores[held]
    tpauc, positives, negatives = first["tpauc"], scores[labels == 1], np.sort(scores[labels == 0])
    assert tpauc["low"] <= tpauc["estimate"] <= tpauc["high"]
    assert tpauc["estimate"] == pytest.approx(tpauc_score(labels, scores, **REGION), abs=1e-4)
    assert (first["tpr"], first["fpr"]) == pytest.approx(((positives > 0).mean(), (negatives > 0).mean()), abs=1e-4)
    budget = int(len(negatives) * 0.5)
    assert first["tpr_at_budget"] == pytest.approx((positives > negatives[-budget - 1]).mean(), abs=1e-4)


def scores_are_those_of_the_model(run: Path, data: Path, frame: pd.DataFrame) -> bool:
    saved = load_model(run)
    done("predict", run, data, "--out", run / "scores.csv")
    expected = saved.model.decision_function(frame.astype({"ward": "category"})[list(saved.task.kinds)])
    return np.allclose(pd.read_csv(run / "scores.csv")["score"], expected)


def test_a_linear_model_is_a_scorecard(runs, tmp_path):
    run, words = runs("rows"), ["--target", "state", "--model", "linear", "--surrogate", "smooth_ramp"]
    done("fit", run.data, *words, "--fpr-budget", 0.2, "--baselines", "lr,linear", "--out", tmp_path / "run")
    report, saved = read_report(tmp_path / "run"), load_model(tmp_path / "run")
    assert [entry["title"] for entry in report["test"]] == ["TPAUCLinear", "LR"] and report["history"] == {}
    assert isinstance(saved.model, TPAUCLinear) and saved.model.fpr_budget == 0.2
    assert {row["column"] for row in report["effects"]} == {"age", "dose", "gap", "ward"}
    page = (tmp_path / "run" / "report.html").read_text()
    assert re.search(r"TPAUCLinear: logistic regression, (kept as it is|fine-tuned with margin [\d.]+)", page)
    assert "--loss" not in report["command"] and "--model linear" in report["command"]
    assert "TPAUCLinear" in done("evaluate", tmp_path / "run", run.data, "--out", tmp_path / "again").stdout
    assert scores_are_those_of_the_model(tmp_path / "run", run.data, run.case.table())


def test_auto_shows_all_models_and_trees_stand_alone(tmp_path):
    frame, run = CASES["rows"].table(120), tmp_path / "run"
    frame.to_csv(tmp_path / "data.csv", index=False)
    words = ["--target", "state", "--model", "auto", "--baselines", "linear,trees"]
    done("fit", tmp_path / "data.csv", *words, "--out", run)
    report, saved, page = read_report(run), load_model(run), (run / "report.html").read_text()
    assert isinstance(saved.model, TPAUCAuto) and "--model auto" in report["command"]
    used = list(saved.model.models_)
    alone = [f"{name} alone" for name in used] if len(used) > 1 else []
    assert [entry["title"] for entry in report["test"]] == ["TPAUCAuto", *alone, "TPAUCLinear", "TPAUCBooster"]
    assert re.search(r"held out to choose by: linear [\d.]+ \(\w+", page)
    assert re.search(r"\d+ trees for the (log loss|loss over the region)", page)
    assert scores_are_those_of_the_model(run, tmp_path / "data.csv", frame)


def test_instances_of_two_bags_are_shown(bag_run):
    report, frame = read_report(bag_run.run), bag_run.case.table()
    names, scores = score_by_hand(bag_run.run, frame)
    best, hardest = report["instances"]
    assert report["data"]["bags"] == "patient" and best["label"] == 1
    assert len(best["weight"]) == min(best["size"], 10) and sum(best["weight"]) == pytest.approx(1.0, abs=1e-3)
    assert best["weight"] == sorted(best["weight"], reverse=True)
    for entry in (best, hardest):
        assert (frame["patient"][np.array(entry["rows"]) - 1] == entry["bag"]).all()
        assert entry["distance"] == pytest.approx(scores[names.index(entry["bag"])], rel=1e-3)
    page = (bag_run.run / "report.html").read_text()
    assert f"Weights of the instances of {best['bag']} by SONT (attention)" in page
    assert "bootstrap interval over test bags" in page


@pytest.mark.parametrize("run", ["classes", "numbers"], indirect=True)
def test_losses_of_groups_are_reported(run):
    report, page = read_report(run.run), (run.run / "report.html").read_text()
    first, losses = report["test"][0], [row["loss"] for row in report["test"][0]["groups"]]
    assert losses == sorted(losses, reverse=True) and len(losses) == 6
    assert first["worst_loss"] == losses[0]
    assert first["top_k_loss"] == pytest.approx(np.mean(losses[:2]), rel=1e-4)
    assert first["mean_loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert first["gap_loss"] == pytest.approx(losses[0] - losses[-1], rel=1e-3)
    assert ("worst_accuracy" in first) == (run.name == "classes") and ("R2" in first) == (run.name == "numbers")
    assert report["data"]["groups"] == ["race", "sex"] and report["threshold"] is not None
    assert report["data"]["untested"] == {"note": None, "groups": []}
    assert "not tested" not in page and "loss by ERM" in page and "not learnt from" in page


TEST_TABLES = {
    "rows": (["--loss", "ce", "--model", "linear", "--positive", "well"], {"module": "linear"}),
    "bags": (
        ["--loss", "ce_att", "--instances-per-bag", 2, "--batch-size", 7, "--positive", "well"],
        {"instances_per_bag": 2, "num_positives": 3, "num_negatives": 4},
    ),
    "classes": (
        ["--loss", "erm", "--model", "linear", "--groups-per-batch", 2, "--samples-per-group", 9, "--top-k", 0.7],
        {"hidden": "()", "groups_per_batch": 2, "samples_per_group": 9, "top_k": 0.7},
    ),
    "numbers": (["--loss", "erm", "--seed", 3], {"random_state": 3}),
}


def test_a_test_table_and_options(run, tmp_path):
    other = run.case.table(24, seed=1)
    other.to_parquet(tmp_path / "other.parquet")
    words, settings = TEST_TABLES[run.name]
    words = [*words, "--drop", "gap", "--test", tmp_path / "other.parquet", "--out", tmp_path / "run"]
    result = done("fit", run.data, *run.case.words, *words)
    report = read_report(tmp_path / "run")
    assert report["data"]["test"][run.case.unit] == 24 and "gap" not in report["data"]["columns"]
    first = METHODS[run.case.task][run.case.other].title
    assert [entry["title"] for entry in report["test"]] == list(dict.fromkeys([first, titles(run)[1]]))
    assert {name: report["settings"][name] for name in settings} == settings
    if "--positive" in words:
        assert "Positive class: state = well (as asked for)" in result.stdout
        assert report["data"]["test"]["positives"] == 24 - 24 // (6 if run.name == "rows" else 4)


# evaluate and predict


def test_evaluate_prints_numbers_and_leaves_nothing(run):
    before, frame, saved = snapshot(run.folder), run.case.table(), load_model(run.run)
    result = done("evaluate", run.run, run.data)
    assert f"data.csv: {run.case.headline}" in result.stdout and snapshot(run.folder) == before
    if run.case.task == "groups":
        names = frame["race"] + ", " + frame["sex"].astype(str)
        targets = frame[run.case.target].to_numpy()
        expected = saved.model.group_score(frame[list(saved.task.kinds)], targets, names).loss[0]
    else:
        names, scores = score_by_hand(run.run, frame)
        state = frame["state"] if run.name == "rows" else frame.groupby("patient")["state"].first()[names]
        expected = tpauc_score((state == "ill").astype(int), scores, **REGION)
    assert f"{expected:.4f}" in result.stdout
    known, number = run.case.sizes[0][run.case.unit], len(names)
    line = f"{known} of {number} {run.case.unit} of {run.data} (75.0%) equal {run.case.unit} that are trained on"
    assert result.stderr == f"warning: {line}: the test may look better than it is\n"


def test_evaluate_leaves_a_report_where_asked(run, tmp_path):
    frame = run.case.table(60, seed=3)
    strange = len(frame) // 4
    frame.loc[: strange - 1, "ward"] = "D"
    frame.to_csv(tmp_path / "new.csv", index=False)
    result, out = done("evaluate", run.run, tmp_path / "new.csv", "--out", tmp_path / "a" / "b"), tmp_path / "a" / "b"
    assert sorted(path.name for path in out.iterdir()) == NEW
    assert result.stdout.splitlines()[-1] == f"Report: {out / 'report.html'}"
    report, share = read_report(out), strange / len(frame)
    assert report["data"][run.case.unit] == 60 and len(report["test"]) == 1
    assert ("instances" in report) == (run.name == "bags")
    assert report["data"]["unknown_levels"] == {"ward": pytest.approx(share, rel=1e-4)}
    assert f"in {strange} of {len(frame)} rows ({share:.1%}), such as 'D'" in result.stderr
    assert f"by column: ward {share:.1%}." in (out / "report.html").read_text()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_predict_writes_scores(run, tmp_path, suffix):
    frame = run.case.table(50, seed=5)
    frame.loc[0, "ward"] = "never seen"
    table = frame if suffix == ".csv" else frame.drop(columns=[run.case.target])
    table[table.columns[::-1]].to_csv(tmp_path / "new.csv", index=False)  # the order of columns does not matter
    out, saved = tmp_path / f"scores{suffix}", load_model(run.run)
    result = done("predict", run.run, tmp_path / "new.csv", "--out", out)
    scores = pd.read_csv(out) if suffix == ".csv" else pd.read_parquet(out)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["new.csv", out.name])
    assert result.stdout.splitlines()[-1] == f"Scores: {out}"
    line = f"column 'ward' holds levels that were not there in training in 1 of {len(frame)} rows"
    assert result.stderr.startswith(f"warning: {tmp_path / 'new.csv'}: {line}") and result.stderr.count("\n") == 1
    if run.case.task != "groups":
        with pytest.warns(match="holds levels") if run.name == "rows" else pytest.MonkeyPatch.context():
            names, expected = score_by_hand(run.run, frame)
        assert list(scores) == [run.case.unit[:-1], "score", "probability", "decision"]
        assert scores.iloc[:, 0].astype(str).tolist() == names
        np.testing.assert_allclose(scores["score"], expected, rtol=1e-5, atol=1e-7)
        assert ((scores["score"] > 0) == (scores["decision"] == "ill")).all() and len(set(scores["decision"])) == 2
        assert scores["probability"].between(0, 1).all()
        called = (scores["decision"] == "ill").sum()
        assert result.stdout.startswith(f"{called} of 50 {run.case.unit} are called state = ill\n")
        return
    assert scores["row"].tolist() == list(range(1, 51))
    with pytest.warns(match="holds levels"):
        expected = saved.model.predict(frame[list(saved.task.kinds)])
    if run.name == "numbers":
        assert list(scores) == ["row", "prediction"] and "50 rows, mean prediction of cost" in result.stdout
        assert scores["prediction"].to_numpy() == pytest.approx(expected)
    else:
        assert list(scores) == ["row", "decision", "probability of ill", "probability of well"]
        assert scores["decision"].tolist() == expected.tolist() and "50 rows are called state = " in result.stdout
        np.testing.assert_allclose(scores.iloc[:, 2:].sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("run", ["classes", "numbers"], indirect=True)
def test_predict_needs_no_groups(run, tmp_path):
    frame, target = run.case.table(20), run.case.target
    frame.drop(columns=["race", "sex", "state", "cost"]).to_csv(tmp_path / "bare.csv", index=False)
    done("predict", run.run, tmp_path / "bare.csv", "--out", tmp_path / "scores.csv")
    for column, words in (("race", "no group column 'race'"), (target, f"no target column '{target}'")):
        frame.drop(columns=column).to_csv(tmp_path / "less.csv", index=False)
        assert words in call("evaluate", run.run, tmp_path / "less.csv").stderr


def test_predict_writes_instances(bag_run, tmp_path):
    frame = bag_run.case.table(20, seed=5)
    frame.to_csv(tmp_path / "new.csv", index=False)
    words = ["predict", bag_run.run, tmp_path / "new.csv", "--out", tmp_path / "s.csv", "--instances"]
    assert f"error: {tmp_path / 's.csv'}: --out and --instances must be two files" in call(*words, words[-2]).stderr
    (tmp_path / "i.csv").write_text("mine")
    assert "the file exists; choose another --instances" in call(*words, tmp_path / "i.csv").stderr
    assert not (tmp_path / "s.csv").exists()
    result = done(*words, tmp_path / "i.csv", "--force")
    assert result.stdout.splitlines()[1:] == [f"Scores: {tmp_path / 's.csv'}", f"Instances: {tmp_path / 'i.csv'}"]
    instances, names = pd.read_csv(tmp_path / "i.csv"), list(dict.fromkeys(frame["patient"]))
    assert list(instances) == ["bag", "row", "score", "weight"]
    assert sorted(instances["row"]) == list(range(1, len(frame) + 1))
    assert (frame["patient"].to_numpy()[instances["row"] - 1] == instances["bag"]).all()
    np.testing.assert_allclose(instances.groupby("bag")["weight"].sum(), 1.0)
    pooled = (instances["score"] * instances["weight"]).groupby(instances["bag"]).sum()[names]
    expected = score_by_hand(bag_run.run, frame)[1]
    np.testing.assert_allclose(pooled - load_model(bag_run.run).model.threshold_, expected, rtol=1e-4, atol=1e-6)
    assert (
        "--keep-columns needs a model of rows, got one of bags" in call(*words[:-1], "--force", "--keep-columns").stderr
    )


@pytest.mark.parametrize("run", ["rows", "classes"], indirect=True)
def test_ids_and_columns_are_carried_into_the_predictions(run, tmp_path):
    frame = run.case.table().assign(case=[f"c{k:03}" for k in range(240)], decision="mine")
    frame.to_csv(tmp_path / "data.csv", index=False)
    frame.drop(columns="case").to_csv(tmp_path / "new.csv", index=False)
    words = [*run.case.words, "--epochs", 1, "--baselines", "none"]
    done("fit", tmp_path / "data.csv", *words, "--id", "case", "--drop", "decision", "--out", tmp_path / "run")
    report = read_report(tmp_path / "run")
    assert list(report["data"]["columns"]) == ["age", "dose", "gap", "ward"] and len(report["test"]) == 1
    done("predict", tmp_path / "run", tmp_path / "data.csv", "--out", tmp_path / "scores.csv")
    scores = pd.read_csv(tmp_path / "scores.csv", dtype=str)
    assert list(scores)[:2] == ["row", "case"] and scores["case"].tolist() == frame["case"].tolist()
    printed = done("predict", tmp_path / "run", tmp_path / "data.csv", "--keep-columns")
    lines = printed.stdout.splitlines()
    heads = lines[0].split(",")
    assert heads[: 1 + frame.shape[1]] == ["row", *frame] and "predicted decision" in heads and len(lines) == 241
    assert "240" in printed.stderr
    result = done("predict", tmp_path / "run", tmp_path / "new.csv", "--out", tmp_path / "more.csv")
    assert f"warning: {tmp_path / 'new.csv'}: no id column 'case'" in result.stderr


# Levels and rows that are known or unknown


@pytest.mark.parametrize(
    ("ward", "message"),
    [
        ("D", "column 'ward' must hold levels of the training ('A', 'B', 'C'), got others only, such as 'D'; "),
        (7, "column 'ward' must hold text, as in training ('A', 'B', 'C'), got the number 7 in row 1; "),
    ],
)
def test_a_column_without_any_known_level_is_refused(run, tmp_path, ward, message):
    data, out = tmp_path / "new.csv", ["--out", tmp_path / "out.csv"]
    run.case.table(24, seed=3).assign(ward=ward).to_csv(data, index=False)
    for words in (["evaluate", run.run, data], ["predict", run.run, data, *out], [*run.fit("--test", data), *out]):
        result = call(*words)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert result.stderr.startswith(f"error: {data}: {message}")
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


def test_a_test_table_with_rows_of_the_training(run, tmp_path):
    unit, frame = run.case.unit, run.case.table()
    first = frame[:20] if unit == "rows" else frame[frame["patient"].isin([f"p{k}" for k in range(20)])]
    new = run.case.table(60, seed=2)
    if unit == "bags":
        new["patient"] = "new " + new["patient"]
    pd.concat([new, first]).to_csv(tmp_path / "some.csv", index=False)
    result = done(*run.fit("--out", tmp_path / "run", "--test", tmp_path / "some.csv"))
    (line,) = read_report(tmp_path / "run")["data"]["warnings"]
    assert f"20 of 80 {unit} of {tmp_path / 'some.csv'} (25.0%) equal {unit} that are trained on" in line
    assert result.stderr == f"warning: {line}\n"
    assert f"Warning: {line}." in (tmp_path / "run" / "report.html").read_text()
    assert f"WARNING {line}" in (tmp_path / "run" / "log.txt").read_text()
    (tmp_path / "link.csv").symlink_to(run.data)
    frame[::-1].to_parquet(tmp_path / "turned.parquet")
    for name in (run.data, tmp_path / "link.csv", tmp_path / "turned.parquet"):
        result = call(*run.fit("--out", tmp_path / "run", "--force", "--test", name))
        message = f"error: {name}: --test holds the same {unit} as {run.data}, which are trained on"
        assert result.exit_code == 2 and result.stderr.startswith(message)


# Bags


def test_bags_whose_names_are_the_same_number_stay_apart(bag_run, tmp_path):
    """The class with fewer bags has more rows here, and is the positive one."""
    frame = bag_run.case.table(24, seed=7)
    ill = frame[frame["state"] == "ill"]
    frame = pd.concat([frame, *[ill.assign(age=ill["age"] + 0.1 * k) for k in range(12)]], ignore_index=True)
    assert (frame["state"] == "ill").mean() > 0.5
    number = frame["patient"].str[1:].astype(int)
    frame["patient"] = np.where(number < 12, number.astype(str), (number - 12).map("{:03d}".format))
    assert frame["patient"].nunique() == 24 and frame["patient"].astype(int).nunique() == 12
    frame.to_csv(tmp_path / "new.csv", index=False)
    words = ["--bags", "patient", "--target", "state", "--max-fpr", 0.5, "--loss", "ce_att", "--epochs", 1]
    result = done("fit", tmp_path / "new.csv", *words, "--out", tmp_path / "run")
    assert "Positive class: state = ill (the rarer of two values)" in result.stdout
    data = read_report(tmp_path / "run")["data"]
    assert data["training"]["bags"] + data["test"]["bags"] == 24
    assert "new.csv: 24 bags, 6 positives" in done("evaluate", bag_run.run, tmp_path / "new.csv").stdout
    out = ["--out", tmp_path / "s.csv", "--instances", tmp_path / "i.csv"]
    done("predict", bag_run.run, tmp_path / "new.csv", *out)
    assert pd.read_csv(tmp_path / "s.csv", dtype={"bag": str})["bag"].tolist() == list(dict.fromkeys(frame["patient"]))
    instances = pd.read_csv(tmp_path / "i.csv", dtype={"bag": str})
    assert (frame["patient"].to_numpy()[instances["row"] - 1] == instances["bag"]).all()


def test_other_tables_are_refused(bag_run, runs, tmp_path):
    frame, other, groups = bag_run.case.table(12), bag_run.case.table(12), groups_table()
    row = frame.index[frame.duplicated("patient")][0]
    other.loc[row, "state"] = "ill" if frame.loc[row, "state"] == "well" else "well"
    groups.loc[4, "state"] = "dead"  # a class that was not in training
    nameless = frame.drop(columns="patient")
    for command, run, table, message in (
        ("evaluate", bag_run, nameless, "no bag column 'patient'"),
        ("predict", bag_run, nameless, "no bag column 'patient'"),
        ("evaluate", bag_run, frame[frame["state"] == "ill"], "there are no negatives (state = well) among its 3 bags"),
        ("evaluate", bag_run, other, "target 'state' must be the same inside a bag"),
        ("evaluate", runs("classes"), groups, "target 'state' must be one of 'ill', 'well', got 'dead' in row 5"),
    ):
        table.to_csv(tmp_path / "a.csv", index=False)
        result = call(command, run.run, tmp_path / "a.csv", "--out", tmp_path / "out.csv")
        assert result.exit_code == 2 and message in result.stderr


# Groups


def test_columns_of_groups_may_be_learnt_from(tmp_path):
    lines = ["site,y,x", *(f"{k % 3:02},{k % 2},{k % 5}" for k in range(60))]
    (tmp_path / "a.csv").write_text("\n".join(lines), encoding="utf-8")
    words = ("fit", tmp_path / "a.csv", "--groups", "site", "--target", "y", "--epochs", 1, "--keep-groups")
    done(*words, "--loss", "exponentiated", "--out", tmp_path / "run")
    saved, page = load_model(tmp_path / "run"), (tmp_path / "run" / "report.html").read_text()
    assert saved.task.kinds == {"site": "number", "x": "number"} and saved.task.columns == ("site",)
    assert "also learnt from" in page and "The dashed line" not in page
    assert read_report(tmp_path / "run")["threshold"] is None
    assert "--keep-groups" in read_report(tmp_path / "run")["command"]


def test_groups_with_too_few_rows_to_hold_any_out(tmp_path):
    frame = groups_table(24).drop(columns=["cost"]).assign(name=np.arange(24) // 2)
    frame.to_csv(tmp_path / "data.csv", index=False)
    words = ["fit", tmp_path / "data.csv", "--groups", "name", "--target", "state", "--epochs", 1]
    done(*words, "--loss", "erm", "--test-size", 0.5, "--out", tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "too small to hold any rows out" in page and page.count("data:image/png") == 3
    result = call(*words, "--test-size", 0.1, "--out", tmp_path / "other")
    assert result.exit_code == 2 and "no rows in the test split: --test-size 0.1 takes none" in result.stderr


@pytest.mark.parametrize(
    ("options", "words", "groups"),
    [
        (["--test-size", "0.2"], "2 of 5 groups have too few rows", [("alone", 1), ("tiny [a]", 2)]),
        (["--test", "other.csv"], "1 of 5 groups has no rows in other.csv", [("tiny [a]", 2)]),
    ],
)
def test_groups_that_are_not_tested_are_named(options, words, groups, tmp_path):
    frame = groups_table().drop(columns=["cost"])
    frame.loc[[3, 8], "race"], frame.loc[100, "race"] = "tiny [a]", "alone"
    frame.to_csv(tmp_path / "data.csv", index=False)
    frame[frame["race"] != "tiny [a]"].to_csv(tmp_path / "other.csv", index=False)
    options = [tmp_path / word if word.endswith(".csv") else word for word in options]
    columns = ["--groups", "race", "--target", "state", "--drop", "sex"]
    result = done("fit", tmp_path / "data.csv", *columns, "--epochs", 1, *options, "--out", tmp_path / "run")
    data = read_report(tmp_path / "run")["data"]
    note = data["untested"]["note"]
    assert note.startswith(words) and note.endswith("tiny [a] (2 rows).")
    assert data["untested"]["groups"] == [{"name": name, "rows": rows} for name, rows in groups]
    assert data["training"]["groups"] == 5 and data["test"]["groups"] == 5 - len(groups)
    assert result.stdout.splitlines()[-2] == note
    assert all(note in (tmp_path / "run" / name).read_text() for name in ("report.html", "log.txt"))


@pytest.mark.parametrize("file", ["a.csv", "a.parquet"])
def test_names_of_groups_are_read_as_text(file, tmp_path):
    frame = pd.DataFrame({"site": ["01", "1.0", "F", "F "] * 15, "y": np.arange(60) % 2, "x": np.arange(60) % 5})
    write_table(frame, tmp_path / file)
    write_table(pd.concat([frame, frame[:1].assign(x=9)]), tmp_path / f"b{file}")
    words = ("fit", tmp_path / file, "--groups", " site", "--target", "y", "--epochs", 1, "--loss", "erm")
    result = done(*words, "--test", tmp_path / f"b{file}", "--out", tmp_path / "run")
    assert "not tested" not in result.output
    done("evaluate", tmp_path / "run", tmp_path / file, "--out", tmp_path / "again")
    for run in ("run", "again"):
        tested = read_report(tmp_path / run)["test"][0]["groups"]
        assert sorted(row["name"] for row in tested) == ["01", "1.0", "F"]


HOSTILE = ["$", r"$\frac$", "a$b$c", "[bold]", "[/]", ":key:", "\x1b[2Jgone", "\u202eturned", "%s", "{0}", "_hidden"]


def test_names_are_shown_as_they_are_written(tmp_path, monkeypatch):
    """Neither read as mathematics in figures, nor as markup or escape sequences on the terminal."""
    monkeypatch.undo()  # draws the figures
    frame = groups_table(rows=len(HOSTILE) * 12)[["age", "dose", "state"]]
    frame["[red]race\x1b[1m"] = np.array(HOSTILE)[np.arange(len(frame)) % len(HOSTILE)]
    frame["state"] = np.where(frame["state"] == "ill", "$ill$[/]\x1b[0m", "well")
    data, run = tmp_path / "[i]data.csv", tmp_path / "[b]run"
    frame.to_csv(data, index=False)
    words = ["--target", "state", "--out", run, "--epochs", 1]
    result = done("fit", data, "--groups", "[red]race\x1b[1m", *words)
    spelt = [name.replace("\x1b", r"\x1b").replace("\u202e", "") for name in HOSTILE]  # the normal form
    for shown in ("[b]run/report.html", *spelt):
        assert shown in result.output, shown
    results = {
        "[b]run/report.html": result,
        "[i]data.csv: 132 rows": done("evaluate", run, data, "--out", tmp_path / "evaluation"),
        r"$ill$[/]\x1b[0m": done("predict", run, data, "--out", tmp_path / "scores.csv"),
        r"x\x1b[2J": call("fit", data, "--groups", "x\x1b[2J", *words, "--force"),
        "extra argument": call("predict", "run", "x.csv", "y\x1b[2J.csv", "--out", "z.csv"),
        "seed": call("fit", "x.csv", "--target", "y", "--seed", "1\u202e2"),
    }
    for shown, found in results.items():
        assert shown in found.output and not {"\x1b", "\u202e"} & set(found.output), shown
    assert "\x1b" not in (run / "log.txt").read_text()
