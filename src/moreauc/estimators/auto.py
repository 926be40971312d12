"""Several kinds of model for a table, of which those that rank held-out rows best are kept."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.validation import check_is_fitted

from moreauc._checks import check_real
from moreauc._registry import ADVICE, MODELS
from moreauc.data.tabular import same_rows
from moreauc.estimators.base import Array, with_arguments
from moreauc.estimators.decisions import Judged
from moreauc.estimators.description import Description, ModelScore
from moreauc.estimators.ranker import Ranker, TrainingRows
from moreauc.metrics.bootstrap import tpauc_difference
from moreauc.metrics.ranking import tpauc_score
from moreauc.tasks.rows import RowTask
from moreauc.train import UntrainedWarning

_ERRORS = 2.0  # standard errors below the best at which a model is still used; see benchmarks/auto_choice.py
KINDS = tuple(name for name in MODELS if name != "auto")  # from the simplest on, which is kept among equals


@with_arguments
class TPAUCAuto(Ranker):
    r"""Binary classifier that tries four kinds of model and uses those that rank best.

    They are a linear model, a random forest, boosted trees and a network. Each, with its default settings, is trained
    on the same rows and scored by the two-way partial AUC of the same held-out rows. With `combine` all models are used
    that are at most two standard errors below the best one, otherwise the best one alone (of equals the first in this
    order). What is used is trained again on all rows. Its score is the mean of the calibrated log odds of the models.
    The held-out rows also set the threshold of `predict` and the probabilities. Where a class is too small to hold rows
    out, the first of `models` is used.

    Args:
        models: names of the kinds of model, in the order of preference among equals: "linear"
            (:class:`TPAUCLinear`), "forest" (:class:`TPAUCForest`), "trees" (:class:`TPAUCBooster`), "mlp"
            (:class:`TPAUCClassifier`); None for all four, without the boosted trees where LightGBM is not installed.
        combine: whether to use the mean of all models that are about as good as the best one.
        model_options: arguments of the models by their names, such as `{"mlp": {"epochs": 20}}`.
        validation_fraction: share of the rows held out to choose by, in (0, 1).
        random_state: seed or generator of the split and of the models; None for NumPy's global generator.
        verbose: 0, or 1 for a progress bar of the network.

    Attributes:
        candidates_: a :class:`~moreauc.estimators.description.ModelScore` for each kind of model.
        models_: the models used, by name, trained on all rows.
        held_out_: numbers of the rows that were held out to choose by.

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

    models: Sequence[str] | None = None
    combine: bool = True
    model_options: Mapping[str, Mapping[str, object]] | None = None
    validation_fraction: float = 0.25
    verbose: int = 0
    candidates_: tuple[ModelScore, ...] = field(init=False)
    models_: dict[str, Ranker] = field(init=False)
    held_out_: Array = field(init=False)

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

    def _fit_rows(self, given: TrainingRows) -> Judged:
        names, values, positive, group = self._names(), given.values, given.positive, given.group
        weight = None if (given.weight == 1.0).all() else given.weight
        random = check_random_state(self.random_state)
        task = RowTask(loss="sonx", min_tpr=self.min_tpr, max_fpr=self.max_fpr)
        same = same_rows(self._owner, given.table) if group is None else None
        train, held = task.hold_out(positive, self.validation_fraction, random, groups=group, same=same)
        seeds = {name: int(random.randint(2**31 - 1)) for name in names}

        def fitted(name: str, rows: Array) -> Ranker:
            model = self._model(name, given.label, seeds[name])
            own = {"sample_weight": weight, "groups": group}
            options = {key: value[rows] for key, value in own.items() if value is not None}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UntrainedWarning)
                return model.fit(_safe_indexing(given.table, rows), values[rows], **options)

        everything = np.arange(len(values))
        if len(held):
            scores, seconds = {}, {}
            for name in names:
                began = time.perf_counter()
                scores[name] = fitted(name, train).log_odds(_safe_indexing(given.table, held))
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
            mean, judged = self._score_table(given.table), everything
        self.held_out_ = given.numbers[held]
        return Judged(positive[judged], mean, None if weight is None else weight[judged])

    def _score_table(self, table: Any) -> Array:
        mean: Array = np.mean([model.log_odds(table) for model in self.models_.values()], axis=0)
        return mean

    def _model(self, name: str, label: object, seed: int) -> Ranker:
        own: dict[str, object] = dict((self.model_options or {}).get(name, {}))
        if name == "mlp":
            own = {"verbose": self.verbose, **own}
        made: Ranker = MODELS[name].maker(**self._region(), positive_label=label, random_state=seed, **own)
        return made

    def _check_arguments(self) -> None:
        self._check_decisions()
        share = self.validation_fraction
        check_real(self._owner, "validation_fraction", share, low=0.0, high=1.0, low_open=True, high_open=True)
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
        if len(self._names()) < len(names):
            warnings.warn(f"{self._owner}: boosted trees are left out: LightGBM {ADVICE}", stacklevel=4)

    def _names(self) -> tuple[str, ...]:
        """Return the names of the models to try: those asked for, or all that are installed."""
        return tuple(name for name in KINDS if MODELS[name].installed) if self.models is None else tuple(self.models)
