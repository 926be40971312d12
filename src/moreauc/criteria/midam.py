r"""The whole AUC over bags of instances, with tracked pooling (MIDAM)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from moreauc.core.pooling import Pooling, PoolingName, UpdateOrder, check_update_order, exact_type, get_pooling
from moreauc.core.surrogates import Link
from moreauc.core.tables import EstimatorTable, UpdateRule
from moreauc.criteria._base import Step, rule_attribute
from moreauc.criteria._batches import Instances, Rows, bag_instances
from moreauc.criteria._validation import Check
from moreauc.criteria.auc_min_max import AUCMinMaxLoss


class MIDAMLoss(AUCMinMaxLoss):
    r"""Min-max margin loss of the AUC of bags, from a few instances of each (MIDAM).

    The objective is that of :class:`~moreauc.criteria.AUCMinMaxLoss` with the scores :math:`h_i = \sigma(p(v_i))` of
    bags: :math:`v_i` is an average over the bag, the function :math:`p` turns it into a score (`moreauc.core.pooling`
    lists both) and :math:`\sigma` is the link. A row for each bag tracks the average. In training mode a call is one
    iteration:

    .. math::

        v_{i,t+1} &= (1 - \tau) v_{i,t} + \tau y_i(w_t) \\
        G_t &= \sum_i \partial_{h_i} L(h(v_t), a_t, b_t, \theta_t)\, \partial_v h_i(v_{i,t})\, \nabla y_i(w_t)

    with :math:`y_i(w)` the average over the instances sampled from bag :math:`i` and :math:`L` the min-max loss of the
    bags in the batch, whose :math:`a, b, \theta` move by their slopes at the same :math:`h(v_t)`. The value returned is
    :math:`L(h(v_t), a_t, b_t, \theta_t)`. In `eval()` mode a call returns :math:`L` of the scores pooled from the
    instances given, at the current :math:`a, b, \theta`, and changes nothing.

    With `update_order="before"` gradient, value and dual step use the rows **before** their update, as in the
    algorithm that LibAUC, the library of its authors, describes (:math:`s_i^{t-1}` in the estimators :math:`G^t`); with
    `update_order="after"` those after it, as the code of the authors does, in their repository and in LibAUC. That
    code and this loss differ in these points:

    - They apply the sigmoid to the quotient of attention, as here, but for the smoothed max to the scores of the
      *instances*. For that, take `link="identity"` and a model that ends in a sigmoid.
    - Their rows start at 0 (smoothed max) or 1 (attention), here at the first observed value, as logarithms.
    - Their term in :math:`\theta` is :math:`\theta (m + \bar E_- - \bar E_+) - \theta^2 / 2`, so that the gap between
      the classes counts half as much as in AUC-M; the documentation of LibAUC and this loss follow AUC-M.
    - They have no factor :math:`p (1 - p)`. Here it scales gradients and dual steps as in AUC-M.
    - Their :math:`a` and :math:`b` move with the optimizer, which has momentum, and :math:`\theta` with a step of its
      own. In the experiments :math:`\tau` and that step are halved where the step of the weights is divided by ten.

    Args:
        margin: :math:`m`, at least 0. The authors tune it in {0.1, 0.5, 1}.

    Shape:
        instances, bag, labels, index and output: as for :class:`~moreauc.MultiInstanceTPAUCLoss`

    Example:
        >>> criterion = MIDAMLoss([0, 1, 0, 1], pooling="mean")
        >>> instances = torch.tensor([0.5, -0.5, 1.0, 0.0, 2.0], requires_grad=True)
        >>> loss = criterion(instances, torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 1]), torch.tensor([2, 3]))
        >>> criterion.v, criterion.a > criterion.b
        (tensor([0.0000, 0.0000, 0.3333, 1.0000], dtype=torch.float64), tensor(True))

    Reference:
        Zhu, Wang, Chen, Wang, Sonka, Wu and Yang, Provable Multi-instance Deep AUC Maximization with Stochastic
        Pooling, ICML 2023, arXiv:2305.08040.
    """

    _UNIT = "bags"
    tau = rule_attribute("table_v", "tau", "Averaging weight of the rows in (0, 1].")

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        pooling: PoolingName | Pooling,
        temperature: float = 0.1,
        tau: float = 0.9,
        margin: float = 0.5,
        link: Link = "sigmoid",
        dual_lr: float = 0.1,
        update_order: UpdateOrder = "before",
    ) -> None:
        super().__init__(labels, margin=margin, link=link, dual_lr=dual_lr)
        self.pooling = get_pooling(self._owner, pooling, temperature)
        self.update_order = check_update_order(self._owner, update_order)
        self.table_v = EstimatorTable(len(self.position), self.pooling.dim, rule=UpdateRule(self._owner, tau))

    @property
    def v(self) -> Tensor:
        """Rows of the bags, shape `(num_bags,)`, or `(num_bags, dim)` where the pooling's `dim` is not 1."""
        return self.table_v.values.squeeze(1) if self.pooling.dim == 1 else self.table_v.values

    @property
    def bag_scores(self) -> Tensor:
        """Scores that the rows stand for, shape `(num_bags,)`; of a bag never visited it is that of a row of zeros."""
        return self.pooling.score(self.table_v.values)

    def _batch(  # type: ignore[override]
        self, check: Check, instances: Tensor, bag: Tensor, labels: Tensor, index: Tensor
    ) -> tuple[Rows, Instances]:
        rows = self._rows(check, labels, index, ("B",))
        found = bag_instances(check, instances, bag, len(rows.numbers), self.pooling, self.position.device)
        check.finite(instances=instances)
        return rows, found

    def _step(self, batch: Any) -> Step:
        rows, (values, bag, count) = batch
        exact = values.detach().to(exact_type(values))
        if self.update_order == "after" and self.training:
            exact = self.pooling.centered_logits(exact)
        used = held = new = now = self.pooling.observe(exact, bag, count)
        if self.training:
            held = self.table_v.read(rows.numbers, fill=now)
            new = self.pooling.update(held, now.to(held.dtype), None, tau=self.table_v.rule.tau)
            used = held if self.update_order == "before" else new
        step = self._min_max(rows, self.pooling.score(used).to(values.dtype))
        assert step.gradient is not None  # for the type checker
        gradient = self.pooling.vjp(step.gradient.to(used.dtype), used, exact, bag)
        largest = torch.finfo(values.dtype).max
        gradient = gradient.clamp(-largest, largest).to(values.dtype)

        def write(bad: Tensor | None) -> None:
            if self.training:
                step.write(bad)
                self.table_v.write(rows.numbers, held, new, bad)

        return Step(step.value, values, gradient, finite={**step.finite, "the updated bag": new}, write=write)
