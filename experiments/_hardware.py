"""Torch as the experiments use it: the same numbers every time on the same hardware."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from experiments.studies._where import one_thread


def device_name(device: str) -> str:
    """Return the name of the hardware in words."""
    return torch.cuda.get_device_name() if torch.device(device).type == "cuda" else "CPU"


@contextmanager
def deterministic() -> Iterator[None]:
    """Ask torch for the same numbers every time on the same hardware, for a while.

    It has one thread, on every device, since sums over several end elsewhere; float32 products may use TF32.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    memory: Any = torch.utils.deterministic
    filled, precision = memory.fill_uninitialized_memory, torch.get_float32_matmul_precision()
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # no operation here reads what it has not written
    torch.set_float32_matmul_precision("high")
    try:
        with one_thread():
            yield
    finally:
        torch.use_deterministic_algorithms(before)
        memory.fill_uninitialized_memory = filled
        torch.set_float32_matmul_precision(precision)
