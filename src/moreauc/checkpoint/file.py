"""The file of a checkpoint: plain data with a checksum, written so that a kill leaves the old file or the new one.

A file is a header (magic bytes, version, length and SHA-256 of what follows) and the output of `torch.save`. The
checksum finds accidental damage; a file altered on purpose cannot run code, because of `weights_only=True`.
"""

from __future__ import annotations

import hashlib
import os
import pickletools
import struct
import warnings
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy as np
import torch
from torch import Tensor, nn

from moreauc._checks import check_mapping, check_path
from moreauc._system import make_folder, sync_folder, written_whole

VERSION = 1

_MAGIC = b"\x89moreauc\r\n\x1a\n"  # the line ends reveal a transfer in text mode
_VERSION_AND_SIZE = struct.Struct(">IQ")
_HEADER = len(_MAGIC) + _VERSION_AND_SIZE.size + hashlib.sha256().digest_size
_BLOCK = 1 << 20  # bytes read at a time for the checksum
_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_OWNER = "load_checkpoint"
_SAVER = "save_checkpoint"

_END, _LOCATOR, _END64 = struct.Struct("<4s4H2IH"), struct.Struct("<4sIQI"), struct.Struct("<4sQ2H2I4Q")  # of archives
_ENCRYPTED = 0x1 | 0x40 | 0x2000  # flags of a record
_CALLED = {  # what plain data is made of, besides the types of numbers
    *("collections OrderedDict", "collections Counter", "_codecs encode", "torch Size", "torch device"),
    *("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3", "torch.storage UntypedStorage"),
    *(f"{module} {name}" for module in ("__builtin__", "builtins") for name in ("set", "complex")),
}


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: damaged, of a newer version, or of another run.

    Nothing has changed, unless the loader gives other batches than before, which is detected only while it is read.
    """


class DamagedCheckpointError(CheckpointError):
    """A file that is cut short, altered, or not a checkpoint."""


def save_checkpoint(path: str | Path, state: Mapping[str, Any]) -> None:
    """Write plain data to a file, atomically.

    It is written under another name in the same folder, flushed to the disk and renamed, and the folder is flushed. A
    kill, an error or a full disk leaves the file that was there before.

    Args:
        path: the file; its folder is made if it is missing.
        state: dictionaries, lists and tuples of tensors, numbers, texts and None, such as the `state_dict()` of a
            :class:`RunState`. Anything else is a `CheckpointError`, and nothing is written.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> save_checkpoint(f"{folder.name}/a.checkpoint", {"weights": torch.arange(3), "epoch": 4})
        >>> load_checkpoint(f"{folder.name}/a.checkpoint")
        {'weights': tensor([0, 1, 2]), 'epoch': 4}
        >>> folder.cleanup()
    """
    path, plain = check_path(_SAVER, "path", path), check_plain(state)
    make_folder(path.parent)
    with written_whole(path) as part, open(part, "xb") as file:
        _write(file, plain)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def check_plain(state: Mapping[str, Any]) -> dict[str, object]:
    """Return a state as it is written; raise CheckpointError if it holds what could not be loaded again."""
    check_mapping(_SAVER, "state", state)
    plain: dict[str, object] = _plain(dict(state), "state")
    return plain


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return what :func:`save_checkpoint` wrote to `path`, tensors on the CPU.

    The checksum is compared before anything is unpickled, and only tensors and plain data are unpickled: a file that
    would run code is refused, and so is one that would need more memory than its size.

    Raises:
        CheckpointError: for a file that is cut short, altered, of a newer version, or not a checkpoint.
    """
    with open(check_path(_OWNER, "path", path), "rb") as file:
        size = _check_header(str(path), file)
        try:
            _check_records(file, size)
            file.seek(_HEADER)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's advice to trust the file
                state = torch.load(file, map_location="cpu", weights_only=True)
            _check_loaded(state, size)
        except Exception as error:  # unpickling a hostile file may raise anything
            reason = str(error).strip().splitlines()
            raise DamagedCheckpointError(
                f"{_OWNER}: {path} must hold tensors and plain data only, got what cannot be loaded: "
                f"{type(error).__name__}: {reason[0] if reason else ''}"
            ) from error
    if not isinstance(state, dict):
        raise DamagedCheckpointError(f"{_OWNER}: {path} must hold a dictionary, got {type(state).__name__}")
    return state


class _Hashed:
    """A file that computes checksum and length while it is written; keeps the first error, which torch replaces."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise
        self.digest.update(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: the file is flushed at the end."""


def _write(file: BinaryIO, state: dict[str, object]) -> None:
    file.write(bytes(_HEADER))
    body = _Hashed(file)
    try:
        torch.save(state, cast("IO[bytes]", body))  # torch.save only calls write
    except RuntimeError:
        if body.error is not None:
            raise body.error from None
        raise
    numbers = _VERSION_AND_SIZE.pack(VERSION, body.size)
    file.seek(0)
    file.write(_MAGIC + numbers + _whole_digest(body.digest, numbers))


def _whole_digest(body: hashlib._Hash, numbers: bytes) -> bytes:
    """Return the checksum of contents and header, in this order."""
    digest = body.copy()
    digest.update(numbers)
    return digest.digest()


def _check_header(name: str, file: BinaryIO) -> int:
    """Check the header and the checksum; return the length of the contents."""
    header = file.read(_HEADER)
    if header[: len(_MAGIC)] != _MAGIC[: len(header)] or not header:
        raise DamagedCheckpointError(f"{_OWNER}: {name} must be a checkpoint of moreauc, got something else")
    if len(header) < _HEADER:
        raise DamagedCheckpointError(f"{_OWNER}: {name} must have a whole header, got {len(header)} bytes: cut short")
    numbers = header[len(_MAGIC) : len(_MAGIC) + _VERSION_AND_SIZE.size]
    version, size = _VERSION_AND_SIZE.unpack(numbers)
    found = os.fstat(file.fileno()).st_size - _HEADER
    if found != size:
        what = "cut short" if found < size else "altered"
        raise DamagedCheckpointError(f"{_OWNER}: {name} must hold {size} bytes, got {found}: {what}")
    digest = hashlib.sha256()
    while block := file.read(_BLOCK):
        digest.update(block)
    if _whole_digest(digest, numbers) != header[-digest.digest_size :]:
        raise DamagedCheckpointError(f"{_OWNER}: {name} must match its checksum, got another one: altered")
    if version > VERSION:
        raise CheckpointError(
            f"{_OWNER}: {name} must be of version {VERSION} or earlier, got {version}: written by a newer moreauc"
        )
    return int(size)


def _plain(value: Any, name: str) -> Any:
    """Return a copy of the containers with plain data only; tensors are not copied."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, nn.Parameter):
        value = value.detach()
    if type(value) is Tensor and value.layout == torch.strided and not value.is_quantized and not value.is_meta:
        value = value.detach()
        whole = value.untyped_storage().nbytes()  # torch.save writes the whole storage of a view
        return value if whole == value.numel() * value.element_size() else value.clone()
    if type(value) in (dict, OrderedDict, Counter):
        for key in value:
            if type(key) not in (str, int, float, bool, type(None)):
                raise CheckpointError(f"{_SAVER}: keys of {name} must be texts or numbers, got {key!r}")
        return type(value)({key: _plain(entry, f"{name}[{key!r}]") for key, entry in value.items()})
    if type(value) in (list, tuple, set):
        if all(type(entry) in _SCALARS for entry in value):  # such as the states of generators, hundreds of numbers
            return type(value)(value)
        return type(value)(_plain(entry, f"{name}[{number}]") for number, entry in enumerate(value))
    if type(value) in _SCALARS:
        return value
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, Tensor):
        kind += f" of {value.dtype} and {value.layout} on {value.device}"
    raise CheckpointError(
        f"{_SAVER}: {name} must be a plain tensor, a number, a text, None, or a container of these, got {kind}"
    )


# Limits against hostile files: `torch.save` writes a zip archive of uncompressed records. A hostile one could have
# compressed or overlapping records, or a pickle that makes more than the file holds.


def _check_records(file: BinaryIO, size: int) -> None:
    """Check the archive that follows the header; raise ValueError if `torch.save` did not write it."""
    _check_end(file, size)
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
        names = [record.filename.lower() for record in records]  # torch ignores case
        if len(set(names)) < len(names):
            raise ValueError("records of the same name")
        for record in records:
            if record.flag_bits & _ENCRYPTED:
                raise ValueError(f"the record {record.filename!r} is encrypted")
            if record.compress_type != zipfile.ZIP_STORED or record.compress_size != record.file_size:
                raise ValueError(f"the record {record.filename!r} is compressed")
        total = sum(record.file_size for record in records)
        if total > size:
            raise ValueError(f"records of {total} bytes in {size} bytes")
        for record, name in zip(records, names, strict=True):
            if name.endswith(".pkl"):
                _check_pickle(archive.read(record))


def _check_end(file: BinaryIO, size: int) -> None:
    """Check that the table of contents is right before the end, where both Python and torch then look for it."""

    def read(place: int, form: struct.Struct) -> tuple[Any, ...]:
        file.seek(_HEADER + place)
        return form.unpack(file.read(form.size)) if place >= 0 else (b"",)

    after = size - _END.size
    end = read(after, _END)
    if end[0] != b"PK\x05\x06" or end[-1]:
        raise ValueError("no archive, or one with something behind it")
    length, offset = end[5:7]
    locator = read(after - _LOCATOR.size, _LOCATOR)
    if locator[0] == b"PK\x06\x07":  # numbers of 64 bits
        after -= _LOCATOR.size + _END64.size
        end = read(after, _END64)
        if end[0] != b"PK\x06\x06" or locator[2] != after:
            raise ValueError("a table of contents that is not at the end")
        length, offset = end[8:10]
    if offset + length != after:
        raise ValueError("a table of contents that is not at the end")


def _check_loaded(state: object, size: int) -> None:
    """Check that what was loaded takes no more than the `size` bytes it was loaded from; else raise ValueError.

    torch loads tensors that are larger than their records, and containers that hold each other many times over.
    """
    storages, number, waiting = {}, 0, [state]
    while waiting:
        value, number = waiting.pop(), number + 1
        if number > size:  # every entry takes at least a byte
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


def _check_pickle(content: bytes) -> None:
    """Check that a pickle makes plain data only: others that torch allows make arrays of any size from a number."""
    for code, argument, _ in pickletools.genops(content):
        if code.name == "GLOBAL" and argument not in _CALLED and not _is_type(str(argument)):
            raise ValueError(f"{argument} in it")


def _is_type(name: str) -> bool:
    """Return whether a name is that of a type of numbers, or of their storage."""
    module, _, own = name.partition(" ")
    return module == "torch" and (own.endswith("Storage") or isinstance(getattr(torch, own, None), torch.dtype))
