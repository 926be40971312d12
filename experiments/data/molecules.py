"""Molecules with a 0/1 property, as graphs, split by scaffold: public tables, and a small set made on the spot.

References: Wu et al., MoleculeNet: A Benchmark for Molecular Machine Learning, 2018; Hu et al., Open Graph Benchmark:
Datasets for Machine Learning on Graphs, 2020.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.data._example_smiles import every_example
from experiments.data._molecule_features import MoleculeReader
from experiments.data._molecule_set import (
    PARTS,
    Molecules,
    make_molecules,
    without_rows,
)
from experiments.data._scaffolds import ScaffoldSplit, split_by_group
from moreauc._checks import check_count

__all__ = ["MOLECULE_SETS", "MoleculeSet", "Molecules", "example_molecules", "load_molecules", "scaffold_split"]

_FORMAT = 1  # of the files in the cache; one more whenever what is in them changes
_OWNER = "load_molecules"
_log = logging.getLogger(__name__)


class MoleculeSet(NamedTuple):
    """A public table: its file, the column with the labels, and labelled molecules and positives of the three parts."""

    file: str
    target: str
    counts: tuple[int, int, int]
    positives: tuple[int, int, int] | None


# Counts are those of the papers, checked when a table is read; of molpcba only percentages of positives are published.
MOLECULE_SETS = {
    "moltox21": MoleculeSet("tox21.csv", "NR-AR", (5834, 722, 709), (248, 29, 32)),
    "molmuv": MoleculeSet("muv.csv", "MUV-548", (11466, 1559, 1709), (21, 2, 6)),
    "molhiv": MoleculeSet("HIV.csv", "HIV_active", (32901, 4113, 4113), (1232, 81, 130)),
    "molpcba": MoleculeSet("molpcba.csv", "PCBA-1030", (120762, 19865, 20397), None),
}


def load_molecules(
    name: str,
    folder: Path | None = None,
    *,
    strict: bool = False,
    cache: bool = True,
    download: bool = True,
    progress: bool = False,
    verify: bool = False,
) -> Molecules:
    """Return the labelled molecules of a public table as graphs, with the scaffold split of the whole table.

    The split is made here, of all rows, labelled or not. A molecule that is kept out takes part in it, so that the
    others stand where they would otherwise; it is named in `rejected`, and the log says how many there are.

    For machines without RDKit the folder may have the graphs themselves, in a file such as `moltox21.npz` that
    :meth:`Molecules.save` wrote elsewhere. It comes before the table, and must have the name and the counts of the set.

    Args:
        name: "moltox21" (is it active at the androgen receptor?), "molmuv" (MUV-548, protein kinase A), "molhiv" (does
            it keep HIV from multiplying?) or "molpcba" (PCBA-1030). molpcba cannot be downloaded here: the folder must
            have `molpcba.csv` or `molpcba.csv.gz`, which is `mapping/mol.csv.gz` of the Open Graph Benchmark's
            ogbg-molpcba.
        folder: folder that has the table or the graphs, or a subfolder `molecules` with them; None for MOREAUC_DATA or
            a download.
        strict: whether to keep out molecules with an atom that has more bonds than RDKit permits. Old versions of RDKit
            permit them, and the published counts have them: with RDKit 2026.09 seven of moltox21 and of molhiv each.
        cache: whether to look for graphs made before, by the same version of RDKit from the same file, and to leave
            these for the next time. They are in the folder MOREAUC_CACHE, or the user's cache of the system; where
            that cannot be written there is a warning.
        download: whether the table may be downloaded.
        progress: whether to show bars.
        verify: whether a table in the user's folder must have the right checksum, as one in the cache always must.
            Graphs in the folder are left aside then, and molpcba has no checksum that is known.

    Raises:
        ValueError: for an unknown name, a missing file, or a file that is not the set.
        ModuleNotFoundError: where RDKit is needed and not installed; it names the extra.
    """
    if name not in MOLECULE_SETS:
        raise ValueError(f"{_OWNER}: name must be one of {', '.join(MOLECULE_SETS)}, got {name!r}")
    if verify and name == "molpcba":
        raise ValueError(f"{_OWNER}: verify must be False for molpcba, whose checksum is not known, got {verify!r}")
    molecules = None if verify else _ready_made(name, folder)
    if molecules is None:
        reader = MoleculeReader()
        source = _find(name, folder, download=download, progress=progress, verify=verify)
        molecules = (_cached if cache else _from_table)(name, source, reader, progress)
    if strict:
        molecules = without_rows(molecules, molecules.relaxed)
    for kind, rows in (("kept out", molecules.rejected), ("read without the check of bonds", molecules.relaxed)):
        if rows:
            _log.warning("%s: %s: %d molecules that RDKit rejects are %s: rows %s", _OWNER, name, len(rows), kind, rows)
    return molecules


def scaffold_split(smiles: Sequence[str], *, progress: bool = False) -> ScaffoldSplit:
    """Return the rows of SMILES in three parts of about 80, 10 and 10 %: molecules of one scaffold in one part.

    The scaffold is the SMILES, with chirality, of the rings and what joins them (Bemis and Murcko, 1996). Scaffolds go
    to training, validation and test by how often they come, the rarest to test. What RDKit cannot read is a scaffold of
    its own.

    Args:
        smiles: at least one.
        progress: whether to show a bar.

    Returns:
        Train, validation and test rows, each int64, in the order in which the scaffolds were taken.

    Raises:
        ValueError: for no SMILES, one text instead of several, and what is no text.
        ModuleNotFoundError: where RDKit is not installed; it names the extra.

    Example:
        >>> scaffold_split(["CCO", "c1ccccc1C", "CC", "CCC", "CN", "C1CCCCC1O", "C", "N", "O", "S"])
        ScaffoldSplit(train=array([0, 2, 3, 4, 6, 7, 8, 9]), validation=array([5]), test=array([1]))
    """
    if isinstance(smiles, str) or not hasattr(smiles, "__len__"):
        raise ValueError(f"scaffold_split: smiles must be a sequence of texts, got {smiles!r}")
    for row, text in enumerate(smiles):
        if not isinstance(text, str):
            raise ValueError(f"scaffold_split: smiles must be texts, got {text!r} in row {row}")
    if not len(smiles):
        raise ValueError("scaffold_split: smiles must hold at least one, got none")
    return split_by_group(MoleculeReader().read(smiles, [False] * len(smiles), progress=progress).scaffolds)


def example_molecules(*, num: int = 200, seed: int = 0) -> Molecules:
    """Return small molecules put together of rings and chains; positive are those with an aromatic nitrogen.

    They are for tests and first steps, where no file is needed: something that a network learns in a few epochs.

    Args:
        num: number of molecules, all different, in [30, 2000].
        seed: at least 0; the same seed gives the same molecules (with the same version of NumPy).

    Returns:
        Molecules whose three parts have both classes each.

    Raises:
        ValueError: for an argument out of range.
        ModuleNotFoundError: where RDKit is not installed; it names the extra.
    """
    owner = "example_molecules"
    if check_count(owner, "num", num, minimum=30) > 2000:
        raise ValueError(f"{owner}: num must be an integer of at most 2000, got {num}")
    sequence = np.random.SeedSequence(check_count(owner, "seed", seed, minimum=0))
    reader = MoleculeReader()
    while True:  # nearly always once: with few molecules a part may lack a class
        source = np.random.Generator(np.random.PCG64(sequence.spawn(1)[0]))
        smiles = [every_example()[number] for number in source.permutation(len(every_example()))[:num]]
        labels = [int("n" in text) for text in smiles]
        molecules, _ = make_molecules("examples", smiles, labels, reader)
        if all(0 < int(molecules.part(part).labels.sum()) < len(getattr(molecules, part)) for part in PARTS):
            return molecules


def _in_folder(root: Path, *names: str) -> Path | None:
    places = (base / name for base in (root, root / "molecules") for name in names)
    return next((place for place in places if place.is_file()), None)


def _ready_made(name: str, folder: Path | None) -> Molecules | None:
    """Return the graphs that lie in the user's folder, None where there are none; nothing here needs an extra."""
    from experiments.data.keel import data_folder

    if folder is None and not os.environ.get("MOREAUC_DATA"):
        return None
    place = _in_folder(data_folder(folder), f"{name}.npz")
    if place is None:
        return None
    molecules, known = Molecules.load(place), MOLECULE_SETS[name]
    if molecules.name != name:
        raise ValueError(f"{_OWNER}: {place} must have the molecules of {name}, got those of {molecules.name!r}")
    labels = [molecules.graphs.labels[getattr(molecules, part)] for part in PARTS]
    counts, positives = tuple(len(part) for part in labels), tuple(int(part.sum()) for part in labels)
    # those that were kept out lack here, but not in the published counts; of which part they are is not known
    lacking = [wanted - found for wanted, found in zip(known.counts, counts, strict=True)]
    without = [wanted - found for wanted, found in zip(known.positives or positives, positives, strict=True)]
    possible = all(0 <= few <= many for few, many in zip(without, lacking, strict=True))
    if not possible or sum(lacking) != len(molecules.rejected):
        found = f"{counts} and {positives}, {len(molecules.rejected)} rejected"
        raise ValueError(f"{_OWNER}: {place} must have {_wanted(name)}, but for those that are rejected, got {found}")
    return molecules


def _find(name: str, folder: Path | None, **options: Any) -> Path:
    """Return the path of a table; these imports stand here since graphs in a file can be used without them."""
    from experiments.data.download import find_file
    from experiments.data.keel import data_folder

    file = MOLECULE_SETS[name].file
    if name != "molpcba":
        return find_file(_OWNER, file, folder=folder, **options)
    root = data_folder(folder)
    place = _in_folder(root, file, f"{file}.gz")
    if place is None:
        raise ValueError(
            f"{_OWNER}: molpcba cannot be downloaded by this library; the folder, given or in MOREAUC_DATA, must have "
            f"{file} or {file}.gz, which is mapping/mol.csv.gz of ogbg-molpcba (ogb.stanford.edu), got {str(root)!r}"
        )
    return place


def _cached(name: str, source: Path, reader: MoleculeReader, progress: bool) -> Molecules:
    """As `_from_table`, from the cache where it has them; otherwise they are left there, if that can be done."""
    from experiments.data._prepare import content_sha256
    from experiments.data.download import cache_folder

    checksum = content_sha256(source)
    if checksum == "unreadable":  # as a plain file named .gz, which can be read all the same: a key of many files
        return _from_table(name, source, reader, progress)
    key = f"{name}-{checksum[:16]}-rdkit{reader.version}-format{_FORMAT}.npz"
    try:
        place = cache_folder() / "graphs" / key
    except ModuleNotFoundError as error:
        _warn(error)
        return _from_table(name, source, reader, progress)
    molecules = _from_cache(place)
    if molecules is None:
        molecules = _from_table(name, source, reader, progress)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            molecules.save(place)
        except OSError as error:
            _warn(error)
    return molecules


def _from_cache(place: Path) -> Molecules | None:
    try:
        return Molecules.load(place) if place.is_file() else None
    except ValueError as error:
        _log.warning("%s: %s is damaged and made anew (%s)", _OWNER, place, error)
    except OSError:  # it cannot be read, and very likely not be written: which is told then
        pass
    return None


def _warn(error: Exception) -> None:
    advice = "set MOREAUC_CACHE to a folder that can be written, or cache=False"
    warnings.warn(f"{_OWNER}: graphs could not be cached ({error}); {advice}", stacklevel=4)


def _from_table(name: str, source: Path, reader: MoleculeReader, progress: bool) -> Molecules:
    from experiments.data._molecule_table import read_molecule_table

    smiles, labels = read_molecule_table(_OWNER, source, MOLECULE_SETS[name].target)
    molecules, split = make_molecules(name, smiles, labels, reader, progress)
    _check_counts(name, split, labels)  # those that are kept out counted in
    return molecules


def _check_counts(name: str, split: ScaffoldSplit, labels: Sequence[int | None]) -> None:
    values = np.array([-1 if label is None else label for label in labels])
    counts, positives = (tuple(int((values[part] >= low).sum()) for part in split) for low in (0, 1))
    known = MOLECULE_SETS[name]
    if counts != known.counts or (known.positives is not None and positives != known.positives):
        raise ValueError(f"{_OWNER}: {name} must have {_wanted(name)}, got {counts} and {positives}")


def _wanted(name: str) -> str:
    known = MOLECULE_SETS[name]
    return f"{known.counts} labelled molecules in train, validation and test, {known.positives} of them positive"
