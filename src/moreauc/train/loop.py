"""The training loop: any model, any of the losses, any loader of `(inputs, labels, index)` batches."""

from __future__ import annotations

import logging
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, AdamW, Optimizer

from moreauc._checks import check_count, check_flag, check_folder, check_real, shown
from moreauc._parallel import is_shard, is_sharded, parallel_of
from moreauc.checkpoint.loader import check_loader
from moreauc.checkpoint.rng import loader_parts
from moreauc.checkpoint.state import check_names
from moreauc.core.pooling import Pooling
from moreauc.criteria._base import check_all
from moreauc.data.bag_batches import BagInputs
from moreauc.data.batches import length_of
from moreauc.data.scoring import Evaluation, device_of, instances_for, on_device, scores_of
from moreauc.distributed import DistributedCriterion
from moreauc.distributed.agreement import check_agreement, check_draws
from moreauc.distributed.criterion import check_seen, exchange_of
from moreauc.distributed.exchange import Exchange
from moreauc.optim import PreviousIterate
from moreauc.samplers.base import PlannedSampler
from moreauc.train.checkpointer import Checkpointer
from moreauc.train.selection import ModelSelector, Score
from moreauc.train.state import (
    DONE,
    TRAIN,
    WARM_START,
    Callback,
    History,
    ProgressBar,
    Schedule,
    TrainState,
    UntrainedWarning,
)

_OWNER = "fit"
_LOGGER = logging.getLogger(__name__)


def fit(
    model: nn.Module,
    criterion: nn.Module,
    train: Iterable[Any],
    *,
    validation: Iterable[Any] | Evaluation | None = None,
    epochs: int = 60,
    optimizer: Optimizer | Literal["sgd", "adam"] = "sgd",
    lr: float = 0.01,
    momentum: float = 0.9,
    weight_decay: float = 2e-4,
    milestones: Sequence[int] | None = None,
    lr_factor: float = 0.1,
    warm_start_epochs: int = 0,
    proximal: float = 0.0,
    min_tpr: float | None = None,
    max_fpr: float | None = None,
    validation_weight: object = None,
    score: Score | None = None,
    keep_best: bool = True,
    min_gain: float = 0.0,
    patience: int | None = None,
    seed: int | None = None,
    device: torch.device | str | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    checkpoint: str | Path | None = None,
    every: int | None = None,
    resume: bool = True,
    settings: Mapping[str, Any] | None = None,
) -> History:
    """Train `model` by `criterion`, and keep the weights that score best on the validation data.

    Before each epoch `set_epoch(number)` is called on the loader and on its `batch_sampler` and `sampler`, if they have
    it; warm-start epochs are included in the number. If the criterion needs the scores at the previous weights
    (`needs_previous`), a :class:`~moreauc.PreviousIterate` is kept for it. With a `seed` the global random state is
    restored at the end.

    With several processes the model must be wrapped by `DistributedDataParallel` or `fully_shard` and the criterion by
    a :class:`~moreauc.distributed.DistributedCriterion`; every process calls this function. The validation score of the
    first process is used by all, a callback that stops the run in one process stops it in all, dropout masks differ
    between processes, and buffers are copied from the first process at the end of each epoch.

    Args:
        model: maps inputs to raw scores of shape `(B,)` or `(B, 1)`. Inputs given as a tuple are passed by position,
            as a dictionary by name.
        criterion: called as `criterion(scores, labels, index)`, with `previous_scores=` if it needs them.
        train: loader of `(inputs, labels, index)` batches: a `DataLoader`, a PyG loader,
            :class:`~moreauc.data.TensorBatches`, or :class:`~moreauc.data.BagBatches` for bags of instances. `index`
            are row numbers of the labels the criterion was built with.
        validation: loader of `(inputs, labels, ...)` batches with both classes, or
            :class:`~moreauc.data.BagEvaluation`; None to train without.
        epochs: passes over `train` by `criterion`.
        optimizer: any optimizer of the model's parameters; or "sgd", or "adam" for AdamW.
        lr: learning rate, if `optimizer` is a name.
        momentum: momentum of "sgd".
        weight_decay: weight decay, if `optimizer` is a name.
        milestones: epochs after which the learning rate is multiplied by `lr_factor`; None for one third and two
            thirds of `epochs` (20 and 40 of 60, as in the paper), `()` for never.
        lr_factor: factor of the learning rate at each milestone.
        warm_start_epochs: epochs of cross entropy first, at a constant learning rate, as in the paper. Training
            continues from their last weights; an optimizer given by name is created anew.
        proximal: weight of a :class:`~moreauc.optim.ProximalPoint` whose reference is updated at each milestone.
        min_tpr: lower edge of the region of the validation score; that of the criterion by default.
        max_fpr: its upper edge, likewise.
        validation_weight: weights of the validation rows in the TPAUC, in the order of the batches; None for 1 each.
        score: function of all validation scores, `(n,)` or `(n, columns)`, and labels, on the CPU, to use instead of
            TPAUC; higher is better.
        keep_best: whether to end with the weights of the best validation score (:class:`~moreauc.train.History`)
            instead of the last ones; the criterion keeps its last state. If the initial weights are the best there is
            an :class:`UntrainedWarning`.
        min_gain: number of standard errors by which an epoch must improve the TPAUC of the initial weights to replace
            them; 0 for any improvement.
        patience: stop after this many epochs without a better validation score (a larger `gap` alone does not count);
            None to run all epochs.
        seed: seed of dropout and other random numbers; None to use the global random state.
        device: where to train; model and criterion are moved there. None to stay where the model is.
        callbacks: called in this order; see :class:`~moreauc.train.Callback`.
        progress: whether to show a progress bar, in the first process.
        checkpoint: folder to save the run in. The same call then resumes an interrupted run, with the same result to
            the last bit; after SIGTERM or SIGINT the step is finished and the run saved (docs/checkpoints.md).
        every: steps between two saves, besides those at the end of each epoch; None to save at the end of epochs only.
        resume: whether to resume a run saved in the folder; if False, an existing one is an error.
        settings: further values, by name, that must be the same in a resumed run.

    Returns:
        One row of numbers for each epoch.

    Raises:
        ValueError: an error of the criterion (NaN scores, say) gets a note with epoch and step.
        CheckpointError: a `ValueError`, for a checkpoint that is damaged or of another run, and for a folder used by
            another process; nothing has changed, unless the loader gives fewer batches than before.
        Interrupted: a `KeyboardInterrupt`, after a signal, with a checkpoint.

    Example:
        >>> from moreauc import TPAUCLoss
        >>> from moreauc.data import TensorBatches
        >>> from moreauc.samplers import PosNegSampler
        >>> x = torch.linspace(-1, 1, 40).unsqueeze(1)
        >>> y = (x.squeeze(1) > 0.5).long()
        >>> batches = TensorBatches(x, y, PosNegSampler(y, num_positives=4, num_negatives=8))
        >>> model = nn.Linear(1, 1)
        >>> criterion = TPAUCLoss(y, min_tpr=0.5, max_fpr=0.5)
        >>> history = fit(model, criterion, batches, validation=TensorBatches(x, y), epochs=9, lr=0.5)
        >>> history.best_score, len(history["loss"])
        (1.0, 9)
    """
    check_count(_OWNER, "epochs", epochs)
    check_count(_OWNER, "warm_start_epochs", warm_start_epochs, minimum=0)
    check_real(_OWNER, "min_gain", min_gain, low=0.0)
    if milestones is None:
        milestones = sorted({epochs // 3, 2 * epochs // 3} - {0})
    if patience is not None:
        check_count(_OWNER, "patience", patience)
        if validation is None:
            raise ValueError(f"{_OWNER}: patience must be None without validation, got {patience}")
    _check_optimization(optimizer, lr, momentum, weight_decay, milestones, lr_factor, proximal)
    _check_saving(train, checkpoint, every, resume)
    _check_callbacks(callbacks)
    if seed is not None:
        check_count(_OWNER, "seed", seed, minimum=0)
    exchange = _check_processes(model, criterion, train)
    rank = 0 if exchange is None else exchange.rank
    selector = None
    if validation is not None:
        chosen: dict[str, Any] = {"keep_best": keep_best, "min_gain": min_gain, "patience": patience}
        chosen |= {"score": score, "weight": validation_weight, "exchange": exchange}
        selector = ModelSelector(criterion, validation, min_tpr, max_fpr, **chosen)
        if exchange is not None and is_sharded(model):  # all processes call it together
            _check_lengths(exchange, "validation", validation)
    if device is not None:
        model.to(device)
        criterion.to(device)
    new_optimizer = partial(_make_optimizer, optimizer, model, lr, momentum, weight_decay)
    plan = _Plan(
        criterion, new_optimizer, epochs, warm_start_epochs, milestones, lr_factor, proximal, selector, exchange
    )
    state = TrainState(model, criterion, new_optimizer(), train)
    hooks = [*callbacks, *([ProgressBar()] if progress and rank == 0 else [])]
    hooks += [] if exchange is None else [_AgreedStop(exchange)]
    checkpointer = None
    if checkpoint is not None:
        check_names("settings", settings, _OWNER)
        compared: dict[str, Any] = {"validation": False} if selector is None else selector.settings()
        compared |= {"epochs": epochs, "milestones": list(milestones), "lr_factor": lr_factor, "proximal": proximal}
        compared |= {"warm_start_epochs": warm_start_epochs, "patience": patience, "seed": seed}
        if not isinstance(optimizer, Optimizer):
            compared |= {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        for name in settings or {}:
            if name in compared:
                raise ValueError(f"{_OWNER}: settings must not hold {name!r}, which is compared anyway")
        compared = {**(settings or {}), **compared}  # the user's settings first: an error names the first that differs
        checkpointer = Checkpointer(
            state, hooks, selector, checkpoint, exchange, every=every, resume=resume, settings=compared
        )
    with checkpointer or nullcontext(), _random_state(model, seed, rank):
        _train(plan, state, hooks, checkpointer)
    history = state.history
    if rank == 0 and history.untrained:
        before = "after the warm start" if warm_start_epochs else "before training"
        text = f"no epoch did better on the validation data than the weights {before}, score {history.best_score:.4g}"
        advice = "which were kept; try another learning rate, more rows or other features"
        warnings.warn(f"{_OWNER}: {text}, {advice}", UntrainedWarning, stacklevel=2)
    return history


@dataclass
class _Plan:
    """What a run is to do."""

    criterion: nn.Module
    new_optimizer: Callable[[], Optimizer]
    epochs: int
    warm_start_epochs: int
    milestones: Sequence[int]
    lr_factor: float
    proximal: float
    selector: ModelSelector | None
    exchange: Exchange | None


def _train(plan: _Plan, state: TrainState, callbacks: list[Callback], checkpointer: Checkpointer | None) -> None:
    """Run the phases, from the one in which a saved run is resumed."""
    resumed = ""
    if checkpointer is not None:
        resumed = checkpointer.resumed
        callbacks = [*callbacks, checkpointer]  # last, so that it saves the effects of the others
    try:
        if checkpointer is not None and resumed == DONE:
            checkpointer.restore_result()
            return
        if plan.warm_start_epochs and resumed != TRAIN:
            warm = _warm_start_loss(plan.criterion)
            state.begin_phase(WARM_START, warm, plan.new_optimizer(), plan.warm_start_epochs)
            _run_phase(state, callbacks, plan.exchange)
        if not state.stop:
            state.begin_phase(TRAIN, plan.criterion, plan.new_optimizer(), plan.epochs, plan.warm_start_epochs)
            state.selector = plan.selector
            if state.selector is not None and resumed != TRAIN:
                state.selector.evaluate(state, epoch=-1)
            state.schedule = Schedule(state.optimizer, plan.milestones, plan.lr_factor, plan.proximal)
            _run_phase(state, callbacks, plan.exchange)
            if state.selector is not None:
                state.selector.restore_best(state)
        state.done = True
    finally:
        state.close()
        for callback in callbacks:
            callback.on_end(state if state.phase else None)


def _run_phase(state: TrainState, callbacks: Sequence[Callback], exchange: Exchange | None) -> None:
    """Run the epochs of a phase, from the one in which a saved run is resumed."""
    if exchange is not None:
        _check_lengths(exchange, "train", state.position.loader)
    for callback in callbacks:
        callback.on_begin(state)
    for epoch in range(state.epoch, state.epochs):
        state.epoch = epoch
        state.begin_epoch()
        _run_epoch(state, callbacks)
        row = {"phase": state.phase, "epoch": state.epoch, "loss": float(state.total) / (state.step + 1)}
        row["lr"] = float(state.lr)
        if exchange is not None:  # batch normalisation has seen other rows in each process
            exchange.broadcast([buffer for buffer in state.model.buffers() if not is_shard(buffer)])
        if state.selector is not None:
            row |= state.selector.evaluate(state, state.epoch)
        row["seconds"] = time.perf_counter() - state.started
        state.history.add(**row)
        numbers = ", ".join(f"{key} {value:.6g}" for key, value in row.items() if key not in ("phase", "epoch"))
        _LOGGER.info("%s epoch %d: %s", state.phase, state.epoch + 1, numbers)
        if state.schedule is not None:
            state.schedule.after_epoch(state.epoch)
        for callback in callbacks:
            callback.on_epoch(state)
        if state.stop:
            break


def _run_epoch(state: TrainState, callbacks: Sequence[Callback]) -> None:
    """Do a step for each batch of the loader that is left in this epoch."""
    model, criterion, device = state.model, state.criterion, device_of(state.model)
    model.train()
    criterion.train()
    if getattr(criterion, "needs_previous", False):
        state.keep_previous()
    for batch in state.position.batches(state.epochs_before + state.epoch):
        state.step = state.position.step - 1
        try:
            state.loss = train_step(model, criterion, state.optimizer, on_device(batch, device), state.previous)
        except ValueError as error:
            error.add_note(f"in {state.phase}, epoch {state.epoch}, step {state.step}, learning rate {state.lr:g}")
            raise
        state.total += state.loss
        state.steps_done += 1
        for callback in callbacks:
            callback.on_step(state)
    check_all(criterion)  # the mean loss is read next, which waits for the device anyway
    if state.step < 0:
        raise ValueError(f"{_OWNER}: train must give at least one batch in each epoch, got none")


def train_step(
    model: nn.Module, criterion: nn.Module, optimizer: Optimizer, batch: object, previous: PreviousIterate | None = None
) -> Tensor:
    """Do one step: scores, loss, backward, optimizer. Return the loss without gradient.

    Args:
        model: maps inputs to raw scores, shape `(B,)` or `(B, 1)`.
        criterion: called as `criterion(scores, labels, index)`.
        optimizer: moves the weights. `torch.optim.LBFGS` needs a loss without state, such as cross entropy.
        batch: `(inputs, labels, index)`, on the model's device. With `BagInputs` as inputs the model gets the
            instances, and the criterion is called as `criterion(outputs, bag, labels, index)`.
        previous: the model at its previous weights; required if the criterion's `needs_previous` is True.

    Example:
        >>> from moreauc import TPAUCLoss
        >>> model, labels = nn.Linear(2, 1), torch.tensor([1, 0, 0, 1])
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> batch = (torch.randn(4, 2), labels, torch.arange(4))
        >>> train_step(model, TPAUCLoss(labels, min_tpr=0.5, max_fpr=0.5), optimizer, batch).shape
        torch.Size([])
    """
    if parallel_of(model) is not None:
        check_seen("train_step", model, criterion)

    def evaluate() -> Tensor:
        loss = loss_of("train_step", model, criterion, batch, previous)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        return loss.detach()

    if isinstance(optimizer, LBFGS):
        before: Tensor = optimizer.step(evaluate)  # type: ignore[no-untyped-call]
        return before
    loss = evaluate()
    optimizer.step()
    return loss


def open_batch(model: nn.Module, batch: Any) -> tuple[Any, list[Tensor], str]:
    """Return inputs of the model, arguments of the criterion after the scores, and its name for previous scores."""
    inputs, labels, index = batch
    if isinstance(inputs, BagInputs):
        instances, *bags = inputs
        return instances_for(model, instances), [*bags, labels, index], "previous_instances"
    return inputs, [labels, index], "previous_scores"


def check_batch(owner: str, batch: object) -> None:
    """Refuse anything but a batch of three parts."""
    if not isinstance(batch, tuple | list) or len(batch) != 3:
        size = len(batch) if isinstance(batch, tuple | list) else type(batch).__name__
        raise ValueError(f"{owner}: batch must be (inputs, labels, index), got {size}")


def loss_of(
    owner: str, model: nn.Module, criterion: nn.Module, batch: object, previous: PreviousIterate | None
) -> Tensor:
    """Return the loss of a batch, with the scores at the previous weights where the criterion needs them."""
    check_batch(owner, batch)
    inputs, others, name = open_batch(model, batch)
    scores = scores_of(model, inputs)
    before: dict[str, Tensor] = {}
    if getattr(criterion, "needs_previous", False):
        if previous is None:
            remedy = "pass previous=PreviousIterate(model, optimizer)"
            raise ValueError(f"{owner}: previous must be given where the criterion needs {name}, got None; {remedy}")
        before[name] = scores_of(previous, inputs)
    loss: Tensor = criterion(scores, *others, **before)
    return loss


class _AgreedStop(Callback):
    """Lets a callback that stops the run in one process stop it in all."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def on_epoch(self, state: TrainState) -> None:
        """Stop if any process stops."""
        state.stop = any(self._exchange.gather_objects(state.stop, "the end of an epoch"))


def _check_optimization(
    optimizer: object,
    lr: object,
    momentum: object,
    weight_decay: object,
    milestones: Sequence[Any],
    factor: object,
    proximal: object,
) -> None:
    check_real(_OWNER, "proximal", proximal, low=0.0)
    for milestone in milestones:
        check_count(_OWNER, "milestones", milestone)
    check_real(_OWNER, "lr_factor", factor, low=0.0, low_open=True)
    if isinstance(optimizer, Optimizer):
        return
    if optimizer not in ("sgd", "adam"):
        raise ValueError(f"{_OWNER}: optimizer must be an optimizer, 'sgd' or 'adam', got {optimizer!r}")
    check_real(_OWNER, "lr", lr, low=0.0, low_open=True)
    check_real(_OWNER, "momentum", momentum, low=0.0, high=1.0, high_open=True)
    check_real(_OWNER, "weight_decay", weight_decay, low=0.0)


def _check_saving(train: object, checkpoint: object, every: object, resume: object) -> None:
    check_flag(_OWNER, "resume", resume)
    if checkpoint is not None:
        check_folder(_OWNER, "checkpoint", checkpoint)
        check_loader(train, _OWNER, "train")
    if every is not None and checkpoint is None:
        raise ValueError(f"{_OWNER}: every must be None without checkpoint, got {every}")
    if every is not None:
        check_count(_OWNER, "every", every)


def _check_callbacks(callbacks: Sequence[Any]) -> None:
    hooks = ("on_begin", "on_step", "on_epoch", "on_end")
    for callback in callbacks:
        if isinstance(callback, type) or not all(callable(getattr(callback, name, None)) for name in hooks):
            kind = f"the class {callback.__name__}" if isinstance(callback, type) else shown(callback)
            raise ValueError(f"{_OWNER}: callbacks must be objects of moreauc.train.Callback, got {kind}")


def _check_processes(model: nn.Module, criterion: nn.Module, train: object) -> Exchange | None:
    """Check that all processes have the same loss and draw the same batches; None for one process."""
    if not isinstance(criterion, DistributedCriterion) and parallel_of(model) is None:
        return None
    exchange = exchange_of(_OWNER, model, criterion)
    if isinstance(criterion, DistributedCriterion):  # the loss may have changed since construction
        check_agreement(criterion.exchange, criterion.criterion)
        found = [part.draw() for _, part in loader_parts(train) if isinstance(part, PlannedSampler)]
        draw = {name: value for name, value in found[0].items() if name not in ("epoch", "step")} if found else None
        check_draws(criterion.exchange, draw, _OWNER)
    return exchange


def _check_lengths(exchange: Exchange, name: str, batches: object) -> None:
    every = exchange.gather_objects(length_of(batches), f"a comparison of {name}")
    if len({*every} - {None}) > 1:
        raise ValueError(f"{_OWNER}: {name} must have as many batches in all processes, got {every}")


class _CrossEntropy(nn.Module):
    """Binary cross entropy, called as the criteria are; scores of bags are pooled from the instances of the batch."""

    def __init__(self, pooling: Pooling | None) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(self, scores: Tensor, *others: Tensor) -> Tensor:
        *bags, labels, _ = others
        if bags:
            if self.pooling is None:
                raise ValueError("fit: warm_start_epochs must be 0 for bags and a criterion without pooling")
            scores = self.pooling(scores, bags[0], len(labels))
        return nn.functional.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype))


def _warm_start_loss(criterion: nn.Module) -> nn.Module:
    """Return cross entropy for the batches of a criterion, over the same processes."""
    pooling = getattr(criterion, "pooling", None)
    warm = _CrossEntropy(pooling)
    if not isinstance(criterion, DistributedCriterion):
        return warm
    return criterion.around(warm, *(("scores",) if pooling is None else ("instances", "bag")), "labels", "index")


def _make_optimizer(
    optimizer: Optimizer | Literal["sgd", "adam"], model: nn.Module, lr: float, momentum: float, weight_decay: float
) -> Optimizer:
    """Return the optimizer that was given, or a new one by its name."""
    if isinstance(optimizer, Optimizer):
        return optimizer
    parameters = list(model.parameters())
    if optimizer == "sgd":
        return SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)
    # one kernel for all weights, where all of them support it
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
    return AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=fused)


@contextmanager
def _random_state(model: nn.Module, seed: int | None, rank: int = 0) -> Iterator[None]:
    """Seed the global generators, in each process differently, and restore them at the end; None to leave them."""
    if seed is None:
        yield
        return
    places = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    python, numbers = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=sorted(places)):
            # the generator of the CPU uses only 32 bits of a seed, so that the rank must be mixed in
            torch.manual_seed(int(np.random.SeedSequence([seed, rank]).generate_state(1)[0]) if rank else seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)
