r"""Graph isomorphism network for molecules, in plain torch.

With the features :math:`h_v` of the nodes and :math:`e_{uv}` of the edges, a layer is

.. math:: h_v \leftarrow \mathrm{MLP}\Big((1 + \epsilon) h_v + \sum_{u \to v} (h_u + e_{uv})_+\Big),

then batch normalisation, the positive part (not after the last layer) and dropout.

References: Xu, Hu, Leskovec and Jegelka, How Powerful are Graph Neural Networks?, 2019; Hu et al., Strategies for
Pre-training Graph Neural Networks, 2020 (edge features).
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

from experiments.data.graphs import ATOM_CATEGORIES, BOND_CATEGORIES


class GIN(nn.Module):
    """Network for graphs with categories at nodes and edges, batches of :class:`~experiments.data.graphs.GraphBatches`.

    The features of a node are the sum of one learned vector for each of its nine categories; so are those of an edge,
    from three categories, with own vectors in each layer. All sums over edges and nodes are `index_add`, which torch
    can do in a fixed order (`torch.use_deterministic_algorithms`), and the module works under `torch.func.vmap` with
    stacked parameters and buffers.

    Args:
        layers: number of layers.
        width: features of a node.
        dropout: probability to drop a feature after each layer in training.

    Shape:
        - atoms: `(V, 9)`, int64
        - edges: `(2, E)`, int64: source and target, nodes numbered through all graphs; E may be 0
        - bonds: `(E, 3)`, int64
        - graph: `(V,)`, int64: the graph of each node, in [0, B)
        - sizes: `(B,)`, int64: nodes of each graph
        - output: `(B,)`, raw scores

    Example:
        >>> from experiments.data.graphs import Graphs
        >>> atoms, bonds = torch.zeros(3, 9, dtype=torch.uint8), torch.zeros(2, 3, dtype=torch.uint8)
        >>> graphs = Graphs(atoms, torch.tensor([[0, 1], [1, 0]]), bonds, nodes=[1, 2], links=[0, 2], labels=[0, 1])
        >>> GIN()(**graphs.batch([0, 1])).shape
        torch.Size([2])
        >>> sum(p.numel() for p in GIN().parameters())
        100166
    """

    def __init__(self, *, layers: int = 5, width: int = 64, dropout: float = 0.5) -> None:
        super().__init__()
        self.atoms = _Categories(ATOM_CATEGORIES, width)
        # one table for the edges of all layers, side by side
        self.bonds = _Categories(BOND_CATEGORIES, width, copies=layers)
        self.layers = nn.ModuleList(_Layer(width) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.score = nn.Linear(width, 1)

    def forward(self, atoms: Tensor, edges: Tensor, bonds: Tensor, graph: Tensor, sizes: Tensor) -> Tensor:
        """Return one raw score for each graph."""
        features: Tensor = self.atoms(atoms)
        of_edges = self.bonds(bonds).chunk(len(self.layers), dim=1)
        for number, layer in enumerate(self.layers):
            features = layer(features, edges, of_edges[number])
            if number < len(self.layers) - 1:
                features = torch.relu(features)
            features = self.dropout(features)
        # the score is linear, so the mean score of the nodes is the score of the mean node, at a fraction of the cost
        of_nodes = features @ self.score.weight[0]
        sums = of_nodes.new_zeros(len(sizes)).index_add(0, graph, of_nodes)
        return sums / sizes + self.score.bias


class _Categories(nn.Module):
    """Sum of a vector for each category, from one table for all features.

    The rows of the table that a node or an edge has are marked by ones in a matrix, and summed by a product with it:
    one kernel forward and backward, in a fixed order; a lookup would add thousands of nodes to a few rows in backward.
    """

    def __init__(self, categories: tuple[int, ...], width: int, copies: int = 1) -> None:
        super().__init__()
        self.categories = categories
        self.table = nn.Parameter(torch.empty(sum(categories), copies * width))
        with torch.no_grad():
            for block in torch.split(self.table, list(categories)):
                for part in torch.split(block, width, dim=1):
                    nn.init.xavier_uniform_(part)

    def forward(self, values: Tensor) -> Tensor:
        marks = self.table.new_zeros(len(values), sum(self.categories))
        return marks.scatter(1, _rows(self.categories, values), 1.0) @ self.table


def _rows(categories: tuple[int, ...], values: Tensor) -> Tensor:
    """Return the rows of the table that categories have, shape `(V, features)`."""
    if torch.compiler.is_compiling():  # numbers are free here; a constant tensor would be copied to the device
        return torch.stack([values[:, k] + sum(categories[:k]) for k in range(len(categories))], dim=1)
    return values + _offsets(categories, values.device)


@lru_cache
def _offsets(categories: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the first row of each feature in the table; not a buffer, which every copy of a model would have."""
    with torch.inference_mode(False):
        return torch.tensor([0, *categories[:-1]], device=device).cumsum(0)


class _Layer(nn.Module):
    """Sum of the messages of the neighbours and the node's own features, transformed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.epsilon = nn.Parameter(torch.zeros(()))
        self.transform = nn.Sequential(
            nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )
        self.norm = nn.BatchNorm1d(width)

    def forward(self, features: Tensor, edges: Tensor, of_edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        messages = torch.relu(features.index_select(0, source) + of_edges)
        sums = ((1.0 + self.epsilon) * features).index_add(0, target, messages)
        result: Tensor = self.norm(self.transform(sums))
        return result
