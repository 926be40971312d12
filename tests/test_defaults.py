"""The study of the defaults: its tables, its runs, and what its page says of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import wilcoxon
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from experiments import __main__ as command_line
from experiments.data import adbench, fingerprints
from experiments.data.adbench import load_adbench
from experiments.data.fingerprints import load_fingerprints
from experiments.data.smiles import MoleculeReader, example_smiles, split_by_group
from experiments.engine import RECORDS, Setup, run_missing
from experiments.studies import load_studies
from experiments.studies.defaults import run_candidate, split_table
from experiments.studies.defaults_entries import ENTRIES
from experiments.studies.defaults_page import against_table, standing_table, summary, top_table
from moreauc.metrics import tpauc_score

STUDY = load_studies()["defaults"]
REGIONS = ((0.5, 0.5), (0.0, 0.1))


# ---- tables


def test_a_table_of_adbench(tmp_path, monkeypatch):
    X, y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 0, 1, 0])
    np.savez(tmp_path / "29_Pima.npz", X=X, y=y)
    with pytest.raises(ValueError, match=r"Pima must have \[768, 268\] rows and positives, got \[6, 2\]"):
        load_adbench("Pima", tmp_path)
    monkeypatch.setitem(adbench.ADBENCH_SETS, "Pima", ("29_Pima.npz", 6, 2))
    found = load_adbench("Pima", tmp_path)
    np.testing.assert_array_equal(found[0], X)
    np.testing.assert_array_equal(found[1], y)
    with pytest.raises(ValueError, match=r"the folder must have 12_fault\.npz"):
        load_adbench("fault", tmp_path)
    with pytest.raises(ValueError, match=r"name must be one of annthyroid, .*, got 'iris'"):
        load_adbench("iris", tmp_path)


def test_fingerprints_are_those_of_each_molecule_and_kept(tmp_path, monkeypatch):
    generators = pytest.importorskip("rdkit.Chem.rdFingerprintGenerator")
    monkeypatch.setenv("MOREAUC_CACHE", str(tmp_path / "cache"))
    smiles = [*example_smiles()[:60], "no molecule"]
    labels = ["" if row % 7 == 3 else str(row % 2) for row in range(61)]
    lines = [f"{label},{text}" for label, text in zip(labels, smiles, strict=True)]
    (tmp_path / "tox21.csv").write_text("\n".join(["NR-AR,smiles", *lines]) + "\n")
    bits, y, train, test = load_fingerprints("NR-AR", tmp_path)
    rows = [row for row in range(60) if labels[row]]
    assert bits.shape == (len(rows), 2048) and y.tolist() == [int(labels[row]) for row in rows]
    reader, generator = MoleculeReader(), generators.GetMorganGenerator(radius=2, fpSize=2048)
    for place, row in enumerate(rows):
        expected = sorted(generator.GetFingerprint(reader.molecule(smiles[row])[0]).GetOnBits())
        assert sorted(bits[[place]].indices.tolist()) == expected and (bits[[place]].data == 1.0).all()
    parts = split_by_group([reader.scaffold(reader.molecule(text)[0]) for text in smiles[:60]] + [60])
    assert {rows[place] for place in test} == set(parts.test.tolist()) & set(rows)
    assert sorted([*train, *test]) == list(range(len(rows)))
    monkeypatch.setattr(fingerprints, "make_fingerprints", None)  # the second time they are read
    fingerprints._of_file.cache_clear()
    assert (load_fingerprints("NR-AR", tmp_path)[0] != bits).nnz == 0
    with pytest.raises(ValueError, match=r"name must be one of NR-AR, .*, got 'NR-X'"):
        load_fingerprints("NR-X", tmp_path)


def test_rows_are_drawn_by_the_seed_in_the_shares_of_the_classes():
    table = split_table("made 0", 0, 0.3, 200, None)
    train, test = table.split
    assert len(train) == 140 and len(test) == 60 and not set(train) & set(test)
    whole = split_table("made 0", 0, 0.3, 300, None)
    assert sum(map(len, whole.split)) == 300
    for rows in (train, test):
        assert table.positive[rows].mean() == pytest.approx(whole.positive.mean(), abs=0.02)
    np.testing.assert_array_equal(split_table("made 0", 0, 0.3, 200, None).split[0], train)
    assert set(split_table("made 0", 1, 0.3, 200, None).split[0]) != set(train)


# ---- runs


def run(method, seed=0, regions=REGIONS):
    options = {"dataset": "made 0", "test_fraction": 0.3, "most_rows": 1000, "folder": None}
    return run_candidate(method=method, seed=seed, regions=regions, **options)


def test_logistic_regression_as_it_comes():
    table = split_table("made 0", 0, 0.3, 1000, None)
    train, test = table.split
    X, y = (table.X - table.X[train].mean(0)) / table.X[train].std(0), table.positive
    scores = LogisticRegression(max_iter=1000).fit(X[train], y[train]).decision_function(X[test])
    record = run("lr")
    assert record["test_rows"] == len(test) and record["test_positives"] == y[test].sum()
    for (low, high), entry in zip(REGIONS, record["results"], strict=True):
        assert entry["tpauc"] == pytest.approx(tpauc_score(y[test], scores, min_tpr=low, max_fpr=high), abs=1e-3)
        assert entry["auc"] == pytest.approx(roc_auc_score(y[test], scores), abs=1e-3)
        assert entry["distinct"] == len(test) and entry["setting"] == {}


def test_what_is_tuned_takes_the_best_setting_of_each_region_and_runs_are_repeatable():
    table = split_table("made 0", 3, 0.3, 1000, None)
    (train, _), y = table.split, table.positive
    rows, others = train_test_split(train, test_size=0.25, stratify=y[train], random_state=3)
    X = (table.X - table.X[rows].mean(0)) / table.X[rows].std(0)
    first, again = run("lr_tuned", seed=3), run("lr_tuned", seed=3)
    for (low, high), entry, other in zip(REGIONS, first["results"], again["results"], strict=True):
        found = []
        for setting in ENTRIES["lr_tuned"].settings:
            scores = LogisticRegression(max_iter=1000, **setting).fit(X[rows], y[rows]).decision_function(X[others])
            score = tpauc_score(y[others], scores, min_tpr=low, max_fpr=high)
            found.append((score, roc_auc_score(y[others], scores)))
        assert entry["setting"] == ENTRIES["lr_tuned"].settings[found.index(max(found))]
        assert entry.pop("seconds") > 0.0 and other.pop("seconds") > 0.0
    assert first == again


def test_runs_that_would_repeat_others_are_not_planned(tmp_path):
    keys = {task.key for task in STUDY.tasks(Setup(tmp_path))}
    assert {"NR-AR/lr/all/0", "NR-AR/forest/all/4", "Pima/lr/all/4", "HIV/sonx/0, 0.1/4"} <= keys
    assert "NR-AR/lr/all/1" not in keys and "NR-AR/sonx/all/0" not in keys
    assert len(set(STUDY.tables)) == len(STUDY.tables) == 33


def test_the_study_makes_a_page(tmp_path):
    study = replace(STUDY.smoke(), methods=("lr", "lr_tuned"))
    setup = Setup(tmp_path)
    run_missing(study, setup, study.tasks(setup))
    command_line.make_report(study, tmp_path, "a command")
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    records = [json.loads(line) for line in (tmp_path / RECORDS).read_text(encoding="utf-8").splitlines()]
    assert len(records) == 4 and len(report["cells"]) == 12 and report["left_out"] == []
    assert (tmp_path / "ranks.png").stat().st_size > 1000
    assert "made 1" in (tmp_path / "index.html").read_text(encoding="utf-8")


# ---- what is made of them


def record(dataset, method, seed, *scores, distinct=50):
    own = [{"region": r, "tpauc": s, "auc": s, "seconds": 2.0, "distinct": distinct} for r, s in zip(REGIONS, scores)]  # noqa: B905
    return {"dataset": dataset, "method": method, "seed": seed, "results": own}


def by_hand():
    """Two tables to choose by, three to confirm: one of fingerprints, one that SONX has no runs of."""
    records = [record("a", "lr", 0, 0.7, 0.7), record("b", "lr", 0, 0.7, 0.7)]
    for seed in range(3):
        records += [record("c", "sonx", seed, 0.80 + seed / 100, 0.5), record("c", "ce", seed, 0.70, 0.6)]
        records += [record("c", "lr", seed, 0.60, 0.5), record("NR-AR", "ce", seed, 0.1, 0.2)]
        records += [record("NR-AR", "sonx", seed, 0.2, 0.3 + seed / 10, distinct=3)]
        records += [record("d", "lr", seed, 0.5, 0.5)]
    records += [record("c", "sonx", 3, 0.0, 0.0), record("NR-AR", "lr", 0, 0.4, 0.1)]
    return summary(records, {"choose": ["a", "b"], "confirm": ["c", "NR-AR", "d"]}, REGIONS)


def test_the_summary_by_hand():
    found = by_hand()
    assert found["left_out"] == ["d"] and found["regions"] == ["0.5, 0.5", "0, 0.1"]
    cells = {(c["table"], c["region"], c["method"]): c for c in found["cells"]}
    cell = cells["c", "0.5, 0.5", "sonx"]  # its fourth seed has no partner
    assert cell["mean"] == pytest.approx(0.81) and cell["std"] == pytest.approx(0.01) and cell["rank"] == 1.0
    assert cells["c", "0, 0.1", "sonx"]["rank"] == 2.5 and cells["c", "0, 0.1", "ce"]["rank"] == 1.0
    assert cells["NR-AR", "0.5, 0.5", "lr"]["scores"] == [0.4] * 3  # the same for every seed
    rows = {(r["half"], r["region"], r["method"]): r for r in found["standings"]}
    row = rows["confirm", "0.5, 0.5", "sonx"]
    assert row["rank"] == 1.5 and row["mean"] == pytest.approx((0.81 + 0.2) / 2) and row["tables"] == 2
    assert row["not_below"] == 0.5 and row["collapsed"] == 3 and row["seconds"] == 2.0
    assert rows["confirm", "all", "sonx"]["not_below"] == 0.5  # of four cells
    assert rows["choose", "all", "lr"]["not_below"] == 1.0


def test_paired_tests_by_hand():
    found = by_hand()
    pairs = {(r["region"], r["other"]): r for r in found["against"] if r["method"] == "sonx"}
    pair = pairs["0.5, 0.5", "lr"]
    assert pair["difference"] == pytest.approx((0.21 - 0.2) / 2)
    assert (pair["won"], pair["lost"], pair["higher"], pair["lower"]) == (1, 1, 1, 1)
    pair = pairs["0, 0.1", "ce"]  # 0.5 against 0.6; 0.3, 0.4, 0.5 against 0.2
    assert (pair["won"], pair["lost"]) == (1, 1)
    assert pair["p"] == pytest.approx(wilcoxon([-0.1, 0.2]).pvalue)
    pair = pairs["all", "ce"]  # of table c 0.0, 0.005, 0.01; not beyond twice its error
    assert (pair["won"], pair["higher"], pair["tables"]) == (1, 2, 2)


def test_a_candidate_that_is_not_ranked_changes_no_ranks():
    records = [record(name, "lr", seed, 0.5, 0.5 + seed / 10) for name in "ab" for seed in range(3)]
    records += [record(name, "ce", 0, 0.6, 0.6) for name in "ab"]
    halves = {"choose": ["a"], "confirm": ["b"]}
    before = summary(records, halves, REGIONS, ["booster"])
    more = [*records, *(record("b", "booster", seed, 0.7, 0.7) for seed in range(2))]
    found = summary(more, halves, REGIONS, ["booster"])
    own = {"against": [], "standings_with": {}}
    assert {**found, **own} == {**before, **own} and before["left_out"] == []
    assert before["standings_with"] == {"booster": []}
    beside = {(r["half"], r["method"]): r["rank"] for r in found["standings_with"]["booster"] if r["region"] == "all"}
    assert beside == {("confirm", "booster"): 1.0, ("confirm", "ce"): 2.0, ("confirm", "lr"): 3.0}
    rows = {(r["half"], r["region"], r["other"]): r for r in found["against"] if r["method"] == "booster"}
    assert {half for half, _, _ in rows} == {"confirm"}
    assert rows["confirm", "0.5, 0.5", "lr"]["difference"] == pytest.approx(0.2)
    assert rows["confirm", "0, 0.1", "lr"]["difference"] == pytest.approx(0.15)  # over the two seeds that both have
    assert rows["confirm", "0, 0.1", "ce"]["difference"] == pytest.approx(0.1)


def test_the_tables_of_the_page():
    found = by_hand()
    columns, rows = standing_table(found, "confirm")
    assert columns[1] == "rank (0.5, 0.5)" and [row[0] for row in rows] == ["SONX", "CE", "LR"]
    assert rows[0][1:5] == ["1.50", "1.75", "0.505", "0.450"]
    columns, rows = against_table(found, "confirm", "sonx")
    assert rows[1][:2] == ["LR", "+0.005; 1 : 1; p 1.000"]


def test_the_table_of_the_top_by_hand():
    tops = {("a", "lr"): (0.4, 2.0), ("a", "ce"): (0.5, 2.0), ("b", "lr"): (0.6, 8.0), ("b", "ce"): (0.9, 4.0)}
    records = [record(name, method, 0, 0.5, 0.5) for name, method in tops]
    for entry, (bedroc, factor) in zip(records, tops.values(), strict=True):
        for result in entry["results"]:
            result |= {"bedroc": bedroc, "enrichment": {"1.0%": factor}}
    columns, rows = top_table(summary(records, {"assays": ["a", "b"]}, REGIONS), "assays", "0, 0.1")
    assert columns == ["method", "rank BEDROC", "rank EF 1.0%", "BEDROC", "EF 1.0%"]
    assert rows == [["CE", "1.00", "1.75", "0.700", "3.0"], ["LR", "2.00", "1.25", "0.500", "5.0"]]
