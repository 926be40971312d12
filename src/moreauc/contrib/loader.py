"""A loader with a state: the epoch, and how many of its batches have been given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from moreauc._checks import check_count, check_mapping

_OWNER = "ResumableLoader"


class ResumableLoader:
    """A loader whose `state_dict()` holds its position, and which resumes there after `load_state_dict()`.

    For training loops of other libraries. Lightning saves and restores the state of a loader that has one, and calls
    its `set_epoch` (not that of a batch sampler). With Accelerate register it for checkpointing, and do not prepare it.

    Each pass over the loader is one epoch; after a pass that was left early the next one gives its remaining batches.
    `set_epoch` goes to the beginning of an epoch, except once after `load_state_dict` of a state in that epoch. Making
    an iterator leaves the global random state as it was, unlike that of a `DataLoader`.

    Batches prefetched by workers do not count. Random numbers drawn by worker processes differ between epochs and are
    repeated if an epoch is restarted, but not if it is resumed in the middle, nor with `persistent_workers`.

    `epoch` is the current one, and `step` the number of its batches that were given.

    Args:
        loader: one of the library's, such as :class:`~moreauc.data.TensorBatches` or :class:`~moreauc.data.BagBatches`,
            or a `DataLoader` of torch or PyG, with a sampler of :mod:`moreauc.samplers` as `batch_sampler=`.
        seed: seed of worker processes, besides epoch, step and process; that of the sampler by default.

    Example:
        >>> from moreauc.data import TensorBatches
        >>> from moreauc.samplers import PosNegSampler
        >>> y = torch.tensor([0, 1, 0, 1, 0, 0])
        >>> def make():
        ...     sampler = PosNegSampler(y, num_positives=1, num_negatives=1)
        ...     return ResumableLoader(TensorBatches(torch.zeros(6, 1), y, sampler))
        >>> loader, resumed = make(), make()
        >>> for inputs, labels, index in loader:
        ...     if loader.step == 3:
        ...         break
        >>> resumed.load_state_dict(loader.state_dict())
        >>> [index.tolist() for inputs, labels, index in resumed]
        [[1, 2]]
        >>> resumed.epoch, resumed.step
        (1, 0)
    """

    batch_sampler = None  # Lightning expects it of whatever has a sampler

    def __init__(self, loader: Iterable[Any], *, seed: int | None = None) -> None:
        self.loader = loader
        samplers = _positioned(loader)
        self._sampler = samplers[-1]
        seed = getattr(self._sampler, "seed", None) if seed is None else seed
        self.seed = 0 if seed is None else check_count(_OWNER, "seed", seed, minimum=0)
        self.rank, self.world_size = max((_place(sampler) for sampler in samplers), key=lambda place: place[1])
        self.epoch, self.step = int(getattr(self._sampler, "epoch", 0)), int(getattr(self._sampler, "start", 0))
        self._loaded: int | None = None  # the epoch of a state that is to be resumed from

    @property
    def sampler(self) -> ResumableLoader:
        """This object, for loops that call `set_epoch` of a loader's `sampler`."""
        return self

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # an error of Python's own where it has no length

    def __iter__(self) -> Iterator[Any]:
        if self.step >= len(self):
            self.epoch, self.step = self.epoch + 1, 0
        self._loaded = None
        self._sampler.set_position(self.epoch, self.step)
        with torch.random.fork_rng(devices=[]):
            # a DataLoader draws the seed of its workers here; only the CPU's generator is forked, so only that is set
            torch.default_generator.manual_seed(self._seed_of_pass())
            batches = iter(self.loader)
        for batch in batches:
            self.step += 1
            yield batch
        self.epoch, self.step = self.epoch + 1, 0

    def _seed_of_pass(self) -> int:
        """Return a seed that no other pass has, of this process or another."""
        entropy = (self.seed, self.epoch, self.step, self.rank)
        return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)

    @property
    def epochs_done(self) -> int:
        """Epochs whose batches have all been given, for loops to compare with the epochs they want."""
        return self.epoch + int(self.step >= len(self))

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, or stay where a state of it was loaded."""
        number = check_count(_OWNER, "epoch", epoch, minimum=0)
        if number != self._loaded:
            self.epoch, self.step = number, 0
        self._loaded = None

    def set_position(self, epoch: int, step: int) -> None:
        """Go to a step of an epoch: this many of its batches have been given."""
        self._sampler.set_position(epoch, step)
        self.epoch, self.step, self._loaded = int(epoch), int(step), None

    def state_dict(self) -> dict[str, int]:
        """Return epoch and step, and the settings of the sampler if it has them."""
        settings: dict[str, int] = self._sampler.state_dict() if hasattr(self._sampler, "state_dict") else {}
        return {**settings, "epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to the position of a `state_dict()`."""
        check_mapping(_OWNER, "state", state)
        if hasattr(self._sampler, "load_state_dict"):
            self._sampler.load_state_dict(state)
        else:
            place = [check_count(_OWNER, name, state.get(name), minimum=0) for name in ("epoch", "step")]
            self._sampler.set_position(*place)
        self.epoch, self.step = int(state["epoch"]), int(state["step"])
        self._loaded = self.epoch

    def __repr__(self) -> str:
        return f"{_OWNER}({self.loader!r}): epoch {self.epoch}, step {self.step}"


def _place(sampler: object) -> tuple[int, int]:
    """Return the number of the process that a sampler is for, and of how many."""
    return int(getattr(sampler, "rank", 0)), int(getattr(sampler, "world_size", 1))


def _positioned(loader: object) -> list[Any]:
    """Return the samplers of a loader that have a position, from the outermost to the one that holds it."""
    if not hasattr(loader, "__iter__"):
        raise ValueError(f"{_OWNER}: loader must be an iterable over batches, got {type(loader).__name__}")
    for name in ("batch_sampler", "sampler"):
        found: list[Any] = []
        part = getattr(loader, name, None)
        while hasattr(part, "set_position"):
            found.append(part)
            inner = getattr(part, "sampler", None)
            if inner is None or inner is part:
                return found
            part = inner  # BagSampler and DistributedBatchSampler have their position from the sampler they were given
    kind = type(loader).__name__
    raise ValueError(
        f"{_OWNER}: loader must have a sampler with set_position, as those of moreauc.samplers, got {kind}"
    )
