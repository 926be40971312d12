"""The studies of groups, at sizes that take seconds; the numbers of the docs come from the full ones."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from experiments._app import app
from experiments.studies import (
    GroupConvergenceStudy,
    GroupStudy,
    _group_convergence,
    _group_runs,
)
from experiments.studies._group_runs import draw_parts, settings
from moreauc.data import planted_groups
from moreauc.methods import METHODS, build
from moreauc.train import fit

RUNNER = CliRunner()
DATA = os.environ.get("MOREAUC_DATA")


@pytest.fixture
def small(monkeypatch):
    def draw(seed):
        return planted_groups(num_groups=4, samples=200, test_samples=200, minority_share=0.2, seed=seed)

    monkeypatch.setattr(_group_runs, "planted_groups", draw)


@pytest.mark.parametrize("method", METHODS["groups"])
@pytest.mark.parametrize("name", ["planted", "adult", "compas"])
def test_every_method_tries_as_many_settings(method, name):
    every = settings(method, name, 8)
    assert len(every) == 8 == len({json.dumps(setting) for setting in every})
    samplers = {setting["sampler"] for setting in every}
    offered = {"groups"} if name == "planted" and method != "erm_reweighted" else {"groups", "plain"}
    assert samplers == ({"plain"} if method == "erm" else offered)
    starts = {setting.get("start", 0.0) for setting in every}
    assert starts == ({0.0, 1 / 3} if name == "planted" and method != "erm" else {0.0})
    assert settings(method, name, 3) == every[:3]


def test_a_start_by_cross_entropy_takes_its_share_of_the_epochs(small, monkeypatch):
    seen = []
    monkeypatch.setattr(_group_runs, "fit", lambda *parts, **options: seen.append(options) or fit(*parts, **options))
    _group_runs.tune_and_test("sonx", "planted", 0, trials=8, epochs=3, folder=None)
    assert {(options["epochs"], options["warm_start_epochs"]) for options in seen} == {(3, 0), (2, 1)}


def test_presets_refuse_what_they_do_not_know():
    with pytest.raises(ValueError, match=r"name must be one of \['sonx'"):
        build("groups", "dro", [0, 1], num_groups=2)
    with pytest.raises(ValueError, match="options of 'erm' must be among"):
        build("groups", "erm", [0, 1], num_groups=2, gamma=0.1)
    with pytest.raises(ValueError, match="group"):
        build("groups", "sonx", [0, 2], num_groups=3)  # group 1 has no row
    with pytest.raises(ValueError, match="build: groups must hold integers"):
        build("groups", "cvar", ["a", "b"], num_groups=2)
    matrix = np.array([[1.0, 0.0], [1.0, 1.0]])
    assert all(build("groups", name, matrix, num_groups=2) is not None for name in METHODS["groups"])
    with pytest.raises(ValueError, match="top_k"):
        build("groups", "sonx", [0, 1], num_groups=2, top_k=3)


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
    grid = {(method, number): ((0.01, 0.1), (0.1,)) for method in _group_convergence.TITLES for number in (10, 20)}
    monkeypatch.setattr(_group_convergence, "NUMBERS", (10, 20))
    monkeypatch.setattr(_group_convergence, "GRIDS", grid)
    command = ["study", "groups", "--set", "convergence", "--seeds", "2", "--steps", "150", "--jobs", "1"]
    result = RUNNER.invoke(app, [*command, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(curve["groups"], curve["method"]) for curve in report["curves"]] == [
        (number, method) for number in (10, 20) for method in ("sonx", "exponentiated", "unscaled")
    ]
    for curve in report["curves"]:
        assert curve["samples"][0] == 0 and curve["samples"][-1] == 150 * 64
        assert curve["top_k_loss"][0] == pytest.approx(np.log(2), abs=1e-4)
        assert all(a <= b + 1e-9 for a, b in zip(curve["top_k_loss"], curve["worst_loss"], strict=True))
        _check_choice(curve, tmp_path / "runs")
    ten = report["curves"][0]
    assert ten["top_k_loss"] == ten["worst_loss"]  # a tenth of ten groups is one
    assert ten["worst_loss"][-1] < 0.69
    assert "<img" in (tmp_path / "index.html").read_text()


def _check_choice(curve, runs):
    """The curve is that of the setting whose mean over draws ends lowest in what its method minimises."""
    key = "top_k_loss" if curve["method"] == "sonx" else "worst_loss"
    ends = {}
    for rate in (0.01, 0.1):
        files = [runs / f"{curve['groups']}-{curve['method']}-{rate:g}-0.1-{seed}.json" for seed in range(2)]
        ends[rate] = np.mean([json.loads(file.read_text())[key][-1] for file in files])
    assert {entry["lr"]: entry[key] for entry in curve["tried"]} == pytest.approx(ends, abs=2e-5)
    assert curve["lr"] == min(ends, key=lambda rate: ends[rate])
    assert curve[key][-1] == pytest.approx(min(ends.values()), abs=2e-5)
    assert np.mean(curve["last"][key]) == pytest.approx(min(ends.values()), abs=2e-5)


@pytest.mark.parametrize("number", _group_convergence.NUMBERS)
def test_methods_try_as_many_settings_along_the_run(number):
    every = [_group_convergence.settings(method, number) for method in _group_convergence.TITLES]
    assert [len(pairs) for pairs in every] == [len(set(pairs)) for pairs in every] == [16, 16, 16]


@pytest.mark.parametrize("method", _group_convergence.TITLES)
def test_a_run_says_each_of_its_settings_once(method):
    record = _group_convergence.descend(10, method, 0.1, 0.3, 3, 30)
    given = {key: record[key] for key in record if key not in ("samples", "top_k_loss", "worst_loss")}
    assert given == {"groups": 10, "method": method, "lr": 0.1, "option": 0.3, "seed": 3}
    assert record["samples"] == [64 * step for step in (0, *_looks(30))]
    assert len(record["top_k_loss"]) == len(record["worst_loss"]) == len(record["samples"])


def test_weights_as_published_have_no_factor():
    criterion = _group_convergence.UnscaledExponentiatedLoss(4, step=1.0)
    losses = torch.tensor([0.0, math.log(3.0)], dtype=torch.float64, requires_grad=True)
    value = criterion(losses, torch.tensor([0, 2]))
    value.backward()
    weights = [1 / 6, 1 / 6, 3 / 6, 1 / 6]  # 1, 1, 3, 1 over their sum
    assert criterion.weights.tolist() == pytest.approx(weights, abs=1e-6)
    assert losses.grad.tolist() == pytest.approx([1 / 6, 3 / 6], abs=1e-6)
    assert value.item() == pytest.approx(math.log(3.0) / 2, abs=1e-6)


def test_the_factor_is_part_of_the_step_size():
    scaled = _group_convergence.descend(100, "exponentiated", 0.08, 0.5, 0, 200)
    unscaled = _group_convergence.descend(100, "unscaled", 1.0, 0.5, 0, 200)  # 8 of 100 groups in every batch
    for key in ("top_k_loss", "worst_loss"):
        assert unscaled[key] == pytest.approx(scaled[key], abs=1e-4)
        assert np.ptp(scaled[key]) > 0.01  # it has moved


def _looks(steps):
    return sorted({round(steps ** (k / 24)) for k in range(25)})


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
