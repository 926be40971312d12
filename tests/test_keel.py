from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments._app import app
from experiments.data import keel
from experiments.data.download import data_folder
from experiments.data.keel import KEEL_SETS, load_keel
from experiments.studies.keel import REGIONS, read_results, summary

RUNNER = CliRunner()


def write_set(folder: Path, rows: int = 120, positives: int = 24, end: str = "positive") -> None:
    """A table in KEEL's form: a level, two numbers, a constant, the class."""
    random = np.random.default_rng(0)
    lines = []
    for row in range(rows):
        hit = row < positives
        numbers = random.normal(size=2) + 2 * hit
        lines.append(f"{'M' if row % 3 else 'F'}, {numbers[0]:.3f}, {numbers[1]:.3f}, 7, {end if hit else 'negative'}")
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "yeast5.dat.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setitem(keel.KEEL_SETS, "yeast5", (120, 24))
    monkeypatch.delenv("MOREAUC_DATA", raising=False)
    write_set(tmp_path / "keel_imbalanced")
    return tmp_path


def test_a_table_has_levels_numbers_and_no_constant_column(small):
    X, y = load_keel("yeast5", small)
    assert X.shape == (120, 3) and int(y.sum()) == 24
    assert [str(kind) for kind in X.dtypes] == ["category", "float64", "float64"]
    again, _ = load_keel("yeast5", small / "keel_imbalanced")
    assert again.equals(X)


def test_the_folder_is_given_or_in_the_environment(small, monkeypatch):
    with pytest.raises(ValueError, match="give the folder with the data sets, or set MOREAUC_DATA"):
        load_keel("yeast5")
    monkeypatch.setenv("MOREAUC_DATA", str(small))
    assert data_folder() == small and len(load_keel("yeast5")[1]) == 120
    with pytest.raises(ValueError, match=r"the folder with the data sets must exist, got .*nowhere"):
        data_folder(small / "nowhere")


def test_wrong_names_and_files(small):
    with pytest.raises(ValueError, match=r"name must be one of abalone.*, got 'iris'"):
        load_keel("iris", small)
    with pytest.raises(ValueError, match=r"the folder must have vowel0.dat or vowel0.dat.gz"):
        load_keel("vowel0", small)
    write_set(small / "keel_imbalanced", positives=23)
    with pytest.raises(ValueError, match=r"yeast5 must have \(120, 24\) rows and positives, got \(120, 23\)"):
        load_keel("yeast5", small)
    write_set(small / "keel_imbalanced", end="maybe")
    with pytest.raises(ValueError, match="yeast5 must have"):
        load_keel("yeast5", small)


def test_the_real_tables_have_the_published_counts():
    """Runs on the real files where MOREAUC_DATA has them; CI sets it."""
    folder = os.environ.get("MOREAUC_DATA")
    if folder and (Path(folder) / "keel_imbalanced").is_dir():
        for name, counts in KEEL_SETS.items():
            X, y = load_keel(name)
            assert (len(X), int(y.sum())) == counts
    assert len(KEEL_SETS) == 6


def test_the_study_does_what_is_missing_and_makes_tables(small):
    out = small / "out"
    base = ["study", "keel", "--data-dir", str(small), "--sets", "yeast5", "--seeds", "1", "--trials", "1"]
    base += ["--jobs", "1", "--out", str(out)]
    result = RUNNER.invoke(app, [*base, "--methods", "xgboost,sonx"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    files = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert set(files) == {"yeast5-xgboost.json", "yeast5-sonx.json", "report.json", "index.html"}
    records = json.loads((out / "yeast5-sonx.json").read_text())["records"]
    assert [tuple(record["region"]) for record in records] == [REGIONS[0]] * 5 + [REGIONS[1]] * 5
    result = RUNNER.invoke(app, [*base, "--methods", "xgboost,sonx,lightgbm"], catch_exceptions=False)
    assert (out / "yeast5-sonx.json").stat().st_mtime_ns == files["yeast5-sonx.json"]  # not done again
    report = json.loads((out / "report.json").read_text())
    assert {cell["method"] for cell in report["cells"]} == {"sonx", "lightgbm", "xgboost"}
    assert "SONX against each" in result.output
    other = RUNNER.invoke(app, [*base[:-6], "--trials", "2", *base[-4:], "--methods", "sonx"])
    assert other.exit_code == 2 and "yeast5-sonx.json must be of the plan" in other.output
    (out / "yeast5-sonx.json").unlink()
    RUNNER.invoke(app, [*base, "--methods", "sonx"], catch_exceptions=False)
    again = json.loads((out / "yeast5-sonx.json").read_text())["records"]
    assert [r["score"] for r in again] == [r["score"] for r in records]
    only = RUNNER.invoke(app, ["study", "keel", "--out", str(out), "--report"], catch_exceptions=False)
    assert only.exit_code == 0 and "XGBoost" in only.output


def test_an_empty_folder_is_named(tmp_path):
    result = RUNNER.invoke(app, ["study", "keel", "--out", str(tmp_path), "--report"])
    assert result.exit_code == 2
    assert "must have results of a run" in result.output


def entry(name, method, scores, other=None):
    """Results of a method on a set: two seeds of five folds in the first region, and in the second."""
    records = [
        {"region": list(region), "seed": seed, "fold": fold, "score": values[5 * seed + fold], "seconds": 1.0}
        for region, values in zip(REGIONS, (scores, scores if other is None else other), strict=True)
        for seed in range(2)
        for fold in range(5)
    ]
    return {"set": name, "method": method, "versions": {"torch": "x"}, "records": records[::-1]}


def test_the_summary_by_hand():
    spread = [0.4, 0.5, 0.6, 0.7, 0.8, 0.5, 0.6, 0.7, 0.8, 0.9]
    results = [
        entry("yeast5", "sonx", [0.9] * 10, [0.7] * 10),
        entry("yeast5", "ce", [0.8] * 10, [0.7] * 10),
        entry("vowel0", "sonx", [0.5] * 10),
        entry("vowel0", "ce", spread, [0.1] * 10),
        entry("segment0", "ce", [0.1] * 10),  # SONX is missing there: no ranks
    ]
    found = summary(results)
    assert found["left_out"] == ["segment0"] and {cell["set"] for cell in found["cells"]} == {"yeast5", "vowel0"}
    cells = {(cell["set"], cell["method"], tuple(cell["region"])): cell for cell in found["cells"]}
    cell = cells["vowel0", "ce", REGIONS[0]]
    assert cell["mean"] == pytest.approx(0.65) and cell["rank"] == 1.0
    assert cell["std"] == pytest.approx(np.std(spread, ddof=1))
    assert cell["std_of_seeds"] == pytest.approx(np.std([0.6, 0.7], ddof=1))
    assert cells["vowel0", "ce", REGIONS[1]]["rank"] == 2.0
    assert cells["yeast5", "ce", REGIONS[1]]["rank"] == 1.5  # a tie
    ranks = {e["method"]: e for e in found["ranks"]}
    assert ranks["sonx"][str(REGIONS[0])] == 1.5 and ranks["sonx"][str(REGIONS[1])] == 1.25
    assert ranks["sonx"]["all"] == pytest.approx((1 + 2 + 1.5 + 1) / 4)
    (against,) = found["sonx_against"]
    assert (against["better"], against["equal"], against["worse"]) == (2, 1, 1)
    assert against["mean_difference"] == pytest.approx((0.1 - 0.15 + 0.0 + 0.4) / 4)


def test_reading_keeps_the_order_of_sets_and_methods(tmp_path):
    for name, method in [("yeast5", "ce"), ("segment0", "xgboost"), ("yeast5", "sonx")]:
        (tmp_path / f"{name}-{method}.json").write_text(json.dumps(entry(name, method, [0.5] * 10)))
    assert [(e["set"], e["method"]) for e in read_results(tmp_path)] == [
        ("segment0", "xgboost"),
        ("yeast5", "sonx"),
        ("yeast5", "ce"),
    ]
    (tmp_path / "a-b.json").write_text("{}")
    with pytest.raises(ValueError, match=r"must have nothing but results, got a-b\.json"):
        read_results(tmp_path)
