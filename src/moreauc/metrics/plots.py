"""ROC curves with the region that the partial AUC looks at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import roc_curve

from moreauc._printable import printable, show_as_written
from moreauc.metrics._inputs import check_region, split_classes
from moreauc.metrics.ranking import selected_fraction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OWNER = "plot_roc_region"


def plot_roc_region(
    y_true: ArrayLike,
    y_score: ArrayLike | Mapping[str, ArrayLike],
    *,
    min_tpr: float,
    max_fpr: float,
    ax: Axes | None = None,
) -> Axes:
    """Draw ROC curves and shade the region of :func:`~moreauc.metrics.tpauc_score`; the legend gives the scores.

    No window is opened and no backend is chosen. Where `ax` is None, a figure of `matplotlib.pyplot` is made, which
    the caller shows, saves (`ax.figure.savefig`) and closes.

    Args:
        y_true: labels 0 and 1 (or bool), shape `(n,)`, with both classes present.
        y_score: finite scores, shape `(n,)`, or several such vectors by name, drawn in the mapping's order.
        min_tpr: lower edge of the true positive rate, in [0, 1).
        max_fpr: upper edge of the false positive rate, in (0, 1].
        ax: axes to draw into; None for new ones.

    Returns:
        The axes drawn into.

    Raises:
        ValueError: as in :func:`~moreauc.metrics.tpauc_score`; also one class only, or an empty mapping. Nothing is
            drawn then.

    Example:
        >>> ax = plot_roc_region([1, 1, 0, 0], {"model": [0.9, 0.4, 0.4, 0.1]}, min_tpr=0.5, max_fpr=0.5)
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['model: TPAUC 0.500', 'TPR >= 0.5, FPR <= 0.5']
        >>> import matplotlib.pyplot as plt; plt.close(ax.figure)
    """
    min_tpr, max_fpr = check_region(_OWNER, min_tpr, max_fpr)
    named = y_score if isinstance(y_score, Mapping) else {"": y_score}
    if not named:
        raise ValueError(f"{_OWNER}: y_score must hold at least one vector of scores, got an empty mapping")
    curves = []
    for name, scores in named.items():
        label = f"y_score[{name!r}]" if isinstance(y_score, Mapping) else "y_score"
        classes = split_classes(_OWNER, y_true, scores, names=("y_true", label))
        positives, negatives = classes.positives, classes.negatives
        if not len(positives) or not len(negatives):
            raise ValueError(
                f"{_OWNER}: y_true must hold both classes, got {len(positives)} positives, {len(negatives)} negatives"
            )
        labels = np.repeat([1, 0], [len(positives), len(negatives)])
        fpr, tpr, _ = roc_curve(labels, np.concatenate([positives, negatives]))
        score = selected_fraction(_OWNER, classes, min_tpr, max_fpr)
        curves.append((fpr, tpr, f"{printable(str(name))}: TPAUC {score:.3f}" if name else f"TPAUC {score:.3f}"))
    import matplotlib.pyplot as plt  # here, so that the metrics come without it
    from matplotlib.patches import Rectangle

    axes: Axes = plt.subplots(figsize=(4.8, 4.8), layout="constrained")[1] if ax is None else ax
    others = axes.get_legend_handles_labels()[0]
    own: list[Any] = [line for fpr, tpr, text in curves for line in axes.plot(fpr, tpr, label=text)]
    region = f"TPR >= {min_tpr:g}, FPR <= {max_fpr:g}"
    area = Rectangle((0.0, min_tpr), max_fpr, 1.0 - min_tpr, color="0.5", alpha=0.2, lw=0, label=region)
    own.append(axes.add_patch(area))
    axes.plot([0, 1], [0, 1], color="0.6", linestyle=":", linewidth=1)  # chance
    axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    axes.set_aspect("equal")
    # Given by hand, or names that begin with "_" would be left out.
    show_as_written(axes.legend(handles=[*others, *own], loc="lower right").get_texts())
    return axes
