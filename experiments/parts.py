"""The training, validation and test data of one run, and its model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from experiments.config import DataSet, Experiment
from experiments.data import histology, mil, molecules
from experiments.data.graphs import GRAPH_FIELDS, GraphBatches, Graphs
from experiments.data.splits import test_and_folds
from experiments.models.gin import GIN
from experiments.models.resnet import ResNet20
from moreauc._settings import checksum
from moreauc.core.pooling import Pooling, PoolingName, get_pooling
from moreauc.data import BagBatches, Bags, digit_bags
from moreauc.models import InstanceMLP
from moreauc.samplers import PosNegSampler
from moreauc.samplers.groups import ShuffledSampler

_CHUNK = 2048  # graphs or instances that go through a model at once, all copies together some tens of times as many


@dataclass(frozen=True)
class Run:
    """One run of an experiment: its data, and where it is made.

    Attributes:
        plan: the experiment.
        dataset: the data set.
        split: test split.
        number: seed of molecules, fold of bags.
        folder: folder with the data; None for MOREAUC_DATA or a download.
        device: "cpu" or "cuda".
        start: file of the weights that all methods start from; None for no file.
        recipe: whether these are the weights of recipe rows.
    """

    plan: Experiment
    dataset: DataSet
    split: int = 0
    number: int = 0
    folder: Path | None = None
    device: str = "cpu"
    start: Path | None = None
    recipe: bool = False


class Part(Protocol):
    """Rows that can be scored by many models at once."""

    labels: Tensor
    checksum: str

    def scores(self, model: nn.Module) -> Tensor:
        """Return scores `(C, n)` of the copies of a model, on the CPU."""
        ...


@dataclass(frozen=True)
class Parts:
    """What a run needs.

    Attributes:
        labels: labels of the training rows.
        train: makes the loader of training batches: "balanced" with fixed numbers of positives and negatives, or
            "shuffled" with any rows.
        model: makes a model with new weights.
        training: the training rows, to be scored.
        validation: the validation rows.
        test: the test rows.
    """

    labels: Tensor
    train: Callable[[str], Any]
    model: Callable[[], nn.Module]
    training: Part
    validation: Part
    test: Part

    @property
    def counts(self) -> dict[str, list[int]]:
        """Rows and positives of each part."""
        return {name: [len(part.labels), int(part.labels.sum())] for name, part in self._named.items()}

    @property
    def data(self) -> dict[str, str]:
        """A checksum of each part, inputs and labels as they are used."""
        return {name: part.checksum for name, part in self._named.items()}

    @property
    def _named(self) -> dict[str, Part]:
        return {"train": self.training, "validation": self.validation, "test": self.test}


class GraphPart:
    """Molecules to be scored."""

    def __init__(self, graphs: Graphs, device: str) -> None:
        self.labels = graphs.labels.cpu()
        self.checksum = checksum([getattr(graphs, name) for name in GRAPH_FIELDS])
        self._batches = GraphBatches(graphs.to(device), batch_size=_CHUNK)

    def scores(self, model: nn.Module) -> Tensor:
        """Return scores `(C, n)`, on the CPU."""
        with torch.inference_mode():
            return torch.cat([model(**inputs).cpu() for inputs, _, _ in self._batches], dim=1)


class BagPart:
    """Whole bags to be scored."""

    def __init__(self, bags: Bags, pooling: Pooling, device: str) -> None:
        self.labels, self._pooling = bags.labels, pooling
        instances = torch.cat([bags.instances(bag) for bag in range(len(bags))])
        self._bag = torch.repeat_interleave(torch.as_tensor(bags.sizes))
        self.checksum = checksum([instances, self._bag, self.labels])
        self._instances = instances.to(device)

    def scores(self, model: nn.Module) -> Tensor:
        """Return scores `(C, n)`, on the CPU."""
        with torch.inference_mode():
            parts = [model(piece).cpu().double() for piece in torch.split(self._instances, _CHUNK)]
            outputs = torch.cat(parts, dim=1)
            return torch.stack([self._pooling(copy, self._bag, len(self.labels)) for copy in outputs])


def make_parts(run: Run, pooling: PoolingName = "mean") -> Parts:
    """Return the data of a run and its model; `pooling` is that of the method."""
    return _molecules(run) if run.plan.task == "rows" else _bags(run, pooling)


def _molecules(run: Run) -> Parts:
    dataset = run.dataset
    with _quiet():
        found = load_graphs(dataset.source, run.folder)
    parts = [found.graphs.subset(rows) for rows in (found.train, found.validation, found.test)]
    labels, on_device = parts[0].labels, parts[0].to(run.device)

    def batches(kind: str) -> GraphBatches:
        if kind == "shuffled":
            size = dataset.positives + dataset.negatives
            return GraphBatches(on_device, ShuffledSampler(len(labels), batch_size=size, seed=run.number))
        return GraphBatches(on_device, _balanced(labels, run))

    def model() -> nn.Module:
        return GIN(width=dataset.width) if dataset.width else GIN()

    return Parts(labels, batches, model, *(GraphPart(part, run.device) for part in parts))


def _balanced(labels: Tensor, run: Run) -> PosNegSampler:
    positives, negatives = run.dataset.positives, run.dataset.negatives
    return PosNegSampler(labels, num_positives=positives, num_negatives=negatives, seed=run.number)


@contextmanager
def _quiet() -> Iterator[None]:
    """Log no warnings about molecules for a while: every run would repeat them."""
    log = logging.getLogger("experiments.data")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def load_graphs(name: str, folder: Path | None) -> molecules.Molecules:
    """Return molecules by name; "example" are made here."""
    return molecules.example_molecules() if name == "example" else molecules.load_molecules(name, folder)


def _bags(run: Run, pooling: PoolingName) -> Parts:
    plan, dataset = run.plan, run.dataset
    bags, tiles = _load_bags(run)
    groups = tiles if dataset.by == "tile" else None
    test, folds = test_and_folds(bags.labels, folds=plan.runs, seed=run.split, groups=groups)
    pieces = [bags.subset(rows) for rows in (*folds[run.number], test)]
    if plan.name == "bags":
        pieces = list(mil.standardize_instances(*pieces))
    pool = get_pooling("make_parts", pooling, 0.1)
    train, attention = pieces[0], pooling == "attention"
    sampler = _balanced(train.labels, run)
    columns = train.instances(0, torch.tensor([0])).shape[1]

    def model() -> nn.Module:
        if plan.name == "bags":
            return InstanceMLP(columns, attention=attention)
        network = ResNet20(attention=attention, **({"width": dataset.width} if dataset.width else {}))
        # convolutions with few channels take half the time on a GPU with channels last; torch has no type for it
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def batches(kind: str) -> BagBatches:
        return BagBatches(train, sampler, instances_per_bag=dataset.instances, seed=run.number)

    return Parts(train.labels, batches, model, *(BagPart(piece, pool, run.device) for piece in pieces))


def _load_bags(run: Run) -> tuple[Any, Any]:
    """Return bags and, for images, the piece of tissue each was made of."""
    source: Any = run.dataset.source
    if source == "digits":
        return digit_bags(seed=0).train, None
    if source in ("musk2", "fox"):
        return (mil.load_musk2 if source == "musk2" else mil.load_fox)(run.folder), None
    example = source == "example"
    images = histology.example_histology() if example else histology.load_histology(source, run.folder, seed=run.split)
    return images.bags, images.tiles
