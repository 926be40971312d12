"""Bags of instances with two classes: checks of what users call bags, and their training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from sklearn.utils import column_or_1d
from torch import Tensor, nn

from moreauc._checks import check_finite
from moreauc._registry import TaskName
from moreauc._settings import checksum
from moreauc.data import BagBatches, BagEvaluation
from moreauc.data.bags import Bags, ListBags
from moreauc.data.tables import as_frame
from moreauc.data.texts import check_apart
from moreauc.tasks.base import Array, Data
from moreauc.tasks.rows import RankingTask, balanced_batches

_WHOLE = 2**53
_COMPARED = 32  # instances of a bag that a checkpoint is compared by
_TYPES = {"bytes": "bytes (uint8)", "numbers": "numbers that are no bytes"}

BagsLike: TypeAlias = "Bags | Sequence[ArrayLike | Tensor | pd.DataFrame] | Array"  # one entry for each bag


@dataclass(frozen=True, kw_only=True)
class BagTask(RankingTask):
    """Bags of instances; a step sees a few instances of a few bags."""

    name: ClassVar[TaskName] = "bags"

    num_positives: int = 8  # positive bags of a step; fewer where there are fewer
    num_negatives: int = 8  # the same for negative bags
    instances_per_bag: int | None = 4  # instances drawn of each bag at a step, all where it has no more; None for all
    chunk: int = 4096  # instances scored at once

    def batches(self, data: Data, loss: nn.Module, model: nn.Module, seeds: Sequence[int]) -> BagBatches:
        sampler = balanced_batches(data.targets.cpu(), self.num_positives, self.num_negatives, seeds[0])
        return BagBatches(data.inputs, sampler, instances_per_bag=self.instances_per_bag, seed=seeds[1])

    def validation(self, data: Data, loss: Any) -> BagEvaluation:
        return BagEvaluation(data.inputs, loss.pooling, chunk=self.chunk)

    def checksum(self, data: Data) -> str:
        """Return the checksum of the first instances of each bag: bags may be larger than memory."""
        rows = [torch.arange(min(size, _COMPARED)) for size in data.inputs.sizes.tolist()]
        return checksum([data.inputs.sizes, *(data.inputs.instances(bag, own) for bag, own in enumerate(rows))])


@dataclass(frozen=True)
class InstanceFormat:
    """What an instance looks like."""

    shape: tuple[int, ...]  # of one instance
    names: tuple[str, ...] | None = None  # of its features, where bags came as DataFrames with string names; else None
    # "bytes" for uint8, which are images and reach the network as they are; "numbers" for all else
    kind: Literal["numbers", "bytes"] = "numbers"


class PreparedBags(Bags):
    """A view on bags with other labels, whose features are shifted and divided by `scale`, unless that is None."""

    def __init__(self, source: Bags, labels: Tensor, scale: tuple[Tensor, Tensor] | None) -> None:
        self.labels, self.sizes = labels, source.sizes
        self._source, self._scale = source, scale

    def instances(self, bag: int, rows: Tensor | None = None) -> Tensor:
        """Return instances of a bag, prepared."""
        return prepare(self._source.instances(bag, rows), self._scale)


def prepare(instances: Tensor, scale: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return instances shifted and divided, as float32; bytes stay bytes where nothing is to be done.

    In float64 until the end, since what is left of large numbers may be small.
    """
    if scale is None and instances.dtype == torch.uint8:  # images, which networks take as bytes
        return instances
    values = instances.double() if scale is None else (instances.double() - scale[0]) / scale[1]
    # Numbers beyond the range of float32 become its largest, not infinity.
    limit = torch.finfo(torch.float32).max
    return values.clamp(-limit, limit).float()


def as_bags(owner: str, bags: BagsLike, form: InstanceFormat | None = None) -> tuple[Bags, InstanceFormat]:
    """Return bags, or a sequence of arrays, tensors or DataFrames, as :class:`~moreauc.data.Bags`, and their format."""
    if isinstance(bags, Bags):
        one = bags.instances(0, torch.tensor([0]))
        found = InstanceFormat(tuple(one.shape[1:]), kind=_kind(one))
        return bags, _check_form(owner, "bag 0", found, form)
    if not isinstance(bags, Sequence | np.ndarray) or isinstance(bags, str | bytes):
        kind = type(bags).__name__
        raise ValueError(f"{owner}: bags must be Bags or a list of arrays, one for each bag, got {kind}")
    if not len(bags):
        raise ValueError(f"{owner}: bags must hold at least one bag, got none")
    first, form = as_instances(owner, "bag 0", bags[0], form)
    parts = [first]
    for number in range(1, len(bags)):
        part, form = as_instances(owner, f"bag {number}", bags[number], form)
        parts.append(part)
    if len({part.dtype for part in parts}) > 1:  # several number types; bytes have been refused
        parts = [part.double() for part in parts]
    return ListBags(parts, [0] * len(parts)), form


def as_instances(owner: str, name: str, bag: Any, form: InstanceFormat | None) -> tuple[Tensor, InstanceFormat]:
    """Return the instances of one bag and what they look like, which must be `form` where it is given."""
    names, bag = None, as_frame(owner, bag, name=name)
    if isinstance(bag, pd.DataFrame):
        names = tuple(bag.columns) if all(isinstance(column, str) for column in bag.columns) else None
        bag = _numbers(owner, name, bag)
    values = bag.detach().cpu() if isinstance(bag, Tensor) else _as_tensor(owner, name, bag)
    if values.is_complex():
        raise ValueError(f"{owner}: {name} must hold real numbers, got {values.dtype}")
    if values.ndim < 2 or 0 in values.shape[1:]:
        shape = tuple(values.shape)
        raise ValueError(f"{owner}: {name} must have shape (instances, features), got {shape}")
    if not len(values):
        raise ValueError(f"{owner}: {name} must have at least one instance, got none")
    found = InstanceFormat(tuple(values.shape[1:]), names, _kind(values))
    form = _check_form(owner, name, found, form)
    if values.is_floating_point():
        check_finite(owner, **{f"instances of {name}": values})
    elif values.dtype != torch.uint8:
        _check_whole(owner, f"instances of {name}", values.min().item(), values.max().item())
        values = values.double()
    return values, form


def _kind(values: Tensor) -> Literal["numbers", "bytes"]:
    return "bytes" if values.dtype == torch.uint8 else "numbers"


def _as_tensor(owner: str, name: str, bag: Any) -> Tensor:
    try:
        array = np.asarray(bag)
        array = array.astype(float) if array.dtype == object else array
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))  # a copy: torch cannot use a view
    except (TypeError, ValueError) as error:
        kind = type(bag).__name__
        raise ValueError(f"{owner}: {name} must be an array of numbers, got a {kind}: {error}") from error


def _numbers(owner: str, name: str, frame: pd.DataFrame) -> Array:
    columns = []
    for place, column in enumerate(frame.columns):
        values = frame.iloc[:, place]
        if values.dtype.kind in "iu" and values.notna().any():
            _check_whole(owner, f"column {column!r} of {name}", values.min(), values.max())
        try:
            columns.append(values.to_numpy(dtype=np.float64, na_value=np.nan))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{owner}: {name} must hold numbers in column {column!r}: {error}") from error
    return np.column_stack(columns) if columns else np.empty((len(frame), 0))


def _check_whole(owner: str, name: str, low: Any, high: Any) -> None:
    """Refuse whole numbers that float64 rounds: large ones close together would be one number."""
    largest = max(int(low), int(high), key=abs)
    if abs(largest) > _WHOLE:
        raise ValueError(
            f"{owner}: {name} must hold whole numbers of at most {_WHOLE} (2**53), which floating point can tell "
            f"apart, got {largest}; subtract a constant, or leave them out"
        )


def _check_form(owner: str, name: str, found: InstanceFormat, wanted: InstanceFormat | None) -> InstanceFormat:
    """Return `wanted`, which `found` must agree with; `found` where nothing is wanted, or no names yet."""
    if wanted is None:
        return found
    if found.shape != wanted.shape:
        shapes = f"{wanted.shape}, as before, got {found.shape}"
        raise ValueError(f"{owner}: {name} must have instances of shape {shapes}")
    if found.kind != wanted.kind:  # a network may treat the byte 255 as the number 1
        raise ValueError(f"{owner}: {name} must hold {_TYPES[wanted.kind]}, as before, got {_TYPES[found.kind]}")
    if found.names is not None and wanted.names is not None and found.names != wanted.names:
        got, want = next(pair for pair in zip(found.names, wanted.names, strict=True) if pair[0] != pair[1])
        raise ValueError(f"{owner}: {name} must have its columns named and ordered as before, got {got!r} for {want!r}")
    return found if wanted.names is None else wanted


def classes_of(owner: str, bags: Any, y: ArrayLike | None, count: int) -> Array:
    """Return the classes of bags, their own labels where none are given."""
    if y is None:
        if not isinstance(bags, Bags):
            raise ValueError(f"{owner}: y must be given, unless bags are Bags with labels, got None")
        y = bags.labels.numpy()
    values: Array = column_or_1d(y, warn=True)
    if len(values) != count:
        raise ValueError(f"{owner}: y must have a class for each of {count} bags, got {len(values)}")
    return values


def two_classes(owner: str, values: Array) -> Array:
    """Return the two classes among the values, sorted; missing values and any other number of classes are refused."""
    check_apart(owner, "y", values)
    missing = int(pd.isna(values).sum())
    if missing:
        raise ValueError(f"{owner}: y must have no missing values, got {missing}")
    try:
        classes: Array = np.unique(values)
    except TypeError as error:
        kinds = sorted({type(value).__name__ for value in values})
        raise ValueError(f"{owner}: y must hold classes that can be sorted, got {' and '.join(kinds)}") from error
    if len(classes) != 2:
        found = f"one class, {classes.tolist()}" if len(classes) == 1 else f"{len(classes)} classes"
        raise ValueError(f"{owner}: y must hold two classes, got {found}")
    return classes
