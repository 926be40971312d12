"""A loader with a state: the epoch, and how many of its batches have been given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from moreauc._checks import check_count

_OWNER = "ResumableLoader"


class ResumableLoader:
    """A loader whose `state_dict()` tells where it is, and which goes on from there after `load_state_dict()`.

    For training loops of other libraries. Lightning saves and restores the state of a loader that has one, and tells it
    the epoch (it does not tell a batch sampler). With Accelerate register it for checkpointing, and do not let it be
    prepared.

    A pass ends with the epoch, the next one begins the next epoch. A pass that follows one that was left in the middle
    gives the rest of it; `set_epoch` goes to the beginning of an epoch, except once after `load_state_dict` of a state
    in that epoch. The epoch is looked up when the first batch is asked for, not at `iter()`, since some loops make
    their iterator before they tell the epoch. Making an iterator leaves the global random state as it was, which a
    `DataLoader` does not: resumed runs make one more.

    Batches that workers have fetched ahead do not count. Random numbers drawn by worker processes are not resumed in
    the middle of an epoch; those of :class:`~moreauc.data.SampledBags` depend on epoch and step only and are.

    Args:
        loader: one of the library's, as :class:`~moreauc.data.TensorBatches` and :class:`~moreauc.data.BagBatches`, or
            a `DataLoader` of torch or PyG, with a sampler that has `set_position(epoch, step)`: any of
            :mod:`moreauc.samplers`, as `batch_sampler=` of a `DataLoader`.

    Attributes:
        loader: as given.
        epoch: the present epoch.
        step: batches of it that have been given.

    Raises:
        ValueError: for a loader without such a sampler.

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
        [[1, 5]]
        >>> resumed.epoch, resumed.step
        (1, 0)
    """

    batch_sampler = None  # Lightning expects it of whatever has a sampler

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self._sampler = _positioned(loader)
        self.epoch, self.step = int(getattr(self._sampler, "epoch", 0)), int(getattr(self._sampler, "start", 0))
        self._loaded: int | None = None  # the epoch of a state that nobody has gone on from yet

    @property
    def sampler(self) -> ResumableLoader:
        """This object: loops that tell a loader's `sampler` the epoch reach it so."""
        return self

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # an error of Python's own where it has no length

    def __iter__(self) -> Iterator[Any]:
        if self.step >= len(self):
            self.epoch, self.step = self.epoch + 1, 0
        self._loaded = None
        self._sampler.set_position(self.epoch, self.step)
        with torch.random.fork_rng(devices=[]):
            batches = iter(self.loader)
        for batch in batches:
            self.step += 1
            yield batch
        self.epoch, self.step = self.epoch + 1, 0

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, or stay where a state of it was loaded."""
        number = check_count(_OWNER, "epoch", epoch, minimum=0)
        if number != self._loaded:
            self.epoch, self.step = number, 0
        self._loaded = None

    def set_position(self, epoch: int, step: int) -> None:
        """Go to a step of an epoch: so many of its batches have been given."""
        self._sampler.set_position(epoch, step)
        self.epoch, self.step, self._loaded = int(epoch), int(step), None

    def state_dict(self) -> dict[str, int]:
        """Return epoch and step, and what the batches depend on where the sampler tells it."""
        settings: dict[str, int] = self._sampler.state_dict() if hasattr(self._sampler, "state_dict") else {}
        return {**settings, "epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to the position of a `state_dict()`.

        Raises:
            ValueError: if the sampler refuses it, since it gives other batches.
        """
        if hasattr(self._sampler, "load_state_dict"):
            self._sampler.load_state_dict(state)
        else:
            self._sampler.set_position(state["epoch"], state["step"])
        self.epoch, self.step = int(state["epoch"]), int(state["step"])
        self._loaded = self.epoch

    def __repr__(self) -> str:
        return f"{_OWNER}({self.loader!r}): epoch {self.epoch}, step {self.step}"


def _positioned(loader: Any) -> Any:
    """Return the sampler that holds the position of a loader."""
    if not hasattr(loader, "__iter__"):
        raise ValueError(f"{_OWNER}: loader must be an iterable over batches, got {type(loader).__name__}")
    for name in ("batch_sampler", "sampler"):
        part = getattr(loader, name, None)
        while hasattr(part, "set_position"):
            inner = getattr(part, "sampler", None)
            if inner is None or inner is part:
                return part
            part = inner  # BagSampler has its position from the sampler it was given
    kind = type(loader).__name__
    raise ValueError(
        f"{_OWNER}: loader must have a sampler with set_position, as those of moreauc.samplers, got {kind}"
    )
