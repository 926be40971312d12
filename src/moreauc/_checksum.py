"""A checksum by which the inputs of a run are known again."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from torch import Tensor


def checksum(tensors: Iterable[Tensor]) -> str:
    """Return the CRC-32 of tensors, of their kinds and shapes and of what they hold, as eight digits.

    Example:
        >>> import torch
        >>> checksum([torch.tensor([1, 2])]), checksum([torch.tensor([2, 1])])
        ('56437a37', 'f104c926')
    """
    found = 0
    for tensor in tensors:
        found = zlib.crc32(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.detach().cpu().contiguous().numpy().tobytes(), found)
    return f"{found:08x}"
