"""The methods by name: for each task the losses to train with, their options and what is worth tuning.

- `rows`: the loss of scores, from 0/1 labels and a region;
- `bags`: the loss of instances, which it pools, from 0/1 labels of the bags and a region;
- `groups`: the loss of scores of rows in groups, from the group of each row and the number of groups that count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from moreauc._checks import check_real
from moreauc._group_input import check_groups
from moreauc.core.pooling import PoolingName
from moreauc.criteria import (
    AUCMinMaxLoss,
    AUCSquaredHingeLoss,
    AWPolyLoss,
    CrossEntropyLoss,
    MIDAMLoss,
    MiniBatchTPAUCLoss,
    MultiInstanceTPAUCLoss,
    PooledLoss,
    SOTAsLoss,
    STACOLoss,
    TPAUCLoss,
)
from moreauc.criteria.group_dro import GroupDROLoss
from moreauc.criteria.group_erm import GroupERMLoss
from moreauc.criteria.group_exponentiated import ExponentiatedGroupDROLoss
from moreauc.criteria.grouped import GroupedLoss, SampleLoss
from moreauc.criteria.sample_cvar import SampleCVaRLoss

__all__ = ["METHODS", "build"]

TaskName = Literal["rows", "bags", "groups"]
Grid = Mapping[str, tuple[Any, ...]]

_REGION = ("min_tpr", "max_fpr")


@dataclass(frozen=True)
class Method:
    """A method as users name it."""

    title: str  # name in tables
    loss: type[Any]  # class of its loss
    options: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of that class
    # options worth tuning, with the values to try; the first of each is the default
    grid: Grid = field(default_factory=dict)
    # what the loss is built from besides its options: of `labels`, `min_tpr`, `max_fpr`, `pooling` (tasks of labels),
    # `num_groups`, `top_k`, `group_sizes` and `num_samples` (groups)
    takes: tuple[str, ...] = ("labels",)
    pooling: Any = None  # how instances become the score of their bag; None for other tasks
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
        own = [name for name in signature(self.loss).parameters if name not in self.takes]
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
        TPAUCLoss,
        {"surrogate": "smooth_ramp", "link": "standardized", "threshold_lr": "quantile"},
        {"margin": (0.2, 0.5, 0.1), "gamma": (0.0, 0.1)},
        takes=("labels", *_REGION),
    ),
    "ce": Method("CE", CrossEntropyLoss, grid={"sampler": ("shuffled", "balanced")}),
    "ce_weighted": Method("CE, weighted", CrossEntropyLoss, {"positive_weight": "balanced"}),
    "auc_sh": Method("AUC-SH", AUCSquaredHingeLoss, _PAIRS, {"link": _LINKS, "surrogate": _SURROGATES}),
    "auc_m": Method(
        "AUC-M",
        AUCMinMaxLoss,
        {**_PAIRS, "dual_lr": 1.0},
        {"link": _LINKS, "margin": (1.0, 0.5), "dual_lr": (1.0, 0.1)},
        proximal=2e-3,
    ),
    "mb": Method(
        "MB",
        MiniBatchTPAUCLoss,
        _PAIRS,
        {"link": _LINKS, "widen": _WIDTHS, "surrogate": _SURROGATES},
        takes=("labels", *_REGION),
    ),
    "aw_poly": Method("AW-poly", AWPolyLoss, {**_PAIRS, "power": 1.0}, {"link": _LINKS, "power": (1.0, 0.3, 3.0)}),
    "sota_s": Method(
        "SOTA-s",
        SOTAsLoss,
        _PAIRS,
        {"link": _LINKS, "temperature_negatives": _TEMPERATURES, "temperature_positives": _TEMPERATURES},
    ),
    "staco": Method(
        "STACO", STACOLoss, _PAIRS, {"link": _LINKS, "dual_lr": (0.1, 1.0, 0.01)}, takes=("labels", *_REGION)
    ),
}

_TRACKED = {"link": "identity", "update_order": "after", "margin": 1.0, "temperature": 0.1}
_DUAL_GRID = {"link": _LINKS, "dual_lr": (1.0, 0.1)}


def _sont(title: str, pooling: PoolingName) -> Method:
    options, grid = {**_TRACKED, "threshold_lr": "quantile"}, {"link": _LINKS, "gamma": (0.0, 0.1)}
    return Method(title, MultiInstanceTPAUCLoss, options, grid, takes=("labels", *_REGION, "pooling"), pooling=pooling)


def _midam(title: str, pooling: PoolingName) -> Method:
    options = {**_TRACKED, "dual_lr": 1.0}
    return Method(title, MIDAMLoss, options, _DUAL_GRID, takes=("labels", "pooling"), pooling=pooling, proximal=2e-3)


_BAGS = {
    "sont_mean": _sont("SONT (mean)", "mean"),
    "sont_smx": _sont("SONT (smoothed max)", "smoothed_max"),
    "sont_att": _sont("SONT (attention)", "attention"),
    "auc_m_att": Method(
        "AUC-M (attention)",
        AUCMinMaxLoss,
        {"link": "identity", "dual_lr": 1.0},
        _DUAL_GRID,
        pooling="attention",
        proximal=2e-3,
    ),
    "midam_smx": _midam("MIDAM (smoothed max)", "smoothed_max"),
    "midam_att": _midam("MIDAM (attention)", "attention"),
    "sota_s_att": Method(
        "SOTA-s (attention)",
        SOTAsLoss,
        {"link": "identity"},
        {"link": _LINKS, "temperature_negatives": (1.0, 0.1), "temperature_positives": (1.0, 0.1)},
        pooling="attention",
    ),
    "ce_att": Method(
        "CE (attention)",
        CrossEntropyLoss,
        grid={"positive_weight": (1.0, "balanced")},  # batches with as many positive as negative bags are balanced
        pooling="attention",
    ),
}

_GROUPS = {
    "sonx": Method(
        "SONX",
        GroupDROLoss,
        {"threshold_lr": "quantile", "tau": 0.1},
        {"tau": (0.1, 0.03)},
        takes=("num_groups", "top_k"),
    ),
    "exponentiated": Method(
        "group DRO, exponentiated", ExponentiatedGroupDROLoss, grid={"step": (0.1, 0.01)}, takes=("num_groups",)
    ),
    "erm": Method("ERM", GroupERMLoss, takes=("num_groups",)),
    "erm_reweighted": Method(
        "ERM, equal group weights", GroupERMLoss, takes=("num_groups", "group_sizes", "num_samples")
    ),
    "cvar": Method("CVaR of samples", SampleCVaRLoss, {"fraction": 0.5}, {"fraction": (0.5, 0.2)}, takes=()),
}

#: The methods by task, "rows", "bags" or "groups", and by name, such as "sonx" or "ce".
METHODS: Mapping[TaskName, Mapping[str, Method]] = {"rows": _ROWS, "bags": _BAGS, "groups": _GROUPS}


def build(
    task: TaskName,
    name: str,
    targets: Any,
    *,
    min_tpr: float | None = None,
    max_fpr: float | None = None,
    widen: float = 0.0,
    num_groups: int | None = None,
    top_k: int = 1,
    sample_loss: SampleLoss = "logistic",
    **options: Any,
) -> Any:
    """Build the loss of a method for a training set.

    Args:
        task: "rows", "bags" or "groups".
        name: key of `METHODS[task]`.
        targets: 0/1 labels of the rows or bags; for groups their ids, shape `(n,)`, or memberships `(n, num_groups)`.
        min_tpr: lower edge of the region, for rows and bags.
        max_fpr: upper edge of the region, for rows and bags.
        widen: how far the training region is widened towards the whole ROC square, in [0, 1]: 0 trains on the region
            itself, 1 on the AUC. A narrow region depends on few rows and is sensitive to label noise; a wider one often
            generalises better. Ignored by methods without a region.
        num_groups: number of groups; one more than the largest id by default.
        top_k: how many of the worst groups count, for methods that use it.
        sample_loss: loss of a row in a group: "logistic", "cross_entropy", "squared", "absolute", or a function.
        options: keyword arguments of the loss, which override those of the method.

    Example:
        >>> build("rows", "sonx", [0, 1, 0], min_tpr=0.5, max_fpr=0.5, gamma=0.1).threshold_lr
        'quantile'
        >>> build("bags", "sont_att", [0, 1, 0], min_tpr=0.5, max_fpr=0.5, gamma=0.1).gamma
        (0.1, 0.1, 0.1)
        >>> build("groups", "sonx", [0, 1, 1], gamma=0.1).criterion.gamma
        0.1
    """
    if task not in METHODS:
        raise ValueError(f"build: task must be one of {list(METHODS)}, got {task!r}")
    if name not in METHODS[task]:
        raise ValueError(f"build: name must be one of {list(METHODS[task])}, got {name!r}")
    method = METHODS[task][name]
    for key in options:
        if key not in method.allowed:
            allowed = [*method.allowed, "widen"] if method.regional else method.allowed
            raise ValueError(f"build: options of {name!r} must be among {allowed}, got {key!r}")
    chosen = {**method.options, **options}
    if task == "groups":
        members = check_groups("build", targets, num_groups)
        facts = {"num_groups": members.num_groups, "top_k": top_k}
        facts |= {"group_sizes": members.sizes().tolist(), "num_samples": members.num_rows}
        inner = method.loss(**{key: facts[key] for key in method.takes}, **chosen)
        ids = targets if isinstance(targets, Tensor) else torch.from_numpy(np.array(targets))  # a copy: torch writes
        return GroupedLoss(inner, ids, loss=sample_loss)
    widen = check_real("build", "widen", widen, low=0.0, high=1.0)
    known: dict[str, Any] = {"labels": targets, "pooling": method.pooling}
    if method.regional:
        known |= _region(min_tpr, max_fpr, widen)
    temperature = {"temperature": chosen.pop("temperature", 0.1)} if method.pools else {}
    loss = method.loss(**{key: known[key] for key in method.takes}, **chosen)
    return PooledLoss(loss, method.pooling, **temperature) if method.pools else loss


def _region(min_tpr: float | None, max_fpr: float | None, widen: float) -> dict[str, float]:
    """Return the region to train on: the one given at `widen` 0, the whole square at 1."""
    if min_tpr is None or max_fpr is None:
        raise ValueError(f"build: min_tpr and max_fpr must be given, got {min_tpr} and {max_fpr}")
    return {"min_tpr": (1.0 - widen) * min_tpr, "max_fpr": max_fpr + widen * (1.0 - max_fpr)}
