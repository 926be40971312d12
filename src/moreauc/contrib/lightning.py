"""Training with Lightning, with complete state in its checkpoints. Needs the extra `lightning`.

The tables of a loss are buffers of a submodule, which Lightning saves with the weights. :class:`StatefulCriterion`
saves the rest; give `trainer.fit` a :class:`~moreauc.contrib.ResumableLoader`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from moreauc._checks import check_count, check_real
from moreauc._settings import Texts, texts_of
from moreauc._system import import_extra
from moreauc.checkpoint import CheckpointError
from moreauc.checkpoint.parts import bare, check_settings
from moreauc.checkpoint.rng import random_states, set_random_states
from moreauc.contrib.loader import ResumableLoader
from moreauc.distributed import DistributedCriterion
from moreauc.optim import PreviousIterate, ProximalPoint
from moreauc.train.loop import loss_of

__all__ = ["ResumableLoader", "StatefulCriterion", "criterion_loss", "previous_iterate"]

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    _lightning = import_extra("lightning.pytorch", "lightning")
    Callback, LightningModule = _lightning.Callback, _lightning.LightningModule

_OWNER = "StatefulCriterion"
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
        restarts: epochs before which the reference point is updated, such as those at which the learning rate drops.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(max_epochs=2, logger=False, enable_checkpointing=False, callbacks=[StatefulCriterion()])
    """

    def __init__(
        self, *, model: str = "model", criterion: str = "criterion", proximal: float = 0.0, restarts: Sequence[int] = ()
    ) -> None:
        for name, value in {"model": model, "criterion": criterion}.items():
            if not isinstance(value, str) or not value:
                raise ValueError(f"{_OWNER}: {name} must be the name of a submodule, got {value!r}")
        self.model, self.criterion = model, criterion
        self.proximal = check_real(_OWNER, "proximal", proximal, low=0.0)
        self.restarts = [check_count(_OWNER, "restarts", epoch) for epoch in restarts]
        self._current: _Run | None = None
        self._last: dict[str, object] = {}  # the state at the end of the last run
        self._loaded: dict[str, object] = {}  # a state that is to be resumed from

    def settings(self) -> dict[str, object]:
        """Return what must be the same in a resumed run."""
        return {"proximal": self.proximal, "restarts": self.restarts}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check what can be known before anything has been restored or moved."""
        if stage == "fit":
            self._release()
            self._last, self._loaded = {}, {}
            _submodule(pl_module, "model", self.model)
            _check_strategy(trainer, _submodule(pl_module, "criterion", self.criterion))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach to the optimizers, and resume from the checkpoint if there is one."""
        _check_loader(trainer)
        self._current = _Run(trainer, pl_module, self)
        loaded, self._loaded = self._loaded, {}
        if loaded:
            self._current.load_state_dict(loaded)
        elif trainer.ckpt_path is not None:
            text = "%s: the checkpoint has no state of it: previous weights and random states begin anew"
            _log.warning(text, _OWNER)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Keep previous weights if the loss needs them now; renew the reference point before some epochs."""
        self.run_of(pl_module).follow()
        self.run_of(pl_module).renew(trainer.current_epoch)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Let a checkpoint that is made now resume with the batch that was not finished."""
        loader, done = trainer.train_dataloader, _batches(trainer).current
        if isinstance(loader, ResumableLoader) and done.ready > done.processed and loader.step == done.ready:
            loader.set_position(loader.epoch, done.processed)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove all hooks; a checkpoint made later has the state of this moment."""
        self._last = self.state_dict()
        self._release()

    def state_dict(self) -> dict[str, object]:
        """Return what Lightning does not save itself; tensors and plain numbers only."""
        return self._last if self._current is None else self._current.state_dict()

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Take the state of a checkpoint, for when training starts."""
        self._last = self._loaded = state_dict

    def run_of(self, module: nn.Module) -> _Run:
        """Return the current run of `trainer.fit`."""
        if self._current is None or self._current.module is not module:
            raise ValueError(f"{_OWNER}: trainer.fit must be under way, for the previous weights to be known")
        return self._current

    def __getstate__(self) -> dict[str, object]:
        # Hooks stay with the run they belong to; a copy may be made in one process only.
        last = self._last if self._current is None else self._current.state_dict(of_all=False)
        return {**self.__dict__, "_current": None, "_last": last}

    def _release(self) -> None:
        if self._current is not None:
            self._current.remove()
        self._current = None


def criterion_loss(module: LightningModule, batch: object) -> Tensor:
    """Return the loss of a batch, for `training_step` of a module that trains with :class:`StatefulCriterion`.

    It does as :func:`moreauc.train.train_step` does, without the step of the optimizer. `module` is the
    LightningModule, `self` in its methods, and `batch` is `(inputs, labels, index)`.

    Example:
        >>> from lightning.pytorch import LightningModule
        >>> class Mine(LightningModule):  # with self.model and self.criterion
        ...     def training_step(self, batch, batch_idx):
        ...         return criterion_loss(self, batch)
    """
    run = _callback_of(module).run_of(module)
    previous = run.follow()  # before the model is called, so that this forward is recorded
    return loss_of("criterion_loss", run.model, run.criterion, batch, previous)


def previous_iterate(module: LightningModule) -> PreviousIterate:
    """Return the model at its previous weights, for a `training_step` that does not use :func:`criterion_loss`.

    `module` is the LightningModule, `self` in its methods.
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
        raise ValueError(f"{_OWNER}: callbacks of the Trainer must hold one to train {kind}, got none")
    return found[0]


class _Run:
    """The state of the callback from the start of training to its end."""

    def __init__(self, trainer: Trainer, module: LightningModule, callback: StatefulCriterion) -> None:
        self.trainer, self.module, self.callback = trainer, module, callback
        self.model, self.criterion = module.get_submodule(callback.model), module.get_submodule(callback.criterion)
        self._exchange = self.criterion.exchange if isinstance(self.criterion, DistributedCriterion) else None
        self._start = self.settings()
        self.renewed = 0  # the epoch before which the reference point was last renewed
        self.previous: PreviousIterate | None = None
        self.point: ProximalPoint | None = None
        if callback.proximal > 0.0:
            if len(trainer.optimizers) != 1:
                number = len(trainer.optimizers)
                raise ValueError(f"{_OWNER}: proximal must be 0 unless there is one optimizer, got {number} optimizers")
            self.point = ProximalPoint(trainer.optimizers[0], callback.proximal)
        self.follow()

    def settings(self) -> dict[str, Texts]:
        """Return what must be the same in a resumed run."""
        return {_OWNER: texts_of(self.callback), "criterion": texts_of(bare(self.criterion))}

    def follow(self, *, always: bool = False) -> PreviousIterate | None:
        """Keep previous weights from now on, if the loss needs them."""
        if self.previous is None and (always or getattr(self.criterion, "needs_previous", False)):
            self.previous = PreviousIterate(self.model, self.trainer.optimizers)
        return self.previous

    def renew(self, epoch: int) -> None:
        """Renew the reference point before some epochs, once; called at each batch.

        Lightning has no hook for the start of an epoch if it resumes after the last batch of the one before.
        """
        if self.point is not None and epoch in self.callback.restarts and epoch > self.renewed:
            self.point.restart()
            self.renewed = epoch

    def state_dict(self, *, of_all: bool = True) -> dict[str, object]:
        """Return what Lightning does not save itself.

        Random states and gradients differ between processes. Lightning writes the state of the first process, which
        gathers those of the others; with `of_all` all processes must make the call.
        """
        own = {"gradients": self._pending_gradients(), "random": random_states()}
        return {
            "previous": None if self.previous is None else self.previous.state_dict(),
            "proximal": None if self.point is None else self.point.state_dict(),
            "renewed": self.renewed,
            "settings": {"start": self._start, "now": self.settings()},
            "processes": self._exchange.gather_objects(own) if of_all and self._exchange is not None else [own],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from what :meth:`state_dict` returned, if loss and callback are as they were."""
        self._check_settings(state)
        if state["previous"] is not None:
            self.follow(always=True)  # gamma may be set after loading, when the first batch begins
        for name, part in {"previous": self.previous, "proximal": self.point}.items():
            if part is not None and state[name] is not None:
                part.load_state_dict(state[name])
        self.renewed = state["renewed"]
        every, rank, size = state["processes"], 0, 1
        if self._exchange is not None:
            rank, size = self._exchange.rank, self._exchange.size
        gradients = every[rank]["gradients"] if len(every) == size else _mean([own["gradients"] for own in every])
        for name, gradient in gradients.items():
            parameter = self.module.get_parameter(name)
            parameter.grad = gradient.to(parameter.device, parameter.dtype)
        if len(every) == size:
            set_random_states(every[rank]["random"])
        else:
            text = "%s: the checkpoint is of %d processes, there are %d: what is drawn at random will be different"
            _log.warning(text, _OWNER, len(every), size)

    def _check_settings(self, state: dict[str, Any]) -> None:
        saved = state["settings"]
        try:
            for part, present in self._start.items():
                check_settings(part, saved["start"][part], saved["now"][part], present)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; a run with other settings begins anew, without ckpt_path") from error
        self._start = saved["start"]

    def remove(self) -> None:
        """Remove all hooks."""
        for part in (self.previous, self.point):
            if part is not None:
                part.remove()

    def _pending_gradients(self) -> dict[str, Tensor]:
        """Return gradients that no step has used yet; with manual optimization all, since that is not known."""
        progress = _batches(self.trainer)
        done, last = progress.current.processed, progress.is_last_batch
        used = done % self.trainer.accumulate_grad_batches == 0 or (last and done == progress.current.ready)
        if self.module.automatic_optimization and used:
            return {}
        named = self.module.named_parameters()
        return {name: parameter.grad.clone() for name, parameter in named if parameter.grad is not None}


def _mean(every: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of the gradients of several processes, as their step would have used it."""
    return {name: sum((other[name] for other in every[1:]), first) / len(every) for name, first in every[0].items()}


def _batches(trainer: Trainer) -> Any:
    """Return how many batches of the epoch are ready and processed, and whether it was the last one."""
    return trainer.fit_loop.epoch_loop.batch_progress


def _submodule(module: nn.Module, argument: str, name: str) -> nn.Module:
    """Return a submodule by its name."""
    try:
        return module.get_submodule(name)
    except AttributeError as error:
        kind = type(module).__name__
        raise ValueError(f"{_OWNER}: {argument} must name a submodule of {kind}, got {name!r}") from error


def _check_strategy(trainer: Trainer, criterion: nn.Module) -> None:
    """Refuse strategies that would lose or shard the state of the run."""
    strategies = import_extra("lightning.pytorch.strategies", "lightning")
    kind = type(trainer.strategy).__name__
    if not isinstance(trainer.strategy, strategies.SingleDeviceStrategy | strategies.DDPStrategy):
        raise ValueError(
            f"{_OWNER}: strategy must leave the weights of the model whole and in place, as on one device, for "
            f"PreviousIterate to follow them, got {kind}"
        )
    size = criterion.exchange.size if isinstance(criterion, DistributedCriterion) else 1
    if size != trainer.world_size:
        raise ValueError(
            f"{_OWNER}: criterion must be a moreauc.distributed.DistributedCriterion of all {trainer.world_size} "
            f"processes, got {type(criterion).__name__} of {size}: each process would have tables of its own, and "
            "checkpoints those of the first. Start the processes by torchrun, and call init_process_group before"
        )


def _check_loader(trainer: Trainer) -> None:
    """Refuse loaders of the library whose position would be lost; warn about others."""
    loaders, place = trainer.train_dataloader, (trainer.global_rank, trainer.world_size)
    several = list(loaders.values()) if isinstance(loaders, dict) else loaders
    for loader in several if isinstance(several, list | tuple) else [several]:
        if isinstance(loader, ResumableLoader) and (loader.rank, loader.world_size) != place:
            raise ValueError(
                f"{_OWNER}: train_dataloaders must split its batches by a DistributedBatchSampler with rank "
                f"{place[0]} and world_size {place[1]}, got {loader.rank} and {loader.world_size}"
            )
        for name in ("batch_sampler", "sampler"):
            sampler = getattr(loader, name, None)
            if hasattr(sampler, "set_position") and not isinstance(loader, ResumableLoader):
                raise ValueError(
                    f"{_OWNER}: train_dataloaders must be ResumableLoader(loader), got {type(loader).__name__} with "
                    f"{type(sampler).__name__}, whose set_epoch and set_position Lightning does not call"
                )
        if not isinstance(loader, ResumableLoader):
            text = "%s: train_dataloaders has a %s, no ResumableLoader: a resumed run will draw other random numbers"
            _log.warning(text, _OWNER, type(loader).__name__)
