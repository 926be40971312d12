"""Rows of two classes, ranked for the region of the ROC curve that counts: their training.

What bags share with them is in :class:`RankingTask`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, RandomSampler

from moreauc._checks import floor_count
from moreauc._registry import TaskName
from moreauc.criteria import CrossEntropyLoss
from moreauc.data import TensorBatches
from moreauc.data.duplicates import Codes, any_equal, few_kinds, take_together
from moreauc.methods import build
from moreauc.samplers import PosNegSampler
from moreauc.tasks.base import Array, Data, Random, Task

_SMALLEST_PART = 2  # of each class, to train on and to hold out


@dataclass(frozen=True, kw_only=True)
class RankingTask(Task):
    """Two classes, ranked so that the two-way partial AUC is high; rows and bags are its leaves."""

    min_tpr: float  # lower end of the true positive rate
    max_fpr: float  # upper end of the false positive rate

    def hold_out(
        self, values: Array, fraction: float, random: Random, *, groups: Codes | None = None, same: Codes | None = None
    ) -> tuple[Array, Array]:
        """Return numbers of what to train on and of the hold-out, a share of each class.

        The hold-out is empty where a part would have fewer than two of a class, where the region would hold no pair, or
        where it would consist of many copies of few rows. With `groups` these stay together, not equal rows.
        """
        everything = np.arange(len(values)), np.arange(0)
        positive = values.astype(bool)
        together = same if groups is None else groups
        if fraction > 0.0 and together is not None and any_equal(together):
            held = take_together(together, positive, fraction, random)
            if groups is None and few_kinds(together[held]) is not None:  # no epoch could be chosen by them
                return everything
        else:
            held = np.zeros(len(values), dtype=bool)
            for rows in (np.flatnonzero(positive), np.flatnonzero(~positive)):
                held[random.permutation(rows)[: round(len(rows) * fraction)]] = True
        counts = {(kind, part): int(((positive == kind) & (held == part)).sum()) for kind in (0, 1) for part in (0, 1)}
        pairs = floor_count(counts[1, 1], 1.0 - self.min_tpr) * floor_count(counts[0, 1], self.max_fpr)
        if min(counts.values()) < _SMALLEST_PART or not pairs:
            return everything
        return np.flatnonzero(~held), np.flatnonzero(held)

    def build(self, data: Data) -> nn.Module:
        weights: dict[str, Any] = {}
        if data.weights is not None:
            weights["sample_weight"] = torch.from_numpy(data.weights / data.weights.mean())
        labels, options = data.targets.cpu(), {**self._region(), **weights, **self.loss_options}
        loss: nn.Module = build(self.name, self.loss, labels, **options)
        return loss

    def score(self, held: Data, loss: nn.Module) -> dict[str, Any]:
        """Return the region: the best epoch has the highest TPAUC."""
        return {**self._region(), "validation_weight": held.weights}

    def _region(self) -> dict[str, Any]:
        return {"min_tpr": self.min_tpr, "max_fpr": self.max_fpr}


@dataclass(frozen=True, kw_only=True)
class RowTask(RankingTask):
    """Rows of a table."""

    name: ClassVar[TaskName] = "rows"

    batch_size: int = 128  # rows of a step, at least 2
    positive_fraction: float = 0.5  # share of positives in balanced batches, in (0, 1)
    sampler: Literal["auto", "balanced", "shuffled"] = "auto"  # as of TPAUCClassifier

    def batches(self, data: Data, loss: nn.Module, model: nn.Module, seeds: Sequence[int]) -> TensorBatches:
        return TensorBatches(data.inputs, data.targets, self._sampler(data.targets.cpu(), loss, seeds[0]))

    def _sampler(self, labels: Tensor, loss: nn.Module, seed: int) -> Iterable[list[int]]:
        balanced = self.sampler == "balanced" or (self.sampler == "auto" and not isinstance(loss, CrossEntropyLoss))
        if not balanced:
            order = RandomSampler(range(len(labels)), generator=torch.Generator().manual_seed(seed))
            # A batch norm cannot train on one row; which row is left out is another one in each epoch.
            return BatchSampler(order, self.batch_size, drop_last=len(labels) % self.batch_size == 1)
        positives = min(max(round(self.batch_size * self.positive_fraction), 1), self.batch_size - 1)
        return balanced_batches(labels, positives, self.batch_size - positives, seed)


def balanced_batches(labels: Tensor, num_positives: int, num_negatives: int, seed: int) -> PosNegSampler:
    """Return batches of so many positives and negatives, fewer where there are fewer."""
    positives = int(labels.sum())
    return PosNegSampler(
        labels,
        num_positives=min(num_positives, positives),
        num_negatives=min(num_negatives, len(labels) - positives),
        seed=seed,
    )
