"""Scores of a ranking inside a region of the ROC curve: true positive rate high, false positive rate low.

- :func:`tpauc_score`, :func:`pauc_score`: fraction of correctly ordered pairs, the scale of the paper;
- :func:`tpauc_area_score`, :func:`pauc_standardized_score`: other scales in circulation;
- :func:`tpauc_scorer`: for scikit-learn's model selection; :class:`StreamingTPAUC`: batch by batch;
- :func:`bootstrap_interval`: how sure a score is; :func:`plot_roc_region`: what it looks at.
"""

from moreauc.metrics.bootstrap import BootstrapInterval, bootstrap_interval
from moreauc.metrics.plots import plot_roc_region
from moreauc.metrics.ranking import (
    pauc_score,
    pauc_standardized_score,
    tpauc_area_score,
    tpauc_score,
    tpauc_scorer,
)
from moreauc.metrics.streaming import StreamingTPAUC

__all__ = [
    "BootstrapInterval",
    "StreamingTPAUC",
    "bootstrap_interval",
    "pauc_score",
    "pauc_standardized_score",
    "plot_roc_region",
    "tpauc_area_score",
    "tpauc_score",
    "tpauc_scorer",
]
