"""What processes say of tensors before they send them, and tensors as bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

TYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
DIMENSIONS = 4  # at most so many has a tensor that is exchanged
_ALIGNED = 16  # bytes; tensors of every type may begin there


class Form(NamedTuple):
    """Type and shape of a tensor, as numbers; all of them 0 where there is none.

    Attributes:
        given: whether there is a tensor.
        kind: place of its type in `TYPES`.
        dimensions: how many of the sizes count.
        sizes: rows first; there are always `DIMENSIONS`.
    """

    given: int = 0
    kind: int = 0
    dimensions: int = 0
    sizes: tuple[int, ...] = (0,) * DIMENSIONS

    @classmethod
    def of(cls, part: Tensor | None) -> Form:
        """Return the form of a tensor."""
        if part is None:
            return cls()
        return cls(1, TYPES.index(part.dtype), part.ndim, (*part.shape, *[0] * (DIMENSIONS - part.ndim)))

    @classmethod
    def read(cls, numbers: Sequence[int]) -> Form:
        """Return the form that was sent as these numbers."""
        given, kind, dimensions, *sizes = numbers
        return cls(given, kind, dimensions, tuple(sizes))

    def numbers(self) -> list[int]:
        """Return it as numbers, always as many."""
        return [self.given, self.kind, self.dimensions, *self.sizes]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self.sizes[: self.dimensions]

    @property
    def bytes(self) -> int:
        """How many bytes its numbers take."""
        return TYPES[self.kind].itemsize * math.prod(self.shape)

    def goes_with(self, other: Form) -> bool:
        """Return whether tensors of both forms can be joined: only the number of rows may differ."""
        return self[:3] == other[:3] and self.sizes[1:] == other.sizes[1:]

    def __str__(self) -> str:
        if not self.given:
            return "None"
        sizes = ", ".join(["B", *map(str, self.shape[1:])])
        return f"{TYPES[self.kind]} of shape ({sizes}{',' if self.dimensions == 1 else ''})"


FORM_NUMBERS = len(Form().numbers())


def check_part(owner: str, name: str, value: object) -> Tensor | None:
    """Return `value` as a tensor with rows that can be exchanged, or None as it is."""
    if value is None:
        return None
    try:
        part: Tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{owner}: {name} must be a tensor, got a {type(value).__name__}") from error
    if part.dtype not in TYPES:
        raise ValueError(f"{owner}: {name} must hold real numbers of a common type, got {part.dtype}")
    if part.layout != torch.strided:
        raise ValueError(f"{owner}: {name} must be a dense tensor, got one of layout {part.layout}")
    if not 1 <= part.ndim <= DIMENSIONS:
        raise ValueError(f"{owner}: {name} must have from 1 to {DIMENSIONS} dimensions, got {part.ndim}")
    return part


def length_of(forms: Sequence[Form]) -> int:
    """Return how many bytes tensors of these forms take when packed."""
    return sum(_padded(form.bytes) for form in forms)


def pack(parts: Sequence[Tensor], length: int) -> Tensor:
    """Return tensors as `length` bytes, the last of which may mean nothing."""
    packed = torch.zeros(length, dtype=torch.uint8, device=parts[0].device)
    begin = 0
    for part in parts:
        count = Form.of(part).bytes
        packed[begin : begin + count].view(part.dtype).copy_(part.reshape(-1))
        begin += _padded(count)
    return packed


def unpack(packed: Tensor, forms: Mapping[str, Form]) -> dict[str, Tensor]:
    """Return the tensors of these forms out of their bytes."""
    found, begin = {}, 0
    for name, form in forms.items():
        found[name] = packed[begin : begin + form.bytes].view(TYPES[form.kind]).reshape(form.shape)
        begin += _padded(form.bytes)
    return found


def _padded(count: int) -> int:
    return -(-count // _ALIGNED) * _ALIGNED
