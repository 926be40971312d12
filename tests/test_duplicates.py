"""Equal rows and bags: found whatever their order and spelling, and on one side of every split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from moreauc.app.cli.options import FitOptions
from moreauc.app.comparison import Comparison, LabelledData
from moreauc.app.tables.base import equal_rows, read_split
from moreauc.app.tables.rows import RowTableTask, draw_test_rows
from moreauc.data import ListBags
from moreauc.data.duplicates import fold_together, hash_bags, hash_rows, number_equal, same_bags, take_together
from moreauc.data.groups import hold_out as hold_out_groups
from moreauc.data.tables import TableError
from moreauc.data.tabular import same_rows
from moreauc.estimators import GroupDROClassifier, MultiInstanceClassifier, TPAUCClassifier
from moreauc.tasks.rows import RowTask

REGION = {"min_tpr": 0.5, "max_fpr": 0.5}


def hold_out(positive, random, *, fraction, same, **region):
    return RowTask(loss="sonx", **region).hold_out(positive, fraction, random, same=same)


def blocks(rows: int = 400, different: int = 150, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of equal rows, from one to many of each, and labels that need not agree among them."""
    random = np.random.default_rng(seed)
    return number_equal(random.integers(different, size=rows)), random.random(rows) < 0.2


def parted(same: np.ndarray, held: np.ndarray) -> set[int]:
    """Return the numbers that are on both sides."""
    mask = np.zeros(len(same), dtype=bool)
    mask[held] = True
    return set(same[mask]) & set(same[~mask])


class TestHashes:
    def test_rows_are_equal_as_a_network_sees_them(self):
        frame = pd.DataFrame({"a": [1, 1.0, 2, None, None], "b": ["x", "x", "x", None, np.nan], "c": 0.0})
        frame.loc[1, "c"] = -0.0
        assert same_rows("t", frame).tolist() == [0, 0, 1, 2, 2]
        assert same_rows("t", np.array([[0.0, np.nan], [-0.0, np.nan], [np.nan, 0.0]])).tolist() == [0, 0, 1]

    def test_the_order_of_columns_counts(self):
        assert len(set(hash_rows(pd.DataFrame({"a": [1.0, 2.0], "b": [2.0, 1.0]})).tolist())) == 2

    def test_bags_are_equal_in_any_order_of_instances(self):
        rows = torch.randn(5, 2)
        bags = [rows, rows.flip(0), rows[:4], torch.cat([rows, rows]), rows + 1e-6, torch.cat([rows[:1]] * 5)]
        expected = [0, 0, 1, 2, 3, 4]
        assert same_bags(ListBags(bags, [0] * len(bags))).tolist() == expected
        codes = np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])
        order = np.random.default_rng(0).permutation(len(codes))  # rows of a bag need not stand together
        hashes = hash_rows(pd.DataFrame(torch.cat(bags).double().numpy()))
        assert number_equal(hash_bags(hashes[order], codes[order], len(bags))).tolist() == expected


@pytest.mark.parametrize("seed", range(3))
class TestSplits:
    def test_hold_outs(self, seed):
        same, positive = blocks(seed=seed)
        random = np.random.RandomState(seed)
        train, held = hold_out(positive, random, fraction=0.25, same=same, **REGION)
        assert not parted(same, held) and sorted([*train, *held]) == list(range(400))
        assert abs(positive[held].sum() - 0.25 * positive.sum()) <= 2 and abs(len(held) - 100) <= 8
        again = hold_out(positive, np.random.RandomState(seed), fraction=0.25, same=same, **REGION)
        assert (again[1] == held).all()
        assert not len(hold_out(positive, random, fraction=0.0, same=same, **REGION)[1])

    def test_where_all_rows_differ_nothing_changes(self, seed):
        positive, different = blocks(seed=seed)[1], np.arange(400)
        for same in (None, different):
            found = hold_out(positive, np.random.RandomState(seed), fraction=0.25, same=same, **REGION)
            rows = np.flatnonzero(positive)
            number = round(len(rows) / 4)  # as it was before equal rows were looked at
            assert set(np.random.RandomState(seed).permutation(rows)[:number]) == set(found[1][positive[found[1]]])
        hashes = hash_rows(pd.DataFrame({"a": np.arange(400.0)}))
        assert len(draw_test_rows(positive, 0.25, seed, hashes)) == sum(
            round(0.25 * (positive == k).sum()) for k in (0, 1)
        )
        groups, random = different % 7, np.random.RandomState
        plain = hold_out_groups(groups, positive, 0.25, random(seed))
        assert (hold_out_groups(groups, positive, 0.25, random(seed), same=different)[1] == plain[1]).all()
        tables = LabelledData(None, positive.astype(int)), LabelledData(None, positive.astype(int), same=different)
        for a, b in zip(*(table.split_rows(5, seed, 2) for table in tables), strict=True):
            assert (a == b).all()

    def test_test_rows_of_a_table(self, seed):
        same, positive = blocks(seed=seed)
        held = draw_test_rows(positive, 0.25, seed, hash_rows(pd.DataFrame({"a": same.astype(float)})))
        assert not parted(same, held) and abs(positive[held].sum() - 0.25 * positive.sum()) <= 2

    @pytest.mark.parametrize("classes", [True, False])
    def test_rows_in_groups(self, seed, classes):
        same, _ = blocks(seed=seed)
        random = np.random.default_rng(seed)
        groups, targets = random.integers(6, size=400), random.integers(3, size=400)
        train, held = hold_out_groups(groups, targets, 0.25, random, classes=classes, same=same)
        assert not parted(same, held) and set(groups[train]) == set(groups)
        assert 60 < len(held) < 140 and set(groups[held]) == set(groups) and set(targets[train]) == {0, 1, 2}

    def test_folds_of_a_comparison(self, seed):
        same, positive = blocks(seed=seed)
        table = LabelledData(None, positive.astype(int), same=same)
        seen = []
        for fold in range(5):
            train, test = table.split_rows(5, seed, fold)
            assert not parted(same, test) and abs(len(test) - 80) <= 2
            assert abs(positive[test].sum() - positive.sum() / 5) <= 2
            for rows, others in table.inner_rows(train, 3, seed):
                assert not set(same[rows]) & set(same[others]) and set(rows) | set(others) == set(train)
            seen += test.tolist()
        assert sorted(seen) == list(range(400))


def test_many_copies_of_few_rows():
    """Eight kinds of rows with both classes in each: whole kinds are held out, and both classes are on both sides."""
    same, positive = np.arange(800) % 8, np.arange(800) % 9 == 0
    taken = take_together(same, positive, 0.25, np.random.default_rng(0))
    assert len(set(same[taken])) == 2
    assert set(fold_together(same, positive, 4, np.random.default_rng(0)).tolist()) == {0, 1, 2, 3}
    with pytest.raises(TableError, match=r"no positives in the training split: .* only 1 different among 800"):
        draw_test_rows(positive, 0.25, 0, np.zeros(800, dtype=np.uint64))


def test_a_split_that_equal_rows_decide_is_told(tmp_path):
    random = np.random.default_rng(0)
    table = pd.DataFrame({"a": random.normal(size=200), "ward": random.choice(["A", "B"], 200)})
    table["y"] = np.arange(200) % 4 == 0
    table.loc[:49, ["a", "ward"]] = [0.0, "A"]
    table.to_csv(tmp_path / "some.csv", index=False)
    options = FitOptions(data=tmp_path / "some.csv", target="y", out=tmp_path)
    split = read_split(RowTableTask, options)
    (line,) = split.warnings
    assert line.startswith("50 of 200 rows (25.0%) equal others, and only 151 are different.")
    assert f"{len(split.test)} rows to test on ({len(split.test) / 200:.1%}) are not drawn at random" in line
    assert equal_rows(np.repeat(np.arange(95), [6] + [1] * 94), "the folds are") == []
    with pytest.raises(TableError, match=r"some\.csv, rows drawn to test on: column 'ward' must hold levels of the tr"):
        read_split(RowTableTask, replace(options, drop=["a"]))


@pytest.mark.filterwarnings("ignore::moreauc.metrics.TiedScoresWarning")
def test_no_epoch_is_chosen_by_copies_of_one_row():
    random = np.random.default_rng(0)
    X = random.integers(2, size=(600, 2)).astype(float)
    y = (random.random(600) < 0.1 + 0.5 * X[:, 0] * X[:, 1]).astype(int)
    model = TPAUCClassifier(epochs=10, random_state=1).fit(X, y)  # of one kind of rows any epoch gets 0
    assert len(model.held_out_) == 0 and model.score(X, y) > 0.3
    groups = GroupDROClassifier(epochs=2, random_state=1).fit(X, y, groups=np.arange(len(y)) % 2)
    assert len(groups.held_out_) == 0


@pytest.mark.filterwarnings("ignore::moreauc.metrics.TiedScoresWarning")  # equal rows have both classes
def test_estimators_hold_out_whole_kinds():
    random = np.random.default_rng(0)
    X = random.normal(size=(60, 3))[random.integers(60, size=200)]
    y = random.random(200) < 0.3
    frame = pd.DataFrame(X).add_prefix("x").assign(town=np.where(X[:, 0] > 0, "a", "b"))
    kinds = [random.normal(size=(random.integers(1, 5), 2)) for _ in range(30)]
    numbers = random.integers(30, size=100)
    bags = [random.permutation(kinds[number]) for number in numbers]
    for estimator, given, same in (
        (TPAUCClassifier, (X, y), same_rows("t", X)),
        (TPAUCClassifier, (frame, y), same_rows("t", frame)),
        (GroupDROClassifier, (X, y, np.arange(200) % 4), same_rows("t", X)),
        (MultiInstanceClassifier, (bags, np.arange(100) % 3 == 0), number_equal(numbers)),
    ):
        held = estimator(epochs=1, random_state=0).fit(*given).held_out_
        assert len(held) and not parted(same, held)


def test_a_comparison_keeps_equal_rows_together():
    random = np.random.default_rng(0)
    X = random.normal(size=(60, 2))[random.integers(60, size=160)]
    y = (random.random(160) < 0.3).astype(int)
    plan = Comparison(["ce"], folds=2, inner_folds=2, trials=1, settings={"module": "linear", "epochs": 1})
    for record in plan.run(X, y).records:
        assert not parted(same_rows("t", X), np.array(record["test_rows"]))
    with pytest.raises(ValueError, match=r"enough different rows for 5 folds .* got 4 among 200"):
        Comparison(["ce"]).run(np.repeat(np.arange(4.0), 50)[:, None], (np.arange(200) % 4 == 0).astype(int))
