"""Molecules with a 0/1 property, as graphs, split by scaffold: public tables, and a small set made here.

References: Wu et al., MoleculeNet: A Benchmark for Molecular Machine Learning, 2018; Hu et al., Open Graph Benchmark:
Datasets for Machine Learning on Graphs, 2020.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.data._archives import content_sha256
from experiments.data.download import cache_folder, data_folder, find_file, from_folder, in_folder
from experiments.data.graphs import GRAPH_FIELDS, Graphs
from experiments.data.smiles import (
    MoleculeGraph,
    MoleculeReader,
    ScaffoldSplit,
    example_smiles,
    read_smiles_table,
    split_by_group,
)
from experiments.files import read_arrays, write_arrays

Part = Literal["train", "validation", "test"]

PARTS: tuple[Part, ...] = ("train", "validation", "test")
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


@dataclass(frozen=True, eq=False, repr=False)
class Molecules:
    """Labelled molecules as graphs, in three parts.

    Attributes:
        name: what they are called.
        graphs: the molecules, with their labels.
        rows: the row of each in the table they come from, ascending, int64 of shape `(n,)`.
        smiles: the SMILES of each.
        train: numbers of graphs to train on, int64, in the order of the split; `rows[train]` are rows of the table.
        validation: numbers of graphs to choose by.
        test: numbers of graphs to report on.
        rejected: rows of labelled molecules that are left out, since RDKit cannot read them.
        relaxed: rows of labelled molecules with an atom that has more bonds than RDKit permits.

    Example:
        >>> molecules = example_molecules()
        >>> molecules
        Molecules('examples': 200 molecules, 105 positive; 160 train, 20 validation, 20 test; 0 rejected, 0 relaxed)
        >>> molecules.part("test")
        Graphs(20 graphs, 15 positive, 331 nodes, 708 edges)
    """

    name: str
    graphs: Graphs
    rows: Tensor
    smiles: tuple[str, ...]
    train: Tensor
    validation: Tensor
    test: Tensor
    rejected: tuple[int, ...] = ()
    relaxed: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.graphs)

    def __repr__(self) -> str:
        parts = ", ".join(f"{len(getattr(self, part))} {part}" for part in PARTS)
        kept = f"{len(self)} molecules, {int(self.graphs.labels.sum())} positive"
        return f"Molecules({self.name!r}: {kept}; {parts}; {len(self.rejected)} rejected, {len(self.relaxed)} relaxed)"

    def part(self, part: Part) -> Graphs:
        """Return the graphs of a part, in the order of the split."""
        return self.graphs.subset(getattr(self, part))

    def save(self, path: Path | str) -> None:
        """Write everything into one compressed `.npz` file, which can be read without RDKit."""
        texts = {"smiles": "\n".join(self.smiles), "name": self.name}
        numbers = {name: np.array(getattr(self, name), dtype=np.int64) for name in ("rejected", "relaxed")}
        tensors = {name: getattr(self, name).numpy(force=True) for name in ("rows", *PARTS)}
        encoded = {name: np.frombuffer(text.encode(), dtype=np.uint8) for name, text in texts.items()}
        write_arrays(path, {**self.graphs.arrays(), **tensors, **numbers, **encoded})

    @classmethod
    def load(cls, path: Path | str) -> Molecules:
        """Return the molecules of a file that :meth:`save` wrote; another or a damaged file is a ValueError."""
        names = (*GRAPH_FIELDS, "rows", *PARTS, "rejected", "relaxed", "smiles", "name")
        arrays = read_arrays("Molecules.load", path, names)
        rows, train, validation, test = (torch.from_numpy(arrays[name].astype(np.int64)) for name in ("rows", *PARTS))
        smiles = tuple(arrays["smiles"].tobytes().decode().split("\n"))
        graphs = Graphs(**{name: torch.from_numpy(arrays[name]) for name in GRAPH_FIELDS})
        numbers = torch.cat([train, validation, test]).sort().values
        if not len(smiles) == len(rows) == len(graphs) or not numbers.equal(torch.arange(len(graphs))):
            wanted = "one row, SMILES and part for each graph"
            raise ValueError(f"Molecules.load: path must have {wanted}, got {str(path)!r}")
        left = (tuple(arrays[name].tolist()) for name in ("rejected", "relaxed"))
        return cls(arrays["name"].tobytes().decode(), graphs, rows, smiles, train, validation, test, *left)


def make_molecules(
    name: str, smiles: Sequence[str], labels: Sequence[int | None], reader: MoleculeReader
) -> tuple[Molecules, ScaffoldSplit]:
    """Return the molecules that have a label, and the split of all rows, labelled or not."""
    reading = reader.read(smiles, [label is not None for label in labels])
    if not reading.graphs:
        raise ValueError(f"{_OWNER}: {name} must have a labelled molecule that RDKit can read, got none")
    split = split_by_group(reading.scaffolds)
    rejected = set(reading.rejected)
    rows = [row for row, label in enumerate(labels) if label is not None and row not in rejected]
    number = np.full(len(labels), -1)
    number[rows] = np.arange(len(rows))
    train, validation, test = (torch.from_numpy(places[places >= 0]) for places in (number[part] for part in split))
    molecules = Molecules(
        name,
        _joined(reading.graphs, [labels[row] for row in rows]),
        torch.tensor(rows),
        tuple(smiles[row] for row in rows),
        train,
        validation,
        test,
        tuple(reading.rejected),
        tuple(reading.relaxed),
    )
    return molecules, split


def _joined(graphs: Sequence[MoleculeGraph], labels: Sequence[Any]) -> Graphs:
    atoms, bonds = ([getattr(graph, name) for graph in graphs] for name in ("atoms", "bonds"))
    edges = torch.from_numpy(np.concatenate([graph.edges for graph in graphs], axis=1))
    joined = (torch.from_numpy(np.concatenate(parts)) for parts in (atoms, bonds))
    nodes, links = (torch.tensor([len(own) for own in parts]) for parts in (atoms, bonds))
    return Graphs(next(joined), edges, next(joined), nodes, links, torch.tensor(labels))


def load_molecules(name: str, folder: Path | None = None, *, verify: bool = False) -> Molecules:
    """Return the labelled molecules of a public table as graphs, with the scaffold split of the whole table.

    A molecule that is left out takes part in the split, so that the others stand where they would otherwise; it is
    named in `rejected`, and the log says how many there are. Molecules with an atom that has more bonds than RDKit
    permits are kept: old versions of RDKit permit them, and the published counts have them.

    Graphs made before, by the same version of RDKit from the same file, are read from the cache folder; where that
    cannot be written there is a warning. For machines without RDKit the user's folder may have the graphs themselves,
    in a file such as `moltox21.npz` that :meth:`Molecules.save` wrote elsewhere; it comes before the table, and must
    have the name and the counts of the set.

    Args:
        name: "moltox21" (is it active at the androgen receptor?), "molmuv" (MUV-548, protein kinase A), "molhiv" (does
            it keep HIV from multiplying?) or "molpcba" (PCBA-1030). molpcba cannot be downloaded here: the folder must
            have `molpcba.csv` or `molpcba.csv.gz`, which is `mapping/mol.csv.gz` of the Open Graph Benchmark's
            ogbg-molpcba (ogb.stanford.edu).
        folder: folder that has the table or the graphs, or a subfolder `molecules` with them; None for MOREAUC_DATA or
            a download.
        verify: whether a table in the user's folder must have the right checksum. Graphs in the folder are not used
            then, and molpcba has no known checksum.

    Raises:
        ValueError: for an unknown name, a missing file, or a file that is not the set.
    """
    if name not in MOLECULE_SETS:
        raise ValueError(f"{_OWNER}: name must be one of {', '.join(MOLECULE_SETS)}, got {name!r}")
    if verify and name == "molpcba":
        raise ValueError(f"{_OWNER}: verify must be False for molpcba, whose checksum is not known, got {verify!r}")
    molecules = None if verify else _ready_made(name, folder)
    if molecules is None:
        molecules = _cached(name, _find(name, folder, verify), MoleculeReader())
    for kind, rows in (("left out", molecules.rejected), ("read without the valence check", molecules.relaxed)):
        if rows:
            _log.warning("%s: %s: %d molecules that RDKit rejects are %s: rows %s", _OWNER, name, len(rows), kind, rows)
    return molecules


def _ready_made(name: str, folder: Path | None) -> Molecules | None:
    """Return the graphs in the user's folder, None where there are none."""
    if folder is None and not os.environ.get("MOREAUC_DATA"):
        return None
    place = in_folder(data_folder(folder), "molecules", f"{name}.npz")
    if place is None:
        return None
    molecules, known = Molecules.load(place), MOLECULE_SETS[name]
    if molecules.name != name:
        raise ValueError(f"{_OWNER}: {place} must have the molecules of {name}, got those of {molecules.name!r}")
    labels = [molecules.part(part).labels for part in PARTS]
    counts, positives = tuple(map(len, labels)), tuple(int((part == 1).sum()) for part in labels)
    # rejected ones are missing here, but not in the published counts; which part they are of is not known
    lacking = np.subtract(known.counts, counts)
    without = np.subtract(known.positives or positives, positives)
    if ((without < 0) | (without > lacking)).any() or lacking.sum() != len(molecules.rejected):
        found = f"{counts} and {positives}, {len(molecules.rejected)} rejected"
        raise ValueError(f"{_OWNER}: {place} must have {_wanted(name)}, but for those that are rejected, got {found}")
    return molecules


def _find(name: str, folder: Path | None, verify: bool) -> Path:
    file = MOLECULE_SETS[name].file
    if name == "molpcba":
        return from_folder(_OWNER, folder, "molecules", file, f"{file}.gz")
    return find_file(_OWNER, file, folder, verify=verify)


def _cached(name: str, source: Path, reader: MoleculeReader) -> Molecules:
    """As `_from_table`, from the cache where it has them; otherwise they are written there, if that can be done."""
    checksum = content_sha256(source)
    if checksum == "unreadable":  # such as a plain file named .gz: readable, but without a key of its own
        return _from_table(name, source, reader)
    file = f"{name}-{checksum[:16]}-rdkit{reader.version}-format{_FORMAT}.npz"
    try:
        return Molecules.load(cache_folder() / "graphs" / file)
    except ValueError as error:
        _log.warning("%s: %s in the cache is damaged and written again (%s)", _OWNER, file, error)
    except (OSError, ModuleNotFoundError):  # not there, or not to be read and then not written either, which is said
        pass
    molecules = _from_table(name, source, reader)
    try:
        place = cache_folder() / "graphs" / file
        place.parent.mkdir(parents=True, exist_ok=True)
        molecules.save(place)
    except (OSError, ModuleNotFoundError) as error:
        advice = "set MOREAUC_CACHE to a folder that can be written"
        warnings.warn(f"{_OWNER}: graphs could not be cached ({error}); {advice}", stacklevel=3)
    return molecules


def _from_table(name: str, source: Path, reader: MoleculeReader) -> Molecules:
    smiles, labels = read_smiles_table(_OWNER, source, MOLECULE_SETS[name].target)
    molecules, split = make_molecules(name, smiles, labels, reader)
    values = np.array([-1 if label is None else label for label in labels])  # rejected ones included
    counts, positives = (tuple(int((values[part] >= low).sum()) for part in split) for low in (0, 1))
    known = MOLECULE_SETS[name]
    if counts != known.counts or (known.positives is not None and positives != known.positives):
        raise ValueError(f"{_OWNER}: {name} must have {_wanted(name)}, got {counts} and {positives}")
    return molecules


def _wanted(name: str) -> str:
    known = MOLECULE_SETS[name]
    return f"{known.counts} labelled molecules in train, validation and test, {known.positives} of them positive"


def example_molecules(*, num: int = 200, seed: int = 0) -> Molecules:
    """Return small molecules put together of rings and chains; positive are those with an aromatic nitrogen.

    They are for tests and first steps: a network learns them in a few epochs. Each part has both classes. The molecules
    are all different, 30 to 2000 of them; the same seed gives the same ones (with the same version of NumPy).
    """
    sequence = np.random.SeedSequence(seed)
    reader = MoleculeReader()
    while True:  # nearly always once: with few molecules a part may lack a class
        source = np.random.Generator(np.random.PCG64(sequence.spawn(1)[0]))
        smiles = [example_smiles()[number] for number in source.permutation(len(example_smiles()))[:num]]
        labels = [int("n" in text) for text in smiles]
        molecules, _ = make_molecules("examples", smiles, labels, reader)
        if all(0 < int(molecules.part(part).labels.sum()) < len(getattr(molecules, part)) for part in PARTS):
            return molecules
