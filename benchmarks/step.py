"""Cost of a training step by loss, model and technique: time and peak memory as ratios to cross entropy in one run.

Models: an MLP, GIN on molecules, ResNet20. Losses and techniques: see `step_variants.py`. Beside each ratio stands the
floor of a correction, cross entropy with one more forward without gradient, and the target where there is one. Also
recorded: how often a step makes the host wait for the GPU, how much it launches, and which variants failed, and why.

Variants take turns, a few steps each, and a ratio is formed in each round, so that a slow moment of the machine hits
all of them. Batches are ready on the device. What comes later is left out when `--seconds` are over, and named; the
report is written after each part. `python benchmarks/step.py --device cuda --out FILE` writes it.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench_models import quotients, spread
from bench_pairs import write
from bench_step import Step, synchronize
from peer import _status
from step_variants import BESIDE, CE, FLOOR, FLOORS, GAMMA, LOSSES, TECHNIQUES, Case, Variants, cases
from step_watch import attempt, launches, memory_of, operations, release, strict, waits

from moreauc.app.report.pages import versions

# The most that a loss may cost, in times cross entropy by the same technique. On the CPU the network is so small that
# calls count more than what they compute; on a GPU no target was set for it.
TARGETS: dict[str, list[tuple[str, str, tuple[str, ...], float]]] = {
    "cuda": [
        ("ResNet20, batch 1024", "TPAUC, gamma 0", TECHNIQUES, 1.02),
        ("ResNet20, batch 1024", f"TPAUC, gamma {GAMMA:g}", TECHNIQUES, 1.30),
        ("ResNet20, batch 64", f"TPAUC, gamma {GAMMA:g}", TECHNIQUES[1:], 1.25),
    ],
    "cpu": [
        ("MLP, batch 128", "TPAUC, gamma 0", TECHNIQUES, 1.6),
        ("MLP, batch 128", f"TPAUC, gamma {GAMMA:g}", TECHNIQUES, 2.2),
    ],
}
LATE = ("compiled", "compiled and graphed")  # made last: to compile takes long
# seconds that must be left to make a variant; eager ones, which take few, are always made
NEEDED = dict.fromkeys(TECHNIQUES, 0.0) | dict.fromkeys(LATE, 30.0) | {"eager": -math.inf}
PROFILED = ("ResNet20, batch 64", "ResNet20, batch 16", "MLP")  # cases whose launches are counted
Kind = tuple[str, str]  # technique and loss


class Clock:
    """Time that is left."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.perf_counter()


def part(
    make: Callable[[], Case], kinds: Sequence[Kind], device: torch.device, clock: Clock, share: float
) -> list[dict[str, Any]]:
    """A row for each variant of a case, timed in turns."""
    case = make()
    if device.type == "cuda":  # else the first variant would include what libraries allocate once
        attempt(partial(Variants(case, device).make, CE, "eager"))
        release(device)
    variants, steps, rows = Variants(case, device), {}, []
    for technique, loss in kinds:
        row: dict[str, Any] = {"case": case.name, "technique": technique, "loss": loss}
        rows.append(row)
        if case.changing and technique.endswith("graphed"):
            row["error"] = "left out: the shapes of the inputs change"
        elif clock.left < NEEDED[technique]:
            row["error"] = "left out: no time was left"
        else:
            begin = time.perf_counter()
            with memory_of(row, device):
                step, error = attempt(partial(variants.make, loss, technique))
            if "peak MiB" in row:
                row["peak MiB"] += variants.shared
            row["seconds to make"] = time.perf_counter() - begin
            if error is not None:
                row["error"] = error
            else:
                steps[technique, loss] = step
                row |= watched(step, technique, device)
    if steps:
        times, errors = timed(steps, device, max(2.0, min(share, clock.left)))
        for row in rows:
            if "error" not in row:
                key = row["technique"], row["loss"]
                row |= {"error": errors[key]} if key in errors else compared(times, *key)
    return rows


def compared(times: dict[tuple[str, str], list[float]], technique: str, loss: str) -> dict[str, Any]:
    """The entries of a variant's times in the report."""
    seconds = times[technique, loss]
    row: dict[str, Any] = {"milliseconds": spread([1e3 * second for second in seconds]), "rounds": len(seconds)}
    for name, key in (
        ("times CE by the same technique", (technique, CE)),
        ("times the floor by the same technique", (technique, FLOOR)),
        ("times the floor beside it by the same technique", (technique, BESIDE)),
        ("times eager CE", ("eager", CE)),
    ):
        if key in times:
            row[name] = quotients(seconds, times[key])
    return row


def timed(
    steps: dict[Kind, Step], device: torch.device, seconds: float, rounds: int = 40
) -> tuple[dict[Kind, list[float]], dict[Kind, str]]:
    """Seconds of a step of each variant in each round, at least 3 of them; and the errors of those that failed.

    A turn is as many steps as fill about 20 ms, at least 5, all at once: between its steps a GPU is not waited for.
    """

    def turn(step: Step, times: int) -> float:
        synchronize(device)
        begin = time.perf_counter()
        for _ in range(times):
            step()
        synchronize(device)
        return (time.perf_counter() - begin) / times

    times: dict[Kind, list[float]] = {key: [] for key in steps}
    errors: dict[Kind, str] = {}
    calls = dict.fromkeys(steps, 1)
    begin = time.perf_counter()
    for number in range(-2, rounds):  # the first two find out how many steps fill a turn
        if number >= 3 and time.perf_counter() - begin > seconds:
            break
        for key in [key for key in steps if key not in errors]:
            second, error = attempt(partial(turn, steps[key], calls[key]))
            if error is not None:
                errors[key] = error
                del times[key]
            elif number < 0:
                calls[key] = max(5, min(100, int(0.02 / second)))
            else:
                times[key].append(second)
    return times, errors


def watched(step: Step, technique: str, device: torch.device) -> dict[str, Any]:
    """How often a step waits for the GPU; on the CPU how many operations it has."""
    wanted: dict[str, Callable[[Step], Any]] = {"waits of the host": waits, "passes without a wait": strict}
    if device.type == "cpu":
        wanted = {"operations": operations} if technique == "eager" else {}
    row = {}
    for name, function in wanted.items():
        found, error = attempt(partial(function, step))
        row[name] = found if error is None else error
    return row


def launched(case: Case, kinds: Sequence[Kind], device: torch.device, clock: Clock) -> list[dict[str, Any]]:
    """What variants launch; at the very end, since a profiler slows down what follows."""
    rows = []
    for technique, loss in kinds:
        row: dict[str, Any] = {"case": case.name, "technique": technique, "loss": loss}
        found: Any = None
        error: str | None = "left out: no time was left"
        if case.changing and technique.endswith("graphed"):
            error = "left out: the shapes of the inputs change"
        elif clock.left > 0.0:
            found, error = attempt(partial(launches_of, case, technique, loss, device))
        rows.append(row | ({"launches": found} if error is None else {"error": error}))
    return rows


def launches_of(case: Case, technique: str, loss: str, device: torch.device) -> dict[str, float]:
    return launches(Variants(case, device).make(loss, technique))


def process_memory(number: int, loss: str, options: argparse.Namespace) -> float | str:
    """MiB by which a process grows, forked for it, that makes an eager variant and does its first steps."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def work() -> None:
        case = cases(torch.device("cpu"), quick=options.quick, small=True)[number]()
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far becomes the present size
        before = _status("VmRSS")
        _, error = attempt(partial(Variants(case, torch.device("cpu")).make, loss, "eager"))
        theirs.send((_status("VmHWM") - before) / 1024 if error is None else error)

    worker = context.Process(target=work, daemon=True)
    worker.start()
    found: float | str = ours.recv() if ours.poll(60.0) else "no answer"
    worker.terminate()
    worker.join()
    return found


def targets(rows: list[dict[str, Any]], place: str) -> list[dict[str, Any]]:
    """The targets of a kind of device, for the measured variants."""
    found = {(row["case"], row["loss"], row["technique"]): row for row in rows}
    result = []
    for case, loss, techniques, most in TARGETS[place]:
        for technique in techniques:
            row = found.get((case, loss, technique), {})
            if "times CE by the same technique" not in row:
                continue
            ratio = row["times CE by the same technique"]["median"]
            floor, beside = (
                found.get((case, name, technique), {}).get("times CE by the same technique", {}).get("median")
                for name in FLOORS
            )
            eager = row.get("times eager CE", {}).get("median")
            result.append(
                {
                    "target": f"{case}, {loss}, {technique}, at most {most:g} times CE",
                    "measured": ratio,
                    "met": ratio <= most,
                    "floor of a correction": floor,
                    "floor of a correction beside the forward": beside,
                    "times eager CE": eager,
                }
            )
    return result


def ratios_of_memory(rows: list[dict[str, Any]]) -> None:
    """Add to each row its memory over that of cross entropy by the same technique."""
    base = {(row["case"], row["technique"]): row.get("peak MiB") for row in rows if row["loss"] == CE}
    for row in rows:
        mine, plain = row.get("peak MiB"), base.get((row["case"], row["technique"]))
        if isinstance(mine, float) and isinstance(plain, float) and plain > 0.0:
            row["peak memory times CE"] = mine / plain


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seconds", type=float, default=150.0, help="about how long it may take")
    parser.add_argument("--techniques", nargs="+", choices=TECHNIQUES, help="all that the device has by default")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--tf32", action="store_true", help="let convolutions and products use TF32")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.techniques is None:
        options.techniques = list(TECHNIQUES if options.device == "cuda" else ("eager", "compiled"))
    return options


def command(options: argparse.Namespace) -> str:
    words = ["python benchmarks/step.py", "--device", options.device, "--seconds", f"{options.seconds:g}"]
    words += ["--techniques", *(f"'{name}'" if " " in name else name for name in options.techniques)]
    return " ".join([*words, *(f"--{name}" for name in ("quick", "tf32") if getattr(options, name))])


def main() -> None:
    options = parse()
    device = torch.device(options.device)
    if options.tf32:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    if device.type == "cpu":
        torch.set_num_threads(1)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, one thread"
    result: dict[str, Any] = {
        "title": "cost of a training step by loss, model and technique",
        "command": command(options),
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
        "device": name,
        "numbers": "float32; on a GPU "
        + ("TF32 everywhere" if options.tf32 else "TF32 in convolutions, torch's default"),
        "optimizer": "SGD with momentum and weight decay",
        "rows": [],
    }
    measure(result, device, options)
    for row in result["targets"]:
        print(f"{'met' if row['met'] else 'NOT'}  {row['measured']:.3f}  {row['target']}")


def measure(result: dict[str, Any], device: torch.device, options: argparse.Namespace) -> None:
    """Fill the report, and save it after each part."""
    makers = cases(device, quick=options.quick, small=device.type == "cpu")
    rows: list[dict[str, Any]] = result["rows"]
    plans = planned(len(makers), options.techniques)
    memory: dict[tuple[int, str], float | str] = {}
    if device.type == "cpu" and "eager" in options.techniques:  # first, while this process has nothing to reuse
        torch.compiler.reset()  # imports what each process would import again, and count as memory of its variant
        memory = {
            (number, loss): process_memory(number, loss, options) for number in range(len(makers)) for loss in LOSSES
        }
    clock = Clock(options.seconds)
    for place, (number, kinds, base) in enumerate(plans):
        share = clock.left / (len(plans) - place) / 2
        found, error = attempt(partial(part, makers[number], [*base, *kinds], device, clock, share))
        release(device)
        failed = {"case": f"number {number}", "technique": "all", "loss": "all", "error": error}
        rows += [failed] if error else found[len(base) :]
        for row in rows:
            if row.get("technique") == "eager" and (number, row["loss"]) in memory and "error" not in row:
                row.setdefault("peak MiB", memory[number, row["loss"]])
        ratios_of_memory(rows)
        result |= {"targets": targets(rows, device.type), "seconds": options.seconds - clock.left}
        write(result, options.out)
    if device.type == "cuda":
        result["launches"] = []
        for make in makers:
            case, error = attempt(make)
            if error is None and case.name.startswith(PROFILED):
                kinds = [kind for kind in plans[0][1] if kind[1] == CE or kind[1].startswith("TPAUC")]
                result["launches"] += launched(case, kinds, device, clock)
        result["seconds"] = options.seconds - clock.left
        write(result, options.out)


def planned(number: int, techniques: Sequence[str]) -> list[tuple[int, list[Kind], list[Kind]]]:
    """Parts: the number of a case, its variants, and what only comes along as a base of ratios."""
    every = [(technique, loss) for technique in techniques for loss in _losses(technique)]
    early = [kind for kind in every if kind[0] not in LATE]
    late = [kind for kind in every if kind[0] in LATE and (kind[1] in (CE, *FLOORS) or kind[1].startswith("TPAUC"))]
    plans: list[tuple[int, list[Kind], list[Kind]]] = []
    plans += [(case, early, []) for case in range(number) if early]
    # again in the order of their importance: targets were set for the first ones
    plans += [(case, late, [("eager", CE)]) for case in range(number) if late]
    return plans


def _losses(technique: str) -> list[str]:
    return [
        name
        for loss in LOSSES
        for name in ([FLOOR, BESIDE] if loss == FLOOR else [loss])
        if name != BESIDE or technique.endswith("graphed")
    ]


if __name__ == "__main__":
    main()
