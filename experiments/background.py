"""The pictures of docs/background.md and of the README: `python -m experiments.background`.

All data are made up. Writes docs/images/*.png and the numbers that the page cites, docs/images/background.json.
"""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from sklearn.metrics import roc_curve
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from experiments.config import RegionOptions
from experiments.files import save_figure
from moreauc import FCCOLoss, PreviousIterate, TPAUCLoss
from moreauc.app.report.pages import COLORS
from moreauc.core.tables import Gamma
from moreauc.data import TensorBatches
from moreauc.metrics import tpauc_score
from moreauc.samplers import PosNegSampler
from moreauc.theory import moreau_envelope

FOLDER = Path(__file__).parents[1] / "docs" / "images"
REGION: RegionOptions = {"min_tpr": 0.6, "max_fpr": 0.3}
BLUE, RED = COLORS[:2]
INK, QUIET, PALE = "#1c2430", "#66717f", "#e3e7eb"
SEEDS, SEED_OF_PAIRS = 10, 2435
Numbers = NDArray[np.float64]
PlugIn = TypedDict("PlugIn", {"sizes": list[int], "true": float, "plug-in": list[float], "rows": list[float]})


def made_up(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return two features and labels, a tenth positive; the spread of each feature differs between the classes."""
    random = torch.Generator().manual_seed(seed)
    x, y = torch.randn(rows, 2, generator=random), (torch.arange(rows) % 10 == 0).long()
    positive = x * torch.tensor([2.5, 0.5]) + torch.tensor([2.0, 3.0])
    return torch.where(y.unsqueeze(1) == 1, positive, x * torch.tensor([1.0, 2.0])), y


def fit_cross_entropy(x: Tensor, y: Tensor) -> nn.Linear:
    """Return the linear model with the smallest cross entropy."""
    model = nn.Linear(x.shape[1], 1)
    newton = torch.optim.LBFGS(model.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        newton.zero_grad()
        loss = binary_cross_entropy_with_logits(model(x).squeeze(1), y.float())
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    newton.step(closure)  # type: ignore[no-untyped-call]
    return model


def train(seed: int) -> dict[str, Tensor]:
    """Return scores of new rows by linear models: of cross entropy, of SONX from there, and of more features."""
    (x, y), (new, _) = made_up(4000, seed), made_up(20_000, seed + 1000)
    torch.manual_seed(seed)
    begin = fit_cross_entropy(x, y)
    model = copy.deepcopy(begin)
    criterion = TPAUCLoss(
        y, tau=0.5, gamma=0.1, surrogate="smooth_ramp", link="standardized", threshold_lr="quantile", **REGION
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    previous = PreviousIterate(model, optimizer)
    sampler = PosNegSampler(y, num_positives=32, num_negatives=128, seed=seed)
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for inputs, labels, index in TensorBatches(x, y, sampler):
            before = previous(inputs).squeeze(1)
            loss = criterion(model(inputs).squeeze(1), labels, index, previous_scores=before)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    wide, new_wide = (torch.cat([part, part.square()], 1) for part in (x, new))
    scores = {"cross entropy": begin(new), "then SONX": model(new)}
    scores["cross entropy, with squares"] = fit_cross_entropy(wide, y)(new_wide)
    return {name: part.detach().squeeze(1) for name, part in scores.items()}


def scores_by_seed() -> dict[str, dict[str, list[float]]]:
    """Return the two-way partial AUC and the AUC of new rows, before and after, for each draw of the data."""
    _, y = made_up(20_000, 0)
    found: dict[str, dict[str, list[float]]] = {"TPAUC": {}, "AUC": {}}
    for seed in range(SEEDS):
        for name, scores in train(seed).items():
            found["TPAUC"].setdefault(name, []).append(round(tpauc_score(y, scores, **REGION), 4))
            found["AUC"].setdefault(name, []).append(round(tpauc_score(y, scores, min_tpr=0, max_fpr=1), 4))
    return found


def draw_roc_region() -> Figure:
    """Draw the ROC curves of a model before and after training for the region, and the region enlarged."""
    _, y = made_up(20_000, 0)
    scores = train(0)
    figure = Figure(figsize=(9.2, 4.5), layout="constrained")
    whole, part = figure.subplots(1, 2)
    grid, curves = np.linspace(0, REGION["max_fpr"], 301), []
    for name, title, color in (
        ("cross entropy", "before: trained by cross entropy", QUIET),
        ("then SONX", "after: trained for the region", BLUE),
    ):
        fpr, tpr, _ = roc_curve(y, scores[name])
        for axes in (whole, part):
            axes.plot(fpr, tpr, color=color, linewidth=2.4, label=title)
        curves.append(np.maximum(np.interp(grid, fpr, tpr), REGION["min_tpr"]))
        score = tpauc_score(y, scores[name], **REGION)
        place = (0.14, 0.8) if name == "cross entropy" else (0.07, 0.9)
        part.annotate(f"{score:.0%}", place, color=color, fontsize=14, weight="bold")
    before, after = curves
    part.fill_between(grid, before, after, where=after >= before, color=BLUE, alpha=0.25, linewidth=0)
    part.fill_between(grid, before, after, where=after <= before, color=RED, alpha=0.3, linewidth=0)
    part.annotate("gained", (0.2, 0.962), (0.235, 0.9), color=BLUE, arrowprops={"arrowstyle": "-", "color": BLUE})
    part.annotate("lost", (0.04, 0.63), (0.1, 0.64), color=RED, arrowprops={"arrowstyle": "-", "color": RED})
    _region(whole)
    whole.text(0.32, 0.78, "the region\nthat counts", color="#8a5a00", fontsize=11)
    whole.legend(frameon=False, loc="lower right", fontsize=10)
    whole.set(xlabel="false alarms: false positive rate", ylabel="positives found: true positive rate")
    _rates(whole)
    part.set(xlim=(0, REGION["max_fpr"]), ylim=(REGION["min_tpr"], 1.0), xlabel="false positive rate")
    part.set_title("The region, and its share below each curve", fontsize=11)
    part.set_facecolor("#fdf3de")
    part.spines[:].set_color("#c98a1b")
    return figure


def draw_pairs() -> Figure:
    """Draw scores of a few rows, and the ROC curve as a staircase whose cells are the pairs."""
    random = np.random.default_rng(SEED_OF_PAIRS)
    positive = np.sort(random.normal(1.8, 1.0, 10))[::-1]
    negative = np.sort(random.normal(0.0, 1.0, 20))[::-1]
    hard, soft = round(20 * REGION["max_fpr"]), round(10 * (1 - REGION["min_tpr"]))
    figure = Figure(figsize=(9.2, 4.3), layout="constrained")
    line, roc = figure.subplots(1, 2, width_ratios=(1.05, 1))
    for height, values, chosen, color in (
        (1, positive, slice(10 - soft, 10), BLUE),
        (0, negative, slice(0, hard), RED),
    ):
        inside = np.zeros(len(values), bool)
        inside[chosen] = True
        line.scatter(
            values[~inside], np.full((~inside).sum(), height), s=70, facecolor="white", edgecolor=color, zorder=3
        )
        line.scatter(values[inside], np.full(inside.sum(), height), s=70, color=color, zorder=3)
        line.axhline(height, color=PALE, zorder=1)
        low, high = values[inside].min() - 0.12, values[inside].max() + 0.12
        line.add_patch(Rectangle((low, height - 0.13), high - low, 0.26, facecolor=color, alpha=0.13, zorder=2))
    line.text(positive[-soft:].mean(), 1.21, "the lowest 40 % count", color=BLUE, ha="center")
    line.text(negative[:hard].mean(), -0.31, "the highest 30 % count", color=RED, ha="center")
    line.set(yticks=[0, 1], yticklabels=["negatives", "positives"], ylim=(-0.6, 1.5), xlabel="score of the model")
    line.set_title("Rows that count: TPR ≥ 0.6, FPR ≤ 0.3", fontsize=11)
    line.spines[["top", "right", "left"]].set_visible(False)
    line.tick_params(axis="y", length=0)
    right = 0
    for row, p in enumerate(positive):
        for column, n in enumerate(negative):
            counts, good = row >= 10 - soft and column < hard, p > n
            right += counts and good
            color = (BLUE if good else RED) if counts else (PALE if good else "white")
            cell = Rectangle((column / 20, row / 10), 0.05, 0.1, facecolor=color, edgecolor="white", linewidth=0.8)
            cell.set_alpha(0.75 if counts else 1.0)
            roc.add_patch(cell)
    labels = np.repeat([1, 0], [10, 20])
    fpr, tpr, _ = roc_curve(labels, np.concatenate([positive, negative]), drop_intermediate=False)
    roc.plot(fpr, tpr, color=INK, linewidth=2)
    roc.add_patch(Rectangle((0, 0.6), 0.3, 0.4, fill=False, edgecolor="#c98a1b", linewidth=2.2, zorder=5))
    roc.set(xlabel="false positive rate (negatives, highest first)")
    roc.set(ylabel="true positive rate (positives, highest first)")
    _rates(roc)
    total = soft * hard
    roc.set_title(f"Pairs in the region: {right} of {total} in the right order", fontsize=11)
    handles = [Rectangle((0, 0), 1, 1, facecolor=color, alpha=0.75) for color in (BLUE, RED)]
    names = ["right: positive above negative", "wrong"]
    roc.text(0.63, 0.6, "does not count", color=QUIET, ha="center")
    roc.legend([*handles, *roc.lines[-1:]], [*names, "ROC curve"], loc="lower right", framealpha=1, fontsize=9)
    return figure


def plug_in(repeats: int = 2000) -> PlugIn:
    """Return the objective of fixed scores, as estimated with batches of several sizes, and by rows that remember."""
    random = torch.Generator().manual_seed(0)
    positive = 0.5 + torch.randn(200, generator=random, dtype=torch.float64)
    negative = torch.randn(4000, generator=random, dtype=torch.float64)
    top = negative.sort(descending=True).values[len(negative) // 10 - 1]  # a tenth of the negatives count

    def pair(part: Tensor) -> Tensor:
        return torch.relu(1 + part - positive.unsqueeze(1)).square()

    s = torch.relu(1 + top - positive).square()

    def inner(part: Tensor) -> Tensor:
        return s + torch.relu(pair(part) - s.unsqueeze(1)).mean(1) / 0.1

    true = inner(negative)
    prime = true.quantile(0.7)  # the worst 30 % of the positives count

    def outer(u: Tensor) -> float:
        return float((prime + torch.relu(u - prime) / 0.3).mean())

    sizes, plain, rows = [2**k for k in range(2, 11)], [], []
    for size in sizes:
        draws = [inner(negative[torch.randint(4000, (size,), generator=random)]) for _ in range(repeats)]
        plain.append(float(np.mean([outer(u) for u in draws])))
        u, seen = draws[0].clone(), []
        for now in draws[1:]:
            u = 0.9 * u + 0.1 * now
            seen.append(outer(u))
        rows.append(float(np.mean(seen[20:])))
    return {"sizes": sizes, "true": outer(true), "plug-in": plain, "rows": rows}


def draw_plug_in(found: PlugIn) -> Figure:
    """Draw why the mean of f is above f of the mean, and how far, by the size of a batch."""
    figure = Figure(figsize=(9.2, 3.9), layout="constrained")
    why, much = figure.subplots(1, 2)
    u = np.linspace(-1.6, 1.6, 200)
    why.plot(u, np.maximum(u, 0), color=INK, linewidth=2.2, label="outer function $f$")
    low, high = -1.0, 1.0
    why.plot([low, high], [0, 1], color=RED, linestyle="--", linewidth=1.3)
    why.scatter([low, high], [0, 1], color=RED, zorder=3, s=55)
    why.scatter([0], [0.5], marker="D", color=RED, zorder=4, s=60)
    why.scatter([0], [0], marker="D", color=BLUE, zorder=4, s=60)
    why.text(low, -0.14, "one batch", color=RED, ha="center")
    why.text(high - 0.08, 1.03, "another batch", color=RED, ha="right")
    why.text(-0.08, 0.6, r"mean of $f$(batch)", color=RED, ha="right")
    why.text(0.04, -0.14, r"$f$(mean): the objective", color=BLUE)
    why.annotate("", (0, 0.46), (0, 0.05), arrowprops={"arrowstyle": "<->", "color": QUIET})
    why.text(-0.06, 0.2, "bias", color=QUIET, ha="right")
    why.set(xlabel="inner value $g$, noisy in a batch", ylabel="$f(g)$", ylim=(-0.3, 1.6))
    why.set_title("A bend turns noise into bias", fontsize=11)
    much.axhline(1.0, color=INK, linewidth=1.5, label="the objective")
    for means, color, title in (
        (found["plug-in"], RED, "the batch's own mean, plugged in"),
        (found["rows"], BLUE, "a row that remembers, tau = 0.1"),
    ):
        values = np.array(means) / found["true"]
        much.plot(found["sizes"], values, color=color, marker="o", markersize=5, linewidth=2, label=title)
    much.set_xscale("log", base=2)
    much.set_xticks(found["sizes"], [str(size) for size in found["sizes"]])
    much.set_yticks(np.arange(1.0, 1.21, 0.05))
    much.set(xlabel="negatives in a batch", ylabel="mean estimate over the objective")
    much.set_title("Two-way partial AUC, fixed scores", fontsize=11)
    much.legend(frameon=False, fontsize=9.5)
    for axes in (why, much):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def track(gamma: Gamma, steps: int = 400) -> dict[str, Numbers]:
    """Return the inner values of moving weights, the observations and the rows of a table, by step.

    A fifth of the 50 blocks is in each batch. `g_i(w) = c_i + a_i w` is observed with noise in both numbers.
    """
    random = torch.Generator().manual_seed(3)
    blocks, batch = 50, 10
    c, a = torch.randn(2, blocks, generator=random, dtype=torch.float64)
    criterion = FCCOLoss(blocks, lambda u, index: torch.relu(u), tau=0.1, gamma=gamma, initial=c).double()
    found: dict[str, list[Tensor]] = {"true": [], "rows": [], "seen": []}
    weight = before = 0.0
    for step in range(steps):
        index = torch.randperm(blocks, generator=random)[:batch]
        noise = 0.5 * torch.randn(2, batch, generator=random, dtype=torch.float64)

        def observe(w: float, index: Tensor = index, noise: Tensor = noise) -> Tensor:
            value: Tensor = c[index] + noise[0] + (a[index] + 0.1 * noise[1]) * w
            return value

        now = observe(weight).requires_grad_()
        criterion(now, index, previous_inner=observe(before))
        seen = torch.full((blocks,), torch.nan, dtype=torch.float64)
        seen[index] = now.detach()
        found["seen"].append(seen)
        before, weight = weight, 2.0 * math.sin(2 * math.pi * (step + 1) / 400)
        found["true"].append(c + a * before)
        found["rows"].append(criterion.u.clone())
    return {name: torch.stack(part).numpy() for name, part in found.items()}


def draw_table(runs: dict[str, dict[str, Numbers]]) -> Figure:
    """Draw one row of the table beside the value that it tracks, and the error of all rows."""
    figure = Figure(figsize=(9.2, 3.9), layout="constrained")
    one, every = figure.subplots(1, 2)
    any_run = next(iter(runs.values()))
    steps = np.arange(len(any_run["true"]))
    block = 7
    one.plot(steps, any_run["true"][:, block], color=INK, linewidth=2.4, label="true value $g_i(w_t)$")
    one.scatter(steps, any_run["seen"][:, block], color=QUIET, s=22, zorder=3, label="what its batches saw")
    colors = dict(zip(runs, (RED, BLUE), strict=True))
    for name, run in runs.items():
        one.step(
            steps, run["rows"][:, block], where="post", color=colors[name], linewidth=1.8, label=f"row $u_i$, {name}"
        )
    one.set(xlabel="step", ylabel="value")
    one.set_title("One row, visited in one step of five", fontsize=11)
    for name, run in runs.items():
        error = np.abs(run["rows"] - run["true"]).mean(1)
        every.plot(steps, error, color=colors[name], linewidth=2)
    seen = float(np.nanmean(np.abs(any_run["seen"] - any_run["true"])))
    every.axhline(seen, color=QUIET, linestyle=":", linewidth=2, label="a batch alone")
    every.legend(frameon=False, loc="upper right", fontsize=9.5)
    every.set(xlabel="step", ylabel="mean distance from the true value", ylim=(0, 1.3))
    every.set_title("All 50 rows", fontsize=11)
    for axes in (one, every):
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*one.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9.5)
    return figure


def draw_envelope() -> Figure:
    """Draw a weakly convex function, its Moreau envelope, and a point that is nearly stationary."""

    def kinked(x: Tensor) -> Tensor:
        return (x.square() - 1).abs()

    figure = Figure(figsize=(7.4, 4.4), layout="constrained")
    axes = figure.subplots()
    grid = np.linspace(-1.45, 1.45, 291)
    values = [float(kinked(torch.tensor(x))) for x in grid]
    smooth = [moreau_envelope(kinked, float(x), 4.0, rho=2.0).value for x in grid]
    axes.plot(grid, values, color=INK, linewidth=2.2, label="$F(w) = |w^2 - 1|$: kinks, weakly convex")
    axes.plot(grid, smooth, color=BLUE, linewidth=2.2, label="Moreau envelope $F_{1/4}$: smooth, same minima")
    w = 1.15
    value, point, norm = moreau_envelope(kinked, w, 4.0, rho=2.0)
    axes.scatter([w], [w * w - 1], color=INK, zorder=4, s=45)
    axes.scatter([w], [value], color=BLUE, zorder=4, s=45)
    axes.scatter([float(point)], [0.0], color=RED, zorder=4, s=60, marker="D")
    axes.annotate(
        f"at w = {w}:\nslope of F is {2 * w:.1f}, though the\nminimum is {w - 1:.2f} away",
        (w, w * w - 1),
        (1.55, 0.62),
        color=INK,
        arrowprops={"arrowstyle": "-", "color": INK},
    )
    axes.annotate(
        f"slope of the envelope is {norm:.1f},\n4 times the distance to ŵ",
        (w, value),
        (1.55, 0.1),
        color=BLUE,
        arrowprops={"arrowstyle": "-", "color": BLUE},
    )
    axes.annotate("ŵ, the proximal point", (1.0, 0.0), (1.0, -0.2), color=RED, ha="center")
    axes.annotate(
        "a maximum is stationary, too",
        (0.0, 1.0),
        (-0.5, 1.25),
        color=QUIET,
        arrowprops={"arrowstyle": "-", "color": QUIET},
    )
    axes.set(xlabel="w", ylim=(-0.3, 1.75), xlim=(-1.5, 2.5))
    axes.legend(frameon=False, loc="upper center", fontsize=9.5)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _region(axes: Axes) -> None:
    corner, width, height = (0.0, REGION["min_tpr"]), REGION["max_fpr"], 1.0 - REGION["min_tpr"]
    axes.add_patch(Rectangle(corner, width, height, facecolor="#f6d99a", edgecolor="#c98a1b", alpha=0.55))


def _rates(axes: Axes) -> None:
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    axes.spines[["top", "right"]].set_visible(False)


def main(folder: Path = FOLDER) -> None:
    """Draw all pictures and write the numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    found = plug_in()
    runs = {"gamma = 0": track(0.0), "gamma of the theory": track("theory")}
    figures = {
        "roc_region": draw_roc_region(),
        "pairs": draw_pairs(),
        "plug_in": draw_plug_in(found),
        "table": draw_table(runs),
        "envelope": draw_envelope(),
    }
    for name, figure in figures.items():
        save_figure(figure, folder / f"{name}.png", dpi=100)
    errors = {name: float(np.abs(run["rows"] - run["true"]).mean()) for name, run in runs.items()}
    report = {"command": "python -m experiments.background", "roc_region": scores_by_seed(), "plug_in": found}
    report["table"] = errors
    (folder / "background.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"written: {folder}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
