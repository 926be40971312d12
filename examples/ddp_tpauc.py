"""Two-way partial AUC on several processes, with checkpoints.

    torchrun --standalone --nproc_per_node 2 examples/ddp_tpauc.py --out /tmp/run

Any number of processes does the same steps, `python examples/ddp_tpauc.py` included, and goes on where any other number
of them has stopped; `moreauc.train.fit(..., checkpoint=folder)` is this loop ready-made. On machines with GPUs each
process takes one.
"""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from moreauc import PreviousIterate, TPAUCLoss
from moreauc.checkpoint import load_checkpoint, save_checkpoint
from moreauc.data import TensorBatches
from moreauc.distributed import DistributedCriterion, predict_scores
from moreauc.metrics import tpauc_score
from moreauc.samplers import DistributedBatchSampler, PosNegSampler
from moreauc.train import train_step

MIN_TPR, MAX_FPR = 0.5, 0.3


def make_data(rows: int = 2000) -> tuple[Tensor, Tensor]:
    """Return inputs and labels, one positive in twenty."""
    random = torch.Generator().manual_seed(0)
    labels = (torch.arange(rows) % 20 == 0).long()
    return torch.randn(rows, 8, generator=random) + 0.8 * labels.unsqueeze(1), labels


def save(path: Path, parts: dict[str, Any], epoch: int) -> None:
    """Write the state of all parts; a run that is killed meanwhile leaves the file as it was."""
    save_checkpoint(path, {"epoch": epoch, **{name: part.state_dict() for name, part in parts.items()}})


def load(path: Path, parts: dict[str, Any]) -> int:
    """Give all parts their state back; return the epochs that are done."""
    if not path.exists():
        return 0
    state = load_checkpoint(path)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return int(state["epoch"])


def train(rank: int, world_size: int, device: torch.device, folder: Path, epochs: int) -> float:
    """Train and return the score on the training rows, the same in all processes."""
    inputs, labels = make_data()
    torch.manual_seed(0)  # the same weights everywhere at the start
    network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    model = DistributedDataParallel(network) if dist.is_initialized() else network
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    previous = PreviousIterate(model, optimizer)
    criterion = DistributedCriterion(TPAUCLoss(labels, min_tpr=MIN_TPR, max_fpr=MAX_FPR, gamma=0.1).to(device))
    whole = PosNegSampler(labels, num_positives=16, num_negatives=48)  # of all processes together
    batches = TensorBatches(inputs, labels, DistributedBatchSampler(whole, rank=rank, world_size=world_size)).to(device)

    parts = {"model": network, "optimizer": optimizer, "previous": previous, "criterion": criterion}
    done = load(folder / "checkpoint.pt", parts)
    for epoch in range(done, epochs):
        batches.set_epoch(epoch)
        for batch in batches:
            loss = train_step(model, criterion, optimizer, batch, previous)
        if rank == 0:
            save(folder / "checkpoint.pt", parts, epoch + 1)
            print(f"epoch {epoch}: loss {loss:.4f}", flush=True)

    own = [list(range(rank, len(labels), world_size))]
    scores, targets = predict_scores(model, TensorBatches(inputs, labels, own).to(device))
    return float(tpauc_score(targets, scores, min_tpr=MIN_TPR, max_fpr=MAX_FPR))


def main() -> None:
    """Set the processes up, train, and take them down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--double", action="store_true", help="compute in double precision")
    arguments = parser.parse_args()
    if arguments.double:
        torch.set_default_dtype(torch.float64)
    arguments.out.mkdir(parents=True, exist_ok=True)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    score = train(rank, world_size, device, arguments.out, arguments.epochs)
    if rank == 0:
        print(f"TPAUC of the training rows: {score:.4f}")
    if dist.is_initialized():
        gc.collect()  # else the exiting process may be aborted by a thread of gloo, with all work done
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
