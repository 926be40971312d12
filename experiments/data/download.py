"""Where the loaders find public files: in the user's folder, in the cache, or on the web.

The user's folder is the one given to the loader, or the one named by the environment variable MOREAUC_DATA. Downloads
go into the cache: the folder named by MOREAUC_CACHE, or the user's cache folder of the system.
"""

from __future__ import annotations

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
_TIMEOUTS = (10.0, 30.0)  # seconds for a connection, and without a byte
_BLOCK = 2**16


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
    import platformdirs  # here, as what downloads need: a machine that is given all files may lack it

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


def find_file(owner: str, name: str, folder: Path | None = None) -> Path:
    """Return the path of a public file, downloading it where neither the user's folder nor the cache has it.

    Files in the cache and downloads are checked by their sha256; the user's own are taken as they are.

    Args:
        owner: who asks, for the messages.
        name: key of `PUBLIC_FILES`.
        folder: folder that has the file, or the file with `.gz` added, or a subfolder with either (see
            `PublicFile.subfolder`); None for MOREAUC_DATA, if set.

    Raises:
        ValueError: for a folder that does not exist.
        DownloadError: where no address gives the file; a `ValueError` as well.
    """
    entry = PUBLIC_FILES[name]
    root = data_folder(folder) if folder is not None or os.environ.get("MOREAUC_DATA") else None
    found = None if root is None else in_folder(root, entry.subfolder, name, f"{name}.gz")
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
                    return target
    except OSError as error:
        failures.append(f"{target}: {error}")
    raise DownloadError(
        f"{owner}: {entry.name} ({entry.source}) could not be downloaded: {'; '.join(failures)}. "
        f"Put {entry.name} into a folder and set MOREAUC_DATA to it"
    )


def _download(entry: PublicFile, url: str, target: Path) -> None:
    """Download one address, prepare and check what came, and only then write `target`."""
    raw, new = (target.with_name(f"{target.name}.{ending}") for ending in ("raw", "new"))
    try:
        _transfer(url, raw)
        new.write_bytes(entry.prepare(raw))
        found = entry.checksum(new)
        if found != entry.sha256:
            raise ValueError(f"another content, of sha256 {found}")
        new.replace(target)
    finally:
        raw.unlink(missing_ok=True)
        new.unlink(missing_ok=True)


def _transfer(url: str, raw: Path) -> None:
    """Write what an address gives into a file; try again where the server or the way to it may be better soon."""
    import requests

    for pause in (*_PAUSES, None):
        try:
            # without compression on the way the length is that of the file
            with requests.get(url, headers={"Accept-Encoding": "identity"}, stream=True, timeout=_TIMEOUTS) as answer:
                answer.raise_for_status()
                with raw.open("wb") as file:
                    for block in answer.iter_content(_BLOCK):
                        if file.tell() + len(block) > _archives.LARGEST_DOWNLOAD:
                            raise ValueError(f"it has more than {_archives.LARGEST_DOWNLOAD} bytes")
                        file.write(block)
            return
        except requests.RequestException as error:
            status = 500 if error.response is None else error.response.status_code
            if pause is None or (status < 500 and status not in (408, 429)):
                raise
            time.sleep(pause)
