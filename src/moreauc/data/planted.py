"""Rows that belong to groups, and a table made here in which a few rare groups follow another rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from moreauc._checks import check_count, check_real

Rows = NDArray[np.int64]
Task = Literal["binary", "regression", "multiclass"]

_LEAST = 2  # rows of a group in each part
_LEAST_FEATURES = 5  # one that hints at the group, two that all groups use alike, two that they do not


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

    X: Any
    y: NDArray[Any]
    groups: Rows
    names: list[str]

    def __post_init__(self) -> None:
        if np.ndim(self.X) != 2 or not len(self.X):
            raise ValueError(f"GroupData: X must be a table with rows and columns, got shape {np.shape(self.X)}")
        for name, value in (("y", self.y), ("groups", self.groups)):
            if np.shape(value) != (len(self.X),):
                raise ValueError(f"GroupData: {name} must have shape ({len(self.X)},), got {np.shape(value)}")
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"GroupData: names must not repeat, got {self.names!r}")
        groups = np.asarray(self.groups)
        if groups.dtype.kind not in "iu":
            raise ValueError(f"GroupData: groups must hold integers, got {groups.dtype}")
        strange = groups[(groups < 0) | (groups >= len(self.names))]
        if len(strange):
            raise ValueError(f"GroupData: groups must lie in [0, {len(self.names)}), got {strange[0]}")
        object.__setattr__(self, "y", np.asarray(self.y))
        object.__setattr__(self, "groups", groups.astype(np.int64))
        object.__setattr__(self, "names", list(self.names))

    @property
    def num_groups(self) -> int:
        """Number of groups, those without a row included."""
        return len(self.names)

    @property
    def sizes(self) -> Rows:
        """Rows of each group, shape `(num_groups,)`."""
        return np.bincount(self.groups, minlength=self.num_groups).astype(np.int64)

    def subset(self, rows: Any) -> GroupData:
        """Return some rows, given by at least one number in [0, n) or by n booleans, with the same groups."""
        chosen = np.asarray(rows)
        if chosen.dtype == np.bool_ and chosen.shape == (len(self),):
            chosen = np.flatnonzero(chosen)
        if chosen.dtype.kind not in "iu" or chosen.ndim != 1 or not chosen.size:
            wanted = f"at least one row number, or {len(self)} booleans not all False"
            raise ValueError(f"GroupData: rows must be {wanted}, got {chosen.dtype} of shape {chosen.shape}")
        strange = chosen[(chosen < 0) | (chosen >= len(self))]
        if len(strange):
            raise ValueError(f"GroupData: rows must lie in [0, {len(self)}), got {strange[0]}")
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
    r"""Return train, validation and test rows of groups of which a few, and rare ones, follow another rule.

    The features are independent standard normal numbers, but for the last, a hint: its mean is `separation` in minority
    groups and 0 in majority groups. The rest is in two halves, `a` and `b`, with random unit vectors `p` and `q`; the
    rule is the sign of

    .. math:: h(x) = (p^\top a \pm q^\top b) / \sqrt 2,

    plus in majority groups and minus in minority ones. The rules agree on half of the rows, by chance. A linear model
    can be right for one of them (or wrong on a quarter of each); a network can change over from one to the other by the
    hint, but at which value depends on how much each group counts: the average is best with the majority's rule nearly
    everywhere. Inside the majority, and inside the minority, groups differ in nothing but the number.

    Args:
        num_groups: number of groups, at least 2 and at most half of `samples` and of `test_samples`.
        minority_groups: how many of them follow the other rule, in [1, num_groups); they have the last numbers.
        samples: rows for training, and as many for validation.
        num_features: columns, at least 5.
        minority_share: share of the rows in (0, 0.5] that all minority groups have together, the same in each part;
            they divide it evenly, up to one row, and so do the others with the rest. No group has less than 2 rows in
            any part, and the share gives way to that.
        separation: distance of the means of the hint, in standard deviations, at least 0.
        noise: in [0, 1): the share of labels, on average, that are replaced by another class; for regression the
            standard deviation of what is added to the label.
        task: "binary" for labels 0 and 1 (`h > 0`); "regression" for the float label `h`, which has variance 1;
            "multiclass" for labels 0, 1, 2 of equal share: `p` and `q` are then pairs of orthonormal vectors, and the
            class is the third of the circle that the point `h` in the plane is seen in.
        test_samples: rows for test.
        seed: at least 0; the same seed gives the same rows (with the same version of NumPy).

    Returns:
        Three parts of the same rules, drawn independently, with float32 features.

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


def _targets(rule: NDArray[np.float64], task: Task, noise: float, source: np.random.Generator) -> NDArray[Any]:
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
