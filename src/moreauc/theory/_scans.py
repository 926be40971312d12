"""The search behind :func:`moreauc.theory.falsify`: segments of a box, how bad they are, and where to find worse.

A stage scans lines, draws pairs, divides the worst segments further or moves them about.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.linalg import vector_norm

OWNER = "falsify"
_SLACK = 128.0  # units in the last place that a difference of values may be off without counting
_BATCH = 8192  # points in one call of the function
_POOL = 64  # segments that are refined
_NODES = 33  # points on a segment that is refined


@dataclass
class Segments:
    """Segments from `x` to `x + u`, with an inner point at the share `weight`, and how bad they are.

    `margin` is the violation less the rounding; `score` is the margin divided by what makes it independent of the
    length. `axis` is the coordinate along which a segment runs, or -1.
    """

    x: Tensor
    u: Tensor
    weight: Tensor
    axis: Tensor
    score: Tensor
    margin: Tensor

    def take(self, rows: Tensor) -> Segments:
        """Return some of the segments, by number or by mask."""
        return Segments(*(getattr(self, field.name)[rows] for field in fields(self)))

    def worst(self, count: int, by: str = "score") -> Segments:
        """Return the `count` segments of the largest score or margin."""
        rows = getattr(self, by).topk(min(count, len(self.score))).indices
        return self.take(rows)


class Search:
    """The worst segments seen so far for each claim, and the stages that look for worse ones.

    `pools` holds what the next stage starts from, `extremes` the largest margins of all stages.
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        scalar: bool,
        corners: tuple[Tensor, Tensor],
        claims: dict[str, float],
        budget: int,
        generator: torch.Generator,
    ) -> None:
        self.function, self.scalar, self.claims, self.generator = function, scalar, claims, generator
        self.low, self.high = corners
        self.dim, self.width = len(self.low), self.high - self.low
        self.reach = torch.maximum(self.low.abs(), self.high.abs()).max()
        self.budget, self.pool = budget, max(4, min(_POOL, budget // (2000 * len(claims))))
        self.top = torch.zeros((), dtype=torch.float64)  # largest absolute value of each component seen so far
        self.eps, self.flat = 2.0**-52, True
        self.pools: dict[str, list[Segments]] = {claim: [] for claim in claims}
        self.extremes: dict[str, Segments] = {}

    def uniform(self, *shape: int) -> Tensor:
        """Draw from [0, 1)."""
        return torch.rand(*shape, generator=self.generator, dtype=torch.float64)

    def normal(self, *shape: int) -> Tensor:
        """Draw from the standard normal distribution."""
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def places(self, count: int) -> Tensor:
        """Draw points of the box, a fifth of their coordinates on its faces."""
        points, chance = self.uniform(count, self.dim), self.uniform(count, self.dim)
        points = torch.where(chance < 0.1, 0.0, torch.where(chance > 0.9, 1.0, points))
        return (self.low + points * self.width).clamp(self.low, self.high)

    def directions(self, count: int, axis: Tensor) -> Tensor:
        """Draw directions in units of the box, along `axis` where it is not -1."""
        free = self.normal(count, self.dim)
        free = torch.where(self.uniform(count, 1) < 0.5, free, free.sign())
        return torch.where(axis[:, None] >= 0, torch.eye(self.dim, dtype=torch.float64)[axis], free) * self.width

    def values(self, points: Tensor) -> Tensor:
        """Evaluate points of shape `(..., dim)`; return the shape `(..., k)`."""
        batch = points.reshape(-1) if self.scalar else points.reshape(-1, self.dim)
        out = torch.cat([self.call(part) for part in torch.split(batch, _BATCH)])
        self.top = torch.maximum(self.top, out.abs().amax(0))
        return out.reshape(*points.shape[:-1], -1)

    def call(self, batch: Tensor) -> Tensor:
        """Call the function once; return the shape `(batch, k)`."""
        size = len(batch)
        with torch.no_grad():
            out = self.function(batch)
        if not isinstance(out, Tensor) or out.ndim not in (1, 2) or len(out) != size or out.numel() == 0:
            got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(f"{OWNER}: function must return shape ({size},) or ({size}, k), got {got}")
        finite = torch.isfinite(out).reshape(size, -1).all(1)
        if not bool(finite.all()):
            place = point_text(batch[~finite][0])
            raise ValueError(f"{OWNER}: function must be finite on the box, got another value at {place}")
        if out.is_floating_point():
            self.eps = max(self.eps, torch.finfo(out.dtype).eps)
        self.flat = out.ndim == 1
        return out.to(torch.float64).reshape(size, -1)

    def assess(self, claim: str, length: Tensor, weight: Tensor, fx: Tensor, fz: Tensor, fy: Tensor) -> list[Tensor]:
        """Return score, margin, violation and component; values have shape `(..., k)`, `length` has `(...)`.

        `fz` counts for weak convexity only.
        """
        span, share = length[..., None], weight[..., None]
        slope, unit, raw, top = (fy - fx).abs() / span, span, fx - fy, self.top
        if claim == "lipschitz":
            raw = vector_norm(raw, dim=-1, keepdim=True) - self.claims[claim] * span
            slope, top = vector_norm(slope, dim=-1, keepdim=True), vector_norm(top)
        elif claim == "weak_convexity":
            unit = share * (1 - share) * span**2 / 2
            raw = fz - (1 - share) * fx - share * fy - self.claims[claim] * unit
            slope = torch.maximum((fz - fx).abs() / share, (fy - fz).abs() / (1 - share)) / span
        margin = raw - _SLACK * self.eps * (top + self.reach * slope)
        component = margin.argmax(-1, keepdim=True)
        picked = [value.gather(-1, component)[..., 0] for value in (margin / unit, margin, raw)]
        return [*picked, component[..., 0]]

    def measure(self, claim: str, x: Tensor, u: Tensor, weight: Tensor, axis: Tensor) -> Segments:
        """Evaluate segments of shape `(count, dim)`."""
        fx, fy = self.values(x), self.values((x + u).clamp(self.low, self.high))
        fz = self.values((x + weight[:, None] * u).clamp(self.low, self.high)) if claim == "weak_convexity" else fx
        length = vector_norm(u, dim=-1)
        tiny = length <= 1e-9 * self.width.min()
        score, margin, *_ = self.assess(claim, length.masked_fill(tiny, 1.0), weight, fx, fz, fy)
        return Segments(x, u, weight, axis, score.masked_fill(tiny, -math.inf), margin.masked_fill(tiny, -math.inf))

    def note(self, claim: str, segments: Segments) -> None:
        """Remember the segments of the largest margins."""
        known = [self.extremes[claim]] if claim in self.extremes else []
        self.extremes[claim] = _join([*known, segments.worst(8, "margin")]).worst(8, "margin")

    def trace(
        self, start: Tensor, end: Tensor, axis: Tensor, nodes: int, only: str | None = None
    ) -> dict[str, Segments]:
        """Evaluate lines at equal steps; return for each claim the worst segment of each line at each stride."""
        parts = torch.linspace(0.0, 1.0, nodes, dtype=torch.float64)[:, None]
        points = (start[:, None] + parts * (end - start)[:, None]).clamp(self.low, self.high)
        values, whole = self.values(points), vector_norm(end - start, dim=-1)
        result = {}
        for claim in [only] if only else self.claims:
            reach = 2 if claim == "weak_convexity" else 1
            rows = axis >= (0 if claim == "non_decreasing" else -1)
            lines, pieces = points[rows], values[rows]
            collected = []
            for stride in (2**k for k in range(nodes.bit_length()) if reach * 2**k < nodes):
                fx, fy = pieces[:, : -reach * stride], pieces[:, reach * stride :]
                fz = pieces[:, stride:-stride] if reach == 2 else fx
                length = (whole[rows] * (reach * stride / (nodes - 1)))[:, None].expand(fx.shape[:2])
                half = torch.full_like(length, 0.5)
                score, margin, *_ = self.assess(claim, length, half, fx, fz, fy)
                for order in (score, margin):
                    at = order.argmax(1, keepdim=True)
                    x = lines.take_along_dim(at[..., None], 1)[:, 0]
                    y = lines.take_along_dim(at[..., None] + reach * stride, 1)[:, 0]
                    worst = (value.gather(1, at)[:, 0] for value in (score, margin))
                    collected.append(Segments(x, y - x, half[:, 0], axis[rows], *worst))
            result[claim] = _join(collected)
            self.note(claim, result[claim])
        return result

    def lines(self, middle: Tensor, u: Tensor, axis: Tensor, bound: float = math.inf) -> tuple[Tensor, Tensor, Tensor]:
        """Return start, end and axis of lines through `middle` along `u`, up to `bound` times `u` inside the box.

        Lines shorter than 1e-7 of the box are left out, such as those that touch it in a corner only.
        """
        free = u == 0.0
        sides = torch.stack((self.low - middle, self.high - middle)) / u.masked_fill(free, 1.0)
        upper = sides.amax(0).masked_fill(free, math.inf).amin(-1, keepdim=True).clamp(0.0, bound)
        lower = sides.amin(0).masked_fill(free, -math.inf).amax(-1, keepdim=True).clamp(-bound, 0.0)
        start, end = (torch.where(free, middle, (middle + t * u).clamp(self.low, self.high)) for t in (lower, upper))
        keep = vector_norm((end - start) / self.width, dim=-1) > 1e-7
        return start[keep], end[keep], axis[keep]

    def scan(self) -> None:
        """Trace lines across the box; with one coordinate, the box and its parts."""
        if self.dim == 1:
            parts = max(4, min(64, self.budget // 1000))
            edges = torch.linspace(0.0, 1.0, parts + 1, dtype=torch.float64)[:, None] * self.width + self.low
            edges = edges.clamp(self.low, self.high)
            start = torch.cat((edges[:-1], edges[:1]))
            end, axis = torch.cat((edges[1:], edges[-1:])), torch.zeros(parts + 1, dtype=torch.int64)
            nodes = 2 ** int(math.log2(self.budget / (4 * parts))) + 1
        else:
            nodes = 65
            count = max(8, self.budget // (2 * nodes))
            axis = torch.arange(count) % (2 * self.dim)
            axis = torch.where(axis < self.dim, axis, -1)
            start, end, axis = self.lines(self.places(count), self.directions(count, axis), axis)
        for claim, segments in self.trace(start, end, axis, nodes).items():
            self.pools[claim].append(segments.worst(self.pool))

    def pair(self) -> None:
        """Draw segments of all lengths."""
        for claim in self.claims:
            count = self.budget // (10 * len(self.claims))
            axis = torch.full((count,), -1)
            if claim == "non_decreasing":
                axis = torch.arange(count) % self.dim
            u = self.directions(count, axis) * 10.0 ** (-6.0 * self.uniform(count, 1))
            x = self.places(count)
            y = (x + u).clamp(self.low, self.high)
            if claim == "non_decreasing":
                x, y = torch.minimum(x, y), torch.maximum(x, y)
            segments = self.measure(claim, x, y - x, 0.05 + 0.9 * self.uniform(count), axis)
            self.note(claim, segments)
            self.pools[claim].append(segments.worst(self.pool))

    def zoom(self) -> None:
        """Divide the worst segments further and further, each level along other directions too."""
        for claim, pools in self.pools.items():
            pool = _join(pools).worst(self.pool)
            for _ in range(5):
                middle, u, axis = pool.x + pool.u / 2, pool.u, pool.axis
                if self.dim > 1 and claim != "non_decreasing":
                    turned = self.directions(len(u), torch.full_like(axis, -1)) / self.width
                    turned = turned * (vector_norm(u, dim=-1) / vector_norm(turned, dim=-1))[:, None]
                    middle, u = middle.repeat(2, 1), torch.cat((u, turned))
                    axis = torch.cat((axis, torch.full_like(axis, -1)))
                start, end, axis = self.lines(middle, u, axis, 1.0)
                if len(start) == 0:
                    break
                traced = self.trace(start, end, axis, _NODES, claim)[claim]
                fine = vector_norm(traced.u, dim=-1) <= 0.13 * vector_norm(end - start, dim=-1).max()
                pool = traced.take(fine).worst(self.pool)
            pools.append(pool)

    def climb(self, by: str = "score", rounds: int = 25) -> None:
        """Move, turn and stretch the worst segments at random; keep what makes them worse."""
        for claim, pools in self.pools.items():
            pool = self.extremes[claim]
            if by == "score":
                pool = _join([part.worst(self.pool // 2) for part in pools]).worst(self.pool)
            for _ in range(rounds):
                trial = pool.take(torch.arange(len(pool.x)).repeat_interleave(8))
                count, length = len(trial.x), vector_norm(trial.u, dim=-1, keepdim=True)
                shift = torch.where(self.uniform(count, 1) < 0.5, length, self.width) * self.normal(count, self.dim)
                x = (trial.x + shift * 10.0 ** (-4.0 * self.uniform(count, 1))).clamp(self.low, self.high)
                turn = length * self.normal(count, self.dim) * 10.0 ** (-3.0 * self.uniform(count, 1))
                if claim == "non_decreasing":
                    turn = torch.zeros_like(turn)
                u = (trial.u + turn) * torch.exp(0.7 * self.normal(count, 1))
                weight = torch.where(self.uniform(count) < 0.25, 0.05 + 0.9 * self.uniform(count), trial.weight)
                new = self.measure(claim, x, (x + u).clamp(self.low, self.high) - x, weight, trial.axis)
                self.note(claim, new)
                pool = _better(pool, new, by)

    def found(self) -> bool:
        """Whether a violation has been seen."""
        return any(bool((segments.margin > 0.0).any()) for segments in self.extremes.values())

    def enlarge(self) -> tuple[str, Segments]:
        """Make the violations larger; return the first claim that fails and its worst segment, a single one."""
        self.pools = {claim: [] for claim, segments in self.extremes.items() if bool((segments.margin > 0.0).any())}
        self.climb("margin", 10)
        claim = next(iter(self.pools))
        return claim, self.extremes[claim].worst(1, "margin")


def point_text(point: Tensor) -> str:
    """Write a point with all digits, so that what is shown can be checked."""
    return repr(point.item()) if point.ndim == 0 else "(" + ", ".join(map(repr, point.tolist())) + ")"


def _join(parts: list[Segments]) -> Segments:
    return Segments(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Segments)))


def _better(old: Segments, new: Segments, by: str) -> Segments:
    """Return for each old segment the best of its eight trials in `new`, or itself."""
    best = getattr(new, by).reshape(-1, 8).max(1)
    rows = torch.arange(len(old.x)) * 8 + best.indices
    better = best.values > getattr(old, by)
    both = _join([old, new.take(rows)])
    return both.take(torch.arange(len(rows)) + len(rows) * better)
