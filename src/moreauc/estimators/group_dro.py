"""The worst groups for scikit-learn: a classifier and a regressor trained for the worst-performing groups."""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from moreauc.criteria.group_dro import GroupDROLoss
from moreauc.data.batches import SparseRows, as_inputs
from moreauc.data.groups import count_worst, name_groups
from moreauc.data.tabular import TableEncoder, same_rows
from moreauc.data.texts import label_text
from moreauc.estimators.base import Array, Floats, all_or_nothing, check_table, check_targets, with_arguments
from moreauc.estimators.description import GroupDescription
from moreauc.estimators.network_fit import NetworkEstimator, SavePlan, TableFit, table_scores
from moreauc.metrics.groups import GroupTable, group_accuracy, group_table
from moreauc.models import MLP
from moreauc.tasks.base import Data
from moreauc.tasks.goals import Classes, Numbers, RegressionLoss
from moreauc.tasks.groups import GroupTask
from moreauc.train import predict_scores

Goal = Classes | Numbers
Module = nn.Module | Callable[[int, int], nn.Module]

_NO_GROUPS = (
    "{}: no groups were given to fit, so that all rows are one group; pass groups=, in a search or a pipeline by "
    "metadata routing (set_fit_request(groups=True)), or the same label for all rows where their mean loss is meant"
)


class GroupsWarning(UserWarning):
    """No groups were given to an estimator that trains for the worst of them."""


def exact_scores(owner: str, model: nn.Module, inputs: Tensor | SparseRows) -> Floats:
    """Return the raw scores of encoded rows: of an MLP in float64, where they do not depend on the rows beside them."""
    inputs = inputs.cpu()
    if isinstance(model, MLP):
        model, inputs = copy.deepcopy(model).double(), inputs.double()
    return table_scores(owner, model, inputs)


@dataclass(kw_only=True)
class GroupFit(TableFit[GroupTask]):
    """Networks for rows in groups; see :class:`GroupDROEstimator`."""

    estimator: GroupDROEstimator

    def _make_module(self, data: Data, task: GroupTask, loss: nn.Module, seed: int, number: int) -> nn.Module:
        num_inputs, num_outputs = data.inputs.shape[1], task.goal.num_outputs
        if self.estimator.module is None:
            return self._build_module(
                partial(MLP, hidden=self.estimator.hidden, num_outputs=num_outputs), num_inputs, seed=seed
            )
        made = self._build_module(self.estimator.module, num_inputs, num_outputs, seed=seed)
        first = data.inputs.index_select(0, torch.zeros(1, dtype=torch.long, device=self.estimator.device))
        scores = predict_scores(made.to(self.estimator.device), [(first, torch.zeros(1))])[0]
        wanted = (1,) if num_outputs == 1 else (1, num_outputs)
        if tuple(scores.shape) != wanted:
            raise ValueError(f"{self.owner}: module must give scores of shape {wanted} for a row, got {scores.shape}")
        return made

    def _raw_scores(self, model: nn.Module, inputs: Tensor | SparseRows) -> Floats:
        return exact_scores(self.owner, model, inputs)


@with_arguments
class GroupDROEstimator(NetworkEstimator):
    """Arguments and attributes of the estimators for groups.

    They minimise the mean loss of the `top_k` worst groups, by SONX or by another method of :mod:`moreauc.methods`;
    groups are needed in `fit`, not in `predict`. A share of each group is held out to choose the best epoch, by the
    quantity that the method minimises; there is no second training on all rows. The mean over few held-out rows is
    noisy, so that the largest of several means overestimates the loss; for "sonx" and "exponentiated" the means are
    therefore shrunk towards the overall mean, by as much as sampling noise explains their differences. No rows are held
    out from groups that are too small; if all groups are, the last epoch is kept. If no epoch is better than the
    initial weights these are kept, with an :class:`~moreauc.train.UntrainedWarning`.

    `X` is an array of numbers, NaN for missing values, a sparse matrix, or a DataFrame that may also have bool, string,
    category and date columns; see the guide for what is done with them.

    Without `groups` all rows form one group, so that the mean loss is minimised, with a `GroupsWarning`.

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
        preprocessor_: turns `X` into what `model_` takes.
        n_features_in_: number of features.
        feature_names_in_: their names, if the data were DataFrames with string column names.
        groups_: names of the groups, sorted where they can be.
        group_table_: loss and score of each group on the held-out rows (on the training rows if none are held out), a
            :class:`~moreauc.metrics.groups.GroupTable`.
        top_k_: `top_k` as a number of groups.
        loss_threshold_: for "sonx", the mean loss above which a group contributed to the loss at the end; else None.
        chosen_by_: description of the held-out loss that the epoch was chosen by; `score` in `history_` is its
            negative. None if no rows are held out.
    """

    _task = "groups"

    loss: str = "sonx"
    top_k: float = 1
    module: Module | None = None
    hidden: tuple[int, ...] = (64, 64)
    groups_per_batch: int = 8
    samples_per_group: int = 16
    sampler: Literal["auto", "groups", "plain"] = "auto"
    weight_decay: float = 2e-4
    _goal: Goal = field(init=False)  # set by `fit`
    preprocessor_: TableEncoder = field(init=False)

    @all_or_nothing
    def fit(
        self,
        X: object,
        y: ArrayLike,
        groups: object = None,
        *,
        checkpoint: str | Path | None = None,
        every: int | None = None,
        resume: bool = True,
    ) -> Self:
        """Train on a table, its targets and the groups of its rows.

        Args:
            X: array or DataFrame, shape `(n, n_features)`.
            y: targets, shape `(n,)`.
            groups: label of each row's group, anything that can be a key, shape `(n,)`; or several columns, shape
                `(n, columns)`, whose combinations are the groups. None for one group of all rows: the mean loss is
                trained, with a `GroupsWarning`.
            checkpoint: folder to save the training in, as in :func:`moreauc.train.fit`, so that the same call resumes
                it; needs an integer `random_state`. None for no checkpoints.
            every: steps between two saves; None to save at the end of each epoch only.
            resume: whether to resume from an existing checkpoint; if False, an existing one is an error.
        """
        self._check_training()
        training = GroupFit(estimator=self)
        X = check_table(self, X, reset=True)
        values, goal = self._read_targets(X, y)
        labels = np.zeros(len(values), dtype=np.int64) if groups is None else groups
        names, codes = name_groups(self._owner, labels, len(values))
        top_k = count_worst(self._owner, self.top_k, len(names))
        task = self._make_task(GroupTask, num_groups=len(names), top_k=top_k, goal=goal)
        if groups is None:
            warnings.warn(_NO_GROUPS.format(self._owner), GroupsWarning, stacklevel=3)
        same = same_rows(self._owner, X) if self.validation_fraction else None
        found = training.run(task, X, values, SavePlan(checkpoint, every, resume), groups=codes, same=same)
        self._keep(found)
        self._goal, self.preprocessor_, loss = found.task.goal, training.encoder, self.loss_
        self.groups_, self.top_k_ = names, top_k
        self.chosen_by_ = task.choice(loss).text if len(found.held_out) else None
        threshold = loss.criterion.s if isinstance(loss.criterion, GroupDROLoss) else None
        self.loss_threshold_ = None if threshold is None else self._goal.unit * float(threshold)
        self.group_table_ = self._table(found.scores, found.data.values, codes[found.numbers], names)
        return self

    def group_score(self, X: object, y: ArrayLike, groups: object) -> GroupTable:
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

    def row_losses(self, X: object, y: ArrayLike) -> Floats:
        """Return the loss of each row of a table, shape `(n,)`, whose means are those of the groups."""
        scores = self._scores(X)
        losses: Floats = self._goal.row_losses(scores, self._known_target(X, y))
        return losses

    def describe(self) -> GroupDescription:
        """Return what a page shows of the fitted estimator."""
        return GroupDescription(
            **vars(super().describe()),
            row_loss=self._goal.loss_text,
            top_k=self.top_k_,
            chosen_by=self.chosen_by_,
            loss_threshold=self.loss_threshold_,
        )

    def _check_own(self) -> None:
        self._check_choices(sampler=("auto", "groups", "plain"))
        if self.sampler == "groups" and self.loss == "erm_reweighted":
            raise ValueError(
                f"{self._owner}: sampler must not be 'groups' with 'erm_reweighted': rare groups count twice"
            )
        self._check_module()
        self._check_counts("groups_per_batch", "samples_per_group")

    @abstractmethod
    def _read_targets(self, X: object, y: ArrayLike) -> tuple[Array, Goal]:
        """Return the class number or value of each row, and the kind of target."""

    @abstractmethod
    def _known_target(self, X: object, y: ArrayLike) -> Array:
        """Return the same numbers or values for targets that come after `fit`."""

    def _table(self, scores: Floats, values: Array, codes: NDArray[np.int64], names: Array) -> GroupTable:
        return group_table(
            groups=codes,
            losses=self._goal.row_losses(scores, values),
            names=[label_text(name) for name in names],
            num_groups=len(names),
            **self._goal.table_inputs(scores, values),
        )

    def _scores(self, X: object) -> Floats:
        check_is_fitted(self)
        table = check_table(self, X, reset=False)
        return exact_scores(self._owner, self.model_, as_inputs(self.preprocessor_.transform(table)))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.sparse = True
        return tags


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

    _goal: Classes

    def decision_function(self, X: object) -> NDArray[np.float32]:
        """Return raw scores: shape `(n,)` for two classes, above 0 for `classes_[1]`; else `(n, number of classes)`."""
        return self._scores(X).astype(np.float32)

    def predict(self, X: object) -> Array:
        """Return the class of each row, shape `(n,)`."""
        scores = self._scores(X)
        predicted: Array = self.classes_[self._goal.predictions(scores)]
        return predicted

    def predict_proba(self, X: object) -> NDArray[np.float32]:
        """Return the probabilities of `classes_`, shape `(n, number of classes)`."""
        scores = self._scores(X)
        return self._goal.probabilities(scores).astype(np.float32)

    def worst_group_score(self, X: object, y: ArrayLike, groups: object) -> float:
        """Return the lowest accuracy of a group; arguments as in `group_score`."""
        predicted = self.predict(X)
        values = self._known_target(X, y)
        _, codes = name_groups(self._owner, groups, len(values))
        return group_accuracy(self.classes_[values], predicted, codes, top_k=1)

    def _read_targets(self, X: object, y: ArrayLike) -> tuple[Array, Goal]:
        values = check_targets(self._owner, X, y)
        check_classification_targets(values)
        classes, codes = np.unique(values, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"{self._owner}: y must hold at least two classes, got one class, {classes[:1].tolist()}")
        self.classes_ = classes
        return codes.astype(np.int64), Classes(classes)

    def _known_target(self, X: object, y: ArrayLike) -> Array:
        values = check_targets(self._owner, X, y)
        self._check_known(values)
        found: Array = np.searchsorted(self.classes_, values)
        return found


@with_arguments
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

    sample_loss: RegressionLoss = "squared"

    def predict(self, X: object) -> Floats:
        """Return the number predicted for each row, shape `(n,)`."""
        scores = self._scores(X)
        predicted: Floats = self._goal.predictions(scores)
        return predicted

    def worst_group_score(self, X: object, y: ArrayLike, groups: object) -> float:
        """Return the negative of the largest mean error of a group; arguments as in `group_score`."""
        return -float(self.group_score(X, y, groups).worst["loss"])

    def _check_own(self) -> None:
        self._check_choices(sample_loss=("squared", "absolute"))
        super()._check_own()

    def _read_targets(self, X: object, y: ArrayLike) -> tuple[Array, Goal]:
        return self._known_target(X, y), Numbers(self.sample_loss)

    def _known_target(self, X: object, y: ArrayLike) -> Array:
        values = check_targets(self._owner, X, y)
        if values.dtype.kind not in "biuf":
            try:
                values = values.astype(np.float64)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{self._owner}: y must hold numbers, got {values.dtype}: {error}") from error
        return values.astype(np.float64)
