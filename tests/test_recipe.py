"""How a classifier of rows trains by default: bins, a start from cross entropy, several networks, careful choice."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from torch import nn

from moreauc.criteria import CrossEntropyLoss
from moreauc.data import TensorBatches
from moreauc.estimators import TPAUCClassifier, network_fit
from moreauc.estimators.tpauc import RowFit
from moreauc.metrics import tpauc_score
from moreauc.models import BinnedMLP, PiecewiseLinear
from moreauc.train import fit

X, Y = make_classification(300, 5, weights=[0.8], flip_y=0.05, random_state=1)
QUICK = {"epochs": 2, "hidden": (8,), "bins": 4, "random_state": 0}


def quick(**options):
    return TPAUCClassifier(**{**QUICK, **options})


class TestBins:
    def test_against_a_loop(self):
        rows = torch.randn(50, 3, dtype=torch.float64)
        rows[:, 1] = (rows[:, 1] > 0).double()  # two values: not encoded
        rows[:, 2] = rows[:, 2].round()
        layer = PiecewiseLinear(rows, bins=4)
        edges = {}
        for column in (0, 2):
            values = np.unique(rows[:, column])
            cuts = np.quantile(rows[:, column], [0, 0.25, 0.5, 0.75, 1])
            edges[column] = values if len(values) <= 5 else np.unique(cuts)
        points = torch.linspace(-5, 5, 11).unsqueeze(1).expand(-1, 3)
        for x, got in zip(points.tolist(), layer(points).tolist(), strict=True):
            wanted = [max(-4.0, min(4.0, value)) for value in x]
            for column, cuts in edges.items():
                for low, high in pairwise(cuts):
                    wanted.append(2 * max(0.0, min(1.0, (x[column] - low) / (high - low))) - 1)
            assert got == pytest.approx(wanted, abs=1e-5)

    def test_edges_are_those_of_the_training_rows(self):
        model = quick(ensemble=1).fit(X, Y)
        again = X.copy()
        again[model.held_out_] *= 1.5
        other = quick(ensemble=1).fit(again, Y)
        assert torch.equal(model.model_.encoder.low, other.model_.encoder.low)


class TestStart:
    def test_epochs_of_cross_entropy_come_first_and_its_best_is_the_start(self):
        model = quick(ensemble=1).fit(X, Y)
        history = model.history_
        assert [row["phase"] for row in history.rows] == ["warm start"] * 2 + ["train"] * 2
        scores = [row["score"] for row in history.rows[:2]]
        assert history.start_epoch in (-1, int(np.argmax(scores)))

    def test_kept_weights_are_those_of_cross_entropy(self, monkeypatch):
        monkeypatch.setattr("moreauc.estimators.network_fit._MIN_GAIN", 1e9)
        kept = quick(ensemble=1).fit(X, Y)
        alone = quick(ensemble=1, loss="ce").fit(X, Y)
        assert kept.best_epoch_ == -1 and not kept.history_.untrained
        np.testing.assert_array_equal(kept.decision_function(X), alone.decision_function(X))

    @pytest.mark.parametrize("sparse", [False, True])
    def test_every_other_network_begins_as_logistic_regression(self, sparse, monkeypatch):
        begun = []

        def keep(model, *rest, **options):
            begun.append(copy.deepcopy(model).eval())
            return original(model, *rest, **options)

        original = network_fit.fit
        monkeypatch.setattr(network_fit, "fit", keep)
        given = csr_array(X) if sparse else X
        model = quick(ensemble=2, epochs=1, validation_fraction=0.0, dropout=0.0).fit(given, Y)
        inputs = model.preprocessor_.transform(given)
        dense = inputs.toarray() if sparse else np.clip(inputs, -4, 4)
        logistic = LogisticRegression(C=0.1 if sparse else 1.0).fit(dense, Y).decision_function(dense)
        scores = [made(torch.from_numpy(dense).float()).detach().numpy() for made in (begun[0], begun[2])]
        np.testing.assert_allclose(scores[0], logistic, atol=1e-2)
        assert np.abs(scores[1] - logistic).max() > 0.1

    def test_none_starts_from_the_initial_weights(self):
        assert {row["phase"] for row in quick(start=None).fit(X, Y).history_.rows} == {"train"}


class TestEnsemble:
    def test_the_score_is_the_mean_of_the_members(self):
        model = quick(ensemble=3).fit(X, Y)
        inputs = torch.from_numpy(model.preprocessor_.transform(X))
        with torch.no_grad():
            scores = torch.stack([member.model(inputs) for member in model.members_]).mean(0)
        np.testing.assert_allclose(model.decision_function(X), scores - model.threshold_, rtol=1e-5, atol=1e-6)

    def test_members_hold_out_other_rows(self):
        model, one = quick(ensemble=3).fit(X, Y), quick(ensemble=1).fit(X, Y)
        assert len(model.members_) == 3 and len(model.held_out_) > len(one.held_out_)
        assert model.n_iter_ == sum(len(member.history.rows) for member in model.members_)

    @pytest.mark.parametrize(("rows", "count"), [(300, 5), (5000, 5), (5001, 3), (50_001, 1)])
    def test_how_many_there_are_by_default(self, rows, count):
        assert TPAUCClassifier()._training()._num_members(rows) == count
        assert TPAUCClassifier(validation_fraction=0.0)._training()._num_members(rows) == 1

    def test_a_saved_training_goes_on(self, tmp_path):
        model = quick(ensemble=2).fit(X, Y, checkpoint=tmp_path / "run")
        again = quick(ensemble=2).fit(X, Y, checkpoint=tmp_path / "run")
        np.testing.assert_array_equal(model.decision_function(X), again.decision_function(X))
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["member_0", "member_1"]


class TestMixture:
    def test_shares_of_a_linear_model(self):
        torch.manual_seed(0)
        rows, weight = torch.randn(40, 3).clamp(-4, 4), torch.tensor([1.0, -2.0, 0.5])
        network = BinnedMLP(rows, bins=4, hidden=(8,)).eval()
        with torch.no_grad():
            network.linear.weight.normal_()
            own, linear = network(rows), rows @ weight + 0.3
            for share in (0.0, 0.25, 1.0):
                mixed = copy.deepcopy(network)
                mixed.mix(share, weight, 0.3)
                torch.testing.assert_close(mixed(rows), (1 - share) * own + share * linear)

    @pytest.mark.parametrize("sparse", [False, True])
    def test_held_out_rows_of_a_linear_table_are_ranked_better_with_it(self, sparse, monkeypatch):
        random = np.random.default_rng(0)
        many = (random.random((400, 60)) < 0.3).astype(float)  # more columns than a network can learn from
        score = many @ random.normal(size=60) + random.logistic(size=400)
        labels = (score > np.quantile(score, 0.7)).astype(int)
        areas = []

        def complete(self, members, data, splits):
            for _ in range(2):
                parts = [data.part(held) for _, held in splits]
                scores = [
                    self._raw_scores(member.model, part.inputs) for member, part in zip(members, parts, strict=True)
                ]
                pairs = zip(parts, scores, strict=True)
                areas.append(np.mean([tpauc_score(part.values, own, min_tpr=0, max_fpr=1) for part, own in pairs]))
                if len(areas) == 1:
                    original(self, members, data, splits)

        original = RowFit._complete
        monkeypatch.setattr(RowFit, "_complete", complete)
        quick(loss="ce", ensemble=2, epochs=10).fit(csr_array(many) if sparse else many, labels)
        assert areas[1] > areas[0]

    def test_a_curved_table_keeps_the_network(self, monkeypatch):
        shares = []
        original = BinnedMLP.mix
        monkeypatch.setattr(BinnedMLP, "mix", lambda self, *rest: (shares.append(rest[0]), original(self, *rest))[1])
        curved = np.random.default_rng(0).normal(size=(600, 2))
        model = quick(loss="ce", ensemble=2, epochs=20, lr=0.01).fit(curved, (np.abs(curved[:, 0]) > 1).astype(int))
        assert shares[-2:] == [0.0, 0.0]  # the others are those of the start and of the models to compare with
        assert model.score(curved, (np.abs(curved[:, 0]) > 1).astype(int)) > 0.9

    def test_nothing_is_mixed_without_a_start_or_a_hold_out(self, monkeypatch):
        monkeypatch.setattr(BinnedMLP, "mix", None)
        quick(start=None, ensemble=1).fit(X, Y)


class TestCautiousChoice:
    @pytest.mark.parametrize(("min_gain", "epoch"), [(0.0, 0), (1e9, -1)])
    def test_the_start_stays_unless_an_epoch_is_better_by_so_much(self, min_gain, epoch):
        torch.manual_seed(0)
        x, y = torch.from_numpy(X).float(), torch.from_numpy(Y)
        model = nn.Linear(5, 1)
        options = {"validation": TensorBatches(x, y), "min_tpr": 0.0, "max_fpr": 1.0, "epochs": 1, "lr": 0.5}
        batches = TensorBatches(x, y, batch_size=100)
        if min_gain:
            with pytest.warns(UserWarning, match="no epoch did better"):
                history = fit(model, CrossEntropyLoss(Y), batches, min_gain=min_gain, **options)
        else:
            history = fit(model, CrossEntropyLoss(Y), batches, **options)
        assert history.best_epoch == epoch
