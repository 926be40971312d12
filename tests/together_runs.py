"""Runs of `fit` with checkpoints, on one process or several; what a process found goes into a file."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from moreauc import TPAUCLoss
from moreauc.checkpoint import Interrupted
from moreauc.data import TensorBatches
from moreauc.distributed import DistributedCriterion
from moreauc.samplers import DistributedBatchSampler, PosNegSampler
from moreauc.train import fit
from moreauc.train.callbacks import Callback

LABELS = (torch.arange(60) % 5 == 0).long()
X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5 * LABELS.unsqueeze(1)
DROPOUTS = (0.0, 0.4)


class Cut(Callback):
    """Ends a run at a step, in all processes or, by a signal, in one."""

    def __init__(self, epoch: int, step: int, number: int | None = None) -> None:
        self.place, self.number = (epoch, step), number

    def on_step(self, state: Any) -> None:
        if (state.epoch, state.step) == self.place:
            if self.number is None:
                raise RuntimeError("dark")
            os.kill(os.getpid(), self.number)


def train(folder: Path | None, *, rank: int = 0, world: int = 1, dropout: float = 0.0, **options: Any) -> dict:
    """Train, and return all that a run ends with."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 1), nn.Flatten(0)).double()
    model = DistributedDataParallel(network) if world > 1 else network
    criterion: Any = TPAUCLoss(LABELS, min_tpr=0.5, max_fpr=0.5, gamma=0.1)
    sampler: Any = PosNegSampler(LABELS, num_positives=3, num_negatives=9, seed=3)
    if world > 1:
        criterion = DistributedCriterion(criterion)
        sampler = DistributedBatchSampler(sampler, rank=rank, world_size=world)
    kept = {} if folder is None else {"checkpoint": folder, "every": 2}
    history = fit(
        model,
        criterion,
        TensorBatches(X, LABELS, sampler),
        **{"validation": TensorBatches(X, LABELS), "epochs": 3, "lr": 0.05, "seed": 3, "warm_start_epochs": 1},
        **kept,
        **options,
    )
    scores = history["score"]
    return {"model": network.state_dict(), "criterion": criterion.state_dict(), "scores": torch.tensor(scores)}


def cut(folder: Path, epoch: int, step: int, **options: Any) -> None:
    """Train until the lights go out."""
    try:
        train(folder, callbacks=[Cut(epoch, step)], **options)
    except RuntimeError as error:
        assert str(error) == "dark"
    else:
        raise AssertionError("nothing went out")


def work(rank: int, world: int, folder_name: str) -> None:
    """Do all runs of a process."""
    torch.set_num_threads(1)
    folder = Path(folder_name)
    dist.init_process_group("gloo", f"file://{folder}/meet-{world}", rank=rank, world_size=world)
    place: dict[str, Any] = {"rank": rank, "world": world}
    found: dict[str, Any] = {f"whole {dropout}": train(None, dropout=dropout, **place) for dropout in DROPOUTS}
    for dropout in DROPOUTS:
        here = folder / f"{world}-cut-{dropout}"
        cut(here, 1, 2, dropout=dropout, **place)
        found[f"cut {dropout}"] = train(here, dropout=dropout, **place)
        found[f"again {dropout}"] = train(here, dropout=dropout, **place)  # complete: put back
    found["signal"], found["signalled"] = signalled(folder / f"{world}-signal", place)
    for source in (1, 2):
        if source != world:
            found[f"from {source}"] = train(folder / f"half-{source}-for-{world}", **place)
    for target in (1, 3):
        if target != world:
            cut(folder / f"half-{world}-for-{target}", 1, 2, **place)
    found["refused"] = refused(folder / f"{world}-cut-0.0", place)
    dist.barrier()
    found["files"] = sorted(path.name for path in (folder / f"{world}-cut-0.0").iterdir())
    torch.save(found, folder / f"{world}-{rank}.pt")
    dist.destroy_process_group()


def signalled(folder: Path, place: dict[str, Any]) -> tuple[str, dict]:
    """Send a signal to the last process only; all must stop at the same step."""
    last = place["rank"] == place["world"] - 1
    try:
        train(folder, dropout=0.4, callbacks=[Cut(0, 2, signal.SIGTERM)] if last else [Callback()], **place)
    except Interrupted as error:
        return str(error), train(folder, dropout=0.4, **place)
    raise AssertionError("nobody stopped")


def refused(folder: Path, place: dict[str, Any]) -> list[str]:
    """Return the errors of calls that all processes must refuse."""
    texts = []
    for options in ({"resume": False}, {"lr_factor": 0.5}):
        try:
            train(folder, **place, **options)
        except ValueError as error:
            texts.append(f"{type(error).__name__}: {error}")
    return texts
