"""Several kinds of model for a table, of which those that rank held-out rows best are kept."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.validation import check_is_fitted

from moreauc._checks import check_real
from moreauc.data.tabular import TableEncoder, same_rows
from moreauc.estimators.base import Array, all_or_nothing
from moreauc.estimators.decisions import RowRanker
from moreauc.estimators.description import Description, ModelScore
from moreauc.methods import ADVICE, MODELS
from moreauc.metrics import tpauc_score
from moreauc.metrics.bootstrap import tpauc_difference
from moreauc.tasks.rows import RowTask
from moreauc.train import UntrainedWarning

_ERRORS = 2.0  # standard errors below the best at which a model is still used; see benchmarks/auto_choice.py
KINDS = tuple(name for name in MODELS if name != "auto")  # from the simplest on, which is kept among equals


class TPAUCAuto(RowRanker):
    r"""Binary classifier that tries four kinds of model and uses those that rank best.

    They are a linear model, a random forest, boosted trees and a network. Each, with its default settings, is trained
    on the same rows and scored by the two-way partial AUC of the same held-out rows. With `combine` all models are used
    that are at most two standard errors below the best one, otherwise the best one alone (of equals the first in this
    order). What is used is trained again on all rows. Its score is the mean of the calibrated log odds of the models.
    The held-out rows also set the threshold of `predict` and the probabilities. Where a class is too small to hold rows
    out, the first of `models` is used.

    `X` is an array of numbers (NaN for missing values), a sparse matrix, or a DataFrame that may also have bool,
    string, category and date columns, as in :class:`TPAUCClassifier`.

    Args:
        min_tpr: lower end of the true positive rate, in [0, 1).
        max_fpr: upper end of the false positive rate, in (0, 1].
        models: names of the kinds of model, in the order of preference among equals: "linear"
            (:class:`TPAUCLinear`), "forest" (:class:`TPAUCForest`), "trees" (:class:`TPAUCBooster`), "mlp"
            (:class:`TPAUCClassifier`); None for all four, without the boosted trees where LightGBM is not installed.
        combine: whether to use the mean of all models that are about as good as the best one.
        model_options: arguments of the models by their names, such as `{"mlp": {"epochs": 20}}`.
        validation_fraction: share of the rows held out to choose by, in (0, 1).
        fpr_budget: largest false positive rate that `predict` may have on the held-out rows, in [0, 1]; None for
            `max_fpr`.
        probabilities: "calibrated" for Platt scaling of the scores; "threshold" for 1/2 at the threshold, as in
            :class:`TPAUCClassifier`.
        positive_label: the class to find; None as in :class:`TPAUCClassifier`.
        random_state: seed or generator of the split and of the models; None for NumPy's global generator.
        verbose: 0, or 1 for a progress bar of the network.

    Attributes:
        candidates_: a :class:`~moreauc.estimators.description.ModelScore` for each kind of model.
        models_: the models used, by name, trained on all rows.
        preprocessor_: that of the first model used, which knows the levels of text columns; None where not needed.
        held_out_: numbers of the rows that were held out to choose by.
        classes_: the two classes, sorted.
        positive_label_: the class to find.
        threshold_: rows with a raw score above it are predicted positive.
        platt_: slope and intercept of the calibrated log odds over the raw score.
        n_features_in_: number of features.
        feature_names_in_: their names, if `X` was a DataFrame with string column names.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(600, 6, weights=[0.9], flip_y=0, n_clusters_per_class=1, random_state=0)
        >>> auto = TPAUCAuto(models=["linear", "trees"], min_tpr=0.5, max_fpr=0.3, random_state=0)
        >>> auto = auto.fit(X[:400], y[:400])
        >>> auto.score(X[400:], y[400:]) > 0.8
        True
        >>> [candidate.name for candidate in auto.candidates_]
        ['linear', 'trees']
    """

    _precision = np.float64
    candidates_: tuple[ModelScore, ...]
    models_: dict[str, Any]
    held_out_: Array
    preprocessor_: TableEncoder | None

    def __init__(
        self,
        *,
        min_tpr: float = 0.5,
        max_fpr: float = 0.5,
        models: Sequence[str] | None = None,
        combine: bool = True,
        model_options: Mapping[str, Mapping[str, Any]] | None = None,
        validation_fraction: float = 0.25,
        fpr_budget: float | None = None,
        probabilities: Literal["calibrated", "threshold"] = "calibrated",
        positive_label: Any = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self._keep(locals())

    @all_or_nothing
    def fit(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> TPAUCAuto:
        """Train the models on a table and its two classes.

        Args:
            X: array, sparse matrix or DataFrame, shape `(n, n_features)`.
            y: classes, two of any kind, shape `(n,)`.
            sample_weight: weights of at least 0, shape `(n,)`; a row of weight 2 counts as two rows. None for 1 each.
            groups: what each row belongs to, such as a patient or the scaffold of a molecule, shape `(n,)`: rows of one
                group are all held out or none of them. None to keep equal rows together.
        """
        names = self._check_arguments()
        numbers, table, values, weights, group, classes, label = self._training_rows(X, y, sample_weight, groups)
        weight = None if (weights == 1.0).all() else weights
        random = check_random_state(self.random_state)
        task = RowTask(loss="sonx", loss_options={}, batch_size=2, **self._region())
        positive = values == label
        same = same_rows(self._owner, table) if group is None else None
        train, held = task.hold_out(positive, self.validation_fraction, random, groups=group, same=same)
        seeds = {name: int(random.randint(2**31 - 1)) for name in names}

        def fitted(name: str, rows: Array) -> Any:
            model = self._make(name, label, seeds[name])
            own = {"sample_weight": weight, "groups": group}
            given = {key: value[rows] for key, value in own.items() if value is not None}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UntrainedWarning)
                return model.fit(_safe_indexing(table, rows), values[rows], **given)

        everything = np.arange(len(values))
        if len(held):
            scores, seconds = {}, {}
            for name in names:
                began = time.perf_counter()
                scores[name] = log_odds(fitted(name, train), _safe_indexing(table, held))
                seconds[name] = time.perf_counter() - began
            own = None if weight is None else weight[held]
            self.candidates_ = self._choose(positive[held], scores, seconds, own)
            chosen = [candidate.name for candidate in self.candidates_ if candidate.chosen]
            mean, judged = np.mean([scores[name] for name in chosen], axis=0), held
        else:
            chosen = [names[0]]
            self.candidates_ = (ModelScore(names[0], np.nan, np.nan, np.nan, True, np.nan),)
        self.models_ = {name: fitted(name, everything) for name in chosen}
        self.preprocessor_ = self.models_[chosen[0]].preprocessor_
        if not len(held):
            mean, judged = self._mean(table), everything
        self._decide_by(classes, label, positive[judged], mean, None if weight is None else weight[judged])
        self.held_out_ = numbers[held]
        return self

    def describe(self) -> Description:
        """Return what a page shows of the fitted estimator."""
        check_is_fitted(self, "models_")
        tried = (
            f"{one.name} {one.tpauc:.4f} ({'used' if one.chosen else 'not used'}, {one.seconds:.1f} s)"
            for one in self.candidates_
        )
        return Description(
            kind="auto",
            title=self.title,
            held_out=self.held_out_,
            threshold=self.threshold_,
            summary=f"TPAUC of the {len(self.held_out_)} rows held out to choose by: {', '.join(tried)}",
            candidates=self.candidates_,
            members=self.models_,
        )

    def _choose(
        self, positive: Array, scores: Mapping[str, Array], seconds: Mapping[str, float], weight: Array | None
    ) -> tuple[ModelScore, ...]:
        """Return what the scores of the held-out rows say about each model."""
        region = self._region()
        reached = {name: tpauc_score(positive, own, sample_weight=weight, **region) for name, own in scores.items()}
        best = max(reached, key=reached.__getitem__)  # of equals the first
        found = []
        for name, own in scores.items():
            below, error = reached[best] - reached[name], tpauc_difference(positive, scores[best], own, **region)[1]
            chosen = name == best or (self.combine and below <= _ERRORS * error)
            found.append(ModelScore(name, reached[name], below, error, chosen, seconds[name]))
        return tuple(found)

    def _scores(self, X: Any) -> Array:
        check_is_fitted(self, "models_")
        return self._check_scores(self._mean(self._check_table(X, reset=False)))

    def _mean(self, table: Any) -> Array:
        mean: Array = np.mean([log_odds(model, table) for model in self.models_.values()], axis=0)
        return mean

    def _make(self, name: str, label: Any, seed: int) -> Any:
        own = dict((self.model_options or {}).get(name, {}))
        if name == "mlp":
            own = {"verbose": self.verbose, **own}
        return MODELS[name].maker(**self._region(), positive_label=label, random_state=seed, **own)

    def _check_arguments(self) -> tuple[str, ...]:
        """Return the names of the models."""
        self._check_decisions()
        check_real(
            self._owner,
            "validation_fraction",
            self.validation_fraction,
            low=0.0,
            high=1.0,
            low_open=True,
            high_open=True,
        )
        names = tuple(KINDS if self.models is None else self.models)
        if isinstance(self.models, str) or not names or len(set(names)) < len(names) or not {*names} <= {*KINDS}:
            raise ValueError(
                f"{self._owner}: models must be None or different names among {list(KINDS)}, got {self.models!r}"
            )
        options = self.model_options
        if options is not None and not (isinstance(options, Mapping) and {*options} <= {*names}):
            raise ValueError(
                f"{self._owner}: model_options must be None or a dictionary with keys among {list(names)}, "
                f"got {options!r}"
            )
        missing = [name for name in names if not MODELS[name].installed] if self.models is None else []
        if missing:
            warnings.warn(f"{self._owner}: boosted trees are left out: LightGBM {ADVICE}", stacklevel=4)
        return tuple(name for name in names if name not in missing)


def log_odds(model: Any, table: Any) -> Array:
    """Return the calibrated log odds of the class to find, by a fitted classifier of rows of this package."""
    direction = 1 if model.positive_label_ == model.classes_[1] else -1
    scores = direction * model.decision_function(table).astype(np.float64) + model.threshold_
    odds: Array = model.platt_.slope * scores + model.platt_.intercept
    return odds
