r"""The methods by name: each a criterion with its options, a dozen words of wiring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from moreauc.criteria import (
    AUCMinMaxLoss,
    AUCSquaredHingeLoss,
    AWPolyLoss,
    CrossEntropyLoss,
    MiniBatchTPAUCLoss,
    SOTAsLoss,
    TPAUCLoss,
)
from moreauc.criteria._base import Criterion

__all__ = ["METHODS", "Preset", "make_criterion"]


@dataclass(frozen=True)
class Preset:
    """A method as users name it.

    Attributes:
        title: name in tables.
        criterion: class of its loss, built from the labels of the training set.
        options: keyword arguments of that class.
        regional: whether the loss depends on the region (`min_tpr`, `max_fpr`).
        grid: options worth tuning, with the values to try; the first of each is the default.
        proximal: weight of the pull towards a reference point (AUC-M; see :class:`~moreauc.optim.ProximalPoint`).
    """

    title: str
    criterion: type[Criterion]
    options: Mapping[str, Any] = field(default_factory=dict)
    regional: bool = False
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    proximal: float = 0.0
