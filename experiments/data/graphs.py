"""Many small labelled graphs in a few tensors, and batches of them put together on the device they lie on.

Nodes and edges carry categories, not numbers: those of the Open Graph Benchmark's molecules (Hu et al., Open Graph
Benchmark: Datasets for Machine Learning on Graphs, 2020), nine for an atom and three for a bond.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from moreauc.data.batches import SampledRows

# atomic number, chirality, degree, formal charge, hydrogens, radical electrons, hybridisation, aromatic, in a ring
ATOM_CATEGORIES = (119, 5, 12, 12, 10, 6, 6, 2, 2)
# type, stereo, conjugated
BOND_CATEGORIES = (5, 6, 2)

GRAPH_FIELDS = ("atoms", "edges", "bonds", "nodes", "links", "labels")

GraphBatch = tuple[dict[str, Tensor], Tensor, Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Graphs:
    """Labelled graphs, concatenated, with categories for nodes and edges; all tensors on one device.

    Args:
        atoms: categories of the nodes of all graphs, integers of shape `(V, 9)`; see `ATOM_CATEGORIES`.
        edges: source and target of each directed edge, shape `(2, E)`, as numbers of nodes inside their own graph. A
            bond is two edges, one each way.
        bonds: categories of the edges, shape `(E, 3)`; see `BOND_CATEGORIES`.
        nodes: nodes of each graph, shape `(n,)`, at least 1.
        links: directed edges of each graph, shape `(n,)`, at least 0.
        labels: 0/1 labels of the graphs, shape `(n,)`.

    Example:
        >>> atoms, bonds = torch.zeros(3, 9, dtype=torch.uint8), torch.zeros(2, 3, dtype=torch.uint8)
        >>> graphs = Graphs(atoms, torch.tensor([[0, 1], [1, 0]]), bonds, nodes=[1, 2], links=[0, 2], labels=[0, 1])
        >>> graphs
        Graphs(2 graphs, 1 positive, 3 nodes, 2 edges)
        >>> graphs.batch([1, 1])["edges"]
        tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    """

    atoms: Tensor
    edges: Tensor
    bonds: Tensor
    nodes: Tensor
    links: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        for name in GRAPH_FIELDS:
            value = torch.as_tensor(getattr(self, name))
            # categories are stored as bytes; only those of a batch are converted
            object.__setattr__(self, name, value if name in ("atoms", "bonds") else value.long())
        for name, counts, parts in (("nodes", self.nodes, self.atoms), ("links", self.links, self.bonds)):
            if len(counts) != len(self.labels) or int(counts.sum()) != len(parts):
                found = f"{len(counts)} that add up to {int(counts.sum())}"
                raise ValueError(
                    f"Graphs: {name} must be {len(self.labels)} numbers that add up to {len(parts)}, got {found}"
                )
        for name, values, categories in (
            ("atoms", self.atoms, ATOM_CATEGORIES),
            ("bonds", self.bonds, BOND_CATEGORIES),
        ):
            if bool(((values < 0) | (values >= torch.tensor(categories, device=values.device))).any()):
                raise ValueError(f"Graphs: {name} must lie in [0, {list(categories)}), column by column")
        if bool(((self.edges < 0) | (self.edges >= self.nodes.repeat_interleave(self.links))).any()):
            raise ValueError("Graphs: edges must name nodes of their own graph, got one that does not")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        sizes = f"{len(self.atoms)} nodes, {len(self.bonds)} edges"
        return f"Graphs({len(self)} graphs, {int(self.labels.sum())} positive, {sizes})"

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.labels.device

    @cached_property
    def _first(self) -> tuple[Tensor, Tensor]:
        """The place of the first node and of the first edge of each graph."""
        return self.nodes.cumsum(0) - self.nodes, self.links.cumsum(0) - self.links

    def to(self, device: torch.device | str) -> Graphs:
        """Return the same graphs with the tensors on `device`."""
        return self._made({name: getattr(self, name).to(device) for name in GRAPH_FIELDS})

    def subset(self, rows: Tensor | Sequence[int] | NDArray[Any]) -> Graphs:
        """Return the graphs `rows`, in that order; a row may come several times."""
        index = torch.as_tensor(rows, device=self.device)
        nodes, links = self.nodes[index], self.links[index]
        node, _, _ = _places(self._first[0][index], nodes, int(nodes.sum()))
        edge, _, _ = _places(self._first[1][index], links, int(links.sum()))
        parts = {"atoms": self.atoms[node], "edges": self.edges[:, edge], "bonds": self.bonds[edge]}
        return self._made({**parts, "nodes": nodes, "links": links, "labels": self.labels[index]})

    def batch(self, rows: Tensor | Sequence[int] | NDArray[Any]) -> dict[str, Tensor]:
        """Return the graphs `rows` as one graph of many parts, by the names that `GIN` takes.

        Returns:
            `atoms` `(V, 9)`, `edges` `(2, E)` with nodes numbered through, `bonds` `(E, 3)`, `graph` `(V,)` with the
            place in the batch of each node's graph, ascending, and `sizes` `(B,)`; all int64.
        """
        index = torch.as_tensor(rows, device=self.device)
        return self.joined(index, int(self.nodes[index].sum()), int(self.links[index].sum()))

    def joined(self, rows: Tensor, num_nodes: int, num_edges: int) -> dict[str, Tensor]:
        """As `batch`, for rows on the device and with their counts given, so that nothing forces a synchronization."""
        first_node, first_edge = self._first
        sizes = self.nodes.index_select(0, rows)
        node, graph, offset = _places(first_node.index_select(0, rows), sizes, num_nodes)
        counts = self.links.index_select(0, rows)
        edge, owner, _ = _places(first_edge.index_select(0, rows), counts, num_edges)
        return {
            "atoms": self.atoms.index_select(0, node).long(),
            "edges": self.edges.index_select(1, edge) + offset.index_select(0, owner),
            "bonds": self.bonds.index_select(0, edge).long(),
            "graph": graph,
            "sizes": sizes,
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the tensors as arrays, by name."""
        return {name: getattr(self, name).numpy(force=True) for name in GRAPH_FIELDS}

    @staticmethod
    def _made(parts: dict[str, Tensor]) -> Graphs:
        """Return graphs of parts that need no check."""
        graphs = object.__new__(Graphs)
        graphs.__dict__.update(parts)
        return graphs


class GraphBatches(SampledRows):
    """Loader of `(inputs, labels, index)` batches of graphs; the inputs are those of :meth:`Graphs.batch`, by name.

    With a sampler the batches are those of the sampler; without one they are all graphs in their order, `batch_size` at
    a time, for evaluation. Batches are put together on the device of the graphs, without a synchronization.

    Args:
        graphs: the graphs.
        sampler: iterable over batches of row numbers, such as a :class:`~moreauc.samplers.PosNegSampler` over
            `graphs.labels`; None for all graphs.
        batch_size: graphs of a batch without a sampler, at least 1; the last batch may be smaller.

    Example:
        >>> atoms, bonds = torch.zeros(3, 9, dtype=torch.uint8), torch.zeros(2, 3, dtype=torch.uint8)
        >>> graphs = Graphs(atoms, torch.tensor([[0, 1], [1, 0]]), bonds, nodes=[1, 2], links=[0, 2], labels=[0, 1])
        >>> for inputs, labels, index in GraphBatches(graphs, sampler=[[1, 0]]):
        ...     print(inputs["graph"], inputs["edges"].tolist(), labels, index)
        tensor([0, 0, 1]) [[0, 1], [1, 0]] tensor([1, 0]) tensor([1, 0])
        >>> len(GraphBatches(graphs, batch_size=1))
        2
    """

    def __init__(
        self, graphs: Graphs, sampler: Iterable[Sequence[int]] | None = None, *, batch_size: int = 1024
    ) -> None:
        self.graphs, self.labels = graphs, graphs.labels
        self._take_sampler(sampler, batch_size)
        # on the CPU, so that the sizes of a batch are known without a synchronization
        self._counts = torch.stack([graphs.nodes, graphs.links]).cpu()

    def __iter__(self) -> Iterator[GraphBatch]:
        # fixed now: the position of the sampler may change before the first batch
        return self._tracked(self._gather(self._index()))

    def to(self, device: torch.device | str) -> GraphBatches:
        """Return the same batches, from the same sampler, with the tensors on `device`."""
        return GraphBatches(self.graphs.to(device), self.sampler, batch_size=self.batch_size)

    def _index(self) -> Iterator[tuple[Tensor, int, int]]:
        """Give the rows of each batch on the device, with its nodes and edges."""
        rows = self._rows()
        if isinstance(rows, Tensor):
            return zip(rows.to(self.device), *self._counts[:, rows].sum(2).tolist(), strict=True)
        return (self._counted(batch) for batch in rows)

    def _counted(self, rows: Tensor) -> tuple[Tensor, int, int]:
        nodes, links = self._counts[:, rows].sum(1).tolist()
        return rows.to(self.device), nodes, links

    def _gather(self, index: Iterator[tuple[Tensor, int, int]]) -> Iterator[GraphBatch]:
        for rows, nodes, links in index:
            yield self.graphs.joined(rows, nodes, links), self.labels.index_select(0, rows), rows


def _places(first: Tensor, counts: Tensor, total: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the places `first[i], ..., first[i] + counts[i] - 1` for all `i`, the `i` of each, where each begins."""
    owner = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts, output_size=total)
    begin = counts.cumsum(0) - counts
    return torch.arange(total, device=counts.device) + (first - begin).index_select(0, owner), owner, begin
