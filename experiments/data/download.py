"""Where the loaders find public files: in the user's folder, in the cache, or on the web.

The user's folder is the one given to the loader, or the one named by the environment variable MOREAUC_DATA. Downloads
go into the cache: the folder named by MOREAUC_CACHE, or the user's cache folder of the system.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
import tomllib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from experiments.data import _archives

_LOG = logging.getLogger(__name__)
_PAUSES = (1.0, 2.0, 4.0)  # seconds before the second, third and fourth attempt
_TIMEOUTS = (10.0, 30.0)  # seconds to connect, and between two bytes
_BLOCK = 2**14  # bytes written at a time


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
    """Return the folder for downloads and what is made of them, which need not exist yet."""
    given = os.environ.get("MOREAUC_CACHE")
    if given:
        return Path(given).expanduser()
    import platformdirs  # imported here: only downloads need it

    return Path(platformdirs.user_cache_dir("moreauc"))


def in_folder(root: Path, subfolder: str, *names: str) -> Path | None:
    """Return the first of the files that is in `root` or else in its subfolder; None where there is none."""
    places = (base / name for base in (root, root / subfolder) for name in names)
    return next((place for place in places if place.is_file()), None)


def from_folder(owner: str, folder: Path | None, subfolder: str, *names: str) -> Path:
    """Return the first of the files that the user's folder or its subfolder has; these have no public address."""
    root = data_folder(folder)
    found = in_folder(root, subfolder, *names)
    if found is None:
        raise ValueError(f"{owner}: the folder must have {' or '.join(names)}, got {str(root)!r}")
    return found


def find_file(owner: str, name: str, folder: Path | None = None, *, verify: bool = False) -> Path:
    """Return the path of a public file, downloading it where neither the user's folder nor the cache has it.

    Files in the cache and downloads are always checked by their sha256.

    Args:
        owner: who asks, for the messages.
        name: key of `PUBLIC_FILES`.
        folder: folder that has the file, or the file with `.gz` added, or a subfolder with either (see
            `PublicFile.subfolder`); None for MOREAUC_DATA, if set.
        verify: whether a file in the user's folder must have the right checksum too.

    Raises:
        ValueError: for a folder that does not exist, and for a wrong checksum.
        DownloadError: where no address gives the file; a `ValueError` as well.
    """
    entry = PUBLIC_FILES[name]
    root = data_folder(folder) if folder is not None or os.environ.get("MOREAUC_DATA") else None
    found = None if root is None else in_folder(root, entry.subfolder, name, f"{name}.gz")
    if found is not None and verify and entry.checksum(found) != entry.sha256:
        raise ValueError(f"{owner}: {found} must have the sha256 {entry.sha256}, got {entry.checksum(found)}")
    return found or _from_cache(owner, entry, cache_folder() / entry.subfolder / name)


def _from_cache(owner: str, entry: PublicFile, target: Path) -> Path:
    import requests
    from filelock import FileLock

    failures = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):  # the system frees the lock of a process that dies
            if target.is_file() and entry.checksum(target) == entry.sha256:
                return target
            for url in entry.urls:
                _LOG.info("%s: downloads %s (%s) from %s to %s", owner, entry.name, entry.source, url, target)
                try:
                    _download(entry, url, target)
                except (requests.RequestException, *_archives.BROKEN) as error:
                    failures.append(f"{url}: {error}")
                else:
                    for other in entry.urls:
                        part_file(target, other).unlink(missing_ok=True)
                    return target
    except OSError as error:
        failures.append(f"{target}: {error}")
    raise DownloadError(
        f"{owner}: {entry.name} ({entry.source}) could not be downloaded: {'; '.join(failures)}. "
        f"Put {entry.name} into a folder and set MOREAUC_DATA to it"
    )


def part_file(target: Path, url: str) -> Path:
    """Return the file of an unfinished download."""
    return target.with_name(f"{target.name}.{hashlib.sha256(url.encode()).hexdigest()[:8]}.part")


def _download(entry: PublicFile, url: str, target: Path) -> None:
    """Resume or start a download; unpack and check it before `target` is written."""
    part, new = part_file(target, url), target.with_name(f"{target.name}.new")
    resumed = part.exists()
    _transfer(entry.name, url, part)
    try:
        _check_packed(entry, part)
        new.write_bytes(entry.prepare(part))
        found = entry.checksum(new)
        if found != entry.sha256:
            raise ValueError(f"another content, of sha256 {found}")
        new.replace(target)
    except _archives.BROKEN:
        part.unlink()
        if not resumed:
            raise
        _download(entry, url, target)  # the part belongs to another file
    finally:
        new.unlink(missing_ok=True)


def _check_packed(entry: PublicFile, part: Path) -> None:
    """Compare the checksum of an archive, where it is known, before anything is unpacked."""
    if entry.packed_sha256 is not None and _archives.is_packed(part):
        found = _archives.content_sha256(part)
        if found != entry.packed_sha256:
            raise ValueError(f"the archive must have the sha256 {entry.packed_sha256}, got {found}")


def _transfer(title: str, url: str, part: Path) -> None:
    """Append a download to a file; retry after errors that may be temporary."""
    import requests

    for pause in (*_PAUSES, None):
        try:
            return _request(title, url, part)
        except requests.RequestException as error:
            status = 500 if error.response is None else error.response.status_code
            if pause is None or (status < 500 and status not in (408, 416, 429)):
                raise
            if status == 416:  # the part is longer than the file
                part.unlink(missing_ok=True)
            time.sleep(pause)


def _request(title: str, url: str, part: Path) -> None:
    """Append the missing bytes of a download to a file; received bytes stay if the transfer breaks off."""
    import requests
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    have = part.stat().st_size if part.exists() else 0
    # without compression on the way the length is that of the file
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    text = TextColumn("{task.description}", markup=False)
    with (
        requests.get(url, headers=headers, stream=True, timeout=_TIMEOUTS) as answer,
        Progress(text, *columns, console=console, disable=not console.is_terminal) as bars,
    ):
        answer.raise_for_status()
        if answer.status_code == 206 and not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            part.unlink(missing_ok=True)
            raise requests.RequestException("the server goes on at another byte")
        with part.open("ab" if answer.status_code == 206 else "wb") as file:
            length = answer.headers.get("Content-Length", "")
            bar = bars.add_task(title, total=file.tell() + int(length) if length.isdecimal() else None)
            for block in answer.iter_content(_BLOCK):
                if file.tell() + len(block) > _archives.LARGEST_DOWNLOAD:
                    part.unlink()
                    raise ValueError(f"it has more than {_archives.LARGEST_DOWNLOAD} bytes")
                file.write(block)
                bars.update(bar, completed=file.tell())
