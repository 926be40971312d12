"""Rows in groups: their names, how many of the worst count, hold-out, loss, batches, and what epochs are chosen by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, softmax
from torch import Tensor, nn

from moreauc._checks import floor_count
from moreauc._description import checksum
from moreauc.data import TensorBatches
from moreauc.data.batches import rows_at_once, tensors_of
from moreauc.data.duplicates import Codes, any_equal, few_kinds
from moreauc.data.tables import as_frame
from moreauc.data.texts import label_text, normal_text
from moreauc.methods import TaskName, build
from moreauc.samplers.groups import GroupSampler, PlainSampler
from moreauc.tasks.base import Array, Data, Random, Task
from moreauc.tasks.rows import CHUNK

Floats = NDArray[np.float64]
RegressionLoss = Literal["squared", "absolute"]
# Methods for shuffled rows; with an equal number of rows of each group they would minimise another loss.
_PLAIN = ("erm", "erm_reweighted", "cvar")


@dataclass(frozen=True, kw_only=True)
class GroupTask(Task):
    """Rows in groups, of which the worst count."""

    name: ClassVar[TaskName] = "groups"

    num_groups: int  # number of groups
    top_k: int  # how many of the worst groups count
    goal: Classes | Numbers  # what is predicted
    # as arguments of the estimators for groups
    groups_per_batch: int = 8
    samples_per_group: int = 16
    sampler: Literal["auto", "groups", "plain"] = "auto"

    @property
    def by_groups(self) -> bool:
        """Whether each batch holds a fixed number of groups and of rows of each."""
        return self.sampler == "groups" or (self.sampler == "auto" and self.loss not in _PLAIN and self.num_groups > 1)

    def hold_out(
        self,
        values: Array,
        fraction: float,
        random: Random,
        *,
        groups: NDArray[np.int64] | None = None,
        same: Codes | None = None,
    ) -> tuple[Array, Array]:
        """Return numbers of what to train on and of the hold-out, a share of each group; see :func:`hold_out`."""
        classes = isinstance(self.goal, Classes)
        train, held = hold_out(np.asarray(groups), values, fraction, random, classes=classes, same=same)
        if same is not None and few_kinds(same[held]) is not None:  # no epoch could be chosen by them
            return np.arange(len(values)), held[:0]
        return train, held

    def fitted(self, values: Array) -> GroupTask:
        """Return the task with the goal's mean and deviation of the training values."""
        return replace(self, goal=self.goal.fitted(values))

    def targets(self, values: Array) -> Array:
        """Return what the network is trained on."""
        return self.goal.targets(values)

    def build(self, data: Data) -> Any:
        """Return the loss of the training rows."""
        facts: dict[str, Any] = {"num_groups": self.num_groups, "top_k": self.top_k, "sample_loss": self.goal.loss}
        return build(self.name, self.loss, data.groups, **facts, **self.loss_options)

    def batches(self, data: Data, loss: nn.Module, model: nn.Module, seeds: Sequence[int]) -> TensorBatches:
        """Return batches of rows."""
        sampler = self.make_sampler(np.asarray(data.groups), model, seeds[0])
        return TensorBatches(data.inputs, data.targets, sampler, binary=False)

    def make_sampler(self, groups: NDArray[np.int64], model: nn.Module, seed: int) -> GroupSampler | PlainSampler:
        """Return the batches as row numbers.

        A batch norm cannot train on one row. Where one group could be a batch, and has one row, two groups are drawn;
        a plain batch is made larger, at the latest up to all rows, until more than one row is left for the last.
        """
        if self.by_groups:
            sizes = np.bincount(groups)
            number = min(self.groups_per_batch, len(sizes))
            single = number == 1 and len(sizes) > 1 and self.samples_per_group > 1 and sizes.min() == 1
            if single and any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
                number = 2
            return GroupSampler(groups, groups_per_batch=number, samples_per_group=self.samples_per_group, seed=seed)
        size, rows = self.groups_per_batch * self.samples_per_group, len(groups)
        while 1 < size < rows and rows % size == 1:
            size += 1
        return PlainSampler(rows, batch_size=size, seed=seed)

    def validation(self, data: Data, loss: nn.Module) -> TensorBatches:
        """Return the held-out rows."""
        return TensorBatches(data.inputs, data.targets, batch_size=rows_at_once(data.inputs, CHUNK), binary=False)

    def score(self, held: Data, loss: Any) -> dict[str, Any]:
        """Return the score: minus the loss of the held-out rows that :meth:`choice` names."""
        choice = self.choice(loss)

        def score(scores: Tensor, _: Tensor) -> float:
            return -choice(self.goal.row_losses(scores.numpy(), held.values), np.asarray(held.groups))

        return {"score": score}

    def choice(self, loss: Any) -> EpochChoice:
        """Return what the epoch is chosen by: what the loss minimises, estimated from the held-out rows."""
        if self.loss in ("sonx", "exponentiated"):
            return EpochChoice(top_k=self.top_k if self.loss == "sonx" else 1)
        fraction = float(loss.criterion.fraction) if self.loss == "cvar" else 1.0
        return EpochChoice(balanced=self.by_groups or self.loss == "erm_reweighted", fraction=fraction)

    def checksum(self, data: Data) -> str:
        """Return the checksum of all inputs."""
        return checksum(tensors_of(data.inputs))


def name_groups(owner: str, groups: Any, length: int) -> tuple[Array, NDArray[np.int64]]:
    """Return the names of the groups, sorted where they can be, and the number of each row's group.

    `groups` has one label for each of `length` rows, anything that can be a key; or several columns, whose values are
    combined. Texts are compared in normal form: "F" and "F " are one group.

    Example:
        >>> name_groups("doctest", ["b", "a", "b"], 3)
        (array(['a', 'b'], dtype=object), array([1, 0, 1]))
        >>> name_groups("doctest", [("b", 1), ("a", 2)], 2)[0].tolist()
        ['a, 2', 'b, 1']
    """
    labels = _as_labels(owner, groups)
    if len(labels) != length:
        raise ValueError(f"{owner}: groups must have as many rows as X, {length}, got {len(labels)}")
    missing = labels.isna()
    places = np.flatnonzero(missing if missing.ndim == 1 else missing.any(axis=1))
    if len(places):
        raise ValueError(
            f"{owner}: groups must have no missing values, got {len(places)}, the first in row {places[0]} (from 0)"
        )
    codes: Array
    labels = labels.map(lambda value: normal_text(value) if isinstance(value, str) else value)
    if isinstance(labels, pd.DataFrame):
        codes, tuples = pd.MultiIndex.from_frame(labels).factorize()
        values = [", ".join(map(label_text, entry)) for entry in tuples]
        _check_texts(owner, values)
    else:
        try:
            codes, found = pd.factorize(labels)
        except TypeError as error:
            raise ValueError(f"{owner}: groups must be labels that can be keys, got {error}") from error
        values = list(found)
        _check_texts(owner, list(map(label_text, values)))
    order = _sorted(values)
    number = np.empty(len(values), dtype=np.int64)
    number[order] = np.arange(len(values))
    names = np.empty(len(values), dtype=object)
    names[:] = [values[place] for place in order]
    return names, number[codes]


def _check_texts(owner: str, texts: list[str]) -> None:
    if len(set(texts)) < len(texts):
        double = next(text for text in texts if texts.count(text) > 1)
        raise ValueError(f"{owner}: groups must not be mistaken for one another, got two that read {double!r}")


def hold_out(
    groups: NDArray[np.int64],
    targets: Array,
    share: float,
    random: Random,
    *,
    classes: bool = False,
    same: Codes | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return row numbers of what stays and of what is held out: the share of each group, rounded.

    At least one row of each group stays, and of each class where the targets are `classes`. What is held out of a group
    is spread evenly over its sorted targets. Rows with equal numbers `same`, from 0, stay together: the first of them
    is drawn or not, and the others follow, whatever their groups and targets.

    Example:
        >>> groups, targets = np.array([0, 0, 0, 0, 1]), np.array([1, 0, 1, 0, 1])
        >>> hold_out(groups, targets, 0.5, np.random.RandomState(0))
        (array([2, 3, 4]), array([0, 1]))
    """
    if same is None or not any_equal(same):
        held = _spread(groups, targets, share, random)
        if classes:
            held &= np.isin(targets, targets[~held])
    else:
        first = np.unique(same, return_index=True)[1]
        held = _spread(groups[first], targets[first], share, random)[same]
        back = ~np.isin(groups, groups[~held])
        if classes:
            back |= ~np.isin(targets, targets[~held])
        held &= ~np.isin(same, same[back])
    return np.flatnonzero(~held), np.flatnonzero(held)


def _spread(groups: NDArray[np.int64], targets: Array, share: float, random: Random) -> NDArray[np.bool_]:
    """Return which rows are held out: the share of each group, spread evenly over its targets."""
    order = np.argsort(groups, kind="stable")
    held = np.zeros(len(groups), dtype=bool)
    for rows in np.split(order, np.cumsum(np.bincount(groups))[:-1]):
        number = min(round(len(rows) * share), len(rows) - 1)
        if number < 1:
            continue
        mixed = random.permutation(rows)
        mixed = mixed[np.argsort(targets[mixed], kind="stable")]
        places = (np.arange(number) + random.uniform()) * len(rows) / number
        held[mixed[np.minimum(places.astype(np.int64), len(rows) - 1)]] = True
    return held


def count_worst(owner: str, top_k: Any, num_groups: int) -> int:
    """Return how many groups `top_k` is; a share of them is rounded down, and is at least one.

    Example:
        >>> count_worst("doctest", 3, 10), count_worst("doctest", 0.35, 10), count_worst("doctest", 0.01, 10)
        (3, 3, 1)
    """
    if isinstance(top_k, float | np.floating) and 0.0 < top_k < 1.0:
        return max(floor_count(num_groups, float(top_k)), 1)
    number = 0 if isinstance(top_k, bool) or not isinstance(top_k, Integral) else int(top_k)
    if number < 1:
        raise ValueError(f"{owner}: top_k must be an integer of at least 1, or a share in (0, 1), got {top_k!r}")
    if number > num_groups:
        raise ValueError(
            f"{owner}: top_k must be at most the number of groups, {num_groups}, or a share in (0, 1), got {top_k}"
        )
    return number


def _as_labels(owner: str, groups: Any) -> pd.Series[Any] | pd.DataFrame:
    """Return one column, or several; the index is that of the rows."""
    if isinstance(groups, Tensor):
        groups = groups.detach().cpu().numpy()
    if hasattr(groups, "columns"):
        groups = as_frame(owner, groups, name="groups")
    if isinstance(groups, list | tuple) and groups and isinstance(groups[0], list | tuple):
        groups = pd.DataFrame(list(groups))
    if isinstance(groups, pd.Series | pd.Index | list | tuple):
        return pd.Series(groups).reset_index(drop=True)
    if not isinstance(groups, pd.DataFrame):
        array = np.asarray(groups)
        if array.ndim not in (1, 2):
            raise ValueError(f"{owner}: groups must have shape (n,) or (n, columns), got {array.shape}")
        if array.ndim == 1:
            return pd.Series(array)
        groups = pd.DataFrame(array)
    if not groups.shape[1]:
        raise ValueError(f"{owner}: groups must have at least one column, got none")
    return groups.iloc[:, 0].reset_index(drop=True) if groups.shape[1] == 1 else groups.reset_index(drop=True)


def _sorted(values: list[Any]) -> list[int]:
    """Return the order of labels: their own where they have one, else that of their texts."""
    try:
        return sorted(range(len(values)), key=values.__getitem__)
    except TypeError:
        return sorted(range(len(values)), key=lambda place: (type(values[place]).__name__, str(values[place])))


@dataclass(frozen=True)
class Classes:
    """Two classes by one score, more by one score each; values are numbers of classes."""

    classes: Array  # their names, sorted

    @property
    def num_outputs(self) -> int:
        """Scores of a row."""
        return 1 if len(self.classes) == 2 else len(self.classes)

    @property
    def loss(self) -> Literal["logistic", "cross_entropy"]:
        """Name of the loss of a row."""
        return "logistic" if len(self.classes) == 2 else "cross_entropy"

    @property
    def unit(self) -> float:
        """Size of a loss of 1 of the network."""
        return 1.0

    def fitted(self, values: Array) -> Classes:
        """Return the same: nothing is learnt from the training rows."""
        return self

    def targets(self, values: Array) -> Array:
        """Return what the network is trained on."""
        return values

    def predictions(self, scores: Floats) -> Array:
        """Return the number of the predicted class of each row."""
        chosen: Array = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        return chosen

    def probabilities(self, scores: Floats) -> Floats:
        """Return the probabilities of the classes, shape `(n, number of classes)`."""
        result: Floats = (
            np.column_stack([expit(-scores), expit(scores)]) if scores.ndim == 1 else softmax(scores, axis=1)
        )
        return result

    def row_losses(self, scores: Floats, values: Array) -> Floats:
        """Return the log loss of each row."""
        if scores.ndim == 1:
            losses: Floats = np.logaddexp(0.0, np.where(values == 1, -scores, scores))
            return losses
        logs: Floats = log_softmax(scores, axis=1)
        return -logs[np.arange(len(values)), values]

    def table_inputs(self, scores: Floats, values: Array) -> dict[str, Array]:
        """Return what a table of groups takes beside the losses."""
        found = {"y_true": values, "y_pred": self.predictions(scores)}
        return {**found, "y_score": scores} if scores.ndim == 1 else found


@dataclass(frozen=True)
class Numbers:
    """A number, which the network sees in units of its deviation."""

    loss: RegressionLoss  # name of the loss of a row
    center: float = 0.0  # mean of the training rows
    scale: float = 1.0  # their deviation

    @property
    def num_outputs(self) -> int:
        """Scores of a row."""
        return 1

    @property
    def unit(self) -> float:
        """Size of a loss of 1 of the network."""
        return self.scale**2 if self.loss == "squared" else self.scale

    def fitted(self, values: Array) -> Numbers:
        """Return the goal with mean and deviation of the values of the training rows."""
        return Numbers(self.loss, float(values.mean()), float(values.std()) or 1.0)

    def targets(self, values: Array) -> Array:
        """Return what the network is trained on."""
        return ((values - self.center) / self.scale).astype(np.float32)

    def predictions(self, scores: Floats) -> Floats:
        """Return the number predicted for each row."""
        return self.center + self.scale * scores

    def row_losses(self, scores: Floats, values: Array) -> Floats:
        """Return the error of each row, in units of the target."""
        errors = np.abs(self.predictions(scores) - values)
        return errors**2 if self.loss == "squared" else errors

    def table_inputs(self, scores: Floats, values: Array) -> dict[str, Array]:
        """Return what a table of groups takes beside the losses."""
        return {}


@dataclass(frozen=True)
class EpochChoice:
    """The loss of the held-out rows that an epoch is chosen by; the lowest is kept.

    Example:
        >>> losses, groups = np.array([0.0, 1.0, 1.0, 2.0, 6.0, 8.0]), np.array([0, 0, 1, 1, 2, 2])
        >>> EpochChoice()(losses, groups), EpochChoice(fraction=0.5)(losses, groups)
        (3.0, 5.333...)
        >>> round(EpochChoice(top_k=1)(losses, groups), 2)  # less than 7: the group has two rows only
        6.84
    """

    top_k: int | None = None  # how many of the worst groups count; None for a mean over rows
    balanced: bool = False  # whether that mean gives all groups the same weight
    fraction: float = 1.0  # share of the rows in that mean, those with the largest losses, in (0, 1]

    def __call__(self, losses: Floats, groups: NDArray[np.int64]) -> float:
        """Return the loss, from the losses of the rows and the numbers of their groups, both of shape `(n,)`."""
        losses = losses.astype(np.float64)
        if self.top_k is not None:
            return float(np.sort(shrunk_group_losses(losses, groups))[-self.top_k :].mean())
        weights = 1.0 / np.bincount(groups)[groups] if self.balanced else np.ones(len(losses))
        order = np.argsort(-losses, kind="stable")
        mass = weights[order]
        taken = np.clip(self.fraction * mass.sum() - (np.cumsum(mass) - mass), 0.0, mass)  # the last in part
        return float((taken * losses[order]).sum() / taken.sum())

    @property
    def text(self) -> str:
        """Name of the loss in words."""
        if self.top_k is not None:
            return "loss of the worst group" if self.top_k == 1 else f"loss of the {self.top_k} worst groups"
        weights = ", with equal weights of the groups" if self.balanced else ""
        which = "all rows" if self.fraction == 1.0 else f"the worst {self.fraction:.0%} of the rows"
        return f"mean loss of {which}{weights}"


def shrunk_group_losses(losses: Floats, groups: NDArray[np.int64]) -> Floats:
    r"""Return the mean loss of each group that has rows, shrunk towards that of all rows by its uncertainty.

    The largest of several noisy means overestimates the worst group: a network that has learnt nothing has the same
    loss in all groups and looks better than one that has learnt, though no group does worse with the latter. So the
    mean :math:`\bar\ell_k` of :math:`n_k` rows becomes

    .. math:: \bar\ell + \frac{T}{T + S / n_k} (\bar\ell_k - \bar\ell)

    with the variances :math:`S` of rows inside groups and :math:`T` between groups, estimated by the analysis of
    variance (random effects). Means of many rows stay as they are; where the groups differ by no more than chance, all
    become :math:`\bar\ell`. Where no group has two rows nothing is known of :math:`S`, and it is :math:`\bar\ell`, too.

    Example:
        >>> shrunk_group_losses(np.array([0.0, 2.0, 1.0, 3.0]), np.array([0, 0, 1, 1]))  # no more than chance
        array([1.5, 1.5])
        >>> shrunk_group_losses(np.array([0.0, 2.0, 10.0, 12.0]), np.array([0, 0, 1, 1]))
        array([ 1.1, 10.9])
    """
    sizes = np.bincount(groups)
    place = (np.cumsum(sizes > 0) - 1)[groups]  # groups without rows are left out
    sizes = sizes[sizes > 0]
    means: Floats = np.bincount(place, weights=losses) / sizes
    rows, count, center = len(losses), len(sizes), losses.mean()
    if count == 1:
        return means
    if rows == count:
        return np.full(count, center)
    inside = ((losses - means[place]) ** 2).sum() / (rows - count)
    between = (sizes * (means - center) ** 2).sum() - (count - 1) * inside
    between /= rows - (sizes**2).sum() / rows
    if not between > 0.0:
        return np.full(count, center)
    shrunk: Floats = center + between / (between + inside / sizes) * (means - center)
    return shrunk
