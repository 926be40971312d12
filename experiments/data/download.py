"""Where the loaders find public files: in the user's folder, in the cache, or on the web.

The user's folder is the one given to the loader, or the one named by the environment variable MOREAUC_DATA. Downloads
go into the cache: the folder named by MOREAUC_CACHE, or the user's cache folder of the system.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tomllib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from experiments.data import _archives
from experiments.data._transfer import TransferError, transfer
from moreauc._system import import_extra, written_whole

_LOG = logging.getLogger(__name__)


class DownloadError(ValueError):
    """A public file could not be downloaded: says from where, why not, and what to do."""


@dataclass(frozen=True)
class PublicFile:
    """A file that anyone can download; `public_files.toml` explains the entries."""

    name: str
    subfolder: str
    urls: tuple[str, ...]
    sha256: str
    source: str
    prepare: _archives.Prepare = field(default=_archives.unpack, repr=False)
    packed_sha256: str | None = None

    def checksum(self, path: Path) -> str:
        """Return what must equal `sha256` for a copy of the file; the path may end in `.gz`."""
        return _archives.content_sha256(path, tar=self.name.endswith(".tar"))


def _read_table() -> dict[str, PublicFile]:
    entries = tomllib.loads(Path(__file__).with_name("public_files.toml").read_text())
    files = {}
    for name, entry in entries.items():
        options: dict[str, Any] = entry.pop("prepare", {"step": "unpack"})
        prepare = partial(getattr(_archives, options.pop("step")), **options)
        files[name] = PublicFile(name, urls=tuple(entry.pop("urls")), prepare=prepare, **entry)
    return files


PUBLIC_FILES = _read_table()


def data_folder(folder: Path | None = None) -> Path:
    """Return the folder with data sets: the one given, or the one named by MOREAUC_DATA."""
    given = os.environ.get("MOREAUC_DATA") if folder is None else str(folder)
    if not given:
        raise ValueError("data_folder: give the folder with the data sets, or set MOREAUC_DATA to it")
    if not Path(given).is_dir():
        raise ValueError(f"data_folder: the folder with the data sets must exist, got {given!r}")
    return Path(given)


def cache_folder() -> Path:
    """Return the folder for downloads and what is made of them, which need not exist yet.

    Raises:
        ModuleNotFoundError: where MOREAUC_CACHE is not set and platformdirs is not installed.
    """
    given = os.environ.get("MOREAUC_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(import_extra("platformdirs", "experiments").user_cache_dir("moreauc"))


def in_folder(root: Path, subfolder: str, *names: str) -> Path | None:
    """Return the first of the files that is in `root` or else in its subfolder; None where there is none."""
    places = (base / name for base in (root, root / subfolder) for name in names)
    return next((place for place in places if place.is_file()), None)


def find_file(
    owner: str, name: str, *, folder: Path | None = None, download: bool = True, verify: bool = False
) -> Path:
    """Return the path of a public file, downloading it where neither the user's folder nor the cache has it.

    Files in the cache and downloads are always checked by their sha256.

    Args:
        owner: who asks, for the messages.
        name: key of `PUBLIC_FILES`.
        folder: folder that has the file, or the file with `.gz` added, or a subfolder with either (see
            `PublicFile.subfolder`); None for MOREAUC_DATA, if set.
        download: whether the file may be downloaded.
        verify: whether a file in the user's folder must have the right checksum too.

    Raises:
        ValueError: for an unknown name, a folder that does not exist, a wrong checksum, and a file that is nowhere.
        DownloadError: where no address gives the file; a `ValueError` as well.
        ModuleNotFoundError: where a download is needed and a package for it is not installed.
    """
    if name not in PUBLIC_FILES:
        raise ValueError(f"{owner}: name must be one of {', '.join(PUBLIC_FILES)}, got {name!r}")
    entry = PUBLIC_FILES[name]
    root = data_folder(folder) if folder is not None or os.environ.get("MOREAUC_DATA") else None
    found = None if root is None else in_folder(root, entry.subfolder, name, f"{name}.gz")
    if found is not None:
        if verify and entry.checksum(found) != entry.sha256:
            raise ValueError(f"{owner}: {found} must have the sha256 {entry.sha256}, got {entry.checksum(found)}")
        return found
    try:
        target = cache_folder() / entry.subfolder / name
    except ModuleNotFoundError:
        if download:
            raise
        target = None
    if target is not None and _is_good(entry, target):
        return target
    if target is None or not download:
        raise ValueError(
            f"{owner}: {name} or {name}.gz must be in the folder given or named by MOREAUC_DATA, in a subfolder "
            f"{entry.subfolder} of it, or in the cache, as download is False, got {_text(root)} and {_text(target)}"
        )
    return _download(owner, entry, target)


def _is_good(entry: PublicFile, target: Path) -> bool:
    try:
        return target.is_file() and entry.checksum(target) == entry.sha256
    except OSError:  # an unreadable cache counts as empty
        return False


def _text(path: Path | None) -> str:
    return "no folder" if path is None else repr(str(path))


def _download(owner: str, entry: PublicFile, target: Path) -> Path:
    filelock = import_extra("filelock", "experiments")
    failures, offline = [], False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{target}.lock"):  # the system frees the lock of a process that dies
            if _is_good(entry, target):  # another process was faster
                return target
            target.unlink(missing_ok=True)
            for url in entry.urls:
                _LOG.info("%s: downloads %s (%s) from %s to %s", owner, entry.name, entry.source, url, target)
                try:
                    _from_url(entry, url, target)
                except TransferError as error:
                    failures.append(f"{url}: {error}")
                    offline = offline or error.offline
                else:
                    for other in entry.urls:
                        part_file(target, other).unlink(missing_ok=True)
                    return target
    except OSError as error:
        failures.append(f"{target}: {error}")
    raise DownloadError(
        f"{owner}: {entry.name} ({entry.source}) could not be downloaded: {'; '.join(failures)}. "
        f"{'Offline? ' if offline else ''}Put {entry.name} into a folder and set MOREAUC_DATA to it"
    )


def part_file(target: Path, url: str) -> Path:
    """Return where the bytes from an address are kept until all have come: each address has a file of its own."""
    return target.with_name(f"{target.name}.{hashlib.sha256(url.encode()).hexdigest()[:8]}.part")


def _from_url(entry: PublicFile, url: str, target: Path) -> None:
    """Download one address, resuming an earlier attempt; prepare, check, and only then write `target`."""
    part = part_file(target, url)
    resumed = part.exists()
    transfer(url, part, title=entry.name)
    try:
        _finish(entry, part, target)
    except TransferError:
        if not resumed:
            raise
        _from_url(entry, url, target)  # the part was of another file; it is gone, so start from byte 0


def _finish(entry: PublicFile, part: Path, target: Path) -> None:
    with written_whole(target) as new:
        try:
            _check_packed(entry, part)
            new.write_bytes(entry.prepare(part))
            found = entry.checksum(new)
        except _archives.BROKEN as error:
            found = f"none, since it cannot be unpacked: {error}"
        part.unlink()
        if found != entry.sha256:
            raise TransferError(f"another content, of sha256 {found}")


def _check_packed(entry: PublicFile, part: Path) -> None:
    """Compare the checksum of a packed download, where it is known, before anything is unpacked."""
    if entry.packed_sha256 is None or not _archives.is_packed(part):
        return
    with part.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != entry.packed_sha256:
        raise ValueError(f"the archive must have the sha256 {entry.packed_sha256}, got {found}")
