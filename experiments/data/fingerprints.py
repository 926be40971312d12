"""Fingerprints of the molecules of Tox21, HIV and MUV: which circular pieces of two bonds' radius they have (ECFP4).

Reference: Rogers and Hahn, Extended-Connectivity Fingerprints, 2010. RDKit makes them once; they are kept in the cache.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from experiments.data._archives import content_sha256
from experiments.data.download import cache_folder, find_file
from experiments.data.smiles import MoleculeReader, read_smiles_table, split_by_group
from experiments.files import read_arrays, write_arrays
from moreauc.app.molecules import SmilesFingerprints

ASSAYS = (
    *("NR-AR", "NR-AR-LBD", "NR-AhR", "NR-Aromatase", "NR-ER", "NR-ER-LBD", "NR-PPAR-gamma"),
    *("SR-ARE", "SR-ATAD5", "SR-HSE", "SR-MMP", "SR-p53"),
)
MUV = ("MUV-548", "MUV-600", "MUV-652", "MUV-737")  # of 17 targets those with at least six positives to test on
# file and column of the labels of each set
FINGERPRINT_SETS = {
    **{name: ("tox21.csv", name) for name in ASSAYS},
    "HIV": ("HIV.csv", "HIV_active"),
    **{name: ("muv.csv", name) for name in MUV},
}
BITS, RADIUS = 2048, 2
_OWNER = "load_fingerprints"

Rows = NDArray[np.int64]


def load_fingerprints(name: str, folder: Path | None = None) -> tuple[csr_array, Rows, Rows, Rows]:
    """Return the fingerprints of the labelled molecules, their 0/1 labels, and the rows to train on and to test.

    The split is that of the scaffolds of the whole file; training and validation rows together are those to train on.
    Molecules that RDKit cannot read are left out.

    Args:
        name: key of `FINGERPRINT_SETS`.
        folder: folder that has the file, or a subfolder `molecules` with it; None for MOREAUC_DATA or a download.
    """
    if name not in FINGERPRINT_SETS:
        raise ValueError(f"{_OWNER}: name must be one of {', '.join(FINGERPRINT_SETS)}, got {name!r}")
    file, target = FINGERPRINT_SETS[name]
    source = find_file(_OWNER, file, folder)
    smiles, labels = read_smiles_table(_OWNER, source, target)
    bits, readable, test = _of_file(source, tuple(smiles))
    rows = np.flatnonzero(readable & np.array([label is not None for label in labels]))
    values = np.array([labels[row] for row in rows], dtype=np.int64)
    return bits[rows], values, np.flatnonzero(~test[rows]), np.flatnonzero(test[rows])


@lru_cache(maxsize=2)
def _of_file(source: Path, smiles: tuple[str, ...]) -> tuple[csr_array, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the fingerprints of all rows of a file, which rows RDKit can read, and which are for test."""
    reader = MoleculeReader()
    place = cache_folder() / "fingerprints" / f"{content_sha256(source)[:16]}-rdkit{reader.version}-{BITS}-{RADIUS}.npz"
    if not place.is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        write_arrays(place, make_fingerprints(smiles, reader))
    found = read_arrays(_OWNER, place, ("indices", "indptr", "readable", "test"))
    ones = np.ones(len(found["indices"]), dtype=np.float32)
    bits = csr_array((ones, found["indices"].astype(np.int32), found["indptr"].astype(np.int32)), (len(smiles), BITS))
    return bits, found["readable"].astype(bool), found["test"].astype(bool)


def make_fingerprints(smiles: tuple[str, ...], reader: MoleculeReader) -> dict[str, NDArray[Any]]:
    """Return the bits that are set, row after row, which rows can be read and which are in the test part."""
    scaffolds = reader.read(smiles, [False] * len(smiles)).scaffolds
    bits = SmilesFingerprints(kind="bit", radius=RADIUS, size=BITS, strip_salts=False, invalid="zero").transform(smiles)
    test = np.zeros(len(smiles), dtype=np.uint8)
    test[split_by_group(scaffolds).test] = 1
    return {
        "indices": bits.indices.astype(np.int64),
        "indptr": bits.indptr.astype(np.int64),
        "readable": np.array([not isinstance(scaffold, int) for scaffold in scaffolds], dtype=np.uint8),
        "test": test,
    }
