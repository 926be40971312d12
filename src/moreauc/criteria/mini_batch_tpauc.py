r"""Two-way partial AUC of the mini-batch itself."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from moreauc._checks import check_real, floor_count
from moreauc.criteria._labelled import Link, PairCriterion


class MiniBatchTPAUCLoss(PairCriterion):
    r"""Mean of a pairwise loss over the batch's own lowest positives and highest negatives (MB).

    .. math:: \frac1{k_1 k_2} \sum_{i \in L_+} \sum_{j \in H_-} \ell(h_j - h_i), \quad
        k_1 = \max(1, \lfloor \alpha B_1 \rfloor), \quad k_2 = \max(1, \lfloor \beta B_2 \rfloor)

    with :math:`\alpha = 1 -` `min_tpr`, :math:`\beta =` `max_fpr`, :math:`L_+` the :math:`k_1` lowest scored positives
    of the batch and :math:`H_-` its :math:`k_2` highest scored negatives. The floor forgives rounding, as in
    :func:`~moreauc.metrics.tpauc_score`. Which of several equal scores is taken at the edge is left open and does not
    change the value.

    It has no state, and it is biased: the worst rows of a small batch are not the worst rows of the data. The bias
    shrinks as the batch grows.

    Args:
        labels: 0/1 labels of the whole training set, shape `(n,)`.
        min_tpr: lower end of the true positive rate, in [0, 1).
        max_fpr: upper end of the false positive rate, in (0, 1].
        surrogate: name of the pairwise loss :math:`\ell` (see :mod:`moreauc.core.surrogates`).
        margin: its margin.
        link: "sigmoid" or "identity", applied to the scores.

    Shape:
        as for all losses: scores, labels, index `(B,)`; output a scalar

    Raises:
        ValueError: for an argument out of range, and for bad batches as :class:`~moreauc.TPAUCLoss`.

    Example:
        >>> import torch
        >>> labels = torch.tensor([0, 1, 0, 1])
        >>> criterion = MiniBatchTPAUCLoss(labels, min_tpr=0.5, max_fpr=0.5, link="identity")
        >>> criterion(torch.tensor([1.0, 0.5, -2.0, 3.0]), labels, torch.arange(4)).item()
        2.25

    Reference:
        Kar, Narasimhan and Jain, Online and Stochastic Gradient Methods for Non-decomposable Loss Functions,
        NeurIPS 2014.
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        min_tpr: float,
        max_fpr: float,
        surrogate: str = "squared_hinge",
        margin: float = 1.0,
        link: Link = "sigmoid",
    ) -> None:
        super().__init__(labels, surrogate, margin, link)
        self.min_tpr = check_real(self._owner, "min_tpr", min_tpr, low=0.0, high=1.0, high_open=True)
        self.max_fpr = check_real(self._owner, "max_fpr", max_fpr, low=0.0, high=1.0, low_open=True)

    def forward(self, scores: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        """Return the scalar to call `backward` on; see the class for shapes and meaning."""
        batch = self._check_batch(scores, labels, index)
        positive, negative = batch.rows.split(batch.scores)
        # The link keeps the order, so it is taken of the chosen rows only.
        lowest = positive.topk(max(1, floor_count(len(positive), 1.0 - self.min_tpr)), largest=False).values
        highest = negative.topk(max(1, floor_count(len(negative), self.max_fpr))).values
        return self._mean_over_pairs(self._linked(lowest), self._linked(highest))
