"""One iteration of the loss over groups in which nothing waits for the device.

A group is present as often as it has samples in the batch: each sample stands for its group, with a weight of one over
their number. Where memberships are given as a matrix, all groups are listed, and those absent stand for a present one
with weight 0. What several of them write to one row is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from moreauc._checks import check_device, check_floating, check_shape
from moreauc.core.visits import Visit
from moreauc.criteria._base import with_gradient
from moreauc.criteria._dense import dense_update, visited_quantile
from moreauc.criteria._late import nonfinite, refused

if TYPE_CHECKING:
    from moreauc.criteria.group_dro import GroupDROLoss

GROUP_FAULTS = (
    "losses must be finite, got NaN or infinity",
    "previous_losses must be finite, got NaN or infinity",
    "the loss and the updated rows and threshold must be finite, got NaN or infinity",
    "groups must lie in the range of the groups, or hold memberships, 0 or 1, got another number",
    "groups must give at least one sample a group, got none",
)


class DenseGroups(NamedTuple):
    """Groups of a batch, as a list of length `L` in which a group may come several times.

    Attributes:
        present: number of the group of each entry, shape `(L,)`.
        members: which samples belong to which entry's group, shape `(B, L)`, or None where entry and sample are one.
        sizes: samples of each entry's group, at least 1, shape `(L,)`, float64.
        share: weight of each entry in the mean over the groups present, shape `(L,)`, float64.
        number: groups present, at least 1, shape `()`, float64.
        total: number of groups.
        wrong: the last two flags of `GROUP_FAULTS`.
    """

    present: Tensor
    members: Tensor | None
    sizes: Tensor
    share: Tensor
    number: Tensor
    total: int
    wrong: Tensor

    def means(self, losses: Tensor) -> Tensor:
        """Return the mean loss of each entry's group, shape `(L,)`."""
        if self.members is not None:
            return (losses.unsqueeze(1) * self.members).sum(0) / self.sizes.to(losses.dtype)
        sums = torch.zeros(self.total, dtype=losses.dtype, device=losses.device).index_add(0, self.present, losses)
        return sums.index_select(0, self.present) / self.sizes.to(losses.dtype)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over the groups present of one value for each entry: summed up first, each group once."""
        whole = torch.zeros(self.total, dtype=values.dtype, device=values.device)
        return whole.index_copy(0, self.present, values).sum() / self.number.to(values.dtype)

    def pull(self, slope: Tensor) -> Tensor:
        """Return the gradient in the losses of the mean over the groups of `slope` times mean loss, shape `(B,)`."""
        weight = slope * self.share
        if self.members is not None:
            return (self.members * (weight / self.sizes)).sum(1)
        return weight  # one over the number of samples is in the share already, and each has its own entry


def dense_groups(owner: str, losses: Tensor, groups: Tensor, num_groups: int, device: torch.device) -> DenseGroups:
    """Check types and shapes, and leave the rest to the device."""
    check_floating(owner, "losses", losses)
    check_shape(owner, "losses", losses, [("B",)])
    check_device(owner, "losses", losses, device)
    found: Tensor = torch.as_tensor(groups)
    check_shape(owner, "groups", found, [tuple(losses.shape), (len(losses), num_groups)])
    found = found.to(device, non_blocking=True)
    if found.ndim == 2:
        return _from_memberships(found)
    if found.dtype == torch.bool or found.is_floating_point() or found.is_complex():
        raise ValueError(f"{owner}: groups must hold integers, got {found.dtype}")
    found = found.long()
    present = found.clamp(0, num_groups - 1)
    ones = torch.ones(len(present), dtype=torch.float64, device=device)
    counts = torch.zeros(num_groups, dtype=torch.float64, device=device).index_add(0, present, ones)
    sizes, number = counts.index_select(0, present), (counts > 0).sum().double()
    outside = (present != found).any()
    wrong = torch.stack([outside, torch.zeros_like(outside)])
    return DenseGroups(present, None, sizes, 1.0 / (sizes * number), number, num_groups, wrong)


def _from_memberships(found: Tensor) -> DenseGroups:
    strange = ((found != 0) & (found != 1)).any()
    members = found != 0
    counts = members.sum(0)
    here = counts > 0
    places = torch.arange(len(here), device=found.device)
    present = torch.where(here, places, here.int().argmax())
    number = here.sum().clamp_min(1).double()
    sizes = counts.index_select(0, present).clamp_min(1).double()
    wrong = torch.stack([strange, ~here.any()])
    entries = members.index_select(1, present)
    return DenseGroups(present, entries, sizes, here / number, number, len(here), wrong)


def forward_late(loss: GroupDROLoss, losses: Tensor, groups: Tensor, previous_losses: Tensor | None) -> Tensor:
    """Do what a call of the loss does, and ask on the device what it must not wait for."""
    table = loss.table_u
    batch = dense_groups(loss._owner, losses, groups, loss.num_groups, table.values.device)
    wide = losses.to(torch.promote_types(losses.dtype, torch.float32))
    if not loss.training:
        with torch.no_grad():
            threshold, factor = loss.s, loss.num_groups / loss.top_k
            excess = batch.means(wide.detach()) - threshold
            value = threshold + factor * batch.mean(torch.relu(excess))
            gradient = batch.pull((excess > 0).to(wide.dtype) * factor).to(wide.dtype)
            bad = _judge(loss, batch, wide, None, value.reshape(1))
            value, gradient = refused(bad, value.to(wide.dtype), gradient)
        loss._send(losses, groups, None)
        return with_gradient(wide, value, gradient)
    before = None
    if loss.needs_previous:
        loss._check_previous("previous_losses", previous_losses, "losses", losses, gammas="gamma")
        before = None if previous_losses is None else previous_losses.detach().to(wide.dtype)
    with torch.no_grad():
        value, gradient = _step(loss, batch, wide.detach(), before)
    loss._send(losses, groups, before)
    return with_gradient(wide, value, gradient)


def _step(loss: GroupDROLoss, batch: DenseGroups, losses: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return value and gradient of one iteration, which has been written where nothing is wrong."""
    table, factor = loss.table_u, loss.num_groups / loss.top_k
    wide = torch.promote_types(losses.dtype, table.values.dtype)
    now = batch.means(losses).unsqueeze(1).to(wide)
    old = None if before is None else batch.means(before).unsqueeze(1).to(wide)
    visit = Visit(table, batch.present, wide)
    row = visit.row(now)
    new = dense_update(table.rule, row, now, old, loss.num_groups, batch.number)
    used, threshold = row, loss.s
    share: Tensor | float = 0.0
    if isinstance(loss.threshold_lr, str):
        used, (threshold, share) = new, _best_threshold(loss, batch, new)
    excess = used.squeeze(1) - threshold
    value = threshold + factor * batch.mean(torch.relu(excess))
    slope = ((excess > 0).to(wide) + share * (excess == 0).to(wide)) * factor  # d f / d u; d f / d s is 1 minus this
    moved = threshold
    if not isinstance(loss.threshold_lr, str):
        moved = threshold - loss.threshold_lr * (1.0 - batch.mean(slope))
    bad = _judge(loss, batch, losses, before, new.squeeze(1) + moved + value)
    visit.write(bad, row, new)
    level = loss.table_s
    level._widen(torch.promote_types(wide, level.values.dtype))
    level.values.copy_(torch.where(bad, level.values, moved.to(level.values.dtype)))
    return refused(bad, value.to(wide), batch.pull(slope).to(losses.dtype))


def _judge(loss: GroupDROLoss, batch: DenseGroups, losses: Tensor, before: Tensor | None, results: Tensor) -> Tensor:
    losses = losses.detach()
    return loss._judge(nonfinite(losses, losses if before is None else before), nonfinite(results), batch.wrong)


def _best_threshold(loss: GroupDROLoss, batch: DenseGroups, new: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best threshold for the rows after this step, and how much of a row equal to it counts."""
    values = loss.table_u.values.to(new.dtype, copy=True).index_copy(0, batch.present, new).squeeze(1)
    seen = loss.table_u.visited.index_fill(0, batch.present, True)
    fraction = loss.top_k / loss.num_groups
    threshold = visited_quantile(values, seen, fraction)
    above, tied = ((values > threshold) & seen).sum(), ((values == threshold) & seen).sum()
    number = seen.sum()
    # as `floor_count`: a rounding error is forgiven
    count = torch.minimum(number, (number * (fraction + 4.0 * torch.finfo(torch.float64).eps)).floor().long())
    rest = (count.clamp_min(1) - above).double() / tied.clamp_min(1)
    return threshold, torch.where(rest > 0, rest, 0.0) * (tied > 0)
