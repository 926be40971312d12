"""Further runs of two processes for tests/test_distributed.py: errors in one of them, and models of all kinds.

Every function returns something that the test compares over the processes, or with one process.
"""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from distributed_runs import message_of
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from moreauc import PreviousIterate, TPAUCLoss
from moreauc.data import TensorBatches
from moreauc.distributed import DistributedCriterion, gather_scores, predict_scores
from moreauc.distributed.criterion import exchange_of
from moreauc.distributed.exchange import Exchange
from moreauc.optim import ProximalPoint
from moreauc.samplers import DistributedBatchSampler, PosNegSampler, ShuffledSampler
from moreauc.train import Callback, fit, train_step

ROWS = 53
LABELS = (torch.arange(ROWS) % 5 == 0).long()
X = torch.randn(ROWS, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5 * LABELS.unsqueeze(1)
VALIDATION = TensorBatches(X.flip(1), LABELS)


def network(*, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(1)
    middle = nn.BatchNorm1d(6) if norm else nn.Tanh()
    return nn.Sequential(nn.Linear(4, 6), middle, nn.Linear(6, 1)).double()


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
                previous.load_state_dict({"weights": {}})
                previous.load_state_dict(found["previous"])
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


def wrong_models(place: tuple[int, int], folder: Path) -> dict[str, str]:
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
    own = torch.arange(rank, ROWS, world)
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


def tensors_of_first(rank: int) -> list[Tensor]:
    """Return tensors of all kinds, which are zero in other processes than the first until they are given."""
    whole = [torch.arange(6).reshape(2, 3).T, torch.tensor(2.5), torch.tensor([True, False]), torch.zeros(0)]
    whole += [torch.arange(3).to(kind) for kind in (torch.int16, torch.bfloat16, torch.complex64)]
    found = [value if rank == 0 else torch.zeros_like(value) for value in whole]
    Exchange("test").broadcast(found)
    return found


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


def everything(place: tuple[int, int], path: Path) -> dict[str, Any]:
    """Do everything as one of the processes."""
    return {
        "compiled loss": compiled_loss(place),
        "masks": masks(place),
        "normalised": normalised(place),
        "fit sharded": fit_sharded(place),
        "states of shards": states_of_shards(place),
        "compiled": compiled(place),
        "wrong models": wrong_models(place, path),
        "wrong lengths": wrong_lengths(place),
        "wrong later": wrong_later(place),
        "wrong samplers": wrong_samplers(place),
        "wrong parts": wrong_parts(place),
        "tensors of first": tensors_of_first(place[0]),
        "copies": copies(place),
    }
