"""Bags of instances with two classes: checks of what users call bags, their training, and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from sklearn.utils import column_or_1d
from torch import Tensor, nn

from moreauc._checks import check_finite
from moreauc._description import checksum
from moreauc.data import BagBatches, FlatBags, WholeBags
from moreauc.data.bags import Bags, ListBags
from moreauc.data.columns import check_present, match_features, match_target, split_target
from moreauc.data.duplicates import Hashes, hash_bags, hash_rows
from moreauc.data.tables import TableError, as_frame
from moreauc.data.tabular import TableEncoder
from moreauc.data.texts import check_apart, class_text, name_texts, normal_text
from moreauc.methods import TaskName
from moreauc.report.pages import Section, as_image
from moreauc.tasks.base import Array, Data, Table, read_features
from moreauc.tasks.rows import Evaluation, RankingTask, TwoClassTask, balanced_batches

_WHOLE = 2**53
_TYPES = {"bytes": "bytes (uint8)", "numbers": "numbers that are no bytes"}
_MOST = 10  # instances shown of a bag
_BEST = ("best scored positive bag", "No other positive bag has a higher score.")
_HARDEST = ("hardest bag", "No other bag is farther on the wrong side of the threshold, or nearer to it.")
_MEANING = (
    "The weight is what an instance counts in the score of the bag, 1 for all together. The contribution is the weight "
    "times the distance of the instance's score from the threshold: above 0 it is evidence for the positive class, "
    "below 0 against it."
)


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

    def validation(self, data: Data, loss: Any) -> WholeBags:
        return WholeBags(data.inputs, loss.pooling, chunk=self.chunk)

    def checksum(self, data: Data) -> str:
        """Return the checksum of one instance of each bag: bags may be larger than memory."""
        first = torch.tensor([0])
        return checksum(data.inputs.instances(bag, first) for bag in range(len(data)))


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


def as_bags(owner: str, bags: Any, form: InstanceFormat | None = None) -> tuple[Bags, InstanceFormat]:
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


@dataclass(frozen=True)
class BagTable(Table):
    """Rows of a table, grouped into bags in the order in which these first appear; `targets` are those of the bags."""

    codes: Array  # number of each row's bag
    names: list[str]  # of the bags

    def part(self, numbers: Array) -> Self:
        new = np.full(len(self), -1)
        new[numbers] = np.arange(len(numbers))
        codes = new[self.codes]
        kept = codes >= 0
        names = [self.names[bag] for bag in numbers]
        return replace(
            self, features=self.features[kept], targets=self.targets[numbers], codes=codes[kept], names=names
        )

    def hashes(self) -> Hashes:
        return hash_bags(hash_rows(self.features), self.codes, len(self))

    @cached_property
    def rows(self) -> list[Array]:
        """Rows of the file, counted from 1, that each bag consists of."""
        order = np.argsort(self.codes, kind="stable")
        ends = np.bincount(self.codes, minlength=len(self)).cumsum()
        return np.split(self.features.index.to_numpy()[order] + 1, ends[:-1])


@dataclass(frozen=True)
class BagTableTask(TwoClassTask[BagTable]):
    """A table of instances whose bags are classified."""

    name = "bags"
    unit = "bags"
    default = "sont_att"
    baselines = ("lr_bags",)
    role = "bag"

    column: str  # names the bag of each row
    instance_encoder: TableEncoder | None = None  # turns rows into what the classifier takes; None before training

    @classmethod
    def read(cls, frame: pd.DataFrame, options: Any, *, source: str) -> tuple[Self, BagTable]:
        column, name = normal_text(options.bags), normal_text(options.target)
        if column == name:
            raise TableError(f"--bags and --target must name two columns, got {column!r} for both")
        codes, names, first = find_bags(frame, column, source)
        # Classes are counted by bags: the rarer one of these is the positive one, whatever the sizes of the bags.
        _, labels, target = split_target(frame.iloc[first], name, positive=options.positive, source=source, unit="bags")
        _check_agreement(frame, name, codes, names, first, source)
        features, kinds, _ = read_features(frame.drop(columns=[column, name]), options, source)
        task = cls(kinds, target, options.min_tpr, options.max_fpr, column, fpr_budget=options.fpr_budget)
        return task, BagTable(features, labels, codes, names)

    def match(self, frame: pd.DataFrame, *, source: str, labelled: bool = True) -> BagTable:
        codes, names, first = find_bags(frame, self.column, source)
        labels: Array = np.zeros(len(names), dtype=np.int64)
        if labelled:
            _, labels = match_target(frame.iloc[first], self.target, source=source, unit="bags")
            _check_agreement(frame, self.target.name, codes, names, first, source)
            self.check_test(labels, source)
        return BagTable(match_features(frame, self.kinds, source=source), labels, codes, names)

    def fitted(self, train: BagTable) -> Self:
        return replace(self, instance_encoder=TableEncoder(owner="fit").fit(self.typed(train.features)))

    def encoder(self, model: Any) -> TableEncoder:
        if self.instance_encoder is None:
            raise ValueError("BagTableTask: the encoder must be fitted, got a task that was not")
        return self.instance_encoder

    def inputs(self, table: BagTable) -> FlatBags:
        encoded = self.encoder(None).transform(self.typed(table.features))
        return FlatBags.from_ids(encoded, table.codes, table.targets[table.codes])

    def facts(self) -> dict[str, Any]:
        return {"bags": self.column, **super().facts()}

    def description(self) -> str:
        return f"bags by {self.column}, {super().description()}"

    def counts(self, table: BagTable) -> dict[str, int]:
        return {**super().counts(table), "instances": len(table.codes)}

    def names(self, table: BagTable) -> list[str]:
        return table.names

    def result(
        self,
        evaluations: Sequence[Evaluation],
        model: Any,
        inputs: Bags,
        table: BagTable,
        notes: Sequence[str],
        train: BagTable | None = None,
    ) -> tuple[list[Section], dict[str, Any]]:
        sections, further = super().result(evaluations, model, inputs, table, notes, train)
        distance, positive = evaluations[0].scores, table.targets == 1
        best = int(np.argmax(np.where(positive, distance, -np.inf)))
        hardest = int(np.argmax(np.where(positive, -distance, distance)))
        shown = []
        for bag, (role, why) in ((best, _BEST), (hardest, _HARDEST)):
            found = self.instances(model, inputs, table, bag)
            entry = {"role": role, "why": why, "bag": table.names[bag], "size": len(found)}
            entry |= {"label": int(table.targets[bag]), "distance": float(distance[bag])}
            sections.append(_instance_section(entry, found, evaluations[0].title))
            heaviest = found.iloc[_by_weight(found)].rename(columns={"row": "rows"})
            shown.append({**entry, **heaviest.to_dict("list")})
        return sections, {**further, "instances": shown}

    def row_targets(self, table: BagTable) -> Array:
        return super().row_targets(table)[table.codes]

    def _other_model(self, model: Any) -> str:
        return "try another pooling with --loss sont_smx or sont_mean, or trees with --baselines forest_bags"

    def instances(self, model: Any, bags: Bags, table: BagTable, bag: int) -> pd.DataFrame:
        """Return row of the file, score, weight and contribution of each instance of a bag."""
        found = model.instance_scores(bags.instances(bag))
        numbers = {"score": found.score, "weight": found.weight, "contribution": found.contribution}
        return pd.DataFrame({"row": table.rows[bag], **numbers})

    def predict_instances(self, model: Any, bags: Bags, table: BagTable) -> pd.DataFrame:
        """Return bag, row of the file, score and weight of every instance."""
        parts = [self.instances(model, bags, table, bag).drop(columns="contribution") for bag in range(len(table))]
        for name, part in zip(table.names, parts, strict=True):
            part.insert(0, "bag", name)
        return pd.concat(parts, ignore_index=True)


def find_bags(frame: pd.DataFrame, column: str, source: str) -> tuple[Array, list[str], Array]:
    """Return the number of each row's bag, the names of the bags, and the first row of each."""
    texts = name_texts(check_present(frame, normal_text(column), "bag column", source))
    codes, names = pd.factorize(texts)
    return codes, [str(name) for name in names], np.unique(codes, return_index=True)[1]


def _check_agreement(
    frame: pd.DataFrame, target: str, codes: Array, names: list[str], first: Array, source: str
) -> None:
    """Check that all rows of a bag have its label."""
    texts = name_texts(check_present(frame, target, "target", source), class_text).to_numpy()
    other = np.flatnonzero(texts != texts[first][codes])
    if len(other):
        row, begin = other[0], first[codes[other[0]]]
        raise TableError(
            f"{source}: target {target!r} must be the same inside a bag, got {texts[begin]} in row {begin + 1} and "
            f"{texts[row]} in row {row + 1} of bag {names[codes[row]]!r}"
        )


def _by_weight(found: pd.DataFrame) -> Array:
    """Return the numbers of the heaviest instances of a bag, which may have hundreds of thousands."""
    return np.argsort(-found["weight"].to_numpy(), kind="stable")[:_MOST]


def _instance_section(entry: dict[str, Any], found: pd.DataFrame, title: str) -> Section:
    from moreauc.report.bag_figures import plot_instance_weights  # here, since it loads matplotlib

    above = entry["distance"] > 0
    side = f"{abs(entry['distance']):.3g} {'above' if above else 'below'} the threshold"
    right = "correctly" if above == bool(entry["label"]) else "wrongly"
    kind = f"a {'positive' if entry['label'] else 'negative'} of {len(found)} instance{'s' * (len(found) > 1)}"
    verdict = f"{entry['bag']}, {kind}: its score is {side}, {right}. {entry['why']}"
    caption = f"Weights of the instances of {entry['bag']} by {title}; instances are counted from 0 inside the bag."
    figure = plot_instance_weights(found["score"], found["weight"], limit=_MOST)
    numbers = ("weight", "score", "contribution")
    rows = []
    for number in _by_weight(found):
        instance = found.iloc[number]
        rows.append((str(number), f"{instance['row']:.0f}", *(f"{instance[name]:.4f}" for name in numbers)))
    return Section(
        f"Instances of the {entry['role']}",
        [verdict, _MEANING],
        columns=("instance", "row of the table", *numbers),
        rows=rows,
        labels=0,
        images=[as_image(figure, caption)],
    )
