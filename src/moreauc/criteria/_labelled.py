r"""What the losses of labelled rows share: the training set's labels, the checks of a batch, and the link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from moreauc._checks import check_device, check_finite, check_floating, check_labels, check_link, check_shape
from moreauc.core.links import Link, scale_of
from moreauc.core.surrogates import get_surrogate
from moreauc.criteria._base import Criterion
from moreauc.criteria._batches import Rows, labelled_rows, widened
from moreauc.criteria._validation import Check


class Batch(NamedTuple):
    """A checked batch of scores.

    Attributes:
        scores: shape `(B,)`, at least float32, with gradient.
        rows: what they are scores of.
        before: scores at the previous weights, shape `(B,)`, where they are needed.
    """

    scores: Tensor
    rows: Rows
    before: Tensor | None = None


class LabelledCriterion(Criterion):
    r"""Base of the losses that are called with scores, labels and row numbers of the training set.

    Args:
        labels: 0/1 labels of the whole training set, shape `(n,)`; rows are named by their position in it.
        sample_weight: how much each of its rows counts, shape `(n,)`, at least 0, some above 0 in both classes; None
            where all count alike. Means become weighted means: a whole number counts as so many equal rows.

    Attributes:
        num_positives: positives in the training set.
        num_negatives: negatives in the training set.
        position: for each row of the set its number among the positives, -1 for a negative; a buffer.

    Shape:
        - scores: `(B,)`, raw model outputs, finite
        - labels: `(B,)`, 0/1; index: `(B,)`, row numbers of the training set, in training mode no repeats
        - output: scalar

    Raises:
        ValueError: for an argument out of range, labels other than 0/1, a class missing in the set or, unless the leaf
            says otherwise, in the batch, NaN or infinite scores, an index out of range, repeated or not labelled as in
            the set, and shapes that differ; before any state has changed.
    """

    position: Tensor
    sample_weight: Tensor | None
    _BOTH = True  # whether a batch must hold both classes

    def __init__(self, labels: Tensor | Sequence[int], sample_weight: Tensor | Sequence[float] | None = None) -> None:
        super().__init__()
        positive = check_labels(self._owner, labels) == 1
        self.num_positives = int(positive.sum())
        self.num_negatives = len(positive) - self.num_positives
        self.register_buffer("position", torch.where(positive, positive.cumsum(0) - 1, -1))
        weights = None if sample_weight is None else _checked_weights(self._owner, sample_weight, positive)
        self.register_buffer("sample_weight", weights)

    def _batch(self, check: Check, scores: Tensor, labels: Tensor, index: Tensor) -> Batch:
        wide = self._check_scores(scores)
        rows = self._rows(check, labels, index, tuple(scores.shape))
        check.finite(scores=wide)
        return Batch(wide, rows)

    def _check_scores(self, scores: Tensor) -> Tensor:
        """Check type, shape and place of scores; return them in a type at least as wide as float32."""
        owner = self._owner
        check_floating(owner, "scores", scores)
        check_shape(owner, "scores", scores, [("B",)])
        check_device(owner, "scores", scores, self.position.device)
        return widened(scores)

    def _rows(self, check: Check, labels: Any, index: Any, shape: tuple[int | str, ...]) -> Rows:
        return labelled_rows(check, self.position, labels, index, shape, unique=self.training, both=self._BOTH)


class PairCriterion(LabelledCriterion):
    r"""Base of the losses over pairs, :math:`\ell(h_j - h_i)` with :math:`i` positive and :math:`j` negative.

    Args:
        labels: as for the base.
        surrogate: name of the pairwise loss :math:`\ell` (see :mod:`moreauc.core.surrogates`).
        margin: its margin; None for the surrogate's default.
        link: "sigmoid", "identity" or "standardized"; :math:`h` is this function of the raw score
            (:mod:`moreauc.core.links`).
        sample_weight: as for the base.
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        surrogate: str,
        margin: float | None,
        link: Link,
        sample_weight: Tensor | Sequence[float] | None = None,
    ) -> None:
        super().__init__(labels, sample_weight)
        self.surrogate = get_surrogate(surrogate, margin)
        check_link(self._owner, link)
        self.link: Link = link

    def _rows(self, check: Check, labels: Any, index: Any, shape: tuple[int | str, ...]) -> Rows:
        rows = super()._rows(check, labels, index, shape)
        return rows if self.sample_weight is None else rows.weighted(self.sample_weight.index_select(0, rows.numbers))

    def _linked(self, scores: Tensor, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """Return :math:`h` of the raw scores of rows, and the scale that they were divided by, where there is one."""
        if self.link == "sigmoid":
            return torch.sigmoid(scores), None
        if self.link == "identity":
            return scores, None
        scale = scale_of(rows.split(scores)[1], rows.left_out, rows.negatives, rows.lower_weight)
        return scores / scale, scale

    def _before_link(self, gradient: Tensor, h: Tensor, scale: Tensor | None) -> Tensor:
        """Return the gradient in raw scores, given that in the linked scores `h`."""
        if self.link == "identity":
            return gradient
        if scale is not None:
            return gradient / scale
        slope: Tensor = torch.ops.aten.sigmoid_backward(gradient, h.to(gradient.dtype))  # times h (1 - h)
        return slope


def _checked_weights(owner: str, sample_weight: Any, positive: Tensor) -> Tensor:
    """Return weights of the rows, float64, on the device of the labels."""
    try:
        weights: Tensor = torch.as_tensor(sample_weight, dtype=torch.float64, device=positive.device)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(sample_weight).__name__
        raise ValueError(f"{owner}: sample_weight must hold numbers, got a {kind} of other things") from error
    check_shape(owner, "sample_weight", weights, [tuple(positive.shape)])
    check_finite(owner, sample_weight=weights)
    if (weights < 0).any():
        raise ValueError(f"{owner}: sample_weight must be at least 0, got {weights.min().item():g}")
    for label, rows in ((1, positive), (0, ~positive)):
        if not weights[rows].any():
            raise ValueError(
                f"{owner}: sample_weight must be above 0 for a row of each class, got 0 for all of {label}"
            )
    return weights.clone()
