"""The labels that loaders, samplers and data sets hold in memory, as checksums that tell one labelling from another."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset

from moreauc.checkpoint._generators import loader_parts
from moreauc.data.indexed import IndexedDataset

_NAMES = ("labels", "_labels", "targets")  # attributes of loaders and data sets


def held_labels(loader: Any) -> dict[str, str]:
    """Return a checksum for each part of a loader that holds labels, by the part's name.

    Nothing is read for it: labels that only come with the items stay unknown.

    Example:
        >>> import torch
        >>> first, second = (held_labels(TensorDataset(torch.zeros(2), torch.tensor(y))) for y in ([0, 1], [1, 0]))
        >>> list(first), first == second
        (['loader.labels'], False)
    """
    labels = {name: _labels_of(part) for name, part in loader_parts(loader)}
    return {f"{name}.labels": _checksum(values) for name, values in labels.items() if values is not None}


def _labels_of(part: Any) -> NDArray[Any] | None:
    attributes = getattr(part, "__dict__", {})
    if isinstance(part, IndexedDataset) and attributes["_paired"]:
        return None  # it keeps those of the pairs once somebody has asked for them, which is no setting
    values = [attributes.get(name) for name in _NAMES]
    if isinstance(part, TensorDataset):
        values.append(part.tensors[-1])
    for value in values:
        if isinstance(value, Tensor):
            return value.detach().cpu().numpy()
        if isinstance(value, np.ndarray) or (isinstance(value, list) and value and isinstance(value[0], int | float)):
            return np.asarray(value)
    return None


def _checksum(labels: NDArray[Any]) -> str:
    exact = labels.astype(np.float64 if labels.dtype.kind == "f" else np.int64)
    return hashlib.sha256(f"{labels.shape} ".encode() + exact.tobytes()).hexdigest()[:16]
