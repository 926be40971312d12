"""The worst groups for scikit-learn: a classifier and a regressor that train for the groups they serve worst."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets

from moreauc.estimators.group_base import GroupDROEstimator, GroupsWarning, Module
from moreauc.estimators.parts import check_known, check_targets
from moreauc.metrics import group_accuracy
from moreauc.tasks.groups import (
    Array,
    Classes,
    Floats,
    Numbers,
    RegressionLoss,
    name_groups,
)

__all__ = ["GroupDROClassifier", "GroupDRORegressor", "GroupsWarning"]


class GroupDROClassifier(ClassifierMixin, GroupDROEstimator):  # type: ignore[misc]
    """Classifier, of two classes or more, that serves the groups it serves worst.

    The loss of a row is its log loss. Two classes have one output, a raw score above 0 for the second; more have one
    each. Arguments, the other attributes and errors are those of `GroupDROEstimator`; its
    text is appended to this one.

    Attributes:
        classes_: the classes, sorted.

    Example:
        >>> from moreauc.data import planted_groups
        >>> train, _, test = planted_groups(num_groups=4, samples=2000, minority_share=0.2, separation=4.0)
        >>> classifier = GroupDROClassifier(epochs=20, random_state=0).fit(train.X, train.y, groups=train.groups)
        >>> classifier.worst_group_score(test.X, test.y, test.groups) > 0.7
        True
    """

    _owner = "GroupDROClassifier"

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """Return raw scores: shape `(n,)` for two classes, above 0 for `classes_[1]`; else `(n, number of classes)`."""
        return self._scores(X).astype(np.float32)

    def predict(self, X: Any) -> Array:
        """Return the class of each row, shape `(n,)`."""
        scores = self._scores(X)
        predicted: Array = self.classes_[self._goal.predictions(scores)]
        return predicted

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Return the probabilities of `classes_`, shape `(n, number of classes)`."""
        scores = self._scores(X)
        goal: Classes = self._goal
        return goal.probabilities(scores).astype(np.float32)

    def worst_group_score(self, X: Any, y: ArrayLike, groups: Any) -> float:
        """Return the lowest accuracy of a group; arguments as in `group_score`."""
        predicted = self.predict(X)
        values = self._known_target(X, y)
        _, codes = name_groups(self._owner, groups, len(values))
        return group_accuracy(self.classes_[values], predicted, codes, top_k=1)

    def _check_target(self, X: Any, y: ArrayLike) -> tuple[Array | None, Array]:
        values = check_targets(self._owner, X, y)
        check_classification_targets(values)
        classes, codes = np.unique(values, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"{self._owner}: y must hold at least two classes, got one class, {classes[:1].tolist()}")
        return classes, codes.astype(np.int64)

    def _known_target(self, X: Any, y: ArrayLike) -> Array:
        values = check_targets(self._owner, X, y)
        check_known(self._owner, values, self.classes_)
        found: Array = np.searchsorted(self.classes_, values)
        return found

    def _make_goal(self, classes: Array | None, values: Array) -> Classes | Numbers:
        return Classes(np.asarray(classes))


class GroupDRORegressor(RegressorMixin, GroupDROEstimator):  # type: ignore[misc]
    """Regressor that serves the groups it serves worst.

    There is one output: the target less its mean, in units of its deviation. Losses are reported in units of the
    target. The other arguments, attributes and errors are those of `GroupDROEstimator`; its
    text is appended to this one.

    Args:
        sample_loss: "squared" or "absolute": the error of a row.

    Example:
        >>> from moreauc.data import planted_groups
        >>> train, _, test = planted_groups(num_groups=4, samples=2000, minority_share=0.2, task="regression")
        >>> regressor = GroupDRORegressor(epochs=20, random_state=0).fit(train.X, train.y, groups=train.groups)
        >>> regressor.worst_group_score(test.X, test.y, test.groups) > -0.6  # minus the largest squared error
        True
    """

    _owner = "GroupDRORegressor"

    def __init__(
        self,
        *,
        sample_loss: RegressionLoss = "squared",
        loss: str = "sonx",
        top_k: float = 1,
        loss_options: Mapping[str, Any] | None = None,
        module: Module | None = None,
        hidden: tuple[int, ...] = (64, 64),
        standardize: bool = True,
        epochs: int = 60,
        groups_per_batch: int = 8,
        samples_per_group: int = 16,
        sampler: Literal["auto", "groups", "plain"] = "auto",
        optimizer: Literal["adam", "sgd"] = "adam",
        lr: float = 0.003,
        weight_decay: float = 2e-4,
        validation_fraction: float = 0.2,
        patience: int | None = None,
        device: torch.device | str = "cpu",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            loss=loss,
            top_k=top_k,
            loss_options=loss_options,
            module=module,
            hidden=hidden,
            standardize=standardize,
            epochs=epochs,
            groups_per_batch=groups_per_batch,
            samples_per_group=samples_per_group,
            sampler=sampler,
            optimizer=optimizer,
            lr=lr,
            weight_decay=weight_decay,
            validation_fraction=validation_fraction,
            patience=patience,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.sample_loss = sample_loss

    def predict(self, X: Any) -> Floats:
        """Return the number predicted for each row, shape `(n,)`."""
        scores = self._scores(X)
        predicted: Floats = self._goal.predictions(scores)
        return predicted

    def worst_group_score(self, X: Any, y: ArrayLike, groups: Any) -> float:
        """Return minus the largest mean error of a group; arguments as in `group_score`."""
        return -float(self.group_score(X, y, groups).worst["loss"])

    def _check_arguments(self) -> dict[str, Any]:
        if self.sample_loss not in ("squared", "absolute"):
            raise ValueError(f"{self._owner}: sample_loss must be 'squared' or 'absolute', got {self.sample_loss!r}")
        return super()._check_arguments()

    def _check_target(self, X: Any, y: ArrayLike) -> tuple[Array | None, Array]:
        return None, self._known_target(X, y)

    def _known_target(self, X: Any, y: ArrayLike) -> Array:
        values = check_targets(self._owner, X, y)
        if values.dtype.kind not in "biuf":
            try:
                values = values.astype(np.float64)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{self._owner}: y must hold numbers, got {values.dtype}: {error}") from error
        return values.astype(np.float64)

    def _make_goal(self, classes: Array | None, values: Array) -> Classes | Numbers:
        return Numbers(float(values.mean()), float(values.std()) or 1.0, self.sample_loss)
