"""Where the loaders find public files: in the user's folder, in the cache, or on the web.

The user's folder is the one given to the loader, or the one that the environment variable MOREAUC_DATA names. The cache
is the folder that MOREAUC_CACHE names, or the user's cache of the system; downloads go there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.data._registry import PUBLIC_FILES, PublicFile
from experiments.data._transfer import ResumingDownloader, TransferError, part_file
from experiments.data.keel import data_folder
from moreauc._extras import import_extra

__all__ = ["PUBLIC_FILES", "DownloadError", "PublicFile", "cache_folder", "find_file"]

_LOG = logging.getLogger(__name__)


class DownloadError(ValueError):
    """A public file could not be downloaded: says from where, why not, and what to do."""


def cache_folder(extra: str = "experiments") -> Path:
    """Return the folder for downloads and what is made of them: MOREAUC_CACHE, or the user's cache of the system.

    It need not exist yet.

    Args:
        extra: extra of this library to name where pooch, which knows the user's cache, is missing.

    Raises:
        ModuleNotFoundError: where MOREAUC_CACHE is not set and pooch is not installed.
    """
    given = os.environ.get("MOREAUC_CACHE")
    return Path(given).expanduser() if given else Path(import_extra("pooch", extra).os_cache("moreauc"))


def find_file(
    owner: str,
    name: str,
    *,
    folder: Path | None = None,
    download: bool = True,
    progress: bool = True,
    verify: bool = False,
) -> Path:
    """Return the path of a public file, which is downloaded where it is neither in the user's folder nor in the cache.

    Files in the cache and downloads are checked by their sha256, files in the user's folder only if `verify` says so.

    Args:
        owner: who asks, for the messages.
        name: key of `PUBLIC_FILES`.
        folder: folder that has the file, or the file with `.gz` added, or a subfolder with either (see
            `PublicFile.subfolder`); None for MOREAUC_DATA, if set.
        download: whether the file may be downloaded.
        progress: whether a download shows a bar, where standard error is a terminal.
        verify: whether a file in the user's folder must have the right checksum.

    Returns:
        The path, which ends in `name` or, in the user's folder, perhaps in `.gz`.

    Raises:
        ValueError: for an unknown name, a folder that does not exist, a wrong checksum, and a file that is nowhere.
        DownloadError: where the file can be had from none of its addresses; a `ValueError` as well.
        ModuleNotFoundError: where a download is needed and pooch is not installed.
    """
    if name not in PUBLIC_FILES:
        raise ValueError(f"{owner}: name must be one of {', '.join(PUBLIC_FILES)}, got {name!r}")
    entry = PUBLIC_FILES[name]
    root = data_folder(folder) if folder is not None or os.environ.get("MOREAUC_DATA") else None
    found = None if root is None else _in_folder(entry, root)
    if found is not None:
        if verify and entry.checksum(found) != entry.sha256:
            raise ValueError(f"{owner}: {found} must have the sha256 {entry.sha256}, got {entry.checksum(found)}")
        return found
    try:
        target = cache_folder(entry.extra) / entry.subfolder / name
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
    return _download(owner, entry, target, progress)


def _in_folder(entry: PublicFile, root: Path) -> Path | None:
    places = (base / (entry.name + end) for base in (root, root / entry.subfolder) for end in ("", ".gz"))
    return next((place for place in places if place.is_file()), None)


def _is_good(entry: PublicFile, target: Path) -> bool:
    try:
        return target.is_file() and entry.checksum(target) == entry.sha256
    except OSError:  # a cache that cannot be read has nothing
        return False


def _text(path: Path | None) -> str:
    return "no folder" if path is None else repr(str(path))


def _download(owner: str, entry: PublicFile, target: Path, progress: bool) -> Path:
    pooch, filelock = (import_extra(module, entry.extra) for module in ("pooch", "filelock"))
    failures, offline = [], False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # the system frees the lock of a process that dies
        with filelock.FileLock(f"{target}.lock"), _quiet(pooch):
            if _is_good(entry, target):  # another process was faster
                return target
            target.unlink(missing_ok=True)
            for url in entry.urls:
                try:
                    return _retrieve(pooch, owner, entry, target, url, progress)
                except TransferError as error:
                    failures.append(f"{url}: {error}")
                    offline = offline or error.offline
    except OSError as error:
        failures.append(f"{target}: {error}")
    raise DownloadError(
        f"{owner}: {entry.name} ({entry.source}) could not be downloaded: {'; '.join(failures)}. "
        f"{'Offline? ' if offline else ''}Put {entry.name} into a folder and set MOREAUC_DATA to it"
    )


def _retrieve(pooch: Any, owner: str, entry: PublicFile, target: Path, url: str, progress: bool) -> Path:
    _LOG.info("%s: downloads %s (%s) from %s to %s", owner, entry.name, entry.source, url, target)
    downloader = ResumingDownloader(entry, target, progress=progress)
    # the sha256 of a tar is that of its files, which pooch does not know; the downloader has checked all of them
    checksum = None if entry.name.endswith(".tar") else f"sha256:{entry.sha256}"
    pooch.retrieve(url, known_hash=checksum, fname=target.name, path=target.parent, downloader=downloader)
    for other in entry.urls:
        part_file(target, other).unlink(missing_ok=True)
    return target


@contextmanager
def _quiet(pooch: Any) -> Iterator[None]:
    """Keep pooch from writing to standard error, where the bar is."""

    def silent(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    logger = pooch.get_logger()
    logger.addFilter(silent)
    try:
        yield
    finally:
        logger.removeFilter(silent)
