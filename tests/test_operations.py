"""What a call of a loss costs beside the pair matrix: operations of torch, which do not depend on the machine."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from moreauc import TPAUCLoss

LABELS = (torch.arange(1000) % 5 == 0).long()
HALF = 64
RAMP = {"surrogate": "smooth_ramp", "link": "standardized", "threshold_lr": "quantile"}


class Counter(TorchDispatchMode):
    """Counts operations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def batch(seed):
    random = torch.Generator().manual_seed(seed)
    classes = [(label == LABELS).nonzero().squeeze(1) for label in (0, 1)]
    rows = torch.cat([rows[torch.randperm(len(rows), generator=random)[:HALF]] for rows in classes])
    index = rows[torch.randperm(2 * HALF, generator=random)]
    return torch.randn(2 * HALF, generator=random).requires_grad_(), LABELS[index], index


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 80), ({"gamma": 0.1}, 105), ({"threshold_lr": "quantile"}, 80), (RAMP, 108)],
    ids=["moving average", "correction", "quantile", "ramp"],
)
def test_forward_and_backward_take_few_operations(options, most):
    criterion = TPAUCLoss(LABELS, min_tpr=0.5, max_fpr=0.5, **options)
    for seed in range(3):
        scores, labels, index = batch(seed)
        before = torch.zeros(2 * HALF) if criterion.needs_previous else None
        with Counter() as counter:
            criterion(scores, labels, index, before).backward()
    assert counter.count <= most
