"""A part for test and folds of the rest: nothing shared, nothing lost, sizes, both classes, groups on one side."""

from __future__ import annotations

import os
from collections import Counter
from itertools import chain, combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.data.mil import load_fox, load_musk2
from experiments.data.splits import test_and_folds as split

MUSK2 = [1] * 39 + [0] * 63
FOX = [1] * 100 + [0] * 100
HISTOLOGY = [1] * 100 + [0] * 1000


def tiles_of(labels, seed=0):
    """Groups of one class each, small ones of positives and larger ones of negatives, as tiles of images are."""
    random = np.random.default_rng(seed)
    labels = np.asarray(labels)
    groups = np.empty(len(labels), dtype=np.int64)
    for label in (0, 1):
        rows = random.permutation(np.flatnonzero(labels == label))
        groups[rows] = random.integers(0, len(rows) // (1 if label else 4), len(rows)) + 10_000 * label
    return groups


def check_parts(labels, test, folds, groups=None):
    """Slow and by hand: every row once in test or in one validation part, both classes everywhere, groups apart."""
    labels = np.asarray(labels)
    rows = test.tolist() + [row for _, validation in folds for row in validation.tolist()]
    assert sorted(rows) == list(range(len(labels)))
    for train, validation in folds:
        parts = [test.tolist(), train.tolist(), validation.tolist()]
        assert sorted(chain(*parts)) == list(range(len(labels)))
        for part in parts:
            assert part == sorted(part) and {labels[row] for row in part} == {0, 1}
        if groups is not None:
            for one, other in combinations(parts, 2):
                assert not {groups[row] for row in one} & {groups[row] for row in other}
    kinds = [test, *(rows for pair in folds for rows in pair)]
    assert all(part.dtype == torch.int64 for part in kinds)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("labels", "test_size", "positives"), [(MUSK2, 10, 4), (FOX, 20, 10), (HISTOLOGY, 110, 10)], ids=str
)
def test_sizes_of_the_sets_of_the_paper(labels, test_size, positives, seed):
    test, folds = split(labels, seed=seed)
    check_parts(labels, test, folds)
    assert len(test) == test_size and len(folds) == 5
    sizes = [len(validation) for _, validation in folds]
    assert max(sizes) - min(sizes) <= 1
    assert sum(labels[row] for row in test) == positives
    of_folds = [sum(labels[row] for row in validation) for _, validation in folds]
    assert max(of_folds) - min(of_folds) <= 1


@pytest.mark.parametrize(("load", "bags", "test_size"), [(load_musk2, 102, 10), (load_fox, 200, 20)])
def test_the_real_bags(load, bags, test_size):
    """Runs on the real files where MOREAUC_DATA has them; CI sets it."""
    folder = os.environ.get("MOREAUC_DATA")
    if folder and (Path(folder) / "mil").is_dir():
        data = load()
        assert len(data) == bags
        for seed in range(10):
            test, folds = split(data.labels, seed=seed)
            check_parts(data.labels.tolist(), test, folds)
            assert len(test) == test_size
            train = data.subset(folds[0][0])
            assert torch.equal(train.labels, data.labels[folds[0][0]])
    assert round(0.1 * bags) == test_size


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.1, 0.25])
def test_groups_are_never_shared(seed, share):
    groups = tiles_of(HISTOLOGY, seed)
    test, folds = split(HISTOLOGY, seed=seed, groups=groups, test_share=share)
    check_parts(HISTOLOGY, test, folds, groups)
    sizes = np.array([len(validation) for _, validation in folds])
    largest = max(Counter(groups.tolist()).values())
    assert abs(len(test) - 1100 * share) <= largest / 2 and np.ptp(sizes) <= 2
    positives = np.array([sum(HISTOLOGY[row] for row in part) for part in (test, *(held for _, held in folds))])
    assert abs(positives[0] - 100 * share) <= 1 and np.ptp(positives[1:]) <= 1


def test_a_class_whose_groups_are_all_too_large_for_the_test_part():
    """A tenth of 12 positives is 1, the groups have 4 and 5: the smaller fits better, though it is too large."""
    labels = [1] * 13 + [0] * 40
    groups = [0] * 5 + [1] * 4 + [2] * 4 + list(range(3, 43))
    for seed in range(10):
        test, folds = split(labels, seed=seed, groups=groups, folds=2)
        check_parts(labels, test, folds, groups)
        assert sum(labels[row] for row in test) == 4 and len(test) == 8


def test_the_rows_of_a_seed_stay_what_they_are():
    """Written down: committed results name a split by its seed alone."""
    test, folds = split([1] * 8 + [0] * 12, seed=7, folds=2, test_share=0.2)
    assert test.tolist() == [2, 6, 13, 15]
    assert folds[0][1].tolist() == [3, 4, 5, 10, 11, 12, 14, 17]


def test_small_and_large_groups_are_about_as_likely_for_test():
    """Large groups first would be wrong here: test would have the small ones only."""
    sizes = [1, 2, 3, 4, 5, 6] * 20
    groups = np.repeat(np.arange(120), sizes)
    labels = np.repeat(np.arange(120) % 2, sizes)
    tested: Counter[int] = Counter()
    for seed in range(200):
        test, _ = split(labels, seed=seed, groups=groups, test_share=0.2)
        tested.update({sizes[group]: 0 for group in range(6)})
        tested.update(sizes[group] for group in set(groups[test]))
    shares = [tested[size] / (200 * 20) for size in range(1, 7)]
    assert max(shares) < 0.26 and min(shares) > 0.15


@pytest.mark.parametrize(
    ("labels", "arguments", "message"),
    [
        ([1] * 5 + [0] * 50, {}, r"validation rows of fold 4 must hold both classes, got 0 positive and 9 negative"),
        ([1] + [0] * 50, {}, r"training rows of fold 0 must hold both classes, got 0 positive and .* smaller groups"),
        ([1, 0] * 20, {"groups": [0] * 40}, "training rows of fold 0 must hold both classes, got 0 positive and 0 neg"),
    ],
)
def test_what_cannot_be_split(labels, arguments, message):
    with pytest.raises(ValueError, match=f"test_and_folds: {message}"):
        split(labels, **{"seed": 0, **arguments})
