"""What all estimators share: checks, the training as a template, and tables as input."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils import assert_all_finite, check_random_state, column_or_1d
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor, nn

from moreauc._checks import NotFiniteError, check_count, check_real
from moreauc._system import one_thread
from moreauc.data import TensorBatches
from moreauc.data.batches import SparseRows, as_inputs, rows_at_once
from moreauc.data.duplicates import Codes, number_equal
from moreauc.data.schema import TypedFrame, learn_frame, warn_of_doubts
from moreauc.data.tables import as_frame
from moreauc.data.tabular import TableEncoder, check_exact
from moreauc.data.texts import check_apart
from moreauc.estimators.description import Description
from moreauc.methods import METHODS, build
from moreauc.metrics import TiedScoresWarning
from moreauc.models import MeanScore
from moreauc.optim.lbfgs import PenalizedLBFGS
from moreauc.tasks.base import CHUNK, Data, Task
from moreauc.train import History, UntrainedWarning, fit, predict_scores

Array = NDArray[Any]

_TUNE_LR = 0.1  # factor of the learning rate after cross entropy
_WEIGHT_DECAY = 0.1  # of networks
_MIN_GAIN = 1.0  # standard errors by which the loss must do better than the cross entropy that it starts from
Arguments = ParamSpec("Arguments")
Estimator = TypeVar("Estimator")
Result = TypeVar("Result")
# Arguments that may change when a training is resumed from a checkpoint: the trained model does not depend on them.
FREE = frozenset({"device", "verbose", "chunk", "fpr_budget", "probabilities"})


Phase = Literal["start", "tune", "train"]  # cross entropy, the loss after it, the loss from the initial weights


@dataclass(frozen=True)
class Saving:
    """Where and how often a training is saved, as in :func:`moreauc.train.fit`, and the checksum of its data."""

    checkpoint: str | Path | None
    every: int | None
    resume: bool
    checksum: str | None = None

    def inside(self, name: str) -> Saving:
        """Return the same for a folder inside this one."""
        return self if self.checkpoint is None else replace(self, checkpoint=Path(self.checkpoint) / name)


class Member(NamedTuple):
    """A trained network of an ensemble: the network, its loss after the last step, and the history."""

    model: nn.Module
    loss: nn.Module
    history: History


@dataclass(frozen=True)
class Trained:
    """What a training leaves besides the attributes of the estimator."""

    task: Any  # with its state from the training data
    data: Data  # the held-out data, or the training data if nothing is held out
    numbers: Array  # row or bag numbers of the scores
    scores: Array  # raw scores


def all_or_nothing(
    fit: Callable[Concatenate[Estimator, Arguments], Result],
) -> Callable[Concatenate[Estimator, Arguments], Result]:
    """Return a `fit` that restores all attributes if it fails or is interrupted.

    A generator given as `random_state` is put back, too, so that the same call draws the same again. `fit` must not
    modify the objects that attributes hold, only replace them. Warnings of `fit` need one more stack level.
    """

    @functools.wraps(fit)
    def fit_whole(self: Estimator, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        before: dict[str, Any] = dict(vars(self))
        source = before.get("random_state")
        drawn: Any = source.get_state() if isinstance(source, np.random.RandomState) else None
        try:
            return fit(self, *args, **options)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            if isinstance(source, np.random.RandomState):
                source.set_state(drawn)
            raise

    return fit_whole


class ScoringEstimator(BaseEstimator):  # type: ignore[misc]
    """Arguments kept as attributes, and the checks that every estimator makes."""

    _owner: str

    def __init_subclass__(cls, **options: Any) -> None:
        """Let errors name the leaf."""
        super().__init_subclass__(**options)
        cls._owner = cls.__name__

    @property
    def title(self) -> str:
        """The name in tables, that of the loss of a network, else that of the class."""
        return self._owner

    def settings(self) -> dict[str, object]:
        """Return the arguments that the trained model depends on, by which checkpoints and processes are compared."""
        return {name: value for name, value in self.get_params(deep=False).items() if name not in FREE}

    @abstractmethod
    def describe(self) -> Description:
        """Return what a page shows of the fitted estimator."""

    def _keep(self, arguments: Mapping[str, Any]) -> None:
        """Set the arguments of a constructor, its `locals()`, as attributes of the same names, as scikit-learn asks."""
        for name, value in arguments.items():
            if name not in ("self", "__class__"):
                setattr(self, name, value)

    def _check_choices(self, **choices: Collection[str]) -> None:
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{self._owner}: {name} must be one of {list(allowed)}, got {getattr(self, name)!r}")

    def _check_counts(self, *names: str) -> None:
        for name in names:
            check_count(self._owner, name, getattr(self, name))

    def _check_scores(self, scores: Array, *, data: str = "X") -> Array:
        """Return scores, which must be finite; `data` is what the estimator calls its input."""
        if not np.isfinite(scores).all():
            raise NotFiniteError(
                f"{self._owner}: the model gave scores that are not finite; {data} may lie far outside what it was "
                "fitted on"
            )
        return scores

    def _check_known(self, values: Array) -> None:
        """Check that later targets have the classes of `fit`."""
        strange = values[~np.isin(values, self.classes_)]
        if len(strange):
            raise ValueError(
                f"{self._owner}: y must hold the classes {self.classes_.tolist()}, got {strange[:1].tolist()}"
            )


class NetworkEstimator(ScoringEstimator):
    """Arguments and attributes of all estimators.

    Args:
        loss_options: keyword arguments of the loss, for instance `{"gamma": 0.1}`; None for those of the method.
        standardize: whether to scale numbers to mean 0 and standard deviation 1; columns of a sparse matrix are divided
            by their largest absolute value.
        epochs: passes over the training data.
        optimizer: "adam" (AdamW) or "sgd".
        lr: learning rate; divided by 10 after one third and two thirds of the epochs (for rows only without
            `patience`).
        weight_decay: weight decay, decoupled from the gradient with "adam". A linear model under cross entropy is
            fitted exactly, with the penalty `weight_decay / 2 * |w|^2` of the mean loss. None for 0.1, and 1 / n there
            (scikit-learn's `C=1`).
        validation_fraction: share of the data held out, in [0, 1).
        patience: stop after this many epochs without a better score on the held-out data; None to run all epochs, as is
            always done if nothing is held out.
        device: where to train. The fitted model is on the CPU.
        random_state: seed or generator of the split, the initial weights, the batches and dropout; None for NumPy's
            global generator.
        verbose: 0, or 1 for a progress bar.

    Attributes:
        model_: the network, in `eval()` mode on the CPU.
        members_: the networks that were trained, each with its loss and its history. `loss_`, `history_` and
            `best_epoch_` are those of the first; `model_` is their mean if there are several.
        loss_: the loss with its state after the last step.
        history_: numbers of each epoch, a :class:`~moreauc.train.History`.
        best_epoch_: number of the epoch, from 0, whose weights were kept; -1 for the initial weights, None if nothing
            is held out and the last were kept.
        held_out_: numbers of the held-out rows or bags; empty if there are none.
        n_iter_: epochs of all members, including those of cross entropy at the start.
        n_features_in_: number of features.
        feature_names_in_: their names, if the data were DataFrames with string column names.
    """

    _task: type[Task]
    _num_seeds = 3
    _keeps_members = False  # whether a saved training is a folder of members, each with its phases
    model_: nn.Module
    loss_: nn.Module
    history_: History
    members_: tuple[Member, ...]
    best_epoch_: int | None
    held_out_: Array
    n_iter_: int

    def __init_subclass__(cls, **options: Any) -> None:
        """Let `help` of a leaf show the arguments and attributes that it shares, after its own."""
        super().__init_subclass__(**options)
        own = cls.__dict__.get("__doc__")
        parent = next((base.__doc__ for base in cls.__mro__[1:] if issubclass(base, NetworkEstimator)), None)
        if own and parent:  # both are None if Python runs without docstrings
            cls.__doc__ = f"{inspect.cleandoc(own)}\n\n{inspect.cleandoc(parent)}\n"

    @property
    def title(self) -> str:
        """Name of the loss in tables."""
        return METHODS[self._task.name][self.loss].title

    def _histories(self) -> tuple[History, ...]:
        check_is_fitted(self, "members_")
        return tuple(member.history for member in self.members_)

    def _check_arguments(self) -> None:
        """Check what :func:`moreauc.train.fit` and the modules do not check themselves."""
        owner = self._owner
        self._check_choices(loss=tuple(METHODS[self._task.name]), optimizer=("adam", "sgd"))
        self._check_options()
        self._check_own_arguments()
        check_real(owner, "validation_fraction", self.validation_fraction, low=0.0, high=1.0, high_open=True)
        if self.patience is not None:
            check_count(owner, "patience", self.patience)
        try:
            torch.empty(0, device=self.device)
        except (AssertionError, RuntimeError, TypeError) as error:
            raise ValueError(
                f"{owner}: device must be one that torch has here, such as 'cpu' or 'cuda', got {self.device!r}"
            ) from error

    @abstractmethod
    def _check_own_arguments(self) -> None:
        """Check the arguments that only the leaf has."""

    def _check_options(self) -> None:
        """Check that the options of the loss are a dictionary without what the estimator gives itself."""
        options = self.loss_options
        if options is not None and not isinstance(options, Mapping):
            raise ValueError(f"{self._owner}: loss_options must be a dictionary or None, got {options!r}")
        taken = {*inspect.signature(build).parameters} - {"widen"} | {*METHODS[self._task.name][self.loss].takes}
        taken.add("sample_weight")  # an argument of `fit`
        for key in options or {}:
            if not isinstance(key, str) or key in taken:
                raise ValueError(f"{self._owner}: loss_options must not hold {key!r}: given elsewhere, or no name")

    def _make_task(self, **facts: Any) -> Any:
        """Return the task to train for, with the settings `facts` and those arguments of the estimator that it has."""
        facts = {"loss_options": self.loss_options or {}, **facts}
        names = [field.name for field in fields(self._task) if field.name not in facts]
        return self._task(**{name: getattr(self, name) for name in names}, **facts)

    def _train(
        self,
        task: Task,
        source: Any,
        values: Array,
        saving: Saving,
        *,
        groups: NDArray[np.int64] | None = None,
        weights: NDArray[np.float64] | None = None,
        same: Codes | None = None,
    ) -> Trained:
        """Train the model and set the attributes that all estimators have.

        `source` is what :meth:`_prepare` takes, the others but two are as in :class:`~moreauc.tasks.base.Data`:
        `same` are numbers from 0, equal where rows or bags are.
        """
        random = check_random_state(self.random_state)
        count = self._num_members(len(values))
        splits, seeds = [], []
        for _ in range(count):
            splits.append(task.hold_out(values, self.validation_fraction, random, groups=groups, same=same))
            seeds.append([int(seed) for seed in random.randint(2**31 - 1, size=self._num_seeds)])
        task = task.fitted(values[splits[0][0]])
        targets = torch.from_numpy(task.targets(values)).to(self.device)
        everyone = np.unique(np.concatenate([train for train, _ in splits]))
        data = Data(self._prepare(source, targets, everyone), targets, values, groups, weights)
        if saving.checkpoint is not None:
            saving = replace(saving, checksum=task.checksum(data))
        members = []
        with one_thread() if self._is_small(task) else nullcontext():
            for number, (split, own) in enumerate(zip(splits, seeds, strict=True)):
                folder = saving.inside(f"member_{number}") if self._keeps_members else saving
                members.append(self._train_member(number, task, data, split, own, folder))
            self._complete(members, data, splits)
        self.members_, first = tuple(members), members[0]
        self.model_ = first.model if count == 1 else MeanScore([member.model for member in members]).eval()
        self.loss_, self.history_, self.best_epoch_ = first.loss, first.history, first.history.best_epoch
        self.held_out_ = np.unique(np.concatenate([held for _, held in splits]))
        self.n_iter_ = sum(len(member.history.rows) for member in members)
        return self._held_out_scores(task, data, splits)

    def _train_member(
        self, number: int, task: Task, data: Data, split: tuple[Array, Array], seeds: Sequence[int], saving: Saving
    ) -> Member:
        """Train one network: cross entropy first where the estimator starts so, then the loss."""
        train, held = split
        own, other = data.part(train), data.part(held) if len(held) else None
        loss = task.build(own)
        model = self._make_module(own, task, loss, seeds[0], number)
        start, began_as = self._start_task(task), self._begins_as(number)
        before = None
        with warnings.catch_warnings():
            if began_as:
                warnings.simplefilter("ignore", UntrainedWarning)
            if start is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", TiedScoresWarning)  # only the final model should warn
                    before = self._fit(
                        "start", start, start.build(own), model, own, other, seeds, saving.inside("start")
                    )
                seeds = [seed + 1 for seed in seeds]
                warnings.simplefilter("ignore", UntrainedWarning)  # keeping the start is not a failure
            folder = saving.inside("train") if self._keeps_members else saving
            history = self._fit("tune" if before else "train", task, loss, model, own, other, seeds, folder)
        history.began_as = began_as
        if before is not None:
            history.started(before)
        return Member(model.cpu().eval(), loss.cpu(), history)

    def _fit(
        self,
        phase: Phase,
        task: Task,
        loss: nn.Module,
        model: nn.Module,
        own: Data,
        other: Data | None,
        seeds: Sequence[int],
        saving: Saving,
    ) -> History:
        """Run the training loop on what is not held out."""
        batches = task.batches(own, loss, model, (seeds[1], *seeds[3:]))
        plan = self._training_arguments(phase, has_validation=other is not None)
        if self._is_logistic(own, loss):
            batches = TensorBatches(own.inputs, own.targets, batch_size=len(own))
            for weight in model.parameters():
                nn.init.zeros_(weight)
            penalty = 1.0 / len(own) if self.weight_decay is None else self.weight_decay
            exact = PenalizedLBFGS(model.parameters(), weight_decay=penalty)
            plan |= {"optimizer": exact, "epochs": 1}
        if saving.checkpoint is not None:
            batches.checksum_of_inputs = saving.checksum
        return fit(
            model,
            loss,
            batches,
            validation=None if other is None else task.validation(other, loss),
            proximal=task.method.proximal,
            checkpoint=saving.checkpoint,
            every=saving.every,
            resume=saving.resume,
            seed=seeds[2],
            **({} if other is None else task.score(other, loss)),
            **plan,
        )

    def _held_out_scores(self, task: Task, data: Data, splits: Sequence[tuple[Array, Array]]) -> Trained:
        """Return scores of the held-out rows by the members that held them out; without a hold-out, of all rows."""
        if not len(self.held_out_):
            return Trained(task, data, np.arange(len(data)), self._raw_scores(self.model_, data.inputs))
        total: Any = 0.0
        times = np.zeros(len(data))
        for member, (_, held) in zip(self.members_, splits, strict=True):
            if not len(held):
                continue
            found = self._raw_scores(member.model, data.part(held).inputs)
            part = np.zeros((len(data), *found.shape[1:]))
            part[held] = found
            total = total + part
            times[held] += 1
        scores = total[self.held_out_] / times[self.held_out_].reshape(-1, *([1] * (total.ndim - 1)))
        return Trained(task, data.part(self.held_out_), self.held_out_, scores)

    def _complete(self, members: Sequence[Member], data: Data, splits: Sequence[tuple[Array, Array]]) -> None:
        """Finish the estimator when all members are trained."""

    def _num_members(self, rows: int) -> int:
        """Return how many networks are trained, each with a hold-out of its own."""
        return 1

    def _begins_as(self, number: int) -> str:
        """Return the name of the trained model that initialises a member's network; empty for random weights."""
        return ""

    def _is_small(self, task: Task) -> bool:
        """Whether steps are so small that several threads would wait for each other more than they compute."""
        return False

    def _start_task(self, task: Task) -> Task | None:
        """Return the task whose best epoch the training starts from; None to start from the initial weights."""
        return None

    def _is_logistic(self, data: Data, loss: nn.Module) -> bool:
        """Whether the minimum over all rows is found exactly, being that of logistic regression."""
        return False

    @abstractmethod
    def _prepare(self, source: Any, targets: Tensor, train: Array) -> Any:
        """Return the inputs of all rows or bags, scaled and encoded by statistics of the training part."""

    @abstractmethod
    def _make_module(self, data: Data, task: Any, loss: Any, seed: int, number: int) -> nn.Module:
        """Return the network of the ensemble's member `number`, counted from 0."""

    @abstractmethod
    def _raw_scores(self, model: nn.Module, inputs: Any) -> Array:
        """Return the scores of prepared inputs by a trained model."""

    def _training_arguments(self, phase: Phase, *, has_validation: bool) -> dict[str, Any]:
        """Return the other arguments of :func:`moreauc.train.fit`."""
        names = ("epochs", "optimizer", "lr", "weight_decay", "momentum", "warm_start_epochs")
        arguments = {
            **{name: getattr(self, name) for name in names if hasattr(self, name)},
            "patience": self.patience if has_validation else None,
            "device": self.device,
            "progress": bool(self.verbose),
            "settings": {f"{self._owner}.{name}": value for name, value in self.settings().items()},
        }
        if self.weight_decay is None:
            arguments["weight_decay"] = _WEIGHT_DECAY
        if phase == "train":
            return arguments
        if phase == "tune":
            arguments |= {"lr": self.lr * _TUNE_LR, "min_gain": _MIN_GAIN}
            if arguments["patience"] is not None:
                arguments["patience"] = -(-arguments["patience"] // 2)
        return {**arguments, "milestones": ()}  # constant

    def _build_module(self, module: nn.Module | Callable[..., Any], *sizes: int, seed: int) -> nn.Module:
        """Return a copy of a module, or what a function makes of the sizes, its weights drawn by the seed.

        A function that gives weights of the fitted module again has its result copied: if the new training fails, the
        old model must be as before.
        """
        if isinstance(module, nn.Module):
            return copy.deepcopy(module)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = module(*sizes)
        if not isinstance(made, nn.Module):
            raise ValueError(f"{self._owner}: module must make a torch module, got {type(made).__name__}")
        fitted = getattr(self, "model_", None)
        own = set() if fitted is None else {id(tensor) for tensor in (*fitted.parameters(), *fitted.buffers())}
        shared = any(id(tensor) in own for tensor in (*made.parameters(), *made.buffers()))
        return copy.deepcopy(made) if shared else made

    def _check_module(self) -> None:
        if self.module is not None and not callable(self.module):
            raise ValueError(
                f"{self._owner}: module must be None, a module or a function that makes one, got {self.module!r}"
            )


class TableInput(ScoringEstimator):
    """Checks of a table and of one target for each of its rows."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.sparse = True
        return tags

    def _check_table(self, X: Any, *, reset: bool) -> Any:
        """Return a table to check: a sparse matrix as CSR, anything but a DataFrame as a float array without infinity.

        With `reset` the columns of a DataFrame are learnt, once: a :class:`~moreauc.data.schema.TypedFrame` is known.
        """
        X = as_frame(self._owner, X)
        if issparse(X):
            return validate_data(self, X, reset=reset, dtype=[np.float64, np.float32], accept_sparse="csr")
        if not isinstance(X, pd.DataFrame):
            if reset and isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "iuO":
                check_exact(self._owner, pd.DataFrame(X))
            kinds = [np.float64, np.float32]
            return validate_data(self, X, reset=reset, dtype=kinds, ensure_all_finite="allow-nan")
        validate_data(self, X, reset=reset, skip_check_array=True)
        if 0 in X.shape:
            raise ValueError(f"{self._owner}: X must have at least one row and one column, got shape {X.shape}")
        if not reset or isinstance(X, TypedFrame):
            return X
        table = learn_frame(self._owner, X)
        warn_of_doubts(self._owner, table.schema, stacklevel=4)
        return table

    def _check_targets(self, X: Any, y: ArrayLike) -> Array:
        """Return one target for each row of a table, none of them missing."""
        values: Array = column_or_1d(y, warn=True)
        assert_all_finite(values, input_name="y", estimator_name=self._owner)
        if pd.isna(values).any():
            raise ValueError(f"{self._owner}: y must have no missing values, got {int(pd.isna(values).sum())}")
        check_consistent_length(X, values)
        check_apart(self._owner, "y", pd.unique(values))
        return values

    def _check_groups(self, X: Any, groups: ArrayLike) -> Codes:
        """Return a number for the group of each row of a table, none of them missing."""
        values = column_or_1d(groups)
        if pd.isna(values).any():
            raise ValueError(f"{self._owner}: groups must have no missing values, got {int(pd.isna(values).sum())}")
        check_consistent_length(X, values)
        return number_equal(values)


class TableEstimator(TableInput, NetworkEstimator):
    """Rows of a table.

    `X` is an array of numbers, NaN for missing values, a sparse matrix, or a DataFrame that may also have bool, string,
    category and date columns; see the guide for what is done with them.

    Attributes:
        preprocessor_: turns `X` into what `model_` takes.
    """

    preprocessor_: TableEncoder

    def _prepare(self, source: Any, targets: Tensor, train: Array) -> Tensor | SparseRows:
        encoder = TableEncoder(standardize=self.standardize, owner=self._owner)
        inputs = as_inputs(encoder.fit_encode(source, rows=train))
        self.preprocessor_ = encoder
        return inputs.to(self.device)

    def _scores(self, X: Any) -> Array:
        check_is_fitted(self, "model_")
        inputs = as_inputs(self.preprocessor_.transform(self._check_table(X, reset=False)))
        return self._raw_scores(self.model_, inputs)

    def _table_scores(self, model: nn.Module, inputs: Tensor | SparseRows) -> Array:
        """Return the raw scores of the rows of an encoded table, shape `(n,)` or `(n, outputs)`."""
        size = rows_at_once(inputs, CHUNK)
        batches = TensorBatches(inputs, torch.zeros(len(inputs), dtype=torch.long), batch_size=size)
        return self._check_scores(predict_scores(model, batches)[0].numpy())
