"""One training step, of a batch of rows or of bags."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from moreauc.data.bag_batches import BagInputs
from moreauc.data.scoring import instances_for, scores_of
from moreauc.distributed.criterion import check_seen
from moreauc.optim import PreviousIterate


def train_step(
    model: nn.Module, criterion: nn.Module, optimizer: Optimizer, batch: Any, previous: PreviousIterate | None = None
) -> Tensor:
    """Do one step: scores, loss, backward, optimizer. Return the loss without gradient.

    Args:
        model: maps inputs to raw scores, shape `(B,)` or `(B, 1)`.
        criterion: called as `criterion(scores, labels, index)`.
        optimizer: moves the weights. `torch.optim.LBFGS` evaluates the loss several times in a step: use it only with a
            loss without state, such as cross entropy.
        batch: `(inputs, labels, index)`, on the model's device. With :class:`~moreauc.data.BagInputs` as inputs the
            model gets the instances, and the criterion is called as `criterion(outputs, bag, labels, index)`.
        previous: the model at its previous weights; required if the criterion's `needs_previous` is True.

    Example:
        >>> from moreauc import TPAUCLoss
        >>> model, labels = nn.Linear(2, 1), torch.tensor([1, 0, 0, 1])
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> batch = (torch.randn(4, 2), labels, torch.arange(4))
        >>> train_step(model, TPAUCLoss(labels, min_tpr=0.5, max_fpr=0.5), optimizer, batch).shape
        torch.Size([])
    """
    check_seen("train_step", model, criterion)

    def evaluate() -> Tensor:
        loss = loss_of("train_step", model, criterion, batch, previous)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        return loss.detach()

    if isinstance(optimizer, LBFGS):
        before: Tensor = optimizer.step(evaluate)  # type: ignore[no-untyped-call]
        return before
    loss = evaluate()
    optimizer.step()
    return loss


class OpenedBatch(NamedTuple):
    """A batch as a step takes it.

    Attributes:
        inputs: inputs of the model.
        others: arguments of the criterion after the scores.
        before: name of the criterion's argument for the scores at the previous weights.
    """

    inputs: Any
    others: list[Tensor]
    before: str


def open_batch(model: nn.Module, batch: Any) -> OpenedBatch:
    """Return what the model and what the criterion takes of a batch, of rows or of bags."""
    inputs, labels, index = batch
    if isinstance(inputs, BagInputs):
        instances, *bags = inputs
        return OpenedBatch(instances_for(model, instances), [*bags, labels, index], "previous_instances")
    return OpenedBatch(inputs, [labels, index], "previous_scores")


def check_batch(owner: str, batch: Any) -> None:
    """Refuse anything but a batch of three parts."""
    if not isinstance(batch, tuple | list) or len(batch) != 3:
        size = len(batch) if isinstance(batch, tuple | list) else type(batch).__name__
        raise ValueError(f"{owner}: batch must be (inputs, labels, index), got {size}")


def loss_of(owner: str, model: nn.Module, criterion: nn.Module, batch: Any, previous: PreviousIterate | None) -> Tensor:
    """Return the loss of a batch, with the scores at the previous weights where the criterion needs them."""
    check_batch(owner, batch)
    parts = open_batch(model, batch)
    scores = scores_of(model, parts.inputs)
    before: dict[str, Tensor] = {}
    if getattr(criterion, "needs_previous", False):
        if previous is None:
            raise ValueError(f"{owner}: previous must be given where the criterion needs {parts.before}, got None")
        before[parts.before] = scores_of(previous, parts.inputs)
    loss: Tensor = criterion(scores, *parts.others, **before)
    return loss
