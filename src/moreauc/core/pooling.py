r"""From the instances of a bag to its score: an average over instances, then a function of that average.

A pooling is one small class. Its *row* stands for the average :math:`v = \frac1{|X|} \sum_{x \in X} y(x)` of what it
averages, in a form that neither overflows nor leaves the range that its function needs:

=============  ==============================  ======================  =====================================
pooling        average :math:`v` of            score of the bag        row
=============  ==============================  ======================  =====================================
mean           :math:`\phi`                    :math:`v`               :math:`v`
smoothed max   :math:`e^{\phi / T}`            :math:`T \log v`        :math:`\log v`
attention      :math:`(e^a \delta,\ e^a)`      :math:`v_1 / v_2`       :math:`(v_1 / v_2,\ \log v_2)`
=============  ==============================  ======================  =====================================

with the instance scores :math:`\phi` or :math:`\delta`, the attention logits :math:`a` and the temperature :math:`T`.

**Corrections and positive numbers.** The update :math:`(1 - \tau) v + \tau y + \gamma (y - y')` may push an average of
exponentials below 0, where it has no logarithm. The paper leaves open what to do then. Here a correction that would
leave less than a tenth of what averaging alone gives is left out, in all components of the row alike: the row is then
the plain average.

**Levels.** Adding a number to all attention logits changes no score, so their level drifts as the model learns.
:meth:`Pooling.centered_logits` subtracts the mean logit of a batch; losses that use rows after their update do so.

**Rows that lag.** The chain rule divides by the row: if the row is far below the present instances, the weight of an
instance, :math:`e^a / v_2`, is huge. The row after its update contains these instances with weight :math:`\tau`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from moreauc._checks import check_real
from moreauc._settings import text_of

PoolingName = Literal["mean", "smoothed_max", "attention"]
UpdateOrder = Literal["before", "after"]

_LEAST = 0.1  # share of the plain average that a correction must leave
_STEEPEST = 60.0  # log of the largest factor between instances and the row they are divided by: finite in float32


class Move(NamedTuple):
    """How rows move: averaging weight, correction weight, and the radius of the ball, if there is one."""

    tau: float
    gamma: float | Tensor
    bound: float | None


class Pooling(ABC):
    """How the instances of a bag become its score.

    Instances of several bags come in one tensor, with the number of the bag of each in `bag`, in [0, count).

    `name` is what users call it. `columns` are the model outputs for each instance: 1, or 2, score and attention logit.
    `dim` is the length of a row.
    """

    name: ClassVar[str]
    columns: ClassVar[int] = 1
    dim: ClassVar[int] = 1

    @abstractmethod
    def observe(self, instances: Tensor, bag: Tensor, count: int) -> Tensor:
        """Return the rows of `count` bags that hold these instances, shape `(count, dim)`, differentiable."""

    def centered_logits(self, instances: Tensor) -> Tensor:
        """Return instances of a batch without what may be added to all of them and changes no score."""
        return instances

    @abstractmethod
    def score(self, row: Tensor) -> Tensor:
        """Return the scores of bags with these rows, shape `(B,)`, differentiable."""

    def update(
        self,
        row: Tensor,
        now: Tensor,
        before: Tensor | None,
        *,
        tau: float,
        gamma: float | Tensor = 0.0,
        bound: float | None = None,
    ) -> Tensor:
        r"""Return the rows of :math:`(1 - \tau) v + \tau y + \gamma (y - y')`, projected where a bound is set.

        All are rows, shape `(B, dim)`: `now` of :math:`y`, the average over a few instances of each bag, and `before`
        of :math:`y'`, the same instances at the previous weights, None without correction. `gamma` is one number or has
        the shape `(B, 1)`.
        """
        return self._moved(row, now, before, Move(tau, gamma, bound))

    @abstractmethod
    def _moved(self, row: Tensor, now: Tensor, before: Tensor | None, move: Move) -> Tensor:
        """Return the rows of :meth:`update`."""

    @abstractmethod
    def vjp(self, weight: Tensor, row: Tensor, instances: Tensor, bag: Tensor) -> Tensor:
        r"""Return the gradient of the weighted sum of bag scores in the instances, in their shape.

        The score's derivative is taken at `row`, the average's at the instances given: the chain rule of the paper's
        :math:`G_t`.

        `weight` has one number for each bag.
        """

    def __call__(self, instances: Tensor, bag: Tensor, count: int) -> Tensor:
        """Return the scores of `count` bags that hold these instances, shape `(count,)`, differentiable."""
        return self.score(self.observe(instances, bag, count))

    def __repr__(self) -> str:
        return text_of(self)


class MeanPooling(Pooling):
    r"""Mean of the instance scores, :math:`\frac1{|X|} \sum_x \phi(x)`.

    Example:
        >>> MeanPooling()(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1]), 2)
        tensor([2., 5.])
    """

    name = "mean"

    def observe(self, instances: Tensor, bag: Tensor, count: int) -> Tensor:
        """Return the means."""
        return _segment_mean(instances, bag, count).unsqueeze(1)

    def score(self, row: Tensor) -> Tensor:
        """Return the means themselves."""
        return row.squeeze(1)

    def _moved(self, row: Tensor, now: Tensor, before: Tensor | None, move: Move) -> Tensor:
        """Return the new means; the ball is an interval."""
        new = torch.lerp(row, now, move.tau)
        if before is not None:
            new = new + move.gamma * (now - before)
        return new if move.bound is None else new.clamp(-move.bound, move.bound)

    def vjp(self, weight: Tensor, row: Tensor, instances: Tensor, bag: Tensor) -> Tensor:
        """Return what each instance adds to its bag's mean."""
        return (weight / _sizes(bag, len(weight), weight.dtype)).index_select(0, bag)


class SmoothedMaxPooling(Pooling):
    r"""Smoothed maximum of the instance scores, :math:`T \log \frac1{|X|} \sum_x e^{\phi(x) / T}`.

    Between the mean (:math:`T \to \infty`) and the maximum (:math:`T \to 0`), with `temperature` :math:`T`, above 0.

    Example:
        >>> SmoothedMaxPooling(0.1)(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1]), 2)
        tensor([2.9307, 5.0000])
    """

    name = "smoothed_max"

    def __init__(self, temperature: float = 0.1) -> None:
        self.temperature = check_real(type(self).__name__, "temperature", temperature, low=0.0, low_open=True)

    def observe(self, instances: Tensor, bag: Tensor, count: int) -> Tensor:
        """Return the logarithms of the mean exponentials."""
        return _log_mean_exp(instances / self.temperature, bag, count).unsqueeze(1)

    def score(self, row: Tensor) -> Tensor:
        """Return the smoothed maxima."""
        return self.temperature * row.squeeze(1)

    def _moved(self, row: Tensor, now: Tensor, before: Tensor | None, move: Move) -> Tensor:
        """Return the new logarithms; the ball ends at the logarithm of its radius."""
        peak, old, fresh = _shares(row, now, move.tau)
        mass = old + fresh
        if before is not None:
            change = move.gamma * ((now - peak).exp() - (before - peak).exp())
            mass = torch.where(_fits(mass, change), mass + change, mass)
        new = peak + mass.log()
        return new if move.bound is None else new.clamp_max(math.log(move.bound))

    def vjp(self, weight: Tensor, row: Tensor, instances: Tensor, bag: Tensor) -> Tensor:
        """Return the weights of the instances in their bags' smoothed maxima, times those of the bags."""
        logit = instances / self.temperature
        share = (weight / _sizes(bag, len(weight), weight.dtype)).index_select(0, bag)
        return share * (logit - _divisor(row[:, 0], logit, bag)).exp()


class AttentionPooling(Pooling):
    r"""Weighted mean of the instance scores, :math:`\sum_x e^{a(x)} \delta(x) / \sum_x e^{a(x)}`.

    Instances have two columns: score :math:`\delta` and attention logit :math:`a`.

    Example:
        >>> instances = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 9.0]])
        >>> AttentionPooling()(instances, torch.tensor([0, 0, 1]), 2)
        tensor([2., 5.])
    """

    name = "attention"
    columns = 2
    dim = 2

    def centered_logits(self, instances: Tensor) -> Tensor:
        """Return scores, and logits less their mean over the batch, which is taken for a constant."""
        score, logit = instances.unbind(1)
        return torch.stack([score, logit - logit.detach().mean()], dim=1)

    def observe(self, instances: Tensor, bag: Tensor, count: int) -> Tensor:
        """Return the weighted means, and the logarithms of the mean weights."""
        score, logit = instances.unbind(1)
        peak = _segment_max(logit, bag, count)
        share = (logit - peak.index_select(0, bag)).exp()
        mass = _segment_mean(share, bag, count)
        return torch.stack([_segment_mean(share * score, bag, count) / mass, peak + mass.log()], dim=1)

    def score(self, row: Tensor) -> Tensor:
        """Return the weighted means."""
        return row[:, 0]

    def _moved(self, row: Tensor, now: Tensor, before: Tensor | None, move: Move) -> Tensor:
        """Return the new rows; the ball holds both averages."""
        (score, log), (score_now, log_now) = row.chunk(2, dim=1), now.chunk(2, dim=1)
        peak, old, fresh = _shares(log, log_now, move.tau)
        mass, moment = old + fresh, old * score + fresh * score_now
        if before is not None:
            score_before, log_before = before.chunk(2, dim=1)
            gain, loss = (log_now - peak).exp(), (log_before - peak).exp()
            change, drift = move.gamma * (gain - loss), move.gamma * (gain * score_now - loss * score_before)
            fits = _fits(mass, change)
            mass, moment = torch.where(fits, mass + change, mass), torch.where(fits, moment + drift, moment)
        score, log = moment / mass, peak + mass.log()
        if move.bound is not None:
            log = torch.minimum(log, math.log(move.bound) - 0.5 * torch.log1p(score.square()))
        return torch.cat([score, log], dim=1)

    def vjp(self, weight: Tensor, row: Tensor, instances: Tensor, bag: Tensor) -> Tensor:
        """Return the derivatives of the weighted means in scores and logits, times the weights of the bags."""
        score, logit = instances.unbind(1)
        share = (weight / _sizes(bag, len(weight), weight.dtype)).index_select(0, bag)
        share = share * (logit - _divisor(row[:, 1], logit, bag)).exp()
        return torch.stack([share, share * (score - row[:, 0].index_select(0, bag))], dim=1)


POOLINGS: dict[str, type[Pooling]] = {
    pooling.name: pooling for pooling in (MeanPooling, SmoothedMaxPooling, AttentionPooling)
}


def get_pooling(owner: str, pooling: PoolingName | Pooling, temperature: float = 0.1) -> Pooling:
    """Return a pooling by its name, or as it is; `temperature` is that of the smoothed max."""
    if isinstance(pooling, Pooling):
        return pooling
    if not isinstance(pooling, str) or pooling not in POOLINGS:
        raise ValueError(f"{owner}: pooling must be one of {list(POOLINGS)} or a Pooling, got {pooling!r}")
    temperature = check_real(owner, "temperature", temperature, low=0.0, low_open=True)
    kind = POOLINGS[pooling]
    return kind(temperature) if issubclass(kind, SmoothedMaxPooling) else kind()


def exact_type(values: Tensor) -> torch.dtype:
    """Return the type of rows of bags: logarithms of a thousand and more in float32 would spoil their exponentials."""
    return torch.float32 if values.device.type == "mps" else torch.float64


def check_update_order(owner: str, order: UpdateOrder) -> UpdateOrder:
    """Return `order`: whether a step uses the rows before or after their update."""
    if order not in ("before", "after"):
        raise ValueError(f"{owner}: update_order must be 'before' or 'after', got {order!r}")
    return order


def _sizes(bag: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    # `bincount` would synchronize with the GPU
    ones = torch.ones(len(bag), dtype=dtype, device=bag.device)
    return torch.zeros(count, dtype=dtype, device=bag.device).index_add_(0, bag, ones)


def _segment_mean(values: Tensor, bag: Tensor, count: int) -> Tensor:
    total = torch.zeros(count, dtype=values.dtype, device=values.device).index_add(0, bag, values)
    return total / _sizes(bag, count, values.dtype)


def _segment_max(logit: Tensor, bag: Tensor, count: int) -> Tensor:
    """Return the maxima without gradient: exponentials are computed relative to them."""
    low = torch.full((count,), -torch.inf, dtype=logit.dtype, device=logit.device)
    return low.scatter_reduce(0, bag, logit.detach(), "amax")


def _log_mean_exp(logit: Tensor, bag: Tensor, count: int) -> Tensor:
    peak = _segment_max(logit, bag, count)
    return peak + _segment_mean((logit - peak.index_select(0, bag)).exp(), bag, count).log()


def _divisor(log: Tensor, logit: Tensor, bag: Tensor) -> Tensor:
    """Return the logarithm to divide by for each instance: that of its bag's row, if exponentials stay finite."""
    return torch.maximum(log, _log_mean_exp(logit, bag, len(log)) - _STEEPEST).index_select(0, bag)


def _shares(old: Tensor, new: Tensor, tau: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the larger of two logarithms, and the weights of both in their average relative to it."""
    if tau == 1.0:
        return new, torch.zeros_like(old), torch.ones_like(new)
    peak = torch.maximum(old, new)
    return peak, (1.0 - tau) * (old - peak).exp(), tau * (new - peak).exp()


def _fits(mass: Tensor, change: Tensor) -> Tensor:
    """Return where a correction is made; not where it is infinite, or NaN since its weight is 0."""
    return mass + change >= _LEAST * mass
