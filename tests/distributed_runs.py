"""The runs of tests/test_distributed.py, in one process and in several.

A run is a function of the processes it has: `alone`, or one of several. All results go to files, one for each process,
so that processes are started once for everything.
"""

from __future__ import annotations

import copy
import os
import pickle
import runpy
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from moreauc import FCCOLoss, GroupDROLoss, MultiInstanceTPAUCLoss, PreviousIterate, TPAUCLoss
from moreauc.criteria import AUCMinMaxLoss, CrossEntropyLoss, GroupedLoss, MIDAMLoss, PooledLoss, SOTAsLoss, STACOLoss
from moreauc.data import BagBatches, BagEvaluation, ListBags, TensorBatches
from moreauc.data.scoring import on_device
from moreauc.distributed import DistributedCriterion, gather_meter, gather_scores, predict_scores
from moreauc.distributed.criterion import exchange_of
from moreauc.distributed.exchange import Exchange
from moreauc.metrics import StreamingTPAUC
from moreauc.optim import ProximalPoint
from moreauc.optim.hooks import like_parameter
from moreauc.samplers import DistributedBatchSampler, GroupSampler, PosNegSampler, ShuffledSampler
from moreauc.train import Callback, fit, train_step

STEPS = 16  # more than two epochs of each sampler; half of them end inside an epoch
ROWS, POSITIVES = 41, 9
LABELS = torch.zeros(ROWS, dtype=torch.long)
LABELS[torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))[:POSITIVES]] = 1
X = torch.randn(ROWS, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) + 0.6 * LABELS.unsqueeze(1)
GROUPS = torch.randint(0, 7, (ROWS,), generator=torch.Generator().manual_seed(3))
GROUPS[:7] = torch.arange(7)
MEMBERS = torch.rand(ROWS, 7, generator=torch.Generator().manual_seed(4)) < 0.3
MEMBERS[torch.arange(ROWS), GROUPS] = True
ALONE = None


@dataclass
class Case:
    """A loss, its batches, and how rows are assigned to processes: in turn, or "rows" and "groups" to fixed owners."""

    kind: str
    assignment: str = "turn"
    options: dict = field(default_factory=dict)

    @property
    def name(self) -> str:
        return " ".join([self.kind, self.assignment, *(f"{key}={value}" for key, value in self.options.items())])


CORRECTED = {"gamma": 0.1}
LINEAR = Case("tpauc", "rows", {"gamma": 0.1, "tau": 0.9, "link": "identity", "threshold_lr": (0.9, 0.08)})
MAIN = [
    Case("tpauc", "rows", CORRECTED),
    Case("bags", "turn", {"pooling": "attention", **CORRECTED}),
    Case("groups", "groups", {**CORRECTED, "threshold_lr": "quantile"}),
]
PLAIN = Case("tpauc", "turn", {"threshold_lr": "quantile"})
CASES = [
    *MAIN,
    LINEAR,
    PLAIN,
    Case("tpauc", "turn", {"gamma": "theory", "link": "identity", "threshold_lr": (0.9, 0.08)}),
    Case("tpauc", "rows", {**CORRECTED, "surrogate": "logistic", "initial": 0.3}),
    Case("tpauc", "turn", {**CORRECTED, "link": "standardized"}),
    Case("bags", "turn", {"pooling": "mean", "gamma": "theory"}),
    Case("bags", "turn", {"pooling": "smoothed_max", "update_order": "after", "gamma": (0.1, 0.2, 0.1)}),
    Case("bags", "rows", {"pooling": "mean", **CORRECTED, "threshold_lr": "quantile"}),
    Case("groups", "turn", {"gamma": "theory", "threshold_lr": "quantile"}),
    Case("members", "rows", CORRECTED),
    *(Case("cross_entropy", "rows"), Case("min_max"), Case("sota_s"), Case("pooled"), Case("midam"), Case("staco")),
]


def cases_of(world: int) -> list[Case]:
    """All cases for two processes; for more those with a correction: many processes share few cores."""
    return [case for case in CASES if world == 2 or case.options.get("gamma", 0.0) not in (0.0, "theory")]


def make_criterion(case: Case) -> nn.Module:
    region = {"min_tpr": 0.4, "max_fpr": 0.5}
    tau = 0.4 if case.options.get("gamma") == "theory" else 0.8
    if case.kind == "tpauc":
        return TPAUCLoss(LABELS, **{**region, "tau": tau, **case.options})
    if case.kind == "bags":
        rates = {"threshold_lr": (0.9, 0.08), "temperature": 0.7}
        return MultiInstanceTPAUCLoss(LABELS, **{**region, "tau": tau, **rates, **case.options})
    if case.kind in ("groups", "members"):
        inner = GroupDROLoss(7, **{"top_k": 2, "tau": tau, **case.options})
        return GroupedLoss(inner, MEMBERS if case.kind == "members" else GROUPS)
    if case.kind == "pooled":
        return PooledLoss(TPAUCLoss(LABELS, **region, gamma=0.1), "attention")
    if case.kind == "midam":
        return MIDAMLoss(LABELS, pooling="smoothed_max", temperature=0.7)
    if case.kind == "staco":
        return STACOLoss(LABELS, **region)
    if case.kind == "sota_s":
        return SOTAsLoss(LABELS)
    return CrossEntropyLoss(LABELS) if case.kind == "cross_entropy" else AUCMinMaxLoss(LABELS)


def make_bags() -> ListBags:
    random = torch.Generator().manual_seed(5)
    sizes = torch.randint(1, 6, (ROWS,), generator=random).tolist()
    bags = [X[i] + 0.5 * torch.randn(size, 3, dtype=torch.float64, generator=random) for i, size in enumerate(sizes)]
    return ListBags(bags, LABELS)


def owners_of(case: Case, world: int) -> torch.Tensor | None:
    if case.assignment == "turn":
        return None
    if case.assignment == "groups":
        return GROUPS % world
    owners = torch.arange(ROWS) % world
    owners[torch.rand(ROWS, generator=torch.Generator().manual_seed(6)) < 0.6] = 0
    return owners


class Run:
    """One training run, alone or as one of several processes."""

    def __init__(
        self, case: Case, place: tuple[int, int] | None, group: dist.ProcessGroup | None = None, device: str = "cpu"
    ) -> None:
        torch.manual_seed(7)
        self.device = torch.device(device)
        over_bags = case.kind in ("bags", "pooled", "midam")
        columns = 2 if case.options.get("pooling") == "attention" or case.kind == "pooled" else 1
        self.bare: nn.Module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, columns)).double()
        self.bare.to(device)
        self.optimizer = torch.optim.SGD(self.bare.parameters(), lr=0.05, momentum=0.5)
        self.criterion = make_criterion(case).to(device)
        self.model = self.bare
        if case.kind in ("groups", "members"):
            self.sampler = GroupSampler(GROUPS, groups_per_batch=3, samples_per_group=2, seed=8)
        else:
            self.sampler = PosNegSampler(LABELS, num_positives=2, num_negatives=6, seed=8)
        if place is not None:
            rank, world = place
            self.model = DistributedDataParallel(self.bare, process_group=group)
            self.criterion = DistributedCriterion(self.criterion, group)
            self.sampler = DistributedBatchSampler(
                self.sampler, rank=rank, world_size=world, owners=owners_of(case, world)
            )
        self.batches = TensorBatches(X, LABELS, self.sampler)
        if over_bags:
            self.batches = BagBatches(make_bags(), self.sampler, instances_per_bag=3, seed=9)
        needs = getattr(self.criterion, "needs_previous", False)
        self.previous = PreviousIterate(self.model, self.optimizer) if needs else None
        self.step = 0

    def go(self, until: int = STEPS) -> list[dict]:
        seen = []
        while self.step < until:
            epoch, start = divmod(self.step, len(self.sampler))
            self.batches.set_position(epoch, start)
            for batch in self.batches:
                batch = on_device(batch, self.device)
                loss = train_step(self.model, self.criterion, self.optimizer, batch, self.previous)
                seen.append({"loss": loss.cpu().clone(), **self.weights(), **self.tables()})
                self.step += 1
                if self.step == until:
                    break
        return seen

    def weights(self) -> dict:
        return {f"weight {name}": value.detach().cpu().clone() for name, value in self.bare.named_parameters()}

    def tables(self) -> dict:
        return {name: value.cpu().clone() for name, value in self.criterion.state_dict().items()}


def run_case(case: Case, place: tuple[int, int] | None, device: str = "cpu") -> list[dict]:
    return Run(case, place, device=device).go()


# errors, which every process must raise


def message_of(function, *args, **kwargs) -> str:
    try:
        function(*args, **kwargs)
    except ValueError as error:
        return str(error)
    return "no error"


def wrong_batches(rank: int, world: int) -> tuple[dict[str, str], bool]:
    """Return what wrong batches in process 1 say in this process, and whether the state stayed as it was."""
    criterion = DistributedCriterion(TPAUCLoss(LABELS, min_tpr=0.4, max_fpr=0.5, gamma=0.1))
    bags = DistributedCriterion(MultiInstanceTPAUCLoss(LABELS, min_tpr=0.4, max_fpr=0.5, pooling="mean"))
    whole = torch.cat([(LABELS == 1).nonzero().squeeze(1)[:3], (LABELS == 0).nonzero().squeeze(1)[:5]])
    index = whole[rank::world]

    def batch(**changes):
        good = {"scores": X[index, 0], "labels": LABELS[index], "index": index, "previous_scores": X[index, 1]}
        return {**good, **(changes if rank == 1 else {})}

    criterion(**batch())
    nan = X[index, 0].clone()
    nan[0] = torch.nan
    other = index.clone()
    other[0] = whole[0]  # a row of process 0
    outside = torch.arange(len(index)) + (rank == 1)
    wrong = {
        "nan": batch(scores=nan),
        "repeated": batch(index=other, labels=LABELS[other]),
        "label": batch(labels=1 - LABELS[index]),
        "type": batch(scores=X[index, 0].float()),
        "missing": batch(previous_scores=None),
        "lengths": batch(labels=LABELS[index][:-1]),
        "strange": batch(scores="abc"),
        "nothing": batch() if rank != 1 else {},
        "empty": {name: value[:0] for name, value in batch().items()},
        "unknown": batch(weights=torch.zeros(2)),
    }
    before = {key: value.clone() for key, value in criterion.state_dict().items()}
    found = {name: message_of(criterion, **arguments) for name, arguments in wrong.items()}
    unchanged = all(torch.equal(value, before[key]) for key, value in criterion.state_dict().items())
    found["bag"] = message_of(bags, X[index, 0], bag=outside, labels=LABELS[index], index=index)
    criterion(**batch())  # all is well afterwards
    return found, unchanged


def wrong_criteria(rank: int) -> dict[str, str]:
    """Return what losses that differ from process to process say."""
    last = rank == dist.get_world_size() - 1
    flipped = LABELS.clone()
    if last:
        flipped[[int(LABELS.argmax()), int(LABELS.argmin())]] = torch.tensor([0, 1])

    def made(**options):
        return TPAUCLoss(LABELS, **{"min_tpr": 0.4, "max_fpr": 0.5, **options})

    cases = {
        "labels": TPAUCLoss(flipped, min_tpr=0.4, max_fpr=0.5),
        "threshold_lr": made(threshold_lr="quantile" if last else 0.1),
        "margin": made(margin=0.5 if last else 1.0),
        "class": CrossEntropyLoss(LABELS) if last else made(),
    }
    return {name: message_of(DistributedCriterion, criterion) for name, criterion in cases.items()}


# evaluation, metrics, the loop, sharded models


def evaluation(place: tuple[int, int] | None) -> dict:
    """Value and gradient of a loss in `eval()` mode."""
    criterion = make_criterion(PLAIN).double()
    scores = X[:, 0].clone().requires_grad_()
    index = torch.arange(ROWS)
    if place is not None:
        criterion = DistributedCriterion(criterion)
        index = index[place[0] :: place[1]]
    criterion(scores[index], LABELS[index], index)
    value = criterion.eval()(scores[index], LABELS[index], index)
    with torch.no_grad():
        again = criterion(scores[index], LABELS[index], index)
    value.backward()
    if place is not None:
        dist.all_reduce(scores.grad)
        scores.grad /= place[1]
    return {"value": value.detach(), "again": again, "gradient": scores.grad}


class Scaled(nn.Module):
    """An outer function with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, u, index):
        return torch.relu(4.0 + self.scale * u.sum(1) - 0.1 * index)


def blocks(place: tuple[int, int] | None) -> list[dict]:
    """A loss of blocks, whose outer function learns: gradients in what is inside and in its parameter."""
    outer = Scaled()
    criterion = FCCOLoss(ROWS, outer, dim=3, tau=0.7, gamma=0.1)
    if place is not None:
        criterion = DistributedCriterion(criterion)
    found = []
    for step in range(4):
        whole = torch.randperm(ROWS, generator=torch.Generator().manual_seed(step))[:10]
        index = whole if place is None else whole[place[0] :: place[1]]
        values = X.clone().requires_grad_()
        outer.scale.grad = None
        value = criterion((step + 1) * values[index], index, previous_inner=0.5 * X[index])
        value.backward()
        if place is not None:
            dist.all_reduce(values.grad)
            values.grad /= place[1]
        found.append(
            {"value": value.detach(), "values": values.grad, "scale": outer.scale.grad, "u": criterion.u.clone()}
        )
    return found


def metrics(rank: int, world: int) -> dict:
    """Exact numbers from parts of different sizes, padded ones included."""
    model = nn.Linear(3, 1).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -0.5, 0.25]]))
        model.bias.zero_()
    padded = torch.utils.data.DistributedSampler(range(ROWS), num_replicas=world, rank=rank, shuffle=False)
    batches = TensorBatches(X, LABELS, [list(padded)[:5], list(padded)[5:]])
    scores, labels = predict_scores(DistributedDataParallel(model), batches)
    own = torch.arange(5 * rank, ROWS if rank == world - 1 else 5 * rank + 5)
    mine = model(X[own]).squeeze(1).detach()
    uneven = gather_scores(mine, LABELS[own], own)
    meter = StreamingTPAUC(min_tpr=0.4, max_fpr=0.5)
    part = torch.arange(rank, ROWS, world)
    meter.update(model(X[part]).squeeze(1), LABELS[part])
    together = gather_meter(meter)
    wrong = message_of(gather_scores, mine, LABELS[own][:1] if rank == 1 else LABELS[own], own)
    return {
        **{"scores": scores, "labels": labels, "uneven": uneven, "tpauc": together.compute()},
        **{"own": repr(meter), "all": repr(together), "wrong": wrong},
    }


FITTED = Case("tpauc", "turn", {"gamma": 0.1, "threshold_lr": "quantile"})
FITTED_BAGS = Case("bags", "rows", {"pooling": "attention", "gamma": 0.1})


def run_fit(place: tuple[int, int] | None, case: Case = FITTED, **options) -> tuple[dict, dict]:
    run = Run(case, place)
    validation = TensorBatches(X.flip(1), LABELS) if case is FITTED else BagEvaluation(make_bags(), "attention")
    settings = {"epochs": 4, "warm_start_epochs": 2, "lr": 0.1, "seed": 0, **options}
    history = fit(run.model, run.criterion, run.batches, validation=validation, **settings)
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in history.rows]
    best = {"best_epoch": history.best_epoch, "best_score": history.best_score}
    return {"rows": rows, **best}, run.weights()


def fit_stops(rank: int, world: int) -> int:
    """Return after how many epochs a run ends that the last process wants to end after two."""

    class Stop(Callback):
        def on_epoch(self, state):
            state.stop = state.epoch == 1 and rank == world - 1

    history, _ = run_fit((rank, world), callbacks=[Stop()], warm_start_epochs=0)
    return len(history["rows"])


def refused_models() -> dict[str, str]:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import Shard, distribute_tensor

    found = {}
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    model[0].weight = nn.Parameter(distribute_tensor(model[0].weight.detach(), mesh, [Shard(0)]))
    found["tensor parallel"] = message_of(PreviousIterate, model, torch.optim.SGD(model.parameters(), lr=0.1))
    old = FullyShardedDataParallel(nn.Linear(3, 1), device_id=torch.device("cpu"))
    found["fsdp1"] = message_of(PreviousIterate, old, torch.optim.SGD(old.parameters(), lr=0.1))
    model = DistributedDataParallel(nn.Linear(3, 1).double())
    found["not wrapped"] = message_of(fit, model, TPAUCLoss(LABELS, min_tpr=0.4, max_fpr=0.5), [])
    return found


def in_a_group(rank: int, world: int) -> list[dict] | str:
    """Train by the first and the last process, as two; with numbers sent apart, as where the group is for GPUs only."""
    group = dist.new_group([0, world - 1])
    if rank not in (0, world - 1):
        return message_of(DistributedCriterion, make_criterion(LINEAR), group)
    config, dist.get_backend_config = dist.get_backend_config, lambda group: "cuda:nccl"
    try:
        return Run(LINEAR, (int(rank > 0), 2), group).go(10)
    finally:
        dist.get_backend_config = config


# runs of two processes: errors in one of them, and models of all kinds

VALIDATION = TensorBatches(X.flip(1), LABELS)


def network(*, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(1)
    middle = nn.BatchNorm1d(6) if norm else nn.Tanh()
    return nn.Sequential(nn.Linear(3, 6), middle, nn.Linear(6, 1)).double()


def loss(gamma: float = 0.1, group: dist.ProcessGroup | None = None) -> DistributedCriterion:
    return DistributedCriterion(plain_loss(gamma), group)


def plain_loss(gamma: float = 0.1) -> TPAUCLoss:
    return TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, gamma=gamma)


def parts(place: tuple[int, int] | None) -> TensorBatches:
    whole = PosNegSampler(LABELS, num_positives=4, num_negatives=8, seed=2)
    if place is None:
        return TensorBatches(X, LABELS, whole)
    return TensorBatches(X, LABELS, DistributedBatchSampler(whole, rank=place[0], world_size=place[1]))


def sharded(*, layers: bool = True) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = network()
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    if layers:
        fully_shard(model[0], mesh=mesh)
        fully_shard(model[2], mesh=mesh)
    return fully_shard(model, mesh=mesh)


class Short:
    """A loader without a length that ends early."""

    def __init__(self, batches: TensorBatches, count: int) -> None:
        self.batches, self.count = batches, count

    def __iter__(self):
        return (batch for _, batch in zip(range(self.count), self.batches, strict=False))


class Generator(Callback):
    """Notes the state of the generator that dropout masks are drawn from."""

    state: Tensor

    def on_begin(self, state: Any) -> None:
        self.state = torch.get_rng_state()


# random numbers, batch normalisation


def masks(place: tuple[int, int]) -> Tensor:
    noted = Generator()
    fit(DistributedDataParallel(network()), loss(), parts(place), epochs=1, seed=5, callbacks=[noted])
    return noted.state


def normalised(place: tuple[int, int]) -> dict[str, Any]:
    """Return validation scores as each process sees them, and buffers at the end: with the best weights, the last."""
    seen: list[Tensor] = []

    def score(scores: Tensor, labels: Tensor) -> float:
        seen.append(scores)
        return float(len(seen))

    model = network(norm=True)
    fit(DistributedDataParallel(model), loss(), parts(place), epochs=2, validation=VALIDATION, score=score)
    last = network(norm=True)
    fit(DistributedDataParallel(last), loss(), parts(place), epochs=1)
    buffers = {f"{name} {number}": value for number, m in enumerate((model, last)) for name, value in m.named_buffers()}
    return {"scores": torch.stack(seen), **buffers}


# sharded and compiled models


def fit_sharded(place: tuple[int, int] | None, **options: Any) -> dict[str, Any]:
    model = network() if place is None else sharded()
    criterion = plain_loss() if place is None else loss()
    history = fit(model, criterion, parts(place), validation=VALIDATION, epochs=4, lr=0.2, proximal=0.1, **options)
    weights = {name: whole(value) for name, value in model.named_parameters()}
    return {"scores": history["score"], "best": history.best_epoch, "weights": weights}


def whole(value: Any) -> Tensor:
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()


def states_of_shards(place: tuple[int, int]) -> dict[str, Any]:
    """Return states as they are saved; and the weights of two runs, one of which is put back to a saved state."""
    found: dict[str, Any] = {}
    for resumed in (False, True):
        model = sharded(layers=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        previous, pull, criterion = PreviousIterate(model, optimizer), ProximalPoint(optimizer, 0.1), loss()
        for number, batch in enumerate(parts(place)):
            if resumed and number == 3:
                found["previous"], found["proximal"] = previous.state_dict(), pull.state_dict()
                known = dict(model.named_parameters())
                shards = {
                    name: like_parameter(value, known[name]) for name, value in found["previous"]["weights"].items()
                }
                for state in ({}, found["previous"]["weights"], {}, shards):
                    previous.load_state_dict({"weights": state})
                pull.load_state_dict(found["proximal"])
            train_step(model, criterion, optimizer, batch, previous)
        found[f"weights {resumed}"] = {name: whole(value) for name, value in model.named_parameters()}
    shards = {"weights": {name: value.detach() for name, value in model.named_parameters()}}
    one = network()
    steps = torch.optim.SGD(one.parameters(), lr=0.1)
    found["into one"] = message_of(PreviousIterate(one, steps).load_state_dict, shards)
    values = list(shards["weights"].values())
    state = {"reference": values, "average": values, "steps": torch.tensor(1)}
    found["proximal into one"] = message_of(ProximalPoint(steps, 0.1).load_state_dict, state)
    return found


def compiled(place: tuple[int, int]) -> dict[str, Any]:
    """Steps of a compiled model with buffers; between two of them one process asks for previous scores, alone."""
    found: dict[str, Any] = {}
    for kind in ("plain", "compiled"):
        inner = network(norm=True)
        model: Any = DistributedDataParallel(inner)
        wrapper = model
        if kind == "compiled":
            model = torch.compile(model, backend="eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        previous, criterion = PreviousIterate(model, optimizer), loss()
        for batch in parts(place):
            train_step(model, criterion, optimizer, batch, previous)
            if place[0] == 0:
                previous(X)
            if not wrapper.require_forward_param_sync:
                raise AssertionError("buffers would not be sent any more")
        found[f"names {kind}"] = list(previous.state_dict()["weights"])
        own = TensorBatches(X, LABELS, [list(range(place[0], ROWS, place[1]))] * (1 + place[0]))  # one batch, and two
        found[kind] = {**dict(inner.named_parameters()), "u": criterion.u, "scores": predict_scores(model, own)[0]}
    return found


def compiled_loss(place: tuple[int, int]) -> dict[str, list[Tensor]]:
    """Return values and gradients of a loss inside of a compiled step, called for the first time there, and outside."""
    index = torch.arange(place[0], ROWS, place[1])
    found: dict[str, list[Tensor]] = {}
    for kind in ("compiled", "plain"):
        criterion, scores = loss(0.0), X[:, 0].clone().requires_grad_()

        def step(scores: Tensor, criterion: nn.Module = criterion) -> Tensor:
            return 2.0 * criterion(3.0 * scores[index], LABELS[index], index)

        value = (torch.compile(step, backend="eager") if kind == "compiled" else step)(scores)
        value.backward()
        found[kind] = [value.detach(), scores.grad]
    return found


# what is refused


def wrong_models(place: tuple[int, int]) -> dict[str, str]:
    from torch.distributed.fsdp import fully_shard

    batches, plain = parts(place), plain_loss()
    alone = [dist.new_group([rank]) for rank in range(place[1])][place[0]]
    wrapped = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    mesh = dist.device_mesh.init_device_mesh("cpu", (1, place[1]), mesh_dim_names=("copies", "shards"))
    hybrid = fully_shard(network(), mesh=mesh)
    uneven = TensorBatches(X, LABELS, [[0, 5], [1]] if place[0] else [[2]])
    return {
        "bare": message_of(fit, network(), loss(), batches),
        "sharded": message_of(fit, sharded(), plain, batches),
        "compiled": message_of(fit, torch.compile(wrapped, backend="eager"), plain, batches),
        "other group": message_of(fit, DistributedDataParallel(network(), process_group=alone), loss(), batches),
        "loss of one": message_of(fit, wrapped, loss(group=alone), batches),
        "hybrid": message_of(exchange_of, "fit", hybrid, loss()),
        "step": message_of(train_step, wrapped, plain, optimizer, next(iter(batches))),
        "uneven": message_of(predict_scores, sharded(), uneven),
    }


def wrong_lengths(place: tuple[int, int]) -> dict[str, str]:
    batches, last = parts(place), place[0] == place[1] - 1
    shorter = TensorBatches(X, LABELS, [[0, 1, 2]])
    model = DistributedDataParallel(network())
    return {
        "known": message_of(fit, model, loss(), shorter if last else batches),
        "validation": message_of(
            fit, sharded(), loss(), batches, validation=TensorBatches(X, LABELS, [[0, 1]] * (2 if last else 3))
        ),
        "unknown": message_of(fit, model, loss(), Short(batches, 3) if last else batches),
    }


def wrong_later(place: tuple[int, int]) -> dict[str, Any]:
    """Return what losses say that came to differ after they were wrapped."""
    rank, world = place
    index = torch.arange(rank, ROWS, world)
    arguments = (X[index, 0], LABELS[index], index, X[index, 1])
    found: dict[str, Any] = {}
    later = loss()
    later.tau = 0.9 if rank else 0.3
    found["setting"] = message_of(later, *arguments)
    found["setting in fit"] = message_of(fit, DistributedDataParallel(network()), later, parts(place))
    mode = loss()
    mode.train(rank == 0)
    found["mode"] = message_of(mode, *arguments)
    loaded = loss()
    state = {name: value + 1 if value.is_floating_point() else value for name, value in loaded.state_dict().items()}
    if rank == 0:
        loaded.load_state_dict(state)
    found["state"] = message_of(loaded, *arguments)
    loaded.synchronize()
    same = loss()
    if rank == 0:
        same.load_state_dict(same.state_dict())  # no difference: all is well
    found["values"] = [criterion(*arguments) for criterion in (loaded, same)]
    return found


def train_by(sampler: Any, epochs: int, rows: Tensor | None = None) -> None:
    """Go through some epochs as a loop of one's own does; `rows` are the numbers of those that the sampler knows."""
    criterion = loss(0.0)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in sampler:
            index = torch.tensor(batch) if rows is None else rows[batch]
            criterion(X[index, 0], LABELS[index], index)


def wrong_samplers(place: tuple[int, int]) -> dict[str, str]:
    """Return what is said of samplers that differ; batches have no row in common where they are of shards."""
    rank, world = place
    sizes = {"num_positives": 2, "num_negatives": 4}
    split = {"rank": rank, "world_size": world}
    forgetful = PosNegSampler(LABELS, **sizes, **split)
    if rank:
        forgetful.set_epoch = lambda epoch: PosNegSampler.set_epoch(forgetful, 0)
    dealt = DistributedBatchSampler(PosNegSampler(LABELS, num_positives=4, num_negatives=8, seed=3 + rank), **split)
    sharded_rows = PosNegSampler(LABELS, **sizes, **split, seed=3 + rank)
    own = torch.cat([(label == LABELS).nonzero().squeeze(1)[rank::world] for label in (1, 0)])  # as many batches
    model = DistributedDataParallel(network())
    return {
        "dealt": message_of(train_by, dealt, 1),
        "shards": message_of(train_by, sharded_rows, 1),
        "plain": message_of(
            train_by, DistributedBatchSampler(ShuffledSampler(ROWS, batch_size=30, seed=3 + rank), **split), 1
        ),
        "epoch": message_of(train_by, forgetful, 2),
        "fit": message_of(fit, model, loss(0.0), TensorBatches(X, LABELS, dealt), epochs=1),
        "own rows": message_of(train_by, PosNegSampler(LABELS[own], **sizes, seed=3 + rank), 2, own),
        "same": message_of(
            train_by, DistributedBatchSampler(PosNegSampler(LABELS, num_positives=4, num_negatives=8), **split), 3
        ),
    }


def wrong_parts(place: tuple[int, int]) -> dict[str, Any]:
    rank, world = place
    index = torch.arange(rank, ROWS, world)
    model = network()
    everything = TensorBatches(X, LABELS.float(), [list(range(ROWS))] if rank == 0 else [])
    none = TensorBatches(X, LABELS, [])
    scores = X[index, 0].to_sparse() if rank else X[index, 0]
    made = loss(0.0)
    many = {f"part {number}": X[index, 0] for number in range(17)}
    return {
        "rows of one": predict_scores(model, everything),
        "no rows": message_of(predict_scores, model, none),
        "no numbers": message_of(predict_scores, model, [(X, LABELS)] if rank else everything),
        "sparse": message_of(made, scores, LABELS[index], index),
        "other calls": message_of(gather_scores if rank else made, X[index, 0], LABELS[index], index),
        "too many": message_of(Exchange("test").gather, many),
        "fine": gather_scores(X[index, 0], LABELS[index], index)[0],
    }


def copies(place: tuple[int, int]) -> dict[str, Any]:
    index = torch.arange(place[0], ROWS, place[1])
    arguments = (X[index, 0], LABELS[index], index)
    criterion = loss(0.0, dist.new_group([0, 1]))
    values = [copy.deepcopy(criterion)(*arguments), pickle.loads(pickle.dumps(loss(0.0)))(*arguments)]
    try:
        pickle.dumps(criterion)
    except TypeError as error:
        return {"values": values, "pickle": str(error)}
    return {"values": values}


def everything_of_two(place: tuple[int, int]) -> dict[str, Any]:
    """Do everything as one of the processes."""
    return {
        "compiled loss": compiled_loss(place),
        "masks": masks(place),
        "normalised": normalised(place),
        "fit sharded": fit_sharded(place),
        "states of shards": states_of_shards(place),
        "compiled": compiled(place),
        "wrong models": wrong_models(place),
        "wrong lengths": wrong_lengths(place),
        "wrong later": wrong_later(place),
        "wrong samplers": wrong_samplers(place),
        "wrong parts": wrong_parts(place),
        "copies": copies(place),
    }


def work(rank: int, world: int, folder: str) -> None:
    """Do everything as process `rank` of `world`."""
    torch.set_num_threads(1)
    place, path = (rank, world), Path(folder)
    dist.init_process_group("gloo", init_method=f"file://{path}/init-{world}", rank=rank, world_size=world)
    found: dict = {"cases": {case.name: run_case(case, place) for case in cases_of(world)}}
    found["wrong batches"], found["unchanged"] = wrong_batches(rank, world)
    found["wrong criteria"] = wrong_criteria(rank)
    found["evaluation"] = evaluation(place)
    found["metrics"] = metrics(rank, world)
    found["fit"] = run_fit(place)
    found["fit bags"] = run_fit(place, FITTED_BAGS, epochs=1, warm_start_epochs=1)
    found["blocks"] = blocks(place)
    found["patience"] = run_fit(place, patience=1, epochs=30, lr=1e-9)[0]
    found["stops"] = fit_stops(rank, world)
    found["refused"] = refused_models()
    found["group"] = in_a_group(rank, world)
    if world == 2:
        found |= everything_of_two(place)
    torch.save(found, path / f"{world}-{rank}.pt")
    dist.destroy_process_group()


def watched_alone(rank: int, world: int, folder: str) -> None:
    """Run the program of a folder in one process."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.argv = ["watched.py", "0", "--out", f"{folder}/alone", "--epochs", "3"]
    runpy.run_path(f"{folder}/watched.py")


def work_on_gpu(rank: int, world: int, folder: str) -> None:
    """Do some of it with all processes on one GPU."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/init-gpu", rank=rank, world_size=world)
    found = {case.name: run_case(case, (rank, world), "cuda") for case in MAIN}
    torch.save(found, Path(folder) / f"gpu-{rank}.pt")
    dist.destroy_process_group()
