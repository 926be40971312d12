"""Late calls where immediate ones are exact: at kinks, at ties with a quantile, and in what they leave unchanged."""

from __future__ import annotations

import pytest
import torch
from conformance import LABELS

from moreauc import GroupDROLoss, MultiInstanceTPAUCLoss, TPAUCLoss


def types(criterion):
    return {name: value.dtype for name, value in criterion.state_dict().items()}


@pytest.mark.parametrize("rule", [0.1, "quantile"])
def test_evaluation_leaves_the_types_of_the_tables(rule):
    rows = TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, threshold_lr=rule)
    bags = MultiInstanceTPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, pooling="mean", threshold_lr=rule)
    groups = GroupDROLoss(3, top_k=1, threshold_lr=rule)
    index, scores = torch.arange(6), torch.linspace(-1, 1, 12, dtype=torch.float64)
    calls = {
        rows: (scores[:6], LABELS[:6], index),
        bags: (scores, torch.arange(12) // 2, LABELS[:6], index),
        groups: (scores[:6], index % 3),
    }
    for criterion, (values, *rest) in calls.items():
        criterion.checks = "late"
        before = types(criterion)
        with torch.inference_mode():
            criterion.eval()(values, *rest)
        assert types(criterion) == before
        leaf = values.float().requires_grad_()
        criterion.train()(leaf, *rest).backward()  # no table is a tensor of inference mode
        criterion(values, *rest)
        assert types(criterion) != before  # trained with float64, it averages in float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_threshold_that_should_stay_does_so_for_every_number_of_positives(dtype):
    """All positives above s' and min_tpr 0: the derivative in s' is 1 - 1, to the last bit."""
    for number in range(2, 33):
        labels = (torch.arange(number + 5) < number).long()
        criterion = TPAUCLoss(labels, min_tpr=0.0, max_fpr=0.3).to(dtype)
        criterion.checks = "late"
        criterion(torch.zeros(len(labels), dtype=dtype), labels, torch.arange(len(labels)))
        assert criterion.s_prime == 0.0, number


@pytest.mark.parametrize("memberships", [False, True])
def test_a_threshold_over_groups_that_should_stay_does_so(memberships):
    for number in range(2, 33):
        criterion = GroupDROLoss(number, top_k=number, threshold_lr=1.0)
        criterion.checks = "late"
        groups = torch.arange(3 * number) % number
        if memberships:
            groups = torch.nn.functional.one_hot(groups)
        criterion(torch.ones(3 * number), groups)
        assert criterion.s == 0.0, number


@pytest.mark.parametrize("surrogate", ["squared_hinge", "hinge", "squared", "logistic", "sigmoid"])
@pytest.mark.parametrize("gamma", [0.0, 0.1])
def test_the_negative_at_the_quantile_pulls_nothing(surrogate, gamma):
    """With one negative the quantile is its score, and no pair is above its own threshold."""
    labels = (torch.arange(14) != 5).long()
    for seed in range(20):
        random = torch.Generator().manual_seed(seed)
        scores = torch.randn(14, generator=random, dtype=torch.float64).requires_grad_()
        options = {"surrogate": surrogate, "margin": 0.5, "link": "identity", "gamma": gamma}
        criterion = TPAUCLoss(labels, min_tpr=0.0, max_fpr=0.3, threshold_lr="quantile", **options)
        criterion.checks = "late"
        for call in (criterion, criterion.eval()):
            call(scores, labels, torch.arange(14), scores.detach()).backward()
            assert not scores.grad.any()
