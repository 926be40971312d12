"""A method on the data of one run: trains all settings, chooses by validation, tests the choice."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from experiments.config import Candidate, Experiment, Recipe, Setting, training_on
from experiments.engine import Record
from experiments.machine import seeded
from experiments.models.side_by_side import CopyRates, SideBySide, SideBySideLoss
from experiments.parts import Part, Parts, Run
from moreauc._checks import NotFiniteError
from moreauc.methods import METHODS, build
from moreauc.metrics import tpauc_score
from moreauc.metrics.bootstrap import tpauc_difference
from moreauc.train import Callback, TrainState, fit

Weights = dict[str, Tensor]
_NOT_OF_THE_LOSS = ("lr", "momentum", "share", "sampler")
Region = tuple[float, float]
Numbers = NDArray[np.float64]
_ONE = 1.0 - 1e-12  # up to rounding
SMOOTHED = 5  # epochs in the mean of the smoothed choice


@dataclass
class Curves:
    """Scores after each epoch, for each setting and region.

    Attributes:
        settings: what was tried.
        merit: validation TPAUC to choose by, `(settings, epochs, regions)`; -inf where it diverged.
        validation: validation TPAUC.
        test: test TPAUC.
        auc: validation AUC, which chooses between equal merits, `(settings, epochs)`.
        training: TPAUC of the training rows, where asked for.
        errors: why a setting diverged.
        start: of recipe rows, validation and test TPAUC of the weights to start from, in each region.
        lead: of recipe rows, validation TPAUC above the start's beyond the required standard errors; NaN where it
            diverged.
        test_error: of recipe rows, standard error of the difference to the start in test TPAUC.
    """

    settings: Sequence[Setting]
    merit: Numbers
    validation: Numbers
    test: Numbers
    auc: Numbers
    training: Numbers | None = None
    errors: list[str | None] = field(default_factory=list)
    start: dict[str, Numbers] | None = None
    lead: Numbers | None = None
    test_error: Numbers | None = None

    def only(self, wanted: Callable[[Setting], bool]) -> Curves:
        """Return merit and scores of some settings."""
        kept = [number for number, setting in enumerate(self.settings) if wanted(setting)]
        settings = [self.settings[number] for number in kept]
        return Curves(settings, self.merit[kept], self.validation[kept], self.test[kept], self.auc[kept])

    def choose(self, column: int, *, epochs: int = 1) -> Record:
        """Return the setting and the epoch that are best in validation, and their scores.

        Of equal scores the higher AUC is chosen, then the first setting and its earliest epoch. Where every setting
        diverged before its first score all entries are None. A recipe row keeps its start, epoch 0 of no setting, where
        the best is not above it by the required standard errors; its entry `plain` is the test score without this rule.

        Args:
            column: number of the region.
            epochs: epochs in the mean that is compared: with few positives the best of hundreds of single epochs is
                often chance. Fewer if no setting lasted so long.
        """
        merit = self.merit[:, :, column]
        for width in range(min(epochs, merit.shape[1]), 0, -1):
            means = _means(merit, width)
            if np.isfinite(means).any():
                auc = np.where(means == means.max(), _means(self.auc, width), -math.inf)
                best, epoch = (int(place) for place in np.unravel_index(np.argmax(auc), auc.shape))
                epoch += width - 1
                found = {
                    "setting": self.settings[best],
                    "epoch": epoch + 1,
                    "validation": rounded(self.validation[best, epoch, column]),
                    "test": rounded(self.test[best, epoch, column]),
                    "last": rounded(self.test[best, -1, column]),
                }
                return self._cautious(found, column, (best, epoch))
        return self._cautious(dict.fromkeys(("setting", "epoch", "validation", "test", "last")), column)

    def _cautious(self, found: Record, column: int, place: tuple[int, int] | None = None) -> Record:
        """Return a choice, or the start of a recipe row if it is not better by the required standard errors."""
        if self.start is None or self.lead is None or self.test_error is None:
            return found
        if place is not None and self.lead[*place, column] > 0.0:
            return {**found, "error": rounded(self.test_error[*place, column]), "plain": found["test"]}
        scores = {name: rounded(values[column]) for name, values in self.start.items()}
        return {"setting": None, "epoch": 0, **scores, "last": scores["test"], "error": 0.0, "plain": found["test"]}

    def summary(self) -> list[Record]:
        """Return for each setting its best validation score in each region, and why it diverged, if it did."""
        rows = []
        for setting, merit, error in zip(self.settings, self.merit, self.errors, strict=True):
            row: Record = {**setting, "merit": [rounded(value) for value in merit.max(axis=0)]}
            if error is None and not np.isfinite(merit).any():  # the last step of the first epoch may do this
                error = "scores of the validation rows must be finite, got none that are"
            rows.append(row if error is None else {**row, "error": error})
        return rows


def _means(merit: Numbers, width: int) -> Numbers:
    with np.errstate(invalid="ignore"):
        means: Numbers = np.lib.stride_tricks.sliding_window_view(merit, width, axis=1).mean(axis=2)
    return means


def rounded(value: float) -> float | None:
    """Return a score as it stands in files: six digits; None where it is no number.

    Example:
        >>> rounded(0.12345678), rounded(float("nan"))
        (0.123457, None)
    """
    return round(float(value), 6) if np.isfinite(value) else None


@dataclass(frozen=True)
class Trial:
    """A method on the data of one run.

    Attributes:
        run: the run; its number is the seed of weights and dropout.
        candidate: the method.
        parts: the data.
        start: weights that all settings start from; None for new ones.
        score_training: whether to score the training rows, too.
    """

    run: Run
    candidate: Candidate
    parts: Parts
    start: Weights | None = None
    score_training: bool = False

    def train(self, settings: Sequence[Setting] | None = None) -> Curves:
        """Train by each of the settings, a few at a time side by side, and score every epoch.

        A setting that diverges has no merit from then on, which may be so for all of them. Without `settings` those of
        the method are tried.
        """
        settings = self.candidate.settings if settings is None else settings
        pieces = [self._train(together) for together in _batches_of(settings, self.run.plan.training.side_by_side)]
        names = ["merit", "validation", "test", "auc", *(["training"] if self.score_training else [])]
        names += ["lead", "test_error"] if self.candidate.recipe else []
        joined: dict[str, Any] = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in names}
        errors = [error for piece in pieces for error in piece.errors]
        return Curves(settings, **joined, errors=errors, start=pieces[0].start)

    def _train(self, settings: Sequence[Setting]) -> Curves:
        plan, parts, seed = self.run.plan, self.parts, self.run.number
        training = training_on(plan, self.run.dataset, self.candidate)
        first = seeded(seed, parts.model)
        if self.start is not None:
            first.load_state_dict(self.start)
        model: nn.Module = _SingleModel(first) if len(settings) == 1 else SideBySide([first] * len(settings))
        model.to(self.run.device)
        guarded = [_GuardedLoss(_criterion(plan, self.candidate, setting, parts.labels)) for setting in settings]
        rates = [float(setting.get("lr", training.lr)) for setting in settings]
        lr, decay = max(rates), training.weight_decay
        weights = list(model.parameters())
        optimizer: Optimizer
        if training.optimizer == "adam":
            optimizer = AdamW(weights, lr=lr, weight_decay=decay)
        else:
            optimizer = SGD(weights, lr=lr, momentum=training.momentum, weight_decay=decay)
        copies = CopyRates(optimizer, [rate / max(rates) for rate in rates]) if len(set(rates)) > 1 else None
        recorder = _Recorder(plan, parts, training.epochs, self.score_training)
        if self.candidate.recipe and plan.recipe is not None:
            recorder = _RecipeRecorder(plan, parts, training.epochs, plan.recipe, _SingleModel(first))
        try:
            fit(
                model,
                SideBySideLoss(guarded),
                parts.train(settings[0].get("sampler", "balanced")),
                epochs=training.epochs,
                optimizer=optimizer,
                milestones=training.milestones,
                proximal=METHODS[plan.task][self.candidate.preset].proximal,
                seed=seed,
                callbacks=[recorder],
            )
        finally:
            if copies is not None:
                copies.remove()
        return recorder.curves(settings, [loss.error for loss in guarded])


def _batches_of(settings: Sequence[Setting], size: int) -> list[list[Setting]]:
    """Return settings to be trained side by side: neighbours, at most `size`, that share the sampler."""
    together: list[list[Setting]] = []
    for setting in settings:
        last = together[-1] if together else []
        if not last or len(last) == size or last[0].get("sampler") != setting.get("sampler"):
            together.append([setting])
        else:
            last.append(setting)
    return together


def pretrain(run: Run, parts: Parts) -> Weights:
    """Return the weights that all methods start from: those after some epochs of cross entropy with Adam.

    Recipe rows start from the epoch with the best validation AUC, the earliest of equal ones: with few positives it is
    steadier than the TPAUC of a region.
    """
    plan = run.plan
    training = plan.recipe if run.recipe and plan.recipe is not None else plan.training
    model = seeded(run.number, parts.model).to(run.device)
    best = _BestEpoch(parts.validation)
    preset = "ce" if run.plan.task == "rows" else "ce_att"
    fit(
        model,
        build(run.plan.task, preset, parts.labels, min_tpr=0.0, max_fpr=1.0).to(run.device),
        parts.train("shuffled"),
        epochs=training.pretrain_epochs,
        optimizer="adam",
        lr=training.pretrain_lr,
        weight_decay=plan.training.weight_decay,
        milestones=(),
        seed=run.number,
        callbacks=[best] if run.recipe else [],
    )
    weights = best.weights if run.recipe else model.state_dict()
    return {name: value.detach().cpu() for name, value in weights.items()}


class _BestEpoch(Callback):
    """Keeps the weights of the epoch with the best AUC."""

    def __init__(self, part: Part) -> None:
        self._part, self._auc = part, -math.inf
        self.weights: Weights = {}

    def on_epoch(self, state: TrainState) -> None:
        """Score the present weights."""
        scores = self._part.scores(_SingleModel(state.model).eval())
        auc = float(_scores(self._part.labels, scores, [(0.0, 1.0)], missing=-math.inf)[0, 0])
        if auc > self._auc or not self.weights:
            self._auc = auc
            self.weights = {name: value.detach().clone() for name, value in state.model.state_dict().items()}


def score_weights(run: Run, parts: Parts, weights: Weights) -> dict[str, Numbers]:
    """Return validation and test TPAUC of a model with these weights in each region."""
    model = seeded(0, parts.model)
    model.load_state_dict(weights)
    single = _SingleModel(model).to(run.device).eval()
    named = {"validation": parts.validation, "test": parts.test}
    return {name: _scores(part.labels, part.scores(single), run.plan.regions)[0] for name, part in named.items()}


def _criterion(plan: Experiment, candidate: Candidate, setting: Setting, labels: Tensor) -> nn.Module:
    options = {key: value for key, value in {**candidate.options, **setting}.items() if key not in _NOT_OF_THE_LOSS}
    share = float(setting.get("share", 1.0))
    criterion: nn.Module = build(plan.task, candidate.preset, labels, min_tpr=1.0 - share, max_fpr=share, **options)
    return criterion


class _SingleModel(nn.Module):
    """One model in the form of :class:`SideBySide`, for networks that fill a GPU by themselves."""

    row_dim = 1  # of the outputs, whose first dimension is that of the models

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs).unsqueeze(0)


class _GuardedLoss(nn.Module):
    """A loss that is switched off once its scores are not finite; the others continue."""

    def __init__(self, criterion: nn.Module) -> None:
        super().__init__()
        self.criterion = criterion
        self.error: str | None = None

    @property
    def needs_previous(self) -> bool:
        return bool(getattr(self.criterion, "needs_previous", False))

    def forward(self, scores: Tensor, *others: Tensor, **before: Tensor) -> Tensor:
        if self.error is None:
            try:
                return self.criterion(scores, *others, **before)  # type: ignore[no-any-return]
            except NotFiniteError as error:
                self.error = str(error).splitlines()[0]
        # zero with a zero gradient: backward must work when all settings have diverged
        return 0.0 * torch.where(scores.isfinite(), scores, 0.0).sum()


class _Recorder(Callback):
    """Scores validation and test rows after each epoch; ends the training once all settings have diverged."""

    def __init__(self, plan: Experiment, parts: Parts, epochs: int, score_training: bool) -> None:
        self._regions, self._parts, self._epochs = plan.regions, parts, epochs
        self._names = ["validation", "test", *(["training"] if score_training else [])]
        self._rows: dict[str, list[Numbers]] = {name: [] for name in ["merit", "auc", *self._names]}

    def on_epoch(self, state: TrainState) -> None:
        """Score the present weights of all copies."""
        model = self._model(state).eval()
        losses: list[_GuardedLoss] = list(getattr(state.criterion, "criteria", ()))
        diverged = [loss.error is not None for loss in losses]
        state.stop = bool(diverged) and all(diverged)
        for name in self._names:
            part: Part = getattr(self._parts, name)
            scores = part.scores(model)
            self._rows[name].append(_scores(part.labels, scores, self._regions))
            self._compare(name, part, scores)
            if name == "validation":
                regions = [region_to_choose_by(part.labels, region) for region in self._regions]
                merit = _scores(part.labels, scores, regions, missing=-math.inf)
                merit[diverged] = -math.inf
                self._rows["merit"].append(merit)
                self._rows["auc"].append(_scores(part.labels, scores, [(0.0, 1.0)]))

    def _model(self, state: TrainState) -> nn.Module:
        return state.model

    def _compare(self, name: str, part: Part, scores: Tensor) -> None:
        pass

    def curves(self, settings: Sequence[Setting], errors: list[str | None]) -> Curves:
        """Return the scores; a setting that diverged has no merit from then on, and epochs not run have no score."""
        for name, rows in self._rows.items():
            nothing = np.full_like(rows[0], -math.inf if name == "merit" else math.nan)
            rows.extend([nothing] * (self._epochs - len(rows)))
        stacked: dict[str, Any] = {name: np.stack(rows, axis=1) for name, rows in self._rows.items()}
        return Curves(settings, **stacked | {"auc": stacked["auc"][:, :, 0]}, errors=errors)


class _RecipeRecorder(_Recorder):
    """Scores the average of the weights, and compares it with the start."""

    def __init__(self, plan: Experiment, parts: Parts, epochs: int, recipe: Recipe, start: nn.Module) -> None:
        super().__init__(plan, parts, epochs, score_training=False)
        self._recipe, self._first = recipe, deepcopy(start).eval()
        self._rows |= {"lead": [], "test_error": []}

    def on_begin(self, state: TrainState) -> None:
        """Score the start, and begin the average there."""
        first = self._first.to(next(state.model.parameters()).device)
        self._start = {name: getattr(self._parts, name).scores(first) for name in self._names}
        decay = math.exp(-1.0 / (self._recipe.average * (state.steps or 1)))
        average: Any = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self._average = AveragedModel(state.model, multi_avg_fn=average, use_buffers=True)
        self._average.update_parameters(state.model)  # the first call takes the weights as they are

    def on_step(self, state: TrainState) -> None:
        """Add a step to the average."""
        self._average.update_parameters(state.model)

    def _model(self, state: TrainState) -> nn.Module:
        return self._average

    def _compare(self, name: str, part: Part, scores: Tensor) -> None:
        regions = [region_to_choose_by(part.labels, region) for region in self._regions]
        found, start = np.full((2, len(scores), len(regions)), math.nan), self._start[name][0].numpy()
        for copy, (column, (low, high)) in product(range(len(scores)), enumerate(regions)):
            if bool(scores[copy].isfinite().all()):
                own = scores[copy].numpy()
                found[:, copy, column] = tpauc_difference(part.labels, own, start, min_tpr=low, max_fpr=high)
        if name == "validation":
            self._rows["lead"].append(found[0] - self._recipe.min_gain * found[1])
        else:
            self._rows["test_error"].append(found[1])

    def curves(self, settings: Sequence[Setting], errors: list[str | None]) -> Curves:
        """Return the scores, and those of the start."""
        start = {
            name: _scores(getattr(self._parts, name).labels, scores, self._regions)[0]
            for name, scores in self._start.items()
        }
        return replace(super().curves(settings, errors), start=start)


def region_to_choose_by(labels: Tensor, region: Region) -> Region:
    """Return the region, widened where the rows are too few for it to hold one positive or one negative.

    Example:
        >>> region_to_choose_by(torch.tensor([1, 1, 0, 0, 0]), (0.6, 0.4))
        (0.5, 0.4)
    """
    positives = int(labels.sum())
    negatives = len(labels) - positives
    low, high = region
    if positives * (1.0 - low) < _ONE:
        low = 1.0 - 1.0 / positives
    if negatives * high < _ONE:
        high = 1.0 / negatives
    return low, high


def _scores(labels: Tensor, scores: Tensor, regions: Sequence[Region], *, missing: float = math.nan) -> Numbers:
    """Return TPAUC of each copy in each region, `(C, regions)`; `missing` where scores are not finite."""
    found = np.full((len(scores), len(regions)), missing)
    truth = labels.numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a region without a pair is NaN here
        for number, copy in enumerate(scores):
            if bool(copy.isfinite().all()):
                found[number] = [tpauc_score(truth, copy.numpy(), min_tpr=a, max_fpr=b) for a, b in regions]
    return found
