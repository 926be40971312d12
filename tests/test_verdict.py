"""The verdict of a report, and the importance of columns: against loops, and against models whose weights are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest

from moreauc.app.report.verdict import (
    compare_models,
    importance_section,
    is_beyond_chance,
    linear_effects,
    permutation_importance,
    rank,
)
from moreauc.app.tables.base import Table
from moreauc.app.tables.rows import RowTableTask
from moreauc.app.tables.targets import Target
from moreauc.data.schema import learn_frame
from moreauc.estimators.description import Description
from moreauc.metrics import bootstrap_interval, tpauc_score
from moreauc.metrics.bootstrap import Resamples, resample_scores

pytestmark = pytest.mark.usefixtures("blank_figures")

REGION = {"min_tpr": 0.0, "max_fpr": 0.5}


@dataclass(frozen=True)
class Found:
    title: str
    resamples: Resamples


def found(title: str, *draws: float) -> Found:
    return Found(title, Resamples(float(np.mean(draws)), np.array(draws)))


@pytest.mark.parametrize(
    ("own", "lower", "outcome", "words"),
    [
        ((0.7, 0.8), False, "better", "A is better than C on these rows: M 0.750 against 0.450."),
        ((0.1, 0.2), False, "worse", "C is better than A on these rows: M 0.450 against 0.150."),
        ((0.1, 0.6), False, "equal", "C and A cannot be told apart on these rows: M 0.450 against 0.350."),
        ((0.1, 0.2), True, "better", "A is better than B on these rows: M 0.150 against 0.250."),
        ((0.7, 0.8), True, "worse", "B is better than A on these rows: M 0.250 against 0.750."),
    ],
)
def test_the_best_of_the_others_is_compared_with(own, lower, outcome, words):
    models = [found("A", *own), found("B", 0.2, 0.3), found("C", 0.4, 0.5)]
    verdict = compare_models(models, "M", "rows", lower_is_better=lower)
    assert (verdict.outcome, verdict.text[0]) == (outcome, words)
    assert ("within" if outcome == "equal" else "beyond") + " chance" in verdict.text[1]
    sign = {"better": 1, "worse": -1}.get(outcome)
    assert sign is None or verdict.difference.low * sign > 0 < verdict.difference.high * sign


def test_equal_models_and_a_model_alone_have_no_winner():
    verdict = compare_models([found("A", 0.2, 0.3), found("B", 0.2, 0.3)], "M", "rows")
    assert verdict.outcome == "equal" and "the same M on all resamples" in verdict.text[1]
    verdict = compare_models([found("A", 0.1, 0.3)], "M", "bags")
    assert verdict.outcome == "alone" and verdict.to_dict() == {"outcome": "alone", "other": None, "difference": None}
    assert verdict.text[0] == "A has a M of 0.200 on these bags."


def test_methods_near_the_best_are_named():
    scores = {"A": [0.4, 0.6, 0.5], "B": [0.6, 0.6, 0.6], "C": [0.1, 0.1, 0.1]}
    rows = [{"title": title, "mean": np.mean(values), "scores": values} for title, values in scores.items()]
    headline, evidence = rank(rows, "TPAUC", 3)
    assert headline == "B has the highest TPAUC on this table: 0.600."
    assert evidence.startswith("Not told apart from it") and ": A. The others are behind" in evidence
    assert rank(rows[1:], "TPAUC", 3)[1].startswith("All others are behind beyond chance")
    assert rank(rows[:1], "TPAUC", 3) == ["A has the highest TPAUC on this table: 0.500."]


def test_the_test_over_folds_by_its_formula():
    random = np.random.default_rng(2)
    for shift in (0.0, 0.02, 0.05, 0.1):
        first, second = random.normal(0.5 + shift, 0.05, 10), random.normal(0.5, 0.05, 10)
        gain = [a - b for a, b in zip(first, second, strict=True)]
        variance = sum((g - np.mean(gain)) ** 2 for g in gain) / 9
        statistic = np.mean(gain) / np.sqrt((1 / 10 + 1 / 4) * variance)
        assert is_beyond_chance(first, second, 5) == (statistic > 2.262157)


def test_the_difference_is_that_of_the_same_resamples():
    random = np.random.default_rng(0)
    labels = np.arange(60) % 3 == 0
    first, second = random.normal(size=(2, 60)) + labels
    gain = resample_scores(tpauc_score, labels, first, resamples=20, seed=5, **REGION)
    gain -= resample_scores(tpauc_score, labels, second, resamples=20, seed=5, **REGION)
    draw, expected = np.random.default_rng(5), []
    strata = [np.flatnonzero(~labels), np.flatnonzero(labels)]
    for _ in range(20):
        rows = np.concatenate([part[draw.integers(len(part), size=len(part))] for part in strata])
        scores = [tpauc_score(labels[rows], own[rows], **REGION) for own in (first, second)]
        expected.append(scores[0] - scores[1])
    np.testing.assert_allclose(gain.draws, expected)
    assert gain.interval(0.9).low == pytest.approx(np.quantile(expected, 0.05))
    alone = bootstrap_interval(tpauc_score, labels, first, resamples=20, seed=5, **REGION)
    assert alone == resample_scores(tpauc_score, labels, first, resamples=20, seed=5, **REGION).interval()


class Weights:
    """Scores by known weights: 2 for a, -1 for b, none for c, and 0.5 for the text x of t."""

    kind = "network"

    def describe(self) -> Description:
        return Description(kind=self.kind, title="weights")

    def decision_function(self, X: pd.DataFrame) -> Any:
        return (2.0 * X["a"] - X["b"].fillna(0.0)).to_numpy() + 0.5 * (X["t"].astype(str) == "x").to_numpy()


@pytest.fixture
def case() -> tuple[RowTableTask, Table]:
    random = np.random.default_rng(1)
    features = pd.DataFrame(random.normal(size=(300, 3)), columns=list("abc"))
    features["t"] = random.choice(["x", "y"], 300, p=[0.25, 0.75])
    scores = Weights().decision_function(features)
    features = learn_frame("test", features)
    target = Target(name="y", positive="1", negative="0", reason="test")
    return RowTableTask(features.schema, target, **REGION), Table(
        features, (scores > np.quantile(scores, 0.8)).astype(int)
    )


def test_permutation_importance_by_a_loop(case, monkeypatch):
    task, table = case
    rows = {row["column"]: row for row in permutation_importance(task, Weights(), table)}
    random, whole = np.random.default_rng(0), task.goodness(Weights(), table)
    for name in table.features:
        losses = []
        for _ in range(3):
            order = random.permutation(300)
            shuffled = table.features.assign(**{name: table.features[name].to_numpy()[order]})
            scores = Weights().decision_function(shuffled)
            losses.append(whole - tpauc_score(table.targets, scores, **REGION))
        assert rows[name]["loss"] == pytest.approx(np.mean(losses)) and rows[name]["std"] >= 0.0
    assert list(rows)[:2] == ["a", "b"] and rows["c"]["loss"] == 0.0
    monkeypatch.setattr("moreauc.app.report.verdict._MOST_ROWS", 150)
    monkeypatch.setattr("moreauc.app.report.verdict._MOST_COLUMNS", 2)
    few = permutation_importance(task, Weights(), table)
    assert {row["column"] for row in few} == {"t", "a"}  # text, and the number nearest to the target
    sections, numbers = importance_section(task, Weights(), table)
    assert "2 in all" in sections[0].text[0] and numbers["importance"] == few
    assert task.sample(table, 150, np.random.default_rng(0)).size == 150


def test_advice_says_what_no_loss_can_help(case):
    task, table = case
    assert task._limits(Weights(), table, table) == []
    upset = Table(table.features, table.targets[np.random.default_rng(0).permutation(300)])
    assert "much better than these (TPAUC 1.00 against 0." in task._limits(Weights(), upset, table)[0]
    few = table.part(np.flatnonzero((table.targets == 0) | (np.arange(300) < 150)))
    assert f"With {few.targets.sum()} positives to train on" in task._limits(Weights(), table, few)[0]


def test_effects_of_a_linear_model_are_its_weights(case):
    task, table = case
    model = Weights()
    model.kind = "linear"
    rows = linear_effects(task, model, table)
    numbers = {row["column"]: row["effect"] for row in rows if row["column"] != "t"}
    levels = {row["value"]: row["effect"] for row in rows if row["column"] == "t"}
    spread, share = table.features.std(numeric_only=True), (table.features["t"] == "x").mean()
    assert numbers == pytest.approx({"a": 2.0 * spread["a"], "b": -spread["b"], "c": 0.0})
    assert levels == pytest.approx({"= x": 0.5 * (1 - share), "= y": -0.5 * share})
    sections, content = importance_section(task, model, table)
    assert sections[0].columns == ("column", "value", "score") and len(content["effects"]) == 5
