"""One address into one file by HTTP: resumes an earlier attempt, tries again, gives up on a silent server."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.data._archives import LARGEST_ARCHIVE
from moreauc._system import import_extra

PAUSES = (1.0, 2.0, 4.0)  # seconds before the second, third and fourth attempt
TIMEOUT = 30.0  # seconds without a byte

_CONNECT = 10.0  # seconds for a connection, at most
_CHUNK = 2**14
_TEMPORARY = {408, 429, 500, 502, 503, 504}  # statuses of a server that may be over soon
_ALWAYS = 100  # retries: as many as there are pauses for


class TransferError(Exception):
    """Why an address did not give the file, how often to try it again, and whether no server was reached."""

    def __init__(self, reason: str, *, retries: int = 0, offline: bool = False) -> None:
        super().__init__(reason)
        self.retries, self.offline = retries, offline


def transfer(url: str, part: Path, *, title: str, sleep: Callable[[float], None] = time.sleep) -> None:
    """Download an address into `part`, after the bytes that it already has; the file stays when the transfer breaks.

    Raises:
        TransferError: where the address does not give a file.
    """
    for number, pause in enumerate((*PAUSES, 0.0)):
        try:
            return _attempt(url, part, title)
        except TransferError as error:
            if number >= min(error.retries, len(PAUSES)):
                raise
            sleep(pause)


def _attempt(url: str, part: Path, title: str) -> None:
    errors = import_extra("requests", "experiments").exceptions
    lower = import_extra("urllib3", "experiments").exceptions
    try:
        _request(url, part, title)
    except errors.SSLError as error:  # a kind of ConnectionError, but a server was reached
        raise TransferError(f"the secure connection (TLS) failed: {_tls_reason(error)}", retries=1) from error
    except errors.ProxyError as error:
        raise TransferError("no connection through the proxy", retries=1, offline=True) from error
    except errors.ConnectionError as error:  # one retry only: who is offline should hear of it soon
        raise TransferError("no connection", retries=1, offline=True) from error
    except (errors.Timeout, lower.ReadTimeoutError) as error:
        raise TransferError(f"no answer within {TIMEOUT:g} s", retries=_ALWAYS, offline=True) from error
    except (errors.RequestException, lower.HTTPError) as error:
        raise TransferError(f"the transfer broke off ({type(error).__name__})", retries=_ALWAYS) from error


def _request(url: str, part: Path, title: str) -> None:
    have = part.stat().st_size if part.exists() else 0
    # without compression on the way the lengths are those of the file
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    get = import_extra("requests", "experiments").get
    with get(url, headers=headers, stream=True, timeout=(min(TIMEOUT, _CONNECT), TIMEOUT)) as response:
        status, start = response.status_code, response.headers.get("Content-Range", "")
        if status == 416 or (status == 206 and not start.startswith(f"bytes {have}-")):
            part.unlink(missing_ok=True)
            raise TransferError("the server cannot resume the transfer", retries=_ALWAYS)
        if status not in (200, 206):
            raise TransferError(f"HTTP status {status}", retries=_ALWAYS if status in _TEMPORARY else 0)
        if status == 200:  # from the start, whatever was asked for
            have = 0
        stated = response.headers.get("Content-Length", "")
        length = int(stated) if stated.isascii() and stated.isdecimal() else None
        with _bar(title, have, length) as advance:
            received = _write(response.raw, part, have, advance)
    if length is not None and received < length:  # older versions of urllib3 do not raise
        raise TransferError("the transfer broke off", retries=_ALWAYS)


def _write(stream: Any, part: Path, have: int, advance: Callable[[float], None]) -> int:
    """Add what comes to the first `have` bytes; return how many bytes came."""
    received = 0
    with part.open("ab" if have else "wb") as file:
        for chunk in stream.stream(_CHUNK, decode_content=False):
            received += file.write(chunk)
            advance(len(chunk))
            if have + received > LARGEST_ARCHIVE:
                part.unlink()
                raise TransferError(f"more than {LARGEST_ARCHIVE} bytes")
    return received


@contextmanager
def _bar(title: str, have: int, length: int | None) -> Iterator[Callable[[float], None]]:
    from rich import progress as parts
    from rich.console import Console

    console = Console(stderr=True)
    columns = (parts.BarColumn(), parts.DownloadColumn(), parts.TransferSpeedColumn(), parts.TimeRemainingColumn())
    text = parts.TextColumn("{task.description}", markup=False)
    with parts.Progress(text, *columns, console=console, disable=not console.is_terminal) as bars:
        bar = bars.add_task(title, total=None if length is None else have + length, completed=have)
        yield lambda done: bars.advance(bar, done)


def _tls_reason(error: BaseException) -> str:
    """Return what the system said of a failed handshake, which lies deep inside the error of the library."""
    inner: Any = error
    while not isinstance(inner, ssl.SSLError):
        inner = getattr(inner, "reason", None) or next((part for part in getattr(inner, "args", ()) if part), None)
        if not isinstance(inner, BaseException):
            return type(error).__name__
    return str(getattr(inner, "verify_message", None) or getattr(inner, "reason", None) or inner)
