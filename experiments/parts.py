"""The data of one run: what to train on, what to choose by, what to test on, and the model for it."""

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
from experiments.data.graphs import GRAPH_FIELDS, GraphBatches, Graphs
from experiments.models.gin import GIN
from experiments.models.resnet import ResNet20
from moreauc._description import checksum
from moreauc.core.pooling import Pooling, PoolingName, get_pooling
from moreauc.data import BagBatches, Bags, digit_bags
from moreauc.models import InstanceMLP
from moreauc.samplers import PosNegSampler
from moreauc.samplers.groups import PlainSampler

_CHUNK = 2048  # graphs or instances that go through a model at once, all copies together some tens of times as many


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
        train: makes the loader of training batches: "balanced" with so many positives and negatives each, "shuffled"
            with whatever rows come.
        training: the training rows, to be scored.
        validation: rows to choose by.
        test: rows to report on.
        model: makes a model with fresh weights.
    """

    labels: Tensor
    train: Callable[[str], Any]
    training: Part
    validation: Part
    test: Part
    model: Callable[[], nn.Module]

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

    def __init__(self, graphs: Graphs, device: torch.device) -> None:
        self.labels = graphs.labels.cpu()
        self.checksum = checksum([getattr(graphs, name) for name in GRAPH_FIELDS])
        self._batches = GraphBatches(graphs.to(device), batch_size=_CHUNK)

    def scores(self, model: nn.Module) -> Tensor:
        """Return scores `(C, n)`, on the CPU."""
        with torch.inference_mode():
            return torch.cat([model(**inputs).cpu() for inputs, _, _ in self._batches], dim=1)


class BagPart:
    """Whole bags to be scored."""

    def __init__(self, bags: Bags, pooling: Pooling, device: torch.device) -> None:
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


def make_parts(
    plan: Experiment,
    dataset: DataSet,
    *,
    split: int,
    run: int,
    pooling: PoolingName = "mean",
    folder: Path | None = None,
    device: torch.device | str = "cpu",
) -> Parts:
    """Return the data of a run: `run` is the seed of molecules or the fold of bags, `pooling` that of the method."""
    place = torch.device(device)
    if plan.name == "molecules":
        return _molecules(dataset, run, folder, place)
    return _bags(plan, dataset, split, run, pooling, folder, place)


def _molecules(dataset: DataSet, run: int, folder: Path | None, device: torch.device) -> Parts:
    with _quiet():
        molecules = load_graphs(dataset.source, folder)
    train, validation, test = (
        molecules.graphs.subset(rows) for rows in (molecules.train, molecules.validation, molecules.test)
    )
    on_device = train.to(device)

    def batches(kind: str) -> GraphBatches:
        size = dataset.positives + dataset.negatives
        if kind == "shuffled":
            return GraphBatches(on_device, PlainSampler(len(train), batch_size=size, seed=run))
        return GraphBatches(on_device, _balanced(train.labels, dataset, run))

    return Parts(
        labels=train.labels,
        train=batches,
        training=GraphPart(train, device),
        validation=GraphPart(validation, device),
        test=GraphPart(test, device),
        model=lambda: GIN(width=dataset.width) if dataset.width else GIN(),
    )


def _balanced(labels: Tensor, dataset: DataSet, seed: int) -> PosNegSampler:
    return PosNegSampler(labels, num_positives=dataset.positives, num_negatives=dataset.negatives, seed=seed)


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


def load_graphs(name: str, folder: Path | None) -> Any:
    """Return molecules by name; "example" are made here."""
    from experiments.data.molecules import example_molecules, load_molecules

    if name == "example":
        return example_molecules()
    return load_molecules(name, folder)


def _bags(
    plan: Experiment,
    dataset: DataSet,
    split: int,
    run: int,
    pooling: PoolingName,
    folder: Path | None,
    device: torch.device,
) -> Parts:
    from experiments.data.splits import test_and_folds

    bags, tiles = _load_bags(dataset, split, folder)
    groups = tiles if dataset.by == "tile" else None
    test, folds = test_and_folds(bags.labels, folds=plan.runs, seed=split, groups=groups)
    train, validation = folds[run]
    pieces = [bags.subset(rows) for rows in (train, validation, test)]
    if plan.name == "bags":
        from experiments.data.mil import standardize_instances

        pieces = list(standardize_instances(*pieces))
    pool = get_pooling("make_parts", pooling, 0.1)
    sampler = _balanced(pieces[0].labels, dataset, run)
    columns = pieces[0].instances(0, torch.tensor([0])).shape[1]
    attention = pooling == "attention"

    def model() -> nn.Module:
        if plan.name == "bags":
            return InstanceMLP(columns, attention=attention)
        network = ResNet20(attention=attention, **({"width": dataset.width} if dataset.width else {}))
        # convolutions of so few channels take half the time on a GPU where these come last; torch has no type for it
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    return Parts(
        labels=pieces[0].labels,
        train=lambda kind: BagBatches(pieces[0], sampler, instances_per_bag=dataset.instances, seed=run),
        training=BagPart(pieces[0], pool, device),
        validation=BagPart(pieces[1], pool, device),
        test=BagPart(pieces[2], pool, device),
        model=model,
    )


def _load_bags(dataset: DataSet, split: int, folder: Path | None) -> tuple[Any, Any]:
    """Return bags and, for images, the piece of tissue each was made of."""
    if dataset.source in ("musk2", "fox", "digits"):
        from experiments.data.mil import load_fox, load_musk2

        if dataset.source == "digits":
            return digit_bags(seed=0).train, None
        return (load_musk2 if dataset.source == "musk2" else load_fox)(folder), None
    from experiments.data.histology import example_histology, load_histology

    known: Any = dataset.source  # the loader says which there are
    images = example_histology() if known == "example" else load_histology(known, folder, seed=split)
    return images.bags, images.tiles
