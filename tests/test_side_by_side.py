"""Models trained side by side against the same models trained one by one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR

from experiments.models.side_by_side import CopyRates, SideBySide, SideBySideLoss
from moreauc import MultiInstanceTPAUCLoss, PreviousIterate, TPAUCLoss
from moreauc.data.bag_batches import BagInputs
from moreauc.optim import ProximalPoint
from moreauc.train import train_step

GAMMAS = (0.0, 0.1, 0.9)
OPTIMIZERS = {
    "sgd": lambda p, lr=0.1: torch.optim.SGD(p, lr=lr, momentum=0.9, weight_decay=1e-2),
    "adamw": lambda p, lr=0.1: torch.optim.AdamW(p, lr=lr, weight_decay=1e-2),
}
ROWS = 40


def net(columns: int = 5, dropout: float = 0.0) -> nn.Module:
    # no bias before batch norm: its gradient is rounding noise, which Adam would make large
    inner = [nn.Linear(columns, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*inner, nn.Linear(8, 1), nn.Flatten(0))


def rows():
    x = torch.randn(ROWS, 5)
    labels = (torch.arange(ROWS) % 3 == 0).long()
    return x, labels


def batches(x, labels, steps):
    for _ in range(steps):
        index = torch.randperm(ROWS)[:20]
        yield x[index], labels[index], index


def loss(labels, gamma):
    return TPAUCLoss(labels, min_tpr=0.4, max_fpr=0.6, gamma=gamma)


def assert_same(model: SideBySide, alone: list[nn.Module]) -> None:
    """All weights and buffers of each copy are those of the model trained alone."""
    for number, other in enumerate(alone):
        own = model.copy(number).state_dict()
        assert own.keys() == other.state_dict().keys()
        for name, value in other.state_dict().items():
            torch.testing.assert_close(own[name], value, rtol=1e-9, atol=1e-11, msg=lambda text, n=name: f"{n}: {text}")


class Trainers:
    """The same models twice: together, and each with an optimizer of its own."""

    def __init__(self, models, make_optimizer, rates=None, proximal=0.0, milestones=()):
        self.alone = [copy.deepcopy(model) for model in models]
        self.together = SideBySide(models).train()
        rates = [0.1] * len(models) if rates is None else rates
        top = max(rates)
        self.optimizer = make_optimizer(self.together.parameters(), top)
        self.optimizers = [
            make_optimizer(model.parameters(), rate) for model, rate in zip(self.alone, rates, strict=True)
        ]
        self.rates = CopyRates(self.optimizer, [rate / top for rate in rates]) if len(set(rates)) > 1 else None
        everyone = [self.optimizer, *self.optimizers]
        self.pulls = [ProximalPoint(optimizer, proximal) for optimizer in everyone] if proximal else []
        self.schedules = [MultiStepLR(optimizer, list(milestones), gamma=0.1) for optimizer in everyone]
        self.previous = PreviousIterate(self.together, self.optimizer)
        self.own_previous = [
            PreviousIterate(model, optimizer) for model, optimizer in zip(self.alone, self.optimizers, strict=True)
        ]

    def step(self, criterion, criteria, batch):
        total = train_step(self.together, criterion, self.optimizer, batch, self.previous)
        losses = [
            train_step(model, one, optimizer, batch, previous if one.needs_previous else None)
            for model, one, optimizer, previous in zip(
                self.alone, criteria, self.optimizers, self.own_previous, strict=True
            )
        ]
        torch.testing.assert_close(total, torch.stack(losses).sum(), rtol=1e-9, atol=1e-11)

    def end_of_epoch(self):
        for schedule in self.schedules:
            schedule.step()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scheduled", [False, True])
def test_copies_are_trained_as_each_would_be_alone(optimizer, scheduled, float64):
    """With one learning rate, or with one each, a schedule and a proximal point."""
    x, labels = rows()
    settings = {"rates": [0.1, 0.01, 0.03], "proximal": 0.3, "milestones": (2, 4)} if scheduled else {}
    trainers = Trainers([net() for _ in GAMMAS], OPTIMIZERS[optimizer], **settings)
    start = copy.deepcopy(trainers.alone)
    together = SideBySideLoss([loss(labels, gamma) for gamma in GAMMAS])
    alone = [loss(labels, gamma) for gamma in GAMMAS]
    assert together.needs_previous
    for epoch in range(5):
        for batch in batches(x, labels, 6):
            trainers.step(together, alone, batch)
        trainers.end_of_epoch()
        if epoch in (1, 3):
            for pull in trainers.pulls:
                pull.restart()
    assert trainers.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 if scheduled else 0.1)
    assert_same(trainers.together, trainers.alone)
    for one, other in zip(together.criteria, alone, strict=True):
        torch.testing.assert_close(one.u, other.u, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(one.s, other.s, rtol=1e-9, atol=1e-11)
    moved = [(a[0].weight - b[0].weight).abs().max().item() for a, b in zip(trainers.alone, start, strict=True)]
    assert min(moved) > 1e-3  # all of them went somewhere


def test_bags_with_attention(float64):
    """Outputs `(C, T, 2)`: score and attention logit of each instance."""
    labels = torch.tensor([1, 0, 1, 0, 0, 1])
    models = [nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)) for _ in range(3)]
    make = [
        lambda: MultiInstanceTPAUCLoss(labels, min_tpr=0.3, max_fpr=0.7, pooling="attention", gamma=0.0),
        lambda: MultiInstanceTPAUCLoss(labels, min_tpr=0.3, max_fpr=0.7, pooling="attention", gamma=0.1),
        lambda: MultiInstanceTPAUCLoss(labels, min_tpr=0.5, max_fpr=0.5, pooling="attention", margin=1.0),
    ]
    trainers = Trainers(models, OPTIMIZERS["sgd"], rates=[0.1, 0.1, 0.05])
    together, alone = SideBySideLoss([one() for one in make]), [one() for one in make]
    bag = torch.arange(6).repeat_interleave(3)
    for _ in range(15):
        batch = (BagInputs(torch.randn(18, 4), bag), labels, torch.arange(6))
        trainers.step(together, alone, batch)
    assert trainers.together(torch.randn(18, 4)).shape == (3, 18, 2)
    assert_same(trainers.together, trainers.alone)


def test_evaluation_leaves_statistics_alone_and_gives_what_each_gives():
    x, _ = rows()
    models = [net(dropout=0.5) for _ in range(2)]
    together = SideBySide(models)
    together(x)  # moves the running statistics of its own copies
    models = [together.copy(number) for number in range(2)]
    assert all(model.training for model in models)
    assert not torch.equal(models[0][1].running_mean, torch.zeros(8))
    assert int(models[0][1].num_batches_tracked) == 1
    together.eval()
    before = {name: value.clone() for name, value in together.state_dict().items()}
    scores = together(x)
    for number, model in enumerate(models):
        torch.testing.assert_close(scores[number], model.eval()(x))
        assert not together.copy(number).training
    assert all(torch.equal(value, before[name]) for name, value in together.state_dict().items())
    together.train()
    assert not torch.equal(together(x)[0], scores[0])


def test_masks_of_dropout_differ_between_copies_and_are_kept_for_the_previous_weights():
    model = nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5), nn.Flatten(1))
    together = SideBySide([model, model, model])
    optimizer = torch.optim.SGD(together.parameters(), lr=0.0)  # the weights stay where they are
    previous = PreviousIterate(together, optimizer)
    x = torch.randn(20, 3)
    now = together(x)
    before = previous(x)
    assert torch.equal(now, before)
    dropped = now == 0.0
    assert 0.4 < float(dropped.float().mean()) < 0.6
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert 0.3 < float((dropped[one] != dropped[other]).float().mean()) < 0.7
    # after a step the same again, at the old weights and with the new masks
    optimizer.zero_grad()
    together(x).sum().backward()
    optimizer.step()
    assert torch.equal(together(x), previous(x))


@pytest.mark.parametrize("other", [lambda: net(6), lambda: net().double(), lambda: nn.Linear(2, 2)])
def test_models_that_cannot_stand_side_by_side(other):
    with pytest.raises(ValueError, match=r"SideBySide: models must have the same weights, got others in models\[1\]"):
        SideBySide([net(), other()])
