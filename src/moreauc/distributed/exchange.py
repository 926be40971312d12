"""Exchange between processes: tensors of different lengths, numbers, small objects, and errors.

Before tensors are sent, all processes exchange messages of one length that say which call they are in and what they are
about to send. A mismatch is then an error in every process at once, and none is left waiting for another.
"""

from __future__ import annotations

import math
import os
import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

_TYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
_DIMENSIONS = 4  # most dimensions of a tensor
_ALIGNED = 16  # bytes; tensors of every type may begin at a multiple
_PARTS = 16  # most tensors of one call
_WIDTH = 4 + _PARTS  # numbers in a message
# second groups, of gloo, for the numbers of groups that are for GPUs only
_SIDE_GROUPS: WeakKeyDictionary[Any, ProcessGroup] = WeakKeyDictionary()


class Whole(NamedTuple):
    """A tensor of all processes.

    Attributes:
        values: the parts of all processes, in their order, joined along the first dimension.
        lengths: rows of each part.
    """

    values: Tensor
    lengths: tuple[int, ...]

    def begin(self, rank: int) -> int:
        """Return the row at which the part of a process begins."""
        return sum(self.lengths[:rank])


class Exchange:
    """Sends tensors of this process to all others of a group, and gets theirs.

    If the group supports GPUs only, sizes are sent over a second (gloo) group: this avoids a device synchronization,
    and a dead process is detected at once. Copying returns the object itself.

    `owner` is the class or function named in errors, and `group` a group of processes; None for all of them.

    Attributes:
        rank: number of this process in the group.
        size: processes of the group; 1 where `torch.distributed` is not in use.
        ranks: their numbers among all processes.
    """

    def __init__(self, owner: str, group: ProcessGroup | None = None) -> None:
        if not _is_group(group):
            raise ValueError(f"{owner}: group must be a torch.distributed.ProcessGroup or None, got {group!r}")
        self.owner, self.group = owner, group
        self.rank, self.size = 0, 1
        self.ranks: tuple[int, ...] = (0,)
        if not (dist.is_available() and dist.is_initialized()):
            count = os.environ.get("WORLD_SIZE", "1")
            if count != "1":
                raise ValueError(
                    f"{owner}: torch.distributed must be set up where WORLD_SIZE is {count}; "
                    "call torch.distributed.init_process_group first"
                )
            return
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError(f"{owner}: group must hold this process, number {dist.get_rank()}, got one without it")
        self.ranks = tuple(dist.get_process_group_ranks(group))
        self._backends = dict(entry.split(":") for entry in dist.get_backend_config(group).split(","))
        self._numbers = group if self._backends.get("cpu") is not None else _side_group(group)

    def gather(
        self, parts: Mapping[str, Tensor | None], problem: Exception | None = None, checksum: int = 0
    ) -> dict[str, Whole | None]:
        """Return the tensors of all processes, by name; None for one that no process has.

        `parts` has names, the same and in the same order in every process, and tensors, or None, not for all. A tensor
        may have any number of rows, 0 included. An error given as `problem` is raised in all processes, and so is a
        :class:`ChecksumMismatch` where checksums differ.
        """
        if len(parts) > _PARTS:
            raise ValueError(f"{self.owner}: at most {_PARTS} tensors must be exchanged at once, got {len(parts)}")
        parts = parts if problem is None else dict.fromkeys(parts)
        kinds = {name: _kind(part) for name, part in parts.items()}
        rows = [0 if part is None else len(part) for part in parts.values()]
        place = f"a call of {self.owner} with {', '.join(parts)}"
        numbers = [int(problem is not None), checksum, zlib.crc32(repr(kinds).encode()), *rows]
        wrong, checksums, kinds_of, *lengths = zip(*self._announce(place, numbers), strict=True)
        if any(wrong):
            self._raise_together(problem)
        if len({*checksums}) > 1:
            raise ChecksumMismatch(f"{self.owner}: checksums must be the same in all processes, got others")
        if len({*kinds_of}) > 1:
            self._refuse_kinds(self.gather_objects(kinds))
        given = {name: part.detach() for name, part in parts.items() if part is not None}
        rows_of = dict(zip(parts, lengths, strict=True))
        found = self._gather_bytes(given, rows_of)
        return {
            name: Whole(torch.cat([pieces[name] for pieces in found]), rows_of[name]) if name in given else None
            for name in parts
        }

    def gather_objects(self, value: object, place: str = "an exchange of objects") -> list[Any]:
        """Return small picklable objects of all processes, in the order of the processes."""
        if self.size == 1:
            return [value]
        packed = pickle.dumps(value)
        lengths = [line[0] for line in self._announce(place, [len(packed)])]
        padded = torch.frombuffer(bytearray(packed.ljust(max(lengths), b"\0")), dtype=torch.uint8)
        return [pickle.loads(line.numpy().tobytes()) for line in self._all_gather(padded)]

    def broadcast_object(self, value: object, place: str = "an object of the first process") -> Any:
        """Return the picklable object of the first process in all processes."""
        if self.size == 1:
            return value
        self._announce(place, [])
        found = [value if self.rank == 0 else None]
        dist.broadcast_object_list(found, src=self.ranks[0], group=self._numbers)
        return found[0]

    @torch.no_grad()
    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copy tensors of the first process to all; shapes must be the same in all processes."""
        if self.size == 1 or not tensors:
            return
        self._announce(f"{len(tensors)} tensors of the first process", [])
        for tensor in tensors:
            values = tensor.detach().contiguous()
            group = self._numbers if tensor.device.type == "cpu" else self.group
            if values.numel():  # as bytes: gloo does not know all types
                dist.broadcast(values.reshape(-1).view(torch.uint8), src=self.ranks[0], group=group)
            tensor.copy_(values)

    def _announce(self, place: str, numbers: Sequence[int]) -> list[list[int]]:
        """Send the name of this call and some numbers to all processes; return the numbers of each."""
        if self.size == 1:
            return [list(numbers)]
        line = [zlib.crc32(place.encode()), *numbers]
        every = [found.tolist() for found in self._all_gather(torch.tensor([*line, *[0] * (_WIDTH - len(line))]))]
        if len({found[0] for found in every}) > 1:
            places: list[Any] = [None] * self.size
            dist.all_gather_object(places, place, group=self._numbers)
            rank = next(rank for rank, other in enumerate(places) if other != places[0])
            raise ValueError(
                f"{self.owner}: all processes must do the same, with as many batches, "
                f"got {places[0]} in process 0 and {places[rank]} in process {rank}"
            )
        return [found[1 : len(line)] for found in every]

    def _all_gather(self, numbers: Tensor) -> list[Tensor]:
        every = [torch.empty_like(numbers) for _ in range(self.size)]
        dist.all_gather(every, numbers, group=self._numbers)
        return every

    def _refuse_kinds(self, every: Sequence[Mapping[str, str]]) -> NoReturn:
        """Raise in all processes: tensors of different kinds cannot be joined."""
        first = every[0]
        rank, name = next((rank, name) for rank, own in enumerate(every) for name in own if own[name] != first[name])
        raise ValueError(
            f"{self.owner}: {name} must be of one kind in all processes, as in process 0, {first[name]}, "
            f"got {every[rank][name]} in process {rank}"
        )

    def _raise_together(self, problem: Exception | None) -> NoReturn:
        """Raise in all processes: the error of this one, or one that names the error of another."""
        texts = self.gather_objects(None if problem is None else str(problem))
        if problem is not None:
            raise problem
        rank, text = next((rank, text) for rank, text in enumerate(texts) if text is not None)
        raise ValueError(f"{self.owner}: process {rank} cannot go on: {text}")

    def _gather_bytes(
        self, parts: Mapping[str, Tensor], lengths: Mapping[str, Sequence[int]]
    ) -> list[dict[str, Tensor]]:
        """Send all tensors as bytes in one collective, whatever their types."""
        if self.size == 1:
            return [dict(parts)]
        shapes = [{name: (lengths[name][rank], *parts[name].shape[1:]) for name in parts} for rank in range(self.size)]
        most = max(sum(_padded(_bytes(parts[name], line[name])) for name in parts) for line in shapes)
        packed = torch.zeros(most, dtype=torch.uint8, device=next(iter(parts.values())).device)
        for part, piece in zip(parts.values(), _pieces(packed, parts, shapes[self.rank]).values(), strict=True):
            piece.copy_(part)
        place = packed.device
        if place.type != "cpu" and self._backends.get(place.type) == "gloo":
            packed = packed.cpu()  # gloo gathers on the CPU only
        every = [torch.empty_like(packed) for _ in range(self.size)]
        if len(packed):
            dist.all_gather(every, packed, group=self.group)
        return [_pieces(received.to(place), parts, line) for received, line in zip(every, shapes, strict=True)]

    def __deepcopy__(self, memo: object) -> Exchange:
        """Return this object: a copy is for the same processes."""
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """Make a new object where a pickle is loaded; a group of some processes exists in these only."""
        if self.group is not None:
            raise TypeError(f"{self.owner} over a group of processes cannot be pickled; save its state_dict()")
        return Exchange, (self.owner,)


class ChecksumMismatch(ValueError):
    """Processes sent checksums that differ."""


def _is_group(group: object) -> bool:
    """Return whether it is None or a group of torch; what processes outside of a new group get is refused later."""
    outside = dist.is_available() and group is dist.GroupMember.NON_GROUP_MEMBER
    return group is None or outside or isinstance(group, ProcessGroup)


def _side_group(group: ProcessGroup | None) -> ProcessGroup:
    key = dist.group.WORLD if group is None else group
    if key not in _SIDE_GROUPS:
        ranks = dist.get_process_group_ranks(group)
        _SIDE_GROUPS[key] = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    return _SIDE_GROUPS[key]


def _kind(part: Tensor | None) -> str:
    """Return type and shape of a tensor without its number of rows, which may differ between processes."""
    if part is None:
        return "None"
    sizes = ", ".join(["B", *map(str, part.shape[1:])])
    return f"{part.dtype} of shape ({sizes}{',' if part.ndim == 1 else ''})"


def check_part(owner: str, name: str, value: object) -> Tensor | None:
    """Return `value` as a tensor with rows that can be exchanged, or None as it is."""
    if value is None:
        return None
    try:
        part: Tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{owner}: {name} must be a tensor, got a {type(value).__name__}") from error
    if part.dtype not in _TYPES:
        raise ValueError(f"{owner}: {name} must hold real numbers of a common type, got {part.dtype}")
    if part.layout != torch.strided:
        raise ValueError(f"{owner}: {name} must be a dense tensor, got one of layout {part.layout}")
    if not 1 <= part.ndim <= _DIMENSIONS:
        raise ValueError(f"{owner}: {name} must have from 1 to {_DIMENSIONS} dimensions, got {part.ndim}")
    return part


def _pieces(packed: Tensor, parts: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Return views of the bytes as tensors of the types of `parts`, one after the other."""
    found, begin = {}, 0
    for name, part in parts.items():
        count = _bytes(part, shapes[name])
        found[name] = packed[begin : begin + count].view(part.dtype).view(*shapes[name])
        begin += _padded(count)
    return found


def _bytes(part: Tensor, shape: Sequence[int]) -> int:
    return part.dtype.itemsize * math.prod(shape)


def _padded(count: int) -> int:
    return -(-count // _ALIGNED) * _ALIGNED
