"""Two-way partial AUC for scikit-learn: a classifier that is a shell over :func:`moreauc.train.fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.utils.data import BatchSampler, RandomSampler

from moreauc._all_or_nothing import all_or_nothing
from moreauc._checks import check_count, check_real
from moreauc._checksum import checksum
from moreauc.criteria import CrossEntropyLoss
from moreauc.data import TensorBatches
from moreauc.data.tabular import TableEncoder, same_rows
from moreauc.estimators.base import TPAUCEstimator, balanced_batches
from moreauc.estimators.parts import (
    CHUNK,
    check_choices,
    check_label,
    check_options,
    check_table,
    check_targets,
    make_module,
    table_scores,
)
from moreauc.methods import METHODS, build
from moreauc.models import MLP
from moreauc.train import fit

__all__ = ["TPAUCClassifier"]

Array = NDArray[Any]

_OWNER = "TPAUCClassifier"


class TPAUCClassifier(TPAUCEstimator):
    r"""Binary classifier that ranks well where it matters: true positive rate high, false positive rate low.

    A network is trained for the two-way partial AUC by SONX, or by another method of :mod:`moreauc.methods`. A
    stratified part of the rows is held out: the epoch that scores best on it is kept (there is no second training on
    all rows), and the threshold of `predict` is chosen on it. Where a class has too few rows for that (2 in each part,
    and enough for the region to hold a pair), or where the part would be many copies of few rows, since equal rows stay
    together, nothing is held out: the last epoch is kept and the threshold is chosen on the training rows.

    `X` is an array of numbers, NaN for missing values, or a DataFrame that may also have bool, string and category
    columns; see the guide for what is done with them.

    Args:
        min_tpr: lower end of the true positive rate, in [0, 1).
        max_fpr: upper end of the false positive rate, in (0, 1].
        loss: name of the method: "sonx", "ce", "ce_weighted", "auc_sh", "auc_m", "mb", "aw_poly" or "sota_s".
        loss_options: keyword arguments of its criterion, for instance `{"gamma": 0.1}`; None for the preset.
        module: "mlp", "linear", a module (a copy of it is trained, from its present weights), or a function that
            makes one from the number of inputs. It maps `(B, number of inputs)` to raw scores `(B,)` or `(B, 1)`.
        hidden: widths of the hidden layers of "mlp".
        dropout: probability in [0, 1) to drop a hidden unit of "mlp" in training.
        standardize: whether to bring the numbers to mean 0 and deviation 1.
        epochs: passes over the training rows.
        batch_size: rows of a step, at least 2.
        positive_fraction: share of positives in a batch with the sampler "balanced", in (0, 1).
        sampler: "balanced" for so many positives and negatives in each batch, "shuffled" for rows as they come,
            "auto" for "shuffled" with cross entropy and "balanced" with the others, which need both classes.
        optimizer: "adam" (AdamW), whose steps do not depend on the scale of the loss, or "sgd".
        lr: learning rate; divided by 10 after one third and two thirds of the epochs.
        momentum: momentum of "sgd".
        weight_decay: weight decay; decoupled from the gradient with "adam".
        warm_start_epochs: epochs of cross entropy before.
        validation_fraction: share of the rows held out, in [0, 1).
        patience: end after so many epochs without a better score on the held-out rows; None to run all, as is
            done where nothing is held out.
        fpr_budget: largest false positive rate that `predict` may have on the held-out rows, in [0, 1]; None for
            `max_fpr`.
        probabilities: "threshold" for 1/2 at the threshold, so that `predict` names the more probable class, as
            scikit-learn expects; "calibrated" for Platt's estimate, by which `predict` does not go.
        positive_label: the class to find; None for the second of `classes_`, which are sorted.
        device: where to train. The fitted model is on the CPU.
        random_state: seed or generator of the split, the initial weights, the batches and dropout; None for NumPy's
            global generator.
        verbose: 0, or 1 for a progress bar.

    Attributes:
        classes_: the two classes, sorted.
        positive_label_: the class to find.
        threshold_: raw scores above it are called positive.
        platt_: slope and intercept of the calibrated log odds over the raw score.
        model_: the network, in `eval()` mode on the CPU; its raw scores rise with the chance of `positive_label_`.
        loss_: the loss as it was after the last step.
        preprocessor_: turns `X` into what `model_` takes.
        history_: numbers of each epoch, a :class:`~moreauc.train.history.History`.
        held_out_: row numbers of what was held out; empty where nothing was.
        n_features_in_: columns of `X`.
        feature_names_in_: their names, where `X` was a DataFrame with string names.

    Raises:
        ValueError: in `fit`, for an argument out of range and for data that cannot be used; nothing is trained then.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(900, 6, weights=[0.9], flip_y=0, n_clusters_per_class=1, random_state=0)
        >>> classifier = TPAUCClassifier(min_tpr=0.5, max_fpr=0.3, fpr_budget=0.1, epochs=20, random_state=0)
        >>> classifier.fit(X[:600], y[:600]).score(X[600:], y[600:]) > 0.8
        True
    """

    _owner = _OWNER

    def __init__(
        self,
        *,
        min_tpr: float = 0.5,
        max_fpr: float = 0.5,
        loss: str = "sonx",
        loss_options: Mapping[str, Any] | None = None,
        module: str | nn.Module | Callable[[int], nn.Module] = "mlp",
        hidden: tuple[int, ...] = (64, 64),
        dropout: float = 0.0,
        standardize: bool = True,
        epochs: int = 60,
        batch_size: int = 128,
        positive_fraction: float = 0.5,
        sampler: Literal["auto", "balanced", "shuffled"] = "auto",
        optimizer: Literal["adam", "sgd"] = "adam",
        lr: float = 0.003,
        momentum: float = 0.9,
        weight_decay: float = 2e-4,
        warm_start_epochs: int = 0,
        validation_fraction: float = 0.2,
        patience: int | None = None,
        fpr_budget: float | None = None,
        probabilities: Literal["threshold", "calibrated"] = "threshold",
        positive_label: Any = None,
        device: torch.device | str = "cpu",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.min_tpr = min_tpr
        self.max_fpr = max_fpr
        self.loss = loss
        self.loss_options = loss_options
        self.module = module
        self.hidden = hidden
        self.dropout = dropout
        self.standardize = standardize
        self.epochs = epochs
        self.batch_size = batch_size
        self.positive_fraction = positive_fraction
        self.sampler = sampler
        self.optimizer = optimizer
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.warm_start_epochs = warm_start_epochs
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.fpr_budget = fpr_budget
        self.probabilities = probabilities
        self.positive_label = positive_label
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @all_or_nothing
    def fit(
        self,
        X: Any,
        y: ArrayLike,
        *,
        checkpoint: str | Path | None = None,
        every: int | None = None,
        resume: bool = True,
    ) -> TPAUCClassifier:
        """Train on a table and its two classes.

        Args:
            X: array or DataFrame, shape `(n, n_features)`.
            y: classes, two of any kind, shape `(n,)`.
            checkpoint: folder to save the training in, so that the same call goes on where it was interrupted, given an
                integer `random_state`; None for none. See :func:`moreauc.train.fit` for this and the next two.
            every: steps between two saves; None for the ends of epochs only.
            resume: whether to go on from a checkpoint that is there; if not, there must be none.
        """
        self._check_arguments()
        X = check_table(_OWNER, self, X, reset=True)
        classes, positive_label, positive = self._check_target(X, y)
        train, held, seeds = self._divide(positive, same_rows(_OWNER, X), num_seeds=3)

        preprocessor = TableEncoder(standardize=self.standardize).fit(X, rows=train)
        inputs = torch.from_numpy(preprocessor.encode(X)).to(self.device)
        labels = torch.from_numpy(positive.astype(np.int64)).to(self.device)
        model = self._make_module(preprocessor.num_outputs_, seeds[0])
        options = self.loss_options or {}
        criterion = build("rows", self.loss, labels[train].cpu(), **self._region(), **options)
        sampler = self._make_sampler(criterion, labels[train].cpu(), seeds[1])
        batches = TensorBatches(inputs[train], labels[train], sampler)
        if checkpoint is not None:
            batches.checksum_of_inputs = checksum([inputs])
        history = fit(
            model,
            criterion,
            batches,
            validation=TensorBatches(inputs[held], labels[held], batch_size=CHUNK) if len(held) else None,
            proximal=METHODS["rows"][self.loss].proximal,
            checkpoint=checkpoint,
            every=every,
            resume=resume,
            **self._training_arguments(held=held, seed=seeds[2]),
        )
        model, rows = model.cpu().eval(), held if len(held) else train
        scores = table_scores(_OWNER, model, inputs[rows].cpu())  # which may fail: until then nothing is fitted
        self.classes_, self.positive_label_, self.history_ = classes, positive_label, history
        self.preprocessor_, self.model_, self.loss_ = preprocessor, model, criterion.cpu()
        self.held_out_ = held
        self._choose_operating_point(positive[rows], scores)
        return self

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """Return how far the raw scores are from the threshold, shape `(n,)`; above 0 is `classes_[1]`."""
        return self._margins(self._scores(X)).astype(np.float32)

    def predict(self, X: Any) -> Array:
        """Return the class of each row, shape `(n,)`, at the threshold chosen for the false-positive budget."""
        return self._decide(self.decision_function(X))

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Return the probabilities of `classes_`, shape `(n, 2)`; see the argument `probabilities`."""
        return self._probabilities(self._scores(X)).astype(np.float32)

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the two-way partial AUC of the raw scores in the region; see :func:`moreauc.metrics.tpauc_score`.

        Args:
            X: array or DataFrame, shape `(n, n_features)`.
            y: classes, shape `(n,)`.
            sample_weight: weights of at least 0, shape `(n,)`.
        """
        scores = self._scores(X)
        return self._partial_auc(column_or_1d(y), scores, sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _check_own_arguments(self) -> None:
        choices = {
            "loss": tuple(METHODS["rows"]),
            "optimizer": ("adam", "sgd"),
            "sampler": ("auto", "balanced", "shuffled"),
        }
        check_choices(_OWNER, self, {**choices, "probabilities": ("threshold", "calibrated")})
        check_options(
            _OWNER, "loss_options", self.loss_options, taken=("task", "name", "targets", "labels", "min_tpr", "max_fpr")
        )
        if self.module not in ("mlp", "linear") and not callable(self.module):
            raise ValueError(
                f"{_OWNER}: module must be 'mlp', 'linear', a module or a function that makes one, got {self.module!r}"
            )
        check_count(_OWNER, "batch_size", self.batch_size, minimum=2)
        check_real(
            _OWNER, "positive_fraction", self.positive_fraction, low=0.0, high=1.0, low_open=True, high_open=True
        )

    def _check_target(self, X: Any, y: ArrayLike) -> tuple[Array, Any, Array]:
        """Return the classes, the one to find, and where it is."""
        values = check_targets(_OWNER, X, y)
        check_classification_targets(values)
        kind = type_of_target(values, input_name="y", raise_unknown=True)
        if kind != "binary":  # scikit-learn's wording
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        classes = np.unique(values)
        if len(classes) < 2:
            raise ValueError(f"{_OWNER}: y must hold two classes, got one class, {classes[:1].tolist()}")
        label = check_label(_OWNER, classes, self.positive_label)
        return classes, label, values == label

    def _make_module(self, num_inputs: int, seed: int) -> nn.Module:
        module = self.module
        if isinstance(module, str):
            module = partial(MLP, hidden=self.hidden if module == "mlp" else (), dropout=self.dropout)
        return make_module(_OWNER, module, num_inputs, seed=seed, fitted=getattr(self, "model_", None))

    def _make_sampler(self, criterion: nn.Module, labels: Tensor, seed: int) -> Iterable[list[int]]:
        balanced = self.sampler == "balanced" or (
            self.sampler == "auto" and not isinstance(criterion, CrossEntropyLoss)
        )
        if not balanced:
            order = RandomSampler(range(len(labels)), generator=torch.Generator().manual_seed(seed))
            # A batch norm cannot train on one row; which row is left out is another one in each epoch.
            return BatchSampler(order, self.batch_size, drop_last=len(labels) % self.batch_size == 1)
        positives = min(max(round(self.batch_size * self.positive_fraction), 1), self.batch_size - 1)
        return balanced_batches(labels, positives, self.batch_size - positives, seed)

    def _scores(self, X: Any) -> Array:
        check_is_fitted(self, "model_")
        X = check_table(_OWNER, self, X, reset=False)
        return table_scores(_OWNER, self.model_, torch.from_numpy(self.preprocessor_.transform(X)))
