r"""The pairwise surrogate of the whole AUC."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from moreauc.criteria._labelled import Link, PairCriterion


class AUCSquaredHingeLoss(PairCriterion):
    r"""Mean of a pairwise loss over all pairs of the batch (AUC-SH).

    .. math:: \frac1{B_1 B_2} \sum_{i \in B_+} \sum_{j \in B_-} \ell(h_j - h_i)

    It has no state, and its gradient is an unbiased estimate of that over the whole set. For the squared hinge and
    the hinge large batches are sorted, so that no matrix of pairs is made (see
    :func:`~moreauc.core.pairs.cvar_over_negatives`).

    Args:
        labels: 0/1 labels of the whole training set, shape `(n,)`.
        surrogate: name of the pairwise loss :math:`\ell` (see :mod:`moreauc.core.surrogates`).
        margin: its margin.
        link: "sigmoid" or "identity", applied to the scores.

    Shape:
        as for all losses: scores, labels, index `(B,)`; output a scalar

    Raises:
        ValueError: for an argument out of range, and for bad batches as :class:`~moreauc.TPAUCLoss`.

    Example:
        >>> import torch
        >>> criterion = AUCSquaredHingeLoss(torch.tensor([0, 1, 0]), link="identity")
        >>> criterion(torch.tensor([1.0, 0.5, -2.0]), torch.tensor([0, 1, 0]), torch.arange(3)).item()
        1.125
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        surrogate: str = "squared_hinge",
        margin: float = 1.0,
        link: Link = "sigmoid",
    ) -> None:
        super().__init__(labels, surrogate, margin, link)

    def forward(self, scores: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        """Return the scalar to call `backward` on; see the class for shapes and meaning."""
        batch = self._check_batch(scores, labels, index)
        h = self._linked(batch.scores)
        return self._mean_over_pairs(*batch.rows.split(h))
