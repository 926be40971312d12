"""Small batches on the CPU, computed in NumPy, beside the ordinary way."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from moreauc import TPAUCLoss
from moreauc.criteria import _small

LABELS = (torch.arange(60) % 3 == 0).long()


def batches(number, dtype=torch.float64, rows=14):
    random = torch.Generator().manual_seed(0)
    for _ in range(number):
        index = torch.randperm(60, generator=random)[:rows]
        scores, before = torch.randn(2, rows, generator=random, dtype=dtype)
        yield scores, LABELS[index], index, before


def run(criterion, number=15, dtype=torch.float64):
    results = []
    for scores, labels, index, before in batches(number, dtype):
        leaf = scores.requires_grad_()
        loss = criterion(leaf, labels, index, before)
        loss.backward()
        results += [loss.detach(), leaf.grad]
    return [*results, *criterion.state_dict().values()]


@pytest.fixture
def calls(monkeypatch):
    """How many steps were made in NumPy."""
    count = [0]
    write = _small._Step.write

    def counted(step):
        count[0] += 1
        write(step)

    monkeypatch.setattr(_small._Step, "write", counted)
    return count


OPTIONS = {
    "default": {},
    "gamma": {"gamma": 0.3, "tau": 0.4},
    "theory": {"gamma": "theory", "tau": 0.6},
    "quantile": {"gamma": 0.2, "threshold_lr": "quantile"},
    "quantile of all": {"threshold_lr": "quantile", "min_tpr": 0.0, "max_fpr": 1.0},
    "identity": {"link": "identity", "margin": 0.5, "gamma": 0.1},
    "initial": {"initial": 0.7, "min_tpr": 0.0},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 2e-4)])
def test_numbers_are_those_of_the_ordinary_way(options, dtype, close, calls, monkeypatch):
    def make():
        return TPAUCLoss(LABELS, **{"min_tpr": 0.4, "max_fpr": 0.3, **options}).to(dtype)

    quick = run(make(), dtype=dtype)
    assert calls == [15]
    monkeypatch.setattr(_small, "_ROWS", 0)
    ordinary = run(make(), dtype=dtype)
    assert calls == [15]
    for one, other in zip(quick, ordinary, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=close, atol=close)


def test_which_pairs_are_active_is_the_same_bit_for_bit(monkeypatch):
    """Scores in steps of 1/8, so that many losses equal their thresholds: the counts show in the thresholds."""
    found = []
    for rows in (0, 512):
        monkeypatch.setattr(_small, "_ROWS", rows)
        criterion = TPAUCLoss(LABELS, min_tpr=0.4, max_fpr=0.3, link="identity", threshold_lr=(1.0, 0.25))
        for scores, labels, index, _ in batches(20, torch.float32):
            criterion((scores * 8).round() / 8, labels, index)
        found.append(criterion.s.clone())
    assert torch.equal(*found)


UNUSUAL = {
    "another surrogate": (lambda: TPAUCLoss(LABELS, min_tpr=0.4, max_fpr=0.3, surrogate="hinge"), lambda *b: b),
    "another type": (lambda: TPAUCLoss(LABELS, min_tpr=0.4, max_fpr=0.3), lambda s, *b: (s.double(), *b)),
    "half": (lambda: TPAUCLoss(LABELS, min_tpr=0.4, max_fpr=0.3), lambda s, *b: (s.bfloat16(), *b)),
    "labels": (lambda: TPAUCLoss(LABELS, min_tpr=0.4, max_fpr=0.3), lambda s, y, *b: (s, y.bool(), *b)),
    "a list": (lambda: TPAUCLoss(LABELS, min_tpr=0.4, max_fpr=0.3), lambda s, y, i, *b: (s, y, i.tolist(), *b)),
    "another length": (
        lambda: TPAUCLoss(LABELS.repeat(10), min_tpr=0.4, max_fpr=0.3),
        lambda *b: (torch.randn(600), LABELS.repeat(10), torch.arange(600)),
    ),
    "narrow tables": (lambda: TPAUCLoss(LABELS, min_tpr=0.4, max_fpr=0.3).bfloat16(), lambda *b: b),
    "previous": (
        lambda: TPAUCLoss(LABELS, min_tpr=0.4, max_fpr=0.3, gamma=0.1),
        lambda s, y, i, b: (s, y, i, b.double()),
    ),
}


@pytest.mark.parametrize(("make", "change"), UNUSUAL.values(), ids=UNUSUAL)
def test_what_is_unusual_goes_the_ordinary_way(make, change, calls):
    (batch,) = batches(1, torch.float32)
    assert torch.isfinite(make()(*change(*batch)))
    assert calls == [0]


WRONG = {
    "index": (lambda s, y, i, b: (s, y, i + 50, b), "index must lie in"),
    "repeated": (lambda s, y, i, b: (s, y, i[:1].expand(14), b), "must not repeat"),
    "class": (lambda s, y, i, b: (s, 1 - y, i, b), "labelled as in labels"),
    "one class": (lambda s, y, i, b: (s[y == 0], y[y == 0], i[y == 0], b[y == 0]), "both 0 and 1"),
    "nan": (lambda s, y, i, b: (s * torch.nan, y, i, b), "scores must be finite"),
    "infinite": (lambda s, y, i, b: (s / 0, y, i, b), "scores must be finite"),
    "before": (lambda s, y, i, b: (s, y, i, b / 0), "previous_scores must be finite"),
    "none": (lambda s, y, i, b: (s, y, i, None), "previous_scores must be given"),
    "device": (lambda s, y, i, b: (s, y, i, b.to("meta")), "must be on cpu"),
    "overflow": (lambda s, y, i, b: (s * 1e38, y, i, b), "must be finite"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named_and_changes_nothing(change, message, calls):
    criterion = TPAUCLoss(LABELS, min_tpr=0.4, max_fpr=0.3, gamma=0.1, link="identity")
    first, second = batches(2, torch.float32)
    criterion(*first)
    before = {name: value.clone() for name, value in criterion.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        criterion(*change(*second))
    assert calls == [1]
    assert all(torch.equal(value, before[name]) for name, value in criterion.state_dict().items())


def test_state_that_was_loaded_moved_or_cast_is_the_one_that_is_written(calls):
    one, other = (TPAUCLoss(LABELS, min_tpr=0.4, max_fpr=0.3) for _ in range(2))
    data = list(batches(6, torch.float32))
    for batch in data[:2]:
        one(*batch)
    other.load_state_dict(one.state_dict())
    twin = copy.deepcopy(one)
    for criterion in (one, other, twin):
        criterion(*data[2])
    twin.share_memory()  # other memory for the same tensors
    for criterion in (one, other, twin):
        criterion(*data[3])
    wide = copy.deepcopy(one).double()
    wide(data[4][0].double(), *data[4][1:])
    one(*data[4])
    assert calls == [2 + 3 + 3 + 2]
    assert torch.equal(other.u, twin.u) and not torch.equal(other.u, one.u)
    torch.testing.assert_close(wide.u.float(), one.u)


def test_the_quantile_over_rows():
    rows = np.array([3.0, 1.0, 2.0, 5.0])
    assert _small._upper_quantile(rows, 0.5) == 2.0
    assert _small._upper_quantile(rows, 0.1) == 3.0
    assert _small._upper_quantile(rows, 1.0) == pytest.approx(1.0) and _small._upper_quantile(rows, 1.0) < 1.0
