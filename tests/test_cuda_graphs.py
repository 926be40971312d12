"""Steps that are replayed equal ordinary ones, and none is replayed with what has changed since it was recorded.

On the CPU graphs are played, by `graphs_on_cpu.py`.
"""

from __future__ import annotations

import copy
import gc
import weakref
from contextlib import contextmanager
from importlib import import_module

import pytest
import torch
from graphs_on_cpu import MADE, Generator, Stream, play
from torch import nn

from moreauc import GroupDROLoss, MultiInstanceTPAUCLoss, PreviousIterate, TPAUCLoss
from moreauc.contrib import cuda_graphs, graph_key
from moreauc.contrib.cuda_graphs import GraphedStep
from moreauc.criteria import GroupedLoss
from moreauc.data.bag_batches import BagInputs
from moreauc.optim import ProximalPoint
from moreauc.train import train_step

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LABELS = (torch.arange(60) % 3 == 0).long()


@pytest.fixture
def generator(monkeypatch):
    if DEVICE == "cpu":
        return play(monkeypatch, cuda_graphs)
    torch.cuda.init()
    return torch.cuda.default_generators[0]


class Net(nn.Module):
    """With batch normalisation, whose statistics both forwards would change."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x).squeeze(1)


def batches(kind, number, rows=12, seed=0):
    random = torch.Generator().manual_seed(seed)
    result = []
    for _ in range(number):
        index = torch.randperm(60, generator=random)[:rows].to(DEVICE)
        labels = LABELS.to(DEVICE)[index]
        inputs = torch.randn(rows * (2 if kind == "bags" else 1), 4, generator=random, dtype=torch.float64).to(DEVICE)
        if kind == "bags":
            inputs = BagInputs(inputs, (torch.arange(2 * rows) // 2).to(DEVICE))
        result.append((inputs, labels, index))
    return result


LOSSES = {
    "gamma 0": ("rows", lambda: TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6)),
    "initial": ("rows", lambda: TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, initial=0.5)),
    "gamma 0.1": ("rows", lambda: TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, gamma=0.1)),
    "quantile": ("rows", lambda: TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, gamma=0.1, threshold_lr="quantile")),
    "bags": ("bags", lambda: MultiInstanceTPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, pooling="mean", gamma=0.1)),
    "groups": ("rows", lambda: GroupedLoss(GroupDROLoss(3, top_k=1, gamma=0.1), torch.arange(60) % 3)),
}


class Around(nn.Module):
    """A loss inside another module, which keeps a tensor of its last call, and reads another that is no buffer."""

    def __init__(self, loss) -> None:
        super().__init__()
        self.loss, self.weight, self.calls = loss, 1.0, 0
        self.last, self.factor = None, torch.ones((), dtype=torch.float64, device=DEVICE)

    def forward(self, scores, labels, index):
        self.calls += 1
        self.last = self.factor * self.weight * self.loss(scores, labels, index)
        return self.last


def parts(name, around=None):
    torch.manual_seed(0)
    model, loss = Net().double().to(DEVICE), LOSSES[name][1]()
    loss.checks = "late"
    criterion = (loss if around is None else around(loss)).double().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    previous = PreviousIterate(model, optimizer) if getattr(criterion, "needs_previous", False) else None
    return model, criterion, optimizer, previous


def graphed(model, criterion, optimizer, previous, **options):
    return GraphedStep(model, criterion, optimizer, previous=previous, **options)


def assert_same(one, other):
    for part, twin in zip(one[:2], other[:2], strict=True):
        state = part.state_dict()
        for name, value in twin.state_dict().items():
            torch.testing.assert_close(value, state[name], rtol=1e-10, atol=1e-10)
    if one[3] is not None:
        old = one[3].state_dict()["weights"]
        for name, value in other[3].state_dict()["weights"].items():
            torch.testing.assert_close(value, old[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "overlap"), [*((name, True) for name in LOSSES), ("gamma 0.1", False)])
def test_replayed_steps_equal_ordinary_ones(name, overlap, generator):
    plain, ours = parts(name), parts(name)
    step = graphed(*ours, overlap=overlap)
    losses, expected = [], []  # compared at the end: those that are kept must stay what they were
    for number, batch in enumerate(batches(LOSSES[name][0], 12)):
        expected.append(train_step(*plain[:3], batch, plain[3]))
        losses.append(step(batch))
        assert step.recorded == (number >= 3)
    torch.testing.assert_close(torch.stack(losses), torch.stack(expected), rtol=1e-10, atol=1e-10)
    assert_same(plain, ours)
    if DEVICE == "cpu":
        assert [graph.replays for graph in MADE] == [9]
        assert MADE[0].options == {"capture_error_mode": "thread_local"}  # other threads do not disturb it


def test_other_shapes_are_ordinary_steps_in_between(generator):
    plain, ours = parts("gamma 0.1"), parts("gamma 0.1")
    step = graphed(*ours, warm_up=2)
    whole, small = batches("rows", 12), batches("rows", 12, rows=7, seed=1)
    recorded = []
    for number in range(12):
        for batch in [whole[number], *([small[number]] if number % 4 == 3 else [])]:
            torch.testing.assert_close(step(batch), train_step(*plain[:3], batch, plain[3]), rtol=1e-10, atol=1e-10)
            recorded.append(step.recorded)
    assert_same(plain, ours)
    assert recorded == [False] * 2 + [True] * 2 + [False] + ([True] * 4 + [False]) * 2


def replace_weights(model, *_):
    model.layers[0].weight.data = model.layers[0].weight.data.clone()


def load_tables(model, criterion, *_):
    """As if no row had ever been visited, which a recording made for complete tables would not look at."""
    state = {name: torch.zeros_like(value) for name, value in criterion.state_dict().items() if "table_u" in name}
    criterion.load_state_dict({**criterion.state_dict(), **state})


CHANGES = {
    "learning rate": ("gamma 0.1", lambda m, c, o, p: o.param_groups[0].update(lr=0.01)),
    "snapshot": ("gamma 0.1", lambda m, c, o, p: p.load_state_dict(p.state_dict())),
    "mode": ("gamma 0.1", lambda m, c, o, p: m.eval()),
    "reset": ("gamma 0.1", lambda *_: None),
    "tau inside": ("groups", lambda m, c, o, p: setattr(c.criterion, "tau", 0.2)),
    "min_tpr": ("gamma 0", lambda m, c, o, p: setattr(c, "min_tpr", 0.7)),
    "tau of a loss in a module": ("gamma 0", lambda m, c, o, p: setattr(c.loss, "tau", 0.2)),
    "number of a module around": ("gamma 0", lambda m, c, o, p: setattr(c, "weight", 0.5)),
    "tensor of a module around": ("gamma 0", lambda m, c, o, p: setattr(c, "factor", 2.0 * c.factor)),
    "batch normalisation in evaluation": ("gamma 0", lambda m, c, o, p: m.layers[1].eval()),
    "frozen layer": ("gamma 0", lambda m, c, o, p: m.layers[0].requires_grad_(False)),
    "weights elsewhere": ("gamma 0", replace_weights),
    "state of the optimizer": ("gamma 0", lambda m, c, o, p: o.load_state_dict(copy.deepcopy(o.state_dict()))),
    "tables": ("initial", load_tables),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changed_is_recorded_anew(what, generator):
    name, change = CHANGES[what]
    plain, ours = (parts(name, Around if "module" in what else None) for _ in range(2))
    step = graphed(*ours)
    recorded = []
    for number, batch in enumerate(batches("rows", 12)):
        if number == 5:
            change(*plain), change(*ours)
            step.reset() if what == "reset" else None
        loss = step(batch)
        torch.testing.assert_close(loss, train_step(*plain[:3], batch, plain[3]), rtol=1e-10, atol=1e-10)
        if isinstance(ours[1], Around):
            torch.testing.assert_close(ours[1].last.detach(), loss)
        recorded.append(step.recorded)
    assert_same(plain, ours)
    assert recorded == [False] * 3 + [True] * 2 + [False] * 3 + [True] * 4


def test_a_learning_rate_that_is_a_tensor_may_change(generator):
    model, criterion, _, _ = parts("gamma 0")
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1, device=DEVICE), fused=True)
    plain = copy.deepcopy(model), copy.deepcopy(criterion)
    other = torch.optim.SGD(plain[0].parameters(), lr=0.1)
    step = graphed(model, criterion, optimizer, None)
    for number, batch in enumerate(batches("rows", 8)):
        rate = 0.1 / (number + 1)
        optimizer.param_groups[0]["lr"].fill_(rate)
        other.param_groups[0]["lr"] = torch.tensor(rate).item()  # as float32 has it
        torch.testing.assert_close(step(batch), train_step(*plain, other, batch), rtol=1e-10, atol=1e-10)
    assert step.recorded


@pytest.mark.parametrize("around", [None, Around])
def test_errors_arrive_after_replays(around, generator):
    ours = parts("gamma 0", around)
    step = graphed(*ours)
    *first, (inputs, labels, index), last = batches("rows", 7)
    for batch in first:
        step(batch)
    before = copy.deepcopy(ours[1].state_dict())
    with pytest.raises(ValueError, match=r"TPAUCLoss: index must not repeat a row .* \(in call 6, found later"):
        step((inputs, labels, index[:1].expand(len(index)).clone()))
        torch.cuda.synchronize() if DEVICE == "cuda" else None
        step((inputs, labels, index))
    assert all(torch.equal(value, before[name]) for name, value in ours[1].state_dict().items())
    step(last)
    getattr(ours[1], "loss", ours[1]).check()


class Noting(nn.Module):
    """Notes in each forward whether autocast has a cache, and whether garbage is collected."""

    def __init__(self, notes, error=None) -> None:
        super().__init__()
        self.layer, self.notes, self.error = nn.Linear(4, 1).double().to(DEVICE), notes, error

    def forward(self, x):
        self.notes.append((torch.is_autocast_cache_enabled(), gc.isenabled()))
        if self.error is not None and not gc.isenabled():
            raise self.error
        return self.layer(x).squeeze(1)


def noting(error=None):
    notes = []
    model, criterion = Noting(notes, error), parts("gamma 0")[1]
    return notes, graphed(model, criterion, torch.optim.SGD(model.parameters(), lr=0.1), None)


def test_settings_of_a_recording_hold_before_it_or_compiled_code_would_be_compiled_in_it(generator):
    notes, step = noting()
    for batch in batches("rows", 5):
        step(batch)
        assert torch.is_autocast_cache_enabled() and gc.isenabled()
    assert notes == [(False, True)] * 3 + [(False, False)]


class Cycle:
    """Garbage that only the collector frees."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_is_collected_before_a_recording_and_the_collector_stays_off(generator):
    _, step = noting()
    *first, last = batches("rows", 4)
    for batch in first:
        step(batch)
    gc.disable()
    try:
        garbage = weakref.ref(Cycle())
        assert garbage() is not None
        step(last)
        assert step.recorded and garbage() is None and not gc.isenabled()
    finally:
        gc.enable()


BROKEN = "operation failed due to a previous error during capture"
FAILURES = {
    "waits": (RuntimeError("not permitted when capturing\nlong story"), RuntimeError, "waits for .*: not permitted"),
    "end only": (None, RuntimeError, f"something waits for the GPU: {BROKEN}$"),
    "shape": (RuntimeError("shapes differ"), RuntimeError, "cannot be recorded, it failed while .*: shapes differ$"),
    "memory": (torch.OutOfMemoryError("out of memory"), torch.OutOfMemoryError, "^out of memory$"),
    "value": (ValueError("model: x must be"), ValueError, "^model: x must be$"),
}


@pytest.mark.parametrize("what", FAILURES)
def test_of_several_errors_in_a_recording_the_first_is_told(what, generator, monkeypatch):
    if DEVICE == "cuda":
        torch.cuda.init()

    @contextmanager
    def breaking(graph, **options):
        try:
            yield
        finally:
            raise RuntimeError(BROKEN)

    error, kind, message = FAILURES[what]
    _, step = noting(error)
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "graph", breaking)
        *first, last = batches("rows", 4)
        for batch in first:
            step(batch)
        with pytest.raises(kind, match=message) as caught:
            step(last)
    assert type(caught.value) is kind and torch.is_autocast_cache_enabled() and gc.isenabled()
    step.model.error = None
    recorded = []
    for batch in batches("rows", 4):  # all begins anew
        step(batch)
        recorded.append(step.recorded)
    assert recorded == [False, False, False, True]


def test_the_forward_aside_has_a_stream_of_its_own(generator):
    device = torch.device("cuda", 0)
    taken = torch.cuda.Stream(device)
    assert all(cuda_graphs._stream_beside(taken, device) != taken for _ in range(64))
    step = graphed(*parts("gamma 0.1"))
    data = batches("rows", 20)
    for number, batch in enumerate(data):
        if number % 5 == 0:
            step.reset()
        step(batch)
    assert step._recording._side != step._recording._main and len(step._streams) == 1


if DEVICE == "cpu":

    @pytest.mark.parametrize("overlap", [True, False])
    def test_streams_wait_for_each_other(overlap, generator):
        ours, places = parts("gamma 0.1"), []
        ours[0].layers.register_forward_hook(lambda *_: places.append(Stream.now.number))
        step, here = graphed(*ours, overlap=overlap), Stream.now.number
        *first, last = batches("rows", 4)
        for batch in first:
            step(batch)
        ((main, side),) = [(one.number, other.number) for one, other in step._streams.values()]
        assert Stream.waits == [(main, "stream", here), (here, "stream", main)] * 3 and set(places) == {main}
        Stream.waits.clear(), places.clear()
        step(last)
        assert places == [side if overlap else main, main]  # the previous iterate first
        begin, end = (side, "stream", main), (main, "stream", side)
        assert Stream.waits == ([begin, (main, "event", side), end] if overlap else [begin, end])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda parts: {"warm_up": 1}, "warm_up"),
        (lambda parts: {"optimizer": [parts[2]]}, "optimizer"),
        (lambda parts: {"previous": True}, "previous must be a PreviousIterate"),
        (lambda parts: {"previous": globals()["parts"]("gamma 0.1")[3]}, "previous must be that of model"),
        (lambda parts: {"optimizer": torch.optim.Adam(parts[0].parameters()), "previous": None}, "capturable=True"),
        (lambda parts: {"optimizer": torch.optim.SGD(parts[0].parameters(), lr=0.1)}, "previous must watch"),
    ],
)
def test_wrong_arguments(change, name, generator):
    made = parts("gamma 0.1")
    arguments = dict(zip(("model", "criterion", "optimizer", "previous"), made, strict=True))
    with pytest.raises(ValueError, match=f"GraphedStep: .*{name}"):
        GraphedStep(**{**arguments, **change(made)})
    GraphedStep(**{**arguments, "model": torch.compile(made[0], backend="eager")})


def test_one_of_several_processes_does_ordinary_steps(generator, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "several_processes", lambda: True)
    step = graphed(*parts("gamma 0"))
    for batch in batches("rows", 6):
        step(batch)
        assert not step.recorded


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_on_the_cpu_all_steps_are_ordinary(kind):
    torch.manual_seed(0)
    model, inputs = nn.Linear(4, 1), {"input": torch.randn(12, 4)}
    criterion = TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6)
    step = GraphedStep(model, criterion, kind(model.parameters(), lr=0.1))
    batch = (inputs, LABELS[:12], torch.arange(12))
    for _ in range(5):
        assert torch.isfinite(step(batch)) and not step.recorded
    for wrong in (None, batch[:2]):
        with pytest.raises(ValueError, match="GraphedStep: batch must be"):
            step(wrong)
    criterion.gamma = 0.1
    with pytest.raises(ValueError, match="previous must be given"):
        step(batch)


def test_batches_of_any_form_are_copied():
    source = {"a": (torch.ones(2), [torch.full((3,), 2.0)]), "b": 5}
    target = graph_key.mapped(source, torch.zeros_like)
    graph_key.copy_into(target, source)
    assert target["a"][0].tolist() == [1.0, 1.0] and target["a"][1][0].tolist() == [2.0, 2.0, 2.0]
    assert target["b"] == 5 and graph_key.form_of(source)["a"][0][0] == (2,)


class Masked(nn.Module):
    """Returns its inputs, some dropped."""

    def __init__(self, generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.played = generator if isinstance(generator, Generator) else None
        self.places = []

    def forward(self, x):
        if self.played is not None:
            self.places.append((self.played.initial_seed(), self.played.get_offset()))
            self.played.set_offset(self.played.get_offset() + 4)
        return nn.functional.dropout(self.weight * x, 0.5)


class Keeping(nn.Module):
    """A loss that keeps what it is given."""

    needs_previous = True

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("now", torch.zeros(64))
        self.register_buffer("before", torch.zeros(64))

    def forward(self, scores, labels, index, previous_scores):
        with torch.no_grad():
            self.now.copy_(scores)
            self.before.copy_(previous_scores)
        return scores.sum()


def test_dropout_masks_are_the_same_in_both_forwards(generator):
    torch.manual_seed(0)
    model, criterion = Masked(generator).to(DEVICE), Keeping().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    step = GraphedStep(model, criterion, optimizer, previous=PreviousIterate(model, optimizer))
    batch = (torch.ones(64, device=DEVICE), torch.zeros(64, device=DEVICE), torch.zeros(64, device=DEVICE))
    masks = []
    for _ in range(8):
        step(batch)
        masks.append(criterion.now.clone())
        if model.played is None or not step.recorded:  # played graphs draw from the CPU's generator
            assert torch.equal(criterion.now, criterion.before)
    assert step.recorded and 0 < int((masks[-1] == 0).sum()) < 64
    assert not torch.equal(masks[-1], masks[-2])
    if model.played is not None:
        assert len(MADE[0].generators) == 1  # the second state is the graph's, too
        assert MADE[0].generators[0].get_offset() == generator.get_offset() > 0
        assert len(model.places) == 8 and model.places[-1] == model.places[-2]  # in the recording, which ran once
        generator.manual_seed(7)
        generator.set_offset(16)
        step(batch)
        assert (MADE[0].generators[0].initial_seed(), MADE[0].generators[0].get_offset()) == (7, 16)


def test_replayed_steps_under_autocast(generator):
    plain, ours = parts("gamma 0.1"), parts("gamma 0.1")
    step = graphed(*ours)
    for inputs, labels, index in batches("rows", 8):
        batch = inputs.float(), labels, index
        for model, *_ in (plain, ours):
            model.float()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = train_step(*plain[:3], batch, plain[3])
            torch.testing.assert_close(step(batch), loss, rtol=1e-3, atol=1e-3)
    assert step.recorded and torch.is_autocast_cache_enabled()


class Dropping(Net):
    """With dropout, and on demand a wait for the GPU."""

    waits = False

    def forward(self, x):
        return super().forward(nn.functional.dropout(x + float(x.sum()) if self.waits else x))


def test_after_a_broken_recording_all_goes_on(generator):
    def made():
        _, criterion, _, _ = parts("gamma 0.1")
        model = Dropping().double().to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return graphed(model, criterion, optimizer, PreviousIterate(model, optimizer), warm_up=2)

    earlier, step = made(), made()
    data = batches("rows", 4)
    for batch in data:
        earlier(batch)
    step(data[0])
    step(data[1])
    step.model.waits = True
    with pytest.raises(RuntimeError, match="something waits for the GPU"):
        step(data[2])
    step.model.waits = False
    if DEVICE == "cpu":
        assert not Generator.recorded
    else:
        torch.manual_seed(3)
        drawn = torch.rand(5, device=DEVICE)
        torch.manual_seed(3)
        torch.testing.assert_close(torch.rand(5, device=DEVICE), drawn, rtol=0.0, atol=0.0)
    for one in (earlier, step):
        for batch in data:
            assert one(batch).isfinite()
        assert one.recorded


def test_the_temperature_of_a_pooling_is_a_number_of_the_loss():
    criterion = MultiInstanceTPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, pooling="smoothed_max")
    before = graph_key._attributes(criterion)
    criterion.pooling.temperature = 0.5 * criterion.pooling.temperature
    assert graph_key._attributes(criterion) != before


def test_hooks_that_would_not_be_replayed_are_refused(generator):
    model, criterion, optimizer, _ = parts("gamma 0")
    step = GraphedStep(model, criterion, optimizer)
    *first, last = batches("rows", 6)
    for batch in first:
        step(batch)
    pull = ProximalPoint(optimizer, 0.5)
    with pytest.raises(ValueError, match=r"got ProximalPoint\._before_step"):
        step(last)
    pull.remove()
    of_all = import_module("torch.optim.optimizer").register_optimizer_step_post_hook(print)
    with pytest.raises(ValueError, match="got print"):
        step(last)
    of_all.remove()
    step(last)
    assert step.recorded


def test_optimizers_that_count_on_the_host_are_refused(generator):
    model, criterion, _, _ = parts("gamma 0")
    with pytest.raises(ValueError, match="must be able to count its steps on the GPU, got Adagrad, which cannot"):
        GraphedStep(model, criterion, torch.optim.Adagrad(model.parameters()))
    step = GraphedStep(model, criterion, torch.optim.Adafactor(model.parameters()))  # begins to count later
    with pytest.raises(ValueError, match="must be able to count its steps on the GPU, got Adafactor, which cannot"):
        for batch in batches("rows", 4):
            step(batch)


def test_parts_of_a_loss_are_told_of_a_replay_once(generator):
    model, criterion, optimizer, previous = parts("groups")
    step = graphed(model, criterion, optimizer, previous)
    *first, last = batches("rows", 6)
    for batch in first:
        step(batch)
    told = [part._pending for part in (criterion, criterion.criterion)]
    before = [pending.calls for pending in told]
    step(last)
    assert step.recorded and [pending.calls for pending in told] == [calls + 1 for calls in before]


def test_batches_of_the_host_are_brought_to_the_device(generator, monkeypatch):
    model, criterion, optimizer, _ = parts("gamma 0")
    step, move, places = GraphedStep(model, criterion, optimizer), cuda_graphs.on_device, []
    monkeypatch.setattr(cuda_graphs, "on_device", lambda batch, place: places.append(place) or move(batch, place))
    for inputs, labels, index in batches("rows", 6):
        step((inputs.cpu(), labels.cpu(), index.cpu()))
    assert step.recorded and {place.type for place in places} == {"cuda"}
