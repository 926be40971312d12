r"""One iteration of the losses over pairs in which no shape depends on the labels, and nothing waits for the device.

Positives of a batch of `B` rows are a list of length `B`, too: in the place of a negative stands some positive a second
time. It counts with weight 0 in every sum, and what is written to its row is what the positive itself writes there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from moreauc._checks import as_index, as_labels, check_shape
from moreauc.core.masked_pairs import masked_cvar_and_pull
from moreauc.core.rules import UpdateRule, update_row
from moreauc.core.visits import Visit

if TYPE_CHECKING:
    from moreauc.criteria._two_way import TwoWayCriterion

ROW_FAULTS = (
    "index must lie in the range of the training set, got another number",
    "index must not repeat a row inside one batch, got one more than once",
    "index must point to rows labelled 0 or 1 as in labels, got a row of the other class or another label",
    "labels must hold both 0 and 1, got only one of them",
)


class DenseRows(NamedTuple):
    """The rows of a batch, of which nothing is known yet but their number `B`.

    Attributes:
        numbers: their numbers in the training set, shape `(B,)`; numbers out of range are replaced.
        positive: which are positive, shape `(B,)`.
        place: the place of each positive, that of some positive for the others, shape `(B,)`.
        among: number among the positives of the set of the rows at `place`, shape `(B,)`.
        positives: how many there are, at least 1, shape `()`, float64.
        wrong: flags of `ROW_FAULTS`.
    """

    numbers: Tensor
    positive: Tensor
    place: Tensor
    among: Tensor
    positives: Tensor
    wrong: Tensor

    @property
    def rest(self) -> Tensor:
        """Negatives in the batch, at least 1."""
        return (len(self.positive) - self.positives).clamp_min(1.0)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over the positives: summed up first, as elsewhere, or the mean of ones might not be 1."""
        return (values * self.positive).sum() / self.positives.to(values.dtype)

    def shares(self, values: Tensor) -> Tensor:
        """Return values over the number of positives, 0 for the others."""
        return values * self.positive / self.positives


def dense_rows(owner: str, position: Tensor, labels: Tensor, index: Tensor, length: int, *, unique: bool) -> DenseRows:
    """Check types and shapes, and leave the rest to the device; `position` as in `LabelledCriterion`."""
    labels = as_labels(owner, labels)
    check_shape(owner, "labels", labels, [(length,)])
    index = as_index(owner, "index", index, length)
    labels, index = (value.to(position.device, non_blocking=True) for value in (labels, index))
    numbers = index.clamp(0, len(position) - 1)
    rows = position.index_select(0, numbers)
    positive = rows >= 0
    count = positive.sum(dtype=torch.float64)
    place = torch.where(positive, torch.arange(length, device=position.device), rows.argmax())
    among = rows.index_select(0, place).clamp_min(0)
    outside, mismatched = torch.stack([numbers != index, positive != labels]).any(1).unbind()
    repeated = torch.zeros_like(outside)
    if unique and length > 1:
        ordered = index.sort().values
        repeated = (ordered[1:] == ordered[:-1]).any()
    wrong = torch.stack([outside, repeated, mismatched, count % length == 0])
    return DenseRows(numbers, positive, place, among, count.clamp_min(1.0), wrong)


class DenseStep(NamedTuple):
    """One iteration, computed and not written yet.

    Attributes:
        value: the loss, shape `()`.
        gradient: in the linked scores, shape `(B,)`.
        results: numbers that must be finite, shape `(B,)`.
        write: end the iteration unless its argument, shape `()`, is True.
    """

    value: Tensor
    gradient: Tensor
    results: Tensor
    write: Callable[[Tensor], None]


def dense_advance(loss: TwoWayCriterion, rows: DenseRows, h: Tensor, before: Tensor | None) -> DenseStep:
    """Compute one iteration, as `TwoWayCriterion._advance`; `h` and `before` are linked scores of the whole batch."""
    wide = torch.promote_types(torch.promote_types(h.dtype, loss.table_u.values.dtype), loss.table_s.values.dtype)
    alpha, h = 1.0 - loss.min_tpr, h.to(wide)
    upper, total = h.index_select(0, rows.place), loss.max_fpr * rows.rest
    level = _Levels(loss, rows, h, upper, wide)
    psi, slope, pull = _psi(loss, level.left_out(h, level.tracked), upper, h, level.s, total)
    visit = Visit(loss.table_u, rows.among, wide)
    row = visit.row(psi.unsqueeze(1))
    old = None
    if before is not None:
        past = before.to(wide)
        past_upper = past.index_select(0, rows.place)
        left_out = level.left_out(past, level.before)
        old = _psi(loss, left_out, past_upper, past, level.previous(past_upper), total)[0].unsqueeze(1)
    new = dense_update(loss.table_u.rule, row, psi.unsqueeze(1), old, loss.num_positives, rows.positives)
    prime = loss.table_prime.values.view(()).to(wide)
    excess = row.squeeze(1) - prime
    high = torch.relu(excess)
    value = prime + rows.mean(high) / alpha
    above = high.sign() / alpha  # d f / d u; d f / d s' is 1 minus this
    moved, stepped = level.moved(slope, above), level.stepped(prime, rows.mean(above))
    of_upper, of_all = pull(rows.shares(above))

    def write(bad: Tensor) -> None:
        visit.write(bad, row, new)
        level.write(bad, moved, stepped)

    results = new.squeeze(1) + moved.squeeze(1) + (stepped + value)
    return DenseStep(value.to(wide), of_upper + of_all, results, write)


def dense_objective(loss: TwoWayCriterion, rows: DenseRows, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return the objective at the present thresholds and its gradient in the linked scores; nothing changes."""
    wide = torch.promote_types(h.dtype, loss.table_s.values.dtype)
    alpha, h = 1.0 - loss.min_tpr, h.to(wide)
    upper = h.index_select(0, rows.place)
    level = _Levels(loss, rows, h, upper, wide)
    left_out = level.left_out(h, level.tracked)
    psi, _, pull = _psi(loss, left_out, upper, h, level.s, loss.max_fpr * rows.rest)
    prime = loss.table_prime.values.view(()).to(wide)
    high = torch.relu(psi - prime)
    of_upper, of_all = pull(rows.shares(high.sign() / alpha))
    return (prime + rows.mean(high) / alpha).to(wide), of_upper + of_all


def dense_update(
    rule: UpdateRule, row: Tensor, now: Tensor, before: Tensor | None, num_rows: int, visited: Tensor
) -> Tensor:
    """Return what a rule makes of rows of which `visited`, shape `()`, are different ones."""
    if rule.gamma != "theory":
        return update_row(row, now, before, tau=rule.tau, gamma=float(rule.gamma), bound=rule.bound)
    gamma = dense_gamma(rule.gamma, rule.tau, num_rows, visited)
    # the correction enters as one of weight 1
    past = None if before is None else now - (gamma * (now - before)).to(now.dtype)
    return update_row(row, now, past, tau=rule.tau, gamma=1.0, bound=rule.bound)


def dense_gamma(gamma: float | str, tau: float, num_rows: int, visited: Tensor) -> Tensor:
    """Return the correction weight, shape `()`, float64; that of the theory for `visited` rows."""
    if not isinstance(gamma, str):
        return torch.zeros_like(visited) + gamma
    return (num_rows - visited) / (visited * (1.0 - tau)) + (1.0 - tau)


def _psi(
    loss: TwoWayCriterion, left_out: Tensor, upper: Tensor, h: Tensor, s: Tensor, total: Tensor
) -> tuple[Tensor, Tensor, Callable[[Tensor], tuple[Tensor, Tensor]]]:
    return masked_cvar_and_pull(upper, h, left_out, s, surrogate=loss.surrogate, total=total)


class _Levels:
    """The thresholds of one call, as `_Thresholds` of `_two_way`."""

    def __init__(self, loss: TwoWayCriterion, rows: DenseRows, h: Tensor, upper: Tensor, wide: torch.dtype) -> None:
        self.loss, self.rows = loss, rows
        self.visit = Visit(loss.table_s, rows.among, wide)
        self.held = self.visit.row(self.visit.held)
        self.s = self.held.squeeze(1)
        self.by_quantile = loss._by_quantile
        self.before = self.tracked = torch.zeros((), device=h.device)
        if self.by_quantile:
            first = torch.zeros(1, dtype=torch.int64, device=h.device)
            self.quantile = Visit(loss.table_quantile, first, wide)
            seen = _largest(h.masked_fill(rows.positive, -torch.inf), loss.max_fpr, rows.rest).reshape(1, 1)
            self.before = self.quantile.row(seen)
            self.tracked = self.before
            if loss.training:
                self.tracked = loss.table_quantile.propose(self.before, seen)
            self.s = loss._best_thresholds(self.tracked.view(()), upper)

    def left_out(self, h: Tensor, quantile: Tensor) -> Tensor:
        """Return which scores make no active pair with any positive: those of positives, and those up to a quantile.

        Values of a loss that is no polynomial differ by rounding with their place in memory, so that a score equal to
        the quantile might be found above it; the scores themselves do not. Other losses need no such help.
        """
        loss = self.loss
        if not self.by_quantile or loss.surrogate.piecewise_polynomial is not None or loss.max_fpr == 1.0:
            return self.rows.positive
        return self.rows.positive | (h <= quantile.view(()))

    def previous(self, upper: Tensor) -> Tensor:
        """Return the thresholds of the previous iteration; `upper` are the scores at its weights."""
        if self.by_quantile:
            return self.loss._best_thresholds(self.before.view(()), upper)
        return self.visit.previous(self.held).squeeze(1)

    def moved(self, slope: Tensor, above: Tensor) -> Tensor:
        if self.by_quantile:
            return self.s.unsqueeze(1)
        eta = self.loss._rate_s / self.rows.positives
        return self.held - (eta * slope * above).unsqueeze(1).to(self.held.dtype)

    def stepped(self, prime: Tensor, above: Tensor) -> Tensor:
        if self.by_quantile:
            return prime
        return (prime - self.loss._rate_prime * (1.0 - above)).to(prime.dtype)

    def write(self, bad: Tensor, moved: Tensor, stepped: Tensor) -> None:
        """End the iteration; the rows have been written."""
        loss = self.loss
        if self.by_quantile:
            self.quantile.write(bad, self.before, self.tracked)
            stepped = visited_quantile(loss.table_u.values.squeeze(1), loss.table_u.visited, 1.0 - loss.min_tpr)
        self.visit.write(bad, self.held, moved)
        prime = loss.table_prime
        prime._widen(stepped.dtype)
        prime.values.copy_(torch.where(bad, prime.values, stepped))


def _largest(scores: Tensor, fraction: float, count: Tensor) -> Tensor:
    """Return the score that `fraction` of `count` reach, where what is not counted is infinitely low."""
    number = (fraction * count - 1e-9).ceil().clamp_min(1.0).long()
    return scores.sort(descending=True).values.index_select(0, (number - 1).reshape(1))


def visited_quantile(values: Tensor, visited: Tensor, fraction: float) -> Tensor:
    """Return what `upper_quantile` makes of the values marked in `visited`, of which there is at least one."""
    ordered = torch.where(visited, values, -torch.inf).sort(descending=True).values
    number = visited.sum()
    count = (fraction * number.double() + 1e-9).floor().long().clamp_min(1)
    places = torch.stack([torch.minimum(count, number - 1), number - 1]).clamp_min(0)
    level, lowest = ordered.index_select(0, places).unbind()
    below = lowest - torch.finfo(values.dtype).eps * (1.0 + lowest.abs())
    return torch.where(count < number, level, below)
