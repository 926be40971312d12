"""Cross entropy of a linear model is logistic regression: the exact minimum with a true L2 penalty."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from torch import nn

from moreauc import TPAUCClassifier
from moreauc.criteria import CrossEntropyLoss
from moreauc.data.tabular import TableEncoder
from moreauc.metrics import tpauc_score
from moreauc.optim.lbfgs import PenalizedLBFGS
from moreauc.train import train_step

DATA = os.environ.get("MOREAUC_DATA")
REGIONS = [(0.5, 0.5), (0.0, 0.1)]


def rows(n=1500):
    """Correlated columns on scales from 0.01 to 100, 10 % positive, not separable."""
    X, y = make_classification(n, 12, n_informative=6, n_redundant=4, weights=[0.9], flip_y=0.1, random_state=0)
    return X * np.logspace(-2, 2, 12), y


def assert_same_scores(X, y, train, test, weight_decay, loss="ce"):
    """TPAUC of the test rows is that of scikit-learn with the same penalty, in both regions."""
    inputs = TableEncoder().fit(X[train]).transform(X).astype(np.float64)
    weight = {0: 1.0, 1: (y[train] == 0).sum() / (y[train] == 1).sum() if loss == "ce_weighted" else 1.0}
    strength = 1 / (weight_decay * len(train)) if weight_decay else np.inf
    logistic = LogisticRegression(C=strength, class_weight=weight, max_iter=5000, tol=1e-8)
    logistic.fit(inputs[train], y[train])
    options = {"module": "linear", "validation_fraction": 0.0, "weight_decay": weight_decay}
    ours = TPAUCClassifier(loss=loss, random_state=0, **options).fit(X[train], y[train])
    for low, high in REGIONS:
        scores = [logistic.decision_function(inputs[test]), ours.decision_function(X[test])]
        theirs, own = (tpauc_score(y[test], values, min_tpr=low, max_fpr=high) for values in scores)
        assert own == pytest.approx(theirs, abs=1e-3)
        assert theirs > 0.1


@pytest.mark.parametrize("loss", ["ce", "ce_weighted"])
@pytest.mark.parametrize("weight_decay", [2e-4, 0.01, 1.0])
def test_cross_entropy_of_a_linear_model_is_logistic_regression(loss, weight_decay):
    X, y = rows()
    assert_same_scores(X, y, np.arange(900), np.arange(900, 1500), weight_decay, loss)


@pytest.mark.skipif(DATA is None, reason="needs the data that MOREAUC_DATA names")
@pytest.mark.parametrize("name", ["7_Cardiotocography", "27_PageBlocks", "29_Pima"])
def test_the_same_on_public_tables(name):
    table = np.load(Path(DATA) / "adbench" / f"{name}.npz")
    X, y = table["X"], table["y"].astype(int)
    order = np.random.default_rng(0).permutation(len(y))
    half = len(y) // 2
    assert_same_scores(X, y, order[:half], order[half:], 1 / half)


def test_the_weights_are_those_of_scikit_learn():
    X, y = rows(400)
    X = TableEncoder().fit(X).transform(X).astype(np.float64)
    model = nn.Linear(12, 1).double()
    batch = (torch.from_numpy(X), torch.from_numpy(y), torch.arange(400))
    optimizer = PenalizedLBFGS(model.parameters(), weight_decay=0.02)
    before = train_step(model, CrossEntropyLoss(batch[1]), optimizer, batch)
    logistic = LogisticRegression(C=1 / (0.02 * 400), tol=1e-10, max_iter=5000).fit(X, y)
    np.testing.assert_allclose(model.weight.detach().numpy(), logistic.coef_, atol=1e-5)
    np.testing.assert_allclose(model.bias.detach().numpy(), logistic.intercept_, atol=1e-5)
    assert CrossEntropyLoss(batch[1])(model(batch[0]).squeeze(1), *batch[1:]) < before and not optimizer.state


def test_weights_of_rows_are_those_of_scikit_learn():
    X, y = rows(600)
    X = TableEncoder().fit(X).transform(X).astype(np.float64)
    weight = np.random.default_rng(0).integers(1, 6, size=600)
    options = {"module": "linear", "standardize": False, "validation_fraction": 0.0, "weight_decay": 0.01}
    ours = TPAUCClassifier(loss="ce", random_state=0, **options).fit(X, y, sample_weight=weight)
    logistic = LogisticRegression(C=1 / (0.01 * weight.sum()), tol=1e-10, max_iter=5000)
    coefficients = logistic.fit(X, y, sample_weight=weight).coef_
    np.testing.assert_allclose(ours.model_.layers[0].weight.detach().numpy(), coefficients, atol=2e-3)


def test_neither_seed_nor_epochs_nor_learning_rate_matter():
    X, y = rows(400)
    fitted = [
        TPAUCClassifier(loss="ce", module="linear", validation_fraction=0.0, **options).fit(X, y).decision_function(X)
        for options in ({"random_state": 0}, {"random_state": 1, "epochs": 3, "lr": 0.5, "batch_size": 16})
    ]
    np.testing.assert_allclose(fitted[0], fitted[1], atol=1e-4)


def test_it_is_judged_by_held_out_rows_and_saved_as_other_trainings(tmp_path):
    X, y = rows(400)
    options = {"loss": "ce", "module": "linear", "ensemble": 1, "random_state": 0}
    first = TPAUCClassifier(**options).fit(X, y, checkpoint=tmp_path / "run")
    assert first.best_epoch_ == 0 and first.n_iter_ == 1 and len(first.held_out_) == 80
    again = TPAUCClassifier(**options).fit(X, y, checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(first.decision_function(X), again.decision_function(X))


@pytest.mark.parametrize("options", [{"optimizer": "sgd"}, {"sampler": "balanced"}, {"loss": "auc_sh"}])
def test_what_asks_for_batches_gets_them(options):
    X, y = rows(200)
    fixed = {"loss": "ce", "module": "linear", "start": None, "ensemble": 1, "epochs": 2, "random_state": 0}
    fitted = TPAUCClassifier(**{**fixed, **options}).fit(X, y)
    assert fitted.n_iter_ == 2
