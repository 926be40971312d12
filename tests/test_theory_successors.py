"""Parameters of SONEX and ALEXR2: arithmetic by hand, and the conditions that they are derived from."""

import dataclasses
import math

import pytest

from moreauc import theory
from moreauc.solver import ALEXR2, SONX

SIZES = dict(num_blocks=90, blocks_per_batch=6, samples_per_block=9)
LARGE = dict(num_blocks=90, blocks_per_batch=90, samples_per_block=1)
BOTH = pytest.mark.parametrize("function", [theory.sonex_parameters, theory.alexr2_parameters])


def test_formulas_by_hand():
    sonex = dataclasses.asdict(theory.sonex_parameters(epsilon=0.2, **SIZES))
    assert sonex == pytest.approx(
        dict(
            smoothing=0.2,
            tau=9 * 0.2**4,
            gamma=84 / (6 * (1 - 0.0144)) + 1 - 0.0144,
            momentum=1 - 6 * 0.04,
            lr=6 * 3 / 90 * 0.2**3,
            iterations=math.ceil(90 / 18 * 5**5),
        ),
        rel=1e-12,
    )
    alexr2 = dataclasses.asdict(theory.alexr2_parameters(epsilon=0.2, **SIZES))
    assert alexr2.pop("weight") is None
    assert alexr2 == pytest.approx(
        dict(
            smoothing=0.2,
            tau=9 * 0.2**3,
            lr=54 / 90 * 0.2**3,
            inner_steps=209,  # 90 / 54 * 125 is 208.3
            iterations=209 * 25,
        ),
        rel=1e-12,
    )
    assert isinstance(alexr2["iterations"], int) and isinstance(sonex["iterations"], int)


@BOTH
def test_the_order_is_that_of_the_abstract(function):
    coarse, fine = (function(epsilon=eps, **SIZES).iterations for eps in (0.02, 0.01))
    assert fine / coarse == pytest.approx(2**5, rel=1e-2)


@pytest.mark.parametrize("sizes", [SIZES, LARGE, {**SIZES, "samples_per_block": 1}])
@pytest.mark.parametrize("epsilon", [0.05, 0.01])
def test_sonex_meets_its_conditions(sizes, epsilon):
    """Near the end steps have the length lr epsilon: then the gradient's error is of order epsilon."""
    p = theory.sonex_parameters(epsilon=epsilon, **sizes)
    assert p.iterations == pytest.approx(1 / (p.lr * epsilon**2), rel=1e-2)
    options = dict(step=10**12, initial_error=0.0, sigma=1.0, lipschitz=1.0, gradient_bound=epsilon)
    rows = theory.sonx_table_bound(**options, **sizes, tau=p.tau, lr=p.lr)
    assert rows / p.smoothing <= (4 + 8) * epsilon  # the envelope's gradient is Lipschitz with 1 / smoothing
    beta = 1 - p.momentum
    assert beta <= sizes["blocks_per_batch"] * epsilon**2 * (1 + 1e-9)  # the variance of a gradient is of order 1 / B1
    assert p.lr <= beta * p.smoothing * math.sqrt(sizes["samples_per_block"]) * (1 + 1e-9)
    assert p.iterations >= 1 / (beta * epsilon**2) / sizes["samples_per_block"]


@pytest.mark.parametrize("sizes", [SIZES, LARGE])
def test_alexr2_meets_its_conditions(sizes):
    epsilon = 0.05
    p = theory.alexr2_parameters(epsilon=epsilon, **sizes, lipschitz_outer=1.0, rho_inner=0.5)
    visits = sizes["num_blocks"] / sizes["blocks_per_batch"]
    assert p.inner_steps >= visits / p.tau * (1 - 1e-9) and p.inner_steps >= (1 - 1e-9) / (p.lr * p.weight)
    assert p.tau / (p.smoothing * sizes["samples_per_block"]) <= epsilon**2 * (1 + 1e-9)  # noise of the dual steps
    assert p.lr / sizes["blocks_per_batch"] <= epsilon**2  # and of the primal ones
    assert p.iterations % p.inner_steps == 0 and p.iterations // p.inner_steps == 400


def test_the_proximal_term_outweighs_the_weak_convexity():
    p = theory.alexr2_parameters(epsilon=0.1, **SIZES, lipschitz_outer=3.0, rho_inner=5.0, dim=4)
    assert p.weight == 2 * 2 * 15
    assert theory.alexr2_parameters(epsilon=0.1, **SIZES, lipschitz_outer=3.0, rho_inner=0.0).weight == 0.0
    with pytest.raises(ValueError, match=r"alexr2_parameters: weight needs all of .* or none, got no rho_inner"):
        theory.alexr2_parameters(epsilon=0.1, **SIZES, lipschitz_outer=3.0)


def test_the_solver_takes_them():
    p = theory.sonex_parameters(epsilon=0.3, **SIZES)
    SONX(tau=p.tau, gamma=p.gamma, smoothing=p.smoothing, momentum=p.momentum)
    q = theory.alexr2_parameters(epsilon=0.3, **SIZES, lipschitz_outer=3.0, rho_inner=5.0)
    ALEXR2(tau=q.tau, smoothing=q.smoothing, weight=q.weight, inner_steps=q.inner_steps)


@BOTH
def test_constants_scale_what_they_name_and_tau_is_capped(function):
    plain = function(epsilon=0.05, **SIZES)
    scaled = function(
        epsilon=0.05, **SIZES, constant_smoothing=2.0, constant_tau=3.0, constant_lr=5.0, constant_iterations=7.0
    )
    assert scaled.smoothing == pytest.approx(2 * plain.smoothing) and scaled.tau == pytest.approx(3 * plain.tau)
    assert scaled.lr == pytest.approx(5 * plain.lr)
    assert scaled.iterations == pytest.approx(7 * plain.iterations, rel=1e-3)
    large = function(epsilon=3.0, **SIZES)
    assert large.tau == 0.5 and large.iterations == 1 and getattr(large, "momentum", 0.0) == 0.0


@BOTH
def test_wrong_arguments(function):
    name = function.__name__
    for changes, message in [
        ({"epsilon": 0.0}, r"epsilon must be a number in \[1e-20, 1e\+20\], got 0.0"),
        ({"num_blocks": 0}, "num_blocks must be an integer of at least 1, got 0"),
        ({"blocks_per_batch": 91}, "blocks_per_batch must be at most num_blocks = 90, got 91"),
        ({"constant_smoothing": 0.0}, r"constant_smoothing must be a number in \(0, inf\), got 0.0"),
    ]:
        with pytest.raises(ValueError, match=f"{name}: {message}"):
            function(**{"epsilon": 0.1, **SIZES, **changes})
