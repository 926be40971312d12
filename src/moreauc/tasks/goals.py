"""What is predicted for rows in groups, classes or numbers, and the loss that their epoch is chosen by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, softmax

from moreauc.data.duplicates import Codes

Array = NDArray[Any]
Floats = NDArray[np.float64]
RegressionLoss = Literal["squared", "absolute"]


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
    def loss_text(self) -> str:
        """Name of the loss of a row in words."""
        return "log loss"

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
    def loss_text(self) -> str:
        """Name of the loss of a row in words."""
        return f"{self.loss} error"

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

    def __call__(self, losses: Floats, groups: Codes) -> float:
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


def shrunk_group_losses(losses: Floats, groups: Codes) -> Floats:
    r"""Return the mean loss of each group that has rows, shrunk towards that of all rows by its uncertainty.

    The largest of several noisy means overestimates the worst group. So the mean :math:`\bar\ell_k` of :math:`n_k` rows
    becomes

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
