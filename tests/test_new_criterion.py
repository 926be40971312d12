"""The loss of docs/new_criterion.md: its three blocks of code are taken from the page and run."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from types import ModuleType

import conformance
import pytest
import test_conformance
import test_late
import torch
import torch.distributed as dist
from processes import run_processes

from moreauc.distributed import DistributedCriterion

PAGE = Path(__file__).parent.parent / "docs" / "new_criterion.md"
# torch warns of what its compiler itself does with a user's autograd function
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def block(name):
    """Return the block of the page whose first line names a file."""
    (found,) = re.findall(rf"```python\n# {re.escape(name)}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return found


def loss():
    module = sys.modules.setdefault("loss_of_the_page", ModuleType("loss_of_the_page"))  # so that pickle finds it
    if not hasattr(module, "AveragePrecisionLoss"):
        exec(block("src/moreauc/criteria/average_precision.py"), vars(module))
    return module.AveragePrecisionLoss


def run(name, **names):
    found = dict(names)
    exec(block(name), found)
    return found


CASE = run("tests/conformance.py", **vars(conformance), AveragePrecisionLoss=loss())["CASE"]
ORACLE = run("tests/oracles.py", math=math)["average_precision"]


@pytest.mark.parametrize("checks", ["now", "late"])
def test_200_steps_are_those_of_the_oracle(checks):
    criterion, rows = CASE.build().double(), {}
    criterion.checks = checks
    for number in range(200):
        batch = CASE.batch(number)
        scores = batch["scores"].double().requires_grad_()
        value = criterion(scores, batch["labels"], batch["index"])
        value.backward()
        expected, gradient = ORACLE(scores.tolist(), batch["labels"].tolist(), batch["index"].tolist(), rows, tau=0.4)
        assert value.item() == pytest.approx(expected, abs=1e-14)
        assert scores.grad.tolist() == pytest.approx(gradient, abs=1e-14)
    positives = [number for number, label in enumerate(conformance.LABELS.tolist()) if label == 1]
    twin = torch.tensor([rows[i] for i in positives], dtype=torch.float64)
    torch.testing.assert_close(criterion.u, twin, rtol=1e-13, atol=1e-13)


BATTERY = {
    "resume": lambda: test_conformance.test_resumed_run_equals_the_uninterrupted_one(CASE, "now"),
    "unvisited": lambda: test_conformance.test_unvisited_rows_do_not_change(CASE, "now"),
    "order": lambda: test_conformance.test_order_inside_a_batch_does_not_matter(CASE, "now"),
    "purity": lambda: test_conformance.test_eval_mode_is_pure(CASE, "now"),
    "extremes": lambda: test_conformance.test_finite_at_extreme_values(CASE, "now"),
    "late": lambda: test_late.test_numbers_are_those_of_calls_that_look_at_once(CASE, "step"),
}


@pytest.mark.parametrize("name", BATTERY)
def test_it_passes_the_battery(name):
    BATTERY[name]()


@pytest.mark.parametrize("wrong", [name for name in conformance.MISTAKES if conformance.can_be_made(CASE, name)])
def test_its_errors_come_later(wrong):
    test_late.test_errors_come_with_a_later_call_and_change_nothing(CASE, wrong, "cpu")


def test_it_never_reads_a_number_on_a_device(monkeypatch):
    test_late.test_no_operation_looks_at_a_number(CASE, "step", True, monkeypatch)


def steps(criterion, parts=slice(None), number=6):
    """Return losses and gradients of a few steps on a part of each batch."""
    found = []
    for step in range(number):
        batch = {name: value[parts] for name, value in CASE.batch(step).items()}
        scores = batch["scores"].double().requires_grad_()
        value = criterion(scores, batch["labels"], batch["index"])
        value.backward()
        found.append((value.detach(), scores.grad))
    return found


def test_it_compiles_in_one_graph():
    torch.compiler.reset()
    plain, bare = CASE.build().double(), CASE.build().double()
    expected = steps(plain)
    torch.testing.assert_close(steps(torch.compile(bare, fullgraph=True, backend="aot_eager")), expected)
    torch.testing.assert_close(bare.u, plain.u)


def part_of_a_process(rank, world, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=world)
    found = steps(DistributedCriterion(CASE.build().double()), slice(3 * rank, 3 * rank + 3))
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_give_what_one_gives(tmp_path):
    run_processes(part_of_a_process, 2, tmp_path)
    expected = steps(CASE.build().double())
    for rank in range(2):
        for (value, gradient), (one, whole) in zip(torch.load(tmp_path / f"{rank}.pt"), expected, strict=True):
            torch.testing.assert_close(value, one)
            torch.testing.assert_close(gradient, 2.0 * whole[3 * rank : 3 * rank + 3])
