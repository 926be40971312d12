"""From batches to scores: calling a model on whatever a loader gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from moreauc._parallel import without_communication, without_gradient
from moreauc.optim.previous import PreviousIterate
from moreauc.samplers.base import passes_for_scores


@runtime_checkable
class Evaluation(Protocol):
    """Data that scores itself, as :class:`~moreauc.data.WholeBags`."""

    def predict(self, model: nn.Module, device: torch.device | str | None = None) -> tuple[Tensor, Tensor]:
        """Return raw scores and labels, on the CPU."""
        ...


def predict_scores(
    model: nn.Module, batches: Iterable[Any] | Evaluation, *, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """Return raw scores and labels of all batches, on the CPU; the model's mode is as before afterwards.

    Args:
        model: maps inputs to raw scores, shape `(B,)` or `(B, 1)`.
        batches: loader of `(inputs, labels, ...)` batches, or :class:`~moreauc.data.WholeBags`.
        device: where the model is; None to look it up.

    Returns:
        Scores of shape `(n,)`, float64, and labels of shape `(n,)`; of a `SideBySide`
        model scores have shape `(C, n)`.

    Raises:
        ValueError: for no batches, batches without labels, and labels that are not one for each score.

    Example:
        >>> from moreauc.data import TensorBatches
        >>> batches = TensorBatches(torch.randn(5, 2), torch.tensor([0, 1, 0, 0, 1]))
        >>> scores, labels = predict_scores(nn.Linear(2, 1), batches)
        >>> scores.shape, labels.tolist()
        (torch.Size([5]), [0, 1, 0, 0, 1])
    """
    model = without_communication(model)
    place = device_of(model) if device is None else torch.device(device)
    if isinstance(batches, Evaluation):  # bags, which know how to go through their instances
        return batches.predict(model, place)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with without_gradient(model), passes_for_scores():
            parts = [_scored(model, batch, place) for batch in batches]
    finally:
        for module, mode in modes:
            module.training = mode
    if not parts:
        raise ValueError("predict_scores: batches must not be empty, got no batch")
    rows = 1 if _has_copies(model, parts[0][0]) else 0
    return torch.cat([scores for scores, _ in parts], rows).clone(), torch.cat([labels for _, labels in parts])


def _scored(model: nn.Module, batch: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return scores and labels of one batch, which must have both: of a tensor the first rows would be taken."""
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        kind = f"{len(batch)} part" if isinstance(batch, tuple | list) else type(batch).__name__
        raise ValueError(f"predict_scores: batches must be (inputs, labels, ...), got {kind}")
    scores = scores_of(model, _rows(batch[0], device)).double().cpu()
    labels = torch.as_tensor(batch[1]).reshape(-1).cpu()
    rows = scores.shape[1 if _has_copies(model, scores) else 0] if scores.ndim else 1
    if len(labels) not in (rows, scores.numel()):
        raise ValueError(f"predict_scores: labels must be as many as scores, {rows}, got {len(labels)}")
    return scores, labels


def scores_of(model: Any, inputs: Any) -> Tensor:
    """Call a model with a tuple by position, a dictionary by name, anything else as it is.

    Returns:
        Shape `(B,)`, or `(B, columns)` where the model has several; a pair of vectors, score and attention logit, is
        made two columns. A model with an attribute `copies`, as `SideBySide`, gives
        `(copies, B)`, of one row too.
    """
    if isinstance(inputs, Mapping):
        scores = model(**inputs)
    else:
        scores = model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
    scores = joined(scores)
    one_column = scores.ndim == 2 and scores.shape[1] == 1 and not _has_copies(model, scores)
    return scores.squeeze(1) if one_column else scores  # type: ignore[no-any-return]


def _has_copies(model: Any, scores: Tensor) -> bool:
    """Return whether the first dimension of the scores is that of models side by side, not that of rows."""
    copies = getattr(model.model if isinstance(model, PreviousIterate) else model, "copies", None)
    return isinstance(copies, int) and scores.ndim > 1 and len(scores) == copies


def check_batch(demand: str, batch: Any) -> None:
    """Refuse what is no batch of three parts; `demand` says whose it is and what it must be or give."""
    if not isinstance(batch, tuple | list) or len(batch) != 3:
        size = len(batch) if isinstance(batch, tuple | list) else type(batch).__name__
        raise ValueError(f"{demand} (inputs, labels, index), got {size}")


def on_device(batch: Any, device: torch.device) -> tuple[Any, Tensor, Tensor]:
    """Return inputs, labels and index of a batch on the device."""
    check_batch("fit: train must give batches", batch)
    inputs, labels, index = batch
    return _move(inputs, device), _move(labels, device), _move(index, device)


def _rows(inputs: Any, device: torch.device) -> Any:
    if type(inputs).__name__ == "BagInputs":
        raise ValueError("predict_scores: batches must hold whole bags, moreauc.data.WholeBags, got BagBatches")
    return _move(inputs, device)


def _move(value: Any, device: torch.device) -> Any:
    if isinstance(value, Mapping):
        return {name: _move(entry, device) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        moved = [_move(entry, device) for entry in value]
        return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)  # BagInputs stay what they are
    return value.to(device, non_blocking=True) if hasattr(value, "to") else torch.as_tensor(value, device=device)


def device_of(model: nn.Module) -> torch.device:
    """Return where the first parameter is."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def instances_for(model: nn.Module, instances: Tensor) -> Tensor:
    """Return instances of bags in the floating type of the model's weights; bytes stay bytes."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weight is None or not instances.is_floating_point() or instances.dtype == weight.dtype:
        return instances
    return instances.to(weight.dtype)


def joined(outputs: Any) -> Any:
    """Return a pair of vectors, score and attention logit, as two columns; anything else as it is."""
    pair = isinstance(outputs, tuple | list) and len(outputs) == 2
    if not pair or any(not isinstance(part, Tensor) or part.numel() != len(part) for part in outputs):
        return outputs
    return torch.stack([part.reshape(-1) for part in outputs], dim=1)
