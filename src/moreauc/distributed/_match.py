"""Whether a loss and a model are over the same processes."""

from __future__ import annotations

from torch import nn

from moreauc._parallel import parallel_of
from moreauc.criteria._base import Criterion
from moreauc.distributed._criterion import DistributedCriterion
from moreauc.distributed._exchange import Exchange


def exchange_of(owner: str, model: nn.Module, criterion: nn.Module) -> Exchange | None:
    """Return how the processes of a training run talk; None where the loss is of one process.

    Raises:
        ValueError: where the loss, of this library, and the model are not over the same processes.
    """
    check_seen(owner, model, criterion)
    if not isinstance(criterion, DistributedCriterion):
        return None
    exchange, parallel = criterion.exchange, parallel_of(model)
    if parallel is None and exchange.size > 1:
        raise ValueError(
            f"{owner}: model must be a DistributedDataParallel or fully_shard one where criterion is over "
            f"{exchange.size} processes, got {type(model).__name__}, whose gradients nobody would take the mean of"
        )
    if parallel is not None and max(exchange.size, len(parallel.ranks)) > 1:
        # the mean may be over some of a mesh of several dimensions
        own, all_of_them = {*exchange.ranks}, {*parallel.ranks}
        if not (own == all_of_them if parallel.whole else own <= all_of_them):
            raise ValueError(
                f"{owner}: criterion must be over the processes of model, {list(parallel.ranks)} by {parallel.kind}, "
                f"got {list(exchange.ranks)}"
            )
    return exchange


def check_seen(owner: str, model: nn.Module, criterion: nn.Module) -> None:
    """Refuse a loss of this library that would see the rows of one process only, where the model is of several."""
    if not isinstance(criterion, Criterion) or isinstance(criterion, DistributedCriterion):
        return
    parallel = parallel_of(model)
    if parallel is not None and len(parallel.ranks) > 1:
        raise ValueError(
            f"{owner}: criterion must be a moreauc.distributed.DistributedCriterion where model is a "
            f"{parallel.kind} one, got {type(criterion).__name__}, which would see the rows of one process only"
        )
