"""Weights of rows: whole numbers against repeated rows, ones against none, and their errors."""

from __future__ import annotations

import math

import pytest
import torch

from moreauc.core.outer import reached, upper_quantile
from moreauc.criteria import AUCSquaredHingeLoss, CrossEntropyLoss, MiniBatchTPAUCLoss, TPAUCLoss

LABELS = (torch.arange(30) % 3 == 0).long()
COUNTS = torch.tensor([(k * 7) % 5 for k in range(30)])  # of 0 to 4 copies
RAMP = {"surrogate": "smooth_ramp", "margin": 0.8, "link": "standardized"}
REGION = {"min_tpr": 0.5, "max_fpr": 0.5}
LOSSES = {
    "ce": (CrossEntropyLoss, {}),
    "auc": (AUCSquaredHingeLoss, {}),
    "auc, ramp": (AUCSquaredHingeLoss, RAMP),
    "mb": (MiniBatchTPAUCLoss, REGION),
    "mb, ramp": (MiniBatchTPAUCLoss, {**REGION, **RAMP}),
    "sonx, quantile": (TPAUCLoss, {**REGION, "threshold_lr": "quantile", "tau": 0.7}),
    "sonx, ramp": (TPAUCLoss, {**REGION, **RAMP, "threshold_lr": "quantile", "gamma": 0.2}),
    "sonx, steps": (TPAUCLoss, {**REGION, "threshold_lr": (0.0, 0.3)}),
    "sonx, still": (TPAUCLoss, {**REGION, "threshold_lr": (0.0, 0.0), "surrogate": "logistic"}),
}
EVERY = pytest.mark.parametrize("name", LOSSES)


def run(criterion, steps, index, dtype=torch.float64):
    """Return value, and gradient summed over the rows of the original table, of full-batch steps."""
    found = []
    random = torch.Generator().manual_seed(3)
    for _ in range(steps):
        scores, before = (torch.randn(30, generator=random, dtype=dtype) + LABELS for _ in range(2))
        scores.requires_grad_()
        more = {"previous_scores": before[index]} if getattr(criterion, "needs_previous", False) else {}
        loss = criterion(scores[index], LABELS[index], torch.arange(len(index)), **more)
        found.append((loss.item(), *torch.autograd.grad(loss, scores)[0].tolist()))
    return found


@EVERY
@pytest.mark.parametrize("checks", ["now", "late"])
def test_a_whole_number_is_so_many_equal_rows(name, checks):
    kind, options = LOSSES[name]
    copies = torch.arange(30).repeat_interleave(COUNTS)
    weighted, repeated = kind(LABELS, sample_weight=COUNTS, **options), kind(LABELS[copies], **options)
    weighted.checks = checks
    for mine, theirs in zip(run(weighted, 4, torch.arange(30)), run(repeated, 4, copies), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-10, abs=1e-12)
    mine, theirs = run(weighted.eval(), 1, torch.arange(30)), run(repeated.eval(), 1, copies)
    assert mine[0] == pytest.approx(theirs[0], rel=1e-10, abs=1e-12)


@EVERY
@pytest.mark.parametrize("factor", [1.0, 1e-3, 7.0])
def test_equal_weights_are_none(name, factor):
    kind, options = LOSSES[name]
    weighted, plain = kind(LABELS, sample_weight=torch.full((30,), factor), **options), kind(LABELS, **options)
    for mine, theirs in zip(run(weighted, 4, torch.arange(30)), run(plain, 4, torch.arange(30)), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-10, abs=1e-12)
    if kind is TPAUCLoss:
        torch.testing.assert_close(weighted.s, plain.s)
        torch.testing.assert_close(weighted.s_prime, plain.s_prime)


def test_thresholds_move_by_their_share_of_the_weight():
    weights = [0.3 + 0.1 * k for k in range(30)]
    criterion = TPAUCLoss(LABELS, **REGION, threshold_lr=(2.0, 0.5), link="identity", sample_weight=weights).double()
    scores = torch.randn(30, dtype=torch.float64)
    value = criterion(scores, LABELS, torch.arange(30)).item()
    positives, negatives = LABELS.nonzero().squeeze(1).tolist(), (LABELS == 0).nonzero().squeeze(1).tolist()
    above, below = sum(weights[i] for i in positives), sum(weights[j] for j in negatives)
    expected, mean, prime = [], 0.0, 0.0
    for i in positives:
        losses = [(weights[j], max(1 + scores[j].item() - scores[i].item(), 0) ** 2) for j in negatives]
        psi = math.fsum(w * loss for w, loss in losses) / (0.5 * below)
        active = math.fsum(w for w, loss in losses if loss > 0)
        slope = (1.0 if psi > 0 else 0.0) / 0.5
        mean += weights[i] / above * psi / 0.5
        prime += weights[i] / above * (1 - slope)
        expected.append(-2.0 * weights[i] / above * (1 - active / (0.5 * below)) * slope)
    assert value == pytest.approx(mean, rel=1e-12)
    assert criterion.s.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-14)
    assert criterion.s_prime.item() == pytest.approx(-0.5 * prime, rel=1e-12)


@pytest.mark.parametrize("fraction", [0.05, 0.3, 0.5, 0.9, 1.0])
def test_quantiles_of_weighted_values_are_those_of_repeated_ones(fraction):
    for seed in range(20):
        random = torch.Generator().manual_seed(seed)
        values, counts = torch.randn(12, generator=random), torch.randint(0, 4, (12,), generator=random)
        counts[values.argmax()] = 1
        many = values.repeat_interleave(counts)
        assert reached(values, fraction, None, 12, counts) == reached(many, fraction, None, len(many))
        torch.testing.assert_close(upper_quantile(values, fraction, counts > 0, counts), upper_quantile(many, fraction))


def test_a_class_of_weight_zero_in_a_batch_has_no_gradient():
    weights = torch.ones(30)
    weights[[0, 3]] = 0.0
    criterion = TPAUCLoss(LABELS, **REGION, sample_weight=weights)
    index = torch.tensor([0, 3, 1, 2, 4])
    scores = torch.randn(5, requires_grad=True)
    criterion(scores, LABELS[index], index).backward()
    assert not scores.grad.any()


def test_weights_move_with_the_loss_and_are_kept():
    criterion = TPAUCLoss(LABELS, **REGION, sample_weight=COUNTS)
    other = TPAUCLoss(LABELS, **REGION, sample_weight=torch.ones(30))
    other.load_state_dict(criterion.state_dict())
    assert torch.equal(other.sample_weight, COUNTS.double())
    assert "sample_weight" not in TPAUCLoss(LABELS, **REGION).state_dict()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0] * 29, r"sample_weight must have shape \(30,\), got \(29,\)"),
        ([1.0] * 29 + [math.nan], "sample_weight must be finite, got nan"),
        ([1.0] * 29 + [-2.0], "sample_weight must be at least 0, got -2"),
        (LABELS, "sample_weight must be above 0 for a row of each class, got 0 for all of 0"),
        (1 - LABELS, "sample_weight must be above 0 for a row of each class, got 0 for all of 1"),
        (["a"] * 30, "sample_weight must hold numbers, got a list of other types"),
    ],
)
@EVERY
def test_errors(name, weights, message):
    kind, options = LOSSES[name]
    with pytest.raises(ValueError, match=f"{kind.__name__}: {message}"):
        kind(LABELS, sample_weight=weights, **options)
