r"""Two-way partial AUC as a min-max problem, by stochastic primal-dual steps on blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from moreauc._checks import check_region
from moreauc.core.outer import cvar
from moreauc.core.pairs import Pairs, cvar_and_vjp
from moreauc.core.surrogates import Link
from moreauc.core.tables import Table
from moreauc.criteria._base import Step, number_attribute
from moreauc.criteria._labelled import Batch, PairCriterion
from moreauc.criteria._validation import check_pair


class STACOLoss(PairCriterion):
    r"""Two-way partial AUC with a dual variable for each positive (STACO).

    .. math::

        \min_{w, s, s'} \max_{y \in [0, 1]^{n_+}} s' + \frac1{n_+} \sum_{i \in S_+} \frac{y_i}\alpha
            (\psi_i(w, s_i) - s')

    is the problem of :class:`~moreauc.TPAUCLoss`, :math:`\psi_i`, :math:`\alpha` and :math:`\beta` being the same,
    since :math:`(x)_+` is the maximum of :math:`y x`. In training mode a call with positives :math:`B_1` and negatives
    :math:`B_2` is one iteration:

    .. math::

        y_{i,t+1} &= \arg\max_{y \in [0, 1]} \frac y\alpha (\psi_i(w_t, s_{i,t}; B_2) - s'_t)
            - \frac1{2 \eta_y} (y - y_{i,t})^2 \\
        s_{i,t+1} &= s_{i,t} - \eta_s \frac{y_{i,t+1}}\alpha \partial_s \psi_i(w_t, s_{i,t}; B_2) \\
        s'_{t+1} &= s'_t - \eta_{s'} \Big(1 - \frac1{\alpha B_1} \sum_{i \in B_1} y_{i,t+1}\Big) \\
        G_t &= \frac1{B_1} \sum_{i \in B_1} \frac{y_{i,t+1}}\alpha \partial_w \psi_i(w_t, s_{i,t}; B_2)

    The value returned is the objective at :math:`y_{t+1}` and the thresholds before the step, averaged over the batch.
    No inner value is averaged: instead of a row :math:`u_i` it is :math:`y_i`, between 0 and 1, that remembers whether
    a positive is in the region. In `eval()` mode a call returns what :class:`~moreauc.TPAUCLoss` does,
    :math:`f(\psi_i(w, s_i), s')` averaged over the batch at the current thresholds, and changes nothing.

    One batch of negatives serves all lines, and :math:`s` and :math:`s'` start at 0, as in the authors' textbook
    (Algorithm 31) and in their code; the documentation of that code has two batches, and 1. For models that are not
    convex the paper adds a proximal centre that moves now and then: add :class:`~moreauc.optim.ProximalPoint` to the
    optimizer.

    Args:
        dual_lr: :math:`\eta_y`, at least 0. A plain attribute, as `threshold_lr`: schedules may change them.
        threshold_lr: :math:`\eta_s` and :math:`\eta_{s'}`, at least 0, or one number for both. :math:`\eta_s` is not
            divided by :math:`B_1`, as in :class:`~moreauc.TPAUCLoss` it is.

    Attributes:
        y: dual variables of the positives in order of appearance in `labels`; they start at 1.
        s, s_prime: thresholds, as those of :class:`~moreauc.TPAUCLoss`.

    Example:
        >>> import torch
        >>> criterion = STACOLoss([0, 1, 0, 1], min_tpr=0.5, max_fpr=0.5, link="identity")
        >>> scores = torch.tensor([0.5, 0.0], requires_grad=True)
        >>> loss = criterion(scores, torch.tensor([0, 1]), torch.tensor([2, 3]))
        >>> loss.backward()
        >>> loss.item(), scores.grad, criterion.y
        (9.0, tensor([ 12., -12.]), tensor([1., 1.]))

    Reference:
        Zhou, Wang, Thai and Yang, Stochastic Primal-Dual Double Block-Coordinate for Two-way Partial AUC Maximization,
        2025, arXiv:2505.21944.
    """

    _UNDESCRIBED: ClassVar[tuple[str, ...]] = ("_rate_s", "_rate_prime")  # these are `threshold_lr`
    dual_lr = number_attribute("dual_lr", "Step size of the dual variables, at least 0.")

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        min_tpr: float,
        max_fpr: float,
        surrogate: str = "squared_hinge",
        margin: float | None = None,
        link: Link = "sigmoid",
        dual_lr: float = 0.1,
        threshold_lr: float | tuple[float, float] = 0.1,
    ) -> None:
        super().__init__(labels, surrogate, margin, link)
        owner = self._owner
        self.min_tpr, self.max_fpr = check_region(owner, min_tpr, max_fpr)
        self.dual_lr, self.threshold_lr = dual_lr, threshold_lr
        self.duals = Table(owner, self.num_positives, initial=1.0)
        self.thresholds = Table(owner, self.num_positives, initial=0.0)
        self.threshold_prime = Table(owner, 1, initial=0.0)

    @property
    def y(self) -> Tensor:
        """Dual variables of the positives, shape `(num_positives,)`, in [0, 1]."""
        return self.duals.values

    @property
    def s(self) -> Tensor:
        """Thresholds of the positives, shape `(num_positives,)`."""
        return self.thresholds.values

    @property
    def s_prime(self) -> Tensor:
        """Threshold over the positives, shape `()`."""
        return self.threshold_prime.number

    @property
    def threshold_lr(self) -> tuple[float, float]:
        r"""Step sizes :math:`(\eta_s, \eta_{s'})` of the thresholds; one number sets both."""
        return self._rate_s, self._rate_prime

    @threshold_lr.setter
    def threshold_lr(self, value: float | tuple[float, float]) -> None:
        self._rate_s, self._rate_prime = check_pair(self._owner, "threshold_lr", value)

    def _step(self, batch: Batch) -> Step:
        rows, alpha = batch.rows, 1.0 - self.min_tpr
        h, scale = self._linked(batch.scores, rows)
        s = self.thresholds.read(rows.among, fill=h)  # no row needs to be filled
        positive, negative = rows.split(h.to(s.dtype))
        pairs = Pairs(positive, negative, self.max_fpr * rows.negatives, rows.left_out)
        psi, slope, vjp = cvar_and_vjp(pairs, s, self.surrogate)
        prime = self.threshold_prime.number
        if self.training:
            held = self.duals.read(rows.among, fill=psi)
            y = (held + self.dual_lr / alpha * (psi - prime)).clamp(0.0, 1.0)
            weight = y / alpha
            value = prime + rows.mean(weight * (psi - prime))
        else:
            value, weight = cvar(psi, prime, alpha, rows.mean)
        gradient = self._before_link(rows.join(vjp(rows.share(weight)), h.dtype), h, scale)
        if not self.training:
            return Step(value, batch.scores, gradient, finite={"the loss": value})
        moved = s - self._rate_s * slope() * weight
        moved_prime = prime - self._rate_prime * (1.0 - rows.mean(weight))

        def write(bad: Tensor | None) -> None:
            self.duals.write(rows.among, held, y, bad)
            self.thresholds.write(rows.among, s, moved, bad)
            self.threshold_prime.write_all(moved_prime.view(1), bad)

        finite = {"the loss": value, "the updated dual variable": y, "the updated threshold": moved}
        finite["the updated threshold over the positives"] = moved_prime
        return Step(value, batch.scores, gradient, finite=finite, write=write)
