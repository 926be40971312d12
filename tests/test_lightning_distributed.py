"""Lightning on two processes: the run of one process, and checkpoints that hold what each of them needs."""

from __future__ import annotations

import logging

import lightning_distributed as distributed
import pytest
import torch
from lightning_runs import assert_same
from processes import run_processes

ACCUMULATE = {"accumulate_grad_batches": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lightning")
    distributed.cut(distributed.make(dropout=0.0), folder / "of one.ckpt", 6, **ACCUMULATE)
    run_processes(distributed.work, 2, folder)
    return folder


@pytest.fixture(scope="module")
def results(folder):
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return distributed.fit(distributed.make(dropout=0.0), tmp_path_factory.mktemp("alone") / "end.ckpt", **ACCUMULATE)


def assert_close(found, expected):
    assert found["steps"] == expected["steps"] and found["loader"] == expected["loader"]
    for name, value in expected["weights and tables"].items():
        torch.testing.assert_close(found["weights and tables"][name], value, rtol=0.0, atol=1e-6)
    for name, value in expected["ours"]["previous"]["weights"].items():
        torch.testing.assert_close(found["ours"]["previous"]["weights"][name], value, rtol=0.0, atol=1e-6)


def test_two_processes_compute_what_one_does(results, alone):
    for found in results:
        assert_close(found["without dropout"], alone)
    assert alone["weights and tables"].keys() == results[0]["whole, a batch"]["weights and tables"].keys()


@pytest.mark.parametrize("name", list(distributed.CUTS))
def test_a_resumed_run_equals_the_uninterrupted_one(results, folder, name):
    for found in results:
        assert_same(found[f"resumed, {name}"], found[f"whole, {name}"])
    first, second = (found[f"whole, {name}"]["ours"]["processes"] for found in results)
    assert_same(first, second)
    assert not torch.equal(first[0]["random"]["torch"], first[1]["random"]["torch"])  # each its own dropout masks
    saved = torch.load(folder / f"{name}.ckpt", weights_only=True)["callbacks"]["StatefulCriterion"]["processes"]
    gradients = [own["gradients"].get("part.net.0.weight") for own in saved]
    if name == "an accumulation":
        assert not torch.equal(*gradients)  # not put together yet
    else:
        assert gradients == [None, None]


def test_another_number_of_processes_resumes_with_the_same_steps(results, alone, folder, tmp_path, caplog):
    for found in results:
        assert_close(found["from one"], alone)
    with caplog.at_level(logging.WARNING, logger="moreauc"):
        parts = distributed.make(dropout=0.0)
        found = distributed.fit(parts, tmp_path / "end.ckpt", checkpoint=folder / "of two.ckpt", **ACCUMULATE)
    assert_close(found, alone)
    assert "the checkpoint is of 2 processes, there are 1" in caplog.text


def test_what_cannot_work_on_several_processes_is_refused_in_all(results):
    for rank, found in enumerate(results):
        assert f"DistributedBatchSampler with rank {rank} and world_size 2, got 0 and 1" in found["undealt"]
        assert "DistributedCriterion of all 2 processes, got TPAUCLoss of 1" in found["a loss of one"]
