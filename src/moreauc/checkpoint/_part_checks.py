"""What a :class:`~moreauc.checkpoint.RunState` asks of its parts, before it keeps any of them.

A part without a state would be found out by the first save, which may be hours after the mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from moreauc._checks import check_mapping, shown

_OWNER = "RunState"
_STATE = ("state_dict", "load_state_dict")


def check_part(name: str, part: Any, kind: type, *, optional: bool = False) -> None:
    """Check the class of a part."""
    if not isinstance(part, kind) and not (optional and part is None):
        allowed = f"{kind.__name__} or None" if optional else kind.__name__
        raise ValueError(f"{_OWNER}: {name} must be a {allowed}, got {shown(part)}")


def check_optimizers(optimizer: Any) -> None:
    """Check that there is an optimizer, or a sequence of at least one."""
    several = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    if not several or not all(isinstance(one, Optimizer) for one in several):
        raise ValueError(f"{_OWNER}: optimizer must be an Optimizer or a sequence of them, got {shown(optimizer)}")


def check_loader(loader: Any, owner: str = _OWNER, name: str = "loader") -> None:
    """Check that a loader can be gone through in every epoch, and again where a run goes on."""
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise ValueError(f"{owner}: {name} must be an iterable over batches, got {shown(loader)}")
    # Nothing else is iterated over here: a DataLoader would start its workers and draw a number.
    if hasattr(loader, "__next__") and iter(loader) is loader:
        allowed = "an iterable that each epoch can go through anew"
        raise ValueError(f"{owner}: {name} must be {allowed}, got {shown(loader)}, which ends with the first pass")


def check_stateful(name: str, part: Any) -> None:
    """Check that a part has a state that can be put back; a class has none, but its objects."""
    if isinstance(part, type) or not all(callable(getattr(part, method, None)) for method in _STATE):
        raise ValueError(f"{_OWNER}: {name} must have state_dict() and load_state_dict(state), got {shown(part)}")


def check_others(others: Any) -> None:
    """Check that all other parts have names and states."""
    if others is None:
        return
    check_names("others", others)
    for name, part in others.items():
        check_stateful(f"others[{name!r}]", part)


def check_names(argument: str, values: Any, owner: str = _OWNER) -> None:
    """Check that an argument is a dictionary whose keys are texts, or None."""
    if values is None:
        return
    check_mapping(owner, argument, values)
    for name in values:
        if not isinstance(name, str):
            raise ValueError(f"{owner}: names of {argument} must be texts, got {name!r}")
