"""A data set whose items carry their row number."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from moreauc._checks import check_labels

_OWNER = "IndexedDataset"


class IndexedDataset(Dataset[tuple[Any, int, int]]):
    """Map-style data set with items `(inputs, label, index)`; `index` is the position in the data set wrapped.

    A `DataLoader` makes batches `(inputs, labels, index)` of them, with int64 vectors `labels` and `index`; so does
    the one of PyG, with a `Batch` of graphs as inputs. The order of wrapping decides the numbering:
    `Subset(IndexedDataset(d), rows)` keeps the numbers of `d`, for a loss built with the labels of `d`;
    `IndexedDataset(Subset(d, rows))` counts from 0, for a loss built with the labels of those rows.

    Args:
        dataset: data set with `len()` and items: pairs `(inputs, label)`, or inputs only if `labels` are given.
        labels: 0/1 labels of all items, shape `(n,)`; None to take them from the pairs. Where they are given, an item
            is all inputs, a pair too.

    Raises:
        ValueError: for labels other than 0/1 or of another length than the data set, a data set without length or
            without items, and, when an item is read, one that is not a pair where `labels` is None.

    Example:
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> pairs = TensorDataset(torch.tensor([[0.5], [1.5], [2.5]]), torch.tensor([0, 1, 0]))
        >>> dataset = IndexedDataset(pairs)
        >>> dataset[1]
        (tensor([1.5000]), 1, 1)
        >>> dataset.labels
        tensor([0, 1, 0])
        >>> [index.tolist() for inputs, labels, index in DataLoader(dataset, batch_size=2)]
        [[0, 1], [2]]
    """

    def __init__(self, dataset: Any, labels: Tensor | Sequence[int] | NDArray[Any] | None = None) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise ValueError(f"{_OWNER}: dataset must have items and a length, got {type(dataset).__name__}")
        if not len(dataset):
            raise ValueError(f"{_OWNER}: dataset must hold at least one item, got 0")
        self.dataset = dataset
        self._paired = labels is None
        self._labels: Tensor | None = None
        if labels is not None:
            self._labels = check_labels(_OWNER, labels, both=False).cpu()
            if len(self._labels) != len(dataset):
                raise ValueError(
                    f"{_OWNER}: labels must be as long as dataset, {len(dataset)}, got {len(self._labels)}"
                )

    @property
    def labels(self) -> Tensor:
        """Labels of all items, int64 of shape `(n,)`; where none were given, the first use reads every item once."""
        if self._labels is None:
            self._labels = torch.tensor([self._split(row)[1] for row in range(len(self))])
        return self._labels

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, int, int]:
        row = operator.index(index)
        if not -len(self) <= row < len(self):  # an IndexError is what ends a loop over the items
            raise IndexError(f"{_OWNER}: index must lie in [{-len(self)}, {len(self)}), got {row}")
        row %= len(self)
        return (*self._split(row), row)

    def _split(self, row: int) -> tuple[Any, int]:
        item = self.dataset[row]
        if not self._paired:
            return item, int(self.labels[row])
        if not isinstance(item, tuple | list) or len(item) != 2:
            size = f" of {len(item)}" if isinstance(item, tuple | list) else ""
            raise ValueError(
                f"{_OWNER}: dataset must have items (inputs, label) where labels is None, "
                f"got a {type(item).__name__}{size} at {row}"
            )
        label: Tensor = torch.as_tensor(item[1])
        if label.numel() != 1 or label.item() not in (0, 1):
            raise ValueError(f"{_OWNER}: labels must be 0 or 1, got {item[1]!r} at {row}")
        return item[0], int(label.item())
