"""What `step.py` records of a step besides its time: waits for the GPU, launches, operations, memory, errors."""

from __future__ import annotations

import gc
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from bench_step import Step
from torch.utils._python_dispatch import TorchDispatchMode

LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")
COUNTED = 3  # steps that are watched for waits and launches


def attempt(function: Callable[[], Any]) -> tuple[Any, str | None]:
    """What a function returns, or the error that it raised in a few words."""
    try:
        return function(), None
    except Exception as error:  # recorded, whatever it is: the other variants go on
        lines = [line for line in str(error).splitlines() if line.strip()]
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        return None, f"{type(error).__name__} at {where}: {' '.join(lines)[:400]}"


def waits(step: Step) -> float:
    """Times that a step makes the host wait for the GPU."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(COUNTED):
                step()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("called a synchronizing" in str(item.message) for item in caught) / COUNTED


def strict(step: Step) -> bool:
    """Whether a step passes where to wait for the GPU is an error."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(COUNTED):
            step()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return True


def launches(step: Step) -> dict[str, float]:
    """What a step launches, by the names of the runtime, and kernels that run."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for _ in range(COUNTED):
            step()
        torch.cuda.synchronize()
    counts: Counter[str] = Counter()
    for event in found.events():
        kind = next((name for name in LAUNCHES if event.name.startswith(name)), None)
        if kind is not None:
            counts[kind] += 1
        elif str(event.device_type).endswith("CUDA"):
            counts["kernels and copies on the GPU"] += 1
    return {name: count / COUNTED for name, count in sorted(counts.items())}


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(step: Step) -> int:
    """Operations of torch in a step, forward and backward."""
    mode = _Operations()
    with mode:
        step()
    return mode.count


@contextmanager
def memory_of(row: dict[str, Any], device: torch.device) -> Iterator[None]:
    """Record how far GPU memory rises while a variant is made and does its first steps."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    before, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    yield
    row["peak MiB"] = (torch.cuda.max_memory_allocated(device) - before) / 2**20
    row["reserved MiB"] = (torch.cuda.memory_reserved(device) - reserved) / 2**20


def release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
