"""Lightning on two processes: the run of one process, and checkpoints that hold what each of them needs."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning_runs import NAMES, REGION, Kill, Killed, Own, Save, X, Y, assert_same, everything, rows, trainer_of
from processes import run_processes

from moreauc import TPAUCLoss
from moreauc.contrib.lightning import ResumableLoader, StatefulCriterion
from moreauc.data import TensorBatches
from moreauc.distributed import DistributedCriterion
from moreauc.samplers import DistributedBatchSampler, PosNegSampler

ACCUMULATE = {"accumulate_grad_batches": 3}
CUTS = {"a batch": (1, 1), "an epoch": (4, 1), "an accumulation": (6, 3)}  # the batch saved after, batches in a step


def make(rank=0, world=1, dropout=0.3):
    """Return a module and loaders of one process; all with the same weights, each with numbers of its own to draw."""
    module = Own(DistributedCriterion(TPAUCLoss(Y, **REGION, gamma=0.2)))
    module.part["net"][2].p = dropout
    dealt = DistributedBatchSampler(PosNegSampler(Y, num_positives=3, num_negatives=9), rank=rank, world_size=world)
    torch.manual_seed(10 + rank)
    return SimpleNamespace(
        module=module, loader=ResumableLoader(TensorBatches(X, Y, dealt)), validation=TensorBatches(X, Y)
    )


def fit(parts, path, callbacks=(), checkpoint=None, **options):
    """Train, from a checkpoint if there is one; return all that runs must have in common."""
    trainer = trainer_of([StatefulCriterion(**NAMES, proximal=0.1), *callbacks], **options)
    trainer.fit(parts.module, parts.loader, parts.validation, ckpt_path=checkpoint, weights_only=True)
    return everything(trainer, path)


def cut(parts, path, batch, **options):
    """Save after a batch and be killed in the next but one."""
    with pytest.raises(Killed):
        fit(parts, None, [Save(batch, path), Kill(batch + 2)], **options)


def refused(parts, **options):
    """Return what the run is refused with."""
    with pytest.raises(ValueError) as caught:
        fit(parts, None, **options)
    return str(caught.value)


def work(rank: int, world: int, folder_name: str) -> None:
    """Do all runs of a process."""
    warnings.simplefilter("error", PossibleUserWarning)  # that values logged are not put together, say
    torch.set_num_threads(1)
    folder = Path(folder_name)
    names = {"LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    os.environ.update({name: str(value) for name, value in names.items()})
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    several = {"strategy": "ddp", "devices": world}
    found = {}
    for name, (batch, accumulate) in CUTS.items():
        options = {**several, "accumulate_grad_batches": accumulate}
        found[f"whole, {name}"] = fit(make(rank, world), folder / "whole.ckpt", **options)
        cut(make(rank, world), folder / f"{name}.ckpt", batch, **options)
        parts = make(rank, world)
        torch.manual_seed(99)
        found[f"resumed, {name}"] = fit(parts, folder / "end.ckpt", checkpoint=folder / f"{name}.ckpt", **options)
    options = {**several, **ACCUMULATE}
    found["without dropout"] = fit(make(rank, world, 0.0), folder / "end.ckpt", **options)
    cut(make(rank, world, 0.0), folder / "of two.ckpt", 6, **options)
    parts = make(rank, world, 0.0)
    found["from one"] = fit(parts, folder / "end.ckpt", checkpoint=folder / "of one.ckpt", **options)
    found["undealt"] = refused(SimpleNamespace(**{**vars(make(rank, world)), "loader": make().loader}), **several)
    alone = make(rank, world)
    alone.module.loss = rows()[0]
    found["a loss of one"] = refused(alone, **several)
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lightning")
    cut(make(dropout=0.0), folder / "of one.ckpt", 6, **ACCUMULATE)
    run_processes(work, 2, folder)
    return folder


@pytest.fixture(scope="module")
def results(folder):
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return fit(make(dropout=0.0), tmp_path_factory.mktemp("alone") / "end.ckpt", **ACCUMULATE)


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


@pytest.mark.parametrize("name", list(CUTS))
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
        parts = make(dropout=0.0)
        found = fit(parts, tmp_path / "end.ckpt", checkpoint=folder / "of two.ckpt", **ACCUMULATE)
    assert_close(found, alone)
    assert "the checkpoint is of 2 processes, there are 1" in caplog.text


def test_what_cannot_work_on_several_processes_is_refused_in_all(results):
    for rank, found in enumerate(results):
        assert f"DistributedBatchSampler with rank {rank} and world_size 2, got 0 and 1" in found["undealt"]
        assert "DistributedCriterion of all 2 processes, got TPAUCLoss of 1" in found["a loss of one"]
