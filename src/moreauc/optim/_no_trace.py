"""How a call of a model leaves no trace: generators and buffers are afterwards what they were before."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from moreauc.optim._sharded import own_part

RandomState = dict[torch.device, Tensor]

SETTING = threading.RLock()  # held by who sets generators, which are those of all threads
_times_set = [0]


def copy_all(targets: list[Tensor], sources: list[Tensor], unless: Tensor | None = None) -> None:
    """Copy many tensors at once: one operation for all that share type and place, which is how it is fast.

    Args:
        targets: are written.
        sources: are read.
        unless: a number on some device. Where it is not 0 nothing is copied; nobody waits for it.
    """
    if unless is not None:
        _copy_unless(unless, targets, sources)
        return
    groups: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(map(own_part, targets), map(own_part, sources), strict=True):
        into, out_of = groups.setdefault((target.dtype, target.device), ([], []))
        into.append(target)
        out_of.append(source)
    for into, out_of in groups.values():
        torch._foreach_copy_(into, out_of)


def _copy_unless(number: Tensor, targets: list[Tensor], sources: list[Tensor]) -> None:
    flags: dict[torch.device, Tensor] = {}
    for target, source in zip(map(own_part, targets), map(own_part, sources), strict=True):
        if target.device not in flags:
            on_cpu = target.device.type == "cpu"  # where what is not waited for may be read too early
            flags[target.device] = number.to(target.device, non_blocking=not on_cpu) != 0
        torch.where(flags[target.device], target, source.to(target), out=target)


def devices_of(model: nn.Module) -> list[torch.device]:
    """Return the devices whose generators a forward of `model` may draw from."""
    devices = {torch.device("cpu")}
    if torch.accelerator.is_available():
        devices |= {parameter.device for parameter in model.parameters()}
    return list(devices)


def current_state(devices: Iterable[torch.device]) -> RandomState:
    """Return the states of the generators of some devices. Nothing waits for a device."""
    return {
        device: torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
        for device in devices
    }


def _set_state(state: RandomState) -> None:
    with SETTING:
        _times_set[0] += 1
        for device, value in state.items():
            if device.type == "cpu":
                torch.set_rng_state(value)
            else:
                torch.get_device_module(device).set_rng_state(value, device)
        _times_set[0] += 1  # for those that have begun in between


def times_set() -> int:
    """Return how often :func:`random_state` has set generators, in any thread: they are those of the process."""
    return _times_set[0]


@contextmanager
def random_state(devices: Iterable[torch.device], state: RandomState | None) -> Iterator[None]:
    """Start from `state` (None: from where we are) and return to where we were."""
    present = current_state(devices)
    if state is not None:
        _set_state(state)
    try:
        yield
    finally:
        moved = current_state(present)
        if any(not torch.equal(moved[device], before) for device, before in present.items()):
            _set_state(present)


@contextmanager
def no_autocast_cache() -> Iterator[None]:
    """Let autocast cast weights anew, and keep none of them."""
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)


class Buffers:
    """Lets the buffers of a model hold copies for a while, so that nothing written to them lasts.

    The copies are kept and filled by one operation for all of them: a model may have hundreds of small buffers.
    """

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[Tensor, Tensor]] = {}  # by identity: a buffer and its copy

    @contextmanager
    def isolated(self, model: nn.Module) -> Iterator[None]:
        """Isolate the buffers of `model`; also undo assignments of new tensors to their names."""
        owners = [(module._buffers, dict(module._buffers)) for module in model.modules() if module._buffers]
        buffers = {id(buffer): buffer for _, names in owners for buffer in names.values() if buffer is not None}
        if buffers.keys() != self._pairs.keys():  # moving or casting a model makes new buffers
            self._pairs = {key: (buffer, torch.empty_like(buffer)) for key, buffer in buffers.items()}
        present = [buffer.data for buffer in buffers.values()]
        copy_all([self._pairs[key][1] for key in buffers], present)
        try:
            for key, buffer in buffers.items():
                buffer.data = self._pairs[key][1]
            yield
        finally:
            for buffer, data in zip(buffers.values(), present, strict=True):
                buffer.data = data
            for names, before in owners:
                names.clear()
                names.update(before)
