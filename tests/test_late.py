"""Late checks on a device: the same numbers, the same errors one call later, and no synchronization."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from conformance import CASES, LABELS, MISTAKES, POSSIBLE_MISTAKES

from moreauc import FCCOLoss, GroupDROLoss, MultiInstanceTPAUCLoss, TCCOLoss, TPAUCLoss
from moreauc.core import pairs
from moreauc.core.pairs import Pairs, cvar_and_vjp, cvar_over_negatives
from moreauc.core.surrogates import get_surrogate
from moreauc.criteria import GroupedLoss, STACOLoss, _base, _validation
from moreauc.criteria._base import Criterion
from moreauc.train import fit

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
# torch warns of what its compiler itself does with a user's autograd function
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def late(criterion):
    criterion.checks = "late"
    return criterion


def arguments(case, number, dtype=torch.float64, *, training=True, device="cpu"):
    batch = {
        name: (value.to(dtype) if name in case.values else value).to(device)
        for name, value in case.batch(number).items()
        if training or not name.startswith("previous")
    }
    batch[case.values[0]].requires_grad_()
    return batch


def step(criterion, case, number, **options):
    batch = arguments(case, number, training=criterion.training, **options)
    loss = criterion(**batch)
    loss.backward()
    return loss.detach(), batch[case.values[0]].grad


def build(case, rule, checks):
    criterion = case.build().double()
    inner = getattr(criterion, "criterion", criterion)
    if rule == "quantile" and hasattr(inner, "threshold_lr") and not isinstance(inner, STACOLoss):
        inner.threshold_lr = "quantile"
    criterion.checks = checks
    return criterion


@EVERY
@pytest.mark.parametrize("rule", ["step", "quantile"])
def test_numbers_are_those_of_calls_that_look_at_once(case, rule):
    now, late = build(case, rule, "now"), build(case, rule, "late")
    for number in range(20):
        if number % 5 == 4:
            now.eval(), late.eval()
        for one, other in zip(step(now, case, number), step(late, case, number), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-10)
        now.train(), late.train()
    for name, value in now.state_dict().items():
        torch.testing.assert_close(late.state_dict()[name], value, rtol=1e-10, atol=1e-10)


@EVERY
@pytest.mark.parametrize("rule", ["step", "quantile"])
@pytest.mark.parametrize("training", [True, False])
def test_no_operation_looks_at_a_number(case, rule, training, monkeypatch):
    """Tensors on `meta` have no numbers and mix with none on the CPU: reading or copying a value fails."""
    monkeypatch.setattr(_base, "capturing", lambda values: True)  # as in a CUDA graph: the host stays away
    criterion = build(case, rule, "late").train(training).to("meta")
    batch = {
        name: value.detach().to("meta").requires_grad_(value.requires_grad)
        for name, value in arguments(case, 0, training=training).items()
    }
    loss = criterion(**batch)
    loss.backward()
    assert loss.device.type == "meta" and batch[case.values[0]].grad.device.type == "meta"
    criterion.checks = "now"  # so that we know it would have failed
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        criterion(**batch)


@pytest.mark.parametrize(
    ("case", "wrong"), [pytest.param(case, name, id=f"{case.name}-{name}") for case, name in POSSIBLE_MISTAKES]
)
@pytest.mark.parametrize("device", DEVICES)
def test_errors_come_with_a_later_call_and_change_nothing(case, wrong, device):
    which, change, message = MISTAKES[wrong]
    criterion = build(case, "step", "late").to(device)
    step(criterion, case, 0, device=device)
    batch = arguments(case, 1, device=device)
    name = which if isinstance(which, str) else case.values[which]
    before = {key: value.clone() for key, value in criterion.state_dict().items()}
    batch[name] = change(batch[name].detach())
    leaf = batch[case.values[0]] = batch[case.values[0]].detach().requires_grad_()
    loss = criterion(**batch)
    loss.backward()
    assert torch.isnan(loss) and not leaf.grad.any()
    torch.cuda.synchronize() if device == "cuda" else None
    with pytest.raises(ValueError, match=message) as caught:
        step(criterion, case, 2, device=device)
    assert str(caught.value).startswith(f"{type(criterion).__name__}: ")
    assert "(in call 2, found later, after call 2; the call changed nothing" in str(caught.value)
    assert ("checks='now' prevents" in str(caught.value)) == ("must be finite" in message)
    for key, value in criterion.state_dict().items():
        assert torch.equal(value, before[key]), key
    step(criterion, case, 2, device=device)  # as if nothing had been
    criterion.check()
    moved = any(not torch.equal(value, before[key]) for key, value in criterion.state_dict().items())
    assert moved == case.has_state


@pytest.mark.parametrize(
    ("numbers", "twice"),
    [([0, 3, 3], True), ([3, 1, 3], True), ([1, 1, 2], True), ([2, 0, 1], False), ([4, 4], True), ([4], False)],
)
def test_a_number_that_comes_twice_is_found_anywhere(numbers, twice):
    assert _validation.repeats(torch.tensor(numbers)) == twice
    assert not _validation.repeats(torch.tensor(numbers), unique=False)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_functions_of_the_user_see_only_numbers_in_a_late_check(bad):
    seen = []

    def squares(values, labels):
        seen.append(set(values.flatten().tolist()))
        return values.square()

    values, rows = torch.tensor([1.0, bad]), torch.arange(2)
    rules = {"tau1": 0.5, "tau2": 0.5, "gamma1": 0.1, "gamma2": 0.1}
    for criterion, *batch in (
        (FCCOLoss(2, squares, tau=0.5, gamma=0.1), values, rows, values),
        (TCCOLoss(2, 2, lambda u, index: u, squares, **rules), values.expand(2, 2), rows, rows, values.expand(2, 2)),
        (GroupedLoss(GroupDROLoss(2, top_k=1, tau=0.5, gamma=0.1), rows, loss=squares), values, rows, rows, values),
    ):
        criterion.checks = "late"
        assert criterion(*batch).isnan()
        assert seen and all(values == {0.0, 1.0} for values in seen)
        with pytest.raises(ValueError, match=f"must be finite, got {bad}"):
            criterion.check()  # calls the function again, with the values given
        seen.clear()


def one_class(criterion):
    rows = torch.tensor([0, 2, 3])
    return criterion(torch.zeros(3), torch.zeros(3, dtype=torch.long), rows)


def test_numbers_that_overflow_are_found():
    criterion = TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6, link="identity")
    criterion.checks = "late"
    batch = {"labels": LABELS[:6], "index": torch.arange(6)}
    criterion(scores=torch.tensor([3e38, -3e38, 0.0, 1.0, 2.0, 3.0]), **batch)
    with pytest.raises(ValueError, match=r"the (loss|updated row) must be finite"):
        criterion.check()


@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize("look", [lambda c: c.state_dict(), lambda c: c.check()], ids=["state_dict", "check"])
def test_looking_on_purpose_raises_once(look, remembered):
    criterion = late(TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6))
    one_class(criterion)
    if not remembered:
        criterion._pending.forget()
    with pytest.raises(ValueError, match=f"got only {0 if remembered else 'one of them'}; .* .in call 1, "):
        look(criterion)
    look(criterion)


def test_the_outer_loss_says_what_is_wrong():
    criterion = GroupedLoss(GroupDROLoss(3, top_k=1), torch.arange(15) % 3, loss="cross_entropy")
    criterion.checks = "late"
    assert criterion.criterion.checks == "late"
    criterion(torch.zeros(2, 4), torch.tensor([0, 4]), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"GroupedLoss: labels must lie in \[0, 4\), got 4"):
        criterion.check()
    criterion.criterion.check()


@pytest.mark.parametrize("loss", ["squared", "absolute", torch.nn.functional.mse_loss])
def test_other_losses_of_a_row(loss):
    if callable(loss):
        loss = lambda scores, labels: (scores - labels).square()  # noqa: E731
    now, late = (GroupedLoss(GroupDROLoss(3, top_k=1), torch.arange(15) % 3, loss=loss) for _ in range(2))
    late.checks = "late"
    call = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.5, 1.5, 1.0]), torch.tensor([0, 4, 8])
    assert now(*call) == late(*call)
    if not callable(loss):
        late(call[0], call[1] * torch.nan, call[2])
        with pytest.raises(ValueError, match="labels must be finite, got nan"):
            late.check()
        with pytest.raises(ValueError, match="must hold real numbers"):
            late(call[0], call[1].to(torch.complex64), call[2])


def test_when_to_look_is_checked():
    criterion = TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6)
    assert criterion.checks == "auto"
    with pytest.raises(ValueError, match="TPAUCLoss: checks must be 'auto', 'now' or 'late', got 'never'"):
        criterion.checks = "never"


def test_which_calls_are_late(monkeypatch):
    criterion = TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6)
    here, there = torch.zeros(2), SimpleNamespace(is_cuda=True)
    assert not criterion._is_late(here)
    monkeypatch.setattr(_base, "Tensor", SimpleNamespace)
    assert criterion._is_late(there)
    monkeypatch.setattr(_base, "several_processes", lambda: True)  # they exchange numbers, and look at them
    assert not criterion._is_late(there)
    criterion.checks = "late"
    assert criterion._is_late(here)


def test_a_module_of_the_user_inside_a_loss_is_called_after_all_has_been_looked_at():
    class Mean(torch.nn.Module):
        def forward(self, losses, groups):
            return losses.mean()

    grouped = GroupedLoss(Mean(), torch.arange(15) % 3)
    grouped.checks = "late"
    with pytest.raises(ValueError, match="GroupedLoss: scores must be finite"):
        grouped(torch.full((2,), torch.nan), LABELS[:2], torch.arange(2))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))], ids=["copy", "pickle"])
def test_copies_count_calls_on(duplicate):
    criterion = late(TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6))
    batch = torch.zeros(6), LABELS[:6], torch.arange(6)
    criterion(*batch)
    twin = duplicate(criterion)
    assert twin.checks == "late"
    one_class(twin)
    with pytest.raises(ValueError, match="in call 2"):
        twin.check()
    criterion.check()


class Event:
    done = False

    def record(self, stream):
        self.recorded = True

    def query(self):
        return self.done


def test_flags_travel_without_waiting(monkeypatch):
    """With a device that is still busy, then done; it is never waited for."""
    numbers = torch.tensor([7, 3])
    device = SimpleNamespace(is_cuda=True, shape=numbers.shape, dtype=numbers.dtype, device="cuda")
    flag = SimpleNamespace(copied=0)
    flag.copy_ = lambda values, non_blocking: setattr(flag, "copied", flag.copied + non_blocking)
    event = Event()
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: flag)
    pending = _validation.Pending()
    assert pending.poll(device) is None
    pending.record(device)
    pending.record(device)  # one is under way
    assert flag.copied == 1 and event.recorded
    assert pending.poll(device) is None
    event.done = True
    assert pending.poll(device) is flag
    assert pending.poll(device) is None
    pending.record(device)
    assert flag.copied == 2


def test_in_a_graph_the_host_stays_away(monkeypatch):
    criterion = late(TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6))
    monkeypatch.setattr(_base, "capturing", lambda values: True)
    one_class(criterion)
    one_class(criterion)  # raises nothing
    monkeypatch.undo()
    with pytest.raises(ValueError, match="in call 1"):
        criterion.replayed()
    criterion.replayed()


@pytest.mark.parametrize("surrogate", ["squared_hinge", "hinge", "logistic", "squared", "smooth_ramp"])
@pytest.mark.parametrize("kind", ["matrix", "large", "large and deterministic"])
@pytest.mark.parametrize("device", DEVICES)
def test_pairs_by_a_mask_equal_pairs_of_two_lists(surrogate, kind, device, monkeypatch):
    if kind != "matrix":
        monkeypatch.setitem(pairs._SORT_FROM, device, -10_000)
        monkeypatch.setitem(pairs._TILE_FROM, device, 4)
        monkeypatch.setitem(pairs._TILE, device, 100)
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(40, dtype=torch.float64, generator=random).to(device)
    positive = (torch.rand(40, generator=random) < 0.4).to(device)
    threshold = torch.randn(40, dtype=torch.float64, generator=random).to(device)
    loss = get_surrogate(surrogate, 0.7)
    upper, lower = scores[positive].requires_grad_(), scores[~positive].requires_grad_()
    psi, slope = cvar_over_negatives(upper, lower, threshold[positive], surrogate=loss, max_fpr=0.4)
    weight = torch.rand(40, dtype=torch.float64, generator=random).to(device)
    (psi * weight[positive]).sum().backward()
    place = torch.where(positive, torch.arange(40, device=device), positive.int().argmax())
    total = 0.4 * (~positive).sum().double()
    torch.use_deterministic_algorithms(kind.endswith("deterministic"))
    try:
        padded = Pairs(scores[place], scores, total, positive)
        found, slopes, vjp = cvar_and_vjp(padded, threshold[place], loss)
        of_upper, of_all = vjp(weight * positive)
    finally:
        torch.use_deterministic_algorithms(False)
    close = {"rtol": 1e-11, "atol": 1e-11}
    torch.testing.assert_close(found[positive], psi.detach(), **close)
    torch.testing.assert_close(slopes()[positive], slope, **close)
    torch.testing.assert_close(of_upper[positive], upper.grad, **close)
    torch.testing.assert_close(of_all[~positive], lower.grad, **close)
    assert not of_upper[~positive].any() and not of_all[positive].any()


@EVERY
@pytest.mark.parametrize("device", DEVICES)
def test_deterministic_mode_is_honoured(case, device):
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for _ in range(2):
            criterion = build(case, "step", "late").to(device)
            runs.append([part for number in range(3) for part in step(criterion, case, number, device=device)])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))


if torch.cuda.is_available():

    @pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
    @EVERY
    def test_a_step_on_a_gpu_does_not_wait(case):
        criterion = case.build().cuda()
        batches = [arguments(case, number, torch.float32, device="cuda") for number in range(4)]
        criterion(**batches[0]).backward()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in batches[1:]:
                criterion(**batch).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        criterion.check()


def test_an_epoch_does_not_end_before_its_errors_are_told():
    model, labels = torch.nn.Linear(2, 1), LABELS[:6]
    criterion = late(TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6))
    batch = torch.randn(6, 2), labels, torch.arange(6)
    fit(model, criterion, [batch], epochs=1)
    with pytest.raises(ValueError, match="index must not repeat a row"):
        fit(model, criterion, [batch, (*batch[:2], torch.zeros(6, dtype=torch.long))], epochs=1)


def test_a_wrapper_made_without_the_constructor_is_passed_over():
    wrapper = Criterion.__new__(Criterion)
    torch.nn.Module.__init__(wrapper)
    wrapper.loss = TPAUCLoss(LABELS, min_tpr=0.3, max_fpr=0.6)
    wrapper.checks = "late"
    assert wrapper.loss.checks == "late" and Criterion.checks.fget(wrapper) == "auto"
    one_class(wrapper.loss)
    with pytest.raises(ValueError, match="TPAUCLoss: labels must hold both"):
        wrapper.check()
    assert wrapper.state_dict().keys() == {f"loss.{name}" for name in wrapper.loss.state_dict()}


# Kinks, ties with a quantile, and what late calls leave unchanged.


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
        for groups in (ids := torch.arange(3 * number) % number, torch.nn.functional.one_hot(ids)):
            over_groups = late(GroupDROLoss(number, top_k=number, threshold_lr=1.0)).to(dtype)
            over_groups(torch.ones(3 * number, dtype=dtype), groups)
            assert over_groups.s == 0.0, number


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
