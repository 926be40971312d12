"""The study of when it pays: what is drawn, the exact gradient, the choice of a step, and the tables."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from experiments import __main__ as command_line
from experiments.engine import RECORDS, Setup, run_missing
from experiments.studies import load_studies
from experiments.studies.when import (
    CAPACITIES,
    CHANGES,
    OBJECTIVES,
    Exact,
    Part,
    capacity_table,
    condition_table,
    conditions,
    draw_rows,
    fit_table,
    summary,
    tpauc,
    train_best,
)
from moreauc.core.surrogates import get_surrogate
from moreauc.metrics import tpauc_score
from moreauc.models import MLP

STUDY = load_studies()["when"]


def test_conditions_differ_from_the_centre_in_one_entry():
    centre, *others = conditions()
    assert len(others) == sum(map(len, CHANGES.values()))
    assert all(sum(entry[key] != centre[key] for key in centre) == 1 for entry in others)


def test_rows_are_drawn_in_the_share_asked_for_and_test_rows_stay():
    labels = np.repeat([0, 1], [9000, 3000])
    train, validation, test = draw_rows(labels, 2000, 0.1, seed=0)
    assert len(train) == 1500 and labels[train].sum() == 150 and labels[validation].sum() == 50
    assert labels[test].sum() == 1000 and len(test) == 4000
    assert len({*train, *validation, *test}) == 6000
    np.testing.assert_array_equal(draw_rows(labels, 500, 0.3, seed=0)[2][:1000], test[:1000])
    assert set(draw_rows(labels, 2000, 0.1, seed=1)[2]) != set(test)


def test_labels_are_turned_round_in_a_copy():
    part = Part.of(np.zeros((100, 1), dtype=np.float32), np.repeat([0, 1], 50))
    noisy = part.flipped(0.1, np.random.default_rng(0))
    assert int((noisy.y != part.y).sum()) == 10 and int(part.y.sum()) == 50


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_is_that_of_the_pairs_of_the_region(name):
    surrogate, link = OBJECTIVES[name]
    random = np.random.default_rng(0)
    values, labels = random.standard_normal(30), torch.tensor([1] * 10 + [0] * 20)
    scores = torch.tensor(values, requires_grad=True)
    Exact(surrogate, link, (0.5, 0.5))(scores, labels)

    own = torch.tensor(values, requires_grad=True)  # a loop over the pairs
    scale = float(np.std(values[10:]))
    h = {"identity": own, "sigmoid": own.sigmoid(), "standardized": own / scale}[link]
    lowest, highest = sorted(range(10), key=lambda i: h[i].item())[:5], sorted(range(10, 30), key=lambda j: -h[j])[:10]
    loss = get_surrogate(surrogate)
    sum(loss.value(h[j] - h[i]) for i in lowest for j in highest).div(50).backward()
    torch.testing.assert_close(scores.grad, own.grad)


def test_the_best_step_is_returned_and_the_start_is_one():
    torch.manual_seed(0)
    part = Part(torch.randn(40, 2), torch.arange(40) % 2)
    module = MLP(2, hidden=CAPACITIES["linear"])
    start = {key: value.clone() for key, value in module.state_dict().items()}
    seen = []

    def evaluate(module):
        seen.append(float(module.layers[0].weight.detach().abs().sum()))
        return {1: 1.0, 3: 2.0}.get(len(seen), 0.0)

    def loss(scores, labels):
        scores.sum().backward()

    best = train_best(module, loss, part, evaluate, steps=40, lr=0.1)
    assert len(seen) == 5 and float(best.layers[0].weight.detach().abs().sum()) == seen[2]
    worse = train_best(module.requires_grad_(), loss, part, lambda module: 0.0, steps=10, lr=0.1)
    assert not torch.equal(worse.layers[0].weight, start["layers.0.weight"])
    expected = tpauc_score(part.y.numpy(), best(part.X).detach().numpy(), min_tpr=0.5, max_fpr=0.5)
    assert tpauc(best, part, (0.5, 0.5)) == expected


def test_the_study_makes_a_page(tmp_path):
    study, setup = STUDY.smoke(), Setup(tmp_path)
    run_missing(study, setup, study.tasks(setup)[:2])
    command_line.make_report(study, tmp_path, "a command")
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    records = [json.loads(line) for line in (tmp_path / RECORDS).read_text(encoding="utf-8").splitlines()]
    assert {record["rows"] for record in records} == {500, 2000} and len(report["runs"]) == 2
    assert (tmp_path / "gains.png").stat().st_size > 1000


def test_the_summary_by_hand():
    records = []
    for seed, (rows, gain) in enumerate([(2000, 0.1), (2000, 0.3), (500, -0.2)]):
        found = {"ce": {"train": 0.8, "test": 0.5, "test_last": 0.4}}
        for place, name in enumerate(OBJECTIVES):
            found[name] = {"train": 0.9, "test": 0.5 + gain, "test_last": 0.5 - gain * place}
        place = {"dataset": "a", "capacity": "linear", "rows": rows, "flips": 0.0, "share": 0.1, "region": "0.5, 0.5"}
        records.append({**place, "seed": seed, "found": found})
    results = summary(records)
    assert [run["seeds"] for run in results["runs"]] == [2, 1]
    name = list(OBJECTIVES)[2]
    assert results["runs"][0]["gain"][name] == pytest.approx(0.2)
    assert results["runs"][0]["gain_last"][name] == pytest.approx(-0.4)
    columns, rows = condition_table(results)
    assert [row[0] for row in rows] == ["2000 rows, 10 % positives, clean, (0.5, 0.5)", "500 training rows"]
    assert rows[1][1:4] == ["0.800", "0.500", "-0.200 ± 0.000"] and len(columns) == len(rows[0]) == 9
    (row,) = capacity_table(results)[1]
    assert row[0] == "linear" and row[3] == "+0.000 ± 0.200"
    (row,) = fit_table(results)[1]
    assert row[:3] == ["0.8 to 1", "2", "0.800"]
