r"""The methods by name: each a criterion with its options, a dozen words of wiring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from torch import Tensor

from moreauc._checks import check_real
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


# Raw scores do not saturate, sigmoids bound what a pair can cost: every loss over pairs may choose. What else is in the
# grids came out of trials on scikit-learn's example tables, made ones and Adult, not on those of the KEEL study.
_LINKS = ("identity", "sigmoid")
_PAIRS = {"link": "identity"}
_SURROGATES = ("squared_hinge", "logistic")
_WIDTHS = (0.5, 0.0, 1.0)
_TEMPERATURES = (1.0, 0.1, 10.0)

METHODS: Mapping[str, Preset] = {
    "sonx": Preset(
        "SONX",
        TPAUCLoss,
        {**_PAIRS, "threshold_lr": "quantile"},
        regional=True,
        grid={"link": _LINKS, "widen": _WIDTHS, "surrogate": _SURROGATES, "gamma": (0.0, 0.1)},
    ),
    "ce": Preset("CE", CrossEntropyLoss, grid={"sampler": ("shuffled", "balanced"), "epochs": (60, 20)}),
    "ce_weighted": Preset("CE, weighted", CrossEntropyLoss, {"positive_weight": "balanced"}, grid={"epochs": (60, 20)}),
    "auc_sh": Preset("AUC-SH", AUCSquaredHingeLoss, _PAIRS, grid={"link": _LINKS, "surrogate": _SURROGATES}),
    "auc_m": Preset(
        "AUC-M",
        AUCMinMaxLoss,
        {**_PAIRS, "dual_lr": 1.0},
        grid={"link": _LINKS, "margin": (1.0, 0.5), "dual_lr": (1.0, 0.1)},
        proximal=2e-3,
    ),
    "mb": Preset(
        "MB",
        MiniBatchTPAUCLoss,
        _PAIRS,
        regional=True,
        grid={"link": _LINKS, "widen": _WIDTHS, "surrogate": _SURROGATES},
    ),
    "aw_poly": Preset("AW-poly", AWPolyLoss, {**_PAIRS, "power": 1.0}, grid={"link": _LINKS, "power": (1.0, 0.3, 3.0)}),
    "sota_s": Preset(
        "SOTA-s",
        SOTAsLoss,
        _PAIRS,
        grid={"link": _LINKS, "temperature_negatives": _TEMPERATURES, "temperature_positives": _TEMPERATURES},
    ),
}


def make_criterion(
    name: str, labels: Tensor | Sequence[int], *, min_tpr: float, max_fpr: float, widen: float = 0.0, **options: Any
) -> Criterion:
    """Build the loss of a method.

    Args:
        name: key of `METHODS`.
        labels: 0/1 labels of the training set.
        min_tpr: region, for the methods that know one.
        max_fpr: as `min_tpr`.
        widen: how far the region to train on is widened towards the whole square, in [0, 1]: 0 trains on the region
            itself, 1 on the AUC. The narrower the region, the fewer rows decide, mislabelled ones among them; a wider
            one is often better on new data. No meaning for methods without a region.
        options: keyword arguments of the loss, which go before those of the preset.

    Example:
        >>> make_criterion("sonx", [0, 1, 0], min_tpr=0.5, max_fpr=0.5, gamma=0.1).threshold_lr
        'quantile'
    """
    if name not in METHODS:
        raise ValueError(f"make_criterion: name must be one of {list(METHODS)}, got {name!r}")
    preset = METHODS[name]
    region = widened("make_criterion", min_tpr, max_fpr, widen)
    if not preset.regional:
        region = {}
    allowed = [key for key in signature(preset.criterion).parameters if key not in ("labels", "min_tpr", "max_fpr")]
    for key in options:
        if key not in allowed:
            raise ValueError(f"make_criterion: options of {name!r} must be among {[*allowed, 'widen']}, got {key!r}")
    return preset.criterion(labels, **{**region, **preset.options, **options})


def widened(owner: str, min_tpr: float, max_fpr: float, widen: float) -> dict[str, float]:
    """Return the region to train on: the one given at `widen` 0, the whole square at 1."""
    widen = check_real(owner, "widen", widen, low=0.0, high=1.0)
    return {"min_tpr": (1.0 - widen) * min_tpr, "max_fpr": max_fpr + widen * (1.0 - max_fpr)}
