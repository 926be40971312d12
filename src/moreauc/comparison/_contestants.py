"""Who takes part in a comparison: the losses of this package on one network, and boosted trees."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.pipeline import make_pipeline

from moreauc._all_or_nothing import all_or_nothing
from moreauc._extras import import_extra
from moreauc.data.tabular import TableEncoder
from moreauc.estimators import TPAUCClassifier
from moreauc.methods import METHODS

Region = tuple[float, float]
Options = dict[str, Any]

# What every loss of this package is tuned over, besides its own options; the first of each is the default.
NETWORK_GRID: Mapping[str, tuple[Any, ...]] = {
    "lr": (0.003, 0.001, 0.01, 0.03),
    "weight_decay": (0.01, 0.1, 1.0),
    "epochs": (30, 10),
}
LIGHTGBM_GRID: Mapping[str, tuple[Any, ...]] = {
    "class_weight": ("balanced", None),
    "n_estimators": (100, 30, 300),
    "learning_rate": (0.1, 0.03),
    "num_leaves": (31, 7, 15),
    "min_child_samples": (20, 5),
    "reg_lambda": (0.0, 1.0, 10.0),
}
XGBOOST_GRID: Mapping[str, tuple[Any, ...]] = {
    "class_weight": ("balanced", None),
    "n_estimators": (100, 30, 300),
    "learning_rate": (0.1, 0.03, 0.3),
    "max_depth": (6, 2, 4),
    "min_child_weight": (1.0, 0.1, 5.0),
    "reg_lambda": (1.0, 0.1, 10.0),
}


@dataclass(frozen=True)
class Contestant:
    """A method that can be tuned.

    Attributes:
        name: its key.
        title: its name in tables.
        regional: whether its training depends on the region.
        grid: option -> values; the first of each is the default.
        make: (options, region, seed) -> an unfitted scikit-learn classifier.
    """

    name: str
    title: str
    regional: bool
    grid: Mapping[str, tuple[Any, ...]]
    make: Callable[[Options, Region, int], Any]

    def draw(self, trials: int, seed: int) -> list[Options]:
        """Return the options of so many trials, no two the same: the defaults, then draws from the grid.

        The values of an option come in random order, all of them before any comes again (of three or more values the
        default comes last in the first turn, having been tried). The order depends on the name of the option and the
        seed only, so that the networks of all losses meet the same learning rates and weight decays, as long as none
        draws the same twice. There are fewer trials where the grid has no more.
        """
        found = [{name: values[0] for name, values in self.grid.items()}]
        queues: dict[str, list[Any]] = {name: [] for name in self.grid}
        randoms = {name: np.random.default_rng([seed, *name.encode()]) for name in self.grid}
        size = math.prod(len(values) for values in self.grid.values())
        while len(found) < min(trials, size):
            options = {}
            for name, values in self.grid.items():
                if not queues[name]:
                    order = randoms[name].permutation(len(values)).tolist()
                    if len(found) == 1 and len(values) > 2:
                        order = [number for number in order if number] + [0]
                    queues[name] = order
                options[name] = values[queues[name].pop(0)]
            if options not in found:
                found.append(options)
        return found

    def fit_and_score(
        self, options: Options, region: Region, X: Any, positive: NDArray[Any], rows: Any, others: Any, seed: int
    ) -> NDArray[Any]:
        """Train on `rows` of the table and return the scores of `others`."""
        estimator = self.make(options, region, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # trees have much to say about small tables
            estimator.fit(_take(X, rows), positive[rows])
            scores: NDArray[Any]
            if hasattr(estimator, "decision_function"):
                scores = estimator.decision_function(_take(X, others))
            else:
                scores = estimator.predict_proba(_take(X, others))[:, 1]
        return scores


def contestants(names: Sequence[str | Contestant], **settings: Any) -> list[Contestant]:
    """Return the contestants of these names.

    Args:
        names: keys of :data:`moreauc.methods.METHODS`, "lightgbm" and "xgboost"; contestants stay as they are.
        settings: arguments of :class:`~moreauc.estimators.TPAUCClassifier` for all networks.

    Raises:
        ValueError: for an unknown name.
        ModuleNotFoundError: where trees are asked for and not installed; it names the extra.

    Example:
        >>> [contestant.title for contestant in contestants(["sonx", "ce"])]
        ['SONX', 'CE']
    """
    trees = {"lightgbm": _lightgbm, "xgboost": _xgboost}
    chosen = []
    for name in names:
        if isinstance(name, Contestant):
            chosen.append(name)
        elif name in trees:
            import_extra(name, "boosting")
            chosen.append(trees[name]())
        elif name in METHODS["rows"]:
            chosen.append(network(name, settings=settings))
        else:
            raise ValueError(f"contestants: names must be among {[*METHODS['rows'], *trees]}, got {name!r}")
    return chosen


def network(
    method: str,
    *,
    name: str | None = None,
    title: str | None = None,
    grid: Mapping[str, tuple[Any, ...]] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Contestant:
    """Return a variant of a loss of this package.

    Args:
        method: key of :data:`moreauc.methods.METHODS`.
        name: key of the variant; None for `method`.
        title: its name in tables; None for that of the method.
        grid: options of the loss with the values to try; None for those of the preset.
        settings: arguments of :class:`~moreauc.estimators.TPAUCClassifier`.

    Example:
        >>> variant = network("sonx", name="slow", title="SONX, slow", grid={"threshold_lr": (0.1,)})
        >>> variant.draw(1, seed=0)[0]["threshold_lr"]
        0.1
    """
    preset = METHODS["rows"][method]
    own = preset.grid if grid is None else grid
    maker = _NetworkMaker(method, dict(settings or {}))
    return Contestant(name or method, title or preset.title, preset.regional, {**NETWORK_GRID, **own}, maker)


@dataclass(frozen=True)
class _NetworkMaker:
    """Makes the classifier of a loss; a class, so that it can be sent to another process."""

    name: str
    settings: Mapping[str, Any]

    def __call__(self, options: Options, region: Region, seed: int) -> TPAUCClassifier:
        arguments = set(TPAUCClassifier().get_params())
        own = {key: value for key, value in options.items() if key not in arguments}
        shared = {key: value for key, value in options.items() if key in arguments}
        fixed = {"validation_fraction": 0.0, **self.settings}
        return TPAUCClassifier(
            min_tpr=region[0],
            max_fpr=region[1],
            loss=self.name,
            random_state=seed,
            **{**fixed, **shared},
            loss_options=own,
        )


def _lightgbm() -> Contestant:
    return Contestant("lightgbm", "LightGBM", False, LIGHTGBM_GRID, _make_lightgbm)


def _xgboost() -> Contestant:
    return Contestant("xgboost", "XGBoost", False, XGBOOST_GRID, _make_xgboost)


def _make_lightgbm(options: Options, region: Region, seed: int) -> Any:
    from lightgbm import LGBMClassifier

    trees = LGBMClassifier(
        **options, subsample=0.8, subsample_freq=1, random_state=seed, n_jobs=1, verbosity=-1, deterministic=True
    )
    return make_pipeline(TableEncoder(standardize=False), trees)


def _make_xgboost(options: Options, region: Region, seed: int) -> Any:
    return make_pipeline(TableEncoder(standardize=False), _XGBoost(options, seed))


class _XGBoost(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """XGBoost with LightGBM's meaning of `class_weight`."""

    def __init__(self, options: Options, seed: int) -> None:
        self.options = options
        self.seed = seed

    @all_or_nothing
    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> _XGBoost:
        from xgboost import XGBClassifier

        options = dict(self.options)
        weight = (y == 0).sum() / (y == 1).sum() if options.pop("class_weight") == "balanced" else 1.0
        self.model_ = XGBClassifier(
            **options, scale_pos_weight=weight, subsample=0.8, random_state=self.seed, n_jobs=1, verbosity=0
        )
        self.model_.fit(X, y.astype(int))
        return self

    def predict_proba(self, X: NDArray[Any]) -> NDArray[Any]:
        probabilities: NDArray[Any] = self.model_.predict_proba(X)
        return probabilities


def _take(X: Any, rows: Any) -> Any:
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]
