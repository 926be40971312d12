from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
import re

import pytest
import torch
from conformance import CASES, LABELS, MISTAKES, POSSIBLE_MISTAKES, Case

from moreauc._settings import texts_of
from moreauc.criteria._base import Criterion

EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
MODES = pytest.mark.parametrize("checks", ["now", "late"])
WITH_STATE = pytest.mark.parametrize("case", [case for case in CASES if case.state], ids=lambda case: case.name)
WITH_TABLES = pytest.mark.parametrize(
    "case", [case for case in CASES if case.tables(case.batch(0))], ids=lambda case: case.name
)


def step(criterion, case: Case, number: int, dtype=torch.float32, change=lambda batch: batch):
    batch = change(case.batch(number))
    batch = {name: value.to(dtype) if name in case.values else value for name, value in batch.items()}
    batch[case.values[0]].requires_grad_()
    loss = criterion(**batch)
    loss.backward()
    return loss.detach(), batch[case.values[0]].grad


def built(case: Case, checks: str):
    """Return a fresh criterion that raises errors at once, or later, as on a device."""
    criterion = case.build()
    criterion.checks = checks
    return criterion


def state(criterion):
    return {name: value.clone() for name, value in criterion.state_dict().items()}


def assert_same_state(criterion, expected):
    actual = criterion.state_dict()
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype and torch.equal(actual[name], value), name


@EVERY
def test_buffers_with_labels_are_named_for_checkpoints(case):
    criterion = case.build()
    for part in criterion.modules():
        if isinstance(part, Criterion):
            whole_numbers = [
                name for name in part.state_dict() if "." not in name and not part.get_buffer(name).is_floating_point()
            ]
            assert [name for name in part.label_buffers if getattr(part, name) is not None] == whole_numbers
            for name in whole_numbers:
                before, buffer = texts_of(criterion), part.get_buffer(name)
                buffer[0] = ~buffer[0] if buffer.dtype == torch.bool else buffer[0] + 1
                assert texts_of(criterion) != before


@EVERY
@MODES
def test_resumed_run_equals_the_uninterrupted_one(case, checks):
    whole, first = built(case, checks), built(case, checks)
    for number in range(6):
        step(whole, case, number)
        if number < 3:
            step(first, case, number)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = built(case, checks)
    second.load_state_dict(torch.load(file, weights_only=True))
    for number in range(3, 6):
        step(second, case, number)
    assert_same_state(second, state(whole))


@EVERY
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))], ids=["copy", "pickle"])
def test_copies_go_on_like_the_original_and_apart_from_it(case, duplicate):
    criterion = case.build()
    step(criterion, case, 0)
    twin = duplicate(criterion)
    before = state(twin)
    loss, _ = step(criterion, case, 1)
    assert_same_state(twin, before)
    twin_loss, _ = step(twin, case, 1)
    assert torch.equal(loss, twin_loss)
    assert_same_state(twin, state(criterion))


@EVERY
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_moves_to_another_type(case, dtype):
    criterion = case.build()
    step(criterion, case, 0)
    criterion.to(dtype)
    assert all(getattr(criterion, name).dtype == dtype for name in case.state)
    loss, gradient = step(criterion, case, 1, dtype)
    assert gradient.dtype == dtype and torch.isfinite(loss)
    assert loss.dtype == torch.promote_types(dtype, torch.float32)


@EVERY
def test_autocast_does_not_narrow_the_loss(case):
    plain, cast = step(case.build(), case, 0), None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = step(case.build(), case, 0)
    assert all(torch.equal(*pair) for pair in zip(plain, cast, strict=True))


@pytest.mark.parametrize("case", [case for case in CASES if "CCO" not in case.name], ids=lambda case: case.name)
def test_float64_is_not_rounded_where_another_type_is_the_default(case):
    batches, runs = [case.batch(number) for number in range(3)], []
    for default in (torch.float32, torch.float64):
        criterion = case.build().double()
        torch.set_default_dtype(default)
        try:
            found = [step(criterion, case, n, torch.float64, lambda _, n=n: dict(batches[n])) for n in range(3)]
        finally:
            torch.set_default_dtype(torch.float32)
        runs.append([part for parts in found for part in parts] + list(state(criterion).values()))
    assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))


DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@EVERY
@pytest.mark.parametrize("device", DEVICES)
def test_moves_to_another_device_and_goes_on_the_same(case, device):
    here, there = case.build(), case.build()
    step(here, case, 0)
    step(there, case, 0)
    there.to(device)
    for number in range(1, 4):
        loss, gradient = step(here, case, number)

        moved = {name: value.to(device) for name, value in case.batch(number).items()}
        moved[case.values[0]].requires_grad_()
        other = there(**moved)
        other.backward()
        torch.testing.assert_close(other.detach().cpu(), loss)
        torch.testing.assert_close(moved[case.values[0]].grad.cpu(), gradient)
        assert all(getattr(there, name).device.type == device for name in case.state)
    for name, value in state(here).items():
        torch.testing.assert_close(there.state_dict()[name].cpu(), value)


@WITH_STATE
@MODES
def test_table_is_as_wide_as_what_it_averages(case, checks):
    criterion = built(case, checks)
    step(criterion, case, 0, torch.bfloat16)
    assert all(getattr(criterion, name).dtype == torch.float32 for name in case.state if name not in case.exact)
    assert all(getattr(criterion, name).dtype == torch.float64 for name in case.exact)
    step(criterion, case, 1, torch.float64)
    assert all(getattr(criterion, name).dtype == torch.float64 for name in case.state)
    narrow = built(case, checks)
    narrow.load_state_dict(criterion.state_dict())
    assert_same_state(narrow, state(criterion))


@WITH_TABLES
@MODES
def test_unvisited_rows_do_not_change(case, checks):
    criterion = built(case, checks)
    for number in range(3):
        step(criterion, case, number)
    for number in range(3, 6):
        before = {name: getattr(criterion, name).clone() for name in case.tables(case.batch(number))}
        step(criterion, case, number)
        for name, rows in case.tables(case.batch(number)).items():
            dim = 2 if name == "v" and case.name.startswith("TCCO") else 1
            old, new = before[name].flatten(0, dim - 1), getattr(criterion, name).flatten(0, dim - 1)
            changed = (old != new).reshape(len(old), -1).any(1).nonzero().squeeze(1)
            assert set(changed.tolist()) <= set(rows.tolist())
            assert len(changed) > 0


@EVERY
@MODES
def test_order_inside_a_batch_does_not_matter(case, checks):
    one, other = built(case, checks).double(), built(case, checks).double()
    for number in range(4):
        loss, _ = step(one, case, number, torch.float64)
        same, _ = step(other, case, number, torch.float64, case.reorder)
        torch.testing.assert_close(loss, same, rtol=1e-13, atol=1e-13)
    for name, value in state(one).items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=1e-13, atol=1e-13)


@EVERY
@MODES
def test_eval_mode_is_pure(case, checks):
    criterion = built(case, checks)
    step(criterion, case, 0)
    before = state(criterion)
    criterion.eval()
    batch = {name: value for name, value in case.batch(1).items() if not name.startswith("previous")}
    assert torch.equal(criterion(**batch), criterion(**batch))
    assert_same_state(criterion, before)
    criterion.train()
    step(criterion, case, 1)
    moved = any(not torch.equal(value, before[name]) for name, value in state(criterion).items())
    assert moved == case.has_state


@EVERY
@MODES
def test_finite_at_extreme_values(case, checks):
    criterion = built(case, checks)
    for number, scale in enumerate([1e-30, 1e15, -1e15]):
        loss, gradient = step(
            criterion,
            case,
            number,
            change=lambda batch, scale=scale: {
                name: value * scale if name in case.values else value for name, value in batch.items()
            },
        )
        assert torch.isfinite(loss) and torch.isfinite(gradient).all()


def _without_grad(batch, name, change):
    return {key: change(value) if key == name else value for key, value in batch.items()}


@pytest.mark.parametrize(
    ("case", "mistake"), [pytest.param(case, name, id=f"{case.name}-{name}") for case, name in POSSIBLE_MISTAKES]
)
def test_mistakes_are_named_and_change_nothing(case, mistake):
    criterion = case.build()
    step(criterion, case, 0)
    before = state(criterion)
    where, change, message = MISTAKES[mistake]
    name = where if isinstance(where, str) else case.values[where]
    for training in (True, False) if where != 1 and "must not repeat" not in message else (True,):
        criterion.train(training)
        with pytest.raises(ValueError, match=rf"{type(criterion).__name__}: .*{message}"):
            criterion(**_without_grad(case.batch(1), name, change))
        assert_same_state(criterion, before)


VALUE = {
    "integers": (lambda x: x.long(), "floating point"),
    "a list": (lambda x: x.tolist(), "floating point tensor, got a list"),
    "too few axes": (lambda x: x.sum(), "must have shape"),
    "too many axes": (lambda x: x[..., None, None], "must have shape"),
    "empty": (lambda x: x[:0], "must have shape"),
    "another device": (lambda x: x.to("meta"), "must be on cpu"),
}
NUMBER = {
    "floats": (lambda x: x.float(), "must hold integers"),
    "booleans": (lambda x: x > 2, "must hold integers"),
    "too long": (lambda x: torch.cat([x, x]), "must have shape"),
    "too many axes": (lambda x: x.reshape(-1, 1), "must have shape"),
}


@EVERY
@MODES
@pytest.mark.parametrize(("kind", "wrong"), [*(("value", k) for k in VALUE), *(("number", k) for k in NUMBER)])
def test_wrong_types_and_shapes_are_refused_at_once_and_change_nothing(case, checks, kind, wrong):
    criterion, batch = built(case, checks), case.batch(1)
    step(criterion, case, 0)
    before = state(criterion)
    change, message = (VALUE if kind == "value" else NUMBER)[wrong]
    names = [name for name in batch if name.endswith("index") or name in ("bag", "groups")]
    for name in case.values[:1] if kind == "value" else names:
        if name == "groups" and (case.name.startswith("SampleCVaR") or batch[name].ndim == 2):
            continue  # not looked at, and memberships of any type
        wanted = name if wrong != "too long" or name != "inner_index" else "inner_index"
        with pytest.raises(ValueError, match=rf"{type(criterion).__name__}: {wanted} .*{message}"):
            criterion(**_without_grad(batch, name, change))
        assert_same_state(criterion, before)


@EVERY
def test_previous_values_are_needed_where_the_loss_says_so(case):
    criterion = case.build()
    step(criterion, case, 0)
    before = state(criterion)
    batch = case.batch(1)
    name = next((name for name in batch if name.startswith("previous")), None)
    present = {key: value for key, value in batch.items() if key != name}
    assert criterion.needs_previous == (name is not None and name in case.values and "moving-average" not in case.name)
    if not criterion.needs_previous:
        assert criterion(**present).isfinite()
        return
    with pytest.raises(ValueError, match=rf"{name} must be given where gamma1? is not 0, got None; PreviousIterate"):
        criterion(**present)
    with pytest.raises(ValueError, match=rf"{name} must have the shape of"):
        criterion(**_without_grad(batch, name, lambda x: x[:-1]))
    with pytest.raises(ValueError, match=rf"{name} must be a floating point tensor, got a torch.int64 tensor"):
        criterion(**_without_grad(batch, name, lambda x: x.long()))
    with pytest.raises(ValueError, match=rf"{name} must be on cpu, where the tables are, got meta"):
        criterion(**_without_grad(batch, name, lambda x: x.to("meta")))
    assert_same_state(criterion, before)


def accepts_another_axis(case):
    return case.values[0] in ("inner", "constraints") and case.batch(0)[case.values[0]].ndim == 1


@pytest.mark.parametrize("case", [case for case in CASES if not accepts_another_axis(case)], ids=lambda case: case.name)
def test_an_axis_too_many_is_to_be_squeezed(case):
    criterion, name = case.build(), case.values[0]
    batch = case.batch(0)
    with pytest.raises(
        ValueError, match=rf"{name} must .*; remove the last axis with \.squeeze\({batch[name].ndim}\)$"
    ):
        criterion(**_without_grad(batch, name, lambda x: x.unsqueeze(-1)))
    for past in set(case.values[1:2]) & set(batch) if criterion.needs_previous else ():
        with pytest.raises(ValueError, match=rf"{past} must have the shape of {name}, .*; remove .* with \.squeeze"):
            criterion(**_without_grad(batch, past, lambda x: x.unsqueeze(-1)))


WITH_SCORES = [case for case in CASES if case.values[0] == "scores"]


@pytest.mark.parametrize("case", WITH_SCORES, ids=lambda case: case.name)
def test_two_columns_of_scores_are_taken_for_logits(case):
    with pytest.raises(
        ValueError, match=r"scores must have shape \(B,\), got \(6, 2\); .* logits\[:, 1\] - logits\[:, 0\]"
    ):
        case.build()(**_without_grad(case.batch(0), "scores", lambda x: torch.stack([x, x], 1)))


def test_two_columns_of_instances_are_taken_for_attention():
    case = next(case for case in CASES if case.name == "MIDAMLoss-mean-default")
    with pytest.raises(ValueError, match=r"got \(14, 2\); two columns, .*, are for pooling='attention'"):
        case.build()(**_without_grad(case.batch(0), "instances", lambda x: torch.stack([x, x], 1)))


OF_LABELS = [case for case in CASES if "labels" in case.batch(0) and "Grouped" not in case.name]


@MODES
@pytest.mark.parametrize("case", [case for case in OF_LABELS if "ross" not in case.name], ids=lambda case: case.name)
def test_a_batch_of_one_class_names_the_sampler(case, checks):
    criterion = built(case, checks)
    step(criterion, case, 0)
    before = state(criterion)
    rows = (LABELS == 0).nonzero().squeeze(1)[:6]
    with pytest.raises(ValueError, match=r"labels must hold both 0 and 1, got only (0|one of them); PosNegSampler"):
        criterion(**(case.batch(0) | {"labels": LABELS[rows], "index": rows}))
        criterion.check()
    assert_same_state(criterion, before)


@EVERY
def test_repr_shows_the_arguments(case, monkeypatch):
    kind, given = type(case.build()), {}
    original = kind.__init__

    @functools.wraps(original)
    def record(self, *args, **kwargs):
        given.update(inspect.signature(original).bind(self, *args, **kwargs).arguments)
        original(self, *args, **kwargs)

    monkeypatch.setattr(kind, "__init__", record)
    text = repr(case.build())
    assert text.startswith(f"{kind.__name__}(") and text.count("(") == text.count(")")
    assert "\n" not in text and " at 0x" not in text and len(text) < 400
    for name, value in given.items():
        if name == "labels":
            assert re.match(rf"{kind.__name__}\(15 (rows|bags), 6 positives", text)
        elif name not in ("self", "temperature") or "smoothed_max" in text:
            assert name == "self" or f"{name}=" in text, name
        if isinstance(value, int | float):
            assert f"{name}={value:g}" in text or name in ("temperature", "tau", "gamma", "threshold_lr"), name


def test_repr_of_a_loss_is_its_call():
    case = next(case for case in CASES if case.name == "TPAUCLoss-ramp-msvr")
    criterion = case.build()
    criterion.gamma = 0.125  # a schedule
    assert repr(criterion) == (
        "TPAUCLoss(15 rows, 6 positives, min_tpr=0.3, max_fpr=0.6, surrogate='smooth_ramp', margin=0.7, "
        "link='standardized', tau=0.9, gamma=0.125, threshold_lr=(1, 0.01))"
    )
