r"""Two-way partial AUC as a coupled compositional loss (SONX, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from moreauc.core.surrogates import Link
from moreauc.core.tables import Gamma, UpdateRule
from moreauc.criteria._base import rule_attribute
from moreauc.criteria._labelled import ThresholdRate, TwoWayCriterion


class TPAUCLoss(TwoWayCriterion):
    r"""Surrogate of the two-way partial AUC: the lowest positives against the highest negatives.

    .. math::

        F(w, s, s') = \frac1{n_+} \sum_{i \in S_+} f(\psi_i(w, s_i), s'), \quad
        f(u, s') = s' + \frac{(u - s')_+}\alpha, \quad
        \psi_i(w, s_i) = s_i + \frac1{\beta n_-} \sum_{j \in S_-} (\ell(h_j - h_i) - s_i)_+

    with :math:`\alpha = 1 -` `min_tpr` and :math:`\beta =` `max_fpr`; minimised over the thresholds it is the mean of
    :math:`\ell` over the pairs of the :math:`\alpha n_+` lowest positives and the :math:`\beta n_-` highest negatives.
    `min_tpr=0` is the one-way partial AUC. :math:`h` is the link of the raw score.

    In training mode a call with positives :math:`B_1` and negatives :math:`B_2` is one iteration of Algorithm 2:

    .. math::

        u_{i,t+1} &= (1 - \tau) u_{i,t} + \tau \psi_i(w_t, s_{i,t}; B_2)
            + \gamma (\psi_i(w_t, s_{i,t}; B_2) - \psi_i(w_{t-1}, s_{i,t-1}; B_2)) && \text{(line 4)} \\
        s_{i,t+1} &= s_{i,t} - \frac{\eta_s}{B_1} \partial_s \psi_i(w_t, s_{i,t}; B_2)\, \partial_u f(u_{i,t}, s'_t)
            && \text{(line 5)} \\
        s'_{t+1} &= s'_t - \eta_{s'} \frac1{B_1} \sum_{i \in B_1} \partial_{s'} f(u_{i,t}, s'_t) && \text{(line 6)} \\
        G_t &= \frac1{B_1} \sum_{i \in B_1} \partial_w \psi_i(w_t, s_{i,t}; B_2)\, \partial_u f(u_{i,t}, s'_t)
            && \text{(line 7)}

    The thresholds are moved by the loss, not by the optimizer. The value returned is
    :math:`\frac1{B_1} \sum_i f(u_{i,t}, s'_t)`. In `eval()` mode a call returns :math:`f(\psi_i(w, s_i), s')` averaged
    over the batch at the current thresholds, and changes nothing.

    `threshold_lr="quantile"` replaces lines 5 and 6, and is not covered by the paper's theorems. Given :math:`w` the
    best thresholds are known in closed form: as :math:`\ell` does not decrease, the best :math:`s_i` is
    :math:`\ell(q - h_i)` with :math:`q` the upper :math:`\beta`-quantile of the negatives' scores, and the best
    :math:`s'` is the upper :math:`\alpha`-quantile of the rows. One number is tracked:

    .. math::

        q_t = 0.9\, q_{t-1} + 0.1\, h_{(\lceil \beta B_2 \rceil)}(w_t; B_2), \quad
        s_{i,t} = \ell(q_t - h_i(w_t)), \quad s'_{t+1} = u_{(\lfloor \alpha n_+ \rfloor + 1), t+1}

    (:math:`(k)` is the k-th largest; rows not visited yet are left out; :math:`q_0` is the quantile of the first batch;
    with `max_fpr` = 1 every pair counts and :math:`s_{i,t} = 0`).

    Args:
        gamma: correction weight, at least 0, or "theory" with :math:`n_+` and the batch's :math:`B_1`.

    Example:
        >>> import torch
        >>> criterion = TPAUCLoss(torch.tensor([0, 1, 0, 1]), min_tpr=0.5, max_fpr=0.5, link="identity")
        >>> scores = torch.tensor([0.5, 0.0], requires_grad=True)
        >>> loss = criterion(scores, torch.tensor([0, 1]), torch.tensor([2, 3]))
        >>> loss.backward()
        >>> loss.item(), scores.grad
        (9.0, tensor([ 12., -12.]))
    """

    tau = rule_attribute("table_u", "tau", "Averaging weight in (0, 1].")
    gamma = rule_attribute("table_u", "gamma", "Correction weight.")

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        min_tpr: float,
        max_fpr: float,
        surrogate: str = "squared_hinge",
        margin: float | None = None,
        link: Link = "sigmoid",
        tau: float = 0.9,
        gamma: Gamma = 0.0,
        threshold_lr: ThresholdRate = (1.0, 0.01),
        initial: float | Tensor | None = None,
        sample_weight: Tensor | Sequence[float] | None = None,
    ) -> None:
        super().__init__(
            labels,
            UpdateRule(self._owner, tau, gamma),
            min_tpr=min_tpr,
            max_fpr=max_fpr,
            surrogate=surrogate,
            margin=margin,
            link=link,
            threshold_lr=threshold_lr,
            initial=initial,
            sample_weight=sample_weight,
        )
