"""The runs of tests/test_lightning_distributed.py: Lightning on several processes."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning_runs import NAMES, REGION, Kill, Killed, Own, Save, X, Y, everything, rows, trainer_of

from moreauc import TPAUCLoss
from moreauc.contrib.lightning import ResumableLoader, StatefulCriterion
from moreauc.data import TensorBatches
from moreauc.distributed import DistributedCriterion
from moreauc.samplers import DistributedBatchSampler, PosNegSampler

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
    try:
        fit(parts, None, [Save(batch, path), Kill(batch + 2)], **options)
    except Killed:
        return
    raise AssertionError("nobody was killed")


def refused(parts, **options):
    """Return what the run is refused with."""
    try:
        fit(parts, None, **options)
    except ValueError as error:
        return str(error)
    return "nothing"


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
    options = {**several, "accumulate_grad_batches": 3}
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
