"""A run that was interrupted and goes on is, to the last bit, the run that was not."""

from __future__ import annotations

import copy
import importlib
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conformance import CASES
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from moreauc import PreviousIterate, TPAUCLoss
from moreauc.callbacks import Callback
from moreauc.checkpoint import CheckpointError, Checkpoints, CheckpointWarning, RunState, load_checkpoint
from moreauc.criteria import AUCMinMaxLoss, CrossEntropyLoss, GroupDROLoss, GroupedLoss
from moreauc.data import BagBatches, IndexedDataset, ListBags, TensorBatches
from moreauc.optim import ProximalPoint
from moreauc.samplers import PosNegSampler
from moreauc.train import fit

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
torture = importlib.import_module("torture")
runs = importlib.import_module("torture_runs")
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
    assert states[-1]["others"]["fit"]["state"]["phase"] == "done"
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


# Loaders


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


class Noisy(Dataset):
    """Draws from all three global generators, in the process that reads it."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        noise = 0.1 * torch.randn(4) + 0.1 * random.random() + 0.1 * float(np.random.rand())
        return self.x[row] + noise, int(self.y[row]), row


class OwnGenerators(Noisy):
    """Draws from generators of its own, of all kinds."""

    def __init__(self, x, y):
        super().__init__(x, y)
        self.first, self.second = torch.Generator().manual_seed(1), np.random.default_rng(2)
        self.third, self.fourth = random.Random(3), np.random.RandomState(4)
        self.fifth = np.random.Generator(np.random.MT19937(5))

    def __getitem__(self, row):
        numbers = [self.second.normal(), self.third.random(), self.fourth.rand(), self.fifth.random()]
        return self.x[row] + torch.randn(4, generator=self.first) + 0.1 * sum(numbers), int(self.y[row]), row


class Stream(IterableDataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        for row in torch.randperm(len(self.x)).tolist():
            yield self.x[row], int(self.y[row]), row


class ListOfBatches:
    """A loader without anything but batches."""

    def __init__(self, x, y):
        self._batches = [(x[rows], y[rows], rows) for rows in torch.arange(len(y)).split(12)]

    def __iter__(self):
        return iter(self._batches)


def planned(y):
    return PosNegSampler(y, num_positives=4, num_negatives=8)


LOADERS = {
    "tensors, planned": lambda x, y: TensorBatches(x, y, planned(y)),
    "tensors, in order": lambda x, y: TensorBatches(x, y, batch_size=12),
    "tensors, random sampler with a generator": lambda x, y: TensorBatches(
        x, y, BatchSampler(RandomSampler(range(60), generator=torch.Generator().manual_seed(1)), 12, False)
    ),
    "tensors, random sampler without": lambda x, y: TensorBatches(
        x, y, BatchSampler(RandomSampler(range(60)), 12, False)
    ),
    "loader, planned": lambda x, y: DataLoader(Noisy(x, y), batch_sampler=planned(y)),
    "loader, shuffled": lambda x, y: DataLoader(Noisy(x, y), batch_size=12, shuffle=True),
    "loader, shuffled by a generator": lambda x, y: DataLoader(
        Noisy(x, y), batch_size=12, shuffle=True, generator=torch.Generator().manual_seed(8)
    ),
    "loader, generators of the data set": lambda x, y: DataLoader(OwnGenerators(x, y), batch_sampler=planned(y)),
    "workers, planned": lambda x, y: DataLoader(Noisy(x, y), batch_sampler=planned(y), num_workers=2),
    "workers, shuffled": lambda x, y: DataLoader(Noisy(x, y), batch_size=12, shuffle=True, num_workers=1),
    "workers that stay": lambda x, y: DataLoader(
        IndexedDataset(TensorDataset(x, y)), batch_size=12, shuffle=True, num_workers=2, persistent_workers=True
    ),
    "stream": lambda x, y: DataLoader(Stream(x, y), batch_size=12),
    "stream by a worker": lambda x, y: DataLoader(Stream(x, y), batch_size=12, num_workers=1),
    "batches": ListOfBatches,
}


@pytest.mark.parametrize("kind", LOADERS)
def test_every_kind_of_loader_comes_back_to_its_place(kind, tmp_path):
    x, y = data()

    def train(folder, callbacks):
        criterion = CrossEntropyLoss(y)  # takes batches of one class
        options = {"epochs": 4, "lr": 0.05, "milestones": [2], "proximal": 0.1, "every": 1, "seed": None}
        loader = LOADERS[kind](x, y)
        try:
            fit(network(), criterion, loader, callbacks=callbacks, checkpoint=folder, **options)
        finally:
            if getattr(loader, "persistent_workers", False):  # or the garbage collector waits seconds for each
                loader._iterator._shutdown_workers()

    assert compare_interrupted(train, tmp_path, [2, 3, 6]) == []


def test_bags_in_memory_go_to_the_place_at_once(tmp_path):
    x, y = data()
    bags = ListBags([torch.stack([row, row + 1, row - 1, 2 * row]) for row in x], y.tolist())
    read = []

    class Counting(ListBags):
        def instances(self, bag, rows=None):
            read.append(bag)
            return super().instances(bag, rows)

    counting = Counting([bags.instances(bag) for bag in range(60)], y.tolist())

    def train(folder, callbacks):
        from moreauc import MultiInstanceTPAUCLoss

        loader = BagBatches(counting, planned(y), instances_per_bag=2)
        criterion = MultiInstanceTPAUCLoss(y, pooling="mean", gamma=0.1, **REGION)
        fit(network(), criterion, loader, epochs=2, callbacks=callbacks, checkpoint=folder, every=1, seed=1)

    assert compare_interrupted(train, tmp_path, [3]) == []
    # Twice ten steps of twelve bags, and one step between the last save and the kill: none was read to be passed over.
    assert len(read) == 12 * (10 + 10 + 1)


def test_a_sampler_is_left_at_the_beginning_of_an_epoch(tmp_path):
    x, y = data()
    sampler = planned(y)
    for steps in (3, 0):
        try:
            fit(
                network(),
                CrossEntropyLoss(y),
                TensorBatches(x, y, sampler),
                callbacks=[Kill(steps)],
                epochs=1,
                every=1,
                checkpoint=tmp_path,
            )
        except Killed:
            sampler = planned(y)
    assert (sampler.epoch, sampler.start, len(list(sampler))) == (0, 0, 5)


def test_a_shorter_loader_is_refused_when_it_comes_to_the_place(tmp_path):
    x, y = data()
    loader = ListOfBatches(x, y)
    options = {"epochs": 2, "every": 1, "checkpoint": tmp_path, "seed": 1}
    with pytest.raises(Killed):
        fit(network(), CrossEntropyLoss(y), loader, callbacks=[Kill(4)], **options)
    loader._batches = loader._batches[:2]
    with pytest.raises(CheckpointError, match="must give the 3 batches that were used of epoch 0, got 2"):
        fit(network(), CrossEntropyLoss(y), loader, **options)


# The run as a whole


def small_run(folder, *, model=None, criterion=None, loader=None, callbacks=(), labels=None, **options):
    x, y = data()
    y = y if labels is None else labels
    chosen = {"epochs": 3, "lr": 0.05, "every": 1, "seed": 3, "checkpoint": folder, "warm_start_epochs": 1}
    model = network() if model is None else model
    criterion = TPAUCLoss(y, gamma=0.1, **REGION) if criterion is None else criterion
    loader = TensorBatches(x, y, planned(y)) if loader is None else loader
    history = fit(model, criterion, loader, callbacks=callbacks, **{**chosen, **options})
    return model, criterion, history


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
    from moreauc._judge import Judge

    with monkeypatch.context() as patch:
        patch.setattr(Judge, "finish", lambda self, state: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            small_run(tmp_path / "a", validation=valid)
    found = small_run(tmp_path / "a", validation=valid)
    assert same([part.state_dict() for part in found], [part.state_dict() for part in whole]) == []


@pytest.mark.parametrize("phase", ["warm start", "train"])
def test_killed_after_the_epoch_that_told_to_stop(phase, tmp_path, monkeypatch):
    from moreauc._fit_checkpoint import Kept

    class Stop(Callback):
        def on_epoch(self, state):
            state.stop = state.phase == phase

    with monkeypatch.context() as patch:
        patch.setattr(Kept, "finish", lambda self: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            small_run(tmp_path, callbacks=[Stop()], epochs=6, warm_start_epochs=2)
    rows = small_run(tmp_path, callbacks=[Stop(), Kill(1)], epochs=6, warm_start_epochs=2)[2].rows  # not one step more
    assert [row["phase"] for row in rows] == (
        ["warm start"] if phase == "warm start" else [*["warm start"] * 2, "train"]
    )


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
    assert compare_interrupted(patient, tmp_path / "patient", [6, 7]) == []
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
    """The last save is that after the epoch's last step but one, or, with every=5, of the epoch before."""
    for every in (1, 5):
        folder = tmp_path / str(every)
        folder.mkdir()
        valid, fail = TensorBatches(*data(seed=1)), [0]

        class Failing:
            def predict(self, model, device=None, valid=valid, fail=fail):
                fail[0] -= 1
                if fail[0] == 0:
                    raise Killed
                from moreauc.train import predict_scores

                return predict_scores(model, valid)

        options = {"validation": Failing(), "every": every}
        whole = small_run(folder / "whole", **options)
        for number in (2, 2, 1):
            fail[0] = number
            with pytest.raises(Killed):
                small_run(folder / "a", **options)
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
    torch.manual_seed(17)
    model, before = network(), torch.get_rng_state()
    small_run(tmp_path, model=model)
    assert torch.equal(torch.get_rng_state(), before)


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


Y = data()[1]
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
        r"table_u.rule of the criterion must be .*'gamma': 0.2.* as in this run, got .*'gamma': 0.1",
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
        {"loader": lambda: DataLoader(Noisy(*data()), batch_size=12)},
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


def test_wrong_arguments_are_named(tmp_path):
    with pytest.raises(ValueError, match="fit: every must be an integer of at least 1, got 0"):
        small_run(tmp_path, every=0)
    with pytest.raises(ValueError, match="fit: every must be None without checkpoint, got 1"):
        small_run(None)
    Checkpoints(tmp_path).save({"epoch": 3})
    with pytest.raises(CheckpointError, match="fit: checkpoint must be that of a run of fit, got one without 'others'"):
        small_run(tmp_path)


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


def test_a_state_that_is_no_run_is_refused(tmp_path):
    x, y = data()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = RunState(model, CrossEntropyLoss(y), optimizer, TensorBatches(x, y))
    state = copy.deepcopy(run.state_dict())
    state["place"]["step"] = 2
    with pytest.raises(CheckpointError, match="checkpoint: random_at_epoch must be there in the middle of an epoch"):
        run.load_state_dict(state)
    for state in ({}, {"model": 3}, {**run.state_dict(), "place": None}, {**run.state_dict(), "optimizers": [{}]}):
        with pytest.raises(CheckpointError, match="checkpoint: state must be that of a RunState, got another"):
            run.load_state_dict(state)


# A loop of one's own


class Values(nn.Module):
    """A model of numbers: scales and shifts what a batch of the conformance tests holds."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(1.3)), nn.Parameter(torch.tensor(0.1))
        self.drop = nn.Dropout(0.2)

    def forward(self, value):
        return self.drop(self.scale * value + self.shift)


def case_run(case):
    model, criterion = Values(), case.build()
    learned = [*model.parameters(), *criterion.parameters()]
    optimizer = torch.optim.SGD(learned, lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12)
    previous = PreviousIterate(model, optimizer) if getattr(criterion, "needs_previous", False) else None
    proximal = ProximalPoint(optimizer, 0.1)
    return RunState(model, criterion, optimizer, range(6), previous=previous, proximal=proximal, scheduler=scheduler)


def case_train(case, run, *, stop=12):
    """Two epochs of six steps; returns the state after some of them."""
    done = 6 * run.epoch + run.step
    for epoch in range(run.epoch, 2):
        for step in run.batches(epoch):
            if done == stop:
                pytest.fail("went too far")
            batch = case.batch(6 * epoch + step)
            now, *before = case.values
            value = batch.pop(now)
            arguments = {now: run.model(value), **batch}
            if before and run.previous is not None:
                arguments[before[0]] = run.previous(value)
            run.optimizer.zero_grad()
            run.criterion(**arguments).backward()
            run.optimizer.step()
            run.scheduler.step()
            done += 1
            if done == stop:
                return run.state_dict()
    return run.state_dict()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_loss_goes_on_in_a_loop_of_ones_own(case, tmp_path):
    torch.manual_seed(0)
    whole = copy.deepcopy(case_train(case, case_run(case)))
    for stop in (1, 4, 6, 11):
        torch.manual_seed(0)
        checkpoints = Checkpoints(tmp_path / str(stop))
        checkpoints.save(case_train(case, case_run(case), stop=stop))
        torch.manual_seed(1)
        run = case_run(case)
        run.load_state_dict(checkpoints.load())
        assert (run.epoch, run.step) == divmod(stop, 6) if stop != 6 else (0, 6)
        assert same(case_train(case, run), whole) == []


def scaled_run():
    x, y = data()
    model = network()
    optimizers = [torch.optim.AdamW(model[:3].parameters(), 0.01), torch.optim.SGD(model[3:].parameters(), 0.1)]
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    run = RunState(model, CrossEntropyLoss(y), optimizers, TensorBatches(x, y, planned(y)), scaler=scaler)
    return run, scaler


def test_several_optimizers_and_a_gradient_scaler():
    run, scaler = scaled_run()
    for inputs, labels, index in run.batches(0):
        scaler.scale(run.criterion(run.model(inputs), labels, index)).backward()
        for optimizer in run.optimizer:
            scaler.step(optimizer)
        scaler.update(new_scale=128.0 + run.step)
    state = copy.deepcopy(run.state_dict())
    again, scaler = scaled_run()
    again.load_state_dict(state)
    assert scaler.get_scale() == 133.0 and same(again.state_dict(), state) == []
    alone = RunState(run.model, run.criterion, run.optimizer[0], TensorBatches(*data(), planned(Y)))
    with pytest.raises(CheckpointError, match="the number of optimizers must be 1 as in this run, got 2"):
        alone.check(state)
    without = RunState(run.model, run.criterion, run.optimizer, TensorBatches(*data(), planned(Y)))
    with pytest.raises(CheckpointError, match="scaler must be absent as in this run, got a checkpoint with it"):
        without.check(state)
    disabled = RunState(
        *(run.model, run.criterion, run.optimizer, TensorBatches(*data(), planned(Y))),
        scaler=torch.amp.GradScaler("cpu", enabled=False),
    )
    with pytest.raises(CheckpointError, match="names of the scaler must be"):
        disabled.check(state)


def parts_run(width=6, **options):
    x, y = data()
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return RunState(model, CrossEntropyLoss(y), optimizer, TensorBatches(x, y), **options), model, optimizer


def test_optimizers_and_other_parts_of_another_kind_are_refused():
    run, _model, optimizer = parts_run()
    state = run.state_dict()
    optimizer.param_groups[0]["lr"] = 0.2
    with pytest.raises(CheckpointError, match=r"lr of group 0 of the optimizer must be 0.2 as in this run, got 0.1"):
        run.check(state)
    optimizer.param_groups[0]["lr"] = 0.1
    frozen, model, _ = parts_run()
    frozen.optimizer = torch.optim.SGD(list(model.parameters())[:2], 0.1)
    with pytest.raises(CheckpointError, match="the shapes of the parameters of the optimizer must be"):
        frozen.check(state)
    other, _, _ = parts_run(others={"average": Part()})
    with pytest.raises(
        CheckpointError, match="average of others must be there as in this run, got a checkpoint without"
    ):
        other.check(state)
    with pytest.raises(CheckpointError, match="average of others must be absent as in this run, got a checkpoint with"):
        run.check(other.state_dict())
    named, _, _ = parts_run(others={"average": Failing()})
    with pytest.raises(CheckpointError, match="the class of the average must be Failing as in this run, got Part"):
        named.check(other.state_dict())


class Part:
    value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Failing(Part):
    def load_state_dict(self, state):
        if state["value"] == 13:
            raise RuntimeError("not thirteen")
        super().load_state_dict(state)


def test_a_part_that_fails_while_loading_leaves_everything_as_before():
    part, failing = Part(), Failing()
    run, _, _ = parts_run(others={"a": part, "b": failing})
    state = copy.deepcopy(run.state_dict())
    state["others"]["a"]["state"]["value"] = 7
    state["others"]["b"]["state"]["value"] = 13
    for tensor in state["model"]["state"].values():
        tensor.add_(1.0)
    before = copy.deepcopy(run.state_dict())
    with pytest.raises(CheckpointError, match="a part refuses its state: RuntimeError: not thirteen"):
        run.load_state_dict(state)
    assert same(run.state_dict(), before) == [] and part.value == 0
    state["others"]["b"]["state"]["value"] = 14
    run.load_state_dict(state)
    assert (part.value, failing.value) == (7, 14)


def test_previous_weights_and_reference_point_of_another_model_are_refused():
    run, model, optimizer = parts_run()
    run.previous, run.proximal = PreviousIterate(model, optimizer), ProximalPoint(optimizer, 0.1)
    state = copy.deepcopy(run.state_dict())
    run.check(state)
    for weights, message in [
        ({"9.weight": torch.zeros(1)}, "names of the previous weights must be those of the model as in this run"),
        ({"0.bias": torch.zeros(1)}, "the shape of '0.bias' of the previous weights must be"),
    ]:
        state["previous"]["state"]["weights"] = weights
        with pytest.raises(CheckpointError, match=message):
            run.check(state)
    state["previous"]["state"]["weights"] = {}
    state["proximal"]["state"]["average"].pop()
    with pytest.raises(CheckpointError, match="the shapes of the average of the proximal point must be"):
        run.check(state)


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


def test_wrapped_models_leave_no_trace(tmp_path):
    model = network()
    compiled = torch.compile(network(), backend="eager")
    x, y = data()
    states = []
    for module in (model, compiled):
        run = RunState(module, CrossEntropyLoss(y), torch.optim.SGD(module.parameters(), 0.1), TensorBatches(x, y))
        states.append(run.state_dict()["model"])
        run.load_state_dict(copy.deepcopy(run.state_dict()))
    assert states[0]["state"].keys() == states[1]["state"].keys() and same(*states) == []


def test_generators_of_missing_gpus_are_told(caplog, monkeypatch):
    from moreauc._generators import random_states, set_random_states

    state = random_states()
    assert state["cuda"] == [] or torch.cuda.is_initialized()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    set_random_states({**state, "cuda": [torch.zeros(16, dtype=torch.uint8)]})
    assert "generators of 1 GPUs and there are 0" in caplog.text
    seen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda value, number: seen.append((value.tolist(), number)))
    set_random_states({**state, "cuda": [torch.ones(2, dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8)]})
    assert seen == [([1, 1], 0)] and "generators of 2 GPUs and there are 1" in caplog.text
