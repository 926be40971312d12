"""What callbacks keep, as one part of a run that is saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from moreauc.checkpoint import _run_parts as parts
from moreauc.checkpoint._file import check_plain
from moreauc.train.callbacks import Callback


class CallbackStates:
    """The states of the callbacks that have one, by class and number."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks: dict[str, Callback] = {}
        seen: Counter[str] = Counter()
        for callback in callbacks:
            if not hasattr(callback, "state_dict"):  # a class of the user's that is no Callback
                continue
            name = type(callback).__name__
            self._callbacks[f"{name} {seen[name]}"] = callback
            seen[name] += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the states that are not empty."""
        states = {name: callback.state_dict() for name, callback in self._callbacks.items()}
        return {name: state for name, state in states.items() if state}

    def check_plain(self) -> None:
        """Check what can be seen of the states before the run begins, by which some of them are made."""
        for name, callback in self._callbacks.items():
            try:
                state = callback.state_dict()
            except Exception:  # if it fails when the run is saved, that is an error
                continue
            check_plain({"others": {"callbacks": {name: state}}})

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Check that nobody whose state was saved is missing."""
        for name in state:
            if name not in self._callbacks:
                raise parts.refuse("callbacks with a state", sorted(self._callbacks), name)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give the states back."""
        for name, value in state.items():
            self._callbacks[name].load_state_dict(value)
