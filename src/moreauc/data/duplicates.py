"""Rows and bags that occur more than once: found by hashes of their features, and kept on one side of a split."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pandas.util import hash_array
from scipy.sparse import csr_array

if TYPE_CHECKING:
    from moreauc.data.bags import Bags

Counts = NDArray[np.int64]
Codes = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Random = np.random.RandomState | np.random.Generator
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bit of an earlier column is lost
_FEW, _COPIES = 30, 4  # a table with fewer different rows and more copies of each is hardly a sample


def take_share(counts: Counts, share: float, order: Counts) -> NDArray[np.bool_]:
    """Return which groups make up a share of each class, as nearly as the order allows; counts: (group, class)."""
    total = counts.sum(0)
    missing = np.maximum(share * total, 1.0)
    weight = 1.0 / np.maximum(total, 1) ** 2
    taken = np.zeros(len(counts), dtype=bool)

    def gain(group: Counts) -> NDArray[np.float64]:
        """Return the decrease of the squared distance to the shares of the classes."""
        gains: NDArray[np.float64] = ((missing**2 - (missing - counts[group]) ** 2) * weight).sum(-1)
        return gains

    lacks, weights = missing.tolist(), weight.tolist()
    for group, sizes in zip(order.tolist(), counts[order].tolist(), strict=True):  # the same gain, fast
        if sum(w * size * (2.0 * lack - size) for w, size, lack in zip(weights, sizes, lacks, strict=True)) > 0.0:
            taken[group] = True
            lacks = [lack - size for lack, size in zip(lacks, sizes, strict=True)]
    missing = np.array(lacks)
    for kind in range(counts.shape[1]):
        if not counts[taken, kind].any():  # all groups of this class are too large: the one that fits best
            able = order[counts[order, kind] > 0]
            best = able[np.argmax(gain(able))]
            taken[best] = True
            missing -= counts[best]
    return taken


def deal_folds(counts: Counts, folds: int) -> Counts:
    """Return the fold of each group: the largest groups first, each to the fold with the least of its classes."""
    total = np.maximum(counts.sum(0), 1)
    filled = np.zeros((folds, counts.shape[1]))
    result = np.zeros(len(counts), dtype=np.int64)
    for group in np.argsort(-(counts / total).sum(1), kind="stable").tolist():
        load = filled @ (counts[group] / total**2)
        least = np.flatnonzero(load <= load.min() * (1.0 + 1e-9))
        fold = least[np.argmin(filled[least].sum(1))]
        filled[fold] += counts[group]
        result[group] = fold
    return result


def hash_rows(table: pd.DataFrame) -> Hashes:
    """Return a hash of each row of floats, texts and dates; missing values are equal to each other, and 0.0 to -0.0."""
    total = np.zeros(len(table), dtype=np.uint64)
    for place in range(table.shape[1]):
        column = table.iloc[:, place]
        values = column.to_numpy(dtype="datetime64[us]" if column.dtype.kind == "M" else None)
        if values.dtype.kind == "f":
            values = np.where(np.isnan(values), np.nan, values + 0.0)  # one NaN, one zero
        total = total * _FACTOR + hash_array(values)
    return total


def hash_sparse(matrix: csr_array) -> Hashes:
    """Return a hash of each row of a sparse matrix, whether its zeros are stored or not."""
    matrix = matrix.tocsr(copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    entries = hash_array(hash_array(matrix.data) + hash_array(matrix.indices.astype(np.uint64)))
    return _sums(entries, matrix.indptr)


def hash_bags(rows: Hashes, bags: Codes, number: int) -> Hashes:
    """Return a hash of each of `number` bags from the hashes of its instances, in any order."""
    order = np.argsort(bags, kind="stable")
    return _sums(hash_array(rows)[order], np.append(0, np.bincount(bags, minlength=number).cumsum()))


def _sums(hashes: Hashes, bounds: Counts) -> Hashes:
    """Return the sums of the hashes between bounds, modulo 2^64."""
    sums = np.append(np.uint64(0), np.cumsum(hashes, dtype=np.uint64))
    found: Hashes = np.diff(sums[bounds])
    return found


def same_bags(bags: Bags) -> Codes:
    """Return a number for each bag, equal for bags with the same instances in any order; one pass over all of them."""
    hashes = []
    for bag in range(len(bags.sizes)):
        instances = bags.instances(bag).numpy(force=True)
        if instances.dtype.kind == "f":
            instances = instances + 0.0  # one zero
        digests = sorted(hashlib.blake2b(one.tobytes(), digest_size=8).digest() for one in instances)
        hashes.append(hash(tuple(digests)))
    return number_equal(hashes)


def number_equal(hashes: ArrayLike) -> Codes:
    """Return for each hash its number, by first appearance."""
    codes: Codes = pd.factorize(np.asarray(hashes))[0].astype(np.int64)
    return codes


def any_equal(same: Codes | None) -> bool:
    """Return whether any number occurs twice."""
    return same is not None and len(same) > 0 and int(same.max()) + 1 < len(same)


def few_kinds(same: Codes) -> int | None:
    """Return the number of different rows if there are only a few with many copies each, else None.

    A part of such a table in which equal rows stay together says little about the other rows.

    Example:
        >>> few_kinds(np.arange(100) % 7), few_kinds(np.arange(100) // 2), few_kinds(np.arange(8))
        (7, None, None)
    """
    number = len(np.unique(same))
    return number if number < _FEW and _COPIES * number <= len(same) else None


def take_together(same: Codes, labels: NDArray[np.generic], share: float, random: Random) -> NDArray[np.bool_]:
    """Return which rows make up a share of each class, as nearly as equal rows, which stay together, allow."""
    counts = _count(same, labels)
    return take_share(counts, share, random.permutation(len(counts)))[same]


def fold_together(same: Codes, labels: NDArray[np.generic], folds: int, random: Random) -> Codes:
    """Return the fold of each row: equal rows in one, the classes spread evenly as far as that allows."""
    counts = _count(same, labels)
    order = random.permutation(len(counts))
    part = np.empty(len(counts), dtype=np.int64)
    part[order] = deal_folds(counts[order], folds)
    return part[same]


def _count(same: Codes, labels: NDArray[np.generic]) -> Codes:
    """Return the rows of each number (first dimension) and class, 0 or 1."""
    counts = np.zeros((int(same.max()) + 1, 2), dtype=np.int64)
    np.add.at(counts, (same, np.asarray(labels).astype(np.int64)), 1)
    return counts
