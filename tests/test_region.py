"""The loss over a region and its gradient, against loops over pairs."""

from __future__ import annotations

import itertools

import pytest
import torch

from moreauc.core.region import region_derivatives, region_loss_and_gradient
from moreauc.core.surrogates import get_surrogate

LOSSES = [("smooth_ramp", 0.2), ("smooth_ramp", 1.5), ("squared_hinge", 1.0), ("hinge", 0.5), ("logistic", 0.0)]
REGIONS = [(0.0, 1.0), (0.5, 0.5), (0.3, 0.37), (0.8, 0.08), (0.0, 0.1)]


def sides(seed, positives=11, negatives=27, weighted=False):
    generator = torch.Generator().manual_seed(seed)
    scores = [torch.randn(size, generator=generator).double() for size in (positives, negatives)]
    scores[0] += 0.5
    weights = [torch.rand(size, generator=generator).double() + 0.1 for size in (positives, negatives)]
    return scores, weights if weighted else [None, None]


def taken(scores, weight, share, *, highest):
    """The share of the weight that is taken of each score, from the extreme one on, by a loop; sums to 1."""
    weight = [1.0] * len(scores) if weight is None else weight.tolist()
    left = total = share * sum(weight)
    result = [0.0] * len(scores)
    for place in sorted(range(len(scores)), key=lambda j: scores[j].item(), reverse=highest):
        result[place] = min(left, weight[place]) / total
        left -= min(left, weight[place])
    return result


def pair_matrix(scores, positive, loss, region, weight):
    """The loss by all pairs, from one vector of scores, for autograd."""
    sides = scores[positive], scores[~positive]
    shares = zip(sides, (positive, ~positive), (1.0 - region[0], region[1]), (False, True), strict=True)
    a, b = (
        torch.tensor(taken(own.detach(), weight[part], share, highest=top), dtype=torch.float64)
        for own, part, share, top in shares
    )
    return a @ loss.value(sides[1] - sides[0][:, None]) @ b


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize(
    ("name", "margin", "sizes"), [*((*loss, (11, 27)) for loss in LOSSES), ("smooth_ramp", 0.2, (700, 2000))]
)
def test_value_and_gradient_are_those_of_all_pairs(name, margin, sizes, region, weighted):
    """By pairs where they are few, and by sorting."""
    (positive, negative), weights = sides(0, *sizes, weighted=weighted)
    loss = get_surrogate(name, margin)
    value, *gradients = region_loss_and_gradient(positive, negative, loss, *region, *weights)
    scores = torch.cat([positive, negative]).requires_grad_()
    weight = torch.cat(weights) if weighted else torch.ones(len(scores))
    expected = pair_matrix(scores, torch.arange(len(scores)) < len(positive), loss, region, weight)
    assert value == pytest.approx(expected.item(), abs=1e-12)
    torch.testing.assert_close(torch.cat(gradients), torch.autograd.grad(expected, scores)[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("region", REGIONS)
def test_a_whole_weight_is_as_good_as_so_many_rows(region):
    (positive, negative), _ = sides(3)
    loss = get_surrogate("smooth_ramp", 0.5)
    times = [torch.arange(len(side)) % 4 for side in (positive, negative)]  # some not at all
    value, *gradients = region_loss_and_gradient(positive, negative, loss, *region, *times)
    rows = [side.repeat_interleave(number) for side, number in zip((positive, negative), times, strict=True)]
    again, *parts = region_loss_and_gradient(*rows, loss, *region)
    assert value == pytest.approx(again, rel=1e-12)
    for found, part, number in zip(gradients, parts, times, strict=True):
        place = torch.arange(len(number)).repeat_interleave(number)
        torch.testing.assert_close(found, torch.zeros_like(found).index_add_(0, place, part), atol=1e-12, rtol=0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize(("name", "margin"), [("smooth_ramp", 0.2), ("smooth_ramp", 1.5), ("squared_hinge", 1.0)])
def test_derivatives_are_those_of_the_loss_with_curvatures_of_loops(name, margin, region, weighted):
    (positive, negative), weights = sides(5, weighted=weighted)
    loss = get_surrogate(name, margin)
    found = region_derivatives(positive, negative, loss, *region, *weights)
    value, *gradients = region_loss_and_gradient(positive, negative, loss, *region, *weights)
    assert found.value == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(found[1:3], tuple(gradients), atol=1e-12, rtol=0)
    a = taken(positive, weights[0], 1.0 - region[0], highest=False)
    b = taken(negative, weights[1], region[1], highest=True)
    own, other = [0.0] * len(positive), [0.0] * len(negative)
    for i, j in itertools.product(range(len(positive)), range(len(negative))):
        z = (negative[j] - positive[i]).item()
        bend = (abs(z) < margin) / margin**2 if name == "smooth_ramp" else 2.0 * (z > -margin)
        own[i] += 2.0 * a[i] * b[j] * bend
        other[j] += 2.0 * a[i] * b[j] * bend
    assert found.positive_curvature.tolist() == pytest.approx(own, abs=1e-12)
    assert found.negative_curvature.tolist() == pytest.approx(other, abs=1e-12)


@pytest.mark.parametrize(("name", "z"), [("squared_hinge", -0.5), ("smooth_ramp", -0.5), ("smooth_ramp", 0.5)])
def test_a_pair_at_a_margin_is_not_active(name, z):
    zero = torch.zeros(1, dtype=torch.float64)
    assert not torch.stack(region_derivatives(zero, zero + z, get_surrogate(name, 0.5), 0.0, 1.0)[1:]).any()


@pytest.mark.parametrize("weighted", [False, True])
def test_tied_rows_at_the_edge_have_the_same_derivatives_in_any_order(weighted):
    positive, negative = torch.tensor([3.0, 1.0, 1.0, 1.0]).double(), torch.tensor([0.5, 0.5, -1.0, 0.5]).double()
    weights = [torch.ones(4).double()] * 2 if weighted else [None, None]
    _, *parts = region_derivatives(positive, negative, get_surrogate("squared_hinge", 2.0), 0.5, 0.5, *weights)
    # (2 - 0.5)^2 on average over three positives and three negatives, each with a third
    assert torch.stack(parts).tolist() == [
        pytest.approx(row)
        for row in ([0, -1, -1, -1], [1, 1, 0, 1], [0, 4 / 3, 4 / 3, 4 / 3], [4 / 3, 4 / 3, 0, 4 / 3])
    ]


def test_arguments_are_checked():
    (positive, negative), _ = sides(4)
    with pytest.raises(ValueError, match="surrogate must be non-decreasing, got 'squared'"):
        region_loss_and_gradient(positive, negative, get_surrogate("squared"), 0.5, 0.5)
    with pytest.raises(ValueError, match="max_fpr"):
        region_loss_and_gradient(positive, negative, get_surrogate("hinge"), 0.5, 0.0)
    with pytest.raises(ValueError, match="surrogate must be 'smooth_ramp' or 'squared_hinge', got 'hinge'"):
        region_derivatives(positive, negative, get_surrogate("hinge"), 0.5, 0.5)
