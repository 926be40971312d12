r"""Two-way partial AUC smoothed by entropies at both levels, with moving averages in the log domain."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from moreauc._checks import check_real
from moreauc.core.pairs import Pairs, log_mean_exp_and_vjp
from moreauc.core.surrogates import Link
from moreauc.core.tables import Table
from moreauc.criteria._base import Step, number_attribute
from moreauc.criteria._labelled import Batch, PairCriterion


class SOTAsLoss(PairCriterion):
    r"""KL-smoothed two-way partial AUC (SOTA-s).

    .. math::

        F(w) = \lambda' \log \frac1{n_+} \sum_{i \in S_+} g_i(w)^{\lambda / \lambda'}, \qquad
        g_i(w) = \frac1{n_-} \sum_{j \in S_-} e^{\ell(h_j - h_i) / \lambda}

    with :math:`\lambda` = `temperature_negatives` and :math:`\lambda'` = `temperature_positives`. A soft maximum over
    negatives inside one over positives: small temperatures give the worst pair, large ones the mean of all pairs.
    They play the role of the region, but no formula relates the two.

    In training mode a call with positives :math:`B_1` and negatives :math:`B_2` is one iteration:

    .. math::

        u_{i,t} &= (1 - \tau_1) u_{i,t-1} + \tau_1 g_i(w_t; B_2) \\
        v_t &= (1 - \tau_2) v_{t-1} + \tau_2 \frac1{B_1} \sum_{i \in B_1} u_{i,t}^{\lambda / \lambda'} \\
        G_t &= \frac1{B_1 B_2} \sum_{i \in B_1} \sum_{j \in B_2}
            \frac{u_{i,t}^{\lambda / \lambda' - 1} e^{\ell(h_j - h_i) / \lambda}}{v_t} \nabla \ell(h_j - h_i)

    Rows and :math:`v` start at their first observed value. The value returned is :math:`\lambda' \log v_t`. In `eval()`
    mode a call returns :math:`F` of the batch and changes nothing.

    The gradient uses both averages **after** their update, unlike :class:`~moreauc.TPAUCLoss` (SONX), which takes the
    row before. LibAUC, its authors' library, documents :math:`u_{i,t-1}` in the last two lines, but its code uses
    :math:`u_{i,t}`, and so does this loss: then the weights of the pairs of a batch add up to at most :math:`1 /
    (\tau_1 \tau_2)` for any scores. All computations use logarithms, so that nothing overflows unless the pair losses
    do. In LibAUC exponentials overflow, and rows start at 0 instead of the first observed value.

    Args:
        temperature_negatives: :math:`\lambda`, above 0.
        temperature_positives: :math:`\lambda'`, above 0.
        tau1: averaging weight of the rows in (0, 1]. Both are plain attributes: a schedule may change them.
        tau2: averaging weight of the outer mean in (0, 1].

    Attributes:
        log_u: logarithms of the rows, one for each positive in order of appearance in `labels`; 0 where not visited.
        log_v: logarithm of the outer average, a 0-d tensor; 0 before the first call.

    Example:
        >>> criterion = SOTAsLoss(torch.tensor([0, 1]), temperature_negatives=0.5, link="identity")
        >>> scores = torch.tensor([1.0, 0.0], requires_grad=True)
        >>> loss = criterion(scores, torch.tensor([0, 1]), torch.arange(2))
        >>> loss.backward()
        >>> loss.item(), scores.grad, criterion.log_u
        (4.0, tensor([ 4., -4.]), tensor([8.]))

    Reference:
        Zhu, Li, Wang, Wu and Yang, When AUC meets DRO: Optimizing Partial AUC for Deep Learning with Non-Convex
        Convergence Guarantee, ICML 2022, arXiv:2203.00176.
    """

    tau1 = number_attribute("tau1", "Averaging weight of the rows in (0, 1].", high=1.0, low_open=True)
    tau2 = number_attribute("tau2", "Averaging weight of the outer mean in (0, 1].", high=1.0, low_open=True)

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        temperature_negatives: float = 1.0,
        temperature_positives: float = 1.0,
        tau1: float = 0.9,
        tau2: float = 0.9,
        surrogate: str = "squared_hinge",
        margin: float | None = None,
        link: Link = "sigmoid",
    ) -> None:
        super().__init__(labels, surrogate, margin, link)
        owner = self._owner
        inner = check_real(owner, "temperature_negatives", temperature_negatives, low=0.0, low_open=True)
        outer = check_real(owner, "temperature_positives", temperature_positives, low=0.0, low_open=True)
        self.temperature_negatives, self.temperature_positives = inner, outer
        self.tau1, self.tau2 = tau1, tau2
        self.table_u, self.table_v = Table(owner, self.num_positives), Table(owner, 1)  # of logarithms

    @property
    def log_u(self) -> Tensor:
        """Logarithms of the rows, shape `(num_positives,)`."""
        return self.table_u.values

    @property
    def log_v(self) -> Tensor:
        """Logarithm of the outer average, shape `()`."""
        return self.table_v.values.view(())

    def _step(self, batch: Batch) -> Step:
        rows = batch.rows
        h, scale = self._linked(batch.scores, rows)
        ratio = self.temperature_negatives / self.temperature_positives
        pairs = Pairs(*rows.split(h), rows.negatives, rows.left_out)
        log_g, vjp = log_mean_exp_and_vjp(pairs, self.surrogate, self.temperature_negatives)
        row = u = log_g
        if self.training:
            row = self.table_u.read(rows.among, fill=log_g)
            u = _average(row, log_g.to(row.dtype), self.tau1)
        mean = self._log_mean(batch, ratio * u).view(1)
        held = v = mean
        if self.training:
            held = self.table_v.read_all(fill=mean)
            v = _average(held, mean.to(held.dtype), self.tau2)
        # d F = lambda mean_i [u_i^(ratio - 1) g_i / v] d log g_i
        weight = self.temperature_negatives * torch.exp(log_g - u + (ratio * u - v)).to(h.dtype)
        gradient = self._before_link(rows.join(vjp(rows.share(weight)), h.dtype), h, scale)
        value = self.temperature_positives * v.view(())

        def write(bad: Tensor | None) -> None:
            if self.training:
                self.table_u.write(rows.among, row, u, bad)
                self.table_v.write_all(v, bad)

        finite = {"the loss": value, "the updated row": u}
        return Step(value, batch.scores, gradient, finite=finite, write=write)

    def _log_mean(self, batch: Batch, logs: Tensor) -> Tensor:
        """Return the logarithm of the mean over the positives of numbers whose logarithms are given; shape `()`."""
        count = batch.rows.positives
        if isinstance(count, Tensor):
            return (logs.masked_fill(~batch.rows.positive, -torch.inf).logsumexp(0) - count.log()).to(logs.dtype)
        return logs.logsumexp(0) - math.log(count)


def _average(log_row: Tensor, log_now: Tensor, tau: float) -> Tensor:
    """Return the logarithm of (1 - tau) row + tau now."""
    if tau == 1.0:
        return log_now
    return torch.logaddexp(log_row + math.log1p(-tau), log_now + math.log(tau))
