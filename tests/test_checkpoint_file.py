"""Files of checkpoints: whole or absent, checked before they are read, and never able to run code."""

from __future__ import annotations

import errno
import io
import math
import os
import pickle
import random
import struct
import warnings
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from interruptions import same
from torch import nn

import moreauc.checkpoint.file as module
from moreauc.checkpoint import CheckpointError, Checkpoints, load_checkpoint, save_checkpoint
from moreauc.checkpoint.file import DamagedCheckpointError
from moreauc.checkpoint.folder import CheckpointWarning

STATE = {"weights": torch.arange(300.0).reshape(30, 10), "names": ["a", "b"], "epoch": 7, "score": -math.inf}


def forged(payload: bytes, version: int = module.VERSION) -> bytes:
    """A file with a right header around anything, as somebody with bad intentions can make it."""
    import hashlib

    numbers = struct.pack(">IQ", version, len(payload))
    return b"\x89moreauc\r\n\x1a\n" + numbers + hashlib.sha256(payload + numbers).digest() + payload


def test_what_is_saved_comes_back(tmp_path):
    """Numbers of NumPy become plain, and weights lose their gradient."""
    state = {
        **{**STATE, "none": None, "pair": (1, "x"), "big": 2**200, "bytes": b"\x00\xff"},
        **{"half": torch.ones(3, dtype=torch.half), "same": [torch.ones(2)] * 2},
        **{"ordered": OrderedDict(b=1, a=2), "counts": Counter({3: 2}), "empty": {}, "flags": {True, False}},
        **{"whole": torch.tensor(3), "bool": torch.tensor([True]), 5: "number", "type": torch.float16},
    }
    changed = {"score": np.float64(0.5), "count": np.int64(3), "weights": nn.Parameter(torch.ones(2))}
    save_checkpoint(tmp_path / "new" / "folder" / "a.checkpoint", {**state, **changed})
    found = load_checkpoint(tmp_path / "new" / "folder" / "a.checkpoint")
    assert same(found, {**state, "score": 0.5, "count": 3, "weights": torch.ones(2)}) == []
    assert not found["weights"].requires_grad


def test_a_view_is_saved_without_the_rest_of_its_storage(tmp_path):
    save_checkpoint(tmp_path / "view", {"row": torch.zeros(100_000, 4)[3]})
    save_checkpoint(tmp_path / "row", {"row": torch.zeros(4)})
    assert os.path.getsize(tmp_path / "view") == os.path.getsize(tmp_path / "row")


class Anything:
    pass


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # some versions of torch say that such tensors will go
    QUANTIZED = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Anything(), r"state\['a'\]\['b'\]\[1\] must be a plain tensor, .* got test_checkpoint_file.Anything"),
        (np.zeros(3), r"got numpy.ndarray"),
        (lambda: None, "got builtins.function"),
        (torch.empty(3, device="meta"), "got torch.Tensor of torch.float32 and torch.strided on meta"),
        (torch.eye(2).to_sparse(), "got torch.Tensor of torch.float32 and torch.sparse_coo on cpu"),
        pytest.param(QUANTIZED, "got torch.Tensor of torch.qint8", id="quantized"),
        ({(1, 2): 3}, r"keys of state\['a'\]\['b'\]\[1\] must be texts or numbers, got \(1, 2\)"),
    ],
)
def test_what_could_not_be_loaded_again_is_refused_before_anything_is_written(tmp_path, value, message):
    state = {"a": {"b": [0, value]}}
    with pytest.raises(CheckpointError, match=message):
        save_checkpoint(tmp_path / "x", state)
    assert not list(tmp_path.iterdir())


def damaged(whole: bytes, kind: str, draws: random.Random) -> bytes:
    place = draws.randrange(len(whole))
    if kind == "cut":
        return whole[:place]
    if kind == "longer":
        return whole + bytes(draws.randrange(256) for _ in range(draws.randrange(1, 9)))
    content = bytearray(whole)
    if kind == "header":
        place %= 64
    for _ in range(draws.choice((1, 1, 4))):
        content[place] ^= 1 << draws.randrange(8)
        place = draws.randrange(len(whole))
    return bytes(content)


@pytest.mark.parametrize(("kind", "count"), [("cut", 60), ("flip", 60), ("header", 60), ("longer", 20)])
def test_every_damage_is_refused_with_a_message(tmp_path, kind, count):
    """Files cut at random places, bits flipped anywhere or in the header, bytes added."""
    path = tmp_path / "a.checkpoint"
    save_checkpoint(path, STATE)
    whole, draws = path.read_bytes(), random.Random(kind)
    for _ in range(count):
        broken = damaged(whole, kind, draws)
        if broken == whole:  # two flips of one bit
            continue
        path.write_bytes(broken)
        with pytest.raises(DamagedCheckpointError, match=r"a.checkpoint must .*(cut short|altered|something else)$"):
            load_checkpoint(path)


def torch_bytes(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content", [b"", b"hello", pickle.dumps({"a": 1}), b"PK\x03\x04" + bytes(90), torch_bytes({"a": 1})]
)
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match="must be a checkpoint of moreauc, got something else"):
        load_checkpoint(tmp_path / "a")


class Hostile:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("by_torch", [True, False])
def test_a_hostile_file_does_not_run_code(tmp_path, monkeypatch, by_torch):
    """The checksum is right, as whoever prepares such a file can see to."""
    proof = tmp_path / "proof"
    content = torch_bytes({"a": Hostile(proof)}) if by_torch else pickle.dumps({"a": Hostile(proof)})
    (tmp_path / "a").write_bytes(forged(content))
    for forced in ("0", "1"):
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", forced)
        with pytest.raises(DamagedCheckpointError, match="must hold tensors and plain data only, got what cannot be"):
            load_checkpoint(tmp_path / "a")
        assert not proof.exists()
    (torch.load(io.BytesIO(content), weights_only=False) if by_torch else pickle.loads(content))  # it is armed
    assert proof.exists()


def test_nothing_is_unpickled_before_the_checksum_is_compared(tmp_path, monkeypatch):
    path = tmp_path / "a"
    save_checkpoint(path, STATE)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("unpickled"))
    with pytest.raises(DamagedCheckpointError):
        load_checkpoint(path)


def archive_of(state, **options):
    """What torch saves, zipped again by another program."""
    source, out = io.BytesIO(torch_bytes(state)), io.BytesIO()
    with zipfile.ZipFile(source) as given, zipfile.ZipFile(out, "w", **options) as archive:
        for record in given.infolist():
            archive.writestr(record.filename, given.read(record))
    return out.getvalue()


class Calls:
    """A pickle that calls a function which torch allows."""

    def __init__(self, function, *values):
        self.call = function, values

    def __reduce__(self):
        return self.call


def altered(payload, flags=0, sizes=None):
    """A zip archive with other flags or sizes, packed and not, in its table of contents."""
    found, payload = payload.find(b"PK\x01\x02"), bytearray(payload)
    while found >= 0:
        payload[found + 8] |= flags
        if sizes is not None:
            payload[found + 20 : found + 28] = struct.pack("<2I", *sizes)
        found = payload.find(b"PK\x01\x02", found + 1)
    return bytes(payload)


def with_other_table(payload):
    """An archive of torch, with numbers of 64 bits, whose last part names another place for its table of contents."""
    found = payload.rfind(b"PK\x06\x07")
    return payload[: found + 8] + bytes(8) + payload[found + 16 :]


def overlapping(old=b"", new=b""):
    """An archive whose table of contents names each record twice, the second time perhaps by another name."""
    payload = archive_of(ZEROS)
    start, end = payload.find(b"PK\x01\x02"), payload.rfind(b"PK\x05\x06")
    table, entries = payload[start:end], 2 * payload.count(b"PK\x01\x02")
    tail = b"PK\x05\x06" + struct.pack("<4H2IH", 0, 0, entries, entries, 2 * len(table), start, 0)
    return payload[:start] + table + (table.replace(old, new) if old else table) + tail


ZEROS = {"a": torch.zeros(100_000)}
HOSTILE = {
    "rubbish": (lambda: b"rubbish", "must hold tensors"),
    "empty": (lambda: b"", "must hold tensors"),
    "list": (lambda: torch_bytes([1, 2]), "must hold a dictionary, got list"),
    "one name twice": (overlapping, "records of the same name"),
    "one record twice": (lambda: overlapping(b"arch", b"hcra"), "records of"),
    "deflated": (lambda: archive_of(ZEROS, compression=zipfile.ZIP_DEFLATED), "data.pkl' is compressed"),
    "bzip2": (lambda: archive_of(ZEROS, compression=zipfile.ZIP_BZIP2), "data.pkl' is compressed"),
    "encrypted": (lambda: altered(archive_of(ZEROS), flags=1), "data.pkl' is encrypted"),
    "sizes": (lambda: altered(archive_of(ZEROS), sizes=(2**30, 2**30)), r"records of \d+ bytes in \d+ bytes"),
    "two sizes": (lambda: altered(archive_of(ZEROS), sizes=(8, 9)), "data.pkl' is compressed"),
    "prefix": (lambda: b"more" + archive_of(ZEROS), "a table of contents that is not at the end"),
    "behind": (lambda: archive_of(ZEROS) + bytes(22), "no archive, or one with something behind it"),
    "comment": (lambda: archive_of(ZEROS)[:-2] + b"\x01\x00", "no archive, or one with something behind it"),
    "other table": (lambda: with_other_table(torch_bytes(ZEROS)), "a table of contents that is not at the end"),
    "other end": (lambda: torch_bytes(ZEROS).replace(b"PK\x06\x06", b"PK\x06\x08"), "that is not at the end"),
    "bytearray": (lambda: archive_of({"a": Calls(bytearray, 10**9)}), "__builtin__ bytearray in it"),
    "tensor": (lambda: archive_of({"a": Calls(torch.Tensor, 10**9)}), "torch Tensor in it"),
    "storage": (lambda: archive_of({"a": Calls(torch.UntypedStorage, 10**6)}), "tensors of 1000000 bytes in "),
    "stride": (lambda: archive_of({"a": torch.ones(1).expand(10**10)}), "a tensor of 40000000000 bytes in 4 bytes"),
    "doubled": (lambda: archive_of({"a": doubled(60)}), r"more than \d+ entries in \d+ bytes"),
}


def doubled(times):
    nested = []
    for _ in range(times):
        nested = [nested, nested]
    return nested


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_contents_are_refused(tmp_path, kind):
    """The checksum is right: whoever prepares such a file can see to that."""
    make, message = HOSTILE[kind]
    (tmp_path / "a").write_bytes(forged(make()))
    with pytest.raises(DamagedCheckpointError, match=message):
        load_checkpoint(tmp_path / "a")


def test_a_newer_version_is_named(tmp_path):
    (tmp_path / "a").write_bytes(forged(b"whatever comes then", version=module.VERSION + 1))
    with pytest.raises(CheckpointError, match=r"must be of version 1 or earlier, got 2: written by a newer") as caught:
        load_checkpoint(tmp_path / "a")
    assert not isinstance(caught.value, DamagedCheckpointError)


def test_the_file_is_flushed_before_it_is_renamed_and_the_folder_after(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def kind(number):
        target = os.readlink(f"/proc/self/fd/{number}")
        return "folder" if os.path.isdir(target) else "file"

    def record_fsync(number):
        if kind(number) == "file":
            events.append(("whole", os.fstat(number).st_size))
        events.append(("fsync", kind(number)))
        fsync(number)

    def record_replace(source, target):
        events.append(("replace", Path(target).name))
        assert Path(source).parent == Path(target).parent
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    save_checkpoint(tmp_path / "a", STATE)
    size = os.path.getsize(tmp_path / "a")  # nothing was left in a buffer
    assert events == [("whole", size), ("fsync", "file"), ("replace", "a"), ("fsync", "folder")]
    events.clear()
    save_checkpoint(tmp_path / "b" / "c" / "a", STATE)  # new folders are flushed, too: b in it, c in b
    assert events[:2] == [("fsync", "folder")] * 2 and events[-1] == ("fsync", "folder")


def full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("where", ["fsync", "replace", "interrupt"])
def test_after_a_failure_the_old_file_is_there_and_nothing_else(tmp_path, monkeypatch, where):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(STATE)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    if where == "interrupt":
        monkeypatch.setattr(os, "replace", lambda *names: (_ for _ in ()).throw(KeyboardInterrupt))
    else:
        monkeypatch.setattr(os, where, full_disk)
    with pytest.raises(KeyboardInterrupt if where == "interrupt" else OSError) as caught:
        checkpoints.save(STATE)
    assert where == "interrupt" or caught.value.errno == errno.ENOSPC
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    monkeypatch.undo()
    assert same(checkpoints.load(), STATE) == []


class Small(io.FileIO):
    """A file on a disk with room for so many bytes."""

    room = 0

    def write(self, data):
        self.room -= len(data)
        return super().write(data) if self.room >= 0 else full_disk()


@pytest.mark.parametrize("room", [10, 100, 700, 3000])
def test_a_full_disk_is_an_error_of_the_system(tmp_path, room):
    """And not the one that torch makes of it when it closes what it could not write."""
    with Small(str(tmp_path / "a"), "wb") as file, pytest.raises(OSError, match="No space left") as caught:
        file.room = room
        module._write(file, {"a": torch.zeros(1000)})
    assert caught.value.errno == errno.ENOSPC


def test_the_last_two_are_kept_and_the_new_one_is_there_before_an_old_one_goes(tmp_path, monkeypatch):
    checkpoints, seen, unlink = Checkpoints(tmp_path), [], Path.unlink

    def record(self, missing_ok=False):
        seen.append((self.name, sorted(path.name for path in tmp_path.iterdir())))
        unlink(self, missing_ok=missing_ok)

    names = [f"run-{epoch:08d}.checkpoint" for epoch in range(5)]
    monkeypatch.setattr(Path, "unlink", record)
    for epoch in range(4):
        assert checkpoints.save({"epoch": epoch}) == tmp_path / names[epoch]
    assert seen == [(names[0], names[:3]), (names[1], names[1:4])]
    assert [path.name for path in checkpoints.files()] == names[2:4]
    again = Checkpoints(tmp_path, keep=1)
    assert again.load() == {"epoch": 3}
    again.save({"epoch": 4})
    assert [path.name for path in again.files()] == names[4:]


@pytest.mark.parametrize("content", [b"", b"\x89moreauc\r\n", b"something else that is longer than a header" * 3])
def test_a_damaged_newest_file_is_skipped_with_a_warning(tmp_path, content):
    checkpoints = Checkpoints(tmp_path)
    for epoch in range(3):
        checkpoints.save({"epoch": epoch})
    (tmp_path / "run-00000002.checkpoint").write_bytes(content)
    with pytest.warns(CheckpointWarning, match=r"run-00000002.*; going on from .*run-00000001.checkpoint instead"):
        assert checkpoints.load() == {"epoch": 1}
    checkpoints.save({"epoch": 2})  # the sound one stays until there are two others
    assert [path.name for path in checkpoints.files()] == ["run-00000001.checkpoint", "run-00000003.checkpoint"]
    assert checkpoints.load() == {"epoch": 2}
    for path in checkpoints.files():
        path.write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=r"00000003.*; .*00000001.*; no other checkpoint"):
        checkpoints.load()


def test_a_newer_version_is_not_skipped(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"epoch": 0})
    (tmp_path / "run-00000001.checkpoint").write_bytes(forged(b"new", version=9))
    with pytest.raises(CheckpointError, match="got 9: written by a newer moreauc"):
        checkpoints.load()


def test_what_a_kill_left_is_removed_and_other_files_stay(tmp_path):
    left = tmp_path / ".run-00000007.checkpoint.0a1b2c3d.part"
    others = [tmp_path / name for name in ("notes.txt", "run-x.checkpoint", ".rank1-00000000.checkpoint.00ff.part")]
    for path in (left, *others):
        path.write_bytes(b"half of it")
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load() is None and checkpoints.files() == []
    checkpoints.save({"epoch": 0})
    assert not left.exists() and all(path.exists() for path in others)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Checkpoints(None), "Checkpoints: folder"),
        (lambda: Checkpoints(""), "Checkpoints: folder"),
        (lambda: Checkpoints("file/sub"), "Checkpoints: folder .* goes through"),
        (lambda: Checkpoints("file"), "Checkpoints: folder .* got the file"),
        (lambda: Checkpoints("new", keep=0), "Checkpoints: keep"),
        (lambda: Checkpoints("new", name="../x"), "Checkpoints: name"),
        (lambda: Checkpoints("new").save([("a", 1)]), "save_checkpoint: state must be a dictionary"),
        (lambda: Checkpoints("new").save({"a": print}), r"save_checkpoint: state\['a'\] must be a plain tensor"),
        (lambda: save_checkpoint({"a": 1}, "new"), "save_checkpoint: path"),
        (lambda: load_checkpoint(987), "load_checkpoint: path"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(call, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=f"^{name}"):
        call()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_systems_that_cannot_flush_folders(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_DIRECTORY")
    save_checkpoint(tmp_path / "a", STATE)
    assert same(load_checkpoint(tmp_path / "a"), STATE) == []
