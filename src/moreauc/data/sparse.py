"""Rows of a sparse matrix for a network: dense only a batch at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse
from torch import Tensor

_MOST_ENTRIES = 2**25  # of a dense chunk of rows: 128 MB in float32


class SparseRows:
    """Rows of a sparse matrix, used as a tensor of shape `(n, columns)` is where batches of rows are taken of it.

    Args:
        matrix: the rows; its numbers become float32.
        device: where the batches are; the matrix itself stays in the memory of the CPU.
        dtype: type of the batches.

    Example:
        >>> rows = SparseRows(csr_array(np.eye(3)))
        >>> rows.index_select(0, torch.tensor([2, 0]))
        tensor([[0., 0., 1.],
                [1., 0., 0.]])
        >>> rows[1:].shape
        (2, 3)
    """

    ndim = 2

    def __init__(self, matrix: Any, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.matrix: Any = csr_array(matrix, dtype=np.float32)
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


def as_inputs(encoded: Any) -> Tensor | SparseRows:
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
    """Return how many rows to score at once: `most`, fewer where a dense chunk of sparse rows would be large.

    Example:
        >>> rows_at_once(torch.zeros(5, 3), 4096), rows_at_once(SparseRows(csr_array((5, 100_000))), 4096)
        (4096, 335)
    """
    return most if isinstance(inputs, Tensor) else max(1, min(most, _MOST_ENTRIES // max(inputs.shape[1], 1)))
