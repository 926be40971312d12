"""Two-level problems with a known optimum."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.problems.base import KnownOptimum, LinearProgram
from moreauc.solver.problems import TwoLevelProblem


def _affine(a: Tensor, b: Tensor, w: Tensor, index: Tensor, samples: Tensor) -> Tensor:
    """Return `a . w - b` for `a` `(n, m, k, p)` and `b` `(n, m, k)` at the chosen blocks and samples."""
    block = index.unsqueeze(-1)
    return torch.einsum("...bskp,...p->...bsk", a[block, samples], w) - b[block, samples]


def _planted(num_blocks: int, num_samples: int, dim_block: int, dim: int, seed: int) -> tuple[Tensor, Tensor]:
    """Linear data whose blocks disagree about `w` and differ in noise by a factor of twenty.

    The noisiest blocks are not the worst ones, so that an estimate from few samples picks the wrong blocks.
    """
    random = torch.Generator().manual_seed(seed)

    def gauss(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    a = gauss(num_blocks, num_samples, dim_block, dim)
    a = a / torch.linalg.vector_norm(a, dim=-1, keepdim=True)
    truth = gauss(num_blocks, 1, dim_block, dim)
    noise = 2.0 * torch.logspace(-1.3, 0, num_blocks, dtype=torch.float64).reshape(-1, 1, 1)
    skewed = -torch.log1p(-torch.rand(num_blocks, num_samples, dim_block, generator=random, dtype=torch.float64))
    truth = truth * (1.6 - noise.unsqueeze(-1) / 2.0)
    return a, (a * truth).sum(-1) + noise * skewed


class CVaRAbsoluteLoss(TwoLevelProblem, KnownOptimum):
    r"""Mean of the worst fraction of blocks, each with a mean absolute loss, and the threshold as a variable.

    .. math::

        F(w, s) = \frac1n \sum_i \Big[ s + \frac{(L_i(w) - s)_+}{\alpha} \Big], \qquad
        L_i(w) = \frac1m \sum_\xi |a_{i\xi}^\top w - b_{i\xi}|

    As FCCO: :math:`g_i(w, s) = (L_i(w) - s,\; s)` and :math:`f(u) = (u_1)_+ / \alpha + u_2`, non-decreasing and convex.
    The objective is piecewise linear; its optimum is that of a linear program.

    Args:
        num_blocks: :math:`n`.
        num_samples: samples in each block, :math:`m`.
        num_features: length of :math:`w`; the problem's `dim` is one more, for :math:`s`.
        alpha: fraction of blocks, in (0, 1].
        seed: of the data.

    Example:
        >>> problem = CVaRAbsoluteLoss(num_blocks=8, num_samples=4, num_features=2)
        >>> bool(problem.objective(problem.start) > problem.optimum.value)
        True
    """

    dim_block = 2
    rho_outer = 0.0
    rho_inner = 0.0

    def __init__(
        self, num_blocks: int = 40, num_samples: int = 40, num_features: int = 3, *, alpha: float = 0.25, seed: int = 0
    ) -> None:
        self.num_outer, self.num_samples, self.alpha, self.dim = num_blocks, num_samples, alpha, num_features + 1
        self.a, self.b = _planted(num_blocks, num_samples, 1, num_features, seed)
        self.start = torch.zeros(self.dim, dtype=torch.float64)
        self.lipschitz_outer = (1.0 + self.alpha**-2) ** 0.5
        self.lipschitz_inner = float((torch.linalg.vector_norm(self.a, dim=-1).amax().square() + 2.0).sqrt())

    def sample(self, w: Tensor, index: Tensor, samples: Tensor) -> Tensor:
        """Return `(|a.w - b| - s, s)`; shapes as in the base class."""
        loss = _affine(self.a, self.b, w[..., :-1], index, samples).abs()
        s = w[..., -1, None, None, None].expand_as(loss)
        return torch.cat([loss - s, s], dim=-1)

    def outer(self, u: Tensor, index: Tensor) -> Tensor:
        r"""Return :math:`(u_1)_+ / \alpha + u_2`."""
        return torch.relu(u[..., 0]) / self.alpha + u[..., 1]

    def minimizer(self) -> Tensor:
        """Solve a linear program."""
        program = LinearProgram()
        w = program.variables(self.dim - 1, low=None)
        s = program.variable(cost=1.0, low=None)
        for a, b in zip(self.a.squeeze(2).tolist(), self.b.squeeze(2).tolist(), strict=True):
            excess = program.variable(cost=1.0 / (self.alpha * self.num_outer))
            losses = [program.absolute_value(w, row, target) for row, target in zip(a, b, strict=True)]
            program.at_least({excess: 1.0, s: 1.0, **dict.fromkeys(losses, -1.0 / self.num_samples)}, 0.0)
        return program.solve()[: self.dim]


class WorstOfLosses(TwoLevelProblem, KnownOptimum):
    r"""Blocks with several mean absolute losses each, of which the worst counts: vector-valued blocks.

    .. math:: F(w) = \frac1n \sum_i \max_k L_{ik}(w), \qquad L_{ik}(w) = \frac1m \sum_\xi |a_{ik\xi}^\top w - b_{ik\xi}|

    As FCCO: :math:`g_i(w) = (L_{i1}(w), \dots, L_{iK}(w))` and :math:`f(u) = \max_k u_k`. The optimum is that of a
    linear program.

    Args:
        num_blocks: :math:`n`.
        num_samples: samples in each block, :math:`m`.
        num_features: length of :math:`w`.
        num_losses: losses in each block, :math:`K`.
        seed: of the data.
    """

    rho_outer = 0.0
    rho_inner = 0.0
    lipschitz_outer = 1.0

    def __init__(
        self, num_blocks: int = 20, num_samples: int = 20, num_features: int = 3, *, num_losses: int = 3, seed: int = 0
    ) -> None:
        self.num_outer, self.num_samples, self.dim = num_blocks, num_samples, num_features
        self.dim_block = num_losses
        self.a, self.b = _planted(self.num_outer, self.num_samples, self.dim_block, self.dim, seed)
        self.start = torch.full((self.dim,), 2.0, dtype=torch.float64)
        self.lipschitz_inner = float(torch.linalg.matrix_norm(self.a, ord=2).amax())

    def sample(self, w: Tensor, index: Tensor, samples: Tensor) -> Tensor:
        """Return the absolute losses; shapes as in the base class."""
        return _affine(self.a, self.b, w, index, samples).abs()

    def outer(self, u: Tensor, index: Tensor) -> Tensor:
        r"""Return :math:`\max_k u_k`."""
        return u.amax(dim=-1)

    def minimizer(self) -> Tensor:
        """Solve a linear program."""
        program = LinearProgram()
        w = program.variables(self.dim, low=None)
        for a, b in zip(self.a.tolist(), self.b.tolist(), strict=True):
            worst = program.variable(cost=1.0 / self.num_outer)
            for k in range(self.dim_block):
                losses = [program.absolute_value(w, row[k], y[k]) for row, y in zip(a, b, strict=True)]
                program.at_least({worst: 1.0, **dict.fromkeys(losses, -1.0 / self.num_samples)}, 0.0)
        return program.solve()[: self.dim]


class HingedSquares(TwoLevelProblem, KnownOptimum):
    r"""Weakly convex and not convex: absolute values of quadratics inside a hinge, as :math:`|x^2 - b|`.

    .. math::

        F(w) = \frac1n \sum_i (g_i(w) - c)_+, \qquad
        g_i(w) = \frac1m \sum_\xi \Big| \sum_k a_{i\xi k} w_k^2 - b_{i\xi} \Big|

    With :math:`y_k = w_k^2 \ge 0` the objective is convex and piecewise linear in :math:`y`, and every
    :math:`y \ge 0` is the square of some :math:`w`: a linear program in :math:`y` gives the global minimum over
    :math:`w`, which is reached at :math:`2^{dim}` points of mirrored signs. Each :math:`g_i` is
    :math:`2 \max a`-weakly convex. It is Lipschitz on bounded sets only: `lipschitz_inner` holds for
    :math:`\|w\| \le` `radius`.

    Args:
        num_blocks: :math:`n`.
        num_samples: samples in each block, :math:`m`.
        num_features: length of :math:`w`.
        level: the threshold :math:`c` of the hinge.
        radius: of the ball on which the constants hold.
        seed: of the data.
    """

    dim_block = 1
    rho_outer = 0.0
    lipschitz_outer = 1.0

    def __init__(
        self,
        num_blocks: int = 20,
        num_samples: int = 20,
        num_features: int = 2,
        *,
        level: float = 1.4,
        radius: float = 3.0,
        seed: int = 0,
    ) -> None:
        self.num_outer, self.num_samples, self.dim = num_blocks, num_samples, num_features
        self.level, self.radius = level, radius
        random = torch.Generator().manual_seed(seed)
        shape = self.num_outer, self.num_samples, 1
        a = torch.randn(*shape, self.dim, generator=random, dtype=torch.float64).abs()
        self.a = a / torch.linalg.vector_norm(a, dim=-1, keepdim=True)
        # every other block is noisy and has larger squares as its optimum: few samples give it too much weight
        noisy = (torch.arange(self.num_outer) % 2).reshape(-1, 1, 1).double()
        wanted = 1.0 + 1.5 * noisy + 0.3 * torch.randn(self.num_outer, 1, 1, generator=random, dtype=torch.float64)
        skewed = -torch.log1p(-torch.rand(shape, generator=random, dtype=torch.float64)) - 1.0
        self.b = wanted * self.a.sum(-1) + (0.1 + 1.9 * noisy) * skewed
        self.start = torch.linspace(0.4, 0.8, self.dim, dtype=torch.float64)
        self.rho_inner = 2.0 * float(self.a.amax())
        self.lipschitz_inner = self.rho_inner * self.radius

    def sample(self, w: Tensor, index: Tensor, samples: Tensor) -> Tensor:
        """Return `|a . w^2 - b|`; shapes as in the base class."""
        return _affine(self.a, self.b, w.square(), index, samples).abs()

    def outer(self, u: Tensor, index: Tensor) -> Tensor:
        r"""Return :math:`(u - c)_+`."""
        return torch.relu(u.squeeze(-1) - self.level)

    def minimizer(self) -> Tensor:
        """Solve a linear program in the squares; return the solution with positive signs."""
        program = LinearProgram()
        squares = program.variables(self.dim)
        for a, b in zip(self.a.squeeze(2).tolist(), self.b.squeeze(2).tolist(), strict=True):
            excess = program.variable(cost=1.0 / self.num_outer)
            losses = [program.absolute_value(squares, row, target) for row, target in zip(a, b, strict=True)]
            program.at_least({excess: 1.0, **dict.fromkeys(losses, -1.0 / self.num_samples)}, -self.level)
        return program.solve()[: self.dim].clamp_min(0.0).sqrt()
