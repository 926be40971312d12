"""What processes tell each other: tensors of different lengths, numbers, and that something is wrong.

Before tensors travel, all processes learn what all others are about to send. Whatever does not fit is then an error in
every process at once, and none is left waiting for another.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

_TYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
_DIMENSIONS = 4  # at most so many has a tensor that is exchanged
_ALIGNED = 16  # bytes; tensors of every type may begin there
_FINE, _WRONG = 0, 1


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

    Small numbers go over a group of gloo, beside one that is for GPUs only: lengths are known without waiting for the
    GPU, and a process that has died is noticed at once.

    Args:
        owner: class or function named in errors.
        group: a group of processes; None for all of them.

    Attributes:
        rank: number of this process in the group.
        size: processes of the group; 1 where `torch.distributed` is not in use.

    Raises:
        ValueError: under `torchrun` with several processes before `init_process_group`, or where this process is not
            in the group.
    """

    def __init__(self, owner: str, group: ProcessGroup | None = None) -> None:
        self.owner, self.group = owner, group
        self.rank, self.size = 0, 1
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
        self._backends = dict(entry.split(":") for entry in dist.get_backend_config(group).split(","))
        self._numbers = group
        if self._backends.get("cpu") is None:
            ranks = dist.get_process_group_ranks(group)
            self._numbers = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)

    def gather(self, parts: Mapping[str, Tensor | None], problem: Exception | None = None) -> dict[str, Whole | None]:
        """Return the tensors of all processes, by name; None for one that nobody gave.

        Args:
            parts: names, the same and in the same order in every process, and tensors, or None, not for all. A tensor
                may have any number of rows, 0 included; type and other dimensions must be the same everywhere.
            problem: what is wrong with the parts of this process: raised here, and told to the others.

        Raises:
            ValueError: in every process, where one of them has a problem or the tensors do not go together.
        """
        every = self._announce(parts, problem)
        if any(line[0] != _FINE for line in every):
            self._give_up(problem)
        self._compare(list(parts), every)
        given = {name: part for name, part in parts.items() if part is not None}
        shapes = [_shapes(given, list(parts), line) for line in every]
        found = self._gather_bytes(given, shapes)
        whole: dict[str, Whole | None] = dict.fromkeys(parts)
        for name in given:
            pieces = [unpacked[name] for unpacked in found]
            whole[name] = Whole(torch.cat(pieces), tuple(len(piece) for piece in pieces))
        return whole

    def gather_objects(self, value: Any) -> list[Any]:
        """Return small things of all processes that can be pickled, in the order of the processes."""
        if self.size == 1:
            return [value]
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, value, group=self._numbers)
        return every

    def from_first(self, *numbers: float) -> list[float]:
        """Return the numbers of the first process, the same ones in all of them."""
        return self._gather_numbers(torch.tensor(numbers, dtype=torch.float64))[0]

    def anyone(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        return any(line[0] for line in self._gather_numbers(torch.tensor([int(flag)])))

    def _gather_numbers(self, numbers: Tensor) -> list[list[Any]]:
        if self.size == 1:
            return [numbers.tolist()]
        every = [torch.empty_like(numbers) for _ in range(self.size)]
        dist.all_gather(every, numbers, group=self._numbers)
        return [line.tolist() for line in every]

    def _announce(self, parts: Mapping[str, Tensor | None], problem: Exception | None) -> list[list[int]]:
        """Tell all processes what this one will send; return what each will, one line of numbers for each."""
        width = 3 + _DIMENSIONS
        line = [_FINE if problem is None else _WRONG]
        for part in parts.values():
            if part is None or problem is not None:
                line += [0] * width
            else:
                sizes = [*part.shape, *[0] * _DIMENSIONS][:_DIMENSIONS]
                line += [1, _TYPES.index(part.dtype), part.ndim, *sizes]
        return self._gather_numbers(torch.tensor(line))

    def _compare(self, names: Sequence[str], every: Sequence[Sequence[int]]) -> None:
        """Raise, in all processes alike, where the tensors do not go together."""
        for name, numbers in _by_name(names, every):
            for rank, found in enumerate(numbers):
                # all but the number of rows must be as in the first process
                if [*found[:3], *found[4:]] != [*numbers[0][:3], *numbers[0][4:]]:
                    self._refuse(name, numbers[0], rank, found)

    def _give_up(self, problem: Exception | None) -> NoReturn:
        """Raise in all processes, here what is wrong here, else what is wrong elsewhere."""
        texts = self.gather_objects(None if problem is None else str(problem))
        if problem is not None:
            raise problem
        rank, text = next((rank, text) for rank, text in enumerate(texts) if text is not None)
        raise ValueError(f"{self.owner}: process {rank} cannot go on: {text}")

    def _refuse(self, name: str, first: Sequence[int], rank: int, found: Sequence[int]) -> NoReturn:
        wanted, got = _text(first), _text(found)
        raise ValueError(
            f"{self.owner}: {name} must be of one kind in all processes, as in process 0, {wanted}, "
            f"got {got} in process {rank}"
        )

    def _gather_bytes(
        self, parts: Mapping[str, Tensor], shapes: Sequence[Mapping[str, tuple[int, ...]]]
    ) -> list[dict[str, Tensor]]:
        """Send all tensors as bytes in one go, so that any types travel together and arrive bit for bit."""
        own = {name: part.detach() for name, part in parts.items()}
        if self.size == 1:
            return [own]
        place = next(iter(own.values())).device
        lengths = [sum(_padded(_bytes(own[name], shape)) for name, shape in line.items()) for line in shapes]
        packed = torch.zeros(max(lengths), dtype=torch.uint8, device=place)
        begin = 0
        for part in own.values():
            count = _bytes(part, part.shape)
            packed[begin : begin + count].view(part.dtype).copy_(part.reshape(-1))
            begin += _padded(count)
        if place.type != "cpu" and self._backends.get(place.type) == "gloo":
            packed = packed.cpu()  # gloo gathers there only
        every = [torch.empty_like(packed) for _ in range(self.size)]
        if len(packed):
            dist.all_gather(every, packed, group=self.group)
        return [_unpack(received.to(place), own, line) for received, line in zip(every, shapes, strict=True)]


def check_part(owner: str, name: str, value: Any) -> Tensor | None:
    """Return `value` as a tensor with rows that can be exchanged, or None as it is."""
    if value is None:
        return None
    try:
        part: Tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{owner}: {name} must be a tensor, got a {type(value).__name__}") from error
    if part.dtype not in _TYPES:
        raise ValueError(f"{owner}: {name} must hold real numbers of a common type, got {part.dtype}")
    if not 1 <= part.ndim <= _DIMENSIONS:
        raise ValueError(f"{owner}: {name} must have from 1 to {_DIMENSIONS} dimensions, got {part.ndim}")
    return part


def _by_name(names: Sequence[str], every: Sequence[Sequence[int]]) -> list[tuple[str, list[Sequence[int]]]]:
    """Return for each name its numbers in all processes."""
    width = 3 + _DIMENSIONS
    places = [(name, 1 + number * width) for number, name in enumerate(names)]
    return [(name, [line[begin : begin + width] for line in every]) for name, begin in places]


def _shapes(given: Mapping[str, Tensor], names: Sequence[str], line: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that one process sends."""
    return {name: tuple(found[3 : 3 + found[2]]) for name, (found,) in _by_name(names, [line]) if name in given}


def _text(found: Sequence[int]) -> str:
    if not found[0]:
        return "None"
    sizes = ", ".join(["B", *map(str, found[4 : 3 + found[2]])])
    return f"{_TYPES[found[1]]} of shape ({sizes}{',' if found[2] == 1 else ''})"


def _bytes(like: Tensor, shape: Sequence[int]) -> int:
    count = like.element_size()
    for size in shape:
        count *= size
    return count


def _padded(count: int) -> int:
    return -(-count // _ALIGNED) * _ALIGNED


def _unpack(packed: Tensor, like: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    found, begin = {}, 0
    for name, shape in shapes.items():
        count = _bytes(like[name], shape)
        found[name] = packed[begin : begin + count].view(like[name].dtype).reshape(shape)
        begin += _padded(count)
    return found
