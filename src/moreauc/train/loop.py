r"""The one training loop: any model, any of the losses, any loader of `(inputs, labels, index)` batches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from moreauc._checks import check_count, check_real
from moreauc._parallel import is_shard, is_sharded
from moreauc.checkpoint._kept import Kept
from moreauc.checkpoint._kept_together import KeptTogether
from moreauc.checkpoint._loader_place import length_of
from moreauc.checkpoint._unkept import Unkept
from moreauc.criteria._base import check_all
from moreauc.distributed import DistributedCriterion
from moreauc.distributed.agreement import check_agreement
from moreauc.distributed.criterion import check_seen, exchange_of
from moreauc.optim import PreviousIterate
from moreauc.train.callbacks import Callback, ProgressBar, TrainState
from moreauc.train.history import History, UntrainedWarning
from moreauc.train.parts import (
    Schedule,
    check_callbacks,
    check_lengths,
    check_samplers,
    check_saving,
    joined_settings,
    loss_of,
    random_state,
    untrained_warned,
    warm_start,
)
from moreauc.train.scoring import (
    Evaluation,
    device_of,
    on_device,
    predict_scores,
)
from moreauc.train.selection import Judge, Score

__all__ = ["UntrainedWarning", "fit", "predict_scores", "train_step"]

_OWNER = "fit"


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
    score: Score | None = None,
    keep_best: bool = True,
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
    r"""Train `model` by `criterion`, and keep the weights that score best on the validation data.

    Before each epoch `set_epoch(number)` is called on the loader and on its `batch_sampler` and `sampler`, where they
    have it; warm-start epochs count. Where the criterion needs the scores at the previous weights (`needs_previous`), a
    :class:`~moreauc.PreviousIterate` is kept for it. The global random state is the same after the call as before it
    where `seed` is given.

    On several processes the model is a `DistributedDataParallel` one and the criterion a
    :class:`~moreauc.distributed.DistributedCriterion`; every process calls this function. Each scores the validation
    data; the score of the first process decides for all. A callback that stops the run in one process stops it in all.
    Dropout masks differ from process to process. The progress bar is that of the first process. Buffers, running
    statistics of batch normalisation say, become those of the first process at the end of each epoch.

    Args:
        model: maps inputs to raw scores of shape `(B,)` or `(B, 1)`. Inputs given as a tuple are passed by position,
            as a dictionary by name.
        criterion: called as `criterion(scores, labels, index)`; with `previous_scores=` where it needs them.
        train: loader of `(inputs, labels, index)` batches: a `DataLoader`, a PyG loader,
            :class:`~moreauc.data.TensorBatches`. `index` are row numbers of the labels the criterion was built with.
            :class:`~moreauc.data.BagBatches` for bags of instances, with a model of instances and a criterion of bags.
        validation: loader of `(inputs, labels, ...)` batches, both classes in it, or
            :class:`~moreauc.data.WholeBags`; None to train without.
        epochs: passes over `train` by `criterion`.
        optimizer: any optimizer of the model's parameters; or "sgd" for SGD with `lr`, `momentum` and `weight_decay`,
            or "adam" for AdamW with `lr` and `weight_decay`, whose steps do not depend on the scale of the loss.
        lr: learning rate, where `optimizer` is a name.
        momentum: momentum of "sgd".
        weight_decay: weight decay, where `optimizer` is a name.
        milestones: epochs after which the learning rate is multiplied by `lr_factor`; None for one third and two
            thirds of `epochs` (20 and 40 of 60, as in the paper), `()` for never.
        lr_factor: that factor.
        warm_start_epochs: epochs of cross entropy before, at a constant learning rate (the paper starts from such a
            model). They end with the last weights, not the best; an optimizer given by name starts anew after them.
        proximal: weight of the pull towards a reference point that is renewed at each milestone, as PESG does for AUC-M
            (see :class:`~moreauc.optim.ProximalPoint`).
        min_tpr: region of the validation score; None for the criterion's own `min_tpr`.
        max_fpr: as `min_tpr`.
        score: what the validation data are judged by instead of TPAUC, higher being better: called with all scores
            `(n,)` or `(n, columns)` and all labels, in their order, on the CPU.
        keep_best: whether to end with the weights of the best validation score instead of the last ones. Of epochs
            with one TPAUC the best is that with the highest TPAUC half way to the whole square, then AUC, then the
            widest gap between classes that are wholly in order, then the earliest (see
            :class:`~moreauc.train.history.History`). The criterion keeps its last state. Where the best are the weights
            before the first epoch there is an :class:`UntrainedWarning`.
        patience: end the run after so many epochs without a better validation score (TPAUC, where it is equal that of
            the wider regions; a wider gap is no better score); None to run all.
        seed: seed of dropout and the like; None to go on with the global random state.
        device: where to train; model and criterion are moved there. None to stay where the model is.
        callbacks: hooks, called in this order; see :class:`~moreauc.train.callbacks.Callback`.
        progress: whether to show a progress bar.
        checkpoint: folder to save the run in, so that the same call goes on where it was interrupted, with the same
            result to the last bit; after SIGTERM or SIGINT the step is finished and the run saved. None for none. See
            :mod:`moreauc.checkpoint` and docs/checkpoints.md.
        every: steps between two saves, besides those at the end of each epoch; None for these only.
        resume: whether to go on from a checkpoint that is there; if not, there must be none.
        settings: what else must be the same in a run that goes on, by name; see :class:`~moreauc.checkpoint.RunState`.

    Returns:
        One row of numbers for each epoch.

    Raises:
        ValueError: for an argument out of range, validation data without both classes or without a region. An error of
            the criterion (NaN scores, say) gets a note that tells where it came up.
        CheckpointError: a `ValueError`, for a checkpoint that is damaged or of another run, and for a folder in which
            another process saves; nothing has changed, unless the loader gives fewer batches than it gave.
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
    check_real(_OWNER, "proximal", proximal, low=0.0)
    if patience is not None:
        check_count(_OWNER, "patience", patience)
    if patience is not None and validation is None:
        raise ValueError(f"{_OWNER}: patience must be None without validation, got {patience}")
    if milestones is None:
        milestones = sorted({epochs // 3, 2 * epochs // 3} - {0})
    for milestone in milestones:
        check_count(_OWNER, "milestones", milestone)
    check_real(_OWNER, "lr_factor", lr_factor, low=0.0, low_open=True)
    if not isinstance(optimizer, Optimizer):
        if optimizer not in ("sgd", "adam"):
            raise ValueError(f"{_OWNER}: optimizer must be an optimizer, 'sgd' or 'adam', got {optimizer!r}")
        check_real(_OWNER, "lr", lr, low=0.0, low_open=True)
        check_real(_OWNER, "momentum", momentum, low=0.0, high=1.0, high_open=True)
        check_real(_OWNER, "weight_decay", weight_decay, low=0.0)
    check_saving(train, checkpoint, every, resume)
    check_callbacks(callbacks)
    exchange = exchange_of(_OWNER, model, criterion)
    if isinstance(criterion, DistributedCriterion):  # which may have changed since it was made
        check_agreement(criterion.exchange, criterion.criterion)
        check_samplers(criterion.exchange, train)
    judge = None
    if validation is not None:
        options: dict[str, Any] = {"keep_best": keep_best, "patience": patience, "score": score, "exchange": exchange}
        judge = Judge(criterion, validation, min_tpr, max_fpr, **options)
        if exchange is not None and is_sharded(model):  # which all processes call together
            check_lengths(exchange, "validation", validation)
    if device is not None:
        model.to(device)
        criterion.to(device)

    def new_optimizer() -> Optimizer:
        if isinstance(optimizer, Optimizer):
            return optimizer
        if optimizer == "adam":
            parameters = list(model.parameters())
            # one kernel for all weights, where all of them can have it
            fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
            return AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=fused)
        return SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)

    rank = 0 if exchange is None else exchange.rank
    hooks = [*callbacks, ProgressBar()] if progress and rank == 0 else list(callbacks)
    history, state, keeper = History(), None, Unkept(train)
    if checkpoint is not None:
        compared: dict[str, Any] = {"validation": False} if judge is None else judge.settings
        compared |= {"epochs": epochs, "milestones": list(milestones), "lr_factor": lr_factor, "proximal": proximal}
        compared |= {"warm_start_epochs": warm_start_epochs, "patience": patience, "seed": seed}
        if not isinstance(optimizer, Optimizer):
            compared |= {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        kept = Kept if exchange is None or exchange.size == 1 else partial(KeptTogether, exchange=exchange)
        keeper = kept(
            model,
            criterion,
            train,
            new_optimizer(),
            folder=checkpoint,
            every=every,
            resume=resume,
            judge=judge,
            history=history,
            hooks=hooks,
            settings=joined_settings(settings, compared),
        )
    with untrained_warned(history, rank, warm_start_epochs), keeper, random_state(model, seed, rank):
        try:
            if keeper.done():
                return history
            if warm_start_epochs and not keeper.resumes("train"):
                warm = warm_start(criterion)
                state = TrainState(model, warm, new_optimizer(), "warm start", warm_start_epochs, history=history)
                _run(state, train, hooks, keeper)
                if state.stop:
                    keeper.finish()
                    return history
            state = TrainState(model, criterion, new_optimizer(), "train", epochs, history=history)
            if judge is not None and not keeper.resumes("train"):
                judge.look(state, epoch=-1)
            schedule = Schedule(state.optimizer, milestones, lr_factor, proximal)
            try:
                _run(state, train, hooks, keeper, judge, schedule, epochs_before=warm_start_epochs)
            finally:
                schedule.close()
            if judge is not None:
                judge.finish(state)
            keeper.finish()
        finally:
            for hook in hooks:
                hook.on_end(state)
    return history


def train_step(
    model: nn.Module,
    criterion: nn.Module,
    optimizer: Optimizer,
    batch: Any,
    previous: PreviousIterate | None = None,
) -> Tensor:
    """Do one step: scores, loss, backward, optimizer; return the loss without gradient.

    Args:
        model: maps inputs to raw scores, shape `(B,)` or `(B, 1)`.
        criterion: called as `criterion(scores, labels, index)`.
        optimizer: moves the weights.
        batch: `(inputs, labels, index)`, on the model's device. With :class:`~moreauc.data.BagInputs` as inputs the
            model gets the instances, and the criterion is called as `criterion(outputs, bag, labels, index)`.
        previous: the model at its previous weights; needed where the criterion's `needs_previous` is True.

    Example:
        >>> from moreauc import TPAUCLoss
        >>> model, labels = nn.Linear(2, 1), torch.tensor([1, 0, 0, 1])
        >>> optimizer = SGD(model.parameters(), lr=0.1)
        >>> batch = (torch.randn(4, 2), labels, torch.arange(4))
        >>> train_step(model, TPAUCLoss(labels, min_tpr=0.5, max_fpr=0.5), optimizer, batch).shape
        torch.Size([])
    """
    check_seen("train_step", model, criterion)
    loss = loss_of("train_step", model, criterion, batch, previous)
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.detach()


def _run(
    state: TrainState,
    train: Iterable[Any],
    hooks: Sequence[Callback],
    keeper: Unkept,
    judge: Judge | None = None,
    schedule: Schedule | None = None,
    *,
    epochs_before: int = 0,
) -> None:
    """Run one phase."""
    model, criterion = state.model, state.criterion
    state.steps = length_of(train)
    exchange = criterion.exchange if isinstance(criterion, DistributedCriterion) else None
    if exchange is not None:
        check_lengths(exchange, "train", train)
    for hook in hooks:
        hook.on_begin(state)
    with ExitStack() as stack:
        keeper.begin(state, judge, schedule, epochs_before)

        def follow() -> PreviousIterate:
            previous = PreviousIterate(model, state.optimizer)
            stack.callback(previous.remove)
            return previous

        if keeper.had_previous:
            keeper.previous = follow()
        keeper.restore()
        for epoch in range(keeper.first, state.epochs):
            state.epoch = epoch
            keeper.begin_epoch(epochs_before + epoch, device_of(model), state.optimizer.param_groups[0]["lr"])
            model.train()
            criterion.train()
            if keeper.previous is None and getattr(criterion, "needs_previous", False):
                keeper.previous = follow()
            row = {"phase": state.phase, "epoch": state.epoch, **_epoch(state, hooks, keeper)}
            if exchange is not None:  # batch normalisation has seen other rows in each process
                exchange.give_from_first([buffer for buffer in model.buffers() if not is_shard(buffer)])
            if judge is not None:
                row |= judge.look(state, state.epoch)
            state.history.add(**row, seconds=time.perf_counter() - keeper.started)
            if schedule is not None:
                schedule.after_epoch(state.epoch)
            for hook in hooks:
                hook.on_epoch(state)
            if exchange is not None:
                state.stop = exchange.anyone(state.stop, "the end of an epoch")
            keeper.after_epoch()
            if state.stop:
                break


def _epoch(state: TrainState, hooks: Sequence[Callback], keeper: Unkept) -> dict[str, float]:
    """Go through the loader once; return the mean loss and the learning rate."""
    place, lr = device_of(state.model), keeper.lr
    state.step = keeper.steps_before - 1
    for step, batch in keeper.batches():
        state.step = step
        try:
            here = on_device(batch, place)
            state.loss = train_step(state.model, state.criterion, state.optimizer, here, keeper.previous)
        except ValueError as error:
            error.add_note(f"in {state.phase}, epoch {state.epoch}, step {state.step}, learning rate {lr:g}")
            raise
        keeper.total += state.loss
        for hook in hooks:
            hook.on_step(state)
        keeper.after_step()
    check_all(state.criterion)  # the epoch's mean is waited for anyway
    if state.step < 0:
        raise ValueError(f"{_OWNER}: train must give at least one batch in each epoch, got none")
    return {"loss": float(keeper.total) / (state.step + 1), "lr": float(lr)}
