"""The studies on tables, at sizes that take seconds; the numbers of the docs come from the full ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments._app import app
from experiments.studies import LabelNoiseStudy, label_noise, thresholds
from experiments.studies.label_noise import FLIPS, noisy_table
from moreauc import comparison
from moreauc.comparison import Table
from moreauc.data.examples import load_example

RUNNER = CliRunner()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(comparison, "NETWORK_GRID", {"lr": (0.01,), "weight_decay": (0.01,), "epochs": (2,)})


def test_flips_are_in_the_training_rows_only_and_add_up(monkeypatch):
    tables = [noisy_table(0, flips) for flips in FLIPS]
    clean = tables[0].positive
    assert clean.mean() == pytest.approx(0.05, abs=0.01)
    train, test = tables[0].split
    assert len(train) == 2000 and len(test) == 8000 and not set(train) & set(test)
    flipped = [set(np.flatnonzero(table.positive != clean)) for table in tables]
    assert [len(rows) for rows in flipped] == [0, 20, 40, 100]
    assert flipped[1] < flipped[2] < flipped[3] <= set(train)
    assert (noisy_table(1, 0.0).X != tables[0].X).any()


def test_label_noise_study(quick, monkeypatch, tmp_path):
    monkeypatch.setattr(label_noise, "_TRAIN", 150)
    monkeypatch.setattr(label_noise, "_TEST", 150)
    command = ["study", "label-noise", "--seeds", "2", "--trials", "1", "--jobs", "1", "--out", str(tmp_path)]
    result = RUNNER.invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0 and "SOTA-s" in result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["records"]) == 7 * 2 * len(FLIPS)
    for cell in report["cells"]:
        own = [r["score"] for r in report["records"] if (r["method"], r["flips"]) == (cell["method"], cell["flips"])]
        assert cell["mean"] == pytest.approx(np.mean(own), abs=1e-4)
    with pytest.raises(ValueError, match="seeds must be an integer of at least 2, got 1"):
        LabelNoiseStudy(seeds=1)


def test_threshold_study(quick, monkeypatch, tmp_path):
    X, y, _ = load_example("diabetes")
    monkeypatch.setattr(thresholds, "study_tables", lambda: {"diabetes": Table(X, y)})
    monkeypatch.setattr(thresholds, "RULES", {"steps": (1.0, 0.01), "quantile": "quantile"})
    command = ["study", "thresholds", "--seeds", "1", "--trials", "1", "--epochs", "20", "--jobs", "1"]
    result = RUNNER.invoke(app, [*command, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0 and "Held-out TPAUC" in result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["records"]) == 2 * 2 * 5 and len(report["objectives"]) == 2 * 2
    lag = {(entry["rule"], entry["link"]): entry["lag"] for entry in report["objectives"]}
    assert all(lag["quantile", link] < lag["steps", link] for link in ("sigmoid", "identity"))


def test_the_tables_of_the_threshold_study():
    tables = thresholds.study_tables()
    assert set(tables) == {"digits", "breast_cancer", "diabetes", "made"}
    assert all(0.02 < table.positive.mean() < 0.2 for table in tables.values())
