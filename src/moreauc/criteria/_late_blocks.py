"""The two-level loss, and cross entropy, called so that nothing waits for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import softplus

from moreauc._checks import as_index
from moreauc.core.visits import Visit
from moreauc.criteria._base import straight_through
from moreauc.criteria._dense import ROW_FAULTS, dense_rows
from moreauc.criteria._gates import enter, leave
from moreauc.criteria._late import nonfinite

if TYPE_CHECKING:
    from moreauc.criteria.cross_entropy import CrossEntropyLoss
    from moreauc.criteria.fcco import FCCOLoss

BLOCK_FAULTS = (
    "inner must be finite, got NaN or infinity",
    "previous_inner must be finite, got NaN or infinity",
    "what outer returns must be finite, got NaN or infinity",
    "the updated table row must be finite, got NaN or infinity",
    "index must lie in the range of the blocks, got another number",
    "index must not repeat a row inside one batch, got one more than once",
)
ENTROPY_FAULTS = ("scores must be finite, got NaN or infinity", *ROW_FAULTS[:3])


def blocks_late(loss: FCCOLoss, inner: Tensor, index: Tensor, previous: Tensor | None) -> Tensor:
    """Do what a call of :class:`~moreauc.FCCOLoss` does; types and shapes of `inner` have been checked."""
    owner, table, size = loss._owner, loss.table_u, len(inner)
    found = as_index(owner, "index", index, size).to(inner.device, non_blocking=True)
    safe = found.clamp(0, loss.num_blocks - 1)
    # What is not finite is replaced, so that `outer` need not know it.
    gated, word = enter(inner)
    clean = gated.masked_fill((inner.detach() - inner.detach()) != 0, 0.0)
    shapes = (size,), (size, 1)
    before = visit = row = new = None
    if not loss.training:
        value = loss._call("outer", loss.outer, clean, safe, *shapes)
    else:
        if loss.needs_previous:
            loss._check_previous("previous_inner", previous, "inner", inner, gammas="gamma")
            before = None if previous is None else previous.detach()
        now = clean.detach().reshape(size, loss.dim)
        visit = Visit(table, safe, torch.promote_types(now.dtype, table.values.dtype))
        row = visit.row(now)
        value = loss._call("outer", loss.outer, straight_through(row.view_as(inner), clean), safe, *shapes)
        new = table.propose(row, now, None if before is None else before.reshape(size, loss.dim))
    with torch.no_grad():
        given = nonfinite(inner, inner if before is None else before.to(inner.dtype))
        results = torch.cat([nonfinite(value), nonfinite(value if new is None else new)])
        bad = loss._judge(given, results, index_flags(found, safe, loss.training))
        if visit is not None and row is not None and new is not None:
            visit.write(bad, row, new)
    loss._send(inner, index, before)
    return leave(value.mean(), word, bad)


def entropy_late(loss: CrossEntropyLoss, scores: Tensor, labels: Tensor, index: Tensor) -> Tensor:
    """Do what a call of :class:`~moreauc.criteria.CrossEntropyLoss` does."""
    wide = loss._check_scores(scores)
    rows = dense_rows(loss._owner, loss.position, labels, index, len(wide), unique=loss.training)
    clean = wide.masked_fill((wide.detach() - wide.detach()) != 0, 0.0)
    signs = 1.0 - 2.0 * rows.positive.to(wide.dtype)
    weights = 1.0 + (loss.positive_weight - 1.0) * rows.positive.to(wide.dtype)
    bad = loss._judge(nonfinite(wide), rows.wrong[:3])
    loss._send(scores, labels, index)
    return (weights * softplus(signs * clean)).mean().masked_fill(bad, torch.nan)


def index_flags(found: Tensor, safe: Tensor, unique: bool) -> Tensor:
    """Return whether a number was out of range, and whether one comes twice; shape `(2,)`."""
    outside = (found != safe).any()
    repeated = torch.zeros_like(outside)
    if unique and len(found) > 1:
        ordered = found.sort().values
        repeated = (ordered[1:] == ordered[:-1]).any()
    return torch.stack([outside, repeated])
