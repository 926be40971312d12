"""Two-way partial AUC over bags of instances in scikit-learn's style."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from moreauc.core.pooling import Pooling
from moreauc.data import Bags, bag_scores, instance_outputs, instance_weights
from moreauc.data.bags import instance_moments
from moreauc.data.duplicates import same_bags
from moreauc.estimators.base import Array, Floats, all_or_nothing, check_scores, with_arguments
from moreauc.estimators.decisions import Judged, TwoClassScorer
from moreauc.estimators.network_fit import NetworkEstimator, NetworkFit, SavePlan
from moreauc.models import InstanceMLP
from moreauc.tasks.bags import (
    BagsLike,
    BagTask,
    InstanceFormat,
    PreparedBags,
    as_bags,
    as_instances,
    classes_of,
    prepare,
    two_classes,
)
from moreauc.tasks.base import Data


@dataclass(frozen=True)
class InstanceScores:
    r"""Scores and weights of the instances of a bag; all of shape `(instances,)`, float64.

    Attributes:
        score: raw score of the instance; high for the class to find.
        weight: derivative of the bag's score in the instance's; at least 0, and 1 together. With attention the
            softmax of the attention logits, with the smoothed maximum that of the scores over its temperature, with
            the mean the same for all.
        contribution: :math:`\text{weight} \cdot (\text{score} - \text{threshold})`: above 0 for the class to find,
            below 0 against it. Their sum is how far the bag's score is from the threshold (for the smoothed maximum
            more than that, by at most its temperature times the logarithm of the number of instances).
    """

    score: NDArray[np.float64]
    weight: NDArray[np.float64]
    contribution: NDArray[np.float64]


def whole_scores(owner: str, model: nn.Module, bags: Bags, pooling: Pooling, chunk: int) -> Floats:
    """Return the raw scores of prepared bags."""
    return check_scores(owner, bag_scores(model, bags, pooling, chunk=chunk).numpy(), data="bags")


@dataclass(kw_only=True)
class BagFit(NetworkFit[BagTask]):
    """Networks for bags of two classes; see :class:`MultiInstanceClassifier`."""

    num_seeds = 4

    estimator: MultiInstanceClassifier
    form: InstanceFormat
    pooling: Pooling = field(init=False)  # of the loss
    scale: tuple[Tensor, Tensor] | None = None  # means and deviations of the features

    def _prepare(self, source: Bags, targets: Tensor, train: Array) -> Bags:
        scaled = self.estimator.standardize and self.form.kind == "numbers"
        self.scale = instance_moments(source.subset(torch.from_numpy(train))) if scaled else None
        return PreparedBags(source, targets.cpu(), self.scale)

    def _make_module(self, data: Data, task: BagTask, loss: nn.Module, seed: int, number: int) -> nn.Module:
        shape = self.form.shape
        self.pooling = cast(Pooling, loss.pooling)
        module = self.estimator.module
        if module is None:
            if len(shape) > 1:
                raise ValueError(
                    f"{self.owner}: module must be given for instances that are not vectors, got shape {shape}"
                )
            module = partial(InstanceMLP, attention=self.pooling.columns == 2)
        return self._build_module(module, math.prod(shape), seed=seed)

    def _raw_scores(self, model: nn.Module, inputs: Bags) -> Floats:
        return whole_scores(self.owner, model, inputs, self.pooling, self.estimator.chunk)


@with_arguments
class MultiInstanceClassifier(TwoClassScorer, NetworkEstimator):
    r"""Binary classifier for bags of instances with one label per bag, such as image patches of a patient.

    A network scores the instances, pooling turns these into the score of the bag, and both are trained for the two-way
    partial AUC by SONT, or by another method of :mod:`moreauc.methods`. A step sees a few instances of a few bags, so
    that bags need not fit into memory; predictions go through all instances, chunk by chunk.

    A stratified part of the bags is held out: the epoch that scores best on it is kept (there is no second training on
    all data), and the threshold of `predict` is chosen on it. Where a class is too small for that (2 in each part, and
    enough for the region to hold a pair), or where the part would be many copies of few bags, since equal ones stay
    together, nothing is held out: the last epoch is kept and the threshold is chosen on the training bags.

    An argument `bags` is a :class:`~moreauc.data.Bags`, which may read its instances lazily from files, or a list with
    one array, tensor or DataFrame of numbers for each bag, of shape `(instances, features)`. Lists work with
    `cross_val_score`, `GridSearchCV` and the like. Since the input is not a table, scikit-learn's `check_estimator`
    does not apply, and transformers of tables cannot precede it in a `Pipeline`.

    Instances of dtype uint8 are taken for images and passed to the module unchanged, even with `standardize`; convert
    them if they are ordinary numbers.

    Args:
        loss: how to train and pool: "sont_mean", "sont_smx" (smoothed maximum), "sont_att" (attention), "auc_m_att",
            "midam_smx", "midam_att", "sota_s_att" or "ce_att". `loss_options={"temperature": 1.0}` sets the temperature
            of the smoothed maximum.
        module: None for :class:`~moreauc.models.InstanceMLP`, one hidden layer as wide as the input; a module (a copy
            of it is trained, from its current weights); or a function that makes one from the number of features. It
            maps instances `(T, ...)` to scores `(T,)`, for attention to scores and attention logits `(T, 2)`.
        momentum: momentum of "sgd".
        warm_start_epochs: epochs of cross entropy before.
        num_positives: positive bags in a batch; all if the data have fewer.
        num_negatives: the same for negative bags. All methods get the same batches. These are balanced, so that
            "ce_att" has no class weights unless `loss_options` sets them.
        instances_per_bag: instances drawn from each bag at a step; all if it has fewer. None for all.
        chunk: instances scored at once in predictions.

    Attributes:
        pooling_: the :class:`~moreauc.core.pooling.Pooling` of the loss.
        scale_: means and standard deviations of the features, float64; None without `standardize` and for uint8.
        form_: what an instance looks like, a :class:`~moreauc.tasks.bags.InstanceFormat`.

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

    _task = "bags"

    loss: str = "sont_att"
    module: nn.Module | Callable[[int], nn.Module] | None = None
    epochs: int = 100
    num_positives: int = 8
    num_negatives: int = 8
    instances_per_bag: int | None = 4
    momentum: float = 0.9
    weight_decay: float = 1e-4
    warm_start_epochs: int = 0
    chunk: int = 4096
    pooling_: Pooling = field(init=False)
    scale_: tuple[Tensor, Tensor] | None = field(init=False)
    form_: InstanceFormat = field(init=False)

    @all_or_nothing
    def fit(
        self,
        bags: BagsLike,
        y: ArrayLike | None = None,
        *,
        checkpoint: str | Path | None = None,
        every: int | None = None,
        resume: bool = True,
    ) -> Self:
        """Train on bags and their two classes.

        Args:
            bags: the bags, `n` of them.
            y: classes, two of any kind, shape `(n,)`; None for the labels of :class:`~moreauc.data.Bags`.
            checkpoint: folder to save the training in, as in :func:`moreauc.train.fit`, so that the same call resumes
                it; needs an integer `random_state`. None for no checkpoints.
            every: steps between two saves; None to save at the end of each epoch only.
            resume: whether to resume from an existing checkpoint; if False, an existing one is an error.
        """
        self._check_decisions()
        source, form = as_bags(self._owner, bags)
        self._check_training()
        training = BagFit(estimator=self, form=form)
        values = classes_of(self._owner, bags, y, len(source))
        classes = two_classes(self._owner, values)
        label = self._choose_label(classes, values)
        same = same_bags(source) if self.validation_fraction else None  # reads all bags
        task = self._make_task(BagTask)
        found = training.run(task, source, values == label, SavePlan(checkpoint, every, resume), same=same)
        self._keep(found)
        self.form_, self.pooling_, self.scale_ = form, training.pooling, training.scale
        self._decide_by(classes, label, Judged(found.data.values, found.scores))
        self.n_features_in_ = math.prod(form.shape)
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        if form.names is not None:
            self.feature_names_in_ = np.array(form.names, dtype=object)
        return self

    def decision_function(self, bags: BagsLike) -> NDArray[np.float64]:
        """Return how far the scores of whole bags are from the threshold, shape `(n,)`; above 0 is `classes_[1]`."""
        return self._margins(self._scores(bags))

    def predict(self, bags: BagsLike) -> Array:
        """Return the class of each bag, shape `(n,)`, at the threshold chosen for the false-positive budget."""
        return self._decide(self.decision_function(bags))

    def predict_proba(self, bags: BagsLike) -> NDArray[np.float64]:
        """Return the probabilities of `classes_`, shape `(n, 2)`; see the argument `probabilities`."""
        return self._probabilities(self._scores(bags))

    def score(self, bags: BagsLike, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> float:
        """Return the two-way partial AUC of the bags in the region; see :func:`moreauc.metrics.tpauc_score`.

        Args:
            bags: the bags, `n` of them.
            y: classes, shape `(n,)`; None for the labels of :class:`~moreauc.data.Bags`.
            sample_weight: weights of at least 0, shape `(n,)`.
        """
        scores = self._scores(bags)
        return self._partial_auc(classes_of(self._owner, bags, y, len(scores)), scores, sample_weight)

    def instance_scores(self, bag: object) -> InstanceScores:
        """Return score, weight and contribution of each instance of a bag.

        Args:
            bag: array, tensor or DataFrame of shape `(instances, features)`; for :class:`~moreauc.data.Bags` pass
                `bags.instances(number)`.
        """
        check_is_fitted(self)
        instances, _ = as_instances(self._owner, "bag", bag, self.form_)
        outputs = instance_outputs(self.model_, prepare(instances, self.scale_), chunk=self.chunk)
        check_scores(self._owner, outputs.numpy(), data="bags")
        score, weight = instance_weights(outputs, self.pooling_)
        return InstanceScores(score, weight, weight * (score - self.threshold_))

    def _check_own(self) -> None:
        self._check_module()
        self._check_counts("num_positives", "num_negatives", "chunk")
        if self.instances_per_bag is not None:
            self._check_counts("instances_per_bag")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        return tags

    def _scores(self, bags: BagsLike) -> Floats:
        check_is_fitted(self)
        source, _ = as_bags(self._owner, bags, self.form_)
        prepared = PreparedBags(source, source.labels, self.scale_)
        return whole_scores(self._owner, self.model_, prepared, self.pooling_, self.chunk)
