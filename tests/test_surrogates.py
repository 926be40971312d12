"""Pairwise losses against their definitions, written out with `math`."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable

import pytest
import torch
from oracles import smooth_ramp

from moreauc.core.surrogates import Hinge, Logistic, SmoothRamp, get_surrogate

DEFINITIONS: dict[str, Callable[[float], float] | None] = {  # of v = m + z
    "squared_hinge": lambda v: max(v, 0.0) ** 2,
    "hinge": lambda v: max(v, 0.0),
    "squared": lambda v: v * v,
    "logistic": lambda v: math.log1p(math.exp(-abs(v))) + max(v, 0.0),
    "sigmoid": lambda v: 1.0 / (1.0 + math.exp(-v)),
    "smooth_ramp": None,  # of z and m
}
NON_DECREASING = ["squared_hinge", "hinge", "logistic", "sigmoid", "smooth_ramp"]

every = pytest.mark.parametrize("name", DEFINITIONS)


@every
@pytest.mark.parametrize("margin", [0.0, 0.5, 1.0])
def test_value_is_the_definition(name: str, margin: float) -> None:
    if name == "smooth_ramp" and margin == 0.0:
        return
    z = [-30.0, -3.0, -1.0, -0.5, 0.0, 0.3, 2.0, 25.0, 39.0, 45.0]
    definition = DEFINITIONS[name]
    expected = [definition(margin + entry) if definition else smooth_ramp(entry, margin) for entry in z]
    surrogate = get_surrogate(name, margin)
    torch.testing.assert_close(
        surrogate.value(torch.tensor(z, dtype=torch.float64)),
        torch.tensor(expected, dtype=torch.float64),
        rtol=1e-14,
        atol=0.0,
    )
    torch.testing.assert_close(surrogate.value(torch.tensor(z)), torch.tensor(expected), rtol=1e-5, atol=0.0)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slope_is_what_autograd_gives_also_at_the_kink(name: str, dtype: torch.dtype) -> None:
    surrogate = get_surrogate(name, 0.5)
    z = torch.tensor([-1e4, -100.0, -3.0, -0.5, 0.0, 1.0, 100.0, 1e4], dtype=dtype, requires_grad=True)
    (slope,) = torch.autograd.grad(surrogate.value(z).sum(), z)
    assert torch.isfinite(slope).all()
    torch.testing.assert_close(surrogate.slope(z.detach()), slope)


@every
def test_flags_say_whether_the_loss_rises(name: str) -> None:
    surrogate = get_surrogate(name)
    values = surrogate.value(torch.linspace(-6, 6, 500, dtype=torch.float64))
    assert bool((values.diff() >= 0).all()) == surrogate.non_decreasing == (name in NON_DECREASING)
    degrees = {"squared_hinge": 2, "hinge": 1, "squared": 2, "logistic": None, "sigmoid": None, "smooth_ramp": 2}
    assert surrogate.piecewise_polynomial == degrees[name]
    assert surrogate.name == name


@every
def test_both_ways_to_value_and_slope_round_alike(name: str) -> None:
    surrogate = get_surrogate(name, 0.3)
    for dtype in (torch.float32, torch.float64):
        z = torch.cat([torch.randn(2000, dtype=dtype) * 0.3, torch.tensor([-0.3, 0.0, 0.3], dtype=dtype)])
        value, slope = surrogate.value_and_slope(z)
        assert torch.equal(value, surrogate.value(z))
        assert torch.equal(value, surrogate.value(z.clone().requires_grad_()))
        torch.testing.assert_close(slope, surrogate.slope(z))
        assert (surrogate.value(z.sort().values).diff() >= 0).all() or not surrogate.non_decreasing


def test_the_default_margin_is_the_losses_own() -> None:
    assert get_surrogate("smooth_ramp") == SmoothRamp() == SmoothRamp(0.2)
    assert get_surrogate("hinge") == Hinge(1.0)


@every
def test_constants_for_the_theorems(name: str) -> None:
    surrogate = get_surrogate(name, 0.5)
    z = torch.linspace(-8, 8, 160001, dtype=torch.float64)
    slope = surrogate.slope(z)
    curvature = slope.diff() / z.diff()
    assert surrogate.weak_convexity == pytest.approx(max(0.0, -curvature.min().item()), rel=1e-4, abs=1e-9)
    if math.isfinite(surrogate.lipschitz):
        assert surrogate.lipschitz == pytest.approx(slope.abs().max().item(), rel=1e-3)
    else:
        assert slope.abs().max() > 16


def test_surrogates_are_values() -> None:
    assert get_surrogate("hinge", 2.0) == Hinge(2.0) != Hinge(1.0)
    assert pickle.loads(pickle.dumps(Logistic(0.3))) == Logistic(0.3)


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"name must be one of 'squared_hinge', 'hinge', .*'smooth_ramp', got 'cubic'"):
        get_surrogate("cubic")
    with pytest.raises(ValueError, match=r"Hinge: margin must be a number in \[0, inf\), got -1"):
        get_surrogate("hinge", -1.0)
    with pytest.raises(ValueError, match=r"SmoothRamp: margin must be a number in \(0, inf\), got 0"):
        get_surrogate("smooth_ramp", 0.0)
