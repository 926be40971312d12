"""Two-way partial AUC of a linear model for scikit-learn: scorecards, fingerprints, frozen embeddings."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.sparse import issparse
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from moreauc._checks import check_real
from moreauc._system import one_thread
from moreauc.core.surrogates import get_surrogate
from moreauc.estimators.base import Array, Floats, with_arguments
from moreauc.estimators.decisions import Judged
from moreauc.estimators.description import Description
from moreauc.estimators.linear_fit import MARGINS, STRENGTHS, LinearFit
from moreauc.estimators.ranker import Ranker, TrainingRows


@with_arguments
class TPAUCLinear(Ranker):
    r"""Linear binary classifier that ranks well where it matters: true positive rate high, false positive rate low.

    The model is fitted as logistic regression; L-BFGS then fine-tunes its weights for the two-way partial AUC, with the
    exact loss over all pairs of the region. There are no batches and no learning rate. The same data give the same
    model, in any order of the rows.

    Cross-validation with five folds, scored by the two-way partial AUC, chooses the penalty with `C="auto"`, and with
    `margin="auto"` between plain logistic regression and fine-tuning with two margins. Logistic regression is kept
    unless the alternative is better by a standard error of the mean over folds. The scores of the held-out folds also
    set the threshold of `predict` and the probabilities; the final model is fitted to all rows. If a class is too small
    for folds, logistic regression is kept, with `C` = 1 unless a number is given, and threshold and probabilities are
    set on the training rows. With more than 20,000 rows `C` and the margin are chosen on a sample, threshold and
    probabilities on all training rows.

    Args:
        C: inverse strength of the L2 penalty, above 0, as in scikit-learn's `LogisticRegression`; "auto" for 1, or for
            0.1 or 0.01 if the partial AUC of logistic regression is better with it by a standard error.
        surrogate: name of the pairwise loss, a non-decreasing one of :func:`~moreauc.core.surrogates.get_surrogate`.
        margin: its width in standard deviations of the negatives' scores, above 0; "auto" to choose between 0.5, 0.1
            and plain logistic regression.
        standardize: whether to scale columns to mean 0 and standard deviation 1; sparse columns are divided by their
            largest absolute value.
        max_iter: most steps of logistic regression, and of L-BFGS for each margin.
        tol: L-BFGS stops when the relative decrease of the objective is below this.
        random_state: seed or generator of the folds; None for NumPy's global generator.

    Attributes:
        coef_: weights, shape `(1, columns)`: of the columns of `X` where these are plain numbers, so that
            `X @ coef_[0] + intercept_` is the decision function, otherwise of those that `preprocessor_` makes.
        intercept_: shape `(1,)`; chosen so that the threshold for `fpr_budget` is at 0.
        C_: the strength chosen.
        margin_: the margin chosen, None where logistic regression was kept.
        n_iter_: steps of logistic regression and of L-BFGS of the final model.
        means_: column means of an array, used for missing values in `predict`; None for sparse matrices.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(900, 6, weights=[0.9], flip_y=0, n_clusters_per_class=1, random_state=0)
        >>> scorecard = TPAUCLinear(min_tpr=0.5, max_fpr=0.3, fpr_budget=0.1, random_state=0).fit(X[:600], y[:600])
        >>> scorecard.score(X[600:], y[600:]) > 0.9
        True
        >>> np.allclose(scorecard.decision_function(X), X @ scorecard.coef_[0] + scorecard.intercept_)
        True
    """

    C: float | Literal["auto"] = "auto"
    surrogate: str = "smooth_ramp"
    margin: float | Literal["auto"] = "auto"
    standardize: bool = True
    max_iter: int = 100
    tol: float = 1e-4
    coef_: Floats = field(init=False)
    C_: float = field(init=False)
    margin_: float | None = field(init=False)
    n_iter_: int = field(init=False)
    means_: Floats | None = field(init=False)

    @property
    def intercept_(self) -> Floats:
        """Constant of the decision function, shape `(1,)`; the threshold for `fpr_budget` is at 0."""
        return np.array([-self._direction() * self.threshold_])

    def describe(self) -> Description:
        """Return what a page shows of the fitted estimator."""
        check_is_fitted(self, "coef_")
        tuned = "kept as it is" if self.margin_ is None else f"fine-tuned with margin {self.margin_:g}"
        return Description(
            kind="linear",
            title=self.title,
            threshold=self.threshold_,
            summary=f"logistic regression, {tuned}; {self.n_iter_} steps",
            coefficients=self.coef_[0],
        )

    def _check_arguments(self) -> None:
        self._check_decisions()
        self._check_counts("max_iter")
        check_real(self._owner, "tol", self.tol, low=0.0)
        for name in ("C", "margin"):
            value = getattr(self, name)
            if isinstance(value, str) and value != "auto":
                raise ValueError(f"{self._owner}: {name} must be 'auto' or a number above 0, got {value!r}")
            if value != "auto":
                check_real(self._owner, name, value, low=0.0, low_open=True)
        if not get_surrogate(self.surrogate).non_decreasing:
            raise ValueError(f"{self._owner}: surrogate must be non-decreasing, got {self.surrogate!r}")

    def _fit_rows(self, given: TrainingRows) -> Judged:
        table = given.table
        plain = not isinstance(table, pd.DataFrame) and (issparse(table) or not np.isnan(table).any())
        self.means_ = None if issparse(table) or not plain else table.mean(0, dtype=np.float64)
        rows = self._design(given, encode=not plain)
        fitting = LinearFit(
            strengths=STRENGTHS if self.C == "auto" else (float(self.C),),
            region=(self.min_tpr, self.max_fpr),
            surrogate=self.surrogate,
            margins=MARGINS if self.margin == "auto" else (float(self.margin),),
            choose=self.margin == "auto",
            standardize=self._numbers_of(rows.X) & bool(self.standardize),
            max_iter=self.max_iter,
            tol=self.tol,
        )
        with one_thread():
            found = fitting.run(rows, check_random_state(self.random_state))
        self.C_, self.margin_, self.n_iter_ = found.C, found.margin, found.steps
        direction = 1 if given.label == given.classes[1] else -1
        self.coef_ = direction * found.coef[None, :]
        return found.scored.judged(found.scores)

    def _numbers_of(self, design: Any) -> Array:
        """Return which columns are numbers; the others mark levels and missing values."""
        if self.preprocessor_ is None:
            return np.ones(design.shape[1], dtype=bool)
        return self.preprocessor_.find_numbers()

    def _score_table(self, table: Any) -> Array:
        table = self._encode(table)
        if not issparse(table) and np.isnan(table).any():
            table = np.where(np.isnan(table), 0.0 if self.means_ is None else self.means_, table)
        scores: Array = table @ (self._direction() * self.coef_[0])
        return scores
