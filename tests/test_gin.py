"""GIN: against torch_geometric's layer and a loop over graphs, stacked copies, numbering, graphs without edges."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from experiments.data.graphs import ATOM_CATEGORIES, BOND_CATEGORIES, GraphBatches, Graphs
from experiments.models.gin import GIN
from moreauc import TPAUCLoss
from moreauc.samplers import PosNegSampler
from moreauc.train import fit, predict_scores

COPIES = 3


def random_graphs(count: int = 12, seed: int = 0, smallest: int = 1) -> Graphs:
    """Graphs of 1 to 8 nodes with random categories and random bonds, two edges for each."""
    random = torch.Generator().manual_seed(seed)
    nodes = torch.randint(smallest, 9, (count,), generator=random)
    atoms, edges, bonds, links = [], [], [], []
    for size in nodes.tolist():
        atoms.append(torch.stack([torch.randint(0, c, (size,), generator=random) for c in ATOM_CATEGORIES], 1))
        pairs = torch.combinations(torch.arange(size), 2)
        pairs = pairs[torch.rand(len(pairs), generator=random) < 0.4]
        kinds = torch.stack([torch.randint(0, c, (len(pairs),), generator=random) for c in BOND_CATEGORIES], 1)
        edges.append(torch.stack([pairs, pairs.flip(1)], 1).reshape(-1, 2).T)
        bonds.append(kinds.repeat_interleave(2, 0))
        links.append(2 * len(pairs))
    labels = torch.arange(count) % 3 == 0
    return Graphs(torch.cat(atoms).byte(), torch.cat(edges, 1), torch.cat(bonds).byte(), nodes, links, labels)


def looped(model: GIN, atoms, edges, bonds, graph, sizes):
    """The network from its definition, node by node and edge by edge; normalisation from running statistics."""
    starts = torch.tensor([0, *ATOM_CATEGORIES[:-1]]).cumsum(0)
    bond_starts = torch.tensor([0, *BOND_CATEGORIES[:-1]]).cumsum(0)
    width = model.score.in_features
    h = [sum(model.atoms.table[start + c] for start, c in zip(starts, row, strict=True)) for row in atoms]
    for number, layer in enumerate(model.layers):
        sums = [(1 + layer.epsilon) * node for node in h]
        for (source, target), row in zip(edges.T.tolist(), bonds, strict=True):
            table = model.bonds.table[:, number * width : (number + 1) * width]
            kind = sum(table[start + c] for start, c in zip(bond_starts, row, strict=True))
            sums[target] = sums[target] + torch.relu(h[source] + kind)
        h = [layer.norm(layer.transform(node.unsqueeze(0)))[0] for node in sums]
        if number < len(model.layers) - 1:
            h = [torch.relu(node) for node in h]
    scores = []
    for number, size in enumerate(sizes.tolist()):
        total = sum(node for node, owner in zip(h, graph.tolist(), strict=True) if owner == number)
        scores.append(model.score(total / size)[0])
    return torch.stack(scores)


def shaken(model: nn.Module, seed: int = 1) -> nn.Module:
    """All parameters and statistics moved off their initial values, where epsilon is 0 and means are 0."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=random, dtype=parameter.dtype)
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer += 0.3 * torch.rand(buffer.shape, generator=random, dtype=buffer.dtype)
    return model


@pytest.mark.parametrize("layers", [1, 3])
def test_scores_equal_a_loop_over_nodes_and_edges(layers):
    model = shaken(GIN(layers=layers, width=6).double()).eval()
    inputs = random_graphs(5, seed=3).batch(range(5))
    torch.testing.assert_close(model(**inputs), looped(model, **inputs), rtol=1e-12, atol=1e-12)


def test_a_layer_equals_that_of_torch_geometric():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its import compiles scripts
        from torch_geometric.nn import GINEConv

    model = shaken(GIN(layers=2, width=7).double())
    layer = model.layers[1].train()
    inputs = random_graphs(6).batch(range(6))
    features = torch.randn(len(inputs["atoms"]), 7, dtype=torch.float64)
    of_edges = torch.randn(len(inputs["bonds"]), 7, dtype=torch.float64)
    theirs = GINEConv(copy.deepcopy(layer.transform)).double()
    theirs.eps = layer.epsilon.detach()
    theirs.nn.load_state_dict(layer.transform.state_dict())  # it gives the weights new values
    wanted = copy.deepcopy(layer.norm)(theirs(features, inputs["edges"], of_edges))
    torch.testing.assert_close(layer(features, inputs["edges"], of_edges), wanted, rtol=0, atol=1e-10)


def stacked(training: bool):
    singles = [shaken(GIN(layers=3, width=5, dropout=0.0).double().train(training), seed) for seed in range(COPIES)]
    parameters, buffers = stack_module_state(singles)
    shell = copy.deepcopy(singles[0]).to("meta")

    def call(parameters, buffers, *inputs):
        return functional_call(shell, (parameters, buffers), inputs)

    many = vmap(call, in_dims=(0, 0, None, None, None, None, None), randomness="different")
    return singles, parameters, buffers, many


@pytest.mark.parametrize("training", [True, False])
def test_stacked_copies_equal_single_models(training):
    singles, parameters, buffers, many = stacked(training)
    inputs = random_graphs(10, seed=5).batch(range(10))
    for _ in range(2):  # the second call uses what the first did to the statistics
        scores = many(parameters, buffers, *inputs.values())
        wanted = torch.stack([model(**inputs) for model in singles])
        torch.testing.assert_close(scores, wanted, rtol=1e-10, atol=1e-12)
    weights = torch.linspace(-1, 2, scores.numel(), dtype=torch.float64).reshape(scores.shape)
    (scores * weights).sum().backward()
    (wanted * weights).sum().backward()
    for number, model in enumerate(singles):
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameters[name].grad[number], parameter.grad, rtol=1e-8, atol=1e-11)
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(buffers[name][number], buffer, rtol=1e-10, atol=1e-12)
    moved = shaken(GIN(layers=3, width=5).double(), 0)
    for name, buffer in moved.named_buffers():
        assert torch.equal(buffer, buffers[name][0]) is not training, name


def test_molecules_of_one_atom_and_batches_without_edges():
    atoms = torch.zeros(3, 9, dtype=torch.uint8)
    atoms[0, 0] = 5
    none = torch.zeros(2, 0, dtype=torch.long)
    graphs = Graphs(atoms, none, torch.zeros(0, 3, dtype=torch.uint8), [1, 2], [0, 0], [0, 1])
    model = shaken(GIN(layers=2, width=4).double()).eval()
    inputs = graphs.batch([0, 1])
    scores = model(**inputs)
    torch.testing.assert_close(scores, looped(model, **inputs), rtol=1e-12, atol=1e-12)
    assert scores[0].item() != scores[1].item()
    model.train()(**inputs).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_training_with_the_loop_and_a_loss():
    """Atomic number 6 makes a graph positive: something that a few epochs can learn."""
    graphs = random_graphs(60, seed=8)
    atoms = graphs.atoms.clone()
    atoms[:, 0] = torch.where(graphs.labels.repeat_interleave(graphs.nodes) == 1, 6, 7).byte()
    graphs = Graphs(atoms, graphs.edges, graphs.bonds, graphs.nodes, graphs.links, graphs.labels)
    sampler = PosNegSampler(graphs.labels, num_positives=5, num_negatives=10)
    torch.manual_seed(0)
    model = GIN(layers=2, width=16, dropout=0.2)
    criterion = TPAUCLoss(graphs.labels, min_tpr=0.5, max_fpr=0.5, gamma=0.1)
    everything = GraphBatches(graphs, batch_size=17)
    train = GraphBatches(graphs, sampler)
    history = fit(model, criterion, train, validation=everything, epochs=10, lr=0.05, warm_start_epochs=2, seed=0)
    assert history.best_score == 1.0
    scores, labels = predict_scores(model, everything)
    assert torch.equal(labels, graphs.labels) and float(scores[labels == 1].min()) > float(scores[labels == 0].max())
