r"""What a finite-sum problem is: its samples, its functions, its full objective and its constants.

All functions take points `w` of shape `(..., dim)`: the leading axes are replicas, so that many seeds run side by side.
Everything is float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from moreauc.theory import fcco_weak_convexity, tcco_weak_convexity


class Problem(ABC):
    r"""A coupled compositional problem over finite data.

    Attributes:
        dim: length of `w`.
        start: default start of the solver, shape `(dim,)`.
        num_outer: number of outer items (:math:`n`, :math:`n_1`).
        num_samples: samples behind each innermost expectation.
    """

    dim: int
    start: Tensor
    num_outer: int
    num_samples: int

    @abstractmethod
    def objective(self, w: Tensor) -> Tensor:
        """Full objective at points of shape `(..., dim)`; shape `(...)`."""

    @property
    @abstractmethod
    def weak_convexity(self) -> float:
        r"""The modulus :math:`\rho_F` of the objective (Propositions 1 and 2)."""

    @property
    def size(self) -> int:
        """Number of samples in all, the cost of one full evaluation."""
        return self.num_outer * self.num_samples


class TwoLevelProblem(Problem):
    r""":math:`F(w) = \frac1n \sum_i f_i(g_i(w))` with :math:`g_i(w) = \frac1m \sum_\xi g_i(w; \xi)`.

    Attributes:
        dim_block: length of :math:`g_i(w)`.
        lipschitz_outer: :math:`C_f`.
        lipschitz_inner: :math:`C_g`, of each :math:`g_i(\cdot; \xi)`.
        rho_outer: :math:`\rho_f`.
        rho_inner: :math:`\rho_g`.
    """

    dim_block: int
    lipschitz_outer: float
    lipschitz_inner: float
    rho_outer: float
    rho_inner: float

    @abstractmethod
    def sample(self, w: Tensor, index: Tensor, samples: Tensor) -> Tensor:
        r""":math:`g_i(w; \xi)` for `w` `(..., dim)`, `index` `(..., B1)`, `samples` `(..., B1, B2)`.

        Returns:
            Shape `(..., B1, B2, dim_block)`.
        """

    @abstractmethod
    def outer(self, u: Tensor, index: Tensor) -> Tensor:
        r""":math:`f_i(u)` for `u` of shape `(..., dim_block)` and `index` `(...)`; shape `(...)`."""

    def inner(self, w: Tensor, index: Tensor, samples: Tensor) -> Tensor:
        r""":math:`g_i(w; B_{2,i})`, shape `(..., B1, dim_block)`."""
        return self.sample(w, index, samples).mean(dim=-2)

    def all_samples(self, w: Tensor) -> Tensor:
        """Every sample of every block at points `(..., dim)`; shape `(..., n, m, dim_block)`."""
        index = torch.arange(self.num_outer).expand(*w.shape[:-1], -1)
        samples = torch.arange(self.num_samples).expand(*index.shape, -1)
        return self.sample(w, index, samples)

    def full_inner(self, w: Tensor) -> Tensor:
        r""":math:`g_i(w)` of all blocks at points `(..., dim)`; shape `(..., n, dim_block)`."""
        return self.all_samples(w).mean(dim=-2)

    def objective(self, w: Tensor) -> Tensor:
        """Full objective at points of shape `(..., dim)`; shape `(...)`."""
        return self.outer(self.full_inner(w), torch.arange(self.num_outer)).mean(dim=-1)

    def noise(self, w: Tensor) -> Tensor:
        r"""Largest :math:`\sigma` of a block's samples at points `(..., dim)`; shape `(...)`."""
        values = self.all_samples(w)
        deviation = values - values.mean(dim=-2, keepdim=True)
        return deviation.square().sum(-1).mean(-1).amax(-1).sqrt()

    @property
    def weak_convexity(self) -> float:
        r""":math:`\rho_F` of Proposition 1."""
        return fcco_weak_convexity(
            rho_outer=self.rho_outer,
            lipschitz_outer=self.lipschitz_outer,
            rho_inner=self.rho_inner,
            lipschitz_inner=self.lipschitz_inner,
            dim=self.dim_block,
        )


class ThreeLevelProblem(Problem):
    r""":math:`F(w) = \frac1{n_1} \sum_i f_i(\frac1{n_2} \sum_j g_i(h_{ij}(w)))`, with samples behind :math:`h_{ij}`.

    Attributes:
        num_inner: :math:`n_2`.
        dim_middle: length of a value of :math:`g_i`.
        dim_inner: length of :math:`h_{ij}(w)`.
        lipschitz_outer: :math:`C_f`.
        lipschitz_middle: :math:`C_g`.
        lipschitz_inner: :math:`C_h`, of each :math:`h_{ij}(\cdot; \xi)`.
        rho_outer: :math:`\rho_f`.
        rho_middle: :math:`\rho_g`.
        rho_inner: :math:`L_h`.
    """

    num_inner: int
    dim_middle: int
    dim_inner: int
    lipschitz_outer: float
    lipschitz_middle: float
    lipschitz_inner: float
    rho_outer: float
    rho_middle: float
    rho_inner: float

    @abstractmethod
    def sample(self, w: Tensor, outer_index: Tensor, inner_index: Tensor, samples: Tensor) -> Tensor:
        r""":math:`h_{ij}(w; \xi)`: `w` `(..., dim)`, indices `(..., B1)` and `(..., B2)`, samples `(..., B1, B2, B3)`.

        Returns:
            Shape `(..., B1, B2, B3, dim_inner)`.
        """

    @abstractmethod
    def middle(self, v: Tensor, index: Tensor) -> Tensor:
        r""":math:`g_i(v)` for `v` `(..., B2, dim_inner)` and `index` `(...)`; shape `(..., B2, dim_middle)`."""

    @abstractmethod
    def outer(self, u: Tensor, index: Tensor) -> Tensor:
        r""":math:`f_i(u)` for `u` `(..., dim_middle)` and `index` `(...)`; shape `(...)`."""

    def inner(self, w: Tensor, outer_index: Tensor, inner_index: Tensor, samples: Tensor) -> Tensor:
        r""":math:`h_{ij}(w; B_{3,ij})`, shape `(..., B1, B2, dim_inner)`."""
        return self.sample(w, outer_index, inner_index, samples).mean(dim=-2)

    def full_inner(self, w: Tensor) -> Tensor:
        r""":math:`h_{ij}(w)` of all pairs at points `(..., dim)`; shape `(..., n1, n2, dim_inner)`."""
        outer_index = torch.arange(self.num_outer).expand(*w.shape[:-1], -1)
        inner_index = torch.arange(self.num_inner).expand(*w.shape[:-1], -1)
        samples = torch.arange(self.num_samples).expand(*outer_index.shape, self.num_inner, -1)
        return self.inner(w, outer_index, inner_index, samples)

    def objective(self, w: Tensor) -> Tensor:
        """Full objective at points of shape `(..., dim)`; shape `(...)`."""
        index = torch.arange(self.num_outer)
        return self.outer(self.middle(self.full_inner(w), index).mean(dim=-2), index).mean(dim=-1)

    @property
    def size(self) -> int:
        """Number of samples in all, the cost of one full evaluation."""
        return self.num_outer * self.num_inner * self.num_samples

    @property
    def weak_convexity(self) -> float:
        r""":math:`\rho_F` of Proposition 2."""
        return tcco_weak_convexity(
            rho_outer=self.rho_outer,
            lipschitz_outer=self.lipschitz_outer,
            rho_middle=self.rho_middle,
            lipschitz_middle=self.lipschitz_middle,
            rho_inner=self.rho_inner,
            lipschitz_inner=self.lipschitz_inner,
            dim_middle=self.dim_middle,
            dim_inner=self.dim_inner,
        )
