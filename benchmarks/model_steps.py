"""Training steps of GIN and ResNet20 as in the experiments, on synthetic data.

Molecules are those of `experiments.data.molecules.example_molecules` where RDKit is installed, else random
graphs of like sizes; bags are random bytes. Each step goes through `moreauc.train.train_step`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from bench_step import Step
from torch import Tensor, nn

from experiments.data.graphs import ATOM_CATEGORIES, BOND_CATEGORIES, GraphBatches, Graphs
from experiments.models.gin import GIN
from experiments.models.resnet import ResNet20
from experiments.models.side_by_side import SideBySide, SideBySideLoss
from moreauc import MultiInstanceTPAUCLoss, PreviousIterate, TPAUCLoss
from moreauc.contrib.cuda_graphs import GraphedStep
from moreauc.criteria import CrossEntropyLoss, PooledLoss
from moreauc.data import BagBatches, FlatBags
from moreauc.data.bag_batches import BagInputs
from moreauc.samplers import PosNegSampler
from moreauc.train import train_step

CE, FLOOR, ON_CPU = "CE", "CE + forward without gradient", ", loss on the CPU"
GAMMAS = (0.0, 0.1)
READY = 8  # batches that are made beforehand and taken in turn
Batch = tuple[Any, Tensor, Tensor]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the training sets, of the batches and of the networks: those of moltox21, and of a fold of Colon."""

    molecules: int = 5834
    positive_molecules: int = 248
    positives: int = 32
    negatives: int = 224
    gin_width: int = 64
    bags: int = 792
    positive_bags: int = 72
    bags_of_each_class: int = 4
    patches: int = 49
    drawn: int = 24  # patches of a bag that a batch has
    resnet_width: int = 16


QUICK = Sizes(
    120,
    20,
    positives=4,
    negatives=12,
    gin_width=8,
    bags=24,
    positive_bags=8,
    bags_of_each_class=2,
    patches=4,
    drawn=2,
    resnet_width=2,
)


def set_torch(threads: int) -> None:
    """Set torch as `experiments.machine.deterministic` does, which needs matplotlib, for good."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    memory: Any = torch.utils.deterministic
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False
    torch.set_float32_matmul_precision("high")
    torch.set_num_threads(threads)


def random_graphs(number: int, seed: int = 0) -> Graphs:
    """Graphs of 18 to 25 nodes, as the means of MoleculeNet's sets, with 1.1 bonds for each: a tree, and rings."""
    random = np.random.Generator(np.random.PCG64(seed))
    nodes = random.integers(18, 26, size=number)
    parts = []
    for count in nodes.tolist():
        tree = [(node, node - 1 - int(random.integers(min(node, 3)))) for node in range(1, count)]
        # no bond of the tree is that long, so that none comes twice
        starts = random.choice(count - 5, size=round(1.1 * count) - len(tree), replace=False).tolist()
        bonds = np.array(tree + [(node, node + 5) for node in starts]).T
        parts.append(np.concatenate([bonds, bonds[::-1]], axis=1))
    edges = np.concatenate(parts, axis=1)
    shapes = (len(ATOM_CATEGORIES), int(nodes.sum())), (len(BOND_CATEGORIES), edges.shape[1])
    atoms, bonds = (
        random.integers(0, np.array(categories)[:, None], size=shape, dtype=np.uint8).T.copy()
        for categories, shape in zip((ATOM_CATEGORIES, BOND_CATEGORIES), shapes, strict=True)
    )
    return Graphs(
        torch.from_numpy(atoms),
        torch.from_numpy(edges),
        torch.from_numpy(bonds),
        nodes=torch.from_numpy(nodes),
        links=torch.tensor([part.shape[1] for part in parts]),
        labels=torch.arange(number) % 2,
    )


def molecule_graphs(sizes: Sizes) -> tuple[str, Graphs]:
    """What the graphs are, and a training set of them; a graph may come several times."""
    number = min(sizes.molecules, 2000)
    try:
        from experiments.data.molecules import example_molecules

        kind, graphs = "example_molecules", example_molecules(num=number).graphs
    except ModuleNotFoundError:
        kind, graphs = "random graphs", random_graphs(number)
    upper, lower = ((graphs.labels == label).nonzero().squeeze(1) for label in (1, 0))
    rest = sizes.molecules - sizes.positive_molecules
    rows = [upper[torch.arange(sizes.positive_molecules) % len(upper)], lower[torch.arange(rest) % len(lower)]]
    return kind, graphs.subset(torch.cat(rows))


def graph_loader(graphs: Graphs, sizes: Sizes) -> GraphBatches:
    sampler = PosNegSampler(graphs.labels, num_positives=sizes.positives, num_negatives=sizes.negatives)
    return GraphBatches(graphs, sampler)


def bag_loader(sizes: Sizes) -> BagBatches:
    random = torch.Generator().manual_seed(0)
    shape = (sizes.bags * sizes.patches, 3, 32, 32)
    instances = torch.randint(256, shape, dtype=torch.uint8, generator=random)
    labels = (torch.arange(sizes.bags) < sizes.positive_bags).long()
    bags = FlatBags(instances, torch.arange(sizes.bags + 1) * sizes.patches, labels)
    each = sizes.bags_of_each_class
    sampler = PosNegSampler(labels, num_positives=each, num_negatives=each)
    return BagBatches(bags, sampler, instances_per_bag=sizes.drawn)


def moved(batch: Batch, device: torch.device) -> Batch:
    """The batch on the device; graphs are there already."""
    inputs, labels, index = batch
    if isinstance(inputs, BagInputs):
        inputs = BagInputs(*(part.to(device) for part in inputs))
    return inputs, labels.to(device), index.to(device)


def endless(loader: GraphBatches | BagBatches) -> Iterator[Any]:
    """Pass after pass over a loader: an epoch is planned again at its beginning, as in training."""
    epoch = 0
    while True:
        loader.set_epoch(epoch)
        yield from loader
        epoch += 1


def ready(loader: GraphBatches | BagBatches) -> list[Any]:
    """Return some batches, the same at every call."""
    loader.set_epoch(0)
    return list(islice(loader, READY))


class Alone(nn.Module):
    """One model in the form of `SideBySide`, for losses on the CPU."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        """Return scores, shape `(1, B)`."""
        scores: Tensor = self.model(**inputs).unsqueeze(0)
        return scores


def training_step(
    model: nn.Module, criterion: nn.Module, batches: Sequence[Batch], *, one_more: bool = False, graphed: bool = False
) -> Step:
    """A whole step; each call takes the next batch.

    `one_more`: with one more forward without gradient. `graphed`: as one CUDA graph.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=2e-4)
    previous = PreviousIterate(model, optimizer) if getattr(criterion, "needs_previous", False) else None
    source = cycle(batches)
    recorded = GraphedStep(model, criterion, optimizer, previous=previous) if graphed else None

    def step() -> None:
        batch = next(source)
        if recorded is not None:
            recorded(batch)
            return
        if one_more:
            with torch.no_grad():
                _forward(model, batch[0])
        train_step(model, criterion, optimizer, batch, previous)

    return step


def _forward(model: nn.Module, inputs: Any) -> None:
    if isinstance(inputs, BagInputs):
        model(inputs.instances)
    else:
        model(**inputs)


def gin_steps(loader: GraphBatches, sizes: Sizes, device: torch.device) -> dict[str, Step]:
    """A step of GIN by each loss, the loss on the model's device and on the CPU."""
    labels, batches = loader.labels.cpu(), ready(loader)
    variants = {}
    for gamma in (None, *GAMMAS):
        name = CE if gamma is None else f"SONX, gamma {gamma:g}"
        here, there = (CrossEntropyLoss(labels) if gamma is None else sonx(labels, gamma) for _ in range(2))
        variants[name] = training_step(gin(sizes, device), here.to(device), batches)
        variants[name + ON_CPU] = training_step(Alone(gin(sizes, device)), SideBySideLoss([there]), batches)
    plain = CrossEntropyLoss(labels).to(device)
    variants[FLOOR] = training_step(gin(sizes, device), plain, batches, one_more=True)
    return variants


def resnet_steps(loader: BagBatches, sizes: Sizes, device: torch.device) -> dict[str, Step]:
    """A step of ResNet20 by each loss, with attention."""
    labels, batches = loader.labels, [moved(batch, device) for batch in ready(loader)]
    losses: dict[str, nn.Module] = {
        name: PooledLoss(CrossEntropyLoss(labels), "attention").to(device) for name in (CE, FLOOR)
    }
    for gamma in GAMMAS:
        tracked = MultiInstanceTPAUCLoss(labels, min_tpr=0.5, max_fpr=0.5, pooling="attention", gamma=gamma)
        losses[f"SONT, gamma {gamma:g}"] = tracked.to(device)
    variants = {}
    for name, loss in losses.items():
        torch.manual_seed(0)
        model = ResNet20(attention=True, width=sizes.resnet_width).to(device)
        variants[name] = training_step(model, loss, batches, one_more=name == FLOOR)
    return variants


def resnet_step(sizes: Sizes, gamma: float, graphed: bool, device: torch.device) -> Step:
    """A step of ResNet20 by SONT, with attention; as one CUDA graph, too."""
    loader = bag_loader(sizes)
    torch.manual_seed(0)
    model = ResNet20(attention=True, width=sizes.resnet_width).to(device)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch has no type for it
    loss = MultiInstanceTPAUCLoss(loader.labels, min_tpr=0.5, max_fpr=0.5, pooling="attention", gamma=gamma).to(device)
    batches = [moved(batch, device) for batch in ready(loader)]
    return training_step(model, loss, batches, graphed=graphed)


def together(loader: GraphBatches, sizes: Sizes, device: torch.device, copies: int) -> Step:
    """A step of all copies of GIN in one model; losses on the CPU."""
    model = SideBySide([gin(sizes, device, seed) for seed in range(copies)])
    losses = [sonx(loader.labels.cpu(), GAMMAS[-1]) for _ in range(copies)]
    return training_step(model, SideBySideLoss(losses), ready(loader))


def one_by_one(loader: GraphBatches, sizes: Sizes, device: torch.device, copies: int) -> Step:
    """A step of each of as many single models; losses on the CPU."""
    labels, batches = loader.labels.cpu(), ready(loader)
    singles = [
        training_step(Alone(gin(sizes, device, seed)), SideBySideLoss([sonx(labels, GAMMAS[-1])]), batches)
        for seed in range(copies)
    ]

    def step() -> None:
        for single in singles:
            single()

    return step


def sonx(labels: Tensor, gamma: float) -> TPAUCLoss:
    return TPAUCLoss(labels, min_tpr=0.5, max_fpr=0.5, gamma=gamma)


def gin(sizes: Sizes, device: torch.device, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return GIN(width=sizes.gin_width).to(device)
