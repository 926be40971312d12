"""Weights of rows in `fit` of TPAUCClassifier."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import make_classification
from torch import nn

from moreauc.estimators import TPAUCClassifier, decisions, network_fit
from moreauc.methods import METHODS

X, Y = make_classification(160, 4, n_clusters_per_class=1, weights=[0.7], flip_y=0.1, random_state=0)
WEIGHTS = np.random.default_rng(0).integers(1, 4, size=160)
WEIGHTED = [name for name, method in METHODS["rows"].items() if "sample_weight" in method.allowed]


def quick(**options):
    few = {"module": "linear", "epochs": 5, "batch_size": 32, "lr": 0.03, "random_state": 0}
    return TPAUCClassifier(**{**few, **options})


def full_batch(loss):
    """All rows in each step, and nothing that depends on how many there are."""
    start = nn.Linear(4, 1)
    nn.init.constant_(start.weight, 0.1)
    nn.init.zeros_(start.bias)
    options = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": 0.05, "batch_size": 2000}
    return quick(loss=loss, module=start, standardize=False, validation_fraction=0.0, **options)


def test_the_methods_that_take_weights():
    assert {"sonx", "ce", "ce_weighted", "mb", "auc_sh"} <= set(WEIGHTED)


@pytest.mark.parametrize("loss", [name for name in WEIGHTED if name != "mb"])  # which takes whole numbers of rows
def test_in_full_batches_a_weight_is_so_many_equal_rows(loss):
    weighted = full_batch(loss).fit(X, Y, WEIGHTS)
    repeated = full_batch(loss).fit(np.repeat(X, WEIGHTS, axis=0), np.repeat(Y, WEIGHTS))
    plain = full_batch(loss).fit(X, Y)
    found, same, other = (model.decision_function(X) for model in (weighted, repeated, plain))
    np.testing.assert_allclose(found, same, atol=1e-4)
    assert np.abs(found - other).max() > 1e-3
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-3)
    assert weighted.threshold_ == pytest.approx(repeated.threshold_, abs=1e-4)


def test_held_out_rows_count_by_their_weights(monkeypatch):
    weights = 1.0 + np.random.default_rng(1).random(160)  # all different
    chosen, decided = [], []

    def spy(module, name, note):
        original = getattr(module, name)

        def call(*parts, **options):
            note(parts, options)
            return original(*parts, **options)

        monkeypatch.setattr(module, name, call)

    spy(
        network_fit,
        "fit",
        lambda _, options: chosen.append((options["validation"].labels, options["validation_weight"])),
    )
    for name in ("choose_threshold", "fit_platt"):
        spy(decisions, name, lambda parts, _: decided.append(parts[-1]))
    model = quick().fit(X, Y, weights)
    assert len(chosen) and len(decided) == 2
    for labels, own in chosen:
        rows = [int(np.flatnonzero(weights == weight)[0]) for weight in own]
        assert set(rows) <= set(model.held_out_.tolist()) and Y[rows].tolist() == labels.tolist()
    for own in decided:
        np.testing.assert_array_equal(own, weights[model.held_out_])


def test_only_the_proportion_of_weights_matters_for_the_scores():
    one, ten = (quick().fit(X, Y, factor * WEIGHTS) for factor in (1, 10))
    np.testing.assert_allclose(one.decision_function(X), ten.decision_function(X), atol=1e-5)
    np.testing.assert_array_equal(one.held_out_, ten.held_out_)


def test_a_checkpoint_is_of_its_weights(tmp_path):
    quick().fit(X, Y, WEIGHTS, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=str(tmp_path)):
        quick().fit(X, Y, WEIGHTS[::-1], checkpoint=tmp_path)


@pytest.mark.parametrize(
    ("options", "weights"), [({"loss": "auc_m"}, WEIGHTS), ({"loss_options": {"sample_weight": WEIGHTS}}, None)]
)
def test_what_is_refused(options, weights):
    with pytest.raises(ValueError, match=r"TPAUCClassifier: .*sample_weight"):
        quick(**options).fit(X, Y, weights)
