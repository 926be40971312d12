"""Bags from files and bags of digits: counts, parts that share nothing, seeds, and scaling."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat
from sklearn.datasets import load_digits

from experiments.data import mil
from experiments.data.mil import MIL_SETS, load_fox, load_musk2, standardize_instances
from moreauc.data import bags as bags_module
from moreauc.data import digit_bags
from moreauc.data.bags import FlatBags, ListBags

PARTS = ("train", "validation", "test")


def write_musk2(folder: Path, positives: int = 2, name: str = "musk2.csv.gz") -> None:
    """Five bags in MUSK2's form, not in the order of their numbers, with two features."""
    rows = [
        (number, [10 * number + k, -k])
        for number, size in [(7, 3), (2, 1), (5, 2), (9, 2), (4, 1)]
        for k in range(size)
    ]
    labels = {7: 1, 2: 1, 5: 1, 9: 0, 4: 0}
    if positives == 2:
        labels[5] = 0
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{labels[number]},{number},{x[0]},{x[1]}\n" for number, x in rows)
    with (gzip.open if name.endswith("gz") else open)(folder / name, "wt") as file:
        file.write(text)


def write_fox(folder: Path, **changes) -> None:
    """Three bags in the form of Fox, with two features."""
    struct = {
        "data": np.arange(12.0).reshape(6, 2) / 8,
        "nlab": np.array([[2, 2, 2, 1, 1, 1]], dtype=np.uint8).T,
        "ident": {"ident": np.arange(6.0), "milbag": np.array([[1, 1, 1, 2, 2, 3]], dtype=np.uint8).T},
    }
    folder.mkdir(parents=True, exist_ok=True)
    savemat(
        folder / "fox.mat", {"x": {key: value for key, value in {**struct, **changes}.items() if value is not None}}
    )


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setitem(mil.MIL_SETS, "musk2", (2, 3, 9, 2))
    monkeypatch.setitem(mil.MIL_SETS, "fox", (1, 2, 6, 2))
    monkeypatch.delenv("MOREAUC_DATA", raising=False)
    monkeypatch.setenv("MOREAUC_CACHE", str(tmp_path / "cache"))
    write_musk2(tmp_path / "mil")
    write_fox(tmp_path / "mil")
    return tmp_path


def tensors(bags):
    return [torch.as_tensor(bags.instances(bag)) for bag in range(len(bags.labels))]


def numbers(values):
    return torch.as_tensor(values).tolist()


def test_musk2_in_the_order_of_the_file(small):
    bags = load_musk2(small)
    assert numbers(bags.sizes) == [3, 1, 2, 2, 1] and numbers(bags.labels) == [1, 1, 0, 0, 0]
    found = tensors(bags)
    assert found[0].dtype == torch.float32
    assert found[0].tolist() == [[70, 0], [71, -1], [72, -2]] and found[4].tolist() == [[40, 0]]
    write_musk2(small / "plain", name="musk2.csv")
    for folder in (small / "mil", small / "plain"):
        assert all(torch.equal(a, b) for a, b in zip(found, tensors(load_musk2(folder)), strict=True))


def test_fox_has_raw_features(small):
    bags = load_fox(small)
    assert numbers(bags.sizes) == [3, 2, 1] and numbers(bags.labels) == [1, 0, 0]
    found = tensors(bags)
    assert found[1].dtype == torch.float32 and found[1].tolist() == [[0.75, 0.875], [1.0, 1.125]]
    assert torch.equal(found[0], tensors(load_fox(small / "mil"))[0])


def test_files_that_are_not_the_set(small):
    write_musk2(small / "mil", positives=3)
    with pytest.raises(ValueError, match=r"load_musk2: musk2 .* got \(3, 2, 9, 2\)"):
        load_musk2(small)
    write_fox(small / "mil", data=np.zeros((6, 3)))
    with pytest.raises(ValueError, match=r"load_fox: fox .* got \(1, 2, 6, 3\)"):
        load_fox(small)
    write_fox(small / "mil", ident=None)
    with pytest.raises(ValueError, match=r"load_fox: fox.mat must have the fields"):
        load_fox(small)


@pytest.mark.parametrize(
    ("load", "name", "mean", "ends"), [(load_musk2, "musk2", 64.69, (1, 1044)), (load_fox, "fox", 6.6, (2, 13))]
)
def test_the_real_sets_have_the_published_counts(load, name, mean, ends):
    """Runs on the real files where MOREAUC_DATA has them; CI sets it."""
    positives, negatives, instances, features = MIL_SETS[name]
    folder = os.environ.get("MOREAUC_DATA")
    if folder and (Path(folder) / "mil").is_dir():
        bags = load()
        labels, sizes = torch.as_tensor(bags.labels), torch.as_tensor(bags.sizes)
        assert (int(labels.sum()), int((labels == 0).sum()), int(sizes.sum())) == (positives, negatives, instances)
        assert (int(sizes.min()), int(sizes.max())) == ends
        assert round(float(sizes.double().mean()), 2) == mean
        assert all(bag.shape[1] == features and bag.isfinite().all() for bag in tensors(bags))
        (scaled,) = standardize_instances(bags)
        whole = torch.cat(tensors(scaled)).double()
        varies = torch.cat(tensors(bags)).double().std(0) > 0
        assert whole.mean(0).abs().max() < 1e-5
        assert (whole.std(0, correction=0)[varies] - 1).abs().max() < 1e-4
    assert round(instances / (positives + negatives), 2) == mean


@pytest.mark.parametrize("kind", ["flat", "list"])
@pytest.mark.parametrize("shape", [(4,), (3, 2)])
def test_scaling_is_that_of_all_training_instances(monkeypatch, kind, shape):
    monkeypatch.setattr(bags_module, "_CHUNK", 3)
    sizes, labels = [5, 1, 9, 3], [1, 0, 0, 1]
    x = 3.0 + 2.0 * torch.randn(18, *shape) * torch.arange(1.0, 1 + shape[-1])
    x[:, 0] = 0.1  # a feature without spread
    other = torch.randn(4, *shape)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    if kind == "flat":
        train, test = FlatBags(x, offsets, labels), FlatBags(other, [0, 1, 4], [0, 1])
    else:
        train, test = ListBags(list(x.split(sizes)), labels), ListBags(list(other.split([1, 3])), [0, 1])
    raw = tensors(train)
    scaled, scaled_test = standardize_instances(train, test)
    whole = x.double().numpy()
    mean, std = whole.mean(0), whole.std(0)
    std[0] = 1.0
    np.testing.assert_allclose(torch.cat(tensors(scaled)).numpy(), (whole - mean) / std, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        torch.cat(tensors(scaled_test)).numpy(), (other.double().numpy() - mean) / std, rtol=1e-5, atol=1e-6
    )
    assert numbers(scaled.labels) == labels and numbers(scaled.sizes) == sizes
    assert scaled.instances(2).dtype == torch.float32
    rows = torch.tensor([4, 0, 7])
    assert torch.equal(scaled.instances(2, rows), scaled.instances(2)[rows])
    assert all(torch.equal(a, b) for a, b in zip(raw, tensors(train), strict=True))  # nothing changed in place
    again = pickle.loads(pickle.dumps(scaled))
    assert torch.equal(again.instances(0), scaled.instances(0))


def test_scaling_survives_a_large_offset():
    """In float32 the squares of these numbers would have no digits left for the spread."""
    x = 1e5 + torch.randn(1000, 1)
    (scaled,) = standardize_instances(FlatBags(x, [0, 400, 1000], [0, 1]))
    whole = torch.cat(tensors(scaled)).double()
    assert abs(float(whole.mean())) < 1e-5 and abs(float(whole.std(correction=0)) - 1) < 1e-5


def test_scaling_of_bags_that_do_not_fit():
    train = FlatBags(torch.randn(4, 3), [0, 2, 4], [0, 1])
    with pytest.raises(ValueError, match=r"others must have instances of the shape of train's, \(3,\), got \(2,\)"):
        standardize_instances(train, train, FlatBags(torch.randn(4, 2), [0, 2, 4], [0, 1]))


@pytest.mark.parametrize("target", [9, 0])
def test_bags_of_digits_hold_what_their_labels_say(target):
    bags = digit_bags(target=target, num_bags=80, positive_rate=0.2, noise=0.0, mean_size=9)
    data = load_digits()
    assert bags.target == target
    for part in PARTS:
        own = getattr(bags, part)
        labels, sizes = numbers(own.labels), numbers(own.sizes)
        assert len(labels) == 80 and sum(labels) == 16 and min(sizes) >= 3
        images = bags.images[part].split(sizes)
        assert bags.digits[part].tolist() == data.target[bags.images[part].numpy()].tolist()
        for bag, label in enumerate(labels):
            found = int((bags.digits_of(part, bag) == target).sum())
            assert found in ((1, 2) if label else (0,)) and len(set(images[bag].tolist())) == sizes[bag]
            pixels = own.instances(bag)
            assert pixels.dtype == torch.float32 and pixels.shape == (sizes[bag], 64)
            np.testing.assert_array_equal(pixels.numpy(), (data.data[images[bag].numpy()] / 16).astype(np.float32))
    used = [set(bags.images[part].tolist()) for part in PARTS]
    assert not (used[0] & used[1] or used[0] & used[2] or used[1] & used[2])


def test_a_seed_is_a_set_of_bags():
    state, seed = np.random.get_state()[1].copy(), torch.get_rng_state()
    first, again, other = digit_bags(num_bags=30), digit_bags(num_bags=30), digit_bags(num_bags=30, seed=1)
    assert (np.random.get_state()[1] == state).all() and torch.equal(torch.get_rng_state(), seed)
    for part in PARTS:
        one, two = (torch.cat(tensors(getattr(bags, part))) for bags in (first, again))
        assert torch.equal(one, two) and numbers(getattr(first, part).labels) == numbers(getattr(again, part).labels)
        assert first.images[part].tolist() != other.images[part].tolist()
    assert first.images["train"].tolist()[:50] != first.images["test"].tolist()[:50]


@pytest.mark.parametrize("rate", [0.001, 0.999])
def test_both_classes_are_always_there(rate):
    bags = digit_bags(num_bags=10, positive_rate=rate, confusers=())
    assert int(torch.as_tensor(bags.test.labels).sum()) == (1 if rate < 0.5 else 9)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target", 10),
        ("confusers", (9,)),
        ("confusers", 4),
        ("num_bags", 1),
        ("mean_size", 61),
        ("positive_rate", 1.0),
        ("noise", -0.1),
        ("seed", -1),
    ],
)
def test_arguments_out_of_range(name, value):
    with pytest.raises(ValueError, match=f"digit_bags: {name}"):
        digit_bags(**{name: value})
