r"""Any loss over groups, for the training loop: called with scores, labels and row numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from moreauc._checks import check_device, check_floating, check_labels, check_scores_shape, check_shape
from moreauc._group_input import check_groups
from moreauc.criteria._base import Function, Step, WrappingCriterion
from moreauc.criteria._batches import widened
from moreauc.criteria._gates import enter
from moreauc.criteria._validation import Check, as_numbers

SampleLoss = Literal["logistic", "cross_entropy", "squared", "absolute"] | Function


def _logistic(scores: Tensor, labels: Tensor) -> Tensor:
    return softplus((1.0 - 2.0 * labels.to(scores.dtype)) * scores)


def _cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(scores, labels, reduction="none")


def _squared(scores: Tensor, labels: Tensor) -> Tensor:
    return (scores - labels).square()


def _absolute(scores: Tensor, labels: Tensor) -> Tensor:
    return (scores - labels).abs()


_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logistic": _logistic,
    "cross_entropy": _cross_entropy,
    "squared": _squared,
    "absolute": _absolute,
}


class _ScoredRows(NamedTuple):
    """A checked batch: scores, with gradient, labels, numbers, scores at the previous weights, and the gate."""

    check: Check
    scores: Tensor
    labels: Tensor
    numbers: Tensor
    before: Tensor | None
    gate: Tensor | None


class GroupedLoss(WrappingCriterion):
    r"""A loss over groups, on scores and labels of rows whose groups are known.

    It computes the loss of each row and passes these to `criterion` with the groups of the rows. This lets
    :class:`~moreauc.GroupDROLoss` and its baselines be trained by :func:`moreauc.train.fit`.

    Args:
        criterion: a loss called as `criterion(losses, groups)`, such as :class:`~moreauc.GroupDROLoss`,
            :class:`~moreauc.criteria.GroupERMLoss`, :class:`~moreauc.criteria.ExponentiatedGroupDROLoss`,
            :class:`~moreauc.criteria.SampleCVaRLoss`. One that needs previous losses gets those of `previous_scores`.
        groups: groups of the whole training set: ids, shape `(n,)`, or memberships, 0 or 1, shape `(n, N)`. Each of the
            criterion's groups must have a row (if the criterion has no number of groups, each up to the largest id).
        loss: the loss of a row. "logistic" for labels 0/1, :math:`\log(1 + e^{\mp h})`; "cross_entropy" for integer
            labels in [0, C) and C scores for each row; "squared" or "absolute" error for regression; or any function of
            scores and labels that returns shape `(B,)`; it checks shapes itself.

    Shape:
        - scores, previous_scores: `(B,)`, raw model outputs; `(B, C)` for cross entropy
        - labels: `(B,)`; index: `(B,)`, row numbers of the training set, in training mode no repeats
        - output: scalar

    Example:
        >>> from moreauc import GroupDROLoss
        >>> criterion = GroupedLoss(GroupDROLoss(2, top_k=1), groups=[0, 0, 0, 1], loss="squared")
        >>> scores = torch.tensor([1.0, 3.0], requires_grad=True)
        >>> criterion(scores, torch.tensor([0.0, 1.0]), index=torch.tensor([1, 3])).item()
        5.0
        >>> criterion.criterion.u
        tensor([1., 4.])
    """

    label_buffers: ClassVar[tuple[str, ...]] = ("groups",)
    groups: Tensor

    def __init__(
        self, criterion: nn.Module, groups: Tensor | Sequence[Any] | NDArray[Any], *, loss: SampleLoss = "logistic"
    ) -> None:
        super().__init__(criterion, "losses", "groups")
        if not callable(loss) and loss not in _LOSSES:
            known = ", ".join(repr(name) for name in _LOSSES)
            raise ValueError(f"{self._owner}: loss must be a function or one of {known}, got {loss!r}")
        self.loss = loss
        self.register_buffer("groups", self._check_groups(groups))

    def _check_groups(self, groups: Tensor | Sequence[Any] | NDArray[Any]) -> Tensor:
        members = check_groups(self._owner, groups, getattr(self.criterion, "num_groups", None))
        empty = (members.sizes() == 0).nonzero()[0]
        if len(empty):
            every = f"each group in [0, {members.num_groups})"
            raise ValueError(f"{self._owner}: groups must give {every} a row, got none for group {empty[0]}")
        held: Tensor = torch.from_numpy(members.ids)
        if np.ndim(groups) == 2:
            held = torch.zeros(members.num_rows, members.num_groups, dtype=torch.bool)
            held[torch.from_numpy(members.rows), torch.from_numpy(members.ids)] = True
        return held.to(groups.device) if isinstance(groups, Tensor) else held

    def _batch(
        self, check: Check, scores: Tensor, labels: Tensor, index: Tensor, previous_scores: Tensor | None = None
    ) -> _ScoredRows:
        self._check_scores(scores)
        wide, place = widened(scores), self.groups.device
        number, unique = len(self.groups), self.training
        index = check.index(
            "index", index, number, length=len(scores), unique=unique, device=place, rows="training set"
        )
        before = check.previous("scores", scores, previous_scores, self.training and self.needs_previous)
        check.finite(scores=wide, previous_scores=before)
        targets = self._labels(check, labels, wide)
        gated, gate = enter(wide, check.late)
        past = None if before is None else check.clean(before.to(wide.dtype))
        return _ScoredRows(check, check.clean(gated), targets, index, past, gate)

    def _step(self, batch: _ScoredRows) -> Step:
        check, scores, labels, index, before, gate = batch
        previous: dict[str, Tensor] = {}
        if before is not None:
            with torch.no_grad():
                previous["previous_losses"] = self._losses(before, labels)
        losses, groups = self._losses(scores, labels), self.groups.index_select(0, index)
        return self._inner_step(check, scores, gate, losses, groups, **previous)

    def _check_scores(self, scores: Tensor) -> None:
        owner = self._owner
        check_floating(owner, "scores", scores)
        if self.loss == "logistic":
            check_scores_shape(owner, scores)
        elif not callable(self.loss):
            check_shape(owner, "scores", scores, [("B", "C") if self.loss == "cross_entropy" else ("B",)])
        elif scores.ndim == 0 or not len(scores):
            raise ValueError(f"{owner}: scores must have shape (B, ...), got {tuple(scores.shape)}")
        check_device(owner, "scores", scores, self.groups.device)

    def _labels(self, check: Check, labels: object, scores: Tensor) -> Tensor:
        """Return the labels as the loss of a row takes them, on the device of the scores."""
        owner = self._owner
        values = as_numbers(owner, "labels", labels)
        if callable(self.loss):
            return values.to(scores.device, non_blocking=check.late)
        check_shape(owner, "labels", values, [(len(scores),)])
        if self.loss == "logistic" and not check.late:
            return check_labels(owner, values, both=False).to(scores.device)
        values = values.to(scores.device, non_blocking=check.late)
        if self.loss == "logistic":
            check.flag("labels must be 0 or 1, got another one", ((values != 0) & (values != 1)).any())
            return values.long()
        if self.loss == "cross_entropy":
            return self._classes(check, values, scores.shape[1])
        if values.is_complex():
            raise ValueError(f"{owner}: labels must hold real numbers, got {values.dtype}")
        values = values.to(scores.dtype)
        check.finite(labels=values)
        return values

    def _classes(self, check: Check, values: Tensor, number: int) -> Tensor:
        """Return labels in [0, number)."""
        if values.dtype == torch.bool or values.is_floating_point() or values.is_complex():
            raise ValueError(f"{self._owner}: labels must hold integers, got {values.dtype}")
        if check.late:
            safe = values.long().clamp(0, number - 1)
            check.flag("labels must lie in the range of the classes, got another number", (safe != values).any())
            return safe
        low, high = (int(value) for value in torch.aminmax(values))
        if low < 0 or high >= number:
            raise ValueError(f"{self._owner}: labels must lie in [0, {number}), got {low if low < 0 else high}")
        return values.long()

    def _losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        if callable(self.loss):
            return self._call("loss", self.loss, scores, labels, (len(scores),))
        return _LOSSES[self.loss](scores, labels)
