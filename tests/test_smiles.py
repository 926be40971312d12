"""SMILES: fingerprints against RDKit's own, what is refused, and the command line from a table to a ranked list."""

from __future__ import annotations

import base64
import json
import pickle
import re

import numpy as np
import pandas as pd
import pytest
from pandas.util import hash_array
from rdkit import Chem
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from experiments.data.smiles import example_smiles
from moreauc import TPAUCClassifier, TPAUCLinear
from moreauc.app import smiles as reading
from moreauc.app.cli.saved import load_model
from moreauc.app.molecules import SmilesFingerprints
from moreauc.app.report.molecules import atom_weights, expected_hits
from moreauc.app.tables.molecules import MoleculeTable, MoleculeTableTask
from moreauc.data.schema import Schema
from moreauc.estimators import linear_fit
from tests import oracles
from tests.cli_cases import call, done

SMILES = ["CCO", "c1ccccc1CCN", "CC(=O)Oc1ccccc1C(=O)O", "CN1C=NC2=C1C(=O)N(C)C(=O)N2C", "C[C@H](N)C(=O)O", "CCCCCCCC"]
SALT = "[Na+].[Cl-]"


def dense(smiles, kind, radius, size):
    """Fingerprints as RDKit gives them, one molecule at a time."""
    generator = GetMorganGenerator(radius=radius, fpSize=size)
    made = [Chem.MolFromSmiles(text) for text in smiles]
    method = generator.GetFingerprintAsNumPy if kind == "bit" else generator.GetCountFingerprintAsNumPy
    return np.array([method(molecule) for molecule in made], dtype=float)


@pytest.mark.parametrize("kind", ["bit", "count"])
@pytest.mark.parametrize(("radius", "size"), [(0, 64), (3, 1000)])
def test_fingerprints_are_those_of_rdkit(kind, radius, size):
    smiles = [*SMILES, *example_smiles()[::97]]
    found = SmilesFingerprints(kind=kind, radius=radius, size=size).fit_transform(smiles)
    assert found.dtype == np.float32 and found.shape == (len(smiles), size) and found.has_canonical_format
    np.testing.assert_array_equal(found.toarray(), dense(smiles, kind, radius, size))


@pytest.mark.parametrize("kind", ["bit", "count"])
@pytest.mark.parametrize(
    ("salt", "parent"),
    [
        ("c1ccccc1CCN.Cl", "c1ccccc1CCN"),
        ("[Na+].CC(=O)Oc1ccccc1C(=O)[O-]", "CC(=O)Oc1ccccc1C(=O)[O-]"),
        ("O.O.CCN(CC)CC.C1CC1", "CCN(CC)CC"),
        ("[K+].[I-].CCO.[Br-]", "CCO"),
        ("C1.CC1", "CCC"),  # a bond across the dot: one fragment
        ("[O-]S(=O)(=O)[O-].C[N+](C)(C)C.[Na+]", "C[N+](C)(C)C"),
        ("C[C@H](N)C(=O)O.Cl", "C[C@H](N)C(=O)O"),
    ],
)
def test_salts_are_stripped_to_the_largest_organic_fragment(kind, salt, parent):
    both = SmilesFingerprints(kind=kind).transform([salt, parent]).toarray()
    np.testing.assert_array_equal(both[0], both[1])
    wanted = Chem.MolToSmiles(Chem.MolFromSmiles(parent))
    assert SmilesFingerprints().canonical([salt, parent]) == [wanted, wanted]
    whole = SmilesFingerprints(kind=kind, strip_salts=False).transform([salt]).toarray()
    np.testing.assert_array_equal(whole, dense([salt], kind, 2, 4096))


def test_canonical_smiles_and_scaffolds():
    found = SmilesFingerprints()
    assert found.canonical(["OCC", "C(C)O", "CCO", "C1CC"]) == ["CCO"] * 3 + [""]
    assert len(set(found.canonical(["CCO.CCN", "CCN.CCO", "OCC.NCC"]))) == 1  # fragments of one size
    assert found.scaffolds(["CCc1ccccc1", "c1ccccc1CCN.Cl", "CCO", ""]) == ["c1ccccc1", "c1ccccc1", "", ""]


WRONG = ["CCO", "C1CC", "", SALT, None, float("nan"), "xyz", "CC", 7, "O"]
REASONS = {
    1: "is not valid SMILES",
    2: "is empty",
    3: "has no organic fragment",
    4: "is empty",
    5: "is empty",
    6: "is not valid SMILES",
    8: "is not valid SMILES",
    9: "has no organic fragment",
}


@pytest.mark.parametrize("row", REASONS)
def test_an_invalid_row_is_named(row):
    with pytest.raises(ValueError, match=r"X must hold SMILES .* row 2 \(from 1\)") as caught:
        SmilesFingerprints().transform(["CC", WRONG[row]])
    assert REASONS[row] in str(caught.value) and "\n" not in str(caught.value)


def test_invalid_rows_are_found_and_zeroed():
    found = SmilesFingerprints().find_invalid(WRONG)
    assert {wrong.row: wrong.reason.split(",")[0] for wrong in found} == REASONS
    assert [wrong.value for wrong in found][:2] == ["C1CC", ""]
    rows = SmilesFingerprints(invalid="zero").transform(WRONG)
    assert np.flatnonzero(rows.sum(1) == 0).tolist() == list(REASONS)


def test_rows_are_counted_across_chunks(monkeypatch):
    monkeypatch.setattr(reading, "CHUNK", 4)
    smiles = [*SMILES, "C1CC", *SMILES]
    with pytest.raises(ValueError, match=r"row 7 \(from 1\): 'C1CC'"):
        SmilesFingerprints().transform(smiles)
    assert [wrong.row for wrong in SmilesFingerprints().find_invalid(smiles)] == [6]
    found = SmilesFingerprints(invalid="zero").transform(smiles).toarray()
    np.testing.assert_array_equal(np.delete(found, 6, axis=0), dense(SMILES * 2, "bit", 2, 4096))
    assert SmilesFingerprints().canonical(smiles)[6:8] == ["", "CCO"]


def test_processes_give_the_same(monkeypatch, capsys):
    monkeypatch.setattr(reading, "CHUNK", 40)
    smiles = list(example_smiles()[:200])
    one, two = (SmilesFingerprints(n_jobs=jobs, verbose=jobs - 1).transform(smiles) for jobs in (1, 2))
    np.testing.assert_array_equal(one.toarray(), two.toarray())
    assert "molecules" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"row 201 \(from 1\)"):
        SmilesFingerprints(n_jobs=2).transform([*smiles, ""])


@pytest.mark.parametrize(
    "kind", [list, np.array, pd.Series, lambda x: pd.DataFrame({"a": x}), lambda x: np.array(x)[:, None]]
)
def test_kinds_of_input(kind):
    found = SmilesFingerprints().fit_transform(kind(SMILES))
    np.testing.assert_array_equal(found.toarray(), dense(SMILES, "bit", 2, 4096))
    assert SmilesFingerprints(size=16).transform([]).shape == (0, 16)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"kind": "counts"}, "kind .* got 'counts'"),
        ({"invalid": "skip"}, "invalid .* got 'skip'"),
        ({"radius": -1}, "radius .* got -1"),
        ({"size": 0}, "size .* got 0"),
        ({"strip_salts": "no"}, "strip_salts .* got 'no'"),
        ({"n_jobs": 0}, "n_jobs must not be 0"),
        ({"n_jobs": 1.5}, "n_jobs .* got 1.5"),
    ],
)
def test_wrong_arguments(options, match):
    with pytest.raises(ValueError, match=match):
        SmilesFingerprints(**options).fit(SMILES)


def test_wrong_shapes():
    for values, match in (("CCO", "got one text, 'CCO'"), (np.array(SMILES).reshape(2, 3), r"got \(2, 3\)")):
        with pytest.raises(ValueError, match=match):
            SmilesFingerprints().transform(values)


def test_a_missing_rdkit_names_the_extra(monkeypatch):
    reading._tools.cache_clear()

    def gone(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name="rdkit")

    monkeypatch.setattr("moreauc._system.import_module", gone)
    with pytest.raises(ModuleNotFoundError, match=r"needs rdkit, .* pip install 'moreauc\[molecules\]'"):
        SmilesFingerprints().transform(SMILES)
    reading._tools.cache_clear()


def test_in_a_pipeline_and_in_a_column_transformer():
    smiles = np.array(example_smiles()[:300])
    labels = np.array(["N" in text for text in smiles]).astype(int)
    model = make_pipeline(SmilesFingerprints(size=256), TPAUCLinear(min_tpr=0.0, max_fpr=0.3, random_state=0))
    assert clone(model).fit(smiles, labels).score(smiles, labels) > 0.95
    again = pickle.loads(pickle.dumps(model.fit(smiles, labels)))
    np.testing.assert_array_equal(again.decision_function(smiles[:9]), model.decision_function(smiles[:9]))
    table = pd.DataFrame({"smiles": smiles, "weight": np.arange(300.0)})
    joined = make_column_transformer((SmilesFingerprints(size=256), "smiles"), ("passthrough", ["weight"]))
    found = make_pipeline(joined, LogisticRegression(max_iter=9000)).fit(table, labels)
    assert joined.fit_transform(table).shape == (300, 257) and found.score(table, labels) > 0.9
    assert SmilesFingerprints(size=3).get_feature_names_out().tolist() == ["morgan0", "morgan1", "morgan2"]


# Groups of the estimators: the scaffolds here


def grouped_rows(number=400, groups=40):
    random = np.random.default_rng(3)
    group = random.integers(groups, size=number)
    X = random.normal(size=(number, 5))
    return X, (X[:, 0] + random.normal(size=number) > 0.8).astype(int), np.array([f"g{place}" for place in group])


def test_groups_stay_in_one_fold_of_a_linear_model(monkeypatch):
    X, y, groups = grouped_rows()
    seen = []
    real = linear_fit._split

    def split(rows, folds):
        seen.append((rows.group, folds))
        return real(rows, folds)

    monkeypatch.setattr(linear_fit, "_split", split)
    TPAUCLinear(random_state=0).fit(X, y, groups=groups)
    for group, folds in seen:
        assert all(len(set(folds[group == one])) == 1 for one in np.unique(group))
        assert len(set(folds)) == 5 and len(np.unique(group)) == 40
    order = np.random.default_rng(0).permutation(len(y))
    first, second = (
        TPAUCLinear(random_state=0).fit(X[rows], y[rows], groups=groups[rows]) for rows in (np.arange(len(y)), order)
    )
    np.testing.assert_allclose(first.coef_, second.coef_, atol=1e-9)


def test_groups_are_held_out_whole_by_a_network():
    X, y, groups = grouped_rows()
    weight = np.ones(len(y))
    weight[::7] = 0.0
    model = TPAUCClassifier(epochs=1, ensemble=1, random_state=0).fit(X, y, weight, groups=groups)
    held, rest = set(groups[model.held_out_]), set(groups[np.setdiff1d(np.flatnonzero(weight), model.held_out_)])
    assert held and rest and not held & rest
    for kind in (TPAUCLinear, TPAUCClassifier):
        with pytest.raises(ValueError, match="groups must have no missing values, got 1"):
            kind().fit(X, y, groups=[None, *groups[1:]])
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            kind().fit(X, y, groups=groups[1:])


# The command line


@pytest.fixture(scope="module")
def assay(tmp_path_factory):
    """Molecules of two classes: those with a nitrogen in a ring tend to be active."""
    random = np.random.default_rng(0)
    smiles = random.permutation(example_smiles())[:600]
    active = np.array(["n" in text or "N(" in text for text in smiles]) & (random.random(600) < 0.6)
    frame = pd.DataFrame({"name": [f"m{row}" for row in range(600)], "smiles": smiles, "active": active.astype(int)})
    frame["weight"] = random.normal(size=600)
    frame.loc[1, "smiles"] += ".Cl"
    folder = tmp_path_factory.mktemp("assay")
    frame.to_csv(folder / "assay.csv", index=False)
    return folder, frame


@pytest.fixture(scope="module")
def run(assay):
    folder, _ = assay
    options = ("--smiles", "smiles", "--target", "active", "--id", "name", "--max-fpr", "0.3")
    return folder / "run", done("fit", folder / "assay.csv", *options, "--out", folder / "run").stdout


def test_fit_trains_a_linear_model_and_says_what_it_uses(assay, run):
    folder, output = run
    assert "Learnt from: the molecules of column 'smiles'; not used: 'weight'" in output
    assert "Top of the list" in output and "BEDROC" in output
    saved = load_model(folder)
    assert isinstance(saved.model, TPAUCLinear) and saved.task.morgan == reading.Morgan("bit", 2, 4096, True)
    report = json.loads((folder / "report.json").read_text())
    assert report["data"]["smiles"] == "smiles" and report["data"]["fingerprint"]["size"] == 4096
    counts = report["data"]["training"]["molecules"], report["data"]["test"]["molecules"]
    assert sum(counts) == 600 and 100 < counts[1] < 200
    assert set(report["test"][0]["screening"]) == {"ef_0.1", "ef_1", "ef_5", "bedroc"}


def test_scaffolds_are_on_one_side_of_the_split(assay, run):
    _, frame = assay
    saved = load_model(run[0])
    canonical = np.array(SmilesFingerprints().canonical(frame["smiles"]), dtype=object)
    trained = np.isin(hash_array(canonical), saved.trained_on)
    scaffolds = np.array(SmilesFingerprints().scaffolds(frame["smiles"]))
    assert 400 < trained.sum() < 500 and not set(scaffolds[trained]) & set(scaffolds[~trained])


def test_the_page_has_curves_and_drawn_molecules(run):
    page = (run[0] / "report.html").read_text()
    for heading in ("Screening", "Molecules at the top", "Missed"):
        assert f"<h2>{heading}</h2>" in page
    pictures = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", page)
    assert len(pictures) == 24 and "http" not in re.sub(r"base64,[^\"]+", "", page)
    assert all(b"<svg" in base64.b64decode(picture) for picture in pictures)
    assert "Hits against cost" in page and "What the scores go by" not in page


def test_predict_ranks_a_library_as_a_stream(assay, run, tmp_path, monkeypatch):
    folder, frame = assay
    monkeypatch.setattr("moreauc.app.cli.screen.CHUNK", 70)
    words, every, best = ["predict", run[0], folder / "assay.csv"], tmp_path / "all.csv", tmp_path / "best.csv"
    assert "of 600 molecules are called active = 1" in done(*words, "--out", every).stdout
    done(*words, "--top", 9, "--out", best)
    whole, top = pd.read_csv(every), pd.read_csv(best)
    assert list(whole) == ["row", "name", "smiles", "score", "probability", "decision"]
    scores = load_model(run[0]).model.decision_function(SmilesFingerprints().transform(frame["smiles"]))
    np.testing.assert_allclose(whole["score"], scores)
    wanted = whole.sort_values("score", ascending=False, kind="stable")[:9].reset_index(drop=True)
    wanted.insert(0, "rank", range(1, 10))
    pd.testing.assert_frame_equal(top, wanted)
    assert done(*words, "--top", 9, "--jobs", 1).stdout == best.read_text()


def test_invalid_rows_of_a_library_are_skipped_on_request(assay, run, tmp_path, monkeypatch):
    monkeypatch.setattr("moreauc.app.cli.screen.CHUNK", 50)
    library = assay[1][["smiles"]][:120].rename(columns={"smiles": "molecule"})
    library.loc[[60, 61, 119], "molecule"] = ["C1CC", None, SALT]
    library.to_csv(tmp_path / "library.csv", index=False, na_rep="NA")
    words = "predict", run[0], tmp_path / "library.csv", "--smiles", "molecule"
    refused = call(*words)
    assert refused.exit_code == 2 and "--invalid skip" in refused.stderr
    assert "column 'molecule', row 61: 'C1CC' is not valid SMILES (2 such rows)" in refused.stderr
    result = done(*words, "--invalid", "skip", "--out", tmp_path / "out.csv")
    assert "3 of 120 rows are left out" in result.stderr and "the first is row 61: 'C1CC'" in result.stderr
    assert pd.read_csv(tmp_path / "out.csv")["row"].tolist() == [*range(1, 61), *range(63, 120)]


def test_evaluate_knows_trained_molecules_however_they_are_written(assay, run, tmp_path):
    _, frame = assay
    other = frame[:300].copy()
    molecules = [Chem.MolFromSmiles(text) for text in other["smiles"]]
    other["smiles"] = [Chem.MolToRandomSmilesVect(one, 1, randomSeed=1)[0] for one in molecules]
    assert (other["smiles"] != frame["smiles"][:300]).mean() > 0.9
    other.to_csv(tmp_path / "other.csv", index=False)
    result = done("evaluate", run[0], tmp_path / "other.csv", "--out", tmp_path / "report")
    assert "equal molecules that are trained on" in result.stderr and "Top of the list" in result.stdout
    assert "Molecules at the top" in (tmp_path / "report" / "report.html").read_text()


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({5: "", 8: ""}, (), "column 'smiles', row 6: '' is empty (2 such rows)"),
        ({7: SALT}, (), "row 8: '[Na+].[Cl-]' has no organic fragment"),
        (dict.fromkeys(range(600), ""), (), "SMILES column 'smiles' is empty"),
        (dict.fromkeys(range(600), "C1CC"), ("--invalid", "skip"), "there are no molecules in column 'smiles'"),
        ({}, ("--smiles", "smile"), "no SMILES column 'smile'; did you mean 'smiles'?"),
        ({}, ("--invalid", "drop"), "--invalid must be one of error, skip, got 'drop'"),
        ({}, ("--drop", "weight"), "--drop does not go with --smiles"),
        ({}, ("--bags", "name"), "--smiles does not go with --bags"),
        ({}, ("--epochs", "3"), "--epochs does not go with --model linear"),
        ({}, ("--split", "random"), "--split needs --smiles, got 'random'"),
    ],
)
def test_what_fit_refuses_in_one_line(assay, tmp_path, change, options, message):
    frame = assay[1].copy()
    for row, text in change.items():
        frame.loc[row, "smiles"] = text
    frame.to_csv(tmp_path / "bad.csv", index=False)
    if "--split" not in options:  # without molecules here
        options = ("--smiles", "smiles", *options)
    result = call("fit", tmp_path / "bad.csv", "--target", "active", "--id", "name", *options)
    lines = [line for line in result.stderr.splitlines() if "Reading molecules" not in line]
    assert result.exit_code == 2 and len(lines) == 1 and message in lines[0], result.stderr


def test_a_network_of_molecules_with_a_random_split(assay, tmp_path):
    data, run = assay[0] / "assay.csv", tmp_path / "run"
    words = ("--smiles", "smiles", "--target", "active", "--id", "name", "--model", "mlp", "--epochs", "2")
    output = done("fit", data, *words, "--split", "random", "--baselines", "none", "--out", run).stdout
    assert "SONX" in output and "none of which is among" not in output
    page = (run / "report.html").read_text()
    assert "blue atoms raise" not in page and page.count("svg+xml") == 24
    assert len(done("predict", run, data, "--top", 3).stdout.splitlines()) == 4


def test_common_scaffolds_are_trained_on(assay):
    """Of 300 molecules 120 have one scaffold and 180 another each."""
    scaffolds = np.array(["benzene"] * 120 + [f"s{row}" for row in range(180)], dtype=object)
    task = MoleculeTableTask(Schema(), None, 0.0, 0.3)
    table = MoleculeTable(
        features=pd.DataFrame(index=range(300)),
        targets=np.arange(300) % 3 == 0,
        smiles=scaffolds,
        fingerprints=csr_array((300, 4)),
        canonical=scaffolds,
        scaffolds=scaffolds,
    )
    held = task.draw_test(table, 0.25, 0, table.hashes())
    assert held.min() >= 120 and 65 <= len(held) <= 85
    few = table.part(np.arange(130))  # there are too few others
    assert set(few.scaffolds[task.draw_test(few, 0.25, 0, few.hashes())]) - {"benzene"}


# Atoms and curves of the page


@pytest.mark.parametrize("kind", ["bit", "count"])
@pytest.mark.parametrize("smiles", SMILES)
def test_atom_weights_add_up_to_the_score(kind, smiles):
    settings = reading.Morgan(kind, 2, 512, True)
    weights = np.random.default_rng(0).normal(size=512)
    molecule = Chem.MolFromSmiles(smiles)
    shares = atom_weights(molecule, weights, settings)
    score = SmilesFingerprints(kind=kind, size=512).transform([smiles]) @ weights
    assert len(shares) == molecule.GetNumAtoms() and shares.sum() == pytest.approx(score[0], abs=1e-12)


def test_an_atom_gets_the_pieces_it_is_part_of():
    """Chloromethane with radius 0 and one weight: only the atom of that weight has a share."""
    settings = reading.Morgan("bit", 0, 2048, True)
    column = SmilesFingerprints(radius=0, size=2048).transform(["[Cl-].CCl", "C"])  # carbon with three bonds differs
    own = np.flatnonzero(column.toarray()[0])
    found = [atom_weights(Chem.MolFromSmiles("CCl"), np.eye(2048)[place], settings).tolist() for place in own]
    assert sorted(found) == [[0.0, 1.0], [1.0, 0.0]]


def test_hits_are_the_mean_over_orders_of_ties():
    random = np.random.default_rng(1)
    labels, scores = random.integers(2, size=6), random.integers(3, size=6).astype(float)
    labels[0] = 1
    orders = oracles.orders_of_ties(labels.tolist(), scores.tolist())
    np.testing.assert_allclose(expected_hits(labels, scores), np.mean([np.cumsum(one) for one in orders], axis=0))
