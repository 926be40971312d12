"""Training with Lightning, with complete state in its checkpoints. Needs the extra `lightning`.

- :class:`CriterionModule`: a LightningModule of a model and a loss of the library, ready to use;
- :class:`StatefulCriterion`: a callback for a LightningModule of your own, with :func:`criterion_loss` or
  :func:`previous_iterate` in its `training_step`;
- :class:`~moreauc.contrib.ResumableLoader`: the loader to give to `trainer.fit`.

The tables of a loss are buffers of a submodule, which Lightning saves with the weights. The callback saves what
Lightning does not: the previous weights, the reference point, the global random states, gradients not used yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from moreauc._checks import check_real
from moreauc._system import import_extra
from moreauc.contrib._lightning_callback import StatefulCriterion, criterion_loss, previous_iterate
from moreauc.contrib.loader import ResumableLoader
from moreauc.data.bag_batches import BagInputs
from moreauc.data.scoring import instances_for, scores_of
from moreauc.distributed import gather_scores
from moreauc.train.selection import Score, TwoWayScore, UserScore, validation_score

__all__ = ["CriterionModule", "ResumableLoader", "StatefulCriterion", "criterion_loss", "previous_iterate"]

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule
else:
    LightningModule = import_extra("lightning.pytorch", "lightning").LightningModule

_OWNER = "CriterionModule"


class CriterionModule(LightningModule):
    """A LightningModule that trains `model` by `criterion`, and scores the validation data.

    It logs `train_loss`, the mean over the steps of an epoch, and `val_score`, the two-way partial AUC of all
    validation data (`test_score` of the test data). `predict_step` returns raw scores. It adds a
    :class:`~moreauc.contrib.lightning.StatefulCriterion`, so that a run resumed from any of Lightning's checkpoints
    equals one that was not interrupted.

    Args:
        model: maps inputs to raw scores of shape `(B,)` or `(B, 1)`. Inputs given as a tuple are passed by position,
            as a dictionary by name; :class:`~moreauc.data.BagInputs` as instances.
        criterion: a loss of the library, called as `criterion(scores, labels, index)`; one over bags as
            `criterion(outputs, bag, labels, index)`.
        optimizer: "sgd", "adam" (AdamW), or a function that makes an optimizer of the model's parameters.
        lr: learning rate, if `optimizer` is a name.
        momentum: momentum of "sgd".
        weight_decay: weight decay, if `optimizer` is a name.
        scheduler: a function that makes a scheduler of the optimizer, stepped after each epoch; None for none.
        proximal: weight of the proximal term, at least 0.
        restarts: epochs before which the reference point is updated.
        min_tpr: lower edge of the region of the score; that of the criterion by default.
        max_fpr: as `min_tpr`.
        score: function of all scores and labels, on the CPU, to use instead of TPAUC; higher is better. Required with
            validation data if the loss has no region.

    Raises:
        ValueError: for an argument out of range; with validation data, if there is neither region nor `score`, the data
            lack a class or have too few rows for the region, or a `score` is not finite.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from moreauc import TPAUCLoss
        >>> from moreauc.contrib import ResumableLoader
        >>> from moreauc.data import TensorBatches
        >>> from moreauc.samplers import PosNegSampler
        >>> x = torch.linspace(-1, 1, 40).unsqueeze(1)
        >>> y = (x.squeeze(1) > 0.5).long()
        >>> train = TensorBatches(x, y, PosNegSampler(y, num_positives=4, num_negatives=8))
        >>> module = CriterionModule(nn.Linear(1, 1), TPAUCLoss(y, min_tpr=0.5, max_fpr=0.5, gamma=0.1), lr=0.5)
        >>> quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
        >>> trainer = Trainer(max_epochs=3, accelerator="cpu", enable_checkpointing=False, **quiet)
        >>> trainer.fit(module, ResumableLoader(train), TensorBatches(x, y))
        >>> trainer.callback_metrics["val_score"]
        tensor(1.)
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module,
        *,
        optimizer: Literal["sgd", "adam"] | Callable[[list[nn.Parameter]], Optimizer] = "sgd",
        lr: float = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 2e-4,
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        proximal: float = 0.0,
        restarts: Sequence[int] = (),
        min_tpr: float | None = None,
        max_fpr: float | None = None,
        score: Score | None = None,
    ) -> None:
        super().__init__()
        for name, part in {"model": model, "criterion": criterion}.items():
            if not isinstance(part, nn.Module):
                raise ValueError(f"{_OWNER}: {name} must be an nn.Module, got {type(part).__name__}")
        if not callable(optimizer) and optimizer not in ("sgd", "adam"):
            raise ValueError(f"{_OWNER}: optimizer must be a function, 'sgd' or 'adam', got {optimizer!r}")
        if scheduler is not None and not callable(scheduler):
            raise ValueError(f"{_OWNER}: scheduler must be a function or None, got {scheduler!r}")
        self._lr = check_real(_OWNER, "lr", lr, low=0.0, low_open=True)
        self._momentum = check_real(_OWNER, "momentum", momentum, low=0.0, high=1.0, high_open=True)
        self._weight_decay = check_real(_OWNER, "weight_decay", weight_decay, low=0.0)
        self._optimizer, self._scheduler = optimizer, scheduler
        self._keep = StatefulCriterion(proximal=proximal, restarts=restarts)
        self._region = {"min_tpr": min_tpr, "max_fpr": max_fpr}
        self._score: TwoWayScore | UserScore | None = None  # None until data are known, if the loss has no region
        known = all(getattr(criterion, name, None) is not None for name, given in self._region.items() if given is None)
        if known or score is not None:
            self._score = validation_score(_OWNER, criterion, score=score, **self._region)
        self._parts: list[tuple[Tensor, ...]] = []  # scores, labels and numbers of the validation data so far
        self.model, self.criterion = model, criterion

    def configure_callbacks(self) -> list[Any]:
        """Return the callback that saves what Lightning does not."""
        return [self._keep]

    def configure_optimizers(self) -> Any:
        """Make the optimizer, and the scheduler if there is one."""
        optimizer = self._make_optimizer(list(self.model.parameters()))
        if self._scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": self._scheduler(optimizer)}

    def _make_optimizer(self, parameters: list[nn.Parameter]) -> Optimizer:
        if callable(self._optimizer):
            return self._optimizer(parameters)
        if self._optimizer == "adam":
            return AdamW(parameters, lr=self._lr, weight_decay=self._weight_decay)
        return SGD(parameters, lr=self._lr, momentum=self._momentum, weight_decay=self._weight_decay)

    def forward(self, inputs: Any) -> Tensor:
        """Return raw scores; of bags, pooled over the instances given."""
        if not isinstance(inputs, BagInputs):
            return scores_of(self.model, inputs)
        outputs = scores_of(self.model, instances_for(self.model, inputs.instances))
        pooling: Any = self.criterion.pooling
        pooled: Tensor = pooling(outputs, inputs.bag, int(inputs.bag.max()) + 1)
        return pooled

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of a batch `(inputs, labels, index)`."""
        loss = criterion_loss(self, batch)
        self.log("train_loss", loss.detach(), on_step=False, on_epoch=True, batch_size=1, sync_dist=True)
        return loss

    def on_validation_epoch_start(self) -> None:
        """Check that there is a score; discard the last pass."""
        self._begin()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Score a batch `(inputs, labels, ...)`; whole bags for a loss over bags."""
        self._add(batch)

    def on_validation_epoch_end(self) -> None:
        """Log the score of all batches together."""
        self._finish("val_score")

    def on_test_epoch_start(self) -> None:
        """As for the validation data."""
        self._begin()

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """As for the validation data."""
        self._add(batch)

    def on_test_epoch_end(self) -> None:
        """As for the validation data."""
        self._finish("test_score")

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the raw scores of a batch `(inputs, ...)`, or of inputs alone where they are no tuple."""
        whole = isinstance(batch, BagInputs) or not isinstance(batch, tuple | list)
        return self(batch if whole else batch[0])  # type: ignore[no-any-return]

    def _begin(self) -> None:
        self._parts = []
        if self._score is None:
            self._score = validation_score(_OWNER, self.criterion, score=None, **self._region)

    @property
    def _several(self) -> bool:
        return bool(self.trainer.world_size > 1)

    def _add(self, batch: Any) -> None:
        columns = batch[1:3] if self._several else batch[1:2]
        if len(columns) < 1 + self._several:
            wanted = "(inputs, labels, index) on several processes" if self._several else "(inputs, labels)"
            raise ValueError(f"{_OWNER}: batches of validation must be {wanted}, got {len(batch)} parts")
        numbers = (torch.as_tensor(column, device=self.device).reshape(-1) for column in columns)
        self._parts.append((self(batch[0]).detach().double(), *numbers))

    def _finish(self, name: str) -> None:
        parts, self._parts = self._parts, []
        if self.trainer.sanity_checking:  # a few batches may lack a class
            return
        scores, labels, *index = (torch.cat(column) for column in zip(*parts, strict=True))
        if self._several:  # every row counts once, whichever process has it
            scores, labels, _ = gather_scores(scores, labels, *index)
        assert self._score is not None  # set by _begin
        self.log(name, self._score(scores.cpu(), labels.cpu())[0], batch_size=1, sync_dist=True)
