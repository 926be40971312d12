"""Checkpoints: everything a training run needs to be resumed as if it had never been interrupted.

:func:`moreauc.train.fit` saves and resumes by itself if it is given a folder; the names here are for a loop of your
own.
"""

from moreauc.checkpoint.file import CheckpointError, load_checkpoint, save_checkpoint
from moreauc.checkpoint.folder import Checkpoints
from moreauc.checkpoint.interrupt import Interrupted
from moreauc.checkpoint.state import RunState

__all__ = ["CheckpointError", "Checkpoints", "Interrupted", "RunState", "load_checkpoint", "save_checkpoint"]
