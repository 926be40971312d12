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
# second groups, of gloo, for the numbers of groups that are for GPUs only
_SIDE_GROUPS: WeakKeyDictionary[Any, ProcessGroup] = WeakKeyDictionary()


class Form(NamedTuple):
    """Type (its place in `_TYPES`) and shape of a tensor as numbers, always as many; all 0 where there is none."""

    given: int = 0
    kind: int = 0
    dimensions: int = 0
    sizes: tuple[int, ...] = (0,) * _DIMENSIONS

    @classmethod
    def of(cls, part: Tensor | None) -> Form:
        """Return the form of a tensor, or of None."""
        if part is None:
            return cls()
        return cls(1, _TYPES.index(part.dtype), part.ndim, (*part.shape, *[0] * (_DIMENSIONS - part.ndim)))

    @classmethod
    def read(cls, numbers: Sequence[int]) -> Form:
        """Return the form that was sent as these numbers."""
        given, kind, dimensions, *sizes = numbers
        return cls(given, kind, dimensions, tuple(sizes))

    def numbers(self) -> list[int]:
        """Return it as numbers."""
        return [*self[:3], *self.sizes]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self.sizes[: self.dimensions]

    @property
    def bytes(self) -> int:
        """The size of the tensor in bytes."""
        return _TYPES[self.kind].itemsize * math.prod(self.shape)

    def fits(self, other: Form) -> bool:
        """Return whether tensors of both forms can be joined: only the number of rows may differ."""
        return self[:3] == other[:3] and self.sizes[1:] == other.sizes[1:]

    def __str__(self) -> str:
        if not self.given:
            return "None"
        sizes = ", ".join(["B", *map(str, self.shape[1:])])
        return f"{_TYPES[self.kind]} of shape ({sizes}{',' if self.dimensions == 1 else ''})"


_NUMBERS = len(Form().numbers())  # of a form
_WIDTH = 4 + _PARTS * _NUMBERS  # numbers in a message


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

    Args:
        owner: class or function named in errors.
        group: a group of processes; None for all of them.

    Attributes:
        rank: number of this process in the group.
        size: processes of the group; 1 where `torch.distributed` is not in use.
        ranks: their numbers among all processes.

    Raises:
        ValueError: if `group` is not a process group or does not contain this process; under `torchrun` with several
            processes before `init_process_group`.
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

        Args:
            parts: names, the same and in the same order in every process, and tensors, or None, not for all. A tensor
                may have any number of rows, 0 included; type and other dimensions must be the same everywhere.
            problem: an error in the parts of this process, raised in all processes.
            checksum: a number that must be the same in all processes.

        Raises:
            ChecksumMismatch: in every process, where the checksums differ.
            ValueError: in every process, if one of them has a problem or the tensors do not match.
        """
        if len(parts) > _PARTS:
            raise ValueError(f"{self.owner}: at most {_PARTS} tensors must be exchanged at once, got {len(parts)}")
        own = {name: Form.of(part if problem is None else None) for name, part in parts.items()}
        numbers = [number for form in own.values() for number in form.numbers()]
        place = f"a call of {self.owner} with {', '.join(parts)}"
        every = self._announce(place, [int(problem is not None), checksum, *numbers])
        if any(wrong for wrong, *_ in every):
            self._give_up(problem)
        if len({found for _, found, *_ in every}) > 1:
            raise ChecksumMismatch(f"{self.owner}: checksums must be the same in all processes, got others")
        forms = [_forms(list(parts), line[2:]) for line in every]
        self._compare(forms)
        given = {name: part.detach() for name, part in parts.items() if part is not None}
        found = self._gather_bytes(given, [{name: line[name] for name in given} for line in forms])
        whole: dict[str, Whole | None] = dict.fromkeys(parts)
        for name in given:
            pieces = [unpacked[name] for unpacked in found]
            whole[name] = Whole(torch.cat(pieces), tuple(len(piece) for piece in pieces))
        return whole

    def gather_objects(self, value: Any, place: str = "an exchange of objects") -> list[Any]:
        """Return small picklable objects of all processes, in the order of the processes."""
        if self.size == 1:
            return [value]
        packed = pickle.dumps(value)
        lengths = [line[0] for line in self._announce(place, [len(packed)])]
        padded = torch.frombuffer(bytearray(packed.ljust(max(lengths), b"\0")), dtype=torch.uint8)
        return [pickle.loads(line.numpy().tobytes()) for line in self._all_gather(padded)]

    def broadcast_object(self, value: Any, place: str = "an object of the first process") -> Any:
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
        """Send the call that this process is in, and some numbers, to all; return the numbers of each.

        Raises:
            ValueError: in every process, where one of them is in another call.
        """
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

    def _compare(self, forms: Sequence[Mapping[str, Form]]) -> None:
        """Raise, in all processes alike, where the tensors do not go together."""
        for rank, line in enumerate(forms):
            for name, form in line.items():
                if not form.fits(forms[0][name]):
                    raise ValueError(
                        f"{self.owner}: {name} must be of one kind in all processes, as in process 0, "
                        f"{forms[0][name]}, got {form} in process {rank}"
                    )

    def _give_up(self, problem: Exception | None) -> NoReturn:
        """Raise in all processes: the error of this one, or one that names the error of another."""
        texts = self.gather_objects(None if problem is None else str(problem))
        if problem is not None:
            raise problem
        rank, text = next((rank, text) for rank, text in enumerate(texts) if text is not None)
        raise ValueError(f"{self.owner}: process {rank} cannot go on: {text}")

    def _gather_bytes(
        self, parts: Mapping[str, Tensor], forms: Sequence[Mapping[str, Form]]
    ) -> list[dict[str, Tensor]]:
        """Send all tensors as bytes in one collective, whatever their types."""
        if self.size == 1:
            return [dict(parts)]
        packed = pack(list(parts.values()), max(length_of(list(line.values())) for line in forms))
        place = packed.device
        if place.type != "cpu" and self._backends.get(place.type) == "gloo":
            packed = packed.cpu()  # gloo gathers on the CPU only
        every = [torch.empty_like(packed) for _ in range(self.size)]
        if len(packed):
            dist.all_gather(every, packed, group=self.group)
        return [unpack(received.to(place), line) for received, line in zip(every, forms, strict=True)]

    def __deepcopy__(self, memo: Any) -> Exchange:
        """Return this object: a copy is for the same processes."""
        return self

    def __reduce__(self) -> Any:
        """Make a new object where a pickle is loaded; a group of some processes exists in these only."""
        if self.group is not None:
            raise TypeError(f"{self.owner} over a group of processes cannot be pickled; save its state_dict()")
        return Exchange, (self.owner,)


class ChecksumMismatch(ValueError):
    """Processes sent checksums that differ."""


def _is_group(group: Any) -> bool:
    """Return whether it is None or a group of torch; what processes outside of a new group get is refused later."""
    outside = dist.is_available() and group is dist.GroupMember.NON_GROUP_MEMBER
    return group is None or outside or isinstance(group, ProcessGroup)


def _side_group(group: ProcessGroup | None) -> ProcessGroup:
    key = dist.group.WORLD if group is None else group
    if key not in _SIDE_GROUPS:
        ranks = dist.get_process_group_ranks(group)
        _SIDE_GROUPS[key] = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    return _SIDE_GROUPS[key]


def _forms(names: Sequence[str], numbers: Sequence[int]) -> dict[str, Form]:
    """Return the forms of the tensors of one process."""
    ends = range(_NUMBERS, _NUMBERS * (len(names) + 1), _NUMBERS)
    return {name: Form.read(numbers[end - _NUMBERS : end]) for name, end in zip(names, ends, strict=True)}


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


def length_of(forms: Sequence[Form]) -> int:
    """Return how many bytes tensors of these forms take when packed."""
    return sum(_padded(form.bytes) for form in forms)


def pack(parts: Sequence[Tensor], length: int) -> Tensor:
    """Return tensors as `length` bytes, padded at the end."""
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
        found[name] = packed[begin : begin + form.bytes].view(_TYPES[form.kind]).reshape(form.shape)
        begin += _padded(form.bytes)
    return found


def _padded(count: int) -> int:
    return -(-count // _ALIGNED) * _ALIGNED
