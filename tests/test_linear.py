"""The linear classifier: its objective, its fit, weights, sparse input and tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from test_region import pair_matrix

from moreauc.core.surrogates import get_surrogate
from moreauc.data.tabular import TableEncoder
from moreauc.estimators import TPAUCLinear
from moreauc.estimators.decisions import choose_threshold, fit_platt
from moreauc.estimators.linear_fit import RegionObjective, assign_folds, best_beyond_chance, sample, standardized
from moreauc.estimators.rows import WeightedRows, merge_equal
from moreauc.metrics import tpauc_score


def table(n=400, columns=5, seed=0, share=0.2):
    """Positives are shifted in two columns; a few wrong values in the first mislead logistic regression."""
    random = np.random.default_rng(seed)
    y = (random.random(n) < share).astype(int)
    X = random.normal(size=(n, columns))
    X[:, :2] += np.outer(y, [2.0, 1.0])
    X[(y == 0) & (random.random(n) < 0.05), 0] += 20.0
    return X, y


def dense_objective(X, positive, weight, x, *, C, region, margin, anchor=0.1):
    """The objective of the docstring, over the pair matrix, with autograd."""
    scores = X @ x[:-1] + x[-1]
    share = weight[~positive] / weight[~positive].sum()
    middle = share @ scores[~positive]
    high = scores / (share @ (scores[~positive] - middle) ** 2).sqrt()

    loss = pair_matrix(high, positive, get_surrogate("smooth_ramp", margin), region, weight)
    signed = torch.where(positive, scores, -scores)
    bracket = weight @ torch.nn.functional.softplus(-signed) + x[:-1] @ x[:-1] / (2.0 * C)
    return loss + anchor * bracket / weight.sum()


@pytest.mark.parametrize("region", [(0.5, 0.5), (0.0, 0.1), (0.3, 0.37)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_objective_and_its_gradient_are_those_of_autograd(region, weighted, sparse):
    X, y = table(150)
    weight = np.random.default_rng(1).random(len(y)) + 0.1 if weighted else np.ones(len(y))
    x = torch.randn(6, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    rows = WeightedRows(scipy.sparse.csr_array(X) if sparse else X, y == 1, weight)
    objective = RegionObjective(rows, C=0.3, region=region)
    value, gradient = objective.value_and_gradient(x.detach().numpy(), get_surrogate("smooth_ramp", 0.4))
    tensors = torch.from_numpy(X), torch.from_numpy(y == 1), torch.from_numpy(weight)
    expected = dense_objective(*tensors, x, C=0.3, region=region, margin=0.4)
    assert value == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(gradient, torch.autograd.grad(expected, x)[0].numpy(), atol=1e-10)


def test_the_loss_over_the_region_depends_on_the_direction_only():
    X, y = table(200)
    objective = RegionObjective(WeightedRows(X, y == 1, np.ones(len(y))), C=1e12, region=(0.3, 0.3))
    loss, x = get_surrogate("smooth_ramp", 0.2), np.arange(1.0, 7.0)

    def of_region(point):
        value, gradient = objective.value_and_gradient(point, loss)
        logistic, of_logistic = objective.logistic(point)
        return value - 0.1 * logistic, gradient - 0.1 * of_logistic

    value, gradient = of_region(x)
    assert gradient @ x == pytest.approx(0.0, abs=1e-12) and gradient[-1] == pytest.approx(0.0, abs=1e-12)
    assert of_region(np.append(7.0 * x[:-1], -3.0))[0] == pytest.approx(value, rel=1e-10)


class TestFit:
    def test_it_is_better_than_logistic_regression_where_that_is_not_the_best_line(self):
        X, y = table(3_000)
        X, y, later, known = X[:1_500], y[:1_500], X[1_500:], y[1_500:]
        model = TPAUCLinear(min_tpr=0.5, max_fpr=0.5, random_state=0).fit(X, y)
        logistic = LogisticRegression().fit(X, y)
        before = tpauc_score(known, logistic.decision_function(later), min_tpr=0.5, max_fpr=0.5)
        assert model.margin_ is not None and model.score(later, known) > before + 0.02

    def test_of_few_positives_logistic_regression_is_kept(self):
        X, y = table(40)
        y[np.flatnonzero(y)[9:]] = 0
        model = TPAUCLinear(C=0.3, random_state=0).fit(X, y)
        scaler = StandardScaler().fit(X)
        logistic = LogisticRegression(C=0.3).fit(scaler.transform(X), y)
        assert model.margin_ is None
        np.testing.assert_allclose(model.coef_, logistic.coef_ / scaler.scale_, rtol=1e-3, atol=1e-4)

    def test_the_strength_of_the_penalty_is_chosen_by_folds(self):
        random = np.random.default_rng(0)
        X, y = random.normal(size=(240, 200)), (np.arange(240) % 4 == 0).astype(int)
        X[:, :40] += 0.3 * y[:, None]
        assert TPAUCLinear(random_state=0).fit(X, y).C_ < 1.0
        assert TPAUCLinear(C=1.0, random_state=0).fit(X, y).C_ == 1.0

    def test_a_given_margin_is_taken_without_a_choice(self):
        X, y = table()
        assert TPAUCLinear(margin=0.3, random_state=0).fit(X, y).margin_ == 0.3

    @pytest.mark.parametrize("surrogate", ["squared_hinge", "hinge", "logistic", "sigmoid"])
    def test_other_losses_can_be_named(self, surrogate):
        X, y = table()
        assert TPAUCLinear(surrogate=surrogate, margin=0.5, random_state=0).fit(X, y).score(X, y) > 0.3

    def test_a_table_of_more_rows_than_are_needed_to_choose(self, monkeypatch):
        monkeypatch.setattr("moreauc.estimators.linear_fit._CHOOSING", 300)
        X, y = table(2_000)
        model = TPAUCLinear(random_state=0).fit(X, y)
        assert model.margin_ is not None and model.score(X, y) > 0.6
        again = TPAUCLinear(random_state=0).fit(X, y)
        np.testing.assert_array_equal(model.coef_, again.coef_)

    @pytest.mark.parametrize("X", [np.ones((40, 2)), np.eye(40)[:, :1]])
    def test_features_that_say_nothing(self, X):
        y = np.arange(40) % 2
        model = TPAUCLinear(margin=0.2, random_state=0).fit(X, y)
        assert np.isfinite(model.predict_proba(X)).all()

    def test_the_number_of_threads_is_as_before(self):
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            TPAUCLinear(random_state=0).fit(*table(100))
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)


class TestInput:
    @pytest.mark.parametrize("columns", [5, 1_200])
    def test_sparse_rows_give_the_model_of_dense_ones_and_stay_sparse(self, columns, monkeypatch):
        X, y = table(200, columns)
        X[np.abs(X) < 0.5] = 0.0
        dense = TPAUCLinear(standardize=False, C=1.0, margin=0.2, random_state=0).fit(X, y)
        whole = scipy.sparse.csr_matrix.toarray

        def few(self, *args, **options):
            assert self.shape[0] < 100
            return whole(self, *args, **options)

        for kind in (scipy.sparse.csr_matrix, scipy.sparse.csr_array, scipy.sparse.csc_matrix):
            monkeypatch.setattr(kind, "toarray", few)
        sparse = TPAUCLinear(standardize=False, C=1.0, margin=0.2, random_state=0).fit(scipy.sparse.csc_matrix(X), y)
        np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=0.01, atol=0.01)
        np.testing.assert_allclose(sparse.predict_proba(scipy.sparse.csr_array(X)), sparse.predict_proba(X))

    @pytest.mark.parametrize("label", ["bad", "good"])
    def test_the_weights_are_those_of_the_encoded_columns(self, label):
        X, y = table()
        frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "town": np.where(X[:, 2] > 0, "north", "south")})
        frame.loc[::7, "b"] = None
        model = TPAUCLinear(positive_label=label, random_state=0).fit(frame, np.where(y == 1, "bad", "good"))
        assert model.coef_.shape == (1, model.preprocessor_.num_outputs_)
        encoded = model.preprocessor_.transform(frame)
        np.testing.assert_allclose(encoded @ model.coef_[0] + model.intercept_, model.decision_function(frame))

    def test_a_table_of_numbers_is_used_as_it_is(self):
        X, y = table()
        model = TPAUCLinear(random_state=0).fit(pd.DataFrame(X, columns=list("abcde")), y)
        np.testing.assert_array_equal(model.coef_, TPAUCLinear(random_state=0).fit(X, y).coef_)

    def test_missing_values(self):
        X, y = table()
        model = TPAUCLinear(random_state=0).fit(X, y)
        holes, filled = X.copy(), X.copy()
        holes[::3, 1], filled[::3, 1] = np.nan, X[:, 1].mean()
        np.testing.assert_allclose(model.decision_function(holes), model.decision_function(filled))
        assert TPAUCLinear(random_state=0).fit(holes, y).score(holes, y) > 0.3

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(("C", value) for value in (0.0, "large")),
            *(("margin", value) for value in (0.0, "wide")),
            *(("surrogate", "squared"), ("max_iter", 0), ("tol", -1.0)),
        ],
    )
    def test_arguments_are_checked(self, name, value):
        with pytest.raises(ValueError, match=f"TPAUCLinear: {name} must be"):
            TPAUCLinear(**{name: value}).fit(*table(50))

    def test_numbers_too_large_to_scale_are_refused(self):
        X, y = table(50)
        X[3, 2] = 1e200
        with pytest.raises(ValueError, match="squares are finite"):
            TPAUCLinear().fit(X, y)


class TestParts:
    def test_equal_rows_are_merged(self):
        X = np.array([[1.0, 0.0], [2.0, 0.0], [1.0, -0.0], [1.0, 0.0]])
        rows = WeightedRows(X, np.array([True, False, True, False]), np.array([1.0, 2.0, 3.0, 4.0]))
        for form in (np.asarray, scipy.sparse.csr_array):
            merged, hashes = merge_equal(WeightedRows(form(X), rows.positive, rows.weight))
            found = sorted(
                zip(
                    merged.X[:, [0]].tolist() if form is np.asarray else merged.X.toarray()[:, :1].tolist(),
                    merged.positive.tolist(),
                    merged.weight.tolist(),
                    strict=True,
                )
            )
            assert found == [([1.0], False, 4.0), ([1.0], True, 4.0), ([2.0], False, 2.0)]
            assert len(set(hashes.tolist())) == 2

    def test_folds_keep_equal_rows_together_and_spread_the_classes(self):
        hashes = np.concatenate([np.arange(100), np.arange(10)])
        positive = np.arange(110) >= 80
        folds = assign_folds(hashes, positive, np.random.RandomState(0))
        assert (folds[:10] == folds[100:]).all()
        for side in (positive, ~positive):
            counts = np.bincount(folds[side], minlength=5)
            assert counts.max() - counts.min() <= 3

    def test_a_sample_has_the_weight_of_what_it_stands_for(self, monkeypatch):
        monkeypatch.setattr("moreauc.estimators.linear_fit._CHOOSING", 100)
        for share, found in ((0.02, 20), (0.5, 50), (0.97, 70)):
            positive = np.arange(1_000) < 1_000 * share
            part = sample(WeightedRows(np.zeros((1_000, 1)), positive, np.ones(1_000)), np.random.RandomState(0))
            assert len(part.weight) == 100 and part.positive.sum() == found
            assert part.weight[part.positive].sum() == pytest.approx(positive.sum())
            assert part.weight.sum() == pytest.approx(1_000)

    def test_columns_are_standardized_by_weight(self):
        X, y = table(60)
        X = np.column_stack([X, np.full(60, 3.0), y])
        weight = np.arange(60) % 3 + 1
        rows, centre, scale = standardized(WeightedRows(X, y == 1, weight.astype(float)), np.arange(7) < 6)
        expected = StandardScaler().fit(X.repeat(weight, axis=0)).transform(X)
        expected[:, 6] = y  # not one of the first six
        np.testing.assert_allclose(rows.X, expected, atol=1e-12)
        np.testing.assert_allclose((X - centre) / scale, expected, atol=1e-12)

    def test_dates_are_standardized_and_marks_are_not(self):
        X, y = table(200)
        dates = pd.Series(pd.date_range("2025-03-01", periods=200, freq="31h"))
        frame = pd.DataFrame(X[:, :2]).set_axis(["a", "b"], axis=1)
        frame = frame.assign(town=np.where(X[:, 2] > 0, "x", "y"), seen=dates, c=np.where(X[:, 3] > 1, np.nan, X[:, 3]))
        # warnings are errors: unscaled years would keep logistic regression from converging
        model = TPAUCLinear(min_tpr=0.0, max_fpr=0.5, random_state=0).fit(frame, y)
        encoded, numbers = model.preprocessor_.encode(frame), model.preprocessor_.find_numbers()
        # a, b, c and days; the mark of a missing c; the year, the day, three waves; the two towns
        assert numbers.tolist() == [True] * 4 + [False] + [True] * 8 + [False] * 2
        assert set(np.unique(encoded[:, ~numbers])) == {0.0, 1.0}

    def test_sparse_columns_are_scaled_as_the_encoder_scales_them(self):
        X, y = table(60)
        X = scipy.sparse.csr_array(np.column_stack([X, np.zeros(60), y]))
        rows, centre, scale = standardized(WeightedRows(X, y == 1, np.ones(60)), np.ones(7, dtype=bool))
        expected = TableEncoder(dtype=np.float64).fit(X).encode(X)
        np.testing.assert_allclose(rows.X.toarray(), expected.toarray(), atol=1e-12)
        assert not centre.any() and scale[5:].tolist() == [1.0, 1.0]

    def test_chance_does_not_choose(self):
        gains = np.array([[0.0, 0.01], [0.0, 0.03], [0.0, 0.02], [0.0, 0.01], [0.0, 0.03]])
        assert best_beyond_chance(np.column_stack([gains, gains[:, 1] + 0.01])) == 2
        assert best_beyond_chance(gains) == 1
        assert best_beyond_chance(gains - [0.0, 0.02]) == 0
        assert best_beyond_chance(gains * 0.0) == 0

    def test_threshold_and_probabilities_by_weight_are_those_of_repeated_rows(self):
        random = np.random.default_rng(0)
        labels, scores, weight = random.integers(0, 2, 80), random.normal(size=80).round(1), random.integers(0, 4, 80)
        again = labels.repeat(weight), scores.repeat(weight)
        for budget in (0.0, 0.05, 0.1, 0.25, 0.5, 1.0):
            assert choose_threshold(labels, scores, budget, weight) == choose_threshold(*again, budget)
        assert fit_platt(labels, scores, weight) == pytest.approx(fit_platt(*again), rel=1e-4)
