"""Limits against hostile files: the records of a checkpoint are checked before they are loaded.

`torch.save` writes a zip archive of uncompressed records. A hostile file could have compressed or overlapping records,
or a pickle that makes more than the file holds. They are found from the archive's table of contents, as torch reads it.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

_END = struct.Struct("<4s4H2IH")  # of the archive
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_FULL = 0xFFFFFFFF  # of a number that stands in the extra field instead
_ENCRYPTED = 0x1 | 0x40 | 0x2000  # flags of a record
_CALLED = {  # what plain data is made of, besides the types of numbers
    *("collections OrderedDict", "collections Counter", "_codecs encode", "torch Size", "torch device"),
    *("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3", "torch.storage UntypedStorage"),
    *(f"{module} {name}" for module in ("__builtin__", "builtins") for name in ("set", "complex")),
}


class Record(NamedTuple):
    """An entry of the table of contents."""

    name: str
    flags: int
    method: int
    packed: int
    size: int
    offset: int


def check_records(file: BinaryIO, start: int, size: int) -> None:
    """Check the archive in `size` bytes of a file from `start`; raise ValueError if `torch.save` did not write it."""
    records = list(_read_table(file, start, size))
    names = [record.name.lower() for record in records]  # torch ignores case
    if len(set(names)) < len(names):
        raise ValueError("records of the same name")
    for record in records:
        if record.flags & _ENCRYPTED:
            raise ValueError(f"the record {record.name!r} is encrypted")
        if record.method or record.packed != record.size:
            raise ValueError(f"the record {record.name!r} is compressed")
    total = sum(record.size for record in records)
    if total > size:
        raise ValueError(f"records of {total} bytes in {size} bytes")
    for record in records:
        if record.name.lower().endswith(".pkl"):
            _check_pickle(_content(file, start, size, record))


def check_loaded(state: Any, size: int) -> None:
    """Check that what was loaded takes no more than the `size` bytes it was loaded from; else raise ValueError.

    torch loads tensors that are larger than their records, and containers that hold each other many times over.
    """
    storages, number, waiting = {}, 0, [state]
    while waiting:
        value, number = waiting.pop(), number + 1
        if number > size:  # `save_checkpoint` writes every entry
            raise ValueError(f"more than {size} entries in {size} bytes")
        if isinstance(value, Tensor):
            taken = value.numel() * value.element_size()
            value = value.untyped_storage()
            if taken > value.nbytes():
                raise ValueError(f"a tensor of {taken} bytes in {value.nbytes()} bytes")
        if isinstance(value, torch.UntypedStorage):
            storages[value.data_ptr()] = value.nbytes()
        elif isinstance(value, dict | list | tuple):
            waiting += value.values() if isinstance(value, dict) else value
    if sum(storages.values()) > size:
        raise ValueError(f"tensors of {sum(storages.values())} bytes in {size} bytes")


def _read(file: BinaryIO, start: int, size: int, offset: int, length: int) -> bytes:
    if offset < 0 or offset + length > size:
        raise ValueError("parts of the archive lie outside of it")
    file.seek(start + offset)
    return file.read(length)


def _read_table(file: BinaryIO, start: int, size: int) -> Iterator[Record]:
    """Yield the entries; the table must lie right before the end of the archive, where torch looks, too."""
    after = size - _END.size
    end = _END.unpack(_read(file, start, size, after, _END.size))
    if end[0] != b"PK\x05\x06" or end[-1]:
        raise ValueError("no archive, or one with something behind it")
    count, length, offset = end[4:7]
    before = after - _LOCATOR.size - _END64.size
    if before >= 0:
        locator = _LOCATOR.unpack(_read(file, start, size, after - _LOCATOR.size, _LOCATOR.size))
        if locator[0] == b"PK\x06\x07":
            after = before
            end64 = _END64.unpack(_read(file, start, size, after, _END64.size))
            if end64[0] != b"PK\x06\x06" or locator[2] != after:
                raise ValueError("a table of contents that is not at the end")
            count, length, offset = end64[7:10]
    if offset + length != after:
        raise ValueError("a table of contents that is not at the end")
    table = _read(file, start, size, offset, length)
    place = 0
    for _ in range(count):
        record, place = _entry(table, place)
        yield record
    if place != length:
        raise ValueError("a table of contents of another length")


def _entry(table: bytes, place: int) -> tuple[Record, int]:
    """Return the entry at a place of the table, and where the next begins."""
    if place + _ENTRY.size > len(table):
        raise ValueError("a table of contents that is cut short")
    fields = _ENTRY.unpack_from(table, place)
    flags, method, packed, size, offset = fields[3], fields[4], fields[8], fields[9], fields[16]
    lengths = fields[10:13]  # of name, extra field and comment
    begin = place + _ENTRY.size
    name, extra = table[begin : begin + lengths[0]], table[begin + lengths[0] : begin + lengths[0] + lengths[1]]
    if fields[0] != b"PK\x01\x02" or begin + sum(lengths) > len(table):
        raise ValueError("a table of contents that is damaged")
    large = iter(_large(extra))
    size, packed, offset = (next(large, _FULL) if number == _FULL else number for number in (size, packed, offset))
    return Record(name.decode("utf-8", "replace"), flags, method, packed, size, offset), begin + sum(lengths)


def _large(extra: bytes) -> list[int]:
    """Return the numbers of 64 bits in an extra field."""
    place = 0
    while place + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, place)
        if kind == 1:
            count = min(length, len(extra) - place - 4) // 8
            return list(struct.unpack_from(f"<{count}Q", extra, place + 4))
        place += 4 + length
    return []


def _content(file: BinaryIO, start: int, size: int, record: Record) -> bytes:
    local = _LOCAL.unpack(_read(file, start, size, record.offset, _LOCAL.size))
    if local[0] != b"PK\x03\x04":
        raise ValueError(f"no record {record.name!r} where it should be")
    return _read(file, start, size, record.offset + _LOCAL.size + sum(local[-2:]), record.size)


def _check_pickle(content: bytes) -> None:
    """Check that a pickle makes plain data only: others that torch allows make arrays of any size from a number."""
    for code, argument, _ in pickletools.genops(content):
        if code.name == "GLOBAL" and argument not in _CALLED and not _is_type(str(argument)):
            raise ValueError(f"{argument} in it")


def _is_type(name: str) -> bool:
    """Return whether a name is that of a type of numbers, or of their storage."""
    module, _, own = name.partition(" ")
    return module == "torch" and (own.endswith("Storage") or isinstance(getattr(torch, own, None), torch.dtype))
