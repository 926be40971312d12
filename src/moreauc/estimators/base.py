"""What the classifiers of rows and of bags share: the hold-out, the operating point, and decisions by it."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from torch import Tensor

from moreauc._checks import check_real, check_region
from moreauc.data.duplicates import Codes
from moreauc.estimators.operating_point import PlattScaling, choose_threshold, fit_platt
from moreauc.estimators.parts import check_known, check_training, training_arguments
from moreauc.metrics import TiedScoresWarning, tied_share, tpauc_score
from moreauc.metrics.ties import ties_text
from moreauc.samplers import PosNegSampler
from moreauc.tasks.rows import hold_out

Array = NDArray[Any]


class TPAUCEstimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A binary classifier trained for the two-way partial AUC, whose threshold is chosen for a false-positive budget.

    The leaf has the arguments, `fit` and the public methods, whose input it calls by its own name. Read here are its
    `min_tpr`, `max_fpr`, `fpr_budget`, `probabilities`, `validation_fraction`, `random_state` and what the loop takes.

    Attributes:
        classes_: the two classes, sorted; set by the leaf.
        positive_label_: the class to find; set by the leaf.
        threshold_: raw scores above it are called positive.
        platt_: slope and intercept of the calibrated log odds over the raw score.
    """

    _owner: str
    classes_: Array
    positive_label_: Any
    threshold_: float
    platt_: PlattScaling

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _check_arguments(self) -> None:
        """Check what :func:`moreauc.train.fit` and the modules do not check themselves."""
        check_region(self._owner, self.min_tpr, self.max_fpr)
        self._check_own_arguments()
        if self.fpr_budget is not None:
            check_real(self._owner, "fpr_budget", self.fpr_budget, low=0.0, high=1.0)
        check_training(self._owner, self)

    @abstractmethod
    def _check_own_arguments(self) -> None:
        """Check the arguments that only the leaf has."""

    def _region(self) -> dict[str, Any]:
        return {"min_tpr": self.min_tpr, "max_fpr": self.max_fpr}

    def _divide(self, positive: Array, same: Codes | None, *, num_seeds: int) -> tuple[Array, Array, list[int]]:
        """Return numbers of what to train on and of what to hold out, and seeds of all that is drawn afterwards.

        Rows, or bags, with equal numbers `same` are not parted.
        """
        random = check_random_state(self.random_state)
        train, held = hold_out(positive, random, fraction=self.validation_fraction, same=same, **self._region())
        return train, held, [int(seed) for seed in random.randint(2**31 - 1, size=num_seeds)]

    def _training_arguments(self, *, held: Array, seed: int) -> dict[str, Any]:
        """Return what :func:`moreauc.train.fit` is told besides data, method and checkpoint."""
        return {
            **training_arguments(self, held=held, seed=seed),
            **self._region(),
            "momentum": self.momentum,
            "warm_start_epochs": self.warm_start_epochs,
        }

    def _choose_operating_point(self, positive: Array, scores: Array) -> None:
        budget = self.max_fpr if self.fpr_budget is None else self.fpr_budget
        self.threshold_ = choose_threshold(positive, scores, budget)
        self.platt_ = fit_platt(positive, scores)

    def _direction(self) -> int:
        """1 where raw scores rise with the chance of `classes_[1]`, else -1."""
        return 1 if self.positive_label_ == self.classes_[1] else -1

    def _margins(self, scores: Array) -> Array:
        """Return how far raw scores are from the threshold; above 0 is `classes_[1]`."""
        margins: Array = self._direction() * (scores - self.threshold_)
        return margins

    def _decide(self, margins: Array) -> Array:
        """Return the classes."""
        decided: Array = self.classes_[(margins > 0).astype(np.int64)]
        return decided

    def _probabilities(self, scores: Array) -> Array:
        """Return the probabilities of both classes, shape `(n, 2)`, by the threshold or by Platt's estimate."""
        slope, intercept = self.platt_
        odds = slope * (scores - self.threshold_) if self.probabilities == "threshold" else slope * scores + intercept
        direction = self._direction()
        probabilities: Array = expit(np.column_stack([-direction * odds, direction * odds]))
        return probabilities

    def _partial_auc(self, values: Array, scores: Array, sample_weight: ArrayLike | None) -> float:
        """Return the two-way partial AUC of raw scores, given the classes."""
        check_known(self._owner, values, self.classes_)
        positive = values == self.positive_label_
        text = ties_text(tied_share(positive, scores, **self._region()))
        if text is not None:
            warnings.warn(f"{self._owner}: {text}", TiedScoresWarning, stacklevel=3)
        return tpauc_score(positive, scores, sample_weight=sample_weight, **self._region())


def balanced_batches(labels: Tensor, num_positives: int, num_negatives: int, seed: int) -> PosNegSampler:
    """Return batches of so many positives and negatives, fewer where there are fewer."""
    positives = int(labels.sum())
    return PosNegSampler(
        labels,
        num_positives=min(num_positives, positives),
        num_negatives=min(num_negatives, len(labels) - positives),
        seed=seed,
    )
