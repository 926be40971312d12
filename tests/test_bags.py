"""Bags of all kinds hold the same instances; bad ones are refused, and files are read only where asked."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch

from moreauc.data import Bags, FileBags, FlatBags, ListBags, SampledBags, bag_scores

SIZES = [3, 1, 5, 2]
LABELS = [0, 1, 1, 0]
KINDS = ["list", "arrays", "flat", "array", "mapped", "ids", "mixed ids", "files", "columns", "padded", "subset"]


def arrays(kind=np.float32, shape=(2,)) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [(100 * random.random((size, *shape))).astype(kind) for size in SIZES]


def save(folder, parts, order="C") -> list:
    paths = [folder / f"{i}.npy" for i in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        np.save(path, np.asarray(part, order=order))
    return paths


def mapped(folder, array) -> np.memmap:
    np.save(folder / "flat.npy", array)
    return np.load(folder / "flat.npy", mmap_mode="r")


def make(kind: str, parts: list[np.ndarray], folder) -> Bags:
    flat, offsets = np.concatenate(parts), np.cumsum([0, *(len(part) for part in parts)])
    ids = np.repeat(["d", "c", "b", "a"], SIZES)
    if kind == "list":
        return ListBags([torch.from_numpy(part) for part in parts], LABELS)
    if kind == "arrays":
        return ListBags(parts, np.array(LABELS))
    if kind == "flat":
        return FlatBags(torch.from_numpy(flat), offsets.tolist(), torch.tensor(LABELS))
    if kind == "array":
        return FlatBags(flat, offsets, LABELS)
    if kind == "mapped":
        return FlatBags(mapped(folder, flat), torch.from_numpy(offsets), LABELS)
    if kind == "ids":
        return FlatBags.from_ids(flat, ids, dict(zip("dcbae", [*LABELS, 1], strict=True)))
    if kind == "mixed ids":
        order = np.array([0, 3, 1, 4, 5, 9, 6, 2, 7, 10, 8])  # each bag first appears after the one before it
        return FlatBags.from_ids(mapped(folder, flat[order]), list(ids[order]), np.repeat(LABELS, SIZES)[order])
    if kind in ("files", "columns"):
        return FileBags(save(folder, parts, "C" if kind == "files" else "F"), LABELS)
    if kind == "padded":
        inputs = np.full((4, 6, *flat.shape[1:]), 77, dtype=flat.dtype)
        mask = np.zeros((4, 6), dtype=bool)
        for bag, part in enumerate(parts):
            mask[bag, 6 - len(part) :] = True
            inputs[bag, mask[bag]] = part
        return ListBags.from_padded(inputs, mask, LABELS)
    twice = ListBags([parts[i] for i in (2, 0, 3, 0, 1)], [1, 0, 0, 0, 1])
    return twice.subset([4, 3, 2, 1, 0]).subset(torch.tensor([3, 0, 4, 2]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [np.float32, np.float64, np.float16, np.uint8])
@pytest.mark.parametrize("shape", [(2,), (3, 2, 2)], ids=str)
def test_all_kinds_of_bags_hold_the_same(kind, number, shape, tmp_path):
    parts = arrays(number, shape)
    bags = make(kind, parts, tmp_path)
    assert len(bags) == 4
    assert bags.labels.dtype == bags.sizes.dtype == torch.long
    assert bags.labels.tolist() == LABELS and bags.sizes.tolist() == SIZES
    for bag, part in enumerate(parts):
        expected = torch.from_numpy(part)
        assert bags.instances(bag).dtype == expected.dtype
        assert torch.equal(bags.instances(bag), expected)
        for rows in ([0], [len(part) - 1, 0], list(range(len(part)))[::-1], [0, 0]):
            assert torch.equal(bags.instances(bag, torch.tensor(rows)), expected[rows])


@pytest.mark.parametrize("kind", KINDS)
def test_subsets_are_views_numbered_from_0(kind, tmp_path):
    parts = arrays()
    bags = make(kind, parts, tmp_path).subset(torch.tensor([2, 0]))
    assert bags.labels.tolist() == [1, 0] and bags.sizes.tolist() == [5, 3]
    assert torch.equal(bags.instances(0, torch.tensor([4])), torch.from_numpy(parts[2][[4]]))
    assert torch.equal(bags.subset([1]).instances(0), torch.from_numpy(parts[0]))
    with pytest.raises(ValueError, match=r"bag must lie in \[0, 2\), got 2"):
        bags.instances(2)


@pytest.mark.parametrize("kind", KINDS)
def test_bags_pickle_and_say_what_they_hold(kind, tmp_path):
    bags = make(kind, arrays(), tmp_path)
    copy = pickle.loads(pickle.dumps(bags))
    assert torch.equal(copy.instances(2), bags.instances(2))
    assert repr(bags) == repr(copy)
    assert repr(bags).endswith("Bags(4 bags, 2 positive, 11 instances)")


class Constant(Bags):
    """A subclass needs labels, sizes and instances; these are the number of the bag."""

    def __init__(self):
        self.labels, self.sizes = torch.tensor([0, 1, 0]), torch.tensor([2, 2, 2])

    def instances(self, bag, rows=None):
        return torch.full((2 if rows is None else len(rows), 1), float(bag))


def test_bags_of_a_subclass():
    assert repr(Constant()) == "Constant(3 bags, 1 positive, 6 instances)"
    assert Constant().subset([2, 1]).instances(0).tolist() == [[2.0], [2.0]]
    assert bag_scores(torch.nn.Identity(), Constant(), pooling="mean").tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("labels", [0, 1], r"bags.labels must be a tensor of integers, shape \(n,\), got list"),
        ("sizes", np.array([2, 2]), "bags.sizes must be a tensor of integers, .* got ndarray"),
        ("sizes", torch.tensor([2.0, 2.0]), r"bags.sizes must .* got torch.float32 of shape \(2,\)"),
        ("labels", torch.tensor([[0, 1]]), r"bags.labels must .* got torch.int64 of shape \(1, 2\)"),
        ("labels", torch.tensor([0, 1]), "bags must have a label and a size for each bag, got 2 labels and 3 sizes"),
    ],
)
def test_bags_of_a_subclass_are_checked(name, value, message):
    bags = Constant()
    setattr(bags, name, value)
    with pytest.raises(ValueError, match=f"SampledBags: {message}"):
        SampledBags(bags, instances_per_bag=2)
    with pytest.raises(ValueError, match=f"bag_scores: {message}"):
        bag_scores(torch.nn.Linear(1, 1), bags, pooling="mean")


@pytest.mark.parametrize("number", [np.int64, np.int32, np.uint32])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("kind", KINDS)
def test_whole_numbers_that_float32_would_round_are_refused(kind, sign, number, tmp_path):
    if sign < 0 and number is np.uint32:
        sign = 1
    parts = arrays(number)
    parts[2][1, 0] = sign * 2**24
    bags = make(kind, parts, tmp_path)
    assert bags.instances(2)[1, 0] == sign * 2.0**24
    parts[2][1, 0] += sign
    with pytest.raises(
        ValueError, match=rf"whole numbers of at most 16777216 .* or floating .*, got {sign * (2**24 + 1)}$"
    ):
        make(kind, parts, tmp_path).instances(2)


@pytest.mark.parametrize("number", [np.int64, np.int8, np.uint16, bool])
@pytest.mark.parametrize("kind", KINDS)
def test_integers_become_float32(kind, number, tmp_path):
    parts = arrays(number)
    bags = make(kind, parts, tmp_path)
    assert torch.equal(bags.instances(2, torch.tensor([3, 1])), torch.from_numpy(parts[2][[3, 1]].astype(np.float32)))
    assert ListBags([torch.tensor([[1, 2]])], [1]).instances(0).dtype == torch.float32


def test_arrays_of_any_layout_and_byte_order(tmp_path):
    part = np.arange(12.0).reshape(6, 2)
    fixed = part.copy()
    fixed.flags.writeable = False
    odd = [part[::-1], part.astype(">f8"), fixed, np.asfortranarray(part)]
    expected = torch.from_numpy(part)
    bags = ListBags(odd, [0, 1, 0, 1])
    assert torch.equal(bags.instances(0), expected.flip(0))
    assert all(torch.equal(bags.instances(bag), expected) for bag in (1, 2, 3))
    files = FileBags(save(tmp_path, [part.astype(">f4")]), [1])
    assert torch.equal(files.instances(0), expected.float())
    half = ListBags([torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True)], [1]).instances(0)
    assert half.dtype == torch.bfloat16 and not half.requires_grad


@pytest.mark.parametrize("shape", [(1, 4), (3, 4), (1, 1), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("kind", ["list", "flat", "ids", "padded", "mapped"])
def test_arrays_that_run_backwards(kind, shape, tmp_path):
    """A single row turned around is contiguous for NumPy, with a stride that torch does not take."""
    straight = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    turned, expected = straight[::-1], torch.from_numpy(straight).flip(0)
    count = len(straight)
    bags = {
        "list": lambda: ListBags([turned], [1]),
        "flat": lambda: FlatBags(turned, np.array([count, 0])[::-1], np.array([1])[::-1]),
        "ids": lambda: FlatBags.from_ids(turned, ["a"] * count, np.ones(count, dtype=int)[::-1]),
        "padded": lambda: ListBags.from_padded(turned[None, :][::-1], np.ones((1, count), dtype=bool)[::-1], [1]),
        "mapped": lambda: FlatBags(mapped(tmp_path, straight)[::-1], [0, count], [1]),
    }[kind]()
    assert torch.equal(bags.instances(0), expected)
    assert torch.equal(bags.instances(0, np.arange(count)[::-1]), expected.flip(0))
    assert torch.equal(bags.subset(np.array([0, 0])[::-1]).instances(1), expected)


def test_ids_in_order_of_first_appearance():
    x = torch.arange(6.0).unsqueeze(1)
    expected = [[0.0, 2.0], [1.0, 5.0], [3.0, 4.0]]
    for ids in (["z", "a", "z", "k", "k", "a"], torch.tensor([9, 1, 9, 4, 4, 1]), [(1, 2), 3.5, (1, 2), "k", "k", 3.5]):
        bags = FlatBags.from_ids(x, ids, [1, 0, 1, 1, 1, 0])
        assert [bags.instances(bag).squeeze(1).tolist() for bag in range(3)] == expected
        assert bags.labels.tolist() == [1, 0, 1]
        assert bags.instances(1, torch.tensor([1])).tolist() == [[5.0]]


def test_ids_are_compared_in_normal_form():
    x, ids = torch.arange(4.0).unsqueeze(1), ["F", "Jose\u0301", "F ", "\u00a0Jos\u00e9"]
    for names in (ids, [(name, 1) for name in ids]):
        bags = FlatBags.from_ids(x, names, [1, 0, 1, 0])
        assert [bags.instances(bag).squeeze(1).tolist() for bag in range(2)] == [[0.0, 2.0], [1.0, 3.0]]
    assert FlatBags.from_ids(x, ids, {"F ": 1, "Jos\u00e9 ": 0}).labels.tolist() == [1, 0]
    assert len(FlatBags.from_ids(x, [2**60, 2**60 + 1, 2**60 + 2, 2**60], [1, 0, 0, 1])) == 3
    with pytest.raises(ValueError, match="FlatBags: labels must be the same inside a bag, got two for id 'F'"):
        FlatBags.from_ids(x, ids, {"F ": 1, "F": 0, "Jos\u00e9": 0})


def test_padding_round_trips_exactly(tmp_path):
    parts = arrays(np.float16, (2, 3))
    inputs, mask = make("files", parts, tmp_path).to_padded()
    assert inputs.shape == (4, 5, 2, 3) and inputs.dtype == torch.float16 and mask.dtype == torch.bool
    assert mask.sum(1).tolist() == SIZES and mask[:, 0].all() and not inputs[~mask].any()
    bags = ListBags.from_padded(inputs, mask, LABELS)
    assert all(torch.equal(bags.instances(bag), torch.from_numpy(part)) for bag, part in enumerate(parts))
    again = bags.to_padded()
    assert torch.equal(again[0], inputs) and torch.equal(again[1], mask)
    garbage = inputs.masked_fill(~mask[..., None, None], torch.nan)  # what the mask leaves out does not count
    assert torch.equal(ListBags.from_padded(garbage, mask.to(torch.uint8), LABELS).to_padded()[0], inputs)


def test_files_are_not_kept_open_and_only_rows_asked_for_are_read(tmp_path, monkeypatch):
    from moreauc.data import _bag_files

    paths = save(tmp_path, [np.arange(4000.0).reshape(1000, 4)])
    bags = FileBags(paths, [1])
    reads = []

    class Counting(_bag_files.FileIO):
        def readinto(self, buffer):
            reads.append(len(buffer))
            return super().readinto(buffer)

    monkeypatch.setattr(_bag_files, "FileIO", Counting)
    assert bags.instances(0, torch.tensor([5, 6, 7, 900, 2]))[:, 0].tolist() == [20.0, 24.0, 28.0, 3600.0, 8.0]
    assert reads == [96, 32, 32]
    paths[0].unlink()  # nobody holds it
    with pytest.raises(ValueError, match=r"0\.npy' must stay as it was when the bags were made.*No such file"):
        bags.instances(0)
    np.save(paths[0], np.zeros((10, 4)))
    with pytest.raises(ValueError, match=r"0\.npy' must stay as it was when the bags were made: the file ends too"):
        bags.instances(0, torch.tensor([3, 700]))


def bad(*rows: float) -> torch.Tensor:
    return torch.tensor([[row] for row in rows])


@pytest.mark.parametrize(
    ("make_bags", "match"),
    [
        (lambda: ListBags([], []), r"ListBags: bags must hold at least one bag, got none"),
        (lambda: ListBags([bad(1), torch.zeros(0, 1)], [0, 1]), r"ListBags: bag 1 must hold at least one instance"),
        (lambda: ListBags([bad(1), torch.zeros(3)], [0, 1]), r"bag 1 must have shape \(instances, features, \.\.\.\)"),
        (lambda: ListBags([bad(1), [[2.0]]], [0, 1]), r"ListBags: bag 1 must be a tensor or an array, got list"),
        (lambda: ListBags([bad(1.0), bad(2.0, torch.nan)], [0, 1]), r"instances of bag 1 must be finite, got nan"),
        (lambda: ListBags([bad(1.0), torch.zeros(1, 2)], [0, 1]), r"bag 1 must have instances as bag 0, \(1,\) of tor"),
        (lambda: ListBags([bad(1.0), bad(2.0).double()], [0, 1]), r"bag 1 must have instances as bag 0, .* got"),
        (lambda: ListBags([bad(1.0)], [0, 1]), r"ListBags: labels must be as many as bags, 1, got 2"),
        (lambda: ListBags([bad(1.0)], [2]), r"ListBags: labels must be 0 or 1, got 2"),
        (lambda: ListBags([np.array([["a"]])], [1]), r"bag 0 must hold real numbers of at most 8 bytes, got <U1"),
        (lambda: ListBags([torch.zeros(1, 1, dtype=torch.cfloat)], [1]), r"bag 0 must hold real numbers, got"),
        (lambda: FlatBags(bad(1, 2, 3), [0, 2, 2, 3], [0, 1, 0]), r"offsets must increase.*, got 2, then 2 \(bag 1\)"),
        (lambda: FlatBags(bad(1, 2, 3), [0, 2], [0]), r"offsets must go from 0 to the number of instances, 3, got 0"),
        (lambda: FlatBags(bad(1, 2, 3), [0.0, 3.0], [0]), r"offsets must be integers of shape \(bags \+ 1,\), got"),
        (lambda: FlatBags(bad(1.0, torch.nan, 3.0), [0, 1, 3], [0, 1]), r"FlatBags: instances of bag 1 must be finite"),
        (lambda: FlatBags(bad(1, 2, 3), [0, 1, 3], [0]), r"FlatBags: labels must be as many as bags, 2, got 1"),
        (lambda: FlatBags(torch.zeros(0, 2), [0, 0], [1]), r"FlatBags: instances must hold at least one instance"),
        (lambda: FlatBags.from_ids(bad(1, 2), [1], [0]), r"FlatBags: ids must be as many as instances, 2, got 1"),
        (lambda: FlatBags.from_ids(bad(1, 2), [1, 1], [0, 1]), r"labels must be the same inside a bag, .* id 1"),
        (lambda: FlatBags.from_ids(bad(1, 2), ["a", "b"], {"a": 1}), r"an entry for each id, got none for 'b'"),
        (lambda: FlatBags.from_ids(bad(1, 2), ["a", "b"], {"a": 1, "b": 3}), r"FlatBags: labels must be 0 or 1, got 3"),
        (lambda: FlatBags.from_ids(bad(1, 2), [1, 2], [0]), r"FlatBags: labels must have shape \(2,\), got \(1,\)"),
        (lambda: FlatBags.from_ids(bad(1, 2), [1, torch.nan], [0, 1]), r"ids must not be NaN or missing, got nan for"),
        (
            lambda: FlatBags.from_ids(bad(1, 2), pd.Series(["a", None], dtype="string"), [0, 1]),
            r"got <NA> for instance 1",
        ),
        (
            lambda: FlatBags.from_ids(bad(1, 2), pd.Series(["a", None], dtype=object), [0, 1]),
            r"got None for instance 1",
        ),
        (lambda: FlatBags.from_ids(bad(1, 2), [[1], [2]], [0, 1]), r"ids must be a vector of things that can be"),
        (lambda: FileBags([], []), r"FileBags: paths must hold at least one file, got none"),
        (lambda: ListBags.from_padded(torch.zeros(2, 3, 1), torch.ones(2, 2), [0, 1]), r"mask must have shape \(2"),
        (lambda: ListBags.from_padded(torch.zeros(1, 2, 1), [[1, 2]], [0]), "mask must be True or False, got 2"),
        (lambda: ListBags.from_padded(torch.zeros(1, 2, 1), [[0, 0]], [0]), r"ListBags: bag 0 must hold at least one"),
    ],
)
def test_bad_bags(make_bags, match):
    with pytest.raises(ValueError, match=match):
        make_bags()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda bags: bags.instances(4), r"Bags: bag must lie in \[0, 4\), got 4"),
        (lambda bags: bags.instances(1.0), r"Bags: bag must be an integer, got 1.0"),
        (lambda bags: bags.instances(0, torch.tensor([0, 3])), r"Bags: rows must lie in \[0, 3\), got 3"),
        (lambda bags: bags.instances(0, torch.tensor([0.0])), r"Bags: rows must hold integers, got torch.float32"),
        (lambda bags: bags.instances(0, torch.tensor([], dtype=torch.long)), r"Bags: rows must have shape \(k,\), got"),
        (lambda bags: bags.subset([]), r"Bags: bags must have shape \(k,\), got \(0,\)"),
        (lambda bags: bags.subset(torch.tensor([True, False, True, True])), r"Bags: bags must hold integers, got"),
    ],
)
def test_what_is_not_there(kind, call, match, tmp_path):
    bags = make(kind, arrays(), tmp_path)
    with pytest.raises(ValueError, match=match):
        call(bags)


@pytest.mark.parametrize("kind", ["mapped", "mixed ids", "files", "columns"])
def test_lazy_bags_are_checked_when_they_are_read(kind, tmp_path):
    parts = arrays()
    parts[2][1] = np.nan
    bags = make(kind, parts, tmp_path)
    assert bags.instances(1).isfinite().all() and bags.instances(2, torch.tensor([0, 3])).isfinite().all()
    for part, bag in ((bags, 2), (bags.subset([0, 2]), 1)):  # the name is that of the whole set
        for rows in (None, torch.tensor([1])):
            with pytest.raises(ValueError, match=r"Bags: instances of bag 2 must be finite, got nan"):
                part.instances(bag, rows)


def test_bad_files_are_named(tmp_path):
    good, other = tmp_path / "good.npy", tmp_path / "other.npy"
    np.save(good, np.zeros((2, 3)))

    def refused(match):
        with pytest.raises(ValueError, match=rf"FileBags: .*other\.npy'{match}"):
            FileBags([good, str(other)], [0, 1])

    refused(r".*No such file")
    for content in (b"", b"not an array", good.read_bytes()[:-8], good.read_bytes()[:20]):
        other.write_bytes(content)
        refused(": ")
    np.save(other, np.zeros((0, 3)))
    refused(r" must hold at least one instance, got shape \(0, 3\)")
    np.save(other, np.zeros((2, 4)))
    refused(r" must have instances as the first file, \(3,\) of float64, got \(4,\) of float64")
    np.save(other, np.zeros((2, 3), dtype=np.float32))
    refused(r" must have instances as the first file, .*, got \(3,\) of float32")
    np.save(other, np.zeros(3))
    refused(r" must have shape \(instances, features, \.\.\.\), got \(3,\)")
    np.save(other, np.zeros((2, 3), dtype=complex))
    refused(r" must hold real numbers of at most 8 bytes, got complex128")
    np.save(other, np.array([[None]]), allow_pickle=True)
    refused(": ")
    with pytest.raises(ValueError, match="FileBags: labels must be as many as bags, 1, got 2"):
        FileBags([good], [0, 1])
