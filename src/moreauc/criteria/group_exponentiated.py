r"""Group DRO by exponentiated gradient: weights of the groups that grow with their losses."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from moreauc._checks import check_count
from moreauc.core.tables import Table
from moreauc.criteria._base import Criterion, Step, number_attribute
from moreauc.criteria._batches import Members, group_members, widened
from moreauc.criteria._validation import Check


class ExponentiatedGroupDROLoss(Criterion):
    r"""Loss of the worst of :math:`N` groups, by weights on the simplex (Sagawa et al. 2020).

    .. math:: \min_w \max_{q \ge 0,\, \sum_k q_k = 1} \; \sum_{k=1}^N q_k L_k(w)

    In training mode a call with the groups :math:`B` present in the batch first moves the weights, by ascent in
    :math:`q` with step :math:`\eta`, and then takes value and gradient at the new ones, the order of their Algorithm 1:

    .. math::

        q_{k,t} &\propto q_{k,t-1} \exp(\eta\, L_k(w_t; B)) \text{ for } k \in B, \qquad
            q_{k,t} \propto q_{k,t-1} \text{ for the others} \\
        G_t &= \frac N{|B|} \sum_{k \in B} q_{k,t}\, \nabla L_k(w_t; B)

    with :math:`L_k(w; B)` the mean loss of the samples of group :math:`k` in the batch. Every weight moves at every
    step, since all are normalised together; the cost of a step grows with :math:`N`.

    Where only some groups are present the sum over them is scaled by :math:`N / |B|`, so that it estimates the sum over
    all groups if every group is drawn equally often (:class:`~moreauc.samplers.GroupSampler`). The published
    algorithm, with one group per step, and its authors' code have no such factor: there it is part of the learning
    rate. The weights are kept as logarithms, so that no exponential overflows.

    In `eval()` mode a call returns the same sum at the current weights and changes nothing.

    Args:
        num_groups: :math:`N`, at least 1.
        step: :math:`\eta`, at least 0. A plain attribute: a schedule may change it.

    Shape:
        - losses: `(B,)`, loss of each sample; previous_losses are not used
        - groups: `(B,)`, group ids in [0, N); or `(B, N)`, memberships, for groups that overlap
        - output: scalar

    Example:
        >>> criterion = ExponentiatedGroupDROLoss(2, step=1.0)
        >>> losses = torch.tensor([0.0, math.log(3.0)], requires_grad=True)
        >>> loss = criterion(losses, torch.tensor([0, 1]))
        >>> loss.backward()
        >>> criterion.weights, losses.grad
        (tensor([0.2500, 0.7500]), tensor([0.2500, 0.7500]))

    Reference:
        Sagawa, Koh, Hashimoto and Liang, Distributionally Robust Neural Networks for Group Shifts: On the Importance of
        Regularization for Worst-Case Generalization, ICLR 2020, arXiv:1911.08731.
    """

    label_buffers: ClassVar[tuple[str, ...]] = ()

    _UNDESCRIBED: ClassVar[tuple[str, ...]] = ("_rate",)  # this is `step`
    step = number_attribute("step", "Step size of the weights, at least 0.", place="_rate")

    def __init__(self, num_groups: int, *, step: float = 0.01) -> None:
        super().__init__()
        self.num_groups = check_count(self._owner, "num_groups", num_groups)
        self.step = step
        self.logarithms = Table(self._owner, self.num_groups, initial=-math.log(self.num_groups))

    @property
    def log_weights(self) -> Tensor:
        """Logarithms of the weights, shape `(num_groups,)`."""
        return self.logarithms.values

    @property
    def weights(self) -> Tensor:
        """The weights of the groups, shape `(num_groups,)`."""
        return self.log_weights.softmax(0)  # narrow types do not keep the sum at 1

    def _batch(
        self, check: Check, losses: Tensor, groups: Tensor, previous_losses: Tensor | None = None
    ) -> tuple[Tensor, Members]:
        members = group_members(check, losses, groups, self.num_groups, self.device)
        check.finite(losses=losses)
        return widened(losses), members

    def _step(self, batch: tuple[Tensor, Members]) -> Step:
        losses, groups = batch
        means = groups.means(losses.detach())
        logs = self.logarithms.read_all(fill=means)
        if self.training:
            logs = logs + torch.zeros_like(logs).index_copy(0, groups.present, self.step * means.to(logs.dtype))
        logs = logs - logs.logsumexp(0)
        weight = self.num_groups * logs.index_select(0, groups.present).exp().to(means.dtype)
        value, gradient = groups.mean(weight * means), groups.vjp(weight, len(losses))

        def write(bad: Tensor | None) -> None:
            if self.training:
                self.logarithms.write_all(logs, bad)

        finite = {"the loss": value, "the updated weights": logs}
        return Step(value, losses, gradient, finite=finite, write=write)
