"""The place of a run in its loader: what its batches depend on, and how to come back to the middle of an epoch.

A loader goes back in one of two ways. Loaders of ours, and a `DataLoader` without workers over a sampler of ours, are
told the position and go there at once. Any other loader starts the epoch again, with all generators as they were at its
beginning, and the batches that were used are passed over: workers then draw what they drew, random augmentations
included, at the cost of reading these batches again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from moreauc.checkpoint._file import CheckpointError
from moreauc.checkpoint._generators import (
    State,
    loader_parts,
    random_states,
    set_random_states,
    undealt,
)
from moreauc.checkpoint._held_labels import held_labels
from moreauc.data._sampled import SampledRows
from moreauc.data.bag_batches import BagBatches, BagSampler
from moreauc.samplers import DistributedBatchSampler
from moreauc.samplers.base import PlannedSampler

# Attributes of loaders, samplers and data sets that batches depend on. The number of workers is none of them.
_DECIDING = (
    "seed",
    "batch_size",
    "drop_last",
    "replacement",
    "num_samples",
    "num_replicas",
    "rank",
    "instances_per_bag",
    "checksum_of_labels",
    "checksum_of_inputs",
)
_POSITION = ("epoch", "step")


class LoaderPlace:
    """Goes through the epochs of a loader, and knows how to go on in the middle of one.

    Args:
        loader: any iterable over batches.

    Attributes:
        epoch: the epoch that the next batch is from.
        step: how many batches of it have been given.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.epoch, self.step = 0, 0
        self._begun: State | None = None  # generators at the beginning of the present epoch
        self._resumed = False
        self._labels = held_labels(loader)  # once: they do not change, and there may be many

    def batches(self, epoch: int) -> Iterator[Any]:
        """Yield the batches of an epoch; after a checkpoint was loaded, those that are left of its epoch."""
        resumed, self._resumed = self._resumed, False
        set_epoch(self.loader, epoch)
        if resumed and epoch == self.epoch and self.step and self._begun is not None:
            rest = self._from_the_middle(self._begun)
        else:
            self.epoch, self.step = epoch, 0
            rest = self._from_the_beginning(resumed)
        for batch in rest:
            self.step += 1  # before it is given: whoever saves while he has it has used it
            yield batch
        self.epoch, self.step, self._begun = epoch + 1, 0, None

    def state_dict(self) -> dict[str, Any]:
        """Return place, generators and what the batches depend on."""
        waiting = self._begun is not None and not self.step  # the epoch has drawn numbers, and given no batch yet
        return {
            "epoch": self.epoch,
            "step": self.step,
            "settings": loader_settings(self.loader),
            "labels": self._labels,
            "random": self._begun if waiting else random_states(self.loader),
            "random_at_epoch": self._begun if self.step else None,
        }

    def check(self, state: dict[str, Any]) -> None:
        """Check that a state is that of a loader with the same batches.

        Raises:
            CheckpointError: if a setting differs, or it lacks what the middle of an epoch needs.
        """
        for name in ("epoch", "step"):
            if type(state[name]) is not int or state[name] < 0:
                raise CheckpointError(f"checkpoint: {name} must be a number of at least 0, got {state[name]!r}")
        sampler = sampler_with_position(self.loader)  # any other loader has to be read to know
        if sampler is not None and state["step"] > len(sampler):
            raise CheckpointError(f"checkpoint: step must be at most {len(sampler)}, got {state['step']}")
        if state["step"] and state["random_at_epoch"] is None:
            raise CheckpointError("checkpoint: random_at_epoch must be there in the middle of an epoch, got None")
        saved, settings = state["settings"], loader_settings(self.loader)
        for name in sorted({*saved, *settings}):
            if saved.get(name) != settings.get(name):
                found = f"{settings.get(name)!r}, got {saved.get(name)!r}"
                raise CheckpointError(f"checkpoint: {name} must be as in this run, {found}: the batches would differ")
        if state["labels"] != self._labels:
            raise CheckpointError(
                "checkpoint: labels of the training set must be those of this run, got others (the checksum of what "
                "the loader holds differs)"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the place and set all generators."""
        self.epoch, self.step, self._begun = state["epoch"], state["step"], state["random_at_epoch"]
        self._resumed = True
        if self._begun is not None:  # if these cannot be set, that is known now, and not when the epoch begins
            set_random_states(self._begun, self.loader)
        set_random_states(state["random"], self.loader)

    def _from_the_beginning(self, resumed: bool) -> Iterator[Any]:
        now = random_states(self.loader)
        if resumed:
            self._wake_workers(now)
        self._begun = now
        return iter(self.loader)

    def _from_the_middle(self, begun: State) -> Iterator[Any]:
        now = random_states(self.loader)
        self._wake_workers(begun)
        set_random_states(begun, self.loader)
        sampler = sampler_with_position(self.loader)
        if sampler is not None:
            sampler.set_position(self.epoch, self.step)
            rest = iter(self.loader)
            sampler.set_position(self.epoch, 0)  # what is left is fixed; who comes next finds whole epochs
        else:
            rest = iter(self.loader)
            passed = sum(1 for _ in islice(rest, self.step))
            if passed < self.step:
                raise CheckpointError(
                    f"checkpoint: the loader must give the {self.step} batches that were used of epoch {self.epoch}, "
                    f"got {passed}"
                )
        set_random_states(now, self.loader)
        return rest

    def _wake_workers(self, begun: State) -> None:
        """Start workers that live through all epochs, as those of the interrupted run did when this epoch began.

        Starting them draws a number, which must not be drawn again here.
        """
        if self.epoch > 0 and getattr(self.loader, "persistent_workers", False):
            iter(self.loader)
            set_epoch(self.loader, self.epoch)  # the workers have been given batches that nobody uses
            set_random_states(begun, self.loader)


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the epoch to a loader, its batch sampler and its sampler, where they have epochs."""
    for part in (loader, getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)):
        tell = getattr(part, "set_epoch", None)
        if tell is not None:
            tell(epoch)


def sampler_with_position(loader: Any) -> PlannedSampler | DistributedBatchSampler | None:
    """Return the sampler that can be sent to the middle of an epoch without a difference to anybody; else None.

    With workers there would be one: another worker would read a batch, and draw other numbers for it.
    """
    if isinstance(loader, SampledRows | BagBatches):
        sampler: Any = loader.sampler
    elif isinstance(loader, DataLoader) and loader.num_workers == 0:
        sampler = loader.batch_sampler
        sampler = sampler.sampler if isinstance(sampler, BagSampler) else sampler
    else:
        return None
    return sampler if isinstance(undealt(sampler), PlannedSampler) else None


def loader_settings(loader: Any) -> dict[str, Any]:
    """Return what the batches of a loader depend on, as far as it can be seen, by name."""
    settings: dict[str, Any] = {}
    for name, part in loader_parts(loader):
        values = {key: getattr(part, key, None) for key in _DECIDING if not isinstance(part, list | tuple)}
        if isinstance(part, PlannedSampler):
            values |= {key: value for key, value in part.state_dict().items() if key not in _POSITION}
            values.pop("rank")  # processes share their checkpoints
        if not isinstance(part, PlannedSampler):
            values["length"] = length_of(part)
        settings |= {f"{name}.{key}": value for key, value in values.items() if isinstance(value, int | str)}
    return settings


def length_of(part: Any) -> int | None:
    """Return the length of a loader, a sampler or a data set; None where it has none."""
    try:
        return len(part)
    except (TypeError, NotImplementedError):  # a loader over data without a length has the method and not the number
        return None
