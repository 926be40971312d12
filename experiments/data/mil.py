"""Bags to train on: two public tables of the literature, and bags of handwritten digits made on the spot.

References: Dietterich, Lathrop and Lozano-Pérez, Solving the Multiple Instance Problem with Axis-Parallel Rectangles,
1997 (MUSK2: is a molecule musk, by its shapes?); Andrews, Tsochantaridis and Hofmann, Support Vector Machines for
Multiple-Instance Learning, 2002 (Fox: does an image show a fox, by its regions?).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.io import loadmat
from scipy.io.matlab import MatReadError
from sklearn.datasets import load_digits
from torch import Tensor

from experiments.data._prepare import BROKEN, unpack
from experiments.data.download import find_file
from moreauc._checks import check_count, check_real
from moreauc.data.bags import Bags, FlatBags, instance_moments, instance_shape

__all__ = ["MIL_SETS", "DigitBags", "Part", "digit_bags", "load_fox", "load_musk2", "standardize_instances"]

Part = Literal["train", "validation", "test"]
Rows = NDArray[np.int64]

# positive bags, negative bags, instances and features of each set, checked when it is read
MIL_SETS = {"musk2": (39, 63, 6598, 166), "fox": (100, 100, 1320, 230)}

# of the images of each digit
_SHARES: dict[Part, tuple[float, float]] = {"train": (0.0, 0.5), "validation": (0.5, 0.7), "test": (0.7, 1.0)}
_SMALLEST = 3  # instances of a bag of digits


def load_musk2(folder: Path | None = None, *, download: bool = True, verify: bool = False) -> FlatBags:
    """Return MUSK2: 102 molecules, 39 of them musk, with 1 to 1044 shapes of 166 features (raw integers).

    Args:
        folder: folder that has `musk2.csv` or `musk2.csv.gz`, or a subfolder `mil` with it; None for MOREAUC_DATA, if
            set. The file has no header; its columns are the label of the bag, the number of the bag, the features.
        download: whether a file that is neither there nor in the cache is downloaded, see `find_file`.
        verify: whether a file in the folder must have the right checksum.

    Raises:
        ValueError: for a file that is nowhere or cannot be downloaded, and for a file that is not the set.
    """
    path = find_file("load_musk2", "musk2.csv", folder=folder, download=download, verify=verify)
    try:
        table = pd.read_csv(path, header=None)
        if table.shape[1] < 3:
            raise ValueError("fewer than 3 columns")
        labels, ids, features = table[0].to_numpy(), table[1].to_numpy(), table.iloc[:, 2:].to_numpy(np.float32)
    except (*BROKEN, OSError) as error:
        raise ValueError(f"load_musk2: {path.name} must be the table of the set, got {error}") from error
    return _bags("load_musk2", "musk2", features, ids, labels)


def load_fox(folder: Path | None = None, *, download: bool = True, verify: bool = False) -> FlatBags:
    """Return Fox: 200 images, 100 of them with a fox, of 2 to 13 regions of 230 features.

    Args:
        folder: folder that has `fox.mat` or `fox.mat.gz`, or a subfolder `mil` with it; None for MOREAUC_DATA, if set.
            The file has a struct `x` with the fields `data`, `nlab` (2 for positive) and `ident.milbag`.
        download: whether a file that is neither there nor in the cache is downloaded, see `find_file`.
        verify: whether a file in the folder must have the right checksum.

    Raises:
        ValueError: for a file that is nowhere or cannot be downloaded, and for a file that is not the set.
    """
    path = find_file("load_fox", "fox.mat", folder=folder, download=download, verify=verify)
    try:
        content = loadmat(BytesIO(unpack(path)), simplify_cells=True)
    except (*BROKEN, MatReadError, NotImplementedError, OSError) as error:
        raise ValueError(f"load_fox: {path.name} must be a .mat file, got {error}") from error
    try:
        struct = content["x"]
        data, labels, ids = struct["data"], struct["nlab"] == 2, struct["ident"]["milbag"]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"load_fox: fox.mat must have the fields of the set, got {sorted(content)}") from error
    return _bags("load_fox", "fox", data.astype(np.float32), ids, labels.astype(np.int64))


def _bags(owner: str, name: str, instances: NDArray[np.float32], ids: NDArray[Any], labels: NDArray[Any]) -> FlatBags:
    bags = FlatBags.from_ids(instances, ids, labels)
    positives = int(bags.labels.sum())
    counts = (positives, len(bags) - positives, *instances.shape)
    if counts != MIL_SETS[name]:
        wanted = f"{MIL_SETS[name]} positive bags, negative bags, instances and features"
        raise ValueError(f"{owner}: {name} must have {wanted}, got {counts}")
    return bags


@dataclass(frozen=True)
class DigitBags:
    """Bags of digits in three parts that share no image, and what stands in them.

    Attributes:
        train: bags to train on.
        validation: bags to choose by.
        test: bags to report on.
        target: the digit that makes a bag positive.
        images: for each part the row of each instance in scikit-learn's `load_digits()`, bag after bag, int64.
        digits: for each part the digit of each instance, in the same order, int64.
    """

    train: FlatBags
    validation: FlatBags
    test: FlatBags
    target: int
    images: dict[Part, Tensor]
    digits: dict[Part, Tensor]

    def digits_of(self, part: Part, bag: int) -> Tensor:
        """Return the digits of the instances of one bag, in their order.

        Raises:
            ValueError: for another part, or a bag that is not there.
        """
        if part not in self.digits:
            raise ValueError(f"DigitBags: part must be one of {', '.join(self.digits)}, got {part!r}")
        bags: FlatBags = getattr(self, part)
        if check_count("DigitBags", "bag", bag, minimum=0) >= len(bags):
            raise ValueError(f"DigitBags: bag must lie in [0, {len(bags)}), got {bag}")
        start = int(bags.sizes[:bag].sum())
        return self.digits[part][start : start + int(bags.sizes[bag])]


def digit_bags(
    *,
    target: int = 9,
    num_bags: int = 300,
    mean_size: float = 12.0,
    positive_rate: float = 0.15,
    noise: float = 0.2,
    confusers: Sequence[int] = (4, 7),
    seed: int = 0,
) -> DigitBags:
    """Return bags of handwritten digits (scikit-learn's, 8 x 8 pixels): is the target among them?

    A positive bag has the target once or twice, a negative one not at all; everything else, the number of instances
    included, is drawn the same way for both. Half of the images of each digit are for training, a fifth for validation
    and the rest for test. Inside a bag no image comes twice; in several bags of a part it may, with noise of its own.

    Args:
        target: the digit that makes a bag positive, in [0, 9].
        num_bags: bags of each part, at least 2.
        mean_size: expected number of instances, in [3, 60]: 3 and a Poisson number.
        positive_rate: share of positive bags in (0, 1); each part has that many, rounded, and both classes.
        noise: standard deviation of what is added to each pixel, at least 0; pixels are cut to [0, 1] again.
        confusers: digits other than the target that come three times as often as the rest.
        seed: at least 0; the same seed gives the same bags (with the same version of NumPy).

    Returns:
        Three parts of instances with 64 features in [0, 1], float32, and the digit of each instance.

    Raises:
        ValueError: for an argument out of range.

    Example:
        >>> bags = digit_bags(num_bags=100)
        >>> bags.train.labels.sum(), bags.train.instances(0).shape[1]
        (tensor(15), 64)
        >>> bool((bags.digits_of("test", 0) == 9).any()) == bool(bags.test.labels[0])
        True
    """
    owner = "digit_bags"
    if check_count(owner, "target", target, minimum=0) > 9:
        raise ValueError(f"{owner}: target must be a digit in [0, 9], got {target}")
    if not isinstance(confusers, tuple | list) or not set(confusers) <= set(range(10)) - {target}:
        raise ValueError(f"{owner}: confusers must be a tuple of digits other than the target, got {confusers!r}")
    check_count(owner, "num_bags", num_bags, minimum=2)
    check_real(owner, "mean_size", mean_size, low=_SMALLEST, high=60.0)
    check_real(owner, "positive_rate", positive_rate, low=0.0, high=1.0, low_open=True, high_open=True)
    check_real(owner, "noise", noise, low=0.0)
    sequence = np.random.SeedSequence(check_count(owner, "seed", seed, minimum=0))
    split, *sources = (np.random.Generator(np.random.PCG64(child)) for child in sequence.spawn(4))
    data = load_digits()
    place = _places(data.target, split)
    weight = np.where(np.isin(data.target, list(confusers)), 3.0, 1.0) * (data.target != target)
    positives = min(max(round(positive_rate * num_bags), 1), num_bags - 1)
    parts: dict[str, FlatBags] = {}
    images: dict[Part, Tensor] = {}
    for (part, (low, high)), source in zip(_SHARES.items(), sources, strict=True):
        pool = np.flatnonzero((place >= low) & (place < high))
        labels = (source.permutation(num_bags) < positives).astype(np.int64)
        sizes = _SMALLEST + source.poisson(mean_size - _SMALLEST, num_bags)
        rows = _draw(labels, sizes, pool[data.target[pool] == target], pool, weight[pool], source)
        pixels = data.data[rows] / 16.0
        pixels = np.clip(pixels + noise * source.standard_normal(pixels.shape), 0.0, 1.0)
        offsets = [0, *np.cumsum(sizes).tolist()]
        parts[part] = FlatBags(pixels.astype(np.float32), offsets, labels)
        images[part] = torch.from_numpy(rows)
    digits = {part: torch.from_numpy(data.target[rows.numpy()]) for part, rows in images.items()}
    return DigitBags(**parts, target=int(target), images=images, digits=digits)


def _draw(labels: Rows, sizes: Rows, hits: Rows, pool: Rows, weight: NDArray[Any], source: np.random.Generator) -> Rows:
    """Return the images of all bags, one after the other: of a positive bag one or two of `hits`, else of `pool`."""
    rows = []
    for label, size in zip(labels, sizes, strict=True):
        targets = source.choice(hits, source.integers(1, 3) if label else 0, replace=False)
        others = source.choice(pool, size - len(targets), replace=False, p=weight / weight.sum())
        rows.append(source.permutation(np.concatenate([targets, others])))
    return np.concatenate(rows)


def _places(digits: Rows, source: np.random.Generator) -> NDArray[np.float64]:
    """Return for each image its place in a random order of the images of the same digit, in [0, 1)."""
    place = np.empty(len(digits))
    for digit in range(10):
        rows = np.flatnonzero(digits == digit)
        place[rows] = source.permutation(len(rows)) / len(rows)
    return place


def standardize_instances(train: Bags, *others: Bags) -> tuple[Bags, ...]:
    """Return bags whose instances have mean 0 and standard deviation 1 in the training bags, feature by feature.

    Every instance counts the same, whatever the size of its bag. Instances are scaled when they are read (bytes become
    float32); nothing is copied, and mean and spread are taken from a few thousand instances at a time. A feature that
    is the same in all training instances is shifted only.

    Args:
        train: bags that the mean and the standard deviation are taken from.
        others: further bags with the same features, scaled alike.

    Returns:
        `train` and `others`, scaled.

    Raises:
        ValueError: for bags with instances of another shape, and for training instances that are not finite.

    Example:
        >>> train = FlatBags(torch.tensor([[1.0], [3.0], [2.0]]), [0, 2, 3], [1, 0])
        >>> test = FlatBags(torch.tensor([[5.0]]), [0, 1], [1])
        >>> train, test = standardize_instances(train, test)
        >>> train.instances(0), test.instances(0)
        (tensor([[-1.2247], [ 1.2247]]), tensor([[3.6742]]))
    """
    mean, std = instance_moments(train)
    for other in others:
        shape = instance_shape(other)
        if shape != tuple(mean.shape):
            found = f"{tuple(mean.shape)}, got {shape}"
            raise ValueError(f"standardize_instances: others must have instances of the shape of train's, {found}")
    return tuple(_ScaledBags(bags, mean, std) for bags in (train, *others))


class _ScaledBags(Bags):
    """Other bags, shifted and divided in float64, since what is left of large numbers may be small."""

    def __init__(self, source: Bags, mean: Tensor, std: Tensor) -> None:
        self.labels, self.sizes = source.labels, source.sizes
        self._source, self._mean, self._std = source, mean, std

    def instances(self, bag: int, rows: Tensor | None = None) -> Tensor:
        raw = self._source.instances(bag, rows)
        scaled = (raw.double() - self._mean) / self._std
        return scaled.to(raw.dtype if raw.is_floating_point() else torch.float32)
