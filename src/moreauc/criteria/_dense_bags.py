"""One iteration of the loss over bags in which nothing waits for the device; see `_dense` for how."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from moreauc._checks import as_index, check_device, check_shape
from moreauc.core.visits import Visit
from moreauc.criteria._bags import check_outputs, exact_type
from moreauc.criteria._base import with_gradient
from moreauc.criteria._dense import (
    ROW_FAULTS,
    DenseRows,
    dense_advance,
    dense_gamma,
    dense_objective,
    dense_rows,
)
from moreauc.criteria._gates import enter, leave
from moreauc.criteria._late import nonfinite, refused

if TYPE_CHECKING:
    from moreauc.criteria.multi_instance_tpauc import MultiInstanceTPAUCLoss

BAG_FAULTS = (
    "instances must be finite, got NaN or infinity",
    "previous_instances must be finite, got NaN or infinity",
    "bag must lie in the range of the batch, got another number",
    "bag must name at least one instance of every bag, got none of one of them",
    "the loss, its gradient and the updated bags, rows and thresholds must be finite, got NaN or infinity",
    *ROW_FAULTS,
)


class _Instances(NamedTuple):
    """Instances of a batch; numbers of bags that are out of range are replaced, and `wrong` says so."""

    values: Tensor
    bag: Tensor
    wrong: Tensor


def forward_late(
    loss: MultiInstanceTPAUCLoss,
    instances: Tensor,
    bag: Tensor,
    labels: Tensor,
    index: Tensor,
    previous_instances: Tensor | None,
) -> Tensor:
    """Do what a call of the loss does, and ask on the device what it must not wait for."""
    check_shape(loss._owner, "labels", labels, [("B",)])
    count = len(labels)
    rows = dense_rows(loss._owner, loss.position, labels, index, count, unique=loss.training)
    found = _instances(loss, instances, bag, count)
    if not loss.training:
        values, word = enter(found.values)
        h = loss._linked(loss.pooling(values, found.bag, count))
        with torch.no_grad():
            value, gradient = dense_objective(loss, rows, h.detach())
            bad = _judge(loss, rows, found, None, value.reshape(1))
        loss._send(instances, bag, labels, index, None)
        return leave(with_gradient(h, value, gradient.to(h.dtype)), word, bad)
    before = None
    if loss.needs_previous:
        loss._check_previous("previous_instances", previous_instances, "instances", instances, gammas="gamma")
        before = None if previous_instances is None else previous_instances.detach()
    with torch.no_grad():
        value, gradient = _step(loss, rows, found, before)
    loss._send(instances, bag, labels, index, before)
    return with_gradient(found.values, value, gradient)


def _instances(loss: MultiInstanceTPAUCLoss, instances: Tensor, bag: Tensor, count: int) -> _Instances:
    """Check types and shapes; the rest is for the device."""
    owner, place = loss._owner, loss.position.device
    check_outputs(owner, "instances", instances, loss.pooling)
    check_device(owner, "instances", instances, place)
    numbers = as_index(owner, "bag", bag, len(instances)).to(place, non_blocking=True)
    safe = numbers.clamp(0, count - 1)
    present = torch.zeros(count, dtype=torch.bool, device=place).index_fill(0, safe, True)
    wrong = torch.stack([(safe != numbers).any(), ~present.all()])
    return _Instances(instances.to(torch.promote_types(instances.dtype, torch.float32)), safe, wrong)


def _judge(
    loss: MultiInstanceTPAUCLoss, rows: DenseRows, found: _Instances, before: Tensor | None, results: Tensor
) -> Tensor:
    values = found.values.detach()
    strange = nonfinite(values, values if before is None else before.to(values.dtype))
    return loss._judge(strange, found.wrong, nonfinite(results), rows.wrong)


def _step(
    loss: MultiInstanceTPAUCLoss, rows: DenseRows, found: _Instances, before: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return value and gradient of one iteration, which has been written where nothing is wrong."""
    pooling, rule, count = loss.pooling, loss.table_v.rule, len(rows.numbers)
    values, bag, _ = found
    exact = values.detach().to(exact_type(values))
    past = None if before is None else before.to(exact.dtype)
    if loss.rows == "after":
        exact, past = pooling.levelled(exact), None if past is None else pooling.levelled(past)
    now = pooling.observe(exact, bag, count)
    old = None if past is None else pooling.observe(past, bag, count)
    visit = Visit(loss.table_v, rows.numbers, now.dtype)
    held = visit.row(now)
    new = pooling.update(held, now, old, tau=rule.tau, gamma=_gammas(loss, rows), bound=rule.bound)
    used = held if loss.rows == "before" else new
    h = loss._linked(pooling.score(used)).to(values.dtype)
    last = None
    if loss.table_u.rule.corrects:
        used_last = visit.previous(held) if loss.rows == "before" else held
        last = loss._linked(pooling.score(used_last)).to(values.dtype)
    step = dense_advance(loss, rows, h, last)
    weight = step.gradient.to(h.dtype).to(held.dtype)
    if loss.link == "sigmoid":
        weight = weight * (h * (1.0 - h))
    largest = torch.finfo(values.dtype).max
    gradient = pooling.pull(weight, used, exact, bag).clamp(-largest, largest).to(values.dtype)
    # of several columns the sum: it is not finite where one of them is not
    results = torch.cat([part.flatten().to(exact.dtype) for part in (step.results, new, gradient)])
    bad = _judge(loss, rows, found, before, results)
    visit.write(bad, held, new)
    step.write(bad)
    return refused(bad, step.value, gradient)


def _gammas(loss: MultiInstanceTPAUCLoss, rows: DenseRows) -> Tensor | float:
    """Return the correction weights of the batch's bags, shape `(B, 1)`."""
    if not loss.needs_previous:
        return 0.0
    tau, first, second = loss.table_v.rule.tau, loss._gamma1, loss._gamma2
    upper = dense_gamma(first, tau, loss.num_positives, rows.positives)
    lower = dense_gamma(second, tau, loss.num_negatives, rows.rest)
    return torch.where(rows.positive, upper, lower).unsqueeze(1)
