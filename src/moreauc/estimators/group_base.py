"""What the classifier and the regressor of :mod:`moreauc.estimators` share: a shell over the training loop."""

from __future__ import annotations

import copy
import inspect
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from moreauc._all_or_nothing import all_or_nothing
from moreauc._checks import check_count
from moreauc._checksum import checksum
from moreauc.data import TensorBatches
from moreauc.data._normal_form import label_text
from moreauc.data.duplicates import few_kinds
from moreauc.data.tabular import TableEncoder, same_rows
from moreauc.estimators.parts import (
    CHUNK,
    check_choices,
    check_module,
    check_options,
    check_table,
    check_training,
    make_module,
    table_scores,
    training_arguments,
)
from moreauc.methods import METHODS, build
from moreauc.metrics import GroupTable, group_table
from moreauc.models import MLP
from moreauc.samplers.groups import GroupSampler, PlainSampler
from moreauc.tasks.groups import (
    Array,
    Classes,
    Floats,
    Numbers,
    count_worst,
    epoch_choice,
    group_batches,
    hold_out,
    name_groups,
    plain_batches,
)
from moreauc.train import fit, predict_scores

Module = nn.Module | Callable[[int, int], nn.Module]

_TAKEN = (
    "task",
    "name",
    "targets",
    "num_groups",
    "top_k",
    "sample_loss",
    "group_sizes",
    "num_samples",
)  # what the estimator gives to a criterion
_PLAIN = ("erm", "erm_reweighted", "cvar")  # methods that take rows as they come; groups of equal say are another goal


_NO_GROUPS = (
    "{}: no groups were given to fit, so that all rows are one group; pass groups=, in a search or a pipeline by "
    "metadata routing (set_fit_request(groups=True)), or the same label for all rows where their mean loss is meant"
)


class GroupsWarning(UserWarning):
    """No groups were given to an estimator that trains for the worst of them."""


class GroupDROEstimator(BaseEstimator):  # type: ignore[misc]
    """A network trained for the groups of rows that it serves worst.

    Trained is the mean loss of the `top_k` worst groups, by SONX or by another method of
    :mod:`moreauc.methods`; groups are needed in `fit`, not in `predict`. A share of each group is held out:
    the epoch that is best on it by what the method minimises is kept, and there is no second training on all rows. A
    mean over few held-out rows of a group is noisy, and the worst of several is too high; for "sonx" and
    "exponentiated" the means are therefore drawn towards that of all rows, as far as chance explains how they differ.
    Groups too small to hold rows out are trained on only; where all are, the last epoch is kept. Where no epoch is
    better than the weights before training these are kept, with an :class:`~moreauc.train.UntrainedWarning`.

    `X` is an array of numbers, NaN for missing values, or a DataFrame that may also have bool, string and category
    columns, as for :class:`~moreauc.estimators.TPAUCClassifier`. Without `groups` all rows are one group, and what is
    trained is the mean loss; a :class:`GroupsWarning` says so.

    Args:
        loss: "sonx", "exponentiated" (group DRO by exponentiated gradient), "erm" (the mean of rows),
            "erm_reweighted" (the mean of groups) or "cvar" (the worst rows, whatever their groups).
        top_k: how many of the worst groups count: an integer, or a float in (0, 1) for a share, rounded down to at
            least one group; other floats are refused, also 2.0. Only "sonx" trains for it and chooses its epoch by it.
        loss_options: keyword arguments of the method's loss, for instance `{"gamma": 0.1}`; None for the preset.
        module: None for a fully connected network, a module (a copy of it is trained, from its present weights), or a
            function that makes one from the numbers of inputs and of outputs. It maps `(B, inputs)` to `(B, outputs)`;
            where there is one output, `(B,)` will do.
        hidden: widths of the hidden layers of the network; `()` for a linear model.
        standardize: whether to bring the numbers of `X` to mean 0 and deviation 1.
        epochs: passes over the training rows.
        groups_per_batch: groups of a step, at most as many as there are; 2 instead of 1 where a module with a batch
            norm could get a single row.
        samples_per_group: rows of each; a plain batch has `groups_per_batch * samples_per_group` rows, or a few more
            where a single row would be left for the last.
        sampler: "groups" for so many rows of so many groups in each batch, "plain" for rows as they come, "auto" for
            "plain" with "erm", "erm_reweighted" and "cvar", and with one group, and "groups" with the others.
        optimizer: "adam" (AdamW), whose steps do not depend on the scale of the loss, or "sgd".
        lr: learning rate; divided by 10 after one third and two thirds of the epochs.
        weight_decay: weight decay; decoupled from the gradient with "adam".
        validation_fraction: share of each group held out, in [0, 1).
        patience: end after so many epochs without a better score on the held-out rows; None to run all.
        device: where to train. The fitted model is on the CPU.
        random_state: seed or generator of the split, the initial weights, the batches and dropout; None for NumPy's
            global generator.
        verbose: 0, or 1 for a progress bar.

    Attributes:
        groups_: names of the groups, sorted where they can be.
        group_table_: how well each group does on the held-out rows (on the training rows where nothing is held out), a
            :class:`~moreauc.metrics.GroupTable`.
        top_k_: how many groups `top_k` was.
        loss_threshold_: of "sonx", the mean loss above which a group counted at the end; None for other methods.
        model_: the network, in `eval()` mode on the CPU.
        loss_: the loss as it was after the last step, a :class:`~moreauc.criteria.grouped.GroupedLoss`.
        preprocessor_: turns `X` into what `model_` takes.
        history_: numbers of each epoch, a :class:`~moreauc.train.history.History`; `score` is minus `chosen_by_`.
        chosen_by_: the loss of the held-out rows that the epoch was chosen by, in words; None where nothing is held
            out.
        held_out_: row numbers of what was held out; empty where nothing was.
        n_features_in_: columns of `X`.
        feature_names_in_: their names, where `X` was a DataFrame with string names.

    Raises:
        ValueError: in `fit`, for an argument out of range, data that cannot be used, groups with missing labels, and
            more groups asked for by `top_k` than there are; nothing is trained then.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Let `help` of a leaf show what is said here, after what the leaf says of itself."""
        super().__init_subclass__(**options)
        if cls.__doc__ and GroupDROEstimator.__doc__:  # neither is there where Python runs without docstrings
            cls.__doc__ = f"{inspect.cleandoc(cls.__doc__)}\n\n{inspect.cleandoc(GroupDROEstimator.__doc__)}\n"

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
        self.loss = loss
        self.top_k = top_k
        self.loss_options = loss_options
        self.module = module
        self.hidden = hidden
        self.standardize = standardize
        self.epochs = epochs
        self.groups_per_batch = groups_per_batch
        self.samples_per_group = samples_per_group
        self.sampler = sampler
        self.optimizer = optimizer
        self.lr = lr
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

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
            checkpoint: folder to save the training in, so that the same call goes on where it was interrupted, given an
                integer `random_state`; None for none. See :func:`moreauc.train.fit` for this and the next two.
            every: steps between two saves; None for the ends of epochs only.
            resume: whether to go on from a checkpoint that is there; if not, there must be none.
        """
        options = self._check_arguments()
        X = check_table(self._owner, self, X, reset=True)
        classes, values = self._check_target(X, y)
        labels = np.zeros(len(values), dtype=np.int64) if groups is None else groups
        names, codes = name_groups(self._owner, labels, len(values))
        top_k = count_worst(self._owner, self.top_k, len(names))
        random = check_random_state(self.random_state)
        if groups is None:
            warnings.warn(_NO_GROUPS.format(self._owner), GroupsWarning, stacklevel=3)
        same = same_rows(self._owner, X)
        train, held = hold_out(
            codes,
            values,
            self.validation_fraction,
            random,
            classes=classes is not None,
            same=same,
        )
        if few_kinds(same[held]) is not None:  # no epoch could be chosen by them
            train, held = np.arange(len(codes)), held[:0]
        goal = self._make_goal(classes, values[train])
        seeds = [int(seed) for seed in random.randint(2**31 - 1, size=3)]

        encoder = TableEncoder(standardize=self.standardize, owner=type(self).__name__).fit(X, rows=train)
        inputs = torch.from_numpy(encoder.encode(X)).to(self.device)
        targets = torch.from_numpy(goal.targets(values)).to(self.device)
        model = self._make_module(inputs, goal.num_outputs, seeds[0])
        criterion = build(
            "groups", self.loss, codes[train], num_groups=len(names), top_k=top_k, sample_loss=goal.loss, **options
        )
        sampler = self._make_sampler(codes[train], model, seeds[1])
        balanced = isinstance(sampler, GroupSampler)
        choice = epoch_choice(self.loss, criterion.criterion, top_k=top_k, balanced=balanced)

        def merit(scores: Tensor, _: Tensor) -> float:
            return -choice(goal.row_losses(scores.numpy(), values[held]), codes[held])

        validation = TensorBatches(inputs[held], targets[held], batch_size=CHUNK, binary=False) if len(held) else None
        batches = TensorBatches(inputs[train], targets[train], sampler, binary=False)
        if checkpoint is not None:
            batches.checksum_of_inputs = checksum([inputs])
        history = fit(
            model,
            criterion,
            batches,
            validation=validation,
            score=merit,
            checkpoint=checkpoint,
            every=every,
            resume=resume,
            **training_arguments(self, held=held, seed=seeds[2]),
        )
        model, rows = model.cpu().eval(), held if len(held) else train
        scores = self._raw_scores(model, inputs[rows].cpu())  # which may fail: until then nothing is fitted
        self._goal = goal
        if classes is not None:
            self.classes_ = classes
        self.model_, self.loss_, self.preprocessor_ = model, criterion.cpu(), encoder
        self.groups_, self.top_k_, self.history_, self.held_out_ = names, top_k, history, held
        self.chosen_by_ = choice.text if len(held) else None
        threshold = getattr(criterion.criterion, "s", None)
        self.loss_threshold_ = None if threshold is None else goal.unit * float(threshold)
        self.group_table_ = self._table(scores, values[rows], codes[rows], names)
        return self

    def group_score(self, X: Any, y: ArrayLike, groups: Any) -> GroupTable:
        """Return how well each group of a table is served: its size, its mean loss, and more.

        Args:
            X: array or DataFrame, shape `(n, n_features)`.
            y: targets, shape `(n,)`.
            groups: of the rows, as in `fit`; groups that were not there in `fit` may be among them.
        """
        scores = self._scores(X)
        values = self._known_target(X, y)
        names, codes = name_groups(self._owner, groups, len(values))
        return self._table(scores, values, codes, names)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    _owner: str
    _goal: Any  # Classes or Numbers, which the leaf knows

    @abstractmethod
    def _check_target(self, X: Any, y: ArrayLike) -> tuple[Array | None, Array]:
        """Return the classes, None for regression, and for each row the number of its class or its value."""

    @abstractmethod
    def _known_target(self, X: Any, y: ArrayLike) -> Array:
        """Return the same numbers or values for targets that come after `fit`."""

    @abstractmethod
    def _make_goal(self, classes: Array | None, values: Array) -> Classes | Numbers:
        """Return what is to be learnt, from the targets of the training rows."""

    def _table(self, scores: Floats, values: Array, codes: NDArray[np.int64], names: Array) -> GroupTable:
        """Return the table of groups."""
        goal = self._goal
        return group_table(
            groups=codes,
            losses=goal.row_losses(scores, values),
            names=[label_text(name) for name in names],
            num_groups=len(names),
            **goal.table_inputs(scores, values),
        )

    def _check_arguments(self) -> dict[str, Any]:
        """Check what :func:`moreauc.train.fit` and the modules do not check themselves; return the loss's options."""
        owner = self._owner
        choices = {"loss": METHODS["groups"], "optimizer": ("adam", "sgd"), "sampler": ("auto", "groups", "plain")}
        check_choices(owner, self, choices)
        if self.sampler == "groups" and self.loss == "erm_reweighted":
            raise ValueError(f"{owner}: sampler must not be 'groups' with 'erm_reweighted': rare groups count twice")
        check_module(owner, self.module)
        check_count(owner, "groups_per_batch", self.groups_per_batch)
        check_count(owner, "samples_per_group", self.samples_per_group)
        check_training(owner, self)
        return check_options(owner, "loss_options", self.loss_options, taken=_TAKEN)

    def _make_module(self, inputs: Tensor, num_outputs: int, seed: int) -> nn.Module:
        num_inputs = inputs.shape[1]
        if self.module is None:
            network = partial(MLP, hidden=self.hidden, num_outputs=num_outputs)
            return make_module(self._owner, network, num_inputs, seed=seed)
        fitted = getattr(self, "model_", None)
        made = make_module(self._owner, self.module, num_inputs, num_outputs, seed=seed, fitted=fitted)
        scores = predict_scores(made.to(self.device), [(inputs[:1], torch.zeros(1))])[0]
        wanted = (1,) if num_outputs == 1 else (1, num_outputs)
        if tuple(scores.shape) != wanted:
            raise ValueError(f"{self._owner}: module must give scores of shape {wanted} for a row, got {scores.shape}")
        return made

    def _make_sampler(self, codes: NDArray[np.int64], model: nn.Module, seed: int) -> GroupSampler | PlainSampler:
        by_groups = self.sampler == "groups" or (self.sampler == "auto" and self.loss not in _PLAIN and codes.max() > 0)
        if not by_groups:
            return plain_batches(len(codes), self.groups_per_batch * self.samples_per_group, seed)
        batch_norm = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules())
        return group_batches(codes, self.groups_per_batch, self.samples_per_group, seed, batch_norm=batch_norm)

    def _scores(self, X: Any) -> Floats:
        check_is_fitted(self, "model_")
        inputs = self.preprocessor_.transform(check_table(self._owner, self, X, reset=False))
        return self._raw_scores(self.model_, torch.from_numpy(inputs))

    def _raw_scores(self, module: nn.Module, inputs: Tensor) -> Floats:
        if isinstance(module, MLP):  # in float64 the score of a row does not depend on the rows beside it
            module, inputs = copy.deepcopy(module).double(), inputs.double()
        return table_scores(self._owner, module, inputs)
