"""Data with groups: counts of the public tables, and the planted minority that the average forgets."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from experiments.data import groups as module
from experiments.data.groups import GROUP_SETS, load_adult, load_compas
from moreauc.data import planted_groups
from moreauc.data.examples import GroupData
from moreauc.data.tabular import TableEncoder

ADULT = [
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Unmarried, White, Male, 2174, 0, 40, Cuba, {}",
    "50, ?, 83311, Masters, 14, Divorced, ?, Wife, Black, Female, 0, 0, 13, ?, {}",
    "38, Private, 215646, HS-grad, 9, Divorced, Sales, Husband, Amer-Indian-Eskimo, Male, 0, 7, 40, India, {}",
]
COMPAS = [
    "id,sex,age,race,juv_fel_count,decile_score,juv_misd_count,juv_other_count,priors_count,c_charge_degree,is_recid,"
    "two_year_recid",
    "1,Male,69,Other,0,1,0,0,3,F,0,0",
    "3,Female,34,Hispanic,1,3,2,0,0,M,1,1",
    "4,Male,24,Asian,0,4,0,1,4,F,1,0",
]


def write(folder: Path, name: str, *lines: str) -> None:
    folder.mkdir(exist_ok=True)
    with gzip.open(folder / f"{name}.gz", "wt") as file:
        file.write("\n".join(lines) + "\n\n")


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setitem(module.GROUP_SETS, "adult.data", (3, 2))
    monkeypatch.setitem(module.GROUP_SETS, "adult.test", (2, 1))
    monkeypatch.setitem(module.GROUP_SETS, "compas-scores-two-years.csv", (3, 1))
    monkeypatch.delenv("MOREAUC_DATA", raising=False)
    monkeypatch.setenv("MOREAUC_CACHE", str(tmp_path / "cache"))
    labels = ["<=50K", ">50K", ">50K"]
    write(tmp_path / "groups", "adult.data", *(row.format(label) for row, label in zip(ADULT, labels, strict=True)))
    rows = "|1x3 Cross validator", ADULT[2].format("<=50K."), ADULT[1].format(">50K.")
    write(tmp_path / "groups", "adult.test", *rows)
    write(tmp_path / "groups", "compas-scores-two-years.csv", *COMPAS)
    return tmp_path


def three_rows(**changes) -> dict:
    return {"X": np.eye(3), "y": np.array([0, 1, 1]), "groups": np.array([2, 2, 0]), "names": list("abc"), **changes}


def test_group_data_counts_rows_of_groups_with_and_without_any():
    data = GroupData(**three_rows(groups=[2, 2, 0]))
    assert len(data) == 3 and data.num_groups == 3 and data.sizes.tolist() == [1, 0, 2]
    assert data.groups.dtype == np.int64
    assert repr(data) == "GroupData(3 rows, 3 columns, 3 groups of 0 to 2 rows)"
    with pytest.raises(AttributeError):
        data.y = np.zeros(3)


@pytest.mark.parametrize("rows", [[2, 0], np.array([2, 0], dtype=np.uint8), [True, False, True]])
@pytest.mark.parametrize("table", [False, True])
def test_a_subset_keeps_numbers_and_names_of_groups(rows, table):
    X = pd.DataFrame({"x": [5.0, 6.0, 7.0], "level": ["u", "v", "w"]}) if table else np.array([[5.0], [6.0], [7.0]])
    part = GroupData(**three_rows(X=X)).subset(rows)
    order = [0, 2] if rows[0] is True else [2, 0]
    assert part.y.tolist() == [[0, 1, 1][row] for row in order]
    assert part.groups.tolist() == [[2, 2, 0][row] for row in order] and part.names == ["a", "b", "c"]
    first = part.X["x"] if table else part.X[:, 0]
    assert first.tolist() == [[5.0, 6.0, 7.0][row] for row in order]
    assert not table or part.X.index.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"y": np.zeros(2)}, r"y must have shape \(3,\), got \(2,\)"),
        ({"groups": np.array([0, 1])}, r"groups must have shape \(3,\), got \(2,\)"),
        *(
            ({"groups": np.array(groups)}, "groups must hold integers in")
            for groups in ([0.0, 1, 2], [0, 3, 1], [-1, 0, 0])
        ),
    ],
)
def test_group_data_that_does_not_fit_together(changes, match):
    with pytest.raises(ValueError, match=f"GroupData: {match}"):
        GroupData(**three_rows(**changes))


def test_adult_of_both_parts(small):
    data = load_adult(small)
    assert data.X.shape == (5, 12) and not {"race", "sex"} & set(data.X) and data.y.tolist() == [0, 1, 1, 0, 1]
    assert [data.names[group] for group in data.groups] == [
        *("White, Male", "Black, Female", "Amer-Indian-Eskimo, Male"),
        *("Amer-Indian-Eskimo, Male", "Black, Female"),
    ]
    assert data.num_groups == 10 and data.names == sorted(data.names)
    assert data.X["workclass"].isna().tolist() == [False, True, False, False, True]
    assert data.X["age"].tolist() == [39, 50, 38, 38, 50] and str(data.X["workclass"].dtype) == "category"
    assert data.X["native-country"][0] == "Cuba" and data.X["capital-loss"].tolist() == [0, 0, 7, 7, 0]
    assert TableEncoder().fit(data.X).transform(data.X).shape[0] == 5


def test_compas_has_nothing_from_after_the_screening(small):
    data = load_compas(small)
    counts = ["juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count"]
    assert list(data.X) == ["age", "sex", *counts, "c_charge_degree"]
    assert data.X[counts].to_numpy().tolist() == [[0, 0, 0, 3], [1, 2, 0, 0], [0, 0, 1, 4]]
    assert data.y.tolist() == [0, 1, 0] and [data.names[group] for group in data.groups] == [
        "Other",
        "Hispanic",
        "Asian",
    ]
    assert data.num_groups == 6 and str(data.X["c_charge_degree"].dtype) == "category"


def test_the_real_tables_have_the_published_counts():
    """Runs on the real files where MOREAUC_DATA has them; CI sets it."""
    folder = os.environ.get("MOREAUC_DATA")
    if folder and (Path(folder) / "groups").is_dir():
        adult, compas = load_adult(), load_compas()
        train = np.bincount(adult.groups[:32561])
        assert train.tolist() == [119, 192, 346, 693, 1555, 1569, 109, 162, 8642, 19174]
        assert len(adult) == 48842 and adult.y[:32561].sum() == 7841 and adult.y.sum() == 7841 + 3846
        assert compas.sizes.tolist() == [3696, 32, 2454, 637, 18, 377] and compas.y.sum() == 3251
    assert GROUP_SETS == {
        "adult.data": (32561, 7841),
        "adult.test": (16281, 3846),
        "compas-scores-two-years.csv": (7214, 3251),
    }


@pytest.mark.parametrize("task", ["binary", "regression", "multiclass"])
def test_equal_seeds_give_equal_rows_and_no_row_is_in_two_parts(task):
    state = np.random.get_state()[1].copy()
    first, again, other = (planted_groups(samples=300, test_samples=400, task=task, seed=s) for s in (3, 3, 4))
    assert np.array_equal(state, np.random.get_state()[1])
    for a, b, c in zip(first, again, other, strict=True):
        assert np.array_equal(a.X, b.X) and np.array_equal(a.y, b.y) and np.array_equal(a.groups, b.groups)
        assert not np.array_equal(a.X, c.X) and a.X.dtype == np.float32
    assert [len(part) for part in first] == [300, 300, 400]
    rows = np.concatenate([part.X for part in first])
    assert len(np.unique(rows, axis=0)) == 1000


@pytest.mark.parametrize(
    ("num_groups", "minority", "share", "sizes"),
    [
        (10, 1, 0.05, [212] + [211] * 8 + [100]),
        (4, 2, 0.3, [700, 700, 300, 300]),
        (1000, 100, 0.05, [2] * 1000),  # two rows are all there is
        (400, 1, 0.001, [6] * 3 + [5] * 396 + [2]),
        (20, 19, 0.1, [1800] + [11] * 10 + [10] * 9),
    ],
)
def test_every_group_is_in_every_part(num_groups, minority, share, sizes):
    parts = planted_groups(
        num_groups=num_groups, minority_groups=minority, minority_share=share, samples=2000, test_samples=4000
    )
    found = parts[0].sizes.tolist()
    assert found == sizes and parts[1].sizes.tolist() == sizes
    assert parts[2].sizes.min() >= 2 and parts[2].sizes.sum() == 4000
    names = parts[0].names
    assert [name.split()[0] for name in names] == ["majority"] * (num_groups - minority) + ["minority"] * minority


def least_squares(part, rows, columns):
    """Weights of the rows' labels on the columns; labels of 0 and 1 as -1 and 1."""
    y = 2.0 * part.y[rows] - 1.0 if part.y.dtype == np.int64 else part.y[rows]
    return np.linalg.lstsq(part.X[rows][:, columns].astype(np.float64), y, rcond=None)[0]


@pytest.mark.parametrize("task", ["binary", "regression"])
@pytest.mark.parametrize("num_features", [5, 10])
def test_the_minority_has_the_other_sign_on_the_second_half(task, num_features):
    parts = planted_groups(
        num_groups=6, minority_groups=3, minority_share=0.5, samples=20000, num_features=num_features, task=task
    )
    half = num_features // 2
    for part in parts:  # the same rules in each
        minority = part.groups >= 3
        one, two = (least_squares(part, rows, range(num_features - 1)) for rows in (~minority, minority))
        scale = np.linalg.norm(one)
        flipped = np.concatenate([two[:half], -two[half:]])
        # up to 9 weights of 5000 rows: an error of 0.04 is expected; without the flip it is 1.4 times the scale
        assert np.linalg.norm(one - flipped) < 0.12 * scale
        assert np.linalg.norm(one[:half]) == pytest.approx(scale / np.sqrt(2), rel=0.05)
        assert part.X[minority, -1].mean() == pytest.approx(2.0, abs=0.05)
        assert part.X[~minority].mean(axis=0) == pytest.approx(np.zeros(num_features), abs=0.05)
        if task == "regression":
            assert scale == pytest.approx(1.0, rel=0.01) and part.y.std() == pytest.approx(1.0, abs=0.03)
            inputs = part.X[~minority, : num_features - 1]
            assert (part.y[~minority] - inputs @ one).std() == pytest.approx(0.05, rel=0.05)


def test_label_noise_is_the_share_of_labels_replaced():
    clean, noisy = (planted_groups(samples=20000, noise=noise, seed=1)[0] for noise in (0.0, 0.1))
    assert np.array_equal(clean.X, noisy.X)
    assert (clean.y != noisy.y).mean() == pytest.approx(0.1, abs=0.01) and set(noisy.y) == {0, 1}
    clean, noisy = (planted_groups(samples=20000, noise=noise, task="multiclass")[0] for noise in (0.0, 0.1))
    assert (clean.y != noisy.y).mean() == pytest.approx(0.1, abs=0.01)
    moves = (noisy.y - clean.y)[clean.y != noisy.y] % 3
    assert (moves == 1).mean() == pytest.approx(0.5, abs=0.06)  # either of the two other classes


def test_three_classes_of_equal_share_with_a_linear_rule_each():
    train, _, test = planted_groups(samples=8000, noise=0.0, task="multiclass", minority_groups=5, minority_share=0.5)
    for minority in (False, True):
        rows, fresh = (train.groups >= 5) == minority, (test.groups >= 5) == minority
        assert np.bincount(train.y[rows]) / rows.sum() == pytest.approx([1 / 3] * 3, abs=0.03)
        rule = LogisticRegression(C=100.0).fit(train.X[rows], train.y[rows])
        assert rule.score(test.X[fresh], test.y[fresh]) > 0.97
        assert rule.score(test.X[~fresh], test.y[~fresh]) == pytest.approx(1 / 3, abs=0.06)  # by chance


def errors(model, test):
    wrong = model.predict(test.X) != test.y
    return wrong.mean(), max(wrong[test.groups == group].mean() for group in range(test.num_groups))


def test_the_average_forgets_the_minority_and_weights_help():
    train, _, test = planted_groups(seed=0)
    weights = (1.0 / train.sizes)[train.groups]
    erm = LogisticRegression().fit(train.X, train.y)
    average, worst = errors(erm, test)
    assert average < 0.12 and worst > 0.4
    minority = train.groups == 9
    strong = np.where(minority, (~minority).sum() / minority.sum(), 1.0)  # as much as all others together
    equal = LogisticRegression().fit(train.X, train.y, sample_weight=weights * len(weights) / weights.sum())
    half = LogisticRegression().fit(train.X, train.y, sample_weight=strong)
    assert errors(half, test)[1] < worst - 0.1 and errors(equal, test)[1] <= worst
    assert errors(half, test)[0] > average + 0.1  # a linear model pays for it


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_groups": 1}, "num_groups must be an integer of at least 2, got 1"),
        ({"num_groups": 2001}, "samples must be an integer of at least 4002, got 4000"),
        ({"minority_groups": 10}, "minority_groups must be less than num_groups, 10, got 10"),
        ({"samples": 19}, "samples must be an integer of at least 20, got 19"),
        ({"num_features": 4}, "num_features must be an integer of at least 5, got 4"),
        ({"minority_share": 0.0}, r"minority_share must be a number in \(0, 0.5\], got 0.0"),
        ({"separation": -1.0}, r"separation must be a number in \[0, inf\), got -1.0"),
        ({"noise": 1.0}, r"noise must be a number in \[0, 1\), got 1.0"),
        ({"task": "ranking"}, "task must be one of binary, regression, multiclass, got 'ranking'"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
    ],
)
def test_planted_arguments_out_of_range(changes, match):
    with pytest.raises(ValueError, match=f"planted_groups: {match}"):
        planted_groups(**changes)
