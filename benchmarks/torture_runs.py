"""Short training runs of every method, made to be interrupted: dropout on, workers on, and noise that workers draw.

`RUNS` names them; `train(name, folder)` runs one through :func:`moreauc.train.fit` with checkpoints at every step. A
second of work each, with a warm start, validation, patience, milestones and, where the method has one, the previous
weights (gamma 0.1) and the reference point.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from moreauc.data import BagEvaluation, BagSampler, IndexedDataset, ListBags, SampledBags, TensorBatches, collate_bags
from moreauc.methods import METHODS, build
from moreauc.metrics import group_loss
from moreauc.samplers import GroupSampler, PosNegSampler
from moreauc.train import Callback, History, UntrainedWarning, fit

ROWS, FEATURES, GROUPS = 60, 4, 5
REGION: dict[str, Any] = {"min_tpr": 0.3, "max_fpr": 0.7}
CORRECTED = {"sonx", "sont_mean", "sont_smx", "sont_att"}  # methods whose losses take gamma


@dataclass
class Parts:
    """What `fit` takes, but for the model."""

    criterion: Any
    loader: DataLoader[Any]
    columns: int = 1
    options: dict[str, Any] = field(default_factory=dict)


class NoisyRows(Dataset[tuple[Tensor, int]]):
    """Rows with noise that is drawn when they are read, as an augmentation is: in the worker."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self._inputs, self._labels = inputs, labels

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        noise = 0.05 * torch.randn(self._inputs[row].shape)
        return self._inputs[row] + noise, int(self._labels[row])


class Decay(Callback):
    """Thresholds that slow down, where they have a step size; and a count that a checkpoint must carry."""

    def __init__(self) -> None:
        self.epochs = 0

    def on_epoch(self, state: Any) -> None:
        """Slow down."""
        self.epochs += 1
        loss = getattr(state.criterion, "criterion", state.criterion)
        if hasattr(loss, "tau") and isinstance(loss.tau, float):
            loss.tau = max(0.5, loss.tau * (1.0 - 0.1 / self.epochs))

    def state_dict(self) -> dict[str, Any]:
        """Return the count."""
        return {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the count."""
        self.epochs = state["epochs"]


def table(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return inputs and labels, one third positive."""
    labels = (torch.arange(ROWS) % 3 == 0).long()
    inputs = torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(seed))
    inputs[:, 0] += 1.5 * labels
    return inputs, labels


def rows(method: str, workers: int) -> Parts:
    """Return a run on rows of a table."""
    inputs, labels = table()
    options: dict[str, Any] = {"gamma": 0.1} if method in CORRECTED else {}
    criterion = build("rows", method, labels, **REGION, **options)
    data = IndexedDataset(NoisyRows(inputs, labels), labels=None)
    sampler = PosNegSampler(labels, num_positives=5, num_negatives=7)
    loader: DataLoader[Any] = DataLoader(data, batch_sampler=sampler, num_workers=workers)
    held, proximal = TensorBatches(*table(seed=1)), METHODS["rows"][method].proximal
    return Parts(criterion, loader, options={"validation": held, "proximal": proximal, **REGION})


def bags(method: str, workers: int) -> Parts:
    """Return a run on bags of instances."""
    parts = []
    for seed in (2, 3):
        random = torch.Generator().manual_seed(seed)
        labels = (torch.arange(ROWS) % 3 == 0).long()
        sizes = torch.randint(2, 7, (ROWS,), generator=random).tolist()
        instances = [
            torch.randn(size, FEATURES, generator=random) + label
            for size, label in zip(sizes, labels.tolist(), strict=True)
        ]
        parts.append(ListBags(instances, labels.tolist()))
    train, held = parts
    options: dict[str, Any] = {"gamma": 0.1} if method in CORRECTED else {}
    criterion: Any = build("bags", method, train.labels, **REGION, **options)
    sampler = BagSampler(PosNegSampler(train.labels, num_positives=5, num_negatives=7))
    data = SampledBags(train, instances_per_bag=3)
    loader: DataLoader[Any] = DataLoader(data, batch_sampler=sampler, collate_fn=collate_bags, num_workers=workers)
    validation, proximal = BagEvaluation(held, criterion.pooling), METHODS["bags"][method].proximal
    chosen = {"validation": validation, "proximal": proximal, **REGION}
    return Parts(criterion, loader, columns=criterion.pooling.columns, options=chosen)


def groups(method: str, workers: int) -> Parts:
    """Return a run on rows in groups."""
    inputs, labels = table()
    ids = torch.arange(ROWS) % GROUPS
    options = {"gamma": 0.1, "threshold_lr": 0.05} if method in CORRECTED else {}
    criterion = build("groups", method, ids, num_groups=GROUPS, top_k=2, sample_loss="logistic", **options)
    data = IndexedDataset(NoisyRows(inputs, labels))
    sampler = GroupSampler(ids, groups_per_batch=3, samples_per_group=4)
    loader: DataLoader[Any] = DataLoader(data, batch_sampler=sampler, num_workers=workers)

    def score(scores: Tensor, labels: Tensor) -> float:
        losses = nn.functional.softplus((1 - 2 * labels) * scores)
        return -group_loss(losses.numpy(), ids.numpy(), top_k=2)

    return Parts(criterion, loader, options={"validation": TensorBatches(*table(seed=1)), "score": score})


RUNS: dict[str, tuple[Callable[[str, int], Parts], str]] = {
    **{f"rows: {name}": (rows, name) for name in METHODS["rows"]},
    **{f"bags: {name}": (bags, name) for name in METHODS["bags"]},
    **{f"groups: {name}": (groups, name) for name in METHODS["groups"]},
}


def train(name: str, folder: str | Path | None, *, workers: int = 2, every: int | None = 1, **options: Any) -> History:
    """Run one to its end, going on from the checkpoint in the folder where there is one.

    Args:
        name: key of `RUNS`.
        folder: of the checkpoints; None for none.
        workers: of the loader.
        every: steps between two saves.
        options: of `fit`, which go before those of the run.
    """
    make, method = RUNS[name]
    parts = make(method, workers)
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, parts.columns))
    chosen: dict[str, Any] = {
        **{"epochs": 3, "warm_start_epochs": 1, "milestones": [1, 2], "lr": 0.05, "patience": 3, "seed": 7},
        **{"callbacks": [Decay()], "checkpoint": folder, "every": None if folder is None else every},
    }
    if name.startswith("groups"):
        chosen["optimizer"] = "adam"
    if isinstance(parts.loader.batch_sampler, BagSampler) and not hasattr(parts.criterion, "pooling"):
        chosen["warm_start_epochs"] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWarning)  # a few steps need not help
        return fit(model, parts.criterion, parts.loader, **{**chosen, **parts.options, **options})
