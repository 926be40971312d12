r"""How a visited table row moves: moving average, and the variance-reduced rule (MSVR).

The update is one pure function of a row, the value observed now and the value of the same samples at the previous
iterate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.linalg import vector_norm

from moreauc._checks import check_count, check_real

Gamma = float | Literal["theory"]


def theory_gamma(num_rows: int, num_visited: int, tau: float) -> float:
    r"""Correction weight that the analysis of MSVR asks for (lemma `lem:16`, theorem `thm:1`).

    .. math:: \gamma = \frac{n - B_1}{B_1 (1 - \tau)} + (1 - \tau)

    Args:
        num_rows: number of rows of the table, :math:`n` (:math:`n_1 n_2` for the inner table of SONT).
        num_visited: rows visited in one step, :math:`B_1` (:math:`B_1 B_2`), at most `num_rows`.
        tau: averaging weight in (0, 1). At 1 the formula has no value.

    Returns:
        The weight of `now - before`.

    Example:
        >>> theory_gamma(100, 10, tau=0.5)
        18.5
    """
    num_rows = check_count("theory_gamma", "num_rows", num_rows)
    num_visited = check_count("theory_gamma", "num_visited", num_visited)
    if num_visited > num_rows:
        raise ValueError(f"theory_gamma: num_visited must be at most num_rows = {num_rows}, got {num_visited}")
    tau = check_real("theory_gamma", "tau", tau, low=0.0, high=1.0, low_open=True, high_open=True)
    return (num_rows - num_visited) / (num_visited * (1.0 - tau)) + (1.0 - tau)


def update_row(
    row: Tensor, now: Tensor, before: Tensor | None, *, tau: float, gamma: float | Tensor, bound: float | None = None
) -> Tensor:
    r"""Return the visited rows after one step.

    .. math:: u_{i,t+1} = \Pi_C [(1 - \tau) u_{i,t} + \tau\, g_i(w_t; B) + \gamma (g_i(w_t; B) - g_i(w_{t-1}; B))]

    (Algorithm 1, line 4; Algorithm 3, lines 4 and 5; with :math:`\gamma = 0` Algorithms 6 and 7.)

    Args:
        row: the rows before the step, shape `(B, dim)`.
        now: values observed at the current iterate, same shape.
        before: values of the same samples at the previous iterate, same shape; unused where `gamma` is 0.
        tau: averaging weight of the new value.
        gamma: weight of the correction `now - before`; a tensor, shape `()`, where only the device knows it.
        bound: radius :math:`C` of the ball each row is projected onto; None for no projection.

    Returns:
        The new rows, shape `(B, dim)`.
    """
    new = torch.lerp(row, now, tau)  # (1 - tau) row + tau now, exact where row = now and where tau = 1
    if isinstance(gamma, Tensor) or gamma != 0.0:
        if before is None:
            raise ValueError("update_row: before must be given where gamma is not 0, got None")
        new = new + gamma * (now - before)
    return new if bound is None else project(new, bound)


def project(row: Tensor, bound: float) -> Tensor:
    """Project each row onto the Euclidean ball of radius `bound` around the origin."""
    peak = row.abs().amax(dim=-1, keepdim=True).clamp_min(torch.finfo(row.dtype).tiny)
    norm = peak * vector_norm(row / peak, dim=-1, keepdim=True)  # squares of the entries might overflow
    shrink: Tensor = bound / norm.clamp_min(bound)
    return row * shrink


@dataclass(frozen=True)
class UpdateRule:
    """The parameters of :func:`update_row`, checked once.

    Args:
        owner: class named in errors.
        tau: averaging weight in (0, 1].
        gamma: correction weight, at least 0, or "theory" for :func:`theory_gamma` at the batch's size.
        bound: radius of the projection, above 0, or None.
        suffix: appended to the argument names in errors ("1" for `tau1`).
    """

    owner: str = field(repr=False)  # what errors say is no part of the rule
    tau: float
    gamma: Gamma = 0.0
    bound: float | None = None
    suffix: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        check_real(self.owner, f"tau{self.suffix}", self.tau, low=0.0, high=1.0, low_open=True)
        name = f"gamma{self.suffix}"
        if isinstance(self.gamma, str):
            if self.gamma != "theory":
                raise ValueError(f"{self.owner}: {name} must be a number or 'theory', got {self.gamma!r}")
            if self.tau == 1.0:
                raise ValueError(f"{self.owner}: {name}='theory' needs tau{self.suffix} in (0, 1), got 1.0")
        else:
            check_real(self.owner, name, self.gamma, low=0.0)
        if self.bound is not None:
            check_real(self.owner, "bound", self.bound, low=0.0, low_open=True)

    @property
    def corrects(self) -> bool:
        """Whether the rule needs the values at the previous iterate."""
        return self.gamma != 0.0

    def weight(self, num_rows: int, visited: int | Tensor) -> float | Tensor:
        """Return the correction weight of a step that visits some of `num_rows` rows."""
        return correction_weight(self.gamma, self.tau, num_rows, visited)

    def __call__(
        self, row: Tensor, now: Tensor, before: Tensor | None, *, num_rows: int, visited: int | Tensor | None = None
    ) -> Tensor:
        """Return the rows after one step of a table of `num_rows` rows; shapes as in :func:`update_row`.

        `visited` is the number of different rows, by default that of the rows given.
        """
        gamma = self.weight(num_rows, len(row) if visited is None else visited)
        return update_row(row, now, before, tau=self.tau, gamma=gamma, bound=self.bound)


def correction_weight(gamma: Gamma, tau: float, num_rows: int, visited: int | Tensor) -> float | Tensor:
    """Return `gamma`, or the weight of :func:`theory_gamma`, as a tensor where `visited` is one."""
    if gamma != "theory":
        return float(gamma)
    if isinstance(visited, Tensor):
        return (num_rows - visited) / (visited * (1.0 - tau)) + (1.0 - tau)
    return theory_gamma(num_rows, visited, tau)
