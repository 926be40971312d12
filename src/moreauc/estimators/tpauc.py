"""Two-way partial AUC for scikit-learn: a classifier of rows."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.linear_model import LogisticRegression
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor, nn

from moreauc._checks import check_count, check_real
from moreauc.criteria import CrossEntropyLoss
from moreauc.data.duplicates import number_equal
from moreauc.data.tabular import same_rows
from moreauc.estimators.base import Array, Member, Phase, Saving, TableEstimator, all_or_nothing
from moreauc.estimators.decisions import RankingClassifier, RowRanker
from moreauc.estimators.description import Description
from moreauc.methods import METHODS
from moreauc.metrics import tpauc_score
from moreauc.models import MLP, BinnedMLP
from moreauc.tasks.base import Data
from moreauc.tasks.rows import RowTask

_SMALL_BATCH = 1024  # rows of a step up to which one thread is as fast as two
_SPARSE_C = 0.1  # of the logistic regression that initialises a network for sparse rows; 1 for dense ones
_STRENGTHS = (0.01, 0.1, 1.0)  # C of the logistic regression that is mixed into the networks
_SHARES = (0.25, 0.5, 0.75, 1.0)  # of logistic regression in the scores, besides 0
_MEMBERS = ((5000, 5), (50_000, 3), (math.inf, 1))  # (rows at most, networks)


class TPAUCClassifier(RankingClassifier, TableEstimator, RowRanker):
    r"""Binary classifier that ranks well where it matters: true positive rate high, false positive rate low.

    A network is trained for the two-way partial AUC by SONX, or by another method of :mod:`moreauc.methods`. The loss
    "ce" or "ce_weighted" with the module "linear" is logistic regression: L-BFGS with `weight_decay` as L2 penalty
    finds the minimum over all rows in one epoch, unless another optimizer or sampler is chosen.

    `X` is an array of numbers (NaN for missing values), a sparse matrix, or a DataFrame that may also have bool,
    string, category and date columns; docs/estimator.md says how each kind is encoded.

    Args:
        loss: name of the method: "sonx", "ce", "ce_weighted", "auc_sh", "auc_m", "mb", "aw_poly", "sota_s"
            or "staco".
        module: "mlp", "linear", a module (a copy of it is trained, from its current weights), or a function that
            makes one from the number of inputs. It maps `(B, number of inputs)` to raw scores `(B,)` or `(B, 1)`, which
            rise with the chance of `positive_label_`.
        bins: number of quantile bins by which "mlp" encodes each numeric column of a dense table (docs/estimator.md); 0
            for the plain numbers.
        hidden: widths of the hidden layers of "mlp".
        dropout: probability in [0, 1) to drop a hidden unit of "mlp" in training.
        batch_size: rows of a step, at least 2; None for a twentieth of the table, from 64 to 2048.
        positive_fraction: share of positives in a batch with the sampler "balanced", in (0, 1).
        sampler: "balanced" for a fixed number of positives and negatives per batch, "shuffled" for shuffled rows,
            "auto" for "shuffled" with cross entropy and "balanced" with the others, which need both classes.

        start: "ce" to train with cross entropy first, and from its best epoch with `loss` at a tenth of the learning
            rate; the weights of cross entropy are kept unless `loss` improves the held-out score by a standard error.
            Every second network "mlp", the first included, is initialised as logistic regression; in the
            end logistic regression is mixed into the networks as far as that ranks the held-out rows better. None for
            random initial weights and no mixture.
        ensemble: number of networks, each with its own held-out rows; scores are averaged. None for 5 with up to 5,000
            rows, 3 with up to 50,000, and 1 with more rows or if no rows are held out.

    Attributes:
        preprocessor_: turns `X` into what `model_` takes.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(900, 6, weights=[0.9], flip_y=0, n_clusters_per_class=1, random_state=0)
        >>> classifier = TPAUCClassifier(min_tpr=0.5, max_fpr=0.3, fpr_budget=0.1, epochs=20, random_state=0)
        >>> classifier.fit(X[:600], y[:600]).score(X[600:], y[600:]) > 0.8
        True
    """

    _task = RowTask
    _keeps_members = True

    def __init__(
        self,
        *,
        min_tpr: float = 0.5,
        max_fpr: float = 0.5,
        loss: str = "sonx",
        loss_options: Mapping[str, Any] | None = None,
        module: str | nn.Module | Callable[[int], nn.Module] = "mlp",
        bins: int = 16,
        hidden: tuple[int, ...] = (64, 64),
        dropout: float = 0.1,
        standardize: bool = True,
        epochs: int = 60,
        batch_size: int | None = None,
        positive_fraction: float = 0.5,
        sampler: Literal["auto", "balanced", "shuffled"] = "auto",
        optimizer: Literal["adam", "sgd"] = "adam",
        lr: float = 0.0015,
        momentum: float = 0.9,
        weight_decay: float | None = None,
        start: Literal["ce"] | None = "ce",
        ensemble: int | None = None,
        validation_fraction: float = 0.2,
        patience: int | None = 8,
        fpr_budget: float | None = None,
        probabilities: Literal["calibrated", "threshold"] = "calibrated",
        positive_label: Any = None,
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
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        *,
        checkpoint: str | Path | None = None,
        every: int | None = None,
        resume: bool = True,
    ) -> TPAUCClassifier:
        """Train on a table and its two classes.

        Args:
            X: array, sparse matrix or DataFrame, shape `(n, n_features)`.
            y: classes, two of any kind, shape `(n,)`.
            sample_weight: how much each row counts in the loss, in the choice of the epoch, in the threshold and in the
                probabilities, at least 0, shape `(n,)`: a row of weight 2 counts as two rows, one of weight 0 as none.
                The encoding of the columns does not depend on it. None for 1 each. Some losses do not accept weights.
            groups: what each row belongs to, such as a patient or the scaffold of a molecule, shape `(n,)`: all rows of
                a group are held out, or none. None to keep equal rows together.
            checkpoint: folder to save the training in, so that the same call resumes an interrupted training; needs an
                integer `random_state`. None for no checkpoints. See also :func:`moreauc.train.fit`.
            every: steps between two saves; None to save at the end of each epoch only.
            resume: whether to resume from an existing checkpoint; if False, an existing one is an error.
        """
        self._check_arguments()
        X = self._check_table(X, reset=True)
        values = self._check_targets(X, y)
        rows, weights = self._check_weights(sample_weight, X)
        group = None if groups is None else number_equal(self._check_groups(X, groups)[rows])
        if len(rows) < len(values):
            X, values = _safe_indexing(X, rows), values[rows]
        classes = self._two_classes(values)
        label = self._choose_label(classes, values)
        task = self._make_task(batch_size=self._batch_size(len(values)))
        same = same_rows(self._owner, X) if self.validation_fraction and group is None else None
        saving = Saving(checkpoint, every, resume)
        trained = self._train(task, X, values == label, saving, groups=group, weights=weights, same=same)
        self._decide_by(classes, label, trained.data.values, trained.scores, trained.data.weights)
        self.held_out_ = rows[self.held_out_]
        return self

    def describe(self) -> Description:
        """Return what a page shows of the fitted estimator."""
        return Description(
            kind="linear" if self.module == "linear" else "network",
            title=self.title,
            histories=self._histories(),
            held_out=self.held_out_,
            threshold=self.threshold_,
        )

    def _check_weights(self, sample_weight: ArrayLike | None, X: Any) -> tuple[Array, Array | None]:
        """Return the numbers of the rows whose weight is above 0, and their weights; None where all are 1."""
        if sample_weight is None:
            return np.arange(X.shape[0]), None
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        methods = METHODS[self._task.name]
        if "sample_weight" not in methods[self.loss].allowed:
            able = [name for name, method in methods.items() if "sample_weight" in method.allowed]
            raise ValueError(
                f"{self._owner}: sample_weight must be None unless loss is one of {able}, got {self.loss!r}"
            )
        rows = np.flatnonzero(weights)
        return rows, weights[rows]

    def _check_own_arguments(self) -> None:
        self._check_choices(sampler=("auto", "balanced", "shuffled"))
        if self.module not in ("mlp", "linear") and not callable(self.module):
            raise ValueError(
                f"{self._owner}: module must be 'mlp', 'linear', a module or a function that makes one, got "
                f"{self.module!r}"
            )
        for name, least in (("batch_size", 2), ("ensemble", 1)):
            if getattr(self, name) is not None:
                check_count(self._owner, name, getattr(self, name), minimum=least)
        check_count(self._owner, "bins", self.bins, minimum=0)
        if self.start not in ("ce", None):
            raise ValueError(f"{self._owner}: start must be 'ce' or None, got {self.start!r}")
        bounds: dict[str, Any] = {"low": 0.0, "high": 1.0, "low_open": True, "high_open": True}
        check_real(self._owner, "positive_fraction", self.positive_fraction, **bounds)

    def _is_logistic(self, data: Data, loss: nn.Module) -> bool:
        linear = self.module == "linear" and isinstance(data.inputs, Tensor)  # a sparse matrix would be made dense
        default = self.optimizer == "adam" and self.sampler != "balanced"
        return linear and default and isinstance(loss, CrossEntropyLoss)

    def _batch_size(self, rows: int) -> int:
        """Return the rows of a step: about 20 steps to a pass, in powers of 2 from 64 to 2048."""
        if self.batch_size is not None:
            return int(self.batch_size)
        return 1 << min(max(round(math.log2(rows / 20)), 6), 11)

    def _num_members(self, rows: int) -> int:
        if self.ensemble is not None:
            return int(self.ensemble)
        if not self.validation_fraction:
            return 1
        return next(count for most, count in _MEMBERS if rows <= most)

    def _begins_as(self, number: int) -> str:
        linear = self.start is not None and self.module == "mlp" and self.bins and number % 2 == 0
        return "logistic regression" if linear else ""

    def _is_small(self, task: Any) -> bool:
        return isinstance(self.module, str) and bool(task.batch_size <= _SMALL_BATCH)

    def _start_task(self, task: Any) -> Any:
        if self.start is None or self.loss in ("ce", "ce_weighted"):
            return None
        return replace(task, loss="ce", loss_options={}, sampler="shuffled")

    def _training_arguments(self, phase: Phase, *, has_validation: bool) -> dict[str, Any]:
        arguments = super()._training_arguments(phase, has_validation=has_validation)
        return arguments if self.patience is None else {**arguments, "milestones": ()}

    def _make_module(self, data: Data, task: Any, loss: Any, seed: int, number: int) -> nn.Module:
        module = self.module
        if module == "mlp" and self.bins:
            dense = isinstance(data.inputs, Tensor)
            rows = data.inputs if dense else torch.zeros(1, data.inputs.shape[1])  # a sparse matrix has no bins
            made = partial(BinnedMLP, rows, bins=self.bins, hidden=self.hidden, dropout=self.dropout)
            built = cast(BinnedMLP, self._build_module(made, seed=seed))
            if self._begins_as(number):
                (start,) = self._logistic(built, data, [1.0 if dense else _SPARSE_C])
                built.mix(1.0, *start)
            return built
        if isinstance(module, str):
            module = partial(MLP, hidden=self.hidden if module == "mlp" else (), dropout=self.dropout)
        return self._build_module(module, data.inputs.shape[1], seed=seed)

    def _logistic(self, module: Any, data: Data, strengths: Sequence[float]) -> Iterator[tuple[Tensor, float]]:
        """Yield weights and bias of logistic regression on the inputs as a network has them, for each `C`."""
        inputs: Any = data.inputs
        if isinstance(inputs, Tensor):
            inputs = module.encoder(inputs.cpu())[:, : inputs.shape[1]].double().numpy()
        else:
            inputs = inputs.matrix
        model = LogisticRegression(max_iter=500, warm_start=True)
        for C in strengths:
            found = model.set_params(C=C).fit(inputs, data.targets.cpu().numpy(), sample_weight=data.weights)
            yield torch.from_numpy(found.coef_[0]).float(), float(found.intercept_[0])

    def _complete(self, members: Sequence[Member], data: Data, splits: Sequence[tuple[Array, Array]]) -> None:
        """Mix logistic regression into the networks, with the `C` and the share that rank the held-out rows best.

        Its scores are first scaled to the spread of the network's. The choice maximises the mean AUC over the members,
        which is less noisy than the partial AUC.
        """
        if not self._begins_as(0) or not all(len(held) for _, held in splits):
            return
        points = dict.fromkeys(product((0.0, *_SHARES), _STRENGTHS), 0.0)
        area: dict[str, Any] = {"min_tpr": 0.0, "max_fpr": 1.0}
        models: list[tuple[Any, dict[float, tuple[Tensor, float]]]] = []
        for member, (train, held) in zip(members, splits, strict=True):
            network: Any = member.model
            other, linear = data.part(held), {}
            own = self._raw_scores(network, other.inputs)
            for C, found in zip(_STRENGTHS, self._logistic(network, data.part(train), _STRENGTHS), strict=True):
                logistic = copy.deepcopy(network)
                logistic.mix(1.0, *found)
                scores = self._raw_scores(logistic, other.inputs)
                scale = float(own.std() / scores.std()) if own.std() > 0.0 and scores.std() > 0.0 else 1.0
                linear[C] = found[0] * scale, found[1] * scale
                for share in (0.0, *_SHARES):
                    mixed = (1.0 - share) * own + share * scale * scores
                    points[share, C] += tpauc_score(other.values, mixed, **area, sample_weight=other.weights)
            models.append((network, linear))
        share, C = max(points, key=points.__getitem__)  # the smallest share of equal ones
        for network, linear in models:
            network.mix(share, *linear[C])

    def _raw_scores(self, model: nn.Module, inputs: Tensor) -> Array:
        return self._table_scores(model, inputs.cpu())
