"""From SMILES to molecules, and from molecules to the categories of their atoms and bonds (RDKit).

The categories are those of the Open Graph Benchmark (`ATOM_CATEGORIES`, `BOND_CATEGORIES`); the last one of a feature
stands for everything that has none of its own, where there is such a thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moreauc._extras import import_extra

Codes = NDArray[np.uint8]

# categories in their order, as RDKit names them
_CHIRALITIES = ("CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER")
_HYBRIDISATIONS = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
_BOND_TYPES = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
_STEREOS = ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY")


class MoleculeGraph(NamedTuple):
    """Categories of atoms `(V, 9)`, directed edges `(2, E)` and categories of bonds `(E, 3)`."""

    atoms: Codes
    edges: NDArray[np.int64]
    bonds: Codes


class Reading(NamedTuple):
    """What was made of SMILES.

    Attributes:
        scaffolds: the scaffold of each; its row instead where no molecule could be made of it.
        graphs: the graphs of those that were wanted as such.
        rejected: rows of those wanted of which no molecule could be made.
        relaxed: rows of those wanted that were read without the check of bonds.
    """

    scaffolds: list[str | int]
    graphs: list[MoleculeGraph]
    rejected: list[int]
    relaxed: list[int]


class MoleculeReader:
    """Reads SMILES with RDKit, quietly.

    RDKit checks that no atom has more bonds than its element permits, and new versions permit less than old ones
    did: 2026.09 refuses aluminium with six bonds in a few molecules of Tox21 and HIV that were made public as valid. A
    SMILES that fails is read a second time without that one check; what fails then too is no molecule.

    Raises:
        ModuleNotFoundError: where RDKit is not installed; it names the extra.
    """

    def __init__(self) -> None:
        self._chem = import_extra("rdkit.Chem", "experiments")
        self._base = import_extra("rdkit.rdBase", "experiments")
        chem = self._chem
        self._chirality = _numbers(chem.ChiralType, _CHIRALITIES)
        self._hybridisation = _numbers(chem.HybridizationType, _HYBRIDISATIONS)
        self._bond_type = _numbers(chem.BondType, _BOND_TYPES)
        self._stereo = _numbers(chem.BondStereo, _STEREOS)

    @property
    def version(self) -> str:
        """The version of RDKit, which features and scaffolds may depend on."""
        return str(self._base.rdkitVersion)

    def read(self, smiles: Sequence[str], wanted: Sequence[bool], *, progress: bool = False) -> Reading:
        """Return the scaffolds of all molecules and the graphs of those that are wanted, logging nothing."""
        from rich.progress import track

        result = Reading([], [], [], [])
        with self._base.BlockLogs():
            for row, text in enumerate(track(smiles, "molecules", disable=not progress)):
                molecule, relaxed = self.molecule(text)
                result.scaffolds.append(row if molecule is None else self.scaffold(molecule))
                if not wanted[row]:
                    continue
                if molecule is None:
                    result.rejected.append(row)
                    continue
                result.graphs.append(self.graph(molecule))
                if relaxed:
                    result.relaxed.append(row)
        return result

    def molecule(self, smiles: str) -> tuple[Any | None, bool]:
        """Return the molecule, None where there is none, and whether the check of bonds had to be left out."""
        chem = self._chem
        strict = chem.MolFromSmiles(smiles)
        if strict is not None:
            return (strict, False) if strict.GetNumAtoms() else (None, False)
        loose = chem.MolFromSmiles(smiles, sanitize=False)
        if loose is None:
            return None, False
        loose.UpdatePropertyCache(strict=False)
        loose = chem.RemoveHs(loose, sanitize=False)  # hydrogens are no atoms of a graph, as in the first reading
        every = chem.SanitizeFlags.SANITIZE_ALL
        if chem.SanitizeMol(loose, every ^ chem.SanitizeFlags.SANITIZE_PROPERTIES, catchErrors=True):
            return None, False
        chem.AssignStereochemistry(loose, cleanIt=True, force=True)
        return loose, True

    def scaffold(self, molecule: Any) -> str:
        """Return the SMILES, with chirality, of the rings and what joins them (Bemis and Murcko, 1996)."""
        frame = self._chem.MurckoDecompose(molecule)
        frame.ClearComputedProps()
        frame.UpdatePropertyCache(strict=False)  # again without the check of bonds
        self._chem.GetSymmSSSR(frame)
        return str(self._chem.MolToSmiles(frame, isomericSmiles=True))

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
