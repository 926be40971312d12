"""Two-way partial AUC for scikit-learn: a classifier of rows."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from moreauc._checks import check_count, check_real
from moreauc._registry import METHODS
from moreauc.criteria import CrossEntropyLoss
from moreauc.data.batches import as_inputs
from moreauc.data.tabular import TableEncoder, same_rows
from moreauc.estimators.base import Array, Floats, all_or_nothing, with_arguments
from moreauc.estimators.decisions import Judged
from moreauc.estimators.network_fit import Member, NetworkEstimator, Phase, SavePlan, Split, TableFit, table_scores
from moreauc.estimators.ranker import Ranker, TrainingRows
from moreauc.metrics.ranking import tpauc_score
from moreauc.models import MLP, BinnedMLP
from moreauc.tasks.base import Data
from moreauc.tasks.rows import RowTask

_SMALL_BATCH = 1024  # rows of a step up to which one thread is as fast as two
_SPARSE_C = 0.1  # of the logistic regression that initialises a network for sparse rows; 1 for dense ones
_STRENGTHS = (0.01, 0.1, 1.0)  # C of the logistic regression that is mixed into the networks
_SHARES = (0.25, 0.5, 0.75, 1.0)  # of logistic regression in the scores, besides 0
_MEMBERS = ((5000, 5), (50_000, 3), (math.inf, 1))  # (rows at most, networks)


@dataclass(kw_only=True)
class RowFit(TableFit[RowTask]):
    """Networks for rows of two classes; see :class:`TPAUCClassifier`."""

    keeps_members = True

    estimator: TPAUCClassifier

    def _is_logistic(self, data: Data, loss: nn.Module) -> bool:
        linear = self.estimator.module == "linear" and isinstance(
            data.inputs, Tensor
        )  # a sparse matrix would be made dense
        default = self.estimator.optimizer == "adam" and self.estimator.sampler != "balanced"
        return linear and default and isinstance(loss, CrossEntropyLoss)

    def _num_members(self, rows: int) -> int:
        if self.estimator.ensemble is not None:
            return self.estimator.ensemble
        if not self.estimator.validation_fraction:
            return 1
        return next(count for most, count in _MEMBERS if rows <= most)

    def _begins_as(self, number: int) -> str:
        given = self.estimator
        linear = given.start is not None and given.module == "mlp" and given.bins and number % 2 == 0
        return "logistic regression" if linear else ""

    def _is_small(self, task: RowTask) -> bool:
        return isinstance(self.estimator.module, str) and task.batch_size <= _SMALL_BATCH

    def _start_task(self, task: RowTask) -> RowTask | None:
        if self.estimator.start is None or self.estimator.loss in ("ce", "ce_weighted"):
            return None
        return replace(task, loss="ce", loss_options={}, sampler="shuffled")

    def _training_options(self, phase: Phase, *, has_validation: bool) -> dict[str, Any]:
        options = super()._training_options(phase, has_validation=has_validation)
        return options if self.estimator.patience is None else {**options, "milestones": ()}

    def _make_module(self, data: Data, task: RowTask, loss: nn.Module, seed: int, number: int) -> nn.Module:
        module = self.estimator.module
        if module == "mlp" and self.estimator.bins:
            dense = isinstance(data.inputs, Tensor)
            rows = data.inputs if dense else torch.zeros(1, data.inputs.shape[1])  # a sparse matrix has no bins
            made = partial(
                BinnedMLP, rows, bins=self.estimator.bins, hidden=self.estimator.hidden, dropout=self.estimator.dropout
            )
            built = cast(BinnedMLP, self._build_module(made, seed=seed))
            if self._begins_as(number):
                (start,) = self._logistic(built, data, [1.0 if dense else _SPARSE_C])
                built.mix(1.0, *start)
            return built
        if isinstance(module, str):
            module = partial(
                MLP, hidden=self.estimator.hidden if module == "mlp" else (), dropout=self.estimator.dropout
            )
        return self._build_module(module, data.inputs.shape[1], seed=seed)

    def _logistic(self, module: BinnedMLP, data: Data, strengths: Sequence[float]) -> Iterator[tuple[Tensor, float]]:
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

    def _complete(self, members: Sequence[Member], data: Data, splits: Sequence[Split]) -> None:
        """Mix logistic regression into the networks, with the `C` and the share that rank the held-out rows best.

        Its scores are first scaled to the spread of the network's. The choice maximises the mean AUC over the members,
        which is less noisy than the partial AUC.
        """
        if not self._begins_as(0) or not all(len(held) for _, held in splits):
            return
        points = dict.fromkeys(product((0.0, *_SHARES), _STRENGTHS), 0.0)
        region = {"min_tpr": 0.0, "max_fpr": 1.0}
        models: list[tuple[Any, dict[float, tuple[Tensor, float]]]] = []
        for member, (train, held) in zip(members, splits, strict=True):
            network = cast(BinnedMLP, member.model)
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
                    points[share, C] += tpauc_score(other.values, mixed, **region, sample_weight=other.weights)
            models.append((network, linear))
        share, C = max(points, key=points.__getitem__)  # the smallest share of equal ones
        for network, linear in models:
            network.mix(share, *linear[C])


@with_arguments
class TPAUCClassifier(Ranker, NetworkEstimator):
    r"""Binary classifier that ranks well where it matters: true positive rate high, false positive rate low.

    A network is trained for the two-way partial AUC by SONX, or by another method of :mod:`moreauc.methods`. The loss
    "ce" or "ce_weighted" with the module "linear" is logistic regression: L-BFGS with `weight_decay` as L2 penalty
    finds the minimum over all rows in one epoch, unless another optimizer or sampler is chosen.

    A stratified part of the rows is held out for each network: the epoch that scores best on it is kept (there is no
    second training on all data), and the threshold of `predict` is chosen on it. Where a class is too small for that (2
    in each part, and enough for the region to hold a pair), or where the part would be many copies of few rows, since
    equal ones stay together, nothing is held out: the last epoch is kept and the threshold is chosen on the training
    rows.

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
        momentum: momentum of "sgd".
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

    Example:
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(900, 6, weights=[0.9], flip_y=0, n_clusters_per_class=1, random_state=0)
        >>> classifier = TPAUCClassifier(min_tpr=0.5, max_fpr=0.3, fpr_budget=0.1, epochs=20, random_state=0)
        >>> classifier.fit(X[:600], y[:600]).score(X[600:], y[600:]) > 0.8
        True
    """

    _precision = np.float32
    _task = "rows"

    loss: str = "sonx"
    module: str | nn.Module | Callable[[int], nn.Module] = "mlp"
    bins: int = 16
    hidden: tuple[int, ...] = (64, 64)
    dropout: float = 0.1
    batch_size: int | None = None
    positive_fraction: float = 0.5
    sampler: Literal["auto", "balanced", "shuffled"] = "auto"
    lr: float = 0.0015
    momentum: float = 0.9
    weight_decay: float | None = None
    start: Literal["ce"] | None = "ce"
    ensemble: int | None = None
    patience: int | None = 8
    preprocessor_: TableEncoder = field(init=False)

    @all_or_nothing
    def fit(
        self,
        X: object,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        *,
        checkpoint: str | Path | None = None,
        every: int | None = None,
        resume: bool = True,
    ) -> Self:
        """Train on a table and its two classes.

        Args:
            X: array, sparse matrix or DataFrame, shape `(n, n_features)`.
            y: classes, two of any kind, shape `(n,)`.
            sample_weight: how much each row counts in the loss, in the choice of the epoch, in the threshold and in the
                probabilities, at least 0, shape `(n,)`: a row of weight 2 counts as two rows, one of weight 0 as none.
                The encoding of the columns does not depend on it. None for 1 each. Some losses do not accept weights.
            groups: what each row belongs to, such as a patient or the scaffold of a molecule, shape `(n,)`: all rows of
                a group are held out, or none. None to keep equal rows together.
            checkpoint: folder to save the training in, as in :func:`moreauc.train.fit`, so that the same call resumes
                it; needs an integer `random_state`. None for no checkpoints.
            every: steps between two saves; None to save at the end of each epoch only.
            resume: whether to resume from an existing checkpoint; if False, an existing one is an error.
        """
        self._check_arguments()
        if sample_weight is not None:
            self._check_weighted()
        given = self._training_rows(X, y, sample_weight, groups)
        weights = None if sample_weight is None else given.weight
        self._decide_by(given.classes, given.label, self._train(given, weights, SavePlan(checkpoint, every, resume)))
        return self

    def _train(self, given: TrainingRows, weights: Floats | None, plan: SavePlan) -> Judged:
        """Train networks, and return the rows that threshold and probabilities are chosen by."""
        training = self._training()
        task = self._make_task(RowTask, batch_size=self._rows_of_a_step(len(given.values)))
        same = same_rows(self._owner, given.table) if self.validation_fraction and given.group is None else None
        found = training.run(task, given.table, given.positive, plan, groups=given.group, weights=weights, same=same)
        self._keep(found)
        self.preprocessor_, self.held_out_ = training.encoder, given.numbers[found.held_out]
        return Judged(found.data.values, found.scores, found.data.weights)

    def _training(self) -> RowFit:
        return RowFit(estimator=self)

    def _check_arguments(self) -> None:
        self._check_decisions()
        self._check_training()

    def _check_own(self) -> None:
        self._check_choices(sampler=("auto", "balanced", "shuffled"))
        if self.module not in ("mlp", "linear") and not callable(self.module):
            raise ValueError(
                f"{self._owner}: module must be 'mlp', 'linear', a module or a function that makes one, got "
                f"{self.module!r}"
            )
        for name, count, least in (("batch_size", self.batch_size, 2), ("ensemble", self.ensemble, 1)):
            if count is not None:
                check_count(self._owner, name, count, minimum=least)
        self._check_counts("bins", minimum=0)
        if self.start not in ("ce", None):
            raise ValueError(f"{self._owner}: start must be 'ce' or None, got {self.start!r}")
        share = self.positive_fraction
        check_real(self._owner, "positive_fraction", share, low=0.0, high=1.0, low_open=True, high_open=True)

    def _rows_of_a_step(self, rows: int) -> int:
        """Return the rows of a step: about 20 steps to a pass, in powers of 2 from 64 to 2048."""
        if self.batch_size is not None:
            return int(self.batch_size)
        return 1 << min(max(round(math.log2(rows / 20)), 6), 11)

    def _check_weighted(self) -> None:
        """Check that the loss takes weights of rows."""
        able = [name for name, method in METHODS["rows"].items() if "sample_weight" in method.allowed]
        if self.loss not in able:
            raise ValueError(
                f"{self._owner}: sample_weight must be None unless loss is one of {able}, got {self.loss!r}"
            )

    def _score_table(self, table: Any) -> Array:
        return table_scores(self._owner, self.model_, as_inputs(self.preprocessor_.transform(table)))
