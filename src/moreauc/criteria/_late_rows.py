"""A loss of rows over groups, called so that nothing waits for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from moreauc._checks import as_index, check_shape
from moreauc.criteria._gates import enter, leave
from moreauc.criteria._late import nonfinite

if TYPE_CHECKING:
    from moreauc.criteria.grouped import GroupedLoss

GROUPED_FAULTS = (
    "scores must be finite, got NaN or infinity",
    "previous_scores must be finite, got NaN or infinity",
    "index must lie in the range of the training set, got another number",
    "index must not repeat a row inside one batch, got one more than once",
    "labels must be such as the loss of a row takes, got another one",
)


def forward_late(
    loss: GroupedLoss, scores: Tensor, labels: Any, index: Tensor, previous_scores: Tensor | None
) -> Tensor:
    """Do what a call does; where a row is wrong its loss is NaN, which the inner loss refuses without changing."""
    place = loss.groups.device
    found = as_index(loss._owner, "index", index, len(scores)).to(place, non_blocking=True)
    safe = found.clamp(0, len(loss.groups) - 1)
    wide = torch.promote_types(scores.dtype, torch.float32)
    targets, strange = _labels(loss, labels, scores, wide)
    now, word = enter(scores.to(wide))
    before = None
    if loss.training and loss.needs_previous:
        loss._check_previous("previous_scores", previous_scores, "scores", scores, gammas="gamma")
        before = None if previous_scores is None else previous_scores.detach().to(wide)
    with torch.no_grad():
        ordered = found.sort().values
        repeated = (ordered == ordered.roll(1)).any() & (loss.training and len(ordered) > 1)
        flags = torch.stack([(safe != found).any(), repeated, strange])
        bad = loss._judge(nonfinite(now, now if before is None else before), flags)
    # The scores of a refused batch are replaced, so that a user's loss need not know NaN.
    losses = loss._losses(now.masked_fill(bad, 0.0), targets).masked_fill(bad, torch.nan)
    previous: dict[str, Tensor] = {}
    if before is not None:
        with torch.no_grad():
            previous["previous_losses"] = loss._losses(before, targets)
    value: Tensor = loss.criterion(losses, loss.groups.index_select(0, safe), **previous)
    loss._send(scores, labels, index, before)
    return leave(value, word, value.detach().isnan())  # the inner loss, too, may have refused it


def _labels(loss: GroupedLoss, labels: Any, scores: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the labels as the loss of a row takes them, and whether one of them is not such."""
    owner = loss._owner
    values: Tensor = torch.as_tensor(labels).to(scores.device, non_blocking=True)
    if callable(loss.loss):
        return values, torch.zeros((), dtype=torch.bool, device=scores.device)
    check_shape(owner, "labels", values, [(len(scores),)])
    if loss.loss == "logistic":
        return values.long(), ((values != 0) & (values != 1)).any()
    if loss.loss == "cross_entropy":
        if values.dtype == torch.bool or values.is_floating_point() or values.is_complex():
            raise ValueError(f"{owner}: labels must hold integers, got {values.dtype}")
        safe = values.long().clamp(0, scores.shape[1] - 1)
        return safe, (safe != values).any()
    if values.is_complex():
        raise ValueError(f"{owner}: labels must hold real numbers, got {values.dtype}")
    values = values.to(dtype)
    return values, nonfinite(values).squeeze(0)
