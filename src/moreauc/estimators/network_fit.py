"""How networks are trained for an estimator: checks, the training as a template, and what it leaves."""

from __future__ import annotations

import copy
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from moreauc._checks import check_real
from moreauc._registry import METHODS, TaskName
from moreauc._system import one_thread
from moreauc.data import TensorBatches
from moreauc.data.batches import SparseRows, as_inputs, rows_at_once
from moreauc.data.duplicates import Codes
from moreauc.data.tabular import TableEncoder
from moreauc.estimators.base import Array, Floats, Random, Scorer, check_scores, with_arguments
from moreauc.estimators.description import Description
from moreauc.methods import build
from moreauc.metrics.ranking import TiedScoresWarning
from moreauc.models import MeanScore
from moreauc.optim.lbfgs import PenalizedLBFGS
from moreauc.tasks.base import CHUNK, Data, Task
from moreauc.train import History, UntrainedWarning, fit, predict_scores

_TUNE_LR = 0.1  # factor of the learning rate after cross entropy
_WEIGHT_DECAY = 0.1  # of networks
_MIN_GAIN = 1.0  # standard errors by which the loss must do better than the cross entropy that it starts from

Phase = Literal["start", "tune", "train"]  # cross entropy, the loss after it, the loss from the initial weights
Split = tuple[Array, Array]  # numbers of what is trained on, and of what is held out
TaskT = TypeVar("TaskT", bound=Task)


@dataclass(frozen=True)
class SavePlan:
    """Where and how often a training is saved, as in :func:`moreauc.train.fit`, and the checksum of its data."""

    checkpoint: str | Path | None
    every: int | None
    resume: bool
    checksum: str | None = None

    def inside(self, name: str) -> SavePlan:
        """Return the same for a folder inside this one."""
        return self if self.checkpoint is None else replace(self, checkpoint=Path(self.checkpoint) / name)


class Member(NamedTuple):
    """A trained network of an ensemble: the network, its loss after the last step, and the history."""

    model: nn.Module
    loss: nn.Module
    history: History


@dataclass(frozen=True)
class Networks(Generic[TaskT]):
    """What a training leaves."""

    members: tuple[Member, ...]
    model: nn.Module  # the only member's network, or the mean of all
    held_out: Array  # numbers of the held-out rows or bags; empty if there are none
    task: TaskT  # with its state from the training data
    data: Data  # the held-out data, or the training data if nothing is held out
    numbers: Array  # row or bag numbers of these
    scores: Array  # their raw scores


@with_arguments
class NetworkEstimator(Scorer):
    """A network, trained epoch by epoch.

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
    """

    _task: ClassVar[TaskName]

    loss: str
    loss_options: Mapping[str, object] | None = None
    module: str | nn.Module | Callable[..., nn.Module] | None = None
    standardize: bool = True
    epochs: int = 60
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = 0.003
    weight_decay: float | None = None
    validation_fraction: float = 0.2
    patience: int | None = None
    device: torch.device | str = "cpu"
    random_state: Random = None
    verbose: int = 0
    members_: tuple[Member, ...] = field(init=False)
    model_: nn.Module = field(init=False)
    held_out_: Array = field(init=False)
    loss_: nn.Module = field(init=False)
    history_: History = field(init=False)
    best_epoch_: int | None = field(init=False)
    n_iter_: int = field(init=False)

    def describe(self) -> Description:
        """Return what a page shows of the fitted estimator."""
        check_is_fitted(self)
        return Description(
            kind="linear" if self.module == "linear" else "network",
            title=self.title,
            histories=tuple(member.history for member in self.members_),
            held_out=self.held_out_,
            threshold=vars(self).get("threshold_"),
        )

    def _make_task(self, kind: type[TaskT], **facts: object) -> TaskT:
        """Return a task: `facts`, and the arguments of the estimator of the same names."""
        make: Callable[..., TaskT] = kind
        known = self.get_params(deep=False)
        shared = {one.name: known[one.name] for one in fields(kind) if one.name in known}
        return make(**{**shared, "loss_options": self.loss_options or {}, **facts})

    def _keep(self, found: Networks[TaskT]) -> None:
        """Set the attributes that a training leaves."""
        first = found.members[0]
        self.members_, self.model_, self.held_out_ = found.members, found.model, found.held_out
        self.loss_, self.history_, self.best_epoch_ = first.loss, first.history, first.history.best_epoch
        self.n_iter_ = sum(len(member.history.rows) for member in self.members_)

    def _check_training(self) -> None:
        """Check what :func:`moreauc.train.fit` and the modules do not check themselves."""
        self._check_choices(loss=METHODS[self._task], optimizer=("adam", "sgd"))
        self._check_options()
        self._check_own()
        check_real(self._owner, "validation_fraction", self.validation_fraction, low=0.0, high=1.0, high_open=True)
        if self.patience is not None:
            self._check_counts("patience")
        try:
            torch.empty(0, device=self.device)
        except (AssertionError, RuntimeError, TypeError) as error:
            raise ValueError(
                f"{self._owner}: device must be one that torch has here, such as 'cpu' or 'cuda', got {self.device!r}"
            ) from error

    @abstractmethod
    def _check_own(self) -> None:
        """Check the arguments that only one kind of data has."""

    def _check_module(self) -> None:
        """Check a module that may be left out."""
        if self.module is not None and not callable(self.module):
            raise ValueError(
                f"{self._owner}: module must be None, a module or a function that makes one, got {self.module!r}"
            )

    def _check_options(self) -> None:
        """Check that the options of the loss are a dictionary without what the estimator gives itself."""
        options = self.loss_options
        if options is not None and not isinstance(options, Mapping):
            raise ValueError(f"{self._owner}: loss_options must be a dictionary or None, got {options!r}")
        taken = {*inspect.signature(build).parameters} - {"widen"} | {*METHODS[self._task][self.loss].takes}
        taken.add("sample_weight")  # an argument of `fit`
        for key in options or {}:
            if not isinstance(key, str) or key in taken:
                raise ValueError(f"{self._owner}: loss_options must not hold {key!r}: given elsewhere, or no name")


@dataclass(kw_only=True)
class NetworkFit(ABC, Generic[TaskT]):
    """The training of the networks of an estimator."""

    num_seeds: ClassVar[int] = 3
    keeps_members: ClassVar[bool] = False  # whether a saved training is a folder of members, each with its phases

    estimator: NetworkEstimator

    @property
    def owner(self) -> str:
        """The class that errors name."""
        return type(self.estimator).__name__

    def run(
        self,
        task: TaskT,
        source: Any,
        values: Array,
        plan: SavePlan,
        *,
        groups: NDArray[np.int64] | None = None,
        weights: Floats | None = None,
        same: Codes | None = None,
    ) -> Networks[TaskT]:
        """Train the networks.

        `source` is what :meth:`_prepare` takes, the others but two are as in :class:`~moreauc.tasks.base.Data`:
        `same` are numbers from 0, equal where rows or bags are.
        """
        random = check_random_state(self.estimator.random_state)
        count = self._num_members(len(values))
        splits: list[Split] = []
        seeds = []
        for _ in range(count):
            splits.append(task.hold_out(values, self.estimator.validation_fraction, random, groups=groups, same=same))
            seeds.append([int(seed) for seed in random.randint(2**31 - 1, size=self.num_seeds)])
        task = task.fitted(values[splits[0][0]])
        targets = torch.from_numpy(task.targets(values)).to(self.estimator.device)
        everyone = np.unique(np.concatenate([train for train, _ in splits]))
        data = Data(self._prepare(source, targets, everyone), targets, values, groups, weights)
        if plan.checkpoint is not None:
            plan = replace(plan, checksum=task.checksum(data))
        members = []
        with one_thread() if self._is_small(task) else nullcontext():
            for number, (split, own) in enumerate(zip(splits, seeds, strict=True)):
                folder = plan.inside(f"member_{number}") if self.keeps_members else plan
                members.append(self._train_member(number, task, data, split, own, folder))
            self._complete(members, data, splits)
        model = members[0].model if count == 1 else MeanScore([member.model for member in members]).eval()
        held = np.unique(np.concatenate([held for _, held in splits]))
        if not len(held):
            scores, numbers, judged = self._raw_scores(model, data.inputs), np.arange(len(data)), data
        else:
            scores, numbers, judged = self._held_out_scores(members, data, splits)[held], held, data.part(held)
        return Networks(tuple(members), model, held, task, judged, numbers, scores)

    def _train_member(
        self, number: int, task: TaskT, data: Data, split: Split, seeds: Sequence[int], plan: SavePlan
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
                    before = self._fit("start", start, start.build(own), model, own, other, seeds, plan.inside("start"))
                seeds = [seed + 1 for seed in seeds]
                warnings.simplefilter("ignore", UntrainedWarning)  # keeping the start is not a failure
            folder = plan.inside("train") if self.keeps_members else plan
            history = self._fit("tune" if before else "train", task, loss, model, own, other, seeds, folder)
        history.began_as = began_as
        if before is not None:
            history.started(before)
        return Member(model.cpu().eval(), loss.cpu(), history)

    def _fit(
        self,
        phase: Phase,
        task: TaskT,
        loss: nn.Module,
        model: nn.Module,
        own: Data,
        other: Data | None,
        seeds: Sequence[int],
        plan: SavePlan,
    ) -> History:
        """Run the training loop on what is not held out."""
        batches = task.batches(own, loss, model, (seeds[1], *seeds[3:]))
        options = self._training_options(phase, has_validation=other is not None)
        if self._is_logistic(own, loss):
            batches = TensorBatches(own.inputs, own.targets, batch_size=len(own))
            for weight in model.parameters():
                nn.init.zeros_(weight)
            penalty = 1.0 / len(own) if self.estimator.weight_decay is None else self.estimator.weight_decay
            exact = PenalizedLBFGS(model.parameters(), weight_decay=penalty)
            options |= {"optimizer": exact, "epochs": 1}
        if plan.checkpoint is not None:
            batches.checksum_of_inputs = plan.checksum
        return fit(
            model,
            loss,
            batches,
            validation=None if other is None else task.validation(other, loss),
            proximal=task.method.proximal,
            checkpoint=plan.checkpoint,
            every=plan.every,
            resume=plan.resume,
            seed=seeds[2],
            **({} if other is None else task.score(other, loss)),
            **options,
        )

    def _held_out_scores(self, members: Sequence[Member], data: Data, splits: Sequence[Split]) -> Array:
        """Return for each row or bag the mean score of the members that held it out; NaN where none did."""
        total: Array = np.zeros(0)
        times = np.zeros(len(data))
        for member, (_, held) in zip(members, splits, strict=True):
            if not len(held):
                continue
            found = self._raw_scores(member.model, data.part(held).inputs)
            if not len(total):
                total = np.zeros((len(data), *found.shape[1:]))
            total[held] += found
            times[held] += 1
        with np.errstate(invalid="ignore"):
            return total / times.reshape(-1, *([1] * (total.ndim - 1)))

    def _training_options(self, phase: Phase, *, has_validation: bool) -> dict[str, Any]:
        """Return the other arguments of :func:`moreauc.train.fit`."""
        arguments, known = self.estimator, self.estimator.get_params(deep=False)
        names = ("epochs", "optimizer", "lr", "momentum", "warm_start_epochs", "device")
        options: dict[str, Any] = {
            **{name: known[name] for name in names if name in known},
            "weight_decay": _WEIGHT_DECAY if arguments.weight_decay is None else arguments.weight_decay,
            "patience": arguments.patience if has_validation else None,
            "progress": bool(arguments.verbose),
            "settings": {f"{self.owner}.{name}": value for name, value in arguments.settings().items()},
        }
        if phase == "train":
            return options
        if phase == "tune":
            options |= {"lr": self.estimator.lr * _TUNE_LR, "min_gain": _MIN_GAIN}
            if options["patience"] is not None:
                options["patience"] = -(-options["patience"] // 2)
        return {**options, "milestones": ()}  # constant

    def _build_module(self, module: nn.Module | Callable[..., nn.Module], *sizes: int, seed: int) -> nn.Module:
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
            raise ValueError(f"{self.owner}: module must make a torch module, got {type(made).__name__}")
        fitted = vars(self.estimator).get("model_")
        own = set() if fitted is None else {id(part) for part in (*fitted.parameters(), *fitted.buffers())}
        shared = any(id(tensor) in own for tensor in (*made.parameters(), *made.buffers()))
        return copy.deepcopy(made) if shared else made

    # What differs between estimators

    @abstractmethod
    def _prepare(self, source: Any, targets: Tensor, train: Array) -> object:
        """Return the inputs of all rows or bags, scaled and encoded by statistics of the training part."""

    @abstractmethod
    def _make_module(self, data: Data, task: TaskT, loss: nn.Module, seed: int, number: int) -> nn.Module:
        """Return the network of the ensemble's member `number`, counted from 0."""

    @abstractmethod
    def _raw_scores(self, model: nn.Module, inputs: Any) -> Array:
        """Return the scores of prepared inputs by a trained model."""

    def _complete(self, members: Sequence[Member], data: Data, splits: Sequence[Split]) -> None:
        """Finish the networks when all members are trained."""

    def _num_members(self, rows: int) -> int:
        """Return how many networks are trained, each with a hold-out of its own."""
        return 1

    def _begins_as(self, number: int) -> str:
        """Return the name of the trained model that initialises a member's network; empty for random weights."""
        return ""

    def _is_small(self, task: TaskT) -> bool:
        """Whether steps are so small that several threads would wait for each other more than they compute."""
        return False

    def _start_task(self, task: TaskT) -> TaskT | None:
        """Return the task whose best epoch the training starts from; None to start from the initial weights."""
        return None

    def _is_logistic(self, data: Data, loss: nn.Module) -> bool:
        """Whether the minimum over all rows is found exactly, being that of logistic regression."""
        return False


@dataclass(kw_only=True)
class TableFit(NetworkFit[TaskT]):
    """Networks for rows of a table."""

    encoder: TableEncoder = field(init=False)  # turns a table into what the networks take

    def _prepare(self, source: Any, targets: Tensor, train: Array) -> Tensor | SparseRows:
        self.encoder = TableEncoder(standardize=self.estimator.standardize, owner=self.owner)
        return as_inputs(self.encoder.fit_encode(source, rows=train)).to(self.estimator.device)

    def _raw_scores(self, model: nn.Module, inputs: Tensor | SparseRows) -> Array:
        return table_scores(self.owner, model, inputs.cpu())


def table_scores(owner: str, model: nn.Module, inputs: Tensor | SparseRows) -> Array:
    """Return the raw scores of the rows of an encoded table, shape `(n,)` or `(n, outputs)`."""
    size = rows_at_once(inputs, CHUNK)
    batches = TensorBatches(inputs, torch.zeros(len(inputs), dtype=torch.long), batch_size=size)
    return check_scores(owner, predict_scores(model, batches)[0].numpy())
