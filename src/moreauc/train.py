r"""The one training loop: any model, any of the losses, any loader of `(inputs, labels, index)` batches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import MultiStepLR

from moreauc._checks import check_count, check_real
from moreauc._judge import Judge, Score
from moreauc._scoring import Evaluation, device_of, instances_for, on_device, predict_scores, scores_of
from moreauc.callbacks import Callback, ProgressBar, TrainState
from moreauc.criteria._late import check_all
from moreauc.data.bag_batches import BagInputs
from moreauc.history import History
from moreauc.optim import PreviousIterate, ProximalPoint
from moreauc.pooling import Pooling

__all__ = ["fit", "predict_scores", "train_step"]

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
) -> History:
    r"""Train `model` by `criterion`, and keep the weights that score best on the validation data.

    Before each epoch `set_epoch(number)` is called on the loader and on its `batch_sampler` and `sampler`, where they
    have it; warm-start epochs count. Where the criterion needs the scores at the previous weights (`needs_previous`), a
    :class:`~moreauc.PreviousIterate` is kept for it. The global random state is the same after the call as before it
    where `seed` is given.

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
        keep_best: whether to end with the weights of the best validation score (the later one of equals) instead of
            the last ones. Ties between a positive and a negative count as lost for this choice, or a model that gives
            all rows one score would look good. The criterion keeps its last state.
        patience: end the run after so many epochs without a better validation score; None to run all.
        seed: seed of dropout and the like; None to go on with the global random state.
        device: where to train; model and criterion are moved there. None to stay where the model is.
        callbacks: hooks, called in this order; see :class:`~moreauc.callbacks.Callback`.
        progress: whether to show a progress bar.

    Returns:
        One row of numbers for each epoch.

    Raises:
        ValueError: for an argument out of range, validation data without both classes or without a region. An error of
            the criterion (NaN scores, say) gets a note that tells where it came up.

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
    judge = None
    if validation is not None:
        judge = Judge(criterion, validation, min_tpr, max_fpr, keep_best=keep_best, patience=patience, score=score)
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

    hooks = [*callbacks, ProgressBar()] if progress else list(callbacks)
    history, state = History(), None
    with _random_state(model, seed):
        try:
            if warm_start_epochs:
                warm = _CrossEntropy(getattr(criterion, "pooling", None))
                state = TrainState(model, warm, new_optimizer(), "warm start", warm_start_epochs, history=history)
                _run(state, train, hooks)
                if state.stop:
                    return history
            state = TrainState(model, criterion, new_optimizer(), "train", epochs, history=history)
            if judge is not None:
                judge.look(state, epoch=-1)
            schedule = _Schedule(state.optimizer, milestones, lr_factor, proximal)
            try:
                _run(state, train, hooks, judge, schedule, epochs_before=warm_start_epochs)
            finally:
                schedule.close()
            if judge is not None:
                judge.finish(state)
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
    inputs, labels, index = batch
    bags: list[Tensor] = []
    name = "previous_scores"
    if isinstance(inputs, BagInputs):
        (inputs, *bags), name = inputs, "previous_instances"
        inputs = instances_for(model, inputs)
    scores = scores_of(model, inputs)
    before: dict[str, Tensor] = {}
    if getattr(criterion, "needs_previous", False):
        if previous is None:
            raise ValueError(f"train_step: previous must be given where the criterion needs {name}, got None")
        before[name] = scores_of(previous, inputs)
    loss: Tensor = criterion(scores, *bags, labels, index, **before)
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.detach()


class _CrossEntropy(nn.Module):
    """Binary cross entropy, called as the criteria are; scores of bags are pooled from the instances of the batch."""

    def __init__(self, pooling: Pooling | None) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(self, scores: Tensor, *others: Tensor) -> Tensor:
        *bags, labels, _ = others
        if bags:
            if self.pooling is None:
                raise ValueError(f"{_OWNER}: warm_start_epochs must be 0 for bags and a criterion without pooling")
            scores = self.pooling(scores, bags[0], len(labels))
        return nn.functional.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype))


class _Schedule:
    """Learning-rate steps, and with each a new reference point where there is one."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], factor: float, proximal: float) -> None:
        self._scheduler = MultiStepLR(optimizer, list(milestones), gamma=factor)
        self._milestones = set(milestones)
        self._pull = ProximalPoint(optimizer, proximal) if proximal > 0.0 else None

    def after_epoch(self, epoch: int) -> None:
        self._scheduler.step()
        if self._pull is not None and epoch + 1 in self._milestones:
            self._pull.restart()

    def close(self) -> None:
        if self._pull is not None:
            self._pull.remove()


def _run(
    state: TrainState,
    train: Iterable[Any],
    hooks: Sequence[Callback],
    judge: Judge | None = None,
    schedule: _Schedule | None = None,
    *,
    epochs_before: int = 0,
) -> None:
    """Run one phase."""
    model, criterion = state.model, state.criterion
    state.steps = len(train) if isinstance(train, Sized) else None
    for hook in hooks:
        hook.on_begin(state)
    with ExitStack() as stack:
        previous: PreviousIterate | None = None
        for epoch in range(state.epochs):
            state.epoch = epoch
            started = time.perf_counter()
            for part in (train, getattr(train, "batch_sampler", None), getattr(train, "sampler", None)):
                set_epoch = getattr(part, "set_epoch", None)
                if set_epoch is not None:
                    set_epoch(epochs_before + epoch)
            model.train()
            criterion.train()
            if previous is None and getattr(criterion, "needs_previous", False):
                previous = PreviousIterate(model, state.optimizer)
                stack.callback(previous.remove)
            row = {"phase": state.phase, "epoch": state.epoch, **_epoch(state, train, hooks, previous)}
            if judge is not None:
                row["score"] = judge.look(state, state.epoch)
            state.history.add(**row, seconds=time.perf_counter() - started)
            if schedule is not None:
                schedule.after_epoch(state.epoch)
            for hook in hooks:
                hook.on_epoch(state)
            if state.stop:
                break


def _epoch(
    state: TrainState, train: Iterable[Any], hooks: Sequence[Callback], previous: PreviousIterate | None
) -> dict[str, float]:
    """Go through the loader once; return the mean loss and the learning rate."""
    place, lr = device_of(state.model), state.optimizer.param_groups[0]["lr"]
    total, state.step = torch.zeros((), device=place), -1
    for step, batch in enumerate(train):
        state.step = step
        try:
            state.loss = train_step(state.model, state.criterion, state.optimizer, on_device(batch, place), previous)
        except ValueError as error:
            error.add_note(f"in {state.phase}, epoch {state.epoch}, step {state.step}, learning rate {lr:g}")
            raise
        total += state.loss
        for hook in hooks:
            hook.on_step(state)
    check_all(state.criterion)  # the epoch's mean is waited for anyway
    if state.step < 0:
        raise ValueError(f"{_OWNER}: train must give at least one batch in each epoch, got none")
    return {"loss": float(total) / (state.step + 1), "lr": lr}


@contextmanager
def _random_state(model: nn.Module, seed: int | None) -> Iterator[None]:
    """Seed the global generators for a while; None to leave them alone."""
    if seed is None:
        yield
        return
    check_count(_OWNER, "seed", seed, minimum=0)
    places = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(places)):
        torch.manual_seed(seed)
        yield
