"""What the methods over groups choose their epoch by: an estimate, from the held-out rows, of what each minimises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True)
class EpochChoice:
    """The loss of the held-out rows that an epoch is chosen by; the lowest is kept.

    Attributes:
        top_k: how many of the worst groups count; None for a mean over rows.
        balanced: whether that mean gives all groups the same weight.
        fraction: share of the rows in that mean, those with the largest losses, in (0, 1].

    Example:
        >>> losses, groups = np.array([0.0, 1.0, 1.0, 2.0, 6.0, 8.0]), np.array([0, 0, 1, 1, 2, 2])
        >>> EpochChoice()(losses, groups), EpochChoice(fraction=0.5)(losses, groups)
        (3.0, 5.333...)
        >>> round(EpochChoice(top_k=1)(losses, groups), 2)  # less than 7: the group has two rows only
        6.84
    """

    top_k: int | None = None
    balanced: bool = False
    fraction: float = 1.0

    def __call__(self, losses: Floats, groups: Codes) -> float:
        """Return the loss, from the losses of the rows and the numbers of their groups, both of shape `(n,)`."""
        losses = losses.astype(np.float64)
        if self.top_k is not None:
            return float(np.sort(shrunk_group_losses(losses, groups))[-self.top_k :].mean())
        weights = 1.0 / np.bincount(groups)[groups] if self.balanced else np.ones(len(losses))
        order = np.argsort(-losses, kind="stable")
        mass = weights[order]
        taken = np.clip(self.fraction * mass.sum() - (np.cumsum(mass) - mass), 0.0, mass)  # the last in part
        return float((taken * losses[order]).sum() / taken.sum())

    @property
    def text(self) -> str:
        """Name of the loss, for people."""
        if self.top_k is not None:
            return "loss of the worst group" if self.top_k == 1 else f"loss of the {self.top_k} worst groups"
        weights = ", with equal weights of the groups" if self.balanced else ""
        which = "all rows" if self.fraction == 1.0 else f"the worst {self.fraction:.0%} of the rows"
        return f"mean loss of {which}{weights}"


def epoch_choice(method: str, criterion: Any, *, top_k: int, balanced: bool) -> EpochChoice:
    """Return what a method chooses its epoch by: what it minimises.

    Args:
        method: key of `GROUP_METHODS`.
        criterion: its loss over groups, which knows the share of the rows that "cvar" takes.
        top_k: how many of the worst groups "sonx" is after; "exponentiated" is after one.
        balanced: whether its batches hold as many rows of each group.
    """
    if method in ("sonx", "exponentiated"):
        return EpochChoice(top_k=top_k if method == "sonx" else 1)
    fraction = float(criterion.fraction) if method == "cvar" else 1.0
    return EpochChoice(balanced=balanced or method == "erm_reweighted", fraction=fraction)


def shrunk_group_losses(losses: Floats, groups: Codes) -> Floats:
    r"""Return the mean loss of each group that has rows, drawn towards that of all rows as far as it is uncertain.

    The largest of several noisy means overestimates the worst group: a network that has learnt nothing has the same
    loss in all groups and looks better than one that has learnt, though no group does worse with the latter. So the
    mean :math:`\bar\ell_k` of :math:`n_k` rows becomes

    .. math:: \bar\ell + \frac{T}{T + S / n_k} (\bar\ell_k - \bar\ell)

    with the variances :math:`S` of rows inside groups and :math:`T` between groups, estimated by the analysis of
    variance (random effects). Means of many rows stay as they are; where the groups differ by no more than chance, all
    become :math:`\bar\ell`. Where no group has two rows nothing is known of :math:`S`, and it is :math:`\bar\ell`, too.

    Example:
        >>> shrunk_group_losses(np.array([0.0, 2.0, 1.0, 3.0]), np.array([0, 0, 1, 1]))  # no more than chance
        array([1.5, 1.5])
        >>> shrunk_group_losses(np.array([0.0, 2.0, 10.0, 12.0]), np.array([0, 0, 1, 1]))
        array([ 1.1, 10.9])
    """
    sizes = np.bincount(groups)
    place = (np.cumsum(sizes > 0) - 1)[groups]  # groups without rows are left out
    sizes = sizes[sizes > 0]
    means: Floats = np.bincount(place, weights=losses) / sizes
    rows, count, center = len(losses), len(sizes), losses.mean()
    if count == 1:
        return means
    if rows == count:
        return np.full(count, center)
    inside = ((losses - means[place]) ** 2).sum() / (rows - count)
    between = (sizes * (means - center) ** 2).sum() - (count - 1) * inside
    between /= rows - (sizes**2).sum() / rows
    if not between > 0.0:
        return np.full(count, center)
    shrunk: Floats = center + between / (between + inside / sizes) * (means - center)
    return shrunk
