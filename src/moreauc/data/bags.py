"""Labelled bags of instances: in memory, in one flat array, or in files read lazily.

All classes have the same interface and read only what is asked for. Instances come as tensors on the CPU; floating
point numbers and bytes (images) keep their type, other integers become float32; those too large for it are refused.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from os import PathLike

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from moreauc._checks import as_labels, check_finite, check_index, check_labels, check_shape
from moreauc.data._bag_files import NpyFile, as_instances, check_instance_shape, forward_strides, instance_type
from moreauc.data.texts import normal_text

Ids = Sequence[Hashable] | Tensor | NDArray[np.generic]
_CHUNK = 4096  # instances read at a time for the mean and spread

Instances = Tensor | NDArray[np.generic]
Labels = Tensor | Sequence[int] | NDArray[np.generic]


class Bags(ABC):
    """Labelled bags of instances.

    A subclass implements :meth:`instances`, and sets `labels`, 0/1, and `sizes`, at least 1, of the bags: int64 of
    shape `(n,)`, on the CPU.
    """

    labels: Tensor
    sizes: Tensor

    @abstractmethod
    def instances(self, bag: int, rows: Tensor | None = None) -> Tensor:
        """Return instances of a bag, shape `(k, ...)`.

        `rows` are positions in the bag, shape `(k,)`, in any order; None for all. Only these are read, and checked.
        """

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, bags: Sequence[int] | Tensor) -> Bags:
        """Return a view on some bags, numbered from 0 in the order given; nothing is copied.

        A bag that is not there, or none, is a ValueError.
        """
        return _Subset(self, _check_numbers(self._owner, "bags", bags, len(self)))

    def to_padded(self) -> tuple[Tensor, Tensor]:
        """Return all instances padded with zeros to the largest bag, `(n, m, features, ...)`, and a mask `(n, m)`.

        Example:
            >>> inputs, mask = ListBags([torch.ones(1, 4), torch.ones(2, 4)], labels=[0, 1]).to_padded()
            >>> inputs.shape, mask
            (torch.Size([2, 2, 4]), tensor([[ True, False],
                    [ True,  True]]))
        """
        mask = torch.arange(int(self.sizes.max())) < self.sizes.unsqueeze(1)
        one = self.instances(0, torch.tensor([0]))
        inputs = one.new_zeros(*mask.shape, *one.shape[1:])
        for bag, size in enumerate(self.sizes.tolist()):
            inputs[bag, :size] = self.instances(bag)
        return inputs, mask

    @property
    def _owner(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        positives, instances = int(self.labels.sum()), int(self.sizes.sum())
        return f"{self._owner}({len(self)} bags, {positives} positive, {instances} instances)"


class _Subset(Bags):
    """Some bags of others; errors of reading name the bag by its number there."""

    def __init__(self, source: Bags, numbers: Tensor) -> None:
        self._source, self._numbers = source, numbers.tolist()
        self.labels, self.sizes = source.labels[numbers], source.sizes[numbers]

    def instances(self, bag: int, rows: Tensor | None = None) -> Tensor:
        return self._source.instances(self._numbers[_check_bag(self._owner, bag, len(self))], rows)

    @property
    def _owner(self) -> str:
        return self._source._owner


class _StoredBags(Bags):
    """Bags of arrays, checked; a subclass knows how to read them."""

    def __init__(self, labels: Labels, sizes: Tensor, *, lazy: bool = False) -> None:
        self.labels = check_labels(self._owner, labels, both=False).cpu()
        self.sizes, self._lazy = sizes, lazy
        if len(self.labels) != len(sizes):
            raise ValueError(f"{self._owner}: labels must be as many as bags, {len(sizes)}, got {len(self.labels)}")

    @abstractmethod
    def _read(self, bag: int, rows: Tensor | None) -> Tensor:
        """Return instances of a bag; number and rows have been checked."""

    def instances(self, bag: int, rows: Tensor | None = None) -> Tensor:
        number = _check_bag(self._owner, bag, len(self))
        if rows is not None:
            rows = _check_numbers(self._owner, "rows", rows, int(self.sizes[number]))
        values = self._read(number, rows)
        if self._lazy:  # others were checked by the constructor
            _check_values(self._owner, number, values)
        return values


class ListBags(_StoredBags):
    """Bags in memory, an array for each.

    Args:
        bags: arrays or tensors of shape `(instances, features, ...)`, with the same features and of the same type.
        labels: 0/1 labels of the bags, shape `(n,)`.

    Example:
        >>> bags = ListBags([torch.zeros(3, 2), torch.ones(1, 2)], labels=[0, 1])
        >>> bags
        ListBags(2 bags, 1 positive, 4 instances)
        >>> bags.subset([1]).labels
        tensor([1])
    """

    def __init__(self, bags: Sequence[Tensor | NDArray[np.generic]], labels: Labels) -> None:
        owner = self._owner
        if not len(bags):
            raise ValueError(f"{owner}: bags must hold at least one bag, got none")
        self._bags = [as_instances(owner, f"bag {number}", bag) for number, bag in enumerate(bags)]
        first = self._bags[0]
        for number, bag in enumerate(self._bags):
            check_instance_shape(owner, f"bag {number}", tuple(bag.shape))
            if bag.shape[1:] != first.shape[1:] or bag.dtype != first.dtype:
                wanted, found = (f"{tuple(b.shape[1:])} of {b.dtype}" for b in (first, bag))
                raise ValueError(f"{owner}: bag {number} must have instances as bag 0, {wanted}, got {found}")
            _check_values(owner, number, bag)
        super().__init__(labels, torch.tensor([len(bag) for bag in self._bags]))

    @classmethod
    def from_padded(
        cls, inputs: Tensor | NDArray[np.generic], mask: Tensor | NDArray[np.generic], labels: Labels
    ) -> ListBags:
        """Return bags of the instances that a mask keeps, as torchmil pads them.

        `mask` is True (or 1) for an instance, False (or 0) for padding, shape `(n, m)`; what it leaves out may be
        anything. `inputs` has the shape `(n, m, features, ...)`.

        Example:
            >>> ListBags.from_padded(torch.ones(2, 3, 4), torch.tensor([[1, 1, 0], [1, 1, 1]]), labels=[0, 1])
            ListBags(2 bags, 1 positive, 5 instances)
        """
        owner = "ListBags.from_padded"
        values = as_instances(owner, "inputs", inputs)
        kept: Tensor = torch.as_tensor(forward_strides(mask)).cpu()
        check_shape(owner, "mask", kept, [tuple(values.shape[:2])])
        strange = kept[(kept != 0) & (kept != 1)]
        if strange.numel():
            raise ValueError(f"{owner}: mask must be True or False, got {strange[0].item()}")
        return cls([bag[keep] for bag, keep in zip(values, kept.bool(), strict=True)], labels)

    def _read(self, bag: int, rows: Tensor | None) -> Tensor:
        return self._bags[bag] if rows is None else self._bags[bag].index_select(0, rows)


class FlatBags(_StoredBags):
    """Bags as consecutive rows of one array, which may be memory-mapped (`np.load(file, mmap_mode="r")`).

    Of a memory-mapped array only the requested instances are read and checked. Pickling, as for spawned workers, copies
    the array; that of :class:`FileBags` does not.

    Args:
        instances: instances of all bags, bag after bag, shape `(T, features, ...)`.
        offsets: where each bag begins, and `T`, shape `(n + 1,)`.
        labels: 0/1 labels of the bags, shape `(n,)`.

    Example:
        >>> FlatBags(torch.arange(8.0).reshape(4, 2), offsets=[0, 3, 4], labels=[0, 1]).instances(1)
        tensor([[6., 7.]])
    """

    def __init__(
        self,
        instances: Tensor | NDArray[np.generic],
        offsets: Tensor | Sequence[int] | NDArray[np.generic],
        labels: Labels,
    ) -> None:
        self._build(instances, offsets, labels, None)

    def _build(self, instances: Instances, offsets: Labels, labels: Labels, order: Tensor | None) -> None:
        owner = self._owner
        lazy = isinstance(instances, np.memmap)
        self._flat = instances if lazy else as_instances(owner, "instances", instances)
        check_instance_shape(owner, "instances", tuple(self._flat.shape))
        if isinstance(instances, np.memmap):
            instance_type(owner, "instances", instances.dtype)
        self._offsets, self._order = _check_offsets(owner, forward_strides(offsets), len(self._flat)), order
        super().__init__(labels, self._offsets.diff(), lazy=lazy)
        if (
            isinstance(self._flat, Tensor) and self._flat.is_floating_point() and not math.isfinite(self._flat.sum())
        ):  # find the bag
            for bag in range(len(self)):
                _check_values(owner, bag, self._read(bag, None))

    @classmethod
    def from_ids(
        cls, instances: Tensor | NDArray[np.generic], ids: Ids, labels: Mapping[Hashable, int] | Labels
    ) -> FlatBags:
        """Return bags of the instances that share an id, in the order in which the ids first appear.

        Instances of a bag need not be consecutive; inside a bag they keep their order. Nothing is copied. `ids` are
        anything hashable, shape `(T,)`; `labels` one for each id, or for each of the `instances`.

        Example:
            >>> x = torch.arange(4.0).unsqueeze(1)
            >>> bags = FlatBags.from_ids(x, ["b", "a", "b", "b"], {"a": 1, "b": 0})
            >>> bags.labels, bags.instances(0).squeeze(1)
            (tensor([0, 1]), tensor([0., 2., 3.]))
        """
        codes, of_bags = _group_by_id(cls.__name__, len(instances), ids, labels)
        grouped, order = codes.sort(stable=True)
        offsets = torch.cat([codes.new_zeros(1), torch.bincount(codes).cumsum(0)])
        bags = cls.__new__(cls)
        bags._build(instances, offsets, of_bags, None if torch.equal(grouped, codes) else order)
        return bags

    def _read(self, bag: int, rows: Tensor | None) -> Tensor:
        start, stop = int(self._offsets[bag]), int(self._offsets[bag + 1])
        if rows is None and self._order is None:
            part = self._flat[start:stop]
        else:
            places = torch.arange(start, stop) if rows is None else start + rows
            places = places if self._order is None else self._order[places]
            part = self._flat[places.numpy() if self._lazy else places]
        return part if isinstance(part, Tensor) else as_instances(self._owner, "instances", part)


class FileBags(_StoredBags):
    """Bags in files, a `.npy` file for each, read when they are needed.

    The constructor reads only the headers. Reading instances of a bag opens its file, reads these and closes it:
    neither memory nor open files grow with the number and size of the bags.

    Args:
        paths: `.npy` files of shape `(instances, features, ...)`, as `np.save` writes them.
        labels: 0/1 labels of the bags, shape `(n,)`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/a.npy", np.arange(10.0).reshape(5, 2))
        ...     FileBags([f"{folder}/a.npy"], labels=[1]).instances(0, rows=torch.tensor([0, 4]))
        tensor([[0., 1.],
                [8., 9.]], dtype=torch.float64)
    """

    def __init__(self, paths: Sequence[str | PathLike[str]], labels: Labels) -> None:
        owner = self._owner
        if not len(paths):
            raise ValueError(f"{owner}: paths must hold at least one file, got none")
        self._files = [NpyFile.open(owner, path) for path in paths]
        first = self._files[0]
        for file in self._files:
            check_instance_shape(owner, repr(file.path), file.shape)
            instance_type(owner, repr(file.path), file.kind)
            if file.shape[1:] != first.shape[1:] or file.kind != first.kind:
                wanted, found = (f"{f.shape[1:]} of {f.kind}" for f in (first, file))
                raise ValueError(f"{owner}: {file.path!r} must have instances as the first file, {wanted}, got {found}")
        super().__init__(labels, torch.tensor([file.shape[0] for file in self._files]), lazy=True)

    def _read(self, bag: int, rows: Tensor | None) -> Tensor:
        return self._files[bag].read(self._owner, rows)


def _check_offsets(owner: str, offsets: object, count: int) -> Tensor:
    """Return offsets as int64; they must rise from 0 to `count`."""
    bounds: Tensor = torch.as_tensor(offsets).cpu()
    if bounds.is_floating_point() or bounds.dtype == torch.bool or bounds.ndim != 1 or len(bounds) < 2:
        found = f"{bounds.dtype} of shape {tuple(bounds.shape)}"
        raise ValueError(f"{owner}: offsets must be integers of shape (bags + 1,), got {found}")
    numbers = bounds.tolist()
    if numbers[0] != 0 or numbers[-1] != count:
        found = f"{numbers[0]} to {numbers[-1]}"
        raise ValueError(f"{owner}: offsets must go from 0 to the number of instances, {count}, got {found}")
    for bag, (low, high) in enumerate(pairwise(numbers)):
        if low >= high:
            raise ValueError(f"{owner}: offsets must increase, no bag being empty, got {low}, then {high} (bag {bag})")
    return bounds.long()


def _group_by_id(owner: str, count: int, ids: Ids, labels: Mapping[Hashable, int] | Labels) -> tuple[Tensor, Tensor]:
    """Return the number of each of `count` instances' bag, in order of first appearance, and the labels of the bags.

    Ids are anything hashable but missing values; texts are compared in normal form: "F" and "F " are one bag. Labels
    are those of the ids, or of the instances.
    """
    values = list(map(_normal, ids.tolist() if isinstance(ids, Tensor | np.ndarray) else ids))
    if len(values) != count:
        raise ValueError(f"{owner}: ids must be as many as instances, {count}, got {len(values)}")
    numbers: dict[Hashable, int] = {}
    try:
        codes = torch.tensor([numbers.setdefault(value, len(numbers)) for value in values], dtype=torch.long)
    except TypeError as error:
        raise ValueError(f"{owner}: ids must be a vector of things that can be compared, got {error}") from error
    for value, number in numbers.items():  # missing ids would form a bag
        if value is None or value is pd.NA or value != value:
            row = int((codes == number).nonzero()[0])
            raise ValueError(f"{owner}: ids must not be NaN or missing, got {value!r} for instance {row}")
    if not isinstance(labels, Mapping):
        return codes, _labels_of_bags(owner, labels, codes, list(numbers))
    labels = _by_normal_id(owner, labels)
    missing = [value for value in numbers if value not in labels]
    if missing:
        raise ValueError(f"{owner}: labels must have an entry for each id, got none for {missing[0]!r}")
    return codes, check_labels(owner, [labels[value] for value in numbers], both=False)


def _normal(value: Hashable) -> Hashable:
    """Return an id with its texts in normal form."""
    if isinstance(value, tuple):
        return tuple(map(_normal, value))
    return normal_text(value) if isinstance(value, str) else value


def _by_normal_id(owner: str, labels: Mapping[Hashable, int]) -> dict[Hashable, int]:
    """Return the labels by ids in normal form."""
    found: dict[Hashable, int] = {}
    for value, label in labels.items():
        if found.setdefault(_normal(value), label) != label:
            raise ValueError(f"{owner}: labels must be the same inside a bag, got two for id {_normal(value)!r}")
    return found


def _labels_of_bags(owner: str, labels: Labels, codes: Tensor, names: Sequence[Hashable]) -> Tensor:
    """Return the label of each bag from those of its instances."""
    values = as_labels(owner, labels).cpu()
    check_shape(owner, "labels", values, [tuple(codes.shape)])
    of_bags = torch.empty(len(names), dtype=values.dtype).index_copy_(0, codes, values)
    other = (values != of_bags[codes]).nonzero()
    if len(other):
        name = names[int(codes[other[0]])]
        raise ValueError(f"{owner}: labels must be the same inside a bag, got two in that of id {name!r}")
    return of_bags


def check_bags(owner: str, bags: object) -> Bags:
    """Return `bags`, which must be bags."""
    if not isinstance(bags, Bags):
        raise ValueError(f"{owner}: bags must be Bags, as ListBags makes of arrays, got {type(bags).__name__}")
    for name in ("labels", "sizes"):  # a subclass of the user's may have set anything
        values: object = getattr(bags, name, None)
        if not isinstance(values, Tensor) or values.ndim != 1 or values.is_floating_point() or values.is_complex():
            found = type(values).__name__
            if isinstance(values, Tensor):
                found = f"{values.dtype} of shape {tuple(values.shape)}"
            raise ValueError(f"{owner}: bags.{name} must be a tensor of integers, shape (n,), got {found}")
    if len(bags.labels) != len(bags.sizes):
        lengths = f"{len(bags.labels)} labels and {len(bags.sizes)} sizes"
        raise ValueError(f"{owner}: bags must have a label and a size for each bag, got {lengths}")
    return bags


def _check_bag(owner: str, bag: object, count: int) -> int:
    """Return the number of a bag in [0, count)."""
    try:
        number = operator.index(bag)  # type: ignore[arg-type]  # an error where it is no integer
    except TypeError as error:
        raise ValueError(f"{owner}: bag must be an integer, got {bag!r}") from error
    if not 0 <= number < count:
        raise ValueError(f"{owner}: bag must lie in [0, {count}), got {number}")
    return number


def _check_numbers(owner: str, name: str, numbers: object, size: int) -> Tensor:
    """Return at least one number in [0, size), in any order and with repeats, int64 on the CPU."""
    values = torch.as_tensor(forward_strides(numbers)).cpu()
    check_shape(owner, name, values, [("k",)])
    return check_index(owner, name, values, size, length=len(values), unique=False)


def _check_values(owner: str, bag: int, values: Tensor) -> None:
    if values.is_floating_point():
        check_finite(owner, **{f"instances of bag {bag}": values})


def instance_moments(bags: Bags) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of all instances, chunk by chunk in float64."""
    count, mean = 0, torch.zeros(instance_shape(bags), dtype=torch.float64)
    squares = torch.zeros_like(mean)
    for bag, size in enumerate(bags.sizes.tolist()):
        for start in range(0, size, _CHUNK):
            chunk = bags.instances(bag, torch.arange(start, min(start + _CHUNK, size))).double()
            # Chan, Golub and LeVeque 1979: sums of squares about the mean of two samples, put together
            step, share = chunk.mean(0) - mean, len(chunk) / (count + len(chunk))
            squares = squares + (chunk - chunk.mean(0)).square().sum(0) + step.square() * (count * share)
            mean, count = mean + step * share, count + len(chunk)
    check_finite("standardize_instances", **{"instances of train": mean})
    std = (squares / count).sqrt()
    # the rounding error of a constant feature is no spread
    return mean, torch.where(std > 1e-12 * mean.abs(), std, torch.ones_like(std))


def instance_shape(bags: Bags) -> tuple[int, ...]:
    """Return the shape of one instance."""
    return tuple(bags.instances(0, torch.tensor([0])).shape[1:])
