r"""Links: what turns a raw score into the :math:`h` that pairs are made of.

- "sigmoid": :math:`h = 1 / (1 + e^{-x})`, the paper's.
- "identity": :math:`h = x`.
- "standardized": :math:`h = x / \sigma`, with :math:`\sigma` the standard deviation (population formula) of the raw
  scores of the negatives at hand: of the batch in a loss, of the data set in an exact objective. No gradient flows
  through :math:`\sigma`. A margin is then in standard deviations, and the loss does not change with the scale of the
  model. The negatives are the larger class, so their spread is the steadier one.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Link = Literal["sigmoid", "identity", "standardized"]


def scale_of(
    negative: Tensor, left_out: Tensor | None = None, count: float | Tensor = 0.0, weight: Tensor | None = None
) -> Tensor:
    r"""Return :math:`\sigma`, shape `()`; 1 where the scores are all equal, to rounding, so that they have no scale.

    Args:
        negative: raw scores of the negatives, shape `(B2,)`.
        left_out: which of them are none, shape `(B2,)`; None where all are negatives.
        count: how many are, where some are left out.
        weight: of each, shape `(B2,)`, 0 for what is left out, with sum `count`; None for equal weights.
    """
    exact = negative.double()  # squares of large scores would overflow
    if weight is not None:
        centre = (weight * exact).sum() / count
        spread = ((weight * (exact - centre).square()).sum() / count).sqrt()
    elif left_out is None:
        spread, centre = torch.std_mean(exact, correction=0)
    else:
        centre = exact.masked_fill(left_out, 0.0).sum() / count
        spread = ((exact - centre).masked_fill(left_out, 0.0).square().sum() / count).sqrt()
    rounding = 8.0 * torch.finfo(negative.dtype).eps * centre.abs() + 1e-12
    return torch.where(spread > rounding, spread, 1.0).to(negative.dtype)
