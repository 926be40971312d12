r"""Two-way partial AUC over bags of instances (SONT, Algorithm 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from moreauc.core.pooling import Pooling, PoolingName, UpdateOrder, check_update_order, exact_type, get_pooling
from moreauc.core.surrogates import Link
from moreauc.core.tables import EstimatorTable, Gamma, UpdateRule, correction_weight
from moreauc.criteria._base import Step
from moreauc.criteria._batches import Instances, Rows, bag_instances
from moreauc.criteria._labelled import ThresholdRate, TwoWayCriterion
from moreauc.criteria._validation import Check, check_pair

Gammas = tuple[Gamma, Gamma, Gamma]


class _Bags(NamedTuple):
    """A checked batch: bags, their instances, with gradient, and instances at the previous weights."""

    rows: Rows
    instances: Instances
    before: Tensor | None


class MultiInstanceTPAUCLoss(TwoWayCriterion):
    r"""Surrogate of the two-way partial AUC of bags, from a few instances of each.

    A bag's score is pooled from its instances, :math:`h_i = \sigma(p(v_i))`: :math:`v_i` is an average over the bag,
    the function :math:`p` turns it into a score (:mod:`moreauc.core.pooling` lists both) and :math:`\sigma` is the
    link. The objective is that of :class:`~moreauc.TPAUCLoss` with these scores. A row :math:`v_i` for each bag tracks
    the average, so that a step needs only a few instances of the bags in its batch:

    .. math::

        v_{i,t+1} &= \Pi[(1 - \tau_1) v_{i,t} + \tau_1 y_i(w_t) + \gamma_{1,2} (y_i(w_t) - y_i(w_{t-1}))]
            && \text{(line 4)} \\
        u_{i,t+1} &= (1 - \tau_2) u_{i,t} + \tau_2 \psi_i(v_t, s_{i,t})
            + \gamma_3 (\psi_i(v_t, s_{i,t}) - \psi_i(v_{t-1}, s_{i,t-1})) && \text{(line 5)} \\
        s_{i,t+1} &= s_{i,t} - \frac{\eta_s}{B_1} \partial_s \psi_i(v_t, s_{i,t})\, \partial_u f(u_{i,t}, s'_t)
            && \text{(line 6)} \\
        s'_{t+1} &= s'_t - \eta_{s'} \frac1{B_1} \sum_i \partial_{s'} f(u_{i,t}, s'_t) && \text{(line 7)} \\
        G_t &= \frac1{B_1} \sum_i \partial_u f(u_{i,t}, s'_t)\, \partial_v \psi_i(v_t, s_{i,t})\, \nabla y(w_t)
            && \text{(lines 8, 9)}

    with :math:`y_i(w)` the average over the instances sampled from bag :math:`i`, the same ones in both terms of a
    correction, and sums over the bags of the batch. All values on the right are those before the step.

    `update_order="after"` reads :math:`v_{t+1}` wherever lines 5 to 9 read :math:`v_t` (and :math:`v_t` for
    :math:`v_{t-1}`), as published code for such problems often does, and subtracts the batch mean from attention
    logits. It is not covered by the paper's theorems, and works far better when a bag is visited once in many steps.

    Averages of exponentials are stored as logarithms, so that no instance score overflows. The constants :math:`C` that
    the paper adds inside its exponentials are 0.

    Args:
        margin: of the surrogate; None for the paper's 0.5 (for the ramp, its default).
        tau: :math:`\tau_1` and :math:`\tau_2` in (0, 1], or one number for both.
        gamma: :math:`\gamma_1` for positive bags, :math:`\gamma_2` for negative bags, :math:`\gamma_3` for :math:`u`,
            each at least 0 or "theory"; or one of these for all three.
        bound: radius :math:`\tilde C_h` of the projection of :math:`v`, above 0; None for none. It must be larger than
            all averages, including those of exponentials: with scores of 1 and temperature 0.1, above :math:`e^{10}`.
        update_order: "before" for the paper's update order, "after" for the rule above. docs/bags.md compares them.

    Shape:
        - instances, previous_instances: `(T,)`, scores of all instances of the batch; for attention `(T, 2)`, score and
          attention logit
        - bag: `(T,)`, position in the batch of each instance's bag, in any order
        - labels: `(B,)`, 0/1; index: `(B,)`, numbers of the bags in the training set, no repeats
        - output: scalar

    Example:
        >>> criterion = MultiInstanceTPAUCLoss([0, 1, 0, 1], min_tpr=0.5, max_fpr=0.5, pooling="mean")
        >>> instances = torch.tensor([0.5, -0.5, 1.0, 0.0, 2.0], requires_grad=True)
        >>> loss = criterion(instances, torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 1]), torch.tensor([2, 3]))
        >>> loss.backward()
        >>> instances.grad.sign(), criterion.v
        (tensor([ 1.,  1.,  1., -1., -1.]), tensor([0.0000, 0.0000, 0.3333, 1.0000], dtype=torch.float64))
    """

    _UNIT = "bags"

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        min_tpr: float,
        max_fpr: float,
        pooling: PoolingName | Pooling,
        temperature: float = 0.1,
        surrogate: str = "squared_hinge",
        margin: float | None = None,
        link: Link = "sigmoid",
        tau: float | tuple[float, float] = 0.9,
        gamma: Gamma | Gammas = 0.0,
        threshold_lr: ThresholdRate = (1.0, 0.01),
        bound: float | None = None,
        update_order: UpdateOrder = "before",
    ) -> None:
        owner = self._owner
        tau1, tau2 = check_pair(owner, "tau", tau, high=1.0, low_open=True)
        gammas = _triple(owner, gamma)
        # Rules check their numbers; those of positive and negative bags share table and averaging weight.
        rules = [UpdateRule(owner, tau1, gammas[0], bound, "1"), UpdateRule(owner, tau1, gammas[1], suffix="2")]
        super().__init__(
            labels,
            UpdateRule(owner, tau2, gammas[2], suffix="3"),
            min_tpr=min_tpr,
            max_fpr=max_fpr,
            surrogate=surrogate,
            margin=0.5 if margin is None and surrogate != "smooth_ramp" else margin,
            link=link,
            threshold_lr=threshold_lr,
        )
        self.pooling = get_pooling(owner, pooling, temperature)
        self.update_order = check_update_order(owner, update_order)
        self._gamma1, self._gamma2 = gammas[:2]
        bags = len(self.position)
        self.table_v = EstimatorTable(bags, self.pooling.dim, rule=rules[0], keep_previous=True)

    @property
    def needs_previous(self) -> bool:
        r"""Whether a call in training mode needs `previous_instances`: :math:`\gamma_1` or :math:`\gamma_2` above 0."""
        return self._gamma1 != 0.0 or self._gamma2 != 0.0

    @property
    def v(self) -> Tensor:
        """Rows of the bags, shape `(num_bags,)`, or `(num_bags, dim)` where the pooling's `dim` is not 1."""
        return self.table_v.values.squeeze(1) if self.pooling.dim == 1 else self.table_v.values

    @property
    def bag_scores(self) -> Tensor:
        """Scores that the rows stand for, shape `(num_bags,)`; of a bag never visited it is that of a row of zeros."""
        return self.pooling.score(self.table_v.values)

    @property
    def tau(self) -> tuple[float, float]:
        r"""Averaging weights :math:`(\tau_1, \tau_2)`; one number sets both."""
        return self.table_v.rule.tau, self.table_u.rule.tau

    @tau.setter
    def tau(self, value: float | tuple[float, float]) -> None:
        tau1, tau2 = check_pair(self._owner, "tau", value, high=1.0, low_open=True)
        replace(self.table_v.rule, tau=tau1, gamma=self._gamma2, suffix="2")  # for its checks
        rules = replace(self.table_v.rule, tau=tau1), replace(self.table_u.rule, tau=tau2)
        self.table_v.rule, self.table_u.rule = rules

    @property
    def gamma(self) -> Gammas:
        r"""Correction weights :math:`(\gamma_1, \gamma_2, \gamma_3)`; one value sets all."""
        return self._gamma1, self._gamma2, self.table_u.rule.gamma

    @gamma.setter
    def gamma(self, value: Gamma | Gammas) -> None:
        gammas = _triple(self._owner, value)
        replace(self.table_v.rule, gamma=gammas[1], suffix="2")  # for its checks
        rules = replace(self.table_v.rule, gamma=gammas[0]), replace(self.table_u.rule, gamma=gammas[2])
        self.table_v.rule, self.table_u.rule = rules
        self._gamma1, self._gamma2 = gammas[:2]

    def _batch(  # type: ignore[override]
        self,
        check: Check,
        instances: Tensor,
        bag: Tensor,
        labels: Tensor,
        index: Tensor,
        previous_instances: Tensor | None = None,
    ) -> _Bags:
        rows = self._rows(check, labels, index, ("B",))
        found = bag_instances(check, instances, bag, len(rows.numbers), self.pooling, self.position.device)
        before = check.previous("instances", instances, previous_instances, self.training and self.needs_previous)
        check.finite(instances=instances, previous_instances=before)
        return _Bags(rows, found, before)

    def _step(self, batch: _Bags) -> Step:  # type: ignore[override]
        rows, (values, bag, count), before = batch
        pooling, rule, table = self.pooling, self.table_v.rule, self.table_v
        exact = values.detach().to(exact_type(values))
        past = None if before is None else before.to(exact.dtype)
        if self.update_order == "after" and self.training:
            exact = pooling.centered_logits(exact)
            past = None if past is None else pooling.centered_logits(past)
        now = pooling.observe(exact, bag, count)
        used = held = new = now
        last = None
        if self.training:
            old = None if past is None else pooling.observe(past, bag, count)
            held = table.read(rows.numbers, fill=now)
            new = pooling.update(held, now, old, tau=rule.tau, gamma=self._bag_gammas(rows), bound=rule.bound)
            used = held if self.update_order == "before" else new
            if self.table_u.rule.corrects:
                used_last = table.previous(rows.numbers, held) if self.update_order == "before" else held
                last = self._linked(pooling.score(used_last), rows)[0].to(values.dtype)
        linked, scale = self._linked(pooling.score(used), rows)
        h = linked.to(values.dtype)
        step = self._advance(rows, h, last)
        assert step.gradient is not None  # for the type checker
        weight = self._before_link(step.gradient.to(held.dtype), h, scale)
        largest = torch.finfo(values.dtype).max
        gradient = pooling.vjp(weight, used, exact, bag).clamp(-largest, largest).to(values.dtype)

        def write(bad: Tensor | None) -> None:
            if self.training:
                table.write(rows.numbers, held, new, bad)
                step.write(bad)

        finite = {**step.finite, "the updated bag": new, "the gradient": gradient}
        return Step(step.value, values, gradient, finite=finite, write=write)

    def _bag_gammas(self, rows: Rows) -> Tensor | float:
        """Return the correction weights of the batch's bags, shape `(B, 1)`."""
        if not self.needs_previous:
            return 0.0
        tau = self.table_v.rule.tau
        upper = correction_weight(self._gamma1, tau, self.num_positives, rows.positives)
        lower = correction_weight(self._gamma2, tau, self.num_negatives, rows.negatives)
        share = rows.positive.to(self.table_v.values.dtype)
        return (share * upper + (1.0 - share) * lower).unsqueeze(1)  # exactly one of the two


def _triple(owner: str, gamma: Gamma | Gammas) -> Gammas:
    triple = tuple(gamma) if isinstance(gamma, tuple | list) else (gamma, gamma, gamma)
    if len(triple) != 3:
        raise ValueError(f"{owner}: gamma must be a number, 'theory' or three of these, got {gamma!r}")
    return triple[0], triple[1], triple[2]
