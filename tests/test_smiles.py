"""SMILES: fingerprints against RDKit's own, what is refused, and the command line from a table to a ranked list."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from experiments.data.smiles import example_smiles
from moreauc import TPAUCClassifier, TPAUCLinear
from moreauc import smiles as reading
from moreauc.estimators import linear_fit
from moreauc.molecules import SmilesFingerprints

SMILES = ["CCO", "c1ccccc1CCN", "CC(=O)Oc1ccccc1C(=O)O", "CN1C=NC2=C1C(=O)N(C)C(=O)N2C", "C[C@H](N)C(=O)O", "CCCCCCCC"]
SALT = "[Na+].[Cl-]"


def dense(smiles, kind, radius, size):
    """Fingerprints as RDKit gives them, one molecule at a time."""
    generator = GetMorganGenerator(radius=radius, fpSize=size)
    made = [Chem.MolFromSmiles(text) for text in smiles]
    method = generator.GetFingerprintAsNumPy if kind == "bit" else generator.GetCountFingerprintAsNumPy
    return np.array([method(molecule) for molecule in made], dtype=float)


@pytest.mark.parametrize("kind", ["bit", "count"])
@pytest.mark.parametrize(("radius", "size"), [(0, 64), (2, 2048), (3, 1000)])
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
    np.testing.assert_array_equal(whole, dense([salt], kind, 2, 2048))


def test_equal_fragments_give_the_same_molecule_in_any_order():
    names = SmilesFingerprints().canonical(["CCO.CCN", "CCN.CCO", "OCC.NCC"])
    assert names[0] == names[1] == names[2]


def test_canonical_smiles_and_scaffolds():
    found = SmilesFingerprints()
    assert found.canonical(["OCC", "C(C)O", "CCO", "C1CC"]) == ["CCO"] * 3 + [""]
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
    rows = ["CC", WRONG[row]]
    with pytest.raises(ValueError, match=r"SmilesFingerprints: X must hold SMILES .* row 2 \(from 1\)") as caught:
        SmilesFingerprints().transform(rows)
    assert f"{REASONS[row]}" in str(caught.value) and "\n" not in str(caught.value)


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
    np.testing.assert_array_equal(np.delete(found, 6, axis=0), dense(SMILES * 2, "count", 2, 2048))
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
    np.testing.assert_array_equal(found.toarray(), dense(SMILES, "count", 2, 2048))


def test_no_rows():
    assert SmilesFingerprints(size=16).transform([]).shape == (0, 16)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"kind": "counts"}, r"kind must be one of \['count', 'bit'\], got 'counts'"),
        ({"invalid": "skip"}, r"invalid must be one of \['error', 'zero'\], got 'skip'"),
        ({"radius": -1}, "radius must be an integer of at least 0, got -1"),
        ({"size": 0}, "size must be an integer of at least 1, got 0"),
        ({"strip_salts": "no"}, "strip_salts must be True or False, got 'no'"),
        ({"n_jobs": 0}, "n_jobs must not be 0"),
        ({"n_jobs": 1.5}, "n_jobs must be an integer or None, got 1.5"),
    ],
)
def test_wrong_arguments(options, match):
    with pytest.raises(ValueError, match=match):
        SmilesFingerprints(**options).fit(SMILES)


def test_wrong_shapes():
    with pytest.raises(ValueError, match="got one text, 'CCO'"):
        SmilesFingerprints().transform("CCO")
    with pytest.raises(ValueError, match=r"one SMILES for each row, got \(2, 3\)"):
        SmilesFingerprints().transform(np.array(SMILES).reshape(2, 3))


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


@pytest.mark.parametrize("kind", [TPAUCLinear, TPAUCClassifier])
def test_wrong_groups(kind):
    X, y, groups = grouped_rows(50, 5)
    with pytest.raises(ValueError, match="groups must have no missing values, got 1"):
        kind().fit(X, y, groups=[None, *groups[1:]])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        kind().fit(X, y, groups=groups[1:])
