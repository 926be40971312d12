"""Shared by the tests of interrupted runs: ending a run at a step, and comparing it with an uninterrupted one."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from moreauc import TPAUCLoss
from moreauc.checkpoint import Checkpoints, load_checkpoint
from moreauc.data import TensorBatches
from moreauc.samplers import PosNegSampler
from moreauc.train import Callback, fit

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
torture = importlib.import_module("torture")
runs = importlib.import_module("torture_runs")
settings = importlib.import_module("torture_settings")
sys.path.pop(0)

REGION = {"min_tpr": 0.5, "max_fpr": 0.5}


class Killed(BaseException):
    """Nobody catches it, as nobody catches a SIGKILL."""


class Kill(Callback):
    """Ends a run after so many steps of this process."""

    def __init__(self, steps):
        self.steps = steps

    def on_step(self, state):
        self.steps -= 1
        if self.steps == 0:
            raise Killed


def same(found, wanted, name=""):
    """What differs between two states, but for the seconds of the clock; by the slow comparison of the torture."""
    return torture.differences(found, wanted, name)[1]


def final(folder):
    """The last two checkpoints of a complete run."""
    states = [load_checkpoint(path) for path in Checkpoints(folder).files()]
    assert states[-1]["others"]["loop"]["state"]["phase"] == "done"
    return states


def seed_all():
    torch.manual_seed(0)
    random.seed(1)
    np.random.seed(2)


def compare_interrupted(train, tmp_path, interruptions):
    """Run `train(folder, callbacks)` undisturbed and with interruptions; return what differs."""
    seed_all()
    train(tmp_path / "whole", [Kill(0)])
    for steps in interruptions:
        seed_all()
        with pytest.raises(Killed):
            train(tmp_path / "parts", [Kill(steps)])
    torch.manual_seed(99)  # the resumed process has seen other numbers
    random.seed(99)
    np.random.seed(99)
    train(tmp_path / "parts", [Kill(0)])
    return same(final(tmp_path / "parts"), final(tmp_path / "whole"))


def data(n=60, seed=0):
    y = (torch.arange(n) % 3 == 0).long()
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    x[:, 0] += y
    return x, y


def network(dropout=0.4):
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(dropout), nn.Linear(6, 1), nn.Flatten(0)
    )


def planned(y):
    return PosNegSampler(y, num_positives=4, num_negatives=8)


def small_run(folder, *, model=None, criterion=None, loader=None, callbacks=(), labels=None, **options):
    x, y = data()
    y = y if labels is None else labels
    chosen = {"epochs": 3, "lr": 0.05, "every": 1, "seed": 3, "checkpoint": folder, "warm_start_epochs": 1}
    model = network() if model is None else model
    criterion = TPAUCLoss(y, gamma=0.1, **REGION) if criterion is None else criterion
    loader = TensorBatches(x, y, planned(y)) if loader is None else loader
    history = fit(model, criterion, loader, callbacks=callbacks, **{**chosen, **options})
    return model, criterion, history
