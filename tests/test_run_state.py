"""The parts of a run in a loop of the user: saved, checked and restored."""

from __future__ import annotations

import copy

import pytest
import torch
from conformance import CASES
from interruptions import data, network, planned, same
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from moreauc import PreviousIterate
from moreauc.checkpoint import CheckpointError, Checkpoints, RunState
from moreauc.checkpoint.rng import loader_generators, loader_parts
from moreauc.criteria import CrossEntropyLoss
from moreauc.data import TensorBatches
from moreauc.optim import ProximalPoint

Y = data()[1]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def test_a_state_that_is_no_run_is_refused(tmp_path):
    x, y = data()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = RunState(model, CrossEntropyLoss(y), optimizer, TensorBatches(x, y))
    state = copy.deepcopy(run.state_dict())
    state["position"]["step"] = 2
    with pytest.raises(CheckpointError, match="checkpoint has no random_at_epoch"):
        run.load_state_dict(state)
    for state in ({}, {"model": 3}, {**run.state_dict(), "position": None}, {**run.state_dict(), "optimizers": [{}]}):
        with pytest.raises(CheckpointError, match="checkpoint must be the state of a RunState"):
            run.load_state_dict(state)


# A loop of the user


class Values(nn.Module):
    """A model of numbers: scales and shifts what a batch of the conformance tests holds."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(1.3)), nn.Parameter(torch.tensor(0.1))
        self.drop = nn.Dropout(0.2)

    def forward(self, value):
        return self.drop(self.scale * value + self.shift)


def case_run(case, device="cpu"):
    model, criterion = Values().to(device), case.build().to(device)
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
            device = run.model.scale.device
            batch = {key: value.to(device) for key, value in case.batch(6 * epoch + step).items()}
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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_loss_is_resumed_in_a_loop_of_the_user(case, device, tmp_path):
    torch.manual_seed(0)
    whole = copy.deepcopy(case_train(case, case_run(case, device)))
    for stop in (4, 6, 11):
        torch.manual_seed(0)
        checkpoints = Checkpoints(tmp_path / str(stop))
        checkpoints.save(case_train(case, case_run(case, device), stop=stop))
        torch.manual_seed(1)
        run = case_run(case, device)
        run.load_state_dict(checkpoints.load())
        assert (run.epoch, run.step) == (divmod(stop, 6) if stop != 6 else (0, 6))
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
    loader = TensorBatches(*data(), planned(Y))
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    for optimizers, options, message in [
        (run.optimizer[0], {}, "optimizers: 2, this run has 1"),
        (run.optimizer, {}, "checkpoint has 'scaler', this run has none"),
        (run.optimizer, {"scaler": disabled}, "scaler with entries"),
    ]:
        with pytest.raises(CheckpointError, match=message):
            RunState(run.model, run.criterion, optimizers, loader, **options).check(state)


def parts_run(width=6, **options):
    x, y = data()
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return RunState(model, CrossEntropyLoss(y), optimizer, TensorBatches(x, y), **options), model, optimizer


def test_optimizers_and_other_parts_of_another_kind_are_refused():
    run, _model, optimizer = parts_run()
    state = run.state_dict()
    optimizer.param_groups[0]["lr"] = 0.2
    with pytest.raises(CheckpointError, match=r"lr of group 0 0\.1 in the optimizer, this run has 0\.2"):
        run.check(state)
    optimizer.param_groups[0]["lr"] = 0.1
    frozen, model, _ = parts_run()
    frozen.optimizer = torch.optim.SGD(list(model.parameters())[:2], 0.1)
    with pytest.raises(CheckpointError, match="parameters in the optimizer of shapes"):
        frozen.check(state)
    other, _, _ = parts_run(others={"average": Part()})
    with pytest.raises(CheckpointError, match="checkpoint has no average"):
        other.check(state)
    with pytest.raises(CheckpointError, match="checkpoint has 'average', this run has none"):
        run.check(other.state_dict())
    named, _, _ = parts_run(others={"average": Failing()})
    with pytest.raises(CheckpointError, match="average of class Part, this run has Failing"):
        named.check(other.state_dict())


def test_settings_of_schedulers_and_reference_points():
    def run(size=2, weight=0.1):
        run, _, optimizer = parts_run()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, size)
        parts = {"scheduler": scheduler, "proximal": ProximalPoint(optimizer, weight)}
        return RunState(run.model, run.criterion, optimizer, range(3), **parts)

    first = run()
    first.optimizer.step()
    first.scheduler.step()
    run().check(first.state_dict())
    for other, message in [({"size": 3}, "step_size 2 in the scheduler"), ({"weight": 0.2}, "weight 0.1 in the refe")]:
        with pytest.raises(CheckpointError, match=message):
            run(**other).check(first.state_dict())


@pytest.mark.parametrize(
    ("options", "name"),
    [
        *(({"model": part}, "model") for part in (None, nn.Linear)),
        ({"criterion": torch.mean}, "criterion"),
        *(({"optimizer": part}, "optimizer") for part in ("sgd", None, [], ["sgd"])),
        *(({"loader": part}, "loader must be an iterable over batches") for part in (None, 3)),
        ({"loader": (n for n in range(3))}, "loader .* anew, got a generator"),
        ({"loader": iter([1, 2])}, "loader .* anew, got a list_iterator"),
        *(({"previous": True}, "previous"), ({"proximal": True}, "proximal"), ({"scaler": 3}, "scaler")),
        *(({"scheduler": part}, "scheduler") for part in (3, torch.optim.lr_scheduler.StepLR)),
        *(({"others": {"a": part}}, r"others\['a'\]") for part in (3, None)),
        ({"others": {3: nn.Linear(1, 1)}}, "names of others must be texts"),
        ({"others": {"scaler": nn.Linear(1, 1)}}, "names of others must not be those of other arguments"),
        ({"others": [nn.Linear(1, 1)]}, "others must be a dictionary"),
        ({"settings": {3: "f"}}, "names of settings must be texts"),
        ({"settings": ["f"]}, "settings must be a dictionary"),
    ],
)
def test_parts_of_the_wrong_kind_are_refused_at_once(options, name):
    model = network()
    parts = {"model": model, "criterion": CrossEntropyLoss(Y), "loader": range(3)}
    parts["optimizer"] = torch.optim.SGD(model.parameters(), 0.1)
    RunState(**parts)
    with pytest.raises(ValueError, match=f"^RunState: {name}"):
        RunState(**{**parts, **options})


class Rows:
    """A loader by row numbers, which Python can iterate over, too."""

    def __getitem__(self, row):
        if row > 2:
            raise IndexError(row)
        return row


class Restarting(DataLoader):
    """A loader that has `__next__`, and a new iterator for each pass; counts its passes."""

    passes = 0

    def __next__(self):
        raise NotImplementedError

    def __iter__(self):
        self.passes += 1
        return iter(range(3))


def test_any_loader_that_can_be_iterated_again_and_a_check_draws_nothing():
    before = torch.get_rng_state()
    for loader in (Rows(), Restarting(range(3))):
        model = network()
        torch.set_rng_state(before)
        run = RunState(model, CrossEntropyLoss(Y), torch.optim.SGD(model.parameters(), 0.1), loader)
        assert torch.equal(torch.get_rng_state(), before)
        assert [list(run.batches(epoch)) for epoch in range(2)] == [[0, 1, 2]] * 2


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
    with pytest.raises(CheckpointError, match="a part refuses: RuntimeError: not thirteen"):
        run.load_state_dict(state)
    assert same(run.state_dict(), before) == [] and part.value == 0
    state["others"]["b"]["state"]["value"] = 14
    run.load_state_dict(state)
    assert (part.value, failing.value) == (7, 14)


def test_previous_weights_and_reference_point_of_another_model_are_refused():
    run, model, optimizer = parts_run()
    run.previous, run.proximal = PreviousIterate(model, optimizer), ProximalPoint(optimizer, 0.1)
    state = copy.deepcopy(run.state_dict())
    run.load_state_dict(state)
    before = copy.deepcopy(run.state_dict())
    wrong = copy.deepcopy(state)
    for value in wrong["model"]["state"].values():
        value.add_(1)
    for weights, message in [
        ({"9.weight": torch.zeros(1)}, "PreviousIterate: state must name parameters of the model, got '9.weight'"),
        ({"0.bias": torch.zeros(1)}, "PreviousIterate: state"),
    ]:
        wrong["others"]["previous"]["state"]["weights"] = weights
        with pytest.raises(CheckpointError, match=f"a part refuses: ValueError: {message}"):
            run.load_state_dict(wrong)
    wrong["others"]["previous"]["state"]["weights"] = {}
    wrong["others"]["proximal"]["state"]["average"].pop()
    with pytest.raises(CheckpointError, match="a part refuses: ValueError: ProximalPoint: state"):
        run.load_state_dict(wrong)
    assert same(run.state_dict(), before) == []


def test_wrappers_of_a_model_are_left_out():
    states = []
    for module in (network(), torch.compile(network(), backend="eager")):
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        run = RunState(module, CrossEntropyLoss(Y), optimizer, TensorBatches(*data()))
        states.append(run.state_dict()["model"])
        run.load_state_dict(copy.deepcopy(run.state_dict()))
    assert states[0]["state"].keys() == states[1]["state"].keys() and same(*states) == []


def test_each_part_of_a_loader_is_saved_once():
    dataset = TensorDataset(*data())
    loader = DataLoader(dataset, batch_size=12, shuffle=True, generator=torch.Generator())
    assert list(loader_parts(loader)) == [
        ("loader", loader),
        ("loader.batch_sampler", loader.batch_sampler),
        ("loader.sampler", loader.sampler),  # that of the batch sampler, too
        ("loader.dataset", dataset),
    ]
    assert list(loader_generators(loader)) == ["loader.generator", "loader.sampler.generator"]


def test_generators_of_missing_gpus_are_logged(caplog, monkeypatch):
    from moreauc.checkpoint.rng import random_states, set_random_states

    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: ["states"])
    for used in (True, False):  # a GPU that this process has not used has no state yet
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda used=used: used)
        state = random_states()
        assert state["cuda"] == (["states"] if used else [])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    set_random_states({**state, "cuda": [torch.zeros(16, dtype=torch.uint8)]})
    assert "generators of 1 GPUs and there are 0" in caplog.text
    seen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda value, number: seen.append((value.tolist(), number)))
    set_random_states({**state, "cuda": [torch.ones(2, dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8)]})
    assert seen == [([1, 1], 0)] and "generators of 2 GPUs and there are 1" in caplog.text
