"""The training loop: :func:`fit`, :func:`train_step`, :func:`predict_scores`, and callbacks."""

from moreauc.data.scoring import predict_scores
from moreauc.train.loop import fit, train_step
from moreauc.train.state import Callback, History, TensorBoardLogger, TrainState, UntrainedWarning

__all__ = [
    "Callback",
    "History",
    "TensorBoardLogger",
    "TrainState",
    "UntrainedWarning",
    "fit",
    "predict_scores",
    "train_step",
]
