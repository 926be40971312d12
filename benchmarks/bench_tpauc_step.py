"""Cost of a training step with `TPAUCLoss`, as ratios to a step with cross entropy, measured side by side in one run.

An MLP on 64 features, batches of 64 positives and 64 negatives, SGD with momentum, one CPU thread. The correction
(gamma above 0) must add one forward without gradient; a cross-entropy step with such a forward is its floor. A step
with the pair matrix written directly in torch (no checks, no rows, fixed thresholds) shows what the objective costs.

Variants take turns, a few steps each, and a ratio is formed in each round, so that a slow moment of the machine hits
all of them. Batches are ready in memory: no variant waits for data. A last part takes a step of the loss alone, forward
and backward, beside those of cross entropy and of the pair matrix.
`python benchmarks/bench_tpauc_step.py --out FILE` writes the report.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from bench_pairs import write
from bench_step import Step, measure, ratios
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from moreauc import PreviousIterate, TPAUCLoss
from moreauc.app.report.pages import versions

FEATURES, ROWS, BATCHES, HALF = 64, 10_000, 50, 64
WIDTHS = {"small": (64, 64), "medium": (256, 256, 256), "large": (512, 512, 512)}
CE, FLOOR = "cross entropy", "cross entropy + forward without gradient"
PAIRS = "pair matrix written directly"
# Name of a variant: arguments of its loss.
LOSSES: dict[str, dict[str, Any]] = {"TPAUCLoss, gamma 0": {}, "TPAUCLoss, gamma 0.1": {"gamma": 0.1}}
LIMITS = {"TPAUCLoss, gamma 0": 1.3, "TPAUCLoss, gamma 0.1": 1.8}


def mlp(hidden: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((FEATURES, *hidden)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], 1))


def batches() -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
    """Labels of the training set, one in ten positive, and batches (inputs, labels, index) drawn from it."""
    random = torch.Generator().manual_seed(0)
    labels = (torch.arange(ROWS) % 10 == 0).long()
    positives, negatives = labels.nonzero().squeeze(1), (labels == 0).nonzero().squeeze(1)
    result = []
    for _ in range(BATCHES):
        rows = [rows[torch.randperm(len(rows), generator=random)[:HALF]] for rows in (positives, negatives)]
        index = torch.cat(rows)[torch.randperm(2 * HALF, generator=random)]
        result.append((torch.randn(2 * HALF, FEATURES, generator=random), labels[index], index))
    return labels, result


def training_step(kind: str, hidden: tuple[int, ...]) -> Step:
    """A whole step of the variant; each call takes the next batch."""
    torch.manual_seed(0)
    model = mlp(hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    whole, data = batches()
    targets = [labels.float() for _, labels, _ in data]
    criterion = TPAUCLoss(whole, min_tpr=0.5, max_fpr=0.5, **LOSSES[kind]) if kind in LOSSES else None
    previous = PreviousIterate(model, optimizer) if criterion is not None and criterion.needs_previous else None
    pairs = pair_matrix(whole) if kind == PAIRS else None
    state = {"step": 0}

    def step() -> None:
        number = state["step"] % len(data)
        state["step"] += 1
        x, labels, index = data[number]
        optimizer.zero_grad()
        scores = model(x).squeeze(1)
        if kind == FLOOR:
            with torch.no_grad():
                model(x)
        if pairs is not None:
            loss = pairs(scores, labels, index)
        elif criterion is None:
            loss = binary_cross_entropy_with_logits(scores, targets[number])
        else:
            loss = criterion(scores, labels, index, None if previous is None else previous(x).squeeze(1))
        torch.autograd.backward(loss)
        optimizer.step()

    return step


def loss_step(kind: str) -> Step:
    """Forward and backward of the loss alone."""
    whole, data = batches()
    scores = [torch.randn(2 * HALF, requires_grad=True) for _ in data]
    before = [torch.randn(2 * HALF) for _ in data]
    targets = [labels.float() for _, labels, _ in data]
    criterion = TPAUCLoss(whole, min_tpr=0.5, max_fpr=0.5, **LOSSES[kind]) if kind in LOSSES else None
    pairs = pair_matrix(whole) if kind == PAIRS else None
    state = {"step": 0}

    def step() -> None:
        number = state["step"] % len(data)
        state["step"] += 1
        _, labels, index = data[number]
        scores[number].grad = None
        if pairs is not None:
            loss = pairs(scores[number], labels, index)
        elif criterion is None:
            loss = binary_cross_entropy_with_logits(scores[number], targets[number])
        else:
            loss = criterion(scores[number], labels, index, before[number] if criterion.needs_previous else None)
        torch.autograd.backward(loss)

    return step


def pair_matrix(whole: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The objective written directly in torch: no checks, no rows, thresholds that stay."""
    place = torch.where(whole == 1, whole.cumsum(0) - 1, 0)
    s, s_prime = torch.zeros(int(whole.sum())), torch.zeros(())

    def loss(scores: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        h, positive = torch.sigmoid(scores), labels == 1
        level = s[place[index[positive]]]
        losses = torch.relu(1.0 + h[~positive] - h[positive].unsqueeze(1)).square()
        psi = level + torch.relu(losses - level.unsqueeze(1)).mean(1) / 0.5
        return (s_prime + torch.relu(psi - s_prime) / 0.5).mean()

    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=20, help="steps of a turn")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    result: dict[str, Any] = {
        "title": f"cost of a training step, batch {2 * HALF}",
        "command": f"python benchmarks/bench_tpauc_step.py --rounds {options.rounds} --steps {options.steps}",
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{platform.machine()}, one thread, float32",
    }
    targets = []
    for name, hidden in WIDTHS.items():
        variants = {kind: training_step(kind, hidden) for kind in (CE, FLOOR, PAIRS, *LOSSES)}
        found = ratios(measure(variants, cpu, rounds=options.rounds, steps=options.steps), CE)
        result[f"{name}: {FEATURES}-{'-'.join(map(str, hidden))}-1"] = found
        for kind, limit in LIMITS.items():
            median = found[f"{kind} / {CE}"]["median"]
            what = f"{kind} / {CE}, {name}, at most {limit}"
            targets.append({"target": what, "measured": median, "met": median <= limit})
    alone = {kind: loss_step(kind) for kind in (CE, *LOSSES, PAIRS)}
    taken = measure(alone, cpu, rounds=options.rounds, steps=5 * options.steps)
    result["the loss alone"] = ratios(taken, CE)
    kind, limit = "TPAUCLoss, gamma 0", 1.25
    result["the loss alone, to the pair matrix"] = ratios({name: taken[name] for name in (PAIRS, kind)}, PAIRS)
    median = result["the loss alone, to the pair matrix"][f"{kind} / {PAIRS}"]["median"]
    targets.append({"target": f"{kind} / {PAIRS}, at most {limit}", "measured": median, "met": median <= limit})
    result["targets"] = targets
    write(result, options.out)


if __name__ == "__main__":
    main()
