"""Scores of groups against pandas and loops over groups, the table of them, and their plot."""

from __future__ import annotations

import io
import json
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import accuracy_score, roc_auc_score

from moreauc._system import printable
from moreauc.app.report.bag_figures import plot_instance_weights
from moreauc.app.report.pages import draw_comparison
from moreauc.metrics import group_accuracy, group_auc, group_loss, group_table, plot_groups, plot_roc_region
from moreauc.metrics.groups import GroupTable, group_values

N = 400


def make(seed: int, count: int = 7, n: int = N) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    y_true = rng.integers(0, 2, n)
    return {
        "groups": np.concatenate([np.arange(count), np.arange(count), rng.geometric(0.4, n - 2 * count) % count]),
        "y_true": np.concatenate([np.ones(count, int), np.zeros(count, int), y_true[2 * count :]]),
        "y_pred": rng.integers(0, 2, n),
        "y_score": np.round(rng.normal(size=n) + y_true, 1),  # ties
        "losses": rng.gamma(2.0, size=n),
        "sample_weight": np.concatenate([np.full(2 * count, 0.5), rng.random(n) * (rng.random(n) < 0.9)])[:n],
    }


def overlap(seed: int, n: int = N, count: int = 5) -> np.ndarray:
    membership = np.random.default_rng(seed).random((n, count)) < 0.4
    membership[:, 0] = True
    return membership


# arguments, whether high is bad, the function, the value of one group
FAMILY = {
    "loss": (("losses",), True, group_loss, lambda losses, weight: np.average(losses, weights=weight)),
    "accuracy": (("y_true", "y_pred"), False, group_accuracy, lambda *v: accuracy_score(*v[:2], sample_weight=v[2])),
    "auc": (("y_true", "y_score"), False, group_auc, lambda *v: roc_auc_score(*v[:2], sample_weight=v[2])),
}
every_kind = pytest.mark.parametrize("kind", FAMILY)


def inputs_of(kind: str, data: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [data[name] for name in FAMILY[kind][0]]


# Values and the family


@every_kind
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("groups", ["ids", "memberships"])
def test_worst_k_worst_and_mean_equal_the_loop(kind, weighted, groups):
    for seed in range(3):
        data = make(seed)
        found = data["groups"] if groups == "ids" else overlap(seed)
        member = found if groups == "memberships" else found[:, None] == np.arange(7)
        weight = data["sample_weight"] if weighted else None
        _, highest, score, of_group = FAMILY[kind]
        inputs = inputs_of(kind, data)
        parts = [of_group(*(v[rows] for v in inputs), None if weight is None else weight[rows]) for rows in member.T]
        values = sorted(parts, reverse=highest)
        for k in (1, np.int64(2), len(values), None):
            got = score(*inputs, found, top_k=k, sample_weight=weight)
            assert isinstance(got, float) and got == pytest.approx(np.mean(values[:k]), rel=1e-12)


@every_kind
def test_groups_without_samples_are_left_out(kind):
    data, score = make(0), FAMILY[kind][2]
    inputs = inputs_of(kind, data)
    spread = np.array([1, 2, 3, 5, 8, 9, 10])[data["groups"]]  # 0, 4, 6, 7 and 11 have none
    for top_k in (1, 3, None):
        want = score(*inputs, data["groups"], top_k=top_k)
        assert score(*inputs, spread, num_groups=12, top_k=top_k) == want


def test_values_of_groups_without_samples_or_weight_are_nan():
    assert np.array_equal(group_values([1, 2, 4], [0, 2, 2], num_groups=4), [1, np.nan, 3, np.nan], equal_nan=True)
    found = group_values([1, 2, 4], [0, 1, 1], sample_weight=[0, 3, 1])
    assert np.array_equal(found, [np.nan, 2.5], equal_nan=True)
    assert np.isnan(group_values([1, 2], [[False], [False]])).all()
    assert np.isnan(group_values([1, 2], [0, 0], sample_weight=[0, 0])).all()
    assert group_values([1.0, 3.0], [0, 0], sample_weight=[1e308, 1e308]) == 2.0


@every_kind
@pytest.mark.parametrize("convert", [torch.tensor, pd.Series, list], ids=["torch", "pandas", "list"])
def test_kinds_of_input(kind, convert):
    data, score = make(1), FAMILY[kind][2]
    inputs = inputs_of(kind, data)
    want = score(*inputs, data["groups"], top_k=1)
    assert score(*map(convert, inputs), convert(data["groups"]), top_k=1) == want
    assert score(*inputs, np.eye(7, dtype=bool)[data["groups"]], top_k=1) == want
    *others, last = inputs
    assert score(*others, torch.tensor(last, dtype=torch.float64, requires_grad=True), data["groups"], top_k=1) == want


def test_classes_may_be_strings_or_more_than_two():
    y_true, y_pred, groups = ["a", "b", "c", "c"], ["a", "c", "c", "a"], [0, 0, 1, 1]
    assert group_accuracy(y_true, y_pred, groups) == 0.5
    assert group_accuracy(pd.Series(y_true, dtype=object), pd.Series(y_pred, dtype=object), groups) == 0.5
    assert group_accuracy([0, 1, 2, 2], [0.0, 2.0, 2.0, 2.0], groups) == 0.75


def test_groups_of_one_class_have_no_auc_and_are_named():
    data = [1, 0, 1, 1, 0, 0, 1, 0], [3, 1, 1, 2, 0, 1, 1, 2], [0, 0, 1, 1, 3, 3, 4, 4]
    for top_k, want in ((1, 0.0), (None, 0.5)):
        with pytest.warns(UndefinedMetricWarning, match="group_auc: .* left out, 2 of 5: 1, 3$") as caught:
            assert group_auc(*data, top_k=top_k) == want
        assert caught[0].filename == __file__
    with pytest.warns(UndefinedMetricWarning), pytest.raises(ValueError, match=r"top_k must be at most .* 2, got 3"):
        group_auc(*data, top_k=3)
    for y_true, groups, weight, match in (
        ([1] * 9, list(range(9)), None, r"left out, 9 of 9: 0, 1, 2, 3, 4, \.\.\.$"),
        ([1, 0, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1], "left out, 2 of 2: 0, 1$"),  # without weight a class is not there
    ):
        with pytest.warns(UndefinedMetricWarning, match=match), pytest.warns(UndefinedMetricWarning, match="no group"):
            assert np.isnan(group_auc(y_true, y_true, groups, sample_weight=weight))


@every_kind
def test_where_no_group_has_a_value_the_score_is_nan_with_a_warning(kind):
    arguments, _, score, _ = FAMILY[kind]
    for top_k in (1, None):
        with pytest.warns(UndefinedMetricWarning, match=f"{score.__name__}: .*no group has a value") as caught:
            assert np.isnan(score(*([[1.0, 0.0]] * len(arguments)), [[False], [False]], top_k=top_k))
        assert caught[-1].filename == __file__
    with pytest.raises(ValueError, match="top_k"):
        score(*([[1.0, 0.0]] * len(arguments)), [[False], [False]], top_k=2.0)


@every_kind
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"groups": [0, 1]}, r"(losses|y_true) must be as long as groups, 2, got 3"),
        ({"groups": [0, 1, -1]}, r"groups must be at least 0, got -1"),
        ({"groups": [0, 1, 5], "num_groups": 4}, r"groups must lie in \[0, 4\), got 5"),
        ({"groups": [0, 1, 10**9]}, r"groups .* got an id of 1000000000"),
        ({"groups": [0.0, 1.0, 0.5]}, r"groups must hold integers, got dtype float64"),
        ({"top_k": 0}, r"top_k .* at least 1, got 0"),
        ({"top_k": 2.0}, r"top_k .* got 2\.0"),
        ({"top_k": 3}, r"top_k must be at most .* 1, got 3"),
        ({"sample_weight": [1, 1]}, r"sample_weight must be as long as (losses|y_true), 3, got 2"),
        ({"sample_weight": [1, -1, 2]}, r"sample_weight must be at least 0, got -1"),
        ({"sample_weight": [1, np.nan, 2]}, r"sample_weight must be finite, got nan"),
    ],
)
def test_bad_groups_numbers_and_weights(kind, change, match):
    arguments, _, score, _ = FAMILY[kind]
    inputs = {name: [0, 1, 1] for name in arguments} | {"groups": [0, 0, 0], "top_k": 1}
    with pytest.raises(ValueError, match=f"{score.__name__}: {match}"):
        score(**inputs | change)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: group_loss([1.0, np.nan], [0, 0]), "group_loss: losses must be finite, got nan"),
        (lambda: group_loss(["a"], [0]), "losses .* got dtype <U1"),
        (lambda: group_values([np.inf], [0]), "group_values: values must be finite, got inf"),
        (lambda: group_accuracy([0, 1], [0], [0, 0]), "y_pred must be as long as y_true, 2, got 1"),
        (lambda: group_accuracy([0], ["a"], [0]), "y_pred must be of the kind of y_true, int64, got <U1"),
        (lambda: group_accuracy([np.nan], [0], [0]), "y_true must be finite, got nan"),
        (lambda: group_accuracy([0], [[0]], [0]), r"y_pred must have shape \(n,\), got \(1, 1\)"),
        (lambda: group_accuracy(["a", None], ["a", "b"], [0, 0]), "y_true must hold classes, got a miss"),
        (lambda: group_auc([0, 2], [0, 1], [0, 0]), "group_auc: y_true must hold 0 and 1 only"),
        (lambda: group_auc([0, 1], [0, np.inf], [0, 0]), "y_score must be finite, got inf"),
        (lambda: as_table(0, y_true=None), "group_table: y_true must be given with y_pred"),
        (lambda: as_table(0, y_true=None, y_pred=None), "group_table: y_true must be given with y_score"),
        (lambda: as_table(0, names=["a", "b"]), "names must hold one for each of 7 groups, got 2"),
        (lambda: as_table(0, names="abcdefg"), "names must hold one for each of 7 groups, got 'abcdefg'"),
        (lambda: as_table(0).top_k(0), r"GroupTable.top_k: k .* got 0"),
        (lambda: as_table(0).top_k(2.0), r"GroupTable.top_k: k .* got 2\.0"),
        (lambda: as_table(0).top_k(8), r"GroupTable.top_k: k must lie in \[1, 7\], got 8"),
    ],
)
def test_bad_values(call, match):
    with pytest.raises(ValueError, match=match):
        call()


# The table


def as_table(seed: int, **change) -> GroupTable:
    data = {name: column for name, column in make(seed).items() if name != "sample_weight"}
    return group_table(**data | change)


@pytest.mark.parametrize("seed", range(3))
def test_table_equals_that_of_pandas(seed):
    data, table = make(seed), as_table(seed)
    frame = pd.DataFrame(data | {"hit": data["y_true"] == data["y_pred"]}).groupby("groups")
    want = pd.DataFrame({"size": frame.size(), "loss": frame["losses"].mean(), "accuracy": frame["hit"].mean()})
    want["share"] = want["size"] / N
    want["auc"] = [roc_auc_score(part["y_true"], part["y_score"]) for _, part in frame]
    want = want.sort_values("loss", ascending=False)
    found = pd.DataFrame(table.to_dict()).set_index("group")
    assert found["name"].tolist() == [f"group {group}" for group in want.index]
    pd.testing.assert_frame_equal(found[want.columns], want, check_names=False, rtol=1e-12)
    assert table.gap == pytest.approx(want["loss"].max() - want["loss"].min())
    assert table.worst == table.rows()[0] and table.worst["group"] == want.index[0]
    assert len(table) == len(table.rows()) == 7 and json.dumps(table.rows())
    first = table.top_k(3)
    assert first.rows() == table.rows()[:3]
    assert np.mean(first.loss) == pytest.approx(group_loss(data["losses"], data["groups"], top_k=3))


def test_table_without_losses_is_sorted_by_what_there_is():
    data = make(0)
    base = {"groups": data["groups"], "y_true": data["y_true"]}
    table = group_table(**base, y_pred=data["y_pred"], y_score=data["y_score"])
    assert table.sorted_by == "accuracy" and (np.diff(table.accuracy) >= 0).all() and table.loss is None
    assert table.gap == table.accuracy[-1] - table.accuracy[0]
    table = group_table(**base, y_score=data["y_score"])
    assert table.sorted_by == "auc" and (np.diff(table.auc) >= 0).all() and table.accuracy is None
    table = group_table(groups=data["groups"])
    assert table.sorted_by == "size" and (np.diff(table.size) <= 0).all()
    assert set(table.to_dict()) == {"group", "name", "size", "share"}


def test_table_keeps_groups_without_samples_or_with_one_class_last_and_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = group_table(groups=[0, 2, 2], losses=[1, 2, 4], y_true=[1, 1, 0], y_score=[1, 1, 0], names=list("abc"))
        empty = group_table(groups=[[False]], losses=[1.0])
    assert table.name == ("c", "a", "b") and table.group.tolist() == [2, 0, 1] and table.size.tolist() == [2, 1, 0]
    assert np.array_equal(table.loss, [3, 1, np.nan], equal_nan=True)
    assert np.array_equal(table.auc, [1, np.nan, np.nan], equal_nan=True)
    assert table.gap == 2.0 and np.isnan(empty.gap)


def test_table_of_overlapping_groups_and_with_weights():
    data, membership = make(0), overlap(0)
    weight = data["sample_weight"]
    table = group_table(groups=membership, losses=data["losses"], sample_weight=weight, y_true=data["y_true"])
    for row in table.rows():
        rows = np.flatnonzero(membership[:, row["group"]])
        assert row["size"] == len(rows) and row["share"] == len(rows) / N
        assert row["loss"] == pytest.approx(np.average(data["losses"][rows], weights=weight[rows]))


def test_table_as_text_and_as_copy():
    table = group_table(groups=[0, 1, 1], losses=[1, 0.5, 0.25], names=["a longer name", "b"])
    assert str(table).splitlines() == [
        "group  name           size   share    loss",
        "    0  a longer name     1  0.3333  1.0000",
        "    1  b                 2  0.6667  0.3750",
    ]
    assert str(pickle.loads(pickle.dumps(table))) == str(table)


# The plot


def points(axes: Axes) -> dict[str, list[list[float]]]:
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def legend(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_few_groups_have_a_line_each_with_threshold_and_gap():
    losses = [0.4, np.nan, 0.9, 0.2, 0.6]
    figure = plot_groups(losses, names=list("abcde"), threshold=torch.tensor(0.5), top_k=1)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["c", "e", "a", "d"]
    assert legend(axes) == ["the worst group, mean 0.9", "other groups", "threshold s = 0.5"]
    drawn = points(axes)
    assert drawn["the worst group, mean 0.9"] == [[0.9, 0]]
    assert drawn["other groups"] == [[0.6, 1], [0.4, 2], [0.2, 3]]
    assert [x for x, _ in drawn["threshold s = 0.5"]] == [0.5, 0.5]
    assert "gap 0.7" in [text.get_text() for text in axes.texts]
    assert axes.get_xlabel() == "mean loss (1 without samples left out)" and axes.get_ylim()[0] > axes.get_ylim()[1]
    assert len({line.get_marker() for line in axes.lines[:2]}) == 2  # form, not colour alone
    figure.draw_without_rendering()


def test_many_groups_are_drawn_over_their_rank_with_the_ends_named():
    losses = np.random.default_rng(0).gamma(6.0, 0.1, 1000)
    figure = plot_groups(losses, threshold=0.9, top_k=50)
    (axes,) = figure.axes
    ordered = np.sort(losses)[::-1]
    label = f"the 50 worst groups, mean {ordered[:50].mean():.3g}"
    assert legend(axes) == [label, "other groups", "threshold s = 0.9"]
    assert points(axes)[label] == np.c_[np.arange(1, 51), ordered[:50]].tolist()
    assert points(axes)["other groups"] == np.c_[np.arange(51, 1001), ordered[50:]].tolist()
    texts = {text.get_text() for text in axes.texts}
    ends = f"group {losses.argmax()}: {ordered[0]:.3g}", f"group {losses.argmin()}: {ordered[-1]:.3g}"
    assert texts >= {*ends, f"gap {np.ptp(losses):.3g}"}
    assert all(1 <= tick <= 1000 for tick in axes.get_xticks())
    figure.draw_without_rendering()


def test_what_the_legend_says():
    table = group_table(groups=[0, 1, 1], losses=[1.0, 3.0, 2.0], names=["north", "south"])
    axes = plot_groups(table).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["south", "north"]
    assert axes.get_legend() is None and points(axes)["groups"] == [[2.5, 0], [1.0, 1]]
    axes = plot_groups([1.0, 2.0, 3.0], threshold=1.5).axes[0]
    assert legend(axes) == ["2 above the threshold, mean 2.5", "other groups", "threshold s = 1.5"]
    assert legend(plot_groups([1.0, 2.0], threshold=5).axes[0]) == ["groups", "threshold s = 5"]
    assert legend(plot_groups([1.0, 2.0], top_k=2).axes[0]) == ["the 2 worst groups, mean 1.5"]


def test_given_axes_decide_whether_names_fit():
    figure = Figure(figsize=(8, 4))
    left, right = figure.subplots(1, 2)
    assert plot_groups(np.arange(6.0), ax=left, top_k=1) is plot_groups(np.arange(30.0), ax=right) is figure
    assert left.get_xlabel() == "mean loss" and right.get_xlabel() == "rank of the group"
    figure.draw_without_rendering()


@pytest.mark.parametrize("losses", [[0.5], [0.5] * 60, [-1.0, -2.0]], ids=len)
def test_equal_single_and_negative_losses(losses):
    figure = plot_groups(losses, threshold=0.1)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert any(text.get_text().startswith("gap") for text in axes.texts) == (len(set(losses)) > 1)
    low, high = axes.get_xlim() if len(losses) <= 40 else axes.get_ylim()
    assert low <= min(*losses, 0.1) and max(*losses, 0.1) <= high


@pytest.mark.parametrize(
    ("losses", "options", "match"),
    [
        ([np.nan], {}, "table_or_losses .* got none"),
        ([1.0, -np.inf], {}, "table_or_losses must hold finite losses, got -inf"),
        ([[1.0]], {}, r"table_or_losses must have shape \(n,\), got \(1, 1\)"),
        (group_table(groups=[0]), {}, "table_or_losses must have losses"),
        ([1.0, 2.0], {"names": ["a"]}, "names must hold one for each of 2 groups, got 1"),
        ([1.0, np.nan], {"top_k": 2}, r"top_k must lie in \[1, 1\], got 2"),
        ([1.0], {"top_k": 0}, "top_k .* got 0"),
        ([1.0], {"threshold": "s"}, "threshold .* got 's'"),
        ([1.0], {"threshold": np.nan}, "threshold .* got nan"),
    ],
)
def test_plot_of_bad_input_draws_nothing(losses, options, match):
    axes = Figure().subplots()
    with pytest.raises(ValueError, match=f"plot_groups: {match}"):
        plot_groups(losses, **options, ax=axes)
    assert not axes.lines and not axes.texts


@pytest.mark.parametrize("name", [r"$\frac$", "_hidden", "a\nb\x1b[2J", "\udcff\0"])
def test_names_in_figures_are_shown_as_they_are_written(name):
    """Not read as mathematics, and drawn whatever they hold: a figure must not fail by a name."""
    shown = printable(name)
    few = plot_groups([0.2, 0.9], names=[name, "b"])
    many = plot_groups(np.arange(60.0), names=[name] * 60)
    weights = plot_instance_weights([0.3, 2.0], [0.2, 0.8], title=name)
    axes = Figure().subplots()
    plot_roc_region([1, 1, 0, 0], {name: [0.9, 0.4, 0.4, 0.1]}, min_tpr=0.5, max_fpr=0.5, ax=axes)
    for figure in (few, many, weights, axes.figure):
        figure.savefig(io.BytesIO(), format="png")
    assert shown in [text.get_text() for text in few.axes[0].get_yticklabels()]
    assert f"{shown}: TPAUC 0.500" in legend(axes)
    draw_comparison([{"title": name, "scores": [0.1], "mean": 0.1, "std": 0.0}])
