r"""Search for a counterexample to what a user claims about a function.

The theorems ask for outer functions that are non-decreasing, Lipschitz continuous and weakly convex, and for inner
functions that are Lipschitz continuous and weakly convex. A wrong claim makes every parameter derived from it wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm

from moreauc._checks import check_count, check_finite, check_real
from moreauc.theory._scans import OWNER, Search, point_text


@dataclass(frozen=True)
class Witness:
    r"""Points at which a function breaks an assumption; `str` writes out the violated inequality.

    Args:
        assumption: "non_decreasing", "lipschitz" or "weak_convexity", the name of the argument of :func:`falsify`.
        points: :math:`x, y`, or :math:`x, z, y` for weak convexity with :math:`z = (1 - \lambda) x + \lambda y`; shape
            `(2, dim)` or `(3, dim)`, without `dim` for a function of one number.
        values: the function there, shape `(2,)` or `(3,)`, with a second size for a function of several components.
        violation: left side minus right side of the inequality, above 0 by more than rounding.
        constant: the constant :math:`C` or :math:`\rho` that was claimed; None for "non_decreasing".
        component: the component that breaks it; None for "lipschitz" or a function with a single one.
        weight: :math:`\lambda`; None for two points.
    """

    assumption: str
    points: Tensor
    values: Tensor
    violation: float
    constant: float | None = None
    component: int | None = None
    weight: float | None = None

    def __str__(self) -> str:
        names = ("x", "y") if self.weight is None else ("x", "z", "y")
        places = ", ".join(f"{name} = {point_text(point)}" for name, point in zip(names, self.points, strict=True))
        values = self.values if self.component is None else self.values[:, self.component]
        f = "f" if self.component is None else f"f[{self.component}]"
        if self.assumption == "lipschitz":
            change, distance = vector_norm(values[1] - values[0]), vector_norm(self.points[1] - self.points[0])
            claim = f"|f(x) - f(y)| <= {self.constant:g} |x - y|"
            found = f"{change:.12g} > {self.constant * distance:.12g}"
        elif self.weight is None:
            claim, found = f"{f}(x) <= {f}(y)", f"{values[0]:.12g} > {values[1]:.12g}"
        else:
            share = self.weight
            claim = f"{f}(z) <= {1 - share:.6g} {f}(x) + {share:.6g} {f}(y)"
            bound = (1 - share) * values[0] + share * values[2]
            if self.constant:
                factor = 0.5 * self.constant * share * (1 - share)
                claim += f" + {factor:.6g} |x - y|^2"
                bound = bound + factor * vector_norm(self.points[2] - self.points[0]) ** 2
            found = f"{values[1]:.12g} > {bound:.12g}"
        return f"{self.assumption}: {claim} fails at {places}: {found}, too much by {self.violation:.3g}"


def falsify(
    function: Callable[[Tensor], Tensor],
    *,
    dim: int | None = None,
    non_decreasing: bool = False,
    weak_convexity: float | None = None,
    lipschitz: float | None = None,
    low: float | Tensor = -10.0,
    high: float | Tensor = 10.0,
    budget: int = 500_000,
    generator: torch.Generator | None = None,
) -> Witness | None:
    r"""Try to find points of a box at which a function breaks an assumption.

    .. math::
        f_j(x) &\le f_j(x + t e_k), \quad t \ge 0 && \text{(non\_decreasing)} \\
        \|f(x) - f(y)\| &\le C \|x - y\| && \text{(lipschitz)} \\
        f_j((1 - \lambda) x + \lambda y) &\le (1 - \lambda) f_j(x) + \lambda f_j(y)
        + \frac{\rho}{2} \lambda (1 - \lambda) \|x - y\|^2 && \text{(weak\_convexity)}

    for each coordinate :math:`k` and component :math:`j`. The function is scanned along lines through the box at many
    strides and at random pairs of all sizes; the worst segments are then divided further, down to about 1e-6 of the
    box, and moved about. A violation counts if it exceeds what rounding in float64 can explain, so a function that
    meets its constant exactly passes.

    That nothing was found is no proof: a violation in a small part of a box of many dimensions is easily missed.

    Args:
        function: maps points of shape `(batch, dim)`, float64, to values of shape `(batch,)` or `(batch, k)`. With
            `dim` None it maps `(batch,)`. It must be finite on the box. A batch has at most 8192 points.
        dim: number of coordinates; None for a function of one number.
        non_decreasing: whether to test that the function is non-decreasing in each coordinate.
        weak_convexity: modulus :math:`\rho`, at least 0, to test (0: convex); None to leave it.
        lipschitz: constant :math:`C`, at least 0, to test in the Euclidean norm; None to leave it.
        low: lower corner of the box, a number or shape `(dim,)`.
        high: upper corner, above `low` in each coordinate.
        budget: about how many points are evaluated, at least 2000.
        generator: source of the random points; None for one that is seeded with 0, so that a call can be repeated.

    Returns:
        A :class:`Witness`, or None if nothing was found.

    Raises:
        ValueError: for an argument out of its range, if no assumption is to be tested, or if the function returns
            another shape or no finite values.

    Example:
        >>> falsify(lambda x: (x**2 - 1).abs(), weak_convexity=2.0) is None
        True
        >>> print(falsify(lambda x: (x**2 - 1).abs(), weak_convexity=1.0).assumption)
        weak_convexity
    """
    claims: dict[str, float] = {}
    if non_decreasing:
        claims["non_decreasing"] = 0.0
    if lipschitz is not None:
        claims["lipschitz"] = check_real(OWNER, "lipschitz", lipschitz, low=0.0)
    if weak_convexity is not None:
        claims["weak_convexity"] = check_real(OWNER, "weak_convexity", weak_convexity, low=0.0)
    if not claims:
        raise ValueError(f"{OWNER}: one of non_decreasing, weak_convexity, lipschitz must be asked for, got none")
    size = 1 if dim is None else check_count(OWNER, "dim", dim)
    corners = _corner("low", low, size), _corner("high", high, size)
    if not bool((corners[0] < corners[1]).all()):
        raise ValueError(f"{OWNER}: low must be below high in each coordinate, got {low!r} and {high!r}")
    budget = check_count(OWNER, "budget", budget, minimum=2000)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    search = Search(function, dim is None, corners, claims, budget, generator)
    for stage in (search.scan, search.pair, search.zoom, search.climb):
        stage()
        if search.found():
            return _witness(search)
    return None


def _corner(name: str, value: Any, size: int) -> Tensor:
    if isinstance(value, Tensor):
        if value.shape not in ((), (size,)):
            raise ValueError(f"{OWNER}: {name} must be a number or have shape ({size},), got {tuple(value.shape)}")
        corner = value.detach().to("cpu", torch.float64).expand(size)
        check_finite(OWNER, **{name: corner})
        return corner
    return torch.full((size,), check_real(OWNER, name, value), dtype=torch.float64)


def _witness(search: Search) -> Witness:
    """Return the worst violation that was found."""
    claim, segment = search.enlarge()
    x, weight = segment.x, segment.weight
    y = (x + segment.u).clamp(search.low, search.high)
    z = (x + weight[:, None] * segment.u).clamp(search.low, search.high)
    three = claim == "weak_convexity"
    points = torch.cat((x, z, y) if three else (x, y))
    values = search.values(points)
    found = search.assess(claim, vector_norm(y - x, dim=-1), weight, values[:1], values[1:2], values[-1:])
    return Witness(
        assumption=claim,
        points=points[:, 0] if search.scalar else points,
        values=values[:, 0] if search.flat else values,
        violation=found[2].item(),
        constant=None if claim == "non_decreasing" else search.claims[claim],
        component=None if search.flat or claim == "lipschitz" else int(found[3]),
        weight=weight.item() if three else None,
    )
