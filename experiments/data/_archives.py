"""How a raw download becomes the file that a loader reads, with limits on what an archive may unpack to.

Every step takes the path of the download and returns the content. A step leaves correct content unchanged, so that
sources which differ in such details give the same file.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

Prepare = Callable[[Path], bytes]

# errors of unpacking a file of another type than its name says
_UNREADABLE = (EOFError, csv.Error, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError)
BROKEN = (ValueError, KeyError, RuntimeError, *_UNREADABLE)

LARGEST_DOWNLOAD = 2**31  # bytes that a download may have, and an archive when unpacked; several times the largest
LARGEST = 2**28  # bytes that the content of one may have
_ZIP, _GZIP = b"PK\x03\x04", b"\x1f\x8b"


class _Capped(io.RawIOBase):
    """A file of which `limit` bytes may be read; more are an error, however few their archive takes."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, limit: int) -> None:
        super().__init__()
        self._file, self._limit, self._left = file, limit, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        found = self._file.read(min(len(buffer), self._left + 1))
        self._left -= len(found)
        if self._left < 0:
            raise ValueError(f"it holds more than {self._limit} bytes")
        buffer[: len(found)] = found
        return len(found)


def is_packed(raw: Path) -> bool:
    """Return whether a file is a zip archive or compressed by gzip."""
    with raw.open("rb") as file:
        return file.read(len(_ZIP)).startswith((_ZIP, _GZIP))


def unpack(raw: Path, *, member: str = "") -> bytes:
    """Return the content: of `member` where the file is a zip archive, decompressed where it is a gzip file.

    Raises:
        KeyError: for a zip archive without the member.
        ValueError: for a member compressed in an unusual way, and for a content of more than `LARGEST` bytes, of which
            no more are unpacked.
    """
    with raw.open("rb") as file:
        magic = file.read(len(_ZIP))
    if magic == _ZIP:
        with zipfile.ZipFile(raw) as archive:
            entry = archive.getinfo(member)
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # zipfile unpacks others at once
                raise ValueError(f"{member} is compressed in an unusual way")
            with archive.open(entry) as content:
                return _Capped(content, LARGEST).read()
    with gzip.open(raw) if magic.startswith(_GZIP) else raw.open("rb") as file:
        return _Capped(file, LARGEST).read()


def without_repeated_smiles(raw: Path) -> bytes:
    """Return a table without the rows whose last column, the SMILES, repeats that of an earlier row."""
    first: dict[bytes, bytes] = {}
    for line in unpack(raw).splitlines():
        first.setdefault(line.rpartition(b",")[2], line)
    return _lines(list(first.values()))


def without_blank_lines(raw: Path) -> bytes:
    r"""Return a text whose lines end in `\n`, without blank ones."""
    return _lines([line for line in unpack(raw).splitlines() if line])


def without_columns(raw: Path, *, columns: tuple[str, ...]) -> bytes:
    r"""Return a table with a header, its lines ending in `\n`, without the columns of these names."""
    rows = list(csv.reader(io.StringIO(unpack(raw).decode(), newline="")))
    kept = [number for number, name in enumerate(rows[0] if rows else []) if name not in columns]
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(
        [row[number] for number in kept if number < len(row)] for row in rows
    )
    return out.getvalue().encode()


def with_adult_ends(raw: Path, *, member: str, first: str = "") -> bytes:
    """Return a part of Adult as UCI has it: with a blank line at the end and, where `first` is given, that first line.

    Copies elsewhere lack the blank line, or have the names of the columns in place of the first line.
    """
    lines = unpack(raw, member=member).splitlines()
    if first and lines and lines[0].startswith(b"age,"):
        lines[0] = first.encode()
    if lines and lines[-1]:
        lines.append(b"")
    return _lines(lines)


def collect_images(raw: Path, *, inside: str, classes: dict[str, str], count: int) -> bytes:
    """Return a tar of numbered images, taken out of a compressed tar of a repository.

    Args:
        raw: the tar of the repository; all its paths start with one folder, whatever its name.
        inside: folder of the repository that has the folders of the classes.
        classes: for the folder of each class what stands before the number in the names of its images.
        count: images of each class, from number 1.

    Returns:
        The tar, with `folder/name` for each image in the order of the classes and numbers, and no dates or owners.
    """
    stems = "|".join(re.escape(f"{folder}/{stem}") for folder, stem in classes.items())
    pattern = re.compile(rf"[^/]+/{re.escape(inside)}/((?:{stems})([0-9]+)\.jpeg)")
    images: dict[str, bytes] = {}
    left = LARGEST
    with gzip.open(raw) as stream, _tar_stream(stream) as archive:
        for entry in archive:
            match = pattern.fullmatch(entry.name)
            if match and 1 <= int(match[2]) <= count and (file := archive.extractfile(entry)):
                left -= entry.size
                if left < 0:
                    raise ValueError(f"the images have more than {LARGEST} bytes")
                images[match[1]] = file.read()
    names = [f"{folder}/{stem}{number}.jpeg" for folder, stem in classes.items() for number in range(1, count + 1)]
    missing = [name for name in names if name not in images]
    if missing:
        raise ValueError(f"{len(missing)} images are missing, {missing[0]} among them")
    return _tar([(name, images[name]) for name in names])


def content_sha256(path: Path, *, tar: bool = False) -> str:
    """Return the checksum of a file's content, decompressed if its name ends in `.gz`.

    Of a tar it is that of the lines `name sha256` of its files, sorted, since two archives of the same files need not
    have the same bytes. A file that is not what it should be has none: "unreadable".
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as content:
            if not tar:
                return hashlib.file_digest(_Capped(content, LARGEST_DOWNLOAD), "sha256").hexdigest()
            with _tar_stream(content) as archive:
                files: Any = ((entry.name, archive.extractfile(entry)) for entry in archive if entry.isfile())
                lines = [f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n" for name, file in files]
            return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
    except BROKEN:
        return "unreadable"


def _tar_stream(content: IO[bytes] | gzip.GzipFile) -> tarfile.TarFile:
    """Open a tar that is not compressed: what is passed over and headers that say they are long count, too."""
    return tarfile.open(fileobj=cast("IO[bytes]", _Capped(content, LARGEST_DOWNLOAD)), mode="r|")


def _lines(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _tar(files: list[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()
