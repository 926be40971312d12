"""`python -m experiments reproduce`: a tiny version of each experiment end to end, on data made here."""

from __future__ import annotations

import functools
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from experiments import _parts, runs
from experiments._app import app
from experiments.config import (
    EXPERIMENTS,
    batch_of,
    load_experiment,
    plan_of,
)
from experiments.data import histology, molecules

RUNNER = CliRunner()


def call(*words: object):
    return RUNNER.invoke(app, ["reproduce", *(str(word) for word in words)])


def refused(*words: object) -> str:
    """Return the one line of a refusal."""
    result = call(*words)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.fixture(scope="module", autouse=True)
def made_once():
    """Data that the library makes are the same every time: once is enough."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (molecules, "example_molecules"),
            (_parts, "digit_bags"),
            (histology, "example_histology"),
        ):
            patch.setattr(module, name, functools.cache(getattr(module, name)))
        yield


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """Each experiment run once; the others look at copies."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("smoke")
    return folder, {name: call(name, "--smoke", "--out", folder / name) for name in EXPERIMENTS}


CURVES = {"molecules": 2, "bags": 2, "histology": 0}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_smoke_runs_all_of_it(name, smoke):
    folder, results = smoke
    result, out = results[name], folder / name
    assert result.exit_code == 0, result.output
    plan = load_experiment(name)
    missing = len(plan.contestants) * 2 * (2 if name == "bags" else 1)
    curves = ", 2 training curves missing" if CURVES[name] else ""
    lines = result.stdout.splitlines()
    assert lines[0] == (
        f"{plan.title}: a trial of the program: 0 of {missing} runs are there, {missing} missing{curves}; "
        f"on {'cuda' if torch.cuda.is_available() else 'cpu'}, to {out / 'runs'}"
    )
    assert lines[-1] == f"Report: {out / 'index.html'}"
    assert max(len(line) for line in lines[1:-1]) <= 120
    for entry in plan.contestants.values():
        assert any(line.startswith(f"│ {entry.title}") for line in lines), entry.title
    assert any(line.startswith("│ start (CE) ") for line in lines) == (plan.training.pretrain_epochs > 0)
    assert missing == len(list((out / "runs").glob("*.json")))
    assert {file.stem for file in (out / "runs").glob("*.json")} == {file.stem for file in (out / "curves").iterdir()}
    assert CURVES[name] == len(list((out / "ablation").glob("*.json")))
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert report["runs"] == missing
    first = [cell for cell in report["cells"] if (cell["protocol"], cell["choice"]) == ("runs", "chosen")]
    assert len(first) == len(plan.contestants) * len(plan.regions)
    assert all(cell["number"] == cell["planned"] == 2 and 0.0 <= cell["mean"] <= 1.0 for cell in first)
    assert any(cell["choice"] == "chosen_paper" for cell in report["cells"]) == (name == "histology")
    page = (out / "index.html").read_text(encoding="utf-8")
    assert page.count("<img") == 1 + (name == "bags") + (CURVES[name] > 0)
    for image in re.findall(r'<img src="([^"]+)"', page):
        assert (out / image).read_bytes().startswith(b"\x89PNG")


def test_what_is_there_is_not_done_again(smoke, tmp_path):
    shutil.copytree(smoke[0] / "bags", tmp_path / "bags")
    out = tmp_path / "bags"
    stamps = {file: file.stat().st_mtime_ns for file in out.rglob("*.json") if file.name != "report.json"}
    result, every = call("bags", "--smoke", "--out", out), 4 * len(load_experiment("bags").contestants)
    assert f"{every} of {every} runs are there, 0 missing; on" in result.stdout and result.exit_code == 0
    (out / "runs" / "example-sont_att-1-0.json").unlink()
    result = call("bags", "--smoke", "--out", out, "--method", "sont_att", "--jobs", 1)
    assert "3 of 4 runs are there, 1 missing; on" in result.stdout and result.exit_code == 0
    changed = [file.name for file, stamp in stamps.items() if file.stat().st_mtime_ns != stamp]
    assert changed == ["example-sont_att-1-0.json"]
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert report["runs"] == every  # all that is there, whatever was run


def test_report_alone_shows_what_is_there(smoke, tmp_path):
    shutil.copytree(smoke[0] / "bags", tmp_path / "bags")
    out = tmp_path / "bags"
    before = json.loads((out / "report.json").read_text(encoding="utf-8"))
    for name in ("report.json", "index.html", "results.png"):
        (out / name).unlink()
    result = call("bags", "--smoke", "--report", "--out", out)
    assert result.exit_code == 0 and "missing" not in result.stdout
    after = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert after["cells"] == before["cells"]
    assert after["command"] == f"python -m experiments reproduce bags --report --smoke --out {out}"
    (out / "runs" / "example-sont_att-0-1.json").unlink()
    result = call("bags", "--smoke", "--report", "--out", out)
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if line.startswith("│ SONT (att)  ") and "(1)" in line)
    assert row.count("(1)") == 3
    assert "Runs are missing: a number in parentheses says how many folds a cell has, of 2." in result.stdout
    assert not (out / "runs" / "example-sont_att-0-1.json").exists()


def test_a_run_of_another_plan_is_refused_before_anything_is_run(smoke, tmp_path):
    shutil.copytree(smoke[0] / "bags", tmp_path / "bags")
    line = refused("bags", "--report", "--out", tmp_path / "bags")  # the runs are not of the whole experiment
    assert "out must hold runs of bags, got none in" in line
    file = tmp_path / "bags" / "runs" / "example-sont_att-0-0.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    record["plan"]["training"]["epochs"] = 3
    file.write_text(json.dumps(record))
    (tmp_path / "bags" / "runs" / "example-auc_m_att-0-0.json").unlink()
    line = refused("bags", "--smoke", "--out", tmp_path / "bags")
    assert "runs/example-sont_att-0-0.json must be made with epochs 1, got 3; remove it, and run" in line
    assert not (tmp_path / "bags" / "runs" / "example-auc_m_att-0-0.json").exists()


def test_it_can_be_stopped_at_any_run(tmp_path, monkeypatch):
    whole, done = runs.do_run, []

    def stop_after_two(**options):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(options)
        return whole(**options)

    monkeypatch.setattr(runs, "do_run", stop_after_two)
    command = ("bags", "--smoke", "--out", tmp_path, "--method", "midam_att", "--device", "cpu")
    result = call(*command)
    assert result.exit_code == 130
    assert result.stdout.splitlines()[-1] == (
        "Stopped: 2 of 4 files are done and kept, the same command goes on from there"
    )
    assert len(list((tmp_path / "runs").glob("*.json"))) == 2 and not list((tmp_path / "runs").glob("*.part"))
    monkeypatch.undo()
    result = call(*command)
    assert "2 of 4 runs are there, 2 missing" in result.stdout and result.exit_code == 0


def test_fewer_seeds_splits_and_data_sets(tmp_path):
    result = call(
        "bags", "--smoke", "--out", tmp_path, "--method", "midam_smx , auc_m_att", "--seeds", 1, "--splits", 1
    )
    assert result.exit_code == 0, result.output
    assert sorted(file.name for file in (tmp_path / "runs").iterdir()) == [
        "example-auc_m_att-0-0.json",
        "example-midam_smx-0-0.json",
    ]
    assert "(1)" in result.stdout


def test_smoke_goes_to_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = call("histology", "--smoke", "--method", "auc_m_att", "--seeds", 1)
    lines = result.stdout.splitlines()
    place = Path(lines[-1].removeprefix("The files of this trial stay in "))
    assert place.name.startswith("moreauc-histology-") and place.parent == tmp_path
    assert lines[-2] == f"Report: {place / 'index.html'}" and lines[0].endswith(f"to {place / 'runs'}")
    assert [file.name for file in tmp_path.iterdir()] == [place.name]
    command = json.loads((place / "report.json").read_text(encoding="utf-8"))["command"]
    assert command == f"python -m experiments reproduce histology --report --smoke --out {place}"
    (place / "index.html").unlink()
    result = call(*shlex.split(command)[2:])  # what the footer says works
    assert result.exit_code == 0 and (place / "index.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--report"], "out must be given for --report with --smoke: the folder of the trial, got none"),
        (["--method", "sonx"], "methods must be among"),
        (["--method", ""], "method must be at least one name, several with commas, got ''"),
        (["--dataset", " , "], "dataset must be at least one name, several with commas, got ' , '"),
    ],
)
def test_what_is_refused_leaves_no_folder_behind(words, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert message in refused("bags", "--smoke", *words)
    assert not list(tmp_path.iterdir())


def test_an_error_names_its_run(tmp_path, monkeypatch):
    def broken(**options):
        raise ValueError("load_fox: fox.mat must be there, got nothing")

    monkeypatch.setattr(runs, "do_run", broken)
    line = refused("bags", "--smoke", "--out", tmp_path, "--method", "midam_att", "--device", "cpu")
    assert line == "error: load_fox: fox.mat must be there, got nothing (in runs/example-midam_att-0-0)"


def whole_records(name, out):
    """Two made-up runs of the whole experiment."""
    plan = load_experiment(name)
    dataset = next(iter(plan.datasets))
    (out / "runs").mkdir(parents=True)
    for run in range(2):
        for method, contestant in plan.contestants.items():
            chosen = {"setting": contestant.settings[0], "epoch": 1, "validation": 0.5, "test": 0.25, "last": 0.2}
            record = {
                "dataset": dataset,
                "method": method,
                "split": 0,
                "run": run,
                "counts": {part: [4, 1] for part in ("train", "validation", "test")},
                "batch": batch_of(plan.datasets[dataset]),
                "options": dict(contestant.options),
                "regions": plan.regions,
                "chosen": [chosen] * len(plan.regions),
                "settings": [{**setting, "merit": [0.5] * len(plan.regions)} for setting in contestant.settings],
                "device": "CPU",
                "seconds": 1.0,
                "plan": plan_of(plan),
                "where": {"date": "2026-01-01", "torch": "2.0", "machine": "x"},
            }
            (out / "runs" / f"{dataset}-{method}-0-{run}.json").write_text(json.dumps(record))


def test_report_of_all_that_have_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole_records("molecules", Path("docs/reports/experiments/molecules"))  # as in a checkout
    whole_records("bags", Path("reports/experiments/bags"))
    result = call("--report")
    assert result.exit_code == 0, result.output
    reports = [line for line in result.stdout.splitlines() if line.startswith("Report: ")]
    assert reports == [
        f"Report: {Path('docs/reports/experiments/molecules/index.html')}",
        f"Report: {Path('reports/experiments/bags/index.html')}",
    ]
    assert "0.250±0.000 (2)" in result.stdout
    assert "Not run: the data could not be downloaded where the others were run." in result.stdout  # molpcba
    commands = [
        json.loads(Path(place).read_text(encoding="utf-8"))["command"]
        for place in ("docs/reports/experiments/molecules/report.json", "reports/experiments/bags/report.json")
    ]
    assert commands == [
        "python -m experiments reproduce molecules --report",
        "python -m experiments reproduce bags --report",
    ]
    shutil.move("reports/experiments", "elsewhere")
    page = Path("elsewhere") / "bags" / "index.html"
    assert f"Report: {page}" in call("--report", "--out", "elsewhere").stdout
    assert f"python -m experiments reproduce bags --report --out {page.parent}" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["birds"], "EXPERIMENT must be one of molecules, bags, histology, got 'birds'"),
        ([], "EXPERIMENT must be one of molecules, bags, histology; only --report needs none"),
        (["bags", "--dataset", "musk2,tiger"], "datasets must be among ['musk2', 'fox'], got 'tiger'"),
        (
            ["molecules", "--dataset", "molpcba"],
            "datasets must be available, got 'molpcba': Not run: the data could not be downloaded where the",
        ),
        (["bags", "--method", "sonx"], "methods must be among ['auc_m_att', 'midam_smx', 'midam_att'"),
        (["bags", "--seeds", "6"], "seeds must be at most the folds of bags, 5, got 6"),
        (["bags", "--device", "tpu"], "device must be one of auto, cpu"),
        (["histology", "--smoke", "--dataset", "colon"], "datasets must be among ['example'], got 'colon'"),
        (["bags", "--report"], f"out must hold runs of bags, got none in {Path('reports/experiments/bags/runs')}"),
        (
            ["--report"],
            f"out must hold runs of an experiment, got none in {Path('reports/experiments/molecules/runs')}, ",
        ),
    ],
)
def test_one_line_for_what_is_refused(words, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOREAUC_DATA", raising=False)
    assert message in refused(*words)
    assert not (tmp_path / "reports").exists()


def test_help_names_the_experiments():
    result = call("--help")
    assert result.exit_code == 0
    for word in (*EXPERIMENTS, "--smoke", "--report", "--dataset", "--method", "--seeds", "--splits", "--jobs"):
        assert word in result.stdout
