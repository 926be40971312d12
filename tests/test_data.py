"""Row numbers that stay with their rows, from data sets, graphs and tensors."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, Subset, TensorDataset

from moreauc.data import IndexedDataset, TensorBatches
from moreauc.samplers import PosNegSampler

LABELS = [0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 1]
INPUTS = torch.arange(22.0).reshape(11, 2)


class Pairs(Sequence):
    """A list of pairs that counts how often it is read."""

    def __init__(self, items):
        self.items, self.reads = items, 0

    def __len__(self):
        return len(self.items)

    def __getitem__(self, row):
        self.reads += 1
        return self.items[row]


def pairs() -> TensorDataset:
    return TensorDataset(INPUTS, torch.tensor(LABELS))


@pytest.mark.parametrize("form", [int, bool, float, np.int64, torch.tensor, lambda v: torch.tensor([v])])
def test_items_of_pairs_with_labels_of_any_form(form):
    dataset = IndexedDataset([(f"row {i}", form(label)) for i, label in enumerate(LABELS)])
    assert len(dataset) == 11
    assert [dataset[i] for i in range(11)] == [(f"row {i}", label, i) for i, label in enumerate(LABELS)]
    assert all(type(dataset[4][k]) is int for k in (1, 2))
    assert dataset.labels.dtype == torch.long and dataset.labels.tolist() == LABELS


@pytest.mark.parametrize("form", [list, np.array, torch.tensor, lambda v: torch.tensor(v).bool()])
def test_items_with_labels_given_are_inputs_only(form):
    rows = [(f"row {i}", "more") for i in range(11)]
    dataset = IndexedDataset(rows, form(LABELS))
    assert [dataset[i] for i in range(11)] == list(zip(rows, LABELS, range(11), strict=True))
    assert dataset.labels.dtype == torch.long and dataset.labels.tolist() == LABELS


def test_labels_are_read_once_and_only_when_asked_for():
    source = Pairs([(i, label) for i, label in enumerate(LABELS)])
    dataset = IndexedDataset(source)
    assert source.reads == 0
    assert dataset.labels.tolist() == dataset.labels.tolist() == LABELS
    assert source.reads == 11
    given = IndexedDataset(source, LABELS)
    assert given.labels.tolist() == LABELS and source.reads == 11


def test_numbers_from_the_end_and_beyond_it():
    dataset = IndexedDataset(pairs())
    assert dataset[-1][1:] == (1, 10) and dataset[torch.tensor(3)][2] == 3
    assert [item[2] for item in dataset] == list(range(11))  # a plain loop ends
    for bad in (11, -12):
        with pytest.raises(IndexError, match=rf"IndexedDataset: index must lie in \[-11, 11\), got {bad}"):
            dataset[bad]


def test_the_order_of_wrapping_decides_the_numbering():
    rows = [9, 4, 6]
    kept, counted = Subset(IndexedDataset(pairs()), rows), IndexedDataset(Subset(pairs(), rows))
    assert [kept[i][1:] for i in range(3)] == [(0, 9), (1, 4), (1, 6)]
    assert [counted[i][1:] for i in range(3)] == [(0, 0), (1, 1), (1, 2)]
    assert counted.labels.tolist() == [0, 1, 1]
    inputs, labels, index = next(iter(DataLoader(kept, batch_size=3)))
    assert torch.equal(inputs, INPUTS[rows]) and labels.tolist() == [0, 1, 1] and index.tolist() == rows


def test_workers_collate_inputs_labels_and_numbers():
    dataset = IndexedDataset(INPUTS, LABELS)
    batches = list(DataLoader(dataset, batch_size=4, num_workers=2))
    assert [index.tolist() for _, _, index in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    for inputs, labels, index in batches:
        assert torch.equal(inputs, INPUTS[index]) and labels.tolist() == dataset.labels[index].tolist()
        assert labels.dtype == index.dtype == torch.long


def test_graphs_through_the_loader_of_pyg():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its import compiles scripts
        from torch_geometric.data import Data
        from torch_geometric.loader import DataLoader as GraphLoader
    graphs = []
    for i, label in enumerate(LABELS):
        nodes = i % 3 + 2
        edges = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])
        graphs.append(Data(x=torch.full((nodes, 1), float(i)), edge_index=edges, y=torch.tensor([label])))
    dataset = IndexedDataset(graphs, LABELS)
    sampler = PosNegSampler(dataset.labels, num_positives=2, num_negatives=3)
    loader = GraphLoader(dataset, batch_sampler=sampler)
    assert len(loader) == len(sampler) == 3
    for step, (batch, labels, index) in enumerate(loader):
        expected = sampler.batch(0, step).tolist()
        assert index.tolist() == expected and labels.tolist() == [1, 1, 0, 0, 0] == batch.y.tolist()
        assert batch.num_graphs == 5
        assert batch.x.squeeze(1).tolist() == [float(i) for i in expected for _ in range(i % 3 + 2)]
        assert batch.ptr.diff().tolist() == [i % 3 + 2 for i in expected]


@pytest.mark.parametrize(
    ("dataset", "labels", "match"),
    [
        (iter([]), None, r"dataset must have items and a length, got list_iterator"),
        ([], None, r"dataset must hold at least one item, got 0"),
        ([1, 2, 3], [0, 1], r"labels must be as long as dataset, 3, got 2"),
        ([1, 2], [0, 3], r"labels must be 0 or 1, got 3"),
    ],
)
def test_bad_data_sets(dataset, labels, match):
    with pytest.raises(ValueError, match=f"IndexedDataset: {match}"):
        IndexedDataset(dataset, labels)


@pytest.mark.parametrize(
    ("item", "match"),
    [
        (7, r"dataset must have items \(inputs, label\) where labels is None, got a int at 1"),
        ((7, 1, 1), r"dataset must have items \(inputs, label\) where labels is None, got a tuple of 3 at 1"),
        ((7, 0.5), r"labels must be 0 or 1, got 0.5 at 1"),
        ((7, [0, 1]), r"labels must be 0 or 1, got \[0, 1\] at 1"),
    ],
)
def test_bad_items(item, match):
    dataset = IndexedDataset([(7, 0), item])
    with pytest.raises(ValueError, match=f"IndexedDataset: {match}"):
        dataset[1]
    with pytest.raises(ValueError, match=f"IndexedDataset: {match}"):
        _ = dataset.labels


def sampler() -> PosNegSampler:
    return PosNegSampler(LABELS, num_positives=2, num_negatives=3, seed=2)


def check_batches(batches, expected):
    found = list(batches)
    assert [index.tolist() for _, _, index in found] == expected
    for inputs, labels, index in found:
        assert torch.equal(inputs, INPUTS[index]) and labels.tolist() == [LABELS[i] for i in index]
        assert labels.dtype == index.dtype == torch.long


def test_tensor_batches_are_those_of_the_sampler():
    batches, expected = TensorBatches(INPUTS, LABELS, sampler()), sampler()
    assert len(batches) == len(expected) == 3
    for epoch in (0, 4):
        batches.set_epoch(epoch), expected.set_epoch(epoch)
        check_batches(batches, list(expected))
    batches.set_position(4, 2), expected.set_position(4, 2)
    check_batches(batches, list(expected))
    batches.set_epoch(5), expected.set_epoch(5)
    check_batches(batches, list(expected))


def test_tensor_batches_keep_their_place_while_the_position_moves():
    batches, expected = TensorBatches(INPUTS, LABELS, sampler()), list(sampler())
    running = iter(batches)
    batches.set_position(3, 1)
    check_batches(running, expected)


@pytest.mark.parametrize("batch_size", [1, 4, 11, 100])
def test_tensor_batches_without_a_sampler_are_all_rows_in_order(batch_size):
    batches = TensorBatches(INPUTS, LABELS, batch_size=batch_size)
    expected = [list(range(i, min(i + batch_size, 11))) for i in range(0, 11, batch_size)]
    batches.set_epoch(3), batches.set_position(3, 1)  # nothing to resume
    assert len(batches) == len(expected)
    check_batches(batches, expected)


class Plain:
    """The least a sampler can be."""

    def __iter__(self):
        return iter([[3, 0], (4,), np.array([1, 1, 10]), torch.tensor([2])])


def test_tensor_batches_take_other_samplers():
    plain = TensorBatches(INPUTS, LABELS, Plain())
    plain.set_epoch(1)
    check_batches(plain, [[3, 0], [4], [1, 1, 10], [2]])
    other = BatchSampler(SequentialSampler(LABELS), 4, drop_last=True)
    check_batches(TensorBatches(INPUTS, LABELS, other), [[0, 1, 2, 3], [4, 5, 6, 7]])
    assert len(TensorBatches(INPUTS, LABELS, other)) == 2


def test_tensor_batches_are_copies():
    inputs = INPUTS.clone()
    for part, labels, index in TensorBatches(inputs, LABELS, batch_size=11):
        part.zero_(), labels.zero_(), index.zero_()
    batches = TensorBatches(inputs, LABELS, sampler())
    for part, _, index in batches:
        part.zero_(), index.zero_()
    assert torch.equal(inputs, INPUTS)
    batches.set_epoch(0)
    check_batches(batches, list(sampler()))


@pytest.mark.parametrize("form", [tuple, list, dict])
def test_tensor_batches_of_several_tensors(form):
    parts = {"x": INPUTS, "z": torch.arange(11)}
    batches = TensorBatches(parts if form is dict else form(parts.values()), LABELS, sampler())
    for inputs, _, index in batches:
        assert isinstance(inputs, dict if form is dict else tuple)
        if form is dict:
            assert list(inputs) == ["x", "z"]
        x, z = inputs.values() if form is dict else inputs
        assert torch.equal(x, INPUTS[index]) and torch.equal(z, index)


@pytest.mark.parametrize("form", ["tensor", "tuple", "dict"])
@pytest.mark.parametrize("make_sampler", [sampler, Plain, lambda: None], ids=["planned", "plain", "none"])
def test_tensor_batches_move(form, make_sampler):
    """The meta device stands for any other: operations between two devices fail there as well."""
    inputs = {"tensor": INPUTS, "tuple": (INPUTS, INPUTS), "dict": {"x": INPUTS}}[form]
    batches = TensorBatches(inputs, LABELS, make_sampler(), batch_size=4)
    moved = batches.to("meta")
    assert moved.device.type == "meta" and batches.device.type == "cpu" and moved.sampler is batches.sampler
    here = list(batches)
    batches.set_epoch(0)
    there = list(moved)
    assert len(here) == len(there) > 0
    for (_, labels, index), (part, other_labels, other_index) in zip(here, there, strict=True):
        first = part if form == "tensor" else next(iter(part.values() if form == "dict" else part))
        assert first.device.type == other_labels.device.type == other_index.device.type == "meta"
        assert first.shape == (len(index), 2) and other_labels.shape == labels.shape


@pytest.mark.parametrize(
    ("args", "kwargs", "match"),
    [
        ((INPUTS.numpy(), LABELS), {}, r"inputs must be a tensor, or a tuple or dict of tensors, got ndarray"),
        (((INPUTS, 3), LABELS), {}, r"inputs must be a tensor, or a tuple or dict of tensors, got int"),
        (((), LABELS), {}, r"inputs must be a tensor, or a tuple or dict of tensors, got an empty tuple"),
        ((torch.tensor(1.0), LABELS), {}, r"inputs must have rows and lie on one device, cpu, got 0 dimensions on cpu"),
        (((INPUTS, INPUTS.to("meta")), LABELS), {}, r"inputs must have rows .*, cpu, got 2 dimensions on meta"),
        (((INPUTS, INPUTS[:5]), LABELS), {}, r"inputs must have as many rows as labels, 11, got 5"),
        ((INPUTS, LABELS[:5]), {}, r"inputs must have as many rows as labels, 5, got 11"),
        ((INPUTS[:2], [0, 2]), {}, r"labels must be 0 or 1, got 2"),
        ((INPUTS, LABELS, 5), {}, r"sampler must be an iterable over batches, got int"),
        ((INPUTS, LABELS), {"batch_size": 0}, r"batch_size must be an integer of at least 1, got 0"),
    ],
)
def test_bad_tensors(args, kwargs, match):
    with pytest.raises(ValueError, match=f"TensorBatches: {match}"):
        TensorBatches(*args, **kwargs)


@pytest.mark.parametrize(
    ("bad", "match"),
    [(PosNegSampler([*LABELS, 0], num_positives=1, num_negatives=8), r"got 11"), ([[0, 1], [3, 12]], r"got 12")],
    ids=["planned", "beyond"],
)
def test_rows_of_other_data_are_refused(bad, match):
    with pytest.raises(ValueError, match=rf"TensorBatches: sampler must give rows in \[0, 11\), {match}"):
        list(TensorBatches(INPUTS, LABELS, bad))


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([[True, False, True]], "sampler must give integers, got torch.bool"),
        ([[1.0, 2.5]], "sampler must give integers, got torch.float32"),
        ([3, 1], "sampler must give batches of rows, got 3"),
        ([torch.tensor([[1], [2]])], "sampler must give batches of rows, got a Tensor"),
    ],
)
def test_batches_that_are_no_row_numbers_are_refused(batches, message):
    """A mask would be taken for rows 0 and 1, again and again."""
    with pytest.raises(ValueError, match=f"TensorBatches: {message}$"):
        list(TensorBatches(INPUTS, LABELS, batches))


def test_a_sampler_that_cannot_resume_says_so():
    with pytest.raises(ValueError, match=r"TensorBatches: sampler must have set_position, got Plain without"):
        TensorBatches(INPUTS, LABELS, Plain()).set_position(0, 2)
