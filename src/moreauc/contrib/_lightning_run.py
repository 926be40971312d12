"""The state of one run of Lightning's `trainer.fit`, and checks of its trainer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from moreauc._description import describe
from moreauc._extras import import_extra
from moreauc.checkpoint import CheckpointError
from moreauc.checkpoint.parts import bare, check_settings
from moreauc.checkpoint.rng import random_states, set_random_states
from moreauc.contrib.loader import ResumableLoader
from moreauc.distributed import DistributedCriterion
from moreauc.optim import PreviousIterate, ProximalPoint

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

OWNER = "StatefulCriterion"
_log = logging.getLogger(__name__)


class Run:
    """The state of the callback from the start of training to its end."""

    def __init__(
        self,
        trainer: Trainer,
        module: LightningModule,
        model: str,
        criterion: str,
        proximal: float,
        restarts: list[int],
    ) -> None:
        self.trainer, self.module = trainer, module
        self.model, self.criterion = module.get_submodule(model), module.get_submodule(criterion)
        self._exchange = self.criterion.exchange if isinstance(self.criterion, DistributedCriterion) else None
        self.restarts = restarts
        self._own = {"proximal": repr(proximal), "restarts": repr(restarts)}
        self._start = describe(bare(self.criterion))
        self.renewed = 0  # the epoch before which the reference point was last renewed
        self.previous: PreviousIterate | None = None
        self.point: ProximalPoint | None = None
        if proximal > 0.0:
            if len(trainer.optimizers) != 1:
                number = len(trainer.optimizers)
                raise ValueError(f"{OWNER}: proximal must be 0 unless there is one optimizer, got {number} optimizers")
            self.point = ProximalPoint(trainer.optimizers[0], proximal)
        self.follow()

    def follow(self) -> PreviousIterate | None:
        """Keep previous weights from now on, if the loss needs them."""
        return self._follow() if getattr(self.criterion, "needs_previous", False) else self.previous

    def _follow(self) -> PreviousIterate:
        if self.previous is None:
            self.previous = PreviousIterate(self.model, self.trainer.optimizers)
        return self.previous

    def renew(self, epoch: int) -> None:
        """Renew the reference point before some epochs, once; called at each batch.

        Lightning has no hook for the start of an epoch if it resumes after the last batch of the one before.
        """
        if self.point is not None and epoch in self.restarts and epoch > self.renewed:
            self.point.restart()
            self.renewed = epoch

    def state_dict(self, *, of_all: bool = True) -> dict[str, Any]:
        """Return what Lightning does not save itself.

        Random states and gradients differ between processes. Lightning writes the state of the first process, which
        gathers those of the others; with `of_all` all processes must make the call.
        """
        own = {"gradients": self._pending_gradients(), "random": random_states()}
        return {
            "previous": None if self.previous is None else self.previous.state_dict(),
            "proximal": None if self.point is None else self.point.state_dict(),
            "renewed": self.renewed,
            "settings": {"start": self._start, "now": describe(bare(self.criterion)), "own": self._own},
            "processes": self._exchange.gather_objects(own) if of_all and self._exchange is not None else [own],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from what :meth:`state_dict` returned, if loss and callback are as they were."""
        self._check_settings(state)
        if state["previous"] is not None:
            self._follow()  # a loss may need them later only, if its gamma is set when the first batch begins
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
            _log.warning(text, OWNER, len(every), size)

    def _check_settings(self, state: dict[str, Any]) -> None:
        saved = state["settings"]
        try:
            check_settings(OWNER, saved["own"], saved["own"], self._own)
            check_settings("criterion", saved["start"], saved["now"], self._start)
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
        progress = batches(self.trainer)
        done, last = progress.current.processed, progress.is_last_batch
        used = done % self.trainer.accumulate_grad_batches == 0 or (last and done == progress.current.ready)
        if self.module.automatic_optimization and used:
            return {}
        named = self.module.named_parameters()
        return {name: parameter.grad.clone() for name, parameter in named if parameter.grad is not None}


def _mean(every: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of the gradients of several processes, as their step would have used it."""
    return {name: sum((other[name] for other in every[1:]), first) / len(every) for name, first in every[0].items()}


def batches(trainer: Trainer) -> Any:
    """Return how many batches of the epoch are ready and processed, and whether it was the last one."""
    return trainer.fit_loop.epoch_loop.batch_progress


def submodule(module: nn.Module, argument: str, name: str) -> nn.Module:
    """Return a submodule by its name."""
    try:
        return module.get_submodule(name)
    except AttributeError as error:
        kind = type(module).__name__
        raise ValueError(f"{OWNER}: {argument} must name a submodule of {kind}, got {name!r}") from error


def check_strategy(trainer: Trainer, criterion: nn.Module) -> None:
    """Refuse strategies that would lose or shard the state of the run."""
    strategies = import_extra("lightning.pytorch.strategies", "lightning")
    kind = type(trainer.strategy).__name__
    if not isinstance(trainer.strategy, strategies.SingleDeviceStrategy | strategies.DDPStrategy):
        raise ValueError(
            f"{OWNER}: strategy must leave the weights of the model whole and in place, as on one device, for "
            f"PreviousIterate to follow them, got {kind}"
        )
    size = criterion.exchange.size if isinstance(criterion, DistributedCriterion) else 1
    if size != trainer.world_size:
        raise ValueError(
            f"{OWNER}: criterion must be a moreauc.distributed.DistributedCriterion of all {trainer.world_size} "
            f"processes, got {type(criterion).__name__} of {size}: each process would have tables of its own, and "
            "checkpoints those of the first. Start the processes by torchrun, and call init_process_group before"
        )


def check_loader(trainer: Trainer) -> None:
    """Refuse loaders of the library whose position would be lost; warn about others."""
    loaders, place = trainer.train_dataloader, (trainer.global_rank, trainer.world_size)
    several = list(loaders.values()) if isinstance(loaders, dict) else loaders
    for loader in several if isinstance(several, list | tuple) else [several]:
        if isinstance(loader, ResumableLoader) and (loader.rank, loader.world_size) != place:
            raise ValueError(
                f"{OWNER}: train_dataloaders must split its batches by a DistributedBatchSampler with rank "
                f"{place[0]} and world_size {place[1]}, got {loader.rank} and {loader.world_size}"
            )
        for name in ("batch_sampler", "sampler"):
            sampler = getattr(loader, name, None)
            if hasattr(sampler, "set_position") and not isinstance(loader, ResumableLoader):
                raise ValueError(
                    f"{OWNER}: train_dataloaders must be ResumableLoader(loader), got {type(loader).__name__} with "
                    f"{type(sampler).__name__}, whose set_epoch and set_position Lightning does not call"
                )
        if not isinstance(loader, ResumableLoader):
            text = "%s: train_dataloaders has a %s, no ResumableLoader: a resumed run will draw other random numbers"
            _log.warning(text, OWNER, type(loader).__name__)
