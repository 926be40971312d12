"""A method on the data of one run: all its settings trained, the best by validation, its test score."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from experiments.config import Contestant, Experiment, Setting, Training
from experiments.models.side_by_side import CopyRates, SideBySide, SideBySideLoss
from experiments.parts import Part, Parts
from moreauc._checks import floor_count
from moreauc.methods import METHODS, TaskName, build
from moreauc.metrics import tpauc_score
from moreauc.train import Callback, TrainState, fit

Weights = dict[str, Tensor]
_NOT_OF_THE_LOSS = ("lr", "momentum", "share", "sampler")
Region = tuple[float, float]
Numbers = NDArray[np.float64]


@dataclass
class Curves:
    """Scores after each epoch, for each setting and region.

    Attributes:
        merit: validation TPAUC to choose by, `(settings, epochs, regions)`; -inf where it diverged.
        validation: validation TPAUC.
        test: test TPAUC.
        auc: validation AUC, which chooses between equal merits, `(settings, epochs)`; None in the first runs.
        training: TPAUC of the training rows, where asked for.
        errors: why a setting diverged.
    """

    merit: Numbers
    validation: Numbers
    test: Numbers
    auc: Numbers | None = None
    training: Numbers | None = None
    errors: list[str | None] = field(default_factory=list)


def train_settings(
    plan: Experiment,
    contestant: Contestant,
    parts: Parts,
    *,
    seed: int,
    start: Weights | None = None,
    settings: Sequence[Setting] | None = None,
    device: torch.device | str = "cpu",
    look_at_training: bool = False,
) -> Curves:
    """Train a method by each of its settings, a few at a time side by side, and score every epoch.

    A setting that diverges has no merit from then on, which may be so for all of them.

    Args:
        plan: the experiment.
        contestant: the method.
        parts: the data.
        seed: seed of weights and dropout.
        start: weights that all settings start from; None for fresh ones.
        settings: settings to try; None for those of the method.
        device: where to train.
        look_at_training: whether to score the training rows, too.
    """
    settings = contestant.settings if settings is None else settings
    pieces = [
        _train(plan, contestant, parts, together, seed, start, device, look_at_training)
        for together in _batches_of(settings, plan.training.side_by_side)
    ]
    names = ["merit", "validation", "test", "auc", *(["training"] if look_at_training else [])]
    joined: dict[str, Any] = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in names}
    return Curves(**joined, errors=[error for piece in pieces for error in piece.errors])


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


def pretrain(plan: Experiment, parts: Parts, *, seed: int, device: torch.device | str = "cpu") -> Weights:
    """Return the weights that all methods start from: those after some epochs of cross entropy with Adam."""
    training = plan.training
    model = _fresh(parts, seed).to(device)
    preset = "ce" if plan.name == "molecules" else "ce_att"
    task: TaskName = "rows" if plan.name == "molecules" else "bags"
    criterion = build(task, preset, parts.labels, min_tpr=0.0, max_fpr=1.0)
    fit(
        model,
        criterion.to(device),
        parts.train("shuffled"),
        epochs=training.pretrain_epochs,
        optimizer="adam",
        lr=training.pretrain_lr,
        weight_decay=training.weight_decay,
        milestones=(),
        seed=seed,
    )
    return {name: value.detach().cpu() for name, value in model.state_dict().items()}


def score_weights(
    plan: Experiment, parts: Parts, weights: Weights, *, device: torch.device | str = "cpu"
) -> dict[str, Numbers]:
    """Return validation and test TPAUC of a model with these weights in each region."""
    model = _fresh(parts, 0)
    model.load_state_dict(weights)
    alone = _Alone(model).to(device).eval()
    named = {"validation": parts.validation, "test": parts.test}
    return {name: _scores(part.labels, part.scores(alone), plan.regions)[0] for name, part in named.items()}


def _train(
    plan: Experiment,
    contestant: Contestant,
    parts: Parts,
    settings: Sequence[Setting],
    seed: int,
    start: Weights | None,
    device: torch.device | str,
    look_at_training: bool,
) -> Curves:
    training = plan.training
    first = _fresh(parts, seed)
    if start is not None:
        first.load_state_dict(start)
    model: nn.Module = _Alone(first) if len(settings) == 1 else SideBySide([first] * len(settings))
    model.to(device)
    survivors = [_Survivor(_criterion(plan, contestant, setting, parts.labels)) for setting in settings]
    rates = [float(setting.get("lr", training.lr)) for setting in settings]
    optimizer = _optimizer(training, model, max(rates))
    copies = CopyRates(optimizer, [rate / max(rates) for rate in rates]) if len(set(rates)) > 1 else None
    recorder = _Recorder(plan, parts, look_at_training)
    proximal = (METHODS["rows"] if plan.name == "molecules" else METHODS["bags"])[contestant.preset].proximal
    try:
        fit(
            model,
            SideBySideLoss(survivors),
            parts.train(settings[0].get("sampler", "balanced")),
            epochs=training.epochs,
            optimizer=optimizer,
            milestones=training.milestones,
            proximal=proximal,
            seed=seed,
            callbacks=[recorder],
        )
    finally:
        if copies is not None:
            copies.remove()
    return recorder.curves([survivor.error for survivor in survivors])


def _fresh(parts: Parts, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return parts.model()


def _criterion(plan: Experiment, contestant: Contestant, setting: Setting, labels: Tensor) -> nn.Module:
    named = {key: value for key, value in {**contestant.options, **setting}.items() if key not in _NOT_OF_THE_LOSS}
    options: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in named.items()}
    share = float(setting.get("share", 1.0))
    task: TaskName = "rows" if plan.name == "molecules" else "bags"
    criterion: nn.Module = build(task, contestant.preset, labels, min_tpr=1.0 - share, max_fpr=share, **options)
    return criterion


def _optimizer(training: Training, model: nn.Module, lr: float) -> Optimizer:
    weights = list(model.parameters())
    if training.optimizer == "adam":
        return AdamW(weights, lr=lr, weight_decay=training.weight_decay)
    return SGD(weights, lr=lr, momentum=training.momentum, weight_decay=training.weight_decay)


class _Alone(nn.Module):
    """One model in the form of :class:`SideBySide`, for networks that fill a GPU by themselves."""

    row_dim = 1  # of the outputs, whose first dimension is that of the models

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs).unsqueeze(0)


class _Survivor(nn.Module):
    """A loss that, once its scores are no longer finite, lets the others go on without it."""

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
            except ValueError as error:
                if "finite" not in str(error):
                    raise
                self.error = str(error).splitlines()[0]
        # zero, but with a gradient (of zeros): with all settings gone there would be nothing to go back through
        return 0.0 * torch.where(scores.isfinite(), scores, 0.0).sum()


class _Recorder(Callback):
    """Scores validation and test rows after each epoch; ends the training once all settings have diverged."""

    def __init__(self, plan: Experiment, parts: Parts, look_at_training: bool) -> None:
        self._regions, self._parts, self._epochs = plan.regions, parts, plan.training.epochs
        self._names = ["validation", "test", *(["training"] if look_at_training else [])]
        self._rows: dict[str, list[Numbers]] = {name: [] for name in ["merit", "auc", *self._names]}

    def on_epoch(self, state: TrainState) -> None:
        """Score the present weights of all copies."""
        state.model.eval()
        survivors = _survivors(state)
        state.stop = bool(survivors) and all(survivor.error is not None for survivor in survivors)
        for name in self._names:
            part: Part = getattr(self._parts, name)
            scores = part.scores(state.model)
            self._rows[name].append(_scores(part.labels, scores, self._regions))
            if name == "validation":
                regions = [region_to_choose_by(part.labels, region) for region in self._regions]
                merit = _scores(part.labels, scores, regions, missing=-math.inf)
                merit[[survivor.error is not None for survivor in survivors]] = -math.inf
                self._rows["merit"].append(merit)
                self._rows["auc"].append(_scores(part.labels, scores, [(0.0, 1.0)]))

    def curves(self, errors: list[str | None]) -> Curves:
        """Return what was seen; a setting that diverged has no merit from then on, and epochs not run have no score."""
        for name, rows in self._rows.items():
            nothing = np.full_like(rows[0], -math.inf if name == "merit" else math.nan)
            rows.extend([nothing] * (self._epochs - len(rows)))
        stacked = {name: np.stack(rows, axis=1) for name, rows in self._rows.items()}
        return Curves(**stacked | {"auc": stacked["auc"][:, :, 0]}, errors=errors)


def _survivors(state: TrainState) -> list[_Survivor]:
    loss = state.criterion
    return [entry for entry in getattr(loss, "criteria", ()) if isinstance(entry, _Survivor)]


def region_to_choose_by(labels: Tensor, region: Region) -> Region:
    """Return the region, widened where the rows are too few for it to hold one positive or one negative.

    Example:
        >>> region_to_choose_by(torch.tensor([1, 1, 0, 0, 0]), (0.6, 0.4))
        (0.5, 0.4)
    """
    positives = int(labels.sum())
    negatives = len(labels) - positives
    low, high = region
    if floor_count(positives, 1.0 - low) == 0:
        low = 1.0 - 1.0 / positives
    if floor_count(negatives, high) == 0:
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
