"""Training steps by each loss and technique, on synthetic data, timed by `step.py`.

A case is a model with batches. Its losses: cross entropy; the same with one more forward without gradient, the floor of
a correction; two-way partial AUC of rows and of bags, and the worst groups, each with gamma 0 and with gamma above
0. Techniques: eager; model and loss compiled; the whole step as a CUDA graph; both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, NamedTuple

import torch
from bench_step import Step
from model_steps import QUICK, Sizes, graph_loader, molecule_graphs
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import Optimizer

from experiments.models.gin import GIN
from experiments.models.resnet import ResNet20
from moreauc import GroupDROLoss, MultiInstanceTPAUCLoss, PreviousIterate, TPAUCLoss
from moreauc.contrib.cuda_graphs import GraphedStep
from moreauc.criteria import GroupedLoss
from moreauc.models import MLP
from moreauc.train import train_step

CE, FLOOR, BESIDE = "CE", "CE + forward without gradient", "CE + forward without gradient beside it"
FLOORS = FLOOR, BESIDE  # the second in graphs only, where a correction runs beside the other forward, too
GAMMA = 0.1
LOSSES = (
    CE,
    FLOOR,
    "TPAUC, gamma 0",
    "MIL, gamma 0",
    "group DRO, gamma 0",
    f"TPAUC, gamma {GAMMA:g}",
    f"MIL, gamma {GAMMA:g}",
    f"group DRO, gamma {GAMMA:g}",
)
TECHNIQUES = ("eager", "graphed", "compiled", "compiled and graphed")
ROWS, BAGS, GROUPS, READY, PER_BAG = 10_000, 1000, 10, 4, 8
RATE = 1e-7  # small, so that thousands of steps on noise do not diverge
Batch = tuple[Any, Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """A model and its batches.

    Attributes:
        name: what the report calls it.
        make: makes the model.
        rows: batches of rows, `(inputs, labels, index)`, on the device.
        bags: the same inputs as bags, `(inputs, labels of bags, index of bags)`.
        labels: labels of the training set.
        changing: whether the shapes of the inputs change from batch to batch.
    """

    name: str
    make: Callable[[], nn.Module]
    rows: Sequence[Batch]
    bags: Sequence[Batch]
    labels: Tensor
    changing: bool = False


def cases(device: torch.device, *, quick: bool, small: bool) -> list[Callable[[], Case]]:
    """Makers of the cases, in the order of their importance; `small` where there is no GPU, `quick` for a trial."""
    sizes = QUICK if quick else Sizes()
    resnet = (16,) if quick else (32,) if small else (64, 1024)
    width = 2 if quick else 16
    makers: list[Callable[[], Case]] = [
        lambda batch=batch: _dense_case(  # type: ignore[misc]
            f"ResNet20, batch {batch}", lambda: ResNet20(width=width), (3, 32, 32), batch, device
        )
        for batch in resnet
    ]
    mlp = 16 if quick else 128
    makers.append(lambda: _dense_case(f"MLP, batch {mlp}", lambda: MLP(64, hidden=(64, 64)), (64,), mlp, device))
    makers.append(lambda: _gin_case(sizes, device))
    return makers


def _dense_case(
    name: str, make: Callable[[], nn.Module], shape: tuple[int, ...], batch: int, device: torch.device
) -> Case:
    random = torch.Generator().manual_seed(0)
    labels, rows, bags = (torch.arange(ROWS) % 10 == 0).long(), [], []
    for _ in range(READY):
        if len(shape) == 1:
            inputs = torch.randn(batch, *shape, generator=random)
        else:
            inputs = torch.randint(256, (batch, *shape), dtype=torch.uint8, generator=random)
        inputs = inputs.to(device)
        rows.append((inputs, *_drawn(labels, batch // 2, batch - batch // 2, random, device)))
        half = max(1, batch // PER_BAG // 2)
        bags.append((inputs, *_drawn(labels[:BAGS], half, half, random, device)))
    return Case(name, make, rows, bags, labels)


def _gin_case(sizes: Sizes, device: torch.device) -> Case:
    _, graphs = molecule_graphs(sizes)
    random = torch.Generator().manual_seed(0)
    loader = graph_loader(graphs.to(device), sizes)
    rows = [(inputs, labels, index) for inputs, labels, index in islice(loader, READY)]
    labels, batch = loader.labels.cpu(), sizes.positives + sizes.negatives
    half = max(1, batch // PER_BAG // 2)
    whole = (torch.arange(BAGS) % 10 == 0).long()
    bags = [(inputs, *_drawn(whole, half, half, random, device)) for inputs, _, _ in rows]
    name = f"GIN, batch {batch}"
    return Case(name, lambda: GIN(width=sizes.gin_width), rows, bags, labels, changing=True)


def _drawn(
    labels: Tensor, positives: int, negatives: int, random: torch.Generator, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Labels and numbers of so many rows of each class, mixed."""
    chosen = []
    for label, number in ((1, positives), (0, negatives)):
        places = (labels == label).nonzero().squeeze(1)
        chosen.append(places[torch.randperm(len(places), generator=random)[:number]])
    index = torch.cat(chosen)
    index = index[torch.randperm(len(index), generator=random)]
    return labels[index].to(device), index.to(device)


class CrossEntropy(nn.Module):
    """Torch's own, called as our losses are; `one_more` makes the loop do one more forward, which it ignores."""

    def __init__(self, one_more: bool = False) -> None:
        super().__init__()
        self.needs_previous = one_more

    def forward(self, scores: Tensor, labels: Tensor, index: Tensor, previous_scores: Tensor | None = None) -> Tensor:
        """Return the mean over the rows."""
        return binary_cross_entropy_with_logits(scores, labels.to(scores.dtype))


class InBags(nn.Module):
    """The loss over bags for rows in their order, `PER_BAG` to a bag (the rest to the last one)."""

    def __init__(self, loss: MultiInstanceTPAUCLoss, bag: Tensor) -> None:
        super().__init__()
        self.loss = loss
        self.register_buffer("bag", bag)
        self.needs_previous = loss.needs_previous

    def forward(self, scores: Tensor, labels: Tensor, index: Tensor, previous_scores: Tensor | None = None) -> Tensor:
        """Return the loss of the bags."""
        value: Tensor = self.loss(scores, self.bag, labels, index, previous_scores)
        return value


class OneMore:
    """One more forward without gradient, where the loop expects the model at its previous weights."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns."""
        with torch.no_grad():
            return self.model(*args, **kwargs)


def criterion_of(name: str, case: Case) -> nn.Module:
    gamma = GAMMA if f"gamma {GAMMA:g}" in name else 0.0
    if name.startswith("TPAUC"):
        return TPAUCLoss(case.labels, min_tpr=0.5, max_fpr=0.5, gamma=gamma)
    if name.startswith("MIL"):
        labels = (torch.arange(BAGS) % 10 == 0).long()
        options = {"pooling": "smoothed_max", "update_order": "after", "gamma": gamma}
        loss = MultiInstanceTPAUCLoss(labels, min_tpr=0.5, max_fpr=0.5, **options)  # type: ignore[arg-type]
        number, bags = len(case.rows[0][1]), len(case.bags[0][1])
        return InBags(loss, (torch.arange(number) // PER_BAG).clamp_max(bags - 1))
    if name.startswith("group DRO"):
        groups = torch.arange(len(case.labels)) % GROUPS
        return GroupedLoss(GroupDROLoss(GROUPS, top_k=3, gamma=gamma), groups)
    return CrossEntropy(one_more=name in FLOORS)


class Trained(NamedTuple):
    """A model with what moves it, and with the model at its previous weights where a loss needs that."""

    model: nn.Module
    optimizer: Optimizer
    previous: PreviousIterate | None


@dataclass
class Variants:
    """Steps of a case, made one by one.

    Losses share compiled models, since to compile takes long: one has a previous iterate, whose hooks cost a little.
    Memory that a variant finds there already is in `shared`.

    Attributes:
        case: model and batches.
        device: where.
        shared: MiB of the model and what belongs to it, where the last variant was made with one that was there.
    """

    case: Case
    device: torch.device
    shared: float = 0.0
    _compiled: dict[bool, Trained] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.compiler.reset()  # or a second batch size would be compiled for all sizes

    def make(self, loss: str, technique: str) -> Step:
        """Return a step that has been warmed up: compiled, recorded."""
        criterion = criterion_of(loss, self.case).to(self.device)
        corrects = bool(getattr(criterion, "needs_previous", False))
        model, optimizer, previous = self._trained(technique.startswith("compiled"), corrects and loss not in FLOORS)
        before: Any = OneMore(model) if loss in FLOORS else previous
        if technique.startswith("compiled"):
            criterion = torch.compile(criterion, fullgraph=True, dynamic=False)  # type: ignore[assignment]
        source = cycle(self.case.bags if loss.startswith("MIL") else self.case.rows)
        if technique.endswith("graphed"):
            # beside it both write the statistics of batch normalisation, which nobody reads
            graphed = GraphedStep(model, criterion, optimizer, previous=before, overlap=loss != FLOOR)
            for _ in range(graphed.warm_up + 2):
                graphed(next(source))
            if not graphed.recorded:
                raise RuntimeError("the step was not recorded: shapes change, or there is no GPU")
            return lambda: _nothing(graphed(next(source)))
        for _ in range(3):
            train_step(model, criterion, optimizer, next(source), before)
        return lambda: _nothing(train_step(model, criterion, optimizer, next(source), before))

    def _trained(self, compiled: bool, corrects: bool) -> Trained:
        self.shared = 0.0
        if compiled and corrects in self._compiled:
            self.shared = _mebibytes(self._compiled[corrects])
            return self._compiled[corrects]
        torch.manual_seed(0)
        model: Any = self.case.make().to(self.device)
        if compiled:
            model = torch.compile(model, fullgraph=True, dynamic=self.case.changing)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=2e-4)
        trained = Trained(model, optimizer, PreviousIterate(model, optimizer) if corrects else None)
        if compiled:
            self._compiled[corrects] = trained
        return trained


def _mebibytes(trained: Trained) -> float:
    """Memory of weights, their gradients and copies, buffers and the optimizer's state."""
    model, optimizer, previous = trained
    found = [*model.parameters(), *model.buffers(), *(weight.grad for weight in model.parameters())]
    found += [value for state in optimizer.state.values() for value in state.values()]
    found += [] if previous is None else previous.copies
    return sum(value.nbytes for value in found if isinstance(value, Tensor)) / 2**20


def _nothing(value: object) -> None:
    """Ignore what a step returns."""
