"""How boosted trees are fitted for the two-way partial AUC: the two libraries, the folds, and the choice they make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, issparse

from moreauc._registry import BOOSTING
from moreauc._system import import_extra
from moreauc.boosting import TPAUCMetric, TPAUCObjective, tpauc_metric
from moreauc.data.duplicates import fold_together, number_equal
from moreauc.estimators.base import Array, Floats
from moreauc.estimators.rows import WeightedRows, can_judge, choose_column, in_float32, merge_equal

_MANY = 50_000  # rows from which on one fold is held out, not each in turn
_SMOOTH = 20  # scores are averaged over so small a part of the rounds on either side, since they are noisy


class Rounds(NamedTuple):
    """What a library is to train.

    Attributes:
        rows: to train on.
        number: of rounds, at least 1.
        region: `(min_tpr, max_fpr)`, by whose partial AUC held-out rows are scored after each round.
        objective: to minimise; None for the log loss.
        start: a booster to continue.
        held: rows to score.
    """

    rows: WeightedRows
    number: int
    region: tuple[float, float]
    objective: TPAUCObjective | None = None
    start: Any = None
    held: WeightedRows | None = None


class Library(ABC):
    """What is needed of a library of boosted trees.

    Args:
        options: its own parameters.
        seed: of its random numbers.
    """

    name: ClassVar[Literal["lightgbm", "xgboost"]]

    def __init__(self, options: Mapping[str, object], seed: int) -> None:
        self.options, self.seed = options, seed

    @abstractmethod
    def train(self, rounds: Rounds) -> tuple[Any, list[float]]:
        """Return a booster, and the partial AUC of the held-out rows after each round."""

    @abstractmethod
    def scores(self, booster: Any, X: Any, rounds: int | None = None) -> Floats:
        """Return the raw scores of rows, by the first `rounds` rounds or by all."""

    @abstractmethod
    def importances(self, booster: Any) -> Floats:
        """Return the gain in the objective by the splits of each column, shares of 1."""

    def _metric(self, region: tuple[float, float]) -> TPAUCMetric:
        return tpauc_metric(self.name, min_tpr=region[0], max_fpr=region[1])


class LightGBM(Library):
    """LightGBM by its own interface."""

    name = "lightgbm"

    def train(self, rounds: Rounds) -> tuple[Any, list[float]]:
        """Return a booster and the partial AUC by round."""
        lightgbm = import_extra("lightgbm", BOOSTING)
        fixed = {"deterministic": True, "force_row_wise": True, "feature_pre_filter": False, "verbosity": -1}
        objective = "binary" if rounds.objective is None else rounds.objective
        parameters = {**fixed, "seed": self.seed, "metric": "None", **self.options, "objective": objective}
        data = self._data(rounds.rows)
        watched: dict[str, object] = {}
        curve: dict[str, dict[str, list[float]]] = {}
        if rounds.held is not None:
            watched = {"valid_sets": [self._data(rounds.held, reference=data)], "valid_names": ["held"]}
            watched |= {"feval": self._metric(rounds.region), "callbacks": [lightgbm.record_evaluation(curve)]}
        booster = lightgbm.train(parameters, data, rounds.number, init_model=rounds.start, **watched)
        return booster, next(iter(curve["held"].values())) if rounds.held is not None else []

    def scores(self, booster: Any, X: Any, rounds: int | None = None) -> Floats:
        """Return raw scores."""
        scores: Floats = booster.predict(_known_form(X), raw_score=True, num_iteration=rounds)
        return scores

    def importances(self, booster: Any) -> Floats:
        """Return gains."""
        return _shares(booster.feature_importance("gain"))

    def _data(self, rows: WeightedRows, reference: object = None) -> object:
        options = {"weight": rows.weight_or_none, "reference": reference, "free_raw_data": False}
        dataset = import_extra("lightgbm", BOOSTING).Dataset
        return dataset(_known_form(rows.X), rows.positive.astype(np.float64), **options)


class XGBoost(Library):
    """XGBoost by its own interface."""

    name = "xgboost"

    def train(self, rounds: Rounds) -> tuple[Any, list[float]]:
        """Return a booster and the partial AUC by round."""
        xgboost = import_extra("xgboost", BOOSTING)
        fixed = {"verbosity": 0, "disable_default_eval_metric": True}
        parameters = {**fixed, **self.options, "seed": self.seed, "objective": "binary:logistic"}
        watched: dict[str, object] = {}
        curve: dict[str, dict[str, list[float]]] = {}
        if rounds.held is not None:
            watched = {"evals": [(self._data(rounds.held), "held")], "evals_result": curve, "verbose_eval": False}
            watched["custom_metric"] = self._metric(rounds.region)
        options = {"obj": rounds.objective, "xgb_model": rounds.start, **watched}
        booster = xgboost.train(parameters, self._data(rounds.rows), rounds.number, **options)
        return booster, next(iter(curve["held"].values())) if rounds.held is not None else []

    def scores(self, booster: Any, X: Any, rounds: int | None = None) -> Floats:
        """Return raw scores."""
        matrix = import_extra("xgboost", BOOSTING).DMatrix(in_float32(X))
        scores = booster.predict(matrix, output_margin=True, iteration_range=(0, rounds or 0))
        return np.asarray(scores, dtype=np.float64)

    def importances(self, booster: Any) -> Floats:
        """Return gains."""
        found = booster.get_score(importance_type="total_gain")
        return _shares(np.array([found.get(f"f{column}", 0.0) for column in range(booster.num_features())]))

    def _data(self, rows: WeightedRows) -> object:
        matrix = import_extra("xgboost", BOOSTING).DMatrix
        return matrix(in_float32(rows.X), rows.positive.astype(np.float64), weight=rows.weight_or_none)


LIBRARIES: Mapping[str, type[Library]] = {"lightgbm": LightGBM, "xgboost": XGBoost}


def _known_form(X: Any) -> object:
    """Return numbers in a form that LightGBM knows, which sparse arrays are not."""
    return csr_matrix(X) if issparse(X) else X


def _shares(gains: Array) -> Floats:
    total = gains.sum()
    return np.asarray(gains / total if total > 0 else np.zeros(len(gains)), dtype=np.float64)


class Boosted(NamedTuple):
    """What a fit found.

    Attributes:
        booster: the library's own.
        rounds: how many it has.
        regional: whether the loss over the region was used, not the log loss alone.
        points: partial AUC of the held-out folds by candidate: either loss, each with the rounds asked for, half and
            twice as many; None without folds.
        judged: the rows that threshold and probabilities are chosen by.
        scores: of these, by boosters that did not see them where there are folds.
    """

    booster: Any
    rounds: int
    regional: bool
    points: Floats | None
    judged: WeightedRows
    scores: Floats


class _Trial(NamedTuple):
    """A booster of a fold, and the partial AUC of the rows that it did not see after each round."""

    booster: Any
    curve: list[float]


@dataclass(frozen=True)
class BoostedFit:
    """The steps of a fit, with what they all need.

    Args:
        library: that grows the trees.
        objective: makes the loss over the region, which holds the state of one training.
        region: `(min_tpr, max_fpr)`.
        rounds: of a booster; the folds choose between so many, half and twice as many.
        before: rounds of log loss that the loss over the region starts from.
        folds: to choose by; 0 for none.
        choose: whether the folds choose between log loss and the loss over the region.
    """

    library: Library
    objective: Callable[[], TPAUCObjective]
    region: tuple[float, float]
    rounds: int
    before: int
    folds: int
    choose: bool

    def run(self, rows: WeightedRows, random: np.random.RandomState) -> Boosted:
        """Fit boosted trees."""
        rows, hashes = merge_equal(rows)
        parts = self._parts(rows, hashes, random)
        if not parts:
            booster = self._train(rows, self.rounds, regional=not self.choose).booster
            return Boosted(booster, self.rounds, not self.choose, None, rows, self.library.scores(booster, rows.X))
        kinds = (False, True) if self.choose else (True,)
        numbers = (self.rounds, max(self.rounds // 2, 1), 2 * self.rounds)
        sides = [(rows.part(np.flatnonzero(~held)), rows.part(np.flatnonzero(held))) for held in parts]
        trials = {
            kind: [self._train(own, numbers[-1], regional=kind, held=held) for own, held in sides] for kind in kinds
        }
        candidates = list(product(kinds, numbers))
        points = np.column_stack([after_rounds([trial.curve for trial in trials[kind]], n) for kind, n in candidates])
        kind, number = candidates[choose_column(points)]
        scores = np.full(len(rows.weight), np.nan)
        for held, (_, other), trial in zip(parts, sides, trials[kind], strict=True):
            scores[held] = self.library.scores(trial.booster, other.X, number)
        judged = np.flatnonzero(~np.isnan(scores))
        booster = self._train(rows, number, regional=kind).booster
        return Boosted(booster, number, kind, points, rows.part(judged), scores[judged])

    def _train(self, rows: WeightedRows, number: int, *, regional: bool, held: WeightedRows | None = None) -> _Trial:
        """Return a booster, and the partial AUC of held-out rows after each round."""
        before = min(self.before, number) if regional else number
        booster, curve = None, list[float]()
        if before:
            booster, curve = self.library.train(Rounds(rows, before, self.region, held=held))
        if before < number:
            rest = Rounds(rows, number - before, self.region, self.objective(), booster, held)
            booster, after = self.library.train(rest)
            curve = [*curve, *after]
        return _Trial(booster, curve)

    def _parts(self, rows: WeightedRows, hashes: Array, random: np.random.RandomState) -> list[Array]:
        """Return which rows are held out in turn; nothing where a class is too small for the region in each part."""
        if not self.folds:
            return []
        folds = fold_together(
            number_equal(hashes if rows.group is None else rows.group), rows.positive, self.folds, random
        )
        parts = [folds == fold for fold in range(1 if len(rows.weight) > _MANY else self.folds)]
        return parts if can_judge(rows, parts, self.region) else []


def after_rounds(curves: Sequence[Sequence[float]], number: int) -> Floats:
    """Return the score of each fold after a number of rounds, averaged over a tenth of the rounds around it.

    Args:
        curves: score of each fold after each round.
        number: of rounds, from 1.

    Example:
        >>> after_rounds([[0.5] * 10 + [0.6] * 10, [0.25] * 20], 10).round(3)
        array([0.533, 0.25 ])
    """
    half = len(curves[0]) // _SMOOTH
    return np.array([np.mean(curve[max(number - 1 - half, 0) : number + half]) for curve in curves])
