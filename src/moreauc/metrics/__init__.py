"""Scores of a ranking inside a region of the ROC curve, and scores of the worst groups.

Names are loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moreauc.metrics.adapters import StreamingTPAUC, tpauc_scorer
    from moreauc.metrics.bootstrap import bootstrap_interval
    from moreauc.metrics.groups import group_accuracy, group_auc, group_loss, group_table
    from moreauc.metrics.plots import plot_groups, plot_roc_region
    from moreauc.metrics.ranking import TiedScoresWarning, tpauc_area_score, tpauc_score
    from moreauc.metrics.screening import bedroc_score, enrichment_factor

__all__ = [
    "StreamingTPAUC",
    "TiedScoresWarning",
    "bedroc_score",
    "bootstrap_interval",
    "enrichment_factor",
    "group_accuracy",
    "group_auc",
    "group_loss",
    "group_table",
    "plot_groups",
    "plot_roc_region",
    "tpauc_area_score",
    "tpauc_score",
    "tpauc_scorer",
]

_HOMES = {
    **dict.fromkeys(("StreamingTPAUC", "tpauc_scorer"), "adapters"),
    **dict.fromkeys(("TiedScoresWarning", "tpauc_area_score", "tpauc_score"), "ranking"),
    **dict.fromkeys(("bedroc_score", "enrichment_factor"), "screening"),
    **dict.fromkeys(("group_accuracy", "group_auc", "group_loss", "group_table"), "groups"),
    **dict.fromkeys(("plot_groups", "plot_roc_region"), "plots"),
    "bootstrap_interval": "bootstrap",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"moreauc.metrics.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
