"""The interface of rows, bags and groups: what differs between them where a network is trained, and nothing else.

A task is made of its settings and knows no estimator, no file and no page. How tables of the command line become data
of a task, and how results are reported, is the matter of :mod:`moreauc.tasks.tables`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from moreauc.data.bags import Bags
from moreauc.data.duplicates import Codes
from moreauc.methods import METHODS, Method, TaskName

Array = NDArray[Any]
Random = np.random.RandomState | np.random.Generator


@dataclass(frozen=True)
class Data:
    """Rows or bags in one order, as a network takes them."""

    inputs: Any  # a tensor with one row for each, `SparseRows`, or `Bags`
    targets: Tensor  # what the loss takes, shape `(n,)`
    values: Array  # the targets in the user's terms, shape `(n,)`: 0/1 labels, numbers of classes, or values
    groups: NDArray[np.int64] | None = None  # number of each row's group; None for other tasks
    weights: NDArray[np.float64] | None = None  # how much each row or bag counts; None for 1 each

    def __len__(self) -> int:
        return len(self.values)

    def part(self, numbers: Array) -> Data:
        """Return some of the rows or bags."""
        places = torch.from_numpy(numbers)
        inputs = self.inputs.subset(places) if isinstance(self.inputs, Bags) else self.inputs[places]
        groups = None if self.groups is None else self.groups[numbers]
        weights = None if self.weights is None else self.weights[numbers]
        return Data(inputs, self.targets[places], self.values[numbers], groups, weights)


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """What a training needs to know of rows, bags or groups; its fields are its settings."""

    name: ClassVar[TaskName]  # key of `METHODS`

    loss: str  # key of its methods
    # keyword arguments of the loss, which go before those of the method
    loss_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def method(self) -> Method:
        """The method that the loss is of."""
        return METHODS[self.name][self.loss]

    @abstractmethod
    def hold_out(
        self,
        values: Array,
        fraction: float,
        random: Random,
        *,
        groups: NDArray[np.int64] | None = None,
        same: Codes | None = None,
    ) -> tuple[Array, Array]:
        """Return numbers of what to train on and of what to choose the epoch by, which may be nothing.

        `values` and `groups` are as in :class:`Data`. Rows or bags with equal numbers `same`, from 0, stay together;
        None where all differ.
        """

    def fitted(self, values: Array) -> Self:
        """Return the task with what it must learn from the values of the training data."""
        return self

    def targets(self, values: Array) -> Array:
        """Return what the loss takes for values: 0/1 labels, unless overridden."""
        return values.astype(np.int64)

    @abstractmethod
    def build(self, data: Data) -> Any:
        """Return the loss of the training data."""

    @abstractmethod
    def batches(self, data: Data, loss: nn.Module, model: nn.Module, seeds: Sequence[int]) -> Any:
        """Return the batches of the training data, for :func:`moreauc.train.fit`."""

    @abstractmethod
    def validation(self, data: Data, loss: nn.Module) -> Any:
        """Return the batches of the held-out data."""

    @abstractmethod
    def score(self, held: Data, loss: nn.Module) -> dict[str, Any]:
        """Return the arguments of :func:`moreauc.train.fit` that say what the best epoch is chosen by."""

    @abstractmethod
    def checksum(self, data: Data) -> str:
        """Return a text that tells data apart, for checkpoints."""
