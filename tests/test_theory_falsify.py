"""Planted violations are found, functions that meet their constants exactly are let pass."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch.nn.functional import softplus

from moreauc.theory import falsify
from moreauc.theory.falsify import Witness

MATRIX = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
NORMAL = torch.tensor([0.3, 0.5, 0.1, 0.7, 0.4], dtype=torch.float64)


def recompute(function, witness: Witness) -> float:
    """Left side minus right side of the inequality, from the points alone."""
    values = function(witness.points).reshape(len(witness.points), -1)
    points = witness.points.reshape(len(witness.points), -1)
    x, y = points[0], points[-1]
    if witness.assumption == "lipschitz":
        return ((values[0] - values[1]).norm() - witness.constant * (x - y).norm()).item()
    if witness.assumption == "non_decreasing":
        assert ((y - x) > 0.0).sum() == 1 and ((y - x) == 0.0).sum() == len(x) - 1
        return (values[0] - values[1]).max().item()
    share = ((points[1] - x).norm() / (y - x).norm()).item()
    torch.testing.assert_close(points[1], (1.0 - share) * x + share * y, atol=1e-9, rtol=0.0)
    bound = (1.0 - share) * values[0] + share * values[2]
    bound = bound + 0.5 * witness.constant * share * (1.0 - share) * ((x - y) ** 2).sum()
    return (values[1] - bound).max().item()


WRONG = {
    "dip of width 0.05": (lambda x: x - 3 * (x - 1.234).relu() + 3 * (x - 1.284).relu(), {"non_decreasing": True}),
    "small step down": (lambda x: x - 1e-4 * (x > math.pi), {"non_decreasing": True}),
    "one of four coordinates": (
        lambda x: x[:, 0] + x[:, 1] + x[:, 3].exp() - 1e-3 * x[:, 2].sin(),
        {"dim": 4, "non_decreasing": True},
    ),
    "dip in two dimensions": (
        lambda x: x.sum(1) - 3 * torch.exp(-((x - 2) ** 2).sum(1) / 0.2),
        {"dim": 2, "non_decreasing": True},
    ),
    "one bad component": (
        lambda x: torch.stack((x.sum(1), x[:, 0] - 0.01 * x[:, 1], x[:, 2]), 1),
        {"dim": 3, "non_decreasing": True},
    ),
    "concave kink": (lambda x: x**2 / 2 - 0.05 * (x - 0.3).abs(), {"weak_convexity": 0.0}),
    "tiny concave kink": (lambda x: x**2 / 2 - 1e-3 * (x - 0.3).abs(), {"weak_convexity": 0.0}),
    "modulus of a sine": (lambda x: torch.sin(5 * x), {"weak_convexity": 24.5}),
    "modulus of a product": (lambda x: x[:, 0] * x[:, 1], {"dim": 2, "weak_convexity": 0.99}),
    "minimum": (lambda x: x.amin(1), {"dim": 2, "weak_convexity": 0.0}),
    "one concave direction of five": (
        lambda x: (x**2).sum(1) - 1.01 * (x @ NORMAL) ** 2,
        {"dim": 5, "weak_convexity": 0.0},
    ),
    "concave component": (lambda x: torch.stack((x**2, x**2 - 1e-2 * x.abs()), 1), {"weak_convexity": 0.0}),
    "root": (lambda x: x.abs().sqrt(), {"lipschitz": 500.0}),
    "steep at the end": (lambda x: x**2, {"lipschitz": 19.999}),
    "steep in the corners": (lambda x: (x**2).sum(1), {"dim": 5, "lipschitz": 0.999 * 20 * math.sqrt(5)}),
    "small jump": (lambda x: x / 2 + 1e-3 * (x > math.pi), {"lipschitz": 0.51}),
    "steep along the diagonal": (lambda x: x.sum(1), {"dim": 5, "lipschitz": 2.235}),
    "curve": (lambda x: torch.stack((x.sin(), x.cos()), 1), {"lipschitz": 0.999}),
    "last claim": (torch.tanh, {"non_decreasing": True, "lipschitz": 1.0, "weak_convexity": 0.7}),
}

RIGHT = {
    "abs": (torch.abs, {"weak_convexity": 0.0, "lipschitz": 1.0}),
    "relu": (torch.relu, {"non_decreasing": True, "weak_convexity": 0.0, "lipschitz": 1.0}),
    "cvar in the loss": (
        lambda u: 0.7 + (u - 0.7).relu() / 0.3,
        {"non_decreasing": True, "weak_convexity": 0.0, "lipschitz": 1 / 0.3},
    ),
    "cvar in loss and threshold": (
        lambda x: x[:, 1] + (x[:, 0] - x[:, 1]).relu() / 0.3,
        {"dim": 2, "weak_convexity": 0.0, "lipschitz": math.hypot(1 / 0.3, 1 - 1 / 0.3)},
    ),
    "double well": (lambda x: (x**2 - 1).abs(), {"weak_convexity": 2.0, "lipschitz": 20.0}),
    "double well in three dimensions": (
        lambda x: ((x**2).sum(1) - 1).abs(),
        {"dim": 3, "weak_convexity": 2.0, "lipschitz": 20 * math.sqrt(3)},
    ),
    "softplus": (softplus, {"non_decreasing": True, "weak_convexity": 0.0, "lipschitz": 1.0}),
    "log-sum-exp": (
        lambda x: torch.logsumexp(x, 1),
        {"dim": 4, "non_decreasing": True, "weak_convexity": 0.0, "lipschitz": 1.0},
    ),
    "maximum": (lambda x: x.amax(1), {"dim": 5, "non_decreasing": True, "weak_convexity": 0.0, "lipschitz": 1.0}),
    "sine": (torch.sin, {"weak_convexity": 1.0, "lipschitz": 1.0}),
    "curve": (lambda x: torch.stack((x.sin(), x.cos()), 1), {"weak_convexity": 1.0, "lipschitz": 1.0}),
    "product": (lambda x: x[:, 0] * x[:, 1], {"dim": 2, "weak_convexity": 1.0, "lipschitz": 10 * math.sqrt(2)}),
    "squared hinge": (lambda x: (1 - x).relu() ** 2, {"weak_convexity": 0.0, "lipschitz": 22.0}),
    "norm": (lambda x: x.norm(dim=1), {"dim": 3, "weak_convexity": 0.0, "lipschitz": 1.0}),
    "linear map": (
        lambda x: x @ MATRIX,
        {
            "dim": 2,
            "non_decreasing": True,
            "weak_convexity": 0.0,
            "lipschitz": torch.linalg.matrix_norm(MATRIX, 2).item(),
        },
    ),
    "cubes on a box": (
        lambda x: (x**3).sum(1),
        {
            "dim": 2,
            "low": torch.zeros(2),
            "high": torch.tensor([1.0, 2.0]),
            "non_decreasing": True,
            "weak_convexity": 0.0,
            "lipschitz": math.hypot(3.0, 12.0),
        },
    ),
    "constant": (torch.zeros_like, {"non_decreasing": True, "weak_convexity": 0.0, "lipschitz": 0.0}),
    "large offset": (lambda x: 1e6 + x.abs(), {"weak_convexity": 0.0, "lipschitz": 1.0}),
    "single precision": (lambda x: (x.float() ** 2 - 1).abs(), {"weak_convexity": 2.0, "lipschitz": 20.0}),
}


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("name", WRONG)
def test_planted_violations_are_found(name, seed):
    function, options = WRONG[name]
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    witness = falsify(function, generator=generator, **options)
    assert witness is not None
    assert witness.assumption in options
    assert witness.violation > 0.0
    assert recompute(function, witness) == pytest.approx(witness.violation, rel=1e-3, abs=1e-12)
    torch.testing.assert_close(function(witness.points), witness.values)
    assert (witness.points.abs() <= 10.0).all()


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("name", RIGHT)
def test_tight_constants_pass(name, seed):
    function, options = RIGHT[name]
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    assert falsify(function, generator=generator, **options) is None


def test_text_states_the_inequality():
    two = Witness("lipschitz", torch.tensor([0.0, 2.0]), torch.tensor([0.0, 8.0]), 2.0, constant=3.0)
    assert str(two) == "lipschitz: |f(x) - f(y)| <= 3 |x - y| fails at x = 0.0, y = 2.0: 8 > 6, too much by 2"
    values = torch.tensor([[0.0, 5.0], [0.0, 1.0]])
    down = Witness("non_decreasing", torch.tensor([[0.0, 1.0], [0.0, 2.0]]), values, 4.0, component=1)
    assert (
        str(down) == "non_decreasing: f[1](x) <= f[1](y) fails at x = (0.0, 1.0), y = (0.0, 2.0): 5 > 1, too much by 4"
    )
    three = Witness(
        "weak_convexity", torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([-1.0, 0.0, -1.0]), 0.5, constant=1.0, weight=0.5
    )
    assert str(three) == (
        "weak_convexity: f(z) <= 0.5 f(x) + 0.5 f(y) + 0.125 |x - y|^2 fails at x = -1.0, z = 0.0, y = 1.0: "
        "0 > -0.5, too much by 0.5"
    )
    assert "|x - y|^2" not in str(dataclasses.replace(three, constant=0.0))


@pytest.mark.parametrize("name", ["one bad component", "concave component", "minimum", "curve"])
def test_shapes_of_a_witness(name):
    function, options = WRONG[name]
    witness = falsify(function, **options)
    count = 3 if witness.assumption == "weak_convexity" else 2
    assert witness.points.shape == ((count, options["dim"]) if "dim" in options else (count,))
    assert len(witness.values) == count and witness.points.dtype == torch.float64
    assert witness.component == (1 if "component" in name else None)
    assert (witness.weight is None) == (count == 2)
    assert str(witness).startswith(f"{witness.assumption}: ") and f"{witness.violation:.3g}" in str(witness)
    with pytest.raises(dataclasses.FrozenInstanceError):
        witness.violation = 0.0


def test_calls_repeat_and_leave_the_global_seed_alone():
    function, options = WRONG["one concave direction of five"]
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    first, second = falsify(function, **options), falsify(function, **options)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.points, second.points)


@pytest.mark.parametrize("dim", [None, 3])
@pytest.mark.parametrize("budget", [2000, 50_000, 500_000])
def test_budget_bounds_the_evaluations_and_the_box_holds_the_points(budget, dim):
    count = 0

    def function(x):
        nonlocal count
        count += len(x)
        assert (x >= -1.0).all() and (x <= 2.0).all()
        return x if dim is None else x.sum(1)

    options = {"non_decreasing": True, "weak_convexity": 0.0, "lipschitz": 3.0}
    assert falsify(function, dim=dim, low=-1.0, high=2.0, budget=budget, **options) is None
    assert count <= 10_000 + 2 * budget


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"lipschitz": None}, "one of non_decreasing, weak_convexity, lipschitz must be asked for, got none"),
        ({"lipschitz": -1.0}, r"lipschitz must be a number in \[0, inf\), got -1.0"),
        ({"weak_convexity": math.nan}, r"weak_convexity must be a number in \[0, inf\), got nan"),
        ({"dim": 0}, "dim must be an integer of at least 1, got 0"),
        ({"budget": 10}, "budget must be an integer of at least 2000, got 10"),
        ({"low": 10.0}, "low must be below high in each coordinate, got 10.0 and 10.0"),
        ({"high": math.inf}, "high must be a number .* got inf"),
        ({"low": torch.zeros(2)}, r"low must be a number or have shape \(1,\), got \(2,\)"),
        ({"low": torch.tensor(math.nan)}, "low must be finite, got nan"),
        ({"function": lambda x: x.sum()}, r"function must return shape \(\d+,\) or \(\d+, k\), got \(\)"),
        ({"function": lambda x: x[1:]}, r"function must return shape .* got \(\d+,\)"),
        ({"function": lambda x: 1.0}, "function must return shape .* got float"),
        ({"function": torch.log}, "function must be finite on the box, got another value at -10.0"),
    ],
)
def test_errors(change, match):
    arguments = {"function": torch.abs, "lipschitz": 1.0, **change}
    with pytest.raises(ValueError, match=f"falsify: {match}"):
        falsify(**arguments)
