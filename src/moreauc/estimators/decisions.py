"""Decisions between two classes by a score: the threshold at a false-positive budget, and probabilities."""

from __future__ import annotations

import warnings
from dataclasses import field
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags

from moreauc._checks import check_real, check_region, floor_count
from moreauc.data.texts import MAJORITY, class_text, positive_class
from moreauc.estimators.base import Array, Random, Scorer, with_arguments
from moreauc.metrics.ranking import TiedScoresWarning, tied_share, ties_text, tpauc_score

# Smallest slope of the fitted curve, in standard deviations of the scores: probabilities always rise with the score.
_LEAST_SLOPE = 1e-3


def choose_threshold(labels: Array, scores: Array, budget: float, weight: Array | None = None) -> float:
    """Return the threshold with the most true positives among those whose false positive rate is at most `budget`.

    A row is called positive where its score is above the threshold. Of several thresholds with as many the one with
    the fewest false positives is taken; it lies in the middle between the two neighbouring scores, or, beyond the
    last score on either side, half the distance to the score next to it away (0.5 where all scores are equal).
    A row of `weight` 2 counts as two rows, one of weight 0 not at all; None for 1 each.

    Example:
        >>> labels = np.array([0, 0, 0, 0, 1, 1])
        >>> scores = np.array([0.0, 1.0, 2.0, 4.0, 3.0, 5.0])
        >>> choose_threshold(labels, scores, 0.25), choose_threshold(labels, scores, 0.0)
        (2.5, 4.5)
    """
    values, positive = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=bool)
    if weight is None:
        hit, alarm, most = positive, ~positive, float(floor_count(int((~positive).sum()), budget))
    else:
        some = weight > 0
        values, positive, weight = values[some], positive[some], weight[some]
        hit, alarm = weight * positive, weight * ~positive
        most = alarm.sum() * (budget + (4.0 + len(values)) * np.finfo(np.float64).eps)  # sums are rounded
    values, place = np.unique(values, return_inverse=True)
    hits, alarms = (np.bincount(place, weights=part, minlength=len(values)) for part in (hit, alarm))
    # Entry k: rows at or above values[k], the last entry for none.
    hits = np.append(hits[::-1].cumsum()[::-1], 0)
    alarms = np.append(alarms[::-1].cumsum()[::-1], 0)
    hits[alarms > most] = -1
    # Alarms fall with k: the last of the best is the one with the fewest.
    cut = len(hits) - 1 - int(np.argmax(hits[::-1]))
    gap = np.diff(values) if len(values) > 1 else np.ones(1)
    edges = np.concatenate(
        [[values[0] - gap[0] / 2], values[:-1] + gap[: len(values) - 1] / 2, [values[-1] + gap[-1] / 2]]
    )
    return float(edges[cut])


class PlattScaling(NamedTuple):
    """Probability of a positive as a logistic curve over the score: `expit(slope * score + intercept)`, slope > 0."""

    slope: float
    intercept: float

    def probability(self, scores: Array) -> Array:
        """Return the probability of a positive for each score."""
        probability: Array = expit(self.slope * scores + self.intercept)
        return probability


def fit_platt(labels: Array, scores: Array, weight: Array | None = None) -> PlattScaling:
    """Fit the logistic curve by maximum likelihood, with Platt's targets and a slope that cannot turn.

    Instead of 1 and 0 the targets are `(n+ + 1) / (n+ + 2)` and `1 / (n- + 2)`, so that classes that the scores
    separate get a finite slope. A row of `weight` 2 counts as two rows; None for 1 each.

    Example:
        >>> curve = fit_platt(np.array([0, 0, 1, 1]), np.array([-2.0, -1.0, 1.0, 2.0]))
        >>> curve.probability(np.array([-1.5, 0.0, 1.5])).round(2)
        array([0.27, 0.5 , 0.73])

    Reference:
        Platt, Probabilistic outputs for support vector machines, 1999.
    """
    positive = np.asarray(labels, dtype=bool)
    mean = np.mean if weight is None else partial(np.average, weights=weight)
    rows = len(positive) if weight is None else weight.sum()
    number = rows * mean(positive)
    target = np.where(positive, (number + 1) / (number + 2), 1 / (rows - number + 2))
    values = np.asarray(scores, dtype=np.float64)
    centre = mean(values)
    scale = np.sqrt(mean((values - centre) ** 2)) or 1.0
    x = (values - centre) / scale

    def loss(parameters: Array) -> tuple[float, Array]:
        z = parameters[0] * x + parameters[1]
        wrong = expit(z) - target
        return float(mean(np.logaddexp(0.0, z) - target * z)), np.array([mean(wrong * x), mean(wrong)])

    rate = mean(target)
    start = np.array([1.0, np.log(rate / (1.0 - rate))])
    slope, intercept = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(_LEAST_SLOPE, None), (None, None)]).x
    return PlattScaling(float(slope / scale), float(intercept - slope * centre / scale))


class Judged(NamedTuple):
    """Rows or bags that threshold and probabilities are chosen by.

    Attributes:
        positive: which are of the class to find.
        scores: raw scores by models that did not see them, where there are such.
        weight: how much each counts; None for 1 each.
    """

    positive: Array
    scores: Array
    weight: Array | None = None


@with_arguments
class TwoClassScorer(ClassifierMixin, Scorer):  # type: ignore[misc]
    """Two classes by a score; decisions keep a false-positive budget.

    Args:
        min_tpr: lower end of the true positive rate, in [0, 1).
        max_fpr: upper end of the false positive rate, in (0, 1].
        fpr_budget: largest false positive rate that `predict` may have on the data that set the threshold, in [0, 1]:
            what was held out, or the scores of held-out folds or out of bag; None for `max_fpr`.
        probabilities: "calibrated" for Platt's estimate of how frequent positives are at a score; `predict` goes by the
            threshold and may name the less probable class. "threshold" for 1/2 at the threshold, so that `predict`
            names the more probable class, as one of scikit-learn's checks asks; these are no frequencies.
        positive_label: the class to find; None for 1 of 0 and 1, True, and the rarer one of other classes, as the
            command line has it, with a warning where that is the first of `classes_` or the majority.

    Attributes:
        classes_: the two classes, sorted.
        positive_label_: the class to find.
        threshold_: raw scores above it are called positive.
        platt_: slope and intercept of the calibrated log odds over the raw score.
        n_features_in_: number of features.
        feature_names_in_: their names, if the data were DataFrames with string column names.
    """

    min_tpr: float = 0.5
    max_fpr: float = 0.5
    fpr_budget: float | None = None
    probabilities: Literal["calibrated", "threshold"] = "calibrated"
    positive_label: object = None
    random_state: Random = None
    classes_: Array = field(init=False)
    positive_label_: object = field(init=False)
    threshold_: float = field(init=False)
    platt_: PlattScaling = field(init=False)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _check_decisions(self) -> None:
        """Check the region, the budget and the kind of probabilities."""
        check_region(self._owner, self.min_tpr, self.max_fpr)
        self._check_choices(probabilities=("calibrated", "threshold"))
        if self.fpr_budget is not None:
            check_real(self._owner, "fpr_budget", self.fpr_budget, low=0.0, high=1.0)

    def _region(self) -> dict[str, float]:
        return {"min_tpr": self.min_tpr, "max_fpr": self.max_fpr}

    def _choose_label(self, classes: Array, values: Array, *, stacklevel: int = 4) -> object:
        """Return the class to find, one of the two classes that the values hold."""
        label = self.positive_label
        if label is not None:
            if label not in classes.tolist():
                raise ValueError(f"{self._owner}: positive_label must be one of {classes.tolist()}, got {label!r}")
            return label
        counts = {class_text(value): int((values == value).sum()) for value in classes.tolist()}
        chosen = positive_class(counts)[0] if len(counts) == 2 else None
        place = 1 if chosen is None else list(counts).index(chosen)
        share = float((values == classes[place]).mean())
        if place == 0 or share > MAJORITY:
            found, other = (classes.tolist()[number] for number in (place, 1 - place))
            warnings.warn(
                f"{self._owner}: the class to find is {found!r}, {share:.0%} of y; name the one that is meant, "
                f"positive_label={found!r} or positive_label={other!r}",
                UserWarning,
                stacklevel=stacklevel,
            )
        return classes[place]

    def _decide_by(self, classes: Array, label: object, judged: Judged) -> None:
        """Set the classes, and fit threshold and probabilities."""
        budget = self.max_fpr if self.fpr_budget is None else self.fpr_budget
        self.classes_, self.positive_label_ = classes, label
        self.threshold_ = choose_threshold(judged.positive, judged.scores, budget, judged.weight)
        self.platt_ = fit_platt(judged.positive, judged.scores, judged.weight)

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
        self._check_known(values)
        positive = values == self.positive_label_
        text = ties_text(tied_share(positive, scores, **self._region()))
        if text is not None:
            warnings.warn(f"{self._owner}: {text}", TiedScoresWarning, stacklevel=3)
        return tpauc_score(positive, scores, sample_weight=sample_weight, **self._region())
