"""What a training needs to know of rows, bags or groups, apart from any file or page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from moreauc._registry import METHODS, Method, TaskName
from moreauc._settings import checksum
from moreauc.data import TensorBatches
from moreauc.data.bags import Bags
from moreauc.data.batches import rows_at_once, tensors_of
from moreauc.data.duplicates import Codes

Array = NDArray[Any]
Random = np.random.RandomState | np.random.Generator

CHUNK = 4096  # rows of a table scored at once


@dataclass(frozen=True)
class Data:
    """Rows or bags in one order, as a network takes them."""

    inputs: Any  # a tensor with one row for each, `SparseRows`, or `Bags`
    targets: Tensor  # what the loss takes, shape `(n,)`
    values: Array  # the targets in the user's terms, shape `(n,)`: 0/1 labels, numbers of classes, or values
    groups: NDArray[np.int64] | None = None  # number of each row's group, where there are any
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
    binary: ClassVar[bool] = True  # whether targets are 0/1 labels

    loss: str  # key of its methods
    # keyword arguments of the loss, which go before those of the method
    loss_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def method(self) -> Method:
        """The method that the loss is of."""
        return METHODS[self.name][self.loss]

    @abstractmethod
    def hold_out(
        self, values: Array, fraction: float, random: Random, *, groups: Codes | None = None, same: Codes | None = None
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
    def build(self, data: Data) -> nn.Module:
        """Return the loss of the training data."""

    @abstractmethod
    def batches(self, data: Data, loss: nn.Module, model: nn.Module, seeds: Sequence[int]) -> Any:
        """Return the batches of the training data, for :func:`moreauc.train.fit`."""

    def validation(self, data: Data, loss: Any) -> Any:
        """Return the batches of the held-out data."""
        size = rows_at_once(data.inputs, CHUNK)
        return TensorBatches(data.inputs, data.targets, batch_size=size, binary=self.binary)

    @abstractmethod
    def score(self, held: Data, loss: nn.Module) -> dict[str, Any]:
        """Return the arguments of :func:`moreauc.train.fit` that say what the best epoch is chosen by."""

    def checksum(self, data: Data) -> str:
        """Return a checksum of the inputs, and of the weights if there are any, which a checkpoint is compared by."""
        weights = [] if data.weights is None else [torch.from_numpy(data.weights)]
        return checksum([*tensors_of(data.inputs), *weights])
