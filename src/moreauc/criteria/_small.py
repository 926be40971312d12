r"""One iteration of the pairwise loss in NumPy, for small batches on the CPU: there a step costs what its calls cost.

The numbers are those of `TwoWayCriterion._advance` up to rounding, and which pairs are active is decided by the very
same comparison. Whatever is unusual (another type, another surrogate, anything wrong) is left to the ordinary way,
which has the words for it: nothing is written before everything has been checked.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moreauc.criteria._base import with_gradient
from moreauc.criteria._late import several_processes
from moreauc.rules import UpdateRule, theory_gamma
from moreauc.surrogates import SquaredHinge

if TYPE_CHECKING:
    from moreauc.criteria.tpauc import TPAUCLoss

Array = NDArray[Any]

_ROWS = 512  # of a batch, at most: from here on torch is as fast, or nearly
_TYPES = (torch.float32, torch.float64)
_sum = np.add.reduce


def small_forward(
    loss: TPAUCLoss, scores: Tensor, labels: Tensor, index: Tensor, previous: Tensor | None
) -> Tensor | None:
    """Do what a call in training mode does and return the loss, or None for batches that are not for this module."""
    state = _fitting_state(loss, scores, labels, index)
    rows = None if state is None else _rows(state, labels.numpy(), index.numpy())
    if state is None or rows is None:
        return None
    raw, past = scores.detach(), None
    if loss.needs_previous:
        if type(previous) is not Tensor or previous.dtype != scores.dtype or previous.shape != scores.shape:
            return None
        past = previous.detach()
        if not past.is_cpu:
            return None
    with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is looked at
        given = _sum(raw.numpy()) if past is None else _sum(raw.numpy()) + _sum(past.numpy())
        if not math.isfinite(given):
            return None
        step = _Step(loss, state, rows, loss._linked(raw).numpy(), None if past is None else loss._linked(past).numpy())
        if not step.finite:
            return None
    step.write()
    return with_gradient(scores, torch.from_numpy(np.asarray(step.value)), torch.from_numpy(step.gradient))


class _State(NamedTuple):
    """The buffers of a loss as arrays that share their memory, without columns, and where that memory lies."""

    position: Array
    u: Array
    visited: Array
    s: Array
    replaced: Array
    written: Array
    step: Array
    prime: Array
    places: tuple[int, ...]
    kind: torch.dtype


_STATES: WeakKeyDictionary[TPAUCLoss, _State | None] = WeakKeyDictionary()  # to make one costs a third of a step


def _fitting_state(loss: TPAUCLoss, scores: Tensor, labels: Tensor, index: Tensor) -> _State | None:
    """Return the state of a loss, if everything is as it usually is, as far as can be seen without its numbers."""
    if type(scores) is not Tensor or type(labels) is not Tensor or type(index) is not Tensor or several_processes():
        return None
    shape = scores.shape
    if len(shape) != 1 or not 0 < shape[0] <= _ROWS or labels.shape != shape or index.shape != shape:
        return None
    if (
        labels.dtype != torch.int64
        or index.dtype != torch.int64
        or not (scores.is_cpu and labels.is_cpu and index.is_cpu)
    ):
        return None
    if type(loss.surrogate) is not SquaredHinge or loss.table_u.rule.bound is not None:
        return None
    buffers = _buffers(loss)
    places = tuple([buffer.data_ptr() for buffer in buffers])
    state = _STATES.get(loss)
    if state is None or state.places != places:
        state = _STATES[loss] = _new_state(loss, buffers, places)
    return state if state is not None and state.kind == scores.dtype else None


def _buffers(loss: TPAUCLoss) -> tuple[Tensor, ...]:
    tables: Any = loss._modules  # looked up here, a buffer costs a tenth
    u, s, prime = tables["table_u"]._buffers, tables["table_s"]._buffers, tables["table_prime"]._buffers
    own: Any = loss._buffers["position"]
    return own, u["values"], u["visited"], s["values"], s["replaced"], s["written"], s["step"], prime["values"]


def _new_state(loss: TPAUCLoss, buffers: tuple[Tensor, ...], places: tuple[int, ...]) -> _State | None:
    kind = loss.table_u.values.dtype
    same = all(buffer.dtype == kind for buffer in buffers if buffer.is_floating_point())
    here = all(buffer.is_cpu and buffer.is_contiguous() for buffer in buffers)
    if not (same and here and kind in _TYPES):
        return None
    # reshaped they are views, since they are in one piece
    position, u, visited, s, replaced, written, step, prime = (buffer.numpy().reshape(-1) for buffer in buffers)
    return _State(position, u, visited, s, replaced, written, step, prime, places, kind)


class _Rows(NamedTuple):
    """Places of positives and negatives in the batch, and numbers of the positives among those of the set."""

    upper: Array
    lower: Array
    among: Array


def _rows(state: _State, labels: Array, index: Array) -> _Rows | None:
    """Return the rows of a batch if there is nothing wrong with them."""
    ordered = np.sort(index)
    if ordered[0] < 0 or ordered[-1] >= len(state.position) or (ordered[1:] == ordered[:-1]).any():
        return None
    rows = state.position[index]
    positive = rows >= 0
    if not (positive == labels).all():
        return None
    upper, lower = positive.nonzero()[0], (~positive).nonzero()[0]
    return _Rows(upper, lower, rows[upper]) if len(upper) and len(lower) else None


class _Step:
    """One iteration, computed and not written yet; attributes as those of `_two_way.Step`, without columns."""

    def __init__(self, loss: TPAUCLoss, state: _State, rows: _Rows, h: Array, before: Array | None) -> None:
        self.loss, self.state, self.rows = loss, state, rows
        self.total, self.margin = loss.max_fpr * len(rows.lower), loss.surrogate.margin
        table, number, alpha = loss.table_u, len(rows.among), 1.0 - loss.min_tpr
        upper, lower = h[rows.upper], h[rows.lower]
        self.held = state.s[rows.among]
        self.level = level = _Quantile(loss, upper, lower) if loss.threshold_lr == "quantile" else None
        used = self.held if level is None else level.thresholds(level.after, upper)
        pairs = self._pairs(upper, lower, used)
        held, seen = state.u[rows.among], state.visited[rows.among]
        self.row = held if seen.all() else np.where(seen, held, pairs.psi)
        old = None if before is None else self._past(before)
        self.new = _new_rows(table.rule, self.row, pairs.psi, old, table.num_rows)
        prime = state.prime[0]
        excess = self.row - prime
        above = (excess > 0.0) / h.dtype.type(alpha)  # d f / d u; d f / d s' is 1 minus this
        self.value = prime + _sum(np.maximum(excess, 0.0)) / number / alpha
        self.moved, self.prime = used, prime
        if not isinstance(loss.threshold_lr, str):
            eta, eta_prime = loss.threshold_lr
            slope = (1.0 - _sum(pairs.inside, 1, np.float64) / self.total).astype(h.dtype)
            self.moved = self.held - eta / number * slope * above
            self.prime = prime - eta_prime * (1.0 - _sum(above) / number)
        # Twice the violations of the active pairs are the slopes of the loss.
        pull = pairs.violation * pairs.inside
        weight = above * (2.0 / (number * self.total))
        self.gradient = np.empty_like(h)
        self.gradient[rows.upper] = -weight * _sum(pull, 1)
        self.gradient[rows.lower] = weight @ pull
        if loss.link == "sigmoid":
            self.gradient *= h * (1.0 - h)

    @property
    def finite(self) -> bool:
        """Whether there is no NaN and no infinity in the results."""
        return math.isfinite(_sum(self.new + self.moved) + self.prime + self.value)

    def write(self) -> None:
        """End the iteration, as the tables do."""
        state, among = self.state, self.rows.among
        state.u[among] = self.new
        state.visited[among] = True
        prime = self.prime
        if self.level is not None:
            self.loss.table_quantile.write_all(self.level.after)
            prime = _upper_quantile(state.u[state.visited], 1.0 - self.loss.min_tpr)
        state.replaced[among] = self.held
        state.written[among] = state.step[0]
        state.step[0] += 1
        state.s[among] = self.moved
        state.prime[0] = prime

    def _past(self, before: Array) -> Array:
        """Return psi at the previous weights and thresholds."""
        state, among = self.state, self.rows.among
        upper, lower = before[self.rows.upper], before[self.rows.lower]
        if self.level is not None:
            used = self.level.thresholds(self.level.before, upper)
        else:
            used = np.where(state.written[among] == state.step[0] - 1, state.replaced[among], self.held)
        return self._pairs(upper, lower, used).psi

    def _pairs(self, upper: Array, lower: Array, s: Array) -> _Pairs:
        violation = lower - upper[:, None]
        violation += self.margin
        np.maximum(violation, 0.0, out=violation)
        excess = violation * violation
        excess -= s[:, None]
        inside = np.greater(excess, 0.0, out=np.empty_like(excess))
        np.maximum(excess, 0.0, out=excess)
        return _Pairs(s + _sum(excess, 1) * (1.0 / self.total), violation, inside)


class _Pairs(NamedTuple):
    """`psi (B1,)`, and of all pairs the violation and 1 where it is active, else 0; shape `(B1, B2)`."""

    psi: Array
    violation: Array
    inside: Array


class _Quantile:
    """The tracked quantile of the negatives' scores, before this iteration and after it; shape `(1, 1)`."""

    def __init__(self, loss: TPAUCLoss, upper: Array, lower: Array) -> None:
        self.margin = loss.surrogate.margin
        place = len(lower) - max(1, math.ceil(loss.max_fpr * len(lower) - 1e-9))
        seen = torch.from_numpy(np.partition(lower, place)[place : place + 1].reshape(1, 1))
        self.before = loss.table_quantile.read_all(fill=seen)
        self.after = loss.table_quantile.propose(self.before, seen)

    def thresholds(self, quantile: Tensor, upper: Array) -> Array:
        """Return the losses of positives with a negative at the quantile."""
        violation: Array = np.maximum(quantile.numpy()[0, 0] - upper + self.margin, 0.0)
        return violation * violation


def _new_rows(rule: UpdateRule, row: Array, now: Array, before: Array | None, num_rows: int) -> Array:
    """Return what the rule makes of the rows, as `update_row`."""
    tau, change = rule.tau, now - row
    new: Array = row + tau * change if tau < 0.5 else now - (1.0 - tau) * change
    if before is None:
        return new
    gamma = theory_gamma(num_rows, len(row), tau) if rule.gamma == "theory" else float(rule.gamma)
    return new + gamma * (now - before)


def _upper_quantile(rows: Array, fraction: float) -> Any:
    """Return the threshold over the positives that is best for these rows, as `_two_way.upper_quantile`."""
    count = max(1, math.floor(fraction * len(rows) + 1e-9))
    if count < len(rows):
        place = len(rows) - count - 1
        return np.partition(rows, place)[place]
    lowest = rows.min()
    return lowest - np.finfo(rows.dtype).eps * (1.0 + abs(lowest))
