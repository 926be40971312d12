r"""The methods over groups by name: each a criterion with its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moreauc._group_input import check_groups
from moreauc.criteria.group_dro import GroupDROLoss
from moreauc.criteria.group_erm import GroupERMLoss
from moreauc.criteria.group_exponentiated import ExponentiatedGroupDROLoss
from moreauc.criteria.grouped import GroupedLoss, SampleLoss
from moreauc.criteria.sample_cvar import SampleCVaRLoss

__all__ = ["GROUP_METHODS", "GroupPreset", "make_group_criterion"]

Groups = Tensor | Sequence[int] | NDArray[Any]


@dataclass(frozen=True)
class GroupPreset:
    """A method over groups as users name it.

    Attributes:
        title: name in tables.
        build: makes the loss from the numbers of groups, of those that count, of rows of each and of all rows, and
            keyword arguments.
        options: keyword arguments of the loss.
        grid: the option worth tuning, with the values to try; the first is the default.
    """

    title: str
    build: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


def _sonx(num_groups: int, top_k: int, sizes: list[int], rows: int, **options: Any) -> GroupDROLoss:
    return GroupDROLoss(num_groups, top_k=top_k, **options)


def _exponentiated(
    num_groups: int, top_k: int, sizes: list[int], rows: int, **options: Any
) -> ExponentiatedGroupDROLoss:
    return ExponentiatedGroupDROLoss(num_groups, **options)


def _erm(num_groups: int, top_k: int, sizes: list[int], rows: int, **options: Any) -> GroupERMLoss:
    return GroupERMLoss(num_groups, **options)


def _reweighted(num_groups: int, top_k: int, sizes: list[int], rows: int, **options: Any) -> GroupERMLoss:
    return GroupERMLoss(num_groups, group_sizes=sizes, num_samples=rows, **options)


def _cvar(num_groups: int, top_k: int, sizes: list[int], rows: int, **options: Any) -> SampleCVaRLoss:
    return SampleCVaRLoss(**options)


GROUP_METHODS: Mapping[str, GroupPreset] = {
    "sonx": GroupPreset("SONX", _sonx, {"threshold_lr": "quantile", "tau": 0.1}, {"tau": (0.1, 0.03)}),
    "exponentiated": GroupPreset("group DRO, exponentiated", _exponentiated, grid={"step": (0.1, 0.01)}),
    "erm": GroupPreset("ERM", _erm),
    "erm_reweighted": GroupPreset("ERM, equal group weights", _reweighted),
    "cvar": GroupPreset("CVaR of samples", _cvar, {"fraction": 0.5}, {"fraction": (0.5, 0.2)}),
}


def make_group_criterion(
    name: str,
    groups: Groups,
    *,
    num_groups: int,
    top_k: int = 1,
    loss: SampleLoss = "logistic",
    **options: Any,
) -> GroupedLoss:
    """Build the loss of a method over groups, for the training loop.

    Args:
        name: key of `GROUP_METHODS`.
        groups: group ids of the rows of the training set, shape `(n,)`, or memberships `(n, num_groups)`.
        num_groups: number of groups.
        top_k: how many of the worst groups count, for the method that asks.
        loss: loss of a sample: "logistic", "cross_entropy", "squared", "absolute", or a function.
        options: keyword arguments of the loss over groups, which go before those of the preset.

    Example:
        >>> criterion = make_group_criterion("sonx", [0, 1, 1], num_groups=2, gamma=0.1)
        >>> criterion.criterion.gamma
        0.1
    """
    if name not in GROUP_METHODS:
        raise ValueError(f"make_group_criterion: name must be one of {list(GROUP_METHODS)}, got {name!r}")
    preset = GROUP_METHODS[name]
    members = check_groups("make_group_criterion", groups, num_groups)
    try:
        known = (num_groups, top_k, members.sizes().tolist(), members.num_rows)
        inner = preset.build(*known, **{**preset.options, **options})
    except TypeError as error:
        raise ValueError(f"make_group_criterion: options must be arguments of the loss of {name!r}: {error}") from error
    rows = groups if isinstance(groups, Tensor) else torch.from_numpy(np.array(groups))  # a copy: it may be read-only
    return GroupedLoss(inner, rows, loss=loss)
