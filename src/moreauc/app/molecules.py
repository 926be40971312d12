"""Morgan fingerprints of molecules for scikit-learn.

Needs RDKit, which the extra "molecules" brings. :class:`SmilesFingerprints` is the transformer, `moreauc fit --smiles`
the command, docs/molecules.md the guide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Self, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags

from moreauc._checks import check_count, check_flag
from moreauc.app import smiles
from moreauc.app.smiles import Chunk, InvalidSmiles, Morgan, read_chunks, stack

__all__ = ["SmilesFingerprints"]

_OWNER = "SmilesFingerprints"

SmilesLike: TypeAlias = "ArrayLike | pd.Series[str] | pd.DataFrame"  # one SMILES for each row


class SmilesFingerprints(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turn SMILES into Morgan fingerprints (ECFP), as sparse rows.

    Column `b` of a row tells whether, or how often, a circular piece of the molecule has the hash `b`: the surroundings
    of an atom up to `radius` bonds. RDKit reads the molecules and makes the fingerprints.

    **Salts.** Of a SMILES with several fragments only the largest with a carbon atom is used, by the number of its
    heavy atoms, then bonds, then canonical SMILES: counter-ions and solvents are left out. Charges stay as they are. A
    row without such a fragment is invalid.

    **Invalid rows** are those that are empty, not valid SMILES, or without an organic fragment. A transformer must
    return a row for each that it is given: it raises an error, or returns a row of zeros. :meth:`find_invalid` tells
    which rows to leave out before.

    Nothing is learnt from data: `fit` checks the arguments only. Molecules are read in chunks; 10^6 drug-like molecules
    take about 0.5 GB as sparse rows.

    Args:
        kind: "bit" for 1 where a piece occurs, "count" for how often it does.
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
        kind: Literal["bit", "count"] = "bit",
        radius: int = 2,
        size: int = 4096,
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

    def fit(self, X: SmilesLike, y: ArrayLike | None = None) -> Self:
        """Check the arguments; nothing is learnt.

        Args:
            X: as for :meth:`transform`.
            y: not used.
        """
        self.settings()
        as_smiles(X)
        self.n_features_in_ = 1
        return self

    def transform(self, X: SmilesLike) -> csr_array:
        """Return the fingerprints, float32, shape `(n, size)`.

        Args:
            X: SMILES: a list, array or Series of texts, or a table with one column.

        Raises:
            ValueError: if a row is invalid and `invalid` is "error"; the first is named with its row, from 1.
        """
        parts: list[csr_array] = []
        for chunk in self._chunks(as_smiles(X)):
            if chunk.invalid and self.invalid == "error":
                raise ValueError(
                    f"{_OWNER}: X must hold SMILES of molecules, got in {chunk.invalid[0]}; find_invalid() names all "
                    "such rows, invalid='zero' gives them rows of zeros"
                )
            parts.append(chunk.fingerprints)
        return stack(parts, self.size)

    def find_invalid(self, X: SmilesLike) -> list[InvalidSmiles]:
        """Return the rows that have no fingerprint: number from 0, value, reason; see :meth:`transform` for `X`."""
        return [wrong for chunk in self._chunks(as_smiles(X), fingerprints=False) for wrong in chunk.invalid]

    def canonical(self, X: SmilesLike) -> list[str]:
        """Return RDKit's canonical SMILES without salts: the same for equal molecules; "" for invalid rows."""
        return [text for chunk in self._identities(X) for text in chunk.canonical]

    def scaffolds(self, X: SmilesLike) -> list[str]:
        """Return the Bemis-Murcko scaffolds, "" for invalid rows and for molecules without rings.

        As `groups` of `fit`, and of scikit-learn's `GroupKFold`, they keep related molecules on one side of a split.
        """
        return [text for chunk in self._identities(X) for text in chunk.scaffolds]

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[np.object_]:
        """Return the names of the columns, morgan0 and so on."""
        return np.array([f"morgan{place}" for place in range(self.settings().size)], dtype=object)

    def __sklearn_tags__(self) -> Tags:
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

    def _identities(self, X: SmilesLike) -> Iterator[Chunk]:
        return self._chunks(as_smiles(X), fingerprints=False, identities=True)

    def _chunks(self, texts: Sequence[object], **wanted: bool) -> Iterator[Chunk]:
        pieces = [texts[place : place + smiles.CHUNK] for place in range(0, len(texts), smiles.CHUNK)]
        found = read_chunks(self.settings(), pieces, self.n_jobs, **wanted)
        return with_progress(found, len(pieces)) if self.verbose else found


def with_progress(chunks: Iterator[Chunk], number: int) -> Iterator[Chunk]:
    """Return chunks as they come, with a bar on standard error that shows how many are left."""
    from rich.console import Console
    from rich.progress import track

    return iter(track(chunks, "Reading molecules", total=number, console=Console(stderr=True)))


def as_smiles(X: SmilesLike) -> Sequence[object]:
    """Return one value for each row of a list, array, Series or table with one column."""
    if isinstance(X, str | bytes):
        raise ValueError(f"{_OWNER}: X must be a list, array or column of SMILES, got one text, {X!r}; write [{X!r}]")
    values = np.asarray(X.to_numpy() if isinstance(X, pd.DataFrame | pd.Series) else X, dtype=object)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"{_OWNER}: X must have shape (n,) or (n, 1), one SMILES for each row, got {values.shape}")
    listed: list[object] = values.tolist()
    return listed
