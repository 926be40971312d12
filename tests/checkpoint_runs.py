"""Runs of `fit` with checkpoints, on one process or several; each process writes its results to a file."""

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
from moreauc._parallel import gathered
from moreauc.checkpoint import CheckpointError, Interrupted, RunState
from moreauc.data import TensorBatches
from moreauc.distributed import DistributedCriterion
from moreauc.samplers import DistributedBatchSampler, PosNegSampler
from moreauc.train import Callback, fit

LABELS = (torch.arange(60) % 5 == 0).long()
X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5 * LABELS.unsqueeze(1)
DROPOUT = 0.4


class Cut(Callback):
    """Ends a run at a step, in all processes or, by a signal, in one."""

    def __init__(self, epoch: int, step: int, number: int | None = None) -> None:
        self.place, self.number = (epoch, step), number

    def on_step(self, state: Any) -> None:
        if (state.epoch, state.step) == self.place:
            if self.number is None:
                raise RuntimeError("cut")
            os.kill(os.getpid(), self.number)


def shard(network: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(network[0], mesh=mesh)
    return fully_shard(network, mesh=mesh)


def train(
    folder: Path | None, *, rank: int = 0, world: int = 1, dropout: float = 0.0, sharded: bool = False, **options: Any
) -> dict:
    """Train, and return all that a run ends with."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 1), nn.Flatten(0)).double()
    model: nn.Module = network
    if sharded:
        model = shard(network)
        options = {"optimizer": "adam", "proximal": 0.1, **options}  # states of all kinds
    elif world > 1:
        model = DistributedDataParallel(network)
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
        **{"validation": TensorBatches(X, LABELS), "epochs": 2, "lr": 0.05, "seed": 3, "warm_start_epochs": 1},
        **kept,
        **options,
    )
    scores = history["score"]
    weights = {name: gathered(value) for name, value in network.state_dict().items()}
    return {"model": weights, "criterion": criterion.state_dict(), "scores": torch.tensor(scores)}


def cut(folder: Path, epoch: int, step: int, **options: Any) -> None:
    """Train until an error at a step."""
    try:
        train(folder, callbacks=[Cut(epoch, step)], **options)
    except RuntimeError as error:
        assert str(error) == "cut"
    else:
        raise AssertionError("the run was not cut")


def work(rank: int, world: int, folder_name: str) -> None:
    """Do all runs of a process."""
    torch.set_num_threads(1)
    folder = Path(folder_name)
    dist.init_process_group("gloo", f"file://{folder}/meet-{world}", rank=rank, world_size=world)
    place: dict[str, Any] = {"rank": rank, "world": world}
    here = folder / f"{world}-cut"
    found: dict[str, Any] = {"whole": train(None, dropout=DROPOUT, **place)}
    cut(here, 1, 2, dropout=DROPOUT, **place)
    found["cut"] = train(here, dropout=DROPOUT, **place)
    found["again"] = train(here, dropout=DROPOUT, **place)  # complete: restored
    for source in (1, 2):
        if source != world:
            found[f"from {source}"] = train(folder / f"half-{source}-for-{world}", **place)
    for target in (1, 3):
        if target != world:
            cut(folder / f"half-{world}-for-{target}", 1, 2, **place)
    if world == 2:
        found["signal"], found["signalled"] = signalled(folder / "signal", place)
        found |= sharded(folder, place)
    else:  # what two processes have saved
        found["sharded from two"] = train(folder / "sharded", sharded=True, **place)
    found["refused"] = refused(here, place)
    dist.barrier()
    found["files"] = sorted(path.name for path in here.iterdir())
    torch.save(found, folder / f"{world}-{rank}.pt")
    dist.destroy_process_group()


def sharded(folder: Path, place: dict[str, Any]) -> dict[str, Any]:
    """Save and resume runs of `fully_shard`, and save one for another number of processes."""
    options = {**place, "sharded": True}
    found: dict[str, Any] = {
        "whole sharded": train(None, dropout=DROPOUT, **options),
        "plain sharded": train(None, **options),
    }
    here = folder / "cut-sharded"
    cut(here, 1, 2, dropout=DROPOUT, **options)
    found["cut sharded"] = train(here, dropout=DROPOUT, **options)
    found["again sharded"] = train(here, dropout=DROPOUT, **options)
    cut(folder / "sharded", 1, 2, **options)
    return found | sharded_state()


def sharded_state() -> dict[str, Any]:
    """Compare the weights of a `RunState` with those of torch; a load that fails leaves the shards as they were."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    model = shard(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    run = RunState(model, nn.BCEWithLogitsLoss(), optimizer, [0], others={"part": Refusing()})
    state, torchs = run.state_dict(), get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    same = all(torch.equal(torchs[name], value) for name, value in state["model"]["state"].items())
    for value in state["model"]["state"].values():
        value.zero_()
    state["others"]["part"]["state"] = {"refused": True}
    try:
        run.load_state_dict(state)
    except CheckpointError as error:
        message = str(error)
    now = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    kept = all(torch.equal(torchs[name], value) for name, value in now.items())
    return {"as torch": same and torchs.keys() == state["model"]["state"].keys(), "kept": kept, "message": message}


class Refusing:
    """A part that cannot load a state."""

    def state_dict(self) -> dict[str, bool]:
        return {"refused": False}

    def load_state_dict(self, state: dict[str, bool]) -> None:
        if state["refused"]:
            raise KeyError("refused")


def signalled(folder: Path, place: dict[str, Any]) -> tuple[str, dict]:
    """Send a signal to the last process only; all must stop at the same step."""
    last = place["rank"] == place["world"] - 1
    try:
        train(folder, dropout=DROPOUT, callbacks=[Cut(0, 2, signal.SIGTERM)] if last else [Callback()], **place)
    except Interrupted as error:
        return str(error), train(folder, dropout=DROPOUT, **place)
    raise AssertionError("the run did not stop")


def refused(folder: Path, place: dict[str, Any]) -> list[str]:
    """Return the errors of calls that all processes must refuse."""
    texts = []
    for options in ({"resume": False}, {"lr_factor": 0.5}):
        try:
            train(folder, **place, **options)
        except ValueError as error:
            texts.append(f"{type(error).__name__}: {error}")
    return texts
