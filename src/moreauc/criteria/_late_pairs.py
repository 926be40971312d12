"""The three-level loss, called so that nothing waits for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from moreauc._checks import as_index, check_shape
from moreauc.core.visits import Visit
from moreauc.criteria._base import straight_through
from moreauc.criteria._gates import enter, leave
from moreauc.criteria._late import nonfinite
from moreauc.criteria._late_blocks import index_flags

if TYPE_CHECKING:
    from moreauc.criteria.tcco import TCCOLoss

PAIR_FAULTS = (
    "h must be finite, got NaN or infinity",
    "previous_h must be finite, got NaN or infinity",
    "what middle returns must be finite, got NaN or infinity",
    "what outer returns must be finite, got NaN or infinity",
    "the updated rows of v and u must be finite, got NaN or infinity",
    "outer_index must lie in the range of the outer items, got another number",
    "outer_index must not repeat a row inside one batch, got one more than once",
    "inner_index must lie in the range of the inner items, got another number",
    "inner_index must not repeat a row inside one batch, got one more than once",
)


class _Places(NamedTuple):
    """Numbers of the outer items and of the pairs, those out of range replaced, and the last four flags."""

    outer: Tensor
    pairs: Tensor
    wrong: Tensor


def pairs_late(
    loss: TCCOLoss, h: Tensor, outer_index: Tensor, inner_index: Tensor, previous_h: Tensor | None
) -> Tensor:
    """Do what a call of :class:`~moreauc.TCCOLoss` does; type and shape of `h` have been checked."""
    places = _places(loss, h, outer_index, inner_index)
    # What is not finite is replaced, so that `middle` and `outer` need not know it.
    gated, word = enter(h)
    clean = gated.masked_fill((h.detach() - h.detach()) != 0, 0.0)
    before = None
    if loss.training and loss.table_v.rule.corrects:
        loss._check_previous("previous_h", previous_h, "h", h, gammas="gamma1")
        before = None if previous_h is None else previous_h.detach()
    if not loss.training:
        middle = loss._middle(clean, places.outer)
        value = loss._outer(middle.mean(dim=1), places.outer)
        bad = _judge(loss, h, None, (middle, value, value), places)
    else:
        value, bad = _step(loss, h, clean, before, places)
    loss._send(h, outer_index, inner_index, before)
    return leave(value.mean(), word, bad)


def _places(loss: TCCOLoss, h: Tensor, outer_index: Tensor, inner_index: Tensor) -> _Places:
    """Check types and shapes of the numbers; the rest is for the device."""
    owner, (b1, b2) = loss._owner, h.shape[:2]
    outer = as_index(owner, "outer_index", outer_index, b1).to(h.device, non_blocking=True)
    given: Tensor = torch.as_tensor(inner_index)
    check_shape(owner, "inner_index", given, [(b2,), (b1, b2)])
    inner = as_index(owner, "inner_index", given.flatten(), given.numel()).to(h.device, non_blocking=True)
    safe_outer, safe_inner = outer.clamp(0, loss.num_outer - 1), inner.clamp(0, loss.num_inner - 1)
    pairs = (safe_outer.unsqueeze(1) * loss.num_inner + safe_inner.reshape(-1, b2)).flatten()
    flags = [index_flags(outer, safe_outer, loss.training), index_flags(inner, safe_inner, loss.training)]
    if given.ndim == 2:  # an inner item may come once with each outer one
        flags[1] = torch.stack([flags[1][0], index_flags(pairs, pairs, loss.training)[1] & ~flags[0][1]])
    return _Places(safe_outer, pairs, torch.cat(flags))


def _step(loss: TCCOLoss, h: Tensor, clean: Tensor, before: Tensor | None, places: _Places) -> tuple[Tensor, Tensor]:
    """Return what `outer` returns, and whether anything is wrong; the iteration has been written unless it is."""
    u, v = loss.table_u, loss.table_v
    now_v = clean.detach().reshape(-1, loss.dim_inner)
    visit_v = Visit(v, places.pairs, torch.promote_types(now_v.dtype, v.values.dtype))
    row_v = visit_v.row(now_v)
    middle = loss._middle(straight_through(row_v.view_as(h), clean), places.outer)
    mean = middle.mean(dim=1)
    now_u = mean.detach().reshape(len(h), loss.dim_middle)
    visit_u = Visit(u, places.outer, torch.promote_types(now_u.dtype, u.values.dtype))
    row_u = visit_u.row(now_u)
    value = loss._outer(straight_through(row_u.view_as(mean), mean), places.outer)
    before_u = None
    if u.rule.corrects:
        before_u = loss._middle_before(visit_v.previous(row_v).view_as(h), places.outer, now_u)
    new_v = v.propose(row_v, now_v, None if before is None else before.reshape(row_v.shape))
    new_u = u.propose(row_u, now_u, before_u)
    with torch.no_grad():
        wide = torch.promote_types(new_v.dtype, new_u.dtype)
        rows = torch.cat([new_v.flatten().to(wide), new_u.flatten().to(wide)])
        bad = _judge(loss, h, before, (middle, value, rows), places)
        visit_v.write(bad, row_v, new_v)
        visit_u.write(bad, row_u, new_u)
        if loss.previous_middle is not None and isinstance(loss.middle, nn.Module):
            loss.previous_middle.capture(loss.middle, unless=bad)
    return value, bad


def _judge(loss: TCCOLoss, h: Tensor, before: Tensor | None, results: tuple[Tensor, ...], places: _Places) -> Tensor:
    given = nonfinite(h, h if before is None else before.to(h.dtype))
    return loss._judge(given, *(nonfinite(result) for result in results), places.wrong)
