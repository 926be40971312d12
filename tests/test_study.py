from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

import moreauc
from experiments._app import app
from experiments.studies import ConvergenceStudy
from experiments.studies.convergence import (
    METHODS,
    PROBLEMS,
    SWEEPS,
    Task,
)
from moreauc._extras import import_extra
from moreauc.report.pages import Report, Section, rounded

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def small_study(tmp_path_factory):
    """The study as a user runs it, from the command line, at its smallest size."""
    folder = tmp_path_factory.mktemp("study")
    command = ["study", "convergence", "--steps", "60", "--seeds", "2", "--jobs", "1", "--out", str(folder)]
    return folder, RUNNER.invoke(app, command, catch_exceptions=False)


def test_the_command_prints_a_table_and_where_the_report_is(small_study):
    _, result = small_study
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    assert "Stationarity and gap to the optimum" in text and "plug-in" in text
    assert "The plug-in estimator stalls where its bias lets it" in text
    assert "index.html" in text


def test_the_report_holds_every_run(small_study):
    folder, _ = small_study
    report = json.loads((folder / "report.json").read_text())
    assert report["command"] == "python -m experiments study convergence --steps 60 --seeds 2"
    assert report["versions"]["torch"] == torch.__version__
    keys = [tuple(entry["key"]) for entry in report["methods"]]
    assert keys == [(problem, method) for problem in PROBLEMS for method in METHODS]
    for entry in report["methods"]:
        curve = entry["stationarity"]
        assert len(curve["mean"]) == len(entry["step"]) == len(entry["samples"])
        assert all(low <= high for low, high in zip(curve["low"], curve["high"], strict=True))
    assert [entry["key"][:2] for entry in report["sweeps"] if entry["key"][2] == "plug-in"] == [
        ["samples_per_batch", value] for value in SWEEPS["samples_per_batch"]
    ]
    for entry in report["bounds"]:
        assert len(entry["bound"]) == len(entry["table_error"]) == len(entry["step"])
        assert min(entry["bound"]) > 0
    assert (folder / "report.json").stat().st_size < 100_000


def test_the_page_shows_figures_that_exist(small_study):
    folder, _ = small_study
    page = (folder / "index.html").read_text()
    for name in ("methods.png", "sweeps.png", "bounds.png"):
        assert f'src="{name}"' in page
        assert (folder / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert page.count("<table>") == 3 and "report.json" in page


def test_results_do_not_depend_on_the_number_of_processes():
    class Tiny(ConvergenceStudy):
        @property
        def tasks(self) -> list[Task]:
            return [task for task in super().tasks if task.part == "bounds"][:2]

    alone, together = (Tiny(steps=200, seeds=2, jobs=jobs).run() for jobs in (1, 2))
    assert [r["key"] for r in alone] == [r["key"] for r in together]
    for one, other in zip(alone, together, strict=True):
        assert one["table_error"] == pytest.approx(other["table_error"], rel=1e-9)


@pytest.mark.parametrize("name", ["steps", "seeds", "jobs"])
def test_wrong_sizes(name):
    with pytest.raises(ValueError, match=f"ConvergenceStudy: {name} must be an integer of at least 1, got 0"):
        ConvergenceStudy(**{name: 0})
    with pytest.raises(ValueError, match="steps must be at least 50, got 20"):
        ConvergenceStudy(steps=20)


def test_import_extra_passes_on_what_is_there_and_other_errors(tmp_path, monkeypatch):
    assert import_extra("json", "none") is json
    message = "needs surely_not_there, which is not installed.*pip install 'moreauc\\[some\\]'"
    with pytest.raises(ModuleNotFoundError, match=message):
        import_extra("surely_not_there.part", "some")
    (tmp_path / "halfbroken.py").write_text("import surely_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="surely_not_there"):
        import_extra("halfbroken", "none")


def test_version_and_help():
    assert RUNNER.invoke(app, ["--version"]).output.strip() == moreauc.__version__
    assert "study" in RUNNER.invoke(app, ["--help"]).output
    assert RUNNER.invoke(app, ["study", "convergence", "--steps", "3"]).exit_code == 2


def test_pages_escape_what_they_show(tmp_path):
    section = Section("a < b", ["x & y"], rows=[["<script>"]], columns=["<c>"])
    report = Report("<title>", "cmd", {"n": 1.23456789, "bad": float("nan")}, [section])
    page = report.write(tmp_path).read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page and "a &lt; b" in page
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["n"] == 1.2346 and content["bad"] is None


def test_rounded_keeps_structure():
    assert rounded({"a": (1, 2.000001), "b": torch.tensor([0.1234567])}) == {"a": [1, 2.0], "b": [0.12346]}
