"""Public files: found in the folder or the cache, or downloaded from a server of this machine that also misbehaves."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import tarfile
import threading
import time
import zipfile
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from experiments.data import _archives as prepare
from experiments.data import download
from experiments.data.download import PUBLIC_FILES, DownloadError, PublicFile, find_file, part_file

BODY = np.random.Generator(np.random.PCG64(0)).bytes(100_000)
SHA256 = hashlib.sha256(BODY).hexdigest()


class Server(ThreadingHTTPServer):
    """Answers the requests for a path by what stands in `acts`, one after the other, the last one ever again."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.acts, self.asked, self.starts, self.hold = {}, [], [], threading.Event()

    def url(self, path, *acts):
        self.acts[f"/{path}"] = list(acts)
        return f"http://127.0.0.1:{self.server_port}/{path}"

    def handle_error(self, request, client_address):
        """A client that has gone is what some tests are about."""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        self.server.asked.append(self.path.removeprefix("/"))
        self.server.starts.append(self.start)
        acts = self.server.acts[self.path]
        (acts.pop(0) if len(acts) > 1 else acts[0])(self)

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

    def act(handler):
        first = handler.start if ranges else 0
        header = {"Content_Range": f"bytes {first + shift}-{len(body) - 1}/{len(body)}"} if first else {}
        handler.head(206 if first else 200, len(body) - first if length else None, **header)
        handler.wfile.write(body[first:stop])

    return act


def says(status):
    return lambda handler: handler.head(status, 0)


def stalls(handler):
    handler.head(200, len(BODY))
    handler.wfile.write(BODY[:40_000])
    handler.server.hold.wait(5)


def waits_then_gives(handler):
    handler.server.hold.wait(5)
    gives()(handler)


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
    monkeypatch.setattr(download, "_PAUSES", (0.0, 0.0))
    return tmp_path / "cache"


@pytest.fixture
def toy(monkeypatch, cache):
    """Makes `toy.csv` a public file with these addresses."""

    def toy(*urls, **changes):
        entry = PublicFile("toy.csv", "molecules", urls, SHA256, "a toy, without licence")
        monkeypatch.setitem(PUBLIC_FILES, "toy.csv", replace(entry, **changes))

    toy("https://nowhere.invalid/toy.csv")
    return toy


def leftovers(cache):
    """What lies in the cache besides the file itself and its lock."""
    return [path.name for path in (cache / "molecules").iterdir() if path.name not in ("toy.csv", "toy.csv.lock")]


def fetched(cache):
    path = find_file("test", "toy.csv")
    return path == cache / "molecules" / "toy.csv" and path.read_bytes() == BODY and leftovers(cache) == []


# the user's folder and the cache


def test_first_the_folder_given_then_the_environment_then_the_cache(toy, cache, tmp_path, monkeypatch):
    for path in ("a/molecules/toy.csv", "b/molecules/toy.csv.gz", "b/toy.csv.gz", "c/toy.csv"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"")
    (tmp_path / "empty").mkdir()
    (cache / "molecules").mkdir(parents=True)
    (cache / "molecules" / "toy.csv").write_bytes(BODY)
    monkeypatch.setenv("MOREAUC_DATA", str(tmp_path / "a"))
    assert find_file("test", "toy.csv", tmp_path / "b") == tmp_path / "b" / "toy.csv.gz"  # before the subfolder
    assert find_file("test", "toy.csv", tmp_path / "c") == tmp_path / "c" / "toy.csv"
    assert find_file("test", "toy.csv") == tmp_path / "a" / "molecules" / "toy.csv"
    (tmp_path / "b" / "toy.csv.gz").unlink()
    assert find_file("test", "toy.csv", tmp_path / "b") == tmp_path / "b" / "molecules" / "toy.csv.gz"
    assert find_file("test", "toy.csv", tmp_path / "empty") == cache / "molecules" / "toy.csv"
    with pytest.raises(ValueError, match=r"the folder with the data sets must exist, got '.*nowhere'"):
        find_file("test", "toy.csv", tmp_path / "nowhere")


def test_a_file_of_the_user_is_checked_when_asked_for(toy, tmp_path):
    (tmp_path / "toy.csv.gz").write_bytes(gzip.compress(BODY))
    assert find_file("test", "toy.csv", tmp_path, verify=True).name == "toy.csv.gz"
    (tmp_path / "toy.csv").write_bytes(BODY[1:])
    with pytest.raises(ValueError, match=rf"test: .*toy\.csv must have the sha256 {SHA256}"):
        find_file("test", "toy.csv", tmp_path, verify=True)
    assert find_file("test", "toy.csv", tmp_path).name == "toy.csv"


# downloads


def test_a_download_is_kept_and_logged_once(toy, server, cache, caplog):
    url = server.url("toy.csv", gives(length=False))
    toy(url)
    with caplog.at_level("INFO"):
        assert fetched(cache) and fetched(cache)
    path = cache / "molecules" / "toy.csv"
    expected = f"test: downloads toy.csv (a toy, without licence) from {url} to {path}"
    assert [record.getMessage() for record in caplog.records if record.name.startswith("experiments")] == [expected]
    path.write_bytes(BODY[:-1])  # a broken file is downloaded again
    assert fetched(cache) and server.asked == ["toy.csv"] * 2


@pytest.mark.parametrize(
    ("acts", "resumed"),
    [
        ([gives(stop=40_000), gives()], [False, True]),
        ([gives(stop=40_000), gives(ranges=False)], [False, True]),  # 200, all of it
        ([gives(stop=40_000), gives(shift=1), gives()], [False, True, False]),
        ([gives(stop=40_000), says(416), gives()], [False, True, False]),
        ([stalls, gives()], [False, True]),
        ([says(500), says(429), gives(length=False)], [False, False, False]),
    ],
)
def test_a_transfer_that_breaks_off_goes_on(toy, server, cache, monkeypatch, acts, resumed):
    monkeypatch.setattr(download, "_TIMEOUTS", (5.0, 0.2))
    toy(server.url("toy.csv", *acts))
    assert fetched(cache) and [start > 0 for start in server.starts] == resumed
    assert server.starts == sorted(server.starts) or resumed[-1] is False  # each goes on after the one before


def test_a_download_that_was_given_up_goes_on_next_time(toy, server, cache, monkeypatch):
    url = server.url("toy.csv", gives(stop=40_000), says(404), gives())
    toy(url)
    with pytest.raises(DownloadError, match="404"):
        find_file("test", "toy.csv")
    part = part_file(cache / "molecules" / "toy.csv", url)
    size = part.stat().st_size
    assert leftovers(cache) == [part.name] and part.read_bytes() == BODY[:size]
    other = server.url("other.csv", gives())
    toy(other, url)  # another address does not go on there, and removes the part when all has come
    assert fetched(cache) and server.starts == [0, size, 0]
    (cache / "molecules" / "toy.csv").unlink()
    part.write_bytes(BODY[:10])
    toy(url)
    assert fetched(cache) and server.starts[-1] == 10
    (cache / "molecules" / "toy.csv").unlink()
    part.write_bytes(b"0123456789")  # of another file: what comes is refused, and asked for from the start
    assert fetched(cache) and server.starts[-2:] == [10, 0]


def test_the_checksum_of_an_archive_comes_before_it_is_unpacked(toy, server, cache):
    packed, unpacked = gzip.compress(BODY, mtime=0), []

    def unpack(part):
        unpacked.append(part)
        return prepare.unpack(part)

    url = server.url("toy.csv.gz", gives(packed))
    toy(url, prepare=unpack, packed_sha256=SHA256)
    with pytest.raises(DownloadError, match=r"toy\.csv\.gz: the archive must have the sha256 .*, got "):
        find_file("test", "toy.csv")
    assert not unpacked and leftovers(cache) == []
    right = hashlib.sha256(packed).hexdigest()
    toy(url, prepare=unpack, packed_sha256=right)
    assert fetched(cache) and len(unpacked) == 1
    (cache / "molecules" / "toy.csv").unlink()
    toy(server.url("toy.csv", gives()), packed_sha256=right)  # a copy that is not packed
    assert fetched(cache)


@pytest.mark.parametrize(
    ("act", "tries", "message"),
    [
        (says(503), 3, "503 .*MOREAUC_DATA"),  # a passing state is asked again
        (says(404), 1, "404 .*MOREAUC_DATA"),
        (gives(length=False), 1, "more than 50000 bytes"),
    ],
)
def test_a_server_that_refuses_or_never_ends(toy, server, cache, monkeypatch, act, tries, message):
    monkeypatch.setattr(prepare, "LARGEST_DOWNLOAD", 50_000)
    toy(server.url("toy.csv", act))
    with pytest.raises(DownloadError, match=message):
        find_file("test", "toy.csv")
    assert len(server.asked) == tries and leftovers(cache) == []


def test_the_next_address_helps(toy, server, cache):
    wrong = server.url("wrong.csv", gives(BODY[::-1]))
    toy(server.url("gone.csv", says(404)), wrong, server.url("toy.csv", gives()), server.url("more.csv", gives()))
    assert fetched(cache) and server.asked == ["gone.csv", "wrong.csv", "toy.csv"]


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


# what is made of a download


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
WITHOUT_COLUMNS = partial(prepare.without_columns, columns=("b", "d"))


def made_of(path, step, content):
    path.write_bytes(content)
    return step(path)


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
        (WITHOUT_COLUMNS, b'a,b,c,b\r\n1,2,"x, ""y""",3\r\n4,5,,6', b'a,c\n1,"x, ""y"""\n4,\n'),
        (WITHOUT_COLUMNS, b"", b""),
        (ENDS, b"|1x3\n25, Private\n\n", b"|1x3\n25, Private\n\n"),
        (ENDS, b"age, workclass\n25, Private\n", b"|1x3\n25, Private\n\n"),
        (ENDS, zipped(a=b"|1x3\n25, Private\n\n"), b"|1x3\n25, Private\n\n"),
        (partial(prepare.with_adult_ends, member="a"), b"39, Private\n", b"39, Private\n\n"),
        (ENDS, b"", b""),
    ],
)
def test_content_of_a_download(tmp_path, step, before, after):
    assert made_of(tmp_path / "raw", step, before) == after


def test_images_of_a_repository(tmp_path):
    collect = partial(prepare.collect_images, inside="set", classes={"b": "bee", "a": "ay"}, count=2)
    images = {"b/bee1.jpeg": b"1", "b/bee2.jpeg": b"2", "a/ay1.jpeg": b"3", "a/ay2.jpeg": b""}
    others = {"b/bee3.jpeg": b"x", "b/ay1.jpeg": b"x", "a/ay1.jpg": b"x", "c/bee1.jpeg": b"x", "a/ay0.jpeg": b"x"}
    inside = {f"repository-0a1b/set/{name}": content for name, content in reversed({**images, **others}.items())}
    strangers = {"repository-0a1b/b/bee1.jpeg": b"y", "set/a/ay1.jpeg": b"z"}
    content = made_of(tmp_path / "raw", collect, tarred({**inside, **strangers}))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert [(entry.name, archive.extractfile(entry).read()) for entry in archive] == list(images.items())
        assert {(entry.mtime, entry.uid, entry.mode) for entry in archive} == {(0, 0, 0o644)}
    del inside["repository-0a1b/set/a/ay2.jpeg"], inside["repository-0a1b/set/b/bee1.jpeg"]
    with pytest.raises(ValueError, match=r"2 images are missing, b/bee1\.jpeg among them"):
        made_of(tmp_path / "raw", collect, tarred(inside))


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
        found = find_file("test", name)
        assert found.parent == Path(folder) / entry.subfolder and entry.checksum(found) == entry.sha256
