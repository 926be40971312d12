"""The lemmas' error bounds, against arithmetic done by hand and the recursions of the proofs."""

import pytest
import theory_bounds as theory

MA = dict(moving_average=True)
COMMON = dict(step=3, initial_error=5.0, sigma=1.5, gradient_bound=2.5)
SONX = dict(num_blocks=90, blocks_per_batch=6, samples_per_block=9)
PAIRS = dict(num_outer=60, num_inner=45, outer_per_batch=5, inner_per_batch=3)
BAGS = dict(num_positives=70, num_negatives=300, positives_per_batch=7, negatives_per_batch=16)

CASES = {
    "lem:16": (theory.sonx_table_bound, dict(**COMMON, **SONX, tau=0.25, lr=0.01, lipschitz=3.0)),
    "lem:19": (theory.sonx_table_bound, dict(**COMMON, **SONX, **MA, tau=0.25, lr=0.01, lipschitz=3.0)),
    "lem:13": (
        theory.sont_inner_table_bound,
        dict(**COMMON, **PAIRS, samples_per_pair=4, tau1=0.25, lr=0.01, lipschitz=3.0),
    ),
    "lem:20": (
        theory.sont_inner_table_bound,
        dict(**COMMON, **PAIRS, **MA, samples_per_pair=4, tau1=0.25, lr=0.01, lipschitz=3.0),
    ),
    "lem:14": (
        theory.sont_outer_table_bound,
        dict(**COMMON, **PAIRS, tau1=0.1, tau2=0.25, lr=0.01, lipschitz_middle=3.0, lipschitz_inner=7.0),
    ),
    "lem:21": (
        theory.sont_outer_table_bound,
        dict(**COMMON, **PAIRS, **MA, tau1=0.1, tau2=0.25, lr=0.01, lipschitz_middle=3.0, lipschitz_inner=7.0),
    ),
    "lem:22": (theory.tpauc_table_bound, dict(**COMMON, **BAGS, tau=0.25, lr=0.01, lipschitz=3.0)),
    "lem:11+": (theory.bag_table_bound, dict(**COMMON, **BAGS, instances_per_bag=4, tau1=0.25, lr=0.01, lipschitz=3.0)),
    "lem:11-": (
        theory.bag_table_bound,
        dict(**COMMON, **BAGS, instances_per_bag=4, tau1=0.25, lr=0.01, lipschitz=3.0, negative=True),
    ),
    "lem:12": (
        theory.bag_pair_table_bound,
        dict(**COMMON, **BAGS, tau1=0.1, tau2=0.25, lr=0.01, lipschitz_middle=3.0, lipschitz_inner=7.0),
    ),
}
SQUARED = [name for name in CASES if name != "lem:22"]

# C_2 of lem:14 and lem:12 for C_g = 3, C_h = 7, M = 2.5.
C14 = 8 * 2**0.5 * 7 * 2.5 * 3
C12 = (2 * 256 * 9 * 49 * 6.25) ** 0.5
ROOT2 = 2**0.5

# By hand: mu, and the terms that are added to the decayed initial error; a squared bound has their squares.
TERMS = {
    "lem:16": (6 * 0.25 / 180, [2 * 0.5 * 1.5 / 3, 4 * 90 * 3 * 2.5 * 0.01 / (6 * 0.5)]),
    "lem:19": (6 * 0.25 / 360, [2 * ROOT2 * 0.5 * 1.5 / 3, 4 * ROOT2 * 90 * 3 * 2.5 * 0.01 / (6 * 0.25)]),
    "lem:13": (15 * 0.25 / 5400, [2 * 0.5 * 1.5 / 2, 4 * 60 * 45 * 3 * 2.5 * 0.01 / (5 * 3 * 0.5)]),
    "lem:20": (15 * 0.25 / 10800, [2 * ROOT2 * 0.5 * 1.5 / 2, 4 * ROOT2 * 60 * 45 * 3 * 2.5 * 0.01 / (5 * 3 * 0.25)]),
    "lem:14": (
        5 * 0.25 / 120,
        [
            2 * 0.5 * 1.5 / 3**0.5,
            C14 * 60**0.5 * 3**0.5 * 0.1 / (5**0.5 * 45**0.5 * 0.5),
            C14 * 60**1.5 * 45**0.5 * 0.01 / (5**1.5 * 3**0.5 * 0.5),
        ],
    ),
    "lem:21": (
        5 * 0.25 / 240,
        [2 * ROOT2 * 0.5 * 1.5 / 3**0.5, 4 * ROOT2 * 3 * 2.5 * 60**0.5 * 3**0.5 * 0.1 / (5**0.5 * 45**0.5 * 0.25)],
    ),
    "lem:22": (
        7 * 0.25 / 140,
        [2 * 0.5 * 1.5 / 4, 4 * 70 * 3 * 2.5 * 0.01 / (7 * 0.5), 4 * 70**0.5 * 3 * 2.5 * 0.01 / (7 * 0.5)],
    ),
    "lem:11+": (7 * 0.25 / 140, [2 * 0.5 * 1.5 / 2, 4 * 70 * 3 * 2.5 * 0.01 / (7 * 0.5)]),
    "lem:11-": (16 * 0.25 / 600, [2 * 0.5 * 1.5 / 2, 4 * 300 * 3 * 2.5 * 0.01 / (16 * 0.5)]),
    "lem:12": (
        7 * 0.25 / 140,
        [
            2 * 0.5 * 1.5 / 4,
            C12 * 10 * 0.1**0.5 * 0.1 / 0.5,
            C12 * 10 * (16 / 300) ** 0.5 * 0.1 / 0.5,
            C12 * 10 * 10**0.5 * 0.01 / 0.5,
            C12 * 10 * (300 / 16) ** 0.5 * 0.01 / 0.5,
            C12 * 70**0.5 * 0.01 / (7 * 0.5),
        ],
    ),
}


@pytest.mark.parametrize("step", [0, 3, 10**9])
@pytest.mark.parametrize("lemma", CASES)
def test_bounds_by_hand(lemma, step):
    function, arguments = CASES[lemma]
    mu, terms = TERMS[lemma]
    arguments = {**arguments, "step": step}
    assert function(**arguments) == pytest.approx((1 - mu) ** step * 5 + sum(terms), rel=1e-12)
    if lemma in SQUARED:
        expected = (1 - mu) ** (2 * step) * 5 + sum(term**2 for term in terms)
        assert function(**arguments, squared=True) == pytest.approx(expected, rel=1e-12)
