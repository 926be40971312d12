"""A resumed run of `fit` equals the uninterrupted one, bit for bit, whatever its parts; mistakes change nothing."""

from __future__ import annotations

import copy
import errno
import os
import random
import stat
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
    small_run,
)
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from moreauc import MultiInstanceTPAUCLoss, TPAUCLoss, _system
from moreauc.checkpoint import CheckpointError, Checkpoints, RunState, load_checkpoint, save_checkpoint
from moreauc.criteria import AUCMinMaxLoss, CrossEntropyLoss
from moreauc.data import BagBatches, IndexedDataset, ListBags, TensorBatches
from moreauc.train import Callback, fit, predict_scores
from moreauc.train.checkpointer import Checkpointer
from moreauc.train.selection import ModelSelector

X, Y = data()


@pytest.mark.parametrize("name", ["rows: sonx", "rows: auc_m", "bags: sont_att", "bags: midam_att", "groups: sonx"])
def test_every_kind_of_method_is_resumed_bit_for_bit(name, tmp_path):
    """Interrupted in the warm start, in the middle of epochs, at their ends, and between two saves."""

    def train(folder, callbacks):
        runs.train(name, folder, workers=0, every=2, callbacks=[*callbacks, runs.Decay()])

    assert compare_interrupted(train, tmp_path, [3, 5, 6]) == []


def states(run):
    return [part.state_dict() for part in run]


def test_saving_changes_nothing(tmp_path):
    assert same(states(small_run(tmp_path)), states(small_run(None, every=None))) == []


# Parts of a run, each resumed bit for bit


class Mine(TPAUCLoss):
    """A user's loss that is derived from one of the library."""


class Slower(Callback):
    def on_step(self, state):
        if state.phase == "train":
            state.criterion.threshold_lr = 1.0 / (state.step + 2)


class StopInEpoch(Callback):
    def on_step(self, state):
        state.stop = state.stop or (state.phase == "train" and state.epoch == 1 and state.step == 1)


class Spoil(Callback):
    def on_epoch(self, state):
        with torch.no_grad():
            state.model[0].weight.zero_()


class Freeze(Callback):
    def on_epoch(self, state):
        if state.phase == "train":
            for name, weight in state.model.named_parameters():
                weight.requires_grad_((state.epoch % 2 == 0) == name.startswith("4."))


class Late(nn.Module):
    """Makes buffers in the first step, some not persistent; has an extra state, and a generator of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layer, self.calls = nn.Linear(4, 1), 0
        self.inner = nn.Module()
        self.inner.register_buffer("mean", None)
        self.register_buffer("cache", None, persistent=False)
        self.register_buffer("last", torch.zeros(0), persistent=False)
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.generator = torch.Generator().manual_seed(9)

    def forward(self, inputs):
        if self.training:
            self.calls += 1
            now = inputs.detach().mean(0)
            self.inner.mean = now if self.inner.mean is None else 0.9 * self.inner.mean + 0.1 * now
            self.cache = now if self.cache is None else self.cache + now
            inputs = inputs + torch.randn(inputs.shape, generator=self.generator) + self.cache + self.last.sum()
            self.last = 0.1 * now
            self.seen += len(inputs)
        mean = 0.0 if self.inner.mean is None else self.inner.mean
        return self.layer(inputs - mean).squeeze(1) * (1 + 0.01 * self.calls + 0.001 * self.seen)

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


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


def own_optimizer():
    model = network()
    return {"model": model, "optimizer": torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.5)}


def single_precision():
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)).bfloat16()
    with torch.no_grad():
        model[0].weight.fill_(0.5)
        model[0].bias.fill_(0.25)
    loader = TensorBatches(X.bfloat16(), Y, planned(Y))
    optimizer = Master(model.parameters(), {"lr": 0.01})
    parts = {"model": model, "loader": loader, "optimizer": optimizer, "criterion": CrossEntropyLoss(Y)}
    return {**parts, "warm_start_epochs": 0}


def patient():
    options = {"epochs": 30, "patience": 2, "validation": TensorBatches(*data(seed=1)), "warm_start_epochs": 0}
    return {**options, "callbacks": [Spoil()]}


PARTS = {
    "optimizer of the user": (own_optimizer, [7, 9]),
    "types of the optimizer's tensors": (single_precision, [3, 4]),
    "schedule of a derived loss": (
        lambda: {"criterion": Mine(Y, gamma=0.1, **REGION), "callbacks": [Slower()]},
        [8, 4],
    ),
    "late buffers, extra state and generators": (lambda: {"model": Late(), "criterion": AUCMinMaxLoss(Y)}, [3, 4, 6]),
    "frozen weights": (lambda: {"callbacks": [Freeze()], "epochs": 4}, [12, 6, 2]),
    "a stop in an epoch": (lambda: {"callbacks": [StopInEpoch()], "epochs": 6}, [13]),
    "patience": (patient, [4, 5]),
}


@pytest.mark.filterwarnings("ignore::moreauc.metrics.TiedScoresWarning")  # of the spoilt weights
@pytest.mark.parametrize("what", PARTS)
def test_every_part_is_resumed_bit_for_bit(what, tmp_path):
    make, interruptions = PARTS[what]

    def train(place, callbacks):
        options = make()
        small_run(place, **{**options, "callbacks": [*options.get("callbacks", ()), *callbacks]})

    assert compare_interrupted(train, tmp_path, interruptions) == []
    rows = final(tmp_path / "parts")[-1]["others"]["history"]["state"]["rows"]
    assert what != "a stop in an epoch" or [row["epoch"] for row in rows] == [0, 0, 1]
    assert what != "patience" or 2 <= len(rows) < 30


# Loaders


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
    """A loader with nothing but batches."""

    def __init__(self, x, y):
        self._batches = [(x[rows], y[rows], rows) for rows in torch.arange(len(y)).split(12)]

    def __iter__(self):
        return iter(self._batches)


def sampled(generator=None):
    return BatchSampler(RandomSampler(range(60), generator=generator), 12, False)


LOADERS = {
    "tensors, planned": lambda x, y: TensorBatches(x, y, planned(y)),
    "tensors, sampler with a generator": lambda x, y: TensorBatches(x, y, sampled(torch.Generator().manual_seed(1))),
    "loader, shuffled by a generator": lambda x, y: DataLoader(
        Noisy(x, y), batch_size=12, shuffle=True, generator=torch.Generator().manual_seed(8)
    ),
    "loader, generators of the data set": lambda x, y: DataLoader(OwnGenerators(x, y), batch_sampler=planned(y)),
    "workers, planned": lambda x, y: DataLoader(Noisy(x, y), batch_sampler=planned(y), num_workers=2),
    "persistent workers": lambda x, y: DataLoader(
        IndexedDataset(TensorDataset(x, y)), batch_size=12, shuffle=True, num_workers=2, persistent_workers=True
    ),
    "stream by a worker": lambda x, y: DataLoader(Stream(x, y), batch_size=12, num_workers=1),
    "batches": ListOfBatches,
}


@pytest.mark.parametrize("kind", LOADERS)
def test_every_kind_of_loader_is_resumed_bit_for_bit(kind, tmp_path):
    def train(place, callbacks):
        options = {"epochs": 3, "lr": 0.05, "milestones": [2], "proximal": 0.1, "every": 1, "seed": None}
        loader = LOADERS[kind](X, Y)
        try:  # cross entropy takes batches of one class
            fit(network(), CrossEntropyLoss(Y), loader, callbacks=callbacks, checkpoint=place, **options)
        finally:
            if getattr(loader, "persistent_workers", False):  # or the garbage collector waits seconds for each
                loader._iterator._shutdown_workers()

    # after 2 steps, after the 5 of the first epoch, and after 3 of the second
    assert compare_interrupted(train, tmp_path, [3, 4, 4]) == []


def test_bags_in_memory_are_not_read_to_be_skipped(tmp_path):
    read = []

    class Counting(ListBags):
        def instances(self, bag, rows=None):
            read.append(bag)
            return super().instances(bag, rows)

    counting = Counting([torch.stack([row, row + 1, row - 1, 2 * row]) for row in X], Y.tolist())

    def train(place, callbacks):
        loader = BagBatches(counting, planned(Y), instances_per_bag=2)
        criterion = MultiInstanceTPAUCLoss(Y, pooling="mean", gamma=0.1, **REGION)
        fit(network(), criterion, loader, epochs=2, callbacks=callbacks, checkpoint=place, every=1, seed=1)

    assert compare_interrupted(train, tmp_path, [3]) == []
    assert len(read) == 12 * (10 + 10 + 1)  # two runs of ten steps, and one step between the last save and the kill


def test_a_sampler_is_left_at_the_beginning_of_an_epoch(tmp_path):
    with pytest.raises(Killed):
        small_run(tmp_path, callbacks=[Kill(3)], epochs=1, warm_start_epochs=0)
    sampler = planned(Y)
    small_run(tmp_path, loader=TensorBatches(X, Y, sampler), epochs=1, warm_start_epochs=0)
    assert (sampler.epoch, sampler.start, len(list(sampler))) == (0, 0, 5)


def test_a_shorter_loader_is_refused_when_its_batches_are_skipped(tmp_path):
    loader = ListOfBatches(X, Y)
    options = {"criterion": CrossEntropyLoss(Y), "loader": loader, "warm_start_epochs": 0}
    with pytest.raises(Killed):
        small_run(tmp_path, callbacks=[Kill(4)], **options)
    loader._batches = loader._batches[:2]
    with pytest.raises(CheckpointError, match="step 3 in epoch 0, and the loader gives 2 batches"):
        small_run(tmp_path, **options)


# The end of a run


@pytest.mark.parametrize("kill", [5, 15, 20])
def test_a_complete_run_is_restored_and_not_run_again(kill, tmp_path):
    """At whatever step it was interrupted, the last of an epoch included."""
    optimizers = []

    def run(place, **options):
        parts = own_optimizer()
        optimizers.append(parts["optimizer"])
        return small_run(place, **parts, **options)

    whole = run(tmp_path / "whole")
    with pytest.raises(Killed):
        run(tmp_path / "a", callbacks=[Kill(kill)])
    run(tmp_path / "a")
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    again = run(tmp_path / "a", callbacks=[Kill(1)])
    assert same(states(again), states(whole)) == []
    assert same(optimizers[-1].state_dict(), optimizers[0].state_dict()) == []
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == files


def killed(*_):
    raise Killed


def test_killed_between_the_last_epoch_and_the_end(tmp_path, monkeypatch):
    valid = TensorBatches(*data(seed=1))
    whole = small_run(tmp_path / "whole", validation=valid)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(ModelSelector, "restore_best", killed)
        small_run(tmp_path / "a", validation=valid)
    assert same(states(small_run(tmp_path / "a", validation=valid)), states(whole)) == []


@pytest.mark.parametrize("phase", ["warm start", "train"])
def test_killed_after_the_epoch_in_which_a_callback_stopped_the_run(phase, tmp_path, monkeypatch):
    class Stop(Callback):
        def on_epoch(self, state):
            state.stop = state.phase == phase

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Checkpointer, "on_end", killed)
        small_run(tmp_path, callbacks=[Stop()], epochs=6, warm_start_epochs=2)
    for _ in range(2):  # not one step more, and the second time the run is complete
        rows = small_run(tmp_path, callbacks=[Stop(), Kill(1)], epochs=6, warm_start_epochs=2)[2].rows
        assert [row["phase"] for row in rows] == (["warm start"] * (1 + (phase == "train")) + ["train"])[: len(rows)]
        assert len(rows) == (1 if phase == "warm start" else 3)


@pytest.mark.parametrize("every", [1, 5])
def test_an_interruption_in_the_validation_repeats_it_only(every, tmp_path):
    """The last save is that after the epoch's last step."""
    valid, fail, steps = TensorBatches(*data(seed=1)), [0], []

    class Failing:
        def predict(self, model, device=None):
            fail[0] -= 1
            if fail[0] == 0:
                steps.append([load_checkpoint(path) for path in Checkpoints(tmp_path / "a").files()][-1:])
                raise Killed
            return predict_scores(model, valid)

    options = {"validation": Failing(), "every": every}
    whole = small_run(tmp_path / "whole", **options)
    for number in (2, 2, 1):
        fail[0] = number
        with pytest.raises(Killed):
            small_run(tmp_path / "a", **options)
    assert [[state["position"]["step"] for state in saved] for saved in steps][1:] == [[5], [5]]
    assert same(states(small_run(tmp_path / "a", **options)), states(whole)) == []


# Callbacks and live objects


class Average(Callback):
    """Makes its state when the run begins."""

    def on_begin(self, state):
        self.average = torch.optim.swa_utils.AveragedModel(state.model)

    def on_step(self, state):
        self.average.update_parameters(state.model)

    def state_dict(self):
        return self.average.state_dict()

    def load_state_dict(self, state):
        self.average.load_state_dict(state)


class Foreign:
    """Not derived from Callback."""

    on_begin = on_step = on_epoch = on_end = lambda self, state: None


def test_callbacks_with_a_state_get_it_back_and_others_need_none(tmp_path):
    averages = [Average() for _ in range(4)]
    whole = small_run(tmp_path / "whole", callbacks=averages[:2], warm_start_epochs=0)
    with pytest.raises(Killed):
        small_run(tmp_path / "a", callbacks=[Average(), Foreign(), Average(), Kill(8)], warm_start_epochs=0)
    with pytest.raises(CheckpointError, match="callback Average 1"):
        small_run(tmp_path / "a", callbacks=[Average()], warm_start_epochs=0)
    for _ in range(2):  # the second time the run is complete
        found = small_run(tmp_path / "a", callbacks=[*averages[2:], Callback()], warm_start_epochs=0)
        assert same(states(found), states(whole)) == []
    assert all(same(one.state_dict(), averages[0].state_dict()) == [] for one in averages)
    small_run(tmp_path / "a", callbacks=[Average()], warm_start_epochs=0)  # in another process


@pytest.mark.parametrize(("kills", "new_session"), [((7, 8), False), ((12, 2), True)])
def test_live_objects_of_a_session_are_resumed_after_an_interruption(kills, new_session, tmp_path):
    """In a notebook the same cell is run again, with the objects of the first time."""

    class EachEpoch(Callback):
        def on_epoch(self, state):
            if state.phase == "train":
                state.criterion.threshold_lr = 1.0 / (state.epoch + 2)

    whole = small_run(tmp_path / "whole", callbacks=[EachEpoch()])
    live = {"model": network(), "criterion": TPAUCLoss(Y, gamma=0.1, **REGION)}
    live |= {} if new_session else {"loader": TensorBatches(X, Y, planned(Y))}
    for steps in kills:
        with pytest.raises(Killed):
            small_run(tmp_path / "a", callbacks=[EachEpoch(), Kill(steps)], **live)
    found = small_run(tmp_path / "a", callbacks=[EachEpoch()], **({} if new_session else live))
    assert same(states(found), states(whole)) == []
    assert found[1].threshold_lr == whole[1].threshold_lr == (0.25, 0.25)


# Buffers that are made late


def late_run():
    model = Late()
    return RunState(model, CrossEntropyLoss(Y), torch.optim.SGD(model.parameters(), 0.1), range(3))


def test_a_late_buffer_is_none_again_after_an_error():
    run = late_run()
    run.model(X)
    state = copy.deepcopy(run.state_dict())
    state["position"]["random"]["torch"] = torch.zeros(3, dtype=torch.uint8)
    fresh = late_run()
    before = copy.deepcopy(fresh.state_dict())
    with pytest.raises(CheckpointError, match="a state that a part refuses"):
        fresh.load_state_dict(state)
    assert fresh.model.inner.mean is None and same(fresh.state_dict()["model"]["state"], before["model"]["state"]) == []


def test_a_module_of_nothing_but_a_late_buffer():
    class Only(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", None)

    weight = nn.Parameter(torch.zeros(1))
    first, second = (RunState(Only(), CrossEntropyLoss(Y), torch.optim.SGD([weight], 0.1), range(3)) for _ in range(2))
    first.model.mean = torch.ones(2)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.model.mean.tolist() == [1.0, 1.0]


# Damaged and altered checkpoints


@pytest.fixture(scope="module")
def killed_in_training(tmp_path_factory):
    place = tmp_path_factory.mktemp("killed")
    with pytest.raises(Killed):
        small_run(place, callbacks=[Kill(8)])
    return place


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["others"]["loop"]["state"].update(phase="x"), "checkpoint has phase 'x'"),
        (lambda s: s["position"].update(epoch=9), "epoch 9, this run has at most 4"),
        (lambda s: s["position"].update(epoch=-1), "checkpoint has epoch -1"),
        (lambda s: s["position"].update(step=-1), "checkpoint has step -1"),
        (lambda s: s["position"].update(step="a"), "checkpoint has step 'a'"),
        (lambda s: s["position"].update(step=6), "checkpoint has step 6, this run has at most 5"),
        (lambda s: s["others"]["loop"]["state"].pop("phase"), "must be that of a run of fit, got another: KeyError"),
        (lambda s: s.pop("others"), "must be that of a run of fit, got another: KeyError"),
        (lambda s: s.pop("attributes"), "checkpoint has no attributes of the criterion; .* needs another folder"),
    ],
)
def test_an_altered_state_is_refused_before_anything_changes(change, message, killed_in_training, tmp_path):
    state = Checkpoints(killed_in_training).load()
    change(state)
    Checkpoints(tmp_path).save(state)
    model = network()
    with pytest.raises(CheckpointError, match=message):
        small_run(tmp_path, model=model)
    assert same(model.state_dict(), network().state_dict()) == []


def test_a_state_that_cannot_be_saved_is_refused_before_the_first_step(tmp_path, monkeypatch):
    class Odd(Callback):
        def state_dict(self):
            return {"what": object()}

    with pytest.raises(CheckpointError, match=r"state\['others'\]\['callbacks'\].*\['what'\] must be a plain tensor"):
        small_run(tmp_path / "a", callbacks=[Odd(), Kill(1)])
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(PermissionError, match="fit: checkpoint must be a folder that can be written to"):
        small_run(tmp_path / "a", callbacks=[Kill(1)])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        *(({"checkpoint": path}, "checkpoint") for path in ("", 5, b"x", "a\0b", "file", "file/sub")),
        *(({"resume": flag}, "resume") for flag in ("no", Path("x"))),
        ({"resume": None, "checkpoint": None, "every": None}, "resume"),
        ({"loader": iter([1, 2])}, "train"),
        *(({"every": steps}, "every") for steps in (2.5, 0)),
        ({"checkpoint": None, "every": 1}, "every must be None without checkpoint"),
    ],
)
def test_wrong_arguments_change_nothing(options, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    model = network()
    with pytest.raises(ValueError, match=f"^fit: {name}"):
        small_run("folder", model=model, device="meta", **options)
    assert next(model.parameters()).device.type == "cpu"  # it has not been moved either
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# Folders: locks and flushes


def locked_elsewhere(place):
    """Return whether another process cannot take the lock of a folder."""
    child = os.fork()
    if child == 0:
        os._exit(0 if _system.FileLock().take(place / "lock") else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_folder_belongs_to_one_process_while_a_run_is_saved_in_it(tmp_path):
    class Look(Callback):
        def on_begin(self, state):
            seen.append(locked_elsewhere(tmp_path))

    seen = []
    small_run(tmp_path, callbacks=[Look()], warm_start_epochs=0, epochs=1)
    with pytest.raises(Killed):
        small_run(tmp_path / "a", callbacks=[Kill(3)])
    assert seen == [True] and not locked_elsewhere(tmp_path) and not locked_elsewhere(tmp_path / "a")


def test_systems_without_locks(tmp_path, monkeypatch):
    def cannot(file, flags):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(_system.fcntl, "lockf", cannot)
    small_run(tmp_path / "a", epochs=1)
    monkeypatch.setattr(_system, "fcntl", None)
    small_run(tmp_path / "b", epochs=1)
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
