"""Mixed precision: losses and their tables are float32 at least, and a step that is skipped shifts nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from moreauc import GroupDROLoss, MultiInstanceTPAUCLoss, PreviousIterate, TPAUCLoss
from moreauc.criteria import GroupedLoss

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
ON_EACH_DEVICE = pytest.mark.parametrize("device", DEVICES)
CHECKS = pytest.mark.parametrize("checks", ["now", "late"])
LABELS = (torch.arange(60) % 3 == 0).long()
BAG = torch.arange(24) // 2

LOSSES = {
    "TPAUC": lambda: TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, gamma=0.1),
    "bags": lambda: MultiInstanceTPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, pooling="smoothed_max", gamma=0.1),
    "groups": lambda: GroupedLoss(GroupDROLoss(3, top_k=1, gamma=0.1), torch.arange(60) % 3),
}
EVERY = pytest.mark.parametrize("name", LOSSES)


def call(name, criterion, scores, labels, index, before):
    if name == "bags":
        return criterion(scores, BAG.to(scores.device), labels, index, before)
    return criterion(scores, labels, index, before)


def batches(name, number, device, dtype=torch.float32):
    random = torch.Generator().manual_seed(0)
    for _ in range(number):
        index = torch.randperm(60, generator=random)[:12]
        x = torch.randn(24 if name == "bags" else 12, 4, generator=random, dtype=dtype)
        yield x.to(device), LABELS[index].to(device), index.to(device)


def parts(name, checks, device, fused=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0)).to(device)
    criterion = LOSSES[name]().to(device)
    criterion.checks = checks
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    return model, criterion, optimizer, PreviousIterate(model, optimizer)


def tables(criterion):
    return {name: value for name, value in criterion.state_dict().items() if value.is_floating_point()}


@EVERY
@CHECKS
@ON_EACH_DEVICE
@pytest.mark.parametrize("fused", [True, False])
def test_a_step_that_the_scaler_skips_shifts_nothing(name, checks, device, fused):
    """The run with an overflow equals the one in which that step of the optimizer was left out by hand."""
    dtype = torch.float16 if device == "cuda" else torch.bfloat16
    runs = []
    for by_scaler in (True, False):
        model, criterion, optimizer, previous = parts(name, checks, device, fused)
        scaler = torch.amp.GradScaler(device, init_scale=4.0, growth_interval=1000, enabled=by_scaler)
        before_all = copy.deepcopy(model.state_dict())
        for number, (x, labels, index) in enumerate(batches(name, 6, device)):
            with torch.autocast(device, dtype=dtype):
                loss = call(name, criterion, model(x), labels, index, previous(x))
            optimizer.zero_grad()
            bad = number == 3
            scaler.scale(loss * torch.inf if bad and by_scaler else loss).backward()
            if by_scaler or not bad:
                scaler.step(optimizer)
                scaler.update()
        if by_scaler:
            assert scaler.get_scale() == 2.0, "no step was skipped"
        assert any(not torch.equal(value, before_all[key]) for key, value in model.state_dict().items())
        runs.append({**tables(criterion), **model.state_dict(), **previous.state_dict()["weights"]})
    for key, value in runs[0].items():
        torch.testing.assert_close(value, runs[1][key], rtol=1e-5, atol=1e-6)
