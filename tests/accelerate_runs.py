"""The runs of tests/test_accelerate.py: the example, on several processes."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist

EXAMPLES = Path(__file__).parents[1] / "examples"


def example() -> ModuleType:
    """Return the program."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module("accelerate_tpauc")


def work(rank: int, world: int, folder_name: str) -> None:
    """Do all runs of a process."""
    torch.set_num_threads(1)
    folder = Path(folder_name)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    os.environ.update({name: str(value) for name, value in names.items()})  # as `accelerate launch` does
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    train = example().train
    found = {"whole": train(folder / "whole", epochs=2), "without dropout": train(folder / "plain", dropout=0.0)}
    for stop in (5, 12, 24):
        train(folder / f"cut {stop}", epochs=2, stop_after=stop)
        found[f"cut {stop}"] = train(folder / f"cut {stop}", epochs=2, resume=True)
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()
