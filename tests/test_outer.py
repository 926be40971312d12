"""The outer function of a CVaR, its slopes, and its thresholds, against loops over sorted rows."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from moreauc.core.outer import best_thresholds, cvar, reached, stepped, tied_share, upper_quantile
from moreauc.core.surrogates import get_surrogate

FRACTIONS = [0.05, 0.1, 0.29, 0.7, 1.0]  # 0.1 * 30 is above 3, and 0.29 * 100 below 29
NUMBERS = [1, 2, 7, 30, 100]


def rows_of(number, levels, seed=0):
    """Rows with few values, some of them left out, the first never."""
    random = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, levels, (number,), generator=random).double() - 2.5
    kept = torch.rand(number, generator=random) < 0.7
    kept[0] = True
    return rows, kept


def whole(fraction, number):
    """So many of a number of rows are selected."""
    return max(1, math.floor(Fraction(str(fraction)) * number))


every = pytest.mark.parametrize("fraction", FRACTIONS)
sizes = pytest.mark.parametrize("number", NUMBERS)
ties = pytest.mark.parametrize("levels", [3, 1000])


@every
@sizes
@ties
def test_the_quantile_has_so_many_rows_above_it(fraction, number, levels):
    rows, kept = rows_of(number, levels)
    for found, some in (
        (upper_quantile(rows, fraction), rows),
        (upper_quantile(rows, fraction, torch.ones(number, dtype=torch.bool)), rows),
        (upper_quantile(rows, fraction, kept), rows[kept]),
        (upper_quantile(rows, fraction, None, torch.full_like(rows, 3.0)), rows),
        (upper_quantile(rows, fraction, kept, torch.full_like(rows, 3.0)), rows[kept]),
    ):
        ordered, count = sorted(some.tolist(), reverse=True), whole(fraction, len(some))
        if count < len(some):
            assert found == ordered[count]
        else:
            assert ordered[-1] - 1e-12 < found < ordered[-1]


@every
@sizes
@ties
def test_rows_above_and_the_share_of_tied_rows_are_the_fraction(fraction, number, levels):
    rows, kept = rows_of(number, levels)
    for known in (kept, torch.ones_like(kept)):
        threshold = upper_quantile(rows, fraction, known)
        share = tied_share(rows, threshold, fraction, known)
        above, tied = (sum(map(test, rows[known].tolist())) for test in (threshold.lt, threshold.eq))
        assert 0.0 <= share <= 1.0
        assert above + share * tied == pytest.approx(whole(fraction, int(known.sum())), rel=1e-12)


@every
@sizes
@ties
def test_the_cvar_at_its_quantile_is_the_mean_of_the_largest_rows(fraction, number, levels):
    rows, kept = rows_of(number, levels)
    some = rows[kept]
    count = whole(fraction, len(some))
    exact = count / len(some)  # the fraction that the rows have
    threshold = upper_quantile(rows, fraction, kept)
    share = tied_share(rows, threshold, fraction, kept)
    value, slope = cvar(some, threshold, exact, torch.mean, share)
    assert value == pytest.approx(sum(sorted(some.tolist())[-count:]) / count, rel=1e-12)
    expected = [1.0 if row > threshold else share.item() if row == threshold else 0.0 for row in some.tolist()]
    assert slope.tolist() == pytest.approx([part / exact for part in expected], rel=1e-12)
    assert slope.mean() == pytest.approx(1.0)  # no step moves the best threshold
    assert stepped(threshold, 0.3, slope.mean()) == pytest.approx(threshold.item())
    plain = cvar(some, threshold, exact, torch.mean)[1]
    assert plain.tolist() == pytest.approx([(row > threshold.item()) / exact for row in some.tolist()], rel=1e-12)


@every
@sizes
@ties
def test_the_score_that_a_fraction_reaches(fraction, number, levels):
    scores, kept = rows_of(number, levels)
    for found, some in (
        (reached(scores, fraction, None, number), scores),
        (reached(scores, fraction, ~kept, kept.sum().double()), scores[kept]),
        (reached(scores, fraction, None, number, 3.0 * kept), scores[kept]),
    ):
        ordered = sorted(some.tolist(), reverse=True)
        assert found.tolist() == [ordered[math.ceil(Fraction(str(fraction)) * len(some)) - 1]]


def test_the_best_thresholds_are_losses_at_the_quantile_or_0_where_all_count():
    positive, loss = torch.tensor([0.5, -1.0]), get_surrogate("squared_hinge", 1.0)
    assert best_thresholds(loss, torch.tensor(0.5), positive, 0.3).tolist() == [1.0, 6.25]
    assert best_thresholds(loss, torch.tensor(0.5), positive, 1.0).tolist() == [0.0, 0.0]
