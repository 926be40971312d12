"""Files that are written whole or not at all: texts, figures, and arrays without pickle."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from moreauc._system import written_whole

_UNSIGNED = (np.uint8, np.uint16, np.uint32)
_DAMAGED = (ValueError, KeyError, TypeError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)


def write_bytes(path: Path | str, content: bytes) -> None:
    """Write a file."""
    with written_whole(path) as part:
        part.write_bytes(content)


def save_figure(figure: Figure, path: Path, *, dpi: int = 150) -> None:
    """Write a figure as PNG, the same bytes for the same figure."""
    content = BytesIO()
    figure.savefig(content, format="png", dpi=dpi, metadata={"Software": None})
    write_bytes(path, content.getvalue())


def write_arrays(path: Path | str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays into one compressed file, non-negative integers in the smallest type that holds them."""
    content = BytesIO()
    np.savez_compressed(content, **{key: _smallest(array) for key, array in arrays.items()})  # type: ignore[arg-type]
    write_bytes(path, content.getvalue())


def read_arrays(owner: str, path: Path | str, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays `names` of a file that :func:`write_arrays` wrote, integers as bytes or int64."""
    try:
        with Path(path).open("rb") as source, np.load(source, allow_pickle=False) as file:
            arrays = {name: file[name] for name in names}
    except _DAMAGED as error:
        raise ValueError(f"{owner}: path must be a file that save wrote, got {str(path)!r}") from error
    return {
        name: array.astype(np.int64) if array.dtype.kind in "iu" and array.dtype != np.uint8 else array
        for name, array in arrays.items()
    }


def _smallest(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "iu" or (array.size and array.min() < 0):
        return array
    top = int(array.max()) if array.size else 0
    return next((array.astype(kind) for kind in _UNSIGNED if top <= np.iinfo(kind).max), array)
