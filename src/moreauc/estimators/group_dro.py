"""The worst groups for scikit-learn: a classifier and a regressor trained for the worst-performing groups."""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor, nn

from moreauc.data.groups import count_worst, name_groups
from moreauc.data.tabular import same_rows
from moreauc.data.texts import label_text
from moreauc.estimators.base import Array, Saving, TableEstimator, all_or_nothing
from moreauc.estimators.description import GroupDescription
from moreauc.metrics import group_accuracy, group_table
from moreauc.metrics.groups import GroupTable
from moreauc.models import MLP
from moreauc.tasks.base import Data
from moreauc.tasks.goals import Classes, Floats, Numbers, RegressionLoss
from moreauc.tasks.groups import GroupTask
from moreauc.train import predict_scores

Module = nn.Module | Callable[[int, int], nn.Module]

_NO_GROUPS = (
    "{}: no groups were given to fit, so that all rows are one group; pass groups=, in a search or a pipeline by "
    "metadata routing (set_fit_request(groups=True)), or the same label for all rows where their mean loss is meant"
)


class GroupsWarning(UserWarning):
    """No groups were given to an estimator that trains for the worst of them."""


class GroupDROEstimator(TableEstimator):
    """Arguments and attributes of the estimators for groups.

    They minimise the mean loss of the `top_k` worst groups, by SONX or by another method of :mod:`moreauc.methods`;
    groups are needed in `fit`, not in `predict`. A share of each group is held out to choose the best epoch, by the
    quantity that the method minimises; there is no second training on all rows. The mean over few held-out rows is
    noisy, so that the largest of several means overestimates the loss; for "sonx" and "exponentiated" the means are
    therefore shrunk towards the overall mean, by as much as sampling noise explains their differences. No rows are held
    out from groups that are too small; if all groups are, the last epoch is kept. If no epoch is better than the
    initial weights these are kept, with an :class:`~moreauc.train.UntrainedWarning`.

    Without `groups` all rows form one group, so that the mean loss is minimised, with a :class:`GroupsWarning`.

    Args:
        loss: "sonx", "exponentiated" (group DRO by exponentiated gradient), "erm" (mean over rows), "erm_reweighted"
            (mean over groups) or "cvar" (the worst rows, regardless of group).
        top_k: how many of the worst groups count: an integer, or a float in (0, 1) for a share, rounded down to at
            least one group; other floats, such as 2.0, are errors. Only "sonx" uses it, in training and in the choice
            of the epoch.
        module: None for a fully connected network, a module (a copy of it is trained, from its current weights), or a
            function that makes one from the numbers of inputs and of outputs. It maps `(B, inputs)` to `(B, outputs)`;
            with one output, `(B,)` is allowed.
        hidden: widths of the hidden layers of the network; `()` for a linear model.
        groups_per_batch: groups in a batch, at most the number of groups; 2 instead of 1 if a module with batch norm
            could get a single row.
        samples_per_group: rows of each group in a batch; a batch of the sampler "plain" has `groups_per_batch *
            samples_per_group` rows, or a few more if the last batch would have a single row.
        sampler: "groups" for a fixed number of groups and of rows of each per batch, "plain" for shuffled rows; "auto"
            is "plain" with "erm", "erm_reweighted" and "cvar", and with one group, and "groups" with the others.

    Attributes:
        groups_: names of the groups, sorted where they can be.
        group_table_: loss and score of each group on the held-out rows (on the training rows if none are held out), a
            :class:`~moreauc.metrics.groups.GroupTable`.
        top_k_: `top_k` as a number of groups.
        loss_threshold_: for "sonx", the mean loss above which a group contributed to the loss at the end; else None.
        chosen_by_: description of the held-out loss that the epoch was chosen by; `score` in `history_` is its
            negative. None if no rows are held out.
    """

    _task = GroupTask
    _goal: Any  # Classes or Numbers, set by `fit`

    def __init__(
        self,
        *,
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
        self._keep(locals())

    @all_or_nothing
    def fit(
        self,
        X: Any,
        y: ArrayLike,
        groups: Any = None,
        *,
        checkpoint: str | Path | None = None,
        every: int | None = None,
        resume: bool = True,
    ) -> Any:
        """Train on a table, its targets and the groups of its rows.

        Args:
            X: array or DataFrame, shape `(n, n_features)`.
            y: targets, shape `(n,)`.
            groups: label of each row's group, anything that can be a key, shape `(n,)`; or several columns, shape
                `(n, columns)`, whose combinations are the groups. None for one group of all rows: the mean loss is
                trained, with a :class:`GroupsWarning`.
            checkpoint: folder to save the training in, so that the same call resumes an interrupted training; needs an
                integer `random_state`. None for no checkpoints. See also :func:`moreauc.train.fit`.
            every: steps between two saves; None to save at the end of each epoch only.
            resume: whether to resume from an existing checkpoint; if False, an existing one is an error.
        """
        self._check_arguments()
        X = self._check_table(X, reset=True)
        values, goal = self._read_targets(X, y)
        labels = np.zeros(len(values), dtype=np.int64) if groups is None else groups
        names, codes = name_groups(self._owner, labels, len(values))
        top_k = count_worst(self._owner, self.top_k, len(names))
        task = self._make_task(num_groups=len(names), top_k=top_k, goal=goal)
        if groups is None:
            warnings.warn(_NO_GROUPS.format(self._owner), GroupsWarning, stacklevel=3)
        same = same_rows(self._owner, X) if self.validation_fraction else None
        trained = self._train(task, X, values, Saving(checkpoint, every, resume), groups=codes, same=same)
        self._goal, loss = trained.task.goal, self.loss_
        self.groups_, self.top_k_ = names, top_k
        self.chosen_by_ = task.choice(loss).text if len(self.held_out_) else None
        threshold = getattr(loss.criterion, "s", None)
        self.loss_threshold_ = None if threshold is None else self._goal.unit * float(threshold)
        self.group_table_ = self._table(trained.scores, trained.data.values, codes[trained.numbers], names)
        return self

    def group_score(self, X: Any, y: ArrayLike, groups: Any) -> GroupTable:
        """Return how well the model does on each group of a table: its size, its mean loss, and more.

        Args:
            X: array or DataFrame, shape `(n, n_features)`.
            y: targets, shape `(n,)`.
            groups: of the rows, as in `fit`; groups that were not there in `fit` may be among them.
        """
        scores = self._scores(X)
        values = self._known_target(X, y)
        names, codes = name_groups(self._owner, groups, len(values))
        return self._table(scores, values, codes, names)

    def row_losses(self, X: Any, y: ArrayLike) -> Floats:
        """Return the loss of each row of a table, shape `(n,)`, whose means are those of the groups."""
        scores = self._scores(X)
        losses: Floats = self._goal.row_losses(scores, self._known_target(X, y))
        return losses

    def describe(self) -> GroupDescription:
        """Return what a page shows of the fitted estimator."""
        return GroupDescription(
            kind="network",
            title=self.title,
            histories=self._histories(),
            held_out=self.held_out_,
            row_loss=self._goal.loss_text,
            top_k=self.top_k_,
            chosen_by=self.chosen_by_,
            loss_threshold=self.loss_threshold_,
        )

    @abstractmethod
    def _read_targets(self, X: Any, y: ArrayLike) -> tuple[Array, Classes | Numbers]:
        """Return the class number or value of each row, and the kind of target."""

    @abstractmethod
    def _known_target(self, X: Any, y: ArrayLike) -> Array:
        """Return the same numbers or values for targets that come after `fit`."""

    def _table(self, scores: Floats, values: Array, codes: NDArray[np.int64], names: Array) -> GroupTable:
        return group_table(
            groups=codes,
            losses=self._goal.row_losses(scores, values),
            names=[label_text(name) for name in names],
            num_groups=len(names),
            **self._goal.table_inputs(scores, values),
        )

    def _check_own_arguments(self) -> None:
        self._check_choices(sampler=("auto", "groups", "plain"))
        if self.sampler == "groups" and self.loss == "erm_reweighted":
            raise ValueError(
                f"{self._owner}: sampler must not be 'groups' with 'erm_reweighted': rare groups count twice"
            )
        self._check_module()
        self._check_counts("groups_per_batch", "samples_per_group")

    def _make_module(self, data: Data, task: GroupTask, loss: Any, seed: int, number: int) -> nn.Module:
        num_inputs, num_outputs = data.inputs.shape[1], task.goal.num_outputs
        if self.module is None:
            return self._build_module(partial(MLP, hidden=self.hidden, num_outputs=num_outputs), num_inputs, seed=seed)
        made = self._build_module(self.module, num_inputs, num_outputs, seed=seed)
        first = data.inputs.index_select(0, torch.zeros(1, dtype=torch.long, device=self.device))
        scores = predict_scores(made.to(self.device), [(first, torch.zeros(1))])[0]
        wanted = (1,) if num_outputs == 1 else (1, num_outputs)
        if tuple(scores.shape) != wanted:
            raise ValueError(f"{self._owner}: module must give scores of shape {wanted} for a row, got {scores.shape}")
        return made

    def _raw_scores(self, model: nn.Module, inputs: Tensor) -> Floats:
        inputs = inputs.cpu()
        if isinstance(model, MLP):  # in float64 the score of a row does not depend on the rows beside it
            model, inputs = copy.deepcopy(model).double(), inputs.double()
        return self._table_scores(model, inputs)


class GroupDROClassifier(ClassifierMixin, GroupDROEstimator):  # type: ignore[misc]
    """Classifier, of two classes or more, trained for the worst-performing groups.

    The loss of a row is its log loss. With two classes the model has one output, a raw score above 0 for the second
    class; with more it has one output for each class.

    Attributes:
        classes_: the classes, sorted.

    Example:
        >>> from moreauc.data import planted_groups
        >>> train, _, test = planted_groups(num_groups=4, samples=2000, minority_share=0.2, separation=4.0)
        >>> classifier = GroupDROClassifier(epochs=20, random_state=0).fit(train.X, train.y, groups=train.groups)
        >>> classifier.worst_group_score(test.X, test.y, test.groups) > 0.7
        True
    """

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

    def _read_targets(self, X: Any, y: ArrayLike) -> tuple[Array, Classes | Numbers]:
        values = self._check_targets(X, y)
        check_classification_targets(values)
        classes, codes = np.unique(values, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"{self._owner}: y must hold at least two classes, got one class, {classes[:1].tolist()}")
        self.classes_ = classes
        return codes.astype(np.int64), Classes(classes)

    def _known_target(self, X: Any, y: ArrayLike) -> Array:
        values = self._check_targets(X, y)
        self._check_known(values)
        found: Array = np.searchsorted(self.classes_, values)
        return found


class GroupDRORegressor(RegressorMixin, GroupDROEstimator):  # type: ignore[misc]
    """Regressor trained for the worst-performing groups.

    The model predicts the standardized target. Losses are reported in the units of the target.

    Args:
        sample_loss: "squared" or "absolute": the error of a row.

    Example:
        >>> from moreauc.data import planted_groups
        >>> train, _, test = planted_groups(num_groups=4, samples=2000, minority_share=0.2, task="regression")
        >>> regressor = GroupDRORegressor(epochs=20, random_state=0).fit(train.X, train.y, groups=train.groups)
        >>> regressor.worst_group_score(test.X, test.y, test.groups) > -0.6  # minus the largest squared error
        True
    """

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
        self._keep(locals())

    def predict(self, X: Any) -> Floats:
        """Return the number predicted for each row, shape `(n,)`."""
        scores = self._scores(X)
        predicted: Floats = self._goal.predictions(scores)
        return predicted

    def worst_group_score(self, X: Any, y: ArrayLike, groups: Any) -> float:
        """Return the negative of the largest mean error of a group; arguments as in `group_score`."""
        return -float(self.group_score(X, y, groups).worst["loss"])

    def _check_own_arguments(self) -> None:
        if self.sample_loss not in ("squared", "absolute"):
            raise ValueError(f"{self._owner}: sample_loss must be 'squared' or 'absolute', got {self.sample_loss!r}")
        super()._check_own_arguments()

    def _read_targets(self, X: Any, y: ArrayLike) -> tuple[Array, Classes | Numbers]:
        return self._known_target(X, y), Numbers(self.sample_loss)

    def _known_target(self, X: Any, y: ArrayLike) -> Array:
        values = self._check_targets(X, y)
        if values.dtype.kind not in "biuf":
            try:
                values = values.astype(np.float64)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{self._owner}: y must hold numbers, got {values.dtype}: {error}") from error
        return values.astype(np.float64)
