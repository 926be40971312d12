"""Training inside a command: every epoch goes to the log, and a model that has learnt nothing is named."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping
from typing import Any

from moreauc.train.history import History, UntrainedWarning

_LOGGER = logging.getLogger("moreauc.cli.fit")


def train(title: str, model: Any, *data: Any, **options: Any) -> Any:
    """Fit an estimator to data, with options of its `fit`, and log its epochs; return it."""
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWarning)  # the note below says it, with the title of the model
        model.fit(*data, **options)
    for row in model.history_.rows:
        numbers = ", ".join(f"{key} {value:.6g}" for key, value in row.items() if key not in ("phase", "epoch"))
        _LOGGER.info("%s, %s epoch %d: %s", title, row["phase"], row["epoch"] + 1, numbers)
    if model.history_.choice:
        _LOGGER.info("%s: weights kept %s, %s", title, kept_when(model.history_), model.history_.choice)
    _LOGGER.info("%s: trained in %.1f s", title, time.perf_counter() - begin)
    for note in untrained_notes({title: model.history_}):
        _LOGGER.warning("%s", note)
    return model


def untrained_notes(histories: Mapping[str, History]) -> list[str]:
    """Return a sentence for each model that was left with the weights from before its training.

    Args:
        histories: of the models, by their titles.

    Example:
        >>> untrained_notes({"SONX": History(best_epoch=3, restored=True)})
        []
        >>> untrained_notes({"SONX": History(best_epoch=-1, restored=True)})
        ['SONX is untrained. No epoch did better on the validation data than ...']
    """
    return [
        f"{title} is untrained. No epoch did better on the validation data than the weights before training, "
        "which were kept. Either the columns tell nothing about the target, or there are too few rows or epochs "
        "(--epochs), or the learning rate (--lr) does not fit."
        for title, history in histories.items()
        if history.untrained
    ]


def kept_when(history: History) -> str:
    """Return after which epoch the weights kept are, or that they are from before all."""
    return "before training" if history.best_epoch == -1 else f"after epoch {(history.best_epoch or 0) + 1}"
