"""The studies of groups, at sizes that take seconds; the numbers of the docs come from the full ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from moreauc.cli import app
from moreauc.data.groups import planted_groups
from moreauc.optim.group_presets import GROUP_METHODS, make_group_criterion
from moreauc.studies import GroupConvergenceStudy, GroupStudy, _group_convergence, _group_runs
from moreauc.studies._group_runs import draw_parts, settings

RUNNER = CliRunner()
DATA = os.environ.get("MOREAUC_DATA")


@pytest.fixture
def small(monkeypatch):
    def draw(seed):
        return planted_groups(num_groups=4, samples=200, test_samples=200, minority_share=0.2, seed=seed)

    monkeypatch.setattr(_group_runs, "planted_groups", draw)


@pytest.mark.parametrize("method", GROUP_METHODS)
def test_every_method_tries_as_many_settings(method):
    every = settings(method, 8)
    assert len(every) == 8 == len({json.dumps(setting) for setting in every})
    samplers = {setting["sampler"] for setting in every}
    assert samplers == ({"plain"} if method == "erm" else {"groups", "plain"})
    assert settings(method, 3) == every[:3]


def test_presets_refuse_what_they_do_not_know():
    with pytest.raises(ValueError, match=r"name must be one of \['sonx'"):
        make_group_criterion("dro", [0, 1], num_groups=2)
    with pytest.raises(ValueError, match="options must be arguments of the loss of 'erm'"):
        make_group_criterion("erm", [0, 1], num_groups=2, gamma=0.1)
    with pytest.raises(ValueError, match="group"):
        make_group_criterion("sonx", [0, 2], num_groups=3)  # group 1 has no row
    with pytest.raises(ValueError, match="make_group_criterion: groups must hold integers"):
        make_group_criterion("cvar", ["a", "b"], num_groups=2)
    matrix = np.array([[1.0, 0.0], [1.0, 1.0]])
    assert all(make_group_criterion(name, matrix, num_groups=2) is not None for name in GROUP_METHODS)
    with pytest.raises(ValueError, match="top_k"):
        make_group_criterion("sonx", [0, 1], num_groups=2, top_k=3)


def test_study_runs_resumes_and_reports(small, tmp_path):
    command = [
        "study",
        "groups",
        "--seeds",
        "2",
        "--trials",
        "2",
        "--epochs",
        "2",
        "--jobs",
        "1",
        "--out",
        str(tmp_path),
    ]
    result = RUNNER.invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0 and "exponen" in result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["records"]) == 10
    for cell in report["cells"]:
        own = [record for record in report["records"] if record["method"] == cell["method"]]
        for key in ("worst_loss", "worst_accuracy", "mean_accuracy"):
            assert cell[key][0] == pytest.approx(np.mean([record[key] for record in own]), abs=1e-4)
        for record in own:
            assert record["worst_accuracy"] == pytest.approx(min(record["group_accuracy"]), abs=1e-4)
            assert record["mean_accuracy"] == pytest.approx(np.mean(record["group_accuracy"]), abs=1e-3)
            assert record["worst_loss"] >= record["mean_loss"]
            best = max(entry["validation"] for entry in record["tried"])
            chosen = next(entry for entry in record["tried"] if entry["validation"] == best)
            assert {key: chosen[key] for key in record["setting"]} == record["setting"]
    lost = tmp_path / "runs" / "planted-sonx-1.json"
    before = json.loads(lost.read_text())
    lost.unlink()
    with pytest.raises(ValueError, match="must hold a run planted-sonx-1"):
        GroupStudy(seeds=2, trials=2, epochs=2).report(tmp_path)
    RUNNER.invoke(app, command, catch_exceptions=False)
    assert json.loads(lost.read_text())["tried"] == before["tried"]


def test_convergence_study(monkeypatch, tmp_path):
    monkeypatch.setattr(_group_convergence, "NUMBERS", (10, 20))
    monkeypatch.setattr(_group_convergence, "RATES", (0.1,))
    command = ["study", "groups", "--set", "convergence", "--seeds", "1", "--steps", "150", "--jobs", "1"]
    result = RUNNER.invoke(app, [*command, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(curve["groups"], curve["method"]) for curve in report["curves"]] == [
        (10, "sonx"), (10, "exponentiated"), (20, "sonx"), (20, "exponentiated"),
    ]  # fmt: skip
    for curve in report["curves"]:
        assert curve["samples"][0] == 0 and curve["samples"][-1] == 150 * 64
        assert curve["top_k_loss"][0] == pytest.approx(np.log(2), abs=1e-4)
        assert all(a <= b + 1e-9 for a, b in zip(curve["top_k_loss"], curve["worst_loss"], strict=True))
    ten = report["curves"][0]
    assert ten["top_k_loss"] == ten["worst_loss"]  # a tenth of ten groups is one
    assert ten["worst_loss"][-1] < 0.69
    assert "<img" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (GroupStudy, {"name": "german"}, "name must be one of"),
        (GroupStudy, {"seeds": 1}, "seeds must be an integer of at least 2"),
        (GroupStudy, {"trials": 9}, r"trials must lie in \[1, 8\], got 9"),
        (GroupConvergenceStudy, {"steps": 0}, "steps must be an integer"),
    ],
)
def test_bad_plans(kind, options, message):
    with pytest.raises(ValueError, match=f"{kind.__name__}: {message}"):
        kind(**options)


@pytest.mark.skipif(DATA is None, reason="needs the data that MOREAUC_DATA names")
@pytest.mark.parametrize(("name", "rows", "groups"), [("adult", 48842, 10), ("compas", 7214, 6)])
def test_real_tables_are_split_by_group(name, rows, groups):
    parts = draw_parts(name, 0, Path(DATA))
    every = [parts.train, parts.validation, parts.test]
    assert sum(len(part) for part in every) == rows
    assert all(part.num_groups == groups and part.sizes.min() > 0 for part in every)
    assert parts.train.X.dtype == np.float32 and abs(float(parts.train.X[:, 0].mean())) < 1e-4
