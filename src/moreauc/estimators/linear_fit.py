"""How a linear model is fitted for the two-way partial AUC: the objective, its minimiser, the choice of the margin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.sparse import diags_array, issparse
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from moreauc._checks import NotFiniteError
from moreauc.core.region import region_loss_and_gradient
from moreauc.core.surrogates import Surrogate, get_surrogate
from moreauc.data.duplicates import Codes, fold_together, number_equal
from moreauc.estimators.base import Array, Floats
from moreauc.estimators.rows import WeightedRows, can_judge, choose_column, merge_equal

Bools = NDArray[np.bool_]
Function = Callable[[Floats], tuple[float, Floats]]  # a point -> value and gradient

# The constants below were chosen on six tables; docs/linear.md names them.
STRENGTHS = (1.0, 0.1, 0.01)  # C to choose from: the first unless another is significantly better
MARGINS = (0.5, 0.1)  # to choose from; each starts from the one before
_CHOOSING = 20_000  # the most rows to choose by
_ANCHOR = 0.1  # weight of the logistic objective beside the loss over the region
_FOLDS = 5
_LOGISTIC_STEPS, _LOGISTIC_TOL = 1_000, 1e-9
_WIDE = 1_000  # columns from which only the diagonal of the Hessian is used
_TINY = 1e-100


def standardized(rows: WeightedRows, columns: Array) -> tuple[WeightedRows, Floats, Floats]:
    """Return rows whose marked columns have mean 0 and deviation 1, and the centres and scales of all columns.

    Sparse columns are not centred and are divided by their largest magnitude: by their deviation rare ones would be the
    largest.
    """
    X, size = rows.X, rows.X.shape[1]
    centre, scale = np.zeros(size), np.ones(size)
    if not columns.any():
        return rows, centre, scale
    if issparse(X):
        scale = abs(X).max(axis=0).toarray().ravel()
        scale[scale == 0] = 1.0
        return replace(rows, X=X @ diags_array(1.0 / scale)), centre, scale
    share = rows.weight / rows.weight.sum()
    centre[columns] = (share @ X)[columns]
    X = X - centre
    scale[columns] = np.sqrt(np.einsum("i,ij,ij->j", share, X, X))[columns]
    if not np.isfinite(scale).all():
        raise NotFiniteError(f"TPAUCLinear: X must hold numbers whose squares are finite, got {np.abs(rows.X).max():g}")
    scale[scale <= 1e-12 * np.abs(centre)] = 1.0  # constant but for rounding
    return replace(rows, X=np.divide(X, scale, out=X)), centre, scale


def sample(rows: WeightedRows, random: np.random.RandomState) -> WeightedRows:
    """Return as many rows as one chooses by, half of them of the rarer class if there are so many.

    Their weights make up for what is left out of their class.
    """
    sides = [np.flatnonzero(rows.positive), np.flatnonzero(~rows.positive)]
    sizes = [len(side) for side in sides]
    numbers = [max(_CHOOSING // 2, _CHOOSING - other) for other in reversed(sizes)]
    taken = [random.permutation(side)[:number] for side, number in zip(sides, numbers, strict=True)]
    gain = [np.full(len(some), size / len(some)) for some, size in zip(taken, sizes, strict=True)]
    part = rows.part(np.concatenate(taken))
    return replace(part, weight=part.weight * np.concatenate(gain))


def assign_folds(hashes: Array, positive: Bools, random: np.random.RandomState, group: Codes | None = None) -> Array:
    """Return the fold of each row: rows of one hash in one fold, positives spread evenly, negatives spread evenly.

    Where groups are given, rows of one group are in one fold, and the classes as evenly spread as that allows.
    """
    if group is not None:
        return fold_together(number_equal(group), positive, _FOLDS, random)
    groups, place = np.unique(hashes, return_inverse=True)
    found = np.bincount(place, weights=positive) > 0
    folds = np.empty(len(groups), dtype=np.int64)
    for kind in (found, ~found):
        folds[random.permutation(np.flatnonzero(kind))] = np.arange(kind.sum()) % _FOLDS
    return folds[place]


class RegionObjective:
    r"""What the linear model minimises over its weights and its intercept, `x = (w, b)`.

    .. math::
        L\big(X w / \sigma(w)\big) + \frac{a}{\sum_i s_i} \Big[ \sum_i s_i \log\big(1 + e^{-y_i (x_i w + b)}\big) +
            \frac{1}{2 C} \|w\|^2 \Big]

    :math:`L` is the loss over the region (:mod:`moreauc.core.region`), :math:`\sigma(w)` the standard deviation of the
    negatives' scores, :math:`s_i` are the weights of the rows, and the bracket is what logistic regression minimises.
    The first term depends on the direction of `w` only. The second keeps it near that of logistic regression where the
    first is nearly flat, and gives length and intercept that make the scores log odds.

    Args:
        rows: the data.
        C: inverse strength of the penalty, as in scikit-learn's logistic regression.
        region: `(min_tpr, max_fpr)`.
    """

    def __init__(self, rows: WeightedRows, *, C: float, region: tuple[float, float]) -> None:
        self.rows, self._region = rows, region
        total = rows.weight.sum()
        self._share, self._penalty = rows.weight / total, 1.0 / (C * total)
        self._sides = np.flatnonzero(rows.positive), np.flatnonzero(~rows.positive)
        weights = [rows.weight[side] for side in self._sides]
        self._negative_share = weights[1] / weights[1].sum()
        even = [bool((some == some[0]).all()) for some in weights]
        self._weights = [None if same else torch.from_numpy(w) for w, same in zip(weights, even, strict=True)]

    def logistic(self, x: Floats) -> tuple[float, Floats]:
        """Return the second term without :math:`a`, and its gradient."""
        return self._penalised(x, *self._likelihood(scores_of(self.rows.X, x)), 1.0)

    def value_and_gradient(self, x: Floats, surrogate: Surrogate) -> tuple[float, Floats]:
        """Return the objective and its gradient."""
        scores = scores_of(self.rows.X, x)
        loss, of_loss = self._loss(scores, surrogate)
        value, of_value = self._likelihood(scores)
        return self._penalised(x, loss + _ANCHOR * value, of_loss + _ANCHOR * of_value, _ANCHOR)

    def has_spread(self, x: Floats) -> bool:
        """Return whether the scores of the negatives differ."""
        scores = scores_of(self.rows.X, x)[self._sides[1]]
        return bool(np.ptp(scores) > 1e-10 * np.abs(scores).max())

    def _likelihood(self, scores: Floats) -> tuple[float, Floats]:
        """Return the mean logistic loss and its gradient in the scores."""
        small = np.exp(-np.abs(scores))
        loss = np.maximum(np.where(self.rows.positive, -scores, scores), 0.0) + np.log1p(small)
        odds = np.where(scores > 0, 1.0, small) / (1.0 + small)
        return float(self._share @ loss), self._share * (odds - self.rows.positive)

    def _loss(self, scores: Floats, surrogate: Surrogate) -> tuple[float, Floats]:
        """Return the loss over the region of the standardised scores, and its gradient in the scores."""
        negative = scores[self._sides[1]]
        middle = self._negative_share @ negative
        centred = negative - middle
        sigma = max(float(np.sqrt(self._negative_share @ centred**2)), _TINY)
        high = [torch.from_numpy((scores[side] - middle) / sigma) for side in self._sides]
        loss, *pushes = region_loss_and_gradient(high[0], high[1], surrogate, *self._region, *self._weights)
        gradient = np.empty_like(scores)
        for side, push in zip(self._sides, pushes, strict=True):
            gradient[side] = push.numpy() / sigma
        # All standardised scores shrink as the spread grows, which grows with the negatives' distances from the mean.
        shrink = sum(float(push @ some) for push, some in zip(pushes, high, strict=True))
        gradient[self._sides[1]] -= shrink * self._negative_share * centred / sigma**2
        return loss, gradient

    def _penalised(self, x: Floats, value: float, of_scores: Floats, factor: float) -> tuple[float, Floats]:
        w, penalty = x[:-1], factor * self._penalty
        return value + 0.5 * penalty * float(w @ w), np.append(self.rows.X.T @ of_scores + penalty * w, of_scores.sum())


def scores_of(X: Any, x: Floats) -> Floats:
    """Return the scores of rows by weights and intercept."""
    scores: Floats = X @ x[:-1] + x[-1]
    return scores


class Coordinates:
    r"""Coordinates in which logistic regression is nearly round, so that L-BFGS takes few steps.

    Points are :math:`x + F^{-T} v` with the Cholesky factor :math:`F` of the Hessian of logistic regression at its
    minimum; of very many columns only the diagonal is used.

    Args:
        rows: the data.
        minimum: weights and intercept of logistic regression.
        C: of logistic regression.
    """

    def __init__(self, rows: WeightedRows, minimum: Floats, C: float) -> None:
        size = len(minimum) - 1
        step = max(1, len(rows.weight) // max(_CHOOSING, 10 * size))  # a subsample is enough for an estimate
        X, share = rows.X[::step], rows.weight[::step] / rows.weight[::step].sum()
        odds = expit(scores_of(X, minimum))
        curve = np.maximum(share * odds * (1.0 - odds), 1e-6 * share)
        penalty = 1.0 / (C * rows.weight.sum())
        if size >= _WIDE:
            squares = X.multiply(X).T @ curve if issparse(X) else curve @ X**2
            self._factor = np.sqrt(np.append(squares + penalty, curve.sum()))
            return
        inner = X.T @ (X.multiply(curve[:, None]) if issparse(X) else X * curve[:, None])
        hessian = np.empty((size + 1, size + 1))
        hessian[:-1, :-1] = inner.toarray() if issparse(inner) else inner
        hessian[-1, :-1] = hessian[:-1, -1] = X.T @ curve
        hessian[-1, -1] = curve.sum()
        hessian[np.arange(size), np.arange(size)] += penalty
        hessian[np.diag_indices(size + 1)] *= 1.0 + 1e-8  # against rounding
        self._factor = cholesky(hessian, lower=True)

    def _solve(self, vector: Floats, *, transposed: bool) -> Floats:
        solution: Floats
        if self._factor.ndim == 1:
            solution = vector / self._factor
        else:
            solution = solve_triangular(self._factor, vector, lower=True, trans=int(transposed))
        return solution

    def minimise(self, function: Function, x: Floats, max_iter: int, tol: float) -> tuple[Floats, int]:
        """Return a minimiser of a function, found by L-BFGS from `x`, and the number of steps."""

        def moved(v: Floats) -> tuple[float, Floats]:
            value, gradient = function(x + self._solve(v, transposed=True))
            return value, self._solve(gradient, transposed=False)

        options = {"maxiter": max_iter, "ftol": tol, "gtol": tol}
        found = minimize(moved, np.zeros_like(x), jac=True, method="L-BFGS-B", options=options)
        return x + self._solve(found.x, transposed=True), int(found.nit)


def _split(rows: WeightedRows, folds: Array) -> Iterator[tuple[WeightedRows, WeightedRows, Bools]]:
    """Return, for each fold, the rows to train on, those held out, and which these are."""
    for fold in range(_FOLDS):
        held = folds == fold
        yield rows.part(np.flatnonzero(~held)), rows.part(np.flatnonzero(held)), held


def best_beyond_chance(points: Floats) -> int:
    """Return the column with the highest mean over folds, 0 unless it is better than the first beyond chance.

    Example:
        >>> best_beyond_chance(np.array([[0.5, 0.6], [0.6, 0.8], [0.7, 0.7]]))
        1
        >>> best_beyond_chance(np.array([[0.5, 0.6], [0.6, 0.7], [0.7, 0.5]]))
        0
    """
    best = 1 + int(np.argmax((points[:, 1:] - points[:, :1]).mean(0)))
    return best if choose_column(points[:, [0, best]]) else 0


class Fitted(NamedTuple):
    """What a fit found.

    Attributes:
        coef: weights of the columns as they came.
        C: the strength chosen.
        margin: the margin chosen, None for logistic regression.
        steps: of logistic regression and of L-BFGS.
        scored: the rows that threshold and probabilities are fitted to.
        scores: of these, by models that did not see them where there are folds, without the intercept.
    """

    coef: Floats
    C: float
    margin: float | None
    steps: int
    scored: WeightedRows
    scores: Floats


class Trials(NamedTuple):
    """What cross-validation found; the first entry is logistic regression, the others are the margins.

    Attributes:
        points: partial AUC of each fold, shape `(folds, 1 + margins)`.
        scores: of each row by the models that did not see it, shape `(1 + margins, n)`.
    """

    points: Floats
    scores: Floats


@dataclass(frozen=True)
class LinearFit:
    """The steps of a fit, with what they all need.

    Args:
        strengths: values of C to choose from, as in scikit-learn's logistic regression.
        region: `(min_tpr, max_fpr)`.
        surrogate: name of the pairwise loss.
        margins: to go through, one after the other.
        choose: whether to choose among them and logistic regression, rather than to take the last.
        standardize: which columns to standardise, a truth value for each.
        max_iter: most steps for each.
        tol: smallest relative decrease by which L-BFGS goes on.
    """

    strengths: Sequence[float]
    region: tuple[float, float]
    surrogate: str
    margins: Sequence[float]
    choose: bool
    standardize: Array
    max_iter: int
    tol: float

    def run(self, rows: WeightedRows, random: np.random.RandomState) -> Fitted:
        """Fit a linear model."""
        few = len(rows.weight) <= _CHOOSING
        rows, hashes = merge_equal(rows) if few else (rows, np.empty(0))
        rows, centre, scale = standardized(rows, self.standardize)
        part, folds, trials = rows, np.empty(0), None
        if few:
            folds = assign_folds(hashes, rows.positive, random, rows.group)
        elif self.choose or len(self.strengths) > 1:
            part = sample(rows, random)
            folds = assign_folds(np.arange(len(part.weight)), part.positive, random, part.group)
        parts = [folds == fold for fold in range(_FOLDS)]
        validated = len(folds) > 0 and can_judge(part, parts, self.region)
        C = self._choose_strength(part, folds) if validated else self.strengths[0]
        start, steps = self._logistic(rows, C)
        coordinates = Coordinates(rows, start, C)
        start = self._logistic_again(rows, C, start, coordinates)  # scikit-learn ends some way before the minimum
        if validated and (few or self.choose):
            trials = self._cross_validate(part, C, folds, start, coordinates)
        number = len(self.margins)
        if self.choose:
            number = 0 if trials is None else best_beyond_chance(trials.points)
        found, more = self._path(rows, C, start, coordinates, number)
        coef = found[-1][:-1] / scale
        scores = trials.scores[number] if few and trials is not None else scores_of(rows.X, found[-1])
        margin = self.margins[number - 1] if len(found) > 1 else None
        return Fitted(coef, C, margin, steps + more, rows, scores - found[-1][-1] + centre @ coef)

    def _choose_strength(self, rows: WeightedRows, folds: Array) -> float:
        """Return the C with which logistic regression has the best partial AUC on held-out folds."""
        if len(self.strengths) == 1:
            return self.strengths[0]
        start, _ = self._logistic(rows, self.strengths[0])
        coordinates = Coordinates(rows, start, self.strengths[0])
        points = np.empty((_FOLDS, len(self.strengths)))
        for fold, (train, test, _) in enumerate(_split(rows, folds)):
            x = start
            for place, C in enumerate(self.strengths):
                x = self._logistic_again(train, C, x, coordinates)
                points[fold, place] = test.partial_auc(scores_of(test.X, x), self.region)
        return self.strengths[best_beyond_chance(points)]

    def _logistic(self, rows: WeightedRows, C: float) -> tuple[Floats, int]:
        """Return weights and intercept of scikit-learn's logistic regression, and its steps."""
        model = LogisticRegression(C=C, max_iter=_LOGISTIC_STEPS)
        model.fit(rows.X, rows.positive, sample_weight=rows.weight_or_none)
        return np.append(model.coef_[0], model.intercept_), int(model.n_iter_[0])

    def _logistic_again(self, rows: WeightedRows, C: float, start: Floats, coordinates: Coordinates) -> Floats:
        """Return the minimum of logistic regression, from one nearby."""
        return coordinates.minimise(self._objective(rows, C).logistic, start, _LOGISTIC_STEPS, _LOGISTIC_TOL)[0]

    def _path(
        self, rows: WeightedRows, C: float, start: Floats, coordinates: Coordinates, number: int
    ) -> tuple[list[Floats], int]:
        """Return the start, then the minimisers for the first `number` margins, and the steps of all."""
        objective, steps, found = self._objective(rows, C), 0, [start]
        if not objective.has_spread(start):
            return [start] * (1 + number), 0
        for margin in self.margins[:number]:
            function = partial(objective.value_and_gradient, surrogate=get_surrogate(self.surrogate, margin))
            x, more = coordinates.minimise(function, found[-1], self.max_iter, self.tol)
            found.append(x)
            steps += more
        return found, steps

    def _cross_validate(
        self, rows: WeightedRows, C: float, folds: Array, start: Floats, coordinates: Coordinates
    ) -> Trials:
        """Return partial AUC and scores on held-out folds."""
        points, scores = np.empty((_FOLDS, 1 + len(self.margins))), np.empty((1 + len(self.margins), len(folds)))
        for fold, (train, test, held) in enumerate(_split(rows, folds)):
            own = self._logistic_again(train, C, start, coordinates)
            for place, x in enumerate(self._path(train, C, own, coordinates, len(self.margins))[0]):
                scores[place, held] = scores_of(test.X, x)
                points[fold, place] = test.partial_auc(scores[place, held], self.region)
        return Trials(points, scores)

    def _objective(self, rows: WeightedRows, C: float) -> RegionObjective:
        return RegionObjective(rows, C=C, region=self.region)
