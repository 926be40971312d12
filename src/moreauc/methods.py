"""The losses to train with, by task and name, and what builds one of them for a training set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moreauc import _registry
from moreauc._checks import check_real
from moreauc._group_input import check_groups
from moreauc._registry import Method, TaskName
from moreauc.criteria.grouped import GroupedLoss, SampleLoss
from moreauc.criteria.pooled import PooledLoss

__all__ = ["METHODS", "build"]

#: The methods by task, "rows", "bags" or "groups", and by name, such as "sonx" or "ce".
METHODS: Mapping[TaskName, Mapping[str, Method]] = _registry.METHODS


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
            itself, 1 on the AUC. Ignored by methods without a region.
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
        inner = method.maker(**{key: facts[key] for key in method.takes}, **chosen)
        ids = targets if isinstance(targets, Tensor) else torch.from_numpy(np.array(targets))  # a copy: torch writes
        return GroupedLoss(inner, ids, loss=sample_loss)
    widen = check_real("build", "widen", widen, low=0.0, high=1.0)
    known: dict[str, Any] = {"labels": targets, "pooling": method.pooling}
    if method.regional:
        known |= _region(min_tpr, max_fpr, widen)
    temperature = {"temperature": chosen.pop("temperature", 0.1)} if method.pools else {}
    loss = method.maker(**{key: known[key] for key in method.takes}, **chosen)
    return loss if method.pooling is None or not method.pools else PooledLoss(loss, method.pooling, **temperature)


def _region(min_tpr: float | None, max_fpr: float | None, widen: float) -> dict[str, float]:
    """Return the region to train on: the one given at `widen` 0, the whole square at 1."""
    if min_tpr is None or max_fpr is None:
        raise ValueError(f"build: min_tpr and max_fpr must be given, got {min_tpr} and {max_fpr}")
    return {"min_tpr": (1.0 - widen) * min_tpr, "max_fpr": max_fpr + widen * (1.0 - max_fpr)}
