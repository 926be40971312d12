"""Processes of tests, which start as copies of one that has imported what they need: that takes seconds."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import torch.multiprocessing

# the optimizers import the compiler; nothing of the library, whose place only the new process knows
IMPORTED = [
    "torch",
    "torch._dynamo",
    "torch.nn.parallel",
    "torch.distributed.fsdp",
    "scipy.optimize",
    "sklearn.metrics",
]


def run_processes(work: Callable[[int, int, str], None], number: int, folder: Path) -> None:
    """Call `work(rank, number, folder)` in so many processes, none of which has anything of this one."""
    multiprocessing.set_forkserver_preload(IMPORTED)
    torch.multiprocessing.start_processes(work, (number, str(folder)), nprocs=number, start_method="forkserver")
