"""Public files: found in the folder or the cache, or downloaded from a server of this machine that also misbehaves."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import resource
import socket
import ssl
import sys
import tarfile
import threading
import time
import zipfile
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import platformdirs
import pytest
import requests
import urllib3
from urllib3.exceptions import MaxRetryError

from experiments.data import _archives as prepare
from experiments.data import _transfer, mil
from experiments.data._transfer import TransferError, transfer
from experiments.data.download import PUBLIC_FILES, DownloadError, PublicFile, cache_folder, find_file, part_file
from experiments.data.mil import load_fox, load_musk2

BODY = np.random.Generator(np.random.PCG64(0)).bytes(100_000)
SHA256 = hashlib.sha256(BODY).hexdigest()


class Server(ThreadingHTTPServer):
    """Answers the requests for a path by what stands in `acts`, one after the other, the last one ever again."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.acts, self.asked, self.hold = {}, [], threading.Event()

    def url(self, path, *acts):
        self.acts[f"/{path}"] = list(acts)
        return f"http://127.0.0.1:{self.server_port}/{path}"

    def handle_error(self, request, client_address):
        """A client that has gone is what some tests are about."""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        start = self.headers.get("Range")
        self.server.asked.append((self.path.removeprefix("/"), start))
        acts = self.server.acts[self.path]
        act = acts.pop(0) if len(acts) > 1 else acts[0]
        act(self, int(start.removeprefix("bytes=").removesuffix("-")) if start else 0)

    def log_message(self, *arguments):
        pass

    def head(self, status, length=None, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": length, **headers}.items():
            if value is not None:
                self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()


def gives(body=BODY, *, ranges=True, stop=None, length=True, shift=0):
    """Send the body before `stop`, from where it is asked for if `ranges`; `shift` makes it tell another start."""

    def act(handler, start):
        first = start if ranges else 0
        header = {"Content_Range": f"bytes {first + shift}-{len(body) - 1}/{len(body)}"} if first else {}
        handler.head(206 if first else 200, len(body) - first if length else None, **header)
        handler.wfile.write(body[first:stop])

    return act


def says(status):
    return lambda handler, start: handler.head(status, 0)


def stalls(handler, start):
    handler.head(200, len(BODY))
    handler.wfile.write(BODY[:40_000])
    handler.server.hold.wait(5)


def waits_then_gives(handler, start):
    handler.server.hold.wait(5)
    gives()(handler, start)


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.hold.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """The cache of the test; nothing is waited for, and the folder is not set."""
    monkeypatch.delenv("MOREAUC_DATA", raising=False)
    monkeypatch.setenv("MOREAUC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(_transfer, "PAUSES", (0.0, 0.0))
    return tmp_path / "cache"


@pytest.fixture
def toy(monkeypatch, cache):
    """Makes `toy.csv` a public file with these addresses."""

    def toy(*urls, **changes):
        entry = PublicFile("toy.csv", "molecules", urls, SHA256, "a toy, without licence")
        monkeypatch.setitem(PUBLIC_FILES, "toy.csv", replace(entry, **changes))

    toy("https://nowhere.invalid/toy.csv")
    return toy


def ranges(server):
    return [start for _, start in server.asked]


def leftovers(cache):
    """What lies in the cache besides the file itself and its lock."""
    return [path.name for path in (cache / "molecules").iterdir() if path.name not in ("toy.csv", "toy.csv.lock")]


def fetched(cache):
    path = find_file("test", "toy.csv")
    return path == cache / "molecules" / "toy.csv" and path.read_bytes() == BODY and leftovers(cache) == []


def closed_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/toy.csv"


# the user's folder and the cache


def test_first_the_folder_given_then_the_environment_then_the_cache(toy, cache, tmp_path, monkeypatch):
    for path in ("a/molecules/toy.csv", "b/molecules/toy.csv.gz", "b/toy.csv.gz", "c/toy.csv"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"")
    (tmp_path / "empty").mkdir()
    (cache / "molecules").mkdir(parents=True)
    (cache / "molecules" / "toy.csv").write_bytes(BODY)
    monkeypatch.setenv("MOREAUC_DATA", str(tmp_path / "a"))
    assert find_file("test", "toy.csv", folder=tmp_path / "b") == tmp_path / "b" / "toy.csv.gz"  # before the subfolder
    assert find_file("test", "toy.csv", folder=tmp_path / "c") == tmp_path / "c" / "toy.csv"
    assert find_file("test", "toy.csv") == tmp_path / "a" / "molecules" / "toy.csv"
    (tmp_path / "b" / "toy.csv.gz").unlink()
    assert find_file("test", "toy.csv", folder=tmp_path / "b") == tmp_path / "b" / "molecules" / "toy.csv.gz"
    assert find_file("test", "toy.csv", folder=tmp_path / "empty", download=False) == cache / "molecules" / "toy.csv"


def test_a_file_of_the_user_is_checked_when_asked_for(toy, tmp_path):
    (tmp_path / "toy.csv.gz").write_bytes(gzip.compress(BODY))
    assert find_file("test", "toy.csv", folder=tmp_path, verify=True).name == "toy.csv.gz"
    (tmp_path / "toy.csv").write_bytes(BODY[1:])
    found = hashlib.sha256(BODY[1:]).hexdigest()
    with pytest.raises(ValueError, match=rf"test: .*toy\.csv must have the sha256 {SHA256}, got {found}"):
        find_file("test", "toy.csv", folder=tmp_path, verify=True)
    assert find_file("test", "toy.csv", folder=tmp_path).name == "toy.csv"


def test_wrong_names_and_folders(toy, tmp_path):
    with pytest.raises(ValueError, match=r"test: name must be one of tox21\.csv, .*toy\.csv, got 'iris\.csv'"):
        find_file("test", "iris.csv")
    with pytest.raises(ValueError, match=r"the folder with the data sets must exist, got '.*nowhere'"):
        find_file("test", "toy.csv", folder=tmp_path / "nowhere")


@pytest.mark.parametrize("broken", [False, True])
def test_nothing_is_downloaded_unless_it_may_be(toy, server, cache, tmp_path, broken):
    toy(server.url("toy.csv", gives()))
    if broken:
        (cache / "molecules").mkdir(parents=True)
        (cache / "molecules" / "toy.csv").write_bytes(BODY[:-1])
    with pytest.raises(
        ValueError,
        match=r"test: toy\.csv or toy\.csv\.gz must be in the folder given or named by MOREAUC_DATA, in a subfolder "
        r"molecules of it, or in the cache, as download is False, got '.*' and '.*toy\.csv'",
    ):
        find_file("test", "toy.csv", folder=tmp_path, download=False)
    assert server.asked == []


def test_the_cache_is_that_of_the_system(monkeypatch):
    monkeypatch.setenv("MOREAUC_CACHE", "there")
    assert cache_folder() == Path("there")
    monkeypatch.setenv("MOREAUC_CACHE", "~/there")
    assert cache_folder() == Path.home() / "there"
    monkeypatch.delenv("MOREAUC_CACHE")
    assert cache_folder() == Path(platformdirs.user_cache_dir("moreauc"))


def test_packages_are_needed_for_a_download_only(toy, tmp_path, monkeypatch):
    (tmp_path / "toy.csv").write_bytes(BODY)
    for name in ("platformdirs", "requests", "filelock"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=r"this needs filelock.* pip install 'moreauc\[experiments\]'"):
        find_file("test", "toy.csv")
    monkeypatch.delenv("MOREAUC_CACHE")
    with pytest.raises(ModuleNotFoundError, match=r"this needs platformdirs.* pip install 'moreauc\[experiments\]'"):
        find_file("test", "toy.csv")
    with pytest.raises(ValueError, match="download is False, got no folder and no folder"):
        find_file("test", "toy.csv", download=False)
    assert find_file("test", "toy.csv", folder=tmp_path) == tmp_path / "toy.csv"


# downloads


def test_a_download_is_kept_and_logged_once(toy, server, cache, capfd, caplog):
    url = server.url("toy.csv", gives())
    toy(url)
    with caplog.at_level("INFO"):
        assert fetched(cache) and fetched(cache)
    assert server.asked == [("toy.csv", None)]
    assert capfd.readouterr() == ("", "")  # no terminal, no bar
    path = cache / "molecules" / "toy.csv"
    expected = f"test: downloads toy.csv (a toy, without licence) from {url} to {path}"
    assert [record.getMessage() for record in caplog.records if record.name.startswith("experiments")] == [expected]


def test_a_broken_file_in_the_cache_is_downloaded_again(toy, server, cache):
    toy(server.url("toy.csv", gives()))
    assert fetched(cache)
    (cache / "molecules" / "toy.csv").write_bytes(BODY[:-1])
    assert fetched(cache) and len(server.asked) == 2


@pytest.mark.parametrize(
    ("acts", "asked"),
    [
        ([gives(stop=40_000), gives()], [None, "bytes=40000-"]),
        ([gives(stop=40_000), gives(stop=70_000), gives()], [None, "bytes=40000-", "bytes=70000-"]),
        ([gives(stop=40_000), gives(ranges=False)], [None, "bytes=40000-"]),  # 200, all of it
        ([gives(stop=40_000), gives(shift=1), gives()], [None, "bytes=40000-", None]),
        ([gives(stop=40_000), says(416), gives()], [None, "bytes=40000-", None]),
        ([gives(stop=0), gives()], [None, None]),
        ([says(500), says(503), gives()], [None, None, None]),
        ([says(429), gives(length=False)], [None, None]),
    ],
)
def test_a_transfer_that_breaks_off_goes_on(toy, server, cache, acts, asked):
    toy(server.url("toy.csv", *acts))
    assert fetched(cache) and ranges(server) == asked


def test_a_chunked_answer_that_breaks_off_is_asked_for_again(toy, server, cache):
    def chunked(handler, start):
        handler.protocol_version = "HTTP/1.1"
        handler.head(200, Transfer_Encoding="chunked")
        handler.wfile.write(b"9c40\r\n" + BODY[:40_000] + b"\r\n9c40\r\n" + BODY[40_000:50_000])
        handler.close_connection = True

    toy(server.url("toy.csv", chunked, gives(ranges=False)))
    assert fetched(cache) and len(server.asked) == 2


def test_a_short_answer_is_seen_where_the_library_does_not_tell(toy, server, cache, monkeypatch):
    write, short = _transfer._write, [True]
    monkeypatch.setattr(_transfer, "_write", lambda *arguments: write(*arguments) - (short.pop() if short else 0))
    toy(server.url("toy.csv", gives(), gives(ranges=False)))
    assert fetched(cache) and len(server.asked) == 2


def test_a_silent_server_is_not_waited_for(toy, server, cache, monkeypatch):
    monkeypatch.setattr(_transfer, "TIMEOUT", 0.2)
    toy(server.url("toy.csv", stalls, gives()))
    assert fetched(cache)
    assert ranges(server)[0] is None and re.fullmatch(r"bytes=[1-9]\d*-", ranges(server)[1])
    (cache / "molecules" / "toy.csv").unlink()
    toy(server.url("silent.csv", lambda handler, start: handler.server.hold.wait(5)))
    with pytest.raises(DownloadError, match=r"/silent\.csv: no answer within 0\.2 s\. Offline\?"):
        find_file("test", "toy.csv")
    assert len(server.asked) == 5


@pytest.mark.parametrize(
    ("status", "tries"),
    [(500, 3), (503, 3), (404, 1), (403, 1)],  # a passing state is asked again
)
def test_a_server_that_refuses(toy, server, cache, status, tries):
    toy(server.url("toy.csv", says(status)))
    with pytest.raises(
        DownloadError,
        match=rf"^test: toy\.csv \(a toy, without licence\) could not be downloaded: http://127\.0\.0\.1:\d+/toy\.csv: "
        rf"HTTP status {status}\. Put toy\.csv into a folder and set MOREAUC_DATA to it$",
    ):
        find_file("test", "toy.csv")
    assert len(server.asked) == tries and leftovers(cache) == []


@pytest.mark.parametrize("told", ["abc", "-5", "", "1e5", "100000, 100000", "\u0661"])
def test_a_length_that_is_none_is_not_counted_on(toy, server, cache, told):
    def act(handler, start):
        handler.wfile.write(f"HTTP/1.0 200 OK\r\nContent-Length: {told}\r\n\r\n".encode() + BODY)

    toy(server.url("toy.csv", act))
    assert fetched(cache) and len(server.asked) == 1


def certificate_error():
    inner = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate (_ssl.c:1)")
    inner.verify_message = "self-signed certificate"
    return requests.exceptions.SSLError(MaxRetryError(None, "/", urllib3.exceptions.SSLError(inner)))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (certificate_error(), r"the secure connection \(TLS\) failed: self-signed certificate\. Put"),
        (requests.exceptions.SSLError("no more"), r"the secure connection \(TLS\) failed: SSLError\. Put"),
        (requests.exceptions.SSLError(ssl.SSLError("odd")), r"the secure connection \(TLS\) failed: .*odd.*\. Put"),
        (requests.exceptions.ProxyError("gone"), r"no connection through the proxy\. Offline\? Put"),
        (requests.exceptions.ConnectTimeout("gone"), r"no connection\. Offline\? Put"),
    ],
)
def test_what_kept_the_connection_from_being_made(toy, cache, monkeypatch, error, message):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(requests, "get", fail)
    with pytest.raises(DownloadError, match=rf"https://nowhere\.invalid/toy\.csv: {message}"):
        find_file("test", "toy.csv")


def test_the_pauses_grow(toy, server, tmp_path, monkeypatch):
    monkeypatch.setattr(_transfer, "PAUSES", (1.0, 2.0, 4.0))
    url, slept = server.url("toy.csv", says(500), says(500), gives()), []
    transfer(url, tmp_path / "part", title="", sleep=slept.append)
    assert slept == [1.0, 2.0] and (tmp_path / "part").read_bytes() == BODY
    with pytest.raises(TransferError, match="HTTP status 500"):
        transfer(server.url("toy.csv", says(500)), tmp_path / "part", title="", sleep=slept.append)
    assert slept == [1.0, 2.0, 1.0, 2.0, 4.0]
    with pytest.raises(TransferError, match="no connection"):
        transfer(closed_port(), tmp_path / "part", title="", sleep=slept.append)
    assert slept == [1.0, 2.0, 1.0, 2.0, 4.0, 1.0]  # one retry where no server is reached


def test_the_next_address_helps(toy, server, cache):
    wrong = server.url("wrong.csv", gives(BODY[::-1]))
    half = server.url("half.csv", gives(stop=40_000), says(404))
    toy(server.url("gone.csv", says(404)), wrong, half, server.url("toy.csv", gives()), server.url("more.csv", gives()))
    assert fetched(cache)
    assert server.asked == [(f"{name}.csv", None) for name in ("gone", "wrong", "half")] + [
        ("half.csv", "bytes=40000-"),
        ("toy.csv", None),
    ]


def test_every_failure_is_named(toy, server, cache):
    closed = closed_port()
    found = hashlib.sha256(BODY[::-1]).hexdigest()
    toy(closed, server.url("wrong.csv", gives(BODY[::-1])), server.url("gone.csv", says(404)))
    with pytest.raises(
        DownloadError,
        match=rf"downloaded: {closed}: no connection; http:.*/wrong\.csv: another content, of sha256 {found}; "
        rf"http:.*/gone\.csv: HTTP status 404\. Offline\? Put toy\.csv into a folder and set MOREAUC_DATA to it",
    ):
        find_file("test", "toy.csv")
    assert [name for name, _ in server.asked] == ["wrong.csv", "gone.csv"]  # a wrong file is not asked for again
    assert leftovers(cache) == [] and not (cache / "molecules" / "toy.csv").exists()
    toy("https:///toy.csv")
    with pytest.raises(DownloadError, match=r"https:///toy\.csv: the transfer broke off \(InvalidURL\)"):
        find_file("test", "toy.csv")


def test_what_cannot_be_unpacked_is_refused(toy, server, cache):
    toy(server.url("toy.zip", gives(b"PK\x03\x04" + BODY)), prepare=partial(prepare.unpack, member="toy.csv"))
    with pytest.raises(DownloadError, match="sha256 none, since it cannot be unpacked: File is not a zip file"):
        find_file("test", "toy.csv")
    assert leftovers(cache) == []


def test_the_checksum_of_an_archive_comes_before_it_is_unpacked(toy, server, cache, monkeypatch):
    packed = gzip.compress(BODY, mtime=0)
    unpacked = []

    def unpack(part):
        unpacked.append(part)
        return prepare.unpack(part)

    url = server.url("toy.csv.gz", gives(packed))
    toy(url, prepare=unpack, packed_sha256=hashlib.sha256(b"another").hexdigest())
    with pytest.raises(DownloadError, match=r"cannot be unpacked: the archive must have the sha256 .*, got "):
        find_file("test", "toy.csv")
    assert not unpacked and leftovers(cache) == []
    toy(url, prepare=unpack, packed_sha256=hashlib.sha256(packed).hexdigest())
    assert fetched(cache) and len(unpacked) == 1
    (cache / "molecules" / "toy.csv").unlink()
    toy(server.url("toy.csv", gives()), packed_sha256=hashlib.sha256(packed).hexdigest())  # a copy that is not packed
    assert fetched(cache)


def test_a_download_without_end_is_ended(toy, server, cache, monkeypatch):
    monkeypatch.setattr(_transfer, "LARGEST_ARCHIVE", 50_000)
    toy(server.url("toy.csv", gives(length=False)))
    with pytest.raises(DownloadError, match="more than 50000 bytes"):
        find_file("test", "toy.csv")
    assert leftovers(cache) == []


def test_a_full_disk_is_named_and_what_came_stays(toy, server, cache):
    toy(server.url("toy.csv", gives()))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))
    try:
        with pytest.raises(DownloadError, match=rf"{cache / 'molecules' / 'toy.csv'}: .*File too large"):
            find_file("test", "toy.csv")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert fetched(cache) and ranges(server)[-1] == "bytes=60000-"


def test_a_part_of_another_file_does_not_stay(toy, server, cache):
    url = server.url("toy.csv", gives())
    toy(url)
    part = part_file(cache / "molecules" / "toy.csv", url)
    part.parent.mkdir(parents=True)
    part.write_bytes(b"0123456789")
    assert fetched(cache) and ranges(server) == ["bytes=10-", None]


def test_an_interrupted_download_goes_on_next_time(toy, server, cache, monkeypatch):
    @contextmanager
    def interrupt(*arguments):
        came = []

        def advance(done):
            came.append(done)
            if sum(came) > 50_000:
                raise KeyboardInterrupt

        yield advance

    url = server.url("toy.csv", gives())
    toy(url)
    with monkeypatch.context() as patch:
        patch.setattr(_transfer, "_bar", interrupt)
        with pytest.raises(KeyboardInterrupt):
            find_file("test", "toy.csv")
    part = part_file(cache / "molecules" / "toy.csv", url)
    size = part.stat().st_size
    assert leftovers(cache) == [part.name] and 50_000 < size < 100_000 and part.read_bytes() == BODY[:size]
    assert fetched(cache) and ranges(server) == [None, f"bytes={size}-"]


def test_two_at_once_download_once(toy, server, cache):
    toy(server.url("toy.csv", waits_then_gives))
    found = []
    threads = [threading.Thread(target=lambda: found.append(find_file("test", "toy.csv"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(30):  # long enough for the others to ask too, if they did
        time.sleep(0.01 if len(server.asked) < 2 else 0)
    server.hold.set()
    for thread in threads:
        thread.join(10)
    assert found == [cache / "molecules" / "toy.csv"] * 3 and fetched(cache) and len(server.asked) == 1


def test_a_bar_on_a_terminal(toy, server, cache, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    toy(server.url("toy.csv", gives(stop=40_000), gives()))
    assert fetched(cache)
    assert re.search(r"toy\.csv .*100\.0/100\.0", re.sub(r"\x1b\[[\d;?]*\w", "", capsys.readouterr().err))


def test_a_cache_that_cannot_be_written(toy, cache):
    cache.write_bytes(b"a file")
    with pytest.raises(DownloadError, match=r"could not be downloaded: .*molecules.toy\.csv: .*(exists|directory)"):
        find_file("test", "toy.csv")


@pytest.mark.parametrize("download", [True, False])
def test_a_cache_that_cannot_be_read(toy, server, cache, monkeypatch, download):
    toy(server.url("toy.csv", says(404)))
    looked = Path.is_file

    def refuse(path):
        if path.name == "toy.csv":
            raise PermissionError(13, "Permission denied", str(path))
        return looked(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(ValueError, match="HTTP status 404" if download else "or in the cache, as download is False"):
        find_file("test", "toy.csv", download=download)


MUSK2 = b"1,7,3,4\n1,7,5,6\n0,2,1,2\n"


@pytest.mark.parametrize("content", [b"", b"1\n2\n", b"a,b,c\n", b"\xff\xfe\x00" * 90, b"1,2\n1,2,3\n", b"MATLAB" * 90])
@pytest.mark.parametrize(
    ("load", "name", "message"),
    [(load_musk2, "musk2.csv", "must be the table of the set"), (load_fox, "fox.mat", "must be a .mat file")],
)
def test_files_that_a_loader_cannot_read(toy, tmp_path, load, name, message, content):
    for file, packed in ((name, content), (f"{name}.gz", gzip.compress(content)), (f"{name}.gz", b"not packed")):
        (tmp_path / file).write_bytes(packed)
        with pytest.raises(ValueError, match=f"{load.__name__}: {file} {message}, got"):
            load(tmp_path)
        (tmp_path / file).unlink()


def test_a_loader_downloads_its_set(toy, server, cache, monkeypatch):
    entry = replace(
        PUBLIC_FILES["musk2.csv"], urls=(server.url("m", gives(MUSK2)),), sha256=hashlib.sha256(MUSK2).hexdigest()
    )
    monkeypatch.setitem(PUBLIC_FILES, "musk2.csv", entry)
    monkeypatch.setitem(mil.MIL_SETS, "musk2", (1, 1, 3, 2))
    assert load_musk2().sizes.tolist() == [2, 1] and load_musk2(download=False).labels.tolist() == [1, 0]
    assert len(server.asked) == 1


# what is made of a download


def raw(tmp_path, content):
    path = tmp_path / "raw"
    path.write_bytes(content)
    return path


def zipped(**files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def tarred(files, mode="w:gz", mtime=1):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(content), mtime
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


ENDS = partial(prepare.with_adult_ends, member="a", first="|1x3")


@pytest.mark.parametrize(
    ("step", "before", "after"),
    [
        (prepare.unpack, b"\x1f\x8b"[:1] + b"x", b"\x1fx"),
        (prepare.unpack, gzip.compress(b"x\r\ny", mtime=0), b"x\r\ny"),
        (partial(prepare.unpack, member="b"), zipped(a=b"1", b=b"2"), b"2"),
        (prepare.without_repeated_smiles, b"t,smiles\n1,CC\n0,C\n,CC\n1,CCC\n0,C\n", b"t,smiles\n1,CC\n0,C\n1,CCC\n"),
        (prepare.without_repeated_smiles, gzip.compress(b"t,smiles\r\n1,CC\r\n1,CC", mtime=0), b"t,smiles\n1,CC\n"),
        (prepare.without_blank_lines, b"a,b\n\n1,2\n\n", b"a,b\n1,2\n"),
        (prepare.without_blank_lines, b"a,b\r\n1,2", b"a,b\n1,2\n"),
        (
            partial(prepare.without_columns, columns=("b", "d")),
            b'a,b,c,b\r\n1,2,"x, ""y""",3\r\n4,5,,6',
            b'a,c\n1,"x, ""y"""\n4,\n',
        ),
        (partial(prepare.without_columns, columns=("b",)), b"", b""),
        (ENDS, b"|1x3\n25, Private\n\n", b"|1x3\n25, Private\n\n"),
        (ENDS, b"age, workclass\n25, Private\n", b"|1x3\n25, Private\n\n"),
        (ENDS, zipped(a=b"|1x3\n25, Private\n\n"), b"|1x3\n25, Private\n\n"),
        (partial(prepare.with_adult_ends, member="a"), b"39, Private\n", b"39, Private\n\n"),
        (ENDS, b"", b""),
    ],
)
def test_content_of_a_download(tmp_path, step, before, after):
    assert step(raw(tmp_path, before)) == after


def encrypted(content):
    """A zip archive that says its members are encrypted."""
    found = content.find(b"PK\x01\x02")
    return content[: found + 8] + bytes([content[found + 8] | 1]) + content[found + 9 :]


@pytest.mark.parametrize(
    ("step", "content"),
    [
        (prepare.unpack, bytes(5000)),
        (prepare.unpack, gzip.compress(bytes(5000))),
        (partial(prepare.unpack, member="a"), zipped(a=bytes(5000))),
        (prepare.without_blank_lines, gzip.compress(b"\n" * 5000)),
        (
            partial(prepare.collect_images, inside="set", classes={"a": "ay"}, count=9),
            tarred({f"r/set/a/ay{number}.jpeg": bytes(500) for number in range(1, 10)}),
        ),
    ],
)
def test_no_more_is_unpacked_than_a_file_may_hold(tmp_path, monkeypatch, step, content):
    monkeypatch.setattr(prepare, "LARGEST", 4000)
    with pytest.raises(ValueError, match="more than 4000 bytes"):
        step(raw(tmp_path, content))


def test_an_archive_is_read_up_to_a_limit(tmp_path, monkeypatch):
    """Also what is passed over, and headers that say they are long."""
    collect = partial(prepare.collect_images, inside="set", classes={"a": "ay"}, count=1)
    content = tarred({"r/other": bytes(200_000), "r/set/a/ay1.jpeg": b"1"})
    monkeypatch.setattr(prepare, "LARGEST_ARCHIVE", 100_000)
    with pytest.raises(ValueError, match="more than 100000 bytes"):
        collect(raw(tmp_path, content))
    (tmp_path / "x.tar.gz").write_bytes(content)
    (tmp_path / "x.gz").write_bytes(gzip.compress(bytes(200_000)))
    assert prepare.content_sha256(tmp_path / "x.tar.gz", tar=True) == "unreadable"
    assert prepare.content_sha256(tmp_path / "x.gz") == "unreadable"


def test_members_that_are_encrypted_or_unusual_are_refused(tmp_path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a", b"x")
    for content in (encrypted(zipped(a=b"x")), out.getvalue()):
        with pytest.raises(ValueError, match="a is encrypted, or compressed in an unusual way"):
            prepare.unpack(raw(tmp_path, content), member="a")


def test_images_of_a_repository(tmp_path):
    collect = partial(prepare.collect_images, inside="set", classes={"b": "bee", "a": "ay"}, count=2)
    images = {"b/bee1.jpeg": b"1", "b/bee2.jpeg": b"2", "a/ay1.jpeg": b"3", "a/ay2.jpeg": b""}
    others = {"b/bee3.jpeg": b"x", "b/ay1.jpeg": b"x", "a/ay1.jpg": b"x", "c/bee1.jpeg": b"x", "a/ay0.jpeg": b"x"}
    inside = {f"repository-0a1b/set/{name}": content for name, content in reversed({**images, **others}.items())}
    content = collect(raw(tmp_path, tarred({**inside, "repository-0a1b/b/bee1.jpeg": b"y", "set/a/ay1.jpeg": b"z"})))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert [(entry.name, archive.extractfile(entry).read()) for entry in archive] == list(images.items())
        assert {(entry.mtime, entry.uid, entry.mode) for entry in archive} == {(0, 0, 0o644)}
    del inside["repository-0a1b/set/a/ay2.jpeg"], inside["repository-0a1b/set/b/bee1.jpeg"]
    with pytest.raises(ValueError, match=r"2 images are missing, b/bee1\.jpeg among them"):
        collect(raw(tmp_path, tarred(inside)))


def test_the_checksum_is_of_the_content(tmp_path):
    lines = [f"{name} {hashlib.sha256(text).hexdigest()}\n" for name, text in (("a/1", b"one"), ("b/2", b"two"))]
    expected = hashlib.sha256("".join(lines).encode()).hexdigest()
    (tmp_path / "x.tar.gz").write_bytes(tarred({"b/2": b"two", "a/1": b"one"}))
    (tmp_path / "x.tar").write_bytes(tarred({"a/1": b"one", "b/2": b"two"}, mode="w", mtime=5))
    assert prepare.content_sha256(tmp_path / "x.tar", tar=True) == expected
    assert prepare.content_sha256(tmp_path / "x.tar.gz", tar=True) == expected
    (tmp_path / "y.gz").write_bytes(gzip.compress(BODY))
    (tmp_path / "y").write_bytes(BODY)
    assert prepare.content_sha256(tmp_path / "y.gz") == prepare.content_sha256(tmp_path / "y") == SHA256
    (tmp_path / "y.gz").write_bytes(gzip.compress(BODY)[:-20])
    assert prepare.content_sha256(tmp_path / "y.gz") == "unreadable"
    assert prepare.content_sha256(tmp_path / "y", tar=True) == "unreadable"


# the table of public files


@pytest.mark.parametrize("name", list(PUBLIC_FILES))
def test_the_table_of_public_files(name):
    """The real files where MOREAUC_DATA has them have the checksum of the table; CI sets it."""
    entry = PUBLIC_FILES[name]
    assert entry.name == name and entry.subfolder in ("molecules", "mil", "groups", "lc25000") and entry.source
    assert entry.urls and len(set(entry.urls)) == len(entry.urls)
    assert all(re.fullmatch(r"https://[a-z0-9.-]+/[\w./+-]+", url) for url in entry.urls)
    assert re.fullmatch("[0-9a-f]{64}", entry.sha256)
    assert [other.name for other in PUBLIC_FILES.values() if other.sha256 == entry.sha256] == [name]
    # on GitHub a branch moves, a commit does not
    assert all(re.search("/[0-9a-f]{40}[/.]", url) for url in entry.urls if "github" in url)
    folder = os.environ.get("MOREAUC_DATA")
    if folder and (Path(folder) / entry.subfolder).is_dir():
        found = find_file("test", name, download=False)
        assert found.parent == Path(folder) / entry.subfolder and entry.checksum(found) == entry.sha256
