"""Files that are written: whole or not at all, and named where the disk is full."""

from __future__ import annotations

import errno
import logging
import resource
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from experiments.engine import write_records
from experiments.files import save_figure, write_arrays
from moreauc._system import written_whole
from moreauc.app.cli.saved import run_folder, save_model
from moreauc.app.report.pages import Report
from moreauc.app.tables.files import write_table
from moreauc.checkpoint import save_checkpoint


@contextmanager
def no_room(size=100):
    """Let no file grow beyond so many bytes: the system then says what it says of a full disk, without a name."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


FRAME = pd.DataFrame({"a": np.arange(1000.0)})
WRITERS = {
    "a.checkpoint": lambda path: save_checkpoint(path, {"a": torch.zeros(1000)}),
    "model.joblib": lambda path: save_model(path.parent, np.arange(999.0), None, None),
    "report.json": lambda path: Report("t" * 200, "c", {}).write(path.parent),
    "results.png": lambda path: save_figure(Figure(), path),
    "scores.csv": lambda path: write_table(FRAME, path),
    "scores.parquet": lambda path: write_table(FRAME, path),
    "graphs.npz": lambda path: write_arrays(path, {"a": np.random.default_rng(0).integers(9, size=9999)}),
    "records.jsonl": lambda path: write_records(path, [{"key": "a" * 200, "score": 0.5}]),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_names_the_file(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(OSError, match="File too large") as caught, no_room():
        WRITERS[name](path)
    assert caught.value.filename == str(path) and str(path) in str(caught.value)
    assert not list(tmp_path.iterdir())  # nor half a file


def test_errors_without_a_number_name_the_file_too(tmp_path):
    with pytest.raises(OSError, match=f"{tmp_path / 'a'}: 10 requested and 3 written"), written_whole(tmp_path / "a"):
        raise OSError("10 requested and 3 written")
    with pytest.raises(FileNotFoundError, match="elsewhere"), written_whole(tmp_path / "a"):  # has a name of its own
        raise FileNotFoundError(errno.ENOENT, "no such file", "elsewhere")
    with pytest.raises(FileNotFoundError) as caught, written_whole(tmp_path / "nowhere" / "a") as part:
        part.write_text("")
    assert caught.value.filename == str(tmp_path / "nowhere" / "a")  # and not that of the part


def test_the_folder_that_is_named_is_the_one_that_was_asked_for(tmp_path):
    place = run_folder(tmp_path / "run", force=False)
    with pytest.raises(OSError, match="File too large") as caught, place as folder, no_room():
        Report("t" * 200, "c", {}).write(folder)
    assert caught.value.filename == str(tmp_path / "run" / "report.json") and not list(tmp_path.iterdir())


def test_a_log_that_cannot_be_written_costs_nothing_else(tmp_path, capsys):
    with run_folder(tmp_path / "run", force=False) as folder:
        (folder / "report.html").write_text("here")
        with no_room(0):
            logging.getLogger("moreauc").info("some message")
            logging.getLogger("moreauc").info("another")
    told = capsys.readouterr().err
    assert told.count("cannot be written: [Errno 27] File too large") == 1 and "Traceback" not in told
    assert (tmp_path / "run" / "report.html").read_text() == "here"


def test_part_files_have_names_of_their_own(tmp_path):
    with written_whole(tmp_path / "a") as first, written_whole(tmp_path / "a") as second:
        assert first != second
        first.write_text("1")
        second.write_text("2")
    assert (tmp_path / "a").read_text() == "1" and len(list(tmp_path.iterdir())) == 1
