"""Scores and metrics of all processes, exact: every row counts once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from moreauc._checks import check_shape
from moreauc._parallel import is_sharded
from moreauc.data import scoring
from moreauc.distributed.exchange import Exchange, check_part
from moreauc.samplers.base import passes_for_scores

_NAMES = ("scores", "labels", "index")
_PREDICT = "predict_scores"


class _Meter(Protocol):
    def merge(self, other: object, /) -> Any: ...


Meter = TypeVar("Meter", bound=_Meter)


def gather_scores(
    scores: Tensor, labels: Tensor, index: Tensor, *, group: ProcessGroup | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores, labels and row numbers of all processes, each row once, in the order of their numbers.

    Samplers for several processes may repeat rows to make all parts equally long; these count once.

    Args:
        scores: scores of this process, shape `(n,)` or `(n, columns)`; `n` may differ from process to process.
        labels: their labels, shape `(n,)`.
        index: their numbers in the data, shape `(n,)`, integers.
        group: the processes; None for all.

    Returns:
        The same tensors in every process, detached, on the device of the arguments. For a row that several processes
        have, the score of the first of them is returned.

    Example:
        >>> gather_scores(torch.tensor([0.3, 0.1, 0.3]), torch.tensor([1, 0, 1]), torch.tensor([7, 2, 7]))
        (tensor([0.1000, 0.3000]), tensor([0, 1]), tensor([2, 7]))
    """
    given = {"scores": scores, "labels": labels, "index": index}
    values, targets, rows = _gather_rows(Exchange("gather_scores", group), given)
    return values, targets, rows


def _gather_rows(exchange: Exchange, given: dict[str, Any], problem: ValueError | None = None) -> tuple[Tensor, ...]:
    """Return the rows of all processes, each once, in the order of their numbers."""
    parts = given
    try:
        if problem is None:
            parts = {name: check_part(exchange.owner, name, part) for name, part in given.items()}
            shape = (len(torch.as_tensor(parts["scores"])),)
            for name in ("labels", "index"):
                check_shape(exchange.owner, name, torch.as_tensor(parts[name]), [shape])
    except ValueError as error:
        problem = error
    whole = exchange.gather(parts, problem)
    values, targets, rows_of = (found.values for found in whole.values() if found is not None)
    order = torch.sort(rows_of, stable=True).indices
    ordered = rows_of[order]
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    chosen = order[first]
    return values[chosen], targets[chosen], rows_of[chosen]


def predict_scores(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    device: torch.device | str | None = None,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Return raw scores and labels of the batches of all processes, on the CPU, the same in every process.

    As :func:`moreauc.train.predict_scores`, with the work shared. Rows that several processes have count once.

    Args:
        model: maps inputs to raw scores; `DistributedDataParallel` is unwrapped.
        batches: loader of `(inputs, labels, index)` batches of this process; it may be empty. With a `fully_shard`
            model all processes must have the same number of batches.
        device: device of the model; inferred by default.
        group: the processes; None for all.

    Returns:
        Scores of shape `(n,)`, float64, and labels of shape `(n,)`, in the order of `index`.

    Example:
        >>> from moreauc.data import TensorBatches
        >>> batches = TensorBatches(torch.randn(5, 2), torch.tensor([0, 1, 0, 0, 1]), sampler=[[4, 3], [0, 1, 2], [3]])
        >>> scores, labels = predict_scores(nn.Linear(2, 1), batches)
        >>> scores.shape, labels.tolist()
        (torch.Size([5]), [0, 1, 0, 0, 1])
    """
    exchange, own, problem = Exchange(_PREDICT, group), None, None
    try:
        with passes_for_scores():
            own = _own_rows(exchange, model, batches, device)
    except ValueError as error:
        problem = error
    kinds = None if own is None else {name: (part.dtype, part.shape[1:]) for name, part in own.items()}
    every = exchange.gather_objects(kinds, "the end of predict_scores")
    if own is None:  # rows like those of the others
        found: dict[str, Any] = next((kinds for kinds in every if kinds is not None), {})
        own = {name: torch.zeros(0, *shape, dtype=kind) for name, (kind, shape) in found.items()}
    if not own and problem is None:
        problem = ValueError(f"{_PREDICT}: batches must not be empty, got no batch")
    scores, labels, _ = _gather_rows(exchange, own or dict.fromkeys(_NAMES), problem)
    return scores, labels


def _own_rows(
    exchange: Exchange, model: nn.Module, batches: Iterable[Any], device: torch.device | str | None
) -> dict[str, Tensor] | None:
    """Return scores, labels and numbers of the rows of this process; None where it has no batch."""
    numbers: list[Tensor] = []

    def noted() -> Iterator[Any]:
        for batch in _in_step(exchange, batches) if exchange.size > 1 and is_sharded(model) else batches:
            if not isinstance(batch, tuple | list) or len(batch) != 3:
                size = len(batch) if isinstance(batch, tuple | list) else type(batch).__name__
                raise ValueError(f"{_PREDICT}: batches must be (inputs, labels, index), got {size}")
            numbers.append(torch.as_tensor(batch[2]).reshape(-1).cpu())
            yield batch

    rest = noted()
    first = list(islice(rest, 1))
    if not first:
        return None
    scores, labels = scoring.predict_scores(model, chain(first, rest), device=device)
    return dict(zip(_NAMES, (scores, labels, torch.cat(numbers)), strict=True))


def _in_step(exchange: Exchange, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches while all processes have one; raise in all of them where some have more."""
    rest = iter(batches)
    while True:
        batch = list(islice(rest, 1))
        every = exchange.gather_objects(bool(batch), "a batch of predict_scores")
        if not any(every):
            return
        if not all(every):
            raise ValueError(
                f"{_PREDICT}: batches must be as many in all processes, which call a model of fully_shard together, "
                f"got fewer in process {every.index(False)}"
            )
        yield batch[0]


def gather_meter(meter: Meter, group: ProcessGroup | None = None) -> Meter:
    """Return a meter of the batches of all processes, the same in each; `meter` is not changed.

    It counts as one meter that has seen all batches, exactly. No row may occur in two processes, since a meter does not
    know row numbers; use :func:`gather_scores` otherwise. `group` are the processes; None for all.

    Example:
        >>> from moreauc.metrics import StreamingTPAUC
        >>> meter = StreamingTPAUC(min_tpr=0.5, max_fpr=0.5)
        >>> meter.update([0.9, 0.2, 0.6, 0.4], [1, 1, 0, 0])
        >>> gather_meter(meter).compute()
        0.0
    """
    first, *others = Exchange("gather_meter", group).gather_objects(meter, "gather_meter")
    if others:  # pickled copies; alone it is the meter itself
        for other in others:
            first.merge(other)
        return first  # type: ignore[no-any-return]
    return meter
