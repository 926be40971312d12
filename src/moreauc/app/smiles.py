"""Molecules as text (SMILES), read by RDKit: fingerprints, canonical forms, scaffolds, and what cannot be used.

Imports neither torch nor scikit-learn: the processes that read molecules start with this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from moreauc._system import import_extra

if TYPE_CHECKING:
    from rdkit.Chem import Mol
    from rdkit.Chem.rdFingerprintGenerator import FingerprintGenerator64

CHUNK = 1000  # molecules that a process reads at once
_CARBON = 6
_EMPTY, _UNREADABLE, _INORGANIC = (
    "is empty",
    "is not valid SMILES",
    "has no organic fragment, as a salt has none: no fragment has a carbon atom",
)


class SmilesReader:
    """Reads SMILES with RDKit, without its log messages.

    RDKit checks that no atom has more bonds than its element permits, and new versions permit less than old ones did:
    2026.09 refuses aluminium with six bonds in a few molecules of Tox21 and HIV that were published as valid. A SMILES
    that fails is read a second time without that check; what fails then too is rejected.
    """

    def __init__(self) -> None:
        self._chem = import_extra("rdkit.Chem", "molecules")
        self._base = import_extra("rdkit.rdBase", "molecules")

    @property
    def version(self) -> str:
        """The version of RDKit, which features and scaffolds may depend on."""
        return str(self._base.rdkitVersion)

    def quiet(self) -> AbstractContextManager[object]:
        """Return a context in which RDKit writes no log messages."""
        block: AbstractContextManager[object] = self._base.BlockLogs()
        return block

    def molecule(self, smiles: str) -> tuple[Mol | None, bool]:
        """Return the molecule, None where there is none, and whether the valence check was left out."""
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

    def organic(self, molecule: Mol) -> Mol | None:
        """Return the largest fragment that has a carbon atom, by its atoms, bonds and SMILES; None where none has."""
        chem = self._chem
        parts = [part for part in chem.GetMolFrags(molecule) if self._has_carbon(molecule, part)]
        if not parts:
            return None
        if len(parts[0]) == molecule.GetNumAtoms():
            return molecule
        fragments = chem.GetMolFrags(molecule, asMols=True, sanitizeFrags=False)  # which would check valences
        fragments = [part for part in fragments if self._has_carbon(part, range(part.GetNumAtoms()))]
        found: Mol = max(fragments, key=lambda part: (part.GetNumAtoms(), part.GetNumBonds(), chem.MolToSmiles(part)))
        chem.GetSymmSSSR(found)  # the rings, which a fragment does not know
        return found

    @staticmethod
    def _has_carbon(molecule: Mol, atoms: Iterable[int]) -> bool:
        return any(molecule.GetAtomWithIdx(atom).GetAtomicNum() == _CARBON for atom in atoms)

    def usable(self, smiles: object, *, strip_salts: bool) -> tuple[Mol | None, str]:
        """Return the molecule, without its salts if wanted, or None and why there is none."""
        if smiles is None or smiles != smiles or not str(smiles).strip():
            return None, _EMPTY
        molecule, _ = self.molecule(str(smiles)) if isinstance(smiles, str) else (None, False)
        if molecule is None:
            return None, _UNREADABLE
        if not strip_salts:
            return molecule, ""
        organic = self.organic(molecule)
        return organic, "" if organic is not None else _INORGANIC

    def canonical(self, molecule: Mol) -> str:
        """Return the canonical SMILES, with chirality: the same for all ways to write a molecule."""
        return str(self._chem.MolToSmiles(molecule))

    def scaffold(self, molecule: Mol) -> str:
        """Return the SMILES, with chirality, of the rings and what joins them (Bemis and Murcko, 1996)."""
        frame = self._chem.MurckoDecompose(molecule)
        frame.ClearComputedProps()
        frame.UpdatePropertyCache(strict=False)  # again without the valence check
        self._chem.GetSymmSSSR(frame)
        return str(self._chem.MolToSmiles(frame, isomericSmiles=True))


class InvalidSmiles(NamedTuple):
    """A row that has no fingerprint.

    Attributes:
        row: its number from 0.
        value: what it holds.
        reason: why it cannot be used, in words that follow the value.
    """

    row: int
    value: object
    reason: str

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, str) else str(self.value)
        return f"row {self.row + 1} (from 1): {value[:80]!r} {self.reason}"


class Chunk(NamedTuple):
    """Some molecules as they were read.

    Attributes:
        fingerprints: one row for each, without entries where it is invalid; no columns where they were not wanted.
        invalid: those that cannot be used; rows are counted from the start of the first chunk.
        canonical: canonical SMILES, "" where invalid; empty where identities were not wanted.
        scaffolds: likewise.
    """

    fingerprints: csr_array
    invalid: list[InvalidSmiles]
    canonical: list[str]
    scaffolds: list[str]


class Morgan(NamedTuple):
    """Settings of fingerprints, as in :class:`SmilesFingerprints`."""

    kind: str
    radius: int
    size: int
    strip_salts: bool


def read_chunks(
    settings: Morgan,
    pieces: Iterable[Sequence[object]],
    n_jobs: int | None = None,
    *,
    fingerprints: bool = True,
    identities: bool = False,
) -> Iterator[Chunk]:
    """Yield what was read of each piece, in order; pieces are taken from their source as they are needed.

    Args:
        settings: of the fingerprints.
        pieces: SMILES, a few thousand at a time.
        n_jobs: number of processes.
        fingerprints: whether to make them.
        identities: whether to make canonical SMILES and scaffolds.
    """
    _tools(settings)  # a missing RDKit is an error here, not in a process
    if n_jobs in (None, 1):
        chunks = (_read(settings, texts, fingerprints, identities) for texts in pieces)
    else:
        from joblib import Parallel, delayed  # type: ignore[import-untyped]

        calls = (delayed(_read)(settings, list(texts), fingerprints, identities) for texts in pieces)
        chunks = Parallel(n_jobs=n_jobs, return_as="generator")(calls)
    first = 0
    for chunk in chunks:
        yield chunk._replace(invalid=[wrong._replace(row=first + wrong.row) for wrong in chunk.invalid])
        first += chunk.fingerprints.shape[0]


def stack(parts: Sequence[csr_array], size: int) -> csr_array:
    """Return fingerprints of chunks as one matrix."""
    if not parts:
        return csr_array((0, size), dtype=np.float32)
    ends = np.cumsum([0, *(part.nnz for part in parts)])
    starts = [part.indptr[:-1].astype(np.int64) + end for part, end in zip(parts, ends[:-1], strict=True)]
    indptr = np.concatenate([*starts, ends[-1:]])
    if ends[-1] <= np.iinfo(np.int32).max:
        indptr = indptr.astype(np.int32)
    columns = np.concatenate([part.indices for part in parts])
    counts = np.concatenate([part.data for part in parts])
    return csr_array((counts, columns.astype(indptr.dtype, copy=False), indptr), shape=(len(indptr) - 1, size))


@lru_cache(maxsize=4)
def _tools(settings: Morgan) -> tuple[SmilesReader, FingerprintGenerator64]:
    """Return the reader and the generator of a process."""
    return SmilesReader(), morgan_generator(settings)


def morgan_generator(settings: Morgan) -> FingerprintGenerator64:
    """Return RDKit's generator of fingerprints."""
    make = import_extra("rdkit.Chem.rdFingerprintGenerator", "molecules").GetMorganGenerator
    generator: FingerprintGenerator64 = make(radius=settings.radius, fpSize=settings.size)
    return generator


def _read(settings: Morgan, texts: Sequence[object], fingerprints: bool, identities: bool) -> Chunk:
    reader, generator = _tools(settings)
    invalid, canonical, scaffolds = [], [], []
    columns: list[int] = []
    counts: list[int] = []
    ends = [0]
    with reader.quiet():
        for row, text in enumerate(texts):
            molecule, reason = reader.usable(text, strip_salts=settings.strip_salts)
            if molecule is None:
                invalid.append(InvalidSmiles(row, text, reason))
            elif fingerprints and settings.kind == "bit":
                columns += generator.GetFingerprint(molecule).GetOnBits()
            elif fingerprints:
                pieces = generator.GetCountFingerprint(molecule).GetNonzeroElements()
                columns += pieces.keys()
                counts += pieces.values()
            if identities:
                canonical.append("" if molecule is None else reader.canonical(molecule))
                scaffolds.append("" if molecule is None else reader.scaffold(molecule))
            ends.append(len(columns))
    values = np.ones(len(columns), dtype=np.float32) if settings.kind == "bit" else np.array(counts, dtype=np.float32)
    places = np.array(columns, dtype=np.int32), np.array(ends, dtype=np.int32)
    return Chunk(csr_array((values, *places), shape=(len(texts), settings.size)), invalid, canonical, scaffolds)
