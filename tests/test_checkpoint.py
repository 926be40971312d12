"""A run that was interrupted and goes on is, to the last bit, the run that was not."""

from __future__ import annotations

import copy
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from interruptions import (
    REGION,
    Kill,
    Killed,
    compare_interrupted,
    data,
    final,
    network,
    planned,
    runs,
    same,
    seed_all,
    small_run,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from moreauc import TPAUCLoss
from moreauc.checkpoint import (
    CheckpointError,
    Checkpoints,
    CheckpointWarning,
    load_checkpoint,
)
from moreauc.criteria import (
    AUCMinMaxLoss,
    CrossEntropyLoss,
    GroupDROLoss,
    GroupedLoss,
)
from moreauc.data import IndexedDataset, TensorBatches
from moreauc.samplers import PosNegSampler
from moreauc.train import Callback

Y = data()[1]


@pytest.mark.parametrize("name", runs.RUNS)
def test_every_method_goes_on_to_the_last_bit(name, tmp_path):
    """Interrupted in the warm start, in the middle of epochs, at their ends, and between two saves."""

    def train(folder, callbacks):
        runs.train(name, folder, workers=0, every=2, callbacks=[*callbacks, runs.Decay()])

    assert compare_interrupted(train, tmp_path, [3, 4, 1, 5, 2, 6]) == []


@pytest.mark.parametrize("name", ["rows: sonx", "bags: sont_att", "groups: sonx"])
def test_workers_that_draw_noise_go_on_to_the_last_bit(name, tmp_path):
    def train(folder, callbacks):
        runs.train(name, folder, workers=2, every=1, callbacks=[*callbacks, runs.Decay()])

    assert compare_interrupted(train, tmp_path, [3, 4, 9]) == []


@pytest.mark.parametrize("name", ["rows: sonx", "rows: auc_m"])
def test_a_run_with_checkpoints_is_the_run_without(name, tmp_path):
    models = []
    for folder in (None, tmp_path / "a"):
        seed_all()
        kept = Keep()
        history = runs.train(name, folder, workers=0, callbacks=[kept])
        models.append((kept.model.state_dict(), [{**row, "seconds": 0} for row in history.rows]))
    assert same(*models) == []


class Keep(Callback):
    def on_begin(self, state):
        self.model = state.model


@pytest.mark.parametrize("kill", [1, 5, 6, 15, 19, 20])
def test_a_complete_run_is_put_back_and_not_run_again(kill, tmp_path):
    """At whatever step it was interrupted, the last of an epoch included."""
    whole = small_run(tmp_path / "whole")
    with pytest.raises(Killed):
        small_run(tmp_path / "a", callbacks=[Kill(kill)])
    small_run(tmp_path / "a")
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    again = small_run(tmp_path / "a", callbacks=[Kill(1)])
    assert same([part.state_dict() for part in again], [part.state_dict() for part in whole]) == []
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == files


def test_killed_between_the_last_epoch_and_the_end(tmp_path, monkeypatch):
    valid = TensorBatches(*data(seed=1))
    whole = small_run(tmp_path / "whole", validation=valid)
    from moreauc.train.selection import ModelSelector

    with monkeypatch.context() as patch:
        patch.setattr(ModelSelector, "restore_best", lambda self, state: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            small_run(tmp_path / "a", validation=valid)
    found = small_run(tmp_path / "a", validation=valid)
    assert same([part.state_dict() for part in found], [part.state_dict() for part in whole]) == []


@pytest.mark.parametrize("phase", ["warm start", "train"])
def test_killed_after_the_epoch_that_told_to_stop(phase, tmp_path, monkeypatch):
    from moreauc.train.checkpointer import Checkpointer

    class Stop(Callback):
        def on_epoch(self, state):
            state.stop = state.phase == phase

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "on_end", lambda self, state: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            small_run(tmp_path, callbacks=[Stop()], epochs=6, warm_start_epochs=2)
    rows = small_run(tmp_path, callbacks=[Stop(), Kill(1)], epochs=6, warm_start_epochs=2)[2].rows  # not one step more
    assert [row["phase"] for row in rows] == (
        ["warm start"] if phase == "warm start" else [*["warm start"] * 2, "train"]
    )


@pytest.mark.filterwarnings("ignore::moreauc.metrics.TiedScoresWarning")  # of the spoilt weights
def test_patience_and_a_stop_are_remembered(tmp_path):
    class StopInEpoch(Callback):
        def on_step(self, state):
            state.stop = state.stop or (state.phase == "train" and state.epoch == 1 and state.step == 1)

    def train(folder, callbacks):
        small_run(folder, callbacks=[StopInEpoch(), *callbacks], epochs=6)

    assert compare_interrupted(train, tmp_path, [13]) == []  # in the epoch, after it was told to stop
    assert [row["epoch"] for row in final(tmp_path / "parts")[-1]["others"]["history"]["state"]["rows"]] == [0, 0, 1]

    class Spoil(Callback):
        def on_epoch(self, state):
            with torch.no_grad():
                state.model[0].weight.zero_()

    valid = TensorBatches(*data(seed=1))

    def patient(folder, callbacks):
        options = {"epochs": 30, "patience": 2, "validation": valid, "warm_start_epochs": 0}
        small_run(folder, callbacks=[Spoil(), *callbacks], **options)

    (tmp_path / "patient").mkdir()
    assert compare_interrupted(patient, tmp_path / "patient", [4, 5]) == []
    rows = final(tmp_path / "patient" / "parts")[-1]["others"]["history"]["state"]["rows"]
    assert 2 <= len(rows) < 30


def test_stopped_in_the_warm_start_is_complete(tmp_path):
    class Stop(Callback):
        def on_epoch(self, state):
            state.stop = True

    first = small_run(tmp_path, callbacks=[Stop()])[2]
    again = small_run(tmp_path, callbacks=[Stop()])[2]
    assert [row["phase"] for row in first.rows] == ["warm start"] and again.rows == first.rows


def test_an_interruption_in_the_validation_repeats_it_only(tmp_path):
    """The last save is that after the epoch's last step."""
    for every in (1, 5):
        folder = tmp_path / str(every)
        folder.mkdir()
        valid, fail, steps = TensorBatches(*data(seed=1)), [0], []

        class Failing:
            def predict(self, model, device=None, valid=valid, fail=fail, folder=folder, steps=steps):
                fail[0] -= 1
                if fail[0] == 0:
                    steps.append([load_checkpoint(path) for path in Checkpoints(folder / "a").files()][-1:])
                    raise Killed
                from moreauc.train import predict_scores

                return predict_scores(model, valid)

        options = {"validation": Failing(), "every": every}
        whole = small_run(folder / "whole", **options)
        for number in (2, 2, 1):
            fail[0] = number
            with pytest.raises(Killed):
                small_run(folder / "a", **options)
        assert [[state["position"]["step"] for state in states] for states in steps][1:] == [[5], [5]]
        found = small_run(folder / "a", **options)
        assert same([part.state_dict() for part in found], [part.state_dict() for part in whole]) == []


def test_callbacks_with_a_state_get_it_back_and_others_need_none(tmp_path):
    class Count(Callback):
        def __init__(self):
            self.steps = 0

        def on_step(self, state):
            self.steps += 1

        def state_dict(self):
            return {"steps": self.steps}

        def load_state_dict(self, state):
            self.steps = state["steps"]

    class Foreign:
        """Not even a callback by its class."""

        on_begin = on_step = on_epoch = on_end = lambda self, state: None

    with pytest.raises(Killed):
        small_run(tmp_path, callbacks=[Count(), Foreign(), Count(), Kill(8)])
    with pytest.raises(
        CheckpointError, match=r"callbacks with a state must be \['Count 0'\] as in this run, got Count 1"
    ):
        small_run(tmp_path, callbacks=[Count()])
    counts = [Count(), Count()]
    small_run(tmp_path, callbacks=[*counts, Callback()])
    assert [count.steps for count in counts] == [20, 20]


def test_a_callback_that_makes_what_it_keeps_when_the_run_begins(tmp_path):
    class Average(Callback):
        def on_begin(self, state):
            self.average = torch.optim.swa_utils.AveragedModel(state.model)

        def on_step(self, state):
            self.average.update_parameters(state.model)

        def state_dict(self):
            return self.average.state_dict()

        def load_state_dict(self, state):
            self.average.load_state_dict(state)

    averages = [Average(), Average()]
    whole = small_run(tmp_path / "whole", callbacks=averages[:1], warm_start_epochs=0)
    with pytest.raises(Killed):
        small_run(tmp_path / "a", callbacks=[Average(), Kill(8)], warm_start_epochs=0)
    for _ in range(2):  # the second time the run is complete
        found = small_run(tmp_path / "a", callbacks=averages[1:], warm_start_epochs=0)
        assert same([part.state_dict() for part in found], [part.state_dict() for part in whole]) == []
    assert same(averages[1].state_dict(), averages[0].state_dict()) == []
    small_run(tmp_path / "a", callbacks=[Average()], warm_start_epochs=0)  # in another process


def test_an_optimizer_of_the_users_own_goes_on(tmp_path):
    results = []

    def train(folder, callbacks):
        model = network()
        optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.5)
        small_run(folder, model=model, optimizer=optimizer, callbacks=callbacks)
        results.append(optimizer.state_dict())

    assert compare_interrupted(train, tmp_path, [7, 9]) == []
    train(tmp_path / "parts", [Kill(1)])  # complete: put back at once
    assert same(results[-1], results[0]) == [] and same(results[1], results[0]) == []


def test_live_objects_of_a_session_go_on_after_an_interruption(tmp_path):
    """In a notebook the same cell is run again, with the objects of the first time."""

    class Slower(Callback):
        def on_epoch(self, state):
            if state.phase == "train":
                state.criterion.threshold_lr = 1.0 / (state.epoch + 2)

    whole = small_run(tmp_path / "whole", callbacks=[Slower()])
    x, y = data()
    live = {
        "model": network(),
        "criterion": TPAUCLoss(y, gamma=0.1, **REGION),
        "loader": TensorBatches(x, y, planned(y)),
    }
    for steps in (7, 8):
        with pytest.raises(Killed):
            small_run(tmp_path / "a", callbacks=[Slower(), Kill(steps)], **live)
    found = small_run(tmp_path / "a", callbacks=[Slower()], **live)
    assert same([part.state_dict() for part in found], [part.state_dict() for part in whole]) == []
    assert found[1].threshold_lr == whole[1].threshold_lr == (0.25, 0.25)
    live = {"model": network(), "criterion": TPAUCLoss(y, gamma=0.1, **REGION)}
    for steps in (12, 2):  # in one epoch, after the schedule has moved
        with pytest.raises(Killed):
            small_run(tmp_path / "b", callbacks=[Slower(), Kill(steps)], **live)
    found = small_run(tmp_path / "b", callbacks=[Slower()])  # a new session
    assert same([part.state_dict() for part in found], [part.state_dict() for part in whole]) == []


def test_a_damaged_newest_checkpoint_costs_only_its_steps(tmp_path):
    whole = small_run(tmp_path / "whole")
    with pytest.raises(Killed):
        small_run(tmp_path / "a", callbacks=[Kill(9)])
    newest = Checkpoints(tmp_path / "a").files()[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(CheckpointWarning, match="cut short; going on from"):
        found = small_run(tmp_path / "a")
    assert same([part.state_dict() for part in found], [part.state_dict() for part in whole]) == []


def test_global_generators_are_left_alone_where_a_seed_is_given(tmp_path):
    with pytest.raises(Killed):
        small_run(tmp_path, callbacks=[Kill(9)])
    random.seed(17)
    np.random.seed(17)
    torch.manual_seed(17)
    model, before = network(), torch.get_rng_state()
    others = random.getstate(), np.random.get_state()[1].tolist()
    small_run(tmp_path, model=model)
    assert torch.equal(torch.get_rng_state(), before)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == others


# What is refused


def other_labels():
    y = data()[1].clone()
    y[0], y[1] = 0, 1  # as many positives
    return y


class OtherNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = network()

    def forward(self, x):
        return self.layers(x)


def wider():
    return nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(), nn.Linear(7, 1), nn.Flatten(0))


REFUSED = {
    "names": ({"model": OtherNames}, "names of the model must be the same as in this run, got a checkpoint in which"),
    "shapes": ({"model": wider}, r"the shape of '0.weight' of the model must be \(7, 4\) as in this run, got \(6, 4\)"),
    "types": ({"model": lambda: network().double()}, "the type of '0.weight' of the model must be torch.float64 as in"),
    "labels": (
        {"labels": other_labels()},
        "labels and groups of the training set must be those of this run, got others",
    ),
    "criterion": (
        {"criterion": lambda: CrossEntropyLoss(Y)},
        "the class of the criterion must be CrossEntropyLoss as in this run, got TPAUCLoss",
    ),
    "region": (
        {"criterion": lambda: TPAUCLoss(Y, gamma=0.1, min_tpr=0.4, max_fpr=0.5)},
        "min_tpr of the criterion must be 0.4 as in this run, got 0.5",
    ),
    "rule": (
        {"criterion": lambda: TPAUCLoss(Y, gamma=0.2, **REGION)},
        "gamma of the criterion must be 0.2 as in this run, got 0.1 in the checkpoint; a run with other settings or "
        "data needs another folder",
    ),
    "optimizer": ({"optimizer": "adam"}, "the class of the optimizer must be AdamW as in this run, got SGD"),
    "lr": ({"lr": 0.1}, "lr of the run must be 0.1 as in this run, got 0.05"),
    "epochs": ({"epochs": 4}, "epochs of the run must be 4 as in this run, got 3"),
    "seed": ({"seed": 4}, "seed of the run must be 4 as in this run, got 3"),
    "validation": ({"validation": TensorBatches(*data(seed=1))}, "validation of the run must be True as in this run"),
    "sampler": (
        {"loader": lambda: TensorBatches(*data(), PosNegSampler(Y, num_positives=4, num_negatives=8, seed=1))},
        "loader.sampler.seed must be as in this run, 1, got 0: the batches would differ",
    ),
    "batch size": (
        {"loader": lambda: TensorBatches(*data(), PosNegSampler(Y, num_positives=5, num_negatives=8))},
        "loader.*length must be as in this run|num_positives must be as in this run, 5, got 4",
    ),
    "kind of loader": (
        {"loader": lambda: DataLoader(IndexedDataset(TensorDataset(*data())), batch_size=12)},
        "must be as in this run, .*: the batches would differ",
    ),
}


@pytest.mark.parametrize("phase", ["warm start", "train", "done"])
@pytest.mark.parametrize("what", REFUSED)
def test_a_checkpoint_of_another_run_is_refused_and_nothing_has_changed(what, phase, tmp_path):
    if phase == "done":
        small_run(tmp_path)
    else:
        with pytest.raises(Killed):
            small_run(tmp_path, callbacks=[Kill(3 if phase == "warm start" else 13)])
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    changed, message = REFUSED[what]
    options = {name: value() if callable(value) else value for name, value in changed.items()}
    model = options.pop("model", None) or network()
    criterion = options.pop("criterion", None) or TPAUCLoss(options.get("labels", Y), gamma=0.1, **REGION)
    before = copy.deepcopy([model.state_dict(), criterion.state_dict()])
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with pytest.raises(CheckpointError, match=f"checkpoint: {message}|checkpoint: .*{message}"):
        small_run(tmp_path, model=model, criterion=criterion, **options)
    assert same([model.state_dict(), criterion.state_dict()], before) == []
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(states[0], after[0]) and states[1:] == after[1:]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_groups_of_a_loss_are_labels(tmp_path):
    groups = torch.arange(60) % 4

    def run(groups, **options):
        criterion = GroupedLoss(GroupDROLoss(4, top_k=2), groups)
        return small_run(tmp_path, criterion=criterion, **options)

    with pytest.raises(Killed):
        run(groups, callbacks=[Kill(8)])
    with pytest.raises(CheckpointError, match="labels and groups of the training set must be those of this run"):
        run(groups.flip(0))
    run(groups)


def test_a_folder_with_checkpoints_is_not_taken_over_unasked(tmp_path):
    small_run(tmp_path, resume=False)
    with pytest.raises(ValueError, match="fit: checkpoint must hold no checkpoints where resume is False, got"):
        small_run(tmp_path, resume=False)


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    Checkpoints(tmp_path).save({"epoch": 3})
    with pytest.raises(
        CheckpointError, match="fit: checkpoint must be that of a run of fit, got another: KeyError: 'others'; the"
    ):
        small_run(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint": ""}, "checkpoint must be a path that is not empty, got ''"),
        ({"checkpoint": 5}, "checkpoint must be a path that is not empty, got 5"),
        ({"checkpoint": True}, "checkpoint must be a path that is not empty, got True"),
        ({"checkpoint": b"x"}, "checkpoint must be a path that is not empty, got b'x'"),
        ({"checkpoint": "a\0b"}, "checkpoint must be a path that is not empty, got 'a.*b'"),
        ({"checkpoint": ["x"]}, "checkpoint must be a path that is not empty, got a list"),
        ({"checkpoint": "file"}, "checkpoint must be a folder, got the file 'file'"),
        ({"checkpoint": "file/sub"}, "checkpoint must be a folder, got 'file/sub', which goes through a file"),
        ({"resume": "no"}, "resume must be True or False, got 'no'"),
        ({"resume": 0}, "resume must be True or False, got 0"),
        ({"resume": None, "checkpoint": None, "every": None}, "resume must be True or False, got None"),
        ({"resume": Path("x")}, "resume must be True or False, got a .*Path"),
        (
            {"loader": iter([1, 2])},
            "train must be an iterable that each epoch can go through anew, got a list_iterator",
        ),
        ({"every": 2.5}, "every must be an integer of at least 1, got 2.5"),
        ({"every": 0}, "every must be an integer of at least 1, got 0"),
        ({"checkpoint": None, "every": 1}, "every must be None without checkpoint, got 1"),
    ],
)
def test_mistakes_with_checkpoints_change_nothing(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    model = network()
    with pytest.raises(ValueError, match=f"^fit: {message}") as caught:
        small_run("folder", model=model, device="meta", **options)
    assert next(model.parameters()).device.type == "cpu"  # it has not been moved either
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    if "goes through" in message:
        assert isinstance(caught.value.__cause__, NotADirectoryError)


def test_what_cannot_be_saved_is_said_before_the_first_step(tmp_path, monkeypatch):
    class Odd(Callback):
        def state_dict(self):
            return {"what": object()}

    with pytest.raises(CheckpointError, match=r"state\['others'\]\['callbacks'\].*\['what'\] must be a plain tensor"):
        small_run(tmp_path / "a", callbacks=[Odd(), Kill(1)])
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the tests may run as somebody who may write anywhere
    with pytest.raises(PermissionError, match="fit: checkpoint must be a folder that can be written to"):
        small_run(tmp_path / "a", callbacks=[Kill(1)])


class Mine(TPAUCLoss):
    """A loss of somebody else's that is one of ours."""


def test_schedules_of_derived_losses_are_remembered(tmp_path):
    class Slower(Callback):
        def on_step(self, state):
            if state.phase == "train":
                state.criterion.threshold_lr = 1.0 / (state.step + 2)

    def train(folder, callbacks):
        small_run(folder, criterion=Mine(Y, gamma=0.1, **REGION), callbacks=[Slower(), *callbacks])

    assert compare_interrupted(train, tmp_path, [8, 4]) == []


class Unsaved(nn.Module):
    """Has buffers that it does not save itself; one of them changes its size."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.register_buffer("last", torch.zeros(0), persistent=False)

    def forward(self, x):
        self.seen += len(x)
        self.last = x[:, 0].detach().clone()
        return self.layer(x).squeeze(1) * (1 + 0.001 * self.seen)


def test_buffers_that_a_model_does_not_save_are_saved(tmp_path):
    def train(folder, callbacks):
        criterion = AUCMinMaxLoss(Y)
        small_run(folder, model=Unsaved(), criterion=criterion, callbacks=callbacks)

    assert compare_interrupted(train, tmp_path, [7, 4]) == []
    assert final(tmp_path / "parts")[-1]["model"]["other_buffers"]["seen"] == 20 * 12


class WithExtra(nn.Module):
    """Keeps a number as torch lets modules keep what is no tensor."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 1), 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x).squeeze(1) * (1 + 0.01 * self.calls)

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


def test_extra_state_of_a_model_is_saved(tmp_path):
    def train(folder, callbacks):
        small_run(folder, model=WithExtra(), criterion=AUCMinMaxLoss(Y), callbacks=callbacks)

    assert compare_interrupted(train, tmp_path, [7, 4]) == []
