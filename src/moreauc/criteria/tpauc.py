r"""Two-way partial AUC as a coupled compositional loss (SONX, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from moreauc._checks import (
    check_device,
    check_finite,
    check_floating,
    check_index,
    check_labels,
    check_link,
    check_real,
    check_shape,
)
from moreauc.criteria._base import Criterion, straight_through
from moreauc.pairs import cvar_over_negatives
from moreauc.rules import Gamma, UpdateRule
from moreauc.surrogates import get_surrogate
from moreauc.tables import EstimatorTable

Link = Literal["sigmoid", "identity"]


class TPAUCLoss(Criterion):
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
    over the batch at the present thresholds, and changes nothing.

    Args:
        labels: 0/1 labels of the whole training set, shape `(n,)`; rows are named by their position in it.
        min_tpr: lower end of the true positive rate, in [0, 1).
        max_fpr: upper end of the false positive rate, in (0, 1].
        surrogate: name of the pairwise loss :math:`\ell` (see :mod:`moreauc.surrogates`).
        margin: its margin.
        link: "sigmoid" (the paper's experiments) or "identity", applied to the scores.
        tau: averaging weight in (0, 1]. A plain attribute, as `gamma` and `threshold_lr`: schedules may change them.
        gamma: correction weight, at least 0, or "theory" with :math:`n_+` and the batch's :math:`B_1`.
        threshold_lr: :math:`\eta_s` and :math:`\eta_{s'}`, or one number for both. The default is provisional, not the
            outcome of a measurement: choose it on validation data.
        initial: :math:`u_{i,0}`, a number or one for each positive; None to fill at the first visit.

    Attributes:
        u: rows, one for each positive in order of appearance in `labels`.
        s: thresholds of the positives, in the same order; they start at 0.
        s_prime: threshold over the positives, a 0-d tensor; it starts at 0.

    Shape:
        - scores, previous_scores: `(B,)`, raw model outputs of positives and negatives
        - labels: `(B,)`, 0/1; index: `(B,)`, row numbers of the training set, no repeats
        - output: scalar

    Raises:
        ValueError: for an argument out of range, labels other than 0/1, a class missing in the set or the batch, NaN
            scores, an index out of range, repeated or not labelled as in the set, shapes that differ, and `gamma`
            above 0 without `previous_scores`; before any state has changed.

    Example:
        >>> criterion = TPAUCLoss(torch.tensor([0, 1, 0, 1]), min_tpr=0.5, max_fpr=0.5, link="identity")
        >>> scores = torch.tensor([0.5, 0.0], requires_grad=True)
        >>> loss = criterion(scores, torch.tensor([0, 1]), torch.tensor([2, 3]))
        >>> loss.backward()
        >>> loss.item(), scores.grad
        (9.0, tensor([ 12., -12.]))
    """

    position: Tensor

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        min_tpr: float,
        max_fpr: float,
        surrogate: str = "squared_hinge",
        margin: float = 1.0,
        link: Link = "sigmoid",
        tau: float = 0.9,
        gamma: Gamma = 0.0,
        threshold_lr: float | tuple[float, float] = (1.0, 0.01),
        initial: float | Tensor | None = None,
    ) -> None:
        super().__init__()
        owner = self._owner
        whole = check_labels(owner, labels)
        self.min_tpr = check_real(owner, "min_tpr", min_tpr, low=0.0, high=1.0, high_open=True)
        self.max_fpr = check_real(owner, "max_fpr", max_fpr, low=0.0, high=1.0, low_open=True)
        self.surrogate = get_surrogate(surrogate, margin)
        check_link(owner, link)
        self.link = link
        self.threshold_lr = threshold_lr
        positive = whole == 1
        self.num_positives = int(positive.sum())
        # -1 for a negative, else the row in the tables
        self.register_buffer("position", torch.where(positive, positive.cumsum(0) - 1, -1))
        rule = UpdateRule(owner, tau, gamma)
        self.table_u = EstimatorTable(self.num_positives, rule=rule, initial=initial)
        self.table_s = EstimatorTable(self.num_positives, rule=rule, initial=0.0, keep_previous=True)
        self.table_prime = EstimatorTable(1, rule=rule, initial=0.0)

    @property
    def needs_previous(self) -> bool:
        """Whether a call in training mode needs `previous_scores`: `gamma` is not 0."""
        return self.table_u.rule.corrects

    @property
    def u(self) -> Tensor:
        """Rows of the positives, shape `(num_positives,)`."""
        return self.table_u.values.squeeze(1)

    @property
    def s(self) -> Tensor:
        """Thresholds of the positives, shape `(num_positives,)`."""
        return self.table_s.values.squeeze(1)

    @property
    def s_prime(self) -> Tensor:
        """Threshold over the positives, shape `()`."""
        return self.table_prime.values[0, 0]

    @property
    def tau(self) -> float:
        """Averaging weight in (0, 1]."""
        return self.table_u.rule.tau

    @tau.setter
    def tau(self, value: float) -> None:
        self.table_u.rule = replace(self.table_u.rule, tau=value)

    @property
    def gamma(self) -> Gamma:
        """Correction weight."""
        return self.table_u.rule.gamma

    @gamma.setter
    def gamma(self, value: Gamma) -> None:
        self.table_u.rule = replace(self.table_u.rule, gamma=value)

    @property
    def threshold_lr(self) -> tuple[float, float]:
        r"""Step sizes :math:`(\eta_s, \eta_{s'})` of the thresholds; may be set to one number for both."""
        return self._threshold_lr

    @threshold_lr.setter
    def threshold_lr(self, value: float | tuple[float, float]) -> None:
        pair = tuple(value) if isinstance(value, tuple | list) else (value, value)
        if len(pair) != 2:
            raise ValueError(f"{self._owner}: threshold_lr must be a number or a pair, got {value!r}")
        first, second = (check_real(self._owner, "threshold_lr", entry, low=0.0) for entry in pair)
        self._threshold_lr = (first, second)

    def forward(self, scores: Tensor, labels: Tensor, index: Tensor, previous_scores: Tensor | None = None) -> Tensor:
        """Return the scalar to call `backward` on; see the class for shapes and meaning."""
        owner, alpha = self._owner, 1.0 - self.min_tpr
        check_floating(owner, "scores", scores)
        check_shape(owner, "scores", scores, [("B",)])
        check_device(owner, "scores", scores, self.table_u.values.device)
        check_shape(owner, "labels", torch.as_tensor(labels), [tuple(scores.shape)])
        positive = check_labels(owner, labels).to(scores.device) == 1
        index = check_index(owner, "index", index, len(self.position), length=len(scores), unique=self.training)
        rows = self.position[index.to(self.position.device)]
        if bool(((rows >= 0) != positive).any()):
            raise ValueError(f"{owner}: index must point to rows labelled as in labels, got a row of the other class")
        rows = rows[positive].to(scores.device)
        before = None
        if self.training and self.table_u.rule.corrects:
            self._check_previous("previous_scores", previous_scores, "scores", scores, gammas="gamma")
            before = previous_scores
        check_finite(owner, scores=scores, previous_scores=before)

        s = self.table_s.read(rows, fill=self._zero(rows, scores))
        psi, slope = self._psi(scores, positive, s.squeeze(1))
        s_prime = self.s_prime.to(torch.promote_types(self.s_prime.dtype, psi.dtype), copy=True)
        if not self.training:
            return (s_prime + torch.relu(psi - s_prime) / alpha).mean()
        now = psi.detach().unsqueeze(1)
        row = self.table_u.read(rows, fill=now)
        value = s_prime + torch.relu(straight_through(row.squeeze(1), psi) - s_prime) / alpha
        if before is not None:
            old = self.table_s.previous(rows, fill=self._zero(rows, scores)).squeeze(1)
            before = self._psi(before.detach(), positive, old)[0].unsqueeze(1)
        new = self.table_u.propose(row, now, before)

        above = (row.squeeze(1) > s_prime).to(row.dtype) / alpha  # d f / d u; d f / d s' is 1 minus this
        eta, eta_prime = self._threshold_lr
        new_s = s - (eta / len(rows) * slope * above).unsqueeze(1).to(s.dtype)
        new_prime = s_prime - eta_prime * (1.0 - above).mean()
        check_finite(owner, **{"the loss": value, "the updated row": new, "the updated threshold": new_s})
        self.table_u.write(rows, row, new)
        self.table_s.write(rows, s, new_s)
        first = torch.zeros(1, dtype=torch.long, device=scores.device)
        self.table_prime.write(first, s_prime.reshape(1, 1), new_prime.detach().reshape(1, 1))
        return value.mean()

    def _psi(self, scores: Tensor, positive: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.sigmoid(scores) if self.link == "sigmoid" else scores
        return cvar_over_negatives(h[positive], h[~positive], s, surrogate=self.surrogate, max_fpr=self.max_fpr)

    @staticmethod
    def _zero(rows: Tensor, scores: Tensor) -> Tensor:
        return torch.zeros(len(rows), 1, device=scores.device, dtype=scores.dtype)
