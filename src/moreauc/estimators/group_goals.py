"""What a model of rows in groups predicts, classes or numbers: targets for the network, and losses of its scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, softmax

Array = NDArray[Any]
Floats = NDArray[np.float64]
RegressionLoss = Literal["squared", "absolute"]


@dataclass(frozen=True)
class Classes:
    """Two classes by one score, more by one score each; values are numbers of classes.

    Attributes:
        classes: their names, sorted.
    """

    classes: Array

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

    def targets(self, values: Array) -> Array:
        """Return what the network is trained on."""
        return values

    def predictions(self, scores: Floats) -> Array:
        """Return the number of the class that each row is taken for."""
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
    """A number, which the network sees in units of its deviation.

    Attributes:
        center: mean of the training rows.
        scale: their deviation.
        loss: name of the loss of a row.
    """

    center: float
    scale: float
    loss: RegressionLoss

    @property
    def num_outputs(self) -> int:
        """Scores of a row."""
        return 1

    @property
    def unit(self) -> float:
        """Size of a loss of 1 of the network."""
        return self.scale**2 if self.loss == "squared" else self.scale

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
