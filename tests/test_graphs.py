"""Graphs in tensors and their batches: against a loop over graphs, samplers, files, errors."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from experiments.data.graphs import ATOM_CATEGORIES, BOND_CATEGORIES, GraphBatches, Graphs
from experiments.files import read_arrays, write_arrays
from moreauc.samplers import PosNegSampler

FIELDS = ("atoms", "edges", "bonds", "nodes", "links", "labels")


def parts(count: int = 7, seed: int = 0):
    """Graphs one by one: atoms, edges, bonds; the first has one node and no edge."""
    random = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        size = 1 if number == 0 else int(torch.randint(1, 6, (1,), generator=random))
        links = 0 if size == 1 else int(torch.randint(0, 7, (1,), generator=random))
        atoms = torch.stack([torch.randint(0, c, (size,), generator=random) for c in ATOM_CATEGORIES], 1)
        bonds = torch.stack([torch.randint(0, c, (links,), generator=random) for c in BOND_CATEGORIES], 1)
        found.append((atoms, torch.randint(0, size, (2, links), generator=random), bonds))
    return found


def joined(found, **changes) -> Graphs:
    values = {
        "atoms": torch.cat([atoms for atoms, _, _ in found]).byte(),
        "edges": torch.cat([edges for _, edges, _ in found], 1),
        "bonds": torch.cat([bonds for _, _, bonds in found]).byte(),
        "nodes": [len(atoms) for atoms, _, _ in found],
        "links": [len(bonds) for _, _, bonds in found],
        "labels": [number % 3 == 1 for number in range(len(found))],
    }
    return Graphs(**{**values, **changes})


def looped(found, rows):
    """A batch by a loop over its graphs."""
    atoms, edges, bonds, graph, start = [], [], [], [], 0
    for place, row in enumerate(rows):
        atoms.append(found[row][0])
        edges.append(found[row][1] + start)
        bonds.append(found[row][2])
        graph += [place] * len(found[row][0])
        start += len(found[row][0])
    sizes = [len(found[row][0]) for row in rows]
    return {
        "atoms": torch.cat(atoms),
        "edges": torch.cat(edges, 1),
        "bonds": torch.cat(bonds),
        "graph": torch.tensor(graph),
        "sizes": torch.tensor(sizes),
    }


def same(first: Graphs, second: Graphs) -> bool:
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in FIELDS)


@pytest.mark.parametrize("rows", [[3], [0], [0, 0], [6, 2, 0, 5], list(range(7)), torch.tensor([4, 4, 1])])
def test_a_batch_equals_one_by_a_loop(rows):
    found = parts()
    batch, wanted = joined(found).batch(rows), looped(found, [int(row) for row in rows])
    assert list(batch) == ["atoms", "edges", "bonds", "graph", "sizes"]
    for name, value in wanted.items():
        assert torch.equal(batch[name], value) and batch[name].dtype == torch.int64, name


def test_a_subset_is_the_graphs_in_that_order():
    found = parts()
    subset = joined(found).subset(np.array([5, 0, 5]))
    wanted = joined([found[5], found[0], found[5]], labels=[0, 0, 0])
    assert same(subset, wanted)
    for name, value in looped(found, [5, 0]).items():
        assert torch.equal(subset.batch([2, 1])[name], value)
    Graphs(**{name: getattr(subset, name) for name in FIELDS})  # which checks everything


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"atoms": torch.full((21, 9), 3)}, r"atoms must lie in \[0, \[119, 5,.*\]\), column by column"),
        ({"nodes": [1, 2]}, r"nodes must be 7 numbers that add up to \d+, got 2 that add up to 3"),
        ({"links": [9, 9, 9, 9, 9, 9, 9]}, r"links must be 7 numbers that add up to \d+, got 7 that add up to 63"),
    ],
)
def test_wrong_graphs(changes, message):
    with pytest.raises(ValueError, match=f"Graphs: {message}"):
        joined(parts(), **changes)


def check_batches(batches, found, graphs, wanted):
    for (inputs, labels, index), rows in zip(batches, wanted, strict=True):
        assert index.tolist() == list(rows) and labels.tolist() == graphs.labels[list(rows)].tolist()
        for name, value in looped(found, rows).items():
            assert torch.equal(inputs[name], value), name


def test_batches_without_a_sampler_are_all_graphs_in_order():
    found = parts(10)
    graphs = joined(found)
    batches = GraphBatches(graphs, batch_size=4)
    assert len(batches) == 3
    check_batches(batches, found, graphs, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]])
    batches.set_epoch(3)
    batches.set_position(1, 2)
    assert len(list(batches)) == 3 and batches.device == graphs.device


@pytest.mark.parametrize("planned", [True, False])
def test_batches_of_a_sampler(planned):
    found = parts(12)
    graphs = joined(found)
    sampler = PosNegSampler(graphs.labels, num_positives=2, num_negatives=3, seed=5)
    expected = list(sampler)
    batches = GraphBatches(graphs, sampler if planned else expected)
    assert len(batches) == len(sampler)
    for moved in (batches, batches.to("cpu")):
        sampler.set_epoch(0)
        check_batches(moved, found, graphs, expected)


@pytest.mark.parametrize("damage", ["short", "text", "pickle", "other", "flip"])
def test_damaged_files(tmp_path, damage):
    place = tmp_path / "some.npz"
    write_arrays(place, {"a": np.random.default_rng(0).integers(9, size=2000)})
    content = place.read_bytes()
    if damage == "other":
        np.savez_compressed(place, b=np.zeros(3))
    else:
        middle = len(content) // 2
        flipped = (
            content[:middle] + bytes(255 - byte for byte in content[middle : middle + 40]) + content[middle + 40 :]
        )
        wrong = {"short": content[:-100], "text": b"atoms", "pickle": pickle.dumps([1, 2]), "flip": flipped}
        place.write_bytes(wrong[damage])
    with pytest.raises(ValueError, match=r"test: path must be a file that save wrote, got .*some\.npz"):
        read_arrays("test", place, ["a"])
    with pytest.raises(FileNotFoundError):
        read_arrays("test", tmp_path / "nowhere.npz", ["a"])
