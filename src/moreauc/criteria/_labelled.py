r"""What the losses of labelled rows share: the training set's labels, the checks of a batch, and the link.

Those of two-way partial AUC, of rows and of bags, also share the tables and thresholds of the positives and one
iteration: from scores :math:`h` of positives and negatives to a gradient in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from moreauc._checks import (
    check_device,
    check_finite,
    check_floating,
    check_labels,
    check_link,
    check_region,
    check_scores_shape,
    check_shape,
)
from moreauc.core.outer import best_thresholds, cvar, reached, stepped, upper_quantile
from moreauc.core.pairs import Pairs, Slope, cvar_and_vjp
from moreauc.core.sorted_pairs import VJP
from moreauc.core.surrogates import Link, get_surrogate, scale_of
from moreauc.core.tables import EstimatorTable, Table, UpdateRule
from moreauc.criteria._base import Criterion, Step
from moreauc.criteria._batches import Rows, Shape, labelled_rows, widened
from moreauc.criteria._validation import Check, as_numbers, check_pair

ThresholdRate = float | tuple[float, float] | Literal["quantile"]

_QUANTILE_WEIGHT = 0.1  # weight of the batch's quantile in the moving average


class Batch(NamedTuple):
    """A checked batch of scores.

    `before` are scores at the previous weights, where they are needed.
    """

    scores: Tensor
    rows: Rows
    before: Tensor | None = None


class LabelledCriterion(Criterion):
    r"""Base of the losses that are called with scores, labels and row numbers of the training set.

    Args:
        labels: 0/1 labels of the whole training set, shape `(n,)`; rows, or bags, are named by their position in it.
        sample_weight: how much each row of the training set counts, shape `(n,)`, at least 0, some above 0 in both
            classes; None where all count alike. Means become weighted means, and a region is measured in shares of
            weight.

    Attributes:
        num_positives: positives in the training set.
        num_negatives: negatives in the training set.
        position: for each row of the set its number among the positives, -1 for a negative; a buffer.

    Shape:
        - scores, and previous_scores where the loss takes them: `(B,)`, raw model outputs
        - labels: `(B,)`, 0/1; index: `(B,)`, row numbers of the training set, no repeats
        - output: scalar
    """

    position: Tensor
    sample_weight: Tensor | None
    label_buffers: ClassVar[tuple[str, ...]] = ("position",)
    _UNIT = "rows"  # what labels are of
    _BOTH = True  # whether a batch must hold both classes

    def __init__(self, labels: Tensor | Sequence[int], sample_weight: Tensor | Sequence[float] | None = None) -> None:
        super().__init__()
        positive = check_labels(self._owner, labels) == 1
        self.num_positives = int(positive.sum())
        self.num_negatives = len(positive) - self.num_positives
        self.register_buffer("position", torch.where(positive, positive.cumsum(0) - 1, -1))
        weights = None if sample_weight is None else _checked_weights(self._owner, sample_weight, positive)
        self.register_buffer("sample_weight", weights)

    def settings(self) -> dict[str, object]:
        """Return what the results depend on, the weights of the rows included."""
        return {**super().settings(), "sample_weight": self._buffers["sample_weight"]}

    def extra_repr(self) -> str:
        """Return the sizes of the training set, and the arguments of the constructor."""
        rest = super().extra_repr()
        return f"{len(self.position)} {self._UNIT}, {self.num_positives} positives" + (rest and f", {rest}")

    def _batch(self, check: Check, scores: Tensor, labels: Tensor, index: Tensor) -> Batch:
        wide = self._check_scores(scores)
        rows = self._rows(check, labels, index, scores.shape)
        check.finite(scores=wide)
        return Batch(wide, rows)

    def _check_scores(self, scores: Tensor) -> Tensor:
        """Check type, shape and place of scores; return them in a type at least as wide as float32."""
        # not by attribute, which costs as much as a small operation
        position: Tensor = self._buffers["position"]  # type: ignore[assignment]
        device = position.device
        if not (isinstance(scores, Tensor) and scores.ndim == 1 and scores.shape[0] and scores.device == device):
            check_floating(self._owner, "scores", scores)
            check_scores_shape(self._owner, scores)
            check_device(self._owner, "scores", scores, device)
        if scores.dtype == torch.float32 or scores.dtype == torch.float64:
            return scores
        return widened(check_floating(self._owner, "scores", scores))

    def _rows(self, check: Check, labels: object, index: object, shape: Shape) -> Rows:
        position: Tensor = self._buffers["position"]  # type: ignore[assignment]
        return labelled_rows(check, position, labels, index, shape, unique=self.training, both=self._BOTH)


class PairCriterion(LabelledCriterion):
    r"""Base of the losses over pairs, :math:`\ell(h_j - h_i)` with :math:`i` positive and :math:`j` negative.

    Args:
        surrogate: name of the pairwise loss :math:`\ell` (see :mod:`moreauc.core.surrogates`).
        margin: its margin; None for the surrogate's default.
        link: "sigmoid" (the paper's experiments), "identity" or "standardized"; :math:`h` is this function of the raw
            score (:mod:`moreauc.core.surrogates`).
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        surrogate: str,
        margin: float | None,
        link: Link,
        sample_weight: Tensor | Sequence[float] | None = None,
    ) -> None:
        super().__init__(labels, sample_weight)
        self.surrogate = get_surrogate(surrogate, margin)
        check_link(self._owner, link)
        self.link: Link = link

    def _rows(self, check: Check, labels: object, index: object, shape: Shape) -> Rows:
        rows = super()._rows(check, labels, index, shape)
        weight = self._buffers["sample_weight"]
        return rows if weight is None else rows.weighted(weight.index_select(0, rows.numbers))

    def _linked(self, scores: Tensor, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """Return :math:`h` of the raw scores of rows, and the scale that they were divided by, where there is one."""
        if self.link == "sigmoid":
            return torch.sigmoid(scores), None
        if self.link == "identity":
            return scores, None
        scale = scale_of(rows.split(scores)[1], rows.left_out, rows.negatives, rows.lower_weight)
        return scores / scale, scale

    def _before_link(self, gradient: Tensor, h: Tensor, scale: Tensor | None) -> Tensor:
        """Return the gradient in raw scores, given that in the linked scores `h`."""
        if self.link == "identity":
            return gradient
        if scale is not None:
            return gradient / scale
        h = h if h.dtype == gradient.dtype else h.to(gradient.dtype)
        slope: Tensor = torch.ops.aten.sigmoid_backward(gradient, h)  # times h (1 - h)
        return slope


class _Quantile(NamedTuple):
    """The tracked quantile of the negatives' scores, where thresholds go by it.

    `now` holds it after this call's batch, shape `(1,)`, `before` before it; `thresholds` are the best of the
    positives, given `now`, shape `(B1,)`.
    """

    now: Tensor
    before: Tensor
    thresholds: Tensor


class TwoWayCriterion(PairCriterion):
    r"""Base of the losses :math:`\frac1{n_+} \sum_i f(\psi_i(w, s_i), s')`.

    Args:
        rule: how a visited row :math:`u_i` moves.
        threshold_lr: :math:`\eta_s` and :math:`\eta_{s'}`, or one number for both, or "quantile", which needs a
            non-decreasing surrogate (docs/tpauc.md compares them). A plain attribute: schedules may change it.
    """

    _UNDESCRIBED: ClassVar[tuple[str, ...]] = ("_by_quantile", "_rate_s", "_rate_prime")  # derived from `threshold_lr`

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
        self.min_tpr, self.max_fpr = check_region(owner, min_tpr, max_fpr)
        self.threshold_lr = threshold_lr
        self.table_u = EstimatorTable(self.num_positives, rule=rule, initial=initial)
        zero = torch.zeros((), dtype=self.table_u.values.dtype)  # rows and thresholds always share a type
        self.thresholds = Table(owner, self.num_positives, initial=zero, keep_previous=True)
        self.threshold_prime = Table(owner, 1, initial=0.0)
        self.quantile = Table(owner, 1)

    @property
    def u(self) -> Tensor:
        """Rows of the positives in order of appearance in `labels`, shape `(num_positives,)`."""
        return self.table_u.values

    @property
    def s(self) -> Tensor:
        """Thresholds of the positives, in the same order, as they were used or moved last; they start at 0."""
        return self.thresholds.values

    @property
    def s_prime(self) -> Tensor:
        """Threshold over the positives, shape `()`; it starts at 0."""
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
            if not self.surrogate.non_decreasing:  # else the highest negatives need not be the worst ones
                known = f"surrogate must be non-decreasing where threshold_lr is {value!r}"
                raise ValueError(f"{self._owner}: {known}, got {self.surrogate.name!r}")
            self._by_quantile, self._rate_s, self._rate_prime = True, 0.0, 0.0
            return
        first, second = check_pair(self._owner, "threshold_lr", value, "a number, a pair or 'quantile'")
        # separate attributes: compilers treat a changed float as a variable but a tuple as a constant
        self._by_quantile, self._rate_s, self._rate_prime = False, first, second

    @property
    def needs_previous(self) -> bool:
        """Whether a call in training mode needs `previous_scores`: `gamma` is not 0."""
        # as an attribute it would cost as much as a small operation
        table: EstimatorTable = self._modules["table_u"]  # type: ignore[assignment]
        return table.rule.gamma != 0.0

    def _batch(
        self, check: Check, scores: Tensor, labels: Tensor, index: Tensor, previous_scores: Tensor | None = None
    ) -> Batch:
        wide = self._check_scores(scores)
        rows = self._rows(check, labels, index, scores.shape)
        before = check.previous("scores", scores, previous_scores, self.training and self.needs_previous)
        check.finite(scores=wide, previous_scores=before)
        return Batch(wide, rows, before)

    def _step(self, batch: Batch) -> Step:
        h, scale = self._linked(batch.scores, batch.rows)
        before = None if batch.before is None else self._linked(batch.before.to(h.dtype), batch.rows)[0]
        step = self._advance(batch.rows, h, before)
        assert step.gradient is not None  # for the type checker
        step.source, step.gradient = batch.scores, self._before_link(step.gradient, h, scale)
        return step

    def _advance(self, rows: Rows, h: Tensor, before: Tensor | None) -> Step:
        r"""Compute one iteration without writing any of it.

        `h` are linked scores of the batch, without gradient, and `before` those of the correction. The step has the
        gradient in `h`; in evaluation mode its value is :math:`f(\psi_i, s')` at the current thresholds.
        """
        # as an attribute of a module each would cost as much as a small operation
        table_u: EstimatorTable = self._modules["table_u"]  # type: ignore[assignment]
        table_s: Table = self._modules["thresholds"]  # type: ignore[assignment]
        table_prime: Table = self._modules["threshold_prime"]  # type: ignore[assignment]
        dtype, among = h.dtype, rows.among
        held = table_s.read(among, fill=h)  # no row needs to be filled
        if held.dtype != dtype:
            h = h.to(held.dtype)
        positive, negative = rows.split(h)
        level = self._best_thresholds(rows, positive, negative) if self._by_quantile else None
        s, quantile = (held, None) if level is None else (level.thresholds, level.now)
        psi, slope, vjp = self._psi(rows, positive, negative, s, quantile)
        row = table_u.read(among, fill=psi) if self.training else psi
        alpha, prime = 1.0 - self.min_tpr, table_prime.number
        value, above = cvar(row, prime, alpha, rows.mean)
        gradient = rows.join(vjp(rows.share(above)), dtype)
        if not self.training:
            return Step(value, h, gradient, finite={"the loss": value})
        last = None if before is None else self._psi_before(rows, before, held, level)
        new = table_u.propose(row, psi, last, rows.positives)
        moved, moved_prime = (None, None) if level is not None else self._moved(rows, held, slope(), prime, above)
        finite = {
            "the loss": value,
            "the updated row": new,
            "the updated threshold": moved,
            "the updated threshold over the positives": moved_prime,
        }

        def write(bad: Tensor | None) -> None:
            table_u.write(among, row, new, bad)
            if level is not None:
                self._write_quantiles(rows, held, level, bad)
            elif moved is not None and moved_prime is not None:
                table_s.write(among, held, moved, bad)
                table_prime.write_number(moved_prime, held.dtype, bad)

        return Step(value, h, gradient, finite=finite, write=write)

    def _moved(
        self, rows: Rows, held: Tensor, slope: Tensor, prime: Tensor, above: Tensor
    ) -> tuple[Tensor, float | Tensor]:
        """Return the thresholds of the positives, and the one over them, after their steps (lines 5 and 6)."""
        # in this order: where scores are equal, rounding decides which pairs are above the threshold
        if rows.upper_weight is None:
            moved = held - self._rate_s / rows.positives * slope * above
        else:
            moved = held - (self._rate_s * rows.upper_weight * slope * above).to(held.dtype)
        moved_prime = stepped(rows.number(prime), self._rate_prime, rows.mean_number(above))
        if isinstance(moved_prime, float) and abs(moved_prime) > torch.finfo(held.dtype).max:
            moved_prime = math.inf  # as the table would round it
        return moved, moved_prime

    def _best_thresholds(self, rows: Rows, positive: Tensor, negative: Tensor) -> _Quantile:
        seen = reached(negative, self.max_fpr, rows.left_out, rows.negatives, rows.lower_weight)
        before = self.quantile.read_all(fill=seen)
        now = torch.lerp(before, seen.to(before.dtype), _QUANTILE_WEIGHT) if self.training else before
        return _Quantile(now, before, best_thresholds(self.surrogate, now, positive, self.max_fpr))

    def _psi(
        self, rows: Rows, positive: Tensor, negative: Tensor, s: Tensor, quantile: Tensor | None
    ) -> tuple[Tensor, Slope, VJP]:
        left_out, weight = rows.left_out, rows.lower_weight
        if quantile is not None and self.surrogate.piecewise_polynomial is None and self.max_fpr < 1.0:
            # Rounding of a loss that is not polynomial depends on the position in memory, so a score equal to the
            # quantile might seem to be above it. Compare the scores themselves.
            low = negative <= quantile
            left_out = low if left_out is None else left_out | low
        if weight is not None:
            weight = weight.to(negative.dtype)
        pairs = Pairs(positive, negative, self.max_fpr * rows.negatives, left_out, weight)
        return cvar_and_vjp(pairs, s, self.surrogate)

    def _psi_before(self, rows: Rows, before: Tensor, held: Tensor, level: _Quantile | None) -> Tensor:
        """Return the inner values of the correction, at the thresholds of the previous iteration, shape `(B1,)`."""
        positive, negative = rows.split(before if before.dtype == held.dtype else before.to(held.dtype))
        if level is None:
            return self._psi(rows, positive, negative, self.thresholds.previous(rows.among, held), None)[0]
        s = best_thresholds(self.surrogate, level.before, positive, self.max_fpr)
        return self._psi(rows, positive, negative, s, level.before)[0]

    def _weights_of_positives(self) -> Tensor | None:
        """Return the weights of all positives of the training set, shape `(num_positives,)`, if rows have weights."""
        if self.sample_weight is None:
            return None
        places = torch.where(self.position < 0, self.num_positives, self.position)
        whole = self.sample_weight.new_zeros(self.num_positives + 1).scatter(0, places, self.sample_weight)
        return whole[:-1]

    def _write_quantiles(self, rows: Rows, held: Tensor, level: _Quantile, bad: Tensor | None) -> None:
        """End the iteration of thresholds that are quantiles; the rows have been written."""
        self.quantile.write_all(level.now, bad)
        values, seen, weight = self.u, self.table_u.seen, self._weights_of_positives()
        if seen is not None and bad is None and weight is None:
            values, seen = values[seen], None
        self.thresholds.write(rows.among, held, level.thresholds, bad)
        alpha = 1.0 - self.min_tpr
        self.threshold_prime.write_all(upper_quantile(values, alpha, seen, weight), bad)


def _checked_weights(owner: str, sample_weight: object, positive: Tensor) -> Tensor:
    """Return weights of the rows, float64, on the device of the labels."""
    weights = as_numbers(owner, "sample_weight", sample_weight, torch.float64).to(positive.device)
    check_shape(owner, "sample_weight", weights, [tuple(positive.shape)])
    check_finite(owner, sample_weight=weights)
    if (weights < 0).any():
        raise ValueError(f"{owner}: sample_weight must be at least 0, got {weights.min().item():g}")
    for label, rows in ((1, positive), (0, ~positive)):
        if not weights[rows].any():
            raise ValueError(
                f"{owner}: sample_weight must be above 0 for a row of each class, got 0 for all of {label}"
            )
    return weights.clone()
