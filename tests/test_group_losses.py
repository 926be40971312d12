from __future__ import annotations

import math
import pickle
import random
import re

import group_oracles as oracles
import numpy as np
import pytest
import torch
from torch import nn

from moreauc.criteria.group_dro import GroupDROLoss
from moreauc.criteria.group_erm import GroupERMLoss
from moreauc.criteria.group_exponentiated import ExponentiatedGroupDROLoss
from moreauc.criteria.grouped import GroupedLoss
from moreauc.criteria.sample_cvar import SampleCVaRLoss

N = 6
NAMES = {"squared": "squared", "logistic": "logistic", "softmax": "cross_entropy"}  # oracle -> the library's
BUILD = {
    "dro": lambda **options: GroupDROLoss(N, top_k=2, tau=0.4, **options),
    "quantile": lambda: GroupDROLoss(N, top_k=2, gamma=0.2, threshold_lr="quantile"),
    "erm": lambda: GroupERMLoss(N),
    "reweighted": lambda: GroupERMLoss(N, group_sizes=[3, 4, 5, 6, 7, 8]),
    "exponentiated": lambda: ExponentiatedGroupDROLoss(N, step=0.3),
    "cvar": lambda: SampleCVaRLoss(fraction=0.3),
}
EVERY = pytest.mark.parametrize("name", BUILD)
LAYOUTS = pytest.mark.parametrize("layout", ["ids", "memberships"])


class Run:
    """A model, linear in 3 features, of 36 rows in 6 groups, and batches of rows.

    Groups come back at once (some batches come twice, in another order) and after a gap (group 5 rests for long).
    """

    def __init__(self, kind, layout, seed=3, steps=200, grouped=True):
        rng = random.Random(f"{kind} {layout} {seed}")
        self.kind, self.layout = kind, layout
        rows = range(36)
        self.x = [[rng.gauss(0, 1) for _ in range(3)] for _ in rows]
        rule = [[rng.gauss(0, 1) for _ in range(3)] for _ in range(N)]
        fits = [sum(p * q for p, q in zip(self.x[i], rule[i % N], strict=True)) for i in rows]
        self.y = {
            "squared": [fit + rng.gauss(0, 0.3) for fit in fits],
            "logistic": [int(fit > 0) for fit in fits],
            "softmax": [int(fit > -0.5) + int(fit > 0.5) for fit in fits],
        }[kind]
        self.w = [rng.gauss(0, 0.3) for _ in range(9 if kind == "softmax" else 3)]
        self.member = [
            [k == i % N or (layout == "memberships" and rng.random() < 0.15) for k in range(N)] for i in rows
        ]
        self.batches = []
        for step in range(steps):
            if grouped:
                groups = rng.sample(range(N if step % 50 > 35 else N - 1), rng.choice([1, 2, 3, 5]))
                batch = [i for k in groups for i in rng.sample([i for i in rows if i % N == k], rng.choice([1, 2, 4]))]
            else:
                batch = rng.sample(rows, rng.choice([1, 7, 10]))
            if step % 7 == 3:
                batch = self.batches[-1]
            self.batches.append(rng.sample(batch, len(batch)))

    def by_group(self, batch):
        groups = {k: [i for i in batch if self.member[i][k]] for k in range(N)}
        return {k: samples for k, samples in groups.items() if samples}

    def oracle(self):
        loss = getattr(oracles, self.kind)
        return (
            lambda k, i, w: loss(self.x[i], self.y[i], w)[0],
            lambda k, i, w: loss(self.x[i], self.y[i], w)[1],
            self.w,
        )

    def groups(self):
        member = torch.tensor(self.member)
        return member if self.layout == "memberships" else torch.arange(36) % N

    def losses(self, batch, w):
        x, y = torch.tensor([self.x[i] for i in batch]), torch.tensor([self.y[i] for i in batch])
        if self.kind == "softmax":
            return nn.functional.cross_entropy(x @ w.reshape(3, 3).T, y, reduction="none")
        if self.kind == "logistic":
            return nn.functional.binary_cross_entropy_with_logits(x @ w, y.to(x.dtype), reduction="none")
        return (x @ w - y).square()

    def descend(self, criterion, lr):
        """Yield value and weights after each step of the library."""
        w, groups = torch.tensor(self.w), self.groups()
        before = w
        for batch in self.batches:
            w.requires_grad_()
            previous = self.losses(batch, before) if criterion.needs_previous else None
            loss = criterion(self.losses(batch, w), groups[batch], previous)
            (gradient,) = torch.autograd.grad(loss, w)
            before, w = w.detach(), w.detach() - lr * gradient
            yield loss.item(), w.tolist()


def close(value, tolerance=1e-10):
    return pytest.approx(value, rel=tolerance, abs=tolerance)


@LAYOUTS
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize(
    ("top_k", "tau", "gamma", "threshold_lr"),
    [
        *((1, 0.6, 0.0, 0.02), (3, 0.9, 0.1, 0.02), (3, 0.3, 0.9, 0.05), (N, 0.3, 0.9, 0.05), (1, 0.9, "theory", 0.01)),
        *((top_k, 0.5, 0.1, "quantile") for top_k in (1, 3, N)),
    ],
)
def test_group_dro_is_its_transcription_for_200_steps(float64, layout, kind, top_k, tau, gamma, threshold_lr):
    run = Run(kind, layout)
    lr = 0.002
    batches = [run.by_group(batch) for batch in run.batches]
    twin = oracles.sonx_group_dro(*run.oracle(), batches, N, top_k, tau, gamma, lr, threshold_lr)
    criterion = GroupDROLoss(N, top_k=top_k, tau=tau, gamma=gamma, threshold_lr=threshold_lr)
    for (got, got_w), (value, w, u, s) in zip(run.descend(criterion, lr), twin, strict=True):
        assert got == close(value) and got_w == close(w)
        assert criterion.u.tolist() == close([u.get(k, 0.0) for k in range(N)])
        assert criterion.s.item() == close(s)
    assert math.dist(w, run.w) > 0.01  # the run has gone somewhere
    assert len({len(batch) for batch in batches}) > 2 and len(u) == N


@pytest.mark.parametrize(("top_k", "shares"), [(1, [0.0, 0.5, 0.5, 0.0]), (2, [0.0, 1.0, 1.0, 0.0]), (3, None)])
def test_rows_that_tie_at_the_best_threshold_share_what_is_left(top_k, shares):
    losses = torch.tensor([1.0, 2.0, 2.0, 1.0], requires_grad=True)
    GroupDROLoss(4, top_k=top_k, threshold_lr="quantile")(losses, torch.arange(4)).backward()
    assert losses.grad.sum().item() == pytest.approx(1.0)
    expected = [0.5, 1.0, 1.0, 0.5] if shares is None else shares
    assert (losses.grad * top_k).tolist() == pytest.approx(expected)


@LAYOUTS
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("step", [0.0, 0.05, 1.0])
def test_exponentiated_is_its_transcription(float64, layout, kind, step):
    run = Run(kind, layout, steps=100)
    batches = [run.by_group(batch) for batch in run.batches]
    twin = oracles.exponentiated(*run.oracle(), batches, N, step, 0.01)
    criterion = ExponentiatedGroupDROLoss(N, step=step)
    for (got, got_w), (value, w, q) in zip(run.descend(criterion, 0.01), twin, strict=True):
        assert got == close(value, 1e-9) and got_w == close(w, 1e-9)
        assert criterion.weights.tolist() == close(q, 1e-9)
        assert criterion.log_weights.exp().tolist() == close(q, 1e-9)
    assert (max(q) > 1.5 / N) == (step > 0)


@LAYOUTS
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("reweighted", [False, True])
def test_erm_is_its_transcription(float64, layout, kind, reweighted):
    run = Run(kind, layout, steps=100, grouped=False)
    sizes = [sum(row[k] for row in run.member) for k in range(N)] if reweighted else None
    lists = [[k for k in range(N) if row[k]] for row in run.member]

    def weights_of(batch, losses):
        return oracles.erm_weights([lists[i] for i in batch], sizes, 36)

    twin = oracles.weighted_descent(*run.oracle(), run.batches, weights_of, 0.02)
    criterion = GroupERMLoss(N, group_sizes=sizes, num_samples=36 if reweighted else None)
    for (got, got_w), (value, w) in zip(run.descend(criterion, 0.02), twin, strict=True):
        assert got == close(value, 1e-9) and got_w == close(w, 1e-9)


def test_samples_of_no_group_count_in_erm_only():
    losses = torch.tensor([1.0, 5.0])
    groups = torch.tensor([[1, 0], [0, 0]])
    assert GroupERMLoss(2)(losses, groups) == 3
    assert GroupERMLoss(2, group_sizes=[1, 1], num_samples=4)(losses, groups) == 1  # 4 / (2 * 1) * 1 / 2
    assert ExponentiatedGroupDROLoss(2, step=0.0)(losses, groups) == 1  # 1 / 2 of group 0, for one of two groups


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("fraction", [0.05, 0.25, 0.5, 1.0])
def test_cvar_is_its_transcription(float64, kind, fraction):
    run = Run(kind, "ids", steps=100, grouped=False)
    twin = oracles.weighted_descent(
        *run.oracle(), run.batches, lambda batch, losses: oracles.cvar_weights(losses, fraction), 0.02
    )
    for (got, got_w), (value, w) in zip(run.descend(SampleCVaRLoss(fraction=fraction), 0.02), twin, strict=True):
        assert got == close(value, 1e-9) and got_w == close(w, 1e-9)


def test_cvar_of_equal_losses_takes_the_first():
    losses = torch.ones(4, requires_grad=True)
    SampleCVaRLoss(fraction=0.5)(losses).backward()
    assert losses.grad.tolist() == [0.5, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponentiated_weights_do_not_overflow(dtype):
    criterion = ExponentiatedGroupDROLoss(3, step=1.0)
    for scale in (1e6, 1e6, -1e6, 1e15):
        losses = (scale * torch.tensor([1.0, 0.5, 0.9], dtype=dtype)).requires_grad_()
        loss = criterion(losses, torch.arange(3))
        loss.backward()
        assert torch.isfinite(loss) and torch.isfinite(losses.grad).all()
        assert criterion.weights.sum().item() == close(1.0, 1e-6)
        assert torch.isfinite(criterion.log_weights).all()
    assert criterion.weights.tolist() == [1.0, 0.0, 0.0]


def state(criterion):
    return {name: value.clone() for name, value in criterion.state_dict().items()}


def assert_same(criterion, expected):
    actual = criterion.state_dict()
    assert actual.keys() == expected.keys()
    assert all(
        torch.equal(actual[name], value) and actual[name].dtype == value.dtype for name, value in expected.items()
    )


@pytest.mark.parametrize("name", ["dro", "reweighted", "exponentiated"])
def test_what_leaves_the_type_is_an_error_and_changes_nothing(name):
    criterion = {"exponentiated": ExponentiatedGroupDROLoss(N, step=1e3)}.get(name, BUILD[name]())
    before = state(criterion)
    with pytest.raises(ValueError, match=f"{type(criterion).__name__}: the "):
        criterion(torch.full((2,), 1.5e38), torch.tensor([0, 1]))
    assert_same(criterion, before)


# GroupedLoss


@LAYOUTS
@pytest.mark.parametrize("kind", NAMES)
@EVERY
def test_grouped_is_the_inner_loss_of_the_losses_of_rows(float64, layout, kind, name):
    run = Run(kind, layout, steps=12)
    inner, grouped = BUILD[name](), GroupedLoss(BUILD[name](), run.groups(), loss=NAMES[kind])
    assert grouped.needs_previous == inner.needs_previous
    x, y, w = torch.tensor(run.x), torch.tensor(run.y), torch.tensor(run.w, requires_grad=True)
    for batch in run.batches:
        batch_groups = run.groups()[batch]
        matrix = w.reshape(3, 3).mT if kind == "softmax" else w
        scores, before = x[batch] @ matrix, x[batch] @ (1.1 * matrix)
        got = grouped(scores, y[batch], torch.tensor(batch), before if grouped.needs_previous else None)
        previous = run.losses(batch, 1.1 * w) if inner.needs_previous else None
        expected = inner(run.losses(batch, w), batch_groups, previous)
        (gradient,), (twin,) = torch.autograd.grad(got, w), torch.autograd.grad(expected, w)
        assert got.item() == close(expected.item(), 1e-12) and gradient.tolist() == close(twin.tolist(), 1e-12)
    for key, value in inner.state_dict().items():
        torch.testing.assert_close(grouped.criterion.state_dict()[key], value, rtol=1e-12, atol=1e-12)
    assert not hasattr(grouped, "min_tpr") and not hasattr(grouped, "max_fpr")


def pinball(scores, labels):
    error = labels - scores[:, 0]
    return torch.maximum(0.2 * error, -0.8 * error)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, scores, labels):
        return self.scale * (scores - labels).abs()


def test_grouped_takes_any_loss_of_rows():
    groups = [0, 0, 1]
    absolute = GroupedLoss(GroupERMLoss(2), groups, loss="absolute")
    scores, labels = torch.tensor([1.0, 2.0, 5.0], requires_grad=True), torch.tensor([0, 4, 1])
    assert absolute(scores, labels, torch.arange(3)).item() == close(7 / 3, 1e-6)
    quantile = GroupedLoss(GroupERMLoss(2), np.array(groups), loss=pinball)
    expected = (0.8 * 1 + 0.2 * 2 + 0.8 * 4) / 3
    assert quantile(scores.unsqueeze(1), labels, torch.arange(3)).item() == close(expected, 1e-6)
    assert quantile(scores.unsqueeze(1), labels.tolist(), [0, 1, 2]).item() == close(expected, 1e-6)
    learned = GroupedLoss(GroupERMLoss(2), groups, loss=Scaled())
    learned(scores, labels, torch.arange(3)).backward()
    assert learned.loss.scale.grad.item() == close(7 / 3, 1e-6)
    twin = pickle.loads(pickle.dumps(learned))
    assert_same(twin, state(learned))


def test_grouped_labels_of_other_types():
    groups = torch.arange(4) % 2
    scores, labels = torch.tensor([1.0, -2.0, 0.5, 3.0]), np.array([0, 1, 1, 0])
    logistic = GroupedLoss(GroupERMLoss(2), groups)
    expected = np.log1p(np.exp((1 - 2 * labels) * scores.numpy())).mean()
    for given in (labels, labels.tolist(), labels.astype(bool), torch.tensor(labels).float()):
        assert logistic(scores, given, range(4)).item() == close(expected, 1e-6)
    squared = GroupedLoss(GroupERMLoss(2), groups, loss="squared")
    assert squared(scores.double(), torch.tensor(labels, dtype=torch.float32), range(4)).dtype == torch.float64
    assert squared(scores, labels.astype(bool), range(4)).item() == close((1 + 9 + 0.25 + 9) / 4, 1e-6)
    half = scores.to(torch.bfloat16).requires_grad_()
    loss = squared(half, labels, range(4))
    loss.backward()
    assert loss.dtype == torch.float32 and half.grad.dtype == torch.bfloat16


def test_grouped_keeps_its_groups_whatever_type_it_is_moved_to():
    ids = torch.arange(4) % 2
    for groups in (ids, nn.functional.one_hot(ids, 2).double()):
        criterion = GroupedLoss(GroupDROLoss(2, top_k=1), groups).to(torch.bfloat16)
        groups.zero_()  # the loss has its own copy
        criterion(torch.zeros(4), torch.tensor([0, 1, 0, 1]), torch.arange(4))
        assert criterion.criterion.u.tolist() == close([math.log(2)] * 2, 1e-6)
        assert criterion.groups.dtype in (torch.int64, torch.bool)
    fresh = GroupedLoss(GroupDROLoss(2, top_k=1), criterion.groups)
    fresh.load_state_dict(criterion.state_dict())
    assert_same(fresh, state(criterion))


def grouped_batch(loss):
    scores = torch.randn(4, 3) if loss == "cross_entropy" else torch.randn(4)
    return {"scores": scores, "labels": torch.tensor([0, 1, 1, 0]), "index": torch.tensor([3, 0, 2, 5])}


EVERY_LOSS = ("logistic", "cross_entropy", "squared", "absolute", nn.L1Loss(reduction="none"))
BAD_GROUPED = [
    (EVERY_LOSS, "scores", lambda x: x.sum()),
    (("logistic", "squared"), "scores", lambda x: x.unsqueeze(1)),
    (("cross_entropy",), "scores", lambda x: x[:, 0]),
    (EVERY_LOSS[:4], "labels", lambda x: x[:3]),
    (("logistic",), "labels", lambda x: x + 1),
    (EVERY_LOSS, "labels", lambda x: ["a"] * 4),
    (("cross_entropy",), "labels", lambda x: x.float()),
    (("cross_entropy",), "labels", lambda x: x + 2),
    (("cross_entropy",), "labels", lambda x: x - 1),
    (("squared", "absolute"), "labels", lambda x: x / 0),
    (("squared", "absolute"), "labels", lambda x: x * 1j),
]


@pytest.mark.parametrize(
    ("loss", "name", "change"), [(loss, *entry) for losses, *entry in BAD_GROUPED for loss in losses]
)
def test_bad_batches_of_grouped_are_named_and_change_nothing(loss, name, change):
    criterion = GroupedLoss(GroupDROLoss(2, top_k=1), torch.arange(8) % 2, loss=loss)
    criterion(**grouped_batch(loss))
    batch = grouped_batch(loss)
    before = state(criterion)
    with pytest.raises(ValueError, match=f"GroupedLoss: {name} must"):
        criterion(**{**batch, name: change(batch[name])})
    assert_same(criterion, before)


def test_bad_functions_of_grouped_and_errors_of_the_inner_loss():
    batch = grouped_batch("squared")
    batch["scores"].requires_grad_()
    for function, message in [
        (lambda scores, labels: 0.0, "GroupedLoss: loss must return a floating point tensor, got a float"),
        (lambda scores, labels: scores.sum(), "GroupedLoss: what loss returns must have shape (4,), got ()"),
        (lambda scores, labels: scores.detach(), "GroupedLoss: loss must depend on its first argument"),
        (lambda scores, labels: scores * torch.nan, "GroupedLoss: losses must be finite, got nan"),
    ]:
        criterion = GroupedLoss(GroupDROLoss(2, top_k=1), torch.arange(8) % 2, loss=function)
        before = state(criterion)
        with pytest.raises(ValueError, match=re.escape(message)):
            criterion(**batch)
        assert_same(criterion, before)


@pytest.mark.parametrize("groups", [None, ["a", "b"], np.array(["a", "b"])])
def test_groups_that_are_no_numbers(groups):
    with pytest.raises(ValueError, match="GroupDROLoss: groups must hold numbers"):
        GroupDROLoss(2, top_k=1)(torch.ones(2), groups)
