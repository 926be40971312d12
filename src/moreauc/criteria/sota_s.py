r"""Two-way partial AUC smoothed by entropies at both levels, with moving averages in the log domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from moreauc._checks import check_finite, check_real
from moreauc.core.rules import UpdateRule
from moreauc.core.tables import EstimatorTable
from moreauc.criteria._base import straight_through
from moreauc.criteria._labelled import Link, PairCriterion, by_rows


class SOTAsLoss(PairCriterion):
    r"""KL-smoothed two-way partial AUC (SOTA-s).

    .. math::

        F(w) = \lambda' \log \frac1{n_+} \sum_{i \in S_+} g_i(w)^{\lambda / \lambda'}, \qquad
        g_i(w) = \frac1{n_-} \sum_{j \in S_-} e^{\ell(h_j - h_i) / \lambda}

    with :math:`\lambda` = `temperature_negatives` and :math:`\lambda'` = `temperature_positives`. A soft maximum over
    negatives inside one over positives: small temperatures give the worst pair, large ones the mean of all pairs.
    They stand for the region, with no formula between the two.

    In training mode a call with positives :math:`B_1` and negatives :math:`B_2` is one iteration:

    .. math::

        u_{i,t} &= (1 - \tau_1) u_{i,t-1} + \tau_1 g_i(w_t; B_2) \\
        v_t &= (1 - \tau_2) v_{t-1} + \tau_2 \frac1{B_1} \sum_{i \in B_1} u_{i,t}^{\lambda / \lambda'} \\
        G_t &= \frac1{B_1 B_2} \sum_{i \in B_1} \sum_{j \in B_2}
            \frac{u_{i,t}^{\lambda / \lambda' - 1} e^{\ell(h_j - h_i) / \lambda}}{v_t} \nabla \ell(h_j - h_i)

    Rows and :math:`v` take their first observed value at the first visit. The value returned is
    :math:`\lambda' \log v_t`. In `eval()` mode a call returns :math:`F` of the batch and changes nothing.

    The gradient uses both averages **after** their update, unlike :class:`~moreauc.TPAUCLoss` (SONX), which takes the
    row before. The description of the optimizer in LibAUC, its authors' library, has :math:`u_{i,t-1}` in the last two
    lines, but its loss takes :math:`u_{i,t}`, and so does this one, for a reason: since
    :math:`u_{i,t} \ge \tau_1 g_i` and :math:`v_t` is at least :math:`\tau_2` times the batch's mean, the weights of the
    pairs of a batch add up to at most :math:`1 / (\tau_1 \tau_2)`, whatever the scores. An old row gives no bound.

    All is done on logarithms, also the averages, so that nothing overflows where the losses themselves do not. In
    LibAUC exponentials overflow, and rows start at 0 instead of the first observed value.

    Args:
        labels: 0/1 labels of the whole training set, shape `(n,)`.
        temperature_negatives: :math:`\lambda`, above 0.
        temperature_positives: :math:`\lambda'`, above 0.
        tau1: averaging weight of the rows in (0, 1]. Plain attributes, both: a schedule may change them.
        tau2: averaging weight of the outer mean in (0, 1].
        surrogate: name of the pairwise loss :math:`\ell` (see :mod:`moreauc.core.surrogates`).
        margin: its margin.
        link: "sigmoid" or "identity", applied to the scores.

    Attributes:
        log_u: logarithms of the rows, one for each positive in order of appearance in `labels`; 0 where not visited.
        log_v: logarithm of the outer average, a 0-d tensor; 0 before the first call.

    Shape:
        as for all losses: scores, labels, index `(B,)`; output a scalar

    Raises:
        ValueError: for an argument out of range, and for bad batches as :class:`~moreauc.TPAUCLoss`.

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

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        temperature_negatives: float = 1.0,
        temperature_positives: float = 1.0,
        tau1: float = 0.9,
        tau2: float = 0.9,
        surrogate: str = "squared_hinge",
        margin: float = 1.0,
        link: Link = "sigmoid",
    ) -> None:
        super().__init__(labels, surrogate, margin, link)
        owner = self._owner
        inner = check_real(owner, "temperature_negatives", temperature_negatives, low=0.0, low_open=True)
        outer = check_real(owner, "temperature_positives", temperature_positives, low=0.0, low_open=True)
        self.temperature_negatives, self.temperature_positives = inner, outer
        # The tables hold logarithms, so their rules give the weights only; the averages are taken here.
        self.table_u = EstimatorTable(self.num_positives, rule=UpdateRule(owner, self._check_tau("tau1", tau1)))
        self.table_v = EstimatorTable(1, rule=UpdateRule(owner, self._check_tau("tau2", tau2)))

    @property
    def log_u(self) -> Tensor:
        """Logarithms of the rows, shape `(num_positives,)`."""
        return self.table_u.values.squeeze(1)

    @property
    def log_v(self) -> Tensor:
        """Logarithm of the outer average, shape `()`."""
        return self.table_v.values[0, 0]

    @property
    def tau1(self) -> float:
        """Averaging weight of the rows in (0, 1]."""
        return self.table_u.rule.tau

    @tau1.setter
    def tau1(self, value: float) -> None:
        self.table_u.rule = replace(self.table_u.rule, tau=self._check_tau("tau1", value))

    @property
    def tau2(self) -> float:
        """Averaging weight of the outer mean in (0, 1]."""
        return self.table_v.rule.tau

    @tau2.setter
    def tau2(self, value: float) -> None:
        self.table_v.rule = replace(self.table_v.rule, tau=self._check_tau("tau2", value))

    def forward(self, scores: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        """Return the scalar to call `backward` on; see the class for shapes and meaning."""
        batch = self._check_batch(scores, labels, index)
        h = self._linked(batch.scores)
        ratio = self.temperature_negatives / self.temperature_positives
        now = by_rows(self._log_mean_exp, *batch.rows.split(h))  # log g_i
        if not self.training:
            return self.temperature_positives * _log_mean(ratio * now)

        first = torch.zeros(1, dtype=torch.long, device=h.device)
        seen = now.detach().unsqueeze(1)
        row = self.table_u.read(batch.rows.among, fill=seen)
        u = _average(row, seen.to(row.dtype), self.tau1)
        mean = _log_mean(ratio * u).reshape(1, 1)
        held = self.table_v.read(first, fill=mean)
        v = _average(held, mean.to(held.dtype), self.tau2)
        # d F = lambda mean_i [u_i^(ratio - 1) g_i / v] d log g_i
        weight = torch.exp(seen - u + (ratio * u - v)).squeeze(1).to(now.dtype)
        descent = self.temperature_negatives * (weight * now).mean()
        value = straight_through(self.temperature_positives * v.squeeze(), descent)
        check_finite(self._owner, **{"the loss": value, "the updated row": u})
        self.table_u.write(batch.rows.among, row, u)
        self.table_v.write(first, held, v)
        return value

    def _log_mean_exp(self, positive: Tensor, negative: Tensor) -> Tensor:
        losses = self.surrogate.value(negative - positive.unsqueeze(1)) / self.temperature_negatives
        return losses.logsumexp(dim=1) - math.log(len(negative))

    def _check_tau(self, name: str, value: float) -> float:
        return check_real(self._owner, name, value, low=0.0, high=1.0, low_open=True)


def _log_mean(logs: Tensor) -> Tensor:
    """Return the logarithm of the mean of the numbers whose logarithms are given; shape `()`."""
    return logs.flatten().logsumexp(dim=0) - math.log(logs.numel())


def _average(log_row: Tensor, log_now: Tensor, tau: float) -> Tensor:
    """Return the logarithm of (1 - tau) row + tau now."""
    if tau == 1.0:
        return log_now
    return torch.logaddexp(log_row + math.log1p(-tau), log_now + math.log(tau))
