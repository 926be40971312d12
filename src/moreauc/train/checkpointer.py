"""Checkpointing as a callback of the loop: saves a run, and resumes it where it was saved."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from moreauc._parallel import parallel_of
from moreauc._system import FileLock, make_folder
from moreauc.checkpoint.file import CheckpointError, check_plain
from moreauc.checkpoint.folder import Checkpoints
from moreauc.checkpoint.interrupt import Interrupted, SignalWatch
from moreauc.checkpoint.loader import LoaderPosition, held_labels
from moreauc.checkpoint.parts import check_tensors, refuse
from moreauc.checkpoint.rng import random_states
from moreauc.checkpoint.state import RunState
from moreauc.distributed.exchange import Exchange
from moreauc.train.selection import ModelSelector
from moreauc.train.state import DONE, TRAIN, WARM_START, Callback, TrainState

_RANDOM = ("random", "random_at_epoch")
_OWN = (*_RANDOM, "labels")  # what differs between processes, which may hold shards of the data
_PROCESSES = "processes"
_Result = TypeVar("_Result")


class Checkpointer(Callback):
    """Saves a run every so many steps, at the end of each epoch, and when a signal asks it to stop.

    It must be the last callback. `state` and `selector` are those of the phase "train"; the states of `callbacks` are
    saved too. A saved run is read and compared with this one in the constructor, before anything of the run has
    changed. As a context manager it watches signals and, at the end, releases the folder. `resumed` is the phase in
    which the saved run is resumed, "done" for a complete run, "" for none.

    A run of several processes is saved in one file, which the first process reads and writes. Random states are saved
    for each. Another number of processes sees the same batches, with generators as at the beginning of a run. After
    every step the processes agree whether to stop, since a signal may reach only one of them.
    """

    def __init__(
        self,
        state: TrainState,
        callbacks: Sequence[Callback],
        selector: ModelSelector | None,
        folder: str | Path,
        exchange: Exchange | None,
        *,
        every: int | None,
        resume: bool,
        settings: Mapping[str, Any],
    ) -> None:
        self._exchange = None if exchange is None or exchange.size == 1 else exchange
        _check_seen_by_all(state, self._exchange)
        self._state, self._selector, self._every = state, selector, every
        self._checkpoints, self._callbacks = Checkpoints(folder), _CallbackStates(callbacks)
        state.position = position = LoaderPosition(state.position.loader)
        position.on_error = self._loader_failed
        others = {"loop": state, "history": state.history}
        self._run = RunState(state.model, state.criterion, state.optimizer, position, others=others, settings=settings)
        self._signals, self._lock = SignalWatch(), FileLock()
        # A state that cannot be saved is refused now, not at the end of the first epoch.
        check_plain(self._run.state_dict())
        self._callbacks.check_plain()
        self._run.others["callbacks"] = self._callbacks
        self._first(self._prepare)  # before the folder is read: another run may still be saving in it
        try:
            self._saved = self._read(resume)
            self._compare()
        except BaseException:
            self._lock.release()
            raise
        self.resumed = "" if self._saved is None else str(_loop_state(self._saved)["phase"])

    def __enter__(self) -> Checkpointer:
        """Watch signals."""
        self._signals.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the folder; raise a signal that came after the last step."""
        self._lock.release()
        self._signals.__exit__(kind, error, trace)
        if error is None and self._signals.caught is not None:
            self._interrupt(self._signals.caught, "after the run was complete")

    def restore_result(self) -> None:
        """Restore a complete run; callbacks are not called, and get no state."""
        assert self._saved is not None
        del self._run.others["callbacks"]
        others = {name: state for name, state in self._saved["others"].items() if name != "callbacks"}
        self._run.load_state_dict({**self._saved, "others": others})

    def on_begin(self, state: TrainState) -> None:
        """Restore the saved run, if it was saved in this phase."""
        if self._saved is None or self.resumed != state.phase:
            return
        if "previous" in self._saved["others"]:
            state.keep_previous()
        self._collect()
        self._run.load_state_dict(self._saved)
        self._saved = None
        # A run that a callback stopped ends with the epoch in which it was stopped.
        over = state.stop and not state.position.step
        state.epoch = state.epochs if over else state.position.epoch - state.epochs_before

    def on_step(self, state: TrainState) -> None:
        """Save the run if it is due, or if a signal asks it to stop."""
        self._stop_if_asked()
        # The end of the epoch follows the last step, unless there is a validation in between, which may take long.
        last = state.position.step == state.steps and state.selector is None
        if self._every is not None and state.steps_done % self._every == 0 and not last:
            self._save()

    def on_epoch(self, state: TrainState) -> None:
        """Save the run."""
        self._save()
        self._stop_if_asked(saved=True)

    def on_end(self, state: TrainState | None) -> None:
        """Save a complete run; after an error the files stay as they are."""
        if state is not None and state.done:
            self._callbacks.clear()  # a complete run does not need them
            self._save()

    def _collect(self) -> None:
        """Take the parts that the current phase has."""
        run, state = self._run, self._state
        run.optimizer, run.previous = state.optimizer, state.previous
        schedule = state.schedule
        run.scheduler, run.proximal = (None, None) if schedule is None else (schedule.scheduler, schedule.proximal)
        self._take_selector(state.selector)

    def _take_selector(self, selector: ModelSelector | None) -> None:
        self._run.others.pop("selector", None)
        if selector is not None:
            self._run.others["selector"] = selector

    def _save(self) -> None:
        self._collect()
        self._write(self._run.state_dict())

    def _stop_if_asked(self, *, saved: bool = False) -> None:
        number = self._signal()
        if number is None:
            return
        if not saved:
            self._save()
        state = self._state
        epoch, step = state.position.epoch - state.epochs_before, state.position.step
        self._interrupt(number, f"in {state.phase}, epoch {epoch}, after {step} of its steps")

    def _interrupt(self, number: int, where: str) -> NoReturn:
        folder = self._checkpoints.folder
        raise Interrupted(number, f"{where}; saved in {folder}, from where the same call goes on")

    def _loader_failed(self) -> None:
        """Save the run as it was after the last step, if it was a signal that ended the workers of the loader.

        An error without workers is an error of the data, and may have drawn numbers since that step.
        """
        if getattr(self._state.position.loader, "num_workers", 0) and self._exchange is None:
            self._stop_if_asked()

    def _compare(self) -> None:
        """Check the saved run against this one; errors name the folder."""
        folder = self._checkpoints.folder
        try:
            self._check_together()
        except CheckpointError as error:
            raise CheckpointError(f"{error}; the checkpoint is in {folder}") from error
        except Exception as error:  # a file of something else may hold anything
            what = f"got another: {type(error).__name__}: {error}; the checkpoint is in {folder}"
            raise CheckpointError(f"fit: checkpoint must be that of a run of fit, {what}") from error

    def _check_together(self) -> None:
        """Check in all processes: all of them refuse what one refuses, or the others would wait for it."""
        if self._exchange is None:
            self._check(self._saved)
            return
        problem = None
        try:
            self._check(self._saved)
        except Exception as error:  # the caller adds the folder
            problem = error
        texts = self._exchange.gather_objects(None if problem is None else str(problem), "the check of a checkpoint")
        if problem is not None:
            raise problem
        for text in texts:
            if text is not None:
                raise CheckpointError(f"checkpoint cannot be resumed in another process: {text}")

    def _check(self, saved: Mapping[str, Any] | None) -> None:
        """Check all parts that the run has at its beginning; those that a phase adds check their states themselves."""
        if saved is None:
            return
        run, phase, phases = self._run, _loop_state(saved)["phase"], (WARM_START, TRAIN, DONE)
        if phase not in phases:
            raise CheckpointError(f"checkpoint has phase {phase!r}, which must be one of {', '.join(phases)}")
        self._take_selector(self._selector if phase == TRAIN else None)
        parts = saved["others"]
        present = {name: part for name, part in parts.items() if name not in ("previous", "proximal", "scheduler")}
        run.check({**saved, "others": present})
        epochs = run.own_settings["warm_start_epochs"] + run.own_settings["epochs"]
        if saved["position"]["epoch"] > epochs:
            raise refuse("epoch", saved["position"]["epoch"], f"at most {epochs}")
        if "selector" in parts and (best := parts["selector"]["state"]["best"]):
            check_tensors("best weights", run.model, best)

    def _prepare(self) -> None:
        """Make the folder, check that it can be written to, and lock it."""
        folder = self._checkpoints.folder
        make_folder(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "fit: checkpoint must be a folder that can be written to", str(folder))
        if not self._lock.take(folder / "lock"):
            what = f"got {str(folder)!r}, in which another process is saving"
            raise CheckpointError(f"fit: checkpoint must be a folder of one run at a time, {what}")

    def _load(self, resume: bool) -> dict[str, Any] | None:
        """Return the saved run; without `resume` there must be none."""
        if not resume and self._checkpoints.files():
            folder = str(self._checkpoints.folder)
            raise ValueError(f"fit: checkpoint must hold no checkpoints where resume is False, got {folder!r}")
        return self._checkpoints.load()

    def _read(self, resume: bool) -> dict[str, Any] | None:
        """Return the saved run as it was in this process."""
        saved = self._first(lambda: self._load(resume))
        if self._exchange is None or saved is None or not isinstance(saved.get("position"), dict):
            return saved  # of one process, or wrong, which is an error later
        saved = {**saved, "position": {**saved["position"], **self._own_position(self._exchange, saved)}}
        if self._exchange.rank:  # attributes of a model may name its process; the first process compares them
            own = {"model": self._run.start["model"]}
            saved |= {when: {**saved[when], **own} for when in ("start", "now") if when in saved}
        return saved

    def _own_position(self, exchange: Exchange, saved: Mapping[str, Any]) -> dict[str, object]:
        """Return what was saved for this process, or what a new run has if the number of processes has changed."""
        every: list[dict[str, object]] = saved.get(_PROCESSES, [{name: saved["position"][name] for name in _OWN}])
        if len(every) == exchange.size:
            return every[exchange.rank]
        loader = self._state.position.loader
        now = random_states(loader)
        random = {name: None if saved["position"][name] is None else now for name in _RANDOM}
        return {**random, "labels": held_labels(loader)}

    def _write(self, state: dict[str, Any]) -> None:
        if self._exchange is not None:
            own = {name: state["position"][name] for name in _OWN}
            state[_PROCESSES] = self._exchange.gather_objects(own, "a save")
        self._first(lambda: self._checkpoints.save(state))

    def _signal(self) -> int | None:
        """Return the signal that asks the run to stop, whichever process got it; None for none."""
        caught = self._signals.caught
        if self._exchange is None:
            return caught
        every = self._exchange.gather_objects(caught, "the end of a step")
        return next((number for number in every if number is not None), None)

    def _first(self, action: Callable[[], _Result]) -> _Result:
        """Let the first process act; return its result in all processes, or raise in all of them."""
        if self._exchange is None:
            return action()
        result, problem = None, None
        if self._exchange.rank == 0:
            try:
                result = action()
            except (ValueError, OSError) as error:
                problem = error
        found = (result, None if problem is None else str(problem))
        result, text = self._exchange.broadcast_object(found, "what the first process does for all")
        if problem is not None:
            raise problem
        if text is not None:
            raise CheckpointError(f"process 0 cannot go on: {text}")
        return result  # type: ignore[no-any-return]


def _check_seen_by_all(state: TrainState, exchange: Exchange | None) -> None:
    """Refuse a model of several processes whose loss is of one."""
    parallel = parallel_of(state.model)
    if exchange is None and parallel is not None and len(parallel.ranks) > 1:
        raise ValueError(
            f"fit: criterion must be a moreauc.distributed.DistributedCriterion to save a {parallel.kind} model of "
            f"{len(parallel.ranks)} processes, got {type(state.criterion).__name__}: each process would save a run"
        )


class _CallbackStates:
    """The states of the callbacks that have one, by class and number."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks: dict[str, Callback] = {}
        seen: Counter[str] = Counter()
        for callback in callbacks:
            if hasattr(callback, "state_dict"):  # a class that is not derived from Callback may have none
                name = type(callback).__name__
                self._callbacks[f"{name} {seen[name]}"] = callback
                seen[name] += 1

    def check_plain(self) -> None:
        """Check the states, as far as callbacks have one before they begin."""
        for name, callback in self._callbacks.items():
            try:
                state = callback.state_dict()
            except Exception:  # an error only if it also fails when the run is saved
                continue
            check_plain({"others": {"callbacks": {name: state}}})

    def clear(self) -> None:
        """Save no states from now on."""
        self._callbacks = {}

    def state_dict(self) -> dict[str, object]:
        """Return the states that are not empty."""
        states = {name: callback.state_dict() for name, callback in self._callbacks.items()}
        return {name: state for name, state in states.items() if state}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Check that every callback whose state was saved is there."""
        for name in state:
            if name not in self._callbacks:
                raise CheckpointError(
                    f"checkpoint has a state of callback {name}, this run has {sorted(self._callbacks)}"
                )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give the states back."""
        for name, value in state.items():
            self._callbacks[name].load_state_dict(value)


def _loop_state(saved: Mapping[str, Any]) -> Mapping[str, Any]:
    return saved["others"]["loop"]["state"]  # type: ignore[no-any-return]
