"""Propositions 1 and 2 and the theorems' parameters, against arithmetic done by hand from the formulas."""

import dataclasses
import inspect
import math

import pytest
import theory_bounds

from moreauc import theory

SONX = dict(num_blocks=90, blocks_per_batch=6, samples_per_block=9)
SONT = dict(num_outer=60, num_inner=45, outer_per_batch=5, inner_per_batch=3, samples_per_pair=7)
SONX_MA, SONT_MA = dict(**SONX, moving_average=True), dict(**SONT, moving_average=True)
TPAUC = dict(num_positives=70, num_negatives=300, positives_per_batch=7, negatives_per_batch=16)
BAGS = dict(**TPAUC, instances_per_bag=5)

FCCO_CONSTANTS = dict(rho_outer=2.0, lipschitz_outer=3.0, rho_inner=5.0, lipschitz_inner=7.0)
TCCO_CONSTANTS = dict(
    rho_outer=2.0, lipschitz_outer=3.0, rho_middle=5.0, lipschitz_middle=7.0, rho_inner=11.0, lipschitz_inner=13.0
)
TPAUC_CONSTANTS = dict(lipschitz_outer=3.0, rho_inner=5.0)
BAG_CONSTANTS = {name: value for name, value in TCCO_CONSTANTS.items() if name != "rho_outer"}

THEOREMS = [
    pytest.param(theory.sonx_parameters, SONX, FCCO_CONSTANTS, id="thm:1"),
    pytest.param(theory.sont_parameters, SONT, TCCO_CONSTANTS, id="thm:3"),
    pytest.param(theory.sonx_parameters, SONX_MA, FCCO_CONSTANTS, id="thm:4"),
    pytest.param(theory.sont_parameters, SONT_MA, TCCO_CONSTANTS, id="thm:5"),
    pytest.param(theory.tpauc_parameters, TPAUC, TPAUC_CONSTANTS, id="thm:6"),
    pytest.param(theory.multi_instance_tpauc_parameters, BAGS, BAG_CONSTANTS, id="thm:7"),
]
# The branches of the maxima of thm:7: a = n+ / B1 below and above b = n- / B2, r below and above 1, the last term.
BAG_SIZES = [
    pytest.param(BAGS, id="b>a,r<1"),
    pytest.param({**BAGS, "instances_per_bag": 100, "negatives_per_batch": 2}, id="b>a,r>1"),
    pytest.param({**BAGS, "num_positives": 7000, "num_negatives": 16}, id="a>b=1,r>1"),
    pytest.param({**BAGS, "num_positives": 700, "num_negatives": 160}, id="a>b,r>1"),
    pytest.param({**BAGS, "num_positives": 7, "num_negatives": 16}, id="full"),
    pytest.param(
        dict(
            num_positives=14000, num_negatives=1000, positives_per_batch=7, negatives_per_batch=1, instances_per_bag=100
        ),
        id="last",
    ),
]


def taus(result):
    return {name: value for name, value in dataclasses.asdict(result).items() if name.startswith("tau")}


def gammas(result):
    return {name: value for name, value in dataclasses.asdict(result).items() if name.startswith("gamma")}


@pytest.mark.parametrize(("dim", "expected"), [(1, 5 * 3 + 2 * 49), (9, 3 * 5 * 3 + 2 * 49)])
def test_fcco_weak_convexity(dim, expected):
    assert theory.fcco_weak_convexity(**FCCO_CONSTANTS, dim=dim) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        ((1, 1), (11 * 7 + 5 * 169) * 3 + 2 * 49 * 169),
        ((4, 1), 2 * (11 * 7 + 5 * 169) * 3 + 2 * 49 * 169),
        ((1, 9), (3 * 11 * 7 + 5 * 169) * 3 + 2 * 49 * 169),
        ((4, 9), 2 * (3 * 11 * 7 + 5 * 169) * 3 + 2 * 49 * 169),
    ],
)
def test_tcco_weak_convexity(dims, expected):
    result = theory.tcco_weak_convexity(**TCCO_CONSTANTS, dim_middle=dims[0], dim_inner=dims[1])
    assert result == pytest.approx(expected)


@pytest.mark.parametrize(
    ("function", "sizes", "expected"),
    [
        # Sizes as above and epsilon = 0.2: n = 90, B1 = 6, B2 = 9 for thm:1 and thm:4.
        (
            theory.sonx_parameters,
            SONX,
            dict(
                tau=9 * 0.2**4,
                gamma=84 / (6 * (1 - 0.0144)) + 1 - 0.0144,
                lr=6 * 3 * 0.2**4 / 90,
                iterations=math.ceil(90 / (6 * 3) * 5**6),
            ),
        ),
        (
            theory.sonx_parameters,
            SONX_MA,
            dict(tau=9 * 0.2**4, gamma=0.0, lr=6 * 9 / 90 * 0.2**6, iterations=math.ceil(90 / 54 * 5**8)),
        ),
        # n1 = 60, n2 = 45, B1 = 5, B2 = 3, B3 = 7: the second of the three sizes of thm:3 decides about eta.
        (
            theory.sont_parameters,
            SONT,
            dict(
                tau1=min(7, (5 * 45 / 60) ** 0.5) * 0.2**4,
                tau2=3 * 0.2**4,
                gamma1=(60 * 45 - 5 * 3) / (5 * 3 * (1 - 3.75**0.5 * 0.0016)) + 1 - 3.75**0.5 * 0.0016,
                gamma2=(60 - 5) / (5 * (1 - 0.0048)) + 1 - 0.0048,
                lr=min(7**0.5, 5**0.25 * 45**0.25 / 60**0.25, 5**0.5 * 45**0.5 / 60**0.5) * 15 / 2700 * 0.2**4,
                iterations=math.ceil(
                    max(7**-0.5, 60**0.25 / (5**0.25 * 45**0.25), 60**0.5 / (5**0.5 * 45**0.5)) * 2700 / 15 * 5**6
                ),
            ),
        ),
        (
            theory.sont_parameters,
            SONT_MA,
            dict(
                tau1=min(7 * 0.2**4, (5 * 45 / (60 * 3)) ** 0.5 * 3 * 0.2**6),
                tau2=3 * 0.2**4,
                gamma1=0.0,
                gamma2=0.0,
                lr=min(7 * 0.2**4, (5 * 45 / (60 * 3)) ** 0.5 * 3 * 0.2**6) * 15 / 2700 * 0.2**2,
                iterations=math.ceil(max(1 / 7, (60 / (5 * 3 * 45)) ** 0.5 * 25) * 2700 / 15 * 5**8),
            ),
        ),
        (
            theory.tpauc_parameters,
            TPAUC,
            dict(
                tau=16 * 0.2**4,
                gamma=63 / (7 * (1 - 0.0256)) + 1 - 0.0256,
                lr=7 * 4 * 0.2**4 / 70,
                iterations=math.ceil(70 / (7 * 4) * 5**6),
            ),
        ),
        # n+/B1 = 10, n-/B2 = 18.75, B2 = 16, B3 = 5; the terms of thm:7 in the order of the paper.
        (
            theory.multi_instance_tpauc_parameters,
            BAGS,
            dict(
                tau1=min(5, 0.1 * min(10**0.5, 18.75**0.5) * 4) * 0.2**4,
                tau2=16 * 0.2**4,
                gamma1=63 / (7 * (1 - 0.4 * 10**0.5 * 0.0016)) + 1 - 0.4 * 10**0.5 * 0.0016,
                gamma2=284 / (16 * (1 - 0.4 * 10**0.5 * 0.0016)) + 1 - 0.4 * 10**0.5 * 0.0016,
                gamma3=63 / (7 * (1 - 0.0256)) + 1 - 0.0256,
                lr=min(
                    min(0.1, 1 / 18.75) * min(5**0.5, 0.1**0.5 * min(10**0.25, 18.75**0.25) * 2),
                    0.1 * min(0.1**0.5, 18.75**-0.5) * 4,
                )
                * 0.2**4,
                iterations=math.ceil(
                    max(
                        18.75 * max(5**-0.5, 10**0.5 * max(10**-0.25, 18.75**-0.25) / 2),
                        10 * max(10**0.5, 18.75**0.5) / 4,
                    )
                    * 5**6
                ),
            ),
        ),
    ],
    ids=["thm:1", "thm:4", "thm:3", "thm:5", "thm:6", "thm:7"],
)
def test_formulas_by_hand(function, sizes, expected):
    result = dataclasses.asdict(function(epsilon=0.2, **sizes))
    assert result.pop("rho_bar") is None
    assert isinstance(result["iterations"], int)
    assert result == pytest.approx(expected, rel=1e-12)


FEW = (5 * 45 / 6000) ** 0.5


@pytest.mark.parametrize(
    ("function", "sizes", "tau1", "lr", "iterations"),
    [
        (theory.sont_parameters, {**SONT, "samples_per_pair": 1}, 0.1**4, 15 / 2700 * 0.1**4, 180 * 10**6),
        # a = (6000 / (5 * 45))^(1/2) > 1: its last power decides.
        (theory.sont_parameters, {**SONT, "num_outer": 6000}, FEW * 0.1**4, FEW / 18000 * 0.1**4, 18000 / FEW * 10**6),
        (
            theory.multi_instance_tpauc_parameters,
            {**BAGS, "instances_per_bag": 1},
            0.1**4,
            0.1**4 / 18.75,
            18.75 * 10**6,
        ),
        # a = 2000, b = 1000, B2 = 1: r^2 = a b^(-1/2) > 1, and the last term decides about eta.
        (
            theory.multi_instance_tpauc_parameters,
            BAG_SIZES[-1].values[0],
            0.1**4 * 1000**0.5 / 2000,
            0.1**4 / 2000**1.5,
            math.ceil(2000**2 / 1000**0.5 * 10**6),
        ),
    ],
)
def test_other_entries_of_the_minima_decide(function, sizes, tau1, lr, iterations):
    # Elsewhere in this file B3 is too large, and a too small, to be the smallest entry of a minimum.
    result = function(epsilon=0.1, **sizes)
    assert (result.tau1, result.lr, result.iterations) == pytest.approx((tau1, lr, iterations), rel=1e-12)


@pytest.mark.parametrize(
    ("function", "sizes", "constants", "expected"),
    [
        (theory.sonx_parameters, SONX, FCCO_CONSTANTS, (15 + 98) + 15 + 2 * 98),
        (theory.sonx_parameters, SONX, {**FCCO_CONSTANTS, "dim": 4}, (30 + 98) + 30 + 2 * 98),
        (
            theory.sont_parameters,
            SONT,
            TCCO_CONSTANTS,
            (77 + 845) * 3 + 98 * 169 + 4 * 98 * 169 + 2 * 5 * 3 * 169 + 3 * 7 * 11,
        ),
        (
            theory.sont_parameters,
            SONT,
            {**TCCO_CONSTANTS, "dim_middle": 4, "dim_inner": 9},
            2 * (3 * 77 + 845) * 3 + 98 * 169 + 4 * 98 * 169 + 2 * 2 * 5 * 3 * 169 + 3 * 3 * 7 * 11,
        ),
        (theory.tpauc_parameters, TPAUC, TPAUC_CONSTANTS, 15 + 15),
        (
            theory.multi_instance_tpauc_parameters,
            BAGS,
            BAG_CONSTANTS,
            3 * (7 * 11 + 5 * 26**2) + 5 * 3 + 8 * 5 * 3 * 169 + 3 * 7 * 11,
        ),
    ],
)
def test_rho_bar_by_hand(function, sizes, constants, expected):
    assert function(epsilon=0.2, **sizes, **constants).rho_bar == pytest.approx(expected)


@pytest.mark.parametrize(("function", "sizes", "constants"), THEOREMS)
def test_rho_bar_needs_all_constants(function, sizes, constants):
    missing = list(constants)[-1]
    given = {name: value for name, value in constants.items() if name != missing}
    with pytest.raises(ValueError, match=rf"{function.__name__}: rho_bar needs all of .* or none, got no {missing}$"):
        function(epsilon=0.2, **sizes, **given)


@pytest.mark.parametrize("sizes", BAG_SIZES)
def test_bags_iterations_cover_the_step_size(sizes):
    result = theory.multi_instance_tpauc_parameters(epsilon=0.05, **sizes)
    assert result.iterations >= 1 / (result.lr * 0.05**2) * (1 - 1e-9)


UNIT = dict(step=10**9, initial_error=0.0, sigma=1.0, gradient_bound=1.0)


@pytest.mark.parametrize(
    ("function", "bound", "sizes"),
    [
        (theory.sonx_parameters, theory_bounds.sonx_table_bound, SONX),
        (theory.tpauc_parameters, theory_bounds.tpauc_table_bound, TPAUC),
        (theory.sonx_parameters, theory_bounds.sonx_table_bound, SONX_MA),
    ],
)
def test_two_level_error_is_of_order_epsilon_squared(function, bound, sizes):
    p = function(epsilon=0.05, **sizes)
    error = bound(**UNIT, **sizes, tau=p.tau, lr=p.lr, lipschitz=1.0)
    assert error <= (4 + 8) * 0.05**2


@pytest.mark.parametrize(("sizes", "limits"), [(SONT, (6, 2 + 2 * 8 * 2**0.5)), (SONT_MA, (6 * 2**0.5,) * 2)])
def test_sont_error_is_of_order_epsilon_squared(sizes, limits):
    p = theory.sont_parameters(epsilon=0.05, **sizes)
    outer_sizes = {name: value for name, value in sizes.items() if name != "samples_per_pair"}
    inner = theory_bounds.sont_inner_table_bound(**UNIT, **sizes, tau1=p.tau1, lr=p.lr, lipschitz=1.0)
    outer = theory_bounds.sont_outer_table_bound(
        **UNIT, **outer_sizes, tau1=p.tau1, tau2=p.tau2, lr=p.lr, lipschitz_middle=1.0, lipschitz_inner=1.0
    )
    assert inner <= limits[0] * 0.05**2 * (1 + 1e-9) and outer <= limits[1] * 0.05**2 * (1 + 1e-9)


@pytest.mark.parametrize("sizes", BAG_SIZES)
def test_bags_error_is_of_order_epsilon_squared(sizes):
    # With the printed B_3^(1/2) in the last term of eta the case "last" breaks the bound of the pairs.
    p = theory.multi_instance_tpauc_parameters(epsilon=0.01, **sizes)
    pair_sizes = {name: value for name, value in sizes.items() if name != "instances_per_bag"}
    rest = dict(tau1=p.tau1, lr=p.lr)
    positive = theory_bounds.bag_table_bound(**UNIT, **sizes, **rest, lipschitz=1.0)
    negative = theory_bounds.bag_table_bound(**UNIT, **sizes, **rest, lipschitz=1.0, negative=True)
    pair = theory_bounds.bag_pair_table_bound(
        **UNIT, **pair_sizes, **rest, tau2=p.tau2, lipschitz_middle=1.0, lipschitz_inner=1.0
    )
    assert max(positive, negative) <= 6 * 0.01**2 * (1 + 1e-9)
    assert pair <= (2 + (2 + 2 + 1) * 16 * 2**0.5) * 0.01**2 * (1 + 1e-9)


@pytest.mark.parametrize(("function", "sizes", "constants"), THEOREMS)
def test_tau_is_capped(function, sizes, constants):
    limit = 1.0 if "moving_average" in sizes else 0.5
    assert set(taus(function(epsilon=3.0, **sizes)).values()) == {limit}
    assert all(value < limit for value in taus(function(epsilon=0.3, **sizes)).values())


@pytest.mark.parametrize(("function", "sizes", "constants"), THEOREMS)
def test_constants_are_factors(function, sizes, constants):
    plain = function(epsilon=0.05, **sizes)
    factors = {f"constant_{name}": 0.5 for name in taus(plain)}
    scaled = function(epsilon=0.05, **sizes, **factors, constant_lr=3.0, constant_iterations=7.0)
    assert taus(scaled) == pytest.approx({name: 0.5 * value for name, value in taus(plain).items()})
    assert scaled.lr == pytest.approx(3 * plain.lr)
    assert scaled.iterations == pytest.approx(7 * plain.iterations, rel=1e-5)


def test_iterations_does_not_round_up_an_integer():
    # In floating point (1 / 3)^-6 is 729.0000000000002.
    result = theory.sonx_parameters(epsilon=1 / 3, num_blocks=1, blocks_per_batch=1, samples_per_block=1)
    assert result.iterations == 729


PAIRS = [
    *(("num_blocks", "blocks_per_batch"), ("num_outer", "outer_per_batch"), ("num_inner", "inner_per_batch")),
    *(("num_positives", "positives_per_batch"), ("num_negatives", "negatives_per_batch")),
]
COUNTS = ("samples_per_block", "samples_per_pair", "instances_per_bag")


@pytest.mark.parametrize(("function", "sizes", "constants"), THEOREMS)
def test_arguments_out_of_range(function, sizes, constants):
    def refuses(message, **changes):
        with pytest.raises(ValueError, match=f"{function.__name__}: {message}"):
            function(**{"epsilon": 0.1, **sizes, **changes})

    for epsilon in (0.0, -0.1, math.nan, math.inf, 1e-30, "0.1", True):
        refuses(r"epsilon must be a number in \[1e-20, 1e\+20\], got", epsilon=epsilon)
    for set_name, batch_name in PAIRS:
        if set_name in sizes:
            size = sizes[set_name]
            refuses(f"{batch_name} must be at most {set_name} = {size}, got {size + 1}", **{batch_name: size + 1})
    for name in COUNTS:
        if name in sizes:
            assert function(epsilon=0.1, **{**sizes, name: 10**6}).iterations >= 1  # no limit above
            for value in (0, 2.0):
                refuses(f"{name} must be an integer of at least 1, got {value}", **{name: value})
    for name in ("lr", "iterations", *taus(function(epsilon=0.1, **sizes))):
        for value in (0.0, -1.0):
            refuses(rf"constant_{name} must be a number in \(0, inf\), got {value}", **{f"constant_{name}": value})
    for name in constants:
        refuses(rf"{name} must be a number in \[0, inf\), got -1", **{**constants, name: -1.0})
    for name in ("dim", "dim_middle", "dim_inner"):
        if name in inspect.signature(function).parameters:
            refuses(f"{name} must be an integer of at least 1, got 0", **{name: 0})
