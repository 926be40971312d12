"""L-BFGS with a penalty of the weights: the exact minimum of a convex loss over all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.optim import LBFGS

_MOST_STEPS = 1000


class PenalizedLBFGS(LBFGS):
    r"""Minimise a loss plus :math:`\frac\lambda2 \|w\|^2` in one call of `step`; biases are not penalised.

    For losses without state, which may be evaluated several times, over a batch of all rows. Unlike the decoupled decay
    of AdamW, the penalty is part of what is minimised: of the mean cross entropy of `n` rows with a linear model the
    minimum is that of scikit-learn's `LogisticRegression(C=1 / (lambda * n))`.

    `weight_decay` is :math:`\lambda`, at least 0. Of the `parameters` those with two or more dimensions are penalised.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, weight_decay: float) -> None:
        super().__init__(parameters, max_iter=_MOST_STEPS, tolerance_change=1e-12, line_search_fn="strong_wolfe")
        self._weight_decay = weight_decay

    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # type: ignore[override]
        """Minimise what `closure`, which also computes the gradients, returns; return its value before."""
        weights = [weight for group in self.param_groups for weight in group["params"] if weight.ndim > 1]

        def penalized() -> Tensor:
            loss = closure()
            for weight in weights:
                loss = loss + 0.5 * self._weight_decay * weight.detach().square().sum()
                weight.grad.add_(weight.detach(), alpha=self._weight_decay)
            return loss

        loss: Tensor = super().step(penalized)  # type: ignore[no-untyped-call]
        self.state.clear()  # the minimum needs no memory of the way to it
        return loss
