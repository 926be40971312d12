"""Cost of a step, as ratios measured side by side in one run.

1. Does the size of the table matter? The same batch on a table of 10^3 and of 10^7 rows.
2. What does the loss add to training? A step with a plain mean loss, against `FCCOLoss` with a moving average and
   with the correction (which must add one forward without gradient: its floor is measured, too).

Variants take turns, a few steps each, and a ratio is formed in each round, so that a slow moment of the machine hits
all of them. `python benchmarks/bench_step.py --out FILE` writes the medians with their quartiles.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bench_pairs import write
from torch import Tensor, nn

from moreauc import FCCOLoss, PreviousIterate, TCCOLoss
from moreauc.app.report.pages import versions

Step = Callable[[], None]
BLOCKS = 100_000


def hinge(u: Tensor, index: Tensor) -> Tensor:
    return torch.relu(u)


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's features."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet20() -> nn.Module:
    stages = [Block(i, o, s) for i, o, s in [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2]
    stages += [Block(i, o, s) for i, o, s in [(32, 64, 2)] + [(64, 64, 1)] * 2]
    first = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*first, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (128,)),
    "resnet20": (resnet20, (3, 32, 32)),
}


def measure(variants: dict[str, Step], device: torch.device, *, rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds per step of each variant in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 2):  # the first two warm up
        for name, step in variants.items():
            synchronize(device)
            begin = time.perf_counter()
            for _ in range(steps):
                step()
            synchronize(device)
            if number >= 2:
                seconds[name].append((time.perf_counter() - begin) / steps)
    return seconds


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ratios(seconds: dict[str, list[float]], base: str) -> dict[str, Any]:
    result: dict[str, Any] = {"microseconds": {name: 1e6 * statistics.median(times) for name, times in seconds.items()}}
    for name, times in seconds.items():
        if name != base:
            quotients = [a / b for a, b in zip(times, seconds[base], strict=True)]
            low, median, high = statistics.quantiles(quotients, n=4)
            result[f"{name} / {base}"] = {"median": median, "quartiles": [low, high]}
    return result


def fcco_step(rows: int, device: torch.device, batch: int = 64) -> Step:
    """A step of the loss alone: other rows each time, as in training."""
    criterion = FCCOLoss(rows, hinge, tau=0.1, gamma=0.1).to(device)
    inner = torch.randn(batch, device=device, requires_grad=True)
    before = torch.randn(batch, device=device)
    random = torch.Generator().manual_seed(0)
    indices = [
        torch.randperm(min(rows, 10**6), generator=random)[:batch] * (rows // min(rows, 10**6)) for _ in range(200)
    ]
    state = {"step": 0}

    def step() -> None:
        index = indices[state["step"] % len(indices)]
        state["step"] += 1
        torch.autograd.backward(criterion(inner, index, before))

    return step


def tcco_step(outer: int, inner: int, device: torch.device) -> Step:
    criterion = TCCOLoss(outer, inner, hinge, hinge, tau1=0.1, tau2=0.1, gamma1=0.1, gamma2=0.1).to(device)
    h = torch.randn(8, 8, device=device, requires_grad=True)
    before = torch.randn(8, 8, device=device)
    random = torch.Generator().manual_seed(0)
    indices = [
        (torch.randperm(outer, generator=random)[:8], torch.randperm(inner, generator=random)[:8]) for _ in range(200)
    ]
    state = {"step": 0}

    def step() -> None:
        i, j = indices[state["step"] % len(indices)]
        state["step"] += 1
        torch.autograd.backward(criterion(h, i, j, before))

    return step


def training_steps(model_name: str, batch: int, device: torch.device) -> dict[str, Step]:
    """The same model and data under each loss."""
    make, shape = MODELS[model_name]
    x = torch.randn(batch, *shape, device=device)
    index = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(0))[:batch]

    def variant(kind: str) -> Step:
        torch.manual_seed(0)
        model = make().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        gamma = 0.1 if kind == "FCCOLoss, gamma 0.1" else 0.0
        criterion = FCCOLoss(BLOCKS, hinge, tau=0.1, gamma=gamma).to(device)
        previous = PreviousIterate(model, optimizer) if gamma else None

        def step() -> None:
            optimizer.zero_grad()
            scores = model(x).squeeze(1)
            if kind == "mean loss + forward without gradient":
                with torch.no_grad():
                    model(x)
            if kind.startswith("mean loss"):
                loss = torch.relu(scores).mean()
            else:
                loss = criterion(scores, index, None if previous is None else previous(x).squeeze(1))
            torch.autograd.backward(loss)
            optimizer.step()

        return step

    kinds = ("mean loss", "mean loss + forward without gradient", "FCCOLoss, gamma 0", "FCCOLoss, gamma 0.1")
    return {kind: variant(kind) for kind in kinds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="+", default=["mlp"], choices=sorted(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 1024])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, one thread"
    result: dict[str, Any] = {
        "title": "cost of a step",
        "command": f"python benchmarks/bench_step.py --device {options.device} --models {' '.join(options.models)} "
        f"--batches {' '.join(map(str, options.batches))} --rounds {options.rounds}",
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
        "device": name,
    }
    sizes = {"10^3 rows": fcco_step(10**3, device), "10^7 rows": fcco_step(10**7, device)}
    result["FCCOLoss, 64 blocks"] = ratios(measure(sizes, device, rounds=options.rounds, steps=100), "10^3 rows")
    sizes = {"10^3 rows": tcco_step(25, 40, device), "10^7 rows": tcco_step(2500, 4000, device)}
    result["TCCOLoss, 8 x 8 pairs"] = ratios(measure(sizes, device, rounds=options.rounds, steps=100), "10^3 rows")
    for model in options.models:
        for batch in options.batches:
            steps = 20 if device.type == "cuda" or batch <= 64 else 4
            seconds = measure(training_steps(model, batch, device), device, rounds=options.rounds, steps=steps)
            result[f"training {model}, batch {batch}"] = ratios(seconds, "mean loss")
    write(result, options.out)


if __name__ == "__main__":
    main()
