"""A three-level problem with a known optimum."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.problems.base import KnownOptimum, LinearProgram
from moreauc.solver.problems import ThreeLevelProblem


class BagRanking(ThreeLevelProblem, KnownOptimum):
    r"""Rank positive bags above negative ones, where the worst positives count: a linear form of partial AUC.

    A bag's score is the mean of the scores :math:`w^\top x` of its instances, of which a step sees a few.

    .. math::

        F(w, s) = \frac1{n_1} \sum_i \Big[ s + \frac1\alpha \Big( \frac1{n_2} \sum_j
            (1 + h_j(w) - h_i(w))_+ - s \Big)_+ \Big]

    As TCCO: :math:`h_{ij}(w, s) = (h_j(w) - h_i(w),\; s)`, :math:`g(v) = ((1 + v_1)_+ - v_2,\; v_2)` and
    :math:`f(u) = (u_1)_+ / \alpha + u_2`. The objective is piecewise linear; its optimum is that of a linear program.
    Note that :math:`g` decreases in :math:`v_2` in its first component while :math:`h` is affine, and hence smooth,
    which is what the paper's Assumption 2 then asks for.

    Args:
        num_positives: positive bags, :math:`n_1`.
        num_negatives: negative bags, :math:`n_2`.
        num_instances: instances in each bag.
        num_features: length of :math:`w`; the problem's `dim` is one more, for :math:`s`.
        alpha: fraction of positives, in (0, 1].
        seed: of the data.
    """

    dim_middle = 2
    dim_inner = 2
    rho_outer = 0.0
    rho_middle = 0.0
    rho_inner = 0.0

    def __init__(
        self,
        num_positives: int = 12,
        num_negatives: int = 16,
        num_instances: int = 10,
        num_features: int = 3,
        *,
        alpha: float = 0.5,
        seed: int = 0,
    ) -> None:
        self.num_outer, self.num_inner, self.num_samples = num_positives, num_negatives, num_instances
        self.alpha, self.dim = alpha, num_features + 1
        random = torch.Generator().manual_seed(seed)

        def bags(count: int, shift: float) -> Tensor:
            spread = 2.0 * torch.rand(count, 1, 1, generator=random, dtype=torch.float64)
            centre = 0.6 * torch.randn(count, 1, num_features, generator=random, dtype=torch.float64)
            centre[..., 0] += shift
            noise = torch.randn(count, num_instances, num_features, generator=random, dtype=torch.float64)
            return centre + spread * noise

        self.positive, self.negative = bags(self.num_outer, 0.5), bags(self.num_inner, -0.5)
        self.start = torch.zeros(self.dim, dtype=torch.float64)
        self.lipschitz_outer = (1.0 + self.alpha**-2) ** 0.5
        # g has slopes (1, -1) and (0, 1), whose spectral norm is the golden ratio
        self.lipschitz_middle = (1.0 + 5.0**0.5) / 2.0
        largest = torch.cdist(self.positive.flatten(0, 1), self.negative.flatten(0, 1)).amax()
        self.lipschitz_inner = max(float(largest), 1.0)

    def sample(self, w: Tensor, outer_index: Tensor, inner_index: Tensor, samples: Tensor) -> Tensor:
        """Return `(w.x_j - w.x_i, s)` for instance number `samples` of both bags; shapes as in the base class."""
        i, j = outer_index[..., :, None, None], inner_index[..., None, :, None]
        difference = self.negative[j, samples] - self.positive[i, samples]
        score = torch.einsum("...ijsp,...p->...ijs", difference, w[..., :-1])
        return torch.stack([score, w[..., -1, None, None, None].expand_as(score)], dim=-1)

    def middle(self, v: Tensor, index: Tensor) -> Tensor:
        r"""Return :math:`((1 + v_1)_+ - v_2,\; v_2)`."""
        return torch.stack([torch.relu(1.0 + v[..., 0]) - v[..., 1], v[..., 1]], dim=-1)

    def outer(self, u: Tensor, index: Tensor) -> Tensor:
        r"""Return :math:`(u_1)_+ / \alpha + u_2`."""
        return torch.relu(u[..., 0]) / self.alpha + u[..., 1]

    def minimizer(self) -> Tensor:
        """Solve a linear program."""
        program = LinearProgram()
        w = program.variables(self.dim - 1, low=None)
        s = program.variable(cost=1.0, low=None)
        negatives = self.negative.mean(dim=1)
        for positive in self.positive.mean(dim=1):
            excess = program.variable(cost=1.0 / (self.alpha * self.num_outer))
            hinges = program.variables(self.num_inner)
            for hinge, difference in zip(hinges, (negatives - positive).tolist(), strict=True):
                program.at_least({hinge: 1.0, **{v: -d for v, d in zip(w, difference, strict=True)}}, 1.0)
            program.at_least({excess: 1.0, s: 1.0, **dict.fromkeys(hinges, -1.0 / self.num_inner)}, 0.0)
        return program.solve()[: self.dim]
