"""The callback that saves what Lightning does not save of a loss with state."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from moreauc._checks import check_count, check_real
from moreauc._extras import import_extra
from moreauc.contrib._lightning_run import (
    OWNER,
    Run,
    batches,
    check_loader,
    check_strategy,
    submodule,
)
from moreauc.contrib.loader import ResumableLoader
from moreauc.optim import PreviousIterate
from moreauc.train.step import loss_of

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    Callback = import_extra("lightning.pytorch", "lightning").Callback

_log = logging.getLogger(__name__)


class StatefulCriterion(Callback):
    """Saves in Lightning's checkpoints what a loss with state needs besides its tables.

    A run that is resumed with `trainer.fit(..., ckpt_path=...)`, from the end of an epoch or from the middle of one,
    then equals a run without interruption, bit for bit. The callback

    - makes a :class:`~moreauc.PreviousIterate`, if the loss needs one, for :func:`criterion_loss` and
      :func:`previous_iterate`, and a :class:`~moreauc.optim.ProximalPoint` if `proximal` is not 0;
    - saves and restores both, the global random states, and accumulated gradients that no step has used yet.

    Lightning itself saves weights, the tables of the loss, optimizers, schedulers and the position of a
    :class:`~moreauc.contrib.ResumableLoader`. On several processes, with the strategy "ddp", the loss is a
    :class:`~moreauc.distributed.DistributedCriterion` and the batches come from a
    :class:`~moreauc.samplers.DistributedBatchSampler`; random states and gradients of all processes are saved.

    Args:
        model: name of the submodule that `training_step` calls, as in `get_submodule`.
        criterion: name of the submodule that is the loss.
        proximal: weight of the proximal term, at least 0; 0 for none. With one optimizer only.
        restarts: epochs before which the reference point is renewed, such as those at which the learning rate drops.

    Raises:
        ValueError: for an argument out of range and, when `fit` begins, submodules that are not there, a strategy that
            shards the model, several processes without a :class:`~moreauc.distributed.DistributedCriterion` and its
            sampler, and a training loader with one of the library's samplers that is not a
            :class:`~moreauc.contrib.ResumableLoader`; at the first step, a `model` that `training_step` does not call.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(max_epochs=2, logger=False, enable_checkpointing=False, callbacks=[StatefulCriterion()])
    """

    def __init__(
        self,
        *,
        model: str = "model",
        criterion: str = "criterion",
        proximal: float = 0.0,
        restarts: Sequence[int] = (),
    ) -> None:
        for name, value in {"model": model, "criterion": criterion}.items():
            if not isinstance(value, str) or not value:
                raise ValueError(f"{OWNER}: {name} must be the name of a submodule, got {value!r}")
        self.model, self.criterion = model, criterion
        self.proximal = check_real(OWNER, "proximal", proximal, low=0.0)
        self.restarts = [check_count(OWNER, "restarts", epoch) for epoch in restarts]
        self._current: Run | None = None
        self._last: dict[str, Any] = {}  # the state at the end of the last run
        self._loaded: dict[str, Any] = {}  # a state that is to be resumed from

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check what can be known before anything has been restored or moved."""
        if stage == "fit":
            self._release()
            self._last, self._loaded = {}, {}
            submodule(pl_module, "model", self.model)
            check_strategy(trainer, submodule(pl_module, "criterion", self.criterion))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach to the optimizers, and resume from the checkpoint if there is one."""
        check_loader(trainer)
        self._current = Run(trainer, pl_module, self.model, self.criterion, self.proximal, self.restarts)
        loaded, self._loaded = self._loaded, {}
        if loaded:
            self._current.load_state_dict(loaded)
        elif trainer.ckpt_path is not None:
            text = "%s: the checkpoint has no state of it: previous weights and random states begin anew"
            _log.warning(text, OWNER)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Keep previous weights if the loss needs them now; renew the reference point before some epochs."""
        self.run_of(pl_module).follow()
        self.run_of(pl_module).renew(trainer.current_epoch)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Check that the model followed is the one that was called."""
        previous = self.run_of(pl_module).previous
        if previous is not None and previous.unpaired:
            raise ValueError(
                f"{OWNER}: model must name the submodule that training_step calls, got {self.model!r}, which was not "
                "called, or only before previous_iterate was first: its previous scores would have other dropout masks"
            )

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Let a checkpoint that is made now resume with the batch that was not finished."""
        loader, done = trainer.train_dataloader, batches(trainer).current
        if isinstance(loader, ResumableLoader) and done.ready > done.processed and loader.step == done.ready:
            loader.set_position(loader.epoch, done.processed)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove all hooks; a checkpoint made later has the state of this moment."""
        self._last = self.state_dict()
        self._release()

    def state_dict(self) -> dict[str, Any]:
        """Return what Lightning does not save itself; tensors and plain numbers only."""
        return self._last if self._current is None else self._current.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of a checkpoint, for when training starts."""
        self._last = self._loaded = state_dict

    def run_of(self, module: nn.Module) -> Run:
        """Return the present run of `trainer.fit`."""
        if self._current is None or self._current.module is not module:
            raise ValueError(f"{OWNER}: trainer.fit must be under way, for the previous weights to be known")
        return self._current

    def __getstate__(self) -> dict[str, Any]:
        # Hooks stay with the run they belong to; a copy may be made in one process only.
        last = self._last if self._current is None else self._current.state_dict(of_all=False)
        return {**self.__dict__, "_current": None, "_last": last}

    def _release(self) -> None:
        if self._current is not None:
            self._current.remove()
        self._current = None


def criterion_loss(module: LightningModule, batch: Any) -> Tensor:
    """Return the loss of a batch, for `training_step` of a module that trains with :class:`StatefulCriterion`.

    It calls the model, the model at its previous weights where the loss needs them, and the loss, as
    :func:`moreauc.train.train_step` does.

    Args:
        module: the LightningModule, `self` in its methods.
        batch: `(inputs, labels, index)`, with :class:`~moreauc.data.BagInputs` as inputs for bags.

    Raises:
        ValueError: where the trainer has no :class:`StatefulCriterion`.

    Example:
        >>> from lightning.pytorch import LightningModule
        >>> class Mine(LightningModule):  # with self.model and self.criterion
        ...     def training_step(self, batch, batch_idx):
        ...         return criterion_loss(self, batch)
    """
    run = _callback_of(module).run_of(module)
    previous = run.follow()  # before the model is called, so that the call is known
    return loss_of("criterion_loss", run.model, run.criterion, batch, previous)


def previous_iterate(module: LightningModule) -> PreviousIterate:
    """Return the model at its previous weights, for a `training_step` that does without :func:`criterion_loss`.

    Args:
        module: the LightningModule, `self` in its methods.

    Raises:
        ValueError: where the trainer has no :class:`StatefulCriterion`, and where the loss needs no previous scores.
    """
    run = _callback_of(module).run_of(module)
    previous = run.follow()
    if previous is None:
        kind = type(run.criterion).__name__
        raise ValueError(f"previous_iterate: the loss must need previous scores, got {kind}, which does not")
    return previous


def _callback_of(module: LightningModule) -> StatefulCriterion:
    parts = getattr(module._trainer, "callbacks", [])
    found = [part for part in parts if isinstance(part, StatefulCriterion)]
    if not found:
        kind = type(module).__name__
        raise ValueError(f"{OWNER}: callbacks of the Trainer must hold one to train {kind}, got none")
    return found[0]
