r"""What the losses for two-way partial AUC share: rows and thresholds of the positives, and one iteration of them.

Rows of the data set or bags of instances: either way an iteration starts from scores :math:`h` of positives and
negatives and ends with a gradient in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from moreauc._checks import check_real
from moreauc.core.links import Link
from moreauc.core.outer import best_thresholds, cvar, reached, stepped, upper_quantile
from moreauc.core.pairs import Pairs, cvar_and_vjp
from moreauc.core.rules import UpdateRule
from moreauc.core.sorted_pairs import VJP
from moreauc.core.tables import EstimatorTable, Table, wider
from moreauc.criteria._base import Step
from moreauc.criteria._batches import Rows
from moreauc.criteria._labelled import PairCriterion

ThresholdRate = float | tuple[float, float] | Literal["quantile"]

_QUANTILE_WEIGHT = 0.1  # of the batch's quantile in the moving average


class _Thresholds(NamedTuple):
    """Thresholds of the positives in one call.

    Attributes:
        s: those to use, shape `(B1,)`.
        held: those of the table, shape `(B1, 1)`.
        quantile: the tracked quantile after this call's batch, shape `(1, 1)`; None where thresholds move by steps.
        quantile_before: before it.
    """

    s: Tensor
    held: Tensor
    quantile: Tensor | None = None
    quantile_before: Tensor | None = None


class TwoWayCriterion(PairCriterion):
    r"""Base of the losses :math:`\frac1{n_+} \sum_i f(\psi_i(w, s_i), s')`.

    Args:
        labels: 0/1 labels of the whole training set, shape `(n,)`.
        rule: how a visited row :math:`u_i` moves.
        min_tpr: lower end of the true positive rate, in [0, 1).
        max_fpr: upper end of the false positive rate, in (0, 1].
        surrogate: name of the pairwise loss.
        margin: its margin; None for the surrogate's default.
        link: "sigmoid", "identity" or "standardized".
        threshold_lr: step sizes of the thresholds, or "quantile".
        initial: :math:`u_{i,0}`, or None to fill at the first visit.
        sample_weight: as for the base.
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
        margin: float | None,
        link: Link,
        threshold_lr: ThresholdRate,
        initial: float | Tensor | None = None,
        sample_weight: Tensor | Sequence[float] | None = None,
    ) -> None:
        super().__init__(labels, surrogate, margin, link, sample_weight)
        owner = self._owner
        self.min_tpr = check_real(owner, "min_tpr", min_tpr, low=0.0, high=1.0, high_open=True)
        self.max_fpr = check_real(owner, "max_fpr", max_fpr, low=0.0, high=1.0, low_open=True)
        self.threshold_lr = threshold_lr
        self.table_u = EstimatorTable(self.num_positives, rule=rule, initial=initial)
        self.thresholds = Table(owner, self.num_positives, initial=0.0, keep_previous=True)
        self.threshold_prime = Table(owner, 1, initial=0.0)
        self.quantile = Table(owner, 1)

    @property
    def u(self) -> Tensor:
        """Rows of the positives, shape `(num_positives,)`."""
        return self.table_u.values.squeeze(1)

    @property
    def s(self) -> Tensor:
        """Thresholds of the positives, shape `(num_positives,)`."""
        return self.thresholds.values.squeeze(1)

    @property
    def s_prime(self) -> Tensor:
        """Threshold over the positives, shape `()`."""
        return self.threshold_prime.values.view(())

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

    def _advance(self, rows: Rows, h: Tensor, before: Tensor | None) -> Step:
        r"""Compute one iteration without writing any of it.

        Args:
            rows: the rows of the batch.
            h: linked scores of the batch, shape `(B,)`, without gradient.
            before: those of the correction for the same rows, where there is one.

        Returns:
            The step, with the gradient in `h`. In evaluation mode :math:`f(\psi_i, s')` at the current thresholds.
        """
        alpha, dtype, h = 1.0 - self.min_tpr, h.dtype, self._widest(h)
        positive, negative = rows.split(h)
        level = self._read_thresholds(rows, positive, negative)
        psi, slope, vjp = self._psi(rows, positive, negative, level.s, level.quantile)
        now, prime = psi.unsqueeze(1), self.s_prime
        row = self.table_u.read(rows.among, fill=now) if self.training else now
        value, above = cvar(row.squeeze(1), prime, alpha, rows.mean)
        gradient = rows.join(vjp(rows.share(above)), dtype)
        if not self.training:
            return Step(value, h, gradient, finite={"the loss": value})
        new = self.table_u.propose(row, now, self._psi_before(rows, before, level), rows.positives)
        moved = prime_moved = None
        if level.quantile is None:
            if rows.upper_weight is None:
                moved = level.held - (self._rate_s / rows.positives * slope * above).unsqueeze(1)
            else:
                step = self._rate_s * rows.upper_weight * slope * above
                moved = level.held - step.unsqueeze(1).to(level.held.dtype)
            prime_moved = stepped(prime, self._rate_prime, rows.mean(above))
        finite = {
            "the loss": value,
            "the updated row": new,
            "the updated threshold": moved,
            "the updated threshold over the positives": prime_moved,
        }

        def write(bad: Tensor | None) -> None:
            self.table_u.write(rows.among, row, new, bad)
            self._write_thresholds(rows, level, moved, prime_moved, bad)

        return Step(value, h, gradient, finite=finite, write=write)

    def _widest(self, h: Tensor) -> Tensor:
        """Return scores in the widest type among them, rows and thresholds."""
        wide = wider(wider(self.table_u.values.dtype, self.thresholds.values.dtype), h.dtype)
        return h if h.dtype == wide else h.to(wide)

    def _read_thresholds(self, rows: Rows, positive: Tensor, negative: Tensor) -> _Thresholds:
        held = self.thresholds.read(rows.among, fill=positive)  # which fills nothing: all rows hold a value
        if not self._by_quantile:
            return _Thresholds(held.squeeze(1), held)
        seen = reached(negative, self.max_fpr, rows.left_out, rows.negatives, rows.lower_weight).unsqueeze(1)
        before = self.quantile.read_all(fill=seen)
        quantile = torch.lerp(before, seen.to(before.dtype), _QUANTILE_WEIGHT) if self.training else before
        s = best_thresholds(self.surrogate, quantile.view(()), positive, self.max_fpr)
        return _Thresholds(s, held, quantile, before)

    def _psi(
        self, rows: Rows, positive: Tensor, negative: Tensor, s: Tensor, quantile: Tensor | None
    ) -> tuple[Tensor, Tensor, VJP]:
        left_out = rows.left_out
        if quantile is not None and self.surrogate.piecewise_polynomial is None and self.max_fpr < 1.0:
            # Values of a loss that is no polynomial differ by rounding with their place in memory, so that a score
            # equal to the quantile might be found above it; the scores themselves do not.
            low = negative <= quantile.view(())
            left_out = low if left_out is None else left_out | low
        weight = None if rows.lower_weight is None else rows.lower_weight.to(negative.dtype)
        pairs = Pairs(positive, negative, self.max_fpr * rows.negatives, left_out, weight)
        return cvar_and_vjp(pairs, s, self.surrogate)

    def _psi_before(self, rows: Rows, before: Tensor | None, level: _Thresholds) -> Tensor | None:
        """Return the inner values of the correction, at the thresholds of the previous iteration, shape `(B1, 1)`."""
        if before is None:
            return None
        positive, negative = rows.split(self._widest(before))
        if level.quantile_before is None:
            s = self.thresholds.previous(rows.among, level.held).squeeze(1)
        else:
            s = best_thresholds(self.surrogate, level.quantile_before.view(()), positive, self.max_fpr)
        return self._psi(rows, positive, negative, s, level.quantile_before)[0].unsqueeze(1)

    def _weights_of_positives(self) -> Tensor | None:
        """Return the weights of all positives of the training set, shape `(num_positives,)`, if rows have weights."""
        if self.sample_weight is None:
            return None
        places = torch.where(self.position < 0, self.num_positives, self.position)
        whole = self.sample_weight.new_zeros(self.num_positives + 1).scatter(0, places, self.sample_weight)
        return whole[:-1]

    def _write_thresholds(
        self, rows: Rows, level: _Thresholds, moved: Tensor | None, prime: Tensor | None, bad: Tensor | None
    ) -> None:
        """End the iteration of the thresholds; the rows have been written."""
        if level.quantile is not None:
            self.quantile.write_all(level.quantile, bad)
            values, seen, weight = self.u, self.table_u.seen, self._weights_of_positives()
            if seen is not None and bad is None and weight is None:
                values, seen = values[seen], None
            moved, prime = level.s.unsqueeze(1), upper_quantile(values, 1.0 - self.min_tpr, seen, weight)
        assert moved is not None and prime is not None  # for the type checker
        self.thresholds.write(rows.among, level.held, moved, bad)
        self.threshold_prime.write_all(prime.reshape(1, 1), bad)
