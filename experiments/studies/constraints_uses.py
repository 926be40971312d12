"""Three uses of constraints: a false-positive rate, true-positive rates of groups, losses of old tasks.

A rate is the share of rows with a positive score, and its gradient that of the sigmoid of the scores: a constraint is
then met by the predictions, not by a surrogate of them. All methods get the same values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, softplus

from experiments.data.groups import load_adult, load_compas
from experiments.machine import seeded
from moreauc.data import load_example, planted_groups
from moreauc.data.examples import GroupData
from moreauc.data.tabular import TableEncoder
from moreauc.models import MLP

Batch = tuple[Tensor, ...]
Model = Callable[[Tensor], Tensor]
PARTS = ("train", "validation", "test")
TOLERANCES = {"adult": 0.02, "compas": 0.05, "made": 0.05}  # gaps of true-positive rates
HIDDEN = (32,)


class Measure(NamedTuple):
    """What a model does on a part: a score, higher is better, and by how much each constraint is violated."""

    score: float
    violation: Tensor


class Use(ABC):
    """A problem with constraints.

    Attributes:
        num_constraints: number of constraints.
        start: the network that every method starts from.
    """

    num_constraints: int
    start: nn.Module

    @abstractmethod
    def draw(self, random: torch.Generator) -> Batch:
        """Return the rows of a step."""

    @abstractmethod
    def objective(self, model: Model, batch: Batch) -> Tensor:
        """Return the objective on a batch, shape `()`."""

    def unconstrained(self, model: Model, batch: Batch) -> Tensor:
        """Return what is minimised where there are no constraints."""
        return self.objective(model, batch)

    @abstractmethod
    def constraints(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return values of the constraints in a batch, at most 0 where they are met, and their numbers."""

    @abstractmethod
    def measure(self, model: Model, part: str) -> Measure:
        """Return score and violations on all rows of a part."""


def rate(scores: Tensor) -> Tensor:
    """Return 1 for positive scores and 0 for others, with the gradient of the sigmoid."""
    smooth = torch.sigmoid(scores)
    return smooth + ((scores > 0).to(smooth) - smooth).detach()


def pick(rows: Tensor, count: int, random: torch.Generator) -> Tensor:
    """Return some of the rows, drawn with replacement."""
    return rows[torch.randint(len(rows), (count,), generator=random)]


class FalsePositives(Use):
    """Recall of frauds with a false-positive rate of at most `most` (Neyman-Pearson): one constraint.

    The unconstrained model weighs both classes equally.
    """

    num_constraints, most, positives, negatives = 1, 0.02, 32, 64

    def __init__(self, seed: int, folder: Path | None) -> None:
        (table, classes, _), (test, others, _) = load_example("fraud"), load_example("fraud_test")
        rows = train_test_split(np.arange(len(classes)), test_size=0.2, stratify=classes, random_state=seed)
        encoder = TableEncoder().fit(table.iloc[rows[0]])
        known = [*((table.iloc[own], classes[own]) for own in rows), (test, others)]
        self.parts = {
            name: (torch.from_numpy(encoder.encode(inputs)).float(), torch.from_numpy(labels))
            for name, (inputs, labels) in zip(PARTS, known, strict=True)
        }
        self.inputs, labels = self.parts["train"]
        self.rows = [(labels == label).nonzero().squeeze(1) for label in (0, 1)]
        self.start = seeded(seed, MLP, self.inputs.shape[1], hidden=HIDDEN)

    def draw(self, random: torch.Generator) -> Batch:
        """Return positives and negatives."""
        counts = zip(self.rows, (self.negatives, self.positives), strict=True)
        below, above = (self.inputs[pick(rows, count, random)] for rows, count in counts)
        return above, below

    def objective(self, model: Model, batch: Batch) -> Tensor:
        """Return the logistic loss of the positives."""
        return softplus(-model(batch[0])).mean()

    def unconstrained(self, model: Model, batch: Batch) -> Tensor:
        """Return the logistic loss of both classes."""
        return self.objective(model, batch) + softplus(model(batch[1])).mean()

    def constraints(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the false-positive rate less its bound."""
        return rate(model(batch[1])).mean().reshape(1) - self.most, torch.zeros(1, dtype=torch.int64)

    @torch.no_grad()
    def measure(self, model: Model, part: str) -> Measure:
        """Return recall and the excess of the false-positive rate."""
        inputs, labels = self.parts[part]
        called = (model(inputs) > 0).double()
        return Measure(float(called[labels == 1].mean()), called[labels == 0].mean().reshape(1) - self.most)

    def moved(self, model: Model) -> Model:
        """Return the model with the threshold at which validation rows meet the constraint."""
        inputs, labels = self.parts["validation"]
        with torch.no_grad():
            ordered = model(inputs)[labels == 0].sort(descending=True).values
        threshold = ordered[int(self.most * len(ordered))]
        return lambda rows: model(rows) - threshold


class GroupRates(Use):
    """Accuracy with true-positive rates of all groups near that of all rows: two constraints a group.

    Groups with few positives are one group. The rate of all rows is that of the positives among plain rows of the
    batch, which are also those of the objective; some groups have further positives in it.
    """

    plain, few, per_group, groups_per_batch = 128, 500, 8, 2

    def __init__(self, dataset: str, seed: int, folder: Path | None) -> None:
        data, self.most = _load_groups(dataset, folder), TOLERANCES[dataset]
        groups, self.names = _merge(data, self.few)
        rest, test = train_test_split(
            np.arange(len(data)), test_size=0.3, stratify=2 * groups + data.y, random_state=seed
        )
        strata = (2 * groups + data.y)[rest]
        train, validation = train_test_split(rest, test_size=2 / 7, stratify=strata, random_state=seed)
        table = torch.from_numpy(np.asarray(TableEncoder().fit_encode(data.X, rows=train))).float()
        self.parts = {
            name: (table[own], torch.from_numpy(data.y[own]), torch.from_numpy(groups[own]))
            for name, own in zip(PARTS, (train, validation, test), strict=True)
        }
        self.inputs, self.labels, known = self.parts["train"]
        self.num_groups = len(self.names)
        self.num_constraints = 2 * self.num_groups
        self.rows = [((known == group) & (self.labels == 1)).nonzero().squeeze(1) for group in range(self.num_groups)]
        self.start = seeded(seed, MLP, table.shape[1], hidden=HIDDEN)

    def draw(self, random: torch.Generator) -> Batch:
        """Return plain rows with their labels, positives of some groups, and which groups these are."""
        plain = torch.randint(len(self.labels), (self.plain,), generator=random)
        groups = torch.randperm(self.num_groups, generator=random)[: self.groups_per_batch]
        rows = torch.cat([pick(self.rows[int(group)], self.per_group, random) for group in groups])
        return self.inputs[plain], self.labels[plain], self.inputs[rows], groups

    def objective(self, model: Model, batch: Batch) -> Tensor:
        """Return the cross entropy of the plain rows."""
        return binary_cross_entropy_with_logits(model(batch[0]), batch[1].to(batch[0]))

    def constraints(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return how far the rates of some groups are above, and below, that of all rows, less the tolerance."""
        inputs, labels, positives, groups = batch
        own = rate(model(positives)).view(len(groups), -1).mean(1)
        gap = own - rate(model(inputs[labels == 1])).mean()
        return torch.cat([gap, -gap]) - self.most, torch.cat([groups, groups + self.num_groups])

    @torch.no_grad()
    def measure(self, model: Model, part: str) -> Measure:
        """Return accuracy and the violations."""
        return self.measure_shares((model(self.parts[part][0]) > 0).double(), part)

    def measure_shares(self, called: Tensor, part: str) -> Measure:
        """Do so for the probability of each row to be called positive, shape `(n,)`."""
        _, labels, groups = self.parts[part]
        right = torch.where(labels == 1, called, 1.0 - called).mean()
        called, groups = called[labels == 1], groups[labels == 1]
        rates = torch.stack([called[groups == group].mean() for group in range(self.num_groups)])
        gap = rates - called.mean()
        return Measure(float(right), torch.cat([gap, -gap]) - self.most)


@lru_cache(maxsize=2)
def _load_groups(dataset: str, folder: Path | None) -> GroupData:
    if dataset == "made":
        return planted_groups(num_groups=4, samples=2000, minority_groups=1, seed=0)[0]
    return (load_adult if dataset == "adult" else load_compas)(folder)


def _merge(data: GroupData, few: int) -> tuple[NDArray[np.int64], list[str]]:
    """Return group numbers with the groups of fewer than `few` positives as one, the last, and the names."""
    positives = np.bincount(data.groups[data.y == 1], minlength=data.num_groups)
    kept = np.flatnonzero(positives >= few)
    numbers = np.full(data.num_groups, len(kept))
    numbers[kept] = np.arange(len(kept))
    groups = numbers[data.groups]
    return groups, [*(data.names[group] for group in kept), *(["others"] if (groups == len(kept)).any() else [])]


class OldTasks(Use):
    """Accuracy on digits turned by 90 degrees, with a loss on each old task that is not above that of the old model.

    Tasks are the ten classes of upright, mirrored and inverted digits: 30 constraints. Each step has rows of some of
    them. All methods start from the old model, which was trained on all tasks.
    """

    rows_per_batch, tasks_per_batch, per_task, old_steps = 64, 10, 2, 3000
    views: ClassVar[tuple[Callable[[Tensor], Tensor], ...]] = (
        lambda image: image,
        lambda image: image.flip(2),
        lambda image: image.flip(1),
    )

    def __init__(self, seed: int, folder: Path | None) -> None:
        pixels, classes = load_digits(return_X_y=True)
        images, labels = torch.from_numpy(pixels).float().view(-1, 8, 8) / 16.0, torch.from_numpy(classes)
        rest, test = train_test_split(np.arange(len(classes)), test_size=0.3, stratify=classes, random_state=seed)
        train, validation = train_test_split(rest, test_size=2 / 7, stratify=classes[rest], random_state=seed)
        turned = images.transpose(1, 2).flip(2).flatten(1)
        old = torch.stack([view(images).flatten(1) for view in self.views])
        self.parts = {
            name: (turned[own], labels[own], old[:, own])
            for name, own in zip(PARTS, (train, validation, test), strict=True)
        }
        self.turned, self.labels, self.old = self.parts["train"]
        self.num_constraints = 10 * len(self.views)
        self.rows = [(self.labels == label).nonzero().squeeze(1) for label in range(10)]
        self.start = seeded(seed, MLP, 64, hidden=HIDDEN, num_outputs=10)
        self._train_old(torch.Generator().manual_seed(seed))
        self.old_losses = {part: self._losses(self.start, part) for part in PARTS}

    def _train_old(self, random: torch.Generator) -> None:
        optimizer = torch.optim.AdamW(self.start.parameters(), lr=0.01, weight_decay=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.old_steps)
        for _ in range(self.old_steps):
            row, view = (torch.randint(high, (64,), generator=random) for high in (len(self.labels), len(self.views)))
            loss = cross_entropy(self.start(self.old[view, row]), self.labels[row])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()

    @torch.no_grad()
    def _losses(self, model: Model, part: str) -> Tensor:
        _, labels, old = self.parts[part]
        losses = [cross_entropy(model(rows), labels, reduction="none") for rows in old]
        return torch.stack([own[labels == label].mean() for own in losses for label in range(10)])

    def draw(self, random: torch.Generator) -> Batch:
        """Return turned digits with their labels, old ones of some tasks with theirs, and which tasks these are."""
        new = torch.randint(len(self.labels), (self.rows_per_batch,), generator=random)
        tasks = torch.randperm(self.num_constraints, generator=random)[: self.tasks_per_batch]
        rows = torch.cat([pick(self.rows[int(task) % 10], self.per_task, random) for task in tasks])
        views = (tasks // 10).repeat_interleave(self.per_task)
        return self.turned[new], self.labels[new], self.old[views, rows], self.labels[rows], tasks

    def objective(self, model: Model, batch: Batch) -> Tensor:
        """Return the cross entropy of the turned digits."""
        return cross_entropy(model(batch[0]), batch[1])

    def replayed(self, model: Model, batch: Batch) -> Tensor:
        """Return the cross entropy of turned and of old digits."""
        return self.objective(model, batch) + cross_entropy(model(batch[2]), batch[3])

    def constraints(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the losses of some tasks less those of the old model."""
        _, _, old, labels, tasks = batch
        losses = cross_entropy(model(old), labels, reduction="none").view(len(tasks), -1).mean(1)
        return losses - self.old_losses["train"][tasks], tasks

    @torch.no_grad()
    def measure(self, model: Model, part: str) -> Measure:
        """Return the accuracy on turned digits, and by how much the loss of each old task has risen."""
        turned, labels, _ = self.parts[part]
        right = (model(turned).argmax(1) == labels).double().mean()
        return Measure(float(right), self._losses(model, part) - self.old_losses[part])


@lru_cache(maxsize=1)
def load_use(dataset: str, seed: int, folder: Path | None) -> Use:
    """Return a use with the rows of a seed: "fraud", "adult", "compas", "made" or "digits"."""
    simple: Mapping[str, Any] = {"fraud": FalsePositives, "digits": OldTasks}
    return simple[dataset](seed, folder) if dataset in simple else GroupRates(dataset, seed, folder)
