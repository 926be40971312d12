"""A downloader for pooch: goes on where an earlier one stopped, tries again, gives up on a silent server.

Pooch asks a downloader to put the content of an address into a temporary file, which pooch then moves into the cache.
Here the bytes go into a `.part` file beside it first, which stays when the transfer breaks off. Only when all of it has
come, was prepared, and has the right checksum, does pooch get its file.
"""

from __future__ import annotations

import hashlib
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from experiments.data._prepare import BROKEN, LARGEST_ARCHIVE, is_packed
from experiments.data._registry import PublicFile
from moreauc._extras import import_extra

__all__ = ["PAUSES", "TIMEOUT", "ResumingDownloader", "TransferError", "part_file"]

PAUSES = (1.0, 2.0, 4.0)  # seconds before the second, third and fourth try
TIMEOUT = 30.0  # seconds without a byte

_MANY = 100  # tries, as many as there are pauses for
_CONNECT = 10.0  # seconds for a connection, at most

_CHUNK = 2**14
_PASSING = {408, 429, 500, 502, 503, 504}  # states of a server that may be over soon


class TransferError(Exception):
    """Why a download failed, after how many further tries to give up, and whether no server was reached."""

    def __init__(self, reason: str, *, tries: int = 0, offline: bool = False) -> None:
        super().__init__(reason)
        self.tries, self.offline = tries, offline


def part_file(target: Path, url: str) -> Path:
    """Return where the bytes from an address are kept until all have come: each address has a file of its own."""
    return target.with_name(f"{target.name}.{hashlib.sha256(url.encode()).hexdigest()[:8]}.part")


class ResumingDownloader:
    """Downloads a public file for pooch, by HTTP.

    Args:
        entry: file to download.
        target: path that it will have in the cache.
        progress: whether to show a bar, where standard error is a terminal.
        pauses: seconds to wait before each further try; None for `PAUSES`.
        timeout: seconds to wait for the connection and for each piece of the answer; None for `TIMEOUT`.
        sleep: waits for that many seconds.
    """

    def __init__(
        self,
        entry: PublicFile,
        target: Path,
        *,
        progress: bool = True,
        pauses: tuple[float, ...] | None = None,
        timeout: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.entry, self.target, self.progress, self.sleep = entry, target, progress, sleep
        self.pauses = PAUSES if pauses is None else pauses
        self.timeout = TIMEOUT if timeout is None else timeout
        self._requests = import_extra("requests", entry.extra)
        self._errors = import_extra("urllib3", entry.extra).exceptions

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        """Download, prepare, check, and write the content to `output_file`; `pooch` is not needed.

        Raises:
            TransferError: where the address does not give the file.
        """
        part = part_file(self.target, url)
        begun = part.exists()
        self._transfer(url, part)
        try:
            self._prepare(part, Path(output_file))
        except TransferError:
            if not begun:
                raise
            self(url, output_file, pooch)  # what lay there was the beginning of something else: from the start, then

    def _transfer(self, url: str, part: Path) -> None:
        for number, pause in enumerate((*self.pauses, 0.0)):
            try:
                return self._try(url, part)
            except TransferError as error:
                if number >= min(error.tries, len(self.pauses)):
                    raise
                self.sleep(pause)

    def _try(self, url: str, part: Path) -> None:
        errors = self._requests.exceptions
        try:
            self._request(url, part)
        except errors.SSLError as error:  # a kind of ConnectionError, but somebody was there
            raise TransferError(f"the secure connection (TLS) failed: {_tls_reason(error)}", tries=1) from error
        except errors.ProxyError as error:
            raise TransferError("no connection through the proxy", tries=1, offline=True) from error
        except errors.ConnectionError as error:  # who is offline should not wait long to hear of it
            raise TransferError("no connection", tries=1, offline=True) from error
        except (errors.Timeout, self._errors.ReadTimeoutError) as error:
            raise TransferError(f"no answer within {self.timeout:g} s", tries=_MANY, offline=True) from error
        except (errors.RequestException, self._errors.HTTPError) as error:
            raise TransferError(f"the transfer broke off ({type(error).__name__})", tries=_MANY) from error

    def _request(self, url: str, part: Path) -> None:
        have = part.stat().st_size if part.exists() else 0
        # without compression on the way the lengths are those of the file
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
        timeout = (min(self.timeout, _CONNECT), self.timeout)
        with self._requests.get(url, headers=headers, stream=True, timeout=timeout) as response:
            status, start = response.status_code, response.headers.get("Content-Range", "")
            if status == 416 or (status == 206 and not start.startswith(f"bytes {have}-")):
                part.unlink(missing_ok=True)
                raise TransferError("the server cannot go on with what was there", tries=_MANY)
            if status not in (200, 206):
                raise TransferError(f"HTTP status {status}", tries=_MANY if status in _PASSING else 0)
            if status == 200:  # from the start, whatever was asked for
                have = 0
            told = response.headers.get("Content-Length", "")
            length = int(told) if told.isascii() and told.isdecimal() else None  # what is no number says nothing
            came = self._write(response.raw, part, have, length)
        if length is not None and came < length:  # an older urllib3 does not tell
            raise TransferError("the transfer broke off", tries=_MANY)

    def _write(self, stream: Any, part: Path, have: int, length: int | None) -> int:
        """Add what comes to the first `have` bytes; returns how many bytes came."""
        came = 0
        with part.open("ab" if have else "wb") as file, self._bar(have, length) as advance:
            for chunk in stream.stream(_CHUNK, decode_content=False):
                came += file.write(chunk)
                advance(len(chunk))
                if have + came > LARGEST_ARCHIVE:
                    part.unlink()
                    raise TransferError(f"more than {LARGEST_ARCHIVE} bytes")
        return came

    @contextmanager
    def _bar(self, have: int, length: int | None) -> Iterator[Callable[[float], None]]:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, disable=not (self.progress and console.is_terminal)) as progress:
            total = None if length is None else have + length
            bar = progress.add_task(self.entry.name, total=total, completed=have)
            yield lambda done: progress.advance(bar, done)

    def _prepare(self, part: Path, output: Path) -> None:
        try:
            self._check_packed(part)
            output.write_bytes(self.entry.prepare(part))
            found = self.entry.checksum(output)
        except BROKEN as error:
            found = f"none, since it cannot be unpacked: {error}"
        part.unlink()  # it has served, or it is of no use
        if found != self.entry.sha256:
            raise TransferError(f"another content, of sha256 {found}")

    def _check_packed(self, part: Path) -> None:
        """Compare the checksum of a packed download, where it is known, before anything is unpacked."""
        wanted = self.entry.packed_sha256
        if wanted is None or not is_packed(part):
            return
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != wanted:
            raise ValueError(f"the archive must have the sha256 {wanted}, got {found}")


def _tls_reason(error: BaseException) -> str:
    """Return what the system said of a failed handshake, which lies deep inside the error of the library."""
    inner: Any = error
    while not isinstance(inner, ssl.SSLError):
        inner = getattr(inner, "reason", None) or next((part for part in getattr(inner, "args", ()) if part), None)
        if not isinstance(inner, BaseException):
            return type(error).__name__
    return str(getattr(inner, "verify_message", None) or getattr(inner, "reason", None) or inner)
