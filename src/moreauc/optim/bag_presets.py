r"""The methods over bags by name: each a criterion, its pooling and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from moreauc.core.pooling import PoolingName
from moreauc.criteria import (
    AUCMinMaxLoss,
    CrossEntropyLoss,
    MIDAMLoss,
    MultiInstanceTPAUCLoss,
    PooledLoss,
    SOTAsLoss,
)
from moreauc.criteria._base import Criterion
from moreauc.optim.presets import widened

__all__ = ["BAG_METHODS", "BagPreset", "make_bag_criterion"]


@dataclass(frozen=True)
class BagPreset:
    """A method over bags as users name it.

    Attributes:
        title: name in tables.
        pooling: its pooling.
        build: makes the loss from the labels of the bags and keyword arguments.
        options: keyword arguments of the loss.
        regional: whether the loss depends on the region (`min_tpr`, `max_fpr`).
        proximal: weight of the pull towards a reference point (AUC-M; see :class:`~moreauc.optim.ProximalPoint`).
        grid: options worth tuning, with the values to try; the first of each is the default.
    """

    title: str
    pooling: PoolingName
    build: Callable[..., Criterion]
    options: Mapping[str, Any] = field(default_factory=dict)
    regional: bool = False
    proximal: float = 0.0
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


def _pooled(kind: Callable[..., Criterion]) -> Callable[..., Criterion]:
    """Return what makes a loss of rows one of bags, by pooling the instances of the batch."""

    def build(
        labels: Tensor | Sequence[int], *, pooling: PoolingName, temperature: float = 0.1, **options: Any
    ) -> Criterion:
        return PooledLoss(kind(labels, **options), pooling, temperature=temperature)

    return build


_LINKS = ("identity", "sigmoid")
_TRACKED = {"link": "identity", "rows": "after"}
_SONT = {**_TRACKED, "threshold_lr": "quantile", "margin": 1.0}
_SONT_GRID = {"link": _LINKS, "gamma": (0.0, 0.1)}
_MIDAM_GRID = {"link": _LINKS, "dual_lr": (1.0, 0.1)}


def _sont(title: str, pooling: PoolingName) -> BagPreset:
    return BagPreset(title, pooling, MultiInstanceTPAUCLoss, _SONT, regional=True, grid=_SONT_GRID)


def _midam(title: str, pooling: PoolingName) -> BagPreset:
    options = {**_TRACKED, "dual_lr": 1.0, "margin": 1.0}
    return BagPreset(title, pooling, MIDAMLoss, options, proximal=2e-3, grid=_MIDAM_GRID)


BAG_METHODS: Mapping[str, BagPreset] = {
    "sont_mean": _sont("SONT (mean)", "mean"),
    "sont_smx": _sont("SONT (smoothed max)", "smoothed_max"),
    "sont_att": _sont("SONT (attention)", "attention"),
    "auc_m_att": BagPreset(
        "AUC-M (attention)",
        "attention",
        _pooled(AUCMinMaxLoss),
        {"link": "identity", "dual_lr": 1.0},
        proximal=2e-3,
        grid=_MIDAM_GRID,
    ),
    "midam_smx": _midam("MIDAM (smoothed max)", "smoothed_max"),
    "midam_att": _midam("MIDAM (attention)", "attention"),
    "sota_s_att": BagPreset(
        "SOTA-s (attention)",
        "attention",
        _pooled(SOTAsLoss),
        {"link": "identity"},
        grid={"link": _LINKS, "temperature_negatives": (1.0, 0.1), "temperature_positives": (1.0, 0.1)},
    ),
    "ce_att": BagPreset(
        "CE (attention)",
        "attention",
        _pooled(CrossEntropyLoss),
        grid={"positive_weight": (1.0, "balanced")},  # batches with as many positive as negative bags are balanced
    ),
}


def make_bag_criterion(
    name: str,
    labels: Tensor | Sequence[int],
    *,
    min_tpr: float,
    max_fpr: float,
    widen: float = 0.0,
    temperature: float = 0.1,
    **options: Any,
) -> Criterion:
    """Build the loss of a method over bags.

    Args:
        name: key of `BAG_METHODS`.
        labels: 0/1 labels of the bags of the training set.
        min_tpr: region, for the methods that know one.
        max_fpr: as `min_tpr`.
        widen: how far the region to train on is widened towards the whole square, in [0, 1], as for
            :func:`~moreauc.optim.presets.make_criterion`.
        temperature: that of the smoothed max.
        options: keyword arguments of the loss, which go before those of the preset.

    Example:
        >>> make_bag_criterion("sont_att", [0, 1, 0], min_tpr=0.5, max_fpr=0.5, gamma=0.1).gamma
        (0.1, 0.1, 0.1)
    """
    if name not in BAG_METHODS:
        raise ValueError(f"make_bag_criterion: name must be one of {list(BAG_METHODS)}, got {name!r}")
    preset = BAG_METHODS[name]
    region = widened("make_bag_criterion", min_tpr, max_fpr, widen) if preset.regional else {}
    chosen = {**preset.options, **options}
    try:
        return preset.build(labels, pooling=preset.pooling, temperature=temperature, **region, **chosen)
    except TypeError as error:
        raise ValueError(f"make_bag_criterion: options must be arguments of the loss of {name!r}: {error}") from error
