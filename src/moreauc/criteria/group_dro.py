r"""The mean loss of the K worst groups as a coupled compositional loss (SONX)."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor

from moreauc._checks import check_count, check_real
from moreauc.core.outer import cvar, stepped, tied_share, upper_quantile
from moreauc.core.tables import EstimatorTable, Gamma, Table, UpdateRule
from moreauc.criteria._base import Criterion, Step, rule_attribute
from moreauc.criteria._batches import Members, group_members, widened
from moreauc.criteria._validation import Check


class _Losses(NamedTuple):
    """A checked batch: losses of samples, with gradient, their groups, and losses at the previous weights."""

    losses: Tensor
    groups: Members
    before: Tensor | None


class GroupDROLoss(Criterion):
    r"""Mean loss of the `top_k` worst of :math:`N` groups.

    .. math::

        F(w, s) = s + \frac1K \sum_{k=1}^N (L_k(w) - s)_+ = \frac1N \sum_{k=1}^N f(L_k(w), s), \quad
        f(u, s) = s + \frac NK (u - s)_+

    with :math:`L_k` the mean loss of group :math:`k`; minimised over :math:`s` it is the mean of the :math:`K` largest
    (appendix on group distributionally robust optimisation).

    In training mode a call is one iteration of SONX over the groups :math:`B` present in the batch, with
    :math:`L_k(w; B)` the mean over the samples of group :math:`k` in it:

    .. math::

        u_{k,t+1} &= (1 - \tau) u_{k,t} + \tau L_k(w_t; B) + \gamma (L_k(w_t; B) - L_k(w_{t-1}; B)) \\
        s_{t+1} &= s_t - \eta_s \frac1{|B|} \sum_{k \in B} \partial_s f(u_{k,t}, s_t) \\
        G_t &= \frac1{|B|} \sum_{k \in B} \partial_u f(u_{k,t}, s_t)\, \nabla L_k(w_t; B)

    The value returned is the mean of :math:`f(u_{k,t}, s_t)`. Other groups are not touched. The mean over the groups in
    the batch estimates the mean over all groups if every group is drawn equally often, as
    :class:`~moreauc.samplers.GroupSampler` does; in shuffled batches frequent groups count more.

    In `eval()` mode a call returns the mean of :math:`f(L_k, s)` over the groups of the batch, at the present
    threshold, and changes nothing.

    `threshold_lr="quantile"` replaces the step of :math:`s`: given the rows the best threshold is known, the
    :math:`(K+1)`-th largest of them (of those visited so far, in proportion). It is taken after the rows have moved,
    and value and gradient are those at :math:`u_{t+1}` and this threshold; rows equal to it share what is left of
    :math:`K`. There is no step size to choose and no delay. It is not covered by the paper's theorems.

    Args:
        num_groups: :math:`N`, at least 1.
        top_k: :math:`K` in [1, N].
        gamma: correction weight, at least 0, or "theory" with :math:`N` and the number of groups in the batch.
        threshold_lr: :math:`\eta_s`, at least 0, or "quantile".

    Shape:
        - losses, previous_losses: `(B,)`, loss of each sample, of any kind (regression, any number of classes)
        - groups: `(B,)`, group ids in [0, N); or `(B, N)`, memberships, for groups that overlap
        - output: scalar

    Example:
        >>> criterion = GroupDROLoss(3, top_k=1)
        >>> losses = torch.tensor([1.0, 3.0, 0.5], requires_grad=True)
        >>> loss = criterion(losses, torch.tensor([0, 0, 2]))
        >>> loss.backward()
        >>> loss.item(), losses.grad, criterion.u
        (3.75, tensor([0.7500, 0.7500, 1.5000]), tensor([2.0000, 0.0000, 0.5000]))
    """

    label_buffers: ClassVar[tuple[str, ...]] = ()
    tau = rule_attribute("table_u", "tau", "Averaging weight in (0, 1].")
    gamma = rule_attribute("table_u", "gamma", "Correction weight.")

    def __init__(
        self,
        num_groups: int,
        *,
        top_k: int,
        tau: float = 0.9,
        gamma: Gamma = 0.0,
        threshold_lr: float | Literal["quantile"] = 0.01,
        initial: float | Tensor | None = None,
    ) -> None:
        super().__init__()
        owner = self._owner
        self.num_groups = check_count(owner, "num_groups", num_groups)
        self.top_k = check_count(owner, "top_k", top_k)
        if self.top_k > self.num_groups:
            raise ValueError(f"{owner}: top_k must lie in [1, {self.num_groups}], got {top_k}")
        self.threshold_lr = threshold_lr
        rule = UpdateRule(owner, tau, gamma)
        self.table_u = EstimatorTable(self.num_groups, rule=rule, initial=initial)
        self.threshold = Table(owner, 1, initial=0.0)

    @property
    def needs_previous(self) -> bool:
        """Whether a call in training mode needs `previous_losses`: `gamma` is not 0."""
        return self.table_u.rule.corrects

    @property
    def u(self) -> Tensor:
        """Rows of the groups, shape `(num_groups,)`."""
        return self.table_u.values

    @property
    def s(self) -> Tensor:
        """The threshold, shape `()`."""
        return self.threshold.values.view(())

    @property
    def threshold_lr(self) -> float | Literal["quantile"]:
        """Step size of the threshold, or "quantile"."""
        return self._threshold_lr

    @threshold_lr.setter
    def threshold_lr(self, value: float | Literal["quantile"]) -> None:
        if isinstance(value, str) and value != "quantile":
            raise ValueError(f"{self._owner}: threshold_lr must be a number or 'quantile', got {value!r}")
        self._threshold_lr: float | Literal["quantile"] = "quantile"
        if not isinstance(value, str):
            self._threshold_lr = check_real(self._owner, "threshold_lr", value, low=0.0)

    def _batch(self, check: Check, losses: Tensor, groups: Tensor, previous_losses: Tensor | None = None) -> _Losses:
        members = group_members(check, losses, groups, self.num_groups, self.table_u.values.device)
        before = check.previous("losses", losses, previous_losses, self.training and self.needs_previous)
        check.finite(losses=losses, previous_losses=before)
        return _Losses(widened(losses), members, before)

    def _step(self, batch: _Losses) -> Step:
        losses, groups, before = batch
        table, fraction = self.table_u, self.top_k / self.num_groups
        now = groups.means(losses.detach())
        row = new = table.read(groups.present, fill=now) if self.training else now
        if self.training:
            old = None if before is None else groups.means(before.to(losses.dtype))
            new = table.propose(row, now, old, groups.number)
        used, threshold, tied = row, self.s, torch.zeros((), device=losses.device)
        if self.training and self.threshold_lr == "quantile":
            used, (threshold, tied) = new, self._best_threshold(groups.present, new)
        value, slope = cvar(used, threshold, fraction, groups.mean, tied)
        gradient = groups.vjp(slope, len(losses)).to(losses.dtype)
        if not self.training:
            return Step(value, losses, gradient, finite={"the loss": value})
        moved = threshold
        if not isinstance(self.threshold_lr, str):
            moved = cast("Tensor", stepped(threshold, self.threshold_lr, groups.mean(slope)))

        def write(bad: Tensor | None) -> None:
            table.write(groups.present, row, new, bad)
            self.threshold.write_all(moved.view(1), bad)

        finite = {"the loss": value, "the updated row": new, "the updated threshold": moved}
        return Step(value, losses, gradient, finite=finite, write=write)

    def _best_threshold(self, present: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best threshold for the rows after this step, and how much of a row equal to it counts."""
        values = self.table_u.values.to(new.dtype).index_copy(0, present, new)
        seen = self.table_u.visited.index_fill(0, present, True)
        fraction = self.top_k / self.num_groups
        threshold = upper_quantile(values, fraction, seen)
        return threshold, tied_share(values, threshold, fraction, seen)
