"""How a run of :func:`moreauc.train.fit` keeps itself: when it saves, and how it comes back to where it was."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from moreauc.checkpoint import CheckpointError, Checkpoints, RunState
from moreauc.checkpoint import _run_parts as parts
from moreauc.checkpoint._callback_states import CallbackStates
from moreauc.checkpoint._file import check_plain, make_folder
from moreauc.checkpoint._lock import FolderLock
from moreauc.checkpoint._module_extras import unset_buffers
from moreauc.checkpoint._unkept import Schedule, Unkept
from moreauc.train.callbacks import Callback, TrainState
from moreauc.train.history import History
from moreauc.train.interrupt import Interrupted, SignalWatch
from moreauc.train.selection import Judge

_DONE = "done"
_PHASES = ("warm start", "train", _DONE)


class Kept(Unkept):
    """A run that is saved every so many steps, at the end of each epoch, and when it is asked to stop.

    What was saved is read and checked when this object is made, before anything of the run has changed.

    Args:
        model: the model.
        criterion: the loss of the phase "train".
        train: the loader.
        optimizer: one like that of the phases, or the one.
        folder: where to save.
        every: steps between two saves; None for the ends of epochs only.
        resume: whether to go on from what is there; if not, there must be nothing.
        judge: that of the run.
        history: that of the run.
        hooks: callbacks.
        settings: of the run; another run with others is refused.
    """

    _alone = True  # whether this process decides by itself

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module,
        train: Iterable[Any],
        optimizer: Optimizer,
        *,
        folder: str | Path,
        every: int | None,
        resume: bool,
        judge: Judge | None,
        history: History,
        hooks: Sequence[Callback],
        settings: Mapping[str, Any],
    ) -> None:
        super().__init__(train)
        self._every = every
        self._checkpoints = Checkpoints(folder)
        self._callbacks = CallbackStates(hooks)
        others = {"fit": _Standing(self), "history": history, "callbacks": self._callbacks}
        self._run = RunState(model, criterion, optimizer, train, others=others, settings=settings)
        self._judge, self._watch, self._lock = judge, SignalWatch(), FolderLock()
        self._phase, self._state = "", TrainState(model, criterion, optimizer, "", 0)
        self._epochs_before, self._steps = 0, 0
        self._inside: dict[str, Any] | None = None  # what is known of an epoch that was interrupted
        # What can be known to fail when the first epoch ends, maybe hours from now, fails here.
        check_plain(self._state_without_callbacks())
        self._callbacks.check_plain()
        self._prepare()  # before anything is read: a run that ends meanwhile would be overwritten
        try:
            self._saved = self._read(resume)
            self._compare()
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Kept:
        self._watch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching signals; one that came too late to stop anything is not lost."""
        self._lock.release()
        self._watch.__exit__(kind, error, trace)
        if error is None and self._watch.caught is not None:
            self._interrupt(self._watch.caught, "after the run was complete")

    def done(self) -> bool:
        if self._saved is None or not self.resumes(_DONE):
            return False
        # Callbacks are not called, so that what they keep may not have been made.
        del self._run.others["callbacks"]
        others = {name: state for name, state in self._saved["others"].items() if name != "callbacks"}
        self._run.load_state_dict({**self._saved, "others": others})
        return True

    def resumes(self, phase: str) -> bool:
        return self._saved is not None and bool(self._of_fit(self._saved)["phase"] == phase)

    def begin(
        self, state: TrainState, judge: Judge | None = None, schedule: Schedule | None = None, epochs_before: int = 0
    ) -> None:
        self._state, self._phase, self._epochs_before, self.first = state, state.phase, epochs_before, 0
        self._run.optimizer = state.optimizer
        self._run.scheduler = None if schedule is None else schedule.scheduler
        self._run.proximal = None if schedule is None else schedule.pull
        self._take_judge(judge)
        super().begin(state)
        self.had_previous = False
        if self._saved is not None and self.resumes(state.phase):
            self.had_previous = self._saved["previous"] is not None

    def restore(self) -> None:
        if self._saved is None or not self.resumes(self._phase):
            return
        self._run.previous = self.previous
        self._run.load_state_dict(self._saved)
        self._saved = None
        # A run that was told to stop ends with the epoch it was told in.
        over = self._state.stop and not self._run.step
        self.first = self._state.epochs if over else self._run.epoch - self._epochs_before

    def begin_epoch(self, epoch: int, device: torch.device, lr: float) -> None:
        inside, self._inside = self._inside, None
        self.steps_before = self._run.step if inside else 0
        super().begin_epoch(epoch, device, lr)
        if inside is not None:
            self.started -= inside["seconds"]
            self.total, self.lr = inside["total"].to(device), inside["lr"]
            self._state.loss = inside["loss"].to(device)

    def batches(self) -> Iterator[tuple[int, Any]]:
        rest = self._run.batches(self._epoch)
        while True:
            try:
                batch = next(rest)
            except StopIteration:
                return
            except Exception:
                # A signal from a terminal also ends workers; what counts is the run, as it was after the last step. An
                # error without workers is one of the data, and may have drawn numbers since that step.
                if getattr(self._train, "num_workers", 0) and self._alone:
                    self._stop_if_asked()
                raise
            yield self._run.step - 1, batch

    def after_step(self) -> None:
        self._steps += 1
        self._stop_if_asked()
        # The last step is followed by the end of the epoch, unless there is a validation between, which may take long.
        last = self._run.step == self._state.steps and "judge" not in self._run.others
        if self._every is not None and self._steps % self._every == 0 and not last:
            self._save()

    def after_epoch(self) -> None:
        self._save()
        self._stop_if_asked(saved=True)

    def finish(self) -> None:
        run, self._phase, self.previous = self._run, _DONE, None
        run.scheduler = run.proximal = None
        self._take_judge(None)
        self._save()

    def state_dict(self) -> dict[str, Any]:
        """Return where the run stands."""
        inside = None
        if self._run.step:
            seconds = time.perf_counter() - self.started
            inside = {"total": self.total, "lr": self.lr, "loss": self._state.loss, "seconds": seconds}
        return {"phase": self._phase, "steps": self._steps, "stop": self._state.stop, "inside": inside}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take where a run stood."""
        self._steps, self._state.stop, inside = state["steps"], state["stop"], state["inside"]
        self._inside = None
        if inside is not None:
            self._inside = {name: inside[name].clone() for name in ("total", "loss")}
            self._inside |= {name: float(inside[name]) for name in ("lr", "seconds")}

    def _read(self, resume: bool) -> dict[str, Any] | None:
        """Return what was saved; where the run must not resume, nothing may be there."""
        if not resume and self._checkpoints.files():
            folder = str(self._checkpoints.folder)
            raise ValueError(f"fit: checkpoint must hold no checkpoints where resume is False, got {folder!r}")
        return self._checkpoints.load()

    def _compare(self) -> None:
        """Check what was saved against this run; what is refused says where it is."""
        folder = self._checkpoints.folder
        try:
            self._check(self._saved)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; the checkpoint is in {folder}") from error
        except Exception as error:  # what is no run's may hold anything
            what = f"got another: {type(error).__name__}: {error}; the checkpoint is in {folder}"
            raise CheckpointError(f"fit: checkpoint must be that of a run of fit, {what}") from error

    def _prepare(self) -> None:
        """Make the folder, see that it can be written to, and keep others out."""
        folder = self._checkpoints.folder
        make_folder(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "fit: checkpoint must be a folder that can be written to", str(folder))
        self._lock.take(folder)

    def _write(self, state: dict[str, Any]) -> None:
        self._checkpoints.save(state)

    def _signal(self) -> int | None:
        """Return the signal that asks the run to stop, if there was one."""
        return self._watch.caught

    def _save(self) -> None:
        self._run.previous = self.previous
        self._write(self._run.state_dict())

    def _stop_if_asked(self, *, saved: bool = False) -> None:
        number = self._signal()
        if number is None:
            return
        if not saved:
            self._save()
        epoch, step = self._run.epoch - self._epochs_before, self._run.step
        self._interrupt(number, f"in {self._phase}, epoch {epoch}, after {step} of its steps")

    def _interrupt(self, number: int, where: str) -> NoReturn:
        folder = self._checkpoints.folder
        raise Interrupted(number, f"{where}; saved in {folder}, from where the same call goes on")

    def _state_without_callbacks(self) -> dict[str, Any]:
        callbacks = self._run.others.pop("callbacks")
        try:
            return self._run.state_dict()
        finally:
            self._run.others["callbacks"] = callbacks

    def _take_judge(self, judge: Judge | None) -> None:
        self._run.others.pop("judge", None)
        if judge is not None:
            self._run.others["judge"] = judge

    @staticmethod
    def _of_fit(saved: Mapping[str, Any]) -> Mapping[str, Any]:
        return saved["others"]["fit"]["state"]  # type: ignore[no-any-return]

    def _check(self, saved: Mapping[str, Any] | None) -> None:
        """Check all parts against what the run begins with; those that a phase adds are checked against the weights."""
        if saved is None:
            return
        run, phase = self._run, self._of_fit(saved)["phase"]
        if phase not in _PHASES:
            raise parts.refuse("the phase", f"one of {', '.join(_PHASES)}", repr(phase))
        self._take_judge(self._judge if phase == "train" else None)
        run.check({**saved, "previous": None, "proximal": None, "scheduler": None})
        epochs = run.settings["warm_start_epochs"] + run.settings["epochs"]
        if saved["place"]["epoch"] > epochs:
            raise parts.refuse("the epoch", f"at most {epochs}", saved["place"]["epoch"])
        if saved["previous"] is not None:
            parts.check_previous(run.model, saved["previous"]["state"])
        if saved["proximal"] is not None:
            parts.check_proximal(parts.as_sequence(run.optimizer)[0], saved["proximal"]["state"])
        if "judge" in saved["others"] and saved["others"]["judge"]["state"]["best"]:
            model, best = parts.bare(run.model), saved["others"]["judge"]["state"]["best"]
            parts.check_tensors("best weights", model.state_dict(), best, unset=unset_buffers(model))


class _Standing:
    """Where a run stands, in one process or in several: files of both are of the same kind."""

    def __init__(self, kept: Kept) -> None:
        self.state_dict, self.load_state_dict = kept.state_dict, kept.load_state_dict
