r"""The mean of the largest losses of a batch: robustness without knowing the groups."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from moreauc.criteria._base import Criterion, Step, number_attribute
from moreauc.criteria._batches import check_losses, widened
from moreauc.criteria._validation import Check


class SampleCVaRLoss(Criterion):
    r"""Conditional value at risk of the samples' losses (CVaR), over the batch.

    .. math:: \min_s\; s + \frac1{\rho B} \sum_{i=1}^B (\ell_i - s)_+

    with :math:`\rho` = `fraction`: the mean of the :math:`\rho B` largest losses, the last of them taken in part where
    this is not a whole number; the largest loss where it is below 1. It bounds the loss of every group that holds at
    least this fraction of the samples, without group labels; among equal losses at the edge those that come first in
    the batch are taken. The mean over batches is at most the CVaR of the whole set, since each batch contributes its
    own tail.

    Args:
        fraction: :math:`\rho` in (0, 1]; 1 is the mean of the losses. A plain attribute: a schedule may change it.

    Shape:
        - losses: `(B,)`, loss of each sample; groups and previous_losses are not used
        - output: scalar

    Example:
        >>> losses = torch.tensor([1.0, 4.0, 2.0, 3.0, 0.0], requires_grad=True)
        >>> loss = SampleCVaRLoss(fraction=0.5)(losses)  # two losses and one half of the third
        >>> loss.backward()
        >>> loss.item(), losses.grad
        (3.2..., tensor([0.0000, 0.4000, 0.2000, 0.4000, 0.0000]))
    """

    label_buffers: ClassVar[tuple[str, ...]] = ()

    fraction = number_attribute("fraction", "Share of the losses in the mean, in (0, 1].", high=1.0, low_open=True)

    def __init__(self, *, fraction: float) -> None:
        super().__init__()
        self.fraction = fraction

    def _batch(
        self, check: Check, losses: Tensor, groups: Tensor | None = None, previous_losses: Tensor | None = None
    ) -> Tensor:
        check_losses(self._owner, losses, self.device)
        check.finite(losses=losses)
        return widened(losses)

    def _step(self, batch: Tensor) -> Step:
        ordered, order = batch.sort(descending=True, stable=True)
        mass = self.fraction * len(batch)
        # float64 because float32 cannot tell the place from the mass beyond some ten million samples
        place = torch.arange(len(batch), dtype=torch.float64, device=batch.device)
        weight = ((mass - place).clamp(0.0, 1.0) / mass).to(batch.dtype)
        value, gradient = (weight * ordered).sum(), torch.empty_like(weight).scatter_(0, order, weight)
        return Step(value, batch, gradient, finite={"the loss": value})
