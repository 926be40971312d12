"""Instances of bags as tensors, from arrays and from `.npy` files that are read row by row."""

from __future__ import annotations

from io import FileIO
from os import PathLike, fspath
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_WHOLE = 2**24
T = TypeVar("T")


def as_instances(owner: str, name: str, value: object) -> Tensor:
    """Return instances as a tensor on the CPU that shares memory with `value` where it can.

    Floating point numbers and bytes (images) keep their type; other integers and booleans become float32, and those
    that float32 cannot tell from their neighbours are refused.
    """
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
        if tensor.is_complex():
            raise ValueError(f"{owner}: {name} must hold real numbers, got {tensor.dtype}")
        if tensor.is_floating_point() or tensor.dtype == torch.uint8:
            return tensor
        _check_exact(owner, name, tensor.numpy())
        return tensor.float()
    if not isinstance(value, np.ndarray):
        raise ValueError(f"{owner}: {name} must be a tensor or an array, got {type(value).__name__}")
    kind = instance_type(owner, name, value.dtype)
    _check_exact(owner, name, value)
    array = np.require(value, kind, ["C", "W", "E"])  # torch warns of arrays it may not write to
    return torch.from_numpy(forward_strides(array))


def forward_strides(value: T) -> T | NDArray[np.generic]:
    """Return an array that runs backwards as a copy, since torch takes none; anything else as it is.

    One of a single row, turned around, is contiguous for NumPy all the same.
    """
    backwards = isinstance(value, np.ndarray) and any(step < 0 for step in value.strides)
    return np.array(value, order="C") if backwards else value


def instance_type(owner: str, name: str, kind: np.dtype) -> np.dtype:
    """Return the type that instances of an array have as a tensor."""
    if kind == np.uint8 or (kind.kind == "f" and kind.itemsize <= 8):
        return kind.newbyteorder("=")
    if kind.kind in "iub":
        return np.dtype(np.float32)
    raise ValueError(f"{owner}: {name} must hold real numbers of at most 8 bytes, got {kind}")


def _check_exact(owner: str, name: str, values: NDArray[np.generic]) -> None:
    """Refuse whole numbers that float32 rounds: times in seconds would all be one number."""
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 4 or not values.size:
        return
    largest = max(values.min(), values.max(), key=lambda value: abs(int(value)))
    if abs(int(largest)) > _WHOLE:
        raise ValueError(
            f"{owner}: {name} must hold whole numbers of at most {_WHOLE} (2**24), which float32 can hold, or floating "
            f"point numbers, got {largest}"
        )


def check_instance_shape(owner: str, name: str, shape: tuple[int, ...]) -> None:
    """Check that there is at least one instance, with features."""
    if len(shape) < 2:
        raise ValueError(f"{owner}: {name} must have shape (instances, features, ...), got {shape}")
    if shape[0] == 0:
        raise ValueError(f"{owner}: {name} must hold at least one instance, got shape {shape}")


class NpyFile(NamedTuple):
    """Where the rows of an array lie in a `.npy` file; no handle is kept open."""

    path: str  # the file
    shape: tuple[int, ...]  # of the array, rows first
    kind: np.dtype  # type of the numbers in the file
    offset: int  # bytes before the first row
    by_columns: bool  # whether the array is in Fortran order, so that the numbers of a row lie far apart

    @classmethod
    def open(cls, owner: str, path: str | PathLike[str]) -> NpyFile:
        """Read the header; that the file is as long as it says is checked too, but no row is read."""
        name = fspath(path)
        try:
            array = np.lib.format.open_memmap(name, mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"{owner}: paths must name .npy files, got {name!r}: {error}") from error
        by_columns = array.flags.f_contiguous and not array.flags.c_contiguous
        return cls(name, array.shape, array.dtype, array.offset, by_columns)

    def read(self, owner: str, rows: Tensor | None) -> Tensor:
        """Return the rows with these numbers, or all; only the blocks of the file that hold them are read.

        Plain reads, not a memory map: pages of a map stay in the resident memory of the process.
        """
        kind = instance_type(owner, self.path, self.kind)
        places = np.arange(self.shape[0]) if rows is None else rows.numpy()
        result = np.empty((len(places), *self.shape[1:]), dtype=self.kind)
        try:
            if self.by_columns:
                result[:] = np.lib.format.open_memmap(self.path, mode="r")[places]  # closed as soon as this is copied
            else:
                self._fill(result, places)
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"{owner}: {self.path!r} must stay as it was when the bags were made: {error}") from error
        _check_exact(owner, repr(self.path), result)
        return torch.from_numpy(result.astype(kind, copy=False))

    def _fill(self, result: NDArray[np.generic], places: NDArray[np.int64]) -> None:
        """Read runs of neighbouring rows at once."""
        begins = np.flatnonzero(np.diff(places, prepend=-2) != 1)
        width = result[0].nbytes
        ends = (width * np.append(begins[1:], len(places))).tolist()
        starts = (self.offset + width * places[begins]).tolist()
        view = memoryview(result.reshape(-1).view(np.uint8).data)
        with FileIO(self.path) as file:
            for begin, end, start in zip((width * begins).tolist(), ends, starts, strict=True):
                file.seek(start)
                while begin < end:
                    count = file.readinto(view[begin:end])
                    if not count:
                        raise EOFError("the file ends too early")
                    begin += count
