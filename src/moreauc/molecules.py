"""Molecules as text (SMILES): fingerprints for scikit-learn, canonical forms, scaffolds, and what cannot be used.

Needs RDKit, which the extra "molecules" brings. :class:`SmilesFingerprints` is the transformer, `moreauc fit --smiles`
the command, docs/molecules.md the guide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, TransformerMixin

from moreauc._checks import check_count, check_flag
from moreauc._system import import_extra

__all__ = ["SmilesFingerprints"]

CHUNK = 1000  # molecules that a process reads at once
_OWNER = "SmilesFingerprints"
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

    def quiet(self) -> Any:
        """Return a context in which RDKit writes no log messages."""
        return self._base.BlockLogs()

    def molecule(self, smiles: str) -> tuple[Any | None, bool]:
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

    def organic(self, molecule: Any) -> Any | None:
        """Return the largest fragment that has a carbon atom, by its atoms, bonds and SMILES; None where none has."""
        chem = self._chem
        parts = [part for part in chem.GetMolFrags(molecule) if self._has_carbon(molecule, part)]
        if not parts:
            return None
        if len(parts[0]) == molecule.GetNumAtoms():
            return molecule
        fragments = chem.GetMolFrags(molecule, asMols=True, sanitizeFrags=False)  # which would check valences
        fragments = [part for part in fragments if self._has_carbon(part, range(part.GetNumAtoms()))]
        found = max(fragments, key=lambda part: (part.GetNumAtoms(), part.GetNumBonds(), chem.MolToSmiles(part)))
        chem.GetSymmSSSR(found)  # the rings, which a fragment does not know
        return found

    @staticmethod
    def _has_carbon(molecule: Any, atoms: Iterable[int]) -> bool:
        return any(molecule.GetAtomWithIdx(atom).GetAtomicNum() == _CARBON for atom in atoms)

    def usable(self, smiles: Any, *, strip_salts: bool) -> tuple[Any | None, str]:
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

    def canonical(self, molecule: Any) -> str:
        """Return the canonical SMILES, with chirality: the same for all ways to write a molecule."""
        return str(self._chem.MolToSmiles(molecule))

    def scaffold(self, molecule: Any) -> str:
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
    value: Any
    reason: str

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, str) else str(self.value)
        return f"row {self.row + 1} (from 1): {value[:80]!r} {self.reason}"


class Chunk(NamedTuple):
    """Some molecules as they were read.

    Attributes:
        fingerprints: one row for each, without entries where it is invalid; no columns where they were not wanted.
        invalid: those that cannot be used; rows are counted from the start of the chunk.
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


class SmilesFingerprints(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turn SMILES into Morgan fingerprints (ECFP), as sparse rows.

    Column `b` of a row tells how many circular pieces of the molecule have the hash `b`: the surroundings of every atom
    up to `radius` bonds. RDKit reads the molecules and makes the fingerprints.

    **Salts.** Of a SMILES with several fragments only the largest with a carbon atom is used, by the number of its
    heavy atoms, then bonds, then canonical SMILES: counter-ions and solvents are left out. Charges stay as they are. A
    row without such a fragment is invalid.

    **Invalid rows** are those that are empty, not valid SMILES, or without an organic fragment. A transformer must
    return a row for each that it is given: it raises an error, or returns a row of zeros. :meth:`find_invalid` tells
    which rows to leave out before.

    Nothing is learnt from data: `fit` checks the arguments only. Molecules are read in chunks; 10^6 drug-like molecules
    take about 0.5 GB as sparse rows.

    Args:
        kind: "count" for how often a piece occurs, "bit" for 1 where it does.
        radius: largest distance from the atom in the middle, in bonds, at least 0; 2 for ECFP4, 3 for ECFP6.
        size: number of columns, at least 1; different pieces may share one.
        strip_salts: whether to use the largest organic fragment only; if False all fragments, and inorganic rows are
            valid.
        invalid: "error" to raise for the first invalid row, "zero" for a row of zeros.
        n_jobs: number of processes, -1 for all cores, as in joblib; None for 1.
        verbose: 0, or 1 for a progress bar.

    Attributes:
        n_features_in_: 1, the column of SMILES.

    Example:
        >>> fingerprints = SmilesFingerprints(size=64).fit_transform(["CCO", "OCC", "c1ccccc1.Cl"])
        >>> fingerprints.shape, bool((fingerprints[[0]] != fingerprints[[1]]).nnz)
        ((3, 64), False)
        >>> SmilesFingerprints().canonical(["OCC", "[Na+].CC(=O)[O-]"]), SmilesFingerprints().scaffolds(["CCc1ccccc1"])
        (['CCO', 'CC(=O)[O-]'], ['c1ccccc1'])
        >>> print(*SmilesFingerprints().find_invalid(["CCO", "C1CC", "[Na+].[Cl-]"]), sep="; ")
        row 2 (from 1): 'C1CC' is not valid SMILES; row 3 (from 1): '[Na+].[Cl-]' has no organic fragment, as a salt ...

    Reference:
        Rogers, Hahn, Extended-Connectivity Fingerprints, J. Chem. Inf. Model. 50, 2010.
    """

    n_features_in_: int

    def __init__(
        self,
        *,
        kind: Literal["count", "bit"] = "count",
        radius: int = 2,
        size: int = 2048,
        strip_salts: bool = True,
        invalid: Literal["error", "zero"] = "error",
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.kind = kind
        self.radius = radius
        self.size = size
        self.strip_salts = strip_salts
        self.invalid = invalid
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the arguments; nothing is learnt.

        Args:
            X: as for :meth:`transform`.
            y: not used.
        """
        self.settings()
        as_smiles(X)
        self.n_features_in_ = 1
        return self

    def transform(self, X: Any) -> csr_array:
        """Return the fingerprints, float32, shape `(n, size)`.

        Args:
            X: SMILES: a list, array or Series of texts, or a table with one column.

        Raises:
            ValueError: if a row is invalid and `invalid` is "error"; the first is named with its row, from 1.
        """
        texts = as_smiles(X)
        parts: list[csr_array] = []
        first = 0
        for chunk in self._chunks(texts):
            if chunk.invalid and self.invalid == "error":
                wrong = chunk.invalid[0]._replace(row=first + chunk.invalid[0].row)
                raise ValueError(
                    f"{_OWNER}: X must hold SMILES of molecules, got in {wrong}; find_invalid() names all such rows, "
                    "invalid='zero' gives them rows of zeros"
                )
            parts.append(chunk.fingerprints)
            first += chunk.fingerprints.shape[0]
        return stack(parts, self.size)

    def find_invalid(self, X: Any) -> list[InvalidSmiles]:
        """Return the rows that have no fingerprint: number from 0, value, reason; see :meth:`transform` for `X`."""
        found, first = [], 0
        for chunk in self._chunks(as_smiles(X), fingerprints=False):
            found += [wrong._replace(row=first + wrong.row) for wrong in chunk.invalid]
            first += chunk.fingerprints.shape[0]
        return found

    def canonical(self, X: Any) -> list[str]:
        """Return RDKit's canonical SMILES without salts: the same for equal molecules; "" for invalid rows."""
        return [text for chunk in self._identities(X) for text in chunk.canonical]

    def scaffolds(self, X: Any) -> list[str]:
        """Return the Bemis-Murcko scaffolds, "" for invalid rows and for molecules without rings.

        As `groups` of `fit`, and of scikit-learn's `GroupKFold`, they keep related molecules on one side of a split.
        """
        return [text for chunk in self._identities(X) for text in chunk.scaffolds]

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the columns, morgan0 and so on."""
        return np.array([f"morgan{place}" for place in range(self.settings().size)], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = tags.requires_fit = False
        tags.no_validation = True
        return tags

    def settings(self) -> Morgan:
        """Return the settings that the fingerprints depend on, after a check of all arguments."""
        for name, allowed in (("kind", ("count", "bit")), ("invalid", ("error", "zero"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{_OWNER}: {name} must be one of {list(allowed)}, got {getattr(self, name)!r}")
        check_count(_OWNER, "radius", self.radius, minimum=0)
        check_count(_OWNER, "size", self.size)
        check_flag(_OWNER, "strip_salts", self.strip_salts)
        if self.n_jobs is not None and (isinstance(self.n_jobs, bool) or not isinstance(self.n_jobs, int)):
            raise ValueError(f"{_OWNER}: n_jobs must be an integer or None, got {self.n_jobs!r}")
        if self.n_jobs == 0:
            raise ValueError(f"{_OWNER}: n_jobs must not be 0; None is for one process, -1 for all cores")
        return Morgan(self.kind, int(self.radius), int(self.size), self.strip_salts)

    def _identities(self, X: Any) -> Iterator[Chunk]:
        return self._chunks(as_smiles(X), fingerprints=False, identities=True)

    def _chunks(self, texts: Sequence[Any], **wanted: bool) -> Iterator[Chunk]:
        pieces = [texts[place : place + CHUNK] for place in range(0, len(texts), CHUNK)]
        found = read_chunks(self.settings(), pieces, self.n_jobs, **wanted)
        if not self.verbose:
            return found
        from rich.console import Console
        from rich.progress import track

        return iter(track(found, "molecules", total=len(pieces), console=Console(stderr=True)))


def read_chunks(
    settings: Morgan,
    pieces: Iterable[Sequence[Any]],
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
        for texts in pieces:
            yield _read(settings, texts, fingerprints, identities)
        return
    from joblib import Parallel, delayed  # type: ignore[import-untyped]

    calls = (delayed(_read)(settings, list(texts), fingerprints, identities) for texts in pieces)
    yield from Parallel(n_jobs=n_jobs, return_as="generator")(calls)


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


def as_smiles(X: Any) -> Sequence[Any]:
    """Return one value for each row of a list, array, Series or table with one column."""
    if isinstance(X, str | bytes):
        raise ValueError(f"{_OWNER}: X must be a list, array or column of SMILES, got one text, {X!r}; write [{X!r}]")
    values = np.asarray(X.to_numpy() if isinstance(X, pd.DataFrame | pd.Series) else X, dtype=object)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"{_OWNER}: X must have shape (n,) or (n, 1), one SMILES for each row, got {values.shape}")
    listed: list[Any] = values.tolist()
    return listed


@lru_cache(maxsize=4)
def _tools(settings: Morgan) -> tuple[SmilesReader, Any]:
    """Return the reader and the generator of a process."""
    reader = SmilesReader()
    make = import_extra("rdkit.Chem.rdFingerprintGenerator", "molecules").GetMorganGenerator
    return reader, make(radius=settings.radius, fpSize=settings.size)


def _read(settings: Morgan, texts: Sequence[Any], fingerprints: bool, identities: bool) -> Chunk:
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
