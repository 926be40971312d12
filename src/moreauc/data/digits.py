"""Bags of handwritten digits, made of scikit-learn's images: something to try multi-instance learning on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moreauc._checks import check_count, check_real
from moreauc.data.bags import FlatBags

Part = Literal["train", "validation", "test"]
Rows = NDArray[np.int64]

# of the images of each digit
_SHARES: dict[Part, tuple[float, float]] = {"train": (0.0, 0.5), "validation": (0.5, 0.7), "test": (0.7, 1.0)}
_SMALLEST = 3  # instances of a bag


@dataclass(frozen=True)
class DigitBags:
    """Bags of digits in three parts that share no image, and their contents.

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
        """Return the digits of the instances of one bag, in their order."""
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

    Example:
        >>> bags = digit_bags(num_bags=100)
        >>> bags.train.labels.sum(), bags.train.instances(0).shape[1]
        (tensor(15), 64)
        >>> bool((bags.digits_of("test", 0) == 9).any()) == bool(bags.test.labels[0])
        True
    """
    from sklearn.datasets import load_digits

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
        pixels = np.clip(data.data[rows] / 16.0 + noise * source.standard_normal((len(rows), 64)), 0.0, 1.0)
        parts[part] = FlatBags(pixels.astype(np.float32), [0, *np.cumsum(sizes).tolist()], labels)
        images[part] = torch.from_numpy(rows)
    digits = {part: torch.from_numpy(data.target[rows.numpy()]) for part, rows in images.items()}
    return DigitBags(**parts, target=int(target), images=images, digits=digits)


def _draw(labels: Rows, sizes: Rows, hits: Rows, pool: Rows, weight: NDArray[Any], source: np.random.Generator) -> Rows:
    """Return the images of all bags, concatenated: of a positive bag one or two of `hits`, else of `pool`."""
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
