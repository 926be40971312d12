r"""The whole AUC as a min-max problem without pairs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from moreauc.core.surrogates import Link
from moreauc.core.tables import Table
from moreauc.criteria._base import Step, number_attribute
from moreauc.criteria._batches import Rows
from moreauc.criteria._labelled import Batch, PairCriterion


class AUCMinMaxLoss(PairCriterion):
    r"""Min-max margin loss of the AUC (AUC-M).

    .. math::

        \min_{w,a,b} \max_{\theta \ge 0}\; p (1 - p) \Big( \bar E_+[(h - a)^2] + \bar E_-[(h - b)^2]
            + 2 \theta (m + \bar E_-[h] - \bar E_+[h]) - \theta^2 \Big)

    with :math:`p` the share of positives in the training set and :math:`\bar E_\pm` the mean over a class; in a batch,
    over its rows of that class, which is unbiased for any class ratio of the batch. The published form, :math:`(1 - p)
    E[(h - a)^2 1_+] + p E[(h - b)^2 1_-] + 2 \theta (p (1 - p) m + E[p h 1_- - (1 - p) h 1_+])
    - p (1 - p) \theta^2`, is the same for batches drawn in proportion. The factor :math:`p (1 - p)` scales all
    gradients: with rare positives larger step sizes are needed.

    At the best :math:`a = \bar E_+[h]`, :math:`b = \bar E_-[h]`, :math:`\theta = (m + b - a)_+` it is
    :math:`p (1 - p)` times the variances of both classes plus :math:`(m + b - a)_+^2`.

    In training mode a call takes value and gradient at the current :math:`a, b, \theta`, then moves these, by descent
    in :math:`a` and :math:`b` and projected ascent in :math:`\theta`. PESG, the published algorithm, also pulls the
    weights to a reference point: add :class:`~moreauc.optim.ProximalPoint` to the optimizer. It pulls :math:`a` and
    :math:`b`, too; this loss does not, since the objective is already strongly convex in both.

    Args:
        margin: :math:`m`, at least 0.
        link: "sigmoid" or "identity". Not "standardized": this loss penalises the spread within the classes.
        dual_lr: step size of :math:`a, b, \theta`, at least 0. A plain attribute: a schedule may change it.

    Attributes:
        a, b: track the means of the positives and of the negatives, 0-d tensors; they start at 0.
        theta: dual variable, at least 0, likewise.

    Example:
        >>> criterion = AUCMinMaxLoss(torch.tensor([0, 1]), link="identity", dual_lr=1.0)
        >>> criterion(torch.tensor([1.0, 3.0]), torch.tensor([0, 1]), torch.arange(2)).item()
        2.5
        >>> criterion.a.item(), criterion.b.item(), criterion.theta.item()
        (1.5, 0.5, 0.0)

    Reference:
        Yuan, Yan, Sonka and Yang, Large-scale Robust Deep AUC Maximization: A New Surrogate Loss and Empirical Studies
        on Medical Image Classification, ICCV 2021, arXiv:2012.03173.
    """

    dual_lr = number_attribute("dual_lr", "Step size of the three variables, at least 0.")

    def __init__(
        self, labels: Tensor | Sequence[int], *, margin: float = 1.0, link: Link = "sigmoid", dual_lr: float = 0.1
    ) -> None:
        super().__init__(labels, "squared", margin, link)
        if link == "standardized":
            raise ValueError(
                f"{self._owner}: link must be 'sigmoid' or 'identity' for a loss that holds the spread of the scores, "
                f"got {link!r}"
            )
        self.dual_lr = dual_lr
        self.positive_rate = self.num_positives / len(self.position)
        self.duals = Table(self._owner, 3, initial=0.0)  # a, b, theta

    @property
    def a(self) -> Tensor:
        """Running estimate of the mean score of the positives, shape `()`."""
        return self.duals.values[0]

    @property
    def b(self) -> Tensor:
        """Running estimate of the mean score of the negatives, shape `()`."""
        return self.duals.values[1]

    @property
    def theta(self) -> Tensor:
        """The dual variable, shape `()`."""
        return self.duals.values[2]

    def _step(self, batch: Batch) -> Step:
        return self._min_max(batch.rows, batch.scores)

    def _min_max(self, rows: Rows, scores: Tensor) -> Step:
        """Compute one iteration of the objective in the scores of rows, or of bags."""
        h, width = self._linked(scores, rows)
        positive, negative = rows.split(h)
        held = self.duals.read_all(fill=h)  # nothing needs to be filled
        a, b, theta = held.unbind()
        scale = self.positive_rate * (1.0 - self.positive_rate)
        upper, lower = rows.mean(positive), rows.mean_of_rest(negative)
        gap = self.surrogate.margin + lower - upper
        spread = rows.mean((positive - a).square()) + rows.mean_of_rest((negative - b).square())
        value = scale * (spread + 2.0 * theta * gap - theta.square())
        of_upper = rows.share(2.0 * scale * (positive - a - theta))
        of_lower = 2.0 * scale * (negative - b + theta) / rows.negatives
        if rows.left_out is not None:
            of_lower = of_lower.masked_fill(rows.left_out, 0.0)
        gradient = self._before_link(rows.join((of_upper, of_lower), h.dtype), h, width)
        if not self.training:
            return Step(value, scores, gradient, finite={"the loss": value})
        slope = torch.stack([a - upper, b - lower, theta - gap])
        new = held - self.dual_lr * 2.0 * scale * slope
        new = torch.cat([new[:2], new[2:].clamp_min(0.0)])

        def write(bad: Tensor | None) -> None:
            self.duals.write_all(new, bad)

        finite = {"the loss": value, "the updated a, b, theta": new}
        return Step(value, scores, gradient, finite=finite, write=write)
