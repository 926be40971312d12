"""Two-way partial AUC of gradient-boosted trees for scikit-learn: LightGBM and XGBoost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from moreauc.boosting import LOG_LOSS_ROUNDS, LOG_LOSS_WEIGHT, MARGIN, WIDEN, TPAUCObjective, tpauc_objective
from moreauc.estimators.base import Array, Floats, with_arguments
from moreauc.estimators.boosted_fit import LIBRARIES, BoostedFit, Library
from moreauc.estimators.decisions import Judged
from moreauc.estimators.description import Description
from moreauc.estimators.ranker import Ranker, TrainingRows

# Names of what the estimator gives the libraries itself.
_TAKEN = frozenset(
    {
        *("objective", "app", "application", "loss", "metric", "metrics", "eval_metric", "num_class"),
        *("n_estimators", "num_iterations", "num_iteration", "num_boost_round", "num_round", "num_rounds", "n_iter"),
        *("early_stopping_round", "early_stopping_rounds", "early_stopping", "n_iter_no_change"),
        *("random_state", "seed", "random_seed"),
    }
)


@with_arguments
class TPAUCBooster(Ranker):
    r"""Gradient-boosted trees that rank well where it matters: true positive rate high, false positive rate low.

    Trees are grown by LightGBM or XGBoost, for the log loss or for the exact loss over all pairs of the region beside
    it (:func:`moreauc.boosting.tpauc_objective`). Five folds, scored by the two-way partial AUC, choose the loss, and
    `n_estimators` rounds, half or twice as many. The log loss with `n_estimators` rounds, which is the library as it
    comes, is kept unless another choice is better by a standard error of the mean over folds. The scores of the
    held-out folds also set the threshold of `predict` and the probabilities; the final booster is fitted to all rows.
    With more than 50,000 rows one fold is held out and decides. If a class is too small for folds, the library's own
    choice is kept, and threshold and probabilities are set on the training rows.

    Equal rows are fitted as one row with their weights added up, and are in one fold. So a row of weight 2 gives the
    same model as two rows, and the order of the rows does not matter. An option that counts rows, such as LightGBM's
    `min_child_samples`, counts different ones.

    NaN in arrays is left to the library, which finds a side of each split for it.

    Args:
        booster: "lightgbm" or "xgboost".
        booster_options: parameters of the library, for instance `{"num_leaves": 15, "learning_rate": 0.05}`; None for
            its own defaults. A name that the library does not know is ignored by it.
        n_estimators: rounds, each of one tree; the folds may choose half or twice as many.
        choose: whether the folds choose between the log loss alone and the loss over the region; otherwise the latter
            is used, and they choose the number of rounds.
        surrogate: the pairwise loss, "smooth_ramp" or "squared_hinge".
        margin: its width in standard deviations of the negatives' scores, above 0.
        widen: how far the region is widened towards the whole ROC square while training, in [0, 1].
        log_loss_weight: weight of the log loss beside the loss over the region, at least 0.
        log_loss_rounds: rounds of log loss that the loss over the region starts from, at least 0.
        folds: number of folds; 0 for none, with threshold and probabilities by the training rows.
        random_state: seed or generator of the folds and of the library; None for NumPy's global generator.

    Attributes:
        booster_: the `lightgbm.Booster` or `xgboost.Booster`, whose raw scores rise with the chance of
            `positive_label_`; `booster_.predict(X, pred_contrib=True)` has SHAP values (with XGBoost of a `DMatrix`).
        feature_importances_: share of each column in the gain of all splits; of the columns that `preprocessor_` makes
            where there is one.
        regional_: whether the loss over the region was used.
        fold_scores_: partial AUC of each held-out fold (rows) by candidate (columns): the log loss with `n_estimators`
            rounds, half and twice as many, then the loss over the region with the same; None without folds.
        n_iter_: rounds of `booster_`.

    Raises:
        ModuleNotFoundError: in `fit`, if the library is not installed; it names the extra `boosting`.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(900, 6, weights=[0.9], flip_y=0, n_clusters_per_class=1, random_state=0)
        >>> trees = TPAUCBooster(min_tpr=0.5, max_fpr=0.3, fpr_budget=0.1, random_state=0).fit(X[:600], y[:600])
        >>> trees.score(X[600:], y[600:]) > 0.9
        True
        >>> raw = trees.booster_.predict(X, raw_score=True)
        >>> bool(abs(raw - trees.threshold_ - trees.decision_function(X)).max() < 1e-9)
        True
    """

    booster: Literal["lightgbm", "xgboost"] = "lightgbm"
    booster_options: Mapping[str, object] | None = None
    n_estimators: int = 100
    choose: bool = True
    surrogate: str = "smooth_ramp"
    margin: float = MARGIN
    widen: float = WIDEN
    log_loss_weight: float = LOG_LOSS_WEIGHT
    log_loss_rounds: int = LOG_LOSS_ROUNDS
    folds: int = 5
    booster_: Any = field(init=False)
    regional_: bool = field(init=False)
    fold_scores_: Floats | None = field(init=False)
    n_iter_: int = field(init=False)

    @property
    def feature_importances_(self) -> Floats:
        """Share of each column in the gain of all splits, shape `(columns,)`."""
        check_is_fitted(self, "booster_")
        return self._library().importances(self.booster_)

    def describe(self) -> Description:
        """Return what a page shows of the fitted estimator."""
        check_is_fitted(self, "booster_")
        used = "the loss over the region after rounds of log loss" if self.regional_ else "the log loss"
        return Description(
            kind="trees",
            title=self.title,
            threshold=self.threshold_,
            summary=f"{self.n_iter_} trees for {used}",
            importance=self.feature_importances_,
        )

    def _library(self) -> Library:
        return LIBRARIES[self._kind]({}, 0)

    def _objective(self) -> TPAUCObjective:
        """Return the loss over the region, which holds the state of one training; the log loss comes before it."""
        return tpauc_objective(
            min_tpr=self.min_tpr,
            max_fpr=self.max_fpr,
            surrogate=self.surrogate,
            margin=self.margin,
            widen=self.widen,
            log_loss_weight=self.log_loss_weight,
            log_loss_rounds=0,
        )

    def _check_arguments(self) -> None:
        self._check_decisions()
        self._check_choices(booster=tuple(LIBRARIES))
        self._check_counts("n_estimators")
        self._check_counts("log_loss_rounds", "folds", minimum=0)
        if self.folds == 1:
            raise ValueError(f"{self._owner}: folds must be 0 or at least 2, got 1")
        self._objective()
        options = self.booster_options
        if options is not None and not isinstance(options, Mapping):
            raise ValueError(f"{self._owner}: booster_options must be a dictionary or None, got {options!r}")
        for key in options or {}:
            if not isinstance(key, str) or key in _TAKEN:
                raise ValueError(f"{self._owner}: booster_options must not hold {key!r}: given elsewhere, or no name")

    def _fit_rows(self, given: TrainingRows) -> Judged:
        random = check_random_state(self.random_state)
        fitting = BoostedFit(
            library=LIBRARIES[self.booster](self.booster_options or {}, int(random.randint(2**31 - 1))),
            objective=self._objective,
            region=(self.min_tpr, self.max_fpr),
            rounds=self.n_estimators,
            before=self.log_loss_rounds,
            folds=self.folds,
            choose=self.choose,
        )
        found = fitting.run(self._design(given), random)
        self.booster_, self.regional_, self.n_iter_ = found.booster, found.regional, found.rounds
        self.fold_scores_, self._kind = found.points, self.booster
        return found.judged.judged(found.scores)

    def _score_table(self, table: Any) -> Array:
        return self._library().scores(self.booster_, self._encode(table))
