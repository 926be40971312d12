"""The position of a run in its loader, and how to return to the middle of an epoch.

Loaders of the library, and a `DataLoader` without workers over a sampler of the library, are set to the position
directly. Any other loader starts the epoch again, with all generators as at its beginning, and consumed batches are
skipped: workers then draw the same numbers again, at the cost of reading these batches twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from moreauc._checks import shown
from moreauc._settings import checksum, settings_of
from moreauc.checkpoint.file import CheckpointError
from moreauc.checkpoint.rng import State, loader_parts, random_states, set_random_states, whole_sampler
from moreauc.data.bag_batches import BagBatches, BagSampler
from moreauc.data.batches import EpochBatches, IndexedDataset, SampledRows, length_of, set_epoch
from moreauc.samplers import DistributedBatchSampler
from moreauc.samplers.base import PlannedSampler

# Attributes of loaders, samplers and data sets on which the batches depend. The number of workers is not one of them.
_SETTINGS = (
    *("seed", "batch_size", "drop_last", "replacement", "num_samples", "num_replicas", "rank", "instances_per_bag"),
    *("checksum_of_labels", "checksum_of_inputs"),
)
_POSITION = ("epoch", "step")
_LABELS = ("labels", "_labels", "targets")  # attributes of loaders and data sets


class LoaderPosition(EpochBatches):
    """The position of a run in its loader, which can be saved, and resumed from in the middle of an epoch.

    Attributes:
        on_error: called when the loader raises an error, before the error is passed on.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        super().__init__(loader)
        self.on_error: Callable[[], None] | None = None
        self._begun: State | None = None  # generators at the beginning of the current epoch
        self._resumed = False

    @cached_property
    def _labels(self) -> dict[str, str]:
        return held_labels(self.loader)  # computed once: there may be many labels

    def batches(self, epoch: int) -> Iterator[Any]:
        """Yield the batches of an epoch; after a checkpoint was loaded, those left in its epoch."""
        resumed, self._resumed = self._resumed, False
        try:
            set_epoch(self.loader, epoch)
            if resumed and epoch == self.epoch and self.step and self._begun is not None:
                rest = self._from_the_middle(self._begun)
            else:
                self.epoch, self.step = epoch, 0
                rest = self._from_the_beginning(resumed)
            for batch in rest:
                self.step += 1
                yield batch
        except Exception:
            if self.on_error is not None:
                self.on_error()
            raise
        self.epoch, self.step, self._begun = epoch + 1, 0, None

    def settings(self) -> dict[str, int | str]:
        """Return what the batches depend on, by name: what samplers answer, else attributes of known names."""
        found: dict[str, object] = {}
        for name, part in loader_parts(self.loader):
            if isinstance(part, PlannedSampler):
                values = settings_of(part)
                values.pop("rank", None)  # processes share their checkpoints
            else:
                values = {key: getattr(part, key, None) for key in _SETTINGS if not isinstance(part, list | tuple)}
                values["length"] = length_of(part)
            found |= {f"{name}.{key}": value for key, value in values.items()}
        return {name: value for name, value in found.items() if isinstance(value, int | str)}

    def state_dict(self) -> dict[str, object]:
        """Return the position, the states of the generators, and what the batches depend on."""
        waiting = self._begun is not None and not self.step  # the epoch has drawn random numbers but yielded no batch
        return {
            "epoch": self.epoch,
            "step": self.step,
            "settings": self.settings(),
            "labels": self._labels,
            "random": self._begun if waiting else random_states(self.loader),
            "random_at_epoch": self._begun if self.step else None,
        }

    def check(self, state: dict[str, Any]) -> None:
        """Check that a state is that of a loader with the same batches."""
        for name in _POSITION:
            if type(state[name]) is not int or state[name] < 0:
                raise CheckpointError(f"checkpoint has {name} {state[name]!r}, which must be a number of at least 0")
        sampler = sampler_with_position(self.loader)  # the length of any other loader is not known
        if sampler is not None and state["step"] > len(sampler):
            raise CheckpointError(f"checkpoint has step {state['step']}, this run has at most {len(sampler)}")
        if state["step"] and state["random_at_epoch"] is None:
            raise CheckpointError("checkpoint has no random_at_epoch, which the middle of an epoch needs")
        saved, settings = state["settings"], self.settings()
        for name in sorted({*saved, *settings}):
            if saved.get(name) != settings.get(name):
                found = f"{name} {saved.get(name)!r}, this run has {settings.get(name)!r}"
                raise CheckpointError(f"checkpoint has {found}: the batches would differ")
        if state["labels"] != self._labels:
            raise CheckpointError("checkpoint has other labels in the loader than this run (their checksums differ)")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the position and set all generators."""
        self.epoch, self.step, self._begun = state["epoch"], state["step"], state["random_at_epoch"]
        self._resumed = True
        if self._begun is not None:  # if these cannot be set, fail now rather than when the epoch begins
            set_random_states(self._begun, self.loader)
        set_random_states(state["random"], self.loader)

    def _from_the_beginning(self, resumed: bool) -> Iterator[Any]:
        now = random_states(self.loader)
        if resumed:
            self._start_workers(now)
        self._begun = now
        return iter(self.loader)

    def _from_the_middle(self, begun: State) -> Iterator[Any]:
        now = random_states(self.loader)
        self._start_workers(begun)
        set_random_states(begun, self.loader)
        sampler = sampler_with_position(self.loader)
        if sampler is not None:
            sampler.set_position(self.epoch, self.step)
            rest = iter(self.loader)
            sampler.set_position(self.epoch, 0)  # the iterator keeps its position; the next one starts a whole epoch
        else:
            rest = iter(self.loader)
            skipped = sum(1 for _ in islice(rest, self.step))
            if skipped < self.step:
                raise CheckpointError(
                    f"checkpoint has step {self.step} in epoch {self.epoch}, and the loader gives {skipped} batches"
                )
        set_random_states(now, self.loader)
        return rest

    def _start_workers(self, begun: State) -> None:
        """Start persistent workers, which the interrupted run had when this epoch began; this draws a number."""
        if self.epoch > 0 and getattr(self.loader, "persistent_workers", False):
            iter(self.loader)
            set_epoch(self.loader, self.epoch)  # the workers have been assigned batches that are not used
            set_random_states(begun, self.loader)


def check_loader(loader: Any, owner: str, name: str) -> None:
    """Check that a loader can be iterated over in every epoch, and again in a resumed run."""
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise ValueError(f"{owner}: {name} must be an iterable over batches, got {shown(loader)}")
    # Only iterators are iterated over here: a DataLoader would start its workers and draw a number.
    if hasattr(loader, "__next__") and iter(loader) is loader:
        allowed = "an iterable that each epoch can go through anew"
        raise ValueError(f"{owner}: {name} must be {allowed}, got {shown(loader)}, which ends with the first pass")


def sampler_with_position(loader: Any) -> PlannedSampler[Any] | DistributedBatchSampler | None:
    """Return the sampler of a loader that can be set to the middle of an epoch; None for any other loader.

    With workers it cannot: another worker would read a batch, and draw other numbers for it.
    """
    if isinstance(loader, SampledRows | BagBatches):
        sampler: Any = loader.sampler
    elif isinstance(loader, DataLoader) and loader.num_workers == 0:
        sampler = loader.batch_sampler
        sampler = sampler.sampler if isinstance(sampler, BagSampler) else sampler
    else:
        return None
    return sampler if isinstance(whole_sampler(sampler), PlannedSampler) else None


def held_labels(loader: object) -> dict[str, str]:
    """Return a checksum for each part of a loader that holds labels in memory, by the part's name.

    No item is read: labels that only come with the items stay unknown.

    Example:
        >>> import torch
        >>> first, second = (held_labels(TensorDataset(torch.zeros(2), torch.tensor(y))) for y in ([0, 1], [1, 0]))
        >>> list(first), first == second
        (['loader.labels'], False)
    """
    labels = {name: _labels_of(part) for name, part in loader_parts(loader)}
    return {f"{name}.labels": checksum([values.double()]) for name, values in labels.items() if values is not None}


def _labels_of(part: object) -> Tensor | None:
    attributes = getattr(part, "__dict__", {})
    if isinstance(part, IndexedDataset) and attributes["_paired"]:
        return None  # its cached labels are not a setting
    values = [attributes.get(name) for name in _LABELS]
    if isinstance(part, TensorDataset):
        values.append(part.tensors[-1])
    for value in values:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, np.ndarray) or (isinstance(value, list) and value and isinstance(value[0], int | float)):
            return torch.as_tensor(np.asarray(value, dtype=np.float64))
    return None
