"""What can be trained, by name: losses, kinds of model, baselines of other libraries, and what each is tuned over.

The losses of a task are `rows`, of scores, from 0/1 labels and a region; `bags`, of instances, which they pool; or
`groups`, of scores, from the group of each row and the number of groups that count.

Nothing is imported before it is used: classes and functions are named by their places in this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

from moreauc._system import import_extra

if TYPE_CHECKING:
    from moreauc.core.pooling import PoolingName

TaskName = Literal["rows", "bags", "groups"]
Grid = Mapping[str, tuple[object, ...]]

BOOSTING = "boosting"  # the extra that brings LightGBM and XGBoost
ADVICE = f"is not installed; pip install 'moreauc[{BOOSTING}]' brings it"  # said of a method whose package is missing

_RANKED = ("labels", "min_tpr", "max_fpr")  # what losses of a region take


def load(place: str) -> Any:
    """Return what a place like "criteria.tpauc:TPAUCLoss" in this package holds."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"moreauc.{module}"), name)


@dataclass(frozen=True)
class Entry:
    """What stands for a name."""

    title: str  # name in tables
    place: str  # what makes it: of a loss and a model its class, of a baseline a function
    # options worth tuning, with the values to try; the first of each is the default
    grid: Grid = field(default_factory=dict, kw_only=True)
    package: str | None = field(default=None, kw_only=True)  # what must be installed, by the extra "boosting"

    @property
    def maker(self) -> Any:
        """The class or function at `place`."""
        return load(self.place)

    @property
    def installed(self) -> bool:
        """Whether the package is there."""
        return self.package is None or find_spec(self.package) is not None

    def check_installed(self) -> None:
        """Raise ModuleNotFoundError, naming the extra, where the package is not installed."""
        if self.package is not None:
            import_extra(self.package, BOOSTING)


@dataclass(frozen=True)
class Method(Entry):
    """A loss to train with."""

    options: Mapping[str, object] = field(default_factory=dict)  # keyword arguments of its class
    # what the loss is built from besides its options: of `labels`, `min_tpr`, `max_fpr`, `pooling` (tasks of labels),
    # `num_groups`, `top_k`, `group_sizes` and `num_samples` (groups)
    takes: tuple[str, ...] = ("labels",)
    pooling: PoolingName | None = None  # how instances become the score of their bag; None for other tasks
    proximal: float = 0.0  # weight of the proximal term of a reference point (AUC-M; see `ProximalPoint`)

    @property
    def regional(self) -> bool:
        """Whether the loss depends on the region (`min_tpr`, `max_fpr`)."""
        return "min_tpr" in self.takes

    @property
    def pools(self) -> bool:
        """Whether the loss is one of rows, and the instances of a batch are pooled before it."""
        return self.pooling is not None and "pooling" not in self.takes

    @property
    def allowed(self) -> list[str]:
        """Names of the options that the loss takes."""
        own = [name for name in signature(self.maker).parameters if name not in self.takes]
        return [*own, "temperature"] if self.pools else own


# Raw scores do not saturate, sigmoids bound what a pair can cost: every loss over pairs may choose. What else is in the
# grids came out of trials on scikit-learn's example tables, made ones and Adult, not on those of the KEEL study.
_LINKS = ("identity", "sigmoid")
_PAIRS = {"link": "identity"}
_SURROGATES = ("squared_hinge", "logistic")
_WIDTHS = (0.5, 0.0, 1.0)
_TEMPERATURES = (1.0, 0.1, 10.0)

_ROWS = {
    "sonx": Method(
        "SONX",
        "criteria.tpauc:TPAUCLoss",
        {"surrogate": "smooth_ramp", "link": "standardized", "threshold_lr": "quantile"},
        grid={"margin": (0.2, 0.5, 0.1), "gamma": (0.0, 0.1)},
        takes=_RANKED,
    ),
    "ce": Method("CE", "criteria.cross_entropy:CrossEntropyLoss", grid={"sampler": ("shuffled", "balanced")}),
    "ce_weighted": Method("CE, weighted", "criteria.cross_entropy:CrossEntropyLoss", {"positive_weight": "balanced"}),
    "auc_sh": Method(
        "AUC-SH",
        "criteria.auc_squared_hinge:AUCSquaredHingeLoss",
        _PAIRS,
        grid={"link": _LINKS, "surrogate": _SURROGATES},
    ),
    "auc_m": Method(
        "AUC-M",
        "criteria.auc_min_max:AUCMinMaxLoss",
        {**_PAIRS, "dual_lr": 1.0},
        grid={"link": _LINKS, "margin": (1.0, 0.5), "dual_lr": (1.0, 0.1)},
        proximal=2e-3,
    ),
    "mb": Method(
        "MB",
        "criteria.mini_batch_tpauc:MiniBatchTPAUCLoss",
        _PAIRS,
        grid={"link": _LINKS, "widen": _WIDTHS, "surrogate": _SURROGATES},
        takes=_RANKED,
    ),
    "aw_poly": Method(
        "AW-poly",
        "criteria.aw_poly:AWPolyLoss",
        {**_PAIRS, "power": 1.0},
        grid={"link": _LINKS, "power": (1.0, 0.3, 3.0)},
    ),
    "sota_s": Method(
        "SOTA-s",
        "criteria.sota_s:SOTAsLoss",
        _PAIRS,
        grid={"link": _LINKS, "temperature_negatives": _TEMPERATURES, "temperature_positives": _TEMPERATURES},
    ),
    "staco": Method(
        "STACO", "criteria.staco:STACOLoss", _PAIRS, _RANKED, grid={"link": _LINKS, "dual_lr": (0.1, 1.0, 0.01)}
    ),
}

_TRACKED = {"link": "identity", "update_order": "after", "margin": 1.0, "temperature": 0.1}
_DUAL_GRID = {"link": _LINKS, "dual_lr": (1.0, 0.1)}


def _sont(title: str, pooling: PoolingName) -> Method:
    place, takes = "criteria.multi_instance_tpauc:MultiInstanceTPAUCLoss", (*_RANKED, "pooling")
    options, grid = {**_TRACKED, "threshold_lr": "quantile"}, {"link": _LINKS, "gamma": (0.0, 0.1)}
    return Method(title, place, options, takes, pooling, grid=grid)


def _midam(title: str, pooling: PoolingName) -> Method:
    place, options = "criteria.midam:MIDAMLoss", {**_TRACKED, "dual_lr": 1.0}
    return Method(title, place, options, ("labels", "pooling"), pooling, proximal=2e-3, grid=_DUAL_GRID)


_BAGS = {
    "sont_mean": _sont("SONT (mean)", "mean"),
    "sont_smx": _sont("SONT (smoothed max)", "smoothed_max"),
    "sont_att": _sont("SONT (attention)", "attention"),
    "auc_m_att": Method(
        "AUC-M (attention)",
        "criteria.auc_min_max:AUCMinMaxLoss",
        {"link": "identity", "dual_lr": 1.0},
        grid=_DUAL_GRID,
        pooling="attention",
        proximal=2e-3,
    ),
    "midam_smx": _midam("MIDAM (smoothed max)", "smoothed_max"),
    "midam_att": _midam("MIDAM (attention)", "attention"),
    "sota_s_att": Method(
        "SOTA-s (attention)",
        "criteria.sota_s:SOTAsLoss",
        {"link": "identity"},
        grid={"link": _LINKS, "temperature_negatives": (1.0, 0.1), "temperature_positives": (1.0, 0.1)},
        pooling="attention",
    ),
    "ce_att": Method(
        "CE (attention)",
        "criteria.cross_entropy:CrossEntropyLoss",
        grid={"positive_weight": (1.0, "balanced")},  # batches with as many positive as negative bags are balanced
        pooling="attention",
    ),
}

_GROUPS = {
    "sonx": Method(
        "SONX",
        "criteria.group_dro:GroupDROLoss",
        {"threshold_lr": "quantile", "tau": 0.1},
        grid={"tau": (0.1, 0.03)},
        takes=("num_groups", "top_k"),
    ),
    "exponentiated": Method(
        "group DRO, exponentiated",
        "criteria.group_exponentiated:ExponentiatedGroupDROLoss",
        grid={"step": (0.1, 0.01)},
        takes=("num_groups",),
    ),
    "erm": Method("ERM", "criteria.group_erm:GroupERMLoss", takes=("num_groups",)),
    "erm_reweighted": Method(
        "ERM, equal group weights",
        "criteria.group_erm:GroupERMLoss",
        takes=("num_groups", "group_sizes", "num_samples"),
    ),
    "cvar": Method(
        "CVaR of samples",
        "criteria.sample_cvar:SampleCVaRLoss",
        {"fraction": 0.5},
        grid={"fraction": (0.5, 0.2)},
        takes=(),
    ),
}

METHODS: Mapping[TaskName, Mapping[str, Method]] = {"rows": _ROWS, "bags": _BAGS, "groups": _GROUPS}

#: Estimators that train networks with these losses; those of groups by what is predicted.
NETWORKS: Mapping[str, str] = {
    "rows": "estimators.tpauc:TPAUCClassifier",
    "bags": "estimators.multi_instance:MultiInstanceClassifier",
    "classification": "estimators.group_dro:GroupDROClassifier",
    "regression": "estimators.group_dro:GroupDRORegressor",
}

# What every network is tuned over besides the options of its loss; the estimator's own default comes first.
NETWORK_GRID: Grid = {"lr": (0.0015, 0.005, 0.0005), "weight_decay": (0.01, 1.0)}


@dataclass(frozen=True)
class Model(Entry):
    """A kind of model of rows, an estimator."""

    use: str = ""  # when to take it, for people


#: The kinds of model by name, from the simplest on.
MODELS: Mapping[str, Model] = {
    "linear": Model(
        "TPAUCLinear",
        "estimators.linear:TPAUCLinear",
        use="for a scorecard",
        grid={"C": ("auto", 1.0, 0.1, 0.01, 10.0), "margin": ("auto", 0.2, 0.5, 0.1)},
    ),
    "forest": Model("TPAUCForest", "estimators.forest:TPAUCForest", use="for a random forest"),
    "trees": Model(
        "TPAUCBooster",
        "estimators.boosted:TPAUCBooster",
        use="for boosted trees",
        grid={
            "n_estimators": (100, 30, 300),
            "booster_options": (None, {"num_leaves": 7}, {"num_leaves": 15, "min_child_samples": 5}),
        },
        package="lightgbm",
    ),
    "mlp": Model("TPAUCClassifier", NETWORKS["rows"], use="for a network"),
    "auto": Model(
        "TPAUCAuto",
        "estimators.auto:TPAUCAuto",
        use="for the best of these and a random forest",
        grid={"combine": (True, False)},
    ),
}
# those that can be named where losses are, which are networks, and baselines, one of which is called forest as well
OTHER_MODELS = ("linear", "trees", "auto")


@dataclass(frozen=True)
class Baseline(Entry):
    """A classifier of another library, with its own defaults."""

    equal_groups: bool = False  # whether rows are weighted so that each group counts the same

    def make(self, options: Mapping[str, object], seed: int) -> Any:
        """Return an unfitted classifier."""
        return self.maker(options, seed)


_STRENGTHS = (1.0, 0.1, 0.01, 0.001, 10.0, 100.0, 1e-4, 1e-5)

_C_GRID: Grid = {"C": _STRENGTHS}
_LR_GRID: Grid = {"C": _STRENGTHS[:5], "class_weight": (None, "balanced")}
_FOREST_GRID: Grid = {
    "n_estimators": (100, 300),
    "min_samples_leaf": (1, 3, 10),
    "max_features": ("sqrt", 0.5, "log2"),
    "class_weight": (None, "balanced_subsample"),
}
_LIGHTGBM_GRID: Grid = {
    "class_weight": (None, "balanced"),
    "n_estimators": (100, 30, 300),
    "learning_rate": (0.1, 0.03),
    "num_leaves": (31, 7, 15),
    "min_child_samples": (20, 5),
    "reg_lambda": (0.0, 1.0, 10.0),
    "subsample": (1.0, 0.8),
}
_XGBOOST_GRID: Grid = {
    "class_weight": (None, "balanced"),
    "n_estimators": (100, 30, 300),
    "learning_rate": (0.3, 0.1, 0.03),
    "max_depth": (6, 2, 4),
    "min_child_weight": (1.0, 0.1, 5.0),
    "reg_lambda": (1.0, 0.1, 10.0),
    "subsample": (1.0, 0.8),
}
_TREES_GRID: Grid = {
    "max_iter": (100, 30, 300),
    "learning_rate": (0.1, 0.03),
    "max_leaf_nodes": (31, 7, 15),
    "min_samples_leaf": (20, 5),
    "l2_regularization": (0.0, 1.0, 10.0),
}

#: The baselines by task and by name.
BASELINES: Mapping[TaskName, Mapping[str, Baseline]] = {
    "rows": {
        "lr": Baseline("LR", "app.baselines:logistic", grid=_LR_GRID),
        "forest": Baseline("random forest", "app.baselines:forest", grid=_FOREST_GRID),
        "lightgbm": Baseline("LightGBM", "app.baselines:lightgbm", grid=_LIGHTGBM_GRID, package="lightgbm"),
        "xgboost": Baseline("XGBoost", "app.baselines:xgboost", grid=_XGBOOST_GRID, package="xgboost"),
    },
    "bags": {
        "lr_bags": Baseline("LR (mean, max, min)", "app.baselines:logistic_of_bags", grid=_LR_GRID),
        "forest_bags": Baseline("random forest (mean, max, min)", "app.baselines:forest_of_bags", grid=_FOREST_GRID),
    },
    # on encoded rows, as for the networks; without class weights, which would change the loss of the groups
    "groups": {
        "lr": Baseline("LR", "app.baselines:logistic_of_numbers", grid=_C_GRID),
        "lr_equal": Baseline(
            "LR, equal group weights", "app.baselines:logistic_of_numbers", grid=_C_GRID, equal_groups=True
        ),
        "trees": Baseline("boosted trees", "app.baselines:trees", grid=_TREES_GRID),
        "trees_equal": Baseline(
            "boosted trees, equal group weights", "app.baselines:trees", grid=_TREES_GRID, equal_groups=True
        ),
    },
}


def method_names(task: TaskName) -> tuple[str, ...]:
    """Return the names of all that can be compared on rows or bags, whether what they need is installed or not."""
    return (*METHODS[task], *(OTHER_MODELS if task == "rows" else ()), *BASELINES[task])


def every_method(task: TaskName) -> tuple[tuple[str, ...], list[str]]:
    """Return all that can be compared on rows or bags, and a line for each one whose package is not installed.

    "auto", which is made of others, is not among them.

    Example:
        >>> every_method("bags")[0][-3:]
        ('ce_att', 'lr_bags', 'forest_bags')
    """
    missing = {name: entry.title for name, entry in BASELINES[task].items() if not entry.installed}
    without = {*missing, "auto", *(name for name in OTHER_MODELS if not MODELS[name].installed)}
    lines = [f"{title} is left out: it {ADVICE}" for title in missing.values()]
    return tuple(name for name in method_names(task) if name not in without), lines
