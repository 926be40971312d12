"""Molecules as text (SMILES): their graphs and scaffolds by RDKit, tables of them, and a few thousand made here.

The categories of atoms and bonds are those of the Open Graph Benchmark (`ATOM_CATEGORIES`, `BOND_CATEGORIES` of
`experiments.data.graphs`); the last one of a feature means "any other", where there is one.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Hashable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.data._archives import BROKEN, unpack
from moreauc.app.smiles import SmilesReader

# categories in their order, as RDKit names them
_CHIRALITIES = ("CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER")
_HYBRIDISATIONS = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
_BOND_TYPES = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
_STEREOS = ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY")

_CLASSES = {"": None, "0": 0, "1": 1, "0.0": 0, "1.0": 1}

# pieces of the examples, each with a place for the next; numbers of rings are moved where two rings meet
_RINGS = (
    *("c1ccc({})cc1", "c1ccc({})nc1", "c1cnc({})nc1", "c1cc({})co1", "c1cc({})cs1", "c1ccc2[nH]cc({})c2c1"),
    *("c1ccc2cc({})ccc2c1", "C1CCC({})CC1", "C1CN({})CCO1", "C1CCN({})CC1", "C1CC({})CC1"),
)
_JOINTS = ("C", "CC", "CO", "CN", "C(=O)N")
_ENDS = ("C", "CC", "CCC", "CC(C)C", "CO", "CCO", "CC#N", "C(=O)O", "CCl", "CC(F)(F)F")


class MoleculeGraph(NamedTuple):
    """Categories of atoms `(V, 9)`, directed edges `(2, E)` and categories of bonds `(E, 3)`."""

    atoms: NDArray[np.uint8]
    edges: NDArray[np.int64]
    bonds: NDArray[np.uint8]


class Reading(NamedTuple):
    """What was made of a list of SMILES.

    Attributes:
        scaffolds: the scaffold of each; its row instead where RDKit could not read it.
        graphs: the graphs of those that were wanted as such.
        rejected: rows of those wanted that RDKit could not read.
        relaxed: rows of those wanted that were read without the valence check.
    """

    scaffolds: list[str | int]
    graphs: list[MoleculeGraph]
    rejected: list[int]
    relaxed: list[int]


class MoleculeReader(SmilesReader):
    """Also gives graphs of molecules."""

    def __init__(self) -> None:
        super().__init__()
        chem = self._chem
        self._chirality = _numbers(chem.ChiralType, _CHIRALITIES)
        self._hybridisation = _numbers(chem.HybridizationType, _HYBRIDISATIONS)
        self._bond_type = _numbers(chem.BondType, _BOND_TYPES)
        self._stereo = _numbers(chem.BondStereo, _STEREOS)

    def read(self, smiles: Sequence[str], wanted: Sequence[bool]) -> Reading:
        """Return the scaffolds of all molecules and the graphs of those that are wanted."""
        result = Reading([], [], [], [])
        with self.quiet():
            for row, text in enumerate(smiles):
                molecule, relaxed = self.molecule(text)
                result.scaffolds.append(row if molecule is None else self.scaffold(molecule))
                if wanted[row] and molecule is None:
                    result.rejected.append(row)
                elif wanted[row]:
                    result.graphs.append(self.graph(molecule))
                    result.relaxed.extend([row] if relaxed else [])
        return result

    def graph(self, molecule: Any) -> MoleculeGraph:
        """Return the categories of all atoms, and those of all bonds, each as two edges."""
        atoms = np.array([self._atom(atom) for atom in molecule.GetAtoms()], dtype=np.uint8)
        bonds = list(molecule.GetBonds())
        ends = np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in bonds], dtype=np.int64).reshape(-1, 2)
        edges = np.stack([ends, ends[:, ::-1]], axis=1).reshape(-1, 2).T
        codes = np.array([self._bond(bond) for bond in bonds], dtype=np.uint8).reshape(-1, 3)
        return MoleculeGraph(atoms, edges, codes.repeat(2, axis=0))

    def _atom(self, atom: Any) -> tuple[int, ...]:
        number, charge = atom.GetAtomicNum(), atom.GetFormalCharge()
        return (
            number - 1 if 1 <= number <= 118 else 118,
            self._chirality.get(atom.GetChiralTag(), 4),
            min(atom.GetTotalDegree(), 11),
            charge + 5 if -5 <= charge <= 5 else 11,
            min(atom.GetTotalNumHs(), 9),
            min(atom.GetNumRadicalElectrons(), 5),
            self._hybridisation.get(atom.GetHybridization(), 5),
            int(atom.GetIsAromatic()),
            int(atom.IsInRing()),
        )

    def _bond(self, bond: Any) -> tuple[int, ...]:
        kind = self._bond_type.get(bond.GetBondType(), 4)
        # stereo has no category for the rest; the last one says that it is not known
        return kind, self._stereo.get(bond.GetStereo(), 5), int(bond.GetIsConjugated())


def _numbers(enumeration: Any, names: Sequence[str]) -> dict[Any, int]:
    return {getattr(enumeration, name): number for number, name in enumerate(names)}


class ScaffoldSplit(NamedTuple):
    """Rows of the three parts, int64, in the order in which their groups were assigned."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


def split_by_group(groups: Sequence[Hashable]) -> ScaffoldSplit:
    """Return rows in three parts of about 80, 10 and 10 %, all rows of a group in one part.

    This is DeepChem's recipe, which the Open Graph Benchmark took over: groups are taken by size and, where equal, by
    the first row, both descending. Each goes to training if that then has no more than 80 % of the rows; else to
    validation, if both then have no more than 90 %; else to test.

    Example:
        >>> split_by_group(["a", "b", "a", "a", "c", "a", "a", "a", "b", "a"])
        ScaffoldSplit(train=array([0, 2, 3, 5, 6, 7, 9, 4]), validation=array([1, 8]), test=array([], dtype=int64))
    """
    members: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for rows in sorted(members.values(), key=lambda rows: (len(rows), rows[0]), reverse=True):
        # whole numbers, in which nothing is rounded
        if 10 * (len(parts[0]) + len(rows)) <= 8 * len(groups):
            place = 0
        else:
            place = 1 if 10 * (len(parts[0]) + len(parts[1]) + len(rows)) <= 9 * len(groups) else 2
        parts[place].extend(rows)
    return ScaffoldSplit(*(np.array(part, dtype=np.int64) for part in parts))


def read_smiles_table(owner: str, source: Path, target: str) -> tuple[list[str], list[int | None]]:
    """Return the SMILES and the labels, None where empty, of all rows of a CSV file, plain or compressed by gzip.

    Args:
        owner: who asks, for errors.
        source: a file with a header and a column `smiles`.
        target: column with the labels.
    """
    table = csv.DictReader(io.StringIO(_text(owner, source), newline=""))
    smiles: list[str] = []
    labels: list[int | None] = []
    try:
        if not {"smiles", target} <= set(table.fieldnames or ()):
            columns = ", ".join(table.fieldnames or ())
            raise ValueError(f"{owner}: {source.name} must have the columns smiles and {target}, got {columns}")
        for number, row in enumerate(table):
            place = f"row {number} (line {table.line_num})"
            if None in row or None in row.values():
                wanted = f"must have {len(table.fieldnames or ())} columns in every row"
                raise ValueError(f"{owner}: {source.name} {wanted}, got more or fewer in {place}")
            text, label = row["smiles"].strip(), row[target].strip()
            if "\n" in text or "\r" in text:
                raise ValueError(f"{owner}: {source.name} must have SMILES of one line, got {text!r} in {place}")
            if label not in _CLASSES:
                raise ValueError(f"{owner}: {target} must be 0, 1 or empty, got {label!r} in {place} of {source.name}")
            smiles.append(text)
            labels.append(_CLASSES[label])
    except csv.Error as error:
        raise ValueError(f"{owner}: {source.name} must be a CSV file, got {error} (line {table.line_num})") from error
    if all(label is None for label in labels):
        raise ValueError(f"{owner}: {source.name} must have a label in column {target}, got none in {len(labels)} rows")
    return smiles, labels


def _text(owner: str, source: Path) -> str:
    try:
        content = unpack(source)
    except BROKEN as error:
        raise ValueError(f"{owner}: {source.name} must be a CSV file or one packed by gzip, got {error}") from error
    try:
        return content.decode("utf-8-sig")  # spreadsheets write a byte order mark
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{owner}: {source.name} must be UTF-8, got a byte that is not in line {line}") from error


@lru_cache
def example_smiles() -> tuple[str, ...]:
    """Return valid SMILES with one ring or two: the first ring, a joint, a second ring, an end."""
    tails = [ring.translate(str.maketrans("12", "34")) for ring in _RINGS]
    frames = [*_RINGS, *(first.format(joint + tail) for first in _RINGS for joint in _JOINTS for tail in tails)]
    return tuple(frame.format(end) for frame in frames for end in _ENDS)
