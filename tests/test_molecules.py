"""Molecules: features against RDKit's own words, scaffolds and splits, tables, the cache, and stored split files."""

from __future__ import annotations

import gzip
import io
import itertools
import logging
import os
import shutil
import sys
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import pytest
import torch
from rdkit import Chem, rdBase
from rdkit.Chem.Scaffolds import MurckoScaffold

from experiments.data import molecules as module
from experiments.data.graphs import GraphBatches
from experiments.data.molecules import (
    MOLECULE_SETS,
    Molecules,
    MoleculeSet,
    example_molecules,
    load_molecules,
    make_molecules,
)
from experiments.data.smiles import MoleculeReader, read_smiles_table, split_by_group
from experiments.models.gin import GIN
from moreauc import TPAUCLoss
from moreauc.samplers import PosNegSampler
from moreauc.train import fit

PARTS = ("train", "validation", "test")

# common molecules: drugs, solvents, salts, radicals, cis and trans, left and right
COMMON = r"""
    C [Na+].[Cl-] CCO CC(=O)O c1ccccc1 c1ccncc1 CC(=O)Oc1ccccc1C(=O)O C#N O=C=O [H][H] CC(=O)Nc1ccc(O)cc1
    CN1C=NC2=C1C(=O)N(C)C(=O)N2C CC(C)Cc1ccc(cc1)C(C)C(=O)O C[C@H](N)C(=O)O C[C@@H](N)C(=O)O F/C=C/F F/C=C\F
    OC[C@H]1OC(O)[C@H](O)[C@@H](O)[C@@H]1O [CH3] O=[N+]([O-])c1ccccc1 FS(F)(F)(F)(F)F O=P(O)(O)O c1ccc2[nH]ccc2c1
    CN(C)C=O CS(C)=O [NH4+] [O-]S(=O)(=O)[O-] B(O)(O)O C1CC1 N#[N+]C1=CC=CC=C1 [Fe+2] C[Si](C)(C)C ClC(Cl)(Cl)Cl
    c1ccsc1 c1ccoc1 [U] [Cu] *C
""".split()  # noqa: SIM905

ATOM_NAMES = {
    1: ["CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER", None],
    6: ["SP", "SP2", "SP3", "SP3D", "SP3D2", None],
}
BOND_NAMES = {
    0: ["SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", None],
    1: ["STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY"],
}


def place(names, name):
    return names.index(name) if name in names else len(names) - 1


def slow_graph(molecule):
    """Features one by one, from lists of what is allowed; the last entry is for the rest."""
    atoms, edges, bonds = [], [], []
    for atom in molecule.GetAtoms():
        atoms.append(
            [
                place([*range(1, 119), None], atom.GetAtomicNum()),
                place(ATOM_NAMES[1], str(atom.GetChiralTag())),
                place([*range(11), None], atom.GetTotalDegree()),
                place([*range(-5, 6), None], atom.GetFormalCharge()),
                place([*range(9), None], atom.GetTotalNumHs()),
                place([*range(5), None], atom.GetNumRadicalElectrons()),
                place(ATOM_NAMES[6], str(atom.GetHybridization())),
                [False, True].index(atom.GetIsAromatic()),
                [False, True].index(atom.IsInRing()),
            ]
        )
    for bond in molecule.GetBonds():
        kind = place(BOND_NAMES[0], str(bond.GetBondType()))
        stereo = BOND_NAMES[1].index(str(bond.GetStereo()))
        ends = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        edges += [ends, ends[::-1]]
        bonds += [[kind, stereo, [False, True].index(bond.GetIsConjugated())]] * 2
    return atoms, [list(row) for row in zip(*edges, strict=True)] or [[], []], bonds


@pytest.mark.parametrize("smiles", COMMON)
def test_features_and_scaffolds_of_common_molecules(smiles):
    reader = MoleculeReader()
    molecule, relaxed = reader.molecule(smiles)
    graph = reader.graph(molecule)
    own = Chem.MolFromSmiles(smiles)
    assert not relaxed
    assert (graph.atoms.tolist(), graph.edges.tolist(), graph.bonds.tolist()) == slow_graph(own)
    assert graph.atoms.dtype == graph.bonds.dtype == np.uint8 and graph.edges.shape == (2, len(graph.bonds))
    if smiles != "*C":
        assert reader.scaffold(own) == MurckoScaffold.MurckoScaffoldSmiles(mol=own, includeChirality=True)


def test_features_by_hand():
    reader = MoleculeReader()

    def graph(text):
        return reader.graph(reader.molecule(text)[0])

    ethanol, benzene, charged = graph("CCO"), graph("c1ccccc1"), graph("[Fe+6]")
    # carbon is number 6, oxygen 8; four neighbours each, two for oxygen; charge 0 is the sixth; sp3
    assert ethanol.atoms.tolist() == [
        [5, 0, 4, 5, 3, 0, 2, 0, 0],
        [5, 0, 4, 5, 2, 0, 2, 0, 0],
        [7, 0, 2, 5, 1, 0, 2, 0, 0],
    ]
    assert ethanol.edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]] and ethanol.bonds.tolist() == [[0, 0, 0]] * 4
    assert benzene.atoms.tolist() == [[5, 0, 3, 5, 1, 0, 1, 1, 1]] * 6 and benzene.bonds.tolist() == [[3, 0, 1]] * 12
    assert {int(graph(text).atoms[1, 1]) for text in ("C[C@H](N)O", "C[C@@H](N)O")} == {1, 2}
    assert [int(graph(text).bonds[2, 1]) for text in ("F/C=C/F", "F/C=C\\F")] == [2, 1]
    assert graph("*C").atoms[0, 0] == 118 and graph("N->[Cu]").bonds.tolist() == [[4, 0, 0]] * 2
    assert charged.atoms[0, 3] == 11 and charged.edges.shape == (2, 0) and charged.bonds.shape == (0, 3)


@pytest.mark.parametrize(
    ("written", "plain", "atoms"),
    [
        ("[H]N(C)(C)(C)(C)C", "N(C)(C)(C)(C)C", 6),
        ("[H][Al](C)(C)(C)(C)(C)C", "[AlH](C)(C)(C)(C)(C)C", 7),
        ("[H]c1c([H])c([H])c([H])c([H])c1N(C)(C)(C)C", "c1ccccc1N(C)(C)(C)C", 11),
        ("[2H]N(C)(C)(C)(C)C", "[2H]N(C)(C)(C)(C)C", 7),  # a marked hydrogen, which RDKit keeps, is kept
    ],
)
def test_too_many_bonds_are_let_pass_and_hydrogens_are_no_atoms_there_either(written, plain, atoms):
    reader = MoleculeReader()
    with rdBase.BlockLogs():
        assert Chem.MolFromSmiles(written) is None
        (first, relaxed), (second, also) = reader.molecule(written), reader.molecule(plain)
        assert relaxed and also and reader.scaffold(first) == reader.scaffold(second)
    assert first.GetNumAtoms() == len(reader.graph(first).atoms) == atoms
    assert all(np.array_equal(a, b) for a, b in zip(reader.graph(first), reader.graph(second), strict=True))


@pytest.mark.parametrize("smiles", ["", "C1CC", "c1cccc1", "hello", "C(C"])
def test_what_is_no_molecule(smiles):
    with rdBase.BlockLogs():
        assert MoleculeReader().molecule(smiles) == (None, False)


def test_scaffolds_keep_left_and_right_apart():
    reader = MoleculeReader()
    texts = ("OC[C@H]1CC[C@@H](C1)c1ccccc1", "OC[C@H]1CC[C@H](C1)c1ccccc1")
    frames = [reader.scaffold(reader.molecule(f"{text}")[0]) for text in (*texts, "C[C@H](c1ccccc1)c1ccncc1")]
    assert frames[0] == frames[1] == "c1ccc(C2CCCC2)cc1" and frames[2] == "c1ccc(Cc2ccncc2)cc1"
    left, right = (reader.scaffold(reader.molecule(t)[0]) for t in ("O1C[C@H]1c1ccccc1", "O1C[C@@H]1c1ccccc1"))
    assert left != right


def scaffold_split(smiles):
    return split_by_group(MoleculeReader().read(smiles, [False] * len(smiles)).scaffolds)


def test_what_rdkit_cannot_read_is_a_scaffold_of_its_own_and_is_not_logged():
    smiles = ["c1ccccc1O", "CCO", "nonsense", "C1CCCCC1", "c1ccccc1N", "CC", "C", "N", "O", "S"]
    with redirect_stderr(io.StringIO()) as noise:
        train, validation, test = scaffold_split(smiles)
    # no ring (6 of 10), benzene (2), then alone: cyclohexane and what is no molecule, the later row first
    assert train.tolist() == [1, 5, 6, 7, 8, 9, 0, 4] and validation.tolist() == [3] and test.tolist() == [2]
    assert noise.getvalue() == ""


def slow_split(groups):
    """The recipe in floating point, with cuts as published."""
    sets = {}
    for row, group in enumerate(groups):
        sets.setdefault(group, []).append(row)
    train, valid, test = [], [], []
    for _, rows in sorted(sets.items(), key=lambda item: (len(item[1]), item[1][0]), reverse=True):
        if len(train) + len(rows) > 0.8 * len(groups):
            if len(train) + len(valid) + len(rows) > 0.9 * len(groups):
                test += rows
            else:
                valid += rows
        else:
            train += rows
    return train, valid, test


def test_a_split_by_the_recipe():
    for seed in range(8):
        random = np.random.default_rng(seed)
        groups = random.geometric(0.05 + 0.05 * seed, size=20 + 37 * seed).tolist()
        found = split_by_group(groups)
        assert [part.tolist() for part in found] == list(slow_split(groups))
        sides = [{groups[row] for row in part} for part in found]
        assert not sides[0] & sides[1] and not sides[0] & sides[2] and not sides[1] & sides[2]


def test_a_split_that_fits_exactly():
    """4 of 5 rows are not more than 80 %, whatever 5 * 0.8 is in floating point."""
    assert [part.tolist() for part in split_by_group("aaaab")] == [[0, 1, 2, 3], [], [4]]
    assert [len(part) for part in split_by_group("a" * 80 + "b" * 10 + "c" * 10)] == [80, 10, 10]


TABLE = (
    *(("CCO", "0"), ("CN(C)(C)(C)C", "1"), ("c1ccccc1O", "1.0"), ("broken(", "0"), ("CCN", ""), ("C", "0.0")),
    *(("c1ccncc1C", "1"), ("C1CCCCC1", "0"), ("alsobroken", ""), ("c1ccccc1N", "0"), ("N", "1"), ("O", "0")),
)


def write_table(folder: Path, rows=TABLE, name="tox21.csv", header="NR-AR,mol_id,smiles") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [header, *(f'{label},T{row},"{smiles}"' for row, (smiles, label) in enumerate(rows))]
    content = ("\n".join(lines) + "\n").encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)


@pytest.fixture
def small(monkeypatch, tmp_path):
    # no ring: rows 0 1 4 5 10 11; benzene: 2 9; alone, later first: 8 7 6 3
    known = MoleculeSet("tox21.csv", "NR-AR", (7, 1, 2), (3, 0, 1))
    monkeypatch.setitem(module.MOLECULE_SETS, "moltox21", known)
    monkeypatch.delenv("MOREAUC_DATA", raising=False)
    monkeypatch.setenv("MOREAUC_CACHE", str(tmp_path / "cache"))
    write_table(tmp_path / "data" / "molecules")
    return tmp_path


def equal(first: Molecules, second: Molecules) -> bool:
    tensors = all(torch.equal(getattr(first, name), getattr(second, name)) for name in ("rows", *PARTS))
    arrays = zip(first.graphs.arrays().values(), second.graphs.arrays().values(), strict=True)
    others = [(m.name, m.smiles, m.rejected, m.relaxed) for m in (first, second)]
    return tensors and others[0] == others[1] and all(np.array_equal(a, b) for a, b in arrays)


def test_a_table_as_graphs(small, caplog):
    molecules = load_molecules("moltox21", small / "data")
    assert molecules.rows.tolist() == [0, 1, 2, 5, 6, 7, 9, 10, 11] and molecules.rejected == (3,)
    assert molecules.relaxed == (1,) and molecules.graphs.labels.tolist() == [0, 1, 1, 0, 1, 0, 0, 1, 0]
    assert molecules.smiles == tuple(TABLE[row][0] for row in molecules.rows.tolist())
    rows = [molecules.rows[getattr(molecules, part)].tolist() for part in PARTS]
    # 12 rows: 9 in train at most, which row 8, without a label, is one of; row 3 would have been a test row
    assert rows == [[0, 1, 5, 10, 11, 2, 9], [7], [6]]
    assert molecules.part("validation").labels.tolist() == [0] and len(molecules.part("train")) == 7
    assert repr(molecules) == (
        "Molecules('moltox21': 9 molecules, 4 positive; 7 train, 1 validation, 1 test; 1 rejected, 1 relaxed)"
    )
    reader = MoleculeReader()
    for number, text in enumerate(molecules.smiles):
        wanted = reader.graph(reader.molecule(text)[0])
        batch = molecules.graphs.batch([number])
        assert batch["atoms"].tolist() == wanted.atoms.tolist() and batch["edges"].tolist() == wanted.edges.tolist()
        assert batch["bonds"].tolist() == wanted.bonds.tolist()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == [
        "load_molecules: moltox21: 1 molecules that RDKit rejects are left out: rows (3,)",
        "load_molecules: moltox21: 1 molecules that RDKit rejects are read without the valence check: rows (1,)",
    ]


def cached(small):
    return sorted((small / "cache" / "graphs").iterdir())


def test_the_cache(small, monkeypatch, caplog):
    first = load_molecules("moltox21", small / "data")
    (place,) = cached(small)
    assert place.name.startswith("moltox21-") and place.name.endswith(f"-rdkit{rdBase.rdkitVersion}-format1.npz")
    monkeypatch.setattr(MoleculeReader, "read", None)  # nothing is read a second time
    assert equal(first, load_molecules("moltox21", small / "data"))
    monkeypatch.undo()
    monkeypatch.setenv("MOREAUC_CACHE", str(small / "cache"))
    monkeypatch.setitem(module.MOLECULE_SETS, "moltox21", MoleculeSet("tox21.csv", "NR-AR", (7, 1, 2), (3, 0, 1)))
    place.write_bytes(place.read_bytes()[:-50])
    caplog.clear()
    assert equal(first, load_molecules("moltox21", small / "data"))
    assert any("is damaged and written again" in record.getMessage() for record in caplog.records)
    assert equal(first, Molecules.load(place))
    # the same content compressed is the same table, another version of RDKit is not the same reader
    write_table(small / "packed", name="tox21.csv.gz")
    load_molecules("moltox21", small / "packed")
    assert cached(small) == [place]
    monkeypatch.setattr(rdBase, "rdkitVersion", "1.2.3")
    load_molecules("moltox21", small / "packed")
    assert len(cached(small)) == 2


@pytest.mark.parametrize(("place", "given"), [("moltox21.npz", True), ("molecules/moltox21.npz", False)])
def test_graphs_made_elsewhere_come_first_and_need_no_rdkit(small, monkeypatch, caplog, place, given):
    wanted = load_molecules("moltox21", small / "data")
    write_table(small / "ready", rows=TABLE[:3])  # is not looked at
    (small / "ready" / place).parent.mkdir(parents=True, exist_ok=True)
    wanted.save(small / "ready" / place)
    if not given:
        monkeypatch.setenv("MOREAUC_DATA", str(small / "ready"))
    for name in ("rdkit", "rdkit.Chem", "rdkit.rdBase"):
        monkeypatch.setitem(sys.modules, name, None)
    folder = small / "ready" if given else None
    caplog.clear()
    assert equal(wanted, load_molecules("moltox21", folder))
    assert [record.getMessage().split(": ")[-1] for record in caplog.records] == ["rows (3,)", "rows (1,)"]


def changed(folder: Path, **changes):
    """The graphs of the small table, some of their arrays changed."""
    load_molecules("moltox21", folder / "data").save(folder / "made.npz")
    with np.load(folder / "made.npz") as file:
        arrays = {name: file[name] for name in file.files}
    (folder / "ready").mkdir(exist_ok=True)
    np.savez(folder / "ready" / "moltox21.npz", **{**arrays, **{name: f(arrays[name]) for name, f in changes.items()}})
    return folder / "ready"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": lambda _: np.frombuffer(b"molmuv", np.uint8)}, "'molmuv'"),
        ({"rejected": lambda _: np.array([3, 4])}, r"got \(7, 1, 1\) and .*, 2 rejected"),
        ({"labels": lambda labels: 1 - labels}, r"got \(7, 1, 1\) and \(4, 1, 0\), 1 rejected"),
        ({"train": lambda r: r[2:], "test": lambda r: np.append(r, [0, 1])}, r"got \(5, 1, 3\) and"),
        ({"train": lambda r: np.append(r, 5), "validation": lambda r: r[:0]}, r"got \(8, 0, 1\) and"),
    ],
)
def test_graphs_of_something_else_are_refused(small, changes, message):
    folder = changed(small, **changes)
    with pytest.raises(ValueError, match=rf"load_molecules: .*moltox21\.npz .*{message}"):
        load_molecules("moltox21", folder)


def test_graphs_of_a_set_whose_positives_are_not_known(small, monkeypatch):
    folder = changed(small, labels=lambda labels: 1 - labels)
    monkeypatch.setitem(module.MOLECULE_SETS, "moltox21", MoleculeSet("tox21.csv", "NR-AR", (7, 1, 2), None))
    assert len(load_molecules("moltox21", folder)) == 9


@pytest.mark.parametrize("kind", ["a file in the way", "cannot be read", "no platformdirs"])
def test_where_no_cache_can_be_written(small, monkeypatch, kind):
    wanted = load_molecules("moltox21", small / "data")
    if kind == "a file in the way":
        shutil.rmtree(small / "cache")
        (small / "cache").write_text("in the way")
    elif kind == "cannot be read":

        def refuse(self, *arguments, **options):
            raise PermissionError(13, "Permission denied", str(self))

        monkeypatch.setattr(Molecules, "load", refuse)
        monkeypatch.setattr(Molecules, "save", refuse)
    else:
        monkeypatch.delenv("MOREAUC_CACHE")
        monkeypatch.setitem(sys.modules, "platformdirs", None)
    with pytest.warns(UserWarning, match=r"load_molecules: graphs could not be cached \(.*set MOREAUC_CACHE") as caught:
        found = load_molecules("moltox21", small / "data")
    assert equal(found, wanted) and [Path(one.filename) for one in caught] == [Path(__file__)]


def test_the_checksum_of_the_table(small):
    load_molecules("moltox21", small / "data").save(small / "data" / "moltox21.npz")  # is not used then
    with pytest.raises(ValueError, match=r"load_molecules: .*tox21\.csv must have the sha256 7d7e7f\w+, got \w+"):
        load_molecules("moltox21", small / "data", verify=True)
    with pytest.raises(ValueError, match="verify must be False for molpcba, whose checksum is not known, got True"):
        load_molecules("molpcba", small / "data", verify=True)


def test_files_without_a_checksum_share_no_cache(small):
    """A plain file that is called packed can be read; what is made of it must not be taken for the next one's."""
    (small / "plain").mkdir()
    for rows in (TABLE, [*TABLE[:-1], ("OO", "0")]):
        write_table(small / "plain", rows)
        (small / "plain" / "tox21.csv").rename(small / "plain" / "tox21.csv.gz")
        assert load_molecules("moltox21", small / "plain").smiles[-1] == rows[-1][0]
    assert not (small / "cache").exists()


@pytest.mark.parametrize("name", ["smiles", "train", "rows"])
def test_files_that_do_not_add_up(small, name):
    place = changed(small, **{name: lambda values: values[:3]}) / "moltox21.npz"
    with pytest.raises(ValueError, match=r"Molecules\.load: path must have one row, SMILES and part"):
        Molecules.load(place)
    with np.load(place) as file:
        arrays = {key: file[key] for key in file.files if key != name}
    np.savez(place, **arrays)
    with pytest.raises(ValueError, match=r"Molecules\.load: path must be a file that save wrote"):
        Molecules.load(place)


def test_wrong_names_and_tables(small):
    for name, message in (("bace", "name must be one of moltox21, .*got 'bace'"), ("molpcba", r"molpcba\.csv")):
        with pytest.raises(ValueError, match=f"load_molecules: .*{message}"):
            load_molecules(name, small / "data")
    for rows in (TABLE[:-1], [*TABLE[:-1], ("O", "1")]):
        write_table(small / "counts", rows)
        with pytest.raises(ValueError, match=r"moltox21 must have \(7, 1, 2\) labelled molecules .* got \(\d"):
            load_molecules("moltox21", small / "counts")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "columns smiles and NR-AR, got "),
        (b"NR-AR,mol_id,text\n1,2,CC\n", "columns smiles and NR-AR, got NR-AR, mol_id, text"),
        (b"NR-AR,smiles\n1,C\n2,CC\n", r"NR-AR must be 0, 1 or empty, got '2' in row 1 \(line 3\)"),
        (b"NR-AR,smiles\n1,broken(\n0,alsobroken\n,CC\n", "labelled molecule that RDKit can read, got none"),
        (b"NR-AR,smiles\n,CC\n,CCC\n", "label in column NR-AR, got none in 2 rows"),
        (b"NR-AR,smiles\n1,CC\n\n1\n", r"2 columns in every row, got more or fewer in row 1 \(line 4\)"),
        (b"NR-AR,smiles\n1,CC,0\n", r"2 columns in every row, got more or fewer in row 0 \(line 2\)"),
        (b"smiles,NR-AR\nC,1\nC\xff,1\n", "UTF-8, got a byte that is not in line 3"),
        (b'smiles,NR-AR\n"C\nC",1\n', r"SMILES of one line, got 'C\\nC' in row 0 \(line 3\)"),
        (b"smiles,NR-AR\n" + b"C" * 200_000 + b",1\n", r"CSV file, got field larger than .* \(line 1\)"),
        (gzip.compress(b"smiles,NR-AR\nC,1\n", mtime=0)[:-10], "CSV file or one packed by gzip, got Compressed"),
        (b"\x1f\x8b nothing", "CSV file or one packed by gzip, got "),
    ],
)
def test_tables_that_are_none(small, content, message):
    (small / "data" / "molecules" / "tox21.csv").write_bytes(content)
    with pytest.raises(ValueError, match=rf"load_molecules: .*{message}"):
        load_molecules("moltox21", small / "data")


def test_a_table_of_a_spreadsheet(small):
    """A mark at the beginning, other ends of lines, blanks around."""
    wanted = load_molecules("moltox21", small / "data")
    lines = ["smiles,NR-AR", *(f" {smiles},{label} " for smiles, label in TABLE)]
    for end in ("\r\n", "\r"):
        (small / "data" / "molecules" / "tox21.csv").write_bytes(b"\xef\xbb\xbf" + end.join(lines).encode())
        assert equal(wanted, load_molecules("moltox21", small / "data"))


@pytest.mark.parametrize(("num", "seed"), [(200, 0), (30, 1)])
def test_examples(num, seed):
    molecules = example_molecules(num=num, seed=seed)
    assert len(molecules) == num == len(set(molecules.smiles)) and molecules.rejected == molecules.relaxed == ()
    for part in PARTS:
        labels = molecules.part(part).labels
        assert 0 < int(labels.sum()) < len(labels)
    for text, label in list(zip(molecules.smiles, molecules.graphs.labels.tolist(), strict=True))[:60]:
        atoms = Chem.MolFromSmiles(text).GetAtoms()
        assert label == any(atom.GetIsAromatic() and atom.GetSymbol() == "N" for atom in atoms)
    wanted = scaffold_split(molecules.smiles)
    assert all(getattr(molecules, part).tolist() == rows.tolist() for part, rows in zip(PARTS, wanted, strict=True))
    assert equal(molecules, example_molecules(num=num, seed=seed))
    assert molecules.smiles != example_molecules(num=num, seed=seed + 10).smiles


def test_a_network_learns_the_examples():
    molecules = example_molecules()
    train = molecules.part("train")
    model = GIN(layers=2, width=16, dropout=0.1)
    criterion = TPAUCLoss(train.labels, min_tpr=0.5, max_fpr=0.5)
    batches = GraphBatches(train, PosNegSampler(train.labels, num_positives=16, num_negatives=16))
    validation = GraphBatches(molecules.part("validation"))
    history = fit(model, criterion, batches, validation=validation, epochs=6, lr=0.05, warm_start_epochs=4, seed=0)
    assert history.best_score > 0.9


STORED = Path(os.environ.get("MOREAUC_DATA", "nowhere")) / "molecules"
needs_data = pytest.mark.skipif(not STORED.is_dir(), reason="needs the molecules in the folder of MOREAUC_DATA")


def stored_split(file):
    names = [STORED / f"{file}_scaffold_{part}.csv.gz" for part in ("train", "valid", "test")]
    return [[int(line) for line in gzip.open(name, "rt")] for name in names]


@needs_data
def test_a_public_table_and_its_split(tmp_path, monkeypatch):
    """The split of all rows, in order, and the labelled ones of each part."""
    monkeypatch.setenv("MOREAUC_CACHE", str(tmp_path))
    whole = []

    def remember(*arguments):
        molecules, split = make_molecules(*arguments)
        whole.append(split)
        return molecules, split

    monkeypatch.setattr(module, "make_molecules", remember)
    molecules = load_molecules("moltox21")
    wanted = stored_split("tox21")
    assert [part.tolist() for part in whole[0]] == wanted
    known = MOLECULE_SETS["moltox21"]
    assert molecules.rejected == () and len(molecules) == sum(known.counts)
    labelled = set(molecules.rows.tolist())
    for part, rows, positives in zip(PARTS, wanted, known.positives, strict=True):
        found = molecules.rows[getattr(molecules, part)].tolist()
        assert found == [row for row in rows if row in labelled], part
        assert int(molecules.part(part).labels.sum()) == positives


@needs_data
@pytest.mark.parametrize(("name", "file"), [("molmuv", "muv"), ("molhiv", "HIV")])
def test_large_tables_and_pieces_of_their_splits(name, file):
    """All labels by the stored split; at both ends of each part the scaffolds in the order of the recipe."""
    known, parts, reader = MOLECULE_SETS[name], stored_split(file), MoleculeReader()
    smiles, labels = read_smiles_table("test", STORED / f"{known.file}.gz", known.target)
    assert sorted(itertools.chain(*parts)) == list(range(len(smiles)))
    found = [[labels[row] for row in part if labels[row] is not None] for part in parts]
    assert (tuple(map(len, found)), tuple(map(sum, found))) == (known.counts, known.positives)
    seen = []
    for part in parts:
        own = set()
        for piece in (part[:400], part[-400:]):
            scaffolds = reader.read([smiles[row] for row in piece], [False] * len(piece)).scaffolds
            rows = iter(piece)
            groups = [(key, [next(rows) for _ in same]) for key, same in itertools.groupby(scaffolds)]
            assert len({key for key, _ in groups}) == len(groups)  # rows of a scaffold stand together
            order = [(len(group), group[0]) for _, group in groups[1:-1]]  # the first and the last may be cut
            assert order == sorted(order, reverse=True)
            assert all(group == sorted(group) for _, group in groups)
            own.update(key for key, _ in groups if isinstance(key, str))
        seen.append(own)
    assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])
