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
