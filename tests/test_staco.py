from __future__ import annotations

import oracles
import pytest
import torch
from test_tpauc import LOSSES, STEPS, SURROGATES, Data
from torch import nn

from moreauc import TPAUCLoss
from moreauc.core.region import region_loss_and_gradient
from moreauc.core.surrogates import SquaredHinge
from moreauc.criteria import STACOLoss

LABELS = (torch.arange(40) % 4 == 0).long()


def exact_objective(h, labels, min_tpr, max_fpr):
    return region_loss_and_gradient(h[labels == 1], h[labels == 0], SquaredHinge(1.0), min_tpr, max_fpr)[0]


@pytest.mark.parametrize(("min_tpr", "max_fpr"), [(0.4, 0.5), (0.0, 1.0), (0.6, 0.3)])
@pytest.mark.parametrize(("dual_lr", "threshold_lr"), [(0.1, (0.1, 0.1)), (0.3, (0.1, 0.05)), (0.02, (0.05, 0.4))])
@pytest.mark.parametrize(("surrogate", "link"), LOSSES)
def test_staco_is_its_transcription(float64, surrogate, link, dual_lr, threshold_lr, min_tpr, max_fpr):
    data, (loss, dloss) = Data(5, link, permuted=True), SURROGATES[surrogate]
    options = {"min_tpr": min_tpr, "max_fpr": max_fpr, "dual_lr": dual_lr, "threshold_lr": threshold_lr}
    lr = 0.003 if link == "standardized" else 0.03  # with long steps roundings grow by themselves
    twin = oracles.staco(
        *(data.score, data.dscore, data.w0, data.positives, data.batches),
        **{"loss": loss, "dloss": dloss, "lr": lr, "standardized": link == "standardized", **options},
    )
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([data.w0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    criterion = STACOLoss(data.labels, surrogate=surrogate, margin=1.0, link=link, **options)
    x, labels, inside = torch.tensor(data.x), torch.tensor(data.labels), 0
    for (b1, b2), order, (w, y, s, s_prime, value) in zip(data.batches, data.orders, twin, strict=True):
        index = torch.tensor([*b1, *b2])[order]
        got = criterion(model(x[index]).squeeze(1), labels[index], index)
        optimizer.zero_grad()
        got.backward()
        optimizer.step()
        assert got.item() == pytest.approx(value, rel=1e-9, abs=1e-9)
        assert model.weight[0].tolist() == pytest.approx(w, rel=1e-9, abs=1e-9)
        assert criterion.y.tolist() == pytest.approx([y[i] for i in data.positives], rel=1e-9, abs=1e-9)
        assert criterion.s.tolist() == pytest.approx([s[i] for i in data.positives], rel=1e-9, abs=1e-9)
        assert criterion.s_prime.item() == pytest.approx(s_prime, rel=1e-9, abs=1e-9)
        inside += any(0.0 < entry < 1.0 for entry in y.values())
    assert inside >= STEPS / 10 or min_tpr == 0.0  # there every positive counts in full


def state_of(criterion, other):
    """Give one loss the thresholds of another."""
    for name in ("thresholds", "threshold_prime"):
        getattr(other, name).load_state_dict(getattr(criterion, name).state_dict(), strict=False)


@pytest.mark.parametrize("max_fpr", [0.4, 1.0])
def test_long_dual_steps_give_the_subgradient_of_the_objective(float64, max_fpr):
    region = {"min_tpr": 0.3, "max_fpr": max_fpr, "link": "identity"}
    criterion = STACOLoss(LABELS, dual_lr=1e9, threshold_lr=(0.2, 0.5), **region)
    plain = TPAUCLoss(LABELS, **region).eval()
    for _ in range(20):
        scores, index = torch.randn(16, requires_grad=True), torch.randperm(40)[:16]
        state_of(criterion, plain)
        results = [loss(scores, LABELS[index], index) for loss in (plain, criterion)]
        torch.testing.assert_close(results[1], results[0])
        torch.testing.assert_close(*(torch.autograd.grad(value, scores)[0] for value in results))
    assert bool((criterion.y == 0).any()) and bool((criterion.y == 1).any())
    criterion.eval(), state_of(criterion, plain)
    assert criterion(scores, LABELS[index], index).item() == plain(scores, LABELS[index], index).item()


def test_the_saddle_point_is_the_exact_objective():
    """Fixed scores, all of them in each batch: the means of the iterates of a convex-concave problem converge."""
    scores = torch.randn(40, dtype=torch.float64) + LABELS
    exact = exact_objective(scores, LABELS, 0.4, 0.5)
    criterion = STACOLoss(LABELS, min_tpr=0.4, max_fpr=0.5, link="identity", dual_lr=0.02, threshold_lr=(0.3, 0.05))
    mean = {name: torch.zeros((), dtype=torch.float64) for name in ("s", "s_prime")}
    for step in range(4000):
        criterion(scores, LABELS, torch.arange(40))
        for name in mean:
            mean[name] = mean[name] + (getattr(criterion, name) - mean[name]) / (step + 1)
    criterion.thresholds.values.copy_(mean["s"])
    criterion.threshold_prime.values.fill_(mean["s_prime"])
    found = criterion.eval()(scores, LABELS, torch.arange(40)).item()
    assert exact <= found <= 1.01 * exact
