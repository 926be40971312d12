"""The candidates of the studies of tables, molecules and bags: ours, logistic regression, forests, boosters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from moreauc import MultiInstanceClassifier, TPAUCAuto, TPAUCBooster, TPAUCClassifier, TPAUCForest, TPAUCLinear
from moreauc._registry import BASELINES
from moreauc.app.comparison import Region
from moreauc.data.tabular import TableEncoder

Options = Mapping[str, Any]
Inputs: TypeAlias = NDArray[np.float64] | pd.DataFrame | csr_array | list[NDArray[np.float64]]


class Model(Protocol):
    """An unfitted classifier."""

    def fit(self, X: Inputs, y: NDArray[np.int64], /) -> object:
        """Train on rows and their labels."""

    def predict_proba(self, X: Inputs, /) -> NDArray[np.float64]:
        """Return the probabilities of both classes."""


@dataclass(frozen=True)
class Entry:
    """A candidate.

    Attributes:
        title: its name in tables.
        make: (options, region, seed, whether the table is sparse) -> an unfitted classifier.
        settings: options that are tried; the best on validation rows is trained again on all of them.
        regional: whether its training depends on the region; the others are trained once and scored in each.
        random: whether its training depends on the seed.
        network: whether it trains a network, on the device of the study; an option `device` tells it which.
    """

    title: str
    make: Callable[[Options, Region, int, bool], Model]
    settings: tuple[Options, ...] = ({},)
    regional: bool = False
    random: bool = True
    network: bool = False


def _ours(options: Options, region: Region, seed: int, sparse: bool) -> Model:
    return TPAUCClassifier(min_tpr=region[0], max_fpr=region[1], random_state=seed, **options)


def _linear(options: Options, region: Region, seed: int, sparse: bool) -> Model:
    return TPAUCLinear(min_tpr=region[0], max_fpr=region[1], random_state=seed, **options)


def _booster(options: Options, region: Region, seed: int, sparse: bool) -> Model:
    given = {"booster_options": {"n_jobs": 1}, **options}
    return TPAUCBooster(min_tpr=region[0], max_fpr=region[1], random_state=seed, **given)


def _forest(options: Options, region: Region, seed: int, sparse: bool) -> Model:
    return TPAUCForest(min_tpr=region[0], max_fpr=region[1], random_state=seed, **options)


def _auto(options: Options, region: Region, seed: int, sparse: bool, models: Sequence[str] | None = None) -> Model:
    given = {"trees": {"booster_options": {"n_jobs": 1}}, "mlp": options}  # the forest has one thread by itself
    return TPAUCAuto(min_tpr=region[0], max_fpr=region[1], models=models, random_state=seed, model_options=given)


def _bags(loss: str, options: Options, region: Region, seed: int, sparse: bool) -> Model:
    return MultiInstanceClassifier(loss=loss, min_tpr=region[0], max_fpr=region[1], random_state=seed, **options)


def _statistics(name: str, options: Options, region: Region, seed: int, sparse: bool) -> Model:
    model: Model = BASELINES["bags"][name].make(options, seed)
    return model


def _lr(options: Options, region: Region, seed: int, sparse: bool) -> Model:
    model: Model = LogisticRegression(**{"max_iter": 1000, **options})
    return model if sparse else _piped(TableEncoder(), model)


def _trees(kind: str, options: Options, region: Region, seed: int, sparse: bool) -> Model:
    given = {**options, "n_jobs": 1, "random_state": seed}
    model: Model
    if kind == "lightgbm":
        from lightgbm import LGBMClassifier

        model = LGBMClassifier(**given, verbosity=-1, deterministic=True, force_row_wise=True)
    elif kind == "xgboost":
        from xgboost import XGBClassifier

        model = XGBClassifier(**given, verbosity=0)
    else:
        model = RandomForestClassifier(**given)
    return model if sparse else _piped(TableEncoder(standardize=False), model)


def _piped(encoder: TableEncoder, model: Model) -> Model:
    piped: Model = make_pipeline(encoder, model)
    return piped


_POOLED = {"sont_att": "SONT (attention)", "sont_smx": "SONT (smoothed max)", "ce_att": "CE (attention)"}
_THREE = ("linear", "trees", "mlp")
_STRENGTHS = (0.01, 0.1, 1.0, 10.0)
_SLOW = {"n_estimators": 300, "learning_rate": 0.03}
ENTRIES = {
    "sonx": Entry("SONX", _ours, regional=True, network=True),
    "linear": Entry("TPAUCLinear", _linear, regional=True),
    "booster": Entry("TPAUCBooster", _booster, regional=True),
    "tpauc_forest": Entry("TPAUCForest", _forest, regional=True),
    "auto": Entry("TPAUCAuto", _auto, regional=True, network=True),
    "auto_three": Entry("TPAUCAuto, no forest", partial(_auto, models=_THREE), regional=True, network=True),
    "ce": Entry("CE", _ours, ({"loss": "ce"},), regional=True, network=True),
    "auc_sh": Entry("AUC-SH", _ours, ({"loss": "auc_sh"},), regional=True, network=True),
    "lr": Entry("LR", _lr, random=False),
    "lr_tuned": Entry("LR, tuned", _lr, tuple({"C": c} for c in _STRENGTHS)),
    "lr_balanced": Entry("LR, balanced, tuned", _lr, tuple({"C": c, "class_weight": "balanced"} for c in _STRENGTHS)),
    "lightgbm": Entry("LightGBM", partial(_trees, "lightgbm"), random=False),
    "lightgbm_tuned": Entry(
        "LightGBM, tuned",
        partial(_trees, "lightgbm"),
        ({}, {**_SLOW, "num_leaves": 7}, {**_SLOW, "num_leaves": 15, "colsample_bytree": 0.5}, {"reg_lambda": 10.0}),
    ),
    "xgboost": Entry("XGBoost", partial(_trees, "xgboost"), random=False),
    "forest": Entry("Random forest", partial(_trees, "forest")),
    "forest_tuned": Entry(
        "Random forest, tuned",
        partial(_trees, "forest"),
        ({}, {"min_samples_leaf": 5}, {"min_samples_leaf": 20}, {"min_samples_leaf": 5, "class_weight": "balanced"}),
    ),
    # of bags
    **{name: Entry(title, partial(_bags, name), regional=True, network=True) for name, title in _POOLED.items()},
    "lr_bags": Entry("LR (mean, max, min)", partial(_statistics, "lr_bags"), random=False),
    "forest_bags": Entry("Random forest (mean, max, min)", partial(_statistics, "forest_bags")),
}
