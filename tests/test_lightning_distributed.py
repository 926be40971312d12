"""Lightning on two processes: the run of one process, and checkpoints that hold what each of them needs."""

from __future__ import annotations

import logging

import lightning_distributed as distributed
import pytest
import torch
from lightning_runs import REGION, X, Y, assert_same
from processes import run_processes

from moreauc.metrics import tpauc_score

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
    assert found["logged"] == pytest.approx(expected["logged"], abs=1e-6)


def test_two_processes_compute_what_one_does(results, alone):
    for found in results:
        assert_close(found["without dropout"], alone)
    assert alone["weights and tables"].keys() == results[0]["whole, a batch"]["weights and tables"].keys()


def test_the_score_is_of_all_rows_each_once(results):
    model = distributed.network().eval()
    for found in results:
        state = found["without dropout"]["weights and tables"]
        model.load_state_dict({name.removeprefix("model."): state[name] for name in state if name[:6] == "model."})
        with torch.no_grad():
            scores = model(X).squeeze(1).double()
        expected = tpauc_score(Y.numpy(), scores.numpy(), **REGION)
        assert found["without dropout"]["logged"]["val_score"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", list(distributed.CUTS))
def test_a_resumed_run_equals_the_uninterrupted_one(results, folder, name):
    for found in results:
        whole, resumed = found[f"whole, {name}"], found[f"resumed, {name}"]
        logged = [part.pop("logged") for part in (whole, resumed)]
        assert_same(resumed, whole)
        assert logged[0]["val_score"] == logged[1]["val_score"]
    first, second = (found[f"whole, {name}"]["ours"]["processes"] for found in results)
    assert_same(first, second)
    assert not torch.equal(first[0]["random"]["torch"], first[1]["random"]["torch"])  # each its own dropout masks
    saved = torch.load(folder / f"{name}.ckpt", weights_only=True)["callbacks"]["StatefulCriterion"]["processes"]
    gradients = [own["gradients"].get("model.0.weight") for own in saved]
    if name == "an accumulation":
        assert not torch.equal(*gradients)  # not put together yet
    else:
        assert gradients == [None, None]


def test_another_number_of_processes_resumes_with_the_same_steps(results, alone, folder, tmp_path, caplog):
    for found in results:
        assert_close({**found["from one"], "logged": alone["logged"]}, alone)
        assert found["from one"]["logged"]["val_score"] == pytest.approx(alone["logged"]["val_score"], abs=1e-6)
    with caplog.at_level(logging.WARNING, logger="moreauc"):
        parts = distributed.make(dropout=0.0)
        found = distributed.fit(parts, tmp_path / "end.ckpt", checkpoint=folder / "of two.ckpt", **ACCUMULATE)
    assert_close({**found, "logged": alone["logged"]}, alone)
    assert "the checkpoint is of 2 processes, there are 1: what is drawn at random will be different" in caplog.text


def test_what_cannot_work_on_several_processes_is_refused_in_all(results):
    for rank, found in enumerate(results):
        message = f"DistributedBatchSampler with rank {rank} and world_size 2, got 0 and 1"
        assert message in found["undealt"]
        message = "criterion must be a moreauc.distributed.DistributedCriterion of all 2 processes, got TPAUCLoss of 1"
        assert message in found["a loss of one"]
        message = "batches of validation must be (inputs, labels, index) on several processes, got 2 parts"
        assert message in found["rows without numbers"]
