"""What the losses with an outer function of the user share: its values at rows, or those of its Moreau envelope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from moreauc._checks import check_shape
from moreauc.criteria._base import Criterion, Function, check_function, number_attribute

Prox = Callable[[Tensor, Tensor, float], Tensor]


class OuterCriterion(Criterion):
    r"""Base of the losses :math:`\frac1n \sum_i f_i(u_i)` with functions :math:`f_i` of the user.

    Args:
        outer: `outer(u, index) -> (B,)`, the functions at rows `u` of shape `(B,)` or `(B, dim)`.
        smoothing: :math:`\lambda` of the Moreau envelopes that replace them; 0 for the functions themselves.
        prox: `prox(u, index, smoothing)`, their proximal points, of the shape of `u`; None to search for them.
    """

    label_buffers: ClassVar[tuple[str, ...]] = ()
    _BY_AUTOGRAD = True
    _smoothing: float
    smoothing = number_attribute("smoothing", "Parameter of the outer function's Moreau envelope, at least 0.", low=0.0)

    def __init__(self, outer: Function | nn.Module, smoothing: float, prox: Prox | nn.Module | None) -> None:
        super().__init__()
        self.outer = check_function(self._owner, "outer", outer)
        self.smoothing = smoothing
        self.prox = None if prox is None else check_function(self._owner, "prox", prox)

    def _outer(self, u: Tensor, index: Tensor) -> tuple[Tensor, dict[str, Tensor | None]]:
        """Return values of the rows `u`, shape `(B,)` or `(B, 1)`, and what must be finite by its names in errors.

        The gradient of an envelope in `u` is `(u - prox(u)) / smoothing`. That in parameters of `outer` needs the
        derivative of the proximal point, which is often a kink that moves with them.
        """
        size, smoothing = len(u), self._smoothing
        if not smoothing:
            value = self._call("outer", self.outer, u, index, (size,), (size, 1))
            return value, {"what outer returns": value}
        rows = u.detach().double()  # the difference to a point nearby, divided by a small number, needs all digits
        point = self._proximal_points(rows, index, u.dtype)
        slope = (rows - point) / smoothing
        gain = 0.5 * smoothing * slope.square().reshape(size, -1).sum(1)
        value = self._call("outer", self.outer, point.to(u.dtype), index, (size,), (size, 1)).reshape(size)
        nothing = (
            (slope.detach().to(u.dtype) * (u - u.detach())).reshape(size, -1).sum(1)
        )  # 0, with the gradient in `u`
        value = value + (gain + nothing).to(value.dtype)
        return value, {"what prox returns": point, "what outer returns": value}

    def _proximal_points(self, rows: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the proximal points of rows in float64, in float64; a search shows `outer` rows of the type given."""
        point: Any = self._search(rows, index, dtype) if self.prox is None else self.prox(rows, index, self._smoothing)
        if not isinstance(point, Tensor) or not point.is_floating_point():
            kind = f"{point.dtype} tensor" if isinstance(point, Tensor) else type(point).__name__
            raise ValueError(f"{self._owner}: prox must return a floating point tensor, got a {kind}")
        check_shape(self._owner, "what prox returns", point, [tuple(rows.shape)])
        learned = isinstance(self.outer, nn.Module) and any(part.requires_grad for part in self.outer.parameters())
        if learned and torch.is_grad_enabled() and not point.requires_grad:
            raise ValueError(
                f"{self._owner}: prox must be given, and depend on the parameters of outer through differentiable "
                "operations, got a constant without gradient"
            )
        return point.double()

    def _search(self, rows: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
        from moreauc.theory import moreau_envelope

        def value(number: int) -> Callable[[Tensor], Tensor]:
            return lambda point: self.outer(point.to(dtype).unsqueeze(0), index[number : number + 1]).sum()

        rho_bar = 1.0 / self._smoothing
        try:
            found = [moreau_envelope(value(k), row, rho_bar).proximal_point for k, row in enumerate(rows)]
        except (ValueError, RuntimeError) as error:
            raise ValueError(
                f"{self._owner}: outer must have a proximal point that can be found with smoothing="
                f"{self._smoothing:g}; give prox, or a smaller smoothing ({error})"
            ) from error
        return torch.stack(found)
