"""Checkpoints: everything a training run needs to go on as if it had never been interrupted.

:func:`moreauc.train.fit` saves and resumes by itself where it is given a folder. For a loop of your own:

- :class:`RunState` holds the parts of a run, gives their state as plain data, and puts it back;
- :class:`Checkpoints` keeps the last of them in a folder;
- :func:`save_checkpoint`, :func:`load_checkpoint`: one file, for anything else.
"""

from moreauc.checkpoint._file import (
    CheckpointError,
    DamagedCheckpointError,
    load_checkpoint,
    save_checkpoint,
)
from moreauc.checkpoint._folder import Checkpoints, CheckpointWarning
from moreauc.checkpoint._run_state import RunState
from moreauc.train.interrupt import Interrupted

__all__ = [
    "CheckpointError",
    "CheckpointWarning",
    "Checkpoints",
    "DamagedCheckpointError",
    "Interrupted",
    "RunState",
    "load_checkpoint",
    "save_checkpoint",
]
