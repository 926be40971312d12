"""Two-way partial AUC over bags of instances in scikit-learn's style: a shell over :func:`moreauc.train.fit`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import nn

from moreauc._all_or_nothing import all_or_nothing
from moreauc._checks import check_count
from moreauc._checksum import checksum
from moreauc.core.pooling import Pooling
from moreauc.data import (
    BagBatches,
    Bags,
    WholeBags,
    bag_scores,
    instance_outputs,
)
from moreauc.data.bags import instance_moments
from moreauc.data.duplicates import same_bags
from moreauc.estimators.base import TPAUCEstimator, balanced_batches
from moreauc.estimators.instance_scores import InstanceScores
from moreauc.estimators.parts import (
    check_choices,
    check_label,
    check_module,
    check_options,
    check_scores,
    make_module,
)
from moreauc.methods import METHODS, build
from moreauc.models import InstanceMLP
from moreauc.tasks.bags import (
    InstanceFormat,
    PreparedBags,
    as_bags,
    as_instances,
    classes_of,
    prepare,
    two_classes,
)
from moreauc.train import fit

__all__ = ["InstanceScores", "MultiInstanceClassifier"]

Array = NDArray[Any]

_OWNER = "MultiInstanceClassifier"


class MultiInstanceClassifier(TPAUCEstimator):
    r"""Binary classifier of bags of instances, whose labels are on the bags: patients of patches, molecules of shapes.

    A network scores instances, a pooling makes of them the score of the bag, and both are trained for the two-way
    partial AUC by SONT, or by another method of :mod:`moreauc.methods`. A step sees a few instances of a few
    bags, so that bags need not fit into memory; predictions go through all instances, chunk by chunk.

    A stratified part of the bags is held out: the epoch that scores best on it is kept, and the threshold of `predict`
    is chosen on it. Where a class has too few bags for that (2 in each part, and enough for the region to hold a pair),
    nothing is held out: the last epoch is kept and the threshold is chosen on the training bags.

    Wherever `bags` are asked for, they are :class:`~moreauc.data.Bags`, also ones read lazily from files, or a list of
    arrays, tensors or DataFrames of numbers, one for each bag, of shape `(instances, features)`. With a list
    `cross_val_score`, `GridSearchCV` and the like work. Since that is no table, `check_estimator` of scikit-learn does
    not apply, and steps of a `Pipeline` that take tables cannot come before.

    Args:
        loss: how to train and pool: "sont_mean", "sont_smx" (smoothed maximum), "sont_att" (attention), "auc_m_att",
            "midam_smx", "midam_att", "sota_s_att" or "ce_att".
        min_tpr: lower end of the true positive rate, in [0, 1).
        max_fpr: upper end of the false positive rate, in (0, 1].
        loss_options: keyword arguments of the loss, for instance `{"gamma": 0.1}`, or `{"temperature": 1.0}` of
            the smoothed maximum; None for the preset.
        module: None for :class:`~moreauc.models.InstanceMLP`, one hidden layer as wide as the input; a module (a copy
            of it is trained, from its present weights); or a function that makes one from the number of features. It
            maps instances `(T, ...)` to scores `(T,)`, for attention to scores and attention logits `(T, 2)`.
        standardize: whether to bring each feature to mean 0 and deviation 1 over the training instances. Bytes (uint8),
            which are images, reach the module as they are in any case; convert them where they are meant as numbers.
        epochs: passes over the training bags.
        num_positives: positive bags of a step; fewer where there are fewer.
        num_negatives: the same for negative bags. All methods get the same batches; since these are balanced, "ce_att"
            has no class weights here, unless `loss_options` ask for them.
        instances_per_bag: instances drawn of each bag at a step, all where it has no more; None for all.
        optimizer: "adam" (AdamW), whose steps do not depend on the scale of the loss, or "sgd".
        lr: learning rate; divided by 10 after one third and two thirds of the epochs.
        momentum: momentum of "sgd".
        weight_decay: weight decay; decoupled from the gradient with "adam".
        warm_start_epochs: epochs of cross entropy before.
        validation_fraction: share of the bags held out, in [0, 1).
        patience: end after so many epochs without a better score on the held-out bags; None to run all, as is
            done where none are held out.
        fpr_budget: largest false positive rate that `predict` may have on the held-out bags, in [0, 1]; None for
            `max_fpr`.
        probabilities: "threshold" for 1/2 at the threshold, so that `predict` names the more probable class;
            "calibrated" for Platt's estimate, by which `predict` does not go.
        positive_label: the class to find; None for the second of `classes_`, which are sorted.
        chunk: instances scored at once in predictions.
        device: where to train. The fitted module is on the CPU.
        random_state: seed or generator of the split, the initial weights, the bags and instances drawn, and dropout;
            None for NumPy's global generator.
        verbose: 0, or 1 for a progress bar.

    Attributes:
        classes_: the two classes, sorted.
        positive_label_: the class to find.
        threshold_: bags with raw scores above it are called positive.
        platt_: slope and intercept of the calibrated log odds over the raw score.
        model_: the network, in `eval()` mode on the CPU.
        loss_: the loss as it was after the last step.
        pooling_: its :class:`~moreauc.core.pooling.Pooling`.
        scale_: means and deviations of the features, float64; None without `standardize` and for bytes.
        history_: numbers of each epoch, a :class:`~moreauc.train.history.History`.
        held_out_: numbers of the bags held out; empty where none were.
        n_features_in_: numbers of an instance.
        feature_names_in_: their names, where bags came as DataFrames with string names.

    Raises:
        ValueError: in `fit`, for an argument out of range and for bags that cannot be used; nothing is trained then.

    Example:
        >>> from moreauc.data import digit_bags
        >>> digits = digit_bags(target=0, num_bags=150, positive_rate=0.3, mean_size=6, noise=0.0)
        >>> classifier = MultiInstanceClassifier(epochs=15, instances_per_bag=3, random_state=0).fit(digits.train)
        >>> classifier.score(digits.test) > 0.8
        True
        >>> best = classifier.decision_function(digits.test).argmax()
        >>> decided = classifier.instance_scores(digits.test.instances(best)).weight.argmax()
        >>> digits.digits_of("test", best)[decided]
        tensor(0)
    """

    _owner = _OWNER

    def __init__(
        self,
        *,
        loss: str = "sont_att",
        min_tpr: float = 0.5,
        max_fpr: float = 0.5,
        loss_options: Mapping[str, Any] | None = None,
        module: nn.Module | Callable[[int], nn.Module] | None = None,
        standardize: bool = True,
        epochs: int = 100,
        num_positives: int = 8,
        num_negatives: int = 8,
        instances_per_bag: int | None = 4,
        optimizer: Literal["adam", "sgd"] = "adam",
        lr: float = 0.003,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        warm_start_epochs: int = 0,
        validation_fraction: float = 0.2,
        patience: int | None = None,
        fpr_budget: float | None = None,
        probabilities: Literal["threshold", "calibrated"] = "threshold",
        positive_label: Any = None,
        chunk: int = 4096,
        device: torch.device | str = "cpu",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.loss = loss
        self.min_tpr = min_tpr
        self.max_fpr = max_fpr
        self.loss_options = loss_options
        self.module = module
        self.standardize = standardize
        self.epochs = epochs
        self.num_positives = num_positives
        self.num_negatives = num_negatives
        self.instances_per_bag = instances_per_bag
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
        self.chunk = chunk
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @all_or_nothing
    def fit(
        self,
        bags: Any,
        y: ArrayLike | None = None,
        *,
        checkpoint: str | Path | None = None,
        every: int | None = None,
        resume: bool = True,
    ) -> MultiInstanceClassifier:
        """Train on bags and their two classes.

        Args:
            bags: the bags, `n` of them.
            y: classes, two of any kind, shape `(n,)`; None for the labels of :class:`~moreauc.data.Bags`.
            checkpoint: folder to save the training in, so that the same call goes on where it was interrupted, given an
                integer `random_state`; None for none. See :func:`moreauc.train.fit` for this and the next two.
            every: steps between two saves; None for the ends of epochs only.
            resume: whether to go on from a checkpoint that is there; if not, there must be none.
        """
        self._check_arguments()
        source, form = as_bags(_OWNER, bags)
        classes, positive_label, positive = self._check_target(bags, y)
        same = same_bags(source) if self.validation_fraction else None  # which reads all bags
        train, held, seeds = self._divide(positive, same, num_seeds=4)

        labels = torch.from_numpy(positive.astype(np.int64))
        scaled = self.standardize and form.kind == "numbers"
        scale = instance_moments(source.subset(torch.from_numpy(train))) if scaled else None
        prepared = PreparedBags(source, labels, scale)
        options = self.loss_options or {}
        criterion: Any = build("bags", self.loss, labels[train], **self._region(), **options)
        pooling: Pooling = criterion.pooling
        module = self._make_module(form, pooling, seeds[0])
        batches = BagBatches(
            prepared.subset(torch.from_numpy(train)),
            balanced_batches(labels[train], self.num_positives, self.num_negatives, seeds[1]),
            instances_per_bag=self.instances_per_bag,
            seed=seeds[3],
        )
        if checkpoint is not None:  # of one instance each: bags may be larger than memory
            first = torch.tensor([0])
            batches.checksum_of_inputs = checksum(prepared.instances(bag, first) for bag in range(len(labels)))
        validation: Any = None
        if len(held):
            validation = WholeBags(prepared.subset(torch.from_numpy(held)), pooling, chunk=self.chunk)
        history = fit(
            module,
            criterion,
            batches,
            validation=validation,
            proximal=METHODS["bags"][self.loss].proximal,
            checkpoint=checkpoint,
            every=every,
            resume=resume,
            **self._training_arguments(held=held, seed=seeds[2]),
        )
        module, rows = module.cpu().eval(), held if len(held) else train
        scores = self._raw_scores(prepared.subset(torch.from_numpy(rows)), module, pooling)
        self.classes_, self.positive_label_, self.history_ = classes, positive_label, history
        self.model_, self.loss_, self.pooling_ = module, criterion.cpu(), pooling
        self.form_, self.scale_, self.held_out_ = form, scale, held
        self.n_features_in_ = math.prod(form.shape)
        if form.names is not None:
            self.feature_names_in_ = np.array(form.names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_  # of an earlier fit
        self._choose_operating_point(positive[rows], scores)
        return self

    def decision_function(self, bags: Any) -> NDArray[np.float64]:
        """Return how far the scores of whole bags are from the threshold, shape `(n,)`; above 0 is `classes_[1]`."""
        return self._margins(self._scores(bags))

    def predict(self, bags: Any) -> Array:
        """Return the class of each bag, shape `(n,)`, at the threshold chosen for the false-positive budget."""
        return self._decide(self.decision_function(bags))

    def predict_proba(self, bags: Any) -> NDArray[np.float64]:
        """Return the probabilities of `classes_`, shape `(n, 2)`; see the argument `probabilities`."""
        return self._probabilities(self._scores(bags))

    def score(self, bags: Any, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> float:
        """Return the two-way partial AUC of the bags in the region; see :func:`moreauc.metrics.tpauc_score`.

        Args:
            bags: the bags, `n` of them.
            y: classes, shape `(n,)`; None for the labels of :class:`~moreauc.data.Bags`.
            sample_weight: weights of at least 0, shape `(n,)`.
        """
        scores = self._scores(bags)
        return self._partial_auc(classes_of(_OWNER, bags, y, len(scores)), scores, sample_weight)

    def instance_scores(self, bag: Any) -> InstanceScores:
        """Return what each instance of a bag had to say, and how much it counted.

        Args:
            bag: array, tensor or DataFrame of shape `(instances, features)`; of :class:`~moreauc.data.Bags` give
                `bags.instances(number)`.
        """
        from moreauc.report.bag_figures import (
            instance_weights,  # brings matplotlib, for which nobody else here should wait
        )

        check_is_fitted(self)
        instances, _ = as_instances(_OWNER, "bag", bag, self.form_)
        outputs = instance_outputs(self.model_, prepare(instances, self.scale_), chunk=self.chunk)
        _check_scores(outputs.numpy())
        score, weight = instance_weights(outputs, self.pooling_)
        return InstanceScores(score, weight, weight * (score - self.threshold_))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        return tags

    def _check_own_arguments(self) -> None:
        choices = {"loss": tuple(METHODS["bags"]), "optimizer": ("adam", "sgd")}
        check_choices(_OWNER, self, {**choices, "probabilities": ("threshold", "calibrated")})
        taken = ("task", "name", "targets", "labels", "min_tpr", "max_fpr", "pooling")
        check_options(_OWNER, "loss_options", self.loss_options, taken=taken)
        check_module(_OWNER, self.module)
        for name in ("num_positives", "num_negatives", "chunk"):
            check_count(_OWNER, name, getattr(self, name))
        if self.instances_per_bag is not None:
            check_count(_OWNER, "instances_per_bag", self.instances_per_bag)

    def _check_target(self, bags: Any, y: ArrayLike | None) -> tuple[Array, Any, Array]:
        """Return the classes, the one to find, and where it is."""
        values = classes_of(_OWNER, bags, y, len(bags))
        classes = two_classes(_OWNER, values)
        label = check_label(_OWNER, classes, self.positive_label)
        return classes, label, values == label

    def _make_module(self, form: InstanceFormat, pooling: Pooling, seed: int) -> nn.Module:
        if self.module is None and len(form.shape) > 1:
            raise ValueError(
                f"{_OWNER}: module must be given for instances that are no vectors, got shape {form.shape}"
            )
        module = partial(InstanceMLP, attention=pooling.columns == 2) if self.module is None else self.module
        fitted = getattr(self, "model_", None)
        return make_module(_OWNER, module, math.prod(form.shape), seed=seed, fitted=fitted)

    def _scores(self, bags: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        source, _ = as_bags(_OWNER, bags, self.form_)
        return self._raw_scores(PreparedBags(source, source.labels, self.scale_), self.model_, self.pooling_)

    def _raw_scores(self, bags: Bags, module: nn.Module, pooling: Pooling) -> NDArray[np.float64]:
        return _check_scores(bag_scores(module, bags, pooling, chunk=self.chunk).numpy())


def _check_scores(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    return check_scores(_OWNER, scores, giver="module", data="bags")
