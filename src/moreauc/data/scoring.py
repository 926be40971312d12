"""Scores of a model for all batches of a loader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from moreauc._parallel import without_communication, without_gradient
from moreauc.data.bag_batches import BagInputs
from moreauc.optim.previous import PreviousIterate
from moreauc.samplers.base import passes_for_scores

_OWNER = "predict_scores"


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first parameter; the CPU for a model without parameters."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def on_device(value: Any, device: torch.device) -> Any:
    """Return tensors on the device, also those in tuples, lists and dictionaries; numbers and arrays as tensors."""
    if isinstance(value, Mapping):
        return {name: on_device(entry, device) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        moved = [on_device(entry, device) for entry in value]
        return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)  # named tuples keep their type
    return value.to(device, non_blocking=True) if hasattr(value, "to") else torch.as_tensor(value, device=device)


def instances_for(model: nn.Module, instances: Tensor) -> Tensor:
    """Return the instances of bags in the floating type of the model's weights; integers stay as they are."""
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


@runtime_checkable
class Evaluation(Protocol):
    """Data that scores itself, such as :class:`~moreauc.data.WholeBags`."""

    def predict(self, model: nn.Module, device: torch.device | str | None = None) -> tuple[Tensor, Tensor]:
        """Return raw scores and labels, on the CPU."""
        ...


def predict_scores(
    model: nn.Module, batches: Iterable[Any] | Evaluation, *, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """Return raw scores and labels of all batches, on the CPU. The model is evaluated in eval mode.

    Args:
        model: maps inputs to raw scores, shape `(B,)` or `(B, 1)`. Where rows are not the first dimension of its
            outputs, its attribute `row_dim` says which they are.
        batches: loader of `(inputs, labels, ...)` batches, or :class:`~moreauc.data.WholeBags`.
        device: device of the model; inferred by default.

    Returns:
        Scores of shape `(n,)`, float64, and labels of shape `(n,)`.

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
    if isinstance(batches, Evaluation):
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
        raise ValueError(f"{_OWNER}: batches must not be empty, got no batch")
    scores, labels = zip(*parts, strict=True)
    return torch.cat(scores, _row_dim(model)).clone(), torch.cat(labels)


def scores_of(model: Any, inputs: Any) -> Tensor:
    """Call a model with a tuple by position, a dictionary by name, anything else as one argument.

    One column becomes shape `(B,)`, a pair of vectors, score and attention logit, two columns. Outputs of a model with
    a `row_dim` other than 0 are returned as they are.
    """
    if isinstance(inputs, Mapping):
        scores = model(**inputs)
    else:
        scores = model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
    scores = joined(scores)
    one_column = scores.ndim == 2 and scores.shape[1] == 1 and _row_dim(model) == 0
    return scores.squeeze(1) if one_column else scores  # type: ignore[no-any-return]


def _scored(model: nn.Module, batch: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return scores and labels of one batch."""
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        kind = f"{len(batch)} part" if isinstance(batch, tuple | list) else type(batch).__name__
        raise ValueError(f"{_OWNER}: batches must be (inputs, labels, ...), got {kind}")
    if isinstance(batch[0], BagInputs):
        raise ValueError(f"{_OWNER}: batches must hold whole bags, moreauc.data.WholeBags, got BagBatches")
    scores = scores_of(model, on_device(batch[0], device)).double().cpu()
    labels = torch.as_tensor(batch[1]).reshape(-1).cpu()
    rows = scores.shape[_row_dim(model)] if scores.ndim else 1
    if len(labels) not in (rows, scores.numel()):
        raise ValueError(f"{_OWNER}: labels must be as many as scores, {rows}, got {len(labels)}")
    return scores, labels


def _row_dim(model: Any) -> int:
    """Return the dimension of a model's outputs that counts rows: its attribute `row_dim`, or 0."""
    return int(getattr(model.model if isinstance(model, PreviousIterate) else model, "row_dim", 0))
