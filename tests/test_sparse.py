"""Sparse matrices: never dense as a whole, and scored as the same numbers in an array."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from scipy.sparse import csc_matrix, csr_array, csr_matrix

from moreauc._settings import checksum
from moreauc.data import TensorBatches
from moreauc.data.batches import SparseRows, rows_at_once, tensors_of
from moreauc.data.tabular import TableEncoder, same_rows
from moreauc.estimators import GroupDROClassifier, TPAUCClassifier


def made(rows: int = 240, columns: int = 30, seed: int = 0):
    random = np.random.default_rng(seed)
    y = (np.arange(rows) % 5 == 0).astype(int)
    X = random.normal(size=(rows, columns)) * (random.random((rows, columns)) < 0.5)
    X[:, 0] = (random.random(rows) < 0.1 + 0.7 * y) * 3.0
    return X, y


ONE = {"start": None, "ensemble": 1, "patience": None}  # one network, from its initial weights


def quick(**options):
    return TPAUCClassifier(**{"module": "linear", "epochs": 4, "lr": 0.03, "random_state": 0, **ONE, **options})


class TestSparseRows:
    def test_batches_are_the_rows_of_the_array(self):
        X, y = made(20, 5)
        dense, sparse = torch.from_numpy(X.astype(np.float32)), SparseRows(csr_array(X))
        for one, other in zip(
            TensorBatches(dense, y, batch_size=7), TensorBatches(sparse, y, batch_size=7), strict=True
        ):
            assert all(torch.equal(first, second) for first, second in zip(one, other, strict=True))
        part = sparse[torch.tensor([3, 1])]
        assert isinstance(part, SparseRows) and len(part) == 2 and part.shape == (2, 5)
        assert part.double().cpu().index_select(0, torch.tensor([1])).dtype == torch.float64
        with pytest.raises(ValueError, match="dim must be 0, got 1"):
            sparse.index_select(1, torch.tensor([0]))

    def test_a_checksum_tells_matrices_apart(self):
        X = made(20, 5)[0]
        other = X.copy()
        other[3, 0] += 1.0
        sums = [checksum(tensors_of(SparseRows(csr_array(table)))) for table in (X, X, other, X[:, :4])]
        assert sums[0] == sums[1] and len(set(sums)) == 3

    def test_chunks_of_wide_rows_are_small(self):
        assert rows_at_once(torch.zeros(3, 10**6), 4096) == 4096
        assert rows_at_once(SparseRows(csr_array((3, 10))), 4096) == 4096
        assert rows_at_once(SparseRows(csr_array((3, 10**9))), 4096) == 1


@pytest.mark.parametrize("kind", [csr_matrix, csr_array, csc_matrix, scipy.sparse.coo_array, scipy.sparse.lil_matrix])
def test_without_scaling_a_sparse_matrix_is_an_array(kind):
    X, y = made()
    # not "linear", which cross entropy fits exactly, unless the matrix is sparse
    options = {"module": lambda columns: torch.nn.Linear(columns, 1), "standardize": False}
    dense, sparse = quick(**options).fit(X, y), quick(**options).fit(kind(X), y)
    np.testing.assert_allclose(sparse.decision_function(kind(X)), dense.decision_function(X), atol=1e-5)
    np.testing.assert_array_equal(sparse.predict(X), sparse.predict(kind(X)))  # an array becomes sparse
    assert sparse.score(kind(X), y) > 0.3 and sparse.n_features_in_ == 30


def test_columns_are_divided_by_their_largest_magnitude_only():
    X = made()[0] + np.eye(240, 30) * 1e-3
    rows = np.arange(50, 200)
    encoder = TableEncoder().fit(csr_array(X), rows=rows)
    found = encoder.transform(csr_array(X))
    assert isinstance(found, csr_array) and found.dtype == np.float32 and found.nnz == np.count_nonzero(X)
    largest = np.abs(X[rows]).max(axis=0)
    expected = X / np.where(largest > 0, largest, 1.0)
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-5)
    np.testing.assert_allclose(encoder.transform(X).toarray(), expected, rtol=1e-5)
    huge = TableEncoder().fit(csr_array(X)).transform(csr_array(X * 1e300))
    assert np.isfinite(huge.data).all()


def test_nothing_makes_the_whole_matrix_dense(monkeypatch):
    X, y = made(400)
    sizes = []
    original = csr_array.toarray

    def spy(self, *args, **options):
        sizes.append(self.shape[0])
        return original(self, *args, **options)

    matrix = csr_matrix(X)
    monkeypatch.setattr(csr_array, "toarray", spy)
    monkeypatch.setattr(csr_matrix, "toarray", lambda self: pytest.fail("the whole matrix became dense"))
    monkeypatch.setattr("moreauc.data.batches._MOST_ENTRIES", 30 * 50)
    model = quick(batch_size=32).fit(matrix, y)
    model.predict_proba(matrix)
    assert max(sizes) == 50 and len(sizes) > 10


def test_equal_rows_are_found():
    X = np.array([[0.0, 1.0, 2.0], [0.0, 2.0, 1.0], [0.0, 1.0, 2.0], [0.0, 0.0, 0.0], [-0.0, 0.0, 0.0]])
    assert same_rows("test", csr_array(X)).tolist() == [0, 1, 0, 2, 2]
    stored = csr_array((np.zeros(2), np.array([0, 2]), np.array([0, 0, 2])), shape=(2, 3))
    assert same_rows("test", stored).tolist() == [0, 0]
    random = np.random.default_rng(0)
    many = random.integers(2, size=(300, 6)).astype(float)
    np.testing.assert_array_equal(same_rows("test", csr_array(many)), same_rows("test", many))


def test_a_fitted_model_is_copied_and_resumed(tmp_path):
    X, y = made()
    X = csr_matrix(X)
    model = quick().fit(X, y, checkpoint=tmp_path)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))
    again = quick().fit(X, y, checkpoint=tmp_path)
    np.testing.assert_array_equal(again.decision_function(X), model.decision_function(X))


def test_groups_take_them_too():
    X, y = made()
    options = {"hidden": (), "epochs": 2, "random_state": 0, "standardize": False}
    groups = np.arange(240) % 3
    dense = GroupDROClassifier(**options).fit(X, y, groups=groups)
    sparse = GroupDROClassifier(**options).fit(csr_matrix(X), y, groups=groups)
    np.testing.assert_allclose(sparse.decision_function(csr_matrix(X)), dense.decision_function(X), atol=1e-5)
    GroupDROClassifier(**options, module=lambda inputs, outputs: torch.nn.Linear(inputs, outputs)).fit(
        csr_matrix(X), y, groups=groups
    )


def test_what_is_refused():
    X, y = made()
    missing = X.copy()
    missing[0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        quick().fit(csr_matrix(missing), y)
    with pytest.raises(ValueError, match="X must have no missing values, as the sparse matrix in fit, got NaN"):
        quick().fit(csr_matrix(X), y).predict(missing)
    with pytest.raises(ValueError, match=r"must be an array or a DataFrame, as in fit, got a sparse matrix; call its"):
        quick().fit(X, y).predict(csr_matrix(X))
    frame = pd.DataFrame(X, columns=[f"x{k}" for k in range(30)])
    with pytest.warns(UserWarning, match="feature names"):
        np.testing.assert_array_equal(quick().fit(csr_matrix(X), y).predict(frame).shape, (240,))
