"""A recorded step is never replayed with what it no longer should hold, and its errors are told; graphs are played."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from graphs_on_cpu import MADE, play
from torch import nn

from moreauc import GroupDROLoss, MultiInstanceTPAUCLoss, PreviousIterate, TPAUCLoss
from moreauc.contrib import cuda_graphs
from moreauc.contrib import graph_key as _graph_key
from moreauc.contrib.cuda_graphs import GraphedStep
from moreauc.criteria import GroupedLoss
from moreauc.optim import ProximalPoint
from moreauc.train import train_step

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LABELS = (torch.arange(60) % 3 == 0).long()


@pytest.fixture(autouse=True)
def played(monkeypatch):
    if DEVICE == "cpu":
        play(monkeypatch, cuda_graphs)


class Around(nn.Module):
    """A loss inside another module."""

    def __init__(self, loss) -> None:
        super().__init__()
        self.loss, self.weight, self.calls = loss, 1.0, 0

    def forward(self, scores, labels, index):
        self.calls += 1
        return self.weight * self.loss(scores.squeeze(1) if scores.ndim == 2 else scores, labels, index)


def plain():
    return TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6)


def grouped():
    return GroupedLoss(GroupDROLoss(3, top_k=1, gamma=0.1), torch.arange(60) % 3)


def parts(make):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)).double().to(DEVICE)
    criterion = make().double().to(DEVICE)
    (criterion.loss if isinstance(criterion, Around) else criterion).checks = "late"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    previous = PreviousIterate(model, optimizer) if getattr(criterion, "needs_previous", False) else None
    return model, criterion, optimizer, previous


def batches(number, rows=12):
    random = torch.Generator().manual_seed(0)
    for _ in range(number):
        index = torch.randperm(60, generator=random)[:rows]
        inputs = torch.randn(rows, 4, generator=random, dtype=torch.float64)
        yield inputs.to(DEVICE), LABELS[index].to(DEVICE), index.to(DEVICE)


def replace_weights(model, criterion, optimizer):
    model[0].weight.data = model[0].weight.data.clone()


def load_tables(model, criterion, optimizer):
    """As if no row had ever been visited, which a recording made for complete tables would not look at."""
    state = {name: torch.zeros_like(value) for name, value in criterion.state_dict().items() if "table_u" in name}
    criterion.load_state_dict({**criterion.state_dict(), **state})


CHANGES: dict[str, tuple[Callable[[], nn.Module], Callable[..., object]]] = {
    "tau inside": (grouped, lambda m, c, o: setattr(c.criterion, "tau", 0.2)),
    "threshold_lr inside": (grouped, lambda m, c, o: setattr(c.criterion, "threshold_lr", 1.0)),
    "min_tpr": (plain, lambda m, c, o: setattr(c, "min_tpr", 0.7)),
    "tau of a loss in a module": (lambda: Around(plain()), lambda m, c, o: setattr(c.loss, "tau", 0.2)),
    "number of a module around": (lambda: Around(plain()), lambda m, c, o: setattr(c, "weight", 0.5)),
    "batch normalisation in evaluation": (plain, lambda m, c, o: m[1].eval()),
    "frozen layer": (plain, lambda m, c, o: m[0].requires_grad_(False)),
    "weights elsewhere": (plain, replace_weights),
    "state of the optimizer": (plain, lambda m, c, o: o.load_state_dict(copy.deepcopy(o.state_dict()))),
    "tables": (lambda: TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, initial=0.5), load_tables),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changed_is_recorded_anew(what):
    make, change = CHANGES[what]
    ordinary, ours = parts(make), parts(make)
    step = GraphedStep(*ours[:3], previous=ours[3])
    recorded = []
    for number, batch in enumerate(batches(12)):
        if number == 5:
            change(*ordinary[:3]), change(*ours[:3])
        loss = train_step(*ordinary[:3], batch, ordinary[3])
        torch.testing.assert_close(step(batch), loss, rtol=1e-10, atol=1e-10)
        recorded.append(step.recorded)
    for one, other in zip(ordinary[0].parameters(), ours[0].parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-10)
    assert recorded == [False] * 3 + [True] * 2 + [False] * 3 + [True] * 4


def test_a_layer_that_is_trained_from_now_on_moves():
    model, criterion, optimizer, _ = parts(plain)
    model[0].requires_grad_(False)
    step, before = GraphedStep(model, criterion, optimizer), model[0].weight.clone()
    for number, batch in enumerate(batches(7)):
        if number == 5:
            assert step.recorded and torch.equal(model[0].weight, before)
            model[0].requires_grad_(True)
        step(batch)
    assert not torch.equal(model[0].weight, before)


def test_the_temperature_of_a_pooling_is_a_number_of_the_loss():
    criterion = MultiInstanceTPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, pooling="smoothed_max")
    before = _graph_key._attributes(criterion)
    criterion.pooling.temperature = 0.5 * criterion.pooling.temperature
    assert _graph_key._attributes(criterion) != before


def test_hooks_that_would_not_be_replayed_are_refused():
    model, criterion, optimizer, _ = parts(plain)
    step = GraphedStep(model, criterion, optimizer)
    *first, last = batches(6)
    for batch in first:
        step(batch)
    pull = ProximalPoint(optimizer, 0.5)
    with pytest.raises(ValueError, match=r"no hooks but those of PreviousIterate, got ProximalPoint\._before_step"):
        step(last)
    pull.remove()
    step(last)
    assert step.recorded


def test_optimizers_that_count_on_the_host_are_refused():
    model, criterion, _, _ = parts(plain)
    with pytest.raises(ValueError, match="must be able to count its steps on the GPU, got Adagrad, which cannot"):
        GraphedStep(model, criterion, torch.optim.Adagrad(model.parameters()))
    step = GraphedStep(model, criterion, torch.optim.Adafactor(model.parameters()))  # begins to count later
    with pytest.raises(ValueError, match="must be able to count its steps on the GPU, got Adafactor, which cannot"):
        for batch in batches(4):
            step(batch)


def test_errors_of_a_loss_inside_another_module_arrive():
    model, criterion, optimizer, _ = parts(lambda: Around(plain()))
    step = GraphedStep(model, criterion, optimizer)
    *first, (inputs, labels, index) = batches(6)
    for batch in first:
        step(batch)
    assert step.recorded
    with pytest.raises(ValueError, match=r"TPAUCLoss: index must .* \(in call 6, found later"):
        step((inputs, labels, index.flip(0)))
        torch.cuda.synchronize() if DEVICE == "cuda" else None
        step((inputs, labels, index))


class Remembering(Around):
    """Keeps a tensor of its last call, and reads another that is no buffer."""

    def __init__(self, loss) -> None:
        super().__init__(loss)
        self.last, self.factor = None, torch.ones((), dtype=torch.float64, device=DEVICE)

    def forward(self, scores, labels, index):
        self.last = self.factor * super().forward(scores, labels, index)
        return self.last


def test_tensors_that_are_no_buffers():
    model, criterion, optimizer, _ = parts(lambda: Remembering(plain()))
    step = GraphedStep(model, criterion, optimizer)
    recorded = []
    for number, batch in enumerate(batches(14)):
        if number == 7:
            criterion.factor = 2.0 * criterion.factor
        loss = step(batch)
        torch.testing.assert_close(criterion.last.detach(), loss)
        recorded.append(step.recorded)
    assert recorded == [False] * 3 + [True] * 4 + [False] * 3 + [True] * 4


def test_parts_of_a_loss_are_told_of_a_replay_once():
    model, criterion, optimizer, previous = parts(grouped)
    step = GraphedStep(model, criterion, optimizer, previous=previous)
    *first, last = batches(6)
    for batch in first:
        step(batch)
    told = [part._pending for part in (criterion, criterion.criterion)]
    before = [pending.calls for pending in told]
    step(last)
    assert step.recorded and [pending.calls for pending in told] == [calls + 1 for calls in before]


def test_other_threads_do_not_disturb_a_recording():
    model, criterion, optimizer, _ = parts(plain)
    step = GraphedStep(model, criterion, optimizer)
    for batch in batches(4):
        step(batch)
    if DEVICE == "cpu":
        assert MADE[0].options == {"capture_error_mode": "thread_local"}


def test_batches_of_the_host_are_brought_to_the_device(monkeypatch):
    model, criterion, optimizer, _ = parts(plain)
    step, move, places = GraphedStep(model, criterion, optimizer), cuda_graphs.on_device, []
    monkeypatch.setattr(cuda_graphs, "on_device", lambda batch, place: places.append(place) or move(batch, place))
    for inputs, labels, index in batches(6):
        step((inputs.cpu(), labels.cpu(), index.cpu()))
    assert step.recorded and {place.type for place in places} == {"cuda"}


def test_a_rate_on_the_host_is_a_number_and_one_on_the_device_is_not():
    here, there = [torch.zeros(1)], [torch.zeros(1, device="meta")]
    rate = torch.tensor(0.5)
    assert _graph_key._constant(rate, there) == 0.5
    assert (
        _graph_key._constant(rate, here) == _graph_key._constant(torch.tensor(0.25), here) == "a tensor on the device"
    )
    assert _graph_key._constant([rate, 0.1], there) == (0.5, 0.1)
