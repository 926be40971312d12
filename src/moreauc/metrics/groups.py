"""Loss, accuracy and AUC of the worst group, of the K worst groups, and of the average group.

A group counts as one however many samples it has. `groups` are ids, shape `(n,)`, or memberships, shape
`(n, num_groups)`, where groups overlap. Groups without samples (or without weight) have no value, NaN, and are left
out of the worst, the K worst and the mean.

============  ===========================  ================================  ===============================
of groups     loss                         accuracy                          AUC
============  ===========================  ================================  ===============================
the worst     :func:`worst_group_loss`     :func:`worst_group_accuracy`      :func:`worst_group_auc`
the K worst   :func:`top_k_group_loss`     :func:`bottom_k_group_accuracy`   :func:`bottom_k_group_auc`
all, mean     :func:`mean_group_loss`      :func:`mean_group_accuracy`       :func:`mean_group_auc`
============  ===========================  ================================  ===============================
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from moreauc._group_input import check_groups
from moreauc.metrics._group_score import loss_by_group, score_groups
from moreauc.metrics._group_values import (
    Values,
    accuracy_by_group,
    auc_by_group,
    means_by_group,
    undefined,
)
from moreauc.metrics._inputs import as_vector


def group_values(
    values: ArrayLike, groups: ArrayLike, *, num_groups: int | None = None, sample_weight: ArrayLike | None = None
) -> Values:
    """Mean of a number of each sample, such as its loss, by group.

    Args:
        values: finite numbers, shape `(n,)`.
        groups: ids, shape `(n,)`, or memberships, shape `(n, num_groups)`.
        num_groups: number of groups; None for one more than the largest id, or the number of columns.
        sample_weight: weights of at least 0, shape `(n,)`; None for equal ones.

    Returns:
        The means, float64 of shape `(num_groups,)`; NaN for a group without samples or without weight.

    Raises:
        ValueError: values that are not finite, lengths that differ, ids that are not integers or out of range, negative
            weights.

    Example:
        >>> group_values([1.0, 3.0, 5.0], [0, 0, 2])
        array([ 2., nan, 5.])
        >>> group_values([1.0, 3.0, 5.0], [[True, False], [True, True], [False, True]])
        array([2., 4.])
    """
    members = check_groups("group_values", groups, num_groups)
    return means_by_group("group_values", "values", values, members, sample_weight)


def worst_group_loss(
    losses: ArrayLike, groups: ArrayLike, *, num_groups: int | None = None, sample_weight: ArrayLike | None = None
) -> float:
    """Largest mean loss of a group; arguments, NaN and errors as in :func:`top_k_group_loss`.

    Example:
        >>> worst_group_loss([1.0, 3.0, 5.0], [0, 0, 1])
        5.0
    """
    return score_groups("worst_group_loss", loss_by_group, (losses,), groups, num_groups, sample_weight, 1)


def top_k_group_loss(
    losses: ArrayLike,
    groups: ArrayLike,
    *,
    top_k: int,
    num_groups: int | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean of the `top_k` largest mean losses of groups, what :class:`~moreauc.GroupDROLoss` minimises.

    Args:
        losses: finite losses, shape `(n,)`.
        groups: ids, shape `(n,)`, or memberships, shape `(n, num_groups)`.
        top_k: integer from 1, the worst group, to the number of groups that have samples, the mean of them; a float is
            refused, also 2.0.
        num_groups: number of groups; None for one more than the largest id, or the number of columns.
        sample_weight: weights of at least 0 inside the groups, shape `(n,)`; None for equal ones.

    Returns:
        The mean; NaN, with an `UndefinedMetricWarning`, where no group has samples with weight.

    Raises:
        ValueError: as in :func:`group_values`; also `top_k` out of range.

    Example:
        >>> top_k_group_loss([1.0, 3.0, 5.0, 6.0], [0, 0, 1, 2], top_k=2)
        5.5
    """
    return score_groups("top_k_group_loss", loss_by_group, (losses,), groups, num_groups, sample_weight, top_k)


def mean_group_loss(
    losses: ArrayLike, groups: ArrayLike, *, num_groups: int | None = None, sample_weight: ArrayLike | None = None
) -> float:
    """Mean over the groups of their mean loss; arguments, NaN and errors as in :func:`top_k_group_loss`.

    Example:
        >>> mean_group_loss([1.0, 3.0, 5.0], [0, 0, 1])
        3.5
    """
    return score_groups("mean_group_loss", loss_by_group, (losses,), groups, num_groups, sample_weight, None)


def worst_group_accuracy(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    groups: ArrayLike,
    *,
    num_groups: int | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Smallest accuracy of a group; arguments, NaN and errors as in :func:`bottom_k_group_accuracy`.

    Example:
        >>> worst_group_accuracy(["a", "b", "b"], ["a", "a", "b"], [0, 0, 1])
        0.5
    """
    return score_groups(
        "worst_group_accuracy", accuracy_by_group, (y_true, y_pred), groups, num_groups, sample_weight, 1
    )


def bottom_k_group_accuracy(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    groups: ArrayLike,
    *,
    top_k: int,
    num_groups: int | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean of the `top_k` smallest accuracies of groups.

    Args:
        y_true: classes, numbers or strings, shape `(n,)`.
        y_pred: predicted classes, shape `(n,)`.
        groups: ids, shape `(n,)`, or memberships, shape `(n, num_groups)`.
        top_k: integer from 1 to the number of groups that have samples; the same K as in :func:`top_k_group_loss`.
        num_groups: number of groups; None for one more than the largest id, or the number of columns.
        sample_weight: weights of at least 0 inside the groups, shape `(n,)`; None for equal ones.

    Returns:
        The mean; NaN, with an `UndefinedMetricWarning`, where no group has samples with weight.

    Raises:
        ValueError: lengths that differ, numbers compared with strings, a missing class, weights and groups as in
            :func:`group_values`, `top_k` out of range.

    Example:
        >>> bottom_k_group_accuracy([0, 1, 1, 2], [0, 0, 1, 0], [0, 0, 1, 2], top_k=2)
        0.25
    """
    return score_groups(
        "bottom_k_group_accuracy", accuracy_by_group, (y_true, y_pred), groups, num_groups, sample_weight, top_k
    )


def mean_group_accuracy(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    groups: ArrayLike,
    *,
    num_groups: int | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean over the groups of their accuracy; arguments, NaN and errors as in :func:`bottom_k_group_accuracy`.

    Example:
        >>> mean_group_accuracy([0, 1, 1], [0, 0, 1], [0, 0, 1])
        0.75
    """
    return score_groups(
        "mean_group_accuracy", accuracy_by_group, (y_true, y_pred), groups, num_groups, sample_weight, None
    )


def worst_group_auc(
    y_true: ArrayLike,
    y_score: ArrayLike,
    groups: ArrayLike,
    *,
    num_groups: int | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Smallest AUC of a group; arguments, NaN and errors as in :func:`bottom_k_group_auc`.

    Example:
        >>> worst_group_auc([1, 0, 1, 0], [0.9, 0.1, 0.4, 0.4], [0, 0, 1, 1])
        0.5
    """
    return score_groups("worst_group_auc", auc_by_group, (y_true, y_score), groups, num_groups, sample_weight, 1)


def bottom_k_group_auc(
    y_true: ArrayLike,
    y_score: ArrayLike,
    groups: ArrayLike,
    *,
    top_k: int,
    num_groups: int | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean of the `top_k` smallest AUCs of groups.

    Groups with samples of one class only have no AUC: they are left out, with an `UndefinedMetricWarning` that names
    them.

    Args:
        y_true: labels 0 and 1 (or bool), shape `(n,)`.
        y_score: finite scores, higher for more likely positive, shape `(n,)`.
        groups: ids, shape `(n,)`, or memberships, shape `(n, num_groups)`.
        top_k: integer from 1 to the number of groups that have both classes.
        num_groups: number of groups; None for one more than the largest id, or the number of columns.
        sample_weight: weights of at least 0 inside the groups, shape `(n,)`; None for equal ones.

    Returns:
        The mean; NaN, with an `UndefinedMetricWarning`, where no group has both classes.

    Raises:
        ValueError: as in :func:`~moreauc.metrics.tpauc_score` and :func:`group_values`; also `top_k` out of range.

    Example:
        >>> bottom_k_group_auc([1, 0, 1, 0], [0.9, 0.1, 0.4, 0.4], [0, 0, 1, 1], top_k=2)
        0.75
    """
    return score_groups("bottom_k_group_auc", auc_by_group, (y_true, y_score), groups, num_groups, sample_weight, top_k)


def mean_group_auc(
    y_true: ArrayLike,
    y_score: ArrayLike,
    groups: ArrayLike,
    *,
    num_groups: int | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean over the groups of their AUC; arguments, NaN and errors as in :func:`bottom_k_group_auc`.

    Example:
        >>> mean_group_auc([1, 0, 1, 0], [0.9, 0.1, 0.4, 0.4], [0, 0, 1, 1])
        0.75
    """
    return score_groups("mean_group_auc", auc_by_group, (y_true, y_score), groups, num_groups, sample_weight, None)


def group_gap(values: ArrayLike) -> float:
    """Best minus worst of values by group, or worst minus best where small is good.

    Args:
        values: one for each group, shape `(num_groups,)`; NaN where a group has none.

    Returns:
        The gap, at least 0; NaN, with an `UndefinedMetricWarning`, where no group has a value.

    Raises:
        ValueError: values of another shape, or infinite ones.

    Example:
        >>> group_gap([0.5, np.nan, 0.75])
        0.25
    """
    array = as_vector("group_gap", "values", values).astype(np.float64)
    if np.isinf(array).any():
        raise ValueError(f"group_gap: values must be finite or NaN, got {array[np.isinf(array)][0]}")
    defined = array[~np.isnan(array)]
    return float(np.ptp(defined)) if len(defined) else undefined("group_gap", "no group has a value", 3)
