"""SIGTERM and SIGINT during a run with checkpoints: it is saved first. After SIGKILL it is resumed bit for bit."""

from __future__ import annotations

import importlib
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from interruptions import data, planned, same, small_run

from moreauc.checkpoint import Checkpoints, Interrupted, load_checkpoint
from moreauc.checkpoint.interrupt import SignalWatch
from moreauc.data import TensorBatches
from moreauc.train import Callback

FOLDER = Path(__file__).parents[1] / "benchmarks"
SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture
def torture(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("torture")


@pytest.fixture(autouse=True)
def _python_handlers():
    """Start from Python's own handlers, whatever runs the tests."""
    before = [signal.getsignal(number) for number in SIGNALS]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


class Send(Callback):
    """Sends a signal to this process at a step, or at the end of an epoch."""

    def __init__(self, number, *, step=None, epoch=None):
        self.number, self.step, self.epoch, self.seen = number, step, epoch, []

    def on_step(self, state):
        self.seen.append((state.phase, state.epoch, state.step))
        if len(self.seen) == self.step:
            os.kill(os.getpid(), self.number)

    def on_epoch(self, state):
        if state.epoch == self.epoch and state.phase == "train":
            os.kill(os.getpid(), self.number)


def run(folder, *callbacks, loader=None):
    batches = TensorBatches(*data(), planned(data()[1]))
    batches = batches if loader is None else loader(batches)
    model, criterion, _ = small_run(folder, callbacks=callbacks, loader=batches, every=None)
    return [model.state_dict(), criterion.state_dict()]


@pytest.mark.parametrize(
    ("number", "when", "where"),
    [
        (signal.SIGINT, {"step": 2}, "in warm start, epoch 0, after 2 of its steps"),
        (signal.SIGTERM, {"step": 12}, "in train, epoch 1, after 2 of its steps"),
        (signal.SIGTERM, {"step": 10}, "in train, epoch 0, after 5 of its steps"),
        (signal.SIGTERM, {"epoch": 2}, "in train, epoch 3, after 0 of its steps"),
    ],
)
def test_the_step_is_finished_and_the_run_saved(number, when, where, tmp_path):
    send = Send(number, **when)
    with pytest.raises(Interrupted, match=f"stopped by {number.name} {where}; saved in .*, from where the same call"):
        run(tmp_path, send)
    if "step" in when:
        assert len(send.seen) == when["step"]  # the hooks of the step ran, and no step after it
    rest = Send(None)
    assert same(run(tmp_path, rest), run(None)) == []
    assert len(send.seen) + len(rest.seen) == 20  # nothing was done twice


def test_it_is_a_keyboard_interrupt_with_an_exit_code():
    assert issubclass(Interrupted, KeyboardInterrupt)
    assert [Interrupted(number, "here").exit_code for number in SIGNALS] == [143, 130]
    copied = pickle.loads(pickle.dumps(Interrupted(signal.SIGTERM, "here")))
    assert (str(copied), copied.number, copied.exit_code) == ("stopped by SIGTERM here", signal.SIGTERM, 143)


def test_a_signal_at_the_very_end_comes_after_the_run_is_complete(tmp_path, monkeypatch):
    from moreauc.train.checkpointer import Checkpointer

    save = Checkpointer.on_end

    def late(self, state):
        os.kill(os.getpid(), signal.SIGTERM)
        save(self, state)

    class Last(Callback):
        def on_end(self, state):
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "on_end", late)
        with pytest.raises(Interrupted, match="stopped by SIGTERM after the run was complete; saved in"):
            run(tmp_path)
    with pytest.raises(Interrupted, match="stopped by SIGTERM after the run was complete; saved in"):
        run(tmp_path, Last())
    none = Send(None)
    assert same(run(tmp_path, none), run(None)) == [] and none.seen == []


def test_the_second_signal_has_its_usual_effect(tmp_path):
    """And handlers are restored, as the fixture checks after each test."""

    class Impatient(Callback):
        def on_step(self, state):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        run(tmp_path, Impatient())
    assert not isinstance(caught.value, Interrupted) and Checkpoints(tmp_path).load() is None


def test_ignored_signals_stay_ignored(tmp_path):
    """A job in the background of a shell ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        send = Send(signal.SIGINT, step=3)
        run(tmp_path, send)
        assert len(send.seen) == 20 and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_threads_train_without_handlers(tmp_path):
    results = []

    class Look(Callback):
        def on_step(self, state):
            results.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=lambda: results.append(run(tmp_path, Look())))
    thread.start()
    thread.join()
    assert len(results) == 21 and set(results[:-1]) == {signal.SIG_DFL}


def test_an_error_of_the_loader_after_a_signal_is_the_signal(tmp_path):
    """Ctrl-C on a terminal also reaches workers, which end; the loader then fails while the run waits for a batch."""

    class Dying:
        num_workers = 1

        def __init__(self, batches):
            self.batches = batches
            self.set_epoch = batches.set_epoch

        def __iter__(self):
            noise = float(torch.rand(()))  # as a DataLoader does for its workers
            for number, (inputs, labels, index) in enumerate(self.batches):
                if [number] == armed:
                    armed.clear()
                    os.kill(os.getpid(), signal.SIGINT)
                    raise RuntimeError("DataLoader worker exited unexpectedly")
                yield inputs + noise, labels, index

    class Alone(Dying):
        num_workers = 0

    armed = []
    whole = run(None, loader=Dying)
    for number in (0, 3):
        armed = [number]
        folder = tmp_path / str(number)
        with pytest.raises(Interrupted, match=f"in warm start, epoch 0, after {number} of its steps"):
            run(folder, loader=Dying)
        assert same(run(folder, loader=Dying), whole) == []
    armed = [3]
    with pytest.raises(RuntimeError, match="exited unexpectedly"):  # whose data it is, without workers
        run(tmp_path / "alone", loader=Alone)
    armed = [3]
    with pytest.raises(KeyboardInterrupt):
        run(None, loader=Dying)


def test_forked_processes_leave_the_signal_to_the_one_that_trains():
    with SignalWatch() as watch:
        process = os.fork()
        if process == 0:
            os.kill(os.getpid(), signal.SIGINT)
            if watch.caught is None:
                os.kill(os.getpid(), signal.SIGTERM)  # which ends it, as `Process.terminate()` asks for
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGTERM and watch.caught is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert watch.caught == signal.SIGTERM


TRAIN = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
import torture_runs
torch.set_num_threads(1)
torture_runs.train("rows: sonx", sys.argv[2], workers=2, every=None, epochs=400)
"""


def test_processes_with_workers_save_themselves_and_leave_no_worker_behind(tmp_path):
    """The signal goes to the whole group, as from a terminal."""
    waiting = {}
    for number in SIGNALS:  # at the same time: most of it is the start
        command = [sys.executable, "-c", TRAIN, str(FOLDER), str(tmp_path / number.name)]
        waiting[number] = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    started = dict(waiting)
    while waiting:
        time.sleep(0.01)
        for number, process in list(waiting.items()):
            if Checkpoints(tmp_path / number.name).files():
                os.killpg(waiting.pop(number).pid, number)
            else:
                assert process.poll() is None, process.stderr.read()
    for number, process in started.items():
        errors = process.communicate(timeout=60)[1]
        assert process.returncode != 0 and f"Interrupted: stopped by {number.name} in " in errors
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
        saved = load_checkpoint(Checkpoints(tmp_path / number.name).files()[-1])
        assert saved["others"]["loop"]["state"]["steps"] > 0


@pytest.mark.parametrize("name", ["rows: sonx", "bags: midam_att"])
def test_killed_processes_are_resumed_bit_for_bit(name, torture):
    """The torture of `make torture`, for seconds: processes with workers, killed outside of saves and inside."""
    torture.load_once()
    tally = torture.torture(name, 2, random.Random(name), kills_of_a_run=2)
    assert tally.kills == 2 and tally.starts == tally.kills + tally.runs and sum(tally.by_stage) == 2
    assert tally.tensors > 20 and tally.differences == []
