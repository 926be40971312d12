"""The Moreau envelope against closed forms, and its proofs of accuracy against the true errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from moreauc.theory import moreau_envelope


def soft(w, rho_bar):
    return np.sign(w) * np.maximum(np.abs(w) - 1.0 / rho_bar, 0.0)


def hinge(w, rho_bar):
    return np.where(w > 1.0 / rho_bar, w - 1.0 / rho_bar, np.minimum(w, 0.0))


def double_well(w, rho_bar):
    """Outside [-1, 1] the function is x^2 - 1, inside 1 - x^2; between the two branches the prox stays at a kink."""
    outside, inside = rho_bar * w / (rho_bar + 2.0), rho_bar * w / (rho_bar - 2.0)
    return np.where(np.abs(outside) >= 1.0, outside, np.where(np.abs(inside) <= 1.0, inside, np.sign(w)))


def block(w, rho_bar):
    return w * max(0.0, 1.0 - 1.0 / (rho_bar * np.linalg.norm(w)))


def largest(w, rho_bar):
    """Moreau's identity: w less the projection of rho_bar * w on the simplex, divided by rho_bar."""
    scaled = rho_bar * w
    ordered = np.sort(scaled)[::-1]
    excess = (np.cumsum(ordered) - 1.0) / np.arange(1, len(w) + 1)
    level = excess[np.nonzero(ordered > excess)[0][-1]]
    return w - np.maximum(scaled - level, 0.0) / rho_bar


def check(function, w, rho_bar, point, **options):
    """Compare with the true proximal point: value, point and norm to 1e-8, and the proved bounds."""
    result = moreau_envelope(function, w, rho_bar, **options)
    w, point = np.asarray(w, dtype=float), np.asarray(point, dtype=float)
    value = float(function(torch.tensor(point))) + 0.5 * rho_bar * float(((point - w) ** 2).sum())
    distance = np.linalg.norm(result.proximal_point.numpy() - point)
    assert result.value == pytest.approx(value, rel=1e-8, abs=1e-8)
    assert distance <= 1e-8
    assert result.gradient_norm == pytest.approx(rho_bar * np.linalg.norm(w - point), rel=1e-8, abs=1e-8)
    assert distance <= result.error + 1e-14
    assert result.value - value <= result.gap + 1e-14 * (1.0 + abs(value))
    return result


POINTS = [-3.0, -1.0, -0.5, -0.1, 0.0, 0.1, 0.4, 0.5, 1.0, 2.0, 3.7]


@pytest.mark.parametrize("rho", [None, 2.0])
@pytest.mark.parametrize("rho_bar", [2.2, 2.5, 4.0, 10.0])
def test_weakly_convex_function_of_one_number(rho_bar, rho):
    switches = [(rho_bar - 2.0) / rho_bar, (rho_bar + 2.0) / rho_bar]
    for w in [*POINTS, *switches, *(-s + 1e-5 for s in switches), *(s - 1e-5 for s in switches)]:
        check(lambda x: (x**2 - 1.0).abs(), w, rho_bar, double_well(np.float64(w), rho_bar), rho=rho)


@pytest.mark.parametrize("dim", [1, 2, 5, 10])
@pytest.mark.parametrize("rho_bar", [0.3, 2.0, 10.0])
@pytest.mark.parametrize(
    ("function", "prox"),
    [
        pytest.param(lambda x: x.abs().sum(), soft, id="l1"),
        pytest.param(lambda x: x.norm(), block, id="l2"),
        pytest.param(lambda x: x.max(), largest, id="max"),
        pytest.param(lambda x: x.relu().sum(), hinge, id="relu"),
        pytest.param(lambda x: (1.5 * x**2 - x).sum(), lambda w, r: (r * w + 1.0) / (r + 3.0), id="quadratic"),
    ],
)
def test_functions_of_a_vector(function, prox, rho_bar, dim):
    rng = np.random.default_rng(dim)
    for scale in (0.1, 1.0, 4.0):
        w = scale * rng.normal(size=dim)
        check(function, w, rho_bar, prox(w, rho_bar))
        check(function, w.round(1) + 0.1, rho_bar, prox(w.round(1) + 0.1, rho_bar), rho=0.0)


@pytest.mark.parametrize("dim", [1, 4])
@pytest.mark.parametrize(
    ("function", "rho_bar"),
    [
        pytest.param(lambda x: (x**2 - 1.0).abs().sum(), 3.0, id="double well"),
        pytest.param(lambda x: x.abs().max() + torch.sin(x).sum(), 2.5, id="max plus sine"),
        pytest.param(lambda x: (torch.sigmoid(3.0 * x) - 0.4).relu().mean(), 2.0, id="clipped sigmoid"),
    ],
)
def test_gradient_is_the_slope_of_the_envelope(function, rho_bar, dim):
    generator = torch.Generator().manual_seed(dim)
    for _ in range(3):
        w = torch.randn(dim, generator=generator, dtype=torch.float64)
        direction = torch.randn(dim, generator=generator, dtype=torch.float64)
        ahead, behind = (moreau_envelope(function, w + t * direction, rho_bar).value for t in (1e-5, -1e-5))
        result = moreau_envelope(function, w, rho_bar)
        assert (ahead - behind) / 2e-5 == pytest.approx((result.gradient @ direction).item(), abs=2e-4)
        torch.testing.assert_close(result.gradient, rho_bar * (w - result.proximal_point))
        assert result.gradient_norm == pytest.approx(result.gradient.norm().item())


@pytest.mark.parametrize(
    ("w", "shape"),
    [
        pytest.param(2, (), id="int"),
        pytest.param(torch.tensor(2.0), (), id="0-d"),
        pytest.param(torch.full((2, 3), 2.0), (2, 3), id="float32 matrix"),
        pytest.param(np.full(3, 2.0), (3,), id="array"),
        pytest.param(torch.full((1,), 2.0, requires_grad=True), (1,), id="parameter"),
    ],
)
def test_shapes_and_dtype(w, shape):
    with torch.no_grad():
        value, point, norm = moreau_envelope(lambda x: x.abs().sum(), w, 1.0)
    assert isinstance(value, float) and isinstance(norm, float)
    assert point.shape == shape and point.dtype == torch.float64
    torch.testing.assert_close(point, torch.ones(shape, dtype=torch.float64))


def test_function_in_single_precision_is_proved_to_single_precision():
    w = torch.tensor([0.3, -2.0, 5.0])
    result = moreau_envelope(lambda x: x.float().abs().sum() + 1.0, w, 1.0)
    true = torch.tensor([0.0, -1.0, 4.0], dtype=torch.float64)
    assert 1e-6 < result.error < 1e-1
    assert (result.proximal_point - true).norm() <= result.error


@pytest.mark.parametrize(
    ("options", "match"),
    [
        pytest.param({"rho_bar": 2.5, "rho": 0.5}, r"rho must be at least .* 2 or more, got 0.5: .* above", id="rho"),
        pytest.param({"rho_bar": 1.5}, r"rho_bar must be above .* 2 or more, got 1.5", id="rho_bar"),
    ],
)
def test_violated_modulus_is_reported_with_its_points(options, match):
    with pytest.raises(ValueError, match=match):
        moreau_envelope(lambda x: (x**2 - 1.0).abs().sum(), torch.tensor([0.3, 0.1]), **options)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"rho_bar": 0.0}, "rho_bar"),
        ({"rho": 1.0}, "rho"),
        ({"tol": 0.0}, "tol"),
        ({"max_evaluations": 0}, "max_evaluations"),
        ({"w": float("nan")}, "w must be finite"),
        ({"w": "1"}, "w must be a number"),
        ({"w": torch.empty(0)}, "w must have at least one entry"),
        ({"function": lambda x: x.log()}, "function .*finite value"),
        ({"function": lambda x: (x + 2.0).sqrt()}, "function .*finite gradient"),
        ({"function": lambda x: x.abs().reshape(1)}, "function .*shape"),
        ({"function": lambda x: x.item()}, "function .*float"),
        ({"function": lambda x: torch.ones((), requires_grad=True) * 2}, "function .*depends on its argument"),
    ],
)
def test_errors(change, match):
    arguments = {"function": torch.abs, "w": -2.0, "rho_bar": 1.0, **change}
    with pytest.raises(ValueError, match=f"moreau_envelope: .*{match}"):
        moreau_envelope(**arguments)


def test_running_out_of_evaluations_is_an_error():
    with pytest.raises(RuntimeError, match=r"3 evaluations prove only a gap of .* raise max_evaluations or tol"):
        moreau_envelope(lambda x: x.abs().sum(), torch.tensor([0.3, 1.7]), 0.7, max_evaluations=3)
