"""The global random states, as data that `torch.load(weights_only=True)` takes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def random_states() -> dict[str, Any]:
    """Return the states of Python's, NumPy's and torch's generators, those of an accelerator in use included."""
    version, words, gauss = random.getstate()
    name, key, *rest = np.random.get_state(legacy=True)
    module = _accelerator()
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, torch.from_numpy(np.asarray(key, dtype=np.int64)), *rest],
        "torch": torch.get_rng_state(),
        "devices": [] if module is None else [module.get_rng_state(number) for number in range(module.device_count())],
    }


def set_random_states(states: Mapping[str, Any]) -> None:
    """Go back to what :func:`random_states` returned; devices that are not there are left out."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    name, key, *rest = states["numpy"]
    np.random.set_state((name, key.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["torch"].cpu())
    module = _accelerator()
    if module is not None:
        for number, state in enumerate(states["devices"][: module.device_count()]):
            module.set_rng_state(state.cpu(), number)


def _accelerator() -> Any:
    """Return the module of a CUDA or XPU device, None where there is none or nobody has used it yet."""
    if not torch.accelerator.is_available():
        return None
    module = torch.get_device_module(torch.accelerator.current_accelerator())
    return module if hasattr(module, "is_initialized") and module.is_initialized() else None
