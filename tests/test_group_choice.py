"""What the methods over groups choose their epoch by: what they minimise, so that small groups are learnt, too."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from moreauc.criteria.sample_cvar import SampleCVaRLoss
from moreauc.estimators import GroupDROClassifier, GroupDRORegressor
from moreauc.methods import METHODS
from moreauc.tasks.groups import Classes, EpochChoice, GroupTask, shrunk_group_losses

RANDOM = np.random.default_rng(0)
GROUPS = np.array([0, 0, 0, 1, 1, 3, 3, 3, 3, 4])  # none is 2


def shrunk_by_definition(losses, groups):
    """Variance components of the unbalanced one-way layout, in loops."""
    parts = [losses[groups == group] for group in sorted(set(groups.tolist()))]
    n, k, grand = len(losses), len(parts), sum(losses) / len(losses)
    if k == 1:
        return [grand]
    inside = sum(sum((x - part.mean()) ** 2 for x in part) for part in parts) / (n - k)
    mean_square = sum(len(part) * (part.mean() - grand) ** 2 for part in parts) / (k - 1)
    size = (n - sum(len(part) ** 2 for part in parts) / n) / (k - 1)
    between = max(0.0, (mean_square - inside) / size)
    if between == 0.0:
        return [grand] * k
    return [grand + (part.mean() - grand) * between / (between + inside / len(part)) for part in parts]


@pytest.mark.parametrize("seed", range(20))
def test_means_of_groups_are_shrunk_by_the_variance_components(seed):
    random = np.random.default_rng(seed)
    losses = random.exponential(size=10) + (seed % 4) * GROUPS
    assert shrunk_group_losses(losses, GROUPS) == pytest.approx(shrunk_by_definition(losses, GROUPS))


def test_limits_of_the_shrinkage():
    losses = RANDOM.exponential(size=10)
    assert shrunk_group_losses(losses, np.zeros(10, dtype=int)) == pytest.approx([losses.mean()])
    assert shrunk_group_losses(losses, np.arange(10)) == pytest.approx([losses.mean()] * 10)  # one row each
    assert shrunk_group_losses(np.full(10, 0.7), GROUPS) == pytest.approx([0.7] * 4)
    many = np.repeat(np.arange(4), 50_000)
    noisy = RANDOM.normal(size=len(many)) + many
    assert shrunk_group_losses(noisy, many) == pytest.approx(np.bincount(many, noisy) / 50_000, abs=1e-4)


def test_the_worst_of_equal_groups_is_hardly_too_high():
    groups = np.repeat(np.arange(20), 5)
    draws = RANDOM.exponential(size=(400, 100))
    plain = np.mean([losses.reshape(20, 5).mean(axis=1).max() for losses in draws])
    shrunk = np.mean([EpochChoice(top_k=1)(losses, groups) for losses in draws])
    assert plain > 1.9 and 1.0 <= shrunk < 1.3  # the truth is 1


@pytest.mark.parametrize("method", METHODS["groups"])
@pytest.mark.parametrize("balanced", [False, True])
def test_each_method_chooses_by_what_it_minimises(method, balanced):
    losses = RANDOM.exponential(size=10) + GROUPS
    criterion = SampleCVaRLoss(fraction=0.35) if method == "cvar" else None
    sampler = "groups" if balanced else "plain"
    task = GroupTask(loss=method, num_groups=5, top_k=2, goal=Classes(np.arange(2)), sampler=sampler)
    found = task.choice(SimpleNamespace(criterion=criterion))(losses, GROUPS)
    weights = 1.0 / np.bincount(GROUPS)[GROUPS] if balanced or method == "erm_reweighted" else np.ones(10)
    groups = sorted(shrunk_by_definition(losses, GROUPS))
    expected = {"sonx": np.mean(groups[-2:]), "exponentiated": groups[-1]}
    if method == "cvar":
        mass, total, rest = 0.0, 0.0, 0.35 * weights.sum()
        for k in np.argsort(-losses):
            taken = min(weights[k], rest - mass)
            mass, total = mass + taken, total + taken * losses[k]
        expected[method] = total / mass
    assert found == pytest.approx(expected.get(method, np.average(losses, weights=weights)))


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (EpochChoice(top_k=1), "loss of the worst group"),
        (EpochChoice(top_k=3), "loss of the 3 worst groups"),
        (EpochChoice(), "mean loss of all rows"),
        (EpochChoice(balanced=True), "mean loss of all rows, with equal weights of the groups"),
        (EpochChoice(fraction=0.5), "mean loss of the worst 50% of the rows"),
    ],
)
def test_the_choice_has_a_name(choice, text):
    assert choice.text == text


def table(rows, num_groups, *, seed, turned=False):
    """A table as people have it: numbers of different scales, a text, two classes; the last group may be turned."""
    random = np.random.default_rng(seed)
    groups, X = random.integers(num_groups, size=rows), random.normal(size=(rows, 3))
    town = random.choice(list("abcde"), size=rows)
    slope = np.where(turned & (groups == num_groups - 1), -1.5, 1.5)
    logit = slope * X[:, 0] - X[:, 1] + (np.char.find("abcde", town) - 2) / 2
    y = random.uniform(size=rows) < 1.0 / (1.0 + np.exp(-logit))
    frame = pd.DataFrame(X * [1.0, 10.0, 100.0] + [0.0, 5.0, 1000.0], columns=["x", "income", "km"]).assign(town=town)
    return frame, y, groups


@pytest.mark.parametrize("method", ["sonx", "exponentiated", "erm"])
def test_many_small_groups_are_learnt_by_default(method):
    X, y, groups = table(1000, 20, seed=3)
    model = GroupDROClassifier(loss=method, random_state=0).fit(X[:600], y[:600], groups=groups[:600])
    assert model.history_.best_epoch > 2 and model.score(X[600:], y[600:]) > 0.7


def test_the_mean_of_rows_is_learnt_though_one_group_follows_another_rule():
    X, y, groups = table(1600, 4, seed=0, turned=True)
    model = GroupDROClassifier(loss="erm", random_state=0).fit(X[:1200], y[:1200], groups=groups[:1200])
    assert not model.history_.untrained and model.score(X[1200:], y[1200:]) > 0.6
    assert model.chosen_by_ == "mean loss of all rows"


def test_the_score_of_an_epoch_is_that_loss_in_units_of_the_target():
    X, _, groups = table(200, 4, seed=0)
    y = 100.0 + 20.0 * X["x"]
    model = GroupDRORegressor(loss="cvar", epochs=4, lr=0.02, random_state=0).fit(X, y, groups=groups)
    rows = model.held_out_
    errors = torch.from_numpy(((model.predict(X) - y) ** 2).to_numpy()[rows])
    assert model.chosen_by_ == "mean loss of the worst 50% of the rows"
    assert -model.history_.best_score == pytest.approx(float(SampleCVaRLoss(fraction=0.5)(errors)), rel=1e-3)
