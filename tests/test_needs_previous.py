"""A loss asks for values at the previous weights exactly where a call without them is refused."""

import pytest
import torch

from moreauc import FCCOLoss, GroupDROLoss, MultiInstanceTPAUCLoss, TCCOLoss, TPAUCLoss

LABELS = torch.tensor([0, 1, 0, 1])
REGION = {"min_tpr": 0.5, "max_fpr": 0.5}


def outer(u, index):
    return torch.relu(u)


def three_level(gamma1, gamma2):
    criterion = TCCOLoss(2, 3, outer, lambda v, index: v.abs(), tau1=0.5, tau2=0.5, gamma1=gamma1, gamma2=gamma2)
    return criterion, (torch.randn(2, 3), torch.arange(2), torch.arange(3))


def of_bags(gamma):
    criterion = MultiInstanceTPAUCLoss(LABELS, pooling="mean", gamma=gamma, **REGION)
    return criterion, (torch.randn(4), torch.arange(4), LABELS, torch.arange(4))


CASES = {
    "two levels": lambda: (FCCOLoss(3, outer, tau=0.5, gamma=0.1), (torch.randn(3), torch.arange(3))),
    "two levels, none": lambda: (FCCOLoss(3, outer, tau=0.5), (torch.randn(3), torch.arange(3))),
    "three levels, none": lambda: three_level(0.0, 0.0),
    "three levels, inner": lambda: three_level(0.1, 0.0),
    "three levels, outer": lambda: three_level(0.0, 0.1),
    "three levels, outer by theory": lambda: three_level(0.0, "theory"),
    "three levels, both": lambda: three_level(0.1, 0.1),
    "rows": lambda: (TPAUCLoss(LABELS, gamma=0.1, **REGION), (torch.randn(4), LABELS, torch.arange(4))),
    "bags": lambda: of_bags((0.0, 0.1, 0.0)),
    "bags, outer": lambda: of_bags((0.0, 0.0, 0.1)),
    "groups": lambda: (GroupDROLoss(2, top_k=1, gamma=0.1), (torch.rand(3), torch.tensor([0, 1, 1]))),
}


@pytest.mark.parametrize("checks", ["now", "late"])
@pytest.mark.parametrize("name", CASES)
def test_a_loss_says_whether_it_needs_the_previous_weights(name, checks):
    criterion, batch = CASES[name]()
    criterion.checks = checks
    if criterion.needs_previous:
        with pytest.raises(ValueError, match=r"must be given where gamma1? is not 0, got None"):
            criterion(*batch)
    else:
        assert criterion(*batch).isfinite()
        criterion.check()
