"""From samples to one score of groups: the one body of all functions of :mod:`moreauc.metrics.groups`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.exceptions import UndefinedMetricWarning

from moreauc._checks import check_count
from moreauc._group_input import Members, check_groups
from moreauc.metrics._group_values import (
    Values,
    auc_by_group,
    mean_of_worst,
    means_by_group,
    undefined,
)

_SHOWN = 5  # groups named in a warning


def score_groups(
    owner: str,
    by_group: Callable[..., Values],
    inputs: tuple[Any, ...],
    groups: Any,
    num_groups: Any,
    sample_weight: Any,
    top_k: Any,
) -> float:
    """Return the mean of the `top_k` worst groups, None for all of them.

    Called by the public functions and nobody else. Warnings are given here and no deeper, so that the line they name is
    that of the user, two calls up.

    Args:
        owner: the public function, for errors.
        by_group: gives the value of each group.
        inputs: what it takes of the samples.
        groups: ids or memberships, not yet checked.
        num_groups: number of groups, or None.
        sample_weight: weights, or None.
        top_k: how many of the worst groups, or None.
    """
    members = check_groups(owner, groups, num_groups)
    values = by_group(owner, *inputs, members, sample_weight)
    # Groups without samples are no news: they are left out of the other scores as well.
    left_out = np.flatnonzero(np.isnan(values) & (members.sizes() > 0))
    if by_group is auc_by_group and len(left_out):
        names = ", ".join(map(str, left_out[:_SHOWN])) + (", ..." if len(left_out) > _SHOWN else "")
        text = f"{owner}: groups with one class only are left out, {len(left_out)} of {len(values)}: {names}"
        warnings.warn(text, UndefinedMetricWarning, stacklevel=3)
    if not np.isnan(values).all():
        return mean_of_worst(owner, values, top_k, highest=by_group is loss_by_group)
    if top_k is not None:
        check_count(owner, "top_k", top_k)
    return undefined(owner, "no group has a value", 4)


def loss_by_group(owner: str, losses: Any, members: Members, sample_weight: Any) -> Values:
    """Return the mean loss of each group, NaN where a group has no samples or no weight."""
    return means_by_group(owner, "losses", losses, members, sample_weight)
