r"""What the losses of labelled rows share: the checks of a batch, the link, and pairs of the two classes by rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from moreauc._checks import (
    as_labels,
    check_device,
    check_finite,
    check_floating,
    check_index,
    check_labels,
    check_link,
    check_shape,
)
from moreauc.core.pairs import cvar_over_negatives
from moreauc.core.surrogates import get_surrogate
from moreauc.criteria._base import Criterion

Link = Literal["sigmoid", "identity"]

_BLOCK = 1 << 22  # entries of the pair matrix that `by_rows` makes at a time


class Rows(NamedTuple):
    """The checked rows of a batch: rows of a table, or bags.

    Attributes:
        numbers: their numbers in the training set, shape `(B,)`, as all of these on the device of the loss.
        positive: which of them are positive, shape `(B,)`.
        upper: places of the positives in the batch, shape `(B1,)`. Selecting by numbers is faster than by a mask.
        lower: places of the negatives, shape `(B2,)`.
        among: number of each positive among the positives of the training set, shape `(B1,)`, in the batch's order.
    """

    numbers: Tensor
    positive: Tensor
    upper: Tensor
    lower: Tensor
    among: Tensor

    def split(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values of the positives and those of the negatives."""
        return values.index_select(0, self.upper), values.index_select(0, self.lower)

    def join(self, parts: tuple[Tensor, Tensor], like: Tensor) -> Tensor:
        """Undo :meth:`split`, in the type of `like`."""
        whole = torch.empty_like(like)
        for places, part in zip((self.upper, self.lower), parts, strict=True):
            whole.index_copy_(0, places, part.to(like.dtype))
        return whole


class Batch(NamedTuple):
    """A checked batch of scores.

    Attributes:
        scores: shape `(B,)`, at least float32, with gradient.
        rows: what they are scores of.
    """

    scores: Tensor
    rows: Rows


class LabelledCriterion(Criterion):
    r"""Base of the losses that are called with scores, labels and row numbers of the training set.

    Args:
        labels: 0/1 labels of the whole training set, shape `(n,)`; rows are named by their position in it.

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

    def __init__(self, labels: Tensor | Sequence[int]) -> None:
        super().__init__()
        positive = check_labels(self._owner, labels) == 1
        self.num_positives = int(positive.sum())
        self.num_negatives = len(positive) - self.num_positives
        self.register_buffer("position", torch.where(positive, positive.cumsum(0) - 1, -1))

    def _check_batch(
        self, scores: Tensor, labels: Tensor, index: Tensor, *, both: bool = True, finite: bool = True
    ) -> Batch:
        """Check a batch; `both`: it must hold both classes; `finite`: look for NaN now, not with the results."""
        wide = self._check_scores(scores)
        rows = self._check_rows(labels, index, tuple(scores.shape), both=both)
        if finite:
            check_finite(self._owner, scores=scores)
        return Batch(wide, rows)

    def _check_scores(self, scores: Tensor) -> Tensor:
        """Check type, shape and place of scores; return them in a type at least as wide as float32."""
        owner = self._owner
        check_floating(owner, "scores", scores)
        check_shape(owner, "scores", scores, [("B",)])
        check_device(owner, "scores", scores, self.position.device)
        # half types neither resolve nor hold the sums
        return scores.to(torch.promote_types(scores.dtype, torch.float32))

    def _check_rows(self, labels: Tensor, index: Tensor, shape: tuple[int | str, ...], *, both: bool = True) -> Rows:
        """Check labels, of the shape given, and the numbers of a batch."""
        owner = self._owner
        labels = as_labels(owner, labels)
        check_shape(owner, "labels", labels, [shape])
        index = check_index(owner, "index", index, len(self.position), length=len(labels), unique=self.training)
        index = index.to(self.position.device)
        rows = self.position.index_select(0, index)
        positive = rows >= 0
        # Labels that are those of the set are 0 and 1; only others are looked at again, to say what is wrong.
        if not torch.equal(positive.to(labels.dtype), labels.to(positive.device)):
            check_labels(owner, labels, both=both)
            raise ValueError(f"{owner}: index must point to rows labelled as in labels, got a row of the other class")
        upper, lower = positive.nonzero().squeeze(1), (~positive).nonzero().squeeze(1)
        if both and not (len(upper) and len(lower)):
            check_labels(owner, labels)
        return Rows(index, positive, upper, lower, rows.index_select(0, upper))


class PairCriterion(LabelledCriterion):
    r"""Base of the losses over pairs, :math:`\ell(h_j - h_i)` with :math:`i` positive and :math:`j` negative.

    Args:
        labels: as for the base.
        surrogate: name of the pairwise loss :math:`\ell` (see :mod:`moreauc.core.surrogates`).
        margin: its margin.
        link: "sigmoid" or "identity"; :math:`h` is this function of the raw score.
    """

    def __init__(self, labels: Tensor | Sequence[int], surrogate: str, margin: float, link: Link) -> None:
        super().__init__(labels)
        self.surrogate = get_surrogate(surrogate, margin)
        check_link(self._owner, link)
        self.link: Link = link

    def _linked(self, scores: Tensor) -> Tensor:
        return torch.sigmoid(scores) if self.link == "sigmoid" else scores

    def _mean_over_pairs(self, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the mean of the loss over all pairs of linked scores, without a matrix where the loss allows it."""
        # No loss is below 0, so the excess over the threshold 0 is the loss itself, and its subgradient there is 0.
        zero = torch.zeros_like(positive)
        psi, _ = cvar_over_negatives(positive, negative, zero, surrogate=self.surrogate, max_fpr=1.0)
        return psi.mean()


def by_rows(function: Callable[..., Tensor], positive: Tensor, *negative: Tensor) -> Tensor:
    """Return `function(positive, *negative)`, one value for each positive, in memory linear in the batch.

    Args:
        function: takes some of the positives, shape `(b,)`, and the other arguments; makes a `b x B2` matrix and
            returns shape `(b,)`, without drawing random numbers.
        positive: shape `(B1,)`.
        negative: tensors of shape `(B2,)`.

    Returns:
        Shape `(B1,)`. A matrix larger than a block is made block by block, and again for the gradient.
    """
    size = max(1, _BLOCK // len(negative[0]))
    if size >= len(positive):
        return function(positive, *negative)
    return torch.cat(
        [
            checkpoint(function, block, *negative, use_reentrant=False, preserve_rng_state=False)
            for block in torch.split(positive, size)
        ]
    )
