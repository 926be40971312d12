"""Data to try things on: small tables, bags of digits, and groups whose best model is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moreauc._checks import check_count, check_real
from moreauc.data.bags import FlatBags

if TYPE_CHECKING:
    import pandas as pd

_SEED = 0
Part = Literal["train", "validation", "test"]
Rows = NDArray[np.int64]
# of the images of each digit
_SHARES: dict[Part, tuple[float, float]] = {"train": (0.0, 0.5), "validation": (0.5, 0.7), "test": (0.7, 1.0)}
_SMALLEST = 3  # instances of a bag
Task = Literal["binary", "regression", "multiclass"]
_LEAST = 2  # rows of a group in each part
_LEAST_FEATURES = 5  # one that hints at the group, two that all groups use alike, two that they do not


def load_example(name: str) -> tuple[pd.DataFrame, NDArray[np.int64], str]:
    """Return one of the example tables.

    `name` is "digits", "breast_cancer", "diabetes", "fraud", or "fraud_test", further rows like those of "fraud". The
    result has the columns, labels of 0 and 1, and a description of the source.

    Example:
        >>> X, y, description = load_example("digits")
        >>> X.shape, int(y.sum())
        ((1691, 61), 68)
    """
    if name not in EXAMPLES:
        raise ValueError(f"load_example: name must be one of {', '.join(EXAMPLES)}, got {name!r}")
    return EXAMPLES[name]()


def _digits() -> tuple[pd.DataFrame, NDArray[np.int64], str]:
    from sklearn.datasets import load_digits

    data = load_digits(as_frame=True)
    rows, labels = _thin((data.target == 8).to_numpy(), share=0.04)
    columns = data.data.loc[:, data.data.nunique() > 1]  # three corner pixels are always 0
    description = (
        "Handwritten digits of 8 x 8 pixels (scikit-learn's load_digits): is it an 8? "
        f"{_thinned(data.target == 8, labels)} Pixels that are the same in every image are left out."
    )
    return columns.iloc[rows].reset_index(drop=True), labels, description


def _breast_cancer() -> tuple[pd.DataFrame, NDArray[np.int64], str]:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer(as_frame=True)
    rows, labels = _thin((data.target == 0).to_numpy(), share=0.05)
    description = (
        "Cell nuclei of breast masses (scikit-learn's load_breast_cancer): is the mass malignant? "
        f"{_thinned(data.target == 0, labels)}"
    )
    return data.data.iloc[rows].reset_index(drop=True), labels, description


def _diabetes() -> tuple[pd.DataFrame, NDArray[np.int64], str]:
    from sklearn.datasets import load_diabetes

    data = load_diabetes(as_frame=True, scaled=False)
    limit = float(np.quantile(data.target, 0.9))
    labels = (data.target > limit).to_numpy().astype(np.int64)
    description = (
        "Diabetes patients (scikit-learn's load_diabetes): is the progression of the disease after one year in the "
        f"highest tenth, above {limit:g}? {labels.sum()} of {len(labels)} patients are; no row was taken out."
    )
    return data.data, labels, description


def _thin(positive: NDArray[np.bool_], *, share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw so many positives that they make up `share` of the rows; return rows kept, in order, and their labels."""
    members = np.flatnonzero(positive)
    count = round(share / (1.0 - share) * (len(positive) - len(members)))
    drawn = np.random.default_rng(_SEED).choice(members, count, replace=False)
    rows = np.sort(np.concatenate([np.flatnonzero(~positive), drawn]))
    return rows, positive[rows].astype(np.int64)


def _thinned(positive: pd.Series[bool], labels: NDArray[np.int64]) -> str:
    kept = int(labels.sum())
    return (
        f"Made imbalanced: {kept} of the {int(positive.sum())} positives, drawn at random with a fixed seed, are kept "
        f"beside all {len(labels) - kept} negatives ({kept / len(labels):.1%} positives)."
    )


def _fraud(samples: int = 20_000, seed: int = 0) -> tuple[pd.DataFrame, NDArray[np.int64], str]:
    X, y = fraud_table(samples=samples, seed=seed)
    description = (
        f"Card payments made up by moreauc.data.examples.fraud_table: is it fraud? {y.sum()} of {len(y)} payments are "
        f"({y.mean():.1%}). The signal is nearly linear, and a part of it in no column, so that no model is perfect."
    )
    return X, y, description


EXAMPLES: dict[str, Callable[[], tuple[pd.DataFrame, NDArray[np.int64], str]]] = {
    "digits": _digits,
    "breast_cancer": _breast_cancer,
    "diabetes": _diabetes,
    "fraud": _fraud,
    "fraud_test": partial(_fraud, 50_000, 1),  # 1,004 frauds, where a quarter of "fraud" has 95
}

# share of the payments, and what it adds to the log odds of fraud
_CATEGORIES = {
    "groceries": (0.24, -0.8),
    "restaurants": (0.16, -0.4),
    "fuel": (0.10, -0.1),
    "clothing": (0.09, 0.0),
    "transport": (0.08, -0.3),
    "health": (0.07, -0.7),
    "digital goods": (0.07, 0.6),
    "travel": (0.06, 0.3),
    "electronics": (0.06, 0.8),
    "jewellery": (0.03, 0.7),
    "cash": (0.03, 0.4),
    "gift cards": (0.01, 1.6),
}
_COUNTRIES = {
    "home": (0.80, -0.2),
    "neighbour A": (0.06, 0.1),
    "neighbour B": (0.05, 0.2),
    "same continent": (0.05, 0.4),
    "overseas A": (0.02, 0.9),
    "overseas B": (0.012, 1.2),
    "overseas C": (0.008, 1.6),
}


def fraud_table(
    *, samples: int = 20_000, positive_rate: float = 0.02, seed: int = 0
) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """Return made-up card payments of mixed types, a few of them fraud.

    Of the frauds 4 % are not reported, and 0.05 % of the other payments are reported by mistake. So no model orders all
    pairs. `positive_rate` is the expected share of frauds, in (0, 0.5], before these errors. In `distance_km` and
    `account_age_days` some values are missing.
    """
    import pandas as pd
    from scipy.special import expit

    owner = "fraud_table"
    check_count(owner, "samples", samples, minimum=100)
    check_real(owner, "positive_rate", positive_rate, low=0.0, high=0.5, low_open=True)
    source = np.random.default_rng(check_count(owner, "seed", seed, minimum=0))
    category, category_effect = _drawn(_CATEGORIES, samples, source)
    country, country_effect = _drawn(_COUNTRIES, samples, source)
    log_amount = 3.3 + 1.1 * source.standard_t(5, samples)
    age = source.exponential(900.0, samples) + 1.0
    payments = source.poisson(source.gamma(1.5, 1.6, samples))  # of the last 24 hours
    declined = source.poisson(source.gamma(0.4, 0.5, samples))  # of the last 7 days
    new_device = source.random(samples) < 0.12
    distance = np.exp(1.5 + 1.6 * source.standard_normal(samples) + 2.5 * (country_effect > 0.0))
    hour = np.floor(source.normal(14.5, 5.0, samples) % 24.0).astype(np.int64)
    day, second = source.integers(0, 90, samples), source.integers(0, 3600, samples)
    large, young, abroad = log_amount > 5.0, age < 180.0, country_effect > 0.0
    score = 1.3 * category_effect + 1.3 * country_effect + 0.5 * log_amount - np.minimum(age, 2700.0) / 900.0
    score += 0.25 * payments + 0.9 * declined + 1.6 * new_device + 0.15 * np.log(distance) + 0.9 * (hour < 6)
    score += 0.6 * day / 90.0  # there is more of it from day to day
    score += 0.8 * (large & new_device) + 0.6 * (abroad & young) + 0.5 * source.standard_normal(samples)
    fraud = source.random(samples) < expit(score + _intercept(score, positive_rate))
    chance = source.random(samples)
    labels = np.where(fraud, chance >= 0.04, chance < 0.0005).astype(np.int64)
    moment = np.datetime64("2025-03-01", "s") + (86_400 * day + 3600 * hour + second)
    columns = {
        "time": moment,
        "amount": np.round(np.exp(np.minimum(log_amount, 11.0)), 2),
        "category": category,
        "country": country,
        "hour": hour,
        "payments_24h": payments,
        "declined_7d": declined,
        "account_age_days": np.where(source.random(samples) < 0.03, np.nan, np.floor(age)),
        "new_device": np.where(new_device, "yes", "no"),
        "distance_km": np.where(source.random(samples) < 0.08, np.nan, np.round(distance, 1)),
    }
    return pd.DataFrame(columns), labels


def _drawn(
    levels: dict[str, tuple[float, float]], samples: int, source: np.random.Generator
) -> tuple[NDArray[np.object_], NDArray[np.float64]]:
    """Return a level for each row, by the levels' shares, and its effect."""
    shares, effects = np.array(list(levels.values())).T
    drawn = source.choice(len(levels), samples, p=shares / shares.sum())
    return np.array(list(levels), dtype=object)[drawn], effects[drawn]


def _intercept(score: NDArray[np.float64], rate: float) -> float:
    """Return what makes `rate` the mean of the probabilities that have these log odds, by bisection."""
    from scipy.special import expit

    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if expit(score + middle).mean() > rate else (middle, high)
    return low


@dataclass(frozen=True)
class DigitBags:
    """Bags of digits in three parts that share no image, and their contents.

    `train`, `validation` and `test` are the parts, and `target` is the digit that makes a bag positive. For each part,
    bag after bag, `images` has the row of each instance in scikit-learn's `load_digits()`, and `digits` its digit.
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
        return torch.split(self.digits[part], bags.sizes.tolist())[bag]


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
    """Return bags of handwritten digits (scikit-learn's, 8 x 8 pixels), positive if they contain the target digit.

    A positive bag has the target once or twice, a negative one not at all; everything else, the number of instances
    included, is drawn the same way for both. Half of the images of each digit are for training, a fifth for validation
    and the rest for test. No image occurs twice in a bag; it may occur in several bags of a part, with different noise.

    Args:
        target: the digit that makes a bag positive, in [0, 9].
        num_bags: bags of each part, at least 2.
        mean_size: expected number of instances, in [3, 60]: 3 and a Poisson number.
        positive_rate: share of positive bags in (0, 1); each part has that many, rounded, and both classes.
        noise: standard deviation of what is added to each pixel, at least 0; pixels are cut to [0, 1] again.
        confusers: digits other than the target that are three times as frequent as the rest.
        seed: at least 0; the same seed gives the same bags (with the same version of NumPy).

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


def _draw(
    labels: Rows, sizes: Rows, hits: Rows, pool: Rows, weight: NDArray[np.float64], source: np.random.Generator
) -> Rows:
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


@dataclass(frozen=True, eq=False, repr=False)
class GroupData:
    """Rows, what is to be predicted, and the group of each row.

    Attributes:
        X: DataFrame or floating point array with n rows.
        y: array of shape `(n,)`: integers for classes (0 and 1, or 0, 1, 2, ...), floats for regression.
        groups: numbers of groups in [0, num_groups), shape `(n,)`, int64. A group may have no row, as in a subset.
        names: a name for each group, no two alike.

    Example:
        >>> data = GroupData(np.eye(3), np.array([0, 1, 1]), np.array([1, 1, 0]), ["few", "many"])
        >>> data
        GroupData(3 rows, 3 columns, 2 groups of 1 to 2 rows)
        >>> data.sizes, data.subset([0, 2]).groups
        (array([1, 2]), array([1, 0]))
    """

    X: NDArray[np.floating] | pd.DataFrame
    y: NDArray[np.generic]
    groups: Rows
    names: list[str]

    def __post_init__(self) -> None:
        groups, rows = np.asarray(self.groups), len(self.X)
        for name, value in (("y", self.y), ("groups", groups)):
            if np.shape(value) != (rows,):
                raise ValueError(f"GroupData: {name} must have shape ({rows},), got {np.shape(value)}")
        if groups.dtype.kind not in "iu" or not 0 <= groups.min() <= groups.max() < len(self.names):
            raise ValueError(f"GroupData: groups must hold integers in [0, {len(self.names)}), got others")
        object.__setattr__(self, "y", np.asarray(self.y))
        object.__setattr__(self, "groups", groups.astype(np.int64))

    @property
    def num_groups(self) -> int:
        """Number of groups, those without a row included."""
        return len(self.names)

    @property
    def sizes(self) -> Rows:
        """Rows of each group, shape `(num_groups,)`."""
        return np.bincount(self.groups, minlength=self.num_groups).astype(np.int64)

    def subset(self, rows: Sequence[int] | Sequence[bool] | NDArray[np.generic]) -> GroupData:
        """Return some rows, given by their numbers or by n booleans, with the same groups."""
        chosen = np.arange(len(self))[rows]
        X = self.X.iloc[chosen].reset_index(drop=True) if hasattr(self.X, "iloc") else self.X[chosen]
        return GroupData(X, self.y[chosen], self.groups[chosen], self.names)

    def __len__(self) -> int:
        return len(self.X)

    def __repr__(self) -> str:
        sizes = f"{self.num_groups} groups of {self.sizes.min()} to {self.sizes.max()} rows"
        return f"GroupData({len(self)} rows, {self.X.shape[1]} columns, {sizes})"


def planted_groups(
    *,
    num_groups: int = 10,
    minority_groups: int = 1,
    samples: int = 4000,
    num_features: int = 10,
    minority_share: float = 0.05,
    separation: float = 2.0,
    noise: float = 0.05,
    task: Task = "binary",
    test_samples: int = 10_000,
    seed: int = 0,
) -> tuple[GroupData, GroupData, GroupData]:
    r"""Return train, validation and test rows with groups, of which a few rare ones follow another labelling rule.

    The features are independent standard normal numbers, but for the last, a hint: its mean is `separation` in minority
    groups and 0 in majority groups. The rest is in two halves, `a` and `b`, with random unit vectors `p` and `q`; the
    rule is the sign of

    .. math:: h(x) = (p^\top a \pm q^\top b) / \sqrt 2,

    plus in majority groups and minus in minority ones. The rules agree on half of the rows. A linear model can follow
    one rule only; a network can switch between them at some value of the hint, which depends on how much each group
    counts.

    Args:
        num_groups: number of groups, at least 2 and at most half of `samples` and of `test_samples`.
        minority_groups: how many of them follow the other rule, in [1, num_groups); they have the last numbers.
        samples: rows for training, and as many for validation.
        num_features: columns, at least 5.
        minority_share: share of the rows in (0, 0.5] that all minority groups have together, divided evenly; every
            group has at least 2 rows in each part, even if this exceeds the share.
        separation: distance of the means of the hint, in standard deviations, at least 0.
        noise: in [0, 1): the share of labels, on average, that are replaced by another class; for regression the
            standard deviation of what is added to the label.
        task: "binary" for labels 0 and 1 (`h > 0`); "regression" for the float label `h`, which has variance 1;
            "multiclass" for labels 0, 1, 2 of equal share: `p` and `q` are then pairs of orthonormal vectors, and the
            class is the third of the circle that the point `h` in the plane is seen in.
        test_samples: rows for test.
        seed: at least 0; the same seed gives the same rows (with the same version of NumPy).

    Example:
        >>> train, validation, test = planted_groups(num_groups=4, samples=1000)
        >>> train
        GroupData(1000 rows, 10 columns, 4 groups of 50 to 317 rows)
        >>> test.names[-1], test.sizes
        ('minority 3', array([3167, 3167, 3166,  500]))
    """
    owner = "planted_groups"
    check_count(owner, "num_groups", num_groups, minimum=2)
    if check_count(owner, "minority_groups", minority_groups) >= num_groups:
        raise ValueError(f"{owner}: minority_groups must be less than num_groups, {num_groups}, got {minority_groups}")
    check_count(owner, "samples", samples, minimum=_LEAST * num_groups)
    check_count(owner, "test_samples", test_samples, minimum=_LEAST * num_groups)
    check_count(owner, "num_features", num_features, minimum=_LEAST_FEATURES)
    check_real(owner, "minority_share", minority_share, low=0.0, high=0.5, low_open=True)
    check_real(owner, "separation", separation, low=0.0)
    check_real(owner, "noise", noise, low=0.0, high=1.0, high_open=True)
    if task not in get_args(Task):
        raise ValueError(f"{owner}: task must be one of {', '.join(get_args(Task))}, got {task!r}")
    sequence = np.random.SeedSequence(check_count(owner, "seed", seed, minimum=0))
    rules, *sources = (np.random.Generator(np.random.PCG64(child)) for child in sequence.spawn(4))
    width = 2 if task == "multiclass" else 1
    half = num_features // 2
    p, q = (np.linalg.qr(rules.standard_normal((size, width)))[0] for size in (half, num_features - 1 - half))
    names = [f"{'minority' if g >= num_groups - minority_groups else 'majority'} {g}" for g in range(num_groups)]
    parts = []
    for total, source in zip((samples, samples, test_samples), sources, strict=True):
        sizes = _sizes(num_groups, minority_groups, total, share=minority_share)
        groups = source.permutation(np.repeat(np.arange(num_groups), sizes))
        minority = groups >= num_groups - minority_groups
        hint = np.where(np.arange(num_features) == num_features - 1, separation, 0.0) * minority[:, None]
        X = (source.standard_normal((total, num_features)) + hint).astype(np.float32)  # labels are of rounded features
        rule = (X[:, :half] @ p + np.where(minority, -1.0, 1.0)[:, None] * (X[:, half:-1] @ q)) / np.sqrt(2.0)
        parts.append(GroupData(X, _targets(rule, task, noise, source), groups, names))
    return parts[0], parts[1], parts[2]


def _sizes(num_groups: int, minority_groups: int, total: int, *, share: float) -> Rows:
    """Return the rows of each group: as even as can be inside the majority and inside the minority."""
    majority_groups = num_groups - minority_groups
    minority = min(max(round(share * total), _LEAST * minority_groups), total - _LEAST * majority_groups)
    counts = [(total - minority, majority_groups), (minority, minority_groups)]
    return np.concatenate([rows // many + (np.arange(many) < rows % many) for rows, many in counts])


def _targets(
    rule: NDArray[np.float64], task: Task, noise: float, source: np.random.Generator
) -> NDArray[np.float64] | Rows:
    if task == "regression":
        noisy: NDArray[np.float64] = rule[:, 0] + noise * source.standard_normal(len(rule))
        return noisy
    if task == "binary":
        classes, labels = 2, (rule[:, 0] > 0).astype(np.int64)
    else:
        turn = np.arctan2(rule[:, 1], rule[:, 0]) / (2.0 * np.pi) + 0.5
        classes, labels = 3, np.minimum((3.0 * turn).astype(np.int64), 2)  # a turn of 1 is one of 0
    wrong = source.random(len(labels)) < noise
    moved: Rows = (labels + wrong * source.integers(1, classes, len(labels))) % classes
    return moved
