"""What is easily forgotten by a checkpoint: buffers made late, frozen weights, generators, types, other processes."""

from __future__ import annotations

import copy
import errno
import os
import stat
import subprocess
import sys

import pytest
import torch
from interruptions import Kill, Killed, compare_interrupted, data, network, planned, same, small_run
from torch import nn

from moreauc.checkpoint import (
    CheckpointError,
    Checkpoints,
    RunState,
    folder,
    save_checkpoint,
)
from moreauc.criteria import CrossEntropyLoss
from moreauc.data import TensorBatches
from moreauc.train import Callback

X, Y = data()


class Late(nn.Module):
    """Makes its buffers in the first step, and draws from a generator of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layer = nn.Linear(4, 1)
        self.inner = nn.Module()
        self.inner.register_buffer("mean", None)
        self.register_buffer("cache", None, persistent=False)
        self.generator = torch.Generator().manual_seed(9)

    def forward(self, inputs):
        if self.training:
            now = inputs.detach().mean(0)
            self.inner.mean = now if self.inner.mean is None else 0.9 * self.inner.mean + 0.1 * now
            self.cache = now if self.cache is None else self.cache + now
            inputs = inputs + torch.randn(inputs.shape, generator=self.generator) + self.cache
        return self.layer(inputs - (0.0 if self.inner.mean is None else self.inner.mean)).squeeze(1)


def test_late_buffers_and_generators_of_the_model(tmp_path):
    def train(folder, callbacks):
        small_run(folder, model=Late(), callbacks=callbacks)

    assert compare_interrupted(train, tmp_path, [3, 4, 6]) == []


def make():
    model = Late()
    return RunState(model, CrossEntropyLoss(Y), torch.optim.SGD(model.parameters(), 0.1), range(3))


def test_a_late_buffer_is_none_again_after_an_error():
    run = make()
    run.model(X)
    state = copy.deepcopy(run.state_dict())
    state["position"]["random"]["torch"] = torch.zeros(3, dtype=torch.uint8)
    fresh = make()
    before = copy.deepcopy(fresh.state_dict())
    with pytest.raises(CheckpointError, match="a part refuses its state"):
        fresh.load_state_dict(state)
    assert fresh.model.inner.mean is None and same(fresh.state_dict()["model"]["state"], before["model"]["state"]) == []


def test_a_module_of_nothing_but_a_late_buffer():
    class Only(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", None)

    weight = nn.Parameter(torch.zeros(1))
    runs = [RunState(Only(), CrossEntropyLoss(Y), torch.optim.SGD([weight], 0.1), range(3)) for _ in range(2)]
    runs[0].model.mean = torch.ones(2)
    runs[1].load_state_dict(copy.deepcopy(runs[0].state_dict()))
    assert runs[1].model.mean.tolist() == [1.0, 1.0]


def test_weights_that_are_frozen_on_the_way(tmp_path):
    class Freeze(Callback):
        def on_epoch(self, state):
            if state.phase == "train":
                for name, weight in state.model.named_parameters():
                    weight.requires_grad_((state.epoch % 2 == 0) == name.startswith("4."))

    def train(folder, callbacks):
        small_run(folder, model=network(), callbacks=[Freeze(), *callbacks], epochs=4)

    assert compare_interrupted(train, tmp_path, [12, 6, 2]) == []


class Master(torch.optim.Optimizer):
    """Keeps weights in single precision beside those of the model."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight]
                    state.setdefault("master", weight.float().clone())
                    state["master"] -= group["lr"] * weight.grad.float()
                    weight.copy_(state["master"])


def test_an_optimizer_keeps_the_types_of_its_tensors(tmp_path):
    def train(folder, callbacks):
        model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)).bfloat16()
        with torch.no_grad():
            model[0].weight.fill_(0.5)
            model[0].bias.fill_(0.25)
        options = {"optimizer": Master(model.parameters(), {"lr": 0.01}), "criterion": CrossEntropyLoss(Y)}
        loader = TensorBatches(X.bfloat16(), Y, planned(Y))
        small_run(folder, model=model, loader=loader, callbacks=callbacks, warm_start_epochs=0, **options)

    assert compare_interrupted(train, tmp_path, [3, 4]) == []


def test_a_rate_that_is_a_tensor_is_a_number_in_the_history(tmp_path):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.05), foreach=False)
    history = small_run(None, every=None, model=model, optimizer=optimizer)[2]
    assert {type(rate) for rate in history["lr"]} == {float}


# Files that are whole and wrong


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: s["others"]["loop"]["state"].update(phase="x"),
            "the phase must be one of warm start, train, done as",
        ),
        (lambda s: s["position"].update(epoch=9), "the epoch must be at most 4 as in this run, got 9"),
        (lambda s: s["position"].update(epoch=-1), "epoch must be a number of at least 0, got -1"),
        (lambda s: s["position"].update(step=-1), "step must be a number of at least 0, got -1"),
        (lambda s: s["position"].update(step="a"), "step must be a number of at least 0, got 'a'"),
        (lambda s: s["position"].update(step=6), "step must be at most 5, got 6"),
        (lambda s: s["others"]["loop"]["state"].pop("phase"), "must be that of a run of fit, got another: KeyError"),
        (lambda s: s.pop("others"), "must be that of a run of fit, got another: KeyError"),
    ],
)
def test_a_wrong_place_is_refused_before_anything_has_changed(change, message, tmp_path):
    with pytest.raises(Killed):
        small_run(tmp_path, callbacks=[Kill(8)])
    state = Checkpoints(tmp_path).load()
    change(state)
    save_checkpoint(Checkpoints(tmp_path).files()[-1], state)
    model = network()
    with pytest.raises(CheckpointError, match=message):
        small_run(tmp_path, model=model)
    assert same(model.state_dict(), network().state_dict()) == []


# Two runs in one folder

OTHER = """
import sys
from pathlib import Path
from moreauc.checkpoint.folder import FolderLock
from moreauc.checkpoint import CheckpointError
lock = FolderLock()
try:
    lock.take(Path(sys.argv[1]))
except CheckpointError as error:
    print(error)
"""


def other(folder):
    command = [sys.executable, "-c", OTHER, str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_folder_belongs_to_one_process_while_a_run_goes_on(tmp_path):
    texts = []

    class Look(Callback):
        def on_begin(self, state):
            if state.phase == "train":
                texts.append(other(tmp_path))

    small_run(tmp_path, callbacks=[Look()])
    with pytest.raises(Killed):
        small_run(tmp_path / "a", callbacks=[Kill(3)])
    wanted = (
        f"fit: checkpoint must be a folder of one run at a time, got {str(tmp_path)!r}, in which another process is"
    )
    assert texts[0].startswith(wanted) and other(tmp_path) == other(tmp_path / "a") == ""


def test_systems_without_locks(tmp_path, monkeypatch):
    def cannot(file, flags):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(folder.fcntl, "lockf", cannot)
    small_run(tmp_path / "a")
    monkeypatch.setattr(folder, "fcntl", None)
    small_run(tmp_path / "b")
    assert not (tmp_path / "b" / "lock").exists()


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_folders_that_cannot_be_flushed(number, fails, tmp_path, monkeypatch):
    fsync = os.fsync

    def only_files(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(number, "not here")
        fsync(file)

    monkeypatch.setattr(os, "fsync", only_files)
    if fails:
        with pytest.raises(OSError, match="not here"):
            save_checkpoint(tmp_path / "a", {})
    else:
        save_checkpoint(tmp_path / "a", {})
        assert (tmp_path / "a").exists()
