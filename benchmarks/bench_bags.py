"""Training on bags kept on disk: memory and time of a step against the size of the bags, and scores of whole bags.

1. Steps of `MultiInstanceTPAUCLoss` (attention) on bags of 10^3, 10^4 and 10^5 instances, each size in a fresh process:
   the peak of its resident memory while training and while scoring whole bags, and the time of a step.
2. Scores of whole bags, streamed from disk in chunks, beside those of bags in memory that go through the model whole.

`python benchmarks/bench_bags.py --out FILE` writes the report.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_pairs import write
from peer import HERE, peak_memory, summary
from torch import Tensor, nn

from moreauc import MultiInstanceTPAUCLoss
from moreauc.app.report.pages import versions
from moreauc.core.pooling import POOLINGS, Pooling, get_pooling
from moreauc.data import BagBatches, FileBags, ListBags, bag_scores
from moreauc.samplers import PosNegSampler

SIZES = (10**3, 10**4, 10**5)
FEATURES = 64
BAGS = 16  # half of them positive
BATCH = 4  # bags of each class in a batch
BLOCK = 4096  # instances written, and scored, at once
WARM = 20  # steps before anything is measured
LABELS = [bag % 2 for bag in range(BAGS)]


class Network(nn.Module):
    """One hidden layer; a score, and an attention logit where the pooling wants one."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Linear(FEATURES, columns))

    def forward(self, instances: Tensor) -> Tensor:
        """Return outputs, shape `(T, columns)`."""
        outputs: Tensor = self.layers(instances)
        return outputs


def paths_of(folder: Path) -> list[Path]:
    return [folder / f"{bag}.npy" for bag in range(BAGS)]


def make_files(folder: Path, size: int) -> None:
    """Write the bags block by block; a tenth of a positive bag's instances are shifted."""
    random = np.random.default_rng(size)
    for path, label in zip(paths_of(folder), LABELS, strict=True):
        with path.open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (size, FEATURES)}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, size, BLOCK):
                block = random.standard_normal((min(BLOCK, size - start), FEATURES), dtype=np.float32)
                block[: len(block) // 10] += 0.5 * label
                file.write(block.tobytes())


def train(folder: Path, steps: int, instances_per_bag: int) -> dict[str, Any]:
    """Train in this process, then score all bags; return time and memory of both."""
    bags = FileBags(paths_of(folder), LABELS)
    batches = BagBatches(
        bags, PosNegSampler(LABELS, num_positives=BATCH, num_negatives=BATCH), instances_per_bag=instances_per_bag
    )
    torch.manual_seed(0)
    model = Network(2)
    criterion = MultiInstanceTPAUCLoss(LABELS, min_tpr=0.5, max_fpr=0.5, pooling="attention")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seconds: list[float] = []

    def run(number: int) -> None:
        done, epoch = 0, 0
        while done < number:
            batches.set_epoch(epoch)
            iterator, epoch = iter(batches), epoch + 1
            for _ in range(min(len(batches), number - done)):
                begin = time.perf_counter()
                (instances, bag), labels, index = next(iterator)
                loss: Tensor = criterion(model(instances), bag, labels, index)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                seconds.append(time.perf_counter() - begin)
                done += 1

    run(WARM)  # the first steps load libraries
    seconds.clear()
    row: dict[str, Any] = {"training": peak_memory(lambda: run(steps))}
    row["microseconds per step"] = summary(seconds)
    begin = time.perf_counter()
    row["scoring"] = peak_memory(lambda: bag_scores(model, bags, "attention", chunk=BLOCK))
    row["seconds of scoring"] = time.perf_counter() - begin
    return row


def in_memory(model: nn.Module, bags: ListBags, pooling: Pooling) -> Tensor:
    """Scores of whole bags, each in one piece and all in float64."""
    exact = Network(pooling.columns).double()
    exact.load_state_dict(model.state_dict())
    scores = []
    with torch.no_grad():
        for bag in range(len(bags)):
            outputs = exact(bags.instances(bag).double())
            outputs = outputs.squeeze(1) if pooling.columns == 1 else outputs
            scores.append(pooling(outputs, torch.zeros(len(outputs), dtype=torch.long), 1))
    return torch.cat(scores)


def agreement(folder: Path, size: int, kept: int) -> list[dict[str, Any]]:
    """Scores of the first `kept` bags from disk, beside those from memory in one piece, for each pooling."""
    lazy = FileBags(paths_of(folder)[:kept], LABELS[:kept])
    bags = ListBags([np.load(path) for path in paths_of(folder)[:kept]], LABELS[:kept])
    rows = []
    for name in POOLINGS:
        torch.manual_seed(0)
        pooling = get_pooling("bench_bags", name)  # type: ignore[arg-type]  # a name of the table
        model = Network(pooling.columns)
        streamed = bag_scores(model, lazy, pooling, chunk=BLOCK)
        whole = bag_scores(model, bags, pooling, chunk=10**9)
        row: dict[str, Any] = {"instances per bag": size, "pooling": name, "bags": kept}
        row["difference to memory, one piece"] = (streamed - whole).abs().max().item()
        row["difference to memory, one piece, float64"] = (
            (streamed - in_memory(model, bags, pooling)).abs().max().item()
        )
        rows.append(row)
    return rows


def targets(sizes: list[dict[str, Any]], scores: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The targets: memory that does not grow with the bags, and equal scores."""
    result = []
    first, last = sizes[0], sizes[-1]
    low, high = first["instances per bag"], last["instances per bag"]
    for part in ("training", "scoring"):
        ratio = last[part]["process_mib"] / first[part]["process_mib"]
        what = f"peak memory of {part} at {high} instances per bag over that at {low}, at most 1.05"
        result.append({"target": what, "measured": ratio, "met": ratio <= 1.05})
    gap = max(value for row in scores for name, value in row.items() if name.startswith("difference"))
    what = "difference of scores from disk and from memory, at most 1e-06"
    return [*result, {"target": what, "measured": gap, "met": gap <= 1e-6}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES), help="instances of each bag")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--instances", type=int, default=128, help="instances drawn from a bag at a step")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--probe", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.probe is not None:
        print(json.dumps(train(options.probe, options.steps, options.instances)))
        return
    sizes, scores = [], []
    settings = ["--steps", str(options.steps), "--instances", str(options.instances)]
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make_files(folder, size)
            command = [sys.executable, str(HERE / "bench_bags.py"), "--probe", name, *settings]
            answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            stored = {"instances per bag": size, "mib of one bag": paths_of(folder)[0].stat().st_size / 2**20}
            sizes.append(stored | json.loads(answer))
            scores += agreement(folder, size, kept=4)
    result: dict[str, Any] = {
        "title": "training on bags kept on disk",
        "command": " ".join(["python benchmarks/bench_bags.py --sizes", *map(str, options.sizes), *settings]),
        "versions": {**versions(), "numpy": np.__version__},
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{platform.machine()}, one thread, float32",
        "setting": f"{BAGS} bags, {FEATURES} features, {2 * BATCH} bags of {options.instances} instances in a batch",
        "sizes": sizes,
        "scores": scores,
        "targets": targets(sizes, scores),
    }
    write(result, options.out)


if __name__ == "__main__":
    main()
