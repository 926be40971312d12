"""The study of constraints: what is estimated is what is measured, the choice of a setting, the tiny version."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch

from experiments import __main__ as command_line
from experiments.engine import RECORDS, Setup, run_missing
from experiments.studies import constraints, load_studies
from experiments.studies.constraints import PENALTIES, PURPOSES, TITLES, settings, summary, use_table, weight_table
from experiments.studies.constraints_uses import GroupRates, Measure, _merge, load_use, rate
from moreauc.data.examples import GroupData

STUDY = load_studies()["constraints"]


def test_a_rate_has_the_value_of_the_decisions_and_the_gradient_of_the_sigmoid():
    scores = torch.tensor([-2.0, 0.0, 0.5], requires_grad=True)
    assert rate(scores).tolist() == [0.0, 0.0, 1.0]
    rate(scores).sum().backward()
    smooth = torch.sigmoid(scores.detach())
    torch.testing.assert_close(scores.grad, smooth * (1 - smooth))


@pytest.mark.parametrize("name", ["fraud", "made", "digits"])
def test_parts_do_not_overlap_and_draws_are_of_training_rows(name):
    use = load_use(name, 0, None)
    first = [{tuple(row) for row in part[0].tolist()} for part in use.parts.values()]
    assert len(first[0]) > 800 and not first[0] & first[1] and not first[0] & first[2]
    batch = use.draw(torch.Generator().manual_seed(0))
    assert {tuple(row) for row in batch[0].tolist()} <= first[0]
    values, numbers = use.constraints(use.start, batch)
    assert len(values) == len(numbers) == len(set(numbers.tolist())) and numbers.max() < use.num_constraints
    assert values.requires_grad and use.objective(use.start, batch).ndim == 0


def test_constraints_of_all_rows_are_what_is_measured():
    """On all training rows the estimate of a batch is the violation."""
    fraud = load_use("fraud", 0, None)
    inputs, labels = fraud.parts["train"]
    values, _ = fraud.constraints(fraud.start, (inputs[labels == 1], inputs[labels == 0]))
    measure = fraud.measure(fraud.start, "train")
    torch.testing.assert_close(values.double(), measure.violation, rtol=0.0, atol=1e-6)
    assert measure.score == pytest.approx((fraud.start(inputs)[labels == 1] > 0).double().mean().item())

    groups = load_use("made", 0, None)
    inputs, labels, _ = groups.parts["train"]
    violation = groups.measure(groups.start, "train").violation
    for group, rows in enumerate(groups.rows):
        values, numbers = groups.constraints(groups.start, (inputs, labels, inputs[rows], torch.tensor([group])))
        torch.testing.assert_close(values.double(), violation[numbers], rtol=0.0, atol=1e-6)

    digits = load_use("digits", 0, None)
    model = torch.nn.Linear(64, 10)
    measured = digits.measure(model, "train").violation
    turned, labels, old = digits.parts["train"]
    for task in (0, 13, 29):
        rows = digits.rows[task % 10]
        batch = turned, labels, old[task // 10, rows], labels[rows], torch.tensor([task])
        values, _ = digits.constraints(model, batch)
        torch.testing.assert_close(values, measured[task : task + 1])
    assert digits.measure(digits.start, "train").violation.abs().max() < 1e-6  # the old model is as good as itself


def test_the_moved_threshold_meets_the_bound_and_is_the_lowest_that_does():
    use = load_use("fraud", 0, None)
    inputs, labels = use.parts["validation"]
    moved = use.moved(use.start)
    assert use.measure(moved, "validation").violation <= 0
    scores = moved(inputs)[labels == 0]
    lower = scores[scores <= 0].max()  # the next threshold below
    assert ((scores >= lower).double().mean() - use.most) > 0


def test_groups_with_few_positives_are_one():
    groups, labels = np.repeat([0, 1, 2, 3], [30, 5, 20, 6]), np.ones(61, dtype=int)
    numbers, names = _merge(GroupData(np.zeros((61, 1)), labels, groups, ["a", "b", "c", "d"]), 10)
    assert names == ["a", "c", "others"] and np.bincount(numbers).tolist() == [30, 20, 11]
    every = GroupData(np.zeros((50, 1)), np.ones(50, dtype=int), np.repeat([0, 1], 25), ["a", "b"])
    assert _merge(every, 10)[1] == ["a", "b"]


def test_probabilities_count_as_shares_of_a_row():
    use = load_use("made", 0, None)
    called = (use.start(use.parts["test"][0]) > 0).double()
    whole, half = use.measure_shares(called, "test"), use.measure_shares(0.5 * called + 0.25, "test")
    assert half.score == pytest.approx(0.5 * whole.score + 0.25)
    torch.testing.assert_close(half.violation + use.most, 0.5 * (whole.violation + use.most))


class Stub:
    """Measures a setting as it is told."""

    def __init__(self, held):
        self.held = held

    def measure(self, model, part):
        score, worst = self.held[model]
        return Measure(score if part == "validation" else 0.0, torch.tensor([worst, -1.0]))


@pytest.mark.parametrize(
    ("held", "chosen"),
    [
        ({100.0: (0.9, 0.4), 300.0: (0.6, 0.002), 1000.0: (0.7, -0.1), 3000.0: (0.2, -0.3)}, 1000.0),
        ({100.0: (0.9, 0.4), 300.0: (0.6, 0.003), 1000.0: (0.7, 0.1), 3000.0: (0.2, 0.3)}, 300.0),
    ],
)
def test_a_setting_that_meets_the_constraints_is_better_than_one_that_does_not(monkeypatch, held, chosen):
    monkeypatch.setattr(constraints, "load_use", lambda *place: Stub(held))
    monkeypatch.setattr(constraints, "descend", lambda use, method, setting, **options: setting["penalty"])
    record = constraints.tune_and_test(dataset="fraud", method="average", seed=0, steps=1, folder=None)
    assert record["setting"] == {"penalty": chosen} and record["test"]["worst"] == pytest.approx(held[chosen][1])
    assert [entry["penalty"] for entry in record["tried"]] == list(held)


def test_every_method_with_a_choice_tries_as_many_settings():
    for purpose in PURPOSES.values():
        counts = {method: len(settings(method, purpose)) for method in TITLES}
        assert {counts[name] for name in (*PENALTIES, "cooper", "fairlearn")} == {4}
        assert {counts[name] for name in ("unconstrained", "threshold", "logistic", "replay")} == {1}


def test_methods_take_the_steps_they_say():
    """From the same start with the same batches: the hinge of the batch is autograd's, the table is another run."""
    use, found = load_use("made", 0, None), {}
    options = {"steps": 12, "seed": 3, "smoothing": 0.05}
    for method in ("unconstrained", *PENALTIES):
        setting = {} if method == "unconstrained" else {"penalty": 2.0}
        model = constraints.descend(use, method, setting, **options, curve=(curve := []))
        found[method] = torch.cat([value.flatten() for value in model.state_dict().values()])
        assert [point[0] for point in curve][-1] == 12 and len(curve) == 13
    for method, weights in {"plug_in": [(k + 1) / 6 for k in range(12)], "plug_in_constant": [2.0] * 12}.items():
        own = constraints.copy.deepcopy(use.start)
        optimizer = torch.optim.AdamW(own.parameters(), lr=0.01, weight_decay=1e-2)
        schedule, random = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12), torch.Generator().manual_seed(3)
        for weight in weights:
            batch = use.draw(random)
            values = use.constraints(own, batch)[0]
            hinge = torch.where(values < 0.05, values.relu().square() / 0.1, values - 0.025)
            optimizer.zero_grad()
            (use.objective(own, batch) + weight * hinge.mean()).backward()
            optimizer.step()
            schedule.step()
        expected = torch.cat([value.flatten() for value in own.state_dict().values()])
        torch.testing.assert_close(found[method], expected, rtol=0.0, atol=1e-5)
    names = list(found)
    assert all(not torch.equal(found[a], found[b]) for a in names for b in names if a < b)


@pytest.mark.parametrize(("method", "package"), [("cooper", "cooper"), ("fairlearn", "fairlearn")])
def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch, method, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.reductions", None)
    with pytest.raises(ModuleNotFoundError, match=rf"this needs {package}, .* pip install 'moreauc\[constraints\]'"):
        constraints.tune_and_test(dataset="made", method=method, seed=0, steps=1, folder=None)


def test_the_tiny_version_makes_a_page(tmp_path):
    study, setup = STUDY.smoke(), Setup(tmp_path)
    run_missing(study, setup, study.tasks(setup))
    command_line.make_report(study, tmp_path, "a command")
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    records = [json.loads(line) for line in (tmp_path / RECORDS).read_text(encoding="utf-8").splitlines()]
    assert len(records) == 9 + 7 + 8 == len(report["cells"])
    assert len(report["weights"]) == 3 * 6 * 4
    assert (tmp_path / "runs.png").stat().st_size > 1000
    for record in records:
        if record["method"] == "logistic":
            continue
        assert record["curve"]["step"] == list(range(11))
        at_the_end = record["curve"]["score"][-1], record["curve"]["worst"][-1]
        if record["method"] != "threshold":
            assert at_the_end == pytest.approx((record["train"]["score"], record["train"]["worst"]), abs=1e-4)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "Digits: no old task gets worse" in page and "cooper" not in page


def test_the_summary_by_hand():
    def found(score, worst):
        return {"score": score, "worst": worst, "mean": 0.0, "share": 0.5}

    def record(seed, worst):
        tried = [
            {"penalty": penalty, "found": {part: found(0.1 * seed + penalty, worst) for part in ("train", "test")}}
            for penalty in (1.0, 2.0)
        ]
        return {
            **{"dataset": "compas", "method": "average", "seed": seed, "tried": tried, "curve": {}},
            **{"test": found(0.5 + 0.1 * seed, worst), "train": found(0.7, 2 * worst)},
        }

    results = summary([record(0, 0.03), record(1, 0.05)])
    (cell,) = results["cells"]
    assert (cell["runs"], cell["met"]) == (2, 1) and cell["score"]["mean"] == pytest.approx(0.55)
    columns, (row,) = use_table(results, "compas")
    assert row == [
        "ConstrainedLoss, tau 0.1",
        "0.550 ± 0.071",
        "0.040 ± 0.014",
        "0.500 ± 0.000",
        "0.080 ± 0.028",
        "1 of 2",
    ]
    assert len(columns) == len(row)
    _, (row,) = weight_table(results)
    assert row == ["compas", "ConstrainedLoss, tau 0.1", "1: 1.050, +0.040", "2: 2.050, +0.040"]


def test_the_tolerance_is_that_of_the_set():
    assert GroupRates("made", 0, None).most == 0.05
