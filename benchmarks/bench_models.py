"""Training steps of the networks of the experiments: seconds per epoch by loss, and many small networks at once.

1. GIN on batches of molecules and ResNet20 on bags of patches, trained by cross entropy, by SONX or SONT with gamma 0
   and with gamma 0.1, and by cross entropy with one more forward without gradient, the floor of a correction. For GIN
   also with the loss on the CPU, as the experiments have it (with `--device cpu` that is only another wrapping). An
   epoch is the time of a step times its steps. Batches are ready on the device; the time to make one is
   reported separately.
2. GIN copies in one model (`SideBySide`) beside as many single ones that are trained one after the other; with
   `--processes 1,4,8,16` also such models in so many processes at once, one thread each.

Variants take turns, a few steps each, and a ratio is formed in each round, so that a slow moment of the machine hits
all of them. Torch is set as in the experiments. No file is read.
`python benchmarks/bench_models.py --device cuda --out FILE` writes the medians with their quartiles.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from bench_pairs import Turn, take_turns, write
from bench_step import Step, synchronize
from model_steps import (
    CE,
    GAMMAS,
    ON_CPU,
    QUICK,
    Sizes,
    bag_loader,
    endless,
    gin_steps,
    graph_loader,
    molecule_graphs,
    moved,
    one_by_one,
    resnet_steps,
    set_torch,
    together,
)

from experiments.data.graphs import GraphBatches, Graphs
from moreauc.app.report.pages import versions
from moreauc.data import BagBatches

COPIES_OF_A_PROCESS = 6  # what the experiments train side by side
PATIENCE = 300.0  # seconds that a process waits for the others
WARM = {"cpu": 1, "cuda": 5}  # steps before the timing: they choose kernels and allocate memory


def spread(values: Iterable[float]) -> dict[str, Any]:
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "quartiles": [low, high]}


def quotients(upper: Sequence[float], lower: Sequence[float]) -> dict[str, Any]:
    return spread([a / b for a, b in zip(upper, lower, strict=True)])


def measured(variants: Mapping[str, Step], device: torch.device, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Seconds of a step of each variant in each round."""

    def turn(step: Step) -> Turn:
        def timed(times: int) -> list[float]:
            # all of a turn at once: between its steps a GPU is not waited for
            synchronize(device)
            begin = time.perf_counter()
            for _ in range(times):
                step()
            synchronize(device)
            return times * [(time.perf_counter() - begin) / times]

        return timed

    for step in variants.values():
        for _ in range(WARM[device.type] - 1):  # one more is done by what follows
            step()
    return take_turns({name: turn(step) for name, step in variants.items()}, rounds=rounds, seconds=seconds)


def epochs(
    variants: dict[str, Step], loader: GraphBatches | BagBatches, device: torch.device, options: argparse.Namespace
) -> dict[str, Any]:
    """What a step and an epoch take with each loss, and what it takes to make a batch."""
    source, steps = endless(loader), len(loader)

    def make() -> None:
        moved(next(source), device)

    times = measured({**variants, "batch": make}, device, options.rounds, options.seconds)
    making = times.pop("batch")
    rows = [
        {
            "variant": name,
            "milliseconds per step": spread([1e3 * second for second in seconds]),
            "seconds per epoch": spread([steps * second for second in seconds]),
            f"times {CE}": quotients(seconds, times[CE]),
        }
        for name, seconds in times.items()
    ]
    return {
        "steps of an epoch": steps,
        "rounds": len(making),
        "making a batch": {
            "milliseconds": spread([1e3 * second for second in making]),
            "seconds per epoch": spread([steps * second for second in making]),
        },
        "variants": rows,
    }


def side_by_side(
    loader: GraphBatches, sizes: Sizes, device: torch.device, options: argparse.Namespace
) -> dict[str, Any]:
    """Copies in one model beside single models, one after the other."""
    variants: dict[str, Step] = {}
    for copies in options.copies:
        variants[f"{copies} side by side"] = together(loader, sizes, device, copies)
        variants[f"{copies} one after the other"] = one_by_one(loader, sizes, device, copies)
    times = measured(variants, device, options.rounds, options.seconds)
    rows: list[dict[str, Any]] = []
    for copies in options.copies:
        row: dict[str, Any] = {"copies": copies}
        for name in ("side by side", "one after the other"):
            seconds = times[f"{copies} {name}"]
            row[name] = {
                "milliseconds for a step of all": spread([1e3 * second for second in seconds]),
                "steps of models per second": spread([copies / second for second in seconds]),
            }
        alone = times[f"{copies} one after the other"]
        rows.append({**row, "one after the other / side by side": quotients(alone, times[f"{copies} side by side"])})
    return {"loss": f"SONX, gamma {GAMMAS[-1]:g}{ON_CPU}", "rounds": len(alone), "copies": rows}


Made = Callable[..., Step]  # a function of a module: processes import it


def gin_copies(arrays: dict[str, Any], sizes: Sizes, device: torch.device) -> Step:
    """A step of the copies that a process trains side by side."""
    loader = graph_loader(Graphs(**arrays).to(device), sizes)
    return together(loader, sizes, device, COPIES_OF_A_PROCESS)


def work(
    make: Made, arguments: tuple[Any, ...], place: str, barriers: Mapping[int, Any], pipe: Connection[Any, Any]
) -> None:
    """A worker process: for each request (number of processes, seconds) return its steps per second."""
    set_torch(threads=1)
    device = torch.device(place)
    step = make(*arguments, device)
    for _ in range(WARM[device.type]):
        step()
    synchronize(device)
    pipe.send("ready")
    while (request := pipe.recv()) is not None:
        number, seconds = request
        barriers[number].wait(PATIENCE)
        done, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            step()
            done += 1
        synchronize(device)
        pipe.send(done / (time.perf_counter() - begin))


def processes(
    make: Made, arguments: tuple[Any, ...], options: argparse.Namespace, *, models: int = 1
) -> dict[int, list[list[float]]]:
    """Steps of models per second of each process, for each number of them that work at once, in each window.

    Idle processes wait and keep their memory.

    Args:
        make: makes a step of these arguments and the device.
        arguments: what can be sent to a process.
        options: `processes`, `device`, `windows`, `window`.
        models: models that a step trains.
    """
    context = get_context("spawn")
    barriers = {number: context.Barrier(number) for number in options.processes}
    pipes, workers = [], []
    rates: dict[int, list[list[float]]] = {number: [] for number in options.processes}
    try:
        for _ in range(max(options.processes)):
            ours, theirs = context.Pipe()
            workers.append(
                context.Process(target=work, args=(make, arguments, options.device, barriers, theirs), daemon=True)
            )
            workers[-1].start()
            theirs.close()  # else the end of the process would not be noticed
            pipes.append(ours)
        for pipe in pipes:
            pipe.recv()
        for _ in range(options.windows):
            for number in options.processes:
                for pipe in pipes[:number]:
                    pipe.send((number, options.window))
                rates[number].append([models * pipe.recv() for pipe in pipes[:number]])
        for pipe in pipes:
            pipe.send(None)
        for worker in workers:
            worker.join()
    finally:
        for worker in workers:
            worker.terminate()
    return rates


def process_rows(rates: Mapping[int, Sequence[Sequence[float]]], options: argparse.Namespace) -> dict[str, Any]:
    """Rows of the report from the steps of models per second of each process, for each number of them and window."""
    totals = {number: [sum(window) for window in windows] for number, windows in rates.items()}
    first = options.processes[0]
    rows = [
        {
            "processes": number,
            "steps of models per second, each process": spread([rate for window in windows for rate in window]),
            "steps of models per second, all": spread(totals[number]),
            f"times {first}": quotients(totals[number], totals[first]),
        }
        for number, windows in rates.items()
    ]
    return {"threads of each": 1, "windows": options.windows, "seconds of a window": options.window, "processes": rows}


def described(graphs: Graphs, kind: str) -> dict[str, Any]:
    return {
        "graphs": kind,
        "atoms of a molecule, mean": float(graphs.nodes.double().mean()),
        "edges of an atom, mean": float(graphs.links.sum() / graphs.nodes.sum()),
    }


def numbers(text: str) -> list[int]:
    values = [int(part) for part in text.split(",")]
    if min(values) < 1 or len(set(values)) < len(values):
        raise ValueError
    return values


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="tiny sizes and few rounds: does it run?")
    parser.add_argument("--copies", type=numbers, default=[1, 2, 6, 12, 24], help="as 1,2,6")
    parser.add_argument("--processes", type=numbers, default=[], help="as 1,4,8,16; none by default")
    parser.add_argument("--rounds", type=int, default=30, help="at most, and at least 3 of them")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a part, once there are 3 rounds")
    parser.add_argument("--threads", type=int, default=1, help="of torch, in this process")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.rounds = max(options.rounds, 3)
    options.windows, options.window = 5, 2.0
    if options.quick:
        options.copies, options.rounds, options.windows, options.window = [1, 2], 3, 2, 0.1
    return options


def command(options: argparse.Namespace) -> str:
    words = ["python benchmarks/bench_models.py", "--device", options.device]
    if options.quick:
        words += ["--quick"]
    else:
        words += ["--copies", ",".join(map(str, options.copies)), "--rounds", str(options.rounds)]
        words += ["--seconds", f"{options.seconds:g}", "--threads", str(options.threads)]
    if options.processes:
        words += ["--processes", ",".join(map(str, options.processes))]
    return " ".join(words)


def main() -> None:
    options = parse()
    set_torch(options.threads)
    device = torch.device(options.device)
    sizes = QUICK if options.quick else Sizes()
    kind, graphs = molecule_graphs(sizes)
    result: dict[str, Any] = {
        "title": "training steps of the networks of the experiments",
        "command": command(options),
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "numbers": "float32, deterministic algorithms; products on a GPU may use TF32",
        "CUDA_MPS_PIPE_DIRECTORY is set": "CUDA_MPS_PIPE_DIRECTORY" in os.environ,
        "sizes": {**asdict(sizes), **described(graphs, kind)},
    }
    loader = graph_loader(graphs.to(device), sizes)
    result["GIN"] = epochs(gin_steps(loader, sizes, device), loader, device, options)
    bags = bag_loader(sizes)
    result["ResNet20"] = epochs(resnet_steps(bags, sizes, device), bags, device, options)
    result["side by side"] = side_by_side(loader, sizes, device, options)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if options.processes:
        rates = processes(gin_copies, (graphs.arrays(), sizes), options, models=COPIES_OF_A_PROCESS)
        result["processes"] = {"copies of each": COPIES_OF_A_PROCESS, **process_rows(rates, options)}
    write(result, options.out)


if __name__ == "__main__":
    main()
