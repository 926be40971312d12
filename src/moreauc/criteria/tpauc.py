r"""Two-way partial AUC as a coupled compositional loss (SONX, Algorithm 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from moreauc._checks import check_finite, check_real
from moreauc.criteria._base import with_gradient
from moreauc.criteria._labelled import Batch, Link, PairCriterion
from moreauc.pairs import Pull, cvar_and_pull, cvar_over_negatives
from moreauc.rules import Gamma, UpdateRule
from moreauc.tables import EstimatorTable

ThresholdRate = float | tuple[float, float] | Literal["quantile"]

_QUANTILE_WEIGHT = 0.1  # of the batch's quantile in the moving average


class TPAUCLoss(PairCriterion):
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

    `threshold_lr="quantile"` replaces lines 5 and 6, and is not covered by the paper's theorems. Given :math:`w` the
    best thresholds are known in closed form: as :math:`\ell` does not decrease, the best :math:`s_i` is
    :math:`\ell(q - h_i)` with the same :math:`q` for all positives, the upper :math:`\beta`-quantile of the negatives'
    scores, and the best :math:`s'` is the upper :math:`\alpha`-quantile of the rows. So one number is tracked instead
    of one for each positive, at each step and not only at a row's own:

    .. math::

        q_t = 0.9\, q_{t-1} + 0.1\, h_{(\lceil \beta B_2 \rceil)}(w_t; B_2), \quad
        s_{i,t} = \ell(q_t - h_i(w_t)), \quad s'_{t+1} = u_{(\lfloor \alpha n_+ \rfloor + 1), t+1}

    (:math:`(k)` is the k-th largest; rows not visited yet are left out; :math:`q_0` is the first batch's own).
    There is no step size to choose, and no state that ages between two visits of a positive.

    Args:
        labels: 0/1 labels of the whole training set, shape `(n,)`; rows are named by their position in it.
        min_tpr: lower end of the true positive rate, in [0, 1).
        max_fpr: upper end of the false positive rate, in (0, 1].
        surrogate: name of the pairwise loss :math:`\ell` (see :mod:`moreauc.surrogates`).
        margin: its margin.
        link: "sigmoid" (the paper's experiments) or "identity", applied to the scores.
        tau: averaging weight in (0, 1]. A plain attribute, as `gamma` and `threshold_lr`: schedules may change them.
        gamma: correction weight, at least 0, or "theory" with :math:`n_+` and the batch's :math:`B_1`.
        threshold_lr: :math:`\eta_s` and :math:`\eta_{s'}`, or one number for both, or "quantile" for the rule above,
            which :class:`~moreauc.estimator.TPAUCClassifier` uses. docs/tpauc.md compares them.
        initial: :math:`u_{i,0}`, a number or one for each positive; None to fill at the first visit.

    Attributes:
        u: rows, one for each positive in order of appearance in `labels`.
        s: thresholds of the positives, in the same order, as they were used or moved last; they start at 0.
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
        threshold_lr: ThresholdRate = (1.0, 0.01),
        initial: float | Tensor | None = None,
    ) -> None:
        super().__init__(labels, surrogate, margin, link)
        owner = self._owner
        self.min_tpr = check_real(owner, "min_tpr", min_tpr, low=0.0, high=1.0, high_open=True)
        self.max_fpr = check_real(owner, "max_fpr", max_fpr, low=0.0, high=1.0, low_open=True)
        self.threshold_lr = threshold_lr
        rule = UpdateRule(owner, tau, gamma)
        self.table_u = EstimatorTable(self.num_positives, rule=rule, initial=initial)
        self.table_s = EstimatorTable(self.num_positives, rule=rule, initial=0.0, keep_previous=True)
        self.table_prime = EstimatorTable(1, rule=rule, initial=0.0)
        self.table_quantile = EstimatorTable(1, rule=UpdateRule(owner, _QUANTILE_WEIGHT))

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
    def threshold_lr(self) -> tuple[float, float] | Literal["quantile"]:
        r"""Step sizes :math:`(\eta_s, \eta_{s'})` of the thresholds, or "quantile"; one number sets both."""
        return self._threshold_lr

    @threshold_lr.setter
    def threshold_lr(self, value: ThresholdRate) -> None:
        if isinstance(value, str):
            if value != "quantile":
                raise ValueError(f"{self._owner}: threshold_lr must be a number, a pair or 'quantile', got {value!r}")
            self._threshold_lr: tuple[float, float] | Literal["quantile"] = "quantile"
            return
        pair = tuple(value) if isinstance(value, tuple | list) else (value, value)
        if len(pair) != 2:
            raise ValueError(f"{self._owner}: threshold_lr must be a number, a pair or 'quantile', got {value!r}")
        first, second = (check_real(self._owner, "threshold_lr", entry, low=0.0) for entry in pair)
        self._threshold_lr = (first, second)

    def forward(self, scores: Tensor, labels: Tensor, index: Tensor, previous_scores: Tensor | None = None) -> Tensor:
        """Return the scalar to call `backward` on; see the class for shapes and meaning."""
        batch = self._check_batch(scores, labels, index, finite=False)
        before = None
        if self.training and self.needs_previous:
            self._check_previous("previous_scores", previous_scores, "scores", scores, gammas="gamma")
            before = previous_scores
        return self._iteration(batch, before) if self.training else self._evaluation(batch)

    def _evaluation(self, batch: Batch) -> Tensor:
        check_finite(self._owner, scores=batch.scores)
        h = self._linked(batch.scores)
        ranked, others = h.index_select(0, batch.upper), h.index_select(0, batch.lower)
        thresholds = _Thresholds(self, batch.rows, ranked.detach(), others.detach())
        psi, _ = cvar_over_negatives(ranked, others, thresholds.s, surrogate=self.surrogate, max_fpr=self.max_fpr)
        return (thresholds.s_prime + torch.relu(psi - thresholds.s_prime) / (1.0 - self.min_tpr)).mean()

    def _iteration(self, batch: Batch, before: Tensor | None) -> Tensor:
        alpha, rows = 1.0 - self.min_tpr, batch.rows
        with torch.inference_mode():  # cheaper than no_grad; what is kept of it is copied
            h = self._linked(batch.scores)
            ranked, others = h.index_select(0, batch.upper), h.index_select(0, batch.lower)
            thresholds = _Thresholds(self, rows, ranked, others)
            s_prime = thresholds.s_prime
            psi, slope, pull = self._psi(ranked, others, thresholds.s)
            row = self.table_u.read(rows, fill=psi.unsqueeze(1))
            old = None
            if before is not None:
                h_old = self._linked(before.to(h.dtype))
                ranked = h_old.index_select(0, batch.upper)
                old = self._psi(ranked, h_old.index_select(0, batch.lower), thresholds.previous(ranked))[0].unsqueeze(1)
            new = self.table_u.propose(row, psi.unsqueeze(1), old)
            excess = row.squeeze(1) - s_prime
            value = torch.add(s_prime, torch.relu(excess).sum() / len(rows), alpha=1.0 / alpha)
            above = excess.gt_(0) / alpha  # d f / d u; d f / d s' is 1 minus this
            moved = thresholds.moved(slope, above)
            results = {"the loss": value, "the updated row": new, "the updated threshold": moved}
            results["the updated threshold over the positives"] = thresholds.stepped(above)
            check_finite(self._owner, scores=batch.scores, previous_scores=before, **results)  # one wait for all
            gradient = self._gradient(batch, h, pull(above.to(h.dtype) / len(rows)))
        with torch.no_grad():
            self.table_u.write(rows, row, new)
            thresholds.write(moved, results["the updated threshold over the positives"])
        return with_gradient(batch.scores, value, gradient.clone())

    def _psi(self, positive: Tensor, negative: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Pull]:
        if positive.dtype != s.dtype:
            wide = torch.promote_types(positive.dtype, s.dtype)
            positive, negative, s = positive.to(wide), negative.to(wide), s.to(wide)
        return cvar_and_pull(positive, negative, s, surrogate=self.surrogate, max_fpr=self.max_fpr)

    def _gradient(self, batch: Batch, h: Tensor, pulls: tuple[Tensor, Tensor]) -> Tensor:
        """Return the gradient in the scores from those in the linked scores of the two classes."""
        gradient = torch.empty_like(h)
        for places, part in zip((batch.upper, batch.lower), pulls, strict=True):
            gradient.index_copy_(0, places, part.to(h.dtype))
        return gradient * (h * (1.0 - h)) if self.link == "sigmoid" else gradient


class _Thresholds:
    """The thresholds of one call: read first, moved and written when everything else has been checked."""

    def __init__(self, loss: TPAUCLoss, rows: Tensor, positive: Tensor, negative: Tensor) -> None:
        self.loss, self.rows, self.positive = loss, rows, positive
        self.held = loss.table_s.read(rows, fill=positive)  # which fills nothing: all rows hold a value
        self.s_prime = loss.table_prime.values.view(())
        self.by_quantile = loss.threshold_lr == "quantile"
        self.s = self.held.squeeze(1)
        if self.by_quantile:
            count = math.ceil(loss.max_fpr * len(negative) - 1e-9)  # 0.1 * 30 is 3.0000000000000004
            seen = negative.topk(max(count, 1)).values[-1].reshape(1, 1)
            self.before = loss.table_quantile.read_all(fill=seen)
            self.quantile = loss.table_quantile.propose(self.before, seen) if loss.training else self.before
            self.s = loss.surrogate.value(self.quantile.squeeze(1) - positive)

    def previous(self, positive: Tensor) -> Tensor:
        """Return the thresholds of the previous iteration; `positive` are the scores at its weights."""
        if self.by_quantile:
            return self.loss.surrogate.value(self.before.squeeze(1) - positive)
        return self.loss.table_s.previous(self.rows, fill=self.held).squeeze(1)

    def moved(self, slope: Tensor, above: Tensor) -> Tensor:
        r"""Return the thresholds of the batch's positives after the step, shape `(B1, 1)` (line 5)."""
        if isinstance(self.loss.threshold_lr, str):
            return self.s.unsqueeze(1).to(torch.promote_types(self.s.dtype, self.held.dtype))
        eta = self.loss.threshold_lr[0]
        return self.held - (eta / len(self.rows) * slope * above).unsqueeze(1).to(self.held.dtype)

    def stepped(self, above: Tensor) -> Tensor:
        """Return the threshold over the positives after its step (line 6); by quantiles it is found at the end."""
        if isinstance(self.loss.threshold_lr, str):
            return self.s_prime
        return self.s_prime - self.loss.threshold_lr[1] * (1.0 - above.sum() / len(above))

    def write(self, moved: Tensor, prime: Tensor) -> None:
        """End the iteration; the rows have been written."""
        loss = self.loss
        if self.by_quantile:
            loss.table_quantile.write_all(self.quantile)
            prime = _upper_quantile(loss.table_u.values[loss.table_u.visited].squeeze(1), 1.0 - loss.min_tpr)
        loss.table_s.write(self.rows, self.held.to(moved.dtype), moved)
        loss.table_prime.write_all(prime.reshape(1, 1))


def _upper_quantile(rows: Tensor, fraction: float) -> Tensor:
    """Return the largest value with `fraction` of the rows above it, at least one; below all where that is all."""
    count = max(1, math.floor(fraction * len(rows) + 1e-9))
    if count < len(rows):
        return rows.topk(count + 1).values[-1]
    lowest = rows.min()
    return lowest - torch.finfo(rows.dtype).eps * (1.0 + lowest.abs())
