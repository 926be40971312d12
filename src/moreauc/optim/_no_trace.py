"""How a call of a model leaves no trace: generators and buffers are afterwards what they were before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from moreauc.optim._sharded import own_part

RandomState = dict[torch.device, Tensor]


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy many tensors at once: one operation for all that share type and place, which is how it is fast."""
    groups: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(map(own_part, targets), map(own_part, sources), strict=True):
        into, out_of = groups.setdefault((target.dtype, target.device), ([], []))
        into.append(target)
        out_of.append(source)
    for into, out_of in groups.values():
        torch._foreach_copy_(into, out_of)


def current_state(model: nn.Module) -> RandomState:
    """Return the states of the generators that a forward of `model` may draw from."""
    state = {torch.device("cpu"): torch.get_rng_state()}
    if torch.accelerator.is_available():
        for device in {p.device for p in model.parameters()} - {torch.device("cpu")}:
            state[device] = torch.get_device_module(device).get_rng_state(device)
    return state


def _restore_state(state: RandomState) -> None:
    for device, value in state.items():
        if device.type == "cpu":
            torch.set_rng_state(value)
        else:
            torch.get_device_module(device).set_rng_state(value, device)


@contextmanager
def random_state(model: nn.Module, state: RandomState | None) -> Iterator[None]:
    """Start from `state` (None: from where we are) and return to where we were."""
    present = current_state(model)
    if state is not None:
        _restore_state(state)
    try:
        yield
    finally:
        _restore_state(present)


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
