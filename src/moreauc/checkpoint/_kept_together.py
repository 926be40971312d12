"""How a run of several processes keeps itself: one file for all of them, written by the first.

Weights, tables and history are the same in all processes. What differs is drawn numbers, dropout masks above all: the
states of the generators of every process are in the file, too. As many processes as before then go on to the last bit;
another number of them does the same batches, with generators as they are at the beginning of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from moreauc.checkpoint._file import CheckpointError
from moreauc.checkpoint._generators import random_states
from moreauc.checkpoint._held_labels import held_labels
from moreauc.checkpoint._kept import Kept
from moreauc.distributed import Exchange

_RANDOM = ("random", "random_at_epoch")
_OWN = (*_RANDOM, "labels")  # a process may hold a shard of the data
_PROCESSES = "processes"
Result = TypeVar("Result")


class KeptTogether(Kept):
    """A run of several processes that is saved; see the base.

    Only the first process reads and writes: the folder need not be one that all of them see. Whether to stop is asked
    after every step, since a signal may reach one process only.

    Args:
        exchange: how the processes talk.
        options: as the base takes them.
    """

    _alone = False

    def __init__(self, *parts: Any, exchange: Exchange, **options: Any) -> None:
        self._exchange = exchange
        super().__init__(*parts, **options)

    def _read(self, resume: bool) -> dict[str, Any] | None:
        saved = self._first(lambda: super(KeptTogether, self)._read(resume))
        if saved is None or not isinstance(saved.get("place"), dict):  # which is then refused
            return saved
        saved = {**saved, "place": {**saved["place"], **self._own_generators(saved)}}
        if self._exchange.rank:  # attributes of a model may name its process: the first compares them
            own = {"model": self._run.start["model"]}
            saved |= {when: {**saved[when], **own} for when in ("start", "now") if when in saved}
        return saved

    def _own_generators(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the states of this process's generators, or of new ones where there are others than there were."""
        every = saved.get(_PROCESSES, [{name: saved["place"][name] for name in _OWN}])
        if len(every) == self._exchange.size:
            own: dict[str, Any] = every[self._exchange.rank]
            return own
        now = random_states(self._train)
        random = {name: None if saved["place"][name] is None else now for name in _RANDOM}
        return {**random, "labels": held_labels(self._train)}

    def _check(self, saved: Mapping[str, Any] | None) -> None:
        """Check in all processes; what one of them refuses, all refuse, or the others would wait for it."""
        problem = None
        try:
            super()._check(saved)
        except Exception as error:  # of which the base makes one that can be read
            problem = error
        texts = self._exchange.gather_objects(None if problem is None else str(problem), "the check of a checkpoint")
        if problem is not None:
            raise problem
        for text in texts:
            if text is not None:
                raise CheckpointError(f"checkpoint: all processes must be able to go on, got from one of them: {text}")

    def _prepare(self) -> None:
        self._first(super()._prepare)

    def _write(self, state: dict[str, Any]) -> None:
        own = {name: state["place"][name] for name in _OWN}
        state[_PROCESSES] = self._exchange.gather_objects(own, "a save")
        self._first(lambda: super(KeptTogether, self)._write(state))

    def _signal(self) -> int | None:
        caught = self._exchange.gather_objects(super()._signal(), "the end of a step")
        return next((number for number in caught if number is not None), None)

    def _first(self, action: Callable[[], Result]) -> Result:
        """Let the first process act; return what came of it in all of them, or raise."""
        result, problem = None, None
        if self._exchange.rank == 0:
            try:
                result = action()
            except (ValueError, OSError) as error:
                problem = error
        told = (result, None if problem is None else str(problem))
        result, text = self._exchange.object_of_first(told, "what the first process does for all")
        if problem is not None:
            raise problem
        if text is not None:
            raise CheckpointError(f"checkpoint: process 0 must be able to go on, got {text}")
        return result  # type: ignore[no-any-return]
