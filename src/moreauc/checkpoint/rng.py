"""The states of all random generators of a training run, as plain data.

These are the global ones of torch, Python and NumPy, and those that a loader, its samplers and its data set hold in
attributes.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from moreauc.samplers import DistributedBatchSampler

Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class State(TypedDict):
    """The states of generators: the global ones, and by name those that a loader holds."""

    torch: Tensor
    cuda: list[Tensor]
    python: tuple[Any, ...]
    numpy: object
    loader: dict[str, object]


_LOGGER = logging.getLogger(__name__)
_INSIDE = ("batch_sampler", "sampler", "dataset")  # attributes of a loader that may have generators of their own


def random_states(loader: object = None) -> State:
    """Return the states of all generators: the global ones, and those of a loader."""
    return {
        "torch": torch.get_rng_state(),
        "cuda": _gpu_states(),
        "python": random.getstate(),
        "numpy": _as_lists(np.random.get_state()),
        "loader": {name: state_of(generator) for name, generator in loader_generators(loader).items()},
    }


def _gpu_states() -> list[Tensor]:
    """Return the states of the GPUs' generators; none if this process has not used a GPU."""
    used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_rng_state_all() if used else []


def set_random_states(state: State, loader: object = None) -> None:
    """Set all generators to what :func:`random_states` returned."""
    torch.set_rng_state(state["torch"])
    present = torch.cuda.device_count() if state["cuda"] else 0
    for number, value in enumerate(state["cuda"][:present]):
        torch.cuda.set_rng_state(value, number)
    if len(state["cuda"]) > present:
        text = "the checkpoint has generators of %d GPUs and there are %d: what is drawn on GPUs will be different"
        _LOGGER.warning(text, len(state["cuda"]), present)
    random.setstate(state["python"])
    np.random.set_state(_as_arrays(state["numpy"]))
    generators = loader_generators(loader)
    for name, saved in state["loader"].items():
        if name in generators:
            set_state(generators[name], saved)


def loader_parts(loader: object) -> Iterator[tuple[str, Any]]:
    """Yield a loader and its samplers and data sets, each once, with names."""
    seen: set[int] = set()
    waiting = [("loader", loader)]
    while waiting:
        name, part = waiting.pop(0)
        part = whole_sampler(part)
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        yield name, part
        waiting += [(f"{name}.{inner}", getattr(part, inner, None)) for inner in _INSIDE]


def whole_sampler(sampler: object) -> Any:
    """Return the sampler inside a `DistributedBatchSampler`; anything else as it is."""
    return sampler.sampler if isinstance(sampler, DistributedBatchSampler) else sampler


def loader_generators(loader: object) -> dict[str, object]:
    """Return the generators that are attributes of a loader or of what is inside of it, by name."""
    found: dict[str, object] = {}
    for name, part in loader_parts(loader):
        for key, value in getattr(part, "__dict__", {}).items():
            if isinstance(value, GENERATORS):
                found[f"{name}.{key}"] = value
    return found


def state_of(generator: Any) -> Any:
    """Return the state of a generator as plain data."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    bits = generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()
    return _as_lists(bits)


def set_state(generator: Any, state: Any) -> None:
    """Set a generator to what :func:`state_of` returned."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _as_arrays(state)
    else:
        generator.set_state(_as_arrays(state))


def _as_lists(value: object) -> object:
    """Return a state of NumPy without arrays, which checkpoints do not hold."""
    if isinstance(value, dict):
        return {key: _as_lists(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(_as_lists(entry) for entry in value)
    return {"words": value.tolist(), "type": str(value.dtype)} if isinstance(value, np.ndarray) else value


def _as_arrays(value: object) -> Any:
    if isinstance(value, dict) and value.keys() == {"words", "type"}:
        return np.array(value["words"], dtype=value["type"])
    if isinstance(value, tuple):
        return tuple(_as_arrays(entry) for entry in value)
    return {key: _as_arrays(entry) for key, entry in value.items()} if isinstance(value, dict) else value
