"""Forward and backward of the two-way partial AUC loss against batch size: time and peak memory.

1. `TPAUCLoss` as a user calls it, its kernel alone, the same with the pair matrix, and LibAUC's `tpAUC_CVaR_loss` (the
   exact objective) and `tpAUC_KL_Loss` (its smooth relative), from 64 to 10^6 of each class.
2. Where the pair matrix, sorting and tiles cross: what `moreauc.core.pairs` chooses by.

Candidates take turns, a few calls each, LibAUC's in a process and an environment of their own (see `peer.py`), one
thread each, never two at once. Memory is that of a fresh process: how far its peak resident size rises over the state
just before one call of forward and backward, with data and loss in place. A candidate that cannot have the memory it
asks for (`--memory-gib`) is reported with its error. `python benchmarks/bench_pairs.py --out FILE` writes the report.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from peer import (
    ALPHA,
    BETA,
    HERE,
    LOSSES,
    Peer,
    environment,
    limit_memory,
    loss_data,
    peak_memory,
    repeat,
    shorten,
    summary,
)
from torch import Tensor

from moreauc import TPAUCLoss
from moreauc.app.report.pages import to_json, versions
from moreauc.core.pairs import Method, cvar_over_negatives
from moreauc.core.surrogates import get_surrogate

SIZES = (64, 1024, 8192, 65536, 10**6)
OURS = ("TPAUCLoss", "kernel", "kernel, smooth ramp", "kernel, pair matrix")
SQUARES = [(side, side) for side in (64, 128, 256, 384, 512, 1024, 2048, 4096)]
NARROW = [(8, 20000), (20000, 8), (32, 65536), (65536, 32)]
Turn = Callable[[int], list[float]]  # seconds of each of so many calls


def our_step(name: str, size: int) -> tuple[Callable[[], Tensor], Tensor]:
    """Forward and backward on the data that the peer gets, and the tensor whose gradient it fills."""
    scores, labels, index = loss_data(size)
    if name == "TPAUCLoss":
        criterion = TPAUCLoss(labels, min_tpr=1.0 - ALPHA, max_fpr=BETA)

        def loss() -> Tensor:
            value: Tensor = criterion(scores, labels, index)
            return value

        return _step(loss, scores), scores
    method: Method = "pairs" if name == "kernel, pair matrix" else "auto"
    return kernel_step(size, size, "smooth_ramp" if name == "kernel, smooth ramp" else "squared_hinge", method)


def kernel_step(positives: int, negatives: int, surrogate: str, method: Method) -> tuple[Callable[[], Tensor], Tensor]:
    random = torch.Generator().manual_seed(positives)
    positive = torch.sigmoid(torch.randn(positives, generator=random) + 0.5).requires_grad_()
    negative = torch.sigmoid(torch.randn(negatives, generator=random)).requires_grad_()
    threshold = torch.rand(positives, generator=random)
    loss = get_surrogate(surrogate)

    def mean() -> Tensor:
        psi, _ = cvar_over_negatives(positive, negative, threshold, surrogate=loss, max_fpr=BETA, method=method)
        return psi.mean()

    return _step(mean, positive, negative), positive


def _step(loss: Callable[[], Tensor], *leaves: Tensor) -> Callable[[], Tensor]:
    def step() -> Tensor:
        for leaf in leaves:
            leaf.grad = None
        value = loss()
        torch.autograd.backward(value)
        return value.detach()

    return step


def take_turns(turns: dict[str, Turn], *, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Seconds per call of each candidate, a median for each round.

    A turn is as many calls as fill about 20 ms. There are at most `rounds` rounds, at least 3, and fewer than `rounds`
    where they would last longer than `seconds`.
    """
    calls = {}
    for name, turn in turns.items():
        turn(1)  # warms up
        calls[name] = max(1, min(100, int(0.02 / turn(1)[0])))
    times: dict[str, list[float]] = {name: [] for name in turns}
    begin = time.perf_counter()
    for number in range(rounds):
        if number >= 3 and time.perf_counter() - begin > seconds:
            break
        for name, turn in turns.items():
            times[name] += [sorted(turn(calls[name]))[calls[name] // 2]]
    return times


def our_turn(step: Callable[[], object]) -> Turn:
    return lambda times: repeat(step, times)


def peer_turn(peer: Peer, name: str, size: int) -> Turn:
    def turn(times: int) -> list[float]:
        answer = peer.ask("loss", name=name, size=size, times=times)
        if "error" in answer:
            raise RuntimeError(f"{name} at {size}: {answer['error']}")
        seconds: list[float] = answer["seconds"]
        return seconds

    return turn


def memory(name: str, size: int, python: Path | None, limit: float) -> dict[str, Any]:
    """Peak memory of one call in a fresh process, or the error."""
    if name in LOSSES and python is not None:
        with Peer(python, limit) as peer:
            return peer.ask("loss_memory", name=name, size=size)
    command = [sys.executable, str(HERE / "bench_pairs.py"), "--probe", name, "--sizes", str(size)]
    run = subprocess.run([*command, "--memory-gib", str(limit)], capture_output=True, text=True, check=False)
    if run.returncode:
        return {"error": f"the process ended with code {run.returncode}"}
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer


def probe(name: str, size: int, limit: float) -> dict[str, Any]:
    """The process that :func:`memory` starts for our own candidates."""
    limit_memory(limit)
    try:
        our_step(name, 64)[0]()  # loads what the first call loads
        return dict(peak_memory(our_step(name, size)[0]))
    except RuntimeError as error:
        return {"error": shorten(error)}


def compare(size: int, python: Path | None, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each candidate at one size."""
    names = [*OURS, *(LOSSES if python is not None else ())]
    memories = {name: memory(name, size, python, options.memory_gib) for name in names}
    running = [name for name in names if "error" not in memories[name]]
    turns: dict[str, Turn] = {name: our_turn(our_step(name, size)[0]) for name in running if name in OURS}
    if python is None:
        times = take_turns(turns, rounds=options.rounds, seconds=options.seconds)
    else:
        with Peer(python, options.memory_gib) as peer:
            turns |= {name: peer_turn(peer, name, size) for name in running if name in LOSSES}
            times = take_turns(turns, rounds=options.rounds, seconds=options.seconds)
    rows = []
    for name in names:
        row: dict[str, Any] = {"per class": size, "candidate": name}
        if name in times:
            row |= summary(times[name])
            base = "kernel" if name.startswith("kernel") else "TPAUCLoss"
            quotients = [a / b for a, b in zip(times[name], times[base], strict=True)]
            row[f"times {base}"] = sorted(quotients)[len(quotients) // 2]
            row["rounds"] = len(quotients)
        rows.append(row | memories[name])
    return rows


def agreement(size: int, python: Path) -> dict[str, Any]:
    """Value and gradient of the first step beside those of LibAUC's exact loss.

    There s = s' = 0, each row holds its own value and LibAUC's dual variables are 1, so that the formulas agree; later
    steps differ (LibAUC keeps no average of psi, and moves dual variables).
    """
    step, scores = our_step("TPAUCLoss", size)
    value = step().item()
    if scores.grad is None:
        raise RuntimeError("no gradient")
    with Peer(python) as peer:
        theirs = peer.ask("first_loss", name="tpAUC_CVaR_loss", size=size)
    gradient = torch.tensor(theirs["gradient"])
    gap = (scores.grad - gradient).abs().max() / gradient.abs().max()
    return {"per class": size, "TPAUCLoss": value, "tpAUC_CVaR_loss": theirs["value"], "gradient gap": gap.item()}


def crossover(shapes: Sequence[tuple[int, int]], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Microseconds of each method of the kernel, by shape and loss."""
    rows = []
    for positives, negatives in shapes:
        for surrogate in ("squared_hinge", "smooth_ramp", "logistic"):
            methods: list[Method] = ["pairs", "tiles"] if surrogate == "logistic" else ["pairs", "sorted", "tiles"]
            turns: dict[str, Turn] = {
                method: our_turn(kernel_step(positives, negatives, surrogate, method)[0]) for method in methods
            }
            times = take_turns(turns, rounds=options.rounds, seconds=options.seconds / 4)
            medians = {method: summary(seconds)["microseconds"] for method, seconds in times.items()}
            rows.append({"positives": positives, "negatives": negatives, "loss": surrogate, **medians})
    return rows


def targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The targets of the loss, for the sizes that were measured."""
    found = {(row["per class"], row["candidate"]): row for row in rows}
    result = []
    for size, least in ((64, 1.0), (8192, 100.0)):
        for name in LOSSES:
            times = found.get((size, name), {}).get("times TPAUCLoss")
            if times is not None:
                what = f"{name} / TPAUCLoss at {size} per class, at least {least:g}"
                result.append({"target": what, "measured": times, "met": times >= least})
    ramp = found.get((10**6, "kernel, smooth ramp"), {}).get("microseconds")
    if ramp is not None:
        seconds = ramp / 1e6
        result.append({"target": "ramp: seconds at 10^6, about 1", "measured": seconds, "met": seconds <= 1.2})
    row = found.get((10**6, "TPAUCLoss"))
    if row is not None and "error" not in row:
        seconds, growth = row["microseconds"] / 1e6, row["growth_mib"] / 1024
        result.append({"target": "seconds at 10^6 per class, at most 3", "measured": seconds, "met": seconds <= 3})
        result.append({"target": "GiB at 10^6 per class, at most 1", "measured": growth, "met": growth <= 1})
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=60.0, help="about how long one size may take")
    parser.add_argument("--memory-gib", type=float, default=12.0, help="limit of each candidate's address space")
    parser.add_argument("--without-peer", action="store_true", help="leave LibAUC out: nothing is installed")
    parser.add_argument("--without-crossover", action="store_true")
    parser.add_argument("--environment", type=Path, default=HERE / ".libauc-venv", help="where LibAUC is installed")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--probe", choices=OURS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.probe is not None:
        print(json.dumps(probe(options.probe, options.sizes[0], options.memory_gib)))
        return
    python = None if options.without_peer else environment(options.environment)
    rows = [row for size in options.sizes for row in compare(size, python, options)]
    flags = [f"--{flag}" for flag in ("without-peer", "without-crossover") if getattr(options, flag.replace("-", "_"))]
    result: dict[str, Any] = {
        "title": "forward and backward of the two-way partial AUC loss",
        "command": f"python benchmarks/bench_pairs.py --sizes {' '.join(map(str, options.sizes))} "
        + " ".join(
            [f"--rounds {options.rounds} --seconds {options.seconds:g} --memory-gib {options.memory_gib:g}", *flags]
        ),
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{platform.machine()}, one thread, float32",
        "region": {"min_tpr": 1.0 - ALPHA, "max_fpr": BETA},
        "sizes": rows,
    }
    if python is not None:
        with Peer(python) as peer:
            result["peer"] = peer.ask("versions")
        result["first step"] = [agreement(size, python) for size in options.sizes if size <= 1024]
        result["targets"] = targets(rows)
    if not options.without_crossover:
        result["crossover, microseconds"] = crossover(SQUARES + NARROW, options)
    write(result, options.out)


def write(result: dict[str, Any], path: Path | None) -> None:
    """Print the report, or write it to a file."""
    text = to_json(result)
    if path is None:
        print(text, end="")
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"written: {path}")


if __name__ == "__main__":
    main()
