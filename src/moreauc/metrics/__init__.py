"""Scores of a ranking inside a region of the ROC curve, and of groups: what the worst of them get.

True positive rate high, false positive rate low:

- :func:`tpauc_score`, :func:`pauc_score`: fraction of correctly ordered pairs, the scale of the paper;
- :func:`tpauc_area_score`, :func:`pauc_standardized_score`: other scales in circulation;
- :func:`tpauc_scorer`: for scikit-learn's model selection; :class:`StreamingTPAUC`: batch by batch;
- :func:`tied_share`: how many rows of the region have the score of a row of the other class;
- :func:`bootstrap_interval`: how sure a score is; :func:`plot_roc_region`: what it looks at.

Groups:

- :func:`worst_group_loss`, :func:`top_k_group_loss`, :func:`mean_group_loss`, and the same for accuracy and AUC;
- :func:`group_values`: one number for each group; :func:`group_gap`: between the best and the worst of them;
- :func:`group_table`: all of it for every group; :func:`plot_groups`: the groups sorted by loss.
"""

from moreauc.metrics.bootstrap import BootstrapInterval, bootstrap_interval
from moreauc.metrics.group_plots import plot_groups
from moreauc.metrics.group_table import GroupTable, group_table
from moreauc.metrics.groups import (
    bottom_k_group_accuracy,
    bottom_k_group_auc,
    group_gap,
    group_values,
    mean_group_accuracy,
    mean_group_auc,
    mean_group_loss,
    top_k_group_loss,
    worst_group_accuracy,
    worst_group_auc,
    worst_group_loss,
)
from moreauc.metrics.plots import plot_roc_region
from moreauc.metrics.ranking import (
    pauc_score,
    pauc_standardized_score,
    tpauc_area_score,
    tpauc_score,
)
from moreauc.metrics.scorer import tpauc_scorer
from moreauc.metrics.streaming import StreamingTPAUC
from moreauc.metrics.ties import TiedScoresWarning, tied_share

__all__ = [
    "BootstrapInterval",
    "GroupTable",
    "StreamingTPAUC",
    "TiedScoresWarning",
    "bootstrap_interval",
    "bottom_k_group_accuracy",
    "bottom_k_group_auc",
    "group_gap",
    "group_table",
    "group_values",
    "mean_group_accuracy",
    "mean_group_auc",
    "mean_group_loss",
    "pauc_score",
    "pauc_standardized_score",
    "plot_groups",
    "plot_roc_region",
    "tied_share",
    "top_k_group_loss",
    "tpauc_area_score",
    "tpauc_score",
    "tpauc_scorer",
    "worst_group_accuracy",
    "worst_group_auc",
    "worst_group_loss",
]
