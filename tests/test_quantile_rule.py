"""What the rule "quantile" of the thresholds asks for, and what it must give where the answer is known."""

import pytest
import torch

from moreauc import MultiInstanceTPAUCLoss, TPAUCLoss

LABELS = (torch.arange(12) % 3 == 0).long()


def rows(**options):
    return TPAUCLoss(LABELS, **options)


def bags(**options):
    return MultiInstanceTPAUCLoss(LABELS, pooling="mean", **options)


@pytest.mark.parametrize("make", [rows, bags])
def test_the_highest_negatives_are_the_worst_only_for_a_loss_that_does_not_decrease(make):
    region = {"min_tpr": 0.5, "max_fpr": 0.5}
    message = "surrogate must be non-decreasing where threshold_lr is 'quantile', got 'squared'"
    with pytest.raises(ValueError, match=message):
        make(threshold_lr="quantile", surrogate="squared", **region)
    criterion = make(surrogate="squared", **region)
    with pytest.raises(ValueError, match=message):
        criterion.threshold_lr = "quantile"
    assert criterion.threshold_lr == (1.0, 0.01)


@pytest.mark.parametrize("checks", ["now", "late"])
@pytest.mark.parametrize("gamma", [0.0, 0.1])
@pytest.mark.parametrize("surrogate", ["squared_hinge", "logistic"])
@pytest.mark.parametrize("make", [rows, bags])
def test_in_the_whole_square_every_negative_of_a_small_batch_counts(make, surrogate, gamma, checks):
    options = {"surrogate": surrogate, "margin": 1.0, "link": "identity", "tau": 1.0, "gamma": gamma}
    criterion = make(min_tpr=0.0, max_fpr=1.0, threshold_lr="quantile", **options)
    criterion.checks = checks
    if make is bags:
        criterion.update_order = "after"  # with one instance in each bag the rows are its scores
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(12, generator=random, dtype=torch.float64)
    positives, negatives = LABELS.nonzero().squeeze(1), (LABELS == 0).nonzero().squeeze(1)
    for _ in range(20):
        index = torch.cat([positives, negatives[torch.randperm(8, generator=random)[:2]]])
        h = scores[index].requires_grad_()
        batch = [h, LABELS[index], index, h.detach()]
        if make is bags:
            batch.insert(1, torch.arange(6))
        criterion(*batch).backward()
        wanted = scores[index].requires_grad_()
        violation = 1.0 + wanted[4:] - wanted[:4, None]
        losses = violation.clamp_min(0).square() if surrogate == "squared_hinge" else violation.exp().log1p()
        losses.mean().backward()
        torch.testing.assert_close(h.grad, wanted.grad)
        assert not criterion.s.any()
    criterion.eval()
    assert criterion(*batch).item() == pytest.approx(losses.mean().item())
