"""The example of Accelerate, on one process and on several, stopped and resumed."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from interruptions import same
from processes import run_processes
from torch import nn

from moreauc import PreviousIterate
from moreauc.optim import ProximalPoint


def program() -> ModuleType:
    folder = str(Path(__file__).parents[1] / "examples")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module("accelerate_tpauc")


@pytest.fixture
def example():
    return program()


@pytest.mark.parametrize("stop_after", [1, 12, 24])  # in an epoch of 12, at its end, at the end
def test_a_run_resumed_equals_the_uninterrupted_one(example, stop_after, tmp_path):
    expected = example.train(tmp_path / "whole", epochs=2)
    place = example.train(tmp_path / "cut", epochs=2, stop_after=stop_after)["stopped at"]
    assert 12 * place["epoch"] + place["step"] == stop_after + stop_after % 2  # two batches make a step
    torch.manual_seed(99)
    found = example.train(tmp_path / "cut", epochs=2, resume=True)
    assert same(found, expected) == []
    assert expected["previous"]["weights"] and expected["epochs"] == 2 and expected["score"] > 0.5


class Killed(Exception):
    pass


@pytest.mark.parametrize(("accumulate", "batch", "place"), [(5, 19, 15), (5, 34, 25)])
def test_a_run_killed_amid_an_accumulation_equals_the_uninterrupted_one(
    example, accumulate, batch, place, tmp_path, monkeypatch
):
    """Five batches make a step, an epoch has twelve: what is saved must not lack gradients of some."""
    expected = example.train(tmp_path / "whole", epochs=3, accumulate=accumulate)
    backward, calls = Accelerator.backward, []

    def fails(accelerator, loss, **options):
        calls.append(loss)
        if len(calls) == batch:
            raise Killed
        return backward(accelerator, loss, **options)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Accelerator, "backward", fails)
        example.train(tmp_path / "cut", epochs=3, accumulate=accumulate)
    saved = torch.load(tmp_path / "cut" / "custom_checkpoint_2.pkl", weights_only=True)
    assert 12 * saved["epoch"] + saved["step"] == place
    torch.manual_seed(99)
    assert same(example.train(tmp_path / "cut", epochs=3, accumulate=accumulate, resume=True), expected) == []


STOPS = (5, 12)


def work(rank: int, world: int, folder_name: str) -> None:
    """Do all runs of a process."""
    torch.set_num_threads(1)
    folder = Path(folder_name)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    os.environ.update({name: str(value) for name, value in names.items()})  # as `accelerate launch` does
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    train = program().train
    found = {"whole": train(folder / "whole", epochs=2), "without dropout": train(folder / "plain", dropout=0.0)}
    for stop in STOPS:
        train(folder / f"cut {stop}", epochs=2, stop_after=stop)
        found[f"cut {stop}"] = train(folder / f"cut {stop}", epochs=2, resume=True)
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accelerate")
    run_processes(work, 2, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def test_two_processes_do_what_one_does(example, together, tmp_path):
    expected = example.train(tmp_path, dropout=0.0)
    for found in together:
        for name in ("weights", "criterion", "previous", "score", "epochs"):
            torch.testing.assert_close(found["without dropout"][name], expected[name], rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("stop", STOPS)
def test_two_processes_resume(together, stop):
    for found in together:
        assert same(found[f"cut {stop}"], found["whole"]) == []
    assert same(*({**found["whole"], "random": None} for found in together)) == []
    assert not torch.equal(*(found["whole"]["random"] for found in together))  # each its own dropout masks


def test_the_example_on_the_command_line(example, tmp_path, monkeypatch, capsys):
    def line(*options):
        monkeypatch.setattr(sys, "argv", ["accelerate_tpauc.py", "--folder", str(tmp_path), "--epochs", "1", *options])
        example.main()
        return capsys.readouterr().out

    assert line("--stop-after", "3").startswith("stopped: {'epoch': 0, 'step': 4")
    assert line("--resume").startswith("two-way partial AUC of new data 0.")


def test_previous_weights_and_reference_point_follow_a_wrapped_optimizer():
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    raw = torch.optim.SGD(model.parameters(), lr=0.5)
    wrapped = Accelerator(cpu=True).prepare_optimizer(raw)
    previous, point = PreviousIterate(model, wrapped), ProximalPoint(wrapped, 1.0)
    x, start = torch.ones(1, 2), model.weight.detach().clone()
    before = model(x).detach()
    model(x).sum().backward()
    wrapped.step()
    assert torch.equal(previous(x), before) and not torch.equal(model(x), before)
    assert torch.equal(point.state_dict()["reference"][0], start) and point.optimizer is raw
