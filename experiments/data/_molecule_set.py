"""Labelled molecules as graphs in three parts, in memory and in files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.data._molecule_features import MoleculeGraph, MoleculeReader
from experiments.data._npz import read_arrays, write_arrays
from experiments.data._scaffolds import ScaffoldSplit, split_by_group
from experiments.data.graphs import GRAPH_FIELDS, Graphs

Part = Literal["train", "validation", "test"]

PARTS: tuple[Part, ...] = ("train", "validation", "test")


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
        rejected: rows of labelled molecules that are kept out, since RDKit makes no molecule of them.
        relaxed: rows of labelled molecules that are there though some atom has more bonds than RDKit permits.

    Example:
        >>> from experiments.data.molecules import example_molecules
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
        """Return the graphs of a part, in the order of the split.

        Raises:
            ValueError: for another part.
        """
        if part not in PARTS:
            raise ValueError(f"Molecules: part must be one of {', '.join(PARTS)}, got {part!r}")
        rows: Tensor = getattr(self, part)
        return self.graphs.subset(rows)

    def save(self, path: Path | str) -> None:
        """Write everything into one compressed `.npz` file, which can be read without RDKit."""
        texts = {"smiles": "\n".join(self.smiles), "name": self.name}
        numbers = {name: np.array(getattr(self, name), dtype=np.int64) for name in ("rejected", "relaxed")}
        tensors = {name: getattr(self, name).numpy(force=True) for name in ("rows", *PARTS)}
        encoded = {name: np.frombuffer(text.encode(), dtype=np.uint8) for name, text in texts.items()}
        write_arrays(path, {**self.graphs.arrays(), **tensors, **numbers, **encoded})

    @classmethod
    def load(cls, path: Path | str) -> Molecules:
        """Return the molecules of a file that :meth:`save` wrote; this needs no RDKit.

        Raises:
            ValueError: for a file that it did not write, or that is damaged.
        """
        names = (*GRAPH_FIELDS, "rows", *PARTS, "rejected", "relaxed", "smiles", "name")
        arrays = read_arrays("Molecules.load", path, names)
        rows, train, validation, test = (torch.from_numpy(arrays[name].astype(np.int64)) for name in ("rows", *PARTS))
        smiles = tuple(arrays["smiles"].tobytes().decode().split("\n"))
        graphs = Graphs.from_arrays(arrays)
        numbers = torch.cat([train, validation, test]).sort().values
        if not len(smiles) == len(rows) == len(graphs) or not numbers.equal(torch.arange(len(graphs))):
            raise ValueError(
                f"Molecules.load: path must have one row, SMILES and part for each graph, got {str(path)!r}"
            )
        left = (tuple(arrays[name].tolist()) for name in ("rejected", "relaxed"))
        return cls(arrays["name"].tobytes().decode(), graphs, rows, smiles, train, validation, test, *left)


def make_molecules(
    name: str, smiles: Sequence[str], labels: Sequence[int | None], reader: MoleculeReader, progress: bool = False
) -> tuple[Molecules, ScaffoldSplit]:
    """Return the molecules that have a label, and the split of all, with those that have none or are kept out.

    Raises:
        ValueError: where no molecule is left.
    """
    reading = reader.read(smiles, [label is not None for label in labels], progress=progress)
    if not reading.graphs:
        raise ValueError(f"load_molecules: {name} must have a labelled molecule that RDKit can read, got none")
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
    parts: dict[str, NDArray[Any]] = {
        "atoms": np.concatenate([graph.atoms for graph in graphs]),
        "edges": np.concatenate([graph.edges for graph in graphs], axis=1),
        "bonds": np.concatenate([graph.bonds for graph in graphs]),
        "nodes": np.array([len(graph.atoms) for graph in graphs]),
        "links": np.array([len(graph.bonds) for graph in graphs]),
        "labels": np.array(labels),
    }
    return Graphs.from_arrays(parts)


def without_rows(molecules: Molecules, rows: Sequence[int]) -> Molecules:
    """Return the molecules without those of some rows of the table, which count as rejected."""
    kept = ~torch.isin(molecules.rows, torch.tensor(rows, dtype=torch.long))
    number = kept.cumsum(0) - 1
    train, validation, test = (
        number[places[kept[places]]] for places in (molecules.train, molecules.validation, molecules.test)
    )
    return replace(
        molecules,
        graphs=molecules.graphs.subset(kept.nonzero().squeeze(1)),
        rows=molecules.rows[kept],
        smiles=tuple(text for text, keep in zip(molecules.smiles, kept.tolist(), strict=True) if keep),
        train=train,
        validation=validation,
        test=test,
        rejected=tuple(sorted({*molecules.rejected, *rows})),
        relaxed=(),
    )
