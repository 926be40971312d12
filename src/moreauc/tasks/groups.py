"""Rows in groups, of which the worst count: their training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from moreauc._registry import TaskName
from moreauc.data import TensorBatches
from moreauc.data.duplicates import Codes, few_kinds
from moreauc.data.groups import hold_out
from moreauc.methods import build
from moreauc.samplers.groups import GroupSampler, ShuffledSampler
from moreauc.tasks.base import Array, Data, Random, Task
from moreauc.tasks.goals import Classes, EpochChoice, Numbers

# Methods for shuffled rows; with an equal number of rows of each group they would minimise another loss.
_PLAIN = ("erm", "erm_reweighted", "cvar")


@dataclass(frozen=True, kw_only=True)
class GroupTask(Task):
    """Rows in groups, of which the worst count."""

    name: ClassVar[TaskName] = "groups"
    binary: ClassVar[bool] = False

    num_groups: int  # number of groups
    top_k: int  # how many of the worst groups count
    goal: Classes | Numbers  # what is predicted
    # as arguments of the estimators for groups
    groups_per_batch: int = 8
    samples_per_group: int = 16
    sampler: Literal["auto", "groups", "plain"] = "auto"

    @property
    def by_groups(self) -> bool:
        """Whether each batch holds a fixed number of groups and of rows of each."""
        return self.sampler == "groups" or (self.sampler == "auto" and self.loss not in _PLAIN and self.num_groups > 1)

    def hold_out(
        self, values: Array, fraction: float, random: Random, *, groups: Codes | None = None, same: Codes | None = None
    ) -> tuple[Array, Array]:
        """Return numbers of what to train on and of the hold-out, a share of each group; see :func:`hold_out`."""
        classes = isinstance(self.goal, Classes)
        train, held = hold_out(np.asarray(groups), values, fraction, random, classes=classes, same=same)
        if same is not None and few_kinds(same[held]) is not None:  # no epoch could be chosen by them
            return np.arange(len(values)), held[:0]
        return train, held

    def fitted(self, values: Array) -> GroupTask:
        return replace(self, goal=self.goal.fitted(values))

    def targets(self, values: Array) -> Array:
        return self.goal.targets(values)

    def build(self, data: Data) -> nn.Module:
        facts: dict[str, Any] = {"num_groups": self.num_groups, "top_k": self.top_k, "sample_loss": self.goal.loss}
        loss: nn.Module = build(self.name, self.loss, data.groups, **{**facts, **self.loss_options})
        return loss

    def batches(self, data: Data, loss: nn.Module, model: nn.Module, seeds: Sequence[int]) -> TensorBatches:
        sampler = self.make_sampler(np.asarray(data.groups), model, seeds[0])
        return TensorBatches(data.inputs, data.targets, sampler, binary=False)

    def make_sampler(self, groups: NDArray[np.int64], model: nn.Module, seed: int) -> GroupSampler | ShuffledSampler:
        """Return the batches as row numbers.

        A batch norm cannot train on one row. Where one group could be a batch, and has one row, two groups are drawn;
        a plain batch is made larger, at the latest up to all rows, until more than one row is left for the last.
        """
        if self.by_groups:
            sizes = np.bincount(groups)
            number = min(self.groups_per_batch, len(sizes))
            single = number == 1 and len(sizes) > 1 and self.samples_per_group > 1 and sizes.min() == 1
            if single and any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
                number = 2
            return GroupSampler(groups, groups_per_batch=number, samples_per_group=self.samples_per_group, seed=seed)
        size, rows = self.groups_per_batch * self.samples_per_group, len(groups)
        while 1 < size < rows and rows % size == 1:
            size += 1
        return ShuffledSampler(rows, batch_size=size, seed=seed)

    def score(self, held: Data, loss: Any) -> dict[str, Any]:
        """Return the score: minus the loss of the held-out rows that :meth:`choice` names."""
        choice = self.choice(loss)

        def score(scores: Tensor, _: Tensor) -> float:
            return -choice(self.goal.row_losses(scores.numpy(), held.values), np.asarray(held.groups))

        return {"score": score}

    def choice(self, loss: Any) -> EpochChoice:
        """Return what the epoch is chosen by: what the loss minimises, estimated from the held-out rows."""
        if self.loss in ("sonx", "exponentiated"):
            return EpochChoice(top_k=self.top_k if self.loss == "sonx" else 1)
        fraction = float(loss.criterion.fraction) if self.loss == "cvar" else 1.0
        return EpochChoice(balanced=self.by_groups or self.loss == "erm_reweighted", fraction=fraction)
