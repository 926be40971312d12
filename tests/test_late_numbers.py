"""Late calls where immediate ones are exact: at kinks, at ties with a quantile, and in what they leave unchanged."""

from __future__ import annotations

import pytest
import torch
from conformance import LABELS

from moreauc import FCCOLoss, GroupDROLoss, MultiInstanceTPAUCLoss, TCCOLoss, TPAUCLoss
from moreauc.criteria import GroupedLoss

# torch warns of what its compiler itself does with a user's autograd function
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def types(criterion):
    return {name: value.dtype for name, value in criterion.state_dict().items()}


@pytest.mark.parametrize("rule", [0.1, "quantile"])
def test_evaluation_leaves_the_types_of_the_tables(rule):
    rows = TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, threshold_lr=rule)
    bags = MultiInstanceTPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, pooling="mean", threshold_lr=rule)
    groups = GroupDROLoss(3, top_k=1, threshold_lr=rule)
    index, scores = torch.arange(6), torch.linspace(-1, 1, 12, dtype=torch.float64)
    calls = {
        rows: (scores[:6], LABELS[:6], index),
        bags: (scores, torch.arange(12) // 2, LABELS[:6], index),
        groups: (scores[:6], index % 3),
    }
    for criterion, (values, *rest) in calls.items():
        criterion.checks = "late"
        before = types(criterion)
        with torch.inference_mode():
            criterion.eval()(values, *rest)
        assert types(criterion) == before
        leaf = values.float().requires_grad_()
        criterion.train()(leaf, *rest).backward()  # no table is a tensor of inference mode
        criterion(values, *rest)
        assert types(criterion) != before  # trained with float64, it averages in float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_threshold_that_should_stay_does_so_for_every_number_of_positives(dtype):
    """All positives above s' and min_tpr 0: the derivative in s' is 1 - 1, to the last bit."""
    for number in range(2, 33):
        labels = (torch.arange(number + 5) < number).long()
        criterion = TPAUCLoss(labels, min_tpr=0.0, max_fpr=0.3).to(dtype)
        criterion.checks = "late"
        criterion(torch.zeros(len(labels), dtype=dtype), labels, torch.arange(len(labels)))
        assert criterion.s_prime == 0.0, number


@pytest.mark.parametrize("memberships", [False, True])
def test_a_threshold_over_groups_that_should_stay_does_so(memberships):
    for number in range(2, 33):
        criterion = GroupDROLoss(number, top_k=number, threshold_lr=1.0)
        criterion.checks = "late"
        groups = torch.arange(3 * number) % number
        if memberships:
            groups = torch.nn.functional.one_hot(groups)
        criterion(torch.ones(3 * number), groups)
        assert criterion.s == 0.0, number


@pytest.mark.parametrize("surrogate", ["squared_hinge", "hinge", "logistic", "sigmoid"])
@pytest.mark.parametrize("gamma", [0.0, 0.1])
def test_the_negative_at_the_quantile_pulls_nothing(surrogate, gamma):
    """With one negative the quantile is its score, and no pair is above its own threshold."""
    labels = (torch.arange(14) != 5).long()
    for seed in range(20):
        random = torch.Generator().manual_seed(seed)
        scores = torch.randn(14, generator=random, dtype=torch.float64).requires_grad_()
        options = {"surrogate": surrogate, "margin": 0.5, "link": "identity", "gamma": gamma}
        criterion = TPAUCLoss(labels, min_tpr=0.0, max_fpr=0.3, threshold_lr="quantile", **options)
        criterion.checks = "late"
        for call in (criterion, criterion.eval()):
            call(scores, labels, torch.arange(14), scores.detach()).backward()
            assert not scores.grad.any()


def late(criterion):
    criterion.checks = "late"
    return criterion


def test_refused_calls_are_counted():
    criterion = late(TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6))
    batch = torch.zeros(6), LABELS[:6], torch.arange(6)
    compiled = torch.compile(criterion, backend="eager", fullgraph=True)
    for number in range(5):
        compiled(batch[0], batch[1], batch[2] + number % 2)
    message = r"\(in call 2, found later, after call 5; 2 calls were refused and changed nothing\)"
    with pytest.raises(ValueError, match=message):
        criterion.check()
    criterion(batch[0], batch[1], batch[2] + 1)
    with pytest.raises(ValueError, match=r"in call 6, found later, after call 6; the call changed nothing\)"):
        criterion.check()


def test_a_call_is_explained_in_the_mode_that_it_was_made_in():
    criterion = late(TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6)).eval()
    index = torch.tensor([0, 0, 1, 2, 4, 5])  # in evaluation a row may come twice
    criterion(torch.zeros(6).index_fill(0, torch.tensor([3]), torch.nan), LABELS[index], index)
    criterion.train()
    with pytest.raises(ValueError, match="scores must be finite, got nan"):
        criterion.check()
    assert criterion.training


def test_compiled_calls_in_between_do_not_lead_to_a_wrong_explanation():
    criterion = late(TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6))
    compiled = torch.compile(criterion, backend="eager", fullgraph=True)
    batch = LABELS[:6], torch.arange(6)
    compiled(torch.full((6,), torch.nan), *batch)
    criterion.poll = lambda: None
    criterion(torch.zeros(6), batch[0], batch[1] + 1)  # call 2, the first that is remembered
    with pytest.raises(
        ValueError, match=r"scores must be finite, got NaN or infinity \(in call 1, found later, after c"
    ):
        criterion.check()


def test_what_is_remembered_keeps_nothing_large_alive():
    criterion = late(TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6))
    criterion(torch.zeros(6, 1000)[:, 0], LABELS[:6], torch.arange(6))
    ((_, _, (scores, *_), _),) = criterion._pending._recent
    assert scores.untyped_storage().nbytes() == scores.nbytes
    wide = late(GroupedLoss(GroupDROLoss(3, top_k=1), torch.arange(15) % 3, loss="cross_entropy"))
    wide(torch.zeros(6, 50_000), torch.arange(6), torch.arange(6))
    assert wide._pending.calls == 1 and not wide._pending._recent


def test_a_batch_without_bags_is_refused_at_once():
    bags = late(MultiInstanceTPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, pooling="mean"))
    nothing = torch.arange(0)
    with pytest.raises(ValueError, match=r"MultiInstanceTPAUCLoss: labels must have shape \(B,\), got \(0,\)"):
        bags(torch.zeros(0), nothing, nothing, nothing)


def two_levels(outer):
    return late(FCCOLoss(4, outer, tau=0.5))


def three_levels(outer, middle):
    return late(TCCOLoss(3, 4, outer, middle, tau1=0.5, tau2=0.5))


def rows_of(loss):
    return late(GroupedLoss(GroupDROLoss(3, top_k=1), torch.arange(15) % 3, loss=loss))


def norm(u, i):
    return u.square().sqrt()


NAN, PAIR, TRIPLE = float("nan"), torch.tensor([0, 1]), torch.arange(3)
STEEP = {
    "outer of what is not finite": (two_levels(norm), [NAN, 1.0], PAIR),
    "outer that is not finite": (two_levels(lambda u, i: u.log()), [0.0, 1.0], PAIR),
    "outer of a row that comes twice": (two_levels(norm), [0.0, 1.0], torch.tensor([1, 1])),
    "middle of what is not finite": (three_levels(lambda u, i: u, norm), [[NAN, 1.0]], torch.tensor([0]), PAIR),
    "middle that is not finite": (three_levels(lambda u, i: u, lambda v, i: v.log()), [[0.0, 1.0]], PAIR[:1], PAIR),
    "squared, NaN as label": (rows_of("squared"), [1.0, 2.0, 3.0], torch.tensor([1.0, NAN, 0.0]), TRIPLE),
    "a loss of one's own, NaN as label": (
        rows_of(lambda s, y: (s - y).abs().sqrt()),
        [1.0, 2.0, 3.0],
        torch.tensor([1.5, NAN, 0.0]),
        TRIPLE,
    ),
    "a loss of one's own that is not finite": (rows_of(lambda s, y: s.log()), [0.0, 2.0, 3.0], TRIPLE, TRIPLE),
    "a row that comes twice": (rows_of(norm), [0.0, 2.0, 3.0], TRIPLE, torch.tensor([0, 0, 1])),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("what", STEEP)
def test_the_gradient_of_a_refused_batch_is_zero_whatever_a_function_makes_of_it(what, compiled):
    criterion, values, *rest = STEEP[what]
    torch.compiler.reset()
    call = torch.compile(criterion, backend="aot_eager", fullgraph=True) if compiled else criterion
    leaf = torch.tensor(values, requires_grad=True)
    loss = call(leaf, *rest)
    (2.0 * loss).backward()
    assert torch.isnan(loss)
    assert leaf.grad.eq(0.0).all()
    with pytest.raises(ValueError, match="in call"):
        criterion.check()


def test_the_gradient_of_a_refused_evaluation_is_zero():
    index, scores = torch.arange(6), torch.full((12,), NAN, requires_grad=True)
    bags = late(MultiInstanceTPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, pooling="smoothed_max")).eval()
    rows = late(TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6)).eval()
    for loss in (bags(scores, torch.arange(12) // 2, LABELS[:6], index), rows(scores[:6], LABELS[:6], index)):
        loss.backward()
        assert torch.isnan(loss) and scores.grad.eq(0.0).all()
