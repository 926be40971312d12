r"""Checked batches: rows with labels, instances of bags, members of groups.

Each has two forms with one interface. Compact, on the CPU: lists of the entries. Padded, where the labels are on a
device: no shape may depend on them, so lists are as long as the batch; missing entries repeat another one, with weight
0 in every sum, and write the same values to its row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moreauc._checks import (
    as_index,
    as_labels,
    check_device,
    check_floating,
    check_index,
    check_labels,
    check_shape,
    squeeze_remedy,
)
from moreauc.core.pooling import Pooling
from moreauc.criteria._validation import BOTH_CLASSES, ROW_NUMBERS, Check, as_numbers, repeats

Shape = tuple[int | str, ...]
_HALF = (torch.bfloat16, torch.float16)  # numpy lacks bfloat16


class Rows(NamedTuple):
    """Labelled rows of a batch, or labelled bags.

    Padded, a field that is as long as the batch repeats entries; counts are then float64 tensors of shape `()`.

    Attributes:
        numbers: their numbers in the training set, shape `(B,)`, as all of these on the device of the loss.
        positive: which of them are positive, shape `(B,)`.
        left_out: which entries of the second list of :meth:`split` are no negatives; None where all are.
        upper: places of the positives in the batch, shape `(B1,)`; padded: `(B,)`, that of some positive for the rest.
        lower: places of the negatives, shape `(B2,)`; padded: None.
        among: number of each entry of `upper` among the positives of the training set.
        positives, negatives: how many there are, each at least 1.
        upper_weight: weights of `upper`, those of the positives with sum 1, float64; None where all count alike.
        lower_weight: weights of the second list of :meth:`split`, with sum `negatives`, float64; likewise.
    """

    numbers: Tensor
    positive: Tensor
    left_out: Tensor | None
    upper: Tensor
    lower: Tensor | None
    among: Tensor
    positives: int | Tensor
    negatives: int | Tensor
    upper_weight: Tensor | None = None
    lower_weight: Tensor | None = None

    def weighted(self, weight: Tensor) -> Rows:
        """Return these rows with weights, shape `(B,)`; a class whose weights are all 0 adds nothing."""
        upper, lower = self.split(weight.double())
        above = upper
        if self.lower is None:
            above, lower = upper * self.positive, lower.masked_fill(self.positive, 0.0)
        least = torch.finfo(torch.float64).tiny
        upper, lower = upper / above.sum().clamp_min(least), lower / lower.sum().clamp_min(least)
        return self._replace(upper_weight=upper, lower_weight=lower * self.negatives)

    def split(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values of the positives, and those of the negatives (padded: of the whole batch)."""
        upper = values.index_select(0, self.upper)
        return upper, values if self.lower is None else values.index_select(0, self.lower)

    def join(self, parts: tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:
        """Undo :meth:`split` for gradients, in a type; shape `(B,)`."""
        if self.lower is None:
            return (parts[0] + parts[1]).to(dtype)
        upper, lower = (part if part.dtype == dtype else part.to(dtype) for part in parts)
        whole = torch.empty(self.numbers.shape, dtype=dtype, device=upper.device)
        return whole.index_copy_(0, self.upper, upper).index_copy_(0, self.lower, lower)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over the positives: summed up first, or that of ones might not be 1."""
        if self.upper_weight is not None:
            return self.share(values).sum()
        if self.lower is not None:
            return values.mean()
        return _divided((values * self.positive).sum(), self.positives)

    def number(self, value: Tensor) -> float | Tensor:
        """Return a value of shape `()`: compact, a Python number, with which arithmetic costs next to nothing."""
        return value.item() if self.lower is not None and value.is_cpu else value

    def mean_number(self, values: Tensor) -> float | Tensor:
        """Return :meth:`number` of :meth:`mean`."""
        if self.upper_weight is None and isinstance(self.positives, int) and values.is_cpu:
            return values.sum().item() / self.positives
        return self.number(self.mean(values))

    def mean_of_rest(self, values: Tensor) -> Tensor:
        """Return the mean over the negatives."""
        if self.lower is not None:
            return values.mean()
        return _divided(values.masked_fill(self.positive, 0.0).sum(), self.negatives)

    def share(self, values: Tensor) -> Tensor:
        """Return values of positives over their number, 0 for entries that stand for none."""
        if self.upper_weight is not None:
            share = (values * self.upper_weight).to(values.dtype)
        else:
            share = _divided(values, self.positives)
        return share if self.lower is not None else share * self.positive


def labelled_rows(
    check: Check,
    position: Tensor,
    labels: object,
    index: object,
    shape: tuple[int | str, ...],
    *,
    unique: bool,
    both: bool,
) -> Rows:
    """Check labels, of the shape given, and the numbers of a batch.

    `position` holds for each row of the training set its number among the positives, -1 for a negative; `unique` says
    whether a row may come once only, `both` whether the batch must hold both classes.
    """
    owner = check.owner
    if not isinstance(labels, Tensor):
        labels = as_labels(owner, labels)
    if labels.shape != shape:
        check_shape(owner, "labels", labels, [shape])
    if check.late:
        return _padded_rows(check, position, labels, index, unique=unique, both=both)
    # On the CPU numpy sees the same memory, and costs a fraction of what torch does for a few numbers.
    if isinstance(index, Tensor) and index.dtype == torch.int64 and index.shape == labels.shape:
        numbers = index
    else:
        numbers = as_index(owner, "index", index, len(labels))
    numbers = numbers if numbers.device == position.device else numbers.to(position.device)
    places = _array(numbers)
    ordered = places.copy()
    ordered.sort()
    inside = ordered.item(0) >= 0 and ordered.item(-1) < position.shape[0]
    if not inside or (unique and _any(ordered[1:] == ordered[:-1])):
        size, length = len(position), len(labels)
        check_index(owner, "index", numbers, size, length=length, unique=unique, remedy=ROW_NUMBERS)  # raises the error
    among = _array(position)[places] if position.is_cpu else _array(position.index_select(0, numbers))
    positive = among >= 0
    known = _array(labels.float() if labels.dtype in _HALF else labels)
    # Labels equal to those of the training set are 0 and 1; only others need a check.
    if _any(positive != known):
        check_labels(owner, labels, both=both, remedy=BOTH_CLASSES)
        wanted = "index must point to rows labelled as in labels, got a row of the other class"
        raise ValueError(f"{owner}: {wanted}{ROW_NUMBERS}")
    upper, lower = positive.nonzero()[0], (~positive).nonzero()[0]
    if both and not (len(upper) and len(lower)):
        check_labels(owner, labels, remedy=BOTH_CLASSES)
    mask, first, second, found = map(torch.from_numpy, (positive, upper, lower, among[upper]))
    if not position.is_cpu:
        mask, first, second, found = (part.to(position.device) for part in (mask, first, second, found))
    return Rows(numbers, mask, None, first, second, found, len(upper), len(lower))


def _any(mask: NDArray[np.bool_]) -> bool:
    """Return whether an entry is True; to search the bytes of a short array costs less than to reduce it."""
    return b"\1" in mask.tobytes()


def _array(values: Tensor) -> NDArray[np.int64]:
    return values.numpy() if values.is_cpu and not values.requires_grad else values.numpy(force=True)


def _padded_rows(check: Check, position: Tensor, labels: Tensor, index: object, *, unique: bool, both: bool) -> Rows:
    """Check types and shapes, and leave the rest to the device."""
    length = len(labels)
    index = as_index(check.owner, "index", index, length)
    labels, index = (value.to(position.device, non_blocking=True) for value in (labels, index))
    numbers = index.clamp(0, len(position) - 1)
    rows = position.index_select(0, numbers)
    positive = rows >= 0
    count = positive.sum(dtype=torch.float64)
    upper = torch.where(positive, torch.arange(length, device=position.device), rows.argmax())
    among = rows.index_select(0, upper).clamp_min(0)
    outside, mismatched = torch.stack([numbers != index, positive != labels]).any(1).unbind()
    check.flag(f"index must lie in the range of the training set, got another number{ROW_NUMBERS}", outside)
    check.flag("index must not repeat a row inside one batch, got one more than once", repeats(index, unique))
    check.flag(
        "index must point to rows labelled 0 or 1 as in labels, got a row of the other class or another label"
        + ROW_NUMBERS,
        mismatched,
    )
    if both:
        check.flag(f"labels must hold both 0 and 1, got only one of them{BOTH_CLASSES}", count % length == 0)
    return Rows(numbers, positive, positive, upper, None, among, count.clamp_min(1.0), (length - count).clamp_min(1.0))


class Instances(NamedTuple):
    """Instances of a batch of bags.

    `values` are model outputs, shape `(T,)` or `(T, 2)`, with gradient, and `bag` the place in the batch of each
    instance's bag. `number` counts the bags.
    """

    values: Tensor
    bag: Tensor
    number: int


def bag_instances(
    check: Check, instances: Tensor, bag: object, count: int, pooling: Pooling, device: torch.device
) -> Instances:
    """Check the instances of `count` bags, at least one in each."""
    owner = check.owner
    check_outputs(owner, "instances", instances, pooling)
    check_device(owner, "instances", instances, device)
    places = as_index(owner, "bag", bag, len(instances)).to(device, non_blocking=check.late)
    if check.late:
        found, places = places, places.clamp(0, count - 1)
        present = torch.zeros(count, dtype=torch.bool, device=device).index_fill(0, places, True)
        check.flag("bag must lie in the range of the batch, got another number", (places != found).any())
        check.flag("bag must name at least one instance of every bag, got none of one of them", ~present.all())
    else:
        _check_bags(owner, places.numpy(force=True), count)
    return Instances(widened(instances), places, count)


def _check_bags(owner: str, places: NDArray[np.int64], count: int) -> None:
    low, high = places.min(), places.max()
    if low < 0 or high >= count:
        raise ValueError(f"{owner}: bag must lie in [0, {count}), got {low if low < 0 else high}")
    sizes = np.bincount(places, minlength=count)
    if not sizes.all():
        raise ValueError(f"{owner}: bag must name at least one instance of every bag, got none of bag {sizes.argmin()}")


def check_outputs(owner: str, name: str, value: Tensor, pooling: Pooling) -> None:
    """Check type and shape of what a model returned for instances."""
    check_floating(owner, name, value)
    columns, shape = pooling.columns, tuple(value.shape)
    if value.ndim != columns or (columns > 1 and value.shape[1] != columns) or not len(value):
        wanted = "(T,)" if columns == 1 else f"(T, {columns}), score and attention logit"
        remedy = squeeze_remedy(shape) if value.ndim == columns + 1 else ""
        if columns == 1 and shape[1:] == (2,):
            remedy = "; two columns, score and attention logit, are for pooling='attention'"
        raise ValueError(f"{owner}: {name} must have shape {wanted} for {pooling.name} pooling, got {shape}{remedy}")


def widened(values: Tensor) -> Tensor:
    """Return values in a type at least as wide as float32: half types neither resolve nor hold the sums."""
    return values.float() if values.dtype in _HALF else values


def _divided(total: Tensor, count: int | Tensor) -> Tensor:
    """Return sums over a number, in the type of the sums."""
    return total / (count.to(total.dtype) if isinstance(count, Tensor) else count)


class Members(NamedTuple):
    """Groups of a batch, as entries: a sample of several groups has an entry for each.

    Compact, `present` lists each group once. Padded, group ids list the group of every sample, and memberships list all
    groups, those absent standing for a present one.

    `sizes` are the entries of each, and `number` the different groups in the batch; padded: a float64 tensor. Of each
    entry, shape `(E,)`, `sample` is the number of its sample (None where entries are `matrix`), `place` the place of
    its group in `present`. `total` is the number of groups of the loss where `present` may repeat a group, else 0.
    `matrix`, shape `(B, P)`, and `here`, which of `present` stand for themselves, are those of padded memberships.
    """

    present: Tensor
    sizes: Tensor
    number: int | Tensor
    sample: Tensor | None
    place: Tensor
    total: int = 0
    matrix: Tensor | None = None
    here: Tensor | None = None

    def means(self, losses: Tensor) -> Tensor:
        """Return the mean loss of each of `present`, shape `(P,)`."""
        sizes = self.sizes.to(losses.dtype)
        if self.matrix is not None:
            return (losses.unsqueeze(1) * self.matrix).sum(0) / sizes
        if self.total:
            sums = torch.zeros(self.total, dtype=losses.dtype, device=losses.device)
            return sums.index_add(0, self.present, losses).index_select(0, self.present) / sizes
        own = losses if self.sample is None else losses.index_select(0, self.sample)
        sums = torch.zeros(len(self.present), dtype=losses.dtype, device=losses.device)
        return sums.index_add(0, self.place, own) / sizes

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over the groups of the batch of one value for each of `present`; each counts once."""
        if self.here is not None:
            return _divided(values.masked_fill(~self.here, 0.0).sum(), self.number)
        if self.total:
            whole = torch.zeros(self.total, dtype=values.dtype, device=values.device)
            return _divided(whole.index_copy(0, self.present, values).sum(), self.number)
        return values.sum() / self.number

    def vjp(self, weight: Tensor, count: int) -> Tensor:
        """Return the gradient in the losses of `count` samples of the mean over groups of weight times mean loss."""
        return self.spread(weight / (self.sizes.to(weight.dtype) * self.number), count)

    def spread(self, share: Tensor, count: int) -> Tensor:
        """Return for each of `count` samples the sum over its groups of one value for each of `present`."""
        if self.matrix is not None and self.here is not None:
            return (self.matrix * share.masked_fill(~self.here, 0.0)).sum(1)
        if self.total:
            return share
        share = share.index_select(0, self.place)
        if self.sample is None:
            return share
        return torch.zeros(count, dtype=share.dtype, device=share.device).index_add(0, self.sample, share)


def group_members(check: Check, losses: Tensor, groups: object, num_groups: int, device: torch.device) -> Members:
    """Check losses, shape `(B,)`, and groups, ids `(B,)` or memberships `(B, num_groups)`."""
    owner = check.owner
    check_losses(owner, losses, device)
    found = as_numbers(owner, "groups", groups)
    check_shape(owner, "groups", found, [tuple(losses.shape), (len(losses), num_groups)])
    found = found.to(device, non_blocking=check.late)
    if found.ndim == 2:
        return _padded_memberships(check, found) if check.late else _memberships(owner, found)
    if found.dtype == torch.bool or found.is_floating_point() or found.is_complex():
        raise ValueError(f"{owner}: groups must hold integers, got {found.dtype}")
    return (_padded_ids if check.late else _ids)(check, found.long(), num_groups)


def check_losses(owner: str, losses: Tensor, device: torch.device) -> None:
    """Check type, shape and place of the losses of samples."""
    check_floating(owner, "losses", losses)
    check_shape(owner, "losses", losses, [("B",)])
    check_device(owner, "losses", losses, device)


def _ids(check: Check, found: Tensor, num_groups: int) -> Members:
    low, high = (int(value) for value in torch.aminmax(found))
    if low < 0 or high >= num_groups:
        raise ValueError(f"{check.owner}: groups must lie in [0, {num_groups}), got {low if low < 0 else high}")
    present, place, sizes = torch.unique(found, return_inverse=True, return_counts=True)
    return Members(present, sizes, len(present), None, place)


def _memberships(owner: str, found: Tensor) -> Members:
    if found.dtype != torch.bool and not bool(((found == 0) | (found == 1)).all()):
        raise ValueError(f"{owner}: groups must hold memberships, 0 or 1, got {found[(found != 0) & (found != 1)][0]}")
    sample, number = found.nonzero().unbind(1)
    if not len(sample):
        raise ValueError(f"{owner}: groups must give at least one sample a group, got none")
    present, place, sizes = torch.unique(number, return_inverse=True, return_counts=True)
    return Members(present, sizes, len(present), sample, place)


def _padded_ids(check: Check, found: Tensor, num_groups: int) -> Members:
    present = found.clamp(0, num_groups - 1)
    check.flag("groups must lie in the range of the groups, got another number", (present != found).any())
    ones = torch.ones(len(present), dtype=torch.float64, device=found.device)
    counts = torch.zeros(num_groups, dtype=torch.float64, device=found.device).index_add(0, present, ones)
    number = (counts > 0).sum().double()
    return Members(present, counts.index_select(0, present), number, None, present, num_groups)


def _padded_memberships(check: Check, found: Tensor) -> Members:
    members = found != 0
    counts = members.sum(0)
    here = counts > 0
    check.flag("groups must hold memberships, 0 or 1, got another number", (members & (found != 1)).any())
    check.flag("groups must give at least one sample a group, got none", ~here.any())
    places = torch.arange(len(here), device=found.device)
    present = torch.where(here, places, here.int().argmax())
    sizes = counts.index_select(0, present).clamp_min(1).double()
    matrix = members.index_select(1, present)
    return Members(present, sizes, here.sum().clamp_min(1).double(), None, present, 0, matrix, here)
