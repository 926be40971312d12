"""`torch.compile` takes losses and models in whole, and gives the same numbers. To compile takes long: few cases."""

from __future__ import annotations

import pytest
import torch
from conformance import CASES
from torch._dynamo.utils import counters

from experiments.data.graphs import Graphs
from experiments.models.gin import GIN
from experiments.models.resnet import ResNet20
from moreauc import PreviousIterate
from moreauc.models import MLP, InstanceMLP

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
ON_EACH_DEVICE = pytest.mark.parametrize("device", DEVICES)
# torch warns of what its compiler itself does with a user's autograd function
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def step(criterion, case, number, device):
    batch = {
        name: (value.double() if name in case.values else value).to(device)
        for name, value in case.batch(number).items()
    }
    leaf = batch[case.values[0]].requires_grad_()
    loss = criterion(**batch)
    loss.backward()
    return loss.detach(), leaf.grad


def assert_same_run(case, change, device, backend, steps=20):
    plain, bare = change(case.build()).double().to(device), change(case.build()).double().to(device)
    plain.checks = "now"
    compiled = torch.compile(bare, fullgraph=True, backend=backend)
    for number in range(steps):
        for one, other in zip(step(plain, case, number, device), step(compiled, case, number, device), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-10)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(bare.state_dict()[name], value, rtol=1e-10, atol=1e-10)
    assert counters["stats"]["unique_graphs"] == 1, "compiled again"


def quantile(criterion):
    criterion.threshold_lr = "quantile"
    return criterion


LOSSES = [
    ("TPAUCLoss-msvr", lambda c: c),
    ("TPAUCLoss-theory", quantile),
    ("MultiInstanceTPAUCLoss-smoothed_max-moving-average", lambda c: c),
    ("MultiInstanceTPAUCLoss-attention-msvr", lambda c: c),
    ("GroupDROLoss-msvr", lambda c: c),
    ("FCCOLoss-msvr", lambda c: c),
    ("TCCOLoss-msvr", lambda c: c),
    ("CrossEntropyLoss-weighted", lambda c: c),
    ("STACOLoss-default", lambda c: c),
    ("GroupedLoss-msvr", lambda c: c),
]


@ON_EACH_DEVICE
@pytest.mark.parametrize(("name", "change"), LOSSES, ids=[name for name, _ in LOSSES])
def test_losses_compile_in_one_graph_to_the_same_numbers(name, change, device):
    assert_same_run(BY_NAME[name], change, device, "aot_eager")


@ON_EACH_DEVICE
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of parts of torch that its compiler imports
def test_the_usual_compiler_gives_the_same_numbers(device):
    assert_same_run(BY_NAME["TPAUCLoss-moving-average"], lambda c: c, device, "inductor", steps=5)


def graphs():
    atoms, bonds = torch.zeros(6, 9, dtype=torch.uint8), torch.zeros(4, 3, dtype=torch.uint8)
    edges = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]])
    whole = Graphs(atoms, edges, bonds, nodes=[2, 1, 3], links=[2, 0, 2], labels=[0, 1, 0])
    return [whole.batch(rows) for rows in ([0, 1], [0, 2], [0, 1, 2])]


MODELS = {
    "MLP": (lambda: MLP(4, hidden=(8,), dropout=0.5), lambda: [{"inputs": torch.randn(6, 4)} for _ in range(3)]),
    "InstanceMLP": (lambda: InstanceMLP(4, attention="gated"), lambda: [{"inputs": torch.randn(6, 4)}]),
    "ResNet20": (lambda: ResNet20(width=2), lambda: [{"inputs": torch.rand(3, 3, 32, 32)} for _ in range(2)]),
    "GIN": (lambda: GIN(layers=2, width=4, dropout=0.0), graphs),
}


@ON_EACH_DEVICE
@pytest.mark.parametrize("name", MODELS)
def test_models_compile_in_one_graph_and_not_again_for_the_previous_weights(name, device):
    make, batches = MODELS[name]
    bare = make().to(device)
    model = torch.compile(bare, fullgraph=True, backend="eager")
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.1)
    previous = PreviousIterate(model, optimizer)
    data = [{key: value.to(device) for key, value in batch.items()} for batch in batches()]
    made = []
    for _ in range(4):
        for batch in data:
            scores = model(**batch)
            before = previous(**batch)
            assert before.shape == scores.shape
            optimizer.zero_grad()
            scores.sum().backward()
            optimizer.step()
        made.append(counters["stats"]["unique_graphs"])
    assert made[0] == 2 or name == "GIN"  # with and without gradient; of GIN again, for all sizes
    assert made[0] == made[-1]


def test_compiled_gin_gives_the_same_scores():
    model = GIN(layers=2, width=4, dropout=0.0).eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for batch in graphs():
        torch.testing.assert_close(compiled(**batch), model(**batch))


@pytest.mark.parametrize("name", ["threshold_lr", "gamma"])
def test_a_schedule_does_not_compile_for_each_value(name):
    case = BY_NAME["MultiInstanceTPAUCLoss-mean-msvr"]
    plain, bare, batch = case.build(), case.build(), case.batch(0)
    compiled = torch.compile(bare, fullgraph=True, backend="eager")
    for number in range(10):
        for criterion in (plain, bare):
            setattr(criterion, name, 0.1 / (number + 1))
        torch.testing.assert_close(compiled(**batch), plain(**batch))
    assert counters["stats"]["unique_graphs"] == 2  # for one value, and for all
