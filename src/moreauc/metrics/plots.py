"""ROC curves with the region of the partial AUC, and groups sorted by loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import roc_curve
from torch import Tensor

from moreauc._checks import check_count, check_real, check_region
from moreauc._system import printable, show_as_written
from moreauc.metrics.groups import GroupTable, Values, check_names
from moreauc.metrics.ranking import as_vector, selected_fraction, split_classes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROC = "plot_roc_region"
_GROUPS = "plot_groups"
_WORST, _OTHER, _LINE, _QUIET = "#d1495b", "#0b6e99", "#1c2430", "#66717f"
_NAMED = 40  # groups with a line of their own in a new figure
_LINE_HEIGHT = 0.2  # inches that a name takes
_LONGEST = 28  # letters of a name that are shown
_BRACKET = {"arrowstyle": "|-|, widthA=0.35, widthB=0.35", "color": _QUIET, "shrinkA": 0.0, "shrinkB": 0.0}
_ON_BRACKET: dict[str, Any] = {
    "color": _QUIET,
    "fontsize": 9,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1.5},
}


def plot_roc_region(
    y_true: ArrayLike,
    y_score: ArrayLike | Mapping[str, ArrayLike],
    *,
    min_tpr: float,
    max_fpr: float,
    ax: Axes | None = None,
) -> Axes:
    """Draw ROC curves and shade the region of :func:`~moreauc.metrics.tpauc_score`; the legend gives the scores.

    If `ax` is None, it makes a figure of `matplotlib.pyplot`, which the caller shows, saves and closes.

    Args:
        y_true: labels 0 and 1 (or bool), shape `(n,)`, with both classes present.
        y_score: finite scores, shape `(n,)`, or several such vectors by name, drawn in the mapping's order.
        min_tpr: lower edge of the true positive rate, in [0, 1).
        max_fpr: upper edge of the false positive rate, in (0, 1].
        ax: axes to draw into; None for new ones.

    Example:
        >>> ax = plot_roc_region([1, 1, 0, 0], {"model": [0.9, 0.4, 0.4, 0.1]}, min_tpr=0.5, max_fpr=0.5)
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['model: TPAUC 0.500', 'TPR >= 0.5, FPR <= 0.5']
        >>> import matplotlib.pyplot as plt; plt.close(ax.figure)
    """
    min_tpr, max_fpr = check_region(_ROC, min_tpr, max_fpr)
    named = y_score if isinstance(y_score, Mapping) else {"": y_score}
    if not named:
        raise ValueError(f"{_ROC}: y_score must hold at least one vector of scores, got an empty mapping")
    curves = []
    for name, scores in named.items():
        label = f"y_score[{name!r}]" if isinstance(y_score, Mapping) else "y_score"
        classes = split_classes(_ROC, y_true, scores, names=("y_true", label))
        positives, negatives = classes.positives, classes.negatives
        if not len(positives) or not len(negatives):
            raise ValueError(
                f"{_ROC}: y_true must hold both classes, got {len(positives)} positives, {len(negatives)} negatives"
            )
        labels = np.repeat([1, 0], [len(positives), len(negatives)])
        fpr, tpr, _ = roc_curve(labels, np.concatenate([positives, negatives]))
        score = selected_fraction(_ROC, classes, min_tpr, max_fpr)
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
    # explicit handles, since matplotlib leaves out names that begin with "_"
    show_as_written(axes.legend(handles=[*others, *own], loc="lower right").get_texts())
    return axes


class _Ranked(NamedTuple):
    """Losses in descending order, names in that order, how many stand out and why, and groups without a loss."""

    losses: Values
    names: list[str]
    marked: int
    reason: str
    absent: int


def plot_groups(
    table_or_losses: GroupTable | ArrayLike,
    *,
    names: Sequence[str] | None = None,
    threshold: float | Tensor | None = None,
    top_k: int | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw the groups sorted by loss, the worst first, with the gap between the worst and the best.

    If all names fit (40 in a new figure), every group has a line with its name; otherwise losses are drawn against
    their rank, and only the worst and the best group are named. The figure need not be closed.

    Args:
        table_or_losses: what :func:`~moreauc.metrics.group_table` returns for losses, or the loss of each group, shape
            `(num_groups,)`, such as the rows `u` of a :class:`~moreauc.GroupDROLoss`; groups with NaN are left out.
        names: of the groups, in the order of the losses; None for those of the table, or "group 0", "group 1" ...
        threshold: `s` of a :class:`~moreauc.GroupDROLoss`, drawn as a line; None for no line.
        top_k: how many of the worst groups are highlighted; None for those above the threshold, if given.
        ax: axes to draw into; None for a new figure.

    Example:
        >>> figure = plot_groups([0.2, 0.9, 0.4], names=["north", "south", "west"], threshold=0.6, top_k=1)
        >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
        ['south', 'west', 'north']
    """
    number = threshold.item() if isinstance(threshold, Tensor) and threshold.numel() == 1 else threshold
    limit = None if number is None else check_real(_GROUPS, "threshold", number)
    ranked = _rank(table_or_losses, names, limit, top_k)
    count = len(ranked.losses)
    if ax is None:
        from matplotlib.figure import Figure  # here, so that the metrics come without it

        named = count <= _NAMED
        figure = Figure(figsize=(7.2, 1.2 + _LINE_HEIGHT * (count + 1) if named else 4.2), layout="constrained")
        axes = figure.subplots()
    else:
        axes = ax
        figure = axes.figure.figure  # that of a figure in a figure
        height = axes.get_position().height * figure.get_figheight()
        named = (count + 1) * _LINE_HEIGHT <= height
    if named:
        _draw_lines(axes, ranked, limit)
    else:
        _draw_ranks(axes, ranked, limit)
    if ranked.marked or limit is not None:
        # Outside, where it cannot hide a group; to the left there is room above the names.
        columns = 3 if ax is None else 1
        axes.legend(
            loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=columns, frameon=False, fontsize=9, borderpad=0.1
        )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, axis="x" if named else "y")
    axes.set_axisbelow(True)
    return figure


def _draw_lines(axes: Axes, ranked: _Ranked, limit: float | None) -> None:
    """Draw a line for each group, the worst on top, and the gap below them."""
    losses, place = ranked.losses, np.arange(len(ranked.losses))
    for part, color, marker, label in _parts(ranked):
        axes.hlines(place[part], 0.0, losses[part], color=color, linewidth=2.0, alpha=0.45)
        axes.plot(losses[part], place[part], marker, color=color, markersize=6.5, label=label)
    if limit is not None:
        axes.axvline(limit, color=_LINE, linestyle="--", linewidth=1.2, label=_threshold(limit))
    axes.set_yticks(place, [_short(name) for name in ranked.names])
    show_as_written(axes.get_yticklabels())
    below = len(place) if losses[0] > losses[-1] else len(place) - 1
    axes.set_ylim(below + 0.6, -0.6)
    if losses[-1] >= 0.0 and (limit is None or limit >= 0.0):
        axes.set_xlim(left=0.0)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("mean loss" + _note(ranked))
    if below == len(place):
        axes.annotate("", (losses[-1], below), (losses[0], below), arrowprops=_BRACKET)
        middle = (losses[0] + losses[-1]) / 2.0
        axes.text(middle, below, _gap(ranked), ha="center", va="center", **_ON_BRACKET)


def _draw_ranks(axes: Axes, ranked: _Ranked, limit: float | None) -> None:
    """Draw the loss of each group over its rank, name the two ends, and draw the gap on the right."""
    from matplotlib.ticker import MaxNLocator

    losses, count = ranked.losses, len(ranked.losses)
    place = np.arange(1, count + 1)
    for part, color, marker, label in _parts(ranked):
        axes.plot(place[part], losses[part], marker, color=color, markersize=3.5, label=label)
    if limit is not None:
        axes.axhline(limit, color=_LINE, linestyle="--", linewidth=1.2, label=_threshold(limit))
    axes.set(xlabel="rank of the group" + _note(ranked), ylabel="mean loss", xlim=(1.0 - 0.02 * count, 1.07 * count))
    axes.set_xticks([tick for tick in MaxNLocator(integer=True).tick_values(1, count) if 1 <= tick <= count])
    axes.margins(y=0.17)  # for the names of the two
    # Losses fall, so that right and above of the first point and left and below of the last there is nothing.
    for end, offset, side in ((0, (7, 3), "left"), (-1, (4, -10), "right")):
        text = f"{_short(ranked.names[end])}: {losses[end]:.3g}"
        point = (place[end], losses[end])
        note = axes.annotate(text, point, offset, textcoords="offset points", ha=side, va="center", fontsize=9)
        show_as_written([note])
    if losses[0] > losses[-1]:
        right = 1.04 * count
        axes.annotate("", (right, losses[-1]), (right, losses[0]), arrowprops=_BRACKET)
        middle = (losses[0] + losses[-1]) / 2.0
        axes.text(right, middle, _gap(ranked), ha="center", va="center", rotation=90, **_ON_BRACKET)


def _parts(ranked: _Ranked) -> list[tuple[slice, str, str, str]]:
    count, marked = len(ranked.losses), ranked.marked
    parts = []
    if marked:
        mean = ranked.losses[:marked].mean()
        parts.append((slice(0, marked), _WORST, "D", f"{ranked.reason}, mean {mean:.3g}"))
    if marked < count:
        parts.append((slice(marked, count), _OTHER, "o", "other groups" if marked else "groups"))
    return parts


def _gap(ranked: _Ranked) -> str:
    return f"gap {ranked.losses[0] - ranked.losses[-1]:.3g}"


def _threshold(limit: float) -> str:
    return f"threshold s = {limit:.3g}"


def _note(ranked: _Ranked) -> str:
    return f" ({ranked.absent} without samples left out)" if ranked.absent else ""


def _short(name: str) -> str:
    name = printable(name)
    return name if len(name) <= _LONGEST else name[: _LONGEST - 3] + "..."


def _rank(source: Any, names: Sequence[str] | None, limit: float | None, top_k: float | None) -> _Ranked:
    if isinstance(source, GroupTable):
        if source.loss is None:
            raise ValueError(f"{_GROUPS}: table_or_losses must have losses, got a table without")
        losses = source.loss
        names = source.name if names is None else names
    else:
        losses = as_vector(_GROUPS, "table_or_losses", source).astype(np.float64)
    known = check_names(_GROUPS, names, len(losses))
    if np.isinf(losses).any():
        raise ValueError(f"{_GROUPS}: table_or_losses must hold finite losses, got {losses[np.isinf(losses)][0]}")
    order = np.argsort(-losses, kind="stable")[: np.count_nonzero(~np.isnan(losses))]
    if not len(order):
        raise ValueError(f"{_GROUPS}: table_or_losses must hold the loss of at least one group, got none")
    marked, reason = 0, ""
    if top_k is not None:
        marked = check_count(_GROUPS, "top_k", top_k)
        if marked > len(order):
            raise ValueError(f"{_GROUPS}: top_k must lie in [1, {len(order)}], got {top_k}")
        reason = "the worst group" if marked == 1 else f"the {marked} worst groups"
    elif limit is not None:
        marked = int(np.count_nonzero(losses[order] > limit))
        reason = f"{marked} above the threshold"
    return _Ranked(losses[order], [known[k] for k in order], marked, reason, len(losses) - len(order))
