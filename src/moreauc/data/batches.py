"""Data with row numbers: batches of tensors or of a sparse matrix in memory, and a data set for a `DataLoader`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import methodcaller
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse
from torch import Tensor
from torch.utils.data import Dataset

from moreauc._checks import as_labels, check_count, check_finite, check_labels, check_shape, shown
from moreauc.samplers.base import Batch, PlannedSampler, check_sampler, move_sampler

_OWNER = "TensorBatches"
_MOST_ENTRIES = 2**25  # of a dense chunk of rows: 128 MB in float32


class SparseRows:
    """Rows of a sparse matrix with the methods of a tensor that batches need; rows become dense when they are selected.

    `matrix` stays in the memory of the CPU; `device` and `dtype` are those of the batches.

    Example:
        >>> rows = SparseRows(csr_array(np.eye(3)))
        >>> rows.index_select(0, torch.tensor([2, 0]))
        tensor([[0., 0., 1.],
                [1., 0., 0.]])
    """

    ndim = 2

    def __init__(
        self, matrix: csr_array, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.matrix = csr_array(matrix, dtype=np.float32)
        self.device, self.dtype = torch.device(device), dtype

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        rows, columns = self.matrix.shape
        return int(rows), int(columns)

    def __getitem__(self, rows: Tensor | slice) -> SparseRows:
        """Return some of the rows, still sparse."""
        return SparseRows(self.matrix[_numbers(rows) if isinstance(rows, Tensor) else rows], self.device, self.dtype)

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Return some of the rows as a dense tensor; `dim` must be 0."""
        if dim:
            raise ValueError(f"SparseRows: dim must be 0, got {dim}")
        return torch.from_numpy(self.matrix[_numbers(rows)].toarray()).to(self.device, self.dtype)

    def to(self, device: torch.device | str) -> SparseRows:
        """Return the same rows, whose batches are on another device."""
        return SparseRows(self.matrix, device, self.dtype)

    def cpu(self) -> SparseRows:
        """Return the same rows, whose batches are on the CPU."""
        return self.to("cpu")

    def double(self) -> SparseRows:
        """Return the same rows, whose batches are float64."""
        return SparseRows(self.matrix, self.device, torch.float64)


def _numbers(rows: Tensor) -> NDArray[np.int64]:
    return rows.cpu().numpy()


Inputs = Tensor | SparseRows | tuple[Tensor, ...] | dict[str, Tensor]


class SampledRows:
    """Rows of labelled data in batches; messages name the subclass.

    `labels` are on the device of the data. `sampler` is an iterable over batches of row numbers; None for all rows in
    their order, `batch_size` at a time.
    """

    labels: Tensor
    sampler: Iterable[Sequence[int]] | None
    batch_size: int
    batch_sampler = None  # Lightning expects it of whatever has a sampler

    def _take_sampler(self, sampler: Iterable[Sequence[int]] | None, batch_size: int) -> None:
        owner = type(self).__name__
        if sampler is not None:
            check_sampler(owner, sampler)
        self.sampler = sampler
        self.batch_size = check_count(owner, "batch_size", batch_size)

    def __len__(self) -> int:
        if self.sampler is None:
            return -(-len(self.labels) // self.batch_size)
        return len(self.sampler)  # type: ignore[arg-type]  # an error of Python's own where it has no length

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.labels.device

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on to a sampler that has epochs."""
        if self.sampler is not None and hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def set_position(self, epoch: int, step: int) -> None:
        """Pass the position on to the sampler, which must have `set_position`; without one nothing is resumed."""
        if self.sampler is not None:
            move_sampler(type(self).__name__, self.sampler, epoch, step)

    def _rows(self, device: torch.device | str = "cpu") -> Tensor | Iterator[Tensor]:
        """Return the rows of all batches: as one tensor on the CPU where the sampler has a plan, else one by one.

        The batches are fixed by this call, not at the first batch: the position of the sampler may change before it.
        """
        if self.sampler is None:
            return iter(torch.split(torch.arange(len(self.labels), device=device), self.batch_size))
        if hasattr(self.sampler, "remaining"):
            return self._check_rows(self.sampler.remaining())
        batches = iter(self.sampler)
        return (self._check_rows(self._as_rows(batch)) for batch in batches)

    def _tracked(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return batches of `_rows()`; a sampler that gave all of them at once tracks the pass."""
        planned = isinstance(self.sampler, PlannedSampler) and hasattr(self.sampler, "remaining")
        return self.sampler.track(batches) if planned else batches  # type: ignore[union-attr]

    def _as_rows(self, batch: Sequence[int]) -> Tensor:
        """Return a batch of row numbers; a mask, cast to integers, would be a batch of the first two rows."""
        rows: Tensor = torch.as_tensor(batch)
        if rows.ndim != 1:
            raise ValueError(f"{type(self).__name__}: sampler must give batches of rows, got {shown(batch)}")
        if rows.numel() and (rows.dtype == torch.bool or rows.is_floating_point()):
            raise ValueError(f"{type(self).__name__}: sampler must give integers, got {rows.dtype}")
        return rows.long()

    def _check_rows(self, rows: Tensor) -> Tensor:
        if rows.numel():
            low, high = (int(value) for value in rows.aminmax())
            if low < 0 or high >= len(self.labels):
                bad = low if low < 0 else high
                raise ValueError(f"{type(self).__name__}: sampler must give rows in [0, {len(self.labels)}), got {bad}")
        return rows


class TensorBatches(SampledRows):
    """Loader of `(inputs, labels, index)` batches from tensors in memory, each a copy of the rows `index`.

    With a sampler the batches are those of the sampler; without one they are all rows in their order, `batch_size` at
    a time, for evaluation. `labels` and `index` are int64 vectors on the device of the inputs.

    Args:
        inputs: a tensor, or a tuple, list or dict of tensors, all with `n` rows and on one device; batches have the
            same form. Or :class:`~moreauc.data.batches.SparseRows`; batches are dense tensors.
        labels: 0/1 labels, shape `(n,)`.
        sampler: iterable over batches of row numbers, as `batch_sampler=` of a `DataLoader`; None for all rows.
        batch_size: rows of a batch without a sampler, at least 1; the last batch may be smaller.
        binary: whether labels must be 0 and 1; if False they may be any numbers and keep their dtype.

    Example:
        >>> from moreauc.samplers import PosNegSampler
        >>> x, y = torch.arange(5.0).unsqueeze(1), torch.tensor([0, 1, 0, 1, 0])
        >>> train = TensorBatches(x, y, PosNegSampler(y, num_positives=1, num_negatives=2))
        >>> for inputs, labels, index in train:
        ...     print(inputs.squeeze(1), labels, index)
        tensor([1., 0., 2.]) tensor([1, 0, 0]) tensor([1, 0, 2])
        tensor([3., 2., 4.]) tensor([1, 0, 0]) tensor([3, 2, 4])
        >>> [index.tolist() for inputs, labels, index in TensorBatches(x, y, batch_size=3)]
        [[0, 1, 2], [3, 4]]
    """

    checksum_of_inputs: str | None = None  # by which a checkpoint recognises the inputs; None where it is not set

    def __init__(
        self,
        inputs: Tensor | SparseRows | Sequence[Tensor] | dict[str, Tensor],
        labels: Tensor | Sequence[int] | NDArray[np.generic],
        sampler: Iterable[Sequence[int]] | None = None,
        *,
        batch_size: int = 1024,
        binary: bool = True,
    ) -> None:
        self.inputs: Inputs = tuple(inputs) if isinstance(inputs, list) else inputs  # type: ignore[assignment]
        parts = _check_parts(self.inputs)
        self.labels = (check_labels(_OWNER, labels, both=False) if binary else _targets(labels)).to(parts[0].device)
        for part in parts:
            if len(part) != len(self.labels):
                raise ValueError(
                    f"{_OWNER}: inputs must have as many rows as labels, {len(self.labels)}, got {len(part)}"
                )
        self._take_sampler(sampler, batch_size)

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor, Tensor]]:
        rows = self._rows(self.device)  # fixed now: the position may change before the first batch
        return self._tracked(self._gather(rows.to(self.device) if isinstance(rows, Tensor) else rows))

    def to(self, device: torch.device | str) -> TensorBatches:
        """Return the same batches, from the same sampler, with the tensors on `device`."""
        inputs = _change(self.inputs, methodcaller("to", device))
        moved = object.__new__(TensorBatches)  # what has been checked need not be checked again
        moved.__dict__.update(self.__dict__, inputs=inputs, labels=self.labels.to(device))
        return moved

    def _gather(self, index: Iterable[Tensor]) -> Iterator[tuple[Inputs, Tensor, Tensor]]:
        for batch in index:
            rows = batch.to(self.device)
            inputs = _change(self.inputs, methodcaller("index_select", 0, rows))
            yield inputs, self.labels.index_select(0, rows), rows


def _change(inputs: Inputs, function: Callable[[Tensor], Tensor]) -> Inputs:
    """Return inputs of the same form, each tensor changed by `function`."""
    if isinstance(inputs, Tensor | SparseRows):
        return function(inputs)  # type: ignore[arg-type]  # which has what is called here
    if isinstance(inputs, dict):
        return {name: function(part) for name, part in inputs.items()}
    return tuple(map(function, inputs))


def _targets(labels: Tensor | Sequence[int] | NDArray[np.generic]) -> Tensor:
    targets = as_labels(_OWNER, labels)
    check_shape(_OWNER, "labels", targets, [("n",)])
    if targets.is_floating_point():
        check_finite(_OWNER, labels=targets)
    return targets


def _check_parts(inputs: object) -> list[Tensor]:
    """Return the tensors of `inputs`, at least one, all with rows and on one device."""
    if isinstance(inputs, dict):
        parts = list(inputs.values())
    else:
        parts = list(inputs) if isinstance(inputs, tuple) else [inputs]
    for part in parts or [None]:
        if not isinstance(part, Tensor | SparseRows):
            kind = type(part).__name__ if parts else f"an empty {type(inputs).__name__}"
            raise ValueError(f"{_OWNER}: inputs must be a tensor, or a tuple or dict of tensors, got {kind}")
        if part.ndim == 0 or part.device != parts[0].device:
            found = f"{part.ndim} dimensions on {part.device}"
            raise ValueError(f"{_OWNER}: inputs must have rows and lie on one device, {parts[0].device}, got {found}")
    return parts


class IndexedDataset(Dataset[tuple[object, int, int]]):
    """Map-style data set with items `(inputs, label, index)`; `index` is the position in the data set wrapped.

    A `DataLoader`, of PyG too, makes batches `(inputs, labels, index)` of them. The order of wrapping decides the
    numbering: `Subset(IndexedDataset(d), rows)` keeps the numbers of `d`, for a loss built with the labels of `d`;
    `IndexedDataset(Subset(d, rows))` counts from 0, for a loss built with the labels of those rows.

    Args:
        dataset: data set with `len()` and items: pairs `(inputs, label)`, or inputs only if `labels` are given.
        labels: 0/1 labels of all items, shape `(n,)`; None to take them from the pairs. If they are given, an item
            consists of inputs only, even if it is a pair.

    Example:
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> pairs = TensorDataset(torch.tensor([[0.5], [1.5], [2.5]]), torch.tensor([0, 1, 0]))
        >>> dataset = IndexedDataset(pairs)
        >>> dataset[1]
        (tensor([1.5000]), 1, 1)
        >>> [index.tolist() for inputs, labels, index in DataLoader(dataset, batch_size=2)]
        [[0, 1], [2]]
    """

    def __init__(
        self, dataset: Dataset[Any], labels: Tensor | Sequence[int] | NDArray[np.generic] | None = None
    ) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise ValueError(f"IndexedDataset: dataset must have items and a length, got {type(dataset).__name__}")
        if not len(dataset):
            raise ValueError("IndexedDataset: dataset must hold at least one item, got 0")
        self.dataset = dataset
        self._paired = labels is None
        self._labels: Tensor | None = None
        if labels is not None:
            self._labels = check_labels("IndexedDataset", labels, both=False).cpu()
            if len(self._labels) != len(dataset):
                raise ValueError(
                    f"IndexedDataset: labels must be as long as dataset, {len(dataset)}, got {len(self._labels)}"
                )

    @property
    def labels(self) -> Tensor:
        """Labels of all items, int64 of shape `(n,)`; if none were given, the first access reads every item once."""
        if self._labels is None:
            self._labels = torch.tensor([self._split(row)[1] for row in range(len(self))])
        return self._labels

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[object, int, int]:
        row = operator.index(index)
        if not -len(self) <= row < len(self):  # an IndexError is what ends a loop over the items
            raise IndexError(f"IndexedDataset: index must lie in [{-len(self)}, {len(self)}), got {row}")
        row %= len(self)
        return (*self._split(row), row)

    def _split(self, row: int) -> tuple[object, int]:
        item = self.dataset[row]
        if not self._paired:
            return item, int(self.labels[row])
        if not isinstance(item, tuple | list) or len(item) != 2:
            size = f" of {len(item)}" if isinstance(item, tuple | list) else ""
            raise ValueError(
                f"IndexedDataset: dataset must have items (inputs, label) where labels is None, "
                f"got a {type(item).__name__}{size} at {row}"
            )
        label: Tensor = torch.as_tensor(item[1])
        if label.numel() != 1 or label.item() not in (0, 1):
            raise ValueError(f"IndexedDataset: labels must be 0 or 1, got {item[1]!r} at {row}")
        return item[0], int(label.item())


def as_inputs(encoded: NDArray[np.floating] | csr_array) -> Tensor | SparseRows:
    """Return what an encoder made of a table, an array or a sparse matrix, as inputs of batches."""
    return SparseRows(encoded) if issparse(encoded) else torch.from_numpy(encoded)


def tensors_of(inputs: Tensor | SparseRows) -> list[Tensor]:
    """Return tensors that hold all of the inputs, for a checksum."""
    if isinstance(inputs, Tensor):
        return [inputs]
    matrix = inputs.matrix
    return [
        torch.tensor(inputs.shape),
        *(torch.from_numpy(part) for part in (matrix.indptr, matrix.indices, matrix.data)),
    ]


def rows_at_once(inputs: Tensor | SparseRows, most: int) -> int:
    """Return how many rows to score at once: `most`, fewer where a dense chunk of sparse rows would be large."""
    return most if isinstance(inputs, Tensor) else max(1, min(most, _MOST_ENTRIES // max(inputs.shape[1], 1)))


class EpochBatches:
    """The batches of a loader, epoch by epoch, and how many of them were given.

    `epoch` is that of the next batch, and `step` the number of batches of it that were given.
    """

    def __init__(self, loader: Iterable[object]) -> None:
        self.loader = loader
        self.epoch, self.step = 0, 0

    def batches(self, epoch: int) -> Iterator[object]:
        """Yield the batches of an epoch."""
        set_epoch(self.loader, epoch)
        self.epoch, self.step = epoch, 0
        for batch in self.loader:
            self.step += 1
            yield batch
        self.epoch, self.step = epoch + 1, 0


def set_epoch(loader: object, epoch: int) -> None:
    """Call `set_epoch` of a loader, its batch sampler and its sampler, where they have it."""
    for part in (loader, getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)):
        method = getattr(part, "set_epoch", None)
        if method is not None:
            method(epoch)


def length_of(part: object) -> int | None:
    """Return the length of a loader, a sampler or a data set; None if it has none."""
    try:
        return len(part)  # type: ignore[arg-type]  # an error where it has no length
    except (TypeError, NotImplementedError):  # a DataLoader over data without a length has the method
        return None
