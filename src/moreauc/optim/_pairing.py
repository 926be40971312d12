"""Which forward of a model a call at its previous weights belongs to, so that both draw the same random numbers.

Only forwards that draw random numbers are remembered, and only until the next step: others have no masks to replay.
"""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Thread, current_thread
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

RandomState = dict[torch.device, Tensor]  # states of generators

_REMEMBERED = 1024  # forwards since the last step; the random state of a CPU has 5 kB
_PLAIN = (bool, int, float, str)
_OWNER = "PreviousIterate"
_ADJACENT = "call previous(x) right before or right after model(x), with the same objects"


class Inputs:
    """Arguments of a model, compared by identity. Tensors are not kept alive."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._references = [_reference(value) for value in values]

    def same_as(self, other: Inputs) -> bool:
        """Return whether these are the same objects, in the same order, all of them still in use."""
        mine, others = self._references, other._references
        return len(mine) == len(others) and all(map(_same, mine, others))


@dataclass(eq=False)
class Draws:
    """What a forward, or a call, has drawn.

    Attributes:
        inputs: what the model was given.
        start, end: states of the generators before and after.
        disturbed: whether another thread has set generators meanwhile.
        thread: where it ran.
        paired: of a forward, whether it has had its call.
        contested: of a forward, whether a call may have been meant for it that was given to another one.
        others: pairings whose threads drew in the same iteration.
    """

    inputs: Inputs
    start: RandomState
    end: RandomState
    disturbed: bool = False
    thread: Thread = field(default_factory=current_thread)
    paired: bool = False
    contested: bool = False
    others: weakref.WeakSet[Pairing] = field(default_factory=weakref.WeakSet)

    @property
    def drawn(self) -> set[torch.device]:
        """Devices whose generators were used."""
        return {device for device, state in self.start.items() if not torch.equal(state, self.end[device])}

    def same_as(self, other: Draws) -> bool:
        """Return whether both have drawn the same numbers."""
        return all(
            device in self.start
            and device in other.start
            and torch.equal(self.start[device], other.start[device])
            and torch.equal(self.end[device], other.end[device])
            for device in self.drawn | other.drawn
        )


class Pairing:
    """Forwards and calls since the last step.

    Attributes:
        forwards: those that drew random numbers.
        ahead: calls whose forward is still to come.
    """

    def __init__(self) -> None:
        self.clear()
        _PAIRINGS.add(self)

    def clear(self) -> None:
        """Forget all forwards and calls."""
        self.forwards: list[Draws] = []
        self.ahead: list[Draws] = []
        self._by_order: deque[Inputs] = deque(maxlen=_REMEMBERED)  # of calls whose forward had other inputs
        self._forgotten = False

    def find(self, inputs: Inputs) -> list[Draws]:
        """Return the forwards that a call with these inputs may belong to, the best first; none where it is to come.

        The best is the oldest of the same inputs that has had no call. Where all of those have had one the last is
        called again; where there are none, it is the oldest of this thread that has had no call.
        """
        same = [forward for forward in self.forwards if forward.inputs.same_as(inputs)]
        if same:
            return [forward for forward in same if not forward.paired] or same[-1:]
        thread = current_thread()
        return [forward for forward in self.forwards if not forward.paired and forward.thread is thread]

    def doubt(self, call: Draws, forwards: list[Draws]) -> str | None:
        """Return why a call cannot be given the first of the forwards that :meth:`find` returned; None: it can."""
        if self._forgotten:
            return (
                f"at most {_REMEMBERED} forwards may wait for their calls, got more since the last step, so that the "
                f"dropout masks of this one are not known; {_ADJACENT}"
            )
        if not forwards:
            self._record_others(call)
        if any(map(_others_drew, (call, *forwards[:1]))):
            return (
                "another thread trains a model that draws random numbers at the same time. All threads share torch's "
                "generators, so that dropout masks cannot be replayed; train in several processes, or in one thread "
                "after the other, and remove() what is no longer in use"
            )
        if forwards and not call.same_as(forwards[0]):
            return (
                "a call drew other random numbers than the forward it belongs to, so that their dropout masks differ: "
                "the model draws another amount for these inputs, or another thread draws from torch's generators, "
                f"which all threads share; in one thread, {_ADJACENT}"
            )
        return None

    def add_call(self, call: Draws, forwards: list[Draws]) -> None:
        """Give a call that is not in doubt its forward, or let it wait for one."""
        if not call.drawn:
            return
        if not forwards:
            self.ahead.append(call)
            self._record_others(call)  # again: the call is only now visible to other threads
            return
        forwards[0].paired = True
        for rival in forwards if len(forwards) > 1 else []:
            rival.contested = True
        if not call.inputs.same_as(forwards[0].inputs):
            self._by_order.append(call.inputs)

    def add_forward(self, forward: Draws) -> None:
        """Remember a forward, or give it the call that came before it.

        Raises:
            RuntimeError: where that call has not drawn the same numbers, or was taken for that of another forward.
        """
        self._remember(forward)
        if not forward.drawn:  # another thread may have reset the generator
            return
        self._record_others(forward)
        if any(forward.inputs.same_as(inputs) for inputs in self._by_order):
            raise RuntimeError(
                f"{_OWNER}: a forward had its call before, which was taken for that of another forward and has its "
                f"dropout masks; {_ADJACENT}"
            )
        call = self._call_before(forward)
        if call is None:
            return
        self.ahead.remove(call)
        if not call.same_as(forward) or any(map(_others_drew, (call, forward))):
            raise RuntimeError(
                f"{_OWNER}: a forward drew other random numbers than its call, which came before it, so that their "
                f"dropout masks differ; draw none in between, in any thread, or {_ADJACENT}"
            )
        forward.paired = True
        if not call.inputs.same_as(forward.inputs):
            self._by_order.append(call.inputs)

    def close(self) -> None:
        """End an iteration, before its step.

        Raises:
            RuntimeError: where a call has no forward, or it is not known which one it has.
        """
        ahead, forgotten = self.ahead, self._forgotten
        doubtful = any(one.contested and (forgotten or not one.paired) for one in self.forwards)
        self.clear()
        if ahead:
            raise RuntimeError(
                f"{_OWNER}: {len(ahead)} calls were made without a forward of the model they evaluate, so that their "
                f"dropout masks are those of no forward; in one thread, {_ADJACENT}"
            )
        if doubtful:
            raise RuntimeError(
                f"{_OWNER}: a call was made when several forwards waited for theirs, and not all of them got one, so "
                f"that which one it belongs to is not known; {_ADJACENT}, and forwards that need no call under "
                "torch.no_grad()"
            )

    def _call_before(self, forward: Draws) -> Draws | None:
        same = [call for call in self.ahead if call.inputs.same_as(forward.inputs)]
        own = same or [call for call in self.ahead if call.thread is forward.thread]
        return own[0] if own else None

    def _remember(self, forward: Draws) -> None:
        self.forwards.append(forward)
        if len(self.forwards) > _REMEMBERED:
            done = next((number for number, one in enumerate(self.forwards) if one.paired), None)
            self._forgotten = self._forgotten or done is None
            del self.forwards[done or 0]

    def _record_others(self, draws: Draws) -> None:
        """Record which other threads have drawn since their last step, for both sides.

        A call decides whether it matters: numbers that a forward seems to draw may be those of another thread only.
        """
        for other in list(_PAIRINGS):
            for one in (*other.forwards, *other.ahead):
                if one.thread is not draws.thread and one.thread.is_alive():
                    draws.others.add(other)
                    one.others.add(self)


_PAIRINGS: weakref.WeakSet[Pairing] = weakref.WeakSet()


def _others_drew(draws: Draws) -> bool:
    if draws.others:
        gc.collect()  # removes pairings that are no longer in use
    return draws.disturbed or len(draws.others) > 0


def _reference(value: Any) -> Any:
    if isinstance(value, Tensor):
        return TensorWeakRef(value)
    try:
        return weakref.ref(value)
    except TypeError:
        return value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, TensorWeakRef | weakref.ref):
        value = one()
        return type(other) is type(one) and value is not None and other() is value
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and bool(one == other))
