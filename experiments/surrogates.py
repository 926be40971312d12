"""Why a convex pair loss collapses over the worst pairs, in a picture: `python -m experiments.surrogates`.

A made-up table: one row in twenty is positive, and a fifth of the positives look like negatives, so that most pairs of
the region are lost by every model. Writes docs/reports/surrogates/surrogates.png.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.config import RegionOptions
from experiments.files import save_figure
from moreauc.app.report.pages import COLORS
from moreauc.core.region import region_loss_and_gradient
from moreauc.core.surrogates import SmoothRamp, SquaredHinge, Surrogate, scale_of
from moreauc.metrics import tpauc_score

REGION: RegionOptions = {"min_tpr": 0.5, "max_fpr": 0.5}
RAMP, HINGE = SmoothRamp(0.2), SquaredHinge(1.0)
PICTURE = Path(__file__).parents[1] / "docs/reports/surrogates/surrogates.png"


def made_up(rows: int = 6000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return two features, shape `(rows, 2)`, and labels; four in five positives show in both features."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=random, dtype=torch.float64)
    y = (torch.arange(rows) < rows // 20).long()
    x[: rows // 25] += torch.tensor([1.7, 1.0], dtype=torch.float64)
    return x, y


def objective(scores: Tensor, labels: Tensor, surrogate: Surrogate, link: str) -> float:
    """Return the exact objective over the region."""
    if link == "sigmoid":
        scores = torch.sigmoid(scores)
    elif link == "standardized":
        scores = scores / scale_of(scores[labels == 0])
    return region_loss_and_gradient(scores[labels == 1], scores[labels == 0], surrogate, **REGION)[0]


def along_the_ray(scores: Tensor, labels: Tensor, factors: np.ndarray[Any, Any]) -> dict[str, list[float]]:
    """Return each objective of the scores times a factor, over its value at the constant model."""
    return {
        "squared hinge": [objective(t * scores, labels, HINGE, "identity") for t in factors],
        "squared hinge, sigmoid link": [objective(t * scores, labels, HINGE, "sigmoid") for t in factors],
        "smooth ramp, standardized": [objective(t * scores, labels, RAMP, "standardized") for t in factors],
    }


def by_direction(x: Tensor, labels: Tensor, angles: np.ndarray[Any, Any]) -> dict[str, list[float]]:
    """Return the objectives of linear models by their direction, and one minus their score.

    The squared hinge is that of the best length of each direction.
    """
    found: dict[str, list[float]] = {"squared hinge, best length": [], "smooth ramp": [], "1 - TPAUC": []}
    lengths = np.concatenate([[0.0], np.geomspace(0.01, 2.0, 15)])
    for angle in angles:
        scores = x @ torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
        values = [objective(t * scores, labels, HINGE, "identity") for t in lengths]
        found["squared hinge, best length"].append(min(values))
        found["smooth ramp"].append(objective(scores, labels, RAMP, "standardized"))
        found["1 - TPAUC"].append(1.0 - tpauc_score(labels.numpy(), scores.numpy(), **REGION))
    return found


def draw() -> Figure:
    """Draw the losses, the objectives from the constant model on, and the objectives by direction."""
    figure = Figure(figsize=(12.5, 3.7), layout="constrained")
    shapes, ray, turn = figure.subplots(1, 3)
    z = torch.linspace(-1.6, 1.6, 400, dtype=torch.float64)
    shapes.plot(z, HINGE.value(z), color=COLORS[1], label="squared hinge, margin 1")
    shapes.plot(z, RAMP.value(z), color=COLORS[0], label="smooth ramp, margin 0.2")
    shapes.plot(z, (z > 0).double(), color="#66717f", linestyle=":", label="a lost pair counts 1")
    shapes.set(title="What a pair costs", xlabel="score of the negative minus that of the positive", ylim=(-0.1, 5))
    x, y = made_up()
    good = x @ torch.tensor([1.7, 1.0], dtype=torch.float64) / math.hypot(1.7, 1.0)
    factors = np.linspace(0.0, 1.0, 41)
    styles = {"squared hinge": (COLORS[1], "-"), "squared hinge, sigmoid link": (COLORS[1], "--")}
    for name, values in along_the_ray(good, y, factors).items():
        color, line = styles.get(name, (COLORS[0], "-"))
        begin = 1 if name not in styles else 0  # a constant model has no scale
        ray.plot(factors[begin:], values[begin:], color=color, linestyle=line, label=name)
    ray.set(title="From the constant model to a good one", xlabel="factor on the good model's scores")
    ray.set(ylabel="objective", ylim=(0, 3))
    angles = np.linspace(-math.pi, math.pi, 73)
    colors = {"squared hinge, best length": COLORS[1], "smooth ramp": COLORS[0], "1 - TPAUC": "#66717f"}
    for name, values in by_direction(x, y, angles).items():
        turn.plot(
            np.degrees(angles),
            values,
            color=colors[name],
            linestyle=":" if name[0] == "1" else "-",
            linewidth=2.5 if name[0] == "1" else 1.5,
            label=name,
        )
    turn.set(title="Linear models by direction", xlabel="angle of the weights, degrees", ylim=(0.25, 1.12))
    for axes in (shapes, ray, turn):
        _plain(axes)
    return figure


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8.5, loc="best")


if __name__ == "__main__":
    torch.set_num_threads(1)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    save_figure(draw(), PICTURE, dpi=90)
    print(f"written: {PICTURE}")
