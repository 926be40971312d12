"""Two-way partial AUC with Accelerate: a run that can be stopped at any step and resumed, with nothing lost.

    python examples/accelerate_tpauc.py --folder run
    python examples/accelerate_tpauc.py --folder run --stop-after 13   # as if the machine had gone down
    python examples/accelerate_tpauc.py --folder run --resume          # ends with the same weights as the first line
    torchrun --nproc_per_node 2 examples/accelerate_tpauc.py --folder run    # the same batches, on two processes

`prepare` takes the model and the optimizer. What else has a state is registered for checkpointing: the loss with its
tables, the previous weights and the loader with its place. The loader is not prepared: a prepared one counts epochs
from 0 after each start and knows no place inside an epoch. Its batches are those of all processes together, each of
which takes its part; the loss is that of the whole batch.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from moreauc import PreviousIterate, TPAUCLoss
from moreauc.contrib import ResumableLoader
from moreauc.data import IndexedDataset, TensorBatches
from moreauc.distributed import DistributedCriterion
from moreauc.metrics import tpauc_score
from moreauc.samplers import DistributedBatchSampler, PosNegSampler
from moreauc.train import predict_scores

MIN_TPR, MAX_FPR = 0.5, 0.5


def make_data(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs and labels, one positive in ten."""
    labels = (torch.arange(rows) % 10 == 0).long()
    noise = torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))
    return noise + 0.8 * labels.unsqueeze(1), labels


def train(
    folder: Path,
    *,
    epochs: int = 4,
    accumulate: int = 2,
    dropout: float = 0.2,
    stop_after: int | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Train, saving after every epoch and before stopping; return all that a resumed run must have in common.

    Gradients of an accumulation that is not finished are not saved, so that saving waits for the step they make.

    Args:
        folder: where the state is saved.
        epochs: epochs to train in all.
        accumulate: batches whose gradients make a step.
        dropout: share of hidden values that are left out.
        stop_after: batches after which to save and stop, wherever that is in an epoch; None to go on to the end.
        resume: whether to go on from the state in `folder`.
    """
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    inputs, labels = make_data(400, seed=0)
    torch.manual_seed(0)  # the same weights in all processes
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 1))
    torch.manual_seed(1 + accelerator.process_index)  # other dropout masks in each
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_of_one = TPAUCLoss(labels, min_tpr=MIN_TPR, max_fpr=MAX_FPR, gamma=0.1)
    criterion = DistributedCriterion(loss_of_one.to(accelerator.device))
    whole = PosNegSampler(labels, num_positives=8, num_negatives=32, seed=0)
    sampler = DistributedBatchSampler(whole, rank=accelerator.process_index, world_size=accelerator.num_processes)
    loader = ResumableLoader(DataLoader(IndexedDataset(TensorDataset(inputs, labels)), batch_sampler=sampler))

    model, optimizer = accelerator.prepare(model, optimizer)
    previous = PreviousIterate(model, optimizer)
    accelerator.register_for_checkpointing(criterion, previous, loader)
    if resume:
        accelerator.load_state(str(folder))

    batches, due = 0, False
    while loader.epochs_done < epochs:
        for batch in loader:
            x, y, index = send_to_device(batch, accelerator.device)
            with accelerator.accumulate(model):
                scores = model(x).squeeze(1)
                loss = criterion(scores, y, index, previous_scores=previous(x).squeeze(1))
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            batches += 1
            stop = stop_after is not None and batches >= stop_after
            due = due or stop or loader.step == len(loader)
            if due and accelerator.sync_gradients:
                accelerator.save_state(str(folder))
                due = False
                if stop:
                    return {"stopped at": loader.state_dict()}

    model = accelerator.unwrap_model(model)
    scores, truth = predict_scores(model, TensorBatches(*make_data(400, seed=1)).to(accelerator.device))
    return {
        "weights": model.state_dict(),
        "criterion": criterion.state_dict(),
        "previous": previous.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epochs": loader.epochs_done,
        "random": torch.get_rng_state(),
        "score": tpauc_score(truth.numpy(), scores.numpy(), min_tpr=MIN_TPR, max_fpr=MAX_FPR),
    }


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Two-way partial AUC with Accelerate")
    parser.add_argument("--folder", type=Path, required=True, help="where the state is saved")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--stop-after", type=int, default=None, help="save and stop after so many batches")
    parser.add_argument("--resume", action="store_true", help="go on from the state in the folder")
    options = parser.parse_args()
    result = train(options.folder, epochs=options.epochs, stop_after=options.stop_after, resume=options.resume)
    if not PartialState().is_main_process:
        return
    if "score" in result:
        total = sum(float(value.sum()) for value in result["weights"].values())
        print(f"two-way partial AUC of new data {result['score']:.4f}, sum of all weights {total:.9f}")
    else:
        print(f"stopped: {result['stopped at']}")


if __name__ == "__main__":
    main()
