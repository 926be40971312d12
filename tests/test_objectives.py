"""Exact objectives against minimisation over the thresholds by scanning their breakpoints."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import oracles
import pytest
import torch
from torch import Tensor

from experiments import surrogates as surrogates_picture
from moreauc.core import objectives
from moreauc.core.objectives import tpauc_objective, tpauc_optimum

VALUES: dict[str, Callable[[float], float]] = {
    "squared_hinge": lambda v: max(v, 0.0) ** 2,
    "hinge": lambda v: max(v, 0.0),
    "squared": lambda v: v * v,
    "logistic": lambda v: math.log1p(math.exp(-abs(v))) + max(v, 0.0),
    "sigmoid": lambda v: 1.0 / (1.0 + math.exp(-v)),
}
REGIONS = [(0.0, 1.0), (0.5, 0.5), (0.9, 0.3), (0.37, 0.61), (0.99, 0.01), (0.7, 0.1)]

surrogates = pytest.mark.parametrize("surrogate", VALUES)
regions = pytest.mark.parametrize(("min_tpr", "max_fpr"), REGIONS)


def split(scores: Tensor, labels: Tensor) -> tuple[list[float], list[float]]:
    both = list(zip(scores.tolist(), labels.tolist(), strict=True))
    return [h for h, y in both if y == 1], [h for h, y in both if y == 0]


def cvar_at(values: list[float], level: float, s: float) -> float:
    return s + math.fsum(max(value - s, 0.0) for value in values) / (level * len(values))


def cvar(values: list[float], level: float) -> float:
    return min(cvar_at(values, level, s) for s in values)  # convex and piecewise linear: least at a breakpoint


def by_scanning(scores: Tensor, labels: Tensor, name: str, margin: float, min_tpr: float, max_fpr: float) -> float:
    positive, negative = split(scores, labels)
    loss = VALUES[name]
    psi = [cvar([loss(margin + (h_j - h_i)) for h_j in negative], max_fpr) for h_i in positive]
    return cvar(psi, 1 - min_tpr)


def draw(size: int, ties: bool) -> tuple[Tensor, Tensor]:
    scores = torch.randint(-2, 3, (size,)).double() if ties else torch.randn(size, dtype=torch.float64)
    labels = torch.randint(0, 2, (size,))
    labels[0], labels[-1] = 0, 1
    return scores, labels


@surrogates
@regions
@pytest.mark.parametrize("size", [2, 7, 31])
@pytest.mark.parametrize("ties", [False, True])
def test_is_the_least_value_over_thresholds(
    surrogate: str, min_tpr: float, max_fpr: float, size: int, ties: bool
) -> None:
    scores, labels = draw(size, ties)
    ours = tpauc_objective(
        scores, labels, min_tpr=min_tpr, max_fpr=max_fpr, surrogate=surrogate, margin=0.8, link="identity"
    )
    assert isinstance(ours, float)
    assert ours == pytest.approx(by_scanning(scores, labels, surrogate, 0.8, min_tpr, max_fpr), rel=1e-12, abs=1e-14)


@regions
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("factor", [1e-3, 1.0, 50.0])
def test_the_ramp_on_standardized_scores(min_tpr: float, max_fpr: float, ties: bool, factor: float) -> None:
    scores, labels = draw(31, ties)
    positive, negative = split(scores, labels)
    unit = oracles.spread(negative)
    psi = [cvar([oracles.smooth_ramp((h_j - h_i) / unit, 0.2) for h_j in negative], max_fpr) for h_i in positive]
    region = {"min_tpr": min_tpr, "max_fpr": max_fpr, "surrogate": "smooth_ramp", "link": "standardized"}
    ours = tpauc_objective(factor * scores, labels, **region)
    assert ours == pytest.approx(cvar(psi, 1 - min_tpr), rel=1e-12, abs=1e-14)


@surrogates
def test_is_least_over_all_thresholds_together(surrogate: str) -> None:
    positive, negative, loss = [0.3, -0.4], [0.1, 0.9, -1.2], VALUES[surrogate]
    alpha, beta = 0.6, 0.5
    rows = [[loss(1.0 + h_j - h_i) for h_j in negative] for h_i in positive]
    values = []
    for s in itertools.product(*rows):
        psi = [cvar_at(row, beta, s_i) for row, s_i in zip(rows, s, strict=True)]
        values += [cvar_at(psi, alpha, s_prime) for s_prime in psi]
    scores, labels = torch.tensor(positive + negative, dtype=torch.float64), torch.tensor([1, 1, 0, 0, 0])
    ours = tpauc_objective(scores, labels, min_tpr=0.4, max_fpr=0.5, surrogate=surrogate, link="identity")
    assert ours == pytest.approx(min(values), rel=1e-13)


@surrogates
@regions
def test_the_thresholds_attain_the_value(surrogate: str, min_tpr: float, max_fpr: float) -> None:
    scores, labels = draw(29, ties=False)
    optimum = tpauc_optimum(
        scores, labels, min_tpr=min_tpr, max_fpr=max_fpr, surrogate=surrogate, margin=1.0, link="identity"
    )
    positive, negative = split(scores, labels)
    assert optimum.s.shape == (len(positive),)
    psi = []
    for h_i, s_i in zip(positive, optimum.s.tolist(), strict=True):
        row = [VALUES[surrogate](1.0 + (h_j - h_i)) for h_j in negative]
        psi.append(cvar_at(row, max_fpr, s_i))
        assert psi[-1] == pytest.approx(cvar(row, max_fpr), rel=1e-12)
    assert cvar_at(psi, 1 - min_tpr, optimum.s_prime) == pytest.approx(optimum.value, rel=1e-12)


@surrogates
def test_the_whole_region_gives_the_mean_over_pairs(surrogate: str) -> None:
    scores, labels = draw(40, ties=False)
    positive, negative = split(torch.sigmoid(scores), labels)
    mean = math.fsum(VALUES[surrogate](1.0 + b - a) for a in positive for b in negative)
    mean /= len(positive) * len(negative)
    ours = tpauc_objective(scores, labels, min_tpr=0.0, max_fpr=1.0, surrogate=surrogate)
    assert ours == pytest.approx(mean, rel=1e-13)


@surrogates
def test_the_smallest_region_gives_the_worst_pair(surrogate: str) -> None:
    scores, labels = draw(40, ties=False)
    positive, negative = split(scores, labels)
    worst = max(VALUES[surrogate](0.5 + b - a) for a in positive for b in negative)
    region = {"min_tpr": 1 - 1 / len(positive), "max_fpr": 1 / len(negative)}
    ours = tpauc_objective(scores, labels, **region, surrogate=surrogate, margin=0.5, link="identity")
    assert ours == pytest.approx(worst, rel=1e-13)


@pytest.mark.parametrize("surrogate", ["squared_hinge", "hinge"])
def test_many_samples(surrogate: str) -> None:
    scores = torch.randn(5000, dtype=torch.float64) * 10
    labels = torch.arange(5000) % 2
    positive, negative = scores[1::2], scores[::2].sort(descending=True).values
    v = torch.relu(1.0 + negative[:750] - positive[:, None])  # 0.3 of the negatives
    psi = (v.square() if surrogate == "squared_hinge" else v).mean(dim=1)
    expected = psi.sort(descending=True).values[:1000].mean().item()  # 0.4 of the positives
    ours = tpauc_objective(scores, labels, min_tpr=0.6, max_fpr=0.3, surrogate=surrogate, link="identity")
    assert ours == pytest.approx(expected, rel=1e-12)


def test_a_loss_that_is_not_monotone_is_taken_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, labels = draw(50, ties=False)
    region = {"min_tpr": 0.45, "max_fpr": 0.35}
    monkeypatch.setattr(objectives, "_ROWS_SIZE", 60)
    ours = tpauc_objective(scores, labels, **region, surrogate="squared", link="identity")
    assert ours == pytest.approx(by_scanning(scores, labels, "squared", 1.0, **region), rel=1e-12)


@pytest.mark.parametrize(
    ("fraction", "size", "rank"), [(1 - 0.9, 10, 1), (1 - 0.7, 10, 3), (0.3, 10, 3), (0.31, 10, 4)]
)
def test_rank_forgives_rounding(fraction: float, size: int, rank: int) -> None:
    assert objectives._rank(fraction, size) == rank
    assert objectives._rank(1e-9, 10) == 1 and objectives._rank(1e-15, 10) == 1


@regions
def test_order_and_type_do_not_matter(min_tpr: float, max_fpr: float) -> None:
    scores, labels = draw(60, ties=False)
    scores = scores.float()
    region = {"min_tpr": min_tpr, "max_fpr": max_fpr}
    order = torch.randperm(60)
    value = tpauc_objective(scores, labels, **region)
    assert tpauc_objective(scores[order], labels[order], **region) == pytest.approx(value, rel=1e-13)
    assert tpauc_objective(scores.double(), labels.bool(), **region) == value
    assert tpauc_objective(scores.requires_grad_(), labels.float(), **region) == value


@pytest.mark.parametrize("function", [tpauc_objective, tpauc_optimum])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"min_tpr": 1.0}, r"min_tpr must be a number in \[0, 1\), got 1.0"),
        ({"min_tpr": -0.1}, r"min_tpr must be a number in \[0, 1\), got -0.1"),
        ({"max_fpr": 0.0}, r"max_fpr must be a number in \(0, 1\], got 0.0"),
        ({"max_fpr": 1.1}, r"max_fpr must be a number in \(0, 1\], got 1.1"),
        ({"link": "tanh"}, "link must be 'sigmoid', 'identity' or 'standardized', got 'tanh'"),
        ({"scores": torch.zeros(3, 1)}, r"scores must have shape \(n,\), got \(3, 1\)"),
        ({"scores": torch.zeros(3, dtype=torch.int64)}, "scores must be a floating point tensor, got a torch.int64"),
        ({"scores": torch.tensor([0.0, math.nan, 1.0])}, "scores must be finite, got nan"),
        ({"labels": torch.tensor([0, 1])}, r"labels must have the shape of scores, \(3,\), got \(2,\)"),
        ({"labels": torch.tensor([0, 2, 1])}, "labels must be 0 or 1, got 2"),
        ({"labels": torch.ones(3)}, "labels must hold both 0 and 1, got only 1"),
        ({"labels": torch.zeros(3)}, "labels must hold both 0 and 1, got only 0"),
    ],
)
def test_errors(function: Callable[..., object], change: dict[str, object], message: str) -> None:
    arguments = {"scores": torch.zeros(3), "labels": torch.tensor([0, 1, 1]), "min_tpr": 0.5, "max_fpr": 0.5}
    with pytest.raises(ValueError, match=f"{function.__name__}: {message}"):
        function(**(arguments | change))


def test_unknown_surrogate() -> None:
    with pytest.raises(ValueError, match="name must be one of"):
        tpauc_objective(torch.zeros(2), torch.tensor([0, 1]), min_tpr=0.5, max_fpr=0.5, surrogate="cubic")


def test_the_squared_hinge_collapses_where_the_standardized_ramp_follows_the_score() -> None:
    """What the picture of docs/tpauc.md shows."""
    x, labels = surrogates_picture.made_up(1500)
    found = surrogates_picture.by_direction(x, labels, np.linspace(-3.0, 3.0, 13))
    assert found["squared hinge, best length"] == pytest.approx([1.0] * 13)
    ramp, lost = found["smooth ramp"], found["1 - TPAUC"]
    assert ramp == pytest.approx(lost, abs=0.03)
    assert np.argmin(ramp) == np.argmin(lost) and min(lost) < 0.65 < 0.99 < max(lost)
