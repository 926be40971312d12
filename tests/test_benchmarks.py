"""The benchmark programs at tiny sizes, without LibAUC: they run and leave the report that the docs read."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
HEAD = {"title", "command", "versions", "date", "device"}


def run(program: str, out: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, str(FOLDER / program), *options, "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    report: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    assert report.keys() >= HEAD
    assert report["command"].startswith(f"python benchmarks/{program} ")
    assert str(out.parent) not in out.read_text(encoding="utf-8")
    return report


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def program(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_pairs_report_has_time_and_memory_of_each_contestant_or_its_error(tmp_path: Path) -> None:
    options = ("--sizes", "30000", "--rounds", "3", "--memory-gib", "3", "--without-peer", "--without-crossover")
    report = run("bench_pairs.py", tmp_path / "pairs.json", *options, "--seconds", "1")
    rows = {row["contestant"]: row for row in report["sizes"]}
    assert set(rows) == {"TPAUCLoss", "kernel", "kernel, pair matrix"}
    assert "allocate memory" in rows.pop("kernel, pair matrix")["error"]
    for row in rows.values():
        low, high = row["quartiles"]
        assert 0 < low <= row["microseconds"] <= high
        assert row["rounds"] == 3
        assert row["process_mib"] > row["growth_mib"]
        assert 1 < row["growth_mib"] < 100  # far below the 3433 of one matrix
    assert "--without-peer --without-crossover" in report["command"]


def test_metrics_report_has_ratios_and_edges(tmp_path: Path) -> None:
    options = ("--number", "400", "--rounds", "3", "--seconds", "1", "--without-peer")
    report = run("bench_metrics.py", tmp_path / "metrics.json", *options)
    assert {(row["share"], row["levels"]) for row in report["times"]} == {
        (share, levels) for share in (0.01, 0.1, 0.5) for levels in (None, 64)
    }
    for row in report["times"]:
        assert row["sklearn roc_auc_score / tpauc_score"]["median"] > 0
        assert 0 <= row["value"] <= 1
    for row in report["edges"]:
        assert row["tpauc_score"] == row["pair definition"], row["case"]


def test_step_report_has_a_ratio_for_each_variant_and_width(tmp_path: Path) -> None:
    report = run("bench_tpauc_step.py", tmp_path / "step.json", "--rounds", "2", "--steps", "1")
    for part in ("small: 64-64-64-1", "medium: 64-256-256-256-1", "large: 64-512-512-512-1"):
        for name in ("cross entropy + forward without gradient", "TPAUCLoss, gamma 0", "TPAUCLoss, gamma 0.1"):
            ratio = report[part][f"{name} / cross entropy"]
            assert ratio["quartiles"][0] <= ratio["median"] <= ratio["quartiles"][1]
    assert len(report["targets"]) == 6
    assert all(row["met"] == (row["measured"] <= float(row["target"].split()[-1])) for row in report["targets"])


def test_targets_of_pairs_compare_with_what_was_measured(programs: None) -> None:
    rows = [
        {"per class": 64, "contestant": "tpAUC_CVaR_loss", "times TPAUCLoss": 0.9},
        {"per class": 8192, "contestant": "tpAUC_CVaR_loss", "times TPAUCLoss": 900.0},
        {"per class": 10**6, "contestant": "TPAUCLoss", "microseconds": 4e6, "growth_mib": 100.0},
    ]
    assert [row["met"] for row in program("bench_pairs").targets(rows)] == [False, True, False, True]


def test_pair_definition_of_the_metrics_report(programs: None) -> None:
    by_pairs = program("bench_metrics").by_pairs
    assert by_pairs([1, 1, 0, 0], [0.9, 0.3, 0.4, 0.3], 0.5, 1.0) == 0.25
    assert math.isnan(by_pairs([1, 0], [0.9, 0.3], 0.5, 1.0))
    assert by_pairs([1] * 10 + [0], [0.2] + [0.9] * 9 + [0.5], 0.9, 1.0) == 0.0


def test_the_peer_answers_over_its_pipe_and_reports_failures(programs: None) -> None:
    peer = program("peer")
    with peer.Peer(Path(sys.executable), memory_gib=64.0) as other:
        answer = other.ask("versions")
        assert "libauc" in answer or answer["error"].startswith("ModuleNotFoundError")
        assert other.ask("metric_of", labels=[1, 0])["error"].startswith("TypeError")
        assert "error" in other.ask("nonsense")


def test_contestants_see_the_same_data(programs: None) -> None:
    peer = program("peer")
    scores, labels, index = peer.loss_data(16)
    assert scores.requires_grad and labels.sum() == 16 and index.tolist() == list(range(32))
    assert peer.loss_data(16)[0].tolist() == scores.tolist()
    labels, values = peer.metric_data(1000, 0.1, 64)
    assert labels.sum() == 100 and len(set(values.tolist())) < 80
