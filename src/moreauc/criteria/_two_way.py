r"""What the losses for two-way partial AUC share: rows and thresholds of the positives, and one iteration of them.

Rows of the data set or bags of instances: either way an iteration starts from scores :math:`h` of positives and
negatives and ends with a gradient in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from moreauc._checks import check_real
from moreauc.core.pairs import Pull, cvar_and_pull, cvar_over_negatives
from moreauc.core.rules import UpdateRule
from moreauc.core.tables import EstimatorTable
from moreauc.criteria._labelled import Link, PairCriterion

ThresholdRate = float | tuple[float, float] | Literal["quantile"]
Scores = tuple[Tensor, Tensor]  # of the positives, shape `(B1,)`, and of the negatives, shape `(B2,)`

_QUANTILE_WEIGHT = 0.1  # of the batch's quantile in the moving average


class TwoWayCriterion(PairCriterion):
    r"""Base of the losses :math:`\frac1{n_+} \sum_i f(\psi_i(w, s_i), s')`.

    Args:
        labels: 0/1 labels of the whole training set, shape `(n,)`.
        rule: how a visited row :math:`u_i` moves.
        min_tpr: lower end of the true positive rate, in [0, 1).
        max_fpr: upper end of the false positive rate, in (0, 1].
        surrogate: name of the pairwise loss.
        margin: its margin.
        link: "sigmoid" or "identity".
        threshold_lr: step sizes of the thresholds, or "quantile".
        initial: :math:`u_{i,0}`, or None to fill at the first visit.
    """

    _UNDESCRIBED: ClassVar[tuple[str, ...]] = ("_by_quantile", "_rate_s", "_rate_prime")  # `threshold_lr` has them

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        rule: UpdateRule,
        *,
        min_tpr: float,
        max_fpr: float,
        surrogate: str,
        margin: float,
        link: Link,
        threshold_lr: ThresholdRate,
        initial: float | Tensor | None = None,
    ) -> None:
        super().__init__(labels, surrogate, margin, link)
        owner = self._owner
        self.min_tpr = check_real(owner, "min_tpr", min_tpr, low=0.0, high=1.0, high_open=True)
        self.max_fpr = check_real(owner, "max_fpr", max_fpr, low=0.0, high=1.0, low_open=True)
        self.threshold_lr = threshold_lr
        self.table_u = EstimatorTable(self.num_positives, rule=rule, initial=initial)
        self.table_s = EstimatorTable(self.num_positives, rule=rule, initial=0.0, keep_previous=True)
        self.table_prime = EstimatorTable(1, rule=rule, initial=0.0)
        self.table_quantile = EstimatorTable(1, rule=UpdateRule(owner, _QUANTILE_WEIGHT))

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
    def threshold_lr(self) -> tuple[float, float] | Literal["quantile"]:
        r"""Step sizes :math:`(\eta_s, \eta_{s'})` of the thresholds, or "quantile"; one number sets both."""
        return "quantile" if self._by_quantile else (self._rate_s, self._rate_prime)

    @threshold_lr.setter
    def threshold_lr(self, value: ThresholdRate) -> None:
        if isinstance(value, str):
            if value != "quantile":
                raise ValueError(f"{self._owner}: threshold_lr must be a number, a pair or 'quantile', got {value!r}")
            if not self.surrogate.non_decreasing:  # the highest negatives need not be the worst ones then
                known = f"surrogate must be non-decreasing where threshold_lr is {value!r}"
                raise ValueError(f"{self._owner}: {known}, got {self.surrogate.name!r}")
            self._by_quantile, self._rate_s, self._rate_prime = True, 0.0, 0.0
            return
        pair = tuple(value) if isinstance(value, tuple | list) else (value, value)
        if len(pair) != 2:
            raise ValueError(f"{self._owner}: threshold_lr must be a number, a pair or 'quantile', got {value!r}")
        first, second = (check_real(self._owner, "threshold_lr", entry, low=0.0) for entry in pair)
        # apart: compilers take a float for a variable when it changes, a tuple for a constant
        self._by_quantile, self._rate_s, self._rate_prime = False, first, second

    def _objective(self, rows: Tensor, scores: Scores) -> Tensor:
        r"""Return the mean of :math:`f(\psi_i, s')` at the present thresholds; nothing changes."""
        positive, negative = scores
        thresholds = _Thresholds(self, rows, positive.detach(), negative.detach())
        psi, _ = cvar_over_negatives(positive, negative, thresholds.s, surrogate=self.surrogate, max_fpr=self.max_fpr)
        return (thresholds.s_prime + torch.relu(psi - thresholds.s_prime) / (1.0 - self.min_tpr)).mean()

    def _advance(self, rows: Tensor, scores: Scores, before: Scores | None) -> Step:
        """Compute one iteration without writing any of it; `before` are the scores of the correction, if there is one.

        Args:
            rows: numbers of the positives, shape `(B1,)`.
            scores: the linked scores :math:`h`.
            before: those of the previous iteration for the same rows.
        """
        alpha = 1.0 - self.min_tpr
        thresholds = _Thresholds(self, rows, *scores)
        s_prime = thresholds.s_prime
        psi, slope, pull = self._psi(scores, thresholds.s)
        row = self.table_u.read(rows, fill=psi.unsqueeze(1))
        old = None
        if before is not None:
            old = self._psi(before, thresholds.previous(before[0]))[0].unsqueeze(1)
        new = self.table_u.propose(row, psi.unsqueeze(1), old)
        excess = row.squeeze(1) - s_prime
        value = torch.add(s_prime, torch.relu(excess).sum() / len(rows), alpha=1.0 / alpha)
        above = excess.gt_(0) / alpha  # d f / d u; d f / d s' is 1 minus this
        moved, prime = thresholds.moved(slope, above), thresholds.stepped(above)
        gradient = pull(above.to(scores[0].dtype) / len(rows))
        return Step(thresholds, value, gradient, row, new, moved, prime)

    def _best_thresholds(self, quantile: Tensor, positive: Tensor) -> Tensor:
        """Return the thresholds of positives with these scores, given the quantile of the negatives' scores.

        Where all negatives are in the region, thresholds up to the smallest loss are equally good, and 0 is one. What
        is tracked there is the mean of the lowest scores of batches, which would leave out the negatives below it.
        """
        return torch.zeros_like(positive) if self.max_fpr == 1.0 else self.surrogate.value(quantile - positive)

    def _psi(self, scores: Scores, s: Tensor) -> tuple[Tensor, Tensor, Pull]:
        positive, negative = scores
        if positive.dtype != s.dtype:
            wide = torch.promote_types(positive.dtype, s.dtype)
            positive, negative, s = positive.to(wide), negative.to(wide), s.to(wide)
        return cvar_and_pull(positive, negative, s, surrogate=self.surrogate, max_fpr=self.max_fpr)


@dataclass
class Step:
    """One iteration, computed and not written yet.

    Attributes:
        thresholds: those it began with.
        value: the loss, shape `()`.
        gradient: in the linked scores of the positives and of the negatives.
        row: rows of the positives before, shape `(B1, 1)`.
        new: rows after.
        moved: thresholds of the positives after, shape `(B1, 1)`.
        prime: threshold over the positives after, shape `()`.
    """

    thresholds: _Thresholds
    value: Tensor
    gradient: Scores
    row: Tensor
    new: Tensor
    moved: Tensor
    prime: Tensor

    @property
    def results(self) -> dict[str, Tensor]:
        """What must be finite, by the names errors give it."""
        return {
            "the loss": self.value,
            "the updated row": self.new,
            "the updated threshold": self.moved,
            "the updated threshold over the positives": self.prime,
        }

    def write(self) -> None:
        """End the iteration."""
        self.thresholds.loss.table_u.write(self.thresholds.rows, self.row, self.new)
        self.thresholds.write(self.moved, self.prime)


class _Thresholds:
    """The thresholds of one call: read first, moved and written when everything else has been checked."""

    def __init__(self, loss: TwoWayCriterion, rows: Tensor, positive: Tensor, negative: Tensor) -> None:
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
            self.s = loss._best_thresholds(self.quantile.squeeze(1), positive)

    def previous(self, positive: Tensor) -> Tensor:
        """Return the thresholds of the previous iteration; `positive` are the scores at its weights."""
        if self.by_quantile:
            return self.loss._best_thresholds(self.before.squeeze(1), positive)
        return self.loss.table_s.previous(self.rows, fill=self.held).squeeze(1)

    def moved(self, slope: Tensor, above: Tensor) -> Tensor:
        r"""Return the thresholds of the batch's positives after the step, shape `(B1, 1)`."""
        if isinstance(self.loss.threshold_lr, str):
            return self.s.unsqueeze(1).to(torch.promote_types(self.s.dtype, self.held.dtype))
        eta = self.loss.threshold_lr[0]
        return self.held - (eta / len(self.rows) * slope * above).unsqueeze(1).to(self.held.dtype)

    def stepped(self, above: Tensor) -> Tensor:
        """Return the threshold over the positives after its step; by quantiles it is found at the end."""
        if isinstance(self.loss.threshold_lr, str):
            return self.s_prime
        return self.s_prime - self.loss.threshold_lr[1] * (1.0 - above.sum() / len(above))

    def write(self, moved: Tensor, prime: Tensor) -> None:
        """End the iteration; the rows have been written."""
        loss = self.loss
        if self.by_quantile:
            loss.table_quantile.write_all(self.quantile)
            prime = upper_quantile(loss.table_u.values[loss.table_u.visited].squeeze(1), 1.0 - loss.min_tpr)
        loss.table_s.write(self.rows, self.held.to(moved.dtype), moved)
        loss.table_prime.write_all(prime.reshape(1, 1))


def upper_quantile(rows: Tensor, fraction: float) -> Tensor:
    """Return the largest value with `fraction` of the rows above it, at least one; below all where that is all."""
    count = max(1, math.floor(fraction * len(rows) + 1e-9))
    if count < len(rows):
        return rows.topk(count + 1).values[-1]
    lowest = rows.min()
    return lowest - torch.finfo(rows.dtype).eps * (1.0 + lowest.abs())
