"""Model selection: scores each epoch on the validation data and keeps the best weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from moreauc._checks import NotFiniteError, check_region
from moreauc._parallel import bare, gathered, spread_as
from moreauc._settings import checksum
from moreauc.checkpoint.loader import held_labels
from moreauc.data.batches import length_of
from moreauc.data.scoring import Evaluation, predict_scores
from moreauc.distributed.exchange import Exchange
from moreauc.metrics import TiedScoresWarning
from moreauc.metrics.bootstrap import tpauc_difference
from moreauc.metrics.ranking import selection_scores, tied_share, ties_text
from moreauc.train.state import TrainState

Array = NDArray[np.floating[Any]]
Score = Callable[[Tensor, Tensor], float]

_OWNER = "fit"


class ModelSelector:
    """Scores the validation data and keeps the best weights."""

    def __init__(
        self,
        criterion: nn.Module,
        validation: Iterable[Any] | Evaluation,
        min_tpr: float | None,
        max_fpr: float | None,
        *,
        keep_best: bool,
        patience: int | None,
        min_gain: float = 0.0,
        score: Score | None = None,
        weight: object = None,
        exchange: Exchange | None = None,
    ) -> None:
        self._score = _validation_score(criterion, min_tpr, max_fpr, score, weight)
        self._validation, self._keep_best, self._patience = validation, keep_best, patience
        self._exchange, self._min_gain = exchange, min_gain
        self._start: Array | None = None  # scores of the validation data by the weights before the first epoch
        self._best: dict[str, Tensor] = {}
        self._scores: list[float] = []  # of the best weights, in the order in which they are compared
        self._level = 0  # number of the first of these in which the best weights differ from all others
        self._improved = -1  # the last epoch with a higher score than any before, in its region or a wider one

    def evaluate(self, state: TrainState, epoch: int) -> dict[str, float]:
        """Score the current weights, keep them if they are the best; return the columns of the history."""
        scores, labels = predict_scores(state.model, self._validation)
        if not bool(scores.isfinite().all()):
            raise NotFiniteError(f"{_OWNER}: the model gave scores on the validation data that are not finite")
        found = list(self._score(scores, labels))
        if self._exchange is not None:  # rounding errors must not make processes choose differently
            found = self._exchange.broadcast_object(found, "the validation score")
        if epoch < 0 and self._min_gain:
            self._start = scores.numpy()
        names, best = self._score.names, self._scores
        differs = next((k for k, pair in enumerate(zip(found, best, strict=False)) if pair[0] != pair[1]), len(best))
        history = state.history
        better = found > best  # the earlier of equal epochs stays
        if better and history.best_epoch == -1 and self._start is not None:
            better = self._score.beyond_chance(labels, scores, self._start, self._min_gain)
        if better:
            if names[differs] != "gap":  # the gap may grow a little in every epoch
                self._improved = epoch
            self._scores, self._level = found, differs
            history.best_score, history.best_epoch = found[0], epoch
            history.best_scores = dict(zip(names, found, strict=True))
            history.best_tied = self._score.tied(scores, labels)
            if self._keep_best:
                self._best = {name: value.detach().clone() for name, value in bare(state.model).state_dict().items()}
        else:
            self._level = max(self._level, differs)
        history.chosen_by = (*names, "earliest")[self._level]
        if self._patience is not None and epoch - self._improved >= self._patience:
            state.stop = True
        return dict(zip(names, found, strict=True))

    def restore_best(self, state: TrainState) -> None:
        """Load the best weights into the model; warn if they give many rows one score."""
        if not self._keep_best:
            return
        model = bare(state.model)
        present = model.state_dict()
        model.load_state_dict({name: spread_as(value, present[name]) for name, value in self._best.items()})
        state.history.restored = True
        text = ties_text(state.history.best_tied, unit="validation rows")
        if text is not None:
            warnings.warn(f"{_OWNER}: {text}", TiedScoresWarning, stacklevel=4)

    def settings(self) -> dict[str, object]:
        """Return what the choice depends on."""
        labels = held_labels(self._validation)
        length = None if labels else length_of(getattr(self._validation, "dataset", self._validation))
        data = {"validation": True, "validation_labels": labels, "validation_length": length}
        own = {"keep_best": self._keep_best, "min_gain": self._min_gain, "score": None}
        return {**data, **own, **self._score.settings}

    def state_dict(self) -> dict[str, object]:
        """Return the best weights, whole, their scores, and the epoch of the last improvement."""
        best = {name: gathered(value) for name, value in self._best.items()}
        start = None if self._start is None else torch.from_numpy(self._start)
        return {
            **{"best": best, "start": start, "scores": list(self._scores)},
            **{"level": self._level, "improved": self._improved},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of a checkpoint."""
        self._best, self._scores = dict(state["best"]), list(state["scores"])
        self._level, self._improved = state["level"], state["improved"]
        self._start = None if state["start"] is None else state["start"].numpy()


def _validation_score(
    criterion: nn.Module, min_tpr: float | None, max_fpr: float | None, score: Score | None, weight: object
) -> TwoWayScore | UserScore:
    if score is None:
        return TwoWayScore(criterion, min_tpr, max_fpr, weight)
    if weight is not None:
        raise ValueError(f"{_OWNER}: validation_weight must be None with a score of your own, got weights")
    return UserScore(score)


class TwoWayScore:
    """TPAUC in the region, and in wider ones for epochs that are equal in it; `weight` are weights of the rows."""

    names = ("score", "wider_score", "auc", "gap")

    def __init__(
        self, criterion: nn.Module, min_tpr: float | None, max_fpr: float | None, weight: object = None
    ) -> None:
        region = {"min_tpr": min_tpr, "max_fpr": max_fpr}
        self._weight = None if weight is None else torch.as_tensor(weight, dtype=torch.float64)
        for name, value in region.items():
            region[name] = getattr(criterion, name, None) if value is None else value
            if region[name] is None:
                kind = type(criterion).__name__
                raise ValueError(f"{_OWNER}: {name} must be given with validation, {kind} has none, got None")
        self._region = dict(zip(region, check_region(_OWNER, region["min_tpr"], region["max_fpr"]), strict=True))
        self.settings = {
            **self._region,
            "validation_weight": None if self._weight is None else checksum([self._weight]),
        }

    def __call__(self, scores: Tensor, labels: Tensor) -> tuple[float, ...]:
        """Return the scores by `names`, compared in this order."""
        if labels.min() == labels.max():
            raise ValueError(f"{_OWNER}: validation must hold both classes, got only labels {int(labels[0])}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an empty region is an error here
            found = selection_scores(labels.numpy(), scores.numpy(), **self._region, sample_weight=self._weight)
        if math.isnan(found[0]):
            counts = f"{int(labels.sum())} positives and {int((labels == 0).sum())} negatives"
            text = "validation must have enough rows for the region to hold a pair"
            raise ValueError(f"{_OWNER}: {text}, got {counts}")
        return found

    def beyond_chance(self, labels: Tensor, scores: Tensor, start: Array, gain: float) -> bool:
        """Whether scores are better than those of the start by so many standard errors of the difference."""
        difference, error = tpauc_difference(labels.numpy(), scores.numpy(), start, **self._region)
        return difference > gain * error

    def tied(self, scores: Tensor, labels: Tensor) -> float:
        """Return the share of the region's rows that are tied with a row of the other class."""
        return tied_share(labels.numpy(), scores.numpy(), **self._region)


class UserScore:
    """A function given by the user."""

    names = ("score",)

    def __init__(self, score: Score) -> None:
        if not callable(score):
            raise ValueError(f"{_OWNER}: score must be a function of scores and labels, got {score!r}")
        self._score = score
        self.settings = {"score": score}

    def __call__(self, scores: Tensor, labels: Tensor) -> tuple[float, ...]:
        """Return the score, as a tuple of one."""
        value = float(self._score(scores, labels))
        if not math.isfinite(value):
            raise ValueError(f"{_OWNER}: score must return a finite number, got {value}")
        return (value,)

    def beyond_chance(self, labels: Tensor, scores: Tensor, start: Array, gain: float) -> bool:
        """Return True: how much chance there is in the user's score is not known."""
        return True

    def tied(self, scores: Tensor, labels: Tensor) -> float:
        """Return 0: the user's score may be about ties."""
        return 0.0
