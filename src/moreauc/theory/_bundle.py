"""The search behind :func:`moreauc.theory.moreau_envelope`: cuts, how they are collected, what they prove.

The points come from BFGS steps, from a bundle method and from points near the best one, in turns until the accuracy is
proved; all of them are used as cuts. The formulas of the proof are those in the docstring of the public function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moreauc._checks import check_shape
from moreauc.theory._quadratic import Array, solve_simplex

OWNER = "moreau_envelope"
_ASSUMED = 0.95  # share of rho_bar that is assumed as modulus where the caller names none
_ULPS = 4.0  # units in the last place by which a value or a subgradient may be off
_RESOLUTION = 16.0  # a gap of this many roundings of the value is accepted once it falls no further


@dataclass(frozen=True)
class Proof:
    """What a mean of cuts proves around the evaluated point `centre`, and the step to the model's minimum.

    `measured` is the gap without the allowance for rounding.
    """

    centre: int
    step: Array
    gap: float
    error: float
    measured: float


class _Exhausted(Exception):
    """No evaluation is left."""


class Solver:
    """The cuts collected so far and the three ways to collect more of them.

    Row k of `points`, `values`, `slopes` is a point, the function's value and its subgradient there; `heights` and
    `norms` are the value of the objective and the norm of its subgradient. `seen` is the largest modulus that two of
    the points have called for.
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        w: Tensor,
        rho_bar: float,
        rho: float | None,
        tol: float,
        max_evaluations: int,
    ) -> None:
        self.function, self.shape, self.device = function, w.shape, w.device
        self.w: Array = w.reshape(-1).cpu().numpy()
        self.dim = len(self.w)
        self.rho_bar, self.given = rho_bar, rho is not None
        self.rho = _ASSUMED * rho_bar if rho is None else rho
        self.scale = max(1.0, float(np.linalg.norm(self.w)))
        self.target = tol * self.scale
        self.max_evaluations, self.evaluations = max_evaluations, 0
        self.seen, self.eps = 0.0, 2.0**-52
        self.points, self.slopes = np.empty((0, self.dim)), np.empty((0, self.dim))
        self.values, self.heights, self.norms, self.sizes = np.empty(0), np.empty(0), np.empty(0), np.empty(0)
        self.centre = 0
        self.used = np.empty(0)  # the evaluation at which a cut was last part of a model's solution

    def solve(self) -> Proof:
        """Collect cuts until the proof stands."""
        try:
            self.evaluate(self.w)
            inverse = np.eye(self.dim) / self.rho_bar
            limit, patience = 20 + 4 * self.dim, 6
            while True:
                self.descend(inverse, limit, patience)
                proof = self.prove_smooth()
                if not self.suffices(proof, 0.0):
                    self.cut(limit)
                    proof = self.surround(limit)
                if self.suffices(proof, _RESOLUTION):
                    return proof
                limit, patience = 2 * limit, 30
                self.prune()
        except _Exhausted:
            proof = self.prove()
            if self.suffices(proof, _RESOLUTION):
                return proof
            raise RuntimeError(
                f"{OWNER}: {self.max_evaluations} evaluations prove only a gap of {proof.gap:.3g} and an error of "
                f"{proof.error:.3g}, wanted {self.target:.3g}; raise max_evaluations or tol, or give a smaller rho "
                f"(now {self.rho:g}) if the function allows it"
            ) from None

    def evaluate(self, y: Array) -> int:
        """Add the cut at `y` and return its row."""
        if self.evaluations >= self.max_evaluations:
            raise _Exhausted
        self.evaluations += 1
        point = torch.from_numpy(y.reshape(self.shape).copy()).to(self.device).requires_grad_()
        with torch.enable_grad():
            out = self.function(point)
        if not isinstance(out, Tensor):
            raise ValueError(f"{OWNER}: function must return a tensor of shape (), got {type(out).__name__}")
        check_shape(OWNER, "the value of function", out, [()])
        slope = torch.autograd.grad(out, point, allow_unused=True)[0] if out.requires_grad else None
        if slope is None:
            raise ValueError(f"{OWNER}: function must return a value that depends on its argument through autograd")
        value, flat = out.detach().item(), slope.reshape(-1).cpu().numpy()
        if not (math.isfinite(value) and np.isfinite(flat).all()):
            what = "value" if not math.isfinite(value) else "gradient"
            raise ValueError(f"{OWNER}: function must have a finite {what}, got none at {_text(y)}")
        self.eps = max(self.eps, torch.finfo(out.dtype).eps)
        self.compare(y, value, flat)
        offset = y - self.w
        self.points, self.slopes = np.vstack((self.points, y)), np.vstack((self.slopes, flat))
        self.values = np.append(self.values, value)
        self.heights = np.append(self.heights, value + 0.5 * self.rho_bar * float(offset @ offset))
        self.norms = np.append(self.norms, np.linalg.norm(flat + self.rho_bar * offset))
        self.sizes = np.append(self.sizes, abs(value) + float(np.abs(flat) @ np.abs(y)))
        self.used = np.append(self.used, self.evaluations)
        new = len(self.values) - 1
        if self.heights[new] < self.heights[self.centre]:
            self.centre = new
        return new

    def compare(self, y: Array, value: float, slope: Array) -> None:
        """Hold a new point against all cuts, and its cut against all points; note the modulus they call for."""
        delta = y - self.points
        square = np.einsum("kd,kd->k", delta, delta)
        far = square > (1e-5 * self.scale) ** 2  # between closer points a violation would drown in rounding
        if not far.any():
            return
        ahead, back = np.einsum("kd,kd->k", self.slopes, delta), -delta @ slope
        size = abs(value) + float(np.abs(slope) @ np.abs(y))
        noise = 1e3 * self.eps * (size + self.sizes + np.abs(ahead) + np.abs(back))
        below, above = self.values + ahead - value - noise, value + back - self.values - noise
        excess = np.where(far, np.maximum(below, above), -math.inf)
        worst = int((excess / np.maximum(square, 1e-300)).argmax())
        self.seen = max(self.seen, 2.0 * float(excess[worst] / square[worst]))
        if self.seen <= self.rho * (1.0 + 1e-9):
            return
        if not self.given and self.seen < 0.999 * self.rho_bar:
            self.rho = 0.5 * (self.seen + self.rho_bar)
            return
        name, modulus = ("rho", self.rho) if self.given else ("rho_bar", self.rho_bar)
        pair = (self.points[worst], y) if below[worst] >= above[worst] else (y, self.points[worst])
        raise ValueError(
            f"{OWNER}: {name} must be {'at least' if self.given else 'above'} the weak convexity modulus of function, "
            f"which is {self.seen:.6g} or more, got {modulus:g}: the lower bound taken at {_text(pair[0])} lies "
            f"{excess[worst] - 0.5 * modulus * square[worst]:.3g} above the function at {_text(pair[1])}"
        )

    def gradient(self, row: int) -> Array:
        """Return the subgradient of the objective at an evaluated point."""
        return np.asarray(self.slopes[row] + self.rho_bar * (self.points[row] - self.w))

    def noise(self, row: int) -> float:
        """Return the rounding of the objective at an evaluated point, that of the point's coordinates included."""
        near = abs(self.values[row]) + abs(self.heights[row] - self.values[row])
        return float(
            _ULPS * self.eps * (near + np.abs(self.slopes[row]) @ np.maximum(np.abs(self.points[row]), np.abs(self.w)))
        )

    def model(self, centre: int, rho: float) -> tuple[Array, Array, Array]:
        """Return slopes and offsets of the cuts around a point, and the rounding of the offsets."""
        delta = self.points[centre] - self.points
        square, ahead = np.einsum("kd,kd->k", delta, delta), np.einsum("kd,kd->k", self.slopes, delta)
        errors = np.maximum(self.values[centre] - self.values - ahead + 0.5 * rho * square, 0.0)
        slopes = self.slopes - rho * delta + self.rho_bar * (self.points[centre] - self.w)
        noise = _ULPS * self.eps * (self.sizes[centre] + self.sizes + np.abs(ahead))
        return slopes, errors, np.where(square == 0.0, 0.0, noise)

    def suffices(self, proof: Proof, roundings: float) -> bool:
        """Whether the error is small enough, or the gap down to some roundings of the value."""
        return proof.error <= self.target or proof.measured <= roundings * self.noise(proof.centre)

    def prove_smooth(self) -> Proof:
        """Return what the cut of the smallest subgradient proves on its own."""
        row, mu = int(self.norms.argmin()), self.rho_bar - self.rho
        blur = float(np.abs(self.slopes[row]).sum()) + self.rho_bar * float(np.abs(self.points[row] - self.w).sum())
        norm = float(self.norms[row]) + _ULPS * self.eps * blur
        gap = norm**2 / (2.0 * mu)
        return Proof(row, -self.gradient(row) / mu, gap, norm / mu, gap)

    def prove(self, warm: list[Any] | None = None) -> Proof:
        """Return what all cuts prove; `warm` holds the support and the weights to start from and is updated."""
        smooth = self.prove_smooth()
        if self.suffices(smooth, 0.0):
            return smooth
        centre, mu = self.centre, self.rho_bar - self.rho
        slopes, errors, noise = self.model(centre, self.rho)
        support, weights, step = solve_simplex(slopes, errors + noise, mu, *(warm or ([centre], np.ones(1))))
        if warm is not None:
            warm[:] = support, weights
        self.used[support] = self.evaluations
        blur = _ULPS * self.eps * float(weights @ np.abs(slopes[support]).sum(1))
        norm = float(np.linalg.norm(weights @ slopes[support])) + blur
        measured = float(weights @ errors[support])
        error = measured + float(weights @ noise[support])
        reach = (norm + math.sqrt(norm**2 + 4.0 * mu * error)) / (2.0 * mu)
        return Proof(centre, step, error + norm**2 / (2.0 * mu), reach, measured + norm**2 / (2.0 * mu))

    def descend(self, inverse: Array, limit: int, patience: int) -> None:
        """Take BFGS steps with a weak Wolfe search, which finds kinks too; `inverse` is updated in place."""
        row, stop = self.centre, self.evaluations + limit
        while self.evaluations < stop and self.norms[row] > 0.5 * (self.rho_bar - self.rho) * self.target:
            gradient = self.gradient(row)
            direction = -inverse @ gradient
            slope = float(gradient @ direction)
            if slope >= 0.0:
                inverse[...] = np.eye(self.dim) / self.rho_bar
                direction, slope = -gradient / self.rho_bar, -float(gradient @ gradient) / self.rho_bar
            low, high, length = 0.0, math.inf, 1.0
            for _ in range(patience):
                new = self.evaluate(self.points[row] + length * direction)
                ahead = float(self.gradient(new) @ direction)
                if self.heights[new] > self.heights[row] + 1e-4 * length * slope + self.noise(row):
                    high = length
                elif ahead < 0.9 * slope:
                    low = length
                else:
                    break
                if math.isinf(high):
                    length *= 2.0
                elif ahead > 0.0:  # where the slope would vanish if it were linear
                    edge = 0.1 * (high - low)
                    length = min(max(length * slope / (slope - ahead), low + edge), high - edge)
                else:
                    length = 0.5 * (low + high)
            else:
                return
            step, change = self.points[new] - self.points[row], self.gradient(new) - gradient
            product, moved = float(step @ change), inverse @ change
            if product <= 0.0:
                return
            inverse += np.outer(step, step) * ((product + float(change @ moved)) / product**2)
            inverse -= (np.outer(moved, step) + np.outer(step, moved)) / product
            row = new

    def cut(self, limit: int) -> None:
        """Go to the minimum of all cuts, with no more weak convexity than has been seen.

        These models prove nothing, but meet a piecewise linear function exactly.
        """
        stop, rho, trusted = self.evaluations + limit, -1.0, 0
        warm: list[Any] = []
        while self.evaluations < stop:
            centre = self.centre
            if rho != min(1.05 * self.seen, self.rho):
                rho, warm = min(1.05 * self.seen, self.rho), [[centre], np.ones(1)]
            mu = self.rho_bar - rho
            slopes, errors, _ = self.model(centre, rho)
            support, weights, step = solve_simplex(slopes, errors, mu, *warm)
            warm[:] = support, weights
            self.used[support] = self.evaluations
            mean = weights @ slopes[support]
            gap = float(weights @ errors[support]) + float(mean @ mean) / (2.0 * mu)
            if trusted > 1 or self.known(self.points[centre] + step):
                return
            new = self.evaluate(self.points[centre] + step)
            if gap <= 0.1 * self.noise(centre) and self.heights[new] <= self.heights[centre] + self.noise(centre):
                self.centre, trusted = new, trusted + 1  # values can no longer tell the two, the model still can

    def surround(self, limit: int) -> Proof:
        """Collect the subgradients that the proof lacks from points so near that their cuts lose nothing there."""
        warm: list[Any] = [[self.centre], np.ones(1)]
        best = proof = self.prove(warm)
        wanted = max((self.rho_bar - self.rho) * self.target**2, self.noise(proof.centre))
        radius = 0.5 * math.sqrt(0.5 * wanted / self.rho_bar)
        failures = 0
        for _ in range(limit):
            length, old = float(np.linalg.norm(proof.step)), self.centre
            point = self.points[proof.centre] + proof.step * (1.0 if length <= radius else radius / length)
            if self.suffices(best, 0.25) or failures > 5 + self.dim or self.known(point):
                break
            new = self.evaluate(point)
            if length > radius and self.heights[new] >= self.heights[old] - 0.25 * self.noise(old):
                self.centre = old  # not lower by more than rounding: only a neighbour
            proof = self.prove(warm)
            failures = 0 if proof.measured < 0.9 * best.measured else failures + 1
            best = proof if proof.measured <= best.measured else best
        return best

    def known(self, point: Array) -> bool:
        """Whether the point has been evaluated already."""
        return bool((self.points == point).all(axis=1).any())

    def prune(self) -> None:
        """Forget the cuts that have been out of use for longest."""
        self.used[[self.centre, int(self.norms.argmin())]] = self.evaluations
        keep = np.sort(np.argsort(-self.used, kind="stable")[: 100 + 10 * self.dim])
        self.centre = int(np.searchsorted(keep, self.centre))
        for name in ("points", "slopes", "values", "heights", "norms", "sizes", "used"):
            setattr(self, name, getattr(self, name)[keep])


def _text(point: Array) -> str:
    """Write a point for an error message, the first six entries of it."""
    shown = ", ".join(f"{entry:.6g}" for entry in point[:6])
    return f"[{shown}{', ...' if len(point) > 6 else ''}]"
