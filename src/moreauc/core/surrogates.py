r"""What a pair costs: links, which turn a raw score into :math:`h`, and pairwise losses.

A link is "sigmoid", :math:`h = 1 / (1 + e^{-x})`, the paper's; "identity", :math:`h = x`; or "standardized",
:math:`h = x / \sigma`, with :math:`\sigma` the standard deviation (population formula) of the raw scores of the
negatives at hand: of the batch in a loss, of the data set in an exact objective. No gradient flows through
:math:`\sigma`. A margin is then in standard deviations, and the loss does not change with the scale of the model.

A pairwise loss :math:`\ell(z)` is one of the score difference :math:`z = h_j - h_i`, negative minus positive. Every
loss is one function of the violation :math:`v = m + z` with margin :math:`m`: large where the negative is scored above
the positive less the margin. For the bounded ramp :math:`m` is also its width, a length on the scale of the scores.
Values are stable for any finite score; where a loss has a kink, value and slope agree on the subgradient 0 of
:math:`(x)_+` at 0, also under autograd.
"""

# ruff: noqa: D102 (the base class says once what `value` and `slope` are)
from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from moreauc._checks import check_real

Link = Literal["sigmoid", "identity", "standardized"]


@dataclass(frozen=True)
class Surrogate(ABC):
    r"""A pairwise loss :math:`\ell(z)`; use :func:`get_surrogate` to make one by name.

    `margin` is :math:`m`, at least 0.

    :func:`get_surrogate` knows it by its `name`. `piecewise_polynomial` is the degree where :math:`\ell` is a piecewise
    polynomial in `z`, else None; `lipschitz` the least upper bound of the slope's size; `weak_convexity` the least
    :math:`\rho \ge 0` for which :math:`\ell(z) + \rho z^2 / 2` is convex.
    """

    margin: float = 1.0

    name: ClassVar[str]
    piecewise_polynomial: ClassVar[int | None] = None
    non_decreasing: ClassVar[bool] = True
    _LIPSCHITZ: ClassVar[float] = math.inf
    _WEAK_CONVEXITY: ClassVar[float] = 0.0

    @property
    def lipschitz(self) -> float:  # the class says what it is
        return self._LIPSCHITZ

    @property
    def weak_convexity(self) -> float:
        return self._WEAK_CONVEXITY

    def __post_init__(self) -> None:
        check_real(type(self).__name__, "margin", self.margin, low=0.0)

    @abstractmethod
    def value(self, z: Tensor) -> Tensor:
        r"""Return :math:`\ell(z)`, any shape, differentiable."""

    @abstractmethod
    def slope(self, z: Tensor) -> Tensor:
        r"""Return the (sub)derivative :math:`\ell'(z)`, same shape."""

    def value_and_slope(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return both at once, in fewer operations where they share some, as new tensors without graph."""
        return self.value(z), self.slope(z)


class SquaredHinge(Surrogate):
    r"""Squared hinge :math:`\ell(z) = (m + z)_+^2`, the paper's choice.

    Example:
        >>> SquaredHinge(margin=1.0).value(torch.tensor([-2.0, 0.0, 1.0]))
        tensor([0., 1., 4.])
    """

    name = "squared_hinge"
    piecewise_polynomial = 2

    def value(self, z: Tensor) -> Tensor:
        return torch.relu(z + self.margin).square()

    def slope(self, z: Tensor) -> Tensor:
        return 2.0 * torch.relu(z + self.margin)

    def value_and_slope(self, z: Tensor) -> tuple[Tensor, Tensor]:
        violation = (z + self.margin).relu_()
        return violation.square(), violation.add_(violation)


class Hinge(Surrogate):
    r"""Hinge :math:`\ell(z) = (m + z)_+`.

    Example:
        >>> Hinge(margin=1.0).value(torch.tensor([-2.0, 0.0, 1.0]))
        tensor([0., 1., 2.])
    """

    name = "hinge"
    piecewise_polynomial = 1
    _LIPSCHITZ = 1.0

    def value(self, z: Tensor) -> Tensor:
        return torch.relu(z + self.margin)

    def slope(self, z: Tensor) -> Tensor:
        return (z + self.margin > 0).to(z.dtype)


class Squared(Surrogate):
    r"""Square :math:`\ell(z) = (m + z)^2`; it falls for :math:`z < -m`, so it is not non-decreasing.

    Example:
        >>> Squared(margin=1.0).value(torch.tensor([-2.0, 0.0, 1.0]))
        tensor([1., 1., 4.])
    """

    name = "squared"
    piecewise_polynomial = 2
    non_decreasing = False

    def value(self, z: Tensor) -> Tensor:
        return (z + self.margin).square()

    def slope(self, z: Tensor) -> Tensor:
        return 2.0 * (z + self.margin)


class Logistic(Surrogate):
    r"""Logistic :math:`\ell(z) = \log(1 + e^{m + z})`.

    Example:
        >>> Logistic(margin=0.0).value(torch.tensor([-200.0, 0.0, 200.0]))
        tensor([  0.0000,   0.6931, 200.0000])
    """

    name = "logistic"
    _LIPSCHITZ = 1.0

    def value(self, z: Tensor) -> Tensor:
        # softplus turns linear at its threshold; at 40 the dropped term is below rounding in float64.
        return softplus(z + self.margin, threshold=40.0)

    def slope(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z + self.margin)


class Sigmoid(Surrogate):
    r"""Sigmoid :math:`\ell(z) = 1 / (1 + e^{-(m + z)})`, bounded and not convex; margin 0 centres it on ties.

    Example:
        >>> Sigmoid(margin=0.0).value(torch.tensor([-200.0, 0.0, 200.0]))
        tensor([0.0000, 0.5000, 1.0000])
    """

    name = "sigmoid"
    _LIPSCHITZ = 0.25
    _WEAK_CONVEXITY = math.sqrt(3.0) / 18.0  # where the sigmoid is (3 + sqrt 3) / 6

    def value(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z + self.margin)

    def slope(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z + self.margin) * torch.sigmoid(-(z + self.margin))


@dataclass(frozen=True)
class SmoothRamp(Surrogate):
    r"""Smooth ramp, a quadratic spline from 0 at :math:`z = -m` to 1 at :math:`z = m`, with :math:`u = z / m`.

    .. math::
        \ell(z) = \begin{cases} 0 & u \le -1 \\ (1 + u)^2 / 2 & -1 \le u \le 0 \\
            1 - (1 - u)^2 / 2 & 0 \le u \le 1 \\ 1 & u \ge 1 \end{cases}

    Non-decreasing, bounded by 1, one half at ties, Lipschitz with :math:`1 / m`, its slope Lipschitz with
    :math:`1 / m^2` (so it is weakly convex with that). Pairs further apart than :math:`m` have no gradient: the margin
    is in units of the scores, and training needs a start that orders most pairs, as cross entropy gives it.

    The margin is above 0; by default 0.2, meant for scores with standard deviation 1.

    Example:
        >>> SmoothRamp(margin=1.0).value(torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0]))
        tensor([0.0000, 0.1250, 0.5000, 0.8750, 1.0000])
    """

    margin: float = 0.2

    name = "smooth_ramp"
    piecewise_polynomial = 2

    def __post_init__(self) -> None:
        check_real(type(self).__name__, "margin", self.margin, low=0.0, low_open=True)

    @property
    def lipschitz(self) -> float:
        return 1.0 / self.margin

    @property
    def weak_convexity(self) -> float:
        return 1.0 / self.margin**2

    # Each operation below is monotone, so rounding keeps the loss non-decreasing; both ways to it round alike.

    def value(self, z: Tensor) -> Tensor:
        if not z.requires_grad:
            return self.value_and_slope(z)[0]
        u = (z / self.margin).clamp(-1.0, 1.0)  # not by |u|, whose slope at ties autograd takes for 0
        return torch.where(u < 0, 0.5 * (1.0 + u).square(), 1.0 - 0.5 * (1.0 - u).square())

    def slope(self, z: Tensor) -> Tensor:
        return (1.0 - (z / self.margin).clamp(-1.0, 1.0).abs()) / self.margin

    def value_and_slope(self, z: Tensor) -> tuple[Tensor, Tensor]:
        u = (z / self.margin).clamp(-1.0, 1.0)
        height = 1.0 - u.abs()
        half = 0.5 * height.square()
        # with weights 0 and 1 exactly one or the other, in a third of the time of `where`
        return torch.lerp(half, 1.0 - half, u.sign().clamp_min(0.0)), height / self.margin


_SURROGATES: dict[str, type[Surrogate]] = {
    kind.name: kind for kind in (SquaredHinge, Hinge, Squared, Logistic, Sigmoid, SmoothRamp)
}


def get_surrogate(name: str, margin: float | None = None) -> Surrogate:
    """Return the pairwise loss called `name`.

    `name` is "squared_hinge", "hinge", "squared", "logistic", "sigmoid" or "smooth_ramp"; `margin` is at least 0, for
    the ramp above 0; None for the default: 0.2 for the ramp, 1 for the others.

    Example:
        >>> get_surrogate("hinge", margin=0.5)
        Hinge(margin=0.5)
    """
    if name not in _SURROGATES:
        raise ValueError(f"get_surrogate: name must be one of {', '.join(map(repr, _SURROGATES))}, got {name!r}")
    kind = _SURROGATES[name]
    return kind() if margin is None else kind(margin)


def scale_of(
    negative: Tensor, left_out: Tensor | None = None, count: float | Tensor = 0.0, weight: Tensor | None = None
) -> Tensor:
    r"""Return :math:`\sigma`, shape `()`; 1 where the scores are all equal, to rounding, so that they have no scale.

    `left_out` are the scores of `negative` that are none, `count` how many are, where some are left out. `weight` is 0
    for what is left out, and its sum is `count`.
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
